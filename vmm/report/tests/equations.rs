//! Tests of equations (1) to (6), by hand and on random counters.

mod support;

use nodescope_hypercall::Function;
use nodescope_hypercall::record::Flags;
use nodescope_plugin_api::{Context, Counters, Privilege, Statistic, Term, VcpuPlace};
use nodescope_report::{CYCLE, CoreCpi, Report, ReportError, Scope, ScopeKind, TermValue, build};
use nodescope_trace::{Body, Event};
use nodescope_window::{NodeRecord, Owner};
use proptest::prelude::*;
use support::*;

fn report() -> Report {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    write_trace(&trace, &events());
    build(&input(Some(&trace), vec![window(vec![node0(), node1()])])).unwrap()
}

fn scope<'a>(report: &'a Report, name: &str) -> &'a Scope {
    let mut scopes = report.windows[0].scopes.iter();
    scopes.find(|scope| scope.name == name).unwrap()
}

fn terms(scope: &Scope) -> Vec<(&str, i128)> {
    let cycles = |term: &TermValue| {
        assert_eq!(term.cycles_65536 % CYCLE, 0);
        term.cycles_65536 / CYCLE
    };
    scope
        .terms
        .iter()
        .map(|term| (term.term.as_str(), cycles(term)))
        .collect()
}

#[test]
fn one_rank_by_hand() {
    let report = report();
    let rank = scope(&report, "rank 0");
    assert_eq!(rank.instructions, 1000);
    assert_eq!(rank.instructions_in_mpi, 200);
    assert_eq!(
        terms(rank),
        [
            ("core", 1050),
            ("L1", 360),
            ("L2", 580),
            ("L3", 1050),
            ("memory_local", 2000),
            ("memory_remote", 2200),
            ("mpi", 1000),
        ]
    );
    assert_eq!(rank.cycles_65536, 8240 * CYCLE);
    assert_eq!(rank.cpi, Some(8.24));
    let cpis: Vec<f64> = rank.terms.iter().filter_map(|term| term.cpi).collect();
    assert_eq!(cpis, [1.05, 0.36, 0.58, 1.05, 2.0, 2.2, 1.0]);
    // Equation (3): P x L of one event.
    let event = rank
        .events
        .iter()
        .find(|e| e.event == "L2.read_miss")
        .unwrap();
    assert_eq!((event.count, event.cycles), (40, 480));
    assert_eq!((event.per_instruction, event.latency), (Some(0.04), 12.0));
    // Equation (5): two calls of 500 cycles each.
    let [mpi] = &rank.mpi[..] else {
        panic!("{:?}", rank.mpi)
    };
    assert_eq!((mpi.function, mpi.calls), ("MPI_Allreduce", 2));
    assert_eq!(
        (mpi.per_instruction, mpi.latency),
        (Some(0.002), Some(500.0))
    );
    assert_eq!(
        (mpi.executing_65536 / CYCLE, mpi.stalled, mpi.waiting),
        (200, 300, 500)
    );
}

/// Checks the waiting of a rank that polls. Rank 0 is in its first Allreduce for 1000 cycles, from 2.5 us to 3 us at 2 GHz. Rank 1 comes
/// 0.4 us late, so that rank 0 waits for 800 cycles: 500 idle ones and 300 polled ones. The 500 busy cycles are 200 of instructions and 300
/// of stalls. The 300 polled cycles are taken from both in this ratio, so that 80 and 120 are left.
#[test]
fn a_rank_that_polls_for_a_late_one_waits() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let reduce = |rank: u32, entry, exit| {
        let mut event = call(rank, rank, Function::Allreduce, None, 8, entry, exit);
        if let Body::Mpi(call) = &mut event.body {
            call.record.communicator = 1;
            call.record.communicator_size = 2;
            call.record.thread.pid = 100 + rank;
        }
        event
    };
    let mut events = vec![
        hello(0, 0),
        hello(1, 1),
        reduce(1, 2_900_000, 2_950_000),
        reduce(0, 2_500_000, 3_000_000),
    ];
    let report = |events: &[Event]| {
        write_trace(&trace, events);
        build(&input(Some(&trace), vec![window(vec![node0(), node1()])])).unwrap()
    };
    let parts = |report: &Report| {
        let mpi = &scope(report, "rank 0").mpi[0];
        assert_eq!(mpi.cycles_65536, 1000 * CYCLE);
        let executing = mpi.executing_65536 / CYCLE;
        (executing, mpi.stalled, mpi.waiting, mpi.polling)
    };
    assert_eq!(parts(&report(&events)), (80, 120, 800, 300));
    assert_eq!(scope(&report(&events), "rank 0").cycles_65536, 8240 * CYCLE);
    // The first wait is shorter than the idle time; the second is longer than all cycles inside the calls.
    events[2] = reduce(1, 2_600_000, 2_950_000);
    assert_eq!(parts(&report(&events)), (200, 300, 500, 0));
    events[2] = reduce(1, 3_900_000, 3_950_000);
    events[3] = reduce(0, 2_500_000, 4_000_000);
    events.sort_by_key(Event::key);
    assert_eq!(parts(&report(&events)), (0, 0, 1000, 500));
    // Only the part of the wait inside the window counts.
    events = vec![
        hello(0, 0),
        hello(1, 1),
        reduce(1, 2_350_000, 2_950_000),
        reduce(0, 1_000_000, 3_000_000),
    ];
    assert_eq!(parts(&report(&events)), (120, 180, 700, 200));
}

/// Checks two programs that run one after the other in one window, both with a rank 0 on node 0. Rank 0 of the first does not poll: its
/// counters are those of `one_rank_by_hand`. Rank 0 of the second waits in MPI_Allreduce during the whole call.
#[test]
fn ranks_of_two_programs_wait_apart() {
    let of_second = |mut event: Event| {
        match &mut event.body {
            Body::Process(hello) => {
                hello.pid += 100;
                hello.program = "second".into();
            }
            Body::Mpi(call) => call.record.thread.pid += 100,
            _ => {}
        }
        event
    };
    let reduce = |rank: u32, entry, exit| {
        let mut event = call(rank, rank, Function::Allreduce, None, 8, entry, exit);
        if let Body::Mpi(call) = &mut event.body {
            call.record.communicator = 1;
            call.record.communicator_size = 2;
            call.record.thread.pid = 100 + rank;
        }
        event
    };
    let mut events = vec![
        hello(0, 0),
        hello(1, 1),
        reduce(1, 2_500_000, 2_600_000),
        reduce(0, 2_500_000, 2_750_000),
        reduce(0, 2_750_000, 3_000_000),
        reduce(1, 2_750_000, 3_000_000),
        of_second(hello(0, 0)),
        of_second(hello(1, 1)),
        of_second(reduce(0, 3_200_000, 4_000_000)),
        of_second(reduce(1, 4_000_000, 4_100_000)),
    ];
    for event in &mut events[6..8] {
        event.stamp.time = 3_100_000;
    }
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    write_trace(&trace, &events);
    let mut node = node0();
    // The second program's rank has counters like those of the first, in contexts of its own.
    let contexts = node.owners.len() as u32;
    for owner in node.owners.clone() {
        node.owners.push(match owner {
            Owner::Rank { rank, mpi, .. } => Owner::Rank {
                rank,
                program: "second".into(),
                mpi,
            },
            other => other,
        });
    }
    for (vcpu, context, privilege, counters) in node.counters.clone() {
        let context = Context(context.0 + contexts);
        node.counters.push((vcpu, context, privilege, counters));
    }
    let report = build(&input(Some(&trace), vec![window(vec![node, node1()])])).unwrap();
    let parts = |name| {
        let mpi = &scope(&report, name).mpi[0];
        assert_eq!(mpi.function, "MPI_Allreduce");
        let executing = mpi.executing_65536 / CYCLE;
        (mpi.calls, executing, mpi.stalled, mpi.waiting, mpi.polling)
    };
    assert_eq!(parts("rank 0 hpcc"), (2, 200, 300, 500, 0));
    assert_eq!(parts("rank 0 second"), (1, 0, 0, 1000, 500));
}

#[test]
fn flops_by_hand() {
    let report = report();
    let flops = &scope(&report, "rank 0").flops;
    assert_eq!((flops.total, flops.in_mpi), (510, 10));
    assert_eq!(flops.alpha, Some(0.5));
    let close = |value: Option<f64>, expected: f64| {
        let value = value.unwrap();
        assert!((value / expected - 1.0).abs() < 1e-12, "{value} {expected}");
    };
    // 1.05 / 0.5 + (8.24 - 1.05) = 9.29 cycles.
    close(flops.published_cycles, 9.29);
    close(flops.published_per_second, 2e9 / 9.29);
    // 510 operations in 8240 cycles of 0.5 ns, and in the 4.67 us of the window.
    close(flops.direct_per_second, 510.0 / 4.12e-6);
    close(flops.window_per_second, 510.0 / 4.67e-6);
    let packed = flops
        .by_class
        .iter()
        .find(|c| c.class == "packed256_double");
    assert_eq!(packed.unwrap().count, 400);
    // Without floating-point operations, equation (6) has no value.
    let flops = &scope(&report, "rank 1").flops;
    assert_eq!((flops.alpha, flops.published_per_second), (Some(0.0), None));
}

#[test]
fn ranks_and_others_make_up_nodes_and_nodes_the_total() {
    let report = report();
    let names: Vec<&str> = report.windows[0]
        .scopes
        .iter()
        .map(|s| s.name.as_str())
        .collect();
    assert_eq!(
        names,
        [
            "rank 0",
            "rank 1",
            "others node0",
            "others node1",
            "node0",
            "node1",
            "all ranks",
            "total"
        ]
    );
    assert_eq!(terms(scope(&report, "others node0"))[0], ("core", 400));
    let cycles = |name| scope(&report, name).cycles_65536 / CYCLE;
    assert_eq!((cycles("node0"), cycles("node1")), (8640, 2100));
    assert_eq!((cycles("all ranks"), cycles("total")), (10_340, 10_740));
    let clock = scope(&report, "node0").clock.unwrap();
    assert_eq!((clock.clock_cycles, clock.idle_cycles), (9340, 700));
    assert_eq!((clock.difference_65536, clock.consistent), (0, true));
    let clock = scope(&report, "total").clock.unwrap();
    assert_eq!((clock.clock_cycles, clock.idle_cycles), (18_680, 7940));
    assert_eq!(clock.difference_65536, 0);
    assert_eq!(scope(&report, "rank 0").clock, None);
    let user = &scope(&report, "node0").privileges;
    assert_eq!((user[0].privilege, user[0].instructions), ("user", 1100));
    assert_eq!((user[1].privilege, user[1].instructions), ("kernel", 500));
}

#[test]
fn a_replaced_core_cpi_takes_the_place_of_the_nominal_one() {
    let mut input = input(None, vec![window(vec![node0()])]);
    input.core = CoreCpi::Replaced {
        cpi: 0.75,
        source: "perf stat".into(),
    };
    let report = build(&input).unwrap();
    let rank = scope(&report, "rank 0");
    assert_eq!(terms(rank)[0], ("core", 750));
    assert_eq!(rank.cycles_65536, (8240 - 300) * CYCLE);
    // Inside MPI nothing changes; 300 cycles of the rank and 100 of the others are taken out.
    assert_eq!(terms(rank)[6], ("mpi", 1000));
    let clock = scope(&report, "node0").clock.unwrap();
    assert_eq!(clock.substituted_65536, 400 * CYCLE);
    assert_eq!((clock.difference_65536, clock.consistent), (0, true));
    input.core = CoreCpi::Replaced {
        cpi: f64::NAN,
        source: "perf stat".into(),
    };
    assert!(matches!(build(&input), Err(ReportError::CoreCpi { .. })));
}

#[test]
fn counters_give_each_rank_its_own_core_cpi() {
    let mut input = input(None, vec![window(vec![node0()])]);
    input.core = CoreCpi::PerRank {
        whole: 0.5,
        ranks: [(0, 0.75)].into(),
        source: "counters".into(),
    };
    let report = build(&input).unwrap();
    assert_eq!(terms(scope(&report, "rank 0"))[0], ("core", 750));
    // 400 instructions of the others take half a cycle each.
    let others = report.windows[0].scopes.iter();
    let others = others.clone().find(|scope| scope.kind == ScopeKind::Others);
    assert_eq!(terms(others.unwrap())[0], ("core", 200));
    let clock = scope(&report, "node0").clock.unwrap();
    assert_eq!((clock.difference_65536, clock.consistent), (0, true));
    let told = report
        .sources
        .iter()
        .find(|source| source.figure == "CPI_core");
    assert_eq!(
        told.unwrap().source,
        "imported: 0.5 (rank 0 0.75), counters"
    );
    assert!(report.text().contains("0.5, each rank its own (counters)"));
    input.core = CoreCpi::PerRank {
        whole: 0.5,
        ranks: [(0, f64::INFINITY)].into(),
        source: "counters".into(),
    };
    assert!(matches!(build(&input), Err(ReportError::CoreCpi { .. })));
}

#[test]
fn what_the_models_do_not_account_for_is_said() {
    let mut node = node0();
    node.counters[0].3.stall_cycles += 7;
    node.cycles[0].1 += 7;
    let report = build(&input(None, vec![window(vec![node.clone()])])).unwrap();
    let last = terms(scope(&report, "rank 0")).last().copied();
    assert_eq!(last, Some(("unattributed", 7)));
    assert!(
        report
            .notes
            .iter()
            .any(|note| note.contains("unattributed"))
    );
    // The clock now differs from the sum of the terms.
    node.cycles[0].1 += 5;
    let report = build(&input(None, vec![window(vec![node])])).unwrap();
    let clock = scope(&report, "node0").clock.unwrap();
    assert_eq!(
        (clock.difference_65536, clock.consistent),
        (5 * CYCLE, false)
    );
    assert!(report.notes.iter().any(|note| note.contains("rounding")));
}

#[test]
fn records_that_contradict_themselves_are_refused() {
    type Damage = fn(&mut NodeRecord);
    let damages: [(Damage, &str); 5] = [
        (|node| node.frequency_hz = 0, "0 Hz"),
        (|node| node.cycles.clear(), "0 clocks for 1 vCPUs"),
        (|node| node.cycles[0] = (5, 4), "backwards"),
        (|node| node.counters[0].0 = 1, "vCPU 1"),
        (|node| node.owners.truncate(1), "has no owner"),
    ];
    for (damage, text) in damages {
        let mut node = node0();
        damage(&mut node);
        let error = build(&input(None, vec![window(vec![node])])).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
}

fn counters() -> impl Strategy<Value = Counters> {
    let small = 0..1u64 << 40;
    (
        small.clone(),
        0..1u64 << 20,
        small.clone(),
        small,
        any::<[u32; 7]>(),
    )
        .prop_map(
            |(instructions, long_cycles, stall_cycles, idle_cycles, flops)| Counters {
                instructions,
                long_cycles,
                stall_cycles,
                idle_cycles,
                flops: flops.map(u64::from),
                ..Counters::default()
            },
        )
}

fn owner() -> impl Strategy<Value = Owner> {
    prop_oneof![
        Just(Owner::Other),
        Just(Owner::Process {
            pid: 1,
            program: "tool".into()
        }),
        (0..3u32).prop_map(|r| rank(r, None)),
        (0..3u32).prop_map(|r| rank(r, Some(Function::Recv))),
        (0..3u32).prop_map(|r| rank(r, Some(Function::Wait))),
    ]
}

/// Generates a node whose models account for every stall cycle and whose clocks show the counters' sums, down to the fraction that they
/// carry.
fn node(number: u32) -> impl Strategy<Value = NodeRecord> {
    let rows = prop::collection::btree_map((0..3u16, 0..6u32, any::<bool>()), counters(), 0..20);
    let owners = prop::collection::vec(owner(), 6);
    (rows, owners, 1..4 * 65_536u32, any::<u16>()).prop_map(
        move |(rows, owners, nominal, fraction)| {
            let mut node = NodeRecord {
                node: number,
                name: format!("node{number}"),
                frequency_hz: GHZ,
                nominal_cpi_65536: nominal,
                vcpus: VcpuPlace::grid(1, 3, 1),
                cycles: Vec::new(),
                counters: Vec::new(),
                statistics: Vec::new(),
                core: None,
                owners,
            };
            let mut clocks = [u128::from(fraction); 3];
            for ((vcpu, context, kernel), counters) in rows {
                let privilege = if kernel {
                    Privilege::Kernel
                } else {
                    Privilege::User
                };
                let context = Context(context);
                clocks[usize::from(vcpu)] += u128::from(counters.instructions)
                    * u128::from(nominal)
                    + u128::from(
                        counters.long_cycles + counters.stall_cycles + counters.idle_cycles,
                    ) * 65_536;
                let mut rest = counters.stall_cycles;
                for (event, term, share) in [
                    ("L1D.read_miss", Term::Cache(1), 3),
                    ("L2.read_miss", Term::Cache(2), 2),
                    ("memory.remote", Term::Memory, 4),
                    ("memory.local", Term::Memory, 1),
                ] {
                    let cycles = if share == 1 { rest } else { rest / share };
                    rest -= cycles;
                    node.statistics.push(Statistic {
                        vcpu,
                        context,
                        privilege,
                        event: event.into(),
                        term,
                        count: cycles / 7,
                        latency: 7,
                        cycles,
                    });
                }
                node.counters.push((vcpu, context, privilege, counters));
            }
            node.cycles = clocks
                .map(|clock| (1000, 1000 + (clock / 65_536) as u64))
                .to_vec();
            node
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn terms_add_up_exactly(
        (first, second) in (node(0), node(1)),
        polls in prop::collection::vec((0..2u32, 0..3u32, 0..6_000_000u64, 0..6_000_000u64), 0..8),
    ) {
        let nodes = vec![first, second];
        // Polls of the ranks that found nothing count as waiting, independently of the random counters.
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join("trace");
        let mut events: Vec<Event> = polls
            .into_iter()
            .map(|(node, rank, entry, length)| {
                let mut event = call(node, rank, Function::Wait, None, 0, entry, entry + length);
                if let Body::Mpi(call) = &mut event.body {
                    call.record.flags = Flags::POLL_RUN;
                }
                event
            })
            .collect();
        events.sort_by_key(Event::key);
        events.iter_mut().enumerate().for_each(|(at, event)| event.sequence = at as u64);
        write_trace(&trace, &events);
        let report = build(&input(Some(&trace), vec![window(nodes.clone())])).unwrap();
        let scopes = &report.windows[0].scopes;
        for scope in scopes {
            let sum: i128 = scope.terms.iter().map(|term| term.cycles_65536).sum();
            prop_assert_eq!(sum, scope.cycles_65536);
            prop_assert!(scope.terms.iter().all(|term| term.term != "unattributed"));
            let mpi: i128 = scope.mpi.iter().map(|m| m.cycles_65536).sum();
            prop_assert_eq!(mpi, scope.terms.iter().find(|t| t.term == "mpi").unwrap().cycles_65536);
            // Busy at each privilege + idle in MPI is the same sum.
            let busy: i128 = scope.privileges.iter().map(|p| p.cycles_65536).sum();
            let waiting: u128 = scope.mpi.iter().map(|m| m.waiting - m.polling).sum();
            for m in &scope.mpi {
                prop_assert!(m.executing_65536 >= 0);
                prop_assert_eq!(
                    m.executing_65536 + (m.stalled + m.waiting) as i128 * CYCLE,
                    m.cycles_65536
                );
            }
            prop_assert_eq!(busy + waiting as i128 * CYCLE, scope.cycles_65536);
        }
        let sum_of = |kind: ScopeKind, node: Option<u32>| -> i128 {
            scopes
                .iter()
                .filter(|s| s.kind == kind && (node.is_none() || s.node == node))
                .map(|s| s.cycles_65536)
                .sum()
        };
        prop_assert_eq!(
            sum_of(ScopeKind::Rank, None) + sum_of(ScopeKind::Others, None),
            sum_of(ScopeKind::Node, None)
        );
        prop_assert_eq!(sum_of(ScopeKind::Node, None), sum_of(ScopeKind::Total, None));
        prop_assert_eq!(sum_of(ScopeKind::Rank, None), sum_of(ScopeKind::Ranks, None));
        for record in &nodes {
            let node = scopes
                .iter()
                .find(|s| s.kind == ScopeKind::Node && s.node == Some(record.node))
                .unwrap();
            let clock = node.clock.unwrap();
            let clocks: u64 = record.cycles.iter().map(|(start, end)| end - start).sum();
            prop_assert_eq!(clock.clock_cycles, u128::from(clocks));
            prop_assert_eq!(
                node.cycles_65536 + (clock.idle_cycles as i128) * CYCLE + clock.substituted_65536
                    + clock.difference_65536,
                i128::from(clocks) * CYCLE
            );
            prop_assert!(clock.consistent, "{:?}", clock);
            // An independent count of the idle time.
            let idle: u64 = record
                .counters
                .iter()
                .filter(|(_, context, ..)| {
                    !matches!(record.owners[context.0 as usize], Owner::Rank { mpi: Some(_), .. })
                })
                .map(|(.., counters)| counters.idle_cycles)
                .sum();
            prop_assert_eq!(clock.idle_cycles, u128::from(idle));
        }
    }
}
