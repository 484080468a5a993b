//! Fast path for dicts with plain values, which are nearly all of a snapshot.
//!
//! Events, blocks and frames are written as `}`, MEMOIZE, a mark, a few keys and values, and `u`. The keys are
//! references to names that were memoised before. They mostly have the same bytes as the key at this position in the
//! previous dict, so the bytes are compared instead of decoded. Keys and values wait in an array and not on the stack.
//! If the input is not as expected, or the window ends, they are pushed onto the stack, and the machine continues as if
//! it had come this far by itself. Nothing is undone, and no error is detected here.

use super::machine::{DEEPEST, Machine};
use super::opcode::*;
use super::stop::Step;
use super::value::Value;
use super::window::signed;
use super::{Sieve, Taken};

/// Maximum number of keys of a plain dict. An event has ten.
const MOST: usize = 16;

/// The first bytes of a dict that is not empty, in protocol 4 and above.
const OPENING: [u8; 3] = [EMPTY_DICT, MEMOIZE, MARK];

/// The previous dict: its keys as written, and its keys and values. It is valid as long as no memo entry changes.
#[derive(Default)]
pub(super) struct Shape {
    keys: [Key; MOST],
    pairs: [[Value; 2]; MOST],
}

/// A reference of `length` bytes. They equal `word` under `mask`.
#[derive(Clone, Copy)]
struct Key {
    word: u64,
    mask: u64,
    length: usize,
}

impl Default for Key {
    /// Returns a key that no bytes match.
    fn default() -> Self {
        Self {
            word: 1,
            mask: 0,
            length: 0,
        }
    }
}

impl Shape {
    /// Clears the keys, because a memo entry changed its meaning.
    #[cold]
    pub(super) fn forget(&mut self) {
        // Keys are learned in order, starting with the first.
        if self.keys[0].mask != 0 {
            *self = Self::default();
        }
    }
}

impl<S: Sieve> Machine<'_, S> {
    /// Runs the `EMPTY_DICT` at `at` and as much of the dict as is plain. Returns the position of the next opcode.
    #[inline(never)]
    pub(super) fn dict(&mut self, window: &[u8], at: usize) -> Step<usize> {
        self.room(at)?;
        let place = self.memo.len();
        // The memo entry is set after it is known whether the sieve takes the dict. A taken dict is in no container.
        if !window[at..].starts_with(&OPENING)
            || self.marks.len() == DEEPEST
            || self.memoize(Value::UNSET, at + 1).is_err()
        {
            let dict = self.arena.dict(&[])?;
            self.push(dict)?;
            return Ok(at + 1);
        }
        let from = at + OPENING.len();
        if let Some((number, length)) = self.constants.guess(&window[from..]) {
            let dict = self.arena.whole(number)?;
            self.memo[place] = dict;
            self.push(dict)?;
            return Ok(from + length);
        }
        let mut at = from;
        let mut count = 0;
        while count < MOST
            && let Some(next) = self.pair(window, at, count)
        {
            at = next;
            count += 1;
        }
        let pairs = self.shape.pairs[..count].as_flattened();
        if window.get(at) != Some(&SETITEMS) {
            self.constants.interrupt();
            self.memo[place] = self.arena.dict(&[])?;
            return self.spill(place, count, at);
        }
        let taken = self.sieve.take(&self.arena, pairs);
        let dict = match taken {
            Some(taken) => self.arena.whole(taken.number())?,
            None => self.arena.dict(pairs)?,
        };
        self.memo[place] = dict;
        self.push(dict)?;
        match taken {
            // Without new memo entries, the same bytes always have the same meaning.
            Some(Taken::Constant(number)) if self.memo.len() == place + 1 => {
                self.constants.meet(&window[from..=at], number);
            }
            _ => self.constants.interrupt(),
        }
        Ok(at + 1)
    }

    /// Pushes the dict and its waiting pairs onto the stack.
    #[cold]
    fn spill(&mut self, place: usize, count: usize, at: usize) -> Step<usize> {
        self.push(self.memo[place])?;
        self.open_mark();
        for [key, value] in self.shape.pairs.into_iter().take(count) {
            self.push(key)?;
            self.push(value)?;
        }
        Ok(at)
    }

    /// Runs the key and the value at `at`, which are pair `number` of the dict. Returns the position of the next pair.
    #[inline(always)]
    fn pair(&mut self, window: &[u8], at: usize, number: usize) -> Option<usize> {
        let head = u64::from_le_bytes(*window.get(at..)?.first_chunk()?);
        let known = &self.shape.keys[number];
        if head & known.mask != known.word {
            self.key(head, number)?;
        }
        let at = at + self.shape.keys[number].length;
        let (value, next) = self.value(window, at)?;
        self.shape.pairs[number][1] = value;
        Some(next)
    }

    /// Learns the key at the start of `head`.
    fn key(&mut self, head: u64, number: usize) -> Option<()> {
        let length = match head as u8 {
            BINGET => 2,
            LONG_BINGET => 5,
            _ => return None,
        };
        let mask = (1 << (8 * length)) - 1;
        let word = head & mask;
        self.shape.pairs[number][0] = self.memoized((word >> 8) as usize)?;
        self.shape.keys[number] = Key { word, mask, length };
        Some(())
    }

    /// Runs the opcodes that push and memoise one value, if it is plain. Returns the value and the position of the next
    /// opcode.
    #[inline(always)]
    fn value(&mut self, window: &[u8], at: usize) -> Option<(Value, usize)> {
        // An opcode and the longest argument supported here: the length and eight bytes of LONG1.
        let head = window.get(at..)?.first_chunk::<10>()?;
        let [opcode, argument, ..] = *head;
        let four = *head[1..].first_chunk()?;
        Some(match opcode {
            BINGET => (self.memoized(usize::from(argument))?, at + 2),
            LONG_BINGET => (self.memoized(u32::from_le_bytes(four) as usize)?, at + 5),
            BININT1 => (self.arena.int(i64::from(argument)).ok()?, at + 2),
            BININT2 => {
                let int = u16::from_le_bytes([four[0], four[1]]);
                (self.arena.int(i64::from(int)).ok()?, at + 3)
            }
            BININT => {
                let int = i32::from_le_bytes(four);
                (self.arena.int(i64::from(int)).ok()?, at + 5)
            }
            LONG1 if matches!(argument, 1..=8) => {
                let int = signed(*head.last_chunk()?, u32::from(argument));
                (self.arena.int(int).ok()?, at + 2 + usize::from(argument))
            }
            NONE => (Value::NONE, at + 1),
            NEWTRUE => (Value::TRUE, at + 1),
            NEWFALSE => (Value::FALSE, at + 1),
            SHORT_BINUNICODE => {
                let end = at + 2 + usize::from(argument);
                let text = self.arena.text(window.get(at + 2..end)?).ok()?;
                (text, self.memoized_at(window, end, text))
            }
            EMPTY_LIST => {
                let list = self.room(at).ok()?.list(&[]).ok()?;
                let at = self.memoized_at(window, at + 1, list);
                match window.get(at) {
                    Some(&MARK) => (list, self.run(window, at, list).unwrap_or(at)),
                    _ => (list, at),
                }
            }
            _ => return None,
        })
    }

    /// Runs the `MEMOIZE` at `at`, if there is one. Returns the position of the next opcode.
    #[inline(always)]
    fn memoized_at(&mut self, window: &[u8], at: usize, value: Value) -> usize {
        match window.get(at) {
            Some(&MEMOIZE) if self.memoize(value, at).is_ok() => at + 1,
            _ => at,
        }
    }
}
