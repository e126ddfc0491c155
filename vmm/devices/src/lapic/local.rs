//! Local APIC of a vCPU: its registers, priorities and timer.

use nodescope_x86::bits::apic_base;
use nodescope_x86::cpuid::PHYSICAL_BITS;
use serde::{Deserialize, Serialize};

use super::message::{Destination, Trigger};
use super::registers::*;
use super::timer::{Timer, TimerClock, TimerMode};
use super::vectors::VectorSet;

/// The mode that IA32_APIC_BASE selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApicMode {
    /// Globally disabled: the vCPU behaves as if it had no local APIC.
    Disabled,
    /// xAPIC mode: the registers are in a page of memory, and IDs have 8 bits.
    XApic,
    /// x2APIC mode: the registers are MSRs, and IDs have 32 bits.
    X2Apic,
}

/// Error for an MSR access that raises `#GP(0)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsrFault;

/// Effect of a register write beyond this local APIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    /// End of a level-triggered interrupt with this vector, which the IOAPIC must be notified of.
    EndOfInterrupt(u8),
    /// An interrupt to send, as a value of the interrupt command register.
    Command(u64),
}

/// Complete state of one local APIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalApicState {
    /// Initial (x2APIC) ID, which never changes.
    pub id: u32,
    /// Base address and mode: MSR IA32_APIC_BASE.
    pub base: u64,
    /// Contents of the task priority register.
    pub tpr: u8,
    /// Logical destination register in xAPIC mode.
    pub ldr: u32,
    /// Contents of the destination format register.
    pub dfr: u32,
    /// Spurious interrupt vector register.
    pub svr: u32,
    /// In-service register: vectors of interrupts that the vCPU is handling.
    pub isr: VectorSet,
    /// Trigger mode register: vectors whose interrupt was level-triggered when it was last requested.
    pub tmr: VectorSet,
    /// Interrupt request register: vectors of interrupts that wait to be handled.
    pub irr: VectorSet,
    /// Error status register, as software reads it.
    pub esr: u32,
    /// Errors since software last wrote the error status register.
    pub errors: u32,
    /// Interrupt command register, with the destination in bits 63:32.
    pub icr: u64,
    /// Local vector table: timer, thermal, performance, LINT0, LINT1, error.
    pub lvt: [u32; 6],
    /// State of the local APIC timer.
    pub timer: Timer,
}

#[derive(Clone, Debug)]
pub(super) struct LocalApic {
    /// Virtual time in cycles at which the timer expires. The check before each block reads only `next` and `deliverable`, the vector that
    /// the vCPU can take now.
    next: u64,
    deliverable: Option<u8>,
    clock: TimerClock,
    state: LocalApicState,
}

impl LocalApic {
    pub fn new(id: u32, bsp: bool, clock: TimerClock) -> Self {
        let bsp = if bsp { apic_base::BSP } else { 0 };
        let mut new = Self::restored(
            LocalApicState {
                id,
                base: DEFAULT_BASE | apic_base::ENABLE | bsp,
                tpr: 0,
                ldr: 0,
                dfr: 0,
                svr: 0,
                isr: VectorSet::default(),
                tmr: VectorSet::default(),
                irr: VectorSet::default(),
                esr: 0,
                errors: 0,
                icr: 0,
                lvt: [0; 6],
                timer: Timer::default(),
            },
            clock,
        );
        new.reset();
        new
    }

    pub fn restored(state: LocalApicState, clock: TimerClock) -> Self {
        let mut new = Self {
            next: 0,
            deliverable: None,
            clock,
            state,
        };
        new.refresh();
        new
    }

    pub fn state(&self) -> &LocalApicState {
        &self.state
    }

    /// Sets the state after power-on or INIT (SDM "Local APIC State After It Receives an INIT-Deassert IPI" and following). ID and
    /// IA32_APIC_BASE do not change.
    pub fn reset(&mut self) {
        let s = &mut self.state;
        s.tpr = 0;
        s.ldr = 0;
        s.dfr = u32::MAX;
        s.svr = 0xff;
        s.isr = VectorSet::default();
        s.tmr = VectorSet::default();
        s.irr = VectorSet::default();
        s.esr = 0;
        s.errors = 0;
        s.icr = 0;
        s.lvt = [LVT_MASKED; 6];
        s.timer.reset();
        self.refresh();
    }

    pub fn mode(&self) -> ApicMode {
        match self.state.base & (apic_base::ENABLE | apic_base::X2APIC) {
            apic_base::ENABLE => ApicMode::XApic,
            0 => ApicMode::Disabled,
            _ => ApicMode::X2Apic,
        }
    }

    /// Writes IA32_APIC_BASE (SDM "x2APIC State Transitions"). The BSP flag does not change.
    pub fn set_base(&mut self, value: u64) -> Result<(), MsrFault> {
        const FLAGS: u64 = apic_base::BSP | apic_base::X2APIC | apic_base::ENABLE;
        let address = value & !0xfff;
        if value & 0xfff & !FLAGS != 0 || address >> PHYSICAL_BITS != 0 {
            return Err(MsrFault);
        }
        let old = self.mode();
        match (
            old,
            value & apic_base::ENABLE != 0,
            value & apic_base::X2APIC != 0,
        ) {
            (_, false, true) => return Err(MsrFault),
            (ApicMode::X2Apic, true, false) | (ApicMode::Disabled, true, true) => {
                return Err(MsrFault);
            }
            _ => {}
        }
        let bsp = self.state.base & apic_base::BSP;
        self.state.base = address | value & (apic_base::X2APIC | apic_base::ENABLE) | bsp;
        match (old, self.mode()) {
            (ApicMode::Disabled, ApicMode::Disabled) => {}
            (ApicMode::Disabled, _) | (_, ApicMode::Disabled) => self.reset(),
            (ApicMode::XApic, ApicMode::X2Apic) => self.state.icr &= u64::from(u32::MAX),
            _ => {}
        }
        Ok(())
    }

    fn software_enabled(&self) -> bool {
        self.state.svr & SVR_ENABLE != 0
    }

    /// Returns the logical ID in x2APIC mode: the cluster in bits 31:16, and one bit in bits 15:0.
    fn logical_id(&self) -> u32 {
        (self.state.id & !0xf) << 12 | 1 << (self.state.id & 0xf)
    }

    pub fn is_addressed(&self, destination: Destination) -> bool {
        let s = &self.state;
        match (self.mode(), destination) {
            (ApicMode::Disabled, _) => false,
            (_, Destination::All) => true,
            (_, Destination::Physical(id)) => id == s.id,
            (ApicMode::X2Apic, Destination::Logical(to)) => {
                let own = self.logical_id();
                to >> 16 == own >> 16 && to & own & 0xffff != 0
            }
            (ApicMode::XApic, Destination::Logical(to)) => {
                let own = s.ldr >> 24;
                if s.dfr >> 28 == 0xf {
                    to & own != 0
                } else {
                    let cluster = to >> 4 & 0xf;
                    (cluster == 0xf || cluster == own >> 4) && to & own & 0xf != 0
                }
            }
        }
    }

    /// Returns whether the local APIC is enabled, by IA32_APIC_BASE and by software, so that it can accept fixed interrupts.
    pub fn accepts(&self) -> bool {
        self.mode() != ApicMode::Disabled && self.software_enabled()
    }

    /// Accepts a fixed interrupt. Returns false if the local APIC is disabled or the vector is below 16.
    pub fn accept(&mut self, vector: u8, trigger: Trigger) -> bool {
        if !self.accepts() {
            return false;
        }
        if vector < 16 {
            self.error(ESR_RECEIVE_VECTOR);
            return false;
        }
        self.request(vector, trigger);
        true
    }

    fn request(&mut self, vector: u8, trigger: Trigger) {
        self.state.irr.insert(vector);
        match trigger {
            Trigger::Edge => self.state.tmr.remove(vector),
            Trigger::Level => self.state.tmr.insert(vector),
        }
        self.refresh();
    }

    pub fn error(&mut self, bit: u32) {
        self.state.errors |= bit;
        let lvt = self.state.lvt[5];
        if lvt & LVT_MASKED == 0 && self.accepts() {
            if lvt as u8 >= 16 {
                self.request(lvt as u8, Trigger::Edge);
            } else {
                self.state.errors |= ESR_RECEIVE_VECTOR;
            }
        }
    }

    /// Computes the processor priority register.
    pub fn ppr(&self) -> u8 {
        let in_service = self.state.isr.highest().unwrap_or(0);
        if self.state.tpr >> 4 >= in_service >> 4 {
            self.state.tpr
        } else {
            in_service & 0xf0
        }
    }

    /// Recomputes `next` and `deliverable` from the state.
    fn refresh(&mut self) {
        self.next = self.state.timer.next();
        let class = self.ppr() >> 4;
        self.deliverable = self.state.irr.highest().filter(|v| v >> 4 > class);
    }

    #[inline]
    pub fn pending(&mut self, now: u64) -> Option<u8> {
        if now >= self.next {
            self.expire(now);
        }
        self.deliverable
    }

    #[inline]
    pub fn next_event(&self) -> u64 {
        self.next
    }

    #[cold]
    fn expire(&mut self, now: u64) {
        self.state.timer.expire(&self.clock, now);
        let lvt = self.state.lvt[0];
        if lvt & LVT_MASKED == 0 {
            self.accept(lvt as u8, Trigger::Edge);
        }
        self.refresh();
    }

    pub fn acknowledge(&mut self, now: u64) -> Option<u8> {
        let vector = self.pending(now)?;
        self.state.irr.remove(vector);
        self.state.isr.insert(vector);
        self.refresh();
        Some(vector)
    }

    fn end_of_interrupt(&mut self) -> Effect {
        let Some(vector) = self.state.isr.highest() else {
            return Effect::None;
        };
        self.state.isr.remove(vector);
        self.refresh();
        if self.state.tmr.contains(vector) && self.state.svr & SVR_SUPPRESS_EOI == 0 {
            Effect::EndOfInterrupt(vector)
        } else {
            Effect::None
        }
    }

    pub fn set_tpr(&mut self, tpr: u8) {
        self.state.tpr = tpr;
        self.refresh();
    }

    pub fn set_tsc_offset(&mut self, now: u64, offset: u64) {
        self.pending(now);
        self.state.timer.set_tsc_offset(now, offset);
        self.refresh();
    }

    pub fn deadline(&mut self, now: u64) -> u64 {
        self.pending(now);
        self.state.timer.deadline()
    }

    pub fn set_deadline(&mut self, now: u64, value: u64) {
        self.pending(now);
        self.state.timer.set_deadline(now, value);
        self.refresh();
    }

    /// Reads a register through the xAPIC page, or through an MSR except for the 64-bit ICR. None if the current mode has no such register.
    pub fn read(&mut self, register: u32, now: u64) -> Option<u32> {
        self.pending(now);
        let x2 = self.mode() == ApicMode::X2Apic;
        let s = &self.state;
        let set_register = |set: &VectorSet| set.register((register >> 4 & 7) as usize);
        Some(match register {
            ID if x2 => s.id,
            ID => s.id << 24,
            VERSION => VERSION_VALUE,
            TPR => s.tpr.into(),
            APR if !x2 => 0,
            PPR => self.ppr().into(),
            EOI if !x2 => 0,
            LDR if x2 => self.logical_id(),
            LDR => s.ldr,
            DFR if !x2 => s.dfr,
            SVR => s.svr,
            ISR..=ISR_LAST => set_register(&s.isr),
            TMR..=TMR_LAST => set_register(&s.tmr),
            IRR..=IRR_LAST => set_register(&s.irr),
            ESR => s.esr,
            ICR_LOW => s.icr as u32,
            ICR_HIGH if !x2 => (s.icr >> 32) as u32,
            LVT_TIMER..=LVT_ERROR => s.lvt[(register - LVT_TIMER) as usize >> 4],
            TIMER_INITIAL => s.timer.initial(),
            TIMER_CURRENT => s.timer.current(&self.clock, now),
            TIMER_DIVIDE => s.timer.divide(),
            _ => return None,
        })
    }

    /// Writes a register. None if the current mode has no such writable register. Reserved bits are ignored, as in xAPIC mode.
    pub fn write(&mut self, register: u32, value: u32, now: u64) -> Option<Effect> {
        self.pending(now);
        let x2 = self.mode() == ApicMode::X2Apic;
        let clock = self.clock;
        let s = &mut self.state;
        match register {
            ID if !x2 => {} // read-only in current processors
            TPR => s.tpr = value as u8,
            EOI => return Some(self.end_of_interrupt()),
            LDR if !x2 => s.ldr = value & 0xff00_0000,
            DFR if !x2 => s.dfr = value | 0x0fff_ffff,
            SVR => {
                s.svr = value & (0xff | SVR_ENABLE | SVR_SUPPRESS_EOI);
                if value & SVR_ENABLE == 0 {
                    s.lvt.iter_mut().for_each(|entry| *entry |= LVT_MASKED);
                }
            }
            ESR => s.esr = std::mem::take(&mut s.errors),
            ICR_LOW => {
                // Delivery status (bit 12) always reads as idle.
                let low = value & 0x000c_cfff;
                s.icr = s.icr & !u64::from(u32::MAX) | u64::from(low);
                return Some(Effect::Command(s.icr));
            }
            ICR_HIGH if !x2 => {
                s.icr = s.icr & u64::from(u32::MAX) | u64::from(value & 0xff00_0000) << 32;
            }
            LVT_TIMER..=LVT_ERROR => {
                let index = (register - LVT_TIMER) as usize >> 4;
                let mut entry = value & LVT_WRITABLE[index];
                if s.svr & SVR_ENABLE == 0 {
                    entry |= LVT_MASKED;
                }
                s.lvt[index] = entry;
                if register == LVT_TIMER {
                    s.timer.set_mode(&clock, now, TimerMode::of(entry));
                }
            }
            TIMER_INITIAL => s.timer.set_initial(&clock, now, value),
            TIMER_DIVIDE => s.timer.set_divide(&clock, now, value),
            _ => return None,
        }
        self.refresh();
        Some(Effect::None)
    }

    /// Executes RDMSR of an x2APIC register.
    pub fn read_msr(&mut self, msr: u32, now: u64) -> Result<u64, MsrFault> {
        if self.mode() != ApicMode::X2Apic {
            return Err(MsrFault);
        }
        match (msr - MSR_X2APIC_FIRST) << 4 {
            ICR_LOW => Ok(self.state.icr),
            register => self.read(register, now).map(u64::from).ok_or(MsrFault),
        }
    }

    /// Executes WRMSR of an x2APIC register. Reserved bits fault (SDM "Reserved Bit Checking").
    pub fn write_msr(&mut self, msr: u32, value: u64, now: u64) -> Result<Effect, MsrFault> {
        if self.mode() != ApicMode::X2Apic {
            return Err(MsrFault);
        }
        let register = (msr - MSR_X2APIC_FIRST) << 4;
        let allowed = match register {
            TPR | SELF_IPI => 0xff,
            EOI | ESR => 0,
            SVR => u64::from(0xff | SVR_ENABLE | SVR_SUPPRESS_EOI),
            // Bit 12 is delivery status in xAPIC mode. Software may write back the value that it read there.
            ICR_LOW => 0xffff_ffff_000c_dfff,
            LVT_TIMER..=LVT_ERROR => {
                // Delivery status (bit 12) and remote IRR (bit 14) are read-only, not reserved.
                u64::from(LVT_WRITABLE[(register - LVT_TIMER) as usize >> 4]) | 1 << 12 | 1 << 14
            }
            TIMER_INITIAL => u64::from(u32::MAX),
            TIMER_DIVIDE => 0b1011,
            _ => return Err(MsrFault),
        };
        if value & !allowed != 0 {
            return Err(MsrFault);
        }
        match register {
            ICR_LOW => self.state.icr = value & 0xffff_ffff_0000_0000,
            SELF_IPI => {
                // Fixed delivery, edge-triggered, destination shorthand "self".
                return Ok(Effect::Command(0x4_0000 | value));
            }
            _ => {}
        }
        self.write(register, value as u32, now).ok_or(MsrFault)
    }
}
