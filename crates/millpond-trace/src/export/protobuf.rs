//! Writes the required part of protocol buffers: numbers, texts and nested messages.

/// A message being written.
#[derive(Clone, Debug, Default)]
pub(super) struct Message {
    bytes: Vec<u8>,
}

/// The wire types of field values.
const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const DELIMITED: u64 = 2;

impl Message {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    fn key(&mut self, field: u32, kind: u64) {
        self.varint(u64::from(field) << 3 | kind);
    }

    /// Writes an unsigned number, an enumeration or a truth value.
    pub(super) fn number(&mut self, field: u32, value: u64) -> &mut Self {
        self.key(field, VARINT);
        self.varint(value);
        self
    }

    /// Writes a signed number.
    pub(super) fn signed(&mut self, field: u32, value: i64) -> &mut Self {
        self.number(field, value as u64)
    }

    pub(super) fn double(&mut self, field: u32, value: f64) -> &mut Self {
        self.key(field, FIXED64);
        self.bytes.extend(value.to_bits().to_le_bytes());
        self
    }

    pub(super) fn text(&mut self, field: u32, text: &str) -> &mut Self {
        self.delimited(field, text.as_bytes())
    }

    pub(super) fn message(&mut self, field: u32, message: &Self) -> &mut Self {
        self.delimited(field, &message.bytes)
    }

    /// Writes the message that `fill` writes.
    pub(super) fn nested(&mut self, field: u32, fill: impl FnOnce(&mut Self)) -> &mut Self {
        let mut message = Self::new();
        fill(&mut message);
        self.message(field, &message)
    }

    /// Writes several numbers in one field.
    pub(super) fn packed(&mut self, field: u32, values: impl IntoIterator<Item = u64>) -> &mut Self {
        let mut packed = Self::new();
        for value in values {
            packed.varint(value);
        }
        self.message(field, &packed)
    }

    fn delimited(&mut self, field: u32, bytes: &[u8]) -> &mut Self {
        self.key(field, DELIMITED);
        self.varint(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of the specification of the encoding.
    #[test]
    fn numbers_and_texts_are_encoded_as_specified() {
        let mut message = Message::new();
        message.number(1, 150);
        assert_eq!(message.bytes(), [0x08, 0x96, 0x01]);
        let mut message = Message::new();
        message.number(1, 127).number(1, 128);
        assert_eq!(message.bytes(), [0x08, 0x7f, 0x08, 0x80, 0x01]);
        let mut message = Message::new();
        message.text(2, "testing");
        assert_eq!(message.bytes(), b"\x12\x07testing");
        let mut message = Message::new();
        message.packed(4, [3, 270, 86_942]);
        assert_eq!(message.bytes(), [0x22, 6, 3, 0x8e, 2, 0x9e, 0xa7, 5]);
        let mut message = Message::new();
        message.signed(1, -2);
        assert_eq!(
            message.bytes(),
            [8, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]
        );
        let mut message = Message::new();
        message.double(16, 1.0);
        assert_eq!(message.bytes(), [0x81, 1, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f]);
    }
}
