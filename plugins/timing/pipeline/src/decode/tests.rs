use std::fmt::Write;
use std::sync::LazyLock;

use iced_x86::IcedError;
use iced_x86::code_asm::*;
use proptest::prelude::*;

use super::*;

fn zen4() -> Core {
    Core::preset("zen4").unwrap()
}

fn bytes(code: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>) -> Vec<u8> {
    let mut assembler = CodeAssembler::new(64).unwrap();
    code(&mut assembler).unwrap();
    assembler.assemble(0x1000).unwrap()
}

fn name(resource: Resource) -> String {
    const GENERAL: [&str; 8] = ["rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi"];
    match resource {
        0..8 => GENERAL[usize::from(resource)].into(),
        8..16 => format!("r{resource}"),
        16..48 => format!("v{}", resource - 16),
        48..56 => format!("k{}", resource - 48),
        56..64 => format!("st{}", resource - 56),
        resource::CARRY => "cf".into(),
        resource::FLAGS => "zf".into(),
        _ => format!("t{}", resource - resource::TEMPORARY),
    }
}

fn names(list: &[Resource]) -> String {
    let names: Vec<String> = list
        .iter()
        .filter(|r| **r != NONE)
        .map(|r| name(*r))
        .collect();
    names.join(" ")
}

/// Returns instructions as text, one line each: slots and marks, then each micro-operation as "ports(sources) latency/busy > results".
fn text(core: &Core, instructions: &[Instruction]) -> Vec<String> {
    instructions.iter().map(|i| line(core, i)).collect()
}

fn line(core: &Core, instruction: &Instruction) -> String {
    let mut text = format!("{}", instruction.slots);
    for (mark, is) in [
        ("fused", instruction.fused),
        ("serialising", instruction.serialising),
        ("locked", instruction.locked),
        ("non-temporal", instruction.non_temporal),
    ] {
        if is {
            write!(text, " {mark}").unwrap();
        }
    }
    for operation in &instruction.operations {
        let kind = match operation.kind {
            Kind::Compute => core
                .ports
                .iter()
                .enumerate()
                .filter(|(bit, _)| operation.ports & (1 << bit) != 0)
                .map(|(_, port)| port.as_str())
                .collect::<Vec<_>>()
                .join("+"),
            Kind::Load => format!("load{}.{}", operation.access, operation.size),
            Kind::StoreAddress => format!("address{}.{}", operation.access, operation.size),
            Kind::StoreData => "data".into(),
            Kind::Eliminated => "rename".into(),
        };
        write!(text, "; {kind}({})", names(&operation.sources)).unwrap();
        if (operation.latency, operation.busy) != (0, 1) {
            write!(text, " {}/{}", operation.latency, operation.busy).unwrap();
        }
        let results = names(&operation.results);
        if !results.is_empty() {
            write!(text, " > {results}").unwrap();
        }
    }
    text
}

fn check(
    lines: &[&str],
    code: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>,
) -> Vec<Instruction> {
    let core = zen4();
    let instructions = decode(&bytes(code), 64, 0x1000, &core);
    assert_eq!(text(&core, &instructions), lines);
    instructions
}

#[test]
fn arithmetic_waits_for_registers_and_flags() {
    check(
        &[
            "1; alu0+alu1+alu2+alu3(rax rcx) 1/1 > rax cf zf",
            "1; alu0+alu1+alu2+alu3(rax) 1/1 > rax zf",
            "1; alu0+alu1+alu2+alu3(rax rcx cf) 1/1 > rax cf zf",
            "1; alu0+alu3(rbx rcx zf) 1/1 > rbx",
            "1; alu0+alu3(rax zf) 1/1 > rax",
            "1; alu0+alu1+alu2+alu3(rax rcx) 1/1 > rax",
            "1; alu0+alu1+alu2+alu3() 1/1 > r9",
            "2; alu0+alu1+alu2+alu3(rcx rax) 1/1; alu1(rcx rax) 3/1 > rdx rax cf zf",
            "2; alu1+alu2(rcx rdx) 2/1 > rax",
        ],
        |a| {
            a.add(rax, rcx)?;
            a.inc(eax)?;
            a.adc(rax, rcx)?;
            a.cmove(ebx, ecx)?;
            a.sete(al)?;
            a.mov(al, cl)?;
            a.mov(r9d, 5)?;
            a.mul(rcx)?;
            a.lea(rax, ptr(rcx + rdx * 4 + 8))
        },
    );
}

#[test]
fn memory_is_apart_from_operations() {
    check(
        &[
            "1; load0.8(rbx) > rbx",
            "1; load0.4(rbx) > t0; alu0+alu1+alu2+alu3(t0 rax) 1/1 > rax cf zf",
            "2; load0.8(rbx) > t0; alu0+alu1+alu2+alu3(t0 rcx) 1/1 > t1 cf zf; address0.8(rbx); data(t1)",
            "1; address0.1(rbx); data(rcx)",
            "2; address0.8(rbx rsi); data(rbx)",
            "1; load0.8(rbx rsi) 1/1 > rax",
            "1; load0.32(rbx) 3/1 > t0; fp2+fp3(t0 v2) 3/1 > v1",
            "1; load0.8(rbx) 3/1 > v1",
            "1; address0.32(rbx); data(v1)",
            "3 locked; load0.4(rbx) > t0; address0.4(rbx); data(rcx); rename(t0) > rcx",
            "2 locked; load0.4(rbx) > t0; alu0+alu1+alu2+alu3(t0) 1/1 > t1 zf; address0.4(rbx); data(t1)",
            "1 non-temporal; address0.16(rbx); data(v1)",
            "1; load0.1(rbx)",
        ],
        |a| {
            a.mov(rbx, ptr(rbx))?;
            a.add(eax, ptr(rbx))?;
            a.add(ptr(rbx), rcx)?;
            a.mov(ptr(rbx), cl)?;
            a.mov(ptr(rbx + rsi * 8), rbx)?;
            a.mov(rax, ptr(rbx + rsi + 8))?;
            a.vaddpd(ymm1, ymm2, ptr(rbx))?;
            a.movsd_2(xmm1, ptr(rbx))?;
            a.vmovups(ptr(rbx), ymm1)?;
            a.xchg(ptr(rbx), ecx)?;
            a.lock().inc(dword_ptr(rbx))?;
            a.movntps(ptr(rbx), xmm1)?;
            a.prefetcht0(ptr(rbx))
        },
    );
}

#[test]
fn the_stack_engine_moves_rsp() {
    let instructions = check(
        &[
            "1; address0.8(rsp); data(rax)",
            "1; load0.8(rsp) > rcx",
            "2; load0.8(rbx) > t0; address1.8(rsp); data(t0)",
            "1; alu0+br() 1/1; address0.8(rsp); data()",
            "2; load0.8(rbx) > t0; alu0+br(t0) 1/1; address1.8(rsp); data()",
            "1; alu0+alu1+alu2+alu3(rsp) 1/1 > rsp cf zf",
            "2; alu0+alu1+alu2+alu3(rbp) 1/1 > rsp; load0.8(rbp) > rbp",
            "1; load0.8(rsp) > t0; alu0+br(t0) 1/1",
        ],
        |a| {
            a.push(rax)?;
            a.pop(rcx)?;
            a.push(qword_ptr(rbx))?;
            a.call(0x1000)?;
            a.call(qword_ptr(rbx))?;
            a.sub(rsp, 32)?;
            a.leave()?;
            a.ret()
        },
    );
    let flows: Vec<Flow> = instructions.iter().map(|i| i.flow).collect();
    assert_eq!(
        flows[3..],
        [
            Flow::Call,
            Flow::IndirectCall,
            Flow::Next,
            Flow::Next,
            Flow::Return
        ]
    );
}

#[test]
fn idioms_and_moves_need_no_port() {
    check(
        &[
            "1; rename() > rax cf zf",
            "1; rename() > v1",
            "1; rename() > v2",
            "1; fp0+fp1+fp2+fp3() 1/1 > v3",
            "1; rename(rcx) > rax",
            "1; rename(v2) > v1",
            "0 fused",
            "2; rename(rax) > t0; rename(rcx) > rax; rename(t0) > rcx",
            "1; alu0+alu1+alu2+alu3(rax) 1/1 > rax cf zf",
        ],
        |a| {
            a.xor(eax, eax)?;
            a.pxor(xmm1, xmm1)?;
            a.vxorps(ymm2, ymm3, ymm3)?;
            a.vpcmpeqd(ymm3, ymm4, ymm4)?;
            a.mov(rax, rcx)?;
            a.vmovaps(ymm1, ymm2)?;
            a.nop()?;
            a.xchg(rax, rcx)?;
            a.xor(al, al)
        },
    );
}

#[test]
fn comparisons_and_jumps_are_one_operation() {
    let instructions = check(
        &[
            "1; alu0+br(rax rcx) 1/1 > cf zf",
            "0 fused; rename(cf)",
            "1; load0.8(rcx) > t0; alu0+br(t0 rax) 1/1 > cf zf",
            "0 fused; rename(zf)",
            "1; load0.4(rcx) > t0; alu0+alu1+alu2+alu3(t0) 1/1 > cf zf",
            "1; alu0+br(zf) 1/1",
        ],
        |a| {
            let mut top = a.create_label();
            a.set_label(&mut top)?;
            a.cmp(rax, rcx)?;
            a.jb(top)?;
            a.test(qword_ptr(rcx), rax)?;
            a.jne(top)?;
            a.cmp(dword_ptr(rcx), 5)?;
            a.je(top)
        },
    );
    assert_eq!(instructions[1].flow, Flow::Conditional);
}

#[test]
fn vectors_keep_what_they_do_not_write() {
    check(
        &[
            "1; fp2+fp3(v1 v2) 3/1 > v1",
            "1; fpdiv(v1 v2) 21/8 > v1",
            "1; fp0+fp1+fp2+fp3(v1 v2) 1/1 > v1",
            "3; alu0+alu3(v1 rax) 1/1 > t0; fp3(t0) 6/1 > v1",
            "1; fp0+fp1(v1 v2 v3) 4/1 > v1",
            "2; fp2+fp3(v2) 3/1 > t0; fp4(t0) 2/1 > rax",
            "1; fp2+fp3(v2 v3) 3/2 > v1",
            "1; load0.8(rax) 3/1 > t0; fp1+fp2+fp3(t0 v1) 1/1 > v1",
        ],
        |a| {
            a.addsd(xmm1, xmm2)?;
            a.sqrtsd(xmm1, xmm2)?;
            a.movss(xmm1, xmm2)?;
            a.cvtsi2sd(xmm1, rax)?;
            a.vfmadd231pd(ymm1, ymm2, ymm3)?;
            a.cvttsd2si(rax, xmm2)?;
            a.vaddps(zmm1, zmm2, zmm3)?;
            a.movhps(xmm1, ptr(rax))
        },
    );
}

#[test]
fn the_x87_stack_turns() {
    check(
        &[
            "1; load0.8(rax) 3/1 > st7",
            "1; load0.8(rbx) 3/1 > st6",
            "1; fp0(st7 st6) 7/1 > st7",
            "1; address0.8(rcx); data(st7)",
        ],
        |a| {
            a.fld(qword_ptr(rax))?;
            a.fld(qword_ptr(rbx))?;
            a.fmulp(st1, st0)?;
            a.fstp(qword_ptr(rcx))
        },
    );
}

#[test]
fn strings_and_gathers_have_no_recorded_accesses() {
    let core = zen4();
    let code = bytes(|a| {
        a.rep().movsq()?;
        a.stosb()?;
        a.vpgatherdd_3(xmm1, ptr(rax + xmm2 * 4), xmm3)
    });
    let instructions = decode(&code, 64, 0, &core);
    assert_eq!(instructions[0].microcode, core.strings.copy_start);
    assert_eq!(
        instructions[0].each_repeat_65536,
        (8 << 16) / core.strings.copy_bytes
    );
    let accesses = |i: &Instruction| -> Vec<u8> {
        let memory = i
            .operations
            .iter()
            .filter(|o| !matches!(o.kind, Kind::Compute | Kind::Eliminated));
        memory.map(|o| o.access).collect()
    };
    assert_eq!(accesses(&instructions[1]), [NO_ACCESS; 2]);
    assert_eq!(accesses(&instructions[2]), [NO_ACCESS; 4]);
}

#[test]
fn the_system_takes_its_time() {
    let core = zen4();
    let code = bytes(|a| {
        a.cpuid()?;
        a.mfence()?;
        a.pause()?;
        a.wrmsr()?;
        a.syscall()?;
        a.hlt()
    });
    let instructions = decode(&code, 64, 0, &core);
    let times: Vec<(u32, bool, Flow)> = instructions
        .iter()
        .map(|i| (i.microcode, i.serialising, i.flow))
        .collect();
    let costs = &core.costs;
    assert_eq!(
        times,
        [
            (costs.cpuid, true, Flow::Next),
            (costs.memory_fence, true, Flow::Next),
            (costs.pause, false, Flow::Next),
            (costs.model_register, true, Flow::Next),
            (costs.system_call, true, Flow::System),
            (costs.privileged, true, Flow::System),
        ]
    );
    assert_eq!(
        names(&instructions[0].operations[0].results),
        "rcx rdx rbx rax"
    );
}

/// Checks that micro-operations are such as the timing expects.
fn sound(core: &Core, instructions: &[Instruction]) -> Result<(), TestCaseError> {
    for instruction in instructions {
        prop_assert_eq!(instruction.slots == 0, instruction.fused);
        prop_assert!(instruction.length > 0);
        for operation in &instruction.operations {
            let eliminated = operation.kind == Kind::Eliminated;
            prop_assert_eq!(operation.ports == 0, eliminated);
            prop_assert_eq!(u64::from(operation.ports) >> core.ports.len(), 0);
            prop_assert!(operation.busy > 0);
            let resources = operation.sources.iter().chain(&operation.results);
            for resource in resources.filter(|r| **r != NONE) {
                prop_assert!(usize::from(*resource) < resource::COUNT);
            }
            let memory = !matches!(operation.kind, Kind::Compute | Kind::Eliminated);
            prop_assert!(memory || operation.access == NO_ACCESS);
            prop_assert!(!memory || operation.size > 0);
        }
    }
    Ok(())
}

/// All presets.
static CORES: LazyLock<Vec<Core>> = LazyLock::new(|| {
    Core::presets()
        .map(|name| Core::preset(name).unwrap())
        .collect()
});

proptest! {
    #[test]
    fn any_bytes_are_decoded(bytes in prop::collection::vec(any::<u8>(), 0..200), bits in 0_u8..=64) {
        for core in CORES.iter() {
            let instructions = decode(&bytes, bits, 0x40_0000, core);
            let length: usize = instructions.iter().map(|i| usize::from(i.length)).sum();
            prop_assert_eq!(length, bytes.len());
            sound(core, &instructions)?;
        }
    }
}

/// The program that runs this test is code of compilers and of the C library.
#[test]
fn compiled_code_is_decoded_for_every_core() {
    let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    for core in CORES.iter() {
        for block in program.chunks(100).step_by(500) {
            sound(core, &decode(block, 64, 0x40_0000, core)).unwrap();
        }
    }
}

/// Each encoding that exists is decoded, with registers and with memory.
#[test]
fn every_instruction_is_decoded() {
    let core = zen4();
    let mut bytes = Vec::new();
    for prefix in [&[][..], &[0x66], &[0xf2], &[0xf3], &[0x48], &[0x66, 0x48]] {
        for map in [&[][..], &[0x0f], &[0x0f, 0x38], &[0x0f, 0x3a]] {
            for opcode in 0..=255 {
                for modrm in [0x04, 0x44, 0xc1, 0xd9, 0xe3, 0xfa] {
                    bytes.clear();
                    bytes.extend(prefix);
                    bytes.extend(map);
                    bytes.extend([opcode, modrm, 0x98, 1, 2, 3, 4, 5, 6, 7, 8]);
                    sound(&core, &decode(&bytes, 64, 0, &core)).unwrap();
                }
            }
        }
    }
    for map in 1..=3 {
        for p in 0..8 {
            for opcode in 0..=255 {
                for modrm in [0x04, 0xc1] {
                    // VEX: C4, RXB and map, W vvvv L pp, opcode.
                    let code = [0xc4, 0xe0 | map, 0x70 | p, opcode, modrm, 0x98, 1, 2, 3];
                    sound(&core, &decode(&code, 64, 0, &core)).unwrap();
                }
            }
        }
    }
}
