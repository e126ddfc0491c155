//! Runs of the other measurements' guests under QEMU's TCG.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nodescope_image::NodeCommandLine;

use crate::Failure;
use crate::guest::{Guest, MEMORY};
use crate::host::version_of;
use crate::session::{Mark, Recorder, Session};
use crate::time::{Point, of_process};

const QEMU: &str = "qemu-system-x86_64";

/// Returns the version of QEMU, or a message that it cannot be run.
pub fn version() -> Result<String, String> {
    version_of(QEMU, "qemu-system-x86")
}

/// Returns the frequency of the host's time-stamp counter in kHz, rounded to 1 MHz. TCG's guests read this counter, and this machine type
/// has no timer with which a guest could measure the frequency.
fn host_tsc_khz() -> u64 {
    // SAFETY: every x86-64 processor has RDTSC.
    let read = || unsafe { std::arch::x86_64::_rdtsc() };
    let (start, first) = (Instant::now(), read());
    std::thread::sleep(Duration::from_millis(100));
    let (elapsed, last) = (start.elapsed(), read());
    ((last - first) as f64 / elapsed.as_secs_f64() / 1e6).round() as u64 * 1000
}

/// A QEMU process that is killed when this value is dropped.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a guest with one vCPU until it powers off.
pub fn run(guest: &Guest) -> Result<Session, Failure> {
    let line = NodeCommandLine {
        extra: guest.parameters.clone(),
        ..NodeCommandLine::new(0, 1, host_tsc_khz())
    }
    .to_string();
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
            .arg(&guest.kernel)
            .arg("-initrd")
            .arg(&guest.initramfs)
            .args(["-append", &line])
            .args(["-drive", &drive("r", &guest.root)])
            .args(["-device", "virtio-blk-device,drive=r"])
            .args(["-drive", &drive("j", guest.job.path())])
            .args(["-device", "virtio-blk-device,drive=j"])
            // A network without other members. The guest under nodescope has such a network, too, and Open MPI needs one.
            .args(["-netdev", "hubport,id=n,hubid=0"])
            .args(["-device", "virtio-net-device,netdev=n"])
            .args(["-device", "virtio-rng-device"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(Failure::Files)?,
    );
    let pid = child.0.id();
    let output = child.0.stdout.take().expect("piped above");
    let mut recorder = Recorder::new(&guest.wanted, start);
    let mut console = String::new();
    for text in BufReader::new(output).split(b'\n') {
        let text = String::from_utf8_lossy(&text.map_err(Failure::Files)?).into_owned();
        console += &text;
        console.push('\n');
        let Some(mark) = Mark::parse(&text) else {
            continue;
        };
        let Some(cpu) = of_process(pid) else {
            break;
        };
        recorder.record(mark, Point::with_cpu(cpu), 0);
    }
    recorder
        .finish()
        .map_err(|problem| Failure::Guest(format!("under QEMU {problem}; its console:\n{console}")))
}
