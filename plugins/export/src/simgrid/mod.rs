//! Export for SimGrid: a time-independent trace with a platform and a host file, for `smpirun -replay`
//! (simgrid.org, "SMPI: Simulate MPI Applications", "Trace Replay and Offline Simulation").
//!
//! SimGrid's format has `MPI_COMM_WORLD` only, and no non-blocking collectives. Collectives that the format lacks become messages, by the
//! algorithms of [`crate::collectives`]. The format identifies requests by sender, receiver and tag, so each message gets its own tag.

mod native;
mod platform;

use std::collections::HashMap;
use std::fmt::Write;

use nodescope_hypercall::{Class, Function, MpiRecord};
use nodescope_trace::{MpiCall, Work, WorkBetweenCalls};

use crate::collectives::{self, Action, Lowered, lowered};
use crate::error::ExportError;
use crate::left_out::LeftOut;
use crate::output::{Part, write as write_file};
use crate::steps::{Operation, Step, SteppedCall};
use crate::stream::{Channel, Sink, stream};
use crate::survey::Survey;
use crate::tags::Tags;
use crate::{Bursts, Job, Summary};

/// Speed of hosts in flops a second if actions contain times: a flop stands for a nanosecond.
const TIME_SPEED: f64 = 1e9;

/// Writes `trace.ti` with a file for each rank beside it, `platform.xml`, `hostfile` and a script `replay`.
pub(crate) fn write(job: &Job<'_>) -> Result<Summary, ExportError> {
    let survey = job.survey;
    let world = survey.one_world(job.options.world, "SimGrid's trace")?;
    let ranks = survey.complete(world, "SimGrid's trace")?;
    let parts = job.file("trace.ti.ranks");
    crate::output::folder(&parts)?;
    let mut files = Vec::new();
    let mut list = String::new();
    for rank in 0..ranks {
        files.push(Part::create(parts.join(format!("{rank}")))?);
        let _ = writeln!(list, "trace.ti.ranks/{rank}");
    }
    let mut sink = Simgrid {
        survey,
        world,
        bursts: job.options.bursts,
        speed: TIME_SPEED,
        ranks: vec![Rank::default(); ranks as usize],
        files,
        tags: Tags::default(),
        notes: LeftOut::default(),
        line: String::new(),
    };
    if job.options.bursts == Bursts::Instructions {
        let mut speed = Speed {
            survey,
            world,
            calls: HashMap::new(),
            instructions: 0,
            time: 0,
        };
        stream(job, &mut speed)?;
        if speed.instructions == 0 || speed.time == 0 {
            return Err(ExportError::Option(
                "the trace holds no instructions between MPI calls; export bursts as time".into(),
            ));
        }
        sink.speed = speed.instructions as f64 / (speed.time as f64 * 1e-12);
    }
    let mut notes = stream(job, &mut sink)?;
    for file in &mut sink.files {
        file.flush()?;
    }
    sink.notes.add_notes(&mut notes);
    let (sends, receives) = sink.tags.open();
    if sends + receives > 0 {
        notes.push(format!(
            "{sends} messages have no receive in the trace and {receives} receives no message: the replay will not end"
        ));
    }
    if survey.worlds.len() > 1 {
        notes.push(format!(
            "the trace has {} MPI programs; this is number {world}",
            survey.worlds.len()
        ));
    }
    let written = vec![
        write_file(job.file("trace.ti"), &list)?,
        write_file(
            job.file("platform.xml"),
            &platform::platform(survey, sink.speed, &job.options.network),
        )?,
        write_file(job.file("hostfile"), &platform::hosts(survey, world))?,
        write_file(job.file("replay"), &platform::script(ranks))?,
    ];
    Ok(Summary {
        files: written,
        notes,
        ..Summary::default()
    })
}

#[derive(Clone, Debug, Default)]
struct Rank {
    calls: WorkBetweenCalls,
    /// Sender, receiver and tag in the replay of each message of each pending request, by the request's serial number.
    pending: HashMap<u64, Vec<(u32, u32, u32)>>,
    finished: bool,
}

struct Simgrid<'a> {
    survey: &'a Survey,
    world: usize,
    bursts: Bursts,
    /// Speed of a core in flops a second. A flop stands for a nanosecond of work, or for an instruction if the export counts these.
    speed: f64,
    ranks: Vec<Rank>,
    files: Vec<Part>,
    tags: Tags,
    notes: LeftOut,
    line: String,
}

/// Returns bytes as a count and a datatype, since the replay counts in a C int. It takes 0 bytes for "unknown", so that 0 becomes 1.
fn size(bytes: u64) -> (u64, u32) {
    const BYTE: u32 = 6;
    const DOUBLE: u32 = 0;
    match bytes {
        0..=0x7FFF_FFFF => (bytes.max(1), BYTE),
        _ => (bytes.div_ceil(8).min(0x7FFF_FFFF), DOUBLE),
    }
}

impl Simgrid<'_> {
    fn action(&mut self, rank: u32, text: std::fmt::Arguments<'_>) -> Result<(), ExportError> {
        self.line.clear();
        let _ = writeln!(self.line, "{rank} {text}");
        self.files[rank as usize].put(&self.line)
    }

    /// Writes work of a duration, or of a number of instructions if the export counts these and the number is known.
    fn compute(&mut self, rank: u32, work: Work) -> Result<(), ExportError> {
        let Work {
            time: picoseconds,
            instructions,
        } = work;
        match (self.bursts, instructions) {
            (Bursts::Instructions, Some(0)) => Ok(()),
            (Bursts::Instructions, Some(count)) => {
                self.action(rank, format_args!("compute {count}"))
            }
            (_, _) if picoseconds == 0 => Ok(()),
            (Bursts::Instructions, None) => {
                let flops = picoseconds as f64 * 1e-12 * self.speed;
                self.action(rank, format_args!("compute {flops:.0}"))
            }
            (Bursts::Time, _) => self.action(
                rank,
                format_args!("compute {}.{:03}", picoseconds / 1000, picoseconds % 1000),
            ),
        }
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

    /// Writes waits for messages, given by sender, receiver and tag.
    fn wait(&mut self, rank: u32, keys: &[(u32, u32, u32)]) -> Result<(), ExportError> {
        for (from, to, tag) in keys {
            self.action(rank, format_args!("wait {from} {to} {tag}"))?;
        }
        Ok(())
    }

    fn step(&mut self, rank: u32, step: &Step, done: &mut Vec<u64>) -> Result<(), ExportError> {
        match step {
            Step::Send(send) => {
                let channel = self.channel(send.communicator, rank, send.to, send.tag);
                let tag = self.tags.next(channel, false, true);
                let (count, kind) = size(send.bytes);
                let to = send.to;
                if send.request == 0 {
                    return self.action(rank, format_args!("send {to} {tag} {count} {kind}"));
                }
                self.ranks[rank as usize]
                    .pending
                    .insert(send.request, vec![(rank, to, tag)]);
                self.action(rank, format_args!("isend {to} {tag} {count} {kind}"))
            }
            Step::Receive(posted) => {
                let Some(message) = &posted.message else {
                    self.notes.unresolved += 1;
                    return Ok(());
                };
                let from = message.from;
                let channel = self.channel(posted.communicator, from, rank, message.tag);
                let tag = self.tags.next(channel, false, false);
                let (count, kind) = size(message.bytes);
                if posted.request == 0 {
                    return self.action(rank, format_args!("recv {from} {tag} {count} {kind}"));
                }
                self.ranks[rank as usize]
                    .pending
                    .insert(posted.request, vec![(from, rank, tag)]);
                self.action(rank, format_args!("irecv {from} {tag} {count} {kind}"))
            }
            Step::Complete {
                request,
                operation: Operation::Send(_) | Operation::Receive(_) | Operation::Collective(_),
                ..
            } => {
                done.push(*request);
                Ok(())
            }
            Step::Collective(collective) => {
                self.collective(rank, &collective.record, collective.request)
            }
        }
    }

    /// Writes a send and a receive of one call, neither of which waits for the other.
    fn exchange(&mut self, rank: u32, steps: &[Step]) -> Result<(), ExportError> {
        let mut key = None;
        for step in steps {
            match step {
                Step::Send(send) => {
                    let channel = self.channel(send.communicator, rank, send.to, send.tag);
                    let tag = self.tags.next(channel, false, true);
                    let (count, kind) = size(send.bytes);
                    key = Some((rank, send.to, tag));
                    self.action(rank, format_args!("isend {} {tag} {count} {kind}", send.to))?;
                }
                step => self.step(rank, step, &mut Vec::new())?,
            }
        }
        match key {
            Some(key) => self.wait(rank, &[key]),
            None => Ok(()),
        }
    }

    /// Writes a collective operation; `request` is 0 for a blocking one.
    fn collective(
        &mut self,
        rank: u32,
        record: &MpiRecord,
        request: u64,
    ) -> Result<(), ExportError> {
        let survey = self.survey;
        let blocking = request == 0;
        let actions = match lowered(&survey.worlds[self.world], rank, record) {
            Lowered::Alone => return Ok(()),
            Lowered::BetweenGroups => {
                self.notes.between += 1;
                return Ok(());
            }
            Lowered::Unknown => {
                self.notes.unknown_members += 1;
                return Ok(());
            }
            Lowered::Neighbours(actions) => Some(actions),
            Lowered::Group {
                group,
                world,
                known,
            } => {
                self.notes.unknown_members += u64::from(!known);
                if world
                    && blocking
                    && let Some(text) = native::native(record, &group)
                {
                    return self.action(rank, format_args!("{text}"));
                }
                collectives::messages(record, &group, blocking)
            }
        };
        let Some(actions) = actions else {
            *self.notes.other.entry(record.function).or_default() += 1;
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
        let mut keys = Vec::new();
        for action in actions {
            match action {
                Action::Send { to, bytes } | Action::Isend { to, bytes } => {
                    let tag = self.tags.next(self.channel(id, rank, to, 0), true, true);
                    let (count, kind) = size(bytes);
                    let name = match action {
                        Action::Send { .. } => "send",
                        _ => {
                            keys.push((rank, to, tag));
                            "isend"
                        }
                    };
                    self.action(rank, format_args!("{name} {to} {tag} {count} {kind}"))?;
                }
                Action::Receive { from, bytes } | Action::Ireceive { from, bytes } => {
                    let tag = self.tags.next(self.channel(id, from, rank, 0), true, false);
                    let (count, kind) = size(bytes);
                    let name = match action {
                        Action::Receive { .. } => "recv",
                        _ => {
                            keys.push((from, rank, tag));
                            "irecv"
                        }
                    };
                    self.action(rank, format_args!("{name} {from} {tag} {count} {kind}"))?;
                }
                Action::Wait => {
                    let keys = std::mem::take(&mut keys);
                    self.wait(rank, &keys)?;
                }
            }
        }
        if request == 0 {
            return self.wait(rank, &keys);
        }
        self.ranks[rank as usize].pending.insert(request, keys);
        Ok(())
    }

    /// Writes the work before a call.
    fn burst(&mut self, rank: u32, call: &MpiCall) -> Result<(), ExportError> {
        let before = self.ranks[rank as usize].calls.call(call);
        for work in [before.between_polls, before.since_last] {
            self.compute(rank, work)?;
        }
        Ok(())
    }
}

impl Sink for Simgrid<'_> {
    fn call(&mut self, stepped: SteppedCall) -> Result<(), ExportError> {
        let process = self.survey.process_of(stepped.location);
        if process.world != self.world {
            return Ok(());
        }
        let rank = process.rank;
        let call = &stepped.call;
        let record = &call.record;
        if self.ranks[rank as usize].calls.last().is_none() {
            self.action(rank, format_args!("init"))?;
        }
        self.burst(rank, call)?;
        match record.function {
            Function::Finalize => {
                self.ranks[rank as usize].finished = true;
                return self.action(rank, format_args!("finalize"));
            }
            Function::Sendrecv | Function::SendrecvReplace => {
                return self.exchange(rank, &stepped.steps);
            }
            _ => {}
        }
        let mut done = Vec::new();
        for step in &stepped.steps {
            self.step(rank, step, &mut done)?;
        }
        let pending = &mut self.ranks[rank as usize].pending;
        let keys: Vec<Vec<_>> = done.iter().filter_map(|id| pending.remove(id)).collect();
        // One action waits for all requests if no other requests are pending.
        if keys.len() > 1 && pending.is_empty() && record.function != Function::RequestFree {
            let count: usize = keys.iter().map(Vec::len).sum();
            self.action(rank, format_args!("waitall {count}"))?;
        } else if record.function != Function::RequestFree {
            self.wait(rank, &keys.concat())?;
        }
        match record.function.class() {
            Class::Collective | Class::Neighbor => self.collective(rank, record, 0),
            Class::Communicator => {
                self.notes.construction += 1;
                Ok(())
            }
            // The call is work of the rank itself, which no network changes.
            Class::File
            | Class::FileTransfer
            | Class::StartFileTransfer
            | Class::EndFileTransfer
            | Class::Local => self.compute(rank, Work::between(call.entry, call.exit)),
            Class::Window
            | Class::Epoch
            | Class::Rma
            | Class::StartRma
            | Class::Process
            | Class::Partition => {
                *self.notes.other.entry(record.function).or_default() += 1;
                Ok(())
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
            | Class::Completion => Ok(()),
        }
    }
}

/// Sums for the speed at which the job executes instructions between its calls.
struct Speed<'a> {
    survey: &'a Survey,
    world: usize,
    calls: HashMap<u32, WorkBetweenCalls>,
    instructions: u64,
    time: u64,
}

impl Sink for Speed<'_> {
    fn call(&mut self, stepped: SteppedCall) -> Result<(), ExportError> {
        let process = self.survey.process_of(stepped.location);
        if process.world != self.world {
            return Ok(());
        }
        let calls = self.calls.entry(process.rank).or_default();
        let work = calls.call(&stepped.call).since_last;
        if let Some(instructions) = work.instructions {
            self.time = self.time.saturating_add(work.time);
            self.instructions = self.instructions.saturating_add(instructions);
        }
        Ok(())
    }
}
