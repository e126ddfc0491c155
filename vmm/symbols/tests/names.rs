//! Tests of names of code in files that this machine's compilers make.

mod common;

use std::path::Path;
use std::process::Command;

use common::{HostFiles, compile, host};
use nodescope_symbols::{Location, SourceLine, Symbolizer};
use nodescope_test_needs::{Need, have};
use object::{Object, ObjectSection, ObjectSymbol};

/// Finds the offset in the file of a link-time address.
fn offset(bytes: &[u8], address: u64) -> u64 {
    let file = object::File::parse(bytes).unwrap();
    let section = file.sections().find(|section| {
        let within = address.wrapping_sub(section.address());
        section.address() != 0 && within < section.size()
    });
    let section = section.unwrap();
    section.file_range().unwrap().0 + address - section.address()
}

/// Returns the location of each byte of a function. `symbols` is the file with the function's symbol.
fn all(path: &Path, symbols: &Path, function: &str) -> Vec<Location> {
    let bytes = std::fs::read(path).unwrap();
    let with = std::fs::read(symbols).unwrap();
    let with = object::File::parse(&with[..]).unwrap();
    let symbol = with.symbols().find(|s| s.name() == Ok(function)).unwrap();
    let mut symbolizer = Symbolizer::new();
    let file = host(path.to_str().unwrap());
    (0..symbol.size())
        .map(|n| {
            let at = offset(&bytes, symbol.address() + n);
            let code = &bytes[at as usize..at as usize + 1];
            symbolizer.locate(&HostFiles, &file, at, code)
        })
        .collect()
}

/// Returns the number of the source line with this comment.
fn line(comment: &str) -> u32 {
    let source = include_str!("programs/names.c").lines();
    let comment = format!("/* {comment} */");
    let found = source.zip(1..).find(|(text, _)| text.contains(&comment));
    found.unwrap().1
}

fn at(location: &Option<SourceLine>) -> Option<u32> {
    let location = location.as_ref()?;
    assert!(location.file.ends_with("names.c"), "{location:?}");
    Some(location.line)
}

#[test]
fn inlined_functions_and_lines() {
    let dir = tempfile::tempdir().unwrap();
    for flags in [
        &["-O2", "-g"][..],
        &["-O2", "-gdwarf-4", "-no-pie"],
        &["-O2", "-g", "-gz=zlib", "-static"],
        &["-O1", "-g", "-fPIE", "-pie"],
    ] {
        let out = dir.path().join("names");
        let Some(path) = compile("gcc", "names.c", &out, flags) else {
            return;
        };
        let locations = all(&path, &path, "work");
        assert!(
            locations
                .iter()
                .all(|location| location.function == "work" && location.verified)
        );
        assert!(
            locations
                .iter()
                .all(|location| location.build_id.as_ref().unwrap().len() == 40)
        );
        assert!(
            locations
                .iter()
                .all(|location| location.function_size == Some(locations.len() as u64))
        );
        let inner = locations
            .iter()
            .find(|location| location.inlined.len() == 2);
        let inner = inner.unwrap_or_else(|| panic!("{flags:?}: {locations:?}"));
        assert_eq!(at(&inner.line), Some(line("inner")));
        let frames: Vec<_> = inner.inlined.iter().collect();
        assert_eq!(frames[0].function, "inner");
        assert_eq!(at(&frames[0].called_from), Some(line("outer calls inner")));
        assert_eq!(frames[1].function, "outer");
        assert_eq!(at(&frames[1].called_from), Some(line("work calls outer")));
        let main = all(&path, &path, "main");
        assert!(
            main.iter()
                .any(|location| at(&location.line) > Some(line("work calls outer")))
        );
    }
}

#[test]
fn other_bytes_are_unverified() {
    let dir = tempfile::tempdir().unwrap();
    let Some(path) = compile("gcc", "names.c", &dir.path().join("names"), &["-g"]) else {
        return;
    };
    let file = host(path.to_str().unwrap());
    let mut symbolizer = Symbolizer::new();
    let location = symbolizer.locate(&HostFiles, &file, 0x1100, b"no such code");
    assert!(!location.verified);
    assert_eq!(location.function, "names+0x1100");
    assert_eq!((location.line, location.function_start), (None, None));
    // Beyond the file's end, and a file that is not there.
    let location = symbolizer.locate(&HostFiles, &file, u64::MAX, b"x");
    assert_eq!(
        (location.verified, &*location.function),
        (false, "names+0xffffffffffffffff")
    );
    let location = symbolizer.locate(&HostFiles, &host("/nowhere/at all"), 0x10, b"x");
    assert_eq!(
        (location.verified, &*location.function),
        (false, "at all+0x10")
    );
}

/// Returns the sorted names of functions in the sections whose names begin with `.plt`.
fn linkage(path: &Path) -> Vec<String> {
    let bytes = std::fs::read(path).unwrap();
    let file = object::File::parse(&bytes[..]).unwrap();
    let mut symbolizer = Symbolizer::new();
    let mut names = Vec::new();
    for section in file.sections() {
        if !section.name().unwrap().starts_with(".plt") {
            continue;
        }
        let (start, size) = section.file_range().unwrap();
        for at in start..start + size {
            let file = host(path.to_str().unwrap());
            let location = symbolizer.locate(&HostFiles, &file, at, &bytes[at as usize..][..1]);
            names.push(location.function);
        }
    }
    names.sort();
    names.dedup();
    names
}

#[test]
fn calls_of_other_files_have_names() {
    let dir = tempfile::tempdir().unwrap();
    for flags in [
        &["-O1", "-fcf-protection=full"][..],
        &["-O1", "-fcf-protection=none", "-Wl,-z,lazy"],
        &["-O1", "-no-pie", "-Wl,-z,now"],
    ] {
        let out = dir.path().join("names");
        let Some(path) = compile("gcc", "names.c", &out, flags) else {
            return;
        };
        let stripped = dir.path().join("stripped");
        if !strip(&path, &stripped, &["-s"]) {
            return;
        }
        let names = linkage(&path);
        for name in ["malloc@plt", "printf@plt", "strcpy@plt", "puts@plt"] {
            assert!(
                names.iter().any(|found| found == name),
                "{flags:?}: {names:?}"
            );
        }
        let named = |names: Vec<String>| -> Vec<String> {
            names
                .into_iter()
                .filter(|name| name.ends_with("@plt"))
                .collect()
        };
        assert_eq!(named(names), named(linkage(&stripped)));
    }
}

/// Copies a file with `strip`. Without the tools, reports that the test is skipped and returns false.
fn strip(path: &Path, out: &Path, flags: &[&str]) -> bool {
    if !have(Need::Compiler, &["strip", "objcopy"]) {
        return false;
    }
    let status = Command::new("strip")
        .args(flags)
        .arg("-o")
        .arg(out)
        .arg(path)
        .status();
    assert!(status.unwrap().success());
    true
}

#[test]
fn stripped_code_has_offsets_and_debug_files_give_names() {
    let dir = tempfile::tempdir().unwrap();
    let Some(path) = compile("gcc", "names.c", &dir.path().join("names"), &["-O2", "-g"]) else {
        return;
    };
    let (bare, debug) = (dir.path().join("bare"), dir.path().join("debug"));
    if !strip(&path, &bare, &["-s"]) || !strip(&path, &debug, &["--only-keep-debug"]) {
        return;
    }
    let bytes = std::fs::read(&bare).unwrap();
    let locations = all(&bare, &path, "hidden");
    let with = all(&path, &path, "hidden");
    for (location, with) in locations.iter().zip(&with) {
        assert!(
            location.verified && location.function.starts_with("bare+0x"),
            "{location:?}"
        );
        assert_eq!(
            (&location.line, &location.build_id),
            (&None, &with.build_id)
        );
    }
    // Now the file with the debug information is at the path that Debian uses.
    let mut files = nodescope_symbols::ListedFiles::default();
    let id = locations[0].build_id.clone().unwrap();
    let location = format!("/usr/lib/debug/.build-id/{}/{}.debug", &id[..2], &id[2..]);
    files.insert_host(&location, &debug);
    files.insert("/job/bare", bytes.clone());
    let file = nodescope_symbols::FileId {
        file_system: "tmpfs".into(),
        mount: "/rw".into(),
        path: "/upper/job/bare".into(),
        ..host("")
    };
    let mut symbolizer = Symbolizer::new();
    let start = with[0].function_start.unwrap();
    let at = offset(&bytes, start);
    let found = symbolizer.locate(&files, &file, at, &bytes[at as usize..][..8]);
    assert_eq!((&*found.function, &*found.module), ("hidden", "/job/bare"));
    assert_eq!(found.line, with[0].line);
    assert!(found.verified);
}

#[test]
fn a_debug_file_beside_the_program_gives_names() {
    let dir = tempfile::tempdir().unwrap();
    let flags = ["-O2", "-g", "-Wl,--build-id=none"];
    let Some(path) = compile("gcc", "names.c", &dir.path().join("names"), &flags) else {
        return;
    };
    let (bare, debug) = (dir.path().join("bare"), dir.path().join("bare.debug"));
    if !strip(&path, &debug, &["--only-keep-debug"]) || !strip(&path, &bare, &["-s"]) {
        return;
    }
    let link = Command::new("objcopy")
        .arg(format!("--add-gnu-debuglink={}", debug.display()))
        .arg(&bare)
        .status();
    assert!(link.unwrap().success());
    let with = all(&path, &path, "hidden");
    let start = with[0].function_start.unwrap();
    let at = offset(&std::fs::read(&bare).unwrap(), start);
    let function = |line: bool| {
        let file = host(bare.to_str().unwrap());
        let found = Symbolizer::new().locate(&HostFiles, &file, at, &[]);
        assert_eq!(found.line.is_some(), line);
        found.function
    };
    assert_eq!(function(true), "hidden");
    // The folder `.debug` is searched, too.
    let folder = dir.path().join(".debug");
    std::fs::create_dir(&folder).unwrap();
    std::fs::rename(&debug, folder.join("bare.debug")).unwrap();
    assert_eq!(function(true), "hidden");
    // A file with another checksum is the debug file of another program.
    let mut other = std::fs::read(folder.join("bare.debug")).unwrap();
    other.push(0);
    std::fs::write(folder.join("bare.debug"), other).unwrap();
    assert!(function(false).starts_with("bare+0x"));
}

#[test]
fn functions_of_c_keep_their_names() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("plain.c");
    let names = ["f", "d", "g", "St", "i", "Sa"];
    let functions = names.map(|name| format!("int {name}(int x) {{ return x + 1; }}\n"));
    let source_text = functions.concat() + "int main(void) { return 0; }\n";
    std::fs::write(&source, source_text).unwrap();
    for (compiler, flags) in [("gcc", &["-O1"][..]), ("gcc", &["-O1", "-g"])] {
        let out = dir.path().join("plain");
        let Some(path) = compile(compiler, source.to_str().unwrap(), &out, flags) else {
            return;
        };
        for name in names {
            assert_eq!(all(&path, &path, name)[0].function, name);
        }
    }
}

#[test]
fn names_of_cpp_are_demangled() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("names.cpp");
    std::fs::write(
        &source,
        "namespace space { template <class T> struct Box { __attribute__((noinline)) T get(T x); }; \
         template <class T> T Box<T>::get(T x) { return x + 1; } template struct Box<long>; }\n\
         int main() { return space::Box<long>().get(3); }\n",
    )
    .unwrap();
    let out = dir.path().join("names");
    let Some(path) = compile("g++", source.to_str().unwrap(), &out, &["-g"]) else {
        return;
    };
    let locations = all(&path, &path, "_ZN5space3BoxIlE3getEl");
    assert_eq!(locations[0].function, "space::Box<long>::get(long)");
}

#[test]
fn damaged_files_never_panic() {
    let dir = tempfile::tempdir().unwrap();
    let Some(path) = compile("gcc", "names.c", &dir.path().join("names"), &["-O2", "-g"]) else {
        return;
    };
    let whole = std::fs::read(&path).unwrap();
    let file = host("/upper/x");
    let file = nodescope_symbols::FileId {
        file_system: "tmpfs".into(),
        mount: "/rw".into(),
        ..file
    };
    // A Lehmer generator with a fixed seed makes all runs of the test the same.
    let mut state = 12345u64;
    let mut random = |below: usize| {
        state = state * 48271 % 0x7fff_ffff;
        state as usize % below
    };
    // Damage goes where structure is: debug information, symbols, linkage tables, descriptions for unwinding.
    let parsed = object::File::parse(&whole[..]).unwrap();
    let ranges = parsed
        .sections()
        .filter(|section| section.name() != Ok(".text"));
    let ranges: Vec<(u64, u64)> = ranges.filter_map(|section| section.file_range()).collect();
    let mut lines = 0;
    for round in 0..1000 {
        let mut bytes = whole.clone();
        for _ in 0..1 + round % 10 {
            let (start, len) = ranges[random(ranges.len())];
            let at = start as usize + random(len.max(1) as usize);
            bytes[at] = random(256) as u8;
        }
        if round % 4 == 0 {
            bytes.truncate(random(whole.len()));
        } else if round % 4 == 1 {
            // The damage is in the headers.
            let at = random(64 + 13 * 56);
            bytes[at] = random(256) as u8;
        }
        let mut files = nodescope_symbols::ListedFiles::default();
        files.insert("/x", bytes.clone());
        let mut symbolizer = Symbolizer::new();
        for _ in 0..20 {
            let at = 0x1000 + random(0x400);
            let code = bytes.get(at..at + 1).unwrap_or_default();
            let location = symbolizer.locate(&files, &file, at as u64, code);
            lines += u32::from(location.line.is_some());
        }
    }
    // Many damaged files must still give source lines, so that the test reaches the readers.
    assert!(lines > 1000, "{lines} lines");
}
