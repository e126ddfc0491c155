//! Progress of a run: bars on a terminal, lines elsewhere, JSON lines for programs, or nothing.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use nodescope_cluster::{Observer, Phase, Progress};
use nodescope_hypercall::printable;
use serde_json::json;

use crate::args::LogFormat;
use crate::awaited::Awaited;
use crate::follow::Follower;
use crate::host_times::HostTimes;
use crate::terminal::{print_error_json, print_error_line, set_progress_bars};

/// Interval between two updates of the bars.
const BARS_INTERVAL: Duration = Duration::from_millis(200);
/// Interval between two lines of text or JSON; a change of phase writes a line at once.
const LINES_INTERVAL: Duration = Duration::from_secs(10);
/// Least interval between two checks whether a phase has changed.
const PHASE_INTERVAL: Duration = Duration::from_millis(200);
/// Quantum batches between two readings of the host's clock.
const BATCHES: u32 = 8;
/// Greatest number of nodes that are shown one by one; more nodes are shown as a summary.
const MAX_NODES_SHOWN: usize = 4;

enum Output {
    Bars(Vec<ProgressBar>, MultiProgress),
    Lines,
    Json,
    Quiet,
}

/// Form in which a run's progress is shown.
pub struct ProgressOptions {
    /// Format of the progress: text or JSON.
    pub format: LogFormat,
    /// True if no progress and no messages are shown.
    pub quiet: bool,
    /// Node whose console is shown; `None` for no console.
    pub follow: Option<u32>,
}

/// Observes a run and reports its progress to the user.
pub struct ProgressReporter {
    output: Output,
    follower: Option<Follower>,
    start: Instant,
    looked: Instant,
    batches: u32,
    /// Host time of the last report, and the counts at that time.
    last_report: Instant,
    before: Vec<u64>,
    before_ps: u64,
    /// Name of the window that was open at the last report.
    window_before: Option<String>,
    phases: Vec<Phase>,
    /// True after a snapshot was loaded, until its counts are noted: its instructions took none of this run's time.
    resumed: bool,
    /// Files of `job.collect` that have not come.
    pub awaited: Awaited,
    /// Host times of the phases, if they are asked for.
    pub host_times: Option<HostTimes>,
}

impl ProgressReporter {
    /// Returns a reporter for a cluster of `nodes`.
    pub fn new(options: &ProgressOptions, nodes: u32) -> ProgressReporter {
        let output = if options.quiet {
            Output::Quiet
        } else if options.format == LogFormat::Json {
            Output::Json
        } else if std::io::stderr().is_terminal() {
            let all = MultiProgress::new();
            let style = ProgressStyle::with_template("{spinner} {prefix:>8} {msg}")
                .unwrap_or_else(|_| ProgressStyle::default_spinner());
            let bar = |name| {
                all.add(
                    ProgressBar::new_spinner()
                        .with_style(style.clone())
                        .with_prefix(name),
                )
            };
            let bars = if nodes as usize <= MAX_NODES_SHOWN {
                (0..nodes).map(|node| bar(format!("node{node}"))).collect()
            } else {
                vec![bar(format!("{nodes} nodes"))]
            };
            set_progress_bars(Some(all.clone()));
            Output::Bars(bars, all)
        } else {
            Output::Lines
        };
        let now = Instant::now();
        ProgressReporter {
            output,
            follower: options
                .follow
                .map(|node| Follower::new(node, options.format)),
            start: now,
            looked: now,
            batches: 0,
            last_report: now,
            before: vec![0; nodes as usize],
            before_ps: 0,
            window_before: None,
            phases: Vec::new(),
            resumed: false,
            awaited: Awaited::default(),
            host_times: None,
        }
    }

    /// Prints a line for the user, in the output's format; nothing if the output is quiet.
    pub fn print_line(&self, text: &str) {
        match &self.output {
            Output::Bars(..) | Output::Lines => print_error_line(text),
            Output::Json => print_error_json(&json!({"event": "text", "text": text})),
            Output::Quiet => {}
        }
    }

    /// Ends the output of progress at the end of the run: shows the rest of a console line, and removes bars.
    pub fn end(&mut self) {
        if let Some(follower) = &mut self.follower {
            follower.end();
        }
        if let Output::Bars(bars, all) = &self.output {
            bars.iter().for_each(ProgressBar::finish_and_clear);
            let _ = all.clear();
            set_progress_bars(None);
        }
    }

    fn report(&mut self, progress: &Progress, now: Instant) {
        let seconds = now.duration_since(self.last_report).as_secs_f64().max(1e-9);
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
        let window = progress.window.as_ref().map(|window| window.name.as_str());
        let virtual_s = progress.virtual_ps as f64 / 1e12;
        let left = self.seconds_left(progress, seconds);
        let outlook = left.map_or(String::new(), time_left);
        match &self.output {
            Output::Bars(bars, _) if bars.len() == nodes.len() => {
                for (bar, node) in bars.iter().zip(&nodes) {
                    bar.set_message(format!(
                        "{:<24} {virtual_s:>10.4} s virtual  {}{outlook}",
                        phase_name(node.phase, window),
                        node.figures()
                    ));
                    bar.tick();
                }
            }
            Output::Bars(bars, _) => {
                for bar in bars {
                    bar.set_message(format!(
                        "{virtual_s:>10.4} s virtual  {}{outlook}",
                        summary(&nodes, window)
                    ));
                    bar.tick();
                }
            }
            Output::Lines => {
                let what = if nodes.len() <= MAX_NODES_SHOWN {
                    let each = nodes.iter().enumerate().map(|(index, node)| {
                        format!(
                            "node{index} {} {}",
                            phase_name(node.phase, window),
                            node.figures()
                        )
                    });
                    each.collect::<Vec<_>>().join(", ")
                } else {
                    format!("{} nodes {}", nodes.len(), summary(&nodes, window))
                };
                print_error_line(&format!(
                    "[{:>5.0} s] {virtual_s:.4} s virtual: {what}{outlook}",
                    self.start.elapsed().as_secs_f64(),
                ));
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
                print_error_json(&json!({
                    "event": "progress",
                    "host_seconds": self.start.elapsed().as_secs_f64(),
                    "virtual_ps": progress.virtual_ps,
                    "window": window,
                    "left": left.map(|seconds| json!({"until": "the window", "host_seconds": seconds})),
                    "nodes": each,
                }));
            }
            Output::Quiet => {}
        }
        self.last_report = now;
        self.before.clone_from(&progress.instructions);
        self.before_ps = progress.virtual_ps;
        self.window_before = window.map(str::to_owned);
    }

    /// Returns the seconds of host time until the end of the open window, at the speed since the last report. `None` where nobody can tell:
    /// without a window, in a window that the guest closes, and where the window was not open at the last report, since a window slows the
    /// run down.
    fn seconds_left(&self, progress: &Progress, seconds: f64) -> Option<f64> {
        /// A longer time than a day helps nobody to plan.
        const MOST: f64 = 86400.0;
        let window = progress.window.as_ref()?;
        if self.window_before.as_ref() != Some(&window.name) {
            return None;
        }
        let virtual_rate = progress.virtual_ps.saturating_sub(self.before_ps) as f64 / seconds;
        // Windows do not count a file server's instructions.
        let nodes = progress.phases.len();
        let counts = |all: &[u64]| (all.iter().take(nodes).map(|&count| count as f64)).sum::<f64>();
        let rate = (counts(&progress.instructions) - counts(&self.before)) / seconds;
        let left = match (window.instructions_left, window.ps_left) {
            (Some(instructions), None) => instructions as f64 / rate,
            // The warm-up is counted in instructions, even where the window is measured in time.
            (instructions, Some(ps)) => {
                instructions.unwrap_or(0) as f64 / rate + ps as f64 / virtual_rate
            }
            (None, None) => return None,
        };
        (left.is_finite() && left < MOST).then_some(left)
    }
}

/// Returns a clause with the host time until the end of the window.
fn time_left(seconds: f64) -> String {
    let time = match seconds {
        0.0..60.0 => format!("{:.0} s", seconds.ceil()),
        60.0..3600.0 => format!("{:.0} min", (seconds / 60.0).ceil()),
        _ => format!("{:.1} h", seconds / 3600.0),
    };
    format!("; the window ends in about {time}")
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

/// Describes all nodes in a few words: the number in each phase, the sum of their instructions, and the slowest node.
fn summary(nodes: &[NodeProgress], window: Option<&str>) -> String {
    let mut phases: Vec<(Phase, usize)> = Vec::new();
    for node in nodes {
        match phases.iter_mut().find(|(phase, _)| *phase == node.phase) {
            Some((_, count)) => *count += 1,
            None => phases.push((node.phase, 1)),
        }
    }
    let phases = match phases.as_slice() {
        [(phase, _)] => phase_name(*phase, window),
        several => several
            .iter()
            .map(|(phase, count)| format!("{} ({count})", phase_name(*phase, window)))
            .collect::<Vec<_>>()
            .join(", "),
    };
    let all = NodeProgress {
        phase: Phase::Boot,
        instructions: nodes.iter().map(|node| node.instructions).sum(),
        rate: nodes.iter().map(|node| node.rate).sum(),
    };
    let slowest = (nodes.iter().enumerate())
        .min_by(|(_, a), (_, b)| {
            a.rate
                .total_cmp(&b.rate)
                .then(a.instructions.cmp(&b.instructions))
        })
        .map_or(String::new(), |(index, node)| {
            format!(
                "; slowest node{index} {} {}",
                phase_name(node.phase, window),
                node.figures()
            )
        });
    format!("{phases} {}{slowest}", all.figures())
}

fn phase_name(phase: Phase, window: Option<&str>) -> String {
    let name = phase.name();
    match (phase, window) {
        (Phase::WarmUp | Phase::Window, Some(window)) => format!("{name} {window}"),
        _ => name.to_owned(),
    }
}

impl Observer for ProgressReporter {
    fn progress(&mut self, progress: &dyn Fn() -> Progress) {
        if matches!(self.output, Output::Quiet) {
            return;
        }
        self.batches += 1;
        if self.batches < BATCHES {
            return;
        }
        self.batches = 0;
        let now = Instant::now();
        if now.duration_since(self.looked) < PHASE_INTERVAL {
            return;
        }
        self.looked = now;
        let progress = progress();
        if std::mem::take(&mut self.resumed) {
            self.before.clone_from(&progress.instructions);
            self.before_ps = progress.virtual_ps;
            self.last_report = now;
        }
        let changed = progress.phases != self.phases;
        let interval = match self.output {
            Output::Bars(..) => BARS_INTERVAL,
            _ => LINES_INTERVAL,
        };
        if changed || now.duration_since(self.last_report) >= interval {
            self.phases.clone_from(&progress.phases);
            self.report(&progress, now);
        }
    }

    fn phase(&mut self, phase: Phase, window: Option<&str>, progress: &dyn Fn() -> Progress) {
        if let Some(times) = &mut self.host_times {
            times.begin(phase, window, &progress());
        }
    }

    fn message(&mut self, node: u32, text: &str) {
        match &self.output {
            Output::Json => {
                print_error_json(&json!({"event": "message", "node": node, "text": text}));
            }
            _ => self.print_line(&format!("node{node}: {}", printable(text))),
        }
    }

    fn file(&mut self, node: u32, name: &str) {
        self.awaited.file_arrived(node, name);
    }

    fn refused_file(&mut self, node: u32, name: &str, why: &dyn std::fmt::Display) {
        self.awaited.file_refused(node, name, why);
    }

    fn note(&mut self, text: &str) {
        self.print_line(text);
    }

    fn state(&self) -> Vec<u8> {
        self.awaited.state()
    }

    fn load(&mut self, state: &[u8]) -> Result<(), String> {
        self.resumed = true;
        self.awaited.load(state)
    }

    // The results contain every node's console log, so that only the followed console is shown.
    fn console(&mut self, node: u32, bytes: &[u8]) {
        if let Some(follower) = &mut self.follower {
            follower.console(node, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use nodescope_cluster::WindowProgress;

    use super::*;

    fn node(phase: Phase, instructions: u64, rate: f64) -> NodeProgress {
        NodeProgress {
            phase,
            instructions,
            rate,
        }
    }

    #[test]
    fn many_nodes_are_one_line_with_the_slowest() {
        let mut nodes: Vec<_> = (0..16)
            .map(|_| node(Phase::Job, 2_000_000_000, 50e6))
            .collect();
        nodes[7].rate = 10e6;
        assert_eq!(
            summary(&nodes, None),
            "job 32.00 G instructions, 760.0 M/s; slowest node7 job 2.00 G instructions, 10.0 M/s"
        );
        nodes[3].phase = Phase::Boot;
        assert!(summary(&nodes, None).starts_with("job (15), boot (1) 32.00 G"));
        nodes.iter_mut().for_each(|node| node.phase = Phase::Window);
        assert!(summary(&nodes, Some("hpl")).starts_with("window hpl 32.00 G"));
    }

    #[test]
    fn what_is_left_is_told_where_it_is_known() {
        let mut reporter = ProgressReporter::new(
            &ProgressOptions {
                format: LogFormat::Json,
                quiet: true,
                follow: None,
            },
            1,
        );
        reporter.before = vec![1_000];
        let mut progress = Progress {
            virtual_ps: 10,
            instructions: vec![3_000],
            phases: vec![Phase::Window],
            window: None,
        };
        assert_eq!(reporter.seconds_left(&progress, 2.0), None);
        progress.window = Some(WindowProgress {
            name: "w".into(),
            instructions_left: Some(50_000),
            ps_left: None,
        });
        // The speed was measured before the window opened.
        assert_eq!(reporter.seconds_left(&progress, 2.0), None);
        reporter.window_before = Some("w".into());
        assert_eq!(reporter.seconds_left(&progress, 2.0), Some(50.0));
        // No instruction was executed since the last report.
        reporter.before = vec![3_000];
        assert_eq!(reporter.seconds_left(&progress, 2.0), None);
        assert_eq!(time_left(12.2), "; the window ends in about 13 s");
        assert_eq!(time_left(90.0), "; the window ends in about 2 min");
    }
}
