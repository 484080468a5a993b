//! Many free blocks of similar size, sorted.

use super::Entry;

/// Maximum number of entries in one chunk.
const CHUNK: usize = 32;

/// Sorted entries in chunks, so that an insertion moves at most one chunk.
#[derive(Clone, Debug, Default)]
pub(super) struct Chunks {
    /// The first chunk. It is empty only when there is no entry at all.
    head: Vec<Entry>,
    /// Further chunks. None is empty, and every entry is above those of the previous chunk.
    tail: Vec<Vec<Entry>>,
}

impl Chunks {
    /// Returns the chunk that holds, or would hold, a key.
    fn chunk(&self, key: (u64, u64)) -> usize {
        self.tail.partition_point(|chunk| chunk[0].key() <= key)
    }

    fn get(&self, chunk: usize) -> &Vec<Entry> {
        if chunk == 0 {
            &self.head
        } else {
            &self.tail[chunk - 1]
        }
    }

    fn get_mut(&mut self, chunk: usize) -> &mut Vec<Entry> {
        if chunk == 0 {
            &mut self.head
        } else {
            &mut self.tail[chunk - 1]
        }
    }

    pub(super) fn insert(&mut self, entry: Entry) {
        let index = if self.tail.is_empty() {
            0
        } else {
            self.chunk(entry.key())
        };
        let chunk = self.get_mut(index);
        let at = chunk.partition_point(|e| e.key() < entry.key());
        chunk.insert(at, entry);
        if chunk.len() > CHUNK {
            let upper = chunk.split_off(CHUNK / 2);
            self.tail.insert(index, upper);
        }
    }

    pub(super) fn remove(&mut self, key: (u64, u64)) -> bool {
        let index = if self.tail.is_empty() { 0 } else { self.chunk(key) };
        let chunk = self.get_mut(index);
        let at = chunk.partition_point(|e| e.key() < key);
        if chunk.get(at).is_none_or(|e| e.key() != key) {
            return false;
        }
        chunk.remove(at);
        self.drop_if_empty(index);
        true
    }

    /// Removes and returns the first entry at or above a key.
    pub(super) fn take_at_or_above(&mut self, key: (u64, u64)) -> Option<Entry> {
        let mut index = if self.tail.is_empty() { 0 } else { self.chunk(key) };
        let mut at = self.get(index).partition_point(|e| e.key() < key);
        if at == self.get(index).len() {
            (index, at) = (index + 1, 0);
            if index > self.tail.len() {
                return None;
            }
        }
        let entry = self.get_mut(index).remove(at);
        self.drop_if_empty(index);
        Some(entry)
    }

    #[inline]
    fn drop_if_empty(&mut self, index: usize) {
        if !self.tail.is_empty() && self.get(index).is_empty() {
            if index == 0 {
                self.head = self.tail.remove(0);
            } else {
                self.tail.remove(index - 1);
            }
        }
    }

    /// Returns the first entry at or above a key.
    pub(super) fn at_or_above(&self, key: (u64, u64)) -> Option<Entry> {
        let index = if self.tail.is_empty() { 0 } else { self.chunk(key) };
        let chunk = self.get(index);
        let at = chunk.partition_point(|e| e.key() < key);
        chunk
            .get(at)
            .or_else(|| self.tail.get(index).and_then(|next| next.first()))
            .copied()
    }

    /// Returns the last entry below a key.
    pub(super) fn below(&self, key: (u64, u64)) -> Option<Entry> {
        let index = self.chunk(key);
        let chunk = self.get(index);
        match chunk.partition_point(|e| e.key() < key).checked_sub(1) {
            Some(at) => chunk.get(at).copied(),
            None => index
                .checked_sub(1)
                .and_then(|before| self.get(before).last().copied()),
        }
    }

    pub(super) fn last(&self) -> Option<Entry> {
        self.tail.last().unwrap_or(&self.head).last().copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Entry> + '_ {
        self.head.iter().chain(self.tail.iter().flatten()).copied()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.head.is_empty()
    }

    pub(super) fn check(&self) {
        assert!(self.tail.iter().all(|chunk| !chunk.is_empty()), "empty chunk");
        assert!(
            self.tail.is_empty() || !self.head.is_empty(),
            "chunks behind an empty one"
        );
    }
}
