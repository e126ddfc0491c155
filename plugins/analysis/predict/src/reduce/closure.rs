//! The check that a fragment is closed under communication.

use std::collections::{HashMap, HashSet, VecDeque};

use nodescope_loop_tree::{Action, Sequences};

use super::select::Occurrence;
use crate::code::describe;

/// A rank, its call, and the reason why the fragment is not closed or cannot be reduced.
pub type Refusal = (u32, String, String);

/// A rank and the index of an operation.
type At = (u32, usize);

/// Sender, receiver, communicator and tag of a message.
type Envelope = (u32, u32, Option<u32>, u32);

/// Messages, collectives and requests of a program, by their partners.
pub struct Closure<'a> {
    sequences: &'a Sequences,
    /// Other ends of each operation's messages.
    ends: HashMap<At, Vec<At>>,
    /// Instance of the collective that an operation enters, as an index of `members`.
    collectives: HashMap<At, usize>,
    members: Vec<Vec<At>>,
    /// Number of pending requests before each operation, by rank and index, and after the last operation.
    pending: Vec<Vec<u32>>,
    /// Ranks that have a receive of which the sender or the tag is unknown.
    open: HashSet<u32>,
}

impl<'a> Closure<'a> {
    pub fn new(sequences: &'a Sequences) -> Closure<'a> {
        let world = sequences.ranks.len() as u32;
        let mut closure = Closure {
            sequences,
            ends: HashMap::new(),
            collectives: HashMap::new(),
            members: Vec::new(),
            pending: Vec::new(),
            open: HashSet::new(),
        };
        // Messages between two ranks with one tag are received in the order in which they are sent.
        let mut sends: HashMap<Envelope, VecDeque<At>> = HashMap::new();
        let mut receives: Vec<(Envelope, At)> = Vec::new();
        let mut entered: HashMap<(u32, u32), usize> = HashMap::new();
        let mut instances: HashMap<(u32, usize), usize> = HashMap::new();
        for (sequence, rank) in sequences.ranks.iter().zip(0..) {
            let mut pending = Vec::with_capacity(sequence.entries.len() + 1);
            let mut live: HashSet<u32> = HashSet::new();
            for (index, entry) in sequence.entries.iter().enumerate() {
                pending.push(live.len() as u32);
                let op = &entry.op;
                let at = (rank, index);
                let list = sequence.communicators.get(op.communicator as usize);
                let communicator = list.copied().flatten();
                match &op.action {
                    Action::Send { to, tag, .. } => {
                        let envelope = (rank, to.resolve(rank, world), communicator, *tag);
                        sends.entry(envelope).or_default().push_back(at);
                    }
                    Action::SendReceive {
                        send: Some((to, tag, _)),
                        ..
                    } => {
                        let envelope = (rank, to.resolve(rank, world), communicator, *tag);
                        sends.entry(envelope).or_default().push_back(at);
                    }
                    _ => {}
                }
                let receive = match &op.action {
                    Action::Receive { from, tag, .. } => Some((*from, *tag)),
                    Action::SendReceive {
                        receive: Some((from, tag, _)),
                        ..
                    } => Some((*from, *tag)),
                    _ => None,
                };
                if let Some((from, tag)) = receive {
                    match (from.peer(), tag) {
                        (Some(from), Some(tag)) => {
                            let envelope = (from.resolve(rank, world), rank, communicator, tag);
                            receives.push((envelope, at));
                        }
                        _ => drop(closure.open.insert(rank)),
                    }
                }
                match &op.action {
                    Action::Send { request, .. }
                    | Action::Receive { request, .. }
                    | Action::OneSided { request, .. } => live.extend(request),
                    Action::Wait { requests, .. }
                    | Action::Free { requests }
                    | Action::Cancel { requests } => {
                        for request in requests {
                            live.remove(request);
                        }
                    }
                    Action::Collective(collective) => {
                        live.extend(collective.request);
                        if let Some(communicator) = communicator {
                            let number = entered.entry((rank, communicator)).or_default();
                            let instance =
                                *instances.entry((communicator, *number)).or_insert_with(|| {
                                    closure.members.push(Vec::new());
                                    closure.members.len() - 1
                                });
                            *number += 1;
                            closure.members[instance].push(at);
                            closure.collectives.insert(at, instance);
                        }
                    }
                    _ => {}
                }
            }
            pending.push(live.len() as u32);
            closure.pending.push(pending);
        }
        for (envelope, at) in receives {
            if let Some(sent) = sends.get_mut(&envelope).and_then(VecDeque::pop_front) {
                closure.ends.entry(at).or_default().push(sent);
                closure.ends.entry(sent).or_default().push(at);
            }
        }
        closure
    }

    fn call(&self, (rank, index): At) -> String {
        let entries = &self.sequences.ranks[rank as usize].entries;
        entries.get(index).map_or("the end".to_owned(), |entry| {
            describe(&self.sequences.origin.names, &entry.op).to_string()
        })
    }

    /// Checks that an occurrence is closed; the error is the reason why it is not.
    pub fn check(&self, occurrence: &Occurrence) -> Result<(), Refusal> {
        let ranges: HashMap<u32, (usize, usize)> = (occurrence.ranges.iter())
            .map(|&(rank, start, end)| (rank, (start, end)))
            .collect();
        let inside = |(rank, index): At| {
            ranges
                .get(&rank)
                .is_some_and(|&(start, end)| (start..end).contains(&index))
        };
        for &(rank, start, end) in &occurrence.ranges {
            let pending = &self.pending[rank as usize];
            for (border, index) in [("begins", start), ("ends", end)] {
                if pending[index] > 0 {
                    return Err((
                        rank,
                        self.call((rank, index)),
                        format!(
                            "{} requests are pending where the fragment {border}",
                            pending[index]
                        ),
                    ));
                }
            }
            for index in start..end {
                let at = (rank, index);
                let op = &self.sequences.ranks[rank as usize].entries[index].op;
                let refuse = |reason: String| Err((rank, self.call(at), reason));
                let peers = match &op.action {
                    Action::Send { .. } | Action::Receive { .. } => 1,
                    Action::SendReceive { send, receive } => {
                        usize::from(send.is_some()) + usize::from(receive.is_some())
                    }
                    _ => 0,
                };
                if peers > 0 {
                    let world = self.sequences.ranks.len() as u32;
                    let to = op.peers()[0].map(|peer| peer.resolve(rank, world));
                    if self.open.contains(&rank) || to.is_some_and(|to| self.open.contains(&to)) {
                        return refuse("which message a receive gets that accepts any source or tag is not known".into());
                    }
                }
                let ends = self.ends.get(&at).map_or(&[][..], Vec::as_slice);
                if ends.len() < peers {
                    return refuse("its message has no other end in the program".into());
                }
                for &(other, there) in ends {
                    if !inside((other, there)) {
                        return refuse(format!(
                            "its message crosses the border of the fragment: the other end is {} of rank {other}, outside",
                            self.call((other, there))
                        ));
                    }
                }
                if let Some(&instance) = self.collectives.get(&at) {
                    let members = &self.members[instance];
                    if let Some(&(other, there)) = members.iter().find(|&&member| !inside(member)) {
                        return refuse(format!(
                            "not all ranks of the collective are inside: {} of rank {other} is not",
                            self.call((other, there))
                        ));
                    }
                }
            }
        }
        Ok(())
    }
}
