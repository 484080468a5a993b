//! Dicts whose values are plain: nearly all of a snapshot.
//!
//! Events, blocks and frames are written as `}`, MEMOIZE, a mark, a few keys and values, `u`. The keys are
//! references to names memoised before, mostly the bytes that stood at this place in the dict before; so they
//! are compared instead of decoded, and keys and values wait in an array and not on the stack. At whatever is
//! not expected, the end of the window among it, they go onto the stack, and the machine goes on as if it had
//! come this far by itself: nothing is undone, and no error is found here.

use super::machine::{DEEPEST, Machine};
use super::opcode::*;
use super::stop::Step;
use super::value::Value;
use super::window::signed;
use super::{Sieve, Taken};

/// Keys of a plain dict. An event has ten.
const MOST: usize = 16;

/// How protocol 4 and above write the beginning of a dict that is not empty.
const OPENING: [u8; 3] = [EMPTY_DICT, MEMOIZE, MARK];

/// The dict met last: its keys as they were written, and keys and values in turn. Holds as long as no memo entry
/// changes.
#[derive(Default)]
pub(super) struct Shape {
    keys: [Key; MOST],
    pairs: [[Value; 2]; MOST],
}

/// A reference: `length` bytes, which are those of `word` under `mask`.
#[derive(Clone, Copy)]
struct Key {
    word: u64,
    mask: u64,
    length: usize,
}

impl Default for Key {
    /// What no bytes are equal to.
    fn default() -> Self {
        Self {
            word: 1,
            mask: 0,
            length: 0,
        }
    }
}

impl Shape {
    /// A memo entry changed its meaning.
    #[cold]
    pub(super) fn forget(&mut self) {
        // Keys are learned from the first on.
        if self.keys[0].mask != 0 {
            *self = Self::default();
        }
    }
}

impl<S: Sieve> Machine<'_, S> {
    /// Runs the `EMPTY_DICT` at `at` and as much of the dict as is plain; where the next opcode is.
    #[inline(never)]
    pub(super) fn dict(&mut self, window: &[u8], at: usize) -> Step<usize> {
        self.room(at)?;
        let place = self.memo.len();
        // Written when it is known whether the sieve takes the dict, which is then in no container.
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
            // Its bytes mean nothing else if they put nothing into the memo.
            Some(Taken::Constant(number)) if self.memo.len() == place + 1 => {
                self.constants.meet(&window[from..=at], number);
            }
            _ => self.constants.interrupt(),
        }
        Ok(at + 1)
    }

    /// Puts the dict and what waits of it onto the stack.
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

    /// Runs the key and the value at `at`, the dict's pair number `number`; where the next one is.
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

    /// Learns the key that `head` begins with.
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

    /// Runs what pushes one value and memoises it, if it is plain; the value, and where the next opcode is.
    #[inline(always)]
    fn value(&mut self, window: &[u8], at: usize) -> Option<(Value, usize)> {
        // An opcode and the longest argument known here: the length and eight digits of LONG1.
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

    /// Runs the `MEMOIZE` at `at`, if there is one; where the next opcode is.
    #[inline(always)]
    fn memoized_at(&mut self, window: &[u8], at: usize, value: Value) -> usize {
        match window.get(at) {
            Some(&MEMOIZE) if self.memoize(value, at).is_ok() => at + 1,
            _ => at,
        }
    }
}
