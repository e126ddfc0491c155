//! `nodescope run`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, fs};

use nodescope_cluster::build::BuildError;
use nodescope_cluster::once::{self, Boot};
use nodescope_cluster::results::{FILES, stored_name};
use nodescope_cluster::saving::rounded;
use nodescope_cluster::{
    ClusterConfig, Ending, EngineName, EngineSpan, FolderError, Options, Origin, Outcome,
    PeerError, Peers, ResultsFolder, RunError, Save, When,
};
use nodescope_counters::Measurement;
use nodescope_hypercall::printable_json;
use nodescope_report::{CoreCpi, NetworkCounts, StudyInfo};
use nodescope_study::quantity::Time;
use nodescope_study::{Mpi, Study};
use tempfile::TempDir;

use crate::args::{self, Args, LogFormat};
use crate::awaited::Awaited;
use crate::cores::CoreNames;
use crate::distributed::{Processes, Started};
use crate::exit::{Exit, Failure};
use crate::host_limit::HostLimit;
use crate::host_times::HostTimes;
use crate::interrupt::{Signals, TakeOnce, on_interrupt};
use crate::known_costs::KnownCosts;
use crate::mpi::Launched;
use crate::progress::{ProgressOptions, ProgressReporter};
use crate::report::short;
use crate::results::{REPORT_HTML, REPORT_JSON, RunFile, folder_failure, put, report};
use crate::sections::sections;
use crate::stats::Stats;
use crate::terminal::{argument, print};
use crate::verdict::add_verdict;
use crate::{check, config, distributed, mpi, openmp, sandbox, snapshot, worker};

/// File name of the study's copy among the results.
const STUDY_COPY: &str = "study.toml";
/// File name, among the results, of what the host's hardware counters counted.
const COUNTERS: &str = "counters.json";

/// Runs a study in this process, or this process's share of a study where a launcher of MPI has started several processes.
pub fn run(args: &args::Run, all: &Args) -> Result<Exit, Failure> {
    let Some(launched) = Launched::find(args)? else {
        return run_as_master(args, None, all);
    };
    if launched.rank() > 0 {
        return worker::launched(launched, args);
    }
    let workers = Some(launched.workers());
    let args = args::Run {
        workers,
        ..args.clone()
    };
    run_as_master(&args, Some(launched), all)
}

/// Runs a study: checks it, boots and runs the cluster, writes the results and prints the report.
fn run_as_master(
    args: &args::Run,
    launched: Option<Launched>,
    all: &Args,
) -> Result<Exit, Failure> {
    let study = check::load(&args.study, args.engine, distributed::hosts(args))?;
    let costs = args.costs_of.as_deref();
    let costs = costs
        .map(|of| KnownCosts::read(of, &args.code))
        .transpose()?;
    if costs.is_none() && !args.code.all().is_empty() {
        return Err(Failure::new(
            Exit::Study,
            "--function, --line and --term change the costs of an earlier run; give its results by --costs-of",
        ));
    }
    if let Some(node) = args.follow.filter(|&node| node >= study.nodes) {
        return Err(Failure::new(
            Exit::Study,
            format!(
                "--follow: there is no node {node}; the study's nodes are 0 to {}",
                study.nodes - 1
            ),
        ));
    }
    distributed::check(args, &study)?;
    let save = snapshot::planned(args, &study)?;
    let origin = args.from.as_deref().map(snapshot::open).transpose()?;
    let path = args.results.as_ref().unwrap_or(&study.results);
    let results = ResultsFolder::take(path, RunFile::NAME, args.force).map_err(folder_failure)?;
    let results = Arc::new(results);
    let threads = args.host_threads.map(|threads| threads as usize);
    let mut reporter = ProgressReporter::new(
        &ProgressOptions {
            format: all.log_format,
            quiet: all.quiet,
            follow: args.follow,
        },
        study.nodes,
    );
    let mut signals = on_interrupt()?;
    let was_built = check::root(&study).is_some();
    let prepared = config::cluster(&study, threads, signals.flag(), &mut |line| {
        reporter.print_line(line);
    })?;
    let mut config = prepared.cluster;
    if !was_built {
        check::programs(&study, &config.root)?;
    }
    config.translate = !args.interpret;
    if let Some(costs) = &costs {
        costs.apply(&mut config)?;
    }
    if let Some(origin) = &origin {
        origin.adopt(&mut config);
        let checked = origin.check(&config, &prepared.identity);
        checked.map_err(|error| Failure::of(exit_of(&error), &error))?;
    }
    // Earlier results are removed only once it is certain that there will be new ones.
    results
        .clear(&file_names(&study, &config, args))
        .map_err(folder_failure)?;
    let mut description = study.description();
    description.push(("image".into(), prepared.image));

    let mut file = RunFile {
        version: RunFile::VERSION,
        study: StudyInfo {
            name: study.name.clone(),
            id: config.study_id.clone(),
            description,
        },
        core: core(&study),
        cores: CoreNames {
            names: match costs {
                None => study.cores.clone(),
                Some(_) => Vec::new(),
            },
            memory_parallelism: study.memory_parallelism.misses(),
        },
        ending: None,
        exit_code: None,
        job_status: None,
        virtual_ps: 0,
        instructions: Vec::new(),
        network: Vec::new(),
        engines: Vec::new(),
        notes: costs.into_iter().map(|costs| costs.note).collect(),
    };
    put(&results, STUDY_COPY, &study.text)?;
    file.write(&results)?;

    reporter.awaited = Awaited::new(&study.job.collect, study.nodes);
    tracing::info!(
        "study {}, {} nodes on {} host threads, results in {}",
        config.study_id,
        config.nodes,
        config.host_threads,
        path.display()
    );
    let boot = match origin.is_none() && study.boots_once {
        true => Some(snapshot::booted(&config, &prepared.identity)?),
        false => None,
    };
    let is_launched = launched.is_some();
    let workers = (args.workers).map(|workers| Started::begin(args, workers, launched));
    let workers = workers.transpose()?;
    let starts_workers = workers.as_ref().is_some_and(Started::has_children);
    reporter.host_times = args
        .host_times
        .then(|| HostTimes::start(config.host_threads));
    // From here on the process is restricted: it opens only the files that are named here.
    let mut kept = sandbox::Kept {
        read: origin.iter().map(|origin| origin.path().into()).collect(),
        write: vec![path.clone()],
        tcp: workers.is_some(),
        workers: starts_workers,
    };
    kept.write.extend(mpi::shared_memory(is_launched));
    let written = save.as_ref().map(|save| &save.path).into_iter();
    kept.write
        .extend(written.chain(&boot).map(|file| sandbox::folder_of(file)));
    let snapshots: Vec<PathBuf> = kept
        .read
        .iter()
        .cloned()
        .chain(boot.iter().map(|file| sandbox::folder_of(file)))
        .collect();
    let confined = sandbox::enter(args.sandbox, &study, &config, kept, &mut signals)?;
    // Threads of MPI begin before the sandbox. The user is told, but the results are those of a run without MPI.
    if !is_launched {
        file.notes.extend(confined.gaps.clone());
    }
    let boot = boot
        .map(|snapshot| BootSnapshot::new(snapshot, &config))
        .transpose()?;
    let record = TakeOnce::new(file.clone());
    arm(&signals, &results, &record, all.log_format);
    let processes = match workers {
        Some(workers) => {
            let print = &mut |line: &str| reporter.print_line(line);
            let info = distributed::RunInfo {
                snapshots: &snapshots,
                config: &config,
                interrupted: signals.flag(),
            };
            Some(Processes::gather(args, workers, info, print)?)
        }
        None => None,
    };
    let limit = study
        .host_time_limit
        .map(|limit| HostLimit::start(Duration::from_nanos(limit.0 / 1000), signals.flag()));
    let limit = limit.transpose()?;
    snapshot::request(args, save.as_ref())?;
    let start = Instant::now();
    let image = prepared.identity.as_str();
    let run = |origin: Option<&Origin>, reporter: &mut ProgressReporter| {
        if let Some(processes) = &processes {
            processes.send_start(origin, args.from.is_some())?;
        }
        let peers =
            (processes.as_ref()).map(|processes| Arc::clone(processes.group()) as Arc<dyn Peers>);
        let options = Options {
            image,
            save: save.clone(),
            from: origin,
            peers,
        };
        nodescope_cluster::run_with(&config, &results, signals.flag(), reporter, options)
    };
    let mut unbooted = false;
    let result = match &boot {
        None => run(origin.as_ref(), &mut reporter),
        Some(boot) => {
            let (path, folder, stop) = (&boot.snapshot, &boot.folder, signals.flag());
            match once::boot(&config, image, path, folder, stop, &mut reporter) {
                Ok(Boot::Done(origin)) => {
                    if let Some(times) = &mut reporter.host_times {
                        times.booted();
                    }
                    run(Some(&origin), &mut reporter)
                }
                Ok(Boot::Failed(outcome)) => {
                    if let Some(processes) = &processes {
                        processes
                            .group()
                            .leave("the node that was to boot for all never did");
                    }
                    unbooted = true;
                    boot.keep_console(&results).map(|()| *outcome)
                }
                Err(error) => Err(error),
            }
        }
    };
    let elapsed = start.elapsed();
    let host_times = reporter.host_times.take().map(|mut times| {
        if let Ok(outcome) = &result {
            times.end(&outcome.instructions, outcome.virtual_ps);
        }
        times
    });
    let stats = (processes.as_ref().filter(|_| args.stats && result.is_ok()))
        .and_then(|processes| Stats::gather(processes.group(), &config, elapsed));
    drop(processes);
    reporter.end();
    if record.take().is_none() {
        // The signal's thread has taken the record: it writes the record and ends the program.
        loop {
            std::thread::park();
        }
    }
    let mut failure = match &result {
        Ok(outcome) => {
            let mut verdict = verdict(&study, outcome, path, &reporter.awaited);
            if unbooted && verdict.0 == Exit::Ok {
                let folder = path.display();
                verdict = (
                    Exit::Guest,
                    format!(
                        "the node that was to boot for all never did; see its console log in {folder}"
                    ),
                );
            }
            let by_host = limit.as_ref().is_some_and(HostLimit::is_reached) && !signals.seen();
            if let (Ending::Interrupted, true, Some(limit)) =
                (&outcome.ending, by_host, study.host_time_limit)
            {
                verdict = (Exit::TimeLimit, past_host_limit(limit, outcome, path));
            }
            let (exit, text) = with_snapshot(verdict, outcome, save.as_ref());
            file.job_status = outcome.job_status;
            file.virtual_ps = outcome.virtual_ps;
            // A file server is no node of the study.
            let nodes = outcome.instructions.iter().take(study.nodes as usize);
            file.instructions = nodes.copied().collect();
            file.network = network(&study, outcome);
            if config.engine.uses_kvm() {
                file.engines.clone_from(&outcome.engines);
                let engines = ("engines".into(), engines(&outcome.engines));
                file.study.description.push(engines);
            }
            file.notes.extend_from_slice(&outcome.warnings);
            if study.job.openmp && !openmp::has_records(results.path()) {
                let why = "job.openmp is set, but no process left a record: the programs used no OpenMP, are linked statically, or did not end";
                file.notes.push(why.into());
            }
            match counted(&study, outcome, &results) {
                Ok(Counted::Core(core)) => file.core = core,
                Ok(Counted::Note(note)) => file.notes.push(note),
                Ok(Counted::Nothing) => {}
                Err(failure) => file.notes.push(failure.chain.join(": ")),
            }
            Failure::new(exit, text)
        }
        Err(error) => Failure::of(exit_of(error), error),
    };
    file.ending = Some(failure.chain.join(": "));
    file.exit_code = Some(failure.exit as u8);
    // The run's own failure comes first; a failure to write its results is reported as a further one.
    let written = file
        .write(&results)
        .and_then(|()| host_times.map_or(Ok(()), |times| times.write(&results)))
        .and_then(|()| print_summary(&results, elapsed, &file))
        .and_then(|()| {
            stats.map_or(Ok(()), |stats| {
                print(&stats.text())?;
                stats.write(&results)
            })
        });
    if let Err(second) = written {
        if failure.exit == Exit::Ok {
            return Err(second);
        }
        failure.also = Some(format!("there is no report: {}", second.chain.join(": ")));
    }
    match failure.exit {
        Exit::Ok => Ok(Exit::Ok),
        _ => Err(failure),
    }
}

/// Snapshot of one booted node, from which all nodes are cloned.
struct BootSnapshot {
    snapshot: PathBuf,
    /// Folder for the results of the boot, so that the run's own results do not depend on whether the boot was done before.
    folder: ResultsFolder,
    /// Name of the console log of the node that boots.
    log: String,
    _scratch: TempDir,
}

impl BootSnapshot {
    fn new(snapshot: PathBuf, config: &ClusterConfig) -> Result<Self, Failure> {
        let scratch = tempfile::tempdir().map_err(Failure::io("create", &env::temp_dir()))?;
        Ok(Self {
            snapshot,
            folder: ResultsFolder::create(scratch.path()).map_err(folder_failure)?,
            log: config.console_log(0),
            _scratch: scratch,
        })
    }

    /// Copies the console log of a node that did not boot into the results.
    fn keep_console(&self, results: &ResultsFolder) -> Result<(), RunError> {
        let name = self.log.as_str();
        let console = fs::read(self.folder.path().join(name)).unwrap_or_default();
        results.write(name, &console)?;
        Ok(())
    }
}

/// Returns a line that says which engine executed the guests until which virtual time.
fn engines(spans: &[EngineSpan]) -> String {
    const MAX_LISTED: usize = 8;
    let span = |span: &EngineSpan| {
        let engine = match span.engine {
            EngineName::Portable => "portable",
            EngineName::Kvm => "KVM",
        };
        let until = Time(span.to_ps / 1_000_000_000 * 1_000_000_000);
        format!("{engine} until {until}")
    };
    let mut listed: Vec<_> = spans.iter().take(MAX_LISTED).map(span).collect();
    if spans.len() > MAX_LISTED {
        listed.push(format!("{} more intervals", spans.len() - MAX_LISTED));
    }
    format!(
        "{}; on KVM times depend on the host and instructions are not counted",
        listed.join(", ")
    )
}

/// Returns the study's CPI_core with its source. Counts of ranks replace all cycles with which the virtual clocks ran, long instructions
/// included, since the counters have counted these, too.
fn core(study: &Study) -> CoreCpi {
    let source = study.cpi_source.clone();
    match &study.rank_cpi {
        None => CoreCpi::Nominal { source },
        Some(ranks) => CoreCpi::PerRank {
            whole: study.core_cpi.as_f64(),
            ranks: (ranks.iter())
                .map(|(rank, cpi)| (*rank, cpi.as_f64()))
                .collect(),
            source,
        },
    }
}

/// Result of the host's hardware counters: CPI_core, or the reason why there is none.
#[derive(Debug, PartialEq)]
enum Counted {
    /// CPI_core, for the report.
    Core(CoreCpi),
    /// Reason why the counters give no CPI_core.
    Note(String),
    /// The study does not count with the host's counters.
    Nothing,
}

/// Writes what the host's counters counted of the job into the results, and returns CPI_core by these counts.
fn counted(study: &Study, outcome: &Outcome, results: &ResultsFolder) -> Result<Counted, Failure> {
    if !study.counts_guests {
        return Ok(Counted::Nothing);
    }
    let Some(measurement) = &outcome.counted else {
        return Ok(Counted::Note(
            "the job did not start, so that the host's counters counted nothing; CPI_core is the study's".into(),
        ));
    };
    let core = core_of(measurement);
    // A measurement without cycles and instructions has no JSON, and no file is written.
    if let Ok(text) = measurement.json() {
        put(results, COUNTERS, &printable_json(&text))?;
    }
    Ok(core)
}

fn core_of(measurement: &Measurement) -> Counted {
    let without = |why: &str| {
        Counted::Note(format!(
            "the host's counters give no CPI_core ({why}); CPI_core is the study's"
        ))
    };
    match measurement.derive() {
        Ok(derived) => match &derived.core {
            Ok(core) => Counted::Core(CoreCpi::Replaced {
                cpi: core.cpi,
                source: measurement.source(&derived),
            }),
            Err(why) => without(why),
        },
        Err(error) => without(&error.to_string()),
    }
}

/// Returns the names, among the results, of the files that a run is sure to make. Files that patterns of `job.collect` find are not
/// included.
fn file_names(study: &Study, config: &ClusterConfig, args: &args::Run) -> Vec<String> {
    let own = [STUDY_COPY, RunFile::NAME, REPORT_JSON, REPORT_HTML];
    let own = own
        .into_iter()
        .chain(study.counts_guests.then_some(COUNTERS))
        .chain(args.host_times.then_some(HostTimes::NAME))
        .chain(Stats::NAMES.into_iter().filter(|_| args.stats));
    let own = own.map(String::from);
    let paths = study
        .job
        .collect
        .iter()
        .map(|e| e.result_paths(study.nodes));
    let collected = paths
        .flatten()
        .map(|path| format!("{FILES}/{}", stored_name(&path)));
    let mut names = nodescope_cluster::run::file_names(config);
    names.extend(own.into_iter().chain(collected));
    names
}

/// Prepares for signals: if the run does not end in time after a signal, the signal's thread writes the run's record instead.
fn arm(
    signals: &Signals,
    results: &Arc<ResultsFolder>,
    record: &TakeOnce<RunFile>,
    format: LogFormat,
) {
    let (results, record) = (results.clone(), record.clone());
    signals.arm("; what was measured is kept", move || {
        let folder = argument(results.path());
        let unwritten = record.take().is_some_and(|mut file| {
            file.ending = Some(
                "interrupted; the cluster did not stop in time, and an open window is lost".into(),
            );
            file.exit_code = Some(Exit::Interrupted as u8);
            file.write(&results).is_err()
        });
        let left = if unwritten { ", but for its end" } else { "" };
        let text = format!(
            "interrupted; what was written until then is in {folder}{left}, and `nodescope report {folder}` prints it"
        );
        Failure::new(Exit::Interrupted, text).print(format);
    });
}

/// Returns the exit code and a sentence for the end of a run, apart from a snapshot that was not taken.
fn verdict(study: &Study, outcome: &Outcome, folder: &Path, awaited: &Awaited) -> (Exit, String) {
    let logs = format!("see the console logs in {}", folder.display());
    let at = Time(outcome.virtual_ps / 1_000_000_000 * 1_000_000_000);
    let names = study.guest_names();
    let name = |node: u32| names.get(node as usize).cloned().unwrap_or_default();
    match &outcome.ending {
        Ending::PoweredOff => match outcome.job_status {
            Some(0) => match (awaited.missing(), nothing_measured(outcome)) {
                (Some(missing), _) => (
                    Exit::JobFailed,
                    format!("the job ended with status 0 after {at}, but {missing}; {logs}"),
                ),
                (None, None) => (Exit::Ok, format!("the job ended with status 0 after {at}")),
                (None, Some(text)) => (Exit::Window, text),
            },
            Some(status) => (
                Exit::JobFailed,
                match awaited.missing() {
                    None => format!("the job ended with status {status} after {at}; {logs}"),
                    Some(missing) => {
                        format!(
                            "the job ended with status {status} after {at}, and {missing}; {logs}"
                        )
                    }
                },
            ),
            None => (
                Exit::Guest,
                format!("the nodes powered off after {at} without a status of the job; {logs}"),
            ),
        },
        Ending::Interrupted => (
            Exit::Interrupted,
            format!(
                "interrupted after {at}; the results until then are in {}",
                folder.display()
            ),
        ),
        Ending::TimeLimit => (
            Exit::TimeLimit,
            format!(
                "the time limit of {} was reached; raise study.time_limit, or {logs}{}",
                study.time_limit,
                shared_hint(study)
            ),
        ),
        Ending::GuestPanic { node, line } => (
            Exit::Guest,
            format!(
                "the kernel of {} panicked after {at}: {line}; {logs}",
                name(*node)
            ),
        ),
        Ending::Reset { node } => (
            Exit::Guest,
            format!("{} reset itself after {at}; {logs}", name(*node)),
        ),
        Ending::Hung => (
            Exit::TimeLimit,
            format!("every vCPU of every node sleeps for ever after {at}; {logs}"),
        ),
        Ending::Deadlock { ranks } => {
            const MAX_LISTED: usize = 8;
            let listed: Vec<String> = ranks.iter().take(MAX_LISTED).map(u32::to_string).collect();
            let more = match ranks.len() - listed.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let what = if ranks.len() == 1 { "rank" } else { "ranks" };
            (
                Exit::TimeLimit,
                format!(
                    "the MPI program is deadlocked: {what} {}{more} can never go on; stopped after {at}, the report names the calls",
                    listed.join(", ")
                ),
            )
        }
        Ending::PeerLost { why } => (
            Exit::Host,
            format!(
                "{why} after {at}; the results until then are in {}",
                folder.display()
            ),
        ),
        Ending::Saved => (
            Exit::Ok,
            format!("the run ended after its snapshot, after {at}"),
        ),
        Ending::Stragglers { nodes } => {
            let nodes: Vec<_> = nodes.iter().map(|&node| name(node)).collect();
            (
                Exit::TimeLimit,
                format!(
                    "node0 powered off, but {} did not follow; {logs}",
                    nodes.join(", ")
                ),
            )
        }
    }
}

/// Returns a sentence for a run that took longer than the host may give it.
fn past_host_limit(limit: Time, outcome: &Outcome, folder: &Path) -> String {
    format!(
        "the run took {limit} of this host's time, study.host_time_limit, and ended after {} of virtual time; raise the limit, or find out what the guests do in {}",
        Time(outcome.virtual_ps / 1_000_000_000 * 1_000_000_000),
        folder.display()
    )
}

/// Returns the verdict, with a clause about the snapshot if one was planned and not taken.
fn with_snapshot(
    (exit, text): (Exit, String),
    outcome: &Outcome,
    save: Option<&Save>,
) -> (Exit, String) {
    let Some(save) = save else {
        return (exit, text);
    };
    let clause = match (&save.when, &outcome.saved, &outcome.ending) {
        (When::At(_), None, _) => format!(
            "no snapshot {} was taken: {} did not come, or only within a window that was open until the end",
            save.name, save.when
        ),
        (When::Requested(_), Some(saved), Ending::PeerLost { .. }) => format!(
            "the last snapshot, {}, was taken at {} of virtual time: go on from it with nodescope run --force --from {}",
            saved.path.display(),
            rounded(saved.virtual_ps),
            argument(&saved.path),
        ),
        _ => return (exit, text),
    };
    match exit {
        Exit::Ok => (Exit::Window, format!("{text}, but {clause}")),
        _ => (exit, format!("{text}; {clause}")),
    }
}

/// Returns a sentence about the windows that have no measurement; `None` if all have one.
fn nothing_measured(outcome: &Outcome) -> Option<String> {
    use nodescope_window::Ending::{CutInWarmUp, NeverOpened, NeverTriggered};
    let outcomes = &outcome.windows.outcomes;
    let empty = |ending| matches!(ending, NeverTriggered | NeverOpened | CutInWarmUp);
    let texts: Vec<_> = outcomes
        .iter()
        .filter(|window| empty(window.ending))
        .map(|window| window.text.as_str())
        .collect();
    (!texts.is_empty()).then(|| format!("the job ended well, but {}", texts.join("; ")))
}

fn network(study: &Study, outcome: &Outcome) -> Vec<NetworkCounts> {
    let count = |(node, counts): (String, &nodescope_fabric::PortCounts)| NetworkCounts {
        node,
        sent_frames: counts.sent_frames,
        sent_bytes: counts.sent_bytes,
        received_frames: counts.received_frames,
        received_bytes: counts.received_bytes,
        dropped_frames: counts.dropped_frames,
    };
    let names = study.guest_names().into_iter();
    names.zip(&outcome.network).map(count).collect()
}

/// Returns advice for a program that may wait for ever in `MPI_File_open`: where calls are traced, the tracer has ended it with a message.
fn shared_hint(study: &Study) -> &'static str {
    let files_of_their_own = study.nodes > 1 && study.shared.is_none();
    match files_of_their_own && study.job.mpi != Mpi::None && !study.job.trace {
        true => {
            "; a program whose ranks on several nodes open a file together needs cluster.shared, and waits for ever without it"
        }
        false => "",
    }
}

/// Returns the exit code for an error: the host's, the study's or the guest's fault.
pub fn exit_of(error: &RunError) -> Exit {
    use nodescope_engine::EngineError;
    use nodescope_machine::node::NodeError;
    match error {
        RunError::Build(build) => match build {
            BuildError::Memory(_) | BuildError::Disk { .. } | BuildError::Kvm(_) => Exit::Host,
            _ => Exit::Study,
        },
        RunError::Node(NodeError::Engine {
            source: EngineError::Host { .. },
            ..
        }) => Exit::Host,
        RunError::Node(_) => Exit::Guest,
        RunError::Elsewhere { of_host, .. } => match of_host {
            true => Exit::Host,
            false => Exit::Guest,
        },
        RunError::Peer(PeerError::TooMany { .. }) | RunError::Distributed { .. } => Exit::Study,
        RunError::Window(_) | RunError::Model(_) => Exit::Study,
        RunError::Results(error) => match error {
            FolderError::Io { .. } => Exit::Host,
            _ => Exit::Study,
        },
        RunError::Snapshot(fault) => match fault.is_hosts() {
            true => Exit::Host,
            false => Exit::Study,
        },
        RunError::Disk { .. }
        | RunError::Peer(_)
        | RunError::Counters(_)
        | RunError::Trace(_)
        | RunError::Capture(_)
        | RunError::Records(_)
        | RunError::Profile(_) => Exit::Host,
    }
}

/// Writes the report's files and prints the report. `elapsed` is the run's time on this host, without the build of an image.
fn print_summary(
    results: &ResultsFolder,
    elapsed: Duration,
    file: &RunFile,
) -> Result<(), Failure> {
    let _span = tracing::info_span!("report").entered();
    let folder = results.path();
    let mut report = report(folder, None, &[])?;
    add_verdict(&mut report, folder);
    report.sections.extend(sections(folder));
    put(results, REPORT_JSON, &printable_json(&report.json()))?;
    put(results, REPORT_HTML, &report.html())?;
    report.openmp = openmp::text(folder);
    print(&short(&report, folder))?;
    let seconds = elapsed.as_secs_f64();
    let instructions: u64 = file.instructions.iter().sum();
    print(&format!(
        "results     {}\nhost        {:.2} G instructions in {seconds:.1} s on this host, {:.1} M/s\n",
        folder.display(),
        instructions as f64 / 1e9,
        instructions as f64 / 1e6 / seconds.max(1e-9)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_guests_give_cpi_core_or_the_reason() {
        use nodescope_counters::{Quantity, Reading};
        let reading = |name: &str, quantity, value| Reading {
            quantity: Some(quantity),
            ..Reading::new(name, value, None)
        };
        let mut measurement = Measurement {
            tool: "nodescope run".into(),
            ..Measurement::default()
        };
        let Counted::Note(note) = core_of(&measurement) else {
            panic!("there are no counts");
        };
        assert!(note.ends_with("CPI_core is the study's"), "{note}");
        measurement.whole.readings = vec![
            reading("cycles", Quantity::Cycles, 3000.0),
            reading("instructions", Quantity::Instructions, 2000.0),
        ];
        let Counted::Note(note) = core_of(&measurement) else {
            panic!("there are no stalls");
        };
        assert!(
            note.starts_with("the host's counters give no CPI_core ("),
            "{note}"
        );
        let stalls = reading("stalls", Quantity::StallsL1dMiss, 500.0);
        measurement.whole.readings.push(stalls);
        let Counted::Core(CoreCpi::Replaced { cpi, source }) = core_of(&measurement) else {
            panic!("there is all that it takes");
        };
        assert_eq!(cpi, 1.25);
        assert!(source.starts_with("nodescope run; CPI_core = "), "{source}");
    }
}
