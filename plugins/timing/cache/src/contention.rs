//! Lines that vCPUs take from each other: how long a reference waits for such a line, and how long a vCPU keeps the line.
//!
//! The vCPUs of a node run one after the other, each for a time slice. Within its time slice a vCPU would have every line to itself. Four
//! rules correct the time of lines that other vCPUs want:
//!
//! - **Order.** A reference to data that another vCPU wrote is answered no earlier than the write. Data are such if the reference touches
//!   bytes that the other vCPU wrote, or if one of both instructions is locked: a locked instruction has the line for itself
//!   (SDM vol. 3A §9.1.2).
//! - **Store buffer.** A store that is not locked does not wait for its line. The vCPU goes on, and the data are there when the line has come
//!   and all earlier stores to such lines have left the store buffer. A locked instruction waits for these stores.
//! - **Keeping.** A vCPU that has taken a line in this way goes on for [`Keep::locked`] cycles, even beyond its time slice. Without this
//!   rule a vCPU would take the line once for each instruction.
//! - **Loss.** Where vCPUs write different bytes of a line, nothing orders them. Then a vCPU loses the line [`Keep::stores`] cycles after
//!   it has taken it, and takes it again from each of the others.
//!
//! To know the time of the last write, the model sees all writes to a line that was taken from another vCPU, for [`WATCH`] cycles.

use std::collections::BTreeMap;

use nodescope_plugin_api::{
    Access, ContendedLine, Context, LineMoves, LineUse, MemRef, Outcome, Permission, Privilege,
    Site,
};

use crate::config::Keep;
use crate::events::SystemEvent;
use crate::hierarchy::Hierarchy;
use crate::tree::Tree;
use crate::word::Word;

/// Cycles after a line was last taken for which all writes to the line reach the model.
const WATCH: u64 = 20_000;

/// Cycles after a line was last taken in which other vCPUs are still expected to take the line.
const WANTED: u64 = 1_000;

/// Number of lines that are watched at a time; a power of two.
const SLOTS: usize = 1024;

/// Maximum numbers of lines whose uses are recorded, and of recorded uses of a line. The first ones are recorded.
const MOST_LINES: usize = 4096;
const MOST_USES: usize = 256;

/// A line that one vCPU took from another.
#[derive(Clone, Copy, Debug)]
struct Taken {
    line: u64,
    /// The vCPU that took the line last.
    owner: u16,
    /// Clock at which the owner got the line.
    at: u64,
    /// Cycles in which the owner got the line.
    cost: u64,
    /// True if the owner had to wait for the write of another vCPU, whose clock is `after`.
    ordered: bool,
    after: u64,
    /// Clock until which the owner has the line, although others want it.
    keeps_until: u64,
    /// vCPUs that have taken the line lately, one bit each, modulo 64.
    takers: u64,
    /// The last write: vCPU, clock, and whether the instruction was locked.
    writer: u16,
    written_at: u64,
    locked: bool,
    /// Bytes that the last writer has written since it took the line, in pieces of 1/64 of the line.
    written: u64,
}

/// Watched lines of a node.
pub(crate) struct Contention {
    /// Watched lines by a hash of their number. Of two lines with one hash, the later one is watched.
    slots: Box<[Option<Taken>]>,
    /// True once a line was watched.
    any: bool,
    moves: LineMoves,
    /// Clock of each vCPU at which its last store to a watched line has left the store buffer.
    drained: Vec<u64>,
    /// Uses of lines since the statistics were last cleared.
    uses: BTreeMap<u64, Uses>,
}

/// Uses of one line.
type Uses = BTreeMap<(u16, Context, Privilege, Site, bool), LineUse>;

impl Default for Contention {
    fn default() -> Self {
        Contention {
            slots: vec![None; SLOTS].into(),
            any: false,
            moves: LineMoves::default(),
            drained: Vec::new(),
            uses: BTreeMap::new(),
        }
    }
}

impl Contention {
    fn number(line: u64) -> usize {
        (line.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SLOTS.ilog2())) as usize
    }

    fn slot(&mut self, line: u64) -> &mut Option<Taken> {
        &mut self.slots[Self::number(line)]
    }

    /// Returns whether a line is watched.
    #[inline(always)]
    fn watches(&self, line: u64) -> bool {
        self.any && matches!(&self.slots[Self::number(line)], Some(taken) if taken.line == line)
    }

    fn drained(&self, vcpu: u16) -> u64 {
        let drained = self.drained.get(usize::from(vcpu));
        drained.copied().unwrap_or(0)
    }

    fn set_drained(&mut self, vcpu: u16, clock: u64) {
        let vcpu = usize::from(vcpu);
        if self.drained.len() <= vcpu {
            self.drained.resize(vcpu + 1, 0);
        }
        self.drained[vcpu] = clock;
    }

    fn find(&mut self, line: u64) -> Option<&mut Taken> {
        self.slot(line).as_mut().filter(|taken| taken.line == line)
    }

    pub(crate) fn moves(&self) -> LineMoves {
        self.moves
    }

    /// Adds a reference to the uses of a line: how often the line came from another vCPU, and the cycles of the wait.
    fn record(&mut self, tree: &Tree, reference: &MemRef, line: u64, taken: u64, cycles: u64) {
        if self.uses.len() >= MOST_LINES && !self.uses.contains_key(&line) {
            return;
        }
        let uses = self.uses.entry(line).or_default();
        let MemRef {
            vcpu,
            context,
            privilege,
            access,
            site,
            locked,
            ..
        } = *reference;
        let key = (vcpu, context, privilege, site, access == Access::Write);
        if uses.len() >= MOST_USES && !uses.contains_key(&key) {
            return;
        }
        let of_line = !((1 << tree.line_shift) - 1);
        let of_site = uses.entry(key).or_insert(LineUse {
            vcpu,
            context,
            privilege,
            site,
            access,
            locked,
            linear: reference.linear & of_line,
            touched: 0,
            taken: 0,
            cycles: 0,
        });
        of_site.touched |= pieces(tree, reference);
        of_site.taken += taken;
        of_site.cycles += cycles;
    }

    /// Forgets the recorded uses.
    pub(crate) fn clear(&mut self) {
        self.uses.clear();
    }

    /// Returns the recorded uses.
    pub(crate) fn lines(&self, tree: &Tree) -> Vec<ContendedLine> {
        let lines = self.uses.iter().map(|(line, uses)| ContendedLine {
            physical: line << tree.line_shift,
            size: 1 << tree.line_shift,
            uses: uses.values().copied().collect(),
        });
        lines.collect()
    }
}

/// Returns the pieces of a line that a reference touches.
fn pieces(tree: &Tree, reference: &MemRef) -> u64 {
    let shift = tree.line_shift.saturating_sub(6);
    let first = (reference.physical & ((1 << tree.line_shift) - 1)) >> shift;
    let last = first + u64::from(reference.size.saturating_sub(1) >> shift);
    (u64::MAX >> (63 - last.min(63))) & (u64::MAX << first.min(63))
}

impl<W: Word> Hierarchy<W> {
    /// Accounts for a reference to data that another core's cache had modified, whose request has cost its transfer so far. Adds the time
    /// until the write of these data to the request.
    #[cold]
    #[inline(never)]
    pub(crate) fn take(&mut self, tree: &Tree, keep: Keep, reference: &MemRef, line: u64) {
        let MemRef {
            vcpu, now, locked, ..
        } = *reference;
        let cost = self.request.stall;
        let touched = pieces(tree, reference);
        let before = self.contention.find(line).copied();
        let ordered = before.filter(|before| {
            before.writer != vcpu && (locked || before.locked || before.written & touched != 0)
        });
        let lately = before.filter(|before| now.saturating_sub(before.at) < WANTED);
        let takers = lately.map_or(0, |before| before.takers | 1 << (before.owner % 64));
        let after = ordered.map_or(0, |before| before.written_at);
        let mut wait = 0;
        if !self.request.buffered {
            wait = after.saturating_sub(now);
            if locked {
                wait = wait.max(self.contention.drained(vcpu).saturating_sub(now));
            }
            if wait > 0 {
                self.charge_contention(tree, SystemEvent::Wait, wait);
            }
        }
        let at = now + cost + wait;
        let kept = match ordered {
            Some(_) => keep.locked,
            None => keep.stores,
        };
        let taken = Taken {
            line,
            owner: vcpu,
            at,
            cost,
            after,
            ordered: ordered.is_some(),
            keeps_until: at + u64::from(kept),
            takers: takers | 1 << (vcpu % 64),
            writer: vcpu,
            written_at: 0,
            locked: false,
            written: 0,
        };
        *self.contention.slot(line) = Some(match before {
            // A reader leaves the last write as it was.
            Some(before) if reference.access == Access::Read => Taken {
                writer: before.writer,
                written_at: before.written_at,
                locked: before.locked,
                written: before.written,
                ..taken
            },
            _ => taken,
        });
        self.contention.any = true;
        self.contention.moves.count += 1;
        self.contention.moves.keeps_until = taken.keeps_until;
        self.contention
            .record(tree, reference, line, 1, cost + wait);
    }

    /// Returns the answer to a reference after which the vCPU has the line. If the line is watched, records a write, and grants no writes.
    /// `taken` says that [`Hierarchy::take`] has accounted for the reference.
    #[inline(always)]
    pub(crate) fn watched(
        &mut self,
        tree: &Tree,
        outcome: Outcome,
        reference: &MemRef,
        line: u64,
        taken: bool,
    ) -> Outcome {
        let Some(keep) = tree.keep else {
            return outcome;
        };
        if reference.access == Access::Fetch || !self.contention.watches(line) {
            return outcome;
        }
        match reference.access == Access::Write {
            true => self.write_watched(tree, keep, outcome, reference, line, taken),
            false => read_only(outcome, 0),
        }
    }

    /// Begins the request of a reference whose line may be watched. The store buffer hides the cycles of transfers if the reference is a
    /// write that is not locked, to a watched line.
    #[inline(always)]
    pub(crate) fn begin_watching(&mut self, reference: &MemRef, line: u64) {
        self.request.taken = false;
        self.request.hidden = 0;
        self.request.buffered =
            reference.access == Access::Write && !reference.locked && self.contention.watches(line);
    }

    /// Records a write to a watched line.
    #[cold]
    #[inline(never)]
    fn write_watched(
        &mut self,
        tree: &Tree,
        keep: Keep,
        outcome: Outcome,
        reference: &MemRef,
        line: u64,
        just_taken: bool,
    ) -> Outcome {
        let MemRef {
            vcpu, now, locked, ..
        } = *reference;
        let stall = u64::from(outcome.stall());
        let hidden = std::mem::take(&mut self.request.hidden);
        let drained = self.contention.drained(vcpu);
        let Some(taken) = self.contention.find(line) else {
            return outcome;
        };
        if taken.owner == vcpu && now > taken.at + WATCH {
            *self.contention.slot(line) = None;
            return outcome;
        }
        let own = 1 << (vcpu % 64);
        let others = u64::from((taken.takers & !own).count_ones());
        // Other vCPUs take the line, and this one takes it back.
        let mut lost = 0;
        // Times that the line came from another vCPU, and the cycles for it beyond those that are recorded already.
        let mut times = 0;
        let mut waited = match just_taken {
            true => 0,
            false => stall,
        };
        let shared = taken.owner != vcpu;
        if shared {
            // The vCPU shares the line with the last reader, and takes it alone.
            times = 1;
            taken.owner = vcpu;
            taken.takers |= own;
            taken.ordered = false;
            taken.after = 0;
        } else if !taken.ordered && now >= taken.keeps_until && now < taken.at + WANTED {
            lost = taken.cost * others;
            times = others;
            taken.keeps_until = now + lost + u64::from(keep.stores);
        } else if !just_taken {
            taken.cost += stall;
        }
        // A locked instruction waits for the stores before it.
        let wait = match locked && !just_taken {
            true => drained.saturating_sub(now),
            false => 0,
        };
        let retired = now + stall + lost + wait;
        let written_at = match locked {
            true => retired,
            // Stores ask for their lines at once, and leave the store buffer in order (SDM vol. 3A §9.2.3.2).
            false => (retired.max(taken.after) + hidden).max(drained),
        };
        if just_taken || shared || hidden > 0 {
            let kept = match taken.ordered {
                true => keep.locked,
                false => keep.stores,
            };
            taken.at = written_at;
            taken.keeps_until = retired + u64::from(kept);
            self.contention.moves.keeps_until = retired + u64::from(kept);
        }
        let Some(taken) = self.contention.find(line) else {
            return outcome;
        };
        if taken.writer != vcpu {
            taken.writer = vcpu;
            taken.written = 0;
        }
        taken.written |= pieces(tree, reference);
        taken.written_at = written_at;
        taken.locked = locked;
        waited += lost + wait;
        self.contention.set_drained(vcpu, written_at);
        self.contention.moves.count += u64::from(shared);
        self.contention.record(tree, reference, line, times, waited);
        for (event, cycles) in [(SystemEvent::Retake, lost), (SystemEvent::Wait, wait)] {
            if cycles > 0 {
                self.begin_request(reference);
                self.charge_contention(tree, event, cycles);
            }
        }
        read_only(outcome, lost + wait)
    }
}

/// Returns an answer with more cycles that permits no writes.
fn read_only(outcome: Outcome, more: u64) -> Outcome {
    let stall = u64::from(outcome.stall()) + more;
    Outcome::new(
        u32::try_from(stall).unwrap_or(u32::MAX),
        outcome.permission().min(Permission::Read),
        outcome.replaced(),
    )
}
