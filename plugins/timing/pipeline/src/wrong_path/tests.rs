use super::*;
use crate::decode;
use crate::description::Core;

/// Returns events of these instructions of a block at `start`, in this order of execution; all branches are taken whose successor is not the
/// instruction behind them.
fn events<'a>(block: &'a [Instruction], start: u64, order: &[usize]) -> Vec<Event<'a>> {
    let address = |n: usize| {
        let before = block[..n].iter();
        start + before.map(|i| u64::from(i.length)).sum::<u64>()
    };
    let event = |(at, &n): (usize, &usize)| Event {
        address: address(n),
        instruction: &block[n],
        accesses: &[],
        answers: &[],
        first_access: 0,
        translation: [0; 2],
        mispredicted: false,
        wrong_path: None,
        taken: order.get(at + 1).is_some_and(|&next| next != n + 1),
        interrupted: false,
        repeats: 0,
    };
    order.iter().enumerate().map(event).collect()
}

/// A loop of `cmp [rax], ebx`, `jl` over `mov ecx, edx`, `add rax, 4`, `dec rsi`, `jnz` back.
fn conditional_body() -> Vec<Instruction> {
    let bytes = [
        0x39, 0x18, 0x7c, 0x02, 0x89, 0xd1, 0x48, 0x83, 0xc0, 0x04, 0x48, 0xff, 0xce, 0x75, 0xf1,
    ];
    decode(&bytes, 64, 0x1000, &Core::preset("zen4").unwrap())
}

fn code<'a>(executed: &[Event<'a>]) -> Code<'a> {
    let mut code = Code::default();
    for event in executed {
        code.add(event.address, event.instruction);
        code.note(event);
    }
    code
}

#[test]
fn ways_meet_behind_the_body_of_an_if() {
    let block = conditional_body();
    assert_eq!(block[5].target, 0x1000);
    let order = [0, 1, 2, 3, 4, 5, 0, 1, 3, 4, 5, 0, 1, 2, 3];
    let executed = events(&block, 0x1000, &order);
    let code = code(&executed);
    // The body runs, and the branch over it was predicted.
    let path = code.wrong_path(&executed[1], &executed[2..]).unwrap();
    assert_eq!((path.wrong, path.right), (0, 1));
    assert!(path.changed.has(1), "RCX");
    assert!(!path.changed.has(0) && !path.changed.has(3), "RAX and RBX");
    // The body does not run, but was predicted. It runs in the next iteration, but the ways meet before.
    let path = code.wrong_path(&executed[7], &executed[8..]).unwrap();
    assert_eq!((path.wrong, path.right), (1, 0));
    assert!(path.changed.has(1), "RCX");
}

#[test]
fn ways_meet_in_the_next_iteration_of_a_loop() {
    let block = conditional_body();
    let executed = events(&block, 0x1000, &[0, 1, 3, 4, 5, 0, 1, 3, 4, 5, 0]);
    // The loop goes on, and its end was predicted: what is behind it was never executed.
    let code = code(&executed);
    assert_eq!(code.wrong_path(&executed[4], &executed[5..]), None);
    // Only conditional branches have two ways.
    assert_eq!(code.wrong_path(&executed[0], &executed[1..]), None);
}

#[test]
fn code_that_was_never_executed_is_not_followed() {
    let block = conditional_body();
    let executed = events(&block, 0x1000, &[0, 1, 3, 4, 5]);
    assert_eq!(
        code(&executed).wrong_path(&executed[1], &executed[2..]),
        None
    );
}
