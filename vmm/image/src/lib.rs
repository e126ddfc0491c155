//! Guest images: a kernel, an initramfs and a shared read-only root disk, built from Debian packages and cached by content.
//!
//! [`build`] turns an [`ImageSpec`] into an [`Image`]: three files and a [`Manifest`] in a directory. The directory's name is a hash of
//! every input: the recipe's files, the sources of the in-guest tools, and the packages that a study adds. A second build with equal inputs
//! finds the directory and runs nothing.
//!
//! Data that differs between runs and nodes is not in the image: a node's identity is on its kernel command line ([`NodeCommandLine`]),
//! the job and the user's files are on the job disk ([`job_disk`]). `guest-images/README.md` describes the guest's side.

mod blocks;
mod builder;
mod bzimage;
mod cache;
mod claim;
mod command_line;
pub mod cpio;
mod error;
mod initramfs;
mod job;
mod key;
mod manifest;
mod options;
mod removal;
mod spec;
mod subordinate_ids;
mod tools;

pub use blocks::{BLOCK_BYTES, BlockHashes};
pub use builder::{build, build_with};
pub use bzimage::{unpack_bzimage, unpack_legacy_lz4};
pub use cache::{default_cache_dir, find, keys, list, open_key};
pub use command_line::{BASE_COMMAND_LINE, NodeCommandLine, SharedMount};
pub use error::ImageError;
pub use initramfs::{ModuleFile, initramfs, module_order};
pub use job::{JobFile, job_disk, job_files};
pub use key::{Input, InputSet};
pub use manifest::{BlockRecord, FileRecord, Image, MANIFEST_FORMAT, Manifest};
pub use options::BuildOptions;
pub use removal::{Lease, Removed, remove};
pub use spec::{ImageSpec, Recipe, check_package_name};
pub use subordinate_ids::check_subordinate_ids;
