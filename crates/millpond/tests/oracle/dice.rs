//! Pseudo-random numbers that are the same in every run (splitmix64).

#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0xd1b5_4a32_d192_ed03))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Returns the size of a request: mostly small, sometimes large, and rarely larger than the caches of threads keep.
    pub(crate) fn bytes(&mut self) -> usize {
        let log = match self.below(1000) {
            0..600 => self.below(12),
            600..850 => self.below(17),
            850..970 => self.below(20),
            970..998 => self.below(23),
            _ => 25,
        };
        let base = 1usize << log;
        base + self.below(base as u64) as usize / if log == 25 { 8 } else { 1 }
    }
}
