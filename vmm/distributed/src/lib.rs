//! The processes of a run on one or several hosts: how they find each other, and how they exchange messages.
//!
//! One process, the master, listens; the others, the workers, connect to it. Messages go by ZeroMQ (libzmq), encrypted by its CURVE
//! mechanism with a [`Key`] that all processes have. [`Listener`] is the master's way into a [`Group`], [`join`] a worker's. A group
//! gives each process the messages of all others ([`Peers`](nodescope_cluster::Peers)); a worker that has died is named.
//!
//! `README.md` describes shared files, ports, and failures for users.

mod admission;
mod group;
mod key;
mod message;
mod socket;
#[cfg(test)]
mod tests;

pub use admission::{Admission, Listener, join};
pub use group::Group;
pub use key::{KEY_VARIABLE, Key, KeyError};

use std::time::Duration;

use thiserror::Error;

/// Why processes do not come together.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum GroupError {
    #[error("cannot listen at {address}: {source}; give another address or port")]
    Listen { address: String, source: zmq::Error },
    #[error("cannot connect to {address}: {source}; an address is such as tcp://node1:5555")]
    Connect { address: String, source: zmq::Error },
    #[error("the connections between processes failed: {0}")]
    Socket(#[from] zmq::Error),
    #[error("the host gives no thread that checks keys: {0}")]
    Thread(#[from] std::io::Error),
    #[error(
        "{missing} of {workers} workers did not come within {} s{}",
        .limit.as_secs(), turned_away(*refused)
    )]
    Missing {
        missing: usize,
        workers: usize,
        limit: Duration,
        refused: usize,
    },
    #[error("no master answers at {address} within {} s", .limit.as_secs())]
    NoMaster { address: String, limit: Duration },
    #[error("the master at {address} turns this process away: it has another key")]
    OtherKey { address: String },
    #[error("the master at {address} turns this process away: {why}")]
    Refused { address: String, why: String },
    #[error(
        "{worker} runs nodescope {found}, and the master nodescope {expected}; start the same program on all hosts"
    )]
    Version {
        worker: String,
        found: String,
        expected: String,
    },
    #[error("{sender} sent a message that cannot be read: {why}")]
    Message { sender: String, why: String },
    #[error("{0}")]
    GivenUp(String),
}

fn turned_away(refused: usize) -> String {
    match refused {
        0 => String::new(),
        1 => "; a connection was turned away, since it had another key".into(),
        _ => format!("; {refused} connections were turned away, since they had another key"),
    }
}
