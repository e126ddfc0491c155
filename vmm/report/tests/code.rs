//! Tests of a window's code in the report: functions, lines, machine code, MPI, roofline, and the page.

#[path = "../../profile/tests/support/mod.rs"]
mod profiles;
#[path = "support/solver.rs"]
mod solver;
mod support;

use std::collections::BTreeMap;
use std::path::Path;

use nodescope_plugin_api::{Cause, Context, Privilege, StallTerm, Statistic, Term, Timed};
use nodescope_profile::{
    ContendedLine, LineUse, NominalCore, Scope as ProfileScope, Variable, WindowProfile,
};
use nodescope_report::{
    CYCLE, CodeCosts, CodeReport, CoreCpi, ModelledCore, Report, ReportInput, Scope, ScopeKind,
    WindowCores, build,
};
use nodescope_window::{Bandwidth, CoreRecord, MemorySpec, NumaConfig};
use serde_json::Value;
use solver::{record, with_code};
use support::GHZ;

fn built(change: impl FnOnce(&mut ReportInput)) -> Report {
    let folder = tempfile::tempdir().unwrap();
    let mut input = with_code(folder.path());
    change(&mut input);
    build(&input).unwrap()
}

fn code(report: &Report) -> &CodeReport {
    report.windows[0].code.as_ref().unwrap()
}

#[test]
fn the_code_is_the_golden_one() {
    let text = built(|_| {}).text();
    let text = text.split_once("Code of window").unwrap().1;
    let text = text.split_once("MPI profile of the whole run").unwrap().0;
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "{line}");
        assert_eq!(line, line.trim_end());
    }
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/code.txt");
    if std::env::var_os("NODESCOPE_BLESS").is_some() {
        std::fs::write(&golden, text).unwrap();
    }
    let expected = std::fs::read_to_string(&golden).unwrap();
    assert_eq!(
        text, expected,
        "set NODESCOPE_BLESS=1 to accept the new text"
    );
}

#[test]
fn lists_add_up_exactly_and_to_the_breakdown() {
    for count in [0, 300] {
        let report = built(|input| {
            // Many functions that cost next to nothing.
            let profile = &mut input.profiles.as_mut().unwrap().windows[0];
            for n in 0..count {
                let mut function = profile.functions[0].clone();
                function.name = format!("rare{n}");
                let mut block = profile.blocks[0].clone();
                block.function = profile.functions.len() as u32;
                profile.functions.push(function);
                let mut counts = profile.counts[0].clone();
                counts.block = profile.blocks.len() as u32;
                counts.counts.executions = 1;
                profile.blocks.push(block);
                profile.counts.push(counts);
            }
            let profile = profile.clone();
            input.windows.windows = vec![record(&profile)];
        });
        let code = code(&report);
        assert!(code.notes.iter().all(|note| !note.contains("counters")));
        let total = &code.total;
        let functions = code.functions.iter().map(|row| &row.costs);
        let lines = code.lines.iter().map(|row| &row.costs);
        let mpi = code.mpi.iter().map(|row| &row.costs);
        let rest = [&code.other_functions.costs];
        let other_lines = [&code.other_lines.costs];
        let sums = [
            functions.chain(rest).collect::<Vec<_>>(),
            lines.chain(other_lines).collect(),
            mpi.chain([&code.outside_mpi]).collect(),
        ];
        for sum in sums {
            let cycles: i128 = sum.iter().map(|costs| costs.cycles_65536).sum();
            assert_eq!(cycles, total.cycles_65536);
            let instructions: u128 = sum.iter().map(|costs| costs.instructions).sum();
            assert_eq!(instructions, total.instructions);
            let operations: u128 = sum.iter().map(|costs| costs.flops).sum();
            assert_eq!(operations, total.flops);
            for costs in sum {
                let terms: i128 = costs.terms.iter().map(|term| term.cycles_65536).sum();
                assert_eq!(terms, costs.cycles_65536);
            }
        }
        assert!(code.other_functions.count >= count);
        // The breakdown has the same cycles.
        let scope = report.windows[0].scopes.last().unwrap();
        assert_eq!(scope.cycles_65536, total.cycles_65536);
        assert_eq!(
            scope.flops.total, total.flops,
            "the counters are the profile's"
        );
    }
}

#[test]
fn functions_lines_and_blocks_by_hand() {
    let report = built(|_| {});
    let code = code(&report);
    let relax = &code.functions[0];
    assert!(relax.function.starts_with("relax("));
    // 1,200,000 executions of 6 instructions at CPI 1, and three times the stalls of rank 0.
    assert_eq!(relax.costs.executions, 1_200_000);
    assert_eq!(relax.costs.instructions, 7_200_000);
    let stalls = 3 * (330_003 + 480_001 + 700_000 + 2_000_000 + 1_100_000);
    assert_eq!(
        relax.costs.cycles_65536,
        (7_200_000 + stalls) as i128 * 65_536
    );
    assert_eq!(relax.costs.flops, 9_600_000);
    let per_byte = 9_600_000.0 / (64.0 * 3.0 * 25_000.0);
    assert_eq!(relax.costs.flops_per_byte, Some(per_byte));
    // Three of the function's six instructions are of line 41, two of line 42, one of the inlined function.
    let line = |number, file: &str| {
        let mut lines = code.lines.iter();
        let found = lines.find(|row| {
            row.line == Some(number) && row.file.as_ref().is_some_and(|name| name.ends_with(file))
        });
        found.unwrap().costs.instructions
    };
    assert_eq!(line(41, "solver.cpp"), 3_600_000);
    assert_eq!(line(42, "solver.cpp"), 2_400_000);
    assert_eq!(line(17, "grid.hpp"), 1_200_000);

    let block = &code.blocks[0];
    assert_eq!(block.address, 0x1540);
    assert_eq!(block.core_per_execution, 6.0);
    assert_eq!(block.stalls_per_execution, stalls as f64 / 1_200_000.0);
    let text: Vec<&str> = block.instructions.iter().map(|i| i.text.as_str()).collect();
    assert_eq!(text[0], "vmovupd (%rsi,%rax), %ymm0");
    assert_eq!(text[5], "jne 0x1540");
    assert!(block.instructions[0].inlined[0].starts_with("grid::Field"));
    assert_eq!(
        block.instructions[3].source.as_deref(),
        Some("/home/user/heat/src/solver.cpp:41")
    );

    let names: Vec<&str> = code.mpi.iter().map(|mpi| mpi.function.as_str()).collect();
    assert_eq!(names, ["MPI_Allreduce", "MPI_Send"]);
    assert_eq!(code.mpi[0].functions[0].function, "opal_progress");
    for mpi in &code.mpi {
        let paths: Vec<_> = mpi.paths.iter().map(|path| &path.frames[..]).collect();
        assert_eq!(paths, [["main"]]);
        assert_eq!(mpi.paths[0].cycles_65536, mpi.costs.cycles_65536);
    }
}

#[test]
fn the_roofline_has_the_studys_latencies() {
    let report = built(|_| {});
    let roofline = &code(&report).roofline;
    assert_eq!(roofline.widest, Some("packed256_double"));
    assert_eq!(roofline.peak_flops, 8.0 * GHZ as f64);
    let ceilings: Vec<_> = roofline
        .ceilings
        .iter()
        .map(|c| (c.level, c.latency))
        .collect();
    // Level 1 misses cost 3, level 2 misses 12, level 3 misses 35 cycles; memory 100 and 220.
    assert_eq!(ceilings[0], ("L1", 0));
    assert_eq!(ceilings[3], ("memory", 3 + 12 + 35 + 100));
    assert_eq!(ceilings[4], ("memory_remote", 3 + 12 + 35 + 220));
    let relax = &roofline.functions[0];
    let memory = relax.levels.iter().find(|l| l.level == "memory").unwrap();
    assert_eq!(memory.bytes, 64 * 75_000);
    assert_eq!(memory.flops_per_byte, Some(2.0));
    for row in &roofline.functions {
        assert!(row.limit_flops <= roofline.peak_flops);
    }
}

#[test]
fn the_roofline_has_stated_bandwidths() {
    let told = "The study states no bandwidth of memory (memory.local_bandwidth)";
    let unstated = built(|_| {});
    assert!(one_line(&unstated.text()).contains(told));
    let report = built(|input| {
        let models = &mut input.windows.windows[0].spec.models;
        models.memory = Some(MemorySpec::Numa {
            latency: NumaConfig::default_latency(),
            write_back: NumaConfig::default_write_back(),
            bandwidth: Some(Bandwidth {
                local: Some(2_000_000_000),
                remote: None,
            }),
        });
    });
    let roofline = &code(&report).roofline;
    let memory = roofline.ceilings.iter().find(|c| c.level == "memory");
    let memory = memory.unwrap();
    assert_eq!(memory.stated_bytes_per_second, Some(2_000_000_000));
    let share = memory.stated_share.unwrap();
    assert!(share <= 2e9 && 2e9 / share == (2e9 / share).round());
    let remote = roofline
        .ceilings
        .iter()
        .find(|c| c.level == "memory_remote");
    assert_eq!(remote.unwrap().stated_bytes_per_second, None);
    // Two FLOPs for each byte of memory: the stated bandwidth is what limits the function there.
    let relax = &roofline.functions[0];
    let before = &code(&unstated).roofline.functions[0];
    assert_eq!((relax.limit, before.limit), ("memory", "memory"));
    assert_eq!(relax.limit_flops, 2.0 * share);
    assert_ne!(relax.limit_flops, before.limit_flops);
    let text = one_line(&report.text());
    assert!(
        text.contains("2.000 GB/s of a socket") && !text.contains(told),
        "{text}"
    );
}

/// Returns a text without its line breaks and indentation.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn further_cores_have_a_column() {
    let folder = tempfile::tempdir().unwrap();
    let mut input = with_code(folder.path());
    input.core = CoreCpi::Replaced {
        cpi: 0.5,
        source: "perf".into(),
    };
    let profile = &input.profiles.as_ref().unwrap().windows[0];
    let blocks = profile.blocks.iter();
    input.models = vec![WindowCores {
        window: profile.name.clone(),
        cores: vec![ModelledCore {
            name: "slow".into(),
            source: "a test".into(),
            published_error: "none".into(),
            cycles_65536: blocks
                .map(|block| i128::from(block.instructions) * 131_072)
                .collect(),
            coverage: 1.0,
            not_modelled: Vec::new(),
        }],
    }];
    let report = build(&input).unwrap();
    let code = code(&report);
    assert_eq!(code.cores, ["the nominal CPI", "replaced", "slow"]);
    for costs in code.functions.iter().map(|row| &row.costs) {
        let [half, twice] = &costs.further_cores[..] else {
            panic!("{costs:?}");
        };
        // Partial executions are rounded down.
        let instructions = costs.instructions as i128;
        assert!((half.cycles_65536 - instructions * 32_768).abs() <= 2);
        let long = costs.terms[0].cycles_65536 - instructions * 65_536;
        assert_eq!(twice.cycles_65536, instructions * 131_072 + long);
    }
    let text = report.text();
    assert!(text.contains("core: replaced") && text.contains("core: slow"));
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
}

#[test]
fn a_modelled_core_replaces_the_nominal_one_in_the_stack() {
    let folder = tempfile::tempdir().unwrap();
    let nominal = build(&with_code(folder.path())).unwrap();
    let mut input = with_code(folder.path());
    let profile = &input.profiles.as_ref().unwrap().windows[0];
    let core = |name: &str, half_cycles: i128| ModelledCore {
        name: name.into(),
        source: format!("a test of {name}"),
        published_error: "none".into(),
        cycles_65536: (profile.blocks.iter())
            .map(|block| i128::from(block.instructions) * half_cycles * 32_768)
            .collect(),
        coverage: 1.0,
        not_modelled: vec![(1, "a reason".into())],
    };
    input.models = vec![WindowCores {
        window: profile.name.clone(),
        cores: vec![core("quick", 1), core("slow", 3)],
    }];
    input.core = CoreCpi::Modelled {
        source: "a test".into(),
    };
    input.memory_parallelism = 4.0;
    let report = build(&input).unwrap();
    let of = |scope: &Scope, name: &str| {
        let mut terms = scope.terms.iter().filter(|term| term.term == name);
        terms.next().unwrap().cycles_65536
    };
    let (before, after) = (&nominal.windows[0], &report.windows[0]);
    for (before, after) in before.scopes.iter().zip(&after.scopes) {
        // The nominal CPI is 1; the cycles of long instructions are added to either core.
        let gone = of(before, "core") - of(after, "core");
        let half = before.instructions as i128 * 32_768;
        // Partial executions are rounded down, for each context.
        assert!((gone - half).abs() <= 64, "{}: {gone} {half}", before.name);
        assert_eq!(before.cycles_65536 - after.cycles_65536, gone);
        if let Some(clock) = after.clock {
            assert!(clock.consistent, "{clock:?}");
        }
    }
    let [quick, slow] = &after.cores[..] else {
        panic!("{:?}", after.cores);
    };
    for ((quick, slow), scope) in quick.scopes.iter().zip(&slow.scopes).zip(&after.scopes) {
        assert_eq!(quick.cpi, scope.cpi);
        assert_eq!(quick.published_flops, scope.flops.published_per_second);
        let (Some(cpi), Some(stalls), Some(overlapped)) =
            (quick.cpi, quick.stall_cpi, quick.overlapped_cpi)
        else {
            assert_eq!(scope.instructions, 0);
            continue;
        };
        assert!((cpi - 0.75 * stalls - overlapped).abs() < 1e-12);
        assert!((slow.core_cpi.unwrap() - quick.core_cpi.unwrap() - 1.0).abs() < 1e-3);
        assert_eq!(slow.stall_cpi, quick.stall_cpi);
        assert_eq!(slow.mpi_cpi, quick.mpi_cpi);
    }
    assert_eq!(quick.not_modelled[0].reason, "a reason");
    assert_eq!(code(&report).cores, ["quick", "slow"]);
    let text = report.text();
    assert!(text.contains("modelled by basic block (a test)") && text.contains("overlapped"));
}

#[test]
fn counts_that_differ_from_the_windows_are_told() {
    let report = built(|input| {
        let profile = &mut input.profiles.as_mut().unwrap().windows[0];
        profile.counts.pop();
    });
    let notes = &code(&report).notes;
    assert!(
        notes
            .iter()
            .any(|note| note.contains("the window's counters have"))
    );
}

#[test]
fn source_lines_stand_beside_their_machine_code() {
    let mut report = built(|_| {});
    let known = code(&report).lines.iter().find(|row| row.line.is_some());
    let (file, line) = known
        .map(|row| (row.file.clone().unwrap(), row.line.unwrap()))
        .unwrap();
    let html = report.html();
    let name = file.rsplit('/').next().unwrap();
    let button = format!("title=\"{file}:{line}\">{name}:{line}</button>");
    assert!(html.contains(&button), "{button}");
    assert!(!html.contains("<th class=\"name\" title=\"Text of the line.\">"));
    // Each instruction of the line has the line's number.
    let (before, _) = html.split_once(&button).unwrap();
    let (_, number) = before.rsplit_once("<tr data-line=\"").unwrap();
    let number = number.split('"').next().unwrap();
    let row = format!("<tr data-line=\"{number}\"><td class=\"name\">");
    assert!(html.matches(&row).count() > 1);

    let text = |number: u32| format!("text <&> of line {number}\n");
    report.add_sources(|path| (path == file).then(|| (1..=line).map(text).collect()));
    let html = report.html();
    let shown = format!("<td class=\"name text\">text &lt;&amp;&gt; of line {line}</td>");
    assert!(html.contains(&shown), "{shown}");
    assert!(html.contains("title=\"Text of the line.\""));
}

#[test]
fn without_a_profile_nothing_is_new() {
    let report = built(|input| input.profiles = None);
    assert!(!report.json().contains("\"code\""));
    assert!(
        !report.html().contains("class=\"flame\"") && !report.html().contains("class=\"code\"")
    );
    assert!(!report.text().contains("Code of window"));
    // A window without a profile has no code, either.
    let report = built(|input| input.profiles.as_mut().unwrap().windows[0].name = "x".into());
    assert!(report.windows[0].code.is_none());
}

#[test]
fn the_page_is_xml_and_loads_nothing() {
    let mut input = None;
    let report = built(|given| {
        let profile = &mut given.profiles.as_mut().unwrap().windows[0];
        profile.functions[profiles::RELAX as usize].name = "<script>&\"\u{1b}[31m".into();
        profile.modules[0].name = "]]>\u{0}".into();
        input = Some(given.study.clone());
    });
    let (first, second) = (report.html(), report.html());
    assert_eq!(first, second);
    let options = roxmltree::ParsingOptions {
        allow_dtd: true,
        ..Default::default()
    };
    let page = roxmltree::Document::parse_with_options(&first, options).unwrap();
    let mut scripts = 0;
    for node in page.descendants().filter(roxmltree::Node::is_element) {
        let tag = node.tag_name().name();
        assert!(!["link", "img", "iframe", "image", "object", "use", "base"].contains(&tag));
        for attribute in node.attributes() {
            let leads_away = ["href", "src", "action"].contains(&attribute.name())
                && !attribute.value().starts_with('#');
            assert!(!leads_away, "{attribute:?}");
            assert!(!attribute.value().contains("url(") && !attribute.value().contains("://"));
        }
        if tag == "script" {
            scripts += 1;
            let text = node.text().unwrap();
            // Data have any letters.
            if node.attribute("type").is_some() {
                continue;
            }
            for word in ["fetch", "XMLHttp", "import", "eval", "://", "innerHTML"] {
                assert!(!text.contains(word), "{word}");
            }
            // What would end or hide a script in HTML. XML has been parsed already.
            assert!(!text.contains("</") && !text.contains("<!--"));
        }
    }
    // Scripts sort tables, open sections, and drive the flame graph and the timeline. One has the timeline's data.
    assert_eq!(scripts, 5);
    let json: Value = serde_json::from_str(&report.json()).unwrap();
    let cycles = &json["windows"][0]["code"]["total"]["cycles_65536"];
    assert!(cycles.is_number());
    assert!(!report.text().contains('\u{1b}'));
}

#[test]
fn a_window_without_counts_has_empty_lists() {
    let report = built(|input| {
        let profile = &mut input.profiles.as_mut().unwrap().windows[0];
        *profile = WindowProfile {
            name: "solve".into(),
            ..WindowProfile::default()
        };
    });
    let code = code(&report);
    assert!(code.functions.is_empty() && code.blocks.is_empty());
    assert_eq!(code.total.share, None);
    assert!(report.html().contains("Flame graph"));
    assert!(report.text().contains("Functions by cycles"));
}

#[test]
fn contended_lines_have_data_code_and_a_finding() {
    let user = |vcpu: u16, instruction, write, cycles| LineUse {
        vcpu,
        context: 1,
        block: 1,
        instruction,
        write,
        locked: false,
        touched: 0xff << (8 * vcpu),
        taken: 10,
        cycles,
    };
    let report = |uses: Vec<LineUse>, variable: Option<Variable>| {
        built(|input| {
            let line = ContendedLine {
                node: 0,
                physical: 0x7_1040,
                size: 64,
                address: 0x40_4040,
                variable,
                uses,
            };
            input.profiles.as_mut().unwrap().windows[0].contended = vec![line];
        })
    };
    let sums = Variable {
        module: "/job/solver".into(),
        name: "sums".into(),
        offset: -8,
    };
    let cycles = {
        let report = built(|_| ());
        code(&report).total.cycles_65536 / 65536
    };
    let (most, least) = (cycles as u64 / 10, cycles as u64 / 20);
    let apart = report(
        vec![user(0, 0, true, least), user(1, 0, true, most)],
        Some(sums),
    );
    let line = &code(&apart).contended_lines[0];
    assert!(!line.true_sharing);
    assert_eq!((line.taken, line.cycles), (20, most + least));
    let vcpus: Vec<_> = (line.places.iter())
        .map(|place| (place.vcpus[0].vcpu, place.bytes.clone(), place.cycles))
        .collect();
    assert_eq!(vcpus, [(1, vec![(8, 15)], most), (0, vec![(0, 7)], least)]);
    // The finding has several lines.
    let text = apart.text().replace("\n     ", " ");
    for expected in [
        "Contended lines",
        "sums",
        "false",
        "8-15",
        "(false sharing)",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert!(apart.html().contains("Contended lines"));
    let json: Value = serde_json::from_str(&apart.json()).unwrap();
    let found = json["findings"].as_array().unwrap().iter();
    let of_lines: Vec<_> = found
        .filter(|finding| finding["finding"] == "contended_lines")
        .collect();
    assert_eq!(of_lines.len(), 1);
    assert_eq!(of_lines[0]["data"], "sums");

    // A reader of bytes that another vCPU writes shares them. Without a variable, the address names the data.
    let mut reader = user(1, 0, false, most);
    reader.touched = 0xff;
    let together = report(vec![user(0, 0, true, 0), reader], None);
    assert!(code(&together).contended_lines[0].true_sharing);
    assert!(together.text().contains("0x404040"));
    // A line that costs nothing has no row and no finding.
    let cheap = report(vec![user(0, 0, true, 0), user(1, 0, true, 0)], None);
    assert!(!cheap.text().contains("Contended lines"));
}

#[test]
fn cycles_of_a_modelled_core_are_shown_by_cause_and_add_up() {
    let report = built(|input| {
        let nodes = &mut input.windows.windows[0].nodes;
        for node in nodes.iter_mut() {
            node.core = Some(CoreRecord {
                core: "AMD Zen 4".into(),
                timed: Timed {
                    recordings: 10,
                    instructions: 30_000,
                    cycles: 24_000,
                    // The recordings have 0.7 and 0.9 cycles per instruction.
                    squared_cpi: ((5.0 * 0.49 + 5.0 * 0.81) * 2f64.powi(32)) as u64,
                },
                intervals: Vec::new(),
            });
        }
        let profile = &mut input.profiles.as_mut().unwrap().windows[0];
        for count in &mut profile.counts {
            let block = &profile.blocks[count.block as usize];
            let instructions = count.counts.instructions(block.instructions) as i64;
            // Half a cycle of the core, and a quarter of a cycle of memory, for each instruction.
            count.counts.core_cycles[Cause::Core as usize] = instructions << 15;
            count.counts.core_cycles[Cause::LocalMemory as usize] = instructions << 14;
        }
    });
    let window = &report.windows[0];
    let timed = window.timed.as_ref().unwrap();
    assert_eq!(timed.scopes.len(), window.scopes.len());
    assert_eq!((timed.recordings, timed.timed_cpi), (20, Some(0.8)));
    // The standard deviation is 0.1.
    let half = timed.timed_cpi_interval.unwrap();
    assert!((half - 1.96 * 0.1026 / 20f64.sqrt()).abs() < 1e-4, "{half}");
    for (scope, of_core) in window.scopes.iter().zip(&timed.scopes) {
        let sum: i128 = of_core.terms.iter().map(|term| term.cycles_65536).sum();
        assert_eq!(sum, of_core.cycles_65536);
        let all = scope.instructions + scope.instructions_in_mpi;
        assert_eq!(sum, all as i128 * (CYCLE * 3 / 4));
        // Clocks that count exposed stalls cannot be checked against all stalls.
        assert_eq!(scope.clock, None);
    }
    let code = window.code.as_ref().unwrap();
    let short = report.short("r");
    for line in [
        // Cycles inside MPI are a term beside those of the causes.
        "CPI stack   window \"solve\", CPI 0.8129: core 62 %, mem loc 31 %, MPI 7.7 %\n",
        "core        AMD Zen 4, timed by micro-operation on 20 recordings: misses overlap\n",
    ] {
        assert!(short.contains(line), "{line}{short}");
    }
    let causes = |costs: &CodeCosts| costs.causes.iter().map(|c| c.cycles_65536).sum::<i128>();
    let functions: i128 = code.functions.iter().map(|row| causes(&row.costs)).sum();
    let functions = functions + causes(&code.other_functions.costs);
    assert_eq!(functions, causes(&code.total));
    let lines: i128 = code.lines.iter().map(|row| causes(&row.costs)).sum();
    let lines = lines + causes(&code.other_lines.costs);
    assert_eq!(lines, causes(&code.total));
    let text = report.text();
    assert!(text.contains("CPI by cause on AMD Zen 4"), "{text}");
    assert!(text.contains("CPI of these functions by cause"), "{text}");
    assert!(text.contains("CPI of these lines by cause"), "{text}");
    assert!(text.contains("their CPI is 0.800"), "{text}");
}

#[test]
fn code_that_waits_for_threads_is_a_term_of_its_own() {
    let terms = |report: &Report| -> BTreeMap<String, i128> {
        let scopes = &report.windows[0].scopes;
        let ranks = scopes.iter().find(|scope| scope.kind == ScopeKind::Ranks);
        let terms = ranks.unwrap().terms.iter();
        terms
            .map(|term| (term.term.clone(), term.cycles_65536))
            .collect()
    };
    // The models account for every stall of the profile.
    let events = |input: &mut ReportInput| {
        let profile = &input.profiles.as_ref().unwrap().windows[0];
        let core = NominalCore {
            profile,
            cpi_65536: 65_536,
        };
        for node in &mut input.windows.windows[0].nodes {
            for context in 0..node.owners.len() as u32 {
                let costs = profile.total(ProfileScope::Context(node.node, context), &core);
                let stalls = StallTerm::ALL.into_iter().zip(costs.stalls);
                node.statistics
                    .extend(stalls.map(|(term, cycles)| Statistic {
                        vcpu: 0,
                        context: Context(context),
                        privilege: Privilege::User,
                        event: match term {
                            StallTerm::RemoteMemory => "memory.remote".into(),
                            StallTerm::LocalMemory => "memory.local".into(),
                            level => level.name().into(),
                        },
                        term: match term {
                            StallTerm::Level1 => Term::Cache(1),
                            StallTerm::Level2 => Term::Cache(2),
                            StallTerm::Level3 => Term::Cache(3),
                            _ => Term::Memory,
                        },
                        count: 1,
                        latency: 0,
                        cycles: cycles as u64,
                    }));
            }
        }
    };
    let works = terms(&built(events));
    assert!(!works.contains_key("spinning"));
    // The block of `relax` begins with a PAUSE in place of its first instruction.
    let report = built(|input| {
        events(input);
        let profile = &mut input.profiles.as_mut().unwrap().windows[0];
        let block = profile
            .blocks
            .iter_mut()
            .find(|block| block.offset == 0x1540);
        block.unwrap().bytes[..4].copy_from_slice(&[0xf3, 0x90, 0x90, 0x90]);
    });
    let waits = terms(&report);
    let sum = |terms: &BTreeMap<String, i128>| terms.values().sum::<i128>();
    assert_eq!(sum(&waits), sum(&works));
    let relax = code(&report)
        .blocks
        .iter()
        .find(|block| block.address == 0x1540);
    assert_eq!(waits["spinning"], relax.unwrap().costs.cycles_65536);
    let moved = |term: &str| works[term] - waits[term];
    for term in ["core", "memory_local", "memory_remote"] {
        assert!(moved(term) > 0, "{term}: {waits:?}");
    }
    assert_eq!(moved("mpi"), 0);
    assert!(report.text().contains("spinning"));
}

#[test]
fn threads_that_wait_in_the_runtime_of_openmp_are_a_finding() {
    let find = |runtime: &str| {
        let report = built(|input| {
            let profile = &mut input.profiles.as_mut().unwrap().windows[0];
            // The module of the program, whose functions have most cycles.
            profile.modules[0].name = runtime.into();
        });
        let mut texts = report.findings.into_iter().map(|of| of.text);
        texts.find(|text| text.contains("threads wait for other threads"))
    };
    assert_eq!(find("/home/user/heat/libgomp-tests"), None);
    let text = find("/usr/lib/libgomp.so.1").expect("a finding");
    assert!(
        text.contains("of all cycles: the term \"spinning\""),
        "{text}"
    );
}
