//! The second level has the line, and nobody else is asked.

use iced_x86::{Code, Register};
use nodescope_plugin_api::exported::STATE_BITS;

use super::{LINE, MODIFIED_STATE, MissRoutine, Others, PLACE, Placed, SECOND, STALL, count};
use crate::native::assembler::{Assembler, Label, at, word_of};
use crate::native::second_level::DataAccess;

use Register::{EAX, R11, R11D, RBX};

impl MissRoutine<'_> {
    /// Go on behind this with [`super::STATE`] and [`STALL`], or at `far`, where [`SECOND`] is the line's set.
    pub fn near(&self, a: &mut Assembler, far: Label) -> Placed {
        let second = self.outer(1);
        let events = &self.shape.events;
        let way = RBX;
        second.set(a, LINE, SECOND);
        second.tag(a, LINE);
        second.look_for(a);
        second.find(a, SECOND, way, far);
        let word = word_of(SECOND, way);
        a.rm(Code::Mov_r32_rm32, EAX, word);
        let holders = (1 << second.shape.tag_shift) - (1 << STATE_BITS);
        let others = Others::Constant(holders & !self.shape.data_bit);
        self.permit(a, word, MODIFIED_STATE, others);
        let placed = self.place(a);
        // From here on it is done.
        self.charge(a, 1);
        self.tallies(a);
        count(a, self.of(events.miss[0]));
        count(a, self.of(events.hit[1]));
        a.constant(STALL, self.of(events.stall[0]).into());
        self.count_if_modified(a, at(PLACE), 0);
        a.rm(Code::Mov_r32_rm32, R11D, word);
        self.state_inside(a, R11);
        a.ri(Code::Or_rm32_imm32, R11D, self.shape.data_bit as i32);
        second.renew(a, SECOND, way, R11);
        self.take_place(a);
        if self.access == DataAccess::Both {
            self.note_modified(a);
        }
        placed
    }
}
