//! Events of AMD's Zen 1 to 5.
//!
//! The third level's counters are shared by all programs, so fills from memory are counted in place of its misses.

use super::{CYCLES, Event, Group, INSTRUCTIONS, Table, raw, scaled};
use crate::quantity::Quantity as Q;

const VENDOR: &str = "AuthenticAMD";

const L2_DATA_MISSES: Event = raw("L2_CACHE_MISSES_FROM_DC_MISSES", 0x64, 0x08, 0, Q::L2Misses);
/// Demand fills of the first level from memory of the local and of other NUMA nodes (PMCx043).
const FROM_MEMORY: Event = raw("LS_DMND_FILLS_FROM_SYS.DRAM", 0x43, 0x48, 0, Q::L3Misses);

/// Misses on Zen 1 and 2. First-level misses are the data cache's requests to the second level (PMCx060).
const MISSES_OLD: Group = &[
    raw(
        "L2_CACHE_ACCESSES_FROM_DC_MISSES",
        0x60,
        0xc8,
        0,
        Q::L1Misses,
    ),
    L2_DATA_MISSES,
    FROM_MEMORY,
];
/// Misses on Zen 3 and later, with another unit mask for requests to the second level.
const MISSES: Group = &[
    raw(
        "L2_CACHE_ACCESSES_FROM_DC_MISSES",
        0x60,
        0xe8,
        0,
        Q::L1Misses,
    ),
    L2_DATA_MISSES,
    FROM_MEMORY,
];

/// Cycles without dispatch because the load queue or the store queue is full (PMCx0AE).
const QUEUES: Group = &[
    CYCLES,
    INSTRUCTIONS,
    raw(
        "DE_DIS_DISPATCH_TOKEN_STALLS1.LOAD_QUEUE_TOKEN_STALL",
        0xae,
        0x02,
        0,
        Q::StallsQueues,
    ),
    raw(
        "DE_DIS_DISPATCH_TOKEN_STALLS1.STORE_QUEUE_TOKEN_STALL",
        0xae,
        0x04,
        0,
        Q::StallsQueues,
    ),
];
/// Cycles without retirement while the oldest operation is an incomplete load (PMCx0D6).
const NO_RETIRE: Group = &[
    CYCLES,
    INSTRUCTIONS,
    raw(
        "EX_NO_RETIRE.LOAD_NOT_COMPLETE",
        0xd6,
        0xa2,
        0,
        Q::NoRetireLoad,
    ),
];

/// Floating-point operations on Zen 1, where a fused multiply-add counts as two (PMCx003). The event occupies two counters.
const FLOPS_ZEN1: Group = &[raw("FP_RET_SSE_AVX_OPS.ALL", 0x03, 0xff, 0, Q::Flops)];
/// Floating-point operations of either precision, on Zen 2, Zen 3 and Zen 5.
const FLOPS: Group = &[raw("FP_RET_SSE_AVX_OPS.ALL", 0x03, 0x0f, 0, Q::Flops)];
/// Floating-point operations of either precision and on bfloat16 numbers, on Zen 4.
const FLOPS_ZEN4: Group = &[raw("FP_RET_SSE_AVX_OPS.ALL", 0x03, 0x1f, 0, Q::Flops)];

const FRONTEND: Event = raw(
    "DE_NO_DISPATCH_PER_SLOT.NO_OPS_FROM_FRONTEND",
    0x1a0,
    0x01,
    0,
    Q::SlotsFrontend,
);
const BACKEND: Event = raw(
    "DE_NO_DISPATCH_PER_SLOT.BACKEND_STALLS",
    0x1a0,
    0x1e,
    0,
    Q::SlotsBackend,
);
const DISPATCHED: Event = raw("DE_SRC_OP_DISP.ALL", 0xaa, 0x07, 0, Q::SlotsIssued);
const RETIRED: Event = raw("EX_RET_OPS", 0xc1, 0x00, 0, Q::SlotsRetiring);
/// Pipeline slots of Zen 4, which dispatches 6 operations a cycle. Zen 5 dispatches 8.
const SLOTS_ZEN4: Group = &[
    scaled(
        "6 slots for each LS_NOT_HALTED_CYC",
        0x76,
        0x00,
        0,
        Q::Slots,
        6,
    ),
    FRONTEND,
    BACKEND,
    DISPATCHED,
    RETIRED,
];
const SLOTS_ZEN5: Group = &[
    scaled(
        "8 slots for each LS_NOT_HALTED_CYC",
        0x76,
        0x00,
        0,
        Q::Slots,
        8,
    ),
    FRONTEND,
    BACKEND,
    DISPATCHED,
    RETIRED,
];

const MEMORY: &str = "fills from memory stand for misses of the third level";
const NO_SLOTS: &str = "this core has no top-down events";
const BOTH_QUEUES: &str = "cycles in which both queues are full count twice among the stalls";

pub(super) const TABLES: &[Table] = &[
    Table {
        name: "Zen 1",
        vendor: VENDOR,
        models: &[(0x17, 0x00, 0x2f)],
        groups: &[&[CYCLES, INSTRUCTIONS], FLOPS_ZEN1, MISSES_OLD],
        limits: &[
            MEMORY,
            NO_SLOTS,
            "this core has no event of stalls for memory",
        ],
    },
    Table {
        name: "Zen 2",
        vendor: VENDOR,
        models: &[(0x17, 0x30, 0xff)],
        groups: &[QUEUES, FLOPS, MISSES_OLD],
        limits: &[MEMORY, NO_SLOTS, BOTH_QUEUES],
    },
    Table {
        name: "Zen 3",
        vendor: VENDOR,
        models: &[(0x19, 0x00, 0x0f), (0x19, 0x20, 0x2f), (0x19, 0x40, 0x5f)],
        groups: &[QUEUES, FLOPS, MISSES],
        limits: &[MEMORY, NO_SLOTS, BOTH_QUEUES],
    },
    Table {
        name: "Zen 4",
        vendor: VENDOR,
        models: &[(0x19, 0x10, 0x1f), (0x19, 0x30, 0x3f), (0x19, 0x60, 0xff)],
        groups: &[NO_RETIRE, SLOTS_ZEN4, FLOPS_ZEN4, MISSES],
        limits: &[MEMORY],
    },
    Table {
        name: "Zen 5",
        vendor: VENDOR,
        models: &[(0x1a, 0x00, 0xff)],
        groups: &[NO_RETIRE, SLOTS_ZEN5, FLOPS, MISSES],
        limits: &[MEMORY],
    },
];
