//! Intervals between MPI calls, in which the OpenMP tracer measures (`guest-images/tracer/openmp-mpi.c`).

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::Function;

/// Environment variable that gives the OpenMP tracer its intervals, separated by commas.
pub const INTERVALS_VARIABLE: &str = "NODESCOPE_OPENMP_INTERVALS";
/// Maximum number of intervals that the OpenMP tracer accepts.
pub const MOST_INTERVALS: usize = 16;

/// All calls of an MPI function by a process (`MPI_Barrier`), or one of them by its number (`MPI_Barrier:2`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedCall {
    /// MPI function of the calls.
    pub function: Function,
    /// Number of the call in the process, from 1; `None` for every call.
    pub number: Option<u64>,
}

/// Interval from the return of one call to the return of another call: `MPI_Barrier:1..MPI_Barrier:2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallInterval {
    /// The call at whose return the interval begins.
    pub from: NamedCall,
    /// The call at whose return the interval ends.
    pub to: NamedCall,
}

/// Reason why a text names no interval between MPI calls.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallIntervalError {
    /// The text doesn't have the form `CALL..CALL`.
    #[error(
        "{0:?} is no interval between MPI calls; write CALL..CALL, such as MPI_Barrier:1..MPI_Barrier:2"
    )]
    Form(String),
    /// The function is not a traced MPI function.
    #[error("{0} is no MPI function that is traced")]
    Function(String),
    /// The text behind the colon is not a number from 1 on.
    #[error("{number:?} is no number of a call; write e.g. {function}:2 for its second call")]
    Number {
        /// Name of the MPI function.
        function: &'static str,
        /// The text behind the colon.
        number: String,
    },
    /// Both calls are of one function, and the last one's number isn't greater than the first one's.
    #[error("{0} ends before it begins; name a later call behind the dots")]
    Order(String),
}

impl FromStr for NamedCall {
    type Err = CallIntervalError;

    fn from_str(text: &str) -> Result<NamedCall, CallIntervalError> {
        let (name, number) = match text.split_once(':') {
            Some((name, number)) => (name, Some(number)),
            None => (text, None),
        };
        let function = (Function::ALL.iter())
            .find(|function| function.name() == name)
            .ok_or_else(|| CallIntervalError::Function(name.to_owned()))?;
        let read = |number: &str| {
            let digits = number.bytes().all(|byte| byte.is_ascii_digit());
            let read = number.parse().ok().filter(|&number| digits && number > 0);
            read.ok_or_else(|| CallIntervalError::Number {
                function: function.name(),
                number: number.to_owned(),
            })
        };
        Ok(NamedCall {
            function: *function,
            number: number.map(read).transpose()?,
        })
    }
}

impl FromStr for CallInterval {
    type Err = CallIntervalError;

    fn from_str(text: &str) -> Result<CallInterval, CallIntervalError> {
        let calls = text.split_once("..");
        let (from, to) = calls.ok_or_else(|| CallIntervalError::Form(text.to_owned()))?;
        let (from, to): (NamedCall, NamedCall) = (from.parse()?, to.parse()?);
        if let (true, Some(first), Some(last)) =
            (from.function == to.function, from.number, to.number)
            && last <= first
        {
            return Err(CallIntervalError::Order(text.to_owned()));
        }
        Ok(CallInterval { from, to })
    }
}

impl fmt::Display for NamedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.function.name())?;
        match self.number {
            Some(number) => write!(f, ":{number}"),
            None => Ok(()),
        }
    }
}

impl Serialize for CallInterval {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for CallInterval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.from, self.to)
    }
}

/// Returns the value of [`INTERVALS_VARIABLE`] for these intervals.
pub fn intervals_value(intervals: &[CallInterval]) -> String {
    let texts: Vec<String> = intervals.iter().map(CallInterval::to_string).collect();
    texts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_read_and_written_alike() {
        let texts = [
            "MPI_Barrier:1..MPI_Barrier:2",
            "MPI_Allreduce..MPI_Allreduce",
            "MPI_Init..MPI_Finalize",
            "MPI_Barrier:3..MPI_Barrier",
        ];
        let read: Vec<CallInterval> = texts.iter().map(|text| text.parse().unwrap()).collect();
        assert_eq!(intervals_value(&read), texts.join(","));
    }

    #[test]
    fn what_is_no_interval_is_refused_with_its_reason() {
        for (text, reason) in [
            ("", "is no interval between MPI calls"),
            ("MPI_Barrier", "is no interval between MPI calls"),
            ("MPI_Barrier..", " is no MPI function"),
            ("MPI_Foo..MPI_Barrier", "MPI_Foo is no MPI function"),
            ("MPI_Barrier:0..MPI_Barrier", "\"0\" is no number of a call"),
            ("MPI_Barrier:+1..MPI_Barrier", "\"+1\" is no number"),
            ("MPI_Barrier:2..MPI_Barrier:2", "ends before it begins"),
        ] {
            let error = text.parse::<CallInterval>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
