//! probe
use nodescope_cluster::build::build;
use nodescope_guest_tests::{cluster, compile, image, program, script};
use nodescope_machine::topology::NodeTopology;
use nodescope_symbols::*;
use std::collections::BTreeMap;
fn main() {
    let image = image().unwrap();
    let kernel = GuestKernel::new(&std::fs::read(&image.vmlinux).unwrap()).unwrap();
    let spin = compile("gcc", "spin.c", &["-O2", "-g"]).unwrap();
    let mut job = script(
        "#!/bin/sh\ncp /job/spin /tmp/spin2\n/job/spin 200000; /tmp/spin2 200000; ls -lR /usr/bin > /dev/null; cat /proc/self/maps; cat /proc/mounts\n",
    );
    job.push(program("spin", spin.clone()));
    let config = cluster(image, 1, NodeTopology::uniform(1, 1, 1, 256 << 20), &job);
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    std::fs::write(&disk, &config.job_disk).unwrap();
    let (_, mut nodes) = build(&config, &disk).unwrap();
    let node = &mut nodes[0];
    let ram = node.ram().clone();
    let memory = |a: u64, b: &mut [u8]| ram.read(a, b);
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    let mut tmp = None;
    while node.now() < 8 * node.clock().hz {
        let status = node
            .run_until(node.now() + 500_000 + node.now() % 7919)
            .unwrap();
        print!("{}", String::from_utf8_lossy(&node.take_console()));
        if status != nodescope_machine::node::NodeStatus::Running {
            break;
        }
        let s = node.vcpu_state(0);
        let ip = s.general.rip;
        let p = translate(&memory, s.control.cr3, ip);
        let f = p.and_then(|p| kernel.file_of(&memory, p));
        let user = s.segments.data[nodescope_x86::state::seg::CS].selector & 3 == 3;
        let gs = if user {
            s.msrs.kernel_gs_base
        } else {
            s.segments.data[nodescope_x86::state::seg::GS].base
        };
        let task = kernel.current(&memory, gs);
        let what = match &f {
            Some(FilePage::File { file, .. }) => {
                if file.path.contains("spin2") {
                    tmp = Some(file.clone());
                }
                format!("{file:?}")
            }
            Some(FilePage::Kernel { .. }) => "kernel".into(),
            Some(FilePage::Module {
                name,
                module,
                address,
                ..
            }) => format!(
                "{name} {:?}",
                kernel
                    .module_function(&memory, *module, *address)
                    .map(|s| s.name)
            ),
            other => format!(
                "{other:?} {} {:x}",
                user,
                if other.is_none() { ip } else { 0 }
            ),
        };
        *seen
            .entry(what + &format!(" {:?}", task.map(|t| t.name)))
            .or_default() += 1;
        if let Some(id) = &tmp {
            let c = kernel.read_file(&memory, id);
            println!(
                "tmp {:?} same {}",
                c.as_ref().map(|c| c.len()),
                c.as_deref() == Some(&spin)
            );
            tmp = None;
        }
    }
    for (w, n) in seen {
        println!("{n:6} {w}");
    }
    println!("{:?}", kernel.modules(&memory));
}
