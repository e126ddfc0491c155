//! Host times of a run's phases: `host.json` (vmm/report/HOST.md), which `nodescope run --host-times` writes. No other result of the
//! portable engine differs from run to run.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

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
    memory_bytes: Option<u64>,
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
    memory_bytes: Option<u64>,
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

/// Memory of this process in which a page that several nodes map counts once.
#[derive(Debug)]
struct Memory {
    /// `/proc/self/smaps_rollup`, opened before the process is restricted; `None` where the kernel has no such file.
    rollup: Option<File>,
    /// Moment of the last reading, and how long it took.
    last: Option<(Instant, Duration)>,
    /// Largest reading, bytes.
    largest: Option<u64>,
}

impl Memory {
    /// Part of the time that readings may take. The kernel walks all page tables for one.
    const SHARE: u32 = 50;

    fn open() -> Memory {
        Memory {
            rollup: File::open("/proc/self/smaps_rollup").ok(),
            last: None,
            largest: None,
        }
    }

    /// Reads the memory at hand, bytes. Returns `None` where it is unknown, or right after another reading unless `always` is set.
    fn read(&mut self, always: bool) -> Option<u64> {
        let begun = Instant::now();
        let soon = (self.last).is_some_and(|(at, took)| begun - at < took * Self::SHARE);
        if soon && !always {
            return None;
        }
        let mut text = [0; 4096];
        let length = self.rollup.as_ref()?.read_at(&mut text, 0).ok()?;
        let bytes = proportional(std::str::from_utf8(&text[..length]).ok()?)?;
        self.last = Some((begun, begun.elapsed()));
        self.largest = self.largest.max(Some(bytes));
        Some(bytes)
    }
}

/// Returns the proportional set size of a text of `smaps_rollup` (proc(5)), bytes: each page by the number of its mappings.
fn proportional(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
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
    memory: Memory,
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

    /// Returns host times without phases, for a run on so many host threads. Call it before the process is restricted to its files.
    pub fn start(threads: usize) -> HostTimes {
        HostTimes {
            threads,
            phases: Vec::new(),
            begun: None,
            memory: Memory::open(),
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
        let memory_bytes = self.memory.read(false);
        self.phases.push(PhaseCost {
            memory_bytes,
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
    pub fn write(mut self, folder: &ResultsFolder) -> Result<(), Failure> {
        self.memory.read(true);
        let file = HostFile {
            memory_bytes: self.memory.largest,
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

    #[test]
    fn pages_that_are_mapped_several_times_count_once() {
        const SIZE: usize = 64 << 20;
        let file = tempfile::tempfile().unwrap();
        file.set_len(SIZE as u64).unwrap();
        let mut memory = Memory::open();
        let before = memory.read(true).unwrap();
        let map = || {
            // SAFETY: a private mapping of a file that nobody else has, which is only read, and stays until the process ends.
            unsafe {
                let protection = libc::PROT_READ;
                let flags = libc::MAP_PRIVATE | libc::MAP_POPULATE;
                let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
                libc::mmap(std::ptr::null_mut(), SIZE, protection, flags, fd, 0)
            }
        };
        for _ in 0..4 {
            assert_ne!(map(), libc::MAP_FAILED);
        }
        // Other tests of this process take memory, too, but not three times as much.
        let grown = memory.read(true).unwrap().saturating_sub(before) as usize;
        assert!((SIZE / 2..2 * SIZE).contains(&grown), "{grown}");
        assert_eq!(memory.read(false), None);
        assert!(memory.largest.unwrap() as usize >= grown);
    }

    #[test]
    fn the_proportional_size_is_read() {
        let text =
            "55a-7ff ---p 00 00:00 0 [rollup]\nRss:   2048 kB\nPss:     1033 kB\nPss_Anon: 9 kB\n";
        assert_eq!(proportional(text), Some(1033 << 10));
        assert_eq!(proportional("Rss: 1 kB\n"), None);
    }
}
