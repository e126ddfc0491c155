//! The master's port: counts its connections, and drops new ones while there are too many, and for good once all workers are there.
//!
//! libzmq reports each connection's begin and end to a monitor, a socket of its own. libzmq's I/O thread waits for ever if nobody reads the
//! monitor, so a thread reads until the context ends.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use zmq::{Context, Socket, SocketEvent};

use crate::GroupError;
use crate::socket::{self, Threads};

/// Largest number of connections that the port has at a time, beside those of the workers. A connection without the key ends at the first
/// wrong byte, or after [`socket::HANDSHAKE`].
pub const STRANGERS: usize = 128;

/// Address of the monitor within the process.
const MONITOR: &str = "connections";

/// Events that the monitor reports.
const EVENTS: [SocketEvent; 6] = [
    SocketEvent::LISTENING,
    SocketEvent::ACCEPTED,
    SocketEvent::HANDSHAKE_FAILED_NO_DETAIL,
    SocketEvent::HANDSHAKE_FAILED_AUTH,
    SocketEvent::HANDSHAKE_FAILED_PROTOCOL,
    SocketEvent::DISCONNECTED,
];

/// Counts of a port's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections that were turned away: another key, or no peer of this program.
    pub refused: usize,
    /// True if the port had as many connections as it may have.
    pub crowded: bool,
}

/// State of the port.
#[derive(Debug)]
struct Port {
    /// Second descriptor of libzmq's listening socket, so that the filter cannot reach another file.
    listening: OwnedFd,
    /// Connections that are open, and the largest number that may be.
    open: usize,
    most: usize,
    /// True if the kernel drops new connections.
    shut: bool,
    /// Connections that have ended.
    ended: usize,
    counts: Counts,
}

impl Port {
    /// Opens or shuts the port for new connections, as their number demands.
    fn adapt(&mut self) {
        let shut = self.open >= self.most;
        if shut == self.shut {
            return;
        }
        self.shut = shut;
        self.counts.crowded |= shut && self.most > 0;
        let packets = match shut {
            true => socket::Packets::Drop,
            false => socket::Packets::Pass,
        };
        if let Err(error) = socket::filter(&self.listening, packets) {
            tracing::warn!(
                "the system has no socket filters ({error}); let only the workers' hosts reach the master's port"
            );
        }
    }
}

/// Guard of the master's port.
#[derive(Clone)]
pub struct Gate(Arc<Mutex<Port>>);

impl Gate {
    /// Binds a socket to an address, and guards the port. The reader of the monitor becomes one of `threads`.
    pub fn bind(
        context: &Context,
        socket: &Socket,
        address: &str,
        threads: &mut Threads,
    ) -> Result<Gate, GroupError> {
        let monitor = socket::monitor(context, socket, MONITOR, &EVENTS)?;
        socket.bind(address).map_err(|source| GroupError::Listen {
            address: address.into(),
            source,
        })?;
        let Some((SocketEvent::LISTENING, descriptor)) = socket::next_event(&monitor)? else {
            return Err(GroupError::Socket(zmq::Error::ENOTSUP));
        };
        // SAFETY: libzmq keeps the listening socket open as long as `socket` is bound, which is longer than this function.
        let listening = unsafe { BorrowedFd::borrow_raw(descriptor as i32) };
        let port = Port {
            listening: listening.try_clone_to_owned()?,
            open: 0,
            most: STRANGERS,
            shut: false,
            ended: 0,
            counts: Counts::default(),
        };
        let gate = Gate(Arc::new(Mutex::new(port)));
        let reader = gate.clone();
        threads.start("connections", move || reader.read(&monitor))?;
        Ok(gate)
    }

    fn port(&self) -> MutexGuard<'_, Port> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the monitor until the context ends.
    fn read(&self, monitor: &Socket) {
        loop {
            let event = match socket::next_event(monitor) {
                Ok(event) => event,
                Err(zmq::Error::EINTR) => continue,
                Err(_) => return,
            };
            let mut port = self.port();
            match event {
                Some((SocketEvent::ACCEPTED, _)) => port.open += 1,
                Some((SocketEvent::DISCONNECTED, _)) => {
                    port.open = port.open.saturating_sub(1);
                    port.ended += 1;
                }
                Some(_) => port.counts.refused += 1,
                None => {}
            }
            port.adapt();
        }
    }

    /// Sets the number of workers that may connect beside strangers.
    pub fn expect(&self, workers: usize) {
        let mut port = self.port();
        port.most = STRANGERS + workers;
        port.adapt();
    }

    /// Drops all new connections from now on.
    pub fn close(&self) {
        let mut port = self.port();
        port.most = 0;
        port.adapt();
    }

    /// Returns the number of connections that have ended until now.
    pub fn ended(&self) -> usize {
        self.port().ended
    }

    /// Returns the counts of connections until now.
    pub fn counts(&self) -> Counts {
        self.port().counts
    }
}
