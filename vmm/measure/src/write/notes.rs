//! What a reader of the values must know: what the machine hides, and what varies.

use crate::description::HostDescription;
use crate::timer::Reading;
use crate::topology::Relation;

/// Spread from which a value is named.
const WIDE: f64 = 0.1;
/// Pages at which small and huge pages are compared: more than a first-level TLB translates, and fewer than a second-level one.
const COMPARED: f64 = 512.0;

impl HostDescription {
    /// Returns notes on the machine as a whole, in sentences.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = vec![self.name()];
        notes.extend(self.topology.differences.iter().cloned());
        notes.extend(self.pages());
        notes.extend(self.neighbours());
        if let Some(share) = self.last_share().filter(|share| *share < 0.9) {
            notes.push(format!(
                "Working sets get {:.0} % of the last cache. Others use the rest.",
                100.0 * share
            ));
        }
        if self.stolen > 0.001 {
            notes.push(format!(
                "The hypervisor gave {:.1} % of the time to others.",
                100.0 * self.stolen
            ));
        }
        let (slowest, fastest) = self.clock.range;
        if fastest / slowest > 1.0 + WIDE {
            notes.push(format!("The clock of the core varied from {slowest:.2} to {fastest:.2} GHz, or the core was shared."));
        }
        let wide: Vec<&str> = self.wide().map(|(name, _)| name).collect();
        if !wide.is_empty() {
            notes.push(format!(
                "Runs differ by more than 10 %: {}.",
                wide.join(", ")
            ));
        }
        notes
    }

    fn name(&self) -> String {
        let identity = &self.identity;
        let (family, model, stepping) = identity.signature;
        let name = format!(
            "{} (\"{}\"), family {family}, model {model}, stepping {stepping}",
            identity.brand, identity.vendor
        );
        match identity.hypervisor.as_deref() {
            None => format!("{name}, without a hypervisor."),
            Some(hypervisor) => format!("{name}, in a virtual machine ({hypervisor})."),
        }
    }

    /// Says whether huge pages were obtained, and whether they help.
    fn pages(&self) -> Vec<String> {
        let mut notes = Vec::new();
        match self.huge_curve.huge_share {
            Some(share) if share >= 0.9 => notes.push("Linux gave huge pages.".to_owned()),
            Some(share) => notes.push(format!(
                "Linux gave huge pages for {:.0} % of the memory. Latencies have misses of TLBs.",
                100.0 * share
            )),
            None => notes.push("Linux does not tell whether it gave huge pages.".to_owned()),
        }
        if self.huge_pages_save_nothing() {
            notes.push("Huge pages need as many translations as small ones: the hypervisor backs them by small pages.".to_owned());
        }
        notes
    }

    /// Returns whether translations of huge pages cost as much as those of small ones.
    pub fn huge_pages_save_nothing(&self) -> bool {
        let added = |curve: &[crate::Point]| {
            curve
                .iter()
                .find(|p| p.size >= COMPARED)
                .map(|p| p.time.cycles.value)
        };
        let (small, huge) = (added(&self.tlb.curve), added(&self.tlb.huge_curve));
        matches!((small, huge), (Some(small), Some(huge)) if small > 1.0 && huge > 0.5 * small)
    }

    /// Says where cores are not as near to each other as Linux tells.
    fn neighbours(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for (relation, transfer) in &self.transfers {
            if transfer.together < 0.85 {
                let share = 100.0 * transfer.together;
                notes.push(format!("Two CPUs of different cores run at {share:.0} % when both work: they are threads of one core."));
            }
            let time = |reading: &Reading| reading.nanoseconds.value;
            let last = self.levels.last().map_or(0.0, |level| time(&level.time));
            let far = (last + time(&self.memory)) / 2.0;
            if *relation == Relation::OtherCore && time(&transfer.modified) > far {
                let between = time(&transfer.modified);
                notes.push(format!("A line takes {between:.0} ns between two cores: they share no last cache, although Linux tells so."));
            }
        }
        for ((_, earlier), (_, later)) in self.earlier.iter().zip(&self.transfers) {
            let (before, after) = (
                earlier.modified.nanoseconds.value,
                later.modified.nanoseconds.value,
            );
            if before.max(after) > 1.5 * before.min(after) {
                notes.push(format!("A line took {before:.0} ns between two cores first, and {after:.0} ns later: the hypervisor moved CPUs."));
            }
        }
        notes
    }

    /// Returns the share of the last cache that working sets get, at most 1.
    pub fn last_share(&self) -> Option<f64> {
        let size = self.topology.data_caches().last()?.size as f64;
        Some((self.levels.last()?.reach / size).min(1.0))
    }

    /// Returns values whose spread is above [`WIDE`], with their names.
    fn wide(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let stores = &self.stores;
        let mut spreads = vec![
            ("memory", self.memory.nanoseconds.spread),
            ("mispredict", self.branches.mispredict.nanoseconds.spread),
            ("forwarding", stores.forwarding.nanoseconds.spread),
            ("locked_add", stores.locked_add.nanoseconds.spread),
            ("tlb.second_hit", self.tlb.second_hit.nanoseconds.spread),
            ("tlb.walk", self.tlb.walk.nanoseconds.spread),
            (
                "misses_in_flight.last_cache",
                self.parallelism[0].misses.spread,
            ),
            ("misses_in_flight.memory", self.parallelism[1].misses.spread),
        ];
        for (_, transfer) in &self.transfers {
            spreads.push((
                "clean line of another core",
                transfer.clean.nanoseconds.spread,
            ));
            spreads.push((
                "modified line of another core",
                transfer.modified.nanoseconds.spread,
            ));
            spreads.push(("shared counter", transfer.shared_counter.nanoseconds.spread));
        }
        spreads.into_iter().filter(|(_, spread)| *spread > WIDE)
    }
}
