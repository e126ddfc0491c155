//! Decoded code that nodes share.
//!
//! The nodes of a cluster mostly run the same kernel and the same programs. The decoded operations of a block depend on its bytes, its
//! offset within the page and the decoder's features, never on addresses, so that one copy serves all nodes. Each node has its own record
//! of the block's address and of whether the block's bytes are still the decoded bytes ([`crate::block::Block`]).

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nodescope_plugin_api::FLOP_CLASSES;

use crate::block::AddressHasher;
use crate::block_costs::CostNumbers;
use crate::features::Features;
use crate::fetch::MAX_BLOCK;
use crate::native::SharedTranslationCache;
use crate::op::Op;
use crate::ops::simd::Stubs;

/// The operations of a block, and their sums.
pub struct Decoded {
    /// Operations of the block, in order.
    pub ops: Box<[Op]>,
    /// Length in bytes.
    pub len: u32,
    /// Data reads of all operations.
    pub loads: u32,
    /// Data writes of all operations.
    pub stores: u32,
    /// Floating-point operations of all operations; None where there are none.
    pub flops: Option<Box<[u32; FLOP_CLASSES]>>,
    /// Number of times that the interpreters of all nodes executed the operations, where nodes share code.
    executions: AtomicU32,
}

impl Decoded {
    /// Makes a block's code of `len` bytes from its operations, and sums up their counts.
    pub fn new(ops: Vec<Op>, len: u32) -> Self {
        let mut flops = [0_u32; FLOP_CLASSES];
        for op in &ops {
            flops[usize::from(op.flop_class)] += u32::from(op.flops);
        }
        Self {
            loads: ops.iter().map(|o| u32::from(o.loads)).sum(),
            stores: ops.iter().map(|o| u32::from(o.stores)).sum(),
            flops: flops.iter().any(|&n| n > 0).then(|| Box::new(flops)),
            ops: ops.into(),
            len,
            executions: AtomicU32::new(0),
        }
    }

    /// Counts an execution by the interpreter of any node; returns the count.
    pub fn count_execution(&self) -> u32 {
        let before = self.executions.fetch_add(1, Ordering::Relaxed);
        before.saturating_add(1)
    }
}

/// Number of leading code bytes that the hash of an entry covers.
const PREFIX: usize = 16;
/// Number of shards, each with a lock: nodes run on a few host threads.
const SHARDS: usize = 64;
/// Smallest number of operations in a shard at which unused entries are thrown away.
const SWEEP: usize = 1 << 14;

/// Decoded operations, with the bytes that they were decoded from.
struct Entry {
    /// Bytes that decide how the code is decoded: the bytes of the block, or all bytes up to the page's end if the page's end has cut the
    /// block.
    bytes: Box<[u8]>,
    features: Features,
    decoded: Arc<Decoded>,
}

/// Entries whose offset within the page and first bytes have the same hash.
type Bucket = Vec<Entry>;

struct Shard {
    entries: HashMap<u64, Bucket, BuildHasherDefault<AddressHasher>>,
    /// Operations of all entries.
    operations: usize,
    /// Number of operations at which unused entries are thrown away.
    bound: usize,
}

impl Default for Shard {
    fn default() -> Self {
        Self {
            entries: HashMap::default(),
            operations: 0,
            bound: SWEEP,
        }
    }
}

impl Shard {
    /// Throws away the entries that no node uses. The next sweep follows when the number of operations has doubled, so that sweeps cost
    /// little per entry.
    fn sweep(&mut self) {
        let mut operations = 0;
        self.entries.retain(|_, bucket| {
            bucket.retain(|entry| Arc::strong_count(&entry.decoded) > 1);
            operations += bucket.iter().map(|e| e.decoded.ops.len()).sum::<usize>();
            !bucket.is_empty()
        });
        self.operations = operations;
        self.bound = SWEEP.max(2 * operations);
    }
}

/// Counts of blocks that were decoded, and of blocks whose decoded operations were in the pool already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCounts {
    /// Blocks that were decoded.
    pub decoded: u64,
    /// Blocks whose decoded operations were in the pool already.
    pub shared: u64,
}

/// Decoded code that nodes share, and the native code that its operations refer to. Any thread may use the pool. Execution takes no lock of
/// the pool; decoding, and translation and chaining of shared code do.
pub struct DecodedPool {
    shards: [Mutex<Shard>; SHARDS],
    stubs: Mutex<Stubs>,
    /// Translated code that refers to the decoded operations.
    pub(crate) translation_cache: SharedTranslationCache,
    /// Numbers of the costs of blocks.
    pub(crate) cost_numbers: Arc<CostNumbers>,
    decoded: AtomicU64,
    shared: AtomicU64,
}

impl Default for DecodedPool {
    fn default() -> Self {
        Self::with(Stubs::default())
    }
}

impl std::fmt::Debug for DecodedPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DecodedPool")
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

/// Locks a mutex. After a panic the study ends, so no code uses the state that the panic left.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DecodedPool {
    fn with(stubs: Stubs) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            stubs: Mutex::new(stubs),
            translation_cache: SharedTranslationCache::default(),
            cost_numbers: Arc::default(),
            decoded: AtomicU64::new(0),
            shared: AtomicU64::new(0),
        }
    }

    /// Returns an empty pool with the same maximum size of native code and the same numbers of costs.
    pub fn another(&self) -> Self {
        Self {
            cost_numbers: self.cost_numbers.clone(),
            ..Self::with(self.stubs().another())
        }
    }

    /// Returns the native code of vector and x87 instructions.
    pub fn stubs(&self) -> MutexGuard<'_, Stubs> {
        locked(&self.stubs)
    }

    /// Returns whether another block can be decoded.
    pub fn has_room(&self) -> bool {
        self.stubs().has_room(MAX_BLOCK)
    }

    /// Returns the number of blocks that were translated for all nodes.
    pub fn translated(&self) -> usize {
        self.translation_cache.len()
    }

    /// Returns how many blocks were decoded, and how many were in the pool already.
    pub fn counts(&self) -> PoolCounts {
        PoolCounts {
            decoded: self.decoded.load(Ordering::Relaxed),
            shared: self.shared.load(Ordering::Relaxed),
        }
    }

    /// Returns the decoded operations of a block of 64-bit code, if the pool has them. `bytes` are all bytes from the block's beginning to
    /// the end of its page.
    pub fn find(&self, bytes: &[u8], features: &Features) -> Option<Arc<Decoded>> {
        let hash = hash(bytes);
        let shard = locked(self.shard(hash));
        let known = |entry: &&Entry| bytes.starts_with(&entry.bytes) && entry.features == *features;
        let found = shard.entries.get(&hash)?.iter().find(known)?;
        self.shared.fetch_add(1, Ordering::Relaxed);
        Some(found.decoded.clone())
    }

    /// Adds the decoded operations of a block of 64-bit code. `bytes` are all bytes from the block's beginning to the end of its page.
    /// `cut` is true if the page's end has cut the block.
    pub fn insert(&self, bytes: &[u8], features: &Features, decoded: &Arc<Decoded>, cut: bool) {
        let hash = hash(bytes);
        let deciding = if cut {
            bytes.len()
        } else {
            decoded.len as usize
        };
        let entry = Entry {
            bytes: bytes[..deciding].into(),
            features: *features,
            decoded: decoded.clone(),
        };
        let mut shard = locked(self.shard(hash));
        shard.operations += decoded.ops.len();
        if shard.operations > shard.bound {
            shard.sweep();
        }
        let bucket = shard.entries.entry(hash).or_default();
        // Most buckets have a single entry.
        bucket.reserve_exact(1);
        bucket.push(entry);
        self.decoded.fetch_add(1, Ordering::Relaxed);
    }

    fn shard(&self, hash: u64) -> &Mutex<Shard> {
        &self.shards[(hash >> 48) as usize % SHARDS]
    }
}

/// Hashes the first bytes of code and its offset within the page. `bytes` end where the page ends, so their number gives the offset.
fn hash(bytes: &[u8]) -> u64 {
    let mut head = [0; PREFIX];
    let len = bytes.len().min(PREFIX);
    head[..len].copy_from_slice(&bytes[..len]);
    let number = u128::from_le_bytes(head);
    let words = (bytes.len() as u64, number as u64, (number >> 64) as u64);
    BuildHasherDefault::<AddressHasher>::default().hash_one(words)
}

#[cfg(test)]
mod tests {
    use nodescope_x86::CpuidTable;

    use super::*;

    fn page(code: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x90; 64];
        bytes[..code.len()].copy_from_slice(code);
        bytes
    }

    #[test]
    fn code_is_found_by_its_bytes_its_offset_and_the_features() {
        let pool = DecodedPool::default();
        let features = Features::new(&CpuidTable::default());
        let decoded = Arc::new(Decoded::new(Vec::new(), 3));
        pool.insert(&page(&[1, 2, 3]), &features, &decoded, false);
        let found = |bytes: &[u8]| pool.find(bytes, &features).is_some();
        assert!(found(&page(&[1, 2, 3])));
        assert!(!found(&page(&[1, 2, 4])));
        assert!(!found(&page(&[1, 2, 3])[..63]), "another offset");
        let mut behind = page(&[1, 2, 3]);
        behind[40] = 7;
        assert!(found(&behind), "bytes behind the block do not count");
        let counts = PoolCounts {
            decoded: 1,
            shared: 2,
        };
        assert_eq!(pool.counts(), counts);
    }

    #[test]
    fn bytes_behind_a_block_count_where_the_page_has_cut_it() {
        let pool = DecodedPool::default();
        let features = Features::new(&CpuidTable::default());
        let decoded = Arc::new(Decoded::new(Vec::new(), 1));
        pool.insert(&[0x90, 0x48, 0x8b], &features, &decoded, true);
        assert!(pool.find(&[0x90, 0x48, 0x8b], &features).is_some());
        assert!(pool.find(&[0x90, 0xc3, 0x8b], &features).is_none());
    }

    #[test]
    fn a_sweep_keeps_what_is_in_use() {
        let mut shard = Shard::default();
        let features = Features::new(&CpuidTable::default());
        let used = Arc::new(Decoded::new(Vec::new(), 1));
        for (key, decoded) in [
            (1, used.clone()),
            (2, Arc::new(Decoded::new(Vec::new(), 1))),
        ] {
            let entry = Entry {
                bytes: Box::new([0x90]),
                features,
                decoded,
            };
            shard.entries.insert(key, vec![entry]);
        }
        shard.sweep();
        assert_eq!(shard.entries.keys().collect::<Vec<_>>(), [&1]);
        drop(used);
        shard.sweep();
        assert!(shard.entries.is_empty());
    }
}
