//! Collective operations as messages, for formats that lack the operation.
//!
//! The algorithms:
//!
//! | blocking | algorithm |
//! |---|---|
//! | barrier | dissemination |
//! | broadcast, reduce | binomial tree |
//! | allreduce | recursive doubling; as many ranks as exceed a power of two fold into neighbours before and after |
//! | gather, gatherv, scatter, scatterv | linear |
//! | allgather, allgatherv | ring |
//! | alltoall, alltoallv, alltoallw, reduce-scatter | pairwise |
//! | scan, exscan | linear chain |
//!
//! A replay of messages cannot progress a non-blocking operation while its rank computes. Such operations are therefore *direct*: at the
//! start, every rank sends what other ranks need, and the call that completes the operation waits for the messages. For large groups,
//! this is more traffic than MPI libraries cause.

use nodescope_hypercall::record::{Flags, communicator};
use nodescope_hypercall::{Class, Function, MpiRecord, Peer};

use crate::survey::World;

/// The communicator of an operation, from the view of one of its ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group<'a> {
    /// World ranks of the group's members.
    pub(crate) members: &'a [u32],
    /// Rank of the caller in the group.
    pub(crate) own: usize,
}

impl Group<'_> {
    pub(crate) fn size(&self) -> usize {
        self.members.len()
    }

    fn world(&self, rank: usize) -> u32 {
        self.members.get(rank).copied().unwrap_or(0)
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.own;
        (0..self.size()).filter(move |&rank| rank != own)
    }
}

/// A message action of an operation; peers are world ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Send that blocks.
    Send { to: u32, bytes: u64 },
    /// Receive that blocks.
    Receive { from: u32, bytes: u64 },
    /// Start of a send.
    Isend { to: u32, bytes: u64 },
    /// Start of a receive.
    Ireceive { from: u32, bytes: u64 },
    /// Wait for all started sends and receives.
    Wait,
}

/// Returns the bytes of one rank: the list's element, or an equal share of `sum` if the list has none.
fn share(list: &[u64], sum: u64, rank: usize, size: usize) -> u64 {
    match list.get(rank) {
        Some(&bytes) => bytes,
        None => sum / size.max(1) as u64,
    }
}

/// Returns the bytes that the caller sends to a rank of a communicator of `size` ranks.
pub(crate) fn to(record: &MpiRecord, rank: usize, size: usize) -> u64 {
    // With MPI_IN_PLACE, as many bytes are sent as received.
    match record.flags.contains(Flags::IN_PLACE) && record.send_bytes == 0 {
        true => from(record, rank, size),
        false => share(&record.send_bytes_to, record.send_bytes, rank, size),
    }
}

/// Returns the bytes that the caller receives from a rank of a communicator of `size` ranks.
pub(crate) fn from(record: &MpiRecord, rank: usize, size: usize) -> u64 {
    share(&record.receive_bytes_from, record.receive_bytes, rank, size)
}

/// Returns the bytes of the vector of a broadcast, reduction or scan. Some ranks only send or only receive the vector, so the result is
/// the larger of both sizes.
pub(crate) fn vector(record: &MpiRecord) -> u64 {
    record.send_bytes.max(record.receive_bytes)
}

/// Returns the root of a rooted collective as a world rank; `None` without a known root.
pub(crate) fn root(record: &MpiRecord) -> Option<u32> {
    match record.root {
        Peer::Rank(rank) => Some(rank),
        _ => None,
    }
}

/// A collective call, as an export sees it.
#[derive(Debug)]
pub(crate) enum Lowered<'a> {
    /// The operation is between two groups (an intercommunicator).
    BetweenGroups,
    /// The trace does not show the communicator.
    Unknown,
    /// The caller is alone in its communicator.
    Alone,
    /// A neighbourhood collective: all its messages start at once.
    Neighbours(Vec<Action>),
    /// An operation of a group.
    Group {
        group: Group<'a>,
        /// True if the group has all ranks of the program in their order.
        world: bool,
        /// True if the trace tells the members; otherwise those that used the communicator are taken.
        known: bool,
    },
}

/// Returns what the call of a rank of a program does.
pub(crate) fn lowered<'a>(world: &'a World, rank: u32, record: &MpiRecord) -> Lowered<'a> {
    if record.communicator == communicator::SELF {
        return Lowered::Alone;
    }
    if record.flags.contains(Flags::INTERCOMM) {
        return Lowered::BetweenGroups;
    }
    if matches!(
        record.function.class(),
        Class::Neighbor | Class::StartNeighbor | Class::PrepareNeighbor
    ) {
        return Lowered::Neighbours(neighbours(record));
    }
    let Some(at) = world.communicator(record.communicator) else {
        return Lowered::Unknown;
    };
    let entry = &world.communicators[at];
    let mut members = entry.members.iter().zip(0..);
    let all = entry.members.len() as u32 == world.size && members.all(|(&rank, at)| rank == at);
    Lowered::Group {
        group: Group {
            members: &entry.members,
            own: entry.position(rank).unwrap_or(0) as usize,
        },
        world: all,
        known: entry.known,
    }
}

/// Returns the messages of one rank for an operation of a group, blocking or not; `None` if messages cannot express it.
pub(crate) fn messages(record: &MpiRecord, group: &Group<'_>, waits: bool) -> Option<Vec<Action>> {
    match waits {
        true => blocking(record, group),
        false => direct(record, group),
    }
}

/// Returns the messages of one rank for a blocking operation; `None` if the operation cannot be expressed.
pub(crate) fn blocking(record: &MpiRecord, group: &Group<'_>) -> Option<Vec<Action>> {
    use Function::*;
    let (size, own) = (group.size(), group.own);
    let mut out = Vec::new();
    let root = || {
        let members = &mut group.members.iter();
        members.position(|&rank| Some(rank) == root(record))
    };
    match record.function.blocking() {
        Barrier => {
            let mut distance = 1;
            while distance < size {
                out.push(Action::Isend {
                    to: group.world((own + distance) % size),
                    bytes: 0,
                });
                out.push(Action::Receive {
                    from: group.world((own + size - distance) % size),
                    bytes: 0,
                });
                out.push(Action::Wait);
                distance *= 2;
            }
        }
        Bcast => tree(group, root()?, vector(record), false, &mut out),
        Reduce => tree(group, root()?, vector(record), true, &mut out),
        Allreduce => doubling(group, vector(record), &mut out),
        Gather | Gatherv | Scatter | Scatterv => {
            linear(record, group, root()?, &mut out);
        }
        Allgather | Allgatherv => {
            for step in 0..size.saturating_sub(1) {
                out.push(Action::Isend {
                    to: group.world((own + 1) % size),
                    bytes: from(record, (own + size - step) % size, size),
                });
                out.push(Action::Receive {
                    from: group.world((own + size - 1) % size),
                    bytes: from(record, (own + 2 * size - step - 1) % size, size),
                });
                out.push(Action::Wait);
            }
        }
        Alltoall | Alltoallv | Alltoallw | ReduceScatter | ReduceScatterBlock => {
            for step in 1..size {
                let (next, before) = ((own + step) % size, (own + size - step) % size);
                out.push(Action::Isend {
                    to: group.world(next),
                    bytes: block_to(record, next, size),
                });
                out.push(Action::Receive {
                    from: group.world(before),
                    bytes: block_from(record, before, size),
                });
                out.push(Action::Wait);
            }
        }
        Scan | Exscan => {
            let bytes = vector(record);
            if own > 0 {
                let from = group.world(own - 1);
                out.push(Action::Receive { from, bytes });
            }
            if own + 1 < size {
                let to = group.world(own + 1);
                out.push(Action::Send { to, bytes });
            }
        }
        _ => return None,
    }
    Some(out)
}

/// Returns the bytes that go to a rank in an all-to-all exchange or a reduce-scatter.
fn block_to(record: &MpiRecord, rank: usize, size: usize) -> u64 {
    use Function::*;
    match record.function.blocking() {
        ReduceScatterBlock => record.receive_bytes,
        _ => to(record, rank, size),
    }
}

/// Returns the bytes that come from a rank in an all-to-all exchange or a reduce-scatter.
fn block_from(record: &MpiRecord, rank: usize, size: usize) -> u64 {
    use Function::*;
    match record.function.blocking() {
        // Each rank sends the block of the caller.
        ReduceScatter | ReduceScatterBlock => record.receive_bytes,
        _ => from(record, rank, size),
    }
}

/// Adds the own rank's messages of a binomial tree from the root to all ranks, or from all ranks to the root if `up`.
fn tree(group: &Group<'_>, root: usize, bytes: u64, up: bool, out: &mut Vec<Action>) {
    let size = group.size();
    let relative = (group.own + size - root) % size;
    let world = |relative: usize| group.world((relative + root) % size);
    let mut parent = None;
    let mut children = Vec::new();
    let mut mask = 1;
    while mask < size {
        if relative & mask != 0 {
            parent = Some(world(relative - mask));
            break;
        }
        if relative + mask < size {
            children.push(world(relative + mask));
        }
        mask *= 2;
    }
    if up {
        out.extend(
            children
                .into_iter()
                .map(|from| Action::Receive { from, bytes }),
        );
        out.extend(parent.map(|to| Action::Send { to, bytes }));
    } else {
        out.extend(parent.map(|from| Action::Receive { from, bytes }));
        // The largest subtree comes first.
        out.extend(
            children
                .into_iter()
                .rev()
                .map(|to| Action::Send { to, bytes }),
        );
    }
}

/// Adds the own rank's messages of recursive doubling. If the size exceeds a power of two by `extra`, the even ranks below `2 * extra` do
/// not take part: each sends its vector to the next higher rank at first, and receives the result from that rank in the end.
fn doubling(group: &Group<'_>, bytes: u64, out: &mut Vec<Action>) {
    let (size, own) = (group.size(), group.own);
    if size < 2 {
        return;
    }
    let power = 1 << size.ilog2();
    let extra = size - power;
    // The first 2 * extra ranks form pairs; the odd rank of a pair takes part.
    let paired = own < 2 * extra;
    if paired && own.is_multiple_of(2) {
        let partner = group.world(own + 1);
        out.push(Action::Send { to: partner, bytes });
        out.push(Action::Receive {
            from: partner,
            bytes,
        });
        return;
    }
    if paired {
        out.push(Action::Receive {
            from: group.world(own - 1),
            bytes,
        });
    }
    let position = if paired { own / 2 } else { own - extra };
    let mut mask = 1;
    while mask < power {
        let other = position ^ mask;
        let other = if other < extra {
            2 * other + 1
        } else {
            other + extra
        };
        let peer = group.world(other);
        out.push(Action::Isend { to: peer, bytes });
        out.push(Action::Receive { from: peer, bytes });
        out.push(Action::Wait);
        mask *= 2;
    }
    if paired {
        out.push(Action::Send {
            to: group.world(own - 1),
            bytes,
        });
    }
}

/// Adds the own rank's messages of a gather or scatter, in which the root receives from or sends to one rank after the other.
fn linear(record: &MpiRecord, group: &Group<'_>, root: usize, out: &mut Vec<Action>) {
    let size = group.size();
    let gathers = matches!(record.function, Function::Gather | Function::Gatherv);
    if group.own == root {
        for rank in group.others() {
            let peer = group.world(rank);
            out.push(match gathers {
                true => Action::Receive {
                    from: peer,
                    bytes: from(record, rank, size),
                },
                false => Action::Send {
                    to: peer,
                    bytes: to(record, rank, size),
                },
            });
        }
    } else {
        let peer = group.world(root);
        out.push(match gathers {
            true => Action::Send {
                to: peer,
                bytes: record.send_bytes,
            },
            false => Action::Receive {
                from: peer,
                bytes: record.receive_bytes,
            },
        });
    }
}

/// Returns the messages that a non-blocking operation starts on one rank; `None` if the operation cannot be expressed.
pub(crate) fn direct(record: &MpiRecord, group: &Group<'_>) -> Option<Vec<Action>> {
    use Function::*;
    let (size, own) = (group.size(), group.own);
    let root = || {
        let members = &mut group.members.iter();
        members.position(|&rank| Some(rank) == root(record))
    };
    let whole = vector(record);
    // Bytes to and from a rank; `None` if there is no message.
    type Sizes<'a> = Box<dyn Fn(usize) -> Option<u64> + 'a>;
    let nothing = || -> Sizes<'_> { Box::new(|_| None) };
    let (to_rank, from_rank): (Sizes<'_>, Sizes<'_>) = match record.function.blocking() {
        Barrier => (Box::new(|_| Some(0)), Box::new(|_| Some(0))),
        Allreduce => (
            Box::new(move |_| Some(whole)),
            Box::new(move |_| Some(whole)),
        ),
        Bcast | Scatter | Scatterv => {
            let root = root()?;
            if own == root {
                let scatters = record.function.blocking() != Bcast;
                let bytes = move |rank| match scatters {
                    true => to(record, rank, size),
                    false => whole,
                };
                (Box::new(move |rank| Some(bytes(rank))), nothing())
            } else {
                let bytes = record.receive_bytes;
                (
                    nothing(),
                    Box::new(move |rank| (rank == root).then_some(bytes)),
                )
            }
        }
        Reduce | Gather | Gatherv => {
            let root = root()?;
            if own == root {
                let gathers = record.function.blocking() != Reduce;
                let bytes = move |rank| match gathers {
                    true => from(record, rank, size),
                    false => whole,
                };
                (nothing(), Box::new(move |rank| Some(bytes(rank))))
            } else {
                let bytes = record.send_bytes;
                (
                    Box::new(move |rank| (rank == root).then_some(bytes)),
                    nothing(),
                )
            }
        }
        Allgather | Allgatherv => (
            Box::new(move |_| Some(from(record, own, size))),
            Box::new(move |rank| Some(from(record, rank, size))),
        ),
        Alltoall | Alltoallv | Alltoallw | ReduceScatter | ReduceScatterBlock => (
            Box::new(move |rank| Some(block_to(record, rank, size))),
            Box::new(move |rank| Some(block_from(record, rank, size))),
        ),
        Scan | Exscan => (
            Box::new(move |rank| (rank > own).then_some(whole)),
            Box::new(move |rank| (rank < own).then_some(whole)),
        ),
        _ => return None,
    };
    let mut out = Vec::new();
    for rank in group.others() {
        if let Some(bytes) = from_rank(rank) {
            let from = group.world(rank);
            out.push(Action::Ireceive { from, bytes });
        }
    }
    for rank in group.others() {
        if let Some(bytes) = to_rank(rank) {
            let to = group.world(rank);
            out.push(Action::Isend { to, bytes });
        }
    }
    Some(out)
}

/// Returns the messages of a neighbourhood collective, blocking or not: all start at once, from and to the neighbours.
pub(crate) fn neighbours(record: &MpiRecord) -> Vec<Action> {
    let gathers = matches!(
        record.function.blocking(),
        Function::NeighborAllgather | Function::NeighborAllgatherv
    );
    // Sums of bytes do not include neighbours beyond the edge of a grid, which get no message.
    let real = |peers: &[Peer]| peers.iter().filter(|peer| peer.rank().is_some()).count();
    let mut out = Vec::new();
    for (at, source) in record.sources.iter().enumerate() {
        if let Some(from) = source.rank() {
            let bytes = share(
                &record.receive_bytes_from,
                record.receive_bytes,
                at,
                real(&record.sources),
            );
            out.push(Action::Ireceive { from, bytes });
        }
    }
    for (at, destination) in record.destinations.iter().enumerate() {
        if let Some(to) = destination.rank() {
            // In a gather, every neighbour gets the same bytes.
            let bytes = match gathers {
                true => record.send_bytes,
                false => share(
                    &record.send_bytes_to,
                    record.send_bytes,
                    at,
                    real(&record.destinations),
                ),
            };
            out.push(Action::Isend { to, bytes });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodescope_hypercall::ThreadId;
    use std::collections::HashMap;

    /// Checks that each message that a rank sends is received by another, in the same number and size, and that no rank waits forever.
    fn closed(function: Function, size: usize, fill: impl Fn(usize, &mut MpiRecord)) {
        let members: Vec<u32> = (0..size as u32).map(|rank| 10 + 3 * rank).collect();
        let mut programs: Vec<Vec<Action>> = Vec::new();
        for own in 0..size {
            let thread = ThreadId { pid: 1, tid: 1 };
            let mut record = MpiRecord::new(function, thread, Peer::Rank(members[own]), 0);
            fill(own, &mut record);
            let group = Group {
                members: &members,
                own,
            };
            let actions = match function.blocking() == function {
                true => blocking(&record, &group),
                false => direct(&record, &group),
            };
            let mut actions = actions.unwrap_or_else(|| panic!("{function} has no messages"));
            actions.push(Action::Wait);
            programs.push(actions);
        }
        // Sends complete at once in this small replay; receives need their message, in order.
        let mut there: HashMap<(u32, u32), std::collections::VecDeque<u64>> = HashMap::new();
        let mut at = vec![0; size];
        let mut waits: Vec<Vec<(u32, u64)>> = vec![Vec::new(); size];
        loop {
            let mut moved = false;
            for own in 0..size {
                let me = members[own];
                while let Some(action) = programs[own].get(at[own]) {
                    match *action {
                        Action::Send { to, bytes } | Action::Isend { to, bytes } => {
                            there.entry((me, to)).or_default().push_back(bytes);
                        }
                        Action::Ireceive { from, bytes } => waits[own].push((from, bytes)),
                        Action::Receive { from, bytes } => {
                            let Some(got) = there.entry((from, me)).or_default().pop_front() else {
                                break;
                            };
                            assert_eq!(got, bytes, "{function}, {size} ranks: {from} to {me}");
                        }
                        Action::Wait => {
                            let ready = |(from, _): &(u32, u64)| {
                                there
                                    .get(&(*from, me))
                                    .is_some_and(|queue| !queue.is_empty())
                            };
                            if !waits[own].iter().all(ready) {
                                break;
                            }
                            for (from, bytes) in std::mem::take(&mut waits[own]) {
                                let got = there.get_mut(&(from, me)).and_then(|q| q.pop_front());
                                assert_eq!(got, Some(bytes), "{function}, {size} ranks");
                            }
                        }
                    }
                    at[own] += 1;
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
        for own in 0..size {
            assert_eq!(
                at[own],
                programs[own].len(),
                "{function}: rank {own} of {size} waits for ever"
            );
        }
        assert!(
            there.values().all(|queue| queue.is_empty()),
            "{function}: messages left"
        );
    }

    #[test]
    fn messages_of_every_collective_match() {
        use Function::*;
        for size in 1..=9 {
            let sum = |of: &dyn Fn(usize) -> u64| (0..size).map(of).sum::<u64>();
            let root = size / 2;
            let rooted = |record: &mut MpiRecord| record.root = Peer::Rank(10 + 3 * root as u32);
            for function in [Barrier, Ibarrier] {
                closed(function, size, |_, _| {});
            }
            for function in [Allreduce, Iallreduce, Scan, Iscan, Exscan, Iexscan] {
                closed(function, size, |_, record| {
                    (record.send_bytes, record.receive_bytes) = (800, 800);
                });
            }
            for function in [Bcast, Ibcast, Scatter, Iscatter] {
                closed(function, size, |own, record| {
                    rooted(record);
                    let all = matches!(function, Scatter | Iscatter);
                    match own == root {
                        true => record.send_bytes = 64 * if all { size as u64 } else { 1 },
                        false => record.receive_bytes = 64,
                    }
                });
            }
            for function in [Reduce, Ireduce, Gather, Igather] {
                closed(function, size, |own, record| {
                    rooted(record);
                    record.send_bytes = 64;
                    let all = matches!(function, Gather | Igather);
                    if own == root {
                        record.receive_bytes = 64 * if all { size as u64 } else { 1 };
                    }
                });
            }
            let part = |rank: usize| 100 + 7 * rank as u64;
            for function in [Gatherv, Igatherv] {
                closed(function, size, |own, record| {
                    rooted(record);
                    record.send_bytes = part(own);
                    if own == root {
                        record.receive_bytes = sum(&part);
                        record.receive_bytes_from = (0..size).map(part).collect();
                    }
                });
            }
            for function in [Scatterv, Iscatterv] {
                closed(function, size, |own, record| {
                    rooted(record);
                    record.receive_bytes = part(own);
                    if own == root {
                        record.send_bytes = sum(&part);
                        record.send_bytes_to = (0..size).map(part).collect();
                    }
                });
            }
            for function in [Allgather, Iallgather] {
                closed(function, size, |_, record| {
                    record.send_bytes = 32;
                    record.receive_bytes = 32 * size as u64;
                });
            }
            for function in [Allgatherv, Iallgatherv] {
                closed(function, size, |own, record| {
                    record.send_bytes = part(own);
                    record.receive_bytes = sum(&part);
                    record.receive_bytes_from = (0..size).map(part).collect();
                });
            }
            for function in [Alltoall, Ialltoall] {
                closed(function, size, |_, record| {
                    record.send_bytes = 16 * size as u64;
                    record.receive_bytes = 16 * size as u64;
                });
            }
            let cell = |from: usize, to: usize| 1 + 10 * from as u64 + to as u64;
            for function in [Alltoallv, Ialltoallv, Alltoallw, Ialltoallw] {
                closed(function, size, |own, record| {
                    record.send_bytes_to = (0..size).map(|to| cell(own, to)).collect();
                    record.receive_bytes_from = (0..size).map(|from| cell(from, own)).collect();
                    record.send_bytes = record.send_bytes_to.iter().sum();
                    record.receive_bytes = record.receive_bytes_from.iter().sum();
                });
            }
            for function in [ReduceScatter, IreduceScatter] {
                closed(function, size, |own, record| {
                    record.send_bytes_to = (0..size).map(part).collect();
                    record.send_bytes = sum(&part);
                    record.receive_bytes = part(own);
                });
            }
            for function in [ReduceScatterBlock, IreduceScatterBlock] {
                closed(function, size, |_, record| {
                    record.receive_bytes = 48;
                    record.send_bytes = 48 * size as u64;
                });
            }
        }
    }

    /// The first of a line of ranks exchanges all bytes with its right neighbour: the missing left neighbour takes no share of them.
    #[test]
    fn neighbours_beyond_the_edge_take_no_share() {
        let thread = ThreadId { pid: 1, tid: 1 };
        for (function, sent) in [
            (Function::NeighborAllgather, 24),
            (Function::IneighborAllgather, 24),
            (Function::NeighborAlltoall, 24),
        ] {
            let mut record = MpiRecord::new(function, thread, Peer::Rank(0), 0);
            record.sources = vec![Peer::Null, Peer::Rank(1)];
            record.destinations = record.sources.clone();
            (record.send_bytes, record.receive_bytes) = (sent, 24);
            let bytes: Vec<_> = neighbours(&record)
                .into_iter()
                .map(|action| match action {
                    Action::Ireceive { from: 1, bytes } | Action::Isend { to: 1, bytes } => bytes,
                    _ => panic!("a message to nobody"),
                })
                .collect();
            assert_eq!(bytes, [24, 24], "{function}");
        }
    }
}
