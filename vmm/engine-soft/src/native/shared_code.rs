//! Translated code that nodes share.
//!
//! The nodes of a cluster run the same kernel and the same programs, mostly at the same linear addresses. Code outside of windows refers to
//! the vCPU only by a register, so that one copy serves all nodes. The key of shared code is its *page*: contents (4 KiB) and linear
//! address. Blocks of a page are chained for all nodes. Branches between pages use each vCPU's own jump cache.
//!
//! All bytes of a page with shared code count as code ([`nodescope_memory::CodeMap`]). A write to any of these bytes therefore ends the use
//! of the shared code, as it ends the use of decoded blocks. Pages that are often written to have code of their own in each node.
//!
//! Shared code is never thrown away before the last node ends, since any thread may be running it. When the memory for shared code is used
//! up, nodes make code of their own.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::num::NonZeroU32;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nodescope_memory::MOST_WRITES_OF_SHARED_PAGE;

use super::{BlockExit, CodeAddress, Host, TranslationCache};
use crate::block::{AddressHasher, Block, HostCode};
use crate::cpu::{Cpu, Mode};
use crate::features::Features;
use crate::softmmu::TlbLayout;

/// A page of shared code, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SharedPage(NonZeroU32);

/// Everything that all shared code depends on besides its page. Nodes with different values do not share code.
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
    /// Pages by the hash of their contents and their linear address.
    pages: HashMap<(blake3::Hash, u64), SharedPage>,
}

/// The shared code of a cluster's nodes. A thread may run the code without the lock, but takes the lock to find, make or chain code.
#[derive(Default)]
pub struct SharedTranslationCache {
    shared: Mutex<Shared>,
    /// Exits of the code, for threads that leave the code without the lock.
    exits: boxcar::Vec<BlockExit>,
}

// SAFETY: the pointers inside refer to operations and code of the same value. Code is only added, and never changed. Chain slots change,
// and are atomic.
unsafe impl Send for Shared {}

/// Pages of a node whose code is shared.
#[derive(Default)]
pub struct SharedPages {
    /// By physical and linear address of a page: the page's number, and the generation in which its contents were hashed.
    known: HashMap<(u64, u64), (u32, SharedPage), BuildHasherDefault<AddressHasher>>,
    /// The routine that enters shared code.
    pub enter: Option<CodeAddress>,
}

impl SharedTranslationCache {
    fn lock(&self) -> MutexGuard<'_, Shared> {
        // A panic ends the study: no code runs with the state that the panic left.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an exit of shared code.
    pub(super) fn exit(&self, n: u32) -> BlockExit {
        self.exits[n as usize]
    }

    /// Chains an exit to code of the same page.
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
    /// Returns whether this node shares code with others, and the vCPU runs 64-bit code outside a window.
    pub(super) fn shares_code(&mut self) -> bool {
        !self.attached && self.mode == Mode::Bits64 && self.code().is_shared()
    }

    /// Returns the page of shared code that a block lies in. Returns None where the code cannot be shared, for example because the page is
    /// often written to or the block lies in two pages.
    pub(super) fn shared_page(&mut self, block: &Block, ip: u64) -> Option<SharedPage> {
        if block.second_page != 0 || !block.is_current() {
            return None;
        }
        let physical = block.physical & !0xfff;
        let key = (physical, ip & !0xfff);
        let region = self.ram.region(physical)?;
        let offset = (physical - region.start) as usize;
        let generation = region.code.generation(offset);
        if generation > MOST_WRITES_OF_SHARED_PAGE {
            return None;
        }
        let known = self.code().shared_pages.known.get(&key);
        if let Some((_, page)) = known.filter(|(seen, _)| *seen == generation) {
            return Some(*page);
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

    /// Returns the code that another node has made of a block of this page, and adds the code to the block. Returns None where there is no
    /// such code.
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

    /// Translates a block for all nodes. Returns None where the block cannot be translated, or the memory for shared code is used up.
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
            // Another thread has made the code since this vCPU looked, perhaps as the first code of all.
            self.code().shared_pages.enter = shared.translation_cache.enter;
            drop(shared);
            self.add_native(block, ip, code, Some(page));
            return Some(code);
        }
        shared.translation_cache.page = Some(page);
        // The emitter uses the node's translation cache, so exchange it for the shared cache meanwhile.
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
