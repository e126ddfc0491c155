//! Register offsets of the local APIC in its xAPIC page. The x2APIC MSR of a register is 0x800 + offset / 16 (SDM vol. 3A, "Local APIC
//! Register Address Map" and "x2APIC Register Address Space").
#![allow(missing_docs)]

pub const ID: u32 = 0x020;
pub const VERSION: u32 = 0x030;
pub const TPR: u32 = 0x080;
pub const APR: u32 = 0x090;
pub const PPR: u32 = 0x0a0;
pub const EOI: u32 = 0x0b0;
pub const LDR: u32 = 0x0d0;
pub const DFR: u32 = 0x0e0;
pub const SVR: u32 = 0x0f0;
pub const ISR: u32 = 0x100;
pub const ISR_LAST: u32 = 0x170;
pub const TMR: u32 = 0x180;
pub const TMR_LAST: u32 = 0x1f0;
pub const IRR: u32 = 0x200;
pub const IRR_LAST: u32 = 0x270;
pub const ESR: u32 = 0x280;
pub const ICR_LOW: u32 = 0x300;
pub const ICR_HIGH: u32 = 0x310;
pub const LVT_TIMER: u32 = 0x320;
pub const LVT_THERMAL: u32 = 0x330;
pub const LVT_PERFORMANCE: u32 = 0x340;
pub const LVT_LINT0: u32 = 0x350;
pub const LVT_LINT1: u32 = 0x360;
pub const LVT_ERROR: u32 = 0x370;
pub const TIMER_INITIAL: u32 = 0x380;
pub const TIMER_CURRENT: u32 = 0x390;
pub const TIMER_DIVIDE: u32 = 0x3e0;
pub const SELF_IPI: u32 = 0x3f0;

/// Value of the version register: version 0x14 (integrated), six local vector table entries, EOI-broadcast suppression.
pub const VERSION_VALUE: u32 = 0x14 | 5 << 16 | 1 << 24;

/// Number of the MSR IA32_APIC_BASE.
pub const MSR_APIC_BASE: u32 = 0x1b;
/// Number of the MSR IA32_TSC_DEADLINE.
pub const MSR_TSC_DEADLINE: u32 = 0x6e0;
/// Number of the first x2APIC MSR.
pub const MSR_X2APIC_FIRST: u32 = 0x800;
/// Number of the last x2APIC MSR.
pub const MSR_X2APIC_LAST: u32 = 0x8ff;

/// Address of the xAPIC page after reset.
pub const DEFAULT_BASE: u64 = 0xfee0_0000;

/// SVR bit: software enable.
pub const SVR_ENABLE: u32 = 1 << 8;
/// SVR bit: EOIs of level-triggered interrupts are not broadcast to the IOAPIC.
pub const SVR_SUPPRESS_EOI: u32 = 1 << 12;

/// Local vector table bit: masked.
pub const LVT_MASKED: u32 = 1 << 16;

/// ESR bit: software tried to send a message with an illegal vector.
pub const ESR_SEND_VECTOR: u32 = 1 << 5;
/// ESR bit: a message with an illegal vector was received.
pub const ESR_RECEIVE_VECTOR: u32 = 1 << 6;
/// ESR bit: access to a register that does not exist.
pub const ESR_REGISTER: u32 = 1 << 7;

/// Writable bits of the LVT entries, in order of their offsets from [`LVT_TIMER`].
pub const LVT_WRITABLE: [u32; 6] = [
    0x0007_00ff, // timer: mode 18:17, mask, vector
    0x0001_07ff, // thermal: mask, delivery mode, vector
    0x0001_07ff, // performance counters
    0x0001_a7ff, // LINT0: mask, trigger mode, polarity, delivery mode, vector
    0x0001_a7ff, // LINT1
    0x0001_00ff, // error: mask, vector
];
