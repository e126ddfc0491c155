//! The section `[core]`: what a study has no key for.

use super::text::{Text, cycles, gigabytes};
use crate::bandwidth::{Bandwidth, vector};
use crate::description::HostDescription;
use crate::levels::Point;
use crate::prefetch::Stream;
use crate::timer::Reading;
use crate::topology::Relation;

impl HostDescription {
    /// Writes the section.
    pub fn core(&self, text: &mut Text) {
        text.section("[core]");
        let mispredict = self.branches.mispredict;
        text.measured(
            "A mispredicted branch: random less predicted bits, the same code",
            mispredict.cycles,
            "",
        );
        text.quoted("mispredict", &cycles(mispredict.cycles.value));
        let load = self.levels.first().map(|level| level.time);
        if let Some(load) = load {
            text.measured("Load to use of the first level", load.cycles, "");
            text.quoted("load", &cycles(load.cycles.value));
        }
        let misses = self
            .parallelism
            .iter()
            .map(|p| p.misses)
            .max_by(|a, b| a.value.total_cmp(&b.value));
        if let Some(misses) = misses {
            text.measured("The greater of misses_in_flight", misses, "");
            text.key("line_fill_buffers", misses.value.round());
        }
        text.comment("reorder_buffer is not measured.");
        self.store_keys(text);
        self.flight(text);
        self.translation(text);
        self.streams(text);
        self.transfer_keys(text);
        self.bandwidth_keys(text);
        self.curves(text);
    }

    fn store_keys(&self, text: &mut Text) {
        let stores = &self.stores;
        let rows = [
            (
                "store_forwarding",
                stores.forwarding,
                "From a store's data to a load's, the store being one of two at random",
            ),
            (
                "store_forwarding_fixed",
                stores.fixed_forwarding,
                "The same with one store, whose forwarding some cores predict",
            ),
            (
                "store",
                stores.store,
                "From one store to the next, first level",
            ),
            (
                "store_second_level",
                stores.second_level_store,
                "From one store to the next, a line each, second level, ascending",
            ),
            (
                "locked_add",
                stores.locked_add,
                "A locked addition, first level",
            ),
            ("fence", stores.fence, "MFENCE with nothing to wait for"),
            ("pause", stores.pause, "PAUSE"),
        ];
        for (key, reading, method) in rows {
            text.measured(method, reading.cycles, &nanoseconds(reading));
            text.quoted(key, &cycles(reading.cycles.value));
        }
    }

    fn flight(&self, text: &mut Text) {
        text.section("[core.misses_in_flight]");
        for (name, parallelism) in ["last_cache", "memory"].into_iter().zip(&self.parallelism) {
            text.measured(
                "Latency over the shortest time between loads of up to 32 walks",
                parallelism.misses,
                "",
            );
            text.key(name, format!("{:.1}", parallelism.misses.value));
            let pairs = parallelism
                .steps
                .iter()
                .map(|step| format!("[{}, {:.2}]", step.walks, step.time.cycles.value));
            text.comment("Number of walks, and cycles from one load to the next.");
            text.key(&format!("{name}_walks"), list(pairs));
        }
    }

    fn translation(&self, text: &mut Text) {
        let tlb = &self.tlb;
        text.section("[core.tlb]");
        let stated = |entries: Option<u32>| {
            entries.map_or_else(
                || "CPUID does not tell".to_owned(),
                |n| format!("CPUID: {n}"),
            )
        };
        text.comment(&format!(
            "Pages of 4 KiB that the first level translates. {}.",
            stated(tlb.stated.0)
        ));
        text.key("first", tlb.first.round());
        text.comment(&format!(
            "Pages of 4 KiB that both levels translate. {}.",
            stated(tlb.stated.1)
        ));
        text.key("second", tlb.second.round());
        for (key, reading, what) in [
            ("second_hit", tlb.second_hit, "second level"),
            ("walk", tlb.walk, "page tables"),
        ] {
            let method =
                format!("What the {what} add to a load: a line a page less neighbouring lines");
            text.measured(
                &method.replace("second level add", "second level adds"),
                reading.cycles,
                &nanoseconds(reading),
            );
            text.quoted(key, &cycles(reading.cycles.value));
        }
    }

    fn streams(&self, text: &mut Text) {
        text.section("[core.prefetch]");
        text.comment("Stride in lines, and cycles a dependent load. What is faster than the load to use is the work of prefetchers.");
        let last = self
            .levels
            .last()
            .map_or(0.0, |level| level.time.cycles.value);
        let places = [
            ("last_cache", last),
            ("memory", self.far_memory.cycles.value),
        ];
        for ((name, random), streams) in places.into_iter().zip(&self.streams) {
            let pair =
                |stream: &Stream| format!("[{}, {:.1}]", stream.stride, stream.time.cycles.value);
            text.comment(&format!("In random order {random:.1} cycles."));
            text.key(name, list(streams.iter().map(pair)));
        }
    }

    fn transfer_keys(&self, text: &mut Text) {
        for (relation, transfer) in &self.transfers {
            text.section(match relation {
                Relation::OtherCore => "[core.transfer.other_core]",
                Relation::OtherGroup => "[core.transfer.other_group]",
                Relation::OtherSocket => "[core.transfer.other_socket]",
            });
            let rows = [
                (
                    "one_way",
                    transfer.one_way,
                    "A word that two cores write in turn: half of a round trip",
                ),
                (
                    "shared_counter",
                    transfer.shared_counter,
                    "From one locked addition to the next, two cores at a time, median",
                ),
            ];
            for (key, reading, method) in rows {
                text.measured(method, reading.nanoseconds, &nanoseconds(reading));
                text.quoted(key, &cycles(reading.cycles.value));
            }
            text.comment("Rate of independent additions while the other core works, as a share of the rate alone, median.");
            text.key("together", format!("{:.2}", transfer.together));
        }
    }

    fn bandwidth_keys(&self, text: &mut Text) {
        let caches = self.topology.data_caches();
        for (place, all) in self.bandwidths.iter().enumerate() {
            let name = caches
                .get(place)
                .map_or_else(|| "memory".to_owned(), |cache| format!("l{}", cache.level));
            for (index, bandwidth) in all.iter().enumerate() {
                let cores = if index == 0 { "one_core" } else { "all_cores" };
                text.section(&format!("[core.bandwidth.{name}.{cores}]"));
                rates(text, bandwidth);
            }
        }
    }

    /// Writes the latency curves: a size in KiB, and cycles.
    fn curves(&self, text: &mut Text) {
        text.section("[core.curves]");
        text.comment("Working set in KiB, and cycles of a dependent load in random order.");
        let rows = [
            (
                "huge_pages",
                &self.huge_curve,
                "Pages of 2 MiB; shared caches are loaded anew before each run.",
            ),
            (
                "small_pages",
                &self.small_curve,
                "The same with pages of 4 KiB.",
            ),
            (
                "slow",
                &self.slow_curve,
                "Pages of 2 MiB; shared caches are not loaded anew, so that other cores take lines away.",
            ),
        ];
        for (key, curve, comment) in rows {
            let pair = |p: &Point| format!("[{:.0}, {:.1}]", p.size / 1024.0, p.time.cycles.value);
            text.comment(comment);
            text.key(key, list(curve.points.iter().map(pair)));
        }
        text.comment("Pages of 4 KiB with a line each, and cycles that translation adds; then lines as far apart in huge pages.");
        for (key, curve) in [
            ("translation_small", &self.tlb.curve),
            ("translation_huge", &self.tlb.huge_curve),
        ] {
            let pair = |p: &Point| format!("[{:.0}, {:.1}]", p.size, p.time.cycles.value);
            text.key(key, list(curve.iter().map(pair)));
        }
    }
}

/// Writes the rates of a place.
fn rates(text: &mut Text, bandwidth: &Bandwidth) {
    let Bandwidth {
        cores, working_set, ..
    } = bandwidth;
    let vector = vector();
    text.comment(&format!(
        "{cores} cores at a time, {} KiB each, vectors of {vector} bytes.",
        working_set >> 10
    ));
    let rows = [
        ("load", bandwidth.load, "Bytes read"),
        ("store", bandwidth.store, "Bytes written"),
        ("copy", bandwidth.copy, "Bytes read and bytes written"),
    ];
    for (key, rate, what) in rows {
        text.measured(what, rate, "");
        text.quoted(key, &gigabytes(rate.value));
    }
}

fn nanoseconds(reading: Reading) -> String {
    format!("{:.2} ns", reading.nanoseconds.value)
}

/// Returns a TOML list with up to eight elements a line.
fn list(elements: impl Iterator<Item = String>) -> String {
    let elements: Vec<String> = elements.collect();
    let lines: Vec<String> = elements
        .chunks(8)
        .map(|line| format!("    {},\n", line.join(", ")))
        .collect();
    format!("[\n{}]", lines.concat())
}
