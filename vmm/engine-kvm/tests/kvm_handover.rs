//! Tests of hand-offs: a vCPU moves between the portable engine and KVM at instruction boundaries, with its vector state, and ends in the
//! same state as without hand-offs.

mod support;

use iced_x86::code_asm::*;
use nodescope_engine::{Exit, Limit, Vcpu};
use nodescope_engine_soft::{SharedCode, SoftVcpu, vcpu::SoftConfig};
use nodescope_memory::Ram;
use nodescope_test_needs::{Need, skip};
use nodescope_x86::bits::{pte, rflags};
use nodescope_x86::{CpuidTable, VcpuState};
use support::*;

const FOREVER: Limit = Limit {
    cycles: u64::MAX,
    instructions: u64::MAX,
    extends: false,
};

/// CPI of the portable engine in units of 1/65536: one cycle for each instruction.
const CPI_ONE: u32 = 1 << 16;

fn soft(ram: &Ram, cpuid: &CpuidTable) -> SoftVcpu {
    SoftVcpu::new(SoftConfig {
        id: 0,
        code: SharedCode::new(ram.clone()),
        cpuid: cpuid.clone(),
        cpi: CPI_ONE,
        seed: 1,
        translate: nodescope_engine_soft::Translate::default(),
    })
}

/// Emits four rounds of integer, x87, SSE and AVX arithmetic on memory. Each round ends with a port access.
fn program(a: &mut CodeAssembler) {
    let mut round = a.create_label();
    let mut inner = a.create_label();
    a.mov(rsi, DATA).unwrap();
    a.mov(r12d, 4).unwrap();
    a.fld1().unwrap();
    a.set_label(&mut round).unwrap();
    a.mov(ecx, 500).unwrap();
    a.set_label(&mut inner).unwrap();
    a.imul_3(r8, rcx, 0x1_2345).unwrap();
    a.xor(r9, r8).unwrap();
    a.adc(r10, r9).unwrap();
    a.mov(qword_ptr(rsi + rcx * 8 + 0x100), r10).unwrap();
    a.add(eax, dword_ptr(rsi + rcx * 4)).unwrap();
    a.dec(ecx).unwrap();
    a.jne(inner).unwrap();
    a.fadd_2(st0, st0).unwrap();
    a.cvtsi2sd(xmm3, r10).unwrap();
    a.addsd(xmm4, xmm3).unwrap();
    a.vbroadcastsd(ymm5, xmm4).unwrap();
    a.vaddpd(ymm6, ymm6, ymm5).unwrap();
    a.vmovupd(ymmword_ptr(rsi + 0x40), ymm6).unwrap();
    a.mov(edx, 0x77).unwrap();
    a.mov(eax, r12d).unwrap();
    a.out(dx, al).unwrap();
    a.dec(r12d).unwrap();
    a.jne(round).unwrap();
    a.mov(edx, 0x78).unwrap();
    a.out(dx, al).unwrap();
    a.jmp(CODE).unwrap();
}

fn guest() -> Ram {
    let ram = memory();
    place(&ram, CODE, program);
    ram
}

fn start() -> VcpuState {
    let mut s = state(3);
    s.general.rflags |= rflags::IOPL;
    s
}

fn stop_at(port: u16) -> Recorder {
    Recorder {
        stop_at_port: Some(port),
        ..Default::default()
    }
}

fn data(ram: &Ram) -> Vec<u8> {
    let mut bytes = vec![0; 0x2000];
    assert!(ram.read(DATA, &mut bytes));
    bytes
}

/// Returns the state without the parts that may differ between the engines: the clock and some x87 pointers.
fn architectural(mut s: VcpuState) -> VcpuState {
    s.time = Default::default();
    // Last x87 instruction and operand pointers. Processors differ in when they save them.
    s.fx.0[6..24].fill(0);
    s
}

#[test]
fn a_program_that_changes_engines_ends_as_one_that_stays() {
    let Some(host) = host() else { return };
    if !host.cpuid.has(7, 0, nodescope_x86::CpuidRegister::Ebx, 5) {
        skip(Need::Cpu, "the host has no AVX2");
        return;
    }
    let table = cpuid(&host);

    let reference = guest();
    let mut stays = soft(&reference, &table);
    stays.restore(&start());
    let exit = stays.run(&mut stop_at(0x78), FOREVER).unwrap();
    assert_eq!(exit, Exit::Attention);

    let ram = guest();
    let mut portable = soft(&ram, &table);
    let mut kvm = vcpu(&ram, &host);
    portable.restore(&start());
    // Stops in the middle of the first round, at an arbitrary instruction.
    let exit = portable
        .run(&mut stop_at(0x78), Limit::instructions(1234))
        .unwrap();
    assert_eq!(exit, Exit::Limit);
    kvm.restore(&portable.save());
    assert_eq!(
        kvm.run(&mut stop_at(0x77), FOREVER).unwrap(),
        Exit::Attention
    );
    portable.restore(&kvm.save());
    let middle = portable.instructions() + 2000;
    portable
        .run(&mut stop_at(0x78), Limit::instructions(middle))
        .unwrap();
    kvm.restore(&portable.save());
    assert_eq!(
        kvm.run(&mut stop_at(0x77), FOREVER).unwrap(),
        Exit::Attention
    );
    portable.restore(&kvm.save());
    let exit = portable.run(&mut stop_at(0x78), FOREVER).unwrap();
    assert_eq!(exit, Exit::Attention);

    assert_eq!(architectural(portable.save()), architectural(stays.save()));
    assert!(data(&ram) == data(&reference), "memory differs");
    assert!(data(&ram).iter().any(|b| *b != 0));
}

#[test]
fn a_state_survives_the_way_over_kvm() {
    let Some(host) = host() else { return };
    let ram = guest();
    let table = cpuid(&host);
    let mut portable = soft(&ram, &table);
    let mut kvm = vcpu(&ram, &host);
    portable.restore(&start());
    for step in 1..200 {
        portable
            .run(&mut stop_at(0x78), Limit::instructions(step * 7))
            .unwrap();
        let before = portable.save();
        kvm.restore(&before);
        kvm.check_restored().unwrap();
        // The limit is reached already, so nothing runs.
        kvm.run(&mut stop_at(0x78), Limit::cycles(0)).unwrap();
        let after = kvm.save();
        assert_eq!(architectural(after.clone()), architectural(before));
        portable.restore(&after);
    }
}

/// Checks code that the portable engine has decoded. After the guest wrote to the code under KVM, the old form must not run.
#[test]
fn code_that_changed_under_kvm_runs_changed_on_the_portable_engine() {
    let Some(host) = host() else { return };
    let ram = memory();
    let table = cpuid(&host);
    // The routine: mov eax, 1; out dx, al; jmp to itself.
    place(&ram, HANDLER, |a| {
        a.mov(eax, 1).unwrap();
        a.out(dx, al).unwrap();
        a.jmp(HANDLER).unwrap();
    });
    // Patches the immediate, then writes to a port.
    place(&ram, CODE, |a| {
        a.mov(rdi, HANDLER + 1).unwrap();
        a.mov(byte_ptr(rdi), 2).unwrap();
        a.mov(edx, 0x50).unwrap();
        a.out(dx, al).unwrap();
        a.jmp(CODE).unwrap();
    });
    let mut portable = soft(&ram, &table);
    let mut kvm = vcpu(&ram, &host);
    let mut s = start();
    s.general.gpr[2] = 0x50;
    s.general.rip = HANDLER;
    portable.restore(&s);
    let mut p = stop_at(0x50);
    portable.run(&mut p, FOREVER).unwrap();
    assert_eq!(p.out, [(0x50, vec![1])]);

    let mut patch = portable.save();
    patch.general.rip = CODE;
    kvm.restore(&patch);
    assert_eq!(
        kvm.run(&mut stop_at(0x50), FOREVER).unwrap(),
        Exit::Attention
    );

    let mut back = kvm.save();
    back.general.rip = HANDLER;
    portable.restore(&back);
    let mut p = stop_at(0x50);
    portable.run(&mut p, FOREVER).unwrap();
    assert_eq!(p.out, [(0x50, vec![2])], "the patched routine ran");
}

/// Checks that each engine sees accessed and dirty bits that the other engine set in page tables.
#[test]
fn page_table_marks_are_common() {
    let Some(host) = host() else { return };
    let ram = memory();
    let leaf = DATA | pte::PRESENT | pte::WRITABLE | pte::USER;
    assert!(ram.write(SMALL_PAGES, &leaf.to_le_bytes()));
    assert!(ram.write(SMALL_PAGES + 8, &(leaf + 0x1000).to_le_bytes()));
    place(&ram, CODE, |a| {
        a.mov(rdi, SMALL_BASE).unwrap();
        a.mov(dword_ptr(rdi), 5).unwrap();
        a.mov(edx, 0x50).unwrap();
        a.out(dx, al).unwrap();
        a.mov(eax, dword_ptr(rdi)).unwrap();
        a.mov(dword_ptr(rdi + 0x1000), eax).unwrap();
        a.out(dx, al).unwrap();
        a.jmp(CODE).unwrap();
    });
    let mut portable = soft(&ram, &cpuid(&host));
    let mut kvm = vcpu(&ram, &host);
    kvm.restore(&start());
    kvm.run(&mut stop_at(0x50), FOREVER).unwrap();
    portable.restore(&kvm.save());
    portable.run(&mut stop_at(0x50), FOREVER).unwrap();
    assert_eq!(portable.save().general.gpr[0], 5);
    let marks = pte::ACCESSED | pte::DIRTY;
    for page in 0..2 {
        let mut word = [0; 8];
        assert!(ram.read(SMALL_PAGES + 8 * page, &mut word));
        assert_eq!(u64::from_le_bytes(word) & marks, marks, "page {page}");
    }
}
