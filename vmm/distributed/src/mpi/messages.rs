//! Messages of any length between the processes of an MPI world, without a wait within MPI.
//!
//! A message goes in pieces. MPI copies small messages at once, so a piece is small enough for that: no transfer needs the other process's
//! memory or further system calls, which the sandbox would refuse. Every process always has one receive open for each other process.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use super::MpiError;
use super::library::{MpiLibrary, Request};

/// Bytes of a piece, its header included: below the smallest limit up to which libraries copy (4 KiB in Open MPI's shared memory).
const PIECE: usize = 3584;
/// Header of a piece: the bytes of its content, whether more pieces of the message follow, and whether the piece is a process's last one.
const HEADER: usize = 4;
const MORE: u32 = 1 << 31;
const LAST: u32 = 1 << 30;
/// Pieces for one process that may be under way.
const MOST_SENDS: usize = 256;
/// Rounds of messages until a library has connected two processes.
const CONNECTING_ROUNDS: usize = 64;
/// Longest wait for the last messages at the end of a run.
const END_LIMIT: Duration = Duration::from_secs(5);

/// Memory of a piece. MPI accesses the memory while a transfer is open, so that no reference to it exists then.
struct Piece(NonNull<[u8; PIECE]>);

// SAFETY: the memory belongs to this value alone.
unsafe impl Send for Piece {}

impl Piece {
    fn new() -> Self {
        let memory = Box::leak(Box::new([0; PIECE]));
        Self(NonNull::from(memory))
    }

    /// # Safety
    ///
    /// No transfer of this memory is open.
    unsafe fn bytes(&mut self) -> &mut [u8; PIECE] {
        // SAFETY: the caller's promise, and the memory is allocated.
        unsafe { self.0.as_mut() }
    }

    /// # Safety
    ///
    /// No transfer of this memory is open.
    unsafe fn free(self) {
        // SAFETY: the memory was allocated by a Box, and the caller promises that MPI does not access it any more.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// The transfers between this process and another one. Memory of open transfers is never freed: MPI may still write into it.
struct Peer {
    inbox: Piece,
    receive: Option<Request>,
    partial: Vec<u8>,
    ready: VecDeque<Vec<u8>>,
    sends: VecDeque<(Request, Piece)>,
}

/// The messages of this process.
pub struct MpiMessages {
    library: MpiLibrary,
    rank: usize,
    peers: Vec<Peer>,
    spare: Vec<Piece>,
}

impl MpiMessages {
    /// Opens a receive for each other process of the library's `size`.
    pub fn new(library: MpiLibrary, rank: usize, size: usize) -> Result<Self, MpiError> {
        let peer = |_| Peer {
            inbox: Piece::new(),
            receive: None,
            partial: Vec::new(),
            ready: VecDeque::new(),
            sends: VecDeque::new(),
        };
        let mut messages = Self {
            library,
            rank,
            peers: (0..size).map(peer).collect(),
            spare: Vec::new(),
        };
        for from in (0..size).filter(|&from| from != rank) {
            messages.open(from)?;
        }
        Ok(messages)
    }

    /// Returns the number of this process.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of processes.
    pub fn size(&self) -> usize {
        self.peers.len()
    }

    /// Exchanges messages with each other process until the library has connected them: UCX takes another way once several messages have
    /// gone both ways.
    pub fn connect(&mut self) -> Result<(), MpiError> {
        let rank = self.rank;
        let others = (0..self.size()).filter(|&other| other != rank);
        let message = [0; PIECE - HEADER];
        for round in 0..CONNECTING_ROUNDS {
            self.tell_all(&message[..round % 2 * message.len()])?;
            for from in others.clone() {
                while self.receive(from)?.is_none() {
                    std::thread::yield_now();
                }
            }
        }
        Ok(())
    }

    fn open(&mut self, from: usize) -> Result<(), MpiError> {
        let peer = &mut self.peers[from];
        // SAFETY: the inbox is accessed only after the receive is complete, and is not freed before.
        let request = unsafe { (self.library).receive(peer.inbox.0.as_ptr().cast(), PIECE, from) }?;
        peer.receive = Some(request);
        Ok(())
    }

    /// Sends as much of a message as there is room for pieces under way, and leaves the rest. Returns whether all is sent, so that the
    /// caller can find out between two calls whether the other process still runs.
    pub fn send(&mut self, to: usize, rest: &mut Option<&[u8]>) -> Result<bool, MpiError> {
        self.collect_sent(to)?;
        while let Some(message) = *rest {
            if self.peers[to].sends.len() >= MOST_SENDS {
                // The other process may wait for room, too.
                self.receive_all()?;
                return Ok(false);
            }
            let (content, later) = message.split_at(message.len().min(PIECE - HEADER));
            *rest = (!later.is_empty()).then_some(later);
            self.send_piece(to, content, if rest.is_some() { MORE } else { 0 })?;
        }
        Ok(true)
    }

    /// Sends a short message to all other processes.
    pub fn tell_all(&mut self, message: &[u8]) -> Result<(), MpiError> {
        let rank = self.rank;
        for to in (0..self.size()).filter(|&to| to != rank) {
            let mut rest = Some(message);
            while !self.send(to, &mut rest)? {
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    fn send_piece(&mut self, to: usize, content: &[u8], flags: u32) -> Result<(), MpiError> {
        let count = content.len();
        let mut piece = self.spare.pop().unwrap_or_else(Piece::new);
        // SAFETY: the piece is new, or its send is complete.
        let bytes = unsafe { piece.bytes() };
        bytes[..HEADER].copy_from_slice(&(count as u32 | flags).to_le_bytes());
        bytes[HEADER..HEADER + count].copy_from_slice(content);
        let buffer = piece.0.as_ptr().cast();
        // SAFETY: the piece is neither changed nor freed until the send is complete.
        let request = unsafe { self.library.send(buffer, HEADER + count, to) }?;
        self.peers[to].sends.push_back((request, piece));
        Ok(())
    }

    /// Takes back the pieces for a process whose sends are complete.
    fn collect_sent(&mut self, to: usize) -> Result<(), MpiError> {
        let sends = &mut self.peers[to].sends;
        while let Some((request, _)) = sends.front_mut() {
            if !self.library.is_done(request)? {
                break;
            }
            self.spare.extend(sends.pop_front().map(|(_, piece)| piece));
        }
        Ok(())
    }

    fn receive_all(&mut self) -> Result<(), MpiError> {
        let rank = self.rank;
        for from in (0..self.peers.len()).filter(|&from| from != rank) {
            self.receive_from(from)?;
        }
        Ok(())
    }

    /// Takes the pieces that have arrived from a process.
    fn receive_from(&mut self, from: usize) -> Result<(), MpiError> {
        loop {
            let peer = &mut self.peers[from];
            let Some(request) = &mut peer.receive else {
                return Ok(());
            };
            if !self.library.is_done(request)? {
                return Ok(());
            }
            peer.receive = None;
            // SAFETY: the receive is complete.
            let bytes = unsafe { peer.inbox.bytes() };
            let (header, content) = bytes.split_at(HEADER);
            let header = u32::from_le_bytes(header.try_into().expect("four bytes"));
            if header & LAST != 0 {
                return Ok(());
            }
            let count = ((header & !MORE) as usize).min(content.len());
            peer.partial.extend_from_slice(&content[..count]);
            if header & MORE == 0 {
                peer.ready.push_back(std::mem::take(&mut peer.partial));
            }
            self.open(from)?;
        }
    }

    /// Returns the next message of a process, if it has arrived.
    pub fn receive(&mut self, from: usize) -> Result<Option<Vec<u8>>, MpiError> {
        if self.peers[from].ready.is_empty() {
            self.receive_from(from)?;
        }
        Ok(self.peers[from].ready.pop_front())
    }

    /// Ends MPI, once all processes call this function: a last piece of each process completes the open receives.
    pub fn end(mut self) -> Result<(), MpiError> {
        let begin = Instant::now();
        let others: Vec<usize> = (0..self.peers.len())
            .filter(|&of| of != self.rank)
            .collect();
        for &to in &others {
            self.send_piece(to, &[], LAST)?;
        }
        while (self.peers.iter()).any(|peer| peer.receive.is_some() || !peer.sends.is_empty()) {
            for &other in &others {
                self.collect_sent(other)?;
                self.receive_from(other)?;
            }
            if begin.elapsed() > END_LIMIT {
                return Err(MpiError::Call("a process does not come to the end".into()));
            }
            std::thread::yield_now();
        }
        self.library.finalize();
        for piece in self
            .spare
            .drain(..)
            .chain(self.peers.drain(..).map(|of| of.inbox))
        {
            // SAFETY: all transfers are complete.
            unsafe { piece.free() };
        }
        Ok(())
    }
}
