//! Marks that a program prints, and measurements of the parts between marks.

use std::collections::BTreeMap;

use crate::time::{Point, Spent};

/// Cost of running a part of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Run {
    /// Instructions retired by all vCPUs; 0 where instructions are not counted.
    pub instructions: u64,
    /// Wall and processor time on the host.
    pub spent: Spent,
}

impl Run {
    /// Returns million instructions per second of processor time; NaN if instructions are not counted.
    pub fn speed(&self) -> f64 {
        if self.instructions == 0 {
            return f64::NAN;
        }
        self.instructions as f64 / self.spent.cpu / 1e6
    }
}

/// The measured parts of one run, by name.
pub type Session = BTreeMap<String, Run>;

/// Meaning of a mark.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum What {
    /// A part begins.
    Begin,
    /// A part ends.
    End,
    /// The guest has reached a point whose time counts from power-on.
    Reach,
    /// Processor time of a part in seconds, by the program's own clock.
    Time(f64),
}

/// A line by which a program reports its progress: `bench:WHAT:LABEL:NAME`, with `:SECONDS` behind the name if WHAT is `time`.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// Meaning of the mark.
    pub what: What,
    /// Name of the part, or of the point that the guest has reached.
    pub name: String,
}

impl Mark {
    /// Parses a mark's text or a console line; None if it is no mark.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().split(':');
        if parts.next() != Some("bench") {
            return None;
        }
        let what = parts.next()?;
        let name = parts.nth(1)?.to_owned();
        let what = match what {
            "begin" => What::Begin,
            "end" => What::End,
            "reach" => What::Reach,
            "time" => What::Time(parts.next()?.parse().ok()?),
            _ => return None,
        };
        Some(Self { what, name })
    }
}

/// Begin or end of a measured part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// A measured part has begun.
    Begun,
    /// A measured part has ended.
    Ended,
}

/// Recorder that makes a session from marks and the times at which they arrived.
#[derive(Debug)]
pub struct Recorder<'a> {
    wanted: &'a [String],
    start: Point,
    open: Option<(String, Point, u64)>,
    /// Measurements so far.
    pub session: Session,
}

impl<'a> Recorder<'a> {
    /// Makes a recorder for the parts named in `wanted`. `start` is the time of power-on.
    pub fn new(wanted: &'a [String], start: Point) -> Self {
        Self {
            wanted,
            start,
            open: None,
            session: Session::new(),
        }
    }

    /// Returns the edge of a wanted part that this mark announces, if any. Call [`Self::record`] after the preparation of a part and before
    /// the clean-up after a part, so that the time of the part includes neither.
    pub fn edge(&self, mark: &Mark) -> Option<Edge> {
        match mark.what {
            What::Begin if self.wanted.contains(&mark.name) => Some(Edge::Begun),
            What::End if self.open.as_ref().is_some_and(|o| o.0 == mark.name) => Some(Edge::Ended),
            _ => None,
        }
    }

    /// Records a mark that arrived at `now`; `instructions` were retired since power-on.
    pub fn record(&mut self, mark: Mark, now: Point, instructions: u64) {
        match (self.edge(&mark), mark.what) {
            (Some(Edge::Begun), _) => self.open = Some((mark.name, now, instructions)),
            (Some(Edge::Ended), _) => {
                if let Some((name, began, before)) = self.open.take() {
                    let run = Run {
                        instructions: instructions - before,
                        spent: began.to(now),
                    };
                    self.session.insert(name, run);
                }
            }
            (None, What::Reach) if self.wanted.contains(&mark.name) => {
                let run = Run {
                    instructions,
                    spent: self.start.to(now),
                };
                self.session.insert(mark.name, run);
            }
            _ => {}
        }
    }

    /// Returns the session; an error if a wanted part is missing.
    pub fn finish(self) -> Result<Session, String> {
        match self.wanted.iter().find(|n| !self.session.contains_key(*n)) {
            Some(name) => Err(format!("it did not come to the end of {name}")),
            None => Ok(self.session),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read_from_console_lines_and_nothing_else_is() {
        let mark = |what| {
            Some(Mark {
                what,
                name: "chase".into(),
            })
        };
        assert_eq!(Mark::parse("bench:begin:run:chase\r"), mark(What::Begin));
        assert_eq!(Mark::parse("bench:end:run:chase"), mark(What::End));
        assert_eq!(Mark::parse("bench:reach:run:chase"), mark(What::Reach));
        assert_eq!(
            Mark::parse("bench:time:run:chase:0.5"),
            mark(What::Time(0.5))
        );
        for other in ["bench:time:run:chase", "bench:begin", "chase", ""] {
            assert_eq!(Mark::parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_session_holds_the_wanted_parts_with_their_instructions() {
        let wanted = ["init", "a", "b"].map(String::from);
        let start = Point::with_cpu(0.0);
        let mut recorder = Recorder::new(&wanted, start);
        for (text, instructions) in [
            ("bench:reach:x:init", 5),
            ("bench:begin:x:other", 6),
            ("bench:begin:x:a", 10),
            ("bench:end:x:other", 15),
            ("bench:end:x:a", 30),
        ] {
            let mark = Mark::parse(text).unwrap();
            recorder.record(mark, Point::with_cpu(instructions as f64), instructions);
        }
        let of = |r: &Recorder<'_>, name: &str| {
            let run = r.session[name];
            (run.instructions, run.spent.cpu)
        };
        assert_eq!(recorder.session.len(), 2);
        assert_eq!(of(&recorder, "init"), (5, 5.0));
        assert_eq!(of(&recorder, "a"), (20, 20.0));
        assert_eq!(
            recorder.finish().unwrap_err(),
            "it did not come to the end of b"
        );
    }
}
