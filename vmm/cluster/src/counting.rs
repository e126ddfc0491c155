//! Hardware counters of the job: counts of the host's processor while KVM runs the guests.

use std::sync::Arc;

use nodescope_counters::guest::GuestCounting;
use nodescope_counters::open::Sum;
use nodescope_counters::{CountersError, Measurement};

use crate::outcome::Phase;

/// Counts of the host's counters from the job's start to its end.
#[derive(Debug, Default)]
pub(crate) struct Counting {
    counting: Option<Arc<GuestCounting>>,
    /// Sums of the counters at the job's start; `to` has those after its end.
    from: Option<Vec<Sum>>,
    to: Option<Vec<Sum>>,
}

impl Counting {
    /// Returns counts of a job that has not started. Without counters nothing is counted.
    pub fn new(counting: Option<Arc<GuestCounting>>) -> Self {
        Self {
            counting,
            from: None,
            to: None,
        }
    }

    /// Notes the phase of the first node, and reads the counters when the job starts and when the node powers off.
    pub fn follow(&mut self, phase: Phase) -> Result<(), CountersError> {
        let Some(counting) = &self.counting else {
            return Ok(());
        };
        match phase {
            Phase::Boot => {}
            Phase::PowerOff if self.to.is_none() => self.to = Some(counting.sums()?),
            Phase::Job | Phase::WarmUp | Phase::Window if self.from.is_none() => {
                self.from = Some(counting.sums()?);
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns what was counted during the job; `None` without counters, or if the job never started.
    pub fn finish(self) -> Result<Option<Measurement>, CountersError> {
        let (Some(counting), Some(from)) = (self.counting, self.from) else {
            return Ok(None);
        };
        let to = match self.to {
            Some(to) => to,
            None => counting.sums()?,
        };
        Ok(Some(counting.measurement(&from, &to)))
    }
}

#[cfg(test)]
mod tests {
    use nodescope_counters::guest::{RecordedCounts, lock};
    use nodescope_counters::tables::{Code, Event};

    use super::*;

    const GROUPS: &[&[Event]] = &[&[Event {
        name: "instructions",
        code: Code::Instructions,
        quantity: None,
        scale: 1,
    }]];

    #[test]
    fn the_job_is_counted_without_boot_and_power_off() {
        let row = vec![Sum {
            count: 5,
            enabled: 1,
            running: 1,
            refused: 0,
        }];
        let source = Arc::new(RecordedCounts::new(GROUPS, vec![row]));
        let counting = Arc::new(GuestCounting::new(source));
        let vcpu = counting.vcpu(0, 0);
        let mut job = Counting::new(Some(Arc::clone(&counting)));
        let phases = [Phase::Boot, Phase::Job, Phase::Window, Phase::PowerOff];
        for phase in phases.into_iter().flat_map(|phase| [phase; 3]) {
            job.follow(phase).unwrap();
            lock(&vcpu).start(1).unwrap();
            lock(&vcpu).stop().unwrap();
        }
        let measured = job.finish().unwrap().unwrap();
        // Six of the twelve intervals belong to the job, with a count of 5 each.
        assert_eq!(measured.whole.readings[0].value, Some(30.0));
    }

    #[test]
    fn without_counters_or_a_job_there_are_no_counts() {
        assert!(Counting::new(None).finish().unwrap().is_none());
        let mut none = Counting::new(None);
        none.follow(Phase::Job).unwrap();
        assert!(none.finish().unwrap().is_none());
    }
}
