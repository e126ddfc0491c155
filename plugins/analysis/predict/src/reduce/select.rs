//! Selection of a fragment of a program.

use std::str::FromStr;

use nodescope_config::quantity::Time;
use nodescope_loop_tree::{Node, Program, Sequences};

use crate::timeline::Timeline;

/// A fragment of a program, perhaps in several occurrences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// Calls of a call site, as reports write the site: `program+0x1234`. The n-th calls of all ranks are one occurrence.
    Site(String),
    /// A loop of each rank's tree, by its number in [`outline`], from 1. The n-th runs of all ranks are one occurrence.
    Loop(u32),
    /// The calls that ranks enter and leave between two times of the predicted run, picoseconds.
    Interval(u64, u64),
}

/// Reason for which a selection has no meaning.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectionError {
    /// The text has none of the forms.
    #[error(
        "{text:?} is no fragment; write a call site (program+0x1234), a loop (loop:2, numbered by --outline), or an interval (10ms..20ms)"
    )]
    Form {
        /// Text of the selection.
        text: String,
    },
    /// No rank has the selected calls.
    #[error("no rank has {what}; --outline shows loops and call sites")]
    Nothing {
        /// The text of the selection.
        what: String,
    },
    /// The ranks have different numbers of the selected calls.
    #[error(
        "rank {rank} has {what} {own} times, rank {other} {others} times; so it is not known which belong together"
    )]
    Uneven {
        /// The text of the selection.
        what: String,
        /// World rank of one of the two ranks.
        rank: u32,
        /// Number of times that `rank` has the selected calls.
        own: usize,
        /// World rank of the other of these two ranks, which has the selected calls a different number of times.
        other: u32,
        /// Number of times that `other` has the selected calls.
        others: usize,
    },
}

/// Occurrence of a fragment: rank, index of the rank's first operation (from 0), index after its last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Occurrence {
    /// Ranges by rank, ascending; ranks without operations in the occurrence are left out.
    pub ranges: Vec<(u32, usize, usize)>,
}

impl FromStr for Selection {
    type Err = SelectionError;

    fn from_str(text: &str) -> Result<Selection, SelectionError> {
        let form = || SelectionError::Form {
            text: text.to_owned(),
        };
        let text = text.trim();
        if let Some(number) = text.strip_prefix("loop:") {
            let number = number.parse().ok().filter(|&number| number > 0);
            return number.map(Selection::Loop).ok_or_else(form);
        }
        if let Some((from, to)) = text.split_once("..") {
            return match (from.parse::<Time>(), to.parse::<Time>()) {
                (Ok(from), Ok(to)) if from < to => Ok(Selection::Interval(from.0, to.0)),
                _ => Err(form()),
            };
        }
        let (_, address) = text.rsplit_once('+').unwrap_or(("", text));
        let digits = address.strip_prefix("0x").ok_or_else(form)?;
        u64::from_str_radix(digits, 16).map_err(|_| form())?;
        Ok(Selection::Site(text.to_owned()))
    }
}

impl std::fmt::Display for Selection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Selection::Site(site) => write!(f, "the call site {site}"),
            Selection::Loop(number) => write!(f, "loop {number}"),
            Selection::Interval(from, to) => {
                write!(f, "the interval {}..{}", Time(*from), Time(*to))
            }
        }
    }
}

impl Selection {
    /// Returns the occurrences in a program.
    pub(super) fn occurrences(
        &self,
        program: &Program,
        sequences: &Sequences,
        timeline: Option<&Timeline>,
    ) -> Result<Vec<Occurrence>, SelectionError> {
        let ranges: Vec<Vec<(usize, usize)>> = match self {
            Selection::Site(site) => (sequences.ranks.iter())
                .map(|sequence| {
                    let names = &program.origin.names;
                    let entries = sequence.entries.iter().enumerate();
                    let at = entries.filter(|(_, entry)| names.address(entry.op.site) == *site);
                    at.map(|(index, _)| (index, index + 1)).collect()
                })
                .collect(),
            Selection::Loop(number) => (program.ranks.iter())
                .map(|rank| {
                    let mut finder = Finder {
                        program,
                        wanted: *number,
                        seen: 0,
                        at: 0,
                        found: Vec::new(),
                    };
                    finder.body(rank.tree);
                    finder.found
                })
                .collect(),
            Selection::Interval(from, to) => (0..sequences.ranks.len())
                .map(|rank| {
                    let calls = timeline.map_or(&[][..], |timeline| &timeline.calls[rank]);
                    let start = calls.partition_point(|call| call.enter < *from);
                    let end = calls.partition_point(|call| call.leave <= *to);
                    if start < end {
                        vec![(start, end)]
                    } else {
                        Vec::new()
                    }
                })
                .collect(),
        };
        let has = (ranges.iter().enumerate()).filter(|(_, ranges)| !ranges.is_empty());
        let counts: Vec<(usize, usize)> = has.map(|(rank, ranges)| (rank, ranges.len())).collect();
        let Some(&(first, count)) = counts.first() else {
            return Err(SelectionError::Nothing {
                what: self.to_string(),
            });
        };
        if let Some(&(other, others)) = counts.iter().find(|(_, others)| *others != count) {
            return Err(SelectionError::Uneven {
                what: self.to_string(),
                rank: first as u32,
                own: count,
                other: other as u32,
                others,
            });
        }
        let mut occurrences = vec![Occurrence::default(); count];
        for (rank, ranges) in ranges.iter().enumerate() {
            for (occurrence, &(start, end)) in occurrences.iter_mut().zip(ranges) {
                occurrence.ranges.push((rank as u32, start, end));
            }
        }
        Ok(occurrences)
    }
}

/// Finder of the runs of a loop.
struct Finder<'a> {
    program: &'a Program,
    wanted: u32,
    /// Number of loops seen so far, in the order of the outline.
    seen: u32,
    /// Number of operations so far.
    at: usize,
    found: Vec<(usize, usize)>,
}

impl Finder<'_> {
    fn body(&mut self, body: u32) {
        for &node in self.program.forest.children(body) {
            match self.program.forest.get(node) {
                Node::Leaf(_) => self.at += 1,
                Node::Loop { count, body } => {
                    self.seen += 1;
                    let number = self.seen;
                    let start = self.at;
                    for _ in 0..count {
                        // The loops within have the same numbers each time.
                        self.seen = number;
                        self.body(body);
                    }
                    if number == self.wanted {
                        self.found.push((start, self.at));
                    }
                }
            }
        }
    }
}

/// Returns the tree of a rank as text, its loops with their numbers.
pub fn outline(program: &Program, rank: u32) -> String {
    let mut text = String::new();
    if let Some(rank) = program.ranks.get(rank as usize) {
        write(program, rank.tree, 0, &mut 0, &mut text);
    }
    text
}

fn write(program: &Program, body: u32, indent: usize, seen: &mut u32, text: &mut String) {
    for &node in program.forest.children(body) {
        text.push_str(&"  ".repeat(indent));
        match program.forest.get(node) {
            Node::Leaf(symbol) => {
                let op = &program.ops[program.steps[symbol as usize].op as usize];
                let (names, site) = (&program.origin.names, op.site);
                let call = names.call(op.function.name(), site);
                // A call site is selected by its address.
                match names.place(site) {
                    Some(_) => text.push_str(&format!("{call}, {}\n", names.address(site))),
                    None => text.push_str(&format!("{call}\n")),
                }
            }
            Node::Loop { count, body } => {
                *seen += 1;
                text.push_str(&format!("loop:{seen}  {count} times\n"));
                write(program, body, indent + 1, seen, text);
            }
        }
    }
}
