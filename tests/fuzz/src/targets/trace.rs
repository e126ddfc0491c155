//! Targets for all code that reads traces.

use std::path::Path;

use nodescope_calibrate::FitOptions;
use nodescope_calibrate::fit::fit;
use nodescope_calibrate::trace::Collector;
use nodescope_export::{Format, Options, export};
use nodescope_loop_tree::sequence::SequenceBuilder;
use nodescope_loop_tree::{Program, SequenceOptions, Sequences};
use nodescope_predict::reduce::{self, Selection};
use nodescope_predict::trace::write_trace;
use nodescope_predict::{Cluster, Request, predict, predict_reduced};
use nodescope_report::{CoreCpi, ReportInput, StudyInfo};
use nodescope_trace::{
    Event, MatrixBuilder, PendingCallsBuilder, Profile, TraceError, TraceReader,
};
use nodescope_window::WindowsFile;

use super::{Once, Target, put, size};
use crate::choices::Choices;
use crate::json::Vocabulary;
use crate::traces::{Trace, vocabulary};

/// Target that reads traces, and makes profiles, calibrations and reports from them.
pub const READ: Target = Target {
    name: "trace",
    what: "traces with valid checksums: the reader, profiles, where ranks stand, the report, calibration",
    seeds,
    mutate,
    run: read,
    foreign: false,
};

/// Target that makes programs from traces, and predictions from programs.
pub const PREDICT: Target = Target {
    name: "predict",
    what: "traces with valid checksums: the model, predictions on several clusters, reduced fragments, predicted traces",
    seeds,
    mutate,
    run: predicted,
    foreign: false,
};

/// Target that writes every export format of a trace.
pub const EXPORT: Target = Target {
    name: "export",
    what: "traces with valid checksums: every export format",
    seeds,
    mutate,
    run: exported,
    foreign: false,
};

/// Target that reads traces whose bytes are damaged.
pub const RAW: Target = Target {
    name: "raw",
    what: "traces whose bytes are damaged: the reader",
    seeds,
    mutate: damaged,
    run: read,
    foreign: false,
};

static SEEDS: Once<(Vec<Trace>, Vocabulary)> = Once::new();

fn all() -> &'static (Vec<Trace>, Vocabulary) {
    SEEDS.get(|| {
        let seeds = Trace::seeds();
        let vocabulary = vocabulary(&seeds);
        (seeds, vocabulary)
    })
}

fn seeds() -> Vec<Vec<u8>> {
    all().0.iter().filter_map(Trace::encode).collect()
}

fn mutate(choices: &mut Choices<'_>) -> Vec<u8> {
    let (seeds, vocabulary) = all();
    let mut trace = choices.of(seeds).expect("seeds").clone();
    trace.mutate(vocabulary, seeds, choices);
    trace.encode().unwrap_or_default()
}

fn damaged(choices: &mut Choices<'_>) -> Vec<u8> {
    super::mutated(&seeds(), &["EVTS", "DONE", "NSTRACE\n"], choices)
}

fn events(input: &[u8]) -> impl Iterator<Item = Event> {
    let reader = TraceReader::new(input, "input.nst").ok();
    let events = reader.into_iter().flat_map(TraceReader::events);
    events.map_while(Result::ok)
}

/// Reads a trace as `nodescope report` and `nodescope calibrate` do.
pub fn read(input: &[u8], folder: &Path) {
    let mut profile = Profile::default();
    let mut matrix = MatrixBuilder::default();
    let mut pending = PendingCallsBuilder::default();
    let mut collector = Collector::default();
    for event in events(input) {
        profile.add(&event);
        matrix.add(&event);
        pending.add(&event);
        collector.add(&event);
    }
    let _ = (profile.by_function(), profile.by_rank());
    let _ = (matrix.matrix().total(), matrix.matrix().ranks());
    let _ = format!("{:?}", pending.finish());
    if let Ok(measured) = collector.finish("input.nst") {
        let _ = fit(&measured, None, FitOptions::default());
    }
    let path = put(folder, "trace.nst", input);
    let input = ReportInput {
        models: Vec::new(),
        memory_parallelism: 1.0,
        windows: WindowsFile::new("study", "0", Vec::new(), Vec::new()),
        profiles: None,
        trace: Some(path),
        study: StudyInfo::default(),
        core: CoreCpi::Nominal {
            source: "fuzz".into(),
        },
        network: Vec::new(),
        notes: Vec::new(),
    };
    super::results::report(&input);
}

/// Cluster files of every network model.
const CLUSTERS: [&str; 5] = [
    "[nodes]\ncores = 2\n[network]\nlatency = \"1 us\"\nbandwidth = \"1 GB/s\"\ncontention = false\n",
    "[nodes]\ncores = 2\n[network]\nmodel = \"post\"\nlatency = \"1 us\"\nbandwidth = \"1 B/s\"\nprogress_thread = true\nbeta = 0.5\n",
    "[nodes]\ncores = 1\ncpi = 1000.0\nfrequency = \"1 Hz\"\n[network]\nlatency = \"1 h\"\nbandwidth = \"1 GB/s\"\nsharing = \"fair\"\n",
    "[nodes]\ncores = 1\nspeed = 0.000001\n[network]\nlatency = \"1 us\"\nbandwidth = \"1 B/s\"\nsharing = \"frames\"\nframe_payload = \"1 B\"\nframe_header = \"1 GiB\"\nframe_acknowledge = 2\ntake_in = true\n",
    "[nodes]\ncores = 1\n[network]\nlatency = \"1 us\"\nbandwidth = \"1 GB/s\"\noverhead = \"1 h\"\neager_limit = \"0 B\"\n[topology]\nkind = \"torus\"\nsize = [2, 2, 2]\n[collectives]\nlibrary = \"mpich\"\nreduce_bandwidth = \"1 B/s\"\n",
];

static PARSED: Once<Vec<Cluster>> = Once::new();

fn clusters() -> &'static [Cluster] {
    PARSED.get(|| {
        let parse = |text: &&str| match Cluster::parse(Path::new("cluster.toml"), text) {
            Ok(cluster) => cluster,
            Err(problems) => panic!("{problems}"),
        };
        CLUSTERS.iter().map(parse).collect()
    })
}

/// Reads a trace's sequences as `nodescope predict` does, up to the cut if the trace is cut off; None if the trace is refused.
fn sequences(input: &[u8]) -> Option<Sequences> {
    let mut builder = SequenceBuilder::new(SequenceOptions::default());
    for event in TraceReader::new(input, "input.nst").ok()?.events() {
        match event {
            Ok(event) => builder.add(&event),
            Err(TraceError::Cut { .. }) => break,
            Err(_) => return None,
        }
    }
    if builder.has_unfinished() {
        let mut pending = PendingCallsBuilder::default();
        events(input).for_each(|event| pending.add(&event));
        builder.set_deadlocks(&pending.finish());
    }
    match builder.finish() {
        Ok(sequences) => Some(sequences),
        Err(error) => {
            let _ = error.to_string();
            None
        }
    }
}

/// Predicts as `nodescope predict` does, on all clusters, with replicas, a timeline and a reduced program. Checks that the program gives
/// back all entries of the first four ranks.
pub fn predicted(input: &[u8], folder: &Path) {
    let Some(sequences) = sequences(input) else {
        return;
    };
    let program = Program::new(&sequences);
    for rank in 0..program.ranks.len().min(4) {
        let unfolded = program.unfold(rank as u32);
        assert_eq!(unfolded.entries.len(), sequences.ranks[rank].entries.len());
        let _ = reduce::outline(&program, rank as u32);
    }
    let request = Request {
        replicas: 2,
        stagger: 1000,
        timeline: true,
        ..Request::default()
    };
    for cluster in clusters() {
        let Ok(mut prediction) = predict(&program, cluster, &request) else {
            continue;
        };
        prediction.traced = sequences.spans.iter().copied().max();
        let _ = (prediction.text(), prediction.json());
        let _ = prediction.html();
        if let Some(timeline) = &prediction.outcome.timeline
            && let Ok(nodes) = cluster.place_ranks(prediction.ranks, &program.origin)
        {
            let path = folder.join("predicted.nst");
            let _ = write_trace(&program, &nodes, timeline, "predicted", &path);
        }
    }
    let Some(cluster) = clusters().first() else {
        return;
    };
    let plain = Request {
        replicas: 0,
        ..Request::default()
    };
    if let Ok(reduced) = reduce::reduce(&program, cluster, &Selection::Loop(1), None)
        && let Ok(prediction) = predict_reduced(&program, &reduced, cluster, &plain)
    {
        let _ = prediction.text();
    }
}

/// Bytes that the export of a trace of any size may have. `EXPORT_PER_BYTE` are the additional bytes for each byte of the trace.
const EXPORT_FREE: u64 = 32 << 20;
const EXPORT_PER_BYTE: u64 = 4096;

/// Exports a trace as `nodescope export` does, in every format.
pub fn exported(input: &[u8], folder: &Path) {
    let path = put(folder, "trace.nst", input);
    for format in Format::ALL {
        let out = folder.join(format.name());
        match export(&path, format, &out, &Options::default()) {
            Ok(summary) => drop(summary.notes),
            Err(error) => drop(error.to_string()),
        }
        let written = size(&out);
        let allowed = EXPORT_FREE + EXPORT_PER_BYTE * input.len() as u64;
        assert!(written <= allowed, "{}: {written} bytes", format.name());
        let _ = std::fs::remove_dir_all(&out);
    }
}
