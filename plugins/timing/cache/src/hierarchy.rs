//! The state of a node's caches: lines, policies, prefetchers, counters, and the request in progress.
//!
//! The module `miss` has the rules by which a line comes in, `replacement` those by which a line leaves, and `coherence` those by which
//! copies of a line stay coherent.

use std::collections::VecDeque;
use std::mem;
use std::ptr::NonNull;

use nodescope_plugin_api::{Account, Charges, Ledger, MemoryTimingModel, Prefetched, Source};
use serde::{Deserialize, Serialize};

use crate::builder::Parts;
use crate::config::{CacheKind, MOST_LEVELS};
use crate::contention::Contention;
use crate::flat::FlatMemory;
use crate::node::{NONE, Node, PolicyState};
use crate::prefetch::Prefetcher;
use crate::tags::{State, Tags};
use crate::tree::Tree;
use crate::word::Word;

/// Contents of one cache, for inspection and tests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheContents {
    /// Level, counted from 1.
    pub level: u8,
    /// Kind of lines that the cache has.
    pub kind: CacheKind,
    /// Socket of the cache.
    pub socket: u16,
    /// Core of the cache; `None` if cores share caches of this level.
    pub core: Option<u16>,
    /// Index, in the list of all caches, of the cache outside this one; `None` for an outermost cache.
    pub outer: Option<usize>,
    /// Sets that have lines: set number, then physical addresses and states of the lines. With LRU replacement the most recently used line
    /// is first, unless an engine's L0 filter cache keeps the order of the set. With other policies the lines are in the order of the ways.
    pub sets: Vec<(u64, Vec<(u64, State)>)>,
}

/// State of all caches of a node, their counters, and the request in progress.
pub(crate) struct Hierarchy<W> {
    /// Policies of caches by the cache's number; `None` for LRU.
    pub(crate) policies: Vec<Option<PolicyState>>,
    /// Prefetchers of caches by the cache's number.
    pub(crate) prefetchers: Vec<Vec<Box<dyn Prefetcher>>>,
    /// Lines that a prefetcher wants; empty between calls.
    pub(crate) wanted: Vec<u64>,
    /// Lines that prefetchers have brought because of the last reference that they saw.
    pub(crate) prefetched: Vec<Prefetched>,
    /// Lines of each vCPU's non-temporal stores that are being combined, the oldest first.
    pub(crate) combined: Vec<VecDeque<u64>>,
    pub(crate) tags: Tags<W>,
    /// The first line number that does not fit into the words of `tags`.
    pub(crate) line_limit: u64,
    pub(crate) ledger: Ledger,
    pub(crate) memory: Box<dyn MemoryTimingModel>,
    pub(crate) contention: Contention,
    pub(crate) request: Request,
    /// Caches outside the first one, outwards, that the request in progress has asked.
    pub(crate) path: [u32; MOST_LEVELS],
}

/// The request in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// The vCPU that made the request.
    pub(crate) requester: u16,
    pub(crate) account: Account,
    pub(crate) now: u64,
    /// Cycles charged to the request so far.
    pub(crate) stall: u64,
    /// Cycles of waiting for memory bandwidth that no answer has yet.
    pub(crate) toll: u64,
    /// Where the reference is charged to code; `None` for the ledger's charges.
    pub(crate) charges: ChargeTarget,
    /// True while a line is brought for a prefetcher: events cost nothing, and accesses of levels are not counted.
    pub(crate) prefetch: bool,
    /// Levels inside that of the cache whose prefetcher brings the line.
    pub(crate) prefetch_inside: usize,
    /// Where the line of the last prefetch came from.
    pub(crate) prefetch_source: Option<Source>,
    /// True if another core's cache had the line, modified.
    pub(crate) taken: bool,
    /// True if the store buffer hides the cycles of transfers, whose sum is `hidden`.
    pub(crate) buffered: bool,
    pub(crate) hidden: u64,
}

/// Charges of a direct miss ([`nodescope_plugin_api::DirectMiss::charges`]) while its function runs; else `None`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChargeTarget(Option<NonNull<Charges>>);

// SAFETY: the pointer is there only while a direct miss is served, on one thread.
unsafe impl Send for ChargeTarget {}

impl ChargeTarget {
    /// Sets the target.
    ///
    /// # Safety
    /// The pointer, unless it is null, is valid for reads and writes until the target is set anew.
    pub(crate) unsafe fn set(&mut self, charges: *mut Charges) {
        self.0 = NonNull::new(charges);
    }

    /// Returns the charges of the request in progress.
    #[inline(always)]
    pub(crate) fn or<'a>(&'a mut self, others: &'a mut Charges) -> &'a mut Charges {
        match &mut self.0 {
            // SAFETY: the promise of `set`.
            Some(charges) => unsafe { charges.as_mut() },
            None => others,
        }
    }
}

impl<W: Word> Hierarchy<W> {
    /// Makes the empty state of the caches of a tree.
    pub(crate) fn new(
        tree: &Tree,
        parts: Parts,
        memory: Box<dyn MemoryTimingModel>,
    ) -> Hierarchy<W> {
        let nodes = &tree.nodes.0;
        let vcpus = tree.vcpu_caches.len();
        Hierarchy {
            policies: parts.policies,
            prefetchers: parts.prefetchers,
            wanted: Vec::new(),
            prefetched: Vec::new(),
            combined: vec![VecDeque::new(); vcpus],
            tags: Tags::new(nodes.last().map_or(0, |node| node.geometry.end())),
            line_limit: Self::line_limit(nodes),
            ledger: Ledger::new(tree.events.len(), vcpus),
            memory,
            contention: Contention::default(),
            request: Request {
                requester: 0,
                account: Account::default(),
                now: 0,
                stall: 0,
                toll: 0,
                charges: ChargeTarget(None),
                prefetch: false,
                prefetch_inside: 0,
                prefetch_source: None,
                taken: false,
                buffered: false,
                hidden: 0,
            },
            path: [NONE; MOST_LEVELS],
        }
    }

    fn line_limit(nodes: &[Node]) -> u64 {
        // A page of 4 KiB is wholly below the limit or above it.
        const LINES_OF_PAGE: u64 = 128;
        let limits = nodes.iter().map(|node| node.geometry.line_limit(W::BITS));
        limits.min().unwrap_or(0) / LINES_OF_PAGE * LINES_OF_PAGE
    }

    /// Moves the state to wider words. The state that remains here must not be used.
    pub(crate) fn widen<V: Word>(&mut self, tree: &Tree) -> Hierarchy<V> {
        let nothing: Box<dyn MemoryTimingModel> = Box::new(FlatMemory::default());
        Hierarchy {
            policies: mem::take(&mut self.policies),
            prefetchers: mem::take(&mut self.prefetchers),
            wanted: Vec::new(),
            prefetched: Vec::new(),
            combined: mem::take(&mut self.combined),
            tags: self.tags.widen(),
            line_limit: Hierarchy::<V>::line_limit(&tree.nodes.0),
            ledger: self.ledger.clone(),
            memory: mem::replace(&mut self.memory, nothing),
            contention: mem::take(&mut self.contention),
            request: self.request,
            path: self.path,
        }
    }

    /// Clears all counts.
    pub(crate) fn clear_statistics(&mut self) {
        self.ledger.clear();
        self.contention.clear();
    }

    /// Returns the contents of every cache.
    pub(crate) fn contents(&self, tree: &Tree) -> Vec<CacheContents> {
        (tree.nodes.0.iter().zip(&tree.children))
            .map(|(node, children)| CacheContents {
                level: node.level + 1,
                kind: node.kind,
                socket: node.socket,
                core: children.core,
                outer: (!node.outermost()).then_some(node.outer as usize),
                sets: self
                    .tags
                    .contents(&node.geometry)
                    .into_iter()
                    .map(|(set, lines)| {
                        let lines = lines
                            .into_iter()
                            .map(|(line, state)| (line << tree.line_shift, state));
                        (set, lines.collect())
                    })
                    .collect(),
            })
            .collect()
    }
}
