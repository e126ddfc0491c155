//! Progress of a run: bars on a terminal, lines elsewhere, JSON lines for programs.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use nodescope_cluster::{Observer, Phase, Progress};
use serde_json::json;

use crate::args::LogFormat;

/// Between two updates of bars.
const BARS: Duration = Duration::from_millis(200);
/// Between two lines, unless a phase changes.
const LINES: Duration = Duration::from_secs(10);
/// Between two looks at whether a phase has changed.
const LOOKS: Duration = Duration::from_millis(200);
/// Quanta between two looks at the host's clock.
const QUANTA: u32 = 64;

enum Output {
    Bars(Vec<ProgressBar>, MultiProgress),
    Lines,
    Json,
}

/// Watches a run and tells the user.
pub struct Watcher {
    output: Output,
    start: Instant,
    looked: Instant,
    told: Instant,
    quanta: u32,
    /// Instructions of each node when last told.
    before: Vec<u64>,
    phases: Vec<Phase>,
}

impl Watcher {
    /// For a cluster of `nodes`.
    pub fn new(format: LogFormat, nodes: u32) -> Watcher {
        let output = if format == LogFormat::Json {
            Output::Json
        } else if std::io::stderr().is_terminal() {
            let all = MultiProgress::new();
            let style = ProgressStyle::with_template("{spinner} {prefix:>8} {msg}")
                .unwrap_or_else(|_| ProgressStyle::default_spinner());
            let bar = |node| {
                let bar = ProgressBar::new_spinner().with_style(style.clone());
                all.add(bar.with_prefix(format!("node{node}")))
            };
            Output::Bars((0..nodes).map(bar).collect(), all)
        } else {
            Output::Lines
        };
        let now = Instant::now();
        Watcher {
            output,
            start: now,
            looked: now,
            told: now,
            quanta: 0,
            before: vec![0; nodes as usize],
            phases: Vec::new(),
        }
    }

    /// A line for the user.
    pub fn say(&self, text: &str) {
        match &self.output {
            Output::Bars(_, all) => {
                // A terminal that cannot be written to has nobody in front of it.
                let _ = all.println(text);
            }
            Output::Lines => eprintln!("{text}"),
            Output::Json => eprintln!("{}", json!({"event": "text", "text": text})),
        }
    }

    /// The run is over: bars go.
    pub fn end(&self) {
        if let Output::Bars(bars, _) = &self.output {
            bars.iter().for_each(ProgressBar::finish_and_clear);
        }
    }

    fn tell(&mut self, progress: &Progress, now: Instant) {
        let seconds = now.duration_since(self.told).as_secs_f64().max(1e-9);
        let nodes: Vec<_> = progress
            .instructions
            .iter()
            .zip(&self.before)
            .zip(&progress.phases)
            .map(|((&count, &before), &phase)| NodeProgress {
                phase,
                instructions: count,
                rate: count.saturating_sub(before) as f64 / seconds,
            })
            .collect();
        let window = progress.window.as_deref();
        let virtual_s = progress.virtual_ps as f64 / 1e12;
        match &self.output {
            Output::Bars(bars, _) => {
                for (bar, node) in bars.iter().zip(&nodes) {
                    bar.set_message(format!(
                        "{:<24} {virtual_s:>10.4} s virtual  {}",
                        phase_name(node.phase, window),
                        node.figures()
                    ));
                    bar.tick();
                }
            }
            Output::Lines => {
                let each: Vec<_> = nodes
                    .iter()
                    .enumerate()
                    .map(|(index, node)| {
                        format!(
                            "node{index} {} {}",
                            phase_name(node.phase, window),
                            node.figures()
                        )
                    })
                    .collect();
                eprintln!(
                    "[{:>5.0} s] {virtual_s:.4} s virtual: {}",
                    self.start.elapsed().as_secs_f64(),
                    each.join(", ")
                );
            }
            Output::Json => {
                let each: Vec<_> = nodes
                    .iter()
                    .enumerate()
                    .map(|(index, node)| {
                        json!({
                            "node": index,
                            "phase": phase_name(node.phase, None),
                            "instructions": node.instructions,
                            "instructions_per_second": node.rate,
                        })
                    })
                    .collect();
                eprintln!(
                    "{}",
                    json!({
                        "event": "progress",
                        "host_seconds": self.start.elapsed().as_secs_f64(),
                        "virtual_ps": progress.virtual_ps,
                        "window": window,
                        "nodes": each,
                    })
                );
            }
        }
        self.told = now;
        self.before.clone_from(&progress.instructions);
    }
}

struct NodeProgress {
    phase: Phase,
    instructions: u64,
    rate: f64,
}

impl NodeProgress {
    fn figures(&self) -> String {
        format!(
            "{:.2} G instructions, {:.1} M/s",
            self.instructions as f64 / 1e9,
            self.rate / 1e6
        )
    }
}

fn phase_name(phase: Phase, window: Option<&str>) -> String {
    let name = match phase {
        Phase::Boot => "boot",
        Phase::Job => "job",
        Phase::WarmUp => "warm-up",
        Phase::Window => "window",
        Phase::PowerOff => "power-off",
    };
    match (phase, window) {
        (Phase::WarmUp | Phase::Window, Some(window)) => format!("{name} {window}"),
        _ => name.to_owned(),
    }
}

impl Observer for Watcher {
    fn progress(&mut self, progress: &dyn Fn() -> Progress) {
        self.quanta += 1;
        if self.quanta < QUANTA {
            return;
        }
        self.quanta = 0;
        let now = Instant::now();
        if now.duration_since(self.looked) < LOOKS {
            return;
        }
        self.looked = now;
        let progress = progress();
        let changed = progress.phases != self.phases;
        let interval = match self.output {
            Output::Bars(..) => BARS,
            Output::Lines | Output::Json => LINES,
        };
        if changed || now.duration_since(self.told) >= interval {
            self.phases.clone_from(&progress.phases);
            self.tell(&progress, now);
        }
    }

    fn message(&mut self, node: u32, text: &str) {
        match &self.output {
            Output::Json => eprintln!(
                "{}",
                json!({"event": "message", "node": node, "text": text})
            ),
            _ => self.say(&format!("node{node}: {text}")),
        }
    }

    // The results keep every console's log.
    fn console(&mut self, _node: u32, _bytes: &[u8]) {}
}
