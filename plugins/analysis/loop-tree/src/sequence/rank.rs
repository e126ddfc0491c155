//! State of a rank, to which its calls are added in order.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::num::NonZeroU32;

use nodescope_hypercall::record::{Flags, communicator};
use nodescope_hypercall::{Flavour, Function, MpiRecord, ThreadId};
use nodescope_trace::{MpiCall, Stamp, Unfinished, Work, WorkBefore, WorkBetweenCalls};

use super::calls::{self, Prepared};
use super::limits::LATEST;
use super::one_sided::Window;
use super::ops::{Ops, Repetition};
use super::overlap::{self, Latest};
use super::requests::{OpenRequest, Requests};
use super::{Burst, Entry, SequenceOptions};
use crate::op::{Action, Collective, Op, PeerRef, Site, Source};

/// Bytes of the largest predefined datatype, `MPI_C_LONG_DOUBLE_COMPLEX`.
const LARGEST_PREDEFINED: u32 = 32;

/// Bytes of a block where the trace does not tell: a double, as in a column of a matrix.
const USUAL_BLOCK: u64 = 8;

/// State of a rank while its calls become a sequence.
///
/// Calls of many ranks alternate in a trace, so that a state is seldom in the processor's caches. What every call needs comes first.
#[derive(Debug)]
pub(super) struct RankState {
    pub rank: u32,
    pub node: u32,
    pub flavour: Flavour,
    finalized: bool,
    /// True if only the part between the first two marks counts.
    section: bool,
    /// Thread of the last call, which is among `threads`.
    thread: Option<ThreadId>,
    pub entries: Vec<Entry>,
    /// Time at which the call of each entry began, picoseconds.
    begins: Vec<u64>,
    /// Time at which the call that is being added began, picoseconds.
    begin: u64,
    repetition: Repetition,
    /// True if there are collectives whose roots may become other numbers at the end.
    rooted: bool,
    /// Operations of all ranks, which are here while a call is being added.
    ops: Ops,
    /// Computation since the last operation.
    burst: Burst,
    pub requests: Requests,
    pub latest: Latest,
    marks: Vec<Mark>,
    work: WorkBetweenCalls,
    first: Option<Stamp>,
    communicator_ids: Vec<u64>,
    /// Numbers of the communicators that the program made.
    numbers: HashMap<u64, u32>,
    pub prepared: HashMap<u64, Prepared>,
    /// Accesses and epochs of windows, by the trace's id of the window.
    pub windows: HashMap<u64, Window>,
    /// Communicators that are made here, by an id of their own, with the trace's id of the communicator whose members each has.
    pub copies: BTreeMap<u64, u64>,
    threads: BTreeSet<ThreadId>,
    pub notes: Vec<String>,
}

/// Requested mark: a call of a function at which the time is noted.
#[derive(Clone, Copy, Debug)]
struct Mark {
    function: Function,
    /// Number of calls of the function until the mark, the marked call included.
    left: u64,
    /// Time at which the rank passed the mark.
    time: Option<u64>,
}

/// A rank's sequence, with the trace's ids of communicators.
pub(super) struct Finished {
    pub entries: Vec<Entry>,
    pub begins: Vec<u64>,
    pub communicators: Vec<u64>,
}

impl RankState {
    pub fn new(rank: u32, node: u32, flavour: Flavour, options: &SequenceOptions) -> RankState {
        RankState {
            rank,
            node,
            flavour,
            finalized: false,
            section: options.section,
            thread: None,
            entries: Vec::new(),
            begins: Vec::new(),
            begin: 0,
            repetition: Repetition::default(),
            rooted: false,
            ops: Ops::default(),
            burst: Burst::default(),
            requests: Requests::default(),
            latest: Latest::default(),
            marks: (options.marks.iter())
                .map(|&(function, number)| Mark {
                    function,
                    left: number,
                    time: None,
                })
                .collect(),
            work: WorkBetweenCalls::default(),
            first: None,
            communicator_ids: vec![communicator::WORLD, communicator::SELF],
            numbers: HashMap::new(),
            prepared: HashMap::new(),
            windows: HashMap::new(),
            copies: BTreeMap::new(),
            threads: BTreeSet::new(),
            notes: Vec::new(),
        }
    }

    /// Returns the beginning and the end of the rank's span, picoseconds; (0, 0) without calls. The span begins at the end of
    /// initialisation, or else at the first call, or at a section's first mark. The span ends at the start of finalisation, or else at the
    /// end of the last call.
    pub fn extent(&self) -> (u64, u64) {
        match (self.first, self.work.last()) {
            (Some(first), Some(last)) => (first.time, last.time.max(first.time)),
            _ => (0, 0),
        }
    }

    /// Adds a call that ended.
    pub fn call(&mut self, call: &MpiCall, ops: &mut Ops) {
        if !self.finalized {
            self.with(ops, |state| state.add(call));
        }
    }

    /// Does something that may add entries.
    fn with(&mut self, ops: &mut Ops, change: impl FnOnce(&mut RankState)) {
        std::mem::swap(&mut self.ops, ops);
        change(self);
        std::mem::swap(&mut self.ops, ops);
    }

    fn add(&mut self, call: &MpiCall) {
        let record = &call.record;
        self.begin = call.entry.time;
        if self.thread.replace(record.thread) != Some(record.thread) {
            self.threads.insert(record.thread);
        }
        if matches!(record.function, Function::Init | Function::InitThread) {
            // The time before this call is no part of the program as MPI sees it.
            self.entries.clear();
            self.begins.clear();
            self.latest.clear();
            self.burst = Burst::default();
            self.first = Some(call.exit);
            self.work = WorkBetweenCalls::default();
            self.work.end(call.exit);
            return;
        }
        self.first.get_or_insert(call.entry);
        if record.function == Function::Finalize {
            let before = self.work.until(call.entry);
            self.compute_all(before);
            self.work.end(call.entry);
            self.finalized = true;
            self.push(record, Action::Nothing, None);
            return;
        }
        let before = self.work.call(call);
        self.compute_all(before);
        if record.flags.contains(Flags::POLL_RUN) {
            return;
        }
        let entries = self.entries.len();
        calls::add(self, call);
        if self.threads.len() > 1 && self.entries.len() == entries + 1 {
            overlap::split(self, call.entry.time);
        }
        self.latest.add(self.entries.len(), call.exit.time);
        self.mark(call);
    }

    /// Sets the marks that this call reaches.
    fn mark(&mut self, call: &MpiCall) {
        for number in 0..self.marks.len() {
            let mark = &mut self.marks[number];
            if mark.function != call.record.function || mark.time.is_some() {
                continue;
            }
            mark.left = mark.left.saturating_sub(call.record.calls.max(1));
            if mark.left == 0 {
                mark.time = Some(call.exit.time);
                if self.section {
                    self.cut(number, call);
                    continue;
                }
                self.push(&call.record, Action::Mark(number as u32), None);
            }
        }
    }

    /// Drops what the rank did before the first mark, or all that follows the second mark.
    fn cut(&mut self, number: usize, call: &MpiCall) {
        if number == 0 {
            self.entries.clear();
            self.begins.clear();
            self.latest.clear();
            self.burst = Burst::default();
            self.requests.end_all();
            self.first = Some(call.exit);
        } else {
            self.finalized = true;
            self.push(&call.record, Action::Nothing, None);
        }
    }

    /// Returns the time when the rank passed each mark; `None` for a mark that it never passed.
    pub fn marks(&self) -> Vec<Option<u64>> {
        self.marks.iter().map(|mark| mark.time).collect()
    }

    /// Adds a call that did not end. The call becomes an operation if the rank is stuck in it and the call is interpreted.
    pub fn unfinished(&mut self, unfinished: &Unfinished, stuck: bool, ops: &mut Ops) {
        if !self.finalized && self.work.last().is_some() {
            self.with(ops, |state| state.add_unfinished(unfinished, stuck));
        }
    }

    fn add_unfinished(&mut self, unfinished: &Unfinished, stuck: bool) {
        let entry = unfinished.entry;
        self.begin = entry.time;
        let before = self.work.until(entry);
        self.compute_all(before);
        self.work.end(entry);
        let Unfinished { function, .. } = unfinished;
        let rank = self.rank;
        let interpreted = match &unfinished.record {
            Some(record) if stuck => calls::add_pending(self, record, entry),
            _ => false,
        };
        self.notes.push(match (stuck, interpreted) {
            (true, true) => format!("rank {rank}: the trace ends in {function}, in which the rank stands for ever"),
            (true, false) => format!("rank {rank}: the trace ends in {function}, in which the rank stands for ever; that is not interpreted, the rank ends there"),
            (false, _) => format!("rank {rank}: the trace ends in {function}; the rank ends there"),
        });
    }

    /// Adds the work before a call. Short work between polls does not count, because the number of polls depends on how long the message
    /// took.
    fn compute_all(&mut self, before: WorkBefore) {
        for work in [before.between_polls, before.since_last] {
            self.compute(work);
        }
        if before.waited > 0 {
            self.notes.push(
                "polls that found nothing are taken as waiting, with the short work between them"
                    .into(),
            );
        }
    }

    /// Adds to the burst. Calls that overlap in a damaged trace may add up to more than the time that there is.
    fn compute(&mut self, work: Work) {
        let burst = &mut self.burst;
        burst.time = burst.time.saturating_add(work.time).min(LATEST);
        let instructions = work.instructions.unwrap_or(0);
        burst.instructions = burst.instructions.saturating_add(instructions);
    }

    /// Returns the number of a communicator on this rank, a new one at the first use; 0, which is the world, for no communicator.
    pub fn communicator(&mut self, id: u64) -> u32 {
        match id {
            communicator::NONE | communicator::WORLD => 0,
            communicator::SELF => 1,
            id => *self.numbers.entry(id).or_insert_with(|| {
                self.communicator_ids.push(id);
                (self.communicator_ids.len() - 1) as u32
            }),
        }
    }

    /// Begins a request at the next entry. Its serial in the trace means the request number `slot` until it completes.
    pub fn begin(&mut self, serial: u64, slot: u32, wildcard: bool) {
        let entry = self.entries.len();
        let request = OpenRequest {
            slot,
            entry,
            wildcard,
        };
        self.requests.begin(serial, request);
    }

    /// Appends an operation after the current burst.
    pub fn push(&mut self, record: &MpiRecord, action: Action, opaque: Option<u64>) {
        self.append(record, action, opaque, false);
    }

    fn append(&mut self, record: &MpiRecord, action: Action, opaque: Option<u64>, more: bool) {
        if let Action::Collective(collective) = &action {
            self.rooted |= collective.kind.rooted() || record.communicator == communicator::SELF;
        }
        let op = Op {
            function: record.function,
            site: Site::of(record),
            communicator: self.communicator(record.communicator),
            block: block(record),
            more,
            action,
        };
        let op = (self.repetition).shared(op, &self.entries, &mut self.ops);
        self.begins.push(self.begin);
        self.entries.push(Entry {
            burst: std::mem::take(&mut self.burst),
            op,
            opaque,
        });
    }

    /// Inserts an entry, whose call began at a time, before the entry at `at`.
    pub fn insert(&mut self, at: usize, entry: Entry, began: u64) {
        self.entries.insert(at, entry);
        self.begins.insert(at, began);
        self.requests.insert_entry(at);
    }

    /// Appends an operation of a call, of which another operation follows.
    pub fn push_part(&mut self, record: &MpiRecord, action: Action) {
        self.append(record, action, None, true);
    }

    /// Appends the operations of a call; a call without operations becomes `Action::Nothing`.
    pub fn push_all(&mut self, record: &MpiRecord, actions: Vec<Action>) {
        let last = actions.len().saturating_sub(1);
        for (number, action) in actions.into_iter().enumerate() {
            if number < last {
                self.push_part(record, action);
            } else {
                return self.push(record, action, None);
            }
        }
        self.push(record, Action::Nothing, None);
    }

    /// Writes the matching source and tag into a receive that was begun with any source or any tag.
    pub fn matched(&mut self, live: OpenRequest, source: Option<u32>, matched_tag: Option<u32>) {
        if !live.wildcard {
            return;
        }
        let Some(entry) = self.entries.get_mut(live.entry) else {
            return;
        };
        let mut op = Op::clone(&entry.op);
        if let Action::Receive { from, tag, .. } = &mut op.action {
            if let (Source::Any, Some(rank)) = (*from, source) {
                *from = Source::Matched(PeerRef::Absolute(rank));
            }
            if tag.is_none() {
                *tag = matched_tag;
            }
            entry.op = self.ops.shared(op);
        }
    }

    /// Returns the sequence, with roots as ranks of their communicators.
    pub fn finish(
        mut self,
        members: &HashMap<u64, Vec<u32>>,
        ops: &mut Ops,
        notes: &mut Vec<String>,
    ) -> Finished {
        if self.threads.len() > 1 {
            notes.push(format!(
                "rank {} calls MPI from {} threads, which are taken as one that starts and ends their calls in the traced order",
                self.rank,
                self.threads.len()
            ));
        }
        let entries = if self.rooted {
            &mut self.entries[..]
        } else {
            &mut []
        };
        for entry in entries {
            let id = self.communicator_ids[entry.op.communicator as usize];
            let Action::Collective(collective) = &entry.op.action else {
                continue;
            };
            let root = match members.get(&id) {
                _ if id == communicator::SELF => 0,
                Some(members) if collective.kind.rooted() => {
                    let rank = members.iter().position(|&member| member == collective.root);
                    rank.unwrap_or(0) as u32
                }
                _ => collective.root,
            };
            if root != collective.root {
                let mut collective = collective.clone();
                collective.root = root;
                entry.op = ops.shared(Op {
                    action: Action::Collective(collective),
                    ..Op::clone(&entry.op)
                });
            }
        }
        if let Some(last) = self.work.last().filter(|_| !self.finalized) {
            let before = self.work.until(last);
            self.compute_all(before);
        }
        // A last burst without a call behind it gets a finalisation as its operation.
        if !self.finalized && self.burst != Burst::default() {
            let mut end = MpiRecord::new(
                Function::Finalize,
                ThreadId::default(),
                nodescope_hypercall::Peer::Rank(self.rank),
                0,
            );
            end.communicator = communicator::WORLD;
            self.begin = self.extent().1;
            self.with(ops, |state| state.push(&end, Action::Nothing, None));
        }
        notes.append(&mut self.notes);
        // A hundred thousand ranks have much unused room together.
        self.entries.shrink_to_fit();
        self.begins.shrink_to_fit();
        Finished {
            entries: self.entries,
            begins: self.begins,
            communicators: self.communicator_ids,
        }
    }

    /// Appends a collective operation.
    pub fn push_collective(&mut self, record: &MpiRecord, collective: Collective) {
        self.push(record, Action::Collective(Box::new(collective)), None);
    }
}

/// Returns the bytes of a contiguous block of a call's data in memory, where the data consists of several.
fn block(record: &MpiRecord) -> Option<NonZeroU32> {
    let scattered = record.element_size > LARGEST_PREDEFINED;
    let bytes = match record.element_blocks {
        1 => return None,
        0 => u64::from(scattered) * USUAL_BLOCK,
        blocks => (u64::from(record.element_size) / blocks).max(1),
    };
    NonZeroU32::new(bytes as u32)
}
