//! Tests of the program's exit codes and messages. No guest boots here.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

/// A folder with a study `s.toml`. Commands run in this folder and have their caches in it.
struct WorkFolder {
    dir: TempDir,
}

impl WorkFolder {
    fn new(study: &str) -> WorkFolder {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("s.toml"), study).unwrap();
        WorkFolder { dir }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn run(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_nodescope"))
            .args(args)
            .current_dir(self.path())
            .env("XDG_CACHE_HOME", self.path().join("cache"))
            .output()
            .unwrap()
    }

    /// Runs `nodescope run s.toml` and expects this exit code, these texts on standard error, and neither standard output nor results.
    fn refuses(&self, code: i32, texts: &[&str]) {
        let output = self.run(&["run", "s.toml"]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        for text in texts {
            assert!(stderr.contains(text), "expected {text:?} in:\n{stderr}");
        }
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "");
        assert!(!self.path().join("results").exists());
    }
}

/// Returns a study that boots files of its own, so that no image is built, with the lines `part`. The files pass the checks of a study.
fn own_image(part: &str) -> WorkFolder {
    let work = WorkFolder::new(&format!(
        "image = {{ kernel = \"vmlinux\", initramfs = \"initramfs\", root = \"root\" }}\n{part}"
    ));
    let mut kernel = vec![0; 1024];
    kernel[0x1f1] = 1;
    kernel[0x202..0x206].copy_from_slice(b"HdrS");
    fs::write(work.path().join("vmlinux"), kernel).unwrap();
    fs::write(work.path().join("initramfs"), b"\x1f\x8b compressed").unwrap();
    fs::write(work.path().join("root"), [0; 512]).unwrap();
    work
}

const JOB: &str = "cluster.nodes = 2\njob.command = \"true\"\n";

#[test]
fn a_missing_study_is_named() {
    let work = WorkFolder::new("");
    let output = work.run(&["run", "other.toml"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("other.toml: cannot be read: No such file or directory"),
        "{stderr}"
    );
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn no_nodes() {
    own_image("cluster.nodes = 0\njob.command = \"true\"\n").refuses(
        2,
        &[
            "s.toml:2: cluster.nodes: is 0; write a whole number from 1 to 1022\n",
            "error: s.toml cannot be run: 1 problem\n",
        ],
    );
}

#[test]
fn wrong_units_and_unknown_keys_are_told_together() {
    own_image(&format!(
        "{JOB}network.latency = \"1.3 GHz\"\nnode.memroy = \"1 GiB\"\nnode.memory = 512\n"
    ))
    .refuses(
        2,
        &[
            "s.toml:4: network.latency: \"1.3 GHz\" is not a time: \"GHz\" is none of the units",
            "write e.g. \"1.3 us\"\n",
            "s.toml:5: node.memroy: is not a known key; did you mean \"memory\"?\n",
            "s.toml:6: node.memory: 512 has no unit; write e.g. \"512 MiB\"\n",
            "error: s.toml cannot be run: 3 problems\n",
        ],
    );
}

#[test]
fn an_unknown_plugin() {
    own_image(&format!(
        "{JOB}[[window]]\nmeasure = \"1 M instructions\"\nplugins = [\"tlb\"]\n"
    ))
    .refuses(
        2,
        &["s.toml:6: window[0].plugins[0]: \"tlb\" is not a plugin (there are \"cache\", \"numa\", \"pipeline\", \"record\", \"record-every\")\n"],
    );
}

#[test]
fn a_missing_kernel() {
    let work = own_image(JOB);
    fs::remove_file(work.path().join("vmlinux")).unwrap();
    work.refuses(
        2,
        &["s.toml:1: image.kernel: vmlinux: there is no such file; paths are relative to the study file's folder\n"],
    );
}

#[test]
fn a_truncated_kernel_and_a_truncated_disk() {
    let work = own_image(JOB);
    let kernel = fs::read(work.path().join("vmlinux")).unwrap();
    fs::write(work.path().join("vmlinux"), &kernel[..1000]).unwrap();
    fs::write(work.path().join("root"), [0; 511]).unwrap();
    work.refuses(
        2,
        &[
            "s.toml:1: image.kernel: vmlinux: is truncated: its bzImage ends at byte 1024, the file has 1000",
            "s.toml:1: image.root: root: has 511 bytes, which is no whole number of 512-byte sectors",
        ],
    );
}

#[test]
fn more_memory_than_the_host_has() {
    own_image(&format!("{JOB}node.memory = \"512 TiB\"\n")).refuses(
        5,
        &[
            "s.toml:4: node.memory: 2 nodes of 512 TiB need 1024 TiB and 256 MiB for nodescope itself, but this host has",
            "lower node.memory or cluster.nodes",
        ],
    );
}

#[test]
fn kvm_is_refused_where_the_host_cannot_run_linux_on_it() {
    let work = own_image(&format!("{JOB}study.engine = \"kvm\"\n"));
    match nodescope_cluster::kvm::usable() {
        Ok(_) => {
            let output = work.run(&["check", "s.toml"]);
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(said.contains("would run between windows"), "{said}");
        }
        Err(error) => work.refuses(5, &[&format!("study.engine asks for KVM: {error}")]),
    }
}

#[test]
fn guests_are_counted_on_kvm_alone() {
    let work = own_image(&format!("{JOB}study.core.count = true\n"));
    work.refuses(
        2,
        &[
            "study.core.count counts guests while KVM runs them",
            "use --engine kvm",
        ],
    );
}

#[test]
fn results_are_not_overwritten_unasked() {
    let work = own_image(JOB);
    let results = work.path().join("results/s");
    fs::create_dir_all(&results).unwrap();
    fs::write(results.join("thesis.tex"), "x").unwrap();
    let says = |args: &[&str], text: &str| {
        let output = work.run(args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains(text), "{stderr}");
        assert_eq!(output.status.code(), Some(2));
    };
    let other = "results/s holds other files than results; give another folder with --results";
    says(&["run", "s.toml"], other);
    says(&["run", "s.toml", "--force"], other);
    assert!(results.join("thesis.tex").exists());
    fs::write(results.join("run.json"), "{}").unwrap();
    says(
        &["run", "s.toml"],
        "results/s already holds results; replace them with --force",
    );
    // Without the list of written files, a run's files cannot be distinguished from the user's own.
    says(
        &["run", "s.toml", "--force"],
        "results/s holds results without the list of what their run has written (written.txt)",
    );
    assert!(results.join("thesis.tex").exists() && results.join("run.json").exists());
}

/// Makes a results folder as a run leaves it, with the list of the files that the run wrote.
fn written(work: &WorkFolder, files: &[&str]) -> std::path::PathBuf {
    let results = work.path().join("results/s");
    fs::create_dir_all(results.join("files")).unwrap();
    for file in files {
        fs::write(results.join(file), "old").unwrap();
    }
    let list = format!("files/\n{}\n", files.join("\n"));
    fs::write(results.join("written.txt"), list).unwrap();
    results
}

#[test]
fn force_replaces_what_a_run_wrote_and_nothing_else() {
    let work = own_image(JOB);
    let results = written(
        &work,
        &["run.json", "trace.nst", "report.html", "files/out.dat"],
    );
    fs::write(results.join("thesis.tex"), "mine").unwrap();
    fs::create_dir(results.join("figures")).unwrap();
    fs::write(results.join("figures/a.svg"), "mine").unwrap();
    fs::write(results.join("files/notes.txt"), "mine").unwrap();
    let output = work.run(&["run", "s.toml", "--force"]);
    // The run begins, although the kernel of these studies cannot boot.
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("kernel vmlinux"),
        "{output:?}"
    );
    for kept in ["thesis.tex", "figures/a.svg", "files/notes.txt"] {
        assert_eq!(fs::read_to_string(results.join(kept)).unwrap(), "mine");
    }
    assert!(!results.join("files/out.dat").exists());
    assert_ne!(fs::read_to_string(results.join("run.json")).unwrap(), "old");
    let list = fs::read_to_string(results.join("written.txt")).unwrap();
    for name in ["run.json", "study.toml", "job.disk", "console-node1.log"] {
        assert!(list.lines().any(|line| line == name), "{list}");
        assert!(results.join(name).exists(), "{name}");
    }
    assert!(
        !list.contains("thesis") && !list.contains("notes"),
        "{list}"
    );
}

#[test]
fn a_users_file_in_the_way_of_a_result_is_told_and_nothing_is_removed() {
    let work = own_image(&format!(
        "{JOB}job.collect = [\"out.dat\"]\nresults.directory = \"results/s\"\n"
    ));
    for mine in ["report.html", "files/out.dat"] {
        let results = written(&work, &["run.json"]);
        fs::write(results.join(mine), "mine").unwrap();
        let output = work.run(&["run", "s.toml", "--force"]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        let told = format!("results/s/{mine} is in the way of a new result");
        assert!(stderr.contains(&told), "{stderr}");
        assert_eq!(fs::read_to_string(results.join(mine)).unwrap(), "mine");
        assert_eq!(fs::read_to_string(results.join("run.json")).unwrap(), "old");
        fs::remove_dir_all(results).unwrap();
    }
}

#[test]
fn a_second_run_in_the_same_folder_is_refused() {
    let work = own_image(JOB);
    let results = written(&work, &["run.json"]);
    let list = fs::File::open(results.join("written.txt")).unwrap();
    // SAFETY: the descriptor belongs to `list`, which outlives the call.
    let locked = unsafe { libc::flock(std::os::fd::AsRawFd::as_raw_fd(&list), libc::LOCK_EX) };
    assert_eq!(locked, 0);
    let output = work.run(&["run", "s.toml", "--force"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains("error: another run is writing to results/s; wait until it has ended"),
        "{stderr}"
    );
    assert_eq!(fs::read_to_string(results.join("run.json")).unwrap(), "old");
    // The lock ends with the descriptor, as with a process that dies.
    drop(list);
    let output = work.run(&["run", "s.toml", "--force"]);
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("kernel vmlinux"),
        "{output:?}"
    );
}

#[test]
fn results_that_cannot_be_written() {
    let work = own_image(&format!("{JOB}results.directory = \"vmlinux\"\n"));
    let output = work.run(&["run", "s.toml"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("s.toml:4: results.directory: vmlinux is not a folder; give another place"),
        "{stderr}"
    );
    assert_eq!(output.status.code(), Some(5));
}

/// Fills a file system of three pages, in a mount namespace of its own. The mount needs no privileges where user namespaces are enabled.
#[test]
fn a_full_disk_is_told_with_a_way_out_and_leaves_readable_results() {
    let work = own_image(JOB);
    let unshare = |script: &str| {
        Command::new("unshare")
            .args(["--map-root-user", "--mount", "sh", "-c", script])
            .env("NODESCOPE", env!("CARGO_BIN_EXE_nodescope"))
            .current_dir(work.path())
            .output()
    };
    let mount = "mkdir -p full && mount -t tmpfs -o size=12k tmpfs full";
    match unshare(mount) {
        Ok(output) if output.status.success() => {}
        other => {
            let reason = format!("no file system can be mounted here: {other:?}");
            nodescope_test_needs::skip(nodescope_test_needs::Need::Mount, reason);
            return;
        }
    }
    // The list of files, the study and run.json fit; the job disk is the first file that does not.
    let output = unshare(&format!(
        "{mount}; $NODESCOPE run s.toml --results full/r; code=$?; $NODESCOPE report full/r || exit 99; exit $code"
    ))
    .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{stderr}");
    for text in [
        "error: cannot write full/r/job.disk: No space left on device (os error 28); results written so far are kept",
        "\n  also: there is no report: cannot write full/r/run.json: No space left on device",
        "\n  help: free space where that file lies, or use another disk: --results for results",
    ] {
        assert!(stderr.contains(text), "expected {text:?} in:\n{stderr}");
    }
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(
        stdout.contains("the run has not ended, or was killed"),
        "{stdout}"
    );
}

#[test]
fn a_good_study_is_described() {
    let work = own_image(JOB);
    let output = work.run(&["check", "s.toml"]);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(stdout.starts_with("s.toml: no problems\n"), "{stdout}");
    assert!(
        stdout.contains("2 x 1 vCPUs (sockets x cores x threads: 1 x 1 x 1) at 2.9 GHz, 512 MiB"),
        "{stdout}"
    );
    assert!(
        stdout.contains("L1d 32 KiB, L1i 32 KiB, L2 256 KiB, L3 20 MiB"),
        "{stdout}"
    );
    assert!(stdout.contains("10 Gbit/s, 1.3 us, MTU 1500 B"), "{stdout}");
}

#[test]
fn errors_are_json_for_programs() {
    let work = WorkFolder::new("");
    let output = work.run(&["--log-format", "json", "report", "nowhere"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let value: serde_json::Value = serde_json::from_str(stderr.trim()).unwrap();
    assert_eq!(value["event"], "error");
    assert_eq!(value["exit_code"], 2);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn wrong_usage_ends_with_2() {
    let work = WorkFolder::new("");
    for args in [
        &["run"][..],
        &["fly"],
        &["run", "s.toml", "--host-threads", "0"],
        &["report", "r", "--json", "--html"],
        &["report", "r", "--core-cpi", "0.8"],
        &["report", "r", "--full", "--section", "code"],
        &["report", "r", "--full", "--html"],
        &["report", "r", "--section", "code", "--json"],
    ] {
        assert_eq!(work.run(args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn the_help_documents_exit_codes() {
    let work = WorkFolder::new("");
    let output = work.run(&["--help"]);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains("Exit codes:\n"), "{stdout}");
    assert!(stdout.contains("  130  interrupted"), "{stdout}");
}

#[test]
fn an_image_that_is_not_built_says_how_to_build_it() {
    let work = WorkFolder::new(JOB);
    let output = work.run(&["image", "show", "s.toml"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        stderr,
        "error: the image is not built yet; run: nodescope image build s.toml\n"
    );
    assert_eq!(output.status.code(), Some(2));
    let output = work.run(&["image", "list"]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0));
}

/// A killed run leaves a `run.json` without an ending, and perhaps a trace that is cut.
mod killed {
    use super::*;

    fn run_file() -> serde_json::Value {
        serde_json::json!({
            "version": 1,
            "study": {"name": "hpcc", "id": "0123", "description": [["nodes", "2 x 2 vCPUs"]]},
            "core": {"nominal": {"source": "1 cycle, not measured"}},
            "ending": null,
            "exit_code": null,
            "job_status": null,
            "virtual_ps": 0,
            "instructions": [],
            "network": [],
            "notes": [],
        })
    }

    fn folder_with(run: &serde_json::Value) -> WorkFolder {
        let work = WorkFolder::new("");
        fs::create_dir(work.path().join("r")).unwrap();
        fs::write(work.path().join("r/run.json"), run.to_string()).unwrap();
        work
    }

    #[test]
    fn its_results_are_readable() {
        let work = folder_with(&run_file());
        let output = work.run(&["report", "r"]);
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(
            stdout.contains("the run has not ended, or was killed"),
            "{stdout}"
        );
        let output = work.run(&["report", "r", "--json"]);
        let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(value["study"]["name"], "hpcc");
        let output = work.run(&["report", "r", "--html"]);
        assert!(String::from_utf8_lossy(&output.stdout).contains("<html"));
    }

    #[test]
    fn sections_are_printed_alone() {
        let work = folder_with(&run_file());
        let told = |args: &[&str]| {
            let output = work.run(&[&["report", "r"], args].concat());
            assert_eq!(output.status.code(), Some(0), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        let short = told(&[]);
        assert!(
            short.contains("\nnext        nodescope report r --section notes\n"),
            "{short}"
        );
        let notes = told(&["--section", "notes"]);
        assert!(notes.starts_with("note: "), "{notes}");
        assert!(told(&["--full"]).contains(&notes));
        assert_eq!(
            told(&["--section", "mpi"]),
            "There is no MPI profile: no MPI call was traced.\n"
        );
        let output = work.run(&["report", "r", "--section", "cpi"]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        let names =
            "verdict, findings, study, notes, window, code, mpi, openmp, network, equations";
        assert!(stderr.contains(names), "{stderr}");
    }

    #[test]
    fn a_trace_that_is_not_one_is_named() {
        let work = folder_with(&run_file());
        fs::write(work.path().join("r/trace.nst"), "nothing of the kind").unwrap();
        let output = work.run(&["report", "r"]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains("trace.nst"), "{stderr}");
    }

    #[test]
    fn another_version_is_refused() {
        let mut run = run_file();
        run["version"] = 2.into();
        let output = folder_with(&run).run(&["report", "r"]);
        assert_eq!(
            String::from_utf8_lossy(&output.stderr),
            "error: r/run.json: has version 2, this program reads version 1; use the nodescope that wrote it\n"
        );
        assert_eq!(output.status.code(), Some(2));
    }

    #[test]
    fn a_folder_without_results_is_named() {
        let output = WorkFolder::new("").run(&["report", "."]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            stderr.starts_with("error: . holds no results of a run (no run.json)"),
            "{stderr}"
        );
    }
}

#[test]
fn a_program_that_cannot_run_is_refused_before_the_boot() {
    let work = own_image("cluster.nodes = 1\njob.command = \"./app\"\njob.files = [\"app\"]\n");
    let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\xb7\0".to_vec();
    elf.resize(64, 0);
    fs::write(work.path().join("app"), elf).unwrap();
    work.refuses(
        2,
        &[
            "s.toml:3: job.command: ./app: ",
            "app is not executable, so the guest refuses to start it; run chmod +x ",
            "s.toml:3: job.command: ./app is a program for AArch64, with 64 bits",
        ],
    );
}
