//! Moment of a snapshot, as one word of the command line.

use std::fmt;
use std::str::FromStr;

use nodescope_config::quantity::Time;
use nodescope_window::{Moment, Trigger};

use crate::plan::{Mpi, Study};
use crate::sections::named_function;

/// Moment at which a snapshot is taken, as a text.
///
/// | text | moment |
/// |---|---|
/// | `boot` | the first node has booted: a cluster of one node may continue as more nodes, and with another job |
/// | `job` | the job starts |
/// | `2.5s` | this virtual time is reached |
/// | `mpi:MPI_Barrier`, `mpi:MPI_Barrier#3`, `mpi:MPI_Barrier#3@1` | the 1st or 3rd call of rank 0, or the 3rd of rank 1, has returned |
/// | `mark:NAME`, `mark:NAME#2` | a process has put this marker for the first or for the second time |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotAt(pub Moment);

const EXAMPLES: &str =
    "write boot, job, a time such as 2.5s, mpi:MPI_Barrier, mpi:MPI_Barrier#3@1 or mark:NAME#2";

impl FromStr for SnapshotAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "boot" {
            return Ok(Self(Moment::Boot));
        }
        if text == "job" {
            return Ok(Self(Moment::Job));
        }
        let trigger = match text.split_once(':') {
            Some(("mpi", rest)) => {
                let (rest, rank) = numbered(rest, '@');
                let (name, call) = numbered(rest, '#');
                Trigger::MpiCall {
                    function: named_function(name)?,
                    call: first("call", call)?,
                    rank: u32::try_from(rank.unwrap_or(0))
                        .map_err(|_| format!("there is no rank {}", rank.unwrap_or(0)))?,
                }
            }
            Some(("mark", rest)) => {
                let (name, occurrence) = numbered(rest, '#');
                if name.is_empty() {
                    return Err(format!("{text:?} names no marker; {EXAMPLES}"));
                }
                Trigger::Marker {
                    name: name.into(),
                    occurrence: first("occurrence", occurrence)?,
                }
            }
            _ if text.starts_with(|c: char| c.is_ascii_digit()) => Trigger::Time {
                ps: text.parse::<Time>().map_err(|error| error.to_string())?.0,
            },
            _ => return Err(format!("{text:?} is no moment; {EXAMPLES}")),
        };
        Ok(Self(Moment::Trigger(trigger)))
    }
}

/// The text that [`SnapshotAt::from_str`] reads.
impl fmt::Display for SnapshotAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Moment::Boot => f.write_str("boot"),
            Moment::Job => f.write_str("job"),
            Moment::Trigger(Trigger::Time { ps }) => write!(f, "{ps} ps"),
            Moment::Trigger(Trigger::MpiCall {
                function,
                call,
                rank,
            }) => write!(f, "mpi:{}#{call}@{rank}", function.name()),
            Moment::Trigger(Trigger::Marker { name, occurrence }) => {
                write!(f, "mark:{name}#{occurrence}")
            }
            // Only windows have these triggers.
            other => other.fmt(f),
        }
    }
}

/// Splits a text at the last `separator` if a number follows; otherwise returns the whole text and `None`.
fn numbered(text: &str, separator: char) -> (&str, Option<u64>) {
    match text.rsplit_once(separator) {
        Some((rest, number)) => match number.parse() {
            Ok(number) => (rest, Some(number)),
            Err(_) => (text, None),
        },
        None => (text, None),
    }
}

fn first(what: &str, number: Option<u64>) -> Result<u64, String> {
    match number {
        Some(0) => Err(format!("{what} 0 does not exist; the first is 1")),
        number => Ok(number.unwrap_or(1)),
    }
}

impl SnapshotAt {
    /// Checks that the moment can come in a run of a study.
    ///
    /// # Errors
    ///
    /// A sentence with the reason why the moment cannot come.
    pub fn check(&self, study: &Study) -> Result<(), String> {
        let Moment::Trigger(trigger) = &self.0 else {
            return Ok(());
        };
        match trigger {
            Trigger::MpiCall { .. } if !study.job.trace || study.job.mpi == Mpi::None => Err(
                "needs the MPI trace, which job.trace or job.mpi of the study switches off".into(),
            ),
            Trigger::MpiCall { rank, .. } if *rank >= study.job.ranks => Err(format!(
                "there is no rank {rank}; the study's ranks are 0 to {}",
                study.job.ranks.saturating_sub(1)
            )),
            Trigger::Time { ps } if *ps >= study.time_limit.0 => Err(format!(
                "{} lies behind study.time_limit, {}",
                Time(*ps),
                study.time_limit
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use nodescope_hypercall::Function;

    use super::*;

    #[test]
    fn a_moment_is_a_word() {
        let call = |call, rank| Trigger::MpiCall {
            function: Function::Barrier,
            call,
            rank,
        };
        let mark = |name: &str, occurrence| Trigger::Marker {
            name: name.into(),
            occurrence,
        };
        for (text, trigger) in [
            (
                "2.5s",
                Trigger::Time {
                    ps: 2_500_000_000_000,
                },
            ),
            ("300 us", Trigger::Time { ps: 300_000_000 }),
            ("mpi:MPI_Barrier", call(1, 0)),
            ("mpi:MPI_Barrier#3", call(3, 0)),
            ("mpi:MPI_Barrier@2", call(1, 2)),
            ("mpi:MPI_Barrier#3@2", call(3, 2)),
            ("mark:loop", mark("loop", 1)),
            ("mark:a#b", mark("a#b", 1)),
            ("mark:a:b#12", mark("a:b", 12)),
        ] {
            let moment = SnapshotAt(Moment::Trigger(trigger));
            assert_eq!(moment.to_string().parse(), Ok(moment.clone()), "{moment}");
            assert_eq!(text.parse(), Ok(moment), "{text}");
        }
        assert_eq!("boot".parse(), Ok(SnapshotAt(Moment::Boot)));
        assert_eq!("job".parse(), Ok(SnapshotAt(Moment::Job)));
        for (text, problem) in [
            ("later", "is no moment; write boot"),
            ("", "is no moment"),
            ("2.5", "has no unit"),
            ("2 parsecs", "is none of the units"),
            ("mpi:MPI_Barier", "did you mean \"MPI_Barrier\"?"),
            ("mpi:MPI_Barrier#0", "call 0 does not exist"),
            ("mpi:MPI_Barrier@5000000000", "there is no rank 5000000000"),
            ("mark:", "names no marker"),
            ("mark:x#0", "occurrence 0"),
        ] {
            let error = text.parse::<SnapshotAt>().unwrap_err();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
