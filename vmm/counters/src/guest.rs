//! Hardware counts of guests: what the vCPUs execute on this host's processor, without what the host does for them.
//!
//! The counters of a vCPU belong to the thread that runs the vCPU, and count only while it runs. The processor is behind the trait
//! [`CountGuests`], so that recorded counts can replace it where there is no PMU.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::CountersError;
use crate::host::table;
use crate::measurement::Measurement;
use crate::open::{CountTarget, Counters, Sum, counts, open};
use crate::tables::{Cpu, Event, Table};

/// Counters of the thread that opened them, which count only while guests run.
pub trait GuestCounters: Debug + Send {
    /// Starts counting.
    ///
    /// # Errors
    ///
    /// Counters that cannot be started.
    fn start(&mut self) -> Result<(), CountersError>;

    /// Stops counting.
    ///
    /// # Errors
    ///
    /// Counters that cannot be stopped.
    fn stop(&mut self) -> Result<(), CountersError>;

    /// Adds what these counters have counted since they were opened to `sums`, one for each event.
    ///
    /// # Errors
    ///
    /// Counters that cannot be read.
    fn read(&mut self, sums: &mut [Sum]) -> Result<(), CountersError>;
}

/// A processor whose counters can count guests.
pub trait CountGuests: Debug + Send + Sync {
    /// Returns the name of the processor; `None` if it is unknown.
    fn processor(&self) -> Option<String>;

    /// Returns sentences about limits of the accuracy of the processor's counts.
    fn limits(&self) -> Vec<String>;

    /// Returns the events, in groups; the events of a group are counted at the same time.
    fn groups(&self) -> &'static [&'static [Event]];

    /// Opens counters for the calling thread. The counters do not count before [`GuestCounters::start`].
    ///
    /// # Errors
    ///
    /// No PMU, or no permission.
    fn open(&self) -> Result<Box<dyn GuestCounters>, CountersError>;
}

/// Processor of this host, as a source of counts.
#[derive(Debug)]
pub struct HostProcessor {
    name: String,
    table: &'static Table,
}

impl HostProcessor {
    /// Finds the table of the processor's events, and opens the counters once to check that they can be used.
    ///
    /// # Errors
    ///
    /// No PMU, no permission, or a processor whose events are in no table.
    pub fn new() -> Result<Self, CountersError> {
        let cpu = Cpu::host();
        let table = table(&cpu)?;
        open(table.groups, CountTarget::Guests)?;
        Ok(Self {
            name: cpu.name,
            table,
        })
    }
}

impl CountGuests for HostProcessor {
    fn processor(&self) -> Option<String> {
        Some(self.name.clone()).filter(|name| !name.is_empty())
    }

    fn limits(&self) -> Vec<String> {
        self.table.limits.iter().map(|&s| s.to_owned()).collect()
    }

    fn groups(&self) -> &'static [&'static [Event]] {
        self.table.groups
    }

    fn open(&self) -> Result<Box<dyn GuestCounters>, CountersError> {
        Ok(Box::new(open(self.table.groups, CountTarget::Guests)?))
    }
}

impl GuestCounters for Counters {
    fn start(&mut self) -> Result<(), CountersError> {
        self.enable(true)
    }

    fn stop(&mut self) -> Result<(), CountersError> {
        self.enable(false)
    }

    fn read(&mut self, sums: &mut [Sum]) -> Result<(), CountersError> {
        Counters::read(self, sums)
    }
}

/// Recorded counts in place of a processor's. Each stop of a thread's counters adds the next row; the first row follows the last.
#[derive(Debug)]
pub struct RecordedCounts {
    groups: &'static [&'static [Event]],
    rows: Arc<[Vec<Sum>]>,
}

impl RecordedCounts {
    /// Returns a source of these rows, each of which has a sum for each event of the groups.
    ///
    /// # Panics
    ///
    /// If there is no row, or a row whose number of sums is not that of the events.
    pub fn new(groups: &'static [&'static [Event]], rows: Vec<Vec<Sum>>) -> Self {
        let events = groups.iter().map(|group| group.len()).sum::<usize>();
        assert!(!rows.is_empty() && rows.iter().all(|row| row.len() == events));
        Self {
            groups,
            rows: rows.into(),
        }
    }
}

impl CountGuests for RecordedCounts {
    fn processor(&self) -> Option<String> {
        None
    }

    fn limits(&self) -> Vec<String> {
        vec!["the counts were recorded elsewhere".into()]
    }

    fn groups(&self) -> &'static [&'static [Event]] {
        self.groups
    }

    fn open(&self) -> Result<Box<dyn GuestCounters>, CountersError> {
        Ok(Box::new(Recorded {
            rows: Arc::clone(&self.rows),
            stops: 0,
            counted: vec![Sum::default(); self.rows[0].len()],
        }))
    }
}

/// Counters of one thread that return recorded counts.
#[derive(Debug)]
struct Recorded {
    rows: Arc<[Vec<Sum>]>,
    stops: usize,
    counted: Vec<Sum>,
}

impl GuestCounters for Recorded {
    fn start(&mut self) -> Result<(), CountersError> {
        Ok(())
    }

    fn stop(&mut self) -> Result<(), CountersError> {
        add(&mut self.counted, &self.rows[self.stops % self.rows.len()]);
        self.stops += 1;
        Ok(())
    }

    fn read(&mut self, sums: &mut [Sum]) -> Result<(), CountersError> {
        add(sums, &self.counted);
        Ok(())
    }
}

fn add(sums: &mut [Sum], others: &[Sum]) {
    for (sum, other) in sums.iter_mut().zip(others) {
        sum.add(*other);
    }
}

/// Counters of one vCPU.
#[derive(Debug)]
pub struct VcpuCounters {
    source: Arc<dyn CountGuests>,
    /// Counts from the threads that ran the vCPU before the present one.
    earlier: Vec<Sum>,
    /// Number of the thread that runs the vCPU, and the counters of that thread.
    open: Option<(i32, Box<dyn GuestCounters>)>,
}

impl VcpuCounters {
    /// Starts the vCPU's counters: the vCPU begins to run on the calling thread, whose number is `thread`. Opens new counters if the thread
    /// has changed.
    ///
    /// # Errors
    ///
    /// Counters that cannot be opened, read or started.
    pub fn start(&mut self, thread: i32) -> Result<(), CountersError> {
        if self.open.as_ref().is_none_or(|(other, _)| *other != thread) {
            let counters = self.source.open()?;
            if let Some((_, mut left)) = self.open.replace((thread, counters)) {
                left.read(&mut self.earlier)?;
            }
        }
        self.open.as_mut().map_or(Ok(()), |(_, open)| open.start())
    }

    /// Stops the vCPU's counters, since the vCPU leaves the guest.
    ///
    /// # Errors
    ///
    /// Counters that cannot be stopped.
    pub fn stop(&mut self) -> Result<(), CountersError> {
        self.open.as_mut().map_or(Ok(()), |(_, open)| open.stop())
    }

    fn read(&mut self, sums: &mut [Sum]) -> Result<(), CountersError> {
        add(sums, &self.earlier);
        match &mut self.open {
            Some((_, open)) => open.read(sums),
            None => Ok(()),
        }
    }
}

/// Counters of vCPUs, by the numbers of node and vCPU.
type Vcpus = BTreeMap<(u32, u16), Arc<Mutex<VcpuCounters>>>;

/// Counters of all vCPUs of a cluster.
#[derive(Debug)]
pub struct GuestCounting {
    source: Arc<dyn CountGuests>,
    vcpus: Mutex<Vcpus>,
}

/// Locks a mutex, even if a thread has panicked while it had the lock: the sums are valid in any case.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl GuestCounting {
    /// Returns a count with this source, in which no vCPU is counted yet.
    pub fn new(source: Arc<dyn CountGuests>) -> Self {
        Self {
            source,
            vcpus: Mutex::default(),
        }
    }

    /// Returns new counters for a vCPU. They replace those that the vCPU had in an earlier run.
    pub fn vcpu(&self, node: u32, vcpu: u16) -> Arc<Mutex<VcpuCounters>> {
        let counters = Arc::new(Mutex::new(VcpuCounters {
            source: Arc::clone(&self.source),
            earlier: self.zero(),
            open: None,
        }));
        lock(&self.vcpus).insert((node, vcpu), Arc::clone(&counters));
        counters
    }

    fn zero(&self) -> Vec<Sum> {
        let events = self.source.groups().iter().map(|group| group.len());
        vec![Sum::default(); events.sum()]
    }

    /// Returns the count of each event since the counters of the vCPUs were made, summed over all vCPUs.
    ///
    /// # Errors
    ///
    /// Counters that cannot be read.
    pub fn sums(&self) -> Result<Vec<Sum>, CountersError> {
        let mut sums = self.zero();
        for counters in lock(&self.vcpus).values() {
            lock(counters).read(&mut sums)?;
        }
        Ok(sums)
    }

    /// Returns a measurement of the difference between two results of [`GuestCounting::sums`].
    pub fn measurement(&self, from: &[Sum], to: &[Sum]) -> Measurement {
        let passed = from.iter().zip(to).map(|(from, to)| Sum {
            count: to.count.saturating_sub(from.count),
            enabled: to.enabled.saturating_sub(from.enabled),
            running: to.running.saturating_sub(from.running),
            refused: to.refused.max(from.refused),
        });
        let passed: Vec<_> = passed.collect();
        let mut notes = self.source.limits();
        notes.push(
            "user code of the guests was counted from the job's start to its end while KVM ran it, MPI included"
                .into(),
        );
        Measurement {
            tool: "nodescope run".into(),
            processor: self.source.processor(),
            whole: counts(self.source.groups(), &passed),
            notes,
            ..Measurement::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantity::Quantity;
    use crate::tables::Code;

    const fn event(name: &'static str, quantity: Quantity) -> Event {
        Event {
            name,
            code: Code::Cycles,
            quantity: Some(quantity),
            scale: 1,
        }
    }

    const GROUPS: &[&[Event]] = &[&[
        event("cycles", Quantity::Cycles),
        event("instructions", Quantity::Instructions),
        event("stalls", Quantity::StallsL1dMiss),
    ]];

    fn row(counts: [u64; 3]) -> Vec<Sum> {
        let sum = |count| Sum {
            count,
            enabled: 10,
            running: 10,
            refused: 0,
        };
        counts.map(sum).to_vec()
    }

    fn counting() -> GuestCounting {
        let rows = vec![row([3000, 2000, 1000]), row([5000, 2000, 3500])];
        GuestCounting::new(Arc::new(RecordedCounts::new(GROUPS, rows)))
    }

    #[test]
    fn each_vcpu_is_counted_on_each_of_its_threads() {
        let counting = counting();
        let (a, b) = (counting.vcpu(0, 0), counting.vcpu(1, 0));
        for (vcpu, threads) in [(&a, &[7, 7, 8][..]), (&b, &[7])] {
            for thread in threads {
                lock(vcpu).start(*thread).unwrap();
                lock(vcpu).stop().unwrap();
            }
        }
        // Two rows on thread 7, the first row on thread 8, and the first row of the other vCPU.
        let expected = [3000 + 5000 + 3000 + 3000, 4 * 2000, 3 * 1000 + 3500];
        let sums = counting.sums().unwrap();
        assert_eq!(sums.iter().map(|s| s.count).collect::<Vec<_>>(), expected);
        assert_eq!(sums[0].running, 40);
    }

    #[test]
    fn a_measurement_is_of_the_time_between_two_sums() {
        let counting = counting();
        let vcpu = counting.vcpu(0, 0);
        let run = || {
            lock(&vcpu).start(1).unwrap();
            lock(&vcpu).stop().unwrap();
        };
        run();
        let from = counting.sums().unwrap();
        run();
        run();
        let to = counting.sums().unwrap();
        let derived = counting.measurement(&from, &to).derive().unwrap();
        assert_eq!(derived.cpi, 8000.0 / 4000.0);
        assert_eq!(derived.core.unwrap().cpi, (8000.0 - 4500.0) / 4000.0);
        // Nothing was executed between these sums, so nothing can be computed.
        assert!(counting.measurement(&to, &to).derive().is_err());
    }

    #[test]
    fn a_vcpu_of_the_next_run_begins_at_zero() {
        let counting = counting();
        let vcpu = counting.vcpu(0, 0);
        lock(&vcpu).start(1).unwrap();
        lock(&vcpu).stop().unwrap();
        counting.vcpu(0, 0);
        assert_eq!(counting.sums().unwrap(), counting.zero());
    }
}
