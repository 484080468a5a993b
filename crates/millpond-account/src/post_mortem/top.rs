//! The largest entries, and the sum of the rest.

use super::text::Text;

/// The memory of one name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// The name of a tag or a budget.
    pub name: Text<32>,
    /// The bytes.
    pub bytes: u64,
    /// The number of blocks, or 0 for a budget, which counts only bytes.
    pub blocks: u64,
}

/// The `N` entries with the most bytes, the largest first, and the sum of all others.
#[derive(Clone, Copy, Debug)]
pub struct Top<const N: usize> {
    named: [Holding; N],
    len: usize,
    others: u64,
    other_bytes: u64,
    other_blocks: u64,
}

impl<const N: usize> Default for Top<N> {
    fn default() -> Self {
        Self {
            named: [Holding::default(); N],
            len: 0,
            others: 0,
            other_bytes: 0,
            other_blocks: 0,
        }
    }
}

impl<const N: usize> Top<N> {
    pub(super) fn add(&mut self, new: Holding) {
        // Equal entries keep their order.
        let at = self.named().partition_point(|held| held.bytes >= new.bytes);
        if self.len < N {
            self.len += 1;
        } else {
            let last = self.named.last().copied().filter(|_| at < N).unwrap_or(new);
            self.add_to_others(1, last.bytes, last.blocks);
        }
        if let Some(behind) = self
            .named
            .get_mut(at..self.len)
            .filter(|behind| !behind.is_empty())
        {
            behind.rotate_right(1);
            behind[0] = new;
        }
    }

    pub(super) fn add_to_others(&mut self, names: u64, bytes: u64, blocks: u64) {
        self.others += names;
        self.other_bytes = self.other_bytes.saturating_add(bytes);
        self.other_blocks = self.other_blocks.saturating_add(blocks);
    }

    /// Returns the listed entries, the largest first.
    #[must_use]
    pub fn named(&self) -> &[Holding] {
        self.named.get(..self.len).unwrap_or_default()
    }

    /// Returns the number of other entries.
    #[must_use]
    pub fn others(&self) -> u64 {
        self.others
    }

    /// Returns the bytes of the other entries.
    #[must_use]
    pub fn other_bytes(&self) -> u64 {
        self.other_bytes
    }

    /// Returns the blocks of the other entries.
    #[must_use]
    pub fn other_blocks(&self) -> u64 {
        self.other_blocks
    }

    /// Returns the number of all entries, listed or not.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.len as u64 + self.others
    }
}
