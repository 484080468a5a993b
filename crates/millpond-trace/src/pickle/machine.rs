//! The stack machine: protocols 0 to 5, data only.
//!
//! Bounds that keep hostile files small, each far above what a snapshot needs: the stack's depth, containers
//! and memo numbers in proportion to the bytes read, strings read piece by piece whatever length they claim.

use super::arena::{Arena, Full, Value};
use super::opcode::*;
use crate::{ReadError, source::Source};

/// CPython pushes at most a thousand items before it appends them, PyTorch's own writer a whole list.
const DEEPEST: usize = 1 << 25;
/// Longer strings are no names.
const LONGEST_TEXT: u64 = 64 << 20;
/// Containers allowed beyond one for each eight bytes.
const SPARE_CONTAINERS: u64 = 4 << 20;

/// The value a pickle builds, and the arena it lives in.
pub(crate) fn load(source: &mut Source<'_>) -> Result<(Arena, Value), ReadError> {
    let mut machine = Machine {
        source,
        arena: Arena::new(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Vec::new(),
        opcode_at: 0,
    };
    loop {
        match machine.step() {
            Ok(None) => {}
            Ok(Some(value)) => return Ok((machine.arena, value)),
            Err(Fault::Read(error)) => return Err(error),
            Err(Fault::Pickle(what)) => {
                return Err(ReadError::Pickle {
                    offset: machine.opcode_at,
                    what,
                });
            }
        }
    }
}

struct Machine<'s, 'a> {
    source: &'s mut Source<'a>,
    arena: Arena,
    stack: Vec<Value>,
    /// Heights of the stack at each open mark.
    marks: Vec<u32>,
    memo: Vec<Value>,
    opcode_at: u64,
}

enum Fault {
    Read(ReadError),
    Pickle(String),
}

impl From<ReadError> for Fault {
    fn from(error: ReadError) -> Self {
        Self::Read(error)
    }
}

impl From<Full> for Fault {
    fn from(full: Full) -> Self {
        Self::Pickle(full.0.to_owned())
    }
}

#[cold]
fn fault<T>(what: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Pickle(what.into()))
}

impl Machine<'_, '_> {
    /// Runs one opcode; the result at `STOP`.
    #[inline]
    fn step(&mut self) -> Result<Option<Value>, Fault> {
        self.opcode_at = self.source.offset();
        let [opcode] = self.take()?;
        match opcode {
            BINGET | LONG_BINGET => self.gets(opcode)?,
            MEMOIZE => {
                let value = self.top()?;
                self.memo.push(value);
            }
            BINPUT => {
                let [index] = self.take()?;
                self.put(u64::from(index))?;
            }
            LONG_BINPUT => {
                let index = u32::from_le_bytes(self.take()?);
                self.put(u64::from(index))?;
            }
            BININT1 => {
                let [int] = self.take()?;
                self.int(i64::from(int))?;
            }
            BININT2 => {
                let int = u16::from_le_bytes(self.take()?);
                self.int(i64::from(int))?;
            }
            BININT => {
                let int = i32::from_le_bytes(self.take()?);
                self.int(i64::from(int))?;
            }
            LONG1 => {
                let [length] = self.take()?;
                self.long(u64::from(length))?;
            }
            MARK => {
                if self.marks.len() == DEEPEST {
                    return fault("marks are nested too deeply");
                }
                self.marks.push(self.stack.len() as u32);
            }
            EMPTY_DICT => {
                let value = self.room()?.dict(&[])?;
                self.push(value)?;
            }
            EMPTY_LIST | EMPTY_SET => {
                let value = self.room()?.list(&[])?;
                self.push(value)?;
            }
            SETITEMS | APPENDS | ADDITEMS => {
                let from = self.mark()?;
                self.extend(opcode, from)?;
            }
            SETITEM => {
                let from = self.height_below(2)?;
                self.extend(opcode, from)?;
            }
            APPEND => {
                let from = self.height_below(1)?;
                self.extend(opcode, from)?;
            }
            SHORT_BINUNICODE | SHORT_BINSTRING => {
                let [length] = self.take()?;
                self.text(u64::from(length))?;
            }
            NONE => self.push(Value::NONE)?,
            NEWTRUE => self.push(Value::TRUE)?,
            NEWFALSE => self.push(Value::FALSE)?,
            STOP => return self.pop().map(Some),
            _ => self.rare(opcode)?,
        }
        Ok(None)
    }

    #[inline(never)]
    fn rare(&mut self, opcode: u8) -> Result<(), Fault> {
        match opcode {
            PROTO => {
                let [protocol] = self.take()?;
                if protocol > 5 {
                    return fault(format!("protocol {protocol} is unknown"));
                }
            }
            FRAME => {
                let _length: [u8; 8] = self.take()?;
            }
            BINFLOAT => {
                let float = f64::from_be_bytes(self.take()?);
                let value = self.arena.float(float)?;
                self.push(value)?;
            }
            BINUNICODE | BINSTRING => {
                let length = u32::from_le_bytes(self.take()?);
                self.text(u64::from(length))?;
            }
            BINUNICODE8 => {
                let length = u64::from_le_bytes(self.take()?);
                self.text(length)?;
            }
            SHORT_BINBYTES => {
                let [length] = self.take()?;
                self.opaque(u64::from(length))?;
            }
            BINBYTES => {
                let length = u32::from_le_bytes(self.take()?);
                self.opaque(u64::from(length))?;
            }
            BINBYTES8 | BYTEARRAY8 => {
                let length = u64::from_le_bytes(self.take()?);
                self.opaque(length)?;
            }
            LONG4 => {
                let length = i32::from_le_bytes(self.take()?);
                let Ok(length) = u64::try_from(length) else {
                    return fault("LONG4 has a negative length");
                };
                self.long(length)?;
            }
            EMPTY_TUPLE => self.tuple(self.stack.len())?,
            TUPLE1 => self.tuple(self.height_below(1)?)?,
            TUPLE2 => self.tuple(self.height_below(2)?)?,
            TUPLE3 => self.tuple(self.height_below(3)?)?,
            TUPLE => {
                let from = self.mark()?;
                self.tuple(from)?;
            }
            LIST | FROZENSET | DICT => {
                let from = self.mark()?;
                if opcode == DICT && !(self.stack.len() - from).is_multiple_of(2) {
                    return fault("DICT has a key without a value");
                }
                let items = self.stack.split_off(from);
                let arena = self.room()?;
                let value = if opcode == DICT {
                    arena.dict(&items)?
                } else {
                    arena.list(&items)?
                };
                self.push(value)?;
            }
            POP => match self.marks.last() {
                Some(&mark) if mark as usize == self.stack.len() => {
                    self.marks.pop();
                }
                _ => {
                    self.pop()?;
                }
            },
            POP_MARK => {
                let from = self.mark()?;
                self.stack.truncate(from);
            }
            DUP => {
                let value = self.top()?;
                self.push(value)?;
            }
            INT | LONG | FLOAT | STRING | UNICODE | GET | PUT => self.line_opcode(opcode)?,
            _ if calls(opcode) => {
                let opcode = name(opcode).unwrap_or("");
                return Err(ReadError::PickleCall {
                    opcode,
                    offset: self.opcode_at,
                }
                .into());
            }
            _ => return fault(format!("{opcode:#04x} is no opcode")),
        }
        Ok(())
    }

    /// Opcodes of protocol 0, whose argument is a line of text.
    fn line_opcode(&mut self, opcode: u8) -> Result<(), Fault> {
        let line = self.line()?;
        let text = std::str::from_utf8(&line).unwrap_or_default().trim();
        let value = match (opcode, text) {
            (INT, "00") => Value::FALSE,
            (INT, "01") => Value::TRUE,
            (INT | LONG, _) => decimal(&mut self.arena, text.strip_suffix('L').unwrap_or(text))?,
            (FLOAT, _) => match text.parse() {
                Ok(float) => self.arena.float(float)?,
                Err(_) => return fault("FLOAT without a number"),
            },
            (GET, _) => match text.parse() {
                Ok(index) => return self.get(index),
                Err(_) => return fault("GET without a number"),
            },
            (PUT, _) => match text.parse() {
                Ok(index) => return self.put(index),
                Err(_) => return fault("PUT without a number"),
            },
            (UNICODE, _) => self.arena.text(&unescaped(&line))?,
            _ => match line.trim_ascii() {
                [open @ (b'\'' | b'"'), inner @ .., close] if open == close => {
                    self.arena.text(&unescaped(inner))?
                }
                _ => return fault("STRING without quotes"),
            },
        };
        self.push(value)
    }

    fn line(&mut self) -> Result<Vec<u8>, Fault> {
        let mut searched = 0;
        loop {
            let buffered = self.source.buffered();
            if let Some(at) = memchr::memchr(b'\n', &buffered[searched..]) {
                let line = buffered[..searched + at].to_vec();
                self.source.consume(searched + at + 1);
                return Ok(line);
            }
            searched = buffered.len();
            if searched as u64 > LONGEST_TEXT {
                return fault("a line of text is longer than any name");
            }
            self.source.fill(searched + 1)?;
            if self.source.buffered().len() == searched {
                return fault("the file ends within a line of text");
            }
        }
    }

    /// The next `N` bytes.
    #[inline]
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        match self.source.buffered().first_chunk() {
            Some(&bytes) => {
                self.source.consume(N);
                Ok(bytes)
            }
            None => self.take_slowly(),
        }
    }

    #[cold]
    fn take_slowly<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        self.source.fill(N)?;
        match self.source.buffered().first_chunk() {
            Some(&bytes) => {
                self.source.consume(N);
                Ok(bytes)
            }
            None => fault("the file ends before STOP"),
        }
    }

    /// Buffers `length` bytes of a string.
    fn bytes(&mut self, length: u64) -> Result<usize, Fault> {
        if length > LONGEST_TEXT {
            return fault(format!("a string claims {length} bytes"));
        }
        let length = length as usize;
        self.source.fill(length)?;
        if self.source.buffered().len() < length {
            return fault(format!("the file ends within a string of {length} bytes"));
        }
        Ok(length)
    }

    #[inline]
    fn text(&mut self, length: u64) -> Result<(), Fault> {
        let length = self.bytes(length)?;
        let value = self.arena.text(&self.source.buffered()[..length])?;
        self.source.consume(length);
        self.push(value)
    }

    fn opaque(&mut self, mut length: u64) -> Result<(), Fault> {
        while length > 0 {
            self.source.fill(1)?;
            let step = length.min(self.source.buffered().len() as u64);
            if step == 0 {
                return fault("the file ends within bytes");
            }
            self.source.consume(step as usize);
            length -= step;
        }
        self.push(Value::OPAQUE)
    }

    /// A little-endian two's complement integer.
    #[inline]
    fn long(&mut self, length: u64) -> Result<(), Fault> {
        let length = self.bytes(length)?;
        let digits = &self.source.buffered()[..length];
        let negative = digits.last().is_some_and(|&top| top >= 0x80);
        let fill = if negative { 0xff } else { 0 };
        let fits = match digits.get(8..) {
            None | Some([]) => true,
            Some(more) => more.iter().all(|&byte| byte == fill) && (digits[7] >= 0x80) == negative,
        };
        let mut low = [fill; 8];
        let kept = length.min(8);
        low[..kept].copy_from_slice(&digits[..kept]);
        let value = match (fits, negative) {
            (true, _) => self.arena.int(i64::from_le_bytes(low))?,
            (false, false) => Value::HUGE,
            (false, true) => Value::MINUS_HUGE,
        };
        self.source.consume(length);
        self.push(value)
    }

    #[inline]
    fn int(&mut self, int: i64) -> Result<(), Fault> {
        let value = self.arena.int(int)?;
        self.push(value)
    }

    #[inline]
    fn push(&mut self, value: Value) -> Result<(), Fault> {
        if self.stack.len() == DEEPEST {
            return fault("more values at once than any snapshot has");
        }
        self.stack.push(value);
        Ok(())
    }

    /// Height of the stack without its top `count` values, none of which may lie below a mark.
    #[inline]
    fn height_below(&self, count: usize) -> Result<usize, Fault> {
        let fence = self.marks.last().map_or(0, |&mark| mark as usize);
        match self.stack.len().checked_sub(count) {
            Some(height) if height >= fence => Ok(height),
            _ => fault("the stack is empty"),
        }
    }

    #[inline]
    fn top(&self) -> Result<Value, Fault> {
        let height = self.height_below(1)?;
        Ok(self.stack[height])
    }

    fn pop(&mut self) -> Result<Value, Fault> {
        let value = self.top()?;
        self.stack.pop();
        Ok(value)
    }

    /// Closes the last mark; the height of the stack at it.
    #[inline]
    fn mark(&mut self) -> Result<usize, Fault> {
        match self.marks.pop() {
            Some(mark) => Ok(mark as usize),
            None => fault("no MARK is open"),
        }
    }

    fn get(&mut self, index: usize) -> Result<(), Fault> {
        match self.memo.get(index) {
            Some(&value) if value != Value::UNSET => self.push(value),
            _ => fault(format!("memo {index} was never written")),
        }
    }

    /// Runs a `BINGET` or `LONG_BINGET` whose opcode is taken, and those that follow at once.
    ///
    /// Stacks are runs of references to frames and make up most of a snapshot. Which of the two lengths
    /// comes next is a coin toss, so both are decoded from one word without a branch.
    #[inline]
    fn gets(&mut self, opcode: u8) -> Result<(), Fault> {
        let start = self.source.offset() - 1;
        let bytes = self.source.buffered();
        let mut opcode = opcode;
        let mut at = 0;
        let missing = loop {
            let Some(&word) = bytes.get(at..).and_then(|rest| rest.first_chunk::<5>()) else {
                break None;
            };
            let long = opcode == LONG_BINGET;
            let index = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            let index = index & if long { u32::MAX } else { 0xff };
            let next = if long { 4 } else { 1 };
            match self.memo.get(index as usize) {
                Some(&value) if value != Value::UNSET && self.stack.len() < DEEPEST => {
                    self.stack.push(value);
                }
                _ => break Some(index),
            }
            at += next;
            opcode = word[next];
            if opcode != BINGET && opcode != LONG_BINGET {
                self.source.consume(at);
                return Ok(());
            }
            at += 1;
        };
        self.source.consume(at);
        self.opcode_at = start + at as u64;
        match missing {
            Some(index) => self.get(index as usize),
            // Too near the end of the buffer for the word.
            None if opcode == BINGET => {
                let [index] = self.take()?;
                self.get(usize::from(index))
            }
            None => {
                let index = u32::from_le_bytes(self.take()?);
                self.get(index as usize)
            }
        }
    }

    fn put(&mut self, index: u64) -> Result<(), Fault> {
        let value = self.top()?;
        // Whatever is memoised took a byte to push and another to be put.
        if index > self.opcode_at / 2 + 1 {
            return fault(format!(
                "memo {index} cannot be reached within {} bytes",
                self.opcode_at
            ));
        }
        let index = index as usize;
        if index >= self.memo.len() {
            self.memo.resize(index + 1, Value::UNSET);
        }
        self.memo[index] = value;
        Ok(())
    }

    /// The arena, if another container may be put there.
    #[inline]
    fn room(&mut self) -> Result<&mut Arena, Fault> {
        if self.arena.containers() as u64 > SPARE_CONTAINERS + self.opcode_at / 8 {
            return fault("more lists, dicts and tuples than a snapshot of this length has");
        }
        Ok(&mut self.arena)
    }

    #[inline]
    fn tuple(&mut self, from: usize) -> Result<(), Fault> {
        self.room()?;
        let value = self.arena.tuple(&self.stack[from..])?;
        self.stack.truncate(from);
        self.push(value)
    }

    /// Adds what lies above `from` to the container just below it.
    #[inline]
    fn extend(&mut self, opcode: u8, from: usize) -> Result<(), Fault> {
        let fence = self.marks.last().map_or(0, |&mark| mark as usize);
        let Some(&container) = from
            .checked_sub(1)
            .filter(|&at| at >= fence)
            .and_then(|at| self.stack.get(at))
        else {
            return fault("no container to add to");
        };
        let pairs = matches!(opcode, SETITEM | SETITEMS);
        if !(if pairs {
            container.is_dict()
        } else {
            container.is_list()
        }) {
            return fault(format!("{} on something else", name(opcode).unwrap_or("")));
        }
        if pairs && !(self.stack.len() - from).is_multiple_of(2) {
            return fault("SETITEMS has a key without a value");
        }
        self.arena.extend(container, &self.stack[from..])?;
        self.stack.truncate(from);
        Ok(())
    }
}

fn decimal(arena: &mut Arena, text: &str) -> Result<Value, Fault> {
    if let Ok(int) = text.parse() {
        return Ok(arena.int(int)?);
    }
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return fault("INT without a number");
    }
    Ok(if sign < 0 { Value::MINUS_HUGE } else { Value::HUGE })
}

/// Text with Python's escapes taken out, as far as names use them.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        plain.extend_from_slice(&rest[..at]);
        let digits = match rest.get(at + 1) {
            Some(b'x') => 2,
            Some(b'u') => 4,
            Some(b'U') => 8,
            _ => 0,
        };
        let code = rest.get(at + 2..at + 2 + digits).filter(|code| !code.is_empty());
        let char = code
            .and_then(|code| u32::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok())
            .and_then(char::from_u32);
        let taken = match (char, rest.get(at + 1)) {
            (Some(char), _) => {
                plain.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
                2 + digits
            }
            (None, Some(b'n')) => {
                plain.push(b'\n');
                2
            }
            (None, Some(b't')) => {
                plain.push(b'\t');
                2
            }
            (None, Some(&other @ (b'\\' | b'\'' | b'"'))) => {
                plain.push(other);
                2
            }
            (None, _) => {
                plain.push(b'\\');
                1
            }
        };
        rest = &rest[at + taken..];
    }
    plain.extend_from_slice(rest);
    plain
}
