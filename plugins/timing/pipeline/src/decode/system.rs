//! Instructions that microcode or the system executes, and repeated string instructions.

use iced_x86::{Instruction, Mnemonic};

use crate::class::Class;
use crate::description::Core;

/// Time that an instruction takes by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Alone {
    /// Cycles in which nothing else is dispatched.
    pub(super) cycles: u32,
    /// Cycles for each element, in 1/65536.
    pub(super) each_65536: u32,
    /// True if earlier instructions retire before it, and later ones wait for it.
    pub(super) serialising: bool,
}

/// Returns the time that an instruction of a class takes by itself.
pub(super) fn alone(core: &Core, instruction: &Instruction, class: Class) -> Alone {
    let repeated = instruction.is_string_instruction()
        && (instruction.has_rep_prefix() || instruction.has_repne_prefix());
    match class {
        _ if repeated => string(core, instruction, class),
        Class::System => Alone {
            cycles: cycles(core, instruction),
            each_65536: 0,
            serialising: serialises(instruction),
        },
        _ => Alone::default(),
    }
}

fn string(core: &Core, instruction: &Instruction, class: Class) -> Alone {
    let strings = &core.strings;
    let bytes = instruction.memory_size().size().max(1) as u32;
    let element = match instruction.memory_size().size() {
        // Repeated instructions have no size of their own.
        0 => element(instruction),
        _ => bytes,
    };
    let rate = |bytes_per_cycle: u32| (element << 16) / bytes_per_cycle;
    let (cycles, each_65536) = match class {
        Class::StringMove => (strings.copy_start, rate(strings.copy_bytes)),
        Class::StringStore => (strings.set_start, rate(strings.set_bytes)),
        Class::System => (core.costs.port, core.costs.port << 16),
        _ => (strings.scan_start, strings.scan_element << 16),
    };
    Alone {
        cycles,
        each_65536,
        serialising: false,
    }
}

/// Returns the bytes of an element of a string instruction, by the last letter of its name.
fn element(instruction: &Instruction) -> u32 {
    let name = format!("{:?}", instruction.mnemonic());
    match name.as_bytes().last() {
        Some(b'w') => 2,
        Some(b'd') => 4,
        Some(b'q') => 8,
        _ => 1,
    }
}

fn cycles(core: &Core, instruction: &Instruction) -> u32 {
    use Mnemonic as M;
    let costs = &core.costs;
    match instruction.mnemonic() {
        M::Lfence | M::Serialize => costs.serialise,
        M::Mfence => costs.memory_fence,
        M::Sfence => costs.store_fence,
        M::Pause | M::Tpause | M::Umwait => costs.pause,
        M::Cpuid => costs.cpuid,
        M::Rdtsc | M::Rdtscp | M::Rdpmc => costs.timestamp,
        M::Rdrand | M::Rdseed => costs.random,
        M::Xgetbv | M::Xsetbv | M::Rdpkru | M::Wrpkru | M::Rdpid => costs.state_register,
        M::Rdfsbase | M::Rdgsbase | M::Wrfsbase | M::Wrgsbase => costs.state_register,
        M::Rdmsr | M::Wrmsr | M::Wrmsrns => costs.model_register,
        M::Syscall | M::Sysenter | M::Sysret | M::Sysretq | M::Sysexit | M::Sysexitq => {
            costs.system_call
        }
        M::Int | M::Int1 | M::Int3 | M::Into | M::Ud0 | M::Ud1 | M::Ud2 => costs.interrupt,
        M::Vmcall | M::Vmmcall => costs.interrupt,
        M::Iret | M::Iretd | M::Iretq => costs.interrupt_return,
        M::In | M::Out | M::Insb | M::Insw | M::Insd | M::Outsb | M::Outsw | M::Outsd => costs.port,
        M::Clflush | M::Clflushopt | M::Clwb | M::Clzero => costs.flush,
        _ if instruction.is_save_restore_instruction() => costs.state_save,
        _ if instruction.is_privileged() => costs.privileged,
        _ => costs.other,
    }
}

/// Returns whether an instruction waits for all earlier ones and holds later ones back (Intel SDM vol. 3A, "Serializing Instructions"; the
/// fences that wait for all instructions are among them).
fn serialises(instruction: &Instruction) -> bool {
    use Mnemonic as M;
    let harmless = matches!(
        instruction.mnemonic(),
        M::Cli | M::Sti | M::Stac | M::Clac | M::Swapgs | M::Rdmsr | M::Rdpmc
    );
    let named = matches!(
        instruction.mnemonic(),
        M::Cpuid
            | M::Lfence
            | M::Mfence
            | M::Serialize
            | M::Rdtscp
            | M::Iret
            | M::Iretd
            | M::Iretq
            | M::Syscall
            | M::Sysret
            | M::Sysretq
            | M::Int
            | M::Int3
            | M::Vmcall
            | M::Vmmcall
    );
    named || instruction.is_privileged() && !harmless
}
