//! Messages between processes: a byte with the kind of the message, and content.

use serde::{Deserialize, Serialize};

/// Introduction of a worker to the master. Every version of nodescope reads this message.
#[derive(Debug, Serialize, Deserialize)]
pub struct Hello {
    /// Version of nodescope that the worker runs.
    pub version: String,
    /// Host name of the worker.
    pub host: String,
    /// Number of the worker's process on the host.
    pub process: u32,
}

impl Hello {
    /// Returns the name of the worker, for people.
    pub fn name(&self) -> String {
        format!("{}, process {}", self.host, self.process)
    }
}

/// Admission of a worker by the master.
#[derive(Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// Number of the worker among the processes.
    pub rank: usize,
    /// Name of each process, for people.
    pub names: Vec<String>,
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
    /// Why the master does not admit a worker.
    Refused(&'a str),
    /// Contribution of a process, by its number.
    Gather(usize, &'a [u8]),
    /// Why a process, by its number, cannot continue.
    Leave(usize, &'a str),
    /// An empty message. The sender of the message learns whether the receiver is there.
    Probe,
}

const HELLO: u8 = b'H';
const WELCOME: u8 = b'W';
const REFUSED: u8 = b'R';
const GATHER: u8 = b'G';
const LEAVE: u8 = b'L';
const PROBE: u8 = b'P';

impl<'a> Message<'a> {
    /// Returns the message as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, rank, content) = match self {
            Message::Hello(content) => (HELLO, 0, *content),
            Message::Welcome(content) => (WELCOME, 0, *content),
            Message::Refused(why) => (REFUSED, 0, why.as_bytes()),
            Message::Gather(rank, content) => (GATHER, *rank, *content),
            Message::Leave(rank, why) => (LEAVE, *rank, why.as_bytes()),
            Message::Probe => (PROBE, 0, &[][..]),
        };
        let mut bytes = Vec::with_capacity(5 + content.len());
        bytes.push(kind);
        bytes.extend((rank as u32).to_le_bytes());
        bytes.extend(content);
        bytes
    }

    /// Reads a message.
    ///
    /// # Errors
    ///
    /// A sentence about bytes that are no message.
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
            GATHER => Message::Gather(rank, content),
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
            Message::Gather(7, b"\0\xff"),
            Message::Leave(3, "ü"),
            Message::Probe,
        ] {
            assert_eq!(Message::decode(&message.encode()), Ok(message));
        }
        for bytes in [&b""[..], b"G", b"L\0\0\0\0\xff", b"?\0\0\0\0"] {
            assert!(Message::decode(bytes).is_err(), "{bytes:?}");
        }
    }
}
