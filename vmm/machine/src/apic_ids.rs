//! Layout of APIC ids: fields for the thread, the core and the socket, from the lowest bit on.
//!
//! Each field has a whole number of bits, so that ids are left out where a count is no power of two. CPUID leaf 4 tells the vCPUs that share
//! a cache as a number of low bits of the id. The core's field therefore has a field of its own for each group of cores with a cache, as on
//! processors whose groups have three cores.

use crate::topology::{NodeTopology, SharedBy};

impl NodeTopology {
    /// Returns the width in bits of an APIC id's thread field (CPUID leaf 0xB, subleaf 0).
    pub fn thread_bits(&self) -> u32 {
        ceil_log2(self.threads_per_core)
    }

    /// Returns the width in bits of an APIC id's core field.
    pub fn core_bits(&self) -> u32 {
        let groups = self.groups();
        let largest = groups.last().copied().unwrap_or(1);
        group_bits(&groups) + ceil_log2(self.cores_per_socket.div_ceil(largest))
    }

    /// Returns the number of low bits in which the APIC ids of vCPUs that share an instance of a cache may differ.
    pub fn sharing_bits(&self, shared_by: SharedBy) -> u32 {
        let core_bits = match self.canonical(shared_by) {
            SharedBy::Core => 0,
            SharedBy::Cores(cores) => {
                let mut groups = self.groups();
                groups.retain(|&group| group <= cores);
                group_bits(&groups)
            }
            SharedBy::Socket => self.core_bits(),
        };
        self.thread_bits() + core_bits
    }

    /// Returns the core field of the APIC id of a core of a socket.
    pub(crate) fn core_id(&self, core: u32) -> u32 {
        let (mut id, mut width) = (0, 0);
        let (mut rest, mut inner) = (core, 1);
        for group in self.groups() {
            let parts = group / inner;
            id |= (rest % parts) << width;
            width += ceil_log2(parts);
            (rest, inner) = (rest / parts, group);
        }
        id | rest << width
    }
}

/// Returns the width in bits of the fields for nested groups of these numbers of cores, ascending.
fn group_bits(groups: &[u32]) -> u32 {
    let inner = [1].iter().chain(groups);
    (groups.iter().zip(inner))
        .map(|(group, inner)| ceil_log2(group / inner))
        .sum()
}

fn ceil_log2(n: u32) -> u32 {
    n.max(1).next_power_of_two().trailing_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{CacheDescription, MAX_SOCKETS, MAX_VCPUS};

    /// Returns a node whose caches of levels 1 to 4 are for these groups of cores.
    fn with_groups(sockets: u32, cores: u32, threads: u32, groups: [u32; 4]) -> NodeTopology {
        let mut topology = NodeTopology::uniform(sockets, cores, threads, 256 << 20);
        topology.caches.push(CacheDescription {
            level: 4,
            ..topology.caches[3]
        });
        for cache in &mut topology.caches {
            cache.shared_by = SharedBy::Cores(groups[usize::from(cache.level) - 1]);
        }
        topology
    }

    #[test]
    fn apic_ids_have_power_of_two_fields() {
        let t = NodeTopology::uniform(2, 3, 2, 256 << 20);
        let ids: Vec<_> = t.places().map(|p| p.apic_id).collect();
        assert_eq!(ids, [0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13]);
        let p = t.place(9);
        assert_eq!((p.socket, p.core, p.thread), (1, 1, 1));
    }

    #[test]
    fn groups_of_three_cores_leave_every_fourth_id_out() {
        let t = with_groups(1, 7, 1, [1, 1, 3, 7]);
        let ids: Vec<_> = t.places().map(|p| p.apic_id).collect();
        assert_eq!(ids, [0, 1, 2, 4, 5, 6, 8]);
        assert_eq!((t.sharing_bits(SharedBy::Cores(3)), t.core_bits()), (2, 4));
        // Groups of a power of two of cores change no id.
        let plain = NodeTopology::uniform(2, 7, 1, 256 << 20);
        let t = with_groups(2, 7, 1, [1, 2, 4, 7]);
        assert!(t.places().eq(plain.places()));
        assert_eq!(t.sharing_bits(SharedBy::Cores(2)), 1);
        assert_eq!(t.sharing_bits(SharedBy::Cores(4)), 2);
        assert_eq!(t.sharing_bits(SharedBy::Cores(7)), 3);
    }

    /// Checks that ids are unique and ascend, that all are below 255, so that the MADT needs no x2APIC entries, and that vCPUs share a cache
    /// where all higher bits of their ids are equal.
    fn check(topology: &NodeTopology) {
        let places: Vec<_> = topology.places().collect();
        let shape = || format!("{topology:?}");
        assert!(
            places.iter().all(|place| place.apic_id < 255),
            "{}",
            shape()
        );
        assert!(
            places.windows(2).all(|w| w[0].apic_id < w[1].apic_id),
            "{}",
            shape()
        );
        for cache in &topology.caches {
            let bits = topology.sharing_bits(cache.shared_by);
            let group = |core: u32| match topology.canonical(cache.shared_by) {
                SharedBy::Core => core,
                SharedBy::Cores(cores) => core / cores,
                SharedBy::Socket => 0,
            };
            for pair in places.windows(2) {
                let [a, b] = pair else { unreachable!() };
                let together = (a.socket, group(a.core)) == (b.socket, group(b.core));
                let told = a.apic_id >> bits == b.apic_id >> bits;
                assert_eq!(told, together, "{a:?} {b:?} {}", shape());
            }
        }
    }

    #[test]
    fn apic_ids_of_every_shape_are_unique_and_fit_eight_bits() {
        let shapes = (1..=MAX_SOCKETS)
            .flat_map(|s| (1..=64).flat_map(move |c| (1..=64).map(move |t| (s, c, t))))
            .filter(|(s, c, t)| s * c * t <= MAX_VCPUS);
        for (s, c, t) in shapes {
            check(&NodeTopology::uniform(s, c, t, 256 << 20));
            for inner in 1..c {
                for second in (inner..c).step_by(inner as usize) {
                    for third in (second..c).step_by(second as usize) {
                        for outer in (third..c).step_by(third as usize) {
                            check(&with_groups(s, c, t, [inner, second, third, outer]));
                        }
                    }
                }
            }
        }
    }
}
