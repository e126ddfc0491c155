//! Hardware counters of the job: counts of the host's processor while KVM runs the guests.

use std::sync::Arc;

use nodescope_counters::guest::GuestCounting;
use nodescope_counters::open::Sum;
use nodescope_counters::{CountersError, Measurement};

use crate::outcome::Phase;

/// Counts from the job's start to its end.
#[derive(Debug, Default)]
pub(crate) struct Counting {
    counting: Option<Arc<GuestCounting>>,
    /// Sums at the job's start, and after its end.
    from: Option<Vec<Sum>>,
    to: Option<Vec<Sum>>,
}

impl Counting {
    /// Returns a count with these counters, if there are any. The job has not started.
    pub fn new(counting: Option<Arc<GuestCounting>>) -> Self {
        Self {
            counting,
            from: None,
            to: None,
        }
    }

    /// Follows the phase of the first node.
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

    /// Returns the counts of the job, if the job has started.
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
        // Six of twelve.
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
