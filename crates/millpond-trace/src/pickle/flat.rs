//! Dicts whose values are plain: nearly all of a snapshot.
//!
//! Events, blocks and frames are written as `}`, MEMOIZE, a mark, a few keys and values, `u`. The machine would
//! spend more on its stack and marks than on what these hold, so here keys and values wait in an array. At
//! whatever is not expected, the end of the window among it, they go onto the stack, and the machine goes on as
//! if it had come this far by itself: nothing is undone, and no error is found here.

use super::Sieve;
use super::arena::Value;
use super::machine::{DEEPEST, Machine};
use super::opcode::*;
use super::stop::Step;
use super::window::signed;

/// Keys and values that may wait. An event has twenty.
const MOST: usize = 32;

/// How protocol 4 and above write the beginning of a dict that is not empty.
const OPENING: [u8; 3] = [EMPTY_DICT, MEMOIZE, MARK];

/// Keys and values of a dict whose end is not met yet.
struct Waiting {
    values: [Value; MOST],
    count: usize,
}

impl Waiting {
    #[inline(always)]
    fn values(&self) -> &[Value] {
        &self.values[..self.count]
    }

    #[inline(always)]
    fn last(&self) -> Option<Value> {
        self.values().last().copied()
    }

    #[inline(always)]
    fn push(&mut self, value: Value) -> Option<()> {
        *self.values.get_mut(self.count)? = value;
        self.count += 1;
        Some(())
    }
}

impl<S: Sieve> Machine<'_, S> {
    /// Runs the `EMPTY_DICT` at `at` and as much of the dict as is plain; where the next opcode is.
    #[inline(never)]
    pub(super) fn dict(&mut self, window: &[u8], at: usize) -> Step<usize> {
        let dict = self.room(at)?.dict(&[])?;
        self.push(dict)?;
        if !window[at..].starts_with(&OPENING)
            || self.marks.len() == DEEPEST
            || self.memoize(dict, at + 1).is_err()
        {
            return Ok(at + 1);
        }
        let mut waiting = Waiting {
            values: [Value::NONE; MOST],
            count: 0,
        };
        let mut at = at + OPENING.len();
        while let Some(next) = self.plain(window, at, &mut waiting) {
            at = next;
        }
        if window.get(at) == Some(&SETITEMS) && waiting.count.is_multiple_of(2) {
            Self::set_pairs(&mut self.arena, self.sieve, dict, waiting.values())?;
            return Ok(at + 1);
        }
        self.open_mark();
        for &value in waiting.values() {
            self.push(value)?;
        }
        Ok(at)
    }

    /// Runs the opcode at `at` on what waits; where the next one is. None if it is not plain; then it changed
    /// nothing.
    #[inline(always)]
    fn plain(&mut self, window: &[u8], at: usize, waiting: &mut Waiting) -> Option<usize> {
        // An opcode and the longest argument known here: the length and eight digits of LONG1.
        let &[opcode, a, b, c, d, ref more @ ..] = window.get(at..)?.first_chunk::<10>()?;
        let (value, length) = match opcode {
            BINGET => (self.memoized(usize::from(a))?, 2),
            LONG_BINGET => (self.memoized(u32::from_le_bytes([a, b, c, d]) as usize)?, 5),
            BININT1 => (self.arena.int(i64::from(a)).ok()?, 2),
            BININT2 => (self.arena.int(i64::from(u16::from_le_bytes([a, b]))).ok()?, 3),
            BININT => {
                let int = i32::from_le_bytes([a, b, c, d]);
                (self.arena.int(i64::from(int)).ok()?, 5)
            }
            LONG1 if matches!(a, 1..=8) => {
                let &[e, f, g, h, i] = more;
                let int = signed([b, c, d, e, f, g, h, i], u32::from(a));
                (self.arena.int(int).ok()?, 2 + usize::from(a))
            }
            NONE => (Value::NONE, 1),
            NEWTRUE => (Value::TRUE, 1),
            NEWFALSE => (Value::FALSE, 1),
            SHORT_BINUNICODE => {
                let text = window[at + 2..].get(..usize::from(a))?;
                (self.arena.text(text).ok()?, 2 + text.len())
            }
            EMPTY_LIST => (self.room(at).ok()?.list(&[]).ok()?, 1),
            TUPLE2 => {
                let from = waiting.count.checked_sub(2)?;
                let tuple = self.room(at).ok()?.tuple(&waiting.values()[from..]).ok()?;
                waiting.count = from;
                (tuple, 1)
            }
            MEMOIZE => {
                self.memoize(waiting.last()?, at).ok()?;
                return Some(at + 1);
            }
            MARK => return self.run(window, at, waiting.last()?),
            _ => return None,
        };
        waiting.push(value)?;
        Some(at + length)
    }
}
