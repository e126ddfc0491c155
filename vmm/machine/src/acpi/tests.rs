use super::*;
use crate::topology::{MemoryPerformance, SharedBy};
use std::process::Command;

fn four_sockets() -> (NodeTopology, Vec<NumaRange>, PlatformDescription) {
    let mut topology = NodeTopology::uniform(4, 4, 2, 1 << 30);
    topology.distances[0][3] = 31;
    topology.memory_performance = Some(MemoryPerformance {
        latency_ns: (0..4)
            .map(|i| (0..4).map(|j| if i == j { 80 } else { 130 }).collect())
            .collect(),
        bandwidth_mb_s: vec![vec![100_000; 4]; 4],
    });
    let ram = Ram::new(&topology.socket_memory).unwrap();
    let mut platform = PlatformDescription::default();
    for i in 0..4 {
        platform.virtio.push(VirtioSlot {
            base: 0xd000_0000 + i * 0x1000,
            size: 0x1000,
            gsi: 5 + i as u32,
            trigger: Trigger::Edge,
        });
    }
    (topology, ram.numa().to_vec(), platform)
}

fn built() -> AcpiTables {
    let (t, n, p) = four_sockets();
    build(&t, &n, &p).unwrap()
}

fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |a, b| a.wrapping_add(*b))
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(b[at..at + 4].try_into().unwrap())
}

fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(b[at..at + 8].try_into().unwrap())
}

/// Returns the sub-tables of a table from offset `from` on; each begins with a type and a length of one byte.
fn entries(table: &[u8], from: usize) -> Vec<&[u8]> {
    let mut out = Vec::new();
    let mut at = from;
    while at < table.len() {
        let len = usize::from(table[at + 1]);
        assert!(len >= 2 && at + len <= table.len(), "entry at {at}");
        out.push(&table[at..at + len]);
        at += len;
    }
    out
}

#[test]
fn an_operating_system_finds_every_table_from_the_rsdp() {
    let a = built();
    assert_eq!(&a.bytes[..8], b"RSD PTR ");
    assert_eq!(a.base % 16, 0);
    assert_eq!(sum(&a.bytes[..20]), 0);
    assert_eq!(sum(&a.bytes[..36]), 0);
    let at = |address: u64| (address - a.base) as usize;
    let xsdt = at(u64_at(&a.bytes, 24));
    let length = u32_at(&a.bytes, xsdt + 4) as usize;
    let mut seen = Vec::new();
    for entry in (xsdt + 36..xsdt + length).step_by(8) {
        let table = at(u64_at(&a.bytes, entry));
        let len = u32_at(&a.bytes, table + 4) as usize;
        assert_eq!(sum(&a.bytes[table..table + len]), 0);
        seen.push(String::from_utf8(a.bytes[table..table + 4].to_vec()).unwrap());
    }
    assert_eq!(seen, ["FACP", "APIC", "SRAT", "SLIT", "PPTT", "HMAT"]);
    let fadt = a.table(b"FACP").unwrap();
    let dsdt = at(u64_at(fadt, 140));
    assert_eq!(&a.bytes[dsdt..dsdt + 4], b"DSDT");
    for t in &a.tables {
        let table = a.table(&t.signature).unwrap();
        assert_eq!(sum(table), 0, "{:?}", t.signature);
        assert_eq!(u32_at(table, 4) as usize, t.length);
    }
}

#[test]
fn the_fadt_is_hardware_reduced_and_says_what_is_missing() {
    let a = built();
    let fadt = a.table(b"FACP").unwrap();
    assert_eq!(fadt.len(), 276);
    let flags = u32_at(fadt, 112);
    assert_ne!(flags & 1 << 20, 0, "HW_REDUCED_ACPI");
    assert_ne!(flags & 1 << 10, 0, "RESET_REG_SUP");
    let boot = u16::from_le_bytes([fadt[109], fadt[110]]);
    assert_eq!(boot, 1 << 2 | 1 << 5);
    assert_eq!(fadt[116..120], [1, 8, 0, 1]);
    assert_eq!(u64_at(fadt, 120), 0x602);
    assert_eq!(fadt[128], 1);
    assert_eq!(u64_at(fadt, 244 + 4), 0x600);
    assert_eq!(u64_at(fadt, 256 + 4), 0x601);
}

#[test]
fn madt_and_srat_agree_on_processors() {
    let (topology, numa, platform) = four_sockets();
    let a = build(&topology, &numa, &platform).unwrap();
    let madt = a.table(b"APIC").unwrap();
    assert_eq!(u32_at(madt, 36), 0xfee0_0000);
    assert_eq!(u32_at(madt, 40), 0, "no 8259");
    let listed = entries(madt, 44);
    let lapics: Vec<_> = listed.iter().filter(|e| e[0] == 0).collect();
    assert_eq!(lapics.len(), 32);
    assert_eq!(listed.last().unwrap()[0], 1, "IOAPIC");
    let srat = a.table(b"SRAT").unwrap();
    let affinity = entries(srat, 48);
    for (v, place) in topology.places().enumerate() {
        assert_eq!(lapics[v][2..4], [v as u8, place.apic_id as u8]);
        assert_eq!(u32_at(lapics[v], 4), 1);
        assert_eq!(affinity[v][0], 0);
        assert_eq!(affinity[v][2..4], [place.socket as u8, place.apic_id as u8]);
    }
    let memory: Vec<_> = affinity
        .iter()
        .filter(|e| e[0] == 1)
        .map(|e| (u32_at(e, 2), u64_at(e, 8), u64_at(e, 16)))
        .collect();
    let expected: Vec<_> = numa.iter().map(|r| (r.node, r.start, r.len)).collect();
    assert_eq!(memory, expected);
}

#[test]
fn the_slit_keeps_an_asymmetric_distance() {
    let a = built();
    let slit = a.table(b"SLIT").unwrap();
    assert_eq!(u64_at(slit, 36), 4);
    assert_eq!(slit[44..48], [10, 21, 21, 31]);
    assert_eq!(slit[56..60], [21, 21, 21, 10]);
}

#[test]
fn the_pptt_is_a_tree_whose_caches_match_the_topology() {
    let (topology, numa, platform) = four_sockets();
    let a = build(&topology, &numa, &platform).unwrap();
    let pptt = a.table(b"PPTT").unwrap();
    let mut at = 36;
    let (mut leaves, mut caches) = (Vec::new(), 0);
    while at < pptt.len() {
        let e = &pptt[at..at + usize::from(pptt[at + 1])];
        if e[0] == 0 {
            let parent = u32_at(e, 8) as usize;
            assert!(parent < at, "a parent comes first");
            for i in 0..u32_at(e, 16) as usize {
                let cache = u32_at(e, 20 + 4 * i) as usize;
                assert_eq!(pptt[cache], 1, "a resource is a cache");
            }
            if u32_at(e, 4) & 8 != 0 {
                leaves.push(u32_at(e, 12));
                assert_ne!(u32_at(e, 4) & 2, 0, "its processor id is valid");
            }
        } else {
            caches += 1;
            let next = u32_at(e, 8) as usize;
            assert!(next < at && (next == 0 || pptt[next] == 1));
        }
        at += e.len();
    }
    assert_eq!(leaves, (0..32).collect::<Vec<_>>());
    // Each core has L1d, L1i and L2, each socket an L3.
    assert_eq!(caches, 16 * 3 + 4);
}

/// Returns the caches around each leaf of a PPTT as their offsets, from the leaf outwards, in the order of the leaves' processor ids.
fn caches_of_leaves(pptt: &[u8]) -> Vec<Vec<usize>> {
    let mut leaves = Vec::new();
    let mut at = 36;
    while at < pptt.len() {
        if pptt[at] == 0 && u32_at(pptt, at + 4) & 8 != 0 {
            let (mut node, mut caches) = (at, Vec::new());
            while node != 0 {
                let count = u32_at(pptt, node + 16) as usize;
                caches.extend((0..count).map(|i| u32_at(pptt, node + 20 + 4 * i) as usize));
                node = u32_at(pptt, node + 8) as usize;
            }
            leaves.push((u32_at(pptt, at + 12), caches));
        }
        at += usize::from(pptt[at + 1]);
    }
    leaves.sort();
    leaves.into_iter().map(|(_, caches)| caches).collect()
}

/// Returns the tables of a socket of seven cores, whose level 2 is of three cores each and whose level 3 is of six.
fn grouped() -> AcpiTables {
    let mut topology = NodeTopology::uniform(1, 7, 1, 256 << 20);
    topology.caches[2].shared_by = SharedBy::Cores(3);
    topology.caches[3].shared_by = SharedBy::Cores(6);
    topology.caches[3].write_allocate = false;
    let ram = Ram::new(&topology.socket_memory).unwrap();
    let (_, _, platform) = four_sockets();
    build(&topology, ram.numa(), &platform).unwrap()
}

#[test]
fn a_group_of_cores_has_a_node_with_its_cache() {
    let a = grouped();
    let pptt = a.table(b"PPTT").unwrap();
    let leaves = caches_of_leaves(pptt);
    // Each core has its two first-level caches, and those of its groups.
    let around: Vec<_> = leaves.iter().map(|caches| [caches[2], caches[3]]).collect();
    let [first, second, last] = [around[0], around[3], around[6]];
    assert_eq!(around, [first, first, first, second, second, second, last]);
    assert_eq!(first[1], second[1]);
    assert_ne!(first[0], second[0]);
    assert_ne!(first[1], last[1]);
    for caches in &leaves {
        assert_eq!(caches.len(), 4);
        let next = |cache: usize| u32_at(pptt, cache + 8) as usize;
        assert_eq!([next(caches[0]), next(caches[1])], [caches[2]; 2]);
        assert_eq!([next(caches[2]), next(caches[3])], [caches[3], 0]);
        // Attributes: allocation and contents of the cache.
        assert_eq!(pptt[caches[2] + 21], 0b1010);
        assert_eq!(pptt[caches[3] + 21], 0b1000);
    }
}

#[test]
fn the_hmat_scales_bandwidth_into_sixteen_bits() {
    let a = built();
    let hmat = a.table(b"HMAT").unwrap();
    let mut at = 40;
    let mut matrices = Vec::new();
    while at < hmat.len() {
        let len = u32_at(hmat, at + 4) as usize;
        if hmat[at] == 1 {
            let unit = u64_at(hmat, at + 24);
            let first = at + 32 + 8 * 4;
            let value = |i: usize| {
                u64::from(u16::from_le_bytes([
                    hmat[first + 2 * i],
                    hmat[first + 2 * i + 1],
                ])) * unit
            };
            matrices.push((hmat[at + 9], value(0), value(1)));
        }
        at += len;
    }
    assert_eq!(matrices, [(0, 80_000, 130_000), (3, 100_000, 100_000)]);
}

#[test]
fn impossible_input_is_refused() {
    let (topology, numa, mut platform) = four_sockets();
    let stray = [NumaRange {
        start: 0,
        len: 4096,
        node: 9,
    }];
    let e = build(&topology, &stray, &platform).unwrap_err().to_string();
    assert!(e.contains("NUMA node 9"), "{e}");
    platform.virtio[1].base = u64::MAX;
    let e = build(&topology, &numa, &platform).unwrap_err().to_string();
    assert!(e.contains("virtio device 1"), "{e}");
    platform.virtio = vec![platform.virtio[0]; 257];
    assert!(matches!(
        build(&topology, &numa, &platform),
        Err(AcpiError::Devices(257))
    ));
}

#[test]
fn the_largest_node_fits_below_one_mebibyte() {
    let mut topology = NodeTopology::uniform(4, 8, 2, 256 << 20);
    topology.memory_performance = Some(MemoryPerformance {
        latency_ns: vec![vec![u32::MAX; 4]; 4],
        bandwidth_mb_s: vec![vec![u32::MAX; 4]; 4],
    });
    let ram = Ram::new(&topology.socket_memory).unwrap();
    let (_, _, mut platform) = four_sockets();
    platform.virtio = vec![platform.virtio[0]; 256];
    let a = build(&topology, ram.numa(), &platform).unwrap();
    assert!(a.bytes.len() < 0x2_0000, "{}", a.bytes.len());
    a.write(&ram).unwrap();
    let mut back = [0; 8];
    assert!(ram.read(a.rsdp(), &mut back));
    assert_eq!(&back, b"RSD PTR ");
}

/// Every table must be valid for ACPICA's disassembler, a reference parser that shares code with Linux.
#[test]
fn iasl_accepts_every_table() {
    if !nodescope_test_needs::have(nodescope_test_needs::Need::Acpi, &["iasl"]) {
        return;
    }
    accepted(&built(), "C01F");
    accepted(&grouped(), "C006");
}

/// Checks that the disassembler accepts all tables, and that the DSDT has its devices, among them the last processor.
fn accepted(a: &AcpiTables, processor: &str) {
    let dir = tempfile::tempdir().unwrap();
    for t in &a.tables {
        let name = String::from_utf8(t.signature.to_vec()).unwrap();
        let file = dir.path().join(format!("{name}.dat"));
        std::fs::write(&file, a.table(&t.signature).unwrap()).unwrap();
        let out = Command::new("iasl").arg("-d").arg(&file).output().unwrap();
        let output = format!(
            "{}{}",
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        );
        assert!(out.status.success(), "{name}: {output}");
        let dsl = std::fs::read_to_string(dir.path().join(format!("{name}.dsl"))).unwrap();
        for bad in ["Warning", "Error", "Invalid", "Unknown", "beyond"] {
            assert!(!output.contains(bad), "{name}: {output}");
            // The disassembler reports a bad checksum or an unknown sub-table inside the listing.
            let in_listing = dsl
                .lines()
                .filter(|l| l.contains(bad) && !l.contains(" Flags") && !l.contains("Valid"))
                .count();
            assert_eq!(in_listing, 0, "{name}:\n{dsl}");
        }
        if name == "DSDT" {
            for device in [processor, "COM1", "V003", "LNRO0005", "_S5"] {
                assert!(dsl.contains(device), "{device} not in\n{dsl}");
            }
            let compiled = Command::new("iasl")
                .arg(dir.path().join("DSDT.dsl"))
                .output()
                .unwrap();
            let output = String::from_utf8_lossy(&compiled.stdout);
            assert!(output.contains("0 Errors"), "{output}");
        }
    }
}
