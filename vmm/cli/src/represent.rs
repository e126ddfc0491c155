//! `nodescope represent`.

pub mod args;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use nodescope_hypercall::Function;
use nodescope_loop_tree::{Program, SequenceOptions, Sequences};
use nodescope_predict::{ClusterFile, Request};
use nodescope_represent::{Analysis, Replay, ReplayPrediction, RepresentError, assign_replays};

use crate::args::{MpiName, Trace};
use crate::exit::{Exit, Failure};
use crate::predict::{frequency, passed, read, read_alone, window_notes};
use crate::terminal::{print, print_json};
use crate::trace::{RankLibrary, trace_with};

/// Name of the library that records and replays.
const LIBRARY: &str = "libnodescope-replay";
/// Folder of the recordings, in the results folder.
const RECORDING: &str = "recording";
/// Beginning of a recording's file name, before the rank.
const PREFIX: &str = "rank-";
/// Beginning of every recording. `FLAVOUR_AT` is the offset of the byte that names the recording's MPI (`guest-images/tracer/replay.h`).
const MAGIC: &[u8; 8] = b"NSREPLAY";
const FLAVOUR_AT: usize = 12;

/// Carries out a step of a prediction from representative ranks.
pub fn represent(args: &args::Represent) -> Result<Exit, Failure> {
    match &args.step {
        args::Step::Groups(args) => groups(args),
        args::Step::Record(args) => record(args),
        args::Step::Replay(args) => replay(args),
        args::Step::Predict(args) => predict(args),
    }
}

fn groups(args: &args::Groups) -> Result<Exit, Failure> {
    let (_, analysis) = analyse(&args.choice, Vec::new())?;
    if args.choice.json {
        print_json(&analysis.json())?;
    } else if args.html {
        let page = analysis.html();
        print(&page.map_err(|error| Failure::of(Exit::Study, &error))?)?;
    } else {
        print(&analysis.text())?;
    }
    Ok(Exit::Ok)
}

/// Returns the contents of the section of representative ranks in a report's page, or the reason why there is none.
pub fn section(sequences: &Sequences) -> Result<String, String> {
    let analysis = Analysis::new(sequences, args::THRESHOLD).map_err(|error| error.to_string())?;
    analysis.section().map_err(|error| error.to_string())
}

fn analyse(
    choice: &args::Choice,
    marks: Vec<(Function, u64)>,
) -> Result<(Sequences, Analysis), Failure> {
    let options = SequenceOptions {
        program: choice.program,
        marks,
        ..SequenceOptions::default()
    };
    let (_, sequences) = read(&choice.results, options)?;
    let mut analysis = Analysis::new(&sequences, choice.threshold).map_err(wrong)?;
    // Bursts in a window last longer than outside, by an amount that differs from rank to rank.
    analysis.notes.extend(window_notes(&sequences));
    Ok((sequences, analysis))
}

fn wrong(error: RepresentError) -> Failure {
    Failure::of(Exit::Study, &error)
}

fn record(args: &args::Record) -> Result<Exit, Failure> {
    let folder = args.output.join(RECORDING);
    let earlier = recordings_in(&folder)?;
    if !earlier.is_empty() && !args.force {
        return Err(Failure::new(
            Exit::Study,
            format!(
                "{} holds recordings of an earlier run; give another folder, or --force to replace them",
                folder.display()
            ),
        ));
    }
    for file in earlier {
        fs::remove_file(&file).map_err(Failure::io("remove", &file))?;
    }
    fs::create_dir_all(&folder).map_err(Failure::io("create", &folder))?;
    let folder = fs::canonicalize(&folder).map_err(Failure::io("open", &folder))?;
    let mut environment = vec![("NODESCOPE_RECORD", folder.clone().into_os_string())];
    if !args.ranks.is_empty() {
        let ranks: Vec<String> = args.ranks.iter().map(u32::to_string).collect();
        environment.push(("NODESCOPE_RECORD_RANKS", OsString::from(ranks.join(","))));
    }
    let exit = trace_with(
        &Trace {
            output: args.output.clone(),
            mpi: args.mpi,
            force: args.force,
            keep_logs: false,
            command: args.command.clone(),
        },
        Some(&RankLibrary {
            name: LIBRARY,
            environment,
        }),
    )?;
    let mut bytes = 0;
    let files = recordings_in(&folder)?;
    for file in &files {
        bytes += fs::metadata(file).map_err(Failure::io("read", file))?.len();
    }
    print(&format!(
        "{}: recordings of {} rank{}, {bytes} B\n",
        folder.display(),
        files.len(),
        if files.len() == 1 { "" } else { "s" }
    ))?;
    Ok(exit)
}

/// Returns the recordings in a folder, recognized by their names and sorted; empty if the folder does not exist.
fn recordings_in(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Failure::io("list", folder)(error)),
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry.map_err(Failure::io("list", folder))?;
        let name = entry.file_name();
        let rank = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        if rank.is_some_and(|rank| rank.parse::<u32>().is_ok()) {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

fn replay(args: &args::Replay) -> Result<Exit, Failure> {
    let recording =
        fs::canonicalize(&args.recording).map_err(Failure::input("open", &args.recording))?;
    let mpi = recorded_mpi(&recording)?;
    trace_with(
        &Trace {
            output: args.output.clone(),
            mpi: Some(mpi),
            force: args.force,
            keep_logs: false,
            command: args.command.clone(),
        },
        Some(&RankLibrary {
            name: LIBRARY,
            environment: vec![("NODESCOPE_REPLAY", recording.into_os_string())],
        }),
    )
}

/// Returns the MPI library that a recorded program used.
fn recorded_mpi(recording: &Path) -> Result<MpiName, Failure> {
    let mut header = [0; FLAVOUR_AT + 4];
    let mut file = File::open(recording).map_err(Failure::input("open", recording))?;
    let read = file.read_exact(&mut header);
    let flavour = match read {
        Ok(()) if header.starts_with(MAGIC) => header[FLAVOUR_AT],
        _ => 0,
    };
    match flavour {
        1 => Ok(MpiName::Openmpi),
        2 => Ok(MpiName::Mpich),
        _ => Err(Failure::new(
            Exit::Study,
            format!(
                "{} is no recording of a rank; give a file that `nodescope represent record` wrote, such as recording/rank-0",
                recording.display()
            ),
        )),
    }
}

fn predict(args: &args::Predict) -> Result<Exit, Failure> {
    let problems = |problems| Failure::of(Exit::Study, &problems);
    let file = ClusterFile::load(&args.cluster).map_err(problems)?;
    let cluster = file.with(&args.set).map_err(problems)?;
    let marks: Vec<_> = args.from.into_iter().chain(args.to).collect();
    let (mut sequences, analysis) = analyse(&args.choice, marks.clone())?;
    passed(&sequences, args.from, args.to)?;
    let replays = replays_of(&args.replay, &marks)?;
    let where_traced = replays_of(&args.source_replay, &marks)?;
    let traced = Program::new(&sequences);
    let assignments =
        assign_replays(&mut sequences, &analysis, &replays, &where_traced).map_err(wrong)?;
    let request = Request {
        timeline: args.html,
        ..Request::default()
    };
    let unfit = |error| Failure::of(Exit::Study, &error);
    let mut whole =
        ReplayPrediction::new(&sequences, assignments, &cluster, &request).map_err(unfit)?;
    whole
        .prediction
        .between(&sequences.marks, &sequences.origin);
    let clocks = clocks(&args.choice.results, &args.replay)?;
    whole
        .compare(&traced, &cluster, clocks, &sequences.marks)
        .map_err(unfit)?;
    if args.choice.json {
        print_json(&whole.json())?;
    } else if args.html {
        let page = whole.prediction.html();
        print(&page.map_err(|error| Failure::of(Exit::Study, &error))?)?;
    } else {
        print(&whole.text())?;
    }
    Ok(if whole.prediction.outcome.complete() {
        Exit::Ok
    } else {
        Exit::JobFailed
    })
}

/// Reads replays, each of one rank.
fn replays_of(folders: &[PathBuf], marks: &[(Function, u64)]) -> Result<Vec<Replay>, Failure> {
    let options = || SequenceOptions {
        marks: marks.to_vec(),
        ..SequenceOptions::default()
    };
    let read = |results: &PathBuf| {
        let (rank, sequence) = read_alone(results, options())?;
        Ok(Replay { rank, sequence })
    };
    folders.iter().map(read).collect()
}

/// Returns the ratio of the clock of the nodes that replayed and that of the traced nodes; `None` if nodes' clocks differ or are unknown.
fn clocks(traced: &Path, replays: &[PathBuf]) -> Result<Option<f64>, Failure> {
    let Some(before) = frequency(traced)? else {
        return Ok(None);
    };
    let mut there = None;
    for replay in replays {
        let found = frequency(replay)?;
        if found.is_none() || there.is_some_and(|there| Some(there) != found) {
            return Ok(None);
        }
        there = found;
    }
    Ok(there.map(|there| there as f64 / before as f64))
}
