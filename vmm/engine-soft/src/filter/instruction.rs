//! Instruction lines that need not be reported.

use nodescope_plugin_api::{L0Geometry, L0Update, Outcome, Permission};

use super::sets::{Position, Sets};

/// Tag that no physical line has.
const NONE: u64 = u64::MAX;

/// Instruction lines that need not be reported: the most recently used line of each set, by physical address.
#[repr(C)]
pub struct InstructionFilter {
    shift: u32,
    mask: u32,
    /// The most recently used line of each set.
    lines: [u64; 64],
    /// All lines of each set.
    pub sets: Sets,
}

impl Default for InstructionFilter {
    fn default() -> Self {
        Self {
            shift: 6,
            mask: 0,
            lines: [NONE; 64],
            sets: Sets::default(),
        }
    }
}

impl InstructionFilter {
    /// Take a model's geometry and start empty.
    pub fn shape(&mut self, geometry: Option<L0Geometry>) {
        *self = Self::default();
        if let Some(g) = geometry {
            assert!(
                g.instruction_slots <= 6,
                "filter geometry has more slots than the engine keeps"
            );
            self.shift = g.line_shift.into();
            self.mask = (1 << g.instruction_slots) - 1;
            let (slots, ways) = (g.instruction_slots, g.instruction_ways);
            self.sets.shape(geometry, slots, ways);
        }
    }

    /// log2 of the line size.
    pub fn shift(&self) -> u32 {
        self.shift
    }
    /// Whether this physical line hits.
    #[inline]
    pub fn hit(&self, line: u64) -> bool {
        self.lines[(line >> self.shift) as usize & self.mask as usize & 63] == line
    }
    /// Where the slot of a physical line lies within the filter, for generated code.
    pub fn slot_offset(&self, line: u64) -> usize {
        std::mem::offset_of!(Self, lines)
            + 8 * ((line >> self.shift) as usize & self.mask as usize & 63)
    }

    /// Serve a fetch that missed its set's most recent line by another line of the set, which becomes the most recent. As
    /// translated code does in [`crate::native`].
    #[inline]
    pub fn promote(&mut self, line: u64) -> bool {
        if !self.sets.kept() {
            return false;
        }
        let Some(lane) = self.sets.find(line) else {
            return false;
        };
        self.sets.promote(lane);
        *self.slot(line) = line;
        true
    }

    fn slot(&mut self, line: u64) -> &mut u64 {
        &mut self.lines[(line >> self.shift) as usize & self.mask as usize & 63]
    }

    /// Remember a line that a model has answered for; `position`: where it is to lie, if whole sets are kept.
    pub fn enter(&mut self, line: u64, outcome: &Outcome, position: Option<Position>) {
        let hits = outcome.permission() != Permission::None;
        *self.slot(line) = if hits { line } else { NONE };
        if let Some(position) = position {
            if hits {
                self.sets.enter(line, outcome.replaced(), position);
            } else {
                for gone in outcome.replaced().into_iter().chain([line]) {
                    self.sets.remove(gone);
                }
            }
        }
    }

    /// Lower what is permitted for a line.
    pub fn update(&mut self, update: &L0Update) {
        if update.permission != Permission::None {
            return;
        }
        let slot = self.slot(update.line);
        if *slot == update.line {
            *slot = NONE;
        }
        if self.sets.kept() {
            self.sets.remove(update.line);
        }
    }
}
