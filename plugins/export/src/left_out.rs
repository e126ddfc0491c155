//! What formats of messages leave out.

use std::collections::BTreeMap;

use nodescope_hypercall::Function;

/// Numbers of records that the exported trace lacks or only approximates, by kind.
#[derive(Debug, Default)]
pub(crate) struct LeftOut {
    /// Collective calls between groups.
    pub(crate) between: u64,
    /// Collective calls on communicators whose members are not known.
    pub(crate) unknown_members: u64,
    /// Receives without a known message.
    pub(crate) unresolved: u64,
    /// Calls that make or free communicators.
    pub(crate) construction: u64,
    /// Calls that the format cannot express.
    pub(crate) other: BTreeMap<Function, u64>,
}

impl LeftOut {
    /// Adds a note for each kind.
    pub(crate) fn add_notes(&self, notes: &mut Vec<String>) {
        let mut tell = |count: u64, what: &str| {
            if count > 0 {
                notes.push(format!("{count} {what}"));
            }
        };
        tell(
            self.between,
            "collective calls between groups (intercommunicators) are left out",
        );
        tell(
            self.unknown_members,
            "collective calls are on communicators whose members the trace does not tell: those that used them are taken",
        );
        tell(
            self.unresolved,
            "receives that were cancelled, or whose completion is not in the trace, are left out",
        );
        tell(
            self.construction,
            "calls that make or free communicators are left out: they synchronise nothing in the replay",
        );
        for (function, count) in &self.other {
            notes.push(format!("{count} calls of {function} are left out"));
        }
    }
}
