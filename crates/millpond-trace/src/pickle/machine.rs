//! The stack machine: protocols 0 to 5, data only.
//!
//! Bounds that keep hostile files small, each far above what a snapshot needs: the stack's depth, containers
//! and memo numbers in proportion to the bytes read, strings read piece by piece whatever length they claim.
//!
//! It runs on what is buffered of the file. An opcode whose argument is not all there changes nothing and
//! says how much it wants; it is run again when that is buffered.

use super::Sieve;
use super::arena::{Arena, Full, Taken, Value};
use super::opcode::*;
use super::runs::Runs;
use super::text::{decimal, unescaped};
use crate::{ReadError, source::Source};

/// CPython pushes at most a thousand items before it appends them, PyTorch's own writer a whole list.
const DEEPEST: usize = 1 << 25;
/// Longer strings are no names.
const LONGEST_TEXT: u64 = 64 << 20;
/// Containers allowed beyond one for each eight bytes.
const SPARE_CONTAINERS: u64 = 4 << 20;

/// Containers that a compressed file may hold where it may hold one line; those at hand have a tenth of it, and
/// a small one without history three quarters.
const CONTAINERS_PER_LINE: usize = 4;

const TOO_DEEP: &str = "more values at once than any snapshot has";

/// The value a pickle builds, and the arena it lives in. Strings of the arena begin with `words`.
pub(crate) fn load(
    source: &mut Source<'_>,
    words: &[&str],
    sieve: &mut impl Sieve,
) -> Result<(Arena, Value), ReadError> {
    let mut machine = Machine {
        sieve,
        arena: Arena::new(words),
        stack: Vec::new(),
        fence: 0,
        marks: Vec::new(),
        memo: Vec::new(),
        runs: Runs::default(),
        before: 0,
    };
    loop {
        let window = source.buffered();
        let length = window.len();
        machine.before = source.offset();
        let mut at = 0;
        let stop = loop {
            match machine.step(window, at) {
                Ok(next) => at = next,
                Err(stop) => break *stop,
            }
        };
        source.consume(at);
        source.check_lines(machine.sieve.taken() as u64)?;
        source.check_lines((machine.arena.containers() / CONTAINERS_PER_LINE) as u64)?;
        let offset = source.offset();
        match stop {
            Stop::Done(value) => return Ok((machine.arena, value)),
            Stop::Short { wanted, within } => {
                let had = length - at;
                source.fill(wanted)?;
                if source.buffered().len() == had {
                    let what = match within {
                        Within::Opcode => "the file ends before STOP".to_owned(),
                        Within::Text(bytes) => format!("the file ends within a string of {bytes} bytes"),
                        Within::Line => "the file ends within a line of text".to_owned(),
                    };
                    return Err(ReadError::Pickle { offset, what });
                }
            }
            Stop::Skip { head, length } => {
                source.consume(head);
                skip(source, offset, length)?;
                // Room for it was made before.
                machine.stack.push(Value::OPAQUE);
            }
            Stop::Fault(what) => return Err(ReadError::Pickle { offset, what }),
            Stop::Call(opcode) => return Err(ReadError::PickleCall { opcode, offset }),
        }
    }
}

/// Steps over a value that nobody needs, of any length.
fn skip(source: &mut Source<'_>, opcode_at: u64, mut length: u64) -> Result<(), ReadError> {
    while length > 0 {
        source.fill(1)?;
        let step = length.min(source.buffered().len() as u64);
        if step == 0 {
            return Err(ReadError::Pickle {
                offset: opcode_at,
                what: "the file ends within bytes".to_owned(),
            });
        }
        source.consume(step as usize);
        length -= step;
    }
    Ok(())
}

struct Machine<'s, S> {
    sieve: &'s mut S,
    arena: Arena,
    stack: Vec<Value>,
    /// Height of the stack at the last open mark; 0 if there is none.
    fence: usize,
    /// What `fence` was before each open mark.
    marks: Vec<u32>,
    memo: Vec<Value>,
    runs: Runs,
    /// Bytes of the file before the window.
    before: u64,
}

/// Why the machine does not go on to the next opcode.
enum Stop {
    /// The value is whole.
    Done(Value),
    /// The opcode wants this many bytes from its first on, and fewer are buffered.
    Short { wanted: usize, within: Within },
    /// A value of `length` bytes follows the first `head` ones of the opcode, to be stepped over.
    Skip { head: usize, length: u64 },
    /// The pickle is malformed.
    Fault(String),
    /// The opcode could call code.
    Call(&'static str),
}

enum Within {
    Opcode,
    Text(usize),
    Line,
}

/// Boxed, so that what every opcode returns fits registers.
type Step<T> = Result<T, Box<Stop>>;

impl From<Full> for Box<Stop> {
    fn from(full: Full) -> Self {
        Box::new(Stop::Fault(full.0.to_owned()))
    }
}

#[cold]
fn fault<T>(what: impl Into<String>) -> Step<T> {
    Err(Box::new(Stop::Fault(what.into())))
}

#[cold]
fn short<T>(wanted: usize, within: Within) -> Step<T> {
    Err(Box::new(Stop::Short { wanted, within }))
}

/// An opcode and the longest argument of fixed length; anything where the argument is shorter.
type Head = [u8; 9];

/// The argument of an opcode.
#[inline(always)]
fn argument<const N: usize>(head: &Head) -> [u8; N] {
    std::array::from_fn(|at| head[at + 1])
}

/// The head of an opcode that is less than a [`Head`] from the end of the window.
#[cold]
fn last_head(window: &[u8], at: usize) -> Step<Head> {
    let rest = window.get(at..).unwrap_or_default();
    let wanted = 1 + rest.first().map_or(0, |&opcode| argument_length(opcode));
    if rest.len() < wanted {
        return short(wanted, Within::Opcode);
    }
    let mut head = [0; 9];
    head[..rest.len()].copy_from_slice(rest);
    Ok(head)
}

/// The `length` bytes that follow the first `head` ones of the opcode at `at`.
#[inline]
fn bytes(window: &[u8], at: usize, head: usize, length: u64) -> Step<&[u8]> {
    if length > LONGEST_TEXT {
        return fault(format!("a string claims {length} bytes"));
    }
    let length = length as usize;
    match window.get(at + head..).and_then(|rest| rest.get(..length)) {
        Some(bytes) => Ok(bytes),
        None => short(head + length, Within::Text(length)),
    }
}

/// Where the run of `BINGET` and `LONG_BINGET` at `at` ends; none if that is not in the window.
fn end_of_gets(window: &[u8], mut at: usize) -> Option<usize> {
    loop {
        let opcode = *window.get(at)?;
        if opcode & !WIDE != BINGET & !WIDE {
            return Some(at);
        }
        at += length_of_get(opcode);
    }
}

/// The bit by which the two opcodes differ.
const WIDE: u8 = BINGET ^ LONG_BINGET;

/// 2 bytes or 5.
#[inline]
fn length_of_get(opcode: u8) -> usize {
    let long = usize::from(opcode & WIDE);
    2 + long + long / 2
}

impl<S: Sieve> Machine<'_, S> {
    /// Runs the opcode at `at`, and maybe some more; where the next one is.
    #[inline(always)]
    fn step(&mut self, window: &[u8], at: usize) -> Step<usize> {
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
                self.check_memo(self.memo.len() as u64, at)?;
                self.memo.push(value);
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
                if let Some(next) = self.run(window, at) {
                    return Ok(next);
                }
                self.marks.push(self.fence as u32);
                self.fence = self.stack.len();
                Ok(at + 1)
            }
            EMPTY_DICT => {
                let value = self.room(at)?.dict(&[])?;
                self.push(value)?;
                Ok(at + 1)
            }
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

    #[inline(never)]
    fn rare(&mut self, head: &Head, window: &[u8], at: usize) -> Step<usize> {
        let opcode = head[0];
        let length = match opcode {
            PROTO => {
                let [protocol] = argument(head);
                if protocol > 5 {
                    return fault(format!("protocol {protocol} is unknown"));
                }
                2
            }
            FRAME => 9,
            BINFLOAT => {
                let float = f64::from_be_bytes(argument(head));
                let value = self.arena.float(float)?;
                self.push(value)?;
                9
            }
            BINUNICODE | BINSTRING => {
                let length = u32::from_le_bytes(argument(head));
                return self.text(window, at, 5, u64::from(length));
            }
            BINUNICODE8 => {
                let length = u64::from_le_bytes(argument(head));
                return self.text(window, at, 9, length);
            }
            SHORT_BINBYTES => {
                let [length] = argument(head);
                return self.opaque(2, u64::from(length));
            }
            BINBYTES => {
                let length = u32::from_le_bytes(argument(head));
                return self.opaque(5, u64::from(length));
            }
            BINBYTES8 | BYTEARRAY8 => {
                let length = u64::from_le_bytes(argument(head));
                return self.opaque(9, length);
            }
            LONG4 => {
                let length = i32::from_le_bytes(argument(head));
                let Ok(length) = u64::try_from(length) else {
                    return fault("LONG4 has a negative length");
                };
                return self.long(window, at, 5, length);
            }
            EMPTY_TUPLE => self.tuple(self.stack.len(), at)?,
            TUPLE1 => self.tuple(self.height_below(1)?, at)?,
            TUPLE2 => self.tuple(self.height_below(2)?, at)?,
            TUPLE3 => self.tuple(self.height_below(3)?, at)?,
            TUPLE => {
                let from = self.mark()?;
                self.tuple(from, at)?
            }
            LIST | FROZENSET | DICT => {
                let from = self.mark()?;
                if opcode == DICT && !(self.stack.len() - from).is_multiple_of(2) {
                    return fault("DICT has a key without a value");
                }
                let items = self.stack.split_off(from);
                let arena = self.room(at)?;
                let value = if opcode == DICT {
                    arena.dict(&items)?
                } else {
                    arena.list(&items)?
                };
                self.push(value)?;
                1
            }
            POP => {
                if self.stack.len() == self.fence && !self.marks.is_empty() {
                    self.mark()?;
                } else {
                    self.pop()?;
                }
                1
            }
            POP_MARK => {
                let from = self.mark()?;
                self.stack.truncate(from);
                1
            }
            DUP => {
                let value = self.top()?;
                self.push(value)?;
                1
            }
            STOP => return Err(Box::new(Stop::Done(self.pop()?))),
            INT | LONG | FLOAT | STRING | UNICODE | GET | PUT => {
                return self.line_opcode(window, at, opcode);
            }
            _ if calls(opcode) => return Err(Box::new(Stop::Call(name(opcode).unwrap_or("")))),
            _ => return fault(format!("{opcode:#04x} is no opcode")),
        };
        Ok(at + length)
    }

    /// Opcodes of protocol 0, whose argument is a line of text.
    fn line_opcode(&mut self, window: &[u8], at: usize, opcode: u8) -> Step<usize> {
        let rest = &window[at + 1..];
        let Some(length) = memchr::memchr(b'\n', rest) else {
            if rest.len() as u64 > LONGEST_TEXT {
                return fault("a line of text is longer than any name");
            }
            // Twice as much, so that a long line is searched a bounded number of times.
            return short(2 * (1 + rest.len()), Within::Line);
        };
        let line = &rest[..length];
        let next = at + length + 2;
        let text = std::str::from_utf8(line).unwrap_or_default().trim();
        let value = match (opcode, text) {
            (INT, "00") => Value::FALSE,
            (INT, "01") => Value::TRUE,
            (INT | LONG, _) => match decimal(&mut self.arena, text.strip_suffix('L').unwrap_or(text))? {
                Some(value) => value,
                None => return fault("INT without a number"),
            },
            (FLOAT, _) => match text.parse() {
                Ok(float) => self.arena.float(float)?,
                Err(_) => return fault("FLOAT without a number"),
            },
            (GET, _) => match text.parse() {
                Ok(index) => {
                    self.get(index)?;
                    return Ok(next);
                }
                Err(_) => return fault("GET without a number"),
            },
            (PUT, _) => match text.parse() {
                Ok(index) => {
                    self.put(index, at)?;
                    return Ok(next);
                }
                Err(_) => return fault("PUT without a number"),
            },
            (UNICODE, _) => self.arena.text(&unescaped(line))?,
            _ => match line.trim_ascii() {
                [open @ (b'\'' | b'"'), inner @ .., close] if open == close => {
                    self.arena.text(&unescaped(inner))?
                }
                _ => return fault("STRING without quotes"),
            },
        };
        self.push(value)?;
        Ok(next)
    }

    #[inline]
    fn text(&mut self, window: &[u8], at: usize, head: usize, length: u64) -> Step<usize> {
        let text = bytes(window, at, head, length)?;
        let value = self.arena.text(text)?;
        self.push(value)?;
        Ok(at + head + text.len())
    }

    fn opaque(&mut self, head: usize, length: u64) -> Step<usize> {
        if self.stack.len() == DEEPEST {
            return fault(TOO_DEEP);
        }
        Err(Box::new(Stop::Skip { head, length }))
    }

    /// A little-endian two's complement integer.
    #[inline(always)]
    fn long(&mut self, window: &[u8], at: usize, head: usize, length: u64) -> Step<usize> {
        // Addresses and times, the most of them: shifted out of one word.
        if let 1..=8 = length
            && let Some(&word) = window.get(at + head..).and_then(|rest| rest.first_chunk())
        {
            let unused = 64 - 8 * length as u32;
            self.int(i64::from_le_bytes(word) << unused >> unused)?;
            return Ok(at + head + length as usize);
        }
        self.any_long(window, at, head, length)
    }

    #[cold]
    fn any_long(&mut self, window: &[u8], at: usize, head: usize, length: u64) -> Step<usize> {
        let digits = bytes(window, at, head, length)?;
        let negative = digits.last().is_some_and(|&top| top >= 0x80);
        let fill = if negative { 0xff } else { 0 };
        let fits = match digits.get(8..) {
            None | Some([]) => true,
            Some(more) => more.iter().all(|&byte| byte == fill) && (digits[7] >= 0x80) == negative,
        };
        let mut low = [fill; 8];
        let kept = digits.len().min(8);
        low[..kept].copy_from_slice(&digits[..kept]);
        let value = match (fits, negative) {
            (true, _) => self.arena.int(i64::from_le_bytes(low))?,
            (false, false) => Value::HUGE,
            (false, true) => Value::MINUS_HUGE,
        };
        self.push(value)?;
        Ok(at + head + digits.len())
    }

    #[inline]
    fn int(&mut self, int: i64) -> Step<()> {
        let value = self.arena.int(int)?;
        self.push(value)
    }

    #[inline]
    fn push(&mut self, value: Value) -> Step<()> {
        if self.stack.len() == self.stack.capacity() {
            self.deepen()?;
        }
        self.stack.push(value);
        Ok(())
    }

    /// Makes room on the stack.
    #[cold]
    fn deepen(&mut self) -> Step<()> {
        let depth = self.stack.len();
        if depth >= DEEPEST {
            return fault(TOO_DEEP);
        }
        self.stack.reserve_exact(depth.max(1 << 10).min(DEEPEST - depth));
        Ok(())
    }

    /// Height of the stack without its top `count` values, none of which may lie below a mark.
    #[inline]
    fn height_below(&self, count: usize) -> Step<usize> {
        match self.stack.len().checked_sub(count) {
            Some(height) if height >= self.fence => Ok(height),
            _ => fault("the stack is empty"),
        }
    }

    #[inline]
    fn top(&self) -> Step<Value> {
        let height = self.height_below(1)?;
        Ok(self.stack[height])
    }

    fn pop(&mut self) -> Step<Value> {
        let value = self.top()?;
        self.stack.pop();
        Ok(value)
    }

    /// Closes the last mark; the height of the stack at it.
    #[inline]
    fn mark(&mut self) -> Step<usize> {
        match self.marks.pop() {
            Some(outer) => Ok(std::mem::replace(&mut self.fence, outer as usize)),
            None => fault("no MARK is open"),
        }
    }

    #[inline]
    fn get(&mut self, index: usize) -> Step<()> {
        match self.memo.get(index) {
            Some(&value) if value != Value::UNSET => self.push(value),
            _ => fault(format!("memo {index} was never written")),
        }
    }

    /// Runs all of `run`, which is `BINGET` and `LONG_BINGET` only; false if that cannot be.
    ///
    /// Which of the two comes next is a coin toss, so both are decoded from one word without a branch.
    fn gets(&mut self, run: &[u8]) -> bool {
        let mut at = 0;
        while let Some(&opcode) = run.get(at) {
            let index = match run[at + 1..].first_chunk() {
                Some(&word) => u32::from_le_bytes(word) & if opcode == BINGET { 0xff } else { u32::MAX },
                None => u32::from(run[at + 1]),
            };
            if self.get(index as usize).is_err() {
                return false;
            }
            at += length_of_get(opcode);
        }
        true
    }

    /// Fills an empty list with the run of references behind its mark, if that is what comes.
    #[inline]
    fn run(&mut self, window: &[u8], mark_at: usize) -> Option<usize> {
        let list = *self.stack[self.fence..].last()?;
        let at = mark_at + 1;
        if !matches!(window.get(at), Some(&(BINGET | LONG_BINGET))) || !self.arena.is_empty_list(list) {
            return None;
        }
        if let Some((items, length)) = self.runs.guess(&window[at..]) {
            self.arena.share(list, items);
            return Some(at + length);
        }
        self.unguessed_run(window, at, list)
    }

    /// Like [`Self::run`] for a run that is not the guessed one.
    fn unguessed_run(&mut self, window: &[u8], from: usize, list: Value) -> Option<usize> {
        let end = end_of_gets(window, from)?;
        if window.get(end) != Some(&APPENDS) {
            return None;
        }
        let run = &window[from..=end];
        if let Some(items) = self.runs.find(run) {
            self.arena.share(list, items);
            return Some(end + 1);
        }
        let height = self.stack.len();
        if !self.gets(&window[from..end]) {
            // The machine meets it again and says so.
            self.stack.truncate(height);
            return None;
        }
        let kept = self.sieve.items(&self.arena, &mut self.stack[height..]);
        let items = self.arena.fill(list, &self.stack[height..][..kept]);
        self.stack.truncate(height);
        self.runs.add(run, items.ok()?);
        Some(end + 1)
    }

    /// Whatever is memoised took a byte to push and another to be put.
    #[inline]
    fn check_memo(&self, index: u64, at: usize) -> Step<()> {
        let offset = self.before + at as u64;
        if index > offset / 2 + 1 {
            return fault(format!("memo {index} cannot be reached within {offset} bytes"));
        }
        Ok(())
    }

    fn put(&mut self, index: u64, at: usize) -> Step<()> {
        let value = self.top()?;
        self.check_memo(index, at)?;
        let index = index as usize;
        if index >= self.memo.len() {
            self.memo.resize(index + 1, Value::UNSET);
        } else if self.memo[index] != Value::UNSET {
            self.runs.forget();
        }
        self.memo[index] = value;
        Ok(())
    }

    /// The arena, if another container may be put there.
    #[inline]
    fn room(&mut self, at: usize) -> Step<&mut Arena> {
        if self.arena.containers() as u64 > SPARE_CONTAINERS + (self.before + at as u64) / 8 {
            return fault("more lists, dicts and tuples than a snapshot of this length has");
        }
        Ok(&mut self.arena)
    }

    /// Makes a tuple of what lies above `from`; the opcode's length.
    #[inline]
    fn tuple(&mut self, from: usize, at: usize) -> Step<usize> {
        self.room(at)?;
        let value = self.arena.tuple(&self.stack[from..])?;
        self.stack.truncate(from);
        self.push(value)?;
        Ok(1)
    }

    /// The container just below `from`.
    #[inline]
    fn below(&self, from: usize) -> Step<Value> {
        match from
            .checked_sub(1)
            .filter(|&at| at >= self.fence)
            .and_then(|at| self.stack.get(at))
        {
            Some(&container) => Ok(container),
            None => fault("no container to add to"),
        }
    }

    /// Adds what lies above `from` to the dict just below it.
    #[inline]
    fn set(&mut self, opcode: u8, from: usize) -> Step<()> {
        let dict = self.below(from)?;
        if !dict.is_dict() {
            return fault(format!("{} on something else", name(opcode).unwrap_or("")));
        }
        let pairs = &self.stack[from..];
        if !pairs.len().is_multiple_of(2) {
            return fault("SETITEMS has a key without a value");
        }
        match self.arena.taken(dict) {
            Taken::By(number) => self.sieve.more(&self.arena, number, pairs),
            Taken::Not => self.arena.extend(dict, pairs)?,
            Taken::NotYet => match self.sieve.take(&self.arena, pairs) {
                Some(number) => self.arena.take(dict, number),
                None => self.arena.extend(dict, pairs)?,
            },
        }
        self.stack.truncate(from);
        Ok(())
    }

    /// Adds what lies above `from` to the list just below it.
    #[inline]
    fn append(&mut self, opcode: u8, from: usize) -> Step<()> {
        let list = self.below(from)?;
        if !list.is_list() {
            return fault(format!("{} on something else", name(opcode).unwrap_or("")));
        }
        let kept = self.sieve.items(&self.arena, &mut self.stack[from..]);
        self.arena.extend(list, &self.stack[from..][..kept])?;
        self.stack.truncate(from);
        Ok(())
    }
}
