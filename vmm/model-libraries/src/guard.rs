//! Runs code of a shared library so that the process survives it: a signal that the code raises, a call of `exit`, or a call that does not
//! return ends the call alone.
//!
//! [`run`] keeps the stack pointer of the call ([`enter`]). The handler of a signal that strikes within the call lets the thread continue
//! at [`recovered`], with that stack pointer: the frames of the library are left as `longjmp` leaves them. What the library holds then, such
//! as locks and memory, is lost. Therefore nothing of the library may run afterwards.

use std::arch::naked_asm;
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once, OnceLock, PoisonError};
use std::time::Duration;

/// Seconds after which a call does not return any more.
const LONGEST_SECONDS: u32 = 10;

/// Signals that code raises by what it does.
const SIGNALS: [(c_int, &str); 5] = [
    (libc::SIGSEGV, "accesses memory that is not there (SIGSEGV)"),
    (libc::SIGBUS, "accesses memory that is not there (SIGBUS)"),
    (libc::SIGILL, "executes an invalid instruction (SIGILL)"),
    (libc::SIGFPE, "divides by zero (SIGFPE)"),
    (libc::SIGABRT, "aborts (SIGABRT)"),
];
/// Signal by which the watch ends a call.
const TOO_LONG: c_int = libc::SIGVTALRM;
/// Stands for a call of `exit`.
const EXIT: c_int = 0;

/// What the library's frames lie on.
#[repr(C)]
struct Frame {
    stack_pointer: u64,
    /// What ended the call.
    ended_by: c_int,
}

/// State of a thread that calls libraries. It stays for as long as the process.
struct Thread {
    id: libc::pid_t,
    /// The call in progress; null between calls.
    frame: Cell<*mut Frame>,
    /// Number of beginnings and ends of calls: odd within a call.
    calls: AtomicU64,
    /// Value of `calls` of the call that takes too long.
    too_long: AtomicU64,
}

// SAFETY: only the thread itself uses `frame`, in its signal handlers as well.
unsafe impl Sync for Thread {}

static THREADS: Mutex<Vec<&'static Thread>> = Mutex::new(Vec::new());

thread_local! {
    static THREAD: Cell<Option<&'static Thread>> = const { Cell::new(None) };
    /// Sentence that the library has given to `nodescope_host.fail`. It stays for as long as the process: a library that calls `exit` has
    /// ended what needs to be dropped on this thread.
    static FAILED: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Runs code of a library. An error is what the code did, as a sentence that follows the model's name.
pub fn run<C: FnOnce() -> T, T>(code: C) -> Result<T, String> {
    let thread = match THREAD.get() {
        Some(thread) => thread,
        None => new_thread(),
    };
    let mut work = Work {
        code: Some(code),
        done: None,
    };
    let mut frame = Frame {
        stack_pointer: 0,
        ended_by: EXIT,
    };
    let outer = thread.frame.replace(&raw mut frame);
    thread.calls.fetch_add(1, Ordering::Relaxed);
    // SAFETY: `work` is what the function expects. Between its return and an end by a signal there is no difference for this frame: the
    // registers that a function must keep are those of the call.
    unsafe { enter(carry_out::<C, T>, (&raw mut work).cast(), &raw mut frame) };
    thread.calls.fetch_add(1, Ordering::Relaxed);
    thread.frame.set(outer);
    if let Some(why) = FAILED.take() {
        return Err(why.to_owned());
    }
    work.done.ok_or_else(|| reason(frame.ended_by))
}

struct Work<C, T> {
    code: Option<C>,
    done: Option<T>,
}

/// # Safety
/// The pointer is that of a [`Work`] of these types, which nothing else uses.
unsafe extern "sysv64" fn carry_out<C: FnOnce() -> T, T>(work: *mut c_void) {
    // SAFETY: the caller's promise.
    let work = unsafe { &mut *work.cast::<Work<C, T>>() };
    if let Some(code) = work.code.take() {
        work.done = Some(code());
    }
}

fn reason(ended_by: c_int) -> String {
    let known = SIGNALS.iter().find(|(signal, _)| *signal == ended_by);
    match (known, ended_by) {
        (Some((_, what)), _) => (*what).to_owned(),
        (None, TOO_LONG) => format!("has not returned for {LONGEST_SECONDS} s"),
        _ => "calls exit".to_owned(),
    }
}

/// Takes the sentence of a library about why it cannot go on.
///
/// # Safety
/// `why` is null or a text that ends with zero.
pub unsafe extern "C" fn fail(why: *const c_char) {
    let text = match why.is_null() {
        true => "cannot go on".into(),
        // SAFETY: the caller's promise.
        false => unsafe { CStr::from_ptr(why) }.to_string_lossy(),
    };
    if FAILED.get().is_none() {
        FAILED.set(Some(text.replace('\n', " ").leak()));
    }
}

/// Calls a function with an argument, after the stack pointer has been kept in the frame.
#[unsafe(naked)]
unsafe extern "sysv64" fn enter(
    function: unsafe extern "sysv64" fn(*mut c_void),
    argument: *mut c_void,
    frame: *mut Frame,
) {
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "sub rsp, 8",
        "stmxcsr [rsp]",
        "fnstcw [rsp + 4]",
        "mov [rdx], rsp",
        "mov rax, rdi",
        "mov rdi, rsi",
        "call rax",
        "add rsp, 8",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}

/// Returns from [`enter`], whose stack pointer the handler has restored.
#[unsafe(naked)]
unsafe extern "sysv64" fn recovered() {
    naked_asm!(
        "cld",
        "fninit",
        "ldmxcsr [rsp]",
        "fldcw [rsp + 4]",
        "add rsp, 8",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}

/// Continues at [`recovered`] from ordinary code.
#[unsafe(naked)]
unsafe extern "sysv64" fn leave(stack_pointer: u64) -> ! {
    naked_asm!("mov rsp, rdi", "jmp {recovered}", recovered = sym recovered)
}

/// Handlers that were there before.
static BEFORE: [OnceLock<libc::sigaction>; SIGNALS.len()] =
    [const { OnceLock::new() }; SIGNALS.len()];

unsafe extern "C" fn struck(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let thread = THREAD.get();
    let frame = thread.map_or(std::ptr::null_mut(), |thread| thread.frame.get());
    let ends = match thread {
        Some(thread) if signal == TOO_LONG => {
            thread.calls.load(Ordering::Relaxed) == thread.too_long.load(Ordering::Relaxed)
        }
        thread => thread.is_some(),
    };
    if !frame.is_null() && ends {
        // SAFETY: the frame is that of a call in progress, and the kernel gives the context of this thread.
        unsafe {
            (*frame).ended_by = signal;
            let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
            registers[libc::REG_RSP as usize] = (*frame).stack_pointer as i64;
            registers[libc::REG_RIP as usize] = recovered as *const () as i64;
        }
        return;
    }
    let Some(index) = SIGNALS.iter().position(|(known, _)| *known == signal) else {
        return;
    };
    // The signal is not a library's: the handler before takes it, or the default when the instruction is executed again.
    let before = BEFORE[index].get();
    let handler = before.map_or(libc::SIG_DFL, |before| before.sa_sigaction);
    let with_info = before.is_some_and(|before| before.sa_flags & libc::SA_SIGINFO != 0);
    if with_info && handler != libc::SIG_DFL && handler != libc::SIG_IGN {
        // SAFETY: sigaction(2) says that a handler with SA_SIGINFO has this type.
        let handler: unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
            unsafe { std::mem::transmute(handler) };
        // SAFETY: as the kernel would call it.
        unsafe { handler(signal, info, context) };
    } else {
        // SAFETY: the default action needs nothing.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Ends a call that has called `exit`.
extern "C" fn at_exit() {
    let frame = THREAD
        .get()
        .map_or(std::ptr::null_mut(), |thread| thread.frame.get());
    if !frame.is_null() {
        // SAFETY: the frame is that of a call in progress.
        unsafe {
            (*frame).ended_by = EXIT;
            leave((*frame).stack_pointer)
        }
    }
}

fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let handler: unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = struck;
        // SAFETY: an all-zero sigaction is a valid value of that plain C struct.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as usize;
        // A stack that overflows has no room for the handler.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        let before = BEFORE.iter().map(Some).chain([None]);
        let signals = SIGNALS.iter().map(|(signal, _)| *signal).chain([TOO_LONG]);
        for (signal, before) in signals.zip(before) {
            // SAFETY: as above; the call fills it.
            let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: the handler uses only what may be used in handlers: the thread's own state.
            unsafe { libc::sigaction(signal, &raw const action, &raw mut old) };
            if let Some(before) = before {
                let _ = before.set(old);
            }
        }
        // SAFETY: the function may run at any exit.
        unsafe { libc::atexit(at_exit) };
    });
}

/// Starts the thread that looks for calls that do not return. The first call of a model starts the thread, after the process has entered its
/// sandbox with one thread.
pub fn watch_calls() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let thread = std::thread::Builder::new().name("watch of models".into());
        // Without the thread, a call that does not return is the user's to end.
        let _ = thread.spawn(|| {
            let mut seen: Vec<(u64, u32)> = Vec::new();
            loop {
                std::thread::sleep(Duration::from_secs(1));
                let threads = THREADS
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .clone();
                seen.resize(threads.len(), (0, 0));
                for (thread, (calls, seconds)) in threads.iter().zip(&mut seen) {
                    let now = thread.calls.load(Ordering::Relaxed);
                    if now % 2 == 0 || now != *calls {
                        (*calls, *seconds) = (now, 0);
                        continue;
                    }
                    *seconds += 1;
                    if *seconds >= LONGEST_SECONDS {
                        thread.too_long.store(now, Ordering::Relaxed);
                        // SAFETY: the thread is within a call, so that it exists.
                        unsafe {
                            libc::syscall(libc::SYS_tgkill, libc::getpid(), thread.id, TOO_LONG)
                        };
                    }
                }
            }
        });
    });
}

#[cold]
fn new_thread() -> &'static Thread {
    install();
    let thread: &'static Thread = Box::leak(Box::new(Thread {
        // SAFETY: gettid has no preconditions.
        id: unsafe { libc::gettid() },
        frame: Cell::new(std::ptr::null_mut()),
        calls: AtomicU64::new(0),
        too_long: AtomicU64::new(0),
    }));
    let mut threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
    threads.push(thread);
    THREAD.set(Some(thread));
    thread
}
