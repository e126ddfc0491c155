//! Predictor of conditional branches: a base, and tables that see longer and longer histories.
//!
//! Source: Seznec and Michaud, "A case for (partially) tagged geometric history length branch prediction", JILP 8, 2006; the rule for when
//! entries lose their mark of usefulness is that of Seznec, "TAGE-SC-L branch predictors again", CBP-5, 2016.

use super::config::{MOST_TABLES, PredictorConfig};
use super::history::{History, Window, spread};

/// Bit of the tags of used entries.
const USED: u16 = 0x8000;
/// Most useful.
const MOST_USEFUL: u8 = 3;
/// Failed allocations, less successful ones, after which all entries become less useful.
const PATIENCE: i32 = 1_024;

/// Source of the choices that hardware makes by chance: a shift register with feedback, of a period of 2^32 - 1, with a fixed start.
#[derive(Clone, Debug)]
struct Lottery(u32);

impl Default for Lottery {
    fn default() -> Self {
        Self(0x2545_F491)
    }
}

impl Lottery {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        self.0
    }

    /// Returns the table at which a search for a free entry begins: `first` in half of the cases, else one of the next two, where there are.
    fn start(&mut self, first: usize, tables: usize) -> usize {
        let skip = match self.next() >> 30 {
            0 | 1 => 0,
            2 => 1,
            _ => 2,
        };
        (first + skip).min(tables - 1)
    }
}

/// Prediction after one history.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// Hash of branch and history; 0 for a free entry.
    tag: u16,
    /// From -4 to 3: taken if it is not negative.
    counter: i8,
    /// How often the entry was right where a shorter history was wrong, up to [`MOST_USEFUL`].
    useful: u8,
}

impl Entry {
    fn taken(self) -> bool {
        self.counter >= 0
    }

    fn step(&mut self, taken: bool) {
        self.counter = step(self.counter, taken, -4, 3);
    }
}

fn step(counter: i8, up: bool, least: i8, most: i8) -> i8 {
    if up {
        (counter + 1).min(most)
    } else {
        (counter - 1).max(least)
    }
}

/// Predictor of directions.
#[derive(Clone, Debug)]
pub struct Tage {
    /// Counters from -2 to 1, by a hash of the branch's address: taken if it is not negative.
    base: Box<[i8]>,
    /// All tables, one behind the other.
    entries: Box<[Entry]>,
    windows: Box<[Window]>,
    /// Entries of a table, minus one.
    mask: usize,
    history: History,
    /// Hashes of the branch and of the history of each table, of the last look-up: they name the entry and its tag.
    hashes: [u64; MOST_TABLES],
    /// Whether new entries have been worse than the next shorter history: not negative if so.
    distrust: i8,
    failures: i32,
    lottery: Lottery,
}

/// What the tables say about a branch.
pub struct TageAnswer {
    base: usize,
    /// Place of the entry after the longest history that has one, and the number of its table.
    provider: Option<(usize, usize)>,
    /// Place of the entry after the next shorter history that has one.
    shorter: Option<usize>,
    /// Prediction of the longest history.
    own: bool,
    /// Prediction of the next shorter history.
    alternate: bool,
    /// True if the entry of the longest history has hardly been trained.
    new: bool,
    /// The prediction.
    pub taken: bool,
}

/// Returns the tag that a hash names, of 15 bits besides [`USED`].
#[inline]
fn tag(hash: u64) -> u16 {
    (hash >> 28) as u16 | USED
}

impl Tage {
    /// Makes an empty predictor.
    pub fn new(config: &PredictorConfig) -> Self {
        let windows: Box<[Window]> = config
            .histories
            .iter()
            .map(|length| Window::new(*length))
            .collect();
        Self {
            base: vec![0; config.base_entries as usize].into(),
            entries: vec![Entry::default(); windows.len() * config.entries as usize].into(),
            windows,
            mask: config.entries as usize - 1,
            history: History::default(),
            hashes: [0; MOST_TABLES],
            distrust: 0,
            failures: 0,
            lottery: Lottery::default(),
        }
    }

    /// Returns the place of the entry that the last look-up found, or would put, in a table.
    #[inline]
    fn slot(&self, table: usize) -> usize {
        table * (self.mask + 1) + ((self.hashes[table] >> 44) as usize & self.mask)
    }

    /// Looks a branch up in all tables. Returns a bit for each table that has an entry.
    // A function of its own, so that its loops have registers enough.
    #[inline(never)]
    fn look_up(&mut self, site: u64) -> u32 {
        for (window, hash) in self.windows.iter().zip(&mut self.hashes) {
            *hash = spread(self.history.hash(*window) ^ site);
        }
        let (mut hits, mut first) = (0, 0);
        for (table, hash) in self.hashes[..self.windows.len()].iter().enumerate() {
            let entry = self.entries[first + ((*hash >> 44) as usize & self.mask)];
            hits |= u32::from(entry.tag == tag(*hash)) << table;
            first += self.mask + 1;
        }
        hits
    }

    /// Predicts a branch with the hash `site` of its address.
    #[inline]
    pub fn predict(&mut self, site: u64) -> TageAnswer {
        let hits = self.look_up(site);
        let base = (site >> 40) as usize & (self.base.len() - 1);
        let taken = self.base[base] >= 0;
        let mut answer = TageAnswer {
            base,
            provider: None,
            shorter: None,
            own: taken,
            alternate: taken,
            new: false,
            taken,
        };
        if hits != 0 {
            self.choose(&mut answer, hits);
        }
        answer
    }

    /// Makes the prediction from the tables that have an entry, a bit for each, of which there is one.
    #[inline]
    fn choose(&self, answer: &mut TageAnswer, hits: u32) {
        let longest = hits.ilog2() as usize;
        let slot = self.slot(longest);
        answer.provider = Some((slot, longest));
        if let Some(table) = (hits & !(1 << longest)).checked_ilog2() {
            let slot = self.slot(table as usize);
            answer.shorter = Some(slot);
            answer.alternate = self.entries[slot].taken();
        }
        let entry = self.entries[slot];
        answer.own = entry.taken();
        answer.new = entry.useful == 0 && matches!(entry.counter, -1 | 0);
        answer.taken = if answer.new && self.distrust >= 0 {
            answer.alternate
        } else {
            answer.own
        };
    }

    /// Learns what a branch did.
    #[inline]
    pub fn train(&mut self, answer: &TageAnswer, taken: bool) {
        if let Some((provider, _)) = answer.provider {
            self.train_entry(answer, provider, taken);
        } else {
            self.base[answer.base] = step(self.base[answer.base], taken, -2, 1);
        }
        // Where a new entry is right, it needs training only, no longer history.
        let needs_more = answer.taken != taken && !(answer.new && answer.own == taken);
        let first = answer.provider.map_or(0, |(_, table)| table + 1);
        if needs_more && first < self.windows.len() {
            self.allocate(first, taken);
        }
    }

    fn train_entry(&mut self, answer: &TageAnswer, provider: usize, taken: bool) {
        let differ = answer.own != answer.alternate;
        if answer.new && differ {
            self.distrust = step(self.distrust, answer.alternate == taken, -8, 7);
        }
        let entry = &mut self.entries[provider];
        if entry.useful == 0 {
            match answer.shorter {
                Some(slot) => self.entries[slot].step(taken),
                None => self.base[answer.base] = step(self.base[answer.base], taken, -2, 1),
            }
        }
        let entry = &mut self.entries[provider];
        entry.step(taken);
        if differ {
            entry.useful = if answer.own == taken {
                (entry.useful + 1).min(MOST_USEFUL)
            } else {
                entry.useful.saturating_sub(1)
            };
        }
    }

    /// Gives the branch an entry in a table of longer history, from `first` on.
    fn allocate(&mut self, first: usize, taken: bool) {
        let tables = self.windows.len();
        for table in self.lottery.start(first, tables)..tables {
            let slot = self.slot(table);
            let entry = &mut self.entries[slot];
            if entry.useful == 0 {
                *entry = Entry {
                    tag: tag(self.hashes[table]),
                    counter: if taken { 0 } else { -1 },
                    useful: 0,
                };
                self.failures = (self.failures - 1).max(0);
                return;
            }
            self.failures += 1;
        }
        if self.failures >= PATIENCE {
            self.failures = 0;
            self.entries.iter_mut().for_each(|entry| entry.useful /= 2);
        }
    }

    /// Adds an event to the history: a conditional branch, or an indirect jump or call.
    #[inline]
    pub fn push(&mut self, event: u64) {
        self.history.push(event);
    }
}
