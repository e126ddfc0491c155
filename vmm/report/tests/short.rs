//! Tests of the short report, and of the sections of the whole one.

#[path = "../../trace/tests/launched/mod.rs"]
mod launched;
#[path = "../../profile/tests/support/mod.rs"]
mod profiles;
#[path = "support/solver.rs"]
mod solver;
mod support;

use std::path::Path;

use launched::pairs;
use nodescope_plugin_api::{Interval, Timed};
use nodescope_report::{Finding, FindingKind, OpenMpText, Report, ReportInput, Section, build};
use nodescope_trace::TraceWriter;
use nodescope_verdict::{Cause, Class, Kind, Place, RuledOut, Verdict};
use nodescope_window::{CoreRecord, Sampling};
use solver::with_code;

/// Most lines of the short report, with those that a command adds: the page, the folder, the host's time.
const MOST_LINES: usize = 40 - 3;

fn built(change: impl FnOnce(&mut ReportInput)) -> Report {
    let folder = tempfile::tempdir().unwrap();
    let mut input = with_code(folder.path());
    change(&mut input);
    build(&input).unwrap()
}

/// Returns the report of a run in which nothing was measured.
fn nothing() -> Report {
    built(|input| {
        (input.trace, input.profiles) = (None, None);
        input.windows.windows.clear();
        input.windows.outcomes.clear();
        input.network.clear();
    })
}

fn cause(kind: Kind, what: &str) -> Cause {
    Cause {
        kind,
        class: Class::Replayed,
        gain_ps: 300_000_000,
        gain: 0.3,
        place: Place {
            code: None,
            text: "MPI_Barrier in main".into(),
            rank: None,
        },
        what: what.into(),
        remedy: "Leave the barrier out.".into(),
    }
}

fn verdict(causes: Vec<Cause>) -> Verdict {
    let ruled_out = Kind::OF_TRACE.map(|kind| RuledOut { kind, gain: 0.0 });
    Verdict {
        traced_ps: 1_000_000_000,
        start_up_ps: 0,
        replayed_ps: 1_000_000_000,
        causes,
        remedied_ps: 700_000_000,
        ruled_out: ruled_out.into(),
        quality: vec!["the replay is good".into()],
    }
}

fn threads() -> OpenMpText {
    OpenMpText {
        summary: vec!["parallel efficiency 66.6 %".into()],
        text: "2 processes on 4 processors\n".into(),
    }
}

/// Checks that a short report fits a screen, and names a section that has data. Returns the report and the section.
fn screen(report: &Report) -> (String, Section) {
    let text = report.short("results/x");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() <= MOST_LINES, "{} lines\n{text}", lines.len());
    for line in &lines {
        assert!(line.chars().count() <= 100, "{line}");
        assert_eq!(*line, line.trim_end());
        assert!(!line.contains(char::is_control), "{line:?}");
    }
    let name = text
        .split_once("nodescope report results/x --section ")
        .unwrap()
        .1;
    let section: Section = name.lines().next().unwrap().parse().unwrap();
    assert!(report.section(section).is_some(), "{section:?}\n{text}");
    (text, section)
}

#[test]
fn the_short_report_is_the_golden_one() {
    let mut report = built(|_| {});
    report.verdict = Some(verdict(vec![cause(
        Kind::Barrier,
        "MPI_Barrier makes ranks wait.",
    )]));
    report.openmp = Some(threads());
    let (text, section) = screen(&report);
    assert_eq!(section, Section::Mpi);
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/short.txt");
    if std::env::var_os("NODESCOPE_BLESS").is_some() {
        std::fs::write(&golden, &text).unwrap();
    }
    let expected = std::fs::read_to_string(&golden).unwrap();
    assert_eq!(
        text, expected,
        "set NODESCOPE_BLESS=1 to accept the new text"
    );
}

#[test]
fn findings_stand_where_no_cause_does() {
    let mut report = built(|_| {});
    let first = format!(
        "  1. {}",
        report.findings[0].text.split_once(' ').unwrap().0
    );
    assert!(screen(&report).0.contains(&first));
    report.verdict = Some(verdict(Vec::new()));
    let (text, _) = screen(&report);
    assert!(
        text.contains(&first) && text.contains("No cause was found"),
        "{text}"
    );
    report.verdict = Some(verdict(vec![cause(Kind::MemoryBound, "A line waits.")]));
    let (text, section) = screen(&report);
    assert!(!text.contains("Findings"), "{text}");
    assert_eq!(section, Section::Code);
}

#[test]
fn a_deadlock_comes_before_every_cause() {
    let mut report = built(|_| {});
    report.verdict = Some(verdict(vec![cause(Kind::MemoryBound, "A line waits.")]));
    let deadlock = Finding {
        what: FindingKind::Deadlock {
            ranks: vec![0, 1],
            cycle: Vec::new(),
        },
        weight: 1.0,
        text: "Deadlock: 2 ranks wait for ever.".into(),
        program: None,
    };
    report.findings.insert(0, deadlock);
    let (text, section) = screen(&report);
    assert!(text.contains("  1. Deadlock: 2 ranks"), "{text}");
    assert!(!text.contains("Verdict"), "{text}");
    assert_eq!(section, Section::Mpi);
}

#[test]
fn a_run_that_measured_nothing_has_a_short_report() {
    let mut report = nothing();
    let (text, section) = screen(&report);
    assert!(
        text.contains("No window was measured, and no MPI call was traced."),
        "{text}"
    );
    assert_eq!(section, Section::Notes);
    report.openmp = Some(threads());
    let (text, section) = screen(&report);
    assert!(
        text.contains("OpenMP      parallel efficiency 66.6 %"),
        "{text}"
    );
    assert_eq!(section, Section::OpenMp);
}

#[test]
fn how_the_run_ended_is_the_first_note() {
    let report = built(|input| {
        input.trace = None;
        input.notes = vec!["the job ended with status 3".into()];
    });
    assert!(
        screen(&report)
            .0
            .contains("note        the job ended with status 3\n")
    );
}

#[test]
fn a_sampled_window_tells_the_error_of_its_clock() {
    let with_intervals = |count: usize| {
        let report = built(|input| {
            let window = &mut input.windows.windows[0];
            window.spec.sampling = Some(Sampling::of(1, 2_000_000_000));
            let from = window.measured_from_ps.unwrap();
            window.intervals_ps = vec![(from, from + (window.closed_ps - from) / 10)];
            for node in &mut window.nodes {
                let interval = |number| Interval {
                    instructions: 1_000_000,
                    cycles: 1_000_000,
                    predicted: 1_000_000 + 20_000 * number as u64,
                };
                node.core = Some(CoreRecord {
                    core: "AMD Zen 4".into(),
                    timed: Timed::default(),
                    intervals: (0..count).map(interval).collect(),
                });
            }
        });
        screen(&report).0
    };
    let text = with_intervals(4);
    let expected = "sampled: 4 intervals, 10.0 % of it, error of the clock +3.0 % ± ";
    assert!(
        text.replace("\n            ", " ").contains(expected),
        "{text}"
    );
    assert!(with_intervals(2).contains("too few to tell the error"));
}

#[test]
fn much_and_long_and_hostile_data_fit_the_screen() {
    let long = format!("{} \u{1b}[31m \u{9b}2J", "a very long name ".repeat(2000));
    let mut report = built(|input| {
        input.study.name = long.clone();
        input.notes = vec![long.clone(); 30];
        let window = input.windows.windows[0].clone();
        for number in 0..300 {
            let mut window = window.clone();
            window.name = format!("{long} {number}");
            input.windows.windows.push(window);
        }
    });
    let mut of_run = verdict(vec![cause(Kind::Barrier, &long); 6]);
    of_run.quality = vec![long.clone(); 4];
    report.verdict = Some(of_run);
    report.openmp = Some(OpenMpText {
        summary: vec![long.clone(); 9],
        text: long,
    });
    let (text, section) = screen(&report);
    assert_eq!(section, Section::Mpi);
    let notes = format!("{} more notes", report.notes.len() - 2);
    for words in ["(the first 3 of 6 causes)", "299 more windows", &notes] {
        assert!(text.contains(words), "{words}\n{text}");
    }
}

#[test]
fn unequal_ranks_lead_to_the_gains_of_their_code() {
    let mut report = built(|_| {});
    report.verdict = Some(verdict(vec![cause(Kind::Imbalance, "x")]));
    let text = report.short("results/x");
    assert!(
        text.contains("\nnext        nodescope what-if results/x\n"),
        "{text}"
    );
}

#[test]
fn each_program_has_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace");
    let mut writer = TraceWriter::create(&file, &launched::header()).unwrap();
    for event in launched::job(&pairs().remove(1).1) {
        writer.write(&event).unwrap();
    }
    writer.finish().unwrap();
    let report = build(&support::input(Some(&file), Vec::new())).unwrap();
    let (text, _) = screen(&report);
    assert!(text.contains("MPI         program 0, "), "{text}");
    assert!(text.contains("\n            program 1, "), "{text}");
}

#[test]
fn the_whole_text_has_every_section() {
    let mut report = built(|input| input.notes = vec!["a note".into()]);
    report.verdict = Some(verdict(vec![cause(
        Kind::Barrier,
        "MPI_Barrier makes ranks wait.",
    )]));
    report.openmp = Some(threads());
    let text = report.text();
    let mut rest = text.as_str();
    for section in Section::ALL {
        let part = report.section(section).unwrap();
        assert!(part.ends_with('\n'), "{section:?}");
        // The sections stand in their order.
        rest = rest
            .split_once(&part)
            .unwrap_or_else(|| panic!("{section:?}\n{text}"))
            .1;
        assert_eq!(section.name().parse(), Ok(section));
    }
    assert_eq!(rest, "");
}

#[test]
fn a_section_without_data_is_none() {
    let report = nothing();
    let with_data: Vec<Section> = (Section::ALL.into_iter())
        .filter(|section| report.section(*section).is_some())
        .collect();
    assert_eq!(with_data, [Section::Study, Section::Notes]);
    let error = "cpi".parse::<Section>().unwrap_err();
    assert_eq!(
        error,
        "there is no section cpi; the sections are verdict, findings, study, notes, window, code, mpi, openmp, network, equations"
    );
}
