//! Replacement of the cache model, compared with independent algorithms on random traces.

mod support;

use nodescope_plugin_api::{Access, VcpuPlace};
use nodescope_plugin_cache::{CacheConfig, LevelConfig};
use proptest::prelude::*;
use support::Engine;

/// Returns the stack distance of each reference within its set: the number of other lines of the set that were used since the line's last
/// use. None: the first use.
fn stack_distances(lines: &[u64], sets: u64) -> Vec<Option<usize>> {
    (0..lines.len())
        .map(|now| {
            let last = lines[..now].iter().rposition(|line| *line == lines[now])?;
            let mut between: Vec<u64> = lines[last + 1..now]
                .iter()
                .copied()
                .filter(|line| line % sets == lines[now] % sets)
                .collect();
            between.sort_unstable();
            between.dedup();
            Some(between.len())
        })
        .collect()
}

type Set = Vec<(u64, bool)>;

/// Inclusive levels as plain lists, with a dirty bit at the innermost copy that has the data. There are no coherence states.
struct Lists {
    /// For each level: number of sets, number of ways, and the sets. Each set lists lines with dirty bits, the least recently used first.
    levels: Vec<(u64, usize, Vec<Set>)>,
    misses: Vec<u64>,
    writebacks: Vec<u64>,
    victims: Vec<u64>,
}

impl Lists {
    fn new(shape: &[(u64, u32)]) -> Lists {
        Lists {
            levels: shape
                .iter()
                .map(|&(sets, ways)| (sets, ways as usize, vec![Vec::new(); sets as usize]))
                .collect(),
            misses: vec![0; shape.len()],
            writebacks: vec![0; shape.len()],
            victims: vec![0; shape.len()],
        }
    }

    fn set(&mut self, level: usize, line: u64) -> &mut Set {
        let (sets, _, lists) = &mut self.levels[level];
        &mut lists[(line % *sets) as usize]
    }

    fn reference(&mut self, line: u64, write: bool) {
        let mut hit = 0;
        while hit < self.levels.len() {
            let set = self.set(hit, line);
            if let Some(at) = set.iter().position(|&(held, _)| held == line) {
                let entry = set.remove(at);
                set.push(entry);
                break;
            }
            self.misses[hit] += 1;
            hit += 1;
        }
        for level in (0..hit).rev() {
            let ways = self.levels[level].1;
            if self.set(level, line).len() == ways {
                let (victim, dirty) = self.set(level, line).remove(0);
                self.leave(level, victim, dirty);
            }
            self.set(level, line).push((line, false));
        }
        if write {
            self.set(0, line).last_mut().unwrap().1 = true;
        }
    }

    /// Removes a line that was evicted from a level from the inner levels, too. Dirty data moves to the next outer level.
    fn leave(&mut self, level: usize, line: u64, mut dirty: bool) {
        let mut carried = false;
        for inner in 0..level {
            let set = self.set(inner, line);
            if let Some(at) = set.iter().position(|&(held, _)| held == line) {
                carried |= set.remove(at).1;
                self.victims[inner] += 1;
                self.writebacks[inner] += u64::from(carried);
            }
        }
        dirty |= carried;
        if dirty {
            self.writebacks[level] += 1;
            if level + 1 < self.levels.len() {
                let outer = self.set(level + 1, line);
                outer
                    .iter_mut()
                    .find(|(held, _)| *held == line)
                    .expect("inclusion")
                    .1 = true;
            }
        }
    }
}

fn config(shape: &[(u64, u32)]) -> CacheConfig {
    CacheConfig {
        instruction: None,
        levels: shape
            .iter()
            .map(|&(sets, ways)| LevelConfig::new(sets * u64::from(ways) * 64, ways))
            .collect(),
        coherence: Default::default(),
        non_temporal_stores: Default::default(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// A reference hits if, and only if, its stack distance is below the number of ways, for every associativity.
    #[test]
    fn hits_are_short_stack_distances(
        sets in 1..20u64,
        ways in 1..24u32,
        spread in 1..400u64,
        trace in proptest::collection::vec((any::<u64>(), any::<bool>()), 1..500),
    ) {
        let trace: Vec<(u64, bool)> = trace.iter().map(|&(line, write)| (line % spread, write)).collect();
        let lines: Vec<u64> = trace.iter().map(|&(line, _)| line).collect();
        let mut expected = [0, 0];
        for (distance, &(_, write)) in stack_distances(&lines, sets).into_iter().zip(&trace) {
            if distance.is_none_or(|distance| distance >= ways as usize) {
                expected[usize::from(write)] += 1;
            }
        }
        let mut engine = Engine::new(&config(&[(sets, ways)]), &VcpuPlace::grid(1, 1, 1));
        for &(line, write) in &trace {
            engine.go(0, if write { Access::Write } else { Access::Read }, line * 64);
        }
        prop_assert_eq!([engine.count("L1D.read_miss"), engine.count("L1D.write_miss")], expected);
    }

    /// Misses, write-backs and inclusion victims of three levels equal those of plain lists.
    #[test]
    fn levels_behave_as_lists(
        shape in (1..6u64, 1..4u32, 1..8u64, 1..5u32, 1..13u64, 1..9u32),
        spread in 1..160u64,
        trace in proptest::collection::vec((any::<u64>(), 0..3u8), 1..800),
    ) {
        let mut shape = [(shape.0, shape.1), (shape.2, shape.3), (shape.4, shape.5)];
        shape.sort_by_key(|&(sets, ways)| sets * u64::from(ways));
        let mut lists = Lists::new(&shape);
        let mut engine = Engine::new(&config(&shape), &VcpuPlace::grid(1, 1, 1));
        for &(line, kind) in &trace {
            let line = line % spread;
            lists.reference(line, kind == 0);
            engine.go(0, if kind == 0 { Access::Write } else { Access::Read }, line * 64);
        }
        for (level, name) in ["L1D", "L2", "L3"].iter().enumerate() {
            let misses = engine.count(&format!("{name}.read_miss")) + engine.count(&format!("{name}.write_miss"));
            prop_assert_eq!(misses, lists.misses[level], "misses of {}", name);
            prop_assert_eq!(engine.count(&format!("{name}.writeback")), lists.writebacks[level], "write-backs of {}", name);
            let victims = engine.count(&format!("L{}.inclusion_victim", level + 1));
            prop_assert_eq!(victims, lists.victims[level], "inclusion victims of {}", name);
        }
        engine.check_equations();
    }
}
