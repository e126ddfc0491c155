//! Errors that end a study.

use std::fmt;

use nodescope_x86::VcpuState;
use thiserror::Error;

/// Report of an engine that stopped: location, obstacle and state.
#[derive(Clone, Debug)]
pub struct StopReport {
    /// Index of the vCPU within its node.
    pub vcpu: u16,
    /// The obstacle, such as an instruction's name.
    pub what: String,
    /// Bytes at the instruction pointer, as far as they could be read.
    pub bytes: Vec<u8>,
    /// Complete state of the vCPU.
    pub state: Box<VcpuState>,
}

impl fmt::Display for StopReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 16] = [
            "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11",
            "r12", "r13", "r14", "r15",
        ];
        let s = &self.state;
        let cs = &s.segments.data[nodescope_x86::state::seg::CS];
        let mode = match (
            s.control.cr0 & 1 != 0,
            s.control.efer & 1 << 10 != 0,
            cs.long(),
            cs.default_32(),
        ) {
            (false, ..) => "real mode",
            (_, true, true, _) => "64-bit mode",
            (_, _, _, true) => "32-bit mode",
            _ => "16-bit protected mode",
        };
        write!(
            f,
            "{} on vCPU {} at {:#x} ({mode}, CPL {}), bytes",
            self.what,
            self.vcpu,
            s.general.rip,
            cs.dpl()
        )?;
        for b in &self.bytes {
            write!(f, " {b:02x}")?;
        }
        for (i, (name, value)) in NAMES.iter().zip(s.general.gpr).enumerate() {
            write!(
                f,
                "{}{name:>3} {value:016x}",
                if i % 4 == 0 { "\n  " } else { "  " }
            )?;
        }
        write!(
            f,
            "\n  rflags {:#x}  cr0 {:#x}  cr2 {:#x}  cr3 {:#x}  cr4 {:#x}  efer {:#x}  cs {:#x}  instructions {}",
            s.general.rflags,
            s.control.cr0,
            s.control.cr2,
            s.control.cr3,
            s.control.cr4,
            s.control.efer,
            cs.selector,
            s.time.instructions
        )
    }
}

/// Reason why an engine cannot continue.
#[derive(Debug, Error)]
pub enum EngineError {
    /// An instruction or state that the engine does not implement; to continue would give a wrong result.
    #[error("unsupported: {0}")]
    Unsupported(Box<StopReport>),
    /// An operation that the host refused.
    #[error("{what}: {source}")]
    Host {
        /// The operation that the host refused.
        what: String,
        /// Error of the host.
        source: std::io::Error,
    },
}
