//! Tests of the core model with the installed `llvm-mca`.

use iced_x86::code_asm::*;
use nodescope_plugin_core::{Block, Core, CoreError, CoreModel, Options, Reason, Tool, model};
use nodescope_test_needs::{Need, skip};

/// Finds the installed `llvm-mca`. `None`: there is none, and the test is reported as skipped.
fn tool() -> Option<Tool> {
    match Tool::installed() {
        Ok(tool) => Some(tool),
        Err(error @ CoreError::Missing) => {
            skip(Need::Mca, error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn core(name: &str) -> Option<Core> {
    Some(Core::of(&tool()?, name).unwrap())
}

/// Assembles code at 0x1000 and cuts it into blocks. Each piece is a number of instructions and a number of executions.
fn blocks(code: impl FnOnce(&mut CodeAssembler), pieces: &[(usize, u64)]) -> Vec<Block> {
    let mut assembler = CodeAssembler::new(64).unwrap();
    code(&mut assembler);
    let bytes = assembler.assemble(0x1000).unwrap();
    let mut decoder = iced_x86::Decoder::with_ip(64, &bytes, 0x1000, 0);
    pieces
        .iter()
        .map(|(count, executions)| {
            let from = decoder.position();
            let address = decoder.ip();
            for _ in 0..*count {
                let _ = decoder.decode();
            }
            Block {
                address,
                bytes: bytes[from..decoder.position()].to_vec(),
                executions: *executions,
                instructions: *count as u32,
            }
        })
        .collect()
}

fn run(core: &Core, blocks: &[Block]) -> CoreModel {
    let model = model(blocks, core, &Options::default()).unwrap();
    assert_eq!(
        model.cycles,
        model.blocks.iter().map(|b| b.total).sum::<u128>()
    );
    model
}

/// Five dependent additions take five cycles, in one block or in two.
#[test]
fn a_chain_of_additions_takes_its_latency() {
    let Some(core) = core("znver4") else { return };
    let code = |a: &mut CodeAssembler| {
        let mut top = a.create_label();
        a.set_label(&mut top).unwrap();
        for _ in 0..5 {
            a.add(rax, rbx).unwrap();
        }
        a.dec(rcx).unwrap();
        a.jne(top).unwrap();
    };
    let one = blocks(code, &[(7, 1000)]);
    let model = run(&core, &one);
    assert!(model.paths[0].closed);
    assert!(
        (model.blocks[0].per_execution(1000) - 5.0).abs() < 0.01,
        "{model:?}"
    );
    let two = blocks(code, &[(3, 1000), (4, 1000)]);
    let model = run(&core, &two);
    assert_eq!((model.paths.len(), model.paths[0].closed), (1, true));
    assert_eq!(model.paths[0].blocks.len(), 2);
    assert!(
        (model.cycles as f64 / 65536.0 - 5000.0).abs() < 10.0,
        "{model:?}"
    );
}

/// A loop with two branches gives two paths: one on which the branches alternate, and one with only the branch that is taken more often.
#[test]
fn two_ways_of_a_loop_are_two_paths() {
    let Some(core) = core("skylake") else { return };
    let code = |a: &mut CodeAssembler| {
        let mut top = a.create_label();
        let mut other = a.create_label();
        let mut end = a.create_label();
        a.set_label(&mut top).unwrap();
        a.test(rax, 1).unwrap();
        a.jne(other).unwrap();
        a.imul_2(rax, rbx).unwrap();
        a.jmp(end).unwrap();
        a.set_label(&mut other).unwrap();
        a.add(rax, rbx).unwrap();
        a.set_label(&mut end).unwrap();
        a.dec(rcx).unwrap();
        a.jne(top).unwrap();
    };
    let ways = blocks(code, &[(2, 1000), (2, 600), (1, 400), (2, 1000)]);
    let model = run(&core, &ways);
    let paths: Vec<_> = model
        .paths
        .iter()
        .map(|p| (p.blocks.len(), p.closed, p.executions))
        .collect();
    assert_eq!(paths, [(6, true, 400), (3, true, 200)]);
    assert_eq!(model.modelled, model.instructions);
    // The multiplication takes three cycles, the addition one. Each path waits for the result.
    let cycles = model.cycles as f64 / 65536.0;
    assert!((2200.0..2600.0).contains(&cycles), "{cycles}");
}

/// A function that is called twice in a loop occurs twice on the path.
#[test]
fn functions_are_followed_to_their_callers() {
    let Some(core) = core("skylake") else { return };
    let code = |a: &mut CodeAssembler| {
        let mut top = a.create_label();
        let mut function = a.create_label();
        a.set_label(&mut top).unwrap();
        a.call(function).unwrap();
        a.call(function).unwrap();
        a.dec(rcx).unwrap();
        a.jne(top).unwrap();
        a.nop().unwrap();
        a.set_label(&mut function).unwrap();
        for _ in 0..6 {
            a.imul_2(rax, rbx).unwrap();
        }
        a.ret().unwrap();
    };
    let all = blocks(code, &[(1, 100), (1, 100), (2, 100), (1, 0), (7, 200)]);
    let model = run(&core, &all);
    assert_eq!(model.paths.len(), 1, "{model:?}");
    assert!(model.paths[0].closed);
    assert_eq!(model.paths[0].blocks.iter().filter(|b| **b == 4).count(), 2);
    // Twelve dependent multiplications.
    assert!(
        (model.paths[0].cycles as f64 / 65536.0 - 36.0).abs() < 1.0,
        "{model:?}"
    );
    assert_eq!(model.blocks[3].total, 0);
}

/// A long inner loop is a path of its own. A short inner loop is part of the path of the outer loop, with all its iterations.
#[test]
fn short_loops_are_parts_of_the_loops_around_them() {
    let Some(core) = core("haswell") else { return };
    let code = |a: &mut CodeAssembler| {
        let mut outer = a.create_label();
        let mut inner = a.create_label();
        a.set_label(&mut outer).unwrap();
        a.mov(rcx, rdi).unwrap();
        a.xor(eax, eax).unwrap();
        a.set_label(&mut inner).unwrap();
        a.add(rax, rbx).unwrap();
        a.add(rax, rdx).unwrap();
        a.dec(rcx).unwrap();
        a.jne(inner).unwrap();
        a.dec(rsi).unwrap();
        a.jne(outer).unwrap();
    };
    let long = blocks(code, &[(2, 1000), (4, 1_000_000), (2, 1000)]);
    let model = run(&core, &long);
    assert_eq!(model.paths[0].blocks, [1]);
    assert!((model.blocks[1].per_execution(1_000_000) - 2.0).abs() < 0.02);
    assert!(model.coverage() >= 0.99);
    let short = blocks(code, &[(2, 1000), (4, 10_000), (2, 1000)]);
    let model = run(&core, &short);
    assert_eq!(model.paths[0].blocks, [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 0]);
    assert_eq!(model.paths[0].executions, 1000);
    // Each sum starts from zero, so that the core works on two sums at a time.
    assert!(model.blocks[1].per_execution(10_000) < 1.5, "{model:?}");
}

/// Blocks that cannot be modelled report the reason, and are given the mean.
#[test]
fn unmodelled_blocks_take_the_mean() {
    let Some(core) = core("znver3") else { return };
    let mut all = blocks(
        |a| {
            let mut top = a.create_label();
            a.set_label(&mut top).unwrap();
            a.add(rax, rbx).unwrap();
            a.jmp(top).unwrap();
            a.cpuid().unwrap();
            a.vaddpd(zmm1, zmm2, zmm3).unwrap();
            a.nop().unwrap();
        },
        &[(2, 1_000_000), (1, 1_000_000), (1, 1_000_000), (1, 1)],
    );
    all.push(Block {
        address: 7,
        bytes: vec![6],
        executions: 1_000_000,
        instructions: 1,
    });
    let model = run(&core, &all);
    let reasons: Vec<_> = model
        .not_modelled()
        .map(|(index, reason)| (index, reason.clone()))
        .collect();
    assert_eq!(reasons[0], (1, Reason::Instruction("CPUID".into())));
    assert!(
        matches!(&reasons[1], (2, Reason::Refused { instruction, .. }) if instruction.starts_with("vaddpd")),
        "{reasons:?}"
    );
    assert_eq!(reasons[2], (3, Reason::Cold));
    assert_eq!(reasons[3], (4, Reason::Bytes));
    assert!((model.coverage() - 0.4).abs() < 1e-6);
    assert_eq!(model.blocks[1].total * 2, model.blocks[0].total);
    // A loop of an addition and a jump: one cycle.
    assert!((model.blocks[0].per_execution(1_000_000) - 1.0).abs() < 0.01);
    assert!((model.cpi() - 0.5).abs() < 0.01);

    let error = nodescope_plugin_core::model(&all[1..2], &core, &Options::default()).unwrap_err();
    assert!(error.to_string().contains("CPUID"), "{error}");
    assert_eq!(run(&core, &[]).cpi(), 0.0);
}

/// The result is the same with any number of threads, with and without a cache of results, and with a damaged cache of results.
#[test]
fn results_are_the_same_every_time() {
    let Some(core) = core("icelake-server") else {
        return;
    };
    let all = blocks(
        |a| {
            for n in 0..400 {
                a.add(rax, rbx).unwrap();
                a.vmulpd(ymm1, ymm2, ymm3).unwrap();
                if n % 7 == 0 {
                    a.cpuid().unwrap();
                }
                a.mov(rax, qword_ptr(rsi + n)).unwrap();
            }
        },
        &[(17, 100); 60],
    );
    let plain = run(&core, &all);
    let folder = tempfile::tempdir().unwrap();
    let options = |threads| Options {
        cache: Some(folder.path().into()),
        threads,
    };
    for threads in [1, 2, 3] {
        assert_eq!(model(&all, &core, &options(threads)).unwrap(), plain);
    }
    let mut files = 0;
    for (number, entry) in std::fs::read_dir(folder.path()).unwrap().enumerate() {
        let file = entry.unwrap().path();
        files += 1;
        match number % 3 {
            0 => std::fs::write(&file, "{\"Ok\":").unwrap(),
            1 => std::fs::remove_file(&file).unwrap(),
            _ => {}
        }
    }
    assert!(files > 0);
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let (all, core, options) = (all.clone(), core.clone(), options(1));
            std::thread::spawn(move || model(&all, &core, &options).unwrap())
        })
        .collect();
    for worker in workers {
        assert_eq!(worker.join().unwrap(), plain);
    }
}

#[test]
fn names_are_checked() {
    let Some(tool) = tool() else { return };
    let refused = |name: &str| Core::of(&tool, name).unwrap_err().to_string();
    assert!(
        refused("skylak").contains(r#"did you mean "skylake""#),
        "{}",
        refused("skylak")
    );
    assert!(
        refused("k8").contains("knows no timing of \"k8\""),
        "{}",
        refused("k8")
    );
    assert!(refused("generic").contains("not a core"));
    assert!(refused("x86-64-v3").contains("not a core"));
    assert!(refused("native").contains("is no core"));
    assert!(refused("").contains("is no core"));
    assert!(refused("-mattr=+avx").contains("is no core"));
    let near = Core::of(&tool, "nehalem").unwrap();
    assert_eq!(near.schedule(), "sandybridge");
    assert!(
        near.description()
            .ends_with("core nehalem (scheduled as sandybridge)")
    );
    for own in [
        "sandybridge",
        "haswell",
        "skylake",
        "skylake-avx512",
        "icelake-server",
        "znver2",
        "znver3",
    ] {
        assert_eq!(Core::of(&tool, own).unwrap().schedule(), own);
    }
}
