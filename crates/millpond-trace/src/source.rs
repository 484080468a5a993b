//! Reads the bytes of a file and decompresses them on demand.
//!
//! Only one buffer is held. A file that decompresses to a terabyte takes time up to the limit in the options, but no
//! memory. The compression is detected from the first bytes, never from the name.

use crate::{Interrupt, ReadError, ReadOptions, options::Progress};
use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

/// Small enough to stay in a core's cache between filling and parsing.
const BUFFER: usize = 64 << 10;

/// Maximum of the expected size. Most snapshots have less, and it is small enough to reserve several times.
const MOST_EXPECTED: u64 = 4 << 20;

/// The expansion of content up to this size is not checked, because a few repeated lines compress well.
const FREE_EXPANSION: u64 = 16 << 20;

/// Number of lines that any compressed file may have.
const SPARE_LINES: u64 = 1 << 20;

/// A buffered, bounded stream of decompressed bytes.
pub(crate) struct Source<'a> {
    inner: Box<dyn Read + 'a>,
    name: String,
    buffer: Vec<u8>,
    /// `buffer[at..end]` was read from the stream and is not yet consumed.
    at: usize,
    end: usize,
    /// Bytes of the stream before `buffer[0]`.
    before: u64,
    finished: bool,
    /// Why the decoder stopped. Every later request for more bytes fails with this reason.
    damage: Option<String>,
    compressed: bool,
    total: Option<u64>,
    meter: Rc<Meter>,
    max_decompressed: u64,
    max_expansion: u64,
    interrupt: Option<&'a Interrupt>,
}

/// The progress in the raw file, shared with the reader below the decoder.
#[derive(Default)]
struct Meter {
    bytes: Cell<u64>,
    /// Whether a read of the file failed. In that case the decoder is not the cause.
    failed: Cell<bool>,
}

struct Metered<'a, R> {
    inner: R,
    meter: Rc<Meter>,
    total: Option<u64>,
    reported: u64,
    progress: Option<Progress<'a>>,
}

impl<R: Read> Read for Metered<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let got = self.inner.read(buffer).inspect_err(|error| {
            self.meter.failed.set(error.kind() != io::ErrorKind::Interrupted);
        })?;
        let bytes = self.meter.bytes.get() + got as u64;
        self.meter.bytes.set(bytes);
        if let Some(progress) = self.progress
            && (bytes - self.reported >= 1 << 18 || (got == 0 && bytes != self.reported))
        {
            self.reported = bytes;
            progress(bytes, self.total);
        }
        Ok(got)
    }
}

impl<'a> Source<'a> {
    pub(crate) fn new(
        mut file: impl Read + 'a,
        name: &str,
        total: Option<u64>,
        options: &ReadOptions<'a>,
    ) -> Result<Self, ReadError> {
        let io_error = |source| ReadError::Io {
            name: name.to_owned(),
            source,
        };
        let mut magic = Vec::with_capacity(4);
        file.by_ref().take(4).read_to_end(&mut magic).map_err(io_error)?;
        let meter = Rc::new(Meter::default());
        let raw = Metered {
            inner: io::Cursor::new(magic.clone()).chain(file),
            meter: Rc::clone(&meter),
            total,
            reported: 0,
            progress: options.progress,
        };
        let (inner, compressed): (Box<dyn Read + 'a>, bool) = match *magic {
            [0x1f, 0x8b, ..] => (
                Box::new(flate2::read::MultiGzDecoder::new(io::BufReader::new(raw))),
                true,
            ),
            // The second signature is zstd's skippable frame, with which parallel writers begin.
            [0x28, 0xb5, 0x2f, 0xfd] | [0x50..=0x5f, 0x2a, 0x4d, 0x18] => (
                Box::new(zstd::stream::read::Decoder::new(raw).map_err(io_error)?),
                true,
            ),
            _ => (Box::new(raw), false),
        };
        Ok(Self {
            inner,
            name: name.to_owned(),
            buffer: vec![0; BUFFER],
            at: 0,
            end: 0,
            before: 0,
            finished: false,
            damage: None,
            compressed,
            total,
            meter,
            max_decompressed: options.max_decompressed,
            max_expansion: options.max_expansion,
            interrupt: options.interrupt,
        })
    }

    /// Returns the expected length of the content, or 0 if it is unknown. It is at most [`MOST_EXPECTED`].
    ///
    /// It is used to reserve memory in advance. The memory is only address space until it is used. Without this
    /// reservation, growing vectors would take half of the time for a small file.
    pub(crate) fn expected(&self) -> usize {
        let total = self.total.filter(|_| !self.compressed).unwrap_or(0);
        total.min(MOST_EXPECTED) as usize
    }

    /// Returns the number of bytes consumed so far.
    pub(crate) fn offset(&self) -> u64 {
        self.before + self.at as u64
    }

    /// Returns the buffered bytes that are not consumed.
    #[inline]
    pub(crate) fn buffered(&self) -> &[u8] {
        &self.buffer[self.at..self.end]
    }

    /// Consumes `bytes` buffered bytes, at most as many as are buffered.
    #[inline]
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.at = (self.at + bytes).min(self.end);
    }

    /// Returns an error if a compressed file has more lines or events than is plausible for its size. Each of them
    /// costs memory, and in real recordings each takes four to nine compressed bytes.
    #[inline]
    pub(crate) fn check_lines(&self, lines: u64) -> Result<(), ReadError> {
        if self.compressed && lines > SPARE_LINES + self.meter.bytes.get() {
            return Err(ReadError::TooDense { lines });
        }
        Ok(())
    }

    /// Returns the last `bytes` consumed bytes. Valid only until the next fill.
    #[inline]
    pub(crate) fn consumed(&self, bytes: usize) -> &[u8] {
        &self.buffer[self.at - bytes..self.at]
    }

    /// Buffers at least `wanted` unconsumed bytes, or fewer at the end of the file.
    pub(crate) fn fill(&mut self, wanted: usize) -> Result<(), ReadError> {
        while self.end - self.at < wanted && !self.finished {
            self.interrupt.map_or(Ok(()), Interrupt::check)?;
            if self.at > 0 {
                self.before += self.at as u64;
                self.buffer.copy_within(self.at..self.end, 0);
                self.end -= self.at;
                self.at = 0;
            }
            if self.end == self.buffer.len() {
                // The size is doubled, so that a long line is copied a limited number of times. It never depends on a
                // number in the file.
                self.buffer.resize(self.buffer.len() * 2, 0);
            }
            match self.inner.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.finished = true,
                Ok(got) => self.end += got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => self.blame(error)?,
            }
            self.check_size()?;
        }
        match &self.damage {
            Some(what) if self.end - self.at < wanted => Err(ReadError::Damaged {
                at: self.before + self.end as u64,
                what: what.clone(),
            }),
            _ => Ok(()),
        }
    }

    fn check_size(&self) -> Result<(), ReadError> {
        let content = self.before + self.end as u64;
        if content > self.max_decompressed {
            return Err(ReadError::TooLarge {
                limit: self.max_decompressed,
            });
        }
        let file = self.meter.bytes.get().max(1);
        if self.compressed && content > FREE_EXPANSION && content / file >= self.max_expansion {
            return Err(ReadError::Expands {
                limit: self.max_expansion,
            });
        }
        Ok(())
    }

    fn blame(&mut self, error: io::Error) -> Result<(), ReadError> {
        self.finished = true;
        if !self.compressed || self.meter.failed.get() {
            return Err(ReadError::Io {
                name: self.name.clone(),
                source: error,
            });
        }
        self.damage = Some(error.to_string().replace(['\n', '\r'], " "));
        Ok(())
    }
}
