//! The complete state of a virtual CPU, as typed values that can be saved, restored and compared.
//!
//! Every engine loads and stores the complete state at any instruction boundary.

use serde::{Deserialize, Serialize};

/// General registers, instruction pointer and flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct General {
    /// RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8–R15: in the order of instruction encodings.
    pub gpr: [u64; 16],
    /// Instruction pointer, RIP.
    pub rip: u64,
    /// Flags; bit 1 is always set.
    pub rflags: u64,
}

/// A segment register with its hidden part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Selector, the visible part of the segment register.
    pub selector: u16,
    /// Base address; for FS and GS in 64-bit mode, the value of the base MSR.
    pub base: u64,
    /// Limit in bytes, granularity already applied.
    pub limit: u32,
    /// Attribute word as in VMX / KVM order: type 3:0, S 4, DPL 6:5, P 7, AVL 12, L 13, D/B 14, G 15.
    pub attributes: u16,
    /// True if the register is null or otherwise unusable.
    pub unusable: bool,
}

impl Segment {
    /// Returns the descriptor privilege level.
    pub fn dpl(&self) -> u8 {
        (self.attributes >> 5 & 3) as u8
    }
    /// Returns the L bit: 64-bit code.
    pub fn long(&self) -> bool {
        self.attributes & 1 << 13 != 0
    }
    /// Returns the D/B bit: 32-bit default size.
    pub fn default_32(&self) -> bool {
        self.attributes & 1 << 14 != 0
    }
}

/// Register of a descriptor table: GDTR or IDTR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DescriptorTable {
    /// Linear address at which the table begins.
    pub base: u64,
    /// Limit of the table in bytes.
    pub limit: u16,
}

/// Segment registers and descriptor tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segments {
    /// ES, CS, SS, DS, FS, GS: in the order of instruction encodings.
    pub data: [Segment; 6],
    /// Local descriptor table register, LDTR.
    pub ldt: Segment,
    /// Task register, TR.
    pub tr: Segment,
    /// Global descriptor table register, GDTR.
    pub gdt: DescriptorTable,
    /// Interrupt descriptor table register, IDTR.
    pub idt: DescriptorTable,
}

/// Indices into [`Segments::data`].
pub mod seg {
    #![allow(missing_docs)]
    pub const ES: usize = 0;
    pub const CS: usize = 1;
    pub const SS: usize = 2;
    pub const DS: usize = 3;
    pub const FS: usize = 4;
    pub const GS: usize = 5;
}

/// Control registers CR0, CR2, CR3, CR4 and CR8, with EFER and XCR0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Control {
    pub cr0: u64,
    pub cr2: u64,
    pub cr3: u64,
    pub cr4: u64,
    pub cr8: u64,
    pub efer: u64,
    pub xcr0: u64,
}

/// Debug registers DR0 to DR3, DR6 and DR7.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Debug {
    pub dr: [u64; 4],
    pub dr6: u64,
    pub dr7: u64,
}

/// Model-specific registers that belong to the vCPU itself (MSRs of the local APIC belong to the APIC device).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Msrs {
    pub star: u64,
    pub lstar: u64,
    pub cstar: u64,
    pub sfmask: u64,
    pub kernel_gs_base: u64,
    pub sysenter_cs: u64,
    pub sysenter_esp: u64,
    pub sysenter_eip: u64,
    pub pat: u64,
    pub tsc_aux: u64,
    pub tsc_adjust: u64,
    pub misc_enable: u64,
    pub spec_ctrl: u64,
    pub mtrr_def_type: u64,
    /// Fixed-range MTRRs in the order 64K, 16K x 2, 4K x 8.
    pub mtrr_fixed: [u64; 11],
    /// Variable-range MTRRs: base, mask, eight pairs.
    pub mtrr_variable: [u64; 16],
}

/// FXSAVE image (SDM vol. 1 §10.5.1, table 10-2): x87 state and MXCSR. The XMM area inside is not used; vector
/// registers are in [`Vector256`].
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct FxImage(pub [u8; 512]);

impl FxImage {
    /// Returns the x87 control word.
    pub fn fcw(&self) -> u16 {
        u16::from_le_bytes([self.0[0], self.0[1]])
    }
    /// Returns the x87 status word.
    pub fn fsw(&self) -> u16 {
        u16::from_le_bytes([self.0[2], self.0[3]])
    }
    /// Returns MXCSR, the control and status register of SSE.
    pub fn mxcsr(&self) -> u32 {
        u32::from_le_bytes([self.0[24], self.0[25], self.0[26], self.0[27]])
    }
    /// Sets MXCSR, the control and status register of SSE.
    pub fn set_mxcsr(&mut self, value: u32) {
        self.0[24..28].copy_from_slice(&value.to_le_bytes());
    }
    /// Returns the 160 bytes that carry state: header and ST0–ST7.
    pub fn legacy(&self) -> &[u8] {
        &self.0[..160]
    }
}

impl FxImage {
    /// Returns the state after power-on: all exceptions are unmasked, the precision is single, and each register holds +0.0 (SDM vol. 3A
    /// §9.1.1, table 9-1: FCW 0040H, FTW 5555H).
    pub fn power_on() -> Self {
        let mut image = Self::default();
        image.0[0..2].copy_from_slice(&0x40_u16.to_le_bytes());
        // The abridged tag word of FXSAVE has a bit for each register that is not empty.
        image.0[4] = 0xff;
        image
    }
}

impl Default for FxImage {
    /// Returns the state after FNINIT with MXCSR at its reset value.
    fn default() -> Self {
        let mut image = Self([0; 512]);
        image.0[0..2].copy_from_slice(&0x37f_u16.to_le_bytes());
        image.set_mxcsr(0x1f80);
        image
    }
}

impl std::fmt::Debug for FxImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "FxImage(fcw {:#x}, fsw {:#x}, mxcsr {:#x})",
            self.fcw(),
            self.fsw(),
            self.mxcsr()
        )
    }
}

impl Serialize for FxImage {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_bytes(self.legacy())
    }
}

impl<'de> Deserialize<'de> for FxImage {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let bytes = Vec::<u8>::deserialize(d)?;
        if bytes.len() != 160 {
            return Err(serde::de::Error::invalid_length(
                bytes.len(),
                &"160 bytes of FXSAVE image",
            ));
        }
        let mut image = Self([0; 512]);
        image.0[..160].copy_from_slice(&bytes);
        Ok(image)
    }
}

/// YMM0–YMM15, low lane first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[repr(C, align(64))]
pub struct Vector256(pub [[u8; 32]; 16]);

/// Blocking of events until the next instruction has finished (SDM vol. 3A §6.8.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum InterruptShadow {
    /// No interrupt shadow.
    #[default]
    None,
    /// Shadow of one instruction after STI.
    Sti,
    /// Shadow of one instruction after MOV SS or POP SS, which holds debug exceptions back, too.
    MovSs,
}

/// Activity state of the processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MpState {
    /// The vCPU executes instructions.
    #[default]
    Running,
    /// The vCPU is in HLT until an interrupt.
    Halted,
    /// The vCPU waits for INIT–SIPI.
    WaitForSipi,
    /// The vCPU is shut down after a triple fault.
    Shutdown,
}

/// Pending and blocked events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Events {
    /// Interrupt shadow over the next instruction.
    pub shadow: InterruptShadow,
    /// Data breakpoints that the MOV SS or POP SS behind `shadow` has triggered, as bits of DR6 (bit `n`: DR`n`). The debug trap follows
    /// the next instruction. Always 0 without a [`InterruptShadow::MovSs`].
    pub pending_breakpoints: u8,
    /// True while an NMI is being handled (until IRET).
    pub nmi_blocked: bool,
    /// True if an NMI waits for delivery.
    pub nmi_pending: bool,
    /// Activity state: running, halted, waiting for a start-up, or shut down.
    pub mp: MpState,
}

/// Clock and TSC offset of a vCPU, and its counts of instructions and of random numbers since power-on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Time {
    /// Cycles of the vCPU's clock since power-on. The TSC is `cycles` + `tsc_offset`.
    pub cycles: u64,
    /// TSC minus cycles (written through IA32_TSC or IA32_TSC_ADJUST).
    pub tsc_offset: u64,
    /// Number of instructions retired since power-on.
    pub instructions: u64,
    /// Fraction of a cycle carried between runs, in 1/65536.
    pub cycle_fraction: u32,
    /// Number of values that RDRAND and RDSEED have returned.
    pub random_draws: u64,
    /// Value of `instructions` at the last delivery of an exception; `None` before the first. Exceptions that a delivery itself raised do
    /// not count. The portable engine takes extra time for a further exception before the next instruction.
    pub delivered_at: Option<u64>,
}

/// Complete architectural state of a vCPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct VcpuState {
    pub general: General,
    pub segments: Segments,
    pub control: Control,
    pub debug: Debug,
    pub msrs: Msrs,
    pub fx: FxImage,
    pub vector: Vector256,
    pub events: Events,
    pub time: Time,
}

impl VcpuState {
    /// Returns the state after power-on (SDM vol. 3A §9.1.1, table 9-1).
    pub fn reset() -> Self {
        let mut s = Self {
            fx: FxImage::power_on(),
            ..Self::default()
        };
        s.general.rip = 0xfff0;
        s.general.rflags = 2;
        s.general.gpr[2] = 0x600;
        for d in &mut s.segments.data {
            *d = Segment {
                selector: 0,
                base: 0,
                limit: 0xffff,
                attributes: 0x93,
                unusable: false,
            };
        }
        s.segments.data[seg::CS] = Segment {
            selector: 0xf000,
            base: 0xffff_0000,
            limit: 0xffff,
            attributes: 0x9b,
            unusable: false,
        };
        s.segments.ldt = Segment {
            limit: 0xffff,
            attributes: 0x82,
            ..Default::default()
        };
        s.segments.tr = Segment {
            limit: 0xffff,
            attributes: 0x8b,
            ..Default::default()
        };
        s.segments.gdt.limit = 0xffff;
        s.segments.idt.limit = 0xffff;
        s.control.cr0 = 0x6000_0010;
        s.control.xcr0 = 1;
        s.debug.dr6 = 0xffff_0ff0;
        s.debug.dr7 = 0x400;
        s.msrs.pat = 0x0007_0406_0007_0406;
        s.msrs.misc_enable = 1;
        s
    }

    /// Sets the state after INIT. INIT leaves the x87, MMX, XMM and YMM registers, MXCSR and XCR0 unchanged (SDM vol. 3A §9.1.1, table
    /// 9-1). The clocks and counts in `time` go on.
    pub fn init(&mut self) {
        let mut new = Self {
            fx: self.fx,
            vector: self.vector,
            time: self.time,
            ..Self::reset()
        };
        new.control.xcr0 = self.control.xcr0;
        *self = new;
    }

    /// Sets the state after INIT and a start-up IPI with this vector (SDM vol. 3A §8.4.4): real mode at `vector << 12`.
    pub fn startup(&mut self, vector: u8) {
        self.init();
        self.general.rip = 0;
        let cs = &mut self.segments.data[seg::CS];
        cs.selector = u16::from(vector) << 8;
        cs.base = u64::from(vector) << 12;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SDM vol. 3A table 9-1.
    #[test]
    fn init_keeps_the_arithmetic_registers_of_a_processor() {
        let on = VcpuState::reset();
        assert_eq!((on.fx.fcw(), on.fx.fsw(), on.fx.mxcsr()), (0x40, 0, 0x1f80));
        // Eight registers with a value: +0.0.
        assert_eq!(on.fx.legacy()[4..8], [0xff, 0, 0, 0]);
        assert_eq!(on.fx.legacy()[32..], [0; 128]);
        let mut used = on.clone();
        used.fx = FxImage::default();
        used.fx.set_mxcsr(0x1f00);
        used.vector.0[3] = [7; 32];
        used.control.xcr0 = 7;
        used.control.cr0 = 0x8000_0011;
        used.time.cycles = 5;
        let mut started = used.clone();
        started.startup(0x12);
        for state in [&started, &{
            used.init();
            used
        }] {
            assert_eq!((state.fx.fcw(), state.fx.mxcsr()), (0x37f, 0x1f00));
            assert_eq!(state.vector.0[3], [7; 32]);
            assert_eq!((state.control.xcr0, state.control.cr0), (7, on.control.cr0));
            assert_eq!(state.time.cycles, 5);
        }
        assert_eq!(started.segments.data[seg::CS].base, 0x1_2000);
    }
}
