//! Processes of a run on one or several hosts: connection, keys and exchange of messages.
//!
//! One process, the master, listens. The others, the workers, connect to it. Messages go through ZeroMQ (libzmq), encrypted by its CURVE
//! mechanism with a [`Key`] that all processes have. The master creates its [`Group`] with [`Listener`], and a worker with [`join`]. A
//! group exchanges messages between all processes ([`Peers`](nodescope_cluster::Peers)), and names a worker that has died.
//!
//! `README.md` describes shared files, ports, and failures for users.

mod admission;
mod control;
mod exchange_clock;
mod gate;
mod group;
mod key;
mod message;
pub mod mpi;
mod ring;
mod socket;
#[cfg(test)]
mod tests;
mod transport;
mod wait;

pub use admission::{Admission, Listener, join, join_world};
pub use exchange_clock::ExchangeTimes;
pub use group::Group;
pub use key::{KEY_VARIABLE, Key, KeyError};
pub use transport::{Place, Transport};

use std::time::Duration;

use thiserror::Error;

/// Reason why a group of processes cannot form.
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
        .limit.as_secs(), turned_away(*refused, *crowded)
    )]
    Missing {
        missing: usize,
        workers: usize,
        limit: Duration,
        refused: usize,
        crowded: bool,
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
    #[error(
        "the processes share no memory, since they do not all run on one host or may not look into each other; leave --transport out"
    )]
    NoMemory,
    #[error("{0}")]
    Mpi(#[from] mpi::MpiError),
    #[error("{0}")]
    GivenUp(String),
}

fn turned_away(refused: usize, crowded: bool) -> String {
    let mut text = match refused {
        0 => String::new(),
        1 => "; a connection was turned away, since it had another key or none".into(),
        _ => {
            format!("; {refused} connections were turned away, since they had another key or none")
        }
    };
    if crowded {
        text += "; strangers held as many connections as there may be, so let only the workers' hosts reach this port";
    }
    text
}
