//! Run a job folder on a cluster: `job IMAGE_DIR JOB_DIR NODES VCPUS SECONDS RESULTS [THREADS]`
use std::io::Write;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use nodescope_cluster::{ClusterConfig, Observer, Progress};
use nodescope_fabric::LinkConfig;
use nodescope_image::JobFile;
use nodescope_machine::topology::NodeTopology;
use nodescope_window::{CacheConfig, Measure, MemorySpec, ModelSpec, Trigger, WindowSpec};

struct Watcher {
    start: Instant,
    last: Instant,
}

impl Observer for Watcher {
    fn progress(&mut self, progress: &dyn Fn() -> Progress) {
        if self.last.elapsed().as_secs() >= 10 {
            self.last = Instant::now();
            let p = progress();
            eprintln!(
                "[{:.0} s] {:.3} virtual s, {:?} M instructions, {:?}",
                self.start.elapsed().as_secs_f64(),
                p.virtual_ps as f64 / 1e12,
                p.instructions
                    .iter()
                    .map(|n| n / 1_000_000)
                    .collect::<Vec<_>>(),
                p.phases
            );
        }
    }
    fn message(&mut self, node: u32, text: &str) {
        eprintln!("node {node}: {text}");
    }
    fn console(&mut self, node: u32, bytes: &[u8]) {
        if node == 0 {
            std::io::stdout().write_all(bytes).unwrap();
        }
    }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let image = std::path::PathBuf::from(&args[1]);
    let files: Vec<JobFile> = std::fs::read_dir(&args[2])
        .unwrap()
        .map(|e| {
            let e = e.unwrap();
            JobFile {
                path: e.file_name().into_string().unwrap(),
                mode: if e.file_name() == "run" { 0o755 } else { 0o644 },
                data: std::fs::read(e.path()).unwrap(),
            }
        })
        .collect();
    let env: Vec<String> = std::env::var("GUEST_ENV")
        .unwrap_or_default()
        .split_whitespace()
        .map(|w| format!("nodescope.env.{w}"))
        .collect();
    let vcpus: u32 = args[4].parse().unwrap();
    let sockets = vcpus.min(2);
    let windows = match std::env::var("WINDOW_AT") {
        Ok(t) => vec![WindowSpec {
            name: "w".into(),
            open: Trigger::Time {
                ps: (t.parse::<f64>().unwrap() * 1e12) as u64,
            },
            warm_up: 20_000_000,
            measure: Measure::Instructions(100_000_000),
            models: ModelSpec {
                caches: Some(CacheConfig::xeon_e5_2690()),
                memory: Some(MemorySpec::numa()),
            },
        }],
        Err(_) => Vec::new(),
    };
    let config = ClusterConfig {
        name: "job".into(),
        study_id: "0".into(),
        seed: 1,
        nodes: args[3].parse().unwrap(),
        topology: NodeTopology::uniform(
            sockets,
            vcpus / sockets,
            1,
            (512 << 20) / u64::from(sockets),
        ),
        cpuid: Default::default(),
        nominal_cpi: 65536,
        kernel: image.join("vmlinux"),
        initramfs: image.join("initramfs.cpio"),
        root: image.join("root.img"),
        job_disk: nodescope_image::job_disk(&files).unwrap(),
        link: LinkConfig {
            bandwidth: 10_000_000_000,
            latency_ps: 1_300_000,
        },
        mtu: std::env::var("MTU").map_or(1500, |m| m.parse().unwrap()),
        offload: true,
        capture: false,
        trace: std::env::var("TRACE").is_ok(),
        slots: Vec::new(),
        console: false,
        kernel_parameters: env,
        epoch: 1_700_000_000,
        disk_latency_ns: 20_000,
        disk_bandwidth: 2_000_000_000,
        windows,
        time_limit_ps: (args[5].parse::<f64>().unwrap() * 1e12) as u64,
        host_threads: args.get(7).map_or(2, |t| t.parse().unwrap()),
    };
    let mut watcher = Watcher {
        start: Instant::now(),
        last: Instant::now(),
    };
    match nodescope_cluster::run(
        &config,
        args[6].as_ref(),
        &AtomicBool::new(false),
        &mut watcher,
    ) {
        Ok(o) => eprintln!(
            "{:?} status {:?} {:.3} s {:?} {:?} {:?} {:?}",
            o.ending,
            o.job_status,
            o.virtual_ps as f64 / 1e12,
            o.instructions,
            o.network,
            o.windows.outcomes,
            o.warnings
        ),
        Err(e) => eprintln!("{e}"),
    }
    eprintln!("{:.1} s", watcher.start.elapsed().as_secs_f64());
}
