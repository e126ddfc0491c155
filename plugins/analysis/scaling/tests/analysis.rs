//! Analyses of synthetic results whose figures can be computed by hand.

use std::fs;
use std::path::PathBuf;

use nodescope_scaling::point::Group;
use nodescope_scaling::{
    Analysis, AnalysisError, PlanError, PlanRequest, Point, PointError, ReadError, Section, read,
};
use serde_json::{Value, json};

/// Length of a cycle in the unit of `report.json`, 1/65536 cycle.
const CYCLE: u64 = 65536;

/// Returns the report of a run whose ranks execute 1000 instructions each outside MPI. For these instructions, a rank needs 800 cycles of
/// core, 30 of L1, 20 of L2, 10 of L3, 100 of local and 40 of remote memory, and `mpi` cycles in MPI.
fn report(study: &str, nodes: u64, mpi: u64) -> Value {
    let ranks = 2 * nodes;
    let instructions = 1000 * ranks;
    let terms = [
        ("core", 800),
        ("L1", 30),
        ("L2", 20),
        ("L3", 10),
        ("memory_local", 100),
        ("memory_remote", 40),
        ("mpi", mpi),
    ];
    let cycles: u64 = terms.iter().map(|(_, cycles)| cycles * ranks * CYCLE).sum();
    let term = |(term, cycles): (&str, u64)| json!({"term": term, "cycles_65536": cycles * ranks * CYCLE, "cpi": cycles as f64 / 1000.0});
    json!({
        "version": 4,
        "study": {"name": study, "id": "0", "description": []},
        "core": {"nominal": {"source": "by hand"}},
        "windows": [{
            "name": "steps", "complete": true, "triggered_ps": 1_000, "closed_ps": 1_000 + 8_000_000 / nodes,
            "scopes": [
                {"kind": "rank", "instructions": 1, "instructions_in_mpi": 0, "cycles_65536": 0, "cpi": 0.0, "terms": [], "flops": {}},
                {
                    "kind": "ranks", "instructions": instructions, "instructions_in_mpi": 5,
                    "cycles_65536": cycles, "cpi": cycles as f64 / CYCLE as f64 / instructions as f64,
                    "terms": terms.map(term),
                    "flops": {"alpha": 0.5, "published_per_second": 1e9, "direct_per_second": 5e8, "window_per_second": 4e8 * ranks as f64},
                },
            ],
        }],
        "mpi": {"programs": [{
            "name": "p", "world_size": ranks, "from_ps": 0, "to_ps": 10_000_000,
            "ranks": vec![json!({"rank": 0}); ranks as usize],
            "functions": [
                {"function": "MPI_Send", "calls": 10 * ranks, "time_ps": 3_000_000 * ranks},
                {"function": "MPI_Wait", "calls": 20 * ranks, "time_ps": 1_000_000 * ranks},
            ],
        }]},
        "network": vec![json!({"node": "n"}); nodes as usize],
    })
}

/// Returns the host times of a run. A phase takes 2 s for each node and second of virtual time, and 5 ns for each instruction. A window
/// takes ten times as much, and a run of a single node a tenth. The process has 100 MiB, and 50 MiB for each node.
fn host(nodes: u64) -> Value {
    let lone = if nodes == 1 { 0.1 } else { 1.0 };
    let phase = |phase: &str, instructions: u64, factor: f64| {
        let factor = lone * factor;
        let seconds = factor * (2.0 * nodes as f64 * 0.5 + 5e-9 * instructions as f64);
        json!({
            "phase": phase, "window": null, "nodes": nodes, "instructions": instructions, "virtual_ps": 500_000_000_000u64,
            "wall_seconds": seconds / 2.0, "cpu_seconds": seconds,
        })
    };
    json!({
        "version": 1, "processor": "by hand", "cores": 2, "threads": 2, "peak_memory_bytes": (100 + 50 * nodes) << 20,
        "phases": [
            {"phase": "boot", "window": null, "nodes": 1, "instructions": 600_000_000, "virtual_ps": 1, "wall_seconds": 2.0, "cpu_seconds": 2.0},
            {"phase": "restore", "window": null, "nodes": nodes, "instructions": 0, "virtual_ps": 0, "wall_seconds": 1.0, "cpu_seconds": 1.0},
            {"phase": "boot", "window": null, "nodes": nodes, "instructions": 7, "virtual_ps": 1, "wall_seconds": 9.0, "cpu_seconds": 9.0},
            phase("job", 1_000_000_000 * (nodes + 3), 1.0),
            phase("window", 1_000_000_000, 10.0),
        ],
    })
}

fn point(study: &str, nodes: u64, mpi: u64) -> Point {
    Point::read(
        &report(study, nodes, mpi).to_string(),
        Some(&host(nodes).to_string()),
        None,
        None,
    )
    .unwrap()
}

fn three() -> Analysis {
    // The points are not in the order of their nodes.
    let points = vec![
        point("p-4", 4, 600),
        point("p-1", 1, 0),
        point("p-2", 2, 300),
    ];
    Analysis::new(points).unwrap()
}

fn near(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-9 * other.abs().max(1.0)
}

#[test]
fn terms_add_up_and_are_grouped_as_published() {
    let point = point("p-2", 2, 300);
    let window = point.window.unwrap();
    let groups = Group::ALL.map(|group| window.group(group));
    let expected = [0.8, 0.03, 0.02, 0.01, 0.14, 0.3, 0.0];
    assert!(
        groups
            .iter()
            .zip(expected)
            .all(|(one, other)| near(*one, other)),
        "{groups:?}"
    );
    assert!(near(groups.iter().sum(), window.cpi));
    assert_eq!((point.nodes, point.ranks), (2, 4));
    assert_eq!(window.core, "by hand");
}

#[test]
fn constancy_is_told_by_least_and_largest() {
    let analysis = three();
    let [series] = analysis.series.as_slice() else {
        panic!("one program");
    };
    assert_eq!(series.name, "p");
    assert_eq!(
        series.points.iter().map(|p| p.nodes).collect::<Vec<_>>(),
        [1, 2, 4]
    );
    let spread = |term: &str| series.spreads.iter().find(|s| s.term == term).unwrap();
    assert_eq!(spread("core").relative, 0.0);
    assert!(near(spread("caches").mean, 0.06));
    // 0, 0.3 and 0.6: (0.6 - 0) / 0.3.
    assert!(near(spread("mpi").relative, 2.0));
    // 1, 1.3 and 1.6.
    assert!(near(spread("total").mean, 1.3));
    let text = analysis.text();
    assert!(
        text.contains("core        0.8000    0.8000    0.8000                  0.0 %"),
        "{text}"
    );
    // Equation (6) is for one core: 1 GFLOP/s on 2, 4 and 8 ranks alike.
    let flops = text
        .lines()
        .find(|line| line.contains("equation (6)"))
        .unwrap();
    assert_eq!(
        flops
            .split_whitespace()
            .skip(4)
            .collect::<Vec<_>>()
            .join(" "),
        "2 G 4 G 8 G"
    );
    // 600 M instructions in 2 s.
    let boot = text
        .lines()
        .find(|line| line.starts_with("  boot  "))
        .unwrap();
    assert_eq!(boot.matches("300 M").count(), 3, "{boot}");
}

#[test]
fn a_plan_finds_the_costs_that_the_runs_were_made_of() {
    let analysis = three();
    let request: PlanRequest = "nodes=224,cores=16,host-cores=12,host-memory=24 GiB,job=1s"
        .parse()
        .unwrap();
    let plan = analysis.series[0].plan(&request).unwrap();
    let job = &plan.phases[0];
    assert!(
        near(job.per_node_second, 2.0) && near(1e9 * job.per_instruction, 5.0),
        "{job:?}"
    );
    // The run on four nodes: 8 ranks execute 7 G instructions in 0.5 s, thus 1.75 G instructions of each rank in a second.
    assert!(near(job.instructions, 1.75e9 * 224.0 * 16.0));
    assert!(near(job.cpu_seconds, 2.0 * 224.0 + 5e-9 * 1.75e9 * 3584.0));
    let window = &plan.phases[1];
    assert!(
        near(window.per_node_second, 20.0) && near(1e9 * window.per_instruction, 50.0),
        "{window:?}"
    );
    assert!(near(window.virtual_seconds, 0.5));
    // (24576 - 100) / 50 = 489 nodes fit.
    assert_eq!((plan.nodes_per_host, plan.hosts), (224, 1));
    assert!(near(
        plan.memory_bytes,
        f64::from(100 + 50 * 224) * f64::from(1 << 20)
    ));
    // One node boots in 2 s. The other nodes are made of it; a node of the run on four takes (1 + 9) / 4 s for that and the rest of the boot.
    assert!(plan.boots_once && near(plan.ends_cpu_seconds, 2.0 + 2.5 * 224.0));
    assert!(near(
        plan.core_hours,
        (job.cpu_seconds + window.cpu_seconds + plan.ends_cpu_seconds) / 3600.0
    ));
    assert!(near(plan.hours[0], plan.core_hours / 12.0));
    // The run on four nodes takes 2 * 4 * 0.5 + 5e-9 * 7e9 = 39 s for 7 G instructions.
    assert!(near(
        job.cpu_seconds_by_instruction,
        39.0 / 7e9 * job.instructions
    ));
    let small: PlanRequest = "nodes=224,cores=16,host-memory=1124 MiB".parse().unwrap();
    let plan = analysis.series[0].plan(&small).unwrap();
    // (1124 - 100) / 50 = 20 nodes fit, and 224 need 12 hosts.
    assert_eq!((plan.nodes_per_host, plan.hosts), (20, 12));
}

/// Returns a run of which `memory` MiB are in use at its end. `shared` has the MiB when all nodes had been made of one; each node boots
/// without it.
fn remembering(nodes: u64, shared: Option<u64>, memory: u64) -> Point {
    let mut host = host(nodes);
    host["memory_bytes"] = json!(memory << 20);
    let phases = host["phases"].as_array_mut().unwrap();
    match shared {
        Some(mib) => phases[1]["memory_bytes"] = json!(mib << 20),
        None => {
            phases.drain(..2);
        }
    }
    let report = report(&format!("p-{nodes}"), nodes, 0).to_string();
    Point::read(&report, Some(&host.to_string()), None, None).unwrap()
}

#[test]
fn memory_is_planned_by_runs_that_boot_alike() {
    let mib = f64::from(1 << 20);
    let each = [remembering(2, None, 524), remembering(4, None, 970)];
    let once = [
        remembering(8, Some(193), 613),
        remembering(16, Some(193), 1033),
    ];
    let plan = |points: &[&Point], request: &str| {
        let points = points.iter().map(|&point| point.clone()).collect();
        let analysis = Analysis::new(points).unwrap();
        analysis.series[0].plan(&request.parse().unwrap()).unwrap()
    };
    // Runs in which each node booted do not count for a cluster whose nodes are made of one.
    let all = plan(
        &[&each[0], &each[1], &once[0], &once[1]],
        "nodes=32,cores=2",
    );
    assert!(all.boots_once && all.notes.is_empty());
    assert!(
        near(all.memory_bytes, (193.0 + 32.0 * 52.5) * mib),
        "{all:?}"
    );
    assert!(all.memory_error < 1e-9);
    // A single such run is enough: the memory when all nodes had been made of one is what they share.
    let one = plan(&[&each[0], &each[1], &once[0]], "nodes=16,cores=2");
    assert!(near(one.memory_bytes, 1033.0 * mib), "{one:?}");
    // Without such a run the plan is a limit, and says so.
    let limit = plan(&[&each[0], &each[1]], "nodes=8,cores=2");
    assert!(
        limit.boots_once && limit.notes[0].contains("at most"),
        "{limit:?}"
    );
    assert!(near(limit.memory_bytes, (78.0 + 8.0 * 223.0) * mib));
    // Fewer nodes boot each.
    let few = plan(&[&each[0], &each[1]], "nodes=6,cores=2");
    assert!(!few.boots_once && few.notes.is_empty());
    // 9 s of boot for all nodes of the run.
    assert!(near(few.ends_cpu_seconds, 6.0 * 9.0 / 4.0));
}

#[test]
fn memory_that_counts_shared_pages_often_is_told() {
    let analysis = Analysis::new(vec![point("p-2", 2, 0), point("p-4", 4, 0)]).unwrap();
    let plan = analysis.series[0].plan(&"nodes=16,cores=2".parse().unwrap());
    let plan = plan.unwrap();
    assert!(
        plan.notes[0].contains("counts pages that nodes share once for each node"),
        "{plan:?}"
    );
}

#[test]
fn times_between_the_same_calls_are_compared() {
    let section = |nodes: u64, calls: &str, time_ps: u64, window_ps: u64| {
        let mut point = working(nodes, 4000 / nodes, 1_000_000 / nodes);
        point.section = Some(Section {
            calls: calls.to_owned(),
            time_ps,
            window_ps,
        });
        point
    };
    let text = |points: Vec<Point>| Analysis::new(points).unwrap().text();
    let calls = "MPI_Barrier:2 to MPI_Barrier:9";
    let told = text(vec![
        section(1, calls, 7_000_000, 0),
        section(2, calls, 4_000_000, 0),
    ]);
    // The windows say nothing about the speed, the same calls do.
    assert!(
        told.contains("The same calls of each run: MPI_Barrier:2 to MPI_Barrier:9"),
        "{told}"
    );
    assert!(
        told.contains("faster than the first            1.000       1.750"),
        "{told}"
    );
    assert!(!told.contains("of it in windows"), "{told}");
    // Clocks in windows are others.
    let told = text(vec![
        section(1, calls, 7_000_000, 700_000),
        section(2, calls, 4_000_000, 4_000),
    ]);
    assert!(told.contains("10.0 %       0.1 %"), "{told}");
    assert!(
        told.contains("--from and --to choose calls inside or outside the windows"),
        "{told}"
    );
    assert!(!told.contains("faster than"), "{told}");
    let told = text(vec![
        section(1, calls, 7_000_000, 0),
        section(2, "others", 4_000_000, 0),
    ]);
    assert!(
        told.contains("do not compare; read all runs anew"),
        "{told}"
    );
}

#[test]
fn plans_that_cannot_be_made_are_refused() {
    let one = Analysis::new(vec![point("p-1", 1, 0)]).unwrap();
    let request: PlanRequest = "nodes=8,cores=1".parse().unwrap();
    let error = one.series[0].plan(&request).unwrap_err();
    // A run of a single node does not count.
    assert!(matches!(error, PlanError::TooFew { found: 0, .. }));
    let tiny: PlanRequest = "nodes=8,cores=1,host-memory=120 MiB".parse().unwrap();
    let error = three().series[0].plan(&tiny).unwrap_err();
    assert_eq!(
        error,
        PlanError::Memory {
            series: "p".into(),
            need: 150,
            have: 120
        }
    );
}

#[test]
fn the_json_of_an_analysis_gives_the_analysis_again() {
    let folder = tempfile::tempdir().unwrap();
    let analysis = three();
    let file = folder.path().join("scaling.json");
    fs::write(&file, analysis.json()).unwrap();
    let again = Analysis::new(read(&[file], None, None).unwrap()).unwrap();
    assert_eq!(again, analysis);
    assert_eq!(again.text(), analysis.text());
}

#[test]
fn folders_are_read_and_those_without_a_report_named() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("p-1");
    fs::create_dir(&run).unwrap();
    let paths: [PathBuf; 1] = [run.clone()];
    let error = read(&paths, None, None).unwrap_err();
    assert!(matches!(error, ReadError::NoReport(path) if path == run));
    fs::write(run.join("report.json"), report("p-1", 1, 0).to_string()).unwrap();
    let points = read(&paths, Some("steps"), None).unwrap();
    assert!(points[0].host.is_none() && points[0].window.is_some());
    let error = read(&paths, Some("other"), None).unwrap_err();
    assert!(
        matches!(error, ReadError::Point { source: PointError::NoWindow(name), .. } if name == "other")
    );
}

#[test]
fn of_several_programs_one_must_be_chosen() {
    let mut value = report("p-1", 1, 0);
    let mut second = value["mpi"]["programs"][0].clone();
    second["name"] = json!("q");
    second["ranks"]
        .as_array_mut()
        .unwrap()
        .push(json!({"rank": 1}));
    (second["from_ps"], second["to_ps"]) = (json!(20_000_000), json!(30_000_000));
    value["mpi"]["programs"]
        .as_array_mut()
        .unwrap()
        .push(second);
    let read = |value: &Value, program| Point::read(&value.to_string(), None, None, program);
    for program in [None, Some(2)] {
        let error = read(&value, program).unwrap_err();
        assert!(error.to_string().contains("--program N: 0: p, "), "{error}");
    }
    let alone = read(&report("p-1", 1, 0), None).unwrap();
    assert_eq!(read(&value, Some(0)).unwrap(), alone);
    // The window is of the first program's time.
    let error = read(&value, Some(1)).unwrap_err();
    assert!(
        matches!(
            error,
            PointError::Shared {
                program: 1,
                other: 0,
                ..
            }
        ),
        "{error}"
    );
    value["windows"] = json!([]);
    let second = read(&value, Some(1)).unwrap();
    assert_eq!(second.ranks, alone.ranks + 1);
    assert_eq!(second.mpi.from_ps, 20_000_000);
}

#[test]
fn damaged_results_are_refused() {
    let whole = report("p-1", 1, 0);
    let read = |value: &Value| Point::read(&value.to_string(), None, None, None).unwrap_err();
    let mut value = whole.clone();
    value["version"] = json!(2);
    assert!(matches!(
        read(&value),
        PointError::Version {
            found: 2,
            read: 4,
            ..
        }
    ));
    let mut value = whole.clone();
    value["windows"][0]["scopes"][1]["cycles_65536"] = json!(1);
    assert!(matches!(read(&value), PointError::Sum { cycles: 1, .. }));
    let mut value = whole.clone();
    value["mpi"] = Value::Null;
    assert_eq!(read(&value), PointError::NoCalls);
    let mut value = whole;
    value["network"] = json!(7);
    assert!(matches!(
        read(&value),
        PointError::Damaged {
            file: "report.json",
            ..
        }
    ));
    let told = Point::read("{", None, None, None).unwrap_err().to_string();
    assert!(
        told.starts_with("report.json is damaged or of another form"),
        "{told}"
    );
}

#[test]
fn runs_on_equal_numbers_of_nodes_are_refused() {
    let twice = Analysis::new(vec![point("p-2", 2, 0), point("p", 2, 0)]).unwrap_err();
    assert!(matches!(twice, AnalysisError::Twice { nodes: 2, .. }));
    assert_eq!(Analysis::new(Vec::new()).unwrap_err(), AnalysisError::Empty);
}

#[test]
fn a_single_run_is_drawn_too() {
    let one = Analysis::new(vec![point("p-1", 1, 0)]).unwrap();
    assert!(one.series[0].spreads.is_empty());
    assert_eq!(one.series[0].figures().unwrap().len(), 4);
}

#[test]
fn pages_and_charts_are_well_formed() {
    let analysis = three();
    let page = analysis.html().unwrap();
    let tree = roxmltree::Document::parse_with_options(
        &page,
        roxmltree::ParsingOptions {
            allow_dtd: true,
            ..Default::default()
        },
    );
    let tree = tree.unwrap();
    assert_eq!(
        tree.descendants()
            .filter(|node| node.has_tag_name("section"))
            .count(),
        5
    );
    let figures = analysis.series[0].figures().unwrap();
    assert_eq!(
        figures.iter().map(|f| f.name).collect::<Vec<_>>(),
        ["calls", "cpi", "flops", "host"]
    );
    for figure in figures {
        assert!(
            roxmltree::Document::parse(&figure.svg).is_ok(),
            "{}",
            figure.name
        );
    }
}

/// Returns a run whose window did `flops` operations within `measured` ps.
fn working(nodes: u64, flops: u64, measured: u64) -> Point {
    let mut report = report(&format!("p-{nodes}"), nodes, 0);
    let window = &mut report["windows"][0];
    window["trigger"] = json!("MPI_Barrier 3 of rank 0");
    window["measured_from_ps"] = json!(window["closed_ps"].as_u64().unwrap() - measured);
    let scope = &mut window["scopes"][1];
    scope["instructions"] = json!(1_000_000);
    scope["flops"]["total"] = json!(flops);
    scope["privileges"] = json!([{"loads": 10, "stores": 5}, {"loads": 1, "stores": 1}]);
    Point::read(&report.to_string(), None, None, None).unwrap()
}

#[test]
fn windows_of_different_work_are_not_compared_as_equal() {
    // Half of the operations in half of the time: as fast, not twice as fast.
    let points = vec![working(1, 4000, 1_000_000), working(2, 2000, 500_000)];
    let analysis = Analysis::new(points).unwrap();
    let work = analysis.series[0].different_work().unwrap();
    assert_eq!(
        work.ratios[0],
        ("floating-point operations", vec![Some(1.0), Some(0.5)])
    );
    assert_eq!(work.ratios[1].1, [Some(1.0), Some(1.0)]);
    assert_eq!(work.ratios[2], ("loads", vec![Some(1.0), Some(1.0)]));
    assert!(work.speeds.is_empty());
    assert!(!work.grows_with_ranks && work.triggers.is_empty());
    let text = analysis.text();
    let told = text.find("The windows did different work");
    assert!(
        told.is_some() && told < text.find("window, virtual time"),
        "{text}"
    );
    assert!(text.contains("no run is said to be faster"), "{text}");
    assert!(!text.contains("  faster"), "{text}");
    assert!(
        analysis
            .html()
            .unwrap()
            .contains("The windows did different work")
    );

    // Equal work, and windows from which the work is not known.
    let equal = vec![working(1, 4000, 1_000_000), working(2, 4010, 500_000)];
    let equal = Analysis::new(equal).unwrap();
    assert_eq!(equal.series[0].different_work(), None);
    // The window's work was done in half of the time, whatever the warm-up took.
    assert!(
        equal
            .text()
            .contains("faster than the first            1.000       2.000"),
        "{}",
        equal.text()
    );

    // Twice the work on twice the ranks is weak scaling. Instructions count, too.
    let mut weak = vec![working(1, 4000, 1_000_000), working(2, 8000, 1_000_000)];
    let window = weak[1].window.as_mut().unwrap();
    window.instructions = 2_000_000;
    (window.loads, window.stores) = (Some(22), Some(12));
    window.instructions_in_mpi = 10;
    let weak = Analysis::new(weak).unwrap();
    let work = weak.series[0].different_work().unwrap();
    assert!(work.grows_with_ranks);
    assert_eq!(work.speeds, [Some(1.0), Some(2.0)]);
    assert!(weak.text().contains("the program scales weakly"));

    let mut other = vec![working(1, 4000, 1_000_000), working(2, 4000, 500_000)];
    other[1].window.as_mut().unwrap().trigger = Some("at 2 s".into());
    let other = Analysis::new(other).unwrap();
    assert!(
        other
            .text()
            .contains("opened at different events: MPI_Barrier 3 of rank 0; at 2 s")
    );
}

#[test]
fn costs_of_the_host_have_a_unit_that_suits_them() {
    let mut analysis = three();
    let request: PlanRequest = "nodes=4,cores=2".parse().unwrap();
    let mut plan = analysis.series[0].plan(&request).unwrap();
    plan.core_hours = 9.4 / 3600.0;
    plan.core_hours_by_instruction = 300.0 / 3600.0;
    plan.hours = [0.78 / 3600.0, 2.0];
    plan.phases[0].cpu_seconds = 9.4;
    plan.phases[1].cpu_seconds = 47.2 * 3600.0;
    analysis.series[0].plan = Some(plan);
    let text = analysis.text();
    for told in [
        "9.4 core seconds by the fit, 5.0 core minutes by instructions; 0.78 seconds to 2.00 hours on",
        "instructions: 9.4 core seconds by the fit",
        "instructions: 47.2 core hours by the fit",
    ] {
        assert!(text.contains(told), "{told}: {text}");
    }
    assert!(!text.contains(" 0.0 core"), "{text}");
}
