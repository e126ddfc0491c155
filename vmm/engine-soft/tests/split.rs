//! Split accesses, which lie in two cache lines, while a model is attached. Translated code carries them out itself and asks for each line.
//! Values are right wherever the two lines are in memory.

mod machine;

use iced_x86::code_asm::*;
use machine::*;
use nodescope_engine::{Exit, Limit, Vcpu};
use nodescope_engine_soft::Translate;
use nodescope_oracle::bare;
use nodescope_plugin_api::{Counters, L0Geometry};

/// Iterations of the loop.
const ITERATIONS: u64 = 500;
/// Physical address of the page after [`DATA`]'s page.
const ELSEWHERE: u64 = 0x8_0000;

/// The result of a run.
#[derive(Debug, PartialEq)]
struct Outcome {
    sum: u64,
    lower: [u8; 8],
    upper: [u8; 8],
    counters: (u64, u64, u64),
}

/// Runs a loop that adds the eight bytes at `at` to RAX, and with `stores` stores the sum there. The page after [`DATA`]'s page lies
/// elsewhere in physical memory. Returns the result, and the number of operations that the interpreter carried out.
fn run(at: u64, stores: bool, translate: Translate) -> (Outcome, u64) {
    let mut m = Machine::new(|a| {
        let mut again = a.create_label();
        a.mov(rsi, at).unwrap();
        a.mov(ecx, ITERATIONS as u32).unwrap();
        a.set_label(&mut again).unwrap();
        a.mov(rdx, qword_ptr(rsi)).unwrap();
        a.lea(rax, qword_ptr(rax + rdx + 1)).unwrap();
        if stores {
            a.mov(qword_ptr(rsi), rax).unwrap();
        }
        a.dec(ecx).unwrap();
        a.jne(again).unwrap();
        a.hlt().unwrap();
    })
    .poke(DATA, &[3; 4096])
    .poke(ELSEWHERE, &[5; 4096])
    .poke(
        0x4000 + ((DATA + 0x1000) >> 12) * 8,
        &(ELSEWHERE | 7).to_le_bytes(),
    );
    m.vcpu = bare::vcpu(&m.ram, translate);
    // The L0 filter cache keeps whole sets. The program uses no more lines than a set holds.
    m.vcpu.attach(Some(L0Geometry {
        line_shift: 6,
        data_slots: 6,
        instruction_slots: 6,
        data_ways: 8,
        instruction_ways: 4,
        page_sizes: false,
    }));
    m.vcpu.restore(&m.state);
    let exit = m
        .vcpu
        .run(&mut m.ports, Limit::instructions(20 * ITERATIONS));
    assert_eq!(exit.unwrap(), Exit::Halted);
    m.vcpu.flush_counters(&mut m.ports);
    let mut all = Counters::default();
    for (_, _, counters) in &m.ports.accounts {
        all.add(counters);
    }
    let activity = m.vcpu.activity();
    assert!(activity.entries > 0 || translate == Translate::Never);
    let outcome = Outcome {
        sum: m.vcpu.save().general.gpr[RAX],
        lower: m.peek(DATA + 0x1000 - 8),
        upper: m.peek(ELSEWHERE),
        counters: (all.instructions, all.loads, all.stores),
    };
    (outcome, activity.interpreted)
}

/// Checks that interpreter and translator have equal results and count each line. Returns the number of operations that the interpreter
/// carried out for translated code.
fn interpreted(at: u64, stores: bool) -> u64 {
    let (outcome, by_interpreter) = run(at, stores, Translate::After(0));
    let (wanted, _) = run(at, stores, Translate::Never);
    assert_eq!(outcome, wanted);
    let (_, loads, written) = outcome.counters;
    let expected = if stores { 2 * ITERATIONS } else { 0 };
    assert_eq!((loads, written), (2 * ITERATIONS, expected));
    by_interpreter
}

#[test]
fn translated_code_reads_and_writes_two_lines_itself() {
    for at in [DATA + 0x3c, DATA + 0x7b9, DATA + 0xfbf] {
        for stores in [false, true] {
            let by_interpreter = interpreted(at, stores);
            assert!(by_interpreter < 10, "{at:#x} {stores} {by_interpreter}");
        }
    }
}

#[test]
fn pages_may_lie_apart_in_memory() {
    let at = DATA + 0xffd;
    let by_interpreter = interpreted(at, false);
    assert!(by_interpreter < 10, "{by_interpreter}");
    // The two lines are not neighbours in host memory. The interpreter writes them, and asks for no line again.
    let by_interpreter = interpreted(at, true);
    assert!(
        (ITERATIONS - 10..ITERATIONS + 10).contains(&by_interpreter),
        "{by_interpreter}"
    );
}
