//! Choice of the way of messages between each two processes.

use std::path::Path;

use nodescope_cluster::Peers;
use serde::{Deserialize, Serialize};

use crate::GroupError;
use crate::group::Group;
use crate::ring::{self, Offer};

/// Ways of messages that a user may ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Transport {
    /// Memory between processes of one host, otherwise the control line.
    #[default]
    Auto,
    /// Memory between all processes.
    Memory,
    /// The control line, by TCP.
    Sockets,
    /// MPI, which a launcher must have started.
    Mpi,
}

/// Where a process runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Number that a kernel draws when it boots; empty where unknown.
    pub boot: String,
    /// Name of the host, for messages.
    pub host: String,
    /// Process ID of the process on its host.
    pub process: u32,
}

impl Place {
    /// Returns the place of this process.
    pub fn own() -> Self {
        let read = |name: &str| {
            let text = std::fs::read_to_string(Path::new("/proc/sys/kernel").join(name));
            text.map_or_else(|_| String::new(), |text| text.trim().into())
        };
        Self {
            boot: read("random/boot_id"),
            host: read("hostname"),
            process: std::process::id(),
        }
    }

    /// Returns the process for messages.
    pub fn name(&self) -> String {
        format!("{}, process {}", self.host, self.process)
    }

    fn shares_host_with(&self, other: &Place) -> bool {
        !self.boot.is_empty() && self.boot == other.boot
    }
}

/// Connects the processes of each host by memory, as far as `transport` wants. All processes of the group call this function, with the
/// places of all processes and a number that no other run has.
///
/// # Errors
///
/// A process that is lost, or processes that cannot share memory where the user wants memory.
pub(crate) fn connect(
    group: &mut Group,
    places: &[Place],
    token: u64,
    transport: Transport,
) -> Result<(), GroupError> {
    let rank = group.rank();
    let count = group.count();
    let here = |other: usize| places[rank].shares_host_with(&places[other]);
    group.share_host((0..count).filter(|&other| here(other)).count());
    if !matches!(transport, Transport::Auto | Transport::Memory) {
        return Ok(());
    }
    let lost = |error: nodescope_cluster::PeerError| GroupError::GivenUp(error.to_string());
    let all = vec![true; count];
    // The process with the lower number makes the memory, and tells the other one its descriptor.
    let mut offers: Vec<Option<Offer>> = (0..count).map(|_| None).collect();
    let mut tell = vec![Vec::new(); count];
    for other in (rank + 1..count).filter(|&other| here(other)) {
        match Offer::new(token) {
            Ok(offer) => {
                tell[other] = offer.descriptor().to_string().into_bytes();
                offers[other] = Some(offer);
            }
            Err(error) => tracing::debug!("no memory to share with process {other}: {error}"),
        }
    }
    let told = group.exchange(&tell, &all).map_err(lost)?;
    let mut answers = vec![Vec::new(); count];
    let mut opened = Vec::new();
    for other in 0..rank {
        let descriptor = String::from_utf8_lossy(&told[other]).parse();
        let Ok(descriptor) = descriptor else {
            continue;
        };
        match ring::open(places[other].process, descriptor, token) {
            Ok(ring) => {
                answers[other] = b"opened".to_vec();
                opened.push((other, ring));
            }
            Err(error) => {
                tracing::debug!("cannot open the memory of process {other}: {error}");
            }
        }
    }
    let answers = group.exchange(&answers, &all).map_err(lost)?;
    let accepted = (offers.into_iter().enumerate())
        .filter(|(other, _)| answers[*other] == b"opened")
        .filter_map(|(other, offer)| Some((other, offer?.accepted())));
    let rings: Vec<_> = opened.into_iter().chain(accepted).collect();
    let shared = rings.len();
    for (other, ring) in rings {
        group.use_memory(other, ring);
    }
    let missing = count - 1 - shared;
    let missing = group.all_gather(&missing.to_le_bytes()).map_err(lost)?;
    let all_share = missing.iter().all(|of| of.iter().all(|&byte| byte == 0));
    if transport == Transport::Memory && !all_share {
        return Err(GroupError::NoMemory);
    }
    Ok(())
}
