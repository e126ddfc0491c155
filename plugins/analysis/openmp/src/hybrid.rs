//! Efficiencies of programs with MPI and OpenMP after the POP project, by the definitions of TALP (DLB 3.6, `src/talp/perf_metrics.c`, hybrid model
//! version 2, and the user guide's page "TALP Performance metrics").

use std::collections::BTreeMap;

use serde::Serialize;

use crate::characteristics::Ratio;

/// Time of a rank in MPI calls, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankMpi {
    /// Time in `MPI_Init`, `MPI_Init_thread` and `MPI_Finalize`. TALP leaves this time out, because it measures between these calls.
    pub outer: u128,
    /// Time in all MPI calls but `MPI_Init`, `MPI_Init_thread` and `MPI_Finalize`.
    pub inner: u128,
    /// Part of [`RankMpi::inner`] in which the rank waited for other ranks.
    pub waited: u128,
}

/// Times of a process as TALP classifies them, in nanoseconds summed over processors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TalpTimes {
    /// Time neither in MPI, nor idle, nor waiting in the OpenMP runtime.
    pub useful: u128,
    /// Time of the calling thread in MPI calls.
    pub mpi: u128,
    /// Idle time outside of parallel regions, and of processors without a thread in regions.
    pub serialisation: u128,
    /// Waiting in parallel regions beyond what all threads of a region wait.
    pub load_imbalance: u128,
    /// Waiting in parallel regions that all threads of a region have in common.
    pub scheduling: u128,
    /// Part of the serialisation that falls in MPI calls.
    pub idle_in_mpi: u128,
}

impl TalpTimes {
    /// Classifies the time of a process, without the time in which one thread starts and ends MPI. Waiting in nested regions can exceed
    /// the process's total time. The excess is cut from the useful time, then from MPI, the scheduling and the imbalance.
    pub(crate) fn new(
        total: u128,
        idle: u128,
        imbalance: u128,
        scheduling: u128,
        mpi: RankMpi,
        processors: u32,
    ) -> TalpTimes {
        let others = u128::from(processors.saturating_sub(1));
        let idle = idle.saturating_sub(mpi.outer * others);
        let mut left = total.saturating_sub(mpi.outer * (others + 1));
        let mut take = |part: u128| {
            let part = part.min(left);
            left -= part;
            part
        };
        let serialisation = take(idle);
        let load_imbalance = take(imbalance);
        let scheduling = take(scheduling);
        let mpi = take(mpi.inner);
        TalpTimes {
            useful: left,
            mpi,
            serialisation,
            load_imbalance,
            scheduling,
            // One thread calls MPI, outside of regions, so the other processors are idle meanwhile.
            idle_in_mpi: (mpi * others).min(serialisation),
        }
    }

    fn sum(&self) -> u128 {
        self.useful + self.mpi + self.serialisation + self.load_imbalance + self.scheduling
    }

    fn add(&mut self, other: &TalpTimes) {
        self.useful += other.useful;
        self.mpi += other.mpi;
        self.serialisation += other.serialisation;
        self.load_imbalance += other.load_imbalance;
        self.scheduling += other.scheduling;
        self.idle_in_mpi += other.idle_in_mpi;
    }
}

/// Values of a process from which the efficiencies follow; times in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) rank: Option<u32>,
    pub(crate) host: String,
    pub(crate) processors: u32,
    pub(crate) execution: u128,
    pub(crate) mpi_waiting: u128,
    pub(crate) times: TalpTimes,
}

/// Sums of a node's processes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeReport {
    /// The node's host name.
    pub host: String,
    /// Ranks on the node, ascending; empty without MPI.
    pub ranks: Vec<u32>,
    /// Times of the node's processes.
    pub times: TalpTimes,
    /// Useful time divided by all time of the node's processors.
    pub efficiency: Ratio,
}

/// Time that a rank's processors lose to MPI and to OpenMP, in nanoseconds summed over processors.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankReport {
    /// Rank in `MPI_COMM_WORLD`.
    pub rank: u32,
    /// Host name of the rank's node.
    pub host: String,
    /// Useful time divided by all time of the rank's processors.
    pub efficiency: Ratio,
    /// Time lost to MPI: the calling thread's time in calls, and the idle time of other processors meanwhile.
    pub mpi_lost: u128,
    /// Time lost to OpenMP: idle processors outside of MPI calls, and waiting in parallel regions.
    pub openmp_lost: u128,
    /// Part of the calling thread's time in MPI in which the rank waited for other ranks.
    pub mpi_waiting: u128,
    /// Times of the rank's processors, by their kind.
    pub times: TalpTimes,
}

impl RankReport {
    /// Returns the reports of all ranks, the one that loses most first.
    fn ranked(parts: &[Part]) -> Vec<RankReport> {
        let mut ranks: Vec<RankReport> = (parts.iter())
            .filter_map(|part| {
                let times = part.times;
                Some(RankReport {
                    rank: part.rank?,
                    host: part.host.clone(),
                    efficiency: Ratio::of(times.useful, times.sum()),
                    mpi_lost: times.mpi + times.idle_in_mpi,
                    openmp_lost: times.serialisation - times.idle_in_mpi
                        + times.load_imbalance
                        + times.scheduling,
                    mpi_waiting: part.mpi_waiting.min(times.mpi),
                    times,
                })
            })
            .collect();
        ranks.sort_by_key(|rank| {
            (
                std::cmp::Reverse(rank.mpi_lost + rank.openmp_lost),
                rank.rank,
            )
        });
        ranks
    }

    /// Returns which of MPI and OpenMP takes more time from the rank, or `-` if they take the same.
    pub fn most(&self) -> &'static str {
        match self.mpi_lost.cmp(&self.openmp_lost) {
            std::cmp::Ordering::Greater => "MPI",
            std::cmp::Ordering::Less => "OpenMP",
            std::cmp::Ordering::Equal => "-",
        }
    }
}

/// Efficiencies of a program's processes together. Products are TALP's: `openmp_parallel = openmp_serialisation openmp_load_balance openmp_scheduling` and
/// `mpi_parallel = mpi_load_balance mpi_communication`; `parallel` is no product, since threads that are idle in MPI calls count in both groups.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Hybrid {
    /// Number of processes.
    pub processes: usize,
    /// Sum of the processors of the program's processes, which run at the same time.
    pub processors: u64,
    /// Times of all processes.
    pub times: TalpTimes,
    /// Useful time divided by all time.
    pub parallel: Ratio,
    /// Share of the processors' time outside of MPI calls, where processors that idle during their rank's call count as in MPI; `None`
    /// where no trace has the ranks' MPI calls.
    pub mpi_parallel: Option<Ratio>,
    /// Mean time of a processor outside of MPI, divided by the largest mean of a rank's processors; `None` as for [`Hybrid::mpi_parallel`].
    pub mpi_load_balance: Option<Ratio>,
    /// Largest mean time of a rank's processors outside of MPI, divided by the execution time; `None` as for [`Hybrid::mpi_parallel`].
    pub mpi_communication: Option<Ratio>,
    /// Share of time without OpenMP's idling and waiting.
    pub openmp_parallel: Ratio,
    /// Share of all time that is not [`TalpTimes::serialisation`].
    pub openmp_serialisation: Ratio,
    /// Share of the time without serialisation that is not [`TalpTimes::load_imbalance`].
    pub openmp_load_balance: Ratio,
    /// Share of the time without serialisation and load imbalance that is not [`TalpTimes::scheduling`].
    pub openmp_scheduling: Ratio,
    /// Efficiencies of each node.
    pub nodes: Vec<NodeReport>,
    /// Losses by rank, the one that loses most first; empty where no trace has the ranks' MPI calls.
    pub ranks: Vec<RankReport>,
}

impl Hybrid {
    pub(crate) fn new(parts: &[Part], has_mpi: bool) -> Hybrid {
        let mut times = TalpTimes::default();
        let mut nodes: BTreeMap<&str, (Vec<u32>, TalpTimes)> = BTreeMap::new();
        for part in parts {
            times.add(&part.times);
            let node = nodes.entry(&part.host).or_default();
            node.0.extend(part.rank);
            node.1.add(&part.times);
        }
        let elapsed = parts.iter().map(|part| part.execution).max().unwrap_or(0);
        let processors: u64 = parts.iter().map(|part| u64::from(part.processors)).sum();
        // Time outside of MPI for each processor, as TALP normalises.
        let outside = |times: &TalpTimes, processors: u64| {
            elapsed as f64 - (times.mpi + times.idle_in_mpi) as f64 / processors.max(1) as f64
        };
        let mean = outside(&times, processors);
        let most = (parts.iter())
            .map(|part| outside(&part.times, part.processors.into()))
            .fold(0.0, f64::max);
        let part = |part: f64, whole: f64| {
            has_mpi.then_some(Ratio(if whole > 0.0 { part / whole } else { 1.0 }))
        };
        let sum = times.sum();
        let after_serial = sum - times.serialisation;
        let after_imbalance = after_serial - times.load_imbalance;
        let after_all = after_imbalance - times.scheduling;
        Hybrid {
            processes: parts.len(),
            processors,
            times,
            parallel: Ratio::of(times.useful, sum),
            mpi_parallel: part(mean, elapsed as f64),
            mpi_load_balance: part(mean, most),
            mpi_communication: part(most, elapsed as f64),
            openmp_parallel: Ratio::of(after_all, sum),
            openmp_serialisation: Ratio::of(after_serial, sum),
            openmp_load_balance: Ratio::of(after_imbalance, after_serial),
            openmp_scheduling: Ratio::of(after_all, after_imbalance),
            nodes: (nodes.into_iter())
                .map(|(host, (mut ranks, times))| {
                    ranks.sort_unstable();
                    NodeReport {
                        host: host.to_owned(),
                        ranks,
                        times,
                        efficiency: Ratio::of(times.useful, times.sum()),
                    }
                })
                .collect(),
            ranks: match has_mpi {
                true => RankReport::ranked(parts),
                false => Vec::new(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(rank: u32, mpi: u128, idle: u128, imbalance: u128, scheduling: u128) -> Part {
        Part {
            rank: Some(rank),
            host: format!("node{}", rank / 2),
            processors: 4,
            execution: 1000,
            mpi_waiting: mpi.min(70),
            times: TalpTimes::new(
                4400,
                idle + 300,
                imbalance,
                scheduling,
                RankMpi {
                    outer: 100,
                    inner: mpi,
                    waited: mpi.min(70),
                },
                4,
            ),
        }
    }

    #[test]
    fn products_are_those_of_talp() {
        let parts = [
            part(0, 100, 600, 200, 40),
            part(1, 50, 300, 100, 0),
            part(2, 0, 0, 0, 0),
        ];
        let hybrid = Hybrid::new(&parts, true);
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} {b}");
        near(
            hybrid.openmp_parallel.0,
            hybrid.openmp_serialisation.0
                * hybrid.openmp_load_balance.0
                * hybrid.openmp_scheduling.0,
        );
        // Of 12000: useful 10610, MPI 150, serialisation 900, imbalance 300, scheduling 40.
        near(hybrid.parallel.0, 10610.0 / 12000.0);
        near(hybrid.openmp_serialisation.0, 11100.0 / 12000.0);
        near(hybrid.openmp_load_balance.0, 10800.0 / 11100.0);
        near(hybrid.openmp_scheduling.0, 10760.0 / 10800.0);
        // Rank 0: 100 in MPI, in which others are idle for 300; rank 1: 50 and 150; of 1000 on each of twelve processors.
        near(hybrid.mpi_parallel.unwrap().0, 1.0 - 600.0 / 12000.0);
        near(hybrid.mpi_communication.unwrap().0, 1.0);
        near(hybrid.mpi_load_balance.unwrap().0, 1.0 - 600.0 / 12000.0);
        let ranks: Vec<_> = hybrid.nodes.iter().map(|node| node.ranks.clone()).collect();
        assert_eq!(ranks, [vec![0, 1], vec![2]]);
        // Rank 0: 100 in MPI, 300 idle meanwhile, 300 idle otherwise, 200 and 40 waiting.
        let ranked: Vec<_> = (hybrid.ranks.iter())
            .map(|of| {
                (
                    of.rank,
                    of.mpi_lost,
                    of.openmp_lost,
                    of.mpi_waiting,
                    of.most(),
                )
            })
            .collect();
        let expected = [
            (0, 400, 540, 70, "OpenMP"),
            (1, 200, 250, 50, "OpenMP"),
            (2, 0, 0, 0, "-"),
        ];
        assert_eq!(ranked, expected);
        for of in &hybrid.ranks {
            assert_eq!(of.mpi_lost + of.openmp_lost + of.times.useful, 4000);
        }
        let without = Hybrid::new(&parts, false);
        assert_eq!((without.mpi_parallel, without.ranks), (None, Vec::new()));
    }
}
