//! `nodescope predict`.

pub mod args;
mod origin;
mod sweep;
mod target;
mod timeline;

use std::path::{Path, PathBuf};

use nodescope_hypercall::Function;
use nodescope_loop_tree::sequence::{SequenceBuilder, Sequences};
use nodescope_loop_tree::{Program, Sequence, SequenceError, SequenceOptions};
use nodescope_predict::reduce::{self, Selection};
use nodescope_predict::{
    Prediction, Request, delays, predict as interpret, predict_reduced, sensitivity,
};
use nodescope_trace::{MpiProgram, PendingCallsBuilder, TraceError, TraceReader};

pub use origin::window_notes;

use crate::exit::{Exit, Failure};
use crate::foreign;
use crate::results::refuse_existing;
use crate::terminal::{print, print_json};

/// Predicts the time of a traced program on another cluster, and prints the prediction.
pub fn predict(args: &args::Predict) -> Result<Exit, Failure> {
    let wrong = |problems| Failure::of(Exit::Study, &problems);
    for file in args.timeline.iter().chain(&args.plot) {
        refuse_existing(file, args.force)?;
    }
    let (file, note) = target::load(&args.cluster, args.costs.as_deref())?;
    let mut cluster = file.with(&args.settings()).map_err(wrong)?;
    if args.ideal_network {
        cluster = cluster.ideal_network();
    }
    let alone = !args.ranks.is_empty() && args.from.is_some();
    if alone {
        cluster = cluster.with_open_connections();
    }
    let options = |program: Option<usize>| SequenceOptions {
        program,
        marks: args.from.into_iter().chain(args.to).collect(),
        // With more ranks, a section is extrapolated as if the program consisted of the section alone.
        section: alone,
    };
    let numbers: Vec<Option<usize>> = match args.program.as_slice() {
        [] => vec![None],
        numbers => numbers.iter().copied().map(Some).collect(),
    };
    if args.stagger.is_some() && args.replicas == 0 {
        return Err(Failure::new(
            Exit::Study,
            "--stagger is for the replicas, of which --replicas 0 asks for none; give more"
                .to_owned(),
        ));
    }
    let request = Request {
        replicas: args.replicas,
        seed: args.seed,
        stagger: args.stagger.map_or(0, |time| time.0),
        timeline: args.html || args.timeline.is_some(),
        ..Request::default()
    };
    if !args.ranks.is_empty() {
        let mut programs = Vec::with_capacity(args.results.len());
        for results in &args.results {
            for &number in &numbers {
                let sequences = on_one_clock(read(results, options(number))?.1, args.clock)?;
                passed(&sequences, args.from, args.to)?;
                programs.push(Program::new(&origin::noted(sequences)));
            }
        }
        return sweep::ranks(args, &cluster, &programs, &request);
    }
    let ([results], &[number]) = (args.results.as_slice(), numbers.as_slice()) else {
        return Err(Failure::new(
            Exit::Study,
            format!(
                "{} results are given, of which one can be predicted; give one, or --ranks N to predict more ranks from all of them",
                args.results.len() * numbers.len()
            ),
        ));
    };
    let (path, sequences) = read(results, options(number))?;
    let sequences = on_one_clock(sequences, args.clock)?;
    if !args.sweep.is_empty() {
        let program = Program::new(&origin::noted(sequences));
        return sweep::sweep(args, &file, &program, &request);
    }
    let mut program = Program::new(&sequences);
    if let Some(rank) = args.outline {
        print(&reduce::outline(&program, rank))?;
        return Ok(Exit::Ok);
    }
    let failed = |error: &dyn std::error::Error| Failure::of(Exit::Study, error);
    let mut prediction = match &args.reduce {
        None => interpret(&program, &cluster, &request).map_err(|error| failed(&error))?,
        Some(selection) => {
            let times = Request {
                timeline: true,
                replicas: 0,
                ..request.clone()
            };
            // The times of an interval are those of the predicted run without a reduction.
            let timeline = match selection {
                Selection::Interval(..) => {
                    let whole = interpret(&program, &cluster, &times);
                    whole.map_err(|error| failed(&error))?.outcome.timeline
                }
                _ => None,
            };
            let reduced = reduce::reduce(&program, &cluster, selection, timeline.as_ref())
                .map_err(|error| failed(&error))?;
            let prediction = predict_reduced(&program, &reduced, &cluster, &request);
            let prediction = prediction.map_err(|error| failed(&error))?;
            program = reduced.program;
            prediction
        }
    };
    if args.sensitivity {
        let found = sensitivity(&program, &cluster, &prediction.outcome);
        prediction.sensitivity = found.map_err(|error| failed(&error))?;
    }
    if args.delays {
        let found = delays(&program, &cluster);
        prediction.delays = found.map_err(|error| failed(&error))?;
    }
    if args.from.is_some() {
        passed(&sequences, args.from, args.to)?;
        prediction.between(&sequences.marks, &sequences.origin);
    }
    prediction.traced = sequences.spans.iter().copied().max();
    prediction.loop_trees.trace_bytes = path.metadata().ok().map(|file| file.len());
    if let Some(file) = &args.timeline
        && let Some(timeline) = &prediction.outcome.timeline
    {
        timeline::write(&prediction, &program, timeline, file)?;
    }
    prediction.notes.extend(note.map(str::to_owned));
    print_result(&prediction, args)?;
    Ok(if prediction.outcome.complete() {
        Exit::Ok
    } else {
        Exit::JobFailed
    })
}

/// Returns sequences whose bursts lie on the clock that is asked for. A clock is refused where all bursts lie on one anyway.
fn on_one_clock(
    mut sequences: Sequences,
    clock: Option<args::Clock>,
) -> Result<Sequences, Failure> {
    if clock.is_some() && sequences.origin.windows.is_empty() {
        return Err(Failure::new(
            Exit::Study,
            "the traced time contains no measurement window, so --clock changes nothing; leave it out"
                .to_owned(),
        ));
    }
    if clock != Some(args::Clock::Traced) {
        sequences.use_clock_of_windows();
    }
    Ok(sequences)
}

/// Checks that every rank makes the calls `from` and `to`, at which a section begins and ends. `sequences` must have the given ones of
/// these calls as marks, in this order.
pub fn passed(
    sequences: &Sequences,
    from: Option<(Function, u64)>,
    to: Option<(Function, u64)>,
) -> Result<(), Failure> {
    let marks = from.into_iter().chain(to);
    match sequences
        .marks
        .iter()
        .zip(marks)
        .find(|(mark, _)| mark.is_none())
    {
        None => Ok(()),
        Some((_, (function, number))) => Err(Failure::new(
            Exit::Study,
            format!("some rank calls {function} less than {number} times"),
        )),
    }
}

fn print_result(prediction: &Prediction, args: &args::Predict) -> Result<(), Failure> {
    if args.json {
        print_json(&prediction.json())
    } else if args.html {
        let page = prediction.html();
        print(&page.map_err(|error| Failure::of(Exit::Study, &error))?)
    } else {
        print(&prediction.text())
    }
}

/// Returns the path of a trace and the sequences of its ranks. `results` is the trace's file or the folder of the results.
pub fn read(results: &Path, options: SequenceOptions) -> Result<(PathBuf, Sequences), Failure> {
    let (path, builder, cut) = builder(results, options)?;
    let mut sequences = builder.finish().map_err(|error| unusable(&path, &error))?;
    sequences.notes.extend(cut);
    origin::complete(&mut sequences, &path);
    Ok((path, sequences))
}

/// Returns the rank and the sequence of a trace that has only one rank.
pub fn read_alone(results: &Path, options: SequenceOptions) -> Result<(u32, Sequence), Failure> {
    let (path, builder, _) = builder(results, options)?;
    builder
        .finish_alone()
        .map_err(|error| unusable(&path, &error))
}

fn unusable(path: &Path, error: &SequenceError) -> Failure {
    Failure::new(Exit::Study, format!("{}: {error}", path.display()))
}

/// Returns the clock frequency of the nodes of a trace, hertz; `None` if they differ or are unknown. `results` is a file or a folder.
pub fn frequency(results: &Path) -> Result<Option<u64>, Failure> {
    let reader = TraceReader::open(trace_of(results))
        .map_err(|error| Failure::of(Exit::of_trace(&error), &error))?;
    let mut clocks = reader.header().nodes.iter().map(|node| node.frequency_hz);
    let first = clocks.next().filter(|&clock| clock > 0);
    Ok(first.filter(|&first| clocks.all(|clock| clock == first)))
}

/// Returns the path of the trace of results, which are a file or a folder.
fn trace_of(results: &Path) -> PathBuf {
    if results.is_dir() {
        results.join("trace.nst")
    } else {
        results.to_path_buf()
    }
}

/// Returns the path of a trace, a builder with all of its events, and a message if the trace is cut. `results` is a file or a folder.
fn builder(
    results: &Path,
    options: SequenceOptions,
) -> Result<(PathBuf, SequenceBuilder, Option<String>), Failure> {
    let path = trace_of(results);
    let (builder, cut) =
        events(&path, options).map_err(|error| foreign::unreadable(results, &error))?;
    Ok((path, builder, cut))
}

/// A program of a trace, with its sequences or with the reason why it has none.
type TracedProgram = (MpiProgram, Result<Sequences, SequenceError>);

/// Returns the programs of a trace's file.
pub fn programs(path: &Path) -> Result<Vec<TracedProgram>, TraceError> {
    let (builder, cut) = events(path, SequenceOptions::default())?;
    let mut programs = builder.finish_each();
    for (_, sequences) in &mut programs {
        if let Ok(sequences) = sequences {
            sequences.notes.extend(cut.clone());
        }
    }
    Ok(programs)
}

/// Returns a builder with all events of a trace's file, and a message if the file is cut.
fn events(
    path: &Path,
    options: SequenceOptions,
) -> Result<(SequenceBuilder, Option<String>), TraceError> {
    let reader = TraceReader::open(path)?;
    let mut builder = SequenceBuilder::new(options);
    builder.set_header(reader.header());
    let mut cut = None;
    for event in reader.events() {
        match event {
            Ok(event) => builder.add(&event),
            // The events before the cut are a trace of a shorter run.
            Err(error @ TraceError::Cut { .. }) => {
                cut = Some(error.to_string());
                break;
            }
            Err(error) => return Err(error),
        }
    }
    if builder.has_unfinished() {
        let events = TraceReader::open(path)?;
        let mut pending = PendingCallsBuilder::default();
        (events.events().map_while(Result::ok)).for_each(|event| pending.add(&event));
        builder.set_deadlocks(&pending.finish());
    }
    Ok((builder, cut))
}
