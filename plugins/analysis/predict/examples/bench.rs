//! Speed and memory of the interpreter on synthetic programs. `cargo run --release --example bench -- PROGRAM RANKS TURNS`

use nodescope_model::{Action, CollectiveKind, PeerRef, Program, ProgramBuilder, Source};
use nodescope_predict::{
    Channel, Cluster, Code, Model, Options, Progress, Table, Topology, interpret,
};

/// A square torus of `side` x `side` ranks: computes, exchanges 8 KiB with four neighbours, reduces.
fn torus(side: u32, turns: u32, overlaps: bool) -> Program {
    let mut builder = ProgramBuilder::new();
    for _row in 0..side {
        for column in 0..side {
            let ranks = side * side;
            let east = if column + 1 == side {
                ranks + 1 - side
            } else {
                1
            };
            let west = if column == 0 { side - 1 } else { ranks - 1 };
            let ways = [
                (east, west),
                (west, east),
                (side, ranks - side),
                (ranks - side, side),
            ];
            builder.begin().compute(1_000_000_000);
            if overlaps {
                for (way, (_, from)) in ways.iter().enumerate() {
                    builder.ireceive(PeerRef::Relative(*from), way as u32, 8192, way as u32);
                }
                for (way, (to, _)) in ways.iter().enumerate() {
                    builder.isend(PeerRef::Relative(*to), way as u32, 8192, 4 + way as u32);
                }
                builder.wait(&[0, 1, 2, 3, 4, 5, 6, 7]);
            } else {
                for (way, (to, from)) in ways.iter().enumerate() {
                    let action = Action::SendReceive {
                        send: Some((PeerRef::Relative(*to), way as u32, 8192)),
                        receive: Some((
                            Source::Peer(PeerRef::Relative(*from)),
                            Some(way as u32),
                            8192,
                        )),
                    };
                    builder.call(nodescope_hypercall::Function::Sendrecv, 0x90, action);
                }
            }
            builder.end(turns).ranks(1);
        }
    }
    builder.finish()
}

fn allreduce(ranks: u32, turns: u32) -> Program {
    let mut builder = ProgramBuilder::new();
    builder.begin().compute(1_000_000_000);
    builder.collective(CollectiveKind::Allreduce, 0, 8);
    builder.end(turns).ranks(ranks);
    builder.finish()
}

/// Processor time of this process, seconds: what a busy host leaves of the wall clock says little.
fn processor() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Fields 14 and 15, counted after the name in parentheses; ticks of 10 ms.
    let after = stat.rsplit(')').next().unwrap_or_default();
    let fields = after.split_whitespace().skip(11).take(2);
    let ticks: u64 = fields.filter_map(|field| field.parse::<u64>().ok()).sum();
    ticks as f64 / 100.0
}

/// Resident memory now and at most, bytes.
fn memory() -> (u64, u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name));
        let number = line.and_then(|line| line.split_whitespace().nth(1));
        number.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 1024
    };
    (field("VmRSS:"), field("VmHWM:"))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [name, ranks, turns] = args.as_slice() else {
        return Err("bench torus|halo|allreduce RANKS TURNS".into());
    };
    let (ranks, turns): (u32, u32) = (ranks.parse()?, turns.parse()?);
    let side = f64::from(ranks).sqrt() as u32;
    let before = memory().0;
    let program = match name.as_str() {
        "torus" => torus(side, turns, false),
        "halo" => torus(side, turns, true),
        _ => allreduce(ranks, turns),
    };
    let network = Channel {
        send_overhead: Table::constant(500_000),
        receive_overhead: Table::constant(500_000),
        ..Channel::new(Model::LogGp, 1_300_000, 1_250_000_000)
    };
    let free = Cluster::simple("free", network);
    let shared = Cluster {
        contention: true,
        progress: Progress::Calls,
        ..free.clone()
    };
    let torus = Cluster {
        topology: Topology::Torus {
            size: vec![side, side],
        },
        hop_latency: 100_000,
        ..shared.clone()
    };
    for (what, cluster) in [
        ("LogGP", &free),
        ("crossbar, contention", &shared),
        ("2-D torus, contention", &torus),
    ] {
        let count = program.ranks.len() as u32;
        if cluster.topology.capacity() < u64::from(count) {
            continue;
        }
        let code = Code::new(&program);
        for critical_path in [false, true] {
            let options = Options {
                critical_path,
                ..Options::default()
            };
            let start = processor();
            let outcome = interpret(&code, cluster, &options)?;
            let used = (processor() - start).max(0.01);
            println!(
                "{name} {count} ranks x {turns}, {what}{}: {:.3} s predicted; {} events in {used:.2} s of one core = {:.2} M/s; {} B per rank at most",
                if critical_path { ", critical path" } else { "" },
                outcome.time as f64 / 1e12,
                outcome.events,
                outcome.events as f64 / used / 1e6,
                (memory().1 - before) / u64::from(count),
            );
        }
    }
    Ok(())
}
