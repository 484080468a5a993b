//! Packs one group, by moving the words that are not zero together. It is compiled twice, for processors with AVX2 and for all others.

use super::WORDS;

/// The number of words in one AVX2 store.
#[cfg(target_arch = "x86_64")]
const LANES: usize = 8;

/// Moves the words that are not zero together and writes a bit for each word. Returns the number of kept words.
pub(super) fn pack_group(group: &[u8], map: &mut [u8], to: &mut [[u8; 4]; WORDS]) -> usize {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("popcnt") {
        // SAFETY: the processor has both.
        return unsafe { by_lanes(group, map, to) };
    }
    by_words(group, map, to)
}

/// Packs word by word.
fn by_words(group: &[u8], map: &mut [u8], to: &mut [[u8; 4]; WORDS]) -> usize {
    let mut kept = 0;
    let parts = group.as_chunks::<128>().0;
    for (part, bits) in parts.iter().zip(map.as_chunks_mut::<4>().0) {
        let mut mask = 0u32;
        for (bit, word) in part.as_chunks::<4>().0.iter().enumerate() {
            // Every word is written, but a zero does not advance the position, so there is no branch that the processor could
            // mispredict. The mask has no effect: fewer words than a whole group were kept before its last word.
            to[kept & (WORDS - 1)] = *word;
            let is_kept = u32::from(*word != [0; 4]);
            mask |= is_kept << bit;
            kept += is_kept as usize;
        }
        *bits = mask.to_ne_bytes();
    }
    kept
}

/// Packs eight words at a time. One comparison finds the zeros, and one permutation moves the other words together.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,popcnt")]
fn by_lanes(group: &[u8], map: &mut [u8], to: &mut [[u8; 4]; WORDS]) -> usize {
    use std::arch::x86_64::{
        __m256i, _mm_cvtsi64_si128, _mm256_castsi256_ps, _mm256_cmpeq_epi32, _mm256_cvtepu8_epi32,
        _mm256_movemask_ps, _mm256_permutevar8x32_epi32, _mm256_setzero_si256,
    };

    let mut kept = 0;
    let to = to.as_flattened_mut();
    let rows = group.as_chunks::<{ 4 * LANES }>().0;
    for (row, bits) in rows.iter().zip(map) {
        let words: __m256i = bytemuck::pod_read_unaligned(row);
        let zeros = _mm256_castsi256_ps(_mm256_cmpeq_epi32(words, _mm256_setzero_si256()));
        let mask = !_mm256_movemask_ps(zeros) as u8;
        let order = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(i64::from_le_bytes(ORDER[usize::from(mask)])));
        let together = _mm256_permutevar8x32_epi32(words, order);
        // All eight are written, but only the kept ones advance the position. No more words are kept than were read, so there is room for
        // eight.
        if let Some(room) = to.get_mut(4 * kept..4 * (kept + LANES)) {
            room.copy_from_slice(bytemuck::bytes_of(&together));
        }
        *bits = mask;
        kept += mask.count_ones() as usize;
    }
    kept
}

/// For each choice of eight words, the indices of the chosen words, in order.
#[cfg(target_arch = "x86_64")]
static ORDER: [[u8; LANES]; 256] = {
    let mut all = [[0; LANES]; 256];
    let mut mask = 0;
    while mask < 256 {
        let (mut word, mut at) = (0, 0);
        while word < LANES {
            if mask >> word & 1 == 1 {
                all[mask][at] = word as u8;
                at += 1;
            }
            word += 1;
        }
        mask += 1;
    }
    all
};

#[cfg(test)]
mod tests {
    use super::*;

    /// The processor's own version gives the same result as the version that works word by word.
    #[test]
    fn both_ways_are_one() {
        let mut seed = 1u32;
        let mut random = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            seed >> 8
        };
        for one_in in [1, 2, 3, 7, 100, 5000] {
            let mut word = |_| if random() % one_in == 0 { random() } else { 0 };
            let words: Vec<u32> = (0..WORDS).map(&mut word).collect();
            let group = bytemuck::cast_slice::<u32, u8>(&words);
            let mut maps = [[0xEE; WORDS / 8]; 2];
            let mut kept = [[[0; 4]; WORDS]; 2];
            let [one, other] = &mut maps;
            let [first, second] = &mut kept;
            let many = by_words(group, one, first);
            assert_eq!(pack_group(group, other, second), many);
            assert_eq!(many, words.iter().filter(|word| **word != 0).count());
            assert_eq!((one, &first[..many]), (other, &second[..many]));
        }
    }
}
