//! Comparison of the descriptions of cores with the timing of LLVM, which was made independently for most of them.

use std::process::{Command, Stdio};

use iced_x86::code_asm::*;
use iced_x86::{Formatter, GasFormatter, IcedError};
use nodescope_plugin_pipeline::{Core, Instruction, Kind, MicroOperation, NONE, decode, resource};

/// Presets, and the cores of LLVM that they are compared with.
const CORES: [(&str, &str); 6] = [
    ("sandy-bridge", "sandybridge"),
    ("skylake-server", "skylake-avx512"),
    ("ice-lake-server", "icelake-server"),
    ("sapphire-rapids", "sapphirerapids"),
    ("zen2", "znver2"),
    ("zen4", "znver4"),
];

type Code = fn(&mut CodeAssembler) -> Result<(), IcedError>;

/// One instruction of each class that matters.
const INSTRUCTIONS: &[Code] = &[
    |a| a.add(rax, rcx),
    |a| a.adc(rax, rcx),
    |a| a.shl(rax, 3),
    |a| a.shl(rax, cl),
    |a| a.rol(rax, 3),
    |a| a.shld(rax, rcx, 3),
    |a| a.lea(rax, ptr(rcx + 8)),
    |a| a.lea(rax, ptr(rcx + rdx * 4)),
    |a| a.lea(rax, ptr(rcx + rdx + 8)),
    |a| a.imul_2(rax, rcx),
    |a| a.mul(rcx),
    |a| a.div(ecx),
    |a| a.div(rcx),
    |a| a.popcnt(rax, rcx),
    |a| a.tzcnt(rax, rcx),
    |a| a.bsf(rax, rcx),
    |a| a.bt(rax, rcx),
    |a| a.bts(rax, rcx),
    |a| a.bswap(rax),
    |a| a.cmove(rax, rcx),
    |a| a.cmova(rax, rcx),
    |a| a.sete(al),
    |a| a.xchg(rax, rcx),
    |a| a.movzx(eax, cl),
    |a| a.mov(rax, qword_ptr(rsi)),
    |a| a.add(rax, qword_ptr(rsi)),
    |a| a.add(qword_ptr(rsi), rax),
    |a| a.mov(qword_ptr(rsi), rax),
    |a| a.vmovups(ymm0, ymmword_ptr(rsi)),
    |a| a.vmovups(ymmword_ptr(rsi), ymm0),
    |a| a.vpand(xmm0, xmm1, xmm2),
    |a| a.vandps(xmm0, xmm1, xmm2),
    |a| a.vpaddd(xmm0, xmm1, xmm2),
    |a| a.vpcmpeqd(xmm0, xmm1, xmm2),
    |a| a.vpmullw(xmm0, xmm1, xmm2),
    |a| a.vpmulld(xmm0, xmm1, xmm2),
    |a| a.vpsadbw(xmm0, xmm1, xmm2),
    |a| a.vpslld(xmm0, xmm1, 3),
    |a| a.vpslld(xmm0, xmm1, xmm2),
    |a| a.vpshufd(xmm0, xmm1, 3),
    |a| a.vpshufb(xmm0, xmm1, xmm2),
    |a| a.vshufps(xmm0, xmm1, xmm2, 3),
    |a| a.vinsertf128(ymm0, ymm1, xmm2, 1),
    |a| a.vextractf128(xmm0, ymm1, 1),
    |a| a.vperm2f128(ymm0, ymm1, ymm2, 33),
    |a| a.vblendps(xmm0, xmm1, xmm2, 3),
    |a| a.vblendvps(xmm0, xmm1, xmm2, xmm3),
    |a| a.vmovd(xmm0, eax),
    |a| a.vmovd(eax, xmm0),
    |a| a.vpinsrd(xmm0, xmm1, eax, 1),
    |a| a.vpextrd(eax, xmm0, 1),
    |a| a.vpmovmskb(eax, xmm0),
    |a| a.vptest(xmm0, xmm1),
    |a| a.vhaddps(xmm0, xmm1, xmm2),
    |a| a.vdppd(xmm0, xmm1, xmm2, 3),
    |a| a.vaddpd(ymm0, ymm1, ymm2),
    |a| a.vmulpd(ymm0, ymm1, ymm2),
    |a| a.vminpd(ymm0, ymm1, ymm2),
    |a| a.vcomisd(xmm0, xmm1),
    |a| a.vroundpd(xmm0, xmm1, 0),
    |a| a.vrcpps(ymm0, ymm1),
    |a| a.vdivps(xmm0, xmm1, xmm2),
    |a| a.vdivpd(ymm0, ymm1, ymm2),
    |a| a.vsqrtps(ymm0, ymm1),
    |a| a.vsqrtpd(xmm0, xmm1),
    |a| a.vcvtdq2ps(xmm0, xmm1),
    |a| a.vcvtss2sd(xmm0, xmm1, xmm2),
    |a| a.vcvtps2pd(ymm0, xmm1),
    |a| a.vcvtpd2ps(xmm0, ymm1),
    |a| a.vcvtsi2sd(xmm0, xmm1, rax),
    |a| a.vcvttsd2si(rax, xmm0),
    |a| a.vaesenc(xmm0, xmm1, xmm2),
    |a| a.vpclmulqdq(xmm0, xmm1, xmm2, 0),
];

/// Slots, latency and reciprocal throughput of an instruction.
type Figures = (u32, u32, f64);

/// Returns the figures that a core's description gives.
fn modelled(core: &Core, instruction: &Instruction) -> Figures {
    let mut ready = [0_u32; resource::COUNT];
    let mut last = 0;
    for operation in &instruction.operations {
        let sources = operation.sources.iter().filter(|s| **s != NONE);
        let start = sources.map(|s| ready[usize::from(*s)]).max().unwrap_or(0);
        let load = match operation.kind {
            Kind::Load => u32::from(core.load.latency),
            _ => 0,
        };
        let end = start + load + u32::from(operation.latency);
        for result in operation.results.iter().filter(|r| **r != NONE) {
            ready[usize::from(*result)] = end;
        }
        last = last.max(end);
    }
    (
        u32::from(instruction.slots),
        last,
        throughput(&instruction.operations),
    )
}

/// Returns the cycles that the ports of an instruction need: the fullest of the sets of ports that its operations have.
fn throughput(operations: &[MicroOperation]) -> f64 {
    let busy = |ports: u32| -> f64 {
        let inside = operations.iter().filter(|o| o.ports & !ports == 0);
        let sum: u32 = inside
            .map(|o| if o.ports == 0 { 0 } else { u32::from(o.busy) })
            .sum();
        f64::from(sum) / f64::from(ports.count_ones())
    };
    let sets = operations.iter().filter(|o| o.ports != 0);
    sets.map(|o| busy(o.ports)).fold(0.0, f64::max)
}

/// Returns the figures that LLVM gives; `None` if it does not know the instruction.
fn llvm(tool: &str, core: &str, text: &str) -> Option<Figures> {
    let mut child = Command::new(tool)
        .args(["-mtriple=x86_64", "-iterations=1", &format!("-mcpu={core}")])
        .args(["-resource-pressure=false", "-summary-view=false"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    std::io::Write::write_all(child.stdin.as_mut()?, format!("{text}\n").as_bytes()).ok()?;
    let output = child.wait_with_output().ok()?;
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = output.split("Instructions:\n").last()?.lines().next()?;
    let mut words = line.split_whitespace();
    Some((
        words.next()?.parse().ok()?,
        words.next()?.parse().ok()?,
        words.next()?.parse().ok()?,
    ))
}

/// Prints where descriptions differ from LLVM. Either may be right: LLVM copies many values of one core to another.
#[test]
#[ignore = "prints a comparison to read; needs llvm-mca"]
fn differences_from_llvm() {
    let tool = std::env::var("LLVM_MCA").unwrap_or_else(|_| "llvm-mca-22".into());
    for (preset, name) in CORES {
        let core = Core::preset(preset).unwrap();
        println!("{preset}: slots, latency, reciprocal throughput; here and in LLVM");
        for code in INSTRUCTIONS {
            let mut assembler = CodeAssembler::new(64).unwrap();
            code(&mut assembler).unwrap();
            let bytes = assembler.assemble(0).unwrap();
            let mut text = String::new();
            GasFormatter::new().format(&assembler.instructions()[0], &mut text);
            let here = modelled(&core, &decode(&bytes, 64, 0, &core)[0]);
            let Some(there) = llvm(&tool, name, &text) else {
                continue;
            };
            let near = |a: f64, b: f64| (a - b).abs() <= 0.1 * b.max(1.0);
            if here.1 != there.1 || !near(here.2, there.2) {
                println!("  {text:40} {here:?} {there:?}");
            }
        }
    }
}
