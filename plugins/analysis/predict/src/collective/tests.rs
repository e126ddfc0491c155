//! Every algorithm on 1 to 19 ranks: what is sent is received, in rounds that end.

use std::collections::{BTreeMap, VecDeque};

use super::*;

/// Executes all ranks' rounds with messages that arrive in order, and returns the bytes received by each rank.
fn play(kind: CollectiveKind, selected: Selected, size: u32, root: u32, bytes: u64) -> Vec<u64> {
    let shape = |me| Shape {
        kind,
        size,
        me,
        root,
        bytes,
        send_to: &[],
        receive_from: &[],
    };
    let mut next = vec![0; size as usize];
    let mut waiting: Vec<VecDeque<(u32, u64)>> = vec![VecDeque::new(); size as usize];
    let mut channels: BTreeMap<(u32, u32), VecDeque<u64>> = BTreeMap::new();
    let mut received = vec![0; size as usize];
    let mut done = vec![false; size as usize];
    loop {
        let mut progress = false;
        for me in 0..size {
            let at = me as usize;
            loop {
                // The messages that the rank waits for.
                while let Some(&(from, expected)) = waiting[at].front() {
                    let Some(got) = channels.entry((from, me)).or_default().pop_front() else {
                        break;
                    };
                    assert_eq!(
                        got, expected,
                        "{kind:?} {selected:?} {size}: {from} to {me}"
                    );
                    received[at] += got;
                    waiting[at].pop_front();
                    progress = true;
                }
                if !waiting[at].is_empty() || done[at] {
                    break;
                }
                // Rounds until the end of one that waits.
                loop {
                    let Some(round) = round(selected, &shape(me), next[at]) else {
                        done[at] = waiting[at].is_empty();
                        progress |= done[at];
                        break;
                    };
                    next[at] += 1;
                    progress = true;
                    if let Some((to, bytes)) = round.send {
                        assert!(to < size && to != me);
                        channels.entry((me, to)).or_default().push_back(bytes);
                    }
                    waiting[at].extend(round.receive);
                    if round.wait {
                        break;
                    }
                }
                if done[at] {
                    break;
                }
            }
        }
        if !progress {
            break;
        }
    }
    assert!(
        done.iter().all(|done| *done),
        "{kind:?} {selected:?} {size} root {root}: hangs"
    );
    assert!(
        channels.values().all(VecDeque::is_empty),
        "{kind:?} {selected:?} {size} root {root}: something is not received"
    );
    received
}

#[test]
fn every_algorithm_ends_and_receives_what_is_sent() {
    for kind in CollectiveKind::ALL {
        for algorithm in Algorithm::ALL.into_iter().filter(|a| a.can(kind)) {
            for size in 1..=19 {
                for root in [0, size / 2, size - 1] {
                    let selected = Selected {
                        algorithm,
                        segment: 1000,
                    };
                    play(kind, selected, size, root, 4096);
                    if !kind.rooted() {
                        break;
                    }
                }
            }
        }
    }
}

#[test]
fn volumes_are_those_of_the_literature() {
    use Algorithm::*;
    let volume =
        |kind, algorithm: Algorithm, size, bytes| play(kind, algorithm.into(), size, 0, bytes);
    // Every rank of a ring or Rabenseifner all-reduce receives 2 n (p - 1) / p.
    assert_eq!(volume(CollectiveKind::Allreduce, Ring, 8, 4096), [7168; 8]);
    assert_eq!(
        volume(CollectiveKind::Allreduce, Rabenseifner, 8, 4096),
        [7168; 8]
    );
    assert_eq!(
        volume(CollectiveKind::Allreduce, RecursiveDoubling, 8, 4096),
        [12288; 8]
    );
    assert_eq!(volume(CollectiveKind::Allgather, Ring, 7, 10), [60; 7]);
    assert_eq!(volume(CollectiveKind::Allgather, Bruck, 7, 10), [60; 7]);
    assert_eq!(
        volume(CollectiveKind::Allgather, RecursiveDoubling, 8, 10),
        [70; 8]
    );
    assert_eq!(volume(CollectiveKind::Alltoall, Pairwise, 7, 10), [60; 7]);
    assert_eq!(volume(CollectiveKind::Alltoall, Bruck, 8, 10), [120; 8]);
    assert_eq!(
        volume(CollectiveKind::Bcast, Binomial, 6, 10),
        [0, 10, 10, 10, 10, 10]
    );
    for tree in [Binary, Knomial] {
        assert_eq!(
            volume(CollectiveKind::Bcast, tree, 6, 10),
            [0, 10, 10, 10, 10, 10]
        );
    }
    assert_eq!(
        volume(CollectiveKind::Allgather, NeighbourExchange, 8, 10),
        [70; 8]
    );
    assert_eq!(volume(CollectiveKind::Allgatherv, Bruck, 7, 10), [60; 7]);
    assert_eq!(
        volume(CollectiveKind::Allgatherv, GatherBroadcast, 4, 10),
        [30, 40, 40, 40]
    );
    assert_eq!(volume(CollectiveKind::Gather, Binomial, 5, 10)[0], 40);
    assert_eq!(
        volume(CollectiveKind::Reduce, Rabenseifner, 8, 4096)[0],
        3584 + 3584
    );
    assert_eq!(
        volume(CollectiveKind::Bcast, ScatterAllgather, 4, 4096)[1],
        1024 + 3072
    );
    // Any number of ranks: every rank gets every block once.
    for size in 2..=33 {
        assert_eq!(
            volume(CollectiveKind::Allgather, RecursiveDoubling, size, 10),
            vec![10 * u64::from(size - 1); size as usize]
        );
    }
    // Of 13 ranks 8 take part. Rank 0 gets rank 1's vector, halves, and the halves of the result. As the root, rank 9 replaces rank 0 in
    // the gather: it gets an eighth and the halves of the result.
    assert_eq!(
        play(CollectiveKind::Reduce, Rabenseifner.into(), 13, 0, 4096)[0],
        4096 + 3584 + 3584
    );
    assert_eq!(
        play(CollectiveKind::Reduce, Rabenseifner.into(), 13, 9, 4096)[9],
        512 + 3584
    );
    // Five of the ranks that take part have the blocks of two ranks.
    let received = volume(CollectiveKind::ReduceScatter, RecursiveHalving, 13, 1300);
    assert_eq!(received[0], 100);
    assert_eq!(received[1], 1300 + 800 + 400 + 200);
    assert_eq!(received[12], 500 + 200 + 100);
}

#[test]
fn blocks_of_different_sizes_are_passed_on_whole() {
    let blocks: Vec<u64> = (0..8).map(|rank| 1 << rank).collect();
    let of = |algorithm: Algorithm, me: u32, k: u32| {
        let shape = Shape {
            kind: CollectiveKind::Allgatherv,
            size: 8,
            me,
            root: 0,
            bytes: blocks[me as usize],
            send_to: &[],
            receive_from: &blocks,
        };
        round(algorithm.into(), &shape, k)
    };
    for algorithm in [
        Algorithm::Ring,
        Algorithm::Bruck,
        Algorithm::NeighbourExchange,
    ] {
        for me in 0..8 {
            let mut got = blocks[me as usize];
            for k in 0.. {
                let Some(round) = of(algorithm, me, k) else {
                    break;
                };
                let (from, bytes) = round.receive.unwrap();
                // The sizes are powers of two, so that no block comes twice and none is missing.
                assert_eq!(got & bytes, 0, "{algorithm}, rank {me}, round {k}");
                got += bytes;
                let sent = of(algorithm, from, k).unwrap().send;
                assert_eq!(sent, Some((me, bytes)), "{algorithm}, rank {me}, round {k}");
            }
            assert_eq!(got, 255, "{algorithm}, rank {me}");
        }
    }
}

#[test]
fn a_ring_passes_blocks_of_different_sizes_in_pieces() {
    let blocks: Vec<u64> = (0..7).map(|rank| 100 * (rank % 3 + 1)).collect();
    let all: u64 = blocks.iter().sum();
    let of = |me: u32, k: u32, segment: u64| {
        let shape = Shape {
            kind: CollectiveKind::Allgatherv,
            size: 7,
            me,
            root: 0,
            bytes: blocks[me as usize],
            send_to: &[],
            receive_from: &blocks,
        };
        let algorithm = Algorithm::Ring;
        round(Selected { algorithm, segment }, &shape, k)
    };
    // A piece is no smaller than the smallest block, however small a segment is.
    for (segment, rounds) in [(1, 12), (100, 12), (250, 9), (300, 6)] {
        for me in 0..7u32 {
            let (left, mut got) = ((me + 6) % 7, 0);
            for k in 0..20 {
                let received = of(me, k, segment).and_then(|round| round.receive);
                let sent = of(left, k, segment).and_then(|round| round.send);
                assert_eq!(
                    received.map(|r| r.1),
                    sent.map(|s| s.1),
                    "{segment} {me} {k}"
                );
                assert!(received.is_none_or(|(from, _)| from == left));
                assert!(sent.is_none_or(|(to, _)| to == me));
                assert!(received.is_none() || k < rounds, "{segment} {me} {k}");
                got += received.map_or(0, |r| r.1);
            }
            assert_eq!(got, all - blocks[me as usize], "{segment} {me}");
        }
    }
}

#[test]
fn names_are_read_back() {
    for algorithm in Algorithm::ALL {
        let found = Algorithm::ALL.iter().find(|a| a.name() == algorithm.name());
        assert_eq!(found, Some(&algorithm));
        assert!(CollectiveKind::ALL.iter().any(|&kind| algorithm.can(kind)));
    }
}
