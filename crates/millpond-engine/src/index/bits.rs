//! A set of up to 2,048 numbers that finds the next number in a few instructions.

const WORDS: usize = 32;

/// Bits in two levels: the words, and a summary of the words that are not zero.
#[derive(Clone, Debug, Default)]
pub(super) struct Bits {
    words: [u64; WORDS],
    summary: u32,
}

impl Bits {
    #[inline]
    pub(super) fn insert(&mut self, bit: usize) {
        self.words[bit / 64] |= 1 << (bit % 64);
        self.summary |= 1 << (bit / 64);
    }

    #[inline]
    pub(super) fn remove(&mut self, bit: usize) {
        self.words[bit / 64] &= !(1 << (bit % 64));
        if self.words[bit / 64] == 0 {
            self.summary &= !(1 << (bit / 64));
        }
    }

    pub(super) fn contains(&self, bit: usize) -> bool {
        self.words[bit / 64] >> (bit % 64) & 1 == 1
    }

    /// Returns the first number at or above `bit`.
    #[inline]
    pub(super) fn at_or_above(&self, bit: usize) -> Option<usize> {
        let word = bit / 64;
        let here = self.words.get(word)? & (u64::MAX << (bit % 64));
        if here != 0 {
            return Some(word * 64 + here.trailing_zeros() as usize);
        }
        // Two shifts, because a single shift by 32 would overflow.
        let above = self.summary >> word >> 1;
        if above == 0 {
            return None;
        }
        let word = word + 1 + above.trailing_zeros() as usize;
        Some(word * 64 + self.words[word].trailing_zeros() as usize)
    }

    /// Returns the last number below `bit`.
    pub(super) fn below(&self, bit: usize) -> Option<usize> {
        let word = bit / 64;
        let here = self.words.get(word).map_or(0, |w| w & ((1 << (bit % 64)) - 1));
        if let Some(bit) = here.checked_ilog2() {
            return Some(word * 64 + bit as usize);
        }
        let lower = u64::from(self.summary) & ((1 << word) - 1);
        let word = lower.checked_ilog2()? as usize;
        Some(word * 64 + self.words[word].checked_ilog2()? as usize)
    }
}
