//! Lossless compression of tensors: fast on the host, and in blocks that a GPU unpacks independently of each other.
//!
//! Data is a sequence of values of 1, 2, 4 or 8 bytes in blocks of 8 KiB. A [`Scheme`] transforms each value so that its
//! upper bytes vary little: floats are rotated so that the exponent is in the upper bytes, integers get their sign in the lowest bit, and
//! increasing integers become differences. The zeros of a block are removed if that saves space. The rest is stored byte by byte: the
//! lowest bytes of all values, the next bytes, and so on. Each of these planes has codes of a few bits for the most frequent range of
//! bytes, and exceptions for all other bytes.
//!
//! ```
//! use millpond_codec::Values;
//!
//! let numbers: Vec<u8> = (0..100_000_u32).flat_map(|at| (1.0 + at as f32 / 1e5).to_le_bytes()).collect();
//! let sample = millpond_codec::sample(&numbers, Values::Floats(4)).expect("enough data");
//! let mut packed = vec![0; millpond_codec::bound(numbers.len())];
//! let bytes = millpond_codec::pack(&numbers, &mut packed, sample.scheme).expect("there is room");
//! assert!(bytes < numbers.len() * 3 / 4);
//! let mut unpacked = vec![0; numbers.len()];
//! millpond_codec::unpack(&packed[..bytes], &mut unpacked)?;
//! assert_eq!(unpacked, numbers);
//! # Ok::<(), millpond_codec::CodecError>(())
//! ```
//!
//! This crate is a part of [millpond](https://docs.rs/millpond).
//!
//! # The format
//!
//! All numbers are little-endian. Packed data begins with the bytes `MPC1`, the size of a value (1 byte), the transform (1 byte), two bytes
//! of 0 and the number of bytes that were packed (8 bytes). If the transform is 255, these bytes follow unchanged. Otherwise the data
//! continues with:
//!
//! 1. For each block, 4 bytes with its end, in units of 4 bytes from the start of the first block.
//! 2. The remaining bytes that do not form a whole value, and bytes of 0 up to a multiple of 4.
//! 3. The blocks, each with bytes of 0 up to a multiple of 4.
//!
//! A block begins with the number of values in its planes (2 bytes), its kind (1 byte) and a byte of 0. Kind 0 continues with the unchanged
//! values. Kinds 1 and 2 continue with:
//!
//! 1. If the transform is 3, 8 bytes with the number that precedes the first difference.
//! 2. In kind 2, one bit for each value. It is 1 if the value is not 0. The planes contain only these values.
//! 3. For each plane, 8 bytes. The plane of the lowest bytes is first.
//! 4. The planes.
//!
//! The 8 bytes of a plane are its `base` and `width`, the `base` and `width` of its exceptions, the number of exceptions (2 bytes) and the
//! number of exceptions of these (2 bytes). A plane has codes of `width` bits, the first in the lowest bits. A code is the distance of the
//! byte from `base`, modulo 256. If there are exceptions, the largest code `top` marks each of them. `top` is subtracted from those
//! distances of exceptions that are below 128. The results follow in the same form as the bytes of the plane. Their own exceptions follow
//! in 8 bits each, after the same subtraction.

mod bits;
mod block;
mod plan;
mod plane;
mod sample;
mod unpack;

pub use sample::{Sample, Values, sample};
pub use unpack::{CodecError, unpack, unpacked_len};

use block::Packer;

/// The bytes of a block of values.
pub const BLOCK: usize = 8192;
/// The bytes of the header.
const HEADER: usize = 16;
const MAGIC: [u8; 4] = *b"MPC1";
/// The mark of data that is stored unchanged.
const STORED: u8 = 255;
/// The maximum number of bytes that are packed. Longer data is stored unchanged, so that the positions of blocks fit into 32 bits.
const MOST: usize = 8 << 30;

/// The transform of values before they are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transform {
    None = 0,
    /// The highest bit becomes the lowest.
    Rotate = 1,
    /// Negative numbers become odd positive ones.
    Zigzag = 2,
    /// The difference from the preceding value, transformed as by `Zigzag`.
    Delta = 3,
}

impl Transform {
    const ALL: [Self; 4] = [Self::None, Self::Rotate, Self::Zigzag, Self::Delta];
}

/// The way to pack some data, chosen by a [`sample`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheme {
    /// The bytes of a value.
    width: usize,
    transform: Transform,
}

impl Default for Scheme {
    /// Returns the scheme for values of 4 bytes that are not transformed.
    fn default() -> Self {
        let (width, transform) = (4, Transform::None);
        Self { width, transform }
    }
}

impl Scheme {
    /// Returns all schemes. Each of them packs any data without loss.
    pub fn all() -> impl Iterator<Item = Self> {
        let of = |width| Transform::ALL.map(|transform| Self { width, transform });
        [1, 2, 4, 8].into_iter().flat_map(of)
    }
}

/// Returns the maximum packed size of data of this length, in bytes.
#[must_use]
pub const fn bound(len: usize) -> usize {
    len.saturating_add(HEADER)
}

/// Packs data into the start of `to`, and returns the packed size in bytes, which is at most [`bound`]. Returns `None` if `to` is too
/// small.
#[must_use]
pub fn pack(from: &[u8], to: &mut [u8], scheme: Scheme) -> Option<usize> {
    let most = to.len().min(bound(from.len()));
    let (head, rest) = to.split_first_chunk_mut::<HEADER>()?;
    *head = header(from.len(), scheme.width as u8, scheme.transform as u8);
    if let Some(bytes) = pack_blocks(from, &mut rest[..most - HEADER], scheme) {
        return Some(HEADER + bytes);
    }
    *head = header(from.len(), 1, STORED);
    rest.get_mut(..from.len())?.copy_from_slice(from);
    Some(bound(from.len()))
}

fn header(len: usize, width: u8, transform: u8) -> [u8; HEADER] {
    let mut head = [0; HEADER];
    head[..4].copy_from_slice(&MAGIC);
    head[4] = width;
    head[5] = transform;
    head[8..].copy_from_slice(&(len as u64).to_le_bytes());
    head
}

/// Packs all that comes after the header.
fn pack_blocks(from: &[u8], to: &mut [u8], scheme: Scheme) -> Option<usize> {
    if from.len() > MOST {
        return None;
    }
    let (values, tail) = from.split_at(from.len() / scheme.width * scheme.width);
    let blocks = values.chunks(BLOCK);
    let (ends, rest) = to.split_at_mut_checked(4 * blocks.len())?;
    let (room, data) = rest.split_at_mut_checked(tail.len().next_multiple_of(4))?;
    room.fill(0);
    room[..tail.len()].copy_from_slice(tail);
    let before = ends.len() + room.len();
    let (mut packer, mut at) = (Packer::new(scheme), 0);
    for (block, end) in blocks.zip(ends.as_chunks_mut::<4>().0) {
        let packed = packer.pack(block);
        let room = data.get_mut(at..at + packed.len().next_multiple_of(4))?;
        at += room.len();
        let (content, padding) = room.split_at_mut(packed.len());
        content.copy_from_slice(packed);
        padding.fill(0);
        *end = ((at / 4) as u32).to_le_bytes();
    }
    Some(before + at)
}
