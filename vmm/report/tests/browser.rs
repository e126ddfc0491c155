//! Tests of the page and the flame graph in a browser: no text overlaps or is cut, mouse and keyboard work, and nothing is loaded.
//!
//! The tests write screenshots to `target/tmp`, for people to look at.

#[path = "support/browser.rs"]
mod browser;
#[path = "../../profile/tests/support/mod.rs"]
mod profiles;
#[path = "support/solver.rs"]
mod solver;
mod support;

use browser::{View, check, screenshot};
use nodescope_profile::WindowProfile;
use nodescope_report::code::{Format, cores, export};
use nodescope_report::{CoreCpi, build};
use nodescope_test_needs::{Need, have};
use serde_json::Value;

fn examine(content: &str, end: &str, name: &str, view: View) -> Value {
    browser::examine(content, end, name, view, &[include_str!("browser.js")])
}

#[test]
fn the_page_fits_and_can_be_driven() {
    if !have(Need::Browser, &["chromium"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let report = build(&solver::with_code(folder.path())).unwrap();
    let html = report.html();
    for view in View::ALL {
        check(&examine(&html, "</body>", "report.html", view));
    }
    let outcome = examine(&html, "</body>", "report.html", View::USUAL);
    // The search in the flame graph must find all call paths of the function, which together have the function's exact share.
    let code = report.windows[0].code.as_ref().unwrap();
    let share = code.functions[0].costs.share.unwrap();
    assert_eq!(outcome["found"], format!("found {:.2} %", 100.0 * share));
    screenshot(
        &html,
        "report.html",
        View::USUAL,
        outcome["height"].as_u64().unwrap(),
    );
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
    let outcome = examine(&html, "</body>", "crowded.html", View::USUAL);
    check(&outcome);
    screenshot(
        &html,
        "crowded.html",
        View::USUAL,
        outcome["height"].as_u64().unwrap(),
    );
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
            ".code td.name { max-width: 240px;",
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
        let outcome = examine(&damaged, "</body>", "damaged.html", View::USUAL);
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
    check(&examine(&svg, "</svg>", "flame.svg", View::USUAL));
    screenshot(&svg, "flame.svg", View::USUAL, 400);
}
