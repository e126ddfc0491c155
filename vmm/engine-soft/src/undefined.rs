//! Reports the instructions of user programs that raise `#UD`, which usually ends a program: most are of a processor that has more features
//! than the guest's.

use iced_x86::{Decoder, DecoderOptions, Formatter, GasFormatter};
use nodescope_engine::{GuestVirtual, UndefinedInstruction};

use crate::cpu::{Cpu, Mode};
use crate::fetch::MAX_INSTRUCTION;
use crate::op::RIP;
use crate::ops::system::Borrowed;

impl Cpu {
    /// Reports the instruction at RIP to the platform. Called before the exception is delivered, in user mode.
    pub fn report_undefined(&mut self) {
        if self.mode != Mode::Bits64 {
            return;
        }
        let (vcpu, address, stack) = (self.id, self.gpr[RIP as usize], self.gpr[4]);
        let features = self.features;
        let mut platform = self.platform.expect("called only below run()");
        let mut memory = Borrowed::new(self);
        let mut bytes = Vec::with_capacity(MAX_INSTRUCTION);
        for offset in 0..MAX_INSTRUCTION as u64 {
            let mut byte = [0];
            if memory
                .read(address.wrapping_add(offset), &mut byte)
                .is_err()
            {
                break;
            }
            bytes.extend(byte);
        }
        let instruction = Decoder::with_ip(64, &bytes, address, DecoderOptions::NONE).decode();
        let mut text = None;
        if !instruction.is_invalid() {
            bytes.truncate(instruction.len());
            let mut shown = String::new();
            GasFormatter::new().format(&instruction, &mut shown);
            text = Some(shown);
        }
        let feature = features.lacking(&instruction);
        let report = UndefinedInstruction {
            vcpu,
            address,
            stack,
            bytes,
            text,
            feature: feature.map(|feature| (feature as u16, format!("{feature:?}"))),
        };
        // SAFETY: as in `Cpu::platform`; `Borrowed` never calls the platform, so the reference is exclusive.
        unsafe { platform.as_mut() }.undefined_instruction(&report, &mut memory);
    }
}
