//! Packs codes of a few bits, and moves selected bytes together. The functions that pack are compiled twice: for processors with AVX2 and
//! for all others.

/// Eight bytes that are processed at once.
pub(crate) type Group = [u8; 8];

/// The bytes that [`squeeze`] may write after the last code.
pub(crate) const SLACK: usize = 8;

/// The proof that the processor has AVX2.
#[derive(Clone, Copy)]
pub(crate) struct Lanes(());

impl Lanes {
    pub(crate) fn detect() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("popcnt") {
            return Some(Self(()));
        }
        None
    }
}

/// Writes the lowest `width` bits of each byte, the first byte in the lowest bits. `to` has `width` bytes for each group and
/// [`SLACK`] bytes more. The other bits of each byte must be 0, and `width` is at most 7.
#[inline(always)]
pub(crate) fn squeeze(lanes: Option<Lanes>, codes: &[Group], width: usize, to: &mut [u8]) {
    let (fours, mut rest) = codes.as_chunks::<4>();
    let mut at = 0;
    // All eight bytes are written. The next group overwrites those that are not used.
    let mut put = |all: u64| {
        if let Some(room) = to.get_mut(at..at + 8) {
            room.copy_from_slice(&all.to_le_bytes());
        }
        at += width;
    };
    #[cfg(target_arch = "x86_64")]
    if lanes.is_some() {
        for four in fours {
            // SAFETY: there are lanes only if the processor has AVX2.
            let all = unsafe { together_by_lanes(four, width) };
            all.into_iter().for_each(&mut put);
        }
    } else {
        rest = codes;
    }
    for group in rest {
        put(together(*group, width));
    }
}

/// Returns the lowest `width` bits of eight bytes as one number.
#[inline(always)]
fn together(codes: Group, width: usize) -> u64 {
    const PAIRS: u64 = 0x00FF_00FF_00FF_00FF;
    const QUADS: u64 = 0x0000_FFFF_0000_FFFF;
    let codes = u64::from_le_bytes(codes);
    let pairs = codes & PAIRS | (codes & !PAIRS) >> (8 - width);
    let quads = pairs & QUADS | (pairs & !QUADS) >> (16 - 2 * width);
    quads & 0xFFFF_FFFF | (quads >> 32) << (4 * width)
}

/// Does what [`together`] does for four groups.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
fn together_by_lanes(codes: &[Group; 4], width: usize) -> [u64; 4] {
    use std::arch::x86_64::{
        __m256i, _mm_cvtsi32_si128, _mm256_and_si256, _mm256_extract_epi64, _mm256_madd_epi16,
        _mm256_maddubs_epi16, _mm256_or_si256, _mm256_set_epi64x, _mm256_set1_epi16, _mm256_set1_epi32,
        _mm256_set1_epi64x, _mm256_sll_epi64, _mm256_srli_epi64,
    };

    let [one, two, three, four] = codes.map(i64::from_le_bytes);
    let codes: __m256i = _mm256_set_epi64x(four, three, two, one);
    // Each pair of bytes becomes `first + second << width`, and each pair of these `first + second << 2 * width`.
    let pairs = _mm256_maddubs_epi16(_mm256_set1_epi16(1 | 256 << width), codes);
    let quads = _mm256_madd_epi16(pairs, _mm256_set1_epi32(1 | 65536 << (2 * width)));
    let low = _mm256_and_si256(quads, _mm256_set1_epi64x(0xFFFF_FFFF));
    let high = _mm256_sll_epi64(
        _mm256_srli_epi64::<32>(quads),
        _mm_cvtsi32_si128(4 * width as i32),
    );
    let all = _mm256_or_si256(low, high);
    [
        _mm256_extract_epi64::<0>(all),
        _mm256_extract_epi64::<1>(all),
        _mm256_extract_epi64::<2>(all),
        _mm256_extract_epi64::<3>(all),
    ]
    .map(|all| all as u64)
}

/// Writes a bit for each byte, which is 0 or 1. `to` has a byte for each group.
#[inline(always)]
pub(crate) fn masks(flags: &[Group], to: &mut [u8]) {
    for (group, mask) in flags.iter().zip(to) {
        // Bit n of the highest byte of the product is byte n of the factor.
        *mask = (u64::from_le_bytes(*group).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8;
    }
}

/// Unpacks eight codes of `width` bits from the lowest bits of `codes`, and returns each of them in its own byte.
#[inline(always)]
fn spread(codes: u64, width: u32) -> u64 {
    let low = |bits: u32| (1_u64 << bits) - 1;
    let quads = codes & low(4 * width) | (codes >> (4 * width) & low(4 * width)) << 32;
    let pairs = quads & (low(2 * width) * 0x1_0000_0001)
        | (quads << (16 - 2 * width)) & ((low(2 * width) << 16) * 0x1_0000_0001);
    let each = low(width) * 0x0001_0001_0001_0001;
    pairs & each | (pairs << (8 - width)) & (each << 8)
}

/// Reads codes of `width` bits. Those beyond the end of `codes` are 0.
pub(crate) fn stretch(codes: &[u8], width: usize, to: &mut [u8]) {
    match width {
        0 => to.fill(0),
        8 => {
            let len = to.len().min(codes.len());
            to[..len].copy_from_slice(&codes[..len]);
            to[len..].fill(0);
        }
        _ => {
            for (number, to) in to.chunks_mut(8).enumerate() {
                let rest = codes.get(number * width..).unwrap_or_default();
                let group = match rest.first_chunk() {
                    Some(group) => *group,
                    None => {
                        let mut group = [0; 8];
                        group[..rest.len()].copy_from_slice(rest);
                        group
                    }
                };
                let each = spread(u64::from_le_bytes(group), width as u32).to_le_bytes();
                to.copy_from_slice(&each[..to.len()]);
            }
        }
    }
}

/// Copies the bytes whose bit in `masks` is 1 to the start of `to`, and returns their number. `to` has as many bytes as `from`.
#[inline(always)]
pub(crate) fn keep(lanes: Option<Lanes>, from: &[Group], masks: &[u8], to: &mut [u8]) -> usize {
    let mut kept = 0;
    for (group, mask) in from.iter().zip(masks) {
        let together = order(lanes, *group, *mask);
        // All eight bytes are written, but only the kept ones advance the position. No more bytes are kept than were read, so there is
        // room for eight.
        if let Some(room) = to.get_mut(kept..kept + 8) {
            room.copy_from_slice(&together);
        }
        kept += mask.count_ones() as usize;
    }
    kept
}

/// Does what [`keep`] does within one buffer, and fills the last group with 0.
#[inline(always)]
pub(crate) fn keep_in_place(lanes: Option<Lanes>, bytes: &mut [u8], masks: &[u8]) {
    let mut kept = 0;
    for (number, mask) in masks.iter().enumerate() {
        let Some(group) = bytes.get(8 * number..).and_then(|rest| rest.first_chunk()) else {
            break;
        };
        let together = order(lanes, *group, *mask);
        if let Some(room) = bytes.get_mut(kept..kept + 8) {
            room.copy_from_slice(&together);
        }
        kept += mask.count_ones() as usize;
    }
    let end = kept.next_multiple_of(8).min(bytes.len());
    bytes[kept..end].fill(0);
}

/// Moves the bytes whose bit in `mask` is 1 to the start of the group. The other bytes are arbitrary.
#[inline(always)]
fn order(lanes: Option<Lanes>, group: Group, mask: u8) -> Group {
    #[cfg(target_arch = "x86_64")]
    if lanes.is_some() {
        // SAFETY: there are lanes only if the processor has AVX2, which includes SSSE3.
        return unsafe { order_by_shuffle(group, mask) };
    }
    let mut to = group;
    let mut kept = 0;
    for (bit, byte) in group.iter().enumerate() {
        to[kept & 7] = *byte;
        kept += usize::from(mask >> bit & 1);
    }
    to
}

#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "ssse3")]
fn order_by_shuffle(group: Group, mask: u8) -> Group {
    use std::arch::x86_64::{_mm_cvtsi64_si128, _mm_cvtsi128_si64, _mm_shuffle_epi8};

    let bytes = _mm_cvtsi64_si128(i64::from_le_bytes(group));
    let order = _mm_cvtsi64_si128(i64::from_le_bytes(ORDER[usize::from(mask)]));
    _mm_cvtsi128_si64(_mm_shuffle_epi8(bytes, order)).to_le_bytes()
}

/// For each mask of eight bits, the indices of the bits that are 1, in order.
#[cfg(target_arch = "x86_64")]
static ORDER: [Group; 256] = {
    let mut all = [[0; 8]; 256];
    let mut mask = 0;
    while mask < 256 {
        let (mut byte, mut at) = (0, 0);
        while byte < 8 {
            if mask >> byte & 1 == 1 {
                all[mask][at] = byte as u8;
                at += 1;
            }
            byte += 1;
        }
        mask += 1;
    }
    all
};

/// Returns the whole groups of a buffer.
pub(crate) fn groups(bytes: &[u8]) -> &[Group] {
    bytes.as_chunks().0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_read_as_they_were_written() {
        for width in 0..8 {
            let codes: Vec<u8> = (0..160u32)
                .map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8 & ((1 << width) - 1))
                .collect();
            let mut to = vec![0; 20 * width + SLACK];
            squeeze(Lanes::detect(), groups(&codes), width, &mut to);
            let mut same = vec![0; 20 * width + SLACK];
            squeeze(None, groups(&codes), width, &mut same);
            assert_eq!(to, same, "{width} bits");
            let mut read = [0; 157];
            stretch(&to[..20 * width], width, &mut read);
            assert_eq!(read, codes[..157], "{width} bits");
        }
        let mut read = [1; 3];
        stretch(&[0xFF], 8, &mut read);
        assert_eq!(read, [0xFF, 0, 0]);
        stretch(&[0xFF], 4, &mut read);
        assert_eq!(read, [15, 15, 0]);
        stretch(&[], 0, &mut read);
        assert_eq!(read, [0; 3]);
        let mut mask = [0];
        masks(&[[1, 0, 0, 1, 1, 0, 0, 1]], &mut mask);
        assert_eq!(mask, [0b1001_1001]);
    }

    #[test]
    fn kept_bytes_are_moved_together() {
        let from: Vec<u8> = (0..=255).collect();
        let masks: Vec<u8> = (0..32u8).map(|at| at.wrapping_mul(97) ^ 0x5A).collect();
        let expected: Vec<u8> = (0..=255u8)
            .filter(|at| masks[usize::from(*at) / 8] >> (at % 8) & 1 == 1)
            .collect();
        let mut to = vec![0; 256];
        let kept = keep(None, groups(&from), &masks, &mut to);
        assert_eq!(to[..kept], expected);
        let mut same = from.clone();
        keep_in_place(None, &mut same, &masks);
        assert_eq!(same[..kept], expected);
        assert!(same[kept..kept.next_multiple_of(8)].iter().all(|byte| *byte == 0));
        assert_eq!(keep(Lanes::detect(), groups(&from), &masks, &mut to), kept);
        assert_eq!(to[..kept], expected);
    }
}
