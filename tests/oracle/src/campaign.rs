//! Campaigns: runs of many cases of one group, with comparison of the outcomes.
//!
//! Each encoding is placed and translated once, and then runs in several states. Each state counts as a case.

use std::collections::BTreeMap;

use nodescope_memory::LayoutError;
use thiserror::Error;

use crate::catalogue::{Group, codes};
use crate::compare::{Difference, compare, equal, is_known_deviation};
use crate::engine::{Engine, ExecutionMode};
use crate::generate::{Case, CaseId, Generator, window};
use crate::layout::{PAGE, WINDOW, WRITABLE_LEN};
use crate::native::{Native, NativeError};
use crate::random::Random;
use crate::state::Outcome;
use crate::vendor::{self, Rule, Vendor};

/// Reason for which cases cannot be compared.
#[derive(Debug, Error)]
pub enum CampaignError {
    /// The native side cannot run.
    #[error(transparent)]
    Native(#[from] NativeError),
    /// The guest's memory cannot be made.
    #[error(transparent)]
    Memory(#[from] LayoutError),
    /// No state was found for a variant.
    #[error("no state was found for {0}")]
    NoCase(CaseId),
}

/// Comparator that runs cases on the host's CPU and on the engine, interpreted and in one of the two translated modes, and compares the
/// outcomes.
pub struct Comparator {
    native: Native,
    /// Vendor of this host's CPU, whose rules apply.
    vendor: Vendor,
    interpreter: Engine,
    translators: [Engine; 2],
    /// Address and bytes of the instruction that was placed last.
    placed: (u64, Vec<u8>),
    translator: usize,
    window: Vec<u8>,
}

/// Result of comparing a case's outcomes.
pub struct Comparison {
    /// Outcome on the host's CPU. None: the vendor's CPUs decode the bytes as another instruction, so the host did not run it.
    pub native: Option<Outcome>,
    /// Differences of the engine from the host, or of translated from interpreted code.
    pub differences: Vec<Difference>,
    /// Rule by which CPUs of the host's vendor differ from Intel's CPUs in this case; the engine does as Intel's do. None: no rule was
    /// needed.
    pub by_vendor: Option<Rule>,
    /// True if the outcome has a documented deviation of the engine; `differences` does not contain this deviation.
    pub known_deviation: bool,
    /// True if the case also ran as translated code.
    pub translated: bool,
    /// True if the translated code called no slow path: all its look-ups hit in line.
    pub in_line: bool,
}

impl Comparison {
    /// Makes a comparison without differences.
    fn new(native: Option<Outcome>) -> Self {
        Self {
            native,
            differences: Vec::new(),
            by_vendor: None,
            known_deviation: false,
            translated: false,
            in_line: false,
        }
    }
}

impl Comparator {
    /// Prepares the native side and the engine in all modes.
    pub fn new() -> Result<Self, CampaignError> {
        let window = window();
        Ok(Self {
            native: Native::new(&window)?,
            vendor: vendor::host(),
            interpreter: Engine::new(&window, ExecutionMode::Interpreted)?,
            translators: [
                Engine::new(&window, ExecutionMode::Translated)?,
                Engine::new(&window, ExecutionMode::TranslatedWithModel)?,
            ],
            placed: (0, Vec::new()),
            translator: 0,
            window,
        })
    }

    /// Runs a case twice on the host's CPU. A difference shows an error in the test harness.
    pub fn run_native(&mut self, case: &Case) -> Comparison {
        self.placed = (0, Vec::new());
        let mut comparison = Comparison::new(None);
        comparison.by_vendor = vendor::forbids(self.vendor, case);
        if comparison.by_vendor.is_some() {
            return comparison;
        }
        let mut outcomes = Vec::with_capacity(2);
        for _ in 0..2 {
            for p in &case.patches {
                self.native.write(p.address, &p.bytes);
            }
            self.native.place(case.state.rip, &case.bytes);
            let outcome = self.native.run(&case.state);
            outcomes.push((outcome, self.native.window().to_vec()));
            self.reset(false);
        }
        comparison.differences = compare(
            case,
            &outcomes[0].0,
            &outcomes[1].0,
            [&outcomes[0].1, &outcomes[1].1],
        );
        comparison.native = Some(outcomes.swap_remove(0).0);
        comparison
    }

    /// Places the case's instruction on all sides, unless it is already there. One encoding in four is translated for a vCPU with a memory
    /// model, the others for a vCPU without one.
    fn place(&mut self, case: &Case) {
        let rip = case.state.rip;
        if self.placed.0 == rip && self.placed.1 == case.bytes {
            return;
        }
        self.placed = (rip, case.bytes.clone());
        self.translator = usize::from(Random::new(case.id.index ^ case.id.seed).below(4) == 0);
        self.native.place(rip, &case.bytes);
        for engine in [
            &mut self.interpreter,
            &mut self.translators[self.translator],
        ] {
            engine.place(rip, &case.instruction, &case.bytes);
        }
    }

    /// Runs a case on the host and on the engine, interpreted and translated, and compares the outcomes.
    pub fn run(&mut self, case: &Case) -> Comparison {
        self.place(case);
        for p in &case.patches {
            self.native.write(p.address, &p.bytes);
        }
        let forbidden = vendor::forbids(self.vendor, case);
        let native = forbidden.is_none().then(|| self.native.run(&case.state));
        let mut comparison = Comparison::new(native);
        comparison.by_vendor = forbidden;
        // Memory after the interpreted run, as the reference if the host did not run the instruction.
        let mut unjudged: Option<Vec<u8>> = None;
        let mut first: Option<Outcome> = None;
        // True if memory of the sides may differ, so that all of it must be restored.
        let mut memory_differs = forbidden.is_some();
        for (engine, name) in [
            (&mut self.interpreter, "interpreted"),
            (
                &mut self.translators[self.translator],
                ["translated", "translated, with a model"][self.translator],
            ),
        ] {
            for p in &case.patches {
                engine.write(p.address, &p.bytes);
            }
            let before = engine
                .prepare(case.tlb, case.operand)
                .map(|()| engine.activity());
            let result = before.and_then(|before| Ok((before, engine.run(&case.state)?)));
            let mut differences = match result {
                Ok((before, outcome)) => {
                    let after = engine.activity();
                    let (entries, misses, interpreted) = (
                        after.entries - before.entries,
                        after.misses - before.misses,
                        after.interpreted - before.interpreted,
                    );
                    comparison.translated |= entries > 0;
                    comparison.in_line |= entries > 0 && misses == 0 && interpreted == 0;
                    let memory = [self.native.window(), engine.window()];
                    let mut differences = Vec::new();
                    if let Some(native) = &comparison.native {
                        let same_memory = memory[0] == memory[1];
                        memory_differs |= !same_memory;
                        if !same_memory || !equal(native, &outcome) {
                            differences = compare(case, native, &outcome, memory);
                        }
                        if !differences.is_empty()
                            && let Some(rule) =
                                vendor::explains(self.vendor, case, native, &outcome, memory)
                        {
                            comparison.by_vendor = Some(rule);
                            differences.clear();
                        }
                    } else if *unjudged.get_or_insert_with(|| memory[1].to_vec()) != memory[1] {
                        differences.push(Difference {
                            what: "memory".into(),
                            expected: "as interpreted".into(),
                            got: "other bytes".into(),
                        });
                    }
                    if differences.is_empty() {
                        differences = identical(first.as_ref(), &outcome);
                    }
                    first = Some(outcome);
                    differences
                }
                Err(e) => vec![Difference {
                    what: "the engine stopped".into(),
                    expected: "an outcome".into(),
                    got: e.to_string().lines().next().unwrap_or_default().to_owned(),
                }],
            };
            if differences.is_empty() {
                continue;
            }
            if let Some(native) = &comparison.native
                && is_known_deviation(case, native, &differences)
            {
                comparison.known_deviation = true;
                continue;
            }
            for d in &mut differences {
                d.what = format!("{} ({name})", d.what);
            }
            comparison.differences = differences;
            break;
        }
        let differ =
            comparison.known_deviation || !comparison.differences.is_empty() || memory_differs;
        self.reset(differ);
        comparison
    }

    /// Restores the window's common contents where they changed. Without `differ`, all sides have changed the same pages as the native
    /// side.
    fn reset(&mut self, differ: bool) {
        let page = PAGE as usize;
        let Self {
            native,
            interpreter,
            translators,
            window,
            ..
        } = self;
        for (at, bytes) in (WINDOW..).step_by(page).zip(window.chunks(page)) {
            let offset = (at - WINDOW) as usize;
            let writable = offset < WRITABLE_LEN;
            let changed = writable && native.window()[offset..offset + page] != *bytes;
            if changed {
                native.write(at, bytes);
            }
            if differ || changed {
                interpreter.write(at, bytes);
                for engine in translators.iter_mut() {
                    engine.write(at, bytes);
                }
            }
        }
    }
}

/// Returns the differences of translated from interpreted code. Both must agree even where the architecture leaves a result undefined.
fn identical(interpreted: Option<&Outcome>, translated: &Outcome) -> Vec<Difference> {
    let Some(interpreted) = interpreted else {
        return Vec::new();
    };
    let (a, b) = (&interpreted.state, &translated.state);
    if interpreted.exception == translated.exception
        && a.gpr == b.gpr
        && a.rip == b.rip
        && a.rflags == b.rflags
        && a.fx == b.fx
        && a.vector == b.vector
    {
        return Vec::new();
    }
    let (a, b) = (format!("{interpreted:#x?}"), format!("{translated:#x?}"));
    a.lines()
        .zip(b.lines())
        .filter(|(x, y)| x != y)
        .map(|(x, y)| Difference {
            what: "not as interpreted".into(),
            expected: x.trim().into(),
            got: y.trim().into(),
        })
        .collect()
}

/// Returns the number of states in which an encoding of a group runs. An invalid encoding raises `#UD` in any state, so it runs in one.
pub fn states(group: Group, wanted: u64) -> u64 {
    if group == Group::Invalid {
        1
    } else {
        wanted.max(1)
    }
}

/// Distributes `count` cases among groups in proportion to their numbers of instructions. Each group gets at least 2000 cases, or `count`
/// if that is less.
pub fn plan(groups: &[Group], count: u64) -> Vec<(Group, u64)> {
    let weight = |g: Group| {
        let n = codes(g).len() as u64;
        // This group contains the instructions of all groups. Each of its cases only faults on both sides, so one in thirty-two is enough.
        if g == Group::Invalid { n / 32 } else { n }
    };
    let all: u64 = groups.iter().map(|&g| weight(g)).sum();
    groups
        .iter()
        .map(|&g| (g, (count * weight(g) / all.max(1)).max(count.min(2000))))
        .collect()
}

/// Counts of a campaign's results for one group.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Number of encodings drawn.
    pub encodings: u64,
    /// Number of cases compared.
    pub cases: u64,
    /// Number of cases in which the host raised an exception.
    pub exceptions: u64,
    /// Number of cases with a documented deviation of the engine.
    pub known_deviations: u64,
    /// Number of cases without mismatch in which a rule of the host's vendor, which Intel's CPUs do not follow, explained the host's
    /// outcome or kept the host from running the instruction.
    pub by_vendor: u64,
    /// Number of cases that the engine ran both interpreted and as translated blocks.
    pub translated: u64,
    /// Number of cases that access memory.
    pub memory: u64,
    /// Number of cases that access memory and ran as translated code without a slow path: all look-ups hit in line.
    pub hits: u64,
    /// Number of cases with unexplained differences.
    pub mismatches: u64,
    /// Number of mismatches by instruction, in iced-x86's names.
    pub by_instruction: BTreeMap<String, u64>,
    /// The cases of `by_vendor`, by the rule's text ([`Rule::describe`]).
    pub by_rule: BTreeMap<String, u64>,
}

impl Tally {
    /// Returns all counts but those by instruction and by rule, in a fixed order, for sums and for transfer between processes.
    pub fn numbers(&mut self) -> [&mut u64; 9] {
        [
            &mut self.encodings,
            &mut self.cases,
            &mut self.exceptions,
            &mut self.known_deviations,
            &mut self.by_vendor,
            &mut self.translated,
            &mut self.memory,
            &mut self.hits,
            &mut self.mismatches,
        ]
    }

    /// Adds another tally.
    pub fn add(&mut self, other: &Self) {
        let mut other = other.clone();
        for (to, from) in self.numbers().into_iter().zip(other.numbers()) {
            *to += *from;
        }
        for (name, n) in other.by_instruction {
            *self.by_instruction.entry(name).or_default() += n;
        }
        for (name, n) in other.by_rule {
            *self.by_rule.entry(name).or_default() += n;
        }
    }
}

/// Settings for drawing and comparing cases.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Seed of the campaign.
    pub seed: u64,
    /// Number of states in which each encoding runs; those of the group `Invalid` run in one.
    pub states: u64,
    /// True if the host is compared with itself instead of the engine.
    pub native_only: bool,
}

/// Compares the cases of the encodings with these indices. `report` gets each mismatch, with the number of mismatches of its instruction so
/// far.
pub fn run(
    comparator: &mut Comparator,
    group: Group,
    settings: Settings,
    indices: impl Iterator<Item = u64>,
    mut report: impl FnMut(&Case, &[Difference], u64),
) -> Tally {
    let mut generator = Generator::new(group, settings.seed);
    let mut tally = Tally::default();
    for index in indices {
        let first = generator.case(index);
        tally.encodings += 1;
        for variant in 0..states(group, settings.states) {
            let varied;
            let case = if variant == 0 {
                &first
            } else {
                match generator.variant(&first, variant) {
                    Some(case) => varied = case,
                    None => continue,
                }
                &varied
            };
            let comparison = if settings.native_only {
                comparator.run_native(case)
            } else {
                comparator.run(case)
            };
            tally.cases += 1;
            tally.exceptions += u64::from(comparison.native.is_some_and(|n| n.exception.is_some()));
            tally.known_deviations += u64::from(comparison.known_deviation);
            if let Some(rule) = comparison.by_vendor
                && comparison.differences.is_empty()
            {
                tally.by_vendor += 1;
                *tally.by_rule.entry(rule.describe().into()).or_default() += 1;
            }
            tally.translated += u64::from(comparison.translated);
            tally.memory += u64::from(case.operand.is_some());
            tally.hits += u64::from(case.operand.is_some() && comparison.in_line);
            if !comparison.differences.is_empty() {
                tally.mismatches += 1;
                let name = format!("{:?}", case.instruction.code());
                let n = tally.by_instruction.entry(name).or_default();
                *n += 1;
                report(case, &comparison.differences, *n);
            }
        }
    }
    tally
}
