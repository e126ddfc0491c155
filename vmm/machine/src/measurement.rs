//! What a window measures on a node.

use std::collections::BTreeMap;

use nodescope_plugin_api::{
    BlockProfile, ContendedLine, Context, CoreCosts, Counters, Interval, ModelFile, Privilege,
    Statistic,
};

use crate::motherboard::Activity;
use crate::samples::StackSample;

/// Counters of one vCPU in one context at one privilege.
type MeasuredCounters = (u16, Context, Privilege, Counters);

/// Results of a measurement window on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measurement {
    /// Counters of the engine by vCPU number, context and privilege.
    pub counters: Vec<MeasuredCounters>,
    /// Statistics of the memory model.
    pub statistics: Vec<Statistic>,
    /// Meaning of each [`Context`], indexed by the context's number.
    pub activities: Vec<Activity>,
    /// Clock of each vCPU, in cycles, at the beginning and at the end of the measurement. In a sampled window the second is the first and
    /// the length of all intervals.
    pub cycles: Vec<(u64, u64)>,
    /// Counts by basic block, if they were requested.
    pub blocks: Option<BlockProfile>,
    /// Samples of call stacks; empty unless counts by basic block were requested.
    pub samples: Vec<StackSample>,
    /// Lines that vCPUs took from each other.
    pub contended: Vec<ContendedLine>,
    /// What a model of the core has learned; `None` if there was none.
    pub core: Option<CoreCosts>,
    /// The intervals of a sampled window.
    pub intervals: Vec<Interval>,
    /// Files of observers.
    pub files: Vec<ModelFile>,
}

impl Measurement {
    /// Adds a later interval of the same window.
    pub(crate) fn add(&mut self, later: Measurement) {
        self.counters.extend(later.counters);
        self.counters.sort_by_key(|&(v, c, p, _)| (v, c, p));
        self.counters.dedup_by(|next, first| {
            let same = (next.0, next.1, next.2) == (first.0, first.1, first.2);
            if same {
                first.3.add(&next.3);
            }
            same
        });
        add_statistics(&mut self.statistics, later.statistics);
        self.activities = later.activities;
        for (sum, (start, end)) in self.cycles.iter_mut().zip(later.cycles) {
            sum.1 += end - start;
        }
        match (&mut self.blocks, later.blocks) {
            (Some(blocks), Some(later)) => blocks.add(&later),
            (blocks, later) => *blocks = blocks.take().or(later),
        }
        self.samples.extend(later.samples);
        for line in later.contended {
            match self
                .contended
                .iter_mut()
                .find(|known| known.physical == line.physical)
            {
                Some(known) => known.add(&line),
                None => self.contended.push(line),
            }
        }
        self.core = match (self.core.take(), later.core) {
            (Some(earlier), Some(mut later)) => {
                later.timed.add(&earlier.timed);
                Some(later)
            }
            (earlier, later) => later.or(earlier),
        };
        self.intervals.extend(later.intervals);
    }

    /// Sets the stall cycles of counters to those of the memory model's events. The clock has counted the exposed part of stalls; the
    /// published formula has all of them.
    pub(crate) fn restore_stalls(&mut self) {
        let mut stalls: BTreeMap<(u16, Context, Privilege), u64> = BTreeMap::new();
        for row in &self.statistics {
            *stalls
                .entry((row.vcpu, row.context, row.privilege))
                .or_default() += row.cycles;
        }
        for (vcpu, context, privilege, counters) in &mut self.counters {
            let key = (*vcpu, *context, *privilege);
            counters.stall_cycles = stalls.get(&key).copied().unwrap_or(0);
        }
    }
}

/// Adds statistics of a later interval. Rows keep their order.
fn add_statistics(sum: &mut Vec<Statistic>, later: Vec<Statistic>) {
    let key = |row: &Statistic| (row.vcpu, row.context, row.privilege, row.event.clone());
    let mut at: BTreeMap<_, usize> = sum
        .iter()
        .enumerate()
        .map(|(n, row)| (key(row), n))
        .collect();
    for row in later {
        match at.get(&key(&row)) {
            Some(&n) => {
                sum[n].count += row.count;
                sum[n].cycles += row.cycles;
            }
            None => {
                at.insert(key(&row), sum.len());
                sum.push(row);
            }
        }
    }
}
