//! Prints a trace, one event per line: `dump TRACE [RANK]`. With RANK, prints only the MPI calls of this world rank.
use nodescope_trace::{Body, TraceReader};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let file = args.next().ok_or("usage: dump TRACE [RANK]")?;
    let rank: Option<u32> = args.next().map(|r| r.parse()).transpose()?;
    for event in TraceReader::open(file)?.events() {
        let event = event?;
        let ms = event.stamp.time as f64 / 1e9;
        match event.body {
            Body::Mpi(call) => {
                let r = &call.record;
                if rank.is_none() || rank == r.rank.rank() {
                    println!(
                        "{ms:.6} ms  node {}  rank {:?}  {}  bytes {}/{}  to {:?} from {:?}  {:.3} us",
                        event.node,
                        r.rank.rank(),
                        r.function,
                        r.send_bytes,
                        r.receive_bytes,
                        r.destination.rank(),
                        r.source.rank(),
                        (call.exit.time - call.entry.time) as f64 / 1e6,
                    );
                }
            }
            body if rank.is_none() => println!("{ms:.6} ms  node {}  {body:?}", event.node),
            _ => {}
        }
    }
    Ok(())
}
