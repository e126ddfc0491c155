//! What tests need from the machine. A test that lacks something calls [`skip`] and returns.
//!
//! The test runner of Rust counts such a test as passed. `scripts/test` therefore names a file in `NODESCOPE_SKIPS`;
//! [`skip`] adds a line to the file, and the script takes these tests out of the number of passed ones and lists them.
//! `NODESCOPE_REQUIRE` lists needs, or `all`, whose absence fails the test instead.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;

/// A thing that a machine may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// KVM that runs guests with hardware virtualization.
    Kvm,
    /// Open MPI and MPICH: compilers, libraries and launchers.
    Mpi,
    /// A C or Fortran compiler.
    Compiler,
    /// A guest image, or the tools that build one.
    Image,
    /// SimGrid's library and `smpirun`.
    Simgrid,
    /// OTF2's library and `otf2-print`.
    Otf2,
    /// valgrind's cachegrind.
    Valgrind,
    /// `iasl`, the ACPI compiler.
    Acpi,
    /// Tools for file systems, as `debugfs` and `e2fsck`.
    Filesystem,
    /// The right to mount file systems or to make namespaces.
    Mount,
    /// Instructions or features of the host's processor.
    Cpu,
}

impl Need {
    /// Every need.
    pub const ALL: [Need; 11] = [
        Need::Kvm,
        Need::Mpi,
        Need::Compiler,
        Need::Image,
        Need::Simgrid,
        Need::Otf2,
        Need::Valgrind,
        Need::Acpi,
        Need::Filesystem,
        Need::Mount,
        Need::Cpu,
    ];

    /// The name in `NODESCOPE_REQUIRE`.
    pub fn name(self) -> &'static str {
        match self {
            Need::Kvm => "kvm",
            Need::Mpi => "mpi",
            Need::Compiler => "compiler",
            Need::Image => "image",
            Need::Simgrid => "simgrid",
            Need::Otf2 => "otf2",
            Need::Valgrind => "valgrind",
            Need::Acpi => "acpi",
            Need::Filesystem => "filesystem",
            Need::Mount => "mount",
            Need::Cpu => "cpu",
        }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reports that the calling test does not run, since the machine lacks `need`; the test must return then.
///
/// # Panics
///
/// If `NODESCOPE_REQUIRE` asks for `need` or has a name that is no need, or if the file of skipped tests cannot be written.
pub fn skip(need: Need, reason: impl fmt::Display) {
    let required = std::env::var("NODESCOPE_REQUIRE").unwrap_or_default();
    match is_required(need, &required) {
        Ok(false) => {}
        Ok(true) => panic!("NODESCOPE_REQUIRE asks for {need}: {reason}"),
        Err(unknown) => panic!(
            "NODESCOPE_REQUIRE names '{unknown}'; known are all, {}",
            Need::ALL.map(Need::name).join(", ")
        ),
    }
    println!("skipped: {reason} ({need})");
    let Some(file) = std::env::var_os("NODESCOPE_SKIPS") else {
        return;
    };
    let line = format!("{}\t{need}\t{reason}\n", test_name());
    let written = OpenOptions::new()
        .append(true)
        .create(true)
        .open(&file)
        .and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(error) = written {
        panic!("cannot write to {}: {error}", file.display());
    }
}

/// Whether a list in the form of `NODESCOPE_REQUIRE` has `need`.
///
/// # Errors
///
/// The first name that is no need.
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

/// The running test as `program::test`; the test runner names a test's thread after the test.
fn test_name() -> String {
    let program = std::env::current_exe().unwrap_or_default();
    let program = program.file_stem().unwrap_or_default().to_string_lossy();
    // Cargo appends a hash to the names of test programs.
    let program = program.rsplit_once('-').map_or(&*program, |(name, _)| name);
    let thread = std::thread::current();
    format!("{program}::{}", thread.name().unwrap_or("main"))
}

#[cfg(test)]
mod tests {
    use super::{Need, is_required, test_name};

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
}
