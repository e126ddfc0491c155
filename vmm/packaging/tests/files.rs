//! Tests of the files that a package contains besides the program.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use nodescope_packaging::{COMPLETIONS, libraries, page_names, third_party, write};
use nodescope_test_needs::{Need, have};

#[test]
fn each_subcommand_has_a_page_that_man_shows_without_a_warning() {
    let out = tempfile::tempdir().unwrap();
    write(&nodescope::command(), "2026-01-31", out.path()).unwrap();
    let folder = out.path().join("man");
    let written: BTreeSet<String> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let names = page_names(&nodescope::command());
    for name in ["nodescope", "nodescope-run", "nodescope-image-build"] {
        assert!(names.iter().any(|other| other == name), "{name}");
    }
    let pages = names.iter().map(|name| format!("{name}.1"));
    assert_eq!(written, pages.collect());
    let run = fs::read_to_string(folder.join("nodescope-run.1")).unwrap();
    for part in [".TH nodescope-run 1", "\\-\\-host\\-threads", "Exit codes:"] {
        assert!(run.contains(part), "{part:?} is not in\n{run}");
    }
    if !have(Need::Manual, &["man"]) {
        return;
    }
    for page in &written {
        let shown = Command::new("man")
            .args(["--warnings", "--local-file"])
            .arg(folder.join(page))
            .env("LC_ALL", "C.UTF-8")
            .env("MANWIDTH", "100")
            .output()
            .unwrap();
        let warnings = String::from_utf8_lossy(&shown.stderr);
        assert!(
            shown.status.success() && warnings.is_empty(),
            "{page}: {warnings}"
        );
        let text = String::from_utf8_lossy(&shown.stdout);
        assert!(text.contains("SYNOPSIS"), "{page}:\n{text}");
    }
}

#[test]
fn shells_complete_subcommands_and_options() {
    let out = tempfile::tempdir().unwrap();
    write(&nodescope::command(), "2026-01-31", out.path()).unwrap();
    let folder = out.path().join("completions");
    let names: BTreeSet<_> = COMPLETIONS
        .iter()
        .map(|(_, name)| (*name).to_owned())
        .collect();
    let written = fs::read_dir(&folder).unwrap();
    let written = written.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(written.collect::<BTreeSet<_>>(), names);
    // Returns the words that bash offers to complete the last one of `words`.
    let bash = |words: &str| {
        let script = format!(
            "source {}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _nodescope nodescope \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD - 1]}}\"; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            folder.join("nodescope").display()
        );
        let shell = ["--noprofile", "--norc", "-c", &script];
        let output = Command::new("bash").args(shell).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{said}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(bash("nodescope snap"), "snapshot\n");
    assert_eq!(bash("nodescope image b"), "build\n");
    assert_eq!(bash("nodescope run --stop"), "--stop-after-snapshot\n");
    if !have(Need::Shell, &["zsh", "fish"]) {
        return;
    }
    let fish = format!(
        "source {}; complete --do-complete 'nodescope snap'",
        folder.join("nodescope.fish").display()
    );
    let output = Command::new("fish")
        .args(["--no-config", "--command", &fish])
        .output()
        .unwrap();
    let offered = String::from_utf8_lossy(&output.stdout);
    assert!(offered.starts_with("snapshot\t"), "{offered}");
    // The completion system of zsh works only in a terminal; this test checks that zsh finds and loads the function.
    let zsh = format!(
        "fpath=({} $fpath); autoload -Uz compinit; compinit -D; print $_comps[nodescope]; autoload -U +X _nodescope",
        folder.display()
    );
    let output = Command::new("zsh")
        .args(["-f", "-c", &zsh])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(String::from_utf8_lossy(&output.stdout), "_nodescope\n");
}

#[test]
fn licences_of_all_libraries_in_the_program_are_listed() {
    let libraries = libraries("nodescope").unwrap();
    let has = |name: &str| libraries.iter().any(|library| library.name == name);
    // The first is a direct dependency, the second one with C sources, the third a dependency of another library.
    for name in ["clap", "zstd-sys", "clap_builder"] {
        assert!(has(name), "{name} is in the program");
    }
    // These are a macro, a library of tests, a tool of build scripts, and a crate of the workspace.
    for name in ["clap_derive", "proptest", "cc", "nodescope-study"] {
        assert!(!has(name), "{name} is not in the program, or no library");
    }
    let page = third_party(&libraries).unwrap();
    for library in &libraries {
        let (name, version, licence) = (&library.name, &library.version, &library.licence);
        assert!(!licence.is_empty(), "{name} tells its licence");
        let row = format!("| {name} | {version} | {licence} | ");
        assert_eq!(page.matches(&row).count(), 1, "{row}");
    }
    for text in [
        "Permission is hereby granted, free of charge",
        "Version 2.0, January 2004",
    ] {
        assert!(page.contains(text), "{text}");
    }
}
