//! Tests of the decisions about windows, step by step.

use nodescope_hypercall::{Function, MpiRecord, Peer, ThreadId};
use nodescope_trace::{Body, Event, MpiCall, Stamp};
use nodescope_window::WindowAction::{Attach, Detach, StartMeasuring};
use nodescope_window::{Ending, Measure, ModelSpec, SpecFault, Trigger, WindowDriver, WindowSpec};

fn spec(name: &str, open: Trigger, warm_up: u64, measure: Measure) -> WindowSpec {
    WindowSpec {
        name: name.into(),
        open,
        warm_up,
        measure,
        attribution: true,
        sampling: None,
        models: ModelSpec::default(),
    }
}

fn event(time: u64, body: Body) -> Event {
    Event {
        node: 0,
        sequence: 0,
        stamp: Stamp {
            time,
            ..Stamp::default()
        },
        body,
    }
}

fn call(time: u64, function: Function, rank: u32, calls: u64) -> Event {
    let mut record = MpiRecord::new(function, ThreadId::default(), Peer::Rank(rank), 0);
    record.calls = calls;
    event(
        time,
        Body::Mpi(Box::new(MpiCall {
            record,
            entry: Stamp::default(),
            exit: Stamp::default(),
            time_inside: 0,
            instructions_inside: 0,
            entry_seen: true,
        })),
    )
}

fn barrier(call: u64, rank: u32) -> Trigger {
    Trigger::MpiCall {
        function: Function::Barrier,
        call,
        rank,
    }
}

#[test]
fn a_window_warms_up_measures_and_closes_at_boundaries() {
    let mut driver = WindowDriver::new(vec![spec(
        "w",
        Trigger::Time { ps: 100 },
        50,
        Measure::Instructions(200),
    )])
    .unwrap();
    assert_eq!(driver.step(99, 1000), []);
    assert_eq!(driver.step(130, 1010), [Attach(0)]);
    assert_eq!(driver.open(), Some(0));
    assert_eq!(driver.step(140, 1059), []);
    assert_eq!(driver.step(150, 1075), [StartMeasuring(0)]);
    assert_eq!(driver.step(160, 1274), []);
    assert_eq!(driver.step(170, 1275), [Detach(0)]);
    assert_eq!(driver.step(180, 9999), []);
    assert!(driver.is_done() && driver.is_complete(0));
    let times = driver.times(0);
    assert_eq!(
        (
            times.triggered_ps,
            times.opened_ps,
            times.measured_from_ps,
            times.closed_ps
        ),
        (Some(100), Some(130), Some(150), Some(170))
    );
    assert_eq!(
        (times.opened_at, times.measured_from, times.closed_at),
        (1010, 1075, 1275)
    );
    assert_eq!(driver.finish()[0].ending, Ending::Complete);
}

#[test]
fn without_warm_up_measuring_starts_with_the_window() {
    let mut driver = WindowDriver::new(vec![spec(
        "w",
        Trigger::Immediately,
        0,
        Measure::Time { ps: 30 },
    )])
    .unwrap();
    assert_eq!(driver.step(0, 0), [Attach(0), StartMeasuring(0)]);
    assert_eq!(driver.step(29, 10), []);
    assert_eq!(driver.step(30, 11), [Detach(0)]);
}

#[test]
fn until_the_next_trigger_by_time_there_is_nothing_to_do() {
    let windows = vec![
        spec(
            "late",
            Trigger::Time { ps: 300 },
            0,
            Measure::Instructions(10),
        ),
        spec(
            "soon",
            Trigger::Time { ps: 100 },
            0,
            Measure::Instructions(10),
        ),
        spec("called", barrier(1, 0), 0, Measure::Instructions(10)),
    ];
    let mut driver = WindowDriver::new(windows).unwrap();
    assert_eq!(driver.next_ps(), 100);
    assert_eq!(driver.step(99, 0), []);
    assert_eq!(driver.step(100, 0), [Attach(1), StartMeasuring(1)]);
    assert_eq!(driver.next_ps(), 0, "an open window closes by instructions");
    assert_eq!(driver.step(110, 20), [Detach(1)]);
    assert_eq!(driver.next_ps(), 300);
    driver.observe(&call(120, Function::Barrier, 0, 1));
    assert_eq!(driver.next_ps(), 0, "a trigger has fired");
    assert_eq!(driver.step(130, 30), [Attach(2), StartMeasuring(2)]);
    assert_eq!(driver.step(140, 50), [Detach(2)]);
    assert_eq!(driver.step(310, 60), [Attach(0), StartMeasuring(0)]);
    assert_eq!(driver.step(320, 80), [Detach(0)]);
    assert_eq!(driver.next_ps(), u64::MAX);

    let at_once = spec("now", Trigger::Immediately, 0, Measure::Instructions(10));
    let driver = WindowDriver::new(vec![at_once]).unwrap();
    assert_eq!(driver.next_ps(), 0);
}

#[test]
fn the_nth_call_of_the_rank_counts_and_polls_with_it() {
    let mut driver = WindowDriver::new(vec![spec("w", barrier(3, 1), 0, Measure::Guest)]).unwrap();
    for ignored in [
        call(1, Function::Barrier, 0, 1),
        call(2, Function::Bcast, 1, 1),
        call(3, Function::Barrier, 1, 1),
        call(4, Function::Barrier, 1, 1),
    ] {
        driver.observe(&ignored);
        assert_eq!(driver.step(10, 0), []);
    }
    driver.observe(&call(15, Function::Barrier, 1, 1));
    assert_eq!(driver.step(20, 7), [Attach(0), StartMeasuring(0)]);
    assert_eq!(driver.times(0).triggered_ps, Some(15));
    // A second firing changes nothing.
    driver.observe(&call(25, Function::Barrier, 1, 5));
    assert_eq!(driver.step(30, 8), []);
}

#[test]
fn the_guest_opens_and_closes_by_name() {
    let mut driver = WindowDriver::new(vec![
        spec("a", Trigger::Guest, 0, Measure::Guest),
        spec(
            "b",
            Trigger::Marker {
                name: "go".into(),
                occurrence: 2,
            },
            0,
            Measure::Guest,
        ),
    ])
    .unwrap();
    driver.observe(&event(1, Body::WindowOpen("c".into())));
    driver.observe(&event(1, Body::Mark("go".into())));
    assert_eq!(driver.step(2, 0), []);
    driver.observe(&event(3, Body::WindowOpen("a".into())));
    assert_eq!(driver.step(4, 0), [Attach(0), StartMeasuring(0)]);
    // While a is open, b's trigger fires. Window b waits, and opens when a closes.
    driver.observe(&event(5, Body::Mark("go".into())));
    assert_eq!(driver.step(6, 10), []);
    driver.observe(&event(7, Body::WindowClose("b-not".into())));
    driver.observe(&event(7, Body::WindowClose("a".into())));
    assert_eq!(
        driver.step(8, 20),
        [Detach(0), Attach(1), StartMeasuring(1)]
    );
    assert_eq!(driver.times(1).triggered_ps, Some(5));
    assert_eq!(driver.times(1).opened_ps, Some(8));
    assert_eq!(driver.unknown_names(), ["c"]);
    assert_eq!(driver.stop(9, 30), Some(Detach(1)));
    let endings: Vec<Ending> = driver.finish().iter().map(|o| o.ending).collect();
    assert_eq!(endings, [Ending::Complete, Ending::Cut]);
}

#[test]
fn waiting_windows_open_in_the_order_of_their_triggers() {
    let measure = Measure::Instructions(1);
    let mut driver = WindowDriver::new(vec![
        spec("late", Trigger::Time { ps: 20 }, 0, measure),
        spec("early", Trigger::Time { ps: 10 }, 0, measure),
        spec("same", Trigger::Time { ps: 10 }, 0, measure),
    ])
    .unwrap();
    assert_eq!(driver.step(50, 0), [Attach(1), StartMeasuring(1)]);
    assert_eq!(
        driver.step(60, 1),
        [Detach(1), Attach(2), StartMeasuring(2)]
    );
    assert_eq!(
        driver.step(70, 2),
        [Detach(2), Attach(0), StartMeasuring(0)]
    );
    assert_eq!(driver.step(80, 3), [Detach(0)]);
}

#[test]
fn the_user_is_told_what_did_not_happen() {
    let mut driver = WindowDriver::new(vec![
        spec("x", barrier(13, 0), 0, Measure::Instructions(10)),
        spec("warm", Trigger::Immediately, 1000, Measure::Guest),
        spec(
            "turn",
            Trigger::Time { ps: 1 },
            0,
            Measure::Instructions(10),
        ),
        spec("short", Trigger::Guest, 0, Measure::Guest),
    ])
    .unwrap();
    for time in 0..12 {
        driver.observe(&call(time, Function::Barrier, 0, 1));
    }
    assert_eq!(driver.step(20, 5), [Attach(1)]);
    driver.observe(&event(21, Body::WindowOpen("short".into())));
    driver.observe(&event(22, Body::WindowClose("short".into())));
    assert_eq!(driver.step(25, 6), []);
    assert_eq!(driver.stop(30, 7), Some(Detach(1)));
    assert_eq!(driver.stop(30, 7), None);
    let outcomes = driver.finish();
    let endings: Vec<Ending> = outcomes.iter().map(|o| o.ending).collect();
    assert_eq!(
        endings,
        [
            Ending::NeverTriggered,
            Ending::CutInWarmUp,
            Ending::NeverOpened,
            Ending::NeverOpened
        ]
    );
    assert_eq!(
        outcomes[0].text,
        "window \"x\" never opened: its trigger was call 13 of MPI_Barrier on rank 0; seen: 12 MPI_Barrier calls on rank 0"
    );
}

#[test]
fn a_guest_close_cuts_a_window_that_measures_by_count() {
    let mut driver = WindowDriver::new(vec![spec(
        "w",
        Trigger::Immediately,
        0,
        Measure::Instructions(1000),
    )])
    .unwrap();
    driver.step(0, 0);
    driver.observe(&event(1, Body::WindowClose("w".into())));
    assert_eq!(driver.step(5, 400), [Detach(0)]);
    let outcome = &driver.finish()[0];
    assert_eq!(outcome.ending, Ending::Cut);
    assert_eq!(
        outcome.text,
        "window \"w\" was cut after measuring 400 instructions; it was to measure 1000 instructions"
    );
}

#[test]
fn faults_name_the_field() {
    let faults = WindowSpec::faults(&[
        spec("", Trigger::Immediately, 0, Measure::Instructions(0)),
        spec("a", barrier(0, 0), 0, Measure::Guest),
        spec("a", Trigger::Guest, 0, Measure::Time { ps: 0 }),
    ]);
    assert_eq!(
        faults,
        [
            SpecFault::NoName { window: 0 },
            SpecFault::Nothing { window: 0 },
            SpecFault::CountFromOne {
                window: 1,
                field: "call"
            },
            SpecFault::SameName {
                window: 2,
                name: "a".into(),
                other: 1
            },
            SpecFault::Nothing { window: 2 },
        ]
    );
    assert!(
        WindowDriver::new(vec![spec("a", barrier(0, 0), 0, Measure::Guest)])
            .unwrap_err()
            .to_string()
            .starts_with("windows[0].open.call: is 0")
    );
}
