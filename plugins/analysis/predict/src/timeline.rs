//! States of ranks over time in an interpretation.

use nodescope_loop_tree::{Action, Program};
use serde::Serialize;

/// A call of a rank. The rank computes from the end of the previous call until this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Number of the call's operation in the program.
    pub op: u32,
    /// Time of entry in picoseconds.
    pub enter: u64,
    /// Time of exit in picoseconds.
    pub leave: u64,
    /// Part of the call's time in which another rank was late, picoseconds.
    pub wait: u64,
}

/// Calls of all ranks, with their times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// Calls of each rank, in order.
    pub calls: Vec<Vec<Call>>,
    /// End of each rank, picoseconds.
    pub ends: Vec<u64>,
}

/// States of ranks over time, in rows. A row is one rank or, with many ranks, a group of consecutive ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Phases {
    /// Number of ranks in a row; the last row may have fewer.
    pub ranks_per_row: u32,
    /// Length of a column in picoseconds; the last column may be shorter.
    pub column: u64,
    /// Rows in ascending order of their ranks, [`Phases::ranks_per_row`] ranks each.
    pub rows: Vec<Row>,
}

/// Times of all ranks of a row in each state, summed by column, picoseconds. The remainder of a column is idle: ranks that have ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Time in bursts.
    pub computation: Vec<u64>,
    /// Time in calls that are not interpreted.
    pub opaque: Vec<u64>,
    /// Time in interpreted MPI calls without `wait`.
    pub communication: Vec<u64>,
    /// Time in MPI calls in which another rank was late, drawn from the start of the call.
    pub wait: Vec<u64>,
}

impl Timeline {
    /// Returns the states in at most `rows` rows of at most `columns` columns.
    pub fn phases(&self, program: &Program, rows: u32, columns: u32) -> Phases {
        let ranks = self.calls.len() as u32;
        let per_row = ranks.div_ceil(rows.max(1)).max(1);
        let end = self.ends.iter().copied().max().unwrap_or(0);
        let column = end.div_ceil(u64::from(columns.max(1))).max(1);
        let empty = vec![0; end.div_ceil(column) as usize];
        let row = Row {
            computation: empty.clone(),
            opaque: empty.clone(),
            communication: empty.clone(),
            wait: empty,
        };
        let mut phases = Phases {
            ranks_per_row: per_row,
            column,
            rows: vec![row; ranks.div_ceil(per_row) as usize],
        };
        for (rank, calls) in self.calls.iter().enumerate() {
            let row = &mut phases.rows[rank / per_row as usize];
            let mut before = 0;
            for call in calls {
                spread(&mut row.computation, column, before, call.enter);
                let opaque = (program.ops.get(call.op as usize))
                    .is_some_and(|op| op.action == Action::Opaque);
                if opaque {
                    spread(&mut row.opaque, column, call.enter, call.leave);
                } else {
                    let until = (call.enter + call.wait).min(call.leave);
                    spread(&mut row.wait, column, call.enter, until);
                    spread(&mut row.communication, column, until, call.leave);
                }
                before = call.leave;
            }
            spread(&mut row.computation, column, before, self.ends[rank]);
        }
        phases
    }
}

/// Adds the interval from `from` to `to` to the columns that it overlaps.
fn spread(columns: &mut [u64], column: u64, mut from: u64, to: u64) {
    while from < to {
        let at = (from / column) as usize;
        let until = to.min((at as u64 + 1) * column);
        columns[at] = columns[at].saturating_add(until - from);
        from = until;
    }
}
