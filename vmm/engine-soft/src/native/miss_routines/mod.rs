//! Miss routines: machine code that serves misses of the first-level data cache by a call of the model's function
//! ([`nodescope_plugin_api::DirectMissFunction`]), past the platform. They serve reads, writes, and reads with a write behind them.
//!
//! The way look-up ([`super::way_lookup`]) jumps to a miss routine if no way of the set has the wanted line. The routine finds the line
//! that is replaced and the page of the wanted line, and describes the miss ([`describe`]). A condition may not hold: the set is not full,
//! the TLB does not have the page, or the set has the line for another linear address. Then the routine returns zero, and a function serves
//! the miss ([`super::access`]). These checks come first, so that each miss is reported once.
//!
//! [`call`] is the call of the model. After the usual answer the line replaces the oldest line ([`fill`]). After other answers a function
//! finishes the miss ([`Cpu::finish_direct_miss`]).

mod call;
mod describe;
mod fill;

use std::mem::offset_of;

use iced_x86::{Code, MemoryOperand, Register};
use nodescope_plugin_api::{
    Access, Context, DirectMiss, DirectMissFunction, MemRef, Outcome, Permission, Privilege, Site,
};

use super::access::call_out;
use super::assembler::{Assembler, Label, cc, field_of_cpu, indexed_field};
use super::code_map::{self, Part};
use super::registers::sized;
use super::runtime::field;
use super::way_lookup::DataAccess;
use super::{CodeAddress, Host};
use crate::cpu::Cpu;
use crate::softmmu::{DataTlb, LruSets, ModifiedLines, WayDirectory};

use Register::{EAX, R8, R9, R9D, R10, R11, RAX, RCX, RDI, RDX, RSI};

/// Offset of the pair of TLB entries of the wanted line's set, in bytes.
const ENTRY: Register = RCX;
/// Offset of the first way of the wanted line's set in the way directory, in bytes among words of 8 bytes.
const FIRST_WAY: Register = RSI;
/// Offset of the way that the wanted line gets, in bytes among words of 8 bytes, from the first way of the first set.
const WAY: Register = R8;
/// Physical address of the line that is replaced.
const VICTIM: Register = R9;
/// Offset of the TLB entry of the wanted line's page or large page, in bytes, among the page entries of the privilege.
const PAGE: Register = R10;
/// Stall cycles of the miss.
const STALL: Register = RDI;
/// [`crate::softmmu::WritePermission`] of the wanted line.
const WRITES: Register = R9;

/// Registers that a miss routine saves and changes. The model's function may change them, too. The routine also changes RAX and RCX, and
/// RSI and RDX, which its caller has saved.
const CHANGED: [Register; 5] = [RDI, R8, R9, R10, R11];

const DATA_TLB: usize = offset_of!(Cpu, data_tlb);
const ENTRIES: usize = DATA_TLB + offset_of!(DataTlb, entries);
const DIRECTORY: usize = DATA_TLB + offset_of!(DataTlb, directory);
const SETS: usize = DIRECTORY + offset_of!(WayDirectory, sets);
const LINES: usize = SETS + offset_of!(LruSets, lines);
const STAMPS: usize = SETS + offset_of!(LruSets, stamps);
const OLDEST_STAMPS: usize = SETS + offset_of!(LruSets, oldest_stamps);
const MODIFIED_LINES: usize = DIRECTORY + offset_of!(WayDirectory, modified);
const MODIFIED_COUNT: usize = MODIFIED_LINES + offset_of!(ModifiedLines, count);

/// log2 of the bytes of a line: whole sets have lines of no other size.
const LINE_SHIFT: i32 = WayDirectory::LINE.trailing_zeros() as i32;

/// Parameters that the code of miss routines depends on.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Parameters {
    /// log2 of the number of way slots of a set in the way directory.
    way_shift: u32,
    /// Cycles per unit of work, as [`crate::cpi::Cpi::value`] gives them.
    cpi: u32,
    /// True if blocks have costs of their own.
    by_block: bool,
    /// True if costs are attributed to blocks.
    profiling: bool,
}

/// A miss routine to be emitted.
#[derive(Clone, Copy)]
struct MissRoutine {
    parameters: Parameters,
    host: Host,
    kernel: bool,
    access: DataAccess,
    /// Label of the code that returns zero, with nothing done.
    slow: Label,
    /// Address of [`call::model`]'s code.
    call: u64,
    /// Address of the routine that calls [`finish`].
    finish: u64,
}

/// Addresses of miss routines, by privilege (user, kernel) and access; None where there is no routine.
pub type MissRoutines = [[Option<CodeAddress>; 3]; 2];

/// The miss routines that a node has.
#[derive(Default)]
pub struct MissRoutineCache(Vec<(Parameters, MissRoutines)>);

impl MissRoutineCache {
    /// Forgets all routines.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// State of a vCPU's miss routines.
#[repr(C)]
pub struct DirectState {
    /// The miss that is reported. Machine code writes the fields that differ from miss to miss.
    miss: DirectMiss,
    /// The model's function; None while there are no routines.
    function: Option<DirectMissFunction>,
    /// First argument of the function.
    model: *mut (),
    /// The last answer that a routine does not serve itself.
    outcome: Outcome,
}

impl Default for DirectState {
    fn default() -> Self {
        Self {
            miss: DirectMiss {
                reference: MemRef {
                    vcpu: 0,
                    privilege: Privilege::User,
                    access: Access::Read,
                    context: Context(0),
                    physical: 0,
                    linear: 0,
                    size: 0,
                    now: 0,
                    site: Site::default(),
                    non_temporal: false,
                    locked: false,
                    large_page: false,
                },
                oldest: 0,
                modified: std::ptr::null(),
                modified_count: 0,
                charges: std::ptr::null_mut(),
            },
            function: None,
            model: std::ptr::null_mut(),
            outcome: Outcome::new(0, Permission::None, None),
        }
    }
}

impl Cpu {
    /// Prepares the vCPU's miss routines, if the model has a function for them. Asks the model once while the model is attached.
    #[cold]
    #[inline(never)]
    pub(super) fn prepare_miss_routines(&mut self) {
        self.native.miss_routines_requested = true;
        let host = self.native.host;
        let parameters = Parameters {
            way_shift: self.data_tlb.directory.sets.way_shift(),
            cpi: self.cpi.value(),
            by_block: self.by_block,
            profiling: self.profiling(),
        };
        if !host.avx || !host.bmi || parameters.way_shift == 0 {
            return;
        }
        let Some(direct) = self.platform().direct_misses() else {
            return;
        };
        if let Some(routines) = self.miss_routines(parameters) {
            let id = self.id;
            let modified = self.data_tlb.directory.modified.lines.as_ptr();
            let state = &mut self.native.direct;
            *state = DirectState::default();
            state.function = Some(direct.function());
            state.model = direct.model().as_ptr();
            state.miss.reference.vcpu = id;
            state.miss.modified = modified;
            self.native.miss_routines = routines;
        }
    }

    /// Finds or emits the miss routines for these parameters. Returns None where the translation cache is full, or a template is wrong.
    fn miss_routines(&mut self, parameters: Parameters) -> Option<MissRoutines> {
        let host = self.native.host;
        let cache = &mut self.code().translation_cache;
        let known = &cache.miss_routines.0;
        if let Some((_, routines)) = known.iter().find(|(made, _)| *made == parameters) {
            return Some(*routines);
        }
        let arena = cache.arena.as_mut()?;
        let mut a = Assembler::new(arena.next(), arena.next_out_of_line());
        a.part(Part::Miss);
        let call = call::model(&mut a);
        let finish = call_out(&mut a, host, &[finish]);
        let mut addresses = [[0; 3]; 2];
        for kernel in [false, true] {
            for access in DataAccess::ALL {
                let routine = MissRoutine {
                    parameters,
                    host,
                    kernel,
                    access,
                    slow: a.label(),
                    call,
                    finish,
                };
                addresses[usize::from(kernel)][access as usize] = a.here();
                routine.emit(&mut a);
            }
        }
        code_map::note(a.pieces());
        let (code, out_of_line) = match a.finish() {
            Ok(code) => code,
            Err(error) => {
                // Results are the same; only the speed differs.
                tracing::error!(%error, "no miss is served directly, since the routines cannot be assembled");
                debug_assert!(false, "{error}");
                return None;
            }
        };
        let pushed = arena.push(&code, &out_of_line)?;
        let routines = addresses.map(|of_privilege| of_privilege.map(|at| pushed.at(at)));
        cache.miss_routines.0.push((parameters, routines));
        Some(routines)
    }

    /// Forgets the miss routines, whose code may be gone, and the model's function.
    pub(crate) fn forget_miss_routines(&mut self) {
        self.native.miss_routines = MissRoutines::default();
        self.native.direct = DirectState::default();
        self.native.miss_routines_requested = false;
    }
}

/// Finishes a miss after an answer that a miss routine does not serve itself. `access` is the routine's [`DataAccess`]. Returns the host
/// address of the operand.
///
/// # Safety
/// As for `interpret` in [`super::runtime`].
unsafe extern "sysv64" fn finish(cpu: *mut Cpu, access: u32) -> *mut u8 {
    // SAFETY: as in `runtime::interpret`.
    let cpu = unsafe { &mut *cpu };
    cpu.native.activity.misses += 1;
    let (linear, what) = (cpu.native.linear, cpu.native.described);
    let count = cpu.arrive_at_block_start(what);
    let stall = cpu.stall;
    let write = access != DataAccess::Read as u32;
    let both = (access == DataAccess::ReadWrite as u32).then(|| cpu.origins(what)[1]);
    let outcome = cpu.native.direct.outcome;
    let place = cpu.finish_direct_miss(linear, (what & 0xff) as usize, write, both, outcome);
    if cpu.stall != stall {
        cpu.shorten_budget(count);
    }
    place
}

/// Assembles a jump to the miss routine of an access; without such a routine, execution continues behind this code. On entry the address is
/// in [`super::Native::linear`], RCX is the offset of the address's TLB entry, and RSI, RDX and the return address are on the stack. The
/// routine returns the host address, or zero, in RAX. Uses RAX.
pub fn jump_to_miss_routine(a: &mut Assembler, kernel: bool, access: DataAccess) {
    let privilege = size_of::<[Option<CodeAddress>; 3]>() * usize::from(kernel);
    let routines = field!(miss_routines) + privilege + 8 * access as usize;
    let none = a.label();
    a.load(RAX, routines);
    a.rr(Code::Test_rm64_r64, RAX, RAX);
    a.jcc(cc::E, none);
    a.r(Code::Jmp_rm64, RAX);
    a.bind(none);
}

impl MissRoutine {
    fn emit(&self, a: &mut Assembler) {
        let (odd, done) = (a.label(), a.label());
        for register in CHANGED {
            a.r(Code::Push_r64, register);
        }
        let labels = self.find(a);
        self.describe(a);
        for register in [ENTRY, WAY] {
            a.r(Code::Push_r64, register);
        }
        a.call_to(self.call);
        for register in [WAY, ENTRY] {
            a.r(Code::Pop_r64, register);
        }
        a.mi(Code::Mov_rm64_imm32, field_of_cpu(MODIFIED_COUNT), 0);
        self.decode(a, odd);
        self.fill(a);
        a.bind(done);
        self.restore(a);
        a.plain(Code::Retnq);
        // Out of line: rarer cases.
        self.find_out_of_line(a, labels);
        a.bind(odd);
        a.store(field!(direct.outcome), RAX);
        a.store(field!(direct.outcome) + 8, RDX);
        self.restore(a);
        a.constant(RCX, self.access as u64);
        a.jmp_to(self.finish);
        a.bind(self.slow);
        a.rr(Code::Xor_r32_rm32, EAX, EAX);
        a.jmp(done);
    }

    /// Assembles loads of all registers that the routine and its caller have saved.
    fn restore(&self, a: &mut Assembler) {
        for register in CHANGED.into_iter().rev() {
            a.r(Code::Pop_r64, register);
        }
        a.r(Code::Pop_r64, RSI);
        a.r(Code::Pop_r64, RDX);
    }

    /// Decodes the model's answer in RAX and RDX: computes [`STALL`], and [`WRITES`] for a page that may be written. Continues at `odd`
    /// after other answers than the usual one. Uses R10.
    fn decode(&self, a: &mut Assembler, odd: Label) {
        const KINDS: i32 = 3;
        let kinds = [
            Permission::Read,
            Permission::Exclusive,
            Permission::ReadWrite,
        ];
        a.copy(WRITES, RAX);
        a.ri(Code::Shr_rm64_imm8, WRITES, 32);
        a.rr(Code::Mov_r32_rm32, sized(STALL, 4), EAX);
        // WRITES becomes the index in `kinds`.
        let least = Outcome::upper_half(Permission::Read);
        a.ri(Code::Sub_rm32_imm32, R9D, least as i32);
        a.ri(Code::Cmp_rm32_imm8, R9D, KINDS);
        a.jcc(cc::AE, odd);
        let oldest = field_of_cpu(field!(direct.miss.oldest));
        a.rm(Code::Cmp_r64_rm64, RDX, oldest);
        a.jcc(cc::NE, odd);
        let table = (0..).zip(kinds).fold(0, |table, (n, permission)| {
            debug_assert_eq!(Outcome::upper_half(permission) - least, n);
            table | (crate::softmmu::WritePermission::of(permission, true) as u64) << (8 * n)
        });
        a.ri(Code::Shl_rm32_imm8, R9D, 3);
        a.constant(R10, table);
        a.rrr(Code::VEX_Shrx_r32_rm32_r32, R9D, sized(R10, 4), R9D);
        a.ri(Code::And_rm32_imm8, R9D, 3);
    }

    /// Returns whether the line is going to be written.
    fn writes(&self) -> bool {
        self.access != DataAccess::Read
    }

    /// Returns the memory operand of a field of the page's entry.
    fn of_page(&self, page: Register, field: usize) -> MemoryOperand {
        indexed_field(
            ENTRIES + DataTlb::PAGES[usize::from(self.kernel)] + field,
            page,
        )
    }

    /// Computes [`FIRST_WAY`] from [`ENTRY`], the offset of the set's pair of entries.
    fn first_way(&self, a: &mut Assembler) {
        a.copy(FIRST_WAY, ENTRY);
        let shift = self.parameters.way_shift + 3;
        if shift > LINE_SHIFT as u32 {
            let by = shift - LINE_SHIFT as u32;
            a.ri(Code::Shl_rm64_imm8, FIRST_WAY, by as i32);
        }
    }

    /// Computes in RAX the oldest stamp of the set. Stamps are loaded one by one, as they were stored: a load of a vector soon after would
    /// wait, since the host does not forward such stores.
    fn oldest_stamp(&self, a: &mut Assembler) {
        let stamp = |in_set: usize| indexed_field(STAMPS + 8 * in_set, FIRST_WAY);
        a.rm(Code::Mov_r64_rm64, RAX, stamp(0));
        for in_set in 1..1 << self.parameters.way_shift {
            a.rm(Code::Cmp_r64_rm64, RAX, stamp(in_set));
            a.rm(Code::Cmova_r64_rm64, RAX, stamp(in_set));
        }
    }
}
