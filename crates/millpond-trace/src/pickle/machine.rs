//! The stack machine for protocols 0 to 5, limited to data.
//!
//! Limits keep hostile files small. Each is far above the need of a snapshot: the depth of the stack, and the numbers
//! of containers and memo entries in proportion to the bytes read. Strings are read piece by piece, whatever length
//! they claim.

use super::Sieve;
use super::arena::Arena;
use super::containers::{PairStorage, Span};
use super::flat::Shape;
use super::opcode::*;
use super::runs::Runs;
use super::stop::{Step, fault};
use super::value::Value;
use super::window::{argument, bytes, last_head, signed};

/// Maximum depth of the stack. CPython pushes at most a thousand items before it appends them. PyTorch's own writer
/// pushes a whole list.
pub(super) const DEEPEST: usize = 1 << 25;
/// Number of containers allowed beyond one for each eight bytes.
const SPARE_CONTAINERS: u64 = 4 << 20;

pub(super) const TOO_DEEP: &str = "the stack has more values than any snapshot needs";

/// The state of the machine between two opcodes.
pub(super) struct Machine<'s, S> {
    pub(super) sieve: &'s mut S,
    pub(super) arena: Arena,
    pub(super) stack: Vec<Value>,
    /// Height of the stack at the last open mark, or 0 if there is none.
    pub(super) fence: usize,
    /// The value of `fence` before each open mark.
    pub(super) marks: Vec<u32>,
    pub(super) memo: Vec<Value>,
    /// The items of lists of references.
    pub(super) runs: Runs<Span>,
    /// The numbers under which the sieve keeps the contents of dicts.
    pub(super) constants: Runs<u32>,
    /// The keys of the last plain dict.
    pub(super) shape: Shape,
    /// Bytes of the file before the window.
    pub(super) before: u64,
}

impl<'s, S: Sieve> Machine<'s, S> {
    /// Creates a machine that has read nothing. The strings of the arena begin with `words`, and there is space for the
    /// content of `expected` bytes.
    pub(super) fn new(sieve: &'s mut S, words: &[&str], expected: usize) -> Self {
        Self {
            sieve,
            arena: Arena::new(words, expected),
            stack: Vec::new(),
            fence: 0,
            marks: Vec::new(),
            memo: Vec::with_capacity(expected / 8),
            runs: Runs::with_room(expected / 4096, expected / 16),
            constants: Runs::default(),
            shape: Shape::default(),
            before: 0,
        }
    }

    /// Runs the opcode at `at`, and possibly more. Returns the position of the next opcode.
    #[inline(always)]
    pub(super) fn step(&mut self, window: &[u8], at: usize) -> Step<usize> {
        let head = match window.get(at..).and_then(|rest| rest.first_chunk()) {
            Some(head) => head,
            None => &last_head(window, at)?,
        };
        let opcode = head[0];
        match opcode {
            BINGET => {
                let [index] = argument(head);
                self.get(usize::from(index))?;
                Ok(at + 2)
            }
            LONG_BINGET => {
                let index = u32::from_le_bytes(argument(head));
                self.get(index as usize)?;
                Ok(at + 5)
            }
            MEMOIZE => {
                let value = self.top()?;
                self.memoize(value, at)?;
                Ok(at + 1)
            }
            BINPUT => {
                let [index] = argument(head);
                self.put(u64::from(index), at)?;
                Ok(at + 2)
            }
            LONG_BINPUT => {
                let index = u32::from_le_bytes(argument(head));
                self.put(u64::from(index), at)?;
                Ok(at + 5)
            }
            BININT1 => {
                let [int] = argument(head);
                self.int(i64::from(int))?;
                Ok(at + 2)
            }
            BININT2 => {
                let int = u16::from_le_bytes(argument(head));
                self.int(i64::from(int))?;
                Ok(at + 3)
            }
            BININT => {
                let int = i32::from_le_bytes(argument(head));
                self.int(i64::from(int))?;
                Ok(at + 5)
            }
            LONG1 => {
                let [length] = argument(head);
                self.long(window, at, 2, u64::from(length))
            }
            MARK => {
                if self.marks.len() == DEEPEST {
                    return fault("marks are nested too deeply");
                }
                if let Some(&list) = self.stack[self.fence..].last()
                    && let Some(next) = self.run(window, at, list)
                {
                    return Ok(next);
                }
                self.open_mark();
                Ok(at + 1)
            }
            EMPTY_DICT => self.dict(window, at),
            EMPTY_LIST | EMPTY_SET => {
                let value = self.room(at)?.list(&[])?;
                self.push(value)?;
                Ok(at + 1)
            }
            SETITEMS => {
                let from = self.mark()?;
                self.set(opcode, from)?;
                Ok(at + 1)
            }
            SETITEM => {
                let from = self.height_below(2)?;
                self.set(opcode, from)?;
                Ok(at + 1)
            }
            APPENDS | ADDITEMS => {
                let from = self.mark()?;
                self.append(opcode, from)?;
                Ok(at + 1)
            }
            APPEND => {
                let from = self.height_below(1)?;
                self.append(opcode, from)?;
                Ok(at + 1)
            }
            SHORT_BINUNICODE | SHORT_BINSTRING => {
                let [length] = argument(head);
                self.text(window, at, 2, u64::from(length))
            }
            NONE => {
                self.push(Value::NONE)?;
                Ok(at + 1)
            }
            NEWTRUE => {
                self.push(Value::TRUE)?;
                Ok(at + 1)
            }
            NEWFALSE => {
                self.push(Value::FALSE)?;
                Ok(at + 1)
            }
            _ => self.rare(head, window, at),
        }
    }

    #[inline]
    pub(super) fn text(&mut self, window: &[u8], at: usize, head: usize, length: u64) -> Step<usize> {
        let text = bytes(window, at, head, length)?;
        let value = self.arena.text(text)?;
        self.push(value)?;
        Ok(at + head + text.len())
    }

    /// Reads a little-endian two's complement integer.
    #[inline(always)]
    pub(super) fn long(&mut self, window: &[u8], at: usize, head: usize, length: u64) -> Step<usize> {
        // Most integers are addresses and times, which a shift extracts from one word.
        if let 1..=8 = length
            && let Some(&word) = window.get(at + head..).and_then(|rest| rest.first_chunk())
        {
            self.int(signed(word, length as u32))?;
            return Ok(at + head + length as usize);
        }
        self.any_long(window, at, head, length)
    }

    #[inline]
    fn int(&mut self, int: i64) -> Step<()> {
        let value = self.arena.int(int)?;
        self.push(value)
    }

    #[inline]
    pub(super) fn push(&mut self, value: Value) -> Step<()> {
        if self.stack.len() == self.stack.capacity() {
            self.deepen()?;
        }
        self.stack.push(value);
        Ok(())
    }

    /// Enlarges the stack.
    #[cold]
    fn deepen(&mut self) -> Step<()> {
        let depth = self.stack.len();
        if depth >= DEEPEST {
            return fault(TOO_DEEP);
        }
        self.stack.reserve_exact(depth.max(1 << 10).min(DEEPEST - depth));
        Ok(())
    }

    /// Returns the height of the stack without its top `count` values. None of them may lie below a mark.
    #[inline]
    pub(super) fn height_below(&self, count: usize) -> Step<usize> {
        match self.stack.len().checked_sub(count) {
            Some(height) if height >= self.fence => Ok(height),
            _ => fault("the stack is empty"),
        }
    }

    #[inline]
    pub(super) fn top(&self) -> Step<Value> {
        let height = self.height_below(1)?;
        Ok(self.stack[height])
    }

    pub(super) fn pop(&mut self) -> Step<Value> {
        let value = self.top()?;
        self.stack.pop();
        Ok(value)
    }

    /// Opens a mark. Fewer than [`DEEPEST`] marks may be open.
    #[inline]
    pub(super) fn open_mark(&mut self) {
        self.marks.push(self.fence as u32);
        self.fence = self.stack.len();
    }

    /// Closes the last mark. Returns the height of the stack at the mark.
    #[inline]
    pub(super) fn mark(&mut self) -> Step<usize> {
        match self.marks.pop() {
            Some(outer) => Ok(std::mem::replace(&mut self.fence, outer as usize)),
            None => fault("no MARK is open"),
        }
    }

    #[inline]
    pub(super) fn get(&mut self, index: usize) -> Step<()> {
        match self.memoized(index) {
            Some(value) => self.push(value),
            None => fault(format!("memo {index} was never written")),
        }
    }

    /// Returns the memo entry at `index`, if it was written.
    #[inline]
    pub(super) fn memoized(&self, index: usize) -> Option<Value> {
        self.memo
            .get(index)
            .copied()
            .filter(|&value| value != Value::UNSET)
    }

    /// Appends an entry to the memo.
    #[inline]
    pub(super) fn memoize(&mut self, value: Value, at: usize) -> Step<()> {
        self.check_memo(self.memo.len() as u64, at)?;
        self.memo.push(value);
        Ok(())
    }

    /// Checks a memo index. Every memo entry takes at least two bytes, one to push a value and one to store it.
    #[inline]
    pub(super) fn check_memo(&self, index: u64, at: usize) -> Step<()> {
        let offset = self.before + at as u64;
        if index > offset / 2 + 1 {
            return fault(format!("memo {index} cannot be reached within {offset} bytes"));
        }
        Ok(())
    }

    pub(super) fn put(&mut self, index: u64, at: usize) -> Step<()> {
        let value = self.top()?;
        self.check_memo(index, at)?;
        let index = index as usize;
        if index >= self.memo.len() {
            self.memo.resize(index + 1, Value::UNSET);
        } else if self.memo[index] != Value::UNSET {
            self.runs.forget();
            self.constants.forget();
            self.shape.forget();
        }
        self.memo[index] = value;
        Ok(())
    }

    /// Returns the arena if it may hold another container.
    #[inline]
    pub(super) fn room(&mut self, at: usize) -> Step<&mut Arena> {
        if self.arena.containers() as u64 > SPARE_CONTAINERS + (self.before + at as u64) / 8 {
            return fault("too many lists, dicts and tuples for a snapshot of this length");
        }
        Ok(&mut self.arena)
    }

    /// Creates a tuple of the values above `from`. Returns the length of the opcode.
    #[inline]
    pub(super) fn tuple(&mut self, from: usize, at: usize) -> Step<usize> {
        self.room(at)?;
        let value = self.arena.tuple(&self.stack[from..])?;
        self.stack.truncate(from);
        self.push(value)?;
        Ok(1)
    }

    /// Returns the container just below `from`.
    #[inline]
    fn below(&self, from: usize) -> Step<Value> {
        match from
            .checked_sub(1)
            .filter(|&at| at >= self.fence)
            .and_then(|at| self.stack.get(at))
        {
            Some(&container) => Ok(container),
            None => fault("there is no container to add to"),
        }
    }

    /// Adds the values above `from` to the dict just below it.
    #[inline]
    fn set(&mut self, opcode: u8, from: usize) -> Step<()> {
        let dict = self.below(from)?;
        if !dict.is_dict() {
            return fault(format!(
                "{} on a value that is not a dict",
                name(opcode).unwrap_or("")
            ));
        }
        let pairs = &self.stack[from..];
        if !pairs.len().is_multiple_of(2) {
            return fault("SETITEMS has a key without a value");
        }
        match self.arena.taken(dict) {
            PairStorage::Taken(number) => self.sieve.more(&self.arena, number, pairs),
            PairStorage::Here => self.arena.extend(dict, pairs)?,
            PairStorage::Nowhere => match self.sieve.take(&self.arena, pairs) {
                Some(taken) => self.arena.take(dict, taken.number()),
                None => self.arena.extend(dict, pairs)?,
            },
        }
        self.stack.truncate(from);
        Ok(())
    }

    /// Adds the values above `from` to the list just below it.
    #[inline]
    fn append(&mut self, opcode: u8, from: usize) -> Step<()> {
        let list = self.below(from)?;
        if !list.is_list() {
            return fault(format!(
                "{} on a value that is not a list",
                name(opcode).unwrap_or("")
            ));
        }
        let kept = self.sieve.items(&self.arena, &mut self.stack[from..]);
        self.arena.extend(list, &self.stack[from..][..kept])?;
        self.stack.truncate(from);
        Ok(())
    }
}
