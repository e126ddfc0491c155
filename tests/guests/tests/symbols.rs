//! Test that code of the guest gets names, from outside the guest. While the guest boots and runs a program, each sampled address gets a
//! name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nodescope_cluster::build::build;
use nodescope_guest_tests::{cluster, compile, image, program, script, small_node};
use nodescope_machine::node::NodeStatus;
use nodescope_symbols::{
    FilePage, GuestKernel, ListedFiles, MemoryFiles, Registers, RootImage, Sample, Sources,
    Symbolizer, Unwinder, read_linear, read_up_to, translate,
};
use nodescope_x86::state::seg;

/// Cycles between two samples.
const STEP: u64 = 100_003;
/// Largest number of bytes of code that are compared with the file's contents at a sample.
const CODE: u64 = 16;
/// Largest number of bytes of stack that are copied for a call path.
const STACK: usize = 64 << 10;
/// Index of RSP among the general registers; `RBP` is that of RBP.
const RSP: usize = 4;
const RBP: usize = 5;

/// Names that were found for the samples.
#[derive(Default)]
struct Seen {
    /// By program and module: number of samples whose code agrees with the file, and number of all samples.
    modules: BTreeMap<(String, String), (u64, u64)>,
    /// Names of functions, with the functions that are inlined in them, by program.
    functions: BTreeMap<String, BTreeSet<String>>,
    /// Call paths of the samples as text, innermost function first, by program.
    paths: BTreeMap<String, BTreeSet<String>>,
    /// Number of samples in the kernel or its modules.
    kernel: u64,
    /// Programs and addresses of samples for which no file was found.
    nameless: BTreeSet<String>,
    /// Contents of files on the guest's tmpfs, which exist only in guest memory.
    read: BTreeMap<String, Arc<[u8]>>,
}

#[test]
fn code_of_every_kind_has_names() {
    let Some(image) = image() else { return };
    let Some(places) = compile("gcc", "places.c", &["-O2", "-g"]) else {
        return;
    };
    let mut job = script(
        "#!/bin/sh\nset -e\n/job/places 300\ncp /job/places /tmp/copied\n/tmp/copied 200\n/bin/busybox find /usr/share > /dev/null\n",
    );
    job.push(program("places", places.clone()));
    let config = cluster(image, 1, small_node(128), &job);
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    std::fs::write(&disk, &config.job_disk).unwrap();
    let (_, mut nodes) = build(&config, &disk).unwrap();
    let node = &mut nodes[0];
    let ram = node.ram().clone();
    let memory = |address: u64, buf: &mut [u8]| ram.read(address, buf);

    let kernel = GuestKernel::new(&std::fs::read(&image.vmlinux).unwrap()).unwrap();
    check_symbols(&kernel);
    let root = RootImage::new(&image.root);
    let mut listed = ListedFiles::default();
    listed.insert("/job/places", places.clone());
    let in_memory = MemoryFiles::new(&kernel, &memory);
    let files = Sources(vec![&root, &listed, &in_memory]);
    let mut symbolizer = Symbolizer::new();
    let mut unwinder = Unwinder::new();
    let mut seen = Seen::default();
    let mut console = Vec::new();
    while node.run_until(node.now() + STEP).unwrap() == NodeStatus::Running {
        console.extend(node.take_console());
        assert!(node.now() < 20 * node.clock().hz);
        let state = node.vcpu_state(0);
        let (ip, cr3) = (state.general.rip, state.control.cr3);
        let user = state.segments.data[seg::CS].selector & 3 == 3;
        let gs = match user {
            true => state.msrs.kernel_gs_base,
            false => state.segments.data[seg::GS].base,
        };
        let task = kernel.current(&memory, gs);
        let name = task
            .as_ref()
            .map_or("none".into(), |task| task.name.clone());
        let Some(physical) = translate(&memory, cr3, ip) else {
            continue;
        };
        let page = kernel.file_of(&memory, physical);
        let Some(page) = page else {
            seen.nameless.insert(format!("{name} {ip:#x}"));
            continue;
        };
        // Bytes of code, at most up to the end of the page.
        let mut code = vec![0; CODE.min(4096 - ip % 4096) as usize];
        assert!(read_linear(&memory, cr3, ip, &mut code).is_some());
        let place = symbolizer.locate_page(&files, &kernel, &memory, &page, &code);
        let module = (name.clone(), place.module.clone());
        let counts = seen.modules.entry(module).or_default();
        counts.0 += u64::from(place.verified);
        counts.1 += 1;
        let mut function = place.function.clone();
        for frame in place.inlined.iter().rev() {
            function += &format!("/{}", frame.function);
        }
        seen.functions
            .entry(name.clone())
            .or_default()
            .insert(function.clone());
        if let FilePage::File { file, .. } = &page
            && file.file_system == "tmpfs"
            && !seen.read.contains_key(&file.path)
        {
            let bytes = kernel.read_file(&memory, file).expect("a file in memory");
            seen.read.insert(file.path.clone(), bytes.into());
        }
        // Registers of the thread's user code: at the sample, or at the entry into the kernel.
        let registers = match (user, &task) {
            (true, _) => Some(Registers {
                ip,
                sp: state.general.gpr[RSP],
                bp: state.general.gpr[RBP],
            }),
            (false, Some(task)) => kernel.user_registers(&memory, task),
            _ => None,
        };
        seen.kernel += u64::from(!user);
        if let Some(registers) = registers
            && (name == "places" || name == "copied")
        {
            let stack = read_up_to(&memory, cr3, registers.sp, STACK);
            let sample = Sample {
                registers,
                stack: &stack,
            };
            let mut resolve = |address| kernel.file_at(&memory, cr3, address);
            let path = unwinder.unwind(&files, &sample, &mut resolve);
            let mut text = function;
            for call in path {
                let place = symbolizer.locate_page(&files, &kernel, &memory, &call.page, &[]);
                text += &format!(" < {}", place.function);
            }
            seen.paths.entry(name).or_default().insert(text);
        }
    }
    console.extend(node.take_console());
    let console = String::from_utf8_lossy(&console);
    assert!(console.contains("job ends with status 0"), "{console}");
    for (module, counts) in &seen.modules {
        println!("{module:?} {counts:?}");
    }
    println!("nameless {:?}", seen.nameless);
    println!("{:?}", seen.functions["places"]);
    for path in &seen.paths["places"] {
        println!("{path}");
    }
    check(&seen, &places);
}

/// Checks the addresses, sizes and names of functions that every kernel has.
fn check_symbols(kernel: &GuestKernel) {
    let symbols = kernel.symbols();
    assert!(symbols.len() > 50_000);
    for name in [
        "start_kernel",
        "do_syscall_64",
        "memcpy",
        "__x64_sys_read",
        "schedule",
    ] {
        let address = symbols.address(name).unwrap();
        let function = kernel.function(address + 1).unwrap();
        assert_eq!(function.address, address, "{name}");
        assert!(
            function
                .size
                .is_some_and(|size| (2..1 << 16).contains(&size)),
            "{function:?}"
        );
        if name != "memcpy" {
            assert_eq!(function.name, name);
        }
    }
    assert_eq!(symbols.address("_text"), Some(0xffff_ffff_8100_0000));
    // No function is at data or at an address outside the kernel.
    assert!(
        kernel
            .function(symbols.address("init_task").unwrap())
            .is_none()
    );
    assert!(kernel.function(u64::MAX).is_none() && kernel.function(0).is_none());
}

fn check(seen: &Seen, places: &[u8]) {
    assert!(seen.nameless.is_empty(), "{:?}", seen.nameless);
    // All code that comes from files agrees with the files.
    for ((name, module), (verified, all)) in &seen.modules {
        let made = module == "[anonymous]";
        assert_eq!(*verified, if made { 0 } else { *all }, "{module} in {name}");
    }
    let count = |name: &str, module: &str| {
        let counts = seen.modules.get(&(name.into(), module.into()));
        counts.map_or(0, |counts| counts.1)
    };
    let libc = "/usr/lib/x86_64-linux-gnu/libc.so.6";
    for (name, own) in [("places", "/job/places"), ("copied", "/tmp/copied")] {
        for module in [own, libc, "[kernel]", "[vdso]", "[anonymous]"] {
            assert!(count(name, module) > 0, "{module} in {name}");
        }
        let functions = &seen.functions[name];
        assert!(functions.contains("work/mix"), "{functions:?}");
        assert!(functions.contains("__vdso_clock_gettime"), "{functions:?}");
        // For each kind of code there is a call path to the program's entry point.
        for (first, caller) in [
            ("work/mix", "main"),
            ("libc.so.6+", "library"),
            ("__vdso_clock_gettime", "clock"),
            ("[anonymous]", "made"),
        ] {
            let paths = &seen.paths[name];
            let fits = |path: &&String| {
                path.starts_with(first)
                    && path.contains(&format!(" < {caller}"))
                    && path.contains(" < main < libc.so.6+")
                    && path.ends_with(" < __libc_start_main < _start")
            };
            assert!(paths.iter().any(|path| fits(&path)), "{first} {paths:#?}");
        }
    }
    assert_eq!(&*seen.read["/upper/job/places"], places);
    assert_eq!(&*seen.read["/copied"], places);
    assert!(seen.modules.keys().any(|(_, module)| module == "[overlay]"));
}
