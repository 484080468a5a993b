//! Reads rows from an Arrow stream, one batch at a time.

use super::message::{self, Message, Next, in_one_line};
use super::{Kind, RecordingError, Row, schema};
use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, UInt8Type, UInt32Type, UInt64Type};
use arrow_array::{Array, ArrowPrimitiveType, ListArray, RecordBatch, StringArray};
use arrow_buffer::ScalarBuffer;
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::RecordBatchDecoder;
use arrow_ipc::root_as_message;
use arrow_schema::{ArrowError, Schema, SchemaRef};
use std::collections::HashMap;
use std::io::{Read, Seek, SeekFrom};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The most rows of a batch. Millpond's writer puts a sixteenth of this into a batch.
pub(super) const MOST_ROWS: i64 = 1 << 20;

/// How a recording ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The recording was closed and is complete.
    Closed,
    /// The file ends early, because the process was killed or still writes. The events after the last complete batch
    /// are missing.
    Cut {
        /// Bytes that could be read.
        bytes: u64,
    },
    /// The bytes after this position cannot be parsed.
    Damaged {
        /// Bytes that could be read before.
        bytes: u64,
        /// A description of the problem.
        what: String,
    },
}

/// Reads a recording from its beginning. Any file may be hostile. No value in it makes a buffer larger than the limit
/// in [`next_batch`](Self::next_batch), and the recording ends at data that cannot be parsed.
#[derive(Debug)]
pub struct Reader<R> {
    from: Counted<R>,
    schema: SchemaRef,
    /// The positions of our columns in the file's schema.
    places: [usize; schema::COLUMNS.len()],
    facts: Vec<(String, String)>,
    end: Option<End>,
    closed: bool,
}

#[derive(Debug)]
struct Counted<R> {
    inner: R,
    bytes: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let got = self.inner.read(buffer)?;
        self.bytes += got as u64;
        Ok(got)
    }
}

impl<R: Read> Reader<R> {
    /// Reads the beginning of a recording.
    ///
    /// # Errors
    /// Returns an error if the data is not a recording, has a later version, or cannot be read.
    pub fn new(from: R) -> Result<Self, RecordingError> {
        let mut from = Counted {
            inner: from,
            bytes: 0,
        };
        let described = match message::next(&mut from)? {
            Next::Message(message) => message.described,
            Next::Closed | Next::Cut => {
                return Err(RecordingError::NotOurs("it ends before its schema".to_owned()));
            }
            Next::Damaged(what) => return Err(RecordingError::NotOurs(what)),
        };
        let message = root_as_message(&described).ok();
        let schema = message
            .and_then(|message| message.header_as_schema())
            .ok_or_else(|| RecordingError::NotOurs("it does not begin with a schema".to_owned()))?;
        let schema = try_fb_to_schema(schema).map_err(|error| {
            RecordingError::NotOurs(format!("its schema is malformed: {}", in_one_line(&error)))
        })?;
        Ok(Self {
            from,
            places: schema::columns_of(&schema)?,
            facts: schema::facts(&schema)?,
            // The metadata is left out, because each decoded batch would have a copy of it.
            schema: Arc::new(Schema::new(schema.fields)),
            end: None,
            closed: false,
        })
    }

    /// Returns the facts about the recording, by name.
    pub fn facts(&self) -> &[(String, String)] {
        &self.facts
    }

    /// Returns the fact with this name.
    pub fn fact(&self, name: &str) -> Option<&str> {
        let found = self.facts.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Returns how the recording ends, or `None` before [`next_batch`](Self::next_batch) has returned `None`.
    pub fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// Returns the number of bytes read so far.
    pub fn bytes(&self) -> u64 {
        self.from.bytes
    }

    /// Returns the next batch, or `None` at the end. A batch takes at most 80 MiB of memory, and a few megabytes if
    /// Millpond's writer wrote it.
    ///
    /// # Errors
    /// Returns an error if the system could not read the file. Invalid data is not an error but an [end](Self::end).
    pub fn next_batch(&mut self) -> Result<Option<Batch>, RecordingError> {
        if self.end.is_some() {
            return Ok(None);
        }
        let before = self.from.bytes;
        let end = match message::next(&mut self.from)? {
            Next::Message(message) => match self.decode(&message) {
                Ok(batch) => {
                    self.closed = batch.is_last();
                    return Ok(Some(batch));
                }
                Err(what) => End::Damaged { bytes: before, what },
            },
            Next::Closed | Next::Cut if self.closed => End::Closed,
            Next::Closed | Next::Cut => End::Cut { bytes: before },
            Next::Damaged(what) => End::Damaged { bytes: before, what },
        };
        self.end = Some(end);
        Ok(None)
    }

    fn decode(&self, message: &Message) -> Result<Batch, String> {
        message::check(message, MOST_ROWS)?;
        let root = root_as_message(&message.described).map_err(|error| in_one_line(&error))?;
        let described = root.header_as_record_batch().ok_or("a message is not a batch")?;
        let dictionaries = HashMap::new();
        let decode = || -> Result<RecordBatch, ArrowError> {
            RecordBatchDecoder::try_new(
                &message.body,
                described,
                Arc::clone(&self.schema),
                &dictionaries,
                &root.version(),
            )?
            // Other columns are not decoded. Their types are not checked, and the decoder panics on some of their
            // contents.
            .with_projection(Some(&self.places))
            .read_record_batch()
        };
        // The decoder trusts its input. A failed assertion in it means that the file is damaged.
        let decoded = catch_unwind(AssertUnwindSafe(decode))
            .map_err(|_| "a batch cannot be decoded: the decoder failed on its contents".to_owned())?;
        let batch = decoded.map_err(|error| format!("a batch cannot be decoded: {}", in_one_line(&error)))?;
        Batch::new(&batch).ok_or_else(|| "the columns of a batch do not match its schema".to_owned())
    }
}

impl<R: Read + Seek> Reader<R> {
    /// Moves to a position that [`bytes`](Self::bytes) returned before a batch.
    ///
    /// # Errors
    /// Returns an error if the system cannot seek there.
    pub fn skip_to(&mut self, bytes: u64) -> Result<(), RecordingError> {
        self.from.inner.seek(SeekFrom::Start(bytes))?;
        self.from.bytes = bytes;
        Ok(())
    }
}

/// Rows of a recording.
#[derive(Clone, Debug)]
pub struct Batch {
    kind: ScalarBuffer<u8>,
    time: ScalarBuffer<i64>,
    id: ScalarBuffer<i64>,
    wide: [ScalarBuffer<u64>; 3],
    narrow: [ScalarBuffer<u32>; 5],
    text: StringArray,
    list: ListArray,
}

impl Batch {
    /// Creates a batch from Millpond's columns, in the standard order.
    fn new(batch: &RecordBatch) -> Option<Self> {
        let wide = |at| values::<UInt64Type>(batch, at);
        let narrow = |at| values::<UInt32Type>(batch, at);
        Some(Self {
            kind: values::<UInt8Type>(batch, 0)?,
            time: values::<Int64Type>(batch, 1)?,
            id: values::<Int64Type>(batch, 2)?,
            wide: [wide(3)?, wide(4)?, wide(5)?],
            narrow: [narrow(6)?, narrow(7)?, narrow(8)?, narrow(9)?, narrow(10)?],
            text: batch.column(11).as_string_opt()?.clone(),
            list: batch.column(12).as_list_opt()?.clone(),
        })
    }

    /// Returns the number of rows, including those that [`rows`](Self::rows) skips.
    pub fn len(&self) -> usize {
        self.kind.len()
    }

    /// Returns whether the batch has no rows.
    pub fn is_empty(&self) -> bool {
        self.kind.is_empty()
    }

    /// Returns whether the last row closes the recording.
    fn is_last(&self) -> bool {
        self.kind.last() == Some(&(Kind::End as u8))
    }

    /// Returns the rows, except the batch row and rows of unknown kinds.
    pub fn rows(&self) -> Rows<'_> {
        Rows {
            batch: self,
            next: 0,
            time: 0,
            newest: 0,
        }
    }

    /// Returns the text of a row. `place` is the position that `Rows::place` returned for it.
    pub fn text(&self, place: usize) -> Option<&str> {
        (place < self.text.len() && self.text.is_valid(place)).then(|| self.text.value(place))
    }

    /// Returns the list of a row.
    pub fn list(&self, place: usize) -> Option<Vec<u64>> {
        if place >= self.list.len() || !self.list.is_valid(place) {
            return None;
        }
        let numbers = self.list.value(place);
        Some(numbers.as_primitive_opt::<UInt64Type>()?.values().to_vec())
    }
}

/// Returns the values of a column, or `None` if it has another type.
fn values<T: ArrowPrimitiveType>(batch: &RecordBatch, at: usize) -> Option<ScalarBuffer<T::Native>> {
    Some(batch.column(at).as_primitive_opt::<T>()?.values().clone())
}

/// The rows of a batch, in order.
#[derive(Clone, Debug)]
pub struct Rows<'a> {
    batch: &'a Batch,
    next: usize,
    time: u64,
    newest: u64,
}

impl Rows<'_> {
    /// Returns the position in the batch of the last returned row.
    pub fn place(&self) -> usize {
        self.next.saturating_sub(1)
    }
}

impl Iterator for Rows<'_> {
    type Item = Row;

    #[inline]
    fn next(&mut self) -> Option<Row> {
        loop {
            let at = self.next;
            let number = *self.batch.kind.get(at)?;
            self.next += 1;
            let (time, id) = (self.batch.time[at], self.batch.id[at]);
            let Some(kind) = Kind::from_number(number) else {
                self.time = self.time.wrapping_add(time as u64);
                continue;
            };
            if kind == Kind::Batch {
                (self.time, self.newest) = (time as u64, id as u64);
                continue;
            }
            let time = self.time.wrapping_add(time as u64);
            if kind != Kind::Live {
                self.time = time;
            }
            let id = if kind.has_serial() {
                let id = self.newest.wrapping_sub(id as u64);
                self.newest = self.newest.max(id);
                id
            } else {
                id as u64
            };
            let [address, requested, bytes] = self.batch.wide.each_ref().map(|column| column[at]);
            let [pool, stream, thread, tag, stack] = self.batch.narrow.each_ref().map(|column| column[at]);
            return Some(Row {
                kind,
                time,
                id,
                address,
                requested,
                bytes,
                pool,
                stream,
                thread,
                tag,
                stack,
            });
        }
    }
}
