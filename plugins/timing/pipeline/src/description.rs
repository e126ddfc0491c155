//! Descriptions of cores: widths, queues, ports, and the micro-operations of each class of instructions.
//!
//! A description is a TOML file; those in `cores/` are built in. A file may name another as its `base` and give only what differs.

use std::collections::BTreeMap;

use serde::Deserialize;
use thiserror::Error;

use crate::class::Class;
use crate::micro::Ports;

mod check;
mod read;

/// A core, as the decoder and the timing of recordings need it. All times are in cycles of the core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Core {
    /// Short name: that of the preset, such as `zen4`.
    pub name: String,
    /// Name for people, such as "AMD Zen 4".
    pub title: String,
    /// True if the model with this description was compared with measurements on such a core.
    pub validated: bool,
    /// Where the numbers come from.
    pub sources: String,
    /// Names of the ports, in the order of their bits in [`Ports`].
    pub ports: Vec<String>,
    /// Widths and the front end.
    pub pipeline: Pipeline,
    /// Registers for results, and work that renaming saves.
    pub renaming: Renaming,
    /// Schedulers.
    pub schedulers: Vec<Scheduler>,
    /// Loads.
    pub load: Load,
    /// Stores.
    pub store: Store,
    /// Lines that one core gets from outside of the first level.
    pub bandwidth: Bandwidth,
    /// Translation of data addresses.
    pub tlb: Tlb,
    /// Repeated string instructions.
    pub strings: Strings,
    /// Times of instructions that microcode or the system executes.
    pub costs: Costs,
    /// Micro-operations of each class, in the order of [`Class::ALL`].
    recipes: Vec<Recipe>,
}

/// Widths and the front end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pipeline {
    /// Slots that are dispatched to the back end in a cycle.
    pub dispatch: u32,
    /// Slots that retire in a cycle.
    pub retire: u32,
    /// Places in the reorder buffer, in slots.
    pub reorder_buffer: u32,
    /// Cycles from the execution of a wrongly predicted branch to the dispatch of the next instruction.
    pub mispredict_penalty: u32,
    /// Taken branches in a cycle that the front end follows.
    pub taken_branches: u32,
    /// Bytes of the aligned windows of code of which the front end delivers one in a cycle, up to the first taken branch; 0 if such windows
    /// cost nothing. A loop that lies in two windows takes two cycles at least.
    #[serde(default)]
    pub fetch_window: u32,
    /// Cycles that a call or return adds at the front end, beyond those of a taken branch.
    #[serde(default)]
    pub call_bubble: u32,
    /// Slots in a cycle that the cache of micro-operations delivers; 0 if there is none.
    pub cached_decode: u32,
    /// Slots that fit in the cache of micro-operations; 0 if there is none.
    pub decode_cache: u32,
    /// Instructions in a cycle that are decoded outside of the cache of micro-operations.
    pub decode: u32,
    /// Bytes of a vector on which a port works in a cycle. Wider vectors occupy a port for several cycles.
    pub vector_bytes: u32,
}

/// Registers for results, and work that renaming saves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Renaming {
    /// General registers, those that hold the program's state among them.
    pub general_registers: u32,
    /// Vector registers, those that hold the program's state among them.
    pub vector_registers: u32,
    /// True if moves between general registers need no port.
    pub general_moves: bool,
    /// True if MOVZX from 8 bits needs no port.
    pub extensions: bool,
    /// True if moves between vector registers need no port.
    pub vector_moves: bool,
    /// What becomes of instructions that make zero of any value, as XOR of a register with itself.
    pub zeroes: Idiom,
    /// What becomes of instructions that make ones of any value, as PCMPEQD of a register with itself.
    pub ones: Idiom,
    /// Instructions that are executed as one with a following conditional jump.
    pub fusion: Fusion,
    /// True if a NOP takes no place of its own.
    pub free_nops: bool,
    /// True if a shift by CL waits for the flags, which it keeps if the count is 0.
    pub shifts_keep_flags: bool,
    /// Slots of an operation on memory that writes its result back, in addition to those of the operation.
    pub write_back_slots: u8,
    /// Which operations with a loaded operand take one more slot when the address has an index register.
    pub indexed: Indexed,
    /// Which stores take one more slot when the address has an index register.
    pub indexed_store: Indexed,
}

/// What becomes of an instruction whose result does not depend on its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Idiom {
    /// It is executed as any other, and waits for its operands.
    Executed,
    /// It is executed, but waits for nothing.
    Independent,
    /// It needs no port.
    Eliminated,
}

/// Instructions that a core fuses with a conditional jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fusion {
    /// None.
    Nothing,
    /// CMP and TEST.
    Comparisons,
    /// CMP, TEST, ADD, SUB, AND, INC and DEC.
    Arithmetic,
    /// Those of `Arithmetic`, OR, XOR, NEG and NOT: AMD's cores from Zen 3 on.
    Logic,
}

/// Which instructions on memory take one more slot if the address has an index register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Indexed {
    /// None.
    Fused,
    /// Those whose target is no operand: VEX-encoded ones (Haswell and later).
    ThreeOperands,
    /// Those on general registers, unless they write their result back: Zen 4.
    General,
    /// All: Sandy Bridge.
    Split,
}

/// A scheduler: the waiting micro-operations of some ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheduler {
    /// Places for micro-operations.
    pub entries: u32,
    /// Ports that it serves. No port has two schedulers.
    pub ports: Ports,
}

/// Loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Ports of loads to general registers.
    pub ports: Ports,
    /// Ports of loads to vector registers.
    pub vector_ports: Ports,
    /// Bytes that a port loads in a cycle. Wider loads occupy it for several cycles.
    pub bytes: u32,
    /// Loads between dispatch and retirement.
    pub queue: u32,
    /// Cycles of a load to a general register that the first level of the cache answers.
    pub latency: u16,
    /// Additional cycles of a load to a vector register.
    pub vector_latency: u16,
    /// Additional cycles if the address has an index register.
    pub indexed_latency: u16,
    /// Additional cycles of a complex address, beyond `indexed_latency`: one with a scale above 1, or of base, index and displacement.
    pub complex_latency: u16,
    /// Additional cycles of an access that crosses a line.
    pub split_latency: u16,
    /// Lines that the first level of the cache waits for at a time.
    pub line_fills: u32,
    /// Lines that the second level of the cache waits for at a time.
    pub second_level_misses: u32,
}

/// Stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store {
    /// Ports that compute addresses of stores.
    pub address_ports: Ports,
    /// Ports that hand over data from general registers.
    pub data_ports: Ports,
    /// Ports that hand over data from vector registers.
    pub vector_data_ports: Ports,
    /// Bytes that a port hands over in a cycle.
    pub bytes: u32,
    /// Stores between dispatch and commit.
    pub queue: u32,
    /// Stores that commit to the cache in a cycle.
    pub commits: u32,
    /// True if stores to one line that follow each other commit together: two in a cycle even where `commits` is 1.
    pub commits_together: bool,
    /// Oldest stores that may request their lines before they commit.
    pub early: u32,
    /// Cycles of a load to a general register whose data an earlier store forwards, from the time at which the store has them.
    pub forward: u16,
    /// Cycles of a load to a general register that has the address and size of an earlier store, where the core knows the pair without the
    /// address (memory renaming); as `forward` where it does not.
    pub forward_same: u16,
    /// Cycles of a load to a vector register whose data an earlier store forwards.
    pub forward_vector: u16,
    /// Cycles from the commit of a store to the start of a load that overlaps it but cannot be forwarded.
    pub failed_forward: u16,
    /// Cycles for which a store that crosses a line occupies the commit.
    pub split_commit: u16,
    /// Cycles for which a store that crosses a page of 4 KiB occupies the commit.
    pub page_split_commit: u16,
}

/// Times in which one core gets a line, one after the other, in 1/256 of a cycle; 0 for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bandwidth {
    /// From the second level of the cache.
    pub second_level: u32,
    /// From the third level.
    pub third_level: u32,
    /// From caches of other cores.
    pub other_cache: u32,
    /// From memory of the own socket.
    pub memory: u32,
    /// From memory of another socket.
    pub remote_memory: u32,
    /// Shares of these times, in 1/256, that a written line takes on its way back to the second level, the third level, and memory.
    pub written: [u32; 3],
}

/// Translation of data addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tlb {
    /// Entries of the first level.
    pub first_entries: u32,
    /// Ways of the first level: as many as entries if it is fully associative.
    pub first_ways: u32,
    /// Entries of the second level.
    pub second_entries: u32,
    /// Ways of the second level.
    pub second_ways: u32,
    /// Cycles of an answer of the second level beyond one of the first.
    pub second_latency: u32,
    /// Cycles of a walk of the page tables, where no better value is known.
    pub walk_latency: u32,
    /// Walks at a time.
    pub walkers: u32,
    /// False if large pages save no entries, as in a virtual machine whose memory the host has in small pages.
    #[serde(default = "large_pages")]
    pub large_pages: bool,
}

fn large_pages() -> bool {
    true
}

/// Repeated string instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Strings {
    /// Cycles of REP MOVS before it copies.
    pub copy_start: u32,
    /// Bytes that REP MOVS copies in a cycle.
    pub copy_bytes: u32,
    /// Cycles of REP STOS before it writes.
    pub set_start: u32,
    /// Bytes that REP STOS writes in a cycle.
    pub set_bytes: u32,
    /// Cycles of REPE CMPS, REPNE SCAS and REP LODS before the first element.
    pub scan_start: u32,
    /// Cycles for each element of REPE CMPS, REPNE SCAS and REP LODS.
    pub scan_element: u32,
}

/// Times of instructions that microcode or the system executes, in cycles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// A locked operation on memory: between the end of earlier stores and the start of later loads.
    pub locked: u32,
    /// LFENCE and other instructions that wait for all earlier ones.
    pub serialise: u32,
    /// MFENCE.
    pub memory_fence: u32,
    /// SFENCE.
    pub store_fence: u32,
    /// PAUSE.
    pub pause: u32,
    /// CPUID, without the time of a hypervisor.
    pub cpuid: u32,
    /// RDTSC and RDTSCP.
    pub timestamp: u32,
    /// RDRAND and RDSEED.
    pub random: u32,
    /// XGETBV, RDPKRU and other reads of registers that describe the state.
    pub state_register: u32,
    /// RDMSR and WRMSR.
    pub model_register: u32,
    /// Moves to and from control, debug and segment registers, INVLPG, SWAPGS and other privileged instructions.
    pub privileged: u32,
    /// SYSCALL and SYSRET: each.
    pub system_call: u32,
    /// Interrupts and exceptions, at their beginning.
    pub interrupt: u32,
    /// IRET.
    pub interrupt_return: u32,
    /// IN and OUT, without the time of the device.
    pub port: u32,
    /// XSAVE, XRSTOR, FXSAVE and FXRSTOR: each.
    pub state_save: u32,
    /// CLFLUSH, CLWB.
    pub flush: u32,
    /// Any other instruction of [`Class::System`].
    pub other: u32,
}

/// Micro-operations of a class of instructions, besides loads and stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// Steps, in order. None: the result is the loaded or stored value, or the source without work.
    pub steps: Vec<Step>,
    /// Slots at dispatch, in the reorder buffer and at retirement; loads that belong to the operation and plain stores take none in addition.
    pub slots: u8,
}

/// Equal micro-operations within an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Ports on which they run.
    pub ports: Ports,
    /// Cycles from the start to the result. The next step waits for it, unless this one is `beside`.
    pub latency: u16,
    /// Cycles for which the port accepts nothing else.
    pub busy: u16,
    /// Number of micro-operations. They are independent of each other, and the last one has the result.
    pub count: u8,
    /// True if no later step waits for the result.
    pub beside: bool,
}

/// Reason for which a description is no core.
#[derive(Debug, Error)]
pub enum DescriptionError {
    /// There is no such preset.
    #[error("there is no core {name:?}; there are {known}")]
    Unknown {
        /// Name that was asked for.
        name: String,
        /// Names that there are.
        known: String,
    },
    /// The text is no description.
    #[error("the description of a core cannot be read: {0}")]
    Text(#[from] Box<toml::de::Error>),
    /// A value is impossible.
    #[error("{field}: {problem}")]
    Value {
        /// Field of the description, as a path with dots.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
}

/// Presets: name, text.
const PRESETS: &[(&str, &str)] = &[
    ("westmere", include_str!("../cores/westmere.toml")),
    ("sandy-bridge", include_str!("../cores/sandy-bridge.toml")),
    (
        "skylake-server",
        include_str!("../cores/skylake-server.toml"),
    ),
    (
        "ice-lake-server",
        include_str!("../cores/ice-lake-server.toml"),
    ),
    (
        "sapphire-rapids",
        include_str!("../cores/sapphire-rapids.toml"),
    ),
    (
        "granite-rapids",
        include_str!("../cores/granite-rapids.toml"),
    ),
    ("zen2", include_str!("../cores/zen2.toml")),
    ("zen4", include_str!("../cores/zen4.toml")),
    ("zen5", include_str!("../cores/zen5.toml")),
];

impl Core {
    /// Returns the names of the built-in cores.
    pub fn presets() -> impl Iterator<Item = &'static str> {
        PRESETS.iter().map(|(name, _)| *name)
    }

    /// Returns a built-in core.
    ///
    /// # Errors
    ///
    /// If there is none of this name.
    pub fn preset(name: &str) -> Result<Self, DescriptionError> {
        Self::from_toml(preset_text(name)?)
    }

    /// Reads a description. It may be based on a built-in core.
    ///
    /// # Errors
    ///
    /// If the text is no TOML, lacks a field, has an unknown one or an impossible value.
    pub fn from_toml(text: &str) -> Result<Self, DescriptionError> {
        read::core(text)
    }

    /// Returns the micro-operations of a class, besides loads and stores.
    pub fn recipe(&self, class: Class) -> &Recipe {
        // The enumeration and `Class::ALL` come from one list, so they have the same order.
        &self.recipes[class as usize]
    }

    /// Returns the set of ports with these names, which may be empty.
    pub fn port_set(&self, names: &str) -> Ports {
        self.ports
            .iter()
            .enumerate()
            .filter(|(_, port)| names.split(' ').any(|name| name == port.as_str()))
            .map(|(bit, _)| 1 << bit)
            .sum()
    }
}

/// Returns the text of a built-in core.
fn preset_text(name: &str) -> Result<&'static str, DescriptionError> {
    PRESETS
        .iter()
        .find(|(preset, _)| *preset == name)
        .map(|(_, text)| *text)
        .ok_or_else(|| DescriptionError::Unknown {
            name: name.into(),
            known: PRESETS.iter().map(|p| p.0).collect::<Vec<_>>().join(", "),
        })
}

/// Names of sets of ports, for use in a description.
type Groups = BTreeMap<String, String>;

#[cfg(test)]
mod tests;
