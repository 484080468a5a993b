//! Packs a plane, which is one byte of each value of a block.

use crate::BLOCK;
use crate::bits::{Lanes, SLACK, groups, keep, masks, squeeze};
use crate::plan::{Plan, Window, close, plan};

/// The bytes of the header of a plane.
pub(crate) const HEAD: usize = 8;
/// The maximum number of bytes that are written for a plane, including those that the next plane overwrites.
pub(crate) const ROOM: usize = 3 * BLOCK + 2 * SLACK;
/// A plane that is stored unchanged is examined again after this number of blocks.
const PATIENCE: u8 = 32;

/// The minimum size of a plane for which a few of its bytes show whether some bits are constant.
const SEEN: usize = 1024;

/// Memory for the work on one plane.
pub(crate) struct Scratch {
    codes: [u8; BLOCK],
    flags: [u8; BLOCK],
    masks: [u8; BLOCK / 8],
    /// The values outside the first window, and those outside the second.
    outside: [[u8; BLOCK]; 2],
}

impl Scratch {
    pub(crate) const NEW: Self = Self {
        codes: [0; BLOCK],
        flags: [0; BLOCK],
        masks: [0; BLOCK / 8],
        outside: [[0; BLOCK]; 2],
    };

    /// Packs a plane into the start of `to`, which has [`ROOM`] bytes. Returns its header and the number of bytes. `last` is the plan that
    /// packed the same plane of the last block. It is replaced if it does not fit.
    #[inline(always)]
    pub(crate) fn pack(
        &mut self,
        lanes: Option<Lanes>,
        plane: &[u8],
        last: &mut Plan,
        to: &mut [u8],
    ) -> ([u8; HEAD], usize) {
        last.age = last.age.saturating_add(1);
        let is_raw = last.windows[0].width == 8;
        let mut is_unfit =
            is_raw && (last.age >= PATIENCE || plane.len() >= SEEN && constant_bits(plane) != 0);
        loop {
            if is_unfit {
                *last = plan(&count(plane));
            }
            let packed = self.pack_by(lanes, plane, last.windows, to);
            let expected = last.bits * plane.len() / 256;
            let has_changed = (8 * packed.1).abs_diff(expected) > expected / 8 + 1024;
            if !has_changed || last.age == 0 {
                return packed;
            }
            is_unfit = true;
        }
    }

    /// Packs a plane by these windows, or copies it if that is smaller.
    #[inline(always)]
    fn pack_by(
        &mut self,
        lanes: Option<Lanes>,
        plane: &[u8],
        [first, second]: [Window; 2],
        to: &mut [u8],
    ) -> ([u8; HEAD], usize) {
        if first.width == 8 {
            return raw(plane, to);
        }
        let (mut bytes, outside) = self.level::<0>(lanes, plane.len(), Some(plane), first, to);
        let mut head = [first.base, first.width, 0, 0, 0, 0, 0, 0];
        if outside > 0 {
            let (more, rest) = self.level::<1>(lanes, outside, None, second, &mut to[bytes..]);
            bytes += more;
            to[bytes..bytes + rest].copy_from_slice(&self.outside[1][..rest]);
            bytes += rest;
            head[2] = second.base;
            head[3] = second.width;
            head[4..6].copy_from_slice(&(outside as u16).to_le_bytes());
            head[6..8].copy_from_slice(&(rest as u16).to_le_bytes());
        }
        // Codes of 0 bits cannot mark the values outside the window.
        let is_marked = |width, outside| width > 0 || outside == 0;
        let is_valid = is_marked(head[1], outside) && is_marked(head[3], usize::from(head[6] | head[7]));
        if is_valid && bytes < plane.len() {
            return (head, bytes);
        }
        raw(plane, to)
    }

    /// Writes the codes of values. Returns the number of bytes, and the number of values outside the window, which are then in
    /// `outside[LEVEL]`.
    #[inline(always)]
    fn level<const LEVEL: usize>(
        &mut self,
        lanes: Option<Lanes>,
        len: usize,
        plane: Option<&[u8]>,
        window: Window,
        to: &mut [u8],
    ) -> (usize, usize) {
        let [before, after] = &mut self.outside;
        let (from, outside) = match plane {
            Some(plane) => (plane, before),
            None => (&before[..len], after),
        };
        if window.width == 8 {
            to[..len].copy_from_slice(from);
            return (len, 0);
        }
        let (base, top) = (window.base, window.top());
        let padded = len.next_multiple_of(8);
        let codes = &mut self.codes[..padded];
        codes[len..].fill(0);
        let (mut at_top, mut above) = (0, 0);
        // The counts of 128 values fit into a byte, and the processor adds many bytes at once.
        for (from, codes) in from.chunks(128).zip(codes.chunks_mut(128)) {
            let (mut here, mut there) = (0_u8, 0_u8);
            for (from, code) in from.iter().zip(codes) {
                let distance = from.wrapping_sub(base);
                *code = distance.min(top);
                here += u8::from(distance >= top);
                there += u8::from(distance > top);
            }
            at_top += usize::from(here);
            above += usize::from(there);
        }
        let width = usize::from(window.width);
        squeeze(lanes, groups(codes), width, to);
        let bytes = (len * width).div_ceil(8);
        if above == 0 {
            return (bytes, 0);
        }
        let flags = &mut self.flags[..padded];
        flags[len..].fill(0);
        for ((from, closed), flag) in from.iter().zip(&mut *codes).zip(&mut *flags) {
            let distance = from.wrapping_sub(base);
            *closed = close(distance, top);
            *flag = u8::from(distance >= top);
        }
        let map = &mut self.masks[..padded / 8];
        masks(groups(flags), map);
        let kept = keep(lanes, groups(codes), map, &mut outside[..padded]);
        debug_assert_eq!(kept, at_top);
        (bytes, kept)
    }
}

/// Copies a plane unchanged.
#[inline(always)]
fn raw(plane: &[u8], to: &mut [u8]) -> ([u8; HEAD], usize) {
    to[..plane.len()].copy_from_slice(plane);
    ([0, 8, 0, 0, 0, 0, 0, 0], plane.len())
}

/// Returns a mask of the bits that are equal in a sample of the bytes.
#[inline(always)]
fn constant_bits(plane: &[u8]) -> u8 {
    let some = plane.chunks(64).filter_map(|chunk| chunk.first());
    let (and, or) = some.fold((u8::MAX, 0), |(and, or), byte| (and & byte, or | byte));
    !(and ^ or)
}

#[inline(always)]
fn count(plane: &[u8]) -> [u16; 256] {
    // Several tables, because the processor would wait for the last count of an equal byte.
    let mut counts = [[0_u16; 256]; 4];
    for four in plane.chunks(4) {
        for (counts, byte) in counts.iter_mut().zip(four) {
            counts[usize::from(*byte)] += 1;
        }
    }
    let [mut sums, rest @ ..] = counts;
    for counts in rest {
        sums.iter_mut().zip(counts).for_each(|(sum, more)| *sum += more);
    }
    sums
}
