//! Counts of a program, by rank where they are known by rank.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::error::CountersError;
use crate::formulas::{Contradiction, Derived};
use crate::names;
use crate::quantity::Quantity;

/// A place in a file of a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilePosition {
    /// The file, as an index into [`Measurement::files`].
    pub file: usize,
    /// The byte, from 0.
    pub offset: usize,
}

/// Count of an event by a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// Name of the event, as the tool writes it.
    pub event: String,
    /// The quantity that the event counts; none if no table knows the event.
    pub quantity: Option<Quantity>,
    /// The count, or a share from 0 to 1; none if the tool could not count, with what the tool said in `unread`.
    pub value: Option<f64>,
    /// The text that the tool wrote in place of a count, such as `<not supported>`.
    pub unread: String,
    /// Part of the time in which the counter ran, from 0 to 1. Below 1 the count is scaled.
    pub running: f64,
    /// True if only user code is counted.
    pub user_only: bool,
    /// Position of the count in the file; none for counters of this host.
    pub position: Option<FilePosition>,
}

impl Reading {
    /// Makes the count of an event whose name determines its quantity.
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

    /// Adds the count of another part of the machine or of the time.
    fn add(&mut self, other: Reading) {
        match (self.value, other.value) {
            (Some(a), Some(b)) => {
                // Weighed by the counts.
                if a + b > 0.0 {
                    self.running = (self.running * a + other.running * b) / (a + b);
                }
                self.value = Some(a + b);
            }
            // A sum without one of its parts would be wrong.
            (Some(_), None) => {
                self.value = None;
                self.unread = other.unread;
                self.position = other.position;
            }
            (None, _) => {}
        }
    }
}

/// Events that counts may have: many more than a processor counts in one run.
const MOST_EVENTS: usize = 1000;

/// The counts of one rank, or of the whole program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    /// The events in the order of the file.
    pub readings: Vec<Reading>,
}

impl Counts {
    /// Returns the reading of a quantity: one of only user code if there is one, since the engine's CPI_core is of user code.
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

    /// Returns the count of a quantity. Full load queues and full store queues are counted by two events, which add up.
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

    /// Returns the event of a quantity that was to be counted and was not.
    pub fn not_counted(&self, quantity: Quantity) -> Option<&Reading> {
        (self.readings.iter())
            .find(|reading| reading.quantity == Some(quantity) && reading.value.is_none())
    }

    /// Adds a reading to the one of the same event, or at the end; more events than a tool can have counted are refused.
    pub(crate) fn add(&mut self, reading: Reading) -> Result<(), String> {
        match (self.readings.iter_mut()).find(|own| own.event == reading.event) {
            Some(own) => own.add(reading),
            None => self.push(reading)?,
        }
        Ok(())
    }

    /// Adds a reading of another event.
    pub(crate) fn push(&mut self, reading: Reading) -> Result<(), String> {
        if self.readings.len() == MOST_EVENTS {
            return Err(format!(
                "is one of more than {MOST_EVENTS} different events; give the counts of one measurement"
            ));
        }
        self.readings.push(reading);
        Ok(())
    }

    /// Returns whether one of the values is a share.
    pub fn has_shares(&self) -> bool {
        let share = |reading: &Reading| reading.quantity.is_some_and(Quantity::is_share);
        self.readings.iter().any(share)
    }
}

/// Counts, and where they come from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measurement {
    /// The tool, such as `perf stat`.
    pub tool: String,
    /// The processor, if known.
    pub processor: Option<String>,
    /// Files that were read; empty for this host.
    pub files: Vec<PathBuf>,
    /// Counts by MPI rank; empty if they are of the program as a whole.
    pub ranks: BTreeMap<u32, Counts>,
    /// Counts of the program as a whole: the sum of the ranks if there are ranks.
    pub whole: Counts,
    /// Sentences about limits of these counts.
    pub notes: Vec<String>,
}

impl Measurement {
    /// Makes the sum of the ranks the whole, as far as every rank counted the same events.
    pub fn sum_ranks(&mut self) {
        let mut index: BTreeMap<&str, usize> = BTreeMap::new();
        // Each sum, and how many ranks are in it.
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

    /// Computes CPI, CPI_core and the rest for the whole program.
    ///
    /// # Errors
    ///
    /// Counts that contradict each other, or without cycles and instructions.
    pub fn derive(&self) -> Result<Derived, CountersError> {
        self.derived(&self.whole)
    }

    /// Computes the same by rank.
    ///
    /// # Errors
    ///
    /// As [`Measurement::derive`].
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

    /// Checks that figures follow from all counts.
    pub(crate) fn check(&self) -> Result<(), Contradiction> {
        let mut all = self.ranks.values().chain([&self.whole]);
        all.try_for_each(|counts| Derived::new(counts).map(drop))
    }

    /// Names files relative to a folder where they are in it, so that what is said does not depend on where the folder lies.
    pub fn relative_to(&mut self, folder: &Path) {
        for file in &mut self.files {
            if let Ok(relative) = file.strip_prefix(folder) {
                *file = relative.to_path_buf();
            }
        }
    }

    /// Returns a text that names the tool, the files, the events that CPI_core comes from, and the limits: one line for a report.
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
