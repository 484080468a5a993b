//! What is taken out of a snapshot while it is parsed.
//!
//! Three kinds of values make up nearly all of it. Of an event's dict only nine values matter, so it is kept
//! as those and not as pairs. Of a frame only what it says matters (see [`super::frames`]), so equal ones are
//! kept once. Of an event's stack only the frames its tag may name matter (see [`super::tags`]); the others are
//! dropped from the list. All of it leaves what the rest of this reader sees as it would be, except for frames
//! that change later, as no program writes.

use super::frames::{FIRST_FRAME, Frames, Kind};
use super::schema::{KEYS, Key};
use crate::caution::TAG_FRAMES;
use crate::pickle::{self, Arena, Taken, Value};

/// The values of one event's dict; `None` where it has none.
#[derive(Clone, Copy)]
pub(super) struct Record([Value; 9]);

/// Places in a [`Record`].
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
}

/// Where the value of each key goes; beyond a record's end for those that are of no use.
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
    pub(super) const EMPTY: Self = Self([Value::NONE; 9]);

    #[inline]
    pub(super) fn get(&self, field: Field) -> Value {
        self.0[field as usize]
    }

    /// Takes pairs in, keys and values in turn; of equal keys the last one counts.
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

/// What was taken.
pub(super) struct Sieve {
    pub(super) records: Vec<Record>,
    pub(super) frames: Frames,
}

impl Sieve {
    /// Nothing taken, with room for the records in `expected` bytes.
    pub(super) fn new(expected: usize) -> Self {
        Self {
            records: Vec::with_capacity(expected / 128),
            frames: Frames::default(),
        }
    }
}

impl pickle::Sieve for Sieve {
    /// Every version of PyTorch writes an event's action first.
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
        // Filled where it stays: a copy would wait for each of its values to be written.
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
            Some(&first) if self.frames.kind(arena, first) != Kind::Other => self.stack(arena, items),
            _ => items.len(),
        }
    }
}

impl Sieve {
    /// Keeps the first Python frames and, where there are none, the first native ones. Applied to the parts of
    /// a stack one by one this keeps what it would keep of the whole, and maybe some native ones.
    fn stack(&mut self, arena: &Arena, items: &mut [Value]) -> usize {
        let (mut python, mut native, mut kept) = (0, 0, 0);
        for at in 0..items.len() {
            let counted = match self.frames.kind(arena, items[at]) {
                Kind::Noise => continue,
                Kind::Other => {
                    items[kept] = items[at];
                    kept += 1;
                    continue;
                }
                Kind::Python => &mut python,
                Kind::Native if python > 0 => continue,
                Kind::Native => &mut native,
            };
            // One frame more than a tag names is counted, which shows that frames are left out.
            if *counted <= TAG_FRAMES {
                *counted += 1;
                items[kept] = items[at];
                kept += 1;
            }
        }
        kept
    }
}
