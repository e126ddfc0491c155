//! Tests of `[study.core]`: CPI_core from hardware counters.

use std::fs;

use nodescope_study::{Problems, Study};

#[path = "support/counters.rs"]
mod counters;

/// Parses a study with these lines and two nodes, in a folder with files of counters.
fn study(lines: &str) -> Result<Study, Problems> {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("perf.json"), counters::perf(1000, 400)).unwrap();
    fs::create_dir(at("ranks")).unwrap();
    fs::write(at("ranks/perf.0.json"), counters::perf(800, 400)).unwrap();
    fs::write(at("ranks/perf.1.json"), counters::perf(1600, 400)).unwrap();
    fs::write(at("slow.json"), counters::perf(u32::MAX, 400)).unwrap();
    fs::write(at("broken.json"), counters::perf(1000, 4000)).unwrap();
    let no_stalls: String = counters::perf(1000, 0)
        .lines()
        .take(2)
        .map(|line| format!("{line}\n"))
        .collect();
    fs::write(at("no-stalls.json"), no_stalls).unwrap();
    let text = format!("{lines}\n[cluster]\nnodes = 2\n[job]\ncommand = \"x\"\n");
    Study::parse(&at("study.toml"), &text)
}

fn told(lines: &str) -> String {
    study(lines).unwrap_err().to_string()
}

#[test]
fn counters_of_the_program_give_its_core_cpi() {
    let study = study("[study.core]\ncounters = 'perf.json'").unwrap();
    assert_eq!(study.core_cpi.as_f64(), 0.75);
    assert!(study.rank_cpi.unwrap().is_empty());
    assert_eq!(
        study.cpi_source,
        "perf stat, perf.json; CPI_core = (cycles - stalls) / instructions of cycles:u, instructions:u, cycle_activity.stalls_l1d_miss:u"
    );
}

#[test]
fn counters_of_ranks_give_each_its_own() {
    for lines in [
        "counters = 'ranks'",
        "counters = ['ranks/perf.0.json', 'ranks/perf.1.json']",
    ] {
        let study = study(&format!("[study.core]\n{lines}")).unwrap();
        let ranks = study.rank_cpi.unwrap();
        let ranks: Vec<_> = ranks
            .iter()
            .map(|(rank, cpi)| (*rank, cpi.as_f64()))
            .collect();
        assert_eq!(ranks, [(0, 0.5), (1, 1.5)]);
        // (2400 - 800) / 1600
        assert_eq!(study.core_cpi.as_f64(), 1.0);
        assert!(
            study
                .cpi_source
                .contains("2 files from ranks/perf.0.json to ranks/perf.1.json"),
            "{}",
            study.cpi_source
        );
    }
}

#[test]
fn without_counters_nothing_changes() {
    let study = study("[study]\ncore_cpi = 0.85").unwrap();
    assert!(study.rank_cpi.is_none());
    let json = serde_json::to_string(&study).unwrap();
    assert!(!json.contains("rank_cpi"), "{json}");
}

#[test]
fn the_source_does_not_depend_on_where_the_study_lies() {
    let json =
        || serde_json::to_string(&study("[study.core]\ncounters = 'ranks'").unwrap()).unwrap();
    assert_eq!(json(), json());
}

#[test]
fn what_is_wrong_is_told_with_the_place_in_both_files() {
    for (lines, expected) in [
        (
            "[study]\ncore_cpi = 1\n[study.core]\ncounters = 'perf.json'",
            "study.toml:2: study.core_cpi: says what study.core.counters says, too",
        ),
        (
            "[study]\ncpi_source = 'x'\n[study.core]\ncounters = 'perf.json'",
            "study.toml:2: study.cpi_source: says what study.core.counters says, too",
        ),
        (
            "[study.core]\ncounters = 'broken.json'",
            "broken.json:3:20: 4000 cycles of stalls",
        ),
        (
            "[study.core]\ncounters = 'no-stalls.json'",
            "the program: no event counts stalls for memory, so that CPI_core cannot be told from CPI",
        ),
        (
            "[study.core]\ncounters = 'slow.json'",
            "a CPI_core from 0.01 to 1000 can be simulated",
        ),
        (
            "[study.core]\ncounters = 'missing.json'",
            "study.toml:2: study.core.counters: cannot read",
        ),
        (
            "[study.core]\ncounters = []",
            "study.core.counters: is empty",
        ),
        (
            "[study.core]\ncounters = 3",
            "study.core.counters: is a number (3), not a text",
        ),
        ("[study.core]", "study.core.counters: is missing"),
        (
            "[study.core]\ncounter = 'perf.json'",
            "study.core.counter: is not a known key; did you mean \"counters\"?",
        ),
        (
            "[study.core]\ncounters = 'ranks'\n[node]\ncores = 2",
            "study.toml:2: study.core.counters: has 2 ranks, the last is 1, but the job has ranks 0 to 3",
        ),
    ] {
        let told = told(lines);
        assert!(told.contains(expected), "{told}");
    }
}

#[test]
fn guests_are_counted_where_the_study_says_so() {
    let counted =
        study("[study]\nengine = 'kvm'\ncore_cpi = 0.8\n[study.core]\ncount = true").unwrap();
    assert!(counted.counts_guests && counted.rank_cpi.is_none());
    assert_eq!(counted.core_cpi.as_f64(), 0.8);
    let not = study("[study.core]\ncount = false").unwrap();
    assert!(!not.counts_guests);
    // With `count = false`, the serialised form leaves out the key, and so the identity is the same as before the key existed.
    let text = serde_json::to_string(&not).unwrap();
    assert!(!text.contains("counts_guests"), "{text}");
    let both = told("[study]\nengine = 'kvm'\n[study.core]\ncounters = 'perf.json'\ncount = true");
    assert!(
        both.contains("study.core.count: gives CPI_core, which study.core.counters gives, too"),
        "{both}"
    );
}
