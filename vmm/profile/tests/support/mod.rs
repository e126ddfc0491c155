//! A constructed profile of a stencil program with two ranks on two nodes. It has MPI, a stripped library, the kernel and code without a
//! file.

#![allow(dead_code, reason = "not every test file uses everything")]

use std::collections::BTreeMap;

use nodescope_plugin_api::{BlockCounts, Charges};
use nodescope_profile::{
    Block, ContextLabel, Count, Function, Inlined, Labels, Module, ModuleKind, Path, SourceLine,
    SourceRange, WindowProfile,
};

/// Indices of functions in the profile.
pub const MAIN: u32 = 0;
pub const RELAX: u32 = 1;
pub const RESIDUAL: u32 = 2;
pub const BLAS: u32 = 3;
pub const PROGRESS: u32 = 4;
pub const ALLREDUCE: u32 = 5;
pub const SEND: u32 = 6;
pub const MEMCPY: u32 = 7;
pub const SYSCALL: u32 = 8;
pub const TCP: u32 = 9;
pub const JIT: u32 = 10;
pub const TEMPLATE: u32 = 11;
pub const IDLE: u32 = 12;

/// Node and index of each context. Node 0 has other processes, rank 0, and rank 0 in MPI_Allreduce; node 1 has rank 1, rank 1 in MPI_Send,
/// and other processes.
pub const CONTEXTS: [(u32, u32); 6] = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)];

const LONG: &str = "void grid::apply<grid::Field<double, 3ul>, grid::Boundary<(grid::Side)2> >(grid::Field<double, 3ul>&, std::vector<grid::Boundary<(grid::Side)2>, std::allocator<grid::Boundary<(grid::Side)2> > > const&)";

fn function(module: u32, name: &str, start: u64, named: bool) -> Function {
    Function {
        module,
        name: name.into(),
        start,
        named,
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    hex.split_whitespace()
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect()
}

struct Shape {
    function: u32,
    offset: u64,
    code: &'static str,
    instructions: u32,
    loads: u32,
    stores: u32,
    flops: [u32; 7],
}

fn block(
    modules: &[Module],
    functions: &[Function],
    shape: Shape,
    source_ranges: Vec<SourceRange>,
) -> Block {
    let module = functions[shape.function as usize].module;
    let kernel = modules[module as usize].kind == ModuleKind::Kernel;
    let base = match modules[module as usize].kind {
        ModuleKind::File | ModuleKind::Vdso => 0x7f00_0000_0000 + u64::from(module) * 0x1000_0000,
        _ => 0,
    };
    Block {
        module,
        offset: shape.offset,
        address: base + shape.offset,
        function: shape.function,
        kernel,
        bits: 64,
        bytes: bytes(shape.code),
        instructions: shape.instructions,
        loads: shape.loads,
        stores: shape.stores,
        flops: shape.flops,
        source_ranges,
    }
}

fn range(first: u32, line: u32, inlined: &[(&str, u32)]) -> SourceRange {
    SourceRange {
        first,
        line: Some(line),
        inlined: inlined
            .iter()
            .map(|(function, line)| Inlined {
                function: (*function).into(),
                called_from: Some(*line),
            })
            .collect(),
    }
}

fn counts(executions: u64, answers: [u64; 5], cycles: [u64; 6]) -> BlockCounts {
    BlockCounts {
        executions,
        charges: Charges { answers, cycles },
        ..BlockCounts::default()
    }
}

/// Returns the profile, with this name of its window.
pub fn profile(name: &str) -> WindowProfile {
    let module = |kind, name: &str, id: Option<&str>| Module {
        kind,
        name: name.into(),
        build_id: id.map(str::to_owned),
    };
    let modules = vec![
        module(ModuleKind::File, "/home/user/heat/solver", Some("6fd1c0de")),
        module(
            ModuleKind::File,
            "/usr/lib/x86_64-linux-gnu/openblas-pthread/libblas.so.3",
            Some("0badc0de"),
        ),
        module(
            ModuleKind::File,
            "/usr/lib/x86_64-linux-gnu/libmpi.so.40.30.4",
            None,
        ),
        module(
            ModuleKind::File,
            "/usr/lib/x86_64-linux-gnu/libc.so.6",
            None,
        ),
        module(ModuleKind::Kernel, "[kernel]", None),
        module(ModuleKind::Anonymous, "[anonymous]", None),
    ];
    let functions = vec![
        function(0, "main", 0x1200, true),
        function(
            0,
            "relax(double*, double const*, unsigned long)",
            0x1500,
            true,
        ),
        function(0, "residual(grid::Field<double, 3ul> const&)", 0x1700, true),
        function(1, "libblas.so.3+0x5a3c0", 0x5a3c0, false),
        function(2, "opal_progress", 0x2_1000, true),
        function(2, "PMPI_Allreduce", 0x3_2000, true),
        function(2, "PMPI_Send", 0x3_8000, true),
        function(3, "__memmove_avx_unaligned_erms", 0x16_0000, true),
        function(4, "entry_SYSCALL_64", 0xffff_ffff_8200_0000, true),
        function(4, "tcp_sendmsg_locked", 0xffff_ffff_81a0_0000, true),
        function(5, "[anonymous]+0x7f5512340000", 0x7f55_1234_0000, false),
        function(0, LONG, 0x1a00, true),
        function(4, "pv_native_safe_halt", 0xffff_ffff_8210_0000, true),
    ];
    let line = |file: &str, line| SourceLine {
        file: file.into(),
        line,
    };
    let lines = vec![
        line("/home/user/heat/src/solver.cpp", 41),
        line("/home/user/heat/src/solver.cpp", 42),
        line("/home/user/heat/src/grid.hpp", 17),
        line("/home/user/heat/src/solver.cpp", 60),
        line("/home/user/heat/src/main.cpp", 12),
        line("/home/user/heat/src/grid.hpp", 88),
    ];
    let shapes = [
        // main
        (
            Shape {
                function: MAIN,
                offset: 0x1210,
                code: "48 89 df e8 e8 02 00 00",
                instructions: 2,
                loads: 0,
                stores: 1,
                flops: [0; 7],
            },
            vec![range(0, 4, &[])],
        ),
        // relax: the loop
        (
            Shape {
                function: RELAX,
                offset: 0x1540,
                code: "c5 fd 10 04 06 c4 e2 f5 b8 04 07 c5 fd 11 04 07 48 83 c0 20 48 39 d0 75 e7",
                instructions: 6,
                loads: 2,
                stores: 1,
                flops: [0, 0, 0, 0, 0, 0, 8],
            },
            vec![
                range(
                    0,
                    2,
                    &[("grid::Field<double, 3ul>::at(unsigned long) const", 2)],
                ),
                range(1, 1, &[]),
                range(3, 0, &[]),
            ],
        ),
        // residual
        (
            Shape {
                function: RESIDUAL,
                offset: 0x1720,
                code: "f2 0f 10 06 f2 0f 5c 07 f2 0f 59 c0 f2 0f 58 c8 48 83 c6 08 48 39 d6 75 e7",
                instructions: 7,
                loads: 2,
                stores: 0,
                flops: [0, 0, 3, 0, 0, 0, 0],
            },
            vec![range(0, 3, &[])],
        ),
        // libblas, stripped
        (
            Shape {
                function: BLAS,
                offset: 0x5a400,
                code: "c5 fd 28 0e c5 fd 58 c1 48 83 c6 20 48 ff c9 75 ef",
                instructions: 5,
                loads: 1,
                stores: 0,
                flops: [0, 0, 0, 0, 0, 0, 4],
            },
            Vec::new(),
        ),
        // opal_progress
        (
            Shape {
                function: PROGRESS,
                offset: 0x2_1010,
                code: "48 8b 05 e9 ff 00 00 48 85 c0 74 05 f3 90",
                instructions: 4,
                loads: 1,
                stores: 0,
                flops: [0; 7],
            },
            Vec::new(),
        ),
        (
            Shape {
                function: ALLREDUCE,
                offset: 0x3_2040,
                code: "41 57 41 56 55 53 48 83 ec 28 e8 00 00 00 00",
                instructions: 6,
                loads: 0,
                stores: 5,
                flops: [0; 7],
            },
            Vec::new(),
        ),
        (
            Shape {
                function: SEND,
                offset: 0x3_8040,
                code: "55 48 89 e5 0f 05",
                instructions: 3,
                loads: 0,
                stores: 1,
                flops: [0; 7],
            },
            Vec::new(),
        ),
        (
            Shape {
                function: MEMCPY,
                offset: 0x16_0040,
                code: "f3 a4 c3",
                instructions: 2,
                loads: 1,
                stores: 0,
                flops: [0; 7],
            },
            Vec::new(),
        ),
        (
            Shape {
                function: SYSCALL,
                offset: 0xffff_ffff_8200_0000,
                code: "0f 01 f8 65 48 89 24 25 14 60 00 00",
                instructions: 2,
                loads: 0,
                stores: 1,
                flops: [0; 7],
            },
            Vec::new(),
        ),
        (
            Shape {
                function: TCP,
                offset: 0xffff_ffff_81a0_0040,
                code: "48 8b 47 18 48 89 46 08 c3",
                instructions: 3,
                loads: 2,
                stores: 1,
                flops: [0; 7],
            },
            Vec::new(),
        ),
        (
            Shape {
                function: JIT,
                offset: 0x7f55_1234_0010,
                code: "ff c8 75 fc",
                instructions: 2,
                loads: 0,
                stores: 0,
                flops: [0; 7],
            },
            Vec::new(),
        ),
        (
            Shape {
                function: TEMPLATE,
                offset: 0x1a20,
                code: "f2 0f 10 06 f2 0f 59 07 f2 0f 11 07 c3",
                instructions: 4,
                loads: 3,
                stores: 1,
                flops: [0, 0, 1, 0, 0, 0, 0],
            },
            vec![range(0, 5, &[])],
        ),
        (
            Shape {
                function: IDLE,
                offset: 0xffff_ffff_8210_0000,
                code: "fb f4 c3",
                instructions: 3,
                loads: 1,
                stores: 0,
                flops: [0; 7],
            },
            Vec::new(),
        ),
    ];
    let blocks = shapes
        .into_iter()
        .map(|(shape, source_ranges)| block(&modules, &functions, shape, source_ranges))
        .collect();

    let mut all = Vec::new();
    let mut add = |node, context, block, counts| {
        all.push(Count {
            node,
            context,
            block,
            counts,
        });
    };
    // Answers: L2, L3, another cache, local memory, remote memory. Stalls: L1, L2, L3, local memory, remote memory, unattributed.
    for (node, context, scale) in [(0, 1, 1), (1, 0, 2)] {
        add(node, context, 0, counts(200, [0; 5], [0; 6]));
        add(
            node,
            context,
            1,
            counts(
                400_000 * scale,
                [90_000, 30_000, 200, 20_000, 5000].map(|n| n * scale),
                [330_003, 480_001, 700_000, 2_000_000, 1_100_000, 0].map(|n| n * scale),
            ),
        );
        let mut sum = counts(
            150_000 * scale,
            [30_000, 2000, 0, 900, 100].map(|n| n * scale),
            [99_000, 20_000, 31_000, 90_000, 22_000, 0].map(|n| n * scale),
        );
        // One execution was cut short by a timer interrupt.
        sum.partial.executions = 1;
        sum.partial.instructions = 3;
        sum.partial.loads = 2;
        add(node, context, 2, sum);
        add(
            node,
            context,
            3,
            counts(250_000, [1000, 0, 0, 10, 0], [3000, 500, 0, 1000, 0, 17]),
        );
        add(
            node,
            context,
            11,
            counts(
                20_000 * scale,
                [0, 0, 0, 4000, 2000],
                [0, 0, 0, 400_000, 440_000, 0],
            ),
        );
        add(node, context, 8, counts(300, [0; 5], [0; 6]));
    }
    let mut copy = counts(800, [0, 0, 0, 600, 0], [0, 0, 0, 60_000, 0, 0]);
    copy.long_cycles = 40_000;
    copy.more_loads = 51_200;
    copy.more_stores = 51_200;
    for (node, context, call) in [(0, 2, 5), (1, 1, 6)] {
        add(node, context, call, counts(120, [0; 5], [0; 6]));
        add(
            node,
            context,
            4,
            counts(130_000, [7000, 0, 100, 0, 0], [21_000, 0, 900, 0, 0, 0]),
        );
        add(node, context, 7, copy);
        add(node, context, 8, counts(120, [0; 5], [0; 6]));
        add(
            node,
            context,
            9,
            counts(9000, [400, 0, 0, 90, 0], [1200, 0, 0, 9000, 0, 0]),
        );
    }
    add(
        0,
        0,
        10,
        counts(90_000, [10, 0, 0, 0, 0], [30, 0, 0, 0, 0, 0]),
    );
    add(0, 0, 12, counts(50, [0; 5], [0; 6]));
    add(1, 2, 12, counts(70, [0; 5], [0; 6]));

    let path = |node, context, functions: &[u32], samples| Path {
        node,
        context,
        functions: functions.to_vec(),
        samples,
        times: Vec::new(),
    };
    let mut paths = Vec::new();
    for (node, context) in [(0, 1), (1, 0)] {
        paths.extend([
            path(node, context, &[MAIN], 1),
            path(node, context, &[MAIN, RELAX], 61),
            path(node, context, &[MAIN, TEMPLATE, RELAX], 9),
            path(node, context, &[MAIN, RESIDUAL], 16),
            path(node, context, &[MAIN, RESIDUAL, BLAS], 15),
            path(node, context, &[MAIN, TEMPLATE], 7),
        ]);
    }
    for (node, context, call) in [(0, 2, ALLREDUCE), (1, 1, SEND)] {
        paths.extend([
            path(node, context, &[MAIN, call, PROGRESS], 24),
            path(node, context, &[MAIN, call, MEMCPY], 5),
            path(node, context, &[MAIN, call, SYSCALL, TCP], 3),
        ]);
    }
    WindowProfile {
        name: name.into(),
        modules,
        functions,
        lines,
        blocks,
        counts: all,
        paths,
        contended: Vec::new(),
        notes: vec!["libblas.so.3 has no symbols".into()],
    }
}

/// Returns the owners of the contexts.
pub fn labels() -> Labels {
    let label = |node, frames: &[&str], rank, mpi: Option<&str>| ContextLabel {
        frames: frames.iter().map(|&frame| frame.into()).collect(),
        node,
        rank,
        program: rank.map(|_| "solver".into()),
        mpi: mpi.map(str::to_owned),
    };
    let all = [
        label(0, &["others node0"], None, None),
        label(0, &["rank 0"], Some(0), None),
        label(
            0,
            &["rank 0", "MPI_Allreduce"],
            Some(0),
            Some("MPI_Allreduce"),
        ),
        label(1, &["rank 1"], Some(1), None),
        label(1, &["rank 1", "MPI_Send"], Some(1), Some("MPI_Send")),
        label(1, &["others node1"], None, None),
    ];
    BTreeMap::from_iter(CONTEXTS.into_iter().zip(all))
}
