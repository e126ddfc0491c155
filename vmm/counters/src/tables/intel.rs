//! Events of Intel's Westmere to Sapphire Rapids.

use super::{CYCLES, Event, Group, INSTRUCTIONS, Table, raw, scaled};
use crate::quantity::Quantity as Q;

const VENDOR: &str = "GenuineIntel";

const SMT: &str = "with two threads on a core, the top-down shares of one are approximate";
const REISSUED: &str = "floating-point operations count again when they are issued again, so that alpha is rather too high";

/// Lines that the first-level data cache took in. Westmere has the same event under another name.
const L1_MISSES: Event = raw("L1D.REPLACEMENT", 0x51, 0x01, 0, Q::L1Misses);
/// Misses of the last-level cache, an architectural event (SDM volume 3B, table 20-1).
const L3_MISSES: Event = raw("LONGEST_LAT_CACHE.MISS", 0x2e, 0x41, 0, Q::L3Misses);
/// Demand misses of the second-level cache, from Haswell on.
const L2_MISSES: Event = raw("L2_RQSTS.ALL_DEMAND_MISS", 0x24, 0x27, 0, Q::L2Misses);

/// Pipeline slots up to Skylake: four for each unhalted cycle.
const SLOTS_4: Event = scaled(
    "topdown-total-slots (CPU_CLK_UNHALTED.THREAD_P)",
    0x3c,
    0x00,
    0,
    Q::Slots,
    4,
);
const ISSUED: Event = raw("UOPS_ISSUED.ANY", 0x0e, 0x01, 0, Q::SlotsIssued);
const RETIRED: Event = raw("UOPS_RETIRED.RETIRE_SLOTS", 0xc2, 0x02, 0, Q::SlotsRetiring);
const UNDELIVERED: Event = raw(
    "IDQ_UOPS_NOT_DELIVERED.CORE",
    0x9c,
    0x01,
    0,
    Q::SlotsFrontend,
);
const RECOVERY: Event = scaled(
    "INT_MISC.RECOVERY_CYCLES",
    0x0d,
    0x03,
    1,
    Q::SlotsRecovery,
    4,
);
/// Slots lost to recovery from a misprediction, from Skylake on.
const RECOVERY_SKL: Event = scaled(
    "INT_MISC.RECOVERY_CYCLES",
    0x0d,
    0x01,
    0,
    Q::SlotsRecovery,
    4,
);

/// Slots as the processor splits them in PERF_METRICS (SDM volume 3B, section 20.3.9.3). The kernel requires `TOPDOWN.SLOTS` first in the
/// group.
const SLOTS_METRICS: Group = &[
    raw("TOPDOWN.SLOTS", 0x00, 0x04, 0, Q::Slots),
    raw("topdown-retiring", 0x00, 0x80, 0, Q::SlotsRetiring),
    raw("topdown-bad-spec", 0x00, 0x81, 0, Q::SlotsBadSpeculation),
    raw("topdown-fe-bound", 0x00, 0x82, 0, Q::SlotsFrontend),
    raw("topdown-be-bound", 0x00, 0x83, 0, Q::SlotsBackend),
];

const SCALAR_AND_128: Group = &[
    raw(
        "FP_ARITH_INST_RETIRED.SCALAR_DOUBLE",
        0xc7,
        0x01,
        0,
        Q::FpScalarDouble,
    ),
    raw(
        "FP_ARITH_INST_RETIRED.SCALAR_SINGLE",
        0xc7,
        0x02,
        0,
        Q::FpScalarSingle,
    ),
    raw(
        "FP_ARITH_INST_RETIRED.128B_PACKED_DOUBLE",
        0xc7,
        0x04,
        0,
        Q::Fp128Double,
    ),
];
const WIDTH_128_AND_256: Group = &[
    raw(
        "FP_ARITH_INST_RETIRED.128B_PACKED_SINGLE",
        0xc7,
        0x08,
        0,
        Q::Fp128Single,
    ),
    raw(
        "FP_ARITH_INST_RETIRED.256B_PACKED_DOUBLE",
        0xc7,
        0x10,
        0,
        Q::Fp256Double,
    ),
    raw(
        "FP_ARITH_INST_RETIRED.256B_PACKED_SINGLE",
        0xc7,
        0x20,
        0,
        Q::Fp256Single,
    ),
];
const WIDTH_512: Group = &[
    raw(
        "FP_ARITH_INST_RETIRED.512B_PACKED_DOUBLE",
        0xc7,
        0x40,
        0,
        Q::Fp512Double,
    ),
    raw(
        "FP_ARITH_INST_RETIRED.512B_PACKED_SINGLE",
        0xc7,
        0x80,
        0,
        Q::Fp512Single,
    ),
];

/// Floating-point operations of Sandy Bridge and Ivy Bridge, which count executed operations, not retired ones.
const EXECUTED_SSE: Group = &[
    raw(
        "FP_COMP_OPS_EXE.SSE_SCALAR_DOUBLE",
        0x10,
        0x80,
        0,
        Q::FpScalarDouble,
    ),
    raw(
        "FP_COMP_OPS_EXE.SSE_SCALAR_SINGLE",
        0x10,
        0x20,
        0,
        Q::FpScalarSingle,
    ),
    raw(
        "FP_COMP_OPS_EXE.SSE_PACKED_DOUBLE",
        0x10,
        0x10,
        0,
        Q::Fp128Double,
    ),
];
const EXECUTED_AVX: Group = &[
    raw(
        "FP_COMP_OPS_EXE.SSE_PACKED_SINGLE",
        0x10,
        0x40,
        0,
        Q::Fp128Single,
    ),
    raw("SIMD_FP_256.PACKED_DOUBLE", 0x11, 0x02, 0, Q::Fp256Double),
    raw("SIMD_FP_256.PACKED_SINGLE", 0x11, 0x01, 0, Q::Fp256Single),
];
const EXECUTED_X87: Group = &[raw("FP_COMP_OPS_EXE.X87", 0x10, 0x01, 0, Q::FpX87)];

const L2_RQSTS_MISS: Event = raw("L2_RQSTS.MISS", 0x24, 0xaa, 0, Q::L2Misses);
const MISSES_OLD: Group = &[L1_MISSES, L2_RQSTS_MISS, L3_MISSES];
const MISSES: Group = &[L1_MISSES, L2_MISSES, L3_MISSES];
const SLOTS: Group = &[SLOTS_4, UNDELIVERED, ISSUED, RETIRED, RECOVERY];
const SLOTS_SKL: Group = &[SLOTS_4, UNDELIVERED, ISSUED, RETIRED, RECOVERY_SKL];

pub(super) const TABLES: &[Table] = &[
    Table {
        name: "Westmere",
        vendor: VENDOR,
        models: &[(6, 0x25, 0x25), (6, 0x2c, 0x2c), (6, 0x2f, 0x2f)],
        groups: &[
            &[
                CYCLES,
                INSTRUCTIONS,
                raw("RESOURCE_STALLS.LOAD+STORE", 0xa2, 0x0a, 0, Q::StallsQueues),
            ],
            &[
                raw("FP_COMP_OPS_EXE.SSE_FP_SCALAR", 0x10, 0x20, 0, Q::FpScalar),
                raw("FP_COMP_OPS_EXE.SSE_FP_PACKED", 0x10, 0x10, 0, Q::FpPacked),
                raw("FP_COMP_OPS_EXE.X87", 0x10, 0x01, 0, Q::FpX87),
            ],
            &[
                raw("L1D.REPL", 0x51, 0x01, 0, Q::L1Misses),
                L2_RQSTS_MISS,
                L3_MISSES,
            ],
        ],
        limits: &[
            "packed instructions are taken to be on two numbers",
            "this core has no top-down events",
        ],
    },
    Table {
        name: "Sandy Bridge",
        vendor: VENDOR,
        models: &[(6, 0x2a, 0x2a), (6, 0x2d, 0x2d)],
        groups: &[
            &[
                CYCLES,
                INSTRUCTIONS,
                raw(
                    "CYCLE_ACTIVITY.STALLS_L1D_PENDING",
                    0xa3,
                    0x06,
                    6,
                    Q::StallsL1dMiss,
                ),
            ],
            SLOTS,
            EXECUTED_SSE,
            EXECUTED_AVX,
            EXECUTED_X87,
            MISSES_OLD,
        ],
        limits: &[REISSUED, SMT],
    },
    Table {
        name: "Ivy Bridge",
        vendor: VENDOR,
        models: &[(6, 0x3a, 0x3a), (6, 0x3e, 0x3e)],
        groups: &[
            &[
                CYCLES,
                INSTRUCTIONS,
                raw(
                    "CYCLE_ACTIVITY.STALLS_L1D_PENDING",
                    0xa3,
                    0x0c,
                    12,
                    Q::StallsL1dMiss,
                ),
                raw(
                    "CYCLE_ACTIVITY.STALLS_LDM_PENDING",
                    0xa3,
                    0x06,
                    6,
                    Q::StallsMemAny,
                ),
            ],
            SLOTS,
            EXECUTED_SSE,
            EXECUTED_AVX,
            EXECUTED_X87,
            MISSES_OLD,
        ],
        limits: &[REISSUED, SMT],
    },
    Table {
        name: "Haswell",
        vendor: VENDOR,
        models: &[(6, 0x3c, 0x3c), (6, 0x3f, 0x3f), (6, 0x45, 0x46)],
        groups: &[
            &[
                CYCLES,
                INSTRUCTIONS,
                raw(
                    "CYCLE_ACTIVITY.STALLS_L1D_PENDING",
                    0xa3,
                    0x0c,
                    12,
                    Q::StallsL1dMiss,
                ),
                raw(
                    "CYCLE_ACTIVITY.STALLS_LDM_PENDING",
                    0xa3,
                    0x06,
                    6,
                    Q::StallsMemAny,
                ),
            ],
            SLOTS,
            MISSES,
        ],
        limits: &[
            "this core has no events that count floating-point operations",
            SMT,
        ],
    },
    Table {
        name: "Broadwell",
        vendor: VENDOR,
        models: &[
            (6, 0x3d, 0x3d),
            (6, 0x47, 0x47),
            (6, 0x4f, 0x4f),
            (6, 0x56, 0x56),
        ],
        groups: &[
            &[
                CYCLES,
                INSTRUCTIONS,
                raw(
                    "CYCLE_ACTIVITY.STALLS_L1D_MISS",
                    0xa3,
                    0x0c,
                    12,
                    Q::StallsL1dMiss,
                ),
                raw(
                    "CYCLE_ACTIVITY.STALLS_MEM_ANY",
                    0xa3,
                    0x06,
                    6,
                    Q::StallsMemAny,
                ),
            ],
            SLOTS,
            SCALAR_AND_128,
            WIDTH_128_AND_256,
            MISSES,
        ],
        limits: &[SMT],
    },
    Table {
        name: "Skylake, Cascade Lake",
        vendor: VENDOR,
        models: &[
            (6, 0x4e, 0x4e),
            (6, 0x55, 0x55),
            (6, 0x5e, 0x5e),
            (6, 0x8e, 0x8e),
            (6, 0x9e, 0x9e),
            (6, 0xa5, 0xa6),
        ],
        groups: &[
            &[
                CYCLES,
                INSTRUCTIONS,
                raw(
                    "CYCLE_ACTIVITY.STALLS_L1D_MISS",
                    0xa3,
                    0x0c,
                    12,
                    Q::StallsL1dMiss,
                ),
                raw(
                    "CYCLE_ACTIVITY.STALLS_MEM_ANY",
                    0xa3,
                    0x14,
                    20,
                    Q::StallsMemAny,
                ),
            ],
            SLOTS_SKL,
            SCALAR_AND_128,
            WIDTH_128_AND_256,
            WIDTH_512,
            MISSES,
        ],
        limits: &[SMT],
    },
    Table {
        name: "Ice Lake",
        vendor: VENDOR,
        models: &[
            (6, 0x6a, 0x6a),
            (6, 0x6c, 0x6c),
            (6, 0x7d, 0x7e),
            (6, 0x8c, 0x8d),
            (6, 0x9d, 0x9d),
            (6, 0xa7, 0xa7),
        ],
        groups: &[
            &[
                CYCLES,
                INSTRUCTIONS,
                raw(
                    "CYCLE_ACTIVITY.STALLS_L1D_MISS",
                    0xa3,
                    0x0c,
                    12,
                    Q::StallsL1dMiss,
                ),
                raw(
                    "CYCLE_ACTIVITY.STALLS_MEM_ANY",
                    0xa3,
                    0x14,
                    20,
                    Q::StallsMemAny,
                ),
            ],
            SLOTS_METRICS,
            SCALAR_AND_128,
            WIDTH_128_AND_256,
            WIDTH_512,
            MISSES,
        ],
        limits: &[],
    },
    Table {
        name: "Sapphire Rapids",
        vendor: VENDOR,
        models: &[(6, 0x8f, 0x8f), (6, 0xcf, 0xcf)],
        groups: &[
            &[
                CYCLES,
                INSTRUCTIONS,
                raw(
                    "MEMORY_ACTIVITY.STALLS_L1D_MISS",
                    0x47,
                    0x03,
                    3,
                    Q::StallsL1dMiss,
                ),
                raw(
                    "EXE_ACTIVITY.BOUND_ON_LOADS",
                    0xa6,
                    0x21,
                    5,
                    Q::StallsMemAny,
                ),
            ],
            SLOTS_METRICS,
            SCALAR_AND_128,
            WIDTH_128_AND_256,
            WIDTH_512,
            MISSES,
        ],
        limits: &["operations on half-precision numbers are not counted"],
    },
];
