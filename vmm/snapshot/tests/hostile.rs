//! Tests of states that no node has written: each is rejected, or only the guest in it goes wrong.

mod support;

use nodescope_engine_soft::Translate;
use nodescope_hypercall::{FileChunk, Function, IdentityBuffer, MpiEnter, Request};
use nodescope_machine::motherboard::{Activity, NodeEvent};
use nodescope_machine::state::NodeState;
use nodescope_snapshot::{Snapshot, SnapshotWriter};
use proptest::prelude::*;
use serde_json::Value;
use support::*;

/// Pseudo-random numbers that follow from a seed.
struct Choices(u64);

impl Choices {
    fn next(&mut self, below: usize) -> usize {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % below as u64) as usize
    }

    fn number(&mut self) -> Value {
        let bit = 1_u64 << self.next(64);
        match self.next(5) {
            0 => bit.into(),
            1 => (bit - 1).into(),
            2 => u64::MAX.into(),
            3 => (-((bit / 2) as i64)).into(),
            _ => (self.next(300) as u64).into(),
        }
    }
}

/// Changes one part of a JSON value at random. At each level, all children are equally likely.
fn damage(value: &mut Value, choices: &mut Choices) {
    match value {
        Value::Array(list) if !list.is_empty() => match choices.next(12) {
            0 => list.truncate(choices.next(list.len())),
            1 => {
                let copy = list[choices.next(list.len())].clone();
                list.push(copy);
            }
            2 => {
                let (a, b) = (choices.next(list.len()), choices.next(list.len()));
                list.swap(a, b);
            }
            _ => {
                let at = choices.next(list.len());
                damage(&mut list[at], choices);
            }
        },
        Value::Object(map) if !map.is_empty() => {
            let at = choices.next(map.len());
            let (_, child) = map.iter_mut().nth(at).expect("there are as many");
            damage(child, choices);
        }
        Value::Bool(value) => *value = !*value,
        Value::Number(n) => {
            *value = match (choices.next(3), n.as_u64()) {
                (0, Some(n)) => (n ^ 1 << choices.next(64)).into(),
                _ => choices.number(),
            }
        }
        Value::String(text) => {
            *value = match choices.next(3) {
                0 => Value::Null,
                1 => format!("{text}/../{text}").into(),
                _ => "x".repeat(1 << choices.next(20)).into(),
            }
        }
        _ => *value = choices.number(),
    }
}

fn saved(folder: &std::path::Path, quanta: u64) -> (Snapshot, NodeState) {
    let path = folder.join("node.nss");
    let mut node = booted(Translate::Never);
    for q in 0..quanta {
        run(&mut node, q);
    }
    let mut w = SnapshotWriter::create(&path).unwrap();
    w.ram("ram", node.ram()).unwrap();
    w.finish().unwrap();
    // The last quantum's number is odd, so that its frames and events have not been taken.
    let state = node.save_state().unwrap();
    assert!(!state.events.is_empty());
    (Snapshot::open(&path).unwrap(), state)
}

#[test]
fn damaged_states_are_refused_or_harm_the_guest_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (snapshot, mut state) = saved(folder.path(), 30);
    // This guest does not use these parts of the state by itself.
    state.activities.push(Activity {
        cr3: 0x9000,
        function: Some(Function::Barrier),
    });
    state.subscriptions.push(Function::Barrier);
    state.events.push(NodeEvent {
        request: Request::PutFile(FileChunk {
            name: "a/b".into(),
            offset: 0,
            data: vec![1; 10],
            last: true,
        }),
        ..state.events[0].clone()
    });
    let whole = serde_json::to_value(&state).unwrap();
    let (mut unread, mut refused, mut ran, mut failed) = (0, 0, 0, 0);
    for seed in 0..CASES {
        let mut choices = Choices(seed);
        let mut damaged = whole.clone();
        for _ in 0..=choices.next(3) {
            damage(&mut damaged, &mut choices);
        }
        let Ok(state) = serde_json::from_value::<NodeState>(damaged) else {
            unread += 1;
            continue;
        };
        // The state takes the encoding of a snapshot file.
        let bytes = postcard::to_stdvec(&state).unwrap();
        let read: NodeState = postcard::from_bytes(&bytes).unwrap();
        assert_eq!(read, state);
        let ram = snapshot.ram("ram", &[RAM]).unwrap();
        let translate = [Translate::Never, Translate::After(0)][seed as usize % 2];
        let mut node = support::node(ram, translate);
        match node.load_state(state) {
            Ok(()) => {}
            Err(error) => {
                assert!(error.to_string().contains("node 5"), "{error}");
                refused += 1;
                continue;
            }
        }
        ran += 1;
        for _ in 0..2 {
            let ends = node.run_until(node.now() + QUANTUM);
            failed += u64::from(ends.is_err());
            if ends.is_err() {
                break;
            }
            node.take_events();
            node.take_console();
            node.take_frames();
            node.save_state().unwrap();
        }
    }
    println!("{unread} unread, {refused} refused, {ran} ran, {failed} of them failed");
    assert!(unread > CASES / 20 && refused > CASES / 20 && ran > CASES / 20);
}

/// Number of damaged states, such that the test takes some seconds.
const CASES: u64 = 3000;

fn request() -> impl Strategy<Value = Request> {
    let text = "[a-z]{1,20}";
    let enter =
        (any::<u64>(), any::<u32>(), any::<u32>()).prop_map(|(sequence, pid, tid)| MpiEnter {
            function: Function::Barrier,
            thread: nodescope_hypercall::ThreadId { pid, tid },
            sequence,
        });
    prop_oneof![
        Just(Request::Probe),
        text.prop_map(Request::Mark),
        text.prop_map(Request::OpenWindow),
        ".{0,200}".prop_map(Request::Message),
        any::<i32>().prop_map(Request::JobExit),
        enter.prop_map(Request::MpiPollFailed),
        any::<(u64, u64)>().prop_map(|(address, capacity)| {
            Request::NodeIdentity(IdentityBuffer { address, capacity })
        }),
        (
            text,
            any::<u64>(),
            prop::collection::vec(any::<u8>(), 0..50),
            any::<bool>()
        )
            .prop_map(|(name, offset, data, last)| Request::PutFile(FileChunk {
                name,
                offset,
                data,
                last
            })),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]

    /// Checks that a node's state at any time, with any events that nobody has taken yet, survives both encodings and
    /// loading into another node.
    #[test]
    fn states_survive_encoding_and_loading(
        cycles in 1_u64..1_000_000,
        listens in any::<bool>(),
        requests in prop::collection::vec((request(), any::<u16>()), 0..8),
        draws in 0_u64..1 << 60,
    ) {
        let mut node = booted(Translate::default());
        node.run_until(cycles).unwrap();
        if listens {
            node.take_events();
            node.take_console();
        }
        let mut state = node.save_state().unwrap();
        for (request, vcpu) in requests {
            state.events.push(NodeEvent {
                cycles: state.now,
                vcpu: vcpu % 2,
                instructions: 1,
                cr3: 0x9000,
                request,
                refused: None,
            });
        }
        state.vcpus[1].time.random_draws = draws;
        let bytes = postcard::to_stdvec(&state).unwrap();
        prop_assert_eq!(&postcard::from_bytes::<NodeState>(&bytes).unwrap(), &state);
        let text = serde_json::to_string(&state).unwrap();
        prop_assert_eq!(&serde_json::from_str::<NodeState>(&text).unwrap(), &state);
        let mut other = booted(Translate::default());
        other.load_state(state.clone()).unwrap();
        prop_assert_eq!(&other.save_state().unwrap(), &state);
        prop_assert_eq!(other.take_events(), state.events);
        prop_assert_eq!(other.take_console(), state.chipset.serial.output);
    }
}
