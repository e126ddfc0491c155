//! A guest with a job, the same for nodescope and for QEMU.

use std::path::{Path, PathBuf};

use nodescope_image::{JobFile, job_disk};
use tempfile::NamedTempFile;

use crate::Failure;

/// Memory of a guest in bytes. With 512 MiB or more, Linux gives programs large pages by default, as on most nodes.
pub const MEMORY: u64 = 1 << 30;

/// Channel by which a guest's marks reach nodescope. QEMU has only the console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marks {
    /// Hypercalls, which reach nodescope without a delay by the guest's console.
    Hypercall,
    /// Console lines, for scripts.
    Console,
}

/// A guest to boot, with its job.
pub struct Guest {
    /// Path of the kernel.
    pub kernel: PathBuf,
    /// Path of the first root file system.
    pub initramfs: PathBuf,
    /// Path of the root image.
    pub root: PathBuf,
    /// Contents of the job disk.
    pub disk: Vec<u8>,
    /// File with the contents of the job disk.
    pub job: NamedTempFile,
    /// Kernel parameters in addition to the usual ones.
    pub parameters: Vec<String>,
    /// Names of the parts of the job that are measured.
    pub wanted: Vec<String>,
    /// Channel by which the guest announces the measured parts.
    pub marks: Marks,
}

impl Guest {
    /// Makes a guest from the image in a folder, with a job: a script and the files that the script needs.
    pub fn new(
        image: &Path,
        script: String,
        mut files: Vec<JobFile>,
        wanted: Vec<String>,
        marks: Marks,
    ) -> Result<Self, Failure> {
        files.push(executable("run", script.into_bytes()));
        let disk = job_disk(&files).map_err(|e| Failure::Guest(e.to_string()))?;
        let job = NamedTempFile::new().map_err(Failure::Files)?;
        std::fs::write(job.path(), &disk).map_err(Failure::Files)?;
        Ok(Self {
            kernel: image.join("vmlinux"),
            initramfs: image.join("initramfs.cpio"),
            root: image.join("root.img"),
            disk,
            job,
            parameters: Vec::new(),
            wanted,
            marks,
        })
    }
}

/// Makes a job file that can be executed.
pub fn executable(path: &str, data: Vec<u8>) -> JobFile {
    JobFile {
        path: path.into(),
        mode: 0o755,
        data,
    }
}
