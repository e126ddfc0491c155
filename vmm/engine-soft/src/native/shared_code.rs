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
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use nodescope_memory::MOST_WRITES_OF_SHARED_PAGE;

use super::arena::SHARED_IN_LINE;
use super::{BlockExit, CodeAddress, Host, TranslationCache};
use crate::block::{AddressHasher, Block, HostCode};
use crate::code::Code;
use crate::cpu::{Cpu, Mode};
use crate::features::Features;
use crate::memory::is_canonical;
use crate::op::{RIP, Trap};
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

struct Shared {
    made_for: Option<MadeFor>,
    translation_cache: TranslationCache,
    /// Pages by the hash of their contents and their linear address.
    pages: HashMap<(blake3::Hash, u64), SharedPage>,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            made_for: None,
            translation_cache: TranslationCache::with_room(SHARED_IN_LINE),
            pages: HashMap::default(),
        }
    }
}

/// Code by its page, offset within the page, and key.
type Places = HashMap<(SharedPage, u16, u8), CodeAddress, BuildHasherDefault<AddressHasher>>;

/// Number of maps of places, each with a lock.
const SHARDS: usize = 64;

/// The shared code of a cluster's nodes. A thread may run the code without a lock, but takes the lock of `shared` to make or chain code.
pub struct SharedTranslationCache {
    shared: Mutex<Shared>,
    /// Code that was made. Finding code does not wait for another thread that translates.
    places: [Mutex<Places>; SHARDS],
    /// The routine that enters the code.
    enter: OnceLock<CodeAddress>,
    /// Exits of the code, for threads that leave the code without the lock.
    exits: boxcar::Vec<BlockExit>,
    /// True once the memory for the code is used up.
    full: AtomicBool,
}

impl Default for SharedTranslationCache {
    fn default() -> Self {
        Self {
            shared: Mutex::default(),
            places: std::array::from_fn(|_| Mutex::default()),
            enter: OnceLock::new(),
            exits: boxcar::Vec::default(),
            full: AtomicBool::new(false),
        }
    }
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

    /// Locks the places of the code of a page.
    fn places(&self, page: SharedPage) -> MutexGuard<'_, Places> {
        let shard = &self.places[page.0.get() as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the code at an instruction pointer in a page, for a key.
    pub(super) fn find(&self, page: SharedPage, ip: u64, key: u8) -> Option<CodeAddress> {
        let place = (page, (ip & 0xfff) as u16, key);
        self.places(page).get(&place).copied()
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

    /// Returns the shared code at the instruction pointer, if another node has made code there. The node then needs no basic block of its
    /// own: most code of a node never runs before another node has translated the code.
    pub fn shared_code_here(&mut self) -> Result<Option<CodeAddress>, Trap> {
        let ip = self.gpr[RIP as usize];
        let native = &self.native;
        if !native.enabled || native.interpret_next || !self.shares_code() || !is_canonical(ip) {
            return Ok(None);
        }
        let page = self.code_page(ip)?;
        if page.host.is_null() {
            return Ok(None);
        }
        let Some(shared_page) = self.shared_page(page.physical, ip) else {
            return Ok(None);
        };
        let Some(code) = self.find_shared(ip, shared_page) else {
            return Ok(None);
        };
        self.catch_up();
        self.blocks.note_code(ip, page.physical);
        let table = usize::from(self.cpl == 3);
        let branched = self.native.missed_ip == Some(ip);
        self.native.jump_cache.add(table, ip, code, branched);
        if let Some(n) = self.native.unchained_exit.take() {
            self.chain(n, self.host_code(ip, code, Some(shared_page)));
        }
        Ok(Some(code))
    }

    /// Returns the page of shared code that a block lies in. Returns None where the code cannot be shared, for example because the page is
    /// often written to or the block lies in two pages.
    pub(super) fn shared_page_of(&mut self, block: &Block, ip: u64) -> Option<SharedPage> {
        if block.second_page != 0 || !block.is_current() {
            return None;
        }
        self.shared_page(block.physical & !0xfff, ip)
    }

    /// Returns the page of shared code at a physical address to which the page of `ip` is mapped. All bytes of the page then count as code.
    fn shared_page(&mut self, physical: u64, ip: u64) -> Option<SharedPage> {
        let key = (physical, ip & !0xfff);
        let known = self.code().shared_pages.known.get(&key).copied();
        let region = self.ram.region(physical)?;
        let offset = (physical - region.start) as usize;
        let generation = region.code.generation(offset);
        if generation > MOST_WRITES_OF_SHARED_PAGE {
            return None;
        }
        if let Some((_, page)) = known.filter(|(seen, _)| *seen == generation) {
            return Some(page);
        }
        if region.code.mark(offset, 1) {
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
        drop(shared);
        let known = &mut self.code().shared_pages.known;
        known.insert(key, (generation, page));
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
        let code = self.find_shared(ip, page)?;
        block.add_native(self.host_code(ip, code, Some(page)));
        Some(code)
    }

    /// Returns the code that another node has made at an instruction pointer in this page.
    fn find_shared(&mut self, ip: u64, page: SharedPage) -> Option<CodeAddress> {
        let key = self.code_key;
        let Code {
            pool, shared_pages, ..
        } = self.code();
        let cache = &pool.translation_cache;
        let code = cache.find(page, ip, key)?;
        shared_pages.enter = cache.enter.get().copied();
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
        let pool = self.code().pool.clone();
        if pool.translation_cache.full.load(Ordering::Relaxed) {
            return None;
        }
        let instructions = self.instructions_of(block, ip)?;
        let mut shared = pool.translation_cache.lock();
        if let Some(code) = self.shared_code(block, ip, page) {
            // Another thread has made the code since this vCPU looked, perhaps as the first code of all.
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
        (pool.translation_cache.full).store(cache.full, Ordering::Relaxed);
        let code = code?;
        for exit in &cache.exits[pool.translation_cache.exits.count()..] {
            pool.translation_cache.exits.push(*exit);
        }
        let enter = cache.enter.expect("an arena with code has this routine");
        pool.translation_cache.enter.get_or_init(|| enter);
        let place = (page, (ip & 0xfff) as u16, self.code_key);
        pool.translation_cache.places(page).insert(place, code);
        self.code().shared_pages.enter = Some(enter);
        Some(code)
    }
}
