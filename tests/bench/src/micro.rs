//! Micro-kernels: programs of one limit each, by which an error of a prediction can be explained.

/// The list of the micro-kernels, for the compiler of their program.
const LIST: &str = include_str!("../kernels/micro.h");

/// Repeats of a micro-kernel in a guest's window; a repeat is about a million instructions.
pub const REPEATS: u32 = 4;
/// Sources of the program, without `main.c`.
pub const SOURCES: [&str; 7] = [
    "micro.c",
    "micro-chains.c",
    "micro-ports.c",
    "micro-stores.c",
    "micro-branches.c",
    "micro-caches.c",
    "micro-streams.c",
];
/// Environment of the program. The C library has copies for many processors; host and guest must run the same ones. These use loops of
/// AVX2, and neither REP strings nor non-temporal stores.
pub const ENVIRONMENT: (&str, &str) = (
    "GLIBC_TUNABLES",
    "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW:glibc.cpu.x86_rep_movsb_threshold=0x40000000:\
     glibc.cpu.x86_rep_stosb_threshold=0x40000000:glibc.cpu.x86_non_temporal_threshold=0x40000000",
);

/// A micro-kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Micro {
    /// Name, as the program reports it.
    pub name: &'static str,
    /// The limit of its speed, in words.
    pub limit: &'static str,
}

/// Returns all micro-kernels.
pub fn all() -> impl Iterator<Item = Micro> {
    LIST.lines().filter_map(|line| {
        let (name, limit) = line.trim().strip_prefix("ROW(")?.split_once(')')?;
        let limit = limit.split_once("/*")?.1.split_once("*/")?.0;
        Some(Micro {
            name,
            limit: limit.trim(),
        })
    })
}

/// Returns the micro-kernel with this name.
pub fn find(name: &str) -> Option<Micro> {
    all().find(|micro| micro.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_micro_kernel_has_a_name_of_its_own_and_a_limit() {
        let names: BTreeSet<&str> = all().map(|micro| micro.name).collect();
        assert_eq!(names.len(), all().count());
        // In other places, ROW is a parameter.
        assert_eq!(LIST.matches("\tROW(").count(), names.len());
        assert!(all().all(|m| !m.limit.is_empty() && m.name.len() < 32));
        assert_eq!(
            find("chain_add").unwrap().limit,
            "latency of an integer addition"
        );
        assert_eq!(find("chess"), None);
    }
}
