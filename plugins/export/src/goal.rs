//! Export as a GOAL schedule: `trace.goal`, the text that LogGOPSim's `txt2bin` reads (Hoefler, Siebert, Lumsdaine: "Group Operation
//! Assembly Language - A Flexible Way to Express Collective Communication", ICPP 2009).
//!
//! A rank's calls become a chain. Each operation requires the end of the one before, or, if that one was only started, its begin. What a
//! call waits for is required by the next operation. Work is in nanoseconds. GOAL has messages only: collectives become messages by the
//! algorithms of [`crate::collectives`], and every message has a tag of its own, since GOAL has no communicators.

use std::collections::HashMap;
use std::fmt::Write;

use nodescope_hypercall::{Class, Function, MpiRecord};
use nodescope_trace::WorkBetweenCalls;

use crate::collectives::{self, Action, Lowered, lowered};
use crate::error::ExportError;
use crate::left_out::LeftOut;
use crate::output::{Output, Part};
use crate::steps::{Operation, Step, SteppedCall};
use crate::stream::{Channel, Sink, stream};
use crate::survey::Survey;
use crate::tags::Tags;
use crate::{Job, Summary};

/// Writes `trace.goal`.
pub(crate) fn write(job: &Job<'_>) -> Result<Summary, ExportError> {
    let survey = job.survey;
    let world = survey.one_world(job.options.world, "A GOAL schedule")?;
    let ranks = survey.complete(world, "A GOAL schedule")?;
    let folder = tempfile::tempdir_in(job.folder).map_err(ExportError::io("write", job.folder))?;
    let parts: Result<Vec<Part>, ExportError> = (0..ranks)
        .map(|rank| Part::create(folder.path().join(rank.to_string())))
        .collect();
    let mut sink = Goal {
        survey,
        world,
        ranks: vec![Rank::default(); ranks as usize],
        parts: parts?,
        tags: Tags::default(),
        left_out: LeftOut::default(),
    };
    let mut notes = stream(job, &mut sink)?;
    let mut out = Output::create(job.file("trace.goal"))?;
    out.put(format!("num_ranks {ranks}\n"))?;
    for (rank, part) in sink.parts.iter_mut().enumerate() {
        part.flush()?;
        out.put(format!("\nrank {rank} {{\n"))?;
        let path = part.path();
        let mut input = std::fs::File::open(path).map_err(ExportError::io("read", path))?;
        out.copy(&mut input)?;
        out.put("}\n")?;
    }
    sink.left_out.add_notes(&mut notes);
    let (sends, receives) = sink.tags.open();
    if sends + receives > 0 {
        notes.push(format!(
            "{sends} messages have no receive in the trace and {receives} receives no message: the simulation leaves out what comes after"
        ));
    }
    if survey.worlds.len() > 1 {
        notes.push(format!(
            "the trace has {} MPI programs; this is number {world}",
            survey.worlds.len()
        ));
    }
    Ok(Summary {
        files: vec![out.finish()?],
        notes,
        ..Summary::default()
    })
}

/// What the next operation of a rank depends on: the number of an earlier operation, and whether only its begin is required.
#[derive(Clone, Copy, Debug)]
struct Edge {
    label: u64,
    begun: bool,
}

#[derive(Clone, Debug, Default)]
struct Rank {
    calls: WorkBetweenCalls,
    /// Work that is not written yet, picoseconds.
    work: u64,
    /// Number of operations so far.
    operations: u64,
    front: Vec<Edge>,
    /// Operations of each pending request, by the request's serial number.
    pending: HashMap<u64, Vec<u64>>,
}

struct Goal<'a> {
    survey: &'a Survey,
    world: usize,
    ranks: Vec<Rank>,
    parts: Vec<Part>,
    tags: Tags,
    left_out: LeftOut,
}

impl Goal<'_> {
    /// Writes an operation, which depends on those before, and returns its number. The next operation depends on its end, or if `starts`,
    /// on its begin.
    fn put(&mut self, rank: u32, what: &str, starts: bool) -> Result<u64, ExportError> {
        let entry = &mut self.ranks[rank as usize];
        entry.operations += 1;
        let label = entry.operations;
        let mut text = format!("l{label}: {what}\n");
        for edge in &entry.front {
            let kind = if edge.begun { "irequires" } else { "requires" };
            let _ = writeln!(text, "l{label} {kind} l{}", edge.label);
        }
        let begun = starts;
        entry.front = vec![Edge { label, begun }];
        self.parts[rank as usize].put(&text)?;
        Ok(label)
    }

    /// Writes the work that is not written yet.
    fn flush(&mut self, rank: u32) -> Result<(), ExportError> {
        let entry = &mut self.ranks[rank as usize];
        let nanoseconds = entry.work / 1000;
        // A picosecond does not get lost: it is part of later work.
        entry.work %= 1000;
        if nanoseconds > 0 {
            self.put(rank, &format!("calc {nanoseconds}"), false)?;
        }
        Ok(())
    }

    /// Writes an operation after the work before it.
    fn operation(&mut self, rank: u32, what: &str, starts: bool) -> Result<u64, ExportError> {
        self.flush(rank)?;
        self.put(rank, what, starts)
    }

    fn send(
        &mut self,
        channel: Channel,
        collective: bool,
        bytes: u64,
        starts: bool,
    ) -> Result<u64, ExportError> {
        let tag = self.tags.next(channel, collective, true);
        let text = format!("send {}b to {} tag {tag}", size(bytes), channel.to);
        self.operation(channel.from, &text, starts)
    }

    fn receive(
        &mut self,
        channel: Channel,
        collective: bool,
        bytes: u64,
        starts: bool,
    ) -> Result<u64, ExportError> {
        let tag = self.tags.next(channel, collective, false);
        let text = format!("recv {}b from {} tag {tag}", size(bytes), channel.from);
        self.operation(channel.to, &text, starts)
    }

    /// Makes the next operation require the ends of operations. The work before the wait does not require them.
    fn wait(&mut self, rank: u32, labels: &[u64]) -> Result<(), ExportError> {
        if labels.is_empty() {
            return Ok(());
        }
        self.flush(rank)?;
        let front = &mut self.ranks[rank as usize].front;
        front.retain(|edge| !labels.contains(&edge.label));
        let edges = labels.iter().map(|&label| Edge {
            label,
            begun: false,
        });
        front.extend(edges);
        Ok(())
    }

    fn channel(&self, communicator: u64, from: u32, to: u32, tag: u32) -> Channel {
        Channel {
            world: self.world,
            communicator,
            from,
            to,
            tag,
        }
    }

    /// Writes a step of a call. Completed requests are added to `done`.
    fn step(&mut self, rank: u32, step: &Step, done: &mut Vec<u64>) -> Result<(), ExportError> {
        let (request, label) = match step {
            Step::Send(send) => {
                let channel = self.channel(send.communicator, rank, send.to, send.tag);
                let starts = send.request != 0;
                (send.request, self.send(channel, false, send.bytes, starts)?)
            }
            Step::Receive(posted) => {
                let Some(message) = &posted.message else {
                    self.left_out.unresolved += 1;
                    return Ok(());
                };
                let channel = self.channel(posted.communicator, message.from, rank, message.tag);
                let starts = posted.request != 0;
                let label = self.receive(channel, false, message.bytes, starts)?;
                (posted.request, label)
            }
            Step::Complete {
                request, operation, ..
            } => {
                // A receive without its message was left out, and has no operation.
                let waits =
                    !matches!(operation, Operation::Receive(receive) if receive.message.is_none());
                done.extend(waits.then_some(*request));
                return Ok(());
            }
            Step::Collective(collective) => {
                return self.collective(rank, &collective.record, collective.request);
            }
        };
        if request != 0 {
            let pending = &mut self.ranks[rank as usize].pending;
            pending.insert(request, vec![label]);
        }
        Ok(())
    }

    /// Writes a send and a receive of one call, neither of which waits for the other.
    fn exchange(&mut self, rank: u32, steps: &[Step]) -> Result<(), ExportError> {
        let mut sent = None;
        for step in steps {
            match step {
                Step::Send(send) => {
                    let channel = self.channel(send.communicator, rank, send.to, send.tag);
                    sent = Some(self.send(channel, false, send.bytes, true)?);
                }
                step => self.step(rank, step, &mut Vec::new())?,
            }
        }
        if let Some(sent) = sent {
            self.wait(rank, &[sent])?;
        }
        Ok(())
    }

    /// Writes a collective operation; `request` is 0 for a blocking one.
    fn collective(
        &mut self,
        rank: u32,
        record: &MpiRecord,
        request: u64,
    ) -> Result<(), ExportError> {
        let survey = self.survey;
        let actions = match lowered(&survey.worlds[self.world], rank, record) {
            Lowered::Alone => return Ok(()),
            Lowered::BetweenGroups => {
                self.left_out.between += 1;
                return Ok(());
            }
            Lowered::Unknown => {
                self.left_out.unknown_members += 1;
                return Ok(());
            }
            Lowered::Neighbours(actions) => Some(actions),
            Lowered::Group { group, known, .. } => {
                self.left_out.unknown_members += u64::from(!known);
                collectives::messages(record, &group, request == 0)
            }
        };
        let Some(actions) = actions else {
            *self.left_out.other.entry(record.function).or_default() += 1;
            return Ok(());
        };
        self.messages(rank, record, request, actions)
    }

    /// Writes the messages of a collective operation.
    fn messages(
        &mut self,
        rank: u32,
        record: &MpiRecord,
        request: u64,
        actions: Vec<Action>,
    ) -> Result<(), ExportError> {
        let id = record.communicator;
        let mut started = Vec::new();
        for action in actions {
            match action {
                Action::Send { to, bytes } => {
                    self.send(self.channel(id, rank, to, 0), true, bytes, false)?;
                }
                Action::Isend { to, bytes } => {
                    started.push(self.send(self.channel(id, rank, to, 0), true, bytes, true)?);
                }
                Action::Receive { from, bytes } => {
                    self.receive(self.channel(id, from, rank, 0), true, bytes, false)?;
                }
                Action::Ireceive { from, bytes } => {
                    started.push(self.receive(
                        self.channel(id, from, rank, 0),
                        true,
                        bytes,
                        true,
                    )?);
                }
                Action::Wait => self.wait(rank, &std::mem::take(&mut started))?,
            }
        }
        match request {
            0 => self.wait(rank, &started)?,
            request => {
                let pending = &mut self.ranks[rank as usize].pending;
                pending.insert(request, started);
            }
        }
        Ok(())
    }

    /// Adds the work before a call.
    fn work(&mut self, stepped: &SteppedCall, rank: u32) {
        let entry = &mut self.ranks[rank as usize];
        let before = entry.calls.call(&stepped.call);
        for work in [before.between_polls, before.since_last] {
            entry.work = entry.work.saturating_add(work.time);
        }
    }
}

/// Returns the bytes of a message. LogGOPSim computes with the bytes after the first one, so that 0 becomes 1.
fn size(bytes: u64) -> u64 {
    bytes.max(1)
}

impl Sink for Goal<'_> {
    fn call(&mut self, stepped: SteppedCall) -> Result<(), ExportError> {
        let process = self.survey.process_of(stepped.location);
        if process.world != self.world {
            return Ok(());
        }
        let rank = process.rank;
        self.work(&stepped, rank);
        let call = &stepped.call;
        let record = &call.record;
        match record.function {
            Function::Sendrecv | Function::SendrecvReplace => {
                return self.exchange(rank, &stepped.steps);
            }
            Function::Finalize => {
                // The rank's last work, and the end of what it waited for.
                return self.operation(rank, "calc 0", false).map(|_| ());
            }
            _ => {}
        }
        let mut done = Vec::new();
        for step in &stepped.steps {
            self.step(rank, step, &mut done)?;
        }
        let entry = &mut self.ranks[rank as usize];
        let labels: Vec<u64> = done
            .iter()
            .filter_map(|request| entry.pending.remove(request))
            .flatten()
            .collect();
        if record.function != Function::RequestFree {
            self.wait(rank, &labels)?;
        }
        match record.function.class() {
            Class::Collective | Class::Neighbor => self.collective(rank, record, 0)?,
            Class::Communicator => self.left_out.construction += 1,
            // The call is work of the rank itself, which no network changes.
            Class::File
            | Class::FileTransfer
            | Class::StartFileTransfer
            | Class::EndFileTransfer
            | Class::Local => {
                let time = call.exit.time.saturating_sub(call.entry.time);
                let entry = &mut self.ranks[rank as usize];
                entry.work = entry.work.saturating_add(time);
            }
            Class::Window
            | Class::Epoch
            | Class::Rma
            | Class::StartRma
            | Class::Process
            | Class::Partition => {
                *self.left_out.other.entry(record.function).or_default() += 1;
            }
            // The steps of these calls were written above.
            Class::Environment
            | Class::Send
            | Class::Receive
            | Class::SendReceive
            | Class::StartSend
            | Class::StartReceive
            | Class::StartSendReceive
            | Class::Persistent
            | Class::PrepareCollective
            | Class::PrepareNeighbor
            | Class::StartCollective
            | Class::StartNeighbor
            | Class::Completion => {}
        }
        Ok(())
    }
}
