//! Messages of an imported trace and the receives that take them.
//!
//! Some formats do not say which message a receive took: its source or tag may be any, and its size is that of the buffer. The import finds
//! the messages once it has read all ranks. By MPI's order, messages from one sender with one tag on one communicator do not overtake each
//! other, so that the k-th receive posted for them takes the k-th sent (MPI 4.1, section 3.5). A receive from any source, or with any tag,
//! takes the message that was sent first among those that no other receive names. It is then one possible run of the program, and
//! the traced run may have been another.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use nodescope_hypercall::{Peer, Tag};

use super::build::{Builder, CallId, Patch};

/// Sender whose messages a receive takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    /// This world rank.
    Rank(u32),
    /// Any rank.
    Any,
    /// Any rank or `MPI_PROC_NULL`: the format does not tell them apart.
    AnyOrNull,
}

/// A receive that was posted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Posted {
    /// Call that posted the receive.
    pub(super) call: CallId,
    /// Requested sender.
    pub(super) from: From,
    /// Requested tag; `None` for any.
    pub(super) tag: Option<u32>,
    /// Size of the buffer in bytes; `None` if the format does not state it.
    pub(super) room: Option<u64>,
    /// Call that completed the receive, and the index among this call's completions.
    pub(super) completed: Option<(CallId, u32)>,
}

/// Messages and receives of all ranks.
#[derive(Debug, Default)]
pub(super) struct Matcher {
    receivers: HashMap<(u64, u32), Receiver>,
}

/// A receive in the matcher.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handle {
    communicator: u64,
    to: u32,
    number: usize,
}

/// Sender and tag.
type Channel = (u32, u32);

/// Messages to a rank on a communicator, and its receives in the order in which they were posted.
#[derive(Debug, Default)]
struct Receiver {
    /// Time and bytes of each message of a channel, in the order of sending.
    channels: BTreeMap<Channel, VecDeque<(u64, u64)>>,
    posted: Vec<Posted>,
}

/// A receive for which there is no message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lacking {
    /// World rank of the receiver.
    pub(super) to: u32,
    /// Requested sender.
    pub(super) from: From,
    /// Requested tag; `None` for any.
    pub(super) tag: Option<u32>,
}

impl std::fmt::Display for Lacking {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} receives a message from ", self.to)?;
        match self.from {
            From::Rank(rank) => write!(f, "rank {rank}")?,
            From::Any | From::AnyOrNull => write!(f, "any rank")?,
        }
        match self.tag {
            Some(tag) => write!(f, " with tag {tag}")?,
            None => write!(f, " with any tag")?,
        }
        write!(f, " that no rank sends")
    }
}

/// What the matching found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Matched {
    /// Receives from any source or with any tag that were given a message.
    pub(super) wild: u64,
    /// Messages that no receive takes.
    pub(super) left: u64,
}

impl Matcher {
    /// Adds a message. `time` orders messages of different senders.
    pub(super) fn send(
        &mut self,
        communicator: u64,
        (from, to): (u32, u32),
        tag: u32,
        (time, bytes): (u64, u64),
    ) {
        let receiver = self.receivers.entry((communicator, to)).or_default();
        let channel = receiver.channels.entry((from, tag)).or_default();
        channel.push_back((time, bytes));
    }

    /// Adds a receive of rank `to`.
    pub(super) fn receive(&mut self, communicator: u64, to: u32, posted: Posted) -> Handle {
        let receiver = self.receivers.entry((communicator, to)).or_default();
        receiver.posted.push(posted);
        Handle {
            communicator,
            to,
            number: receiver.posted.len() - 1,
        }
    }

    /// States which call completed a receive, and the index among this call's completions.
    pub(super) fn completed(&mut self, handle: Handle, call: CallId, at: u32) {
        let receiver = self.receivers.get_mut(&(handle.communicator, handle.to));
        let posted = receiver.and_then(|receiver| receiver.posted.get_mut(handle.number));
        if let Some(posted) = posted {
            posted.completed = Some((call, at));
        }
    }

    /// Finds the message of every receive, and completes the records of calls. Fails if a receive has no message.
    pub(super) fn finish(self, builder: &mut Builder) -> Result<Matched, Lacking> {
        let mut found = Matched::default();
        let mut receivers: Vec<_> = self.receivers.into_iter().collect();
        receivers.sort_by_key(|(key, _)| *key);
        for ((_, to), receiver) in receivers {
            receiver.finish(to, builder, &mut found)?;
        }
        Ok(found)
    }
}

/// Source and tag that a receive asks for; `None` for any.
type Pattern = (Option<u32>, Option<u32>);

/// Channels by patterns of which they are, in the order of their first messages.
type Open = BTreeMap<Pattern, BTreeSet<(u64, Channel)>>;

/// Messages that no receive names, for receives of any source or any tag.
#[derive(Debug, Default)]
struct Spare {
    /// Number of messages of a channel that no receive names.
    of_channel: HashMap<Channel, i64>,
    /// Number of those with a tag, without those for receives of the tag and any source.
    of_tag: HashMap<u32, i64>,
    /// Number of those from a sender, without those for receives of the sender and any tag.
    of_sender: HashMap<u32, i64>,
    open: Open,
    /// Channels whose messages other receives ask for.
    held: Open,
}

impl Spare {
    fn of(channels: &BTreeMap<Channel, VecDeque<(u64, u64)>>, posted: &[Posted]) -> Spare {
        let mut spare = Spare::default();
        let mut count = |(from, tag): Channel, number: i64| {
            *spare.of_channel.entry((from, tag)).or_default() += number;
            *spare.of_tag.entry(tag).or_default() += number;
            *spare.of_sender.entry(from).or_default() += number;
        };
        for (&channel, sent) in channels {
            count(channel, sent.len() as i64);
        }
        for receive in posted {
            if let (Some(from), Some(tag)) = pattern(receive) {
                count((from, tag), -1);
            }
        }
        for receive in posted {
            match pattern(receive) {
                (None, Some(tag)) => *spare.of_tag.entry(tag).or_default() -= 1,
                (Some(from), None) => *spare.of_sender.entry(from).or_default() -= 1,
                (Some(_), Some(_)) | (None, None) => {}
            }
        }
        for (&channel, sent) in channels {
            spare.offer(channel, sent.front().map(|first| first.0));
        }
        spare
    }

    /// Offers the first message of a channel, which was sent at a time, to receives of any source or tag.
    fn offer(&mut self, channel: Channel, time: Option<u64>) {
        let (Some(time), Some(1..)) = (time, self.of_channel.get(&channel)) else {
            return;
        };
        for pattern in patterns(channel) {
            self.open
                .entry(pattern)
                .or_default()
                .insert((time, channel));
        }
    }

    /// Returns the channel from which a receive takes its message; `None` if there is no message.
    fn choose(&mut self, (from, tag): Pattern) -> Option<Channel> {
        let open = self.open.entry((from, tag)).or_default();
        while let Some(&(time, channel)) = open.first() {
            // What receives of this tag, or of this sender, ask for is left to them.
            let more = |count: Option<&i64>| count.is_some_and(|&count| count > 0);
            let of_tag = tag.is_some() || more(self.of_tag.get(&channel.1));
            let of_sender = from.is_some() || more(self.of_sender.get(&channel.0));
            if of_tag && of_sender {
                return Some(channel);
            }
            open.remove(&(time, channel));
            let held = self.held.entry((from, tag)).or_default();
            held.insert((time, channel));
        }
        // A receive that may be of nobody has asked in vain, or receives ask for both.
        let held = self.held.get(&(from, tag))?;
        Some(held.first()?.1)
    }

    /// Takes the first message of a channel, which was sent at `time`, for a receive. The next message was sent at `next`.
    fn take(&mut self, (from, tag): Pattern, channel: Channel, time: u64, next: Option<u64>) {
        for pattern in patterns(channel) {
            for sets in [&mut self.open, &mut self.held] {
                if let Some(set) = sets.get_mut(&pattern) {
                    set.remove(&(time, channel));
                }
            }
        }
        if from.is_none() || tag.is_none() {
            *self.of_channel.entry(channel).or_default() -= 1;
        }
        if tag.is_none() {
            *self.of_tag.entry(channel.1).or_default() -= 1;
        }
        if from.is_none() {
            *self.of_sender.entry(channel.0).or_default() -= 1;
        }
        self.offer(channel, next);
    }
}

/// Returns the patterns of any source or any tag of which a channel is.
fn patterns((from, tag): Channel) -> [Pattern; 3] {
    [(None, None), (None, Some(tag)), (Some(from), None)]
}

fn pattern(receive: &Posted) -> Pattern {
    let from = match receive.from {
        From::Rank(from) => Some(from),
        From::Any | From::AnyOrNull => None,
    };
    (from, receive.tag)
}

impl Receiver {
    fn finish(
        mut self,
        to: u32,
        builder: &mut Builder,
        found: &mut Matched,
    ) -> Result<(), Lacking> {
        let posted = std::mem::take(&mut self.posted);
        let exact = |receive: &Posted| match pattern(receive) {
            (Some(from), Some(tag)) => Some((from, tag)),
            _ => None,
        };
        let wild = posted.iter().any(|receive| exact(receive).is_none());
        let mut spare = wild.then(|| Spare::of(&self.channels, &posted));
        for receive in posted {
            let asked = pattern(&receive);
            let channel = match (exact(&receive), &mut spare) {
                (None, Some(spare)) => spare.choose(asked),
                (channel, _) => channel,
            };
            let sent = channel.and_then(|channel| self.channels.get_mut(&channel));
            let message = sent.and_then(|sent| Some((sent.pop_front()?, sent.front().copied())));
            let (Some(channel), Some(((time, bytes), next))) = (channel, message) else {
                if receive.from == From::AnyOrNull {
                    null(builder, &receive);
                    continue;
                }
                return Err(Lacking {
                    to,
                    from: receive.from,
                    tag: receive.tag,
                });
            };
            if let Some(spare) = &mut spare {
                spare.take(asked, channel, time, next.map(|next| next.0));
            }
            let guessed = exact(&receive).is_none();
            found.wild += u64::from(guessed);
            complete(builder, &receive, (channel.0, channel.1, bytes), guessed);
        }
        let left = self.channels.values().map(VecDeque::len).sum::<usize>();
        found.left += left as u64;
        Ok(())
    }
}

/// Completes the records of a receive from `MPI_PROC_NULL`.
fn null(builder: &mut Builder, receive: &Posted) {
    builder.patch(receive.call, Patch::Source(Peer::Null));
    builder.patch(receive.call, Patch::Room(0));
    if let Some((call, at)) = receive.completed {
        let patch = Patch::Completed {
            at,
            source: Peer::Null,
            tag: Tag::Any,
            bytes: 0,
        };
        builder.patch(call, patch);
    }
}

/// Completes the records of a receive that took a message, where they do not say so already.
fn complete(
    builder: &mut Builder,
    receive: &Posted,
    (from, tag, bytes): (u32, u32, u64),
    wild: bool,
) {
    if receive.from == From::AnyOrNull {
        builder.patch(receive.call, Patch::Source(Peer::Any));
    }
    if receive.room.is_none() {
        builder.patch(receive.call, Patch::Room(bytes));
    }
    if let Some((call, at)) = receive.completed
        && (wild || receive.room != Some(bytes))
    {
        let patch = Patch::Completed {
            at,
            source: Peer::Rank(from),
            tag: Tag::Value(tag),
            bytes,
        };
        builder.patch(call, patch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodescope_hypercall::Function;

    /// Posts receives by source and tag on rank 0, and returns source, tag and bytes of what each took.
    fn taken(
        sends: &[(u32, u32, u64, u64)],
        receives: &[(From, Option<u32>)],
    ) -> Result<Vec<(Peer, Tag, u64)>, Lacking> {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("trace.nst");
        let mut builder = Builder::new("test", &output);
        for rank in 0..4 {
            builder.process(0, rank, 0, "");
        }
        builder.nodes.push("node".into());
        let mut matcher = Matcher::default();
        for &(from, tag, time, bytes) in sends {
            matcher.send(1, (from, 0), tag, (time, bytes));
        }
        for (&(from, tag), time) in receives.iter().zip(0..) {
            let mut record = builder.record(0, Function::Recv);
            record.completions.push(Default::default());
            let call = builder.call(0, record, (time, time), (0, 0)).unwrap();
            matcher.receive(
                1,
                0,
                Posted {
                    call,
                    from,
                    tag,
                    room: Some(0),
                    completed: Some((call, 0)),
                },
            );
        }
        matcher.finish(&mut builder)?;
        builder.write(&output).unwrap();
        let trace = nodescope_trace::TraceReader::open(&output).unwrap();
        let calls = trace
            .events()
            .filter_map(|event| match event.unwrap().body {
                nodescope_trace::Body::Mpi(call) => Some(call.record.completions[0]),
                _ => None,
            });
        Ok(calls
            .map(|done| (done.source, done.tag, done.bytes))
            .collect())
    }

    #[test]
    fn any_source_takes_what_no_other_receive_names() {
        let sends = [
            (1, 5, 10, 100),
            (2, 5, 5, 200),
            (3, 6, 1, 300),
            (1, 5, 20, 400),
        ];
        let took = |receives: &[(From, Option<u32>)]| {
            let list = taken(&sends, receives).unwrap();
            list.iter().map(|(_, _, bytes)| *bytes).collect::<Vec<_>>()
        };
        // The first sent comes first; rank 2's message is for the last receive.
        let order = [
            (From::Any, Some(5)),
            (From::Any, None),
            (From::Rank(1), None),
            (From::Rank(2), Some(5)),
        ];
        assert_eq!(took(&order), [100, 300, 400, 200]);
        assert_eq!(took(&[(From::Any, None); 4]), [300, 200, 100, 400]);
    }

    #[test]
    fn any_source_and_tag_leaves_messages_to_receives_of_a_tag_or_a_sender() {
        // Without care, the first receive would take the only message with tag 9, or the only one from rank 3.
        let sends = [(1, 9, 1, 100), (3, 8, 2, 300), (2, 8, 3, 200)];
        let receives = [
            (From::Any, None),
            (From::AnyOrNull, Some(9)),
            (From::Rank(3), None),
        ];
        let list = taken(&sends, &receives).unwrap();
        let bytes: Vec<u64> = list.iter().map(|(_, _, bytes)| *bytes).collect();
        assert_eq!(bytes, [200, 100, 300]);
        // A receive that asks for a tag and may be of nobody leaves its message to others.
        let list = taken(&[(1, 9, 1, 100)], &[(From::Any, None)]).unwrap();
        assert_eq!(list[0].2, 100);
    }

    #[test]
    fn a_receive_without_a_message_is_told_or_is_of_nobody() {
        let told = taken(&[(1, 5, 0, 8)], &[(From::Rank(1), Some(6))]).unwrap_err();
        assert_eq!(
            told.to_string(),
            "rank 0 receives a message from rank 1 with tag 6 that no rank sends"
        );
        let told = taken(&[], &[(From::Any, None)]).unwrap_err();
        assert!(told.to_string().contains("any rank with any tag"));
        let list = taken(&[(1, 5, 0, 8)], &[(From::AnyOrNull, Some(5)); 2]).unwrap();
        assert_eq!(list[0], (Peer::Rank(1), Tag::Value(5), 8));
        assert_eq!(list[1].0, Peer::Null);
    }
}
