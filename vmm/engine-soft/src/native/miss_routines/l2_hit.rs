//! L2 hit path: the second level has the line. Neither the third level nor a peer is read.

use iced_x86::{Code, Register};
use nodescope_plugin_api::exported::STATE_BITS;

use super::{
    L2_SET, LINE, MODIFIED_STATE, MissRoutine, OtherHolders, STALL, VICTIM_WORD, VictimWordLabels,
    count,
};
use crate::native::assembler::{Assembler, Label, at, word_of};
use crate::native::way_lookup::DataAccess;

use Register::{EAX, R11, R11D, RBX};

impl MissRoutine<'_> {
    /// Assembles the path. After a hit, [`super::STATE`] and [`STALL`] are set, and execution continues behind the path. After a miss,
    /// [`L2_SET`] is the address of the line's set, and execution continues at `l2_miss`.
    pub fn l2_hit(&self, a: &mut Assembler, l2_miss: Label) -> VictimWordLabels {
        let second = self.outer(1);
        let events = &self.shape.events;
        let way = RBX;
        second.set(a, LINE, L2_SET);
        second.tag(a, LINE);
        second.look_for(a);
        second.find(a, L2_SET, way, l2_miss);
        let word = word_of(L2_SET, way);
        a.rm(Code::Mov_r32_rm32, EAX, word);
        let holders = (1 << second.shape.tag_shift) - (1 << STATE_BITS);
        let others = OtherHolders::Constant(holders & !self.shape.data_holder_mask);
        self.check_permission(a, word, MODIFIED_STATE, others);
        let victim_labels = self.find_victim_word(a);
        // The miss is certainly served from here on: state may be changed.
        self.charge(a, 1);
        self.tallies(a);
        count(a, self.of(events.miss[0]));
        count(a, self.of(events.hit[1]));
        a.constant(STALL, self.of(events.stall[0]).into());
        self.count_if_modified(a, at(VICTIM_WORD), 0);
        a.rm(Code::Mov_r32_rm32, R11D, word);
        self.state_inside(a, R11);
        a.ri(
            Code::Or_rm32_imm32,
            R11D,
            self.shape.data_holder_mask as i32,
        );
        second.make_mru(a, L2_SET, way, R11);
        self.replace_victim_word(a);
        if self.access == DataAccess::ReadWrite {
            self.record_modified(a);
        }
        victim_labels
    }
}
