//! Runs random programs on the interpreter and on the translator, and compares both.

use std::collections::HashSet;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use iced_x86::{Decoder, DecoderOptions, Formatter, GasFormatter, IcedError};
use nodescope_engine::{CodeCost, EngineError, Exit, Limit, Vcpu};
use nodescope_engine_soft::{DecodedPool, SharedCode, SoftConfig, SoftVcpu, Translate};
use nodescope_memory::{LayoutError, Ram};
use nodescope_plugin_api::{L0Geometry, ProfiledBlock};
use nodescope_x86::VcpuState;
use nodescope_x86::state::seg;
use thiserror::Error;

use super::caches::{Caches, Description};
use super::guest::{self, CODE_LEN, CODE_PHYSICAL, Image, STRIDE, Start, VCPUS};
use super::platform::{Event, Machine};
use super::program::{Writer, noise, walk};
use crate::bare::page;
use crate::catalogue::Group;
use crate::generate::{registers, window};
use crate::layout::{CODE, WINDOW, WRITABLE_LEN};
use crate::random::Random;

/// Number of programs that one pair of sides runs, one after the other.
const PROGRAMS: u64 = 8;
/// Number of instructions for each vCPU. A program ends when its vCPUs together have retired more.
const LENGTH: u64 = 4000;
/// Maximum number of slices of a program.
const SLICES: u64 = 300;
/// Longest slice in cycles, without extensions. This limit ends slices in which no instruction retires.
const MOST_CYCLES: u64 = 1_000_000;
/// Attribute bit L of a 64-bit code segment.
const LONG: u16 = 0x2000;

/// Kind of random programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Pieces of code that branch to each other, on one vCPU.
    Blocks,
    /// A mixture of random instructions and random bytes, on one vCPU.
    Bytes,
    /// Blocks or bytes, on two vCPUs of which a random one runs at a time, with NMIs and 32-bit code. Some pairs have a small translation
    /// cache.
    Node,
    /// Blocks, or endless loads and stores, on two vCPUs of which a random one runs at a time. Every window has a real cache model, see
    /// [`super::caches`]. Some pairs have a small translation cache.
    Caches,
    /// User code of random bytes, 64-bit or 32-bit, with many prefixes and escapes to other opcode maps, on one vCPU.
    Noise,
}

/// Counts of a lockstep test.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Number of seeds.
    pub seeds: u64,
    /// Number of programs.
    pub programs: u64,
    /// Number of slices, each followed by a comparison of both sides.
    pub slices: u64,
    /// Number of instructions that each side retired.
    pub instructions: u64,
    /// Number of calls of the platform that one side's log recorded.
    pub events: u64,
    /// Number of blocks translated.
    pub translations: u64,
    /// Number of blocks that were translated for a pool of two nodes.
    pub shared: u64,
    /// Number of times that translated code was evicted from a full translation cache.
    pub evictions: u64,
    /// Number of times that a model was attached or detached during a program.
    pub windows: u64,
    /// Number of first-level misses of a real model that translated code served itself.
    pub served: u64,
    /// Number of NMIs that the vCPUs got.
    pub nmis: u64,
    /// Number of slices that began in 32-bit code.
    pub compatible: u64,
    /// Number of programs that ended because the engine does not support something.
    pub unknown: u64,
}

/// Reason for which the comparison ended early.
#[derive(Debug, Error)]
pub enum Failure {
    /// The guest's memory cannot be allocated.
    #[error(transparent)]
    Memory(#[from] LayoutError),
    /// The guest's kernel cannot be assembled.
    #[error(transparent)]
    Kernel(#[from] IcedError),
    /// The two sides differ.
    #[error("{kind:?}, seed {seed}, program {program}, slice {slice}: {what}")]
    Differ {
        /// Kind of the programs.
        kind: Kind,
        /// Seed of the programs.
        seed: u64,
        /// Number of the program within the seed, from 0.
        program: u64,
        /// Number of the slice within the program, from 0.
        slice: u64,
        /// The differences, and the last instructions before them.
        what: String,
    },
}

/// One side of a comparison: the interpreter or the translator.
struct Side {
    vcpus: Vec<SoftVcpu>,
    ram: Ram,
    machine: Machine,
}

impl Side {
    fn bytes(&self) -> &[u8] {
        self.memory(0, guest::USED)
    }

    fn memory(&self, from: u64, len: usize) -> &[u8] {
        assert!(from + len as u64 <= guest::RAM);
        // SAFETY: the first region starts at address 0 and is as large as RAM. RAM is written only while a vCPU runs or by `Ram::write`;
        // neither happens while the slice is in use.
        unsafe { std::slice::from_raw_parts(self.ram.regions()[0].host.add(from as usize), len) }
    }

    /// Returns the page table entries that the kernel changes, without the bits that processors set (A and D).
    fn mapped(&self, image: &Image) -> [u64; 8] {
        image.entries.map(|at| {
            let mut word = [0; 8];
            word.copy_from_slice(&self.bytes()[at as usize..][..8]);
            u64::from_le_bytes(word) & !(page::A | page::D)
        })
    }

    /// Writes the program's initial contents of memory: `image` from address 0, and `large` at `LARGE`.
    fn reset(&self, image: &[u8], large: &[u8]) {
        assert!(self.ram.write(guest::LARGE, large));
        for (k, page) in image.chunks(4096).enumerate() {
            if self.bytes()[k * 4096..][..page.len()] != *page {
                assert!(self.ram.write(k as u64 * 4096, page));
            }
        }
    }
}

/// Compares both sides on the seeds from `from` on, until `count` seeds ran or the time is over. The kinds alternate from seed to seed.
/// `begin` is called with each seed.
///
/// # Errors
/// The first difference, with the instructions before it; or that the guest cannot be made.
pub fn run(
    kinds: &[Kind],
    from: u64,
    count: u64,
    time: Option<Duration>,
    mut begin: impl FnMut(u64),
) -> Result<Tally, Box<Failure>> {
    let start = Instant::now();
    let mut tally = Tally::default();
    let mut writer = Writer::default();
    let window = window();
    let image = |large| Image::new(&window, large).map_err(|e| Box::new(Failure::from(e)));
    let bases = [image(false)?, image(true)?];
    for seed in from..from.saturating_add(count) {
        if time.is_some_and(|t| start.elapsed() >= t) {
            break;
        }
        begin(seed);
        tally.seeds += 1;
        let kind = kinds[(seed % kinds.len() as u64) as usize];
        // A second node uses the shared translation blocks that the first node has made.
        let pool = (seed % 3 == 1).then(Arc::<DecodedPool>::default);
        let nodes = if pool.is_some() { 2 } else { 1 };
        let mut ran = Ok(());
        for _ in 0..nodes {
            let mut pair = Pair::new(kind, seed, pool.as_ref()).map_err(|e| Box::new(e.into()))?;
            let base = &bases[usize::from(pair.large)];
            ran = ran.and_then(|()| {
                let position = pair.run(&mut writer, base, &mut tally, None);
                position.map_err(|position| (position, base))
            });
        }
        let shared = pool.map_or(0, |pool| pool.translated() as u64);
        tally.translations += shared;
        tally.shared += shared;
        let Err((position, base)) = ran else {
            continue;
        };
        let what = narrow(kind, seed, &mut writer, base, &position);
        return Err(Box::new(Failure::Differ {
            kind,
            seed,
            program: position.program,
            slice: position.slice,
            what,
        }));
    }
    Ok(tally)
}

/// Position of a difference.
struct MismatchPosition {
    program: u64,
    slice: u64,
    /// Numbers of retired instructions: before the slice, and the slice's limit.
    instructions: (u64, u64),
    what: String,
}

/// Order to end a slice after some instructions, and to stop there.
#[derive(Clone, Copy)]
struct Cut {
    program: u64,
    slice: u64,
    instructions: u64,
}

/// Runs the programs again, and cuts the slice shorter, to find the first instruction after which there is a difference. Returns a
/// description.
fn narrow(
    kind: Kind,
    seed: u64,
    writer: &mut Writer,
    base: &Image,
    position: &MismatchPosition,
) -> String {
    let mut trail: Vec<String> = Vec::new();
    let (from, to) = position.instructions;
    for instructions in from + 1..=to.min(from + 3000) {
        let Ok(mut pair) = Pair::new(kind, seed, None) else {
            break;
        };
        let cut = Cut {
            program: position.program,
            slice: position.slice,
            instructions,
        };
        let mut tally = Tally::default();
        if let Err(found) = pair.run(writer, base, &mut tally, Some(cut)) {
            let first = trail.len().saturating_sub(24);
            return format!(
                "{}after {} of {} instructions of the slice, configuration {}; the last ones agreed upon:\n{}",
                found.what,
                instructions - from,
                to - from,
                pair.configuration,
                trail[first..].concat()
            );
        }
        trail.push(describe(&pair.sides[0], pair.running));
    }
    format!(
        "{} (agrees when the slice is cut)\n{}",
        position.what,
        trail[trail.len().saturating_sub(24)..].concat()
    )
}

/// Returns the addresses of random breakpoints on code and on data, and a DR7 that enables some of them. Most are on data, since programs
/// with breakpoints on code run instruction by instruction.
fn breakpoints(r: &mut Random) -> ([u64; 4], u64) {
    let (mut addresses, mut control) = ([0; 4], 0x400);
    let on_code = r.chance(300);
    for (n, address) in addresses.iter_mut().enumerate() {
        // The fields R/W and LEN of DR7.
        let kind = if on_code && r.chance(300) {
            *address = CODE + STRIDE * r.below(CODE_LEN as u64 / STRIDE) + r.below(12);
            0
        } else {
            *address = WINDOW + r.below(WRITABLE_LEN as u64);
            r.pick(&[1, 1, 3]) | r.below(4) << 2
        };
        control |= kind << (16 + 4 * n) | r.below(4) << (2 * n);
    }
    (addresses, control)
}

/// Returns the next instruction as text, with privilege level and flags.
fn describe(side: &Side, running: usize) -> String {
    let s = side.vcpus[running].save();
    let ip = s.general.rip;
    let offset = ip.wrapping_sub(CODE) & !0x10_0000;
    let physical = if offset < CODE_LEN as u64 {
        CODE_PHYSICAL + offset
    } else if ip >> 63 != 0 {
        ip & 0xff_ffff
    } else {
        return format!("  {ip:#x}\n");
    };
    let mut bytes = [0; 15];
    side.ram.read(physical, &mut bytes);
    let bits = if s.segments.data[seg::CS].attributes & LONG != 0 {
        64
    } else {
        32
    };
    let mut decoder = Decoder::with_ip(bits, &bytes, ip, DecoderOptions::NONE);
    let i = decoder.decode();
    let mut text = String::new();
    GasFormatter::new().format(&i, &mut text);
    format!(
        "  {ip:#x} cpl {} flags {:#x} {:02x?} {text}\n",
        s.segments.data[seg::CS].selector & 3,
        s.general.rflags,
        &bytes[..i.len().max(1)]
    )
}

struct Pair {
    kind: Kind,
    random: Random,
    sides: [Side; 2],
    /// Index of the vCPU that ran last.
    running: usize,
    configuration: String,
    /// Geometry of the L0 filter cache in the last window.
    shape: Option<L0Geometry>,
    /// True if the program is a [`walk`].
    walks: bool,
    /// True if a slice may be limited only in cycles, since an instruction takes at least half a cycle.
    time_passes: bool,
    /// Value of [`Writer::strings`] for this seed.
    strings: bool,
    /// Value of [`Writer::splits`] for this seed. It depends on the seed alone, so that other seeds draw the same programs as before this
    /// option existed.
    splits: bool,
    /// True if the guest has large pages. It depends on the seed alone, as `splits` does.
    large: bool,
    /// Decides which time slices the platform may extend, in programs that change the used width of vector registers. The generator is
    /// separate, so that extensions do not change the other draws of a seed. None: no extensions.
    slice_extensions: Option<Random>,
    /// True if blocks have costs of their own outside of windows. It depends on the seed alone, as `splits` does.
    by_block: bool,
    /// Draws the breakpoints with which programs begin. The generator is separate, so that breakpoints do not change the other draws of a
    /// seed. None: no breakpoints.
    breakpoints: Option<Random>,
}

fn block_hash(block: &ProfiledBlock) -> u64 {
    let mut hasher = DefaultHasher::new();
    block.bytes.hash(&mut hasher);
    hasher.finish()
}

impl Pair {
    fn new(kind: Kind, seed: u64, pool: Option<&Arc<DecodedPool>>) -> Result<Self, LayoutError> {
        let mut r = Random::new(match kind {
            Kind::Blocks => seed.wrapping_mul(2),
            Kind::Bytes => seed.wrapping_mul(2) ^ 1,
            Kind::Node => seed ^ 1 << 63,
            Kind::Caches => seed ^ 3 << 62,
            Kind::Noise => seed ^ 5 << 61,
        });
        let cpi = match r.below(8) {
            0..=2 => 1 << 16,
            3 => 0,
            4 => 1,
            5 => 1 << 15,
            6 => 0x1_8000,
            _ => r.below(4 << 16) as u32,
        };
        let period = r.pick(&[0, 0, 20, 200, 2000]);
        let machines = r.next();
        // Number of executions after which blocks are translated, so that some are translated during a program.
        let after = r.pick(&[0, 0, 0, 1, 5]);
        let (vcpus, room) = match kind {
            Kind::Node | Kind::Caches => (VCPUS, r.pick(&[16 << 10, 32 << 10, usize::MAX])),
            _ => (1, usize::MAX),
        };
        let older_host = r.chance(300);
        // With this limit some blocks have no record of their own in the profile. If translations are evicted, the sides decode different
        // blocks again, and different blocks have records.
        let numbered = (r.chance(200) && room == usize::MAX).then(|| 2 + r.below(60) as usize);
        let by_block = seed % 4 == 1;
        let side = |translate| {
            let ram = guest::ram()?;
            let code = match (pool, translate) {
                (Some(pool), Translate::After(_)) => {
                    SharedCode::with_pool(ram.clone(), pool.clone())
                }
                _ => SharedCode::new(ram.clone()),
            };
            if by_block {
                code.cost_by_block().expect("the host has memory for costs");
            }
            let vcpu = |id| {
                let mut vcpu = SoftVcpu::new(SoftConfig {
                    id: id as u16,
                    code: code.clone(),
                    cpuid: guest::cpuid(),
                    cpi,
                    seed: 1,
                    translate,
                });
                vcpu.limit_code(room);
                if room != usize::MAX {
                    vcpu.limit_blocks(16);
                }
                if let Some(blocks) = numbered {
                    vcpu.limit_profile(blocks);
                }
                if older_host {
                    vcpu.without_avx512();
                }
                vcpu
            };
            Ok(Side {
                vcpus: (0..vcpus).map(vcpu).collect(),
                ram,
                machine: Machine::new(machines, period),
            })
        };
        Ok(Self {
            kind,
            random: r,
            sides: [side(Translate::Never)?, side(Translate::After(after))?],
            shape: None,
            walks: false,
            time_passes: cpi >= 1 << 15,
            strings: seed.is_multiple_of(5),
            large: seed % 4 == 3,
            splits: seed % 11 < 3 && Group::Avx.missing().is_empty(),
            slice_extensions: (seed % 7 < 2).then(|| Random::new(machines ^ 5)),
            breakpoints: (seed % 8 == 5).then(|| Random::new(machines ^ 7)),
            by_block,
            running: 0,
            configuration: format!(
                "cpi {cpi}/65536, interrupts {period}, after {after}, room {room}, numbered {numbered:?}, without AVX-512 {older_host}, costs by block {by_block}"
            ),
        })
    }

    fn vcpus(&self) -> u64 {
        self.sides[0].vcpus.len() as u64
    }

    /// Draws a vCPU, or returns the only one without a draw.
    fn any_vcpu(&mut self) -> usize {
        match self.vcpus() {
            1 => 0,
            n => self.random.below(n) as usize,
        }
    }

    fn run(
        &mut self,
        writer: &mut Writer,
        base: &Image,
        tally: &mut Tally,
        cut: Option<Cut>,
    ) -> Result<(), MismatchPosition> {
        for program in 0..PROGRAMS {
            let r = &mut self.random;
            writer.changes_mode = self.kind == Kind::Node;
            writer.strings = self.strings;
            writer.large = self.large;
            writer.splits = self.splits;
            writer.widths = self.slice_extensions.is_some() && Group::Avx.missing().is_empty();
            let walks = self.kind == Kind::Caches && r.chance(700);
            self.walks = walks;
            let code = match self.kind {
                Kind::Caches if walks => walk(self.splits, r),
                Kind::Blocks | Kind::Caches => writer.blocks(r),
                Kind::Bytes => writer.bytes(r),
                Kind::Noise => noise(r),
                Kind::Node if r.chance(700) => writer.blocks(r),
                Kind::Node => writer.bytes(r),
            };
            let mut image = base.bytes.clone();
            image[CODE_PHYSICAL as usize..][..CODE_LEN].copy_from_slice(&code);
            // The other memory, which the kernel may map as the second page of code.
            let other = CODE_PHYSICAL as usize + 0x5000;
            let second = code[4096..8192].to_vec();
            image[other..other + 4096].copy_from_slice(&second);
            for byte in 0..r.below(40) {
                let _ = byte;
                image[other + r.below(4096) as usize] = r.next() as u8;
            }
            let states: Vec<_> = (0..self.vcpus()).map(|n| self.start(n, base)).collect();
            self.attach();
            for side in &mut self.sides {
                side.reset(&image, &base.large);
                side.machine.log.clear();
                for (vcpu, state) in side.vcpus.iter_mut().zip(&states) {
                    let mut state = state.clone();
                    state.time = vcpu.save().time;
                    vcpu.restore(&state);
                }
            }
            tally.programs += 1;
            let stop = cut.filter(|c| c.program == program);
            self.program(program, base, tally, stop)?;
            if stop.is_some() {
                return Ok(());
            }
        }
        for vcpu in &self.sides[1].vcpus {
            tally.translations += vcpu.translations() as u64;
            tally.evictions += vcpu.activity().evictions;
            tally.served += vcpu.activity().served;
        }
        Ok(())
    }

    fn start(&mut self, vcpu: u64, base: &Image) -> VcpuState {
        let r = &mut self.random;
        let start = if self.kind == Kind::Noise {
            r.pick(&[Start::User, Start::User, Start::Compatible])
        } else if self.kind == Kind::Node && r.chance(200) {
            Start::Compatible
        } else if r.chance(650) {
            Start::User
        } else {
            Start::Kernel
        };
        let mut state = base.state(vcpu, start);
        if vcpu != 0 && r.chance(500) {
            state.general.rip += STRIDE * r.below(CODE_LEN as u64 / STRIDE);
        }
        let user = registers::random(Group::Sse, CODE, r);
        state.general.gpr = user.gpr;
        state.general.rflags = user.rflags | r.pick(&[0, 0, 0x4_0000]);
        state.fx = user.fx;
        state.vector = user.vector;
        if r.chance(700) {
            state.fx.set_mxcsr(0x1f80 | (r.below(4) as u32 * 0x2000));
        }
        if r.chance(100) {
            state.control.cr0 |= 8;
        }
        // Some programs begin without OSXSAVE, without OSFXSR, or without AVX in XCR0.
        match r.below(20) {
            0 => state.control.cr4 &= !(1 << 18),
            1 => state.control.cr4 &= !(1 << 9),
            2 => state.control.xcr0 = 3,
            _ => {}
        }
        if let Some(r) = &mut self.breakpoints {
            (state.debug.dr, state.debug.dr7) = breakpoints(r);
        }
        state
    }

    /// Attaches a random model to all vCPUs, or detaches the model.
    fn attach(&mut self) {
        let r = &mut self.random;
        let again = self.shape.filter(|_| r.chance(500));
        let geometry = r.chance(600).then(|| {
            // A window with the last window's geometry can use the translated code of the last window.
            if let Some(shape) = again {
                return shape;
            }
            let line_shift = r.pick(&[5, 6, 6, 6, 7]);
            L0Geometry {
                line_shift,
                data_slots: r.below(13 - u64::from(line_shift)) as u8,
                instruction_slots: r.below((13 - u64::from(line_shift)).min(7)) as u8,
                data_ways: r.pick(&[1, 2, 4, 8, 12, 16]),
                instruction_ways: r.pick(&[1, 2, 8, 16]),
                page_sizes: false,
            }
        });
        let real = (geometry.is_some() && self.kind == Kind::Caches)
            .then(|| Description::random(r, self.large));
        // Only in walks: other programs change page mappings without INVLPG, and a vCPU with an L0 filter cache may notice the change
        // later.
        let mut asks_always = real.is_some() && self.walks && r.chance(500);
        let attributes = r.chance(600);
        for side in &mut self.sides {
            for vcpu in &mut side.vcpus {
                vcpu.flush_counters(&mut side.machine);
            }
            let profile = side.vcpus[0].take_block_profile();
            side.machine.take_profile(profile);
            side.machine.real = real.as_ref().map(|real| Caches::new(real, asks_always));
            // Only the interpreter, which is the first side, runs without an L0 filter cache.
            asks_always = false;
            let geometry = match &side.machine.real {
                Some(real) => Some(real.l0_geometry()),
                None => geometry,
            };
            for vcpu in &mut side.vcpus {
                vcpu.attribute_to_code(attributes && geometry.is_some());
                vcpu.attach(geometry);
            }
            match geometry {
                Some(g) if real.is_none() => side.machine.attach(&g),
                _ => {}
            }
            self.shape = geometry.or(self.shape);
        }
    }

    /// Sets random costs of the code that both sides have numbered, or forgets all costs.
    fn set_code_costs(&mut self) {
        let seed = self.random.next();
        let [interpreted, translated] = [0, 1].map(|side| self.sides[side].vcpus[0].code_numbers());
        let place = |block: &ProfiledBlock| (block.physical & 0xfff, block.bytes.clone());
        let known: HashSet<_> = translated.blocks.iter().map(place).collect();
        let blocks = interpreted
            .blocks
            .iter()
            .filter(|b| known.contains(&place(b)));
        let cost = |block| {
            let mut random = Random::new(seed ^ block_hash(block));
            let most = random.pick(&[30, 300, 20_000]);
            CodeCost {
                block,
                sixteenths: random.below(most),
            }
        };
        let costs: Vec<CodeCost<'_>> = blocks.map(cost).collect();
        for side in &mut self.sides {
            match seed % 8 {
                0 => side.vcpus[0].forget_code_costs(),
                _ => side.vcpus[0].set_code_costs(&costs),
            }
        }
    }

    fn program(
        &mut self,
        program: u64,
        base: &Image,
        tally: &mut Tally,
        cut: Option<Cut>,
    ) -> Result<(), MismatchPosition> {
        let mut ran = 0;
        let mut mapped = self.sides[0].mapped(base);
        // True for vCPUs that are halted for ever or shut down.
        let mut ended = vec![false; self.sides[0].vcpus.len()];
        for slice in 0..SLICES {
            tally.slices += 1;
            self.disturb(tally);
            self.running = self.any_vcpu();
            if ended[self.running] {
                self.running = ended.len() - 1 - self.running;
            }
            let running = self.running;
            let (now, instructions) = {
                let v = &self.sides[0].vcpus[running];
                let code = v.save().segments.data[seg::CS].attributes;
                tally.compatible += u64::from(code & LONG == 0);
                (v.cycles(), v.instructions())
            };
            let r = &mut self.random;
            let most = r.pick(&[3, 30, 300, 3000]);
            let mut limit = Limit::instructions(instructions + 1 + r.below(most));
            limit.cycles = if r.chance(500) {
                now + 1 + r.below(4 * most)
            } else {
                now + MOST_CYCLES
            };
            if limit.cycles < now + MOST_CYCLES && self.time_passes && r.chance(500) {
                // Some slices limit only the clock, as a node does; the clock is checked at the beginning of each block.
                limit.instructions = u64::MAX;
            }
            limit.extends = self
                .slice_extensions
                .as_mut()
                .is_some_and(|r| r.chance(800));
            let stop = cut.filter(|c| c.slice == slice);
            if let Some(cut) = stop {
                limit.instructions = limit.instructions.min(cut.instructions);
            }
            let [a, b] = &mut self.sides;
            let outcomes = [a, b].map(|side| {
                if let Some(real) = &mut side.machine.real {
                    side.vcpus[running].update_l0(&real.take_kept_updates(running));
                }
                side.machine.begin_slice(limit.cycles);
                side.vcpus[running].run(&mut side.machine, limit)
            });
            if let Some(what) = self.difference(&outcomes) {
                return Err(MismatchPosition {
                    program,
                    slice,
                    instructions: (instructions, limit.instructions),
                    what,
                });
            }
            let now_mapped = self.sides[0].mapped(base);
            if now_mapped != mapped {
                // After a change of page tables, a kernel makes other vCPUs flush their TLBs before it continues.
                mapped = now_mapped;
                self.shoot_down(running);
            }
            for side in &mut self.sides {
                tally.events += side.machine.log.len() as u64;
                side.machine.log.clear();
            }
            let after = self.sides[0].vcpus[running].instructions();
            tally.instructions += after - instructions;
            ran += after - instructions;
            if stop.is_some() {
                return Ok(());
            }
            match &outcomes[0] {
                Ok(Exit::Limit | Exit::Attention) => {}
                Ok(Exit::Halted) => {
                    let due = self.sides[0].machine.due();
                    if due == u64::MAX
                        || self.sides[0].vcpus[running].save().general.rflags & 0x200 == 0
                    {
                        ended[running] = true;
                    } else {
                        for side in &mut self.sides {
                            side.vcpus[running].advance_to(due);
                        }
                    }
                }
                Ok(Exit::Shutdown) => ended[running] = true,
                Err(_) => {
                    tally.unknown += 1;
                    return Ok(());
                }
            }
            if ended.iter().all(|e| *e) || ran > LENGTH * self.vcpus() {
                break;
            }
        }
        Ok(())
    }

    /// Flushes the TLBs of all vCPUs but `running`.
    fn shoot_down(&mut self, running: usize) {
        for side in &mut self.sides {
            for (n, vcpu) in side.vcpus.iter_mut().enumerate() {
                if n != running {
                    let state = vcpu.save();
                    vcpu.restore(&state);
                }
            }
        }
    }

    /// Makes random events between slices: devices write memory, other vCPUs take lines away, windows begin and end, and NMIs arrive.
    fn disturb(&mut self, tally: &mut Tally) {
        let r = &mut self.random;
        if r.chance(60) {
            let physical = CODE_PHYSICAL + r.below(guest::USED as u64 - 64 - CODE_PHYSICAL);
            let bytes = r.next().to_le_bytes();
            for side in &self.sides {
                assert!(side.ram.write(physical, &bytes));
            }
        }
        if r.chance(100) {
            let n = self.any_vcpu();
            let references = match self.kind {
                Kind::Caches => self.random.next(),
                _ => 0,
            };
            for side in &mut self.sides {
                match &mut side.machine.real {
                    Some(real) => real.intrude(&mut Random::new(references)),
                    None => {
                        let update = side.machine.update(n as u16, None);
                        side.vcpus[n].update_l0(update.as_slice());
                    }
                }
            }
        }
        if self.random.chance(100) {
            let n = self.any_vcpu();
            for side in &mut self.sides {
                side.vcpus[n].flush_counters(&mut side.machine);
            }
        }
        if self.random.chance(20) {
            tally.windows += 1;
            self.attach();
        }
        if self.by_block && self.random.chance(60) {
            self.set_code_costs();
        }
        if self.kind == Kind::Node && self.random.chance(60) {
            tally.nmis += 1;
            let n = self.any_vcpu();
            for side in &mut self.sides {
                let mut state = side.vcpus[n].save();
                state.events.nmi_pending = true;
                side.vcpus[n].restore(&state);
            }
        }
    }

    fn difference(&self, outcomes: &[Result<Exit, EngineError>; 2]) -> Option<String> {
        let mut text = String::new();
        match outcomes {
            [Ok(a), Ok(b)] if a == b => {}
            [
                Err(EngineError::Unsupported(a)),
                Err(EngineError::Unsupported(b)),
            ] if a.what == b.what && a.bytes == b.bytes && a.state == b.state => {
                // The current privilege level is the DPL of SS (SDM vol. 3A section 5.5).
                if a.state.segments.data[seg::SS].dpl() == 3 {
                    let _ = writeln!(
                        text,
                        "\n  user code ends the study: {} {:02x?}",
                        a.what, a.bytes
                    );
                }
            }
            [a, b] => {
                let _ = writeln!(text, "\n  ended by {a:?}\n  and      {b:?}");
            }
        }
        let [a, b] = &self.sides;
        for (n, (x, y)) in a.vcpus.iter().zip(&b.vcpus).enumerate() {
            let (s, t) = (x.save(), y.save());
            if s == t {
                continue;
            }
            let _ = writeln!(text, "\n  vCPU {n}");
            for (x, y) in format!("{s:#x?}").lines().zip(format!("{t:#x?}").lines()) {
                if x != y {
                    let _ = writeln!(
                        text,
                        "\n  interpreted {}, translated {}",
                        x.trim(),
                        y.trim()
                    );
                }
            }
            let _ = writeln!(
                text,
                "  at {:#x} and {:#x}, instructions {} and {}",
                s.general.rip, t.general.rip, s.time.instructions, t.time.instructions
            );
        }
        if let (Some(x), Some(y)) = (&a.machine.real, &b.machine.real) {
            for what in x.differences(y) {
                let _ = writeln!(text, "\n  caches, {what}");
            }
        }
        for (side, of) in [(a, "interpreted"), (b, "translated")] {
            if let Some(mxcsr) = side.machine.foreign_mxcsr {
                let _ = writeln!(
                    text,
                    "\n  {of}: the machine was called with MXCSR {mxcsr:#x}"
                );
            }
        }
        if a.machine.log != b.machine.log {
            let (x, y) = (&a.machine.log, &b.machine.log);
            let at = x.iter().zip(y).take_while(|(x, y)| x == y).count();
            let event = |log: &[Event]| log.get(at).map_or("nothing".into(), |e| format!("{e:?}"));
            let _ = writeln!(
                text,
                "\n  event {at} of {} and {}\n    interpreted {}\n    translated  {}",
                x.len(),
                y.len(),
                event(x),
                event(y)
            );
        }
        let large: &[_] = if self.large { &guest::LARGE_USED } else { &[] };
        for &(from, len) in [(0, guest::USED)].iter().chain(large) {
            let (x, y) = (a.memory(from, len), b.memory(from, len));
            if x != y {
                let at = x.iter().zip(y).position(|(x, y)| x != y);
                let at = at.unwrap_or_default();
                let _ = writeln!(
                    text,
                    "\n  memory at {:#x}: interpreted {:02x?}, translated {:02x?}",
                    from + at as u64,
                    &x[at..(at + 16).min(len)],
                    &y[at..(at + 16).min(len)]
                );
            }
        }
        (!text.is_empty()).then_some(text)
    }
}
