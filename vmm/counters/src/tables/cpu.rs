//! Identification of this host's processor.

use std::fs;

/// A processor as `/proc/cpuinfo` describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpu {
    /// Vendor, from the field `vendor_id`.
    pub vendor: String,
    /// Displayed family of CPUID leaf 1, from the field `cpu family`.
    pub family: u32,
    /// Displayed model of CPUID leaf 1, from the field `model`.
    pub model: u32,
    /// Name of the model, from the field `model name`.
    pub name: String,
}

impl Cpu {
    /// Reads the processor of this host. Fields that `/proc/cpuinfo` lacks are empty or 0.
    pub fn host() -> Cpu {
        Cpu::parse(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default())
    }

    /// Reads the first processor in a text of `/proc/cpuinfo`.
    pub fn parse(text: &str) -> Cpu {
        let first = text.split("\n\n").next().unwrap_or_default();
        let value = |key: &str| {
            let values = first.lines().filter_map(|line| line.split_once(':'));
            let value = values
                .map(|(name, value)| (name.trim(), value.trim()))
                .find(|(name, _)| *name == key);
            value.map_or("", |(_, value)| value)
        };
        Cpu {
            vendor: value("vendor_id").to_owned(),
            family: value("cpu family").parse().unwrap_or_default(),
            model: value("model").parse().unwrap_or_default(),
            name: value("model name").to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_processor_is_read() {
        let text = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\nmodel name\t: Xeon(R): Gold\n\nprocessor\t: 1\nmodel\t\t: 1\n";
        let cpu = Cpu::parse(text);
        assert_eq!(
            (cpu.vendor.as_str(), cpu.family, cpu.model),
            ("GenuineIntel", 6, 85)
        );
        assert_eq!(cpu.name, "Xeon(R): Gold");
        assert_eq!(Cpu::parse(""), Cpu::default());
    }
}
