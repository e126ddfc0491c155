//! Results of one run, read from `report.json` (vmm/report/SCHEMA.md) and `host.json` (vmm/report/HOST.md).

use serde::{Deserialize, Serialize};

/// The supported version of `report.json`.
const REPORT_VERSION: u64 = 4;
/// The supported version of `host.json`.
const HOST_VERSION: u32 = 1;

/// Results of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Name of the study.
    pub study: String,
    /// Number of nodes of the cluster.
    pub nodes: u32,
    /// Number of MPI ranks that called MPI.
    pub ranks: u32,
    /// MPI calls of the whole run.
    pub mpi: Mpi,
    /// The requested or first complete window; `None` if there is no complete window, or if it has no measurements of ranks.
    pub window: Option<Window>,
    /// Host times of the run; `None` if the run had no `--host-times`.
    pub host: Option<Host>,
    /// Time between the same two calls of each run; `None` without a trace, or in an older JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub section: Option<Section>,
}

/// Time between two MPI calls of each rank, from the trace: equal work on any number of nodes if the problem is the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Section {
    /// The calls in words, such as `MPI_Barrier:2 to MPI_Barrier:3`.
    pub calls: String,
    /// Time from when the first rank has passed the first call until the last rank has passed the second, picoseconds.
    pub time_ps: u64,
    /// Part of this time in which a window was open, picoseconds. Clocks in windows also count modelled stalls.
    pub window_ps: u64,
}

impl Section {
    /// Returns the part of the time in which a window was open, from 0 to 1.
    pub fn in_windows(&self) -> f64 {
        self.window_ps as f64 / self.time_ps.max(1) as f64
    }
}

/// MPI calls of a whole run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mpi {
    /// First entry into MPI, picoseconds of virtual time.
    pub from_ps: u64,
    /// Last exit from MPI, picoseconds of virtual time.
    pub to_ps: u64,
    /// Calls by function, longest total first.
    pub functions: Vec<Function>,
}

/// Calls of one MPI function by all ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Function {
    /// Name, such as `MPI_Send`.
    pub function: String,
    /// Number of calls.
    pub calls: u64,
    /// Virtual time within the calls, picoseconds, summed over all ranks.
    pub time_ps: u64,
}

/// Measurements of a window, summed over all ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// Name of the window.
    pub name: String,
    /// Virtual time from the window's trigger to its end, picoseconds, warm-up included.
    pub length_ps: u64,
    /// Virtual time that was measured, without warm-up, picoseconds; `None` in an older JSON.
    #[serde(default)]
    pub measured_ps: Option<u64>,
    /// Event that opened the window, in words; `None` in an older JSON.
    #[serde(default)]
    pub trigger: Option<String>,
    /// Instructions outside MPI calls: the denominator of CPI.
    pub instructions: u64,
    /// Instructions within MPI calls.
    pub instructions_in_mpi: u64,
    /// Data reads, inside and outside MPI calls; `None` in an older JSON.
    #[serde(default)]
    pub loads: Option<u64>,
    /// Data writes, inside and outside MPI calls; `None` in an older JSON.
    #[serde(default)]
    pub stores: Option<u64>,
    /// Equation (1): the sum of the terms, cycles per instruction outside MPI.
    pub cpi: f64,
    /// Addends of equation (1), with those of equations (2) and (4) as separate terms.
    pub terms: Vec<Term>,
    /// Source of CPI_core, such as a core model or a measurement.
    pub core: String,
    /// Floating-point operations.
    pub flops: Flops,
}

/// Addend of CPI.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Term {
    /// Name as in `report.json`: `core`, `L1`, `memory_local`, `mpi`, …
    pub term: String,
    /// Cycles in units of 1/65536 cycle.
    pub cycles_65536: u128,
    /// Cycles per instruction outside MPI.
    pub cpi: f64,
}

/// Floating-point operations of a window. A value is `None` where the report has no value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Flops {
    /// Number of operations, inside and outside MPI calls; `None` in an older JSON.
    #[serde(default)]
    pub total: Option<u64>,
    /// Floating-point operations per instruction outside MPI calls.
    pub alpha: Option<f64>,
    /// Equation (6), FLOP/s of one core.
    pub published_per_second: Option<f64>,
    /// Counted operations over the modelled time in which the core was busy, FLOP/s of one core.
    pub direct_per_second: Option<f64>,
    /// Counted operations of all ranks over the window's virtual time, FLOP/s of the cluster.
    pub window_per_second: Option<f64>,
}

/// The content of `host.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Version of the format, which is 1.
    pub version: u32,
    /// Name of the processor.
    pub processor: String,
    /// Number of host processors that nodescope may use.
    pub cores: u32,
    /// Number of host threads that ran nodes.
    pub threads: u32,
    /// Largest resident memory of the nodescope process, bytes. A page that several nodes share counts once for each of them.
    pub peak_memory_bytes: u64,
    /// Largest memory at the end of a phase, bytes, in which a page that several nodes share counts once; `None` if it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Host times of the phases, in the order in which they began.
    pub phases: Vec<PhaseCost>,
}

/// Host times of one phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseCost {
    /// `boot`, `restore`, `job`, `warm-up`, `window`, `power-off`.
    pub phase: String,
    /// Name of the window that was open; `None` outside windows.
    pub window: Option<String>,
    /// Number of nodes that ran.
    pub nodes: u32,
    /// Instructions that all nodes executed in the phase.
    pub instructions: u64,
    /// Virtual time that passed in the phase, picoseconds.
    pub virtual_ps: u64,
    /// Elapsed time of the host's clock, seconds.
    pub wall_seconds: f64,
    /// Processor time of all host threads, seconds.
    pub cpu_seconds: f64,
    /// Memory at the end of the phase, as in [`Host::memory_bytes`]; `None` if it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

/// Reason for which a run's files give no point.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PointError {
    /// The text is not JSON of the expected form.
    #[error("{file} is damaged or of another form: {why}")]
    Damaged {
        /// Name of the file.
        file: &'static str,
        /// The parser's message.
        why: String,
    },
    /// The file has another version.
    #[error(
        "{file} has version {found}, and this program reads version {read}; run the study again"
    )]
    Version {
        /// Name of the file.
        file: &'static str,
        /// The file's version.
        found: u64,
        /// The version that this program reads.
        read: u64,
    },
    /// The run traced no MPI calls.
    #[error(
        "report.json holds no MPI calls: set job.trace = true in the study, and run a program that calls MPI"
    )]
    NoCalls,
    /// The run had several MPI programs, of which none was requested, or it lacks the requested program.
    #[error("report.json has several MPI programs, or not the one that --program names; choose one by --program N: {}", .0.join("; "))]
    Program(Vec<String>),
    /// Another MPI program ran in the window, so that the window's figures are not those of one program.
    #[error(
        "report.json: window \"{window}\" has code of MPI program {other}, too; measure a window in which program {program} alone runs, or give --window the name of one"
    )]
    Shared {
        /// Name of the window.
        window: String,
        /// Number of the requested program.
        program: usize,
        /// Number of the other program.
        other: usize,
    },
    /// The terms do not add up to the window's cycles.
    #[error(
        "report.json: the terms of window \"{window}\" add up to {sum}/65536 cycles, not to its {cycles}; run the study again"
    )]
    Sum {
        /// Name of the window.
        window: String,
        /// Sum of the terms.
        sum: u128,
        /// Cycles that the report states for the window, in 1/65536.
        cycles: u128,
    },
    /// The report has no complete window of the requested name.
    #[error(
        "report.json has no complete window \"{0}\"; give --window the name of one that the study measured"
    )]
    NoWindow(String),
}

#[derive(Deserialize)]
struct Version {
    version: u64,
}

#[derive(Deserialize)]
struct Report {
    study: Study,
    core: serde_json::Value,
    windows: Vec<ReportWindow>,
    mpi: Option<ReportMpi>,
    network: Vec<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct Study {
    name: String,
}

#[derive(Deserialize)]
struct ReportMpi {
    programs: Vec<ReportProgram>,
}

#[derive(Deserialize)]
struct ReportProgram {
    name: String,
    world_size: u32,
    from_ps: u64,
    to_ps: u64,
    ranks: Vec<serde::de::IgnoredAny>,
    functions: Vec<Function>,
}

#[derive(Deserialize)]
struct ReportWindow {
    name: String,
    complete: bool,
    #[serde(default)]
    trigger: Option<String>,
    triggered_ps: u64,
    #[serde(default)]
    measured_from_ps: Option<u64>,
    closed_ps: u64,
    scopes: Vec<Scope>,
}

#[derive(Deserialize)]
struct Scope {
    kind: String,
    instructions: u64,
    instructions_in_mpi: u64,
    cycles_65536: u128,
    cpi: Option<f64>,
    terms: Vec<ReportTerm>,
    flops: Flops,
    #[serde(default)]
    privileges: Vec<Privilege>,
}

#[derive(Deserialize)]
struct Privilege {
    loads: u64,
    stores: u64,
}

#[derive(Deserialize)]
struct ReportTerm {
    term: String,
    cycles_65536: u128,
    cpi: Option<f64>,
}

fn parse<'a, T: Deserialize<'a>>(file: &'static str, text: &'a str) -> Result<T, PointError> {
    let damaged = |error: serde_json::Error| PointError::Damaged {
        file,
        why: error.to_string(),
    };
    serde_json::from_str(text).map_err(damaged)
}

impl Point {
    /// Reads a run's results from the text of its `report.json` and, if present, of its `host.json`. Reads the window of the given
    /// name, or the first complete window; and the MPI program of the given number, or the only one.
    ///
    /// # Errors
    ///
    /// Fails if a text is damaged, of another version, without MPI calls, or inconsistent, or if it lacks the named window or program.
    /// Fails if there are several programs and none is given, or if another program ran in the window.
    pub fn read(
        report: &str,
        host: Option<&str>,
        window: Option<&str>,
        program: Option<usize>,
    ) -> Result<Point, PointError> {
        const FILE: &str = "report.json";
        let Version { version } = parse(FILE, report)?;
        if version != REPORT_VERSION {
            return Err(PointError::Version {
                file: FILE,
                found: version,
                read: REPORT_VERSION,
            });
        }
        let report: Report = parse(FILE, report)?;
        let mut programs = report.mpi.map(|mpi| mpi.programs).unwrap_or_default();
        if programs.iter().all(|program| program.ranks.is_empty()) {
            return Err(PointError::NoCalls);
        }
        let number = match program {
            None if programs.len() == 1 => 0,
            Some(number) if number < programs.len() => number,
            _ => return Err(PointError::Program(listed(&programs))),
        };
        let core = core_source(&report.core);
        let measured =
            |found: &&ReportWindow| found.complete && window.is_none_or(|name| found.name == name);
        let found = report.windows.iter().find(measured);
        if let (None, Some(name)) = (found, window) {
            return Err(PointError::NoWindow(name.to_owned()));
        }
        let others = (programs.iter().enumerate()).filter(|(other, _)| *other != number);
        for (other, program) in others {
            let shared = found.is_some_and(|window| {
                program.from_ps < window.closed_ps && window.triggered_ps < program.to_ps
            });
            if let (true, Some(window)) = (shared, found) {
                return Err(PointError::Shared {
                    window: window.name.clone(),
                    program: number,
                    other,
                });
            }
        }
        let window = found.map(|window| Window::of(window, core)).transpose()?;
        let mpi = programs.swap_remove(number);
        Ok(Point {
            study: report.study.name,
            nodes: count(report.network.len()),
            ranks: count(mpi.ranks.len()),
            mpi: Mpi {
                from_ps: mpi.from_ps,
                to_ps: mpi.to_ps,
                functions: mpi.functions,
            },
            window: window.flatten(),
            host: host.map(Host::read).transpose()?,
            section: None,
        })
    }
}

/// Returns a line for each program of a report.
fn listed(programs: &[ReportProgram]) -> Vec<String> {
    const MOST: usize = 20;
    let lines = programs.iter().enumerate().take(MOST);
    lines
        .map(|(number, program)| {
            format!("{number}: {}, {} ranks", program.name, program.world_size)
        })
        .collect()
}

fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// Returns the source of CPI_core: the field `source` of the first kind of core model that has one, or "unknown".
fn core_source(core: &serde_json::Value) -> String {
    let kinds = core
        .as_object()
        .into_iter()
        .flat_map(|kinds| kinds.values());
    let source = kinds.filter_map(|kind| kind.get("source")?.as_str()).next();
    source.unwrap_or("unknown").to_owned()
}

impl Window {
    fn of(window: &ReportWindow, core: String) -> Result<Option<Window>, PointError> {
        let Some(scope) = window.scopes.iter().find(|scope| scope.kind == "ranks") else {
            return Ok(None);
        };
        let Some(cpi) = scope.cpi else {
            return Ok(None);
        };
        // A damaged file may have any number, so the sum saturates.
        let sum =
            (scope.terms.iter()).fold(0u128, |sum, term| sum.saturating_add(term.cycles_65536));
        if sum != scope.cycles_65536 {
            return Err(PointError::Sum {
                window: window.name.clone(),
                sum,
                cycles: scope.cycles_65536,
            });
        }
        let term = |term: &ReportTerm| Term {
            term: term.term.clone(),
            cycles_65536: term.cycles_65536,
            cpi: term.cpi.unwrap_or(0.0),
        };
        let references = |of: fn(&Privilege) -> u64| {
            let counts = scope.privileges.iter().map(of);
            (!scope.privileges.is_empty()).then(|| counts.fold(0, u64::saturating_add))
        };
        Ok(Some(Window {
            name: window.name.clone(),
            length_ps: window.closed_ps.saturating_sub(window.triggered_ps),
            measured_ps: (window.measured_from_ps)
                .map(|from| window.closed_ps.saturating_sub(from)),
            trigger: window.trigger.clone(),
            loads: references(|of| of.loads),
            stores: references(|of| of.stores),
            instructions: scope.instructions,
            instructions_in_mpi: scope.instructions_in_mpi,
            cpi,
            terms: scope.terms.iter().map(term).collect(),
            core,
            flops: scope.flops.clone(),
        }))
    }

    /// Returns the sum of the CPI terms of a group.
    pub fn group(&self, group: Group) -> f64 {
        let of_group = |term: &&Term| Group::of(&term.term) == group;
        self.terms
            .iter()
            .filter(of_group)
            .map(|term| term.cpi)
            .sum()
    }
}

/// Groups of CPI terms, as in the published figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    /// CPI_core: cycles of the core.
    Core,
    /// CPI_L1: stall cycles of the first-level caches.
    L1,
    /// CPI_L2: stall cycles of the second-level cache.
    L2,
    /// CPI_L3, and levels beyond it.
    L3,
    /// CPI_memory: stall cycles of local and remote memory.
    Memory,
    /// CPI_MPI: cycles within MPI calls.
    Mpi,
    /// Cycles of all other terms.
    Other,
}

impl Group {
    /// Every group, in the order of equation (1).
    pub const ALL: [Group; 7] = [
        Group::Core,
        Group::L1,
        Group::L2,
        Group::L3,
        Group::Memory,
        Group::Mpi,
        Group::Other,
    ];

    /// Returns the group of a term by its name in `report.json`.
    pub fn of(term: &str) -> Group {
        match term {
            "core" => Group::Core,
            "L1" => Group::L1,
            "L2" => Group::L2,
            "mpi" => Group::Mpi,
            _ if term.starts_with("memory") => Group::Memory,
            _ if term.starts_with('L') => Group::L3,
            _ => Group::Other,
        }
    }

    /// Returns the group's name for tables.
    pub fn name(self) -> &'static str {
        match self {
            Group::Core => "core",
            Group::L1 => "L1",
            Group::L2 => "L2",
            Group::L3 => "L3",
            Group::Memory => "memory",
            Group::Mpi => "MPI",
            Group::Other => "other",
        }
    }
}

impl Host {
    /// Reads the content of a `host.json` from its text.
    ///
    /// # Errors
    ///
    /// Fails if the text is damaged or of another version.
    pub fn read(text: &str) -> Result<Host, PointError> {
        const FILE: &str = "host.json";
        let Version { version } = parse(FILE, text)?;
        if version != u64::from(HOST_VERSION) {
            return Err(PointError::Version {
                file: FILE,
                found: version,
                read: u64::from(HOST_VERSION),
            });
        }
        parse(FILE, text)
    }
}

/// Sums over the phases of one kind in `host.json`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Nodes times virtual time, seconds.
    pub node_seconds: f64,
    /// Virtual time, seconds.
    pub virtual_seconds: f64,
    /// Instructions of all nodes.
    pub instructions: f64,
    /// Elapsed time of the host's clock, seconds.
    pub wall_seconds: f64,
    /// Processor time of the host's threads, seconds.
    pub cpu_seconds: f64,
}

impl Host {
    /// Returns true if all nodes were made of one that had booted (`cluster.boot = "once"`).
    pub fn booted_once(&self) -> bool {
        self.phases.iter().any(|phase| phase.phase == "restore")
    }

    /// Returns the largest memory of the run, bytes. Pages that nodes share count once if the run measured that, and else for each node.
    pub fn memory(&self) -> u64 {
        self.memory_bytes.unwrap_or(self.peak_memory_bytes)
    }

    /// Returns the memory when all nodes had just been made of one, bytes; `None` if each node booted, or if it was not measured.
    pub(crate) fn shared_memory(&self) -> Option<u64> {
        let restore = self.phases.iter().find(|phase| phase.phase == "restore")?;
        restore.memory_bytes
    }

    /// Returns the processor time of the boot of the node from which all others were made, seconds; `None` if there was no such boot.
    pub(crate) fn single_boot(&self) -> Option<f64> {
        let restore = (self.phases.iter()).position(|phase| phase.phase == "restore")?;
        let boots = self.phases[..restore].iter();
        let mut boots = boots.filter(|phase| phase.phase == "boot");
        Some(boots.next()?.cpu_seconds)
    }

    /// Returns the processor time of the boot of a node and of its power-off, seconds. A boot of one node for all is left out.
    pub(crate) fn ends_of_node(&self) -> f64 {
        let restore = (self.phases.iter()).position(|phase| phase.phase == "restore");
        let own = self.phases.iter().skip(restore.unwrap_or(0));
        let ends = own.filter(|p| matches!(p.phase.as_str(), "boot" | "restore" | "power-off"));
        ends.map(|phase| phase.cpu_seconds / f64::from(phase.nodes.max(1)))
            .sum()
    }

    /// Sums the phases of a kind: `boot`, `job` (MPI traced, no models), `window` (with caches, warm-up included), or another name.
    pub fn cost(&self, kind: &str) -> Cost {
        // Clones of a booted node do not boot: their phases take names and start the job, and are not counted as boot.
        let restored = (self.phases.iter()).position(|phase| phase.phase == "restore");
        let boots = restored.unwrap_or(self.phases.len());
        let of_kind = |(number, phase): &(usize, &PhaseCost)| match phase.phase.as_str() {
            "warm-up" | "window" => kind == "window",
            "boot" => kind == "boot" && *number < boots,
            name => name == kind,
        };
        let phases = self.phases.iter().enumerate().filter(of_kind);
        phases.fold(Cost::default(), |sum, (_, phase)| {
            let seconds = phase.virtual_ps as f64 / 1e12;
            Cost {
                node_seconds: sum.node_seconds + f64::from(phase.nodes) * seconds,
                virtual_seconds: sum.virtual_seconds + seconds,
                instructions: sum.instructions + phase.instructions as f64,
                wall_seconds: sum.wall_seconds + phase.wall_seconds,
                cpu_seconds: sum.cpu_seconds + phase.cpu_seconds,
            }
        })
    }
}

impl Point {
    /// Returns the speed of the phases of a kind, in instructions per second of one host core; `None` without host times or instructions.
    pub fn speed(&self, kind: &str) -> Option<f64> {
        let cost = self.host.as_ref()?.cost(kind);
        (cost.cpu_seconds > 0.0 && cost.instructions > 0.0)
            .then(|| cost.instructions / cost.cpu_seconds)
    }
}
