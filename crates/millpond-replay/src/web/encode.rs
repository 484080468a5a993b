//! Encodes columns of integers as varints, deflated, in base64.
//!
//! The page's script contains the matching decoder (`bytes.js`). Numbers must stay below 2^52, because a
//! script's numbers are doubles. Addresses of real devices are below 2^48.

use std::io::Write;

use base64::{Engine, prelude::BASE64_STANDARD};
use flate2::{Compression, write::DeflateEncoder};

/// A growing column of varints with seven bits in each byte, lowest bits first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Column(Vec<u8>);

impl Column {
    /// Appends a number.
    pub(crate) fn put(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// Appends a difference. Small values of either sign stay short.
    pub(crate) fn put_signed(&mut self, value: i64) {
        self.put(zigzag(value));
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Maps 0, -1, 1, -2, … to 0, 1, 2, 3, …
pub(crate) fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// Returns `to - from`, for columns of differences.
pub(crate) fn difference(to: u64, from: u64) -> i64 {
    to.wrapping_sub(from) as i64
}

/// Sections that share one element of the page. Each is its length (four bytes, lowest first) and its raw
/// deflate stream. They are compressed separately because each has its own statistics.
#[derive(Clone, Debug, Default)]
pub(crate) struct Blob(Vec<u8>);

impl Blob {
    /// Deflates `bytes` into a section.
    pub(crate) fn section(&mut self, bytes: &[u8]) {
        let start = self.0.len();
        self.0.extend_from_slice(&[0; 4]);
        // Writing into a vector cannot fail.
        let mut deflate = DeflateEncoder::new(std::mem::take(&mut self.0), Compression::best());
        let _ = deflate.write_all(bytes);
        self.0 = deflate.finish().unwrap_or_default();
        let length = (self.0.len() - start - 4) as u32;
        self.0[start..start + 4].copy_from_slice(&length.to_le_bytes());
    }

    /// Returns the bytes that the blob takes in the page.
    pub(crate) fn page_bytes(&self) -> u64 {
        self.0.len().div_ceil(3) as u64 * 4
    }

    /// Returns the blob in base64.
    pub(crate) fn base64(&self) -> String {
        BASE64_STANDARD.encode(&self.0)
    }
}

#[cfg(test)]
pub(crate) mod decode {
    //! The script's decoder in Rust, so that tests can check round trips.

    use std::io::Read;

    pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

    impl Reader<'_> {
        pub(crate) fn get(&mut self) -> u64 {
            let mut value = 0;
            let mut shift = 0;
            loop {
                let byte = self.0[0];
                self.0 = &self.0[1..];
                value |= u64::from(byte & 0x7f) << shift;
                if byte < 0x80 {
                    return value;
                }
                shift += 7;
            }
        }

        pub(crate) fn get_signed(&mut self) -> i64 {
            let value = self.get();
            (value >> 1) as i64 ^ -((value & 1) as i64)
        }
    }

    pub(crate) fn sections(blob: &super::Blob) -> Vec<Vec<u8>> {
        let mut rest = blob.0.as_slice();
        let mut all = Vec::new();
        while !rest.is_empty() {
            let (length, tail) = rest.split_at(4);
            let length = u32::from_le_bytes(length.try_into().unwrap()) as usize;
            let mut bytes = Vec::new();
            flate2::read::DeflateDecoder::new(&tail[..length])
                .read_to_end(&mut bytes)
                .unwrap();
            all.push(bytes);
            rest = &tail[length..];
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_the_round_trip() {
        let numbers = [0, 1, 127, 128, 300, 1 << 32, (1 << 52) - 1, u64::MAX];
        let mut column = Column::default();
        for number in numbers {
            column.put(number);
            column.put_signed(number as i64);
            column.put_signed((number as i64).wrapping_neg());
        }
        let mut reader = decode::Reader(column.bytes());
        for number in numbers {
            assert_eq!(reader.get(), number);
            assert_eq!(reader.get_signed(), number as i64);
            assert_eq!(reader.get_signed(), (number as i64).wrapping_neg());
        }
        assert!(reader.0.is_empty());
    }

    #[test]
    fn sections_survive_the_round_trip() {
        let mut blob = Blob::default();
        let sections = [b"".to_vec(), vec![7; 100_000], (0..=255).collect()];
        for section in &sections {
            blob.section(section);
        }
        assert_eq!(decode::sections(&blob), sections);
        assert_eq!(blob.base64().len() as u64, blob.page_bytes());
    }
}
