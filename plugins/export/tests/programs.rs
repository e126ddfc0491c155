//! Several MPI programs in one trace: formats of several programs keep them apart, formats of one take the requested program.

#[path = "../../../vmm/trace/tests/launched/mod.rs"]
mod launched;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use launched::{Launch, header, job, pairs};
use nodescope_export::{ExportError, Format, Options, Survey, export};
use nodescope_trace::TraceWriter;

fn write(file: &Path, programs: &[Launch]) -> PathBuf {
    let mut writer = TraceWriter::create(file, &header()).unwrap();
    for event in job(programs) {
        writer.write(&event).unwrap();
    }
    writer.finish().unwrap();
    file.to_owned()
}

/// Returns the contents of the files that an export writes.
fn files(trace: &Path, format: Format, program: Option<usize>) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let options = Options {
        world: program,
        ..Options::default()
    };
    let summary = export(trace, format, folder.path(), &options).unwrap();
    (summary.files.iter())
        .map(|file| String::from_utf8_lossy(&fs::read(file).unwrap()).into_owned())
        .collect()
}

#[test]
fn formats_of_one_program_want_a_choice_and_give_the_program_alone() {
    let dir = tempfile::tempdir().unwrap();
    for (what, pair) in pairs()
        .into_iter()
        .filter(|(what, _)| *what != "the same moment")
    {
        let together = write(&dir.path().join("together"), &pair);
        for format in [Format::Simgrid, Format::Dimemas] {
            let error = export(
                &together,
                format,
                &dir.path().join("out"),
                &Options::default(),
            );
            let Err(error @ ExportError::SeveralPrograms { count: 2, .. }) = error else {
                panic!("{what}: {error:?}")
            };
            let text = error.to_string();
            assert!(
                text.contains("choose one by --program N: 0: heat, "),
                "{text}"
            );
            for (number, one) in pair.iter().enumerate() {
                let alone = write(&dir.path().join("alone"), &[*one]);
                let (own, expected) = (
                    files(&together, format, Some(number)),
                    files(&alone, format, None),
                );
                // Names of files are those of temporary folders.
                assert_eq!(own.len(), expected.len());
                assert_eq!(own[0], expected[0], "{what}");
            }
        }
    }
}

/// Returns the lines of a table without those columns that depend on the number of the program.
fn rows(trace: &Path, program: usize) -> Vec<String> {
    let text = files(trace, Format::Csv, None).remove(0);
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().unwrap().split(',').collect();
    let column = (head.iter())
        .position(|name| *name == "job" || *name == "program" || *name == "world")
        .unwrap_or_else(|| panic!("{head:?}"));
    lines
        .map(|line| line.split(',').map(str::to_owned).collect::<Vec<_>>())
        .filter(|cells| cells[column] == program.to_string())
        .map(|mut cells| {
            cells.remove(column);
            // Events are numbered by node, over all programs.
            cells.remove(0);
            cells.join(",")
        })
        .collect()
}

#[test]
fn a_table_has_the_rows_of_each_program_alone() {
    let dir = tempfile::tempdir().unwrap();
    for (what, pair) in pairs()
        .into_iter()
        .filter(|(what, _)| *what != "the same moment")
    {
        let together = write(&dir.path().join("together"), &pair);
        for (number, one) in pair.iter().enumerate() {
            let alone = write(&dir.path().join("alone"), &[*one]);
            assert_eq!(rows(&together, number), rows(&alone, 0), "{what}");
            assert!(!rows(&alone, 0).is_empty());
        }
    }
}

#[test]
fn processes_and_communicators_of_the_survey_are_those_of_each_program() {
    let dir = tempfile::tempdir().unwrap();
    for (what, pair) in pairs() {
        let survey = Survey::of(&write(&dir.path().join("together"), &pair)).unwrap();
        assert_eq!(survey.worlds.len(), 2, "{what}");
        let mut names = BTreeSet::new();
        for (number, world) in survey.worlds.iter().enumerate() {
            let own = &survey.processes[world.processes.clone()];
            let pids: Vec<u32> = own.iter().map(|process| process.pid).collect();
            let ranks: Vec<u32> = own.iter().map(|process| process.rank).collect();
            let expected: Vec<u32> = (0..world.size).collect();
            assert_eq!(ranks, expected, "{what}");
            assert!(
                pids.windows(2).all(|pair| pair[1] == pair[0] + 1),
                "{what}: {pids:?}"
            );
            assert_eq!(world.communicators[0].members, expected);
            names.extend(world.processes.clone().map(|at| survey.process_name(at)));
            assert!(
                names.contains(&format!("program {number} rank 0")),
                "{names:?}"
            );
        }
        assert_eq!(names.len(), survey.processes.len());
    }
}

#[test]
fn paraver_and_chrome_have_processes_of_their_own_for_each_program() {
    let dir = tempfile::tempdir().unwrap();
    let pair = pairs().remove(2).1;
    let trace = write(&dir.path().join("together"), &pair);
    // An application for each program, of four tasks.
    let paraver = files(&trace, Format::Paraver, None);
    let head = paraver[0].lines().next().unwrap();
    assert!(head.contains(":2:4("), "{head}");
    let senders: BTreeSet<(String, String)> = (paraver[0].lines())
        .filter(|line| line.starts_with("3:"))
        .map(|line| {
            let cells: Vec<&str> = line.split(':').collect();
            // Applications of the sender and of the receiver.
            (cells[2].to_owned(), cells[8].to_owned())
        })
        .collect();
    let expected = [("1", "1"), ("2", "2")].map(|(a, b)| (a.to_owned(), b.to_owned()));
    assert_eq!(senders, BTreeSet::from(expected));
    let chrome: serde_json::Value =
        serde_json::from_str(&files(&trace, Format::Chrome, None)[0]).unwrap();
    let events = chrome["traceEvents"].as_array().unwrap();
    let names: BTreeSet<&str> = (events.iter())
        .filter(|event| event["name"] == "process_name")
        .map(|event| event["args"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(names.len(), 8, "{names:?}");
}
