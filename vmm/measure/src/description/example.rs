//! A description with made-up values, for tests.

use std::collections::BTreeSet;

use super::HostDescription;
use crate::bandwidth::Bandwidth;
use crate::branch::Branches;
use crate::curve::Curve;
use crate::host::Identity;
use crate::levels::{Level, Point};
use crate::parallelism::{Parallelism, Step};
use crate::prefetch::Stream;
use crate::statistics::Measurement;
use crate::stores::Stores;
use crate::timer::{ClockReading, Reading};
use crate::tlb::Tlb;
use crate::topology::{Cache, CacheKind, Cpu, Relation, Topology};
use crate::transfer::Transfer;

fn exact(value: f64) -> Measurement<f64> {
    Measurement {
        value,
        spread: 0.01,
    }
}

/// Returns a time of a core of 4 GHz.
fn time(cycles: f64) -> Reading {
    Reading {
        cycles: exact(cycles),
        nanoseconds: exact(cycles / 4.0),
    }
}

fn curve() -> Curve {
    let point = |size: f64, cycles: f64| Point {
        size,
        time: time(cycles),
    };
    Curve {
        points: vec![
            point(4096.0, 4.0),
            point(33554432.0, 50.0),
            point(268435456.0, 450.0),
        ],
        huge_share: Some(1.0),
    }
}

fn topology() -> Topology {
    let cache = |level, kind, size, ways, cpus: &[usize]| Cache {
        level,
        kind,
        size,
        ways,
        line: 64,
        inclusive: level == 2,
        cpus: cpus.iter().copied().collect::<BTreeSet<usize>>(),
    };
    Topology {
        cpus: [0, 1]
            .map(|n| Cpu {
                number: n,
                core: n as u32,
                socket: 0,
            })
            .to_vec(),
        allowed: vec![0, 1],
        caches: vec![
            cache(1, CacheKind::Data, 32 << 10, 8, &[0]),
            cache(1, CacheKind::Instruction, 32 << 10, 8, &[0]),
            cache(2, CacheKind::Unified, 1 << 20, 8, &[0]),
            cache(3, CacheKind::Unified, 32 << 20, 16, &[0, 1]),
        ],
        differences: Vec::new(),
    }
}

fn transfers() -> Vec<(Relation, Transfer)> {
    let transfer = Transfer {
        clean: time(90.0),
        modified: time(100.0),
        upgrade: time(110.0),
        one_way: time(150.0),
        shared_counter: time(20.0),
        together: 1.0,
    };
    vec![(Relation::OtherCore, transfer)]
}

fn tlb() -> Tlb {
    Tlb {
        first: 72.0,
        second: 3072.0,
        second_hit: time(7.0),
        walk: time(60.0),
        stated: (Some(72), None),
        curve: curve().points,
        huge_curve: Vec::new(),
    }
}

fn stores() -> Stores {
    Stores {
        forwarding: time(7.0),
        fixed_forwarding: time(1.0),
        store: time(0.5),
        second_level_store: time(2.0),
        locked_add: time(7.0),
        fence: time(58.0),
        pause: time(90.0),
    }
}

/// Returns a machine of two cores and three levels of caches.
pub fn example() -> HostDescription {
    let bandwidth = |cores: usize| Bandwidth {
        cores,
        working_set: 65536,
        load: exact(30.0 * cores as f64),
        store: exact(20.0),
        copy: exact(25.0),
    };
    let parallelism = |misses: f64| Parallelism {
        misses: exact(misses),
        steps: vec![Step {
            walks: 1,
            time: time(50.0),
        }],
    };
    let stream = |stride: isize| Stream {
        stride,
        time: time(5.0),
    };
    let level = |cycles, reach| Level {
        time: time(cycles),
        reach,
    };
    HostDescription {
        identity: Identity {
            vendor: "AuthenticAMD".into(),
            brand: "A \"processor\"".into(),
            signature: (25, 17, 1),
            hypervisor: Some("KVMKVMKVM".into()),
            memory: 8 << 30,
        },
        topology: topology(),
        clock: ClockReading {
            core: exact(3.5),
            range: (3.4, 3.5),
            tsc: 2.5,
        },
        levels: vec![
            level(4.0, 32768.0),
            level(14.0, 1048576.0),
            level(50.0, 33554432.0),
        ],
        memory: time(450.0),
        far_memory: time(500.0),
        huge_curve: curve(),
        slow_curve: curve(),
        small_curve: curve(),
        bandwidths: vec![vec![bandwidth(1), bandwidth(2)]; 4],
        parallelism: [parallelism(20.0), parallelism(22.0)],
        streams: [vec![stream(1), stream(-1)], vec![stream(1), stream(-1)]],
        tlb: tlb(),
        branches: Branches {
            mispredict: time(18.0),
            predicted: time(1.0),
            random: time(10.0),
        },
        stores: stores(),
        transfers: transfers(),
        earlier: transfers(),
        stolen: 0.0,
    }
}
