//! Tests of owners of address spaces, and of the file of window records.

use nodescope_hypercall::{Flavour, Function, Hello, Peer, ProcessKind};
use nodescope_plugin_api::{Context, Counters, Privilege, Statistic, Term, VcpuPlace};
use nodescope_window::{
    CacheConfig, Ending, Measure, MemorySpec, ModelSpec, NodeRecord, Owner, Owners, RecordError,
    Trigger, WindowOutcome, WindowRecord, WindowSpec, WindowsFile,
};

fn hello(kind: ProcessKind, rank: Peer) -> Hello {
    Hello {
        kind,
        rank,
        world_size: 2,
        pid: 7,
        flavour: Flavour::OpenMpi,
        host: "n0".into(),
        program: "hpcc".into(),
    }
}

#[test]
fn owners_follow_hellos() {
    let mut owners = Owners::default();
    owners.hello(0x1000, &hello(ProcessKind::MpiRank, Peer::Rank(3)));
    owners.hello(0x2000, &hello(ProcessKind::Tool, Peer::None));
    let rank = |mpi| Owner::Rank {
        rank: 3,
        program: "hpcc".into(),
        mpi,
    };
    assert_eq!(owners.owner(0x1000, None), rank(None));
    assert_eq!(
        owners.owner(0x1000, Some(Function::Wait)),
        rank(Some(Function::Wait))
    );
    assert_eq!(
        owners.owner(0x2000, None),
        Owner::Process {
            pid: 7,
            program: "hpcc".into()
        }
    );
    assert_eq!(owners.owner(0x3000, None), Owner::Other);
    assert_eq!(owners.ranks().collect::<Vec<_>>(), [(0x1000, 3)]);
    // The address space of a process that has ended is used again.
    owners.hello(0x1000, &hello(ProcessKind::Tool, Peer::None));
    assert!(matches!(owners.owner(0x1000, None), Owner::Process { .. }));
}

fn file() -> WindowsFile {
    let record = WindowRecord {
        name: "w".into(),
        spec: WindowSpec {
            name: "w".into(),
            open: Trigger::MpiCall {
                function: Function::Barrier,
                call: 2,
                rank: 0,
            },
            warm_up: 10,
            attribution: true,
            sampling: None,
            measure: Measure::Instructions(1000),
            models: ModelSpec {
                caches: Some(CacheConfig::xeon_e5_2690()),
                memory: Some(MemorySpec::numa()),
                core: None,
                registered: Vec::new(),
            },
        },
        triggered_ps: 1,
        opened_ps: 2,
        measured_from_ps: Some(3),
        closed_ps: 4,
        complete: true,
        intervals_ps: Vec::new(),
        nodes: vec![NodeRecord {
            node: 0,
            name: "node0".into(),
            frequency_hz: 2_900_000_000,
            nominal_cpi_65536: 65536,
            vcpus: VcpuPlace::grid(1, 1, 1),
            cycles: vec![(5, u64::MAX)],
            counters: vec![(
                0,
                Context(1),
                Privilege::Kernel,
                Counters {
                    instructions: u64::MAX,
                    flops: [1, 2, 3, 4, 5, 6, 7],
                    ..Counters::default()
                },
            )],
            statistics: vec![Statistic {
                vcpu: 0,
                context: Context(1),
                privilege: Privilege::Kernel,
                event: "L1D.read_miss".into(),
                term: Term::Cache(1),
                count: 4,
                latency: 3,
                cycles: 12,
            }],
            core: None,
            owners: vec![
                Owner::Other,
                Owner::Rank {
                    rank: 0,
                    program: "hpcc".into(),
                    mpi: Some(Function::Allreduce),
                },
            ],
        }],
    };
    let outcome = WindowOutcome {
        name: "w".into(),
        ending: Ending::Complete,
        text: "ok".into(),
    };
    WindowsFile::new("study", "abc", vec![record], vec![outcome])
}

#[test]
fn records_read_back_as_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(WindowsFile::NAME);
    file().write(&path).unwrap();
    assert_eq!(WindowsFile::read(&path).unwrap(), file());
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
}

#[test]
fn other_versions_and_damage_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(WindowsFile::NAME);
    let missing = WindowsFile::read(&path).unwrap_err();
    assert!(matches!(missing, RecordError::Io { action: "read", .. }));
    let mut newer = file();
    newer.version = 2;
    newer.write(&path).unwrap();
    let error = WindowsFile::read(&path).unwrap_err();
    assert!(matches!(
        error,
        RecordError::UnknownVersion { version: 2, .. }
    ));
    assert!(error.to_string().contains("windows.json"));
    // A later version may have another structure, so that only its version number is read.
    std::fs::write(&path, r#"{"version": 7, "windows": {}}"#).unwrap();
    assert!(matches!(
        WindowsFile::read(&path).unwrap_err(),
        RecordError::UnknownVersion { version: 7, .. }
    ));
    file().write(&path).unwrap();
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 40]).unwrap();
    let RecordError::Damaged { line, column, .. } = WindowsFile::read(&path).unwrap_err() else {
        panic!("a cut file was read");
    };
    assert_eq!((line, column), (1, whole.len() - 40));
    let elsewhere = folder.path().join("none").join("windows.json");
    assert!(matches!(
        file().write(elsewhere).unwrap_err(),
        RecordError::Io {
            action: "write",
            ..
        }
    ));
}
