//! The node's interrupt router: global system interrupts go through the IOAPIC, and message-signalled interrupts go directly to the local
//! APICs.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::ioapic::{IoApic, IoApicState, PINS};
use crate::lapic::{CpuAction, LocalApicState, LocalApics, Message, MsrFault, TimerClock};

/// A global system interrupt, whose number is also that of the IOAPIC pin (ACPI 6.5 §5.2.13).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Gsi(u8);

/// Error for a number that is not that of an IOAPIC pin.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("global system interrupt {0} has no IOAPIC pin; use one below {PINS}")]
pub struct GsiError(pub u32);

impl TryFrom<u32> for Gsi {
    type Error = GsiError;
    fn try_from(number: u32) -> Result<Self, GsiError> {
        match u8::try_from(number) {
            Ok(n) if usize::from(n) < PINS => Ok(Self(n)),
            _ => Err(GsiError(number)),
        }
    }
}

impl From<Gsi> for u32 {
    fn from(gsi: Gsi) -> u32 {
        gsi.0.into()
    }
}

/// Complete state of the interrupt controllers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterruptsState {
    /// Local APICs in the order of the vCPUs.
    pub local: Vec<LocalApicState>,
    /// State of the IOAPIC.
    pub ioapic: IoApicState,
    /// INIT, start-up and NMI messages to vCPUs that the machine has not carried out yet.
    pub actions: Vec<CpuAction>,
}

/// Local APICs and IOAPIC of a node.
#[derive(Clone, Debug)]
pub struct Interrupts {
    local: LocalApics,
    ioapic: IoApic,
}

impl Interrupts {
    /// Creates a router for vCPUs with these (x2)APIC IDs, in the order of the vCPUs. The first vCPU is the bootstrap processor.
    pub fn new(ids: &[u32], clock: TimerClock) -> Self {
        Self {
            local: LocalApics::new(ids, clock),
            ioapic: IoApic::default(),
        }
    }

    /// Sets the level of an interrupt line. A level-triggered pin requests an interrupt while the line is high, an edge-triggered pin when
    /// the line rises.
    pub fn set_line(&mut self, gsi: Gsi, high: bool) {
        if self.ioapic.set_line(gsi.0, high) {
            self.local.deliver(&self.ioapic.message(gsi.0));
        }
        self.serve_level(gsi.0);
    }

    /// Raises and lowers a line, which is one edge.
    pub fn pulse(&mut self, gsi: Gsi) {
        self.set_line(gsi, true);
        self.set_line(gsi, false);
    }

    /// Delivers a message-signalled interrupt. Returns false if no local APIC accepted the interrupt, or if the address is not that of a
    /// message-signalled interrupt.
    pub fn message(&mut self, address: u64, data: u32) -> bool {
        Message::from_msi(address, data).is_some_and(|m| self.local.deliver(&m))
    }

    fn serve_level(&mut self, pin: u8) {
        if self.ioapic.level_due(pin) && self.local.deliver(&self.ioapic.message(pin)) {
            self.ioapic.accepted(pin);
        }
    }

    fn serve_all_levels(&mut self) {
        for pin in 0..PINS as u8 {
            self.serve_level(pin);
        }
    }

    fn after_local_write(&mut self) {
        if let Some(vector) = self.local.take_ended() {
            self.ioapic.end_of_interrupt(vector);
            self.serve_all_levels();
        }
    }

    /// Reads the IOAPIC's register window.
    pub fn ioapic_read(&mut self, offset: u64, data: &mut [u8]) {
        self.ioapic.read(offset, data);
    }

    /// Writes the IOAPIC's register window.
    pub fn ioapic_write(&mut self, offset: u64, data: &[u8]) {
        self.ioapic.write(offset, data);
        self.serve_all_levels();
    }

    /// Returns the offset of an address in the vCPU's xAPIC page. None if the local APIC is not in xAPIC mode, or the page does not contain
    /// the address.
    #[inline]
    pub fn local_page_offset(&self, vcpu: u16, address: u64) -> Option<u32> {
        self.local.page_offset(vcpu, address)
    }

    /// Reads a register in the vCPU's xAPIC page.
    pub fn local_read(&mut self, vcpu: u16, now: u64, offset: u32, data: &mut [u8]) {
        self.local.read_page(vcpu, now, offset, data);
    }

    /// Writes a register in the vCPU's xAPIC page.
    pub fn local_write(&mut self, vcpu: u16, now: u64, offset: u32, data: &[u8]) {
        self.local.write_page(vcpu, now, offset, data);
        self.after_local_write();
    }

    /// Executes RDMSR of IA32_APIC_BASE, IA32_TSC_DEADLINE or an x2APIC register.
    pub fn read_msr(&mut self, vcpu: u16, now: u64, msr: u32) -> Result<u64, MsrFault> {
        self.local.read_msr(vcpu, now, msr)
    }

    /// Executes WRMSR of IA32_APIC_BASE, IA32_TSC_DEADLINE or an x2APIC register.
    pub fn write_msr(&mut self, vcpu: u16, now: u64, msr: u32, value: u64) -> Result<(), MsrFault> {
        self.local.write_msr(vcpu, now, msr, value)?;
        self.after_local_write();
        Ok(())
    }

    /// Returns the highest vector that the vCPU can take at virtual time `now` (cycles) if its interrupts are enabled; none if there is
    /// none.
    #[inline]
    pub fn pending(&mut self, vcpu: u16, now: u64) -> Option<u8> {
        self.local.pending(vcpu, now)
    }

    /// Acknowledges the interrupt that [`Interrupts::pending`] reports and returns its vector; none if no interrupt is pending.
    pub fn acknowledge(&mut self, vcpu: u16, now: u64) -> Option<u8> {
        self.local.acknowledge(vcpu, now)
    }

    /// Returns the virtual time in cycles at which the timer of the vCPU's local APIC expires; `u64::MAX` for never.
    #[inline]
    pub fn next_event(&self, vcpu: u16) -> u64 {
        self.local.next_event(vcpu)
    }

    /// Returns CR8, the task priority of a vCPU.
    pub fn cr8(&self, vcpu: u16) -> u8 {
        self.local.cr8(vcpu)
    }

    /// Executes MOV to CR8 with a value below 16.
    pub fn set_cr8(&mut self, vcpu: u16, priority: u8) {
        self.local.set_cr8(vcpu, priority);
    }

    /// Sets the vCPU's TSC offset. From now on, the TSC is the virtual time in cycles plus `offset` (wrapping).
    pub fn set_tsc_offset(&mut self, vcpu: u16, now: u64, offset: u64) {
        self.local.set_tsc_offset(vcpu, now, offset);
    }

    /// Returns whether INIT, start-up or NMI messages wait for the machine to carry them out.
    #[inline]
    pub fn has_actions(&self) -> bool {
        !self.local.actions().is_empty()
    }

    /// Removes and returns the INIT, start-up and NMI messages since the last call, in order. The machine carries them out.
    pub fn take_actions(&mut self) -> Vec<CpuAction> {
        self.local.take_actions()
    }

    /// Returns the local APICs.
    pub fn local(&self) -> &LocalApics {
        &self.local
    }

    /// Returns the state of the local APICs and the IOAPIC.
    pub fn save(&self) -> InterruptsState {
        InterruptsState {
            local: self.local.save(),
            ioapic: self.ioapic.save(),
            actions: self.local.actions().to_vec(),
        }
    }

    /// Loads a state. Returns false and changes nothing if the state's vCPUs are not this node's vCPUs.
    pub fn restore(&mut self, state: &InterruptsState) -> bool {
        let fits = self.local.restore(&state.local, &state.actions);
        if fits {
            self.ioapic.restore(&state.ioapic);
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lapic::registers::*;
    use crate::time::Hertz;

    fn router() -> Interrupts {
        let ghz = Hertz::new(1_000_000_000).unwrap();
        let mut i = Interrupts::new(
            &[0, 1],
            TimerClock {
                tsc: ghz,
                input: ghz,
            },
        );
        for vcpu in 0..2 {
            i.local_write(vcpu, 0, SVR, &0x1ffu32.to_le_bytes());
        }
        i
    }

    fn entry(i: &mut Interrupts, pin: u8, value: u64) {
        for (half, value) in [(0, value as u32), (1, (value >> 32) as u32)] {
            i.ioapic_write(0, &[0x10 + 2 * pin + half, 0, 0, 0]);
            i.ioapic_write(0x10, &value.to_le_bytes());
        }
    }

    fn low(i: &mut Interrupts, pin: u8) -> u32 {
        i.ioapic_write(0, &[0x10 + 2 * pin, 0, 0, 0]);
        let mut data = [0; 4];
        i.ioapic_read(0x10, &mut data);
        u32::from_le_bytes(data)
    }

    fn eoi(i: &mut Interrupts, vcpu: u16) {
        i.local_write(vcpu, 0, EOI, &[0; 4]);
    }

    fn gsi(n: u32) -> Gsi {
        Gsi::try_from(n).unwrap()
    }

    const LEVEL: u64 = 1 << 15;
    const MASKED: u64 = 1 << 16;
    const REMOTE_IRR: u32 = 1 << 14;

    #[test]
    fn edges_interrupt_once_each() {
        let mut i = router();
        entry(&mut i, 4, 1 << 56 | 0x34);
        i.set_line(gsi(4), true);
        i.set_line(gsi(4), true);
        assert_eq!(i.acknowledge(1, 0), Some(0x34));
        eoi(&mut i, 1);
        assert_eq!(i.pending(1, 0), None);
        i.set_line(gsi(4), false);
        i.set_line(gsi(4), true);
        assert_eq!((i.pending(0, 0), i.acknowledge(1, 0)), (None, Some(0x34)));
    }

    #[test]
    fn edges_of_a_masked_pin_are_lost() {
        let mut i = router();
        entry(&mut i, 4, MASKED | 0x34);
        i.pulse(gsi(4));
        entry(&mut i, 4, 0x34);
        assert_eq!(i.pending(0, 0), None);
        i.pulse(gsi(4));
        assert_eq!(i.pending(0, 0), Some(0x34));
    }

    #[test]
    fn a_level_comes_back_until_it_is_withdrawn() {
        let mut i = router();
        entry(&mut i, 16, LEVEL | 0x51);
        i.set_line(gsi(16), true);
        assert_eq!(low(&mut i, 16), LEVEL as u32 | 0x51 | REMOTE_IRR);
        assert_eq!(i.acknowledge(0, 0), Some(0x51));
        eoi(&mut i, 0);
        assert_eq!(i.acknowledge(0, 0), Some(0x51), "still high at the EOI");
        i.set_line(gsi(16), false);
        eoi(&mut i, 0);
        assert_eq!(i.pending(0, 0), None);
        assert_eq!(low(&mut i, 16) & REMOTE_IRR, 0);
    }

    #[test]
    fn a_masked_level_is_remembered() {
        let mut i = router();
        entry(&mut i, 16, MASKED | LEVEL | 0x51);
        i.set_line(gsi(16), true);
        assert_eq!(i.pending(0, 0), None);
        entry(&mut i, 16, LEVEL | 0x51);
        assert_eq!(i.pending(0, 0), Some(0x51));
    }

    #[test]
    fn the_eoi_register_serves_when_broadcasts_are_suppressed() {
        let mut i = router();
        i.local_write(0, 0, SVR, &0x11ffu32.to_le_bytes());
        entry(&mut i, 16, LEVEL | 0x51);
        i.set_line(gsi(16), true);
        i.acknowledge(0, 0);
        eoi(&mut i, 0);
        assert_eq!(i.pending(0, 0), None, "no broadcast");
        i.ioapic_write(0x40, &0x51u32.to_le_bytes());
        assert_eq!(i.pending(0, 0), Some(0x51));
    }

    #[test]
    fn setting_a_pin_to_edge_clears_its_remote_irr() {
        let mut i = router();
        entry(&mut i, 16, LEVEL | 0x51);
        i.set_line(gsi(16), true);
        entry(&mut i, 16, MASKED | 0x51);
        assert_eq!(low(&mut i, 16), MASKED as u32 | 0x51);
    }

    #[test]
    fn registers_and_impossible_numbers() {
        let mut i = router();
        i.ioapic_write(0, &[1, 0, 0, 0]);
        let mut data = [0; 4];
        i.ioapic_read(0x10, &mut data);
        assert_eq!(u32::from_le_bytes(data), 0x0017_0020);
        for select in 0x40..=0xff {
            i.ioapic_write(0, &[select, 0, 0, 0]);
            i.ioapic_write(0x10, &[0xff; 4]);
            i.ioapic_read(0x10, &mut data);
            assert_eq!(data, [0; 4]);
        }
        assert_eq!(Gsi::try_from(24), Err(GsiError(24)));
        assert!(GsiError(24).to_string().contains("below 24"));
    }

    #[test]
    fn restored_controllers_equal_the_saved() {
        let mut i = router();
        entry(&mut i, 16, LEVEL | 0x51);
        i.set_line(gsi(16), true);
        i.message(0xfee0_1000, 0x400);
        let saved = i.save();
        let mut j = router();
        assert!(j.restore(&saved));
        assert_eq!(j.save(), saved);
        assert_eq!(j.take_actions(), [CpuAction::Nmi { vcpu: 1 }]);
        assert_eq!(j.acknowledge(0, 0), Some(0x51));
        eoi(&mut j, 0);
        assert_eq!(j.pending(0, 0), Some(0x51));
    }
}
