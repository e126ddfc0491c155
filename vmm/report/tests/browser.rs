//! Tests of the page and the flame graph in a browser: no text overlaps or is cut, mouse and keyboard work, and nothing is loaded.
//!
//! The tests write screenshots to `target/tmp`, for people to look at.

#[path = "../../profile/tests/support/mod.rs"]
mod profiles;
#[path = "support/solver.rs"]
mod solver;
mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use nodescope_profile::WindowProfile;
use nodescope_report::code::{Format, cores, export};
use nodescope_report::{CoreCpi, build};
use nodescope_test_needs::{Need, have};
use serde_json::Value;

const WIDTH: u32 = 1300;

/// Runs the browser on a file, without a network. Returns the browser's standard output.
fn browser(file: &Path, args: &[String]) -> String {
    let profile = tempfile::tempdir().unwrap();
    let output = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu"])
        .args(["--hide-scrollbars", "--virtual-time-budget=3000"])
        .args(["--host-resolver-rules=MAP * ~NOTFOUND", "--no-first-run"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(args)
        .arg(format!("file://{}", file.display()))
        .env("HOME", profile.path())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Adds the checking script to a page before the page's closing tag `end`, opens the page in the browser, and returns the script's outcome.
fn examine(content: &str, end: &str, name: &str) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let script = include_str!("browser.js");
    let script = format!("<script><![CDATA[\n{script}\n]]></script>");
    let script = match end {
        // The browser parses an HTML page as HTML, which has no CDATA sections.
        "</body>" => script.replace("<![CDATA[", "").replace("]]>", ""),
        _ => script,
    };
    let (before, after) = content.rsplit_once(end).unwrap();
    let file = folder.path().join(name);
    fs::write(&file, format!("{before}{script}{end}{after}")).unwrap();
    let dom = browser(
        &file,
        &["--dump-dom".into(), format!("--window-size={WIDTH},1000")],
    );
    let (_, outcome) = dom
        .split_once("id=\"outcome\"")
        .expect("the script has run");
    let (_, outcome) = outcome.split_once('>').unwrap();
    let (outcome, _) = outcome.split_once("</pre>").unwrap();
    let outcome = outcome
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&amp;", "&");
    serde_json::from_str(&outcome).unwrap()
}

fn screenshot(content: &str, name: &str, height: u64) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = folder.join(name);
    fs::write(&file, content).unwrap();
    let image = file.with_extension("png");
    let _ = fs::remove_file(&image);
    browser(
        &file,
        &[
            format!("--screenshot={}", image.display()),
            format!("--window-size={WIDTH},{}", height.min(12_000)),
        ],
    );
    // An image of one colour would be far smaller.
    assert!(fs::metadata(&image).unwrap().len() > 20_000);
}

fn check(outcome: &Value) {
    let problems = outcome["problems"].as_array().unwrap();
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn the_page_fits_and_can_be_driven() {
    if !have(Need::Browser, &["chromium"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let report = build(&solver::with_code(folder.path())).unwrap();
    let html = report.html();
    let outcome = examine(&html, "</body>", "report.html");
    check(&outcome);
    // The search in the flame graph must find all call paths of the function, which together have the function's exact share.
    let code = report.windows[0].code.as_ref().unwrap();
    let share = code.functions[0].costs.share.unwrap();
    assert_eq!(outcome["found"], format!("found {:.2} %", 100.0 * share));
    screenshot(&html, "report.html", outcome["height"].as_u64().unwrap());
}

/// Adds 60 functions with similar costs, so that points of the roofline overlap, and deep call paths.
fn crowd(profile: &mut WindowProfile) {
    let templates = [profiles::RELAX, profiles::RESIDUAL, profiles::TEMPLATE];
    for n in 0..60_u32 {
        let of = templates[n as usize % templates.len()];
        let mut function = profile.functions[of as usize].clone();
        function.name = format!("kernel_{n}::{}", function.name);
        let number = profile.functions.len() as u32;
        profile.functions.push(function);
        let block = profile.blocks.iter().position(|b| b.function == of);
        let block = block.unwrap() as u32;
        let mut copy = profile.blocks[block as usize].clone();
        copy.function = number;
        let mut count = (profile.counts.iter())
            .find(|count| count.block == block)
            .unwrap()
            .clone();
        count.block = profile.blocks.len() as u32;
        count.counts.executions += u64::from(n) * 5000;
        profile.blocks.push(copy);
        let mut path = vec![profiles::MAIN; n as usize];
        path.push(number);
        profile.paths.push(nodescope_profile::Path {
            node: count.node,
            context: count.context,
            functions: path,
            samples: 10,
            times: Vec::new(),
        });
        profile.counts.push(count);
    }
}

#[test]
fn a_crowded_page_fits_too() {
    if !have(Need::Browser, &["chromium"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut input = solver::with_code(folder.path());
    let profile = &mut input.profiles.as_mut().unwrap().windows[0];
    crowd(profile);
    let profile = profile.clone();
    input.windows.windows = vec![solver::record(&profile)];
    input.core = CoreCpi::Replaced {
        cpi: 0.5,
        source: "perf stat".into(),
    };
    let html = build(&input).unwrap().html();
    let outcome = examine(&html, "</body>", "crowded.html");
    check(&outcome);
    screenshot(&html, "crowded.html", outcome["height"].as_u64().unwrap());
}

/// Checks that the script reports damaged pages, so that the other tests can fail: misfitting text, dead keys, a wrong order, a loaded
/// image.
#[test]
fn damage_is_found() {
    if !have(Need::Browser, &["chromium"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let html = build(&solver::with_code(folder.path())).unwrap().html();
    for (from, to) in [
        (".flame .f text, ", ".flame .f text { font-size: 16px; } "),
        (
            ".code td.name { max-width: 300px;",
            ".code td.name { min-width: 700px;",
        ),
        (
            "const pixels = (to - from) / frame.w * wide;",
            "const pixels = (to - from) * wide;",
        ),
        ("event.key === \"Enter\"", "event.key === \"F9\""),
        ("b.value - a.value", "a.value - b.value"),
        (
            "</body>",
            "<img src=\"http://localhost/x.png\" alt=\"\" /></body>",
        ),
    ] {
        let damaged = html.replace(from, to);
        assert_ne!(damaged, html, "{from}");
        let outcome = examine(&damaged, "</body>", "damaged.html");
        let problems = outcome["problems"].as_array().unwrap().len();
        assert!(problems > 0, "{to}");
    }
}

#[test]
fn the_flame_graph_stands_alone() {
    if !have(Need::Browser, &["chromium"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let input = solver::with_code(folder.path());
    let record = &input.windows.windows[0];
    let profile = &input.profiles.as_ref().unwrap().windows[0];
    let cores = cores(&input.core, record, profile, &[]).unwrap();
    let svg = export(record, profile, &cores, Format::Svg).unwrap();
    let svg = String::from_utf8(svg).unwrap();
    check(&examine(&svg, "</svg>", "flame.svg"));
    screenshot(&svg, "flame.svg", 400);
}
