//! Tests of `nodescope openmp`: records that are missing, empty or damaged, and a program that runs on this machine.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use nodescope_test_needs::{Need, have};

const RECORD: &str = "nodescope-openmp\t1
process\t7\t0\t1\t4\t2\tlibomp
host\tnode0
clock\t0\t0\t1000\t1000000
interval\t0\t0\t1\t0\t1000\t1000\twhole program
thread\t0\t7\t0\t1\t0
times\t0\t0\t1\t10ab\t0\t0\t0\t0\t100\t0\t900\t0\t0\t0\t0\t0\t0\t0\t0
event\t0\t0\t0\t0\t1\t1\t10ab\t0\t0\t1\t100\t900\t900\t0\t0\t0\t0
thread\t1\t8\t1\t0\t0
times\t1\t0\t1\t10ab\t0\t0\t0\t0\t0\t100\t600\t0\t0\t0\t0\t0\t300\t0\t0
module\t1\tabcd\t/job/program
end\texit
";

fn nodescope(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nodescope"))
        .args(args)
        .current_dir(folder)
        .env("XDG_CACHE_HOME", folder.join("cache"))
        .output()
        .unwrap()
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_record_is_told_in_every_format() {
    let dir = tempfile::tempdir().unwrap();
    let files = dir.path().join("results/files/openmp");
    fs::create_dir_all(&files).unwrap();
    fs::write(files.join("node0-7.openmp"), RECORD).unwrap();
    let told = |args: &[&str]| {
        let output = nodescope(dir.path(), &[&["openmp", "results"], args].concat());
        let (stdout, stderr) = texts(&output);
        assert_eq!(output.status.code(), Some(0), "{stderr}");
        stdout
    };
    let text = told(&[]);
    assert!(
        text.contains("rank 0 on node0") && text.contains("80.0 %"),
        "{text}"
    );
    assert!(
        text.contains("/job/program is not on this machine"),
        "{text}"
    );
    let value = |args: &[&str], name: &str| {
        let text = told(args);
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_whitespace().last())
            .map(str::to_owned)
    };
    assert_eq!(
        value(&["--protocol"], "Efficiency").as_deref(),
        Some("80.000%")
    );
    let json: serde_json::Value = serde_json::from_str(&told(&["--json"])).unwrap();
    let of = &json["processes"][0]["intervals"][0]["characteristics"];
    assert_eq!(json["format"], 3);
    assert_eq!(
        (&of["total"], &of["productive"]),
        (&2_000_000.into(), &1_600_000.into())
    );
    assert!(told(&["--html"]).contains("<svg"));
    let idle = value(&["--protocol", "--processors", "4"], "Idle time");
    assert_eq!(idle.as_deref(), Some("2"));
    let selected = told(&["--interval", "function=solve"]);
    assert!(
        selected.contains("there are no regions of solve"),
        "{selected}"
    );
}

#[test]
fn a_report_has_a_section_where_there_are_records() {
    let dir = tempfile::tempdir().unwrap();
    let run = serde_json::json!({
        "version": 1,
        "study": {"name": "hybrid", "id": "0123", "description": []},
        "core": {"nominal": {"source": "1 cycle, not measured"}},
        "ending": null, "exit_code": null, "job_status": null, "virtual_ps": 0,
        "instructions": [], "network": [], "notes": [],
    });
    let files = dir.path().join("results/files/openmp");
    fs::create_dir_all(&files).unwrap();
    fs::write(dir.path().join("results/run.json"), run.to_string()).unwrap();
    let report = |args: &[&str]| {
        let output = nodescope(dir.path(), &[&["report", "results"], args].concat());
        let (stdout, stderr) = texts(&output);
        assert_eq!(output.status.code(), Some(0), "{stderr}");
        stdout
    };
    let page = || report(&["--html"]);
    assert!(!page().contains("<h2>OpenMP</h2>") && !report(&[]).contains("OpenMP"));
    assert!(report(&["--section", "openmp"]).starts_with("There are no records of OpenMP"));
    fs::write(files.join("node0-7.openmp"), RECORD).unwrap();
    let whole = page();
    assert!(
        whole.contains("<h2>OpenMP</h2>") && whole.contains("<h3>rank 0 on node0</h3>"),
        "{whole}"
    );
    let alone = nodescope(dir.path(), &["openmp", "results"]);
    let section = report(&["--section", "openmp"]);
    assert_eq!(section, format!("OpenMP\n------\n{}", texts(&alone).0));
    assert!(report(&["--full"]).contains(&section));
    let short = report(&[]);
    for line in [
        "\nOpenMP      parallel efficiency ",
        "\nnext        nodescope report results --section openmp\n",
    ] {
        assert!(short.contains(line), "{short}");
    }
    fs::write(files.join("node0-7.openmp"), RECORD.replace("900", "many")).unwrap();
    assert!(report(&[]).contains("OpenMP      not shown: results/files/openmp/"));
    let page = page();
    assert!(
        page.contains("Not shown: results/files/openmp/node0-7.openmp is damaged in line 7"),
        "{page}"
    );
}

#[test]
fn intervals_between_mpi_calls_are_known_while_recording_alone() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.openmp"), RECORD).unwrap();
    let output = nodescope(
        dir.path(),
        &["openmp", ".", "--interval", "mpi=MPI_Init..MPI_Finalize"],
    );
    assert_eq!(output.status.code(), Some(2));
    let error = texts(&output).1;
    assert!(
        error.contains("must be known while the program runs"),
        "{error}"
    );
    if !have(Need::Mpi, &["mpicc.openmpi", "mpirun.openmpi"]) {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let compiled = Command::new("mpicc.openmpi")
        .args(["-fopenmp", "-g", "-o", "hybrid", "-I"])
        .arg(root.join("guest-images/tracer"))
        .arg(root.join("tests/guests/programs/hybrid.c"))
        .current_dir(dir.path())
        .status();
    assert!(compiled.unwrap().success());
    let command = [
        "openmp",
        "-o",
        "results",
        "--json",
        "--interval",
        "mpi=MPI_Init_thread..MPI_Allreduce:1",
        "--interval",
        "mpi=MPI_Allreduce:1..MPI_Allreduce:3",
        "--",
        "env",
        "OMPI_ALLOW_RUN_AS_ROOT=1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
        "OMP_NUM_THREADS=2",
        "mpirun.openmpi",
        "--oversubscribe",
        "-n",
        "2",
        "./hybrid",
    ];
    // The command begins with `env`, so that the launcher is not its first word.
    let (_, error) = texts(&nodescope(dir.path(), &command));
    assert!(
        error.contains("env does not say whose MPI it starts"),
        "{error}"
    );
    let named = [&command[..4], &["--mpi", "openmpi"], &command[4..]].concat();
    let output = nodescope(dir.path(), &named);
    let (stdout, stderr) = texts(&output);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    // The ranks print to the same stream before the JSON.
    let json: serde_json::Value =
        serde_json::from_str(&stdout[stdout.find('{').unwrap()..]).unwrap();
    for process in json["processes"].as_array().unwrap() {
        let names: Vec<_> = (process["intervals"].as_array().unwrap().iter())
            .map(|interval| {
                (
                    interval["name"].as_str().unwrap(),
                    interval["count"].as_u64().unwrap(),
                )
            })
            .collect();
        assert_eq!(
            names,
            [
                ("whole program", 1),
                ("MPI_Init_thread..MPI_Allreduce:1", 1),
                ("MPI_Init_thread..MPI_Allreduce:1 / step", 1),
                ("MPI_Allreduce:1..MPI_Allreduce:3", 1),
                ("MPI_Allreduce:1..MPI_Allreduce:3 / step", 2),
                ("step", 1),
            ]
        );
    }
    assert_eq!(json["processes"].as_array().unwrap().len(), 2);
    // The count is of the whole program, in which all intervals lie.
    assert_eq!(json["processes"][0]["regions"][0]["count"], 4);
}

#[test]
fn records_that_cannot_be_read_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |args: &[&str], text: &str| {
        let output = nodescope(dir.path(), &[&["openmp"], args].concat());
        let (stdout, stderr) = texts(&output);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(text) && stdout.is_empty(), "{stderr}");
    };
    refused(&["."], ". holds no record of the OpenMP tracer");
    fs::write(dir.path().join("a.openmp"), "").unwrap();
    refused(&["."], "a.openmp is empty");
    fs::write(dir.path().join("a.openmp"), RECORD.replace("900", "many")).unwrap();
    refused(
        &["a.openmp"],
        "a.openmp is damaged in line 7: time is no number that is possible there: \"many\"",
    );
    refused(&[], "required");
    // Readable records are shown, and unreadable ones are named.
    fs::write(dir.path().join("b.openmp"), RECORD).unwrap();
    let output = nodescope(dir.path(), &["openmp", "."]);
    let (stdout, _) = texts(&output);
    assert_eq!(output.status.code(), Some(0));
    assert!(
        stdout.contains("left out: ./a.openmp is damaged in line 7"),
        "{stdout}"
    );
    // A record that is cut is shown up to the cut.
    let cut = RECORD.find("module").unwrap();
    fs::write(dir.path().join("c.openmp"), &RECORD[..cut]).unwrap();
    let (stdout, _) = texts(&nodescope(dir.path(), &["openmp", "c.openmp"]));
    assert!(stdout.contains("note: the record is cut"), "{stdout}");
}

#[test]
fn a_program_is_recorded_and_its_status_is_told() {
    if !have(Need::Compiler, &["gcc"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = "int main(void) { int sum = 0;\n#pragma omp parallel\n#pragma omp critical\nsum++;\nreturn sum != 3; }\n";
    fs::write(dir.path().join("p.c"), source).unwrap();
    let mut compiler = Command::new("gcc");
    compiler
        .args(["-fopenmp", "-g", "p.c", "-o", "p"])
        .current_dir(dir.path());
    assert!(compiler.status().unwrap().success());
    let record = |threads: &str, more: &[&str]| {
        let command = ["env", &format!("OMP_NUM_THREADS={threads}"), "./p"].map(str::to_owned);
        let mut args = vec!["openmp", "-o", "results"];
        args.extend(more);
        args.push("--");
        args.extend(command.iter().map(String::as_str));
        nodescope(dir.path(), &args)
    };
    let output = record("3", &[]);
    let (stdout, stderr) = texts(&output);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(
        stdout.contains("3 threads under libgomp") && stdout.contains("p.c:2 main"),
        "{stdout}"
    );
    // Earlier records are replaced only with --force.
    let output = record("3", &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(texts(&output).1.contains("holds records of an earlier run"));
    let output = record("2", &["--force"]);
    let (stdout, stderr) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stdout.contains("2 threads under libgomp"), "{stdout}");
}
