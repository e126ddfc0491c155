//! Verdicts on sequences with a planted cause, whose gain follows from the bursts.

use std::sync::Arc;

use nodescope_hypercall::Function;
use nodescope_loop_tree::sequence::Entry;
use nodescope_loop_tree::{
    Action, Burst, Collective, CollectiveKind, Mode, Op, PeerRef, Sequence, Sequences, Site, Source,
};
use nodescope_verdict::{Class, Error, Kind, Link, Verdict, verdict};

const MS: u64 = 1_000_000_000;
const STEPS: usize = 20;
const LINK: Link = Link {
    latency: 1_300_000,
    bandwidth: 1_250_000_000,
};

fn entry(time: u64, site: u64, function: Function, action: Action) -> Entry {
    Entry {
        burst: Burst {
            time,
            instructions: time / 500,
        },
        op: Arc::new(Op {
            function,
            site: Site {
                address: site,
                module: 0,
            },
            communicator: 0,
            block: None,
            more: false,
            action,
        }),
        opaque: None,
    }
}

fn collective(time: u64, site: u64, function: Function, kind: CollectiveKind) -> Entry {
    let action = Action::Collective(Box::new(Collective::of(kind)));
    entry(time, site, function, action)
}

fn allreduce(time: u64) -> Entry {
    collective(time, 0x10, Function::Allreduce, CollectiveKind::Allreduce)
}

/// Makes sequences of four ranks, whose traced time is `time`.
fn sequences(time: u64, of: impl Fn(usize) -> Vec<Entry>) -> Sequences {
    let rank = |rank| Sequence {
        entries: of(rank),
        communicators: vec![Some(0)],
    };
    Sequences {
        ranks: (0..4).map(rank).collect(),
        communicators: vec![Vec::new()],
        nodes: vec![0, 0, 1, 1],
        spans: vec![time; 4],
        extents: vec![(0, time); 4],
        ..Sequences::default()
    }
}

fn found(sequences: &Sequences) -> Verdict {
    verdict(sequences, LINK, None).unwrap()
}

/// Checks that the first cause has a kind and, within 2 % of the time, a gain.
fn assert_first(verdict: &Verdict, kind: Kind, gain: f64) {
    let first = verdict.causes.first().map(|cause| (cause.kind, cause.gain));
    let fits = first.is_some_and(|first| first.0 == kind && (first.1 - gain).abs() < 0.02);
    assert!(fits, "{first:?} for {kind:?}, {gain}");
}

#[test]
fn a_rank_with_three_times_the_work_costs_half_of_the_time() {
    let of = |rank| vec![allreduce(if rank == 3 { 30 * MS } else { 10 * MS }); STEPS];
    let found = found(&sequences(STEPS as u64 * 30 * MS, of));
    // The computation before the first call is a place of its own.
    assert_first(
        &found,
        Kind::Imbalance,
        0.5 * (STEPS - 1) as f64 / STEPS as f64,
    );
    assert_eq!(found.causes[0].place.rank, Some(3));
    assert!(found.causes[0].what.contains("3.00 times"), "{found:?}");
}

#[test]
fn work_of_one_rank_is_told_from_imbalance() {
    let of = |rank| {
        let alone = if rank == 0 { 10 * MS } else { 0 };
        let bcast = collective(alone, 0x20, Function::Bcast, CollectiveKind::Bcast);
        vec![[bcast, allreduce(10 * MS)]; STEPS].concat()
    };
    let found = found(&sequences(STEPS as u64 * 20 * MS, of));
    assert_first(&found, Kind::SerialRank, 7.5 / 20.0);
}

#[test]
fn a_barrier_costs_what_ranks_in_turn_wait_at_it() {
    let of = |rank| {
        let barrier = |step| {
            let time = if step % 4 == rank { 20 * MS } else { 10 * MS };
            collective(time, 0x30, Function::Barrier, CollectiveKind::Barrier)
        };
        (0..STEPS).map(barrier).collect()
    };
    let found = found(&sequences(STEPS as u64 * 20 * MS, of));
    assert_first(&found, Kind::Barrier, 7.5 / 20.0);
    assert!(
        found
            .ruled_out
            .iter()
            .any(|out| out.kind == Kind::Imbalance)
    );
}

#[test]
fn rows_of_short_messages_are_joined() {
    let message = |rank: usize, sends: bool| {
        let peer = PeerRef::Absolute((if sends { rank + 1 } else { rank + 3 }) as u32 % 4);
        match sends {
            true => entry(
                0,
                0x40,
                Function::Send,
                Action::Send {
                    to: peer,
                    tag: 0,
                    bytes: 8,
                    mode: Mode::Standard,
                    request: None,
                },
            ),
            false => entry(
                0,
                0x50,
                Function::Recv,
                Action::Receive {
                    from: Source::Peer(peer),
                    tag: Some(0),
                    room: 8,
                    request: None,
                },
            ),
        }
    };
    let of = |rank| {
        let mut step = vec![message(rank, true); 64];
        step[0].burst.time = MS;
        step.extend(vec![message(rank, false); 64]);
        vec![step; STEPS].concat()
    };
    let found = found(&sequences(STEPS as u64 * 2 * MS, of));
    let first = &found.causes[0];
    assert_eq!(first.kind, Kind::ShortMessages, "{found:?}");
    // 63 of 64 sends and receives of some 4 us go, of each step.
    let gain = first.gain_ps as f64 / STEPS as f64;
    assert!((450e6..560e6).contains(&gain), "{gain}");
}

#[test]
fn ranks_that_exchange_much_belong_together() {
    let bytes = 4 << 20;
    let of = |rank: usize| {
        let peer = PeerRef::Absolute((rank as u32 + 2) % 4);
        let send = Action::Send {
            to: peer,
            tag: 0,
            bytes,
            mode: Mode::Buffered,
            request: None,
        };
        let receive = Action::Receive {
            from: Source::Peer(peer),
            tag: Some(0),
            room: bytes,
            request: None,
        };
        let step = [
            entry(MS, 0x60, Function::Send, send),
            entry(0, 0x70, Function::Recv, receive),
        ];
        vec![step; STEPS].concat()
    };
    let mut sequences = sequences(STEPS as u64 * 10 * MS, of);
    sequences.origin.nodes = vec![0, 0, 1, 1];
    let found = found(&sequences);
    let first = &found.causes[0];
    assert_eq!(first.kind, Kind::Placement, "{found:?}");
    assert!(
        first.what.contains("ranks 0, 2 and 1, 3 together"),
        "{first:?}"
    );
    // Two ranks' messages share a link of 1.25 GB/s in each direction.
    assert!(first.gain > 0.5, "{first:?}");
}

#[test]
fn an_even_program_has_no_cause() {
    let of = |_| vec![allreduce(50 * MS); STEPS];
    let found = found(&sequences(STEPS as u64 * 50 * MS, of));
    assert!(found.causes.is_empty(), "{found:?}");
    assert_eq!(found.ruled_out.len(), Kind::OF_TRACE.len());
}

#[test]
fn a_long_trace_is_refused() {
    let of = |_| vec![allreduce(1); 300_000];
    let refused = verdict(&sequences(1, of), LINK, None);
    assert!(matches!(
        refused,
        Err(Error::TooLong { entries: 1_200_000 })
    ));
}

#[test]
fn a_rank_that_is_slow_everywhere_is_one_cause() {
    let of = |rank| {
        let time = if rank == 2 { 15 * MS } else { 10 * MS };
        let site = |site| {
            collective(
                time,
                0x100 + site,
                Function::Allreduce,
                CollectiveKind::Allreduce,
            )
        };
        (0..STEPS as u64).map(site).collect()
    };
    let mut slow = sequences(STEPS as u64 * 15 * MS, of);
    // It executes as many instructions, so that the others gain no work from it.
    for entry in &mut slow.ranks[2].entries {
        entry.burst.instructions = 10 * MS / 500;
    }
    let found = found(&slow);
    assert_first(&found, Kind::SlowRank, 1.0 / 3.0);
    assert_eq!(found.causes[0].place.rank, Some(2));
    assert_eq!(found.causes.len(), 1, "{found:?}");
}

#[test]
fn work_that_moves_from_rank_to_rank_is_told_from_imbalance() {
    let of = |rank| {
        let step = |step| allreduce(if step % 4 == rank { 20 * MS } else { 10 * MS });
        (0..STEPS).map(step).collect()
    };
    let found = found(&sequences(STEPS as u64 * 20 * MS, of));
    assert_first(&found, Kind::VaryingWork, 7.5 / 20.0);
    assert!(found.causes[0].what.contains("1.6"), "{found:?}");
}

#[test]
fn waiting_before_a_computation_could_be_hidden() {
    // A message that needs no rendezvous, for which both ranks would have to be in MPI.
    let bytes = 32 << 10;
    let of = |rank: usize| {
        let peer = PeerRef::Absolute((rank as u32 + 2) % 4);
        let receive = Action::Receive {
            from: Source::Peer(peer),
            tag: Some(0),
            room: bytes,
            request: Some(1),
        };
        let send = Action::Send {
            to: peer,
            tag: 0,
            bytes,
            mode: Mode::Buffered,
            request: Some(2),
        };
        let step = [
            entry(MS, 0x60, Function::Irecv, receive),
            entry(0, 0x70, Function::Isend, send),
            entry(0, 0x80, Function::Waitall, Action::wait([1, 2])),
        ];
        vec![step; STEPS].concat()
    };
    let slow = Link {
        latency: 50_000_000,
        bandwidth: 125_000_000,
    };
    let mut sequences = sequences(STEPS as u64 * 16 * MS / 10, of);
    sequences.origin.nodes = vec![0, 0, 1, 1];
    let found = verdict(&sequences, slow, None).unwrap();
    let overlap = found
        .causes
        .iter()
        .find(|cause| cause.kind == Kind::Overlap);
    let overlap = overlap.unwrap_or_else(|| panic!("{found:?}"));
    assert_eq!(overlap.class, Class::Bound);
    assert!(overlap.place.text.starts_with("MPI_Waitall"), "{overlap:?}");
    // The link needs 262 us for a message, and has a latency of 50 us.
    let gain = overlap.gain_ps as f64 / STEPS as f64;
    assert!((290e6..320e6).contains(&gain), "{gain}");
}
