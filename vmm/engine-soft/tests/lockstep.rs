//! The translator against the interpreter: random programs give the same state, memory, log and time. More by
//! `NODESCOPE_LOCKSTEP_SEEDS` (seeds of each kind) or `scripts/difftest --lockstep` and `--fuzz`.

use nodescope_oracle::lockstep::{Kind, Tally, run};

fn agree(kind: Kind, seeds: u64) -> Tally {
    let seeds = match std::env::var("NODESCOPE_LOCKSTEP_SEEDS") {
        Ok(n) => n.parse().expect("a number of seeds"),
        Err(_) => seeds,
    };
    match run(&[kind], 1, seeds, None, |_| {}) {
        Ok(tally) => {
            println!("{kind:?}: {tally:?}");
            assert_eq!(tally.seeds, seeds);
            // It was the translator that ran.
            assert!(tally.translations > 5 * seeds, "{tally:?}");
            assert!(tally.events > tally.programs, "{tally:?}");
            tally
        }
        Err(failure) => panic!("{failure}"),
    }
}

#[test]
fn programs_of_blocks_agree() {
    let tally = agree(Kind::Blocks, 40);
    assert!(tally.shared > tally.seeds, "{tally:?}");
}

/// Two vCPUs of a node, NMIs, 32-bit code, windows and translated code that is thrown away for want of room.
#[test]
fn nodes_agree() {
    let tally = agree(Kind::Node, 30);
    assert!(tally.nmis > tally.seeds, "{tally:?}");
    assert!(tally.evictions * 3 > tally.seeds, "{tally:?}");
    assert!(tally.windows > tally.seeds, "{tally:?}");
    assert!(tally.compatible > tally.slices / 50, "{tally:?}");
}

/// A real model with small caches counts and holds the same, whether the interpreter asks it, without a filter half of the time, or the
/// translator's own ways serve the misses, as they serve many.
#[test]
fn caches_agree() {
    let tally = agree(Kind::Caches, 60);
    assert!(tally.windows > tally.seeds, "{tally:?}");
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi2") {
        assert!(tally.served > 100 * tally.seeds, "{tally:?}");
    } else {
        nodescope_test_needs::skip(
            nodescope_test_needs::Need::Cpu,
            "the host has no AVX2 or BMI2, and misses no ways of their own",
        );
    }
}

#[test]
fn random_bytes_agree() {
    agree(Kind::Bytes, 30);
}

/// User code of nothing but random bytes ends in exceptions, never in an error of the engine.
#[test]
fn noise_as_user_code_agrees() {
    let tally = agree(Kind::Noise, 200);
    assert_eq!(tally.unknown, 0, "{tally:?}");
    assert!(tally.compatible > tally.slices / 50, "{tally:?}");
}

/// Operands with a segment's base that lie elsewhere without it; a read-modify-write of a page that has come to mean other memory
/// while a model is attached. (`remap.rs` and `system.rs` have what needs no seed.)
#[test]
fn what_once_differed_agrees() {
    for (kind, seed) in [
        (Kind::Bytes, 5360),
        (Kind::Bytes, 6473),
        (Kind::Blocks, 11_002_506),
        // These differ where an operation that is emitted twice resumes in the wrong one of the two, for loops, runs of PUSH and pairs of a
        // load and a store, and where a lane hides another of the same key.
        (Kind::Node, 80_000_146),
        (Kind::Caches, 80_000_258),
        (Kind::Node, 80_000_062),
    ] {
        if let Err(failure) = run(&[kind], seed, 1, None, |_| {}) {
            panic!("{failure}");
        }
    }
}
