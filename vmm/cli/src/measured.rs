//! What a window of the results measured of the code of ranks.

use std::collections::BTreeMap;
use std::path::Path;

use nodescope_loop_tree::Sequences;
use nodescope_profile::{CodeChange, WindowProfile, is_openmp_runtime};
use nodescope_verdict::{Change, MeasuredCode, Sample};
use nodescope_window::{Owner, WindowRecord};

use crate::exit::{Exit, Failure};
use crate::known_costs::{clock, measured_windows};
use crate::results::RunFile;

/// A window with a profile.
pub struct Measured {
    record: WindowRecord,
    profile: WindowProfile,
    /// Samples of ranks outside of MPI calls.
    pub samples: Vec<Sample>,
}

impl Measured {
    /// Calls a function with the code that was measured.
    pub fn with_code<T>(&self, use_code: impl FnOnce(&MeasuredCode<'_>) -> T) -> T {
        use_code(&MeasuredCode {
            profile: &self.profile,
            clock: clock(&self.record, &self.profile),
            rank_of: &|node, context| computing_rank(&self.record, node, context),
            samples: &self.samples,
        })
    }

    /// Reads the windows of results and returns the one with this name, or the one with most samples of the program's ranks. `None` if no
    /// window has a profile with times.
    pub fn read(
        results: &Path,
        name: Option<&str>,
        sequences: &Sequences,
    ) -> Result<Option<Measured>, Failure> {
        let of_results = match results.join(RunFile::NAME).is_file() {
            true => measured_windows(results)?,
            false => Vec::new(),
        };
        let mut measured: Vec<Measured> = (of_results.into_iter())
            .map(|(record, profile)| Measured {
                samples: samples(&record, &profile, sequences),
                record,
                profile,
            })
            .collect();
        let Some(name) = name else {
            measured.sort_by_key(|of| of.samples.len());
            return Ok(measured.pop().filter(|of| !of.samples.is_empty()));
        };
        let at = measured.iter().position(|of| of.record.name == name);
        let Some(at) = at else {
            let names: Vec<&str> = measured.iter().map(|of| of.record.name.as_str()).collect();
            return Err(Failure::new(
                Exit::Study,
                format!(
                    "no window \"{name}\" has a profile; these have one: {}",
                    names.join(", ")
                ),
            ));
        };
        Ok(Some(measured.swap_remove(at)))
    }

    /// Returns the name of the window.
    pub fn name(&self) -> &str {
        &self.record.name
    }

    /// Returns the virtual time that the window measured, picoseconds.
    pub fn open_ps(&self) -> u64 {
        let from = self.record.measured_from();
        self.record.closed_ps.saturating_sub(from)
    }

    /// Returns the name of a function.
    pub fn function(&self, number: u32) -> String {
        let function = self.profile.functions.get(number as usize);
        function.map_or_else(|| "unknown code".to_owned(), |of| of.name.clone())
    }

    /// Returns what functions of ranks keep of their costs under changes.
    pub fn kept(&self, changes: &[CodeChange]) -> Result<Change, Failure> {
        let clock = clock(&self.record, &self.profile);
        let kept = self.profile.kept(&clock, changes);
        let kept = kept.map_err(|error| Failure::of(Exit::Study, &error))?;
        // Cycles before and after, by rank and function.
        let mut sums: BTreeMap<(usize, u32), (f64, f64)> = BTreeMap::new();
        for count in &self.profile.counts {
            let Some(rank) = computing_rank(&self.record, count.node, count.context) else {
                continue;
            };
            let cycles = clock.of(count).iter().sum::<i128>() as f64;
            let function = self.profile.blocks[count.block as usize].function;
            let sum = sums.entry((rank, function)).or_default();
            sum.0 += cycles;
            sum.1 += cycles * kept[count.block as usize];
        }
        let changed = sums.into_iter().filter(|(_, (before, after))| {
            *before > 0.0 && (before - after).abs() > f64::EPSILON * before
        });
        Ok(Change::Code(
            changed
                .map(|(of, (before, after))| (of, after / before))
                .collect(),
        ))
    }
}

/// Returns the rank that a context belongs to outside of MPI calls.
fn computing_rank(record: &WindowRecord, node: u32, context: u32) -> Option<usize> {
    let node = record.nodes.iter().find(|of| of.node == node)?;
    match node.owners.get(context as usize)? {
        Owner::Rank {
            rank, mpi: None, ..
        } => Some(*rank as usize),
        _ => None,
    }
}

fn samples(record: &WindowRecord, profile: &WindowProfile, sequences: &Sequences) -> Vec<Sample> {
    let waits = |function: u32| {
        let function = profile.functions.get(function as usize);
        let module = function.and_then(|of| profile.modules.get(of.module as usize));
        module.is_some_and(|module| is_openmp_runtime(&module.name))
    };
    let executables = &sequences.origin.names.executables;
    let mut samples = Vec::new();
    for path in &profile.paths {
        let node = record.nodes.iter().find(|of| of.node == path.node);
        let owner = node.and_then(|node| node.owners.get(path.context as usize));
        let (
            Some(Owner::Rank {
                rank,
                program,
                mpi: None,
            }),
            Some(&function),
        ) = (owner, path.functions.last())
        else {
            continue;
        };
        if !executables.is_empty() && !executables.contains(program) {
            continue;
        }
        samples.extend(path.times.iter().map(|&time| Sample {
            rank: *rank as usize,
            time,
            function,
            waits: waits(function),
        }));
    }
    samples
}
