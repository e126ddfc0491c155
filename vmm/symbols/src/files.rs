//! Sources of the contents of the guest's files.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ext4_view::Ext4;

use crate::kernel::{FileId, GuestKernel};
use crate::memory::PhysicalMemory;

/// Maximum size of a file that is read from the root disk or from the host, bytes.
pub const HOST_FILE_LIMIT: u64 = 1 << 30;

/// A source of the guest's files.
pub trait Files {
    /// Reads the contents of a file. Returns `None` if this source does not have the file.
    fn read(&self, file: &FileId) -> Option<Arc<[u8]>>;

    /// Reads the contents of a file by its path in the guest, such as a separate file of debug information. By default, returns `None`.
    fn read_path(&self, path: &str) -> Option<Arc<[u8]>> {
        let _ = path;
        None
    }

    /// Reads the contents of a file in the same folder as another file, or in a folder there: `name` is the path from this folder. By
    /// default, reads the file by its path in the guest.
    fn read_beside(&self, file: &FileId, name: &str) -> Option<Arc<[u8]>> {
        let path = file.guest_path();
        let (folder, _) = path.rsplit_once('/')?;
        self.read_path(&format!("{folder}/{name}"))
    }
}

impl FileId {
    /// Returns the path by which programs of the guest name the file. The root of the guest images is an overlay: the initramfs mounts the
    /// root disk at `/lower`, and at `/rw` a `tmpfs`, in which `/upper` has what the guest has written
    /// (`guest-images/debian/initramfs/init`).
    pub fn guest_path(&self) -> String {
        let upper = self.path.strip_prefix("/upper");
        match (self.mount.as_str(), upper) {
            ("/lower", _) => self.path.clone(),
            ("/rw", Some(path)) if path.starts_with('/') => path.into(),
            // A file of memfd_create is in no folder, so its path has no slash at the beginning.
            _ if !self.path.starts_with('/') => self.path.clone(),
            _ => format!("{}{}", self.mount, self.path),
        }
    }

    /// Returns whether the file is on a file system that exists only in the guest's memory.
    pub(crate) fn in_memory(&self) -> bool {
        matches!(
            self.file_system.as_str(),
            "tmpfs" | "ramfs" | "devtmpfs" | "rootfs"
        )
    }
}

/// The files of a guest image's root disk, which has the file system ext4 and never changes.
#[derive(Clone, Debug)]
pub struct RootImage {
    path: PathBuf,
}

impl RootImage {
    /// Creates a source from the image at `path`. Each read opens the image anew, so that threads need not share an open file.
    pub fn new(path: &Path) -> Self {
        Self { path: path.into() }
    }
}

impl Files for RootImage {
    fn read(&self, file: &FileId) -> Option<Arc<[u8]>> {
        (file.file_system == "ext4").then(|| self.read_path(&file.path))?
    }

    fn read_beside(&self, file: &FileId, name: &str) -> Option<Arc<[u8]>> {
        let (folder, _) = file.path.rsplit_once('/')?;
        (file.file_system == "ext4").then(|| self.read_path(&format!("{folder}/{name}")))?
    }

    fn read_path(&self, path: &str) -> Option<Arc<[u8]>> {
        let disk = Ext4::load_from_path(&self.path).ok()?;
        let metadata = disk.metadata(path).ok()?;
        (metadata.len() <= HOST_FILE_LIMIT).then_some(())?;
        Some(disk.read(path).ok()?.into())
    }
}

/// Contents of a listed file: the bytes, or the path of a file of the host.
#[derive(Clone, Debug)]
enum Known {
    Bytes(Arc<[u8]>),
    Path(PathBuf),
}

/// Files that the host has put into the guest, such as the files of a study's job, by their paths in the guest.
///
/// A guest may since have changed such a file. The symbolizer then sees that the code differs.
#[derive(Clone, Debug, Default)]
pub struct ListedFiles(BTreeMap<String, Known>);

impl ListedFiles {
    /// Adds a file by its contents.
    pub fn insert(&mut self, guest_path: &str, contents: impl Into<Arc<[u8]>>) {
        let known = Known::Bytes(contents.into());
        self.0.insert(guest_path.into(), known);
    }

    /// Adds a file of the host by its path on the host. The file is read when its contents are needed.
    pub fn insert_host(&mut self, guest_path: &str, path: &Path) {
        self.0.insert(guest_path.into(), Known::Path(path.into()));
    }
}

impl Files for ListedFiles {
    fn read(&self, file: &FileId) -> Option<Arc<[u8]>> {
        file.in_memory()
            .then(|| self.read_path(&file.guest_path()))?
    }

    fn read_path(&self, path: &str) -> Option<Arc<[u8]>> {
        match self.0.get(path)? {
            Known::Bytes(bytes) => Some(bytes.clone()),
            Known::Path(path) => {
                let mut bytes = Vec::new();
                let file = File::open(path).ok()?;
                let len = file
                    .take(HOST_FILE_LIMIT + 1)
                    .read_to_end(&mut bytes)
                    .ok()?;
                (len as u64 <= HOST_FILE_LIMIT).then(|| bytes.into())
            }
        }
    }
}

/// Files of file systems that exist only in the guest's memory, such as `tmpfs`, and the kernel's vDSO. Files of disks are not read here,
/// even if the guest's page cache has them.
#[derive(Clone, Copy)]
pub struct MemoryFiles<'a> {
    kernel: &'a GuestKernel,
    memory: &'a dyn PhysicalMemory,
}

impl<'a> MemoryFiles<'a> {
    /// Creates a source from the memory of a guest that runs `kernel`.
    pub fn new(kernel: &'a GuestKernel, memory: &'a dyn PhysicalMemory) -> Self {
        Self { kernel, memory }
    }
}

impl Files for MemoryFiles<'_> {
    fn read(&self, file: &FileId) -> Option<Arc<[u8]>> {
        let bytes = match *file == FileId::vdso() {
            true => self.kernel.vdso(self.memory)?,
            false => self.kernel.read_file(self.memory, file)?,
        };
        Some(bytes.into())
    }

    fn read_beside(&self, file: &FileId, name: &str) -> Option<Arc<[u8]>> {
        let beside = file
            .in_memory()
            .then(|| self.kernel.beside(self.memory, file, name))?;
        self.read(&beside?)
    }
}

/// List of sources. The contents of a file come from the first source that has the file.
#[derive(Default)]
pub struct Sources<'a>(pub Vec<&'a dyn Files>);

impl Files for Sources<'_> {
    fn read(&self, file: &FileId) -> Option<Arc<[u8]>> {
        self.0.iter().find_map(|source| source.read(file))
    }

    fn read_path(&self, path: &str) -> Option<Arc<[u8]>> {
        self.0.iter().find_map(|source| source.read_path(path))
    }

    fn read_beside(&self, file: &FileId, name: &str) -> Option<Arc<[u8]>> {
        let mut sources = self.0.iter();
        sources.find_map(|source| source.read_beside(file, name))
    }
}
