//! Placements as text for a terminal, and as rows of tables.

use std::fmt::{Result, Write};

use crate::mapping::{Change, ChangeCost, Mapping, PlacementResult, Schedule};
use crate::text::{size, time};

/// Most phases shown one by one.
const LINES: usize = 40;
/// Most ranks of a program for which a list of all ranks' nodes is shown.
const RANKS: usize = 256;

impl Mapping {
    pub(crate) fn write(&self, out: &mut String, begin: u64) -> Result {
        writeln!(out, "\nPlacements on {:?}", self.cluster)?;
        let row = |out: &mut String, cells: [String; 6]| {
            let [number, moved, bytes, time, gain, used] = cells;
            writeln!(
                out,
                "{number:<10}{moved:>7}{bytes:>22}{time:>16}{gain:>10}   {used}"
            )
        };
        row(out, Mapping::HEAD.map(str::to_owned))?;
        for cells in self.rows() {
            row(out, cells)?;
        }
        for (at, placed) in self.placements.iter().enumerate() {
            if let Some(sockets) = &placed.sockets {
                writeln!(
                    out,
                    "placement {at}: {} between sockets of a node, {} with the ranks in order",
                    size(sockets.bytes as f64),
                    size(sockets.bytes_in_order as f64)
                )?;
            }
        }
        writeln!(
            out,
            "\n{:<6}{:>10}{:>14}{:>14}{:>14}{:>14}{:>9}",
            "phase", "placement", "bytes, given", "own", "time, given", "own", "gain"
        )?;
        for cells in self.phase_rows().into_iter().take(LINES) {
            let [phase, placement, given, own, time, own_time, gain] = cells;
            writeln!(
                out,
                "{phase:<6}{placement:>10}{given:>14}{own:>14}{time:>14}{own_time:>14}{gain:>9}"
            )?;
        }
        if self.phases.len() > LINES {
            writeln!(out, "... {} more", self.phases.len() - LINES)?;
        }
        if let Some(schedule) = &self.schedule {
            writeln!(out)?;
            for line in schedule.lines(begin) {
                writeln!(out, "{line}")?;
            }
        }
        let best = &self.placements[self.whole];
        if self.whole != 0 && best.nodes.len() <= RANKS {
            writeln!(
                out,
                "\nThe whole run's placement for a cluster file, in [nodes]:"
            )?;
            writeln!(out, "  placement = {:?}", best.nodes)?;
        }
        Ok(())
    }

    /// Column heads of [`Mapping::rows`].
    pub(crate) const HEAD: [&'static str; 6] = [
        "placement",
        "moved",
        "bytes between nodes",
        "predicted time",
        "gain",
        "for",
    ];

    /// Returns a row for each placement: its number, ranks moved, bytes between nodes, predicted time, gain, and uses.
    pub(crate) fn rows(&self) -> Vec<[String; 6]> {
        let given = self.placements[0].time;
        let uses = self.uses();
        (self.placements.iter().enumerate())
            .map(|(at, placed)| {
                [
                    at.to_string(),
                    placed.moved.to_string(),
                    size(placed.bytes as f64),
                    time_text(placed.time),
                    gain(given, placed.time),
                    uses.get(&at).cloned().unwrap_or_default(),
                ]
            })
            .collect()
    }

    /// Column heads of [`Mapping::phase_rows`].
    pub(crate) const PHASE_HEAD: [&'static str; 7] = [
        "phase",
        "placement",
        "bytes between nodes, given",
        "own placement",
        "predicted time, given",
        "own placement",
        "gain",
    ];

    /// Returns a row for each phase: its placement, then bytes and predicted times with the given and with its own placement.
    pub(crate) fn phase_rows(&self) -> Vec<[String; 7]> {
        let of = |placed: &PlacementResult, phase: usize| placed.phase_times.get(phase).copied();
        let given = &self.placements[0];
        (self.phases.iter().enumerate())
            .map(|(phase, &number)| {
                let own = &self.placements[number];
                let times = [of(given, phase), of(own, phase)];
                [
                    phase.to_string(),
                    number.to_string(),
                    size(given.phase_bytes[phase] as f64),
                    size(own.phase_bytes[phase] as f64),
                    time_text(times[0]),
                    time_text(times[1]),
                    gain(times[0], times[1]),
                ]
            })
            .collect()
    }
}

impl Schedule {
    /// Returns sentences that state when changing the placement pays, in times since `begin`.
    pub(crate) fn lines(&self, begin: u64) -> Vec<String> {
        let (unit, price): (fn(u64) -> String, u64) = match self.change {
            ChangeCost::Time(price) => (time, price),
            ChangeCost::Bytes(price) => (|bytes| size(bytes as f64), price),
        };
        let what = match self.change {
            ChangeCost::Time(_) => "predicted time",
            ChangeCost::Bytes(_) => "bytes between nodes",
        };
        let mut lines = vec![format!(
            "Changes at {} each, by {what}: given {}, without changes {} (placement {}), with changes {}",
            unit(price),
            unit(self.given_cost),
            unit(self.constant_cost),
            self.constant,
            unit(self.cost)
        )];
        if self.changes.is_empty() {
            let first = self.placements.first().copied().unwrap_or(0);
            lines.push(format!(
                "  no change pays: placement {first} from begin to end"
            ));
        } else if let Some(first) = self.placements.first() {
            lines.push(format!("  begin with placement {first}"));
        }
        for Change { phase, at, to, .. } in &self.changes {
            lines.push(format!(
                "  before phase {phase}, at {}: placement {to}",
                time(at.saturating_sub(begin))
            ));
        }
        lines
    }
}

fn time_text(picoseconds: Option<u64>) -> String {
    picoseconds.map_or("-".into(), time)
}

/// Returns the share of the time `given` that `own` saves, in per cent; `-` if a time is missing.
fn gain(given: Option<u64>, own: Option<u64>) -> String {
    match (given, own) {
        (Some(given), Some(own)) if given > 0 => {
            format!(
                "{:.1} %",
                100.0 * (given as f64 - own as f64) / given as f64
            )
        }
        _ => "-".into(),
    }
}
