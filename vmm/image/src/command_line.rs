//! The guest kernel's command line: settings for every node, and the identity of one node.

use std::net::Ipv4Addr;

/// Kernel parameters of every node. Most of them avoid work in the guest that has nothing to do with the measured program, or tell the
/// kernel that the platform lacks a device.
pub const BASE_COMMAND_LINE: &[&str] = &[
    "console=ttyS0",
    "quiet",
    // The TSC's frequency is given (`tsc_early_khz`), not measured against a timer, which the platform lacks.
    "tsc=reliable",
    "no_timer_check",
    // The platform has no PCI bus. Probing for one would print an error message on each console, even with `pci=off`.
    "initcall_blacklist=pci_arch_init",
    // The self-tests of the kernel's cryptography take two thirds of a boot.
    "cryptomgr.notests",
    "random.trust_cpu=on",
    "mitigations=off",
    "pti=off",
    // The kernel's symbols have the addresses in System.map.
    "nokaslr",
    "init_on_alloc=0",
    "audit=0",
    "apparmor=0",
    "ipv6.disable=1",
    "nowatchdog",
    // A panic ends the run at once, by a triple fault.
    "panic=-1",
    "reboot=t",
];

/// Timer ticks per second of Debian's kernel (`CONFIG_HZ`).
const KERNEL_HZ: u64 = 250;

/// File system that the nodes of a cluster share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedMount {
    /// Folder in which nodes mount the file system, without blanks.
    pub path: String,
    /// Size of the file system, bytes.
    pub bytes: u64,
}

impl SharedMount {
    fn words(&self) -> [String; 2] {
        [
            format!("shared={}", self.path),
            format!("shared_bytes={}", self.bytes),
        ]
    }
}

/// Identity and settings of a node, from which its kernel command line is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeCommandLine {
    /// Number of the node, from 0.
    pub node: u32,
    /// Number of nodes of the cluster, at most 1022.
    pub nodes: u32,
    /// The time-stamp counter's frequency in kHz.
    pub tsc_khz: u64,
    /// Seed of the machine id and of other values that must differ between studies.
    pub seed: u64,
    /// MPI slots of each node, in the order of the nodes. A single value is for all nodes; empty means as many as this node has CPUs.
    pub slots: Vec<u32>,
    /// MTU of the network in bytes; `None` for the device's default.
    pub mtu: Option<u32>,
    /// True if MPI ranks are preloaded with the MPI tracer.
    pub trace: bool,
    /// True if MPI ranks are preloaded with the OpenMP tracer.
    pub openmp: bool,
    /// True if the serial console runs a shell in place of the job.
    pub console: bool,
    /// True if programs make hypercalls through the doorbell (`vmm/hypercall`, "Transports").
    pub doorbell: bool,
    /// True if the node reads the files of MPI jobs during its boot, so that they are in its page cache. The guest then also places
    /// programs at fixed addresses.
    pub warm: bool,
    /// File system that all nodes share. The node with the number [`NodeCommandLine::nodes`] serves it, beside the cluster's nodes.
    pub shared: Option<SharedMount>,
    /// Further kernel parameters, which override earlier ones.
    pub extra: Vec<String>,
}

impl NodeCommandLine {
    /// Returns the command line of node `node` of `nodes`, with no settings beyond the base.
    pub fn new(node: u32, nodes: u32, tsc_khz: u64) -> NodeCommandLine {
        NodeCommandLine {
            node,
            nodes,
            tsc_khz,
            seed: 0,
            slots: Vec::new(),
            mtu: None,
            trace: false,
            openmp: false,
            console: false,
            doorbell: false,
            warm: false,
            shared: None,
            extra: Vec::new(),
        }
    }

    /// Returns the host name: `node0`, `node1`, …, and `fileserver` for the node behind the last one.
    pub fn name(&self) -> String {
        match self.node < self.nodes {
            true => format!("node{}", self.node),
            false => "fileserver".into(),
        }
    }

    /// Returns the settings that a node gets anew after its boot, such as a clone with another identity. Each is a line
    /// `nodescope.KEY=VALUE` for the image's scripts.
    pub fn words(&self) -> String {
        let slots: Vec<_> = self.slots.iter().map(u32::to_string).collect();
        let words = [
            format!("node={}", self.node),
            format!("nodes={}", self.nodes),
            format!("name={}", self.name()),
            format!("ip={}/16", Self::address(self.node)),
            format!("seed={}", self.seed),
            format!("slots={}", slots.join(",")),
            format!("trace={}", u8::from(self.trace)),
            format!("openmp={}", u8::from(self.openmp)),
        ];
        let shared = self.shared.iter().flat_map(SharedMount::words);
        let lines = words.into_iter().chain(shared);
        lines.map(|word| format!("nodescope.{word}\n")).collect()
    }

    /// Returns the address of the node on the cluster's network 10.0.0.0/16: 10.0.0.1 for node 0, 10.0.0.2 for node 1.
    pub fn address(node: u32) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 0, 0, 0)) + node + 1)
    }
}

impl std::fmt::Display for NodeCommandLine {
    /// Writes the command line, with one space between parameters.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&BASE_COMMAND_LINE.join(" "))?;
        // Given the loops per jiffy (`lpj`), the first CPU of every socket does not spend 80 ms on calibrating its delay loop.
        write!(
            f,
            " tsc_early_khz={} lpj={}",
            self.tsc_khz,
            self.tsc_khz * 1000 / KERNEL_HZ
        )?;
        write!(
            f,
            " nodescope.node={} nodescope.nodes={} nodescope.name={}",
            self.node,
            self.nodes,
            self.name()
        )?;
        write!(
            f,
            " nodescope.ip={}/16 nodescope.seed={}",
            NodeCommandLine::address(self.node),
            self.seed
        )?;
        if !self.slots.is_empty() {
            let slots: Vec<_> = self.slots.iter().map(u32::to_string).collect();
            write!(f, " nodescope.slots={}", slots.join(","))?;
        }
        if let Some(mtu) = self.mtu {
            write!(f, " nodescope.mtu={mtu}")?;
        }
        if self.trace {
            f.write_str(" nodescope.trace=1")?;
        }
        if self.openmp {
            f.write_str(" nodescope.openmp=1")?;
        }
        if self.console {
            f.write_str(" nodescope.console=1")?;
        }
        if self.doorbell {
            f.write_str(" nodescope.doorbell=1")?;
        }
        if self.warm {
            // Programs get the same addresses in all nodes, which can therefore share translated code.
            f.write_str(" norandmaps nodescope.warm=1")?;
        }
        for word in self.shared.iter().flat_map(SharedMount::words) {
            write!(f, " nodescope.{word}")?;
        }
        self.extra.iter().try_for_each(|word| write!(f, " {word}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_node_gets_its_identity_alone() {
        let line = NodeCommandLine {
            seed: 42,
            ..NodeCommandLine::new(1, 2, 2_900_000)
        }
        .to_string();
        let identity = line.strip_prefix(&BASE_COMMAND_LINE.join(" ")).unwrap();
        assert_eq!(
            identity,
            " tsc_early_khz=2900000 lpj=11600000 nodescope.node=1 nodescope.nodes=2 nodescope.name=node1 nodescope.ip=10.0.0.2/16 nodescope.seed=42"
        );
    }

    #[test]
    fn a_renewed_node_is_told_each_word_even_where_it_is_the_default() {
        let node = NodeCommandLine {
            seed: 9,
            ..NodeCommandLine::new(2, 4, 1)
        };
        assert_eq!(
            node.words(),
            "nodescope.node=2\nnodescope.nodes=4\nnodescope.name=node2\nnodescope.ip=10.0.0.3/16\nnodescope.seed=9\n\
             nodescope.slots=\nnodescope.trace=0\nnodescope.openmp=0\n"
        );
    }

    #[test]
    fn settings_follow_and_extra_parameters_come_last() {
        let mut node = NodeCommandLine::new(0, 3, 1_000_000);
        node.slots = vec![2, 2, 4];
        node.mtu = Some(9000);
        node.trace = true;
        node.openmp = true;
        node.console = true;
        node.doorbell = true;
        node.warm = true;
        node.shared = Some(SharedMount {
            path: "/scratch".into(),
            bytes: 4096,
        });
        node.extra = vec!["loglevel=7".into()];
        assert!(
            node.to_string()
                .ends_with(" nodescope.slots=2,2,4 nodescope.mtu=9000 nodescope.trace=1 nodescope.openmp=1 nodescope.console=1 nodescope.doorbell=1 norandmaps nodescope.warm=1 nodescope.shared=/scratch nodescope.shared_bytes=4096 loglevel=7")
        );
        assert!(node.to_string().len() < 2048, "COMMAND_LINE_SIZE of x86");
        assert!(
            node.words()
                .ends_with("\nnodescope.shared=/scratch\nnodescope.shared_bytes=4096\n")
        );
        assert_eq!(NodeCommandLine { node: 3, ..node }.name(), "fileserver");
    }

    #[test]
    fn addresses_carry_into_the_next_byte() {
        assert_eq!(NodeCommandLine::address(0), Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(NodeCommandLine::address(255), Ipv4Addr::new(10, 0, 1, 0));
    }
}
