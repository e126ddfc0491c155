//! Files with holes: zeros that take no disk space.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Length of a hole's unit, bytes: a page, as long as the blocks of most file systems.
const PAGE: u64 = 4096;

/// Writes bytes to a file from an offset on. Pages of zeros behind the file's end become holes: they read as zeros, and take no disk space.
///
/// # Errors
///
/// Errors of the file system.
pub fn write_with_holes(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    let length = file.metadata()?.len();
    let end = (offset.checked_add(bytes.len() as u64)).ok_or(io::ErrorKind::InvalidInput)?;
    // Bytes from `kept` to `at` are to be written.
    let (mut kept, mut at) = (0, 0);
    while at < bytes.len() {
        let place = offset + at as u64;
        let next = bytes.len().min(at + (PAGE - place % PAGE) as usize);
        let page = &bytes[at..next];
        let is_hole = page.len() as u64 == PAGE && place >= length && page.iter().all(|&b| b == 0);
        if is_hole {
            file.write_all_at(&bytes[kept..at], offset + kept as u64)?;
            kept = next;
        }
        at = next;
    }
    file.write_all_at(&bytes[kept..], offset + kept as u64)?;
    if !bytes.is_empty() && kept == bytes.len() && end > length {
        file.set_len(end)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn zeros_behind_the_end_take_no_space_and_read_back() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let file = path.as_file();
        let mut expected = vec![0; 9 << 20];
        // Odd pieces, in which data lies between zeros.
        for at in [0, 5_000_000, 9_000_000] {
            expected[at..at + 10].copy_from_slice(b"0123456789");
        }
        for (number, piece) in expected.chunks(300_001).enumerate() {
            write_with_holes(file, piece, number as u64 * 300_001).unwrap();
        }
        assert_eq!(std::fs::read(path.path()).unwrap(), expected);
        let blocks = || file.metadata().unwrap().blocks() * 512;
        let with_data = blocks();
        assert!(with_data < 1 << 20, "{with_data}");
        // Zeros over data are data, and a file may end in a hole.
        write_with_holes(file, &[0; 8192], 4_997_120).unwrap();
        expected[5_000_000..5_000_010].fill(0);
        assert_eq!(std::fs::read(path.path()).unwrap(), expected);
        write_with_holes(file, &vec![0; 1 << 20], 1 << 30).unwrap();
        assert_eq!(file.metadata().unwrap().len(), (1 << 30) + (1 << 20));
        assert!(blocks() < 1 << 20, "{}", blocks());
        assert!(write_with_holes(file, b"x", u64::MAX).is_err());
        assert!(write_with_holes(file, b"x", i64::MAX as u64 + 1).is_err());
    }
}
