//! Memory for temporaries, which are allocated one after another and freed together.
#![forbid(unsafe_code)]

use millpond_account::error::AllocError;

/// The minimum size of a chunk in bytes.
const LEAST: usize = 64 << 10;

/// The allocator of chunks.
pub trait ArenaMemory {
    /// A chunk.
    type Chunk: Chunk;

    /// The alignment of a chunk, a power of two.
    const ALIGN: usize;

    /// Allocates a chunk of `bytes` bytes.
    fn chunk(&self, bytes: usize) -> Result<Self::Chunk, AllocError>;
}

/// Bytes at a fixed address.
pub trait Chunk {
    /// Returns the address of the first byte.
    fn start(&self) -> usize;

    /// Returns the number of bytes.
    fn bytes(&self) -> usize;
}

/// A position in the arena. Everything before it is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    chunk: usize,
    offset: usize,
    /// The bytes in use, without the unused ends of chunks.
    used: usize,
}

/// Chunks of a pool that are used one after another.
///
/// Invariant: no reference to a chunk's bytes is ever created here, and no chunk is freed between a mark and the reset to it. Bytes
/// that [`take`](Self::take) has returned are before `at`, and are returned again only after a reset to a mark before them. If callers
/// create references to these bytes, the references therefore do not overlap.
pub struct Arena<M: ArenaMemory> {
    memory: M,
    chunks: Vec<M::Chunk>,
    at: Mark,
    peak: usize,
    growths: u64,
}

impl<M: ArenaMemory> Arena<M> {
    pub(super) fn new(memory: M) -> Self {
        Self {
            memory,
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

    /// Adds a chunk of at least `bytes` bytes.
    pub(super) fn grow(&mut self, bytes: usize) -> Result<(), AllocError> {
        let least = bytes.max(LEAST);
        // Doubles the size, so that the number of chunks stays small.
        let wide = least.max(self.bytes());
        let chunk = self.memory.chunk(wide);
        let chunk = chunk.or_else(|error| match wide > least {
            true => self.memory.chunk(least),
            false => Err(error),
        })?;
        self.chunks.push(chunk);
        self.growths += 1;
        Ok(())
    }

    /// Takes `bytes` bytes at a multiple of `align`, a power of two. Returns their chunk and their offset in it. They are not returned
    /// again before a reset. After an error the position in the arena is unchanged.
    pub(super) fn take(&mut self, bytes: usize, align: usize) -> Result<(&M::Chunk, usize), AllocError> {
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
                    // The rest of this chunk stays unused.
                    self.at.chunk += 1;
                    self.at.offset = 0;
                    continue;
                }
            }
            let wider = bytes.checked_add(if align > M::ALIGN { align } else { 0 });
            self.grow(wider.ok_or(AllocError::UNCOUNTABLE)?)?;
            self.at.chunk = self.chunks.len() - 1;
            self.at.offset = 0;
        }
    }

    /// Frees all chunks. Nothing is in use, because the caller holds the arena exclusively and outside every scope.
    pub(super) fn clear(&mut self) {
        self.chunks.clear();
        self.at = Mark::default();
    }
}

/// Resets the arena when it is dropped, also on a panic. Bytes that were taken in the meantime may then be returned again.
pub(super) struct Scope<'a, M: ArenaMemory> {
    pub(super) arena: &'a mut Arena<M>,
    mark: Mark,
}

impl<'a, M: ArenaMemory> Scope<'a, M> {
    pub(super) fn enter(arena: &'a mut Arena<M>) -> Self {
        let mark = arena.at;
        Self { arena, mark }
    }
}

impl<M: ArenaMemory> Drop for Scope<'_, M> {
    fn drop(&mut self) {
        self.arena.at = self.mark;
    }
}
