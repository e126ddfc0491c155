//! Point-to-point operations.
//!
//! A message no larger than the eager limit is sent at once, as is every buffered or ready send. A larger message, and every synchronous
//! send, sends a request first, as published for the synchronous send: Init; PostSM(request); Pack; Wait(permission); Post(n); Free. The
//! receiver grants when it has the request and a receive for it, with another service message. Init, Free, Pack and the like cost nothing
//! beyond the overheads.

use nodescope_loop_tree::{Mode, PeerRef};

use super::matching::{self, Message, Posted, Purpose};
use super::opening::Step;
use super::renamed::Accepted;
use super::{
    CONTROL_ARRIVES, Cause, Context, Interpreter, PERMISSION_ARRIVES, Phase, Request, Target,
};
use crate::code::{ANY, NONE};
use crate::network::{Model, ReceiveCost, Table, picoseconds};
use crate::result::{Problem, WaitKind};

impl Interpreter<'_> {
    /// Returns the key of an operation's communicator for point-to-point messages.
    pub(super) fn key(&self, context: u32, op: u32) -> u32 {
        2 * self.communicator(context, op)
    }

    /// Returns the program's number of an operation's communicator; `NONE / 2` for a communicator of only this rank.
    pub(super) fn communicator(&self, context: u32, op: u32) -> u32 {
        let rank = self.code.ranks[self.contexts[context as usize].rank as usize];
        let list = &self.code.program.communicator_lists[rank.communicators as usize];
        let local = self.code.communicator_of[op as usize];
        list.get(local as usize)
            .copied()
            .flatten()
            .unwrap_or(NONE / 2)
    }

    /// Returns what it costs to pack or unpack `bytes` of an operation's data. `columns` has the costs of columns of doubles: of blocks of 8
    /// bytes. Longer blocks are copied as fast as data in one piece, so that the number of blocks counts.
    pub(super) fn packing(&self, op: u32, bytes: u64, columns: &Table) -> u64 {
        match self.code.blocks.get(op as usize) {
            Some(Some(block)) => columns.at(bytes.saturating_mul(8) / u64::from(block.get())),
            _ => 0,
        }
    }

    pub(super) fn source(&self, context: u32, from: Option<PeerRef>) -> u32 {
        from.map_or(ANY, |from| from.resolve(context, self.world))
    }

    /// Returns the target to which an operation's end is reported: its context, or a request that begins.
    pub(super) fn target(&mut self, context: u32, request: u32, peer: u32) -> Target {
        if request == NONE {
            return Target::Context(context);
        }
        let index = self.request(context, request);
        self.begin(context, index, peer)
    }

    pub(super) fn begin(&mut self, context: u32, index: u32, peer: u32) -> Target {
        let request = &mut self.requests[index as usize];
        *request = Request {
            done: false,
            awaited: false,
            generation: request.generation.wrapping_add(1),
            at: 0,
            cost: ReceiveCost::default(),
            cause: None,
            rank: context,
            peer,
        };
        Target::Request {
            index,
            generation: request.generation,
        }
    }

    pub(super) fn expect(&mut self, target: Target) {
        if let Target::Context(context) = target {
            self.contexts[context as usize].pending += 1;
        }
    }

    pub(super) fn send(
        &mut self,
        context: u32,
        to: u32,
        (key, tag): (u32, u32),
        bytes: u64,
        mode: Mode,
        target: Target,
    ) {
        let Context {
            rank,
            op,
            clock: start,
            ..
        } = self.contexts[context as usize];
        if to >= self.world {
            // A rank that does not exist takes no messages; the program would have failed.
            return;
        }
        let channel = self.channel(rank, to, op);
        self.events += 1;
        self.sent += 1;
        self.note_connection(rank, to, start);
        self.sent_bytes = self.sent_bytes.saturating_add(bytes);
        let sent = self.message(context, to, bytes, target);
        let cause = Cause {
            kind: WaitKind::LateReceiver,
            rank: to,
            ..sent.cause()
        };
        let buffered = matches!(mode, Mode::Buffered | Mode::Ready);
        let rendezvous = mode == Mode::Synchronous || (!buffered && bytes > channel.eager_limit);
        let (before, after) = self.notification_times(op, channel);
        let mut busy = match channel.model {
            Model::LogGp => channel.send_overhead.at(bytes),
            Model::Post => 0,
        };
        busy += before + self.packing(op, bytes, &channel.pack_overhead);
        let ready = self
            .acknowledgements
            .send((rank, to), bytes, (start, start + busy), channel);
        self.contexts[context as usize].clock = ready + after;
        let mut message = Message {
            key,
            tag,
            arrival: ready + channel.service(),
            rendezvous,
            in_flight: match rendezvous {
                true => self.service_shares((rank, to), channel),
                false => self.arrives_unknown((rank, to), bytes, channel),
            },
            ..sent
        };
        if self.opens_first(rank, to, ready) {
            message.in_flight = true;
            if mode == Mode::Buffered {
                message.sender = Target::Nobody;
                if matches!(target, Target::Request { .. }) {
                    self.complete(target, ready, ReceiveCost::default(), cause);
                }
            } else {
                self.expect(target);
            }
            let number = self.deliver(message);
            return self.hold(number);
        }
        if rendezvous {
            self.expect(target);
        } else if message.in_flight {
            match channel.model {
                Model::Post if mode != Mode::Buffered => self.expect(target),
                _ => {
                    message.sender = Target::Nobody;
                    if matches!(target, Target::Request { .. }) {
                        self.complete(target, ready, ReceiveCost::default(), cause);
                    }
                }
            }
            let number = self.deliver(message);
            self.depart(number, ready, channel.gap, true);
            return;
        } else {
            let (_, arrival) = self.transfer((rank, to), bytes, ready, channel, true);
            message.arrival = arrival;
            match (channel.model, target) {
                (Model::LogGp, Target::Context(_)) => {}
                (Model::Post, Target::Context(_)) if mode != Mode::Buffered => {
                    self.busy_sending(context, arrival, message.origin, cause);
                    self.contexts[context as usize].clock = arrival;
                }
                // The library posts a buffered message while its sender continues.
                (Model::Post, Target::Context(_)) => self.progresses(rank, start, arrival),
                (Model::Post, _) => {
                    self.progresses(rank, start, arrival);
                    let end = if mode == Mode::Buffered {
                        ready
                    } else {
                        arrival
                    };
                    self.complete(target, end, ReceiveCost::default(), cause);
                }
                (Model::LogGp, _) => self.complete(target, ready, ReceiveCost::default(), cause),
            }
        }
        let request_in_flight = rendezvous && message.in_flight;
        let number = self.deliver(message);
        if request_in_flight {
            self.send_request(number, ready);
        }
    }

    /// Returns a message that an operation sends now.
    pub(super) fn message(&self, context: u32, to: u32, bytes: u64, sender: Target) -> Message {
        let c = &self.contexts[context as usize];
        Message {
            from: c.rank,
            to,
            key: NONE,
            tag: NONE,
            bytes,
            arrival: 0,
            entered: c.entered,
            op: c.op,
            sequence: self.sent as u32,
            next: NONE,
            rendezvous: false,
            left: 0,
            passed: 0,
            in_flight: false,
            sender,
            origin: self.origin(context),
            receive: NONE,
            taken: false,
            purpose: Purpose::Data,
        }
    }

    /// Delivers a message to the first posted receive that accepts it, or else to its receiver's queue. Returns the message's number, which
    /// matters only if the arrival is unknown.
    fn deliver(&mut self, message: Message) -> u32 {
        let to = message.to as usize;
        let mut probes = Vec::new();
        let posted = matching::take_posted(
            &mut self.queues.posted[to],
            &mut self.posted,
            &message,
            |probe| probes.push(probe),
        );
        let number = self.messages.add(message);
        for probe in probes {
            let Posted { target, traced, .. } = *self.posted.get(probe);
            self.posted.release(probe);
            self.complete_probe(number, target, traced);
        }
        if posted == NONE {
            matching::append(&mut self.queues.messages[to], &mut self.messages, number);
        } else {
            self.match_message(number, posted);
        }
        number
    }

    /// Notes whose message a receive or probe from any source took, in place of the one that matched where the program was traced.
    fn note_sender(&mut self, number: u32, traced: u32) {
        if traced < ANY {
            let message = self.messages.get(number);
            self.renamed.swap(message.to, traced, message.from);
        }
    }

    /// Completes a probe that has found a message, at the message's arrival, or postpones that while the arrival is unknown.
    fn complete_probe(&mut self, number: u32, target: Target, traced: u32) {
        self.note_sender(number, traced);
        let message = self.messages.get(number);
        if message.in_flight {
            self.probed.entry(number).or_default().push(target);
        } else {
            let (arrival, cause) = (message.arrival, message.cause());
            self.complete(target, arrival, ReceiveCost::default(), cause);
        }
    }

    pub(super) fn receive(
        &mut self,
        context: u32,
        from: Accepted,
        (key, tag): (u32, u32),
        room: u64,
        target: Target,
    ) {
        self.events += 1;
        self.expect(target);
        self.post(context, from, (key, tag), room, target, false);
    }

    pub(super) fn probe(&mut self, context: u32, from: Accepted, (key, tag): (u32, u32)) {
        let target = Target::Context(context);
        self.expect(target);
        self.post(context, from, (key, tag), 0, target, true);
    }

    fn post(
        &mut self,
        context: u32,
        from: Accepted,
        (key, tag): (u32, u32),
        room: u64,
        target: Target,
        probe: bool,
    ) {
        let Context {
            rank, op, clock, ..
        } = self.contexts[context as usize];
        let posted = Posted {
            from: from.peer,
            traced: from.traced,
            key,
            tag,
            room,
            time: clock,
            op,
            next: NONE,
            probe,
            target,
            origin: self.origin(context),
        };
        let list = &mut self.queues.messages[rank as usize];
        let message = matching::take_message(list, &mut self.messages, &posted);
        if message == NONE {
            let number = self.posted.add(posted);
            let list = &mut self.queues.posted[rank as usize];
            matching::append(list, &mut self.posted, number);
        } else if probe {
            self.complete_probe(message, target, posted.traced);
        } else {
            let number = self.posted.add(posted);
            self.match_message(message, number);
        }
    }

    /// Matches a message with its receive.
    fn match_message(&mut self, number: u32, posted_number: u32) {
        let posted = self.posted.get(posted_number).clone();
        self.note_sender(number, posted.traced);
        let message = self.messages.get(number);
        if message.bytes > posted.room && message.key.is_multiple_of(2) {
            self.truncated(number, &posted);
        }
        let message = self.messages.get(number);
        let (rendezvous, in_flight) = (message.rendezvous, message.in_flight);
        if rendezvous || in_flight {
            self.messages.get_mut(number).receive = posted_number;
        }
        match (in_flight, rendezvous) {
            (true, _) => {}
            (false, true) => self.ask(number),
            (false, false) => self.complete_eager(number, posted_number),
        }
    }

    /// Completes the receive of an eager message.
    fn complete_eager(&mut self, number: u32, posted_number: u32) {
        let posted = self.posted.get(posted_number).clone();
        let message = self.messages.get(number);
        let arrival = message.arrival;
        let (from, to, bytes, cause) = (message.from, message.to, message.bytes, message.cause());
        let channel = self.channel(from, to, message.op);
        let mut cost = if message.taken {
            ReceiveCost::default()
        } else {
            channel.receive(bytes)
        };
        if arrival <= posted.time {
            cost = cost.and(channel.copy(bytes));
        }
        cost = cost.and(self.packing(posted.op, bytes, &channel.unpack_overhead));
        if matches!(posted.target, Target::Request { .. }) {
            let begins = arrival.saturating_sub(channel.wire(bytes));
            self.progresses(to, begins.max(posted.time), arrival);
        }
        self.messages.release(number);
        self.posted.release(posted_number);
        self.complete(posted.target, arrival.max(posted.time), cost, cause);
    }

    /// Returns whether messages of a rank progress: the rank waits in a call or has ended, or large messages progress at any time.
    pub(super) fn in_mpi(&self, rank: u32) -> bool {
        self.asynchronous
            || matches!(
                self.contexts[rank as usize].phase,
                Phase::Blocked | Phase::Done
            )
    }

    /// Returns whether a target is a rank itself, which is in MPI as long as it waits.
    pub(super) fn is_rank(&self, target: Target) -> bool {
        matches!(target, Target::Context(context) if context < self.world)
    }

    /// Handles a control message that arrives at a rank, which may be computing.
    pub(super) fn control_arrived(&mut self, number: u32, time: u64) {
        let Message { to, purpose, .. } = *self.messages.get(number);
        match purpose {
            Purpose::Data => {}
            Purpose::Access(back) => return self.access_arrived(number, back, time),
            Purpose::Answer => return self.complete_access(number, time),
            Purpose::Acknowledgement(takes) => return self.acknowledge(number, takes),
            Purpose::Request(of) => {
                self.messages.release(number);
                return self.request_arrived(of, time);
            }
            Purpose::Permission(of) => {
                self.messages.release(number);
                return self.permission_arrived(of, time);
            }
            Purpose::Opening(step) if step == Step::Poll || self.in_mpi(to) => {
                return self.open_step(number, step, time);
            }
            Purpose::Opening(_) => {}
        }
        if self.in_mpi(to) {
            let time = self.serviced(to, time);
            self.grant(number, time);
        } else {
            self.deferred
                .entry(to)
                .or_default()
                .push(CONTROL_ARRIVES | number);
        }
    }

    /// Handles a permission (clear to send) that arrives at a rank, which may be computing.
    pub(super) fn permission_arrived(&mut self, number: u32, time: u64) {
        let message = self.messages.get(number);
        let waits = self.is_rank(message.sender);
        let from = message.from;
        if waits || self.in_mpi(from) {
            let time = self.serviced(from, time);
            self.send_data(number, time);
        } else {
            self.deferred
                .entry(from)
                .or_default()
                .push(PERMISSION_ARRIVES | number);
        }
    }

    /// Continues the messages and non-blocking collectives that waited until a rank is in MPI.
    pub(super) fn call_deferred(&mut self, context: u32) {
        if self.deferred.is_empty() {
            return;
        }
        for what in self.deferred.remove(&context).unwrap_or_default() {
            if what < CONTROL_ARRIVES {
                self.move_on_in_call(what, context);
                continue;
            }
            let number = what & !(CONTROL_ARRIVES | PERMISSION_ARRIVES);
            let time = self.contexts[context as usize].clock;
            match self.messages.get(number).purpose {
                Purpose::Opening(step) => {
                    self.open_step(number, step, time);
                    continue;
                }
                Purpose::Access(back) => {
                    self.serve_access(number, back);
                    continue;
                }
                _ => {}
            }
            self.note_late(what, context);
            if what & PERMISSION_ARRIVES != 0 {
                self.send_data(what & !PERMISSION_ARRIVES, time);
            } else {
                self.grant(what & !CONTROL_ARRIVES, time);
            }
        }
    }

    /// Sends the data of a message that has permission.
    pub(super) fn send_data(&mut self, number: u32, time: u64) {
        let message = self.messages.get(number);
        let (from, to, bytes) = (message.from, message.to, message.bytes);
        let channel = self.channel(from, to, message.op);
        if channel.send_per_byte > 0.0 && !self.asynchronous {
            let busy = picoseconds(bytes as f64 * channel.send_per_byte);
            let cost = ReceiveCost::default().and(busy);
            self.contexts[from as usize].add_cost(time, cost);
        }
        if self.arrives_unknown((from, to), bytes, channel) {
            self.depart(number, time, channel.gap, false);
        } else {
            let (sent, arrival) = self.transfer((from, to), bytes, time, channel, false);
            self.complete_rendezvous(number, time, sent, arrival);
        }
    }

    /// Sets the arrival of a message in flight: when its last byte has left, and when it arrives.
    pub(super) fn set_arrival(&mut self, number: u32, left: u64, arrival: u64) {
        if self.messages.get(number).purpose != Purpose::Data {
            self.schedule(arrival, CONTROL_ARRIVES | number);
            return;
        }
        let message = self.messages.get_mut(number);
        if message.rendezvous {
            // Progress threads take nothing of the processor where arrivals are unknown.
            self.complete_rendezvous(number, left, left, arrival);
            return;
        }
        (message.in_flight, message.arrival) = (false, arrival);
        let (to, op, receive, sender) = (message.to, message.op, message.receive, message.sender);
        let cause = message.cause();
        let late = Cause {
            rank: to,
            op,
            kind: WaitKind::LateReceiver,
            ..cause
        };
        self.complete(sender, arrival, ReceiveCost::default(), late);
        for target in self.probed.remove(&number).unwrap_or_default() {
            self.complete(target, arrival, ReceiveCost::default(), cause);
        }
        if receive != NONE {
            self.complete_eager(number, receive);
        }
    }

    /// Completes a rendezvous, whose data begins at `time`, has left at `sent` and arrives at `arrival`.
    fn complete_rendezvous(&mut self, number: u32, time: u64, sent: u64, arrival: u64) {
        let message = self.messages.get(number).clone();
        let posted = self.posted.get(message.receive).clone();
        let (from, to, bytes) = (message.from, message.to, message.bytes);
        let channel = self.channel(from, to, message.op);
        let (origin, way) = self.decided(number);
        if !matches!(message.sender, Target::Nobody) {
            let left = match channel.model {
                Model::LogGp => sent,
                Model::Post => arrival,
            };
            self.end_send(number, time, left);
        }
        self.late.remove(&number);
        self.messages.release(number);
        self.posted.release(message.receive);
        if matches!(posted.target, Target::Request { .. }) {
            self.progresses(to, arrival.saturating_sub(channel.wire(bytes)), arrival);
        }
        let mut cost = channel.receive(bytes);
        cost = cost.and(self.packing(posted.op, bytes, &channel.unpack_overhead));
        let sender = Cause {
            origin,
            way,
            ..message.cause()
        };
        self.complete(posted.target, arrival, cost, sender);
    }

    /// Lets a context wait for requests: notes the complete ones, and counts the others as pending.
    pub(super) fn wait(&mut self, context: u32, start: u32, length: u32) {
        for at in start..start + length {
            let index = self.request(context, self.code.lists[at as usize]);
            self.wait_for(context, index);
        }
    }

    /// Lets a context wait for a request.
    pub(super) fn wait_for(&mut self, context: u32, index: u32) {
        let request = &mut self.requests[index as usize];
        let c = &mut self.contexts[context as usize];
        if request.done {
            if let Some(cause) = request.cause {
                c.note_completion(request.at, cause);
            }
            c.add_cost(request.at, std::mem::take(&mut request.cost));
            if self.meetings.is_some()
                && let Some(cause) = request.cause
            {
                self.meet_in_call(context, &cause);
            }
        } else if !request.awaited {
            request.awaited = true;
            c.pending += 1;
        }
    }

    /// Cancels a receive that has got no message.
    pub(super) fn cancel(&mut self, context: u32, index: u32) {
        let list = &mut self.queues.posted[context as usize];
        let posted = matching::take_request(list, &mut self.posted, index);
        if posted != NONE {
            self.posted.release(posted);
        }
        let request = &mut self.requests[index as usize];
        request.done = true;
        request.generation = request.generation.wrapping_add(1);
    }

    fn truncated(&mut self, number: u32, posted: &Posted) {
        let message = self.messages.get(number);
        let (from, to, bytes) = (message.from, message.to, message.bytes);
        let at = self.code.describe(posted.op);
        let same = self.problems.iter_mut().find_map(|problem| match problem {
            Problem::Truncated {
                from: f,
                to: t,
                bytes: b,
                at: a,
                count,
                ..
            } if *f == from && *t == to && *b == bytes && *a == at => Some(count),
            _ => None,
        });
        match same {
            Some(count) => *count += 1,
            None => self.problems.push(Problem::Truncated {
                from,
                to,
                bytes,
                room: posted.room,
                at,
                count: 1,
            }),
        }
    }
}
