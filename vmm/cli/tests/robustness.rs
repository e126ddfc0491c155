//! Rules that hold for all commands: output that cannot be written, inputs that cannot be read, files that are already there, and names that
//! are chosen to mislead. No guest runs.

#[path = "support/results.rs"]
mod made;
#[path = "../../profile/tests/support/mod.rs"]
mod profiles;
#[path = "../../report/tests/support/solver.rs"]
mod solver;
#[path = "../../report/tests/support/mod.rs"]
mod support;
#[path = "support/traces.rs"]
mod traces;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

const CLUSTER: &str = "name = \"pair\"\n[nodes]\ncount = 2\ncores = 4\n[network]\nlatency = \"1 us\"\nbandwidth = \"1 GB/s\"\n";

/// Folder with an input of every kind: a study `s.toml`, a trace `t.nst`, results `r`, a cluster `c.toml`, counters `perf`, measurements
/// `np.out`, and a trace of SimGrid `sim/trace.ti`.
struct Inputs {
    dir: TempDir,
}

impl Inputs {
    fn new() -> Inputs {
        let dir = made::results(&["solve"]);
        let path = dir.path();
        traces::trace(&path.join("t.nst"));
        fs::copy(path.join("t.nst"), path.join("r/trace.nst")).unwrap();
        fs::write(path.join("c.toml"), CLUSTER).unwrap();
        fs::write(
            path.join("s.toml"),
            "image = { kernel = \"vmlinux\", initramfs = \"initramfs\", root = \"root\" }\ncluster.nodes = 2\njob.command = \"true\"\n",
        )
        .unwrap();
        let mut kernel = vec![0; 1024];
        kernel[0x1f1] = 1;
        kernel[0x202..0x206].copy_from_slice(b"HdrS");
        fs::write(path.join("vmlinux"), kernel).unwrap();
        fs::write(path.join("initramfs"), b"\x1f\x8b compressed").unwrap();
        fs::write(path.join("root"), [0; 512]).unwrap();
        // NetPIPE's columns: bytes, Mbit/s, seconds; 1 us and 1 GB/s.
        let lines = (0..20).map(|power| {
            let bytes = 1_u64 << power;
            let seconds = 1e-6 + bytes as f64 / 1e9;
            format!("{bytes} {} {seconds}\n", bytes as f64 * 8e-6 / seconds)
        });
        fs::write(path.join("np.out"), lines.collect::<String>()).unwrap();
        let counters =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../counters/tests/fixtures/perf-ranks");
        std::os::unix::fs::symlink(fs::canonicalize(counters).unwrap(), path.join("perf")).unwrap();
        let inputs = Inputs { dir };
        inputs.ok("export t.nst --format simgrid -o sim");
        inputs
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the command whose words are in `line`.
    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nodescope"));
        command
            .args(line.split(' '))
            .current_dir(self.dir.path())
            .env("XDG_CACHE_HOME", self.path("cache"))
            .stdin(Stdio::null());
        command
    }

    fn run(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }

    fn ok(&self, line: &str) -> String {
        let output = self.run(line);
        assert_eq!(output.status.code(), Some(0), "{line}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

/// Returns the writing end of a pipe that nobody reads.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

/// Commands that print to standard output.
const PRINTING: [&str; 37] = [
    "--help",
    "--version",
    "help",
    "help image remove",
    "run --help",
    "represent predict --help",
    "worker --new-key",
    "check s.toml",
    "report r",
    "report r --json",
    "report r --html",
    "compare r r",
    "compare r r --json",
    "profile r",
    "profile r --format json",
    "profile r --format svg",
    "profile r --format pprof",
    "predict t.nst --cluster c.toml",
    "predict t.nst --cluster c.toml --json",
    "predict t.nst --cluster c.toml --html",
    "predict t.nst --cluster c.toml --outline 0",
    "predict t.nst --cluster c.toml --sweep network.latency=1us,2us",
    "predict t.nst --cluster c.toml --sweep network.latency=1us,2us --csv",
    "predict t.nst --cluster c.toml --sensitivity --delays",
    "predict t.nst --cluster c.toml --sweep network.latency=1us,2us --sweep nodes.speed=1,2",
    "what-if t.nst --cluster c.toml",
    "phases t.nst",
    "phases t.nst --json",
    "phases t.nst --html",
    "represent groups t.nst",
    "represent groups t.nst --json",
    "represent groups t.nst --html",
    "calibrate --network np.out -o fitted.toml --force",
    "counters --read perf",
    "export t.nst --format csv,paraver -o exported --force",
    "import sim/trace.ti -o imported.nst --force",
    "image remove --all",
];

#[test]
fn output_that_cannot_be_written_is_one_message_and_a_closed_pipe_is_none() {
    let inputs = Inputs::new();
    for line in PRINTING {
        let code = inputs.run(line).status.code();
        assert_eq!(code, Some(0), "{line}");
        let output = inputs.command(line).stdout(full()).output().unwrap();
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(5), "{line}: {told}");
        assert!(
            told.starts_with("error: cannot write to standard output: No space left on device"),
            "{line}: {told}"
        );
        assert_eq!(told.matches("error: ").count(), 1, "{line}: {told}");

        let output = inputs.command(line).stdout(closed()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{line}: {output:?}");
        assert_eq!(stderr(&output), "", "{line}");
    }
    // What is wrong is said on standard error, which may be full or closed, too.
    for line in [
        "",
        "rnu",
        "check absent.toml",
        "check c.toml",
        "check s.toml -vv --log-format json",
        "report absent --log-format json",
        "predict absent.nst --cluster c.toml",
        "image show c.toml",
        "run s.toml",
    ] {
        let code = inputs.run(line).status.code();
        for sink in [full().into(), closed()] {
            let mut command = inputs.command(line);
            let status = command.stdout(Stdio::null()).stderr(sink).status().unwrap();
            assert_eq!(status.code(), code, "{line}");
        }
        let _ = fs::remove_dir_all(inputs.path("results"));
    }
}

/// Damages that a file may have; a cut trace is no damage, but the trace of a shorter run.
fn damaged(whole: &[u8]) -> Vec<(&'static str, Option<Vec<u8>>)> {
    let mut flipped = whole.to_vec();
    for byte in flipped.iter_mut().skip(whole.len() / 2).take(4) {
        *byte ^= 0xff;
    }
    vec![
        ("missing", None),
        ("empty", Some(Vec::new())),
        ("other bytes", Some(b"\xff\xfe no such thing \0".to_vec())),
        ("flipped", Some(flipped)),
    ]
}

#[test]
fn inputs_that_cannot_be_used_have_one_exit_code() {
    let inputs = Inputs::new();
    // Each command with the file that it reads.
    let commands = [
        ("t.nst", "predict t.nst --cluster c.toml"),
        ("t.nst", "predict t.nst --cluster c.toml --ranks 8"),
        ("c.toml", "predict t.nst --cluster c.toml"),
        ("t.nst", "phases t.nst"),
        ("c.toml", "phases t.nst --cluster c.toml"),
        ("t.nst", "represent groups t.nst"),
        (
            "t.nst",
            "represent predict t.nst --replay t.nst --cluster c.toml",
        ),
        ("t.nst", "represent replay t.nst -o out -- true"),
        ("t.nst", "export t.nst --format csv -o out"),
        ("t.nst", "calibrate --network t.nst -o out"),
        ("r/trace.nst", "predict r --cluster c.toml"),
        ("r/trace.nst", "phases r"),
        ("r/trace.nst", "export r --format perfetto -o out"),
        ("r/run.json", "report r"),
        ("r/run.json", "report r --html"),
        ("r/run.json", "compare r r"),
        ("r/run.json", "profile r"),
        ("r/windows.json", "profile r"),
        ("r/profile.json.zst", "profile r"),
        ("r/report.json", "scaling r"),
        ("t.nst", "openmp t.nst"),
        ("t.nst", "counters --read t.nst"),
        ("t.nst", "snapshot show ./t.nst"),
        ("t.nst", "run s.toml --from ./t.nst"),
        ("sim/trace.ti", "import sim/trace.ti -o out"),
        ("s.toml", "check s.toml"),
    ];
    for (file, line) in commands {
        let path = inputs.path(file);
        let whole = fs::read(&path).unwrap_or_default();
        for (damage, bytes) in damaged(&whole) {
            match &bytes {
                Some(bytes) => fs::write(&path, bytes).unwrap(),
                None => drop(fs::remove_file(&path)),
            }
            let output = inputs.run(line);
            let told = stderr(&output);
            let text = matches!(file, "sim/trace.ti" | "s.toml" | "c.toml");
            if text && damage == "flipped" {
                // A text may remain valid.
                assert!(
                    matches!(output.status.code(), Some(0 | 2)),
                    "{line}: {told}"
                );
            } else {
                assert_eq!(output.status.code(), Some(2), "{line}, {damage}: {told}");
                assert_eq!(
                    told.matches("error: ").count(),
                    1,
                    "{line}, {damage}: {told}"
                );
            }
            assert!(!told.contains("panicked"), "{line}, {damage}: {told}");
            let _ = fs::remove_dir_all(inputs.path("out"));
            let _ = fs::remove_file(inputs.path("out"));
        }
        fs::write(&path, whole).unwrap();
    }
}

#[test]
fn files_of_the_user_are_replaced_only_with_force() {
    let inputs = Inputs::new();
    fs::create_dir(inputs.path("windows")).unwrap();
    let campaign = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/scaling/campaign.json");
    let charts = format!("scaling {} --svg charts", campaign.display());
    for (file, line) in [
        ("out/trace.csv", "export t.nst --format csv -o out"),
        ("out/trace.row", "export t.nst --format paraver -o out"),
        ("out/hostfile", "export t.nst --format simgrid -o out"),
        (
            "out/csv/trace.csv",
            "export t.nst --format chrome,csv -o out",
        ),
        ("flame.svg", "profile r --format svg -o flame.svg"),
        (
            "windows/flame-solve.svg",
            "profile r --format svg -o windows",
        ),
        ("-rf", "profile r -o=-rf"),
        ("p.nst", "predict t.nst --cluster c.toml --timeline p.nst"),
        (
            "sweep.svg",
            "predict t.nst --cluster c.toml --sweep network.latency=1us,2us --plot sweep.svg",
        ),
        ("fitted.toml", "calibrate --network np.out -o fitted.toml"),
        ("counted.json", "counters --read perf --json counted.json"),
        ("i.nst", "import sim/trace.ti -o i.nst"),
        ("charts/gromacs-gen2-cpi.svg", &charts),
    ] {
        let path = inputs.path(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "mine").unwrap();
        let output = inputs.run(line);
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{line}: {told}");
        assert!(
            told.contains(file) && told.contains("--force"),
            "{line}: {told}"
        );
        assert_eq!(fs::read(&path).unwrap(), b"mine", "{line}");
        inputs.ok(&format!("{line} --force"));
        assert_ne!(fs::read(&path).unwrap(), b"mine", "{line}");
        // Nothing but what was asked for is written: no partial file, and no file of the user's is taken for one.
        let _ = fs::remove_dir_all(inputs.path("out"));
    }
    // A device takes the bytes, and stays a device.
    inputs.ok("profile r -o /dev/null");
    inputs.ok("profile r -o /dev/null --force");
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
    // --force alone has no effect, and is refused.
    for line in [
        "profile r --force",
        "predict t.nst --cluster c.toml --force",
    ] {
        assert_eq!(inputs.run(line).status.code(), Some(2), "{line}");
    }
}

/// Characters that reverse the direction of writing, are invisible, or control a terminal.
const MISLEADING: [char; 6] = [
    '\u{202e}',
    '\u{2066}',
    '\u{200b}',
    '\u{9b}',
    '\u{7f}',
    '\u{e0001}',
];

#[test]
fn names_cannot_mislead_in_any_output() {
    let inputs = Inputs::new();
    let name: String = "x".chars().chain(MISLEADING).chain("y".chars()).collect();
    let hostile = |file: &str, from: &str| {
        let path = inputs.path(file);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(&path, text.replace(from, &name)).unwrap();
    };
    hostile("r/run.json", "heat");
    hostile("r/run.json", "the job ended");
    fs::write(
        inputs.path("c.toml"),
        CLUSTER.replace("pair", &format!("p{}", MISLEADING[0])),
    )
    .unwrap();
    for line in [
        "report r",
        "report r --html",
        "report r --json",
        "compare r r --json",
        "predict t.nst --cluster c.toml",
        "predict t.nst --cluster c.toml --html",
        "predict t.nst --cluster c.toml --json",
        "predict t.nst --cluster c.toml --sweep network.latency=1us,2us --plot plot.svg",
    ] {
        let mut text = inputs.ok(line);
        if line.contains("plot") {
            text += &fs::read_to_string(inputs.path("plot.svg")).unwrap();
        }
        assert!(!text.contains(MISLEADING), "{line}: {text}");
        if line.ends_with("--json") {
            let json: serde_json::Value = serde_json::from_str(&text).unwrap();
            let kept = json.to_string().contains(MISLEADING[0]);
            assert!(kept || line.starts_with("compare"), "{line}: {text}");
        } else {
            assert!(text.contains("\\u{202e}"), "{line}: {text}");
        }
    }
    for line in [
        format!("report {name}"),
        format!("report {name} --log-format json"),
    ] {
        let told = stderr(&inputs.run(&line));
        assert!(
            told.contains("202e") && !told.contains(MISLEADING),
            "{told}"
        );
    }
}

#[test]
fn images_are_removed_by_key_and_stay_while_a_run_uses_them() {
    let inputs = Inputs::new();
    let images = inputs.path("cache/nodescope/images");
    let keys = [
        "0123456789abcdef0123456789abcdef",
        "0123aaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    ];
    let plant = |key: &str| {
        fs::create_dir_all(images.join(key)).unwrap();
        fs::write(images.join(key).join("root.img"), vec![7; 3 << 20]).unwrap();
        fs::write(images.join(format!("{key}.log")), "said").unwrap();
    };
    keys.iter().for_each(|key| plant(key));
    for (line, text) in [
        ("image remove", "required"),
        (
            "image remove 0123",
            "is the beginning of 2 images; give more of it: 0123456789",
        ),
        ("image remove 012", "there is no image 012 in the cache"),
        (
            "image remove ffffffff",
            "there is no image ffffffff in the cache, and no study",
        ),
        ("image remove ..", "there is no image .."),
        ("image remove s.toml", "boots files of its own"),
        ("image remove 0123aaaa --all", "cannot be used with"),
    ] {
        let output = inputs.run(line);
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{line}: {told}");
        assert!(told.contains(text), "{line}: {told}");
    }
    // The lock of a run that uses the image.
    let used = File::open(images.join(keys[0])).unwrap();
    used.lock_shared().unwrap();
    let output = inputs.run("image remove 01234567");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(stderr(&output).contains("a run uses it"), "{output:?}");
    let told = inputs.ok("image remove --outdated");
    assert!(
        told.contains("0123aaaa") && told.contains("freed 3 MiB"),
        "{told}"
    );
    assert!(images.join(keys[0]).is_dir() && !images.join(keys[1]).exists());
    drop(used);
    let told = inputs.ok("image remove 01234567");
    assert_eq!(told, format!("{}  3 MiB\n", keys[0]));
    plant(keys[0]);
    inputs.ok("image remove --all");
    let left = fs::read_dir(&images).unwrap().flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
    assert!(
        left.iter()
            .all(|name| name.to_string_lossy().ends_with(".lock")),
        "{left:?}"
    );
}
