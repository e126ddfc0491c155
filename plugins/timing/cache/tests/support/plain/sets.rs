//! Sets of one cache: ways that hold lines, and the policy that chooses the line to replace.

/// The plain policies of the unit tests.
#[path = "../../../src/policy/tests/plain.rs"]
mod policies;

use nodescope_plugin_cache::{CacheKind, Inclusion, LevelConfig, Policy, State};

/// Line that a cache has.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub line: u64,
    pub state: State,
    /// True from a prefetch of the line until the first demand access to the line.
    pub marked: bool,
}

/// Replacement policy of one cache. Lines stay in their ways.
pub trait Replacement {
    /// Takes note of a hit.
    fn hit(&mut self, set: usize, way: usize);
    /// Chooses the way of a new line, and takes note of the line. `used` says which ways hold lines.
    fn insert(&mut self, set: usize, used: &[bool]) -> usize;
    /// Takes note of a line that left its way other than by replacement.
    fn remove(&mut self, set: usize, way: usize);
    /// Sorts the ways that hold lines into the order of [`nodescope_plugin_cache::CacheContents::sets`].
    fn sort(&self, _set: usize, _ways: &mut Vec<usize>) {}
}

/// The least recently used line is replaced.
struct Lru {
    /// Ways of each set that hold lines, most recently used first.
    order: Vec<Vec<usize>>,
}

impl Replacement for Lru {
    fn hit(&mut self, set: usize, way: usize) {
        self.remove(set, way);
        self.order[set].insert(0, way);
    }

    fn insert(&mut self, set: usize, used: &[bool]) -> usize {
        let empty = used.iter().position(|used| !used);
        let last = || *self.order[set].last().expect("a full set");
        let way = empty.unwrap_or_else(last);
        self.hit(set, way);
        way
    }

    fn remove(&mut self, set: usize, way: usize) {
        self.order[set].retain(|&held| held != way);
    }

    fn sort(&self, set: usize, ways: &mut Vec<usize>) {
        ways.clone_from(&self.order[set]);
    }
}

impl<P: policies::Plain> Replacement for P {
    fn hit(&mut self, set: usize, way: usize) {
        policies::Plain::hit(self, set, way);
    }

    fn insert(&mut self, set: usize, used: &[bool]) -> usize {
        self.miss(set, used)
    }

    fn remove(&mut self, set: usize, way: usize) {
        self.removed(set, way);
    }
}

/// Returns the numbers and flag of a quad-age policy, by its text form.
fn quad(policy: Policy) -> policies::Quad {
    let text = policy.to_string();
    let mut all = policies::Quad::all().into_iter();
    all.find(|quad| quad.text() == text)
        .expect("a policy of the family")
}

fn replacement(policy: Policy, sets: usize, ways: usize) -> Box<dyn Replacement> {
    match policy {
        Policy::Lru => Box::new(Lru {
            order: vec![Vec::new(); sets],
        }),
        Policy::TreePlru => Box::new(policies::TreePlru::new(sets)),
        Policy::Qlru(_) => Box::new(policies::Qlru::new(quad(policy), sets, ways)),
        Policy::Srrip => Box::new(policies::Rrip::srrip(sets, ways)),
        Policy::Drrip => Box::new(policies::Rrip::drrip(sets, ways)),
        Policy::Fifo => Box::new(policies::Fifo::new(sets, ways)),
        Policy::Random(seed) => Box::new(policies::Random::new(seed)),
        policy => panic!("policy {policy} has no plain implementation"),
    }
}

pub struct Cache {
    pub level: usize,
    pub kind: CacheKind,
    pub socket: u16,
    /// Cores whose hardware threads share the cache.
    pub cores: Vec<u16>,
    /// The core if the cache is for one core by its description.
    pub core: Option<u16>,
    pub outer: Option<usize>,
    pub inclusion: Inclusion,
    pub write_allocate: bool,
    /// Lines by set and way.
    sets: Vec<Vec<Option<Entry>>>,
    replacement: Box<dyn Replacement>,
}

impl Cache {
    pub fn new(
        level: usize,
        kind: CacheKind,
        socket: u16,
        cores: Vec<u16>,
        core: Option<u16>,
        shape: &LevelConfig,
    ) -> Cache {
        let (sets, ways) = (shape.sets() as usize, shape.ways as usize);
        Cache {
            level,
            kind,
            socket,
            cores,
            core,
            outer: None,
            inclusion: shape.inclusion,
            write_allocate: shape.write_allocate,
            sets: vec![vec![None; ways]; sets],
            replacement: replacement(shape.policy, sets, ways),
        }
    }

    fn set(&self, line: u64) -> usize {
        (line % self.sets.len() as u64) as usize
    }

    fn way(&self, line: u64) -> Option<usize> {
        self.sets[self.set(line)]
            .iter()
            .position(|way| way.is_some_and(|entry| entry.line == line))
    }

    pub fn entry(&mut self, line: u64) -> Option<&mut Entry> {
        let (set, way) = (self.set(line), self.way(line)?);
        self.sets[set][way].as_mut()
    }

    pub fn state(&self, line: u64) -> Option<State> {
        let way = self.way(line)?;
        self.sets[self.set(line)][way].map(|entry| entry.state)
    }

    /// Lets the policy see a hit of a line that the cache has.
    pub fn hit(&mut self, line: u64) {
        let way = self.way(line).expect("a line that hits");
        self.replacement.hit(self.set(line), way);
    }

    /// Takes a line out of the cache.
    pub fn take(&mut self, line: u64) -> Option<Entry> {
        let (set, way) = (self.set(line), self.way(line)?);
        self.replacement.remove(set, way);
        self.sets[set][way].take()
    }

    /// Puts a line that the cache lacks into the way that the policy chooses. Returns the line that the new one replaces if no way is
    /// empty.
    pub fn insert(&mut self, entry: Entry) -> Option<Entry> {
        assert!(self.state(entry.line).is_none(), "a line twice in a cache");
        let set = self.set(entry.line);
        let used: Vec<bool> = self.sets[set].iter().map(Option::is_some).collect();
        let way = self.replacement.insert(set, &used);
        self.sets[set][way].replace(entry)
    }

    /// Returns the sets that have lines, each with its number.
    pub fn contents(&self) -> Vec<(u64, Vec<Entry>)> {
        let entries = |set: usize| {
            let ways = &self.sets[set];
            let mut order: Vec<usize> =
                (0..ways.len()).filter(|&way| ways[way].is_some()).collect();
            self.replacement.sort(set, &mut order);
            order.iter().filter_map(|&way| ways[way]).collect()
        };
        (0..self.sets.len())
            .map(|set| (set as u64, entries(set)))
            .filter(|(_, entries): &(u64, Vec<Entry>)| !entries.is_empty())
            .collect()
    }
}
