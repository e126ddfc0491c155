//! Export for Dimemas: `trace.dim`, in Dimemas' format 1 (Barcelona Supercomputing Center, "Dimemas": records of bursts, messages, and
//! global operations on communicators).

use std::fmt::Write;

use nodescope_hypercall::record::{Flags, communicator};
use nodescope_hypercall::{Class, Function, MpiRecord, Peer};
use nodescope_trace::WorkBetweenCalls;

use crate::error::ExportError;
use crate::output::{Output, Part};
use crate::paraver::{event_type, event_value};
use crate::steps::{Ending, Mode, Operation, Step, SteppedCall};
use crate::stream::{Sink, stream};
use crate::survey::Survey;
use crate::{Job, Summary};

/// Number of digits to which the header pads the position of the offsets, so that the header's length does not depend on that position.
const OFFSET_DIGITS: usize = 20;

/// Writes `trace.dim`.
pub(crate) fn write(job: &Job<'_>) -> Result<Summary, ExportError> {
    let survey = job.survey;
    let world = survey.one_world(job.options.world, "Dimemas' trace")?;
    let tasks = survey.complete(world, "Dimemas' trace")?;
    let parts = tempfile::tempdir_in(job.folder).map_err(ExportError::io("write", job.folder))?;
    let mut sink = Dimemas {
        survey,
        world,
        calls: vec![WorkBetweenCalls::default(); tasks as usize],
        parts: (0..tasks)
            .map(|task| Part::create(parts.path().join(task.to_string())))
            .collect::<Result<_, _>>()?,
        line: String::new(),
        between: 0,
        unresolved: 0,
        non_blocking: 0,
        neighbours: 0,
    };
    let mut notes = stream(job, &mut sink)?;
    for part in &mut sink.parts {
        part.flush()?;
    }
    let text = definitions(survey, world);
    // The header has the position of the offsets, which are at the end of the file.
    let header = |offset: u64| {
        let threads = vec!["1"; tasks as usize].join(",");
        let communicators = survey.worlds[world].communicators.len();
        format!(
            "#DIMEMAS:\"trace\":1,{offset:0width$}:{tasks}({threads}),{communicators}\n",
            width = OFFSET_DIGITS
        )
    };
    let size = |part: &Part| {
        std::fs::metadata(part.path())
            .map(|data| data.len())
            .map_err(ExportError::io("read", part.path()))
    };
    let mut at = (header(0).len() + text.len()) as u64;
    let mut offsets = String::new();
    for (task, part) in sink.parts.iter().enumerate() {
        let _ = writeln!(offsets, "s:{task}:{at}");
        at += size(part)?;
    }
    let mut out = Output::create(job.file("trace.dim"))?;
    out.put(header(at))?;
    out.put(&text)?;
    for part in &sink.parts {
        let path = part.path();
        let mut input = std::fs::File::open(path).map_err(ExportError::io("read", path))?;
        out.copy(&mut input)?;
    }
    out.put(&offsets)?;
    for (count, what) in [
        (
            sink.between,
            "collective calls between groups (intercommunicators) are left out",
        ),
        (
            sink.unresolved,
            "receives that were cancelled, or whose completion is not in the trace, are left out",
        ),
        (
            sink.non_blocking,
            "non-blocking collective calls block where they begin",
        ),
        (
            sink.neighbours,
            "neighbourhood collective calls are left out",
        ),
    ] {
        if count > 0 {
            notes.push(format!("{count} {what}"));
        }
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

/// Returns the definitions of the communicators.
fn definitions(survey: &Survey, world: usize) -> String {
    let mut text = String::new();
    for (number, entry) in survey.worlds[world].communicators.iter().enumerate() {
        let _ = write!(text, "d:1:{}:{}", number + 1, entry.members.len());
        for member in &entry.members {
            let _ = write!(text, ":{member}");
        }
        text.push('\n');
    }
    text
}

/// Returns Dimemas' number of a blocking collective function; `None` for other functions.
fn operation(function: Function) -> Option<u32> {
    use Function::*;
    Some(match function {
        Barrier => 0,
        Bcast => 1,
        Gather => 2,
        Gatherv => 3,
        Scatter => 4,
        Scatterv => 5,
        Allgather => 6,
        Allgatherv => 7,
        Alltoall => 8,
        Alltoallv | Alltoallw => 9,
        Reduce => 10,
        Allreduce => 11,
        ReduceScatter | ReduceScatterBlock => 12,
        Scan | Exscan => 13,
        _ => return None,
    })
}

struct Dimemas<'a> {
    survey: &'a Survey,
    world: usize,
    calls: Vec<WorkBetweenCalls>,
    parts: Vec<Part>,
    line: String,
    between: u64,
    unresolved: u64,
    non_blocking: u64,
    neighbours: u64,
}

impl Dimemas<'_> {
    fn put(&mut self, task: u32) -> Result<(), ExportError> {
        self.parts[task as usize].put(&self.line)?;
        self.line.clear();
        Ok(())
    }

    fn communicator(&self, id: u64) -> usize {
        let number = self.survey.worlds[self.world].communicator(id);
        number.map_or(1, |number| number + 1)
    }

    fn burst(&mut self, task: u32, picoseconds: u64) {
        let (seconds, rest) = (
            picoseconds / 1_000_000_000_000,
            picoseconds % 1_000_000_000_000,
        );
        let _ = writeln!(self.line, "1:{task}:0:{seconds}.{:09}", rest / 1000);
    }

    fn step(&mut self, task: u32, step: &Step) {
        match step {
            Step::Send(send) => {
                let rendezvous = u32::from(send.mode == Mode::Synchronous);
                let immediate = if send.request == 0 { 0 } else { 2 };
                let number = self.communicator(send.communicator);
                let _ = writeln!(
                    self.line,
                    "2:{task}:0:{}:-1:{}:{}:{number}:{}",
                    send.to,
                    send.bytes,
                    send.tag,
                    rendezvous + immediate
                );
            }
            Step::Receive(posted) => {
                let Some(message) = &posted.message else {
                    self.unresolved += 1;
                    return;
                };
                let kind = u32::from(posted.request != 0);
                let number = self.communicator(posted.communicator);
                let _ = writeln!(
                    self.line,
                    "3:{task}:0:{}:-1:{}:{}:{number}:{kind}",
                    message.from, message.bytes, message.tag
                );
            }
            Step::Complete {
                operation: Operation::Receive(posted),
                ending: Ending::Done,
                ..
            } => {
                if let Some(message) = &posted.message {
                    let number = self.communicator(posted.communicator);
                    let _ = writeln!(
                        self.line,
                        "3:{task}:0:{}:-1:{}:{}:{number}:2",
                        message.from, message.bytes, message.tag
                    );
                }
            }
            Step::Collective(collective) => {
                self.non_blocking += 1;
                self.collective(task, &collective.record);
            }
            // Sends complete without a record in Dimemas.
            Step::Complete { .. } => {}
        }
    }

    fn collective(&mut self, task: u32, record: &MpiRecord) {
        if record.communicator == communicator::SELF {
            return;
        }
        let Some(number) = operation(record.function.blocking()) else {
            self.neighbours += 1;
            return;
        };
        if record.flags.contains(Flags::INTERCOMM) {
            self.between += 1;
            return;
        }
        let root = match record.root {
            Peer::Rank(rank) => rank,
            _ => 0,
        };
        let id = self.communicator(record.communicator);
        let _ = writeln!(
            self.line,
            "10:{task}:0:{number}:{id}:{root}:0:{}:{}:1",
            record.send_bytes, record.receive_bytes
        );
    }
}

impl Sink for Dimemas<'_> {
    fn call(&mut self, stepped: SteppedCall) -> Result<(), ExportError> {
        let process = self.survey.process_of(stepped.location);
        if process.world != self.world {
            return Ok(());
        }
        let task = process.rank;
        let (call, record) = (&stepped.call, &stepped.call.record);
        let before = self.calls[task as usize].call(call);
        self.burst(
            task,
            (before.between_polls.time).saturating_add(before.since_last.time),
        );
        let (kind, value) = (event_type(record.function), event_value(record.function));
        let _ = writeln!(self.line, "20:{task}:0:{kind}:{value}");
        for step in &stepped.steps {
            self.step(task, step);
        }
        if record.function.class() == Class::Collective {
            self.collective(task, record);
        }
        let _ = writeln!(self.line, "20:{task}:0:{kind}:0");
        self.put(task)
    }
}
