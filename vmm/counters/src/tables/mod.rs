//! Tables of processors' hardware events, in groups whose events the processor can count at once.
//!
//! Encodings of Intel's events are from the Software Developer's Manual, volume 3B, chapter 20, and from Intel's event files. Their fields
//! are those of IA32_PERFEVTSELx (section 20.2.1). AMD's events are from the Processor Programming References, section "Performance Monitor
//! Counters". Their fields are those of PERF_CTL (APM volume 2, section 13.2.1).

mod amd;
mod cpu;
mod intel;

pub use cpu::Cpu;

use crate::quantity::Quantity;

/// Code of an event that is programmed into a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The kernel's generic event for unhalted cycles, which uses the fixed counter of processors that have one.
    Cycles,
    /// The kernel's generic event for retired instructions.
    Instructions,
    /// A software event of the kernel, by its number in `perf_event_open(2)`. Hosts without a PMU can count these events.
    Software(u64),
    /// An event of the processor, by its encoding.
    Raw {
        /// Event select: 8 bits on Intel, 12 bits on AMD.
        event: u16,
        /// Unit mask, which selects sub-events.
        umask: u8,
        /// Counter mask. If not 0, cycles with at least this many events are counted in place of events.
        cmask: u8,
        /// True to count cycles with fewer events than `cmask`, in place of cycles with at least `cmask` events.
        inv: bool,
        /// True to count the cycles in which the condition begins, not all of its cycles.
        edge: bool,
    },
}

impl Code {
    /// Returns the kernel's raw event number, or none for a generic or software event. Bits 35:32 have the upper bits of AMD's event
    /// select.
    pub fn raw(self) -> Option<u64> {
        let Code::Raw {
            event,
            umask,
            cmask,
            inv,
            edge,
        } = self
        else {
            return None;
        };
        Some(
            u64::from(event & 0xff)
                | u64::from(umask) << 8
                | u64::from(edge) << 18
                | u64::from(inv) << 23
                | u64::from(cmask) << 24
                | u64::from(event >> 8) << 32,
        )
    }
}

/// An event of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Name for reports: the manufacturer's or the kernel's name, or a description where neither has one.
    pub name: &'static str,
    /// Code that is programmed into the counter.
    pub code: Code,
    /// Quantity that the event counts; none if no formula uses the event.
    pub quantity: Option<Quantity>,
    /// Factor from the count to the quantity. For example, a count of cycles times 4 gives pipeline slots.
    pub scale: u8,
}

/// Events that are counted at the same time.
pub type Group = &'static [Event];

/// Table of a processor family's events.
#[derive(Debug)]
pub struct Table {
    /// Name of the processors for reports.
    pub name: &'static str,
    /// Vendor, the field `vendor_id` of `/proc/cpuinfo`.
    pub vendor: &'static str,
    /// Ranges of models: family, first model and last model.
    pub models: &'static [(u32, u32, u32)],
    /// Groups of events, the most important group first. The first group begins with cycles and instructions.
    pub groups: &'static [Group],
    /// Sentences about the limits of this processor's counters.
    pub limits: &'static [&'static str],
}

/// Event of unhalted cycles, for all processors.
const CYCLES: Event = Event {
    name: "cycles",
    code: Code::Cycles,
    quantity: Some(Quantity::Cycles),
    scale: 1,
};

/// Event of retired instructions, for all processors.
const INSTRUCTIONS: Event = Event {
    name: "instructions",
    code: Code::Instructions,
    quantity: Some(Quantity::Instructions),
    scale: 1,
};

/// Makes an event from its event select, unit mask and counter mask.
const fn raw(name: &'static str, event: u16, umask: u8, cmask: u8, quantity: Quantity) -> Event {
    scaled(name, event, umask, cmask, quantity, 1)
}

/// Makes an event whose count is multiplied by `scale`.
const fn scaled(
    name: &'static str,
    event: u16,
    umask: u8,
    cmask: u8,
    quantity: Quantity,
    scale: u8,
) -> Event {
    Event {
        name,
        code: Code::Raw {
            event,
            umask,
            cmask,
            inv: false,
            edge: false,
        },
        quantity: Some(quantity),
        scale,
    }
}

/// Returns the tables of all processors.
pub fn all() -> impl Iterator<Item = &'static Table> {
    intel::TABLES.iter().chain(amd::TABLES)
}

impl Table {
    /// Returns the table of a processor; none if no table has its vendor, family and model.
    pub fn of(cpu: &Cpu) -> Option<&'static Table> {
        all().find(|table| {
            let fits = |&(family, first, last): &(u32, u32, u32)| {
                cpu.family == family && (first..=last).contains(&cpu.model)
            };
            table.vendor == cpu.vendor && table.models.iter().any(fits)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(vendor: &str, family: u32, model: u32) -> Option<&'static str> {
        let cpu = Cpu {
            vendor: vendor.into(),
            family,
            model,
            name: String::new(),
        };
        Table::of(&cpu).map(|table| table.name)
    }

    fn event(table: &str, name: &str) -> Option<u64> {
        let table = all().find(|t| t.name == table).unwrap();
        let mut events = table.groups.iter().copied().flatten();
        events
            .find(|event| event.name == name)
            .and_then(|event| event.code.raw())
    }

    #[test]
    fn processors_find_their_tables() {
        for (model, name) in [
            (0x2c, "Westmere"),
            (0x2d, "Sandy Bridge"),
            (0x3e, "Ivy Bridge"),
            (0x3f, "Haswell"),
            (0x4f, "Broadwell"),
            (0x55, "Skylake, Cascade Lake"),
            (0x6a, "Ice Lake"),
            (0x8f, "Sapphire Rapids"),
        ] {
            assert_eq!(of("GenuineIntel", 6, model), Some(name));
        }
        for (family, model, name) in [
            (0x17, 0x01, "Zen 1"),
            (0x17, 0x31, "Zen 2"),
            (0x19, 0x01, "Zen 3"),
            (0x19, 0x21, "Zen 3"),
            (0x19, 0x11, "Zen 4"),
            (0x19, 0x61, "Zen 4"),
            (0x1a, 0x02, "Zen 5"),
        ] {
            assert_eq!(of("AuthenticAMD", family, model), Some(name));
        }
        assert_eq!(of("GenuineIntel", 6, 0x0f), None);
        assert_eq!(of("AuthenticAMD", 6, 0x55), None);
    }

    /// Compares numbers with those that `perf` shows for these events (`perf stat -v`).
    #[test]
    fn codes_are_those_of_the_manuals() {
        for (table, name, code) in [
            (
                "Sandy Bridge",
                "CYCLE_ACTIVITY.STALLS_L1D_PENDING",
                0x060006a3,
            ),
            ("Haswell", "CYCLE_ACTIVITY.STALLS_L1D_PENDING", 0x0c000ca3),
            ("Broadwell", "CYCLE_ACTIVITY.STALLS_L1D_MISS", 0x0c000ca3),
            (
                "Skylake, Cascade Lake",
                "CYCLE_ACTIVITY.STALLS_MEM_ANY",
                0x140014a3,
            ),
            (
                "Skylake, Cascade Lake",
                "FP_ARITH_INST_RETIRED.512B_PACKED_DOUBLE",
                0x40c7,
            ),
            (
                "Skylake, Cascade Lake",
                "IDQ_UOPS_NOT_DELIVERED.CORE",
                0x019c,
            ),
            ("Ice Lake", "TOPDOWN.SLOTS", 0x0400),
            ("Ice Lake", "topdown-be-bound", 0x8300),
            (
                "Sapphire Rapids",
                "MEMORY_ACTIVITY.STALLS_L1D_MISS",
                0x03000347,
            ),
            ("Zen 1", "FP_RET_SSE_AVX_OPS.ALL", 0xff03),
            ("Zen 2", "FP_RET_SSE_AVX_OPS.ALL", 0x0f03),
            ("Zen 4", "EX_NO_RETIRE.LOAD_NOT_COMPLETE", 0xa2d6),
            (
                "Zen 4",
                "DE_NO_DISPATCH_PER_SLOT.NO_OPS_FROM_FRONTEND",
                0x1_0000_01a0,
            ),
        ] {
            assert_eq!(event(table, name), Some(code), "{table} {name}");
        }
        let all_fields = Code::Raw {
            event: 0x1a3,
            umask: 2,
            cmask: 3,
            inv: true,
            edge: true,
        };
        assert_eq!(all_fields.raw(), Some(0x1_0384_02a3));
        assert_eq!(Code::Cycles.raw(), None);
    }

    #[test]
    fn groups_fit_into_the_counters_and_name_known_events() {
        for table in all() {
            let [CYCLES, INSTRUCTIONS, ..] = table.groups[0] else {
                panic!("{}", table.name)
            };
            // With two threads on a core, Intel's processors have four general-purpose counters for each thread, and AMD's have six.
            let intel = table.vendor == "GenuineIntel";
            let most = if intel { 4 } else { 6 };
            for group in table.groups {
                // On Intel, fixed counters count event 0x3c without a mask, and slots (event 0).
                let general = |event: &&Event| {
                    let code = event.code.raw().map(|code| code & 0xffff);
                    code.is_some_and(|code| !intel || (code & 0xff != 0 && code != 0x3c))
                };
                assert!(
                    group.iter().filter(general).count() <= most,
                    "{} {group:?}",
                    table.name
                );
                for event in *group {
                    let known = crate::names::known(event.name);
                    // Slots that are computed from other units have names that files of other tools do not use for slots.
                    if event.scale == 1
                        && !event.name.starts_with("UOPS")
                        && !event.name.starts_with("IDQ")
                    {
                        assert_eq!(
                            known.map(|known| known.quantity),
                            event.quantity,
                            "{}",
                            event.name
                        );
                    }
                }
            }
        }
    }
}
