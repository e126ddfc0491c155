//! What timed recordings teach about code: cycles of instructions by block, and cycles of answers by block and source.

use std::collections::{BTreeMap, BTreeSet};

use nodescope_plugin_api::{CodeCosts, SOURCES, Source, Timed};

use crate::timing::Event;

/// Number of instructions behind a wrongly predicted branch, and behind a miss, to which its cycles may fall.
///
/// The first number is a few times what a front end brings in until the branch is resolved. The second is the reorder buffer of the largest
/// cores.
const BEHIND_BRANCH: usize = 128;
const BEHIND_MISS: usize = 512;

/// Sums over the timed instructions of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    instructions: u64,
    core: i64,
    speculation: i64,
    translation: i64,
    answers: [u64; SOURCES],
    waiting: [i64; SOURCES],
}

impl Sums {
    /// Returns the costs. Answers of a source that the block had none of cost what they cost in all code.
    fn costs(&self, all: &Sums) -> CodeCosts {
        let each = |sum: i64| ratio(sum, self.instructions);
        let each_answer = std::array::from_fn(|source| {
            let answers = self.answers[source];
            match answers {
                0 => ratio(all.waiting[source], all.answers[source]),
                _ => ratio(self.waiting[source], answers),
            }
        });
        CodeCosts {
            each_instruction: [
                each(self.core),
                each(self.speculation),
                each(self.translation),
            ],
            each_answer,
        }
    }

    fn halve(&mut self) {
        self.instructions /= 2;
        self.core /= 2;
        self.speculation /= 2;
        self.translation /= 2;
        for (answers, waiting) in self.answers.iter_mut().zip(&mut self.waiting) {
            *answers /= 2;
            *waiting /= 2;
        }
    }

    /// Returns the cycles of an answer in 1/65536; `None` without answers.
    fn wait(&self, source: usize) -> Option<u64> {
        let cycles = self.waiting[source].max(0) as u64;
        cycles
            .saturating_mul(1 << 16)
            .checked_div(self.answers[source])
    }
}

/// Returns cycles per event in 1/65536; 0 without events.
fn ratio(cycles: i64, events: u64) -> i64 {
    match i64::try_from(events) {
        Ok(0) | Err(_) => 0,
        Ok(events) => cycles.saturating_mul(1 << 16) / events,
    }
}

/// An instruction that a model has timed under each of three conditions: the cycle in which it retires with hits and predicted branches
/// alone, with mispredictions, and as recorded.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Retired {
    pub(crate) ideal: u64,
    pub(crate) branches: u64,
    pub(crate) recorded: u64,
}

/// An event that later instructions may wait for.
#[derive(Clone, Copy, Debug)]
struct Behind {
    at: usize,
    block: u32,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Branch,
    Walk,
    Answer(Source),
}

/// What was learned so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Learned {
    blocks: BTreeMap<u32, Sums>,
    pub(crate) timed: Timed,
}

impl Learned {
    /// Adds the timed instructions from index `from` on. `blocks` has the number of the block of each. Returns their number, and the cycles
    /// in which they did not wait for answers.
    pub(crate) fn add(
        &mut self,
        events: &[Event<'_>],
        blocks: &[u32],
        retired: &[Retired],
        from: usize,
    ) -> (u64, i64) {
        let (mut branch, mut miss) = (None, None);
        let mut own = 0;
        for at in 0..events.len() {
            let block = blocks[at];
            let event = &events[at];
            self.note_events(event, block, at, (&mut branch, &mut miss), at >= from);
            if at < from || at == 0 {
                continue;
            }
            let (now, before) = (retired[at], retired[at - 1]);
            let core = now.ideal as i64 - before.ideal as i64;
            let with_branches = now.branches as i64 - before.branches as i64;
            let all = now.recorded as i64 - before.recorded as i64;
            let sums = self.blocks.entry(block).or_default();
            sums.instructions += 1;
            sums.core += core;
            let behind_branch = within(branch, at, BEHIND_BRANCH);
            self.charge(behind_branch, block, with_branches - core);
            let behind_miss = within(miss, at, BEHIND_MISS);
            self.charge(behind_miss, block, all - with_branches);
            own += match behind_miss.map(|behind| behind.what) {
                Some(What::Answer(_)) => with_branches,
                _ => all,
            };
        }
        self.note_timed(events.len(), retired, from);
        ((events.len() - from.min(events.len())) as u64, own)
    }

    /// Halves what is known of these blocks, so that what is added next counts most.
    pub(crate) fn age(&mut self, blocks: &[u32]) {
        let blocks: BTreeSet<u32> = blocks.iter().copied().collect();
        for block in blocks {
            if let Some(sums) = self.blocks.get_mut(&block) {
                sums.halve();
            }
        }
    }

    /// Notes that an instruction's branch was predicted wrongly, or that its accesses missed.
    fn note_events(
        &mut self,
        event: &Event<'_>,
        block: u32,
        at: usize,
        (branch, miss): (&mut Option<Behind>, &mut Option<Behind>),
        counts: bool,
    ) {
        let behind = |what| Some(Behind { at, block, what });
        if event.mispredicted {
            *branch = behind(What::Branch);
        }
        if event.translation.iter().any(|extra| *extra > 0) {
            *miss = behind(What::Walk);
        }
        for answer in event.answers.iter().filter(|a| a.prefetched_into == 0) {
            if let Some(source) = answer.source {
                *miss = behind(What::Answer(source));
                if counts {
                    let sums = self.blocks.entry(block).or_default();
                    sums.answers[source as usize] += 1;
                }
            }
        }
    }

    /// Charges cycles to the event behind which they fall, or to the code itself.
    fn charge(&mut self, behind: Option<Behind>, block: u32, cycles: i64) {
        if cycles == 0 {
            return;
        }
        let Some(Behind { block, what, .. }) = behind else {
            self.blocks.entry(block).or_default().core += cycles;
            return;
        };
        let sums = self.blocks.entry(block).or_default();
        match what {
            What::Branch => sums.speculation += cycles,
            What::Walk => sums.translation += cycles,
            What::Answer(source) => sums.waiting[source as usize] += cycles,
        }
    }

    fn note_timed(&mut self, len: usize, retired: &[Retired], from: usize) {
        let from = from.max(1);
        if len <= from {
            return;
        }
        let instructions = (len - from) as u64;
        let cycles = retired[len - 1].recorded - retired[from - 1].recorded;
        let cpi = (cycles << 16) / instructions;
        self.timed.recordings += 1;
        self.timed.instructions += instructions;
        self.timed.cycles += cycles;
        self.timed.squared_cpi = self
            .timed
            .squared_cpi
            .saturating_add(cpi.saturating_mul(cpi));
    }

    /// Returns the cycles of an answer in a block in 1/65536, by source; `None` for answers that no recording of the block had.
    pub(crate) fn waiting(&self, block: u32) -> [Option<u64>; SOURCES] {
        let sums = self.blocks.get(&block).copied().unwrap_or_default();
        std::array::from_fn(|source| sums.wait(source))
    }

    /// Returns the cycles of an instruction of a block that waits for no answer, in 1/65536; `None` if no instruction was timed.
    pub(crate) fn own_cycles(&self, block: u32) -> Option<u32> {
        let sums = self
            .blocks
            .get(&block)
            .filter(|sums| sums.instructions > 0)?;
        let own = sums.core + sums.speculation + sums.translation;
        let each = ratio(own, sums.instructions);
        Some(u32::try_from(each.max(0)).unwrap_or(u32::MAX))
    }

    /// Returns whether instructions of a block were timed.
    pub(crate) fn has_timed(&self, block: u32) -> bool {
        self.blocks
            .get(&block)
            .is_some_and(|sums| sums.instructions > 0)
    }

    /// Returns the cycles of an answer in all code in 1/65536, by source.
    pub(crate) fn waiting_anywhere(&self) -> [Option<u64>; SOURCES] {
        let all = self.all();
        std::array::from_fn(|source| all.wait(source))
    }

    /// Returns the costs of each block, and those of code that was not timed.
    pub(crate) fn costs(&self) -> (BTreeMap<u32, CodeCosts>, CodeCosts) {
        let all = self.all();
        let timed = self.blocks.iter().filter(|(_, sums)| sums.instructions > 0);
        let blocks = timed
            .map(|(block, sums)| (*block, sums.costs(&all)))
            .collect();
        (blocks, all.costs(&all))
    }

    fn all(&self) -> Sums {
        let mut all = Sums::default();
        for sums in self.blocks.values() {
            all.instructions += sums.instructions;
            all.core += sums.core;
            all.speculation += sums.speculation;
            all.translation += sums.translation;
            for source in 0..SOURCES {
                all.answers[source] += sums.answers[source];
                all.waiting[source] += sums.waiting[source];
            }
        }
        all
    }
}

/// Returns the event if the instruction `at` is at most `most` instructions behind it.
fn within(behind: Option<Behind>, at: usize, most: usize) -> Option<Behind> {
    behind.filter(|behind| at - behind.at <= most)
}
