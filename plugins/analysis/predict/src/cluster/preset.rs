//! Networks with published parameters.

use crate::network::{Channel, Model, Table};

/// Network with published parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// Myrinet, 200 MB/s and 30 us (Padaryan, 2005).
    Myrinet,
    /// Ethernet, 10 MB/s and 160 us (Padaryan, 2005).
    Ethernet,
    /// Ethernet, 5 MB/s and 160 us (Padaryan, 2005).
    EthernetShared,
    /// SCI, 300 MB/s and 4 us (Padaryan, 2005).
    Sci,
}

impl Preset {
    /// Every preset, by its name in cluster files.
    pub const ALL: [(&'static str, Preset); 4] = [
        ("myrinet", Preset::Myrinet),
        ("ethernet", Preset::Ethernet),
        ("ethernet-5", Preset::EthernetShared),
        ("sci", Preset::Sci),
    ];

    /// Returns the network's channel: the post model, with times of the service operations 0 as published. overhead(0) is the latency.
    pub fn channel(self) -> Channel {
        let (bandwidth, latency) = match self {
            Preset::Myrinet => (200_000_000, 30_000_000),
            Preset::Ethernet => (10_000_000, 160_000_000),
            Preset::EthernetShared => (5_000_000, 160_000_000),
            Preset::Sci => (300_000_000, 4_000_000),
        };
        Channel {
            send_overhead: Table::default(),
            ..Channel::new(Model::Post, latency, bandwidth)
        }
    }
}
