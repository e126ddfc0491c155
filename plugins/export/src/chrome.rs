//! Export as Chrome's trace events: `trace.json`, with one object a line ("Trace Event Format").
//!
//! Viewers load the whole text into memory. For more than a million calls, Perfetto's own format is the better choice.

use std::fmt::Write;

use nodescope_trace::{Body, Event};

use crate::error::ExportError;
use crate::labels::{Value, arguments};
use crate::output::Output;
use crate::slices::Slices;
use crate::steps::{Step, SteppedCall};
use crate::stream::{Channel, Channels, Sink, stream};
use crate::survey::Survey;
use crate::{Job, Summary};

/// Size of a file in bytes above which viewers fail.
const TOO_LARGE: u64 = 1 << 30;

/// Writes `trace.json`.
pub(crate) fn write(job: &Job<'_>) -> Result<Summary, ExportError> {
    let mut out = Output::create(job.file("trace.json"))?;
    out.put("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n")?;
    let mut sink = Chrome {
        survey: job.survey,
        out,
        line: String::new(),
        first: true,
        channels: Channels::default(),
        slices: Slices::new(job.survey.locations.len()),
    };
    sink.begin()?;
    let mut notes = stream(job, &mut sink)?;
    let study = &job.survey.header.study;
    sink.line = "\n],\"otherData\":{\"study\":".into();
    string(&mut sink.line, study);
    sink.line.push_str("}}\n");
    sink.out.put(&sink.line)?;
    if sink.out.bytes() > TOO_LARGE {
        notes.push(format!(
            "{} MB of JSON are more than viewers hold: export as perfetto instead",
            sink.out.bytes() >> 20
        ));
    }
    Ok(Summary {
        files: vec![sink.out.finish()?],
        notes,
        ..Summary::default()
    })
}

struct Chrome<'a> {
    survey: &'a Survey,
    out: Output,
    line: String,
    first: bool,
    channels: Channels,
    slices: Slices,
}

/// Appends text as a JSON string.
fn string(line: &mut String, text: &str) {
    line.push('"');
    for character in text.chars() {
        match character {
            '"' => line.push_str("\\\""),
            '\\' => line.push_str("\\\\"),
            control if u32::from(control) < 0x20 => {
                let _ = write!(line, "\\u{:04x}", u32::from(control));
            }
            other => line.push(other),
        }
    }
    line.push('"');
}

/// Appends a time in picoseconds as microseconds, exactly.
fn microseconds(line: &mut String, time: u64) {
    let _ = write!(line, "{}.{:06}", time / 1_000_000, time % 1_000_000);
}

impl Chrome<'_> {
    /// Writes the object whose members are in `line`.
    fn put(&mut self) -> Result<(), ExportError> {
        self.out.put(if self.first { "{" } else { ",\n{" })?;
        self.first = false;
        self.line.push('}');
        self.out.put(&self.line)?;
        self.line.clear();
        Ok(())
    }

    /// Appends the members `"name":…,"ph":…,"pid":…,"tid":…` of an event.
    fn head(&mut self, name: &str, phase: char, location: usize) {
        self.line.push_str("\"name\":");
        string(&mut self.line, name);
        let pid = self.survey.locations[location].process + 1;
        let _ = write!(
            self.line,
            ",\"ph\":\"{phase}\",\"pid\":{pid},\"tid\":{location}"
        );
    }

    fn at(&mut self, time: u64) {
        self.line.push_str(",\"ts\":");
        microseconds(&mut self.line, time);
    }

    fn begin(&mut self) -> Result<(), ExportError> {
        let mut last = None;
        for number in 0..self.survey.locations.len() {
            let process = self.survey.locations[number].process;
            if last != Some(process) {
                last = Some(process);
                let node = self.survey.processes[process].node;
                let name = format!(
                    "{} ({})",
                    self.survey.process_name(process),
                    self.survey.node_name(node)
                );
                self.head("process_name", 'M', number);
                self.line.push_str(",\"args\":{\"name\":");
                string(&mut self.line, &name);
                self.line.push('}');
                self.put()?;
                self.head("process_sort_index", 'M', number);
                let _ = write!(self.line, ",\"args\":{{\"sort_index\":{process}}}");
                self.put()?;
            }
            let name = self.survey.location_name(number);
            self.head("thread_name", 'M', number);
            self.line.push_str(",\"args\":{\"name\":");
            string(&mut self.line, &name);
            self.line.push('}');
            self.put()?;
        }
        Ok(())
    }

    /// Writes one end of an arrow from a send to its receive; `phase` is `s` for the start, `f` for the finish.
    fn flow(
        &mut self,
        phase: char,
        number: u64,
        time: u64,
        location: usize,
    ) -> Result<(), ExportError> {
        self.head("message", phase, location);
        self.at(time);
        let _ = write!(self.line, ",\"cat\":\"message\",\"id\":{number}");
        if phase == 'f' {
            self.line.push_str(",\"bp\":\"e\"");
        }
        self.put()
    }
}

impl Sink for Chrome<'_> {
    fn call(&mut self, stepped: SteppedCall) -> Result<(), ExportError> {
        let (call, location) = (&stepped.call, stepped.location);
        let process = self.survey.process_of(location);
        let (world, rank) = (process.world, process.rank);
        self.head(call.record.function.name(), 'X', location);
        let entry = (self.slices).begin(location, call.entry.time, call.exit.time);
        self.at(entry);
        self.line.push_str(",\"dur\":");
        let duration = call.exit.time.saturating_sub(entry);
        microseconds(&mut self.line, duration);
        self.line.push_str(",\"cat\":\"mpi\",\"args\":{");
        let list = arguments(
            &call.record,
            &self.survey.worlds[world],
            call.instructions_inside,
        );
        for (at, (name, value)) in list.iter().enumerate() {
            if at > 0 {
                self.line.push(',');
            }
            string(&mut self.line, name);
            self.line.push(':');
            let _ = match value {
                Value::Number(value) => write!(self.line, "{value}"),
                Value::Address(address) => write!(self.line, "\"{address:#x}\""),
                Value::Text(text) => {
                    string(&mut self.line, text);
                    Ok(())
                }
            };
        }
        self.line.push('}');
        self.put()?;
        for step in &stepped.steps {
            match step {
                Step::Send(send) => {
                    let number = self.channels.send(Channel {
                        world,
                        communicator: send.communicator,
                        from: rank,
                        to: send.to,
                        tag: send.tag,
                    });
                    self.flow('s', number, entry, location)?;
                }
                Step::Receive(posted) => {
                    let Some(message) = &posted.message else {
                        continue;
                    };
                    let number = self.channels.receive(Channel {
                        world,
                        communicator: posted.communicator,
                        from: message.from,
                        to: rank,
                        tag: message.tag,
                    });
                    let (from, exit) = message.completed;
                    // The arrow must end inside the slice, and a slice does not include its end.
                    self.flow('f', number, exit.saturating_sub(1).max(from), location)?;
                }
                Step::Collective(_) | Step::Complete { .. } => {}
            }
        }
        Ok(())
    }

    fn other(&mut self, event: &Event, location: Option<usize>) -> Result<(), ExportError> {
        let text = match &event.body {
            Body::Mark(text) => format!("mark {text}"),
            Body::WindowOpen(name) => format!("window {name} opens"),
            Body::WindowClose(name) => format!("window {name} closes"),
            Body::Message(text) => text.clone(),
            Body::JobExit(status) => format!("job exits with {status}"),
            Body::Unfinished(call) => {
                let Some(location) = location else {
                    return Ok(());
                };
                self.head(call.function.name(), 'B', location);
                self.at(call.entry.time);
                self.line.push_str(",\"cat\":\"mpi\"");
                return self.put();
            }
            Body::Mpi(_) | Body::Process(_) => return Ok(()),
        };
        let text = format!("{text} ({})", self.survey.node_name(event.node));
        self.line.push_str("\"name\":");
        string(&mut self.line, &text);
        self.line
            .push_str(",\"ph\":\"i\",\"s\":\"g\",\"pid\":0,\"tid\":0");
        self.at(event.stamp.time);
        self.put()
    }
}
