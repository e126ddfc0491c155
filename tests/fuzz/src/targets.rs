//! Targets: all code that reads what users or other programs wrote.

pub mod debug;
mod files;
mod profile;
mod results;
mod scaled;
mod snapshot;
mod trace;
mod zmtp;

use std::path::Path;
use std::sync::OnceLock;

use crate::choices::{self, Choices};
use crate::meter;

/// Reader under test, with functions that make its inputs.
#[derive(Clone, Copy)]
pub struct Target {
    /// Name of the target on the command line; also the name of its folder in the corpus.
    pub name: &'static str,
    /// Description of the input for messages.
    pub what: &'static str,
    /// Valid inputs, from which cases are made.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Makes a case's input, by random changes of a seed or from random bytes alone.
    pub mutate: fn(&mut Choices<'_>) -> Vec<u8>,
    /// Gives an input to the reader under test. The folder is empty and is for files.
    pub run: fn(&[u8], &Path),
    /// True if the reader calls a foreign library, whose crashes are no failures of nodescope.
    pub foreign: bool,
}

/// Every target.
pub const ALL: &[Target] = &[
    trace::READ,
    trace::PREDICT,
    trace::EXPORT,
    trace::RAW,
    scaled::SCALE,
    files::STUDY,
    files::CLUSTER,
    files::SWEEP,
    files::RECIPE,
    files::KERNEL,
    files::NETPIPE,
    files::SIMGRID,
    files::LOG,
    files::OTF2,
    results::WINDOWS,
    results::RUN,
    profile::PROFILE,
    snapshot::SNAPSHOT,
    zmtp::ZMTP,
    debug::DEBUG,
];

/// Returns the target with this name; None if it does not exist.
pub fn named(name: &str) -> Option<&'static Target> {
    ALL.iter().find(|target| target.name == name)
}

/// Bytes of memory that a reader may take for an input of any size.
const FREE: usize = 384 << 20;
/// Bytes of memory that a reader may take for each byte of its input, in addition to `FREE`.
const PER_BYTE: usize = 4096;

impl Target {
    /// Returns the input of the case with this number, for this seed.
    pub fn input(&self, seed: u64, case: u64) -> Vec<u8> {
        let bytes = choices::bytes(seed, case);
        (self.mutate)(&mut Choices::new(&bytes))
    }

    /// Reads an input, with a temporary folder for files.
    ///
    /// # Panics
    ///
    /// If the reader panics, or takes memory out of proportion to the input.
    pub fn check(&self, input: &[u8]) {
        let folder = tempfile::tempdir().expect("a folder for a case's files");
        let before = meter::begin();
        (self.run)(input, folder.path());
        let most = meter::most().saturating_sub(before);
        let allowed = FREE + PER_BYTE * input.len();
        assert!(
            most <= allowed,
            "{}: an input of {} bytes takes {most} bytes of memory",
            self.name,
            input.len()
        );
    }
}

/// A value that is made at its first use, such as seeds.
struct Once<T>(OnceLock<T>);

impl<T> Once<T> {
    const fn new() -> Once<T> {
        Once(OnceLock::new())
    }

    fn get(&self, make: impl FnOnce() -> T) -> &T {
        self.0.get_or_init(make)
    }
}

/// Returns a randomly chosen seed, mutated as text.
fn mutated(seeds: &[Vec<u8>], words: &[&str], choices: &mut Choices<'_>) -> Vec<u8> {
    let mut bytes = choices.of(seeds).cloned().unwrap_or_default();
    crate::text::mutate(&mut bytes, words, choices);
    bytes
}

/// Writes an input to a file and returns the path of the file.
fn put(folder: &Path, name: &str, input: &[u8]) -> std::path::PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, input).expect("a case's file");
    path
}

/// Returns the total size of all files below a folder, in bytes.
fn size(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(data) if data.is_dir() => size(&entry.path()),
            Ok(data) => data.len(),
            Err(_) => 0,
        })
        .sum()
}
