//! The section `[core]`: what differs from a built-in core.

use nodescope_plugin_pipeline::Core;

use super::base::Base;
use super::text::Text;
use crate::description::HostDescription;

/// Misses in flight that are written. Fewer are no out-of-order core's. With more, the 32 walks that are measured leave misses over.
const MISSES: std::ops::RangeInclusive<f64> = 4.0..=30.0;
/// Cycles of store forwarding that are written. Fewer are those of cores that predict the pair, more those of a shared core.
const FORWARD: std::ops::RangeInclusive<f64> = 3.0..=20.0;

impl HostDescription {
    /// Returns the built-in core on which the description is based.
    pub fn base(&self) -> Base {
        let (family, model, _) = self.identity.signature;
        Base::of(&self.identity.vendor, family, model)
    }

    /// Writes the section.
    pub fn core(&self, text: &mut Text) {
        let base = self.base();
        let (family, model, _) = self.identity.signature;
        text.section("[core]");
        let id = format!("CPUID: family {family}, model {model}");
        if base.exact {
            text.comment(&format!("{id}."));
        } else {
            text.comment(&format!("{id}. There is no description of this core. Of those that there are, this one is the nearest."));
        }
        text.quoted("base", base.name);
        text.comment("pipeline.mispredict_penalty is that of the base: it counts from the execution of the branch.");
        text.measured(
            "A mispredicted branch in all: random less predicted bits, the same code",
            self.branches.mispredict.cycles,
            &format!("{:.1} cycles", self.branches.mispredict.cycles.value),
        );
        self.load(text);
        self.store(text);
        self.translation(text, base);
        self.bandwidth(text);
        self.costs(text);
    }

    fn load(&self, text: &mut Text) {
        let [last, memory] = self.parallelism.each_ref().map(|p| p.misses);
        let most = if last.value > memory.value {
            last
        } else {
            memory
        };
        text.section("[core.load]");
        text.measured(
            "Misses in flight, latency over the shortest time between loads of up to 32 walks",
            most,
            &format!(
                "{:.1} from the last cache, {:.1} from memory",
                last.value, memory.value
            ),
        );
        if MISSES.contains(&most.value) {
            text.key("line_fills", most.value.round());
        } else {
            text.comment("line_fills is that of the base: the walks do not show it.");
        }
    }

    fn store(&self, text: &mut Text) {
        let stores = &self.stores;
        text.section("[core.store]");
        text.measured(
            "From a store's data to a load's, the store being one of two at random",
            stores.forwarding.cycles,
            &format!(
                "{:.1} cycles; always the same store: {:.1}",
                stores.forwarding.cycles.value, stores.fixed_forwarding.cycles.value
            ),
        );
        if FORWARD.contains(&stores.forwarding.cycles.value) {
            text.key("forward", stores.forwarding.cycles.value.round());
        } else {
            text.comment("forward is that of the base: the measurement is not plausible.");
        }
    }

    fn translation(&self, text: &mut Text, base: Base) {
        let tlb = &self.tlb;
        text.section("[core.tlb]");
        if let Ok(core) = Core::preset(base.name) {
            let known = core.tlb;
            entries(
                text,
                "first",
                (tlb.stated.0, tlb.first),
                (known.first_entries, known.first_ways),
            );
            entries(
                text,
                "second",
                (tlb.stated.1, tlb.second),
                (known.second_entries, known.second_ways),
            );
        }
        let second = tlb.second_hit.cycles;
        text.measured(
            "What the second level adds to a load: a line a page less neighbouring lines",
            second,
            &format!("{:.1} cycles", second.value),
        );
        text.key("second_latency", second.value.max(0.0).round());
        let walk = tlb.walk.cycles;
        text.measured(
            "What the page tables add to a load, less the second level",
            walk,
            &format!("{:.1} cycles in all", walk.value),
        );
        text.key("walk_latency", (walk.value - second.value).max(0.0).round());
        if self.huge_pages_save_nothing() {
            text.comment("Huge pages need as many translations as small ones.");
            text.key("large_pages", false);
        }
    }

    fn bandwidth(&self, text: &mut Text) {
        let clock = self.clock.core.value;
        text.section("[core.bandwidth]");
        text.comment("Loads of one core, in bytes a cycle.");
        let caches = self.topology.data_caches();
        for (place, all) in self.bandwidths.iter().enumerate() {
            let key = match caches.get(place).map(|cache| cache.level) {
                Some(2) => "second_level",
                Some(3) => "third_level",
                None => "memory",
                Some(_) => continue,
            };
            if let Some(one) = all.first() {
                let rate = format!("{:.1} GB/s", one.load.value);
                text.measured("Loads of vectors in ascending order", one.load, &rate);
                text.key(key, format!("{:.1}", (one.load.value / clock).max(0.1)));
            }
        }
    }

    fn costs(&self, text: &mut Text) {
        let stores = &self.stores;
        text.section("[core.costs]");
        let rows = [
            (
                "locked",
                stores.locked_add,
                "A locked addition, first level",
            ),
            ("pause", stores.pause, "PAUSE"),
            (
                "memory_fence",
                stores.fence,
                "MFENCE with nothing to wait for",
            ),
        ];
        for (key, reading, what) in rows {
            let cycles = format!("{:.1} cycles", reading.cycles.value);
            text.measured(what, reading.cycles, &cycles);
            text.key(key, reading.cycles.value.max(0.0).round());
        }
    }
}

/// Writes the entries of a level of the TLB that CPUID states. `seen` has them and what was measured, `known` entries and ways of the base.
fn entries(text: &mut Text, level: &str, seen: (Option<u32>, f64), known: (u32, u32)) {
    let ((stated, reach), (entries, ways)) = (seen, known);
    let measured = format!("Pages of 4 KiB that were translated: {reach:.0}.");
    match stated.filter(|stated| *stated > 0) {
        None => text.comment(&format!("CPUID tells no entries. {measured}")),
        // A level with as many ways as entries has so in every size.
        Some(stated) if entries == ways => {
            text.comment(&format!("CPUID. {measured}"));
            text.key(&format!("{level}_entries"), stated);
            text.key(&format!("{level}_ways"), stated);
        }
        Some(stated) if stated % ways == 0 => {
            text.comment(&format!("CPUID. {measured}"));
            text.key(&format!("{level}_entries"), stated);
        }
        Some(stated) => text.comment(&format!(
            "CPUID tells {stated} entries, which {ways} ways do not divide. {measured}"
        )),
    }
}
