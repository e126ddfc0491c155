//! Tests of call paths of real processes, compared with the paths of the C library's own unwinder.

mod common;

use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use common::{HostFiles, compile, host};
use nodescope_symbols::{Call, FileId, FilePage, Files, Registers, Sample, Symbolizer, Unwinder};
use object::{Object, ObjectSection};

/// State of a run of the program `path`, from the program's output.
struct Process {
    registers: Registers,
    stack: Vec<u8>,
    path: Vec<u64>,
    /// Executable mappings: addresses, offset in the file, path of the file.
    maps: Vec<(Range<u64>, u64, String)>,
}

impl Process {
    fn new(output: &str) -> Self {
        let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
        let line = |start: &str| {
            let found = output.lines().find_map(|line| line.strip_prefix(start));
            found.unwrap_or_else(|| panic!("no line {start}in {output}"))
        };
        let numbers = |line: &str| line.split_whitespace().map(hex).collect::<Vec<_>>();
        let registers = numbers(line("registers "));
        let stack = line("stack ");
        let maps = output.lines().filter_map(|line| {
            let fields: Vec<&str> = line.strip_prefix("map ")?.split_whitespace().collect();
            let (from, to) = fields[0].split_once('-')?;
            let file = fields.get(5).filter(|file| file.starts_with('/'))?;
            let mapped = (hex(from)..hex(to), hex(fields[2]), file.to_string());
            fields[1].contains('x').then_some(mapped)
        });
        Self {
            registers: Registers {
                ip: registers[0],
                sp: registers[1],
                bp: registers[2],
            },
            stack: (0..stack.len() / 2)
                .map(|n| hex(&stack[2 * n..2 * n + 2]) as u8)
                .collect(),
            path: numbers(line("path ")),
            maps: maps.collect(),
        }
    }

    fn resolve(&self, address: u64) -> Option<FilePage> {
        let map = self.maps.iter().find(|map| map.0.contains(&address))?;
        Some(FilePage::File {
            file: host(&map.2),
            offset: address - map.0.start + map.1,
        })
    }

    fn unwind(&self) -> Vec<u64> {
        let calls = self.calls();
        // The unwinder's files and offsets must agree with the process's list of mappings.
        for call in &calls {
            assert_eq!(Some(&call.page), self.resolve(call.address - 1).as_ref());
        }
        calls.iter().map(|call| call.address).collect()
    }

    fn calls(&self) -> Vec<Call> {
        let sample = Sample {
            registers: self.registers,
            stack: &self.stack,
        };
        Unwinder::new().unwind(&HostFiles, &sample, &mut |address| self.resolve(address))
    }
}

/// Compiles and runs the program `path`. Without the compiler, reports that the test is skipped and returns `None`.
fn process(dir: &Path, flags: &[&str]) -> Option<Process> {
    let library = compile(
        "gcc",
        "through.c",
        &dir.join("libthrough.so"),
        &["-O2", "-shared", "-fPIC", "-fomit-frame-pointer"],
    )?;
    let program = compile("gcc", "path.c", &dir.join("path"), flags)?;
    let output = Command::new(program).arg(library).output().unwrap();
    Some(Process::new(&String::from_utf8(output.stdout).unwrap()))
}

#[test]
fn paths_are_those_of_the_c_library() {
    for flags in [
        &["-O2", "-fomit-frame-pointer", "-rdynamic", "-ldl"][..],
        &["-O2", "-fno-omit-frame-pointer", "-no-pie", "-ldl"],
        &["-O0", "-g", "-ldl"],
    ] {
        let dir = tempfile::tempdir().unwrap();
        let Some(process) = process(dir.path(), flags) else {
            return;
        };
        let path = process.unwind();
        println!("{flags:?}: {} calls", path.len());
        assert_eq!(path, process.path, "{flags:?}");
        assert!(path.len() >= 8);
        // Without inlining and tail calls, all names are known.
        if flags[0] == "-O0" {
            let mut symbolizer = Symbolizer::new();
            let names: Vec<String> = path
                .iter()
                .map(|address| match process.resolve(address - 1) {
                    Some(FilePage::File { file, offset }) => {
                        let location = symbolizer.locate(&HostFiles, &file, offset, &[]);
                        location.function
                    }
                    _ => "?".into(),
                })
                .collect();
            println!("{names:?}");
            for name in ["deep", "compare", "callback", "through", "main", "_start"] {
                assert!(
                    names.iter().any(|found| found == name),
                    "{name} in {names:?}"
                );
            }
            assert_eq!(names.last().unwrap(), "_start");
        }
    }
}

#[test]
fn a_cut_or_damaged_stack_gives_a_shorter_path() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut process) = process(dir.path(), &["-O2", "-fomit-frame-pointer", "-ldl"]) else {
        return;
    };
    let whole = process.path.clone();
    for len in [0, 7, 64, 200, 400] {
        let mut cut = Process {
            stack: process.stack[..len].to_vec(),
            path: Vec::new(),
            maps: process.maps.clone(),
            ..process
        };
        let path = cut.unwind();
        assert!(
            path.len() < whole.len() && whole.starts_with(&path),
            "{len}"
        );
        // Registers with invalid addresses.
        cut.registers.ip = 0x1234;
        assert!(cut.unwind().is_empty());
        cut.registers.sp = u64::MAX - 3;
        assert!(cut.unwind().is_empty());
    }
    // Each of the first 128 words of the stack in turn gets 0, the instruction pointer, the stack pointer, and an invalid address.
    for at in (0..1024).step_by(8) {
        let before = process.stack[at..at + 8].to_vec();
        for value in [0, process.registers.ip, process.registers.sp, u64::MAX] {
            process.stack[at..at + 8].copy_from_slice(&value.to_le_bytes());
            assert!(process.unwind().len() <= nodescope_symbols::DEPTH);
        }
        process.stack[at..at + 8].copy_from_slice(&before);
    }
}

/// Files of this machine, of which `path` has the damaged contents `bytes`.
struct Damaged {
    path: String,
    bytes: Arc<[u8]>,
}

impl Files for Damaged {
    fn read(&self, file: &FileId) -> Option<Arc<[u8]>> {
        match file.path == self.path {
            true => Some(self.bytes.clone()),
            false => HostFiles.read(file),
        }
    }
}

#[test]
fn damaged_descriptions_never_panic() {
    let dir = tempfile::tempdir().unwrap();
    let Some(process) = process(dir.path(), &["-O2", "-fomit-frame-pointer", "-ldl"]) else {
        return;
    };
    let path = dir.path().join("path");
    let whole = std::fs::read(&path).unwrap();
    let file = object::File::parse(&whole[..]).unwrap();
    let parts: Vec<(u64, u64)> = [".eh_frame", ".eh_frame_hdr"]
        .iter()
        .map(|name| file.section_by_name(name).unwrap().file_range().unwrap())
        .collect();
    // A Lehmer generator with a fixed seed makes all runs of the test the same.
    let mut state = 99u64;
    let mut random = |below: u64| {
        state = state * 48271 % 0x7fff_ffff;
        state % below
    };
    let mut other = 0;
    for round in 0..1000 {
        let mut bytes = whole.clone();
        for _ in 0..1 + round % 8 {
            let (start, len) = parts[random(2) as usize];
            bytes[(start + random(len)) as usize] = random(256) as u8;
        }
        // Every fifth file also has damage in the headers.
        if round % 5 == 0 {
            bytes[random(64 + 13 * 56) as usize] = random(256) as u8;
        }
        let files = Damaged {
            path: path.to_str().unwrap().into(),
            bytes: bytes.into(),
        };
        let sample = Sample {
            registers: process.registers,
            stack: &process.stack,
        };
        let mut resolve = |address| process.resolve(address);
        let calls = Unwinder::new().unwind(&files, &sample, &mut resolve);
        assert!(calls.len() <= nodescope_symbols::DEPTH);
        other += u32::from(calls.len() != process.path.len());
    }
    assert!(other > 100, "{other} paths changed");
}
