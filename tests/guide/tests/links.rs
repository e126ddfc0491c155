//! Tests of the documents' texts: targets of links exist, tables are tables, and the book has what its pages include.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nodescope_guide_tests::{anchors, faults, links, pages};
use nodescope_test_needs::{Need, have};
use serde_json::{Value, json};

/// Returns the repository's folder.
fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the repository's folder")
}

/// Every link inside the repository leads to a file or folder, and every anchor to a heading.
#[test]
fn links_lead_somewhere() {
    let root = root();
    let take = fs::read_to_string(root.join("docs/pictures/take")).expect("docs/pictures/take");
    let mut wrong = Vec::new();
    let mut followed = 0;
    for page in pages(&root) {
        let text = fs::read_to_string(&page).expect("a page");
        for link in links(&text) {
            if link.target.contains("://") || link.target.starts_with("mailto:") {
                continue;
            }
            followed += 1;
            let at = format!(
                "{}:{}: {}",
                page.strip_prefix(&root).unwrap_or(&page).display(),
                link.line,
                link.target
            );
            let (file, anchor) = match link.target.split_once('#') {
                Some((file, anchor)) => (file, Some(anchor)),
                None => (link.target.as_str(), None),
            };
            let target = match file {
                "" => page.clone(),
                _ => page.parent().unwrap_or(&root).join(file),
            };
            if !target.exists() {
                // Pictures of reports need not exist, since a script makes them from a run. The script contains their names.
                let name = target.file_name().unwrap_or_default().to_string_lossy();
                let made = link.picture && take.contains(&*name) && file.ends_with(".png");
                if !made {
                    wrong.push(format!("{at}: no such file"));
                }
                continue;
            }
            if let Some(anchor) = anchor
                && file.ends_with(".md")
            {
                let text = fs::read_to_string(&target).expect("a page");
                if !anchors(&text).iter().any(|known| known == anchor) {
                    wrong.push(format!("{at}: no such heading"));
                }
            }
        }
    }
    assert!(followed > 100, "only {followed} links were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The table of contents has every page of the guide exactly once.
#[test]
fn the_summary_lists_every_page() {
    let docs = root().join("docs");
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).expect("docs/SUMMARY.md");
    let listed: Vec<String> = links(&summary)
        .into_iter()
        .map(|link| link.target)
        .collect();
    let set: BTreeSet<&str> = listed.iter().map(String::as_str).collect();
    assert_eq!(set.len(), listed.len(), "a page is listed twice");
    let found: BTreeSet<String> = pages(&docs)
        .iter()
        .filter_map(|page| page.strip_prefix(&docs).ok()?.to_str().map(str::to_owned))
        .filter(|page| page != "SUMMARY.md")
        .collect();
    let found: BTreeSet<&str> = found.iter().map(String::as_str).collect();
    assert_eq!(set, found);
}

/// All files that the glossary names exist.
#[test]
fn the_glossary_names_files_that_exist() {
    let root = root();
    let glossary = fs::read_to_string(root.join("docs/glossary.md")).expect("docs/glossary.md");
    let mut named = 0;
    let mut wrong = Vec::new();
    for (number, line) in glossary.lines().enumerate() {
        for name in line.split('`').skip(1).step_by(2) {
            let file = name.contains('/') && !name.contains([' ', '*', '{', '<', '$']);
            if file && !name.starts_with('/') {
                named += 1;
                if !root.join(name).exists() {
                    wrong.push(format!("line {}: {name}", number + 1));
                }
            }
        }
    }
    assert!(named > 50, "only {named} files are named");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Pages are read as they are, on a forge and in a package.
#[test]
fn pages_read_as_they_are() {
    let root = root();
    let mut wrong = Vec::new();
    for page in pages(&root) {
        let text = fs::read_to_string(&page).expect("a page");
        let name = page.strip_prefix(&root).unwrap_or(&page).display();
        wrong.extend(
            faults(&text)
                .into_iter()
                .map(|fault| format!("{name}:{fault}")),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Runs the book's preprocessor on the pages of the guide. Every comment that includes a file is replaced by the file's text.
#[test]
fn the_book_has_the_included_texts() {
    if !have(Need::Python, &["python3"]) {
        return;
    }
    let docs = root().join("docs");
    let text = |name: &str| fs::read_to_string(docs.join(name)).expect("a page");
    let names: Vec<String> = links(&text("SUMMARY.md"))
        .into_iter()
        .map(|link| link.target)
        .collect();
    let chapter =
        |name: &String| json!({"Chapter": {"path": name, "content": text(name), "sub_items": []}});
    let items: Vec<Value> = names.iter().map(chapter).collect();
    let book = json!([{"root": docs}, {"items": items}]);
    let mut preprocessor = Command::new(docs.join("include-pages"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("docs/include-pages");
    let mut input = preprocessor.stdin.take().expect("a pipe");
    input
        .write_all(book.to_string().as_bytes())
        .expect("the book is read");
    drop(input);
    let output = preprocessor.wait_with_output().expect("the book");
    assert!(output.status.success());
    let made: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let mut included = 0;
    for (name, item) in names
        .iter()
        .zip(made["items"].as_array().expect("chapters"))
    {
        let content = item["Chapter"]["content"].as_str().expect("a text");
        assert!(!content.contains("<!-- include"), "docs/{name}");
        let before = text(name);
        let sources: Vec<&str> = before
            .lines()
            .filter_map(|line| line.strip_prefix("<!-- include "))
            .filter_map(|line| line.split(' ').next())
            .collect();
        for source in sources {
            included += 1;
            assert!(
                content.len() > before.len() + 1000,
                "docs/{name} lacks {source}"
            );
            let linked = links(&before)
                .into_iter()
                .any(|link| link.target.split('#').next() == Some(source));
            assert!(
                linked,
                "outside of the book, docs/{name} does not lead to {source}"
            );
        }
    }
    assert!(included > 20, "only {included} files are included");
}
