//! Bytes read before, and what they meant.
//!
//! Half a snapshot is the stacks of its events: lists that hold nothing but references to frames, which
//! were memoised before. A program in a loop writes the same few hundred stacks over and over, each time as
//! a new list and mostly one after the other in the same order. So a run is guessed from the one before it
//! and compared as bytes instead of being decoded. So are the frames of old snapshots, which wrote a dict
//! wherever one occurs.

use crate::texts::Texts;

/// Text of all runs kept; honest files need a tenth of it.
const MOST_BYTES: usize = 4 << 20;
const NONE: u32 = u32::MAX;

/// The runs read so far and the meaning of each. Holds as long as no memo entry changes; then all are forgotten.
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
    /// Runs that followed this one, the latest first.
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
    /// None read, with room for `runs` of so many bytes together.
    pub(super) fn with_room(runs: usize, bytes: usize) -> Self {
        let mut room = Self::default();
        room.found.reserve(runs);
        room.runs.reserve(runs);
        room.bytes.reserve(bytes);
        room
    }

    /// The meaning of the run that `window` begins with, and its length in bytes, if the guess is right.
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

    /// The meaning of a run that was read before, or the hash to keep it under.
    pub(super) fn find(&mut self, run: &[u8]) -> Result<T, u32> {
        let at = self.found.find(run, |at| self.text(at))?;
        self.follow(at);
        Ok(self.runs[at as usize].meaning)
    }

    /// Keeps a run that was not found.
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

    /// Keeps a run and its meaning, if it was not read before.
    pub(super) fn meet(&mut self, run: &[u8], meaning: T) {
        if let Err(hash) = self.find(run) {
            self.add(hash, run, meaning);
        }
    }

    fn text(&self, at: u32) -> &[u8] {
        let run = &self.runs[at as usize];
        &self.bytes[run.start as usize..][..run.length as usize]
    }

    /// Notes which run follows the last one.
    fn follow(&mut self, at: u32) {
        if let Some(last) = self.last {
            let next = &mut self.runs[last as usize].next;
            *next = [at, next[0]];
        }
        self.last = Some(at);
    }

    /// What comes next does not follow the run read last.
    #[inline]
    pub(super) fn interrupt(&mut self) {
        self.last = None;
    }

    /// A memo entry changed its meaning.
    #[cold]
    pub(super) fn forget(&mut self) {
        if !self.runs.is_empty() {
            *self = Self::default();
        }
    }
}
