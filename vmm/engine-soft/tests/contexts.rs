//! The platform knows the address space of all counters that a vCPU passes to the platform.

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
    page_sizes: false,
};

/// Returns a machine that counts in an endless loop, in the state of a window's beginning.
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
    // Context 0 is the address space of another vCPU, which was faster.
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

/// A window begins in another address space than the one in which the window before ended.
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
