//! Recognition of trace formats by content.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::error::ImportError;

/// Format of a trace that can be imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An OTF2 archive, by its anchor file.
    Otf2,
    /// SimGrid's time-independent trace: actions, or a list of files with actions.
    Simgrid,
    /// A trace of liballprof, by the file of one of its ranks.
    Liballprof,
    /// A GOAL schedule of LogGOPSim.
    Goal,
}

impl Kind {
    /// Returns the name of the format, for people.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Otf2 => "an OTF2 archive",
            Kind::Simgrid => "a SimGrid time-independent trace",
            Kind::Liballprof => "a liballprof trace",
            Kind::Goal => "a GOAL schedule",
        }
    }
}

/// The formats that can be imported, for messages.
pub(crate) const KNOWN: &str = "an OTF2 archive (its .otf2 file), a SimGrid time-independent trace (lines `rank action …`, or the list of \
     such files), a liballprof trace (a file for each rank, lines `MPI_Send:time:…`) or a GOAL schedule (`num_ranks N`, `rank 0 {`)";

/// Number of bytes at a file's beginning by which its format is recognised.
const HEAD: usize = 64 << 10;

/// Number of characters at the beginning of a text among which no control character is.
const FIRST: usize = 256;

/// Returns the format of a trace, and the file to read: `input` itself, or the only trace in it if `input` is a folder. Of a liballprof
/// trace in a folder, the file is one of the ranks'. The error names what the file looks like.
pub fn recognise(input: &Path) -> Result<(Kind, PathBuf), ImportError> {
    let metadata = std::fs::metadata(input).map_err(ImportError::io("open", input))?;
    if !metadata.is_dir() {
        return match kind_of(input)? {
            Ok(kind) => Ok((kind, input.into())),
            Err(what) => Err(unknown(input, what)),
        };
    }
    let entries = std::fs::read_dir(input).map_err(ImportError::io("read", input))?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.is_file())
        .collect();
    files.sort();
    let mut found: Vec<(Kind, PathBuf)> = Vec::new();
    for file in files {
        let Ok(kind) = kind_of(&file)? else {
            continue;
        };
        // A list of SimGrid's files has no sure mark, and a rank's part of such a trace is no trace of its own.
        if kind == Kind::Simgrid && file.extension().is_none_or(|extension| extension != "ti") {
            continue;
        }
        let known = kind == Kind::Liballprof && found.iter().any(|(other, _)| *other == kind);
        if !known {
            found.push((kind, file));
        }
    }
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => Err(unknown(
            input,
            "is a folder without a trace of these formats".into(),
        )),
        _ => {
            let names = found.iter().map(|(_, file)| {
                let name = file.file_name().unwrap_or_default();
                name.to_string_lossy().into_owned()
            });
            let names: Vec<String> = names.take(5).collect();
            Err(ImportError::Content {
                file: input.into(),
                what: format!(
                    "holds several traces; name one, such as {}",
                    names.join(" or ")
                ),
            })
        }
    }
}

fn unknown(file: &Path, what: String) -> ImportError {
    ImportError::Unknown {
        file: file.into(),
        what,
    }
}

/// Returns the format of a file, or in words what it looks like.
fn kind_of(path: &Path) -> Result<Result<Kind, String>, ImportError> {
    // A device or a pipe may have no end.
    if !path.is_file() {
        return Ok(Err("is no regular file".into()));
    }
    let mut head = Vec::new();
    let file = File::open(path).map_err(ImportError::io("open", path))?;
    file.take(HEAD as u64)
        .read_to_end(&mut head)
        .map_err(ImportError::io("read", path))?;
    let extension = path.extension().and_then(|kind| kind.to_str());
    Ok(match extension {
        Some("otf2") if head.is_empty() || text(&head).is_none() => Ok(Kind::Otf2),
        _ => kind_of_bytes(&head),
    })
}

/// Marks at the beginning of files, and what such files are.
const MARKS: [(&[u8], &str); 15] = [
    (
        &nodescope_trace::MAGIC,
        "is a nodescope trace already; use it as it is",
    ),
    (b"\x1f\x8b", "is compressed by gzip; unpack it first"),
    (b"BZh", "is compressed by bzip2; unpack it first"),
    (b"\xfd7zXZ", "is compressed by xz; unpack it first"),
    (
        b"\x28\xb5\x2f\xfd",
        "is compressed by zstd; unpack it first",
    ),
    (b"PK\x03\x04", "is a ZIP archive; unpack it first"),
    (b"\x7fELF", "is a program or a library"),
    (b"#Paraver", "is a Paraver trace, which cannot be imported"),
    (b"#DIMEMAS", "is a Dimemas trace, which cannot be imported"),
    (
        b"\xc1\x1f\xfc\xc1",
        "is a CTF trace, which cannot be imported",
    ),
    (
        b"/* CTF",
        "is the metadata of a CTF trace, which cannot be imported",
    ),
    (b"<?xml", "is an XML file"),
    (b"{", "begins like JSON"),
    (b"[", "begins like JSON or a TOML file"),
    (b"PERFILE2", "is a file of perf record"),
];

/// Returns the text at the beginning of a file: all of it, or, if a later line is no text, what is before. `None` if there is none.
fn text(head: &[u8]) -> Option<&str> {
    let valid = head.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    // The last character may be cut.
    let whole = head.len() - valid.len() < 4;
    let text = whole || valid.contains('\n');
    let odd = |letter: char| letter.is_control() && !letter.is_whitespace();
    (text && !valid.chars().take(FIRST).any(odd)).then_some(valid)
}

fn kind_of_bytes(head: &[u8]) -> Result<Kind, String> {
    if head.is_empty() {
        return Err("is empty".into());
    }
    if let Some((_, what)) = MARKS.iter().find(|(mark, _)| head.starts_with(mark)) {
        return Err((*what).into());
    }
    let Some(text) = text(head) else {
        let bytes: Vec<String> = head
            .iter()
            .take(4)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        return Err(format!(
            "holds no text, and begins with the bytes {}",
            bytes.join(" ")
        ));
    };
    let mut lines = Lines::new(text);
    let Some(line) = lines.next() else {
        return match text.starts_with("# htor's") || text.starts_with("# collprof") {
            true => Ok(Kind::Liballprof),
            false => Err("holds nothing but comments".into()),
        };
    };
    if line.starts_with("MPI_") && line.contains(':') {
        return Ok(Kind::Liballprof);
    }
    let mut words = line.split_whitespace();
    let first = words.next().unwrap_or_default();
    let second = words.next();
    let number = |word: &str| word.bytes().all(|byte| byte.is_ascii_digit());
    if first == "num_ranks" || first == "rank" && second.is_some_and(number_or_brace) {
        return Ok(Kind::Goal);
    }
    // A name of a file stands alone.
    let name = second.is_none() && line.contains(['/', '.']);
    if name || number(first) && second.is_some() {
        return Ok(Kind::Simgrid);
    }
    let shown: String = line.chars().take(40).collect();
    Err(format!("is text that begins with {shown:?}"))
}

fn number_or_brace(word: &str) -> bool {
    word.trim_end_matches('{')
        .bytes()
        .all(|byte| byte.is_ascii_digit())
}

/// Lines with content: without comments of the known formats.
struct Lines<'a> {
    rest: &'a str,
}

impl<'a> Lines<'a> {
    fn new(text: &'a str) -> Lines<'a> {
        Lines { rest: text }
    }
}

impl<'a> Iterator for Lines<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        loop {
            self.rest = self.rest.trim_start();
            if let Some(comment) = self.rest.strip_prefix("/*") {
                self.rest = comment.split_once("*/").map_or("", |(_, rest)| rest);
                continue;
            }
            if self.rest.is_empty() {
                return None;
            }
            let (line, rest) = self.rest.split_once('\n').unwrap_or((self.rest, ""));
            self.rest = rest;
            if !line.starts_with('#') && !line.starts_with("//") {
                return Some(line.trim_end());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_recognised_by_their_first_line() {
        let kind = |text: &str| kind_of_bytes(text.as_bytes());
        assert_eq!(kind("# comment\n\n0 init\n"), Ok(Kind::Simgrid));
        assert_eq!(kind("ranks/0.txt\nranks/1.txt\n"), Ok(Kind::Simgrid));
        assert_eq!(
            kind("# htor's PMPI Tracer 1 Output File\n\nMPI_Init:-:1:2:3\n"),
            Ok(Kind::Liballprof)
        );
        assert_eq!(kind("// x\n/* y\n */ num_ranks 4\n"), Ok(Kind::Goal));
        assert_eq!(kind("rank 0 {\n}\n"), Ok(Kind::Goal));
        assert_eq!(kind("rank 0{\n}\n"), Ok(Kind::Goal));
    }

    #[test]
    fn other_files_are_named_by_what_they_look_like() {
        let told = |bytes: &[u8]| kind_of_bytes(bytes).unwrap_err();
        assert!(told(b"\x1f\x8b\x08\0").contains("gzip"));
        assert!(told(b"").contains("empty"));
        assert!(told(b"\0\x01\x02\x03\x04").ends_with("bytes 00 01 02 03"));
        assert!(told(b"#Paraver (1/1/26)").contains("Paraver"));
        assert!(told(b"{\"traceEvents\":[]}").contains("JSON"));
        assert!(told(&nodescope_trace::MAGIC).contains("already"));
        assert!(told(b"the quick brown fox\n").contains("\"the quick brown fox\""));
        assert!(told(b"# only\n").contains("comments"));
    }
}
