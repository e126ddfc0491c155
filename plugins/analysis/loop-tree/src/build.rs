//! Programs written by hand, for tests and for studies of programs that have not run.

use std::collections::HashMap;
use std::num::NonZeroU32;

use nodescope_hypercall::Function;

use crate::fold::Node;
use crate::op::{Action, Collective, CollectiveKind, Mode, Op, PeerRef, Site, Source};
use crate::program::{Bursts, Column, Program, Rank, Step};

/// Builder of a program from steps and loops, which are written in order, for one group of ranks after another.
#[derive(Clone, Debug, Default)]
pub struct ProgramBuilder {
    program: Program,
    ops: HashMap<Op, u32>,
    steps: HashMap<Step, u32>,
    slots: HashMap<u64, u32>,
    /// Nodes of the rank's outermost body and of the bodies of the open loops, innermost last.
    open: Vec<Vec<u32>>,
    burst: u64,
    block: Option<NonZeroU32>,
    used: Vec<u32>,
}

impl ProgramBuilder {
    /// Returns an empty program of no ranks.
    pub fn new() -> ProgramBuilder {
        let mut builder = ProgramBuilder::default();
        builder.program.communicators.push(Vec::new());
        builder.program.communicator_lists.push(vec![Some(0), None]);
        builder.open.push(Vec::new());
        builder
    }

    /// Adds computation of `time` picoseconds before the next operation.
    pub fn compute(&mut self, time: u64) -> &mut Self {
        self.burst += time;
        self
    }

    /// Sets the length in bytes of the contiguous blocks of which the next operation's data consists.
    pub fn blocks(&mut self, bytes: u32) -> &mut Self {
        self.block = NonZeroU32::new(bytes);
        self
    }

    /// Adds a call of `function` at the call site `site`, on the world.
    pub fn call(&mut self, function: Function, site: u64, action: Action) -> &mut Self {
        self.call_in(function, site, 0, action)
    }

    /// Adds a call of `function` at the call site `site`, on the communicator with this number.
    pub fn call_in(
        &mut self,
        function: Function,
        site: u64,
        communicator: u32,
        action: Action,
    ) -> &mut Self {
        let op = Op {
            function,
            site: Site {
                address: site,
                module: 0,
            },
            communicator,
            block: self.block.take(),
            more: false,
            action,
        };
        let op = *self.ops.entry(op.clone()).or_insert_with(|| {
            self.program.ops.push(op);
            (self.program.ops.len() - 1) as u32
        });
        // Each burst length has a slot of its own, and the length is the slot's only value.
        let slot = *self.slots.entry(self.burst).or_insert_with(|| {
            self.program.slots += 1;
            self.program.slots - 1
        });
        self.used.push(slot);
        self.burst = 0;
        let step = Step { slot, op };
        let symbol = *self.steps.entry(step).or_insert_with(|| {
            self.program.steps.push(step);
            (self.program.steps.len() - 1) as u32
        });
        let node = self.program.forest.node(Node::Leaf(symbol));
        if let Some(body) = self.open.last_mut() {
            body.push(node);
        }
        self
    }

    /// Adds a blocking send.
    pub fn send(&mut self, to: PeerRef, tag: u32, bytes: u64) -> &mut Self {
        let action = Action::Send {
            to,
            tag,
            bytes,
            mode: Mode::Standard,
            request: None,
        };
        self.call(Function::Send, 0x10, action)
    }

    /// Adds a non-blocking send.
    pub fn isend(&mut self, to: PeerRef, tag: u32, bytes: u64, request: u32) -> &mut Self {
        let action = Action::Send {
            to,
            tag,
            bytes,
            mode: Mode::Standard,
            request: Some(request),
        };
        self.call(Function::Isend, 0x20, action)
    }

    /// Adds a blocking receive.
    pub fn receive(&mut self, from: PeerRef, tag: u32, room: u64) -> &mut Self {
        let action = Action::Receive {
            from: Source::Peer(from),
            tag: Some(tag),
            room,
            request: None,
        };
        self.call(Function::Recv, 0x30, action)
    }

    /// Adds a non-blocking receive.
    pub fn ireceive(&mut self, from: PeerRef, tag: u32, room: u64, request: u32) -> &mut Self {
        let action = Action::Receive {
            from: Source::Peer(from),
            tag: Some(tag),
            room,
            request: Some(request),
        };
        self.call(Function::Irecv, 0x40, action)
    }

    /// Adds a non-blocking write to the memory of a rank.
    pub fn put(&mut self, to: PeerRef, bytes: u64, request: u32) -> &mut Self {
        let action = Action::OneSided {
            to,
            out: bytes,
            back: 0,
            request: Some(request),
        };
        self.call(Function::Put, 0x80, action)
    }

    /// Adds a non-blocking read from the memory of a rank.
    pub fn get(&mut self, from: PeerRef, bytes: u64, request: u32) -> &mut Self {
        let action = Action::OneSided {
            to: from,
            out: 0,
            back: bytes,
            request: Some(request),
        };
        self.call(Function::Get, 0x90, action)
    }

    /// Adds a wait for all of these requests.
    pub fn wait(&mut self, requests: &[u32]) -> &mut Self {
        self.call(Function::Waitall, 0x50, Action::wait(requests))
    }

    /// Adds a blocking collective on the world.
    pub fn collective(&mut self, kind: CollectiveKind, root: u32, bytes: u64) -> &mut Self {
        let function = match kind {
            CollectiveKind::Barrier | CollectiveKind::Create => Function::Barrier,
            CollectiveKind::Bcast => Function::Bcast,
            CollectiveKind::Reduce => Function::Reduce,
            CollectiveKind::Allreduce => Function::Allreduce,
            CollectiveKind::Gather => Function::Gather,
            CollectiveKind::Gatherv => Function::Gatherv,
            CollectiveKind::Scatter => Function::Scatter,
            CollectiveKind::Scatterv => Function::Scatterv,
            CollectiveKind::Allgather => Function::Allgather,
            CollectiveKind::Allgatherv => Function::Allgatherv,
            CollectiveKind::Alltoall => Function::Alltoall,
            CollectiveKind::Alltoallv => Function::Alltoallv,
            CollectiveKind::ReduceScatter => Function::ReduceScatter,
            CollectiveKind::ReduceScatterBlock => Function::ReduceScatterBlock,
            CollectiveKind::Scan => Function::Scan,
            CollectiveKind::Exscan => Function::Exscan,
        };
        let collective = Collective {
            root,
            bytes,
            ..Collective::of(kind)
        };
        let action = Action::Collective(Box::new(collective));
        self.call(function, 0x60, action)
    }

    /// Opens a loop. The operations until [`ProgramBuilder::end`] are its body.
    pub fn begin(&mut self) -> &mut Self {
        self.open.push(Vec::new());
        self
    }

    /// Closes the innermost loop, which runs `count` times; a `count` of 0 drops the loop. Without an open loop the call does nothing.
    pub fn end(&mut self, count: u32) -> &mut Self {
        if self.open.len() < 2 {
            return self;
        }
        if let Some(nodes) = self.open.pop()
            && count > 0
            && !nodes.is_empty()
        {
            let body = self.program.forest.body(&nodes);
            let node = self.program.forest.node(Node::Loop { count, body });
            if let Some(outer) = self.open.last_mut() {
                outer.push(node);
            }
        }
        self
    }

    /// Gives the operations since the previous call of `ranks` to `count` more ranks. Open loops are closed and run once. Computation
    /// without an operation behind it gets an `MPI_Finalize`.
    pub fn ranks(&mut self, count: u32) -> &mut Self {
        if self.burst > 0 {
            self.call(Function::Finalize, 0x70, Action::Nothing);
        }
        while self.open.len() > 1 {
            self.end(1);
        }
        let nodes = std::mem::take(&mut self.open[0]);
        let tree = self.program.forest.body(&nodes);
        self.used.sort_unstable();
        self.used.dedup();
        let mut bursts = Bursts::default();
        for &slot in &self.used {
            let value = self.slots.iter().find(|(_, other)| **other == slot);
            bursts.columns.push(Column {
                slot,
                start: bursts.times.len() as u32,
                length: 1,
            });
            bursts.times.push(value.map_or(0, |(time, _)| *time));
        }
        self.used.clear();
        let number = self.program.bursts.len() as u32;
        self.program.bursts.push(bursts);
        let rank = Rank {
            tree,
            communicators: 0,
            bursts: number,
        };
        let total = self.program.ranks.len() + count as usize;
        self.program.ranks.resize(total, rank);
        self
    }

    /// Returns the program with the ranks that [`ProgramBuilder::ranks`] has added.
    pub fn finish(&mut self) -> Program {
        std::mem::take(&mut self.program)
    }
}
