//! Room for temporaries: taken in a row, let go of all at once.
#![forbid(unsafe_code)]

use crate::error::AllocError;

/// A chunk has at least so many bytes.
const LEAST: usize = 64 << 10;

/// Where chunks come from.
pub(super) trait Room {
    type Chunk: Chunk;

    /// What a chunk begins at a multiple of, a power of two.
    const ALIGN: usize;

    /// A new chunk of so many bytes.
    fn chunk(&self, bytes: usize) -> Result<Self::Chunk, AllocError>;
}

/// Bytes that stay where they are.
pub(super) trait Chunk {
    /// The first one's address.
    fn start(&self) -> usize;
    fn bytes(&self) -> usize;
}

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
/// Invariant: no reference to a chunk's bytes is ever made here, and no chunk goes back between a mark and the reset to it. What
/// [`take`](Self::take) has handed out lies before `at`, and is handed out again only after a reset to a mark before it.
/// Whoever makes references of that makes them apart from each other.
pub(super) struct Arena<R: Room> {
    from: R,
    chunks: Vec<R::Chunk>,
    at: Mark,
    peak: usize,
    growths: u64,
}

impl<R: Room> Arena<R> {
    pub(super) fn new(from: R) -> Self {
        Self {
            from,
            chunks: Vec::new(),
            at: Mark::default(),
            peak: 0,
            growths: 0,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.chunks.iter().map(Chunk::bytes).sum()
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
        // As much again as there is, so that there are few chunks however the room grows.
        let wide = least.max(self.bytes());
        let chunk = self.from.chunk(wide);
        let chunk = chunk.or_else(|error| match wide > least {
            true => self.from.chunk(least),
            false => Err(error),
        })?;
        self.chunks.push(chunk);
        self.growths += 1;
        Ok(())
    }

    /// `bytes` bytes at a multiple of `align`, a power of two: a chunk, and where in it they begin. They are nobody else's until a
    /// reset. After an error the arena is as it was.
    pub(super) fn take(&mut self, bytes: usize, align: usize) -> Result<(&R::Chunk, usize), AllocError> {
        let before = self.at;
        let start = self.find(bytes, align).inspect_err(|_| self.at = before)?;
        Ok((&self.chunks[self.at.chunk], start))
    }

    fn find(&mut self, bytes: usize, align: usize) -> Result<usize, AllocError> {
        loop {
            if let Some(chunk) = self.chunks.get(self.at.chunk) {
                let free = chunk.start() + self.at.offset;
                let padding = free.next_multiple_of(align) - free;
                let start = self.at.offset + padding;
                if let Some(end) = start.checked_add(bytes).filter(|end| *end <= chunk.bytes()) {
                    self.at.offset = end;
                    self.at.used += padding + bytes;
                    self.peak = self.peak.max(self.at.used);
                    return Ok(start);
                }
                if self.at.chunk + 1 < self.chunks.len() || self.at.offset > 0 {
                    // The rest of this chunk is left over.
                    self.at.chunk += 1;
                    self.at.offset = 0;
                    continue;
                }
            }
            let wider = bytes.checked_add(if align > R::ALIGN { align } else { 0 });
            self.grow(wider.ok_or(AllocError::UNCOUNTABLE)?)?;
            self.at.chunk = self.chunks.len() - 1;
            self.at.offset = 0;
        }
    }

    /// Gives all chunks back. Nothing is in use, as the caller holds the arena alone and outside of any scope.
    pub(super) fn clear(&mut self) {
        self.chunks.clear();
        self.at = Mark::default();
    }
}

/// Resets an arena when it goes, also by a panic: what was taken meanwhile may be handed out again.
pub(super) struct Scope<'a, R: Room> {
    pub(super) arena: &'a mut Arena<R>,
    mark: Mark,
}

impl<'a, R: Room> Scope<'a, R> {
    pub(super) fn enter(arena: &'a mut Arena<R>) -> Self {
        let mark = arena.at;
        Self { arena, mark }
    }
}

impl<R: Room> Drop for Scope<'_, R> {
    fn drop(&mut self) {
        self.arena.at = self.mark;
    }
}
