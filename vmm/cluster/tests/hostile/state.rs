//! Tests in which the state of a hostile node is moved into another node while it runs, or damaged before that.

use nodescope_machine::state::NodeState;
use nodescope_snapshot::{Snapshot, SnapshotWriter};

use super::*;

/// Outcome of a node.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    ending: String,
    now: u64,
    states: Vec<VcpuState>,
    output: u64,
    memory: u64,
    /// True if page tables are as they were loaded, except for accessed and dirty bits.
    paged: bool,
}

/// Returns whether the page tables that [`load`] has written are unchanged. After a change without invalidating translations, a kernel may
/// continue with the old translations (SDM vol. 3A §4.10.4.3), which a moved node does not have.
fn is_paged(memory: &[u8]) -> bool {
    let loaded = Ram::new(&[RAM]).unwrap();
    load(&loaded, &[]);
    let tables = PAGES as usize..GDT as usize;
    let mut expected = vec![0; tables.len()];
    assert!(loaded.read(PAGES, &mut expected));
    let entries = |bytes: &[u8]| -> Vec<u64> {
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
        bytes.chunks_exact(8).map(|b| number(b) & !0x60).collect()
    };
    entries(&memory[tables]) == entries(&expected)
}

/// Returns a new node with a copy of the memory of `node`.
fn fresh(node: &Node) -> Node {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("moved.nss");
    let mut writer = SnapshotWriter::create(&path).unwrap();
    writer.ram("ram", node.ram()).unwrap();
    writer.finish().unwrap();
    let ram = Snapshot::open(&path).unwrap();
    let ram = ram.ram("ram", &[RAM]).unwrap();
    assembled(0, ram, 1_000_000_000)
}

/// Runs a single node for so many quanta, at most until the node ends, and replaces the node by what `each` returns after every quantum.
/// Returns the last node's outcome.
fn outcome_of(mut node: Node, quanta: u64, mut each: impl FnMut(u64, Node) -> Node) -> Outcome {
    let mut output = DefaultHasher::new();
    let mut ending = String::new();
    for number in 0..quanta {
        let result = node.run_until((number + 1) * QUANTUM);
        node.take_console().hash(&mut output);
        for event in node.take_events() {
            (event.cycles, event.instructions).hash(&mut output);
        }
        for frame in node.take_frames() {
            (frame.time, frame.bytes).hash(&mut output);
        }
        match result {
            Ok(NodeStatus::Running) => node = each(number, node),
            other => {
                ending = format!("{other:?}");
                break;
            }
        }
    }
    let mut memory = vec![0; RAM as usize];
    assert!(node.ram().read(0, &mut memory));
    let paged = is_paged(&memory);
    let mut hasher = DefaultHasher::new();
    (memory, node.notes()).hash(&mut hasher);
    Outcome {
        paged,
        ending,
        now: node.now(),
        states: (0..2).map(|vcpu| node.vcpu_state(vcpu)).collect(),
        output: output.finish(),
        memory: hasher.finish(),
    }
}

#[test]
fn a_node_that_is_moved_goes_on_as_if_nothing_had_happened() {
    let seeds = std::env::var("NODESCOPE_SEEDS").map_or(6, |seeds| seeds.parse().unwrap());
    let mut moves = 0;
    for seed in 1..=seeds {
        let code = hostile(seed);
        let run = |every: u64, moves: &mut u64| {
            outcome_of(node(0, &code, 1_000_000_000), 300, |number, mut node| {
                if number % every != every - 1 {
                    return node;
                }
                *moves += 1;
                let state = node.save_state().unwrap();
                let bytes = postcard::to_stdvec(&state).unwrap();
                let read: NodeState = postcard::from_bytes(&bytes).unwrap();
                assert_eq!(read, state);
                let mut other = fresh(&node);
                other.load_state(read).unwrap();
                assert_eq!(other.save_state().unwrap(), state);
                other
            })
        };
        let stays = run(u64::MAX, &mut moves);
        if !stays.paged {
            continue;
        }
        for every in [3, 40] {
            assert_eq!(
                run(every, &mut moves),
                stays,
                "seed {seed}, every {every} quanta"
            );
        }
    }
    println!("moved {moves} times");
    assert!(moves > 100);
}

#[test]
fn a_damaged_state_is_refused_or_runs_on() {
    let seeds = std::env::var("NODESCOPE_SEEDS").map_or(8, |seeds| seeds.parse().unwrap());
    let (mut refused, mut loaded) = (0, 0);
    for seed in 1..=seeds {
        let mut random = Random(seed);
        let code = hostile(seed);
        outcome_of(node(0, &code, 1_000_000_000), 40, |_, mut node| {
            let state = node.save_state().unwrap();
            let mut bytes = postcard::to_stdvec(&state).unwrap();
            for _ in 0..=random.below(3) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << random.below(8);
            }
            let mut other = fresh(&node);
            let read = postcard::from_bytes::<NodeState>(&bytes);
            match read.map(|state| other.load_state(state).map(|()| other)) {
                Ok(Ok(mut other)) => {
                    loaded += 1;
                    let until = other.now() + 20 * QUANTUM;
                    // Any end of the guest is allowed.
                    let _ = other.run_until(until);
                }
                Ok(Err(_)) | Err(_) => refused += 1,
            }
            node
        });
    }
    println!("{refused} refused, {loaded} loaded");
    assert!(refused > 0 && loaded > 0);
}
