//! Tests of help texts, which are for users of an installed program: they name pages of the guide, and no file of the source tree.

use std::fs;
use std::path::{Path, PathBuf};

/// Beginnings of paths in the source tree.
const FOLDERS: [&str; 6] = [
    "vmm/",
    "plugins/",
    "docs/",
    "tests/",
    "guest-images/",
    "scripts/",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the long help of a command and of all its subcommands, each with its name. Lines are not wrapped.
fn help(command: clap::Command) -> Vec<(String, String)> {
    fn add(command: &mut clap::Command, texts: &mut Vec<(String, String)>) {
        let name = command.get_bin_name().unwrap_or(command.get_name());
        texts.push((name.to_owned(), command.render_long_help().to_string()));
        for inner in command.get_subcommands_mut() {
            add(inner, texts);
        }
    }
    let mut command = command.term_width(0).max_term_width(0);
    command.build();
    let mut texts = Vec::new();
    add(&mut command, &mut texts);
    texts
}

#[test]
fn help_names_no_file_of_the_source_tree() {
    let texts = help(nodescope::command());
    assert!(
        texts
            .iter()
            .any(|(name, _)| name == "nodescope image build"),
        "subcommands of subcommands are read"
    );
    for (name, text) in texts {
        for folder in FOLDERS.into_iter().chain([".md"]) {
            assert!(!text.contains(folder), "{name}: {folder} in\n{text}");
        }
    }
}

#[test]
fn pages_of_the_guide_that_help_names_are_in_its_contents() {
    let contents = fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    let mut named = 0;
    for (name, text) in help(nodescope::command()) {
        // A page's name may be broken over lines.
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for page in text.split("(guide: ").skip(1) {
            let (page, _) = page.split_once(')').expect("the end of a page's name");
            assert!(
                contents.contains(&format!("- [{page}](")),
                "{name}: the guide has no page {page:?}"
            );
            named += 1;
        }
    }
    assert!(named > 20, "{named} names of pages");
}

/// Checks that no message for users names a page of the guide by its file.
#[test]
fn code_names_no_document_of_the_source_tree() {
    fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() && path.file_name().is_some_and(|name| name != "tests") {
                rust_files(&path, files);
            } else if path.extension().is_some_and(|end| end == "rs") {
                files.push(path);
            }
        }
    }
    let mut files = Vec::new();
    for folder in ["vmm", "plugins"] {
        rust_files(&root().join(folder), &mut files);
    }
    assert!(files.len() > 100, "{} files", files.len());
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let program = text.split("#[cfg(test)]").next().unwrap_or_default();
        for line in program.lines().map(str::trim) {
            let names = |folder: &str| line.contains(folder) && line.contains(".md");
            assert!(
                line.starts_with("//") || !FOLDERS.into_iter().any(names),
                "{}: {line}",
                file.display()
            );
        }
    }
}
