//! Targets for the results of a run: `windows.json`, and `run.json`.

use std::path::Path;

use nodescope_hypercall::Function;
use nodescope_plugin_api::{Context, Counters, Privilege, Statistic, Term, VcpuPlace};
use nodescope_report::{CoreCpi, NetworkCounts, ReportInput, StudyInfo};
use nodescope_window::{
    CacheConfig, Ending, Measure, MemorySpec, ModelSpec, NodeRecord, Owner, Trigger, WindowOutcome,
    WindowRecord, WindowSpec, WindowsFile,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Once, Target, put};
use crate::choices::Choices;
use crate::json::{self, Vocabulary};

/// Target that reads `windows.json`.
pub const WINDOWS: Target = Target {
    name: "windows",
    what: "records of windows (windows.json): the report",
    seeds: || vec![text(&seed_windows())],
    mutate: |choices| mutated(&WINDOW_SEED, seed_windows, choices),
    run: windows,
    foreign: false,
};

/// Target that reads `run.json`.
pub const RUN: Target = Target {
    name: "run",
    what: "what a run says of itself (run.json): the report",
    seeds: || vec![text(&seed_run())],
    mutate: |choices| mutated(&RUN_SEED, seed_run, choices),
    run,
    foreign: false,
};

static WINDOW_SEED: Once<(Value, Vocabulary)> = Once::new();
static RUN_SEED: Once<(Value, Vocabulary)> = Once::new();

pub(super) fn text(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

/// Returns a changed seed: five in six inputs are changed by the schema, the others as bytes.
pub(super) fn mutated<T: Serialize>(
    once: &Once<(Value, Vocabulary)>,
    seed: fn() -> T,
    choices: &mut Choices<'_>,
) -> Vec<u8> {
    let (seed, vocabulary) = once.get(|| {
        let value = serde_json::to_value(seed()).unwrap_or_default();
        let mut vocabulary = Vocabulary::default();
        vocabulary.learn(&value);
        (value, vocabulary)
    });
    if choices.once_in(6) {
        return super::mutated(&[text(seed)], &["null", "[[", "{\"a\":", "1e999"], choices);
    }
    let mut value = seed.clone();
    for _ in 0..1 + choices.below(4) {
        json::mutate(&mut value, vocabulary, choices);
    }
    text(&value)
}

fn windows(input: &[u8], folder: &Path) {
    let path = put(folder, WindowsFile::NAME, input);
    match WindowsFile::read(&path) {
        Ok(windows) => report(&ReportInput {
            windows,
            ..inputs()
        }),
        Err(error) => drop(error.to_string()),
    }
}

fn run(input: &[u8], _: &Path) {
    if let Ok(run) = serde_json::from_slice::<Run>(input) {
        report(&ReportInput {
            study: run.study,
            core: run.core,
            network: run.network,
            notes: run.notes,
            ..inputs()
        });
    }
}

/// The fields of `run.json` from which a report is made; `vmm/cli/src/results.rs` has all fields.
#[derive(Serialize, Deserialize)]
struct Run {
    study: StudyInfo,
    core: CoreCpi,
    network: Vec<NetworkCounts>,
    notes: Vec<String>,
}

/// Makes a report, as text, HTML and JSON.
pub(super) fn report(input: &ReportInput) {
    match nodescope_report::build(input) {
        Ok(report) => {
            let _ = (report.text(), report.html());
            let json = report.json();
            assert!(!json.trim().is_empty(), "a report that is no JSON");
        }
        Err(error) => drop(error.to_string()),
    }
}

pub(super) fn inputs() -> ReportInput {
    ReportInput {
        models: Vec::new(),
        memory_parallelism: 1.0,
        windows: seed_windows(),
        profiles: None,
        trace: None,
        study: StudyInfo::default(),
        core: CoreCpi::Nominal {
            source: "stated".into(),
        },
        network: Vec::new(),
        notes: Vec::new(),
    }
}

fn seed_run() -> Run {
    Run {
        study: StudyInfo {
            name: "study".into(),
            id: "0".into(),
            description: vec![("nodes".into(), "2".into())],
        },
        core: CoreCpi::Replaced {
            cpi: 1.25,
            source: "perf".into(),
        },
        network: vec![NetworkCounts {
            node: "node0".into(),
            sent_frames: 10,
            sent_bytes: 1000,
            received_frames: 20,
            received_bytes: 2000,
            dropped_frames: 1,
        }],
        notes: vec!["a note".into()],
    }
}

fn seed_windows() -> WindowsFile {
    let spec = WindowSpec {
        name: "hpl".into(),
        open: Trigger::MpiCall {
            function: Function::Barrier,
            call: 3,
            rank: 0,
        },
        warm_up: 20,
        attribution: true,
        sampling: None,
        measure: Measure::Instructions(1000),
        models: ModelSpec {
            caches: Some(CacheConfig::xeon_e5_2690()),
            memory: Some(MemorySpec::Numa {
                latency: nodescope_window::Latencies::Uniform {
                    local: 100,
                    remote: 220,
                },
                write_back: nodescope_window::Latencies::Uniform {
                    local: 0,
                    remote: 0,
                },
                bandwidth: None,
            }),
            core: Some(nodescope_window::CoreSpec {
                description: "base = \"zen4\"".into(),
            }),
            registered: Vec::new(),
        },
    };
    let nodes = (0..2).map(node).collect();
    let record = WindowRecord {
        name: "hpl".into(),
        spec,
        triggered_ps: 900,
        opened_ps: 1000,
        measured_from_ps: Some(2000),
        closed_ps: 9000,
        complete: true,
        intervals_ps: Vec::new(),
        nodes,
    };
    let outcome = WindowOutcome {
        name: "hpl".into(),
        ending: Ending::Complete,
        text: "complete".into(),
    };
    WindowsFile::new("study", "0", vec![record], vec![outcome])
}

fn node(number: u32) -> NodeRecord {
    let counters = |instructions, stall_cycles, idle_cycles| Counters {
        instructions,
        long_cycles: 50,
        stall_cycles,
        idle_cycles,
        loads: 300,
        stores: 100,
        fetches: 60,
        flops: [0, 0, 100, 0, 0, 0, 400],
    };
    let statistic = |event: &str, term, count, latency| Statistic {
        vcpu: 0,
        context: Context(1),
        privilege: Privilege::User,
        event: event.into(),
        term,
        count,
        latency,
        cycles: count * latency,
    };
    let rank = |mpi| Owner::Rank {
        rank: number,
        program: "hpcc".into(),
        mpi,
    };
    NodeRecord {
        node: number,
        name: format!("node{number}"),
        frequency_hz: 2_000_000_000,
        nominal_cpi_65536: 65_536,
        vcpus: VcpuPlace::grid(1, 1, 1),
        cycles: vec![(100_000, 109_340)],
        counters: vec![
            (0, Context(1), Privilege::User, counters(900, 6190, 0)),
            (0, Context(2), Privilege::Kernel, counters(200, 300, 500)),
        ],
        statistics: vec![
            statistic("L1D.read_miss", Term::Cache(1), 100, 3),
            statistic("memory.local", Term::Memory, 20, 100),
        ],
        core: Some(nodescope_window::CoreRecord {
            core: "AMD Zen 4".into(),
            timed: nodescope_plugin_api::Timed {
                recordings: 3,
                instructions: 9000,
                cycles: 8000,
                squared_cpi: 12 << 32,
            },
            intervals: Vec::new(),
        }),
        owners: vec![Owner::Other, rank(None), rank(Some(Function::Allreduce))],
    }
}
