//! The discrete-event interpreter: a logical process with a clock of its own for each rank.
//!
//! A rank runs until it has to wait for a message. A message's arrival is usually known when it enters the network, so a wait ends at a
//! time known in advance and takes one event. The arrival is not known where links are shared equally or by frames. Ranks may share more
//! than messages: links, or a rank that must be in MPI for a large message to progress. Then operations are interpreted in the order of
//! their times. Otherwise each rank runs ahead as far as it can, with the same result. Receives from any source take the messages that
//! matched according to the trace, or the first that come.
//!
//! All that is stored per message and per rank lies in arrays, linked by 32-bit numbers.

mod acknowledgements;
mod burst;
mod collective;
mod context;
mod critical_path;
mod diagnosis;
mod event_queue;
mod fluid;
mod fragments;
mod frames;
mod links;
mod matching;
mod meetings;
mod one_sided;
mod opening;
mod point_to_point;
mod race;
mod renamed;
mod service;
mod timeline;
mod unexpected;

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::cluster::{Cluster, FitError, LONGEST, Progress};
use crate::code::{Code, Instruction, NONE, Operation};
use crate::network::{Channel, ReceiveCost};
use crate::result::{Connections, Outcome, Problem, RankTimes, WaitKind};
use acknowledgements::Acknowledgements;
use burst::ProgressThread;
use collective::Communicator;
use context::{Cause, Context, IDLE, Phase, Request, Target};
use critical_path::{Origin, Path, Way};
use event_queue::EventQueue;
use links::Links;
use matching::{Message, Posted, Queues, Slab};
pub(crate) use meetings::{Meetings, Waited};
use opening::Openings;
use renamed::Renamed;

/// Options of an interpretation.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Seed for drawing each burst at random from its slot's values on its rank; `None` takes bursts as traced.
    pub resample: Option<u64>,
    /// Upper bound of the delay with which each rank begins, picoseconds. Each delay is drawn at random with the seed; unused without a
    /// seed.
    pub stagger: u64,
    /// True to keep what the critical path needs: about 64 bytes for each wait.
    pub critical_path: bool,
    /// True to interpret in the order of times even where the order changes nothing.
    pub force_order: bool,
    /// Most links to report; the busiest come first.
    pub links: usize,
    /// True to keep the times of each rank in each call: 32 bytes for each call.
    pub timeline: bool,
    /// True to note when each two ranks of different nodes exchange their first message.
    pub connections: bool,
    /// True if receives from any source take the messages that they took where the program was traced. Otherwise they take the first that
    /// comes.
    pub matched: bool,
    /// True to keep each wait, and when ranks met: 16 bytes for each message, 24 for each collective of a rank.
    pub meetings: bool,
    /// By rank: millionths of their time that bursts take; empty for all of it.
    pub pace: Vec<u32>,
    /// Channels between nodes and within nodes that take the place of the cluster's for some messages.
    pub channels: Vec<(Channel, Channel)>,
    /// By operation of the program: index of these channels for the messages that the operation sends. A number beyond them, or none,
    /// means the cluster's channels.
    pub channel_of: Vec<u32>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            resample: None,
            stagger: 0,
            critical_path: true,
            force_order: false,
            links: 10,
            timeline: false,
            connections: false,
            matched: true,
            meetings: false,
            pace: Vec::new(),
            channels: Vec::new(),
            channel_of: Vec::new(),
        }
    }
}

/// Interprets a program on a cluster.
///
/// # Errors
///
/// A program that does not fit on the cluster, or a progress thread's share that cannot be predicted with its links.
pub fn interpret(
    code: &Code<'_>,
    cluster: &Cluster,
    options: &Options,
) -> Result<Outcome, FitError> {
    let nodes = cluster.place_ranks(code.ranks.len() as u32, &code.program.origin)?;
    cluster.can_share()?;
    let mut interpreter = Interpreter::new(code, cluster, options, nodes);
    interpreter.run();
    Ok(interpreter.finish())
}

pub(crate) use fragments::{Ends, interpret_from};

#[derive(Clone, Copy, Debug, Default)]
struct Account {
    computation: u64,
    opaque: u64,
    wait: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct WaitSum {
    count: u64,
    time: u64,
    longest: u64,
    late_rank: u32,
}

/// Number of events by which a context's memory is prefetched before its own event.
const AHEAD: usize = 8;

/// Event code, added to a message's number: a control message arrives that no receive takes, such as a request to send, an access to memory
/// or its answer; or an acknowledgement leaves. Codes below this one are numbers of contexts.
const CONTROL_ARRIVES: u32 = 1 << 30;
/// Event code, added to a message's number: a permission (clear to send) arrives.
const PERMISSION_ARRIVES: u32 = 1 << 31;
/// Event code of a message that enters a network whose links are shared equally, or whose last frame comes to its receiver's link.
const ENTERS_NETWORK: u32 = CONTROL_ARRIVES | PERMISSION_ARRIVES;
/// Event code of an update of the shares of equally shared links.
const LINK_UPDATE: u32 = u32::MAX;

struct Interpreter<'a> {
    code: &'a Code<'a>,
    cluster: &'a Cluster,
    options: &'a Options,
    world: u32,
    node_of: Vec<u32>,
    ordered: bool,
    /// True if large messages progress while their ranks compute.
    asynchronous: bool,
    beta: f64,
    /// True if waiting ranks process unexpected messages, too.
    receives_unexpected: bool,
    contexts: Vec<Context>,
    spare: Vec<u32>,
    renamed: Renamed,
    /// As `renamed`, of the numbers of requests.
    renamed_requests: Renamed,
    queue: EventQueue,
    /// Contexts that can continue, where the order of times does not matter.
    runnable: Vec<u32>,
    messages: Slab<Message>,
    posted: Slab<Posted>,
    queues: Queues,
    requests: Vec<Request>,
    /// By rank: requests that may be complete and whose messages have not been processed.
    unread: Vec<Vec<u32>>,
    loops: Vec<u32>,
    cursors: Vec<u32>,
    accounts: Vec<Account>,
    communicators: Vec<Communicator>,
    links: Links,
    openings: Openings,
    acknowledgements: Acknowledgements,
    progress_threads: Vec<ProgressThread>,
    /// Control messages and non-blocking collectives that wait until a rank is in MPI, as event codes by rank.
    deferred: HashMap<u32, Vec<u32>>,
    /// Probes that wait for messages whose arrival is not known yet, by message.
    probed: HashMap<u32, Vec<Target>>,
    path: Path,
    /// Messages that waited until a rank was in MPI: the moment at which it was, and what was left to do.
    late: HashMap<u32, (Origin, Way)>,
    calls: timeline::Calls,
    meetings: Option<Meetings>,
    reduced: Vec<fragments::Entries>,
    /// True if a rank has processed several messages one after the other.
    queued: bool,
    waits: HashMap<(WaitKind, u32, u32), WaitSum>,
    problems: Vec<Problem>,
    stopped: bool,
    now: u64,
    events: u64,
    sent: u64,
    sent_bytes: u64,
    /// Time of the first message between two ranks of different nodes, by the lower and the higher rank.
    first_messages: HashMap<(u32, u32), u64>,
    /// Times at which the first and the last rank passed each mark.
    marks: Vec<(u64, u64)>,
}

impl<'a> Interpreter<'a> {
    fn new(
        code: &'a Code<'a>,
        cluster: &'a Cluster,
        options: &'a Options,
        node_of: Vec<u32>,
    ) -> Interpreter<'a> {
        let world = code.ranks.len() as u32;
        let (asynchronous, beta) = match cluster.progress {
            Progress::Calls => (false, 0.0),
            Progress::Thread { beta } => (true, beta),
        };
        // With blocking operations only, a rank is always in MPI where a message needs it.
        let receives_unexpected = cluster.receives_unexpected && !asynchronous;
        let openings = Openings::new(cluster, world);
        let acknowledgements = Acknowledgements::new(cluster, world);
        let shares = cluster.contention
            || beta > 0.0
            || code.nonblocking_collectives
            || code.one_sided
            || receives_unexpected
            || openings.take_time()
            || acknowledgements.take_time()
            || cluster.memory_contention
            || (!asynchronous && code.overlaps);
        let contexts = (code.ranks.iter().zip(0..))
            .map(|(rank, number)| Context {
                counter: rank.start,
                clock: burst::begin(options, number),
                ..Context::new(number)
            })
            .collect();
        Interpreter {
            code,
            cluster,
            options,
            world,
            ordered: options.force_order
                || code.wildcards
                || (code.any_source && !options.matched)
                || shares,
            asynchronous,
            beta,
            receives_unexpected,
            contexts,
            spare: Vec::new(),
            renamed: Renamed::new(code.any_source && !options.matched),
            renamed_requests: Renamed::new(code.any_source && !options.matched),
            queue: EventQueue::default(),
            runnable: Vec::new(),
            messages: Slab::default(),
            posted: Slab::default(),
            queues: Queues::new(world),
            requests: vec![IDLE; code.requests as usize],
            unread: vec![
                Vec::new();
                if receives_unexpected {
                    world as usize
                } else {
                    0
                }
            ],
            loops: vec![0; code.loops as usize],
            cursors: vec![0; code.cursors as usize],
            accounts: vec![Account::default(); world as usize],
            communicators: Communicator::all(code),
            links: Links::new(cluster, world, &node_of),
            openings,
            acknowledgements,
            progress_threads: vec![
                ProgressThread::default();
                if beta > 0.0 { world as usize } else { 0 }
            ],
            deferred: HashMap::new(),
            probed: HashMap::new(),
            path: Path::new(options.critical_path),
            late: HashMap::new(),
            calls: timeline::Calls::new(options.timeline, world),
            meetings: Meetings::new(options.meetings, world),
            reduced: fragments::Entries::all(code.fragments),
            queued: false,
            waits: HashMap::new(),
            problems: Vec::new(),
            stopped: false,
            now: 0,
            events: 0,
            sent: 0,
            sent_bytes: 0,
            first_messages: HashMap::new(),
            marks: vec![(u64::MAX, 0); code.marks as usize],
            node_of,
        }
    }

    fn run(&mut self) {
        // The last to become runnable runs first.
        for rank in (0..self.world).rev() {
            self.wake(rank, self.contexts[rank as usize].clock);
        }
        while let Some(context) = self.runnable.pop() {
            self.run_context(context);
            if self.stopped {
                return;
            }
        }
        while let Some((time, what)) = self.queue.take() {
            self.now = time;
            if let Some(next) = self.queue.ahead(AHEAD) {
                self.prefetch_context(next);
            }
            if what & ENTERS_NETWORK == ENTERS_NETWORK {
                match what {
                    LINK_UPDATE => self.update_shares(time),
                    _ if self.links.arriving.is_empty() => {
                        self.enter_network(what & !ENTERS_NETWORK, time)
                    }
                    _ => self.pass_frames(what & !ENTERS_NETWORK),
                }
            } else if what & PERMISSION_ARRIVES != 0 {
                self.permission_arrived(what & !PERMISSION_ARRIVES, time);
            } else if what & CONTROL_ARRIVES != 0 {
                self.control_arrived(what & !CONTROL_ARRIVES, time);
            } else if self.contexts[what as usize].wake == time {
                self.run_context(what);
            }
            if self.stopped {
                return;
            }
        }
        self.deadlock();
    }

    /// Prefetches the memory of a context that will soon continue.
    fn prefetch_context(&self, what: u32) {
        let Some(context) = self.contexts.get(what as usize) else {
            return;
        };
        event_queue::prefetch(context);
        if let Some(account) = self.accounts.get(what as usize) {
            event_queue::prefetch(account);
            event_queue::prefetch(&self.queues.messages[what as usize]);
            event_queue::prefetch(&self.queues.posted[what as usize]);
            self.links.prefetch(self.node_of[what as usize]);
        }
    }

    /// Wakes a context at a time.
    fn wake(&mut self, context: u32, time: u64) {
        self.contexts[context as usize].wake = time;
        if self.exceeds_limit(time) {
            return;
        }
        if self.ordered {
            self.queue.add(time, context, context);
        } else {
            self.runnable.push(context);
        }
    }

    /// Returns whether a time is beyond the longest that is interpreted, and then stops the interpretation. A rank or a link adds so
    /// little to its time in one step that a check afterwards suffices.
    fn exceeds_limit(&mut self, time: u64) -> bool {
        if time <= LONGEST {
            return false;
        }
        if !self.stopped {
            self.stopped = true;
            self.problems.push(Problem::TooLong { time: LONGEST });
        }
        true
    }

    /// Schedules the arrival of a control message or a permission. Arrivals of equal time are ordered by the time of sending.
    fn schedule(&mut self, time: u64, what: u32) {
        if self.exceeds_limit(time) {
            return;
        }
        let message = self.messages.get(what % CONTROL_ARRIVES);
        let order =
            (what & (CONTROL_ARRIVES | PERMISSION_ARRIVES)) | (message.sequence % CONTROL_ARRIVES);
        self.queue.add(time, order, what);
    }

    /// Returns whether an event comes before `time`; false where the order of times does not matter.
    fn has_earlier_event(&mut self, time: u64) -> bool {
        self.ordered
            && self
                .queue
                .earliest()
                .is_some_and(|earliest| earliest < time)
    }

    /// Runs a context until it waits or ends.
    fn run_context(&mut self, context: u32) {
        if context >= self.world {
            self.resume_nonblocking(context);
            return;
        }
        let at = context as usize;
        loop {
            if self.exceeds_limit(self.contexts[at].clock) {
                return;
            }
            let c = &self.contexts[at];
            if c.phase == Phase::Blocked && !c.race.is_empty() && !self.decide(context) {
                return;
            }
            match self.contexts[at].phase {
                Phase::Done => return,
                Phase::Computing => self.contexts[at].phase = Phase::Operate,
                Phase::Next => {
                    if !self.step(context) {
                        return;
                    }
                }
                Phase::Operate => {
                    let clock = self.contexts[at].clock;
                    if self.has_earlier_event(clock) {
                        self.wake(context, clock);
                        return;
                    }
                    self.contexts[at].entered = clock;
                    if self.polls(context) {
                        self.enter_mpi(context, clock);
                        self.call_deferred(context);
                    }
                    if !self.operate(context) {
                        self.contexts[at].phase = Phase::Blocked;
                        return;
                    }
                    self.leave_operation(at);
                }
                // The event is out of date: the context still waits.
                Phase::Blocked if self.contexts[at].pending > 0 => return,
                Phase::Blocked => {
                    if self.process_unexpected(context) {
                        return;
                    }
                    self.unblock(context);
                    if !self.resume(context) {
                        return;
                    }
                    self.leave_operation(at);
                }
            }
            if self.stopped {
                return;
            }
        }
    }

    fn leave_operation(&mut self, at: usize) {
        if self.calls.keep {
            self.keep_call(at, self.contexts[at].entered);
        }
        self.openings.leave(at as u32, self.contexts[at].clock);
        self.contexts[at].counter += 1;
        self.contexts[at].phase = Phase::Next;
    }

    /// Executes one instruction. Returns false if the context does not continue now.
    fn step(&mut self, context: u32) -> bool {
        let at = context as usize;
        let rank = self.code.ranks[at];
        let Context { counter, depth, .. } = self.contexts[at];
        match self.code.instructions[counter as usize] {
            Instruction::Step { column, op } => {
                self.contexts[at].op = op;
                let time = self.burst(context, column);
                self.events += 1;
                self.accounts[at].computation += time;
                if self.beta > 0.0 && time > 0 {
                    self.compute_with_progress_thread(context, time);
                    return false;
                }
                self.contexts[at].clock += time;
                self.contexts[at].phase = Phase::Operate;
            }
            Instruction::Opaque { column, own, op } => {
                self.contexts[at].op = op;
                let burst = self.burst(context, column);
                let own = self.burst(context, own);
                self.events += 1;
                self.accounts[at].computation += burst;
                self.accounts[at].opaque += own;
                self.contexts[at].clock += burst + own;
                if self.calls.keep {
                    self.keep_call(at, self.contexts[at].clock - own);
                }
                self.contexts[at].counter += 1;
            }
            Instruction::Loop { count } => {
                self.loops[(rank.loops + depth) as usize] = count;
                self.contexts[at].depth += 1;
                self.contexts[at].counter += 1;
            }
            Instruction::End { start } => {
                let left = &mut self.loops[(rank.loops + depth - 1) as usize];
                *left -= 1;
                if *left > 0 {
                    self.contexts[at].counter = start;
                } else {
                    self.contexts[at].depth -= 1;
                    self.contexts[at].counter += 1;
                }
            }
            Instruction::Stop => {
                // The end of a rank's program lets all messages continue that wait for the rank.
                self.call_deferred(context);
                self.contexts[at].op = NONE;
                self.contexts[at].phase = Phase::Done;
                return false;
            }
        }
        true
    }

    /// Returns whether the library looks for messages in a context's operation. It does not where it only begins a send or a receive.
    fn polls(&self, context: u32) -> bool {
        match self.code.operations[self.contexts[context as usize].op as usize] {
            Operation::Send { request, .. } | Operation::Receive { request, .. } => request == NONE,
            Operation::Mark(_) | Operation::Free { .. } => false,
            _ => true,
        }
    }

    /// Begins an operation; returns false if the operation blocks.
    fn operate(&mut self, context: u32) -> bool {
        let at = context as usize;
        let op = self.contexts[at].op;
        match self.code.operations[op as usize] {
            Operation::Nothing => return true,
            Operation::Send {
                to,
                tag,
                bytes,
                mode,
                request,
            } => {
                let to = self.renamed.here(context, to.resolve(context, self.world));
                let target = self.target(context, request, to);
                let key = self.key(context, op);
                self.send(context, to, (key, tag), bytes, mode, target);
            }
            Operation::Receive {
                from,
                any,
                tag,
                room,
                request,
            } => {
                let from = self.accepted(context, from, any);
                let target = self.target(context, request, from.peer);
                let key = self.key(context, op);
                self.receive(context, from, (key, tag), room, target);
            }
            Operation::SendReceive(index) => {
                let both = self.code.send_receives[index as usize];
                let key = self.key(context, op);
                if let Some((from, tag, room)) = both.receive {
                    let from = self.accepted(context, from, false);
                    self.receive(context, from, (key, tag), room, Target::Context(context));
                }
                if let Some((to, tag, bytes)) = both.send {
                    let to = self.renamed.here(context, to.resolve(context, self.world));
                    let mode = nodescope_loop_tree::Mode::Standard;
                    self.send(
                        context,
                        to,
                        (key, tag),
                        bytes,
                        mode,
                        Target::Context(context),
                    );
                }
            }
            Operation::OneSided {
                to,
                out,
                back,
                request,
            } => {
                let to = to.resolve(context, self.world);
                let target = self.target(context, request, to);
                self.access(context, to, (out, back), target);
            }
            Operation::Probe { from, any, tag } => {
                let from = self.accepted(context, from, any);
                let key = self.key(context, op);
                self.probe(context, from, (key, tag));
            }
            Operation::Mark(number) => {
                let time = self.contexts[at].clock;
                let (first, last) = &mut self.marks[number as usize];
                (*first, *last) = ((*first).min(time), (*last).max(time));
            }
            Operation::Reduced(number) => self.enter_reduced(context, number),
            Operation::Wait { start, length } => self.wait(context, start, length),
            Operation::WaitSome {
                start,
                length,
                among,
            } => self.wait_for_some(context, (start, length), among),
            Operation::Free { start, length } => {
                for index in start..start + length {
                    let request = self.request(context, self.code.lists[index as usize]);
                    let request = &mut self.requests[request as usize];
                    request.generation = request.generation.wrapping_add(1);
                    request.done = true;
                }
            }
            Operation::Cancel { start, length } => {
                for index in start..start + length {
                    let request = self.request(context, self.code.lists[index as usize]);
                    self.cancel(context, request);
                }
            }
            Operation::Collective(index) => return self.enter(context, index),
        }
        self.settle(context)
    }

    /// Takes the completions of an operation that has begun. Returns false if something is still pending.
    fn settle(&mut self, context: u32) -> bool {
        if self.contexts[context as usize].pending > 0 {
            return false;
        }
        if self.process_unexpected(context) {
            return false;
        }
        self.unblock(context);
        true
    }

    /// Continues an operation after its wait. Returns false if the operation blocks again.
    fn resume(&mut self, context: u32) -> bool {
        if self.contexts[context as usize].collective == NONE {
            return true;
        }
        self.advance(context)
    }

    /// Moves the clock to the end of a wait, and accounts for the wait.
    fn unblock(&mut self, context: u32) {
        let c = &mut self.contexts[context as usize];
        let start = c.clock;
        let ready = c.ready.max(start);
        c.clock = c.processed_at();
        self.queued |= c.inbox.len() > 1;
        c.inbox.clear();
        (c.ready, c.cost, c.disturbed) = (0, 0, 0);
        let (Some(cause), true) = (c.cause.take(), ready > start) else {
            return;
        };
        let (rank, op, alone) = (c.rank, c.op, c.collective == NONE);
        let account = self.accounts[rank as usize];
        let computed = account.computation + account.opaque;
        let part = self.path.add(ready, computed, op, &cause);
        if part != NONE {
            self.contexts[context as usize].path = part;
        }
        // The waiting of a collective is accounted when the collective ends.
        if alone && context < self.world {
            let late = cause.at.saturating_sub(start).min(ready - start);
            self.note_wait(rank, (start, late), cause.kind, (cause.rank, cause.at));
            self.account_wait(rank, op, cause.kind, late, cause.rank, cause.op);
        }
    }

    fn account_wait(
        &mut self,
        rank: u32,
        op: u32,
        kind: WaitKind,
        time: u64,
        late: u32,
        late_op: u32,
    ) {
        if time == 0 {
            return;
        }
        let wait = &mut self.accounts[rank as usize].wait;
        *wait = wait.saturating_add(time);
        let site = |op: u32| {
            let sites = &self.code.site_of;
            sites.get(op as usize).copied().unwrap_or(NONE)
        };
        let sum = self
            .waits
            .entry((kind, site(op), site(late_op)))
            .or_default();
        sum.count += 1;
        sum.time = sum.time.saturating_add(time);
        // Of equal waits the lowest rank is kept, so that the result does not depend on the order of interpretation.
        if time > sum.longest || (time == sum.longest && late < sum.late_rank) {
            sum.longest = time;
            sum.late_rank = late;
        }
    }

    /// Completes a target at `time`; `cost` is the processor time that the completion takes.
    fn complete(&mut self, target: Target, time: u64, cost: ReceiveCost, cause: Cause) {
        if self.meetings.is_some() {
            self.meet(target, &cause);
        }
        let context = match target {
            Target::Nobody => return,
            Target::Context(context) => context,
            Target::Request { index, generation } => {
                let request = &mut self.requests[index as usize];
                if request.generation != generation {
                    return;
                }
                request.done = true;
                request.at = time;
                request.cost = cost;
                request.cause = Some(cause);
                let rank = request.rank;
                if !request.awaited {
                    if self.receives_unexpected && cost != ReceiveCost::default() {
                        self.unread[rank as usize].push(index);
                    }
                    if self.contexts[rank as usize].race.contains(&index) {
                        self.look_at_race(rank);
                    }
                    return;
                }
                request.awaited = false;
                rank
            }
        };
        let c = &mut self.contexts[context as usize];
        c.note_completion(time, cause);
        c.add_cost(time, cost);
        c.pending -= 1;
        if c.pending == 0 && c.phase == Phase::Blocked {
            let end = c.processed_at();
            self.wake(context, end);
        }
    }

    /// Returns the channel of a message that an operation sends. What a rank sends to itself costs nothing.
    fn channel(&self, from: u32, to: u32, op: u32) -> &'a Channel {
        static OWN: LazyLock<Channel> = LazyLock::new(Channel::ideal);
        if from == to {
            return &OWN;
        }
        let within = self.node_of[from as usize] == self.node_of[to as usize];
        let options = self.options;
        if let Some(&other) = options.channel_of.get(op as usize)
            && let Some((network, memory)) = options.channels.get(other as usize)
        {
            return if within { memory } else { network };
        }
        if within {
            &self.cluster.memory
        } else {
            &self.cluster.network
        }
    }

    /// Notes a message that a rank sends at `time`.
    fn note_connection(&mut self, from: u32, to: u32, time: u64) {
        if self.options.connections && self.node_of[from as usize] != self.node_of[to as usize] {
            let first = self.first_messages.entry((from.min(to), from.max(to)));
            let first = first.or_insert(time);
            *first = time.min(*first);
        }
    }

    fn request(&self, context: u32, number: u32) -> u32 {
        self.code.ranks[context as usize].requests + self.renamed_requests.here(context, number)
    }

    /// Returns the present moment of a rank, for the critical path.
    fn origin(&self, context: u32) -> Origin {
        let c = &self.contexts[context as usize];
        let account = self.accounts[c.rank as usize];
        Origin {
            rank: c.rank,
            time: c.clock,
            computed: account.computation + account.opaque,
            path: c.path,
        }
    }

    fn finish(mut self) -> Outcome {
        let end = |context: &Context| context.clock;
        let main = &self.contexts[..self.world as usize];
        let mut time = main.iter().map(end).max().unwrap_or(0);
        if self.stopped {
            time = time.max(self.now);
        }
        self.leftovers();
        let marks = std::mem::take(&mut self.marks);
        let ranks = (self.contexts[..self.world as usize].iter())
            .zip(&self.accounts)
            .map(|(context, account)| {
                let busy = account.computation + account.opaque;
                let busy = busy.saturating_add(account.wait);
                RankTimes {
                    computation: account.computation,
                    opaque: account.opaque,
                    communication: context.clock.saturating_sub(busy),
                    wait: account.wait,
                    idle: time - context.clock,
                }
            })
            .collect();
        Outcome {
            time,
            ranks,
            waits: self.wait_states(),
            marks: marks.clone(),
            links: self.links.loads(self.cluster, self.options.links),
            critical_path: self.critical_path(),
            timeline: self.timeline(),
            meetings: self.meetings.take(),
            problems: self.problems,
            events: self.events,
            messages: self.sent,
            bytes: self.sent_bytes,
            connections: (self.options.connections).then(|| {
                let timed = self.openings.take_time();
                Connections::new(self.first_messages.into_values(), &marks, timed)
            }),
        }
    }
}
