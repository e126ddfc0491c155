//! Assembly of events from hypercalls: joins the host's stamps at the beginning and the end of a call with the guest's record.

use std::collections::{BTreeMap, BTreeSet};

use nodescope_hypercall::record::Flags;
use nodescope_hypercall::{EntryRecord, MpiEnter, MpiRecord, Peer, Request, ThreadId};
use serde::{Deserialize, Serialize};

use crate::event::{Body, Event, MpiCall, Stamp, Unfinished};

/// Maximum number of calls under way, of open poll runs, and of processes with a rank: of each, that are tracked for one node. A real
/// program has a handful; further ones of a hostile guest are not tracked.
const MOST: usize = 1 << 16;

/// Maximum number of bytes of unfinished calls' arguments that are kept for one node. Beyond this limit only the function of a call is
/// kept.
const MOST_SHOWN: usize = 64 << 20;

/// Moment at which the guest's tracer reports. `inner` is the virtual time, in picoseconds, at which the MPI function itself began or
/// returned; the tracer's own work lies between `inner` and the stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Moment {
    stamp: Stamp,
    inner: u64,
}

/// A call that has begun and not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct OpenCall {
    enter: MpiEnter,
    moment: Moment,
    shown: EntryRecord,
}

/// Poll run whose record has not come yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct OpenRun {
    run: Run,
    /// Entry of the run's first poll.
    enter: MpiEnter,
    shown: EntryRecord,
    polls: u64,
}

/// Stamps and sums of a call or a poll run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Run {
    entry: Stamp,
    exit: Stamp,
    time_inside: u64,
    instructions_inside: u64,
}

/// Assembler of one node's events from its requests. The caller must pass every decoded request, in the order in which the node made
/// them. Requests that do not concern the trace are ignored.
pub struct Assembler {
    node: u32,
    sequence: u64,
    begun: BTreeMap<ThreadId, OpenCall>,
    runs: BTreeMap<(ThreadId, u64), OpenRun>,
    ranks: BTreeMap<u32, Peer>,
    /// Bytes of the calls' arguments in `begun` and `runs`.
    shown: usize,
}

/// State of an [`Assembler`]: the calls under way and open poll runs on its node, the ranks of its processes, and the next event's number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssemblerState {
    sequence: u64,
    begun: Vec<OpenCall>,
    runs: Vec<OpenRun>,
    ranks: BTreeMap<u32, Peer>,
}

impl Assembler {
    /// Returns an assembler for the node of this number.
    pub fn new(node: u32) -> Assembler {
        Assembler {
            node,
            sequence: 0,
            begun: BTreeMap::new(),
            runs: BTreeMap::new(),
            ranks: BTreeMap::new(),
            shown: 0,
        }
    }

    /// Returns the state from which [`Assembler::load`] continues.
    pub fn state(&self) -> AssemblerState {
        AssemblerState {
            sequence: self.sequence,
            begun: self.begun.values().cloned().collect(),
            runs: self.runs.values().cloned().collect(),
            ranks: self.ranks.clone(),
        }
    }

    /// Returns an assembler for the node of this number that continues from another assembler's state.
    pub fn load(node: u32, state: AssemblerState) -> Assembler {
        let AssemblerState {
            sequence,
            begun,
            runs,
            ranks,
        } = state;
        let begun: BTreeMap<_, _> = (begun.into_iter())
            .map(|begun| (begun.enter.thread, begun))
            .collect();
        let runs: BTreeMap<_, _> = (runs.into_iter())
            .map(|open| ((open.enter.thread, open.enter.sequence), open))
            .collect();
        let shown =
            (begun.values().map(|begun| &begun.shown)).chain(runs.values().map(|open| &open.shown));
        Assembler {
            node,
            sequence,
            shown: shown.map(EntryRecord::size).sum(),
            begun,
            runs,
            ranks,
        }
    }

    /// Processes a request that the node made at `stamp`, and appends the events that result.
    pub fn request(&mut self, request: Request, stamp: Stamp, events: &mut Vec<Event>) {
        self.measured(request, stamp, stamp.time, events);
    }

    /// Processes a request, as [`Assembler::request`] does, where the tracer's own work has been measured. Before a call, `stamp` is the
    /// beginning of that work, and `inner` the time at which the MPI function began. After a call, `stamp` is the end of that work, and
    /// `inner` the time at which the function returned. The tracer's work is then between the event's stamps, but not in
    /// [`MpiCall::time_inside`]. Times are in picoseconds.
    pub fn measured(
        &mut self,
        request: Request,
        stamp: Stamp,
        inner: u64,
        events: &mut Vec<Event>,
    ) {
        let moment = Moment { stamp, inner };
        let body = match request {
            Request::MpiEnter(enter, shown) => return self.enter(enter, shown, moment),
            Request::MpiPollFailed(poll) => return self.poll_failed(poll, moment),
            Request::MpiEvents(mut records) => {
                // Runs of polls began before the call that ended them, whose record comes first.
                records.sort_by_key(|record| (record.thread, record.sequence));
                for record in records {
                    let call = self.call(record, moment);
                    // A poll run is reported after its end: the event has this stamp, and the run's exit is the end of its last poll.
                    self.emit(stamp, Body::Mpi(Box::new(call)), events);
                }
                return;
            }
            Request::Hello(hello) => {
                if self.ranks.len() < MOST {
                    self.ranks.insert(hello.pid, hello.rank);
                }
                Body::Process(hello)
            }
            Request::Mark(name) => Body::Mark(name),
            Request::OpenWindow(name) => Body::WindowOpen(name),
            Request::CloseWindow(name) => Body::WindowClose(name),
            Request::Message(text) => Body::Message(text),
            Request::JobExit(status) => Body::JobExit(status),
            Request::Probe | Request::NodeIdentity(_) | Request::PutFile(_) => return,
        };
        self.emit(stamp, body, events);
    }

    /// Appends an event of the host itself, such as the opening of a window at a trigger.
    pub fn host(&mut self, body: Body, stamp: Stamp, events: &mut Vec<Event>) {
        self.emit(stamp, body, events);
    }

    /// Adds the calls that have begun and not ended, and the poll runs that are still open, as events at `stamp`, the end of the trace.
    pub fn finish(&mut self, stamp: Stamp, events: &mut Vec<Event>) {
        let unfinished = self.unfinished();
        self.begun.clear();
        self.runs.clear();
        self.shown = 0;
        for call in unfinished {
            self.emit(stamp, Body::Unfinished(Box::new(call)), events);
        }
    }

    /// Returns calls and poll runs that have not ended yet, by thread and number.
    pub fn unfinished(&self) -> Vec<Unfinished> {
        let call = |enter: &MpiEnter, entry, record| Unfinished {
            function: enter.function,
            rank: self
                .ranks
                .get(&enter.thread.pid)
                .copied()
                .unwrap_or_default(),
            thread: enter.thread,
            sequence: enter.sequence,
            entry,
            record,
        };
        let mut calls = Vec::new();
        let mut polling = BTreeSet::new();
        for open in self.runs.values() {
            polling.insert((open.enter.thread, open.enter.function));
            let mut record = open.shown.decode(&open.enter);
            if let Some(record) = &mut record {
                record.flags = Flags(record.flags.0 | Flags::POLL_RUN.0);
                record.calls = open.polls;
            }
            calls.push(call(&open.enter, open.run.entry, record));
        }
        for begun in self.begun.values() {
            let enter = &begun.enter;
            // A poll under way belongs to the thread's open poll run, which is in `calls` already.
            if !polling.contains(&(enter.thread, enter.function)) {
                calls.push(call(enter, begun.moment.stamp, begun.shown.decode(enter)));
            }
        }
        calls.sort_by_key(|call| (call.thread, call.sequence));
        calls
    }

    /// Returns whether a call or a poll run has not ended yet.
    pub fn has_unfinished(&self) -> bool {
        !self.begun.is_empty() || !self.runs.is_empty()
    }

    fn enter(&mut self, enter: MpiEnter, shown: EntryRecord, moment: Moment) {
        self.take_open_call(enter.thread);
        if self.begun.len() < MOST {
            let fits = self.shown + shown.size() <= MOST_SHOWN;
            let shown = if fits { shown } else { EntryRecord::default() };
            self.shown += shown.size();
            let begun = OpenCall {
                enter,
                moment,
                shown,
            };
            self.begun.insert(enter.thread, begun);
        }
    }

    fn take_open_call(&mut self, thread: ThreadId) -> Option<OpenCall> {
        let begun = self.begun.remove(&thread)?;
        self.shown -= begun.shown.size();
        Some(begun)
    }

    fn emit(&mut self, stamp: Stamp, body: Body, events: &mut Vec<Event>) {
        events.push(Event {
            node: self.node,
            sequence: self.sequence,
            stamp,
            body,
        });
        self.sequence += 1;
    }

    fn poll_failed(&mut self, poll: MpiEnter, moment: Moment) {
        let stamp = moment.stamp;
        let Some(begun) = self.take_open_call(poll.thread) else {
            return;
        };
        let (time, instructions) = inside(begun.moment, moment);
        let key = (poll.thread, poll.sequence);
        if let Some(OpenRun { run, polls, .. }) = self.runs.get_mut(&key) {
            run.exit = stamp;
            run.time_inside = run.time_inside.saturating_add(time);
            run.instructions_inside = run.instructions_inside.saturating_add(instructions);
            *polls += 1;
        } else if self.runs.len() < MOST {
            self.shown += begun.shown.size();
            let run = Run {
                entry: begun.moment.stamp,
                exit: stamp,
                time_inside: time,
                instructions_inside: instructions,
            };
            let open = OpenRun {
                run,
                enter: begun.enter,
                shown: begun.shown,
                polls: 1,
            };
            self.runs.insert(key, open);
        }
    }

    fn call(&mut self, record: MpiRecord, moment: Moment) -> MpiCall {
        let stamp = moment.stamp;
        let unseen = Run {
            entry: stamp,
            exit: stamp,
            time_inside: 0,
            instructions_inside: 0,
        };
        let seen = if record.flags.contains(Flags::POLL_RUN) {
            let open = self.runs.remove(&(record.thread, record.sequence));
            open.map(|open| {
                self.shown -= open.shown.size();
                open.run
            })
        } else {
            let begun = self.begun.get(&record.thread);
            let same = begun.is_some_and(|begun| begun.enter.sequence == record.sequence);
            let begun = same.then(|| self.take_open_call(record.thread)).flatten();
            begun.map(|begun| {
                let (time_inside, instructions_inside) = inside(begun.moment, moment);
                Run {
                    entry: begun.moment.stamp,
                    exit: stamp,
                    time_inside,
                    instructions_inside,
                }
            })
        };
        let entry_seen = seen.is_some();
        let Run {
            entry,
            exit,
            time_inside,
            instructions_inside,
        } = seen.unwrap_or(unseen);
        MpiCall {
            record,
            entry,
            exit,
            time_inside,
            instructions_inside,
            entry_seen,
        }
    }
}

fn inside(entry: Moment, exit: Moment) -> (u64, u64) {
    let (from, to) = (entry.stamp, exit.stamp);
    let instructions = if from.vcpu == to.vcpu {
        to.instructions.saturating_sub(from.instructions)
    } else {
        0
    };
    (exit.inner.saturating_sub(entry.inner), instructions)
}

#[cfg(test)]
mod tests {
    use nodescope_hypercall::{Flavour, Function, Hello, ProcessKind};

    use super::*;

    const THREAD: ThreadId = ThreadId { pid: 10, tid: 11 };

    fn at(time: u64, instructions: u64) -> Stamp {
        Stamp {
            time,
            instructions,
            vcpu: 0,
        }
    }

    fn enter(function: Function, sequence: u64) -> MpiEnter {
        MpiEnter {
            function,
            thread: THREAD,
            sequence,
        }
    }

    fn record(function: Function, sequence: u64) -> MpiRecord {
        MpiRecord::new(function, THREAD, Peer::Rank(3), sequence)
    }

    fn calls(events: &[Event]) -> Vec<&MpiCall> {
        events
            .iter()
            .filter_map(|event| {
                if let Body::Mpi(call) = &event.body {
                    Some(&**call)
                } else {
                    None
                }
            })
            .collect()
    }

    #[test]
    fn a_call_lies_between_its_stamps() {
        let (mut assembler, mut events) = (Assembler::new(2), Vec::new());
        assembler.request(
            Request::MpiEnter(enter(Function::Send, 7), EntryRecord::default()),
            at(100, 10),
            &mut events,
        );
        assert!(events.is_empty());
        assembler.request(
            Request::MpiEvents(vec![record(Function::Send, 7)]),
            at(350, 60),
            &mut events,
        );
        let [call] = calls(&events)[..] else {
            panic!("{events:?}")
        };
        assert_eq!((call.entry, call.exit), (at(100, 10), at(350, 60)));
        assert_eq!(
            (call.time_inside, call.instructions_inside, call.entry_seen),
            (250, 50, true)
        );
        assert_eq!((events[0].node, events[0].sequence), (2, 0));
    }

    #[test]
    fn the_tracers_own_work_is_between_the_stamps_and_not_inside() {
        let (mut assembler, mut events) = (Assembler::new(0), Vec::new());
        let enter = Request::MpiEnter(enter(Function::Send, 0), EntryRecord::default());
        assembler.measured(enter, at(100, 0), 130, &mut events);
        let sent = Request::MpiEvents(vec![record(Function::Send, 0)]);
        assembler.measured(sent, at(400, 0), 350, &mut events);
        let call = calls(&events)[0];
        assert_eq!((call.entry.time, call.exit.time), (100, 400));
        assert_eq!(call.time_inside, 220);
    }

    #[test]
    fn a_poll_run_counts_only_the_time_inside_its_polls() {
        let (mut assembler, mut events) = (Assembler::new(0), Vec::new());
        // Three failed polls of 5 ps at 0, 100 and 200, then a successful poll from 300 to 320. The run's record follows
        // that of the successful poll.
        for (number, start) in [(4, 0), (5, 100), (5, 200)] {
            assembler.request(
                Request::MpiEnter(enter(Function::Test, number), EntryRecord::default()),
                at(start, start),
                &mut events,
            );
            assembler.request(
                Request::MpiPollFailed(enter(Function::Test, 4)),
                at(start + 5, start + 2),
                &mut events,
            );
        }
        assembler.request(
            Request::MpiEnter(enter(Function::Test, 5), EntryRecord::default()),
            at(300, 300),
            &mut events,
        );
        let mut run = record(Function::Test, 4);
        run.flags = Flags::POLL_RUN;
        run.calls = 3;
        assembler.request(
            Request::MpiEvents(vec![record(Function::Test, 5), run]),
            at(320, 310),
            &mut events,
        );
        let [run, found] = calls(&events)[..] else {
            panic!("{events:?}")
        };
        assert_eq!((found.time_inside, found.instructions_inside), (20, 10));
        assert_eq!(
            (
                run.entry.time,
                run.exit.time,
                run.time_inside,
                run.instructions_inside
            ),
            (0, 205, 15, 6)
        );
    }

    #[test]
    fn what_did_not_end_and_what_was_not_seen_to_begin_is_said() {
        let (mut assembler, mut events) = (Assembler::new(0), Vec::new());
        assembler.request(
            Request::MpiEvents(vec![record(Function::Recv, 1)]),
            at(9, 9),
            &mut events,
        );
        let call = calls(&events)[0];
        assert_eq!(
            (call.entry, call.entry_seen, call.time_inside),
            (at(9, 9), false, 0)
        );
        let hello = Hello {
            kind: ProcessKind::MpiRank,
            rank: Peer::Rank(3),
            world_size: 4,
            pid: 10,
            flavour: Flavour::Mpich,
            host: "n0".into(),
            program: "hang".into(),
        };
        assembler.request(Request::Hello(hello), at(10, 10), &mut events);
        assembler.request(
            Request::MpiEnter(enter(Function::Recv, 2), EntryRecord::default()),
            at(11, 11),
            &mut events,
        );
        assembler.finish(at(1000, 12), &mut events);
        let expected = Unfinished {
            function: Function::Recv,
            rank: Peer::Rank(3),
            thread: THREAD,
            sequence: 2,
            entry: at(11, 11),
            record: None,
        };
        assert_eq!(events[2].body, Body::Unfinished(Box::new(expected)));
        assert_eq!(
            events
                .iter()
                .map(|event| event.sequence)
                .collect::<Vec<_>>(),
            [0, 1, 2]
        );
    }

    #[test]
    fn arguments_of_what_did_not_end_are_those_shown_when_it_began() {
        let (mut assembler, mut events) = (Assembler::new(0), Vec::new());
        let mut enters = |function, sequence, tag| {
            let mut shown = record(function, sequence);
            shown.receive_tag = nodescope_hypercall::Tag::Value(tag);
            let shown = EntryRecord::new(&shown);
            let request = Request::MpiEnter(enter(function, sequence), shown);
            assembler.request(request, at(10 * sequence, 1), &mut events);
            if function == Function::Iprobe {
                let poll = Request::MpiPollFailed(enter(function, 1));
                assembler.request(poll, at(10 * sequence + 5, 2), &mut events);
            }
        };
        // The next call of a thread replaces the call before. The last call remains, and so does a poll run.
        enters(Function::Recv, 0, 1);
        enters(Function::Recv, 0, 2);
        for _ in 0..3 {
            enters(Function::Iprobe, 1, 3);
        }
        enters(Function::Recv, 2, 4);
        assembler.finish(at(99, 9), &mut events);
        let told: Vec<_> = events
            .iter()
            .map(|event| match &event.body {
                Body::Unfinished(call) => {
                    let record = call.record.as_ref().unwrap();
                    (
                        call.sequence,
                        call.entry.time,
                        record.receive_tag,
                        record.calls,
                    )
                }
                other => panic!("{other:?}"),
            })
            .collect();
        let tag = nodescope_hypercall::Tag::Value;
        assert_eq!(told, [(1, 10, tag(3), 3), (2, 20, tag(4), 1)]);
        assert_eq!(assembler.shown, 0);
    }

    #[test]
    fn as_many_calls_and_runs_as_a_node_may_have_are_told_at_once() {
        let (mut assembler, mut events) = (Assembler::new(0), Vec::new());
        for number in 0..MOST as u32 {
            let thread = ThreadId {
                pid: 1,
                tid: number,
            };
            let enter = |function, sequence| MpiEnter {
                function,
                thread,
                sequence,
            };
            let begin = |enter| Request::MpiEnter(enter, EntryRecord::default());
            let poll = enter(Function::Test, 0);
            assembler.request(begin(poll), at(1, 1), &mut events);
            assembler.request(Request::MpiPollFailed(poll), at(2, 2), &mut events);
            // Every other thread polls again.
            let next = [Function::Test, Function::Recv][number as usize & 1];
            assembler.request(begin(enter(next, 1)), at(3, 3), &mut events);
        }
        // An algorithm that examines all runs for each call would take minutes.
        assert_eq!(assembler.unfinished().len(), MOST + MOST / 2);
    }
}
