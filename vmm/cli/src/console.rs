//! `nodescope console`: a shell on one node's serial console.

use std::io::{IsTerminal, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::time::{Duration, Instant};

use nodescope_cluster::{Ending, Observer, Progress, ResultsFolder};
use nodescope_hypercall::printable;

use crate::args;
use crate::exit::{Exit, Failure};
use crate::interrupt::on_interrupt;
use crate::results::folder_failure;
use crate::run::exit_of;
use crate::terminal::{RawMode, print_error_line, print_note};
use crate::{check, config, sandbox};

/// Ctrl-], the key that leaves the console and ends the run.
const LEAVE: u8 = 0x1d;
/// Ctrl-D, which the guest's terminal takes as the end of input.
const END_OF_INPUT: u8 = 0x04;
/// Greatest lead of the cluster's virtual time over the host's time while no key waits to be typed, so that time in a shell passes as a
/// user expects.
const MAX_AHEAD: Duration = Duration::from_millis(20);
/// Longest wait for a key, while the cluster waits for the host's time, before signals are checked again.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Virtual time between two ends of input that are typed at a silent console, picoseconds.
const END_INTERVAL_PS: u64 = 1_000_000_000_000;
/// Number of ends of input after which the console is left, if the node still runs.
const MAX_ENDS: u32 = 30;
/// Line that the image's init prints before it starts the shell (`guest-images/debian/root/opt/nodescope/init`). The guest's driver of the
/// serial port loses input while it starts, so text from a file or a pipe is typed only after this line.
const SHELL: &[u8] = b"shell on the console";
/// Virtual time since power-on, in picoseconds, after which keys are typed even if the console has not printed `SHELL`: other images do not
/// print that line.
const SHELL_PS: u64 = 5_000_000_000_000;

struct Terminal {
    node: u32,
    keys: Receiver<u8>,
    interrupted: Arc<AtomicBool>,
    start: Instant,
    pending: Vec<u8>,
    /// True once keys may be typed at the node. Until then, `said` is the end of the console's output.
    ready: bool,
    said: Vec<u8>,
    /// Virtual time in picoseconds since which the console has been silent and got no end of input; `None` before standard input has ended.
    silent_since: Option<u64>,
    /// Number of ends of input that were typed.
    ends: u32,
    /// True if the console has written something since `end_of_input` last cleared this flag.
    heard: bool,
}

impl Terminal {
    fn key(&mut self, key: u8) {
        if key == LEAVE {
            self.interrupted.store(true, Ordering::Relaxed);
        } else {
            self.pending.push(key);
        }
    }

    /// Handles the end of standard input. Types an end of input at the node's shell after each silence of `END_INTERVAL_PS`: a shell ends
    /// and powers its node off, but a shell that has not started yet, or a program that still reads, needs a later one. After `MAX_ENDS` of
    /// them, interrupts the run.
    fn end_of_input(&mut self, now_ps: u64) {
        let begins = self.silent_since.is_none();
        if begins || std::mem::take(&mut self.heard) {
            self.silent_since = Some(now_ps);
        }
        let silent = now_ps.saturating_sub(self.silent_since.unwrap_or(now_ps));
        if silent < END_INTERVAL_PS {
            return;
        }
        if self.ends == MAX_ENDS {
            self.interrupted.store(true, Ordering::Relaxed);
            return;
        }
        self.ends += 1;
        self.pending.push(END_OF_INPUT);
        self.silent_since = Some(now_ps);
    }
}

impl Observer for Terminal {
    fn progress(&mut self, progress: &dyn Fn() -> Progress) {
        let now_ps = progress().virtual_ps;
        self.ready |= now_ps >= SHELL_PS;
        if !self.ready {
            return;
        }
        let guest = Duration::from_nanos(now_ps / 1000);
        loop {
            let key = match self.keys.try_recv() {
                Err(TryRecvError::Empty) => None,
                Ok(key) => Some(key),
                Err(TryRecvError::Disconnected) => {
                    self.end_of_input(now_ps);
                    return;
                }
            };
            if let Some(key) = key {
                self.key(key);
                continue;
            }
            let ahead = guest.saturating_sub(self.start.elapsed());
            let waits = self.pending.is_empty() && ahead > MAX_AHEAD;
            // A signal sets `interrupted`, and then this loop must not wait for keys.
            if !waits || self.interrupted.load(Ordering::Relaxed) {
                return;
            }
            match self.keys.recv_timeout(ahead.min(CHECK_INTERVAL)) {
                Ok(key) => self.key(key),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
        }
    }

    fn message(&mut self, node: u32, text: &str) {
        print_error_line(&format!("node{node}: {}\r", printable(text)));
    }

    fn console(&mut self, node: u32, bytes: &[u8]) {
        if node == self.node {
            self.heard = true;
            if !self.ready {
                self.said.extend(bytes);
                self.ready = self.said.windows(SHELL.len()).any(|part| part == SHELL);
                let past = self.said.len().saturating_sub(SHELL.len());
                self.said.drain(..past);
            }
            let mut out = std::io::stdout().lock();
            // An error means that the user's terminal is gone, which ends the session.
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

/// Boots the cluster with shells in place of the job, and connects this terminal to one node's console until the run ends.
pub fn console(args: &args::Console) -> Result<Exit, Failure> {
    let study = check::load(&args.study, None, 1)?;
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
    let mut signals = on_interrupt()?;
    let interrupted = &Arc::clone(signals.flag());
    let prepared = config::cluster(&study, None, interrupted, &mut print_note)?;
    let mut config = prepared.cluster;
    config.console = true;
    config.windows.clear();
    config.time_limit_ps = u64::MAX;
    config.deadlock_ps = None;
    let kept = sandbox::Kept::default();
    let _confined = sandbox::enter(args.sandbox, &study, &config, kept, &mut signals)?;
    let folder = tempfile::Builder::new()
        .prefix("nodescope-console-")
        .tempdir()
        .map_err(|error| {
            Failure::new(
                Exit::Host,
                format!("cannot create a temporary folder: {error}"),
            )
        })?;

    let results = ResultsFolder::create(folder.path()).map_err(folder_failure)?;
    signals.arm("", || ());
    let (sender, keys) = channel();
    std::thread::Builder::new()
        .spawn(move || {
            let mut buffer = [0; 256];
            while let Ok(count @ 1..) = std::io::stdin().lock().read(&mut buffer) {
                if buffer[..count].iter().any(|&key| sender.send(key).is_err()) {
                    break;
                }
            }
        })
        .map_err(|error| {
            Failure::new(
                Exit::Host,
                format!("cannot start a thread for keys: {error}"),
            )
        })?;
    print_note(&format!(
        "console of node{}; Ctrl-] leaves, 'exit' powers the node off",
        args.node
    ));
    let mut terminal = Terminal {
        node: args.node,
        keys,
        interrupted: interrupted.clone(),
        start: Instant::now(),
        pending: Vec::new(),
        // A user at a terminal sees when the shell is ready, and keys are typed at once.
        ready: std::io::stdin().is_terminal(),
        said: Vec::new(),
        silent_since: None,
        ends: 0,
        heard: false,
    };
    let raw = RawMode::enter();
    let result = nodescope_cluster::run(&config, &results, interrupted, &mut terminal);
    drop(raw);
    print_note("");
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
