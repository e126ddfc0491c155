//! The process that makes names, as the process that has started it sees it.

use std::collections::BTreeSet;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::debug::{DEBUG, INLINED, may_link};
use crate::files::Files;
use crate::kernel::{FileId, FilePage};
use crate::limits::{Limit, Lost, NAME};
use crate::names::SERVE_ARGUMENT;
use crate::symbolizer::Location;
use crate::unwind::{Call, DEPTH};
use crate::wire::{Ask, Resolved, Say, Want, get, put, put_file};

/// Processor time that one request may take. What files may cost is counted, and is far below.
const PROCESSOR: Duration = Duration::from_secs(60);
/// Time that one request may take on a host that is busy.
const WALL: Duration = Duration::from_secs(1800);
/// Time between two looks at a process that has not answered.
const LOOK: Duration = Duration::from_millis(500);
/// Maximum number of files and pages that the process may ask for while it answers one request.
const QUESTIONS: usize = 1 << 17;
/// Maximum length of a module's path, which the guest's kernel limits to two paths, bytes.
const PATH: usize = 16 << 10;

/// Process that makes names.
pub(crate) struct Process {
    child: Child,
    to: BufWriter<ChildStdin>,
    from: BufReader<Watched>,
    /// Files that the process may ask for.
    known: BTreeSet<FileId>,
    /// True until the first request was answered.
    fresh: bool,
}

/// End of a request without an answer.
#[derive(Debug)]
pub(crate) struct Failed {
    pub limit: Limit,
    /// Last file of which there was talk while the request was answered.
    pub file: Option<Box<FileId>>,
}

type Located = (Vec<Location>, Vec<Lost>);
type Paths = (Vec<Vec<Call>>, Vec<Lost>);

impl Process {
    /// Starts a process of `program`. Returns it with the restrictions that the host does not hold.
    pub fn start(program: &Path) -> io::Result<(Self, Option<String>)> {
        let mut child = Command::new(program)
            .arg(SERVE_ARGUMENT)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let (to, from) = child
            .stdin
            .take()
            .zip(child.stdout.take())
            .ok_or(io::ErrorKind::BrokenPipe)?;
        let mut process = Self {
            from: BufReader::new(Watched::new(from, child.id())),
            child,
            to: BufWriter::new(to),
            known: BTreeSet::new(),
            fresh: true,
        };
        match process.hear() {
            Ok(Say::Ready(gaps)) => Ok((process, gaps)),
            Ok(_) => Err(io::Error::other("it does not make names")),
            Err(_) => Err(io::Error::other("it ends at once")),
        }
    }

    /// Returns the processor time of the last request.
    pub fn took(&self) -> Duration {
        let watched = self.from.get_ref();
        processor_time(watched.process).saturating_sub(watched.used)
    }

    /// Returns whether the process has answered no request yet.
    pub fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Asks for the names of `len` places in a file.
    pub fn locations(
        &mut self,
        files: &dyn Files,
        ask: &Ask,
        len: usize,
    ) -> Result<Located, Failed> {
        if let Ask::Offsets(file, _) | Ask::Addresses(file, _) | Ask::Data(file, _) = ask {
            self.known.insert(file.clone());
        }
        let answer = self.ask(files, ask, &mut |_, _| None)?;
        let found = match answer {
            Say::Locations(found, lost) if found.len() == len => repeated(found).zip(Some(lost)),
            _ => None,
        };
        let found = found.filter(|(found, lost)| {
            found.iter().all(is_short) && lost.iter().all(|lost| lost.module.len() <= PATH)
        });
        found.ok_or(Failed {
            limit: Limit::Ended,
            file: None,
        })
    }

    /// Asks for the call paths of `len` stacks.
    pub fn paths(
        &mut self,
        files: &dyn Files,
        ask: &Ask,
        len: usize,
        resolve: &mut dyn FnMut(u64, u64) -> Option<FilePage>,
    ) -> Result<Paths, Failed> {
        let answer = self.ask(files, ask, resolve)?;
        let known = |call: &Call| match &call.page {
            FilePage::File { file, .. } => self.known.contains(file),
            page => *page == FilePage::Anonymous,
        };
        let fits = |path: &Vec<Call>| path.len() <= DEPTH && path.iter().all(known);
        match answer {
            Say::Paths(paths, lost) if paths.len() == len && paths.iter().all(fits) => {
                Ok((paths, lost))
            }
            _ => Err(Failed {
                limit: Limit::Ended,
                file: None,
            }),
        }
    }

    /// Asks, and answers the questions of the process meanwhile.
    fn ask(
        &mut self,
        files: &dyn Files,
        ask: &Ask,
        resolve: &mut dyn FnMut(u64, u64) -> Option<FilePage>,
    ) -> Result<Say, Failed> {
        self.from.get_mut().begin();
        let mut file = None;
        let answer = self.converse(files, ask, resolve, &mut file);
        match answer {
            Ok(answer) => {
                self.fresh = false;
                Ok(answer)
            }
            Err(_) => Err(Failed {
                limit: self.why(),
                file: file.map(Box::new),
            }),
        }
    }

    fn converse(
        &mut self,
        files: &dyn Files,
        ask: &Ask,
        resolve: &mut dyn FnMut(u64, u64) -> Option<FilePage>,
        talk: &mut Option<FileId>,
    ) -> io::Result<Say> {
        put(&mut self.to, ask)?;
        self.to.flush()?;
        for _ in 0..QUESTIONS {
            match self.hear()? {
                Say::Want(want) => {
                    let bytes = self.file(files, &want, talk)?;
                    put_file(&mut self.to, bytes.as_deref())?;
                    self.to.flush()?;
                }
                Say::Resolve(space, address) => {
                    let page = resolve(space, address);
                    if let Some(FilePage::File { file, .. }) = &page {
                        self.known.insert(file.clone());
                        *talk = Some(file.clone());
                    }
                    put(&mut self.to, &Resolved(page))?;
                    self.to.flush()?;
                }
                answer => return Ok(answer),
            }
        }
        Err(io::Error::other("too many questions"))
    }

    /// Reads a file for the process, if it is one that names may need.
    fn file(
        &self,
        files: &dyn Files,
        want: &Want,
        talk: &mut Option<FileId>,
    ) -> io::Result<Option<std::sync::Arc<[u8]>>> {
        let refused = || io::Error::other("no file for names");
        match want {
            Want::File(file) if self.known.contains(file) => {
                *talk = Some(file.clone());
                Ok(files.read(file))
            }
            Want::Debug(path) if is_debug(path) => Ok(files.read_path(path)),
            Want::Beside(file, name) if self.known.contains(file) => {
                let plain = name.strip_prefix(".debug/").unwrap_or(name);
                match may_link(plain) {
                    true => Ok(files.read_beside(file, name)),
                    false => Err(refused()),
                }
            }
            _ => Err(refused()),
        }
    }

    fn hear(&mut self) -> io::Result<Say> {
        get(&mut self.from)
    }

    /// Ends the process, and returns the limit that has ended it before.
    fn why(&mut self) -> Limit {
        if self.from.get_ref().timed_out {
            return Limit::Time;
        }
        // A process that is still there has broken the rules of the conversation.
        let _ = self.child.kill();
        let status = self.child.wait();
        match status.ok().and_then(|status| status.signal()) {
            Some(libc::SIGXCPU) => Limit::Time,
            // Rust's allocator ends a process so, and its guard of the stack, too.
            Some(libc::SIGABRT) => Limit::Memory,
            _ => Limit::Ended,
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process has nothing to lose. Without the wait it would stay as a zombie.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns whether a path may be that of debug information in a guest.
pub(crate) fn is_debug(path: &str) -> bool {
    let below = path
        .strip_prefix(DEBUG)
        .and_then(|rest| rest.strip_prefix('/'));
    path.len() <= PATH && below.is_some_and(|rest| !rest.split('/').any(|part| part == ".."))
}

/// Returns all locations, of which those that equal the one before were left out.
fn repeated(found: Vec<Option<Location>>) -> Option<Vec<Location>> {
    let mut all: Vec<Location> = Vec::with_capacity(found.len());
    for location in found {
        let location = location.or_else(|| all.last().cloned())?;
        all.push(location);
    }
    Some(all)
}

/// Returns whether a location keeps to the limits of names.
fn is_short(location: &Location) -> bool {
    let line =
        |line: &Option<crate::SourceLine>| line.as_ref().is_none_or(|line| line.file.len() <= NAME);
    let mut inlined = location.inlined.iter();
    location.inlined.len() <= INLINED
        && location.function.len() <= NAME
        && location.module.len() <= PATH
        && location.build_id.as_ref().is_none_or(|id| id.len() <= NAME)
        && line(&location.line)
        && inlined.all(|frame| frame.function.len() <= NAME && line(&frame.called_from))
}

/// Output of the process, whose reader ends the process when it takes too much time.
struct Watched {
    output: ChildStdout,
    process: libc::pid_t,
    begun: Instant,
    /// Processor time of the process when the request began.
    used: Duration,
    timed_out: bool,
}

impl Watched {
    fn new(output: ChildStdout, process: u32) -> Self {
        let process = process as libc::pid_t;
        Self {
            output,
            process,
            begun: Instant::now(),
            used: processor_time(process),
            timed_out: false,
        }
    }

    /// A request begins.
    fn begin(&mut self) {
        self.begun = Instant::now();
        self.used = processor_time(self.process);
    }
}

impl Read for Watched {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while !readable(self.output.as_raw_fd(), LOOK)? {
            let used = processor_time(self.process).saturating_sub(self.used);
            if used > PROCESSOR || self.begun.elapsed() > WALL {
                self.timed_out = true;
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        self.output.read(buf)
    }
}

/// Waits until a descriptor has something to read, or its other end is closed. Returns false after `wait`.
fn readable(descriptor: RawFd, wait: Duration) -> io::Result<bool> {
    let mut wanted = libc::pollfd {
        fd: descriptor,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: `wanted` is one valid structure, as the count says, and outlives the call.
    let ready = unsafe { libc::poll(&raw mut wanted, 1, wait.as_millis() as i32) };
    match ready {
        0 => Ok(false),
        1 => Ok(true),
        _ => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            error => Err(error),
        },
    }
}

/// Returns the processor time that a child process has used; zero if it has ended.
fn processor_time(process: libc::pid_t) -> Duration {
    let mut clock = 0;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: both structures outlive the calls that fill them.
    let read = unsafe {
        libc::clock_getcpuclockid(process, &raw mut clock) == 0
            && libc::clock_gettime(clock, &raw mut time) == 0
    };
    match read {
        true => Duration::new(time.tv_sec as u64, time.tv_nsec as u32),
        false => Duration::ZERO,
    }
}
