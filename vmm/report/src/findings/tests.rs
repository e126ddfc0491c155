//! Tests of the findings on windows and profiles made by hand.

use super::*;
use crate::breakdown::{CYCLE, EventValue, MpiValue, TermValue};
use crate::flops::Flops;
use crate::mpi::{FunctionRow, MessageSize, ProgramReport, RankRow};

const HZ: f64 = 1e9;

/// Returns a scope of 1000 instructions whose terms have these cycles.
fn scope(kind: ScopeKind, rank: Option<u32>, terms: &[(&str, i128)]) -> Scope {
    let cycles: i128 = terms.iter().map(|(_, cycles)| cycles * CYCLE).sum();
    let busy_seconds = cycles as f64 / CYCLE as f64 / HZ;
    let terms = terms.iter().map(|&(term, cycles)| TermValue {
        term: term.into(),
        cycles_65536: cycles * CYCLE,
        cpi: Some(cycles as f64 / 1000.0),
    });
    Scope {
        name: "scope".into(),
        kind,
        rank,
        node: None,
        instructions: 1000,
        instructions_in_mpi: 0,
        cycles_65536: cycles,
        cpi: Some(cycles as f64 / CYCLE as f64 / 1000.0),
        terms: terms.collect(),
        events: Vec::new(),
        mpi: Vec::new(),
        flops: Flops::new(&Default::default(), 0, 1000, 0, cycles, busy_seconds, 1.0),
        privileges: Vec::new(),
        clock: None,
    }
}

fn window(scopes: Vec<Scope>) -> WindowReport {
    WindowReport {
        name: "w".into(),
        complete: true,
        warm_up_only: false,
        trigger: String::new(),
        triggered_ps: 0,
        opened_ps: 0,
        measured_from_ps: 0,
        closed_ps: 1,
        models: String::new(),
        registered_models: Vec::new(),
        scopes,
        cores: Vec::new(),
        sampled: None,
        timed: None,
        code: None,
    }
}

fn inside(function: &'static str, busy: i128, waiting: u128) -> MpiValue {
    MpiValue {
        function,
        calls: 1,
        per_instruction: None,
        latency: None,
        cycles_65536: (busy + waiting as i128) * CYCLE,
        executing_65536: busy * CYCLE,
        stalled: 0,
        waiting,
        polling: 0,
        cpi: None,
    }
}

fn texts(scopes: Vec<Scope>) -> Vec<String> {
    let found = find(&[window(scopes)], None);
    found.into_iter().map(|finding| finding.text).collect()
}

fn all(mpi: Vec<MpiValue>) -> Scope {
    let inside = mpi.iter().map(|value| value.cycles_65536 / CYCLE).sum();
    let terms = [("core", 900), ("L1", 100), ("mpi", inside)];
    Scope {
        mpi,
        ..scope(ScopeKind::Ranks, None, &terms)
    }
}

#[test]
fn mpi_is_told_from_a_fifth_of_the_cpi_on_and_with_its_main_cause() {
    assert!(texts(vec![all(vec![inside("MPI_Recv", 240, 0)])]).is_empty());
    assert_eq!(
        texts(vec![all(vec![inside("MPI_Recv", 100, 900)])]),
        ["Window \"w\": 50 % of the CPI is MPI, most of it waiting in MPI_Recv."]
    );
    assert_eq!(
        texts(vec![all(vec![inside("MPI_Recv", 900, 100)])]),
        ["Window \"w\": 50 % of the CPI is MPI, most of it in MPI_Recv; 10 % of it is waiting."]
    );
    let several = vec![
        inside("MPI_Recv", 100, 300),
        inside("MPI_Send", 300, 0),
        inside("MPI_Wait", 300, 0),
    ];
    assert_eq!(
        texts(vec![all(several)]),
        [
            "Window \"w\": 50 % of the CPI is MPI; 30 % of it is waiting. MPI_Recv has the largest part of MPI, 40 %."
        ]
    );
}

#[test]
fn a_rank_that_computes_longer_is_named() {
    let ranks = |cycles: &[i128]| {
        let mut scopes: Vec<Scope> = (0..)
            .zip(cycles)
            .map(|(rank, &cycles)| {
                let terms = [("core", cycles), ("mpi", 2000 - cycles)];
                scope(ScopeKind::Rank, Some(rank), &terms)
            })
            .collect();
        scopes.push(scope(ScopeKind::Ranks, None, &[("core", 1000)]));
        texts(scopes)
    };
    assert_eq!(
        ranks(&[1700, 1000, 1000]),
        ["Window \"w\": rank 0 computes 1.7 times as long as the mean of the other ranks."]
    );
    assert_eq!(
        ranks(&[1000, 1300, 1300]),
        ["Window \"w\": rank 1 computes 1.3 times as long as rank 0."]
    );
    assert!(ranks(&[1000, 1100, 1150]).is_empty());
    assert!(ranks(&[1000]).is_empty());
}

#[test]
fn memory_and_another_sockets_memory_are_told() {
    let mut scope = scope(
        ScopeKind::Ranks,
        None,
        &[
            ("core", 600),
            ("L1", 50),
            ("memory_local", 200),
            ("memory_remote", 150),
        ],
    );
    for (term, count) in [("memory_local", 3), ("memory_remote", 1)] {
        scope.events.push(EventValue {
            event: term.into(),
            term: Some(term.into()),
            count,
            per_instruction: None,
            latency: 1.0,
            cycles: 1,
        });
    }
    assert_eq!(
        texts(vec![scope.clone()]),
        [
            "Window \"w\": caches and memory take 40 % of the cycles outside MPI; the largest part is local memory, 20 %.",
            "Window \"w\": 25 % of the references that memory answers go to another socket; they take 15 % of the cycles outside MPI.",
        ]
    );
    scope.events[0].count = 10_000;
    assert_eq!(texts(vec![scope]).len(), 1);
}

fn run(mpi_ps: u64, sizes: &[(u64, u64)]) -> MpiReport {
    let row = |function, time_ps| FunctionRow {
        rank: None,
        function,
        calls: 1,
        calls_per_second: None,
        send_bytes: 0,
        receive_bytes: 0,
        time_ps,
        mean_ps: 0.0,
        max_ps: 0,
    };
    let program = ProgramReport {
        ranks: vec![RankRow::default(), RankRow::default()],
        from_ps: 1000,
        to_ps: 2000,
        functions: vec![
            row("MPI_Send", mpi_ps / 4),
            row("MPI_Recv", mpi_ps - mpi_ps / 4),
            row("MPI_Finalize", 1900),
        ],
        message_sizes: (sizes.iter())
            .map(|&(up_to_bytes, messages)| MessageSize {
                up_to_bytes,
                messages,
                bytes: up_to_bytes * messages,
            })
            .collect(),
        ..ProgramReport::default()
    };
    MpiReport {
        programs: vec![program],
        ..MpiReport::default()
    }
}

#[test]
fn the_whole_runs_mpi_and_sizes_of_messages_are_told() {
    let texts = |mpi: MpiReport| -> Vec<String> {
        let found = find(&[], Some(&mpi));
        found.into_iter().map(|finding| finding.text).collect()
    };
    assert!(texts(run(300, &[(4, 1000)])).is_empty());
    assert_eq!(
        texts(run(1000, &[(256, 900), (1 << 16, 100)])),
        [
            "Whole run: 50 % of the ranks' time is MPI, without initialisation and end; MPI_Recv has the largest part of it, 75 %.",
            "Whole run: 90 % of the 1,000 point-to-point messages have at most 1 KiB. The network's latency matters more for them than its bandwidth.",
        ]
    );
    assert_eq!(
        texts(run(1000, &[(256, 900), (1 << 20, 100)]))[1],
        "Whole run: 90 % of the 1,000 point-to-point messages have at most 1 KiB, but 99.8 % of the bytes are in messages of more than 64 KiB. Both the latency and the bandwidth of the network matter."
    );
    assert_eq!(
        texts(run(1000, &[(256, 400), (1 << 18, 600)]))[1],
        "Whole run: 99.9 % of the bytes of the 1,000 point-to-point messages are in messages of more than 64 KiB. The network's bandwidth matters more for them than its latency."
    );
    assert_eq!(texts(run(1000, &[(0, 400), (4096, 600)])).len(), 1);
    assert_eq!(texts(run(1000, &[(0, 400)])).len(), 2);
    assert_eq!(texts(run(1000, &[(256, 4)])).len(), 1);
    assert!(texts(MpiReport::default()).is_empty());
}

#[test]
fn findings_of_several_programs_name_the_program_and_weigh_its_part_of_the_time() {
    let mut mpi = run(300, &[]);
    let mut second = run(1000, &[(256, 900)]).programs.remove(0);
    (second.number, second.name) = (1, "heat".into());
    mpi.programs[0].name = "heat".into();
    mpi.programs.push(second);
    let found = find(&[], Some(&mpi));
    let of: Vec<_> = found.iter().map(|found| found.program).collect();
    assert_eq!(of, [Some(1), Some(1)]);
    assert!(
        found[0].text.starts_with("MPI program 1, heat: 50 % of"),
        "{found:?}"
    );
    assert!(
        found[1].text.starts_with("MPI program 1, heat: "),
        "{found:?}"
    );
    let alone = find(&[], Some(&run(1000, &[(256, 900)])));
    assert_eq!(found[0].weight, alone[0].weight / 2.0);
}

#[test]
fn at_most_so_many_findings_stand_in_the_order_of_their_weight() {
    let windows: Vec<WindowReport> = (1..=8)
        .map(|n| window(vec![all(vec![inside("MPI_Recv", 100 * n, 200)])]))
        .collect();
    let found = find(&windows, None);
    assert_eq!(found.len(), MOST);
    assert!(
        found
            .windows(2)
            .all(|pair| pair[0].weight >= pair[1].weight)
    );
}
