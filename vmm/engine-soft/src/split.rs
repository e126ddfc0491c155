//! Accesses that lie in two cache lines (split accesses) while a model is attached.
//!
//! Memory from `malloc` is aligned to 16 bytes. In an array that is not aligned to 32 bytes, every other vector of 32 bytes is split. Both
//! lines are asked for, the lower one first. Each line that the L0 filter cache does not permit is reported to the model, as for any other
//! access. The interpreter and translated code (`native/split.rs`) both go by the rule of [`Cpu::split_is_known`].

use nodescope_plugin_api::Access;

use crate::cpu::Cpu;
use crate::site::Origin;
use crate::softmmu::{Baseline, Isa};

/// Host addresses of the two pieces of a split access, and the bytes of the first piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    hosts: [*mut u8; 2],
    first: usize,
}

impl Split {
    /// Makes a split access from the host addresses of both pieces, guest RAM to which the TLB permits the access. `first`: bytes of the
    /// first piece.
    pub fn new(hosts: [*mut u8; 2], first: usize) -> Self {
        Self { hosts, first }
    }

    /// Returns the host address of the whole access, if both pieces are neighbours on the host.
    pub fn in_one_piece(&self) -> Option<*mut u8> {
        let [lower, upper] = self.hosts;
        (lower.wrapping_add(self.first) == upper).then_some(lower)
    }

    /// Reads from both pieces.
    ///
    /// # Safety
    /// `self` is the answer to a read of `to.len()` bytes ([`Cpu::split`], [`Cpu::split_on`], or the routines of `native/split.rs`), and
    /// the same operation still runs.
    pub unsafe fn read(&self, to: &mut [u8]) {
        let (lower, upper) = to.split_at_mut(self.first);
        for (host, to) in self.hosts.into_iter().zip([lower, upper]) {
            // SAFETY: guest RAM has `to.len()` bytes from `host` on, by the caller's promise; `to` is not guest RAM.
            unsafe { std::ptr::copy_nonoverlapping(host, to.as_mut_ptr(), to.len()) };
        }
    }

    /// Writes to both pieces.
    ///
    /// # Safety
    /// `self` is the answer to a write of `from.len()` bytes, as in [`Split::read`], and the same operation still runs.
    pub unsafe fn write(&self, from: &[u8]) {
        let (lower, upper) = from.split_at(self.first);
        for (host, from) in self.hosts.into_iter().zip([lower, upper]) {
            // SAFETY: as in `read`.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), host, from.len()) };
        }
    }
}

impl Cpu {
    /// Looks up both lines of an access that lies in two lines. Returns None, with nothing done, where no model is attached, the access
    /// lies in one line or in more than two lines, or the TLB cannot prove that the access succeeds.
    #[inline]
    pub fn split(&mut self, linear: u64, len: usize, write: bool) -> Option<Split> {
        if !self.attached {
            return None;
        }
        if let Some(served) = self.native.served(linear, len, write) {
            return Some(served);
        }
        let access = if write { Access::Write } else { Access::Read };
        self.split_on(Baseline, linear, len, write, self.origin(access))
    }

    /// Looks up both lines as [`Cpu::split`] does, where translated code has not looked them up.
    #[inline(always)]
    pub fn split_on(
        &mut self,
        isa: impl Isa,
        linear: u64,
        len: usize,
        write: bool,
        origin: Origin,
    ) -> Option<Split> {
        if !self.split_is_known(linear, len, write) {
            return None;
        }
        let first = self.data_tlb.room(linear);
        let lower = self.piece(isa, linear, first, write, origin)?;
        let second = linear.wrapping_add(first as u64);
        let upper = self.piece(isa, second, len - first, write, origin)?;
        self.count_split(write);
        Some(Split::new([lower, upper], first))
    }

    /// Looks up the second line as [`Cpu::split`] does, where translated code has looked up the first line, which is at `lower`. None if no
    /// entry of the TLB permits the access; then nothing has changed.
    #[inline(always)]
    pub fn second_piece(
        &mut self,
        isa: impl Isa,
        lower: *mut u8,
        linear: u64,
        len: usize,
        write: bool,
        origin: Origin,
    ) -> Option<Split> {
        let first = self.data_tlb.room(linear);
        let second = linear.wrapping_add(first as u64);
        let upper = self.piece(isa, second, len - first, write, origin)?;
        self.count_split(write);
        Some(Split::new([lower, upper], first))
    }

    /// Returns whether the TLB proves that both pieces of an access succeed, so that nothing can fail once the first line was looked up.
    /// Either the TLB has the pages of both lines; or the first line is the most recently used of its set, and a way of the second line's
    /// set or the TLB's entry of the second page permits the access. Changes nothing.
    pub fn split_is_known(&self, linear: u64, len: usize, write: bool) -> bool {
        let first = self.data_tlb.room(linear);
        if len <= first || len - first > self.data_tlb.room(0) {
            return false;
        }
        let (second, rest) = (linear.wrapping_add(first as u64), len - first);
        let page_known = |linear| self.data_tlb.find_page(linear, write).is_some();
        if self
            .data_tlb
            .find_most_recent(linear, first, write)
            .is_some()
        {
            self.data_tlb
                .find_most_recent(second, rest, write)
                .is_some()
                || self.data_tlb.find_way(second, write).is_some()
                || page_known(second)
        } else {
            page_known(linear) && page_known(second)
        }
    }

    /// Looks up one of the pieces, and reports a miss to the model. Returns the piece's host address.
    #[inline(always)]
    fn piece(
        &mut self,
        isa: impl Isa,
        linear: u64,
        len: usize,
        write: bool,
        origin: Origin,
    ) -> Option<*mut u8> {
        if let Some(host) = self.data_tlb.find_most_recent(linear, len, write) {
            return Some(host);
        }
        if let Some(host) = self.data_tlb.promote(linear, len, write) {
            return Some(host);
        }
        let access = if write { Access::Write } else { Access::Read };
        self.report_miss_in_known_page(isa, linear, len, access, origin)
    }

    /// Counts the access to the second line as another load or store: the instruction itself counts as one access.
    pub fn count_split(&mut self, write: bool) {
        self.count_accesses(u64::from(!write), u64::from(write));
    }
}
