//! Counters of a task, which are opened with `perf_event_open(2)` and then read.
//!
//! The kernel reads whole groups of inherited events only since Linux 4.13, and not on all processors. Each counter is therefore read
//! separately. The members of a group still count at the same time.

use std::io;

use perf_event2::events::{Hardware, Raw, Software};
use perf_event2::{Builder, Counter};

use crate::error::CountersError;
use crate::measurement::{Counts, Reading};
use crate::tables::{Code, Event};

/// The tasks whose events are counted. Only events of user code are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountTarget {
    /// Only the task of this id, from now on.
    Task(libc::pid_t),
    /// The task of this id and all tasks that it starts from now on.
    Tree(libc::pid_t),
    /// This process's children, from their `exec` on.
    Children,
    /// User code of the guest that the calling thread executes in KVM, after [`Counters::enable`].
    Guests,
}

/// The open counters of one target.
#[derive(Debug)]
pub struct Counters {
    /// Counter of each event of all groups, in order; none if the processor refused the event.
    counters: Vec<Option<Counter>>,
    /// Indices of the group leaders in `counters`. Members of a group count only while their leader does.
    leaders: Vec<usize>,
}

/// Sum of an event's counts over tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Number of events counted while the counter ran.
    pub count: u64,
    /// Nanoseconds in which the tasks ran with the counter enabled.
    pub enabled: u64,
    /// Nanoseconds of `enabled` in which the counter was on the processor.
    pub running: u64,
    /// Number of tasks whose counter the processor refused.
    pub refused: u64,
}

impl Sum {
    /// Adds the count and the times of another task.
    pub fn add(&mut self, other: Sum) {
        self.count = self.count.saturating_add(other.count);
        self.enabled = self.enabled.saturating_add(other.enabled);
        self.running = self.running.saturating_add(other.running);
        self.refused += other.refused;
    }

    /// Returns the count extrapolated to the whole enabled time, and the part of that time in which the counter ran, from 0 to 1. None if a
    /// task's counter was refused or never ran.
    pub fn scaled(self) -> Option<(f64, f64)> {
        match (self.enabled, self.running) {
            (_, _) if self.refused > 0 => None,
            // No task ran, so no event occurred.
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

/// Opens a counter for each event. Only the first event is required; another event that the processor refuses has no counter.
///
/// # Errors
///
/// A host without a PMU, missing permission, or a task that has ended.
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
                    // A refused first event means that there is no PMU, even if software events of a later group would open.
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
        // A member counts only while its leader does, so members are enabled from the start.
        CountTarget::Children => builder
            .observe_self()
            .inherit(true)
            .enabled(!leader)
            .enable_on_exec(leader),
        // The processor turns these counters on when it enters a guest. `exclude_kernel` also excludes the guest's kernel.
        CountTarget::Guests => builder.observe_self().exclude_host(true).enabled(!leader),
    };
    builder
}

/// The extent of a refusal.
enum Refusal {
    /// Only this event cannot be counted.
    Event(io::Error),
    /// No event can be counted.
    All(CountersError),
}

fn failure(event: &Event, cause: io::Error) -> Refusal {
    match cause.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => Refusal::All(CountersError::Forbidden { cause }),
        // No PMU, an event that the PMU does not have, or a group whose events cannot be counted at once.
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
    /// Enables or disables the leaders, and so the counting of all groups.
    ///
    /// # Errors
    ///
    /// A counter that cannot be enabled or disabled.
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

    /// Adds the counts until now to `sums`, which has one sum for each event. Counters keep their counts after their task ends.
    ///
    /// # Errors
    ///
    /// A counter that cannot be read.
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

/// Makes the counts of a rank from the sums over its tasks. The count of a counter that ran for only part of the enabled time is
/// extrapolated to all of it.
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
        // The extrapolation uses the summed times: the count is 1000 in 1250 ns of 2000 ns.
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
