//! Tests of names that a process of its own makes. This program is that process if it is told so; the test therefore has no harness.

mod common;

use std::cell::Cell;
use std::env;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use common::{HostFiles, compile, host};
use nodescope_symbols::{
    FileId, FilePage, Files, Location, Names, Registers, SERVE_ARGUMENT, Sample, serve_names,
};
use nodescope_test_needs::Need;
use object::{Object, ObjectSection};

/// This program.
const SELF: &str = "/proc/self/exe";
/// Linear address to which the tests map a file.
const BASE: u64 = 0x5000_0000_0000;

fn main() -> ExitCode {
    match env::args().nth(1).as_deref() {
        Some(SERVE_ARGUMENT) => return serve_names(),
        // What a test runner asks when it lists tests.
        Some("--list") => println!("process: test"),
        _ => {
            a_program_that_makes_no_names_is_reported();
            let dir = tempfile::tempdir().unwrap();
            if let Some(path) = compile("gcc", "names.c", &dir.path().join("names"), &["-O2", "-g"])
            {
                both_ways_give_the_same(&path);
                files_that_end_the_process_lose_their_names_alone(&path);
            }
            // The line from which scripts/test counts.
            println!("test process ... ok\ntest result: ok. 1 passed; 0 failed");
        }
    }
    ExitCode::SUCCESS
}

/// Returns the offset and the bytes of the code of a file.
fn code(path: &Path) -> (u64, Vec<u8>) {
    let bytes = std::fs::read(path).unwrap();
    let file = object::File::parse(&bytes[..]).unwrap();
    let text = file.section_by_name(".text").unwrap();
    let (offset, _) = text.file_range().unwrap();
    (offset, text.data().unwrap().to_vec())
}

fn locate(names: &mut Names, files: &dyn Files, path: &Path) -> Vec<Location> {
    let (offset, code) = code(path);
    let at = (offset..).zip(code.chunks(1));
    let at: Vec<(u64, &[u8])> = at.collect();
    names.locate(files, &host(path.to_str().unwrap()), &at)
}

/// Returns the call paths of two stacks whose words are addresses in the code.
fn paths(names: &mut Names, files: &dyn Files, path: &Path) -> Vec<Vec<u64>> {
    let (offset, code) = code(path);
    let word = |n: u64| BASE + offset + n * 7 % code.len() as u64;
    let stack: Vec<u8> = (1..2000).flat_map(|n| word(n).to_le_bytes()).collect();
    let sample = |ip| Sample {
        registers: Registers {
            ip,
            sp: 0x7000_0000_0000,
            bp: 0x7000_0000_0100,
        },
        stack: &stack,
    };
    let file = host(path.to_str().unwrap());
    let mut resolve = |space, address: u64| {
        assert_eq!(space, 3);
        let offset = address.checked_sub(BASE)?;
        let file = file.clone();
        Some(FilePage::File { file, offset })
    };
    let stacks: Vec<_> = (0..200).map(|n| (3, sample(word(n)))).collect();
    let found = names.unwind(files, &stacks, &mut resolve);
    let addresses = found
        .iter()
        .map(|path| path.iter().map(|call| call.address).collect());
    addresses.collect()
}

fn both_ways_give_the_same(path: &Path) {
    let mut here = Names::here();
    let mut process = Names::in_process(Path::new(SELF));
    let found = locate(&mut here, &HostFiles, path);
    assert!(found.iter().any(|location| location.inlined.len() == 2));
    assert_eq!(locate(&mut process, &HostFiles, path), found);
    let file = host(path.to_str().unwrap());
    for address in [0, 0x1000, found[0].function_start.unwrap(), u64::MAX] {
        assert_eq!(
            process.locate_address(&HostFiles, &file, address),
            here.locate_address(&HostFiles, &file, address)
        );
    }
    let calls = paths(&mut here, &HostFiles, path);
    assert_eq!(paths(&mut process, &HostFiles, path), calls);
    assert!(calls.iter().any(|path| path.len() > 2), "{calls:?}");
    assert!(here.take_lost().is_empty() && process.take_lost().is_empty());
    if let Some(gaps) = process.gaps() {
        nodescope_test_needs::skip(Need::Sandbox, gaps);
    }
}

/// Files of this machine. A signal ends the process that wants one of them.
struct Deadly {
    path: String,
    signal: i32,
    /// Number of processes that were ended.
    ended: Cell<u32>,
}

impl Files for Deadly {
    fn read(&self, file: &FileId) -> Option<Arc<[u8]>> {
        if file.path == self.path {
            let own = std::process::id();
            let children = std::fs::read_to_string(format!("/proc/self/task/{own}/children"));
            let child: i32 = children.unwrap().trim().parse().expect("one child");
            // SAFETY: the call has no effect on this process.
            assert_eq!(unsafe { libc::kill(child, self.signal) }, 0);
            self.ended.set(self.ended.get() + 1);
        }
        HostFiles.read(file)
    }
}

fn files_that_end_the_process_lose_their_names_alone(path: &Path) {
    let dir = tempfile::tempdir().unwrap();
    let deadly = dir.path().join("deadly");
    std::fs::copy(path, &deadly).unwrap();
    for (signal, reason) in [
        (libc::SIGKILL, "the process that reads it ended"),
        (libc::SIGABRT, "its names need too much memory"),
        (libc::SIGXCPU, "its names take too long"),
    ] {
        let files = Deadly {
            path: deadly.to_str().unwrap().into(),
            signal,
            ended: Cell::new(0),
        };
        let mut names = Names::in_process(Path::new(SELF));
        let before = locate(&mut names, &files, path);
        let lost = locate(&mut names, &files, &deadly);
        assert!(
            lost.iter()
                .all(|location| location.function.starts_with("deadly+0x"))
        );
        // A process that has read other files is given a second chance. The file ends the second process, too.
        assert_eq!(files.ended.get(), 2);
        let said = format!(
            "{}: no functions and lines, since {reason}",
            deadly.display()
        );
        assert_eq!(names.take_lost(), [said]);
        assert_eq!(locate(&mut names, &files, path), before);
        // The file is not tried again, and a path ends in it.
        locate(&mut names, &files, &deadly);
        assert_eq!((files.ended.get(), names.take_lost()), (2, Vec::new()));
        assert!(paths(&mut names, &files, &deadly).iter().all(Vec::is_empty));
        assert!(!paths(&mut names, &files, path).iter().all(Vec::is_empty));
        drop(names);
        let mut names = Names::in_process(Path::new(SELF));
        assert!(paths(&mut names, &files, &deadly).iter().all(Vec::is_empty));
        assert_eq!((files.ended.get(), names.take_lost().len()), (3, 1));
    }
}

fn a_program_that_makes_no_names_is_reported() {
    for program in ["/nowhere/at-all", "/bin/true", "/bin/cat"] {
        let mut names = Names::in_process(Path::new(program));
        let at = [(7, &[][..])];
        let found = names.locate(&HostFiles, &host("/bin/sh"), &at);
        assert_eq!(found[0].function, "sh+0x7");
        let lost = names.take_lost();
        let text = format!("functions have no names, since {program} cannot be started: ");
        assert!(lost.len() == 1 && lost[0].starts_with(&text), "{lost:?}");
        names.locate(&HostFiles, &host("/bin/sh"), &at);
        assert!(names.take_lost().is_empty());
    }
}
