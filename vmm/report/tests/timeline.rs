//! Tests of the page's timeline of calls in a browser, on a trace made by hand.

#[path = "support/browser.rs"]
mod browser;
mod support;

use std::path::Path;

use browser::{View, check, examine, screenshot};
use nodescope_hypercall::{Completion, Function, Peer, Tag};
use nodescope_report::{Report, build};
use nodescope_test_needs::{Need, have};
use nodescope_trace::{Body, Event};
use serde_json::Value;
use support::*;

const US: u64 = 1_000_000;
/// Number of barriers around the message.
const BARRIERS: u64 = 4000;

fn edit(mut event: Event, change: impl FnOnce(&mut nodescope_trace::MpiCall)) -> Event {
    if let Body::Mpi(call) = &mut event.body {
        change(call);
    }
    event
}

/// Returns a trace of three ranks with a barrier each 100 us. In the middle, rank 0 sends a message of 4 KiB, for which rank 1 waits.
///
/// | rank | call | from, us | to, us |
/// |---|---|---|---|
/// | 1 | MPI_Recv | 200,020 | 200,060 |
/// | 0 | MPI_Send | 200,050 | 200,055 |
fn trace() -> Vec<Event> {
    let mut events: Vec<Event> = vec![hello(0, 0), hello(1, 1), hello(1, 2)];
    let barrier = |rank: u32, at: u64| {
        let node = rank.min(1);
        let event = call(
            node,
            rank,
            Function::Barrier,
            None,
            0,
            at * US,
            (at + 10) * US,
        );
        edit(event, |call| call.record.call_site = 0x1234)
    };
    for number in 1..=BARRIERS {
        events.extend((0..3).map(|rank| barrier(rank, number * 100)));
    }
    let sent = call(
        0,
        0,
        Function::Send,
        Some(1),
        4096,
        200_050 * US,
        200_055 * US,
    );
    events.push(edit(sent, |call| {
        (call.record.communicator, call.record.send_tag) = (1, Tag::Value(7));
    }));
    let received = call(1, 1, Function::Recv, None, 0, 200_020 * US, 200_060 * US);
    events.push(edit(received, |call| {
        (call.record.communicator, call.record.source) = (1, Peer::Any);
        call.record.completions.push(Completion {
            source: Peer::Rank(0),
            tag: Tag::Value(7),
            bytes: 4096,
            ..Completion::default()
        });
    }));
    for (sequence, event) in (0..).zip(&mut events) {
        event.sequence = sequence;
    }
    events.sort_by_key(Event::key);
    events
}

fn report(folder: &Path, events: &[Event]) -> Report {
    let file = folder.join("trace");
    write_trace(&file, events);
    let mut window = window(vec![node0(), node1()]);
    window.triggered_ps = 100_000 * US;
    window.opened_ps = 100_000 * US;
    window.measured_from_ps = Some(100_000 * US);
    window.closed_ps = 110_000 * US;
    build(&input(Some(&file), vec![window])).unwrap()
}

fn outcome(html: &str, view: View) -> Value {
    let scripts = [include_str!("timeline.js")];
    examine(html, "</body>", "timeline.html", view, &scripts)
}

#[test]
fn the_timeline_shows_a_single_message() {
    if !have(Need::Browser, &["chromium"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let html = report(folder.path(), &trace()).html();
    for view in View::ALL {
        check(&outcome(&html, view));
    }
    screenshot(&html, "timeline.html", View::USUAL, 1000);
}

/// The checks of the script can fail: each damage to the page's script is found.
#[test]
fn damage_to_the_timeline_is_found() {
    if !have(Need::Browser, &["chromium"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let html = report(folder.path(), &trace()).html();
    for (from, to) in [
        (
            "w: () => this.zoom(0.5, near)",
            "w: () => this.zoom(2, near)",
        ),
        ("around - share * span", "around - span"),
        ("data.entry[n] += before;", "data.entry[n] += 0;"),
        ("sends[n] === call", "sends[n] > call"),
        ("into.waited += waits", "into.waited += 0"),
        ("byRank || byCall", "byRank"),
        ("(turn + WAITING) % CLASSES", "OTHER"),
    ] {
        let damaged = html.replace(from, to);
        assert_ne!(damaged, html, "{from}");
        let problems = outcome(&damaged, View::USUAL)["problems"].clone();
        assert!(!problems.as_array().unwrap().is_empty(), "{to}");
    }
}
