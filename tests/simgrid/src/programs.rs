//! Synthetic programs.

use nodescope_hypercall::Function;
use nodescope_loop_tree::{
    Action, Collective, CollectiveKind, PeerRef, Program, ProgramBuilder, Source,
};

/// Returns a program in which ranks 0 and 1 send a message of `bytes` to and fro, `turns` times.
pub fn ping_pong(bytes: u64, turns: u32) -> Program {
    let mut builder = ProgramBuilder::new();
    builder.begin();
    builder.send(PeerRef::Absolute(1), 1, bytes);
    builder.receive(PeerRef::Absolute(1), 2, bytes);
    builder.end(turns).ranks(1);
    builder.begin();
    builder.receive(PeerRef::Absolute(0), 1, bytes);
    builder.send(PeerRef::Absolute(0), 2, bytes);
    builder.end(turns).ranks(1);
    builder.finish()
}

/// Returns the computation of a rank in a turn, in picoseconds: between 3/4 and 5/4 of `mean`, by a fixed rule that differs between ranks.
fn uneven(rank: u32, mean: u64) -> u64 {
    let part = u64::from(rank.wrapping_mul(2_654_435_761) >> 24);
    mean - mean / 4 + mean * part / 512
}

/// Returns a program in which every rank exchanges messages with the ranks before and after it, `turns` times. Ranks first compute about
/// `mean` picoseconds in each turn.
pub fn ring(ranks: u32, bytes: u64, mean: u64, turns: u32) -> Program {
    let mut builder = ProgramBuilder::new();
    for rank in 0..ranks {
        builder.begin();
        if mean > 0 {
            builder.compute(uneven(rank, mean));
        }
        let (left, right) = (PeerRef::Relative(ranks - 1), PeerRef::Relative(1));
        builder.ireceive(left, 1, bytes, 0);
        builder.ireceive(right, 2, bytes, 1);
        builder.isend(right, 1, bytes, 2);
        builder.isend(left, 2, bytes, 3);
        builder.wait(&[0, 1, 2, 3]);
        builder.end(turns).ranks(1);
    }
    builder.finish()
}

/// Parameters of [`torus`].
#[derive(Clone, Copy, Debug)]
pub struct Halo {
    /// Number of ranks along each side of the square.
    pub side: u32,
    /// Size in bytes of the message to each of the four neighbours.
    pub bytes: u64,
    /// Mean computation of a rank in a turn, picoseconds.
    pub mean: u64,
    /// True if all ranks compute for the same time.
    pub even: bool,
    /// Number of turns; in each, every rank computes and then exchanges messages.
    pub turns: u32,
    /// Bytes of an all-reduce at the end of each turn; `None` for no all-reduce.
    pub allreduce: Option<u64>,
}

/// Returns a program on a square torus of ranks: each exchanges non-blocking messages with its four neighbours.
pub fn torus(halo: Halo) -> Program {
    let Halo { side, bytes, .. } = halo;
    let ranks = side * side;
    let mut builder = ProgramBuilder::new();
    for rank in 0..ranks {
        let column = rank % side;
        let east = if column + 1 == side {
            ranks + 1 - side
        } else {
            1
        };
        let west = if column == 0 { side - 1 } else { ranks - 1 };
        let ways = [
            (east, west),
            (west, east),
            (side, ranks - side),
            (ranks - side, side),
        ];
        builder.begin();
        match halo.mean {
            0 => {}
            mean if halo.even => drop(builder.compute(mean)),
            mean => drop(builder.compute(uneven(rank, mean))),
        }
        for (way, (_, from)) in (0..).zip(ways) {
            builder.ireceive(PeerRef::Relative(from), way, bytes, way);
        }
        for (way, (to, _)) in (0..).zip(ways) {
            builder.isend(PeerRef::Relative(to), way, bytes, 4 + way);
        }
        builder.wait(&[0, 1, 2, 3, 4, 5, 6, 7]);
        if let Some(bytes) = halo.allreduce {
            builder.collective(CollectiveKind::Allreduce, 0, bytes);
        }
        builder.end(halo.turns).ranks(1);
    }
    builder.finish()
}

/// Returns a program of wave fronts over a square of ranks, as in a sweep: each rank receives from north and west, computes, then sends to
/// south and east.
pub fn sweep(side: u32, bytes: u64, mean: u64, turns: u32) -> Program {
    let mut builder = ProgramBuilder::new();
    for rank in 0..side * side {
        let (row, column) = (rank / side, rank % side);
        builder.begin();
        if row > 0 {
            builder.receive(PeerRef::Absolute(rank - side), 1, bytes);
        }
        if column > 0 {
            builder.receive(PeerRef::Absolute(rank - 1), 2, bytes);
        }
        if mean > 0 {
            builder.compute(uneven(rank, mean));
        }
        if row + 1 < side {
            builder.send(PeerRef::Absolute(rank + side), 1, bytes);
        }
        if column + 1 < side {
            builder.send(PeerRef::Absolute(rank + 1), 2, bytes);
        }
        builder.end(turns).ranks(1);
    }
    builder.finish()
}

/// Returns a program in which every rank sends in each turn to a rank at some distance after it, and receives from the one as far before
/// it. The distance changes from turn to turn.
pub fn shifts(ranks: u32, bytes: u64, turns: u32) -> Program {
    let mut builder = ProgramBuilder::new();
    for _ in 0..ranks {
        for turn in 0..turns {
            let distance = 1 + turn.wrapping_mul(7) % (ranks - 1);
            let action = Action::SendReceive {
                send: Some((PeerRef::Relative(distance), turn, bytes)),
                receive: Some((
                    Source::Peer(PeerRef::Relative(ranks - distance)),
                    Some(turn),
                    bytes,
                )),
            };
            builder.call(Function::Sendrecv, 0x90, action);
        }
        builder.ranks(1);
    }
    builder.finish()
}

/// Returns a program of one collective on all ranks and then a barrier, `turns` times. Ranks first compute about `mean` picoseconds in each
/// turn. In the v forms, the share of rank r is `bytes` * (r % 3 + 1) / 2.
pub fn collective(kind: CollectiveKind, ranks: u32, bytes: u64, mean: u64, turns: u32) -> Program {
    let mut builder = ProgramBuilder::new();
    let share = |rank: u32| bytes * u64::from(rank % 3 + 1) / 2;
    let shares: Box<[u64]> = (0..ranks).map(share).collect();
    // Equal ranks need to be described only once.
    let alike =
        mean == 0 && !matches!(kind, CollectiveKind::Allgatherv | CollectiveKind::Alltoallv);
    let (different, each) = if alike { (1, ranks) } else { (ranks, 1) };
    for rank in 0..different {
        builder.begin();
        if mean > 0 {
            builder.compute(uneven(rank, mean));
        }
        match kind {
            CollectiveKind::Allgatherv => {
                let action = Action::Collective(Box::new(Collective {
                    kind,
                    root: 0,
                    bytes: share(rank),
                    send_to: Box::default(),
                    receive_from: shares.clone(),
                    request: None,
                }));
                builder.call(Function::Allgatherv, 0x60, action);
            }
            CollectiveKind::Alltoallv => {
                let own: Box<[u64]> = (0..ranks).map(|_| share(rank)).collect();
                let action = Action::Collective(Box::new(Collective {
                    kind,
                    root: 0,
                    bytes: own.iter().sum(),
                    send_to: own,
                    receive_from: shares.clone(),
                    request: None,
                }));
                builder.call(Function::Alltoallv, 0x60, action);
            }
            _ => drop(builder.collective(kind, 0, bytes)),
        }
        if kind != CollectiveKind::Barrier {
            builder.collective(CollectiveKind::Barrier, 0, 0);
        }
        builder.end(turns).ranks(each);
    }
    builder.finish()
}
