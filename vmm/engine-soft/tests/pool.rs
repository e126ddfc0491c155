//! Nodes that share a pool of decoded operations and translated code.

#[path = "machine/mod.rs"]
mod machine;

use std::sync::{Arc, Barrier};

use iced_x86::code_asm::*;
use machine::*;
use nodescope_engine::{Exit, Limit, Vcpu};
use nodescope_engine_soft::{DecodedPool, SharedCode, Translate};
use nodescope_oracle::bare;

/// Returns a machine whose node shares this pool.
fn sharing(
    pool: &Arc<DecodedPool>,
    translate: Translate,
    code: impl FnOnce(&mut CodeAssembler),
) -> Machine {
    let mut machine = Machine::new(code);
    let code = SharedCode::with_pool(machine.ram.clone(), pool.clone());
    machine.vcpu = bare::vcpu_with(code, translate);
    machine
}

/// Runs a machine from its state to HLT.
fn run(machine: &mut Machine) {
    machine.vcpu.restore(&machine.state);
    let exit = machine.vcpu.run(&mut machine.ports, Limit::cycles(1 << 40));
    let exit = exit.unwrap();
    assert_eq!(exit, Exit::Halted);
    machine.state = machine.vcpu.save();
}

/// Writes a program of several blocks that computes sums in vector and general registers.
fn sums(a: &mut CodeAssembler) {
    let mut again = a.create_label();
    a.mov(ecx, 300).unwrap();
    a.set_label(&mut again).unwrap();
    a.add(rax, rcx).unwrap();
    a.movq(xmm1, rcx).unwrap();
    a.paddq(xmm0, xmm1).unwrap();
    a.dec(ecx).unwrap();
    a.jnz(again).unwrap();
    a.movq(rbx, xmm0).unwrap();
    a.hlt().unwrap();
}

#[test]
fn a_second_node_decodes_nothing_and_computes_alike() {
    for translate in [Translate::Never, Translate::After(2)] {
        let pool = Arc::default();
        let mut machines = [0, 1].map(|_| sharing(&pool, translate, sums));
        for machine in &mut machines {
            machine.state.control.cr4 |= 0x600;
            run(machine);
        }
        let [first, second] = machines;
        assert_eq!(first.reg(RAX), 300 * 301 / 2);
        assert_eq!(first.reg(RBX), 300 * 301 / 2);
        assert_eq!(first.state, second.state);
        let counts = pool.counts();
        assert!(counts.decoded > 0);
        assert_eq!(counts.shared, counts.decoded, "of {translate:?}");
    }
}

/// Writes a loop that adds the results of another block of the page, and changes that block's constant in the iteration that RDX gives
/// (iterations count down from 40; 0: never).
fn rewriting(a: &mut CodeAssembler) {
    let (mut again, mut same, mut constant) =
        (a.create_label(), a.create_label(), a.create_label());
    a.mov(ecx, 40).unwrap();
    a.set_label(&mut again).unwrap();
    a.call(constant).unwrap();
    a.add(rbx, rax).unwrap();
    a.cmp(ecx, edx).unwrap();
    a.jne(same).unwrap();
    a.lea(rsi, ptr(constant)).unwrap();
    a.mov(byte_ptr(rsi + 1), 5).unwrap();
    a.set_label(&mut same).unwrap();
    a.dec(ecx).unwrap();
    a.jnz(again).unwrap();
    a.hlt().unwrap();
    a.set_label(&mut constant).unwrap();
    a.mov(eax, 1).unwrap();
    a.ret().unwrap();
}

#[test]
fn a_second_node_runs_what_the_first_has_translated() {
    let pool = Arc::default();
    let mut machines = [0, 1, 2].map(|_| sharing(&pool, Translate::After(1), rewriting));
    // For each node: the iteration in which it changes the page, the sum, and whether it makes new code.
    let cases = [
        (0, 40, true),
        (30, 40 + 29 * 4, true),
        (11, 40 + 10 * 4, false),
    ];
    for (machine, (changes_at, sum, makes)) in machines.iter_mut().zip(cases) {
        machine.state.general.gpr[RDX] = changes_at;
        let (before, blocks) = (pool.translated(), pool.counts());
        run(machine);
        assert_eq!(machine.reg(RBX), sum);
        assert_eq!(machine.vcpu.translations(), 0, "all is shared");
        assert!(machine.vcpu.activity().entries > 0);
        assert_eq!(pool.translated() > before, makes);
        assert_eq!(pool.counts() == blocks, !makes, "blocks are for new code");
    }
}

/// Writes a program of one block that sets RAX to 1.
fn one(a: &mut CodeAssembler) {
    a.mov(eax, 1).unwrap();
    a.hlt().unwrap();
}

#[test]
fn executions_of_all_nodes_count_together() {
    let pool = Arc::default();
    let mut machines = [0; 5].map(|_| sharing(&pool, Translate::After(48), one));
    // A sixteenth of 48: the fourth execution is the first one that pays.
    for (machine, translated) in machines.iter_mut().zip([0, 0, 0, 1, 1]) {
        run(machine);
        assert_eq!(pool.translated(), translated);
        assert_eq!(machine.reg(RAX), 1);
    }
    assert_eq!(machines[4].vcpu.activity().entries, 1);
}

#[test]
fn code_that_one_node_changes_stays_as_it_was_in_another() {
    let pool = Arc::default();
    let mut machines = [0, 1].map(|_| sharing(&pool, Translate::After(0), one));
    for machine in &mut machines {
        run(machine);
        machine.state.general.rip = CODE;
    }
    let [first, second] = &mut machines;
    assert!(first.ram.write(CODE + 1, &[7]));
    for machine in [&mut *second, &mut *first] {
        machine.state.events = Default::default();
        run(machine);
    }
    assert_eq!((first.reg(RAX), second.reg(RAX)), (7, 1));
}

#[test]
fn code_means_the_same_at_another_address_only_where_it_is_relative() {
    // LEA with EIP as its base: the address is truncated to 32 bits.
    let program = [0x67, 0x48, 0x8d, 0x05, 0x10, 0, 0, 0, 0xf4];
    let pool = Arc::default();
    for page in [CODE, CODE + 0x3000] {
        let mut machine = sharing(&pool, Translate::Never, |_| {}).poke(page, &program);
        machine.state.general.rip = page;
        run(&mut machine);
        assert_eq!(machine.reg(RAX), page + 8 + 0x10);
    }
    assert_eq!(pool.counts().shared, 0);
    assert_eq!(pool.counts().decoded, 0);
}

#[test]
fn blocks_without_translations_are_thrown_away_where_there_is_no_room() {
    let pool = Arc::default();
    let run_with = |bound: Option<usize>| {
        let mut machine = sharing(&pool, Translate::After(50), sums);
        machine.state.control.cr4 |= 0x600;
        if let Some(bound) = bound {
            machine.vcpu.limit_blocks(bound);
        }
        run(&mut machine);
        machine.state
    };
    let [all, few] = [run_with(None), run_with(Some(1))];
    assert_eq!(all, few);
}

#[test]
fn nodes_that_start_at_the_same_time_share_the_first_code_of_all() {
    // Two threads look for the code of the first block. One translates the block while the other waits for the lock.
    for round in 0..100 {
        let pool = Arc::default();
        let start = Barrier::new(2);
        let sums = std::thread::scope(|scope| {
            let nodes = [0, 1].map(|_| {
                scope.spawn(|| {
                    let mut machine = sharing(&pool, Translate::After(1), sums);
                    machine.state.control.cr4 |= 0x600;
                    start.wait();
                    run(&mut machine);
                    machine.reg(RAX)
                })
            });
            nodes.map(|node| node.join().expect("a node does not panic"))
        });
        assert_eq!(sums, [300 * 301 / 2; 2], "round {round}");
    }
}
