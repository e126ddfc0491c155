//! Limits of the numbers that a record may state. A trace is a file that anybody may have written. Numbers that no program has are
//! an error here, so that later code need not expect them.

use nodescope_hypercall::{Function, MpiRecord, Peer, Tag};
use nodescope_trace::{MpiCall, Stamp};

use super::SequenceError;

/// Time in picoseconds that all times of a trace must be below: 26 days.
pub(crate) const LATEST: u64 = 1 << 61;
/// Most bytes that one call may send or receive: 8 TiB. Multiplied by the most ranks, they still fit 64 bits.
pub(super) const MOST_BYTES: u64 = 1 << 43;
/// Most members of all communicators together that are made for windows and topologies.
pub(super) const MOST_COPIED: usize = 1 << 25;
/// The greatest tag that MPI's `int` holds.
const GREATEST_TAG: u32 = i32::MAX as u32;

/// The greatest rank that a job's calls name, and the call that names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub peer: u32,
    /// The rank that makes the call.
    pub rank: u32,
    pub function: Function,
}

/// Refuses a call with numbers that no program has.
pub(super) fn check(rank: u32, call: &MpiCall) -> Result<(), SequenceError> {
    let inside = Stamp {
        time: call.time_inside,
        ..call.entry
    };
    for stamp in [call.entry, call.exit, inside] {
        time(rank, call.record.function, stamp)?;
    }
    record(rank, &call.record)
}

/// Refuses a time that is too late to compute with.
pub(super) fn time(rank: u32, function: Function, stamp: Stamp) -> Result<(), SequenceError> {
    let time = stamp.time;
    (time < LATEST).then_some(()).ok_or(SequenceError::TooLate {
        rank,
        function,
        time,
    })
}

/// Refuses a record with numbers that no program has.
pub(super) fn record(rank: u32, record: &MpiRecord) -> Result<(), SequenceError> {
    let function = record.function;
    let tags = [record.send_tag, record.receive_tag];
    let tags = (tags.into_iter()).chain(record.completions.iter().map(|done| done.tag));
    for tag in tags {
        if let Tag::Value(tag) = tag
            && tag > GREATEST_TAG
        {
            return Err(SequenceError::BadTag {
                rank,
                function,
                tag,
            });
        }
    }
    let lists = [&record.send_bytes_to, &record.receive_bytes_from];
    let sum = |list: &Vec<u64>| {
        list.iter()
            .fold(0, |sum: u64, &part| sum.saturating_add(part))
    };
    let sizes = [record.send_bytes, record.receive_bytes].into_iter();
    match sizes
        .chain(lists.map(sum))
        .find(|&bytes| bytes > MOST_BYTES)
    {
        Some(bytes) => Err(SequenceError::TooLarge {
            rank,
            function,
            bytes,
        }),
        None => Ok(()),
    }
}

/// Returns the greatest rank that a record names; `None` if the record names no rank.
pub(super) fn named(rank: u32, record: &MpiRecord) -> Option<Named> {
    let one = [record.destination, record.source, record.root];
    let lists = [&record.destinations, &record.sources, &record.members];
    let completed = record.completions.iter().map(|done| done.source);
    let peers = (one.into_iter())
        .chain(completed)
        .chain(lists.into_iter().flatten().copied());
    let peer = peers.filter_map(Peer::rank).max()?;
    Some(Named {
        peer,
        rank,
        function: record.function,
    })
}
