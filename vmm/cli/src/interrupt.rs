//! Signals: Ctrl-C, SIGTERM and SIGHUP end a command soon, whatever it is doing. A limit of file sizes gives an error in place of a silent
//! end.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::exit::{Exit, Failure};
use crate::terminal::print_error_line;

/// Time after a signal in which a run must end its current work and write its results.
const END_TIME_LIMIT: Duration = Duration::from_millis(1700);

/// A value for work that is done once at the end of a command: by the command itself, or by the signal's thread if the command takes too
/// long. Clones share the value.
pub struct TakeOnce<T>(Arc<Mutex<Option<T>>>);

impl<T> Clone for TakeOnce<T> {
    fn clone(&self) -> Self {
        TakeOnce(self.0.clone())
    }
}

impl<T> TakeOnce<T> {
    /// Returns a shared value that the first call of [`TakeOnce::take`] gets.
    pub fn new(what: T) -> TakeOnce<T> {
        TakeOnce(Arc::new(Mutex::new(Some(what))))
    }

    /// Returns the value to the first caller, and `None` to all others.
    pub fn take(&self) -> Option<T> {
        locked(&self.0).take()
    }
}

/// Signals that end a command.
const ENDING: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Handler of signals, as a command sees it.
pub struct Signals {
    flag: Arc<AtomicBool>,
    /// True once a signal has come. `flag` may be set for other reasons.
    seen: Arc<AtomicBool>,
    armed: Arc<Mutex<Option<Armed>>>,
    listener: Option<Listener>,
}

/// Thread that reads a byte for each signal from a pipe, and the other end of that pipe.
struct Listener {
    waker: PipeWriter,
    stopping: Arc<AtomicBool>,
    thread: JoinHandle<PipeReader>,
}

/// Text for the user at a signal, and the work to do if the command does not end in time.
struct Armed {
    kept: &'static str,
    late: Box<dyn FnOnce() + Send>,
}

impl Signals {
    /// Returns the flag that the first Ctrl-C, SIGTERM or SIGHUP sets. The second signal ends the program at once.
    pub fn flag(&self) -> &Arc<AtomicBool> {
        &self.flag
    }

    /// Does some work while this process has no thread for signals: a restriction of the process then holds every thread. A signal that
    /// arrives meanwhile is handled afterwards.
    pub fn without_thread<T>(&mut self, work: impl FnOnce() -> T) -> Result<T, Failure> {
        let Some(Listener {
            waker,
            stopping,
            thread,
        }) = self.listener.take()
        else {
            return Ok(work());
        };
        stopping.store(true, Ordering::SeqCst);
        let failed = |error: io::Error| Failure::of(Exit::Host, &error);
        (&waker).write_all(&[0]).map_err(failed)?;
        let pipe = thread
            .join()
            .map_err(|_| Failure::new(Exit::Host, "the thread for signals failed"))?;
        let done = work();
        self.listen(pipe, waker)?;
        Ok(done)
    }

    /// Starts the thread that handles each signal whose byte comes through the pipe.
    fn listen(&mut self, mut pipe: PipeReader, waker: PipeWriter) -> Result<(), Failure> {
        let (flag, seen, armed) = (self.flag.clone(), self.seen.clone(), self.armed.clone());
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopping);
        let listen = move || {
            let mut byte = [0];
            while let Ok(1) = pipe.read(&mut byte) {
                // One byte more than signals is in the pipe then: the next thread reads what this one leaves.
                if stop.load(Ordering::SeqCst) {
                    break;
                }
                handle(&flag, &seen, &armed);
            }
            pipe
        };
        let thread = std::thread::Builder::new().name("signals".into());
        let thread = thread
            .spawn(listen)
            .map_err(|error| Failure::of(Exit::Host, &error))?;
        self.listener = Some(Listener {
            waker,
            stopping,
            thread,
        });
        Ok(())
    }

    /// Returns whether a signal has come.
    pub fn seen(&self) -> bool {
        self.seen.load(Ordering::Relaxed)
    }

    /// Sets a time limit: if the command still runs a while after the first signal, `late` is called and the program ends. `kept` is the
    /// text for the user about the work that is saved.
    pub fn arm(&self, kept: &'static str, late: impl FnOnce() + Send + 'static) {
        let late = Box::new(late);
        *locked(&self.armed) = Some(Armed { kept, late });
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics while the lock is held: a value is only put in or taken out.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for the time limit, then does the armed work and ends the program; returns if nothing is armed.
fn watch(armed: &Mutex<Option<Armed>>) {
    std::thread::sleep(END_TIME_LIMIT);
    let Some(Armed { late, .. }) = locked(armed).take() else {
        return;
    };
    // This work may hang as well, for example on a file system that does not answer, so it gets 200 ms.
    let last = std::thread::Builder::new().spawn(|| {
        late();
        std::process::exit(Exit::Interrupted as i32);
    });
    if last.is_ok() {
        std::thread::sleep(Duration::from_millis(200));
    }
    std::process::exit(Exit::Interrupted as i32);
}

/// Handles one signal: asks the command to end, or ends the program at the second one.
fn handle(flag: &AtomicBool, seen: &AtomicBool, armed: &Arc<Mutex<Option<Armed>>>) {
    if seen.swap(true, Ordering::Relaxed) {
        std::process::exit(Exit::Interrupted as i32);
    }
    flag.store(true, Ordering::Relaxed);
    let kept = locked(armed).as_ref().map_or("", |armed| armed.kept);
    let armed = armed.clone();
    let watch = std::thread::Builder::new().spawn(move || watch(&armed));
    // Printing is left to a thread, which waits for ever if nobody reads standard error. This thread must be free for the next signal.
    let _ = std::thread::Builder::new().spawn(move || {
        print_error_line(&format!("\nstopping{kept} (once more to stop at once)"));
        if let Err(error) = watch {
            tracing::debug!(
                "no thread limits the time that an interrupted run takes to end: {error}"
            );
        }
    });
}

/// Installs the handler of Ctrl-C, SIGTERM and SIGHUP. Ctrl-C and SIGHUP remain ignored if this process ignored them before: `nohup` and a
/// shell's `&` start programs so.
pub fn on_interrupt() -> Result<Signals, Failure> {
    let mut signals = Signals {
        flag: Arc::default(),
        seen: Arc::default(),
        armed: Arc::default(),
        listener: None,
    };
    let failed = |error: io::Error| Failure::of(Exit::Host, &error);
    let (pipe, waker) = io::pipe().map_err(failed)?;
    for signal in handled() {
        let sender = waker.try_clone().map_err(failed)?;
        signal_hook::low_level::pipe::register(signal, sender).map_err(failed)?;
    }
    signals.listen(pipe, waker)?;
    Ok(signals)
}

/// Makes this process outlive Ctrl-C, SIGTERM and SIGHUP, which also reach the command that it has started. Programs that this one starts
/// do not inherit the handler.
pub fn outlive_signals() -> Result<(), Failure> {
    for signal in handled() {
        signal_hook::flag::register(signal, Arc::default())
            .map_err(|error| Failure::of(Exit::Host, &error))?;
    }
    Ok(())
}

/// Makes this process outlive SIGUSR1, by which MPICH's launcher reports the death of another process. The control line reports that
/// death, too.
pub fn outlive_death_notices() -> Result<(), Failure> {
    signal_hook::flag::register(libc::SIGUSR1, Arc::default())
        .map(drop)
        .map_err(|error| Failure::of(Exit::Host, &error))
}

/// Returns the signals to handle.
fn handled() -> impl Iterator<Item = libc::c_int> {
    let may_be_ignored = |signal| signal != libc::SIGTERM;
    ENDING
        .into_iter()
        .filter(move |&signal| !(may_be_ignored(signal) && is_ignored(signal)))
}

/// Returns whether this process ignores a signal.
fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: an all-zero sigaction is a valid value of that plain C struct.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: `action` outlives the call, which fills it and changes nothing else.
    let failed = unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) } != 0;
    !failed && action.sa_sigaction == libc::SIG_IGN
}

/// Makes a write fail with an error where the file would exceed the limit of file sizes (`ulimit -f`). Without a handler, SIGXFSZ would end
/// the program. Programs that this one starts do not inherit the handler; they would inherit an ignored signal.
pub fn survive_file_limit() {
    extern "C" fn nothing(_: libc::c_int) {}
    let handler: extern "C" fn(libc::c_int) = nothing;
    // SAFETY: the handler does nothing, so it may run at any point of any thread.
    unsafe { libc::signal(libc::SIGXFSZ, handler as libc::sighandler_t) };
}

/// Returns the limit of the size of files in bytes; `None` if there is no limit or it cannot be read.
pub fn file_limit() -> Option<u64> {
    limit(libc::RLIMIT_FSIZE)
}

/// Returns the limit of this process's address space in bytes; `None` if there is no limit or it cannot be read.
pub fn memory_limit() -> Option<u64> {
    limit(libc::RLIMIT_AS)
}

fn limit(resource: libc::__rlimit_resource_t) -> Option<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: `limit` outlives the call, which fills it.
    let failed = unsafe { libc::getrlimit(resource, &mut limit) } != 0;
    (!failed && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}
