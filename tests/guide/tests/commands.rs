//! Test that runs the scripts of chosen pages of the guide, in order and in one folder. Each script must end with the exit code that its
//! page states.
//!
//! The environment variable `NODESCOPE_PROGRAM` has the path of a built nodescope. Without the variable, the test builds nodescope.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nodescope_guide_tests::scripts;
use nodescope_test_needs::{Need, have};
use serde_json::Value;

/// Pages whose scripts run, in this order: later pages use results of earlier ones.
const PAGES: [&str; 14] = [
    "five-minutes.md",
    "report.md",
    "verdict.md",
    "faster-code.md",
    "results.md",
    "windows.md",
    "predicting.md",
    "what-if.md",
    "phases.md",
    "scaling.md",
    "exports.md",
    "snapshots.md",
    "determinism.md",
    "extending.md",
];

/// Returns the repository's folder.
fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the repository's folder")
}

/// Returns the path of the program nodescope: from the environment variable, or from a fresh build.
fn nodescope() -> PathBuf {
    if let Some(program) = env::var_os("NODESCOPE_PROGRAM") {
        return PathBuf::from(program);
    }
    let output = Command::new(env!("CARGO"))
        .args(["build", "--release", "--package", "nodescope"])
        .args(["--message-format", "json-render-diagnostics"])
        .current_dir(root())
        .output()
        .expect("cargo");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "nodescope cannot be built:\n{text}"
    );
    let messages = String::from_utf8_lossy(&output.stdout);
    let executable = messages.lines().find_map(|message| {
        let message: Value = serde_json::from_str(message).ok()?;
        message["executable"].as_str().map(PathBuf::from)
    });
    executable.expect("cargo tells the program's path")
}

/// Returns the last 30 lines of a text.
fn tail(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

/// Builds the guest image unless it exists. If the host lacks the tools, returns false and reports the test as skipped.
fn image(program: &Path) -> bool {
    let image = |what: &str| {
        let output = Command::new(program).args(["image", what]).output();
        output.expect("nodescope")
    };
    if image("show").status.success() {
        return true;
    }
    if !have(Need::Image, &["mmdebstrap", "mke2fs"]) {
        return false;
    }
    let output = image("build");
    assert!(
        output.status.success(),
        "the guest image cannot be built:\n{}",
        tail(&output.stderr)
    );
    true
}

#[test]
fn the_commands_of_the_guide_run() {
    if !have(Need::Mpi, &["mpicc"]) {
        return;
    }
    let program = nodescope();
    if !image(&program) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    // The scripts find the program in `PATH`.
    let bin = folder.path().join("bin");
    fs::create_dir(&bin).expect("a folder");
    std::os::unix::fs::symlink(&program, bin.join("nodescope")).expect("a link");
    let mut path = bin.into_os_string();
    path.push(":");
    path.push(env::var_os("PATH").unwrap_or_default());
    let work = folder.path().join("work");
    fs::create_dir(&work).expect("a folder");

    let mut wrong = Vec::new();
    for name in PAGES {
        let page = fs::read_to_string(root().join("docs").join(name)).expect(name);
        let scripts = scripts(&page).unwrap_or_else(|problem| panic!("docs/{name}: {problem}"));
        assert!(!scripts.is_empty(), "docs/{name} has no script");
        for script in scripts {
            let at = format!("docs/{name}:{}", script.line);
            println!("{at}");
            let output = Command::new("bash")
                .args(["-euo", "pipefail", "-c", &script.text])
                .current_dir(&work)
                .env("PATH", &path)
                .env("NODESCOPE_SOURCE", root())
                // What scripts build is run once, so that building it counts.
                .env("CARGO_PROFILE_DEV_OPT_LEVEL", "0")
                .env("CARGO_PROFILE_DEV_DEBUG", "0")
                .output()
                .expect("bash");
            if output.status.code() != Some(script.exit) {
                let (stdout, stderr) = (tail(&output.stdout), tail(&output.stderr));
                wrong.push(format!(
                    "{at}: {} in place of exit code {}\n{}--- standard output\n{stdout}\n--- standard error\n{stderr}",
                    output.status, script.exit, script.text
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
