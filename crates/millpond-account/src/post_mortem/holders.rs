//! Bytes by tag in a table of fixed size.

use super::text::Text;
use super::top::{Holding, Top};

/// The maximum number of tags that are distinguished at one time.
const SLOTS: usize = 64;

/// Adds up the bytes of each tag, whether they are reported block by block or as one sum.
///
/// The sums are exact for up to 64 tags. Beyond that, a new tag replaces the one with the smallest *rank* and inherits
/// its rank (the "space saving" method), so every tag with more than a 64th of all bytes is in the table at the end.
/// Its figure includes only the bytes since it entered the table, so it is never too large. The bytes of replaced tags
/// are part of the rest.
pub(super) struct Holders {
    slots: [Slot; SLOTS],
    len: usize,
    lost: Holding,
    lost_names: u64,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    held: Holding,
    rank: u64,
}

impl Default for Holders {
    fn default() -> Self {
        Self {
            slots: [Slot::default(); SLOTS],
            len: 0,
            lost: Holding::default(),
            lost_names: 0,
        }
    }
}

impl Holders {
    pub(super) fn add(&mut self, tag: &str, bytes: u64, blocks: u64) {
        let name = Text::new(tag);
        let used = self.slots.get_mut(..self.len).unwrap_or_default();
        let known = used.iter().position(|slot| slot.held.name == name);
        let at = known.unwrap_or(self.len);
        let slot = if let Some(slot) = self.slots.get_mut(at) {
            self.len = self.len.max(at + 1);
            slot
        } else {
            let Some(least) = self.slots.iter_mut().min_by_key(|slot| slot.rank) else {
                return;
            };
            self.lost_names += 1;
            self.lost.bytes = self.lost.bytes.saturating_add(least.held.bytes);
            self.lost.blocks = self.lost.blocks.saturating_add(least.held.blocks);
            least.held = Holding::default();
            least
        };
        slot.held.name = name;
        slot.held.bytes = slot.held.bytes.saturating_add(bytes);
        slot.held.blocks = slot.held.blocks.saturating_add(blocks);
        slot.rank = slot.rank.saturating_add(bytes);
    }

    pub(super) fn top<const N: usize>(&self) -> Top<N> {
        let mut top = Top::default();
        for slot in self.slots.get(..self.len).unwrap_or_default() {
            top.add(slot.held);
        }
        if self.lost_names > 0 {
            top.add_to_others(self.lost_names, self.lost.bytes, self.lost.blocks);
        }
        top
    }
}
