use iced_x86::code_asm::*;

use super::*;

fn class(code: impl FnOnce(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>) -> Class {
    let mut assembler = CodeAssembler::new(64).unwrap();
    code(&mut assembler).unwrap();
    let bytes = assembler.assemble(0x1000).unwrap();
    let instruction = iced_x86::Decoder::with_ip(64, &bytes, 0x1000, 0).decode();
    assert!(!instruction.is_invalid());
    Class::of(&instruction)
}

#[test]
fn instructions_on_general_registers_have_their_classes() {
    assert_eq!(class(|a| a.mov(rax, rbx)), Class::Move);
    assert_eq!(class(|a| a.mov(rax, ptr(rbx))), Class::Load);
    assert_eq!(class(|a| a.mov(al, ptr(rbx))), Class::LoadNarrow);
    assert_eq!(class(|a| a.mov(ptr(rbx), al)), Class::Store);
    assert_eq!(class(|a| a.mov(cr3, rax)), Class::System);
    assert_eq!(class(|a| a.push(rax)), Class::Store);
    assert_eq!(class(|a| a.lea(rax, ptr(rbx + 8))), Class::Lea);
    assert_eq!(class(|a| a.lea(rax, ptr(rbx * 4))), Class::LeaScaled);
    assert_eq!(class(|a| a.lea(rax, ptr(rbx + rcx + 8))), Class::LeaThree);
    assert_eq!(
        class(|a| a.lea(rax, ptr(rbx + rcx * 2 + 8))),
        Class::LeaThreeScaled
    );
    assert_eq!(class(|a| a.imul_2(rax, rbx)), Class::Multiply);
    assert_eq!(class(|a| a.imul(rbx)), Class::MultiplyWide);
    assert_eq!(class(|a| a.idiv(ecx)), Class::SignedDivide32);
    assert_eq!(class(|a| a.div(qword_ptr(rcx))), Class::Divide64);
    assert_eq!(class(|a| a.shl(rax, cl)), Class::ShiftByRegister);
    assert_eq!(class(|a| a.rcl(rax, 1)), Class::RotateCarry);
    assert_eq!(class(|a| a.bts(dword_ptr(rax), ecx)), Class::BitMemory);
    assert_eq!(class(|a| a.movsd()), Class::StringMove);
    assert_eq!(class(|a| a.syscall()), Class::System);
    assert_eq!(class(|a| a.call(rax)), Class::CallIndirect);
    assert_eq!(class(|a| a.ret()), Class::Return);
}

#[test]
fn instructions_on_vectors_have_their_classes() {
    assert_eq!(class(|a| a.movsd_2(xmm1, xmm2)), Class::Blend);
    assert_eq!(class(|a| a.movsd_2(xmm1, ptr(rax))), Class::Load);
    assert_eq!(class(|a| a.vmovups(ptr(rax), ymm1)), Class::Store);
    assert_eq!(class(|a| a.vmovq(rax, xmm1)), Class::FromVector);
    assert_eq!(class(|a| a.vmovq(xmm1, xmm1)), Class::VectorMoveLow);
    assert_eq!(class(|a| a.vpaddd(xmm1, xmm2, xmm3)), Class::VectorAdd);
    assert_eq!(class(|a| a.paddsb(xmm1, xmm2)), Class::VectorSaturate);
    assert_eq!(
        class(|a| a.vpcmpgtq(xmm1, xmm2, xmm3)),
        Class::VectorCompareGreater64
    );
    assert_eq!(
        class(|a| a.vpcmpeqb(ymm1, ymm2, ymm3)),
        Class::VectorCompare
    );
    assert_eq!(class(|a| a.pcmpistri(xmm1, xmm2, 0)), Class::StringSearch);
    assert_eq!(class(|a| a.vpslld(xmm1, xmm2, 3)), Class::VectorShift);
    assert_eq!(
        class(|a| a.vpslld(xmm1, xmm2, xmm3)),
        Class::VectorShiftByRegister
    );
    assert_eq!(
        class(|a| a.vpsllvd(xmm1, xmm2, xmm3)),
        Class::VectorShiftVariable
    );
    assert_eq!(class(|a| a.pslldq(xmm1, 3)), Class::ShuffleBytes);
    assert_eq!(
        class(|a| a.vdivps(ymm1, ymm2, ymm3)),
        Class::DivideSingleWide
    );
    assert_eq!(class(|a| a.sqrtsd(xmm1, xmm2)), Class::RootDouble);
    assert_eq!(
        class(|a| a.vfnmadd231sd(xmm1, xmm2, xmm3)),
        Class::FloatMultiplyAdd
    );
    assert_eq!(class(|a| a.vcvtpd2ps(xmm1, ymm2)), Class::ConvertNarrow);
    assert_eq!(class(|a| a.vcvtps2pd(ymm1, xmm2)), Class::ConvertWiden);
    assert_eq!(class(|a| a.cvtsi2sd(xmm1, rax)), Class::ConvertFromGeneral);
    assert_eq!(class(|a| a.cvttsd2si(eax, xmm1)), Class::ConvertToGeneral);
    assert_eq!(
        class(|a| a.vbroadcastss(ymm1, ptr(rax))),
        Class::LoadBroadcast
    );
    assert_eq!(class(|a| a.vpermq(ymm1, ymm2, 3)), Class::ShuffleLanes);
    assert_eq!(
        class(|a| a.vextractf128(ptr(rax), ymm2, 1)),
        Class::StoreLane
    );
    assert_eq!(
        class(|a| a.vpgatherdd_3(ymm1, ptr(rax + ymm2 * 4), ymm3)),
        Class::GatherEight
    );
    assert_eq!(
        class(|a| a.vgatherdpd_3(ymm1, ptr(rax + xmm2 * 8), ymm3)),
        Class::GatherFour
    );
    assert_eq!(class(|a| a.fld(qword_ptr(rax))), Class::Load);
    assert_eq!(class(|a| a.fmul_2(st0, st1)), Class::X87Multiply);
}

/// Each name in the table is the name of an instruction, so that none of them is misspelt.
#[test]
fn names_are_those_of_instructions() {
    let names: Vec<String> = Mnemonic::values()
        .map(|m| format!("{m:?}").to_lowercase())
        .collect();
    for pattern in vector::patterns() {
        assert!(
            names.iter().any(|name| vector::matches(pattern, name)
                || name
                    .strip_prefix('v')
                    .is_some_and(|n| vector::matches(pattern, n))),
            "{pattern}"
        );
    }
}

/// Vector instructions that guests may use are known by name.
#[test]
fn vector_instructions_are_known_by_name() {
    use nodescope_x86::features::{Unit, unit};
    let mut missing = Vec::new();
    for code in iced_x86::Code::values() {
        let features = code.cpuid_features();
        if !features.is_empty() && features.iter().all(|f| unit(*f) == Some(Unit::Vector)) {
            let mut instruction = Instruction::new();
            instruction.set_code(code);
            if integer::class(&instruction).is_none() && vector::named(code.mnemonic()).is_none() {
                missing.push(code);
            }
        }
    }
    assert!(missing.is_empty(), "{missing:?}");
}
