//! Tests of local APICs through their registers and messages.

use nodescope_x86::bits::apic_base;

use super::*;
use crate::time::Hertz;

const NOW: u64 = 0;

fn clock() -> TimerClock {
    let ghz = Hertz::new(1_000_000_000).unwrap();
    TimerClock {
        tsc: ghz,
        input: ghz,
    }
}

/// Returns software-enabled local APICs with these IDs, in x2APIC mode if `x2`, or else in xAPIC mode.
fn apics(ids: &[u32], x2: bool) -> LocalApics {
    let mut a = LocalApics::new(ids, clock());
    for vcpu in 0..ids.len() as u16 {
        if x2 {
            let base = a.read_msr(vcpu, NOW, MSR_APIC_BASE).unwrap();
            a.write_msr(vcpu, NOW, MSR_APIC_BASE, base | apic_base::X2APIC)
                .unwrap();
            msr(&mut a, vcpu, SVR, 0x1ff);
        } else {
            mmio(&mut a, vcpu, SVR, 0x1ff);
        }
    }
    a
}

fn msr(a: &mut LocalApics, vcpu: u16, register: u32, value: u64) {
    a.write_msr(vcpu, NOW, 0x800 + (register >> 4), value)
        .unwrap();
}

fn mmio(a: &mut LocalApics, vcpu: u16, register: u32, value: u32) {
    a.write_page(vcpu, NOW, register, &value.to_le_bytes());
}

fn mmio_read(a: &mut LocalApics, vcpu: u16, register: u32) -> u32 {
    let mut data = [0; 4];
    a.read_page(vcpu, NOW, register, &mut data);
    u32::from_le_bytes(data)
}

fn fixed(vector: u8, destination: Destination) -> Message {
    Message {
        destination,
        delivery: Delivery::Fixed,
        vector,
        trigger: Trigger::Edge,
    }
}

/// Returns the vCPUs whose highest pending vector is `vector`. Acknowledges and ends the interrupt in each.
fn receivers(a: &mut LocalApics, vector: u8) -> Vec<u16> {
    let all = 0..a.count() as u16;
    let got: Vec<u16> = all.filter(|&v| a.pending(v, NOW) == Some(vector)).collect();
    for &vcpu in &got {
        assert_eq!(a.acknowledge(vcpu, NOW), Some(vector));
        if a.mode(vcpu) == ApicMode::X2Apic {
            msr(a, vcpu, EOI, 0);
        } else {
            mmio(a, vcpu, EOI, 0);
        }
    }
    got
}

#[test]
fn higher_classes_interrupt_lower_ones_and_return_to_them() {
    let mut a = apics(&[0], true);
    let to = Destination::Physical(0);
    for vector in [0x41, 0x52, 0x5f] {
        a.deliver(&fixed(vector, to));
    }
    assert_eq!(a.acknowledge(0, NOW), Some(0x5f));
    assert_eq!(a.pending(0, NOW), None, "0x52 is of the class in service");
    a.deliver(&fixed(0x61, to));
    assert_eq!(a.acknowledge(0, NOW), Some(0x61));
    assert_eq!(a.read_msr(0, NOW, 0x80a), Ok(0x60));
    msr(&mut a, 0, EOI, 0);
    assert_eq!(a.pending(0, NOW), None);
    assert_eq!(a.read_msr(0, NOW, 0x80a), Ok(0x50));
    msr(&mut a, 0, EOI, 0);
    assert_eq!(a.acknowledge(0, NOW), Some(0x52));
    msr(&mut a, 0, EOI, 0);
    assert_eq!(a.acknowledge(0, NOW), Some(0x41));
    msr(&mut a, 0, EOI, 0);
    assert_eq!(
        (a.acknowledge(0, NOW), a.read_msr(0, NOW, 0x80a)),
        (None, Ok(0))
    );
}

#[test]
fn task_priority_holds_back_its_class_and_below() {
    let mut a = apics(&[0], true);
    a.deliver(&fixed(0x45, Destination::All));
    a.set_cr8(0, 4);
    assert_eq!((a.cr8(0), a.pending(0, NOW)), (4, None));
    assert_eq!(a.read_msr(0, NOW, 0x808), Ok(0x40));
    a.set_cr8(0, 3);
    assert_eq!(a.pending(0, NOW), Some(0x45));
    msr(&mut a, 0, TPR, 0xf0);
    assert_eq!((a.cr8(0), a.pending(0, NOW)), (15, None));
}

#[test]
fn the_same_vector_can_be_in_service_and_requested() {
    let mut a = apics(&[0], false);
    a.deliver(&fixed(0x31, Destination::All));
    a.acknowledge(0, NOW);
    a.deliver(&fixed(0x31, Destination::All));
    assert_eq!(
        (
            mmio_read(&mut a, 0, ISR + 0x10),
            mmio_read(&mut a, 0, IRR + 0x10)
        ),
        (1 << 17, 1 << 17)
    );
    mmio(&mut a, 0, EOI, 0);
    assert_eq!(a.acknowledge(0, NOW), Some(0x31));
}

#[test]
fn physical_destinations() {
    let ids = [0, 1, 4, 300];
    let mut a = apics(&ids, true);
    for (vcpu, id) in ids.into_iter().enumerate() {
        msr(&mut a, 1, ICR_LOW, u64::from(id) << 32 | 0x40);
        assert_eq!(receivers(&mut a, 0x40), [vcpu as u16]);
    }
    msr(&mut a, 0, ICR_LOW, 0xffff_ffff_0000_0041);
    assert_eq!(receivers(&mut a, 0x41), [0, 1, 2, 3]);
    let mut a = apics(&[0, 1, 4], false);
    mmio(&mut a, 0, ICR_HIGH, 4 << 24);
    mmio(&mut a, 0, ICR_LOW, 0x42);
    assert_eq!(receivers(&mut a, 0x42), [2]);
    mmio(&mut a, 0, ICR_HIGH, 0xff << 24);
    mmio(&mut a, 0, ICR_LOW, 0x43);
    assert_eq!(receivers(&mut a, 0x43), [0, 1, 2]);
    mmio(&mut a, 0, ICR_HIGH, 9 << 24);
    mmio(&mut a, 0, ICR_LOW, 0x44);
    assert!(receivers(&mut a, 0x44).is_empty());
}

#[test]
fn logical_destinations_in_all_three_models() {
    let mut a = apics(&[0, 1, 2], false);
    for vcpu in 0..3 {
        mmio(&mut a, vcpu, LDR, 1 << (24 + vcpu));
    }
    mmio(&mut a, 0, ICR_HIGH, 0b101 << 24);
    mmio(&mut a, 0, ICR_LOW, 0x840);
    assert_eq!(receivers(&mut a, 0x40), [0, 2], "flat");
    for (vcpu, ldr) in [0x11, 0x12, 0x21].into_iter().enumerate() {
        mmio(&mut a, vcpu as u16, DFR, 0x0fff_ffff);
        mmio(&mut a, vcpu as u16, LDR, ldr << 24);
    }
    for (mda, expect) in [
        (0x13, &[0, 1][..]),
        (0x21, &[2]),
        (0x22, &[]),
        (0xf1, &[0, 2]),
    ] {
        mmio(&mut a, 2, ICR_HIGH, mda << 24);
        mmio(&mut a, 2, ICR_LOW, 0x841);
        assert_eq!(receivers(&mut a, 0x41), expect, "cluster, {mda:#x}");
    }
    let mut a = apics(&[0, 5, 17, 33], true);
    assert_eq!(a.read_msr(2, NOW, 0x80d), Ok(1 << 16 | 2));
    msr(&mut a, 0, ICR_LOW, 0x0000_0021 << 32 | 0x842);
    assert_eq!(receivers(&mut a, 0x42), [0, 1], "x2APIC cluster 0");
    msr(&mut a, 0, ICR_LOW, 0x0002_ffff << 32 | 0x843);
    assert_eq!(receivers(&mut a, 0x43), [3], "x2APIC cluster 2");
}

#[test]
fn shorthands() {
    for x2 in [true, false] {
        let mut a = apics(&[0, 1, 2], x2);
        for (shorthand, expect) in [(1, &[1][..]), (2, &[0, 1, 2]), (3, &[0, 2])] {
            let command = shorthand << 18 | 0x50;
            if x2 {
                msr(&mut a, 1, ICR_LOW, command);
            } else {
                mmio(&mut a, 1, ICR_LOW, command as u32);
            }
            assert_eq!(receivers(&mut a, 0x50), expect, "shorthand {shorthand}");
        }
    }
    let mut a = apics(&[0, 1], true);
    msr(&mut a, 1, SELF_IPI, 0x77);
    assert_eq!(
        a.read_msr(1, NOW, 0x830),
        Ok(0),
        "a self-IPI leaves the ICR alone"
    );
    assert_eq!(receivers(&mut a, 0x77), [1]);
    assert!(a.read_msr(1, NOW, 0x83f).is_err());
}

#[test]
fn the_lowest_priority_takes_it() {
    let mut a = apics(&[0, 1, 2], true);
    let message = Message {
        delivery: Delivery::LowestPriority,
        ..fixed(0x80, Destination::All)
    };
    a.set_cr8(0, 2);
    a.deliver(&message);
    assert_eq!(receivers(&mut a, 0x80), [1]);
    a.set_cr8(1, 3);
    a.set_cr8(2, 3);
    a.deliver(&message);
    assert_eq!(receivers(&mut a, 0x80), [0]);
    msr(&mut a, 0, SVR, 0xff);
    a.deliver(&message);
    assert_eq!(receivers(&mut a, 0x80), [1], "vCPU 0 is software-disabled");
}

#[test]
fn init_start_up_and_nmi_become_actions_in_order() {
    let mut a = apics(&[0, 1, 2], true);
    a.deliver(&fixed(0x50, Destination::Physical(1)));
    msr(&mut a, 0, ICR_LOW, 1 << 32 | 0xc500);
    msr(&mut a, 0, ICR_LOW, 1 << 32 | 0x8500);
    msr(&mut a, 0, ICR_LOW, 1 << 32 | 0x469a);
    msr(&mut a, 0, ICR_LOW, 0xc_4400);
    use CpuAction::*;
    assert_eq!(
        a.take_actions(),
        [
            Init { vcpu: 1 },
            Startup {
                vcpu: 1,
                vector: 0x9a
            },
            Nmi { vcpu: 1 },
            Nmi { vcpu: 2 }
        ]
        .as_slice()
    );
    assert!(a.take_actions().is_empty());
    assert_eq!(a.pending(1, NOW), None, "INIT emptied the request register");
    assert_eq!(
        (a.mode(1), a.read_msr(1, NOW, 0x80f)),
        (ApicMode::X2Apic, Ok(0xff))
    );
}

#[test]
fn mode_transitions() {
    let mut a = LocalApics::new(&[0, 1], clock());
    let e = DEFAULT_BASE | apic_base::ENABLE;
    assert_eq!(a.read_msr(0, NOW, MSR_APIC_BASE), Ok(e | apic_base::BSP));
    assert_eq!(a.read_msr(1, NOW, MSR_APIC_BASE), Ok(e));
    assert_eq!(a.page_offset(1, 0xfee0_0300), Some(0x300));
    assert!(
        a.read_msr(1, NOW, 0x802).is_err(),
        "no x2APIC registers in xAPIC mode"
    );
    let mut set = |value| a.write_msr(1, NOW, MSR_APIC_BASE, value);
    assert!(set(DEFAULT_BASE | apic_base::X2APIC).is_err());
    assert!(set(e | 1).is_err(), "reserved bit");
    for bit in [1, 7, 9, 40, 46, 63] {
        assert!(set(e | 1 << bit).is_err(), "reserved bit {bit}");
    }
    assert!(set(1 << 39 | e).is_ok());
    assert!(set(e).is_ok());
    assert!(set(e | apic_base::X2APIC).is_ok());
    assert!(set(e).is_err(), "x2APIC to xAPIC");
    assert!(set(DEFAULT_BASE).is_ok());
    assert!(set(e | apic_base::X2APIC).is_err(), "disabled to x2APIC");
    assert!(set(e).is_ok());
    assert!(set(0xfed0_0000 | apic_base::ENABLE).is_ok());
    assert_eq!(
        (a.page_offset(1, 0xfee0_0300), a.page_offset(1, 0xfed0_0300)),
        (None, Some(0x300))
    );
    assert_eq!(a.page_offset(0, 0xfee0_0300), Some(0x300));
    a.write_msr(1, NOW, MSR_APIC_BASE, DEFAULT_BASE).unwrap();
    assert!(
        !a.deliver(&fixed(0x50, Destination::All)),
        "one disabled in software, one in hardware"
    );
}

#[test]
fn x2apic_registers_refuse_reserved_bits_and_wrong_directions() {
    let mut a = apics(&[7], true);
    for (register, value) in [
        (TPR, 0x100),
        (EOI, 1),
        (ESR, 1),
        (SVR, 0x200),
        (ICR_LOW, 1 << 13),
        (ICR_LOW, 1 << 20),
        (LVT_TIMER, 1 << 19),
        (LVT_ERROR, 1 << 17),
        (TIMER_DIVIDE, 4),
        (TIMER_INITIAL, 1 << 32),
        (ID, 0),
        (VERSION, 0),
        (PPR, 0),
        (LDR, 0),
        (DFR, 0),
        (ISR, 0),
        (TIMER_CURRENT, 0),
        (ICR_HIGH, 0),
        (0x2f0, 0),
    ] {
        assert_eq!(
            a.write_msr(0, NOW, 0x800 + (register >> 4), value),
            Err(MsrFault),
            "{register:#x} = {value:#x}"
        );
    }
    for register in [0, EOI, APR, DFR, ICR_HIGH, SELF_IPI, 0x2f0, 0xff0] {
        assert_eq!(
            a.read_msr(0, NOW, 0x800 + (register >> 4)),
            Err(MsrFault),
            "{register:#x}"
        );
    }
    assert_eq!(a.read_msr(0, NOW, 0x802), Ok(7));
    assert_eq!(a.read_msr(0, NOW, 0x803), Ok(0x0105_0014));
    assert_eq!(a.page_offset(0, DEFAULT_BASE), None);
}

#[test]
fn errors_are_latched_and_signalled() {
    let mut a = apics(&[0, 1], false);
    mmio(&mut a, 0, LVT_ERROR, 0xfe);
    mmio(&mut a, 0, ICR_LOW, 0x4_0005);
    assert_eq!(a.acknowledge(0, NOW), Some(0xfe));
    mmio(&mut a, 0, EOI, 0);
    assert_eq!(mmio_read(&mut a, 0, ESR), 0, "not latched before a write");
    mmio(&mut a, 0, ESR, 0);
    assert_eq!(mmio_read(&mut a, 0, ESR), ESR_SEND_VECTOR);
    mmio_read(&mut a, 0, 0x3c0);
    a.deliver(&fixed(3, Destination::Physical(0)));
    mmio(&mut a, 0, ESR, 0);
    assert_eq!(mmio_read(&mut a, 0, ESR), ESR_REGISTER | ESR_RECEIVE_VECTOR);
    mmio(&mut a, 0, ESR, 0);
    assert_eq!(mmio_read(&mut a, 0, ESR), 0);
}

#[test]
fn software_disable_masks_the_vector_table_and_refuses_interrupts() {
    let mut a = apics(&[0], false);
    mmio(&mut a, 0, LVT_TIMER, 0x30);
    a.deliver(&fixed(0x44, Destination::All));
    mmio(&mut a, 0, SVR, 0xff);
    assert_eq!(mmio_read(&mut a, 0, LVT_TIMER), LVT_MASKED | 0x30);
    mmio(&mut a, 0, LVT_TIMER, 0x30);
    assert_eq!(mmio_read(&mut a, 0, LVT_TIMER), LVT_MASKED | 0x30);
    assert!(!a.deliver(&fixed(0x45, Destination::All)));
    assert_eq!(
        a.acknowledge(0, NOW),
        Some(0x44),
        "what was requested before is held"
    );
}

#[test]
fn timer_interrupts_come_at_their_virtual_time() {
    let mut a = apics(&[0], true);
    msr(&mut a, 0, TIMER_DIVIDE, 0b1011);
    msr(&mut a, 0, LVT_TIMER, 0x2_0040);
    a.write_msr(0, 1000, 0x838, 500).unwrap();
    assert_eq!(a.next_event(0), 1500);
    assert_eq!((a.pending(0, 1499), a.pending(0, 1500)), (None, Some(0x40)));
    assert_eq!(a.next_event(0), 2000);
    assert_eq!(a.read_msr(0, 1700, 0x839), Ok(300));
    a.acknowledge(0, 1700);
    assert_eq!(a.pending(0, 2000), None, "its class is in service");
    a.write_msr(0, 2000, 0x80b, 0).unwrap();
    assert_eq!(a.acknowledge(0, 2000), Some(0x40));
    a.write_msr(0, 2000, 0x80b, 0).unwrap();

    msr(&mut a, 0, LVT_TIMER, 0x4_0041);
    assert_eq!(a.next_event(0), u64::MAX, "the change of mode disarms");
    a.set_tsc_offset(0, 2000, 10_000);
    a.write_msr(0, 2000, MSR_TSC_DEADLINE, 12_345).unwrap();
    assert_eq!(a.read_msr(0, 2344, MSR_TSC_DEADLINE), Ok(12_345));
    assert_eq!((a.pending(0, 2344), a.pending(0, 2345)), (None, Some(0x41)));
    assert_eq!(a.read_msr(0, 2345, MSR_TSC_DEADLINE), Ok(0));
    a.acknowledge(0, 2345);
    a.write_msr(0, 2345, 0x80b, 0).unwrap();

    msr(&mut a, 0, LVT_TIMER, u64::from(LVT_MASKED) | 0x4_0041);
    a.write_msr(0, 2345, MSR_TSC_DEADLINE, 12_400).unwrap();
    assert_eq!(
        (a.pending(0, 9999), a.next_event(0)),
        (None, u64::MAX),
        "masked expiries are lost"
    );
}

#[test]
fn restored_apics_equal_the_saved_and_go_on_alike() {
    let mut a = apics(&[0, 1], true);
    msr(&mut a, 0, LVT_TIMER, 0x2_0040);
    a.write_msr(0, 77, 0x838, 1234).unwrap();
    a.deliver(&fixed(0x61, Destination::All));
    a.acknowledge(1, 80);
    a.deliver(&fixed(0x71, Destination::All));
    msr(&mut a, 0, ICR_LOW, 1 << 32 | 0x4400);
    let saved = a.save();
    let text = serde_json::to_string(&saved).unwrap();
    let read: Vec<LocalApicState> = serde_json::from_str(&text).unwrap();
    let mut b = LocalApics::new(&[0, 1], clock());
    assert!(b.restore(&read, a.actions()));
    assert_eq!((b.save(), b.actions()), (saved.clone(), a.actions()));
    for now in [80, 5000, 6000, 7000] {
        for vcpu in 0..2 {
            assert_eq!(a.acknowledge(vcpu, now), b.acknowledge(vcpu, now));
            assert_eq!(a.next_event(vcpu), b.next_event(vcpu));
        }
    }
    assert_eq!(a.save(), b.save());
    let action = [CpuAction::Nmi { vcpu: 2 }];
    assert!(!b.restore(&saved, &action), "there is no third vCPU");
    assert!(!LocalApics::new(&[0, 2], clock()).restore(&saved, &[]));
    assert!(!LocalApics::new(&[0], clock()).restore(&saved, &[]));
}

#[test]
fn msi_addresses_and_data() {
    let m = Message::from_msi(0xfee0_5000, 0x0041).unwrap();
    assert_eq!(m, fixed(0x41, Destination::Physical(5)));
    let m = Message::from_msi(0xfeef_f00c, 0xc142).unwrap();
    assert_eq!(m.destination, Destination::Logical(0xff));
    assert_eq!(
        (m.delivery, m.trigger, m.vector),
        (Delivery::LowestPriority, Trigger::Level, 0x42)
    );
    assert_eq!(Message::from_msi(0xfec0_0000, 0), None);
}
