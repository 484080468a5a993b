//! Bytes by tag, with a table of limited size.

use super::text::Text;
use super::top::{Holding, Top};

/// Tags that are told apart at one time.
const SLOTS: usize = 64;

/// Adds up what each tag holds, whether it is told block by block or in one sum.
///
/// Exact up to 64 tags. Beyond, a new tag takes the place of the one with the least *rank*, and inherits it (the
/// "space saving" method): any tag with more than a 64th of all bytes has a place at the end. Its figure is
/// what was seen since it got the place, so it is never too large, and what the others lost is among the rest.
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
