//! Random numbers that are the same in every run.

/// A sequence of random numbers from a seed.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a whole number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }

    /// Returns a size between two limits. Each doubling of it is equally likely.
    pub(crate) fn size(&mut self, least: usize, most: usize) -> usize {
        let share = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        let size = least as f64 * (most as f64 / least as f64).powf(share);
        (size as usize).clamp(least, most)
    }
}
