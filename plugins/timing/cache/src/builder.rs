//! Construction of the caches of a description.

use std::collections::{BTreeMap, BTreeSet};

use nodescope_plugin_api::{CacheShape, Prefetcher, VcpuPlace};

use crate::config::{CacheConfig, CacheKind, Inclusion, LevelConfig, Sharing};
use crate::events::Distance;
use crate::geometry::Geometry;
use crate::node::{Children, NONE, Node, PolicyState, Traits, VcpuCaches};
use crate::policy::Policy;
use crate::registered::RegisteredModels;
use crate::tags::HOLDERS;

/// The caches of a valid description.
pub(crate) struct Builder<'a> {
    pub(crate) nodes: Vec<Node>,
    pub(crate) children: Vec<Children>,
    /// Cores that use each cache.
    cores: Vec<Vec<u16>>,
    /// Group of the cores that use each cache; for caches of several groups, that of the first core.
    groups: Vec<u16>,
    /// Number of cores of a group.
    of_group: Option<u16>,
    /// Description of each cache.
    levels: Vec<&'a LevelConfig>,
    /// First-level caches of each vCPU: for data and for instructions.
    first: Vec<[u32; 2]>,
}

/// Policies and prefetchers of all caches.
#[derive(Default)]
pub(crate) struct Parts {
    /// Policies by the cache's number; `None` for LRU.
    pub(crate) policies: Vec<Option<PolicyState>>,
    /// Prefetchers by the cache's number.
    pub(crate) prefetchers: Vec<Vec<Box<dyn Prefetcher>>>,
    /// Whether a prefetcher of the first level must see every hit, of data and of instructions.
    pub(crate) sees_hits: [bool; 2],
}

impl<'a> Builder<'a> {
    pub(crate) fn new(config: &'a CacheConfig, places: &[VcpuPlace]) -> Builder<'a> {
        let mut builder = Builder {
            nodes: Vec::new(),
            children: Vec::new(),
            cores: Vec::new(),
            groups: Vec::new(),
            of_group: config.group(),
            levels: Vec::new(),
            first: Vec::new(),
        };
        // Caches by level, kind, and number of the core, or of the socket and the group of cores within the socket.
        let mut known = BTreeMap::new();
        for (vcpu, place) in places.iter().enumerate() {
            let mut find = |index: usize, kind: CacheKind, level: &'a LevelConfig| {
                let group = match level.shared_by {
                    Sharing::Core => (0, place.core),
                    Sharing::Cores(cores) => (place.socket, position(places, place) / cores),
                    Sharing::Socket => (place.socket, 0),
                };
                let number = *known.entry((index, kind, group)).or_insert_with(|| {
                    let group = builder.group(places, place);
                    builder.add(config, index, kind, level, place, group)
                });
                builder.cores[number as usize].push(place.core);
                number
            };
            let data = find(0, CacheKind::Data, &config.levels[0]);
            let instruction = (config.instruction.as_ref())
                .map_or(NONE, |level| find(0, CacheKind::Instruction, level));
            let unified: Vec<u32> = (config.levels.iter().enumerate().skip(1))
                .map(|(index, level)| find(index, CacheKind::Unified, level))
                .collect();
            for first in [data, instruction] {
                let Some(children_of_first) = builder.children.get_mut(first as usize) else {
                    continue;
                };
                children_of_first.vcpus.push(vcpu as u16);
                let mut inner = first;
                for &outer in &unified {
                    if builder.nodes[inner as usize].outermost() {
                        builder.nodes[inner as usize].outer = outer;
                        builder.children[outer as usize].inner.push(inner);
                    }
                    inner = outer;
                }
            }
            builder.first.push([data, instruction]);
        }
        builder.place_in_memory();
        builder
    }

    fn add(
        &mut self,
        config: &CacheConfig,
        index: usize,
        kind: CacheKind,
        level: &'a LevelConfig,
        place: &VcpuPlace,
        group: u16,
    ) -> u32 {
        let mut inside = config.levels[..=index].iter();
        let outer = config.levels.get(index + 1);
        let includes = |level: &LevelConfig| level.inclusion == Inclusion::Inclusive;
        self.nodes.push(Node {
            // The first word and the holder bits are set when all caches exist.
            geometry: Geometry::new(0, level.sets() as u32, level.ways, 0),
            outer: NONE,
            bit: 0,
            socket: place.socket,
            level: index as u8,
            kind,
            inclusion: level.inclusion,
            traits: Traits {
                several_vcpus: false,
                exact: true,
                lru: level.policy == Policy::Lru,
                allocates: level.write_allocate,
                allocates_inside: inside
                    .any(|level| level.write_allocate && level.inclusion != Inclusion::Exclusive),
                prefetches: !level.prefetch.is_empty(),
                victims_matter: !level.prefetch.is_empty()
                    || !config.levels[..=index].iter().all(includes)
                    || !outer.is_none_or(includes),
            },
        });
        self.children.push(Children {
            core: (level.shared_by == Sharing::Core).then_some(place.core),
            ..Children::default()
        });
        self.cores.push(Vec::new());
        self.groups.push(group);
        self.levels.push(level);
        self.nodes.len() as u32 - 1
    }

    /// Returns the number of the group of a vCPU's core within its socket; 0 if there are no groups.
    fn group(&self, places: &[VcpuPlace], place: &VcpuPlace) -> u16 {
        self.of_group
            .map_or(0, |cores| position(places, place) / cores)
    }

    /// Gives each cache its first word, and holder bits.
    fn place_in_memory(&mut self) {
        let mut end = 0;
        for index in 0..self.nodes.len() {
            let Children { inner, vcpus, .. } = &self.children[index];
            let bits = inner.len().min(HOLDERS as usize);
            for (position, &inner) in inner.iter().enumerate() {
                self.nodes[inner as usize].bit = 1 << (position % bits);
            }
            let node = &mut self.nodes[index];
            let Geometry { sets, ways, .. } = node.geometry;
            node.geometry = Geometry::new(end, sets, ways, bits as u32);
            node.traits.several_vcpus = vcpus.len() > 1;
            node.traits.exact = inner.len() == bits;
            end = node.geometry.end();
        }
    }

    /// Makes the policies and prefetchers of all caches.
    pub(crate) fn parts(&self, models: &dyn RegisteredModels) -> Result<Parts, String> {
        let mut parts = Parts::default();
        for (level, node) in self.levels.iter().zip(&self.nodes) {
            let Geometry { sets, ways, .. } = node.geometry;
            let cache = CacheShape {
                level: node.level + 1,
                sets,
                ways,
                line_bytes: level.line,
            };
            let replacement = level.policy.replacement(&cache, models)?;
            parts
                .policies
                .push(replacement.map(|replacement| PolicyState {
                    replacement,
                    sets: vec![0; sets as usize],
                }));
            let prefetchers = level.prefetch.iter();
            let prefetchers = prefetchers
                .map(|prefetch| prefetch.prefetcher(&cache, models))
                .collect::<Result<Vec<_>, String>>()?;
            if node.level == 0 {
                let sees_hits = prefetchers.iter().any(|prefetcher| prefetcher.sees_hits());
                parts.sees_hits[node.side() as usize] |= sees_hits;
            }
            parts.prefetchers.push(prefetchers);
        }
        Ok(parts)
    }

    /// Returns the first-level caches of each vCPU, and the distances of all caches.
    pub(crate) fn vcpu_caches(&self, places: &[VcpuPlace]) -> Vec<VcpuCaches> {
        let distance = |place: &VcpuPlace, node: &Node, cores: &[u16], group: u16| {
            if node.socket != place.socket {
                Distance::OtherSocket
            } else if cores.contains(&place.core) {
                Distance::SameCore
            } else if group != self.group(places, place) {
                Distance::OtherGroup
            } else {
                Distance::OtherCore
            }
        };
        (places.iter().zip(&self.first))
            .map(|(place, &first)| VcpuCaches {
                first,
                socket: place.socket,
                distances: (self.nodes.iter().zip(&self.cores).zip(&self.groups))
                    .map(|((node, cores), group)| distance(place, node, cores, *group))
                    .collect(),
            })
            .collect()
    }
}

/// Returns the position of a vCPU's core among the cores of its socket.
fn position(places: &[VcpuPlace], place: &VcpuPlace) -> u16 {
    let before: BTreeSet<u16> = (places.iter())
        .filter(|other| other.socket == place.socket && other.core < place.core)
        .map(|other| other.core)
        .collect();
    before.len() as u16
}
