//! Programs and devices that tests need from the host. A test that lacks one of them calls [`skip`] and returns.
//!
//! Rust's test runner counts such a test as passed. `scripts/test` therefore names a file in `NODESCOPE_SKIPS`; [`skip`] adds a line to the
//! file, and the summary of `scripts/test` ([`summary`]) counts these tests as skipped. A test may lack something for only a part of its
//! work. The test then calls [`skip`] once and continues, and counts as skipped, too. `NODESCOPE_REQUIRE` lists needs, or `all`, whose
//! absence fails the test instead.

pub mod summary;

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

/// A program, device or right that a host may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// KVM that runs guests with hardware virtualization.
    Kvm,
    /// Open MPI and MPICH: compilers, libraries and launchers.
    Mpi,
    /// An MPI with the standard ABI of MPI 5: see [`mpi_abi`].
    MpiAbi,
    /// A C or Fortran compiler.
    Compiler,
    /// A guest image, or the tools that build one.
    Image,
    /// SimGrid's library and `smpirun`.
    Simgrid,
    /// OTF2's library and `otf2-print`.
    Otf2,
    /// `llvm-mca`, LLVM's simulator of cores.
    Mca,
    /// valgrind's cachegrind.
    Valgrind,
    /// `iasl`, the ACPI compiler.
    Acpi,
    /// Tools for file systems, such as `debugfs` and `mke2fs`.
    Filesystem,
    /// `hpcc`, the HPC Challenge benchmark, on the host.
    Hpcc,
    /// The right to mount file systems or to make namespaces.
    Mount,
    /// Instructions or features of the host's processor.
    Cpu,
    /// `chromium`, a browser that can run without a display.
    Browser,
    /// Go's `go tool pprof`.
    Pprof,
    /// Slurm's commands and daemons, and the right to run them: root.
    Slurm,
    /// `man`, which shows manual pages.
    Manual,
    /// Shells other than bash: zsh and fish.
    Shell,
    /// Tools that make and unpack Debian packages.
    Packaging,
    /// Python 3.
    Python,
    /// A kernel with Landlock and seccomp (`vmm/sandbox`).
    Sandbox,
}

impl Need {
    /// Every need.
    pub const ALL: [Need; 22] = [
        Need::Kvm,
        Need::Mpi,
        Need::MpiAbi,
        Need::Compiler,
        Need::Image,
        Need::Simgrid,
        Need::Otf2,
        Need::Mca,
        Need::Valgrind,
        Need::Acpi,
        Need::Filesystem,
        Need::Hpcc,
        Need::Mount,
        Need::Cpu,
        Need::Browser,
        Need::Pprof,
        Need::Slurm,
        Need::Manual,
        Need::Shell,
        Need::Packaging,
        Need::Python,
        Need::Sandbox,
    ];

    /// Returns the need's name in `NODESCOPE_REQUIRE`.
    pub fn name(self) -> &'static str {
        match self {
            Need::Kvm => "kvm",
            Need::Mpi => "mpi",
            Need::MpiAbi => "mpi-abi",
            Need::Compiler => "compiler",
            Need::Image => "image",
            Need::Simgrid => "simgrid",
            Need::Otf2 => "otf2",
            Need::Mca => "mca",
            Need::Valgrind => "valgrind",
            Need::Acpi => "acpi",
            Need::Filesystem => "filesystem",
            Need::Hpcc => "hpcc",
            Need::Mount => "mount",
            Need::Cpu => "cpu",
            Need::Browser => "browser",
            Need::Pprof => "pprof",
            Need::Slurm => "slurm",
            Need::Manual => "manual",
            Need::Shell => "shell",
            Need::Packaging => "packaging",
            Need::Python => "python",
            Need::Sandbox => "sandbox",
        }
    }

    /// Returns the Debian packages with the needed programs, for messages; "none" if no package helps.
    fn packages(self) -> &'static str {
        match self {
            Need::Mpi => "libopenmpi-dev openmpi-bin libmpich-dev mpich gfortran",
            Need::Compiler => "gcc gfortran clang libomp-dev",
            Need::Image => "mmdebstrap e2fsprogs libopenmpi-dev libmpich-dev",
            Need::Simgrid => "libsimgrid-dev",
            Need::Otf2 => "otf2-tools",
            Need::Mca => "llvm-22",
            Need::Valgrind => "valgrind",
            Need::Acpi => "acpica-tools",
            Need::Filesystem => "e2fsprogs",
            Need::Hpcc => "hpcc",
            Need::Browser => "chromium",
            Need::Pprof => "golang-go",
            Need::Slurm => "slurmctld slurmd slurm-client",
            Need::Manual => "man-db",
            Need::Shell => "zsh fish",
            Need::Packaging => "dpkg-dev binutils git",
            Need::Python => "python3",
            Need::Kvm | Need::MpiAbi | Need::Mount | Need::Cpu | Need::Sandbox => "none",
        }
    }
}

/// Returns the path of a program of an MPI with the standard ABI: `mpicc_abi` or `mpirun` of MPICH 5, which Debian 12 does not have.
/// `scripts/test` installs the package `mpich` of PyPI into a virtual environment in the user's cache folder; `NODESCOPE_MPI_ABI` names
/// another environment. Returns `None` after a call of [`skip`] if the program is not there; the test must then return.
///
/// # Panics
///
/// For the reasons for which [`skip`] panics.
pub fn mpi_abi(program: &str) -> Option<PathBuf> {
    let folder = |name| env::var_os(name).filter(|value| !value.is_empty());
    let cache = || {
        folder("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(Path::new(&folder("HOME")?).join(".cache")))
    };
    let environment = folder("NODESCOPE_MPI_ABI")
        .map(PathBuf::from)
        .or_else(|| Some(cache()?.join("nodescope/mpi-abi")));
    let found = environment.map(|environment| environment.join("bin").join(program));
    if let Some(file) = found.filter(|file| is_executable(file)) {
        return Some(file);
    }
    skip(
        Need::MpiAbi,
        format_args!(
            "{program} of MPICH 5 is not installed (PyPI's package mpich; scripts/lib/setup.sh, install_mpi_abi)"
        ),
    );
    None
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Returns whether all programs are installed. If not, reports the first missing program with [`skip`]; the test must then return.
///
/// # Panics
///
/// For the reasons for which [`skip`] panics.
pub fn have(need: Need, programs: &[impl AsRef<OsStr>]) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    let missing = programs
        .iter()
        .map(AsRef::as_ref)
        .find(|program| find(program, &path).is_none());
    if let Some(program) = missing {
        let program = program.to_string_lossy();
        let packages = need.packages();
        skip(
            need,
            format_args!("{program} is not installed (Debian packages {packages})"),
        );
    }
    missing.is_none()
}

/// Returns the path of an executable program. Also searches `/usr/sbin` and `/sbin`, which a user's `PATH` may lack.
fn find(program: &OsStr, path: &OsStr) -> Option<PathBuf> {
    env::split_paths(path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;

    file.metadata()
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// Reports that the calling test, or a part of it, does not run, since the host lacks `need`. The test must then return, or leave out the
/// part.
///
/// # Panics
///
/// If `NODESCOPE_REQUIRE` lists `need`, `all` or an unknown name, or if the file of skipped tests cannot be written.
pub fn skip(need: Need, reason: impl fmt::Display) {
    let required = env::var("NODESCOPE_REQUIRE").unwrap_or_default();
    match is_required(need, &required) {
        Ok(false) => {}
        Ok(true) => panic!("NODESCOPE_REQUIRE asks for {need}: {reason}"),
        Err(unknown) => panic!(
            "NODESCOPE_REQUIRE names '{unknown}'; known are all, {}",
            Need::ALL.map(Need::name).join(", ")
        ),
    }
    println!("skipped: {reason} ({need})");
    let Some(file) = env::var_os("NODESCOPE_SKIPS") else {
        return;
    };
    // Each line of the file is one skip, so line breaks in a reason are replaced.
    let reason = reason.to_string();
    let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = format!("{}\t{need}\t{reason}\n", test_name());
    let written = OpenOptions::new()
        .append(true)
        .create(true)
        .open(&file)
        .and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(error) = written {
        panic!("cannot write to {}: {error}", Path::new(&file).display());
    }
}

/// Returns whether a list in the form of `NODESCOPE_REQUIRE` contains `need` or `all`.
///
/// # Errors
///
/// The first name that is neither a need nor `all`.
fn is_required(need: Need, list: &str) -> Result<bool, &str> {
    let mut found = false;
    for name in list.split(',').map(str::trim).filter(|n| !n.is_empty()) {
        found |= name == "all" || name == need.name();
        if name != "all" && Need::ALL.iter().all(|known| known.name() != name) {
            return Err(name);
        }
    }
    Ok(found)
}

/// Returns the name of the running test as `program::test`. The test runner names each test's thread after the test.
fn test_name() -> String {
    let program = env::current_exe().unwrap_or_default();
    let program = program.file_stem().unwrap_or_default().to_string_lossy();
    let thread = std::thread::current();
    format!(
        "{}::{}",
        without_hash(&program),
        thread.name().unwrap_or("main")
    )
}

/// Returns the name of a test program without the hash that Cargo appends.
fn without_hash(program: &str) -> &str {
    program.rsplit_once('-').map_or(program, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::path::Path;

    use super::{Need, find, is_required, test_name};

    #[test]
    fn lists_of_needs() {
        assert_eq!(is_required(Need::Mpi, ""), Ok(false));
        assert_eq!(is_required(Need::Mpi, "kvm, mpi"), Ok(true));
        assert_eq!(is_required(Need::Kvm, "mpi"), Ok(false));
        assert_eq!(is_required(Need::Otf2, "all"), Ok(true));
        assert_eq!(is_required(Need::Otf2, "all,mpl"), Err("mpl"));
    }

    #[test]
    fn tests_have_names() {
        assert_eq!(test_name(), "nodescope_test_needs::tests::tests_have_names");
    }

    #[test]
    fn programs_are_executable_files() {
        let found = |program: &str, path: &str| find(OsStr::new(program), OsStr::new(path));
        assert_eq!(
            found("sh", "/nowhere:/bin").as_deref(),
            Some(Path::new("/bin/sh"))
        );
        assert_eq!(found("sh", "/nowhere"), None);
        // A folder, and a file that is not executable, are not found.
        assert_eq!(found("init.d", "/etc"), None);
        assert_eq!(found("passwd", "/etc"), None);
    }
}
