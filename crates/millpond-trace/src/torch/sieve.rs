//! What is taken out of a snapshot while it is parsed.
//!
//! Two kinds of values make up nearly all of it. Of an event's dict only nine values matter, so it is kept
//! as those and not as pairs. Of an event's stack only the frames its tag may name matter (see
//! [`super::tags`]); the others are dropped from the list. Both leave what the rest of this reader sees as it
//! would be, except for frames that change after a list took them, as no program writes.

use super::schema::Key;
use super::tags::{FRAMES, Frame, Frames};
use crate::pickle::{self, Arena, Value};

/// The values of one event's dict; `None` where it has none.
#[derive(Clone, Copy)]
pub(super) struct Record {
    pub(super) action: Value,
    pub(super) address: Value,
    pub(super) bytes: Value,
    pub(super) stream: Value,
    pub(super) time_us: Value,
    pub(super) pool: Value,
    pub(super) frames: Value,
    pub(super) user_metadata: Value,
    pub(super) compile_context: Value,
}

impl Record {
    pub(super) const EMPTY: Self = Self {
        action: Value::NONE,
        address: Value::NONE,
        bytes: Value::NONE,
        stream: Value::NONE,
        time_us: Value::NONE,
        pool: Value::NONE,
        frames: Value::NONE,
        user_metadata: Value::NONE,
        compile_context: Value::NONE,
    };

    /// Takes one pair in; of equal keys the last one counts.
    #[inline]
    pub(super) fn set(&mut self, key: Key, value: Value) {
        let field = match key {
            Key::Action => &mut self.action,
            Key::Addr | Key::DeviceFree => &mut self.address,
            Key::Size => &mut self.bytes,
            Key::Stream => &mut self.stream,
            Key::TimeUs => &mut self.time_us,
            Key::PoolId => &mut self.pool,
            Key::Frames => &mut self.frames,
            Key::UserMetadata => &mut self.user_metadata,
            Key::CompileContext => &mut self.compile_context,
            _ => return,
        };
        *field = value;
    }

    #[inline]
    fn set_all(&mut self, pairs: &[Value]) {
        for pair in pairs.chunks_exact(2) {
            self.set(Key::of(pair[0]), pair[1]);
        }
    }
}

/// What was taken.
pub(super) struct Sieve {
    pub(super) records: Vec<Record>,
    pub(super) frames: Frames,
}

impl Sieve {
    pub(super) fn new() -> Self {
        Self {
            records: Vec::new(),
            frames: Frames::default(),
        }
    }
}

impl pickle::Sieve for Sieve {
    /// Every version of PyTorch writes an event's action first.
    #[inline]
    fn take(&mut self, _arena: &Arena, pairs: &[Value]) -> Option<u32> {
        if pairs.first().map(|&key| Key::of(key)) != Some(Key::Action) {
            return None;
        }
        let number = u32::try_from(self.records.len()).ok()?;
        let mut record = Record::EMPTY;
        record.set_all(pairs);
        self.records.push(record);
        Some(number)
    }

    #[cold]
    fn more(&mut self, _arena: &Arena, number: u32, pairs: &[Value]) {
        if let Some(record) = self.records.get_mut(number as usize) {
            record.set_all(pairs);
        }
    }

    #[inline]
    fn items(&mut self, arena: &Arena, items: &mut [Value]) -> usize {
        match items.first() {
            Some(&first) if self.frames.of(arena, first) != Frame::Other => self.stack(arena, items),
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
            let counted = match self.frames.of(arena, items[at]) {
                Frame::Noise => continue,
                Frame::Other => {
                    items[kept] = items[at];
                    kept += 1;
                    continue;
                }
                Frame::Python => &mut python,
                Frame::Native if python > 0 => continue,
                Frame::Native => &mut native,
            };
            if *counted < FRAMES {
                *counted += 1;
                items[kept] = items[at];
                kept += 1;
            }
        }
        kept
    }
}
