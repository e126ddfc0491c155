//! MADT and PPTT: processors, interrupt controllers, caches.

use std::ops::Range;

use acpi_tables::madt::{
    EnabledStatus, IoApic, LocalInterruptController, MADT, ProcessorLocalApic,
};
use acpi_tables::pptt::{
    AllocationType, CacheHandle, CacheNodeBuilder, CacheType, PPTT, ProcessorHandle, ProcessorNode,
    WritePolicy,
};

use super::{OEM_ID, OEM_REVISION, OEM_TABLE, PlatformDescription, bytes};
use crate::topology::{CacheDescription, CacheKind, NodeTopology, SharedBy};

/// Returns the multiple APIC description table (ACPI 6.5 §5.2.12). The flag PCAT_COMPAT is not set, because there is no 8259. Entries are
/// of the xAPIC kind, which the specification asks for below APIC id 255; a valid topology has no greater ids.
pub(super) fn madt(topology: &NodeTopology, platform: &PlatformDescription) -> Vec<u8> {
    let mut table = MADT::new(
        OEM_ID,
        OEM_TABLE,
        OEM_REVISION,
        LocalInterruptController::Address(platform.local_apic),
    );
    for (uid, place) in topology.places().enumerate() {
        table.add_structure(ProcessorLocalApic::new(
            uid as u8,
            place.apic_id as u8,
            EnabledStatus::Enabled,
        ));
    }
    table.add_structure(IoApic::new(platform.ioapic_id, platform.ioapic, 0));
    bytes(&table)
}

/// Returns the processor properties topology table (ACPI 6.5 §5.2.30). Each socket is a tree: the socket, groups of cores that share a
/// cache, cores, and threads. Each cache is a private resource of the node of the vCPUs that share it, as in CPUID leaf 4.
pub(super) fn pptt(topology: &NodeTopology) -> Vec<u8> {
    let mut tree = Tree {
        table: PPTT::new(OEM_ID, OEM_TABLE, OEM_REVISION),
        topology,
        groups: topology.groups(),
        caches: 0,
    };
    let cores = topology.cores_per_socket;
    for socket in 0..topology.sockets {
        tree.add(
            SharedBy::Socket,
            socket * cores..(socket + 1) * cores,
            None,
            &[],
        );
    }
    bytes(&tree.table)
}

/// The table in the making.
struct Tree<'a> {
    table: PPTT,
    topology: &'a NodeTopology,
    /// Sizes of the groups of cores that have nodes of their own, ascending.
    groups: Vec<u32>,
    /// Number of caches so far.
    caches: u32,
}

impl Tree<'_> {
    /// Adds the node of `shared_by` for cores of the node, with its caches and the nodes inside. `behind` has the caches outside.
    fn add(
        &mut self,
        shared_by: SharedBy,
        cores: Range<u32>,
        parent: Option<&ProcessorHandle>,
        behind: &[Placed],
    ) {
        let threads = self.topology.threads_per_core;
        let mut placed = self.caches(shared_by, behind);
        let alone = shared_by == SharedBy::Core && threads == 1;
        let first = cores.start * threads;
        let mut node = ProcessorNode::new(parent, if alone { first } else { 0 });
        node = match shared_by {
            SharedBy::Socket => node.physical().identical(),
            SharedBy::Cores(_) => node.identical(),
            SharedBy::Core if alone => node.valid().leaf(),
            SharedBy::Core => node,
        };
        for c in first_level(&placed) {
            node = node.add_cache(&c);
        }
        let node = self.table.add_processor(node);
        if shared_by == SharedBy::Core {
            for thread in (0..threads).filter(|_| !alone) {
                self.table.add_processor(
                    ProcessorNode::new(Some(&node), first + thread)
                        .valid()
                        .thread()
                        .leaf(),
                );
            }
            return;
        }
        placed.extend_from_slice(behind);
        let smaller = |&&group: &&u32| SharedBy::Cores(group) < shared_by;
        let (inner, size) = match self.groups.iter().rfind(smaller) {
            Some(&group) => (SharedBy::Cores(group), group),
            None => (SharedBy::Core, 1),
        };
        for start in cores.clone().step_by(size as usize) {
            let end = cores.end.min(start + size);
            self.add(inner, start..end, Some(&node), &placed);
        }
    }

    /// Adds one instance of each cache that is shared by `shared_by`, outermost level first, and links each to its next level. `behind` has
    /// the outer caches that are in the table already.
    fn caches(&mut self, shared_by: SharedBy, behind: &[Placed]) -> Vec<Placed> {
        let mut placed: Vec<Placed> = Vec::new();
        for cache in self.topology.sorted_caches().into_iter().rev() {
            if self.topology.canonical(cache.shared_by) != shared_by {
                continue;
            }
            let holds = |p: &&Placed| {
                p.cache.level > cache.level
                    && (p.cache.kind == CacheKind::Unified || p.cache.kind == cache.kind)
            };
            let next = placed
                .iter()
                .chain(behind)
                .filter(holds)
                .min_by_key(|p| p.cache.level);
            self.caches += 1;
            let mut node = CacheNodeBuilder::default()
                .size(cache.size as u32)
                .sets(cache.sets() as u32)
                .allocation_type(match cache.write_allocate {
                    true => AllocationType::Both,
                    false => AllocationType::Read,
                })
                .cache_type(match cache.kind {
                    CacheKind::Data => CacheType::Data,
                    CacheKind::Instruction => CacheType::Instruction,
                    CacheKind::Unified => CacheType::Unified,
                })
                .write_policy(WritePolicy::Writeback)
                .line_size(cache.line as u16)
                .id(self.caches);
            // The field for associativity has eight bits; for a cache with more ways the field is left out.
            if let Ok(ways) = u8::try_from(cache.ways) {
                node = node.associativity(ways);
            }
            if let Some(next) = next {
                node = node.next_level(&next.handle);
            }
            placed.push(Placed {
                cache,
                handle: self.table.add_cache(node.to_node()),
            });
        }
        placed
    }
}

/// A cache with its handle in the table.
#[derive(Clone, Copy)]
struct Placed {
    cache: CacheDescription,
    handle: CacheHandle,
}

/// Returns the caches of the lowest level in the list, which are the private resources of a processor node; other caches follow as their
/// next levels.
fn first_level(placed: &[Placed]) -> Vec<CacheHandle> {
    let least = placed.iter().map(|p| p.cache.level).min();
    placed
        .iter()
        .filter(|p| Some(p.cache.level) == least)
        .map(|p| p.handle)
        .collect()
}
