//! Writes a description as a fragment of a study.

mod core;
mod notes;
mod text;

use crate::bandwidth::Bandwidth;
use crate::description::HostDescription;
use crate::levels::reach;
use crate::timer::Reading;
use crate::topology::{Cache, CacheKind, Relation};
use text::{Text, gigabytes, whole_cycles};

impl HostDescription {
    /// Returns a TOML file with the sections `[node]`, `[caches]` and `[memory]` of a study (`vmm/study/STUDY.md`), and a section `[core]` with
    /// what a study has no key for. Comments give unit, method and spread of each value.
    pub fn to_toml(&self) -> String {
        let mut text = Text::default();
        self.head(&mut text);
        self.node(&mut text);
        self.caches(&mut text);
        self.coherence(&mut text);
        self.memory_section(&mut text);
        self.core(&mut text);
        text.finish()
    }

    fn head(&self, text: &mut Text) {
        text.comment("The machine on which this was measured. Spread: distance of the quartiles of repeated runs, as a share of the value.");
        text.comment("Times are lower deciles, rates upper deciles of the runs. vmm/measure/README.md describes the methods.");
        for note in self.notes() {
            text.comment(&format!("- {note}"));
        }
    }

    fn node(&self, text: &mut Text) {
        let topology = &self.topology;
        let clock = &self.clock;
        text.section("[node]");
        text.comment("Linux, /sys/devices/system/cpu.");
        text.key("sockets", topology.sockets());
        text.key("cores", topology.cores());
        text.key("threads", topology.threads());
        text.comment("Linux, MemTotal, down to whole 2 MiB of a socket.");
        let unit = topology.sockets() as u64 * 2;
        text.quoted(
            "memory",
            &format!("{} MiB", (self.identity.memory >> 20) / unit * unit),
        );
        let range = format!(
            "96 % of the runs: {:.3} to {:.3} GHz",
            clock.range.0, clock.range.1
        );
        text.measured(
            "Clock of the core: dependent additions by processor time",
            clock.core,
            &range,
        );
        text.comment(&format!(
            "The time-stamp counter runs at {:.4} GHz.",
            clock.tsc
        ));
        text.quoted(
            "frequency",
            &format!("{:.0} MHz", clock.core.value * 1000.0),
        );
        text.comment("CPUID. A hypervisor may have changed it.");
        text.quoted(
            "brand",
            self.identity
                .brand
                .get(..47)
                .unwrap_or(&self.identity.brand),
        );
    }

    fn caches(&self, text: &mut Text) {
        text.section("[caches]");
        let line = self.topology.caches.first().map_or(64, |cache| cache.line);
        text.comment("CPUID.");
        text.quoted("line", &format!("{line} B"));
        let mut data = 0;
        for cache in &self.topology.caches {
            text.section("[[caches.level]]");
            self.cache(text, cache);
            if cache.kind != CacheKind::Instruction {
                self.cache_times(text, data);
                data += 1;
            }
        }
    }

    /// Writes what CPUID and Linux tell of a cache.
    fn cache(&self, text: &mut Text, cache: &Cache) {
        text.key("level", cache.level);
        let kind = match cache.kind {
            CacheKind::Data => "data",
            CacheKind::Instruction => "instruction",
            CacheKind::Unified => "unified",
        };
        text.quoted("kind", kind);
        text.comment("CPUID and Linux.");
        text.quoted("size", &format!("{} KiB", cache.size >> 10));
        text.key("ways", cache.ways);
        let sharers = self.topology.sharers(cache);
        let shared_by = match sharers {
            1 => "core".to_owned(),
            all if all == self.topology.cores() => "socket".to_owned(),
            some => format!("{some} cores"),
        };
        text.quoted("shared_by", &shared_by);
        if cache.level > 1 {
            self.inclusion(text, cache);
        }
    }

    fn inclusion(&self, text: &mut Text, cache: &Cache) {
        let zen = self.identity.vendor == "AuthenticAMD" && self.identity.signature.0 >= 0x17;
        let inclusion = if cache.inclusive {
            text.comment("CPUID.");
            "inclusive"
        } else if zen && cache.level == 3 {
            text.comment("Not measured. The third level of Zen cores takes the lines that the second replaces (AMD's optimization guides).");
            "exclusive"
        } else {
            text.comment(
                "CPUID says that it is not inclusive. Whether it is exclusive is not measured.",
            );
            "non_inclusive"
        };
        text.quoted("inclusion", inclusion);
    }

    /// Writes latencies of the data cache `index`, counted from the first level.
    fn cache_times(&self, text: &mut Text, index: usize) {
        let level = &self.levels[index];
        let size = self.topology.data_caches()[index].size;
        let (load, time) = (level.time.cycles, level.time.nanoseconds.value);
        text.measured(
            "Load to use",
            load,
            &format!("{:.1} cycles, {time:.2} ns", load.value),
        );
        text.comment(&format!(
            "Serves up to {:.0} KiB in random order: {:.0} % of its size.",
            level.reach / 1024.0,
            percent(level.reach, size)
        ));
        if let (Some(slow), true) = (self.slow_reach(index), index + 1 == self.levels.len()) {
            text.comment(&format!(
                "Serves up to {:.0} KiB, {:.0} %, to one dependent load after the other.",
                slow / 1024.0,
                percent(slow, size)
            ));
        }
        if let Some(outer) = self.levels.get(index + 1) {
            let way = outer.time.cycles.value - load.value;
            text.comment("Load to use of the next level less that of this one.");
            text.key("latency.read_miss", whole_cycles(way));
        } else if let Some((_, transfer)) = self
            .transfers
            .iter()
            .find(|(relation, _)| *relation == Relation::OtherCore)
        {
            text.measured(
                "A locked addition to a line that another core also has, less one to an own line",
                transfer.upgrade.cycles,
                "",
            );
            text.key(
                "latency.upgrade",
                whole_cycles(transfer.upgrade.cycles.value),
            );
        }
    }

    /// Returns what the last cache serves to a slow walk in bytes, if it is shared.
    fn slow_reach(&self, index: usize) -> Option<f64> {
        let points = &self.slow_curve.points;
        let time = |reading: &Reading| reading.cycles.value;
        let outer = time(&self.far_memory);
        (!points.is_empty()).then(|| reach(points, time(&self.levels[index].time), outer))
    }

    fn coherence(&self, text: &mut Text) {
        let Some(last) = self.levels.last().filter(|_| !self.transfers.is_empty()) else {
            return;
        };
        text.section("[caches.coherence]");
        text.comment("Beyond the load to use of the last level.");
        for (relation, transfer) in &self.transfers {
            let name = match relation {
                Relation::OtherCore => "other_core",
                Relation::OtherGroup => "other_group",
                Relation::OtherSocket => "other_socket",
            };
            for (key, reading, did) in [
                ("from", transfer.clean, "read"),
                ("from_modified", transfer.modified, "written"),
            ] {
                let beyond = reading.cycles.value - last.time.cycles.value;
                let time = format!(
                    "{:.0} cycles, {:.1} ns in all",
                    reading.cycles.value, reading.nanoseconds.value
                );
                text.measured(
                    &format!("Dependent loads of lines that the other core has {did}"),
                    reading.cycles,
                    &time,
                );
                text.key(&format!("{key}.{name}"), whole_cycles(beyond));
            }
        }
        if let Some((_, transfer)) = self
            .transfers
            .iter()
            .find(|(relation, _)| *relation != Relation::OtherCore)
        {
            text.measured(
                "A locked addition to a line that another core also has, less one to an own line",
                transfer.upgrade.cycles,
                "",
            );
            text.key("upgrade", whole_cycles(transfer.upgrade.cycles.value));
        }
    }

    fn memory_section(&self, text: &mut Text) {
        text.section("[memory]");
        let (all, last) = (
            self.memory.nanoseconds,
            self.levels
                .last()
                .map_or(0.0, |level| level.time.nanoseconds.value),
        );
        let what = format!(
            "{:.1} ns, {:.0} cycles in all",
            all.value, self.memory.cycles.value
        );
        text.measured(
            "Dependent loads of flushed lines, less load to use of the last level",
            all,
            &what,
        );
        text.quoted("local", &format!("{:.1} ns", (all.value - last).max(0.0)));
        if let Some(bandwidth) = self.bandwidths.last().and_then(|all| all.last()) {
            let Bandwidth { cores, load, .. } = bandwidth;
            text.measured(&format!("Loads of {cores} cores at a time"), *load, "");
            let socket = load.value / self.topology.sockets() as f64;
            text.quoted("local_bandwidth", &gigabytes(socket));
        }
    }
}

fn percent(part: f64, size: u64) -> f64 {
    100.0 * part / size as f64
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_description_is_toml_with_the_keys_of_a_study() {
        let text = crate::description::example().to_toml();
        let table: toml::Table = text.parse().unwrap();
        assert_eq!(table["node"]["frequency"].as_str(), Some("3500 MHz"));
        assert_eq!(table["node"]["brand"].as_str(), Some("A \"processor\""));
        let levels = table["caches"]["level"].as_array().unwrap();
        assert_eq!(levels.len(), 4);
        assert_eq!(
            levels[0]["latency"]["read_miss"].as_str(),
            Some("10 cycles")
        );
        assert_eq!(levels[1]["kind"].as_str(), Some("instruction"));
        assert_eq!(
            levels[2]["latency"]["read_miss"].as_str(),
            Some("36 cycles")
        );
        assert_eq!(levels[3]["shared_by"].as_str(), Some("socket"));
        assert_eq!(levels[3]["inclusion"].as_str(), Some("exclusive"));
        let coherence = &table["caches"]["coherence"];
        assert_eq!(coherence["from"]["other_core"].as_str(), Some("40 cycles"));
        assert_eq!(
            coherence["from_modified"]["other_core"].as_str(),
            Some("50 cycles")
        );
        assert_eq!(table["memory"]["local"].as_str(), Some("100.0 ns"));
        assert_eq!(
            table["memory"]["local_bandwidth"].as_str(),
            Some("60.0 GB/s")
        );
    }

    #[test]
    fn the_core_has_values_with_units() {
        let table: toml::Table = crate::description::example().to_toml().parse().unwrap();
        let core = &table["core"];
        assert_eq!(core["mispredict"].as_str(), Some("18.0 cycles"));
        assert_eq!(core["line_fill_buffers"].as_integer(), Some(22));
        assert_eq!(core["tlb"]["first"].as_integer(), Some(72));
        assert_eq!(
            core["bandwidth"]["l3"]["all_cores"]["load"].as_str(),
            Some("60.0 GB/s")
        );
        assert_eq!(core["prefetch"]["memory"][1][0].as_integer(), Some(-1));
        assert!(core.get("reorder_buffer").is_none());
    }

    #[test]
    fn notes_say_what_a_virtual_machine_hides() {
        let mut host = crate::description::example();
        assert!(!host.to_toml().contains("share no last cache"));
        host.transfers[0].1.modified.nanoseconds.value = 120.0;
        host.transfers[0].1.together = 0.6;
        host.earlier[0].1.modified.nanoseconds.value = 30.0;
        host.levels[2].reach = 8388608.0;
        let text = host.to_toml();
        for part in [
            "share no last cache",
            "threads of one core",
            "get 25 % of the last cache",
            "moved CPUs",
            "in a virtual machine",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
