//! Parser for the pages of the guide: the scripts that a reader may run, the links, and the faults that a reader would see.
//!
//! A fenced block marked `sh` is a script that a reader may run unchanged. A comment directly before the block may state the exit code of
//! the script: `<!-- exit: 2 -->`. Blocks of other kinds (`console`, `text`, `toml`, ...) do not run.

use std::fs;
use std::path::{Path, PathBuf};

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// A script of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// Line of the page with the opening fence of the script, from 1.
    pub line: usize,
    /// Text of the script.
    pub text: String,
    /// Exit code that the page states; 0 if the page states none.
    pub exit: i32,
}

/// A link or a picture in a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Line of the page on which the link begins, from 1.
    pub line: usize,
    /// Target, as written in the page.
    pub target: String,
    /// True if the page shows the target as a picture; false for a link.
    pub picture: bool,
}

/// Returns the parser's events with their byte ranges. Tables are parsed, since cells contain links.
fn events(page: &str) -> impl Iterator<Item = (Event<'_>, std::ops::Range<usize>)> {
    Parser::new_ext(page, Options::ENABLE_TABLES).into_offset_iter()
}

/// Returns the line of a byte offset in a page, from 1.
fn line(page: &str, place: usize) -> usize {
    page[..place].matches('\n').count() + 1
}

/// Returns the Markdown files below a folder, sorted, without hidden folders and folders of build output and results.
///
/// # Panics
///
/// A folder that cannot be read.
pub fn pages(folder: &Path) -> Vec<PathBuf> {
    let mut pages = Vec::new();
    add_pages(folder, &mut pages);
    pages.sort();
    pages
}

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

/// Returns what a reader of the page would see in place of its contents, each with its line: directives of a tool that makes books, rows
/// that belong to no table, and rows whose number of cells is not their table's.
pub fn faults(page: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut paragraph = false;
    for (event, range) in events(page) {
        let at = line(page, range.start);
        match event {
            Event::Start(Tag::Paragraph) => paragraph = true,
            Event::Text(text) => {
                if paragraph && text.starts_with('|') {
                    faults.push(format!("{at}: a row of no table"));
                }
                paragraph = false;
                if text.contains("{{#") {
                    faults.push(format!("{at}: a directive of mdBook"));
                }
            }
            Event::Start(Tag::Table(_)) => {
                let rows = page[range].trim_end().lines().map(cells);
                let rows: Vec<usize> = rows.collect();
                let wrong = rows.iter().position(|cells| *cells != rows[0]);
                faults.extend(wrong.map(|row| {
                    format!(
                        "{}: a row of {} cells in a table of {}",
                        at + row,
                        rows[row],
                        rows[0]
                    )
                }));
            }
            _ => paragraph = false,
        }
    }
    faults
}

/// Returns the number of cells of a table's row. A `|` ends a cell within code, too, unless a backslash precedes it.
fn cells(row: &str) -> usize {
    let row = row.trim().replace("\\|", "");
    let row = row.strip_prefix('|').unwrap_or(&row);
    let row = row.strip_suffix('|').unwrap_or(row);
    row.split('|').count()
}

/// Returns the scripts of a page, in order.
///
/// # Errors
///
/// A message with the line of a comment that begins like an exit code but has no valid code, or that is not followed by a script.
pub fn scripts(page: &str) -> Result<Vec<Script>, String> {
    let mut scripts = Vec::new();
    // Line and exit code of the last comment, until another element follows.
    let mut stated: Option<(usize, i32)> = None;
    let mut open: Option<Script> = None;
    for (event, range) in events(page) {
        match event {
            Event::Html(text) => {
                let text = text.trim();
                let Some(code) = text.strip_prefix("<!-- exit:") else {
                    continue;
                };
                let at = line(page, range.start);
                let code = code.strip_suffix("-->").map(str::trim);
                let code = code.and_then(|code| code.parse().ok());
                let code = code.ok_or(format!(
                    "line {at}: {text:?} is no exit code; write <!-- exit: 2 -->"
                ))?;
                stated = Some((at, code));
            }
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(kind))) if &*kind == "sh" => {
                open = Some(Script {
                    line: line(page, range.start),
                    text: String::new(),
                    exit: stated.take().map_or(0, |(_, code)| code),
                });
            }
            Event::Text(text) if open.is_some() => {
                if let Some(script) = &mut open {
                    script.text.push_str(&text);
                }
            }
            Event::End(TagEnd::CodeBlock) if open.is_some() => scripts.extend(open.take()),
            Event::End(TagEnd::HtmlBlock) | Event::Start(Tag::HtmlBlock) => {}
            _ => {
                if let Some((at, _)) = stated {
                    return Err(format!(
                        "line {at}: no block marked sh follows the exit code"
                    ));
                }
            }
        }
    }
    match stated {
        Some((at, _)) => Err(format!(
            "line {at}: no block marked sh follows the exit code"
        )),
        None => Ok(scripts),
    }
}

/// Returns the links and pictures of a page, in order.
pub fn links(page: &str) -> Vec<Link> {
    let links = events(page).filter_map(|(event, range)| {
        let (target, picture) = match event {
            Event::Start(Tag::Link { dest_url, .. }) => (dest_url, false),
            Event::Start(Tag::Image { dest_url, .. }) => (dest_url, true),
            _ => return None,
        };
        Some(Link {
            line: line(page, range.start),
            target: target.into_string(),
            picture,
        })
    });
    links.collect()
}

/// Returns the anchors of a page's headings, as code forges and mdBook make them. Letters become lower case, blanks become hyphens, and
/// other signs are dropped but hyphens and underscores. If a heading is repeated, a number is appended.
pub fn anchors(page: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    let mut heading: Option<String> = None;
    for (event, _) in events(page) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(text) | Event::Code(text) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&text);
                }
            }
            Event::End(TagEnd::Heading(_)) => {
                let text = heading.take().unwrap_or_default().to_lowercase();
                let kept = text.chars().filter_map(|sign| match sign {
                    ' ' => Some('-'),
                    '-' | '_' => Some(sign),
                    _ => sign.is_alphanumeric().then_some(sign),
                });
                let anchor: String = kept.collect();
                let before = anchors.iter().filter(|other| **other == anchor).count();
                anchors.push(match before {
                    0 => anchor,
                    _ => format!("{anchor}-{before}"),
                });
            }
            _ => {}
        }
    }
    anchors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_have_lines_and_exit_codes() {
        let page = "# A\n\n```sh\ntrue\nfalse\n```\n\n```console\nsudo x\n```\n\n<!-- exit: 2 -->\n```sh\nexit 2\n```\n";
        let script = |line, text: &str, exit| Script {
            line,
            text: text.into(),
            exit,
        };
        assert_eq!(
            scripts(page),
            Ok(vec![
                script(3, "true\nfalse\n", 0),
                script(13, "exit 2\n", 2)
            ])
        );
    }

    #[test]
    fn exit_codes_without_a_script_are_refused() {
        let lost = "line 1: no block marked sh follows the exit code";
        assert_eq!(scripts("<!-- exit: 2 -->\n\ntext\n"), Err(lost.into()));
        assert_eq!(scripts("<!-- exit: 2 -->\n"), Err(lost.into()));
        let wrong = "line 1: \"<!-- exit: two -->\" is no exit code; write <!-- exit: 2 -->";
        assert_eq!(scripts("<!-- exit: two -->\n"), Err(wrong.into()));
    }

    #[test]
    fn links_are_found_in_tables_too() {
        let page = "[a](b.md#c)\n\n| x |\n|---|\n| ![p](q.png) |\n";
        let found: Vec<_> = links(page)
            .into_iter()
            .map(|link| (link.line, link.target, link.picture))
            .collect();
        assert_eq!(
            found,
            [(1, "b.md#c".into(), false), (5, "q.png".into(), true)]
        );
    }

    #[test]
    fn what_a_reader_would_stumble_over_is_found() {
        let good = "| a | b |\n|---|---|\n| `x\\|y` | z |\n\ntext | text\n";
        assert_eq!(faults(good), Vec::<String>::new());
        let directive = "text\n\n{{#include a.md:2:}}\n";
        assert_eq!(faults(directive), ["3: a directive of mdBook"]);
        let torn = "| a |\n|---|\n| b |\n\n| c |\n| d |\n";
        assert_eq!(faults(torn), ["5: a row of no table"]);
        let uneven = "| a | b |\n|---|---|\n| c | d |\n| `x|y` | z |\n";
        assert_eq!(faults(uneven), ["4: a row of 3 cells in a table of 2"]);
    }

    #[test]
    fn anchors_are_those_of_forges() {
        let page = "# What `x-y` is, 1\n## Limits\n## Limits\n";
        assert_eq!(anchors(page), ["what-x-y-is-1", "limits", "limits-1"]);
    }
}
