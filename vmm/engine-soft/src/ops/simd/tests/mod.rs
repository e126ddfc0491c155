//! Vector and x87 instructions against the host's own processor.

mod cases;
mod cost;
mod differential;
mod native;
mod system;

use iced_x86::{Code, Decoder, DecoderOptions, Encoder, Instruction};
use nodescope_memory::Ram;
use nodescope_x86::FxImage;
use nodescope_x86::bits::{cr0, cr4};

use crate::code::SharedCode;
use crate::cpu::{Cpu, Mode};
use crate::op::{Done, Op, RIP};
use crate::vcpu::{SoftConfig, SoftVcpu};

/// Address of test instructions. `DATA` is the address of their memory operands.
const IP: u64 = 0x1000;
const DATA: u64 = 0x2000;

/// Makes a vCPU without paging that decodes 64-bit code.
fn vcpu() -> SoftVcpu {
    let mut vcpu = SoftVcpu::new(SoftConfig {
        id: 0,
        code: SharedCode::new(Ram::new(&[16 << 20]).expect("memory for a test")),
        cpuid: Default::default(),
        cpi: 1 << 16,
        seed: 1,
        translate: crate::Translate::After(0),
    });
    let cpu = &mut vcpu.cpu;
    // Operations are executed without a run: the code is this vCPU's for as long as the test lives.
    cpu.code = Some(std::ptr::NonNull::from(Box::leak(Box::default())));
    cpu.control.cr0 = cr0::PE | cr0::NE | cr0::MP | cr0::ET;
    cpu.control.cr4 = cr4::OSFXSR | cr4::OSXMMEXCPT | cr4::OSXSAVE;
    cpu.control.xcr0 = 7;
    // As after FNINIT.
    cpu.fx = FxImage::default();
    cpu.mode = Mode::Bits64;
    cpu.gpr[RIP as usize] = IP;
    super::recompute_simd_availability(cpu);
    vcpu
}

fn encode(instruction: &Instruction) -> Option<Vec<u8>> {
    let mut encoder = Encoder::new(64);
    encoder.encode(instruction, IP).ok()?;
    Some(encoder.take_buffer())
}

fn decode(bytes: &[u8]) -> Instruction {
    let mut decoder = Decoder::with_ip(64, bytes, IP, DecoderOptions::NONE);
    decoder.decode()
}

fn lower(cpu: &mut Cpu, bytes: &[u8]) -> Op {
    let instruction = decode(bytes);
    assert_ne!(instruction.code(), Code::INVALID, "{bytes:02x?}");
    let pool = cpu.code().pool.clone();
    crate::lower::lower(&instruction, Mode::Bits64, IP, &mut pool.stubs())
}

fn execute(cpu: &mut Cpu, op: &Op) -> Done {
    (op.handler)(cpu, op)
}

/// A generator of test values (xorshift); the seed decides everything.
struct Values(u64);

impl Values {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Returns eight bytes: noise, or numbers that are special to floating-point code.
    fn quad(&mut self) -> u64 {
        const DOUBLES: [f64; 10] = [
            0.0,
            -0.0,
            1.0,
            -1.5,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::MIN_POSITIVE,
            f64::MAX,
            4.0e-310,
            3.0e9,
        ];
        const SINGLES: [f32; 9] = [
            0.0,
            -0.0,
            1.0,
            -2.5,
            f32::INFINITY,
            f32::MIN_POSITIVE,
            f32::MAX,
            1.0e-40,
            3.0e9,
        ];
        match self.below(8) {
            0 => DOUBLES[self.below(10) as usize].to_bits(),
            1 => {
                let mut single = || u64::from(SINGLES[self.below(9) as usize].to_bits());
                single() | single() << 32
            }
            2 => (self.next() as i64 as f64 / 1e9).to_bits(),
            3 => {
                let mut single = || u64::from((self.next() as i32 as f32 / 1e3).to_bits());
                single() | single() << 32
            }
            4 => 0x7ff0_0000_0000_0001 | self.next() << 40 & 0xf_ffff << 32,
            5 => self.below(200),
            _ => self.next(),
        }
    }
}
