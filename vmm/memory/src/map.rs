//! Replacement of RAM's contents by those of a file, mapped copy-on-write.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

use thiserror::Error;

use crate::{Ram, RamRegion};

/// Size of a host page, bytes.
const PAGE: u64 = 4096;

/// Reason why the contents of RAM cannot be replaced.
#[derive(Debug, Error)]
pub enum MapError {
    /// The number of file offsets differs from the number of the RAM's regions.
    #[error("the RAM has {regions} regions, and {offsets} places in a file are given for them")]
    Count {
        /// Number of the RAM's regions.
        regions: usize,
        /// Number of offsets that the caller gave.
        offsets: usize,
    },
    /// A region's range is not within the file, or does not begin at a page.
    #[error(
        "offset {offset}: {len} bytes of RAM cannot lie there: the file has {file} bytes, and RAM begins at a page"
    )]
    Place {
        /// Offset in the file, bytes.
        offset: u64,
        /// Length of the region, bytes.
        len: u64,
        /// Length of the file, bytes.
        file: u64,
    },
    /// The host could not map the memory, or could not return the file's length.
    #[error("the host cannot map {len} bytes of guest memory: {source}")]
    Host {
        /// Length of the region, or of all RAM if the file's length is unknown, bytes.
        len: u64,
        /// Error that the host returned.
        source: io::Error,
    },
}

impl Ram {
    /// Returns RAM for NUMA nodes of these sizes in bytes ([`Ram::new`]), with the contents of a file ([`Ram::map_file`]).
    pub fn from_file(
        numa_bytes: &[u64],
        file: &File,
        offsets: &[u64],
    ) -> Result<Self, crate::LayoutError> {
        let ram = Self::new(numa_bytes)?;
        let mapped = ram.map_file(file, offsets);
        mapped.map_err(|cause| crate::LayoutError::Map {
            bytes: ram.size(),
            cause: cause.to_string(),
        })?;
        Ok(ram)
    }

    /// Replaces the contents of each region by those of the file from the region's offset on; offsets must be multiples of 4096. The file
    /// is mapped copy-on-write: RAM that is mapped from the same part of the file shares the pages that were not written to. Nobody may
    /// write to the file or truncate the file while the RAM is in use. No vCPU or device of the node may run during the call. Decoded code
    /// is invalidated. After an error the contents are undefined.
    pub fn map_file(&self, file: &File, offsets: &[u64]) -> Result<(), MapError> {
        let regions = self.regions();
        if regions.len() != offsets.len() {
            return Err(MapError::Count {
                regions: regions.len(),
                offsets: offsets.len(),
            });
        }
        let host = |len, source| MapError::Host { len, source };
        let length = file.metadata().map_err(|e| host(self.size(), e))?.len();
        for (region, &offset) in regions.iter().zip(offsets) {
            let end = offset.checked_add(region.len);
            if !offset.is_multiple_of(PAGE) || end.is_none_or(|end| end > length) {
                return Err(MapError::Place {
                    offset,
                    len: region.len,
                    file: length,
                });
            }
        }
        for (region, &offset) in regions.iter().zip(offsets) {
            if let Err(source) = replace(region, Some((file.as_raw_fd(), offset))) {
                // The host may have removed the old mapping before it failed.
                let _ = replace(region, None);
                self.forget_code();
                return Err(host(region.len, source));
            }
        }
        self.forget_code();
        Ok(())
    }

    /// Replaces the contents by zeroes, and returns the memory to the host. No vCPU or device of the node may run during the call.
    pub fn clear(&self) -> Result<(), MapError> {
        for region in self.regions() {
            replace(region, None).map_err(|source| MapError::Host {
                len: region.len,
                source,
            })?;
        }
        self.forget_code();
        Ok(())
    }

    /// Invalidates all code that was decoded from this RAM.
    pub fn forget_code(&self) {
        for region in self.regions() {
            region.code.written(0, region.len as usize);
        }
    }
}

/// Maps the file from this offset over the region, or new zeroed memory if `file` is `None`.
fn replace(region: &RamRegion, file: Option<(RawFd, u64)>) -> io::Result<()> {
    let len = region.len as usize;
    let flags = libc::MAP_PRIVATE | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let (fd, offset, flags) = match file {
        Some((fd, offset)) => (fd, offset, flags),
        None => (-1, 0, flags | libc::MAP_ANONYMOUS),
    };
    let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
    // SAFETY: the region's mapping begins at `host` and has `len` bytes. The new mapping replaces exactly that range, readable and writable
    // as before, so that all pointers into it stay valid. Contents change only as they may when a guest writes to them.
    let at = unsafe {
        libc::mmap(
            region.host.cast(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            fd,
            offset,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    if file.is_none() {
        // SAFETY: the mapping of this length was just made; the advice changes no contents.
        unsafe { libc::madvise(at, len, libc::MADV_HUGEPAGE) };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn contents_are_those_of_the_file_until_they_are_written_to() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[[1; 4096], [2; 4096], [3; 4096]].concat())
            .unwrap();
        file.set_len(4 * MIB).unwrap();
        let first = Ram::from_file(&[2 * MIB], &file, &[4096]).unwrap();
        let second = Ram::from_file(&[2 * MIB], &file, &[0]).unwrap();
        let byte = |ram: &Ram, at| {
            let mut byte = [0];
            assert!(ram.read(at, &mut byte));
            byte[0]
        };
        let bytes = |ram| [0, 4096, 8192, 2 * MIB - 1].map(|at| byte(ram, at));
        assert_eq!(
            (bytes(&first), bytes(&second)),
            ([2, 3, 0, 0], [1, 2, 3, 0])
        );
        assert!(first.write(0, &[9]) && first.write(2 * MIB - 1, &[8]));
        assert_eq!(
            (bytes(&first), bytes(&second)),
            ([9, 3, 0, 8], [1, 2, 3, 0])
        );
        // All clones of the RAM see the new contents.
        let shares = first.clone();
        let region = &shares.regions()[0];
        region.code.mark(0x1000, 8);
        first.map_file(&file, &[0]).unwrap();
        assert_eq!(bytes(&shares), [1, 2, 3, 0]);
        assert_eq!(
            (region.code.generation(0x1000), region.code.generation(0)),
            (1, 0)
        );
        first.clear().unwrap();
        assert_eq!(bytes(&shares), [0; 4]);
    }

    #[test]
    fn places_outside_the_file_are_refused() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(3 * MIB).unwrap();
        let ram = Ram::new(&[2 * MIB]).unwrap();
        for (offsets, expected) in [
            (vec![], "0 places"),
            (vec![0, 0], "2 places"),
            (vec![1], "offset 1"),
            (vec![MIB + 4096], "the file has 3145728 bytes"),
            (vec![u64::MAX - 4095], "cannot lie there"),
        ] {
            let error = ram.map_file(&file, &offsets).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        assert!(ram.write(0, &[1]));
    }
}
