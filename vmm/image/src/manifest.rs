//! Contents of an image, recorded in a file beside the image.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{BlockHashes, InputSet};

/// Version of the manifest's format; another one is not read.
pub const MANIFEST_FORMAT: u32 = 2;

/// `manifest.json` of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the manifest's format, [`MANIFEST_FORMAT`].
    pub format: u32,
    /// The cache key, the name of the image's folder.
    pub key: String,
    /// Debian's code name of the release.
    pub suite: String,
    /// The kernel's version, as `uname -r` prints it in the guest.
    pub kernel: String,
    /// Modules in the order the initramfs loads them.
    pub modules: Vec<String>,
    /// Packages a study asked for beyond the recipe's.
    pub extra_packages: Vec<String>,
    /// Every Debian package in the image and its version.
    pub packages: BTreeMap<String, String>,
    /// Records of the image's files, by name.
    pub files: BTreeMap<String, FileRecord>,
    /// The hashes of the files' blocks.
    pub blocks: BlockRecord,
    /// The inputs that the key was made from.
    pub inputs: InputSet,
    /// BLAKE3 of the manifest with an empty checksum, as compact JSON, in hexadecimal.
    pub checksum: String,
}

impl Manifest {
    /// Returns the checksum that the manifest must have.
    pub(crate) fn expected_checksum(&self) -> serde_json::Result<String> {
        let without = Manifest {
            checksum: String::new(),
            ..self.clone()
        };
        let text = serde_json::to_vec(&without)?;
        Ok(blake3::hash(&text).to_hex().to_string())
    }
}

/// The file of an image that has the hashes of the other files' blocks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockRecord {
    /// Bytes of a block.
    pub bytes: u64,
    /// BLAKE3 of the file of hashes, in hexadecimal.
    pub blake3: String,
}

/// Record of a file of the image, by which a changed file is found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// Size of the file in bytes.
    pub bytes: u64,
    /// SHA-256 of the file's contents, in hexadecimal.
    pub sha256: String,
}

/// Image that was built: the paths of its files.
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
    /// The hashes of the root disk's blocks.
    pub root_blocks: BlockHashes,
    /// Record of the image's contents.
    pub manifest: Manifest,
}
