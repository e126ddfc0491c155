//! Kernels and hpcc on the host, in a peer tool, and in nodescope.

use serde_json::{Value, json};

use crate::comparison::{Column, Comparison};
use crate::engine::{self, Attached, Engine};
use crate::guest::{Guest, Marks};
use crate::node::DescribedNode;
use crate::session::Session;
use crate::workload::{Length, Workload};
use crate::{Failure, Options, host, tcg};

/// Native runs in each round; each is short.
const NATIVE_RUNS: u32 = 3;

/// Measures the kernels with nothing attached, compared with QEMU's TCG.
pub fn functional(options: &Options) -> Result<Value, Failure> {
    let folder = tempfile::tempdir().map_err(Failure::Files)?;
    let workload = Workload::kernels(folder.path(), &options.kernels, Length::Times(1))?;
    compare(options, "functional", &workload, "", Attached::Nothing)
}

/// Measures the kernels with models attached and costs attributed to code, compared with cachegrind. All run a quarter of the usual
/// repeats.
pub fn window(options: &Options) -> Result<Value, Failure> {
    let folder = tempfile::tempdir().map_err(Failure::Files)?;
    let workload = Workload::kernels(folder.path(), &options.kernels, Length::OneIn(4))?;
    compare(options, "window", &workload, "", Attached::Attributed)
}

/// Measures the kernels with models attached and costs attributed to code, compared with models without attribution. Both use the
/// translator.
pub fn attribution(options: &Options) -> Result<Value, Failure> {
    let run = |guest: &Guest, attached| engine::run(guest, Engine::Translator, attached);
    compare_windows(
        options,
        "attribution",
        Length::Times(1),
        ("unattributed", &|guest| run(guest, Attached::CachesAndNuma)),
        ("attributed", &|guest| run(guest, Attached::Attributed)),
    )
}

/// Measures the kernels in windows on the node `zen4`, compared with windows on this node without its core.
pub fn timed(options: &Options) -> Result<Value, Failure> {
    let node = DescribedNode::named("zen4")?;
    let (memory, core) = (|| node.memory(), || node.core_model());
    compare_windows(
        options,
        "timed",
        Length::Times(4),
        ("published", &|guest| engine::run_warm(guest, &memory, None)),
        ("timed", &|guest| {
            engine::run_warm(guest, &memory, Some(&core))
        }),
    )
}

/// A kind of windows: its name, and what runs a guest with them.
type Windows<'a> = (&'a str, &'a dyn Fn(&Guest) -> Result<Session, Failure>);

/// Measures the kernels in two kinds of windows, the first as the peer of the second.
fn compare_windows(
    options: &Options,
    name: &'static str,
    length: Length,
    (peer_name, run_peer): Windows<'_>,
    (here_name, run_here): Windows<'_>,
) -> Result<Value, Failure> {
    let folder = tempfile::tempdir().map_err(Failure::Files)?;
    let workload = Workload::kernels(folder.path(), &options.kernels, length)?;
    let guest = workload.guest(&options.image()?, "", Marks::Hypercall)?;
    let (mut peer, mut here) = (Column::new(peer_name), Column::new(here_name));
    for round in 1..=options.rounds.max(1) {
        options.say(&format!("round {round} of {}", options.rounds.max(1)));
        peer.add(run_peer(&guest)?);
        here.add(run_here(&guest)?);
    }
    let comparison = Comparison {
        name,
        rows: workload.rows.clone(),
        native: None,
        peer: Some(peer),
        engines: vec![here],
    };
    options.say(&comparison.table());
    let mut line = comparison.json();
    line.insert("rounds".into(), options.rounds.max(1).into());
    Ok(line.into())
}

/// Measures sections of hpcc, with nothing attached and with models attached.
pub fn hpcc(options: &Options) -> Result<Value, Failure> {
    let folder = tempfile::tempdir().map_err(Failure::Files)?;
    let workload = Workload::hpcc(folder.path())?;
    // The image's Open MPI starts no rank without mpirun.
    let launcher = "mpirun -np 1";
    Ok(json!({
        "name": "hpcc",
        "functional": compare(options, "functional", &workload, launcher, Attached::Nothing)?,
        "window": compare(options, "window", &workload, launcher, Attached::Attributed)?,
    }))
}

fn compare(
    options: &Options,
    name: &'static str,
    workload: &Workload,
    launcher: &str,
    attached: Attached,
) -> Result<Value, Failure> {
    let image = options.image()?;
    let guest = workload.guest(&image, launcher, Marks::Hypercall)?;
    let native = match host::find(&workload.host_program.to_string_lossy(), "hpcc") {
        Ok(_) => true,
        Err(reason) => {
            eprintln!("the host's own runs are skipped: {reason}");
            false
        }
    };
    let (peer_name, version) = match attached {
        Attached::Nothing => ("tcg", options.peer(tcg::version)),
        Attached::CachesAndNuma | Attached::Attributed => (
            "cachegrind",
            native
                .then(|| options.peer(|| host::version_of("valgrind", "valgrind")))
                .flatten(),
        ),
    };
    let mut comparison = Comparison {
        name,
        rows: workload.rows.clone(),
        native: native.then(|| Column::new("native")),
        peer: version.is_some().then(|| Column::new(peer_name)),
        engines: Vec::new(),
    };
    let engines = options.engines();
    comparison
        .engines
        .extend(engines.iter().map(|e| Column::new(e.name())));
    for round in 1..=options.rounds.max(1) {
        options.say(&format!("round {round} of {}", options.rounds.max(1)));
        if let Some(native) = &mut comparison.native {
            for _ in 0..NATIVE_RUNS {
                native.add(host::run(workload, &[])?);
            }
        }
        if let Some(peer) = &mut comparison.peer {
            let session = match attached {
                Attached::Nothing => tcg::run(&guest),
                _ => host::run(workload, &host::CACHEGRIND),
            };
            match session {
                Ok(session) => peer.add(session),
                // Debian's hpcc reads memory that it never wrote, and may therefore crash in valgrind.
                Err(Failure::Host(reason)) => {
                    eprintln!("{peer_name} is left out: {reason}");
                    comparison.peer = None;
                }
                Err(failure) => return Err(failure),
            }
        }
        for (engine, column) in engines.iter().zip(&mut comparison.engines) {
            column.add(engine::run(&guest, *engine, attached)?);
        }
    }
    options.say(&comparison.table());
    let mut line = comparison.json();
    let version = version.filter(|_| comparison.peer.is_some());
    line.insert("peer".into(), version.into());
    line.insert("rounds".into(), options.rounds.max(1).into());
    Ok(line.into())
}
