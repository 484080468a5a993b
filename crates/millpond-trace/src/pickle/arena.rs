//! All values of a pickle in a few flat vectors.
//!
//! ```text
//! Value       4 bytes: three bits of kind, 29 of payload (a small number, or an index)
//! containers  16 bytes each: where its items start, how many, and its further chunks
//! slots       the items of all containers, 4 bytes each; a dict's keys and values alternate
//! ```
//!
//! A container's items lie together unless another container grew in between; then it gets a further chunk.
//! Against a node per value this is what makes a snapshot smaller in memory than on disk.

use crate::strings::Interner;
use std::fmt;

/// One value; an index into its [`Arena`] where it does not fit.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Value(u32);

const PAYLOAD: u32 = (1 << 29) - 1;
// Kind 0 is the constants of [`Value`].
const SMALL: u32 = 1;
const INT: u32 = 2;
const FLOAT: u32 = 3;
const STRING: u32 = 4;
const LIST: u32 = 5;
const DICT: u32 = 6;
const TUPLE: u32 = 7;

impl Value {
    pub(crate) const NONE: Self = Self(0);
    pub(super) const FALSE: Self = Self(1);
    pub(super) const TRUE: Self = Self(2);
    /// Bytes and the like: nothing a snapshot needs, so only its presence is kept.
    pub(super) const OPAQUE: Self = Self(3);
    /// An integer above `i64::MAX`.
    pub(super) const HUGE: Self = Self(4);
    /// An integer below `i64::MIN`.
    pub(super) const MINUS_HUGE: Self = Self(5);
    /// A memo entry never written.
    pub(super) const UNSET: Self = Self(6);

    fn new(kind: u32, payload: usize) -> Option<Self> {
        let payload = u32::try_from(payload)
            .ok()
            .filter(|&payload| payload <= PAYLOAD)?;
        Some(Self(kind << 29 | payload))
    }

    fn kind(self) -> u32 {
        self.0 >> 29
    }

    fn payload(self) -> usize {
        (self.0 & PAYLOAD) as usize
    }

    /// Distinct for distinct values; 0 for `None`.
    #[inline]
    pub(crate) fn bits(self) -> u32 {
        self.0
    }

    /// The number of a string in [`Arena::strings`].
    pub(crate) fn string(self) -> Option<u32> {
        (self.kind() == STRING).then_some(self.0 & PAYLOAD)
    }

    pub(crate) fn is_list(self) -> bool {
        self.kind() == LIST
    }

    /// The number of a dict among all containers.
    #[inline]
    pub(crate) fn dict(self) -> Option<usize> {
        (self.kind() == DICT).then(|| self.payload())
    }

    pub(crate) fn is_dict(self) -> bool {
        self.kind() == DICT
    }

    pub(crate) fn boolean(self) -> Option<bool> {
        match self {
            Self::TRUE => Some(true),
            Self::FALSE => Some(false),
            _ => None,
        }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const KINDS: [&str; 8] = [
            "constant", "small", "int", "float", "string", "list", "dict", "tuple",
        ];
        write!(f, "{}:{}", KINDS[self.kind() as usize], self.payload())
    }
}

const NO_CHUNK: u32 = u32::MAX;
/// In place of a container's last chunk: the sieve took what it held, under the number in `start`.
const TAKEN: u32 = u32::MAX - 1;

/// Items side by side in [`Arena::slots`]. Several containers may share them: nobody writes there again.
#[derive(Clone, Copy)]
pub(super) struct Chunk {
    start: u32,
    length: u32,
    next: u32,
}

#[derive(Clone, Copy)]
struct Container {
    first: Chunk,
    /// The chunk that grows, where it is not the first.
    last: u32,
}

/// Whether a dict's pairs are with the sieve.
pub(super) enum Taken {
    By(u32),
    Not,
    /// It has no pairs so far.
    NotYet,
}

/// Why a value could not be added.
#[derive(Debug)]
pub(super) struct Full(pub(super) &'static str);

/// All values of one pickle.
pub(crate) struct Arena {
    containers: Vec<Container>,
    chunks: Vec<Chunk>,
    slots: Vec<Value>,
    ints: Vec<i64>,
    floats: Vec<f64>,
    pub(crate) strings: Interner,
}

impl Arena {
    /// Empty but for `words`, whose numbers begin at 1.
    pub(super) fn new(words: &[&str]) -> Self {
        let mut strings = Interner::new(usize::MAX);
        for word in words {
            strings.intern(word.as_bytes());
        }
        Self {
            containers: Vec::new(),
            chunks: Vec::new(),
            slots: Vec::new(),
            ints: Vec::new(),
            floats: Vec::new(),
            strings,
        }
    }

    #[inline]
    pub(super) fn int(&mut self, int: i64) -> Result<Value, Full> {
        const HALF: i64 = 1 << 28;
        if (-HALF..HALF).contains(&int) {
            return Ok(Value(SMALL << 29 | (int + HALF) as u32));
        }
        self.ints.push(int);
        Value::new(INT, self.ints.len() - 1).ok_or(Full("too many large integers"))
    }

    pub(super) fn float(&mut self, float: f64) -> Result<Value, Full> {
        self.floats.push(float);
        Value::new(FLOAT, self.floats.len() - 1).ok_or(Full("too many floats"))
    }

    pub(super) fn text(&mut self, text: &[u8]) -> Result<Value, Full> {
        let number = self.strings.intern(text);
        Value::new(STRING, number as usize).ok_or(Full("too many strings"))
    }

    pub(super) fn list(&mut self, items: &[Value]) -> Result<Value, Full> {
        self.container(LIST, items)
    }

    pub(super) fn dict(&mut self, items: &[Value]) -> Result<Value, Full> {
        self.container(DICT, items)
    }

    pub(super) fn tuple(&mut self, items: &[Value]) -> Result<Value, Full> {
        self.container(TUPLE, items)
    }

    #[inline]
    fn container(&mut self, kind: u32, items: &[Value]) -> Result<Value, Full> {
        let start = self.slot(items)?;
        let first = Chunk {
            start,
            length: items.len() as u32,
            next: NO_CHUNK,
        };
        self.containers.push(Container {
            first,
            last: NO_CHUNK,
        });
        Value::new(kind, self.containers.len() - 1).ok_or(Full("too many lists, dicts and tuples"))
    }

    fn slot(&mut self, items: &[Value]) -> Result<u32, Full> {
        let start = self.slots.len();
        if start + items.len() >= u32::MAX as usize {
            return Err(Full("too many items"));
        }
        self.slots.extend_from_slice(items);
        Ok(start as u32)
    }

    /// Adds items to a list or a dict.
    #[inline]
    pub(super) fn extend(&mut self, container: Value, items: &[Value]) -> Result<(), Full> {
        let start = self.slot(items)?;
        let length = items.len() as u32;
        let next = self.chunks.len() as u32;
        let container = &mut self.containers[container.payload()];
        let growing = match container.last {
            NO_CHUNK => &mut container.first,
            last => &mut self.chunks[last as usize],
        };
        if growing.length == 0 {
            growing.start = start;
        }
        if growing.start + growing.length == start {
            growing.length += length;
            return Ok(());
        }
        growing.next = next;
        container.last = next;
        self.chunks.push(Chunk {
            start,
            length,
            next: NO_CHUNK,
        });
        Ok(())
    }

    /// Whether a list has no items yet; false for anything else.
    #[inline]
    pub(super) fn is_empty_list(&self, value: Value) -> bool {
        value.is_list() && self.containers[value.payload()].first.length == 0
    }

    /// Fills an empty list; what another may share.
    pub(super) fn fill(&mut self, list: Value, items: &[Value]) -> Result<Chunk, Full> {
        self.extend(list, items)?;
        Ok(self.containers[list.payload()].first)
    }

    /// Fills an empty list with items of another.
    #[inline]
    pub(super) fn share(&mut self, list: Value, items: Chunk) {
        self.containers[list.payload()].first = items;
    }

    #[inline]
    pub(super) fn taken(&self, dict: Value) -> Taken {
        let Container { first, last } = self.containers[dict.payload()];
        match (last, first.length) {
            (TAKEN, _) => Taken::By(first.start),
            (_, 0) => Taken::NotYet,
            _ => Taken::Not,
        }
    }

    /// Notes under which number the sieve keeps what an empty dict holds.
    #[inline]
    pub(super) fn take(&mut self, dict: Value, number: u32) {
        let container = &mut self.containers[dict.payload()];
        container.first.start = number;
        container.last = TAKEN;
    }

    /// The number under which the sieve keeps what a dict holds.
    #[inline]
    pub(crate) fn taken_by(&self, value: Value) -> Option<u32> {
        let container = value.dict().map(|number| self.containers[number])?;
        (container.last == TAKEN).then_some(container.first.start)
    }

    /// Equal for lists and tuples that share their items; 0 for those without items and for anything else.
    #[inline]
    pub(crate) fn identity(&self, value: Value) -> u64 {
        if !matches!(value.kind(), LIST | TUPLE) {
            return 0;
        }
        match self.containers[value.payload()].first {
            Chunk { length: 0, .. } => 0,
            Chunk {
                start,
                length,
                next: NO_CHUNK,
            } => u64::from(start) << 32 | u64::from(length),
            _ => u64::from(value.bits()) << 32,
        }
    }

    /// Containers built so far.
    pub(crate) fn containers(&self) -> usize {
        self.containers.len()
    }

    /// Items of all containers together; what a walk that visits everything once would visit.
    pub(crate) fn size(&self) -> usize {
        self.slots.len()
    }

    /// An integer, clamped to what `i64` holds; booleans are 0 and 1 as in Python.
    #[inline]
    pub(crate) fn as_int(&self, value: Value) -> Option<i64> {
        match value.kind() {
            SMALL => Some(value.payload() as i64 - (1 << 28)),
            INT => self.ints.get(value.payload()).copied(),
            _ => match value {
                Value::TRUE => Some(1),
                Value::FALSE => Some(0),
                Value::HUGE => Some(i64::MAX),
                Value::MINUS_HUGE => Some(i64::MIN),
                _ => None,
            },
        }
    }

    pub(crate) fn as_float(&self, value: Value) -> Option<f64> {
        match value.kind() {
            FLOAT => self.floats.get(value.payload()).copied(),
            _ => self.as_int(value).map(|int| int as f64),
        }
    }

    pub(crate) fn as_text(&self, value: Value) -> Option<&str> {
        value.string().map(|number| self.strings.get(number))
    }

    /// The items of a list or tuple.
    pub(crate) fn items(&self, value: Value) -> Option<Items<'_>> {
        matches!(value.kind(), LIST | TUPLE).then(|| self.all(value))
    }

    /// The keys and values of a dict; of equal keys the last one counts.
    pub(crate) fn pairs(&self, value: Value) -> Option<Pairs<'_>> {
        value.is_dict().then(|| Pairs(self.all(value)))
    }

    /// How many items a list or tuple has; 0 for anything else.
    pub(crate) fn count(&self, value: Value) -> usize {
        let Some(mut items) = self.items(value) else {
            return 0;
        };
        let mut count = items.items.len();
        while let Some(chunk) = self.chunks.get(items.next as usize) {
            count += chunk.length as usize;
            items.next = chunk.next;
        }
        count
    }

    fn all(&self, value: Value) -> Items<'_> {
        let Container { first, last } = self.containers[value.payload()];
        let items = match last {
            // Its start is no place in the slots.
            TAKEN => &[],
            _ => &self.slots[first.start as usize..][..first.length as usize],
        };
        Items {
            arena: self,
            items: items.iter(),
            next: first.next,
        }
    }
}

/// Items of a container in order.
pub(crate) struct Items<'a> {
    arena: &'a Arena,
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
            // Chunks are linked forward only, so this ends even in a container that contains itself.
            let chunk = self.arena.chunks.get(self.next as usize)?;
            self.items = self.arena.slots[chunk.start as usize..][..chunk.length as usize].iter();
            self.next = chunk.next;
        }
    }
}

/// Keys and values of a dict in order.
pub(crate) struct Pairs<'a>(Items<'a>);

impl Iterator for Pairs<'_> {
    type Item = (Value, Value);

    #[inline]
    fn next(&mut self) -> Option<(Value, Value)> {
        Some((self.0.next()?, self.0.next()?))
    }
}
