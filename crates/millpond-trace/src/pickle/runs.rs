//! Runs of references seen before.
//!
//! Half a snapshot is the stacks of its events: lists that hold nothing but references to frames, which
//! were memoised before. A program in a loop writes the same few hundred stacks over and over, each time as
//! a new list and mostly one after the other in the same order. So a run is guessed from the one before it
//! and compared as bytes instead of being decoded.

use super::arena::Chunk;
use crate::strings::Seeded;
use hashbrown::HashTable;
use std::hash::BuildHasher;

/// Text of all runs kept; honest files need a tenth of it.
const MOST_BYTES: usize = 4 << 20;
const NONE: u32 = u32::MAX;

/// The runs read so far. Holds as long as no memo entry changes; then all are forgotten.
#[derive(Default)]
pub(super) struct Runs {
    bytes: Vec<u8>,
    runs: Vec<Known>,
    found: HashTable<u32>,
    hasher: Seeded,
    /// The run read last.
    last: Option<u32>,
}

struct Known {
    start: u32,
    length: u32,
    items: Chunk,
    /// Runs that followed this one, the latest first.
    next: [u32; 2],
}

impl Runs {
    /// The items of the run that `window` begins with, and its length in bytes, if the guess is right.
    #[inline]
    pub(super) fn guess(&mut self, window: &[u8]) -> Option<(Chunk, usize)> {
        let last = self.last?;
        let [first, second] = self.runs[last as usize].next;
        for next in [first, second] {
            let Some(run) = self.runs.get(next as usize) else {
                break;
            };
            if window.starts_with(&self.bytes[run.start as usize..][..run.length as usize]) {
                let found = (run.items, run.length as usize);
                if next == second {
                    self.runs[last as usize].next = [second, first];
                }
                self.last = Some(next);
                return Some(found);
            }
        }
        None
    }

    /// Keeps a run that was decoded.
    pub(super) fn add(&mut self, run: &[u8], items: Chunk) {
        let hash = self.hasher.hash_one(run);
        let (runs, bytes) = (&self.runs, &self.bytes);
        let text = |at: u32| {
            let run = &runs[at as usize];
            &bytes[run.start as usize..][..run.length as usize]
        };
        let known = self.found.find(hash, |&at| text(at) == run).copied();
        let at = match known {
            Some(at) => at,
            None if self.bytes.len() + run.len() > MOST_BYTES => return,
            None => {
                let at = self.runs.len() as u32;
                let start = self.bytes.len() as u32;
                self.bytes.extend_from_slice(run);
                self.runs.push(Known {
                    start,
                    length: run.len() as u32,
                    items,
                    next: [NONE; 2],
                });
                let (runs, bytes, hasher) = (&self.runs, &self.bytes, &self.hasher);
                self.found.insert_unique(hash, at, |&at| {
                    let run = &runs[at as usize];
                    hasher.hash_one(&bytes[run.start as usize..][..run.length as usize])
                });
                at
            }
        };
        if let Some(last) = self.last {
            let next = &mut self.runs[last as usize].next;
            *next = [at, next[0]];
        }
        self.last = Some(at);
    }

    /// A memo entry changed its meaning.
    #[cold]
    pub(super) fn forget(&mut self) {
        if !self.runs.is_empty() {
            *self = Self::default();
        }
    }
}
