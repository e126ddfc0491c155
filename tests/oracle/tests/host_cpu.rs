//! The portable engine against the host's CPU: a fixed set of cases, the same in every run. `scripts/difftest` draws more.

use nodescope_oracle::campaign::{self, CampaignError, Duel};
use nodescope_oracle::catalogue::Group;
use nodescope_oracle::compare::compare;
use nodescope_oracle::generate::Generator;
use nodescope_oracle::native::NativeError;
use nodescope_oracle::report;
use nodescope_x86::Vector;

const SEED: u64 = 2013;

/// Both sides; None (and a printed reason) where the host cannot judge.
fn duel(group: Group) -> Option<Duel> {
    let missing = group.missing();
    if !missing.is_empty() {
        println!("{group}: skipped, this host lacks {}", missing.join(", "));
        return None;
    }
    match Duel::new() {
        Ok(duel) => Some(duel),
        Err(CampaignError::Native(e @ NativeError::Feature(_))) => {
            println!("{group}: skipped, {e}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

fn group_agrees(group: Group, count: u64) {
    let Some(mut duel) = duel(group) else { return };
    let mut text = String::new();
    let tally = campaign::run(
        &mut duel,
        group,
        SEED,
        false,
        0..count,
        |case, differences, _| {
            if text.len() < 10_000 {
                text += &report::mismatch(case, differences);
            }
        },
    );
    assert_eq!(tally.cases, count);
    assert_eq!(
        tally.mismatches, 0,
        "{group}: {} of {count} cases differ\n{text}",
        tally.mismatches
    );
    // What cannot be fetched or decoded has no block to translate.
    assert!(
        group == Group::Invalid || tally.translated * 10 > count * 8,
        "{group}: only {} of {count} cases ran translated",
        tally.translated
    );
    println!(
        "{group}: {count} cases agree, {} with an exception, {} translated",
        tally.exceptions, tally.translated
    );
}

#[test]
fn integer_instructions_agree() {
    group_agrees(Group::Integer, 10_000);
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

#[test]
fn the_host_agrees_with_itself() {
    for group in Group::ALL {
        let Some(mut duel) = duel(group) else {
            continue;
        };
        let tally = campaign::run(
            &mut duel,
            group,
            SEED,
            true,
            0..300,
            |case, differences, _| panic!("{}", report::mismatch(case, differences)),
        );
        assert_eq!(tally.cases, 300);
    }
}

#[test]
fn every_register_and_every_byte_of_memory_is_compared() {
    let Some(mut duel) = duel(Group::Integer) else {
        return;
    };
    let case = Generator::new(Group::Integer, SEED).case(0);
    let good = duel.run(&case).native;
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
    let Some(mut duel) = duel(Group::Integer) else {
        return;
    };
    let mut case = Generator::new(Group::Integer, SEED).case(0);
    case.patches.clear();
    let mut run = |bytes: &[u8], rbx: u64| {
        case.bytes = bytes.to_vec();
        case.state.gpr[0] = 7;
        case.state.gpr[2] = 0;
        case.state.gpr[3] = rbx;
        duel.run_native(&case).native
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
    // mov [rbx], rax: to a read-only page, across the end of the window, to no address at all
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
