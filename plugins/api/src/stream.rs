//! Files of the stream of events: what an observer saw, to be shown to another one later. `plugins/api/EVENTS.md` has the format.

use crate::{Batch, Context, Event, Privilege, STREAM_VERSION};

/// First bytes of a file.
const MAGIC: &[u8; 8] = b"NSEVENTS";
/// Bytes of the head of a file, of the head of a batch, and of an event.
const HEAD: usize = 16;
const BATCH_HEAD: usize = 24;
const EVENT: usize = 16;

/// Reason why a file of the stream cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The bytes are no file of the stream.
    #[error("holds no stream of events: it does not begin with NSEVENTS")]
    Magic,
    /// The file has another version.
    #[error("has version {0} of the stream of events; this program reads version {STREAM_VERSION}")]
    Version(u32),
    /// A field has a value that means nothing.
    #[error("is damaged at byte {at}: {what}")]
    Damaged {
        /// Position of the field.
        at: usize,
        /// What is wrong.
        what: &'static str,
    },
}

/// A batch of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBatch {
    vcpu: u16,
    context: Context,
    privilege: Privilege,
    line_bytes: u32,
    clock: u64,
    events: Vec<Event>,
}

impl StoredBatch {
    /// Returns the batch as an observer sees it.
    pub fn batch(&self) -> Batch<'_> {
        Batch {
            vcpu: self.vcpu,
            context: self.context,
            privilege: self.privilege,
            line_bytes: self.line_bytes,
            clock: self.clock,
            events: &self.events,
        }
    }
}

/// Returns the first bytes of a file with lines of this size.
pub fn head(line_bytes: u32) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(STREAM_VERSION.to_le_bytes());
    bytes.extend(line_bytes.to_le_bytes());
    bytes
}

/// Appends a batch to the bytes of a file.
pub fn append(bytes: &mut Vec<u8>, batch: &Batch<'_>) {
    bytes.extend((batch.events.len() as u32).to_le_bytes());
    bytes.extend(batch.context.0.to_le_bytes());
    bytes.extend(batch.clock.to_le_bytes());
    bytes.extend(batch.vcpu.to_le_bytes());
    bytes.push(u8::from(batch.privilege == Privilege::Kernel));
    bytes.extend([0; 5]);
    for event in batch.events {
        bytes.extend(event.to_bytes());
    }
}

/// Reads the bytes of a file.
pub fn read(bytes: &[u8]) -> Result<Vec<StoredBatch>, StreamError> {
    let number = |at: usize| {
        let four = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
        let what = "the file ends within a field";
        four.map(u32::from_le_bytes)
            .ok_or(StreamError::Damaged { at, what })
    };
    if !bytes.starts_with(MAGIC) {
        return Err(StreamError::Magic);
    }
    let version = number(8)?;
    if version != STREAM_VERSION {
        return Err(StreamError::Version(version));
    }
    let line_bytes = number(12)?;
    if !line_bytes.is_power_of_two() || !(32..=4096).contains(&line_bytes) {
        let what = "the size of lines is no power of two from 32 to 4096";
        return Err(StreamError::Damaged { at: 12, what });
    }
    let mut batches = Vec::new();
    let mut at = HEAD;
    while at < bytes.len() {
        let count = number(at)? as usize;
        let events = at + BATCH_HEAD;
        let end = count
            .checked_mul(EVENT)
            .and_then(|length| events.checked_add(length));
        let of_events = end.and_then(|end| bytes.get(events..end));
        let what = "the file ends within a batch";
        let of_events = of_events.ok_or(StreamError::Damaged { at, what })?;
        let (low, high) = (number(at + 8)?, number(at + 12)?);
        let rest = number(at + 16)?;
        batches.push(StoredBatch {
            vcpu: rest as u16,
            context: Context(number(at + 4)?),
            privilege: match rest >> 16 & 0xff {
                0 => Privilege::User,
                _ => Privilege::Kernel,
            },
            line_bytes,
            clock: u64::from(high) << 32 | u64::from(low),
            events: of_events
                .as_chunks()
                .0
                .iter()
                .map(Event::from_bytes)
                .collect(),
        });
        at = events + of_events.len();
    }
    Ok(batches)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> Vec<u8> {
        let bytes = std::array::from_fn(|byte| byte as u8);
        let events = [Event::default(), Event::from_bytes(&bytes)];
        let mut file = head(64);
        for (vcpu, privilege) in [(3, Privilege::Kernel), (0, Privilege::User)] {
            let batch = Batch {
                vcpu,
                context: Context(7),
                privilege,
                line_bytes: 64,
                clock: 0x1_2345_6789,
                events: &events[usize::from(vcpu == 0)..],
            };
            append(&mut file, &batch);
        }
        file
    }

    #[test]
    fn what_was_written_is_read() {
        let batches = read(&file()).unwrap();
        let mut again = head(64);
        batches
            .iter()
            .for_each(|batch| append(&mut again, &batch.batch()));
        assert_eq!(again, file());
        assert_eq!(batches[0].batch().clock, 0x1_2345_6789);
        assert_eq!(batches[0].batch().events.len(), 2);
        assert_eq!(size_of::<Event>(), EVENT);
    }

    #[test]
    fn what_is_damaged_is_refused() {
        let file = file();
        let whole = [HEAD, HEAD + BATCH_HEAD + 2 * EVENT, file.len()];
        for length in 0..file.len() {
            assert_eq!(read(&file[..length]).is_ok(), whole.contains(&length));
        }
        let with = |at: usize, value: u8| {
            let mut file = file.clone();
            file[at] = value;
            read(&file)
        };
        assert_eq!(with(8, 9), Err(StreamError::Version(9)));
        assert!(matches!(
            with(12, 3),
            Err(StreamError::Damaged { at: 12, .. })
        ));
        assert!(matches!(
            with(HEAD + 3, 255),
            Err(StreamError::Damaged { at: HEAD, .. })
        ));
    }
}
