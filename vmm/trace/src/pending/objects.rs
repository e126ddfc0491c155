//! Windows and files of a job: the communicator of each, until all members have freed or closed it.

use std::collections::BTreeMap;

use nodescope_hypercall::{Class, Function, MpiRecord};

/// A window or a file.
#[derive(Debug)]
struct Object {
    communicator: u64,
    /// Name of the window or file, for people.
    name: String,
    /// Number of ranks that have freed the window or closed the file.
    gone: usize,
}

/// The windows and files of a job.
#[derive(Debug, Default)]
pub struct Objects {
    known: BTreeMap<u64, Object>,
    /// Number of failed calls that should have made a window or file, by communicator and rank.
    failed: BTreeMap<u64, BTreeMap<u32, u64>>,
}

/// Returns whether a call makes a window or opens a file.
fn makes(function: Function) -> bool {
    use Function::*;
    matches!(
        function,
        WinCreate | WinAllocate | WinAllocateShared | WinCreateDynamic | FileOpen
    )
}

impl Objects {
    /// Records the window or file that a successful call made.
    pub fn learn(&mut self, record: &MpiRecord) {
        if record.object == 0 || !makes(record.function) {
            return;
        }
        self.known.entry(record.object).or_insert_with(|| Object {
            communicator: record.communicator,
            name: name(record),
            gone: 0,
        });
    }

    /// Counts a call that returned an error instead of making a window or file.
    pub fn record_failure(&mut self, rank: u32, record: &MpiRecord) {
        if makes(record.function) {
            let by_rank = self.failed.entry(record.communicator).or_default();
            *by_rank.entry(rank).or_default() += 1;
        }
    }

    /// Returns the communicator of which a window or file was made; `None` for an unknown id.
    pub fn communicator(&self, id: u64) -> Option<u64> {
        Some(self.known.get(&id)?.communicator)
    }

    /// Returns whether ids stand for the same windows and files on all these ranks. Each rank numbers the windows and files that it makes
    /// of a communicator, so that ids differ after a call that failed on some ranks only.
    pub fn ids_agree(&self, communicator: u64, members: &[u32]) -> bool {
        let Some(by_rank) = self.failed.get(&communicator) else {
            return true;
        };
        let failures = |rank: &u32| by_rank.get(rank).copied().unwrap_or(0);
        let mut all = members.iter().map(failures);
        let first = all.next();
        all.all(|failures| Some(failures) == first)
    }

    /// Records that a rank has freed or closed the object. Returns whether this was the last of `members` ranks.
    pub fn is_last(&mut self, id: u64, members: Option<usize>) -> bool {
        let Some(object) = self.known.get_mut(&id) else {
            return false;
        };
        object.gone += 1;
        members.is_some_and(|members| object.gone >= members)
    }

    pub fn forget(&mut self, id: u64) {
        self.known.remove(&id);
    }

    /// Returns the name of a known window or file for people.
    pub fn name(&self, id: u64) -> Option<&str> {
        Some(&self.known.get(&id)?.name)
    }
}

/// Returns the name of a call's window or file for people. A file has the name by which it was opened.
pub fn name(record: &MpiRecord) -> String {
    let id = record.object;
    match record.function.class() {
        Class::Window | Class::Epoch | Class::Rma | Class::StartRma => format!("window {id:x}"),
        _ if record.name.is_empty() => format!("file {id:x}"),
        _ => format!("file {}", record.name),
    }
}
