//! Messages between two processes of one host, through memory that both have mapped.
//!
//! Each direction has a ring of words. The writer stores the words of a message, then their number; the reader polls that number. A message
//! is its length in bytes and its bytes, filled up to whole words. A message may be longer than the ring: writer and reader then take turns.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags};

/// Words of a ring: few enough for the second-level cache of a core.
const WORDS: usize = 1 << 13;
const WORD: usize = size_of::<u64>();
/// Longest message in bytes. A longer one is not a message of this program.
const LONGEST: u64 = 1 << 36;
/// Bytes by which the memory is reserved for a message whose length another process has told.
const STEP: usize = 1 << 20;

/// One direction. Numbers of words count from the beginning, and each has a line of the host's cache for itself.
#[repr(C, align(128))]
struct Ring {
    written: Counter,
    read: Counter,
    words: [AtomicU64; WORDS],
}

#[repr(C, align(128))]
struct Counter(AtomicU64);

/// The memory that two processes share.
#[repr(C)]
struct Shared {
    /// Number by which the process that opens the memory recognises it.
    token: AtomicU64,
    /// From the process that made the memory to the other one, and back.
    rings: [Ring; 2],
}

/// Mapped memory that two processes share. All of it is atomic integers, so that whatever the other process writes is a value of its type.
struct Mapped(MmapRaw);

impl Mapped {
    fn new(file: &File) -> io::Result<Self> {
        let map = MmapOptions::new().len(size_of::<Shared>()).map_raw(file)?;
        Ok(Self(map))
    }

    fn shared(&self) -> &Shared {
        // SAFETY: the mapping is as long as `Shared`, begins at a page and so is aligned, and lives as long as `self`. The seals of the
        // file keep its length. All bit patterns are values of atomic integers, and other processes change them by atomic stores.
        unsafe { &*self.0.as_mut_ptr().cast::<Shared>() }
    }
}

/// Memory that this process has made for another process of its host.
pub struct Offer {
    mapped: Mapped,
    file: OwnedFd,
}

impl Offer {
    /// Makes memory with this token. No path leads to the memory, so that nothing is left where processes are killed.
    pub fn new(token: u64) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("nodescope-ring", flags)?;
        rustix::fs::ftruncate(&file, size_of::<Shared>() as u64)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        let file = File::from(file);
        let mapped = Mapped::new(&file)?;
        mapped.shared().token.store(token, Ordering::Relaxed);
        Ok(Self {
            mapped,
            file: file.into(),
        })
    }

    /// Returns the number of the descriptor by which the other process finds the memory.
    pub fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Returns this process's end, once the other process has opened the memory.
    pub fn accepted(self) -> RingPair {
        RingPair::new(self.mapped, 0)
    }
}

/// Opens the memory that another process of this host has made.
///
/// # Errors
///
/// A process that this process may not look into or that is not on this host, or memory with another token.
pub fn open(process: u32, descriptor: RawFd, token: u64) -> io::Result<RingPair> {
    let path = format!("/proc/{process}/fd/{descriptor}");
    let file = File::options().read(true).write(true).open(path)?;
    let sealed = rustix::fs::fcntl_get_seals(&file)?.contains(SealFlags::SHRINK);
    if !sealed || file.metadata()?.len() != size_of::<Shared>() as u64 {
        return Err(io::Error::other("it is not the memory of a run"));
    }
    let mapped = Mapped::new(&file)?;
    if mapped.shared().token.load(Ordering::Relaxed) != token {
        return Err(io::Error::other("it is the memory of another run"));
    }
    Ok(RingPair::new(mapped, 1))
}

/// One process's end of the memory that two processes share.
pub struct RingPair {
    mapped: Mapped,
    /// Index of the ring into which this process writes.
    own: usize,
    /// Words that this process has written, and those of them that the other process is known to have read.
    written: u64,
    seen_read: u64,
    /// Words that this process has read.
    read: u64,
    /// Message that is being read, and the bytes that are left of it.
    partial: Vec<u8>,
    left: Option<u64>,
    /// Messages that are complete.
    ready: VecDeque<Vec<u8>>,
}

/// A message that is being written.
pub struct Outgoing<'a> {
    message: &'a [u8],
    /// Words that are written, the length included.
    at: usize,
}

impl<'a> Outgoing<'a> {
    pub fn new(message: &'a [u8]) -> Self {
        Self { message, at: 0 }
    }

    fn words(&self) -> usize {
        1 + self.message.len().div_ceil(WORD)
    }

    fn word(&self, index: usize) -> u64 {
        let Some(index) = index.checked_sub(1) else {
            return self.message.len() as u64;
        };
        let rest = &self.message[index * WORD..];
        match rest.first_chunk::<WORD>() {
            Some(word) => u64::from_le_bytes(*word),
            None => {
                let mut word = [0; WORD];
                word[..rest.len()].copy_from_slice(rest);
                u64::from_le_bytes(word)
            }
        }
    }
}

impl RingPair {
    fn new(mapped: Mapped, own: usize) -> Self {
        Self {
            mapped,
            own,
            written: 0,
            seen_read: 0,
            read: 0,
            partial: Vec::new(),
            left: None,
            ready: VecDeque::new(),
        }
    }

    /// Writes as much of a message as the ring has room for. Returns whether the message is complete.
    pub fn write(&mut self, out: &mut Outgoing<'_>) -> bool {
        let ring = &self.mapped.shared().rings[self.own];
        while out.at < out.words() {
            let mut used = self.written.wrapping_sub(self.seen_read) as usize;
            if used >= WORDS {
                self.seen_read = ring.read.0.load(Ordering::Acquire);
                used = self.written.wrapping_sub(self.seen_read) as usize;
                if used >= WORDS {
                    return false;
                }
            }
            let count = (WORDS - used).min(out.words() - out.at);
            for _ in 0..count {
                let place = self.written as usize % WORDS;
                ring.words[place].store(out.word(out.at), Ordering::Relaxed);
                self.written += 1;
                out.at += 1;
            }
            ring.written.0.store(self.written, Ordering::Release);
        }
        true
    }

    /// Returns the next message of the other process, if it has come.
    ///
    /// # Errors
    ///
    /// A sentence that says why what has come is not a message.
    pub fn receive(&mut self) -> Result<Option<Vec<u8>>, String> {
        if self.ready.is_empty() {
            self.gather()?;
        }
        Ok(self.ready.pop_front())
    }

    /// Takes all that has come out of the ring, so that the other process has room.
    ///
    /// # Errors
    ///
    /// As for [`RingPair::receive`].
    pub fn gather(&mut self) -> Result<(), String> {
        let ring = &self.mapped.shared().rings[1 - self.own];
        let written = ring.written.0.load(Ordering::Acquire);
        if written == self.read {
            return Ok(());
        }
        if written.wrapping_sub(self.read) > WORDS as u64 {
            return Err("more than the ring holds is written".into());
        }
        while self.read != written {
            let word = ring.words[self.read as usize % WORDS].load(Ordering::Relaxed);
            self.read += 1;
            let left = match self.left {
                None if word > LONGEST => return Err(format!("it has {word} bytes")),
                None => {
                    self.partial.reserve((word as usize).min(STEP));
                    word
                }
                Some(left) => {
                    let count = left.min(WORD as u64);
                    let bytes = word.to_le_bytes();
                    self.partial.extend_from_slice(&bytes[..count as usize]);
                    left - count
                }
            };
            self.left = Some(left);
            if left == 0 {
                self.left = None;
                self.ready.push_back(std::mem::take(&mut self.partial));
            }
        }
        ring.read.0.store(self.read, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (RingPair, RingPair) {
        let offer = Offer::new(7).unwrap();
        let process = std::process::id();
        assert!(
            open(process, offer.descriptor(), 8).is_err(),
            "another token"
        );
        let other = open(process, offer.descriptor(), 7).unwrap();
        (offer.accepted(), other)
    }

    #[test]
    fn messages_of_all_lengths_arrive_in_order() {
        let (mut one, mut other) = pair();
        let lengths = [0, 1, 7, 8, 9, 1600, WORDS * WORD, 3 * WORDS * WORD + 5, 2];
        let message = |length: usize| (0..length).map(|n| (n * 7 + length) as u8).collect();
        let writer = std::thread::spawn(move || {
            for length in lengths.repeat(3) {
                let message: Vec<u8> = message(length);
                let mut out = Outgoing::new(&message);
                while !one.write(&mut out) {
                    std::thread::yield_now();
                }
            }
            one
        });
        for length in lengths.repeat(3) {
            let found = loop {
                match other.receive().unwrap() {
                    Some(found) => break found,
                    None => std::thread::yield_now(),
                }
            };
            let expected: Vec<u8> = message(length);
            assert_eq!(found, expected);
        }
        let mut one = writer.join().unwrap();
        assert!(other.write(&mut Outgoing::new(b"back")));
        assert_eq!(one.receive(), Ok(Some(b"back".to_vec())));
    }

    #[test]
    fn what_is_no_message_is_an_error() {
        let (one, mut other) = pair();
        let ring = &one.mapped.shared().rings[0];
        ring.words[0].store(u64::MAX, Ordering::Relaxed);
        ring.written.0.store(1, Ordering::Release);
        assert!(other.receive().is_err(), "too long");
        let (one, mut other) = pair();
        let ring = &one.mapped.shared().rings[0];
        ring.written.0.store(WORDS as u64 + 1, Ordering::Release);
        assert!(other.receive().is_err(), "more words than the ring has");
    }

    #[test]
    fn other_files_are_refused() {
        let file = tempfile::tempfile().unwrap();
        assert!(open(std::process::id(), file.as_raw_fd(), 0).is_err());
        assert!(open(u32::MAX, 0, 0).is_err());
    }
}
