//! Translated code that nodes share.
//!
//! The nodes of a cluster run the same kernel and the same programs, mostly at the same linear addresses. Code outside of windows refers to
//! the vCPU by a register alone, so that one copy serves all nodes. It is kept by *page*: the contents of 4 KiB, and the linear address that
//! they lie at. Within a page blocks are linked directly, whoever linked them; between pages they lead through tables of each vCPU.
//!
//! A node that uses the code of a page counts all bytes of the page as code. A write to any of them therefore ends the use of the code, as
//! it ends the use of decoded blocks. A page that is written to again and again has code of its own in each node.
//!
//! Nothing of it is thrown away before the last node ends, since nobody knows which threads run it. Where the room is used up, nodes make
//! code of their own.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::num::NonZeroU32;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{BlockExit, CodeAddress, Host, TranslationCache};
use crate::block::{AddressHasher, Block, HostCode};
use crate::cpu::{Cpu, Mode};
use crate::features::Features;
use crate::softmmu::TlbLayout;

/// Writes to a page's code after which a node no longer shares the page's code.
const MOST_REWRITES: u32 = 16;

/// A page of shared code, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SharedPage(NonZeroU32);

/// Everything but the page that code depends on: nodes in which this differs do not share code.
#[derive(Clone, Copy, PartialEq, Eq)]
struct MadeFor {
    features: Features,
    layout: TlbLayout,
    host: Host,
}

#[derive(Default)]
struct Shared {
    made_for: Option<MadeFor>,
    translation_cache: TranslationCache,
    /// By the contents' hash and the linear address.
    pages: HashMap<(blake3::Hash, u64), SharedPage>,
}

/// The shared code of a cluster's nodes. Any thread may run it; only who looks for code, makes or links it takes the lock.
#[derive(Default)]
pub struct SharedTranslationCache {
    shared: Mutex<Shared>,
    /// Exits of the code, for who leaves it.
    exits: boxcar::Vec<BlockExit>,
}

// SAFETY: the pointers inside refer to operations and code of the same value. Code is only added, and what was added does not change; cells,
// which do, are atomic.
unsafe impl Send for Shared {}

/// Pages of a node whose code is shared.
#[derive(Default)]
pub struct SharedPages {
    /// By physical and linear address of the page: its number, and its generation at that time.
    known: HashMap<(u64, u64), (u32, SharedPage), BuildHasherDefault<AddressHasher>>,
    /// Where shared code is entered.
    pub enter: Option<CodeAddress>,
}

impl SharedTranslationCache {
    fn lock(&self) -> MutexGuard<'_, Shared> {
        // A panic ends the study: nothing runs on what it left behind.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an exit of shared code.
    pub(super) fn exit(&self, n: u32) -> BlockExit {
        self.exits[n as usize]
    }

    /// Lets an exit lead to code of the same page.
    pub(super) fn chain(&self, n: u32, native: HostCode) {
        let block_exit = self.exit(n & !super::SHARED_EXIT);
        if native.page.is_some() && block_exit.page == native.page {
            let mut shared = self.lock();
            let n = n & !super::SHARED_EXIT;
            shared.translation_cache.chain(n, native.ip, native.code);
        }
    }

    /// Returns the number of blocks that were translated for all nodes.
    pub fn len(&self) -> usize {
        self.lock().translation_cache.len()
    }
}

impl Cpu {
    /// Whether this node shares code with others, and what runs now is such code.
    pub(super) fn shares_code(&mut self) -> bool {
        !self.attached && self.mode == Mode::Bits64 && self.code().is_shared()
    }

    /// The page of shared code that a block lies in; None where the page is written to often, or where a block lies in two pages.
    pub(super) fn shared_page(&mut self, block: &Block, ip: u64) -> Option<SharedPage> {
        if block.second_page != 0 || !block.is_current() {
            return None;
        }
        let physical = block.physical & !0xfff;
        let key = (physical, ip & !0xfff);
        let region = self.ram.region(physical)?;
        let offset = (physical - region.start) as usize;
        let generation = region.code.generation(offset);
        if generation > MOST_REWRITES {
            return None;
        }
        let known = self.code().shared_pages.known.get(&key);
        if let Some((_, page)) = known.filter(|(seen, _)| *seen == generation) {
            return Some(*page);
        }
        let region = self.ram.region(physical)?;
        if region.code.mark(offset, 4096) {
            self.data_tlb.revoke_writes();
        }
        let mut contents = [0_u8; 4096];
        self.copy_physical(physical, &mut contents)?;
        let hash = blake3::hash(&contents);
        let made_for = MadeFor {
            features: self.features,
            layout: self.data_tlb.layout(),
            host: self.native.host,
        };
        let pool = self.code().pool.clone();
        let mut shared = pool.translation_cache.lock();
        let theirs = shared.made_for.get_or_insert(made_for);
        if *theirs != made_for {
            return None;
        }
        let next = NonZeroU32::new(shared.pages.len() as u32 + 1)?;
        let page = *shared
            .pages
            .entry((hash, key.1))
            .or_insert(SharedPage(next));
        let enter = shared.translation_cache.enter;
        drop(shared);
        let pages = &mut self.code().shared_pages;
        pages.enter = pages.enter.or(enter);
        pages.known.insert(key, (generation, page));
        Some(page)
    }

    /// The code that another node has made of a block of this page; the block has it from now on.
    pub(super) fn shared_code(
        &mut self,
        block: &Block,
        ip: u64,
        page: SharedPage,
    ) -> Option<CodeAddress> {
        let place = (page, (ip & 0xfff) as u16, self.code_key);
        let pool = self.code().pool.clone();
        let shared = pool.translation_cache.lock();
        let code = *shared.translation_cache.by_page.get(&place)?;
        let enter = shared.translation_cache.enter;
        drop(shared);
        self.code().shared_pages.enter = enter;
        self.add_native(block, ip, code, Some(page));
        Some(code)
    }

    /// Translate a block for all nodes; None where there is no room.
    #[cold]
    #[inline(never)]
    pub(super) fn translate_shared(
        &mut self,
        block: &Block,
        ip: u64,
        page: SharedPage,
    ) -> Option<CodeAddress> {
        let instructions = self.instructions_of(block, ip)?;
        let pool = self.code().pool.clone();
        let mut shared = pool.translation_cache.lock();
        if shared.translation_cache.full {
            return None;
        }
        let place = (page, (ip & 0xfff) as u16, self.code_key);
        if let Some(code) = shared.translation_cache.by_page.get(&place).copied() {
            drop(shared);
            self.add_native(block, ip, code, Some(page));
            return Some(code);
        }
        shared.translation_cache.page = Some(page);
        // The emitter finds the shared code in the place of the node's own.
        std::mem::swap(
            &mut self.code().translation_cache,
            &mut shared.translation_cache,
        );
        let code = if self.prepare_arena() {
            self.emit_or_forget(block, ip, &instructions)
        } else {
            None
        };
        std::mem::swap(
            &mut self.code().translation_cache,
            &mut shared.translation_cache,
        );
        let cache = &mut shared.translation_cache;
        cache.page = None;
        let code = code?;
        cache.by_page.insert(place, code);
        for exit in &cache.exits[pool.translation_cache.exits.count()..] {
            pool.translation_cache.exits.push(*exit);
        }
        self.code().shared_pages.enter = cache.enter;
        Some(code)
    }
}
