//! Records that are made by hand.

use std::collections::BTreeMap;

use nodescope_openmp::{Cell, Clock, Interval, Module, Record, STATES, Site, State, Thread};

/// Returns a record with no interval but the whole program, in which a tick is a millisecond, with the times of each thread in one region.
pub fn record(execution: u64, threads: &[Vec<(State, u64)>]) -> Record {
    let region = Site {
        module: 1,
        address: 0x1000,
    };
    Record {
        pid: 1,
        peak: threads.len() as u32,
        processors: threads.len() as u32,
        runtime: "libomp".into(),
        host: "host".into(),
        clock: Clock {
            begin: (0, 0),
            end: (execution, execution.saturating_mul(1_000_000)),
        },
        modules: BTreeMap::from([(1, Module::default())]),
        intervals: vec![Interval {
            parent: 0,
            name: "whole program".into(),
            count: 1,
            first: 0,
            total: execution,
            longest: execution,
        }],
        threads: (threads.iter().enumerate())
            .map(|(number, times)| {
                let mut ticks = [0; STATES];
                times
                    .iter()
                    .for_each(|(state, time)| ticks[*state as usize] += time);
                Thread {
                    number: number as u32,
                    tid: number as u32,
                    root: number == 0,
                    first: number as u64,
                    cells: vec![Cell {
                        interval: 0,
                        region,
                        imbalance: 0,
                        scheduling: 0,
                        ticks,
                    }],
                    events: Vec::new(),
                }
            })
            .collect(),
        ..Record::default()
    }
}
