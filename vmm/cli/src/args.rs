//! The command line.

use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Parser, Subcommand, ValueEnum};

use nodescope_report::Section;
use nodescope_study::quantity::Bytes;
use nodescope_study::{NodeDescription, SnapshotAt};
use serde::{Deserialize, Serialize};

use crate::exit::{EXIT_CODES, GUIDE};
pub use crate::model::args::Model;
pub use crate::phases::args::Phases;
pub use crate::predict::args::Predict;
pub use crate::represent::args::Represent;
pub use crate::scaling::args::Scaling;
pub use crate::what_if::args::{CodeChanges, WhatIf};

/// Boots a cluster of unmodified Linux guests, runs MPI programs in it, and tells where their time goes.
#[derive(Debug, Parser)]
#[command(version, after_help = format!("{GUIDE}\n\n{EXIT_CODES}"), max_term_width = 110)]
pub struct Args {
    /// Command.
    #[command(subcommand)]
    pub command: Command,
    /// Format of progress and errors on standard error.
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// Print more on standard error: the phases of a run and how long each took; given twice: details. RUST_LOG asks for more of single
    /// crates, such as RUST_LOG=nodescope_cluster=debug.
    #[arg(short, long, global = true, action = clap::ArgAction::Count, conflicts_with = "quiet")]
    pub verbose: u8,
    /// Print nothing on standard error but errors: no progress, no messages of guests, no warnings.
    #[arg(short, long, global = true)]
    pub quiet: bool,
}

/// Formats of progress and errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Bars on a terminal, lines elsewhere.
    Text,
    /// One JSON object a line.
    Json,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a study: boot its cluster, run its job, measure its windows, print the short report.
    #[command(after_help = EXIT_CODES)]
    Run(Run),
    /// Run a study under Slurm, over several hosts (guide: Several hosts and Slurm).
    #[command(after_help = EXIT_CODES)]
    Slurm(Slurm),
    /// Run a part of a study's nodes for the nodescope run that listens at an address (guide: Several hosts and Slurm).
    Worker(Worker),
    /// Print the report of results, complete or not.
    Report(Report),
    /// Say what costs a traced MPI program its time, where, and what the removal of each cause saves (guide: The verdict).
    #[command(after_help = EXIT_CODES)]
    Verdict(Verdict),
    /// Say what a traced MPI program gains if functions, lines, calls or the network were faster (guide: What faster code gains).
    #[command(after_help = EXIT_CODES)]
    WhatIf(Box<WhatIf>),
    /// Print the results of two runs side by side, with the differences (guide: report.json).
    Compare(Compare),
    /// Write the code that ran in a window: tables, a flame graph, or a profile for other tools (guide: Results and formats).
    Profile(Profile),
    /// Predict how long a traced program takes on another cluster, and why.
    #[command(after_help = EXIT_CODES)]
    Predict(Box<Predict>),
    /// Find the communication phases of a traced program, and placements of its ranks that suit them (guide: Phases and placements).
    #[command(after_help = EXIT_CODES)]
    Phases(Box<Phases>),
    /// Find ranks that represent all others, record what they receive, replay each alone on another machine, and predict the whole
    /// program from these replays (guide: Representative ranks).
    #[command(after_help = EXIT_CODES)]
    Represent(Box<Represent>),
    /// Put runs of a program on growing numbers of nodes side by side: MPI calls, CPI, FLOPS, host costs (guide: Scaling).
    #[command(after_help = EXIT_CODES)]
    Scaling(Scaling),
    /// Fit functions of the number of ranks and the problem size to several runs of a program: times, instructions, calls, bytes; write the
    /// data for Extra-P (guide: Models of ranks and problem size).
    #[command(after_help = EXIT_CODES)]
    Model(Model),
    /// Fit a cluster's network to measurements: NetPIPE's output, or a trace of a ping-pong.
    #[command(after_help = EXIT_CODES)]
    Calibrate(Calibrate),
    /// Trace an MPI program on this machine, without guests (guide: Traces from real machines).
    #[command(after_help = EXIT_CODES)]
    Trace(Trace),
    /// Show where the time of OpenMP threads goes, in a run in guests or on this machine (guide: OpenMP).
    #[command(after_help = EXIT_CODES)]
    Openmp(Openmp),
    /// Count cycles, instructions, memory stalls and floating-point operations of a program on this machine, by rank, or show counters that
    /// other tools wrote (guide: Hardware counters).
    #[command(after_help = EXIT_CODES)]
    Counters(Counters),
    /// Describe this machine as a node for studies, or show the nodes that are built in (guide: Descriptions of nodes).
    #[command(after_help = EXIT_CODES)]
    Node(Node),
    /// List the models that windows and caches of a study can name, or show one: parameters, events, place in the study (guide: Own models).
    #[command(after_help = EXIT_CODES)]
    Models(Models),
    /// Report every problem of a study and of this host, each with its fix, without booting anything.
    Check(Check),
    /// Build, list, show or remove guest images.
    Image(Image),
    /// List, show or remove snapshots of running clusters (guide: KVM and snapshots).
    Snapshot(Snapshot),
    /// Boot a study's cluster with a shell in place of the job and connect this terminal to a node's console.
    Console(Console),
    /// Write a trace in the format of another tool (guide: Exports).
    Export(Export),
    /// Convert a trace of another tool: an OTF2 archive or a SimGrid time-independent trace.
    Import(Import),
}

/// `nodescope run`.
#[derive(Clone, Debug, clap::Args)]
pub struct Run {
    /// The study file (guide: The study file).
    pub study: PathBuf,
    /// Folder of the results, in place of the study's.
    #[arg(long, value_name = "DIR")]
    pub results: Option<PathBuf>,
    /// Host threads on which nodes run, in place of the study's; never affects the result.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub host_threads: Option<u64>,
    /// Engine that executes the guests between windows, in place of the study's engine and fast-forward.
    #[arg(long, value_enum)]
    pub engine: Option<EngineChoice>,
    /// Interpret guest code in place of translating it: slower, with the same results.
    #[arg(long)]
    pub interpret: bool,
    /// Replace results that are already there: files that the earlier run wrote, and no others. Replace a snapshot of the same name, too.
    #[arg(long)]
    pub force: bool,
    /// Show a node's console on standard error as it is written. Without NODE: node 0, which has the job's output.
    #[arg(long, value_name = "NODE", num_args = 0..=1, require_equals = true, default_missing_value = "0")]
    pub follow: Option<u32>,
    /// Write host.json among the results: the host's time and memory for each phase of the run (guide: host.json). On
    /// the portable engine, no other file differs from run to run.
    #[arg(long)]
    pub host_times: bool,
    /// Take a snapshot of the whole cluster at a moment. The moment is boot (the first node has booted), job (the job starts), a virtual
    /// time such as 2.5s, mpi:MPI_Barrier (rank 0 has returned from its first), mpi:MPI_Barrier#3@1 (the third of rank 1), mark:NAME or
    /// mark:NAME#2 (a process puts this marker). A snapshot of a lone node at boot can continue as more nodes, or with another job. A
    /// moment within a window is put off to the window's end.
    #[arg(long, value_name = "MOMENT")]
    pub snapshot_at: Option<SnapshotAt>,
    /// Take a snapshot of the whole cluster each time that so much of the host's time has passed, such as 10min. The new snapshot takes the
    /// place of the one before, so that a run that is lost goes on from the last one.
    #[arg(long, value_name = "TIME", conflicts_with = "snapshot_at")]
    pub snapshot_every: Option<humantime::Duration>,
    /// The snapshot's name, or a path that ends in .nss; by default the study's name.
    #[arg(long, value_name = "NAME|FILE")]
    pub snapshot_name: Option<String>,
    /// End the run after the snapshot.
    #[arg(long, requires = "snapshot_at")]
    pub stop_after_snapshot: bool,
    /// Continue from a snapshot, by its name or its path, in place of booting.
    #[arg(long, value_name = "NAME|FILE")]
    pub from: Option<String>,
    /// Run the nodes in so many further processes (workers), each with its own host threads; never affects the result. The workers start on
    /// this host; with --listen, they are started elsewhere and connect (guide: Several hosts and Slurm).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub workers: Option<u32>,
    /// Wait at this address for the workers, such as tcp://0.0.0.0:5555; each is a nodescope worker, on any host.
    #[arg(long, value_name = "ADDRESS", requires = "workers")]
    pub listen: Option<String>,
    /// File with the key by which master and workers authenticate each other; by default the key is in the environment variable
    /// NODESCOPE_KEY.
    #[arg(long, value_name = "FILE", requires = "listen")]
    pub key_file: Option<PathBuf>,
    /// Longest time to wait for the workers, such as 2min.
    #[arg(long, value_name = "TIME", requires = "workers", default_value = "60s")]
    pub worker_wait: humantime::Duration,
    /// Way of messages between the master and its workers.
    #[arg(long, value_enum, requires = "workers", default_value_t = TransportChoice::Auto)]
    pub transport: TransportChoice,
    /// The MPI library by which the processes communicate that mpirun or srun has started: auto, a library of the standard ABI
    /// (libmpi_abi.so.1), or the site's mpicc, which builds a shim for its library. With off, each process runs the study by itself.
    #[arg(long, value_name = "auto|off|FILE", default_value = "auto")]
    pub mpi: MpiChoice,
    /// Print, and write as processes.json and processes.svg among the results, how long each process of the run ran, waited for others, and
    /// exchanged messages.
    #[arg(long)]
    pub stats: bool,
    /// How the process that runs the guests holds back what a fault of this program could open to them: files, system calls, privileges
    /// (guide: Sandbox).
    #[arg(long, value_enum, default_value_t = SandboxMode::Try)]
    pub sandbox: SandboxMode,
    /// Open no window, and let clocks go by what code cost in the windows of these results of the same study (guide: What faster code gains).
    #[arg(long, value_name = "RESULTS", conflicts_with = "workers")]
    pub costs_of: Option<PathBuf>,
    #[command(flatten)]
    pub code: CodeChanges,
}

/// `nodescope worker`.
#[derive(Debug, clap::Args)]
pub struct Worker {
    /// The address at which the master listens, such as tcp://node1:5555; with -, the first line of standard input is the address.
    #[arg(long, value_name = "ADDRESS", required_unless_present = "new_key")]
    pub connect: Option<String>,
    /// File with the key by which master and workers authenticate each other; by default the key is in the environment variable
    /// NODESCOPE_KEY.
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Host threads on which this worker's nodes run, in place of the master's number.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub host_threads: Option<u64>,
    /// Longest time to wait for the master's answer, such as 2min.
    #[arg(long, value_name = "TIME", default_value = "60s")]
    pub wait: humantime::Duration,
    /// Print a new key, for a file that only the user can read, and end.
    #[arg(long, exclusive = true)]
    pub new_key: bool,
}

/// `nodescope slurm`.
#[derive(Debug, clap::Args)]
pub struct Slurm {
    /// Command.
    #[command(subcommand)]
    pub command: SlurmCommand,
}

/// Subcommands of `nodescope slurm`.
#[derive(Debug, Subcommand)]
pub enum SlurmCommand {
    /// Allocate hosts, run the study with a process on each, and release the hosts.
    #[command(after_help = EXIT_CODES)]
    Run(SlurmRun),
}

/// `nodescope slurm run`.
#[derive(Debug, clap::Args)]
pub struct SlurmRun {
    /// Options of nodescope run.
    #[command(flatten)]
    pub run: Run,
    /// Number of hosts.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub hosts: u32,
    /// An option for salloc, such as --slurm-option=--partition=debug; may be given several times.
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    pub slurm_option: Vec<String>,
    /// The port at which the master listens; by default one that is computed from the job's number.
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
}

/// Way of messages between a master and its workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TransportChoice {
    /// Memory between processes of one host, and sockets between hosts.
    Auto,
    /// Memory between all processes, or do not run.
    Memory,
    /// Sockets between all processes, by way of the master.
    Sockets,
}

/// The MPI library of a run that a launcher has started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MpiChoice {
    /// One that fits the launcher.
    Auto,
    /// None.
    Off,
    /// A library of the standard ABI, or a compiler of a library.
    File(PathBuf),
}

impl FromStr for MpiChoice {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "auto" => MpiChoice::Auto,
            "off" => MpiChoice::Off,
            file => MpiChoice::File(file.into()),
        })
    }
}

impl fmt::Display for MpiChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MpiChoice::Auto => f.write_str("auto"),
            MpiChoice::Off => f.write_str("off"),
            MpiChoice::File(file) => file.display().fmt(f),
        }
    }
}

/// How a process is restricted before the first instruction of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum SandboxMode {
    /// Hold back all, or do not run.
    Require,
    /// Hold back what this host can, and say what it cannot.
    Try,
    /// Hold back nothing.
    Off,
}

/// An engine to run guests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EngineChoice {
    /// The portable engine: the same bytes in each run.
    Soft,
    /// KVM: as fast as the host; windows run on the portable engine (guide: The KVM engine).
    Kvm,
}

/// `nodescope report`.
#[derive(Debug, clap::Args)]
pub struct Report {
    /// Folder of the results.
    pub results: PathBuf,
    /// Print the whole report, not the short one of a screen (guide: Reading the report).
    #[arg(long, conflicts_with_all = ["section", "json", "html"])]
    pub full: bool,
    /// Print one section of the whole report.
    #[arg(
        long,
        value_name = "NAME",
        conflicts_with_all = ["json", "html"],
        value_parser = PossibleValuesParser::new(Section::ALL.map(Section::name)).try_map(|name| name.parse::<Section>())
    )]
    pub section: Option<Section>,
    /// Print the report as JSON in place of text (guide: report.json).
    #[arg(long, conflicts_with = "html")]
    pub json: bool,
    /// Print the report as an HTML page in place of text.
    #[arg(long)]
    pub html: bool,
    /// Folder with the program's source files: the page shows their lines beside the machine code.
    #[arg(long, value_name = "FOLDER", requires = "html")]
    pub source: Option<PathBuf>,
    /// A core to model, by a name that LLVM knows, in place of the study's; several are shown side by side.
    #[arg(long, value_name = "NAME", conflicts_with = "core_cpi")]
    pub core: Vec<String>,
    /// A measured CPI of the core alone (CPI_core) that replaces the study's.
    #[arg(long, value_name = "CPI", requires = "cpi_source")]
    pub core_cpi: Option<f64>,
    /// Source of the measured CPI, such as "perf stat on a Xeon E5-2690".
    #[arg(long, value_name = "TEXT", requires = "core_cpi")]
    pub cpi_source: Option<String>,
}

/// `nodescope verdict`.
#[derive(Debug, clap::Args)]
pub struct Verdict {
    /// Folder of the results, or the file of the trace.
    pub results: PathBuf,
    /// The MPI program, by its number in the report, in a trace of several.
    #[arg(long, value_name = "N")]
    pub program: Option<usize>,
    /// Print the verdict as JSON in place of text.
    #[arg(long)]
    pub json: bool,
    /// End with exit code 1 if the removal of a cause saves so much of the time, such as "5%".
    #[arg(long, value_name = "SHARE")]
    pub fail_if_gain: Option<Share>,
}

/// A share of something: a number with a percent sign.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share(pub f64);

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Share, String> {
        let number = text.trim().strip_suffix('%').map(str::trim_end);
        let percent = number.and_then(|number| number.parse::<f64>().ok());
        match percent.filter(|percent| (0.0..=100.0).contains(percent)) {
            Some(percent) => Ok(Share(percent / 100.0)),
            None => Err("write a share from 0% to 100%, such as 5%".into()),
        }
    }
}

/// `nodescope compare`.
#[derive(Debug, clap::Args)]
pub struct Compare {
    /// Folder of the results that are the baseline.
    pub a: PathBuf,
    /// Folder of the other results.
    pub b: PathBuf,
    /// Print the comparison as JSON in place of text.
    #[arg(long)]
    pub json: bool,
    /// Print the comparison as one self-contained HTML page, with the verdicts, CPI stacks and timelines of both runs.
    #[arg(long, conflicts_with = "json")]
    pub html: bool,
}

/// `nodescope profile`.
#[derive(Debug, clap::Args)]
pub struct Profile {
    /// Folder of the results.
    pub results: PathBuf,
    /// The window; by default the only one that has a profile.
    #[arg(long, value_name = "NAME")]
    pub window: Option<String>,
    /// The format.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = ProfileFormat::Text)]
    pub format: ProfileFormat,
    /// The file to write, in place of standard output; or a folder, which gets a file for each window.
    #[arg(short, long, value_name = "FILE|DIR")]
    pub output: Option<PathBuf>,
    /// Replace files that are already there.
    #[arg(long, requires = "output")]
    pub force: bool,
}

/// Formats of `nodescope profile`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProfileFormat {
    /// Functions, source lines, MPI time, roofline and machine code, as in the report.
    Text,
    /// The figures of the text, exact (guide: report.json).
    Json,
    /// A flame graph for a browser.
    Svg,
    /// Folded stacks: flamegraph.pl, speedscope.
    Folded,
    /// A gzipped protocol buffer: go tool pprof, speedscope.
    Pprof,
    /// Text as perf script prints it, with a call path's cycles as the period of its event.
    PerfScript,
}

/// `nodescope calibrate`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("measured").required(true).multiple(true).args(["network", "memory"]))]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Calibrate {
    /// Another way to a cluster file.
    #[command(subcommand)]
    pub way: Option<crate::calibrate::args::Way>,
    /// Measurement between two nodes: NetPIPE's output file (bytes, Mbit/s, seconds), a trace, or the folder of a traced run
    /// (guide: Calibration).
    #[arg(long, value_name = "FILE|DIR")]
    pub network: Option<PathBuf>,
    /// Traced run of measure.c between three nodes or more: what messages cost that meet others.
    #[arg(long, value_name = "FILE|DIR", requires = "network")]
    pub exchanges: Option<PathBuf>,
    /// Measurement within a node, in one of the forms of --network.
    #[arg(long, value_name = "FILE|DIR")]
    pub memory: Option<PathBuf>,
    /// The cluster file to write, for nodescope predict --cluster (guide: The cluster file).
    #[arg(short, long, value_name = "FILE", required = true)]
    pub output: Option<PathBuf>,
    /// The cluster's name; by default the output file's name without its extension.
    #[arg(long)]
    pub name: Option<String>,
    /// Cores of each node.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub cores: u32,
    /// The largest eager message between nodes, such as "64 KiB", in place of the limit that the measurements show.
    #[arg(long, value_name = "SIZE", requires = "network")]
    pub eager_limit: Option<Bytes>,
    /// The largest eager message within a node.
    #[arg(long, value_name = "SIZE", requires = "memory")]
    pub memory_eager_limit: Option<Bytes>,
    /// Replace a file that is already there.
    #[arg(long)]
    pub force: bool,
}

/// `nodescope trace`.
#[derive(Debug, clap::Args)]
pub struct Trace {
    /// Folder of the results; the trace in it is trace.nst. For a program on several machines: a folder that all of them share.
    #[arg(short, long, value_name = "DIR")]
    pub output: PathBuf,
    /// MPI library of the program; by default nodescope asks the launcher for its version.
    #[arg(long, value_enum)]
    pub mpi: Option<MpiName>,
    /// Replace a trace that is already there.
    #[arg(long)]
    pub force: bool,
    /// Keep the processes' logs from which the trace is made.
    #[arg(long)]
    pub keep_logs: bool,
    /// The command, after "--": a launcher with its program, such as mpirun -np 4 ./program.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<std::ffi::OsString>,
}

/// `nodescope openmp`.
#[derive(Debug, clap::Args)]
pub struct Openmp {
    /// Folders of results, or records of the OpenMP tracer (.openmp); several are processes of one program.
    #[arg(value_name = "RESULTS|RECORD", required_unless_present = "command")]
    pub results: Vec<PathBuf>,
    /// Print all figures as JSON in place of text.
    #[arg(long, conflicts_with_all = ["html", "protocol"])]
    pub json: bool,
    /// Print an HTML page in place of text.
    #[arg(long, conflicts_with = "protocol")]
    pub html: bool,
    /// Print the published protocol of each interval in place of text: one characteristic a line, times in milliseconds.
    #[arg(long)]
    pub protocol: bool,
    /// Processors of each process, in place of the most threads that were active at once.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub processors: Option<u32>,
    /// Folder with the program and its libraries, for source lines of a program that ran elsewhere, such as in a guest.
    #[arg(long, value_name = "DIR")]
    pub files: Vec<PathBuf>,
    /// Add an interval: the parallel regions that a function or some source lines call, or, with a command, what lies between two MPI
    /// calls of each rank, such as mpi=MPI_Barrier:1..MPI_Barrier:2.
    #[arg(long, value_name = "function=NAME|lines=FILE:FROM-TO|mpi=CALL..CALL")]
    pub interval: Vec<crate::openmp::Interval>,
    /// MPI library of the command, for intervals between MPI calls; by default nodescope asks the launcher for its version.
    #[arg(long, value_enum, requires = "command")]
    pub mpi: Option<MpiName>,
    /// Folder to record into: the command runs on this machine with the OpenMP tracer in its processes.
    #[arg(short, long, value_name = "DIR", requires = "command")]
    pub output: Option<PathBuf>,
    /// Replace records that are already there.
    #[arg(long, requires = "command")]
    pub force: bool,
    /// The command, after "--": a program, or a launcher with one, such as mpirun -n 4 ./program.
    #[arg(
        last = true,
        requires = "output",
        conflicts_with = "results",
        value_name = "COMMAND"
    )]
    pub command: Vec<std::ffi::OsString>,
}

/// `nodescope counters`.
#[derive(Debug, clap::Args)]
pub struct Counters {
    /// Write the counts as JSON, for [study.core] counters of a study: a file; with --each, a folder that gets a file for each rank.
    #[arg(long, value_name = "FILE|DIR")]
    pub json: Option<PathBuf>,
    /// Count the command as one rank: mpirun -n 4 nodescope counters --each --json DIR -- ./program also counts ranks on other machines.
    #[arg(long, requires = "json")]
    pub each: bool,
    /// Replace a file that is already there.
    #[arg(long)]
    pub force: bool,
    /// Show counters from files in place of counting: files of perf stat -x, or -j, likwid-perfctr -O, papi_hl_output, vtune -report
    /// summary -format csv, or --json. Several files or a folder: one file a rank.
    #[arg(long, value_name = "FILE|DIR", num_args = 1.., conflicts_with_all = ["each", "command"])]
    pub read: Vec<PathBuf>,
    /// The command, after "--": a program, or a launcher with one, such as mpirun -n 4 ./program.
    #[arg(last = true, required_unless_present = "read", value_name = "COMMAND")]
    pub command: Vec<std::ffi::OsString>,
}

/// MPI libraries by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MpiName {
    /// Open MPI.
    Openmpi,
    /// MPICH, and other libraries with its ABI.
    Mpich,
    /// The standard ABI of MPI 5, libmpi_abi.so.1 of any MPI.
    Abi,
}

/// `nodescope node`.
#[derive(Debug, clap::Args)]
pub struct Node {
    /// Command.
    #[command(subcommand)]
    pub command: NodeCommand,
}

/// `nodescope models`.
#[derive(Debug, clap::Args)]
pub struct Models {
    /// Model to show, in place of a list of all.
    pub name: Option<String>,
    /// Shared library whose models are shown as well; may be given several times.
    #[arg(long, value_name = "FILE")]
    pub plugin: Vec<PathBuf>,
    /// Show a stream of events to the model, and tell whether its answers are possible and repeatable. FILE is a recording of the model
    /// "record"; without FILE, the stream is a made-up one.
    #[arg(long, value_name = "FILE", requires = "name", num_args = 0..=1)]
    pub check: Option<Option<PathBuf>>,
    /// Print the reference page of all models.
    #[arg(long, conflicts_with = "name")]
    pub markdown: bool,
}

/// Subcommands of `nodescope node`.
#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// Measure this machine, and write a description of it that a study can name as node.model: clock, core, caches, memory. It takes up to
    /// two minutes and 1 GiB of memory, on a machine that does nothing else.
    Measure(NodeMeasure),
    /// List the nodes that are built in: name for node.model, processor, and whether the description was compared with a machine.
    List,
    /// Print the description of a node that is built in, to copy from.
    Show {
        /// Name of the node, as nodescope node list prints it.
        #[arg(value_parser = PossibleValuesParser::new(NodeDescription::all().map(|node| node.name)))]
        name: String,
    },
}

/// `nodescope node measure`.
#[derive(Debug, clap::Args)]
pub struct NodeMeasure {
    /// The file to write, in place of standard output.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Replace a file that is already there.
    #[arg(long, requires = "output")]
    pub force: bool,
}

/// `nodescope check`.
#[derive(Debug, clap::Args)]
pub struct Check {
    /// The study file.
    pub study: PathBuf,
}

/// `nodescope image`.
#[derive(Debug, clap::Args)]
pub struct Image {
    /// Command.
    #[command(subcommand)]
    pub command: ImageCommand,
}

/// Subcommands of `nodescope image`.
#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// Build the image, unless it is in the cache.
    Build {
        /// A study whose packages are added.
        study: Option<PathBuf>,
        /// Build the image although it is in the cache, and replace the cached one.
        #[arg(long)]
        force: bool,
    },
    /// List the images in the cache.
    List,
    /// Show where the image is and what is in it.
    Show {
        /// A study whose packages are added.
        study: Option<PathBuf>,
    },
    /// Remove images from the cache, and print the disk space of each. An image that a run uses or a process builds stays.
    Remove(ImageRemove),
}

/// `nodescope image remove`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("which").required(true).args(["image", "outdated", "all"]))]
pub struct ImageRemove {
    /// The image: its key as nodescope image list prints it, at least the first four characters; or a study that uses it.
    #[arg(value_name = "KEY|STUDY")]
    pub image: Option<String>,
    /// Remove the images that this nodescope no longer makes: those of earlier versions, and damaged ones.
    #[arg(long)]
    pub outdated: bool,
    /// Remove all images.
    #[arg(long)]
    pub all: bool,
}

/// `nodescope snapshot`.
#[derive(Debug, clap::Args)]
pub struct Snapshot {
    /// Command.
    #[command(subcommand)]
    pub command: SnapshotCommand,
}

/// Subcommands of `nodescope snapshot`.
#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// List the snapshots: name, study, virtual time, nodes, size, date.
    List,
    /// Show what a snapshot is of, and all its sections.
    Show {
        /// Name or path of the snapshot.
        #[arg(value_name = "NAME|FILE")]
        snapshot: String,
    },
    /// Remove a snapshot.
    Remove {
        /// Name or path of the snapshot.
        #[arg(value_name = "NAME|FILE")]
        snapshot: String,
    },
}

/// `nodescope console`.
#[derive(Debug, clap::Args)]
pub struct Console {
    /// The study file.
    pub study: PathBuf,
    /// The node whose console is connected, from 0.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub node: u32,
    /// How this process holds back what a fault could open to the guests: see nodescope run (guide: Sandbox).
    #[arg(long, value_enum, default_value_t = SandboxMode::Try)]
    pub sandbox: SandboxMode,
}

/// `nodescope export`.
#[derive(Debug, clap::Args)]
pub struct Export {
    /// Folder of the results, or a trace.
    pub results: PathBuf,
    /// The format, or several with commas between them.
    #[arg(
        long,
        value_name = "FORMAT",
        value_enum,
        value_delimiter = ',',
        required = true
    )]
    pub format: Vec<ExportFormat>,
    /// Folder to write to; with several formats, a folder in it for each.
    #[arg(short, long, value_name = "DIR")]
    pub output: PathBuf,
    /// The MPI program, from 0, where the trace has several and the format takes one (simgrid, dimemas). The other formats keep all
    /// programs apart.
    #[arg(long, visible_alias = "job", value_name = "N")]
    pub program: Option<usize>,
    /// Measure of the computation between MPI calls, in a format that replays it (simgrid).
    #[arg(long, value_enum, default_value_t = Bursts::Time)]
    pub bursts: Bursts,
    /// Replace files that are already there.
    #[arg(long)]
    pub force: bool,
}

/// Formats of `nodescope export`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// Open Trace Format 2: Vampir, Scalasca, otf2-print.
    Otf2,
    /// Perfetto's native format: ui.perfetto.dev; for traces of any size.
    Perfetto,
    /// Chrome's JSON: ui.perfetto.dev, chrome://tracing; for small traces.
    Chrome,
    /// SimGrid's time-independent trace and a platform: smpirun -replay.
    Simgrid,
    /// Paraver's .prv, .pcf and .row.
    Paraver,
    /// Dimemas' .dim.
    Dimemas,
    /// GOAL schedule: txt2bin and LogGOPSim.
    Goal,
    /// A table, one line an event.
    Csv,
}

/// Measures of the computation between MPI calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Bursts {
    /// Virtual time of the computation.
    Time,
    /// Instructions of the computation, at the job's mean speed.
    Instructions,
}

/// `nodescope import`.
#[derive(Debug, clap::Args)]
pub struct Import {
    /// The trace, or a folder with one: an OTF2 archive (its .otf2 file), a SimGrid time-independent trace (the file for smpirun -replay),
    /// a liballprof trace (the file of a rank, such as pmpi-trace-rank-0.txt) or a GOAL schedule. Its content tells the format.
    pub input: PathBuf,
    /// The trace to write.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Replace a trace that is already there.
    #[arg(long)]
    pub force: bool,
}
