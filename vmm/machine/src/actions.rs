//! Effects of INIT, start-up and NMI interprocessor messages on a vCPU (SDM vol. 3A §8.4).

use nodescope_devices::lapic::CpuAction;
use nodescope_x86::{MpState, VcpuState};

/// Returns the number of the vCPU that a message is for.
pub(crate) fn target(action: CpuAction) -> u16 {
    let (CpuAction::Init { vcpu } | CpuAction::Startup { vcpu, .. } | CpuAction::Nmi { vcpu }) =
        action;
    vcpu
}

/// Applies a message to the state of its vCPU. Returns whether the vCPU sleeps afterwards; `None` if the message has no effect.
pub(crate) fn carry_out(action: CpuAction, state: &mut VcpuState) -> Option<bool> {
    match action {
        CpuAction::Init { .. } => {
            state.init();
            state.events.mp = MpState::WaitForSipi;
            Some(true)
        }
        CpuAction::Startup { vector, .. } => {
            if state.events.mp != MpState::WaitForSipi {
                return None;
            }
            state.startup(vector);
            Some(false)
        }
        CpuAction::Nmi { .. } => {
            state.events.nmi_pending = true;
            Some(false)
        }
    }
}
