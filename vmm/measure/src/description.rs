//! All that is measured, in its order.

use crate::MeasureError;
use crate::affinity::Bound;
use crate::bandwidth::{self, Bandwidth};
use crate::branch::{self, Branches};
use crate::buffer::{Buffer, Pages};
use crate::curve::{self, Curve, Method};
use crate::host::{self, Identity};
use crate::levels::{self, Level};
use crate::parallelism::{self, Parallelism};
use crate::prefetch::{self, Stream};
use crate::stores::{self, Stores};
use crate::timer::{ClockReading, Reading, Timer};
use crate::tlb::{self, Tlb};
use crate::topology::{Relation, Topology};
use crate::transfer::{self, Transfer};

/// Smallest and greatest size of the greatest working set, in bytes.
const WORKING_SETS: (u64, u64) = (256 << 20, 1 << 30);

/// A description of the machine on which this program runs.
#[derive(Debug, Clone, PartialEq)]
pub struct HostDescription {
    /// What the machine says of itself.
    pub identity: Identity,
    /// CPUs and caches.
    pub topology: Topology,
    /// Clocks of core and time-stamp counter.
    pub clock: ClockReading,
    /// Latency and reach of each cache through which loads go, with huge pages.
    pub levels: Vec<Level>,
    /// Latency of memory: of lines that were flushed from the caches.
    pub memory: Reading,
    /// Latency of loads in the greatest working sets, with huge pages. It has whatever translation adds.
    pub far_memory: Reading,
    /// Latency by size of the working set, with huge pages.
    pub huge_curve: Curve,
    /// The same in shared caches, without loading the working set before each run.
    pub slow_curve: Curve,
    /// The same as with huge pages with pages of 4 KiB.
    pub small_curve: Curve,
    /// Bandwidth of each cache and of memory: of one core, and of all cores where there are several.
    pub bandwidths: Vec<Vec<Bandwidth>>,
    /// Misses in flight: of the first level that the last cache answers, and that memory answers.
    pub parallelism: [Parallelism; 2],
    /// Loads in regular order, that the last cache answers, and that memory answers.
    pub streams: [Vec<Stream>; 2],
    /// Translations.
    pub tlb: Tlb,
    /// Branches.
    pub branches: Branches,
    /// Stores and barriers.
    pub stores: Stores,
    /// What passes between pairs of cores, at the end.
    pub transfers: Vec<(Relation, Transfer)>,
    /// The same at the beginning. A hypervisor may have moved the CPUs in between.
    pub earlier: Vec<(Relation, Transfer)>,
    /// Share of time that the hypervisor gave to others, from 0 to 1.
    pub stolen: f64,
}

/// Measures this machine. `progress` gets a line for each subject. It takes about two minutes, and up to 1 GiB of memory.
pub fn measure(progress: &mut dyn FnMut(&str)) -> Result<HostDescription, MeasureError> {
    let before = host::cpu_times()?;
    let identity = host::identity()?;
    let topology = Topology::read()?;
    let cores = topology.one_a_core();
    let first = cores.first().copied().unwrap_or(0);
    let bound = Bound::to(first)?;
    progress("clock rate");
    let mut timer = Timer::new();
    let earlier = transfers(&mut timer, progress, &topology)?;
    let most = greatest(&topology, host::available_memory()?);
    progress("latency of caches and memory, huge pages");
    let method = method(&topology);
    let points = curve::sizes(most);
    let huge_curve = curve::measure(&mut timer, &points, method)?;
    progress("latency of shared caches when they are used slowly");
    let shared: Vec<usize> = points
        .iter()
        .copied()
        .filter(|size| *size > method.private && *size <= 2 * method.last)
        .collect();
    let slow_curve = curve::measure(
        &mut timer,
        &shared,
        Method {
            refresh: false,
            ..method
        },
    )?;
    progress("latency of caches and memory, pages of 4 KiB");
    let small_curve = curve::measure(
        &mut timer,
        &points,
        Method {
            pages: Pages::Small,
            ..method
        },
    )?;
    let sizes: Vec<f64> = topology
        .data_caches()
        .iter()
        .map(|cache| cache.size as f64)
        .collect();
    let (levels, far_memory) =
        levels::read(&huge_curve.points, &sizes).ok_or(MeasureError::NoCaches)?;
    let memory = curve::memory(&mut timer)?;
    progress("branches");
    let branches = branch::measure(&mut timer);
    progress("stores and barriers");
    let second = sizes.get(1).map_or(most as f64, |size| size / 2.0);
    let stores = stores::measure(&mut timer, second as usize)?;
    progress("address translation");
    let tlb = tlb::measure(&mut timer)?;
    let far = far(&mut timer, progress, &sizes, &levels, far_memory, most)?;
    let bandwidths = bandwidths(progress, &topology, &levels, &cores, most)?;
    let transfers = transfers(&mut timer, progress, &topology)?;
    drop(bound);
    Ok(HostDescription {
        identity,
        topology,
        clock: timer.clock(),
        levels,
        memory,
        far_memory,
        huge_curve,
        slow_curve,
        small_curve,
        bandwidths,
        parallelism: far.parallelism,
        streams: far.streams,
        tlb,
        branches,
        stores,
        transfers,
        earlier,
        stolen: host::cpu_times()?.stolen_share(before),
    })
}

/// Returns where private and shared caches end.
fn method(topology: &Topology) -> Method {
    let caches = topology.data_caches();
    let private = caches.iter().filter(|cache| topology.sharers(cache) == 1);
    let last = caches.last().map_or(0, |cache| cache.size as usize);
    // On one core no cache is known to be shared, but other virtual machines may use the last one.
    let private = private
        .map(|cache| cache.size as usize)
        .filter(|size| *size < last || caches.len() < 3);
    Method {
        private: private.max().unwrap_or(0),
        last,
        refresh: true,
        pages: Pages::Huge,
    }
}

/// Returns the greatest working set: eight times the last cache within [`WORKING_SETS`], and at most a quarter of the available memory.
fn greatest(topology: &Topology, available: u64) -> usize {
    let last = topology.data_caches().last().map_or(0, |cache| cache.size);
    let (least, most) = WORKING_SETS;
    (last * 8).clamp(least, most).min(available / 4) as usize
}

/// Returns a working set that level `index` answers: between the size of the level inside and the reach of the level.
fn working_set(sizes: &[f64], levels: &[Level], index: usize) -> usize {
    let reach = levels[index].reach.min(sizes[index]);
    let bytes = match index.checked_sub(1) {
        None => sizes[index] / 2.0,
        Some(inner) => (sizes[inner] * reach.max(sizes[inner] * 1.5)).sqrt(),
    };
    (bytes as usize).next_multiple_of(1024)
}

/// What is measured of the last cache and of memory.
struct Far {
    parallelism: [Parallelism; 2],
    streams: [Vec<Stream>; 2],
}

fn far(
    timer: &mut Timer,
    progress: &mut dyn FnMut(&str),
    sizes: &[f64],
    levels: &[Level],
    memory: Reading,
    most: usize,
) -> Result<Far, MeasureError> {
    let mut buffer = Buffer::new(most, Pages::Huge)?;
    let last = levels.len() - 1;
    let near = working_set(sizes, levels, last);
    progress("misses in flight");
    let parallelism = [
        parallelism::measure(timer, &mut buffer, near, true, levels[last].time),
        parallelism::measure(timer, &mut buffer, most, false, memory),
    ];
    progress("prefetchers");
    let streams = [near, most / 2].map(|bytes| prefetch::measure(timer, &mut buffer, bytes));
    Ok(Far {
        parallelism,
        streams,
    })
}

fn transfers(
    timer: &mut Timer,
    progress: &mut dyn FnMut(&str),
    topology: &Topology,
) -> Result<Vec<(Relation, Transfer)>, MeasureError> {
    let mut transfers = Vec::new();
    for (relation, first, other) in topology.pairs() {
        progress(&format!("lines between CPUs {first} and {other}"));
        transfers.push((relation, transfer::measure(timer, other)?));
    }
    Ok(transfers)
}

/// Measures the bandwidth of each cache and of memory, of the first core and of all cores.
fn bandwidths(
    progress: &mut dyn FnMut(&str),
    topology: &Topology,
    levels: &[Level],
    cores: &[usize],
    most: usize,
) -> Result<Vec<Vec<Bandwidth>>, MeasureError> {
    let caches = topology.data_caches();
    let sizes: Vec<f64> = caches.iter().map(|cache| cache.size as f64).collect();
    let mut bandwidths = Vec::new();
    for place in 0..=levels.len() {
        progress(&match caches.get(place) {
            Some(cache) => format!("bandwidth of level {}", cache.level),
            None => "bandwidth of memory".to_owned(),
        });
        let of = |count: usize| match caches.get(place) {
            Some(cache) => {
                let shared = levels[place].reach.min(sizes[place])
                    / topology.sharers(cache).min(count) as f64;
                let inner = if place == 0 {
                    0.0
                } else {
                    sizes[place - 1] * 1.5
                };
                let alone = working_set(&sizes, levels, place) as f64;
                alone.min(shared * 0.75).max(inner) as usize
            }
            None => most / 2 / count.min(4),
        };
        let mut all = vec![bandwidth::measure(&cores[..1], of(1))?];
        if cores.len() > 1 {
            all.push(bandwidth::measure(cores, of(cores.len()))?);
        }
        bandwidths.push(all);
    }
    Ok(bandwidths)
}

#[cfg(test)]
pub use example::example;

#[cfg(test)]
#[path = "description/example.rs"]
mod example;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Measurement;

    #[test]
    fn working_sets_lie_between_two_levels() {
        let zero = Measurement {
            value: 0.0,
            spread: 0.0,
        };
        let time = Reading {
            cycles: zero,
            nanoseconds: zero,
        };
        let sizes = [32768.0, 1048576.0, 33554432.0];
        let levels = [32768.0, 1e6, 8e6].map(|reach| Level { time, reach });
        assert_eq!(working_set(&sizes, &levels, 0), 16 << 10);
        assert!((150_000..300_000).contains(&working_set(&sizes, &levels, 1)));
        assert!((2_000_000..4_000_000).contains(&working_set(&sizes, &levels, 2)));
    }
}
