//! Signals that exceptions of the instruction under test become.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{FRAME, Frame, NativeError, XSAVE_LEN, stubs};
use crate::layout::{VOID_END, VOID_START};

const SIGNALS: [i32; 5] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
];
/// Bytes of the handlers' stack.
const STACK: usize = 256 << 10;
/// Offset of the kernel's description of an extended FPU frame within the FXSAVE image (`sw_reserved`).
const SOFTWARE: usize = 464;
/// Magic number of that description (`FP_XSTATE_MAGIC1`).
const MAGIC: u32 = 0x4650_5853;

/// Where the handler resumes. Set before the handlers are installed.
static RESUME: AtomicU64 = AtomicU64::new(0);

/// Installed handlers; dropping puts the former ones back.
pub struct Handlers {
    old: [libc::sigaction; SIGNALS.len()],
    old_stack: libc::stack_t,
    /// Keeps the stack alive.
    _stack: Box<[u8]>,
    /// The alternate stack belongs to this thread.
    _not_send: std::marker::PhantomData<*mut ()>,
}

impl Handlers {
    /// Installs the handlers for the calling thread.
    pub fn install() -> Result<Self, NativeError> {
        RESUME.store(stubs::resume(), Ordering::Relaxed);
        let mut stack = vec![0; STACK].into_boxed_slice();
        // SAFETY: all-zero is a valid value of these C structures; the pointers passed are valid for the calls, and the
        // stack outlives its registration (`Drop` puts the former one back first).
        unsafe {
            let new = libc::stack_t {
                ss_sp: stack.as_mut_ptr().cast(),
                ss_flags: 0,
                ss_size: STACK,
            };
            let mut old_stack: libc::stack_t = std::mem::zeroed();
            if libc::sigaltstack(&new, &mut old_stack) != 0 {
                return Err(NativeError::Host {
                    what: "setting the signal stack",
                    source: io::Error::last_os_error(),
                });
            }
            let mut old: [libc::sigaction; SIGNALS.len()] = std::mem::zeroed();
            let mut action: libc::sigaction = std::mem::zeroed();
            let function: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = handle;
            action.sa_sigaction = function as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            for (signal, old) in SIGNALS.iter().zip(&mut old) {
                libc::sigaction(*signal, &action, old);
            }
            Ok(Self {
                old,
                old_stack,
                _stack: stack,
                _not_send: std::marker::PhantomData,
            })
        }
    }
}

impl Drop for Handlers {
    fn drop(&mut self) {
        for (signal, old) in SIGNALS.iter().zip(&self.old) {
            // SAFETY: `old` was filled in by `install`.
            unsafe { libc::sigaction(*signal, old, std::ptr::null_mut()) };
        }
        // SAFETY: as above.
        unsafe { libc::sigaltstack(&self.old_stack, std::ptr::null_mut()) };
    }
}

/// Stores what the kernel saved of the interrupted registers, and returns to the end of the exit stub.
extern "C" fn handle(signal: i32, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    const ORDER: [i32; 16] = [
        libc::REG_RAX,
        libc::REG_RCX,
        libc::REG_RDX,
        libc::REG_RBX,
        libc::REG_RSP,
        libc::REG_RBP,
        libc::REG_RSI,
        libc::REG_RDI,
        libc::REG_R8,
        libc::REG_R9,
        libc::REG_R10,
        libc::REG_R11,
        libc::REG_R12,
        libc::REG_R13,
        libc::REG_R14,
        libc::REG_R15,
    ];
    // SAFETY: the kernel passes a valid context; while the handlers are installed the frame is mapped, and the interrupted
    // code is the instruction under test, so that no Rust reference to the frame is live.
    unsafe {
        let context = &mut *context.cast::<libc::ucontext_t>();
        let registers = &mut context.uc_mcontext.gregs;
        let frame = &mut *(FRAME as *mut Frame);
        let rip = registers[libc::REG_RIP as usize] as u64;
        let trap = registers[libc::REG_TRAPNO as usize] as u64;
        let address = registers[libc::REG_CR2 as usize] as u64;
        // In the code pages, or a branch from there to where there is no code.
        let ours = (VOID_START..VOID_END).contains(&rip) || trap == 14 && rip == address;
        if frame.running == 0 || !ours {
            // Not ours: let it end the process as it would have without us.
            libc::signal(signal, libc::SIG_DFL);
            return;
        }
        for (to, from) in frame.gpr_out.iter_mut().zip(ORDER) {
            *to = registers[from as usize] as u64;
        }
        frame.rflags_out = registers[libc::REG_EFL as usize] as u64;
        frame.rip_out = rip;
        frame.trap = trap;
        frame.error = registers[libc::REG_ERR as usize] as u64;
        frame.address = address;
        let image = context.uc_mcontext.fpregs.cast::<u8>();
        let magic = image.add(SOFTWARE).cast::<u32>().read_unaligned();
        let len = if magic == MAGIC { XSAVE_LEN } else { 512 };
        frame.xsave_out.fill(0);
        std::ptr::copy_nonoverlapping(image, frame.xsave_out.as_mut_ptr(), len);
        if magic != MAGIC {
            frame.xsave_out[512] = 3;
        }
        registers[libc::REG_RIP as usize] = RESUME.load(Ordering::Relaxed) as i64;
        registers[libc::REG_EFL as usize] = 0x202;
    }
}
