//! Quantities that events count, independent of the tools' names of the events.

/// A quantity that an event counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Quantity {
    /// Cycles in which the core was not halted.
    Cycles,
    /// Number of instructions retired.
    Instructions,
    /// Cycles without execution while a load misses the first-level data cache.
    StallsL1dMiss,
    /// Cycles without execution while any load is pending, also one that hits the first level.
    StallsMemAny,
    /// Cycles without retirement because the oldest operation waits for a load's data (AMD).
    NoRetireLoad,
    /// Cycles stalled for memory accesses, as PAPI defines them.
    StallsMemory,
    /// Cycles stalled because the load or the store queue is full.
    StallsQueues,
    /// Cycles stalled for any resource. Resources other than memory are included, so no CPI_core can be computed from these cycles.
    StallsResource,
    /// Share of pipeline slots lost to memory: VTune's "Memory Bound".
    ShareMemory,
    /// Floating-point instructions on one single-precision number.
    FpScalarSingle,
    /// Floating-point instructions on one double-precision number.
    FpScalarDouble,
    /// Floating-point instructions on 4 single-precision numbers.
    Fp128Single,
    /// Floating-point instructions on 2 double-precision numbers.
    Fp128Double,
    /// Floating-point instructions on 8 single-precision numbers.
    Fp256Single,
    /// Floating-point instructions on 4 double-precision numbers.
    Fp256Double,
    /// Floating-point instructions on 16 single-precision numbers.
    Fp512Single,
    /// Floating-point instructions on 8 double-precision numbers.
    Fp512Double,
    /// Number of x87 floating-point operations.
    FpX87,
    /// Scalar SSE operations of either precision (Westmere).
    FpScalar,
    /// Packed SSE operations of either precision (Westmere), taken to be on 2 numbers.
    FpPacked,
    /// Number of floating-point operations.
    Flops,
    /// Number of double-precision floating-point operations.
    FlopsDouble,
    /// Number of single-precision floating-point operations.
    FlopsSingle,
    /// Misses of the first-level data cache: lines that it fetched, or loads that missed, as the event defines them.
    L1Misses,
    /// Misses of the second-level cache.
    L2Misses,
    /// Misses of the third-level cache, or fills from memory where the processor has no such event.
    L3Misses,
    /// Number of pipeline slots: cycles times the width of the pipeline.
    Slots,
    /// Slots whose operation retired.
    SlotsRetiring,
    /// Slots lost to operations that did not retire.
    SlotsBadSpeculation,
    /// Slots that the front end left empty.
    SlotsFrontend,
    /// Slots that stayed empty because the back end could take no operation.
    SlotsBackend,
    /// Slots with an issued operation, whether it retired or not.
    SlotsIssued,
    /// Slots lost while the core recovered from a misprediction.
    SlotsRecovery,
    /// Share of slots whose operation retired.
    ShareRetiring,
    /// Share of slots lost to operations that did not retire.
    ShareBadSpeculation,
    /// Share of slots that the front end left empty.
    ShareFrontend,
    /// Share of slots that stayed empty because the back end could take no operation.
    ShareBackend,
}

use Quantity as Q;

/// Every quantity in the order of the enum, with its name in files of nodescope and its title.
const ALL: [(Quantity, &str, &str); 37] = [
    (Q::Cycles, "cycles", "cycles"),
    (Q::Instructions, "instructions", "instructions"),
    (
        Q::StallsL1dMiss,
        "stalls_l1d_miss",
        "stalls, L1 miss pending",
    ),
    (
        Q::StallsMemAny,
        "stalls_mem_any",
        "stalls, any load pending",
    ),
    (
        Q::NoRetireLoad,
        "no_retire_load",
        "no retirement, load pending",
    ),
    (Q::StallsMemory, "stalls_memory", "stalls for memory"),
    (
        Q::StallsQueues,
        "stalls_queues",
        "stalls, load or store queue full",
    ),
    (Q::StallsResource, "stalls_resource", "stalls, any resource"),
    (Q::ShareMemory, "share_memory", "share lost to memory"),
    (Q::FpScalarSingle, "fp_scalar_single", "FP scalar single"),
    (Q::FpScalarDouble, "fp_scalar_double", "FP scalar double"),
    (Q::Fp128Single, "fp_128_single", "FP 128-bit single"),
    (Q::Fp128Double, "fp_128_double", "FP 128-bit double"),
    (Q::Fp256Single, "fp_256_single", "FP 256-bit single"),
    (Q::Fp256Double, "fp_256_double", "FP 256-bit double"),
    (Q::Fp512Single, "fp_512_single", "FP 512-bit single"),
    (Q::Fp512Double, "fp_512_double", "FP 512-bit double"),
    (Q::FpX87, "fp_x87", "FP x87"),
    (Q::FpScalar, "fp_scalar", "FP scalar"),
    (Q::FpPacked, "fp_packed", "FP packed"),
    (Q::Flops, "flops", "FP operations"),
    (Q::FlopsDouble, "flops_double", "FP operations, double"),
    (Q::FlopsSingle, "flops_single", "FP operations, single"),
    (Q::L1Misses, "l1_misses", "L1 misses"),
    (Q::L2Misses, "l2_misses", "L2 misses"),
    (Q::L3Misses, "l3_misses", "L3 misses"),
    (Q::Slots, "slots", "slots"),
    (Q::SlotsRetiring, "slots_retiring", "slots, retiring"),
    (
        Q::SlotsBadSpeculation,
        "slots_bad_speculation",
        "slots, bad speculation",
    ),
    (Q::SlotsFrontend, "slots_frontend", "slots, front end"),
    (Q::SlotsBackend, "slots_backend", "slots, back end"),
    (Q::SlotsIssued, "slots_issued", "slots, issued"),
    (Q::SlotsRecovery, "slots_recovery", "slots, recovery"),
    (Q::ShareRetiring, "share_retiring", "share retiring"),
    (
        Q::ShareBadSpeculation,
        "share_bad_speculation",
        "share bad speculation",
    ),
    (Q::ShareFrontend, "share_frontend", "share front end"),
    (Q::ShareBackend, "share_backend", "share back end"),
];

impl Quantity {
    /// Returns all quantities, in the order of the enum.
    pub fn all() -> impl Iterator<Item = Quantity> {
        ALL.iter().map(|entry| entry.0)
    }

    fn entry(self) -> &'static (Quantity, &'static str, &'static str) {
        &ALL[self as usize]
    }

    /// Returns the name in files of nodescope.
    pub fn name(self) -> &'static str {
        self.entry().1
    }

    /// Returns the title for reports.
    pub fn title(self) -> &'static str {
        self.entry().2
    }

    /// Returns the quantity with this name in files of nodescope; none if no quantity has it.
    pub fn of_name(name: &str) -> Option<Quantity> {
        ALL.iter()
            .find(|entry| entry.1 == name)
            .map(|entry| entry.0)
    }

    /// Returns the number of floating-point operations in one count; none if the quantity counts no instructions of one width.
    /// FP_ARITH_INST_RETIRED counts fused instructions twice, so only the width matters (Intel SDM volume 3B, chapter 20, "Floating-point
    /// events").
    pub fn flops(self) -> Option<f64> {
        Some(match self {
            Q::FpScalarSingle | Q::FpScalarDouble | Q::FpX87 | Q::FpScalar => 1.0,
            Q::Fp128Double | Q::FpPacked => 2.0,
            Q::Fp128Single | Q::Fp256Double => 4.0,
            Q::Fp256Single | Q::Fp512Double => 8.0,
            Q::Fp512Single => 16.0,
            _ => return None,
        })
    }

    /// Returns whether the quantity is a share from 0 to 1, not a count.
    pub fn is_share(self) -> bool {
        self.name().starts_with("share_")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_quantities() {
        for quantity in Quantity::all() {
            assert_eq!(quantity.entry().0, quantity);
            assert_eq!(Quantity::of_name(quantity.name()), Some(quantity));
        }
    }
}
