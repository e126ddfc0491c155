//! Predictor of the targets of indirect jumps and calls.
//!
//! Source: Seznec, "A 64-Kbytes ITTAGE indirect branch predictor", JWAC-2, 2011. The history here are the last targets, not directions.
//! Entries leave as in a cache: an entry withstands as many allocations as its confidence, and there is no mark of usefulness. Such marks
//! would keep part of a sequence that is longer than the tables, while cores lose all of it.

use super::config::{MOST_TABLES, PredictorConfig};
use super::history::{History, Window, spread};

/// Greatest confidence in a target.
const CONFIDENT: u8 = 3;
/// Confidence in the target of a new entry.
const NEW: u8 = 1;
/// Bit of the tags of used entries.
const USED: u16 = 0x8000;

/// A target after one history of targets.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    target: u64,
    /// Hash of jump and history; 0 for a free entry.
    tag: u16,
    /// Up to [`CONFIDENT`].
    confidence: u8,
}

/// Predictor of targets.
#[derive(Clone, Debug)]
pub struct Indirect {
    /// Last target of each jump, by a hash of its address.
    base: Box<[u64]>,
    /// All tables, one behind the other.
    entries: Box<[Entry]>,
    windows: Box<[Window]>,
    /// log2 of the entries of a table.
    bits: u32,
    history: History,
    /// Whether new entries have been worse than the next shorter history: not negative if so.
    distrust: i8,
}

/// Places of a jump in the tables.
struct Places {
    slots: [usize; MOST_TABLES],
    tags: [u16; MOST_TABLES],
    /// Bit for each table that has an entry.
    hits: u32,
    base: usize,
}

impl Indirect {
    /// Makes an empty predictor.
    pub fn new(config: &PredictorConfig) -> Self {
        let windows: Box<[Window]> = config
            .indirect_histories
            .iter()
            .map(|length| Window::new(*length))
            .collect();
        Self {
            base: vec![0; config.indirect_base_entries as usize].into(),
            entries: vec![Entry::default(); windows.len() * config.indirect_entries as usize]
                .into(),
            windows,
            bits: config.indirect_entries.trailing_zeros(),
            history: History::default(),
            distrust: 0,
        }
    }

    /// Notes that the jump at `address` went to `target`, and returns whether this was predicted.
    pub fn is_right(&mut self, address: u64, target: u64) -> bool {
        let places = self.find(spread(address));
        let provider = places.hits.checked_ilog2().map(|table| table as usize);
        let prediction = match provider {
            Some(table) => self.train(&places, table, target),
            None => self.base[places.base],
        };
        self.base[places.base] = target;
        if prediction != target {
            self.allocate(&places, provider.map_or(0, |table| table + 1), target);
        }
        self.history.push(spread(target) >> 40 | 1);
        prediction == target
    }

    fn find(&self, site: u64) -> Places {
        let mut places = Places {
            slots: [0; MOST_TABLES],
            tags: [0; MOST_TABLES],
            hits: 0,
            base: (site >> 40) as usize & (self.base.len() - 1),
        };
        for (table, window) in self.windows.iter().enumerate() {
            let hash = spread(self.history.hash(*window) ^ site);
            let slot = table << self.bits | (hash >> (64 - self.bits)) as usize;
            let tag = (hash >> 32) as u16 & 0x1FFF | USED;
            places.slots[table] = slot;
            places.tags[table] = tag;
            places.hits |= u32::from(self.entries[slot].tag == tag) << table;
        }
        places
    }

    /// Trains the entry of the longest history that has one, and returns the prediction, which may be that of the next shorter history.
    fn train(&mut self, places: &Places, table: usize, target: u64) -> u64 {
        let shorter = places.hits & !(1 << table);
        let alternate = match shorter.checked_ilog2() {
            Some(table) => self.entries[places.slots[table as usize]].target,
            None => self.base[places.base],
        };
        let entry = &mut self.entries[places.slots[table]];
        let (own, new) = (entry.target, entry.confidence <= NEW);
        if own == target {
            entry.confidence = (entry.confidence + 1).min(CONFIDENT);
        } else if entry.confidence > 0 {
            entry.confidence -= 1;
        } else {
            entry.target = target;
        }
        if !new || own == alternate {
            return own;
        }
        let prediction = if self.distrust >= 0 { alternate } else { own };
        if alternate == target {
            self.distrust = (self.distrust + 1).min(7);
        } else if own == target {
            self.distrust = (self.distrust - 1).max(-8);
        }
        prediction
    }

    /// Gives the target an entry in a table of longer history, from `first` on.
    fn allocate(&mut self, places: &Places, first: usize, target: u64) {
        for table in first..self.windows.len() {
            let entry = &mut self.entries[places.slots[table]];
            if entry.confidence == 0 {
                *entry = Entry {
                    target,
                    tag: places.tags[table],
                    confidence: NEW,
                };
                return;
            }
            entry.confidence -= 1;
        }
    }
}
