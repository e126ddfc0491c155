//! Random cases: an instruction, a state and the contents of memory. Group, seed, index and number of the variant determine a case.
//!
//! An index identifies an encoding at an address. Within as many indices as the group has instructions, every instruction occurs once. Its
//! encoding is random where the opcode permits. Each variant draws a new state for the encoding: general registers, flags, floating-point
//! control, the vector and x87 registers that the instruction names, and addresses and contents of its operands.

mod encode;
pub(crate) mod registers;
mod steer;

use iced_x86::{Code, Instruction, OpAccess, UsedMemory};

use crate::catalogue::{self, Group};
use crate::engine::TlbState;
use crate::layout::{CODE, CODE_LEN, PAGE, VOID_END, VOID_START, WINDOW, WINDOW_LEN, WRITABLE_LEN};
use crate::random::Random;
use crate::state::State;

pub use steer::is_same_on_both_sides;

/// Bytes that a case writes into the window.
#[derive(Clone, Debug)]
pub struct Patch {
    /// Address of the first byte.
    pub address: u64,
    /// Contents of the patch.
    pub bytes: Vec<u8>,
}

/// The identifier of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaseId {
    /// Group of instructions.
    pub group: Group,
    /// Seed of the campaign.
    pub seed: u64,
    /// Number of the encoding within group and seed.
    pub index: u64,
    /// Number of the state in which the instruction runs.
    pub variant: u64,
}

impl std::fmt::Display for CaseId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}", self.group, self.seed, self.index)?;
        if self.variant != 0 {
            write!(f, ":{}", self.variant)?;
        }
        Ok(())
    }
}

impl std::str::FromStr for CaseId {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        let wrong = || format!("'{s}' is not GROUP:SEED:INDEX[:VARIANT], such as integer:1:4711:3");
        let mut parts = s.split(':');
        let mut next = || parts.next().ok_or_else(wrong);
        let (group, seed, index) = (next()?, next()?, next()?);
        let variant = next().unwrap_or("0");
        Ok(Self {
            group: group.parse()?,
            seed: seed.parse().map_err(|_| wrong())?,
            index: index.parse().map_err(|_| wrong())?,
            variant: variant.parse().map_err(|_| wrong())?,
        })
    }
}

/// Instruction with a state and contents of memory.
#[derive(Clone, Debug)]
pub struct Case {
    /// Identifier of the case.
    pub id: CaseId,
    /// Encoding of the instruction.
    pub bytes: Vec<u8>,
    /// The decoded instruction at `state.rip`.
    pub instruction: Instruction,
    /// State before the instruction.
    pub state: State,
    /// Contents of memory before the instruction, on top of the common contents ([`window`]).
    pub patches: Vec<Patch>,
    /// First address that the instruction accesses; None: it accesses no memory.
    pub operand: Option<u64>,
    /// State of the engine's TLB before the instruction.
    pub tlb: TlbState,
}

impl Case {
    /// Returns bytes of memory before the instruction; None if they are not all in the window.
    pub fn peek(&self, window: &[u8], address: u64, len: usize) -> Option<Vec<u8>> {
        let offset = usize::try_from(address.wrapping_sub(WINDOW)).ok()?;
        if offset >= WINDOW_LEN || len > WINDOW_LEN - offset {
            return None;
        }
        let mut bytes = window[offset..offset + len].to_vec();
        for p in &self.patches {
            for (i, b) in p.bytes.iter().enumerate() {
                let at = (p.address + i as u64).wrapping_sub(address);
                if at < len as u64 {
                    bytes[at as usize] = *b;
                }
            }
        }
        Some(bytes)
    }
}

/// Returns the contents of the window with which all cases start.
pub fn window() -> Vec<u8> {
    let mut r = Random::new(0x77);
    let mut bytes = vec![0; WINDOW_LEN];
    for chunk in bytes.chunks_mut(64) {
        r.fill(chunk);
    }
    bytes
}

/// Generator of the cases of one group.
pub struct Generator {
    group: Group,
    seed: u64,
    codes: Vec<Code>,
    info: iced_x86::InstructionInfoFactory,
    window: Vec<u8>,
    /// Memory that the last drawn instruction uses.
    used: Vec<UsedMemory>,
}

impl Generator {
    /// Makes a generator for a group and a seed.
    pub fn new(group: Group, seed: u64) -> Self {
        Self {
            group,
            seed,
            codes: catalogue::codes(group),
            info: iced_x86::InstructionInfoFactory::new(),
            window: window(),
            used: Vec::new(),
        }
    }

    /// Returns the instructions of the group.
    pub fn codes(&self) -> &[Code] {
        &self.codes
    }

    /// Returns the case with this index and variant 0. Every instruction occurs once in `codes().len()` successive indices, but in the
    /// group `Invalid` others replace instructions for which no invalid encoding was found.
    pub fn case(&mut self, index: u64) -> Case {
        let id = CaseId {
            group: self.group,
            seed: self.seed,
            index,
            variant: 0,
        };
        let mut random = Random::new(
            Random::new(self.seed).next() ^ Random::new(index).next() ^ self.group as u64,
        );
        let mut code = self.codes[(index % self.codes.len() as u64) as usize];
        for attempt in 1.. {
            if let Some(case) = self.attempt(id, code, &mut random) {
                return case;
            }
            // Some instructions have no invalid encoding.
            if attempt % 200 == 0 && self.group == Group::Invalid {
                code = random.pick(&self.codes);
            }
            assert!(
                attempt < 100_000,
                "no case of {code:?} could be drawn; it does not belong in the catalogue"
            );
        }
        unreachable!("the loop has no other end")
    }

    fn attempt(&mut self, id: CaseId, code: Code, random: &mut Random) -> Option<Case> {
        let invalid = id.group == Group::Invalid;
        let position = random.below(1000);
        // Most instructions are at a random address. Some cross into the second code page, a few run beyond the end of the code pages.
        let end = CODE + CODE_LEN as u64;
        let address = match position {
            0..=99 => CODE + PAGE - 1 - random.below(8),
            100..=109 if !invalid && id.group != Group::Branch => end - 1 - random.below(8),
            _ => CODE + random.below(CODE_LEN as u64 - 32),
        };
        let (bytes, instruction) = encode::encode(code, address, invalid, random)?;
        // An instruction at the end must cross the end. Behind any other instruction the harness needs space for a jump back.
        if address >= end - 8 && bytes.len() as u64 <= end - address {
            return None;
        }
        let mut case = Case {
            id,
            bytes,
            instruction,
            state: registers::random(id.group, address, random),
            patches: Vec::new(),
            operand: None,
            tlb: tlb(random),
        };
        if !invalid {
            steer::steer(&mut case, random, steer::Encoding::Mutable)?;
        }
        self.used.clear();
        if !case.instruction.is_invalid() {
            let used = self.info.info(&case.instruction).used_memory();
            let touched = used.iter().filter(|m| m.access() != OpAccess::NoMemAccess);
            self.used.extend(touched);
        }
        self.is_safe(&mut case).then_some(case)
    }

    /// Returns the instruction of `case` in another state. `case` is the last result of [`Generator::case`]. None: a few tries gave no safe
    /// state.
    pub fn variant(&mut self, case: &Case, variant: u64) -> Option<Case> {
        debug_assert_eq!(case.id.variant, 0);
        let id = CaseId { variant, ..case.id };
        let mut random = Random::new(
            Random::new(id.seed).next()
                ^ Random::new(id.index).next()
                ^ Random::new(variant).next().rotate_left(8)
                ^ id.group as u64,
        );
        for _ in 0..4 {
            let mut varied = Case {
                id,
                patches: Vec::with_capacity(2),
                operand: None,
                tlb: tlb(&mut random),
                ..case.clone()
            };
            registers::vary(&mut varied, &mut random);
            if steer::steer(&mut varied, &mut random, steer::Encoding::Fixed).is_some()
                && self.is_safe(&mut varied)
            {
                return Some(varied);
            }
        }
        None
    }

    /// Returns whether all addresses that the instruction can access have the same memory on both sides. Sets the case's operand.
    fn is_safe(&mut self, case: &mut Case) -> bool {
        if case.instruction.is_invalid() {
            return true;
        }
        for m in &self.used {
            let vsib = if m.vsib_size() != 0 { 8 } else { 1 };
            for element in 0..vsib {
                let address = m.virtual_address(element, |r, element, size| {
                    Some(register(&case.state, r, element, size))
                });
                let Some(address) = address else { return false };
                if !is_same_on_both_sides(address) {
                    return false;
                }
                case.operand.get_or_insert(address);
            }
        }
        steer::is_safe(case, &self.window)
    }
}

/// Draws a state of the TLB, warm in six of eight cases.
fn tlb(r: &mut Random) -> TlbState {
    match r.below(8) {
        0 => TlbState::Cold,
        1 => TlbState::Unchanged,
        _ => TlbState::Warm,
    }
}

/// Returns the value of a register for address arithmetic: of a segment register, its base; of a vector register, one element.
pub fn register(
    state: &State,
    register: iced_x86::Register,
    element: usize,
    element_size: usize,
) -> u64 {
    use iced_x86::Register as R;
    if register == R::GS {
        return crate::layout::GS_BASE;
    }
    if register.is_segment_register() {
        return 0;
    }
    if register.is_vector_register() {
        let v = &state.vector.0[register.number()];
        let at = element * element_size;
        if at + element_size > 32 {
            return 0;
        }
        return if element_size == 4 {
            i32::from_le_bytes(v[at..at + 4].try_into().unwrap_or_default()) as u64
        } else {
            u64::from_le_bytes(v[at..at + 8].try_into().unwrap_or_default())
        };
    }
    let full = state.gpr[register.full_register().number()];
    match register.size() {
        8 => full,
        4 => full & 0xffff_ffff,
        2 => full & 0xffff,
        _ if matches!(register, R::AH | R::CH | R::DH | R::BH) => {
            state.gpr[(register.number() - R::AH.number()) & 3] >> 8 & 0xff
        }
        _ => full & 0xff,
    }
}

/// Returns whether an address is in the reserved range, at least 1 MiB from its ends. Outside there may be the harness's own memory.
fn in_void(address: u64) -> bool {
    (VOID_START + 0x10_0000..VOID_END - 0x10_0000).contains(&address)
}

/// Returns the part of a patch that is in the writable pages; None if no byte is.
fn clip(address: u64, bytes: &[u8]) -> Option<Patch> {
    let start = address.max(WINDOW);
    let end = (address.checked_add(bytes.len() as u64)?).min(WINDOW + WRITABLE_LEN as u64);
    (start < end).then(|| Patch {
        address: start,
        bytes: bytes[(start - address) as usize..(end - address) as usize].to_vec(),
    })
}
