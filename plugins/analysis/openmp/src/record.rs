//! The record that the OpenMP tracer leaves of a process: lines with tab-separated columns.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// The suffix of records' file names.
pub const SUFFIX: &str = "openmp";
/// Version of the format that this crate reads.
const VERSION: &str = "1";
/// First column of a record's first line.
const MAGIC: &str = "nodescope-openmp";
/// The largest record that is read, in bytes. The record of a program with a million constructs is smaller.
const LARGEST: u64 = 1 << 28;
/// Largest number of threads, and of intervals, in a record that is read; memory is proportional to these numbers.
const MOST_ROWS: usize = 1 << 20;

/// Reason for which a record cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file cannot be read.
    #[error("cannot read {}: {cause}", .path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        cause: std::io::Error,
    },
    /// The file is empty.
    #[error("{} is empty: the process ended before the OpenMP tracer wrote its record", .path.display())]
    Empty {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file is no record, a record of another version, too large, or cut before its first interval.
    #[error("{} is no record of the OpenMP tracer: {what}", .path.display())]
    NoRecord {
        /// Path of the file.
        path: PathBuf,
        /// How the file differs from a record.
        what: String,
    },
    /// A line that the tracer does not write.
    #[error("{} is damaged in line {line}: {what}", .path.display())]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// Description of the damage.
        what: String,
    },
}

/// State of a thread. Each moment of a thread in a parallel region belongs to one state. The order is that of the record's columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Outside all regions, in a thread that starts regions.
    Serial,
    /// In a thread of the team other than the primary: from the beginning of a region until this thread runs the region's code.
    Start,
    /// In a region outside work-sharing, in the team's primary thread.
    Primary,
    /// In a region outside work-sharing, in a thread of the team other than the primary.
    Replicated,
    /// In a work-sharing construct.
    Shared,
    /// In an explicit task.
    Task,
    /// Waiting at an explicit barrier, or at the end of a region that does not end with a work-sharing construct.
    WaitBarrier,
    /// Waiting for a lock.
    WaitLock,
    /// Waiting for a critical or atomic construct.
    WaitCritical,
    /// Waiting for an ordered construct or for another iteration of a doacross loop.
    WaitOrdered,
    /// Waiting at the end of a work-sharing construct.
    WaitDesync,
    /// In a flush.
    WaitFlush,
    /// Waiting for tasks.
    WaitTask,
}

/// Number of states.
pub const STATES: usize = 13;

/// Kind of a construct.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A parallel region.
    Parallel,
    /// A work-sharing loop.
    Loop,
    /// A sections construct.
    Sections,
    /// A single construct.
    Single,
    /// Fortran's workshare.
    Workshare,
    /// A master or masked construct.
    Master,
    /// A critical construct.
    Critical,
    /// An explicit barrier.
    Barrier,
    /// An ordered construct, or a wait for another iteration of a doacross loop.
    Ordered,
    /// A flush construct.
    Flush,
    /// A call that sets a lock.
    Lock,
    /// An atomic construct that the runtime executes.
    Atomic,
    /// Executions of an explicit task.
    Task,
    /// A taskwait construct.
    Taskwait,
    /// The end of a taskgroup.
    Taskgroup,
    /// A taskloop construct.
    Taskloop,
    /// Creations of an explicit task.
    CreatedTask,
}

impl Kind {
    const ALL: [Kind; 17] = [
        Kind::Parallel,
        Kind::Loop,
        Kind::Sections,
        Kind::Single,
        Kind::Workshare,
        Kind::Master,
        Kind::Critical,
        Kind::Barrier,
        Kind::Ordered,
        Kind::Flush,
        Kind::Lock,
        Kind::Atomic,
        Kind::Task,
        Kind::Taskwait,
        Kind::Taskgroup,
        Kind::Taskloop,
        Kind::CreatedTask,
    ];

    /// Returns the construct's name in OpenMP, in words.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Parallel => "parallel",
            Kind::Loop => "loop",
            Kind::Sections => "sections",
            Kind::Single => "single",
            Kind::Workshare => "workshare",
            Kind::Master => "master",
            Kind::Critical => "critical",
            Kind::Barrier => "barrier",
            Kind::Ordered => "ordered",
            Kind::Flush => "flush",
            Kind::Lock => "lock",
            Kind::Atomic => "atomic",
            Kind::Task => "task",
            Kind::Taskwait => "taskwait",
            Kind::Taskgroup => "taskgroup",
            Kind::Taskloop => "taskloop",
            Kind::CreatedTask => "task creation",
        }
    }
}

/// Schedule of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// The construct has no schedule.
    None,
    /// Static schedule.
    Static,
    /// Dynamic schedule.
    Dynamic,
    /// Guided schedule.
    Guided,
    /// Schedule chosen at run time, or auto.
    Runtime,
    /// The runtime does not report the schedule to tools.
    Unknown,
    /// Code before a barrier that may be a loop of static schedule. The compiler's code shows tools nothing of such a loop but the
    /// barrier.
    StaticOrNone,
}

impl Schedule {
    const ALL: [Schedule; 7] = [
        Schedule::None,
        Schedule::Static,
        Schedule::Dynamic,
        Schedule::Guided,
        Schedule::Runtime,
        Schedule::Unknown,
        Schedule::StaticOrNone,
    ];

    /// Returns the schedule in words; empty for [`Schedule::None`].
    pub fn name(self) -> &'static str {
        match self {
            Schedule::None => "",
            Schedule::Static => "static",
            Schedule::Dynamic => "dynamic",
            Schedule::Guided => "guided",
            Schedule::Runtime => "runtime",
            Schedule::Unknown => "schedule unknown",
            Schedule::StaticOrNone => "static, or code before a barrier",
        }
    }
}

/// A call site: number of the module and address as linked. Module 0: outside of all modules, or no site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site {
    /// Number of the module; 0 for none.
    pub module: usize,
    /// Return address of the call, relative to where the module is loaded.
    pub address: u64,
}

/// A program or library file with call sites.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Module {
    /// Path of the file where the program ran.
    pub path: String,
    /// Build id in hexadecimal digits; `None` if the file has none.
    pub build_id: Option<String>,
}

/// An interval: a part of the run that the program's author has named, or the whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interval {
    /// Number of the interval around this one. For the whole program this is its own number, 0.
    pub parent: usize,
    /// Name of the interval.
    pub name: String,
    /// Number of executions of the interval.
    pub count: u64,
    /// Time of the interval's first beginning, ticks.
    pub first: u64,
    /// Duration of all executions, ticks.
    pub total: u64,
    /// Duration of the longest execution, ticks.
    pub longest: u64,
}

/// A thread, or several successive threads, each of which ended before the next began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Number of the thread in its first team.
    pub number: u32,
    /// Thread id in the system.
    pub tid: u32,
    /// True if the thread starts regions outside of all other regions.
    pub root: bool,
    /// Time of the first event, ticks.
    pub first: u64,
    /// Times by state.
    pub cells: Vec<Cell>,
    /// Statistics of constructs.
    pub events: Vec<Event>,
}

/// Times of a thread in an interval and a region, in ticks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Number of the interval.
    pub interval: usize,
    /// Site of the region; the default site outside of all regions.
    pub region: Site,
    /// Time that threads of the region's teams waited, less what all of them waited: TALP's load imbalance. Counted by the primary thread.
    pub imbalance: u64,
    /// Time that all threads of the region's teams waited: TALP's scheduling.
    pub scheduling: u64,
    /// Times by [`State`].
    pub ticks: [u64; STATES],
}

/// Statistics of a construct in a thread, an interval and a region. Times are ticks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Number of the interval.
    pub interval: usize,
    /// Site of the region around the construct; the default site outside of all regions.
    pub region: Site,
    /// Kind of the construct.
    pub kind: Kind,
    /// Site of the construct.
    pub site: Site,
    /// Schedule of a loop; [`Schedule::None`] for other constructs.
    pub schedule: Schedule,
    /// Requested size of a chunk; 0 if none.
    pub chunk: i64,
    /// Number of executions by the thread.
    pub count: u64,
    /// Time of the construct's first beginning.
    pub first: u64,
    /// Duration of all executions.
    pub total: u64,
    /// Duration of the longest execution.
    pub longest: u64,
    /// Time waited within the construct.
    pub waited: u64,
    /// Time waited for other threads at the construct's end.
    pub ended: u64,
    /// A loop's iterations that the thread executed, where the runtime reports them; otherwise 0.
    pub iterations: u64,
    /// Number of chunks of a loop's iterations that the thread executed; 0 where the runtime does not report them.
    pub chunks: u64,
}

/// Two readings of the record's clock, by which ticks become nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clock {
    /// Ticks and nanoseconds at the beginning of tracing.
    pub begin: (u64, u64),
    /// Ticks and nanoseconds at the writing of the record.
    pub end: (u64, u64),
}

impl Clock {
    /// Returns a number of ticks in nanoseconds, rounded to the nearest; at most [`Clock::MOST`], so that sums of damaged records do not
    /// overflow.
    pub fn nanoseconds(&self, ticks: u128) -> u128 {
        let span = u128::from(self.end.0.saturating_sub(self.begin.0));
        let nanoseconds = u128::from(self.end.1.saturating_sub(self.begin.1));
        let exact = if span == 0 || nanoseconds == 0 {
            ticks
        } else if let Some(product) = ticks.checked_mul(nanoseconds) {
            (product + span / 2) / span
        } else {
            (ticks / span).saturating_mul(nanoseconds)
        };
        exact.min(Self::MOST)
    }

    /// Greatest time in nanoseconds: two trillion years.
    pub const MOST: u128 = 1 << 96;
}

/// The record of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Path of the file from which the record was read.
    pub source: String,
    /// Process id in the system.
    pub pid: u32,
    /// Rank in `MPI_COMM_WORLD`, by the launcher's environment; `None` if unknown.
    pub rank: Option<u32>,
    /// Size of `MPI_COMM_WORLD`; `None` if the launcher does not set it.
    pub ranks: Option<u32>,
    /// The launcher's id of the MPI program, equal on all ranks of one `MPI_COMM_WORLD`; 0 if unknown.
    pub mpi_program: u64,
    /// Number of processors of the node.
    pub processors: u32,
    /// The most threads that were active at once.
    pub peak: u32,
    /// Name of the OpenMP runtime.
    pub runtime: String,
    /// Name of the host on which the process ran.
    pub host: String,
    /// Clock of the record.
    pub clock: Clock,
    /// Modules by number.
    pub modules: BTreeMap<usize, Module>,
    /// Intervals by number; 0 is the whole program.
    pub intervals: Vec<Interval>,
    /// Threads, by the time of their first event.
    pub threads: Vec<Thread>,
    /// Notes for the reader of the figures.
    pub notes: Vec<String>,
}

impl Record {
    /// Reads a record.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, is empty, too large or no record, or has lines that the tracer does not write. A record that was cut is
    /// no error: it is read up to the cut, with a note.
    pub fn read(path: &Path) -> Result<Record, RecordError> {
        let io = |cause| RecordError::Io {
            path: path.into(),
            cause,
        };
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(io)?;
        file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(io)?;
        if bytes.len() as u64 > LARGEST {
            return Err(RecordError::NoRecord {
                path: path.into(),
                what: format!("it has more than {LARGEST} bytes"),
            });
        }
        let mut record = Record::parse(path, &String::from_utf8_lossy(&bytes))?;
        record.source = path.display().to_string();
        Ok(record)
    }

    /// Reads a record's text. `path` is for messages.
    ///
    /// # Errors
    ///
    /// As [`Record::read`].
    pub fn parse(path: &Path, text: &str) -> Result<Record, RecordError> {
        if text.is_empty() {
            return Err(RecordError::Empty { path: path.into() });
        }
        let no_record = |what: &str| RecordError::NoRecord {
            path: path.into(),
            what: what.into(),
        };
        // Text behind the last line feed is cut off.
        let (whole, cut) = text.rsplit_once('\n').unwrap_or(("", text));
        let mut lines = whole.split('\n').enumerate();
        let first = lines.next().map_or("", |(_, line)| line);
        match first.split_once('\t') {
            Some((MAGIC, VERSION)) => {}
            Some((MAGIC, version)) => {
                return Err(no_record(&format!(
                    "it has version {version}, this program reads version {VERSION}"
                )));
            }
            _ => return Err(no_record("it does not begin like one")),
        }
        let mut reader = Reader::default();
        for (number, line) in lines {
            reader.line(line).map_err(|what| RecordError::Damaged {
                path: path.into(),
                line: number + 1,
                what,
            })?;
        }
        reader
            .finish(!cut.is_empty())
            .map_err(|what| no_record(&what))
    }

    /// Returns the short name of the program's file; empty if the record does not name it.
    pub fn name(&self) -> &str {
        let program = self.modules.get(&1);
        program.map_or("", |module| {
            module.path.rsplit('/').next().unwrap_or_default()
        })
    }

    /// Returns for each interval whether it is `interval` or lies within `interval`.
    pub fn within(&self, interval: usize) -> Vec<bool> {
        let mut within = vec![false; self.intervals.len()];
        for (number, row) in self.intervals.iter().enumerate() {
            // An interval's parent has a smaller number, which the reader has checked.
            within[number] = number == interval || (number > 0 && within[row.parent]);
        }
        within
    }

    /// Returns the name of an interval behind the names of the intervals around it, without the whole program.
    pub fn interval_path(&self, interval: usize) -> String {
        let mut names = vec![self.intervals[interval].name.as_str()];
        let mut at = self.intervals[interval].parent;
        while at != 0 {
            names.push(&self.intervals[at].name);
            at = self.intervals[at].parent;
        }
        names.reverse();
        names.join(" / ")
    }
}

/// Reader of a record's lines, with the record as far as it was read.
#[derive(Default)]
struct Reader {
    record: Record,
    threads: BTreeMap<usize, Thread>,
    has_process: bool,
    ended: bool,
}

/// Remaining columns of a line.
struct Columns<'a> {
    rest: std::str::Split<'a, char>,
}

impl<'a> Columns<'a> {
    fn text(&mut self, name: &str) -> Result<&'a str, String> {
        self.rest
            .next()
            .ok_or_else(|| format!("the column {name} is missing"))
    }

    fn number<T: std::str::FromStr>(&mut self, name: &str) -> Result<T, String> {
        let text = self.text(name)?;
        text.parse()
            .map_err(|_| format!("{name} is no number that is possible there: {text:?}"))
    }

    fn site(&mut self, name: &str) -> Result<Site, String> {
        let module = self.number(name)?;
        let text = self.text(name)?;
        let address =
            u64::from_str_radix(text, 16).map_err(|_| format!("{name} is no address: {text:?}"))?;
        Ok(Site { module, address })
    }

    fn schedule(&mut self) -> Result<Schedule, String> {
        let number: usize = self.number("schedule")?;
        let found = Schedule::ALL.get(number).copied();
        found.ok_or_else(|| format!("there is no schedule {number}"))
    }

    /// Returns all remaining columns as one text, because a name may contain tabs. Spaces replace the tabs.
    fn name(&mut self) -> String {
        let parts: Vec<&str> = self.rest.by_ref().collect();
        parts.join(" ")
    }
}

impl Reader {
    fn line(&mut self, line: &str) -> Result<(), String> {
        if self.ended {
            return Err("it follows the line that ends the record".into());
        }
        let mut columns = Columns {
            rest: line.split('\t'),
        };
        let record = &mut self.record;
        match columns.text("type")? {
            "process" => {
                self.has_process = true;
                record.pid = columns.number("process")?;
                let rank: i64 = columns.number("rank")?;
                let ranks: i64 = columns.number("ranks")?;
                record.rank = u32::try_from(rank).ok();
                record.ranks = u32::try_from(ranks).ok();
                record.processors = columns.number("processors")?;
                record.peak = columns.number("threads")?;
                record.runtime = columns.name();
            }
            // Records of earlier releases have no such line.
            "program" => {
                let text = columns.text("program")?;
                record.mpi_program = u64::from_str_radix(text, 16)
                    .map_err(|_| format!("the program is no number: {text:?}"))?;
            }
            "host" => record.host = columns.name(),
            "clock" => {
                record.clock.begin = (columns.number("ticks")?, columns.number("nanoseconds")?);
                record.clock.end = (columns.number("ticks")?, columns.number("nanoseconds")?);
            }
            "interval" => {
                let id: usize = columns.number("interval")?;
                let parent: usize = columns.number("interval around")?;
                if id != record.intervals.len() || parent > id || (parent == id && id != 0) {
                    return Err(format!("interval {id} within {parent} is out of order"));
                }
                if id >= MOST_ROWS {
                    return Err(format!("there are more than {MOST_ROWS} intervals"));
                }
                record.intervals.push(Interval {
                    parent,
                    count: columns.number("count")?,
                    first: columns.number("first")?,
                    total: columns.number("total")?,
                    longest: columns.number("longest")?,
                    name: columns.name(),
                });
            }
            "module" => {
                let id = columns.number("module")?;
                let build_id = columns.text("build id")?;
                let module = Module {
                    build_id: (build_id != "-").then(|| build_id.to_owned()),
                    path: columns.name(),
                };
                record.modules.insert(id, module);
            }
            "thread" => {
                let id: usize = columns.number("thread")?;
                let thread = Thread {
                    tid: columns.number("thread of the system")?,
                    number: columns.number("number")?,
                    root: columns.number::<u8>("root")? != 0,
                    first: columns.number("first")?,
                    cells: Vec::new(),
                    events: Vec::new(),
                };
                if self.threads.len() >= MOST_ROWS {
                    return Err(format!("there are more than {MOST_ROWS} threads"));
                }
                if self.threads.insert(id, thread).is_some() {
                    return Err(format!("thread {id} comes twice"));
                }
            }
            "times" => {
                let (thread, interval) = self.owner(&mut columns)?;
                let mut cell = Cell {
                    interval,
                    region: columns.site("region")?,
                    imbalance: columns.number("imbalance")?,
                    scheduling: columns.number("scheduling")?,
                    ticks: [0; STATES],
                };
                for ticks in &mut cell.ticks {
                    *ticks = columns.number("time")?;
                }
                self.thread(thread)?.cells.push(cell);
            }
            "event" => {
                let (thread, interval) = self.owner(&mut columns)?;
                let region = columns.site("region")?;
                let kind: usize = columns.number("construct")?;
                let event = Event {
                    interval,
                    region,
                    kind: kind
                        .checked_sub(1)
                        .and_then(|at| Kind::ALL.get(at).copied())
                        .ok_or_else(|| format!("there is no construct {kind}"))?,
                    site: columns.site("site")?,
                    schedule: columns.schedule()?,
                    chunk: columns.number("chunk")?,
                    count: columns.number("count")?,
                    first: columns.number("first")?,
                    total: columns.number("total")?,
                    longest: columns.number("longest")?,
                    waited: columns.number("waited")?,
                    ended: columns.number("waited at the end")?,
                    iterations: columns.number("iterations")?,
                    chunks: columns.number("chunks")?,
                };
                self.thread(thread)?.events.push(event);
            }
            "end" => {
                self.ended = true;
                if columns.text("reason")? != "exit" {
                    record.notes.push(
                        "the process was killed or still runs; the record is of its time up to about a second before"
                            .into(),
                    );
                }
            }
            other => return Err(format!("a line of unknown type {other:?}")),
        }
        Ok(())
    }

    fn owner(&self, columns: &mut Columns<'_>) -> Result<(usize, usize), String> {
        let thread = columns.number("thread")?;
        let interval = columns.number("interval")?;
        if interval >= self.record.intervals.len() {
            return Err(format!("interval {interval} is unknown"));
        }
        Ok((thread, interval))
    }

    fn thread(&mut self, thread: usize) -> Result<&mut Thread, String> {
        self.threads
            .get_mut(&thread)
            .ok_or_else(|| format!("thread {thread} is unknown"))
    }

    fn finish(mut self, cut: bool) -> Result<Record, String> {
        let mut record = self.record;
        if !self.has_process || record.intervals.is_empty() {
            return Err("it is cut before the first interval".into());
        }
        if !self.ended || cut {
            record
                .notes
                .push("the record is cut; figures lack what came behind the cut".into());
        }
        let mut threads: Vec<Thread> = std::mem::take(&mut self.threads).into_values().collect();
        for thread in &mut threads {
            thread
                .cells
                .sort_by_key(|cell| (cell.interval, cell.region));
            (thread.events)
                .sort_by_key(|event| (event.interval, event.region, event.kind, event.site));
        }
        threads.sort_by_key(|thread| (thread.first, thread.tid));
        record.threads = threads;
        Ok(record)
    }
}
