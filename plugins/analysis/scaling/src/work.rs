//! Work of windows: whether the runs of a program did the same in their windows.

use crate::analysis::Series;
use crate::point::{Point, Section, Window};

/// Largest relative difference of a count in windows of equal work.
const EQUAL: f64 = 0.02;

/// Kind of work that is counted in a window.
type Kind = (&'static str, fn(&Window) -> Option<f64>);

/// Kinds of work. The first that all windows have is what speeds are normalised by.
const KINDS: [Kind; 4] = [
    ("floating-point operations", |window| {
        window.flops.total.map(|count| count as f64)
    }),
    ("instructions outside MPI", |window| {
        Some(window.instructions as f64)
    }),
    ("loads", |window| window.loads.map(|count| count as f64)),
    ("stores", |window| window.stores.map(|count| count as f64)),
];

/// Work of the windows of a series, beside that of the first run that has a window.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// Ratio of each kind of work to the first window's, by run; `None` for a run without a window. A kind that a window lacks is left
    /// out.
    pub ratios: Vec<(&'static str, Vec<Option<f64>>)>,
    /// Speed of each run beside the first in weak scaling: work of the first kind in [`Work::ratios`] for each time measured. Empty
    /// without weak scaling: such windows are of different parts of the program, and of caches that are warm to different degrees.
    pub speeds: Vec<Option<f64>>,
    /// True if every kind of work grows as the number of ranks: weak scaling.
    pub grows_with_ranks: bool,
    /// Different events at which the windows opened, in words; empty if the windows opened at the same event.
    pub triggers: Vec<String>,
}

/// Returns the time in which a window's work was counted, picoseconds: without warm-up where that is known.
fn time(window: &Window) -> f64 {
    window.measured_ps.unwrap_or(window.length_ps).max(1) as f64
}

impl Series {
    /// Returns the speed of each run's window beside the first run's, for windows of equal work.
    pub(crate) fn window_speeds(&self) -> Vec<Option<f64>> {
        let first = self.points.first().and_then(|point| point.window.as_ref());
        let speed = |point: &Point| Some(time(first?) / time(point.window.as_ref()?));
        self.points.iter().map(speed).collect()
    }

    /// Returns the speed of each run's section beside the first run's; empty if fewer than two runs have a section, if the sections are
    /// between different calls, or if windows were open in different parts of them, so that their clocks differ.
    pub(crate) fn section_speeds(&self) -> Vec<Option<f64>> {
        let sections: Vec<&Section> = (self.points.iter())
            .filter_map(|point| point.section.as_ref())
            .collect();
        let [first, _, ..] = sections.as_slice() else {
            return Vec::new();
        };
        let alike = |section: &&Section| {
            section.calls == first.calls
                && (section.in_windows() - first.in_windows()).abs() <= EQUAL
        };
        if !sections.iter().all(alike) {
            return Vec::new();
        }
        let speed = |point: &Point| {
            let section = point.section.as_ref()?;
            Some(first.time_ps as f64 / section.time_ps.max(1) as f64)
        };
        self.points.iter().map(speed).collect()
    }

    /// Compares the work of the windows; `None` if all windows did the same work, or fewer than two runs have a window.
    pub fn different_work(&self) -> Option<Work> {
        let windows: Vec<(&Point, &Window)> = (self.points.iter())
            .filter_map(|point| Some((point, point.window.as_ref()?)))
            .collect();
        let (&(first_point, first), [_, ..]) = windows.split_first()? else {
            return None;
        };
        let mut ratios = Vec::new();
        // Loads and stores are counted inside MPI, too, where a rank that polls for longer has more of them.
        let share = |window: &Window| {
            let inside = window.instructions_in_mpi as f64;
            inside / (inside + window.instructions as f64).max(1.0)
        };
        let alike =
            (windows.iter()).all(|(_, window)| (share(window) - share(first)).abs() <= EQUAL);
        for (name, count) in KINDS.into_iter().take(if alike { 4 } else { 2 }) {
            let all: Option<Vec<f64>> = windows.iter().map(|(_, window)| count(window)).collect();
            // Without any work of a kind there is nothing to compare.
            if let Some(base) = all.and_then(|all| (all[0] > 0.0).then_some(all[0])) {
                let ratio = |point: &Point| Some(count(point.window.as_ref()?)? / base);
                ratios.push((name, self.points.iter().map(ratio).collect::<Vec<_>>()));
            }
        }
        let mut triggers: Vec<String> = Vec::new();
        for (_, window) in &windows {
            if let Some(trigger) = &window.trigger
                && !triggers.contains(trigger)
            {
                triggers.push(trigger.clone());
            }
        }
        let ranks = |point: &Point| f64::from(point.ranks) / f64::from(first_point.ranks.max(1));
        let near = |one: f64, other: f64| (one - other).abs() <= EQUAL * other;
        let all = |wanted: &dyn Fn(&Point) -> f64| {
            ratios.iter().all(|(_, ratios)| {
                (self.points.iter().zip(ratios))
                    .all(|(point, ratio)| ratio.is_none_or(|ratio| near(ratio, wanted(point))))
            })
        };
        if all(&|_| 1.0) && triggers.len() < 2 {
            return None;
        }
        let (_, by) = ratios.first()?;
        let grows_with_ranks = all(&ranks) && triggers.len() < 2;
        let speeds = (self.points.iter().zip(by)).map(|(point, ratio)| {
            let window = point.window.as_ref()?;
            Some((*ratio)? * time(first) / time(window))
        });
        Some(Work {
            speeds: if grows_with_ranks {
                speeds.collect()
            } else {
                Vec::new()
            },
            grows_with_ranks,
            triggers: if triggers.len() < 2 {
                Vec::new()
            } else {
                triggers
            },
            ratios,
        })
    }
}
