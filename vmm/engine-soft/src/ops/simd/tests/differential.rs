//! Tests of every supported form: lowering knows the form, and its results equal the host's.

use std::collections::BTreeMap;

use iced_x86::{Instruction, Mnemonic};

use super::native::{self, GPRS, State};
use super::{IP, Values, cases, execute, lower, vcpu};
use crate::cpu::Cpu;
use crate::op::{Flow, Op, RIP};
use crate::ops::simd::arena::Arena;
use crate::ops::simd::x87;

const STATUS: u64 = nodescope_x86::bits::rflags::STATUS;

/// Returns whether the comparison with the host skips an instruction, since it needs an address of its own or changes the harness's state.
fn elsewhere(i: &Instruction) -> bool {
    use Mnemonic::*;
    matches!(
        i.mnemonic(),
        Maskmovdqu
            | Vmaskmovdqu
            | Maskmovq
            | Fxsave
            | Fxsave64
            | Fxrstor
            | Fxrstor64
            | Xsave
            | Xsave64
            | Xsaveopt
            | Xsaveopt64
            | Xrstor
            | Xrstor64
            | Xgetbv
            | Xsetbv
            | Ldmxcsr
            | Vldmxcsr
            | Fldenv
            | Frstor
            | Fnstenv
            | Fnsave
            | Fstenv
            | Fsave
    )
}

#[test]
fn every_promised_form_is_lowered() {
    let mut vcpu = vcpu();
    let mut values = Values(0x1234_5678_9abc_def1);
    let mut missing = Vec::new();
    let codes = cases::codes();
    for code in &codes {
        let mut made = false;
        for memory in [false, true] {
            let Some((i, bytes)) =
                (0..20).find_map(|_| cases::instance(*code, &mut values, memory))
            else {
                continue;
            };
            made = true;
            let op = lower(&mut vcpu.cpu, &bytes);
            if std::ptr::fn_addr_eq(
                op.handler,
                crate::ops::system::unknown as crate::op::Handler,
            ) || std::ptr::fn_addr_eq(op.handler, super::super::refused as crate::op::Handler)
            {
                missing.push(format!("{:?} (as {:?})", code, i.code()));
            }
        }
        if !made {
            missing.push(format!("{code:?}: no instance"));
        }
    }
    assert!(codes.len() > 1000, "{} forms", codes.len());
    assert!(missing.is_empty(), "{missing:#?}");
}

fn random_state(values: &mut Values) -> State {
    let mut s = State {
        fx: [0; 512],
        vector: [[0; 32]; 16],
        memory: [0; 576],
        gpr: [0; 16],
        rflags: 0x202 | values.next() & STATUS,
    };
    let fill = |bytes: &mut [u8], values: &mut Values| {
        for b in bytes.chunks_mut(8) {
            let n = b.len();
            b.copy_from_slice(&values.quad().to_le_bytes()[..n]);
        }
    };
    for r in &mut s.vector {
        fill(r, values);
    }
    fill(&mut s.memory, values);
    for g in GPRS {
        s.gpr[g] = values.quad();
    }
    // All exceptions masked; any rounding, precision, stack.
    let fcw = 0x007f | (values.next() as u16 & 0x0f00);
    let fsw = values.next() as u16 & 0x7f00;
    s.fx[..2].copy_from_slice(&fcw.to_le_bytes());
    s.fx[2..4].copy_from_slice(&fsw.to_le_bytes());
    s.fx[4] = (values.next() | values.next()) as u8;
    for n in 0..8 {
        let at = 32 + 16 * n;
        let significand = match values.below(6) {
            0 => 0,
            1 => 1 << 63,
            2 => values.next(),
            _ => values.next() | 1 << 63,
        };
        let exponent = match values.below(6) {
            0 => 0,
            1 => 0x7fff,
            2 => 0x3fff,
            3 => 0x3fff + values.below(70) as u16,
            _ => values.next() as u16,
        } | (values.next() as u16 & 0x8000);
        s.fx[at..at + 8].copy_from_slice(&significand.to_le_bytes());
        s.fx[at + 8..at + 10].copy_from_slice(&exponent.to_le_bytes());
    }
    let mxcsr = match values.below(3) {
        0 => 0x1f80,
        1 => 0x1fa0,
        _ => 0x1f80 | values.next() as u32 & 0xe07f,
    };
    s.fx[24..28].copy_from_slice(&mxcsr.to_le_bytes());
    s
}

fn put(cpu: &mut Cpu, s: &State, address: u64) {
    x87::release(cpu);
    cpu.fx = Default::default();
    cpu.fx.0[..160].copy_from_slice(&s.fx[..160]);
    cpu.vector.0 = s.vector;
    cpu.gpr[..16].copy_from_slice(&s.gpr);
    cpu.gpr[3] = address;
    cpu.gpr[RIP as usize] = IP;
    cpu.rflags = s.rflags;
    assert!(cpu.ram.write(address, &s.memory));
}

fn get(cpu: &mut Cpu, before: &State, address: u64) -> State {
    x87::release(cpu);
    let mut s = *before;
    s.fx[..160].copy_from_slice(cpu.fx.legacy());
    s.vector = cpu.vector.0;
    for g in GPRS {
        s.gpr[g] = cpu.gpr[g];
    }
    s.rflags = cpu.rflags;
    let mut memory = [0; 576];
    assert!(cpu.ram.read(address, &mut memory));
    s.memory = memory;
    s
}

/// Returns the differences, in words.
fn difference(got: &State, want: &State) -> Option<String> {
    let mut out = String::new();
    use std::fmt::Write;
    for n in 0..16 {
        if got.vector[n] != want.vector[n] {
            let _ = write!(
                out,
                "\n  ymm{n}: {:02x?}\n   want {:02x?}",
                got.vector[n], want.vector[n]
            );
        }
    }
    for g in GPRS {
        if got.gpr[g] != want.gpr[g] {
            let _ = write!(out, "\n  gpr{g}: {:x} want {:x}", got.gpr[g], want.gpr[g]);
        }
    }
    if (got.rflags ^ want.rflags) & STATUS != 0 {
        let _ = write!(out, "\n  flags {:x} want {:x}", got.rflags, want.rflags);
    }
    if got.memory != want.memory {
        let at = (0..576).find(|n| got.memory[*n] != want.memory[*n]);
        let _ = write!(out, "\n  memory differs from byte {at:?}");
    }
    for (range, name) in [(0..5, "fcw fsw ftw"), (24..28, "mxcsr"), (32..160, "st")] {
        if got.fx[range.clone()] != want.fx[range.clone()] {
            let _ = write!(
                out,
                "\n  {name}: {:02x?}\n   want {:02x?}",
                &got.fx[range.clone()],
                &want.fx[range]
            );
        }
    }
    (!out.is_empty()).then_some(out)
}

/// Executes random instances of every form on random states, and compares the results with the host's.
fn campaign(seed: u64, rounds: usize) {
    if !is_x86_feature_detected!("avx2") || !is_x86_feature_detected!("fma") {
        nodescope_test_needs::skip(
            nodescope_test_needs::Need::Cpu,
            "the host has no AVX2 and FMA",
        );
        return;
    }
    let mut vcpu = vcpu();
    let mut values = Values(seed);
    let mut arena = Arena::new().expect("executable memory");
    let mut failures: BTreeMap<String, String> = BTreeMap::new();
    let mut ran = 0_u64;
    for _ in 0..rounds {
        for code in cases::codes() {
            for memory in [false, true] {
                let Some((i, bytes)) = cases::instance(code, &mut values, memory) else {
                    continue;
                };
                if elsewhere(&i) {
                    continue;
                }
                if arena.used() > 15 << 20 {
                    arena = Arena::new().expect("executable memory");
                }
                if vcpu
                    .cpu
                    .code()
                    .pool
                    .stubs()
                    .arena
                    .as_ref()
                    .is_some_and(|a| a.used() > 12 << 20)
                {
                    // The stubs of one vCPU are limited. A new vCPU may take its place, since no operation that was lowered so far is used
                    // again.
                    vcpu = super::vcpu();
                }
                // Gathers: small indices, so that elements lie in the buffer.
                let mut before = random_state(&mut values);
                if i.is_vsib() {
                    for b in before.vector[13].chunks_mut(8) {
                        let wide = if i.is_vsib64() {
                            0
                        } else {
                            values.below(64) << 32
                        };
                        b.copy_from_slice(&(values.below(64) | wide).to_le_bytes());
                    }
                    let r = |n| i.op_register(n).number();
                    if r(0) == r(2) || r(0) == 13 || r(2) == 13 {
                        continue;
                    }
                }
                // Sometimes at a page boundary: operands that are not contiguous in host memory are handled by other code.
                let address =
                    cases::data_address(if values.below(4) == 0 { 0x1000 - 16 } else { 0 });
                let op: Op = lower(&mut vcpu.cpu, &bytes);
                put(&mut vcpu.cpu, &before, address);
                let done = execute(&mut vcpu.cpu, &op);
                let got = get(&mut vcpu.cpu, &before, address);
                let exception = vcpu.cpu.exception.take();
                let stop = vcpu.cpu.stop.take();
                ran += 1;
                let key = format!("{:?}", i.code());
                if address & 63 != 0 && exception.is_some() && (op.dst == 31 || op.imm == 31) {
                    // 32-byte alignment is checked.
                    continue;
                }
                if done != Ok(Flow::Next) {
                    failures.insert(key, format!("{done:?} {exception:?} {stop:?}"));
                    continue;
                }
                let mut want = before;
                native::run(&mut arena, &i, &mut want);
                if let Some(text) = difference(&got, &want) {
                    failures.insert(key, format!("{bytes:02x?}{text}"));
                }
            }
        }
    }
    println!("{ran} instances of {} forms", cases::codes().len());
    let text: Vec<_> = failures.iter().map(|(k, v)| format!("{k}: {v}")).collect();
    assert!(
        failures.is_empty(),
        "{} forms differ:\n{}",
        failures.len(),
        text.join("\n")
    );
}

#[test]
fn results_equal_the_hosts() {
    campaign(0x9e37_79b9_7f4a_7c15, 4);
}

#[test]
#[ignore = "the long campaign: a million instances"]
fn results_equal_the_hosts_long() {
    campaign(0x0123_4567_89ab_cdef, 500);
}
