//! Test of a window's profile: the costs of all code add up to the window's counters, and every kind of code has a name.

use std::collections::BTreeMap;

use nodescope_guest_tests::{cluster, compile, image, program, run_well, small_node};
use nodescope_plugin_api::{Counters, STALL_TERMS, StallTerm, Term};
use nodescope_plugin_cache::CacheConfig;
use nodescope_profile::{Costs, Function, ModuleKind, NominalCore, Scope, WindowProfile};
use nodescope_window::{Measure, ModelSpec, Trigger, WindowRecord, WindowSpec};

const SOURCE: &str = include_str!("../programs/hotspots.c");
/// Number of iterations of the function `hot` in `hotspots.c`. `LIBRARY` are those of the shared library, `MADE` those of code made at run
/// time.
const HOT: u128 = 700_000;
const LIBRARY: u128 = 200_000;
const MADE: u128 = 150_000;

fn core(profile: &WindowProfile) -> NominalCore<'_> {
    NominalCore {
        profile,
        cpi_65536: 1 << 16,
    }
}

/// Checks that the sums over blocks, functions and lines are the window's totals, by the window's counters and by its models.
fn adds_up(profile: &WindowProfile, record: &WindowRecord) {
    let core = core(profile);
    let sum = |parts: &mut dyn Iterator<Item = Costs>| {
        let mut sum = Costs::default();
        parts.for_each(|part| sum.add(&part));
        sum
    };
    let total = profile.total(Scope::Total, &core);
    let functions = profile.by_function(Scope::Total, &core);
    assert_eq!(sum(&mut functions.into_values()), total, "functions");
    let lines = profile.by_line(Scope::Total, &core);
    assert_eq!(sum(&mut lines.into_values()), total, "lines");
    let blocks = profile.by_block(Scope::Total, &core);
    assert_eq!(sum(&mut blocks.into_values()), total, "blocks");

    let node = &record.nodes[0];
    let mut by_context: BTreeMap<u32, Counters> = BTreeMap::new();
    for (_, context, _, counters) in &node.counters {
        by_context.entry(context.0).or_default().add(counters);
    }
    for (context, counters) in by_context {
        let costs = profile.total(Scope::Context(0, context), &core);
        let wide = u128::from;
        assert_eq!(costs.instructions, wide(counters.instructions));
        assert_eq!(costs.loads, wide(counters.loads));
        assert_eq!(costs.stores, wide(counters.stores));
        assert_eq!(costs.long_cycles, wide(counters.long_cycles));
        assert_eq!(costs.flops, counters.flops.map(wide));
        let stalls: u128 = costs.stalls.iter().sum();
        assert_eq!(stalls, wide(counters.stall_cycles));
    }
    let mut terms = [0; STALL_TERMS];
    for statistic in &node.statistics {
        let term = match statistic.term {
            Term::Cache(level) => StallTerm::of_level(level),
            Term::Memory if statistic.event.starts_with("memory.local") => StallTerm::LocalMemory,
            Term::Memory => StallTerm::RemoteMemory,
            Term::Model | Term::None => StallTerm::Unattributed,
        };
        terms[term as usize] += u128::from(statistic.cycles);
    }
    assert_eq!(total.stalls, terms);
}

/// Finds a function by the ends of its module's name and of its own name. Returns the function and its costs.
fn function<'a>(profile: &'a WindowProfile, module: &str, name: &str) -> (&'a Function, Costs) {
    let costs = profile.by_function(Scope::Total, &core(profile));
    let found = costs.into_iter().find_map(|(index, costs)| {
        let function = &profile.functions[index as usize];
        let of = &profile.modules[function.module as usize].name;
        (of.ends_with(module) && function.name.ends_with(name)).then_some((function, costs))
    });
    found.unwrap_or_else(|| panic!("no {name} in {module}"))
}

#[test]
fn every_kind_of_code_has_a_name_and_exact_costs() {
    let Some(image) = image() else { return };
    let flags = ["-g", "-O1", "-fno-tree-vectorize", "-ldl"];
    let stripped: Vec<&str> = flags.iter().copied().chain(["-s"]).collect();
    let (Some(hotspots), Some(stripped), Some(library)) = (
        compile("gcc", "hotspots.c", &flags),
        compile("gcc", "hotspots.c", &stripped),
        compile("gcc", "library.c", &["-O1", "-shared", "-fPIC"]),
    ) else {
        return;
    };
    let run = "#!/bin/sh\nset -e\n./hotspots hotspots\n./stripped stripped\n";
    let files = [
        program("hotspots", hotspots),
        program("stripped", stripped),
        program("library.so", library),
        program("run", run),
    ];
    let mut config = cluster(image, 1, small_node(256), &files);
    config.windows = ["hotspots", "stripped"]
        .map(|name| WindowSpec {
            name: name.into(),
            open: Trigger::Guest,
            warm_up: 0,
            attribution: true,
            sampling: None,
            measure: Measure::Guest,
            models: ModelSpec {
                caches: Some(CacheConfig::xeon_e5_2690()),
                memory: None,
                core: None,
                registered: Vec::new(),
            },
        })
        .into();
    let dir = tempfile::tempdir().unwrap();
    let finished = run_well(&config, dir.path());
    let windows = &finished.outcome.windows.windows;
    let profiles = &finished.outcome.profiles.as_ref().unwrap().windows;
    for (profile, record) in profiles.iter().zip(windows) {
        assert_eq!(profile.name, record.name);
        assert!(profile.notes.is_empty(), "{:?}", profile.notes);
        adds_up(profile, record);
    }

    // The hot function and its hot line.
    let profile = &profiles[0];
    let core = core(profile);
    let (hot, costs) = function(profile, "/job/hotspots", "hot");
    assert!(hot.named);
    assert!(
        costs.instructions >= 3 * HOT && costs.instructions < 8 * HOT,
        "{costs:?}"
    );
    let number = SOURCE
        .lines()
        .position(|line| line.contains("the hot line"))
        .unwrap() as u32
        + 1;
    let lines = profile.by_line(Scope::Total, &core);
    let line = lines.iter().find_map(|(line, costs)| {
        let line = &profile.lines[line.as_ref().copied()? as usize];
        (line.file.ends_with("hotspots.c") && line.line == number).then_some(costs)
    });
    assert!(line.expect("the hot line").instructions >= HOT);

    // The library, the code made at run time, and the kernel.
    let (_, costs) = function(profile, "/job/library.so", "library_work");
    assert!(costs.instructions >= 3 * LIBRARY && costs.instructions < 8 * LIBRARY);
    let (made, costs) = function(profile, "[anonymous]", "[anonymous]");
    assert_eq!(
        profile.modules[made.module as usize].kind,
        ModuleKind::Anonymous
    );
    assert_eq!(costs.instructions, 2 * MADE + 2);
    let (_, costs) = function(profile, "[kernel]", "sys_getppid");
    assert!(costs.executions >= 300);

    // Call paths lead from the program's entry point through the caller to the hot function.
    let name = |function: &u32| profile.functions[*function as usize].name.as_str();
    let path = profile
        .paths
        .iter()
        .filter(|path| path.functions.last().map(name) == Some("hot"));
    let path = path
        .max_by_key(|path| path.samples)
        .expect("the hot function was sampled");
    let names: Vec<&str> = path.functions.iter().map(name).collect();
    assert!(names.ends_with(&["main", "caller", "hot"]), "{names:?}");
    assert!(names.contains(&"_start"), "{names:?}");

    // A program without symbols has names of module and offset. The library still has its exported name.
    let profile = &profiles[1];
    let costs = profile.by_function(
        Scope::Total,
        &NominalCore {
            profile,
            cpi_65536: 1 << 16,
        },
    );
    let (index, costs) = costs
        .into_iter()
        .max_by_key(|(_, costs)| costs.instructions)
        .unwrap();
    let most = &profile.functions[index as usize];
    assert!(
        !most.named && most.name.starts_with("stripped+0x"),
        "{most:?}"
    );
    assert!(costs.instructions >= 3 * HOT);
    function(profile, "/job/library.so", "library_work");
}
