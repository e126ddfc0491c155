//! The same guest under QEMU's TCG.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nodescope_image::{JobFile, NodeCommandLine, job_disk};

use crate::Failure;
use crate::kernels::Mark;
use crate::soft::MEMORY;
use crate::time::{Point, Spent, of_process};

const QEMU: &str = "qemu-system-x86_64";

/// A boot and the kernels in it.
#[derive(Clone, Debug, Default)]
pub struct Session {
    /// From the start of the program to the first kernel.
    pub boot: Spent,
    /// Each kernel.
    pub kernels: BTreeMap<String, Spent>,
}

/// Version of the emulator, or why there is none.
pub fn version() -> Result<String, String> {
    let output = Command::new(QEMU)
        .arg("--version")
        .output()
        .map_err(|e| format!("cannot run {QEMU}: {e}; install qemu-system-x86"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// Frequency of the host's time-stamp counter, which TCG's guests read: this machine type has no timer to find it out by.
fn host_tsc_khz() -> u64 {
    // SAFETY: every x86-64 processor has the instruction.
    let read = || unsafe { std::arch::x86_64::_rdtsc() };
    let (start, first) = (Instant::now(), read());
    std::thread::sleep(Duration::from_millis(100));
    let (elapsed, last) = (start.elapsed(), read());
    ((last - first) as f64 / elapsed.as_secs_f64() / 1e6).round() as u64 * 1000
}

/// Ends the emulator however this ends.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Run the program in a guest with one vCPU.
pub fn run(image: &Path, program: &Path, arguments: &[String]) -> Result<Session, Failure> {
    let script = format!("#!/bin/sh\nexec ./kernels {}\n", arguments.join(" "));
    let file = |path: &str, data| JobFile {
        path: path.into(),
        mode: 0o755,
        data,
    };
    let disk = job_disk(&[
        file("run", script.into_bytes()),
        file("kernels", std::fs::read(program).map_err(Failure::Files)?),
    ])
    .map_err(|e| Failure::Guest(e.to_string()))?;
    let job = tempfile::NamedTempFile::new().map_err(Failure::Files)?;
    std::fs::write(job.path(), &disk).map_err(Failure::Files)?;
    let line = NodeCommandLine::new(0, 1, host_tsc_khz()).to_string();
    let drive = |id: &str, path: &Path| {
        format!(
            "id={id},file={},format=raw,if=none,readonly=on,file.locking=off",
            path.display()
        )
    };
    let start = Point::with_cpu(0.0);
    let mut child = Guard(
        Command::new(QEMU)
            .args([
                "-M",
                "microvm,acpi=on,pit=off,pic=off,rtc=off,isa-serial=on",
            ])
            .args(["-accel", "tcg,thread=single", "-cpu", "max,la57=off"])
            .args(["-m", &(MEMORY >> 20).to_string(), "-smp", "1"])
            .args(["-nographic", "-nodefaults", "-no-user-config", "-no-reboot"])
            .args(["-serial", "stdio"])
            .arg("-kernel")
            .arg(image.join("vmlinux"))
            .arg("-initrd")
            .arg(image.join("initramfs.cpio"))
            .args(["-append", &line])
            .args(["-drive", &drive("r", &image.join("root.img"))])
            .args(["-device", "virtio-blk-device,drive=r"])
            .args(["-drive", &drive("j", job.path())])
            .args(["-device", "virtio-blk-device,drive=j"])
            .args(["-device", "virtio-rng-device"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(Failure::Files)?,
    );
    let pid = child.0.id();
    let output = child.0.stdout.take().expect("piped above");
    let mut session = Session::default();
    let mut open: Option<Point> = None;
    let mut last = String::new();
    for text in BufReader::new(output).split(b'\n') {
        let text = String::from_utf8_lossy(&text.map_err(Failure::Files)?).into_owned();
        let Some(mark) = Mark::parse(&text) else {
            last = text;
            continue;
        };
        let Some(cpu) = of_process(pid) else {
            break;
        };
        let now = Point::with_cpu(cpu);
        if mark.begin {
            if session.kernels.is_empty() {
                session.boot = start.to(now);
            }
            open = Some(now);
        } else if let Some(began) = open.take() {
            session.kernels.insert(mark.kernel, began.to(now));
        }
    }
    if session.kernels.is_empty() {
        return Err(Failure::Guest(format!(
            "QEMU's guest ran no kernel; its last line was: {last}"
        )));
    }
    Ok(session)
}
