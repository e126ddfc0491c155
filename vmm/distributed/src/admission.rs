//! Start of a distributed run: the master listens, and workers connect to it.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::{Duration, Instant};

use zmq::{Context, Socket, SocketEvent};

use crate::GroupError;
use crate::control::{Control, Link};
use crate::gate::{Counts, Gate};
use crate::group::Group;
use crate::key::Key;
use crate::message::{Hello, Message, Welcome};
use crate::mpi::World;
use crate::socket::{self, Connection, HANDSHAKE, Threads};
use crate::transport::{Place, Transport, connect as connect_ways};

/// Time between two checks of the conditions that end the wait.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

fn own_hello(version: &str, rank: Option<usize>) -> Hello {
    Hello {
        version: version.into(),
        place: Place::own(),
        rank,
    }
}

/// Parameters of a master's wait for its workers.
pub struct Admission<'a> {
    /// Number of workers to wait for.
    pub workers: usize,
    /// Version of the master. A worker with another version ends the wait with an error.
    pub version: &'a str,
    /// Task that all workers receive.
    pub task: serde_json::Value,
    /// Longest time until all workers have connected.
    pub limit: Duration,
    /// Place of the master, which a process in the sandbox cannot find out.
    pub place: Place,
    /// Way of the messages between processes.
    pub transport: Transport,
    /// The processes that a launcher of MPI has started, for [`Transport::Mpi`].
    pub world: Option<World>,
    /// Describes the task of the process with this rank, for messages.
    pub share: &'a dyn Fn(usize) -> String,
    /// Checks between messages whether to continue the wait. An error is a sentence for the user.
    pub check: &'a mut dyn FnMut() -> Result<(), String>,
}

/// A master's socket that waits for its workers.
pub struct Listener {
    socket: Socket,
    gate: Gate,
    threads: Threads,
}

impl Listener {
    /// Listens at an address, such as `tcp://127.0.0.1:*`.
    ///
    /// # Errors
    ///
    /// An invalid address, an address in use, or a libzmq socket or thread that cannot be created.
    pub fn bind(address: &str, key: &Key) -> Result<Self, GroupError> {
        let context = Context::new();
        let mut threads = Threads::new(&context);
        socket::check_keys(&context, key, &mut threads)?;
        let socket = socket::master(&context, key)?;
        let gate = Gate::bind(&context, &socket, address, &mut threads)?;
        Ok(Self {
            socket,
            gate,
            threads,
        })
    }

    /// Returns the address that workers connect to.
    ///
    /// # Errors
    ///
    /// An error of libzmq.
    pub fn address(&self) -> Result<String, GroupError> {
        let address = self.socket.get_last_endpoint()?;
        Ok(address.unwrap_or_else(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Waits until all workers have connected, and sends each its rank and task.
    ///
    /// # Errors
    ///
    /// Missing workers after the time limit, a worker with another version, an unreadable message, or an error from `check`.
    pub fn admit(self, admission: Admission<'_>) -> Result<Group, GroupError> {
        let Admission {
            workers,
            version,
            task,
            limit,
            place,
            transport,
            world,
            share,
            check,
        } = admission;
        let begin = Instant::now();
        let mut admitted: Vec<Option<(Vec<u8>, Hello)>> = (0..workers).map(|_| None).collect();
        self.gate.expect(workers);
        while admitted.iter().any(Option::is_none) {
            let missing = admitted.iter().filter(|of| of.is_none()).count();
            check().map_err(GroupError::GivenUp)?;
            if begin.elapsed() > limit {
                let Counts { refused, crowded } = self.gate.counts();
                return Err(GroupError::Missing {
                    missing,
                    workers,
                    limit,
                    refused,
                    crowded,
                });
            }
            let Some(parts) = socket::receive(&self.socket, POLL_INTERVAL)? else {
                continue;
            };
            let Some((identity, frames)) = parts.split_first() else {
                continue;
            };
            if admitted.iter().flatten().any(|(of, _)| of == identity) {
                continue;
            }
            let message = &frames.concat();
            let unreadable = |why: String| GroupError::Message {
                sender: "a worker".into(),
                why,
            };
            let hello = match Message::decode(message).map_err(unreadable)? {
                Message::Hello(content) => content,
                _ => continue,
            };
            let hello: Hello =
                serde_json::from_slice(hello).map_err(|error| unreadable(error.to_string()))?;
            if hello.version != version {
                let error = GroupError::Version {
                    worker: format!("the worker on {}", hello.place.name()),
                    found: hello.version,
                    expected: version.into(),
                };
                let text = error.to_string();
                let answer = Message::Refused(&text).encode();
                socket::send(&self.socket, Some(identity), &answer, 0)?;
                return Err(error);
            }
            let index = match hello.rank {
                Some(rank) => rank.wrapping_sub(1),
                None => admitted.iter().position(Option::is_none).unwrap_or(0),
            };
            tracing::debug!("worker {} is there: {}", index + 1, hello.place.name());
            match admitted.get_mut(index) {
                Some(free @ None) => *free = Some((identity.clone(), hello)),
                _ => return Err(unreadable(format!("its rank {} is not free", index + 1))),
            }
        }
        self.gate.close();
        let (identities, hellos): (Vec<_>, Vec<_>) = admitted.into_iter().flatten().unzip();
        let names: Vec<String> = std::iter::once(format!("the master ({})", place.name()))
            .chain((1..).zip(&hellos).map(|(rank, hello)| {
                format!("worker {rank} ({}, {})", hello.place.name(), share(rank))
            }))
            .collect();
        let places: Vec<Place> = std::iter::once(place)
            .chain(hellos.into_iter().map(|hello| hello.place))
            .collect();
        // The hash of nothing under a random key is a random number.
        let token = RandomState::new().hash_one(());
        for (index, identity) in identities.iter().enumerate() {
            let welcome = Welcome {
                rank: index + 1,
                names: names.clone(),
                places: places.clone(),
                token,
                transport,
                task: task.clone(),
            };
            let welcome = serde_json::to_vec(&welcome).expect("plain values have a form in JSON");
            let message = Message::Welcome(&welcome).encode();
            let sent = socket::send(&self.socket, Some(identity), &message, 0);
            sent.map_err(|_| GroupError::GivenUp(format!("{} died", names[index + 1])))?;
        }
        let link = Link::Master(self.socket, identities);
        let control = Control::new(0, names.clone(), link, Some((self.gate, self.threads)));
        let mut group = Group::new(0, names, control);
        connect_ways(&mut group, &places, token, transport)?;
        if let Some(world) = world {
            group.use_mpi(world);
        }
        Ok(group)
    }
}

/// Connects to a master. Returns the group and the task once all workers have connected. `limit` is the longest time until the master
/// answers.
///
/// # Errors
///
/// A master that does not answer, refuses this process, or ends before all workers have connected.
pub fn join(
    address: &str,
    key: &Key,
    version: &str,
    limit: Duration,
) -> Result<(Group, serde_json::Value), GroupError> {
    let master = reach(&[address.into()], key, limit)?;
    enter(address, master, version, None)
}

/// Connects to the master at one of its addresses, as a process that a launcher of MPI has started. Otherwise as [`join`].
///
/// # Errors
///
/// As for [`join`], or an error of MPI.
pub fn join_world(
    addresses: &[String],
    key: &Key,
    version: &str,
    limit: Duration,
    world: World,
) -> Result<(Group, serde_json::Value), GroupError> {
    let master = reach(addresses, key, limit)?;
    enter(&addresses.join(" or "), master, version, Some(world))
}

/// Connects to the first of a master's addresses that answers.
fn reach(addresses: &[String], key: &Key, limit: Duration) -> Result<Connection, GroupError> {
    let begin = Instant::now();
    let all = || addresses.join(" or ");
    // The master may not listen yet, so connecting is tried again.
    let mut broken = 0;
    for address in addresses.iter().cycle() {
        let left = limit.saturating_sub(begin.elapsed());
        match connect(address, key, left)? {
            Attempt::Connected(master) => return Ok(master),
            Attempt::TurnedAway => return Err(GroupError::OtherKey { address: all() }),
            // A connection may also break because the master is starting or ending.
            Attempt::Broken if broken == TURNED_AWAY => {
                return Err(GroupError::OtherKey { address: all() });
            }
            Attempt::Broken => broken += 1,
            Attempt::Nobody if begin.elapsed() > limit => break,
            Attempt::Nobody => {}
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    let address = all();
    Err(GroupError::NoMaster { address, limit })
}

/// Introduces this process to the master, and waits until all workers are there.
fn enter(
    address: &str,
    master: Connection,
    version: &str,
    world: Option<World>,
) -> Result<(Group, serde_json::Value), GroupError> {
    let hello = own_hello(version, world.as_ref().map(World::rank));
    let hello = serde_json::to_vec(&hello).expect("plain values have a form in JSON");
    let gone = || GroupError::GivenUp(format!("the master at {address} died"));
    let sent = master.send(&Message::Hello(&hello).encode());
    sent.map_err(|_| gone())?;
    loop {
        // Other workers may connect much later. The master limits the time.
        let Some(message) = master.receive(POLL_INTERVAL).map_err(|_| gone())? else {
            continue;
        };
        let unreadable = |why: String| GroupError::Message {
            sender: "the master".into(),
            why,
        };
        match Message::decode(&message).map_err(unreadable)? {
            Message::Welcome(content) => {
                let welcome: Welcome = serde_json::from_slice(content)
                    .map_err(|error| unreadable(error.to_string()))?;
                let Welcome {
                    rank,
                    names,
                    places,
                    token,
                    transport,
                    task,
                } = welcome;
                if rank >= names.len() || places.len() != names.len() {
                    return Err(unreadable(format!("there is no process {rank}")));
                }
                let control = Control::new(rank, names.clone(), Link::Worker(master), None);
                let mut group = Group::new(rank, names, control);
                connect_ways(&mut group, &places, token, transport)?;
                if let Some(world) = world {
                    group.use_mpi(world);
                }
                return Ok((group, task));
            }
            Message::Refused(why) => {
                return Err(GroupError::Refused {
                    address: address.into(),
                    why: why.into(),
                });
            }
            _ => {}
        }
    }
}

/// Number of broken connections that are tried again. After one more, the master is taken to have another key.
const TURNED_AWAY: u32 = 3;

/// Outcome of an attempt to connect.
enum Attempt {
    Connected(Connection),
    /// The master refused the key.
    TurnedAway,
    /// The connection broke during the handshake, without a reason from the master.
    Broken,
    /// No master answers at the address.
    Nobody,
}

/// Makes one attempt to connect to a master, within `limit`. The master's host drops attempts while too many strangers are connected, so
/// that a new attempt is better than a long one.
fn connect(address: &str, key: &Key, limit: Duration) -> Result<Attempt, GroupError> {
    // A context of its own ends with the attempt. libzmq would wait for a reader of the monitor as long as the context lasts.
    let context = Context::new();
    let socket = socket::worker(&context, key)?;
    let events = [
        SocketEvent::CLOSED,
        SocketEvent::DISCONNECTED,
        SocketEvent::HANDSHAKE_SUCCEEDED,
        SocketEvent::HANDSHAKE_FAILED_NO_DETAIL,
        SocketEvent::HANDSHAKE_FAILED_AUTH,
        SocketEvent::HANDSHAKE_FAILED_PROTOCOL,
    ];
    let monitor = socket::monitor(&context, &socket, "connection", &events)?;
    let connected = socket.connect(address);
    connected.map_err(|source| GroupError::Connect {
        address: address.into(),
        source,
    })?;
    match socket::event(&monitor, limit.min(HANDSHAKE))? {
        Some(SocketEvent::HANDSHAKE_SUCCEEDED) => {
            Ok(Attempt::Connected(Connection { socket, monitor }))
        }
        Some(SocketEvent::HANDSHAKE_FAILED_AUTH) => Ok(Attempt::TurnedAway),
        None | Some(SocketEvent::CLOSED) => Ok(Attempt::Nobody),
        Some(_) => Ok(Attempt::Broken),
    }
}
