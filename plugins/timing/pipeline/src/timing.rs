//! The timing of a recording: one pass in program order that gives each micro-operation the cycles in which it is dispatched, starts, ends
//! and retires.
//!
//! The pass has no loop over cycles. Each queue is a list of the times at which its places become free, each register has the time at which
//! its value is there (Sanchez and Kozyrakis, ZSim, ISCA 2013, have the same scheme).

use nodescope_plugin_api::{Access, Answer, DataAccess, Source};

use crate::lines::{Line, Lines};
use crate::micro::{Flow, Instruction, Kind, MicroOperation, NONE, resource};
use crate::parameters::Parameters;
use crate::queues::{InOrder, Path, Pool, PortTable};
use crate::stores::Stores;
use crate::wrong_path::WrongPath;

/// Bytes of a line, and of a small page.
pub(crate) const LINE: u64 = 64;
const PAGE: u64 = 4096;
/// Most cycles of one instruction, so that no sum of times overflows.
const LONGEST: u64 = 1 << 32;
/// Cycles by which windows of code are delivered ahead of dispatch: a queue of some 50 to 100 micro-operations.
const DELIVERED_AHEAD: u64 = 8;

/// An executed instruction with all that decides its time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event<'a> {
    pub(crate) address: u64,
    pub(crate) instruction: &'a Instruction,
    pub(crate) accesses: &'a [DataAccess],
    pub(crate) answers: &'a [Answer],
    /// Index of the first of `accesses` in the recording.
    pub(crate) first_access: u32,
    /// Extra cycles of each of the first two accesses for its translation.
    pub(crate) translation: [u16; 2],
    /// True for a branch that was predicted wrongly.
    pub(crate) mispredicted: bool,
    /// Where the wrong way behind such a branch meets the right one, as far as it is known.
    pub(crate) wrong_path: Option<WrongPath>,
    /// True for a branch that was taken.
    pub(crate) taken: bool,
    /// True if the instruction before did not lead here: an interrupt or exception came between.
    pub(crate) interrupted: bool,
    /// Elements of a repeated string instruction.
    pub(crate) repeats: u32,
}

/// Which events cost time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conditions {
    /// As recorded.
    Recorded,
    /// Branches as recorded, but all data in the first level, and all translations in the first level of the TLB.
    Branches,
    /// All data in the first level, all translations in the first level of the TLB, all branches predicted.
    Ideal,
}

/// Returns the bit of a source in [`Line::sources`].
fn source_bit(source: Source) -> u8 {
    1 << source as u8
}

/// Timing of one recording.
pub(crate) struct Timing<'a> {
    core: &'a Parameters,
    conditions: Conditions,
    /// Cycle in which instructions are dispatched now, and slots used in it.
    now: u64,
    used: u32,
    /// Taken branches in the cycle `now`.
    branches: u32,
    /// Cycle in which instructions retire now, and slots used in it.
    retired: u64,
    retired_in_cycle: u32,
    /// Cycle from which on the instructions that were fetched may be dispatched.
    fetched: u64,
    /// Window of code that the front end delivers, and the cycle in which its instructions may be dispatched.
    window: Option<u64>,
    delivered: u64,
    /// Cycle in which each resource is ready.
    ready: [u64; resource::COUNT],
    reorder_buffer: InOrder,
    general: InOrder,
    vector: InOrder,
    loads: InOrder,
    schedulers: Vec<Pool>,
    ports: PortTable,
    line_fills: Pool,
    walkers: Pool,
    paths: [Path; nodescope_plugin_api::SOURCES],
    lines: Lines,
    stores: Stores,
    /// Cycle from which on loads may start: the end of the last locked instruction.
    fence: u64,
    /// Cycle in which each access that a wrong path has made early gets its line, by the access's index.
    early: Vec<u64>,
}

impl<'a> Timing<'a> {
    pub(crate) fn new(core: &'a Parameters, conditions: Conditions, accesses: usize) -> Self {
        Self {
            core,
            conditions,
            now: 0,
            used: 0,
            branches: 0,
            retired: 0,
            retired_in_cycle: 0,
            fetched: 0,
            window: None,
            delivered: 0,
            ready: [0; resource::COUNT],
            reorder_buffer: InOrder::new(core.reorder_buffer),
            general: InOrder::new(core.general_registers),
            vector: InOrder::new(core.vector_registers),
            loads: InOrder::new(core.load_queue),
            schedulers: (core.schedulers.iter())
                .map(|(_, places)| Pool::new(*places))
                .collect(),
            ports: PortTable::new(),
            line_fills: Pool::new(core.line_fills),
            walkers: Pool::new(core.walkers),
            paths: std::array::from_fn(|source| {
                Path::new(core.each_line[source], core.written[source])
            }),
            lines: Lines::default(),
            stores: Stores::new(
                core.store_queue,
                core.commits,
                core.commits_together,
                core.early_stores,
            ),
            fence: 0,
            early: match conditions {
                Conditions::Recorded => vec![0; accesses],
                _ => Vec::new(),
            },
        }
    }

    fn recorded(&self) -> bool {
        self.conditions == Conditions::Recorded
    }

    /// Times one instruction, `ahead` being those that follow it. Returns the cycle in which it retires.
    pub(crate) fn step(&mut self, event: &Event<'_>, ahead: &[Event<'_>]) -> u64 {
        let instruction = event.instruction;
        if event.interrupted {
            self.drain(self.core.system);
        }
        if instruction.serialising {
            self.drain(0);
        }
        self.fetch(event);
        self.deliver(event);
        let dispatched = self.dispatch(instruction.slots.into());
        let mut end = dispatched;
        for operation in &instruction.operations {
            end = end.max(self.operation(operation, event, dispatched));
        }
        let repeats = u64::from(instruction.each_repeat_65536) * u64::from(event.repeats);
        let microcode = (u64::from(instruction.microcode) + (repeats >> 16)).min(LONGEST);
        if microcode > 0 {
            end = end.max(dispatched + microcode);
            self.hold(dispatched + microcode);
        }
        if instruction.locked {
            let start = (dispatched + 1).max(self.fence).max(self.stores.drained());
            end = end.max(start + u64::from(self.core.locked));
            self.fence = end;
            self.settle(instruction, end);
        }
        let retired = self.retire(end, instruction.slots.into());
        self.release(instruction, retired);
        if instruction.serialising {
            self.hold(retired + 1);
        }
        self.branch(event, ahead, dispatched, end, retired);
        retired
    }

    /// Lets the results of an instruction be there no earlier than `end`.
    fn settle(&mut self, instruction: &Instruction, end: u64) {
        for operation in &instruction.operations {
            for result in operation.results.into_iter().take_while(|r| *r != NONE) {
                let ready = &mut self.ready[usize::from(result)];
                *ready = end.max(*ready);
            }
        }
    }

    /// Lets nothing be dispatched before `until`.
    fn hold(&mut self, until: u64) {
        if until > self.now {
            self.now = until;
            self.used = 0;
            self.branches = 0;
        }
    }

    /// Waits until all instructions have retired and all stores are in the cache, and then for so many cycles.
    fn drain(&mut self, cycles: u32) {
        let empty = self.retired.max(self.stores.drained());
        self.hold(empty + 1 + u64::from(cycles));
    }

    /// Lets the front end wait for lines of code that missed.
    fn fetch(&mut self, event: &Event<'_>) {
        if !self.recorded() {
            return;
        }
        let code = |answer: &&Answer| answer.access == Access::Fetch && answer.prefetched_into == 0;
        for answer in event.answers.iter().filter(code) {
            let start = self.fetched.max(self.now);
            let arrives = self.arrival(start, answer.source, u64::from(answer.stall));
            self.fetched = arrives
                .saturating_sub(self.core.fetch_slack.into())
                .max(start);
        }
        self.hold(self.fetched);
    }

    /// Lets an instruction wait for the windows of code that contain it, of which the front end delivers one in a cycle.
    fn deliver(&mut self, event: &Event<'_>) {
        if self.core.fetch_window == 0 {
            return;
        }
        let window = |address: u64| Some(address / u64::from(self.core.fetch_window));
        let last = event
            .address
            .wrapping_add(u64::from(event.instruction.length.max(1)) - 1);
        for window in [window(event.address), window(last)] {
            if self.window != window {
                self.window = window;
                let ahead = self.now.saturating_sub(DELIVERED_AHEAD);
                self.delivered = ahead.max(self.delivered + 1);
            }
        }
        if event.taken {
            self.window = None;
        }
        self.hold(self.delivered);
    }

    /// Dispatches so many slots, as far as they have room; returns the cycle of the last one.
    fn dispatch(&mut self, slots: u32) -> u64 {
        for _ in 0..slots {
            if self.used == self.core.dispatch {
                self.hold(self.now + 1);
            }
            self.hold(self.reorder_buffer.free());
            self.used += 1;
        }
        self.now
    }

    /// Retires so many slots in program order, from `end` on; returns the cycle of the last one, in which their places are free.
    fn retire(&mut self, end: u64, slots: u32) -> u64 {
        if end > self.retired {
            self.retired = end;
            self.retired_in_cycle = 0;
        }
        for _ in 0..slots {
            if self.retired_in_cycle == self.core.retire {
                self.retired += 1;
                self.retired_in_cycle = 0;
            }
            self.retired_in_cycle += 1;
            self.reorder_buffer.take(self.retired + 1);
        }
        self.retired
    }

    /// Gives registers and places of queues back when the instruction retires, and hands its stores to the store queue.
    fn release(&mut self, instruction: &Instruction, retired: u64) {
        for operation in &instruction.operations {
            for result in operation.results.into_iter().take_while(|r| *r != NONE) {
                match result {
                    resource::GENERAL..resource::VECTOR => self.general.take(retired + 1),
                    resource::VECTOR..resource::MASK => self.vector.take(retired + 1),
                    _ => {}
                }
            }
            if operation.kind == Kind::Load {
                self.loads.take(retired + 1);
            }
        }
        self.stores.retire(retired);
    }

    /// Times a micro-operation of an instruction that is dispatched at `dispatched`; returns when it ends.
    fn operation(&mut self, operation: &MicroOperation, event: &Event<'_>, dispatched: u64) -> u64 {
        let mut ready = dispatched;
        for source in operation.sources.into_iter().take_while(|s| *s != NONE) {
            ready = ready.max(self.ready[usize::from(source)]);
        }
        if operation.kind == Kind::Eliminated {
            self.write(operation, ready);
            return ready;
        }
        self.wait_for_room(operation);
        let earliest = ready.max(self.now + 1);
        let earliest = match operation.kind {
            Kind::Load => earliest.max(self.fence),
            _ => earliest,
        };
        let start = self.ports.start(operation.ports, earliest, operation.busy);
        if let Some(scheduler) = self.scheduler(operation.ports) {
            self.schedulers[scheduler].take(start);
        }
        let end = match operation.kind {
            Kind::Load => self.load(operation, event, start),
            Kind::StoreAddress => {
                self.store(operation, event, start);
                start + 1
            }
            Kind::StoreData => {
                self.stores.data(start + u64::from(operation.latency));
                start + u64::from(operation.latency)
            }
            _ => start + u64::from(operation.latency),
        };
        self.write(operation, end);
        end
    }

    fn write(&mut self, operation: &MicroOperation, ready: u64) {
        for result in operation.results.into_iter().take_while(|r| *r != NONE) {
            self.ready[usize::from(result)] = ready;
        }
    }

    fn scheduler(&self, ports: u32) -> Option<usize> {
        (self.core.schedulers.iter()).position(|(served, _)| served & ports != 0)
    }

    /// Holds dispatch until the micro-operation has a place in each queue that it needs.
    fn wait_for_room(&mut self, operation: &MicroOperation) {
        let mut free = 0;
        for result in operation.results.into_iter().take_while(|r| *r != NONE) {
            free = free.max(match result {
                resource::GENERAL..resource::VECTOR => self.general.free(),
                resource::VECTOR..resource::MASK => self.vector.free(),
                _ => 0,
            });
        }
        match operation.kind {
            Kind::Load => free = free.max(self.loads.free()),
            Kind::StoreAddress => free = free.max(self.stores.free()),
            _ => {}
        }
        self.hold(free);
        if let Some(scheduler) = self.scheduler(operation.ports) {
            let free = self.schedulers[scheduler].free(self.now);
            self.hold(free);
        }
    }

    /// Returns the line of an access that a micro-operation makes, and the one behind if the access lies in both.
    fn touched(operation: &MicroOperation, access: &DataAccess) -> (u64, Option<u64>) {
        let first = access.physical / LINE * LINE;
        let last = access.linear % LINE + u64::from(operation.size.max(1)) - 1;
        (first, (last >= LINE).then(|| first.wrapping_add(LINE)))
    }

    /// Times a load that starts at `start`; returns when its value is there.
    fn load(&mut self, operation: &MicroOperation, event: &Event<'_>, start: u64) -> u64 {
        let extra = u64::from(operation.latency);
        let hit = u64::from(self.core.first_level);
        let number = usize::from(operation.access);
        let Some(access) = event.accesses.get(number) else {
            // The addresses of strings and gathers are not recorded.
            return self.unplaced(event, start) + extra;
        };
        let size = u64::from(operation.size);
        if let Some(stored) = self.stores.stored(access.linear, size, start) {
            let to_vector = matches!(operation.results[0], resource::VECTOR..resource::MASK);
            if stored.same && !to_vector && size <= 8 && self.core.forward_same < self.core.forward
            {
                return stored.data + u64::from(self.core.forward_same);
            }
            let forward = match to_vector {
                true => self.core.forward_vector,
                false => self.core.forward,
            };
            return match stored.whole {
                true => stored.data.max(start) + u64::from(forward),
                false => {
                    stored.commit.max(start) + u64::from(self.core.failed_forward) + hit + extra
                }
            };
        }
        let (first, second) = Self::touched(operation, access);
        let (mut start, mut split) = (start, 0);
        if second.is_some() {
            start = self.ports.start(operation.ports, start, 1);
            split = u64::from(self.core.split_latency);
        }
        if !self.recorded() {
            return start + hit + extra + split;
        }
        let start = self.translate(event, number, start);
        let mut end = self.line(event, first, number, start, Access::Read);
        if let Some(second) = second {
            end = end.max(self.line(event, second, number, start + 1, Access::Read));
        }
        end + extra + split
    }

    /// Times the loads of an instruction whose addresses are not recorded: each of its answers is one load.
    fn unplaced(&mut self, event: &Event<'_>, start: u64) -> u64 {
        let mut end = start + u64::from(self.core.first_level);
        if self.recorded() {
            let data = |a: &&Answer| a.access == Access::Read && a.prefetched_into == 0;
            for answer in event.answers.iter().filter(data) {
                end = end.max(self.miss(answer, start));
            }
        }
        end
    }

    /// Returns when the translation of an access is there.
    fn translate(&mut self, event: &Event<'_>, number: usize, start: u64) -> u64 {
        let extra = u64::from(event.translation.get(number).copied().unwrap_or(0));
        if extra <= u64::from(self.core.second_tlb) {
            return start + extra;
        }
        let walk = self.walkers.free(start) + extra;
        self.walkers.take(walk);
        walk
    }

    /// Returns when a line of an access is in the first level, for an access that starts at `start`. Starts the prefetches that the access
    /// causes.
    fn line(
        &mut self,
        event: &Event<'_>,
        line: u64,
        number: usize,
        start: u64,
        kind: Access,
    ) -> u64 {
        let hit = start + u64::from(self.core.first_level);
        let of_line = |a: &&Answer| a.line == line && a.access == kind && a.prefetched_into == 0;
        let answer = event.answers.iter().find(of_line);
        let index = event.first_access as usize + number;
        let end = match answer {
            Some(answer) => match self.early[index] {
                0 => self.miss(answer, start),
                early => hit.max(early),
            },
            None => hit.max(self.lines.first_level(line, start)),
        };
        if answer.is_some() {
            self.prefetch(event, start);
        }
        end
    }

    /// Starts the prefetches that an instruction's accesses have caused.
    fn prefetch(&mut self, event: &Event<'_>, start: u64) {
        for answer in event.answers.iter().filter(|a| a.prefetched_into > 0) {
            if self.lines.is_pending(answer.line, start) {
                continue;
            }
            let beyond = self.beyond(answer.source);
            let ready = self.arrival(start, answer.source, beyond);
            let level = answer.prefetched_into;
            let latency = ready - start;
            let line = Line {
                ready,
                latency,
                level,
                sources: answer.source.map_or(0, source_bit),
                written: false,
            };
            self.lines.set(answer.line, line);
        }
    }

    fn beyond(&self, source: Option<Source>) -> u64 {
        source.map_or(0, |source| self.core.beyond[source as usize].into())
    }

    /// Returns when a line arrives that is requested at `at` and comes from `source` after `beyond` cycles, if paths are free.
    fn arrival(&mut self, at: u64, source: Option<Source>, beyond: u64) -> u64 {
        let arrives = at + beyond;
        match source {
            Some(source) => self.paths[source as usize].arrival(at, arrives),
            None => arrives,
        }
    }

    /// Times a reference that the first level does not answer; returns when its line is there.
    fn miss(&mut self, answer: &Answer, start: u64) -> u64 {
        let hit = u64::from(self.core.first_level);
        let Some(source) = answer.source else {
            // The first touch of a line that a prefetcher brought, or a permission to write.
            let ready = self.lines.find(answer.line).map_or(0, |line| line.ready);
            return (start + hit + u64::from(answer.stall)).max(ready);
        };
        let requested = self.line_fills.free(start);
        let beyond = u64::from(answer.stall).max(1);
        let mut ready = self.arrival(requested, Some(source), beyond) + hit;
        let mut sources = source_bit(source);
        if let Some(line) = self.lines.find(answer.line)
            && line.level > 1
        {
            // A prefetcher has brought the line to this level, perhaps too late.
            ready = ready.max(line.ready + self.beyond(Some(Source::Level2)));
            sources |= line.sources;
        }
        self.line_fills.take(ready);
        let latency = ready - start;
        let line = Line {
            ready,
            latency,
            level: 1,
            sources,
            written: false,
        };
        self.lines.set(answer.line, line);
        ready
    }

    /// Returns when a line that a store writes to is in the first level. The line takes its share of the paths by which it goes back.
    fn written_line(&mut self, event: &Event<'_>, line: u64, number: usize, at: u64) -> u64 {
        let there = self.line(event, line, number, at, Access::Write);
        let sources = self.lines.write(line);
        for (source, path) in self.paths.iter_mut().enumerate() {
            if sources >> source & 1 != 0 {
                path.move_back(at);
            }
        }
        there
    }

    /// Enters a store whose address is there at `start` into the store queue, and requests its line.
    fn store(&mut self, operation: &MicroOperation, event: &Event<'_>, start: u64) {
        let number = usize::from(operation.access);
        let Some(access) = event.accesses.get(number) else {
            let answers = event.answers.iter().filter(|a| a.access == Access::Write);
            let beyond = answers.map(|a| u64::from(a.stall)).max().unwrap_or(0);
            let line = if self.recorded() {
                start + beyond
            } else {
                start
            };
            return self.stores.enter(u64::MAX, 0, start, line, 1);
        };
        let size = u64::from(operation.size);
        let (first, second) = Self::touched(operation, access);
        let occupies = match second {
            None => 1,
            Some(second) if second % PAGE == 0 => self.core.page_split_commit,
            Some(_) => self.core.split_commit,
        };
        if !self.recorded() {
            return self.stores.enter(access.linear, size, start, 0, occupies);
        }
        let start = self.translate(event, number, start);
        let request = self.stores.may_request(start);
        let mut there = match event.instruction.non_temporal {
            true => self.combine(event, first, request),
            false => self.written_line(event, first, number, request),
        };
        if let Some(second) = second {
            there = there.max(self.written_line(event, second, number, request));
        }
        self.stores
            .enter(access.linear, size, start, there, occupies);
    }

    /// Returns when a store past the caches has a write-combining buffer.
    fn combine(&mut self, event: &Event<'_>, line: u64, request: u64) -> u64 {
        let local = Source::LocalMemory;
        if event.answers.iter().any(|a| a.line == line) {
            let free = self.line_fills.free(request);
            let sent = self.arrival(free, Some(local), 0);
            self.line_fills.take(sent);
            return free;
        }
        request
    }

    /// Ends a cycle of dispatch behind a taken branch, and lets the front end begin anew behind a branch that was predicted wrongly.
    fn branch(
        &mut self,
        event: &Event<'_>,
        ahead: &[Event<'_>],
        dispatched: u64,
        end: u64,
        retired: u64,
    ) {
        if event.instruction.flow == Flow::System && !event.instruction.serialising {
            self.hold(retired + 1 + u64::from(self.core.system));
        }
        if event.taken {
            self.branches += 1;
            if self.branches > self.core.taken_branches {
                self.hold(self.now + 1);
                self.branches = 1;
            }
            let calls = [Flow::Call, Flow::IndirectCall, Flow::Return];
            if self.core.call_bubble > 0 && calls.contains(&event.instruction.flow) {
                self.hold(self.now + 1 + u64::from(self.core.call_bubble));
            }
        }
        if event.mispredicted && self.conditions != Conditions::Ideal {
            if end > dispatched + 3
                && self.recorded()
                && let Some(path) = &event.wrong_path
            {
                self.run_ahead(path, ahead, dispatched, end);
            }
            self.hold(end + u64::from(self.core.redirect));
        }
    }

    /// Lets loads start behind the place at which the wrong way of a branch meets the right one, if their addresses are there and are the
    /// same on both ways. The lines that these loads request come earlier.
    fn run_ahead(&mut self, path: &WrongPath, ahead: &[Event<'_>], dispatched: u64, resolved: u64) {
        let mut ready = self.ready;
        let mut changed = path.changed;
        let width = u64::from(self.core.dispatch.max(1));
        let room = u64::from(self.core.reorder_buffer);
        let mut slot = u64::from(path.wrong);
        let mut next = usize::from(path.right);
        while let Some(event) = ahead.get(next) {
            (next, slot) = (next + 1, slot + 1);
            if slot >= room {
                return;
            }
            let at = dispatched + slot / width;
            if at >= resolved || event.interrupted || event.instruction.serialising {
                return;
            }
            for operation in &event.instruction.operations {
                let sources = operation.sources.into_iter().take_while(|s| *s != NONE);
                let differs = sources.clone().any(|source| changed.has(source));
                let start = sources.fold(at + 1, |t, s| t.max(ready[usize::from(s)]));
                let end = match operation.kind {
                    Kind::Load if !differs => self.load_ahead(operation, event, start, resolved),
                    Kind::Eliminated => start - 1,
                    _ => start + u64::from(operation.latency),
                };
                for result in operation.results.into_iter().take_while(|r| *r != NONE) {
                    ready[usize::from(result)] = end;
                    changed.set(result, differs);
                }
            }
            if event.mispredicted {
                // The core goes a wrong way here too.
                let Some(path) = &event.wrong_path else {
                    return;
                };
                changed.add(path.changed);
                slot += u64::from(path.wrong);
                next += usize::from(path.right);
            }
        }
    }

    /// Times a load on a wrong path; returns when its value is there.
    fn load_ahead(
        &mut self,
        operation: &MicroOperation,
        event: &Event<'_>,
        start: u64,
        resolved: u64,
    ) -> u64 {
        let hit = start + u64::from(self.core.first_level) + u64::from(operation.latency);
        let number = usize::from(operation.access);
        let index = event.first_access as usize + number;
        let Some(access) = event.accesses.get(number) else {
            return hit;
        };
        if start >= resolved {
            return hit;
        }
        let (line, _) = Self::touched(operation, access);
        let of_line =
            |a: &&Answer| a.line == line && a.access == Access::Read && a.source.is_some();
        let Some(answer) = event.answers.iter().find(of_line) else {
            return hit.max(self.lines.first_level(line, start));
        };
        if self.early[index] == 0 {
            let start = self.translate(event, number, start);
            self.early[index] = self.miss(answer, start);
        }
        hit.max(self.early[index])
    }
}
