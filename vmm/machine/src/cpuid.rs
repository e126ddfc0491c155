//! The CPUID template: the processor that the guest sees in CPUID.
//!
//! The default has the signature of a Haswell server (family 6, model 63) and all features of the level x86-64-v3. It lacks features that
//! no engine models, such as VMX, TSX, MPX, PKU, SGX, AVX-512, LA57, SMAP, PCID, UMIP, performance counters, MWAIT and machine check.
//! The table of features says which ones the template shows ([`nodescope_x86::features`]). A study hides features by name; features that an engine executes on the host's processor
//! are also hidden if the host lacks them.
//!
//! Choices made for a stock Linux kernel (6.1):
//! - Leaf 0x15 gives the crystal's frequency and, by an integer ratio, the TSC's frequency exactly; leaf 0x16 gives the TSC's in MHz. The
//!   kernel then calibrates neither the TSC nor the local APIC timer, and does not refine the frequency later.
//! - The hypervisor bit is set. The kernel then trusts the TSC-deadline timer and speculation control with any microcode revision, and does
//!   not use uncore and C-state drivers.
//! - The signature at 0x40000000 is KVM's, with an empty feature word. Its only effect is that the kernel keeps x2APIC without interrupt
//!   remapping. There is no kvm-clock, no steal time, no asynchronous page faults and no PV EOI.
//! - Speculation control is present together with [`ARCH_CAPABILITIES`](nodescope_x86::cpuid::ARCH_CAPABILITIES). The kernel then uses
//!   enhanced IBRS, one MSR write per CPU, instead of retpolines and buffer clearing.

use nodescope_x86::bits::xcr0;
use nodescope_x86::cpuid::{CpuidEntry, CpuidTable, PHYSICAL_BITS, xsave_size};
pub use nodescope_x86::features::{Feature, shown};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::topology::{CacheDescription, CacheKind, NodeTopology};

/// Value of leaf 1 EAX: family 6, model 63, stepping 2 (Haswell server).
pub const SIGNATURE: u32 = 0x0003_06f2;
/// Width of a linear address in bits.
pub const LINEAR_BITS: u32 = 48;

/// Features without which a 64-bit Linux kernel does not start; a study cannot hide them.
const REQUIRED: &[&str] = &[
    "fpu", "tsc", "msr", "pae", "cx8", "apic", "cmov", "pge", "fxsr", "sse", "sse2", "syscall",
    "nx", "lm",
];

/// Hypervisor signature at leaf 0x40000000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HypervisorLeaf {
    /// KVM's signature without features: Linux keeps x2APIC.
    #[default]
    Kvm,
    /// No signature: Linux falls back to the memory-mapped APIC.
    None,
}

/// A study's options for CPUID.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuidOptions {
    /// Names of features to hide. Features that need a hidden feature are hidden as well.
    pub hidden: Vec<String>,
    /// Signature of the hypervisor's leaf.
    pub hypervisor: HypervisorLeaf,
}

/// Reason why a template cannot be made.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CpuidError {
    /// A study names a feature that the template does not have.
    #[error("unknown CPU feature {name:?}; the template has: {known}")]
    Unknown {
        /// Name that the study gives.
        name: String,
        /// Names of all features, for the message.
        known: String,
    },
    /// A feature that the guest kernel needs cannot be hidden.
    #[error(
        "CPU feature {name:?} cannot be hidden{via}: a 64-bit Linux kernel does not start without it"
    )]
    Required {
        /// Name of the feature.
        name: String,
        /// Note that names the feature whose hiding would hide this one as well; empty if this feature itself was to be hidden.
        via: String,
    },
    /// Features that the study requires are missing; the text lists their names.
    #[error(
        "the study requires CPU features that its engines and this host do not all have: {0}; take them from node.require, or use another host or engine"
    )]
    Missing(String),
    /// A feature that a 64-bit Linux guest needs is missing on the host, or refused by the engine; the text is its name.
    #[error("the host's processor lacks {0:?}, which a 64-bit Linux guest needs; use another host")]
    Host(String),
}

/// Set of features of one node, from which the CPUID table of each vCPU is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    features: Vec<Feature>,
    hypervisor: HypervisorLeaf,
}

impl Template {
    /// Returns the default template without the features that the options hide.
    pub fn new(options: &CpuidOptions) -> Result<Self, CpuidError> {
        let mut template = Self {
            features: shown().copied().collect(),
            hypervisor: options.hypervisor,
        };
        for name in &options.hidden {
            if !shown().any(|f| f.name == name) {
                return Err(CpuidError::Unknown {
                    name: name.clone(),
                    known: shown().map(|f| f.name).collect::<Vec<_>>().join(", "),
                });
            }
            template.hide(name)?;
        }
        Ok(template)
    }

    /// Hides the features that the portable engine executes on the host's processor but the host lacks, and features that need them.
    /// Returns the names of all hidden by this call. Fails if a 64-bit Linux kernel needs one of them.
    pub fn intersect_host(&mut self) -> Result<Vec<&'static str>, CpuidError> {
        self.intersect(|f| !f.native || f.is_on_host())
    }

    /// Hides the features for which `allowed` returns false, and features that need them; used with the features that KVM supports, for
    /// instance. Returns the names of all hidden by this call. Fails if a 64-bit Linux kernel needs one of them.
    pub fn intersect(
        &mut self,
        allowed: impl Fn(&Feature) -> bool,
    ) -> Result<Vec<&'static str>, CpuidError> {
        let before = self.features.clone();
        for feature in &before {
            if !allowed(feature) {
                self.hide(feature.name)
                    .map_err(|_| CpuidError::Host(feature.name.into()))?;
            }
        }
        Ok(before
            .iter()
            .filter(|f| !self.has(f.name))
            .map(|f| f.name)
            .collect())
    }

    /// Returns whether the template shows the feature with this name.
    pub fn has(&self, name: &str) -> bool {
        self.features.iter().any(|f| f.name == name)
    }

    /// Returns the features that the template shows, in the order of the table.
    pub fn features(&self) -> &[Feature] {
        &self.features
    }

    fn hide(&mut self, name: &str) -> Result<(), CpuidError> {
        let mut gone = vec![name.to_owned()];
        let mut at = 0;
        while at < gone.len() {
            let current = gone[at].clone();
            if REQUIRED.contains(&current.as_str()) {
                let via = if current == name {
                    String::new()
                } else {
                    format!(" (it goes with {name:?})")
                };
                return Err(CpuidError::Required { name: current, via });
            }
            gone.extend(
                self.features
                    .iter()
                    .filter(|f| f.needs == Some(&current))
                    .map(|f| f.name.to_owned()),
            );
            at += 1;
        }
        self.features.retain(|f| !gone.iter().any(|g| g == f.name));
        Ok(())
    }

    /// Returns the CPUID table of vCPU `vcpu` of a valid topology.
    pub fn table(&self, topology: &NodeTopology, vcpu: u32) -> CpuidTable {
        let place = topology.place(vcpu);
        let core_shift = topology.thread_bits();
        let socket_shift = core_shift + topology.core_bits();
        let mut table = CpuidTable::new(basic_rows(topology, place.apic_id, socket_shift));
        for row in cache_rows(topology) {
            table.set(row);
        }
        for row in topology_rows(topology, place.apic_id, core_shift, socket_shift) {
            table.set(row);
        }
        if self.has("xsave") {
            for row in xsave_rows(self.has("avx")) {
                table.set(row);
            }
        }
        for row in extended_rows(topology) {
            table.set(row);
        }
        if self.has("hypervisor") && self.hypervisor == HypervisorLeaf::Kvm {
            let text = |at: usize| le32(b"KVMKVMKVM\0\0\0", at);
            table.set(entry(
                0x4000_0000,
                None,
                [0x4000_0001, text(0), text(4), text(8)],
            ));
            table.set(entry(0x4000_0001, None, [0; 4]));
        }
        for feature in &self.features {
            let (leaf, subleaf) = feature.leaf;
            let row = table
                .entries
                .iter_mut()
                .find(|e| e.leaf == leaf && e.subleaf.is_none_or(|s| s == subleaf));
            if let Some(row) = row {
                *row.register_mut(feature.register) |= 1 << feature.bit;
            }
        }
        if topology.cores_per_socket * topology.threads_per_core > 1 {
            const HTT: u32 = 1 << 28;
            if let Some(row) = table.entries.iter_mut().find(|e| e.leaf == 1) {
                row.edx |= HTT;
            }
        }
        table
    }
}

/// Returns the CPUID tables of all vCPUs of a node, without features that the host's processor lacks or `allowed` refuses. Fails if an
/// option is wrong, or if a feature is missing that is `required` or that a 64-bit Linux kernel needs.
pub fn tables(
    topology: &NodeTopology,
    options: &CpuidOptions,
    required: &[String],
    allowed: impl Fn(&Feature) -> bool,
) -> Result<Vec<CpuidTable>, CpuidError> {
    let mut template = Template::new(options)?;
    template.intersect_host()?;
    template.intersect(allowed)?;
    let missing = required.iter().filter(|name| !template.has(name));
    let missing: Vec<&str> = missing.map(String::as_str).collect();
    if !missing.is_empty() {
        return Err(CpuidError::Missing(missing.join(", ")));
    }
    Ok((0..topology.vcpus())
        .map(|vcpu| template.table(topology, vcpu))
        .collect())
}

fn entry(leaf: u32, subleaf: Option<u32>, r: [u32; 4]) -> CpuidEntry {
    CpuidEntry {
        leaf,
        subleaf,
        eax: r[0],
        ebx: r[1],
        ecx: r[2],
        edx: r[3],
    }
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn basic_rows(topology: &NodeTopology, apic_id: u32, socket_shift: u32) -> Vec<CpuidEntry> {
    let crystal = topology.crystal_hz();
    let ratio = (topology.tsc_hz / u64::from(crystal)) as u32;
    let mhz = (topology.tsc_hz / 1_000_000) as u32;
    let vendor = |at| le32(b"GenuineIntel", at);
    vec![
        entry(0, None, [0x16, vendor(0), vendor(8), vendor(4)]),
        // EBX: APIC id, number of APIC ids reserved per package (at most 255), size of a CLFLUSH line in units of 8 bytes.
        entry(
            1,
            None,
            [
                SIGNATURE,
                apic_id << 24 | (1 << socket_shift).min(0xff) << 16 | 8 << 8,
                0,
                0,
            ],
        ),
        // Descriptor 0xff: leaf 4 describes the caches.
        entry(2, None, [0x00ff_0001, 0, 0, 0]),
        entry(6, None, [0; 4]),
        entry(7, Some(0), [0; 4]),
        entry(0x15, None, [1, ratio, crystal, 0]),
        entry(0x16, None, [mhz, mhz, 100, 0]),
    ]
}

/// Returns the subleaves of leaf 4, deterministic cache parameters, one for each cache. EAX tells as a power of two how many APIC ids the
/// vCPUs of a cache have (SDM vol. 2A, CPUID leaf 04H). The ids of a group of cores are laid out to suit (`apic_ids.rs`).
fn cache_rows(topology: &NodeTopology) -> Vec<CpuidEntry> {
    // The field for cores has six bits; groups of cores can make ids sparse enough to need more.
    let cores = ((1_u32 << topology.core_bits()) - 1).min(0x3f);
    let row = |(i, c): (usize, CacheDescription)| {
        let kind = match c.kind {
            CacheKind::Data => 1,
            CacheKind::Instruction => 2,
            CacheKind::Unified => 3,
        };
        const SELF_INITIALISING: u32 = 1 << 8;
        let eax = kind
            | u32::from(c.level) << 5
            | SELF_INITIALISING
            | ((1 << topology.sharing_bits(c.shared_by)) - 1) << 14
            | cores << 26;
        let ebx = (c.line - 1) | (c.ways - 1) << 22;
        let edx = u32::from(c.inclusive) << 1;
        entry(4, Some(i as u32), [eax, ebx, (c.sets() - 1) as u32, edx])
    };
    topology
        .sorted_caches()
        .into_iter()
        .enumerate()
        .map(row)
        .collect()
}

/// Returns the subleaves of leaf 0xB for the levels thread and core.
fn topology_rows(
    topology: &NodeTopology,
    apic_id: u32,
    core_shift: u32,
    socket_shift: u32,
) -> [CpuidEntry; 2] {
    const THREAD_LEVEL: u32 = 1 << 8;
    const CORE_LEVEL: u32 = 2 << 8;
    let threads = topology.threads_per_core;
    [
        entry(0xb, Some(0), [core_shift, threads, THREAD_LEVEL, apic_id]),
        entry(
            0xb,
            Some(1),
            [
                socket_shift,
                threads * topology.cores_per_socket,
                CORE_LEVEL | 1,
                apic_id,
            ],
        ),
    ]
}

/// Returns the subleaves of leaf 0xD: components of the XSAVE area in the standard format.
fn xsave_rows(avx: bool) -> Vec<CpuidEntry> {
    let mask = xcr0::X87 | xcr0::SSE | if avx { xcr0::AVX } else { 0 };
    let size = xsave_size(mask);
    let mut rows = vec![
        entry(0xd, Some(0), [mask as u32, size, size, 0]),
        entry(0xd, Some(1), [0; 4]),
    ];
    if avx {
        // Component 2 is the upper halves of YMM0 to YMM15: 256 bytes at offset 576.
        rows.push(entry(0xd, Some(2), [256, 576, 0, 0]));
    }
    rows
}

fn extended_rows(topology: &NodeTopology) -> Vec<CpuidEntry> {
    let mut brand = [0_u8; 48];
    brand[..topology.brand.len()].copy_from_slice(topology.brand.as_bytes());
    let mut rows = vec![
        entry(0x8000_0000, None, [0x8000_0008, 0, 0, 0]),
        entry(0x8000_0001, None, [0; 4]),
        entry(0x8000_0006, None, [0, 0, level_2(topology), 0]),
        entry(0x8000_0007, None, [0; 4]),
        entry(
            0x8000_0008,
            None,
            [LINEAR_BITS << 8 | PHYSICAL_BITS, 0, 0, 0],
        ),
    ];
    for i in 0..3_usize {
        let word = |j: usize| le32(&brand, i * 16 + j * 4);
        rows.push(entry(
            0x8000_0002 + i as u32,
            None,
            [word(0), word(1), word(2), word(3)],
        ));
    }
    rows
}

/// Returns ECX of leaf 0x80000006: size in KiB, associativity code and line size of the level-2 cache; 0 without such a cache.
fn level_2(topology: &NodeTopology) -> u32 {
    let Some(c) = topology
        .caches
        .iter()
        .find(|c| c.level == 2 && c.kind != CacheKind::Instruction)
    else {
        return 0;
    };
    let ways = match c.ways {
        1 => 1,
        2 => 2,
        3..=4 => 4,
        5..=8 => 6,
        9..=16 => 8,
        17..=32 => 0xa,
        33..=48 => 0xb,
        49..=64 => 0xc,
        65..=96 => 0xd,
        97..=128 => 0xe,
        _ => 0xf,
    };
    let kib = (c.size >> 10).min(0xffff) as u32;
    kib << 16 | ways << 12 | c.line.min(255)
}

#[cfg(test)]
mod tests {
    use nodescope_x86::cpuid::CpuidRegister::{Ebx, Ecx, Edx};

    use super::*;
    use crate::topology::SharedBy;

    fn hiding(names: &[&str]) -> Result<Template, CpuidError> {
        Template::new(&CpuidOptions {
            hidden: names.iter().map(|n| (*n).to_owned()).collect(),
            ..Default::default()
        })
    }

    fn default_table(topology: &NodeTopology, vcpu: u32) -> CpuidTable {
        hiding(&[]).unwrap().table(topology, vcpu)
    }

    #[test]
    fn every_feature_of_the_template_shows_and_nothing_else_does() {
        let t = default_table(&NodeTopology::default(), 0);
        for f in shown() {
            assert!(t.has(f.leaf.0, f.leaf.1, f.register, f.bit), "{}", f.name);
        }
        // The bits are counted too, so that a bit without a feature in the table is found.
        let count = |leaf, register| {
            shown()
                .filter(|f| f.leaf == leaf && f.register == register)
                .count() as u32
        };
        let r = t.get(7, 0);
        assert_eq!(r.ebx.count_ones(), count((7, 0), Ebx));
        assert_eq!(r.ecx, 0);
        assert_eq!(t.get(1, 0).ecx.count_ones(), count((1, 0), Ecx));
        assert_eq!(t.get(1, 0).edx.count_ones(), count((1, 0), Edx), "no HTT");
    }

    #[test]
    fn the_level_x86_64_v3_is_complete() {
        for name in [
            "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave", "cx16",
            "lahf_lm", "popcnt", "sse3", "sse4_1", "sse4_2", "ssse3",
        ] {
            assert!(shown().any(|f| f.name == name), "{name}");
        }
    }

    #[test]
    fn hiding_takes_dependents_along() {
        let t = hiding(&["avx"]).unwrap();
        for gone in ["avx", "avx2", "fma", "f16c"] {
            assert!(!t.has(gone), "{gone}");
        }
        let table = t.table(&NodeTopology::default(), 0);
        assert_eq!(table.xcr0_supported(), 3);
        assert_eq!(table.get(0xd, 0).ecx, 576);
        assert_eq!(table.get(0xd, 2), CpuidEntry::zero(0xd, 2));
        let none = hiding(&["xsave"])
            .unwrap()
            .table(&NodeTopology::default(), 0);
        assert_eq!(none.xcr0_supported(), 0);
    }

    #[test]
    fn wrong_names_are_refused() {
        let e = hiding(&["avx3"]).unwrap_err().to_string();
        assert!(e.contains("avx3") && e.contains("avx2"), "{e}");
        let e = hiding(&["sse2"]).unwrap_err().to_string();
        assert!(e.contains("sse2") && e.contains("cannot be hidden"), "{e}");
    }

    #[test]
    fn a_host_without_avx2_hides_it() {
        let mut t = hiding(&[]).unwrap();
        let gone = t.intersect(|f| f.name != "avx2").unwrap();
        assert_eq!(gone, ["avx2"]);
        assert!(t.has("avx"));
        let e = t.intersect(|f| f.name != "sse2").unwrap_err();
        assert_eq!(e, CpuidError::Host("sse2".into()));
        t.intersect_host().unwrap();
    }

    #[test]
    fn topology_leaves_agree_with_the_apic_ids() {
        let topology = NodeTopology::uniform(2, 6, 2, 256 << 20);
        for vcpu in 0..topology.vcpus() {
            let t = default_table(&topology, vcpu);
            let place = topology.place(vcpu);
            let thread = t.get(0xb, 0);
            let core = t.get(0xb, 1);
            assert_eq!((thread.eax, thread.ebx, thread.ecx), (1, 2, 0x100));
            assert_eq!((core.eax, core.ebx, core.ecx), (4, 12, 0x201));
            assert_eq!(thread.edx >> core.eax, place.socket);
            assert_eq!(thread.edx >> thread.eax & 7, place.core);
            assert_eq!(t.get(0xb, 2).ecx, 2);
            assert_eq!(t.get(1, 0).ebx >> 24, place.apic_id);
            assert_eq!(t.get(1, 0).ebx >> 16 & 0xff, 16);
        }
    }

    #[test]
    fn leaf_4_gives_back_the_caches() {
        let topology = NodeTopology::uniform(2, 6, 2, 256 << 20);
        let t = default_table(&topology, 0);
        for (i, c) in topology.sorted_caches().iter().enumerate() {
            let r = t.get(4, i as u32);
            let (line, parts, ways) = (
                (r.ebx & 0xfff) + 1,
                (r.ebx >> 12 & 0x3ff) + 1,
                (r.ebx >> 22) + 1,
            );
            let size = u64::from(line * parts * ways) * (u64::from(r.ecx) + 1);
            assert_eq!(size, c.size);
            assert_eq!(r.eax >> 5 & 7, u32::from(c.level));
            let sharing = (r.eax >> 14 & 0xfff) + 1;
            assert_eq!(sharing, if c.shared_by == SharedBy::Core { 2 } else { 16 });
            assert_eq!(r.edx, 0, "not told to be inclusive");
        }
        assert_eq!(t.get(4, 4), CpuidEntry::zero(4, 4), "ends with a null row");
    }

    #[test]
    fn leaf_4_tells_groups_of_cores_and_inclusion() {
        let mut topology = NodeTopology::uniform(1, 7, 1, 256 << 20);
        topology.caches[3].shared_by = SharedBy::Cores(3);
        topology.caches[3].inclusive = true;
        for (vcpu, id) in [(0, 0), (2, 2), (3, 4), (5, 6), (6, 8)] {
            let t = default_table(&topology, vcpu);
            assert_eq!(t.get(0xb, 1).edx, id);
            let l2 = t.get(4, 2);
            let l3 = t.get(4, 3);
            assert_eq!((l2.eax >> 14 & 0xfff, l2.edx), (0, 0));
            // The four ids of a group, of which three are in use, differ in two bits.
            assert_eq!((l3.eax >> 14 & 0xfff, l3.edx), (3, 2));
            assert_eq!(l3.eax >> 26, 15);
        }
        assert_eq!(default_table(&topology, 0).get(0xb, 1).eax, 4);
    }

    #[test]
    fn sparse_ids_do_not_overflow_the_counts_of_ids() {
        let mut topology = NodeTopology::uniform(1, 64, 1, 256 << 20);
        topology.caches[2].shared_by = SharedBy::Cores(5);
        topology.caches[3].shared_by = SharedBy::Cores(25);
        assert_eq!(topology.core_bits(), 8);
        let t = default_table(&topology, 63);
        assert_eq!(t.get(1, 0).ebx >> 16, 0x93ff, "the last id, and 255 ids");
        assert_eq!(t.get(4, 3).eax >> 26, 63);
        assert_eq!(t.get(4, 3).eax >> 14 & 0xfff, 63);
    }

    #[test]
    fn linux_computes_the_exact_tsc_frequency() {
        for hz in [
            2_900_000_000_u64,
            3_333_000_000,
            2_933_333_000,
            4_999_999_000,
        ] {
            let topology = NodeTopology {
                tsc_hz: hz,
                ..Default::default()
            };
            let r = default_table(&topology, 0).get(0x15, 0);
            let crystal_khz = r.ecx / 1000;
            // Linux's `native_calibrate_tsc()` computes the frequency like this: in 32 bits, in kHz.
            let khz = crystal_khz.checked_mul(r.ebx).unwrap() / r.eax;
            assert_eq!(u64::from(khz) * 1000, hz);
        }
    }

    #[test]
    fn the_brand_reads_back() {
        let t = default_table(&NodeTopology::default(), 0);
        let mut text = Vec::new();
        for leaf in 0x8000_0002..=0x8000_0004 {
            let r = t.get(leaf, 0);
            for word in [r.eax, r.ebx, r.ecx, r.edx] {
                text.extend(word.to_le_bytes());
            }
        }
        let text = String::from_utf8(text).unwrap();
        assert_eq!(
            text.trim_end_matches('\0'),
            "nodescope virtual CPU @ 2.90GHz"
        );
    }
}
