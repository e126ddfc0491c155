//! `nodescope console`: a shell on one node's serial console.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use nodescope_cluster::{Ending, Observer, Progress};

use crate::args;
use crate::exit::{Exit, Failure};
use crate::run::{exit_of, on_interrupt};
use crate::terminal::RawMode;
use crate::{check, config};

/// Ctrl-]: leaves the console.
const LEAVE: u8 = 0x1d;
/// An idle cluster's time may run so far ahead of the host's: a shell's time then passes as a user expects.
const AHEAD: Duration = Duration::from_millis(20);
/// Quanta between two looks at the host's clock.
const QUANTA: u32 = 64;

struct Terminal {
    node: u32,
    keys: Receiver<u8>,
    interrupted: Arc<AtomicBool>,
    start: Instant,
    quanta: u32,
    pending: Vec<u8>,
}

impl Terminal {
    fn key(&mut self, key: u8) {
        if key == LEAVE {
            self.interrupted.store(true, Ordering::Relaxed);
        } else {
            self.pending.push(key);
        }
    }
}

impl Observer for Terminal {
    fn progress(&mut self, progress: &dyn Fn() -> Progress) {
        self.quanta += 1;
        if self.quanta < QUANTA {
            return;
        }
        self.quanta = 0;
        while let Ok(key) = self.keys.try_recv() {
            self.key(key);
        }
        let guest = Duration::from_nanos(progress().virtual_ps / 1000);
        let ahead = guest.saturating_sub(self.start.elapsed());
        if self.pending.is_empty() && ahead > AHEAD {
            match self.keys.recv_timeout(ahead) {
                Ok(key) => self.key(key),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(ahead),
            }
        }
    }

    fn message(&mut self, node: u32, text: &str) {
        eprint!("node{node}: {text}\r\n");
    }

    fn console(&mut self, node: u32, bytes: &[u8]) {
        if node == self.node {
            let mut out = std::io::stdout().lock();
            // A terminal that has gone ends the session.
            if out.write_all(bytes).and_then(|()| out.flush()).is_err() {
                self.interrupted.store(true, Ordering::Relaxed);
            }
        }
    }

    fn typed(&mut self, node: u32) -> Vec<u8> {
        if node == self.node {
            std::mem::take(&mut self.pending)
        } else {
            Vec::new()
        }
    }
}

/// Boots the cluster with shells in place of the job.
pub fn console(args: &args::Console) -> Result<Exit, Failure> {
    let study = check::load(&args.study)?;
    if args.node >= study.nodes {
        return Err(Failure::new(
            Exit::Study,
            format!(
                "there is no node {}; the study's nodes are 0 to {}",
                args.node,
                study.nodes - 1
            ),
        ));
    }
    let mut config = config::cluster(&study, None, &mut |line| eprintln!("{line}"))?.cluster;
    config.console = true;
    config.windows.clear();
    config.time_limit_ps = u64::MAX;
    config.deadlock_ps = None;
    let folder = tempfile::Builder::new()
        .prefix("nodescope-console-")
        .tempdir()
        .map_err(|error| {
            Failure::new(
                Exit::Host,
                format!("cannot create a temporary folder: {error}"),
            )
        })?;

    let interrupted = on_interrupt()?;
    let (sender, keys) = channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 256];
        while let Ok(count @ 1..) = std::io::stdin().lock().read(&mut buffer) {
            if buffer[..count].iter().any(|&key| sender.send(key).is_err()) {
                break;
            }
        }
    });
    eprintln!(
        "console of node{}; Ctrl-] leaves, 'exit' powers the node off",
        args.node
    );
    let mut terminal = Terminal {
        node: args.node,
        keys,
        interrupted: interrupted.clone(),
        start: Instant::now(),
        quanta: 0,
        pending: Vec::new(),
    };
    let raw = RawMode::enter();
    let result = nodescope_cluster::run(&config, folder.path(), &interrupted, &mut terminal);
    drop(raw);
    eprintln!();
    match result {
        Ok(outcome) => match outcome.ending {
            Ending::GuestPanic { node, line } => Err(Failure::new(
                Exit::Guest,
                format!("the kernel of node{node} panicked: {line}"),
            )),
            Ending::Reset { node } => Err(Failure::new(
                Exit::Guest,
                format!("node{node} reset itself"),
            )),
            _ => Ok(Exit::Ok),
        },
        Err(error) => Err(Failure::of(exit_of(&error), &error)),
    }
}
