//! Measures how long two processes of this host take to exchange a message, as at the end of each quantum of a run:

use std::env;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use nodescope_cluster::Peers;
use nodescope_distributed::{
    Admission, Group, KEY_VARIABLE, Key, Listener, Place, Transport, join,
};

const LIMIT: Duration = Duration::from_secs(20);
const VERSION: &str = "latency";
const WARM_UP: usize = 1000;
const ROUNDS: usize = 20_000;
/// Message sizes in bytes: that of a quantum without frames, and that of a quantum with one Ethernet frame.
const SIZES: [usize; 2] = [8, 1600];

type Failure = Box<dyn std::error::Error>;

/// Measures exchanges of messages with `bytes` of content. Returns their times in microseconds, sorted.
fn exchange(group: &Group, bytes: usize) -> Result<Vec<f64>, Failure> {
    let own = vec![0; bytes];
    let mut times = Vec::with_capacity(ROUNDS);
    for round in 0..WARM_UP + ROUNDS {
        let begin = Instant::now();
        group.all_gather(&own)?;
        if round >= WARM_UP {
            times.push(begin.elapsed().as_secs_f64() * 1e6);
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

fn worker(address: &str) -> Result<(), Failure> {
    let (group, _) = join(address, &Key::find(None)?, VERSION, LIMIT)?;
    for bytes in SIZES {
        exchange(&group, bytes)?;
    }
    Ok(())
}

fn master() -> Result<(), Failure> {
    let key = Key::new()?;
    let listener = Listener::bind("tcp://127.0.0.1:*", &key)?;
    let mut worker = Command::new(env::current_exe()?)
        .arg(listener.address()?)
        .env(KEY_VARIABLE, key.text())
        .spawn()?;
    let group = listener.admit(Admission {
        workers: 1,
        version: VERSION,
        task: serde_json::Value::Null,
        limit: LIMIT,
        place: Place::own(),
        transport: Transport::Sockets,
        world: None,
        share: &|_| String::new(),
        check: &mut || Ok(()),
    })?;
    for bytes in SIZES {
        let times = exchange(&group, bytes)?;
        let at = |part: f64| times[(part * (ROUNDS - 1) as f64) as usize];
        println!(
            "{bytes} bytes: median {:.1} us, 90 % within {:.1} us",
            at(0.5),
            at(0.9)
        );
    }
    worker.wait()?;
    Ok(())
}

fn main() -> ExitCode {
    let done = match env::args().nth(1) {
        Some(address) => worker(&address),
        None => master(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("latency: {failure}");
            ExitCode::FAILURE
        }
    }
}
