//! Manifest of an image: a file that records the image's contents, beside the image's files.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{BlockHashes, InputSet};

/// Version of the manifest's format; manifests of other versions are rejected.
pub const MANIFEST_FORMAT: u32 = 2;

/// Contents of an image's `manifest.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the manifest's format, [`MANIFEST_FORMAT`].
    pub format: u32,
    /// Cache key of the image, which is also the name of its folder.
    pub key: String,
    /// Code name of the Debian release, such as `bookworm`.
    pub suite: String,
    /// The kernel's version, as `uname -r` prints it in the guest.
    pub kernel: String,
    /// File names of the kernel modules, in the order in which the initramfs loads them.
    pub modules: Vec<String>,
    /// Packages that the study requested beyond the recipe's.
    pub extra_packages: Vec<String>,
    /// Version of every Debian package in the image, by the package's name.
    pub packages: BTreeMap<String, String>,
    /// Records of the image's files, by name.
    pub files: BTreeMap<String, FileRecord>,
    /// Record of the file with the hashes of the files' blocks.
    pub blocks: BlockRecord,
    /// Inputs from which the key was computed.
    pub inputs: InputSet,
    /// BLAKE3 of the manifest with an empty checksum, as compact JSON, in hexadecimal.
    pub checksum: String,
}

impl Manifest {
    /// Computes the checksum that the manifest must have.
    pub(crate) fn expected_checksum(&self) -> serde_json::Result<String> {
        let without = Manifest {
            checksum: String::new(),
            ..self.clone()
        };
        let text = serde_json::to_vec(&without)?;
        Ok(blake3::hash(&text).to_hex().to_string())
    }
}

/// Record of the file with the hashes of the blocks of the image's other files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockRecord {
    /// Size of a block, bytes.
    pub bytes: u64,
    /// BLAKE3 of the file with the hashes, in hexadecimal.
    pub blake3: String,
}

/// Record of a file of the image, to detect changes of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// Size of the file in bytes.
    pub bytes: u64,
    /// SHA-256 of the file's contents, in hexadecimal.
    pub sha256: String,
}

/// Image that has been built: the paths of its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Folder of the image in the cache.
    pub dir: PathBuf,
    /// The kernel: an ELF file, entered in 64-bit mode.
    pub vmlinux: PathBuf,
    /// The initramfs: an uncompressed cpio archive.
    pub initramfs: PathBuf,
    /// The root disk: a read-only ext4 image, the first virtio-blk device of every node.
    pub root: PathBuf,
    /// Hashes of the root disk's blocks, to check each block when it is read.
    pub root_blocks: BlockHashes,
    /// Manifest of the image.
    pub manifest: Manifest,
}
