//! RAM in a snapshot: each region uncompressed and page-aligned, with holes in the file for pages that are zero.
//!
//! A single call maps a region of RAM, because the file has holes for zero pages. Each chunk of 256 KiB has a checksum of its own, so that
//! several threads can verify chunks, and chunks in holes need no work.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};

use nodescope_memory::Ram;
use rustix::fs::SeekFrom;

use crate::format::{CHUNK, Hash, PAGE, Region};

/// Maximum number of threads that verify or read RAM. More threads would not be faster, because memory bandwidth is then the limit.
const MOST_THREADS: usize = 8;

static ZERO: [u8; CHUNK as usize] = [0; CHUNK as usize];

/// Returns whether all bytes are zero; `bytes` has at most [`CHUNK`] bytes. The comparison of slices is fast in debug builds, too.
fn is_zero(bytes: &[u8]) -> bool {
    bytes == &ZERO[..bytes.len()]
}

/// Returns the runs of consecutive nonzero pages of a chunk: the offset of each run in the chunk, and the run's bytes.
fn runs(chunk: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut at = 0;
    let page = PAGE as usize;
    std::iter::from_fn(move || {
        while at < chunk.len() && is_zero(&chunk[at..at + page]) {
            at += page;
        }
        let start = at;
        while at < chunk.len() && !is_zero(&chunk[at..at + page]) {
            at += page;
        }
        (at > start).then(|| (start, &chunk[start..at]))
    })
}

/// Writes RAM to a file from an offset on. Returns the regions for the table, and the offset of the end of the last region.
pub(crate) fn write(file: &File, offset: u64, ram: &Ram) -> io::Result<(Vec<Region>, u64)> {
    let mut buffer = vec![0; CHUNK as usize];
    let mut regions = Vec::new();
    let mut at = offset;
    for region in ram.regions() {
        let mut chunks = Vec::new();
        // Pages that are not written become holes, also at the end of the file.
        file.set_len(at + region.len)?;
        for within in (0..region.len).step_by(CHUNK as usize) {
            let chunk = &mut buffer[..CHUNK.min(region.len - within) as usize];
            if !ram.read(region.start + within, chunk) {
                return Err(io::Error::other("a region of RAM cannot be read"));
            }
            if is_zero(chunk) {
                chunks.push(None);
                continue;
            }
            chunks.push(Some(*blake3::hash(chunk).as_bytes()));
            for (start, bytes) in runs(chunk) {
                file.write_all_at(bytes, at + within + start as u64)?;
            }
        }
        regions.push(Region {
            start: region.start,
            len: region.len,
            offset: at,
            chunks,
        });
        at += region.len;
    }
    Ok((regions, at))
}

/// A chunk of RAM in a file.
#[derive(Clone, Copy, Debug)]
struct Place {
    offset: u64,
    len: usize,
    /// Guest-physical address of the chunk's first byte.
    address: u64,
    hash: Option<Hash>,
}

/// Reason why RAM cannot be read.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The file cannot be read, or the caller could not take the bytes.
    Io(io::Error),
    /// The chunk at this offset is not what was written.
    Damaged(u64),
}

/// Returns the chunks that must be checked: chunks that are not zero, and zero chunks where the file has no hole.
fn places(file: &File, regions: &[Region]) -> io::Result<Vec<Place>> {
    let mut places = Vec::new();
    for region in regions {
        let data = extents(file, region.offset, region.offset + region.len)?;
        let mut data = data.into_iter().peekable();
        for (i, hash) in region.chunks.iter().enumerate() {
            let within = i as u64 * CHUNK;
            let len = CHUNK.min(region.len - within);
            let offset = region.offset + within;
            while data.next_if(|(_, end)| *end <= offset).is_some() {}
            let hole = data.peek().is_none_or(|(start, _)| *start >= offset + len);
            if hash.is_some() || !hole {
                places.push(Place {
                    offset,
                    len: len as usize,
                    address: region.start + within,
                    hash: *hash,
                });
            }
        }
    }
    Ok(places)
}

/// Returns the start and end offsets of the parts of a file between two offsets that are no holes. If the file system does not report
/// holes, returns one part.
fn extents(file: &File, from: u64, to: u64) -> io::Result<Vec<(u64, u64)>> {
    use rustix::io::Errno;
    let mut found = Vec::new();
    let mut at = from;
    while at < to {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL | Errno::NOTSUP) => return Ok(vec![(from, to)]),
            Err(e) => return Err(e.into()),
        };
        if start >= to {
            break;
        }
        let end = rustix::fs::seek(file, SeekFrom::Hole(start))?.min(to);
        found.push((start, end));
        // The search must advance even if the file changes during the search.
        at = end.max(at + 1);
    }
    Ok(found)
}

/// Reads and checks the chunks on several threads; zero chunks in holes of the file are skipped. Passes each run of nonzero pages to
/// `take`, with the run's guest-physical address.
pub(crate) fn read(
    file: &File,
    regions: &[Region],
    take: &(dyn Fn(u64, &[u8]) -> io::Result<()> + Sync),
) -> Result<(), Fault> {
    let places = places(file, regions).map_err(Fault::Io)?;
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let threads = threads.min(MOST_THREADS).min(places.len().div_ceil(16));
    let next = AtomicUsize::new(0);
    // The result is the failure of the first chunk that fails, whichever thread reads that chunk.
    let work = || {
        let mut buffer = vec![0; CHUNK as usize];
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            let place = places.get(n)?;
            if let Err(fault) = read_one(file, place, &mut buffer[..place.len], take) {
                return Some((n, fault));
            }
        }
    };
    let failed = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut failed = work();
        for other in others {
            let theirs = match other.join() {
                Ok(theirs) => theirs,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            let earlier = |(n, _): &(usize, Fault)| failed.as_ref().is_none_or(|(m, _)| n < m);
            if theirs.as_ref().is_some_and(earlier) {
                failed = theirs;
            }
        }
        failed
    });
    failed.map_or(Ok(()), |(_, fault)| Err(fault))
}

fn read_one(
    file: &File,
    place: &Place,
    chunk: &mut [u8],
    take: &dyn Fn(u64, &[u8]) -> io::Result<()>,
) -> Result<(), Fault> {
    file.read_exact_at(chunk, place.offset).map_err(Fault::Io)?;
    let Some(hash) = place.hash else {
        return match is_zero(chunk) {
            true => Ok(()),
            false => Err(Fault::Damaged(place.offset)),
        };
    };
    if *blake3::hash(chunk).as_bytes() != hash {
        return Err(Fault::Damaged(place.offset));
    }
    for (start, bytes) in runs(chunk) {
        take(place.address + start as u64, bytes).map_err(Fault::Io)?;
    }
    Ok(())
}
