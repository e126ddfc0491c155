//! A program in the form that is interpreted: trees as linear code that ranks share, and operations of fixed size.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;

use nodescope_loop_tree::{Action, CollectiveKind, Mode, Node, Op, PeerRef, Program, Source};
use nodescope_trace::{Call, SiteNames};

use crate::reduce::Fragment;

/// No rank, no request, no tag.
pub(crate) const NONE: u32 = u32::MAX;
/// Any source or tag.
pub(crate) const ANY: u32 = u32::MAX - 1;

/// Instruction of a rank's code.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Instruction {
    /// A burst from a column, then an operation.
    Step { column: u32, op: u32 },
    /// A burst from a column, then an uninterpreted operation of a duration from another column.
    Opaque { column: u32, own: u32, op: u32 },
    /// A loop begins.
    Loop { count: u32 },
    /// A loop ends; the body of the loop starts at `start`.
    End { start: u32 },
    /// The rank is done.
    Stop,
}

/// An operation of fixed size.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    Nothing,
    Send {
        to: PeerRef,
        tag: u32,
        bytes: u64,
        mode: Mode,
        request: u32,
    },
    Receive {
        from: Option<PeerRef>,
        /// True if the receive accepts any source, and `from` is the one whose message matched according to the trace.
        any: bool,
        tag: u32,
        room: u64,
        request: u32,
    },
    OneSided {
        to: PeerRef,
        out: u64,
        back: u64,
        request: u32,
    },
    /// Send and receive at once, by the index in `send_receives`.
    SendReceive(u32),
    Probe {
        from: Option<PeerRef>,
        /// As of a receive.
        any: bool,
        tag: u32,
    },
    /// Mark, by its number, at which the time is noted.
    Mark(u32),
    /// Reduced fragment, by its number.
    Reduced(u32),
    /// Wait for requests: the range of their numbers in `lists`.
    Wait {
        start: u32,
        length: u32,
    },
    /// Wait for `length` requests: the range of those that completed in the trace, and behind it in `lists` the `among` requests of which
    /// the first to complete count.
    WaitSome {
        start: u32,
        length: u32,
        among: u32,
    },
    Free {
        start: u32,
        length: u32,
    },
    Cancel {
        start: u32,
        length: u32,
    },
    /// Collective, by the index in `collectives`.
    Collective(u32),
}

/// A send and a receive in one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendReceive {
    pub send: Option<(PeerRef, u32, u64)>,
    pub receive: Option<(Option<PeerRef>, u32, u64)>,
}

/// Collective operation with its parameters, as code of a rank.
#[derive(Clone, Debug)]
pub(crate) struct CollectiveCode {
    pub kind: CollectiveKind,
    pub root: u32,
    pub bytes: u64,
    pub send_to: Box<[u64]>,
    pub receive_from: Box<[u64]>,
    pub request: u32,
}

/// Entries of a rank in the tables of the code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RankCode {
    pub start: u32,
    pub bursts: u32,
    pub communicators: u32,
    /// Number of the rank's first loop counter.
    pub loops: u32,
    /// Number of the rank's first request.
    pub requests: u32,
    /// Number of the rank's first cursor into its columns; `NONE` where every column has one value.
    pub cursors: u32,
}

/// A program in the form that is interpreted.
#[derive(Debug)]
pub struct Code<'p> {
    pub(crate) program: &'p Program,
    pub(crate) instructions: Vec<Instruction>,
    pub(crate) operations: Vec<Operation>,
    /// Call site and function of each operation, as an index into `call_sites`.
    pub(crate) site_of: Vec<u32>,
    /// One operation of each call site and function, for its name.
    pub(crate) call_sites: Vec<u32>,
    pub(crate) communicator_of: Vec<u32>,
    /// By operation: length of the blocks of which its data consists, if it consists of several.
    pub(crate) blocks: Vec<Option<NonZeroU32>>,
    pub(crate) send_receives: Vec<SendReceive>,
    pub(crate) collectives: Vec<CollectiveCode>,
    pub(crate) lists: Vec<u32>,
    pub(crate) ranks: Vec<RankCode>,
    pub(crate) loops: u32,
    pub(crate) requests: u32,
    pub(crate) cursors: u32,
    /// Number of marks in the program.
    pub(crate) marks: u32,
    /// Fragments that have been reduced.
    pub(crate) fragments: &'p [Fragment],
    /// True if a receive accepts any source or any tag, or if there is a probe.
    pub(crate) wildcards: bool,
    /// True if a receive or probe accepts any source, of which the trace tells whose message matched.
    pub(crate) any_source: bool,
    /// True if a send or receive continues while its rank does other work.
    pub(crate) overlaps: bool,
    /// True if a collective continues while its rank does other work.
    pub(crate) nonblocking_collectives: bool,
    /// True if a rank reads or writes another rank's memory.
    pub(crate) one_sided: bool,
}

impl<'p> Code<'p> {
    /// Returns the code of a program in which fragments have been reduced.
    pub fn with_fragments(program: &'p Program, fragments: &'p [Fragment]) -> Code<'p> {
        Code {
            fragments,
            ..Code::new(program)
        }
    }

    /// Returns the code of a program.
    pub fn new(program: &'p Program) -> Code<'p> {
        let mut code = Code {
            program,
            instructions: Vec::new(),
            operations: Vec::with_capacity(program.ops.len()),
            site_of: Vec::with_capacity(program.ops.len()),
            call_sites: Vec::new(),
            communicator_of: program.ops.iter().map(|op| op.communicator).collect(),
            blocks: program.ops.iter().map(|op| op.block).collect(),
            send_receives: Vec::new(),
            collectives: Vec::new(),
            lists: Vec::new(),
            ranks: Vec::with_capacity(program.ranks.len()),
            loops: 0,
            requests: 0,
            cursors: 0,
            marks: 0,
            fragments: &[],
            wildcards: false,
            any_source: false,
            overlaps: false,
            nonblocking_collectives: false,
            one_sided: false,
        };
        let mut call_sites = HashMap::new();
        for (number, op) in program.ops.iter().enumerate() {
            let operation = code.operation(op);
            code.operations.push(operation);
            let site = *call_sites.entry((op.site, op.function)).or_insert_with(|| {
                code.call_sites.push(number as u32);
                (code.call_sites.len() - 1) as u32
            });
            code.site_of.push(site);
        }
        code.ranks(program);
        code
    }

    fn ranks(&mut self, program: &Program) {
        struct Tree {
            start: u32,
            depth: u32,
            requests: u32,
        }
        let mut trees: HashMap<(u32, u32), Tree> = HashMap::new();
        // The code numbers columns as the rank's bursts do, so ranks share code only if they have the same tree and the same slots.
        let mut layouts: HashMap<Vec<u32>, u32> = HashMap::new();
        for rank in &program.ranks {
            let bursts = &program.bursts[rank.bursts as usize];
            let slots: Vec<u32> = bursts.columns.iter().map(|column| column.slot).collect();
            let next = layouts.len() as u32;
            let layout = match layouts.get(&slots) {
                Some(&layout) => layout,
                None => {
                    layouts.insert(slots.clone(), next);
                    next
                }
            };
            let tree = trees.entry((rank.tree, layout)).or_insert_with(|| {
                let columns: HashMap<u32, u32> = slots
                    .iter()
                    .zip(0..)
                    .map(|(&slot, at)| (slot, at))
                    .collect();
                let start = self.instructions.len() as u32;
                let mut requests = 0;
                let depth = self.emit(program, rank.tree, &columns, &mut requests);
                self.instructions.push(Instruction::Stop);
                Tree {
                    start,
                    depth,
                    requests,
                }
            });
            let varied = bursts.columns.iter().any(|column| column.length > 1);
            self.ranks.push(RankCode {
                start: tree.start,
                bursts: rank.bursts,
                communicators: rank.communicators,
                loops: self.loops,
                requests: self.requests,
                cursors: if varied { self.cursors } else { NONE },
            });
            self.loops += tree.depth;
            self.requests += tree.requests;
            if varied {
                self.cursors += bursts.columns.len() as u32;
            }
        }
    }

    /// Writes the code of a body, and returns the depth of its loops.
    fn emit(
        &mut self,
        program: &Program,
        body: u32,
        columns: &HashMap<u32, u32>,
        requests: &mut u32,
    ) -> u32 {
        let mut depth = 0;
        let column = |slot: u32| columns.get(&slot).copied().unwrap_or(NONE);
        for &node in program.forest.children(body) {
            match program.forest.get(node) {
                Node::Leaf(symbol) => {
                    let step = program.steps[symbol as usize];
                    let op = &program.ops[step.op as usize];
                    *requests = (*requests).max(most_requests(op));
                    self.instructions.push(match op.action {
                        Action::Opaque => Instruction::Opaque {
                            column: column(step.slot),
                            own: program.opaque_slot(op).map_or(NONE, column),
                            op: step.op,
                        },
                        _ => Instruction::Step {
                            column: column(step.slot),
                            op: step.op,
                        },
                    });
                }
                Node::Loop { count, body } => {
                    self.instructions.push(Instruction::Loop { count });
                    let start = self.instructions.len() as u32;
                    depth = depth.max(1 + self.emit(program, body, columns, requests));
                    self.instructions.push(Instruction::End { start });
                }
            }
        }
        depth
    }

    fn operation(&mut self, op: &Op) -> Operation {
        let mut source = |from: &Source| {
            self.wildcards |= *from == Source::Any;
            self.any_source |= matches!(from, Source::Matched(_));
            from.peer()
        };
        let any = |from: &Source| matches!(from, Source::Matched(_));
        match &op.action {
            Action::Nothing | Action::Opaque => Operation::Nothing,
            Action::Reduced(number) => Operation::Reduced(*number),
            Action::Mark(number) => {
                self.marks = self.marks.max(number + 1);
                Operation::Mark(*number)
            }
            Action::Send {
                to,
                tag,
                bytes,
                mode,
                request,
            } => {
                self.overlaps |= request.is_some();
                Operation::Send {
                    to: *to,
                    tag: *tag,
                    bytes: *bytes,
                    mode: *mode,
                    request: request.unwrap_or(NONE),
                }
            }
            Action::Receive {
                from,
                tag,
                room,
                request,
            } => {
                let any = any(from);
                let from = source(from);
                self.wildcards |= tag.is_none();
                self.overlaps |= request.is_some();
                Operation::Receive {
                    from,
                    any,
                    tag: tag.unwrap_or(ANY),
                    room: *room,
                    request: request.unwrap_or(NONE),
                }
            }
            Action::SendReceive { send, receive } => {
                let receive = receive.map(|(from, tag, room)| {
                    self.wildcards |= tag.is_none() || from == Source::Any;
                    (from.peer(), tag.unwrap_or(ANY), room)
                });
                self.send_receives.push(SendReceive {
                    send: *send,
                    receive,
                });
                Operation::SendReceive((self.send_receives.len() - 1) as u32)
            }
            Action::OneSided {
                to,
                out,
                back,
                request,
            } => {
                self.one_sided = true;
                Operation::OneSided {
                    to: *to,
                    out: *out,
                    back: *back,
                    request: request.unwrap_or(NONE),
                }
            }
            Action::Probe { from, tag } => {
                let any = any(from);
                let from = source(from);
                self.wildcards = true;
                Operation::Probe {
                    from,
                    any,
                    tag: tag.unwrap_or(ANY),
                }
            }
            Action::Wait { requests, among } => {
                let (start, length) = self.list(requests);
                if among.is_empty() {
                    return Operation::Wait { start, length };
                }
                self.any_source = true;
                let (_, among) = self.list(among);
                Operation::WaitSome {
                    start,
                    length,
                    among,
                }
            }
            Action::Free { requests } => {
                let (start, length) = self.list(requests);
                Operation::Free { start, length }
            }
            Action::Cancel { requests } => {
                let (start, length) = self.list(requests);
                Operation::Cancel { start, length }
            }
            Action::Collective(collective) => {
                self.nonblocking_collectives |= collective.request.is_some();
                self.collectives.push(CollectiveCode {
                    kind: collective.kind,
                    root: collective.root,
                    bytes: collective.bytes,
                    send_to: collective.send_to.clone(),
                    receive_from: collective.receive_from.clone(),
                    request: collective.request.unwrap_or(NONE),
                });
                Operation::Collective((self.collectives.len() - 1) as u32)
            }
        }
    }

    fn list(&mut self, requests: &[u32]) -> (u32, u32) {
        let start = self.lists.len() as u32;
        self.lists.extend(requests);
        (start, requests.len() as u32)
    }

    /// Returns an operation of a call site, by the site's index in `call_sites`, for its function and site; `None` for an index of no call
    /// site.
    pub(crate) fn op_at(&self, site: u32) -> Option<&'p Op> {
        let op = *self.call_sites.get(site as usize)?;
        self.program.ops.get(op as usize)
    }

    /// Returns the function and site of an operation; "the end" for a number of no operation.
    pub(crate) fn describe(&self, op: u32) -> Call {
        match self.program.ops.get(op as usize) {
            Some(op) => describe(&self.program.origin.names, op),
            None => Call::without_site("the end"),
        }
    }

    /// Returns the number of ranks in each communicator, by its number.
    pub(crate) fn communicator_sizes(&self) -> Vec<u32> {
        let world = self.program.ranks.len() as u32;
        let size = |members: &Vec<u32>| match members.len() {
            0 => world,
            size => size as u32,
        };
        self.program.communicators.iter().map(size).collect()
    }

    /// Returns the rank in a communicator by world rank; empty for the world.
    pub(crate) fn ranks_in(&self, number: u32) -> BTreeMap<u32, u32> {
        self.program.communicators[number as usize]
            .iter()
            .zip(0..)
            .map(|(&rank, at)| (rank, at))
            .collect()
    }
}

/// Returns the function and site of an operation.
pub(crate) fn describe(names: &SiteNames, op: &Op) -> Call {
    names.call(op.function.name(), op.site)
}

fn most_requests(op: &Op) -> u32 {
    let after = |request: &u32| request + 1;
    match &op.action {
        Action::Send { request, .. }
        | Action::Receive { request, .. }
        | Action::OneSided { request, .. } => request.as_ref().map_or(0, after),
        Action::Collective(collective) => collective.request.as_ref().map_or(0, after),
        Action::Wait { requests, among } => {
            requests.iter().chain(among).map(after).max().unwrap_or(0)
        }
        Action::Free { requests } | Action::Cancel { requests } => {
            requests.iter().map(after).max().unwrap_or(0)
        }
        _ => 0,
    }
}
