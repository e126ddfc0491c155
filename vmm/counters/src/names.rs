//! Names of events as perf, LIKWID, PAPI and VTune write them.
//!
//! The tools spell one hardware event differently: `cycle_activity.stalls_l1d_miss` (perf), `CYCLE_ACTIVITY_STALLS_L1D_MISS` (LIKWID),
//! `skx::CYCLE_ACTIVITY:STALLS_L1D_MISS` (PAPI). Each name is converted to capitals and underscores and then looked up in one table.

use crate::quantity::Quantity as Q;

/// The meaning of an event's name that is in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownEvent {
    /// Quantity that the event counts.
    pub quantity: Q,
    /// True if the name's modifiers restrict the count to user code.
    pub user_only: bool,
}

/// Quantities by event name, spelled with capitals and underscores.
const NAMES: &[(&str, Q)] = &[
    // Cycles and instructions.
    ("CYCLES", Q::Cycles),
    ("CPU_CYCLES", Q::Cycles),
    ("CPU_CLK_UNHALTED_THREAD", Q::Cycles),
    ("CPU_CLK_UNHALTED_THREAD_P", Q::Cycles),
    ("CPU_CLK_UNHALTED_CORE", Q::Cycles),
    ("LS_NOT_HALTED_CYC", Q::Cycles),
    ("CPU_CLOCKS_UNHALTED", Q::Cycles),
    ("ACTUAL_CPU_CLOCK", Q::Cycles),
    ("PAPI_TOT_CYC", Q::Cycles),
    ("INSTRUCTIONS", Q::Instructions),
    ("INST_RETIRED_ANY", Q::Instructions),
    ("INST_RETIRED_ANY_P", Q::Instructions),
    ("INSTR_RETIRED_ANY", Q::Instructions),
    ("EX_RET_INSTR", Q::Instructions),
    ("RETIRED_INSTRUCTIONS", Q::Instructions),
    ("PAPI_TOT_INS", Q::Instructions),
    // Stalls.
    ("CYCLE_ACTIVITY_STALLS_L1D_MISS", Q::StallsL1dMiss),
    ("CYCLE_ACTIVITY_STALLS_L1D_PENDING", Q::StallsL1dMiss),
    ("MEMORY_ACTIVITY_STALLS_L1D_MISS", Q::StallsL1dMiss),
    ("CYCLE_ACTIVITY_STALLS_MEM_ANY", Q::StallsMemAny),
    ("CYCLE_ACTIVITY_STALLS_LDM_PENDING", Q::StallsMemAny),
    ("EXE_ACTIVITY_BOUND_ON_LOADS", Q::StallsMemAny),
    ("EX_NO_RETIRE_LOAD_NOT_COMPLETE", Q::NoRetireLoad),
    ("PAPI_MEM_SCY", Q::StallsMemory),
    ("RESOURCE_STALLS_LOAD", Q::StallsQueues),
    ("RESOURCE_STALLS_STORE", Q::StallsQueues),
    ("RESOURCE_STALLS_LOAD_STORE", Q::StallsQueues),
    (
        "DE_DIS_DISPATCH_TOKEN_STALLS1_LOAD_QUEUE_TOKEN_STALL",
        Q::StallsQueues,
    ),
    (
        "DE_DIS_DISPATCH_TOKEN_STALLS1_LOAD_QUEUE_RSRC_STALL",
        Q::StallsQueues,
    ),
    (
        "DE_DIS_DISPATCH_TOKEN_STALLS1_STORE_QUEUE_TOKEN_STALL",
        Q::StallsQueues,
    ),
    (
        "DE_DIS_DISPATCH_TOKEN_STALLS1_STORE_QUEUE_RSRC_STALL",
        Q::StallsQueues,
    ),
    (
        "DISPATCH_RESOURCE_STALL_CYCLES_1_LOAD_QUEUE",
        Q::StallsQueues,
    ),
    (
        "DISPATCH_RESOURCE_STALL_CYCLES_1_STORE_QUEUE",
        Q::StallsQueues,
    ),
    ("RESOURCE_STALLS_ANY", Q::StallsResource),
    ("PAPI_RES_STL", Q::StallsResource),
    // Floating-point operations.
    ("FP_ARITH_INST_RETIRED_SCALAR_SINGLE", Q::FpScalarSingle),
    ("FP_ARITH_INST_RETIRED_SCALAR_DOUBLE", Q::FpScalarDouble),
    ("FP_ARITH_INST_RETIRED_128B_PACKED_SINGLE", Q::Fp128Single),
    ("FP_ARITH_INST_RETIRED_128B_PACKED_DOUBLE", Q::Fp128Double),
    ("FP_ARITH_INST_RETIRED_256B_PACKED_SINGLE", Q::Fp256Single),
    ("FP_ARITH_INST_RETIRED_256B_PACKED_DOUBLE", Q::Fp256Double),
    ("FP_ARITH_INST_RETIRED_512B_PACKED_SINGLE", Q::Fp512Single),
    ("FP_ARITH_INST_RETIRED_512B_PACKED_DOUBLE", Q::Fp512Double),
    ("FP_ARITH_SCALAR_SINGLE", Q::FpScalarSingle),
    ("FP_ARITH_SCALAR_DOUBLE", Q::FpScalarDouble),
    ("FP_ARITH_128B_PACKED_SINGLE", Q::Fp128Single),
    ("FP_ARITH_128B_PACKED_DOUBLE", Q::Fp128Double),
    ("FP_ARITH_256B_PACKED_SINGLE", Q::Fp256Single),
    ("FP_ARITH_256B_PACKED_DOUBLE", Q::Fp256Double),
    ("FP_ARITH_512B_PACKED_SINGLE", Q::Fp512Single),
    ("FP_ARITH_512B_PACKED_DOUBLE", Q::Fp512Double),
    ("FP_COMP_OPS_EXE_SSE_SCALAR_SINGLE", Q::FpScalarSingle),
    ("FP_COMP_OPS_EXE_SSE_SCALAR_DOUBLE", Q::FpScalarDouble),
    ("FP_COMP_OPS_EXE_SSE_PACKED_SINGLE", Q::Fp128Single),
    ("FP_COMP_OPS_EXE_SSE_PACKED_DOUBLE", Q::Fp128Double),
    ("FP_COMP_OPS_EXE_SSE_FP_SCALAR_SINGLE", Q::FpScalarSingle),
    ("FP_COMP_OPS_EXE_SSE_FP_SCALAR_DOUBLE", Q::FpScalarDouble),
    ("FP_COMP_OPS_EXE_SSE_FP_PACKED_SINGLE", Q::Fp128Single),
    ("FP_COMP_OPS_EXE_SSE_FP_PACKED_DOUBLE", Q::Fp128Double),
    ("FP_COMP_OPS_EXE_SSE_FP_SCALAR", Q::FpScalar),
    ("FP_COMP_OPS_EXE_SSE_FP_PACKED", Q::FpPacked),
    ("FP_COMP_OPS_EXE_X87", Q::FpX87),
    ("SIMD_FP_256_PACKED_SINGLE", Q::Fp256Single),
    ("SIMD_FP_256_PACKED_DOUBLE", Q::Fp256Double),
    ("FP_RET_SSE_AVX_OPS_ALL", Q::Flops),
    ("RETIRED_SSE_AVX_FLOPS_ALL", Q::Flops),
    ("RETIRED_SSE_AVX_FLOPS_ALL_ANY", Q::Flops),
    ("PAPI_FP_OPS", Q::Flops),
    ("PAPI_DP_OPS", Q::FlopsDouble),
    ("PAPI_SP_OPS", Q::FlopsSingle),
    // Misses.
    ("L1D_REPLACEMENT", Q::L1Misses),
    ("L1D_REPL", Q::L1Misses),
    ("L1_DCACHE_LOAD_MISSES", Q::L1Misses),
    ("MEM_LOAD_RETIRED_L1_MISS", Q::L1Misses),
    ("MEM_LOAD_UOPS_RETIRED_L1_MISS", Q::L1Misses),
    ("L2_CACHE_ACCESSES_FROM_DC_MISSES", Q::L1Misses),
    ("L2_CACHE_ACCESS_AFTER_L1D_MISS", Q::L1Misses),
    ("REQUESTS_TO_L2_GRP1_DATA_CACHE_MISSES", Q::L1Misses),
    ("PAPI_L1_DCM", Q::L1Misses),
    ("L2_RQSTS_MISS", Q::L2Misses),
    ("L2_RQSTS_ALL_DEMAND_MISS", Q::L2Misses),
    ("MEM_LOAD_RETIRED_L2_MISS", Q::L2Misses),
    ("MEM_LOAD_UOPS_RETIRED_L2_MISS", Q::L2Misses),
    ("L2_CACHE_MISSES_FROM_DC_MISSES", Q::L2Misses),
    ("L2_CACHE_MISS_AFTER_L1D_MISS", Q::L2Misses),
    ("PAPI_L2_DCM", Q::L2Misses),
    ("PAPI_L2_TCM", Q::L2Misses),
    ("LONGEST_LAT_CACHE_MISS", Q::L3Misses),
    ("L3_LAT_CACHE_MISS", Q::L3Misses),
    ("CACHE_MISSES", Q::L3Misses),
    ("LLC_LOAD_MISSES", Q::L3Misses),
    ("MEM_LOAD_RETIRED_L3_MISS", Q::L3Misses),
    ("MEM_LOAD_UOPS_RETIRED_L3_MISS", Q::L3Misses),
    ("LS_DMND_FILLS_FROM_SYS_DRAM", Q::L3Misses),
    ("PAPI_L3_TCM", Q::L3Misses),
    // Pipeline slots, as the kernel and AMD name them.
    ("SLOTS", Q::Slots),
    ("TOPDOWN_SLOTS", Q::Slots),
    ("TOPDOWN_TOTAL_SLOTS", Q::Slots),
    ("TOPDOWN_RETIRING", Q::SlotsRetiring),
    ("TOPDOWN_SLOTS_RETIRED", Q::SlotsRetiring),
    ("TOPDOWN_BAD_SPEC", Q::SlotsBadSpeculation),
    ("TOPDOWN_FE_BOUND", Q::SlotsFrontend),
    ("TOPDOWN_FETCH_BUBBLES", Q::SlotsFrontend),
    ("TOPDOWN_BE_BOUND", Q::SlotsBackend),
    ("TOPDOWN_SLOTS_ISSUED", Q::SlotsIssued),
    ("TOPDOWN_RECOVERY_BUBBLES", Q::SlotsRecovery),
    ("EX_RET_OPS", Q::SlotsRetiring),
    (
        "DE_NO_DISPATCH_PER_SLOT_NO_OPS_FROM_FRONTEND",
        Q::SlotsFrontend,
    ),
    ("DE_NO_DISPATCH_PER_SLOT_BACKEND_STALLS", Q::SlotsBackend),
    ("DE_SRC_OP_DISP_ALL", Q::SlotsIssued),
];

/// Returns the meaning of an event's name; none if the name is not in the table.
pub fn known(name: &str) -> Option<KnownEvent> {
    let (plain, user_only) = plain(name);
    let quantity = NAMES.iter().find(|entry| entry.0 == plain)?.1;
    Some(KnownEvent {
        quantity,
        user_only,
    })
}

/// Returns the name in capitals and underscores, and whether its modifiers restrict the count to user code.
fn plain(name: &str) -> (String, bool) {
    // PAPI and libpfm put the PMU's name and two colons before the event.
    let name = name.rsplit_once("::").map_or(name, |(_, event)| event);
    // perf writes `cpu/event/modifiers` for an event of a named PMU.
    let (name, slash) = match name.split_once('/') {
        Some((_, rest)) => match rest.rsplit_once('/') {
            Some((event, modifiers)) => (event, modifiers),
            None => (name, ""),
        },
        None => (name, ""),
    };
    let mut modifiers = slash.to_owned();
    let mut words = Vec::new();
    for (index, word) in name.split(':').enumerate() {
        // Attributes of libpfm have the form `u=1`. Modifiers of perf are single letters.
        let short = !word.is_empty() && word.chars().all(|c| "ukhIGHpPSDWe".contains(c));
        if index > 0 && (word.contains('=') || short) {
            if !word.ends_with("=0") {
                modifiers.push_str(word);
            }
        } else {
            words.push(word);
        }
    }
    let common = |c: char| match c {
        '.' | '-' | ' ' | '+' => '_',
        c => c.to_ascii_uppercase(),
    };
    let plain: String = words.join("_").chars().map(common).collect();
    let user_only = modifiers.contains('u') && !modifiers.contains('k');
    (plain, user_only)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_all_tools_mean_one_quantity() {
        for (name, quantity, user_only) in [
            ("cycles", Q::Cycles, false),
            ("cycles:u", Q::Cycles, true),
            ("cpu-cycles:uk", Q::Cycles, false),
            ("cpu_core/cycles/u", Q::Cycles, true),
            ("cycle_activity.stalls_l1d_miss:u", Q::StallsL1dMiss, true),
            ("CYCLE_ACTIVITY_STALLS_L1D_MISS", Q::StallsL1dMiss, false),
            (
                "skx::CYCLE_ACTIVITY:STALLS_MEM_ANY:u=1:k=0",
                Q::StallsMemAny,
                true,
            ),
            ("perf::INSTRUCTIONS", Q::Instructions, false),
            (
                "fp_arith_inst_retired.256b_packed_double",
                Q::Fp256Double,
                false,
            ),
            ("ex_ret_instr:u", Q::Instructions, true),
            ("L1-dcache-load-misses", Q::L1Misses, false),
            ("PAPI_MEM_SCY", Q::StallsMemory, false),
            ("INST_RETIRED.ANY", Q::Instructions, false),
            ("RESOURCE_STALLS.LOAD+STORE", Q::StallsQueues, false),
        ] {
            let known = known(name).unwrap();
            assert_eq!(
                (known.quantity, known.user_only),
                (quantity, user_only),
                "{name}"
            );
        }
        for name in ["", "branches", "::", "cpu//u", "cycles:u:x"] {
            assert_eq!(known(name), None, "{name}");
        }
    }

    #[test]
    fn every_name_is_spelt_as_it_is_looked_up() {
        for (name, quantity) in NAMES {
            assert_eq!(
                known(name).map(|known| known.quantity),
                Some(*quantity),
                "{name}"
            );
        }
    }
}
