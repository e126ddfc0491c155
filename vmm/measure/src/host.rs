//! What Linux and CPUID tell of the machine: name, hypervisor, memory, stolen time.

use std::arch::x86_64::__cpuid;
use std::fs;
use std::path::Path;

use crate::MeasureError;

/// What the machine says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Vendor, such as `AuthenticAMD`.
    pub vendor: String,
    /// Processor name. A hypervisor may have shortened or changed it.
    pub brand: String,
    /// Family, model and stepping, as Linux counts them.
    pub signature: (u32, u32, u32),
    /// The hypervisor's own name, or an empty text where it gives none. Nothing on a machine without a hypervisor.
    pub hypervisor: Option<String>,
    /// Bytes of memory.
    pub memory: u64,
}

/// Reads what the machine says of itself.
pub fn identity() -> Result<Identity, MeasureError> {
    let leaf = __cpuid(0);
    let vendor = text(&[leaf.ebx, leaf.edx, leaf.ecx]);
    let has_brand = __cpuid(0x8000_0000).eax >= 0x8000_0004;
    let brand = (0x8000_0002..=0x8000_0004)
        .filter(|_| has_brand)
        .map(__cpuid)
        .flat_map(|leaf| [leaf.eax, leaf.ebx, leaf.ecx, leaf.edx]);
    let features = __cpuid(1);
    let hypervisor = (features.ecx >> 31 & 1 != 0).then(|| {
        let leaf = __cpuid(0x4000_0000);
        text(&[leaf.ebx, leaf.ecx, leaf.edx])
    });
    Ok(Identity {
        vendor,
        brand: text(&brand.collect::<Vec<u32>>()),
        signature: signature(features.eax),
        hypervisor,
        memory: kilobytes("MemTotal:")? << 10,
    })
}

/// Returns the characters of registers up to the first zero, without blanks at the ends.
fn text(registers: &[u32]) -> String {
    let bytes = registers.iter().flat_map(|register| register.to_le_bytes());
    let printable = bytes
        .take_while(|byte| *byte != 0)
        .filter(|byte| byte.is_ascii() && !byte.is_ascii_control());
    printable
        .map(char::from)
        .collect::<String>()
        .trim()
        .to_owned()
}

/// Returns family, model and stepping of a signature (SDM vol. 2A, CPUID leaf 1).
fn signature(eax: u32) -> (u32, u32, u32) {
    let (family, model) = (eax >> 8 & 0xf, eax >> 4 & 0xf);
    let extended = if family == 6 || family == 15 {
        eax >> 16 & 0xf
    } else {
        0
    };
    let family = if family == 15 {
        family + (eax >> 20 & 0xff)
    } else {
        family
    };
    (family, extended << 4 | model, eax & 0xf)
}

/// Returns bytes of memory that programs can get without others losing theirs.
pub fn available_memory() -> Result<u64, MeasureError> {
    Ok(kilobytes("MemAvailable:")? << 10)
}

fn kilobytes(name: &'static str) -> Result<u64, MeasureError> {
    let text = read("/proc/meminfo")?;
    let value = text.lines().find_map(|line| {
        line.strip_prefix(name)?
            .trim()
            .strip_suffix(" kB")?
            .parse()
            .ok()
    });
    value.ok_or_else(|| MeasureError::Content {
        path: "/proc/meminfo".into(),
        what: name,
    })
}

fn read(path: &str) -> Result<String, MeasureError> {
    fs::read_to_string(Path::new(path)).map_err(|source| MeasureError::File {
        path: path.into(),
        source,
    })
}

/// Time of all CPUs in ticks of the system, since it booted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuTimes {
    /// Ticks of any kind.
    pub all: u64,
    /// Ticks in which the hypervisor ran something else.
    pub stolen: u64,
}

/// Reads the time of all CPUs.
pub fn cpu_times() -> Result<CpuTimes, MeasureError> {
    let times = parse_times(&read("/proc/stat")?);
    times.ok_or_else(|| MeasureError::Content {
        path: "/proc/stat".into(),
        what: "stolen time",
    })
}

/// Reads the line `cpu USER NICE SYSTEM IDLE IOWAIT IRQ SOFTIRQ STEAL GUEST …`. Guests are part of the user's time.
fn parse_times(stat: &str) -> Option<CpuTimes> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line
        .split_whitespace()
        .map_while(|word| word.parse().ok())
        .take(8)
        .collect();
    Some(CpuTimes {
        all: ticks.iter().sum(),
        stolen: *ticks.get(7)?,
    })
}

impl CpuTimes {
    /// Returns the share of time since `before` that was stolen, from 0 to 1.
    pub fn stolen_share(self, before: Self) -> f64 {
        let all = self.all.saturating_sub(before.all).max(1);
        self.stolen.saturating_sub(before.stolen) as f64 / all as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_a_share_of_all_time() {
        let before =
            parse_times("cpu  10 0 10 70 0 0 0 10 5 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n").unwrap();
        assert_eq!(
            before,
            CpuTimes {
                all: 100,
                stolen: 10
            }
        );
        let after = CpuTimes {
            all: 200,
            stolen: 35,
        };
        assert_eq!(after.stolen_share(before), 0.25);
        assert_eq!(parse_times("cpu  10 0 10 70\n"), None);
    }

    #[test]
    fn signatures_are_those_of_linux() {
        // Genoa: family 25, model 17, stepping 1. Skylake-SP: family 6, model 85, stepping 4.
        assert_eq!(signature(0x00a1_0f11), (25, 17, 1));
        assert_eq!(signature(0x0005_0654), (6, 85, 4));
    }

    #[test]
    fn texts_end_at_the_first_zero() {
        assert_eq!(
            text(&[u32::from_le_bytes(*b" AMD"), u32::from_le_bytes(*b" E\0X")]),
            "AMD E"
        );
    }

    #[test]
    fn this_machine_has_memory() {
        let identity = identity().unwrap();
        assert!(identity.memory >= available_memory().unwrap());
        assert_eq!(identity.vendor.len(), 12);
    }
}
