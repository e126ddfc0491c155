//! The characteristics, from records that are made by hand or at random.

#[path = "support/records.rs"]
mod records;

use nodescope_openmp::{
    Analysis, Characteristics, CodeLocator, Options, ProcessMpi, RankMpi, STATES, State,
};
use proptest::prelude::*;
use records::record;

#[test]
fn the_published_protocol_of_ep_comes_out() {
    // NAS EP, class B, eight threads: 552 outside of work-sharing in each thread, of which one thread's count as productive, and 47 of waiting.
    let threads: Vec<Vec<(State, u64)>> = (0..8)
        .map(|number| {
            let outside = if number == 0 {
                State::Primary
            } else {
                State::Replicated
            };
            let desync = if number < 2 { 19 } else { 18 };
            vec![
                (outside, 552),
                (State::Shared, 6451 - 552 - 47),
                (State::WaitDesync, desync),
                (State::WaitBarrier, 47 - desync),
            ]
        })
        .collect();
    let of = Characteristics::of_interval(&record(6451, &threads), 0, 8);
    let expected = "\
Execution time                        6451
Processors                               8
Total time                           51608
Productive time                      47368
Idle time                                0
Lost time                             4240
  Insufficient parallelism            3864
  Desynchronisation                    146
  Barrier                              230
  Lock                                   0
  Critical                               0
  Ordered                                0
  Task                                   0
Efficiency                         91.784%
";
    assert_eq!(of.protocol(), expected);
}

#[test]
fn serial_parts_leave_processors_idle() {
    let of =
        Characteristics::of_interval(&record(1000, &[vec![(State::Serial, 1000)], vec![]]), 0, 2);
    assert_eq!(
        (of.productive, of.idle, of.lost_sum),
        (1_000_000_000, 1_000_000_000, 0)
    );
    assert_eq!(of.efficiency.0, 0.5);
}

#[test]
fn fewer_processors_than_threads_are_told() {
    let busy = vec![(State::Shared, 1000)];
    let records = vec![record(1000, &[busy.clone(), busy])];
    let options = Options {
        processors: Some(1),
        ..Options::default()
    };
    let analysis = Analysis::new(records, &options, &mut CodeLocator::new(&[]));
    let notes = analysis.processes[0].notes.join("\n");
    assert!(
        notes.contains("1 processors are fewer than the 2 threads"),
        "{notes}"
    );
    let of = &analysis.processes[0].intervals[0].characteristics;
    assert_eq!((of.total, of.productive), (1_000_000_000, 1_000_000_000));
}

#[test]
fn processes_are_ranked_by_what_they_lose() {
    let mut records = Vec::new();
    for (rank, lost) in [(0, 10), (1, 300), (2, 200)] {
        let mut record = record(
            1000,
            &[
                vec![(State::Shared, 1000)],
                vec![(State::Shared, 1000 - lost), (State::WaitDesync, lost)],
            ],
        );
        record.rank = Some(rank);
        record.ranks = Some(4);
        records.push(record);
    }
    records.reverse();
    let analysis = Analysis::new(records, &Options::default(), &mut CodeLocator::new(&[]));
    let ranks: Vec<_> = analysis
        .processes
        .iter()
        .map(|process| process.rank)
        .collect();
    assert_eq!(ranks, [Some(0), Some(1), Some(2)]);
    assert_eq!(analysis.ranking, [1, 2, 0]);
    let notes = analysis.programs[0].notes.join("\n");
    assert!(
        notes.contains("records of 3 of 4 ranks are there"),
        "{notes}"
    );
    let text = analysis.text();
    assert!(
        text.find("rank 1 on host") < text.find("rank 2 on host"),
        "{text}"
    );
}

#[test]
fn waiting_in_mpi_is_told_beside_what_openmp_loses() {
    let records = [(0, 0), (1, 400)].map(|(rank, lost)| {
        let worker = vec![(State::Shared, 1000 - lost), (State::WaitDesync, lost)];
        let mut record = record(1000, &[vec![(State::Shared, 1000)], worker]);
        record.rank = Some(rank);
        record.ranks = Some(2);
        (record.pid, record.mpi_program) = (10 + rank, 7);
        record.threads[1].cells[0].imbalance = lost;
        record
    });
    let waits = RankMpi {
        inner: 300_000_000,
        waited: 250_000_000,
        ..RankMpi::default()
    };
    let mut options = Options::default();
    let analyse =
        |options: &Options| Analysis::new(records.to_vec(), options, &mut CodeLocator::new(&[]));
    let title = "Processor time that each rank loses to MPI and to OpenMP";
    assert!(!analyse(&options).text().contains(title));
    options.mpi = Some(vec![ProcessMpi {
        host: "host".into(),
        pid: 10,
        time: waits,
        ..ProcessMpi::default()
    }]);
    let analysis = analyse(&options);
    // Of 4 s of processors, 0.4 s are lost in regions, and 0.3 s pass in MPI.
    assert_eq!(
        analysis.brief(),
        [
            "parallel efficiency 82.5 %; of OpenMP 90.0 %: serialisation 100.0 %, load balance 90.0 %, scheduling 100.0 %"
        ]
    );
    let text = analysis.text();
    let from = text.find(title).unwrap();
    let rows: Vec<Vec<&str>> = (text[from..].lines().skip(2).take(2))
        .map(|line| line.split_whitespace().collect())
        .collect();
    let cells = |row: &str| -> Vec<String> { row.split_whitespace().map(str::to_owned).collect() };
    // Rank 1 loses 400 ms in its regions, rank 0 spends 300 ms in MPI, 250 of them waiting.
    assert_eq!(
        rows,
        [
            cells("rank 1 on host 80.0 % 0 ns 0 ns 0 ns 400.0 ms 0 ns 400.0 ms 0 ns OpenMP"),
            cells("rank 0 on host 85.0 % 300.0 ms 300.0 ms 250.0 ms 0 ns 0 ns 0 ns 0 ns MPI"),
        ]
    );
    assert!(analysis.html().unwrap().contains(title));
}

#[test]
fn the_page_is_xml_and_names_every_part() {
    let mut record = record(
        1000,
        &[vec![(State::Shared, 1000)], vec![(State::WaitLock, 900)]],
    );
    record.host = "</title><script>".into();
    let analysis = Analysis::new(
        vec![record.clone(), record],
        &Options::default(),
        &mut CodeLocator::new(&[]),
    );
    let page = analysis.html().unwrap();
    let section = format!("<section>{}</section>", analysis.section().unwrap());
    for markup in [&page, &section] {
        let options = roxmltree::ParsingOptions {
            allow_dtd: true,
            ..roxmltree::ParsingOptions::default()
        };
        roxmltree::Document::parse_with_options(markup, options).unwrap();
        for name in [
            "productive",
            "idle",
            "desynchronisation",
            "insufficient parallelism",
            " on &lt;/title&gt;",
        ] {
            assert!(markup.contains(name), "{name}");
        }
        // The only script is the page's own.
        assert!(markup.matches("<script>").count() <= 1 && !markup.contains("title><script>"));
    }
    // A section has no titles of the page's own level.
    assert!(!section.contains("<h2>") && section.contains("<h4>"));
}

proptest! {
    #[test]
    fn productive_idle_and_lost_time_add_up_to_the_total(
        execution in 0u64..1 << 50,
        times in prop::collection::vec(prop::collection::vec(0u64..1 << 50, STATES), 1..9),
        frequency in (1u64..1 << 40, 1u64..1 << 40),
        processors in 1u32..64,
    ) {
        let states = [
            State::Serial, State::Start, State::Primary, State::Replicated, State::Shared, State::Task, State::WaitBarrier,
            State::WaitLock, State::WaitCritical, State::WaitOrdered, State::WaitDesync, State::WaitFlush, State::WaitTask,
        ];
        let threads: Vec<Vec<(State, u64)>> = times
            .iter()
            .map(|times| states.into_iter().zip(times.iter().copied()).collect())
            .collect();
        let mut record = record(execution, &threads);
        record.clock.end = frequency;
        let of = Characteristics::of_interval(&record, 0, processors);
        prop_assert_eq!(of.productive + of.idle + of.lost.sum(), of.total);
        prop_assert_eq!(of.lost_sum, of.lost.sum());
        prop_assert_eq!(of.total, of.execution * u128::from(processors));
        prop_assert!((0.0..=1.0).contains(&of.efficiency.0));
    }

    #[test]
    fn where_threads_fit_no_part_is_cut(
        waits in prop::collection::vec((0u64..1000, 0u64..1000, 0u64..1000), 1..9),
    ) {
        let threads: Vec<Vec<(State, u64)>> = (waits.iter())
            .map(|(shared, replicated, desync)| {
                vec![(State::Shared, *shared), (State::Replicated, *replicated), (State::WaitDesync, *desync)]
            })
            .collect();
        let of = Characteristics::of_interval(&record(3000, &threads), 0, threads.len() as u32);
        let sum = |f: fn(&(u64, u64, u64)) -> u64| waits.iter().map(|times| u128::from(f(times)) * 1_000_000).sum::<u128>();
        prop_assert_eq!(of.productive, sum(|times| times.0));
        prop_assert_eq!(of.lost.insufficient_parallelism, sum(|times| times.1));
        prop_assert_eq!(of.lost.desynchronisation, sum(|times| times.2));
    }
}
