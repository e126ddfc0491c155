//! Tests of the portable engine against the host's CPU, with a fixed set of cases in every run. `scripts/difftest` draws more.

use nodescope_oracle::campaign::{self, CampaignError, Comparator, Settings};
use nodescope_oracle::catalogue::Group;
use nodescope_oracle::compare::compare;
use nodescope_oracle::generate::Generator;
use nodescope_oracle::native::NativeError;
use nodescope_oracle::report;
use nodescope_oracle::state::State;
use nodescope_oracle::vendor::{self, Vendor};
use nodescope_test_needs::{Need, skip};
use nodescope_x86::Vector;

const SEED: u64 = 2013;

/// Returns a comparator of host and engine. Skips the test and returns `None` where the host's CPU lacks a feature that is needed.
fn comparator(group: Group) -> Option<Comparator> {
    let missing = group.missing();
    if !missing.is_empty() {
        let missing = missing.join(", ");
        skip(
            Need::Cpu,
            format_args!("{group}: this host lacks {missing}"),
        );
        return None;
    }
    match Comparator::new() {
        Ok(comparator) => Some(comparator),
        Err(CampaignError::Native(e @ NativeError::Feature(_))) => {
            skip(Need::Cpu, format_args!("{group}: {e}"));
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// Compares engine and host for `encodings` encodings of a group, each in a few states. Asserts that no case has an unexplained difference,
/// that rules of the host's vendor explain few cases, and that most cases run translated.
fn group_agrees(group: Group, encodings: u64) {
    let Some(mut comparator) = comparator(group) else {
        return;
    };
    let mut text = String::new();
    let settings = Settings {
        seed: SEED,
        states: 4,
        native_only: false,
    };
    let tally = campaign::run(
        &mut comparator,
        group,
        settings,
        0..encodings,
        |case, differences, _| {
            if text.len() < 10_000 {
                text += &report::mismatch(case, differences);
            }
        },
    );
    let (cases, wanted) = (
        tally.cases,
        encodings * campaign::states(group, settings.states),
    );
    assert!(cases > wanted * 9 / 10 && cases <= wanted, "{cases}");
    assert_eq!(
        tally.mismatches, 0,
        "{group}: {} of {cases} cases differ\n{text}",
        tally.mismatches
    );
    // Rules of the host's vendor explain few cases. Group `State` has more: each FXSAVE or XSAVE that succeeds stores another mask.
    let few = if group == Group::State { 4 } else { 200 };
    assert!(
        tally.by_vendor * few <= cases,
        "{group}: {} of {cases} cases are explained by the host's vendor: {:?}",
        tally.by_vendor,
        tally.by_rule
    );
    assert!(tally.by_vendor == 0 || vendor::host() != Vendor::Intel);
    if group == Group::Invalid {
        // An invalid encoding has no block to translate.
        assert_eq!(tally.translated, 0);
        return;
    }
    assert!(
        tally.translated * 10 > cases * 9,
        "{group}: only {} of {cases} cases ran translated",
        tally.translated
    );
    // An instruction that is not translated, or that faults, calls out of translated code.
    let (enough, of) = match group {
        Group::Branch | Group::String | Group::X87 | Group::Mmx | Group::State => (0, 1),
        _ => (1, 3),
    };
    assert!(
        tally.hits * of >= tally.memory * enough,
        "{group}: only {} of {} cases with memory found it in line",
        tally.hits,
        tally.memory
    );
    println!(
        "{group}: {cases} cases agree, {} with an exception, {} translated, {} touch memory, {} of them in line alone, {} as the host's vendor has it {:?}",
        tally.exceptions,
        tally.translated,
        tally.memory,
        tally.hits,
        tally.by_vendor,
        tally.by_rule
    );
}

#[test]
fn integer_instructions_agree() {
    group_agrees(Group::Integer, 5_000);
}

#[test]
fn branches_agree() {
    group_agrees(Group::Branch, 2_000);
}

#[test]
fn string_instructions_agree() {
    group_agrees(Group::String, 2_000);
}

#[test]
fn bit_manipulation_agrees() {
    group_agrees(Group::Bmi, 2_000);
}

#[test]
fn x87_agrees() {
    group_agrees(Group::X87, 5_000);
}

#[test]
fn mmx_agrees() {
    group_agrees(Group::Mmx, 3_000);
}

#[test]
fn sse_agrees() {
    group_agrees(Group::Sse, 6_000);
}

#[test]
fn avx_agrees() {
    group_agrees(Group::Avx, 10_000);
}

#[test]
fn fused_multiply_add_agrees() {
    group_agrees(Group::Fma, 3_000);
}

#[test]
fn saved_and_restored_state_agrees() {
    group_agrees(Group::State, 2_000);
}

#[test]
fn invalid_forms_agree() {
    group_agrees(Group::Invalid, 4_000);
}

/// Checks cases that once differed: VCVTPS2PH with an exact subnormal result and underflow unmasked; PCMPESTRI and PCMPESTRM whose address
/// uses registers that the instruction also reads or writes implicitly.
#[test]
fn what_once_differed_agrees() {
    use nodescope_oracle::engine::TlbState;
    use nodescope_oracle::layout::WINDOW;

    let Some(mut comparator) = comparator(Group::Avx) else {
        return;
    };
    let mut generator = Generator::new(Group::Avx, SEED);
    let mut agrees = |bytes: &[u8], operand: Option<u64>, change: &dyn Fn(&mut State)| {
        let mut case = generator.case(0);
        case.patches.clear();
        case.bytes = bytes.to_vec();
        case.instruction = iced_x86::Decoder::with_ip(64, bytes, case.state.rip, 0).decode();
        case.operand = operand;
        case.tlb = TlbState::Warm;
        case.state.fx.set_mxcsr(0x1f80);
        change(&mut case.state);
        for _ in 0..2 {
            let comparison = comparator.run(&case);
            assert!(
                comparison.differences.is_empty(),
                "{}",
                report::mismatch(&case, &comparison.differences)
            );
        }
    };
    // vcvtps2ph xmm8, xmm5, 0: 2^-18 * 1.34375 is 86 of the smallest steps.
    agrees(&[0xc4, 0xc3, 0x79, 0x1d, 0xe8, 0], None, &|s| {
        s.fx.set_mxcsr(0x1f80 & !0x800);
        s.vector.0[5] = [0; 32];
        s.vector.0[5][..4].copy_from_slice(&0x36ac_0000_u32.to_le_bytes());
    });
    let at = WINDOW + 0x140;
    // pcmpestriq xmm6, [rcx], 0x66
    agrees(
        &[0x66, 0x48, 0x0f, 0x3a, 0x61, 0x31, 0x66],
        Some(at),
        &|s| {
            (s.gpr[0], s.gpr[1], s.gpr[2]) = (5, at, 7);
        },
    );
    // pcmpestrm xmm0, [rdx + rax * 8], 0x46
    agrees(
        &[0x66, 0x0f, 0x3a, 0x60, 0x04, 0xc2, 0x46],
        Some(at),
        &|s| {
            (s.gpr[0], s.gpr[2]) = (8, at - 64);
        },
    );
}

#[test]
fn what_was_touched_is_found_in_line() {
    use nodescope_oracle::engine::{Engine, ExecutionMode, TlbState};
    use nodescope_oracle::layout::{CODE, WINDOW};

    let mut state = Generator::new(Group::Integer, SEED).case(0).state;
    state.rip = CODE + 64;
    state.gpr[3] = WINDOW + 4096 + 72;
    // mov rax, [rbx]; add [rbx], rax
    for bytes in [[0x48, 0x8b, 0x03], [0x48, 0x01, 0x03]] {
        for mode in [
            ExecutionMode::Translated,
            ExecutionMode::TranslatedWithModel,
        ] {
            let mut engine = Engine::new(&nodescope_oracle::generate::window(), mode).unwrap();
            let instruction = iced_x86::Decoder::with_ip(64, &bytes, state.rip, 0).decode();
            engine.place(state.rip, &instruction, &bytes);
            let mut run = |tlb| {
                engine.prepare(tlb, Some(state.gpr[3])).unwrap();
                let before = engine.activity();
                let outcome = engine.run(&state).unwrap();
                assert_eq!(
                    (outcome.exception, outcome.state.rip),
                    (None, state.rip + 3)
                );
                let after = engine.activity();
                (
                    after.entries - before.entries,
                    after.misses - before.misses,
                    after.interpreted - before.interpreted,
                )
            };
            // The first run also decodes the instruction, which forbids writes to its page.
            run(TlbState::Warm);
            assert_eq!(run(TlbState::Warm), (1, 0, 0), "{mode:?}");
            assert_eq!(run(TlbState::Cold), (1, 1, 1), "{mode:?}");
            assert_eq!(run(TlbState::Unchanged), (1, 0, 0), "{mode:?}");
            assert_eq!(run(TlbState::Warm), (1, 0, 0), "{mode:?}");
        }
    }
}

#[test]
fn the_host_agrees_with_itself() {
    for group in Group::ALL {
        let Some(mut comparator) = comparator(group) else {
            continue;
        };
        let tally = campaign::run(
            &mut comparator,
            group,
            Settings {
                seed: SEED,
                states: 1,
                native_only: true,
            },
            0..300,
            |case, differences, _| panic!("{}", report::mismatch(case, differences)),
        );
        assert_eq!(tally.cases, 300);
    }
}

#[test]
fn every_register_and_every_byte_of_memory_is_compared() {
    let Some(mut comparator) = comparator(Group::Integer) else {
        return;
    };
    let case = Generator::new(Group::Integer, SEED).case(0);
    let good = comparator.run(&case).native.unwrap();
    let memory = [0_u8; 64];
    assert_eq!(compare(&case, &good, &good, [&memory, &memory]), []);
    let differs = |change: &dyn Fn(&mut nodescope_oracle::state::Outcome)| {
        let mut bad = good.clone();
        change(&mut bad);
        assert_eq!(compare(&case, &good, &bad, [&memory, &memory]).len(), 1);
    };
    for k in 0..16 {
        differs(&|o| o.state.gpr[k] ^= 1 << 63);
        differs(&|o| o.state.vector.0[k][31] ^= 1);
    }
    for at in [0, 2, 4, 24, 32, 41, 32 + 7 * 16 + 9] {
        differs(&|o| o.state.fx.0[at] ^= 1);
    }
    differs(&|o| o.state.rip += 1);
    differs(&|o| o.state.rflags ^= 1 << 10);
    differs(&|o| o.exception = Some(nodescope_x86::Exception::gp(0)));
    let mut other = memory;
    other[63] = 1;
    assert_eq!(compare(&case, &good, &good, [&memory, &other]).len(), 1);
}

#[test]
fn the_host_raises_what_is_expected() {
    let Some(mut comparator) = comparator(Group::Integer) else {
        return;
    };
    let mut case = Generator::new(Group::Integer, SEED).case(0);
    case.patches.clear();
    let mut run = |bytes: &[u8], rbx: u64| {
        case.bytes = bytes.to_vec();
        case.state.gpr[0] = 7;
        case.state.gpr[2] = 0;
        case.state.gpr[3] = rbx;
        comparator.run_native(&case).native.unwrap()
    };
    use nodescope_oracle::layout::{WINDOW, WINDOW_LEN, WRITABLE_LEN};
    // add rax, rbx
    let sum = run(&[0x48, 0x01, 0xd8], 5);
    assert_eq!((sum.exception, sum.state.gpr[0]), (None, 12));
    // div rbx
    let e = run(&[0x48, 0xf7, 0xf3], 0).exception.unwrap();
    assert_eq!(e.vector, Vector::DivideError);
    // ud2
    let e = run(&[0x0f, 0x0b], 0).exception.unwrap();
    assert_eq!(e.vector, Vector::InvalidOpcode);
    // mov [rbx], rax to a read-only page; mov rax, [rbx] across the end of the window; mov [rbx], rax to a non-canonical address
    let store = [0x48, 0x89, 0x03];
    let read_only = WINDOW + WRITABLE_LEN as u64;
    let e = run(&store, read_only).exception.unwrap();
    assert_eq!(
        (e.vector, e.error, e.address),
        (Vector::PageFault, 7, read_only)
    );
    let end = WINDOW + WINDOW_LEN as u64;
    let e = run(&[0x48, 0x8b, 0x03], end - 4).exception.unwrap();
    assert_eq!((e.vector, e.error, e.address), (Vector::PageFault, 4, end));
    let e = run(&store, 1 << 47).exception.unwrap();
    assert_eq!((e.vector, e.error), (Vector::GeneralProtection, 0));
}
