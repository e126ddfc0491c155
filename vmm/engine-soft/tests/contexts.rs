//! Counters that a vCPU hands over belong to an address space that the platform was asked for.

#[path = "machine/mod.rs"]
mod machine;

use machine::*;
use nodescope_engine::{Limit, Vcpu};
use nodescope_plugin_api::{Context, Counters, L0Geometry, Privilege};

/// A first level of 64 sets, one way each.
const FILTER: L0Geometry = L0Geometry {
    line_shift: 6,
    data_slots: 6,
    instruction_slots: 6,
    data_ways: 1,
    instruction_ways: 1,
};

/// A machine that counts round and round, in the reset state of a window.
fn counting() -> Machine {
    let mut m = Machine::new(|a| {
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.add(iced_x86::code_asm::rax, 1).unwrap();
        a.jmp(again).unwrap();
    });
    m.vcpu.restore(&m.state);
    m.vcpu.attach(Some(FILTER));
    m
}

fn slept(cycles: u64) -> Counters {
    Counters {
        idle_cycles: cycles,
        ..Counters::default()
    }
}

#[test]
fn a_vcpu_that_sleeps_through_a_window_tells_its_address_space() {
    let mut m = counting();
    m.vcpu.advance_to(1000);
    m.vcpu.flush_counters(&mut m.ports);
    assert_eq!(m.ports.spaces, [m.state.control.cr3]);
    let expected = (Context(0), Privilege::Kernel, slept(1000));
    assert_eq!(m.ports.accounts, [expected]);
}

#[test]
fn sleep_before_the_first_turn_is_the_own_address_spaces() {
    let mut m = counting();
    // Another vCPU was faster: context 0 is its address space.
    m.ports.spaces.push(0xdead_0000);
    m.vcpu.advance_to(1000);
    m.vcpu.run(&mut m.ports, Limit::cycles(1100)).unwrap();
    m.vcpu.flush_counters(&mut m.ports);
    let [(Context(1), Privilege::Kernel, counters)] = &m.ports.accounts[..] else {
        panic!("{:?}", m.ports.accounts);
    };
    assert_eq!(counters.idle_cycles, 1000);
    assert!(counters.instructions >= 100);
}

/// A window that finds the vCPU in another address space than the one before left it in.
#[test]
fn another_window_asks_again() {
    let mut m = counting();
    m.vcpu.run(&mut m.ports, Limit::cycles(100)).unwrap();
    m.vcpu.flush_counters(&mut m.ports);
    m.vcpu.attach(None);
    let mut state = m.vcpu.save();
    state.control.cr3 = 0x7000;
    m.vcpu.restore(&state);
    m.vcpu.attach(Some(FILTER));
    m.ports.accounts.clear();
    let now = m.vcpu.cycles();
    m.vcpu.advance_to(now + 10);
    m.vcpu.flush_counters(&mut m.ports);
    assert_eq!(m.ports.spaces, [m.state.control.cr3, 0x7000]);
    let expected = (Context(1), Privilege::Kernel, slept(10));
    assert_eq!(m.ports.accounts, [expected]);
}
