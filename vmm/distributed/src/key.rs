//! Key of a run, which all processes of the run share.

use std::fmt;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Environment variable that may have the key as text.
pub const KEY_VARIABLE: &str = "NODESCOPE_KEY";

/// Characters of a key as text: two CURVE keys of 32 bytes in Z85 (ZeroMQ RFC 32).
const CHARACTERS: usize = 80;

/// A key pair of CURVE (ZeroMQ RFC 26). All processes of a run have the same pair, and accept only connections with this pair.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    pub(crate) public: Vec<u8>,
    pub(crate) secret: Vec<u8>,
}

/// Reason why there is no key.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum KeyError {
    #[error("cannot make a key: {0}")]
    Make(zmq::Error),
    #[error("cannot read the key {}: {source}", .path.display())]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{origin} holds no key: a key is {CHARACTERS} characters of Z85")]
    Form { origin: String },
    #[error(
        "there is no key; give one with --key-file, or in the environment variable {KEY_VARIABLE}"
    )]
    None,
}

impl Key {
    /// Makes a new key.
    ///
    /// # Errors
    ///
    /// A libzmq that was built without CURVE.
    pub fn new() -> Result<Self, KeyError> {
        let pair = zmq::CurveKeyPair::new().map_err(KeyError::Make)?;
        Ok(Self {
            public: pair.public_key.into(),
            secret: pair.secret_key.into(),
        })
    }

    /// Returns the key as text, which [`Key::parse`] reads.
    pub fn text(&self) -> String {
        let part = |bytes: &[u8]| zmq::z85_encode(bytes).expect("32 bytes have a form in Z85");
        part(&self.public) + &part(&self.secret)
    }

    /// Reads a key from text. `origin` names the source of the text for messages.
    ///
    /// # Errors
    ///
    /// A text that is not a key.
    pub fn parse(text: &str, origin: &str) -> Result<Self, KeyError> {
        let form = || KeyError::Form {
            origin: origin.into(),
        };
        let text = text.trim();
        if text.len() != CHARACTERS || !text.is_ascii() {
            return Err(form());
        }
        let (public, secret) = text.split_at(CHARACTERS / 2);
        let part = |text| zmq::z85_decode(text).map_err(|_| form());
        Ok(Self {
            public: part(public)?,
            secret: part(secret)?,
        })
    }

    /// Reads the key from `file`, or from [`KEY_VARIABLE`] if `file` is none.
    ///
    /// # Errors
    ///
    /// No key, a file that cannot be read, or a text that is not a key.
    pub fn find(file: Option<&Path>) -> Result<Self, KeyError> {
        if let Some(path) = file {
            let text = std::fs::read_to_string(path).map_err(|source| KeyError::Read {
                path: path.into(),
                source,
            })?;
            return Self::parse(&text, &path.display().to_string());
        }
        let text = std::env::var(KEY_VARIABLE).map_err(|_| KeyError::None)?;
        Self::parse(&text, KEY_VARIABLE)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_its_text_and_nothing_else_is_one() {
        let key = Key::new().unwrap();
        assert_eq!(Key::parse(&format!("{}\n", key.text()), "x").unwrap(), key);
        assert_ne!(Key::new().unwrap(), key);
        for text in ["", "short", &"ü".repeat(40), &" ".repeat(80)] {
            let error = Key::parse(text, "k").unwrap_err().to_string();
            assert!(error.starts_with("k holds no key"), "{error}");
        }
        assert_eq!(format!("{key:?}"), "Key", "logs do not show it");
    }
}
