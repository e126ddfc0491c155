//! Events by name, their cycles, and requests to memory.

use nodescope_plugin_api::{Access, Context, MissRef, Privilege, VcpuPlace};
use nodescope_plugin_cache::{ByDistance, CacheKind, LevelLatency, Sharing};

use super::prefetch::Answer;
use super::{Plain, cores_around};

/// Reason for a request to memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    Read,
    WriteBack,
    NonTemporal,
}

impl Plain {
    pub fn memory(&mut self, socket: u16, line: u64, reason: Reason) {
        let timing = self.memory.request(&MissRef {
            socket,
            vcpu: 0,
            line: line * u64::from(self.config.levels[0].line),
            write_back: reason != Reason::Read,
            now: 0,
        });
        let place = if timing.local { "local" } else { "remote" };
        let suffix = match reason {
            Reason::Read if self.prefetches => "_prefetch",
            Reason::Read => "",
            Reason::WriteBack => "_writeback",
            Reason::NonTemporal => "_non_temporal",
        };
        self.event(format!("memory.{place}{suffix}"), timing.latency);
    }

    pub fn place_of_requester(&self) -> VcpuPlace {
        self.places[usize::from(self.requester.vcpu)]
    }

    pub fn latency(&self, level: usize) -> LevelLatency {
        self.config.levels[level].latency
    }

    /// Returns the prefix of the names of a cache's events.
    pub fn name(&self, cache: usize) -> String {
        match self.caches[cache].kind {
            CacheKind::Data => "L1D".to_owned(),
            CacheKind::Instruction => "L1I".to_owned(),
            CacheKind::Unified => format!("L{}", self.caches[cache].level + 1),
        }
    }

    /// Charges the answer of a cache to a demand access.
    pub fn answer(&mut self, cache: usize, answer: Answer) {
        let fetches = self.caches[cache].kind == CacheKind::Instruction;
        let latency = match &self.config.instruction {
            Some(instruction) if fetches => instruction.latency,
            _ => self.latency(self.caches[cache].level),
        };
        let (kind, hit, miss) = match self.access {
            Access::Fetch if fetches => ("", latency.fetch_hit, latency.fetch_miss),
            Access::Fetch => ("fetch_", latency.fetch_hit, latency.fetch_miss),
            Access::Read => ("read_", latency.read_hit, latency.read_miss),
            Access::Write => ("write_", latency.write_hit, latency.write_miss),
        };
        let (event, cycles) = match answer {
            Answer::Hit => (format!("{kind}hit"), hit),
            Answer::PrefetchedHit => (format!("{kind}prefetch_hit"), hit),
            Answer::Miss => (format!("{kind}miss"), miss),
        };
        self.event(format!("{}.{event}", self.name(cache)), cycles);
    }

    /// Charges the write-back of a modified line to the next outer level or to memory.
    pub fn write_back(&mut self, cache: usize) {
        let cycles = self.latency(self.caches[cache].level).writeback;
        self.event(format!("{}.writeback", self.name(cache)), cycles);
    }

    /// Returns whether a core of the requester's socket is not in the requester's group: the largest group of cores that share a cache,
    /// without those of whole sockets.
    fn other_group(&self, core: u16) -> bool {
        let here = self.place_of_requester();
        let shared = self.config.levels.iter().map(|level| level.shared_by);
        let mut groups = shared.filter(|shared| matches!(shared, Sharing::Cores(_)));
        groups
            .next_back()
            .is_some_and(|shared| !cores_around(&self.places, &here, shared).contains(&core))
    }

    pub fn between(&mut self, what: &str, other: usize, suffix: &str) {
        let coherence = &self.config.coherence;
        let latency: ByDistance = match (what, suffix) {
            ("from", "") => coherence.from,
            ("from", _) => coherence.from_modified,
            ("snoop", _) => coherence.snoop,
            _ => coherence.invalidate,
        };
        let (here, other) = (self.place_of_requester(), &self.caches[other]);
        let (distance, cycles) = if other.socket != here.socket {
            ("other_socket", latency.other_socket)
        } else if other.cores.contains(&here.core) {
            ("same_core", latency.same_core)
        } else if self.other_group(other.cores[0]) {
            ("other_group", latency.other_group)
        } else {
            ("other_core", latency.other_core)
        };
        self.event(format!("{what}_{distance}{suffix}"), cycles);
    }

    /// Counts an event of the reference in progress. What a prefetch causes has no cycles.
    pub fn event(&mut self, name: String, cycles: u32) {
        let cycles = if self.prefetches { 0 } else { cycles };
        let privilege = if self.requester.kernel {
            Privilege::Kernel
        } else {
            Privilege::User
        };
        let key = (
            self.requester.vcpu,
            Context(self.requester.context),
            privilege,
        );
        let (count, sum) = self.events.entry((key, name)).or_default();
        *count += 1;
        *sum += u64::from(cycles);
        self.stall += u64::from(cycles);
    }
}
