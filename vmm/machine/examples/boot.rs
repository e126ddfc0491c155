//! Boot one node from a kernel, an initramfs and disk images, with its console on standard output.
//!
//! `boot KERNEL INITRAMFS VCPUS SECONDS 'command line' [DISK…]`
use std::io::Write;
use std::time::Instant;

use nodescope_devices::time::Hertz;
use nodescope_devices::virtio::Device;
use nodescope_devices::virtio::block::{Block, BlockTiming, Disk, Image};
use nodescope_devices::virtio::net::{Net, NetConfig, Offloads};
use nodescope_devices::virtio::rng::Rng;
use nodescope_engine::Vcpu;
use nodescope_engine_soft::{SoftConfig, SoftVcpu};
use nodescope_hypercall::NodeIdentity;
use nodescope_machine::acpi::{PlatformDescription, Trigger, VirtioSlot};
use nodescope_machine::boot::{BootConfig, Initramfs, KernelImage};
use nodescope_machine::node::{Node, NodeParts, NodeStatus};
use nodescope_machine::topology::NodeTopology;
use nodescope_machine::{acpi, boot, cpuid};
use nodescope_memory::Ram;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let vcpus: u32 = args[3].parse().unwrap();
    let seconds: f64 = args[4].parse().unwrap();
    let topology = NodeTopology::uniform(1, vcpus, 1, 512 << 20);
    let ram = Ram::new(&topology.socket_memory).unwrap();
    let mut virtio = Vec::new();
    for disk in &args[6..] {
        let image = Image::open(disk.as_ref()).unwrap();
        let timing = BlockTiming {
            clock: Hertz::new(topology.tsc_hz).unwrap(),
            latency_ns: 20_000,
            bytes_per_second: None,
        };
        virtio.push(Device::Block(Block::new(
            Disk::read_only(image),
            "disk",
            timing,
        )));
    }
    virtio.push(Device::Net(Net::new(NetConfig {
        mac: [2, 0, 0, 0, 0, 1],
        mtu: 1500,
        offloads: Offloads::default(),
        backlog: 1024,
    })));
    virtio.push(Device::Rng(Rng::new([7; 32])));
    let mut platform = PlatformDescription::default();
    for i in 0..virtio.len() {
        platform.virtio.push(VirtioSlot {
            base: 0xd000_0000 + 0x1000 * i as u64,
            size: 0x1000,
            gsi: 5 + i as u32,
            trigger: Trigger::Level,
        });
    }
    let tables = acpi::build(&topology, ram.numa(), &platform).unwrap();
    let kernel = KernelImage::open(args[1].as_ref()).unwrap();
    let initramfs = Initramfs::open(args[2].as_ref()).unwrap();
    let line = args[5].replace("KHZ", &(topology.tsc_hz / 1000).to_string());
    let boot = boot::load(
        &ram,
        &BootConfig {
            kernel: &kernel,
            initramfs: Some(&initramfs),
            command_line: &line,
            acpi: &tables,
        },
    )
    .unwrap();
    let cpuids = cpuid::tables(&topology, &Default::default()).unwrap();
    let vcpus = cpuids
        .into_iter()
        .enumerate()
        .map(|(i, cpuid)| {
            Box::new(SoftVcpu::new(SoftConfig {
                id: i as u16,
                ram: ram.clone(),
                cpuid,
                cpi: 65536,
                seed: 1 + i as u64,
            })) as Box<dyn Vcpu>
        })
        .collect();
    let hz = topology.tsc_hz;
    let mut node = Node::new(NodeParts {
        index: 0,
        topology,
        platform,
        ram,
        vcpus,
        boot: boot.state,
        virtio,
        epoch: 1_700_000_000,
        identity: NodeIdentity {
            node: 0,
            nodes: 1,
            vcpus: 1,
            seed: 1,
            ipv4: [10, 0, 0, 1],
            prefix: 24,
            mac: [2, 0, 0, 0, 0, 1],
            name: "node0".into(),
            text: String::new(),
        },
    })
    .unwrap();
    let start = Instant::now();
    let step = hz / 100;
    let mut target = 0;
    while (target as f64) < seconds * hz as f64 {
        target += step;
        let result = node.run_until(target);
        std::io::stdout().write_all(&node.take_console()).unwrap();
        std::io::stdout().flush().unwrap();
        match result {
            Ok(NodeStatus::Running) => {}
            other => {
                eprintln!("\n{other:?}");
                if let Err(e) = other {
                    eprintln!("{e}");
                }
                break;
            }
        }
    }
    let wall = start.elapsed().as_secs_f64();
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let s = stat.split(' ').nth(13).unwrap().parse::<f64>().unwrap() / 100.0;
    let n = node.instructions();
    eprintln!(
        "\n{n} instructions, {:.2} virtual s, {s:.2} s of CPU ({wall:.2} s), {:.1} M/s",
        node.now() as f64 / hz as f64,
        n as f64 / s / 1e6
    );
    for v in 0..args[3].parse().unwrap() {
        let st = node.vcpu_state(v);
        eprintln!(
            "vcpu {v}: rip {:#x} {:?} rflags {:#x}",
            st.general.rip, st.events.mp, st.general.rflags
        );
    }
}
