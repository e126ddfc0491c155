//! The critical path, found from the cause that ended each wait.

use std::collections::BTreeMap;

use nodescope_trace::Call;

use super::Interpreter;
use crate::code::{NONE, describe};
use crate::result::CriticalPath;

/// A moment of a rank, from which the critical path goes back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub rank: u32,
    pub time: u64,
    /// Computation of the rank up to this moment, uninterpreted calls included, picoseconds.
    pub computed: u64,
    /// Last wait of the rank before this moment, as an index of the parts; `NONE` if there was none.
    pub path: u32,
}

/// A wait that ended, and its cause.
#[derive(Clone, Copy, Debug)]
struct Part {
    end: u64,
    computed: u64,
    op: u32,
    origin: Origin,
}

/// Every wait that ended, if they are kept.
#[derive(Debug)]
pub(super) struct Path {
    keep: bool,
    parts: Vec<Part>,
}

impl Path {
    pub fn new(keep: bool) -> Path {
        Path {
            keep,
            parts: Vec::new(),
        }
    }

    pub fn add(&mut self, end: u64, computed: u64, op: u32, origin: Origin) -> u32 {
        if !self.keep || self.parts.len() >= NONE as usize {
            return NONE;
        }
        self.parts.push(Part {
            end,
            computed,
            op,
            origin,
        });
        (self.parts.len() - 1) as u32
    }
}

/// Most ranks, and most call sites, of the critical path that are reported.
const MAX_REPORTED: usize = 10;

impl Interpreter<'_> {
    /// Returns the critical path, followed back from the rank that ends last; `None` if the waits were not kept.
    pub(super) fn critical_path(&self) -> Option<CriticalPath> {
        if !self.path.keep {
            return None;
        }
        let main = &self.contexts[..self.world as usize];
        let last = (main.iter().zip(0..)).max_by_key(|(c, rank)| (c.clock, u32::MAX - rank));
        let Some((_, last)) = last else {
            return Some(CriticalPath::default());
        };
        let mut at = self.origin(last);
        let mut path = CriticalPath::default();
        let mut ranks: BTreeMap<u32, u64> = BTreeMap::new();
        let mut calls: BTreeMap<u32, u64> = BTreeMap::new();
        loop {
            let part = self.path.parts.get(at.path as usize);
            let (from, computed) = part.map_or((0, 0), |part| (part.end, part.computed));
            let span = at.time.saturating_sub(from);
            let computation = at.computed.saturating_sub(computed).min(span);
            path.computation += computation;
            path.communication += span - computation;
            *ranks.entry(at.rank).or_default() += span;
            let Some(part) = part else {
                break;
            };
            let start = part.origin.time.min(part.end);
            path.transfer += part.end - start;
            path.messages += 1;
            let site = self.code.site_of.get(part.op as usize);
            *calls.entry(site.copied().unwrap_or(NONE)).or_default() += part.end - start;
            at = Origin {
                time: start,
                ..part.origin
            };
        }
        let mut ranks: Vec<_> = ranks.into_iter().collect();
        ranks.sort_by_key(|&(rank, time)| (u64::MAX - time, rank));
        ranks.truncate(MAX_REPORTED);
        let mut calls: Vec<_> = calls.into_iter().collect();
        calls.sort_by_key(|&(site, time)| (u64::MAX - time, site));
        calls.truncate(MAX_REPORTED);
        path.ranks = ranks;
        path.calls = calls
            .into_iter()
            .map(|(site, time)| (self.call_at(site), time))
            .collect();
        Some(path)
    }

    /// Returns the call of a function and call site, by their index in the code.
    pub(super) fn call_at(&self, site: u32) -> Call {
        match self.code.op_at(site) {
            Some(op) => describe(&self.code.program.origin.names, op),
            None => Call::without_site("unknown"),
        }
    }
}
