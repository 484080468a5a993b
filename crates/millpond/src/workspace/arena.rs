//! Room for temporaries: taken in a row, let go of all at once.
#![forbid(unsafe_code)]

use crate::block::{ALIGN, Owner};
use crate::buffer::Buffer;
use crate::error::AllocError;
use std::ptr::NonNull;

/// A chunk has at least so many bytes.
const LEAST: usize = 64 << 10;

/// How far the arena is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    chunk: usize,
    offset: usize,
    /// Bytes in use, without what is left over at the end of chunks.
    used: usize,
}

/// Chunks of a pool, used in a row.
///
/// Invariant: every byte of a chunk is initialised, no reference to it is ever made here, and no chunk goes back between a
/// mark and the reset to it. What
/// [`take`](Self::take) has handed out lies before `at`, and is handed out again only after a reset to a mark before it.
/// Whoever makes references of that makes them apart from each other.
pub(super) struct Arena {
    owner: Owner,
    chunks: Vec<Buffer<u8>>,
    at: Mark,
    peak: usize,
    growths: u64,
}

impl Arena {
    pub(super) fn new(owner: Owner) -> Self {
        Self {
            owner,
            chunks: Vec::new(),
            at: Mark::default(),
            peak: 0,
            growths: 0,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.chunks.iter().map(Buffer::len).sum()
    }

    pub(super) fn peak(&self) -> usize {
        self.peak
    }

    pub(super) fn growths(&self) -> u64 {
        self.growths
    }

    /// Another chunk, of at least so many bytes.
    pub(super) fn grow(&mut self, bytes: usize) -> Result<(), AllocError> {
        let least = bytes.max(LEAST);
        let zeroed = |bytes| Buffer::zeroed(self.owner.clone(), bytes, ALIGN);
        // As much again as there is, so that there are few chunks however the room grows.
        let wide = least.max(self.bytes());
        let chunk = zeroed(wide).or_else(|error| if wide > least { zeroed(least) } else { Err(error) })?;
        self.chunks.push(chunk);
        self.growths += 1;
        Ok(())
    }

    /// `bytes` bytes at a multiple of `align`, a power of two: initialised, and nobody else's until a reset. After an error the arena is as it was.
    pub(super) fn take(&mut self, bytes: usize, align: usize) -> Result<NonNull<u8>, AllocError> {
        let before = self.at;
        self.find(bytes, align).inspect_err(|_| self.at = before)
    }

    fn find(&mut self, bytes: usize, align: usize) -> Result<NonNull<u8>, AllocError> {
        loop {
            if let Some(chunk) = self.chunks.get(self.at.chunk) {
                let base = chunk.pointer();
                let free = base.addr().get() + self.at.offset;
                let padding = free.next_multiple_of(align) - free;
                let start = self.at.offset + padding;
                if let Some(end) = start.checked_add(bytes).filter(|end| *end <= chunk.len()) {
                    self.at.offset = end;
                    self.at.used += padding + bytes;
                    self.peak = self.peak.max(self.at.used);
                    return Ok(base.map_addr(|address| address.saturating_add(start)));
                }
                if self.at.chunk + 1 < self.chunks.len() || self.at.offset > 0 {
                    // The rest of this chunk is left over.
                    self.at.chunk += 1;
                    self.at.offset = 0;
                    continue;
                }
            }
            let wider = bytes.checked_add(if align > ALIGN { align } else { 0 });
            self.grow(wider.ok_or(AllocError::UNCOUNTABLE)?)?;
            self.at.chunk = self.chunks.len() - 1;
            self.at.offset = 0;
        }
    }

    pub(super) fn mark(&self) -> Mark {
        self.at
    }

    /// Everything taken after the mark may be handed out again.
    pub(super) fn reset(&mut self, mark: Mark) {
        self.at = mark;
    }

    /// Gives all chunks back. Nothing is in use, as the caller holds the arena alone and outside of any scope.
    pub(super) fn clear(&mut self) {
        self.chunks.clear();
        self.at = Mark::default();
    }
}
