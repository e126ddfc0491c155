//! A simple implementation of the semantics in `plugins/timing/README.md`. Sets are lists of ways, caches are searched, and every event is
//! looked up by its name. There are no holder bits, no early exits and no L0 filter cache.

mod charges;
mod non_temporal;
pub mod prefetch;
mod prefetchers;
mod protocol;
mod sets;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use nodescope_plugin_api::{Access, Key, MemoryTimingModel, Site, Statistic, VcpuPlace};
use nodescope_plugin_cache::{
    CacheConfig, CacheContents, CacheKind, LevelConfig, NonTemporalStores, Sharing, State,
};
use prefetch::{Answer, Prefetchers};
use sets::Cache;

use super::Step;

pub struct Plain {
    config: CacheConfig,
    places: Vec<VcpuPlace>,
    memory: Box<dyn MemoryTimingModel>,
    prefetchers: Option<Box<dyn Prefetchers>>,
    caches: Vec<Cache>,
    /// Indices of the first-level data cache and instruction cache of each vCPU. None: fetches are not cached.
    first: Vec<(usize, Option<usize>)>,
    /// Lines in the write-combining buffers of each vCPU, oldest first.
    buffers: Vec<VecDeque<u64>>,
    /// Count and cycles of each event.
    events: BTreeMap<(Key, String), (u64, u64)>,
    requester: Step,
    stall: u64,
    /// Kind of the request in progress: that of the reference, or a read for a prefetch.
    access: Access,
    /// True if the request in progress is a prefetch.
    prefetches: bool,
    /// Caches of the request in progress, from the one that asks outwards.
    path: Vec<usize>,
    /// Answers of the caches to the reference in progress, from the first level outwards.
    answers: Vec<(usize, Answer)>,
}

/// Returns the cores that share a cache with the core of `place`, in ascending order.
fn cores_around(places: &[VcpuPlace], place: &VcpuPlace, shared_by: Sharing) -> Vec<u16> {
    let cores: BTreeSet<u16> = places
        .iter()
        .filter(|other| other.socket == place.socket)
        .map(|other| other.core)
        .collect();
    let cores = Vec::from_iter(cores);
    let size = match shared_by {
        Sharing::Core => 1,
        Sharing::Cores(cores) => usize::from(cores),
        Sharing::Socket => cores.len(),
    };
    let mut groups = cores.chunks(size);
    let group = groups.find(|group| group.contains(&place.core));
    group.expect("every core is in a group").to_vec()
}

impl Plain {
    pub fn new(
        config: &CacheConfig,
        places: &[VcpuPlace],
        memory: Box<dyn MemoryTimingModel>,
    ) -> Plain {
        let mut caches: Vec<Cache> = Vec::new();
        let mut first = Vec::new();
        for place in places {
            let mut cache = |level: usize, kind: CacheKind, shape: &LevelConfig| {
                let cores = cores_around(places, place, shape.shared_by);
                let core = (shape.shared_by == Sharing::Core).then_some(place.core);
                let known = caches.iter().position(|cache| {
                    (cache.level, cache.kind, cache.socket) == (level, kind, place.socket)
                        && cache.cores == cores
                });
                known.unwrap_or_else(|| {
                    caches.push(Cache::new(level, kind, place.socket, cores, core, shape));
                    caches.len() - 1
                })
            };
            let data = cache(0, CacheKind::Data, &config.levels[0]);
            let instruction = config
                .instruction
                .as_ref()
                .map(|shape| cache(0, CacheKind::Instruction, shape));
            let unified: Vec<usize> = (1..config.levels.len())
                .map(|level| cache(level, CacheKind::Unified, &config.levels[level]))
                .collect();
            for inner in [Some(data), instruction].into_iter().flatten() {
                let mut inner = inner;
                for &outer in &unified {
                    caches[inner].outer = Some(outer);
                    inner = outer;
                }
            }
            first.push((data, instruction));
        }
        Plain {
            config: config.clone(),
            places: places.to_vec(),
            memory,
            prefetchers: None,
            caches,
            first,
            buffers: vec![VecDeque::new(); places.len()],
            events: BTreeMap::new(),
            requester: Step {
                vcpu: 0,
                access: Access::Read,
                address: 0,
                context: 0,
                kernel: false,
                non_temporal: false,
                site: Site::default(),
            },
            stall: 0,
            access: Access::Read,
            prefetches: false,
            path: Vec::new(),
            answers: Vec::new(),
        }
    }

    /// Performs one reference and returns its stall in cycles.
    pub fn step(&mut self, step: Step) -> u64 {
        self.requester = step;
        self.access = step.access;
        self.stall = 0;
        let line = (step.address & ((1 << 52) - 1)) / u64::from(self.config.levels[0].line);
        let (data, instruction) = self.first[usize::from(step.vcpu)];
        let first = match (step.access, instruction) {
            (Access::Fetch, None) => return 0,
            (Access::Fetch, Some(instruction)) => instruction,
            _ => data,
        };
        let bypasses = self.config.non_temporal_stores == NonTemporalStores::Bypass;
        if bypasses && step.non_temporal && step.access == Access::Write {
            self.bypass(line);
            return self.stall;
        }
        self.path = self.path_from(first);
        if let Some(state) = self.caches[first].state(line) {
            self.hit(first, line);
            match (step.access, state) {
                (Access::Write, State::Exclusive) => self.mark_modified(first, line),
                (Access::Write, State::Shared | State::Forward) => self.own(first, line),
                _ => {}
            }
        } else {
            self.see(first, Answer::Miss);
            self.miss(line);
        }
        self.prefetch(line);
        self.stall
    }

    /// Returns a cache and the caches around it, outwards.
    fn path_from(&self, cache: usize) -> Vec<usize> {
        std::iter::successors(Some(cache), |&cache| self.caches[cache].outer).collect()
    }

    fn inside(&self, cache: usize) -> Vec<usize> {
        (0..self.caches.len())
            .filter(|&inner| self.caches[inner].outer == Some(cache))
            .collect()
    }

    fn peers(&self, root: usize) -> Vec<usize> {
        (0..self.caches.len())
            .filter(|&peer| peer != root && self.caches[peer].outer.is_none())
            .collect()
    }

    /// Returns a model's statistics in the form of [`Plain::events`], without the rows that only sum the misses of a level.
    pub fn events_of(statistics: &[Statistic]) -> BTreeMap<(Key, String), (u64, u64)> {
        statistics
            .iter()
            .filter(|row| !(row.event.ends_with(".miss") && row.event != "L1I.miss"))
            .map(|row| {
                let key = (row.vcpu, row.context, row.privilege);
                ((key, row.event.clone()), (row.count, row.cycles))
            })
            .collect()
    }

    /// Returns count and cycles of every event, by vCPU, context, privilege and name.
    pub fn events(&self) -> &BTreeMap<(Key, String), (u64, u64)> {
        &self.events
    }

    /// Returns the number of events whose names end with `name`, over all vCPUs, contexts and privileges.
    pub fn count(&self, name: &str) -> u64 {
        let events = self.events.iter();
        events
            .filter(|((_, event), _)| event.ends_with(name))
            .map(|(_, (count, _))| count)
            .sum()
    }

    /// Returns the number of prefetched lines in the caches that no demand access has used.
    pub fn marked(&self) -> u64 {
        let lines = self.caches.iter().flat_map(Cache::contents);
        let entries = lines.flat_map(|(_, entries)| entries);
        entries.filter(|entry| entry.marked).count() as u64
    }

    pub fn reset(&mut self) {
        self.events.clear();
    }

    /// Returns the contents of every cache, in the same form as the model's.
    pub fn contents(&self) -> Vec<CacheContents> {
        let bytes = u64::from(self.config.levels[0].line);
        self.caches
            .iter()
            .map(|cache| CacheContents {
                level: cache.level as u8 + 1,
                kind: cache.kind,
                socket: cache.socket,
                core: cache.core,
                outer: cache.outer,
                sets: cache
                    .contents()
                    .into_iter()
                    .map(|(set, entries)| {
                        let lines = entries
                            .iter()
                            .map(|entry| (entry.line * bytes, entry.state));
                        (set, lines.collect())
                    })
                    .collect(),
            })
            .collect()
    }
}
