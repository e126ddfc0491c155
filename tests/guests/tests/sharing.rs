//! Threads that share lines of memory in a window: what they cost each other, and the contended lines of the profile.

use std::collections::BTreeMap;

use nodescope_guest_tests::{cluster, compile, image, program, run_well};
use nodescope_machine::topology::NodeTopology;
use nodescope_plugin_cache::{ByDistance, CacheConfig, CoherenceLatency, Keep};
use nodescope_profile::{ContendedLine, WindowProfile};
use nodescope_window::{Measure, ModelSpec, Trigger, WindowSpec};

const JOB: &str = "#!/bin/sh
set -e
nodescope-guest open sharing
./sharing 2 4000 >figures
nodescope-guest close sharing
nodescope-guest put figures figures
";

/// Nanoseconds of one operation, with one thread and with two.
type Figures = BTreeMap<String, (f64, f64)>;

fn figures(text: &str) -> Figures {
    let line = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        let number = |n: usize| fields[n].parse::<f64>().unwrap();
        (fields[0].to_owned(), (number(1), number(2)))
    };
    text.lines().map(line).collect()
}

/// Returns the contended line of a variable.
fn line<'a>(profile: &'a WindowProfile, variable: &str) -> &'a ContendedLine {
    let of = |line: &&ContendedLine| {
        let found = line.variable.as_ref();
        found.is_some_and(|found| found.name == variable && found.offset <= 0)
    };
    let found = profile.contended.iter().find(of);
    found.unwrap_or_else(|| panic!("no line of {variable}: {:?}", profile.contended))
}

/// Returns the source lines that use a contended line, with the vCPU and the touched bytes.
fn uses(profile: &WindowProfile, line: &ContendedLine) -> Vec<(u32, u16, u64)> {
    let uses = line.uses.iter().filter_map(|of| {
        let range = profile.blocks[of.block as usize].source_range(of.instruction)?;
        Some((
            profile.lines[range.line? as usize].line,
            of.vcpu,
            of.touched,
        ))
    });
    uses.collect()
}

#[test]
fn threads_that_share_lines_cost_each_other_time() {
    let Some(image) = image() else { return };
    let Some(sharing) = compile("gcc", "sharing.c", &["-O2", "-g", "-pthread"]) else {
        return;
    };
    let source = include_str!("../programs/sharing.c");
    let number_of = |text: &str| 1 + source.lines().position(|l| l.contains(text)).unwrap() as u32;
    let job = [program("sharing", sharing), program("run", JOB)];
    let mut config = cluster(image, 1, NodeTopology::uniform(1, 2, 1, 256 << 20), &job);
    let mut caches = CacheConfig::xeon_e5_2690();
    caches.levels[2].latency.upgrade = 43;
    let other_core = |cycles| ByDistance {
        other_core: cycles,
        ..ByDistance::default()
    };
    caches.coherence = CoherenceLatency {
        from_modified: other_core(45),
        snoop: other_core(28),
        keep: Some(Keep {
            locked: 20,
            stores: 10,
        }),
        ..CoherenceLatency::default()
    };
    config.windows = vec![WindowSpec {
        name: "sharing".into(),
        open: Trigger::Guest,
        warm_up: 0,
        attribution: true,
        sampling: None,
        measure: Measure::Guest,
        models: ModelSpec {
            caches: Some(caches),
            memory: None,
            core: None,
            registered: Vec::new(),
        },
    }];
    let results = [false, true].map(|translate| {
        config.translate = translate;
        let dir = tempfile::tempdir().unwrap();
        let finished = run_well(&config, dir.path());
        let profiles = finished.outcome.profiles.clone().unwrap();
        (finished.file("figures"), profiles)
    });
    assert_eq!(results[0], results[1], "interpreted and translated");
    let [(text, profiles), _] = results;
    println!("{text}");
    let figures = figures(&text);
    let ratio = |kernel: &str| figures[kernel].1 / figures[kernel].0;
    assert!(ratio("padded") < 1.5);
    assert!(ratio("neighbours") > 3.0 && ratio("neighbours") < 15.0);
    // What two threads do one after the other takes twice as long at least.
    for serial in ["counter", "test_and_set", "ticket", "queue"] {
        assert!(ratio(serial) > 2.0, "{serial}");
    }
    let profile = &profiles.windows[0];
    let written = number_of("(*word)++");
    let neighbours = uses(profile, line(profile, "neighbours"));
    for (vcpu, bytes) in [(0, 0xff), (1, 0xff00)] {
        assert!(
            neighbours.contains(&(written, vcpu, bytes)),
            "{neighbours:x?}"
        );
    }
    let counter = line(profile, "counter");
    assert!(counter.uses.iter().all(|of| of.locked));
    let added = number_of("atomic_fetch_add(&counter, 1)");
    assert!(uses(profile, counter).contains(&(added, 1, 0xff)));
}
