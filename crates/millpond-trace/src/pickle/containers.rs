//! Lists, tuples and dicts.
//!
//! ```text
//! spans   8 bytes for each container: where its items start, and how many
//! slots   the items of all, 4 bytes each; a dict's keys and values alternate
//! grown   the few containers whose items are not contiguous: the first and the last of their chunks
//! ```
//!
//! A container's items are contiguous unless another container grew in between.

use super::value::Value;

/// The length of a span whose container is in [`Containers::grown`], at index `start`.
const GROWN: u32 = u32::MAX;
/// The length of a span whose items the sieve keeps under the number in `start`.
const TAKEN: u32 = u32::MAX - 1;
/// Maximum number of items of all containers.
const MOST_ITEMS: usize = (u32::MAX - 2) as usize;
const NO_CHUNK: u32 = u32::MAX;

/// Contiguous items. Several containers may share them, because they never change.
#[derive(Clone, Copy)]
pub(super) struct Span {
    start: u32,
    length: u32,
}

#[derive(Clone, Copy)]
struct Chunk {
    span: Span,
    next: u32,
}

#[derive(Clone, Copy)]
struct Grown {
    first: u32,
    last: u32,
}

/// The location of a dict's pairs.
pub(super) enum PairStorage {
    Taken(u32),
    Here,
    /// The dict has no pairs so far.
    Nowhere,
}

/// All containers, by number.
pub(super) struct Containers {
    spans: Vec<Span>,
    slots: Vec<Value>,
    chunks: Vec<Chunk>,
    grown: Vec<Grown>,
}

impl Containers {
    /// Creates an empty table with space for the containers in `expected` bytes.
    pub(super) fn new(expected: usize) -> Self {
        Self {
            spans: Vec::with_capacity(expected / 32),
            slots: Vec::with_capacity(expected / 2),
            chunks: Vec::new(),
            grown: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.spans.len()
    }

    /// Returns the number of items of all containers.
    pub(super) fn items(&self) -> usize {
        self.slots.len()
    }

    /// Adds a container. Returns its number, or `None` if there are too many items.
    #[inline]
    pub(super) fn add(&mut self, items: &[Value]) -> Option<usize> {
        let span = self.span(items)?;
        self.spans.push(span);
        Some(self.spans.len() - 1)
    }

    #[inline]
    fn span(&mut self, items: &[Value]) -> Option<Span> {
        let start = self.slots.len();
        if start + items.len() > MOST_ITEMS {
            return None;
        }
        self.slots.extend_from_slice(items);
        Some(Span {
            start: start as u32,
            length: items.len() as u32,
        })
    }

    /// Adds items to a container that was not taken. Returns `None` if there are too many items.
    #[inline]
    pub(super) fn extend(&mut self, number: usize, items: &[Value]) -> Option<()> {
        let added = self.span(items)?;
        let span = self.spans[number];
        if span.length == GROWN {
            return self.grow(span.start as usize, added);
        }
        match span.followed_by(added) {
            Some(whole) => self.spans[number] = whole,
            None => {
                let first = self.chunk(span)?;
                self.spans[number] = Span {
                    start: u32::try_from(self.grown.len()).ok()?,
                    length: GROWN,
                };
                self.grown.push(Grown { first, last: first });
                self.grow(self.grown.len() - 1, added)?;
            }
        }
        Some(())
    }

    /// Adds a chunk to a container that has chunks, or extends its last chunk.
    fn grow(&mut self, grown: usize, added: Span) -> Option<()> {
        let last = self.grown[grown].last as usize;
        match self.chunks[last].span.followed_by(added) {
            Some(longer) => self.chunks[last].span = longer,
            None => {
                let next = self.chunk(added)?;
                self.chunks[last].next = next;
                self.grown[grown].last = next;
            }
        }
        Some(())
    }

    fn chunk(&mut self, span: Span) -> Option<u32> {
        let number = u32::try_from(self.chunks.len())
            .ok()
            .filter(|&number| number != NO_CHUNK)?;
        self.chunks.push(Chunk { span, next: NO_CHUNK });
        Some(number)
    }

    /// Returns the items that another container may share, or `None` if they are not contiguous.
    pub(super) fn together(&self, number: usize) -> Option<Span> {
        Some(self.spans[number]).filter(|span| span.length < TAKEN)
    }

    #[inline]
    pub(super) fn is_empty(&self, number: usize) -> bool {
        self.spans[number].length == 0
    }

    /// Fills an empty container with items of another.
    #[inline]
    pub(super) fn share(&mut self, number: usize, items: Span) {
        self.spans[number] = items;
    }

    /// Returns the location of a container's items.
    #[inline]
    pub(super) fn taken(&self, number: usize) -> PairStorage {
        match self.spans[number] {
            Span { start, length: TAKEN } => PairStorage::Taken(start),
            Span { length: 0, .. } => PairStorage::Nowhere,
            _ => PairStorage::Here,
        }
    }

    /// Records the number under which the sieve keeps the items of an empty container.
    #[inline]
    pub(super) fn take(&mut self, number: usize, kept: u32) {
        self.spans[number] = Span {
            start: kept,
            length: TAKEN,
        };
    }

    /// Returns an identity that is equal for containers that share their items, 0 for those without items, and `None`
    /// if only the container's number identifies it.
    #[inline]
    pub(super) fn identity(&self, number: usize) -> Option<u64> {
        match self.together(number)? {
            Span { length: 0, .. } => Some(0),
            Span { start, length } => Some(u64::from(start) << 32 | u64::from(length)),
        }
    }

    /// Returns the items of a container in order. A container that was taken has none.
    pub(super) fn iter(&self, number: usize) -> Items<'_> {
        let span = self.spans[number];
        let (span, next) = match span.length {
            GROWN => {
                let Chunk { span, next } = self.chunks[self.grown[span.start as usize].first as usize];
                (span, next)
            }
            _ => (span, NO_CHUNK),
        };
        Items {
            containers: self,
            items: self.slice(span).iter(),
            next,
        }
    }

    /// Returns the number of items of a container.
    pub(super) fn count(&self, number: usize) -> usize {
        let mut items = self.iter(number);
        let mut count = items.items.len();
        while let Some(chunk) = self.chunks.get(items.next as usize) {
            count += chunk.span.length as usize;
            items.next = chunk.next;
        }
        count
    }

    fn slice(&self, span: Span) -> &[Value] {
        match span.length {
            TAKEN => &[],
            length => &self.slots[span.start as usize..][..length as usize],
        }
    }
}

impl Span {
    /// Returns both spans as one if they are contiguous.
    #[inline]
    fn followed_by(self, added: Self) -> Option<Self> {
        if self.length == 0 {
            return Some(added);
        }
        (self.start + self.length == added.start).then_some(Self {
            start: self.start,
            length: self.length + added.length,
        })
    }
}

/// The items of a container, in order.
pub(crate) struct Items<'a> {
    containers: &'a Containers,
    items: std::slice::Iter<'a, Value>,
    next: u32,
}

impl Iterator for Items<'_> {
    type Item = Value;

    #[inline]
    fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(&value) = self.items.next() {
                return Some(value);
            }
            // Chunks are only linked forward, so this ends even for a container that contains itself.
            let chunk = self.containers.chunks.get(self.next as usize)?;
            self.items = self.containers.slice(chunk.span).iter();
            self.next = chunk.next;
        }
    }
}
