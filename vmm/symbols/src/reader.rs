//! Reader of debug information that counts its steps.
//!
//! The crates `addr2line` and `gimli` read every byte by a [`gimli::Reader`], and keep some tens of bytes at most for what one call reads.
//! A limit on the calls therefore limits their time and memory, whatever a file contains: lists that many entries share, tables that many
//! units share, or names without an end.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use gimli::{Error, LittleEndian, ReaderOffsetId, Result};

use crate::elf::Section;
use crate::limits::Meter;

/// Bytes of text that count as one step.
const TEXT: u64 = 8;

/// Contents of a section, and the meter of its file.
struct Metered {
    section: Section,
    meter: Arc<Meter>,
}

/// Reader of a part of a section.
#[derive(Clone)]
pub(crate) struct Reader {
    of: Arc<Metered>,
    from: usize,
    to: usize,
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}..{:#x}", self.from, self.to)
    }
}

impl Reader {
    /// Creates a reader of a whole section.
    pub fn new(section: Section, meter: &Arc<Meter>) -> Self {
        Self {
            from: 0,
            to: section.len(),
            of: Arc::new(Metered {
                section,
                meter: meter.clone(),
            }),
        }
    }

    /// Returns the remaining bytes, without a step.
    pub fn bytes(&self) -> &[u8] {
        &self.of.section[self.from..self.to]
    }

    fn take(&self, steps: u64) -> Result<()> {
        match self.of.meter.take(steps) {
            true => Ok(()),
            // Callers ask the meter why.
            false => Err(Error::UnexpectedEof(self.id())),
        }
    }

    fn id(&self) -> ReaderOffsetId {
        ReaderOffsetId(self.bytes().as_ptr() as u64)
    }

    fn text(&self) -> Result<&[u8]> {
        self.take(1 + (self.to - self.from) as u64 / TEXT)?;
        Ok(self.bytes())
    }

    fn end(&self, len: usize) -> Result<usize> {
        self.take(1)?;
        match len <= self.to - self.from {
            true => Ok(self.from + len),
            false => Err(Error::UnexpectedEof(self.id())),
        }
    }
}

impl gimli::Reader for Reader {
    type Endian = LittleEndian;
    type Offset = usize;

    fn endian(&self) -> LittleEndian {
        LittleEndian
    }

    fn len(&self) -> usize {
        self.to - self.from
    }

    fn empty(&mut self) {
        self.to = self.from;
    }

    fn truncate(&mut self, len: usize) -> Result<()> {
        self.to = self.end(len)?;
        Ok(())
    }

    fn offset_from(&self, base: &Self) -> usize {
        self.from.saturating_sub(base.from)
    }

    fn offset_id(&self) -> ReaderOffsetId {
        self.id()
    }

    fn lookup_offset_id(&self, id: ReaderOffsetId) -> Option<usize> {
        let within = id.0.checked_sub(self.id().0)?;
        let within = usize::try_from(within).ok()?;
        (within <= self.to - self.from).then_some(within)
    }

    fn find(&self, byte: u8) -> Result<usize> {
        let found = self.bytes().iter().position(|other| *other == byte);
        let looked = found.unwrap_or(self.to - self.from);
        self.take(1 + looked as u64 / TEXT)?;
        found.ok_or(Error::UnexpectedEof(self.id()))
    }

    fn skip(&mut self, len: usize) -> Result<()> {
        self.from = self.end(len)?;
        Ok(())
    }

    fn split(&mut self, len: usize) -> Result<Self> {
        let end = self.end(len)?;
        let part = Self {
            to: end,
            ..self.clone()
        };
        self.from = end;
        Ok(part)
    }

    fn to_slice(&self) -> Result<Cow<'_, [u8]>> {
        Ok(self.text()?.into())
    }

    fn to_string(&self) -> Result<Cow<'_, str>> {
        let text = std::str::from_utf8(self.text()?);
        text.map(Cow::from).map_err(|_| Error::BadUtf8)
    }

    fn to_string_lossy(&self) -> Result<Cow<'_, str>> {
        Ok(String::from_utf8_lossy(self.text()?))
    }

    fn read_slice(&mut self, buf: &mut [u8]) -> Result<()> {
        let end = self.end(buf.len())?;
        buf.copy_from_slice(&self.of.section[self.from..end]);
        self.from = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use gimli::Reader as _;

    use super::*;
    use crate::limits::{ALL_STEPS, Limit, STEPS, all_steps};

    #[test]
    fn reads_count_until_none_is_left() {
        let all = all_steps();
        let meter = Arc::new(Meter::new(0, &all));
        let section = Section::from(b"\x05name\0rest".to_vec());
        let mut reader = Reader::new(section, &meter);
        let whole = reader.clone();
        assert_eq!(reader.read_u8(), Ok(5));
        let name = reader.read_null_terminated_slice().unwrap();
        assert_eq!(name.to_string_lossy().unwrap(), "name");
        assert_eq!((reader.offset_from(&whole), reader.len()), (6, 4));
        assert_eq!(reader.find(b's'), Ok(2));
        assert!(reader.skip(5).is_err() && reader.find(b'x').is_err());
        assert_eq!(meter.exceeded(), None);
        let mut steps = 0;
        while reader.find(b'r').is_ok() {
            steps += 1;
        }
        assert!(steps > STEPS - 100 && steps < STEPS, "{steps} steps");
        assert_eq!(meter.exceeded(), Some(Limit::Steps));
        // Another file has its own steps, as long as all files together have some.
        let other = Meter::new(u64::MAX, &all);
        assert!(other.take(1) && other.exceeded().is_none());
        assert!(!other.take(ALL_STEPS));
        assert_eq!(other.exceeded(), Some(Limit::AllSteps));
    }
}
