//! Interpretation of reduced fragments: a rank leaves a fragment when all ranks that it waits for, directly or through others, have
//! entered.

use std::collections::VecDeque;

use super::critical_path::{Origin, Way};
use super::opening::Openings;
use super::{Cause, Interpreter, Options, Target};
use crate::cluster::Cluster;
use crate::code::Code;
use crate::network::ReceiveCost;
use crate::reduce::{Delay, Fragment, Input};
use crate::result::WaitKind;

/// Entries of the ranks into one fragment, for all executions of the fragment that some rank has still to leave.
#[derive(Debug)]
pub(super) struct Entries {
    /// Number of each rank's entries, by index in the fragment.
    entered: Vec<u32>,
    /// Number of the first instance in `open`: of the first execution that some rank has still to leave.
    base: u32,
    open: VecDeque<Instance>,
}

/// A rank's entry into a fragment.
#[derive(Clone, Copy, Debug)]
struct Entry {
    clock: u64,
    port: u64,
    op: u32,
    origin: Origin,
}

/// State of one execution of a fragment: the entries of its ranks.
#[derive(Clone, Debug)]
struct Instance {
    /// Entries by the rank's index in the fragment.
    inputs: Vec<Option<Entry>>,
    /// Indices of the ranks that have entered and not left.
    waiting: Vec<u32>,
    left: usize,
}

impl Entries {
    pub fn all(fragments: &[Fragment]) -> Vec<Entries> {
        let entries = |fragment: &Fragment| Entries {
            entered: vec![0; fragment.ranks.len()],
            base: 0,
            open: VecDeque::new(),
        };
        fragments.iter().map(entries).collect()
    }
}

impl Interpreter<'_> {
    /// Lets a rank enter a reduced fragment. Every rank that now has all the entries that it waits for leaves the fragment.
    pub(super) fn enter_reduced(&mut self, context: u32, number: u32) {
        let code = self.code;
        let Some(fragment) = code.fragments.get(number as usize) else {
            return;
        };
        let Ok(index) = fragment.ranks.binary_search(&context) else {
            return;
        };
        let (clock, op) = {
            let c = &mut self.contexts[context as usize];
            c.pending += 1;
            (c.clock, c.op)
        };
        let port = match self.cluster.contention {
            true => 0,
            false => self.links.port(context),
        };
        let entry = Entry {
            clock,
            port,
            op,
            origin: self.origin(context),
        };
        let own = &fragment.costs[index];
        let account = &mut self.accounts[context as usize];
        account.computation = account.computation.saturating_add(own.computation);
        account.opaque = account.opaque.saturating_add(own.opaque);
        self.events += 1;
        self.sent += own.messages;
        self.sent_bytes = self.sent_bytes.saturating_add(own.bytes);
        let entries = &mut self.reduced[number as usize];
        let instance = entries.entered[index];
        entries.entered[index] += 1;
        let at = (instance - entries.base) as usize;
        if at == entries.open.len() {
            entries.open.push_back(Instance {
                inputs: vec![None; fragment.ranks.len()],
                waiting: Vec::new(),
                left: 0,
            });
        }
        let open = &mut entries.open[at];
        open.inputs[index] = Some(entry);
        open.waiting.push(index as u32);
        // Ranks leave when all of their inputs are there.
        let mut leave = Vec::new();
        open.waiting.retain(|&waiting| {
            let needs = &fragment.exits[waiting as usize];
            let ready = |delay: &Delay| open.inputs[delay.from as usize].is_some();
            let all = needs.clock.iter().chain(&needs.port).all(ready);
            if all {
                leave.push((waiting, open.inputs.clone()));
            }
            !all
        });
        open.left += leave.len();
        while (entries.open.front()).is_some_and(|first| first.left == fragment.ranks.len()) {
            entries.open.pop_front();
            entries.base += 1;
        }
        for (index, inputs) in leave {
            self.leave_reduced(fragment, index as usize, &inputs);
        }
    }

    fn leave_reduced(&mut self, fragment: &Fragment, index: usize, inputs: &[Option<Entry>]) {
        let rank = fragment.ranks[index];
        let own = inputs[index].map_or(0, |entry| entry.clock);
        let latest = |delays: &[Delay], most: u64| {
            let times = delays.iter().filter_map(|delay| {
                let entry = inputs[delay.from as usize]?;
                let input = match delay.input {
                    Input::Clock => entry.clock,
                    Input::Port => entry.port,
                };
                Some((input.min(most) + delay.time, delay.from))
            });
            times.max_by_key(|&(time, from)| (time, u32::MAX - from))
        };
        let needs = &fragment.exits[index];
        if !self.cluster.contention
            && let Some((until, _)) = latest(&needs.port, u64::MAX)
        {
            self.links.keep_port(rank, until);
        }
        // A rank's own entry is always among its inputs.
        let Some((time, from)) = latest(&needs.clock, u64::MAX) else {
            return;
        };
        let Some(entry) = inputs[from as usize] else {
            return;
        };
        // The rank's wait is the time by which it would leave earlier if no rank had entered later than itself.
        let prompt = latest(&needs.clock, own).map_or(time, |(time, _)| time);
        let cause = Cause {
            at: own + (time - prompt),
            rank: fragment.ranks[from as usize],
            op: entry.op,
            kind: WaitKind::Collective,
            origin: entry.origin,
            bytes: 0,
            way: Way::Nothing,
        };
        self.complete(Target::Context(rank), time, ReceiveCost::default(), cause);
    }
}

/// Result of an interpretation that began at given times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    /// Time on each rank's clock when the interpretation ended, by rank, picoseconds.
    pub clocks: Vec<u64>,
    /// Time from which each rank's port is free, by rank, picoseconds; the port is a sender's link to the network.
    pub ports: Vec<u64>,
    /// Time of computation, and time of uninterpreted calls, by rank, picoseconds.
    pub computation: Vec<(u64, u64)>,
    /// Number of messages that all ranks sent, and the sum of their bytes.
    pub sent: (u64, u64),
    /// True if a rank has processed several messages one after the other in one wait.
    pub queued: bool,
    /// The first problem, in words; `None` if there was none.
    pub problem: Option<String>,
}

/// Interprets a program whose ranks begin at given times, with ports that are free from given times.
pub(crate) fn interpret_from(
    code: &Code<'_>,
    cluster: &Cluster,
    nodes: &[u32],
    clocks: &[u64],
    ports: &[u64],
) -> Ends {
    let options = Options {
        critical_path: false,
        links: 0,
        ..Options::default()
    };
    let mut interpreter = Interpreter::new(code, cluster, &options, nodes.to_vec());
    // What comes before has opened the connections.
    interpreter.openings = Openings::default();
    for (context, &clock) in interpreter.contexts.iter_mut().zip(clocks) {
        context.clock = clock;
    }
    if !cluster.contention {
        for (rank, &port) in (0..).zip(ports) {
            interpreter.links.keep_port(rank, port);
        }
    }
    interpreter.run();
    interpreter.leftovers();
    let world = interpreter.world;
    Ends {
        clocks: (interpreter.contexts.iter().take(world as usize))
            .map(|context| context.clock)
            .collect(),
        ports: (0..world)
            .map(|rank| interpreter.links.port(rank))
            .collect(),
        computation: (interpreter.accounts.iter())
            .map(|account| (account.computation, account.opaque))
            .collect(),
        sent: (interpreter.sent, interpreter.sent_bytes),
        queued: interpreter.queued,
        problem: interpreter
            .problems
            .first()
            .map(|problem| problem.to_string().trim().to_owned()),
    }
}
