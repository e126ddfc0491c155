//! The shim for libraries without the standard ABI: `shim.c`, compiled by the site's own compiler on first use.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use super::MpiError;
use super::launcher::Launcher;

const SOURCE: &str = include_str!("shim.c");

/// Returns the compiler in the user's path that belongs to a launcher; Debian has several beside each other.
pub fn compiler(launcher: Launcher) -> Option<PathBuf> {
    let names: &[&str] = match launcher {
        Launcher::OpenMpi => &["mpicc.openmpi", "mpicc"],
        Launcher::Hydra => &["mpicc.mpich", "mpicc"],
        Launcher::Srun | Launcher::PlainSrun => &["mpicc"],
    };
    names.iter().find_map(|name| in_path(name.as_ref()))
}

/// Returns the first file of this name in the user's path.
fn in_path(name: &Path) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut files = env::split_paths(&path).map(|folder| folder.join(name));
    files.find(|file| file.is_file())
}

/// Returns the shim for the library of a compiler, by its path or its name. Compiles it unless it is in the folder `cache`.
///
/// # Errors
///
/// A compiler that does not start or fails, or a folder that cannot be written.
pub fn build(compiler: &Path, cache: &Path) -> Result<PathBuf, MpiError> {
    let failed = |why: String| MpiError::Shim {
        compiler: compiler.into(),
        why,
    };
    let found = match compiler.parent() {
        Some(folder) if folder == Path::new("") => in_path(compiler),
        _ => None,
    };
    let found = found.unwrap_or_else(|| compiler.into());
    // Another version of the MPI has another compiler, which may lie at the same path.
    let shown = run(Command::new(compiler).arg("-show")).map_err(failed)?;
    let real = found
        .canonicalize()
        .map_err(|error| failed(error.to_string()))?;
    let changed = fs::metadata(&real).and_then(|of| of.modified());
    let key = format!("{SOURCE}\n{}\n{shown}\n{changed:?}", real.display());
    let digest = blake3::hash(key.as_bytes()).to_hex();
    let library = cache.join(format!("mpi-shim-{}.so", &digest[..16]));
    if library.is_file() {
        return Ok(library);
    }
    fs::create_dir_all(cache).map_err(|error| failed(error.to_string()))?;
    // All processes of a run may compile at the same time, and each moves its complete file to the same place.
    let folder = tempfile::tempdir_in(cache).map_err(|error| failed(error.to_string()))?;
    let (source, built) = (folder.path().join("shim.c"), folder.path().join("shim.so"));
    fs::write(&source, SOURCE).map_err(|error| failed(error.to_string()))?;
    let mut command = Command::new(compiler);
    command
        .args(["-shared", "-fPIC", "-O2", "-o"])
        .args([&built, &source]);
    run(&mut command).map_err(failed)?;
    fs::rename(&built, &library).map_err(|error| failed(error.to_string()))?;
    Ok(library)
}

/// Runs a command, and returns its output.
fn run(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| error.to_string())?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let first = said.lines().find(|line| !line.trim().is_empty());
        return Err(first.map_or_else(|| output.status.to_string(), |line| line.trim().into()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
