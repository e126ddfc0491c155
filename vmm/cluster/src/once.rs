//! One boot for all nodes: a single node boots and is saved as a snapshot, and all nodes of a cluster are clones of that node.
//!
//! The name of the snapshot is a hash of everything on which the boot depends. Studies with the same nodes therefore share the snapshot.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use nodescope_image::job_disk;
use nodescope_window::Moment;

use crate::agreement::{Agreement, MAY_DIFFER_IN_CLONES};
use crate::config::ClusterConfig;
use crate::folder::ResultsFolder;
use crate::outcome::{Ending, Observer, Outcome, RunError};
use crate::run::run_with;
use crate::saving::{Options, Save, When};
use crate::snapshot::Origin;

/// Result of the boot of a single node.
pub enum Boot {
    /// The node has booted, in this run or in an earlier one; its snapshot.
    Done(Box<Origin>),
    /// The node has not booted; the outcome of its run has the reason.
    Failed(Box<Outcome>),
}

/// Returns the name of the snapshot from which the nodes of a cluster are cloned. `image` is the hash of the files that the nodes boot.
///
/// # Errors
///
/// KVM that this host cannot use, or CPU features that the nodes must have and cannot.
pub fn name(config: &ClusterConfig, image: &str) -> Result<String, RunError> {
    let agreement = Agreement::of(&alone(config), image)?;
    let mut hash = blake3::Hasher::new();
    hash.update(env!("CARGO_PKG_VERSION").as_bytes());
    for (key, value) in agreement
        .rows()
        .filter(|(key, _)| !MAY_DIFFER_IN_CLONES.contains(key))
    {
        for part in [key, value] {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
    }
    Ok(format!("boot-{}", &hash.finalize().to_hex()[..16]))
}

/// Opens the snapshot at `path`, or boots one node and writes its snapshot there. `folder` gets the boot's results.
///
/// # Errors
///
/// See [`run_with`].
pub fn boot(
    config: &ClusterConfig,
    image: &str,
    path: &Path,
    folder: &ResultsFolder,
    interrupted: &Arc<AtomicBool>,
    observer: &mut dyn Observer,
) -> Result<Boot, RunError> {
    if path.exists() {
        match Origin::open(path) {
            Ok(origin) => return Ok(Boot::Done(Box::new(origin))),
            Err(error) => tracing::warn!("{error}; a node boots anew"),
        }
    }
    let name = path.file_stem().unwrap_or_default();
    let save = Save {
        when: When::At(Moment::Boot),
        name: name.to_string_lossy().into_owned(),
        path: path.into(),
        stop: true,
    };
    let options = Options {
        image,
        save: Some(save),
        from: None,
        peers: None,
    };
    let outcome = run_with(&alone(config), folder, interrupted, observer, options)?;
    if outcome.ending != Ending::Saved {
        return Ok(Boot::Failed(Box::new(outcome)));
    }
    Ok(Boot::Done(Box::new(Origin::open(path)?)))
}

/// Returns a cluster of one node without a job, whose boot serves any number of nodes and any job.
fn alone(config: &ClusterConfig) -> ClusterConfig {
    ClusterConfig {
        nodes: 1,
        shared: None,
        job_disk: job_disk(&[]).expect("a disk without files is a disk"),
        slots: Vec::new(),
        trace: false,
        openmp: false,
        capture: false,
        code_costs: Arc::default(),
        windows: Vec::new(),
        counting: None,
        // Files that are read before the snapshot are in guest memory that all clones share.
        warm: true,
        ..config.clone()
    }
}
