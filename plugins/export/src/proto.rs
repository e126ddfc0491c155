//! The wire format of protocol buffers, as far as Perfetto needs it (protobuf.dev, "Encoding").

/// A message being encoded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// A uint32, uint64, bool or enum field.
    pub(crate) fn number(&mut self, field: u32, value: u64) -> &mut Message {
        self.varint(u64::from(field) << 3);
        self.varint(value);
        self
    }

    /// A fixed64 field.
    pub(crate) fn fixed(&mut self, field: u32, value: u64) -> &mut Message {
        self.varint(u64::from(field) << 3 | 1);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// A string or bytes field.
    pub(crate) fn text(&mut self, field: u32, text: impl AsRef<[u8]>) -> &mut Message {
        let text = text.as_ref();
        self.varint(u64::from(field) << 3 | 2);
        self.varint(text.len() as u64);
        self.0.extend(text);
        self
    }

    /// A message field, encoded by `build` into this message's own buffer.
    pub(crate) fn message(&mut self, field: u32, build: impl FnOnce(&mut Message)) -> &mut Message {
        self.varint(u64::from(field) << 3 | 2);
        let start = self.0.len();
        build(self);
        let length = self.0.len() - start;
        let mut prefix = Message::default();
        prefix.varint(length as u64);
        // The length comes before what it is of: short, since messages are.
        self.0.splice(start..start, prefix.0);
        self
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Begins anew.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}
