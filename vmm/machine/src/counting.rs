//! Measures a window on a node, as a whole or in intervals. Between intervals the models are detached and keep their state, and clocks
//! advance by what the intervals have taught of the cost of code.

use std::collections::BTreeMap;

use nodescope_engine::CodeCost;
use nodescope_plugin_api::{BlockProfile, CoreCosts, Interval, ProfiledBlock};

use crate::measurement::Measurement;
use crate::node::{Node, TIME_SLICE_CYCLES};
use crate::watch::Watch;

/// The open window's counts.
#[derive(Default)]
pub(crate) struct Counting {
    /// Clock of each vCPU at the beginning of what is measured now; empty while nothing is measured.
    start: Vec<u64>,
    /// The earlier intervals of a sampled window.
    earlier: Option<Measurement>,
    /// True while the models are detached, between two intervals.
    paused: bool,
    costs: LearnedCosts,
    /// Number of intervals in a row that code of unknown cost has asked for.
    pub(crate) urgent_in_a_row: u32,
    /// What was seen of each vCPU's code.
    pub(crate) watches: Vec<Watch>,
}

impl Counting {
    /// Returns whether the models are detached, between two intervals of a sampled window.
    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }
}

/// Part of the known executions of a block that an interval needs to replace what is known.
const ENOUGH: u64 = 8;

/// Costs of blocks by number, as intervals have taught them. The last intervals count most.
#[derive(Default)]
struct LearnedCosts(BTreeMap<u32, BlockCost>);

#[derive(Clone, Copy, Default)]
struct BlockCost {
    /// Executions, those that were cut short included: a string instruction that continues begins its block anew.
    executions: u64,
    /// Cycles of these executions in 1/65536.
    cycles_65536: i64,
}

impl BlockCost {
    /// Returns the cycles of some executions of the block in 1/65536.
    fn of(&self, executions: u64) -> u128 {
        let cycles = self.cycles_65536.max(0) as u128;
        cycles * u128::from(executions) / u128::from(self.executions.max(1))
    }
}

impl LearnedCosts {
    /// Learns from an interval. `nominal_65536` are the cycles of an instruction of code whose cost is not known.
    fn learn(&mut self, blocks: &BlockProfile, core: &CoreCosts, nominal_65536: u64) -> Interval {
        let mut now: BTreeMap<u32, BlockCost> = BTreeMap::new();
        let mut nominal: BTreeMap<u32, u64> = BTreeMap::new();
        let mut instructions = 0;
        for (_, block, counts) in &blocks.counts {
            let at = *block as usize;
            let (Some(&number), Some(of_block)) = (blocks.numbers.get(at), blocks.blocks.get(at))
            else {
                continue;
            };
            let costs = core.blocks.get(&number).unwrap_or(&core.others);
            let sum = now.entry(number).or_default();
            sum.executions += counts.executions + counts.partial.executions;
            instructions += counts.instructions(of_block.instructions);
            let entry = nominal.entry(number).or_default();
            *entry += counts.instructions(of_block.instructions) * nominal_65536;
            let cycles: i64 = costs.of(counts, of_block.instructions).iter().sum();
            sum.cycles_65536 = sum.cycles_65536.saturating_add(cycles);
        }
        let mut sums = [0_u128; 2];
        for (number, cost) in now {
            let known = self.0.get(&number).map(|known| known.of(cost.executions));
            let nominal = u128::from(nominal.get(&number).copied().unwrap_or(0));
            sums[0] += cost.cycles_65536.max(0) as u128;
            sums[1] += known.unwrap_or(nominal);
            if cost.executions > 0 {
                let sum = self.0.entry(number).or_default();
                // An interval replaces what is known, unless the block ran little in it.
                if cost.executions < sum.executions / ENOUGH {
                    sum.executions = sum.executions / 2 + cost.executions;
                    sum.cycles_65536 = (sum.cycles_65536 / 2).saturating_add(cost.cycles_65536);
                } else {
                    *sum = cost;
                }
            }
        }
        Interval {
            instructions,
            cycles: (sums[0] >> 16) as u64,
            predicted: (sums[1] >> 16) as u64,
        }
    }

    /// Returns the costs of the blocks that ran in an interval.
    fn of<'a>(&self, blocks: &'a BlockProfile) -> Vec<CodeCost<'a>> {
        let pairs = blocks.numbers.iter().zip(&blocks.blocks).skip(1);
        let cost = |(number, block): (&u32, &'a _)| {
            let block: &ProfiledBlock = block;
            let cycles_65536 = self.0.get(number)?.of(1);
            Some(CodeCost {
                block,
                sixteenths: ((cycles_65536 + (1 << 11)) >> 12) as u64,
            })
        };
        pairs.filter_map(cost).collect()
    }
}

impl Node {
    /// Ends the warm-up: clears all counts, and keeps the model's cache state.
    pub fn start_measuring(&mut self) {
        if let Some(sampler) = &mut self.sampler {
            sampler.clear();
        }
        self.counting.earlier = None;
        self.start_interval();
    }

    /// Begins an interval of a sampled window behind its warm-up: forgets the counts since [`Node::resume`].
    pub fn start_interval(&mut self) {
        for v in &mut self.vcpus {
            v.flush_counters(&mut *self.motherboard);
        }
        if let Some(model) = self.motherboard.model.as_mut() {
            model.reset_statistics();
        }
        if let Some(core) = self.motherboard.core.as_mut() {
            core.model.reset_statistics();
        }
        self.motherboard.accounts.clear();
        if let Some(sampler) = &mut self.sampler {
            for v in &mut self.vcpus {
                v.forget_block_profile();
            }
            let clocks = self.vcpus.iter().map(|v| sampler.next(v.cycles()));
            self.motherboard.sample_at = clocks.collect();
        }
        if self.counting.earlier.is_some() {
            // Code may change its behaviour from one interval to the next.
            self.vcpus.iter_mut().for_each(|v| v.record_soon());
        }
        self.counting.start = self.vcpus.iter().map(|v| v.cycles()).collect();
    }

    /// Returns what was measured since [`Node::start_interval`], except samples of call stacks.
    fn count_interval(&mut self) -> Measurement {
        for v in &mut self.vcpus {
            v.flush_counters(&mut *self.motherboard);
        }
        let ends = self.vcpus.iter().map(|v| v.cycles());
        let cycles = self.counting.start.drain(..).zip(ends).collect();
        let accounts = std::mem::take(&mut self.motherboard.accounts);
        let counters: Vec<_> = accounts
            .into_iter()
            .map(|((v, c, p), n)| (v, c, p, n))
            .collect();
        let mut model = self.motherboard.model.as_mut();
        if let Some(model) = &mut model {
            model.flush();
        }
        Measurement {
            statistics: (model.as_ref())
                .map(|m| m.statistics(&counters))
                .unwrap_or_default(),
            contended: model.map(|m| m.contended_lines()).unwrap_or_default(),
            counters,
            activities: self.motherboard.activities.clone(),
            cycles,
            // The vCPUs of a node share one block profile, so the first vCPU returns all of it.
            blocks: self.vcpus[0].take_block_profile(),
            samples: Vec::new(),
            core: (self.motherboard.core.as_ref()).map(|core| core.model.costs()),
            intervals: Vec::new(),
            files: Vec::new(),
        }
    }

    /// Ends an interval of a sampled window: detaches the models, which keep their state, and lets clocks advance by the costs of code that
    /// the interval has taught.
    pub fn pause(&mut self, nominal_cpi_65536: u32) {
        let mut measured = self.count_interval();
        let recent = self
            .motherboard
            .core
            .as_ref()
            .map(|core| core.model.recent_costs());
        if let (Some(blocks), Some(core)) = (&measured.blocks, &recent) {
            let costs = &mut self.counting.costs;
            let interval = costs.learn(blocks, core, nominal_cpi_65536.into());
            self.vcpus[0].set_code_costs(&costs.of(blocks));
            measured.intervals.push(interval);
        }
        match &mut self.counting.earlier {
            Some(earlier) => earlier.add(measured),
            None => self.counting.earlier = Some(measured),
        }
        for v in &mut self.vcpus {
            v.pause();
        }
        self.motherboard.sample_at.fill(u64::MAX);
        for updates in &mut self.motherboard.updates {
            updates.clear();
        }
        self.counting.paused = true;
        self.watch_code(true);
    }

    /// Attaches the models of a sampled window again. The warm-up of the next interval begins. If code of unknown cost has asked for the
    /// interval, a recording begins at once.
    pub fn resume(&mut self) {
        let urgent = self.wants_interval();
        self.counting.urgent_in_a_row = match urgent {
            true => self.counting.urgent_in_a_row + 1,
            false => 0,
        };
        if let Some(model) = &self.motherboard.model {
            let geometry = model.l0_geometry();
            for v in &mut self.vcpus {
                v.resume(geometry);
                if urgent {
                    v.record_soon();
                }
            }
        }
        self.counting.paused = false;
        self.watch_code(self.motherboard.core.is_some());
    }

    /// Closes the window: detaches the model, and returns the measurement since the end of the warm-up.
    pub fn detach(&mut self) -> Measurement {
        let Counting {
            start,
            earlier,
            paused,
            ..
        } = &mut self.counting;
        let mut measurement = match earlier.take() {
            Some(earlier) if *paused || start.is_empty() => earlier,
            Some(mut earlier) => {
                earlier.add(self.count_interval());
                earlier
            }
            None => self.count_interval(),
        };
        self.counting = Counting::default();
        self.watch_code(false);
        if let Some(mut model) = self.motherboard.model.take() {
            model.flush();
            measurement.files = model.take_files();
        }
        if self.motherboard.core.take().is_some() {
            measurement.restore_stalls();
        }
        self.motherboard.slice_cycles = TIME_SLICE_CYCLES;
        self.motherboard.moves_seen = 0;
        if let (Some(blocks), Some(costs)) = (&mut measurement.blocks, &measurement.core) {
            blocks.apply(costs);
        }
        for v in &mut self.vcpus {
            v.attach(None);
            v.attribute_to_code(false);
        }
        self.vcpus[0].forget_code_costs();
        self.motherboard.accounts.clear();
        self.motherboard.sample_at.fill(u64::MAX);
        let samples = self.sampler.take().map(|mut sampler| sampler.take());
        measurement.samples = samples.unwrap_or_default();
        for u in &mut self.motherboard.updates {
            u.clear();
        }
        measurement
    }
}
