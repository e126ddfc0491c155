//! Tests of lanes: merging keeps sums, and calls never overlap.

use super::{CallTimeline, Lane, TimedCall};

fn call(kind: u32, entry: u64, exit: u64) -> TimedCall {
    TimedCall {
        entry,
        exit,
        inside: exit - entry,
        kind,
        calls: 1,
        sent_bytes: 8,
        to: Some(entry as u32 % 2),
        ..TimedCall::default()
    }
}

fn lane(calls: &[TimedCall], merged_below: u64) -> Lane {
    let mut lane = Lane::default();
    for call in calls {
        lane.add(*call, merged_below, 0);
    }
    lane.flush();
    lane
}

#[test]
fn short_calls_of_a_part_are_merged_by_kind() {
    let calls = [
        call(0, 0, 3),
        call(1, 4, 8),
        call(0, 10, 15),
        // A long call ends what is merged.
        call(0, 20, 160),
        call(0, 170, 171),
        // The next part of the run.
        call(0, 201, 203),
    ];
    let merged = lane(&calls, 100);
    let found: Vec<_> = (merged.calls.iter())
        .map(|call| {
            (
                call.kind,
                call.entry,
                call.exit,
                call.calls,
                call.sent_bytes,
            )
        })
        .collect();
    assert_eq!(
        found,
        [
            (0, 0, 8, 2, 16),
            (1, 8, 12, 1, 8),
            (0, 20, 160, 1, 8),
            (0, 170, 171, 1, 8),
            (0, 201, 203, 1, 8),
        ]
    );
    assert_eq!(merged.calls[0].to, Some(0));
    let inside = |calls: &[TimedCall]| calls.iter().map(|call| call.inside).sum::<u64>();
    assert_eq!(inside(&merged.calls), inside(&calls));
    assert_eq!(lane(&calls, 0).calls, calls);
}

#[test]
fn a_wait_finds_its_call() {
    let calls = [
        call(0, 0, 3),
        call(1, 4, 8),
        call(0, 10, 15),
        call(1, 20, 160),
    ];
    let mut exact = lane(&calls, 0);
    let of_kind = |kind: u32| move |call: &TimedCall| call.kind == kind;
    assert_eq!(exact.at(10, 0, of_kind(0)), Some(&mut calls[2].clone()));
    assert_eq!(exact.at(11, 0, of_kind(0)), None);
    assert_eq!(exact.at(10, 0, of_kind(1)), None);
    let mut merged = lane(&calls, 100);
    let found = merged.at(10, 100, of_kind(0)).map(|call| call.calls);
    assert_eq!(found, Some(2));
    let mut unmerged = Lane::default();
    unmerged.add(calls[0], 100, 0);
    assert!(unmerged.at(0, 100, of_kind(0)).is_some());
}

#[test]
fn calls_of_a_damaged_trace_do_not_overlap() {
    let last = call(0, u64::MAX - 1, u64::MAX);
    let calls = [
        call(0, 100, 200),
        call(0, 50, 120),
        call(0, 0, 300),
        last,
        last,
    ];
    for merged_below in [0, 1000] {
        let lane = lane(&calls, merged_below);
        let mut end = 0;
        for call in &lane.calls {
            assert!(end <= call.entry && call.inside <= call.exit - call.entry);
            end = call.exit;
        }
    }
}

#[test]
fn as_many_calls_are_merged_as_there_must_be() {
    let calls: Vec<TimedCall> = (0..1000)
        .map(|number| call(number as u32 % 3, 100 * number, 100 * number + 40))
        .collect();
    let mut timeline = CallTimeline {
        to_ps: 100_000,
        lanes: vec![lane(&calls, 0)],
        count: calls.len(),
        limit: 200,
        ..CallTimeline::default()
    };
    timeline.merge_more();
    let merged = &timeline.lanes[0].calls;
    assert!(merged.len() <= 100 && merged.len() > 40, "{}", merged.len());
    assert_eq!((timeline.count, timeline.limit), (merged.len(), 200));
    let sums = |calls: &[TimedCall]| {
        let number: u64 = calls.iter().map(|call| call.calls).sum();
        (number, calls.iter().map(|call| call.inside).sum::<u64>())
    };
    assert_eq!(sums(merged), sums(&calls));
    // What cannot be merged further stays.
    timeline.limit = 2;
    timeline.merge_more();
    assert_eq!((timeline.count, timeline.limit), (3, 6));
}
