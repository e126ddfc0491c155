//! Programs that the tests compile, and the files of this machine as a source.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use nodescope_symbols::{FileId, Files};
use nodescope_test_needs::{Need, have};

/// Source of the files of this machine.
pub struct HostFiles;

impl Files for HostFiles {
    fn read(&self, file: &FileId) -> Option<Arc<[u8]>> {
        self.read_path(&file.path)
    }

    fn read_path(&self, path: &str) -> Option<Arc<[u8]>> {
        Some(std::fs::read(path).ok()?.into())
    }
}

/// Returns the identity of a file of this machine.
pub fn host(path: &str) -> FileId {
    FileId {
        file_system: "host".into(),
        device: "host".into(),
        mount: String::new(),
        path: path.into(),
        inode: 0,
        mapping: 0,
        deleted: false,
    }
}

/// Compiles a program of `programs/`. Without the compiler, reports that the test is skipped and returns `None`.
pub fn compile(compiler: &str, source: &str, out: &Path, flags: &[&str]) -> Option<PathBuf> {
    if !have(Need::Compiler, &[compiler]) {
        return None;
    }
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let result = Command::new(compiler)
        .arg("-o")
        .arg(out)
        .arg(programs.join(source))
        .args(flags)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&result.stderr);
    assert!(
        result.status.success(),
        "{compiler} refuses {source}: {said}"
    );
    Some(out.into())
}
