//! A prediction as text.

use std::fmt::Write;

use nodescope_config::quantity::{Time, counted};

use crate::interval::{Interval, Source};
use crate::predict::Prediction;
use crate::result::{Blocked, Problem, RankTimes};

/// Largest number of ranks that are listed one by one.
const RANKS: usize = 16;
/// Largest number of lines in each list.
const LINES: usize = 10;

impl Prediction {
    /// Returns the contents as text for a terminal.
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let outcome = &self.outcome;
        let cluster = &self.cluster;
        writeln!(
            out,
            "Prediction for {:?}: {}, {}, {}",
            cluster.name,
            counted(self.ranks, "rank"),
            self.placement.told(),
            cluster.topology
        )?;
        if !self.differences.is_empty() {
            writeln!(out, "\nDifferent from the traced run")?;
            for difference in &self.differences {
                writeln!(out, "  - {difference}")?;
            }
        }
        if !outcome.complete() {
            writeln!(out, "\nThe program does not come to its end there:")?;
            return self.problems(out);
        }
        write!(out, "\n  predicted time  {}", time(outcome.time))?;
        match &self.interval {
            Some(interval) => {
                writeln!(
                    out,
                    "   ({} to {} in 95 % of cases)",
                    time(interval.low),
                    time(interval.high)
                )?;
                self.parts(out, interval)?;
            }
            None => writeln!(out)?,
        }
        if let Some(traced) = self.traced {
            writeln!(out, "  where traced    {}", time(traced))?;
        }
        if let Some(section) = &self.section {
            let (predicted, traced) = (time(section.time), time(section.traced));
            write!(out, "  section         {predicted}, {traced} where traced")?;
            match &section.interval {
                Some(interval) => {
                    let ends = [interval.low, interval.high].map(time);
                    writeln!(out, " ({} to {} in 95 % of cases)", ends[0], ends[1])?;
                }
                None => writeln!(out)?,
            }
        }
        self.contained(out)?;
        if let Some(of) = &self.efficiencies {
            writeln!(out, "\nEfficiency")?;
            let rows = [
                ("parallel", of.parallel(), "= load balance x communication"),
                (
                    "load balance",
                    of.load_balance(),
                    "mean / longest computation",
                ),
                (
                    "communication",
                    of.communication(),
                    "= serialisation x transfer",
                ),
                (
                    "serialisation",
                    of.serialisation(),
                    "longest computation / time on an ideal network",
                ),
                ("transfer", of.transfer(), "time on an ideal network / time"),
            ];
            for (name, value, meaning) in rows {
                writeln!(out, "  {name:<15}{:6.2} %   {meaning}", 100.0 * value)?;
            }
        }
        self.fragments(out)?;
        self.ranks(out)?;
        self.waits(out)?;
        if let Some(delays) = &self.delays {
            delays.write(out)?;
        }
        self.critical(out)?;
        if let Some(sensitivity) = &self.sensitivity {
            sensitivity.write(out)?;
        }
        if !outcome.links.is_empty() && outcome.time > 0 {
            writeln!(out, "\nBusiest links")?;
            for link in outcome.links.iter().take(LINES) {
                let load = 100.0 * link.busy as f64 / outcome.time as f64;
                writeln!(out, "  {load:5.1} % {:>12} B  {}", link.bytes, link.link)?;
            }
        }
        if !outcome.problems.is_empty() {
            writeln!(out, "\nProblems of the program")?;
            self.problems(out)?;
        }
        let size = &self.loop_trees;
        write!(
            out,
            "\nModel: {} operations as {} entries of {} trees, {} B; {} bursts, {} B",
            size.operations,
            size.entries,
            size.trees,
            size.structure_bytes,
            size.bursts,
            size.burst_bytes
        )?;
        match size.trace_bytes {
            Some(bytes) => writeln!(out, "; trace {bytes} B")?,
            None => writeln!(out)?,
        }
        writeln!(
            out,
            "Interpreted: {} events, {} messages, {} B",
            outcome.events, outcome.messages, outcome.bytes
        )?;
        for note in &self.notes {
            writeln!(out, "Note: {note}")?;
        }
        Ok(())
    }

    /// Writes the parts of the time's interval by cause.
    fn parts(&self, out: &mut String, interval: &Interval) -> std::fmt::Result {
        let percent = |distance: u64| 100.0 * distance as f64 / self.outcome.time.max(1) as f64;
        let mut parts = Vec::new();
        for part in &interval.parts {
            let (below, above) = (percent(part.below), percent(part.above));
            let how = match part.source {
                Source::Bursts => {
                    let apart = match interval.stagger {
                        0 => String::new(),
                        stagger => format!(", ranks beginning up to {} apart", time(stagger)),
                    };
                    format!(" ({} replicas{apart})", interval.replicas)
                }
                _ => String::new(),
            };
            let words = part.source.words();
            parts.push(match part.below.abs_diff(part.above) {
                0 => format!("{words} {above:.2} %{how}"),
                _ => format!("{words} -{below:.2} +{above:.2} %{how}"),
            });
        }
        if !parts.is_empty() {
            writeln!(out, "  interval        {}", parts.join(", "))?;
        }
        if self.cluster.uncertainty.messages == 0.0 {
            writeln!(
                out,
                "                  costs of messages are taken to be exact: the cluster file has no network.uncertainty"
            )?;
        }
        Ok(())
    }

    /// Writes what the traced time contains that the predicted time does not, or the other way round.
    fn contained(&self, out: &mut String) -> std::fmt::Result {
        for window in &self.windows {
            let mut parts = Vec::new();
            if let Some(traced) = self.traced.filter(|_| window.time > 0) {
                parts.push(part_of(window.time, traced, "the traced time"));
            }
            if let (Some(of), Some(section)) = (window.section.filter(|&of| of > 0), &self.section)
            {
                parts.push(part_of(of, section.traced, "the section's"));
            }
            if !parts.is_empty() {
                writeln!(
                    out,
                    "  window          {:?} was open in {}: clocks there also count modelled stalls{}",
                    window.window,
                    parts.join(", "),
                    match self.converted {
                        None => ", so that bursts last longer than outside, here too",
                        Some(_) => "",
                    }
                )?;
            }
        }
        if let Some(of) = self.converted {
            writeln!(
                out,
                "  one clock       {of}{}",
                match of.matched {
                    matched if matched == of.traced => String::new(),
                    matched => format!(
                        "; call sites with {} had none in windows and get the mean of the others",
                        part_of(of.traced - matched, of.traced, "this time")
                    ),
                }
            )?;
        }
        match self.outcome.connections {
            Some(of) if of.pairs > 0 => {
                let pairs = match of.pairs {
                    1 => "1 pair of ranks of different nodes exchanges messages".to_owned(),
                    pairs => format!("{pairs} pairs of ranks of different nodes exchange messages"),
                };
                let section = match of.in_section {
                    Some(0) => "; none of them for the first time in the section".to_owned(),
                    Some(first) => format!("; {first} of them for the first time in the section"),
                    None => String::new(),
                };
                let told = match of.timed {
                    true => "What a connection's first use costs is in the predicted times",
                    false => {
                        "What a connection's first use costs is not in the predicted times; it is in the traced time of the call that uses it first"
                    }
                };
                writeln!(out, "  connections     {pairs}{section}. {told}")
            }
            _ => Ok(()),
        }
    }

    fn ranks(&self, out: &mut String) -> std::fmt::Result {
        let ranks = &self.outcome.ranks;
        writeln!(
            out,
            "\nRank      computation communication        wait       other        idle"
        )?;
        let row = |out: &mut String, name: &str, r: &RankTimes| {
            let parts = [r.computation, r.communication, r.wait, r.opaque, r.idle];
            let all: u128 = parts.into_iter().map(u128::from).sum();
            let share = |part: u64| format!("{:.2} %", 100.0 * part as f64 / all.max(1) as f64);
            writeln!(
                out,
                "{name:<8} {:>12} {:>13} {:>11} {:>11} {:>11}",
                share(r.computation),
                share(r.communication),
                share(r.wait),
                share(r.opaque),
                share(r.idle)
            )
        };
        for (number, rank) in ranks.iter().enumerate().take(RANKS) {
            row(out, &number.to_string(), rank)?;
        }
        let sum = ranks.iter().fold(RankTimes::default(), |sum, r| RankTimes {
            computation: sum.computation.saturating_add(r.computation),
            opaque: sum.opaque.saturating_add(r.opaque),
            communication: sum.communication.saturating_add(r.communication),
            wait: sum.wait.saturating_add(r.wait),
            idle: sum.idle.saturating_add(r.idle),
        });
        if ranks.len() > RANKS {
            writeln!(out, "... {} more", ranks.len() - RANKS)?;
        }
        row(out, "all", &sum)
    }

    fn fragments(&self, out: &mut String) -> std::fmt::Result {
        if self.fragments.is_empty() {
            return Ok(());
        }
        writeln!(out, "\nReduced")?;
        for (number, fragment) in self.fragments.iter().enumerate().take(LINES) {
            let sum = |part: fn(&crate::reduce::Cost) -> u64| {
                let parts = fragment.costs.iter().map(part);
                parts.fold(0, u64::saturating_add)
            };
            writeln!(
                out,
                "  fragment {}: {} times; {} ranks, {} operations, {} of computation, {} messages, {} B; {} if all enter at once",
                number + 1,
                fragment.occurrences,
                fragment.ranks.len(),
                sum(|cost| cost.operations),
                time(sum(|cost| cost.computation)),
                sum(|cost| cost.messages),
                sum(|cost| cost.bytes),
                time(fragment.alone)
            )?;
        }
        if self.fragments.len() > LINES {
            writeln!(out, "  ... {} more", self.fragments.len() - LINES)?;
        }
        Ok(())
    }

    fn waits(&self, out: &mut String) -> std::fmt::Result {
        let waits = &self.outcome.waits;
        if waits.is_empty() {
            return Ok(());
        }
        writeln!(out, "\nWaiting, all ranks together")?;
        for wait in waits.iter().take(LINES) {
            writeln!(
                out,
                "  {:>12}  {} x {} in {}, because of {} (longest {}, rank {})",
                time(wait.time),
                wait.count,
                wait.kind.name(),
                wait.at,
                wait.because_of,
                time(wait.longest),
                wait.late_rank
            )?;
        }
        if waits.len() > LINES {
            writeln!(out, "  ... {} more", waits.len() - LINES)?;
        }
        Ok(())
    }

    fn critical(&self, out: &mut String) -> std::fmt::Result {
        let Some(path) = &self.outcome.critical_path else {
            return Ok(());
        };
        let whole = self.outcome.time.max(1) as f64;
        let share = |part: u64| 100.0 * part as f64 / whole;
        writeln!(
            out,
            "\nCritical path: {:.1} % computation, {:.1} % communication, {:.1} % transfer of {} messages",
            share(path.computation),
            share(path.communication),
            share(path.transfer),
            path.messages
        )?;
        for (rank, time) in path.ranks.iter().take(LINES / 2) {
            writeln!(out, "  {:5.1} %  on rank {rank}", share(*time))?;
        }
        for (call, time) in path.calls.iter().take(LINES / 2) {
            if *time > 0 {
                writeln!(out, "  {:5.1} %  to {call}", share(*time))?;
            }
        }
        Ok(())
    }

    fn problems(&self, out: &mut String) -> std::fmt::Result {
        for problem in &self.outcome.problems {
            for line in problem.to_string().lines() {
                writeln!(out, "  {line}")?;
            }
        }
        Ok(())
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Problem::Deadlock {
                time: at,
                blocked,
                cycle,
                others,
            } => {
                let who = match blocked {
                    1 => "1 rank waits".to_owned(),
                    _ => format!("{blocked} ranks wait"),
                };
                writeln!(f, "deadlock at {}: {who}", time(*at))?;
                if !cycle.is_empty() {
                    writeln!(f, "  in a cycle:")?;
                }
                cycle.iter().try_for_each(|rank| blocked_line(f, rank))?;
                if !others.is_empty() {
                    let what = if cycle.is_empty() { "" } else { " besides" };
                    writeln!(f, "  waiting{what}:")?;
                }
                others.iter().try_for_each(|rank| blocked_line(f, rank))
            }
            Problem::Unreceived {
                from,
                to,
                tag,
                bytes,
                at,
                count,
            } => writeln!(
                f,
                "{count} messages of {bytes} B with tag {tag} from rank {from} to rank {to} are never received; sent by {at}"
            ),
            Problem::Truncated {
                from,
                to,
                bytes,
                room,
                at,
                count,
            } => writeln!(
                f,
                "{count} messages of {bytes} B from rank {from} to rank {to} meet {at}, which has room for {room} B"
            ),
            Problem::Mismatch {
                rank,
                at,
                other,
                other_at,
                what,
            } => writeln!(
                f,
                "collectives differ ({what}): rank {other} in {other_at}, rank {rank} in {at}"
            ),
            Problem::TooLong { time: at } => writeln!(
                f,
                "the program takes more than {}, the longest that is interpreted; look at the cluster's latencies, rates and speed",
                time(*at)
            ),
            Problem::Unmatched { rank, at, count } => writeln!(
                f,
                "{count} receives of rank {rank}, begun by {at}, never get a message"
            ),
        }
    }
}

fn blocked_line(f: &mut std::fmt::Formatter<'_>, rank: &Blocked) -> std::fmt::Result {
    let whom = match (rank.waits_for, rank.ended) {
        (Some(other), true) => format!("rank {other}, which has ended"),
        (Some(other), false) => format!("rank {other}"),
        (None, _) => "anybody".to_owned(),
    };
    writeln!(f, "    rank {} in {} waits for {whom}", rank.rank, rank.at)
}

fn part_of(part: u64, whole: u64, what: &str) -> String {
    let share = 100.0 * part as f64 / whole.max(1) as f64;
    format!("{} ({share:.1} %) of {what}", time(part))
}

/// Returns a time in a unit that suits it.
pub(crate) fn time(picoseconds: u64) -> String {
    Time(picoseconds).rounded(3)
}
