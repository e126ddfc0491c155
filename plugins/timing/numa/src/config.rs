//! Configuration of main memory: home ranges and latencies.

use serde::{Deserialize, Serialize};

/// Guest-physical address range whose home is one socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HomeRange {
    /// Guest-physical address of the first byte.
    pub start: u64,
    /// Length in bytes.
    pub length: u64,
    /// Index of the home socket, from 0.
    pub socket: u16,
}

/// Latencies in cycles from a requesting socket to a home socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Latencies {
    /// One latency for the requester's own socket, one for all other sockets.
    Uniform {
        /// Cycles if the line's home is the requesting socket.
        local: u32,
        /// Cycles if the line's home is another socket, or if the line has no home.
        remote: u32,
    },
    /// `matrix[from][home]`, a square matrix with one row for each socket. An address without a home costs the maximum of the row.
    Matrix(Vec<Vec<u32>>),
}

impl Latencies {
    /// Returns the latency of the first socket's own memory, and the greatest latency.
    pub fn local_and_remote(&self) -> (u32, u32) {
        match self {
            Latencies::Uniform { local, remote } => (*local, *remote),
            Latencies::Matrix(rows) => {
                let local = rows.first().and_then(|row| row.first()).copied();
                let remote = rows.iter().flatten().max().copied();
                (local.unwrap_or(0), remote.unwrap_or(0))
            }
        }
    }
}

/// Configuration of main memory. The default latencies are those of DDR3 in the reference clusters: local 100 cycles, remote 220 cycles.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NumaConfig {
    /// Number of sockets.
    pub sockets: u16,
    /// Home ranges, in any order, not overlapping. An address in no range is remote to every socket.
    pub ranges: Vec<HomeRange>,
    /// Cycles of a line that is read from memory, or of every reference if there is no cache.
    #[serde(default = "NumaConfig::default_latency")]
    pub latency: Latencies,
    /// Cycles of the write-back of a dirty line. Write-backs are posted, so the default is 0.
    #[serde(default = "NumaConfig::default_write_back")]
    pub write_back: Latencies,
}

/// Reason for which a [`NumaConfig`] is refused. The text begins with the name of the wrong field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NumaConfigError {
    /// The number of sockets is 0.
    #[error("sockets: is 0; a node has at least one socket")]
    NoSocket,
    /// A range of no bytes.
    #[error("ranges[{index}].length: is 0; give the bytes of memory of that range")]
    EmptyRange {
        /// Index of the wrong range in [`NumaConfig::ranges`].
        index: usize,
    },
    /// A range beyond the end of the address space.
    #[error("ranges[{index}].length: {start:#x} + {length:#x} is beyond 2^64")]
    RangeTooLong {
        /// Index of the wrong range in [`NumaConfig::ranges`].
        index: usize,
        /// Guest-physical address of the range's first byte.
        start: u64,
        /// Length of the range in bytes.
        length: u64,
    },
    /// A home socket that does not exist.
    #[error("ranges[{index}].socket: is {socket}, but there are {sockets} sockets, counted from 0")]
    UnknownSocket {
        /// Index of the wrong range in [`NumaConfig::ranges`].
        index: usize,
        /// Home socket of the range.
        socket: u16,
        /// Number of sockets in the configuration.
        sockets: u16,
    },
    /// Two ranges share bytes.
    #[error("ranges[{second}]: overlaps ranges[{first}] at {address:#x}; an address has one home")]
    Overlap {
        /// Index of the range that starts lower.
        first: usize,
        /// Index of the other range.
        second: usize,
        /// Address of the first shared byte.
        address: u64,
    },
    /// A matrix whose number of rows is not the number of sockets.
    #[error("{field}: has {rows} rows; {sockets} sockets need {sockets}")]
    MatrixRows {
        /// Name of the wrong field: `latency` or `write_back`.
        field: &'static str,
        /// Number of rows in the matrix.
        rows: usize,
        /// Number of sockets in the configuration.
        sockets: u16,
    },
    /// A row whose length is not the number of sockets.
    #[error("{field}[{row}]: has {columns} columns; {sockets} sockets need {sockets}")]
    MatrixColumns {
        /// Name of the wrong field: `latency` or `write_back`.
        field: &'static str,
        /// Index of the row.
        row: usize,
        /// Number of columns in the row.
        columns: usize,
        /// Number of sockets in the configuration.
        sockets: u16,
    },
    /// A latency above 1000000 cycles: the sum for one reference might not fit.
    #[error("{field}: has a latency of {cycles} cycles; at most 1000000 are modelled")]
    Latency {
        /// Name of the wrong field: `latency` or `write_back`.
        field: &'static str,
        /// Largest latency in the field.
        cycles: u32,
    },
    /// A vCPU on a socket that the configuration of memory does not have.
    #[error("vcpus[{vcpu}].socket: is {socket}, but memory has {sockets} sockets, counted from 0")]
    VcpuSocket {
        /// Index of the vCPU.
        vcpu: usize,
        /// Socket of the vCPU.
        socket: u16,
        /// Number of sockets in the configuration.
        sockets: u16,
    },
    /// A line size at which the engine cannot split references.
    #[error("line: is {line}; give a power of two from 32 to 4096 bytes")]
    Line {
        /// Refused line size in bytes.
        line: u32,
    },
}

impl NumaConfig {
    /// Returns a configuration with `bytes` bytes of memory for each socket, contiguous from address 0, with the default latencies.
    pub fn contiguous(sockets: u16, bytes: u64) -> NumaConfig {
        NumaConfig {
            sockets,
            ranges: (0..sockets)
                .map(|socket| HomeRange {
                    start: u64::from(socket) * bytes,
                    length: bytes,
                    socket,
                })
                .collect(),
            latency: Self::default_latency(),
            write_back: Self::default_write_back(),
        }
    }

    /// Returns the latencies of DDR3 in the reference clusters: local 100 cycles, remote 220 cycles.
    pub fn default_latency() -> Latencies {
        Latencies::Uniform {
            local: 100,
            remote: 220,
        }
    }

    /// Returns the latencies of posted writes, which are 0.
    pub fn default_write_back() -> Latencies {
        Latencies::Uniform {
            local: 0,
            remote: 0,
        }
    }

    /// Returns the faults of the configuration, grouped by field; empty if there is none. A range that overlaps several ranges is reported
    /// once.
    pub fn faults(&self) -> Vec<NumaConfigError> {
        let mut faults = Vec::new();
        if self.sockets == 0 {
            faults.push(NumaConfigError::NoSocket);
        }
        for (index, range) in self.ranges.iter().enumerate() {
            if range.length == 0 {
                faults.push(NumaConfigError::EmptyRange { index });
            } else if range.start.checked_add(range.length - 1).is_none() {
                faults.push(NumaConfigError::RangeTooLong {
                    index,
                    start: range.start,
                    length: range.length,
                });
            }
            if range.socket >= self.sockets {
                faults.push(NumaConfigError::UnknownSocket {
                    index,
                    socket: range.socket,
                    sockets: self.sockets,
                });
            }
        }
        let mut order: Vec<usize> = (0..self.ranges.len()).collect();
        order.sort_by_key(|&index| self.ranges[index].start);
        // The range that reaches furthest of those before.
        let mut furthest: Option<usize> = None;
        for index in order {
            let range = self.ranges[index];
            if range.length == 0 {
                continue;
            }
            let last = |range: HomeRange| range.start.saturating_add(range.length - 1);
            if let Some(before) = furthest
                && last(self.ranges[before]) >= range.start
            {
                faults.push(NumaConfigError::Overlap {
                    first: before,
                    second: index,
                    address: range.start,
                });
            }
            if furthest.is_none_or(|before| last(self.ranges[before]) < last(range)) {
                furthest = Some(index);
            }
        }
        for (field, latencies) in [("latency", &self.latency), ("write_back", &self.write_back)] {
            let most = match latencies {
                Latencies::Uniform { local, remote } => *local.max(remote),
                Latencies::Matrix(rows) => rows.iter().flatten().copied().max().unwrap_or(0),
            };
            if most > 1_000_000 {
                faults.push(NumaConfigError::Latency {
                    field,
                    cycles: most,
                });
            }
            let Latencies::Matrix(rows) = latencies else {
                continue;
            };
            if rows.len() != usize::from(self.sockets) {
                faults.push(NumaConfigError::MatrixRows {
                    field,
                    rows: rows.len(),
                    sockets: self.sockets,
                });
            }
            for (row, columns) in rows.iter().enumerate() {
                if columns.len() != usize::from(self.sockets) {
                    faults.push(NumaConfigError::MatrixColumns {
                        field,
                        row,
                        columns: columns.len(),
                        sockets: self.sockets,
                    });
                }
            }
        }
        faults
    }
}
