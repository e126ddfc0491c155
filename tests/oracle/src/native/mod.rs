//! Runs one instruction on the host's CPU, in this process.
//!
//! At fixed addresses are a `Frame`, two stubs (`stubs`), the code pages and the data window. The frame has the registers to load, and the
//! registers after the instruction. The entry stub loads registers from the frame, and the exit stub stores them. The instruction ends with
//! a jump to the exit stub, or with an exception. The exception's signal handler (`signal`) stores the registers from the signal context,
//! and returns to the end of the exit stub.

mod signal;
mod stubs;

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nodescope_x86::{Exception, FxImage, Vector, Vector256};
use thiserror::Error;

use crate::layout::{
    CODE, CODE_LEN, GS_BASE, PAGE, VOID_END, VOID_START, WINDOW, WINDOW_LEN, WRITABLE_LEN,
};
use crate::state::{Outcome, State};

/// Address of the `Frame`, which has the registers before and after the instruction.
const FRAME: u64 = 0x1000_0000;
/// Address of the entry stub, which the exit stub follows.
const STUBS: u64 = 0x1001_0000;
/// Offset of the upper halves of YMM0 to YMM15 in an XSAVE area of standard format (SDM vol. 1 section 13.4.3; CPUID leaf 0xD, subleaf 2,
/// EBX).
const YMM_HIGH: usize = 576;
/// Bytes of the XSAVE area with x87, SSE and AVX state.
const XSAVE_LEN: usize = YMM_HIGH + 256;
/// Value of `Frame::trap` if no exception was raised.
const NO_TRAP: u64 = u64::MAX;

/// Registers before and after the instruction, in the layout that the stubs use.
#[repr(C, align(64))]
struct Frame {
    xsave_in: [u8; 896],
    xsave_out: [u8; 896],
    gpr_in: [u64; 16],
    gpr_out: [u64; 16],
    rflags_in: u64,
    rflags_out: u64,
    /// Address of the instruction.
    entry: u64,
    /// Instruction pointer (RIP) at an exception.
    rip_out: u64,
    /// Vector of the exception, or [`NO_TRAP`].
    trap: u64,
    /// Error code of the exception, as the kernel reports it.
    error: u64,
    /// Address of a page fault, as the kernel reports it (CR2).
    address: u64,
    /// 1 while the instruction under test runs, otherwise 0.
    running: u64,
    host_rsp: u64,
    host_mxcsr: u64,
    host_fcw: u64,
    stack: [u64; 16],
}

/// Reason for which instructions cannot be run on this host.
#[derive(Debug, Error)]
pub enum NativeError {
    /// A feature that the test harness itself needs is missing.
    #[error(
        "this host's CPU or kernel lacks {0}, without which the comparison cannot save and load registers"
    )]
    Feature(&'static str),
    /// The kernel refused a system call.
    #[error("{what}: {source}")]
    Host {
        /// The operation that failed.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Lock that a [`Native`] holds, since it uses fixed addresses.
static IN_USE: Mutex<()> = Mutex::new(());

/// The host's CPU as an executor of single instructions. At most one exists in a process at a time. Only the thread that made it uses it.
pub struct Native {
    /// Installed signal handlers. Fields are dropped in order, so the handlers are removed before the lock is released.
    _signals: signal::Handlers,
    _guard: MutexGuard<'static, ()>,
    exit: u64,
    /// Address and length of the last placed code.
    last: (u64, usize),
    /// Address behind the last placed instruction.
    next: u64,
}

fn check(what: &'static str, ok: bool) -> Result<(), NativeError> {
    if ok {
        Ok(())
    } else {
        Err(NativeError::Host {
            what,
            source: io::Error::last_os_error(),
        })
    }
}

/// Maps anonymous memory at a fixed, free address.
fn map(what: &'static str, at: u64, len: usize, protection: i32) -> Result<(), NativeError> {
    // SAFETY: with MAP_FIXED_NOREPLACE the kernel does not replace an existing mapping.
    let p = unsafe {
        libc::mmap(
            at as *mut libc::c_void,
            len,
            protection,
            libc::MAP_PRIVATE
                | libc::MAP_ANONYMOUS
                | libc::MAP_FIXED_NOREPLACE
                | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    check(what, p as u64 == at)
}

/// Changes the protection of memory that `map` has mapped.
fn protect(what: &'static str, at: u64, len: usize, protection: i32) -> Result<(), NativeError> {
    // SAFETY: callers pass only ranges that `map` has mapped for this module.
    check(what, unsafe {
        libc::mprotect(at as *mut libc::c_void, len, protection) == 0
    })
}

impl Native {
    /// Maps the fixed addresses and fills the window. Waits while another `Native` of this process exists.
    pub fn new(window: &[u8]) -> Result<Self, NativeError> {
        assert_eq!(window.len(), WINDOW_LEN);
        if !(is_x86_feature_detected!("avx") && is_x86_feature_detected!("xsave")) {
            return Err(NativeError::Feature("AVX or XSAVE"));
        }
        let leaf = std::arch::x86_64::__cpuid_count(0xd, 2);
        if leaf.ebx as usize != YMM_HIGH {
            return Err(NativeError::Feature("the default XSAVE layout"));
        }
        let guard = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        let frame_len = size_of::<Frame>().next_multiple_of(PAGE as usize);
        // An earlier `Native` of this process may have left its mappings, which are removed and made again.
        for (at, len) in [
            (FRAME, frame_len),
            (STUBS, PAGE as usize),
            (VOID_START, (VOID_END - VOID_START) as usize),
        ] {
            // SAFETY: the ranges belong to this module, and the lock ensures that no other `Native` uses them.
            unsafe { libc::munmap(at as *mut libc::c_void, len) };
        }
        map("mapping the register frame", FRAME, frame_len, rw)?;
        map("mapping the stubs", STUBS, PAGE as usize, rw)?;
        map(
            "reserving addresses",
            VOID_START,
            (VOID_END - VOID_START) as usize,
            libc::PROT_NONE,
        )?;
        protect("opening the data window", WINDOW, WINDOW_LEN, rw)?;
        protect(
            "opening the code pages",
            CODE,
            CODE_LEN,
            rw | libc::PROT_EXEC,
        )?;
        // SAFETY: window, code pages and stubs have just been mapped as readable and writable, and no references to them exist.
        let exit = unsafe {
            std::ptr::copy_nonoverlapping(window.as_ptr(), WINDOW as *mut u8, WINDOW_LEN);
            std::ptr::write_bytes(CODE as *mut u8, 0xcc, CODE_LEN);
            let (code, exit) = stubs::assemble();
            std::ptr::copy_nonoverlapping(code.as_ptr(), STUBS as *mut u8, code.len());
            exit
        };
        protect(
            "closing the stubs",
            STUBS,
            PAGE as usize,
            libc::PROT_READ | libc::PROT_EXEC,
        )?;
        protect(
            "closing the read-only page",
            WINDOW + WRITABLE_LEN as u64,
            WINDOW_LEN - WRITABLE_LEN,
            libc::PROT_READ,
        )?;
        // SAFETY: user code of 64-bit Linux does not use GS.
        check("setting the base of GS", unsafe {
            libc::syscall(libc::SYS_arch_prctl, ARCH_SET_GS, GS_BASE) == 0
        })?;
        Ok(Self {
            _guard: guard,
            _signals: signal::Handlers::install()?,
            exit,
            last: (CODE, 0),
            next: CODE,
        })
    }

    /// Returns the present bytes of the window.
    pub fn window(&self) -> &[u8] {
        // SAFETY: the window is mapped in `new`. It is written only in `run` and `write`, which borrow `self` mutably.
        unsafe { std::slice::from_raw_parts(WINDOW as *const u8, WINDOW_LEN) }
    }

    /// Writes bytes into the writable part of the window.
    pub fn write(&mut self, address: u64, bytes: &[u8]) {
        let offset = address.wrapping_sub(WINDOW) as usize;
        assert!(offset <= WRITABLE_LEN && bytes.len() <= WRITABLE_LEN - offset);
        // SAFETY: the range is in the writable pages, as checked above.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
    }

    /// Writes an instruction at `rip`, and a jump to the exit stub behind it. Bytes beyond the end of the code pages are cut off.
    pub fn place(&mut self, rip: u64, bytes: &[u8]) {
        let offset = rip.wrapping_sub(CODE) as usize;
        assert!(offset < CODE_LEN);
        let mut code = [0xcc; 32];
        code[..bytes.len()].copy_from_slice(bytes);
        self.next = rip + bytes.len() as u64;
        code[bytes.len()] = 0xe9;
        let displacement = (self.exit as i64 - (self.next as i64 + 5)) as i32;
        code[bytes.len() + 1..bytes.len() + 5].copy_from_slice(&displacement.to_le_bytes());
        let len = (bytes.len() + 5).min(CODE_LEN - offset);
        // SAFETY: both ranges are in the code pages, which are writable, and no references to them exist.
        unsafe {
            std::ptr::write_bytes(self.last.0 as *mut u8, 0xcc, self.last.1);
            std::ptr::copy_nonoverlapping(code.as_ptr(), rip as *mut u8, len);
        }
        self.last = (rip, len);
    }

    /// Runs the instruction that [`Native::place`] has placed at `state.rip`.
    pub fn run(&mut self, state: &State) -> Outcome {
        assert_eq!(state.rip, self.last.0);
        let frame = FRAME as *mut Frame;
        // SAFETY: the frame is mapped, and no other reference to it exists while `run` borrows `self`. The entry stub follows the C calling
        // convention and restores all that it changes. The placed code ends with a jump to the exit stub.
        unsafe {
            let f = &mut *frame;
            f.gpr_in = state.gpr;
            f.rflags_in = state.rflags;
            f.entry = state.rip;
            f.trap = NO_TRAP;
            f.error = 0;
            f.address = 0;
            pack(state, &mut f.xsave_in);
            let enter: extern "C" fn() = std::mem::transmute::<u64, extern "C" fn()>(STUBS);
            f.running = 1;
            enter();
            (*frame).running = 0;
            self.outcome(&*frame, state.rip, self.next)
        }
    }

    fn outcome(&self, f: &Frame, start: u64, next: u64) -> Outcome {
        let mut state = State {
            gpr: f.gpr_out,
            rip: next,
            rflags: f.rflags_out,
            fx: FxImage::default(),
            vector: Vector256::default(),
        };
        unpack(&f.xsave_out, &mut state);
        let mut exception = None;
        if f.trap != NO_TRAP {
            state.rip = f.rip_out;
            // The resume flag is set in the RFLAGS image of a fault (SDM vol. 3B section 17.3.1.1).
            state.rflags &= !(1 << 16);
            let vector = f.trap as u8;
            if vector == Vector::Breakpoint as u8 && f.rip_out != start + 1 {
                // The instruction branched to an INT3: the branch itself raised no exception.
                state.rip = f.rip_out - 1;
            } else if vector == Vector::PageFault as u8
                && f.rip_out != start
                && f.rip_out == f.address
            {
                // The instruction branched to an address without code: the branch itself raised no exception.
            } else {
                exception = Some(Exception {
                    vector: vector_of(vector),
                    error: f.error as u32,
                    address: if vector == Vector::PageFault as u8 {
                        f.address
                    } else {
                        0
                    },
                });
            }
        }
        Outcome { exception, state }
    }
}

/// Code of `ARCH_SET_GS` for arch_prctl(2).
const ARCH_SET_GS: i32 = 0x1001;

fn vector_of(number: u8) -> Vector {
    use Vector::*;
    [
        DivideError,
        Debug,
        Breakpoint,
        Overflow,
        BoundRange,
        InvalidOpcode,
        DeviceNotAvailable,
        DoubleFault,
        InvalidTss,
        SegmentNotPresent,
        StackFault,
        GeneralProtection,
        PageFault,
        X87,
        AlignmentCheck,
        MachineCheck,
        Simd,
    ]
    .into_iter()
    .find(|&v| v as u8 == number)
    .unwrap_or(Nmi)
}

/// Packs registers into an XSAVE area of standard format, with all three components present.
fn pack(state: &State, area: &mut [u8; 896]) {
    area[..160].copy_from_slice(state.fx.legacy());
    for (i, v) in state.vector.0.iter().enumerate() {
        area[160 + 16 * i..][..16].copy_from_slice(&v[..16]);
        area[YMM_HIGH + 16 * i..][..16].copy_from_slice(&v[16..]);
    }
    area[512..576].fill(0);
    area[512] = 7;
}

/// Unpacks an XSAVE area into a state. Components in their initial configuration may be absent (SDM vol. 1 section 13.6).
fn unpack(area: &[u8; 896], state: &mut State) {
    let present = area[512];
    let mut header = [0; 160];
    if present & 1 != 0 {
        header.copy_from_slice(&area[..160]);
    } else {
        header[..2].copy_from_slice(&0x37f_u16.to_le_bytes());
    }
    header[24..28].copy_from_slice(&area[24..28]);
    state.fx.0[..160].copy_from_slice(&header);
    for (i, v) in state.vector.0.iter_mut().enumerate() {
        if present & 2 != 0 {
            v[..16].copy_from_slice(&area[160 + 16 * i..][..16]);
        }
        if present & 4 != 0 {
            v[16..].copy_from_slice(&area[YMM_HIGH + 16 * i..][..16]);
        }
    }
}
