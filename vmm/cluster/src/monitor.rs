//! Monitor of a node: follows the node's console and hypercalls.

use nodescope_hypercall::printable;
use nodescope_machine::node::NodeStatus;
use nodescope_trace::Assembler;
use nodescope_window::Owners;

use crate::folder::FolderError;
use crate::outcome::Phase;
use crate::state::NodeMonitorState;

/// Number of bytes of a console line that are searched for messages, such as a panic; the rest of a longer line is ignored.
const LONGEST_LINE: usize = 4096;

/// Greatest number of lines of messages of a node that are shown.
const MOST_SHOWN: u64 = 1000;

/// State of a node, as far as the run knows the state from the node's console and hypercalls. The run updates the monitor between batches
/// of quanta.
pub struct NodeMonitor {
    /// Assembler of the node's hypercalls into trace events.
    pub assembler: Assembler,
    /// Owner of each of the node's address spaces.
    pub owners: Owners,
    /// Last line of the node's console, as far as it is written.
    line: Vec<u8>,
    /// Number of lines of messages that were shown to the user.
    pub shown: u64,
    /// Number of lines that were not shown, because too many were shown before.
    pub not_shown: u64,
    /// Text about the first piece of a file that could not be stored, and the number of such pieces; `None` if all were stored.
    pub unstorable_files: Option<(String, u64)>,
    /// Line of the console with the kernel's panic message; `None` if the kernel has not panicked.
    pub panic: Option<String>,
    /// Status of the node after the last batch.
    pub status: NodeStatus,
    /// Phase of the node, as its console shows the phase.
    pub phase: Phase,
    /// True once the console shows that the node has booted. From then on the node asks for its identity.
    pub booted: bool,
}

impl NodeMonitor {
    /// Returns the monitor of a node that begins to boot.
    pub fn new(node: u32) -> Self {
        Self {
            assembler: Assembler::new(node),
            owners: Owners::default(),
            line: Vec::new(),
            shown: 0,
            not_shown: 0,
            unstorable_files: None,
            panic: None,
            status: NodeStatus::Running,
            phase: Phase::Boot,
            booted: false,
        }
    }

    /// Returns the state for [`NodeMonitor::load`]. The status is part of the node's own state.
    pub fn state(&self) -> NodeMonitorState {
        NodeMonitorState {
            assembler: self.assembler.state(),
            owners: self.owners.clone(),
            line: self.line.clone(),
            shown: self.shown,
            not_shown: self.not_shown,
            unstorable_files: self.unstorable_files.clone(),
            panic: self.panic.clone(),
            phase: self.phase,
            booted: self.booted,
        }
    }

    /// Returns the monitor of a node that continues from a snapshot.
    pub fn load(node: u32, status: NodeStatus, state: NodeMonitorState) -> Self {
        Self {
            assembler: Assembler::load(node, state.assembler),
            owners: state.owners,
            line: state.line,
            shown: state.shown,
            not_shown: state.not_shown,
            unstorable_files: state.unstorable_files,
            panic: state.panic,
            status,
            phase: state.phase,
            booted: state.booted,
        }
    }

    /// Shows a message to the user line by line, with control characters escaped. Only counts the lines after the first `MOST_SHOWN`.
    pub fn message(&mut self, text: &str, mut show: impl FnMut(&str)) {
        for line in text.lines() {
            if self.shown < MOST_SHOWN {
                self.shown += 1;
                show(&printable(line));
            } else {
                self.not_shown += 1;
            }
        }
    }

    /// Records that a piece of a file could not be stored.
    pub fn note_unstorable_file(&mut self, name: &str, why: &FolderError) {
        let text = || format!("file \"{}\" cannot be stored: {why}", printable(name));
        let (_, count) = self.unstorable_files.get_or_insert_with(|| (text(), 0));
        *count += 1;
    }

    /// Returns notes for the user about messages and files.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some((text, count)) = &self.unstorable_files {
            notes.push(match count {
                1 => text.clone(),
                _ => format!("{text} (the first of {count} pieces of files)"),
            });
        }
        if self.not_shown > 0 {
            notes.push(format!(
                "{} lines of messages after the first {MOST_SHOWN} are in the trace alone",
                self.not_shown
            ));
        }
        notes
    }

    /// Searches console output for a kernel's panic, the end of the boot, and the start and end of the job.
    pub fn read_console(&mut self, bytes: &[u8]) {
        for &b in bytes {
            if b != b'\n' {
                if self.line.len() < LONGEST_LINE {
                    self.line.push(b);
                }
                continue;
            }
            let line = String::from_utf8_lossy(&self.line).trim_end().to_owned();
            self.line.clear();
            if self.panic.is_none() && line.contains("Kernel panic - not syncing") {
                self.panic = Some(printable(&line).into_owned());
            } else if line == "nodescope: booted" {
                self.booted = true;
            } else if line.starts_with("nodescope: job starts") {
                self.phase = Phase::Job;
            } else if line.starts_with("nodescope: job ends") {
                self.phase = Phase::PowerOff;
            }
        }
    }
}

/// Returns the phase of each node. While a window is open, `window` is the phase of all nodes. Otherwise, the job of all nodes begins and
/// ends with that of the first node, since the consoles of the other nodes do not show the job.
pub fn phases(monitors: &[NodeMonitor], window: Option<Phase>) -> Vec<Phase> {
    let job = monitors.first().map(|first| first.phase);
    let job = job.filter(|phase| *phase != Phase::Boot);
    let phase = |w: &NodeMonitor| window.or(job).unwrap_or(w.phase);
    monitors.iter().map(phase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_a_guest_neither_control_nor_fill_a_terminal() {
        let mut monitor = NodeMonitor::new(0);
        let mut shown = Vec::new();
        let text = "one\x1b]0;title\x07\r\n\u{9b}2Jtwo\n";
        monitor.message(text, |line| shown.push(line.to_owned()));
        assert_eq!(shown, ["one\\u{1b}]0;title\\u{7}", "\\u{9b}2Jtwo"]);
        for _ in 0..MOST_SHOWN {
            monitor.message("again", |line| shown.push(line.to_owned()));
        }
        assert_eq!(shown.len() as u64, MOST_SHOWN);
        assert!(
            monitor.notes()[0].starts_with("2 lines of messages"),
            "{:?}",
            monitor.notes()
        );
        monitor.read_console(b"\x1b[31mKernel panic - not syncing: \x1b[5m\r\n");
        let panic = monitor.panic.as_deref();
        assert_eq!(
            panic,
            Some("\\u{1b}[31mKernel panic - not syncing: \\u{1b}[5m")
        );
    }

    #[test]
    fn the_job_of_the_first_node_is_that_of_all() {
        let mut monitors = [NodeMonitor::new(0), NodeMonitor::new(1)];
        let of_all = |monitors: &[NodeMonitor], phase| phases(monitors, None) == [phase; 2];
        assert!(of_all(&monitors, Phase::Boot));
        monitors[1].read_console(b"nodescope: node1 ready\r\n");
        assert!(of_all(&monitors, Phase::Boot));
        monitors[0].read_console(b"nodescope: job starts\r\n");
        assert!(of_all(&monitors, Phase::Job));
        assert_eq!(
            phases(&monitors, Some(Phase::Window)),
            [Phase::Window, Phase::Window]
        );
        monitors[0].read_console(b"nodescope: job ends with status 0\r\n");
        assert!(of_all(&monitors, Phase::PowerOff));
    }
}
