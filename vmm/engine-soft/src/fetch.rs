//! Instruction fetch, from the instruction pointer to a decoded block.

use std::sync::Arc;

use iced_x86::{FlowControl, Instruction, OpKind, Register};
use nodescope_plugin_api::{Access, MemRef};
use nodescope_x86::Exception;

use crate::block::{Block, CodeSpan};
use crate::cpu::{Cpu, Mode};
use crate::features::GuestDecoder;
use crate::lookup::Entry;
use crate::lower::lower;
use crate::memory::is_canonical;
use crate::mmu::{Intent, Page};
use crate::op::{Op, RIP, Trap};
use crate::pool::Decoded;
use crate::softmmu::Baseline;

/// Largest number of instructions in a block.
pub const MAX_BLOCK: usize = 48;
/// Longest instruction in bytes (SDM vol. 2A §2.3.11).
pub const MAX_INSTRUCTION: usize = 15;

/// Result of decoding consecutive instructions.
struct Decoding {
    ops: Vec<Op>,
    /// Length of the decoded instructions in bytes.
    len: usize,
    /// True if the bytes end within the next instruction.
    cut: bool,
    /// True if the operations are the same for any address of the bytes.
    movable: bool,
}

/// Returns whether a 64-bit instruction decodes to the same operation at each address. Branch targets of 16 or 32 bits and EIP-relative
/// operands are truncated, so they depend on the address. Other targets are relative.
fn is_movable(instruction: &Instruction) -> bool {
    let cut = |n| {
        matches!(
            instruction.op_kind(n),
            OpKind::NearBranch16 | OpKind::NearBranch32
        )
    };
    instruction.memory_base() != Register::EIP && !(0..instruction.op_count()).any(cut)
}

impl Cpu {
    /// Returns a key that distinguishes blocks that decode or translate differently at the same address. [`Cpu::code_key`] caches it.
    pub fn block_key(&self) -> u8 {
        Self::key_of(self.mode, self.cpl)
    }

    /// Returns the key of [`Cpu::block_key`] for a mode and a privilege level.
    pub const fn key_of(mode: Mode, cpl: u8) -> u8 {
        mode as u8 | ((cpl == 3) as u8) << 2
    }

    /// Returns the linear address of an instruction pointer.
    #[inline(always)]
    pub fn code_linear(&self, ip: u64) -> u64 {
        match self.mode {
            Mode::Bits64 => ip,
            _ => self.segment_base[nodescope_x86::state::seg::CS].wrapping_add(ip) & 0xffff_ffff,
        }
    }

    /// Returns the block at the instruction pointer if the vCPU has found the block before.
    #[inline(always)]
    pub fn known_block(&mut self) -> Option<Entry> {
        let linear = self.code_linear(self.gpr[RIP as usize]);
        self.blocks.find(linear, self.code_key)
    }

    /// Returns the block at the instruction pointer. Raises the faults of the fetch.
    #[inline(always)]
    pub fn block(&mut self) -> Result<Entry, Trap> {
        if let Some(block) = self.known_block() {
            return Ok(block);
        }
        let ip = self.gpr[RIP as usize];
        self.block_slow(ip, self.code_linear(ip))
    }

    #[cold]
    #[inline(never)]
    fn block_slow(&mut self, ip: u64, linear: u64) -> Result<Entry, Trap> {
        if self.mode == Mode::Bits64 && !is_canonical(ip) {
            return Err(self.raise(Exception::gp(0)));
        }
        let page = self.code_page(linear)?;
        if page.host.is_null() {
            return Err(self.fetch_from_device(page.physical));
        }
        let physical = page.physical | linear & 0xfff;
        let (key, mode) = (self.code_key, self.mode);
        let (table, code) = self.blocks_and_code();
        if let Some(block) = table.find_physical(&code.blocks, linear, key, physical, 0, mode) {
            return Ok(block);
        }
        let in_page = 4096 - (linear & 0xfff) as usize;
        // SAFETY: the page is mapped RAM, and the slice ends at the end of the page.
        let bytes = unsafe {
            std::slice::from_raw_parts(page.host.add((linear & 0xfff) as usize), in_page)
        };
        if let Some(decoded) = self.decoded(bytes, ip) {
            let len = decoded.len as usize;
            let region = &self.ram.regions()[page.region as usize];
            let offset = (physical - region.start) as usize;
            if region.code.mark(offset, len) {
                self.data_tlb.revoke_writes();
            }
            let cell = region.code.generation_cell(offset);
            let block = Block::new(decoded, physical, 0, mode, [cell, cell]);
            return Ok(self.add_block(linear, key, block));
        }
        // The first instruction extends into the next page.
        let second = self.code_page(linear.wrapping_add(in_page as u64))?;
        if second.host.is_null() {
            return Err(self.fetch_from_device(second.physical));
        }
        let (table, code) = self.blocks_and_code();
        let (blocks, behind) = (&code.blocks, second.physical);
        if let Some(block) = table.find_physical(blocks, linear, key, physical, behind, mode) {
            return Ok(block);
        }
        let mut joined = [0_u8; 2 * MAX_INSTRUCTION];
        joined[..in_page].copy_from_slice(bytes);
        // SAFETY: the second page is mapped RAM of 4096 bytes.
        let tail = unsafe { std::slice::from_raw_parts(second.host, MAX_INSTRUCTION) };
        joined[in_page..in_page + MAX_INSTRUCTION].copy_from_slice(tail);
        let mut ops = self.decode(&joined[..in_page + MAX_INSTRUCTION], ip).ops;
        ops.truncate(1);
        let len = usize::from(ops[0].len);
        let in_second = len.saturating_sub(in_page).max(1);
        let (a, b) = (
            &self.ram.regions()[page.region as usize],
            &self.ram.regions()[second.region as usize],
        );
        let (at, bt) = (
            (physical - a.start) as usize,
            (second.physical - b.start) as usize,
        );
        let first_mark = a.code.mark(at, in_page.min(len));
        if b.code.mark(bt, in_second) | first_mark {
            self.data_tlb.revoke_writes();
        }
        let cells = [a.code.generation_cell(at), b.code.generation_cell(bt)];
        let decoded = Arc::new(Decoded::new(ops, len as u32));
        let block = Block::new(decoded, physical, second.physical, mode, cells);
        Ok(self.add_block(linear, key, block))
    }

    /// Raises the fault of a fetch from an address without RAM. A fetch by the kernel stops the study, since its code is in RAM. User code
    /// would read ones there, which are an invalid opcode.
    fn fetch_from_device(&mut self, physical: u64) -> Trap {
        if self.cpl == 3 {
            return self.raise(Exception::ud());
        }
        self.unsupported(format!(
            "instruction fetch from device memory at {physical:#x}"
        ))
    }

    /// Returns the page of the code at a linear address.
    pub fn code_page(&mut self, linear: u64) -> Result<Page, Trap> {
        if let Some(page) = self.blocks.page(linear, self.code_key) {
            return Ok(*page);
        }
        let page = self.translate(linear, Intent::Fetch)?;
        self.blocks.add_page(linear, self.code_key, page);
        Ok(page)
    }

    fn add_block(&mut self, linear: u64, key: u8, mut block: Block) -> Entry {
        if !self.block_costs.is_null() {
            let (bytes, bits) = (self.bytes_of(&block), self.mode.bits() as u8);
            if let (Some(bytes), Some(costs)) = (bytes, &self.code().block_costs) {
                block.cost = costs.number(&bytes, block.physical, bits);
            }
        }
        let (table, code) = self.blocks_and_code();
        table.remember(linear, key, code.blocks.insert(block))
    }

    /// Decodes the block at the beginning of `bytes`, which end with the page, or finds it in the decode pool. None if its first
    /// instruction needs more bytes. An eviction, if one is needed, comes first, since it may replace the pool whose native code the
    /// operations call.
    fn decoded(&mut self, bytes: &[u8], ip: u64) -> Option<Arc<Decoded>> {
        self.make_room_for_a_block();
        let shares = self.mode == Mode::Bits64 && self.code().is_shared();
        let pool = self.code().pool.clone();
        if shares && let Some(decoded) = pool.find(bytes, &self.features) {
            return Some(decoded);
        }
        let Decoding {
            ops,
            len,
            cut,
            movable,
        } = self.decode(bytes, ip);
        if ops.is_empty() {
            return None;
        }
        let decoded = Arc::new(Decoded::new(ops, len as u32));
        if shares && movable {
            pool.insert(bytes, &self.features, &decoded, cut);
        }
        Some(decoded)
    }

    fn make_room_for_a_block(&mut self) {
        let (table, code) = self.blocks_and_code();
        code.make_room_for_a_block();
        table.see_evictions(code.evictions());
    }

    /// Decodes until a branch, another instruction that must end a block, the end of the bytes, or [`MAX_BLOCK`] instructions. The decode
    /// pool must have room for a block's native code.
    fn decode(&mut self, bytes: &[u8], ip: u64) -> Decoding {
        let pool = self.code().pool.clone();
        let mut stubs = pool.stubs();
        let mut decoder = GuestDecoder::new(self.features, self.mode, bytes, ip);
        let mut decoding = Decoding {
            ops: Vec::with_capacity(16),
            len: 0,
            cut: false,
            movable: true,
        };
        while decoding.ops.len() < MAX_BLOCK && decoder.can_decode() {
            let instruction = decoder.decode();
            if decoder.was_cut() && bytes.len() - decoding.len < MAX_INSTRUCTION {
                // The page's end cuts the instruction, which begins the next block.
                decoding.cut = true;
                break;
            }
            decoding.movable &= is_movable(&instruction);
            let next = decoder.position();
            let mut op = lower(&instruction, self.mode, ip, &mut stubs);
            if decoder.is_too_long(&instruction) {
                op.handler = crate::ops::system::too_long;
            }
            decoding.ops.push(op);
            decoding.len = next;
            let ends = !matches!(instruction.flow_control(), FlowControl::Next)
                || crate::ops::system::ends_block(instruction.mnemonic());
            if ends {
                break;
            }
        }
        decoding
    }

    /// Counts the cache lines of the instructions in `code` as fetched, and reports the lines that the L0 filter cache does not have to the
    /// model. `code` begins at the instruction pointer.
    #[inline(always)]
    pub fn fetch_lines(&mut self, code: CodeSpan) {
        let shift = self.instruction_l0.shift();
        let line = code.physical >> shift;
        let last = code.physical + u64::from(code.len.max(1)) - 1;
        if code.second_page == 0 && last >> shift == line && self.instruction_l0.hit(line << shift)
        {
            self.count_fetch();
            return;
        }
        self.fetch_lines_slow(code);
    }

    /// Counts a fetch, unless the profile derives fetches from executions ([`crate::profile`]).
    #[inline(always)]
    fn count_fetch(&mut self) {
        if !self.numbered() {
            self.counters_mut().fetches += 1;
        }
    }

    #[inline(never)]
    fn fetch_lines_slow(&mut self, code: CodeSpan) {
        let shift = self.instruction_l0.shift();
        let ip = self.gpr[RIP as usize];
        let (mut at, mut left) = (code.physical, u64::from(code.len.max(1)));
        let mut linear = self.code_linear(ip);
        while left > 0 {
            let line = at >> shift << shift;
            self.count_fetch();
            if !self.instruction_l0.hit(line) && !self.instruction_l0.promote(line) {
                let reference = MemRef {
                    vcpu: self.id,
                    privilege: self.privilege(),
                    access: Access::Fetch,
                    context: self.context,
                    physical: at,
                    linear,
                    size: 1,
                    now: self.now_at_block_start(),
                    site: self.native.site.site(0),
                    non_temporal: false,
                    locked: false,
                    large_page: self.page_sizes && self.is_in_large_page(linear),
                };
                let (outcome, placement) = self.report_reference(Baseline, &reference, line);
                self.instruction_l0.fill(line, &outcome, placement);
            }
            let step = (line + (1 << shift) - at)
                .min(4096 - (at & 0xfff))
                .min(left);
            linear = linear.wrapping_add(step);
            left -= step;
            at += step;
            if at & 0xfff == 0 && left > 0 {
                at = code.second_page;
            }
        }
    }
}
