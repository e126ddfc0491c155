//! Syntax of GOAL schedules, as LogGOPSim's `txt2bin.re` defines it. Words are separated by white space, and `{`, `}` and `:` may follow a
//! word at once. A statement is a line:
//!
//! ```text
//! num_ranks 2
//! rank 0 {
//! l1: calc 100 cpu 0
//! l2: send 10b to 1 tag 7 cpu 0 nic 0
//! l3: recv 10b from 1 tag 7
//! l2 requires l1
//! l3 irequires l2
//! }
//! ```

use std::collections::{HashMap, VecDeque};

/// Largest number of ranks of a schedule that is imported.
const MOST_RANKS: u32 = 1 << 24;
/// Largest number of operations, and of dependencies, of a rank.
const MOST: usize = 1 << 28;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The rank computes.
    Work { nanoseconds: u64 },
    /// The rank sends a message.
    Send { bytes: u64, to: u32, tag: u32 },
    /// The rank receives a message; `None` for any source or tag.
    Receive {
        bytes: u64,
        from: Option<u32>,
        tag: Option<u32>,
    },
}

/// An operation of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Operation {
    pub(super) what: What,
    pub(super) cpu: u8,
    pub(super) line: u32,
}

/// A dependency: `after` begins when `before` has ended, or if `started`, when `before` has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dependency {
    pub(super) after: u32,
    pub(super) before: u32,
    pub(super) started: bool,
}

/// The schedule of a rank. Operations are numbered from 0.
#[derive(Clone, Debug, Default)]
pub(super) struct Graph {
    pub(super) rank: u32,
    /// Line of the schedule's beginning.
    pub(super) line: usize,
    pub(super) operations: Vec<Operation>,
    pub(super) dependencies: Vec<Dependency>,
}

/// Parser of a schedule, line by line.
#[derive(Debug, Default)]
pub(super) struct Parser {
    ranks: Option<u32>,
    current: Option<Graph>,
    labels: HashMap<String, u32>,
    in_comment: bool,
    /// Schedules of ranks that are complete.
    pub(super) ready: VecDeque<Graph>,
}

impl Parser {
    /// Takes the next line. Errors are descriptions for people.
    pub(super) fn line(&mut self, number: usize, line: &str) -> Result<(), String> {
        let text = self.without_comments(line);
        // A brace and a colon are words of their own.
        let spaced = text
            .replace('{', " { ")
            .replace('}', " } ")
            .replace(':', " : ");
        let words: Vec<&str> = spaced.split_whitespace().collect();
        let mut words = &words[..];
        while !words.is_empty() {
            words = self.statement(number, words)?;
        }
        Ok(())
    }

    /// Returns the number of ranks after the last line.
    pub(super) fn finish(self) -> Result<u32, String> {
        if self.in_comment {
            return Err("ends inside a comment: it is cut".into());
        }
        if let Some(open) = self.current {
            return Err(format!(
                "ends inside the schedule of rank {}: it is cut",
                open.rank
            ));
        }
        self.ranks.ok_or_else(|| "has no num_ranks".into())
    }

    fn without_comments(&mut self, line: &str) -> String {
        let mut text = String::new();
        let mut rest = line;
        loop {
            if self.in_comment {
                let Some((_, after)) = rest.split_once("*/") else {
                    return text;
                };
                (rest, self.in_comment) = (after, false);
            }
            let begin = [rest.find("//"), rest.find("/*")];
            match begin {
                [line, block] if line.is_some() && (block.is_none() || line < block) => {
                    text.push_str(&rest[..line.unwrap_or(0)]);
                    return text;
                }
                [_, Some(at)] => {
                    text.push_str(&rest[..at]);
                    text.push(' ');
                    (rest, self.in_comment) = (&rest[at + 2..], true);
                }
                _ => {
                    text.push_str(rest);
                    return text;
                }
            }
        }
    }

    /// Takes a statement from the beginning of a line's words, and returns the rest of the words.
    fn statement<'a>(
        &mut self,
        line: usize,
        words: &'a [&'a str],
    ) -> Result<&'a [&'a str], String> {
        let Some(graph) = &mut self.current else {
            return self.outside(line, words);
        };
        match words {
            ["}", rest @ ..] => {
                self.ready.extend(self.current.take());
                self.labels.clear();
                Ok(rest)
            }
            [after, kind @ ("requires" | "irequires"), before, rest @ ..] => {
                let find = |label: &str| {
                    let at = self.labels.get(label).copied();
                    at.ok_or_else(|| {
                        format!("names the label {label:?}, which no operation before has")
                    })
                };
                graph.dependencies.push(Dependency {
                    after: find(after)?,
                    before: find(before)?,
                    started: *kind == "irequires",
                });
                limit(graph.dependencies.len(), "dependencies")?;
                Ok(rest)
            }
            [label, ":", rest @ ..] => {
                let at = graph.operations.len() as u32;
                if self.labels.insert((*label).to_owned(), at).is_some() {
                    return Err(format!("gives the label {label:?} to a second operation"));
                }
                self.operation(line, rest)
            }
            _ => self.operation(line, words),
        }
    }

    fn outside<'a>(&mut self, line: usize, words: &'a [&'a str]) -> Result<&'a [&'a str], String> {
        match words {
            ["num_ranks", count, rest @ ..] => {
                let count = integer(count, "number of ranks")?;
                let count = u32::try_from(count).ok();
                let count = count.filter(|count| (1..=MOST_RANKS).contains(count));
                if self.ranks.is_some() {
                    return Err("states num_ranks a second time".into());
                }
                self.ranks = Some(count.ok_or_else(|| {
                    format!(
                        "has an impossible number of ranks; at most {MOST_RANKS} can be imported"
                    )
                })?);
                Ok(rest)
            }
            ["rank", rank, "{", rest @ ..] => {
                let ranks = self.ranks.ok_or("comes before num_ranks")?;
                let rank = integer(rank, "rank")?;
                if rank >= u64::from(ranks) {
                    return Err(format!("is the schedule of rank {rank} of {ranks}"));
                }
                self.current = Some(Graph {
                    rank: rank as u32,
                    line,
                    ..Graph::default()
                });
                Ok(rest)
            }
            _ => Err(format!(
                "{:?} is neither `num_ranks N` nor `rank N {{`",
                words.join(" ")
            )),
        }
    }

    /// Takes an operation without its label.
    fn operation<'a>(
        &mut self,
        line: usize,
        words: &'a [&'a str],
    ) -> Result<&'a [&'a str], String> {
        let ranks = self.ranks.unwrap_or(0);
        let peer = |word: &str| match integer(word, "rank")? {
            rank if rank < u64::from(ranks) => Ok(rank as u32),
            rank => Err(format!("names rank {rank} of {ranks}")),
        };
        let (mut what, mut rest) = match words {
            ["calc", time, rest @ ..] => {
                let nanoseconds = integer(time, "time in nanoseconds")?;
                (What::Work { nanoseconds }, rest)
            }
            ["send", rest @ ..] => {
                let (bytes, rest) = size(rest)?;
                let ["to", to, rest @ ..] = rest else {
                    return Err("sends to no rank: `to N` is missing".into());
                };
                let (to, tag) = (peer(to)?, 0);
                (What::Send { bytes, to, tag }, rest)
            }
            ["recv", rest @ ..] => {
                let (bytes, rest) = size(rest)?;
                let ["from", from, rest @ ..] = rest else {
                    return Err("receives from no rank: `from N` is missing".into());
                };
                let from = if *from == "-1" {
                    None
                } else {
                    Some(peer(from)?)
                };
                let tag = Some(0);
                (What::Receive { bytes, from, tag }, rest)
            }
            [first, ..] => {
                return Err(format!("{first:?} is no operation: calc, send or recv"));
            }
            [] => return Err("ends after a label".into()),
        };
        let mut cpu = 0;
        loop {
            match (rest, &mut what) {
                (["tag", "-1", after @ ..], What::Receive { tag, .. }) => {
                    (*tag, rest) = (None, after);
                }
                (["tag", number, after @ ..], what) => {
                    let number = u32::try_from(integer(number, "tag")?).ok();
                    let number = number.filter(|&number| number <= i32::MAX as u32);
                    let number = number.ok_or("has a tag above 2147483647")?;
                    match what {
                        What::Send { tag, .. } => *tag = number,
                        What::Receive { tag, .. } => *tag = Some(number),
                        What::Work { .. } => return Err("gives a tag to a computation".into()),
                    }
                    rest = after;
                }
                (["cpu", number, after @ ..], _) => {
                    let number = u8::try_from(integer(number, "CPU")?);
                    cpu = number.map_err(|_| "names a CPU above 255")?;
                    rest = after;
                }
                (["nic", number, after @ ..], _) => {
                    integer(number, "NIC")?;
                    rest = after;
                }
                _ => break,
            }
        }
        if let Some(graph) = &mut self.current {
            let line = line.min(u32::MAX as usize) as u32;
            graph.operations.push(Operation { what, cpu, line });
            limit(graph.operations.len(), "operations")?;
        }
        Ok(rest)
    }
}

fn limit(count: usize, what: &str) -> Result<(), String> {
    match count <= MOST {
        true => Ok(()),
        false => Err(format!("is one of more than {MOST} {what} of a rank")),
    }
}

fn integer(word: &str, what: &str) -> Result<u64, String> {
    let number = word.parse();
    number.map_err(|_| format!("{word:?} is no {what}"))
}

/// Returns a number of bytes, such as `10b` or `10 b`, and the words behind it.
fn size<'a>(words: &'a [&'a str]) -> Result<(u64, &'a [&'a str]), String> {
    let (number, rest) = match words {
        [number, "b", rest @ ..] => (Some(*number), rest),
        [number, rest @ ..] => (number.strip_suffix('b'), rest),
        [] => (None, words),
    };
    let number = number.ok_or("lacks its size in bytes, such as 10b")?;
    Ok((integer(number, "size in bytes")?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Vec<Graph>, String> {
        let mut parser = Parser::default();
        for (line, number) in text.lines().zip(1..) {
            parser
                .line(number, line)
                .map_err(|what| format!("{number}: {what}"))?;
        }
        let graphs = parser.ready.drain(..).collect();
        parser.finish()?;
        Ok(graphs)
    }

    #[test]
    fn statements_of_every_kind_are_read() {
        let text = "num_ranks 2 // two\n/* of\n many lines */\nrank 0 {\nl1: calc 100 cpu 1\n\
                    l2: send 10b to 1 tag 7 cpu 0 nic 1\nl3 : recv 20 b from -1 tag -1\n\
                    l2 requires l1\nl3 irequires l2\nrecv 1b from 1\n}\nrank 1{\n}";
        let graphs = parsed(text).unwrap();
        let whats: Vec<What> = graphs[0].operations.iter().map(|one| one.what).collect();
        let bytes = 20;
        let expected = [
            What::Work { nanoseconds: 100 },
            What::Send {
                bytes: 10,
                to: 1,
                tag: 7,
            },
            What::Receive {
                bytes,
                from: None,
                tag: None,
            },
            What::Receive {
                bytes: 1,
                from: Some(1),
                tag: Some(0),
            },
        ];
        assert_eq!(whats, expected);
        assert_eq!(graphs[0].operations[0].cpu, 1);
        let kinds = graphs[0].dependencies.iter();
        let kinds = kinds.map(|one| (one.after, one.before, one.started));
        assert_eq!(kinds.collect::<Vec<_>>(), [(1, 0, false), (2, 1, true)]);
        assert_eq!((graphs[1].rank, graphs[1].operations.len()), (1, 0));
    }

    #[test]
    fn wrong_statements_are_told_by_line() {
        let told = |text: &str| parsed(text).unwrap_err();
        assert!(told("rank 0 {").contains("before num_ranks"));
        assert!(told("num_ranks 0\n").contains("impossible number"));
        assert!(told("num_ranks 99999999999\n").contains("impossible number"));
        assert!(told("num_ranks 2\nrank 2 {").starts_with("2: is the schedule of rank 2 of 2"));
        let inside = |text: &str| told(&format!("num_ranks 2\nrank 0 {{\n{text}\n}}"));
        assert!(inside("l1: send 10 to 1").contains("size in bytes"));
        assert!(inside("l1: send 10b to 2").contains("rank 2 of 2"));
        assert!(inside("l1: send 10b to -1").contains("no rank"));
        assert!(inside("l1: calc -5").contains("no time"));
        assert!(inside("l1: calc 5 tag 1").contains("computation"));
        assert!(inside("l1: jump 5").contains("no operation"));
        assert!(inside("l1 requires l2").contains("label \"l1\""));
        assert!(inside("l1: calc 5\nl1: calc 6").contains("second operation"));
        assert!(inside("l1:").contains("after a label"));
        assert!(inside("calc 99999999999999999999999").contains("no time"));
        assert!(told("num_ranks 2\nrank 0 {\ncalc 5").contains("cut"));
        assert!(told("num_ranks 2 /*").contains("cut"));
        assert!(told("// nothing").contains("no num_ranks"));
    }
}
