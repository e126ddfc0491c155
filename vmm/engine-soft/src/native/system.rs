//! Templates of frequent instructions of kernels: CLI and STI, SWAPGS, RDTSC, PUSHFQ, and division.

use iced_x86::{Code, Instruction, OpKind};
use nodescope_x86::bits::{cr4, rflags};
use nodescope_x86::state::{Segment, seg};

use super::Left;
use super::assembler::{LEFT, at, cc, field_of_cpu};
use super::emit::{Emitter, number};
use super::plan::{Memory, System};
use super::registers::{HOST, STACK, sized};
use super::runtime::{field, gpr};
use crate::cpu::Cpu;

use iced_x86::Register::{EAX, ECX, EDX, RAX, RCX, RDX};

const CPL: usize = std::mem::offset_of!(Cpu, cpl);
const RFLAGS: usize = std::mem::offset_of!(Cpu, rflags);
const GS_BASE: usize = std::mem::offset_of!(Cpu, segments)
    + std::mem::offset_of!(nodescope_x86::Segments, data)
    + seg::GS * size_of::<Segment>()
    + std::mem::offset_of!(Segment, base);
const KERNEL_GS_BASE: usize =
    std::mem::offset_of!(Cpu, msrs) + std::mem::offset_of!(nodescope_x86::Msrs, kernel_gs_base);
const GS_IN_USE: usize = std::mem::offset_of!(Cpu, segment_base) + 8 * seg::GS;
const CR4: usize =
    std::mem::offset_of!(Cpu, control) + std::mem::offset_of!(nodescope_x86::Control, cr4);

/// Returns the offset of a field of the vCPU's clocks.
macro_rules! time {
    ($f:ident) => {
        std::mem::offset_of!(Cpu, time) + std::mem::offset_of!(nodescope_x86::Time, $f)
    };
}

// The templates use RDX as the host register of the guest's RDX.
const _: () = {
    assert!(matches!(HOST[2], Some(RDX)));
};

impl Emitter {
    /// Emits the template of a system instruction; `count` is the number of instructions of the block.
    pub fn system(&mut self, what: System, operation: usize, count: i32) {
        self.clobber_flags();
        match what {
            System::SwapGs => self.swap_gs(operation),
            System::DisableInterrupts => {
                self.check_ring_0(operation);
                self.a.mi(
                    Code::And_rm64_imm32,
                    field_of_cpu(RFLAGS),
                    !(rflags::IF as i32),
                );
            }
            System::EnableInterrupts => self.enable_interrupts(operation),
            System::PushFlags => self.push_flags(operation),
            System::ReadClock => self.read_clock(operation, count),
            System::Call | System::Return => unreachable!("they end their block"),
        }
        self.resume(operation);
    }

    /// Emits a check for ring 0: at rings 1 and 2, which also use code for the kernel, the interpreter carries out the operation.
    fn check_ring_0(&mut self, operation: usize) {
        let interpret = self.interpreter_entry(operation);
        self.a.mi(Code::Cmp_rm8_imm8, field_of_cpu(CPL), 0);
        self.a.jcc(cc::NE, interpret);
    }

    fn swap_gs(&mut self, operation: usize) {
        self.check_ring_0(operation);
        self.a.load(RAX, GS_BASE);
        self.a.load(RCX, KERNEL_GS_BASE);
        self.a.store(KERNEL_GS_BASE, RAX);
        self.a.store(GS_BASE, RCX);
        self.a.store(GS_IN_USE, RCX);
    }

    /// Emits STI. If the budget is not spent and ends in time for the next interrupt, no interrupt can be due. Otherwise the interpreter
    /// carries out STI.
    fn enable_interrupts(&mut self, operation: usize) {
        self.check_ring_0(operation);
        let interpret = self.interpreter_entry(operation);
        let done = self.a.label();
        let enabled = rflags::IF as i32;
        self.a
            .mi(Code::Test_rm32_imm32, field_of_cpu(RFLAGS), enabled);
        self.a.jcc(cc::NE, done);
        self.a.mi(
            Code::Cmp_rm8_imm8,
            field_of_cpu(field!(ends_at_interrupt)),
            0,
        );
        self.a.jcc(cc::E, interpret);
        self.a.rr(Code::Test_rm64_r64, LEFT, LEFT);
        self.a.jcc(cc::S, interpret);
        self.a
            .mi(Code::Or_rm64_imm32, field_of_cpu(RFLAGS), enabled);
        self.a.bind(done);
    }

    /// Emits PUSHFQ: VM and RF read as zero (SDM vol. 2B).
    fn push_flags(&mut self, operation: usize) {
        // `flags_without` reads the status flags from memory.
        self.save_flags();
        self.stack(STACK, -8, true, operation);
        self.a.store(field!(spill), RAX);
        self.flags_without(rflags::VM | rflags::RF);
        self.a.load(RAX, field!(spill));
        self.a.mr(Code::Mov_rm64_r64, at(RAX), RCX);
        self.move_stack(-8);
    }

    /// Emits a load of RFLAGS without some bits into RCX. The guest's status flags are in memory. Uses RAX.
    pub fn flags_without(&mut self, bits: u64) {
        let kept = !(rflags::STATUS | bits);
        self.a.load(RCX, RFLAGS);
        self.a.ri(Code::And_rm64_imm32, RCX, kept as i32);
        let packed = field!(flags);
        // OF, then SF, ZF, AF, PF and CF.
        self.a.rm(Code::Movzx_r32_rm8, EAX, field_of_cpu(packed));
        self.a.ri(Code::Shl_rm32_imm8, EAX, 11);
        self.a.rr(Code::Or_r32_rm32, ECX, EAX);
        self.a
            .rm(Code::Movzx_r32_rm8, EAX, field_of_cpu(packed + 1));
        self.a.ri(Code::And_rm32_imm32, EAX, 0xd5);
        self.a.rr(Code::Or_r32_rm32, ECX, EAX);
    }

    /// Emits RDTSC: [`Cpu::now`] plus the guest's offset.
    fn read_clock(&mut self, operation: usize, count: i32) {
        if !self.kernel {
            let interpret = self.interpreter_entry(operation);
            self.a
                .mi(Code::Test_rm32_imm32, field_of_cpu(CR4), cr4::TSD as i32);
            self.a.jcc(cc::NE, interpret);
        }
        let add = |e: &mut Self, field| e.a.rm(Code::Add_r64_rm64, RAX, field_of_cpu(field));
        // Work done since the clock was last set. The budget has been reduced by the whole block already.
        if self.by_block {
            self.a.copy(RCX, LEFT);
            self.a.ri(Code::Sar_rm64_imm8, RCX, Left::BITS as i32);
            self.a.load(RAX, field!(total));
            self.a.rr(Code::Sub_r64_rm64, RAX, RCX);
            self.a.ri(Code::Sub_rm64_imm8, RAX, 1);
            add(self, field!(entered_work));
        } else {
            self.a.rr(Code::Mov_r32_rm32, EAX, sized(LEFT, 4));
            self.a
                .ri(Code::And_rm32_imm32, EAX, Left::INSTRUCTIONS as i32);
            self.a
                .ri(Code::Sub_rm64_imm8, RAX, count - operation as i32);
            add(self, field!(entered_at));
        }
        let cpi = std::mem::offset_of!(Cpu, cpi) + crate::cpi::Cpi::VALUE;
        self.a.rm(Code::Mov_r32_rm32, ECX, field_of_cpu(cpi));
        self.a.rr(Code::Imul_r64_rm64, RAX, RCX);
        let fraction = time!(cycle_fraction);
        self.a.rm(Code::Mov_r32_rm32, ECX, field_of_cpu(fraction));
        self.a.rr(Code::Add_r64_rm64, RAX, RCX);
        self.a.ri(Code::Shr_rm64_imm8, RAX, 16);
        add(self, time!(cycles));
        add(self, std::mem::offset_of!(Cpu, stall));
        add(self, time!(tsc_offset));
        let low = sized(HOST[0].expect("RAX has a host register"), 4);
        self.a.rr(Code::Mov_r32_rm32, low, EAX);
        self.a.ri(Code::Shr_rm64_imm8, RAX, 32);
        self.a.rr(Code::Mov_r32_rm32, EDX, EAX);
    }

    /// Emits DIV or IDIV of 32 or 64 bits, which leaves the guest's flags unchanged (`ops/integer/multiply.rs`). The interpreter carries
    /// out divisions that may trap, signed divisions of dividends that do not fit one register, and divisions by -1.
    pub fn divide(&mut self, i: &Instruction, signed: bool, operation: usize) {
        let wide = match i.op0_kind() {
            OpKind::Register => i.op0_register().is_gpr64(),
            _ => i.memory_size().size() == 8,
        };
        let by_width = |narrow: Code, of_64: Code| if wide { of_64 } else { narrow };
        let size = if wide { 8 } else { 4 };
        let (rax, rcx, rdx) = (sized(RAX, size), sized(RCX, size), sized(RDX, size));
        let dividend = sized(HOST[0].expect("RAX has a host register"), size);
        let copy = by_width(Code::Mov_r32_rm32, Code::Mov_r64_rm64);
        if i.op0_kind() == OpKind::Register {
            self.clobber_flags();
            let n = number(i.op0_register());
            match HOST[n] {
                Some(host) => self.a.rr(copy, rcx, sized(host, size)),
                None => self.a.load(RCX, gpr(n)),
            }
        } else {
            let memory = Memory {
                read: true,
                write: false,
                // The interpreter may have to carry out the division, and would read the operand again.
                conditional: self.attached,
                size: size as u32,
                aligned: false,
                non_temporal: false,
                locked: false,
            };
            self.operand(i, memory, operation);
            self.a.rm(copy, rcx, at(RAX));
        }
        let interpret = self.interpreter_entry(operation);
        let compare = by_width(Code::Cmp_r32_rm32, Code::Cmp_r64_rm64);
        if signed {
            self.a.rr(copy, rax, dividend);
            let sign = by_width(Code::Sar_rm32_imm8, Code::Sar_rm64_imm8);
            self.a.ri(sign, rax, 8 * size as i32 - 1);
            self.a.rr(compare, rax, rdx);
            self.a.jcc(cc::NE, interpret);
            // Divisors 0 and -1 become 1 and 0, which one comparison finds.
            let lea = by_width(Code::Lea_r32_m, Code::Lea_r64_m);
            self.a.rm(lea, rax, super::assembler::at_offset(RCX, 1));
            let one = by_width(Code::Cmp_rm32_imm8, Code::Cmp_rm64_imm8);
            self.a.ri(one, rax, 1);
            self.a.jcc(cc::BE, interpret);
        } else {
            self.a.rr(compare, rdx, rcx);
            self.a.jcc(cc::AE, interpret);
        }
        self.a.rr(copy, rax, dividend);
        let divide = match signed {
            true => by_width(Code::Idiv_rm32, Code::Idiv_rm64),
            false => by_width(Code::Div_rm32, Code::Div_rm64),
        };
        self.a.r(divide, rcx);
        self.a.rr(copy, dividend, rax);
        self.resume(operation);
    }
}
