//! Unpacks on the host.

use crate::bits::stretch;
use crate::block::{MAPPED, PLANES, RAW, START};
use crate::plan::{Window, open};
use crate::plane::HEAD;
use crate::{BLOCK, HEADER, MAGIC, MOST, STORED, Transform};

/// The reason why data could not be unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The data does not begin with the header of packed data.
    #[error("this is not packed data, or its first 16 bytes are damaged")]
    Header,
    /// Bytes are missing at the end.
    #[error("the packed data ends after {found} bytes, before its last block")]
    Truncated {
        /// The bytes that were given.
        found: usize,
    },
    /// The length of the target differs from the length of the data.
    #[error("{expected} bytes were packed, but the target has {found}")]
    Length {
        /// The bytes that were packed.
        expected: u64,
        /// The bytes of the target.
        found: usize,
    },
    /// The content of a block contradicts itself.
    #[error("block {block} of the packed data is damaged")]
    Block {
        /// The number of the block, from 0.
        block: usize,
    },
}

/// Returns the number of bytes that were packed.
///
/// # Errors
/// Returns an error if the first bytes are not those of packed data.
pub fn unpacked_len(packed: &[u8]) -> Result<u64, CodecError> {
    Ok(Head::read(packed)?.len)
}

struct Head {
    width: usize,
    /// No transform for stored data.
    transform: Option<Transform>,
    len: u64,
}

impl Head {
    fn read(packed: &[u8]) -> Result<Self, CodecError> {
        let head = packed.first_chunk::<HEADER>().ok_or(CodecError::Header)?;
        let [m, p, c, one, width, transform, 0, 0, len @ ..] = *head else {
            return Err(CodecError::Header);
        };
        let (len, width) = (u64::from_le_bytes(len), usize::from(width));
        let transform = match transform {
            STORED => None,
            number => Some(
                *Transform::ALL
                    .get(usize::from(number))
                    .ok_or(CodecError::Header)?,
            ),
        };
        let is_valid = [m, p, c, one] == MAGIC && matches!(width, 1 | 2 | 4 | 8);
        if !is_valid || transform.is_some() && len > MOST as u64 {
            return Err(CodecError::Header);
        }
        Ok(Self {
            width,
            transform,
            len,
        })
    }
}

/// Unpacks data to `to`, which has the length of the data.
///
/// # Errors
/// Returns an error if the data is damaged or cut short, or if the length differs. The content of `to` is then unspecified.
pub fn unpack(packed: &[u8], to: &mut [u8]) -> Result<(), CodecError> {
    let head = Head::read(packed)?;
    if head.len != to.len() as u64 {
        return Err(CodecError::Length {
            expected: head.len,
            found: to.len(),
        });
    }
    let truncated = || CodecError::Truncated { found: packed.len() };
    let rest = &packed[HEADER..];
    let Some(transform) = head.transform else {
        to.copy_from_slice(rest.get(..to.len()).ok_or_else(truncated)?);
        return Ok(());
    };
    let (values, tail) = to.split_at_mut(to.len() / head.width * head.width);
    let blocks = values.chunks_mut(BLOCK);
    let (ends, rest) = rest.split_at_checked(4 * blocks.len()).ok_or_else(truncated)?;
    let (room, data) = rest
        .split_at_checked(tail.len().next_multiple_of(4))
        .ok_or_else(truncated)?;
    tail.copy_from_slice(&room[..tail.len()]);
    let (mut work, mut from) = (Work::new(), 0);
    for (block, (to, end)) in blocks.zip(ends.as_chunks::<4>().0).enumerate() {
        let end = 4 * u32::from_le_bytes(*end) as usize;
        if end > data.len() {
            return Err(truncated());
        }
        let damaged = CodecError::Block { block };
        let content = data.get(from..end).ok_or(damaged)?;
        work.unpack(content, head.width, transform, to).ok_or(damaged)?;
        from = end;
    }
    Ok(())
}

/// Memory for the work on one block.
struct Work {
    planes: [u8; BLOCK],
    outside: [u8; BLOCK],
}

impl Work {
    fn new() -> Box<Self> {
        Box::new(Self {
            planes: [0; BLOCK],
            outside: [0; BLOCK],
        })
    }

    /// Unpacks a block, or returns `None` if it is damaged.
    fn unpack(&mut self, content: &[u8], width: usize, transform: Transform, to: &mut [u8]) -> Option<()> {
        let (start, mut rest) = content.split_first_chunk::<START>()?;
        let [low, high, kind, _] = *start;
        let (kept, values) = (usize::from(u16::from_le_bytes([low, high])), to.len() / width);
        if kind == RAW {
            to.copy_from_slice(rest.get(..to.len())?);
            return Some(());
        }
        let mut first = 0;
        if transform == Transform::Delta {
            first = u64::from_le_bytes(*rest.split_off(..8)?.first_chunk()?);
        }
        let map = match kind {
            PLANES if kept == values => None,
            MAPPED if kept <= values => Some(rest.split_off(..values.div_ceil(8))?),
            _ => return None,
        };
        let heads = rest.split_off(..HEAD * width)?.as_chunks::<HEAD>().0;
        let stride = BLOCK / width;
        for (head, plane) in heads.iter().zip(self.planes.chunks_mut(stride)) {
            unpack_plane(head, &mut rest, &mut self.outside, &mut plane[..kept])?;
        }
        let planes = &self.planes;
        match width {
            1 => u8::join(planes, kept, map, transform, first, to),
            2 => u16::join(planes, kept, map, transform, first, to),
            4 => u32::join(planes, kept, map, transform, first, to),
            _ => u64::join(planes, kept, map, transform, first, to),
        }
    }
}

/// The unsigned integer type of a value.
trait Value: Sized {
    /// Writes the values of planes. Returns `None` if the number of bits in `map` that are 1 is not `kept`.
    fn join(
        planes: &[u8; BLOCK],
        kept: usize,
        map: Option<&[u8]>,
        transform: Transform,
        first: u64,
        to: &mut [u8],
    ) -> Option<()>;
    /// Undoes a transform.
    fn restore(values: &mut [Self], transform: Transform, first: Self);
}

macro_rules! values {
    ($($type:ty, $bytes:literal;)*) => {
        $(
            impl Value for $type {
                fn join(
                    planes: &[u8; BLOCK],
                    kept: usize,
                    map: Option<&[u8]>,
                    transform: Transform,
                    first: u64,
                    to: &mut [u8],
                ) -> Option<()> {
                    let mut values = [0; BLOCK / $bytes];
                    let values = &mut values[..to.len() / $bytes];
                    for (place, plane) in planes.chunks(BLOCK / $bytes).enumerate() {
                        for (value, byte) in values.iter_mut().zip(&plane[..kept]) {
                            *value |= Self::from(*byte) << (8 * place);
                        }
                    }
                    if let Some(map) = map {
                        spread(values, kept, map)?;
                    }
                    Self::restore(values, transform, first as Self);
                    for (to, value) in to.as_chunks_mut().0.iter_mut().zip(values) {
                        *to = value.to_le_bytes();
                    }
                    Some(())
                }

                fn restore(values: &mut [Self], transform: Transform, first: Self) {
                    let signed = |value: Self| value >> 1 ^ (value & 1).wrapping_neg();
                    let values = values.iter_mut();
                    match transform {
                        Transform::None => {}
                        Transform::Rotate => values.for_each(|value| *value = value.rotate_right(1)),
                        Transform::Zigzag => values.for_each(|value| *value = signed(*value)),
                        Transform::Delta => {
                            values.fold(first, |last, value| {
                                *value = last.wrapping_add(signed(*value));
                                *value
                            });
                        }
                    }
                }
            }
        )*
    };
}

values! {
    u8, 1;
    u16, 2;
    u32, 4;
    u64, 8;
}

/// Moves the first `kept` values to the places whose bit in `map` is 1, and writes 0 to the others. Returns `None` if the number of these
/// places is not `kept`.
fn spread<T: Copy + Default>(values: &mut [T], kept: usize, map: &[u8]) -> Option<()> {
    let mut left = kept;
    // From the end, so that no value is overwritten before it is moved.
    for at in (0..values.len()).rev() {
        let is_kept = map.get(at / 8)? >> (at % 8) & 1 == 1;
        values[at] = if is_kept {
            left = left.checked_sub(1)?;
            values[left]
        } else {
            T::default()
        };
        // There are not enough places left for the values.
        if left > at {
            return None;
        }
    }
    (left == 0).then_some(())
}

/// Unpacks a plane from the start of `rest`, which then begins after it.
fn unpack_plane(head: &[u8; HEAD], rest: &mut &[u8], outside: &mut [u8; BLOCK], to: &mut [u8]) -> Option<()> {
    let [base, width, outside_base, outside_width, numbers @ ..] = *head;
    let [some_low, some_high, rest_low, rest_high] = numbers;
    let exceptions = usize::from(u16::from_le_bytes([some_low, some_high]));
    let raw = usize::from(u16::from_le_bytes([rest_low, rest_high]));
    let codes = take_codes(rest, to.len(), width)?;
    let outside = outside.get_mut(..exceptions)?;
    if exceptions > 0 {
        let codes = take_codes(rest, exceptions, outside_width)?;
        let raw = rest.split_off(..raw)?;
        let window = Window {
            base: outside_base,
            width: outside_width,
        };
        unpack_level(codes, window, raw, outside)?;
    }
    unpack_level(codes, Window { base, width }, outside, to)
}

/// Returns the bytes of `len` codes, and removes them from `rest`.
fn take_codes<'a>(rest: &mut &'a [u8], len: usize, width: u8) -> Option<&'a [u8]> {
    if width > 8 {
        return None;
    }
    rest.split_off(..(len * usize::from(width)).div_ceil(8))
}

/// Writes the values of codes. All values outside the window must be used.
fn unpack_level(codes: &[u8], window: Window, outside: &[u8], to: &mut [u8]) -> Option<()> {
    stretch(codes, usize::from(window.width), to);
    let (mut outside, top) = (outside.iter(), window.top());
    if outside.len() > 0 {
        for distance in to.iter_mut().filter(|distance| **distance == top) {
            *distance = open(*outside.next()?, top);
        }
    }
    to.iter_mut()
        .for_each(|distance| *distance = distance.wrapping_add(window.base));
    outside.next().is_none().then_some(())
}
