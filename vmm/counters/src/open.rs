//! Counters of a task, opened with `perf_event_open(2)` and read.
//!
//! The kernel counts inherited events of whole groups only since Linux 4.13, and not on all processors; each counter is therefore read by
//! itself. Members of a group are on the processor at the same time all the same.

use std::io;

use perf_event2::events::{Hardware, Raw, Software};
use perf_event2::{Builder, Counter};

use crate::error::CountersError;
use crate::measurement::{Counts, Reading};
use crate::tables::{Code, Event};

/// The tasks that counters count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountTarget {
    /// Only this task, from now on.
    Task(libc::pid_t),
    /// A task and all that it starts, from now on.
    Tree(libc::pid_t),
    /// Everything that this process starts, from its `exec` on.
    Children,
    /// The guests that the calling thread executes, once the counters are enabled.
    Guests,
}

/// Counters of one task or tree.
#[derive(Debug)]
pub struct Counters {
    /// Counter of each event of all groups, in order; none where the processor refused the event.
    counters: Vec<Option<Counter>>,
    /// Indices of the counters that lead a group: members count as long as their leader does.
    leaders: Vec<usize>,
}

/// The sum of an event's counts over tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// The count while the counter ran.
    pub count: u64,
    /// Nanoseconds in which tasks ran that were to be counted.
    pub enabled: u64,
    /// Of these, nanoseconds in which the counter ran.
    pub running: u64,
    /// Tasks whose counter the processor refused.
    pub refused: u64,
}

impl Sum {
    /// Adds another task's.
    pub fn add(&mut self, other: Sum) {
        self.count = self.count.saturating_add(other.count);
        self.enabled = self.enabled.saturating_add(other.enabled);
        self.running = self.running.saturating_add(other.running);
        self.refused += other.refused;
    }

    /// Returns the count for the whole time, as if the counter had counted at the same rate while others had its place; and the part of the
    /// time in which the counter ran.
    pub fn scaled(self) -> Option<(f64, f64)> {
        match (self.enabled, self.running) {
            (_, _) if self.refused > 0 => None,
            // No task ran: nothing happened.
            (0, _) => Some((0.0, 1.0)),
            (_, 0) => None,
            (enabled, running) if running >= enabled => Some((self.count as f64, 1.0)),
            (enabled, running) => {
                let part = running as f64 / enabled as f64;
                Some(((self.count as f64 / part).round(), part))
            }
        }
    }
}

/// Opens counters. Events of other groups than the first are optional.
///
/// # Errors
///
/// No PMU, no permission, or the task has gone.
pub fn open(groups: &[&[Event]], target: CountTarget) -> Result<Counters, CountersError> {
    let mut counters = Vec::new();
    let mut leaders = Vec::new();
    for (index, group) in groups.iter().enumerate() {
        let mut leader: Option<usize> = None;
        for event in *group {
            let builder = builder(event, target, leader.is_none());
            let opened = match leader.and_then(|leader| counters.get_mut(leader)) {
                Some(Some(leader)) => builder.build_with_group(leader),
                _ => builder.build(),
            };
            match opened {
                Ok(counter) => {
                    if leader.is_none() {
                        leader = Some(counters.len());
                        leaders.push(counters.len());
                    }
                    counters.push(Some(counter));
                }
                Err(cause) => match failure(event, cause) {
                    // A host without hardware counters still has some of the software's.
                    Refusal::Event(cause) if index == 0 && counters.iter().all(Option::is_none) => {
                        return Err(CountersError::NoPmu { cause });
                    }
                    Refusal::Event(_) => counters.push(None),
                    Refusal::All(error) => return Err(error),
                },
            }
        }
    }
    Ok(Counters { counters, leaders })
}

fn builder(event: &Event, target: CountTarget, leader: bool) -> Builder<'static> {
    let mut builder = match event.code {
        Code::Cycles => Builder::new(Hardware::CPU_CYCLES),
        Code::Instructions => Builder::new(Hardware::INSTRUCTIONS),
        Code::Software(number) => Builder::new(Software::from(number)),
        Code::Raw { .. } => Builder::new(Raw::new(event.code.raw().unwrap_or_default())),
    };
    builder.any_cpu().exclude_kernel(true).exclude_hv(true);
    match target {
        CountTarget::Task(pid) => builder.observe_pid(pid).enabled(true),
        CountTarget::Tree(pid) => builder.observe_pid(pid).inherit(true).enabled(true),
        // Members are on as far as their leader is.
        CountTarget::Children => builder
            .observe_self()
            .inherit(true)
            .enabled(!leader)
            .enable_on_exec(leader),
        // The processor turns these counters on when it enters a guest. `exclude_kernel` leaves out the guest's kernel.
        CountTarget::Guests => builder.observe_self().exclude_host(true).enabled(!leader),
    };
    builder
}

/// Extent of a refusal.
enum Refusal {
    /// Only this event cannot be counted.
    Event(io::Error),
    /// Nothing can be counted.
    All(CountersError),
}

fn failure(event: &Event, cause: io::Error) -> Refusal {
    match cause.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => Refusal::All(CountersError::Forbidden { cause }),
        // No PMU, an event that the PMU does not know, or a group that cannot be counted at once.
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV | libc::EINVAL) => {
            Refusal::Event(cause)
        }
        Some(libc::ENOSYS) => Refusal::All(CountersError::NoPmu { cause }),
        _ => Refusal::All(CountersError::Counter {
            event: event.name.to_owned(),
            cause,
        }),
    }
}

impl Counters {
    /// Starts or stops all groups.
    ///
    /// # Errors
    ///
    /// Counters that cannot be started or stopped.
    pub fn enable(&mut self, on: bool) -> Result<(), CountersError> {
        for &leader in &self.leaders {
            let Some(counter) = &mut self.counters[leader] else {
                continue;
            };
            let done = if on {
                counter.enable()
            } else {
                counter.disable()
            };
            done.map_err(|cause| CountersError::Counter {
                event: "an event of the guests".into(),
                cause,
            })?;
        }
        Ok(())
    }

    /// Adds what was counted until now to one sum for each event. After the end of a task its counters keep their counts.
    ///
    /// # Errors
    ///
    /// Counters that cannot be read.
    pub fn read(&mut self, sums: &mut [Sum]) -> Result<(), CountersError> {
        for (counter, sum) in self.counters.iter_mut().zip(sums) {
            let Some(counter) = counter else {
                sum.refused += 1;
                continue;
            };
            let read = counter
                .read_count_and_time()
                .map_err(|cause| CountersError::Counter {
                    event: "an event of the command".into(),
                    cause,
                })?;
            sum.add(Sum {
                count: read.count,
                enabled: read.time_enabled,
                running: read.time_running,
                refused: 0,
            });
        }
        Ok(())
    }
}

/// Makes counts of the sums over a rank's tasks.
pub fn counts(groups: &[&[Event]], sums: &[Sum]) -> Counts {
    let events = groups.iter().copied().flatten();
    let readings = events.zip(sums).map(|(event, sum)| {
        let base = match sum.scaled() {
            Some((count, running)) => Reading {
                running,
                ..Reading::new(event.name, count * f64::from(event.scale), None)
            },
            None if sum.refused > 0 => Reading::unread(event.name, "<not supported>", None),
            None => Reading::unread(event.name, "<not counted>", None),
        };
        Reading {
            quantity: event.quantity,
            user_only: true,
            ..base
        }
    });
    Counts {
        readings: readings.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantity::Quantity;

    #[test]
    fn counts_are_scaled_to_the_whole_time() {
        let sum = Sum {
            count: 100,
            enabled: 1000,
            running: 250,
            refused: 0,
        };
        assert_eq!(sum.scaled(), Some((400.0, 0.25)));
        let mut two = sum;
        two.add(Sum {
            count: 900,
            enabled: 1000,
            running: 1000,
            refused: 0,
        });
        // The sum has its own rate: 1000 in 1250 ns of 2000 ns.
        assert_eq!(two.scaled(), Some((1600.0, 0.625)));
        assert_eq!(Sum { running: 0, ..sum }.scaled(), None);
        assert_eq!(Sum { refused: 1, ..sum }.scaled(), None);
        assert_eq!(Sum::default().scaled(), Some((0.0, 1.0)));
    }

    #[test]
    fn counts_of_slots_are_multiplied_and_lost_ones_are_told() {
        const SLOTS: Event = Event {
            name: "x",
            code: Code::Cycles,
            quantity: Some(Quantity::Slots),
            scale: 4,
        };
        let ran = Sum {
            count: 10,
            enabled: 1,
            running: 1,
            refused: 0,
        };
        let lost = Sum { running: 0, ..ran };
        let counts = counts(&[&[SLOTS, SLOTS]], &[ran, lost]);
        assert_eq!(counts.readings[0].value, Some(40.0));
        assert_eq!(counts.readings[1].unread, "<not counted>");
        assert!(counts.readings[0].user_only);
    }

    #[test]
    fn refusals_are_told_apart() {
        let event = Event {
            name: "cycles",
            code: Code::Cycles,
            quantity: None,
            scale: 1,
        };
        let refused = |code| failure(&event, io::Error::from_raw_os_error(code));
        assert!(matches!(
            refused(libc::EACCES),
            Refusal::All(CountersError::Forbidden { .. })
        ));
        assert!(matches!(refused(libc::ENOENT), Refusal::Event(_)));
        assert!(matches!(
            refused(libc::ESRCH),
            Refusal::All(CountersError::Counter { .. })
        ));
    }
}
