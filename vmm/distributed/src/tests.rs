//! Tests of groups whose processes are threads.

use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

use nodescope_cluster::{PeerError, Peers};
use serde_json::json;

use crate::{Admission, Group, GroupError, Key, Listener, Place, Transport, join};

const LIMIT: Duration = Duration::from_secs(20);

fn admit(listener: Listener, workers: usize, limit: Duration) -> Result<Group, GroupError> {
    admit_by(listener, workers, limit, Transport::Auto)
}

fn admit_by(
    listener: Listener,
    workers: usize,
    limit: Duration,
    transport: Transport,
) -> Result<Group, GroupError> {
    listener.admit(Admission {
        workers,
        version: "1",
        task: json!("task"),
        limit,
        place: Place::own(),
        transport,
        world: None,
        share: &|rank| format!("share {rank}"),
        check: &mut || Ok(()),
    })
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
        spawn(move || {
            let (group, task) = join(&address, &key, "1", LIMIT).unwrap();
            assert_eq!(task, json!("task"));
            work(group);
        })
    };
    (0..count).map(worker).collect()
}

/// Gathers messages of different lengths for 200 rounds, and checks them.
fn gather(group: &Group) {
    for round in 0..200_usize {
        // Some messages have several frames.
        let long = if round == 100 { 300_000 } else { 0 };
        let own = |rank: usize| vec![rank as u8; long + round * 37 % 5000 * (rank + 1)];
        let all = group.all_gather(&own(group.rank())).unwrap();
        assert_eq!(all, (0..group.count()).map(own).collect::<Vec<_>>());
    }
}

#[test]
fn each_process_gets_the_messages_of_all() {
    let key = Key::new().unwrap();
    for (count, transport) in [
        (1, Transport::Memory),
        (2, Transport::Sockets),
        (3, Transport::Memory),
        (3, Transport::Auto),
    ] {
        let (listener, address) = listen(&key);
        let workers = start_workers(&key, &address, count, |group| gather(&group));
        let group = admit_by(listener, count, LIMIT, transport).unwrap();
        assert!(group.names()[count].contains(&format!("share {count}")));
        let way = match transport {
            Transport::Sockets => "sockets",
            _ => "memory",
        };
        assert_eq!(group.way(1), way);
        gather(&group);
        let times = group.times();
        assert!(times.exchanges >= 200 && times.quiet == 0, "{times:?}");
        assert!(times.exchanging > 0.0 && times.waiting >= 0.0, "{times:?}");
        workers
            .into_iter()
            .for_each(|worker| worker.join().unwrap());
    }
}

/// Checks messages for each process, from some of the processes. The others run behind, and must not be waited for.
#[test]
fn only_senders_are_waited_for() {
    fn rounds(group: &Group) {
        let (rank, count) = (group.rank(), group.count());
        for round in 0..300 {
            let senders: Vec<bool> = (0..count).map(|of| (round + of) % 3 == 0).collect();
            let message = |from: usize, to: usize| vec![(from * 16 + to) as u8; round * from * 9];
            let own: Vec<Vec<u8>> = (0..count).map(|to| message(rank, to)).collect();
            let all = group.exchange(&own, &senders).unwrap();
            for from in (0..count).filter(|&from| from != rank) {
                let expected = match senders[from] {
                    true => message(from, rank),
                    false => Vec::new(),
                };
                assert_eq!(all[from], expected, "round {round}, from {from} to {rank}");
            }
        }
        group.all_gather(b"end").unwrap();
    }
    let key = Key::new().unwrap();
    for transport in [Transport::Sockets, Transport::Memory] {
        let (listener, address) = listen(&key);
        let workers = start_workers(&key, &address, 3, |group| rounds(&group));
        rounds(&admit_by(listener, 3, LIMIT, transport).unwrap());
        (workers.into_iter()).for_each(|worker| worker.join().unwrap());
    }
}

#[test]
fn a_worker_that_is_gone_is_named() {
    let key = Key::new().unwrap();
    for (count, transport) in [
        (1, Transport::Sockets),
        (2, Transport::Sockets),
        (1, Transport::Memory),
        (2, Transport::Memory),
    ] {
        let (listener, address) = listen(&key);
        let workers = start_workers(&key, &address, count, |group| {
            group.all_gather(b"first").unwrap();
            if group.rank() == group.count() - 1 {
                return;
            }
            // The worker receives from the master the reason why the run ends.
            let error = group.all_gather(b"second").unwrap_err();
            assert!(error.to_string().contains("worker 2"), "{error}");
        });
        let group = admit_by(listener, count, LIMIT, transport).unwrap();
        group.all_gather(b"first").unwrap();
        let begin = Instant::now();
        let peer = group.names()[count].clone();
        assert_eq!(group.all_gather(b"second"), Err(PeerError::Died { peer }));
        assert!(begin.elapsed() < LIMIT, "nobody waits for ever");
        workers
            .into_iter()
            .for_each(|worker| worker.join().unwrap());
    }
}

#[test]
fn who_leaves_says_why_and_a_master_that_is_gone_is_missed() {
    let key = Key::new().unwrap();
    let (listener, address) = listen(&key);
    let left = start_workers(&key, &address, 1, |group| group.leave("no disk"));
    let group = admit(listener, 1, LIMIT).unwrap();
    let error = group.all_gather(b"").unwrap_err().to_string();
    assert!(error.starts_with("worker 1 ("), "{error}");
    assert!(error.ends_with(" cannot go on: no disk"), "{error}");
    left.into_iter().for_each(|worker| worker.join().unwrap());

    let (listener, address) = listen(&key);
    let alone = start_workers(&key, &address, 1, |group| {
        group.all_gather(b"last").unwrap();
        let error = group.all_gather(b"").unwrap_err().to_string();
        assert!(
            error.starts_with("the master (") && error.ends_with("died"),
            "{error}"
        );
    });
    admit(listener, 1, LIMIT)
        .unwrap()
        .all_gather(b"last")
        .unwrap();
    alone.into_iter().for_each(|worker| worker.join().unwrap());
}

#[test]
fn strangers_and_other_versions_are_refused() {
    let (key, other) = (Key::new().unwrap(), Key::new().unwrap());
    let (listener, address) = listen(&key);
    // The public key is the master's, but the secret key is another.
    let half = Key {
        public: key.public.clone(),
        ..other.clone()
    };
    for stranger in [other, half] {
        let error = join(&address, &stranger, "1", LIMIT).err().unwrap();
        assert!(matches!(error, GroupError::OtherKey { .. }), "{error}");
    }
    let error = admit(listener, 1, Duration::from_millis(300))
        .err()
        .unwrap();
    let text = error.to_string();
    assert!(
        text.starts_with("1 of 1 workers did not come within 0 s"),
        "{text}"
    );

    let (listener, address) = listen(&key);
    let older = spawn(move || join(&address, &key, "0", LIMIT).err().unwrap().to_string());
    let error = admit(listener, 1, LIMIT).err().unwrap().to_string();
    for text in [error, older.join().unwrap()] {
        assert!(
            text.contains("runs nodescope 0, and the master nodescope 1"),
            "{text}"
        );
    }
}

#[test]
fn a_master_that_never_listens_is_not_waited_for_for_ever() {
    let key = Key::new().unwrap();
    let (listener, address) = listen(&key);
    drop(listener);
    let error = join(&address, &key, "1", Duration::from_millis(400))
        .err()
        .unwrap();
    assert!(matches!(error, GroupError::NoMaster { .. }), "{error}");
    for address in ["", "nowhere", "tcp://127.0.0.1:port"] {
        assert!(join(address, &key, "1", LIMIT).is_err());
        assert!(Listener::bind(address, &key).is_err());
    }
}
