//! Counts of a program, for each MPI rank if the tool counted ranks separately.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::error::CountersError;
use crate::formulas::{Contradiction, Derived};
use crate::names;
use crate::quantity::Quantity;

/// A position in a file of a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilePosition {
    /// The file, as an index into [`Measurement::files`].
    pub file: usize,
    /// Offset of the byte in the file, from 0.
    pub offset: usize,
}

/// The count of one event, as a tool reported it.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// Name of the event, as the tool writes it.
    pub event: String,
    /// The quantity that the event counts; none if the event's name is not in the table of names.
    pub quantity: Option<Quantity>,
    /// The count, or a share from 0 to 1. None if the tool could not count; `unread` then has the tool's text.
    pub value: Option<f64>,
    /// The text that the tool wrote in place of a count, such as `<not supported>`.
    pub unread: String,
    /// Part of the time in which the counter ran, from 0 to 1. Below 1, the count is extrapolated to the whole time.
    pub running: f64,
    /// True if only user code is counted.
    pub user_only: bool,
    /// Position of the count in its file; none for counts of this host.
    pub position: Option<FilePosition>,
}

impl Reading {
    /// Makes the reading of an event, with the quantity that its name stands for.
    pub fn new(event: &str, value: f64, position: Option<FilePosition>) -> Reading {
        let known = names::known(event);
        Reading {
            event: event.to_owned(),
            quantity: known.map(|known| known.quantity),
            value: Some(value),
            unread: String::new(),
            running: 1.0,
            user_only: known.is_some_and(|known| known.user_only),
            position,
        }
    }

    /// Makes the reading of an event that the tool could not count.
    pub fn unread(event: &str, said: &str, position: Option<FilePosition>) -> Reading {
        Reading {
            value: None,
            unread: said.to_owned(),
            ..Reading::new(event, 0.0, position)
        }
    }

    /// Adds the same event's count on another part of the machine, in another interval, or in another rank.
    fn add(&mut self, other: Reading) {
        match (self.value, other.value) {
            (Some(a), Some(b)) => {
                // The running parts are averaged with the counts as weights.
                if a + b > 0.0 {
                    self.running = (self.running * a + other.running * b) / (a + b);
                }
                self.value = Some(a + b);
            }
            // A sum that lacks a part would be too small, so it becomes unread.
            (Some(_), None) => {
                self.value = None;
                self.unread = other.unread;
                self.position = other.position;
            }
            (None, _) => {}
        }
    }
}

/// Largest number of events in one set of counts, many more than a processor can count in one run.
const MOST_EVENTS: usize = 1000;

/// The counts of one rank, or of the whole program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    /// The readings, in the order of the file or of the events that were opened.
    pub readings: Vec<Reading>,
}

impl Counts {
    /// Returns the reading of a quantity, if it was counted. A reading of user code only is preferred, since the engine's CPI_core is of
    /// user code.
    pub fn reading(&self, quantity: Quantity) -> Option<&Reading> {
        let of = |user: bool| {
            (self.readings.iter()).find(|reading| {
                reading.quantity == Some(quantity)
                    && reading.value.is_some()
                    && (!user || reading.user_only)
            })
        };
        of(true).or_else(|| of(false))
    }

    /// Returns the count or the share of a quantity; none if it was not counted. Stalls for full load queues and full store queues are
    /// counted by separate events, whose counts are added.
    pub fn value(&self, quantity: Quantity) -> Option<f64> {
        let first = self.reading(quantity)?;
        if quantity != Quantity::StallsQueues {
            return first.value;
        }
        let all = (self.readings.iter()).filter(|reading| {
            reading.quantity == Some(quantity) && reading.user_only == first.user_only
        });
        Some(all.filter_map(|reading| reading.value).sum())
    }

    /// Returns the first reading of a quantity without a value: an event that the tool tried to count and could not. None if there is no
    /// such event.
    pub fn not_counted(&self, quantity: Quantity) -> Option<&Reading> {
        (self.readings.iter())
            .find(|reading| reading.quantity == Some(quantity) && reading.value.is_none())
    }

    /// Adds a reading to that of the same event, or appends it if the event is new. Fails if there are too many events.
    pub(crate) fn add(&mut self, reading: Reading) -> Result<(), String> {
        match (self.readings.iter_mut()).find(|own| own.event == reading.event) {
            Some(own) => own.add(reading),
            None => self.push(reading)?,
        }
        Ok(())
    }

    /// Appends the reading of a new event. Fails if there are too many events.
    pub(crate) fn push(&mut self, reading: Reading) -> Result<(), String> {
        if self.readings.len() == MOST_EVENTS {
            return Err(format!(
                "is one of more than {MOST_EVENTS} different events; give the counts of one measurement"
            ));
        }
        self.readings.push(reading);
        Ok(())
    }

    /// Returns whether one of the readings is a share.
    pub fn has_shares(&self) -> bool {
        let share = |reading: &Reading| reading.quantity.is_some_and(Quantity::is_share);
        self.readings.iter().any(share)
    }
}

/// Counts of a program, and their source.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measurement {
    /// The tool, such as `perf stat`.
    pub tool: String,
    /// Name of the processor; none if the tool does not name it.
    pub processor: Option<String>,
    /// Files that were read; empty for counts of this host.
    pub files: Vec<PathBuf>,
    /// Counts by MPI rank; empty if only the whole program was counted.
    pub ranks: BTreeMap<u32, Counts>,
    /// Counts of the whole program. With ranks, sums over the ranks of the events that every rank has.
    pub whole: Counts,
    /// Sentences about limits of these counts.
    pub notes: Vec<String>,
}

impl Measurement {
    /// Sets `whole` to the sum over the ranks of each event that every rank has.
    pub fn sum_ranks(&mut self) {
        let mut index: BTreeMap<&str, usize> = BTreeMap::new();
        // Each sum, with the number of ranks in it.
        let mut sums: Vec<(Reading, usize)> = Vec::new();
        for reading in self.ranks.values().flat_map(|counts| &counts.readings) {
            match index.get(reading.event.as_str()) {
                Some(&at) => {
                    sums[at].0.add(reading.clone());
                    sums[at].1 += 1;
                }
                None => {
                    index.insert(&reading.event, sums.len());
                    sums.push((reading.clone(), 1));
                }
            }
        }
        let everywhere = sums
            .into_iter()
            .filter(|(_, ranks)| *ranks == self.ranks.len());
        self.whole = Counts {
            readings: everywhere.map(|(reading, _)| reading).collect(),
        };
    }

    /// Computes CPI, CPI_core and the other derived figures of the whole program.
    ///
    /// # Errors
    ///
    /// Counts that contradict each other, or that lack cycles or instructions.
    pub fn derive(&self) -> Result<Derived, CountersError> {
        self.derived(&self.whole)
    }

    /// Computes CPI, CPI_core and the other derived figures of each rank.
    ///
    /// # Errors
    ///
    /// Fails for the same counts as [`Measurement::derive`].
    pub fn derive_ranks(&self) -> Result<BTreeMap<u32, Derived>, CountersError> {
        let derive = |(rank, counts): (&u32, &Counts)| Ok((*rank, self.derived(counts)?));
        self.ranks.iter().map(derive).collect()
    }

    fn derived(&self, counts: &Counts) -> Result<Derived, CountersError> {
        Derived::new(counts).map_err(|problem| match self.files.first() {
            Some(path) => CountersError::Files {
                path: path.clone(),
                message: problem.message,
            },
            None => CountersError::Nothing(problem.message),
        })
    }

    /// Checks that figures can be derived from the counts of each rank and of the whole.
    pub(crate) fn check(&self) -> Result<(), Contradiction> {
        let mut all = self.ranks.values().chain([&self.whole]);
        all.try_for_each(|counts| Derived::new(counts).map(drop))
    }

    /// Makes the paths of files inside `folder` relative to it, so that reports do not depend on where the folder is.
    pub fn relative_to(&mut self, folder: &Path) {
        for file in &mut self.files {
            if let Ok(relative) = file.strip_prefix(folder) {
                *file = relative.to_path_buf();
            }
        }
    }

    /// Returns one line for a report that names the tool, the files, the events that CPI_core is computed from, and the limits.
    pub fn source(&self, derived: &Derived) -> String {
        let mut text = self.tool.clone();
        if let Some(processor) = &self.processor {
            text += &format!(" on {processor}");
        }
        match self.files.as_slice() {
            [] => {}
            [file] => text += &format!(", {}", file.display()),
            [first, .., last] => {
                text += &format!(
                    ", {} files from {} to {}",
                    self.files.len(),
                    first.display(),
                    last.display()
                );
            }
        }
        if let Ok(core) = &derived.core {
            text += &format!(
                "; CPI_core = (cycles - stalls) / instructions of {}",
                core.events.join(", ")
            );
        }
        let limits: BTreeSet<&String> = derived.limits.iter().chain(&self.notes).collect();
        for limit in limits {
            text += &format!("; {limit}");
        }
        text
    }
}
