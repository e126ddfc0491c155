//! What a restriction holds on this host.

use std::fmt;

use crate::SandboxError;

/// A means of the kernel to restrict a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// No program that this process starts gains privileges, such as those of setuid programs (prctl(2), `PR_SET_NO_NEW_PRIVS`).
    NoNewPrivileges,
    /// Landlock: files, and on newer kernels TCP, devices and signals.
    Landlock,
    /// A seccomp filter: only listed system calls.
    Seccomp,
    /// Limits of memory, processor time and files (setrlimit(2)).
    Limits,
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Measure::NoNewPrivileges => "no_new_privs",
            Measure::Landlock => "Landlock",
            Measure::Seccomp => "seccomp",
            Measure::Limits => "limits",
        })
    }
}

/// State of one measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// All that was asked for is held.
    Held,
    /// Some is held; the text says what is not.
    Partly(String),
    /// Nothing is held; the text says why.
    Missing(String),
}

/// State of every measure, after a process has been restricted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Each measure with its state.
    pub measures: Vec<(Measure, State)>,
}

impl Status {
    /// Returns whether all measures are held in full.
    pub fn is_complete(&self) -> bool {
        self.measures.iter().all(|(_, state)| *state == State::Held)
    }

    /// Returns what is not held and why, as one clause; `None` if all is held.
    pub fn gaps(&self) -> Option<String> {
        let gap = |(measure, state): &(Measure, State)| match state {
            State::Held => None,
            State::Partly(why) => Some(format!("{measure} in part ({why})")),
            State::Missing(why) => Some(format!("no {measure} ({why})")),
        };
        let gaps: Vec<_> = self.measures.iter().filter_map(gap).collect();
        (!gaps.is_empty()).then(|| gaps.join(", "))
    }

    /// Fails unless all measures are held in full.
    pub fn require(&self) -> Result<(), SandboxError> {
        match self.gaps() {
            None => Ok(()),
            Some(gaps) => Err(SandboxError::Required(gaps)),
        }
    }

    /// Adds a gap to a measure that is held.
    pub(crate) fn lacks(&mut self, measure: Measure, gap: &str) {
        for (_, state) in self.measures.iter_mut().filter(|(of, _)| *of == measure) {
            *state = match std::mem::replace(state, State::Held) {
                State::Held => State::Partly(gap.into()),
                State::Partly(other) => State::Partly(format!("{other}; {gap}")),
                missing => missing,
            };
        }
    }

    pub(crate) fn add(&mut self, measure: Measure, state: State) {
        self.measures.push((measure, state));
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = self
            .measures
            .iter()
            .filter(|(_, state)| !matches!(state, State::Missing(_)));
        let held: Vec<_> = held.map(|(measure, _)| measure.to_string()).collect();
        match held.is_empty() {
            true => write!(f, "nothing held")?,
            false => write!(f, "held by {}", held.join(", "))?,
        }
        match self.gaps() {
            None => Ok(()),
            Some(gaps) => write!(f, "; not held: {gaps}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_said_and_refused_where_required() {
        let mut status = Status::default();
        status.add(Measure::NoNewPrivileges, State::Held);
        assert!(status.is_complete());
        assert_eq!(status.to_string(), "held by no_new_privs");
        status.add(
            Measure::Landlock,
            State::Missing("not in this kernel".into()),
        );
        assert!(!status.is_complete());
        let text = "held by no_new_privs; not held: no Landlock (not in this kernel)";
        assert_eq!(status.to_string(), text);
        let error = status.require().unwrap_err().to_string();
        assert!(
            error.ends_with("no Landlock (not in this kernel)"),
            "{error}"
        );
    }
}
