//! The largest few, and the sum of the rest.

use super::text::Text;

/// What one name holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// A tag, or a budget's name.
    pub name: Text<32>,
    /// Bytes it holds.
    pub bytes: u64,
    /// Blocks they are in; 0 for a budget, which counts bytes only.
    pub blocks: u64,
}

/// The `N` largest by bytes, largest first, and the sum of all others.
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
        // Among equals the first stays first.
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

    /// The largest, largest first.
    #[must_use]
    pub fn named(&self) -> &[Holding] {
        self.named.get(..self.len).unwrap_or_default()
    }

    /// How many others there are.
    #[must_use]
    pub fn others(&self) -> u64 {
        self.others
    }

    /// Bytes that the others hold together.
    #[must_use]
    pub fn other_bytes(&self) -> u64 {
        self.other_bytes
    }

    /// Blocks that the others hold together.
    #[must_use]
    pub fn other_blocks(&self) -> u64 {
        self.other_blocks
    }

    /// All of them.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.len as u64 + self.others
    }
}
