//! Messages of a traced program: when each begins, from whom, to whom, and how large.

use std::collections::{BTreeMap, HashMap};

use nodescope_hypercall::Class;
use nodescope_loop_tree::sequence::Sequences;
use nodescope_loop_tree::{Action, Collective, CollectiveKind, Op};
use nodescope_predict::collective::{Choice, Selected, Shape, round};
use serde::Serialize;

/// Message from a rank to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Message {
    /// Time at which the call that causes the message began, picoseconds of the trace. A get is the receiver's call.
    pub time: u64,
    /// Sender, by its world rank.
    pub from: u32,
    /// Receiver, by its world rank.
    pub to: u32,
    /// Size of the message in bytes.
    pub bytes: u64,
}

/// Messages that are counted beside those of point-to-point calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Include {
    /// Messages of collectives, as the rounds of their algorithms send them, and of neighbourhood collectives.
    pub collectives: bool,
    /// Messages of one-sided calls: puts go to the target, gets come from the target.
    pub one_sided: bool,
}

/// Messages and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Number of messages.
    pub messages: u64,
    /// Number of bytes in the messages.
    pub bytes: u64,
}

impl Traffic {
    /// Adds a message.
    pub fn add(&mut self, bytes: u64) {
        self.messages = self.messages.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Adds other messages.
    pub fn add_all(&mut self, other: Traffic) {
        self.messages = self.messages.saturating_add(other.messages);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// Messages of each kind, counted or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Kinds {
    /// Messages of point-to-point calls, always counted.
    pub point_to_point: Traffic,
    /// Messages of collectives and neighbourhood collectives.
    pub collectives: Traffic,
    /// Messages of one-sided calls.
    pub one_sided: Traffic,
}

/// The messages of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Messages {
    /// Number of ranks of the world.
    pub ranks: u32,
    /// Time at which the first rank left initialisation, picoseconds of the trace.
    pub from: u64,
    /// Time at which the last rank reached its end, picoseconds of the trace.
    pub to: u64,
    /// Counted messages, in the order of their times.
    pub list: Vec<Message>,
    /// Messages of the whole trace by kind, whether they are counted or not.
    pub kinds: Kinds,
    /// Kinds that are counted.
    pub include: Include,
    /// Notes on limits of the messages.
    pub notes: Vec<String>,
}

/// A kind of [`Kinds`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    PointToPoint,
    Collective,
    OneSided,
}

impl Messages {
    /// Returns the messages of a program. Collectives use the algorithms of `choice`.
    pub fn new(sequences: &Sequences, include: Include, choice: &Choice) -> Messages {
        let mut messages = Messages {
            ranks: sequences.ranks.len() as u32,
            from: sequences.extents.iter().map(|of| of.0).min().unwrap_or(0),
            to: sequences.extents.iter().map(|of| of.1).max().unwrap_or(0),
            include,
            notes: sequences.notes.clone(),
            ..Messages::default()
        };
        let mut communicators = Communicators::new(sequences, choice);
        for (rank, sequence) in sequences.ranks.iter().enumerate() {
            let rank = rank as u32;
            let begins = sequences.begins.get(rank as usize);
            for (at, entry) in sequence.entries.iter().enumerate() {
                let time = begins.and_then(|begins| begins.get(at)).copied();
                let time = time.unwrap_or(messages.from);
                let op = &entry.op;
                let resolve =
                    |peer: nodescope_loop_tree::PeerRef| peer.resolve(rank, messages.ranks);
                match &op.action {
                    Action::Send { to, bytes, .. } => {
                        let to = resolve(*to);
                        let kind = communicators.kind(rank, op);
                        messages.add(kind, message(time, rank, to, *bytes));
                    }
                    Action::SendReceive {
                        send: Some((to, _, bytes)),
                        ..
                    } => {
                        let to = resolve(*to);
                        let kind = communicators.kind(rank, op);
                        messages.add(kind, message(time, rank, to, *bytes));
                    }
                    Action::OneSided { to, out, back, .. } => {
                        let to = resolve(*to);
                        let one = match (*out, *back) {
                            (0, back @ 1..) => message(time, to, rank, back),
                            (out, _) => message(time, rank, to, out),
                        };
                        messages.add(Kind::OneSided, one);
                    }
                    Action::Collective(collective) => {
                        communicators.messages(rank, op, collective, |to, bytes| {
                            messages.add(Kind::Collective, message(time, rank, to, bytes));
                        });
                    }
                    _ => {}
                }
            }
        }
        messages.list.sort_unstable();
        // A damaged trace may have calls outside the spans of its ranks.
        if let (Some(first), Some(last)) = (messages.list.first(), messages.list.last()) {
            messages.from = messages.from.min(first.time);
            messages.to = messages.to.max(last.time);
        }
        messages.left_out();
        messages.notes.sort();
        messages.notes.dedup();
        messages
    }

    fn add(&mut self, kind: Kind, message: Message) {
        if message.from.max(message.to) >= self.ranks {
            self.notes.push(format!(
                "a message from rank {} to rank {} is left out: the world has {} ranks",
                message.from, message.to, self.ranks
            ));
            return;
        }
        let (traffic, counted) = match kind {
            Kind::PointToPoint => (&mut self.kinds.point_to_point, true),
            Kind::Collective => (&mut self.kinds.collectives, self.include.collectives),
            Kind::OneSided => (&mut self.kinds.one_sided, self.include.one_sided),
        };
        traffic.add(message.bytes);
        if counted {
            self.list.push(message);
        }
    }

    /// Adds notes on the kinds of messages that are not counted.
    fn left_out(&mut self) {
        let kinds = [
            (
                "collectives",
                self.kinds.collectives,
                self.include.collectives,
            ),
            ("one-sided", self.kinds.one_sided, self.include.one_sided),
        ];
        for (name, traffic, counted) in kinds {
            if !counted && traffic.messages > 0 {
                self.notes.push(format!(
                    "{} messages with {} B of {name} calls are not counted; --include {name} counts them",
                    traffic.messages, traffic.bytes
                ));
            }
        }
    }

    /// Returns the sum of all counted messages.
    pub fn total(&self) -> Traffic {
        let mut total = Traffic::default();
        self.list
            .iter()
            .for_each(|message| total.add(message.bytes));
        total
    }
}

fn message(time: u64, from: u32, to: u32, bytes: u64) -> Message {
    Message {
        time,
        from,
        to,
        bytes,
    }
}

/// A collective call of a communicator: the communicator, and the number of the call among its collectives, from 0.
type Instance = (u32, u32);

/// Communicators, and the algorithm of each collective in them.
struct Communicators<'a> {
    sequences: &'a Sequences,
    /// Rank in each communicator by world rank; empty for the world.
    local_ranks: Vec<HashMap<u32, u32>>,
    /// Algorithm of each collective, which the first rank to enter chooses.
    selected: HashMap<Instance, Selected>,
    /// Number of collectives that a rank has entered, by rank and communicator.
    entered: HashMap<(u32, u32), u32>,
}

impl<'a> Communicators<'a> {
    fn new(sequences: &'a Sequences, choice: &Choice) -> Communicators<'a> {
        let local_ranks = (sequences.communicators.iter())
            .map(|members| members.iter().copied().zip(0..).collect())
            .collect();
        let mut communicators = Communicators {
            sequences,
            local_ranks,
            selected: HashMap::new(),
            entered: HashMap::new(),
        };
        // The choice depends on bytes, which may differ between ranks where each has a block of its own. Those of the first rank to enter
        // count.
        let mut first: HashMap<Instance, (u64, u32, CollectiveKind, u64, bool)> = HashMap::new();
        for (rank, sequence) in sequences.ranks.iter().enumerate() {
            for (at, entry) in sequence.entries.iter().enumerate() {
                let Action::Collective(collective) = &entry.op.action else {
                    continue;
                };
                let Some(instance) = communicators.enter(rank as u32, &entry.op) else {
                    continue;
                };
                let begins = sequences.begins.get(rank);
                let time = begins.and_then(|begins| begins.get(at)).copied();
                let own = (
                    time.unwrap_or(0),
                    rank as u32,
                    collective.kind,
                    collective.bytes,
                    collective.request.is_none(),
                );
                let earliest = first.entry(instance).or_insert(own);
                *earliest = own.min(*earliest);
            }
        }
        communicators.entered.clear();
        communicators.selected = (first.into_iter())
            .map(|(instance, (_, _, kind, bytes, blocking))| {
                let size = communicators.size(instance.0);
                let selected = choice.of(kind, size, bytes, blocking);
                (instance, selected)
            })
            .collect();
        communicators
    }

    /// Returns the communicator of an operation; `None` if the rank is its only member.
    fn communicator(&self, rank: u32, op: &Op) -> Option<u32> {
        let numbers = &self.sequences.ranks[rank as usize].communicators;
        // Programs that are written by hand have only the world.
        match numbers.get(op.communicator as usize) {
            Some(number) => *number,
            None => (op.communicator == 0).then_some(0),
        }
    }

    fn size(&self, communicator: u32) -> u32 {
        match self.local_ranks.get(communicator as usize) {
            Some(ranks) if !ranks.is_empty() => ranks.len() as u32,
            _ => self.sequences.ranks.len() as u32,
        }
    }

    fn local_rank(&self, rank: u32, communicator: u32) -> Option<u32> {
        match self.local_ranks.get(communicator as usize) {
            Some(ranks) if !ranks.is_empty() => ranks.get(&rank).copied(),
            _ => Some(rank),
        }
    }

    /// Counts a rank's collective, and returns its instance; `None` if the rank is the only member of the communicator.
    fn enter(&mut self, rank: u32, op: &Op) -> Option<Instance> {
        let communicator = self.communicator(rank, op)?;
        let number = self.entered.entry((rank, communicator)).or_default();
        *number += 1;
        Some((communicator, *number - 1))
    }

    /// Calls `give` with the receiver and the bytes of each message that a rank sends in a collective.
    fn messages(
        &mut self,
        rank: u32,
        op: &Op,
        collective: &Collective,
        mut give: impl FnMut(u32, u64),
    ) {
        let Some(instance) = self.enter(rank, op) else {
            return;
        };
        let (Some(me), Some(&selected)) = (
            self.local_rank(rank, instance.0),
            self.selected.get(&instance),
        ) else {
            return;
        };
        let size = self.size(instance.0);
        if collective.root >= size {
            return;
        }
        let shape = Shape {
            kind: collective.kind,
            size,
            me,
            root: collective.root,
            bytes: collective.bytes,
            send_to: &collective.send_to,
            receive_from: &collective.receive_from,
        };
        let members = self.sequences.communicators.get(instance.0 as usize);
        // Segments of a pipeline to one rank count as one message, so that a long vector does not take a record for each segment.
        let mut sent: BTreeMap<u32, u64> = BTreeMap::new();
        let mut number = 0;
        while let Some(round) = round(selected, &shape, number) {
            if let Some((to, bytes)) = round.send {
                let member = members.and_then(|members| members.get(to as usize));
                let to = member.copied().unwrap_or(to);
                let sum = sent.entry(to).or_default();
                *sum = sum.saturating_add(bytes);
            }
            number += 1;
        }
        sent.into_iter().for_each(|(to, bytes)| give(to, bytes));
    }

    /// Returns the kind of a message that an operation sends.
    fn kind(&self, rank: u32, op: &Op) -> Kind {
        let communicator = self.communicator(rank, op);
        let apart = communicator.is_some_and(|number| self.sequences.copies.contains(&number));
        match op.function.class() {
            Class::Neighbor | Class::StartNeighbor | Class::PrepareNeighbor => Kind::Collective,
            // A prepared neighbourhood collective starts as other persistent requests do.
            Class::Persistent if apart => Kind::Collective,
            Class::Window | Class::Epoch | Class::Rma | Class::StartRma => Kind::OneSided,
            _ => Kind::PointToPoint,
        }
    }
}
