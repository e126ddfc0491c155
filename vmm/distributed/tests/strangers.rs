//! Strangers: peers without the key that connect to a run's processes. None hangs, ends or exhausts a run, whenever it comes.
//! `tests/fuzz` makes further ones (target `zmtp`).

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use nodescope_cluster::Peers;
use nodescope_distributed::{Admission, Group, GroupError, Key, Listener, Place, Transport, join};
use serde_json::json;

const LIMIT: Duration = Duration::from_secs(60);

fn admit(listener: Listener, workers: usize) -> Group {
    let admission = Admission {
        workers,
        version: "1",
        task: json!("task"),
        limit: LIMIT,
        place: Place::own(),
        transport: Transport::Sockets,
        world: None,
        share: &|rank| format!("share {rank}"),
        check: &mut || Ok(()),
    };
    listener.admit(admission).unwrap()
}

fn listen(key: &Key) -> (Listener, String) {
    let listener = Listener::bind("tcp://127.0.0.1:*", key).unwrap();
    let address = listener.address().unwrap();
    (listener, address)
}

/// Starts `count` worker threads, each of which joins the group and runs `work`.
fn start_workers(key: &Key, address: &str, count: usize, work: fn(Group)) -> Vec<JoinHandle<()>> {
    let worker = |_| {
        let (key, address) = (key.clone(), address.to_owned());
        spawn(move || work(join(&address, &key, "1", LIMIT).unwrap().0))
    };
    (0..count).map(worker).collect()
}

fn gather(group: &Group) {
    for round in 0..100_u8 {
        let own = |rank: usize| vec![rank as u8 + round; 100];
        let all = group.all_gather(&own(group.rank())).unwrap();
        assert_eq!(all, (0..group.count()).map(own).collect::<Vec<_>>());
    }
}

/// Returns a greeting of ZMTP 3.0 (ZeroMQ RFC 23): signature, version, mechanism, role, filler.
fn greeting(mechanism: &[u8], server: bool) -> Vec<u8> {
    let mut bytes = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0];
    bytes.extend(mechanism);
    bytes.resize(32, 0);
    bytes.push(server.into());
    bytes.resize(64, 0);
    bytes
}

/// Returns what strangers without the key send, each in two parts.
fn strangers() -> Vec<(Vec<u8>, Vec<u8>)> {
    let null = greeting(b"NULL", false);
    let curve = greeting(b"CURVE", false);
    let mut hello = vec![0x04, 200];
    hello.extend(b"\x05HELLO\x01\0");
    hello.resize(202, 7);
    let mut long = curve.clone();
    long.extend([0x06, 0, 0, 0, 1, 0, 0, 0, 0]);
    let parts = |bytes: &[u8], at: usize| (bytes[..at].to_vec(), bytes[at..].to_vec());
    vec![
        (Vec::new(), Vec::new()),
        (Vec::new(), b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        (null.clone(), b"\x04\x05\x05READY".to_vec()),
        parts(&null, 11),
        (curve.clone(), hello),
        (curve.clone(), b"\x04\x06\x05HELLO".to_vec()),
        (curve.clone(), Vec::new()),
        (curve, vec![0xff; 10_000]),
        parts(&long, 70),
        (greeting(b"CURVE", true), b"\x04\x05\x05READY".to_vec()),
        // A peer of ZMTP 1.0: an anonymous identity, and a message.
        (vec![0x01, 0x00], vec![0x05, 0, 1, 2, 3, 4]),
    ]
}

fn tcp(address: &str) -> SocketAddr {
    address.strip_prefix("tcp://").unwrap().parse().unwrap()
}

/// Opens a connection; `None` if the port lets nobody in for now.
fn open(address: SocketAddr) -> Option<TcpStream> {
    TcpStream::connect_timeout(&address, Duration::from_millis(300)).ok()
}

/// Runs a test in a thread, and panics if it does not end: a guard against hangs.
fn guarded(test: impl FnOnce() + Send + 'static) {
    let (sender, done) = channel();
    let thread = spawn(move || {
        test();
        let _ = sender.send(());
    });
    match done.recv_timeout(Duration::from_secs(120)) {
        Err(RecvTimeoutError::Timeout) => panic!("the group hangs"),
        _ => thread.join().unwrap(),
    }
}

#[test]
fn strangers_hang_no_group_whenever_they_come() {
    guarded(|| {
        let key = Key::new().unwrap();
        let (listener, address) = listen(&key);
        let port = tcp(&address);
        let mut open: Vec<_> = strangers()
            .into_iter()
            .map(|(first, second)| {
                let mut stranger = TcpStream::connect(port).unwrap();
                stranger.write_all(&first).unwrap();
                (stranger, second)
            })
            .collect();
        // Ten of each before the workers, so that the monitor has much to say.
        for (first, second) in std::iter::repeat_n(strangers(), 10).flatten() {
            let mut stranger = TcpStream::connect(port).unwrap();
            let _ = stranger.write_all(&first);
            let _ = stranger.write_all(&second);
        }
        let workers = start_workers(&key, &address, 2, |group| {
            gather(&group);
            gather(&group);
        });
        let group = admit(listener, 2);
        for (stranger, second) in &mut open {
            // The master may have closed the connection.
            let _ = stranger.write_all(second);
        }
        gather(&group);
        drop(open);
        gather(&group);
        (workers.into_iter()).for_each(|worker| worker.join().unwrap());
    });
}

#[test]
fn nobody_else_connects_once_all_workers_are_there() {
    guarded(|| {
        let key = Key::new().unwrap();
        let (listener, address) = listen(&key);
        let workers = start_workers(&key, &address, 1, |group| {
            group.all_gather(b"").unwrap();
            let error = group.all_gather(b"").unwrap_err().to_string();
            assert!(error.ends_with("died"), "{error}");
        });
        let group = admit(listener, 1);
        for _ in 0..3 {
            assert!(open(tcp(&address)).is_none());
        }
        group.all_gather(b"").unwrap();
        // The port is free again once the group ends.
        drop(group);
        let again = Listener::bind(&address, &key).unwrap();
        assert!(open(tcp(&address)).is_some());
        drop(again);
        (workers.into_iter()).for_each(|worker| worker.join().unwrap());
    });
}

#[test]
fn a_crowd_of_strangers_is_bounded_and_a_worker_comes_after_it() {
    guarded(|| {
        let key = Key::new().unwrap();
        let (listener, address) = listen(&key);
        let mut crowd = Vec::new();
        while let Some(stranger) = open(tcp(&address)) {
            crowd.push(stranger);
            // 128 strangers, about as many that wait at the kernel, and those that come before the port is shut.
            assert!(crowd.len() < 400, "the port lets everybody in");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(crowd.len() > 100, "{}", crowd.len());
        drop(crowd);
        let workers = start_workers(&key, &address, 1, |group| gather(&group));
        gather(&admit(listener, 1));
        (workers.into_iter()).for_each(|worker| worker.join().unwrap());
    });
}

#[test]
fn a_stranger_cannot_fill_the_memory_with_a_frame() {
    let key = Key::new().unwrap();
    let (listener, address) = listen(&key);
    let mut stranger = TcpStream::connect(tcp(&address)).unwrap();
    stranger.write_all(&greeting(b"CURVE", false)).unwrap();
    // The header of a command of 1 GiB, and a part of it.
    let header = [&[0x06][..], &(1_u64 << 30).to_be_bytes()].concat();
    stranger.write_all(&header).unwrap();
    let sent = (0..64).try_for_each(|_| stranger.write_all(&[7; 1 << 20]));
    let error = sent.expect_err("the master takes 64 MiB of a command");
    assert!(
        matches!(
            error.kind(),
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
        ),
        "{error}"
    );
    drop(listener);
}

/// A listener in place of the master sends rubbish. The worker gives up within its own time.
#[test]
fn a_worker_outlives_a_false_master() {
    guarded(|| {
        let key = Key::new().unwrap();
        for reply in [
            Vec::new(),
            b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
            greeting(b"NULL", false),
            greeting(b"CURVE", true),
            [greeting(b"CURVE", true), b"\x04\x05\x05ERROR".to_vec()].concat(),
            vec![0xff; 100_000],
        ] {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let address = format!("tcp://{}", listener.local_addr().unwrap());
            let close = reply.len() % 2 == 0;
            let server = spawn(move || {
                let mut held = Vec::new();
                for _ in 0..20 {
                    let Ok((mut peer, _)) = listener.accept() else {
                        return;
                    };
                    let mut some = [0; 10];
                    // The last connection is the test's, which closes at once.
                    if matches!(peer.read(&mut some), Ok(0)) {
                        return;
                    }
                    let _ = peer.write_all(&reply);
                    if !close {
                        held.push(peer);
                    }
                }
            });
            let limit = Duration::from_millis(700);
            let error = join(&address, &key, "1", limit).err().unwrap();
            assert!(
                matches!(
                    error,
                    GroupError::NoMaster { .. } | GroupError::OtherKey { .. }
                ),
                "{error}"
            );
            drop(TcpStream::connect(tcp(&address)));
            server.join().unwrap();
        }
    });
}
