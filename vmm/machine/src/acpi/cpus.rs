//! MADT and PPTT: processors, interrupt controllers, caches.

use acpi_tables::madt::{
    EnabledStatus, IoApic, LocalInterruptController, MADT, ProcessorLocalApic,
};
use acpi_tables::pptt::{
    AllocationType, CacheHandle, CacheNodeBuilder, CacheType, PPTT, ProcessorNode, WritePolicy,
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

/// Returns the processor properties topology table (ACPI 6.5 §5.2.30). Each socket is a tree, with private caches at its cores and shared
/// caches at the socket, as in CPUID leaf 4.
pub(super) fn pptt(topology: &NodeTopology) -> Vec<u8> {
    let mut table = PPTT::new(OEM_ID, OEM_TABLE, OEM_REVISION);
    let mut ids = 0;
    for socket in 0..topology.sockets {
        let shared = caches(&mut table, topology, SharedBy::Socket, &[], &mut ids);
        let mut package = ProcessorNode::new(None, 0).physical().identical();
        for c in first_level(&shared) {
            package = package.add_cache(&c);
        }
        let package = table.add_processor(package);
        for core in 0..topology.cores_per_socket {
            let private = caches(&mut table, topology, SharedBy::Core, &shared, &mut ids);
            let first = (socket * topology.cores_per_socket + core) * topology.threads_per_core;
            let alone = topology.threads_per_core == 1;
            let mut node = ProcessorNode::new(Some(&package), if alone { first } else { 0 });
            if alone {
                node = node.valid().leaf();
            }
            for c in first_level(&private) {
                node = node.add_cache(&c);
            }
            let node = table.add_processor(node);
            for thread in 0..topology.threads_per_core {
                if !alone {
                    table.add_processor(
                        ProcessorNode::new(Some(&node), first + thread)
                            .valid()
                            .thread()
                            .leaf(),
                    );
                }
            }
        }
    }
    bytes(&table)
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

/// Adds one instance of each cache that is shared by `shared_by`, outermost level first, and links each to its next level. `behind` has the
/// outer caches that are in the table already.
fn caches(
    table: &mut PPTT,
    topology: &NodeTopology,
    shared_by: SharedBy,
    behind: &[Placed],
    ids: &mut u32,
) -> Vec<Placed> {
    let mut placed: Vec<Placed> = Vec::new();
    for cache in topology.sorted_caches().into_iter().rev() {
        if cache.shared_by != shared_by {
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
        *ids += 1;
        let mut node = CacheNodeBuilder::default()
            .size(cache.size as u32)
            .sets(cache.sets() as u32)
            .allocation_type(AllocationType::Both)
            .cache_type(match cache.kind {
                CacheKind::Data => CacheType::Data,
                CacheKind::Instruction => CacheType::Instruction,
                CacheKind::Unified => CacheType::Unified,
            })
            .write_policy(WritePolicy::Writeback)
            .line_size(cache.line as u16)
            .id(*ids);
        // The field for associativity has eight bits; for a cache with more ways the field is left out.
        if let Ok(ways) = u8::try_from(cache.ways) {
            node = node.associativity(ways);
        }
        if let Some(next) = next {
            node = node.next_level(&next.handle);
        }
        placed.push(Placed {
            cache,
            handle: table.add_cache(node.to_node()),
        });
    }
    placed
}
