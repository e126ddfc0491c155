//! What a node has said so far.

use nodescope_machine::node::NodeStatus;
use nodescope_trace::Assembler;
use nodescope_window::Owners;

use crate::outcome::Phase;

/// Longest line of a console that is searched for a panic.
const LONGEST_LINE: usize = 4096;

/// What is followed of each node between quanta.
pub struct Watch {
    /// Makes events of its hypercalls.
    pub assembler: Assembler,
    /// Which process each of its address spaces belongs to.
    pub owners: Owners,
    /// The last line of its console, as far as it is written.
    line: Vec<u8>,
    /// Its kernel's last words.
    pub panic: Option<String>,
    /// How it came out of the last stretch.
    pub status: NodeStatus,
    /// What it is doing, by what its console says.
    pub phase: Phase,
}

impl Watch {
    /// Of a node that begins to boot.
    pub fn new(node: u32) -> Self {
        Self {
            assembler: Assembler::new(node),
            owners: Owners::default(),
            line: Vec::new(),
            panic: None,
            status: NodeStatus::Running,
            phase: Phase::Boot,
        }
    }

    /// Look for a panic and for the start and end of the job in console output.
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
                self.panic = Some(line);
            } else if line.starts_with("nodescope: job starts") {
                self.phase = Phase::Job;
            } else if line.starts_with("nodescope: job ends") {
                self.phase = Phase::PowerOff;
            }
        }
    }
}

/// What each node is doing; `window`: what all do as long as a window is open. The first node begins and ends the job of all, of which the
/// others' consoles say nothing.
pub fn phases(watches: &[Watch], window: Option<Phase>) -> Vec<Phase> {
    let job = watches.first().map(|first| first.phase);
    let job = job.filter(|phase| *phase != Phase::Boot);
    let phase = |w: &Watch| window.or(job).unwrap_or(w.phase);
    watches.iter().map(phase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_job_of_the_first_node_is_that_of_all() {
        let mut watches = [Watch::new(0), Watch::new(1)];
        let of_all = |watches: &[Watch], phase| phases(watches, None) == [phase; 2];
        assert!(of_all(&watches, Phase::Boot));
        watches[1].read_console(b"nodescope: node1 ready\r\n");
        assert!(of_all(&watches, Phase::Boot));
        watches[0].read_console(b"nodescope: job starts\r\n");
        assert!(of_all(&watches, Phase::Job));
        assert_eq!(
            phases(&watches, Some(Phase::Window)),
            [Phase::Window, Phase::Window]
        );
        watches[0].read_console(b"nodescope: job ends with status 0\r\n");
        assert!(of_all(&watches, Phase::PowerOff));
    }
}
