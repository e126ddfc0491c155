//! Tests of the report as text, JSON and HTML, also for incomplete or failed studies.

mod support;

use std::collections::BTreeSet;
use std::path::Path;

use nodescope_hypercall::{Function, MpiRecord, Peer, Tag, ThreadId};
use nodescope_report::compare::compare;
use nodescope_report::{PageSection, Report, ReportError, ReportInput, build};
use nodescope_trace::{Body, Event, Stamp, TraceError, Unfinished};
use nodescope_window::Ending;
use serde_json::Value;
use support::*;

fn full(folder: &Path) -> ReportInput {
    let trace = folder.join("trace");
    write_trace(&trace, &events());
    input(Some(&trace), vec![window(vec![node0(), node1()])])
}

fn built(change: impl FnOnce(&mut ReportInput)) -> Report {
    let folder = tempfile::tempdir().unwrap();
    let mut input = full(folder.path());
    change(&mut input);
    let report = build(&input).unwrap();
    check_page(&report.html());
    check_width(&report.text());
    serde_json::from_str::<Value>(&report.json()).unwrap();
    report
}

fn check_width(text: &str) {
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "{line}");
        assert_eq!(line, line.trim_end());
    }
}

/// Checks that a page is well-formed, and that nothing in it makes a browser load anything.
fn check_page(html: &str) {
    let options = roxmltree::ParsingOptions {
        allow_dtd: true,
        ..Default::default()
    };
    let page = roxmltree::Document::parse_with_options(html, options).unwrap();
    for node in page.descendants().filter(roxmltree::Node::is_element) {
        let tag = node.tag_name().name();
        assert!(
            !["link", "img", "iframe", "image", "object", "use", "base"].contains(&tag),
            "{tag}"
        );
        for attribute in node.attributes() {
            let leads_away = ["href", "src", "xlink:href", "action"].contains(&attribute.name())
                && !attribute.value().starts_with('#');
            assert!(!leads_away, "{attribute:?}");
            assert!(!attribute.value().contains("://"), "{attribute:?}");
            assert!(!attribute.value().contains("url("), "{attribute:?}");
        }
        if tag == "script" {
            let script = node.text().unwrap();
            assert!(!script.contains("://"), "{script}");
        }
        if tag == "style" {
            let style = node.text().unwrap();
            assert!(!style.contains("url(") && !style.contains("@import"));
        }
    }
}

#[test]
fn the_text_is_the_golden_one() {
    let text = built(|_| {}).text();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/report.txt");
    if std::env::var_os("NODESCOPE_BLESS").is_some() {
        std::fs::write(&golden, &text).unwrap();
    }
    let expected = std::fs::read_to_string(&golden).unwrap();
    assert_eq!(
        text, expected,
        "set NODESCOPE_BLESS=1 to accept the new text"
    );
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let (first, second) = (built(|_| {}), built(|_| {}));
    assert_eq!(first.text(), second.text());
    assert_eq!(first.json(), second.json());
    assert_eq!(first.html(), second.html());
}

#[test]
fn json_has_the_exact_figures() {
    let json: Value = serde_json::from_str(&built(|_| {}).json()).unwrap();
    assert_eq!(json["version"], 4);
    let window = &json["windows"][0];
    let rank = &window["scopes"][0];
    assert_eq!(rank["name"], "rank 0");
    assert_eq!(rank["cycles_65536"], 8240 * 65_536);
    let terms = rank["terms"].as_array().unwrap();
    let sum: u64 = terms
        .iter()
        .map(|t| t["cycles_65536"].as_u64().unwrap())
        .sum();
    assert_eq!(sum, 8240 * 65_536);
    assert_eq!(rank["mpi"][0]["function"], "MPI_Allreduce");
    let mpi = &json["mpi"]["programs"][0];
    assert_eq!(
        (&mpi["name"], &mpi["world_size"]),
        (&"hpcc".into(), &3.into())
    );
    let functions = mpi["functions"].as_array().unwrap();
    let send = functions
        .iter()
        .find(|f| f["function"] == "MPI_Send")
        .unwrap();
    assert_eq!(send["calls"], 2);
    assert_eq!(send["send_bytes"], 4096 + (1 << 20));
    assert_eq!(send["time_ps"], 500_000 + 1_700_000);
    assert_eq!(send["mean_ps"], 1_100_000.0);
    assert_eq!(send["max_ps"], 1_700_000);
    // Two calls in the 7 us from 0.7 us to 7.7 us.
    let rate = send["calls_per_second"].as_f64().unwrap();
    assert!((rate * 7e-6 - 2.0).abs() < 1e-9, "{rate}");
    assert_eq!(mpi["matrix"][0]["bytes"], 1 << 20);
    assert_eq!(mpi["matrix"][1]["from"], 1);
    assert_eq!(json["sources"].as_array().unwrap().len(), 9);
}

#[test]
fn a_rank_without_events_is_listed() {
    let report = built(|_| {});
    let ranks = &report.mpi.as_ref().unwrap().programs[0].ranks;
    assert_eq!(ranks.len(), 3);
    assert_eq!((ranks[2].rank, ranks[2].calls, ranks[2].time_ps), (2, 0, 0));
    assert_eq!(ranks[2].node.as_deref(), Some("node1"));
}

#[test]
fn html_shows_charts_and_escapes_names() {
    let html = built(|_| {}).html();
    assert_eq!(html.matches("<svg").count(), 2);
    assert_eq!(html.matches("class=\"stack\"").count(), 1);
    assert!(html.contains("hpcc &lt;default&gt; &amp; more"));
    assert!(html.contains("MPI_Allreduce"));
    let html = built(|input| {
        input.study.name = "a\u{1b}[31m \"<script>\" ]]> \u{0}".into();
        input.windows.windows[0].name = "<b>".into();
    })
    .html();
    // The page has no script but its own: sorting, sections and choices, the timeline, and the timeline's data.
    assert_eq!(html.matches("<script").count(), 4);
    assert!(!html.contains("\"<script>\"") && !html.contains("<b>"));
    let text = built(|input| input.windows.windows[0].name = "a\u{1b}[31m".into()).text();
    assert!(!text.contains('\u{1b}'));
}

#[test]
fn the_page_of_a_comparison_has_both_runs() {
    let [a, b] = [
        built(|_| {}),
        built(|input| input.study.name = "<b>".into()),
    ];
    let sides = ["one".to_owned(), "<other>".to_owned()];
    let page = compare(sides, &a, &b, Vec::new()).html([&a, &b]);
    check_page(&page);
    for part in [
        "&lt;other&gt;",
        "Timeline of MPI calls of A",
        "Timeline of MPI calls of B",
    ] {
        assert!(page.contains(part), "{part}");
    }
    let timelines: Vec<&str> = page.split(" id=\"timeline-").skip(1).collect();
    let ids: BTreeSet<_> = timelines
        .iter()
        .map(|rest| rest.split('"').next())
        .collect();
    assert_eq!((timelines.len(), ids.len()), (2, 2));
    assert_eq!(
        page.matches("CPI stack of window").count(),
        2 * a.windows.len().min(2)
    );
}

#[test]
fn the_page_has_the_sections_of_others() {
    let mut report = built(|_| {});
    report.sections.push(PageSection {
        title: "Phases & more".into(),
        markup: "<p>of the run</p>".into(),
    });
    let html = report.html();
    assert!(
        html.contains("<h2>Phases &amp; more</h2></summary><p>of the run</p></details></section>")
    );
    assert!(html.contains("<a href=\"#part-0\">Phases &amp; more</a>"));
    assert!(!report.json().contains("of the run"));
}

#[test]
fn heads_and_legends_are_explained_and_sums_stay_last() {
    let html = built(|_| {}).html();
    let options = roxmltree::ParsingOptions {
        allow_dtd: true,
        ..Default::default()
    };
    let page = roxmltree::Document::parse_with_options(&html, options).unwrap();
    let named = |name: &'static str| {
        let nodes = page.descendants();
        nodes.filter(move |node| node.tag_name().name() == name)
    };
    for head in named("th").filter(|head| head.text().is_some_and(|text| !text.is_empty())) {
        assert!(head.attribute("title").is_some(), "{:?}", head.text());
    }
    let legends = named("span").filter(|node| {
        node.children()
            .any(|n| n.has_tag_name("i") || n.tag_name().name() == "i")
    });
    let mut count = 0;
    for entry in legends {
        count += 1;
        assert!(entry.attribute("title").is_some(), "{entry:?}");
    }
    assert!(count > 6);
    let sums: Vec<_> = named("tfoot")
        .map(|foot| {
            let rows = foot.children().filter(|row| row.is_element());
            rows.map(|row| {
                row.first_element_child()
                    .unwrap()
                    .text()
                    .unwrap_or_default()
            })
            .collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(sums[0], ["all ranks", "total"]);
}

#[test]
fn scopes_without_instructions_have_no_rows() {
    let report = built(|_| {});
    let text = report.text();
    assert!(
        text.contains("others node0") && !text.contains("others node1"),
        "{text}"
    );
    assert!(text.contains("Nothing but ranks ran on 1 node: that node has no row \"others\"."));
    // The report's data, unlike the tables, has all scopes.
    assert!(
        report.windows[0]
            .scopes
            .iter()
            .any(|scope| scope.name == "others node1")
    );
}

#[test]
fn findings_come_first_in_every_form() {
    let report = built(|_| {});
    let first = &report.findings[0];
    let text = report.text();
    let before = text.split_once("nodes ").unwrap().0.replace("\n     ", " ");
    assert!(before.contains("Findings\n  1. "), "{before}");
    assert!(before.contains(&first.text), "{before}");
    let json: Value = serde_json::from_str(&report.json()).unwrap();
    assert_eq!(json["findings"][0]["text"], first.text.as_str());
    assert!(json["findings"][0]["finding"].is_string());
    let html = report.html();
    let section = html.split_once("<h2>Findings</h2>").unwrap().1;
    assert_eq!(
        section
            .split_once("</ol>")
            .unwrap()
            .0
            .matches("<li>")
            .count(),
        report.findings.len()
    );
}

#[test]
fn windows_that_did_not_complete_are_told() {
    let report = built(|input| {
        let mut cut = window(vec![node0(), node1()]);
        cut.name = "cut".into();
        cut.complete = false;
        let mut warm = cut.clone();
        warm.name = "warm".into();
        warm.measured_from_ps = None;
        input.windows.windows.extend([cut, warm]);
        input.windows.outcomes.extend([
            outcome("cut", Ending::Cut, "window \"cut\" was cut"),
            outcome(
                "never",
                Ending::NeverTriggered,
                "window \"never\" never opened",
            ),
        ]);
    });
    let text = report.text();
    for expected in [
        "note: window \"cut\" was cut",
        "note: window \"never\" never opened",
        "Window \"cut\" (cut)",
        "Window \"warm\" (cut in its warm-up)",
        "the figures are those of its warm-up",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
    assert!(!report.windows[1].complete && report.windows[2].warm_up_only);
}

#[test]
fn an_empty_trace_no_trace_and_no_window() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("empty");
    write_trace(&trace, &[]);
    let report = built(|input| input.trace = Some(trace.clone()));
    assert!(report.text().contains("No MPI rank introduced itself."));
    assert!(report.html().contains("No MPI rank introduced itself."));
    // Cycles inside MPI come from the windows. Calls come from the trace, which is empty here.
    let mpi = &report.windows[0].scopes[0].mpi[0];
    assert_eq!((mpi.calls, mpi.latency), (0, None));
    let report = built(|input| {
        input.trace = None;
        input.windows.windows.clear();
        input.windows.outcomes.clear();
        input.network.clear();
    });
    assert!(report.mpi.is_none());
    assert_eq!(report.html().matches("<svg").count(), 0);
    assert!(report.text().contains("note: there is no trace"));
}

#[test]
fn a_window_in_which_nothing_ran() {
    let report = built(|input| {
        for node in &mut input.windows.windows[0].nodes {
            node.counters.clear();
            node.statistics.clear();
            node.cycles[0].1 = node.cycles[0].0;
        }
        input.windows.windows[0].closed_ps = 2_000_000;
    });
    let total = report.windows[0].scopes.last().unwrap();
    assert_eq!((total.cpi, total.flops.alpha), (None, None));
    assert_eq!(total.flops.window_per_second, None);
}

#[test]
fn a_cut_trace_is_reported_as_far_as_it_goes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut");
    write_trace(&path, &events());
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 3]).unwrap();
    let report = built(|input| input.trace = Some(path.clone()));
    assert_eq!(report.trace.as_ref().unwrap().events, events().len() as u64);
    assert!(
        report.notes[0].contains("is cut at byte"),
        "{:?}",
        report.notes
    );
    // A file that is no trace is an error.
    std::fs::write(&path, "hello").unwrap();
    let error = build(&input(Some(&path), Vec::new())).unwrap_err();
    assert!(matches!(
        error,
        ReportError::Trace(TraceError::NotATrace { .. })
    ));
}

#[test]
fn calls_that_did_not_end_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deadlock");
    let mut events = events();
    let stamp = Stamp {
        time: 9_000_000,
        ..Stamp::default()
    };
    events.push(Event {
        node: 0,
        sequence: 9,
        stamp,
        body: Body::Unfinished(Box::new(Unfinished {
            function: Function::Recv,
            rank: Peer::Rank(0),
            thread: ThreadId { pid: 100, tid: 100 },
            sequence: 5,
            entry: Stamp {
                time: 8_000_000,
                ..Stamp::default()
            },
            record: None,
        })),
    });
    events.push(Event {
        node: 0,
        sequence: 10,
        stamp,
        body: Body::JobExit(3),
    });
    write_trace(&path, &events);
    let text = built(|input| input.trace = Some(path.clone())).text();
    assert!(text.contains("note: 1 MPI call had not ended"));
    assert!(text.contains("note: the job ended with status 3"));
    assert!(
        text.contains("    rank 0 in MPI_Recv has not ended"),
        "{text}"
    );
}

#[test]
fn a_deadlock_is_told_with_its_cycle() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deadlock");
    let mut events = vec![hello(0, 0), hello(0, 1)];
    for rank in 0..2 {
        let thread = ThreadId {
            pid: 100 + rank,
            tid: 100 + rank,
        };
        let mut record = MpiRecord::new(Function::Recv, thread, Peer::Rank(rank), 3);
        (record.source, record.receive_tag) = (Peer::Rank(1 - rank), Tag::Value(7));
        (record.communicator, record.call_site) = (1, 0x1234);
        events.push(Event {
            node: 0,
            sequence: 9,
            stamp: Stamp::default(),
            body: Body::Unfinished(Box::new(Unfinished {
                function: Function::Recv,
                rank: Peer::Rank(rank),
                thread,
                sequence: 3,
                entry: Stamp {
                    time: 2_500_000_000_000 + u64::from(rank),
                    ..Stamp::default()
                },
                record: Some(record),
            })),
        });
    }
    write_trace(&path, &events);
    let report = built(|input| input.trace = Some(path.clone()));
    let text = report.text();
    let expected = "\
  deadlock since 2.500000 s: 2 ranks can never go on
    in a cycle:
      rank 0 in MPI_Recv(from 1, tag 7, MPI_COMM_WORLD) at program+0x1234 waits for rank 1
      rank 1 in MPI_Recv(from 0, tag 7, MPI_COMM_WORLD) at program+0x1234 waits for rank 0
";
    assert!(text.contains(expected), "{text}");
    assert!(text.contains("note: 2 ranks are deadlocked"), "{text}");
    assert_eq!(
        report.findings[0].text,
        "Deadlock: 2 ranks wait for ever; ranks 0 and 1 wait for each other."
    );
    assert!(report.html().contains("rank 0 in MPI_Recv(from 1, tag 7"));
    let json: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
    let standing = &json["mpi"]["standing"];
    assert_eq!(standing["deadlocks"][0]["cycle"], serde_json::json!([0, 1]));
    assert_eq!(standing["calls"][1]["site"], "program+0x1234");
    assert_eq!(
        standing["calls"][1]["waits"]["ranks"],
        serde_json::json!([0])
    );
}

#[test]
fn many_ranks_stay_readable() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("many");
    let mut events = Vec::new();
    for rank in 0..200 {
        events.push(hello_in(0, rank, 200));
        events.push(call(
            0,
            rank,
            Function::Send,
            Some((rank + 1) % 200),
            1000 * u64::from(rank),
            1_000_000,
            2_000_000 + u64::from(rank),
        ));
    }
    write_trace(&path, &events);
    let report = built(|input| input.trace = Some(path.clone()));
    assert_eq!(report.mpi.as_ref().unwrap().programs[0].matrix.len(), 200);
    assert!(report.text().contains("more rows in report.json"));
    assert!(report.html().contains("Not all of the 200 ranks are drawn"));
}
