//! Handlers of the signals into which the kernel turns exceptions of the instruction under test.

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
/// Size of the handlers' stack in bytes.
const STACK: usize = 256 << 10;
/// Offset of the kernel's description of an extended FPU frame within the FXSAVE image (`sw_reserved`).
const SOFTWARE: usize = 464;
/// Magic number at the beginning of the kernel's description of an extended FPU frame (`FP_XSTATE_MAGIC1`).
const MAGIC: u32 = 0x4650_5853;

/// Address at which the handler resumes; set before the handlers are installed.
static RESUME: AtomicU64 = AtomicU64::new(0);

/// Installed handlers. Dropping restores the former handlers.
pub struct Handlers {
    old: [libc::sigaction; SIGNALS.len()],
    old_stack: libc::stack_t,
    /// Alternate stack on which the handlers run.
    _stack: Box<[u8]>,
    /// Marker: the alternate stack belongs to this thread.
    _not_send: std::marker::PhantomData<*mut ()>,
}

impl Handlers {
    /// Installs the handlers for this process, and their alternate stack for the calling thread.
    pub fn install() -> Result<Self, NativeError> {
        RESUME.store(stubs::resume(), Ordering::Relaxed);
        let mut stack = vec![0; STACK].into_boxed_slice();
        // SAFETY: all-zero is a valid value of these C structures. The pointers are valid for the calls. The stack outlives its
        // registration, since `Drop` restores the former one first.
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
            // SAFETY: `install` has filled in `old`.
            unsafe { libc::sigaction(*signal, old, std::ptr::null_mut()) };
        }
        // SAFETY: `install` has filled in `old_stack`.
        unsafe { libc::sigaltstack(&self.old_stack, std::ptr::null_mut()) };
    }
}

/// Stores the interrupted registers from the signal context in the frame, and returns to the end of the exit stub.
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
    // SAFETY: the kernel passes a valid context. While the handlers are installed the frame is mapped. The interrupted code is the
    // instruction under test, which has no Rust reference to the frame; any other exception ends the process.
    unsafe {
        let context = &mut *context.cast::<libc::ucontext_t>();
        let registers = &mut context.uc_mcontext.gregs;
        let frame = &mut *(FRAME as *mut Frame);
        let rip = registers[libc::REG_RIP as usize] as u64;
        let trap = registers[libc::REG_TRAPNO as usize] as u64;
        let address = registers[libc::REG_CR2 as usize] as u64;
        // The instruction pointer is in the reserved range, or at an address without code to which the instruction branched.
        let ours = (VOID_START..VOID_END).contains(&rip) || trap == 14 && rip == address;
        if frame.running == 0 || !ours {
            // Another exception: the default action ends the process.
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
