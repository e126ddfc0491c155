//! SimGrid and the interpreter replay the same traces on the same platform, and must agree. No check depends on how fast either runs.

use nodescope_simgrid::cases::{Case, WITHIN, collectives, mixed, point_to_point};
use nodescope_test_needs::{Need, have};

fn agree(cases: Vec<Case>) {
    if !have(Need::Simgrid, &["smpirun"]) {
        return;
    }
    let mut wrong = Vec::new();
    let mut compared = 0;
    for case in cases {
        let times = case.run().unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let line = format!(
            "{}: {:.6} s here, {:.6} s with shared links, {:.6} s there, {:+.2} %, {:+.2} %",
            case.name,
            times.here,
            times.shared,
            times.there,
            times.difference() * 100.0,
            times.shared_difference() * 100.0,
        );
        println!("{line}");
        compared += 1;
        let queued = case.reason.is_none() && times.difference().abs() > WITHIN;
        if queued || times.shared_difference().abs() > WITHIN {
            wrong.push(line);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(compared > 0);
}

#[test]
fn messages_take_as_long_as_in_simgrid() {
    agree(point_to_point());
}

#[test]
fn collectives_take_as_long_as_in_simgrid() {
    agree(collectives());
}

#[test]
fn work_and_messages_take_as_long_as_in_simgrid() {
    agree(mixed());
}
