//! Several MPI programs in one run: the report shows each as the report of the program alone does.

#[path = "../../trace/tests/launched/mod.rs"]
mod launched;
mod support;

use std::path::Path;

use launched::{Launch, header, job, pairs};
use nodescope_report::{ProgramReport, Report, build};
use nodescope_trace::TraceWriter;
use support::input;

/// Returns the report of a job that starts these programs.
fn report(folder: &Path, programs: &[Launch]) -> Report {
    let file = folder.join("trace");
    let mut writer = TraceWriter::create(&file, &header()).unwrap();
    for event in job(programs) {
        writer.write(&event).unwrap();
    }
    writer.finish().unwrap();
    build(&input(Some(&file), Vec::new())).unwrap()
}

fn programs(report: &Report) -> Vec<ProgramReport> {
    let mut programs = report.mpi.as_ref().unwrap().programs.clone();
    programs.iter_mut().for_each(|program| program.number = 0);
    programs
}

#[test]
fn each_program_has_the_profile_that_it_has_alone() {
    let folder = tempfile::tempdir().unwrap();
    for (what, pair) in pairs() {
        let together = programs(&report(folder.path(), &pair));
        let mut alone: Vec<ProgramReport> = (pair.iter())
            .flat_map(|one| programs(&report(folder.path(), &[*one])))
            .collect();
        assert_eq!((together.len(), alone.len()), (2, 2), "{what}");
        // Programs that begin at once have no order.
        if together[0] != alone[0] {
            alone.reverse();
        }
        assert_eq!(together, alone, "{what}");
        for (program, launch) in together.iter().zip(&pair) {
            assert_eq!(program.ranks.len() as u32, program.world_size, "{what}");
            let sites: u64 = program.call_sites.iter().map(|row| row.time_ps).sum();
            let functions: u64 = program.functions.iter().map(|row| row.time_ps).sum();
            assert_eq!(sites, functions, "{what}");
            if launch.ranks > 1 {
                assert!(!program.matrix.is_empty() && program.functions.len() == 5);
            }
        }
    }
}

#[test]
fn text_page_and_json_have_a_section_for_each_program() {
    let folder = tempfile::tempdir().unwrap();
    let pair = pairs().remove(1).1;
    let report = report(folder.path(), &pair);
    let text = report.text();
    let titles = [
        "MPI profile of program 0, heat",
        "MPI profile of program 1, heat",
    ];
    let at = titles.map(|title| {
        text.find(title)
            .unwrap_or_else(|| panic!("{title} in {text}"))
    });
    let overview = text.find("MPI programs, each with").unwrap();
    assert!(overview < at[0] && at[0] < at[1], "{text}");
    // The first program has four ranks, the second has two.
    let rows = |part: &str| {
        let rows = part
            .lines()
            .filter(|line| line.contains(" node") && line.contains("heat"));
        rows.count()
    };
    assert_eq!(
        (rows(&text[at[0]..at[1]]), rows(&text[at[1]..])),
        (4, 2),
        "{text}"
    );
    let page = report.html();
    for title in titles {
        assert!(page.contains(&format!("<h2>{title}</h2>")), "{title}");
    }
    assert!(page.contains("<h2>MPI programs of the run</h2>"));
    for number in 0..2 {
        let title = format!("<h3>Timeline of MPI calls of program {number}, heat</h3>");
        assert!(page.contains(&title), "{title}");
    }
    let json: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
    let of = |number: usize, field: &str| json["mpi"]["programs"][number][field].clone();
    assert_eq!((of(0, "number"), of(1, "number")), (0.into(), 1.into()));
    assert_eq!(
        (of(0, "world_size"), of(1, "world_size")),
        (4.into(), 2.into())
    );
    assert_eq!(of(1, "name"), "heat");
}

#[test]
fn pages_of_many_programs_stay_readable() {
    let folder = tempfile::tempdir().unwrap();
    let many: Vec<Launch> = (0..40)
        .map(|number| Launch {
            steps: 1,
            ..Launch::new(number, "heat", 2, u64::from(number) * 1000)
        })
        .collect();
    let report = report(folder.path(), &many);
    assert_eq!(report.mpi.as_ref().unwrap().programs.len(), 40);
    for text in [report.text(), report.html()] {
        assert!(
            text.contains("The profiles of the first 16 programs follow"),
            "{text}"
        );
        assert!(text.contains("MPI profile of program 15, heat"));
        assert!(!text.contains("MPI profile of program 16, heat"));
    }
}
