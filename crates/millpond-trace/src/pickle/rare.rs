//! Opcodes that are rare in snapshots, including those of protocol 0.

use super::Sieve;
use super::machine::{DEEPEST, Machine, TOO_DEEP};
use super::opcode::*;
use super::stop::{Step, Stop, Within, fault, short};
use super::text::{decimal, unescaped};
use super::value::Value;
use super::window::{Head, LONGEST_TEXT, argument, bytes};

impl<S: Sieve> Machine<'_, S> {
    #[inline(never)]
    pub(super) fn rare(&mut self, head: &Head, window: &[u8], at: usize) -> Step<usize> {
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
            _ => return fault(format!("{opcode:#04x} is not an opcode")),
        };
        Ok(at + length)
    }

    /// Runs an opcode of protocol 0, whose argument is a line of text.
    fn line_opcode(&mut self, window: &[u8], at: usize, opcode: u8) -> Step<usize> {
        let rest = &window[at + 1..];
        let Some(length) = memchr::memchr(b'\n', rest) else {
            if rest.len() as u64 > LONGEST_TEXT {
                return fault("a line of text is longer than any name");
            }
            // The window is doubled, so that a long line is searched a limited number of times.
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
                None => return fault("INT has no number"),
            },
            (FLOAT, _) => self.arena.float(parsed(opcode, text)?)?,
            (GET, _) => {
                self.get(parsed(opcode, text)?)?;
                return Ok(next);
            }
            (PUT, _) => {
                self.put(parsed(opcode, text)?, at)?;
                return Ok(next);
            }
            (UNICODE, _) => self.arena.text(&unescaped(line))?,
            _ => match line.trim_ascii() {
                [open @ (b'\'' | b'"'), inner @ .., close] if open == close => {
                    self.arena.text(&unescaped(inner))?
                }
                _ => return fault("STRING has no quotes"),
            },
        };
        self.push(value)?;
        Ok(next)
    }

    fn opaque(&mut self, head: usize, length: u64) -> Step<usize> {
        if self.stack.len() == DEEPEST {
            return fault(TOO_DEEP);
        }
        Err(Box::new(Stop::Skip { head, length }))
    }

    #[cold]
    pub(super) fn any_long(&mut self, window: &[u8], at: usize, head: usize, length: u64) -> Step<usize> {
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
}

/// Parses the number of an opcode of protocol 0.
fn parsed<T: std::str::FromStr>(opcode: u8, text: &str) -> Step<T> {
    match text.parse() {
        Ok(number) => Ok(number),
        Err(_) => fault(format!("{} has no number", name(opcode).unwrap_or(""))),
    }
}
