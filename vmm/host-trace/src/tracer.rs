//! The tracers' libraries, built on this machine: for its MPI, and for OpenMP.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use crate::HostTraceError;

/// An MPI whose programs can be traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mpi {
    /// The Open MPI library.
    OpenMpi,
    /// MPICH, and others of its ABI.
    Mpich,
    /// The standard ABI of MPI 5: programs that are linked with `libmpi_abi.so.1`.
    StandardAbi,
}

impl Mpi {
    /// Returns the name in the tracer's files.
    pub fn name(self) -> &'static str {
        match self {
            Mpi::OpenMpi => "openmpi",
            Mpi::Mpich => "mpich",
            Mpi::StandardAbi => "abi",
        }
    }

    /// Returns the MPI that a launcher's answer to `--version` names; None if it names neither. A program that the launcher starts may
    /// still be one of the standard ABI: this MPI's tracer then gives way to the other tracer, which the same build makes.
    pub fn of_version(text: &str) -> Option<Mpi> {
        let has = |names: &[&str]| names.iter().any(|name| text.contains(name));
        if has(&["Open MPI", "OpenRTE", "PRRTE"]) {
            Some(Mpi::OpenMpi)
        } else if has(&["HYDRA", "MPICH", "Intel(R) MPI", "MVAPICH"]) {
            Some(Mpi::Mpich)
        } else {
            None
        }
    }
}

/// Returns the tracer's library for `mpi`, built from `sources` (the folder `guest-images/tracer`) unless it is in `cache` already.
///
/// # Errors
///
/// Sources that are not there, or a compiler that is missing or fails.
pub fn library(mpi: Mpi, sources: &Path, cache: &Path) -> Result<PathBuf, HostTraceError> {
    let file = format!("libnodescope-mpi-{}.so", mpi.name());
    build(mpi.name(), &file, sources, cache)
}

/// Returns the OpenMP tracer's library, built from `sources` unless it is in `cache` already.
///
/// # Errors
///
/// As [`library`].
pub fn openmp_library(sources: &Path, cache: &Path) -> Result<PathBuf, HostTraceError> {
    build("openmp", "libnodescope-openmp.so", sources, cache)
}

/// Builds the library that the script `build` makes for the argument `name`, unless the library is in `cache` already.
fn build(name: &str, file: &str, sources: &Path, cache: &Path) -> Result<PathBuf, HostTraceError> {
    let folder = cache.join(format!("{name}-{}", key(sources)?));
    let library = folder.join(file);
    if library.is_file() {
        return Ok(library);
    }
    fs::create_dir_all(cache).map_err(HostTraceError::io("create", cache))?;
    let work =
        tempfile::tempdir_in(cache).map_err(HostTraceError::io("create a folder in", cache))?;
    let script = sources.join("build");
    let output = Command::new(&script)
        .arg(work.path())
        .arg(name)
        .output()
        .map_err(HostTraceError::io("run", &script))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(HostTraceError::Build(text.trim().to_owned()));
    }
    // If another process has made the folder first, its library is the same.
    let work = work.keep();
    if fs::rename(&work, &folder).is_err() {
        let _ = fs::remove_dir_all(&work);
    }
    if library.is_file() {
        Ok(library)
    } else {
        Err(HostTraceError::Build(format!(
            "{} made no {}",
            script.display(),
            library.display()
        )))
    }
}

/// Returns a hash of all sources, and of the compiler that the user names.
fn key(sources: &Path) -> Result<String, HostTraceError> {
    let entries = fs::read_dir(sources).map_err(HostTraceError::io("list", sources))?;
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(entry.map_err(HostTraceError::io("list", sources))?.path());
    }
    paths.sort();
    let mut hash = Sha256::new();
    for path in paths.iter().filter(|path| path.is_file()) {
        hash.update(path.file_name().unwrap_or_default().as_encoded_bytes());
        hash.update(fs::read(path).map_err(HostTraceError::io("read", path))?);
    }
    hash.update(
        std::env::var_os("MPICC")
            .unwrap_or_default()
            .as_encoded_bytes(),
    );
    let digest = hash.finalize();
    Ok(digest[..8]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_tell_their_mpi() {
        let texts = [
            ("mpirun (Open MPI) 4.1.4\n", Some(Mpi::OpenMpi)),
            (
                "HYDRA build details:\n    Version: 4.0.2\n",
                Some(Mpi::Mpich),
            ),
            ("slurm-wlm 22.05.8\n", None),
        ];
        for (text, mpi) in texts {
            assert_eq!(Mpi::of_version(text), mpi, "{text}");
        }
    }
}
