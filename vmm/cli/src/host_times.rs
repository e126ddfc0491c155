//! Host times of a run's phases: `host.json` (vmm/report/HOST.md), which `nodescope run --host-times` writes. No other result of the
//! portable engine differs from run to run.

use std::fs;
use std::time::Instant;

use nodescope_cluster::{Phase, Progress, ResultsFolder};
use serde::Serialize;

use crate::exit::{Exit, Failure};
use crate::results::put;

/// Contents of `host.json`.
#[derive(Debug, Serialize)]
struct HostFile {
    version: u32,
    processor: String,
    cores: usize,
    threads: usize,
    peak_memory_bytes: u64,
    phases: Vec<PhaseCost>,
}

/// Costs of a phase of the run: the guests' instructions and virtual time, the host's wall and processor time.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct PhaseCost {
    phase: &'static str,
    window: Option<String>,
    nodes: usize,
    instructions: u64,
    virtual_ps: u64,
    wall_seconds: f64,
    cpu_seconds: f64,
}

/// A moment, with this process's processor time and peak memory until then.
#[derive(Clone, Copy, Debug)]
struct Mark {
    at: Instant,
    cpu_seconds: f64,
    peak_memory_bytes: u64,
}

impl Mark {
    fn now() -> Mark {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: getrusage fills the structure that it gets; where it fails, all zero bytes are a valid value.
        let usage = unsafe {
            libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
            usage.assume_init()
        };
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        Mark {
            at: Instant::now(),
            cpu_seconds: seconds(usage.ru_utime) + seconds(usage.ru_stime),
            // Linux reports kibibytes (getrusage(2)).
            peak_memory_bytes: u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024,
        }
    }
}

/// A phase that has begun and not ended, with the counts at its beginning.
#[derive(Debug)]
struct Begun {
    phase: &'static str,
    window: Option<String>,
    nodes: usize,
    instructions: u64,
    virtual_ps: u64,
    mark: Mark,
}

/// Costs of each phase of a run on this host, recorded while the run lasts.
#[derive(Debug)]
pub struct HostTimes {
    threads: usize,
    phases: Vec<PhaseCost>,
    begun: Option<Begun>,
    /// Moment when the node from which all nodes are made had booted, until the next phase begins.
    booted: Option<Mark>,
}

impl HostTimes {
    /// Version of the format of `host.json`.
    const VERSION: u32 = 1;
    /// Name of the file among the results.
    pub const NAME: &'static str = "host.json";
    /// Name of the phase from the end of one node's boot to the beginning of the cluster that is made from it.
    const RESTORE: &'static str = "restore";

    /// Returns host times without phases, for a run on so many host threads.
    pub fn start(threads: usize) -> HostTimes {
        HostTimes {
            threads,
            phases: Vec::new(),
            begun: None,
            booted: None,
        }
    }

    /// Records that the node from which the whole cluster is made has booted. The time from now to the next phase counts as `restore`.
    pub fn booted(&mut self) {
        self.booted = Some(Mark::now());
    }

    /// Ends the phase at hand and begins the next one. `progress` has the virtual time and the instructions so far.
    pub fn begin(&mut self, phase: Phase, window: Option<&str>, progress: &Progress) {
        let mark = Mark::now();
        let nodes = progress.instructions.len();
        let instructions = progress.instructions.iter().sum();
        match self.booted.take() {
            Some(booted) => {
                // Each node continues with the instruction count of the node that has booted.
                let of_boot = progress.instructions.first().copied().unwrap_or(0);
                self.close(of_boot, progress.virtual_ps, booted);
                self.begun = Some(Begun {
                    phase: Self::RESTORE,
                    window: None,
                    nodes,
                    instructions,
                    virtual_ps: progress.virtual_ps,
                    mark: booted,
                });
                self.close(instructions, progress.virtual_ps, mark);
            }
            None => self.close(instructions, progress.virtual_ps, mark),
        }
        self.begun = Some(Begun {
            phase: phase.name(),
            window: window.map(str::to_owned),
            nodes,
            instructions,
            virtual_ps: progress.virtual_ps,
            mark,
        });
    }

    /// Ends the last phase. `instructions` has the count of each node.
    pub fn end(&mut self, instructions: &[u64], virtual_ps: u64) {
        self.close(instructions.iter().sum(), virtual_ps, Mark::now());
    }

    fn close(&mut self, instructions: u64, virtual_ps: u64, mark: Mark) {
        let Some(begun) = self.begun.take() else {
            return;
        };
        self.phases.push(PhaseCost {
            phase: begun.phase,
            window: begun.window,
            nodes: begun.nodes,
            instructions: instructions.saturating_sub(begun.instructions),
            virtual_ps: virtual_ps.saturating_sub(begun.virtual_ps),
            wall_seconds: mark.at.duration_since(begun.mark.at).as_secs_f64(),
            cpu_seconds: (mark.cpu_seconds - begun.mark.cpu_seconds).max(0.0),
        });
    }

    /// Writes `host.json` into a results folder.
    pub fn write(self, folder: &ResultsFolder) -> Result<(), Failure> {
        let file = HostFile {
            version: Self::VERSION,
            processor: processor(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            threads: self.threads,
            peak_memory_bytes: Mark::now().peak_memory_bytes,
            phases: self.phases,
        };
        let mut text =
            serde_json::to_string_pretty(&file).map_err(|error| Failure::of(Exit::Host, &error))?;
        text.push('\n');
        put(folder, Self::NAME, &text)
    }
}

/// Returns the name of the host's processor; empty where the kernel does not name it.
fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    let name = line.and_then(|line| line.split_once(':'));
    name.map_or_else(String::new, |(_, name)| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(virtual_ps: u64, instructions: &[u64]) -> Progress {
        Progress {
            virtual_ps,
            instructions: instructions.to_vec(),
            phases: Vec::new(),
            window: None,
        }
    }

    #[test]
    fn the_boot_of_one_node_and_the_cluster_made_of_it_are_told_apart() {
        let mut times = HostTimes::start(2);
        times.begin(Phase::Boot, None, &progress(0, &[0]));
        times.booted();
        times.begin(Phase::Boot, None, &progress(70, &[500, 500]));
        times.begin(Phase::Job, None, &progress(100, &[510, 520]));
        times.begin(Phase::Window, Some("w"), &progress(150, &[610, 640]));
        times.end(&[700, 700], 190);
        let written: Vec<_> = (times.phases.iter())
            .map(|p| (p.phase, p.nodes, p.instructions, p.virtual_ps))
            .collect();
        let expected = [
            ("boot", 1, 500, 70),
            ("restore", 2, 0, 0),
            ("boot", 2, 30, 30),
            ("job", 2, 220, 50),
            ("window", 2, 150, 40),
        ];
        assert_eq!(written, expected);
        assert_eq!(times.phases[4].window.as_deref(), Some("w"));
    }

    #[test]
    fn time_and_memory_of_this_process_are_counted() {
        let before = Mark::now();
        let block = std::hint::black_box(vec![1u8; 1 << 20]);
        let mut sum = 0u64;
        for round in 0..20 {
            sum += block
                .iter()
                .map(|&byte| u64::from(byte) + round)
                .sum::<u64>();
        }
        std::hint::black_box(sum);
        let after = Mark::now();
        assert!(after.cpu_seconds >= before.cpu_seconds);
        assert!(after.peak_memory_bytes >= 1 << 20);
    }
}
