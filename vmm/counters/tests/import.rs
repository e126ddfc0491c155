//! Import of files of every tool, and the messages about wrong files.

use std::path::{Path, PathBuf};

use nodescope_counters::{CountersError, Derived, Measurement, import};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

fn read(name: &str) -> Measurement {
    import(&[fixture(name)]).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn whole(name: &str) -> Derived {
    read(name).derive().unwrap()
}

/// Returns CPI, CPI_core and alpha, rounded to thousandths.
fn figures(derived: &Derived) -> (f64, Option<f64>, Option<f64>) {
    let round = |value: f64| (value * 1000.0).round() / 1000.0;
    let core = derived.core.as_ref().ok().map(|core| round(core.cpi));
    (round(derived.cpi), core, derived.alpha.map(round))
}

#[test]
fn every_format_is_known_by_its_content() {
    for (name, tool, expected) in [
        ("perf.csv", "perf stat", (0.906, Some(0.68), Some(0.1))),
        ("perf-repeat.csv", "perf stat", (0.906, Some(0.68), None)),
        ("perf-cores.csv", "perf stat", (1.25, Some(1.0), None)),
        ("perf-interval.csv", "perf stat", (1.25, None, None)),
        ("perf.json", "perf stat", (0.906, Some(0.68), None)),
        ("perf-cpus.json", "perf stat", (1.25, None, None)),
        ("perf-ranks", "perf stat", (1.5, Some(1.1), None)),
        ("likwid.csv", "likwid-perfctr", (1.5, Some(1.0), None)),
        (
            "likwid-groups.csv",
            "likwid-perfctr",
            (0.5, None, Some(0.25)),
        ),
        ("papi_hl_output", "PAPI", (1.25, Some(0.75), Some(0.2))),
        ("papi6.json", "PAPI", (1.25, None, None)),
        ("vtune.csv", "VTune", (0.906, Some(0.68), None)),
        ("vtune-events.tsv", "VTune", (1.25, Some(1.0), None)),
        ("own.json", "nodescope counters", (1.5, Some(1.1), None)),
    ] {
        let measurement = read(name);
        assert_eq!(measurement.tool, tool, "{name}");
        assert_eq!(figures(&measurement.derive().unwrap()), expected, "{name}");
    }
}

#[test]
fn ranks_come_from_the_names_of_files_and_from_our_own_files() {
    for (name, cores) in [
        ("perf-ranks", [0.8, 1.4]),
        ("papi_hl_output", [1.0, 0.5]),
        ("own.json", [0.8, 1.4]),
    ] {
        let ranks = read(name).derive_ranks().unwrap();
        let found: Vec<f64> = ranks
            .values()
            .map(|derived| derived.core.as_ref().unwrap().cpi)
            .collect();
        assert_eq!(found, cores, "{name}");
        assert_eq!(ranks.keys().copied().collect::<Vec<_>>(), [0, 1]);
    }
    assert!(read("perf.csv").ranks.is_empty());
    // A single file is of the whole program, even if its name ends with a number.
    assert!(read("papi_hl_output/rank_000001.json").ranks.is_empty());
}

#[test]
fn files_without_stalls_say_that_core_cpi_cannot_be_told() {
    let derived = whole("papi6.json");
    let why = derived.core.unwrap_err();
    assert!(
        why.contains("no event counts stalls for memory, so that CPI_core cannot be told from CPI"),
        "{why}"
    );
}

#[test]
fn shares_and_scaling_arrive() {
    let split = whole("vtune.csv").top_down.unwrap();
    assert_eq!((split.retiring, split.bad_speculation), (0.3, 0.05));
    assert_eq!((split.frontend, split.backend), (0.1, 0.55));
    let limits = whole("perf.csv").limits;
    assert_eq!(
        limits,
        ["counters took turns: counts are scaled, the rarest ran 50 % of the time"]
    );
    assert!(
        whole("perf-cores.csv")
            .limits
            .iter()
            .any(|limit| limit.contains("may include the kernel"))
    );
}

#[test]
fn what_was_written_is_read_alike() {
    let folder = tempfile::tempdir().unwrap();
    for name in [
        "perf.csv",
        "perf-ranks",
        "likwid-groups.csv",
        "papi_hl_output",
        "vtune.csv",
        "own.json",
    ] {
        let measurement = read(name);
        let path = folder.path().join("out.json");
        let text = measurement.json().unwrap();
        std::fs::write(&path, &text).unwrap();
        let again = import(&[path]).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(
            figures(&again.derive().unwrap()),
            figures(&measurement.derive().unwrap()),
            "{name}"
        );
        assert_eq!(
            again.derive_ranks().unwrap(),
            measurement.derive_ranks().unwrap(),
            "{name}"
        );
        assert_eq!(again.tool, measurement.tool);
        // Reading the original file again and writing it gives the same bytes.
        assert_eq!(text, read(name).json().unwrap());
    }
}

#[test]
fn the_text_shows_every_rank_and_event() {
    let text = read("own.json").text().unwrap();
    for part in [
        "rank 0",
        "rank 1",
        "whole",
        "CPI_core",
        "0.800",
        "1.400",
        "1.100",
        "CYCLE_ACTIVITY.STALLS_L1D_MISS",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let text = read("papi6.json").text().unwrap();
    assert!(
        text.contains("no CPI_core: no event counts stalls"),
        "{text}"
    );
}

/// Every broken file: line and column where it is refused, and a part of the message.
const BROKEN: &[(&str, usize, usize, &str)] = &[
    ("perf-number.csv", 5, 1, "\"32x00000000\" is not a number"),
    ("perf-unit.csv", 4, 12, "unknown unit \"furlongs\""),
    ("perf-column.csv", 4, 50, "unknown column \"extra\""),
    (
        "perf-cut.csv",
        7,
        43,
        "the file ends before the running time",
    ),
    (
        "perf-not-counted.csv",
        4,
        1,
        "cycles:u is \"<not counted>\" where the number of cycles is needed",
    ),
    ("perf-stalls.csv", 8, 1, "contradict each other"),
    ("perf-twice.csv", 11, 5, "cycles:u stands here twice"),
    ("perf-percent.csv", 7, 54, "150 % of the time"),
    (
        "perf-repeat-deviation.csv",
        3,
        22,
        "\"a.23\" is not a number",
    ),
    ("perf-cores-number.csv", 6, 12, "\"-600\" is not a number"),
    (
        "perf-interval-said.csv",
        3,
        18,
        "\"<lost>\" is not a number",
    ),
    ("perf-number.json", 5, 20, "\"32e\" is not a number"),
    ("perf-unit.json", 4, 50, "unknown unit \"furlongs\""),
    ("perf-column.json", 4, 118, "unknown column \"weather\""),
    (
        "perf-cut.json",
        7,
        98,
        "the file ends in the middle of a value",
    ),
    (
        "perf-not-supported.json",
        5,
        20,
        "instructions:u is \"<not supported>\"",
    ),
    ("perf-ratio.json", 5, 20, "contradict each other"),
    ("likwid-number.csv", 9, 34, "\"2k\" is not a number"),
    ("likwid-column.csv", 7, 26, "unknown column \"Weather\""),
    (
        "likwid-cut.csv",
        17,
        52,
        "the file ends in the middle of a table",
    ),
    (
        "likwid-sum.csv",
        16,
        34,
        "contradicts its threads, which have 6000",
    ),
    (
        "likwid-not-counted.csv",
        9,
        29,
        "CPU_CLK_UNHALTED_CORE is \"-\"",
    ),
    (
        "likwid-lines.csv",
        12,
        1,
        "the table before has 4 of 5 lines",
    ),
    (
        "likwid-groups-instructions.csv",
        1,
        1,
        "not both count instructions",
    ),
    ("papi-number.json", 37, 28, "\"8,000\" is not a number"),
    ("papi-column.json", 44, 25, "unknown column \"PAPI_XX_OPS\""),
    (
        "papi-cut.json",
        39,
        13,
        "the file ends in the middle of a value",
    ),
    ("papi-stalls.json", 41, 28, "contradict each other"),
    ("papi6-cycles.json", 12, 28, "PAPI_TOT_CYC is 0"),
    ("vtune-number.csv", 12, 16, "\"lots\" is not a number"),
    ("vtune-unit.csv", 12, 16, "unknown unit \"furlongs\""),
    ("vtune-column.csv", 1, 42, "unknown column \"Weather\""),
    (
        "vtune-cut.csv",
        7,
        11,
        "Retiring has no value; the file is cut",
    ),
    (
        "vtune-rate.csv",
        5,
        12,
        "contradicts the cycles and instructions",
    ),
    ("vtune-shares.csv", 7, 12, "add up to 150 % of the slots"),
    ("vtune-not-counted.csv", 3, 14, "Clockticks is \"N/A\""),
    ("vtune-events-column.tsv", 4, 23, "unknown column"),
    ("own-number.json", 20, 61, "\"many\" is not a number"),
    ("own-unit.json", 13, 66, "unknown quantity \"furlongs\""),
    ("own-column.json", 26, 14, "unknown column \"weather\""),
    (
        "own-cut.json",
        25,
        5,
        "the file ends in the middle of a value",
    ),
    (
        "own-sum.json",
        28,
        59,
        "contradicts the ranks, whose sum is 3000",
    ),
    (
        "own-derived.json",
        15,
        44,
        "cpi_core of 0.7 contradicts the events",
    ),
    ("own-version.json", 3, 14, "version 9 is not known"),
    ("own-unread.json", 11, 62, "cycles is \"<not counted>\""),
    ("empty.csv", 1, 1, "is empty"),
    ("other.txt", 1, 1, "is no format of counters that is known"),
];

#[test]
fn broken_files_are_refused_with_their_places() {
    let mut wrong = Vec::new();
    for &(name, line, column, part) in BROKEN {
        match import(&[fixture("broken").join(name)]) {
            Err(CountersError::Refused {
                file,
                line: at,
                column: in_line,
                message,
            }) if file.ends_with(name)
                && (at, in_line) == (line, column)
                && message.contains(part) => {}
            other => wrong.push(format!(
                "{name} {line}:{column} {part}: {:?}",
                other.map_err(|error| error.to_string()).map(|_| "read")
            )),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let listed = std::fs::read_dir(fixture("broken")).unwrap().count();
    assert_eq!(listed, BROKEN.len());
}

#[test]
fn files_that_do_not_fit_together_are_refused() {
    let told = |names: &[&str]| {
        let paths: Vec<PathBuf> = names.iter().map(|name| fixture(name)).collect();
        import(&paths).unwrap_err().to_string()
    };
    assert!(told(&["perf.csv", "likwid.csv"]).contains("its name has no rank"));
    assert!(
        told(&["perf-ranks/perf.0.csv", "papi_hl_output/rank_000001.json"])
            .contains("give files of one tool")
    );
    assert!(
        told(&["perf-ranks/perf.0.csv", "perf-ranks/perf.0.csv"])
            .contains("is of rank 0, of which another file is, too")
    );
    assert!(told(&["missing.csv"]).contains("cannot read"));
    assert!(
        import(&[PathBuf::from("/dev/zero")])
            .unwrap_err()
            .to_string()
            .contains("is no file")
    );
}

/// Files with lost or changed bytes give a measurement or an error, never a panic.
#[test]
fn damaged_files_never_panic() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged");
    for name in [
        "perf.csv",
        "perf-cores.csv",
        "perf.json",
        "likwid.csv",
        "papi_hl_output/rank_000000.json",
        "vtune.csv",
        "vtune-events.tsv",
        "own.json",
    ] {
        let bytes = std::fs::read(fixture(name)).unwrap();
        for at in (0..bytes.len()).step_by(7) {
            let mut changed = bytes.clone();
            changed[at] = b",\"{9\n-"[at % 6];
            let mut lost = bytes.clone();
            lost.remove(at);
            for damaged in [&bytes[..at], &changed, &lost] {
                std::fs::write(&path, damaged).unwrap();
                if let Err(error) = import(std::slice::from_ref(&path)) {
                    assert!(!error.to_string().is_empty());
                }
            }
        }
    }
}
