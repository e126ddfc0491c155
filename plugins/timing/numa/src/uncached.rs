//! Memory without caches: every reference goes to its home.

use nodescope_plugin_api::{
    Charges, Context, Counters, Hits, L0Geometry, L0Update, Ledger, MemRef, MemoryModel,
    MemoryTimingModel, MissRef, Outcome, Permission, Privilege, Source, StallTerm, Statistic, Term,
    VcpuPlace,
};

use crate::{Numa, NumaConfigError};

const EVENTS: [&str; 2] = ["memory.local", "memory.remote"];

/// A node without caches: reads, writes and fetches all cost the latency of main memory, so that no L0 filter cache may answer them.
#[derive(Debug)]
pub struct Uncached {
    numa: Numa,
    sockets: Vec<u16>,
    line_shift: u8,
    ledger: Ledger,
}

impl Uncached {
    /// Makes a memory behind the vCPUs at `places`. `line` is the size in bytes at which the engine splits references.
    pub fn new(numa: Numa, places: &[VcpuPlace], line: u32) -> Result<Uncached, NumaConfigError> {
        if !line.is_power_of_two() || !(32..=4096).contains(&line) {
            return Err(NumaConfigError::Line { line });
        }
        numa.serves(places)?;
        Ok(Uncached {
            numa,
            sockets: places.iter().map(|place| place.socket).collect(),
            line_shift: line.trailing_zeros() as u8,
            ledger: Ledger::new(EVENTS.len(), places.len()),
        })
    }
}

impl MemoryModel for Uncached {
    fn l0_geometry(&self) -> L0Geometry {
        L0Geometry {
            line_shift: self.line_shift,
            data_slots: 0,
            instruction_slots: 0,
            data_ways: 1,
            instruction_ways: 1,
            page_sizes: false,
        }
    }

    /// # Panics
    /// If the reference names a vCPU that is not in the `places` of [`Uncached::new`].
    fn reference(
        &mut self,
        _hits: Hits<'_>,
        reference: &MemRef,
        _updates: &mut Vec<L0Update>,
    ) -> Outcome {
        let timing = self.numa.request(&MissRef {
            socket: self.sockets[usize::from(reference.vcpu)],
            vcpu: reference.vcpu,
            line: reference.physical >> self.line_shift << self.line_shift,
            write_back: false,
            now: reference.now,
        });
        let account = self.ledger.select(reference);
        self.ledger
            .charge(account, usize::from(!timing.local), timing.latency.into());
        let (term, source) = if timing.local {
            (StallTerm::LocalMemory, Source::LocalMemory)
        } else {
            (StallTerm::RemoteMemory, Source::RemoteMemory)
        };
        self.ledger.charges.answer(source);
        self.ledger.charges.stall(term, timing.latency.into());
        Outcome::new(timing.latency, Permission::None, None)
    }

    fn take_charges(&mut self) -> Charges {
        std::mem::take(&mut self.ledger.charges)
    }

    /// Does nothing, since the L0 filter cache answers no reference.
    fn modified(&mut self, _vcpu: u16, _lines: &[u64]) {}

    fn reset_statistics(&mut self) {
        self.ledger.clear();
    }

    fn statistics(&self, _counted: &[(u16, Context, Privilege, Counters)]) -> Vec<Statistic> {
        let mut statistics = Vec::new();
        for ((vcpu, context, privilege), tallies) in self.ledger.accounts() {
            for (event, tally) in EVENTS.iter().zip(tallies) {
                if tally.count != 0 {
                    statistics.push(Statistic {
                        vcpu,
                        context,
                        privilege,
                        event: (*event).to_owned(),
                        term: Term::Memory,
                        count: tally.count,
                        latency: tally.latency(),
                        cycles: tally.cycles,
                    });
                }
            }
        }
        statistics
    }
}
