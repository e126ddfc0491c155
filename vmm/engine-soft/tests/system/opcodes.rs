//! A sweep over all opcodes, in user mode and as the kernel. No encoding ends the study. The processor has the instructions that
//! CPUID announces, and no others.

use std::collections::BTreeMap;

use iced_x86::{Code, CpuidFeature, Decoder, DecoderOptions, Instruction, Mnemonic, Register};
use nodescope_engine::Vcpu;
use nodescope_engine_soft::{SharedCode, SoftConfig, SoftVcpu, StepOutcome, Translate};
use nodescope_machine::cpuid::{CpuidOptions, Template, shown};
use nodescope_machine::topology::NodeTopology;
use nodescope_oracle::bare;
use nodescope_test_needs::{Need, skip};
use nodescope_x86::features::ALWAYS;
use nodescope_x86::state::seg;
use nodescope_x86::{CpuidTable, FxImage, General, VcpuState, Vector, Vector256};

use crate::machine::*;
use crate::*;

/// Address of the first instruction, and distance between instructions.
const AREA: u64 = 2 << 20;
const SLOT: usize = 16;
/// Number of instructions that are placed at a time: 16-bit code reaches no more.
const SLOTS: usize = (64 << 10) / SLOT;
/// Displacement in memory operands, so that the operands lie after the code.
const BEHIND: i32 = 0x10_0000;
/// The byte between instructions: INT3.
const FILLER: u8 = 0xcc;

/// Returns the features of instructions that the default template announces.
fn announced() -> Vec<CpuidFeature> {
    let decoded = shown().flat_map(|feature| feature.decoded);
    ALWAYS.iter().chain(decoded).copied().collect()
}

/// Returns whether an encoding also executes on a processor without its feature: hints are NOPs, and F3 before BSF and BSR is ignored.
fn has_an_older_meaning(bytes: &[u8], i: &Instruction) -> bool {
    use Mnemonic::*;
    let escape = bytes.iter().position(|&b| b == 0x0f);
    let second = escape.and_then(|at| bytes.get(at + 1));
    let hint = matches!(second, Some(0x0d | 0x18..=0x1f));
    hint && i.encoding() == iced_x86::EncodingKind::Legacy
        || matches!(i.mnemonic(), Tzcnt | Lzcnt | Wbnoinvd)
}

/// Returns whether an instruction raises `#UD` although the processor has it.
fn raises_invalid_opcode(i: &Instruction, bits: u32, kernel: bool) -> bool {
    use Mnemonic::*;
    match i.mnemonic() {
        Ud0 | Ud1 | Ud2 => true,
        // These instructions raise `#UD` in 32-bit code (SDM vol. 2B).
        Syscall | Sysret | Sysretq => bits != 64,
        Mov if i.op0_register() == Register::CS => true,
        // CR4.DE is set, so that DR4 and DR5 do not exist. In user mode `#GP` comes first.
        Mov => (0..2).any(|n| matches!(i.op_register(n), Register::DR4 | Register::DR5)) && kernel,
        _ => false,
    }
}

/// The machine on which instructions are run one by one.
struct Sweep {
    vcpu: SoftVcpu,
    ram: nodescope_memory::Ram,
    ports: bare::Bare,
    base: VcpuState,
    bits: u32,
    announced: Vec<CpuidFeature>,
    placed: Vec<Vec<u8>>,
    /// Number of instructions that ran; `retired` counts those of them that retired.
    ran: u64,
    retired: u64,
    wrong: BTreeMap<String, (u64, String)>,
}

impl Sweep {
    fn new(bits: u32, cpuid: CpuidTable, announced: Vec<CpuidFeature>) -> Self {
        let system = System::new(|_| {}).user();
        let mut base = system.m.state.clone();
        // OSFXSR, OSXMMEXCPT, FSGSBASE, OSXSAVE, DE; SCE.
        base.control.cr4 |= 0x0005_0608;
        base.control.efer |= 1;
        base.control.xcr0 = 7;
        (base.msrs.lstar, base.msrs.star) = (CODE, 0x1b << 48 | KERNEL_CS << 32);
        (base.msrs.sysenter_cs, base.msrs.sysenter_eip) = (KERNEL_CS, CODE);
        let code = &mut base.segments.data[seg::CS];
        if bits != 64 {
            code.attributes = if bits == 32 { 0xc0fb } else { 0x80fb };
            code.base = AREA;
        }
        // RCX is a count and RDX a port. The other registers point to data.
        base.general.gpr = [DATA; 16];
        base.general.gpr[RCX] = 2;
        base.general.gpr[RSP] = STACK;
        base.general.rflags = 2;
        let ram = system.m.ram.clone();
        let vcpu = SoftVcpu::new(SoftConfig {
            id: 0,
            code: SharedCode::new(ram.clone()),
            cpuid,
            cpi: 1 << 16,
            seed: 1,
            translate: Translate::Never,
        });
        Self {
            vcpu,
            ram,
            ports: bare::Bare::default(),
            base,
            bits,
            announced,
            placed: Vec::new(),
            ran: 0,
            retired: 0,
            wrong: BTreeMap::new(),
        }
    }

    /// Makes the sweep run in kernel mode.
    fn in_the_kernel(mut self) -> Self {
        let data = &mut self.base.segments.data;
        for (segment, selector) in [(seg::CS, KERNEL_CS), (seg::SS, KERNEL_SS)] {
            data[segment].selector = selector as u16;
            data[segment].attributes &= !0x60;
        }
        self
    }

    /// Adds the instruction that begins with these bytes to the sweep.
    fn add(&mut self, opcode: &[u8], tail: [u8; 8]) {
        let mut bytes = [opcode, &tail].concat();
        let len = Decoder::new(self.bits, &bytes, DecoderOptions::NONE)
            .decode()
            .len();
        bytes.truncate(len.min(SLOT - 1));
        self.placed.push(bytes);
        if self.placed.len() == SLOTS {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let placed = std::mem::take(&mut self.placed);
        let mut area = vec![FILLER; placed.len() * SLOT];
        for (slot, bytes) in area.chunks_exact_mut(SLOT).zip(&placed) {
            slot[..bytes.len()].copy_from_slice(bytes);
        }
        assert!(self.ram.write(AREA, &area));
        self.vcpu.restore(&self.base);
        for (n, bytes) in placed.iter().enumerate() {
            self.run(AREA + (n * SLOT) as u64, bytes);
        }
    }

    fn run(&mut self, at: u64, bytes: &[u8]) {
        let base = &self.base;
        let general = General {
            rip: at - base.segments.data[seg::CS].base * u64::from(self.bits != 64),
            ..base.general
        };
        let (fx, vector) = (FxImage::default(), Vector256::default());
        self.vcpu.set_user_registers(&general, &fx, &vector);
        let outcome = self.vcpu.run_undelivered(&mut self.ports, 1);
        self.ran += 1;
        let decode = |options| Decoder::new(self.bits, bytes, options).decode();
        let i = decode(DecoderOptions::NONE);
        let known = !i.is_invalid()
            && i.cpuid_features()
                .iter()
                .all(|f| self.announced.contains(f));
        let older = !known && !i.is_invalid() && has_an_older_meaning(bytes, &i);
        let there = known
            && !raises_invalid_opcode(&i, self.bits, base.segments.data[seg::SS].dpl() == 0)
            || older;
        let what = match outcome {
            Err(e) => Some(format!(
                "ends the study: {}",
                e.to_string().lines().next().unwrap()
            )),
            Ok(StepOutcome::Exception(e)) => match (e.vector == Vector::InvalidOpcode, there) {
                (true, true) => Some("is not there".to_owned()),
                (false, false) => Some(format!("raises {:?}", e.vector)),
                _ => None,
            },
            Ok(_) => {
                self.retired += 1;
                (!there).then(|| "runs".to_owned())
            }
        };
        if let Some(what) = what {
            let key = format!("{:?} {what}", i.code());
            let entry = self
                .wrong
                .entry(key)
                .or_insert((0, format!("{bytes:02x?}")));
            entry.0 += 1;
        }
        let after = self.vcpu.save();
        if after.segments != base.segments
            || after.control != base.control
            || after.events != base.events
            || after.msrs != base.msrs
            || after.debug != base.debug
        {
            self.vcpu.restore(base);
        }
    }

    /// Adds all opcodes of a map after a prefix, with operands.
    fn map(&mut self, prefix: &[u8], operands: &[(u8, [u8; 8])]) {
        for opcode in 0..=255 {
            for &(modrm, tail) in operands {
                self.add(&[prefix, &[opcode, modrm]].concat(), tail);
            }
        }
    }

    fn finish(mut self) -> (u64, u64) {
        self.flush();
        let list: Vec<_> = self
            .wrong
            .iter()
            .map(|(key, (n, first))| format!("{key}: {n} times, as {first}"))
            .collect();
        assert!(
            list.is_empty(),
            "{}-bit code:\n{}",
            self.bits,
            list.join("\n")
        );
        println!(
            "{} of {} encodings of {}-bit code retire",
            self.retired, self.ran, self.bits
        );
        (self.ran, self.retired)
    }
}

/// Returns ModRM bytes for all values of the reg field, each with `registers` and three forms of memory operands in the other fields. SIB,
/// displacement and immediate follow each.
fn operands(registers: &[u8]) -> Vec<(u8, [u8; 8])> {
    let mut all = Vec::new();
    for reg in 0..8 {
        for rm in registers {
            all.push((0xc0 | reg << 3 | rm, [0; 8]));
        }
        let mut behind = [0; 8];
        behind[..4].copy_from_slice(&BEHIND.to_le_bytes());
        all.push((reg << 3, [0; 8]));
        all.push((reg << 3 | 4, [0; 8]));
        all.push((reg << 3 | 5, behind));
    }
    all
}

const ALL: &[u8] = &[0, 1, 2, 3, 4, 5, 6, 7];

fn legacy(sweep: &mut Sweep, prefixes: &[&[u8]]) {
    let operands = operands(ALL);
    for prefix in prefixes {
        for map in [&[][..], &[0x0f], &[0x0f, 0x38], &[0x0f, 0x3a]] {
            sweep.map(&[prefix, map].concat(), &operands);
        }
    }
}

/// Adds all 3DNow! opcodes; the opcode is the last byte.
fn three_d_now(sweep: &mut Sweep) {
    for opcode in 0..=255 {
        for modrm in [0xc1, 0xd0] {
            sweep.add(&[0x0f, 0x0f, modrm, opcode], [0; 8]);
        }
    }
}

/// Adds encodings with the prefix C4, or 8F for XOP: all maps, W, L, with a third register or none, and all implied prefixes.
fn vex(sweep: &mut Sweep, escape: u8, maps: std::ops::RangeInclusive<u8>) {
    let operands = operands(&[0, 1]);
    for map in maps {
        for last in 0..=255_u8 {
            // W, vvvv of all ones or all zeros, L, pp.
            if matches!(last >> 3 & 0xf, 0 | 0xf) {
                sweep.map(&[escape, 0xe0 | map, last], &operands);
            }
        }
    }
}

/// Adds encodings with the prefix C5: the first map, without W.
fn short_vex(sweep: &mut Sweep) {
    let operands = operands(&[0, 1]);
    for last in 0x80..=255_u8 {
        if matches!(last >> 3 & 0xf, 0 | 0xf) {
            sweep.map(&[0xc5, last], &operands);
        }
    }
}

fn evex(sweep: &mut Sweep) {
    let operands: Vec<_> = operands(&[0]);
    for map in [1, 2, 3, 5, 6] {
        for prefix in 0..4 {
            for w in [0, 0x80] {
                // Vector length, and the bit for broadcast or rounding.
                for last in [0x08, 0x58] {
                    sweep.map(&[0x62, 0xf0 | map, 0x7c | w | prefix, last], &operands);
                }
            }
        }
    }
}

/// Returns a template without these features.
fn template(hidden: &[&str]) -> Template {
    let options = CpuidOptions {
        hidden: hidden.iter().map(|&name| name.to_owned()).collect(),
        ..Default::default()
    };
    Template::new(&options).unwrap()
}

fn sweep(bits: u32, hidden: &[&str], gone: &[CpuidFeature]) -> Option<Sweep> {
    let mut template = template(hidden);
    let lacks = template.intersect_host().unwrap();
    if lacks.iter().any(|name| !hidden.contains(name)) {
        skip(Need::Cpu, format!("the host has no {}", lacks.join(", ")));
        return None;
    }
    let mut announced = announced();
    announced.retain(|f| !gone.contains(f));
    let table = template.table(&NodeTopology::default(), 0);
    Some(Sweep::new(bits, table, announced))
}

#[test]
fn no_encoding_of_64_bit_code_ends_the_study() {
    let Some(mut sweep) = sweep(64, &[], &[]) else {
        return;
    };
    let prefixes: [&[u8]; 7] = [
        &[],
        &[0x66],
        &[0xf2],
        &[0xf3],
        &[0x66, 0xf2],
        &[0x66, 0xf3],
        &[0xf0],
    ];
    for prefix in prefixes {
        legacy(&mut sweep, &[prefix, &[prefix, &[0x48]].concat()]);
    }
    three_d_now(&mut sweep);
    vex(&mut sweep, 0xc4, 0..=3);
    short_vex(&mut sweep);
    vex(&mut sweep, 0x8f, 8..=10);
    evex(&mut sweep);
    let (ran, retired) = sweep.finish();
    assert!(ran > 2_000_000 && retired > 300_000, "{retired} of {ran}");
}

#[test]
fn no_encoding_of_32_and_16_bit_code_ends_the_study() {
    for bits in [32, 16] {
        let Some(mut sweep) = sweep(bits, &[], &[]) else {
            return;
        };
        legacy(&mut sweep, &[&[], &[0x66], &[0xf2], &[0xf3]]);
        three_d_now(&mut sweep);
        vex(&mut sweep, 0xc4, 1..=3);
        sweep.finish();
    }
}

/// The engine knows every instruction that CPUID announces, in kernel mode, too.
#[test]
fn no_encoding_of_the_kernels_code_ends_the_study() {
    let Some(sweep) = sweep(64, &[], &[]) else {
        return;
    };
    let mut sweep = sweep.in_the_kernel();
    legacy(
        &mut sweep,
        &[&[], &[0x66], &[0xf2], &[0xf3], &[0x48], &[0xf3, 0x48]],
    );
    let (ran, retired) = sweep.finish();
    assert!(ran > 500_000 && retired > 100_000, "{retired} of {ran}");
}

/// A feature that a study hides is absent, and its encodings have their earlier meaning.
#[test]
fn hidden_features_are_not_there() {
    let hidden: Vec<_> = shown()
        .map(|f| f.name)
        .filter(|name| {
            Template::new(&CpuidOptions {
                hidden: vec![(*name).to_owned()],
                ..Default::default()
            })
            .is_ok()
        })
        .collect();
    // Without the features that stay, a kernel does not start.
    let gone: Vec<CpuidFeature> = shown()
        .filter(|feature| hidden.contains(&feature.name))
        .flat_map(|feature| feature.decoded.iter().copied())
        .collect();
    let Some(mut sweep) = sweep(64, &hidden, &gone) else {
        return;
    };
    legacy(&mut sweep, &[&[], &[0x66], &[0xf2], &[0xf3], &[0xf3, 0x48]]);
    vex(&mut sweep, 0xc4, 1..=3);
    // A CPUID bit announces LAHF and SAHF in 64-bit mode, but iced-x86 assigns them no feature.
    sweep.wrong.retain(|key, _| {
        let code = key.split(' ').next();
        code != Some(&format!("{:?}", Code::Lahf)) && code != Some(&format!("{:?}", Code::Sahf))
    });
    let (ran, _) = sweep.finish();
    assert!(ran > 500_000, "{ran}");
}
