//! Random values of general, vector, x87 and control registers.

use iced_x86::{OpKind, Register};
use nodescope_x86::{FxImage, Vector256};

use super::Case;
use crate::catalogue::Group;
use crate::random::Random;
use crate::state::State;

/// Status flags: CF, PF, AF, ZF, SF, OF.
const STATUS: u64 = 0x8d5;
/// Direction flag, DF.
const DIRECTION: u64 = 1 << 10;
/// IF, which is always set in user code, and bit 1, which is always set.
const FIXED: u64 = 0x202;

/// Returns a random state with the instruction pointer at `rip`.
pub fn random(group: Group, rip: u64, r: &mut Random) -> State {
    let mut gpr = [0; 16];
    for g in &mut gpr {
        *g = r.integer();
    }
    let mut vector = Vector256::default();
    for v in &mut vector.0 {
        r.fill(v);
    }
    let rflags = flags(group, r);
    let mut fx = FxImage::default();
    floating_point(&mut fx.0, r);
    State {
        gpr,
        rip,
        rflags,
        fx,
        vector,
    }
}

fn flags(group: Group, r: &mut Random) -> u64 {
    let mut rflags = FIXED | r.next() & STATUS;
    if r.chance(if group == Group::String { 400 } else { 100 }) {
        rflags |= DIRECTION;
    }
    rflags
}

/// Draws new values for the general registers, flags and MXCSR, and for the vector registers that the instruction names, XMM0, which some
/// instructions read implicitly, and one more. The groups `X87`, `Mmx` and `State` also get new x87 state, and `State` gets all vector
/// registers. Other state is not changed.
pub fn vary(case: &mut Case, r: &mut Random) {
    let group = case.id.group;
    let state = &mut case.state;
    for g in &mut state.gpr {
        *g = r.integer();
    }
    state.rflags = flags(group, r);
    if group == Group::State {
        for v in &mut state.vector.0 {
            r.fill(v);
        }
    } else {
        let mut drawn = 1 | 1 << r.below(16);
        let i = &case.instruction;
        for n in 0..i.op_count() {
            let register = match i.op_kind(n) {
                OpKind::Register => i.op_register(n),
                OpKind::Memory if i.is_vsib() => i.memory_index(),
                _ => Register::None,
            };
            if register.is_xmm() || register.is_ymm() {
                drawn |= 1_u32 << (register.number() & 15);
            }
        }
        for (n, v) in state.vector.0.iter_mut().enumerate() {
            if drawn >> n & 1 != 0 {
                r.fill(v);
            }
        }
    }
    if matches!(group, Group::X87 | Group::Mmx | Group::State) {
        let mut fx = FxImage::default();
        floating_point(&mut fx.0, r);
        state.fx = fx;
    } else {
        state.fx.set_mxcsr(mxcsr(r));
    }
}

/// Writes random x87 state and MXCSR into an FXSAVE image.
pub fn floating_point(image: &mut [u8], r: &mut Random) {
    let masks = if r.chance(700) { 0x3f } else { r.next() & 0x3f };
    let precision = if r.chance(700) { 3 } else { r.below(4) };
    let fcw = masks | 0x40 | precision << 8 | r.below(4) << 10 | r.below(2) << 12;
    let mut flags = if r.chance(500) { 0 } else { r.next() & 0x7f };
    if !r.chance(60) {
        flags &= masks | 0x40;
    }
    let mut fsw = flags | r.next() & 0x4700 | r.below(8) << 11;
    // The summary bit ES and its copy B follow from the flags.
    if flags & !masks & 0x3f != 0 {
        fsw |= 0x8080;
    }
    let tags = match r.below(5) {
        0..=2 => 0xff,
        3 => r.next() as u8,
        _ => r.pick(&[0, 1, 0x80, 0x7f, 0xfe]),
    };
    image[0..2].copy_from_slice(&(fcw as u16).to_le_bytes());
    image[2..4].copy_from_slice(&(fsw as u16).to_le_bytes());
    image[4] = tags;
    image[24..28].copy_from_slice(&mxcsr(r).to_le_bytes());
    for i in 0..8 {
        let at = 32 + 16 * i;
        if r.chance(150) {
            // The register contains an MMX value.
            let mut mm = [0; 8];
            r.fill(&mut mm);
            image[at..at + 8].copy_from_slice(&mm);
            image[at + 8..at + 10].fill(0xff);
        } else {
            image[at..at + 10].copy_from_slice(&r.f80());
        }
    }
}

/// Returns a random MXCSR without reserved bits.
pub fn mxcsr(r: &mut Random) -> u32 {
    let masks = if r.chance(750) { 0x3f } else { r.next() & 0x3f };
    let flags = if r.chance(600) { 0 } else { r.next() & 0x3f };
    let zeros = if r.chance(700) { 0 } else { r.next() & 0x8040 };
    (masks << 7 | flags | zeros | r.below(4) << 13) as u32
}
