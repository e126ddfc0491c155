//! Tests of registered models in a whole study: observers change nothing, their counts are the engine's, every variant of a run gives the same
//! results, and a model that fails ends the run with its name.

mod study;

use std::collections::BTreeMap;
use std::path::Path;

use nodescope_cluster::{ClusterConfig, ResultsFolder, RunError};
use nodescope_machine::node::NodeError;
use nodescope_plugin_api::{
    Answered, Batch, Counters, Declaration, EventKind, Extra, Latency, MemRef, MemoryLatency,
    MemoryRequest, Model, Needs, Observer, Reason, ReferenceTiming, stream,
};
use nodescope_window::{CoreSpec, RegisteredSpec, WindowRecord, WindowsFile};
use study::{Silent, config, run};

const KINDS: &[EventKind] = &[
    EventKind {
        name: "read",
        line: "reads",
    },
    EventKind {
        name: "write",
        line: "writes",
    },
    EventKind {
        name: "fetch",
        line: "fetches",
    },
    EventKind {
        name: "prefetch",
        line: "prefetches",
    },
];

struct Kinds;

impl Observer for Kinds {
    fn observe(&mut self, batch: &Batch<'_>, counts: &mut [u64]) {
        for event in batch.events {
            counts[event.reason() as usize] += 1;
        }
    }
}

/// Returns an observer that counts references by their kind.
fn kinds(name: &'static str, needs: Needs) -> Model {
    let declaration = Declaration {
        name,
        line: "References by kind.",
        needs,
        events: KINDS,
        ..Declaration::DEFAULT
    };
    Model::observer(declaration, |_, _| Ok(Box::new(Kinds)))
}

const ALL: Needs = Needs {
    every_reference: true,
    page_sizes: true,
};

/// Adds one cycle to each seventh reference that it sees.
struct Seventh(u64);

impl ReferenceTiming for Seventh {
    fn reference(&mut self, _: &MemRef, _: Answered) -> Option<Extra> {
        self.0 += 1;
        self.0.is_multiple_of(7).then_some(Extra {
            event: 0,
            cycles: 1,
        })
    }
}

fn seventh() -> Model {
    let declaration = Declaration {
        name: "seventh",
        line: "A cycle for each seventh reference.",
        events: &KINDS[..1],
        ..Declaration::DEFAULT
    };
    Model::references(declaration, |_, _| Ok(Box::new(Seventh(0))))
}

struct Alternating(bool);

impl MemoryLatency for Alternating {
    fn request(&mut self, _: &MemoryRequest) -> Latency {
        self.0 = !self.0;
        Latency {
            cycles: if self.0 { 50 } else { 150 },
            event: Some(u16::from(self.0)),
        }
    }
}

fn alternating() -> Model {
    let declaration = Declaration {
        name: "alternating",
        line: "Memory with two latencies.",
        events: &KINDS[..2],
        ..Declaration::DEFAULT
    };
    Model::memory(declaration, |_, _| Ok(Box::new(Alternating(false))))
}

/// Returns the study with these models in all windows.
fn with(files: &Path, models: Vec<Model>) -> ClusterConfig {
    let mut config = config(files);
    for model in models {
        let spec = RegisteredSpec {
            name: model.declaration().name.into(),
            parameters: BTreeMap::new(),
        };
        for window in &mut config.windows {
            window.models.registered.push(spec.clone());
        }
        config.registry.add(model).unwrap();
    }
    config
}

/// Returns the windows of a run, and its trace.
fn windows(config: &ClusterConfig, results: &Path) -> (Vec<WindowRecord>, Vec<u8>) {
    let outcome = run(config, results);
    let trace = std::fs::read(results.join("trace.nst")).unwrap();
    (outcome.windows.windows, trace)
}

#[test]
fn observers_change_nothing_and_count_what_the_engine_counts() {
    let files = tempfile::tempdir().unwrap();
    // A timing model must see the same, whatever observers need.
    let config = with(files.path(), vec![seventh(), alternating()]);
    let (plain, trace) = windows(&config, &files.path().join("plain"));
    let models = vec![
        seventh(),
        alternating(),
        kinds("misses", Needs::default()),
        kinds("all", ALL),
        nodescope_window::built_in()
            .find(|model| model.declaration().name == "record")
            .unwrap(),
    ];
    let watched = files.path().join("watched");
    let (windows, watched_trace) = windows(&with(files.path(), models), &watched);
    assert!(watched_trace == trace, "the trace differs");
    for (window, plain) in windows.iter().zip(&plain) {
        for (node, plain) in window.nodes.iter().zip(&plain.nodes) {
            assert_eq!(node.counters, plain.counters);
            assert_eq!(node.cycles, plain.cycles);
            let own = |event: &str| {
                ["misses.", "all.", "record."]
                    .iter()
                    .any(|m| event.starts_with(m))
            };
            let statistics = node.statistics.iter().filter(|row| !own(&row.event));
            assert!(statistics.eq(&plain.statistics), "statistics differ");
            let sum = |event: &str| -> u64 {
                let rows = node.statistics.iter();
                rows.filter(|row| row.event == event)
                    .map(|row| row.count)
                    .sum()
            };
            let counted = |of: fn(&Counters) -> u64| -> u64 {
                node.counters
                    .iter()
                    .map(|(.., counters)| of(counters))
                    .sum()
            };
            let unseen = [
                counted(|counters| counters.loads) - sum("all.read"),
                counted(|counters| counters.stores) - sum("all.write"),
            ];
            assert_eq!(unseen, [0, 0]);
            assert_eq!(sum("all.fetch"), counted(|counters| counters.fetches));
            assert_eq!(sum("misses.read"), sum("L1D.read_miss"));
            assert_eq!(sum("misses.write"), sum("L1D.write_miss"));
            assert_eq!(sum("misses.fetch"), sum("L1I.miss"));
        }
    }
    let file = std::fs::read(watched.join("models/record-time-node0")).unwrap();
    let batches = stream::read(&file).unwrap();
    let events = batches.iter().flat_map(|batch| batch.batch().events);
    let mut reasons = events.map(|event| event.reason());
    assert!(reasons.any(|reason| reason == Reason::Fetch));
}

#[test]
fn misses_of_the_first_level_alone_are_shown() {
    let files = tempfile::tempdir().unwrap();
    let config = with(files.path(), vec![kinds("misses", Needs::default())]);
    let (windows, _) = windows(&config, &files.path().join("results"));
    let rows = windows
        .iter()
        .flat_map(|window| &window.nodes)
        .flat_map(|node| &node.statistics);
    let sum = |event: &str| -> u64 {
        rows.clone()
            .filter(|row| row.event == event)
            .map(|row| row.count)
            .sum()
    };
    let (seen, missed) = (sum("misses.read"), sum("L1D.read_miss"));
    assert!(missed > 0 && seen == missed, "{seen} of {missed}");
    let loads: u64 = windows
        .iter()
        .flat_map(|window| &window.nodes)
        .flat_map(|node| &node.counters)
        .map(|(.., counters)| counters.loads)
        .sum();
    assert!(seen < loads, "{seen} of {loads}");
}

#[test]
fn models_give_the_same_results_in_every_variant() {
    let files = tempfile::tempdir().unwrap();
    let models = || vec![seventh(), alternating(), kinds("all", ALL)];
    let first = run(&with(files.path(), models()), &files.path().join("first"));
    let mut other = with(files.path(), models());
    (other.translate, other.host_threads) = (false, 1);
    let second = run(&other, &files.path().join("second"));
    assert_eq!(first.windows, second.windows);
    let text = std::fs::read_to_string(files.path().join("first/report.txt")).unwrap();
    for shown in [
        "seventh",
        "alternating.write",
        "all.fetch",
        "Every cycle is accounted for",
    ] {
        assert!(text.contains(shown), "{shown} is not in\n{text}");
    }
    // Models without needs leave the function for direct misses to the engine.
    let models = || vec![seventh(), alternating()];
    let first = run(&with(files.path(), models()), &files.path().join("third"));
    let mut other = with(files.path(), models());
    (other.translate, other.host_threads) = (false, 1);
    let second = run(&other, &files.path().join("fourth"));
    assert_eq!(first.windows, second.windows);
}

/// A model of the core lies between the memory model, with the registered models around it, and the vCPUs.
#[test]
fn models_give_the_same_results_below_a_core() {
    let files = tempfile::tempdir().unwrap();
    let of = |needs: Needs| {
        let mut config = with(files.path(), vec![seventh(), kinds("seen", needs)]);
        for window in &mut config.windows {
            window.models.core = Some(CoreSpec {
                description: "base = \"zen4\"\n".into(),
            });
        }
        config
    };
    for (number, needs) in [Needs::default(), ALL].into_iter().enumerate() {
        let first = run(
            &of(needs),
            &files.path().join(format!("{number}-translated")),
        );
        let mut other = of(needs);
        (other.translate, other.host_threads) = (false, 1);
        let second = run(&other, &files.path().join(format!("{number}-interpreted")));
        assert_eq!(first.windows, second.windows);
        let rows = first.windows.windows[0].nodes[0].statistics.iter();
        assert!(
            rows.clone()
                .any(|row| row.event == "seventh.read" && row.cycles > 0)
        );
    }
}

struct Fails;

impl Observer for Fails {
    fn observe(&mut self, _: &Batch<'_>, _: &mut [u64]) {
        panic!("no more");
    }
}

impl ReferenceTiming for Fails {
    fn reference(&mut self, _: &MemRef, _: Answered) -> Option<Extra> {
        Some(Extra {
            event: 3,
            cycles: 0,
        })
    }
}

#[test]
fn a_model_that_fails_ends_the_run_with_its_name() {
    let declaration = |name| Declaration {
        name,
        line: "Fails.",
        events: &KINDS[..1],
        ..Declaration::DEFAULT
    };
    let panics = Model::observer(declaration("panics"), |_, _| Ok(Box::new(Fails)));
    let lies = Model::references(declaration("lies"), |_, _| Ok(Box::new(Fails)));
    for (model, says) in [
        (panics, "model \"panics\" panicked at "),
        (
            lies,
            "model \"lies\" counts event 3, but it declares 1 events",
        ),
    ] {
        let files = tempfile::tempdir().unwrap();
        let config = with(files.path(), vec![model]);
        let results = files.path().join("results");
        let folder = ResultsFolder::create(&results).unwrap();
        let ended = nodescope_cluster::run(&config, &folder, &Default::default(), &mut Silent);
        match ended {
            Err(RunError::Node(NodeError::Model { why, .. })) => {
                assert!(why.starts_with(says), "{why}");
            }
            other => panic!("{other:?}"),
        }
        WindowsFile::read(results.join(WindowsFile::NAME)).unwrap();
        nodescope_trace::TraceReader::open(results.join("trace.nst")).unwrap();
    }
}
