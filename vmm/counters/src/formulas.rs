//! Figures that are computed from counts: CPI, FLOP per instruction, CPI_core and the top-down split. `README.md` explains the formulas.

use crate::measurement::{Counts, FilePosition, Reading};
use crate::quantity::Quantity as Q;

/// Figures that are computed from counts.
#[derive(Clone, Debug, PartialEq)]
pub struct Derived {
    /// Number of cycles, from the counts.
    pub cycles: f64,
    /// Number of retired instructions, from the counts.
    pub instructions: f64,
    /// Cycles per instruction, memory stalls included.
    pub cpi: f64,
    /// Alpha: floating-point operations per instruction; `None` if these operations were not counted.
    pub alpha: Option<f64>,
    /// CPI_core: cycles per instruction without memory stalls, or the reason why it cannot be computed.
    pub core: Result<CoreCpi, String>,
    /// Shares of the pipeline's slots by use; `None` if slots were not counted.
    pub top_down: Option<TopDown>,
    /// Cache misses of levels 1 to 3 per thousand instructions; `None` for a level whose misses were not counted.
    pub misses: [Option<f64>; 3],
    /// Limits of the accuracy of these figures, as sentences.
    pub limits: Vec<String>,
}

/// CPI_core and the events by which it was computed.
#[derive(Clone, Debug, PartialEq)]
pub struct CoreCpi {
    /// (Cycles - stalls for memory) / instructions.
    pub cpi: f64,
    /// Stalls for memory, in cycles.
    pub stalls: f64,
    /// Names of the events used: cycles, instructions, stalls.
    pub events: Vec<String>,
}

/// Level 1 of the top-down method: shares of the pipeline's slots.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TopDown {
    /// Share of slots whose operations retired, 0 to 1.
    pub retiring: f64,
    /// Share of slots of operations that did not retire, or were lost to recovery from them, 0 to 1.
    pub bad_speculation: f64,
    /// Share of slots that the front end left empty, 0 to 1.
    pub frontend: f64,
    /// Share of slots that the back end could not accept, 0 to 1.
    pub backend: f64,
}

/// Counts that contradict each other: a message, and a position in a file if the counts come from one.
#[derive(Debug)]
pub(crate) struct Contradiction {
    pub position: Option<FilePosition>,
    pub message: String,
}

/// Events of stalls for memory, from the most to the least exact, each with the limit of its accuracy; the first counted one is used.
const STALLS: [(Q, &str); 6] = [
    (Q::StallsL1dMiss, ""),
    (
        Q::StallsMemAny,
        "stalls on loads that hit L1 count as memory, so that CPI_core is rather too low",
    ),
    (
        Q::NoRetireLoad,
        "cycles without retirement while a load is pending count as memory, also if the load hits L1 or the core executes meanwhile, so that CPI_core is rather too low",
    ),
    (
        Q::StallsMemory,
        "the stalls are PAPI's, whose events differ by processor",
    ),
    (
        Q::ShareMemory,
        "the stalls are VTune's share of pipeline slots bound by memory, L1 and stores included",
    ),
    (
        Q::StallsQueues,
        "only stalls with a full load or store queue are known as memory, so that CPI_core is an upper bound",
    ),
];

/// Greatest plausible number of instructions per cycle. The widest core in the tables retires 8, and fused pairs count twice.
const MOST_PER_CYCLE: f64 = 16.0;

impl Derived {
    pub(crate) fn new(counts: &Counts) -> Result<Derived, Contradiction> {
        let cycles = needed(counts, Q::Cycles, "cycles")?;
        let instructions = needed(counts, Q::Instructions, "instructions")?;
        let (cycle, instruction) = (value(cycles), value(instructions));
        if instruction > MOST_PER_CYCLE * cycle {
            return Err(at(
                instructions,
                format!(
                    "{instruction} instructions in {cycle} cycles contradict each other: no processor retires more than {MOST_PER_CYCLE} a cycle; both must be of one run"
                ),
            ));
        }
        let mut limits = Vec::new();
        if !(cycles.user_only && instructions.user_only) {
            limits.push("the counts may include the kernel".to_owned());
        }
        let cpi = cycle / instruction;
        let core = core(counts, cycles, instructions, &mut limits)?;
        let per_thousand = |quantity| {
            counts
                .value(quantity)
                .map(|count| count / instruction * 1000.0)
        };
        let derived = Derived {
            cycles: cycle,
            instructions: instruction,
            cpi,
            alpha: flops(counts).map(|flops| flops / instruction),
            core,
            top_down: top_down(counts)?,
            misses: [Q::L1Misses, Q::L2Misses, Q::L3Misses].map(per_thousand),
            limits: {
                let used =
                    |reading: &&Reading| reading.quantity.is_some() && reading.value.is_some();
                let least = (counts.readings.iter().filter(used)).map(|reading| reading.running);
                let least = least.fold(1.0, f64::min);
                if least < 0.999 {
                    limits.push(format!(
                        "counters took turns: counts are scaled, the rarest ran {:.0} % of the time",
                        least * 100.0
                    ));
                }
                limits
            },
        };
        Ok(derived)
    }
}

fn value(reading: &Reading) -> f64 {
    reading.value.unwrap_or_default()
}

fn at(reading: &Reading, message: String) -> Contradiction {
    Contradiction {
        position: reading.position,
        message,
    }
}

fn needed<'a>(counts: &'a Counts, quantity: Q, what: &str) -> Result<&'a Reading, Contradiction> {
    match counts.reading(quantity) {
        Some(reading) if value(reading) > 0.0 => Ok(reading),
        Some(reading) => Err(at(
            reading,
            format!(
                "{} is 0; nothing was counted, so measure again",
                reading.event
            ),
        )),
        None => Err(match counts.not_counted(quantity) {
            Some(reading) => at(
                reading,
                format!(
                    "{} is {:?} where the number of {what} is needed; measure on a machine that counts it, with fewer events at a time",
                    reading.event, reading.unread
                ),
            ),
            None => Contradiction {
                position: counts.readings.first().and_then(|reading| reading.position),
                message: format!(
                    "has no event that counts {what}; measure cycles and instructions, too"
                ),
            },
        }),
    }
}

/// Computes CPI_core; the inner error is the reason why it cannot be computed. Adds the limit of the used event to `limits`.
fn core(
    counts: &Counts,
    cycles: &Reading,
    instructions: &Reading,
    limits: &mut Vec<String>,
) -> Result<Result<CoreCpi, String>, Contradiction> {
    let found = (STALLS.iter())
        .find_map(|(quantity, limit)| Some((counts.reading(*quantity)?, *quantity, *limit)));
    let Some((reading, quantity, limit)) = found else {
        let unread = STALLS
            .iter()
            .find_map(|(quantity, _)| counts.not_counted(*quantity));
        let why = match unread {
            Some(reading) => format!("{} is {:?}", reading.event, reading.unread),
            None => "no event counts stalls for memory".to_owned(),
        };
        return Ok(Err(format!(
            "{why}, so that CPI_core cannot be told from CPI; measure e.g. cycle_activity.stalls_l1d_miss (Intel) or ex_no_retire.load_not_complete (AMD) too"
        )));
    };
    let count = counts.value(quantity).unwrap_or_default();
    let stalls = if quantity.is_share() {
        count * value(cycles)
    } else {
        count
    };
    if stalls >= value(cycles) {
        return Err(at(
            reading,
            format!(
                "{stalls} cycles of stalls ({}) in {} cycles contradict each other; both must be of one run, and for the same processes",
                reading.event,
                value(cycles)
            ),
        ));
    }
    if !limit.is_empty() {
        limits.push(limit.to_owned());
    }
    Ok(Ok(CoreCpi {
        cpi: (value(cycles) - stalls) / value(instructions),
        stalls,
        events: [cycles, instructions, reading]
            .map(|reading| reading.event.clone())
            .to_vec(),
    }))
}

/// Returns the number of floating-point operations: counted as such, or else the sum of those counted by precision or by width. `None` if
/// none were counted.
fn flops(counts: &Counts) -> Option<f64> {
    let sum = |values: &mut dyn Iterator<Item = f64>| {
        let first = values.next()?;
        Some(first + values.sum::<f64>())
    };
    counts
        .value(Q::Flops)
        .or_else(|| {
            sum(&mut [Q::FlopsDouble, Q::FlopsSingle]
                .into_iter()
                .filter_map(|q| counts.value(q)))
        })
        .or_else(|| sum(&mut Q::all().filter_map(|q| Some(counts.value(q)? * q.flops()?))))
}

/// Computes level 1 of the top-down method (Intel optimization manual, appendix B.1; for AMD the pipeline utilization of the PPR of Zen 4
/// and 5). `None` if slots were not counted.
fn top_down(counts: &Counts) -> Result<Option<TopDown>, Contradiction> {
    let shares = [
        Q::ShareRetiring,
        Q::ShareBadSpeculation,
        Q::ShareFrontend,
        Q::ShareBackend,
    ];
    let [retiring, bad_speculation, frontend, backend] = shares.map(|share| counts.value(share));
    let split = if let (Some(retiring), Some(bad_speculation), Some(frontend), Some(backend)) =
        (retiring, bad_speculation, frontend, backend)
    {
        TopDown {
            retiring,
            bad_speculation,
            frontend,
            backend,
        }
    } else {
        let (Some(slots), Some(retired), Some(frontend)) = (
            counts.value(Q::Slots).filter(|&slots| slots > 0.0),
            counts.value(Q::SlotsRetiring),
            counts.value(Q::SlotsFrontend),
        ) else {
            return Ok(None);
        };
        let issued = counts.value(Q::SlotsIssued);
        let recovery = counts.value(Q::SlotsRecovery).unwrap_or_default();
        // If the events were counted in turns, slightly more slots may retire than are issued.
        let lost = issued.map(|issued| (issued - retired + recovery).max(0.0));
        let Some(bad) = counts.value(Q::SlotsBadSpeculation).or(lost) else {
            return Ok(None);
        };
        let rest = (slots - retired - frontend - bad).max(0.0);
        TopDown {
            retiring: retired / slots,
            bad_speculation: bad / slots,
            frontend: frontend / slots,
            backend: counts.value(Q::SlotsBackend).unwrap_or(rest) / slots,
        }
    };
    let sum = split.retiring + split.bad_speculation + split.frontend + split.backend;
    // Slots of the core's other thread count for neither, so that a sum below 1 is no contradiction.
    if sum > 1.1 {
        let reading = [Q::SlotsRetiring, Q::ShareRetiring]
            .iter()
            .find_map(|q| counts.reading(*q));
        return Err(Contradiction {
            position: reading.and_then(|reading| reading.position),
            message: format!(
                "the top-down shares add up to {:.0} % of the slots, so they contradict each other; all must be of one run",
                sum * 100.0
            ),
        });
    }
    Ok(Some(split))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(events: &[(&str, f64)]) -> Counts {
        let reading = |(event, value): &(&str, f64)| Reading::new(event, *value, None);
        Counts {
            readings: events.iter().map(reading).collect(),
        }
    }

    #[test]
    fn core_cpi_is_what_memory_does_not_explain() {
        let derived = Derived::new(&counts(&[
            ("cycles:u", 1000.0),
            ("instructions:u", 800.0),
            ("cycle_activity.stalls_mem_any:u", 500.0),
            ("cycle_activity.stalls_l1d_miss:u", 400.0),
            ("fp_arith_inst_retired.scalar_double:u", 40.0),
            ("fp_arith_inst_retired.256b_packed_double:u", 10.0),
            ("l1d.replacement:u", 8.0),
        ]))
        .unwrap();
        assert_eq!(derived.cpi, 1.25);
        let core = derived.core.unwrap();
        assert_eq!((core.cpi, core.stalls), (0.75, 400.0));
        assert_eq!(core.events[2], "cycle_activity.stalls_l1d_miss:u");
        assert_eq!(derived.alpha, Some(0.1));
        assert_eq!(derived.misses, [Some(10.0), None, None]);
        assert!(derived.limits.is_empty(), "{:?}", derived.limits);
    }

    #[test]
    fn without_stalls_there_is_no_core_cpi() {
        let derived = Derived::new(&counts(&[
            ("PAPI_TOT_CYC", 10.0),
            ("PAPI_TOT_INS", 8.0),
            ("PAPI_RES_STL", 4.0),
        ]));
        let why = derived.unwrap().core.unwrap_err();
        assert!(why.contains("CPI_core cannot be told from CPI"), "{why}");
    }

    #[test]
    fn queues_add_up_and_give_a_bound() {
        let derived = Derived::new(&counts(&[
            ("ls_not_halted_cyc", 1000.0),
            ("ex_ret_instr", 1000.0),
            (
                "de_dis_dispatch_token_stalls1.load_queue_token_stall",
                100.0,
            ),
            (
                "de_dis_dispatch_token_stalls1.store_queue_token_stall",
                50.0,
            ),
        ]))
        .unwrap();
        assert_eq!(derived.core.unwrap().cpi, 0.85);
        assert!(
            derived
                .limits
                .iter()
                .any(|limit| limit.contains("upper bound"))
        );
    }

    #[test]
    fn the_split_of_slots_follows_the_manuals() {
        // Sandy Bridge to Skylake: 4 slots per cycle; the back end gets the remaining slots.
        let split = top_down(&counts(&[
            ("topdown-total-slots", 4000.0),
            ("topdown-slots-issued", 2200.0),
            ("topdown-slots-retired", 2000.0),
            ("topdown-fetch-bubbles", 400.0),
            ("topdown-recovery-bubbles", 200.0),
        ]));
        let split = split.unwrap().unwrap();
        assert_eq!((split.retiring, split.frontend), (0.5, 0.1));
        assert_eq!((split.bad_speculation, split.backend), (0.1, 0.3));
        let twice = top_down(&counts(&[
            ("slots", 100.0),
            ("topdown-retiring", 90.0),
            ("topdown-bad-spec", 10.0),
            ("topdown-fe-bound", 10.0),
            ("topdown-be-bound", 50.0),
        ]));
        assert!(twice.unwrap_err().message.contains("contradict"));
    }

    #[test]
    fn counts_that_contradict_each_other_are_refused() {
        for (events, told) in [
            (
                &[("cycles", 10.0), ("instructions", 1000.0)][..],
                "contradict each other",
            ),
            (&[("cycles", 10.0), ("instructions", 0.0)][..], "is 0"),
            (
                &[("cycles", 10.0)][..],
                "has no event that counts instructions",
            ),
            (
                &[
                    ("cycles", 10.0),
                    ("instructions", 9.0),
                    ("cycle_activity.stalls_mem_any", 11.0),
                ][..],
                "contradict each other",
            ),
        ] {
            let message = Derived::new(&counts(events)).unwrap_err().message;
            assert!(message.contains(told), "{message}");
        }
    }
}
