//! Bandwidth of a socket's memory, which all vCPUs of the node share.
//!
//! Each line that comes from or goes to the memory costs its vCPU a number of cycles, the *toll*. No other work hides the toll. It is zero as
//! long as vCPUs together transfer less than the bandwidth. At the end of each epoch the toll changes by half of what is missing for vCPUs that
//! transfer lines at an even rate, so that the rate approaches the bandwidth from above.

use nodescope_plugin_api::{MemoryTiming, MemoryTimingModel, MissRef};

/// Least length of an epoch, in cycles.
const EPOCH: u64 = 1 << 14;
/// Epochs behind which the rate of transfers is not known: models were detached, or nobody needed memory.
const FORGETS: u64 = 4;
/// Fractions of a cycle that tolls are counted in, as a power of two.
const FRACTION: u32 = 8;
/// Maximum toll, in cycles.
const MOST: u64 = 1 << 14;

/// Memory whose sockets have a bandwidth.
pub struct SharedBandwidth<M> {
    memory: M,
    /// Cycles of a line at the full bandwidth, with [`FRACTION`] bits of fraction.
    least: u64,
    sockets: Vec<Controller>,
}

/// The toll of one socket's memory.
#[derive(Clone, Copy, Debug, Default)]
struct Controller {
    /// Clock at which the epoch began.
    start: u64,
    /// Lines of the epoch.
    lines: u64,
    /// vCPUs that transferred lines in the epoch: a bit for each, modulo 64.
    vcpus: u64,
    /// The toll of a line.
    toll: u64,
    /// What is left of tolls below one cycle.
    rest: u64,
}

impl<M: MemoryTimingModel> SharedBandwidth<M> {
    /// Gives each of so many sockets of a memory a bandwidth in bytes per second. The clock has `hertz` cycles per second, a line `line` bytes.
    pub fn new(memory: M, sockets: usize, bandwidth: u64, hertz: u64, line: u32) -> Self {
        let cycles = (u128::from(line) * u128::from(hertz)) << FRACTION;
        let least = cycles / u128::from(bandwidth.max(1));
        Self {
            memory,
            least: least.min(u128::from(MOST << FRACTION)) as u64,
            sockets: vec![Controller::default(); sockets],
        }
    }
}

impl Controller {
    /// Counts a line, and returns its toll in whole cycles. `least` is the time of a line at the full bandwidth.
    fn transfer(&mut self, now: u64, vcpu: u16, least: u64) -> u32 {
        let elapsed = now.saturating_sub(self.start);
        if elapsed >= EPOCH {
            if elapsed < FORGETS * EPOCH {
                self.adapt(elapsed, least);
            }
            self.start = now;
            self.lines = 0;
            self.vcpus = 0;
        }
        self.lines += 1;
        self.vcpus |= 1 << (vcpu % 64);
        let toll = self.toll + self.rest;
        self.rest = toll & ((1 << FRACTION) - 1);
        (toll >> FRACTION) as u32
    }

    /// Changes the toll at the end of an epoch of so many cycles.
    fn adapt(&mut self, elapsed: u64, least: u64) {
        let vcpus = u64::from(self.vcpus.count_ones());
        // The time of a line for each vCPU, as it was and as it must be.
        let was = vcpus * (elapsed << FRACTION) / self.lines.max(1);
        let must = vcpus * least;
        self.toll = match must.checked_sub(was) {
            Some(missing) => (self.toll + missing.div_ceil(2)).min(MOST << FRACTION),
            None => self.toll.saturating_sub((was - must).div_ceil(2)),
        };
    }
}

impl<M: MemoryTimingModel> MemoryTimingModel for SharedBandwidth<M> {
    fn request(&mut self, miss: &MissRef) -> MemoryTiming {
        let timing = self.memory.request(miss);
        let home = match timing.local {
            true => miss.socket,
            false => self.memory.home(miss.line),
        };
        let least = self.least;
        let controller = self.sockets.get_mut(usize::from(home));
        let toll = controller.map_or(0, |of| of.transfer(miss.now, miss.vcpu, least));
        MemoryTiming { toll, ..timing }
    }

    fn home(&self, physical: u64) -> u16 {
        self.memory.home(physical)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time of all lines where each of some vCPUs needs `base` cycles for a line beside the toll. Returns cycles per line of all together.
    fn streams(vcpus: u16, base: u64, least: u64) -> f64 {
        let mut controller = Controller::default();
        let mut clocks = vec![0_u64; usize::from(vcpus)];
        let mut from = (0, 0);
        for line in 0..200_000_u64 {
            // vCPUs take turns of 5,000 cycles.
            let vcpu = (0..clocks.len())
                .min_by_key(|&v| clocks[v] / 5_000)
                .unwrap();
            let toll = controller.transfer(clocks[vcpu], vcpu as u16, least << FRACTION);
            clocks[vcpu] += base + u64::from(toll);
            if line == 100_000 {
                from = (line, clocks[vcpu]);
            }
        }
        let end = clocks.iter().max().unwrap();
        (end - from.1) as f64 / (200_000 - from.0) as f64
    }

    #[test]
    fn streams_get_the_bandwidth_together() {
        for (vcpus, base, least) in [
            (1, 30, 40),
            (2, 30, 20),
            (8, 24, 10),
            (16, 20, 5),
            (64, 25, 3),
        ] {
            let each = streams(vcpus, base, least);
            let error = each / least as f64 - 1.0;
            assert!(
                error.abs() < 0.03,
                "{vcpus} vCPUs: {each} cycles, not {least}"
            );
        }
    }

    #[test]
    fn streams_below_the_bandwidth_pay_no_toll() {
        for (vcpus, base, least) in [(1, 30, 20), (2, 30, 14), (8, 80, 9)] {
            let each = streams(vcpus, base, least);
            assert!(
                (each / (base as f64 / f64::from(vcpus)) - 1.0).abs() < 0.02,
                "{each}"
            );
        }
    }
}
