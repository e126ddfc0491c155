//! Target for peers without the key: strangers that connect to the master of a distributed run, and a false master that a worker finds.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use nodescope_cluster::Peers;
use nodescope_distributed::{Admission, Group, GroupError, Key, Listener, Place, Transport, join};
use serde_json::json;
use socket2::SockRef;

use super::Target;
use crate::choices::Choices;
use crate::text;

/// Target that lets strangers speak ZMTP (ZeroMQ RFC 23), or what looks like it, with the processes of a run.
pub const ZMTP: Target = Target {
    name: "zmtp",
    what: "peers without the key, before, while and after the workers connect, and false masters: damaged ZMTP, floods, half-open connections",
    seeds,
    mutate,
    run,
    foreign: false,
};

/// Time after which a case hangs. A guard, which no case comes near.
const GUARD: Duration = Duration::from_secs(120);
/// Longest time for a connection to a port that may drop it.
const PATIENCE: Duration = Duration::from_millis(30);
/// Largest numbers of connections and of steps of a case.
const MOST_OPEN: usize = 300;
const MOST_STEPS: usize = 200;
/// Memory that strangers may take of the process, bytes. 128 connections may have begun a frame of 64 KiB each.
const MEMORY: u64 = 64 << 20;

/// A step of a script. In an input it is the kind, the length of its bytes in two bytes, and the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Opens a connection, and speaks on this connection from then on.
    Open,
    /// Sends the bytes.
    Send,
    /// Waits as many milliseconds as the first byte says, at most 15.
    Pause,
    /// Closes the connection, resets it, ends its sending half, or reads from it.
    Close,
    Reset,
    End,
    Read,
    /// Speaks on the connection of this number from then on.
    Turn,
    /// Opens as many connections as the first byte says, and sends the other bytes on each.
    Flood,
    /// The workers connect, and the run begins.
    Admit,
    /// The processes exchange messages.
    Gather,
}

const KINDS: [Kind; 11] = [
    Kind::Open,
    Kind::Send,
    Kind::Pause,
    Kind::Close,
    Kind::Reset,
    Kind::End,
    Kind::Read,
    Kind::Turn,
    Kind::Flood,
    Kind::Admit,
    Kind::Gather,
];

/// Script under construction. The first byte of an input is odd for a false master, and the second one is odd if the worker dies at last.
struct Script(Vec<u8>);

impl Script {
    fn new(false_master: bool, dies: bool) -> Script {
        Script(vec![false_master.into(), dies.into()])
    }

    fn step(mut self, kind: Kind, bytes: &[u8]) -> Script {
        let bytes = &bytes[..bytes.len().min(usize::from(u16::MAX))];
        let number = KINDS.iter().position(|other| *other == kind);
        self.0.push(number.unwrap_or_default() as u8);
        self.0.extend((bytes.len() as u16).to_le_bytes());
        self.0.extend(bytes);
        self
    }
}

/// Returns the steps of an input. Every input has some.
fn steps(mut input: &[u8]) -> Vec<(Kind, &[u8])> {
    let mut steps = Vec::new();
    while let [kind, low, high, rest @ ..] = input {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
        let (bytes, after) = rest.split_at(length);
        steps.push((KINDS[usize::from(*kind) % KINDS.len()], bytes));
        if steps.len() == MOST_STEPS {
            break;
        }
        input = after;
    }
    steps
}

/// Returns a greeting: signature, version, mechanism, role and filler.
fn greeting(version: [u8; 2], mechanism: &[u8], server: bool) -> Vec<u8> {
    let mut bytes = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f];
    bytes.extend(version);
    bytes.extend(&mechanism[..mechanism.len().min(20)]);
    bytes.resize(32, 0);
    bytes.push(server.into());
    bytes.resize(64, 0);
    bytes
}

/// Returns a frame with flags (1: more, 2: long, 4: command) and a length that need not be the content's.
fn frame(flags: u8, length: u64, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![flags];
    match flags & 2 {
        0 => bytes.push(length as u8),
        _ => bytes.extend(length.to_be_bytes()),
    }
    bytes.extend(content);
    bytes
}

/// Returns a command's content: the name with its length, and the body.
fn command(name: &[u8], body: &[u8]) -> Vec<u8> {
    [&[name.len() as u8], name, body].concat()
}

/// Returns HELLO of CURVE (ZeroMQ RFC 26) with a box that no key has made.
fn hello(fill: u8) -> Vec<u8> {
    let mut body = vec![1, 0];
    body.resize(2 + 72, 0);
    body.resize(2 + 72 + 32 + 8 + 80, fill);
    command(b"HELLO", &body)
}

fn seeds() -> Vec<Vec<u8>> {
    let null = greeting([3, 0], b"NULL", false);
    let curve = greeting([3, 1], b"CURVE", false);
    let ready = frame(4, 6, &command(b"READY", b""));
    let told = hello(7);
    let hello = frame(4, told.len() as u64, &told);
    let one = |first: &[u8], second: &[u8]| {
        Script::new(false, true)
            .step(Kind::Open, b"")
            .step(Kind::Send, first)
            .step(Kind::Admit, b"")
            .step(Kind::Send, second)
            .step(Kind::Gather, b"")
            .step(Kind::Open, b"")
            .step(Kind::Send, second)
            .step(Kind::Gather, b"")
            .0
    };
    let flood = Script::new(false, false)
        .step(Kind::Flood, &[&[200], &curve[..11]].concat())
        .step(Kind::Admit, b"")
        .step(Kind::Gather, b"")
        .0;
    let false_master = Script::new(true, false)
        .step(Kind::Send, &greeting([3, 1], b"CURVE", true))
        .step(Kind::Send, &frame(4, 168, &command(b"WELCOME", &[7; 160])))
        .0;
    vec![
        one(&null, &ready),
        one(&curve, &hello),
        one(&curve[..20], &[&curve[20..], &hello[..]].concat()),
        one(&curve, &frame(6, 1 << 40, &[7; 30_000])),
        flood,
        false_master,
    ]
}

/// Returns what a peer sends: greeting and commands, each field of which may be any other, and then perhaps damaged bytes.
fn conversation(choices: &mut Choices<'_>) -> Vec<u8> {
    const MECHANISMS: [&[u8]; 6] = [b"CURVE", b"NULL", b"PLAIN", b"GSSAPI", b"", b"CURVE\0X"];
    const NAMES: [&[u8]; 9] = [
        b"HELLO",
        b"WELCOME",
        b"INITIATE",
        b"READY",
        b"ERROR",
        b"MESSAGE",
        b"PING",
        b"SUBSCRIBE",
        b"",
    ];
    let mechanism = choices.of(&MECHANISMS).copied().unwrap_or_default();
    let version = match choices.once_in(4) {
        true => [choices.byte(), choices.byte()],
        false => [3, choices.below(2) as u8],
    };
    let mut bytes = greeting(version, mechanism, choices.once_in(4));
    for _ in 0..choices.below(4) {
        let name = choices.of(&NAMES).copied().unwrap_or_default();
        let content = match choices.below(3) {
            0 => hello(choices.byte()),
            _ => {
                let length = choices.below(600);
                command(name, &vec![choices.byte(); length])
            }
        };
        let length = match choices.once_in(3) {
            true => choices.number(content.len() as u64),
            false => content.len() as u64,
        };
        let flags = match choices.once_in(3) {
            true => choices.byte(),
            false if content.len() > 255 => 6,
            false => 4,
        };
        bytes.extend(frame(flags, length, &content));
    }
    if choices.once_in(2) {
        text::mutate(&mut bytes, &["CURVE", "HELLO", "READY"], choices);
        bytes.truncate(60_000);
    }
    bytes
}

fn mutate(choices: &mut Choices<'_>) -> Vec<u8> {
    if choices.once_in(5) {
        // Changes the script itself, byte by byte.
        return super::mutated(&seeds(), &[], choices);
    }
    let false_master = choices.once_in(6);
    let mut script = Script::new(false_master, choices.once_in(4));
    let admitted = choices.below(6);
    for peer in 0..1 + choices.below(5) {
        if peer == admitted {
            script = script.step(Kind::Admit, b"");
        }
        let bytes = conversation(choices);
        if choices.once_in(4) {
            let most = choices.below(200);
            let count = [most as u8];
            script = script.step(Kind::Flood, &[&count[..], &bytes].concat());
            continue;
        }
        script = script.step(Kind::Open, b"");
        // Sends the bytes in pieces, with other steps between them.
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let most = if choices.once_in(2) { rest.len() } else { 40 };
            let (piece, after) = rest.split_at(rest.len().min(1 + choices.below(most)));
            script = script.step(Kind::Send, piece);
            rest = after;
            let kind = match choices.below(12) {
                0 | 1 => Kind::Pause,
                2 => Kind::Read,
                3 => Kind::Turn,
                4 => Kind::Gather,
                5 => Kind::Admit,
                _ => continue,
            };
            script = script.step(kind, &[choices.byte()]);
        }
        let last = [Kind::Close, Kind::Reset, Kind::End, Kind::Read, Kind::Pause];
        script = script.step(*choices.of(&last).unwrap_or(&Kind::Close), &[3]);
    }
    script.0
}

fn run(input: &[u8], _: &Path) {
    let input = input.to_vec();
    let (sender, done) = channel();
    let thread = spawn(move || {
        match input.split_at_checked(2) {
            Some((&[role, _], script)) if role % 2 == 1 => false_master(&steps(script)),
            Some((&[_, dies], script)) => strangers(&steps(script), dies % 2 == 1),
            _ => {}
        }
        let _ = sender.send(());
    });
    match done.recv_timeout(GUARD) {
        Err(RecvTimeoutError::Timeout) => panic!("a distributed run hangs"),
        _ => thread.join().expect("the peers of a case"),
    }
}

/// Returns the memory of this process that is in use, in bytes (proc(5), statm).
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    pages.unwrap_or(0_u64) * 4096
}

/// Exchanges messages so many times.
fn gather(group: &Group, rounds: usize) {
    for _ in 0..rounds {
        let own = |rank: usize| vec![rank as u8; 1000];
        let all = group
            .all_gather(&own(group.rank()))
            .expect("no process died");
        let expected: Vec<_> = (0..group.count()).map(own).collect();
        assert!(all == expected, "the processes have the messages of all");
    }
}

/// A run of a master and a worker.
enum Processes {
    Waiting(Listener, Key),
    Running(Box<Group>, JoinHandle<()>),
}

/// Number of exchanges of a gather step, and the largest number of such steps.
const ROUNDS: usize = 3;
const MOST_GATHERS: usize = 10;

fn admit(listener: Listener, address: &str, key: &Key, rounds: usize) -> Processes {
    let (key, address) = (key.clone(), address.to_owned());
    let worker = spawn(move || {
        let (group, _) = join(&address, &key, "1", GUARD).expect("the master lets the worker in");
        gather(&group, rounds);
    });
    let admission = Admission {
        workers: 1,
        version: "1",
        task: json!(null),
        limit: GUARD,
        place: Place::own(),
        transport: Transport::Sockets,
        world: None,
        share: &|rank| rank.to_string(),
        check: &mut || Ok(()),
    };
    let group = listener.admit(admission).expect("the worker comes");
    Processes::Running(Box::new(group), worker)
}

/// Plays a script as strangers that connect to a master.
fn strangers(steps: &[(Kind, &[u8])], dies: bool) {
    let key = Key::new().expect("a key");
    let listener = Listener::bind("tcp://127.0.0.1:*", &key).expect("a port");
    let address = listener.address().expect("an address");
    let port: SocketAddr = address["tcp://".len()..].parse().expect("an address");
    let before = resident();
    let gathers = steps.iter().filter(|(kind, _)| *kind == Kind::Gather);
    // The last gather comes after the script.
    let gathers = gathers.count().min(MOST_GATHERS) + 1;
    let mut left = gathers;
    let mut processes = Processes::Waiting(listener, key);
    let mut peers: Vec<TcpStream> = Vec::new();
    let (mut at, mut refused) = (0, 0);
    let mut open = |peers: &mut Vec<TcpStream>| {
        // Once the workers are there, nobody gets in, and trying takes time.
        if peers.len() < MOST_OPEN && refused < 3 {
            match TcpStream::connect_timeout(&port, PATIENCE) {
                Ok(peer) => {
                    let _ = peer.set_read_timeout(Some(PATIENCE));
                    let _ = peer.set_write_timeout(Some(PATIENCE));
                    peers.push(peer);
                }
                Err(_) => refused += 1,
            }
        }
        peers.len().saturating_sub(1)
    };
    for &(kind, bytes) in steps {
        let number = bytes.first().copied().unwrap_or(0);
        processes = match (kind, processes) {
            (Kind::Admit, Processes::Waiting(listener, key)) => {
                admit(listener, &address, &key, gathers * ROUNDS)
            }
            (Kind::Gather, Processes::Running(group, worker)) => {
                if left > 1 {
                    gather(&group, ROUNDS);
                    left -= 1;
                }
                Processes::Running(group, worker)
            }
            (_, processes) => processes,
        };
        match kind {
            Kind::Open => at = open(&mut peers),
            Kind::Flood => {
                for _ in 0..number {
                    at = open(&mut peers);
                    if let Some(peer) = peers.get_mut(at) {
                        let _ = peer.write_all(&bytes[1..]);
                    }
                }
            }
            Kind::Turn => at = usize::from(number) % peers.len().max(1),
            Kind::Reset | Kind::Close if at < peers.len() => {
                let peer = peers.swap_remove(at);
                if kind == Kind::Reset {
                    // A connection that is closed with data on the way is reset.
                    let _ = SockRef::from(&peer).set_linger(Some(Duration::ZERO));
                }
            }
            _ => {}
        }
        if let Some(peer) = peers.get_mut(at) {
            speak(peer, kind, bytes);
        }
    }
    let taken = resident().saturating_sub(before);
    assert!(taken < MEMORY, "strangers take {taken} bytes of memory");
    let (group, worker) = match processes {
        Processes::Running(group, worker) => (group, worker),
        Processes::Waiting(listener, key) => {
            // Where the strangers hold all connections, the worker comes after them.
            if peers.len() > 100 {
                peers.clear();
            }
            match admit(listener, &address, &key, gathers * ROUNDS) {
                Processes::Running(group, worker) => (group, worker),
                Processes::Waiting(..) => unreachable!("admit returns a run"),
            }
        }
    };
    gather(&group, left * ROUNDS);
    if dies {
        let lost = group.all_gather(b"one more");
        assert!(lost.is_err(), "a worker that is gone is not missed");
    }
    worker.join().expect("the worker ends well");
}

/// Carries out a step that concerns one connection. Errors are the peer's concern alone.
fn speak(peer: &mut TcpStream, kind: Kind, bytes: &[u8]) {
    let _ = match kind {
        Kind::Send => peer.write_all(bytes),
        Kind::End => peer.shutdown(Shutdown::Write),
        Kind::Read => peer.read(&mut [0; 1000]).map(drop),
        Kind::Pause => {
            let time = u64::from(bytes.first().copied().unwrap_or(0) % 16);
            std::thread::sleep(Duration::from_millis(time));
            Ok(())
        }
        _ => Ok(()),
    };
}

/// Plays a script as a master without the key, for each connection of a worker, which must give up within its time.
fn false_master(steps: &[(Kind, &[u8])]) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address");
    let (sender, ended) = channel();
    let worker = spawn(move || {
        let key = Key::new().expect("a key");
        let joined = join(
            &format!("tcp://{port}"),
            &key,
            "1",
            Duration::from_millis(300),
        );
        let error = joined.err().expect("a false master is no master");
        assert!(
            matches!(
                error,
                GroupError::NoMaster { .. } | GroupError::OtherKey { .. }
            ),
            "{error}"
        );
        let _ = sender.send(());
        // Ends the wait for a connection.
        drop(TcpStream::connect(port));
    });
    while let Ok((mut peer, _)) = listener.accept() {
        if ended.try_recv().is_ok() || worker.is_finished() {
            break;
        }
        let _ = peer.set_read_timeout(Some(PATIENCE));
        let _ = peer.set_write_timeout(Some(PATIENCE));
        for &(kind, bytes) in steps {
            speak(&mut peer, kind, bytes);
        }
    }
    worker.join().expect("the worker ends well");
}
