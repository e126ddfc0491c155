//! Time cut into steps, and the matrix and vector of each.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use crate::haar::{CELLS, SIDE, vector};
use crate::message::{Message, Messages, Traffic};

/// Messages from rank to rank. Pairs without messages are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matrix(BTreeMap<(u32, u32), Traffic>);

impl Matrix {
    /// Returns the matrix of some messages.
    pub fn new(messages: &[Message]) -> Matrix {
        let mut matrix = Matrix::default();
        for message in messages {
            let cell = matrix.0.entry((message.from, message.to)).or_default();
            cell.add(message.bytes);
        }
        matrix
    }

    /// Adds another matrix.
    pub fn add(&mut self, other: &Matrix) {
        for (&pair, &traffic) in &other.0 {
            self.0.entry(pair).or_default().add_all(traffic);
        }
    }

    /// Returns sender, receiver and messages of each pair that has any, in order.
    pub fn cells(&self) -> impl Iterator<Item = (u32, u32, Traffic)> {
        self.0.iter().map(|(&(from, to), &of)| (from, to, of))
    }

    /// Returns the matrix of the messages among `ranks`, which must ascend. Its ranks are indices of that list.
    pub fn among(&self, ranks: &[u32]) -> Matrix {
        let index = |rank: u32| ranks.binary_search(&rank).ok().map(|at| at as u32);
        let cells = self.0.iter();
        let own = cells.filter_map(|(&(from, to), &of)| Some(((index(from)?, index(to)?), of)));
        Matrix(own.collect())
    }

    /// Returns the sum of all cells.
    pub fn total(&self) -> Traffic {
        let mut total = Traffic::default();
        self.0.values().for_each(|&traffic| total.add_all(traffic));
        total
    }

    /// Returns whether there is no message.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Matrix {
    /// Writes a list of `[from, to, messages, bytes]`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let cells = self.cells();
        serializer.collect_seq(cells.map(|(from, to, of)| (from, to, of.messages, of.bytes)))
    }
}

/// Steps of equal length. The last step may reach beyond the end of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    /// Beginning of the first step, picoseconds of the trace.
    pub from: u64,
    /// Length of a step, picoseconds, at least 1.
    pub length: u64,
    /// Number of steps, at least 1.
    pub count: usize,
}

impl Steps {
    /// Cuts the time of a program into steps of a length.
    pub fn of_length(messages: &Messages, length: u64) -> Steps {
        let span = messages.to.saturating_sub(messages.from);
        let length = length.max(1);
        Steps {
            from: messages.from,
            length,
            count: usize::try_from(span.div_ceil(length))
                .unwrap_or(usize::MAX)
                .max(1),
        }
    }

    /// Cuts the time of a program into a number of steps, or fewer where it has fewer picoseconds.
    pub fn of_count(messages: &Messages, count: usize) -> Steps {
        let span = messages.to.saturating_sub(messages.from);
        Steps::of_length(messages, span.div_ceil(count.max(1) as u64))
    }

    /// Returns the index of the step at a time, from 0. The end of the program belongs to the last step.
    pub fn of(&self, time: u64) -> usize {
        let step = time.saturating_sub(self.from) / self.length;
        usize::try_from(step)
            .unwrap_or(usize::MAX)
            .min(self.count - 1)
    }

    /// Returns the time at which a step begins.
    pub fn begin(&self, step: usize) -> u64 {
        self.from
            .saturating_add(self.length.saturating_mul(step as u64))
    }

    /// Returns the messages of each step. `messages` must be in the order of their times.
    pub fn split<'a>(&self, messages: &'a [Message]) -> Vec<&'a [Message]> {
        let mut rest = messages;
        (0..self.count)
            .map(|step| {
                let length = rest.partition_point(|message| self.of(message.time) <= step);
                let (own, others) = rest.split_at(length);
                rest = others;
                own
            })
            .collect()
    }

    /// Returns the vector of each step.
    pub fn vectors(&self, messages: &Messages) -> Vec<[f64; CELLS]> {
        let scale = Scale::new(messages.ranks);
        let steps = self.split(&messages.list);
        steps
            .into_iter()
            .map(|step| vector(scale.matrix(step)))
            .collect()
    }
}

/// Shares of ranks in the rows and columns of a scaled matrix: for each rank, the rows that it covers, and the covered part of each.
struct Scale(Vec<Vec<(usize, f64)>>);

impl Scale {
    /// Divides the rows among a number of ranks. Rank j covers the rows from j * 16 / ranks to (j + 1) * 16 / ranks, so that a cell
    /// is the mean of the cells that it represents, each weighted by its area within the cell. For multiples of 16 these are whole
    /// blocks. Each of fewer than 16 ranks covers several rows, or parts of them.
    fn new(ranks: u32) -> Scale {
        let ranks = u64::from(ranks.max(1));
        let side = SIDE as u64;
        // In units of 1 / ranks of a row, all edges are integers.
        let rows = (0..ranks).map(|rank| {
            let (from, to) = (rank * side, (rank + 1) * side);
            (from / ranks..to.div_ceil(ranks))
                .map(|row| {
                    let covered = to.min((row + 1) * ranks) - from.max(row * ranks);
                    (row as usize, covered as f64 / ranks as f64)
                })
                .collect()
        });
        Scale(rows.collect())
    }

    /// Returns the scaled matrix of some messages, whose elements are means of bytes.
    fn matrix(&self, messages: &[Message]) -> [f64; CELLS] {
        let mut matrix = [0.0; CELLS];
        for message in messages {
            for &(row, height) in &self.0[message.from as usize] {
                for &(column, width) in &self.0[message.to as usize] {
                    matrix[row * SIDE + column] += message.bytes as f64 * height * width;
                }
            }
        }
        matrix
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(from: u32, to: u32, bytes: u64) -> Message {
        Message {
            time: 0,
            from,
            to,
            bytes,
        }
    }

    #[test]
    fn blocks_of_ranks_are_averaged() {
        let matrix = Scale::new(32).matrix(&[one(0, 1, 8), one(1, 0, 4), one(30, 3, 100)]);
        assert_eq!(matrix[0], 3.0);
        assert_eq!(matrix[15 * SIDE + 1], 25.0);
        assert_eq!(matrix.iter().sum::<f64>(), 28.0);
    }

    #[test]
    fn as_many_ranks_as_rows_stay_as_they_are() {
        let matrix = Scale::new(16).matrix(&[one(3, 14, 7)]);
        assert_eq!(matrix[3 * SIDE + 14], 7.0);
        assert_eq!(matrix.iter().sum::<f64>(), 7.0);
    }

    #[test]
    fn fewer_ranks_cover_several_rows() {
        let matrix = Scale::new(2).matrix(&[one(0, 1, 5)]);
        for row in 0..SIDE {
            for column in 0..SIDE {
                let expected = if row < 8 && column >= 8 { 5.0 } else { 0.0 };
                assert_eq!(matrix[row * SIDE + column], expected);
            }
        }
        assert_eq!(Scale::new(1).matrix(&[one(0, 0, 5)]), [5.0; CELLS]);
    }

    #[test]
    fn numbers_of_ranks_that_do_not_divide_share_cells() {
        // Of 24 ranks, rank 1 covers the last third of row 0 and the first third of row 1.
        let scale = Scale::new(24);
        let third = 8.0 / 24.0;
        assert_eq!(scale.0[1], [(0, third), (1, third)]);
        for ranks in [3, 5, 17, 24, 100] {
            let all: Vec<Message> = (0..ranks)
                .flat_map(|from| (0..ranks).map(move |to| one(from, to, 6)))
                .collect();
            // The mean of equal cells is that cell.
            let matrix = Scale::new(ranks).matrix(&all);
            for value in matrix {
                assert!((value - 6.0).abs() < 1e-9, "{ranks} ranks: {value}");
            }
        }
    }

    #[test]
    fn steps_take_messages_by_their_time() {
        let messages = Messages {
            ranks: 2,
            from: 100,
            to: 200,
            list: [100, 129, 130, 200]
                .map(|time| Message {
                    time,
                    ..one(0, 1, 1)
                })
                .to_vec(),
            ..Messages::default()
        };
        let steps = Steps::of_length(&messages, 30);
        assert_eq!(steps.count, 4);
        let sizes: Vec<usize> = steps
            .split(&messages.list)
            .iter()
            .map(|of| of.len())
            .collect();
        assert_eq!(sizes, [2, 1, 0, 1]);
        assert_eq!(Steps::of_count(&messages, 10).length, 10);
        assert_eq!(Steps::of_count(&Messages::default(), 10).count, 1);
    }
}
