//! Tests that the targets of links in the documents exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use nodescope_guide_tests::{anchors, links};

/// Returns the repository's folder.
fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the repository's folder")
}

/// Adds the Markdown files below a folder, without hidden folders and folders of build output and results.
fn add_pages(folder: &Path, pages: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let written = name == "target" || name == "book" || name.starts_with("results");
        if path.is_dir() {
            if !name.starts_with('.') && !written {
                add_pages(&path, pages);
            }
        } else if name.ends_with(".md") {
            pages.push(path);
        }
    }
}

fn pages() -> Vec<PathBuf> {
    let mut pages = Vec::new();
    add_pages(&root(), &mut pages);
    pages.sort();
    pages
}

/// Every link inside the repository leads to a file or folder, and every anchor to a heading.
#[test]
fn links_lead_somewhere() {
    let root = root();
    let take = fs::read_to_string(root.join("docs/pictures/take")).expect("docs/pictures/take");
    let mut wrong = Vec::new();
    let mut followed = 0;
    for page in pages() {
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
    let mut found = Vec::new();
    add_pages(&docs, &mut found);
    let found: BTreeSet<String> = found
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
