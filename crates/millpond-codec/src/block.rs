//! Packs a block: the transform, the values that are 0, and the planes.

use crate::bits::{Lanes, groups, keep_in_place, masks};
use crate::plan::Plan;
use crate::plane::{HEAD, ROOM, Scratch};
use crate::{BLOCK, Scheme, Transform};

/// The kinds of a block.
pub(crate) const RAW: u8 = 0;
pub(crate) const PLANES: u8 = 1;
/// Planes without the values that are 0, after one bit for each value.
pub(crate) const MAPPED: u8 = 2;
/// The bytes before the content of a block.
pub(crate) const START: usize = 4;

/// Packs blocks one after the other.
pub(crate) struct Packer {
    scheme: Scheme,
    plans: [Plan; 8],
    /// The packed bits per value that is not 0, in the last block.
    value_bits: usize,
    values: [u8; BLOCK],
    planes: [u8; BLOCK],
    flags: [u8; BLOCK],
    scratch: Scratch,
    packed: [u8; BLOCK / 8 + 8 * HEAD + 2 * BLOCK + ROOM],
}

impl Packer {
    pub(crate) fn new(scheme: Scheme) -> Box<Self> {
        Box::new(Self {
            scheme,
            plans: [Plan::RAW; 8],
            value_bits: 8 * scheme.width,
            values: [0; BLOCK],
            planes: [0; BLOCK],
            flags: [0; BLOCK],
            scratch: Scratch::NEW,
            packed: [0; _],
        })
    }

    pub(crate) fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Packs at most [`BLOCK`] bytes of whole values.
    pub(crate) fn pack(&mut self, from: &[u8]) -> &[u8] {
        let len = match Lanes::detect() {
            // SAFETY: there are lanes only if the processor has AVX2.
            #[cfg(target_arch = "x86_64")]
            Some(lanes) => unsafe { self.pack_by_lanes(lanes, from) },
            _ => self.pack_any(None, from),
        };
        &self.packed[..len]
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,popcnt")]
    fn pack_by_lanes(&mut self, lanes: Lanes, from: &[u8]) -> usize {
        self.pack_any(Some(lanes), from)
    }

    #[inline(always)]
    fn pack_any(&mut self, lanes: Option<Lanes>, from: &[u8]) -> usize {
        let (first, zeros) = match self.scheme.width {
            1 => self.split::<u8>(from),
            2 => self.split::<u16>(from),
            4 => self.split::<u32>(from),
            _ => self.split::<u64>(from),
        };
        let (width, values) = (self.scheme.width, from.len() / self.scheme.width);
        let (padded, stride) = (values.next_multiple_of(8), BLOCK / width);
        let mut at = START;
        if self.scheme.transform == Transform::Delta {
            self.packed[at..at + 8].copy_from_slice(&first.to_le_bytes());
            at += 8;
        }
        // A bit for each value costs less than the zeros.
        let is_mapped = zeros * self.value_bits > values + values / 16;
        let kept = if is_mapped { values - zeros } else { values };
        if is_mapped {
            let flags = &mut self.flags[..padded];
            flags[values..].fill(0);
            let map = &mut self.packed[at..at + padded / 8];
            masks(groups(flags), map);
            for plane in self.planes.chunks_mut(stride).take(width) {
                keep_in_place(lanes, &mut plane[..padded], map);
            }
            at += padded / 8;
        }
        let heads = at;
        at += HEAD * width;
        for (place, plan) in self.plans.iter_mut().enumerate().take(width) {
            let plane = &self.planes[place * stride..][..kept];
            let (head, bytes) = self.scratch.pack(lanes, plane, plan, &mut self.packed[at..]);
            self.packed[heads + HEAD * place..][..HEAD].copy_from_slice(&head);
            at += bytes;
        }
        self.value_bits = (8 * (at - heads)).checked_div(kept).unwrap_or(self.value_bits);
        let kind = match at < START + from.len() {
            false => RAW,
            true if is_mapped => MAPPED,
            true => PLANES,
        };
        if kind == RAW {
            at = START + from.len();
            self.packed[START..at].copy_from_slice(from);
        }
        let [low, high] = (kept as u16).to_le_bytes();
        self.packed[..START].copy_from_slice(&[low, high, kind, 0]);
        at
    }

    /// Transforms values, and writes their planes and one flag for each value, which is 0 for a zero. Returns the number that precedes the
    /// first difference, and the number of zeros.
    #[inline(always)]
    fn split<T: Value>(&mut self, from: &[u8]) -> (u64, usize) {
        let (width, values) = (size_of::<T>(), from.len() / size_of::<T>());
        let first = transform::<T>(self.scheme.transform, from, &mut self.values);
        let changed = match self.scheme.transform {
            Transform::None => from,
            _ => &self.values[..from.len()],
        };
        T::flag(changed, &mut self.flags[..values]);
        for (place, plane) in self.planes.chunks_mut(BLOCK / width).enumerate() {
            T::split(changed, place, &mut plane[..values]);
        }
        (first, values - ones(&self.flags[..values]))
    }
}

/// Returns the sum of bytes that are 0 or 1.
#[inline(always)]
fn ones(flags: &[u8]) -> usize {
    // The sum of 128 flags fits into a byte, and the processor adds many bytes at once.
    let sums = flags.chunks(128).map(|flags| flags.iter().sum::<u8>());
    sums.map(usize::from).sum()
}

/// The unsigned integer type of a value.
pub(crate) trait Value: Copy {
    /// Reads all values, applies a function to each and its predecessor, which is 0 for the first, and writes the results.
    fn each(from: &[u8], to: &mut [u8], first: Self, f: impl Fn(Self, Self) -> Self);
    fn rotate(self) -> Self;
    fn zigzag(self) -> Self;
    fn minus(self, other: Self) -> Self;
    /// Returns value `at`, or 0 if there is none.
    fn get(from: &[u8], at: usize) -> Self;
    fn wide(self) -> u64;
    /// Writes byte `place` of each value.
    fn split(from: &[u8], place: usize, to: &mut [u8]);
    /// Writes 1 for each value that is not 0.
    fn flag(from: &[u8], to: &mut [u8]);
}

macro_rules! values {
    ($($type:ty, $bytes:literal, $signed:ty;)*) => {
        $(
            impl Value for $type {
                #[inline(always)]
                fn each(from: &[u8], to: &mut [u8], first: Self, f: impl Fn(Self, Self) -> Self) {
                    let (from, to) = (from.as_chunks::<$bytes>().0, to.as_chunks_mut::<$bytes>().0);
                    let (Some(one), Some(target)) = (from.first(), to.first_mut()) else {
                        return;
                    };
                    *target = f(Self::from_le_bytes(*one), first).to_le_bytes();
                    for ((value, before), to) in from[1..].iter().zip(from).zip(&mut to[1..]) {
                        *to = f(Self::from_le_bytes(*value), Self::from_le_bytes(*before)).to_le_bytes();
                    }
                }

                #[inline(always)]
                fn rotate(self) -> Self {
                    self.rotate_left(1)
                }

                #[inline(always)]
                fn zigzag(self) -> Self {
                    (self << 1) ^ ((self as $signed >> (Self::BITS - 1)) as Self)
                }

                #[inline(always)]
                fn minus(self, other: Self) -> Self {
                    self.wrapping_sub(other)
                }

                #[inline(always)]
                fn get(from: &[u8], at: usize) -> Self {
                    from.as_chunks().0.get(at).map_or(0, |value| Self::from_le_bytes(*value))
                }

                #[inline(always)]
                fn wide(self) -> u64 {
                    self.into()
                }

                #[inline(always)]
                fn split(from: &[u8], place: usize, to: &mut [u8]) {
                    for (value, to) in from.as_chunks::<$bytes>().0.iter().zip(to) {
                        *to = (Self::from_le_bytes(*value) >> (8 * place)) as u8;
                    }
                }

                #[inline(always)]
                fn flag(from: &[u8], to: &mut [u8]) {
                    for (value, to) in from.as_chunks::<$bytes>().0.iter().zip(to) {
                        *to = u8::from(Self::from_le_bytes(*value) != 0);
                    }
                }
            }
        )*
    };
}

values! {
    u8, 1, i8;
    u16, 2, i16;
    u32, 4, i32;
    u64, 8, i64;
}

/// Transforms values. Returns the number that precedes the first difference.
#[inline(always)]
fn transform<T: Value>(transform: Transform, from: &[u8], to: &mut [u8]) -> u64 {
    let zero = T::get(&[], 0);
    match transform {
        Transform::None => {}
        Transform::Rotate => T::each(from, to, zero, |value, _| value.rotate()),
        Transform::Zigzag => T::each(from, to, zero, |value, _| value.zigzag()),
        Transform::Delta => {
            // The first difference equals the second one, so that equal differences need no exception.
            let (one, two) = (T::get(from, 0), T::get(from, 1));
            let first = one.minus(two.minus(one));
            T::each(from, to, first, |value, before| value.minus(before).zigzag());
            return first.wide();
        }
    }
    0
}
