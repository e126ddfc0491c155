//! L3 hit path and memory path: the second level does not have the line. Either the third level has the line, or no cache of the node has
//! it. Only the third level and this vCPU's caches are changed.

use std::mem::offset_of;

use iced_x86::{Code, MemoryOperand, Register};
use nodescope_plugin_api::exported::{ExportedCaches, RecentHome, STATE_BITS};
use nodescope_plugin_api::{Source, StallTerm, Tally};

use super::cache_sets::Cache;
use super::{
    EXCLUSIVE_STATE, EXPORTED, L2_SET, L3_SET, LINE, LINE_SHIFT, MODIFIED_STATE, MissRoutine,
    OtherHolders, STALL, STATE, STATES, VICTIM_WORD, VictimWordLabels, count, exported,
};
use crate::native::assembler::{Assembler, Label, at, at_offset, cc, word_of};
use crate::native::registers::sized;
use crate::profile::Record;

use Register::{EAX, R9, R11, R11D, R12, R13, RAX};

impl MissRoutine<'_> {
    /// Assembles the paths, which set [`STATE`] and [`STALL`] and continue at `fill`. On entry, [`L2_SET`] is the address of the line's set
    /// in the second level.
    pub fn l2_miss(&self, a: &mut Assembler, fill: Label) {
        // The paths need one more register, R13.
        let (slow, put_back) = (a.label(), a.label());
        a.r(Code::Push_r64, R13);
        let path = MissRoutine { slow, ..*self };
        let victim_labels = path.l3_hit_or_memory(a, put_back);
        path.find_victim_word_out_of_line(a, victim_labels);
        for (from, to) in [(put_back, fill), (slow, self.slow)] {
            a.bind(from);
            a.r(Code::Pop_r64, R13);
            a.jmp(to);
        }
    }

    fn l3_hit_or_memory(&self, a: &mut Assembler, fill: Label) -> VictimWordLabels {
        let (second, third) = (self.outer(1), self.outer(2));
        let (memory, way) = (a.label(), R9);
        third.set(a, LINE, L3_SET);
        self.prefetch(a, third);
        let victim_labels = self.find_victim_word(a);
        self.check_l2_victim(a, second);
        third.tag(a, LINE);
        third.look_for(a);
        third.find(a, L3_SET, way, memory);
        self.fill_from_l3(a, second, third, way);
        a.jmp(fill);
        a.bind(memory);
        self.fill_from_memory(a, second, third);
        a.jmp(fill);
        victim_labels
    }

    /// Serves a line that the third level has. `way` is the number of the line's way.
    fn fill_from_l3(&self, a: &mut Assembler, second: Cache, third: Cache, way: Register) {
        let word = word_of(L3_SET, way);
        a.rm(Code::Mov_r32_rm32, EAX, word);
        self.check_permission(a, word, EXCLUSIVE_STATE, OtherHolders::InL3);
        // The miss is certainly served from here on: state may be changed.
        let events = &self.shape.events;
        self.charge(a, 2);
        self.tallies(a);
        self.count_inner_misses(a);
        count(a, self.of(events.hit[2]));
        a.constant(STALL, self.of(events.stall[1]).into());
        self.count_inner_write_backs(a, second);
        a.rm(Code::Mov_r32_rm32, R11D, word);
        if self.writes() {
            a.ri(Code::And_rm32_imm8, R11D, !STATES);
            a.ri(Code::Or_rm32_imm8, R11D, MODIFIED_STATE);
        }
        a.rm(Code::Or_r32_rm32, R11D, exported!(l3_holder_mask));
        third.make_mru(a, L3_SET, way, R11);
        if self.writes() {
            a.constant(STATE, MODIFIED_STATE as u64);
        } else {
            self.state_inside(a, R11);
        }
        self.fill_inner_levels(a, second);
    }

    /// Serves a line that the third level does not have. First searches the peers for the line's tag: jumps to `slow` if a peer has the
    /// line.
    fn fill_from_memory(&self, a: &mut Assembler, second: Cache, third: Cache) {
        for peer in 0..self.shape.peers {
            self.set_of_peer(a, third, peer, R13);
            third.has(a, R13);
            a.jcc(cc::NE, self.slow);
        }
        self.check_l3_victim(a, second, third);
        a.copy(RAX, LINE);
        self.check_home(a);
        // The miss is certainly served from here on: state may be changed.
        let events = &self.shape.events;
        self.charge(a, 3);
        self.tallies(a);
        self.count_inner_misses(a);
        count(a, self.of(events.miss[2]));
        a.constant(STALL, self.of(events.stall[2]).into());
        self.request(a, events.memory[0], 0);
        let clean = a.label();
        is_modified(a, last(third, L3_SET));
        a.jcc(cc::NE, clean);
        count(a, events.write_back[2]);
        a.ri(
            Code::Add_rm64_imm32,
            STALL,
            events.write_back_stall[2] as i32,
        );
        self.charge_write_back(a, 2);
        self.request(a, events.memory[1], 1);
        a.bind(clean);
        self.count_inner_write_backs(a, second);
        // A stall is limited to 32 bits.
        a.constant(RAX, u32::MAX.into());
        a.rr(Code::Cmp_r64_rm64, STALL, RAX);
        a.rr(Code::Cmova_r64_rm64, STALL, RAX);
        let state = if self.writes() {
            MODIFIED_STATE
        } else {
            EXCLUSIVE_STATE
        };
        a.constant(STATE, state as u64);
        third.tag(a, LINE);
        a.ri(Code::Or_rm32_imm8, EAX, state);
        a.rm(Code::Or_r32_rm32, EAX, exported!(l3_holder_mask));
        a.copy(R11, RAX);
        third.replace_lru(a, L3_SET, R11);
        self.fill_inner_levels(a, second);
    }

    /// Counts the misses of the first two levels. RAX is the address of the tallies.
    fn count_inner_misses(&self, a: &mut Assembler) {
        for level in 0..2 {
            count(a, self.of(self.shape.events.miss[level]));
        }
    }

    /// Prefetches the line's set of the third level and of each peer, since these caches are large. Uses R13.
    fn prefetch(&self, a: &mut Assembler, third: Cache) {
        let set = |a: &mut Assembler, set| {
            a.m(Code::Prefetcht0_m8, at(set));
            // A set of more than 16 words takes more than one line of the host.
            if third.shape.stride > 16 {
                let last = 4 * i64::from(third.shape.stride - 1);
                a.m(Code::Prefetcht0_m8, at_offset(set, last));
            }
        };
        set(a, L3_SET);
        for peer in 0..self.shape.peers {
            self.set_of_peer(a, third, peer, R13);
            set(a, R13);
        }
    }

    /// Computes the line's set in a peer: as far from the peer's first word as [`L3_SET`] is from the third level's first word.
    fn set_of_peer(&self, a: &mut Assembler, third: Cache, peer: usize, set: Register) {
        let words = offset_of!(ExportedCaches, peers) + 8 * peer;
        a.rm(Code::Mov_r64_rm64, set, at_offset(EXPORTED, words as i64));
        a.rr(Code::Add_r64_rm64, set, L3_SET);
        a.rm(Code::Sub_r64_rm64, set, third.words());
    }

    /// Jumps to `slow` if a first level has the line that leaves the second level. Uses RAX and R11 to R13.
    fn check_l2_victim(&self, a: &mut Assembler, second: Cache) {
        let data = (self.data(), self.shape.data_holder_mask);
        let instruction = self.shape.instruction.map(|(shape, bit)| {
            let number = 1;
            let avx512 = self.avx512;
            let cache = Cache {
                shape,
                number,
                avx512,
            };
            (cache, bit)
        });
        let line = R11;
        for (inside, bit) in std::iter::once(data).chain(instruction) {
            let next = a.label();
            a.rm(Code::Mov_r32_rm32, sized(R12, 4), last(second, L2_SET));
            a.ri(Code::Test_rm32_imm32, sized(R12, 4), bit as i32);
            a.jcc(cc::E, next);
            second.line_of(a, R12, LINE, line);
            inside.set(a, line, R13);
            inside.tag(a, line);
            inside.look_for(a);
            inside.has(a, R13);
            a.jcc(cc::NE, self.slow);
            a.bind(next);
        }
    }

    /// Jumps to `slow` if a second level has the line that leaves the third level, or if that line is modified and outside the recent home.
    /// Uses RAX, R9 and R11 to R13.
    fn check_l3_victim(&self, a: &mut Assembler, second: Cache, third: Cache) {
        let (holders, position, line) = (R9, R12, R11);
        let (one, none) = (a.label(), a.label());
        a.rm(Code::Mov_r32_rm32, sized(holders, 4), last(third, L3_SET));
        third.line_of(a, holders, LINE, line);
        let bits = (1 << third.shape.tag_shift) - (1 << STATE_BITS);
        a.ri(Code::And_rm32_imm32, sized(holders, 4), bits);
        a.jcc(cc::E, none);
        second.tag(a, line);
        second.look_for(a);
        a.bind(one);
        a.rr(Code::Tzcnt_r32_rm32, sized(position, 4), sized(holders, 4));
        second.distance(a, line);
        // The lowest holder bit of a word is bit 3, and belongs to the first pointer.
        let inside = offset_of!(ExportedCaches, inner_caches) as i64 - 8 * i64::from(STATE_BITS);
        let words = MemoryOperand::new(EXPORTED, position, 8, inside, 1, false, Register::None);
        a.rm(Code::Add_r64_rm64, RAX, words);
        second.has(a, RAX);
        a.jcc(cc::NE, self.slow);
        a.rr(
            Code::VEX_Blsr_r32_rm32,
            sized(holders, 4),
            sized(holders, 4),
        );
        a.jcc(cc::NE, one);
        a.bind(none);
        is_modified(a, last(third, L3_SET));
        let clean = a.label();
        a.jcc(cc::NE, clean);
        a.copy(RAX, line);
        self.check_home(a);
        a.bind(clean);
    }

    /// Jumps to `slow` unless the line in RAX is within the address range of the recent home. Uses RAX and R13.
    fn check_home(&self, a: &mut Assembler) {
        a.ri(Code::Shl_rm64_imm8, RAX, LINE_SHIFT);
        a.rm(Code::Mov_r64_rm64, R13, exported!(recent_home));
        let bound = |field: usize| at_offset(R13, field as i64);
        a.rm(
            Code::Cmp_r64_rm64,
            RAX,
            bound(offset_of!(RecentHome, start)),
        );
        a.jcc(cc::B, self.slow);
        a.rm(Code::Cmp_r64_rm64, RAX, bound(offset_of!(RecentHome, last)));
        a.jcc(cc::A, self.slow);
    }

    /// Adds to [`STALL`] the latency of a request to the recent home. Counts the request as the first of the two `events` if the home is
    /// the vCPU's own socket, else as the second. RAX is the address of the tallies. Uses R9, R11 and R13.
    fn request(&self, a: &mut Assembler, events: [u32; 2], latencies: usize) {
        let (tally, latency, home) = (R13, R11, R9);
        let [local, remote] = events.map(|event| size_of::<Tally>() as u64 * u64::from(event));
        let rows = offset_of!(ExportedCaches, latencies) + 8 * latencies;
        a.rm(Code::Mov_r64_rm64, home, exported!(recent_home));
        a.rm(
            Code::Mov_r64_rm64,
            home,
            at_offset(home, offset_of!(RecentHome, home) as i64),
        );
        a.rm(
            Code::Mov_r64_rm64,
            latency,
            at_offset(EXPORTED, rows as i64),
        );
        let cycles = word_of(latency, home);
        a.rm(Code::Mov_r32_rm32, R11D, cycles);
        a.rm(Code::Cmp_r32_rm32, sized(home, 4), exported!(socket));
        a.constant(tally, local);
        a.constant(home, remote);
        a.rr(Code::Cmovne_r64_rm64, tally, home);
        a.rr(Code::Add_r64_rm64, tally, RAX);
        // Do the work of `Tally::add`.
        let field = |offset: usize| at_offset(tally, offset as i64);
        let latency_field = field(Tally::LATENCY);
        let (first, same) = (a.label(), a.label());
        a.mi(Code::Cmp_rm64_imm8, field(offset_of!(Tally, count)), 0);
        a.jcc(cc::E, first);
        a.mr(Code::Cmp_rm64_r64, latency_field, latency);
        a.jcc(cc::E, same);
        a.mi(
            Code::Mov_rm64_imm32,
            latency_field,
            Tally::VARIES as i64 as i32,
        );
        a.jmp(same);
        a.bind(first);
        a.mr(Code::Mov_rm64_r64, latency_field, latency);
        a.bind(same);
        a.m(Code::Inc_rm64, field(offset_of!(Tally, count)));
        a.mr(
            Code::Add_rm64_r64,
            field(offset_of!(Tally, cycles)),
            latency,
        );
        a.rr(Code::Add_r64_rm64, STALL, latency);
        if self.profiling {
            self.charge_request(a, latency, latencies == 0);
        }
    }

    /// Charges to the current record the `latency` of a request to the recent home. If the request `answers` the miss, counts the answer,
    /// too. Uses R9 and R13.
    fn charge_request(&self, a: &mut Assembler, latency: Register, answers: bool) {
        let (record, home) = (R13, R9);
        let (remote, done) = (a.label(), a.label());
        a.rm(Code::Mov_r64_rm64, home, exported!(recent_home));
        a.rm(
            Code::Mov_r64_rm64,
            home,
            at_offset(home, offset_of!(RecentHome, home) as i64),
        );
        self.record(a, record);
        a.rm(Code::Cmp_r32_rm32, sized(home, 4), exported!(socket));
        let charge = |a: &mut Assembler, source, term| {
            if answers {
                a.m(
                    Code::Inc_rm64,
                    at_offset(record, Record::answers(source) as i64),
                );
            }
            let cycles = at_offset(record, Record::cycles(term) as i64);
            a.mr(Code::Add_rm64_r64, cycles, latency);
        };
        a.jcc(cc::NE, remote);
        charge(a, Source::LocalMemory, StallTerm::LocalMemory);
        a.jmp(done);
        a.bind(remote);
        charge(a, Source::RemoteMemory, StallTerm::RemoteMemory);
        a.bind(done);
    }

    /// Counts write-backs of the lines that leave the first two levels. RAX is the address of the tallies. Uses R11.
    fn count_inner_write_backs(&self, a: &mut Assembler, second: Cache) {
        self.count_if_modified(a, last(second, L2_SET), 1);
        self.count_if_modified(a, at(VICTIM_WORD), 0);
    }

    /// Fills the line into the first two levels, in [`STATE`]. Uses RAX and R11.
    fn fill_inner_levels(&self, a: &mut Assembler, second: Cache) {
        second.tag(a, LINE);
        a.rr(Code::Or_r32_rm32, EAX, sized(STATE, 4));
        a.ri(Code::Or_rm32_imm32, EAX, self.shape.data_holder_mask as i32);
        a.copy(R11, RAX);
        second.replace_lru(a, L2_SET, R11);
        self.replace_victim_word(a);
    }
}

/// Returns the memory operand of a set's least recently used word.
fn last(cache: Cache, set: Register) -> MemoryOperand {
    at_offset(set, 4 * i64::from(cache.shape.ways - 1))
}

/// Sets ZF if the word's state is modified, else clears ZF. Uses R13.
fn is_modified(a: &mut Assembler, word: MemoryOperand) {
    a.rm(Code::Mov_r32_rm32, sized(R13, 4), word);
    a.ri(Code::And_rm32_imm8, sized(R13, 4), STATES);
    a.ri(Code::Cmp_rm32_imm8, sized(R13, 4), MODIFIED_STATE);
}
