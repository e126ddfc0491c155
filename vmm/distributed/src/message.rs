//! Messages between processes: a byte with the kind, four bytes with a rank, and content.

use serde::{Deserialize, Serialize};

use crate::transport::{Place, Transport};

/// Introduction of a worker to the master. All versions of nodescope must be able to read it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Hello {
    /// Version of nodescope that the worker runs.
    pub version: String,
    /// Place of the worker.
    #[serde(default)]
    pub place: Place,
    /// Rank that the worker has by its launcher; none if the master deals out the ranks.
    #[serde(default)]
    pub rank: Option<usize>,
}

/// Admission of a worker by the master.
#[derive(Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// Rank of the worker: its number in the group, from 1.
    pub rank: usize,
    /// Name of each process for messages, by rank.
    pub names: Vec<String>,
    /// Place of each process, by rank.
    pub places: Vec<Place>,
    /// Number of this run, for its shared memory.
    pub token: u64,
    /// Way of messages that the user wants.
    pub transport: Transport,
    /// Task of the worker.
    pub task: serde_json::Value,
}

/// A message from another process.
#[derive(Debug, PartialEq)]
pub enum Message<'a> {
    /// [`Hello`], as JSON.
    Hello(&'a [u8]),
    /// [`Welcome`], as JSON.
    Welcome(&'a [u8]),
    /// Reason why the master does not admit a worker.
    Refused(&'a str),
    /// A message for the process with this rank, if a worker sends it, or from that process, if the master does.
    Data(usize, &'a [u8]),
    /// Reason why the process with this rank cannot continue.
    Leave(usize, &'a str),
    /// An empty message, which is only sent to learn whether the receiver is still connected.
    Probe,
}

const HELLO: u8 = b'H';
const WELCOME: u8 = b'W';
const REFUSED: u8 = b'R';
const DATA: u8 = b'D';
const LEAVE: u8 = b'L';
const PROBE: u8 = b'P';

impl<'a> Message<'a> {
    /// Encodes the message as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, rank, content) = match self {
            Message::Hello(content) => (HELLO, 0, *content),
            Message::Welcome(content) => (WELCOME, 0, *content),
            Message::Refused(why) => (REFUSED, 0, why.as_bytes()),
            Message::Data(rank, content) => (DATA, *rank, *content),
            Message::Leave(rank, why) => (LEAVE, *rank, why.as_bytes()),
            Message::Probe => (PROBE, 0, &[][..]),
        };
        let mut bytes = Vec::with_capacity(5 + content.len());
        bytes.push(kind);
        bytes.extend((rank as u32).to_le_bytes());
        bytes.extend(content);
        bytes
    }

    /// Decodes a message.
    ///
    /// # Errors
    ///
    /// A sentence that says why the bytes are not a message.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, String> {
        let Some((&[kind, ref rank @ ..], content)) = bytes.split_first_chunk::<5>() else {
            return Err(format!("it has {} bytes", bytes.len()));
        };
        let rank = u32::from_le_bytes(*rank) as usize;
        let text = || std::str::from_utf8(content).map_err(|error| error.to_string());
        Ok(match kind {
            HELLO => Message::Hello(content),
            WELCOME => Message::Welcome(content),
            REFUSED => Message::Refused(text()?),
            DATA => Message::Data(rank, content),
            LEAVE => Message::Leave(rank, text()?),
            PROBE => Message::Probe,
            other => return Err(format!("it is of the unknown kind {other}")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_and_other_bytes_are_refused() {
        for message in [
            Message::Hello(b"{}"),
            Message::Welcome(b""),
            Message::Refused("no"),
            Message::Data(7, b"\0\xff"),
            Message::Leave(3, "ü"),
            Message::Probe,
        ] {
            assert_eq!(Message::decode(&message.encode()), Ok(message));
        }
        for bytes in [&b""[..], b"D", b"L\0\0\0\0\xff", b"?\0\0\0\0"] {
            assert!(Message::decode(bytes).is_err(), "{bytes:?}");
        }
    }
}
