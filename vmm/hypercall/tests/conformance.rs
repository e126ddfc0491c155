//! Runs more than fifty small programs in C and two in Fortran under Open MPI, MPICH and the standard ABI on real hardware, each with a family of MPI
//! functions. The records of each rank must have as many calls of each function as an independent counter counts, and the bytes that the
//! program itself expects.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nodescope_hypercall::{Class, Function, MpiRecord, Peer};

use support::{ABI, Job, called, counts, source, succeed, tool};

/// Length of the first program's mark, in elements of the `MPI_Reduce_local` by which `driver.c` marks programs.
const FIRST_MARK: u64 = 10_000;
/// Programs that run in a job whose MPI is initialised by `MPI_Init_thread`.
const WITH_THREADS: [&str; 2] = ["threads", "one_by_one"];
const RANKS: usize = 4;
/// Functions that receive from MPI_PROC_NULL in `nobody.c`.
const FROM_NOBODY: [&str; 6] = [
    "MPI_Recv",
    "MPI_Irecv",
    "MPI_Recv_init",
    "MPI_Sendrecv",
    "MPI_Sendrecv_replace",
    "MPI_Mrecv",
];

/// Number of calls, by program and function.
type Counts = BTreeMap<(String, String), u64>;
/// Bytes sent and bytes received, by program and function.
type Bytes = BTreeMap<(String, String), (u64, u64)>;

fn folder() -> PathBuf {
    source("conformance")
}

fn programs() -> Vec<String> {
    let entries = fs::read_dir(folder()).expect("the programs");
    let mut names: Vec<String> = entries
        .filter_map(|entry| {
            let name = entry.expect("a file").file_name().into_string().ok()?;
            Some(name.strip_suffix(".c")?.to_owned())
        })
        .filter(|name| name != "driver" && name != "counter")
        .collect();
    names.sort();
    names
}

/// Returns the functions that the C headers of the MPI implementation declare.
fn declared(flavour: &str) -> BTreeSet<String> {
    let text =
        "#include <mpi.h>\n#ifdef OPEN_MPI\n#include <mpi-ext.h>\n#endif\nint not_a_function;\n";
    let header = tempfile::NamedTempFile::with_suffix(".c").expect("a file");
    fs::write(header.path(), text).expect("a file");
    let output = succeed(
        Command::new(tool(flavour, "mpicc").expect("a compiler"))
            .args(["-E", "-P"])
            .arg(header.path()),
    );
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut names = BTreeSet::new();
    for (at, _) in text.match_indices('(') {
        let before = text[..at].trim_end();
        let start = before.rfind(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let name = &before[start.map_or(0, |at| at + 1)..];
        if name.starts_with("MPI_") || name.starts_with("MPIX_") {
            names.insert(name.to_owned());
        }
    }
    assert!(names.len() > 350, "{flavour}: {}", names.len());
    names
}

/// Returns assembly code of stubs that count a call and jump to the function: see `counter.c`. At a function's entry, the stack pointer is
/// 8 modulo 16.
fn stubs(names: &[String]) -> String {
    let mut text = String::from(".text\n");
    // Writing to a string cannot fail.
    let mut line = |line: String| {
        let _ = writeln!(text, "{line}");
    };
    for (number, name) in names.iter().enumerate() {
        let place = 8 * number;
        line(format!(".globl {name}\n.type {name}, @function\n{name}:"));
        line(format!(
            "endbr64\nmovq (%rsp), %r11\nsubq counter_start(%rip), %r11\ncmpq counter_length(%rip), %r11\njae 1f\n\
             lock incq counter_calls+{place}(%rip)\n1: movq counter_next+{place}(%rip), %r11\ntestq %r11, %r11\njz 2f\njmp *%r11\n\
             2: movl ${number}, %r11d\njmp first_call\n.size {name}, . - {name}"
        ));
    }
    // The first call of a function: all registers that may hold arguments are saved, rax among them.
    let kept = ["rdi", "rsi", "rdx", "rcx", "r8", "r9", "rax"];
    line("first_call:".into());
    kept.iter()
        .for_each(|register| line(format!("pushq %{register}")));
    line("movq %r11, %rdi\ncall counter_find\nmovq %rax, %r11".into());
    kept.iter()
        .rev()
        .for_each(|register| line(format!("popq %{register}")));
    line("jmp *%r11\n.data\n.hidden counter_calls\n.hidden counter_next\n.balign 8".into());
    let count = names.len();
    line(format!(
        ".globl counter_functions\ncounter_functions: .quad {count}\n.globl counter_names\ncounter_names:"
    ));
    for number in 0..count {
        line(format!(".quad name_{number}"));
    }
    line(format!(
        ".globl counter_calls\ncounter_calls: .fill {count}, 8, 0\n.globl counter_next\ncounter_next: .fill {count}, 8, 0\n.section .rodata"
    ));
    for (number, name) in names.iter().enumerate() {
        line(format!("name_{number}: .asciz \"{name}\""));
    }
    line(".section .note.GNU-stack,\"\",@progbits".into());
    text
}

/// Library that counts calls independently of the tracer. `names` maps each stub's name to the name that the function has in records.
struct Counter {
    library: PathBuf,
    names: BTreeMap<String, String>,
}

fn counter(flavour: &str, job: &Path) -> Counter {
    let declared = declared(flavour);
    // Open MPI 4.1 has persistent collectives as an extension. Names of Fortran functions are in lower case and end in an underscore.
    let mut names = BTreeMap::new();
    for name in &declared {
        let plain = name.replace("MPIX_", "MPI_");
        names.insert(format!("{}_", name.to_lowercase()), plain.clone());
        names.insert(name.clone(), plain);
    }
    let stubs_file = job.join("stubs.s");
    let list: Vec<String> = names.keys().cloned().collect();
    fs::write(&stubs_file, stubs(&list)).expect("a file");
    let library = job.join("libcounter.so");
    succeed(
        Command::new("gcc")
            .args(["-O1", "-fPIC", "-fvisibility=default", "-shared", "-o"])
            .args([&library, &folder().join("counter.c"), &stubs_file])
            .args(["-Wl,-Bsymbolic", "-ldl"]),
    );
    Counter { library, names }
}

/// Returns the calls that the counter counted on a rank, and the bytes that the programs expect to send and receive, each by program and
/// function.
fn counted(counter: &Counter, output: &Path, rank: usize) -> (Counts, Bytes) {
    let text = fs::read_to_string(format!("{}.{rank}", output.display())).expect("counts");
    let known: BTreeSet<&str> = Function::ALL.iter().map(|f| f.name()).collect();
    let (mut counts, mut bytes) = (Counts::new(), Bytes::new());
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().expect(line);
        let program = words[0].to_owned();
        match words[1] {
            "calls" => {
                let name = counter.names[words[2]].clone();
                // Functions outside the tracer's list are left out.
                if known.contains(name.strip_suffix("_c").unwrap_or(&name)) {
                    *counts.entry((program, name)).or_default() += number(3);
                }
            }
            _ => {
                let both = (number(3), number(4));
                bytes.insert((program, words[2].to_owned()), both);
            }
        }
    }
    (counts, bytes)
}

/// Returns the bytes that the calls of one function passed in, and the bytes that they received.
fn moved<'a>(records: impl Iterator<Item = &'a &'a MpiRecord>) -> (u64, u64) {
    let mut sum = (0, 0);
    for record in records {
        sum.0 += record.send_bytes;
        sum.1 += match (record.completions.as_slice(), record.function.class()) {
            // The size of a receive buffer says nothing of a message that has not come yet.
            ([], class) => match class {
                Class::StartReceive | Class::StartSendReceive | Class::Persistent => 0,
                Class::Receive | Class::Completion => 0,
                _ => record.receive_bytes,
            },
            (done, _) => done.iter().map(|done| done.bytes).sum(),
        };
    }
    sum
}

/// Returns the records of each program; the driver's marks separate the programs.
fn by_program<'a>(
    records: &'a [MpiRecord],
    names: &[&str],
) -> BTreeMap<String, Vec<&'a MpiRecord>> {
    let mut current: Option<usize> = None;
    let mut all: BTreeMap<String, Vec<&MpiRecord>> = BTreeMap::new();
    for record in records {
        let length = record.send_bytes / 4;
        if record.function == Function::ReduceLocal && length >= FIRST_MARK {
            let number = (length - FIRST_MARK) as usize;
            assert!(
                current.is_none_or(|open| open == number),
                "marks that do not match"
            );
            current = match current {
                Some(_) => None,
                None => Some(number),
            };
        } else if let Some(number) = current {
            all.entry(names[number].to_owned())
                .or_default()
                .push(record);
        }
    }
    assert_eq!(current, None, "a mark is missing");
    all
}

/// Runs programs in one job and compares their records with the counter and with the programs' expectations.
fn compare(flavour: &'static str, job: &Job, counter: &Counter, names: &[&str], threads: bool) {
    let place = job.folder.path();
    let mut arguments: Vec<&Path> = threads.then(|| Path::new("-t")).into_iter().collect();
    arguments.extend(names.iter().map(Path::new));
    let output = place.join("counts");
    let all = job.traced(
        RANKS,
        &arguments,
        &[&counter.library],
        &[
            ("COUNTER_OUTPUT", &output),
            ("CONFORMANCE_FILE", &place.join("file")),
        ],
    );
    let mut wrong = String::new();
    // Functions of which a record has `MPI_PROC_NULL` as its source.
    let mut nobody = BTreeSet::new();
    for (rank, records) in all.iter().enumerate() {
        let (own, expected) = counted(counter, &output, rank);
        let traced = by_program(records, names);
        let mut seen = Counts::new();
        for (program, records) in &traced {
            for record in records {
                let key = (program.clone(), called(record));
                *seen.entry(key).or_default() += record.calls;
            }
        }
        let counted: Counts = own
            .iter()
            .filter(|((program, _), _)| names.contains(&program.as_str()))
            .map(|(key, calls)| (key.clone(), *calls))
            .collect();
        for key in counted.keys().chain(seen.keys()).collect::<BTreeSet<_>>() {
            let (counted, seen) = (counted.get(key), seen.get(key));
            if counted != seen {
                let _ = writeln!(
                    wrong,
                    "rank {rank}, {key:?}: {counted:?} calls counted, {seen:?} traced"
                );
            }
        }
        // The bytes received do not determine the size of the receive buffer, which must be recorded as 0 for a receive from MPI_PROC_NULL.
        let from_nobody = traced
            .values()
            .flatten()
            .filter(|record| record.source == Peer::Null);
        for record in from_nobody {
            nobody.insert(called(record));
            if record.receive_bytes != 0 {
                let _ = writeln!(
                    wrong,
                    "rank {rank}, {}: room for {} bytes from MPI_PROC_NULL",
                    called(record),
                    record.receive_bytes
                );
            }
        }
        for ((program, function), bytes) in &expected {
            let records = traced.get(program).into_iter().flatten();
            let moved = moved(records.filter(|record| called(record) == *function));
            if moved != *bytes {
                let _ = writeln!(
                    wrong,
                    "rank {rank}, {program}, {function}: {bytes:?} bytes expected, {moved:?} traced"
                );
            }
        }
        for name in names {
            let some = counted.keys().any(|(program, _)| program == name);
            assert!(some, "{flavour}: {name} has called nothing");
        }
        // The calls that start and end MPI are outside all programs.
        let started = records.first().map(|record| record.function);
        let expected = [Function::Init, Function::InitThread][usize::from(threads)];
        assert_eq!(started, Some(expected));
        assert_eq!(
            records.last().map(|record| record.function),
            Some(Function::Finalize)
        );
    }
    assert!(wrong.is_empty(), "{flavour}:\n{wrong}");
    if names.contains(&"nobody") {
        for function in FROM_NOBODY {
            let seen = nobody.contains(function);
            assert!(seen, "{flavour}: no {function} from MPI_PROC_NULL");
        }
    }
}

fn conforms(flavour: &'static str, left_out: &[&str]) {
    let Some(job) = Job::of_command(flavour, "") else {
        return;
    };
    let place = job.folder.path();
    let names = programs();
    assert!(names.len() >= 50, "{} programs", names.len());
    let counter = counter(flavour, place);
    let list: String = names
        .iter()
        .map(|name| format!(" PROGRAM({name})"))
        .collect();
    fs::write(
        place.join("programs.h"),
        format!("#define PROGRAMS{list}\n"),
    )
    .expect("a file");
    let files = names.iter().map(|name| folder().join(format!("{name}.c")));
    succeed(
        Command::new(tool(flavour, "mpicc").expect("a compiler"))
            .args(["-O0", "-w", "-pthread", "-I"])
            .arg(place)
            .arg("-o")
            .arg(place.join("program"))
            .arg(folder().join("driver.c"))
            .args(files)
            .arg("-L")
            .arg(place)
            .args(["-lcounter", &format!("-Wl,-rpath,{}", place.display())]),
    );
    let job = job.with_program();
    let run: Vec<&str> = names
        .iter()
        .map(String::as_str)
        .filter(|name| !left_out.contains(name))
        .collect();
    let (with, without): (Vec<&str>, Vec<&str>) =
        run.iter().partition(|name| WITH_THREADS.contains(name));
    compare(flavour, &job, &counter, &without, false);
    compare(flavour, &job, &counter, &with, true);
    // The wheel of MPICH 5 has no compiler for Fortran.
    for name in ["waves.f90", "sorts.f"]
        .into_iter()
        .filter(|_| flavour != ABI)
    {
        fortran(flavour, &job, &counter, name);
    }
}

/// Runs a Fortran program in a job of its own, and compares its calls with the counter.
fn fortran(flavour: &'static str, job: &Job, counter: &Counter, name: &str) {
    let place = job.folder.path();
    succeed(
        Command::new(format!("mpif90.{flavour}"))
            .args(["-O0", "-w", "-fallow-argument-mismatch", "-o"])
            .args([place.join("program"), folder().join(name)]),
    );
    let output = place.join("counts");
    let all = job.traced(
        RANKS,
        &[],
        &[&counter.library],
        &[("COUNTER_OUTPUT", &output)],
    );
    for (rank, records) in all.iter().enumerate() {
        let (expected, _) = counted(counter, &output, rank);
        let expected: BTreeMap<String, u64> = expected
            .into_iter()
            .map(|((_, function), calls)| (function, calls))
            .collect();
        assert_eq!(counts(records), expected, "{flavour}, {name}, rank {rank}");
        assert!(expected.len() > 5, "{expected:?}");
    }
}

#[test]
fn programs_under_open_mpi() {
    conforms("openmpi", &[]);
}

#[test]
fn programs_under_mpich() {
    // Debian builds MPICH with UCX, which doesn't support ports.
    conforms("mpich", &["ports"]);
}

#[test]
fn programs_under_the_standard_abi() {
    conforms(ABI, &[]);
}
