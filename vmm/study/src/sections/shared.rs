//! Reader of `cluster.shared`: the file system that all nodes share.

use nodescope_machine::file_server;
use nodescope_machine::topology::NodeTopology;

use super::{MAX_NODES, guest_path};
use crate::plan::SharedFileSystem;
use nodescope_config::quantity::Bytes;
use nodescope_config::reader::{Item, Section};

/// Smallest and largest size of a shared file system.
const LEAST: Bytes = Bytes(1 << 20);
const MOST: Bytes = Bytes(1 << 40);

/// First components of paths that the image itself, or nodescope, uses.
const TAKEN: [&str; 17] = [
    "bin", "boot", "dev", "etc", "init", "job", "lib", "lib32", "lib64", "libx32", "opt", "proc",
    "run", "sbin", "sys", "tmp", "usr",
];

/// Reads `cluster.shared`. The file server is a node beside the `nodes` of the cluster, and takes an address of the network.
pub(super) fn read(cluster: &Section<'_>, nodes: u32) -> Option<SharedFileSystem> {
    let section = cluster.section("shared");
    if !section.present() {
        return None;
    }
    let path = section.require("path", "\"/scratch\"");
    let path = path.and_then(|item| path_of(&item));
    let size = section.require("size", "\"2 GiB\"");
    let size = size.and_then(|item| size_of(&item));
    if nodes >= MAX_NODES {
        section.add_problem(
            "path",
            format!(
                "needs a further node for the file server, and cluster.nodes is {nodes}; lower cluster.nodes to {}",
                MAX_NODES - 1
            ),
        );
    }
    section.finish();
    Some(SharedFileSystem {
        path: path?,
        size: size?,
    })
}

fn path_of(item: &Item<'_>) -> Option<String> {
    let path = item.line("/scratch")?;
    let below_root = path.strip_prefix('/');
    let plain = below_root.is_some_and(|rest| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_' | '.');
        guest_path(rest).is_ok() && rest.len() <= 100 && rest.chars().all(allowed)
    });
    if !plain {
        item.add_problem(format!(
            "{path:?} is not an absolute path of letters, digits, \"-\", \"_\" and \".\"; write e.g. \"/scratch\""
        ));
        return None;
    }
    let first = below_root.and_then(|rest| rest.split('/').next());
    if let Some(first) = first.filter(|first| TAKEN.contains(first)) {
        item.add_problem(format!(
            "{path:?} lies in /{first}, which every node has for itself; write e.g. \"/scratch\" or \"/home\""
        ));
        return None;
    }
    Some(path)
}

fn size_of(item: &Item<'_>) -> Option<Bytes> {
    let size = item.quantity::<Bytes>()?;
    if !(LEAST..=MOST).contains(&size) {
        item.add_problem(format!(
            "is {size}; write a size from \"{LEAST}\" to \"{MOST}\", e.g. \"2 GiB\""
        ));
        return None;
    }
    Some(size)
}

/// Returns whether a clone of a node has memory enough to serve the files.
pub(super) fn fits_clone(shared: &SharedFileSystem, node: &NodeTopology) -> bool {
    file_server::memory(shared.size.0) <= node.socket_memory.iter().sum()
}

/// Checks that a clone of a node has memory enough to serve the files.
pub(super) fn check_clone(cluster: &Section<'_>, shared: &SharedFileSystem, node: &NodeTopology) {
    let memory = node.socket_memory.iter().sum();
    let needed = file_server::memory(shared.size.0);
    if !fits_clone(shared, node) {
        let section = cluster.section("shared");
        section.add_problem(
            "size",
            format!(
                "is {}, but with boot = \"once\" the file server is a copy of a node and has its {}, of which {} are for the system; raise node.memory to {}, lower the size, or write boot = \"each\"",
                shared.size,
                Bytes(memory),
                Bytes(file_server::RESERVE),
                Bytes(needed)
            ),
        );
    }
}
