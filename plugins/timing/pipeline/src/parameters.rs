//! Numbers of a core that the timing of recordings needs.

use nodescope_plugin_api::{SOURCES, Source};

use crate::description::Core;
use crate::micro::resource;

/// Numbers of a core. Times are in cycles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parameters {
    /// Slots that are dispatched in a cycle.
    pub(crate) dispatch: u32,
    /// Slots that retire in a cycle.
    pub(crate) retire: u32,
    /// Places of the reorder buffer, in slots.
    pub(crate) reorder_buffer: u32,
    /// General registers for results of instructions in flight.
    pub(crate) general_registers: u32,
    /// Vector registers for results of instructions in flight.
    pub(crate) vector_registers: u32,
    pub(crate) load_queue: u32,
    pub(crate) store_queue: u32,
    /// Schedulers: the ports that each serves, and its places.
    pub(crate) schedulers: Vec<(u32, u32)>,
    /// Cycles from the execution of a wrongly predicted branch to the next dispatch.
    pub(crate) redirect: u32,
    /// Lines that the first level waits for at a time.
    pub(crate) line_fills: u32,
    /// Cycles of a load that the first level answers.
    pub(crate) first_level: u32,
    /// Cycles beyond a hit of the first level, by source.
    pub(crate) beyond: [u32; SOURCES],
    /// Cycles in 1/256 in which a path moves a line, by source: one core's bandwidth.
    pub(crate) each_line: [u32; SOURCES],
    /// Share of this time in 1/256 that a written line takes on its way back, by source.
    pub(crate) written: [u32; SOURCES],
    /// Cycles of a load from an earlier store that is not in the cache yet.
    pub(crate) forward: u32,
    /// The same for a load to a vector register.
    pub(crate) forward_vector: u32,
    /// The same for a load of the address and size of an earlier store.
    pub(crate) forward_same: u32,
    /// Cycles after the commit of a store at which a load that cannot be forwarded begins.
    pub(crate) failed_forward: u32,
    /// Additional cycles of a load that crosses a line.
    pub(crate) split_latency: u32,
    /// Cycles for which a store that crosses a line, or a page of 4 KiB, occupies the commit.
    pub(crate) split_commit: u32,
    pub(crate) page_split_commit: u32,
    /// Stores that commit in a cycle.
    pub(crate) commits: u32,
    /// True if two stores to one line that follow each other commit in a cycle.
    pub(crate) commits_together: bool,
    /// Number of the oldest stores that may request their lines.
    pub(crate) early_stores: u32,
    /// Cycles beyond a hit of the first level of the TLB.
    pub(crate) second_tlb: u32,
    /// Cycles of a page walk with one load, cycles of each further load, and walks at a time.
    pub(crate) walk: u32,
    pub(crate) walk_step: u32,
    pub(crate) walkers: u32,
    /// Cycles that a locked instruction takes by itself.
    pub(crate) locked: u32,
    /// Cycles for which instructions that come in ahead of time hide a miss of the instruction cache.
    pub(crate) fetch_slack: u32,
    /// Cycles of a system call, an exception or an interrupt, at its beginning and at its end.
    pub(crate) system: u32,
    /// Taken branches in a cycle.
    pub(crate) taken_branches: u32,
    /// Bytes of the windows of code of which one is delivered in a cycle; 0 for no such limit.
    pub(crate) fetch_window: u32,
    /// Cycles that a call or return adds at the front end.
    pub(crate) call_bubble: u32,
    /// False if large pages save no entries of the TLB.
    pub(crate) large_pages: bool,
}

/// Cycles for which instructions that were fetched ahead of time hide a miss of the instruction cache.
const FETCHED_AHEAD: u32 = 10;

impl Parameters {
    /// Takes the numbers of a core; `beyond` is that of [`crate::PipelineModel::new`].
    pub(crate) fn new(core: &Core, beyond: [u32; SOURCES]) -> Self {
        // Registers that hold the program's state are not free for results in flight.
        let general = u32::from(resource::VECTOR - resource::GENERAL);
        let vector = u32::from(resource::MASK - resource::VECTOR);
        let schedulers = core.schedulers.iter();
        let [second_level, third_level, memory] = core.bandwidth.written;
        Self {
            dispatch: core.pipeline.dispatch,
            retire: core.pipeline.retire,
            reorder_buffer: core.pipeline.reorder_buffer,
            general_registers: core.renaming.general_registers.saturating_sub(general),
            vector_registers: core.renaming.vector_registers.saturating_sub(vector),
            load_queue: core.load.queue,
            store_queue: core.store.queue,
            schedulers: schedulers.map(|s| (s.ports, s.entries)).collect(),
            redirect: core.pipeline.mispredict_penalty,
            line_fills: core.load.line_fills,
            first_level: core.load.latency.into(),
            beyond,
            each_line: [
                core.bandwidth.second_level,
                core.bandwidth.third_level,
                core.bandwidth.other_cache,
                core.bandwidth.memory,
                core.bandwidth.remote_memory,
            ],
            written: [second_level, third_level, 0, memory, memory],
            forward: core.store.forward.into(),
            forward_vector: core.store.forward_vector.into(),
            forward_same: core.store.forward_same.into(),
            failed_forward: core.store.failed_forward.into(),
            split_latency: core.load.split_latency.into(),
            split_commit: core.store.split_commit.into(),
            page_split_commit: core.store.page_split_commit.into(),
            commits: core.store.commits,
            commits_together: core.store.commits_together,
            early_stores: core.store.early,
            second_tlb: core.tlb.second_latency,
            walk: core.tlb.walk_latency,
            walk_step: beyond[Source::Level2 as usize],
            walkers: core.tlb.walkers,
            locked: core.costs.locked,
            fetch_slack: FETCHED_AHEAD,
            system: core.costs.interrupt,
            taken_branches: core.pipeline.taken_branches,
            fetch_window: core.pipeline.fetch_window,
            call_bubble: core.pipeline.call_bubble,
            large_pages: core.tlb.large_pages,
        }
    }
}
