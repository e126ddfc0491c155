//! The timeline of calls as text in a page: a header in JSON and columns of numbers, compressed, in base64.
//!
//! The contents before compression are the header's length (a variable-length integer), the header, and the columns one after the other.
//! Each column has a number for every call, lane by lane. The columns of messages, which follow, have a number for every message. Numbers
//! are variable-length integers: seven bits a byte, lowest first, the highest bit set on all bytes but the last.

use std::collections::HashMap;
use std::io::Write;

use flate2::Compression;
use flate2::write::DeflateEncoder;
use nodescope_hypercall::printable;
use serde::Serialize;

use super::{CallTimeline, TimedCall};
use crate::WindowReport;
use crate::mpi::group;

/// The header, as the page's script reads it. Times are picoseconds since the program's first entry into MPI.
#[derive(Serialize)]
struct Header {
    from_ps: u64,
    span_ps: u64,
    merged_below_ps: u64,
    lanes: Vec<LaneHeader>,
    kinds: Vec<KindHeader>,
    messages: usize,
    windows: Vec<WindowHeader>,
}

#[derive(Serialize)]
struct LaneHeader {
    rank: u32,
    thread: usize,
    calls: usize,
}

#[derive(Serialize)]
struct KindHeader {
    function: &'static str,
    /// Index in [`crate::mpi::GROUPS`].
    group: usize,
    /// The call site; empty if unknown.
    site: String,
}

#[derive(Serialize)]
struct WindowHeader {
    name: String,
    from: u64,
    to: u64,
}

/// A column: what it says of a call.
type Column = fn(&TimedCall) -> u64;

/// Columns of the calls after the first one, which has the time from the end of the call before.
const COLUMNS: [Column; 9] = [
    |call| call.exit - call.entry,
    |call| call.exit - call.entry - call.inside,
    |call| call.waited,
    |call| call.kind.into(),
    |call| call.calls,
    |call| call.sent_bytes,
    |call| call.received_bytes,
    |call| call.to.map_or(0, |rank| u64::from(rank) + 1),
    |call| call.from.map_or(0, |rank| u64::from(rank) + 1),
];

/// Returns the timeline's data as base64 text.
pub(super) fn encode(timeline: &CallTimeline, windows: &[WindowReport]) -> String {
    let header = serde_json::to_vec(&header(timeline, windows)).unwrap_or_default();
    let mut bytes = Vec::new();
    put(&mut bytes, header.len() as u64);
    bytes.extend(header);
    for lane in &timeline.lanes {
        let mut end = timeline.from_ps;
        for call in &lane.calls {
            put(&mut bytes, call.entry.saturating_sub(end));
            end = call.exit;
        }
    }
    for column in COLUMNS {
        for call in timeline.lanes.iter().flat_map(|lane| &lane.calls) {
            put(&mut bytes, column(call));
        }
    }
    let messages = numbered_messages(timeline);
    let mut before = 0;
    for &(send, _) in &messages {
        put(&mut bytes, send - before);
        before = send;
    }
    let mut before = 0;
    for &(_, receive) in &messages {
        put(&mut bytes, zigzag(receive as i64 - before));
        before = receive as i64;
    }
    // Writing to a vector cannot fail.
    let mut deflate = DeflateEncoder::new(Vec::new(), Compression::best());
    let _ = deflate.write_all(&bytes);
    base64(&deflate.finish().unwrap_or_default())
}

fn header(timeline: &CallTimeline, windows: &[WindowReport]) -> Header {
    let kind = |&(function, site): &(nodescope_hypercall::Function, nodescope_trace::Site)| {
        let site = match site.address {
            0 => String::new(),
            _ => printable(&timeline.names.text(site)).into_owned(),
        };
        KindHeader {
            function: function.name(),
            group: group(function),
            site,
        }
    };
    let since = |ps: u64| ps.saturating_sub(timeline.from_ps);
    Header {
        from_ps: timeline.from_ps,
        span_ps: since(timeline.to_ps),
        merged_below_ps: timeline.merged_below_ps,
        lanes: (timeline.lanes.iter())
            .map(|lane| LaneHeader {
                rank: lane.rank,
                thread: lane.thread,
                calls: lane.calls.len(),
            })
            .collect(),
        kinds: timeline.kinds.iter().map(kind).collect(),
        messages: numbered_messages(timeline).len(),
        windows: (windows.iter())
            .map(|window| WindowHeader {
                name: printable(&window.name).into_owned(),
                from: since(window.measured_from_ps),
                to: since(window.closed_ps),
            })
            .filter(|window| window.from < window.to)
            .collect(),
    }
}

/// Returns the numbers of the calls that sent and that received each message, in ascending order. Calls are numbered lane by lane.
fn numbered_messages(timeline: &CallTimeline) -> Vec<(u64, u64)> {
    let mut before = 0;
    let mut lanes: HashMap<u32, Vec<(u64, &[TimedCall])>> = HashMap::new();
    for lane in &timeline.lanes {
        (lanes.entry(lane.rank).or_default()).push((before, &lane.calls));
        before += lane.calls.len() as u64;
    }
    let number = |rank: u32, time: u64| {
        lanes.get(&rank)?.iter().find_map(|(before, calls)| {
            let found = calls.binary_search_by_key(&time, |call| call.entry);
            found.ok().map(|found| before + found as u64)
        })
    };
    let mut numbered: Vec<(u64, u64)> = (timeline.messages.iter())
        .filter_map(|message| {
            let send = number(message.from, message.sent)?;
            Some((send, number(message.to, message.completing)?))
        })
        .collect();
    numbered.sort_unstable();
    numbered
}

fn put(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// Returns a signed number as an unsigned one: small if its absolute value is small.
fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |n: usize| u32::from(chunk.get(n).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            text.push(match digit > chunk.len() {
                true => '=',
                false => char::from(DIGITS[(bits >> (18 - 6 * digit)) as usize & 63]),
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_rfc_4648() {
        let texts = ["", "f", "fo", "foo", "foob", "fooba", "foobar"];
        let encoded = texts.map(|text| base64(text.as_bytes()));
        assert_eq!(
            encoded,
            [
                "", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"
            ]
        );
    }

    #[test]
    fn numbers_take_as_few_bytes_as_they_need() {
        let mut bytes = Vec::new();
        for value in [0, 0x7f, 0x80, u64::MAX] {
            put(&mut bytes, value);
        }
        assert_eq!(bytes[..4], [0, 0x7f, 0x80, 1]);
        assert_eq!(bytes.len(), 4 + 10);
        assert_eq!([0, -1, 1, i64::MIN].map(zigzag), [0, 1, 2, u64::MAX]);
    }
}
