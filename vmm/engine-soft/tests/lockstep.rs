//! Lockstep test of translator and interpreter: random programs give the same state, memory, log and time.
//! `NODESCOPE_LOCKSTEP_SEEDS` sets the number of seeds of each kind; `scripts/difftest --lockstep` and `--fuzz` run more.

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
            // The translator was used.
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

/// Two vCPUs of a node, NMIs, 32-bit code, windows and translated code that is evicted for lack of room.
#[test]
fn nodes_agree() {
    let tally = agree(Kind::Node, 30);
    assert!(tally.nmis > tally.seeds, "{tally:?}");
    assert!(tally.evictions * 3 > tally.seeds, "{tally:?}");
    assert!(tally.windows > tally.seeds, "{tally:?}");
    assert!(tally.compatible > tally.slices / 50, "{tally:?}");
}

/// A real model with small caches has equal counts and contents on both sides. On one side the interpreter asks the model, half of the time
/// without an L0 filter cache. On the other side miss routines of translated code serve many misses.
#[test]
fn caches_agree() {
    let tally = agree(Kind::Caches, 60);
    assert!(tally.windows > tally.seeds, "{tally:?}");
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi2") {
        assert!(tally.served > 100 * tally.seeds, "{tally:?}");
    } else {
        nodescope_test_needs::skip(
            nodescope_test_needs::Need::Cpu,
            "the host has no AVX2 or BMI2, so that there are no miss routines",
        );
    }
}

#[test]
fn random_bytes_agree() {
    agree(Kind::Bytes, 30);
}

/// User code of random bytes ends in exceptions, never in an error of the engine.
#[test]
fn noise_as_user_code_agrees() {
    let tally = agree(Kind::Noise, 200);
    assert_eq!(tally.unknown, 0, "{tally:?}");
    assert!(tally.compatible > tally.slices / 50, "{tally:?}");
}

/// Seeds that found errors. In the first three, operands used a segment's base, or a read-modify-write met a page that was mapped to other
/// memory while a model was attached. (`remap.rs` and `system` test these without seeds.)
#[test]
fn seeds_that_once_differed_agree() {
    for (kind, seed) in [
        (Kind::Bytes, 5360),
        (Kind::Bytes, 6473),
        (Kind::Blocks, 11_002_506),
        // With the seeds from here on, an operation that was emitted twice resumed in the wrong copy: in a loop, a push/pop run, and a
        // fused load and store. With one of them, a way hid another way with the same key.
        (Kind::Node, 80_000_146),
        (Kind::Caches, 80_000_258),
        (Kind::Node, 80_000_062),
        // With the last ones, nodes that shared code counted data beside code as code, and the interpreter did not.
        (Kind::Blocks, 46),
        (Kind::Node, 1138),
        (Kind::Node, 2035),
        (Kind::Node, 500_032),
    ] {
        if let Err(failure) = run(&[kind], seed, 1, None, |_| {}) {
            panic!("{failure}");
        }
    }
}
