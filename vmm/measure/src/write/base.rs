//! Built-in cores by the signature of a processor.

use std::ops::RangeInclusive;

/// A built-in core for a processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Base {
    /// Name, as a study has it in `core.base`.
    pub name: &'static str,
    /// False if the processor has another core, to which this one is the nearest of the vendor.
    pub exact: bool,
}

/// Models of Intel's family 6, with the built-in core, and whether it is theirs. The numbers are those of Linux, asm/intel-family.h.
const INTEL: &[(&[u32], &str, bool)] = &[
    // Westmere-EP; Nehalem, and other Westmere.
    (&[0x2c], "westmere", true),
    (&[0x1a, 0x1e, 0x1f, 0x25, 0x2e, 0x2f], "westmere", false),
    // Sandy Bridge-EP; other Sandy Bridge, and Ivy Bridge.
    (&[0x2d], "sandy-bridge", true),
    (&[0x2a, 0x3a, 0x3e], "sandy-bridge", false),
    // Skylake-SP, Cascade Lake-SP and Cooper Lake; Haswell, Broadwell, and Skylake of one socket.
    (&[0x55], "skylake-server", true),
    (
        &[
            0x3c, 0x3d, 0x3f, 0x45, 0x46, 0x47, 0x4e, 0x4f, 0x56, 0x5e, 0x8e, 0x9e, 0xa5, 0xa6,
        ],
        "skylake-server",
        false,
    ),
    // Ice Lake-SP and -D; Ice Lake, Tiger Lake and Rocket Lake of one socket.
    (&[0x6a, 0x6c], "ice-lake-server", true),
    (&[0x7d, 0x7e, 0x8c, 0x8d, 0xa7], "ice-lake-server", false),
    // Sapphire Rapids and Emerald Rapids; Alder Lake and Raptor Lake.
    (&[0x8f, 0xcf], "sapphire-rapids", true),
    (&[0x97, 0x9a, 0xb7, 0xba, 0xbf], "sapphire-rapids", false),
    // Granite Rapids and its form for single sockets.
    (&[0xad, 0xae], "granite-rapids", true),
];

/// Models of AMD's family 19h with Zen 4; the others have Zen 3.
const ZEN4: [RangeInclusive<u32>; 3] = [0x10..=0x1f, 0x60..=0x7f, 0xa0..=0xaf];

impl Base {
    /// Returns the core for a vendor, family and model, as CPUID has them.
    pub fn of(vendor: &str, family: u32, model: u32) -> Self {
        let base = |name, exact| Self { name, exact };
        match vendor {
            "AuthenticAMD" | "HygonGenuine" => match family {
                0x17 => base("zen2", model >= 0x30),
                0x19 => base("zen4", ZEN4.iter().any(|models| models.contains(&model))),
                0x1a => base("zen5", true),
                // Hygon's family 18h is Zen 1.
                ..=0x18 => base("zen2", false),
                _ => base("zen5", false),
            },
            "GenuineIntel" => {
                let row = INTEL
                    .iter()
                    .find(|(models, ..)| family == 6 && models.contains(&model));
                match row {
                    Some((_, name, exact)) => base(name, *exact),
                    // Family 15 is older than all of these.
                    None if family == 15 => base("westmere", false),
                    None => base("granite-rapids", false),
                }
            }
            _ => base("skylake-server", false),
        }
    }

    /// Returns whether lines come to the third level when the second one replaces them.
    pub fn has_victim_third_level(self) -> bool {
        !matches!(self.name, "westmere" | "sandy-bridge")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodescope_plugin_pipeline::Core;

    #[test]
    fn processors_have_the_core_that_is_theirs() {
        let of = |vendor, family, model| {
            let base = Base::of(vendor, family, model);
            (base.name, base.exact)
        };
        for (family, model, expected) in [
            (0x17, 0x31, ("zen2", true)),
            (0x17, 0x01, ("zen2", false)),
            (0x19, 0x01, ("zen4", false)),
            (0x19, 0x11, ("zen4", true)),
            (0x19, 0x61, ("zen4", true)),
            (0x1a, 0x02, ("zen5", true)),
            (0x1b, 0x00, ("zen5", false)),
        ] {
            assert_eq!(of("AuthenticAMD", family, model), expected);
        }
        for (model, expected) in [
            (0x2c, ("westmere", true)),
            (0x2d, ("sandy-bridge", true)),
            (0x3e, ("sandy-bridge", false)),
            (0x4f, ("skylake-server", false)),
            (0x55, ("skylake-server", true)),
            (0x6a, ("ice-lake-server", true)),
            (0xcf, ("sapphire-rapids", true)),
            (0xad, ("granite-rapids", true)),
            (0xff, ("granite-rapids", false)),
        ] {
            assert_eq!(of("GenuineIntel", 6, model), expected);
        }
        assert_eq!(of("GenuineIntel", 15, 6), ("westmere", false));
        assert_eq!(of("CentaurHauls", 6, 0x2c), ("skylake-server", false));
    }

    #[test]
    fn all_cores_of_the_table_are_built_in() {
        let intel = INTEL.iter().map(|(_, name, _)| *name);
        for name in intel.chain(["zen2", "zen4", "zen5"]) {
            assert!(Core::preset(name).is_ok(), "{name}");
        }
    }
}
