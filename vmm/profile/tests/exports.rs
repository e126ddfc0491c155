//! Tests of call paths, flame graphs and the formats of other tools: sums are exact, and written files can be read back.

mod support;

use std::collections::BTreeMap;
use std::io::Read;

use nodescope_profile::totals::CYCLE;
use nodescope_profile::{
    CoreCycles, Costs, Detail, NominalCore, Scope, Stacks, WindowProfile, flame, folded,
    perf_script, pprof,
};
use prost::Message;
use support::*;

/// CPI, in 1/65536, of a core whose cycles have fractions.
const CPI: u32 = 65_536 * 3 / 5 + 7;

fn stacks(profile: &WindowProfile, detail: Detail) -> Stacks {
    let core = NominalCore {
        profile,
        cpi_65536: CPI,
    };
    Stacks::new(profile, &core, &labels(), detail)
}

fn total(profile: &WindowProfile) -> Costs {
    let core = NominalCore {
        profile,
        cpi_65536: CPI,
    };
    profile.total(Scope::Total, &core)
}

#[test]
fn paths_add_up_to_the_window() {
    let profile = profile("solve");
    for detail in [Detail::Functions, Detail::Lines] {
        let stacks = stacks(&profile, detail);
        let mut sum = Costs::default();
        for stack in &stacks.stacks {
            sum.add(&stack.costs);
        }
        assert_eq!(sum, total(&profile));
        assert_eq!(
            stacks.whole_cycles().sum::<i128>(),
            sum.cycles_65536() / CYCLE
        );
    }
}

#[test]
fn costs_follow_samples() {
    let profile = profile("solve");
    let stacks = stacks(&profile, Detail::Functions);
    let of = |text: &str| {
        let folded = folded::folded(&profile, &stacks);
        let lines = folded.lines().filter(|line| line.starts_with(text));
        lines
            .map(|line| line.rsplit_once(' ').unwrap().1.parse::<i128>().unwrap())
            .sum::<i128>()
    };
    let relax = "relax(double*, double const*, unsigned long)";
    let direct = of(&format!("rank 0;main;{relax}"));
    let through = of(&format!(
        "rank 0;main;{}",
        &profile.functions[TEMPLATE as usize].name
    )) - of(&format!(
        "rank 0;main;{} ",
        &profile.functions[TEMPLATE as usize].name
    ));
    // The direct path has 61 samples, the other one 9.
    let share = direct as f64 / (direct + through) as f64;
    assert!((share - 61.0 / 70.0).abs() < 1e-5, "{share}");
    // A function without samples has a path with only itself.
    assert!(of("rank 0;entry_SYSCALL_64_[k] ") > 0);
    assert!(of("rank 0;MPI_Allreduce;main;PMPI_Allreduce;opal_progress ") > 0);
    assert!(of("others node0;[anonymous]+0x7f5512340000 ") > 0);
}

#[test]
fn folded_stacks_read_back() {
    let mut profile = profile("solve");
    profile.functions[MAIN as usize].name = "a;b\nc".into();
    let stacks = stacks(&profile, Detail::Functions);
    let text = folded::folded(&profile, &stacks);
    let mut sum = 0;
    for line in text.lines() {
        let (frames, count) = line.rsplit_once(' ').unwrap();
        assert!(frames.split(';').count() >= 2, "{line}");
        sum += count.parse::<i128>().unwrap();
    }
    assert!(text.contains("rank 0;a:b c;"));
    assert!(text.contains("::at(unsigned long) const_[i] "));
    assert_eq!(sum, total(&profile).cycles_65536() / CYCLE);
}

#[test]
fn perf_script_reads_back() {
    let profile = profile("solve");
    let stacks = stacks(&profile, Detail::Functions);
    let text = perf_script::perf_script(&profile, &stacks);
    let mut sum = 0;
    let mut events = 0;
    for event in text.split_terminator("\n\n") {
        let mut lines = event.lines();
        let head: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
        let [command, pids, cpu, time, period, name] = head[..] else {
            panic!("{head:?}");
        };
        assert!(command.starts_with("solver/rank_") || command.starts_with("others_node"));
        assert!(pids.contains('/') && cpu.starts_with('[') && time.ends_with(':'));
        assert_eq!(name, "cycles:");
        sum += period.parse::<i128>().unwrap();
        events += 1;
        let mut frames = 0;
        for line in lines {
            let line = line.strip_prefix('\t').unwrap();
            let (address, rest) = line.trim_start().split_once(' ').unwrap();
            u64::from_str_radix(address, 16).unwrap();
            assert!(rest.ends_with(')'), "{rest}");
            frames += 1;
        }
        assert!(frames > 0);
    }
    assert!(events > 15, "{events}");
    assert_eq!(sum, total(&profile).cycles_65536() / CYCLE);
}

#[test]
fn pprof_reads_back() {
    let profile = profile("solve");
    let stacks = stacks(&profile, Detail::Lines);
    let packed = pprof::write(&profile, &stacks).unwrap();
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(&packed[..])
        .read_to_end(&mut bytes)
        .unwrap();
    let read = pprof::proto::Profile::decode(&bytes[..]).unwrap();
    assert_eq!(read, pprof::message(&profile, &stacks));
    let text = |index: i64| read.string_table[index as usize].as_str();
    assert_eq!(text(0), "");
    let names: Vec<_> = read.sample_type.iter().map(|t| text(t.r#type)).collect();
    assert_eq!(names, pprof::VALUES.map(|(name, _)| name));
    assert_eq!(text(read.default_sample_type), "cycles");

    let sum = |value: usize| read.sample.iter().map(|s| s.value[value]).sum::<i64>();
    let expected = total(&profile);
    assert_eq!(sum(0) as u128, expected.instructions);
    assert_eq!(i128::from(sum(1)), expected.cycles_65536() / CYCLE);
    for sample in &read.sample {
        assert_eq!(sample.value[1], sample.value[2..].iter().sum::<i64>());
        assert!(!sample.location_id.is_empty());
        let labels: BTreeMap<_, _> = sample
            .label
            .iter()
            .map(|l| (text(l.key), text(l.str)))
            .collect();
        assert!(labels.contains_key("node"));
        assert_eq!(labels.contains_key("rank"), labels.contains_key("program"));
    }
    // Every id exists; ids count from 1.
    for (index, location) in read.location.iter().enumerate() {
        assert_eq!(location.id, index as u64 + 1);
        assert!((1..=profile.modules.len() as u64).contains(&location.mapping_id));
        for line in &location.line {
            assert!((1..=read.function.len() as u64).contains(&line.function_id));
        }
    }
    // The inlined function is first in its location, with its line.
    let expanded = read
        .location
        .iter()
        .find(|location| location.line.len() == 2);
    let [inner, outer] = expanded.unwrap().line[..] else {
        panic!("{expanded:?}");
    };
    let function = |line: pprof::proto::Line| &read.function[line.function_id as usize - 1];
    assert!(text(function(inner).name).starts_with("grid::Field"));
    assert_eq!((inner.line, outer.line), (17, 0));
    assert!(text(function(inner).filename).ends_with("grid.hpp"));
    assert!(text(function(outer).name).starts_with("relax"));
    assert!(text(function(outer).filename).ends_with("solver.cpp"));
}

#[test]
fn go_reads_pprof() {
    use nodescope_test_needs::{Need, have};
    if !have(Need::Pprof, &["go"]) {
        return;
    }
    let profile = profile("solve");
    let stacks = stacks(&profile, Detail::Lines);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("profile.pb.gz");
    std::fs::write(&file, pprof::write(&profile, &stacks).unwrap()).unwrap();
    let run = |args: &[&str]| {
        let output = std::process::Command::new("go")
            .args(["tool", "pprof"])
            .args(args)
            .arg(&file)
            .env("HOME", folder.path())
            .env("GOCACHE", folder.path().join("cache"))
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{stderr}");
        String::from_utf8(output.stdout).unwrap()
    };
    let top = run(&["-top", "-nodecount=5"]);
    assert!(top.contains("relax(double*"), "{top}");
    let tags = run(&["-tags"]);
    assert!(tags.contains("MPI_Allreduce"), "{tags}");
}

#[test]
fn the_flame_graph_is_exact_and_stands_alone() {
    let mut profile = profile("solve \"<&\u{1}");
    let stacks = stacks(&profile, Detail::Functions);
    let tree = flame::tree(&profile, &stacks);
    assert_eq!(tree.cycles_65536, total(&profile).cycles_65536());
    fn check(node: &flame::Node) {
        let above: i128 = node.children.iter().map(|child| child.cycles_65536).sum();
        assert!(above <= node.cycles_65536, "{}", node.name);
        node.children.iter().for_each(check);
    }
    check(&tree);
    let owners: Vec<_> = tree.children.iter().map(|n| n.name.as_str()).collect();
    assert_eq!(owners, ["rank 0", "rank 1", "others node0", "others node1"]);
    let above: i128 = tree.children.iter().map(|child| child.cycles_65536).sum();
    assert_eq!(above, tree.cycles_65536);
    let call = &tree.children[0].children[0];
    assert_eq!(
        (call.name.as_str(), call.kind),
        ("MPI_Allreduce", flame::Kind::Mpi)
    );

    let svg = flame::svg(&tree, 1200);
    let document = roxmltree::Document::parse(&svg).unwrap();
    for node in document.descendants() {
        for attribute in node.attributes() {
            assert!(!["href", "src"].contains(&attribute.name()));
            assert!(!attribute.value().contains("url("));
        }
    }
    // The SVG contains the addresses of XML namespaces, and no others.
    let rest = svg
        .replace("http://www.w3.org/2000/svg", "")
        .replace("http://www.w3.org/1999/xhtml", "");
    assert!(!rest.contains("://"));
    assert_eq!(svg, flame::svg(&tree, 1200));

    // A path that is longer than the maximum depth must also give a well-formed SVG.
    let mut functions = vec![MAIN; 5000];
    functions.push(RELAX);
    profile.paths[1].functions = functions;
    let deep = self::stacks(&profile, Detail::Functions);
    let svg = flame::svg(&flame::tree(&profile, &deep), 1200);
    assert!(roxmltree::Document::parse(&svg).is_ok());
}

#[test]
fn a_window_without_counts_is_empty() {
    let profile = WindowProfile::default();
    let core = NominalCore {
        profile: &profile,
        cpi_65536: CPI,
    };
    let stacks = Stacks::new(&profile, &core, &labels(), Detail::Lines);
    assert_eq!(folded::folded(&profile, &stacks), "");
    assert_eq!(perf_script::perf_script(&profile, &stacks), "");
    assert!(pprof::message(&profile, &stacks).sample.is_empty());
    let svg = flame::svg(&flame::tree(&profile, &stacks), 1200);
    assert!(roxmltree::Document::parse(&svg).is_ok());
}

#[test]
fn samples_of_any_number_split_exactly() {
    struct Large;
    impl CoreCycles for Large {
        fn block(&self, _: u32) -> i128 {
            1 << 40
        }
    }
    let mut profile = profile("solve");
    for path in &mut profile.paths {
        path.samples = u64::MAX - u64::from(path.node);
    }
    for count in &mut profile.counts {
        count.counts.executions <<= 24;
    }
    let stacks = Stacks::new(&profile, &Large, &labels(), Detail::Functions);
    let mut sum = Costs::default();
    for stack in &stacks.stacks {
        sum.add(&stack.costs);
    }
    assert_eq!(sum, profile.total(Scope::Total, &Large));
}
