//! The cluster as SimGrid needs it: platform, host file, and a script that starts the replay.

use std::fmt::Write;

use crate::Network;
use crate::survey::Survey;

/// Bandwidth and latency between ranks of one node, in the order of magnitude of memory, since studies do not state them.
const LOOPBACK_BYTES: &str = "10GBps";
const LOOPBACK_LATENCY: &str = "100ns";

/// Returns `platform.xml`: all nodes at one switch. A message passes the links of both its nodes, each with half the latency.
pub(super) fn platform(survey: &Survey, speed: f64, network: &Network) -> String {
    let used = survey
        .processes
        .iter()
        .map(|process| process.node as usize + 1);
    let nodes = used.max().unwrap_or(1).max(survey.header.nodes.len());
    let cores = survey.header.nodes.iter().map(|node| node.vcpus).max();
    let cores = cores.unwrap_or(1).max(1);
    let bandwidth = network.bandwidth as f64 / 8.0;
    let latency = network.latency_ps as f64 / 2000.0;
    format!(
        "<?xml version='1.0'?>\n<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n<platform version=\"4.1\">\n  \
         <cluster id=\"cluster\" prefix=\"node-\" suffix=\"\" radical=\"0-{}\" speed=\"{speed}f\" core=\"{cores}\" \
         bw=\"{bandwidth}Bps\" lat=\"{latency}ns\" loopback_bw=\"{LOOPBACK_BYTES}\" loopback_lat=\"{LOOPBACK_LATENCY}\"/>\n\
         </platform>\n",
        nodes - 1
    )
}

/// Returns the text of `hostfile`: a line with the host of each rank of a job, in the order of the ranks.
pub(super) fn hosts(survey: &Survey, world: usize) -> String {
    let mut text = String::new();
    for process in &survey.processes[survey.worlds[world].processes.clone()] {
        let _ = writeln!(text, "node-{}", process.node);
    }
    text
}

/// Returns the text of the script `replay`, which runs smpirun and passes its own arguments on to smpirun.
pub(super) fn script(ranks: u32) -> String {
    format!(
        "#!/bin/sh\n# Replays this trace with SimGrid (Debian: libsimgrid-dev). Prints the simulated time.\n\
         cd \"$(dirname \"$0\")\" || exit 1\n\
         exec smpirun -np {ranks} -platform platform.xml -hostfile hostfile -replay trace.ti \"$@\"\n"
    )
}
