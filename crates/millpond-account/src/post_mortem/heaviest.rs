//! Finds the fewest blocks that free a number of bytes, at any addresses.

use super::figures::{Least, Method};

/// The maximum number of blocks that are kept. A longer list would not be useful to a reader.
const KEPT: usize = 32;

/// Visits every block once. Keeps the largest blocks and the smallest one that suffices alone.
pub(super) struct Heaviest {
    need: u64,
    alone: Option<u64>,
    /// The sizes of the largest blocks, the largest first.
    sizes: [u64; KEPT],
    blocks: u64,
}

impl Heaviest {
    pub(super) fn new(need: u64) -> Self {
        Self {
            need,
            alone: None,
            sizes: [0; KEPT],
            blocks: 0,
        }
    }

    pub(super) fn add(&mut self, bytes: u64) {
        self.blocks += 1;
        if bytes >= self.need {
            self.alone = Some(self.alone.map_or(bytes, |least| least.min(bytes)));
        }
        let at = self.sizes.partition_point(|kept| *kept >= bytes);
        if at < KEPT {
            self.sizes[at..].rotate_right(1);
            self.sizes[at] = bytes;
        }
    }

    /// Returns the smallest single block that suffices. Otherwise returns the largest blocks until the rest is covered.
    /// The last one is the smallest kept block that covers it. No set with fewer blocks suffices.
    pub(super) fn least(&self) -> Option<Least> {
        if self.need == 0 {
            return None;
        }
        let need = self.need;
        let unknown = Least {
            need,
            blocks: 0,
            bytes: 0,
            method: Method::Need,
        };
        if let Some(bytes) = self.alone {
            return Some(Least {
                blocks: 1,
                bytes,
                method: Method::OneBlock,
                ..unknown
            });
        }
        let mut taken = 0;
        for (at, bytes) in self.sizes.iter().enumerate() {
            let rest = need - taken;
            if *bytes >= rest {
                let last = self.sizes[at..].iter().filter(|size| **size >= rest).min();
                return Some(Least {
                    blocks: at as u64 + 1,
                    bytes: taken + last.unwrap_or(bytes),
                    method: Method::LargestFirst,
                    ..unknown
                });
            }
            taken += bytes;
        }
        Some(unknown)
    }
}
