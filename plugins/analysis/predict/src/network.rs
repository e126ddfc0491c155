//! Costs of messages at their ends and in the network.
//!
//! Two models of the transfer. *LogGP* (Alexandrov et al., 1995): the sender is busy for its overhead o(n), the message enters the
//! network and arrives after L + n G; the sender's next message may enter max(g, n G) after it, where g is the gap. *Post* (Padaryan's
//! ParJava, 2005): Time(Post(n)) = n / bandwidth + overhead(n), overhead(0) = latency; the message reaches the receiver at the end
//! of its Post, and until then the sender is busy, unless a progress thread posts for it.

use serde::Serialize;

/// Most that one cost of a message may be, picoseconds: 20 hours. A clock can add many such costs without overflow.
pub(crate) const MOST_COST: u64 = 1 << 56;

/// Returns a time in picoseconds, rounded to a whole number, at most `MOST_COST`.
pub(crate) fn picoseconds(time: f64) -> u64 {
    (time.round() as u64).min(MOST_COST)
}

/// A time as a function of a message's size: straight lines between points, constant before the first and after the last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Table {
    /// Bytes and picoseconds, bytes ascending. Empty is 0 throughout.
    pub points: Vec<(u64, u64)>,
}

impl Table {
    /// Returns a table with one time for every size.
    pub fn constant(time: u64) -> Table {
        Table {
            points: if time == 0 {
                Vec::new()
            } else {
                vec![(0, time)]
            },
        }
    }

    /// Returns the time at a size, picoseconds.
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

/// Model of the transfer of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Model {
    /// LogGP model: the sender is free while the message is in transit.
    LogGp,
    /// Post: the sender is busy until the message has arrived.
    Post,
}

/// A path between two ranks: through the network, or within a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Channel {
    /// Model of the transfer of messages.
    pub model: Model,
    /// Latency in picoseconds.
    pub latency: u64,
    /// Time of a service message, which is a large message's request or its permission, picoseconds; `None` for the latency.
    pub service_latency: Option<u64>,
    /// Picoseconds per byte: the reciprocal of the bandwidth.
    pub per_byte: f64,
    /// Bytes that go over the wire with each message, beyond its own.
    pub envelope: u64,
    /// Least time between the beginnings of two messages of one sender, or with contention of one node, picoseconds.
    pub gap: u64,
    /// Processor time of the sender, by size; in the post model, overhead(n) beyond the latency.
    pub send_overhead: Table,
    /// Processor time of the receiver, by size.
    pub receive_overhead: Table,
    /// Receive overhead of messages that came before the receiver waited for them; `None` if it equals `receive_overhead`.
    pub buffered_overhead: Option<Table>,
    /// Receive overhead of messages that come while the receiver processes another message; `None` for the larger of the two overheads
    /// above.
    pub queued_overhead: Option<Table>,
    /// Time of the sender to pack columns of doubles, by size.
    pub pack_overhead: Table,
    /// Time of the receiver to unpack columns of doubles, by size.
    pub unpack_overhead: Table,
    /// Frames into which messages are divided on the wire; `None` if each message is one piece.
    pub frames: Option<Frames>,
    /// Picoseconds per byte of a sender's processor for the data of a message above the eager limit.
    pub send_per_byte: f64,
    /// Processor time of a sender for an acknowledgement that comes while the sender sends, picoseconds.
    pub acknowledgement_overhead: u64,
    /// Largest size of an eager message in bytes, which is sent without asking the receiver first.
    pub eager_limit: u64,
    /// Picoseconds per byte to copy a message that came before its receive.
    pub copy_per_byte: f64,
}

impl Channel {
    /// Returns a path of this latency (picoseconds) and bandwidth (bytes per second; 0 for no limit), without overheads.
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
            queued_overhead: None,
            pack_overhead: Table::default(),
            unpack_overhead: Table::default(),
            frames: None,
            send_per_byte: 0.0,
            acknowledgement_overhead: 0,
            eager_limit: 65536,
            copy_per_byte: 0.0,
        }
    }

    /// Returns a channel on which communication costs nothing.
    pub fn ideal() -> Channel {
        Channel {
            eager_limit: u64::MAX,
            ..Channel::new(Model::LogGp, 0, 0)
        }
    }

    /// Returns a channel on which all costs of messages take so much of their time. Free messages ask no receiver.
    pub fn scaled(&self, part: f64) -> Channel {
        let time = |time: u64| picoseconds(time as f64 * part);
        let table = |table: &Table| Table {
            points: (table.points.iter())
                .map(|&(bytes, of)| (bytes, time(of)))
                .collect(),
        };
        Channel {
            model: self.model,
            latency: time(self.latency),
            service_latency: self.service_latency.map(time),
            per_byte: self.per_byte * part,
            envelope: self.envelope,
            gap: time(self.gap),
            send_overhead: table(&self.send_overhead),
            receive_overhead: table(&self.receive_overhead),
            buffered_overhead: self.buffered_overhead.as_ref().map(table),
            queued_overhead: self.queued_overhead.as_ref().map(table),
            pack_overhead: table(&self.pack_overhead),
            unpack_overhead: table(&self.unpack_overhead),
            frames: self.frames,
            send_per_byte: self.send_per_byte * part,
            acknowledgement_overhead: time(self.acknowledgement_overhead),
            eager_limit: match part > 0.0 {
                true => self.eager_limit,
                false => u64::MAX,
            },
            copy_per_byte: self.copy_per_byte * part,
        }
    }

    /// Returns the costs of a message for its receiver. A message of several frames is received frame by frame. Once such a message has
    /// come, an awaiting receiver still does the work that it could not do while the message came, and at least that of one full frame.
    pub fn receive(&self, bytes: u64) -> ReceiveCost {
        let whole = self.receive_overhead.at(bytes);
        let or_whole = |table: &Option<Table>| table.as_ref().map_or(whole, |t| t.at(bytes));
        let awaited = match self.frames {
            None => whole,
            Some(_) => {
                let last = self.receive_overhead.at(bytes.min(self.first_frame()));
                let left = whole.saturating_sub(self.wire_after_first(bytes));
                left.max(last.min(whole))
            }
        };
        let buffered = or_whole(&self.buffered_overhead);
        let queued = self.queued_overhead.as_ref();
        ReceiveCost {
            awaited,
            buffered,
            queued: queued.map_or(whole.max(buffered), |table| table.at(bytes)),
        }
    }

    /// Returns the processor time, in picoseconds, that one frame of a message of `bytes` costs a receiver that processes another message.
    pub fn queued_frame(&self, bytes: u64) -> u64 {
        let within = bytes.min(self.first_frame());
        // A table with points for one frame and for several would interpolate between them, so the last point within one frame counts.
        let point = self.queued_overhead.as_ref().and_then(|table| {
            let mut points = table.points.iter().rev();
            points.find(|&&(size, _)| size <= within)
        });
        point.map_or_else(|| self.receive(within).queued, |&(_, time)| time)
    }

    /// Returns the bytes of a message that its first frame holds.
    fn first_frame(&self) -> u64 {
        self.frames.map_or(u64::MAX, |frames| {
            frames.payload.saturating_sub(self.envelope)
        })
    }

    /// Returns the time on the wire of what follows a message's first frame, picoseconds.
    pub fn wire_after_first(&self, bytes: u64) -> u64 {
        self.wire(bytes) - self.wire(bytes.min(self.first_frame()))
    }

    /// Returns the time that a service message takes, picoseconds.
    pub fn service(&self) -> u64 {
        self.service_latency.unwrap_or(self.latency)
    }

    /// Returns the bytes on the wire of a message of `bytes`.
    pub fn bytes(&self, bytes: u64) -> u64 {
        let all = bytes.saturating_add(self.envelope);
        match self.frames {
            None => all,
            Some(frames) => {
                let number = self.number_of_frames(bytes);
                let headers = number.saturating_mul(frames.header);
                all.saturating_add(headers)
            }
        }
    }

    /// Returns the number of frames of a message, at least 1.
    pub fn number_of_frames(&self, bytes: u64) -> u64 {
        let all = bytes.saturating_add(self.envelope);
        let frames = self.frames.map(|frames| all.div_ceil(frames.payload));
        frames.unwrap_or(1).max(1)
    }

    /// Returns the time on the wire, picoseconds.
    pub fn wire(&self, bytes: u64) -> u64 {
        picoseconds(self.bytes(bytes) as f64 * self.per_byte)
    }

    /// Returns the time on the wire of the first `number` frames of a message, picoseconds. All frames but the message's last are full.
    pub fn wire_of_frames(&self, bytes: u64, number: u64) -> u64 {
        match self.frames {
            Some(frames) if number < self.number_of_frames(bytes) => {
                let full = frames.payload.saturating_add(frames.header);
                picoseconds(full.saturating_mul(number) as f64 * self.per_byte)
            }
            _ if number == 0 => 0,
            _ => self.wire(bytes),
        }
    }

    /// Returns the time from when a message's last byte has left until it has arrived, picoseconds: the latency, in the post model with the
    /// overhead.
    pub fn beyond_wire(&self, bytes: u64) -> u64 {
        match self.model {
            Model::LogGp => self.latency,
            Model::Post => self.latency + self.send_overhead.at(bytes),
        }
    }

    /// Returns the time to copy a buffered message, picoseconds.
    pub fn copy(&self, bytes: u64) -> u64 {
        picoseconds(bytes as f64 * self.copy_per_byte)
    }
}

/// Processor time that a completed message costs its receiver, picoseconds, for each case of its arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReceiveCost {
    /// Cost if the receive waited for the message.
    pub awaited: u64,
    /// Cost if the message was there before the receive.
    pub buffered: u64,
    /// Cost if the message came while the rank processed another one.
    pub queued: u64,
}

impl ReceiveCost {
    /// Returns these costs with `time` more, in each case of arrival.
    pub fn and(self, time: u64) -> ReceiveCost {
        ReceiveCost {
            awaited: self.awaited + time,
            buffered: self.buffered + time,
            queued: self.queued + time,
        }
    }
}

/// Frames of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Frames {
    /// Most bytes of a message and its envelope in a frame, at least 1.
    pub payload: u64,
    /// Bytes on the wire beyond the payload of each frame: headers, checksum, gap.
    pub header: u64,
    /// Number of frames after which the receiver sends an acknowledgement, a frame of only a header; 0 for none.
    pub acknowledge: u64,
}

/// Returns picoseconds per byte at a bandwidth in bytes per second; 0 for 0, which means no limit.
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
    fn frames_and_headers_take_time_on_the_wire() {
        let mut channel = Channel::new(Model::LogGp, 0, 1_000_000_000);
        (channel.envelope, channel.frames) = (
            24,
            Some(Frames {
                payload: 1448,
                header: 90,
                acknowledge: 0,
            }),
        );
        // At 1 GB/s a byte takes a nanosecond.
        let wires = [0, 1424, 1425, 8192].map(|bytes| channel.wire(bytes) / 1000);
        assert_eq!(wires, [114, 1538, 1629, 8192 + 24 + 6 * 90]);
    }

    #[test]
    fn frames_are_received_while_others_come() {
        let mut channel = Channel::new(Model::LogGp, 0, 1_000_000_000);
        channel.frames = Some(Frames {
            payload: 1000,
            header: 0,
            acknowledge: 0,
        });
        channel.receive_overhead = Table {
            points: vec![(0, 500_000), (1000, 500_000), (9000, 8_500_000)],
        };
        // The frames take 9 us, of which the first takes 1. What the receiver cannot process in the other 8 us is left.
        assert_eq!(channel.receive(9000).awaited, 500_000);
        channel.per_byte = 500.0;
        assert_eq!(channel.receive(9000).awaited, 4_500_000);
        assert_eq!(channel.receive(9000).queued, 8_500_000);
        assert_eq!(channel.receive(1000).awaited, 500_000);
        channel.frames = None;
        assert_eq!(channel.receive(9000).awaited, 8_500_000);
    }

    #[test]
    fn bytes_take_the_reciprocal_of_the_bandwidth() {
        let myrinet = Channel::new(Model::Post, 30_000_000, 200_000_000);
        assert_eq!(myrinet.wire(1_000_000), 5_000_000_000);
        assert_eq!(Channel::ideal().wire(1 << 40), 0);
    }
}
