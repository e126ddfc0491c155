//! Sorter of more records than fit into memory, by merging sorted runs in temporary files.
//!
//! No maintained library with few dependencies does this: `extsort` 0.5 takes seventeen crates to build.

use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};

/// Number of records that [`Sorter::new`] lets a sorter hold in memory before they are written to a file.
const RUN: usize = 1 << 20;

/// A record of [`Record::SIZE`] bytes on disk.
pub(crate) trait Record: Ord + Sized {
    /// Number of bytes of an encoded record.
    const SIZE: usize;
    /// Appends the record's encoded bytes.
    fn put(&self, bytes: &mut Vec<u8>);
    /// Decodes a record from its [`Record::SIZE`] bytes.
    fn get(bytes: &[u8]) -> Self;
}

/// Sorter that collects records, in temporary files if there are many, and returns them in ascending order.
#[derive(Debug)]
pub(crate) struct Sorter<R> {
    limit: usize,
    current: Vec<R>,
    runs: Vec<File>,
}

impl<R: Record> Sorter<R> {
    /// Makes a sorter that keeps up to 2^20 records in memory.
    pub(crate) fn new() -> Sorter<R> {
        Sorter::with_limit(RUN)
    }

    /// Makes a sorter that keeps up to `limit` records in memory.
    pub(crate) fn with_limit(limit: usize) -> Sorter<R> {
        Sorter {
            limit,
            current: Vec::new(),
            runs: Vec::new(),
        }
    }

    /// Adds a record.
    pub(crate) fn push(&mut self, record: R) -> io::Result<()> {
        self.current.push(record);
        if self.current.len() < self.limit {
            return Ok(());
        }
        self.current.sort_unstable();
        let mut out = BufWriter::with_capacity(1 << 18, tempfile::tempfile()?);
        let mut bytes = Vec::with_capacity(R::SIZE);
        for record in self.current.drain(..) {
            bytes.clear();
            record.put(&mut bytes);
            out.write_all(&bytes)?;
        }
        let mut file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.seek(SeekFrom::Start(0))?;
        self.runs.push(file);
        Ok(())
    }

    /// Calls `each` with every record, the smallest first.
    pub(crate) fn drain<E>(
        mut self,
        error: impl Fn(io::Error) -> E,
        mut each: impl FnMut(R) -> Result<(), E>,
    ) -> Result<(), E> {
        self.current.sort_unstable();
        let mut runs: Vec<BufReader<File>> = self
            .runs
            .into_iter()
            .map(|file| BufReader::with_capacity(1 << 16, file))
            .collect();
        let mut memory = self.current.into_iter().peekable();
        let mut bytes = vec![0; R::SIZE];
        let mut read = |run: &mut BufReader<File>| match run.read_exact(&mut bytes) {
            Ok(()) => Ok(Some(R::get(&bytes))),
            Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(cause) => Err(cause),
        };
        let mut heads = BinaryHeap::new();
        for (at, run) in runs.iter_mut().enumerate() {
            if let Some(record) = read(run).map_err(&error)? {
                heads.push(std::cmp::Reverse((record, at)));
            }
        }
        while let Some(std::cmp::Reverse((record, at))) = heads.pop() {
            while let Some(smaller) = memory.next_if(|other| *other < record) {
                each(smaller)?;
            }
            each(record)?;
            if let Some(record) = read(&mut runs[at]).map_err(&error)? {
                heads.push(std::cmp::Reverse((record, at)));
            }
        }
        memory.try_for_each(each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Record for u64 {
        const SIZE: usize = 8;
        fn put(&self, bytes: &mut Vec<u8>) {
            bytes.extend(self.to_le_bytes());
        }
        fn get(bytes: &[u8]) -> u64 {
            bytes
                .iter()
                .rev()
                .fold(0, |sum, &byte| sum << 8 | u64::from(byte))
        }
    }

    #[test]
    fn runs_on_disk_and_in_memory_merge() {
        for limit in [1, 7, 100, 1000, 5000] {
            let mut sorter = Sorter::with_limit(limit);
            let numbers = (0..1000u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50);
            numbers.clone().for_each(|n| sorter.push(n).unwrap());
            let mut sorted = Vec::new();
            let each = |n| {
                sorted.push(n);
                Ok::<(), io::Error>(())
            };
            sorter.drain(|error| error, each).unwrap();
            let mut expected: Vec<u64> = numbers.collect();
            expected.sort_unstable();
            assert_eq!(sorted, expected, "limit {limit}");
        }
    }
}
