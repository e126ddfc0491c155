//! The analysis as text for a terminal.

use std::fmt::Write;

use nodescope_config::quantity::Time;

use crate::analysis::{Analysis, Series};
use crate::chart::short;
use crate::plan::{HOUR, Plan, PlanRequest};
use crate::point::{Group, Point};
use crate::work::Work;

/// Largest number of MPI functions that are shown; --json has all.
const FUNCTIONS: usize = 12;
/// Number of processor cores of a host of the published study.
const PUBLISHED_CORES: f64 = 12.0;
/// Speeds of the published study by phase: kind, name, and the range in millions of instructions per second of a process on 12 cores.
const PUBLISHED: [(&str, &str, f64, f64); 3] = [
    ("boot", "boot", 4900.0, 5500.0),
    ("window", "window with caches", 52.0, 61.0),
    ("job", "tracing MPI, no models", 142.0, 154.0),
];

impl Analysis {
    /// Returns the analysis as text for a terminal.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for (number, series) in self.series.iter().enumerate() {
            if number > 0 {
                out.push('\n');
            }
            // Writing to a string cannot fail.
            let _ = series.write(&mut out);
        }
        out
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn heading(out: &mut String, text: &str) -> std::fmt::Result {
    writeln!(out, "\n{text}\n{}", "-".repeat(text.chars().count()))
}

/// Appends a row: a name, and a text for each run.
fn row(out: &mut String, name: &str, cells: impl Iterator<Item = String>) -> std::fmt::Result {
    write!(out, "  {name:<26}")?;
    for cell in cells {
        write!(out, " {cell:>11}")?;
    }
    writeln!(out)
}

/// Returns a number of seconds as a number of the unit that suits it, and the unit's name.
fn unit(seconds: f64) -> (f64, &'static str) {
    match seconds {
        seconds if seconds < 100.0 => (seconds, "second"),
        seconds if seconds < 6000.0 => (seconds / 60.0, "minute"),
        _ => (seconds / HOUR, "hour"),
    }
}

/// Returns a time of one core, such as `9.4 core seconds`.
fn core_time(seconds: f64) -> String {
    let (value, unit) = unit(seconds);
    format!("{value:.1} core {unit}s")
}

/// Returns a time, such as `0.78 seconds`.
fn duration(seconds: f64) -> String {
    let (value, unit) = unit(seconds);
    format!("{value:.2} {unit}s")
}

fn known(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), short)
}

/// Returns a ratio with three decimals, or `-` for none.
fn ratio(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"))
}

impl Series {
    fn write(&self, out: &mut String) -> std::fmt::Result {
        let title = format!("Scaling of {}", self.name);
        writeln!(out, "{title}\n{}", "=".repeat(title.chars().count()))?;
        let work = self.different_work();
        if let Some(work) = &work {
            self.write_work(out, work)?;
        }
        self.nodes(out)?;
        row(
            out,
            "ranks",
            self.points.iter().map(|p| p.ranks.to_string()),
        )?;
        let length = |p: &Point| Some(p.window.as_ref()?.length_ps);
        let told = |ps: Option<u64>| ps.map_or_else(|| "-".to_owned(), |ps| Time(ps).rounded(3));
        row(
            out,
            "window, virtual time",
            self.points.iter().map(|p| told(length(p))),
        )?;
        let speeds = match &work {
            Some(work) => work.speeds.clone(),
            None => self.window_speeds(),
        };
        let name = match &work {
            Some(_) => "faster, for equal work",
            None => "faster than the first",
        };
        if speeds.iter().any(Option::is_some) {
            row(out, name, speeds.into_iter().map(ratio))?;
        }
        self.write_sections(out, work.as_ref())?;
        self.write_calls(out)?;
        self.write_cpi(out)?;
        self.write_flops(out)?;
        self.write_host(out)?;
        match &self.plan {
            Some(plan) => plan.write(out),
            None => Ok(()),
        }
    }

    /// Writes how the work of the windows differs, and by what speeds are compared.
    fn write_work(&self, out: &mut String, work: &Work) -> std::fmt::Result {
        let [(by, _), ..] = work.ratios.as_slice() else {
            return Ok(());
        };
        if work.grows_with_ranks {
            writeln!(
                out,
                "Each rank did the same work in its window: the program scales weakly. Speeds are for equal work, by\n{by}."
            )?;
        } else {
            writeln!(
                out,
                "The windows did different work, so that their times do not compare, and no run is said to be faster by\nthem. --from and --to compare the times between the same calls."
            )?;
        }
        if !work.triggers.is_empty() {
            let triggers = work.triggers.join("; ");
            writeln!(out, "The windows opened at different events: {triggers}.")?;
        }
        writeln!(out, "\n  Work beside the first window's")?;
        self.nodes(out)?;
        for (name, ratios) in &work.ratios {
            row(out, name, ratios.iter().map(|value| ratio(*value)))?;
        }
        writeln!(out)
    }

    /// Writes the times between the same calls, and how much faster they are if their clocks are alike.
    fn write_sections(&self, out: &mut String, work: Option<&Work>) -> std::fmt::Result {
        let sections: Vec<_> = (self.points.iter())
            .filter_map(|p| p.section.as_ref())
            .collect();
        let [first, ..] = sections.as_slice() else {
            return Ok(());
        };
        writeln!(out, "\n  The same calls of each run: {}", first.calls)?;
        if sections.iter().any(|other| other.calls != first.calls) {
            return writeln!(
                out,
                "  Other runs have times between other calls, which do not compare; read all runs anew"
            );
        }
        self.nodes(out)?;
        let time = |p: &Point| Some(Time(p.section.as_ref()?.time_ps).rounded(3));
        let known = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        row(
            out,
            "virtual time",
            self.points.iter().map(|p| known(time(p))),
        )?;
        let windows = sections.iter().any(|section| section.window_ps > 0);
        if windows {
            let part = |p: &Point| Some(percent(p.section.as_ref()?.in_windows()));
            row(
                out,
                "of it in windows",
                self.points.iter().map(|p| known(part(p))),
            )?;
        }
        let speeds = self.section_speeds();
        if speeds.is_empty() && sections.len() > 1 {
            writeln!(
                out,
                "  Clocks in windows also count modelled stalls: with other parts of the time in windows, the times do\n  not compare. --from and --to choose calls inside or outside the windows"
            )?;
        } else if work.is_some_and(|work| work.grows_with_ranks) {
            writeln!(
                out,
                "  Of equal work for each rank: equal times are perfect weak scaling"
            )?;
        } else if !speeds.is_empty() {
            row(out, "faster than the first", speeds.into_iter().map(ratio))?;
        }
        Ok(())
    }

    fn nodes(&self, out: &mut String) -> std::fmt::Result {
        row(
            out,
            "nodes",
            self.points.iter().map(|p| p.nodes.to_string()),
        )
    }

    fn write_calls(&self, out: &mut String) -> std::fmt::Result {
        heading(
            out,
            "MPI calls of the whole run: mean time of a rank, and calls of a rank",
        )?;
        self.nodes(out)?;
        let names = self.functions();
        for name in names.iter().take(FUNCTIONS) {
            let found = |p: &Point| {
                p.mpi
                    .functions
                    .iter()
                    .find(|f| f.function == *name)
                    .cloned()
            };
            let ranks = |p: &Point| f64::from(p.ranks.max(1));
            let time = |p: &Point| match found(p) {
                Some(f) => Time((f.time_ps as f64 / ranks(p)) as u64).rounded(3),
                None => "-".to_owned(),
            };
            row(out, name, self.points.iter().map(time))?;
            let calls = |p: &Point| known(found(p).map(|f| f.calls as f64 / ranks(p)));
            row(out, "", self.points.iter().map(calls))?;
        }
        match names.len().saturating_sub(FUNCTIONS) {
            0 => Ok(()),
            more => writeln!(out, "  ... {more} more; --json has all"),
        }
    }

    fn write_cpi(&self, out: &mut String) -> std::fmt::Result {
        let Some(window) = self.points.iter().find_map(|p| p.window.as_ref()) else {
            return writeln!(
                out,
                "\nNo run has a complete window: CPI and FLOPS are unknown"
            );
        };
        heading(
            out,
            "CPI of all ranks in the window, equation (1): cycles per instruction outside MPI",
        )?;
        writeln!(out, "  CPI_core: {}", window.core)?;
        self.nodes(out)?;
        for group in Group::ALL {
            let value = |p: &Point| Some(p.window.as_ref()?.group(group));
            if group == Group::Other && self.points.iter().filter_map(value).all(|v| v == 0.0) {
                continue;
            }
            let cell = |p: &Point| value(p).map_or_else(|| "-".to_owned(), |v| format!("{v:.4}"));
            row(out, group.name(), self.points.iter().map(cell))?;
        }
        let total = |p: &Point| {
            p.window
                .as_ref()
                .map_or_else(|| "-".to_owned(), |w| format!("{:.4}", w.cpi))
        };
        row(out, "CPI", self.points.iter().map(total))?;
        if self.spreads.is_empty() {
            return Ok(());
        }
        writeln!(
            out,
            "\n  Constancy over the numbers of nodes (published: CPI_core and CPI_caches are constant)"
        )?;
        writeln!(
            out,
            "  {:<8} {:>9} {:>9} {:>9} {:>22}",
            "term", "least", "largest", "mean", "(largest-least)/mean"
        )?;
        for s in &self.spreads {
            writeln!(
                out,
                "  {:<8} {:>9.4} {:>9.4} {:>9.4} {:>22}",
                s.term,
                s.least,
                s.largest,
                s.mean,
                percent(s.relative)
            )?;
        }
        Ok(())
    }

    fn write_flops(&self, out: &mut String) -> std::fmt::Result {
        if self.points.iter().all(|p| p.window.is_none()) {
            return Ok(());
        }
        heading(out, "FLOP/s in the window")?;
        self.nodes(out)?;
        let flops = |p: &Point| p.window.as_ref().map(|w| w.flops.clone());
        let all = |p: &Point, of_core: Option<f64>| Some(of_core? * f64::from(p.ranks));
        let published = |p: &Point| flops(p).and_then(|f| all(p, f.published_per_second));
        let direct = |p: &Point| flops(p).and_then(|f| all(p, f.direct_per_second));
        let window = |p: &Point| flops(p).and_then(|f| f.window_per_second);
        let alpha = |p: &Point| flops(p).and_then(|f| f.alpha);
        row(out, "alpha", self.points.iter().map(|p| ratio(alpha(p))))?;
        row(
            out,
            "equation (6) x ranks",
            self.points.iter().map(|p| known(published(p))),
        )?;
        row(
            out,
            "counted over busy time",
            self.points.iter().map(|p| known(direct(p))),
        )?;
        row(
            out,
            "counted over the window",
            self.points.iter().map(|p| known(window(p))),
        )
    }

    fn write_host(&self, out: &mut String) -> std::fmt::Result {
        let hosts: Vec<_> = self.points.iter().filter_map(|p| p.host.as_ref()).collect();
        let [host, ..] = hosts.as_slice() else {
            return writeln!(
                out,
                "\nNo run has host.json: host speeds are unknown; run the studies with --host-times"
            );
        };
        heading(
            out,
            "Host: instructions per second of processor time of one core",
        )?;
        let threads = hosts.iter().map(|host| host.threads).max().unwrap_or(1);
        let plural = if threads == 1 { "" } else { "s" };
        writeln!(
            out,
            "  {}, up to {threads} host thread{plural}",
            host.processor
        )?;
        self.nodes(out)?;
        for (kind, name, _, _) in PUBLISHED {
            row(out, name, self.points.iter().map(|p| known(p.speed(kind))))?;
        }
        let memory = |p: &Point| {
            p.host
                .as_ref()
                .map(|h| h.memory() as f64 / f64::from(1 << 20))
        };
        let cell =
            |p: &Point| memory(p).map_or_else(|| "-".to_owned(), |mib| format!("{mib:.0} MiB"));
        row(out, "peak memory", self.points.iter().map(cell))?;
        let wall = |p: &Point| {
            p.host
                .as_ref()
                .map(|h| h.phases.iter().map(|c| c.wall_seconds).sum::<f64>())
        };
        let cell = |p: &Point| wall(p).map_or_else(|| "-".to_owned(), |s| format!("{s:.1} s"));
        row(out, "wall time", self.points.iter().map(cell))?;
        writeln!(
            out,
            "\n  Beside the published speeds, millions of instructions per second"
        )?;
        writeln!(
            out,
            "  {:<26} {:>18} {:>22} {:>20}",
            "phase", "here, a core", "published, a process", "published, a core"
        )?;
        for (kind, name, from, to) in PUBLISHED {
            let speeds: Vec<f64> = self.points.iter().filter_map(|p| p.speed(kind)).collect();
            let here = match speeds.is_empty() {
                true => "-".to_owned(),
                false => {
                    let least = speeds.iter().copied().fold(f64::INFINITY, f64::min);
                    let largest = speeds.iter().copied().fold(0.0, f64::max);
                    format!("{:.1}-{:.1}", least / 1e6, largest / 1e6)
                }
            };
            writeln!(
                out,
                "  {name:<26} {here:>18} {:>22} {:>20}",
                format!("{from:.0}-{to:.0}"),
                format!("{:.1}-{:.1}", from / PUBLISHED_CORES, to / PUBLISHED_CORES)
            )?;
        }
        writeln!(
            out,
            "  Published: processes on 12 host cores; boot on hardware virtualization, here on the portable engine"
        )
    }
}

impl Plan {
    fn write(&self, out: &mut String) -> std::fmt::Result {
        let PlanRequest { nodes, cores, .. } = &self.request;
        heading(out, &format!("Plan for {nodes} nodes of {cores} cores"))?;
        for phase in &self.phases {
            writeln!(
                out,
                "  {:<7} {:.3} s of virtual time, {} instructions: {} by the fit ({:.3} s for each node and second, {:.2} ns for each instruction; the runs differ from it by up to {}), {} by instructions",
                phase.phase,
                phase.virtual_seconds,
                short(phase.instructions),
                core_time(phase.cpu_seconds),
                phase.per_node_second,
                1e9 * phase.per_instruction,
                percent(phase.error),
                core_time(phase.cpu_seconds_by_instruction)
            )?;
        }
        let boot = match self.boots_once {
            true => "one node boots, and the others are made of it",
            false => "each node boots",
        };
        writeln!(
            out,
            "  ends    {}: {boot}, and all power off",
            core_time(self.ends_cpu_seconds)
        )?;
        let mib = |bytes: f64| bytes / f64::from(1 << 20);
        writeln!(
            out,
            "  memory  {:.0} MiB: {:.0} MiB a host and {:.0} MiB a node (the runs differ by up to {})",
            mib(self.memory_bytes),
            mib(self.memory_base_bytes),
            mib(self.memory_per_node_bytes),
            percent(self.memory_error)
        )?;
        writeln!(
            out,
            "  hosts   {} of {} cores and {} GiB, with up to {} nodes each",
            self.hosts,
            self.request.host_cores,
            self.request.host_memory_bytes >> 30,
            self.nodes_per_host
        )?;
        writeln!(
            out,
            "  time    {} by the fit, {} by instructions; {} to {} on all of these hosts if every core is always busy",
            core_time(HOUR * self.core_hours),
            core_time(HOUR * self.core_hours_by_instruction),
            duration(HOUR * self.hours[0].min(self.hours[1])),
            duration(HOUR * self.hours[0].max(self.hours[1]))
        )?;
        if let Some(ps) = self.request.exchange_ps.filter(|_| self.hosts > 1) {
            writeln!(
                out,
                "  network {} of that at most: an exchange of {} after each {} of virtual time",
                duration(HOUR * self.exchange_hours),
                Time(ps),
                Time(self.request.latency_ps)
            )?;
        }
        for note in &self.notes {
            writeln!(out, "  Note: {note}")?;
        }
        writeln!(
            out,
            "  Extrapolated: each core executes as many instructions in a second as in the run with most nodes.\n  By instructions: each also costs what it costs there, which counts the nodes' own cost for every core"
        )
    }
}
