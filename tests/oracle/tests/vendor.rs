//! Tests of the rules for AMD hosts that run on any host. The engine does what Intel CPUs do, each test writes down what an AMD CPU does,
//! and each rule must account for that difference and for no other.

use iced_x86::Decoder;
use nodescope_oracle::catalogue::Group;
use nodescope_oracle::engine::{Engine, ExecutionMode, TlbState};
use nodescope_oracle::generate::{Case, Generator, Patch, window};
use nodescope_oracle::layout::{CODE, CODE_LEN, WINDOW, WINDOW_LEN, WRITABLE_LEN};
use nodescope_oracle::state::{Outcome, State};
use nodescope_oracle::vendor::{Rule, Vendor, explains, forbids};
use nodescope_x86::{Exception, Vector};

const RIP: u64 = CODE + 64;
const AT: u64 = WINDOW + 0x140;
const READ_ONLY: u64 = WINDOW + WRITABLE_LEN as u64;
const END: u64 = WINDOW + WINDOW_LEN as u64;
/// An address that is not canonical.
const NOWHERE: u64 = 0xb248_0000_0008;

/// Returns a case with the instruction `bytes` in a plain state, which `change` modifies.
fn case(bytes: &[u8], change: impl Fn(&mut State)) -> Case {
    let mut case = Generator::new(Group::Integer, 1).case(0);
    let s = &mut case.state;
    s.rip = RIP;
    s.rflags = 0x202;
    s.fx.0[..2].copy_from_slice(&0x37f_u16.to_le_bytes());
    s.fx.0[2..5].fill(0);
    s.fx.set_mxcsr(0x1f80);
    change(s);
    case.patches.clear();
    case.operand = None;
    case.tlb = TlbState::Warm;
    case.bytes = bytes.to_vec();
    case.instruction = Decoder::with_ip(64, bytes, case.state.rip, 0).decode();
    case
}

/// Outcomes of a case on an AMD CPU and on the engine, with the window's bytes after each, in this order.
struct Sides {
    case: Case,
    amd: Outcome,
    engine: Outcome,
    memory: [Vec<u8>; 2],
}

impl Sides {
    /// Runs the case on the engine. `amd` makes the outcome of an AMD CPU from the state before the instruction, and from the engine's
    /// memory.
    fn new(case: Case, amd: impl Fn(&mut Outcome, &mut Vec<u8>)) -> Self {
        let mut side = Engine::new(&window(), ExecutionMode::Interpreted).unwrap();
        for p in &case.patches {
            side.write(p.address, &p.bytes);
        }
        side.place(case.state.rip, &case.instruction, &case.bytes);
        side.prepare(case.tlb, case.operand).unwrap();
        let engine = side.run(&case.state).unwrap();
        let mut memory = side.window().to_vec();
        let mut outcome = Outcome {
            exception: None,
            state: case.state.clone(),
        };
        let theirs = memory.clone();
        amd(&mut outcome, &mut memory);
        Self {
            case,
            amd: outcome,
            engine,
            memory: [memory, theirs],
        }
    }

    fn explained(&self, vendor: Vendor) -> Option<Rule> {
        let memory = [&self.memory[0][..], &self.memory[1][..]];
        explains(vendor, &self.case, &self.amd, &self.engine, memory)
    }

    /// Returns whether a rule still explains the case after `change` has made one more difference on a side: 0 is the host, 1 the engine.
    fn explained_with(&self, side: usize, change: &dyn Fn(&mut Outcome, &mut [u8])) -> bool {
        let mut sides = Self {
            case: self.case.clone(),
            amd: self.amd.clone(),
            engine: self.engine.clone(),
            memory: self.memory.clone(),
        };
        if side == 0 {
            change(&mut sides.amd, &mut sides.memory[0]);
        } else {
            change(&mut sides.engine, &mut sides.memory[1]);
        }
        sides.explained(Vendor::Amd).is_some()
    }
}

type Change = Box<dyn Fn(&mut Outcome, &mut [u8])>;

/// Returns changes with their names, each of which makes one compared item wrong.
fn wrong_bits() -> Vec<(String, Change)> {
    let mut all = Vec::new();
    let mut add = |name: String, change: Change| {
        all.push((name, change));
    };
    for k in 0..16 {
        add(
            format!("register {k}"),
            Box::new(move |o, _| o.state.gpr[k] ^= 1 << 63),
        );
        add(
            format!("low half of register {k}"),
            Box::new(move |o, _| o.state.gpr[k] ^= 1),
        );
        add(
            format!("ymm{k}"),
            Box::new(move |o, _| o.state.vector.0[k][31] ^= 1),
        );
    }
    // The control words' high bytes, TOP, tags, rounding, and two x87 registers.
    for at in [1, 3, 4, 25, 32, 32 + 7 * 16 + 9] {
        add(
            format!("byte {at} of the x87 image"),
            Box::new(move |o, _| o.state.fx.0[at] ^= 0x20),
        );
    }
    add("rip".into(), Box::new(|o, _| o.state.rip += 1));
    for bit in [0, 6, 10] {
        add(
            format!("flag {bit}"),
            Box::new(move |o, _| o.state.rflags ^= 1 << bit),
        );
    }
    add(
        "exception".into(),
        Box::new(|o, _| {
            o.exception = match o.exception {
                None => Some(Exception::gp(0)),
                Some(_) => None,
            }
        }),
    );
    add(
        "vector".into(),
        Box::new(|o, _| o.exception = Some(Exception::new(Vector::DivideError))),
    );
    add("memory".into(), Box::new(|_, m| m[WINDOW_LEN - 64] ^= 1));
    all
}

/// Checks that `rule` explains the difference on AMD hosts only, and that no rule explains the case with one more wrong bit on either side.
fn check(rule: Rule, case: Case, amd: impl Fn(&mut Outcome, &mut Vec<u8>)) {
    let sides = Sides::new(case, amd);
    let name = format!("{rule:?} {:02x?}", sides.case.bytes);
    assert_eq!(
        sides.explained(Vendor::Amd),
        Some(rule),
        "{name}: {:#x?} {:#x?}",
        sides.amd,
        sides.engine
    );
    assert_eq!(sides.explained(Vendor::Intel), None, "{name}");
    for (what, change) in wrong_bits() {
        for (side, whose) in [(0, "host"), (1, "engine")] {
            assert!(
                !sides.explained_with(side, &change),
                "{name}: a wrong {what} on the {whose} is explained away"
            );
        }
    }
}

fn patched(mut case: Case, address: u64, bytes: &[u8]) -> Case {
    case.patches.push(Patch {
        address,
        bytes: bytes.to_vec(),
    });
    case
}

#[test]
fn near_branches_with_an_operand_size_prefix_are_not_run() {
    for (bytes, forbidden) in [
        // jo, jmp, call, jmp rax, ret, loop with the prefix
        (&[0x66, 0x0f, 0x80, 0, 0, 0, 0][..], true),
        (&[0x66, 0x70, 0], true),
        (&[0x66, 0xe9, 0, 0, 0, 0], true),
        (&[0x66, 0xe8, 0, 0, 0, 0], true),
        (&[0x66, 0xff, 0xe0], true),
        (&[0x66, 0xc3], true),
        (&[0x66, 0xe2, 0], true),
        // REX.W, no prefix, another prefix, an instruction that is no near branch
        (&[0x66, 0x48, 0x0f, 0x80, 0, 0, 0, 0], false),
        (&[0x70, 0], false),
        (&[0xf2, 0xc3], false),
        (&[0x66, 0x01, 0xc0], false),
        (&[0x66, 0x0f, 0xff, 0xc0], false),
    ] {
        let case = case(bytes, |_| {});
        let rule = forbidden.then_some(Rule::NearBranch);
        assert_eq!(forbids(Vendor::Amd, &case), rule, "{bytes:02x?}");
        assert_eq!(forbids(Vendor::Intel, &case), None);
    }
}

#[test]
fn only_the_locked_comparison_that_zen_1_executes_is_not_run() {
    let whole = [0xf0, 0x66, 0x4a, 0x0f, 0x3a, 0x61, 0xe1, 0xad];
    let run = [
        // without LOCK, without REX.W, another opcode, an operand in memory
        &[0x66, 0x4a, 0x0f, 0x3a, 0x61, 0xe1, 0xad][..],
        &[0xf0, 0x66, 0x42, 0x0f, 0x3a, 0x61, 0xe1, 0xad],
        &[0xf0, 0x66, 0x4a, 0x0f, 0x3a, 0x60, 0xe1, 0xad],
        &[0xf0, 0x66, 0x4a, 0x0f, 0x3a, 0x61, 0x21, 0xad],
    ];
    let rule = |vendor, bytes: &[u8]| forbids(vendor, &case(bytes, |_| {}));
    assert_eq!(rule(Vendor::Amd, &whole), Some(Rule::LockedComparison));
    assert_eq!(rule(Vendor::Intel, &whole), None);
    assert!(run.iter().all(|bytes| rule(Vendor::Amd, bytes).is_none()));
}

#[test]
fn a_stored_mask_may_have_one_more_bit() {
    // fxsave [rbx]; fxsave64 [rbx]
    for bytes in [&[0x0f, 0xae, 0x03][..], &[0x48, 0x0f, 0xae, 0x03]] {
        let fxsave = || case(bytes, |s| s.gpr[3] = AT);
        check(Rule::MxcsrMask, fxsave(), |o, memory| {
            o.state.rip += bytes.len() as u64;
            memory[0x140 + 30] = 2;
        });
        let other = Sides::new(fxsave(), |o, memory| {
            o.state.rip += bytes.len() as u64;
            memory[0x140 + 30] = 4;
        });
        assert_eq!(other.explained(Vendor::Amd), None);
    }
}

#[test]
fn one_more_bit_of_mxcsr_may_be_loaded() {
    // ldmxcsr [rbx]
    let load = |value: u32| {
        let ldmxcsr = case(&[0x0f, 0xae, 0x13], |s| s.gpr[3] = AT);
        patched(ldmxcsr, AT, &value.to_le_bytes())
    };
    let loaded = |value| {
        move |o: &mut Outcome, _: &mut Vec<u8>| {
            o.state.rip += 3;
            o.state.fx.set_mxcsr(value);
        }
    };
    check(Rule::MxcsrLoad, load(0x2_1f80), loaded(0x2_1f80));
    let other = Sides::new(load(0x4_1f80), loaded(0x4_1f80));
    assert_eq!(other.explained(Vendor::Amd), None);
    // xrstor [rbx] of all components: the engine must have loaded what the host loaded before it refuses MXCSR, and change nothing else.
    let mut image = [0; 832];
    image[..2].copy_from_slice(&0x340_u16.to_le_bytes());
    image[4] = 1;
    image[24..28].copy_from_slice(&0x2_1f80_u32.to_le_bytes());
    image[32..42].fill(0x77);
    image[512] = 3;
    let at = WINDOW + 0x400;
    let xrstor = case(&[0x0f, 0xae, 0x2b], |s| {
        (s.gpr[0], s.gpr[2], s.gpr[3]) = (7, 0, at);
    });
    let sides = Sides::new(patched(xrstor, at, &image), |o, _| {
        o.state.rip += 3;
        o.state.fx.0[..32].copy_from_slice(&image[..32]);
        o.state.fx.0[32..160].copy_from_slice(&image[32..160]);
        o.state.vector.0 = [[0; 32]; 16];
    });
    assert_eq!(sides.explained(Vendor::Amd), Some(Rule::MxcsrLoad));
    assert_eq!(sides.explained(Vendor::Intel), None);
    for (what, change) in wrong_bits() {
        let explained = sides.explained_with(1, &change);
        assert!(!explained, "a wrong {what} is explained away");
    }
}

#[test]
fn a_store_may_fault_before_its_x87_exception() {
    // fstp dword [rbx]; fist word [rbx], of an empty stack with invalid operation unmasked
    for bytes in [[0xd9, 0x1b], [0xdf, 0x13]] {
        let store = |at: u64| {
            case(&bytes, |s| {
                s.gpr[3] = at;
                s.fx.0[0] = 0x7e;
            })
        };
        let fault = |error| {
            move |o: &mut Outcome, _: &mut Vec<u8>| {
                o.exception = Some(Exception::page_fault(READ_ONLY, error));
            }
        };
        check(Rule::StoreFault, store(READ_ONLY), fault(7));
        // Cases that the rule must not explain: an operand that does not fault, and another error code.
        for other in [
            Sides::new(store(AT), fault(7)),
            Sides::new(store(READ_ONLY), fault(6)),
        ] {
            assert_eq!(other.explained(Vendor::Amd), None);
        }
    }
    // fstp dword ss:[rbx], whose prefix does not count, and fstp dword [rbp]
    for (bytes, base, vector) in [
        ([0x36, 0xd9, 0x1b], 3, Vector::GeneralProtection),
        ([0xd9, 0x5d, 0], 5, Vector::StackFault),
    ] {
        let store = case(&bytes, |s| {
            s.gpr[base] = NOWHERE;
            s.fx.0[0] = 0x7e;
        });
        check(Rule::StoreFault, store, |o, _| {
            o.exception = Some(Exception::with_error(vector, 0));
        });
    }
}

#[test]
fn a_conversion_may_fault_before_its_exceptions() {
    // vcvtps2ph [rbx], xmm0, 0: overflow masked; overflow masked, with an old invalid flag that is unmasked; overflow unmasked
    for mxcsr in [0x1f80, 0x1f80 & !0x80 | 1, 0x1f80 & !0x400] {
        let conversion = |at: u64| {
            case(&[0xc4, 0xe3, 0x79, 0x1d, 0x03, 0], |s| {
                s.gpr[3] = at;
                s.fx.set_mxcsr(mxcsr);
                s.vector.0[0][..4].copy_from_slice(&1e30_f32.to_le_bytes());
            })
        };
        let fault = |o: &mut Outcome, _: &mut Vec<u8>| {
            o.exception = Some(Exception::page_fault(READ_ONLY, 7));
        };
        check(Rule::ConversionFault, conversion(READ_ONLY), fault);
        let other = Sides::new(conversion(AT), fault);
        assert_eq!(other.explained(Vendor::Amd), None);
    }
}

#[test]
fn alignment_may_come_before_the_stack_segment() {
    // xsave [rbp]
    let xsave = |at: u64| case(&[0x0f, 0xae, 0x65, 0], |s| s.gpr[5] = at);
    let fault = |o: &mut Outcome, _: &mut Vec<u8>| o.exception = Some(Exception::gp(0));
    check(Rule::AlignmentFault, xsave(NOWHERE), fault);
    let other = Sides::new(xsave(NOWHERE - 8), fault);
    assert_eq!(other.explained(Vendor::Amd), None);
}

#[test]
fn a_comparison_may_leave_its_flags_at_a_fault() {
    // repe scasb: one element is equal, the next one lies behind the window
    let last = *window().last().unwrap();
    let scan = case(&[0xf3, 0xae], |s| {
        s.gpr[0] = last.into();
        s.gpr[1] = 5;
        s.gpr[7] = END - 1;
        s.rflags = 0x203;
    });
    check(Rule::ComparisonFault, scan, |o, _| {
        o.exception = Some(Exception::page_fault(END, 4));
        o.state.gpr[1] = 4;
        o.state.gpr[7] = END;
        o.state.rflags = 0x246;
    });
    // repne cmpsb backwards: 1 and 3 differ
    let compare = case(&[0xf2, 0xa6], |s| {
        s.gpr[1] = 5;
        (s.gpr[6], s.gpr[7]) = (WINDOW, AT);
        s.rflags = 0x602;
    });
    let compare = patched(patched(compare, WINDOW, &[1]), AT, &[3]);
    check(Rule::ComparisonFault, compare, |o, _| {
        o.exception = Some(Exception::page_fault(WINDOW - 1, 4));
        o.state.gpr[1] = 4;
        (o.state.gpr[6], o.state.gpr[7]) = (WINDOW - 1, AT - 1);
        o.state.rflags = 0x693;
    });
}

#[test]
fn either_operand_of_a_comparison_may_fault_first() {
    // cmpsb: the first operand lies behind the window, the second at a non-canonical address
    let compare =
        |first: u64, second: u64| case(&[0xa6], |s| (s.gpr[6], s.gpr[7]) = (first, second));
    let fault = |o: &mut Outcome, _: &mut Vec<u8>| {
        o.exception = Some(Exception::page_fault(END, 4));
    };
    check(Rule::ComparisonOrder, compare(END, NOWHERE), fault);
    for other in [compare(AT, NOWHERE), compare(END, AT)] {
        let other = Sides::new(other, fault);
        assert_eq!(other.explained(Vendor::Amd), None);
    }
}

#[test]
fn a_repeat_prefix_may_choose_the_loop() {
    // loopne with F3 and loope with F2: taken on Intel, not taken on AMD
    for (bytes, rflags) in [([0xf3, 0xe0, 0x10], 0x202), ([0xf2, 0xe1, 0x10], 0x242)] {
        let branch = |bytes: &[u8]| {
            case(bytes, |s| {
                s.gpr[1] = 5;
                s.rflags = rflags;
            })
        };
        let fall = |o: &mut Outcome, _: &mut Vec<u8>| {
            o.state.gpr[1] = 4;
            o.state.rip += 3;
        };
        check(Rule::LoopPrefix, branch(&bytes), fall);
        // The prefix that agrees with the opcode changes nothing.
        let other = Sides::new(branch(&[bytes[0] ^ 1, bytes[1], bytes[2]]), fall);
        assert_eq!(other.explained(Vendor::Amd), None);
    }
}

#[test]
fn a_pause_may_exchange() {
    let (rax, r8) = (0x1111_2222_3333_4444, 0x5555_6666_7777_8888);
    for (bytes, exchanged) in [
        (&[0xf3, 0x41, 0x90][..], (0x7777_8888, 0x3333_4444)),
        (&[0xf3, 0x49, 0x90], (r8, rax)),
        (
            &[0x66, 0xf3, 0x41, 0x90],
            (0x1111_2222_3333_8888, 0x5555_6666_7777_4444),
        ),
    ] {
        let pause = |bytes: &[u8]| case(bytes, |s| (s.gpr[0], s.gpr[8]) = (rax, r8));
        let exchange = |o: &mut Outcome, _: &mut Vec<u8>| {
            o.state.rip += bytes.len() as u64;
            (o.state.gpr[0], o.state.gpr[8]) = exchanged;
        };
        check(Rule::Pause, pause(bytes), exchange);
        // Without REX.B, AMD exchanges nothing.
        let mut plain = bytes.to_vec();
        plain[bytes.len() - 2] &= !1;
        let other = Sides::new(pause(&plain), exchange);
        assert_eq!(other.explained(Vendor::Amd), None);
    }
}

#[test]
fn an_undefined_instruction_may_need_no_second_byte() {
    let undefined = |opcode: u8, left: u64| {
        case(&[0x0f, opcode, 0xc1], |s| {
            s.rip = CODE + CODE_LEN as u64 - left;
        })
    };
    let invalid = |o: &mut Outcome, _: &mut Vec<u8>| o.exception = Some(Exception::ud());
    for opcode in [0xb9, 0xff] {
        check(Rule::Undefined, undefined(opcode, 2), invalid);
        // Code ends within the opcode itself.
        let other = Sides::new(undefined(opcode, 1), invalid);
        assert_eq!(other.explained(Vendor::Amd), None);
    }
    // xadd ecx, eax needs its ModRM byte anywhere.
    let other = Sides::new(undefined(0xc1, 2), invalid);
    assert_eq!(other.explained(Vendor::Amd), None);
}

#[test]
fn a_word_may_be_read_as_two() {
    // movsxd cx, [rbx]
    let load = |at: u64| case(&[0x66, 0x63, 0x0b], |s| s.gpr[3] = at);
    let fault = |o: &mut Outcome, _: &mut Vec<u8>| {
        o.exception = Some(Exception::page_fault(END, 4));
    };
    // The wrong byte of memory that `check` makes lies below the operand.
    check(Rule::MovsxdWord, load(END - 2), fault);
    let other = Sides::new(load(END - 4), fault);
    assert_eq!(other.explained(Vendor::Amd), None);
}
