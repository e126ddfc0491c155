//! Measures the script of a report's timeline: `zoom [CALLS]`. The program makes a page with so many MPI calls of 64 ranks.
//! In Chromium, the page zooms from the whole run to a single call. The program prints the time of the script for a frame.

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use nodescope_hypercall::{Function, MpiRecord, Peer, Tag, ThreadId};
use nodescope_report::{CoreCpi, ReportInput, StudyInfo, build};
use nodescope_trace::{Body, Event, Header, MpiCall, NodeEntry, Stamp, TraceWriter};
use nodescope_window::WindowsFile;

const RANKS: u32 = 64;
const SCRIPT: &str = include_str!("zoom.js");

fn main() -> Result<(), Box<dyn Error>> {
    let calls = std::env::args().nth(1).unwrap_or("1000000".into());
    let folder = tempfile::tempdir()?;
    let trace = folder.path().join("trace");
    write_trace(&trace, calls.parse()?)?;
    let html = build(&input(&trace))?.html();
    println!("page of {calls} calls: {:.2} MB", html.len() as f64 / 1e6);
    let page = folder.path().join("page.html");
    let end = format!("<script>\n{SCRIPT}</script></body>");
    std::fs::write(&page, html.replace("</body>", &end))?;
    measure(&page, folder.path())
}

/// Opens the page, and prints what its script tells, up to the word `end`.
fn measure(page: &Path, home: &Path) -> Result<(), Box<dyn Error>> {
    let mut browser = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu"])
        .args(["--enable-logging=stderr", "--no-first-run"])
        .args(["--window-size=1300,1000", "--remote-debugging-port=0"])
        .arg(format!(
            "--user-data-dir={}",
            home.join("profile").display()
        ))
        .arg(format!("file://{}", page.display()))
        .env("HOME", home)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let told = browser.stderr.take().map(BufReader::new);
    for line in told.into_iter().flat_map(BufRead::lines) {
        let line = line?;
        let Some((_, said)) = line.split_once("\"timeline: ") else {
            continue;
        };
        let said = said.split('"').next().unwrap_or_default();
        if said == "end" {
            break;
        }
        println!("{said}");
    }
    browser.kill()?;
    browser.wait()?;
    Ok(())
}

/// Writes a trace of calls with times between 1 and 300 us, most of them short, from a fixed sequence of random numbers.
fn write_trace(file: &Path, calls: u64) -> Result<(), Box<dyn Error>> {
    let mut state = 1_u64;
    let mut random = |below: u64| {
        // The generator is xorshift64.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let functions = [
        Function::Recv,
        Function::Send,
        Function::Allreduce,
        Function::Wait,
    ];
    let mut events = Vec::new();
    for rank in 0..RANKS {
        let thread = ThreadId {
            pid: 100 + rank,
            tid: 100 + rank,
        };
        let mut time = 1_000_000;
        for _ in 0..calls / u64::from(RANKS) {
            let mut record =
                MpiRecord::new(functions[random(4) as usize], thread, Peer::Rank(rank), 0);
            (record.destination, record.send_tag) = (Peer::Rank((rank + 1) % RANKS), Tag::Value(1));
            record.send_bytes = random(1 << 16);
            record.call_site = 0x1000 + 16 * random(40);
            let stamp = |time| Stamp {
                time,
                ..Stamp::default()
            };
            let entry = time + 1_000_000 * (1 + random(300));
            let exit =
                entry + 1_000 * (1 + random(30_000) * if random(1000) == 0 { 100 } else { 1 });
            time = exit;
            events.push(Event {
                node: 0,
                sequence: events.len() as u64,
                stamp: stamp(exit),
                body: Body::Mpi(Box::new(MpiCall {
                    record,
                    entry: stamp(entry),
                    exit: stamp(exit),
                    time_inside: exit - entry,
                    instructions_inside: 0,
                    entry_seen: true,
                })),
            });
        }
    }
    events.sort_by_key(Event::key);
    let node = NodeEntry {
        name: "node0".into(),
        vcpus: RANKS,
        frequency_hz: 2_000_000_000,
    };
    let mut writer = TraceWriter::create(file, &Header::new("zoom", "zoom", vec![node]))?;
    for event in &events {
        writer.write(event)?;
    }
    writer.finish()?;
    Ok(())
}

fn input(trace: &Path) -> ReportInput {
    ReportInput {
        windows: WindowsFile::new("zoom", "zoom", Vec::new(), Vec::new()),
        profiles: None,
        trace: Some(trace.to_owned()),
        study: StudyInfo::default(),
        core: CoreCpi::Nominal {
            source: "stated".into(),
        },
        models: Vec::new(),
        memory_parallelism: 1.0,
        network: Vec::new(),
        notes: Vec::new(),
    }
}
