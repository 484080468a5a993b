//! Writes pickles of plain values as a stream, in the part of protocol 2 that PyTorch's web viewer can read. There are
//! no classes and no bytes.

use crate::hash::Map;
use crate::pickle::opcode;
use std::io::{self, Write};

/// Number of list items between two marks. A reader holds this many at once.
const BATCH: usize = 1000;

/// A pickle being written. The caller ends every value that it begins. The keys and values of a dictionary alternate.
pub(super) struct Pickle<'a> {
    out: &'a mut dyn Write,
    /// The memo number of each string that was written.
    texts: Map<String, u32>,
    memos: u32,
}

/// A list being written.
#[derive(Default)]
pub(super) struct List {
    open: usize,
}

impl<'a> Pickle<'a> {
    pub(super) fn new(out: &'a mut dyn Write) -> io::Result<Self> {
        out.write_all(&[opcode::PROTO, 2])?;
        Ok(Self {
            out,
            texts: Map::default(),
            memos: 0,
        })
    }

    pub(super) fn finish(self) -> io::Result<()> {
        self.out.write_all(&[opcode::STOP])
    }

    pub(super) fn begin_dict(&mut self) -> io::Result<()> {
        self.out.write_all(&[opcode::EMPTY_DICT, opcode::MARK])
    }

    pub(super) fn end_dict(&mut self) -> io::Result<()> {
        self.out.write_all(&[opcode::SETITEMS])
    }

    pub(super) fn begin_list(&mut self) -> io::Result<List> {
        self.out.write_all(&[opcode::EMPTY_LIST])?;
        Ok(List::default())
    }

    /// Must be called before each item.
    pub(super) fn item(&mut self, list: &mut List) -> io::Result<()> {
        if list.open == BATCH {
            self.out.write_all(&[opcode::APPENDS])?;
            list.open = 0;
        }
        if list.open == 0 {
            self.out.write_all(&[opcode::MARK])?;
        }
        list.open += 1;
        Ok(())
    }

    pub(super) fn end_list(&mut self, list: List) -> io::Result<()> {
        match list.open {
            0 => Ok(()),
            _ => self.out.write_all(&[opcode::APPENDS]),
        }
    }

    /// Stores the value written last in the memo. Returns its number.
    pub(super) fn remember(&mut self) -> io::Result<u32> {
        let number = self.memos;
        self.memos += 1;
        match u8::try_from(number) {
            Ok(short) => self.out.write_all(&[opcode::BINPUT, short])?,
            Err(_) => self.long(opcode::LONG_BINPUT, number)?,
        }
        Ok(number)
    }

    /// Writes a reference to a stored object.
    pub(super) fn recall(&mut self, number: u32) -> io::Result<()> {
        match u8::try_from(number) {
            Ok(short) => self.out.write_all(&[opcode::BINGET, short]),
            Err(_) => self.long(opcode::LONG_BINGET, number),
        }
    }

    fn long(&mut self, opcode: u8, value: u32) -> io::Result<()> {
        self.out.write_all(&[opcode])?;
        self.out.write_all(&value.to_le_bytes())
    }

    pub(super) fn text(&mut self, text: &str) -> io::Result<()> {
        if let Some(number) = self.texts.get(text) {
            return self.recall(*number);
        }
        let length = u32::try_from(text.len()).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        self.long(opcode::BINUNICODE, length)?;
        self.out.write_all(text.as_bytes())?;
        let number = self.remember()?;
        self.texts.insert(text.to_owned(), number);
        Ok(())
    }

    pub(super) fn number(&mut self, value: u64) -> io::Result<()> {
        self.signed(i128::from(value))
    }

    pub(super) fn signed(&mut self, value: i128) -> io::Result<()> {
        if let Ok(byte) = u8::try_from(value) {
            self.out.write_all(&[opcode::BININT1, byte])
        } else if let Ok(short) = u16::try_from(value) {
            self.out.write_all(&[opcode::BININT2])?;
            self.out.write_all(&short.to_le_bytes())
        } else if let Ok(int) = i32::try_from(value) {
            self.out.write_all(&[opcode::BININT])?;
            self.out.write_all(&int.to_le_bytes())
        } else {
            // The shortest encoding that keeps the sign.
            let bytes = value.to_le_bytes();
            let sign = if value < 0 { 0xff } else { 0 };
            let mut length = bytes.len();
            while length > 1 && bytes[length - 1] == sign && (bytes[length - 2] ^ sign) & 0x80 == 0 {
                length -= 1;
            }
            self.out.write_all(&[opcode::LONG1, length as u8])?;
            self.out.write_all(&bytes[..length])
        }
    }

    pub(super) fn float(&mut self, value: f64) -> io::Result<()> {
        self.out.write_all(&[opcode::BINFLOAT])?;
        self.out.write_all(&value.to_be_bytes())
    }

    pub(super) fn truth(&mut self, value: bool) -> io::Result<()> {
        self.out.write_all(&[match value {
            true => opcode::NEWTRUE,
            false => opcode::NEWFALSE,
        }])
    }

    pub(super) fn pair(&mut self, pair: (u64, u64)) -> io::Result<()> {
        self.number(pair.0)?;
        self.number(pair.1)?;
        self.out.write_all(&[opcode::TUPLE2])
    }

    /// Writes a key and its number.
    pub(super) fn number_of(&mut self, key: &str, value: u64) -> io::Result<()> {
        self.text(key)?;
        self.number(value)
    }

    /// Writes a key and its text.
    pub(super) fn text_of(&mut self, key: &str, value: &str) -> io::Result<()> {
        self.text(key)?;
        self.text(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected bytes are the output of CPython's `pickle.dumps` for the same values, protocol 2.
    #[test]
    fn integers_are_encoded_as_by_python() {
        let written = |value: i128| {
            let mut out = Vec::new();
            let mut pickle = Pickle::new(&mut out).expect("memory");
            pickle.signed(value).expect("memory");
            pickle.finish().expect("memory");
            out[2..out.len() - 1].to_vec()
        };
        assert_eq!(written(0), b"K\0");
        assert_eq!(written(256), b"M\0\x01");
        assert_eq!(written(-1), b"J\xff\xff\xff\xff");
        assert_eq!(written(1 << 31), b"\x8a\x05\0\0\0\x80\0");
        assert_eq!(written(-(1 << 31) - 1), b"\x8a\x05\xff\xff\xff\x7f\xff");
        assert_eq!(
            written(i128::from(u64::MAX)),
            b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\0"
        );
    }

    #[test]
    fn texts_are_written_once() {
        let mut out = Vec::new();
        let mut pickle = Pickle::new(&mut out).expect("memory");
        let mut list = pickle.begin_list().expect("memory");
        for _ in 0..2 {
            pickle.item(&mut list).expect("memory");
            pickle.text("ab").expect("memory");
        }
        pickle.end_list(list).expect("memory");
        pickle.finish().expect("memory");
        assert_eq!(out, b"\x80\x02](X\x02\0\0\0abq\0h\0e.");
    }
}
