//! Local APICs of a node, in xAPIC and x2APIC mode (SDM vol. 3A, chapter "Advanced Programmable Interrupt Controller").

mod local;
mod message;
pub mod registers;
#[cfg(test)]
mod tests;
mod timer;
mod vectors;

pub use local::{ApicMode, LocalApicState, MsrFault};
pub use message::{CpuAction, Delivery, Destination, Message, Trigger};
pub use timer::{Timer, TimerClock, TimerMode};
pub use vectors::VectorSet;

use local::{Effect, LocalApic};
use registers::*;

/// Local APICs of a node, by vCPU index.
#[derive(Clone, Debug)]
pub struct LocalApics {
    apics: Vec<LocalApic>,
    clock: TimerClock,
    actions: Vec<CpuAction>,
    ended: Option<u8>,
}

impl LocalApics {
    /// Returns one local APIC for each (x2)APIC ID, in the order of the vCPUs. The first vCPU is the bootstrap processor.
    pub fn new(ids: &[u32], clock: TimerClock) -> Self {
        let apics = ids.iter().enumerate();
        Self {
            apics: apics
                .map(|(i, &id)| LocalApic::new(id, i == 0, clock))
                .collect(),
            clock,
            actions: Vec::new(),
            ended: None,
        }
    }

    /// Returns the number of vCPUs.
    pub fn count(&self) -> usize {
        self.apics.len()
    }

    /// Returns the states of all local APICs, in the order of the vCPUs.
    pub fn save(&self) -> Vec<LocalApicState> {
        self.apics.iter().map(|a| a.state().clone()).collect()
    }

    /// Loads states from [`LocalApics::save`] and the actions that were not carried out yet. Returns false and changes nothing if the
    /// number of vCPUs or their IDs differ, or if an action is for a vCPU that does not exist.
    pub fn restore(&mut self, states: &[LocalApicState], actions: &[CpuAction]) -> bool {
        let known = |action: &CpuAction| usize::from(action.vcpu()) < self.apics.len();
        if !actions.iter().all(known) {
            return false;
        }
        let ids = |s: &[LocalApicState]| s.iter().map(|s| s.id).collect::<Vec<_>>();
        if ids(states) != ids(&self.save()) {
            return false;
        }
        let restored = states.iter().cloned();
        self.apics = restored
            .map(|s| LocalApic::restored(s, self.clock))
            .collect();
        self.actions = actions.to_vec();
        self.ended = None;
        true
    }

    fn apic(&mut self, vcpu: u16) -> &mut LocalApic {
        &mut self.apics[usize::from(vcpu)]
    }

    /// Returns the mode of a vCPU's local APIC.
    pub fn mode(&self, vcpu: u16) -> ApicMode {
        self.apics[usize::from(vcpu)].mode()
    }

    /// Returns the highest vector that the vCPU could take at `now` (cycles) if its interrupts were enabled. Timer expiries until `now` are
    /// included.
    #[inline]
    pub fn pending(&mut self, vcpu: u16, now: u64) -> Option<u8> {
        self.apic(vcpu).pending(now)
    }

    /// Acknowledges the interrupt that [`LocalApics::pending`] reports: its vector moves to the in-service register. None if no interrupt
    /// is pending.
    pub fn acknowledge(&mut self, vcpu: u16, now: u64) -> Option<u8> {
        self.apic(vcpu).acknowledge(now)
    }

    /// Returns the virtual time in cycles at which the vCPU's timer expires; `u64::MAX` for never.
    #[inline]
    pub fn next_event(&self, vcpu: u16) -> u64 {
        self.apics[usize::from(vcpu)].next_event()
    }

    /// Returns CR8, which is bits 7:4 of the task priority register.
    pub fn cr8(&self, vcpu: u16) -> u8 {
        self.apics[usize::from(vcpu)].state().tpr >> 4
    }

    /// Executes MOV to CR8. The engine has already checked that `priority` is below 16.
    pub fn set_cr8(&mut self, vcpu: u16, priority: u8) {
        self.apic(vcpu).set_tpr(priority << 4);
    }

    /// Sets the vCPU's TSC offset. From now on, the TSC is the virtual time in cycles plus `offset` (wrapping).
    pub fn set_tsc_offset(&mut self, vcpu: u16, now: u64, offset: u64) {
        self.apic(vcpu).set_tsc_offset(now, offset);
    }

    /// Returns whether an MSR belongs to the local APIC: IA32_APIC_BASE, IA32_TSC_DEADLINE, or any number of the x2APIC range.
    pub fn has_msr(msr: u32) -> bool {
        matches!(
            msr,
            MSR_APIC_BASE | MSR_TSC_DEADLINE | MSR_X2APIC_FIRST..=MSR_X2APIC_LAST
        )
    }

    /// Executes RDMSR of IA32_APIC_BASE, IA32_TSC_DEADLINE or an x2APIC register.
    pub fn read_msr(&mut self, vcpu: u16, now: u64, msr: u32) -> Result<u64, MsrFault> {
        let apic = self.apic(vcpu);
        match msr {
            MSR_APIC_BASE => Ok(apic.state().base),
            MSR_TSC_DEADLINE => Ok(apic.deadline(now)),
            MSR_X2APIC_FIRST..=MSR_X2APIC_LAST => apic.read_msr(msr, now),
            _ => Err(MsrFault),
        }
    }

    /// Executes WRMSR of IA32_APIC_BASE, IA32_TSC_DEADLINE or an x2APIC register.
    pub fn write_msr(&mut self, vcpu: u16, now: u64, msr: u32, value: u64) -> Result<(), MsrFault> {
        let apic = self.apic(vcpu);
        match msr {
            MSR_APIC_BASE => apic.set_base(value),
            MSR_TSC_DEADLINE => {
                apic.set_deadline(now, value);
                Ok(())
            }
            MSR_X2APIC_FIRST..=MSR_X2APIC_LAST => {
                let effect = apic.write_msr(msr, value, now)?;
                self.carry_out(vcpu, effect);
                Ok(())
            }
            _ => Err(MsrFault),
        }
    }

    /// Returns the offset of an address in the vCPU's xAPIC page. None if its local APIC is not in xAPIC mode, or the page does not contain
    /// the address.
    #[inline]
    pub fn page_offset(&self, vcpu: u16, address: u64) -> Option<u32> {
        let apic = &self.apics[usize::from(vcpu)];
        (address & !0xfff == apic.state().base & !0xfff && apic.mode() == ApicMode::XApic)
            .then_some(address as u32 & 0xfff)
    }

    /// Reads a register in the xAPIC page. Registers are 32 bits wide at multiples of 16. An access with bytes beyond these 32 bits reads
    /// as zero.
    pub fn read_page(&mut self, vcpu: u16, now: u64, offset: u32, data: &mut [u8]) {
        data.fill(0);
        let apic = self.apic(vcpu);
        let (register, within) = (offset & !0xf, (offset & 0xf) as usize);
        if within + data.len() > 4 {
            return;
        }
        match apic.read(register, now) {
            Some(value) => {
                data.copy_from_slice(&value.to_le_bytes()[within..within + data.len()]);
            }
            None => apic.error(ESR_REGISTER),
        }
    }

    /// Writes a register in the xAPIC page. Only 32-bit writes at multiples of 16 have an effect; the SDM leaves others undefined.
    pub fn write_page(&mut self, vcpu: u16, now: u64, offset: u32, data: &[u8]) {
        let (Ok(bytes), 0) = (<[u8; 4]>::try_from(data), offset & 0xf) else {
            return;
        };
        let apic = self.apic(vcpu);
        match apic.write(offset, u32::from_le_bytes(bytes), now) {
            Some(effect) => self.carry_out(vcpu, effect),
            None => apic.error(ESR_REGISTER),
        }
    }

    fn carry_out(&mut self, vcpu: u16, effect: Effect) {
        match effect {
            Effect::None => {}
            Effect::EndOfInterrupt(vector) => self.ended = Some(vector),
            Effect::Command(icr) => self.command(vcpu, icr),
        }
    }

    /// Removes and returns the vector of the level-triggered interrupt that the last write ended; the IOAPIC must be notified. None if no
    /// write has ended such an interrupt since the last call.
    #[inline]
    pub fn take_ended(&mut self) -> Option<u8> {
        self.ended.take()
    }

    /// Removes and returns the actions of messages on vCPUs since the last call, in order.
    pub fn take_actions(&mut self) -> Vec<CpuAction> {
        std::mem::take(&mut self.actions)
    }

    /// Returns the actions that [`LocalApics::take_actions`] would return.
    #[inline]
    pub fn actions(&self) -> &[CpuAction] {
        &self.actions
    }

    /// Sends the message that a write of `icr` by vCPU `from` commands.
    fn command(&mut self, from: u16, icr: u64) {
        let apic = self.apic(from);
        let delivery = Delivery::of(icr);
        let x2 = apic.mode() == ApicMode::X2Apic;
        let vector = icr as u8;
        let level = icr & 1 << 15 != 0;
        match delivery {
            Delivery::Fixed | Delivery::LowestPriority if vector < 16 => {
                apic.error(ESR_SEND_VECTOR);
                return;
            }
            // The INIT level de-assert message synchronised arbitration IDs on old processors and has no effect now.
            Delivery::Init if level && icr & 1 << 14 == 0 => return,
            _ => {}
        }
        let logical = icr & 1 << 11 != 0;
        let to = (icr >> 32) as u32;
        let destination = if x2 {
            Destination::wide(to, logical)
        } else {
            Destination::narrow((to >> 24) as u8, logical)
        };
        let shorthand = icr >> 18 & 3;
        let targets: Vec<u16> = (0..self.apics.len() as u16)
            .filter(|&vcpu| match shorthand {
                0 => self.apics[usize::from(vcpu)].is_addressed(destination),
                1 => vcpu == from,
                _ => (shorthand == 2 || vcpu != from) && self.mode(vcpu) != ApicMode::Disabled,
            })
            .collect();
        // Interrupts between processors are always edge-triggered.
        self.send(&targets, delivery, vector, Trigger::Edge);
    }

    /// Delivers a message from the IOAPIC or a device. Returns whether any local APIC accepted the message.
    pub fn deliver(&mut self, message: &Message) -> bool {
        let targets: Vec<u16> = (0..self.apics.len() as u16)
            .filter(|&v| self.apics[usize::from(v)].is_addressed(message.destination))
            .collect();
        self.send(&targets, message.delivery, message.vector, message.trigger)
    }

    fn send(&mut self, targets: &[u16], delivery: Delivery, vector: u8, trigger: Trigger) -> bool {
        let mut taken = false;
        match delivery {
            Delivery::Fixed => {
                for &vcpu in targets {
                    taken |= self.apic(vcpu).accept(vector, trigger);
                }
            }
            Delivery::LowestPriority => {
                let candidates = targets.iter().copied();
                let lowest = candidates
                    .filter(|&v| self.apics[usize::from(v)].accepts())
                    .min_by_key(|&v| (self.apics[usize::from(v)].ppr(), v));
                if let Some(vcpu) = lowest {
                    taken = self.apic(vcpu).accept(vector, trigger);
                }
            }
            Delivery::Nmi => {
                taken = !targets.is_empty();
                let each = targets.iter().map(|&vcpu| CpuAction::Nmi { vcpu });
                self.actions.extend(each);
            }
            Delivery::Init => {
                taken = !targets.is_empty();
                for &vcpu in targets {
                    self.apic(vcpu).reset();
                    self.actions.push(CpuAction::Init { vcpu });
                }
            }
            Delivery::Startup => {
                taken = !targets.is_empty();
                let each = targets
                    .iter()
                    .map(|&vcpu| CpuAction::Startup { vcpu, vector });
                self.actions.extend(each);
            }
            Delivery::Smi | Delivery::External | Delivery::Reserved => {}
        }
        taken
    }
}
