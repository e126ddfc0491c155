//! Reduced fragments: an accepted fragment takes as long as the operations that it replaces; a refused one gives the reason.

use nodescope_hypercall::Function;
use nodescope_loop_tree::{Action, CollectiveKind, PeerRef, Program, ProgramBuilder, Source};
use nodescope_predict::reduce::{Reduced, Selection, reduce};
use nodescope_predict::{
    Channel, Cluster, Code, Model, Options, Outcome, Progress, Table, interpret,
};
use proptest::prelude::*;

const US: u64 = 1_000_000;

fn channel(model: Model, receive: u64) -> Channel {
    Channel {
        send_overhead: Table::constant(US / 2),
        receive_overhead: Table::constant(receive),
        gap: US / 10,
        eager_limit: 20_000,
        ..Channel::new(model, 2 * US, 1_000_000_000)
    }
}

fn clusters() -> Vec<Cluster> {
    let free = Cluster::simple("free", channel(Model::LogGp, 0));
    vec![
        Cluster {
            cores: 2,
            ranks_per_node: Some(2),
            ..free.clone()
        },
        Cluster::simple("post", channel(Model::Post, 0)),
        Cluster::simple("receiving costs", channel(Model::LogGp, US)),
        Cluster {
            progress: Progress::Calls,
            ..free
        },
    ]
}

#[derive(Clone, Debug)]
enum Turn {
    /// Blocking message from rank 0 to the rank of this number, with its bytes.
    Pass(u32, u64),
    Exchange(u32, u64),
    Overlapped(u32, u64, u8),
    Together(CollectiveKind, u64),
    Work(u8),
}

fn turn() -> impl Strategy<Value = Turn> {
    let bytes = prop_oneof![0u64..20_000, 20_000u64..200_000];
    prop_oneof![
        (1u32..4, bytes.clone()).prop_map(|(d, bytes)| Turn::Pass(d, bytes)),
        (1u32..4, bytes.clone()).prop_map(|(d, bytes)| Turn::Exchange(d, bytes)),
        (1u32..4, bytes.clone(), any::<u8>()).prop_map(|(d, b, w)| Turn::Overlapped(d, b, w)),
        (0usize..16, bytes)
            .prop_map(|(kind, bytes)| Turn::Together(CollectiveKind::ALL[kind], bytes)),
        any::<u8>().prop_map(Turn::Work),
    ]
}

fn exchange(builder: &mut ProgramBuilder, site: u64, to: u32, from: u32, bytes: u64) {
    let action = Action::SendReceive {
        send: Some((PeerRef::Absolute(to), 3, bytes)),
        receive: Some((Source::Peer(PeerRef::Absolute(from)), Some(3), bytes)),
    };
    builder.call(Function::Sendrecv, site, action);
}

fn write(builder: &mut ProgramBuilder, turns: &[Turn], rank: u32, ranks: u32, skew: u64) {
    for turn in turns {
        builder.compute(US * u64::from(rank % 3) * skew);
        match turn {
            Turn::Pass(d, bytes) => {
                // Only rank 0 sends, and only rank d receives, so that blocking messages of any size complete.
                let d = d % ranks;
                if d == 0 || rank.abs_diff((rank + d) % ranks) == 0 {
                    continue;
                }
                if rank == 0 {
                    builder.send(PeerRef::Absolute(d), 5, *bytes);
                } else if rank == d {
                    builder.receive(PeerRef::Absolute(0), 5, *bytes);
                }
            }
            Turn::Exchange(d, bytes) => {
                let d = d % ranks;
                exchange(
                    builder,
                    0x80,
                    (rank + d) % ranks,
                    (rank + ranks - d) % ranks,
                    *bytes,
                );
            }
            Turn::Overlapped(d, bytes, work) => {
                let d = d % ranks;
                builder
                    .isend(PeerRef::Relative(d), 2, *bytes, 0)
                    .ireceive(PeerRef::Relative(ranks - d), 2, *bytes, 1)
                    .compute(u64::from(*work) * US / 10)
                    .wait(&[0, 1]);
            }
            Turn::Together(kind, bytes) => {
                builder.collective(*kind, 0, *bytes);
            }
            Turn::Work(work) => {
                builder.compute(u64::from(*work) * US);
                builder.call(Function::Barrier, 0x90, Action::Nothing);
            }
        }
    }
}

/// Returns a program of the turns `before`, a loop of the turns `within` between calls of its own, and the turns `after`.
fn program(before: &[Turn], within: &[Turn], after: &[Turn], ranks: u32, skew: u64) -> Program {
    let mut builder = ProgramBuilder::new();
    for rank in 0..ranks {
        write(&mut builder, before, rank, ranks, skew);
        builder.call(Function::Barrier, 0xa9, Action::Nothing);
        builder.begin();
        builder.call(Function::Barrier, 0xaa, Action::Nothing);
        write(&mut builder, within, rank, ranks, 1);
        builder.call(Function::Barrier, 0xab, Action::Nothing);
        builder.end(3);
        builder.call(Function::Barrier, 0xbb, Action::Nothing);
        write(&mut builder, after, rank, ranks, skew);
        builder.ranks(1);
    }
    builder.finish()
}

fn run(code: &Code<'_>, cluster: &Cluster) -> Outcome {
    let options = Options {
        timeline: true,
        ..Options::default()
    };
    interpret(code, cluster, &options).unwrap()
}

/// Checks that a reduced program has the same ends and computation on every rank, and that the times still add up.
fn same(program: &Program, reduced: &Reduced, cluster: &Cluster) {
    let whole = run(&Code::new(program), cluster);
    let code = Code::with_fragments(&reduced.program, &reduced.fragments);
    let part = run(&code, cluster);
    assert_eq!(part.problems, whole.problems);
    assert_eq!(part.time, whole.time);
    assert_eq!(part.timeline.unwrap().ends, whole.timeline.unwrap().ends);
    assert_eq!((part.messages, part.bytes), (whole.messages, whole.bytes));
    for (part, whole) in part.ranks.iter().zip(&whole.ranks) {
        assert_eq!(part.computation, whole.computation);
        assert_eq!(part.idle, whole.idle);
        assert_eq!(
            part.computation + part.opaque + part.communication + part.wait + part.idle,
            whole.computation + whole.opaque + whole.communication + whole.wait + whole.idle
        );
    }
    let path = part.critical_path.unwrap();
    assert_eq!(
        path.computation + path.communication + path.transfer,
        part.time
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_program_takes_as_long_with_its_fragments_reduced(
        before in proptest::collection::vec(turn(), 0..3),
        within in proptest::collection::vec(turn(), 1..5),
        after in proptest::collection::vec(turn(), 0..3),
        ranks in 2u32..8,
        skews in (0u64..50, 0u64..50),
    ) {
        for cluster in clusters() {
            let program_a = program(&before, &within, &after, ranks, skews.0);
            let program_b = program(&before, &within, &after, ranks, skews.1);
            for selection in [Selection::Loop(1), Selection::Site("program+0x80".into()), Selection::Site("program+0x60".into())] {
                let Ok(a) = reduce(&program_a, &cluster, &selection, None) else { continue };
                same(&program_a, &a, &cluster);
                // Events outside a fragment do not change it, and the fragment does not change them.
                let b = reduce(&program_b, &cluster, &selection, None).unwrap();
                prop_assert_eq!(&a.fragments, &b.fragments);
                same(&program_b, &b, &cluster);
            }
        }
    }
}

#[test]
fn what_the_published_model_allows_is_accepted() {
    let within = [
        Turn::Exchange(1, 100_000),
        Turn::Overlapped(1, 5000, 20),
        Turn::Together(CollectiveKind::Allreduce, 8),
        Turn::Pass(1, 50_000),
    ];
    let before = [Turn::Exchange(2, 70_000), Turn::Work(9)];
    for (cluster, accepted) in clusters().into_iter().zip([true, true, true, true]) {
        let program = program(&before, &within, &before, 6, 17);
        let reduced = reduce(&program, &cluster, &Selection::Loop(1), None);
        assert_eq!(
            reduced.is_ok(),
            accepted,
            "{}: {:?}",
            cluster.name,
            reduced.err()
        );
        let reduced = reduced.unwrap();
        assert_eq!(reduced.fragments.len(), 1);
        let fragment = &reduced.fragments[0];
        assert_eq!((fragment.ranks.len(), fragment.occurrences), (6, 1));
        same(&program, &reduced, &cluster);
        // A call site that occurs repeatedly with equal content is interpreted once.
        let sites = reduce(
            &program,
            &cluster,
            &Selection::Site("program+0x60".into()),
            None,
        )
        .unwrap();
        assert_eq!(
            (sites.fragments.len(), sites.fragments[0].occurrences),
            (1, 3)
        );
        same(&program, &sites, &cluster);
    }
}

#[test]
fn intervals_are_cut_between_calls() {
    let within = [Turn::Together(CollectiveKind::Barrier, 0)];
    let program = program(&[Turn::Work(100)], &within, &[Turn::Work(100)], 4, 1);
    let cluster = clusters().remove(1);
    let whole = run(&Code::new(&program), &cluster);
    let timeline = whole.timeline.unwrap();
    // From after the first work to before the last work.
    let from = timeline
        .calls
        .iter()
        .map(|calls| calls[1].enter)
        .min()
        .unwrap();
    let to = timeline
        .calls
        .iter()
        .map(|calls| calls[calls.len() - 2].leave)
        .max()
        .unwrap();
    let selection = Selection::Interval(from, to);
    let reduced = reduce(&program, &cluster, &selection, Some(&timeline)).unwrap();
    assert!(reduced.operations >= 4 * 6, "{}", reduced.operations);
    same(&program, &reduced, &cluster);
    // Within the loop, ranks are in different iterations or in the same one. A fragment that is not closed is refused; others give equal
    // times.
    for part in 1..20 {
        let selection = Selection::Interval(whole.time * part / 40, whole.time * (part + 12) / 40);
        if let Ok(reduced) = reduce(&program, &cluster, &selection, Some(&timeline)) {
            same(&program, &reduced, &cluster);
        }
    }
}

fn refused(program: &Program, cluster: &Cluster, selection: Selection) -> String {
    reduce(program, cluster, &selection, None)
        .unwrap_err()
        .to_string()
}

#[test]
fn fragments_that_are_not_closed_are_refused_with_the_reason() {
    let cluster = clusters().remove(1);
    let loop_of = |body: &dyn Fn(&mut ProgramBuilder, u32)| {
        let mut builder = ProgramBuilder::new();
        for rank in 0..3 {
            body(&mut builder, rank);
            builder.ranks(1);
        }
        builder.finish()
    };
    let marked = |builder: &mut ProgramBuilder| {
        builder.call(Function::Barrier, 0xaa, Action::Nothing);
    };
    // A message that is sent outside the fragment is received in it.
    let crosses = loop_of(&|builder, rank| {
        if rank == 0 {
            builder.send(PeerRef::Absolute(1), 0, 8);
        }
        builder.begin();
        marked(builder);
        builder.end(2);
        if rank == 1 {
            builder.begin();
            marked(builder);
            builder.receive(PeerRef::Absolute(0), 0, 8).end(1);
        }
    });
    let told = refused(&crosses, &cluster, Selection::Site("program+0x30".into()));
    assert!(told.contains("rank 1, MPI_Recv at program+0x30"), "{told}");
    assert!(
        told.contains("the other end is MPI_Send at program+0x10 of rank 0, outside"),
        "{told}"
    );
    // A collective in which one rank takes part outside the fragment.
    let partial = loop_of(&|builder, rank| {
        if rank < 2 {
            builder.begin();
            marked(builder);
            builder.collective(CollectiveKind::Allreduce, 0, 8).end(2);
        } else {
            builder.collective(CollectiveKind::Allreduce, 0, 8);
            marked(builder);
            builder.collective(CollectiveKind::Allreduce, 0, 8);
        }
    });
    let told = refused(&partial, &cluster, Selection::Loop(1));
    assert!(
        told.contains(
            "not all ranks of the collective are inside: MPI_Allreduce at program+0x60 of rank 2"
        ),
        "{told}"
    );
    // Requests that are still pending at the fragment's end.
    let pending = loop_of(&|builder, rank| {
        builder.isend(PeerRef::Absolute((rank + 1) % 3), 0, 8, 0);
        builder.ireceive(PeerRef::Absolute((rank + 2) % 3), 0, 8, 1);
        builder.wait(&[0, 1]);
    });
    let told = refused(&pending, &cluster, Selection::Site("program+0x20".into()));
    assert!(
        told.contains("requests are pending where the fragment ends"),
        "{told}"
    );
    // Receives whose senders are unknown.
    let open = loop_of(&|builder, rank| match rank {
        0 => {
            let action = Action::Receive {
                from: Source::Any,
                tag: None,
                room: 8,
                request: None,
            };
            builder.begin().call(Function::Recv, 0x33, action).end(2);
        }
        rank => {
            builder.begin().send(PeerRef::Absolute(0), rank, 8).end(1);
        }
    });
    let told = refused(&open, &cluster, Selection::Loop(1));
    assert!(told.contains("accepts any source or tag"), "{told}");
    let told = refused(&open, &cluster, Selection::Loop(9));
    assert!(told.contains("no rank has loop 9"), "{told}");
    let told = refused(&crosses, &cluster, Selection::Site("program+0xaa".into()));
    assert!(
        told.contains("has the call site program+0xaa 2 times, rank 1 3 times"),
        "{told}"
    );
}

#[test]
fn times_that_depend_on_an_order_are_refused_with_the_reason() {
    let halo = [Turn::Overlapped(1, 5000, 20)];
    let big = [Turn::Overlapped(1, 50_000, 20)];
    let free = clusters().remove(1);
    let told = |turns: &[Turn], cluster: Cluster| {
        let program = program(&[], turns, &[], 4, 3);
        refused(&program, &cluster, Selection::Loop(1))
    };
    let shared = Cluster {
        contention: true,
        ..free.clone()
    };
    assert!(told(&halo, shared).contains("set network.contention = false"));
    let beta = Cluster {
        progress: Progress::Thread { beta: 0.5 },
        ..free.clone()
    };
    assert!(told(&halo, beta).contains("set network.beta = 0"));
    let calls = Cluster {
        progress: Progress::Calls,
        ..free.clone()
    };
    assert!(told(&big, calls).contains("set network.progress_thread = true"));
    let mut copies = free.clone();
    copies.network.copy_per_byte = 100.0;
    assert!(told(&halo, copies).contains("copy_bandwidth"));
    let mut several = free;
    several.network.receive_overhead = Table::constant(US);
    let gather = [Turn::Together(CollectiveKind::Gather, 2000)];
    assert!(told(&gather, several).contains("receives several messages"));
}

#[test]
fn selections_are_read_as_they_are_written() {
    for (text, selection) in [
        ("loop:3", Selection::Loop(3)),
        ("program+0x1f", Selection::Site("program+0x1f".into())),
        (
            "1ms..2.5ms",
            Selection::Interval(1_000_000_000, 2_500_000_000),
        ),
    ] {
        assert_eq!(text.parse(), Ok(selection));
    }
    for text in ["loop:0", "loop:x", "2ms..1ms", "main", "program+12", "1..2"] {
        let told = text.parse::<Selection>().unwrap_err().to_string();
        assert!(told.contains("is no fragment; write"), "{told}");
    }
}
