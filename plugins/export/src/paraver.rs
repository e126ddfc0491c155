//! Export for Paraver: `trace.prv` with `trace.pcf` and `trace.row` ("Paraver: Trace file description", Barcelona Supercomputing Center).
//!
//! Types and values of events are those of Extrae, so that the configurations that come with Paraver work. A function without a value in
//! Extrae has 1000 plus its number in nodescope's traces.

mod configuration;

use std::collections::{HashMap, VecDeque};
use std::fmt::Write;

use nodescope_hypercall::{Function, Peer};
use nodescope_trace::{Body, Event};

use crate::error::ExportError;
use crate::output::{Output, write as write_file};
use crate::sorter::{Record, Sorter};
use crate::steps::{Step, SteppedCall};
use crate::stream::{Channel, Sink, stream};
use crate::survey::{CallSite, Survey};
use crate::{Job, Summary};
use configuration::{NOT_CREATED, RUNNING, configuration, kind, state};
pub(crate) use configuration::{event_type, event_value};

/// Largest accepted sum of the vCPUs of all nodes. Each vCPU has a line in `trace.row`, so that a damaged header could cause huge files.
const MOST_CPUS: u64 = 1 << 20;

/// A line of the .prv as numbers: time in nanoseconds, kind of line, thread, serial number of the line, and the other fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Line([u64; 11]);

impl Record for Line {
    const SIZE: usize = 88;

    fn put(&self, bytes: &mut Vec<u8>) {
        self.0
            .iter()
            .for_each(|word| bytes.extend(word.to_le_bytes()));
    }

    fn get(bytes: &[u8]) -> Line {
        let mut words = [0; 11];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = bytes
                .iter()
                .rev()
                .fold(0, |sum, &byte| sum << 8 | u64::from(byte));
        }
        Line(words)
    }
}

const STATE: u64 = 1;
const EVENT: u64 = 2;
const COMMUNICATION: u64 = 3;

/// A send without its receive so far, or a receive without its send; times in picoseconds.
#[derive(Clone, Copy, Debug)]
struct Side {
    location: u64,
    cpu: u64,
    logical: u64,
    physical: u64,
    bytes: u64,
}

#[derive(Debug, Default)]
struct Pair {
    sends: VecDeque<Side>,
    receives: VecDeque<Side>,
}

struct Paraver<'a> {
    survey: &'a Survey,
    lines: Sorter<Line>,
    order: u64,
    pairs: HashMap<Channel, Pair>,
    threads: Vec<Thread>,
    sites: HashMap<CallSite, u64>,
    /// Number of the first vCPU of each node, counted from 1 over all nodes; the last element is the number after the last vCPU.
    cpus: Vec<u64>,
    error: fn(std::io::Error) -> ExportError,
}

#[derive(Clone, Copy, Debug, Default)]
struct Thread {
    /// End of the previous call in picoseconds. `instructions` has the vCPU at that time and the vCPU's instruction count.
    until: u64,
    instructions: Option<(u32, u64)>,
    cpu: u64,
    begun: bool,
}

/// Writes `trace.prv`, `trace.pcf` and `trace.row`.
pub(crate) fn write(job: &Job<'_>) -> Result<Summary, ExportError> {
    let survey = job.survey;
    let nodes = survey.header.nodes.iter();
    let all: u64 = nodes.map(|node| u64::from(node.vcpus.max(1))).sum();
    if all > MOST_CPUS {
        return Err(ExportError::TooManyCpus {
            stated: all,
            most: MOST_CPUS,
        });
    }
    let mut cpus = vec![1];
    for node in &survey.header.nodes {
        let next = cpus.last().copied().unwrap_or(1) + u64::from(node.vcpus.max(1));
        cpus.push(next);
    }
    let sites = survey.call_sites.iter().zip(1..);
    let mut sink = Paraver {
        survey,
        lines: Sorter::new(),
        order: 0,
        pairs: HashMap::new(),
        threads: vec![Thread::default(); survey.locations.len()],
        sites: sites.map(|(&site, number)| (site, number)).collect(),
        cpus,
        error: |cause| ExportError::Io {
            action: "write",
            file: std::env::temp_dir(),
            cause,
        },
    };
    let mut notes = stream(job, &mut sink)?;
    sink.finish()?;
    let sends: usize = sink.pairs.values().map(|pair| pair.sends.len()).sum();
    let receives: usize = sink.pairs.values().map(|pair| pair.receives.len()).sum();
    if sends > 0 {
        notes.push(format!(
            "{sends} messages without a receive in the trace have no communication record"
        ));
    }
    if receives > 0 {
        notes.push(format!(
            "{receives} receives without a send in the trace have no communication record"
        ));
    }
    let mut out = Output::create(job.file("trace.prv"))?;
    out.put(header(survey))?;
    let io = sink.error;
    let mut writer = Lines {
        survey,
        out,
        line: String::new(),
        pending: None,
    };
    sink.lines.drain(io, |line| writer.put(&line))?;
    writer.flush()?;
    let prv = writer.out.finish()?;
    let pcf = write_file(job.file("trace.pcf"), &configuration(survey))?;
    let row = write_file(job.file("trace.row"), &names(survey))?;
    Ok(Summary {
        files: vec![prv, pcf, row],
        notes,
        ..Summary::default()
    })
}

impl Paraver<'_> {
    fn cpu(&self, node: u32, vcpu: u32) -> u64 {
        match self.cpus.get(node as usize..) {
            // An event's vCPU may be beyond those of its node; then the node's last one is taken.
            Some(&[first, next, ..]) => (first + u64::from(vcpu)).min(next - 1),
            _ => 0,
        }
    }

    fn state(
        &mut self,
        location: usize,
        begin: u64,
        end: u64,
        state: u64,
    ) -> Result<(), ExportError> {
        let (begin, end) = (begin / 1000, end / 1000);
        if begin == end {
            return Ok(());
        }
        let cpu = self.threads[location].cpu;
        self.line([
            begin,
            STATE,
            location as u64,
            0,
            cpu,
            end,
            state,
            0,
            0,
            0,
            0,
        ])
    }

    fn event(
        &mut self,
        location: usize,
        time: u64,
        kind: u32,
        value: u64,
    ) -> Result<(), ExportError> {
        let cpu = self.threads[location].cpu;
        let time = time / 1000;
        self.line([
            time,
            EVENT,
            location as u64,
            0,
            cpu,
            kind.into(),
            value,
            0,
            0,
            0,
            0,
        ])
    }

    fn line(&mut self, mut words: [u64; 11]) -> Result<(), ExportError> {
        words[3] = self.order;
        self.order += 1;
        self.lines.push(Line(words)).map_err(self.error)
    }

    /// Writes a thread's state and its instructions since its previous call, and the beginning of a call.
    fn enter(
        &mut self,
        location: usize,
        entry: nodescope_trace::Stamp,
        function: Function,
    ) -> Result<(), ExportError> {
        let node = self.survey.process_of(location).node;
        let cpu = self.cpu(node, entry.vcpu);
        let before = self.threads[location];
        self.threads[location].cpu = cpu;
        let since = if before.begun { RUNNING } else { NOT_CREATED };
        self.threads[location].begun = true;
        self.state(location, before.until, entry.time, since)?;
        if let Some((vcpu, instructions)) = before.instructions
            && vcpu == entry.vcpu
            && instructions <= entry.instructions
        {
            let work = entry.instructions - instructions;
            self.event(location, entry.time, kind::INSTRUCTIONS, work)?;
        }
        let value = event_value(function);
        self.event(location, entry.time, event_type(function), value)
    }

    fn pair(&mut self, channel: Channel, side: Side, sends: bool) -> Result<(), ExportError> {
        let pair = self.pairs.entry(channel).or_default();
        let (own, other) = match sends {
            true => (&mut pair.sends, &mut pair.receives),
            false => (&mut pair.receives, &mut pair.sends),
        };
        let Some(other) = other.pop_front() else {
            own.push_back(side);
            return Ok(());
        };
        if pair.sends.is_empty() && pair.receives.is_empty() {
            self.pairs.remove(&channel);
        }
        let (send, receive) = if sends { (side, other) } else { (other, side) };
        // A message must not arrive before it was sent, even if times are rounded or calls overlap.
        self.line([
            send.logical / 1000,
            COMMUNICATION,
            send.location,
            0,
            send.cpu,
            send.physical / 1000,
            receive.location << 32 | receive.cpu,
            receive.logical / 1000,
            receive.physical.max(send.physical) / 1000,
            send.bytes,
            channel.tag.into(),
        ])
    }

    fn finish(&mut self) -> Result<(), ExportError> {
        for location in 0..self.threads.len() {
            let until = self.threads[location].until;
            let since = if self.threads[location].begun {
                0
            } else {
                NOT_CREATED
            };
            self.state(location, until, self.survey.end, since)?;
        }
        Ok(())
    }
}

impl Sink for Paraver<'_> {
    fn call(&mut self, stepped: SteppedCall) -> Result<(), ExportError> {
        let (call, location) = (&stepped.call, stepped.location);
        let record = &call.record;
        let process = self.survey.process_of(location);
        let (world, rank) = (process.world, process.rank);
        self.enter(location, call.entry, record.function)?;
        let (entry, exit) = (call.entry.time, call.exit.time);
        if let Some(&site) = self.sites.get(&CallSite::of(record)) {
            self.event(location, entry, kind::CALLER, site)?;
        }
        if event_type(record.function) == kind::COLLECTIVE {
            self.event(location, entry, kind::SEND_SIZE, record.send_bytes)?;
            self.event(location, entry, kind::RECEIVE_SIZE, record.receive_bytes)?;
            if record.root == Peer::Rank(rank) {
                self.event(location, entry, kind::ROOT, 1)?;
            }
            let communicator = self.survey.worlds[world].communicator(record.communicator);
            if let Some(number) = communicator {
                self.event(location, entry, kind::COMMUNICATOR, number as u64 + 1)?;
            }
        }
        self.state(location, entry, exit, state(record.function))?;
        self.event(location, exit, event_type(record.function), 0)?;
        self.event(location, exit, kind::INSTRUCTIONS, call.instructions_inside)?;
        let cpu = self.threads[location].cpu;
        self.threads[location].until = exit;
        self.threads[location].instructions = Some((call.exit.vcpu, call.exit.instructions));
        let side = |logical, physical, bytes| Side {
            location: location as u64,
            cpu,
            logical,
            physical,
            bytes,
        };
        for step in &stepped.steps {
            match step {
                Step::Send(send) => {
                    let channel = Channel {
                        world,
                        communicator: send.communicator,
                        from: rank,
                        to: send.to,
                        tag: send.tag,
                    };
                    self.pair(channel, side(entry, entry, send.bytes), true)?;
                }
                Step::Receive(posted) => {
                    let Some(message) = &posted.message else {
                        continue;
                    };
                    let channel = Channel {
                        world,
                        communicator: posted.communicator,
                        from: message.from,
                        to: rank,
                        tag: message.tag,
                    };
                    let side = side(entry, message.completed.1, message.bytes);
                    self.pair(channel, side, false)?;
                }
                Step::Collective(_) | Step::Complete { .. } => {}
            }
        }
        Ok(())
    }

    fn other(&mut self, event: &Event, location: Option<usize>) -> Result<(), ExportError> {
        let window = match &event.body {
            Body::WindowOpen(_) => 1,
            Body::WindowClose(_) => 0,
            Body::Unfinished(call) => {
                if let Some(location) = location {
                    self.enter(location, call.entry, call.function)?;
                    let end = self.survey.end;
                    self.state(location, call.entry.time, end, state(call.function))?;
                    self.threads[location].until = end;
                }
                return Ok(());
            }
            _ => return Ok(()),
        };
        for location in 0..self.survey.locations.len() {
            if self.survey.process_of(location).node == event.node {
                self.event(location, event.stamp.time, kind::WINDOW, window)?;
            }
        }
        Ok(())
    }
}

/// Converter of numbers into lines of text. Events of one thread at the same time share a line.
struct Lines<'a> {
    survey: &'a Survey,
    out: Output,
    line: String,
    pending: Option<(u64, u64)>,
}

/// Appends Paraver's object `cpu:application:task:thread`, whose numbers count from 1.
fn object(survey: &Survey, line: &mut String, cpu: u64, location: u64) {
    let location = location as usize;
    let entry = &survey.locations[location];
    let world = survey.processes[entry.process].world;
    let task = entry.process - survey.worlds[world].processes.start + 1;
    let first = survey
        .locations
        .partition_point(|other| other.process < entry.process);
    let _ = write!(line, "{cpu}:{}:{task}:{}", world + 1, location - first + 1);
}

impl Lines<'_> {
    fn put(&mut self, Line(words): &Line) -> Result<(), ExportError> {
        let &[time, kind, location, _, cpu, a, b, c, d, e, f] = words;
        if kind == EVENT && self.pending == Some((time, location)) {
            let _ = write!(self.line, ":{a}:{b}");
            return Ok(());
        }
        self.flush()?;
        let _ = write!(self.line, "{kind}:");
        object(self.survey, &mut self.line, cpu, location);
        let _ = match kind {
            STATE => write!(self.line, ":{time}:{a}:{b}"),
            EVENT => {
                self.pending = Some((time, location));
                write!(self.line, ":{time}:{a}:{b}")
            }
            _ => {
                let _ = write!(self.line, ":{time}:{a}:");
                object(self.survey, &mut self.line, b & 0xFFFF_FFFF, b >> 32);
                write!(self.line, ":{c}:{d}:{e}:{f}")
            }
        };
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ExportError> {
        self.pending = None;
        if self.line.is_empty() {
            return Ok(());
        }
        self.line.push('\n');
        self.out.put(&self.line)?;
        self.line.clear();
        Ok(())
    }
}

fn header(survey: &Survey) -> String {
    // The date is constant, so that results do not depend on the host's clock.
    let mut text = format!("#Paraver (01/01/1970 at 00:00):{}_ns:", survey.end / 1000);
    let nodes: Vec<String> = survey
        .header
        .nodes
        .iter()
        .map(|node| node.vcpus.max(1).to_string())
        .collect();
    let _ = write!(
        text,
        "{}({}):{}",
        nodes.len(),
        nodes.join(","),
        survey.worlds.len()
    );
    for world in &survey.worlds {
        let tasks: Vec<String> = world
            .processes
            .clone()
            .map(|process| {
                let threads = survey.locations.iter();
                let threads = threads.filter(|location| location.process == process);
                let node = survey.processes[process].node + 1;
                format!("{}:{node}", threads.count().max(1))
            })
            .collect();
        let _ = write!(
            text,
            ":{}({}),{}",
            tasks.len(),
            tasks.join(","),
            world.communicators.len()
        );
    }
    text.push('\n');
    for (application, world) in survey.worlds.iter().enumerate() {
        for (number, communicator) in world.communicators.iter().enumerate() {
            let tasks: Vec<String> = communicator
                .members
                .iter()
                .filter_map(|&rank| {
                    let at = survey.processes[world.processes.clone()]
                        .binary_search_by_key(&rank, |process| process.rank)
                        .ok()?;
                    Some((at + 1).to_string())
                })
                .collect();
            let _ = writeln!(
                text,
                "c:{}:{}:{}:{}",
                application + 1,
                number + 1,
                tasks.len(),
                tasks.join(":")
            );
        }
    }
    text
}

fn names(survey: &Survey) -> String {
    let mut text = String::new();
    let mut level = |name: &str, lines: Vec<String>| {
        let _ = writeln!(text, "LEVEL {name} SIZE {}", lines.len());
        for line in lines {
            let _ = writeln!(text, "{line}");
        }
        text.push('\n');
    };
    let nodes = &survey.header.nodes;
    level(
        "CPU",
        nodes
            .iter()
            .enumerate()
            .flat_map(|(number, node)| {
                (0..node.vcpus.max(1))
                    .map(move |cpu| format!("{}.{} {}", number + 1, cpu + 1, node.name))
            })
            .collect(),
    );
    level("NODE", nodes.iter().map(|node| node.name.clone()).collect());
    level(
        "THREAD",
        (0..survey.locations.len())
            .map(|number| survey.location_name(number))
            .collect(),
    );
    text
}
