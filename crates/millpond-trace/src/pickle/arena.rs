//! All values of a pickle in a few flat vectors.
//!
//! Compared with one node for each value, this makes a snapshot smaller in memory than on disk.

use super::containers::{Containers, Items, PairStorage, Span};
use super::value::{DICT, FLOAT, INT, LIST, STRING, TUPLE, Value};
use crate::strings::{Interner, Shared};

/// Why a value could not be added.
#[derive(Debug)]
pub(super) struct Full(pub(super) &'static str);

const TOO_MANY_CONTAINERS: Full = Full("too many lists, dicts and tuples");
const TOO_MANY_ITEMS: Full = Full("too many items");

/// All values of one pickle.
pub(crate) struct Arena {
    containers: Containers,
    /// Number of dicts that the sieve took completely. They are in no container.
    whole: usize,
    ints: Vec<i64>,
    floats: Vec<f64>,
    pub(crate) strings: Interner,
}

impl Arena {
    /// Creates an arena that contains only `words`, whose numbers begin at 1. Reserves space for the content of
    /// `expected` bytes.
    pub(super) fn new(words: &[&str], expected: usize) -> Self {
        let mut strings = Interner::new(&Shared::new(usize::MAX));
        strings.reserve(expected / 512, expected / 8);
        for word in words {
            strings.intern(word.as_bytes());
        }
        Self {
            containers: Containers::new(expected),
            whole: 0,
            ints: Vec::with_capacity(expected / 64),
            floats: Vec::new(),
            strings,
        }
    }

    #[inline]
    pub(super) fn int(&mut self, int: i64) -> Result<Value, Full> {
        match Value::small(int) {
            Some(small) => Ok(small),
            None => {
                self.ints.push(int);
                Value::new(INT, self.ints.len() - 1).ok_or(Full("too many large integers"))
            }
        }
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
        let number = self.containers.add(items).ok_or(TOO_MANY_ITEMS)?;
        Value::new(kind, number).ok_or(TOO_MANY_CONTAINERS)
    }

    /// Adds a dict. The sieve keeps its pairs so far under `number`.
    #[inline]
    pub(super) fn whole(&mut self, number: u32) -> Result<Value, Full> {
        self.whole += 1;
        Value::whole(number).ok_or(TOO_MANY_CONTAINERS)
    }

    /// Adds items to a list, or to a dict that was not taken.
    #[inline]
    pub(super) fn extend(&mut self, container: Value, items: &[Value]) -> Result<(), Full> {
        self.containers
            .extend(container.index(), items)
            .ok_or(TOO_MANY_ITEMS)
    }

    /// Returns whether a value is a list without items.
    #[inline]
    pub(super) fn is_empty_list(&self, value: Value) -> bool {
        value.is_list() && self.containers.is_empty(value.index())
    }

    /// Fills an empty list. Returns the items that another list may share.
    pub(super) fn fill(&mut self, list: Value, items: &[Value]) -> Result<Option<Span>, Full> {
        self.extend(list, items)?;
        Ok(self.containers.together(list.index()))
    }

    /// Fills an empty list with items of another list.
    #[inline]
    pub(super) fn share(&mut self, list: Value, items: Span) {
        self.containers.share(list.index(), items);
    }

    /// Returns the location of a dict's pairs.
    #[inline]
    pub(super) fn taken(&self, dict: Value) -> PairStorage {
        match dict.as_whole() {
            Some(number) => PairStorage::Taken(number),
            None => self.containers.taken(dict.index()),
        }
    }

    /// Records the number under which the sieve keeps the pairs of an empty dict.
    #[inline]
    pub(super) fn take(&mut self, dict: Value, number: u32) {
        self.containers.take(dict.index(), number);
    }

    /// Returns the number under which the sieve keeps a dict's pairs.
    #[inline]
    pub(crate) fn taken_by(&self, value: Value) -> Option<u32> {
        match value.is_dict().then(|| self.taken(value))? {
            PairStorage::Taken(number) => Some(number),
            _ => None,
        }
    }

    /// Returns an identity that is equal for lists and tuples that share their items. It is 0 for those without items
    /// and for other values.
    #[inline]
    pub(crate) fn identity(&self, value: Value) -> u64 {
        if !is_sequence(value) {
            return 0;
        }
        match self.containers.identity(value.index()) {
            Some(identity) => identity,
            None => u64::from(value.bits()) << 32,
        }
    }

    /// Returns the number of lists, tuples and dicts so far.
    #[inline]
    pub(crate) fn containers(&self) -> usize {
        self.containers.len() + self.whole
    }

    /// Returns the number of items of all containers. A walk that visits everything once visits this many.
    pub(crate) fn size(&self) -> usize {
        self.containers.items()
    }

    /// Returns an integer, clamped to the range of `i64`. Booleans are 0 and 1, as in Python.
    #[inline]
    pub(crate) fn as_int(&self, value: Value) -> Option<i64> {
        if value.kind() == INT {
            return self.ints.get(value.index()).copied();
        }
        match value {
            Value::TRUE => Some(1),
            Value::FALSE => Some(0),
            Value::HUGE => Some(i64::MAX),
            Value::MINUS_HUGE => Some(i64::MIN),
            _ => value.as_small(),
        }
    }

    pub(crate) fn as_float(&self, value: Value) -> Option<f64> {
        match value.kind() {
            FLOAT => self.floats.get(value.index()).copied(),
            _ => self.as_int(value).map(|int| int as f64),
        }
    }

    pub(crate) fn as_text(&self, value: Value) -> Option<&str> {
        value.string().map(|number| self.strings.get(number))
    }

    /// Returns the items of a list or tuple.
    pub(crate) fn items(&self, value: Value) -> Option<Items<'_>> {
        is_sequence(value).then(|| self.containers.iter(value.index()))
    }

    /// Returns the keys and values of a dict. Of equal keys the last one counts. A dict that was taken has none.
    pub(crate) fn pairs(&self, value: Value) -> Option<Pairs<'_>> {
        let items = || value.dict().map(|number| self.containers.iter(number));
        value.is_dict().then(|| Pairs(items()))
    }

    /// Returns the number of items of a list or tuple, or 0 for other values.
    pub(crate) fn count(&self, value: Value) -> usize {
        match is_sequence(value) {
            true => self.containers.count(value.index()),
            false => 0,
        }
    }
}

#[inline]
fn is_sequence(value: Value) -> bool {
    matches!(value.kind(), LIST | TUPLE)
}

/// The keys and values of a dict, in order.
pub(crate) struct Pairs<'a>(Option<Items<'a>>);

impl Iterator for Pairs<'_> {
    type Item = (Value, Value);

    #[inline]
    fn next(&mut self) -> Option<(Value, Value)> {
        let items = self.0.as_mut()?;
        Some((items.next()?, items.next()?))
    }
}
