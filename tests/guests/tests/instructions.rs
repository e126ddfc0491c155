//! Test of unusual instructions and breakpoints in a process under Linux: the process gets the same signals as on Intel's processors, and
//! continues.

use nodescope_guest_tests::{cluster, compile, image, program, run_well, small_node};

/// The output of `programs/instructions.c` on a processor without AVX-512.
const EXPECTED: &str = "\
mov rax, dr4: signal 11
mov rax, dr8: signal 4
mov rax, cr1: signal 4
16 bytes: signal 11
15 invalid bytes: signal 4
swapgs: signal 11
clac: signal 4
vmlaunch: signal 4
getsec: signal 4
rsm: signal 4
femms: signal 4
sysretl: signal 11
sysexit: signal 11
int1: signal 5
reserved nop: signal 5
bndmk: signal 5
xop: signal 4
fma4: signal 4
sse4a: signal 4
3dnow: signal 4
clzero: signal 4
avx-512: signal 4
sysenter: signal 11
int 0x80: signal 5
int 1: signal 11
int 3: signal 5
lss: signal 11
lfs: signal 5
call of a task: signal 11
ud0: signal 4
32-bit code: exit 5
data: signal 5, value 700
data: exit 7
code: signal 5, there 1
code: exit 9
";

#[test]
fn no_instruction_of_a_process_ends_the_study() {
    let Some(image) = image() else { return };
    let flags = &["-O1", "-static"];
    let Some(binary) = compile("gcc", "instructions.c", flags) else {
        return;
    };
    let job = [
        program(
            "run",
            "#!/bin/sh\n./instructions >said && nodescope-guest put said said\n",
        ),
        program("instructions", binary),
    ];
    let config = cluster(image, 1, small_node(96), &job);
    let dir = tempfile::tempdir().unwrap();
    let finished = run_well(&config, dir.path());
    assert_eq!(finished.file("said"), EXPECTED);
    // The user learns why a program without handlers would have ended.
    let warnings = &finished.outcome.warnings;
    let told = |words: [&str; 2]| {
        let mut found = warnings.iter();
        found.any(|text| words.iter().all(|word| text.contains(word)))
    };
    for feature in ["AVX512F", "SSE4A"] {
        let why = format!("which needs {feature}; the guests' processors do not have {feature}");
        assert!(
            told(["node 0: the program ./instructions executed at 0x", &why]),
            "{warnings:?}"
        );
    }
}
