//! This host's caches for a cache model: the host's description of the caches, and timed loads.

use std::path::Path;

use nodescope_plugin_api::VcpuPlace;
use nodescope_plugin_cache::{CacheConfig, CacheModel, FlatMemory, LevelConfig};
use serde_json::{Value, json};

use crate::Failure;
use crate::comparison::number;
use crate::ring::{LINE, Ring};
use crate::time::median;

/// Folder in which Linux describes the caches of the first processor.
const CACHES: &str = "/sys/devices/system/cpu/cpu0/cache";
/// A level is measured with a ring of `OVER` times the size of the next inner level, so that the inner level serves few loads. The ring has
/// at most three quarters of the level's own size. The first level is measured with a ring of half its size.
const OVER: u64 = 3;
/// Factor between the sizes of successive rings in a search.
const STEP: f64 = std::f64::consts::SQRT_2;

/// A cache as Linux describes it; size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Described {
    level: u32,
    instruction: bool,
    size: u64,
    ways: u32,
}

/// A level of data caches that is modelled.
#[derive(Clone, Debug)]
struct Level {
    described: Described,
    /// Bytes of the level that loads can use. In a virtual machine the described size may be larger.
    size: Figure,
    /// Size in bytes of the ring with which the latency was measured.
    ring: u64,
    /// Latency of a load, in cycles.
    latency: Figure,
}

/// Median, minimum and maximum of some measurements.
#[derive(Clone, Copy, Debug)]
struct Figure {
    middle: f64,
    least: f64,
    most: f64,
}

impl Figure {
    fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        Self {
            middle: median(values.clone()),
            least: values.clone().fold(f64::INFINITY, f64::min),
            most: values.fold(f64::NEG_INFINITY, f64::max),
        }
    }

    fn once(value: f64) -> Self {
        Self::of(std::iter::once(value))
    }

    /// Returns the figure as text, divided by `unit`.
    fn text(&self, unit: f64, decimals: usize) -> String {
        let [middle, least, most] = [self.middle, self.least, self.most].map(|v| v / unit);
        format!("{middle:.decimals$} ({least:.decimals$} to {most:.decimals$})")
    }
}

/// Caches of this host: described sizes, and measured sizes and latencies.
#[derive(Clone, Debug)]
pub struct Machine {
    name: String,
    instruction: Option<Described>,
    levels: Vec<Level>,
    /// Size in bytes of the ring with which memory was measured.
    ring: u64,
    /// Latency of a load from memory, in cycles.
    memory: Figure,
}

impl Machine {
    /// Reads the host's description, and times dependent loads.
    pub fn measure() -> Result<Self, Failure> {
        let caches = caches(Path::new(CACHES))?;
        let data: Vec<Described> = caches.iter().copied().filter(|c| !c.instruction).collect();
        let Some(last) = data.last() else {
            return Err(Failure::Host(format!(
                "{CACHES} describes no caches of data; this measurement needs them"
            )));
        };
        let cycles = |bytes: u64| Ring::new(bytes as usize).map(|mut ring| ring.cycles());
        let ring = (2 * last.size).clamp(64 << 20, 4 << 30);
        let available = available_memory()?;
        // The table from which the ring is linked takes another sixteenth of the ring's size.
        if ring > available / 2 {
            return Err(Failure::Host(format!(
                "twice the last level's size, {} MiB, is more than half of the memory that is free, {} MiB, and memory cannot be told from caches",
                ring >> 20,
                available >> 20
            )));
        }
        let memory = cycles(ring)?;
        let mut levels = Vec::new();
        let mut inside: Option<u64> = None;
        for described in &data {
            let ring = match inside {
                None => described.size / 2,
                Some(inside) => (OVER * inside).min(described.size * 3 / 4),
            };
            inside = Some(described.size);
            levels.push(Level {
                described: *described,
                size: Figure::once(described.size as f64),
                ring,
                latency: Figure::once(cycles(ring)?),
            });
        }
        if let [_, .., last] = levels.as_mut_slice() {
            last.size = Figure::once(held(last, memory, &mut |bytes| cycles(bytes))? as f64);
        }
        Ok(Self {
            name: processor()?,
            instruction: caches.into_iter().find(|c| c.instruction),
            levels,
            ring,
            memory: Figure::once(memory),
        })
    }

    /// Returns the machine with the medians of several measurements.
    pub fn middle(machines: &[Self]) -> Self {
        let mut machine = machines[0].clone();
        machine.memory = Figure::of(machines.iter().map(|m| m.memory.middle));
        for (index, level) in machine.levels.iter_mut().enumerate() {
            let all = machines.iter().map(|m| &m.levels[index]);
            level.size = Figure::of(all.clone().map(|l| l.size.middle));
            level.latency = Figure::of(all.map(|l| l.latency.middle));
        }
        machine
    }

    /// Makes the cache model of one core. A miss of a level costs the difference between the measured latencies of the next level and of
    /// this level.
    pub fn model(&self) -> Result<Box<CacheModel>, String> {
        let (config, memory) = self.config();
        CacheModel::new(&config, &VcpuPlace::grid(1, 1, 1), Box::new(memory))
            .map(Box::new)
            .map_err(|e| e.to_string())
    }

    fn config(&self) -> (CacheConfig, FlatMemory) {
        let after = |index: usize| {
            let next = self.levels.get(index + 1);
            let latency = next.map_or(self.memory, |level| level.latency).middle;
            (latency - self.levels[index].latency.middle)
                .round()
                .max(0.0) as u32
        };
        let outermost = self.levels.len() - 1;
        let level = |index: usize| {
            let level = &self.levels[index];
            let config = LevelConfig::new(level.size.middle as u64, level.described.ways);
            if index == outermost {
                // Measured loads cannot separate a miss of the last level from the memory access, so memory gets the whole cost.
                return if index > 0 { config.shared() } else { config };
            }
            config.misses(after(index), after(index), after(index))
        };
        let first = if outermost > 0 { after(0) } else { 0 };
        let config = CacheConfig {
            instruction: self
                .instruction
                .map(|i| LevelConfig::new(i.size, i.ways).misses(first, first, first)),
            levels: (0..self.levels.len()).map(level).collect(),
            coherence: Default::default(),
            non_temporal_stores: Default::default(),
        };
        let latency = after(outermost);
        (config, FlatMemory { latency })
    }

    /// Returns a description of the machine as several lines of text.
    pub fn description(&self) -> String {
        let mut text = format!("{}\n", self.name);
        if let Some(i) = &self.instruction {
            text += &format!("L1I: {} KiB, {} ways\n", i.size >> 10, i.ways);
        }
        for level in &self.levels {
            let d = &level.described;
            text += &format!("L{}: {} KiB, {} ways", d.level, d.size >> 10, d.ways);
            if level.size.least < d.size as f64 {
                let size = level.size.text(1024.0, 0);
                text += &format!(", of which {size} KiB hold data");
            }
            let (cycles, ring) = (level.latency.text(1.0, 1), level.ring >> 10);
            text += &format!("; a load {cycles} cycles, by a ring of {ring} KiB\n");
        }
        let (config, memory) = self.config();
        text += &format!(
            "memory: a load {} cycles, by a ring of {} MiB\nmodelled: ",
            self.memory.text(1.0, 1),
            self.ring >> 20
        );
        let inner = &config.levels[..config.levels.len() - 1];
        for (level, described) in inner.iter().zip(&self.levels) {
            let number = described.described.level;
            text += &format!("a miss of L{number} {} cycles, ", level.latency.read_miss);
        }
        text + &format!("memory {} more", memory.latency)
    }

    /// Returns the machine as JSON.
    pub fn json(&self) -> Value {
        let levels: Vec<Value> = self
            .levels
            .iter()
            .map(|l| {
                json!({
                    "level": l.described.level, "bytes": l.described.size, "modelled_bytes": l.size.middle as u64,
                    "ways": l.described.ways, "cycles": number(l.latency.middle), "ring": l.ring,
                })
            })
            .collect();
        json!({ "processor": self.name, "levels": levels, "memory_cycles": number(self.memory.middle), "memory_ring": self.ring })
    }
}

/// Returns the bytes of the last level that this machine can use: a virtual machine may share the level with others, or have only some
/// ways. The result is the last ring, in steps of `STEP`, whose latency is closer to the level's than to memory's, or the described size.
fn held(
    level: &Level,
    memory: f64,
    cycles: &mut dyn FnMut(u64) -> Result<f64, Failure>,
) -> Result<u64, Failure> {
    let set = u64::from(level.described.ways) * LINE as u64;
    let mut size = level.ring;
    loop {
        let next = (size as f64 * STEP) as u64;
        if next >= level.described.size {
            return Ok(level.described.size);
        }
        if cycles(next)? > (level.latency.middle + memory) / 2.0 {
            return Ok((size / set).max(1) * set);
        }
        size = next;
    }
}

/// Reads the descriptions of the caches, in the order of their levels, the instruction cache of a level first.
fn caches(folder: &Path) -> Result<Vec<Described>, Failure> {
    let mut caches = Vec::new();
    for index in 0.. {
        let folder = folder.join(format!("index{index}"));
        if !folder.is_dir() {
            break;
        }
        let read = |name: &str| {
            let path = folder.join(name);
            let text = std::fs::read_to_string(&path);
            text.map(|text| text.trim().to_owned())
                .map_err(|e| Failure::Host(format!("cannot read {}: {e}", path.display())))
        };
        let count = |name: &str| {
            let text = read(name)?;
            let digits = text.trim_end_matches('K');
            let number: Option<u64> = digits.parse().ok().filter(|n| *n > 0);
            number.ok_or_else(|| {
                Failure::Host(format!(
                    "{} says {text:?}, which is no count",
                    folder.join(name).display()
                ))
            })
        };
        caches.push(Described {
            level: count("level")? as u32,
            instruction: read("type")? == "Instruction",
            size: count("size")? << 10,
            ways: count("ways_of_associativity")? as u32,
        });
    }
    caches.sort_by_key(|c| (c.level, !c.instruction));
    Ok(caches)
}

/// Returns name, family and model of the host's processor, as `lscpu` prints them.
pub fn processor() -> Result<String, Failure> {
    let text = std::fs::read_to_string("/proc/cpuinfo").map_err(Failure::Files)?;
    let field = |name: &str| {
        text.lines()
            .find_map(|line| line.split_once(':').filter(|(key, _)| key.trim() == name))
            .map_or("unknown", |(_, value)| value.trim())
    };
    Ok(format!(
        "{} (family {}, model {})",
        field("model name"),
        field("cpu family"),
        field("model")
    ))
}

fn available_memory() -> Result<u64, Failure> {
    let text = std::fs::read_to_string("/proc/meminfo").map_err(Failure::Files)?;
    text.lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok())
        .map(|kib| kib << 10)
        .ok_or_else(|| Failure::Host("/proc/meminfo does not say what memory is available".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(level: u32, size: u64, latency: f64) -> Level {
        let described = Described {
            level,
            instruction: false,
            size,
            ways: 8,
        };
        Level {
            described,
            size: Figure::once(size as f64),
            ring: size / 2,
            latency: Figure::once(latency),
        }
    }

    #[test]
    fn caches_are_read_and_bad_ones_named() {
        let folder = tempfile::tempdir().unwrap();
        let write = |index: u32, fields: [&str; 4]| {
            let folder = folder.path().join(format!("index{index}"));
            std::fs::create_dir_all(&folder).unwrap();
            let names = ["level", "type", "size", "ways_of_associativity"];
            for (name, field) in names.iter().zip(fields) {
                std::fs::write(folder.join(name), format!("{field}\n")).unwrap();
            }
        };
        write(0, ["1", "Data", "48K", "12"]);
        write(1, ["1", "Instruction", "64K", "16"]);
        write(2, ["2", "Unified", "2048K", "16"]);
        let caches = super::caches(folder.path()).unwrap();
        let sizes: Vec<_> = caches.iter().map(|c| (c.instruction, c.size)).collect();
        assert_eq!(
            sizes,
            [(true, 64 << 10), (false, 48 << 10), (false, 2 << 20)]
        );
        write(2, ["2", "Unified", "2048K", "0"]);
        let error = super::caches(folder.path()).unwrap_err().to_string();
        assert!(
            error.contains("index2/ways_of_associativity says \"0\""),
            "{error}"
        );
    }

    #[test]
    fn misses_cost_the_difference_of_loads() {
        let machine = Machine {
            name: "a machine".into(),
            instruction: None,
            levels: vec![
                level(1, 32 << 10, 5.0),
                level(2, 1 << 20, 14.2),
                level(3, 8 << 20, 70.0),
            ],
            ring: 64 << 20,
            memory: Figure::once(300.4),
        };
        let (config, memory) = machine.config();
        let misses: Vec<u32> = config.levels.iter().map(|l| l.latency.read_miss).collect();
        assert_eq!((misses, memory.latency), (vec![9, 56, 0], 230));
        assert!(machine.model().is_ok());
        let slow = Machine {
            memory: Figure::once(900.0),
            ..machine.clone()
        };
        let middle = Machine::middle(&[machine.clone(), slow, machine]);
        assert_eq!(middle.memory.text(1.0, 1), "300.4 (300.4 to 900.0)");
    }

    #[test]
    fn the_last_level_is_as_large_as_loads_find() {
        let last = level(3, 16 << 20, 70.0);
        let below = |bytes: u64| move |ring: u64| Ok(if ring > bytes { 300.0 } else { 80.0 });
        let size = |bytes| held(&last, 300.0, &mut below(bytes)).unwrap();
        assert_eq!(size(1 << 30), 16 << 20);
        assert_eq!(size(1 << 20), 8 << 20);
        assert!((10 << 20..12 << 20).contains(&size(12 << 20)));
    }
}
