//! Target for the profile of a run's windows. The input is the file's content without compression.

use std::path::Path;

use nodescope_plugin_api::{BlockCounts, Charges, PartialCounts};
use nodescope_profile::{
    Block, ContendedLine, Count, Function, Inlined, LineUse, Module, ModuleKind, Path as CallPath,
    ProfilesFile, SourceLine, SourceRange, Variable, WindowProfile,
};
use nodescope_report::ReportInput;
use nodescope_report::code::{Format, cores, export};
use serde_json::Value;

use super::results::{inputs, mutated, report, text};
use super::{Once, Target};
use crate::json::Vocabulary;

/// Target that reads `profile.json.zst`.
pub const PROFILE: Target = Target {
    name: "profile",
    what: "profiles of windows (profile.json.zst, unpacked): the report, flame graphs and profiles for other tools",
    seeds: || vec![text(&seed())],
    mutate: |choices| mutated(&SEED, seed, choices),
    run,
    foreign: false,
};

static SEED: Once<(Value, Vocabulary)> = Once::new();

fn run(input: &[u8], folder: &Path) {
    let path = folder.join(ProfilesFile::NAME);
    let packed = zstd::encode_all(input, 1).expect("memory for an archive");
    std::fs::write(&path, packed).expect("a case's file");
    let profiles = match ProfilesFile::read(&path) {
        Ok(profiles) => profiles,
        Err(error) => return drop(error.to_string()),
    };
    let input = ReportInput {
        profiles: Some(profiles),
        ..inputs()
    };
    report(&input);
    let record = &input.windows.windows[0];
    for profile in input.profiles.iter().flat_map(|profiles| &profiles.windows) {
        let cores = cores(&input.core, record, profile, &[]).expect("cores");
        for format in [
            Format::Text,
            Format::Svg,
            Format::Folded,
            Format::Pprof,
            Format::PerfScript,
        ] {
            export(record, profile, &cores, format).expect("a format");
        }
    }
}

/// Returns a profile of two functions, in which a third is inlined, for two contexts of the window of [`inputs`].
fn seed() -> ProfilesFile {
    let function = |module, name: &str| Function {
        module,
        name: name.into(),
        start: 0x1000,
        named: true,
    };
    let module = |kind, name: &str| Module {
        kind,
        name: name.into(),
        build_id: Some("c0de".into()),
    };
    let line = |line| SourceLine {
        file: "solve.c".into(),
        line,
    };
    let block = |function, kernel| Block {
        module: function,
        offset: 0x1010,
        address: 0x40_1010,
        function,
        kernel,
        bits: 64,
        bytes: vec![0xf2, 0x0f, 0x58, 0xc1, 0xff, 0xc8, 0x75, 0xf8],
        instructions: 3,
        loads: 1,
        stores: 1,
        flops: [0, 0, 1, 0, 0, 0, 0],
        source_ranges: vec![
            SourceRange {
                first: 0,
                line: Some(1),
                inlined: vec![Inlined {
                    function: "add".into(),
                    called_from: Some(1),
                }],
            },
            SourceRange {
                first: 1,
                line: Some(0),
                inlined: Vec::new(),
            },
        ],
    };
    let count = |context, block| Count {
        node: 0,
        context,
        block,
        counts: BlockCounts {
            executions: 1000,
            partial: PartialCounts {
                executions: 1,
                instructions: 2,
                loads: 1,
                stores: 0,
                flops: [0, 0, 1, 0, 0, 0, 0],
            },
            long_cycles: 7,
            more_loads: 3,
            more_stores: 4,
            charges: Charges {
                answers: [10, 5, 1, 3, 2],
                cycles: [30, 50, 91, 300, 440, 2],
            },
            core_cycles: [900_000, 70_000, -500, 0, 3, 0, 40_000, 0, 0],
        },
    };
    let path = |context, functions: &[u32], samples| CallPath {
        node: 0,
        context,
        functions: functions.into(),
        samples,
        times: vec![17; samples as usize],
    };
    let user = |vcpu, block, write| LineUse {
        vcpu,
        context: 1,
        block,
        instruction: 1,
        write,
        locked: false,
        touched: 0xff << (8 * vcpu),
        taken: 5,
        cycles: 500,
    };
    let window = WindowProfile {
        name: "hpl".into(),
        modules: vec![
            module(ModuleKind::File, "/usr/bin/hpl"),
            module(ModuleKind::Kernel, "[kernel]"),
        ],
        functions: vec![function(0, "main"), function(1, "schedule")],
        lines: vec![line(10), line(20)],
        blocks: vec![block(0, false), block(1, true)],
        counts: vec![count(1, 0), count(2, 0), count(2, 1)],
        paths: vec![
            path(1, &[0], 8),
            path(2, &[0, 1], 3),
            path(2, &[0, 0, 1], 5),
        ],
        contended: vec![ContendedLine {
            node: 0,
            physical: 0x7_1040,
            size: 64,
            address: 0x40_4040,
            variable: Some(Variable {
                module: "/usr/bin/hpl".into(),
                name: "sums".into(),
                offset: -8,
            }),
            uses: vec![user(0, 0, false), user(1, 0, true), user(1, 1, true)],
        }],
        notes: vec!["a note".into()],
    };
    ProfilesFile {
        version: ProfilesFile::VERSION,
        study: "study".into(),
        study_id: "0".into(),
        windows: vec![window],
    }
}
