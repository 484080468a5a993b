//! Takes values out of a snapshot while it is parsed.
//!
//! Three kinds of values make up nearly all of a snapshot. Only ten values of an event's dict matter, so these are kept
//! instead of its pairs. Only the contents of a frame matter (see [`super::frames`]), so equal frames are kept once.
//! Frames that are in every stack are dropped from the list. The rest of the reader sees no difference, except for
//! frames that change later, which no program writes.

use super::frames::{FIRST_FRAME, Frames, Role};
use super::schema::{KEYS, Key};
use crate::pickle::{self, Arena, Taken, Value};

/// The values of one event's dict. A value that the dict does not have is `None`.
#[derive(Clone, Copy)]
pub(super) struct Record([Value; 10]);

/// The positions in a [`Record`].
#[derive(Clone, Copy)]
pub(super) enum Field {
    Action,
    Address,
    Bytes,
    Stream,
    TimeUs,
    Pool,
    Frames,
    UserMetadata,
    CompileContext,
    ForwardFrames,
}

/// The position of each key's value. It lies beyond the end of a record for keys that are not needed.
const PLACES: [u8; KEYS.len()] = {
    let mut places = [u8::MAX; KEYS.len()];
    let mut at = 0;
    while at < KEYS.len() {
        let field = match KEYS[at] {
            Key::Action => Some(Field::Action),
            Key::Addr | Key::DeviceFree => Some(Field::Address),
            Key::Size => Some(Field::Bytes),
            Key::Stream => Some(Field::Stream),
            Key::TimeUs => Some(Field::TimeUs),
            Key::PoolId => Some(Field::Pool),
            Key::Frames => Some(Field::Frames),
            Key::UserMetadata => Some(Field::UserMetadata),
            Key::CompileContext => Some(Field::CompileContext),
            Key::ForwardFrames => Some(Field::ForwardFrames),
            _ => None,
        };
        if let Some(field) = field {
            places[at] = field as u8;
        }
        at += 1;
    }
    places
};

impl Record {
    pub(super) const EMPTY: Self = Self([Value::NONE; 10]);

    #[inline]
    pub(super) fn get(&self, field: Field) -> Value {
        self.0[field as usize]
    }

    /// Stores pairs, with keys and values alternating. Of equal keys the last one counts.
    #[inline]
    pub(super) fn set(&mut self, pairs: &[Value]) {
        for pair in pairs.chunks_exact(2) {
            let place = pair[0].string().and_then(|key| PLACES.get(key as usize));
            if let Some(&place) = place
                && let Some(value) = self.0.get_mut(usize::from(place))
            {
                *value = pair[1];
            }
        }
    }
}

/// The values taken from a snapshot.
pub(super) struct Sieve {
    pub(super) records: Vec<Record>,
    pub(super) frames: Frames,
}

impl Sieve {
    /// Creates an empty sieve with space for the records in `expected` bytes.
    pub(super) fn new(expected: usize) -> Self {
        Self {
            records: Vec::with_capacity(expected / 128),
            frames: Frames::default(),
        }
    }
}

impl pickle::Sieve for Sieve {
    /// Takes a dict if it is an event or a frame. Every version of PyTorch writes an event's action first.
    #[inline]
    fn take(&mut self, arena: &Arena, pairs: &[Value]) -> Option<Taken> {
        match pairs.first().map(|&key| Key::of(key))? {
            Key::Action => {}
            Key::Filename | Key::Name | Key::Line => {
                return self.frames.take(arena, pairs).map(Taken::Constant);
            }
            _ => return None,
        }
        let number = self.records.len();
        // The record is filled in place, because a copy would wait until each of its values is written.
        self.records.push(Record::EMPTY);
        self.records[number].set(pairs);
        u32::try_from(number)
            .ok()
            .filter(|&number| number < FIRST_FRAME)
            .map(Taken::Own)
    }

    #[cold]
    fn more(&mut self, _arena: &Arena, number: u32, pairs: &[Value]) {
        if let Some(record) = self.records.get_mut(number as usize) {
            record.set(pairs);
        }
    }

    fn taken(&self) -> usize {
        self.records.len()
    }

    #[inline]
    fn items(&mut self, arena: &Arena, items: &mut [Value]) -> usize {
        match items.first() {
            Some(&first) if self.frames.role(arena, first).is_some() => self.stack(arena, items),
            _ => items.len(),
        }
    }
}

impl Sieve {
    /// Keeps the frames of a stack, except those that are in every stack. Other values are not part of a stack.
    fn stack(&mut self, arena: &Arena, items: &mut [Value]) -> usize {
        let mut kept = 0;
        for at in 0..items.len() {
            let role = self.frames.role(arena, items[at]);
            if role.is_some_and(|role| role != Role::Noise) {
                items[kept] = items[at];
                kept += 1;
            }
        }
        kept
    }
}
