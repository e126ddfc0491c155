//! Test that hypercalls through the doorbell give the same trace of two nodes as direct hypercalls, for each launcher of ranks and each
//! user. A process without permission runs untraced.

use std::collections::BTreeMap;
use std::path::Path;

use nodescope_cluster::run::TRACE_FILE;
use nodescope_guest_tests::{Finished, cluster, compile, image, program, run_well};
use nodescope_hypercall::{DOORBELL_PORT, Function, MpiRecord, Peer, ThreadId};
use nodescope_image::{Image, JobFile};
use nodescope_machine::topology::NodeTopology;
use nodescope_trace::{Body, TraceReader};

/// The job's script. Root and a user without privileges call the guest tool. 65534 is Debian's `nobody`.
const JOB: &str = r#"#!/bin/sh
set -e
nobody='setpriv --reuid 65534 --regid 65534 --clear-groups'
mpirun.openmpi -n 4 ./openmpi
mpiexec.hydra -n 4 ./mpich
HOME=/tmp $nobody mpirun.openmpi --host node0:2 -n 2 ./nobody

{
    ./permission
    $nobody ./permission
    /opt/nodescope/rsh node1 /job/permission
    nodescope-guest probe
    $nobody nodescope-guest probe
    ./permission drop nodescope-guest probe
    $nobody ./permission drop nodescope-guest probe || echo "exit code $?"
} >permissions 2>&1
nodescope-guest put permissions
nodescope-guest put /proc/ioports
$nobody nodescope-guest message 'from nobody'

lib=/opt/nodescope/lib
LD_PRELOAD=$lib/libnodescope-mpich-finalize.so:$lib/libnodescope-mpi-mpich.so \
    $nobody ./permission drop ./denied >denied-output 2>&1
nodescope-guest put denied-output
"#;

const NO_PERMISSION: &str = "no permission for the doorbell (I/O port 0x5e0)";

/// The records of each process, by program and rank, each with the node that sent the record.
type Calls = BTreeMap<(String, u32), Vec<(u32, MpiRecord)>>;

fn run(image: &Image, files: &[JobFile], doorbell: bool, dir: &Path) -> (Finished, Calls) {
    let node = NodeTopology::uniform(1, 2, 1, 512 << 20);
    let mut config = cluster(image, 2, node, files);
    config.trace = true;
    config.doorbell = doorbell;
    config.host_threads = 2;
    let finished = run_well(&config, dir);

    let (mut names, mut early) = (BTreeMap::new(), BTreeMap::<_, Vec<_>>::new());
    for event in TraceReader::open(dir.join(TRACE_FILE)).unwrap().events() {
        let event = event.unwrap();
        match event.body {
            Body::Process(hello) => {
                let Peer::Rank(rank) = hello.rank else {
                    panic!("{hello:?}")
                };
                names.insert((event.node, hello.pid), (hello.program, rank));
            }
            Body::Mpi(call) => {
                assert!(call.entry_seen, "{call:?}");
                let process = (event.node, call.record.thread.pid);
                let mut record = call.record;
                record.thread = ThreadId::default();
                // The launcher's id differs from run to run.
                if record.function == Function::Init {
                    record.object = 0;
                }
                early.entry(process).or_default().push((event.node, record));
            }
            Body::Unfinished(call) => panic!("{call:?}"),
            _ => {}
        }
    }
    let calls = early.into_iter().map(|(process, calls)| {
        let name = names.get(&process).expect("every process says hello");
        (name.clone(), calls)
    });
    (finished, calls.collect())
}

#[test]
fn the_doorbell_tells_what_direct_calls_tell() {
    let Some(image) = image() else { return };
    let (Some(openmpi), Some(mpich), Some(permission)) = (
        compile("mpicc.openmpi", "exchange.c", &["-O2"]),
        compile("mpicc.mpich", "exchange.c", &["-O2"]),
        compile("gcc", "permission.c", &["-O2"]),
    ) else {
        return;
    };
    let files = [
        program("run", JOB),
        program("openmpi", openmpi.clone()),
        program("nobody", openmpi),
        program("mpich", mpich.clone()),
        program("denied", mpich),
        program("permission", permission),
    ];
    let dir = tempfile::tempdir().unwrap();
    let (direct, mut expected) = run(image, &files, false, &dir.path().join("direct"));
    let (rung, calls) = run(image, &files, true, &dir.path().join("doorbell"));

    // A process has the permission only if the study needs the doorbell: Linux copies the I/O bitmap at each switch to a process that has
    // one.
    let plain = "nodescope, ABI version 2, direct transport\n".repeat(4);
    assert_eq!(
        direct.file("permissions"),
        format!("{}{plain}", "refused\n".repeat(3))
    );
    let plain = "nodescope, ABI version 2, doorbell transport\n".repeat(3);
    assert_eq!(
        rung.file("permissions"),
        format!(
            "{}{plain}nodescope-guest: {NO_PERMISSION}: start this from the job or as root\nexit code 1\n",
            "permitted\n".repeat(3)
        )
    );

    // No other device uses the port.
    for line in rung.file("ioports").lines() {
        let (first, rest) = line.trim().split_once('-').expect(line);
        let (last, _) = rest.split_once(' ').expect(line);
        let port = |text| u16::from_str_radix(text, 16).expect(line);
        let taken = port(first)..=port(last);
        assert!(
            (0..4).all(|n| !taken.contains(&(DOORBELL_PORT + n))),
            "{line}"
        );
    }

    // Without permission the program runs, with one message, and is not traced.
    let denied = ("denied".to_string(), 0);
    assert!(expected.remove(&denied).is_some());
    assert!(!calls.contains_key(&denied));
    let ran = "./denied: 1 ranks, sum 5\n";
    assert_eq!(direct.file("denied-output"), ran);
    let output = rung.file("denied-output");
    assert_eq!(output.matches(NO_PERMISSION).count(), 1, "{output}");
    assert!(
        output.starts_with("nodescope: ") && output.ends_with(ran),
        "{output}"
    );
    assert_eq!(output.lines().count(), 2, "{output}");

    let processes: Vec<(&str, u32)> = calls
        .keys()
        .map(|(name, rank)| (&name[..], *rank))
        .collect();
    let all = [("mpich", 4), ("nobody", 2), ("openmpi", 4)];
    let all: Vec<_> = (all.into_iter())
        .flat_map(|(name, ranks)| (0..ranks).map(move |rank| (name, rank)))
        .collect();
    assert_eq!(processes, all);
    for ((name, rank), calls) in &calls {
        let expected = &expected[&(name.clone(), *rank)];
        let (nodes, ranks) = if name == "nobody" { (1, 2) } else { (2, 4) };
        // programs/exchange.c makes this number of calls.
        assert_eq!(calls.len(), 32 + 10 * ranks, "{name} {rank}");
        assert_eq!(calls[0].0, rank / 2 % nodes, "{name} {rank}");
        for (number, pair) in calls.iter().zip(expected).enumerate() {
            assert_eq!(pair.0, pair.1, "{name}, rank {rank}, call {number}");
        }
        assert_eq!(calls.len(), expected.len(), "{name} {rank}");
    }
    assert_eq!(calls.len(), expected.len());
}
