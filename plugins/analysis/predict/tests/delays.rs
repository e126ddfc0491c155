//! Delay costs of programs whose causes of waiting are known.

use nodescope_hypercall::Function;
use nodescope_loop_tree::{Action, CollectiveKind, PeerRef, Program, ProgramBuilder};
use nodescope_predict::{
    Activity, Channel, Cluster, Costs, DelayRow, Delays, Model, Table, WaitKind, delays,
};
use proptest::prelude::*;

const US: u64 = 1_000_000;

fn rank(absolute: u32) -> PeerRef {
    PeerRef::Absolute(absolute)
}

fn free() -> Cluster {
    Cluster::simple("free", Channel::ideal())
}

fn of(builder: &mut ProgramBuilder, cluster: &Cluster) -> Delays {
    let found = delays(&builder.finish(), cluster).unwrap().unwrap();
    let all = found.direct + found.indirect + found.unexplained;
    assert!(
        (all - found.waiting as f64).abs() < 1e-6 * all + 1.0,
        "{found:?}"
    );
    found
}

fn cost(delays: &Delays, late: u32) -> (u64, u64) {
    let all = delays.ranks.iter().find(|(rank, _)| *rank == late);
    let of = all.map_or(Costs::default(), |(_, costs)| *costs);
    (
        (of.short_term / US as f64).round() as u64,
        (of.long_term / US as f64).round() as u64,
    )
}

/// A chain of four ranks: each receives from the one before, computes, and sends to the one behind.
fn chain(works: [u64; 4]) -> Delays {
    let mut builder = ProgramBuilder::new();
    for (number, work) in (0u32..).zip(works) {
        if number > 0 {
            builder.receive(rank(number - 1), 0, 0);
        }
        builder.compute(work * US);
        if number < 3 {
            builder.send(rank(number + 1), 0, 0);
        }
        builder.ranks(1);
    }
    of(&mut builder, &free())
}

#[test]
fn a_late_rank_costs_its_partner_at_once_and_the_rest_of_a_chain_later() {
    let delays = chain([100, 0, 0, 0]);
    assert_eq!(delays.waiting, 300 * US);
    // Rank 1 waits for rank 0; ranks 2 and 3 wait because rank 1 has waited.
    assert_eq!(cost(&delays, 0), (100, 200));
    assert_eq!(delays.ranks.len(), 1);
    let row = &delays.activities[0];
    assert_eq!((row.rank, delays.activities.len()), (0, 1));
    let Activity::Computation { from: None, to } = &row.activity else {
        panic!("{row:?}");
    };
    assert_eq!(to.as_ref().unwrap().call, "MPI_Send");
    assert_eq!(delays.kinds.len(), 1);
    assert_eq!(delays.kinds[0].0, WaitKind::LateSender);
}

#[test]
fn a_wait_is_shared_between_delays_and_earlier_waits() {
    // Rank 2 waits 150 us for rank 1, which has waited 100 us and computed 50 us. Rank 3 waits 150 us because rank 2 has.
    let delays = chain([100, 50, 0, 0]);
    assert_eq!(delays.waiting, (100 + 150 + 150) * US);
    // Rank 0: at once the wait of rank 1. Later two thirds of what rank 2 waits and causes.
    assert_eq!(cost(&delays, 0), (100, 200));
    assert_eq!(cost(&delays, 1), (50, 50));
    assert_eq!((delays.direct / US as f64).round() as u64, 150);
}

#[test]
fn only_the_excess_over_the_waiting_rank_is_a_delay() {
    let mut builder = ProgramBuilder::new();
    for work in [70, 100, 40, 60] {
        builder.begin().compute(work * US);
        builder
            .collective(CollectiveKind::Barrier, 0, 0)
            .end(10)
            .ranks(1);
    }
    let delays = of(&mut builder, &free());
    assert_eq!(delays.waiting, (30 + 60 + 40) * 10 * US);
    assert_eq!(cost(&delays, 1), (1300, 0));
    assert_eq!(delays.ranks.len(), 1);
    assert_eq!(delays.kinds[0].0, WaitKind::Collective);
    // The computation before the first barrier has another call before it than those between barriers.
    assert_eq!(delays.activities.len(), 2);
    assert!((delays.activities[0].costs.sum() - 9.0 / 10.0 * 1300.0 * US as f64).abs() < 1.0);
}

#[test]
fn delays_are_told_apart_by_their_calls() {
    let mut builder = ProgramBuilder::new();
    let barrier = |builder: &mut ProgramBuilder, site| {
        let action = Action::Collective(Box::new(nodescope_loop_tree::Collective {
            kind: CollectiveKind::Barrier,
            root: 0,
            bytes: 0,
            send_to: Box::default(),
            receive_from: Box::default(),
            request: None,
        }));
        builder.call(Function::Barrier, site, action);
    };
    let works = [[30, 10], [10, 50]];
    for of_rank in works {
        for (work, site) in of_rank.into_iter().zip([0x70, 0x80]) {
            builder.compute(work * US);
            barrier(&mut builder, site);
        }
        builder.ranks(1);
    }
    let delays = of(&mut builder, &free());
    assert_eq!((cost(&delays, 0), cost(&delays, 1)), ((20, 0), (40, 0)));
    let names: Vec<String> = delays
        .activities
        .iter()
        .map(|row| row.activity.to_string())
        .collect();
    assert_eq!(
        names,
        [
            "computation from MPI_Barrier at program+0x70 to MPI_Barrier at program+0x80",
            "computation from the start to MPI_Barrier at program+0x70"
        ]
    );
}

#[test]
fn calls_are_delays_too() {
    // Rank 0 sends a message to rank 2 that costs it 20 us, before that to rank 1.
    let channel = Channel {
        send_overhead: Table::constant(20 * US),
        ..Channel::new(Model::LogGp, 0, 0)
    };
    let mut builder = ProgramBuilder::new();
    builder.send(rank(2), 1, 0).send(rank(1), 2, 0).ranks(1);
    builder.receive(rank(0), 2, 0).ranks(1);
    builder.receive(rank(0), 1, 0).ranks(1);
    let delays = of(&mut builder, &Cluster::simple("c", channel));
    // Rank 1 waits until rank 0 enters its second send. What it waits then is the message's own time.
    assert_eq!(cost(&delays, 0), (20, 0));
    assert!(matches!(delays.activities[0].activity, Activity::Call(_)));
}

#[test]
fn a_late_receiver_is_charged() {
    let mut channel = Channel::new(Model::LogGp, 0, 0);
    channel.eager_limit = 0;
    let mut builder = ProgramBuilder::new();
    builder.send(rank(1), 0, 1000).ranks(1);
    builder.compute(80 * US).receive(rank(0), 0, 1000).ranks(1);
    let delays = of(&mut builder, &Cluster::simple("c", channel));
    assert_eq!(cost(&delays, 1), (80, 0));
    assert_eq!(delays.kinds[0].0, WaitKind::LateReceiver);
}

/// A message that came while its receiver computed is no meeting before the receiver waits for it: most waiting is for uneven work, the rest for messages.
#[test]
fn messages_in_the_background_are_met_where_they_are_waited_for() {
    let ranks = 8;
    let work = |rank: u64, turn: u64| US * (50 + (rank * 7919 + turn * 104_729) % 97);
    let mut builder = ProgramBuilder::new();
    for rank in 0..ranks {
        for turn in 0..40 {
            builder.compute(work(rank.into(), turn));
            let (left, right) = (PeerRef::Relative(ranks - 1), PeerRef::Relative(1));
            builder
                .ireceive(left, 0, 8000, 0)
                .ireceive(right, 1, 8000, 1);
            builder.isend(right, 0, 8000, 2).isend(left, 1, 8000, 3);
            builder.wait(&[0, 1, 2, 3]);
        }
        builder.ranks(1);
    }
    let channel = Channel {
        send_overhead: Table::constant(US),
        receive_overhead: Table::constant(US),
        ..Channel::new(Model::LogGp, 5 * US, 1_000_000_000)
    };
    let delays = of(&mut builder, &Cluster::simple("c", channel));
    assert_eq!(delays.unexplained, 0.0);
    let computation = |row: &&DelayRow| matches!(row.activity, Activity::Computation { .. });
    let rows = delays.activities.iter().filter(computation);
    let of_computation: f64 = rows.map(|row| row.costs.sum()).sum();
    assert!(of_computation > 0.75 * delays.waiting as f64, "{delays:?}");
}

/// A program of rounds in which each rank computes, and then exchanges with a neighbour or meets all others.
fn rounds(works: &[Vec<u8>], together: &[bool]) -> Program {
    let mut builder = ProgramBuilder::new();
    for of_rank in works {
        for (&work, &together) in of_rank.iter().zip(together) {
            builder.compute(u64::from(work) * US);
            let ranks = works.len() as u32;
            match together {
                true => builder.collective(CollectiveKind::Allreduce, 0, 8),
                false => builder
                    .ireceive(PeerRef::Relative(ranks - 1), 0, 8, 0)
                    .send(PeerRef::Relative(1), 0, 8)
                    .wait(&[0]),
            };
        }
        builder.ranks(1);
    }
    builder.finish()
}

proptest! {
    /// All waiting has a cause: what is charged adds up to it.
    #[test]
    fn costs_add_up_to_the_waiting(
        works in prop::collection::vec(prop::collection::vec(any::<u8>(), 6), 2..6),
        together in prop::collection::vec(any::<bool>(), 6),
    ) {
        let program = rounds(&works, &together);
        let channel = Channel {
            send_overhead: Table::constant(US),
            ..Channel::new(Model::LogGp, 2 * US, 1_000_000_000)
        };
        let found = delays(&program, &Cluster::simple("c", channel)).unwrap().unwrap();
        let waiting = found.waiting as f64;
        let sum = found.direct + found.indirect + found.unexplained;
        prop_assert!((sum - waiting).abs() <= 1e-9 * waiting + 1.0);
        let short: f64 = found.activities.iter().map(|row| row.costs.short_term).sum();
        prop_assert!((short - found.direct).abs() <= 1e-9 * waiting + 1.0);
        let long: f64 = found.activities.iter().map(|row| row.costs.long_term).sum();
        // Waits that nothing explains keep what they cause.
        prop_assert!(long <= found.indirect + 1e-9 * waiting + 1.0);
        if found.unexplained < 1.0 {
            prop_assert!((long - found.indirect).abs() <= 1e-6 * waiting + 1.0);
        }
    }
}
