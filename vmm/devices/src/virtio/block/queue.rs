//! Requests of a block device (virtio 1.2 §5.2.6). Data moves when a request is taken from the queue. The driver sees the request's end
//! when it is due in virtual time.

use std::io::{self, Read, Write};

use virtio_bindings::virtio_blk::*;

use super::device::Block;
use super::disk::SECTOR;
use super::state::Completion;
use crate::virtio::{Chain, QueueFault, Queues};

/// Most bytes that are copied at a time between the disk and the guest.
const PIECE: usize = 64 << 10;

/// Most bytes in one request. Linux makes requests of a few MiB at most. Without a limit, an indirect table of 256 descriptors could name
/// all guest memory 256 times.
const LONGEST: usize = 64 << 20;

const OK: u8 = VIRTIO_BLK_S_OK as u8;
const IO_ERROR: u8 = VIRTIO_BLK_S_IOERR as u8;
const UNSUPPORTED: u8 = VIRTIO_BLK_S_UNSUPP as u8;

impl Block {
    pub(super) fn take_requests(
        &mut self,
        queue: usize,
        queues: &mut Queues<'_>,
        now: u64,
    ) -> Result<(), QueueFault> {
        loop {
            while self.work.may_proceed(now)
                && let Some(chain) = queues.pop(queue)?
            {
                let (head, descriptors) = (chain.head, chain.descriptors);
                let fault = |what| QueueFault::Chain { queue, head, what };
                let (written, moved) = self.carry_out(chain).map_err(fault)?;
                self.work.spend(now, self.work(moved, descriptors));
                let rate = self.timing.bytes_per_second;
                let transfer = self.timing.clock.cycles_for_bytes(moved, rate);
                self.busy_until = self.busy_until.max(now).saturating_add(transfer);
                let latency = self.timing.clock.cycles_from_ns(self.timing.latency_ns);
                self.completions.push_back(Completion {
                    due: self.busy_until.saturating_add(latency),
                    head,
                    written,
                });
            }
            // The driver need not notify the device of buffers that it added before `listen`.
            if self.work.waiting || !queues.listen(queue)? {
                return self.complete(queues, now);
            }
        }
    }

    /// Returns to the driver all requests that are due, and signals it if there were any.
    pub(super) fn complete(&mut self, queues: &mut Queues<'_>, now: u64) -> Result<(), QueueFault> {
        if !queues.is_ready(0) {
            return Ok(());
        }
        let mut any = false;
        while let Some(&done) = self.completions.front()
            && done.due <= now
        {
            self.completions.pop_front();
            queues.add_used(0, done.head, done.written)?;
            any = true;
        }
        if any { queues.signal(0) } else { Ok(()) }
    }

    /// Carries out one request. Returns the number of bytes written to the guest, and of bytes moved in either direction. Fails for a chain
    /// that is not a valid request.
    fn carry_out(&mut self, chain: Chain<'_>) -> Result<(u32, u64), &'static str> {
        let (mut reader, mut data) = (chain.reader, chain.writer);
        let mut header = [0; 16];
        reader
            .read_exact(&mut header)
            .map_err(|_| "a block request without a header")?;
        let [kind, _, low, high] = std::array::from_fn(|i| {
            u32::from_le_bytes([
                header[4 * i],
                header[4 * i + 1],
                header[4 * i + 2],
                header[4 * i + 3],
            ])
        });
        let sector = u64::from(low) | u64::from(high) << 32;
        let room = data.available_bytes();
        let room = room
            .checked_sub(1)
            .ok_or("a block request without a status byte")?;
        let mut status_at = data
            .split_at(room)
            .map_err(|_| "a status byte out of reach")?;
        let mut moved = 0;
        let status = match kind {
            VIRTIO_BLK_T_IN | VIRTIO_BLK_T_OUT if room.max(reader.available_bytes()) > LONGEST => {
                IO_ERROR
            }
            VIRTIO_BLK_T_IN if self.disk.holds(sector, room as u64) => {
                let mut buf = vec![0; room.min(PIECE)];
                self.transfer(sector, room, &mut moved, |block, at, len| {
                    let piece = &mut buf[..len];
                    block.disk.read(at, piece)?;
                    data.write_all(piece)
                })
            }
            VIRTIO_BLK_T_OUT if self.disk.holds(sector, reader.available_bytes() as u64) => {
                let len = reader.available_bytes();
                let mut buf = vec![0; len.min(PIECE)];
                self.transfer(sector, len, &mut moved, |block, at, len| {
                    let piece = &mut buf[..len];
                    reader.read_exact(piece)?;
                    block.disk.write(at, piece)
                })
            }
            VIRTIO_BLK_T_IN | VIRTIO_BLK_T_OUT => IO_ERROR,
            VIRTIO_BLK_T_FLUSH => OK,
            VIRTIO_BLK_T_GET_ID => {
                let len = room.min(self.serial.len());
                data.write_all(&self.serial[..len])
                    .map_or(IO_ERROR, |()| OK)
            }
            _ => UNSUPPORTED,
        };
        status_at
            .write_all(&[status])
            .map_err(|_| "a status byte out of reach")?;
        let written = data.bytes_written() + 1;
        Ok((u32::try_from(written).unwrap_or(u32::MAX), moved))
    }

    /// Moves `len` bytes from a sector on, piece by piece, with `step(device, byte position, bytes)`. Returns the status byte of the
    /// request.
    fn transfer(
        &mut self,
        sector: u64,
        len: usize,
        moved: &mut u64,
        mut step: impl FnMut(&mut Self, u64, usize) -> io::Result<()>,
    ) -> u8 {
        let mut done = 0;
        while done < len {
            let piece = (len - done).min(PIECE);
            if step(self, sector * SECTOR + done as u64, piece).is_err() {
                return IO_ERROR;
            }
            done += piece;
            *moved = done as u64;
        }
        OK
    }
}
