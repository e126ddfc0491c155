//! More ranks than were traced: the extrapolated programs equal those that are written for as many ranks.

use nodescope_hypercall::Function;
use nodescope_loop_tree::{Action, CollectiveKind, Op, PeerRef, Program, ProgramBuilder, Source};
use nodescope_predict::scale::{Extrapolation, Limit, Scaling};
use nodescope_predict::{
    Channel, Cluster, Code, Model, Options, Request, ScaleError, ScaleRequest, Table, interpret,
    scale,
};

const MS: u64 = 1_000_000_000;

fn cluster() -> Cluster {
    let channel = Channel {
        send_overhead: Table::constant(500_000),
        receive_overhead: Table::constant(500_000),
        ..Channel::new(Model::LogGp, 2_000_000, 1_000_000_000)
    };
    Cluster::simple("c", channel)
}

fn at(rank: u32) -> PeerRef {
    PeerRef::Absolute(rank)
}

/// Adds an `MPI_Sendrecv`; a partner of `None` is beyond the end of the arrangement, as with `MPI_PROC_NULL`.
fn exchange(
    builder: &mut ProgramBuilder,
    site: u64,
    to: Option<u32>,
    from: Option<u32>,
    bytes: u64,
) {
    let action = Action::SendReceive {
        send: to.map(|to| (at(to), 3, bytes)),
        receive: from.map(|from| (Source::Peer(at(from)), Some(3), bytes)),
    };
    builder.call(Function::Sendrecv, site, action);
}

/// Returns a program of work that is divided by p, and messages of constant size around a ring.
fn ring(p: u32) -> Program {
    let mut builder = ProgramBuilder::new();
    for rank in 0..p {
        builder.begin().compute(64 * MS / u64::from(p));
        exchange(
            &mut builder,
            0x1,
            Some((rank + 1) % p),
            Some((rank + p - 1) % p),
            4096,
        );
        builder.collective(CollectiveKind::Allreduce, 0, 8).end(5);
        builder.collective(CollectiveKind::Bcast, 0, 100).ranks(1);
    }
    builder.finish()
}

/// Returns a chain whose end ranks have one neighbour and lack the calls for the other.
fn chain(p: u32) -> Program {
    let mut builder = ProgramBuilder::new();
    for rank in 0..p {
        builder.begin().compute(3 * MS);
        if rank > 0 {
            builder.send(at(rank - 1), 1, 800);
        }
        if rank + 1 < p {
            builder.receive(at(rank + 1), 1, 800);
        }
        builder
            .end(4)
            .collective(CollectiveKind::Gather, 0, 64)
            .ranks(1);
    }
    builder.finish()
}

/// Returns a balanced grid of p = s x s ranks, with halos of n / s bytes.
fn grid(p: u32) -> Program {
    let side = p.isqrt();
    assert_eq!(side * side, p);
    let mut builder = ProgramBuilder::new();
    for rank in 0..p {
        let (y, x) = (rank / side, rank % side);
        let bytes = 144_000 / u64::from(side);
        builder.begin().compute(720 * MS / u64::from(p));
        let up = (y > 0).then(|| rank - side);
        let down = (y + 1 < side).then(|| rank + side);
        let left = (x > 0).then(|| rank - 1);
        let right = (x + 1 < side).then(|| rank + 1);
        exchange(&mut builder, 0x1, up, down, bytes);
        exchange(&mut builder, 0x2, down, up, bytes);
        exchange(&mut builder, 0x3, left, right, bytes);
        exchange(&mut builder, 0x4, right, left, bytes);
        builder
            .collective(CollectiveKind::Allreduce, 0, 16)
            .end(3)
            .ranks(1);
    }
    builder.finish()
}

/// Returns a program in which a block passes all ranks of a ring.
fn systolic(p: u32) -> Program {
    let mut builder = ProgramBuilder::new();
    for rank in 0..p {
        builder.begin().compute(16 * MS / u64::from(p));
        exchange(
            &mut builder,
            0x1,
            Some((rank + 1) % p),
            Some((rank + p - 1) % p),
            65536 / u64::from(p),
        );
        builder.end(p - 1).ranks(1);
    }
    builder.finish()
}

/// Returns a program in which even ranks send first and odd ranks receive first.
fn odd_even(p: u32) -> Program {
    let mut builder = ProgramBuilder::new();
    for rank in 0..p {
        builder.compute(MS);
        if rank % 2 == 0 {
            builder
                .send(at(rank + 1), 0, 64)
                .receive(at(rank + 1), 0, 64);
        } else {
            builder
                .receive(at(rank - 1), 0, 64)
                .send(at(rank - 1), 0, 64);
        }
        builder.ranks(1);
    }
    builder.finish()
}

/// Returns a program in which each rank has two partners, whose numbers differ from its own in one of the two lowest bits.
fn cube(p: u32) -> Program {
    let mut builder = ProgramBuilder::new();
    for rank in 0..p {
        builder.compute(MS);
        for bit in 0..2u32 {
            let other = rank ^ (1 << bit);
            exchange(
                &mut builder,
                0x10 + u64::from(bit),
                Some(other),
                Some(other),
                64,
            );
        }
        builder.ranks(1);
    }
    builder.finish()
}

/// Returns the operations of a rank, with peers as world ranks and buffer sizes of receives set to 0.
fn plain(program: &Program, rank: u32) -> Vec<Op> {
    let entries = program.unfold(rank).entries.into_iter();
    let ops = entries.map(|entry| Op::clone(&entry.op));
    ops.map(|mut op| {
        match &mut op.action {
            Action::Receive { room, .. } => *room = 0,
            Action::SendReceive {
                receive: Some((_, _, room)),
                ..
            } => *room = 0,
            _ => {}
        }
        op
    })
    .collect()
}

fn time(program: &Program) -> u64 {
    let outcome = interpret(&Code::new(program), &cluster(), &Options::default()).unwrap();
    assert_eq!(outcome.problems, []);
    outcome.time
}

fn check(make: fn(u32) -> Program, sizes: [u32; 3], target: u32) {
    let programs: Vec<Program> = sizes.iter().map(|&p| make(p)).collect();
    let programs: Vec<&Program> = programs.iter().collect();
    let extrapolation = Extrapolation::new(&programs, None, &[target]).unwrap();
    let made = extrapolation.program(target).unwrap();
    let written = make(target);
    assert_eq!(made.ranks.len(), written.ranks.len());
    for rank in 0..target {
        assert_eq!(plain(&made, rank), plain(&written, rank), "rank {rank}");
    }
    let (made, written) = (time(&made) as f64, time(&written) as f64);
    assert!(
        (made - written).abs() <= 1e-6 * written,
        "{made} and {written}"
    );
}

#[test]
fn rings_chains_and_exchanges_of_neighbours() {
    check(ring, [4, 8, 16], 64);
    check(chain, [4, 8, 16], 50);
    check(odd_even, [4, 8, 16], 64);
}

#[test]
fn grids_whose_sides_and_halos_change() {
    check(grid, [9, 16, 36], 144);
}

#[test]
fn hypercubes_with_the_same_bits() {
    check(cube, [4, 8, 16], 128);
}

#[test]
fn loops_that_run_once_for_each_other_rank() {
    check(systolic, [4, 8, 16], 64);
}

fn refused(make: fn(u32) -> Program, sizes: [u32; 3], target: u32) -> String {
    let programs: Vec<Program> = sizes.iter().map(|&p| make(p)).collect();
    let request = ScaleRequest {
        targets: vec![target],
        threshold: 0.5,
        request: Request::default(),
    };
    scale(&programs, &cluster(), &request)
        .unwrap_err()
        .to_string()
}

/// Returns a program in which rank r sends to r * 3 mod p.
fn scattered(p: u32) -> Program {
    let mut builder = ProgramBuilder::new();
    for rank in 0..p {
        let inverse = (0..p).find(|from| from * 3 % p == rank);
        exchange(&mut builder, 0x1, Some(rank * 3 % p), inverse, 64);
        builder.ranks(1);
    }
    builder.finish()
}

/// Makes a program with partners at distances 1, 2, 4, ...: log2 p partners for each rank.
fn doubling(p: u32) -> Program {
    let mut builder = ProgramBuilder::new();
    for rank in 0..p {
        for bit in 0..p.ilog2() {
            let other = rank ^ (1 << bit);
            exchange(&mut builder, 0x1, Some(other), Some(other), 64);
        }
        builder.ranks(1);
    }
    builder.finish()
}

#[test]
fn what_is_not_regular_is_refused_with_the_reason() {
    let told = refused(scattered, [4, 8, 16], 64);
    assert!(told.contains("the communication is not regular"), "{told}");
    assert!(
        told.contains("MPI_Sendrecv at program+0x1: the partner of rank"),
        "{told}"
    );
    let told = refused(doubling, [4, 8, 16], 64);
    assert!(told.contains("as a hypercube"), "{told}");
    assert!(told.contains("the partner of rank"), "{told}");
    // 7 ranks are not a square grid.
    let told = refused(grid, [4, 9, 16], 7);
    assert!(told.contains("7 ranks cannot be arranged"), "{told}");
    let programs = [ring(4), ring(8), ring(8)];
    let request = ScaleRequest {
        targets: vec![64],
        threshold: 0.5,
        request: Request::default(),
    };
    let told = scale(&programs, &cluster(), &request).unwrap_err();
    assert!(matches!(told, ScaleError::Sizes { count: 2, .. }), "{told}");
    assert!(
        told.to_string()
            .contains("(4, 8); give results of at least three")
    );
}

#[test]
fn the_range_in_which_ranks_pay_is_named_and_the_error_stated() {
    let programs: Vec<Program> = [4, 8, 16].map(ring).into();
    let request = ScaleRequest {
        targets: vec![32, 64, 256, 1024],
        threshold: 0.5,
        request: Request {
            replicas: 0,
            ..Request::default()
        },
    };
    let (scaled, last) = scale(&programs, &cluster(), &request).unwrap();
    assert_eq!(scaled.scaling, Scaling::Strong);
    let held = scaled.held_out.unwrap();
    assert_eq!(held.ranks, 16);
    assert!(held.error.abs() < 1e-6, "{held:?}");
    assert!(scaled.fit_error < 1e-9);
    // 64 ms of work in each of 5 turns: at 1024 ranks, 62.5 us a turn for each rank, beside an all-reduce of at least 10 x 3 us.
    let range = scaled.range.unwrap();
    let (beyond, limit) = range.beyond.unwrap();
    assert!(range.up_to >= 64 && beyond > range.up_to, "{range:?}");
    assert_eq!(limit, Limit::Efficiency);
    for (point, efficiency) in scaled.series.points.iter().zip(&scaled.efficiency) {
        let ranks = point.value.number.unwrap() as u32;
        let (_, efficiency) = efficiency.unwrap();
        assert_eq!(
            efficiency >= 0.5,
            ranks <= range.up_to,
            "{ranks}: {efficiency}"
        );
        assert_eq!(point.result.unwrap().time, time(&ring(ranks)), "{ranks}");
    }
    assert_eq!(last.unwrap().ranks, 1024);
    let text = scaled.text();
    assert!(text.contains("Adding ranks pays up to"), "{text}");
    assert!(text.contains("c p^-1"), "{text}");
    serde_json::from_str::<serde_json::Value>(&scaled.json()).unwrap();
}

/// Returns a ring like [`ring`], with work that no function of p describes.
fn rough(p: u32) -> Program {
    let mut builder = ProgramBuilder::new();
    let work = [(4, 100), (8, 130), (16, 90)];
    let work = work
        .iter()
        .find(|(size, _)| *size == p)
        .map_or(0, |(_, work)| *work);
    for rank in 0..p {
        builder.compute(work * MS);
        exchange(
            &mut builder,
            0x1,
            Some((rank + 1) % p),
            Some((rank + p - 1) % p),
            64,
        );
        builder.ranks(1);
    }
    builder.finish()
}

#[test]
fn what_no_law_describes_has_a_large_error() {
    let programs: Vec<Program> = [4, 8, 16].map(rough).into();
    let request = ScaleRequest {
        targets: vec![64],
        threshold: 0.5,
        request: Request::default(),
    };
    let (scaled, _) = scale(&programs, &cluster(), &request).unwrap();
    assert!(scaled.fit_error > 0.1, "{}", scaled.fit_error);
    let held = scaled.held_out.unwrap();
    assert!(held.error.abs() > 0.1);
    assert_eq!(scaled.scaling, Scaling::Weak);
    // 64 ranks are two steps beyond the largest traced size, of which the held-out size shows one.
    let result = scaled.series.points.last().unwrap().result.unwrap();
    let (low, high) = result.interval.unwrap();
    let wide = 1.96 * 2.0 * held.error.hypot(scaled.fit_error) * result.time as f64;
    assert!((high - result.time) as f64 >= 0.999 * wide);
    assert_eq!(low, result.time.saturating_sub(high - result.time));
    // Sizes that were traced are not extrapolated.
    assert!(
        scaled.series.points[..3]
            .iter()
            .all(|point| point.result.unwrap().interval.is_none())
    );
}
