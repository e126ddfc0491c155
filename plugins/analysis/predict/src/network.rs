//! What messages cost at their ends and on the way.
//!
//! Two models of the transfer. *LogGP* (Alexandrov et al., 1995): the sender is busy for its overhead o(n), the message enters the
//! network and arrives after L + n G; the next may follow after the gap g, at the earliest when n G have passed. *Post* (Padaryan's
//! ParJava, 2005): Time(Post(n)) = n / bandwidth + overhead(n), overhead(0) = latency; the message reaches the receiver at the end
//! of its Post, and until then the sender is busy, unless a progress thread posts for it.

use serde::Serialize;

/// A time that depends on the size: straight lines between points, constant before the first and after the last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Table {
    /// Bytes and picoseconds, bytes ascending. Empty is 0 throughout.
    pub points: Vec<(u64, u64)>,
}

impl Table {
    /// The same time for every size.
    pub fn constant(time: u64) -> Table {
        Table {
            points: if time == 0 {
                Vec::new()
            } else {
                vec![(0, time)]
            },
        }
    }

    /// The time at a size, picoseconds.
    pub fn at(&self, bytes: u64) -> u64 {
        let (Some(&first), Some(&last)) = (self.points.first(), self.points.last()) else {
            return 0;
        };
        if bytes <= first.0 {
            return first.1;
        }
        if bytes >= last.0 {
            return last.1;
        }
        let after = self.points.partition_point(|&(at, _)| at <= bytes);
        let ((from, low), (to, high)) = (self.points[after - 1], self.points[after]);
        let part = (bytes - from) as f64 / (to - from) as f64;
        (low as f64 + (high as f64 - low as f64) * part).round() as u64
    }
}

/// How the transfer is modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Model {
    /// LogGP.
    LogGp,
    /// Post: the sender is busy until the message has arrived.
    Post,
}

/// A path between two ranks: through the network, or within a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Channel {
    /// How the transfer is modelled.
    pub model: Model,
    /// Latency, picoseconds.
    pub latency: u64,
    /// Time that a service message takes, with which a large message asks or is let come, picoseconds; none for the latency.
    pub service_latency: Option<u64>,
    /// Picoseconds per byte: the reciprocal of the bandwidth.
    pub per_byte: f64,
    /// Bytes that go over the wire with each message, beyond its own.
    pub envelope: u64,
    /// Least time between two messages of one sender, picoseconds.
    pub gap: u64,
    /// The sender's processor, by size; in the post model, overhead(n) beyond the latency.
    pub send_overhead: Table,
    /// The receiver's processor, by size.
    pub receive_overhead: Table,
    /// The same for messages that were there before the receiver waited for them; none for no difference.
    pub buffered_overhead: Option<Table>,
    /// Largest message that is sent without asking first, bytes.
    pub eager_limit: u64,
    /// Picoseconds per byte to copy a message that was there before its receive.
    pub copy_per_byte: f64,
}

impl Channel {
    /// A path of this latency (picoseconds) and bandwidth (bytes per second; 0 for no limit), without overheads.
    pub fn new(model: Model, latency: u64, bandwidth: u64) -> Channel {
        Channel {
            model,
            latency,
            service_latency: None,
            per_byte: per_byte(bandwidth),
            envelope: 0,
            gap: 0,
            send_overhead: Table::default(),
            receive_overhead: Table::default(),
            buffered_overhead: None,
            eager_limit: 65536,
            copy_per_byte: 0.0,
        }
    }

    /// Nothing costs anything.
    pub fn ideal() -> Channel {
        Channel {
            eager_limit: u64::MAX,
            ..Channel::new(Model::LogGp, 0, 0)
        }
    }

    /// What a message costs its receiver.
    pub fn receive(&self, bytes: u64) -> Receipt {
        let awaited = self.receive_overhead.at(bytes);
        let buffered = self.buffered_overhead.as_ref();
        Receipt {
            awaited,
            buffered: buffered.map_or(awaited, |table| table.at(bytes)),
        }
    }

    /// Time that a service message takes, picoseconds.
    pub fn service(&self) -> u64 {
        self.service_latency.unwrap_or(self.latency)
    }

    /// Bytes on the wire.
    pub fn bytes(&self, bytes: u64) -> u64 {
        bytes.saturating_add(self.envelope)
    }

    /// Time on the wire, picoseconds.
    pub fn wire(&self, bytes: u64) -> u64 {
        (self.bytes(bytes) as f64 * self.per_byte).round() as u64
    }

    /// Time from when a message's last byte has left until it has arrived, picoseconds: the latency, in the post model with the overhead.
    pub fn beyond_wire(&self, bytes: u64) -> u64 {
        match self.model {
            Model::LogGp => self.latency,
            Model::Post => self.latency + self.send_overhead.at(bytes),
        }
    }

    /// Time to copy a buffered message, picoseconds.
    pub fn copy(&self, bytes: u64) -> u64 {
        (bytes as f64 * self.copy_per_byte).round() as u64
    }
}

/// Processor time that a completion costs, picoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// If it was waited for.
    pub awaited: u64,
    /// If it was there before.
    pub buffered: u64,
}

/// Picoseconds per byte at a bandwidth in bytes per second; 0 for 0, which stands for no limit.
pub fn per_byte(bandwidth: u64) -> f64 {
    if bandwidth == 0 {
        0.0
    } else {
        1e12 / bandwidth as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_straight_between_their_points() {
        let table = Table {
            points: vec![(0, 100), (1000, 200), (2000, 1200)],
        };
        let times = [0, 500, 1000, 1500, 2000, 9999].map(|bytes| table.at(bytes));
        assert_eq!(times, [100, 150, 200, 700, 1200, 1200]);
        assert_eq!(Table::default().at(5), 0);
        assert_eq!(Table::constant(7).at(5), 7);
    }

    #[test]
    fn bytes_take_the_reciprocal_of_the_bandwidth() {
        let myrinet = Channel::new(Model::Post, 30_000_000, 200_000_000);
        assert_eq!(myrinet.wire(1_000_000), 5_000_000_000);
        assert_eq!(Channel::ideal().wire(1 << 40), 0);
    }
}
