//! Bytes that were read before, and their meaning.
//!
//! Half of a snapshot is the stacks of its events: lists that contain only references to frames, which were memoised
//! before. A program in a loop writes the same few hundred stacks repeatedly, each time as a new list and mostly in the
//! same order. A run is therefore guessed from the previous one and compared as bytes instead of decoded. The same
//! applies to the frames of old snapshots, which contain a dict wherever a frame occurs.

use crate::texts::Texts;

/// Maximum bytes of all runs that are kept. Real files need a tenth of it.
const MOST_BYTES: usize = 4 << 20;
const NONE: u32 = u32::MAX;

/// The runs read so far and the meaning of each. They are valid as long as no memo entry changes. Then all are cleared.
pub(super) struct Runs<T> {
    bytes: Vec<u8>,
    runs: Vec<Known<T>>,
    found: Texts,
    /// The run read last.
    last: Option<u32>,
}

struct Known<T> {
    start: u32,
    length: u32,
    meaning: T,
    /// Runs that followed this one, latest first.
    next: [u32; 2],
}

impl<T> Default for Runs<T> {
    fn default() -> Self {
        Self {
            bytes: Vec::new(),
            runs: Vec::new(),
            found: Texts::default(),
            last: None,
        }
    }
}

impl<T: Copy> Runs<T> {
    /// Creates an empty table with space for `runs` runs of `bytes` bytes in total.
    pub(super) fn with_room(runs: usize, bytes: usize) -> Self {
        let mut room = Self::default();
        room.found.reserve(runs);
        room.runs.reserve(runs);
        room.bytes.reserve(bytes);
        room
    }

    /// Returns the meaning of the run at the start of `window` and its length in bytes, if the guess is right.
    #[inline]
    pub(super) fn guess(&mut self, window: &[u8]) -> Option<(T, usize)> {
        let last = self.last?;
        let [first, second] = self.runs[last as usize].next;
        for next in [first, second] {
            let Some(run) = self.runs.get(next as usize) else {
                break;
            };
            if window.starts_with(&self.bytes[run.start as usize..][..run.length as usize]) {
                let found = (run.meaning, run.length as usize);
                if next == second {
                    self.runs[last as usize].next = [second, first];
                }
                self.last = Some(next);
                return Some(found);
            }
        }
        None
    }

    /// Returns the meaning of a run that was read before, or otherwise its hash for [`add`](Self::add).
    pub(super) fn find(&mut self, run: &[u8]) -> Result<T, u32> {
        let at = self.found.find(run, |at| self.text(at))?;
        self.follow(at);
        Ok(self.runs[at as usize].meaning)
    }

    /// Adds a run that was not found.
    pub(super) fn add(&mut self, hash: u32, run: &[u8], meaning: T) {
        if self.bytes.len() + run.len() > MOST_BYTES {
            return;
        }
        let at = self.runs.len() as u32;
        self.runs.push(Known {
            start: self.bytes.len() as u32,
            length: run.len() as u32,
            meaning,
            next: [NONE; 2],
        });
        self.bytes.extend_from_slice(run);
        self.found.add(hash, at);
        self.follow(at);
    }

    /// Adds a run and its meaning if it was not read before.
    pub(super) fn meet(&mut self, run: &[u8], meaning: T) {
        if let Err(hash) = self.find(run) {
            self.add(hash, run, meaning);
        }
    }

    fn text(&self, at: u32) -> &[u8] {
        let run = &self.runs[at as usize];
        &self.bytes[run.start as usize..][..run.length as usize]
    }

    /// Records which run follows the last one.
    fn follow(&mut self, at: u32) {
        if let Some(last) = self.last {
            let next = &mut self.runs[last as usize].next;
            *next = [at, next[0]];
        }
        self.last = Some(at);
    }

    /// Records that the next run does not follow the last one.
    #[inline]
    pub(super) fn interrupt(&mut self) {
        self.last = None;
    }

    /// Clears all runs, because a memo entry changed its meaning.
    #[cold]
    pub(super) fn forget(&mut self) {
        if !self.runs.is_empty() {
            *self = Self::default();
        }
    }
}
