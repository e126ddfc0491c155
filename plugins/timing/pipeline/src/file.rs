//! Files of recordings, so that a changed core can time them again without a guest.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nodescope_plugin_api::{Recording, SOURCES};
use serde::{Deserialize, Serialize};

/// Recordings of a program, and the latencies of the node that made them.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Recordings {
    /// Cycles beyond a hit of the first level, by source.
    pub beyond: [u32; SOURCES],
    /// Measured cycles per instruction; 0 if nothing was measured.
    pub measured: f64,
    /// One recording after the other.
    pub list: Vec<Recording>,
}

impl Recordings {
    /// Returns the file of a program's recordings in a folder.
    pub fn path(folder: &Path, name: &str) -> PathBuf {
        folder.join(format!("{name}.recordings"))
    }

    /// Writes the recordings to their file.
    ///
    /// # Errors
    ///
    /// Those of the file system.
    pub fn write(&self, folder: &Path, name: &str) -> io::Result<()> {
        let bytes = postcard::to_stdvec(self).map_err(io::Error::other)?;
        fs::write(Self::path(folder, name), zstd::encode_all(&bytes[..], 1)?)
    }

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// Those of the file system, and a file that is damaged or no recording.
    pub fn read(file: &Path) -> io::Result<Self> {
        let bytes = zstd::decode_all(fs::File::open(file)?)?;
        postcard::from_bytes(&bytes).map_err(io::Error::other)
    }
}
