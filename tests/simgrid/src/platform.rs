//! Cluster that is described for both SimGrid and the interpreter.

use std::fs;
use std::io;
use std::path::Path;

use nodescope_predict::{Channel, Cluster, Model, Progress, Topology};

/// Topology of the nodes, each of which has one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A link into a switch and one out of it for each node.
    Crossbar {
        /// Number of nodes.
        nodes: u32,
    },
    /// A torus, whose only links are those between neighbours.
    Torus {
        /// Number of nodes in each dimension.
        size: Vec<u32>,
    },
}

/// Platform on which programs are replayed.
#[derive(Clone, Debug)]
pub struct Platform {
    /// Topology of the nodes.
    pub shape: Shape,
    /// Latency in picoseconds: between two nodes of a crossbar, or of each link of a torus.
    pub latency: u64,
    /// Bandwidth of each link, bytes per second.
    pub bandwidth: u64,
    /// Size in bytes of the largest eager message; larger messages wait for their receive.
    pub eager_limit: u64,
}

impl Platform {
    /// Returns the number of nodes.
    pub fn nodes(&self) -> u32 {
        match &self.shape {
            Shape::Crossbar { nodes } => *nodes,
            Shape::Torus { size } => size.iter().product(),
        }
    }

    /// Returns the platform as a cluster for the interpreter. A torus of SimGrid has no links between a node and its router, so such links
    /// cost nothing.
    pub fn cluster(&self) -> Cluster {
        let mut cluster = match &self.shape {
            Shape::Crossbar { .. } => {
                let network = Channel::new(Model::LogGp, self.latency, self.bandwidth);
                Cluster::simple("crossbar", network)
            }
            Shape::Torus { size } => Cluster {
                topology: Topology::Torus { size: size.clone() },
                hop_latency: self.latency,
                link_per_byte: Some(nodescope_predict::network::per_byte(self.bandwidth)),
                ..Cluster::simple("torus", Channel::new(Model::LogGp, 0, 0))
            },
        };
        cluster.network.eager_limit = self.eager_limit;
        // SimGrid sends so many bytes beyond the contents of each message.
        cluster.network.envelope = 16;
        // A large message of SimGrid waits for its receive, but sends no request.
        cluster.network.service_latency = Some(0);
        cluster.contention = true;
        // In SimGrid messages progress while their ranks compute, and take no processor time.
        cluster.progress = Progress::Thread { beta: 0.0 };
        cluster
    }

    /// Writes `platform.xml` and `hosts` for smpirun.
    ///
    /// # Errors
    ///
    /// A file that cannot be written.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let nodes = self.nodes();
        // A message on a crossbar passes two links, each with half of the latency.
        let (latency, topology) = match &self.shape {
            Shape::Crossbar { .. } => (self.latency as f64 / 2.0, String::new()),
            Shape::Torus { size } => {
                let size: Vec<String> = size.iter().map(u32::to_string).collect();
                (
                    self.latency as f64,
                    format!(" topology=\"TORUS\" topo_parameters=\"{}\"", size.join(",")),
                )
            }
        };
        let text = format!(
            "<?xml version='1.0'?>\n<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n<platform version=\"4.1\">\n  \
             <cluster id=\"cluster\" prefix=\"node-\" suffix=\"\" radical=\"0-{}\" speed=\"1000000000f\" core=\"1\" \
             bw=\"{}Bps\" lat=\"{}ns\"{topology}/>\n</platform>\n",
            nodes - 1,
            self.bandwidth,
            latency / 1000.0,
        );
        fs::write(folder.join("platform.xml"), text)?;
        let hosts: String = (0..nodes).map(|node| format!("node-{node}\n")).collect();
        fs::write(folder.join("hosts"), hosts)
    }

    /// Returns options with which smpirun models the same network: latency and bandwidth unscaled, no limit by window sizes, no traffic of
    /// acknowledgements, and eager messages that leave at once.
    pub fn options(&self) -> Vec<String> {
        let limit = self.eager_limit + 1;
        [
            "network/model:CM02",
            "network/latency-factor:1",
            "network/bandwidth-factor:1",
            "network/TCP-gamma:0",
            "network/crosstraffic:0",
            "network/weight-S:0",
            "smpi/host-speed:1Gf",
            "surf/precision:1e-12",
        ]
        .into_iter()
        .map(String::from)
        .chain([
            format!("smpi/async-small-thresh:{limit}"),
            format!("smpi/send-is-detached-thresh:{limit}"),
        ])
        .map(|option| format!("--cfg={option}"))
        .collect()
    }
}
