//! Export as a table, one line for each event, with all data of the trace.

use std::fmt::{self, Write};

use nodescope_hypercall::ThreadId;
use nodescope_trace::{Body, Event, MpiCall, Stamp};

use crate::error::ExportError;
use crate::labels::{peer, reduction, tag};
use crate::output::Output;
use crate::survey::{CallSite, Survey};
use crate::{Job, Summary};

/// Names of the columns; `README.md` explains them.
pub const COLUMNS: [&str; 48] = [
    "event",
    "node",
    "node_name",
    "job",
    "rank",
    "pid",
    "tid",
    "vcpu",
    "kind",
    "function",
    "begin_ps",
    "end_ps",
    "inside_ps",
    "begin_instructions",
    "inside_instructions",
    "calls",
    "result",
    "in_place",
    "lists_left_out",
    "communicator",
    "communicator_size",
    "destination",
    "send_tag",
    "source",
    "receive_tag",
    "root",
    "reduction",
    "element_size",
    "element_blocks",
    "send_bytes",
    "receive_bytes",
    "request",
    "call_site",
    "new_communicator",
    "requests",
    "prepared",
    "completions",
    "send_bytes_to",
    "receive_bytes_from",
    "destinations",
    "sources",
    "members",
    "remote_members",
    "detail",
    "object",
    "offset",
    "large_count",
    "text",
];

/// Writes `trace.csv`.
pub(crate) fn write(job: &Job<'_>) -> Result<Summary, ExportError> {
    let mut out = Output::create(job.file("trace.csv"))?;
    out.put(COLUMNS.join(",") + "\n")?;
    let mut line = String::new();
    job.survey
        .replay::<ExportError>(job.trace, |event, location| {
            line.clear();
            // Writing to a string cannot fail.
            let _ = row(&mut line, job.survey, &event, location);
            line.push('\n');
            out.put(&line)
        })?;
    Ok(Summary {
        files: vec![out.finish()?],
        ..Summary::default()
    })
}

fn row(line: &mut String, survey: &Survey, event: &Event, location: Option<usize>) -> fmt::Result {
    write!(line, "{},{},", event.sequence, event.node)?;
    text(line, &survey.node_name(event.node))?;
    match location.map(|location| survey.process_of(location)) {
        Some(process) => write!(line, ",{},{}", process.world, process.rank)?,
        None => line.push_str(",,"),
    }
    match &event.body {
        Body::Mpi(call) => return mpi(line, survey, event, call),
        Body::Unfinished(call) => {
            let ThreadId { pid, tid } = call.thread;
            let Stamp {
                time,
                instructions,
                vcpu,
            } = call.entry;
            write!(
                line,
                ",{pid},{tid},{vcpu},unfinished,{},{time},,,{instructions}",
                call.function
            )?;
            line.push_str(&",".repeat(34));
        }
        Body::Process(hello) => {
            write!(line, ",{},,{}", hello.pid, event.stamp.vcpu)?;
            write!(line, ",process,,{0},{0},,,", event.stamp.time)?;
            line.push_str(&",".repeat(33));
            let flavour = format!("{:?}", hello.flavour);
            let what = format!(
                "{} of {} ranks on {} under {flavour}",
                hello.program, hello.world_size, hello.host
            );
            text(line, &what)?;
        }
        other => {
            let (kind, what) = match other {
                Body::Mark(what) => ("mark", what.clone()),
                Body::WindowOpen(what) => ("window_open", what.clone()),
                Body::WindowClose(what) => ("window_close", what.clone()),
                Body::Message(what) => ("message", what.clone()),
                Body::JobExit(status) => ("job_exit", status.to_string()),
                Body::Mpi(_) | Body::Unfinished(_) | Body::Process(_) => ("", String::new()),
            };
            write!(line, ",,,{},{kind},", event.stamp.vcpu)?;
            write!(line, ",{0},{0},,,", event.stamp.time)?;
            line.push_str(&",".repeat(33));
            text(line, &what)?;
        }
    }
    Ok(())
}

fn mpi(line: &mut String, survey: &Survey, event: &Event, call: &MpiCall) -> fmt::Result {
    use nodescope_hypercall::record::Flags;
    let record = &call.record;
    let flag = |flag| u8::from(record.flags.contains(flag));
    let ThreadId { pid, tid } = record.thread;
    let kind = match record.flags.contains(Flags::POLL_RUN) {
        true => "polls",
        false => "call",
    };
    write!(
        line,
        ",{pid},{tid},{},{kind},{},{},{},{},{},{},{},{},{},{}",
        event.stamp.vcpu,
        record.function,
        call.entry.time,
        call.exit.time,
        call.time_inside,
        call.entry.instructions,
        call.instructions_inside,
        record.calls,
        record.result,
        flag(Flags::IN_PLACE),
        flag(Flags::TAIL_DROPPED),
    )?;
    write!(
        line,
        ",{},{},{},{},{},{},{},{},{},{},{},{},{}",
        record.communicator,
        record.communicator_size,
        peer(record.destination),
        tag(record.send_tag),
        peer(record.source),
        tag(record.receive_tag),
        peer(record.root),
        reduction(record.reduction),
        record.element_size,
        record.element_blocks,
        record.send_bytes,
        record.receive_bytes,
        record.request,
    )?;
    line.push(',');
    text(line, &survey.site_name(&CallSite::of(record)))?;
    write!(line, ",{}", record.new_communicator)?;
    list(line, &record.requests)?;
    list(line, &record.prepared)?;
    line.push(',');
    for (at, done) in record.completions.iter().enumerate() {
        let cancelled = if done.cancelled { ":cancelled" } else { "" };
        write!(
            line,
            "{}{}:{}:{}:{}:{}{cancelled}",
            if at > 0 { ";" } else { "" },
            done.index,
            done.request,
            done.bytes,
            peer(done.source),
            tag(done.tag),
        )?;
    }
    list(line, &record.send_bytes_to)?;
    list(line, &record.receive_bytes_from)?;
    for ranks in [
        &record.destinations,
        &record.sources,
        &record.members,
        &record.remote_members,
    ] {
        let ranks: Vec<String> = ranks.iter().map(|&rank| peer(rank)).collect();
        write!(line, ",{}", ranks.join(";"))?;
    }
    write!(
        line,
        ",{},{},{},{},",
        record.detail,
        record.object,
        record.offset,
        flag(Flags::LARGE_COUNT)
    )?;
    text(line, &record.name)
}

/// Appends a column of numbers, separated by semicolons.
fn list(line: &mut String, numbers: &[u64]) -> fmt::Result {
    line.push(',');
    for (at, number) in numbers.iter().enumerate() {
        write!(line, "{}{number}", if at > 0 { ";" } else { "" })?;
    }
    Ok(())
}

/// Appends text, quoted as RFC 4180 requires where it contains a separator, a quote or a line break.
fn text(line: &mut String, text: &str) -> fmt::Result {
    if text.contains([',', '"', '\n', '\r']) {
        write!(line, "\"{}\"", text.replace('"', "\"\""))
    } else {
        line.write_str(text)
    }
}
