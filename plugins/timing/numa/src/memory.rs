//! Home look-up and latencies.

use nodescope_plugin_api::{MemoryTiming, MemoryTimingModel, MissRef, VcpuPlace};

use crate::{Latencies, NumaConfig, NumaConfigError};

/// Range of addresses with one home: the range that was looked up last. The home is an index of [`Numa::latency`].
#[derive(Clone, Copy, Debug)]
struct RecentHome {
    start: u64,
    last: u64,
    home: usize,
}

#[derive(Clone, Copy, Debug)]
struct Range {
    start: u64,
    last: u64,
    socket: u16,
}

/// Main memory behind the caches.
#[derive(Clone, Debug)]
pub struct Numa {
    sockets: usize,
    ranges: Vec<Range>,
    /// Latencies in cycles: `[write_back][from * (sockets + 1) + home]`. The last column of a row is for addresses without a home.
    latency: [Vec<u32>; 2],
    /// Range of the latest look-up. The home `sockets` means that the addresses have no home.
    recent_home: RecentHome,
}

impl Numa {
    /// Answer of [`MemoryTimingModel::home`] for an address in no range. The address is remote to every socket.
    pub const NO_HOME: u16 = u16::MAX;

    /// Makes a memory from a configuration. An error is the configuration's first fault ([`NumaConfig::faults`] lists all).
    pub fn new(config: &NumaConfig) -> Result<Numa, NumaConfigError> {
        if let Some(fault) = config.faults().into_iter().next() {
            return Err(fault);
        }
        let sockets = usize::from(config.sockets);
        let mut ranges: Vec<Range> = config
            .ranges
            .iter()
            .map(|range| Range {
                start: range.start,
                last: range.start + (range.length - 1),
                socket: range.socket,
            })
            .collect();
        ranges.sort_by_key(|range| range.start);
        Ok(Numa {
            sockets,
            ranges,
            latency: [
                table(&config.latency, sockets),
                table(&config.write_back, sockets),
            ],
            // An empty range.
            recent_home: RecentHome {
                start: 1,
                last: 0,
                home: 0,
            },
        })
    }

    /// Returns the number of sockets.
    pub fn sockets(&self) -> usize {
        self.sockets
    }

    /// Checks that every vCPU is on a socket that this memory has. Call this function before the first request.
    pub fn serves(&self, places: &[VcpuPlace]) -> Result<(), NumaConfigError> {
        match places
            .iter()
            .position(|place| usize::from(place.socket) >= self.sockets)
        {
            Some(vcpu) => Err(NumaConfigError::VcpuSocket {
                vcpu,
                socket: places[vcpu].socket,
                sockets: self.sockets as u16,
            }),
            None => Ok(()),
        }
    }

    fn find(&self, physical: u64) -> Option<usize> {
        let after = self.ranges.partition_point(|range| range.start <= physical);
        let index = after.checked_sub(1)?;
        (physical <= self.ranges[index].last).then_some(index)
    }
}

fn table(latencies: &Latencies, sockets: usize) -> Vec<u32> {
    let mut table = Vec::with_capacity(sockets * (sockets + 1));
    for from in 0..sockets {
        match latencies {
            Latencies::Uniform { local, remote } => {
                table.extend((0..sockets).map(|home| if home == from { *local } else { *remote }));
                table.push(*remote);
            }
            Latencies::Matrix(rows) => {
                table.extend(&rows[from]);
                table.push(rows[from].iter().copied().max().unwrap_or(0));
            }
        }
    }
    table
}

impl MemoryTimingModel for Numa {
    /// # Panics
    /// If `miss.socket` is not below [`Numa::sockets`].
    fn request(&mut self, miss: &MissRef) -> MemoryTiming {
        let recent = &self.recent_home;
        if miss.line < recent.start || miss.line > recent.last {
            self.recent_home = match self.find(miss.line).map(|index| self.ranges[index]) {
                Some(range) => RecentHome {
                    start: range.start,
                    last: range.last,
                    home: range.socket.into(),
                },
                // The range is only this line's address: neighbouring addresses may have a home.
                None => RecentHome {
                    start: miss.line,
                    last: miss.line,
                    home: self.sockets,
                },
            };
        }
        let home = self.recent_home.home;
        let from = usize::from(miss.socket);
        MemoryTiming {
            latency: self.latency[usize::from(miss.write_back)][from * (self.sockets + 1) + home],
            local: home == from,
            toll: 0,
        }
    }

    fn home(&self, physical: u64) -> u16 {
        self.find(physical)
            .map_or(Self::NO_HOME, |index| self.ranges[index].socket)
    }
}
