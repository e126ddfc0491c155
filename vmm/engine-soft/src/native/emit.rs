//! Emitters of the fast path of memory accesses, and of native passthrough.

use iced_x86::{Code, Instruction, MemoryOperand, OpKind, Register};

use super::assembler::{Assembler, Label, at, cc, field_of_cpu, indexed_field};
use super::coalescing::{OperandLookup, UncoalescedOperand};
use super::code_map::Part;
use super::flags::FlagsRematerialisation;
use super::fusion::FusedPair;
use super::out_of_line::{InterpreterCall, SlowPath};
use super::plan::{Memory, Passthrough};
use super::registers::{HOST, is_high_byte, sized};
use super::runtime::{Routines, field, gpr};
use crate::cpu::Cpu;
use crate::site::RunningSite;
use crate::softmmu::TlbLayout;

use Register::{EAX, ECX, RAX, RCX};

pub const ENTRIES: usize =
    std::mem::offset_of!(Cpu, data_tlb) + std::mem::offset_of!(crate::softmmu::DataTlb, entries);
pub const READ: usize = std::mem::offset_of!(crate::softmmu::TlbEntry, read);
pub const WRITE: usize = std::mem::offset_of!(crate::softmmu::TlbEntry, write);
pub const HOST_ADDRESS: usize = std::mem::offset_of!(crate::softmmu::TlbEntry, host);
const SEGMENT_BASE: usize = std::mem::offset_of!(Cpu, segment_base);

/// Emitter of a translation block's code.
pub struct Emitter {
    /// Assembler with the code so far.
    pub a: Assembler,
    pub layout: TlbLayout,
    pub entries: usize,
    pub routines: Routines,
    /// True if the code is for the kernel's privilege, not the user's.
    pub kernel: bool,
    /// True if the code is for a window, with a model attached.
    pub attached: bool,
    /// True if the clock advances by the costs of blocks ([`crate::block_costs`]).
    pub by_block: bool,
    /// Host address of the [`super::TranslationBlock`], which routines need.
    pub translation: u64,
    /// Number of operations in the block.
    pub count: u32,
    /// Site of the block; None for code without a model.
    pub site: Option<RunningSite>,
    /// Interpreter calls that are still to be emitted out of line.
    pub interpreter_calls: Vec<InterpreterCall>,
    /// Index in `interpreter_calls` of the first call for the operations that are emitted now. Operations may be emitted more than once.
    pub first_interpreter_call: usize,
    /// Slow paths of look-ups that are still to be emitted out of line.
    pub slow_paths: Vec<SlowPath>,
    /// How the operand of each operation is looked up.
    pub operand_lookups: Vec<OperandLookup>,
    /// Individual look-ups of spans' operands that are still to be emitted out of line.
    pub uncoalesced: Vec<UncoalescedOperand>,
    /// Slow paths of load/store fusion that are still to be emitted out of line.
    pub fused_pairs: Vec<FusedPair>,
    /// Slow paths of push/pop runs that are still to be emitted out of line.
    pub push_pop_runs: Vec<super::stack::PushPopRun>,
    /// True if [`super::Native::vectors_wide`] is known to be set.
    pub wide: bool,
    /// True if the guest's flags are in the host's flags.
    pub flags_in_host: bool,
    /// True if the guest's flags are in [`super::Native::flags`], or are not needed any more.
    pub flags_in_memory: bool,
    /// Instructions that compute the guest's flags again; none if that is impossible.
    pub rematerialisation: Option<FlagsRematerialisation>,
    /// For each instruction, whether the flags after it may be needed: see [`super::flags::flags_needed_after`].
    pub flags_needed: Vec<bool>,
}

/// Returns the index of the full register that contains a general register.
pub fn number(register: Register) -> usize {
    register.full_register().number()
}

impl Emitter {
    /// Creates an emitter. `kernel` says that the code is for the kernel's privilege, and `attached` that it is for a window.
    pub fn new(
        a: Assembler,
        layout: TlbLayout,
        (kernel, attached): (bool, bool),
        routines: Routines,
        (translation, count): (u64, u32),
        flags_needed: Vec<bool>,
        operand_lookups: Vec<OperandLookup>,
    ) -> Self {
        Self {
            a,
            layout,
            entries: ENTRIES + layout.first[usize::from(kernel)],
            routines,
            kernel,
            attached,
            by_block: false,
            translation,
            count,
            site: None,
            interpreter_calls: Vec::new(),
            first_interpreter_call: 0,
            slow_paths: Vec::new(),
            operand_lookups,
            uncoalesced: Vec::new(),
            fused_pairs: Vec::new(),
            push_pop_runs: Vec::new(),
            wide: false,
            flags_in_host: false,
            flags_in_memory: true,
            rematerialisation: None,
            flags_needed,
        }
    }

    /// Calls `emit`, whose code is recorded as `part` in the code map.
    pub fn within<R>(&mut self, part: Part, emit: impl FnOnce(&mut Self) -> R) -> R {
        let outer = self.a.part(part);
        let result = emit(self);
        self.a.part(outer);
        result
    }

    /// Returns the host register of a guest register. A guest register that is in memory is loaded into `scratch`.
    pub fn fetch(&mut self, guest: usize, scratch: Register) -> Register {
        match HOST[guest] {
            Some(host) => host,
            None => {
                self.a.load(scratch, gpr(guest));
                scratch
            }
        }
    }

    /// Emits code that computes the linear address of an instruction's memory operand in RAX. Uses RCX. Changes flags only for FS and GS.
    pub fn address(&mut self, i: &Instruction) {
        if i.memory_base() == Register::RIP {
            self.a.constant(RAX, i.ip_rel_memory_address());
        } else {
            let operand = self.mapped_address(i);
            match operand {
                None => self.a.constant(RAX, i.memory_displacement64()),
                Some(m) => {
                    if m.index == Register::None && m.displacement == 0 {
                        self.a.copy(RAX, m.base);
                    } else {
                        self.a.rm(Code::Lea_r64_m, RAX, m);
                    }
                }
            }
        }
        let segment = match i.memory_segment() {
            Register::FS => 4,
            Register::GS => 5,
            _ => return,
        };
        self.a.rm(
            Code::Add_r64_rm64,
            RAX,
            field_of_cpu(SEGMENT_BASE + 8 * segment),
        );
    }

    /// Returns the operand's address in terms of host registers, without the segment base; none if the address has no register. Guest
    /// registers that are in memory are loaded into RAX and RCX.
    fn mapped_address(&mut self, i: &Instruction) -> Option<MemoryOperand> {
        let (base, index) = (i.memory_base(), i.memory_index());
        if base == Register::None && index == Register::None {
            return None;
        }
        let base = match base {
            Register::None => Register::None,
            b => self.fetch(number(b), RAX),
        };
        let index = match index {
            Register::None => Register::None,
            x => self.fetch(number(x), RCX),
        };
        let displacement = i.memory_displacement64() as i64;
        let scale = if index == Register::None {
            1
        } else {
            i.memory_index_scale()
        };
        // Without a base register, the encoding requires a displacement of four bytes.
        let displ_size = match (base, displacement) {
            (Register::None, _) => 4,
            (_, 0) => 0,
            _ => 1,
        };
        Some(MemoryOperand::new(
            base,
            index,
            scale,
            displacement,
            displ_size,
            false,
            Register::None,
        ))
    }

    /// Returns the operand's linear address as a memory operand, if host registers have all of its parts.
    pub fn plain_address(&mut self, i: &Instruction) -> Option<MemoryOperand> {
        let kept = |r: Register| r == Register::None || HOST[number(r)].is_some();
        let segment = matches!(i.memory_segment(), Register::FS | Register::GS);
        let relative = i.memory_base() == Register::RIP;
        if segment || relative || !kept(i.memory_base()) || !kept(i.memory_index()) {
            return None;
        }
        self.mapped_address(i)
    }

    /// Emits a guest's LEA.
    pub fn lea(&mut self, i: &Instruction) {
        let destination = i.op0_register();
        let n = number(destination);
        let host = HOST[n].unwrap_or(RAX);
        if i.memory_base() == Register::RIP {
            self.a.constant(host, i.ip_rel_memory_address());
        } else {
            match self.mapped_address(i) {
                None if destination.size() == 4 => {
                    self.a
                        .constant(host, i.memory_displacement64() & 0xffff_ffff);
                }
                None => self.a.constant(host, i.memory_displacement64()),
                Some(m) => {
                    let code = if destination.size() == 4 {
                        Code::Lea_r32_m
                    } else {
                        Code::Lea_r64_m
                    };
                    self.a.rm(code, sized(host, destination.size()), m);
                }
            }
        }
        if HOST[n].is_none() {
            self.a.store(gpr(n), host);
        }
    }

    /// Emits the look-up of the linear address in RAX, after which RAX is the host address. The slow path may have the interpreter execute
    /// the operation instead. Uses RCX and flags.
    pub fn look_up(&mut self, memory: Memory, operation: usize, address: Option<MemoryOperand>) {
        let outer = self.a.part(Part::LookUp);
        let interpret = self.interpreter_entry(operation);
        let miss = if memory.conditional {
            interpret
        } else {
            self.a.label()
        };
        self.compare(memory, miss);
        if memory.aligned {
            self.a
                .ri(Code::Test_rm8_imm8, Register::AL, memory.size as i32 - 1);
            self.a.jcc(cc::NE, interpret);
        }
        self.add_host_address();
        if !memory.conditional {
            let resume = self.a.label();
            self.a.bind(resume);
            self.slow_paths.push(SlowPath {
                entry: miss,
                resume,
                interpret,
                memory,
                address,
                operations: [operation; 2],
                fallback: None,
            });
        }
        self.a.part(outer);
    }

    /// Emits the comparison of the linear address in RAX with its TLB entry. After a hit, RAX is the offset from the entry's base, and RCX
    /// is the entry's offset in the table. After a miss, execution continues at `miss`.
    pub fn compare(&mut self, memory: Memory, miss: Label) {
        let tag = if memory.write { WRITE } else { READ };
        let TlbLayout {
            unit,
            index_shift,
            mask,
            ..
        } = self.layout;
        let a = &mut self.a;
        let outer = a.part(Part::LookUp);
        a.rr(Code::Mov_r32_rm32, ECX, EAX);
        if index_shift != 0 {
            a.ri(Code::Shr_rm32_imm8, ECX, index_shift as i32);
        }
        a.ri(Code::And_rm32_imm32, ECX, mask as i32);
        a.rm(
            Code::Sub_r64_rm64,
            RAX,
            indexed_field(self.entries + tag, RCX),
        );
        a.ri(Code::Cmp_RAX_imm32, RAX, (unit - memory.size) as i32);
        a.jcc(cc::A, miss);
        a.part(outer);
    }

    /// Emits code that computes the host address in RAX from the offset in RAX and the entry in RCX.
    pub fn add_host_address(&mut self) {
        let host = indexed_field(self.entries + HOST_ADDRESS, RCX);
        self.within(Part::LookUp, |e| e.a.rm(Code::Add_r64_rm64, RAX, host));
    }

    /// Emits the look-up of an instruction's memory operand, after which RAX is the host address.
    pub fn operand(&mut self, i: &Instruction, memory: Memory, operation: usize) {
        self.clobber_flags();
        self.within(Part::LookUp, |e| {
            e.address(i);
            let address = e.plain_address(i);
            e.look_up(memory, operation, address);
        });
    }

    /// Emits a store of a constant to the host address in RAX. Uses RCX.
    pub fn store_constant(&mut self, value: u64) {
        if value as i64 == i64::from(value as i32) {
            self.a.mi(Code::Mov_rm64_imm32, at(RAX), value as i32);
        } else {
            self.a.constant(RCX, value);
            self.a.mr(Code::Mov_rm64_r64, at(RAX), RCX);
        }
    }

    /// Emits a load of a 64-bit register or memory operand into RCX.
    pub fn value(&mut self, i: &Instruction, operation: usize) {
        if i.op0_kind() == OpKind::Register {
            self.clobber_flags();
            let n = number(i.op0_register());
            match HOST[n] {
                Some(host) => self.a.copy(RCX, host),
                None => self.a.load(RCX, gpr(n)),
            }
        } else {
            let memory = Memory {
                read: true,
                write: false,
                // In a window, a miss leaves the whole instruction to the interpreter. If the slow path reported the read here, the
                // interpreter would report it again when the call's push needs it.
                conditional: self.attached,
                size: 8,
                aligned: false,
                non_temporal: false,
                locked: false,
            };
            self.operand(i, memory, operation);
            self.a.rm(Code::Mov_r64_rm64, RCX, at(RAX));
        }
    }

    /// Emits a store of whether upper halves of vector registers are in use, if an instruction changes that. Leaves flags unchanged.
    fn note_width(&mut self, i: &Instruction) {
        use iced_x86::Mnemonic::{Vzeroall, Vzeroupper};
        let clears = matches!(i.mnemonic(), Vzeroupper | Vzeroall);
        let sets = !self.wide
            && (0..i.op_count())
                .any(|n| i.op_kind(n) == OpKind::Register && i.op_register(n).is_ymm());
        if clears || sets {
            self.wide = sets;
            self.set_width(sets);
        }
    }

    pub fn set_width(&mut self, wide: bool) {
        let field = field_of_cpu(field!(vectors_wide));
        self.a.mi(Code::Mov_rm8_imm8, field, wide.into());
    }

    /// Emits a native passthrough: the instruction with host registers as its operands. Returns false if that is impossible; then nothing
    /// was emitted.
    pub fn passthrough(&mut self, p: &Passthrough, operation: usize) -> bool {
        let i = &p.instruction;
        if i.op0_kind() == OpKind::Register && is_high_byte(i.op0_register()) {
            self.high_byte(p, operation);
            return true;
        }
        // Scratch registers for operands that are guest registers in memory.
        let mut homes: Vec<(usize, Register)> = Vec::new();
        let address = match p.memory {
            Some(_) if p.rax || p.flags_in => {
                if p.cl {
                    return false;
                }
                Some(RCX)
            }
            Some(_) => Some(RAX),
            None => None,
        };
        let mut free: Vec<Register> = [RCX, RAX]
            .into_iter()
            .filter(|r| Some(*r) != address && !(p.rax && *r == RAX) && !(p.cl && *r == RCX))
            .collect();
        let last = i.op_count().wrapping_sub(1);
        for n in 0..i.op_count() {
            if i.op_kind(n) != OpKind::Register || p.cl && n == last {
                continue;
            }
            let r = i.op_register(n);
            if !r.is_gpr() {
                continue;
            }
            let guest = number(r);
            if HOST[guest].is_none() && !homes.iter().any(|(g, _)| *g == guest) {
                let Some(home) = free.pop() else { return false };
                homes.push((guest, home));
            }
        }
        let mut displacement = 0;
        if let Some(memory) = p.memory {
            displacement = self.coalesced_operand(i, memory, operation);
            if address == Some(RCX) {
                self.a.copy(RCX, RAX);
            }
        }
        if p.flags_in {
            self.load_flags();
        }
        if p.rax {
            self.a.copy(RAX, HOST[0].expect("RAX has a host register"));
        }
        match p.count {
            Some(count) => self.a.constant(RCX, count.into()),
            None if p.cl => self.a.copy(RCX, HOST[1].expect("RCX has a host register")),
            None => {}
        }
        for (guest, home) in &homes {
            self.a.load(*home, gpr(*guest));
        }
        let mut moved = *i;
        // The address in RAX or RCX includes the segment base.
        moved.set_segment_prefix(Register::None);
        let mut stored: Option<(usize, Register)> = None;
        let mut also: Option<(usize, Register)> = None;
        for n in 0..i.op_count() {
            match i.op_kind(n) {
                OpKind::Memory => {
                    moved.set_memory_base(address.expect("a memory operand has an address"));
                    moved.set_memory_index(Register::None);
                    moved.set_memory_index_scale(1);
                    moved.set_memory_displ_size(u32::from(displacement != 0));
                    moved.set_memory_displacement64(i64::from(displacement) as u64);
                }
                OpKind::Register if !(p.cl && n == last) => {
                    let r = i.op_register(n);
                    if !r.is_gpr() {
                        continue;
                    }
                    let guest = number(r);
                    let host = match HOST[guest] {
                        Some(host) => host,
                        None => {
                            let (_, home) = homes
                                .iter()
                                .find(|(g, _)| *g == guest)
                                .expect("given a home above");
                            if p.written & 1 << n != 0 {
                                if stored.is_some_and(|(g, _)| g != guest) {
                                    also = Some((guest, *home));
                                } else {
                                    stored = Some((guest, *home));
                                }
                            }
                            *home
                        }
                    };
                    moved.set_op_register(n, sized(host, r.size()));
                }
                _ => {}
            }
        }
        if p.preset_flags && self.flags_needed[operation] {
            self.a.rr(Code::Cmp_r64_rm64, Register::RSP, Register::RSP);
        }
        self.a.put(&moved);
        self.note_width(i);
        for (guest, home) in [stored, also].into_iter().flatten() {
            self.a.store(gpr(guest), home);
        }
        if p.rax {
            self.a.copy(HOST[0].expect("RAX has a host register"), RAX);
        }
        if p.flags_out {
            self.flags_in_host = true;
            self.flags_in_memory = false;
            self.rematerialisation = if homes.is_empty() {
                FlagsRematerialisation::new(p, &moved)
            } else {
                None
            };
        }
        self.resume(operation);
        true
    }
}

impl Emitter {
    /// Emits an operation with AH, CH, DH or BH and a constant. The operation uses AH, since most host registers have no name for their
    /// second byte.
    fn high_byte(&mut self, p: &Passthrough, operation: usize) {
        let host = HOST[number(p.instruction.op0_register())].expect("the first four have one");
        self.a.copy(RAX, host);
        let mut moved = p.instruction;
        moved.set_op0_register(Register::AH);
        self.a.put(&moved);
        if p.written & 1 != 0 {
            self.a.copy(host, RAX);
        }
        if p.flags_out {
            self.flags_in_host = true;
            self.flags_in_memory = false;
            self.rematerialisation = None;
        }
        self.resume(operation);
    }
}
