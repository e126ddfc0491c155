//! A simple implementation of the semantics in `plugins/timing/README.md`. Sets are lists, caches are searched, and every event is looked
//! up by its name. There are no holder bits, no early exits and no L0 filter cache.

use std::collections::BTreeMap;

use nodescope_plugin_api::{
    Access, Context, Key, MemoryTimingModel, MissRef, Privilege, Statistic, VcpuPlace,
};
use nodescope_plugin_cache::{
    ByDistance, CacheConfig, CacheContents, CacheKind, LevelConfig, LevelLatency, Sharing, State,
};

use super::Step;

struct Cache {
    level: usize,
    kind: CacheKind,
    socket: u16,
    core: Option<u16>,
    outer: Option<usize>,
    ways: usize,
    /// Lines and states of each set, most recently used first.
    sets: Vec<Vec<(u64, State)>>,
}

impl Cache {
    fn set(&mut self, line: u64) -> &mut Vec<(u64, State)> {
        let index = line % self.sets.len() as u64;
        &mut self.sets[index as usize]
    }

    fn state(&mut self, line: u64) -> Option<&mut State> {
        self.set(line)
            .iter_mut()
            .find(|(held, _)| *held == line)
            .map(|(_, state)| state)
    }

    fn take(&mut self, line: u64) -> Option<State> {
        let set = self.set(line);
        let at = set.iter().position(|&(held, _)| held == line)?;
        Some(set.remove(at).1)
    }

    /// Returns the state of a line and makes the line the most recently used; None if the line is absent.
    fn touch(&mut self, line: u64) -> Option<State> {
        let state = self.take(line)?;
        self.set(line).insert(0, (line, state));
        Some(state)
    }
}

pub struct Plain {
    config: CacheConfig,
    places: Vec<VcpuPlace>,
    memory: Box<dyn MemoryTimingModel>,
    caches: Vec<Cache>,
    /// Indices of the first-level data cache and instruction cache of each vCPU. None: fetches are not cached.
    first: Vec<(usize, Option<usize>)>,
    /// Count and cycles of each event.
    events: BTreeMap<(Key, String), (u64, u64)>,
    requester: Step,
    stall: u64,
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
                let core = (shape.shared_by == Sharing::Core).then_some(place.core);
                let known = caches.iter().position(|cache| {
                    (cache.level, cache.kind, cache.socket, cache.core)
                        == (level, kind, place.socket, core)
                });
                known.unwrap_or_else(|| {
                    caches.push(Cache {
                        level,
                        kind,
                        socket: place.socket,
                        core,
                        outer: None,
                        ways: shape.ways as usize,
                        sets: vec![Vec::new(); shape.sets() as usize],
                    });
                    caches.len() - 1
                })
            };
            let data = cache(0, CacheKind::Data, &config.levels[0]);
            let instruction = config
                .instruction
                .map(|shape| cache(0, CacheKind::Instruction, &shape));
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
            caches,
            first,
            events: BTreeMap::new(),
            requester: Step {
                vcpu: 0,
                access: Access::Read,
                address: 0,
                context: 0,
                kernel: false,
            },
            stall: 0,
        }
    }

    /// Performs one reference and returns its stall in cycles.
    pub fn step(&mut self, step: Step) -> u64 {
        self.requester = step;
        self.stall = 0;
        let line = (step.address & ((1 << 52) - 1)) / u64::from(self.config.levels[0].line);
        let (data, instruction) = self.first[usize::from(step.vcpu)];
        let first = match (step.access, instruction) {
            (Access::Fetch, None) => return 0,
            (Access::Fetch, Some(instruction)) => instruction,
            _ => data,
        };
        if let Some(state) = self.caches[first].touch(line) {
            self.hit_or_miss(0, "hit");
            match (step.access, state) {
                (Access::Write, State::Exclusive) => self.mark_modified(first, line),
                (Access::Write, State::Shared | State::Forward) => self.own(first, line),
                _ => {}
            }
        } else {
            self.hit_or_miss(0, "miss");
            let state = match self.caches[first].outer {
                Some(outer) => self.ask(outer, first, line),
                None => self.interconnect(first, line),
            };
            self.place(first, line, state);
        }
        self.stall
    }

    /// Returns the state in which the inner cache `inner` may take a line that it requests from the cache `cache`, and charges the events.
    fn ask(&mut self, cache: usize, inner: usize, line: u64) -> State {
        let write = self.requester.access == Access::Write;
        let level = self.caches[cache].level;
        let fetches = self.caches[inner].kind == CacheKind::Instruction;
        let Some(state) = self.caches[cache].touch(line) else {
            self.hit_or_miss(level, "miss");
            let state = match self.caches[cache].outer {
                Some(outer) => self.ask(outer, cache, line),
                None => self.interconnect(cache, line),
            };
            self.place(cache, line, state);
            return match state {
                State::Modified => State::Modified,
                State::Exclusive if !fetches => State::Exclusive,
                _ => State::Shared,
            };
        };
        self.hit_or_miss(level, "hit");
        if write {
            match state {
                State::Modified => {}
                State::Exclusive => self.mark_modified(cache, line),
                State::Shared | State::Forward => self.own(cache, line),
            }
            self.clear_siblings(cache, inner, line);
            return State::Modified;
        }
        let mut shared = state < State::Exclusive || fetches;
        for sibling in self.inside(cache) {
            if sibling == inner {
                continue;
            }
            match self.downgrade(sibling, line) {
                Some(State::Modified) => self.between("from", sibling, "_modified"),
                Some(State::Exclusive) => self.between("snoop", sibling, ""),
                Some(_) => {}
                None => continue,
            }
            shared = true;
        }
        if shared {
            State::Shared
        } else {
            State::Exclusive
        }
    }

    fn interconnect(&mut self, root: usize, line: u64) -> State {
        let write = self.requester.access == Access::Write;
        let (mut held, mut supplied) = (false, false);
        for peer in self.peers(root) {
            let before = if write {
                self.remove(peer, line, false)
            } else {
                self.downgrade(peer, line)
            };
            let Some(before) = before else { continue };
            held = true;
            supplied |= before != State::Shared;
            match before {
                State::Shared => {}
                State::Forward | State::Exclusive => self.between("from", peer, ""),
                State::Modified => {
                    self.between("from", peer, "_modified");
                    if !write {
                        self.write_back(peer, line);
                    }
                }
            }
            if write {
                self.between("invalidate", peer, "");
            }
        }
        if !supplied {
            self.memory(self.place_of_requester().socket, line, false);
        }
        match (write, held) {
            (true, _) => State::Modified,
            (false, true) => State::Forward,
            (false, false) => State::Exclusive,
        }
    }

    fn mark_modified(&mut self, cache: usize, line: u64) {
        let mut next = Some(cache);
        while let Some(cache) = next {
            *self.caches[cache].state(line).expect("inclusion") = State::Modified;
            next = self.caches[cache].outer;
        }
    }

    /// Obtains permission to write a line that `cache` has in state S or F.
    fn own(&mut self, cache: usize, line: u64) {
        if let Some(outer) = self.caches[cache].outer {
            let state = *self.caches[outer].state(line).expect("inclusion");
            if state >= State::Exclusive {
                let level = self.caches[outer].level;
                self.event(
                    format!("L{}.upgrade", level + 1),
                    self.latency(level).upgrade,
                );
                self.mark_modified(outer, line);
            } else {
                self.own(outer, line);
            }
            self.clear_siblings(outer, cache, line);
        } else {
            self.event(
                "interconnect.upgrade".to_owned(),
                self.config.coherence.upgrade,
            );
            for peer in self.peers(cache) {
                if self.remove(peer, line, false).is_some() {
                    self.between("invalidate", peer, "");
                }
            }
        }
        *self.caches[cache].state(line).expect("just held") = State::Modified;
    }

    fn clear_siblings(&mut self, cache: usize, inner: usize, line: u64) {
        for sibling in self.inside(cache) {
            if sibling == inner {
                continue;
            }
            if let Some(state) = self.remove(sibling, line, false) {
                if state == State::Modified {
                    self.between("from", sibling, "_modified");
                }
                self.between("invalidate", sibling, "");
            }
        }
    }

    fn remove(&mut self, cache: usize, line: u64, inclusion: bool) -> Option<State> {
        let state = self.caches[cache].take(line)?;
        for inner in self.inside(cache) {
            self.remove(inner, line, inclusion);
        }
        let level = self.caches[cache].level;
        if inclusion {
            self.event(format!("L{}.inclusion_victim", level + 1), 0);
        }
        if state == State::Modified && self.caches[cache].outer.is_some() {
            self.write_back(cache, line);
        }
        Some(state)
    }

    fn downgrade(&mut self, cache: usize, line: u64) -> Option<State> {
        let state = self.caches[cache].state(line)?;
        let before = std::mem::replace(state, State::Shared);
        for inner in self.inside(cache) {
            self.downgrade(inner, line);
        }
        if before == State::Modified && self.caches[cache].outer.is_some() {
            self.write_back(cache, line);
        }
        Some(before)
    }

    fn place(&mut self, cache: usize, line: u64, state: State) {
        let ways = self.caches[cache].ways;
        if self.caches[cache].set(line).len() == ways {
            let (victim, state) = self.caches[cache].set(line).pop().expect("a full set");
            for inner in self.inside(cache) {
                self.remove(inner, victim, true);
            }
            if state == State::Modified {
                self.write_back(cache, victim);
            }
        }
        self.caches[cache].set(line).insert(0, (line, state));
    }

    /// Counts the write-back of a modified line to the next outer level, or from the outermost level to memory.
    fn write_back(&mut self, cache: usize, line: u64) {
        let level = self.caches[cache].level;
        let name = if level == 0 {
            "L1D".to_owned()
        } else {
            format!("L{}", level + 1)
        };
        self.event(format!("{name}.writeback"), self.latency(level).writeback);
        if self.caches[cache].outer.is_none() {
            self.memory(self.caches[cache].socket, line, true);
        }
    }

    fn memory(&mut self, socket: u16, line: u64, write_back: bool) {
        let timing = self.memory.request(&MissRef {
            socket,
            line: line * u64::from(self.config.levels[0].line),
            write_back,
            now: 0,
        });
        let place = if timing.local { "local" } else { "remote" };
        let suffix = if write_back { "_writeback" } else { "" };
        self.event(format!("memory.{place}{suffix}"), timing.latency);
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

    fn place_of_requester(&self) -> VcpuPlace {
        self.places[usize::from(self.requester.vcpu)]
    }

    fn latency(&self, level: usize) -> LevelLatency {
        self.config.levels[level].latency
    }

    fn hit_or_miss(&mut self, level: usize, what: &str) {
        let access = self.requester.access;
        let (name, latency) = match (level, access, self.config.instruction) {
            (0, Access::Fetch, Some(instruction)) => ("L1I.".to_owned(), instruction.latency),
            (0, Access::Read, _) => ("L1D.read_".to_owned(), self.latency(0)),
            (0, Access::Write, _) => ("L1D.write_".to_owned(), self.latency(0)),
            (_, Access::Read, _) => (format!("L{}.read_", level + 1), self.latency(level)),
            (_, Access::Write, _) => (format!("L{}.write_", level + 1), self.latency(level)),
            (_, Access::Fetch, _) => (format!("L{}.fetch_", level + 1), self.latency(level)),
        };
        let cycles = match (access, what) {
            (Access::Read, "hit") => latency.read_hit,
            (Access::Write, "hit") => latency.write_hit,
            (Access::Fetch, "hit") => latency.fetch_hit,
            (Access::Read, _) => latency.read_miss,
            (Access::Write, _) => latency.write_miss,
            (Access::Fetch, _) => latency.fetch_miss,
        };
        self.event(format!("{name}{what}"), cycles);
    }

    fn between(&mut self, what: &str, other: usize, suffix: &str) {
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
        } else if other.core.is_none_or(|core| core == here.core) {
            ("same_core", latency.same_core)
        } else {
            ("other_core", latency.other_core)
        };
        self.event(format!("{what}_{distance}{suffix}"), cycles);
    }

    fn event(&mut self, name: String, cycles: u32) {
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
                    .sets
                    .iter()
                    .enumerate()
                    .filter(|(_, lines)| !lines.is_empty())
                    .map(|(set, lines)| {
                        let lines = lines.iter().map(|&(line, state)| (line * bytes, state));
                        (set as u64, lines.collect())
                    })
                    .collect(),
            })
            .collect()
    }
}
