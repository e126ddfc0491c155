//! Several programs in one job: each is analysed as if it were alone.

#[path = "support/records.rs"]
mod records;

use nodescope_openmp::{
    Analysis, CodeLocator, MpiTime, Options, ProcessMpi, RankMpi, Record, State,
};
use records::record;

const MS: u128 = 1_000_000;

/// A program whose records are made by hand.
#[derive(Clone, Copy)]
struct Launch {
    name: &'static str,
    ranks: u32,
    threads: usize,
    pid: u32,
    /// Beginning, in milliseconds of the node's clock.
    from: u64,
    id: u64,
}

impl Launch {
    /// Returns the records of the ranks, two of which share a host. Each lasts a second.
    fn records(&self) -> Vec<Record> {
        let ranks = (0..self.ranks).map(|rank| {
            let lost = 100 + 30 * u64::from(rank);
            let mut threads = vec![vec![(State::Shared, 900)]];
            threads.resize(
                self.threads,
                vec![(State::Shared, 900 - lost), (State::WaitDesync, lost)],
            );
            let mut record = record(1000, &threads);
            let cells = record.threads.iter_mut().skip(1);
            cells.for_each(|thread| thread.cells[0].imbalance = lost);
            record.host = format!("node{}", rank / 2);
            record.pid = self.pid + rank;
            (record.rank, record.ranks) = (Some(rank), Some(self.ranks));
            record.mpi_program = self.id;
            record.clock.begin.1 = self.from * 1_000_000;
            record.clock.end.1 += self.from * 1_000_000;
            record.modules.get_mut(&1).unwrap().path = format!("/home/{}", self.name);
            record
        });
        ranks.collect()
    }

    /// Returns what a trace has of the ranks.
    fn mpi(&self, program: usize) -> MpiTime {
        let ranks = (0..self.ranks).map(|rank| ProcessMpi {
            program,
            rank,
            host: format!("node{}", rank / 2),
            pid: self.pid + rank,
            time: RankMpi {
                outer: 20 * MS,
                inner: (50 + 40 * u128::from(rank)) * MS,
                waited: 30 * MS,
            },
        });
        ranks.collect()
    }
}

fn analyse(programs: &[Launch], traced: bool) -> Analysis {
    let mut records: Vec<Record> = programs.iter().flat_map(Launch::records).collect();
    records.reverse();
    let mpi = (programs.iter().enumerate()).flat_map(|(number, one)| one.mpi(number));
    let options = Options {
        mpi: traced.then(|| mpi.collect()),
        ..Options::default()
    };
    Analysis::new(records, &options, &mut CodeLocator::new(&[]))
}

/// Pairs of programs, and the most processors that they use at the same time.
fn pairs() -> Vec<(&'static str, [Launch; 2], u64)> {
    let first = Launch {
        name: "heat",
        ranks: 4,
        threads: 4,
        pid: 100,
        from: 0,
        id: 7,
    };
    let after = Launch {
        pid: 200,
        from: 5000,
        id: 8,
        ..first
    };
    let beside = Launch { from: 500, ..after };
    vec![
        ("one after the other", [first, after], 16),
        (
            "one after the other, other size",
            [first, Launch { ranks: 2, ..after }],
            16,
        ),
        ("at the same time", [first, beside], 32),
        (
            "at the same time, other size and threads",
            [
                first,
                Launch {
                    ranks: 2,
                    threads: 2,
                    ..beside
                },
            ],
            20,
        ),
    ]
}

#[test]
fn each_program_is_analysed_as_if_it_were_alone() {
    for (what, programs, processors) in pairs() {
        for traced in [false, true] {
            let together = analyse(&programs, traced);
            assert_eq!(together.programs.len(), 2, "{what}");
            assert_eq!(together.processors, processors, "{what}");
            for (number, program) in programs.iter().enumerate() {
                let alone = analyse(&[*program], traced);
                let (own, expected) = (&together.programs[number], &alone.programs[0]);
                assert_eq!(own.hybrid, expected.hybrid, "{what}");
                assert_eq!(
                    (&own.name, own.ranks),
                    (&expected.name, Some(program.ranks))
                );
                assert_eq!(own.mpi_program, traced.then_some(number));
                assert_eq!(own.hybrid.mpi_parallel.is_some(), traced);
                let hybrid = &own.hybrid;
                let expected = u64::from(program.ranks) * program.threads as u64;
                assert_eq!(hybrid.processors, expected, "{what}");
                // The calling thread of rank 0 is in MPI for 50 ms, that of each further rank 40 ms longer.
                let n = u128::from(program.ranks);
                let inner = (50 * n + 20 * n * (n - 1)) * MS;
                assert_eq!(hybrid.times.mpi, if traced { inner } else { 0 });
                let processes = |analysis: &Analysis, of: usize| -> Vec<String> {
                    let own = analysis.programs[of].processes.iter();
                    own.map(|at| serde_json::to_string(&analysis.processes[*at]).unwrap())
                        .collect()
                };
                assert_eq!(processes(&together, number), processes(&alone, 0), "{what}");
            }
        }
    }
}

#[test]
fn text_and_page_show_the_programs_apart() {
    let (_, programs, _) = pairs().remove(0);
    let analysis = analyse(&programs, true);
    let text = analysis.text();
    let summary = "2 programs, which used at most 16 processors of 2 nodes at the same time";
    assert!(text.starts_with(summary), "{text}");
    let titles = [
        "Program 0, heat, 4 ranks\n---",
        "Program 1, heat, 4 ranks\n---",
    ];
    let parts: Vec<&str> = (titles.iter())
        .map(|title| {
            let from = text
                .find(title)
                .unwrap_or_else(|| panic!("{title} in {text}"));
            &text[from..]
        })
        .collect();
    let alone = analyse(&programs[..1], true).text();
    for part in parts {
        assert!(part.contains(alone.trim_end()), "{alone} in {part}");
    }
    let page = analysis.html().unwrap();
    for title in [
        "Program 0, heat, 4 ranks: Efficiencies",
        "Program 1, heat, 4 ranks: Efficiencies",
    ] {
        assert!(page.contains(title), "{page}");
    }
    assert!(
        analysis
            .protocol()
            .contains("program 1, heat, 4 ranks, rank 0 on node0, ")
    );
}

#[test]
fn records_without_ids_are_told_apart_by_order_and_name() {
    let (_, [first, second], _) = pairs().remove(0);
    let without = [Launch { id: 0, ..first }, Launch { id: 0, ..second }];
    assert_eq!(analyse(&without, false).programs.len(), 2);
    let beside = [
        Launch { id: 0, ..first },
        Launch {
            id: 0,
            name: "ring",
            from: 1,
            ..second
        },
    ];
    let analysis = analyse(&beside, false);
    let names: Vec<&str> = (analysis.programs.iter())
        .map(|program| program.name.as_str())
        .collect();
    assert_eq!(names, ["heat", "ring"]);
}

#[test]
fn a_trace_of_another_run_gives_the_ranks_times_where_there_is_one_program() {
    let (_, [first, second], _) = pairs().remove(0);
    let analyse = |records: Vec<Record>, mpi: MpiTime| {
        let options = Options {
            mpi: Some(mpi),
            ..Options::default()
        };
        Analysis::new(records, &options, &mut CodeLocator::new(&[]))
    };
    let other = analyse(first.records(), second.mpi(0));
    let same = analyse(first.records(), first.mpi(0));
    assert_eq!(other.programs[0].hybrid, same.programs[0].hybrid);
    // Of two programs none is taken.
    let both = [first.records(), second.records()].concat();
    let other = Launch { pid: 900, ..first };
    let analysis = analyse(both, other.mpi(0));
    for program in &analysis.programs {
        assert_eq!(program.hybrid.mpi_parallel, None);
    }
}

#[test]
fn processes_without_mpi_are_programs_of_their_own() {
    let (_, [first, _], _) = pairs().remove(0);
    let mut records = first.records();
    for record in &mut records {
        (record.rank, record.ranks, record.mpi_program) = (None, None, 0);
    }
    records[2].clock.begin.1 += 5_000_000_000;
    records[2].clock.end.1 += 5_000_000_000;
    let analysis = Analysis::new(records, &Options::default(), &mut CodeLocator::new(&[]));
    assert_eq!(analysis.programs.len(), 4);
    assert!(analysis.programs.iter().all(|one| one.ranks.is_none()));
    // Two at a time on node 0; one after the other on node 1.
    assert_eq!(analysis.processors, 8 + 4);
}
