//! Counters of guests: of what the vCPUs of virtual machines execute on this host's processor, without what the host does for them.
//!
//! A vCPU is counted on the thread that runs it, as long as it runs there. The processor itself is behind [`CountGuests`], so that recorded
//! counts can stand in where there is no PMU.

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
    /// Counts from now on.
    ///
    /// # Errors
    ///
    /// Counters that cannot be started.
    fn start(&mut self) -> Result<(), CountersError>;

    /// Counts no longer.
    ///
    /// # Errors
    ///
    /// Counters that cannot be stopped.
    fn stop(&mut self) -> Result<(), CountersError>;

    /// Adds what was counted since they were opened to one sum for each event.
    ///
    /// # Errors
    ///
    /// Counters that cannot be read.
    fn read(&mut self, sums: &mut [Sum]) -> Result<(), CountersError>;
}

/// A processor that counts guests.
pub trait CountGuests: Debug + Send + Sync {
    /// Returns the name.
    fn processor(&self) -> Option<String>;

    /// Sentences about limits of its counts.
    fn limits(&self) -> Vec<String>;

    /// Returns the events, in groups that are counted at once.
    fn groups(&self) -> &'static [&'static [Event]];

    /// Opens counters of the calling thread. The counters do not count yet.
    ///
    /// # Errors
    ///
    /// No PMU, or no permission.
    fn open(&self) -> Result<Box<dyn GuestCounters>, CountersError>;
}

/// Processor of this host, as a source of counters.
#[derive(Debug)]
pub struct HostProcessor {
    name: String,
    table: &'static Table,
}

impl HostProcessor {
    /// Finds the events of the processor, and opens its counters once.
    ///
    /// # Errors
    ///
    /// No PMU, no permission, or a processor whose events are not known.
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

/// Counts that were recorded, in place of a processor's: at each stop the next row is added, from the first row again after the last.
#[derive(Debug)]
pub struct RecordedCounts {
    groups: &'static [&'static [Event]],
    rows: Arc<[Vec<Sum>]>,
}

impl RecordedCounts {
    /// Counts of these events. Each row has a sum for each event.
    ///
    /// # Panics
    ///
    /// If there is no row, or a row has another number of sums.
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

/// Recorded counts of a thread.
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
    /// Counts of threads that the vCPU has left.
    earlier: Vec<Sum>,
    /// The thread that runs the vCPU, and its counters.
    open: Option<(i32, Box<dyn GuestCounters>)>,
}

impl VcpuCounters {
    /// Starts the vCPU's counters: the vCPU begins to run on the calling thread, which has this number.
    ///
    /// # Errors
    ///
    /// Counters that cannot be opened, or not started.
    pub fn start(&mut self, thread: i32) -> Result<(), CountersError> {
        if self.open.as_ref().is_none_or(|(other, _)| *other != thread) {
            let counters = self.source.open()?;
            if let Some((_, mut left)) = self.open.replace((thread, counters)) {
                left.read(&mut self.earlier)?;
            }
        }
        self.open.as_mut().map_or(Ok(()), |(_, open)| open.start())
    }

    /// Stops the vCPU's counters: the vCPU has stopped.
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

/// Counters by node and vCPU.
type Vcpus = BTreeMap<(u32, u16), Arc<Mutex<VcpuCounters>>>;

/// Counters of all vCPUs of a cluster.
#[derive(Debug)]
pub struct GuestCounting {
    source: Arc<dyn CountGuests>,
    vcpus: Mutex<Vcpus>,
}

/// Takes a lock; a thread that panicked has left sums that are sound.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl GuestCounting {
    /// Counts by this processor; no vCPU is counted yet.
    pub fn new(source: Arc<dyn CountGuests>) -> Self {
        Self {
            source,
            vcpus: Mutex::default(),
        }
    }

    /// Makes counters for a vCPU, in place of those that it had in an earlier run.
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

    /// Returns the sums over all vCPUs until now.
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

    /// Makes a measurement of what was counted between two sums.
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
        // Nothing was executed: nothing can be computed.
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
