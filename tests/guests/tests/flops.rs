//! Test that the floating-point operations of a matrix product are counted exactly, in the right class, for several builds of the program.

use nodescope_guest_tests::{cluster, compile, image, program, run_well, small_node};
use nodescope_plugin_api::{Counters, FlopClass, Privilege};
use nodescope_window::{Ending, Measure, ModelSpec, Owner, Trigger, WindowSpec};

const N: i64 = 48;

/// Returns the checksum that the program prints, from integer arithmetic.
fn checksum() -> i64 {
    let a = |i, j| (i + 2 * j) % 7 - 3;
    let b = |i, j| (3 * i + j) % 5 - 2;
    let mut sum = 0;
    for i in 0..N {
        for j in 0..N {
            let c: i64 = (0..N).map(|k| a(i, k) * b(k, j)).sum();
            sum += (i + 1) * c * (j % 3 + 1);
        }
    }
    sum
}

/// Name of a build of the program, the class of its floating-point operations, and its compiler flags.
type Build = (&'static str, FlopClass, &'static [&'static str]);

const BUILDS: &[Build] = &[
    (
        "scalar",
        FlopClass::ScalarDouble,
        &["-static", "-O2", "-fno-tree-vectorize"],
    ),
    (
        "sse2",
        FlopClass::Packed128Double,
        &["-static", "-O3", "-msse2"],
    ),
    (
        "avx2-fma",
        FlopClass::Packed256Double,
        &["-static", "-O3", "-mavx2", "-mfma", "-ffp-contract=fast"],
    ),
    (
        "avx2-fma-single",
        FlopClass::Packed256Single,
        &[
            "-static",
            "-O3",
            "-mavx2",
            "-mfma",
            "-ffp-contract=fast",
            "-DREAL=float",
        ],
    ),
    (
        "x87",
        FlopClass::X87,
        &["-static", "-O2", "-DREAL=long double"],
    ),
];

#[test]
fn a_matrix_product_is_counted_exactly_in_its_class() {
    let Some(image) = image() else { return };
    let mut files = Vec::new();
    let mut run = String::from("#!/bin/sh\nset -e\n");
    for (name, _, flags) in BUILDS {
        let Some(binary) = compile("gcc", "dgemm.c", flags) else {
            return;
        };
        files.push(program(name, binary));
        run += &format!("./{name} {name}\n");
    }
    files.push(program("run", run));
    let mut config = cluster(image, 1, small_node(256), &files);
    config.windows = BUILDS
        .iter()
        .map(|(name, ..)| WindowSpec {
            name: (*name).into(),
            open: Trigger::Guest,
            warm_up: 0,
            attribution: true,
            sampling: None,
            measure: Measure::Guest,
            models: ModelSpec::default(),
        })
        .collect();
    let dir = tempfile::tempdir().unwrap();
    let finished = run_well(&config, dir.path());
    let windows = &finished.outcome.windows;
    for (outcome, (name, class, _)) in windows.outcomes.iter().zip(BUILDS) {
        assert_eq!(outcome.ending, Ending::Complete, "{outcome}");
        let line = format!("{name}: checksum {}", checksum());
        let console = &finished.consoles[0];
        assert!(console.contains(&line), "{line}\n{console}");
        let record = windows.windows.iter().find(|w| w.name == *name).unwrap();
        let node = &record.nodes[0];
        let mut user = Counters::default();
        for (_, context, privilege, counters) in &node.counters {
            let owner = &node.owners[context.0 as usize];
            let ours = matches!(owner, Owner::Process { program, .. } if program == name);
            if ours && *privilege == Privilege::User {
                user.add(counters);
            }
        }
        println!(
            "{name}: {:?} in {} instructions",
            user.flops, user.instructions
        );
        let mut expected = [0; FlopClass::ALL.len()];
        expected[*class as usize] = 2 * (N * N * N) as u64;
        assert_eq!(user.flops, expected, "{name}: {:?}", FlopClass::ALL);
    }
}
