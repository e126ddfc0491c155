//! Writes a description that a study can name as `node.model`.

mod base;
mod core;
mod notes;
mod text;

use crate::bandwidth::Bandwidth;
use crate::description::HostDescription;
use crate::levels::reach;
use crate::timer::Reading;
use crate::topology::{Cache, CacheKind, Relation};
use text::{Text, gigabytes, whole_cycles};

/// Prefetchers of the second level in the built-in descriptions, of AMD and of others.
const PREFETCH: [&str; 2] = [
    r#"["stride:entries=64,distance=8,degree=2,pages=2,accuracy=60", "stream:streams=32,distance=20,degree=2,train=2,pages=2,accuracy=60", "up-down:accuracy=60"]"#,
    r#"["stride:entries=64,distance=8,degree=2", "stream:streams=32,distance=20,degree=2,train=2", "adjacent-line"]"#,
];
/// Share of the last cache below which a virtual machine is taken to have a part of it.
const WHOLE: f64 = 0.9;
/// Latency of another socket's memory as a multiple of the own one's: 147.5 of 80 ns on Skylake-SP (constants of Intel's top-down method).
const REMOTE: f64 = 1.8;

impl HostDescription {
    /// Returns a TOML file that a study can name as `node.model`: the sections `[node]`, `[core]`, `[caches]` and `[memory]` of a study, with
    /// what was measured. Comments give method and spread of each value.
    pub fn to_toml(&self) -> String {
        let mut text = Text::default();
        self.head(&mut text);
        self.node(&mut text);
        self.core(&mut text);
        self.caches(&mut text);
        self.coherence(&mut text);
        self.memory_section(&mut text);
        text.finish()
    }

    fn head(&self, text: &mut Text) {
        text.comment("Description of a node. A study uses it by node.model = \"PATH\", and may override single keys.");
        text.comment("Times are lower deciles, rates upper deciles of the runs. Spread: distance of the quartiles, as a share of the value.");
        for note in self.notes() {
            text.comment(&format!("- {note}"));
        }
    }

    fn node(&self, text: &mut Text) {
        let topology = &self.topology;
        let clock = &self.clock;
        text.section("[node]");
        text.comment(&format!(
            "Sockets, cores and memory are the study's. This machine: sockets = {}, cores = {}, threads = {}, {} MiB.",
            topology.sockets(),
            topology.cores(),
            topology.threads(),
            self.identity.memory >> 20
        ));
        let range = format!(
            "96 % of the runs: {:.3} to {:.3} GHz",
            clock.range.0, clock.range.1
        );
        text.measured("Dependent additions by processor time", clock.core, &range);
        text.quoted(
            "frequency",
            &format!("{:.0} MHz", clock.core.value * 1000.0),
        );
        let brand = &self.identity.brand;
        if !brand.is_empty() {
            text.comment("CPUID. A hypervisor may have changed it.");
            text.quoted("brand", brand.get(..47).unwrap_or(brand));
        }
    }

    fn caches(&self, text: &mut Text) {
        text.section("[caches]");
        let line = self.topology.caches.first().map_or(64, |cache| cache.line);
        text.comment("Sizes, ways and sharing are those of CPUID and Linux.");
        text.quoted("line", &format!("{line} B"));
        let mut data = 0;
        for cache in &self.topology.caches {
            text.section("[[caches.level]]");
            if cache.kind == CacheKind::Instruction {
                self.cache(text, cache, 0);
                if let Some(way) = self.way_out(0) {
                    text.comment("That of the data cache.");
                    text.key("latency.fetch_miss", whole_cycles(way));
                }
            } else {
                self.cache(text, cache, data);
                self.cache_times(text, data);
                data += 1;
            }
        }
    }

    /// Writes what CPUID and Linux tell of a cache. `index` is that of the data cache of the same level, counted from the first.
    fn cache(&self, text: &mut Text, cache: &Cache, index: usize) {
        text.key("level", cache.level);
        if cache.level == 1 {
            text.quoted(
                "kind",
                match cache.kind {
                    CacheKind::Instruction => "instruction",
                    CacheKind::Data | CacheKind::Unified => "data",
                },
            );
        }
        let part = self
            .part_of_last(cache)
            .filter(|_| index + 1 == self.levels.len());
        if let Some(part) = part {
            let whole = cache.size >> 10;
            text.comment(&format!(
                "The part that this virtual machine gets. The whole cache: size = \"{whole} KiB\"."
            ));
            text.quoted("size", &bytes(part));
        } else {
            text.quoted("size", &bytes(cache.size));
        }
        text.key("ways", cache.ways);
        let sharers = self.topology.sharers(cache);
        let all = self.topology.cores();
        let shared_by = match sharers {
            // On a single core, Linux does not tell a shared cache from a private one. The third level is shared on all servers.
            1 if all > 1 || cache.level < 3 => "core".to_owned(),
            some if some < all => format!("{some} cores"),
            _ => "socket".to_owned(),
        };
        text.quoted("shared_by", &shared_by);
        if cache.level > 1 {
            self.inclusion(text, cache);
        }
        if cache.level == 2 {
            text.comment("Not measured: prefetchers of the built-in descriptions.");
            let [amd, others] = PREFETCH;
            let zen = self.base().name.starts_with("zen");
            text.key("prefetch", if zen { amd } else { others });
        }
    }

    /// Returns the bytes of the last cache that a virtual machine gets, down to whole ways x lines; `None` if it gets all, or more than that
    /// is not known.
    fn part_of_last(&self, cache: &Cache) -> Option<u64> {
        self.identity.hypervisor.as_ref()?;
        self.last_share().filter(|share| *share < WHOLE)?;
        let caches = self.topology.data_caches();
        let inner = caches.iter().rev().nth(1).map_or(0, |inner| inner.size);
        // The working set that is served lies in the inner level, too, if the last one has other lines than that.
        let others = if self.is_exclusive(cache) { inner } else { 0 };
        let served = (self.levels.last()?.reach as u64).saturating_sub(others);
        let step = u64::from(cache.ways) * u64::from(cache.line);
        let part = served / step * step;
        (part > inner).then_some(part)
    }

    fn is_exclusive(&self, cache: &Cache) -> bool {
        !cache.inclusive && cache.level == 3 && self.base().has_victim_third_level()
    }

    fn inclusion(&self, text: &mut Text, cache: &Cache) {
        let inclusion = if cache.inclusive {
            text.comment("CPUID.");
            "inclusive"
        } else if self.is_exclusive(cache) {
            text.comment("Not measured. It takes the lines that the second level replaces (optimization guides of AMD and Intel).");
            "exclusive"
        } else {
            text.comment(
                "CPUID says that it is not inclusive. Whether it is exclusive is not measured.",
            );
            "non_inclusive"
        };
        text.quoted("inclusion", inclusion);
    }

    /// Returns the cycles from the data cache `index` to the next one; `None` for the last one.
    fn way_out(&self, index: usize) -> Option<f64> {
        let outer = self.levels.get(index + 1)?;
        Some(outer.time.cycles.value - self.levels.get(index)?.time.cycles.value)
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
        if let Some(way) = self.way_out(index) {
            text.comment(
                "Load to use of the next level less that of this one. Only reads are measured.",
            );
            text.key("latency.read_miss", whole_cycles(way));
            text.key("latency.write_miss", whole_cycles(way));
            if index > 0 {
                text.key("latency.fetch_miss", whole_cycles(way));
            }
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
        let local = (all.value - last).max(0.0);
        text.quoted("local", &format!("{local:.1} ns"));
        text.comment(&format!(
            "Not measured: {REMOTE} times the local latency in all, as on Skylake-SP."
        ));
        text.quoted(
            "remote",
            &format!("{:.1} ns", (REMOTE * all.value - last).max(local)),
        );
        if let Some(bandwidth) = self.bandwidths.last().and_then(|all| all.last()) {
            let Bandwidth { cores, load, .. } = bandwidth;
            text.measured(&format!("Loads of {cores} cores at a time"), *load, "");
            let socket = load.value / self.topology.sockets() as f64;
            text.quoted("local_bandwidth", &gigabytes(socket));
        }
    }
}

/// Returns a size in KiB, or in bytes where it has no whole KiB.
fn bytes(size: u64) -> String {
    match size % 1024 {
        0 => format!("{} KiB", size >> 10),
        _ => format!("{size} B"),
    }
}

fn percent(part: f64, size: u64) -> f64 {
    100.0 * part / size as f64
}

#[cfg(test)]
mod tests {
    use nodescope_study::Study;

    use crate::description::{HostDescription, example};

    /// Returns the study of a machine with this description as its node.
    fn study(host: &HostDescription, node: &str) -> Study {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("mine.toml"), host.to_toml()).unwrap();
        let text = format!(
            "[cluster]\nnodes = 1\n[node]\nmodel = \"mine.toml\"\n{node}[job]\ncommand = \"/bin/true\"\n[[window]]\nmeasure = \"until closed\"\nopen = \"guest\"\n"
        );
        let study = Study::parse(&folder.path().join("study.toml"), &text);
        study.unwrap_or_else(|problems| panic!("{problems}\n{}", host.to_toml()))
    }

    #[test]
    fn a_study_takes_the_description_as_its_node() {
        for node in ["", "cores = 2\n", "sockets = 2\ncores = 4\n"] {
            let study = study(&example(), node);
            assert_eq!(study.topology.tsc_hz, 3_500_000_000);
            assert_eq!(study.topology.brand, "A \"processor\"");
            let levels = &study.caches.levels;
            assert_eq!(levels.len(), 3);
            assert_eq!(levels[0].latency.read_miss, 10);
            assert_eq!(levels[1].latency.write_miss, 36);
            assert!(study.windows[0].models.core.is_some());
        }
    }

    #[test]
    fn the_core_has_what_was_measured() {
        let study = study(&example(), "");
        let models = &study.windows[0].models;
        let text = &models.core.as_ref().unwrap().description;
        let core = nodescope_plugin_pipeline::Core::from_toml(text).unwrap();
        let base = nodescope_plugin_pipeline::Core::preset("zen4").unwrap();
        assert_eq!(core.load.line_fills, 22);
        assert_eq!(core.store.forward, 7);
        assert_eq!((core.tlb.first_entries, core.tlb.first_ways), (72, 72));
        assert_eq!((core.tlb.second_latency, core.tlb.walk_latency), (7, 53));
        assert_eq!(
            (core.costs.locked, core.costs.pause, core.costs.memory_fence),
            (7, 90, 58)
        );
        // 30 GB/s at 3.5 GHz: 8.6 bytes a cycle.
        assert_eq!(
            core.bandwidth.memory,
            (64.0 * 256.0 / 8.6_f64).round() as u32
        );
        assert_eq!(core.pipeline, base.pipeline);
    }

    #[test]
    fn the_description_is_short_and_has_the_keys_of_a_study() {
        let text = example().to_toml();
        assert!(text.lines().count() < 150, "{text}");
        let table: toml::Table = text.parse().unwrap();
        for key in ["sockets", "cores", "threads", "memory"] {
            assert!(table["node"].get(key).is_none(), "{key}");
        }
        let levels = table["caches"]["level"].as_array().unwrap();
        assert_eq!(levels.len(), 4);
        assert_eq!(
            levels[1]["latency"]["fetch_miss"].as_str(),
            Some("10 cycles")
        );
        assert_eq!(levels[3]["shared_by"].as_str(), Some("socket"));
        assert_eq!(levels[3]["size"].as_str(), Some("32768 KiB"));
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
    fn values_that_are_not_plausible_stay_those_of_the_base() {
        let mut host = example();
        host.stores.forwarding = host.stores.fixed_forwarding;
        host.parallelism[1].misses.value = 31.5;
        host.tlb.stated = (Some(72), Some(3000));
        let table: toml::Table = host.to_toml().parse().unwrap();
        let core = &table["core"];
        assert!(core["store"].get("forward").is_none());
        assert!(core["load"].get("line_fills").is_none());
        assert!(core["tlb"].get("second_entries").is_some());
        host.tlb.stated = (None, Some(3001));
        let table: toml::Table = host.to_toml().parse().unwrap();
        assert!(table["core"]["tlb"].get("first_entries").is_none());
        assert!(table["core"]["tlb"].get("second_entries").is_none());
        study(&host, "");
    }

    #[test]
    fn a_virtual_machine_has_the_part_of_the_last_cache_that_it_gets() {
        let mut host = example();
        host.levels[2].reach = 8_388_900.0;
        let size = |host: &HostDescription| {
            let study = study(host, "cores = 2\n");
            study.caches.levels[2].size
        };
        // Less the second level, whose lines an exclusive cache does not have, and down to 16 lines of 64 bytes.
        assert_eq!(size(&host), (8 << 20) - (1 << 20));
        assert!(host.to_toml().contains("size = \"32768 KiB\""));
        host.identity.hypervisor = None;
        assert_eq!(size(&host), 32 << 20);
    }

    #[test]
    fn processors_of_all_vendors_have_a_base() {
        for (vendor, signature) in [
            ("GenuineIntel", (6, 0x8f, 8)),
            ("GenuineIntel", (6, 0x3f, 2)),
            ("AuthenticAMD", (0x17, 0x31, 0)),
            ("AuthenticAMD", (0x1a, 2, 1)),
            ("SomethingNew", (7, 1, 1)),
        ] {
            let mut host = example();
            host.identity.vendor = vendor.to_owned();
            host.identity.signature = signature;
            study(&host, "cores = 4\n");
            let nearest = host.to_toml().contains("this one is the nearest");
            assert_eq!(nearest, !host.base().exact, "{vendor}");
        }
    }

    #[test]
    fn notes_say_what_a_virtual_machine_hides() {
        let mut host = example();
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
