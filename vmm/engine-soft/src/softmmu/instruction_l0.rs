//! L0 filter cache for instructions.

use nodescope_plugin_api::{L0Geometry, L0Update, Outcome, Permission};

use super::lru_sets::{LruSets, Placement};

/// Tag that no physical line has.
const NO_LINE: u64 = u64::MAX;

/// L0 filter cache for instructions: the most recently used line of each set, by physical address. Fetches from these lines need not be
/// reported to the model.
#[repr(C)]
pub struct InstructionL0 {
    shift: u32,
    mask: u32,
    /// The most recently used line of each set.
    lines: [u64; 64],
    /// Lines of each set, with their LRU order.
    pub sets: LruSets,
}

impl Default for InstructionL0 {
    fn default() -> Self {
        Self {
            shift: 6,
            mask: 0,
            lines: [NO_LINE; 64],
            sets: LruSets::default(),
        }
    }
}

impl InstructionL0 {
    /// Sets a model's geometry and empties all slots.
    pub fn configure(&mut self, geometry: Option<L0Geometry>) {
        *self = Self::default();
        if let Some(g) = geometry {
            assert!(
                g.instruction_slots <= 6,
                "L0 geometry has more slots than the engine keeps"
            );
            self.shift = g.line_shift.into();
            self.mask = (1 << g.instruction_slots) - 1;
            let (slots, ways) = (g.instruction_slots, g.instruction_ways);
            self.sets.configure(geometry, slots, ways);
        }
    }

    /// Returns log2 of the line size.
    pub fn shift(&self) -> u32 {
        self.shift
    }
    /// Returns whether this physical line is the most recently used line of its set.
    #[inline]
    pub fn hit(&self, line: u64) -> bool {
        self.lines[(line >> self.shift) as usize & self.mask as usize & 63] == line
    }
    /// Returns the offset of a physical line's slot within this value, for generated code.
    pub fn slot_offset(&self, line: u64) -> usize {
        std::mem::offset_of!(Self, lines)
            + 8 * ((line >> self.shift) as usize & self.mask as usize & 63)
    }

    /// Serves a fetch from another line than the most recently used line of the set, and makes that line the most recently used. Returns
    /// whether the set has the line. Translated code does the same in `native/way_lookup.rs`.
    #[inline]
    pub fn promote(&mut self, line: u64) -> bool {
        if !self.sets.enabled() {
            return false;
        }
        let Some(way) = self.sets.find(line) else {
            return false;
        };
        self.sets.promote(way);
        *self.slot(line) = line;
        true
    }

    fn slot(&mut self, line: u64) -> &mut u64 {
        &mut self.lines[(line >> self.shift) as usize & self.mask as usize & 63]
    }

    /// Records a model's answer for a line: fills the line in, or removes it if the answer permits no fetch. `placement`: the line's way,
    /// if whole sets are kept.
    pub fn fill(&mut self, line: u64, outcome: &Outcome, placement: Option<Placement>) {
        let hits = outcome.permission() != Permission::None;
        *self.slot(line) = if hits { line } else { NO_LINE };
        if let Some(placement) = placement {
            if hits {
                self.sets.fill(line, outcome.replaced(), placement);
            } else {
                for gone in outcome.replaced().into_iter().chain([line]) {
                    self.sets.remove(gone);
                }
            }
        }
    }

    /// Removes a line whose permission a model withdraws. Lower permissions for writes do not concern fetches.
    pub fn update(&mut self, update: &L0Update) {
        if update.permission != Permission::None {
            return;
        }
        let slot = self.slot(update.line);
        if *slot == update.line {
            *slot = NO_LINE;
        }
        if self.sets.enabled() {
            self.sets.remove(update.line);
        }
    }
}
