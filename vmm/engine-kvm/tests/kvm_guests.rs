//! Tests with bare-metal guests on KVM. Each test is skipped if KVM is not usable.

mod support;

use iced_x86::code_asm::*;
use nodescope_engine::{Exit, Limit, Vcpu};
use nodescope_engine_kvm::KvmVcpu;
use nodescope_plugin_api::L0Geometry;
use nodescope_test_needs::{Need, skip};
use nodescope_x86::bits::{pte, rflags};
use nodescope_x86::state::seg;
use nodescope_x86::{InterruptShadow, MpState, Segment, VcpuState};
use support::*;

const FOREVER: Limit = Limit {
    cycles: u64::MAX,
    instructions: u64::MAX,
    extends: false,
};

const RAX: usize = 0;
const RCX: usize = 1;
const RDX: usize = 2;
const RBX: usize = 3;

#[test]
fn ring_0_computes_talks_to_ports_and_halts() {
    let Some(host) = host() else { return };
    let ram = memory();
    place(&ram, CODE, |a| {
        a.mov(edx, 0x510).unwrap();
        a.in_(al, dx).unwrap();
        a.add(al, 1).unwrap();
        a.out(dx, al).unwrap();
        a.mov(eax, 0x1234_5678).unwrap();
        a.out(dx, eax).unwrap();
        a.mov(rbx, 0x1122_3344_5566_7788_u64).unwrap();
        a.hlt().unwrap();
        a.mov(rbx, 1_u64).unwrap();
        a.hlt().unwrap();
    });
    let mut v = vcpu(&ram, &host);
    let mut p = Recorder::default();
    p.input.insert(0x510, 0x41);
    v.restore(&state(0));
    assert_eq!(v.run(&mut p, FOREVER).unwrap(), Exit::Halted);
    assert_eq!(
        p.out,
        [(0x510, vec![0x42]), (0x510, vec![0x78, 0x56, 0x34, 0x12])]
    );
    let s = v.save();
    assert_eq!(s.general.gpr[RBX], 0x1122_3344_5566_7788);
    assert_eq!(s.events.mp, MpState::Halted);
    assert_eq!(
        v.run(&mut p, FOREVER).unwrap(),
        Exit::Halted,
        "still halted"
    );
    assert_eq!(v.save().general, s.general);
    let mut on = s;
    on.events.mp = MpState::Running;
    v.restore(&on);
    v.run(&mut p, FOREVER).unwrap();
    assert_eq!(v.save().general.gpr[RBX], 1, "went on after HLT");
}

#[test]
fn memory_without_ram_behind_it_is_the_platforms() {
    let Some(host) = host() else { return };
    let ram = memory();
    place(&ram, CODE, |a| {
        a.mov(rdi, MMIO).unwrap();
        a.mov(eax, dword_ptr(rdi)).unwrap();
        a.mov(dword_ptr(rdi + 8), eax).unwrap();
        a.mov(byte_ptr(rdi + 0x13), 7).unwrap();
        a.hlt().unwrap();
    });
    let mut v = vcpu(&ram, &host);
    let mut p = Recorder::default();
    p.mmio_values.insert(MMIO, 0xcafe_f00d);
    v.restore(&state(0));
    assert_eq!(v.run(&mut p, FOREVER).unwrap(), Exit::Halted);
    assert_eq!(v.save().general.gpr[RAX], 0xcafe_f00d);
    assert_eq!(
        p.mmio,
        [
            (MMIO + 8, 0xcafe_f00d_u32.to_le_bytes().to_vec()),
            (MMIO + 0x13, vec![7])
        ]
    );
}

#[test]
fn ring_3_runs_vector_code_and_reaches_ports_with_iopl_3() {
    let Some(host) = host() else { return };
    let avx = host.cpuid.has(1, 0, nodescope_x86::CpuidRegister::Ecx, 28);
    let ram = memory();
    for i in 0..8_u32 {
        assert!(ram.write(DATA + 4 * u64::from(i), &(i as f32).to_le_bytes()));
    }
    place(&ram, CODE, |a| {
        a.mov(rsi, DATA).unwrap();
        if avx {
            a.vmovups(ymm1, ymmword_ptr(rsi)).unwrap();
            a.vaddps(ymm15, ymm1, ymm1).unwrap();
        } else {
            a.movups(xmm1, xmmword_ptr(rsi)).unwrap();
            a.movaps(xmm15, xmm1).unwrap();
            a.addps(xmm15, xmm1).unwrap();
        }
        a.fld1().unwrap();
        let mut again = a.create_label();
        a.mov(ecx, 1_000_000).unwrap();
        a.set_label(&mut again).unwrap();
        a.add(rax, rcx).unwrap();
        a.dec(ecx).unwrap();
        a.jne(again).unwrap();
        a.mov(edx, 0x42).unwrap();
        a.out(dx, al).unwrap();
        a.jmp(CODE).unwrap();
    });
    let mut v = vcpu(&ram, &host);
    let mut p = Recorder {
        stop_at_port: Some(0x42),
        ..Default::default()
    };
    let mut s = state(3);
    s.general.rflags |= rflags::IOPL;
    v.restore(&s);
    assert_eq!(v.run(&mut p, FOREVER).unwrap(), Exit::Attention);
    let s = v.save();
    assert_eq!(s.general.gpr[RAX], 1_000_000 * 1_000_001 / 2);
    assert_eq!(s.segments.data[1].selector, 0x1b);
    assert_eq!(s.general.rflags & rflags::IOPL, rflags::IOPL);
    let lanes = if avx { 8 } else { 4 };
    for i in 0..lanes {
        let lane = f32::from_le_bytes(s.vector.0[15][4 * i..4 * i + 4].try_into().unwrap());
        assert_eq!(lane, 2.0 * i as f32);
    }
    // FLD1 pushed 1.0: the top of the stack is 7, the exponent 0x3fff, and the integer bit is set.
    assert_eq!(s.fx.fsw() >> 11 & 7, 7);
    assert_eq!(s.fx.0[32..42], [0, 0, 0, 0, 0, 0, 0, 0x80, 0xff, 0x3f]);
    // The OUT is complete, and RIP is at the jump after it.
    let mut next = [0];
    ram.read(s.general.rip, &mut next);
    assert!([0xe9, 0xeb].contains(&next[0]), "at {:#x}", s.general.rip);
}

#[test]
fn small_pages_are_walked_and_a_fault_says_where() {
    let Some(host) = host() else { return };
    let ram = memory();
    let leaf = DATA | pte::PRESENT | pte::WRITABLE | pte::USER;
    assert!(ram.write(SMALL_PAGES, &leaf.to_le_bytes()));
    assert!(ram.write(DATA + 0x18, &0x77_u64.to_le_bytes()));
    gate(&ram, 14, HANDLER);
    place(&ram, CODE, |a| {
        a.mov(rdi, SMALL_BASE).unwrap();
        a.mov(rax, qword_ptr(rdi + 0x18)).unwrap();
        a.mov(qword_ptr(rdi + 0x20), rax).unwrap();
        a.mov(qword_ptr(rdi + 0x1000), rax).unwrap();
        a.hlt().unwrap();
    });
    place(&ram, HANDLER, |a| {
        a.pop(rcx).unwrap();
        a.mov(rdx, cr2).unwrap();
        a.mov(rbx, 0x600d_u64).unwrap();
        a.hlt().unwrap();
    });
    let mut v = vcpu(&ram, &host);
    v.restore(&state(0));
    let exit = v.run(&mut Recorder::default(), FOREVER).unwrap();
    assert_eq!(exit, Exit::Halted);
    let s = v.save();
    assert_eq!(s.general.gpr[RAX], 0x77);
    assert_eq!(s.general.gpr[RBX], 0x600d, "the handler ran");
    assert_eq!(
        s.general.gpr[RCX], 2,
        "a write to a page that is not present"
    );
    assert_eq!(s.general.gpr[RDX], SMALL_BASE + 0x1000);
    let mut word = [0; 8];
    ram.read(DATA + 0x20, &mut word);
    assert_eq!(u64::from_le_bytes(word), 0x77);
    ram.read(SMALL_PAGES, &mut word);
    let marks = pte::ACCESSED | pte::DIRTY;
    assert_eq!(u64::from_le_bytes(word) & marks, marks);
}

#[test]
fn the_hypercall_leaf_says_that_kvm_answers() {
    let Some(host) = host() else { return };
    let ram = memory();
    place(&ram, CODE, |a| {
        a.mov(eax, nodescope_hypercall::LEAF).unwrap();
        a.xor(ecx, ecx).unwrap();
        a.cpuid().unwrap();
        a.hlt().unwrap();
    });
    let mut v = vcpu(&ram, &host);
    v.restore(&state(0));
    let exit = v.run(&mut Recorder::default(), FOREVER).unwrap();
    assert_eq!(exit, Exit::Halted);
    let g = v.save().general.gpr;
    assert_eq!(g[RAX], u64::from(nodescope_hypercall::SIGNATURE));
    assert_eq!(g[RBX], u64::from(nodescope_hypercall::TRANSPORT_DOORBELL));
    assert_eq!(g[RCX], u64::from(nodescope_hypercall::ABI_VERSION));
}

#[test]
fn an_interrupt_of_the_platform_is_taken_once_the_guest_allows_it() {
    let Some(host) = host() else { return };
    let ram = memory();
    gate(&ram, 0x41, HANDLER);
    place(&ram, CODE, |a| {
        a.mov(edx, 0x10).unwrap();
        a.mov(al, 1_u32).unwrap();
        a.out(dx, al).unwrap();
        a.sti().unwrap();
        let mut spin = a.create_label();
        a.set_label(&mut spin).unwrap();
        a.nop().unwrap();
        a.jmp(spin).unwrap();
    });
    place(&ram, HANDLER, |a| {
        a.mov(al, 2_u32).unwrap();
        a.out(dx, al).unwrap();
        a.hlt().unwrap();
    });
    let mut v = vcpu(&ram, &host);
    let mut p = Recorder::default();
    p.interrupts.push_back(0x41);
    v.restore(&state(0));
    assert_eq!(v.run(&mut p, FOREVER).unwrap(), Exit::Halted);
    assert_eq!(p.out, [(0x10, vec![1]), (0x10, vec![2])]);
    assert!(p.interrupts.is_empty());
    let s = v.save();
    assert_eq!(s.general.rflags & rflags::IF, 0, "an interrupt gate");
    assert_eq!(s.general.gpr[4], STACK - 40, "five words on the stack");
}

#[test]
fn an_interrupt_ends_a_halt() {
    let Some(host) = host() else { return };
    let ram = memory();
    gate(&ram, 0x30, HANDLER);
    place(&ram, CODE, |a| {
        a.sti().unwrap();
        a.hlt().unwrap();
    });
    place(&ram, HANDLER, |a| {
        a.mov(rbx, 5_u64).unwrap();
        a.hlt().unwrap();
    });
    let mut v = vcpu(&ram, &host);
    let mut p = Recorder::default();
    v.restore(&state(0));
    assert_eq!(v.run(&mut p, FOREVER).unwrap(), Exit::Halted);
    assert_eq!(v.save().general.gpr[RBX], 0);
    p.interrupts.push_back(0x30);
    assert_eq!(v.run(&mut p, FOREVER).unwrap(), Exit::Halted);
    assert_eq!(v.save().general.gpr[RBX], 5);
}

/// Runs an endless loop that increments RAX, 10 million cycles at a time, until RAX is above a value. On an emulated host, the entry to the
/// guest alone may take that long.
fn run_on(v: &mut KvmVcpu, p: &mut Recorder, above: u64) -> u64 {
    for _ in 0..100 {
        let limit = v.cycles() + 10_000_000;
        assert_eq!(v.run(p, Limit::cycles(limit)).unwrap(), Exit::Limit);
        assert!(v.cycles() >= limit);
        let now = v.save().general.gpr[RAX];
        assert!(now >= above, "goes on where it was");
        if now > above {
            return now;
        }
    }
    panic!("100 runs executed nothing");
}

#[test]
fn an_endless_loop_stops_at_the_clocks_limit() {
    let Some(host) = host() else { return };
    let ram = memory();
    place(&ram, CODE, |a| {
        a.inc(rax).unwrap();
        a.jmp(CODE).unwrap();
    });
    let mut v = vcpu(&ram, &host);
    let mut p = Recorder::default();
    for cpl in [0, 3] {
        v.restore(&state(cpl));
        let first = run_on(&mut v, &mut p, 0);
        run_on(&mut v, &mut p, first);
    }
}

#[test]
fn a_triple_fault_shuts_down() {
    let Some(host) = host() else { return };
    let ram = memory();
    place(&ram, CODE, |a| {
        a.ud2().unwrap();
    });
    let mut v = vcpu(&ram, &host);
    let mut s = state(0);
    s.segments.idt.limit = 0;
    v.restore(&s);
    let mut p = Recorder::default();
    assert_eq!(v.run(&mut p, FOREVER).unwrap(), Exit::Shutdown);
    assert_eq!(v.save().events.mp, MpState::Shutdown);
    assert_eq!(v.run(&mut p, FOREVER).unwrap(), Exit::Shutdown);
}

#[test]
fn what_kvm_cannot_do_is_reported_with_place_and_registers() {
    let Some(host) = host() else { return };
    let ram = memory();
    // No kind of KVM can fetch code from an address without RAM.
    place(&ram, CODE, |a| {
        a.mov(rbx, 0xabcd_u64).unwrap();
        a.mov(rax, MMIO).unwrap();
        a.jmp(rax).unwrap();
    });
    let mut v = vcpu(&ram, &host);
    v.restore(&state(0));
    let error = v.run(&mut Recorder::default(), FOREVER).unwrap_err();
    let text = error.to_string();
    let r = report(error);
    assert_eq!(r.state.general.rip, MMIO);
    assert_eq!(r.state.general.gpr[RBX], 0xabcd);
    for needle in [
        "KVM internal error 1",
        "0x30000000",
        "64-bit mode, CPL 0",
        "abcd",
    ] {
        assert!(text.contains(needle), "{needle} not in {text}");
    }
}

/// Returns the state without the clock. All other bits must survive the exchange.
fn without_time(mut s: VcpuState) -> VcpuState {
    s.time = Default::default();
    s
}

#[test]
fn a_state_goes_in_and_comes_out_unchanged() {
    let Some(host) = host() else { return };
    let ram = memory();
    let mut v = vcpu(&ram, &host);
    for cpl in [0, 3] {
        let mut s = state(cpl);
        for (i, r) in s.general.gpr.iter_mut().enumerate() {
            *r = 0x0101_0101_0101_0101 * (i as u64 + 1);
        }
        s.general.rflags |= rflags::CF | rflags::OF | rflags::ID | rflags::AC;
        for (i, r) in s.vector.0.iter_mut().enumerate() {
            for (j, b) in r.iter_mut().enumerate() {
                *b = (16 * i + j) as u8;
            }
        }
        s.fx.set_mxcsr(0x1fa0);
        s.fx.0[2..4].copy_from_slice(&0x3800_u16.to_le_bytes());
        s.fx.0[4] = 0x80;
        s.fx.0[32..42].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0xc0, 0x00, 0x40]);
        s.segments.data[4].base = 0x7fff_1234_5000;
        s.segments.data[5].base = 0xffff_8880_0000_1000;
        s.control.cr2 = 0xffff_ffff_8000_0123;
        s.debug.dr[0] = 0x1234;
        s.msrs.star = 0x0023_0010_0000_0000;
        s.msrs.lstar = 0xffff_ffff_8100_0000;
        s.msrs.sfmask = 0x4_7700;
        s.msrs.kernel_gs_base = 0x7f00_0000_0000;
        s.msrs.sysenter_eip = 0xffff_ffff_8100_1000;
        s.msrs.tsc_adjust = 55;
        s.events.nmi_blocked = cpl == 0;
        if cpl == 0 {
            s.events.shadow = InterruptShadow::Sti;
        }
        s.time.instructions = 777;
        s.time.cycles = 1_000_000;
        v.restore(&s);
        if let Err(error) = v.check_restored() {
            panic!("CPL {cpl}: {error:?}");
        }
        // The limit is in the past, so nothing runs. The clock never goes back.
        let exit = v.run(&mut Recorder::default(), Limit::cycles(0)).unwrap();
        assert_eq!(exit, Exit::Limit);
        let back = v.save();
        assert_eq!(back.time.instructions, 777);
        assert!(back.time.cycles >= 1_000_000);
        assert_eq!(without_time(back), without_time(s), "CPL {cpl}");
    }
    println!(
        "registers this KVM does not hold: {:x?}",
        v.unsupported_msrs()
    );
}

/// Checks segments as 64-bit Linux has them, with the attributes that the portable engine leaves.
#[test]
fn null_segments_and_descriptors_that_no_processor_keeps_whole_come_back() {
    let Some(host) = host() else { return };
    let ram = memory();
    let mut v = vcpu(&ram, &host);
    let null = |selector, dpl: u16| Segment {
        selector,
        attributes: dpl << 5,
        unusable: true,
        ..Default::default()
    };
    for cpl in [0, 3] {
        let mut s = state(cpl);
        for index in [seg::ES, seg::DS, seg::FS, seg::GS] {
            s.segments.data[index] = null(0, cpl);
        }
        s.segments.data[seg::FS].base = 0x7f12_3456_7000;
        // An interrupt of user code loads a null stack segment.
        if cpl == 0 {
            s.segments.data[seg::SS] = null(0, 0);
        } else {
            s.segments.data[seg::ES] = Segment {
                selector: 0x23,
                base: 0,
                limit: 0x1fff,
                attributes: 0xc0f2,
                unusable: false,
            };
        }
        v.restore(&s);
        if let Err(error) = v.check_restored() {
            panic!("CPL {cpl}: {error:?}");
        }
    }
}

#[test]
fn registers_of_the_platform_come_to_it() {
    let Some(host) = host() else { return };
    if !host.msr_exits {
        skip(
            Need::Kvm,
            "this KVM cannot bring MSR accesses to user space",
        );
        return;
    }
    let ram = memory();
    gate(&ram, 13, HANDLER);
    place(&ram, CODE, |a| {
        a.mov(ecx, 0x6e0).unwrap();
        a.mov(eax, 0x1000).unwrap();
        a.mov(edx, 2).unwrap();
        a.wrmsr().unwrap();
        a.mov(ecx, 0x802).unwrap();
        a.rdmsr().unwrap();
        a.mov(ebx, eax).unwrap();
        a.mov(ecx, 0x3b).unwrap();
        a.mov(eax, 500).unwrap();
        a.xor(edx, edx).unwrap();
        a.wrmsr().unwrap();
        a.mov(ecx, 0x8ff).unwrap();
        a.rdmsr().unwrap();
        a.hlt().unwrap();
    });
    place(&ram, HANDLER, |a| {
        a.mov(rsi, 0x9f_u64).unwrap();
        a.hlt().unwrap();
    });
    let mut v = vcpu(&ram, &host);
    let mut p = Recorder::default();
    p.msrs.insert(0x6e0, 0);
    p.msrs.insert(0x802, 0x2a);
    v.restore(&state(0));
    assert_eq!(v.run(&mut p, FOREVER).unwrap(), Exit::Halted);
    let s = v.save();
    assert_eq!(p.msr_writes, [(0x6e0, 2 << 32 | 0x1000)]);
    assert_eq!(s.general.gpr[RBX], 0x2a);
    assert_eq!(s.msrs.tsc_adjust, 500);
    // The offset may be above 500 if the host's KVM cannot set a guest's TSC.
    assert_eq!(p.tsc_offset, Some(s.time.tsc_offset));
    assert!(s.time.tsc_offset >= 500);
    assert_eq!(s.general.gpr[6], 0x9f, "the refused register raised #GP");
}

/// Checks an access to a refused MSR. KVM raises its exception at the next entry, and would then drop an interrupt that was injected
/// before.
#[test]
fn an_interrupt_survives_a_register_that_is_refused() {
    let Some(host) = host() else { return };
    if !host.msr_exits {
        skip(
            Need::Kvm,
            "this KVM cannot bring MSR accesses to user space",
        );
        return;
    }
    const MISSING: u32 = 0xc90;
    const ON_INTERRUPT: u64 = HANDLER + 0x1000;
    let ram = memory();
    gate(&ram, 13, HANDLER);
    gate(&ram, 0x41, ON_INTERRUPT);
    place(&ram, CODE, |a| {
        a.mov(ecx, MISSING).unwrap();
        a.sti().unwrap();
        a.nop().unwrap();
        a.wrmsr().unwrap();
        a.nop().unwrap();
        a.cli().unwrap();
        a.hlt().unwrap();
    });
    place(&ram, HANDLER, |a| {
        a.inc(rsi).unwrap();
        // Skips the error code and the two bytes of WRMSR.
        a.add(rsp, 8).unwrap();
        a.add(qword_ptr(rsp), 2).unwrap();
        a.iretq().unwrap();
    });
    place(&ram, ON_INTERRUPT, |a| {
        a.inc(rdi).unwrap();
        a.iretq().unwrap();
    });
    let mut v = vcpu(&ram, &host);
    let mut p = Recorder::default();
    p.msr_interrupts.insert(MISSING, 0x41);
    v.restore(&state(0));
    let before = v.save().general;
    assert_eq!(v.run(&mut p, FOREVER).unwrap(), Exit::Halted);
    let after = v.save().general;
    assert!(p.interrupts.is_empty());
    assert_eq!(after.gpr[6] - before.gpr[6], 1, "the exception");
    assert_eq!(after.gpr[7] - before.gpr[7], 1, "the interrupt");
}

#[test]
fn a_write_to_code_reaches_the_code_map() {
    let Some(host) = host() else { return };
    let ram = memory();
    place(&ram, CODE, |a| {
        a.mov(rdi, DATA).unwrap();
        a.mov(byte_ptr(rdi + 0x40), 0x90).unwrap();
        a.hlt().unwrap();
    });
    let region = ram.region(0).unwrap();
    region.code.mark(DATA as usize + 0x40, 16);
    region.code.mark(DATA as usize + 0x2000, 16);
    let mut v = vcpu(&ram, &host);
    v.restore(&state(0));
    v.run(&mut Recorder::default(), FOREVER).unwrap();
    v.synchronize(&mut Recorder::default()).unwrap();
    assert_eq!(region.code.generation(DATA as usize), 1);
    assert_eq!(region.code.generation(DATA as usize + 0x2000), 0);
}

#[test]
fn what_this_engine_lacks_is_refused_by_name() {
    let Some(host) = host() else { return };
    let ram = memory();
    let mut v = vcpu(&ram, &host);
    v.restore(&state(0));
    let mut p = Recorder::default();
    let e = v.run(&mut p, Limit::instructions(5)).unwrap_err();
    assert!(e.to_string().contains("number of instructions"), "{e}");
    v.attach(Some(L0Geometry {
        line_shift: 6,
        data_slots: 6,
        instruction_slots: 6,
        data_ways: 1,
        instruction_ways: 1,
        page_sizes: false,
    }));
    let e = v.run(&mut p, FOREVER).unwrap_err();
    assert!(e.to_string().contains("memory references"), "{e}");
    let mut s = state(0);
    s.events.mp = MpState::WaitForSipi;
    v.attach(None);
    v.restore(&s);
    assert_eq!(v.run(&mut p, FOREVER).unwrap(), Exit::Halted);
}

/// Checks a limit of one cycle, which is shorter than an entry to the guest. Without grace, the alarm would on most hosts end each entry
/// before the guest executes an instruction.
#[test]
fn a_vcpu_makes_progress_however_short_its_limits_are() {
    let Some(host) = host() else { return };
    let ram = memory();
    place(&ram, CODE, |a| {
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.inc(rbx).unwrap();
        a.jmp(again).unwrap();
    });
    let mut v = vcpu(&ram, &host);
    let mut p = Recorder::default();
    v.restore(&state(0));
    let mut counted = 0;
    for round in 0..4 {
        for entry in 0.. {
            let limit = Limit {
                cycles: v.cycles() + 1,
                ..FOREVER
            };
            assert_eq!(v.run(&mut p, limit).unwrap(), Exit::Limit);
            let now = v.save().general.gpr[RBX];
            if now > counted {
                counted = now;
                break;
            }
            assert!(entry < 1000, "round {round}: no progress after {counted}");
        }
    }
}
