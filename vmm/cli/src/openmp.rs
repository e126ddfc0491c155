//! `nodescope openmp`, and the OpenMP section of the report's page.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use nodescope_cluster::run::TRACE_FILE;
use nodescope_host_trace::tracer::{library as mpi_library, openmp_library};
use nodescope_hypercall::{
    CallInterval, Function, INTERVALS_VARIABLE, MOST_INTERVALS, intervals_value,
};
use nodescope_openmp::{
    Analysis, CodeLocator, MpiTime, Options, ProcessMpi, RankMpi, Record, RecordError, SUFFIX,
    Selection, TITLE,
};
use nodescope_report::{OpenMpText, PageSection};
use nodescope_symbols::{ListedFiles, Names};
use nodescope_trace::{Body, ProgramFinder, TraceError, TraceReader, Wait, WaitBuilder};

use crate::args;
use crate::config::THIS_PROGRAM;
use crate::exit::{Exit, Failure};
use crate::interrupt::outlive_signals;
use crate::site_names::job_programs;
use crate::terminal::{print, print_json};
use crate::trace::{cache, cannot_start, fail, mpi, remove_files, sources};

/// Folder of the OpenMP records: among the results of a run on this machine, and among the files that guests leave.
const RECORDS: &str = "openmp";
/// Folder of the files that guests leave, in the results folder.
pub const FILES: &str = "files";

/// An interval of the program for which the user wants figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Interval {
    /// Parallel regions, selected when a record is read.
    Regions(Selection),
    /// Code between two MPI calls, which the tracer must know while it records.
    Calls(CallInterval),
}

impl FromStr for Interval {
    type Err = String;

    fn from_str(text: &str) -> Result<Interval, String> {
        match text.strip_prefix("mpi=") {
            Some(calls) => {
                let calls: Result<CallInterval, _> = calls.parse();
                calls
                    .map(Interval::Calls)
                    .map_err(|error| error.to_string())
            }
            None => {
                let regions: Result<Selection, _> = text.parse();
                regions.map(Interval::Regions).map_err(|error| {
                    format!("{error}; or mpi=CALL..CALL, such as mpi=MPI_Barrier:1..MPI_Barrier:2")
                })
            }
        }
    }
}

/// Returns the intervals separately: those selected when records are read, and those that the tracer must know while it records.
fn sorted(args: &args::Openmp) -> Result<(Vec<Selection>, Vec<CallInterval>), Failure> {
    let (mut selections, mut calls) = (Vec::new(), Vec::new());
    for interval in args.interval.iter().cloned() {
        match interval {
            Interval::Regions(regions) => selections.push(regions),
            Interval::Calls(interval) => calls.push(interval),
        }
    }
    let wrong = |text: String| Err(Failure::new(Exit::Study, text));
    if args.command.is_empty() && !calls.is_empty() {
        return wrong(
            "--interval mpi=CALL..CALL must be known while the program runs: give --output and a command, or job.openmp_intervals in a study".into(),
        );
    }
    if calls.len() > MOST_INTERVALS {
        return wrong(format!(
            "the OpenMP tracer takes {MOST_INTERVALS} intervals between MPI calls, not {}",
            calls.len()
        ));
    }
    Ok((selections, calls))
}

/// Records a command's OpenMP constructs if a command is given, and reports where the threads' time went.
pub fn openmp(args: &args::Openmp) -> Result<Exit, Failure> {
    let (selections, calls) = sorted(args)?;
    let (results, status) = match (&args.output, args.command.is_empty()) {
        (Some(output), false) => (vec![output.clone()], record(args, output, &calls)?),
        _ => (args.results.clone(), 0),
    };
    let (records, mut notes) = read(&results)?;
    let options = Options {
        processors: args.processors,
        mpi: mpi_time(&results)?,
        selections,
    };
    let mut locator = locator(&args.files, &results);
    let mut analysis = Analysis::new(records, &options, &mut locator);
    analysis.notes.append(&mut notes);
    if args.json {
        print_json(&analysis.json())?;
    } else if args.html {
        let page = analysis.html();
        print(&page.map_err(|error| Failure::of(Exit::Host, &error))?)?;
    } else if args.protocol {
        print(&analysis.protocol())?;
    } else {
        print(&analysis.text())?;
    }
    if status == 0 {
        return Ok(Exit::Ok);
    }
    tracing::warn!(
        "the command ended with status {status}; the figures are of what it did until then"
    );
    Ok(Exit::JobFailed)
}

/// Runs the command with the tracer in its processes, and returns the exit status: 128 plus the signal's number if a signal ended it.
fn record(args: &args::Openmp, output: &Path, calls: &[CallInterval]) -> Result<i32, Failure> {
    let folder = output.join(RECORDS);
    let earlier = records_in(&folder)?;
    if !earlier.is_empty() && !args.force {
        return Err(Failure::new(
            Exit::Study,
            format!(
                "{} holds records of an earlier run; give another folder, or --force to replace them",
                folder.display()
            ),
        ));
    }
    let (sources, cache) = (sources()?, cache()?);
    let library = openmp_library(&sources, &cache).map_err(fail)?;
    // The MPI tracer reports the calls at which intervals begin and end.
    let mpi_tracer = match calls {
        [] => None,
        _ => {
            let mpi = mpi(args.mpi, &args.command[0])?;
            Some(mpi_library(mpi, &sources, &cache).map_err(fail)?)
        }
    };
    remove_files(&earlier)?;
    fs::create_dir_all(&folder).map_err(Failure::io("create", &folder))?;
    let folder = fs::canonicalize(&folder).map_err(Failure::io("open", &folder))?;
    // Ctrl-C also reaches the command. This process must survive the signal to report the figures until then.
    outlive_signals()?;
    let mut preload = OsString::from(&library);
    if let Some(tracer) = &mpi_tracer {
        preload.push(":");
        preload.push(tracer);
    }
    if let Some(before) = std::env::var_os("LD_PRELOAD").filter(|before| !before.is_empty()) {
        preload.push(":");
        preload.push(before);
    }
    let mut program = Command::new(&args.command[0]);
    if !calls.is_empty() {
        program.env(INTERVALS_VARIABLE, intervals_value(calls));
    }
    let status = program
        .args(&args.command[1..])
        .env("LD_PRELOAD", &preload)
        .env("NODESCOPE_OPENMP_LOG", &folder)
        .status()
        .map_err(|error| cannot_start(&args.command[0], &error))?;
    Ok(status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or_default()))
}

/// Returns the paths of the records in a folder, sorted; empty if the folder does not exist.
fn records_in(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Failure::io("list", folder)(error)),
    };
    let mut records = Vec::new();
    for entry in entries {
        let path = entry.map_err(Failure::io("list", folder))?.path();
        let named = path.extension().is_some_and(|suffix| suffix == SUFFIX);
        if named && fs::symlink_metadata(&path).is_ok_and(|found| found.is_file()) {
            records.push(path);
        }
    }
    records.sort();
    Ok(records)
}

/// Returns the paths of the records in a results folder: in the folder itself, in its folder `openmp` (a run on this machine), and in its
/// folder `files/openmp` (a run in guests).
fn records_of(results: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut records = records_in(results)?;
    records.extend(records_in(&results.join(RECORDS))?);
    records.extend(records_in(&results.join(FILES).join(RECORDS))?);
    Ok(records)
}

/// Returns the locator of call sites in the job's programs, in `folders`, among the files that guests have left in the results, and on this
/// machine. Programs of
/// guests are read in a process of its own.
fn locator(folders: &[PathBuf], results: &[PathBuf]) -> CodeLocator {
    let files: Vec<PathBuf> = results.iter().map(|path| path.join(FILES)).collect();
    let names = Names::in_process(Path::new(THIS_PROGRAM));
    let mut job = ListedFiles::default();
    for (path, data) in results.iter().flat_map(|results| job_programs(results)) {
        job.insert(&path, data);
    }
    let locator = CodeLocator::new(folders).with_job(job);
    locator.among(&files).with(names)
}

/// Returns whether a results folder has records of the OpenMP tracer.
pub fn has_records(results: &Path) -> bool {
    records_of(results).is_ok_and(|records| !records.is_empty())
}

/// Returns the largest number of threads of a rank in a world of `ranks` ranks that were active at once; `None` without records of such
/// ranks that can be read.
pub fn most_threads(results: &Path, ranks: u32) -> Option<u32> {
    let records = records_of(results).ok()?.into_iter();
    let records = records.filter_map(|path| Record::read(&path).ok());
    let of_ranks = records.filter(|record| record.rank.is_some() && record.ranks == Some(ranks));
    of_ranks.map(|record| record.peak.max(1)).max()
}

fn analyse(results: &Path) -> Result<Analysis, Failure> {
    let results = [results.to_path_buf()];
    let (records, mut notes) = read(&results)?;
    let options = Options {
        mpi: mpi_time(&results)?,
        ..Options::default()
    };
    let mut analysis = Analysis::new(records, &options, &mut locator(&[], &results));
    analysis.notes.append(&mut notes);
    Ok(analysis)
}

/// Returns the analysis of a run's records; `None` without records that can be read.
pub fn analysis(results: &Path) -> Option<Analysis> {
    analyse(results).ok().filter(|_| has_records(results))
}

/// Returns the times of OpenMP threads for a report's text; `None` without records. Where records cannot be shown, the text has the reason.
pub fn text(results: &Path) -> Option<OpenMpText> {
    if !has_records(results) {
        return None;
    }
    Some(match analyse(results) {
        Ok(analysis) => OpenMpText {
            summary: analysis.brief(),
            text: analysis.text(),
        },
        Err(failure) => {
            let why = format!("not shown: {}", failure.chain.join(": "));
            OpenMpText {
                text: format!("{why}\n"),
                summary: vec![why],
            }
        }
    })
}

/// Returns the OpenMP section of a report's page; `None` without records. Where records cannot be shown, the section contains the reason.
pub fn section(results: &Path) -> Option<PageSection> {
    let section_markup = || {
        let markup = analyse(results)?.section();
        markup.map_err(|error| Failure::of(Exit::Host, &error))
    };
    let markup = match records_of(results) {
        Ok(records) if records.is_empty() => return None,
        Ok(_) => section_markup(),
        Err(failure) => Err(failure),
    };
    let markup = markup.map_err(|failure| failure.chain.join(": "));
    Some(PageSection::new(TITLE, markup))
}

/// Returns all records of the results, and a note about each that cannot be read. Fails if a folder has none, or none can be read.
fn read(results: &[PathBuf]) -> Result<(Vec<Record>, Vec<String>), Failure> {
    let mut paths = Vec::new();
    for path in results {
        if !path.is_dir() {
            paths.push(path.clone());
            continue;
        }
        let before = paths.len();
        paths.extend(records_of(path)?);
        if paths.len() == before {
            return Err(Failure::new(
                Exit::Study,
                format!(
                    "{} holds no record of the OpenMP tracer (*.{SUFFIX}): the program used no OpenMP, is linked statically, or ran without the tracer; see the page OpenMP of the guide for how to record",
                    path.display()
                ),
            ));
        }
    }
    let mut records = Vec::new();
    let mut failed: Vec<RecordError> = Vec::new();
    for path in &paths {
        match Record::read(path) {
            Ok(record) => records.push(record),
            Err(error) => failed.push(error),
        }
    }
    if let (true, Some(first)) = (records.is_empty(), failed.first()) {
        let exit = match first {
            RecordError::Io { cause, .. } => Exit::of_read(cause),
            _ => Exit::Study,
        };
        return Err(Failure::of(exit, first));
    }
    let notes = failed.iter().map(|error| format!("left out: {error}"));
    Ok((records, notes.collect()))
}

/// Returns each process's time in MPI calls and the process's waiting in them, in nanoseconds, from the first trace in the results; `None`
/// without a trace.
fn mpi_time(results: &[PathBuf]) -> Result<Option<MpiTime>, Failure> {
    let traces = results.iter().map(|path| path.join(TRACE_FILE));
    let Some(path) = traces.into_iter().find(|path| path.is_file()) else {
        return Ok(None);
    };
    let fail = |error: TraceError| Failure::of(Exit::of_trace(&error), &error);
    let mut finder = ProgramFinder::default();
    let mut processes: BTreeMap<(u32, u32), ProcessMpi> = BTreeMap::new();
    let mut waits = WaitBuilder::default();
    let reader = TraceReader::open(&path).map_err(fail)?;
    let nodes = reader.header().nodes.clone();
    for event in reader.events() {
        let event = match event {
            Ok(event) => event,
            Err(TraceError::Cut { .. }) => break,
            Err(error) => return Err(fail(error)),
        };
        waits.add(&event);
        if let (Some(caller), Body::Mpi(call)) = (finder.caller(&event), &event.body) {
            let pid = call.record.thread.pid;
            let process = processes.entry((event.node, pid)).or_default();
            if let Some(hello) = caller.introduced {
                // An earlier process of the same id has ended.
                *process = ProcessMpi::default();
                process.host = hello.host;
            } else if process.host.is_empty() {
                let node = nodes.get(event.node as usize);
                process.host = node.map(|node| node.name.clone()).unwrap_or_default();
            }
            (process.program, process.rank, process.pid) = (caller.program, caller.rank, pid);
            let time = match is_outer(call.record.function) {
                true => &mut process.time.outer,
                false => &mut process.time.inner,
            };
            // Picoseconds until all calls are added, so that rounding does not add up.
            *time += u128::from(call.time_inside);
        }
        add_waits(&mut processes, waits.take());
    }
    add_waits(&mut processes, waits.finish());
    let mut times: MpiTime = processes.into_values().collect();
    for process in &mut times {
        let RankMpi {
            outer,
            inner,
            waited,
        } = &mut process.time;
        for time in [outer, inner, waited] {
            *time /= 1000;
        }
    }
    Ok(Some(times))
}

/// Adds the waits outside of MPI's start and end to the times of the processes, in picoseconds.
fn add_waits(processes: &mut BTreeMap<(u32, u32), ProcessMpi>, waits: Vec<Wait>) {
    for wait in waits.iter().filter(|wait| !is_outer(wait.function)) {
        if let Some(process) = processes.get_mut(&(wait.node, wait.pid)) {
            process.time.waited += u128::from(wait.time);
        }
    }
}

/// Returns whether the function is MPI_Init, MPI_Init_thread or MPI_Finalize: TALP measures the time between these calls, not within them.
fn is_outer(function: Function) -> bool {
    matches!(
        function,
        Function::Init | Function::InitThread | Function::Finalize
    )
}
