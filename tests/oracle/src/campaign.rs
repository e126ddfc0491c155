//! Many cases of one group, compared.

use std::collections::BTreeMap;

use nodescope_engine_soft::Translate;
use nodescope_memory::LayoutError;
use thiserror::Error;

use crate::catalogue::{Group, codes};
use crate::compare::{Difference, compare, is_known_deviation};
use crate::engine::Engine;
use crate::generate::{Case, Generator, window};
use crate::native::{Native, NativeError};
use crate::state::Outcome;

/// Why cases cannot be compared.
#[derive(Debug, Error)]
pub enum CampaignError {
    /// The native side.
    #[error(transparent)]
    Native(#[from] NativeError),
    /// The guest's memory.
    #[error(transparent)]
    Memory(#[from] LayoutError),
}

/// Both sides, the engine twice: interpreting and translating.
pub struct Duel {
    native: Native,
    engines: [Engine; 2],
    window: Vec<u8>,
}

/// Both outcomes of a case.
pub struct Verdict {
    /// On the host's CPU.
    pub native: Outcome,
    /// What differs on the engine.
    pub differences: Vec<Difference>,
    /// The difference is one that the engine documents; `differences` is empty then.
    pub set_aside: bool,
}

impl Duel {
    /// Prepare both sides.
    pub fn new() -> Result<Self, CampaignError> {
        let window = window();
        Ok(Self {
            native: Native::new(&window)?,
            engines: [
                Engine::new(&window, Translate::Never)?,
                Engine::new(&window, Translate::After(0))?,
            ],
            window,
        })
    }

    /// Run a case twice on the host's CPU: what differs shows a fault of the harness.
    pub fn run_native(&mut self, case: &Case) -> Verdict {
        let mut outcomes = Vec::with_capacity(2);
        for _ in 0..2 {
            for p in &case.patches {
                self.native.write(p.address, &p.bytes);
            }
            let outcome = self.native.run(&case.state, &case.bytes);
            outcomes.push((outcome, self.native.window().to_vec()));
            self.reset();
        }
        let differences = compare(
            case,
            &outcomes[0].0,
            &outcomes[1].0,
            [&outcomes[0].1, &outcomes[1].1],
        );
        let native = outcomes.swap_remove(0).0;
        Verdict {
            native,
            differences,
            set_aside: false,
        }
    }

    /// Run a case on both sides.
    pub fn run(&mut self, case: &Case) -> Verdict {
        for p in &case.patches {
            self.native.write(p.address, &p.bytes);
            for engine in &mut self.engines {
                engine.write(p.address, &p.bytes);
            }
        }
        let native = self.native.run(&case.state, &case.bytes);
        let mut differences = Vec::new();
        let mut set_aside = false;
        let mut first = None;
        for (engine, name) in self.engines.iter_mut().zip(["interpreted", "translated"]) {
            match engine.run(&case.state, &case.instruction, &case.bytes) {
                Ok(outcome) => {
                    let memory = [self.native.window(), engine.window()];
                    differences = compare(case, &native, &outcome, memory);
                    if differences.is_empty() {
                        differences = identical(first.as_ref(), &outcome);
                    }
                    first = Some(outcome);
                }
                Err(e) => {
                    differences = vec![Difference {
                        what: "the engine stopped".into(),
                        expected: "an outcome".into(),
                        got: e.to_string().lines().next().unwrap_or_default().to_owned(),
                    }];
                }
            }
            if !differences.is_empty() {
                if is_known_deviation(case, &native, &differences) {
                    differences.clear();
                    set_aside = true;
                    continue;
                }
                for d in &mut differences {
                    d.what = format!("{} ({name})", d.what);
                }
                break;
            }
        }
        self.reset();
        Verdict {
            native,
            differences,
            set_aside,
        }
    }

    /// Cases that the translating engine ran as translated blocks.
    pub fn translated(&self) -> u64 {
        self.engines[1].translated()
    }

    /// Put the common contents back where they changed.
    fn reset(&mut self) {
        let start = crate::layout::WINDOW;
        let len = crate::layout::WRITABLE_LEN;
        if self.native.window() != self.window {
            let bytes = std::mem::take(&mut self.window);
            self.native.write(start, &bytes[..len]);
            self.window = bytes;
        }
        for engine in &mut self.engines {
            if engine.window() != self.window {
                engine.write(start, &self.window);
            }
        }
    }
}

/// Translated and interpreted code must agree in everything, also where the architecture leaves it to the processor.
fn identical(interpreted: Option<&Outcome>, translated: &Outcome) -> Vec<Difference> {
    let Some(interpreted) = interpreted else {
        return Vec::new();
    };
    let parts = |o: &Outcome| {
        let s = &o.state;
        (o.exception, s.gpr, s.rip, s.rflags, s.fx, s.vector)
    };
    if parts(interpreted) == parts(translated) {
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

/// Share cases among groups by their number of instructions, at least 2000 each where there are that many.
pub fn plan(groups: &[Group], count: u64) -> Vec<(Group, u64)> {
    let weight = |g: Group| {
        let n = codes(g).len() as u64;
        // All instructions over again, of which one in eight tells enough.
        if g == Group::Invalid { n / 8 } else { n }
    };
    let all: u64 = groups.iter().map(|&g| weight(g)).sum();
    groups
        .iter()
        .map(|&g| (g, (count * weight(g) / all).max(count.min(2000))))
        .collect()
}

/// What came of a group.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Cases compared.
    pub cases: u64,
    /// Cases in which the host raised an exception.
    pub exceptions: u64,
    /// Cases set aside, because the engine documents the difference.
    pub set_aside: u64,
    /// Cases that the engine ran as translated blocks as well as interpreted.
    pub translated: u64,
    /// Cases that differ.
    pub mismatches: u64,
    /// Mismatches by instruction.
    pub by_instruction: BTreeMap<String, u64>,
}

/// Compare the cases with these indices (with `native_only` the host with itself); `report` gets each mismatch.
pub fn run(
    duel: &mut Duel,
    group: Group,
    seed: u64,
    native_only: bool,
    indices: impl Iterator<Item = u64>,
    mut report: impl FnMut(&Case, &[Difference], u64),
) -> Tally {
    let mut generator = Generator::new(group, seed);
    let mut tally = Tally::default();
    let translated = duel.translated();
    for index in indices {
        let case = generator.case(index);
        let verdict = if native_only {
            duel.run_native(&case)
        } else {
            duel.run(&case)
        };
        tally.cases += 1;
        tally.exceptions += u64::from(verdict.native.exception.is_some());
        tally.set_aside += u64::from(verdict.set_aside);
        if !verdict.differences.is_empty() {
            tally.mismatches += 1;
            let name = format!("{:?}", case.instruction.code());
            let n = tally.by_instruction.entry(name).or_default();
            *n += 1;
            report(&case, &verdict.differences, *n);
        }
    }
    tally.translated = duel.translated() - translated;
    tally
}
