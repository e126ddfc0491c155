//! State of a rank, to which its calls are added in order.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::num::NonZeroU32;

use nodescope_hypercall::record::{Flags, communicator};
use nodescope_hypercall::{Flavour, Function, MpiRecord, ThreadId};
use nodescope_trace::{MpiCall, Stamp, Unfinished, Work, WorkBefore, WorkBetweenCalls};

use super::calls::{self, Prepared};
use super::limits::LATEST;
use super::one_sided::Window;
use super::overlap::{self, Latest};
use super::{Burst, Entry, SequenceOptions};
use crate::op::{Action, Collective, Op, PeerRef, Site, Source};

/// Bytes of the largest predefined datatype, `MPI_C_LONG_DOUBLE_COMPLEX`.
const LARGEST_PREDEFINED: u32 = 32;

/// Bytes of a block where the trace does not tell: a double, as in a column of a matrix.
const USUAL_BLOCK: u64 = 8;

/// A request that has begun and not completed.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenRequest {
    pub slot: u32,
    /// Index of the operation that began the request.
    pub entry: usize,
    /// True if the request is a receive that accepts any source or any tag.
    pub wildcard: bool,
}

/// State of a rank while its calls become a sequence.
#[derive(Debug)]
pub(super) struct RankState {
    rank: u32,
    pub node: u32,
    pub flavour: Flavour,
    pub entries: Vec<Entry>,
    /// Time at which the call of each entry began, picoseconds.
    begins: Vec<u64>,
    /// Time at which the call that is being added began, picoseconds.
    begin: u64,
    communicator_ids: Vec<u64>,
    numbers: HashMap<u64, u32>,
    first: Option<Stamp>,
    work: WorkBetweenCalls,
    /// Computation since the last operation.
    burst: Burst,
    /// Open requests by their serial in the trace. A rank has few at a time.
    pub live: BTreeMap<u64, OpenRequest>,
    free: BTreeSet<u32>,
    slots: u32,
    pub prepared: HashMap<u64, Prepared>,
    /// Request numbers of the further operations of requests that consist of several operations, by the request's serial in the trace.
    others: HashMap<u64, Vec<u32>>,
    /// Accesses and epochs of windows, by the trace's id of the window.
    pub windows: HashMap<u64, Window>,
    /// Communicators that are made here, by an id of their own, with the trace's id of the communicator whose members each has.
    pub copies: BTreeMap<u64, u64>,
    threads: BTreeSet<ThreadId>,
    /// Thread of the last call, which is among `threads`.
    thread: Option<ThreadId>,
    pub latest: Latest,
    finalized: bool,
    marks: Vec<Mark>,
    /// True if only the part between the first two marks counts.
    section: bool,
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
            entries: Vec::new(),
            begins: Vec::new(),
            begin: 0,
            communicator_ids: vec![communicator::WORLD, communicator::SELF],
            numbers: HashMap::from([(communicator::WORLD, 0), (communicator::SELF, 1)]),
            first: None,
            work: WorkBetweenCalls::default(),
            burst: Burst::default(),
            live: BTreeMap::new(),
            free: BTreeSet::new(),
            slots: 0,
            prepared: HashMap::new(),
            others: HashMap::new(),
            windows: HashMap::new(),
            copies: BTreeMap::new(),
            threads: BTreeSet::new(),
            thread: None,
            latest: Latest::default(),
            finalized: false,
            marks: (options.marks.iter())
                .map(|&(function, number)| Mark {
                    function,
                    left: number,
                    time: None,
                })
                .collect(),
            section: options.section,
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
    pub fn call(&mut self, call: &MpiCall) {
        if self.finalized {
            return;
        }
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
            self.live.clear();
            self.others.clear();
            self.free.extend(0..self.slots);
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
    pub fn unfinished(&mut self, unfinished: &Unfinished, stuck: bool) {
        if self.finalized || self.work.last().is_none() {
            return;
        }
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
        if matches!(id, communicator::NONE | communicator::WORLD) {
            return 0;
        }
        *self.numbers.entry(id).or_insert_with(|| {
            self.communicator_ids.push(id);
            (self.communicator_ids.len() - 1) as u32
        })
    }

    /// Returns the smallest request number that is free.
    pub fn slot(&mut self) -> u32 {
        self.free.pop_first().unwrap_or_else(|| {
            self.slots += 1;
            self.slots - 1
        })
    }

    /// Begins a request. Its serial in the trace means the request number `slot` until it completes.
    pub fn begin(&mut self, serial: u64, slot: u32, wildcard: bool) {
        let entry = self.entries.len();
        if let Some(old) = self.live.insert(
            serial,
            OpenRequest {
                slot,
                entry,
                wildcard,
            },
        ) {
            self.free.insert(old.slot);
        }
    }

    /// Adds the numbers of further operations to a request.
    pub fn add_others(&mut self, serial: u64, slots: Vec<u32>) {
        if !slots.is_empty() {
            self.others.insert(serial, slots);
        }
    }

    /// Returns the numbers of the operations of a request that has not completed.
    pub fn slots(&self, serial: u64) -> Vec<u32> {
        let live = self.live.get(&serial).map(|live| live.slot);
        let others = self.others.get(&serial).into_iter().flatten().copied();
        live.into_iter().chain(others).collect()
    }

    /// Ends the further operations of a request, and returns their numbers.
    pub fn end_others(&mut self, serial: u64) -> Vec<u32> {
        if self.others.is_empty() {
            return Vec::new();
        }
        let slots = self.others.remove(&serial).unwrap_or_default();
        self.free.extend(&slots);
        slots
    }

    /// Frees the numbers of operations that have no request in the trace.
    pub fn end_slots(&mut self, slots: &[u32]) {
        self.free.extend(slots);
    }

    /// Ends a request, whose number is free from now on; returns `None` if no such request is open.
    pub fn end(&mut self, serial: u64) -> Option<OpenRequest> {
        let live = self.live.remove(&serial)?;
        self.free.insert(live.slot);
        Some(live)
    }

    /// Appends an operation after the current burst.
    pub fn push(&mut self, record: &MpiRecord, action: Action, opaque: Option<u64>) {
        let communicator = self.communicator(record.communicator);
        self.begins.push(self.begin);
        self.entries.push(Entry {
            burst: std::mem::take(&mut self.burst),
            op: Op {
                function: record.function,
                site: Site::of(record),
                communicator,
                block: block(record),
                more: false,
                action,
            },
            opaque,
        });
    }

    /// Inserts an entry, whose call began at a time, before the entry at `at`.
    pub fn insert(&mut self, at: usize, entry: Entry, began: u64) {
        self.entries.insert(at, entry);
        self.begins.insert(at, began);
        for open in self.live.values_mut() {
            open.entry += usize::from(open.entry >= at);
        }
    }

    /// Appends an operation of a call, of which another operation follows.
    pub fn push_part(&mut self, record: &MpiRecord, action: Action) {
        self.push(record, action, None);
        if let Some(entry) = self.entries.last_mut() {
            entry.op.more = true;
        }
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
        if let Some(entry) = self.entries.get_mut(live.entry)
            && let Action::Receive { from, tag, .. } = &mut entry.op.action
        {
            if let (Source::Any, Some(rank)) = (*from, source) {
                *from = Source::Matched(PeerRef::Absolute(rank));
            }
            if tag.is_none() {
                *tag = matched_tag;
            }
        }
    }

    /// Returns the sequence, with roots as ranks of their communicators.
    pub fn finish(mut self, members: &HashMap<u64, Vec<u32>>, notes: &mut Vec<String>) -> Finished {
        if self.threads.len() > 1 {
            notes.push(format!(
                "rank {} calls MPI from {} threads, which are taken as one that starts and ends their calls in the traced order",
                self.rank,
                self.threads.len()
            ));
        }
        for entry in &mut self.entries {
            let id = self.communicator_ids[entry.op.communicator as usize];
            if let Action::Collective(collective) = &mut entry.op.action
                && let Some(members) = members.get(&id)
                && collective.kind.rooted()
            {
                let rank = members.iter().position(|&member| member == collective.root);
                collective.root = rank.unwrap_or(0) as u32;
            }
            if let Action::Collective(collective) = &mut entry.op.action
                && id == communicator::SELF
            {
                collective.root = 0;
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
            self.push(&end, Action::Nothing, None);
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
