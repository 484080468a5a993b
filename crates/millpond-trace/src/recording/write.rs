//! Writes rows as an Arrow stream.

use super::{Kind, RecordingError, Row, schema};
use arrow_array::builder::{ListBuilder, StringBuilder, UInt64Builder};
use arrow_array::{ArrayRef, Int64Array, RecordBatch, UInt8Array, UInt32Array, UInt64Array};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{IpcWriteOptions, StreamWriter};
use arrow_schema::SchemaRef;
use std::collections::TryReserveError;
use std::io::Write;
use std::sync::Arc;

/// The maximum number of rows of a batch: enough to compress well, few enough to lose little if the process dies.
const ROWS: usize = 64 << 10;
/// The minimum number of rows of a batch.
const LEAST_ROWS: usize = 1 << 10;
/// The bytes of texts and lists for each row of a full batch. A new batch begins after that. Readers refuse batches with ten
/// times as many bytes.
const SAID: usize = 128;
/// The bytes for each row of a full batch that encoding the batch needs.
const ENCODING: usize = 256;
/// The compression level. A higher level does not improve columns of differences. A lower level such as -4 saves an
/// eighth of the time but makes files a quarter larger.
const LEVEL: i32 = 1;

/// Writes a recording.
///
/// ```
/// use millpond_trace::recording::{Kind, Reader, Row, Writer};
///
/// let mut writer = Writer::new(Vec::new(), &[("program".to_owned(), "train".to_owned())])?;
/// writer.push(&Row { id: 1, bytes: 512, requested: 500, pool: 1, ..Row::new(Kind::Alloc, 1_000) })?;
/// let file = writer.finish(2_000)?;
///
/// let mut reader = Reader::new(&file[..])?;
/// let batch = reader.next_batch()?.expect("one");
/// assert_eq!(batch.rows().next().map(|row| (row.kind, row.time, row.bytes)), Some((Kind::Alloc, 1_000, 512)));
/// # Ok::<(), millpond_trace::recording::RecordingError>(())
/// ```
pub struct Writer<W: Write> {
    stream: StreamWriter<W>,
    schema: SchemaRef,
    columns: Columns,
    /// The maximum number of rows of a batch.
    batch_rows: usize,
    /// Memory that is freed just before a batch is encoded, because a failed allocation of the encoder would abort the process.
    for_encoding: Vec<u8>,
    /// The values of the previous row.
    time: u64,
    newest: u64,
    rows: u64,
}

#[derive(Default)]
struct Columns {
    kind: Vec<u8>,
    /// Time and serial number.
    signed: [Vec<i64>; 2],
    /// Address, requested bytes and bytes.
    wide: [Vec<u64>; 3],
    /// Pool, stream, thread, tag and stack.
    narrow: [Vec<u32>; 5],
    /// The few rows that have a text or a list.
    said: Vec<(usize, Option<String>, Option<Vec<u64>>)>,
    /// The bytes of those texts and lists.
    said_bytes: usize,
}

impl<W: Write> std::fmt::Debug for Writer<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer")
            .field("rows", &self.rows)
            .finish_non_exhaustive()
    }
}

impl<W: Write> Writer<W> {
    /// Starts a recording with facts about its origin. The names are arbitrary. Readers know `program`, `pid`, `host`,
    /// `rank` and `start` (in seconds since 1970).
    ///
    /// # Errors
    /// Returns an error if the beginning of the file could not be written.
    pub fn new(out: W, facts: &[(String, String)]) -> Result<Self, RecordingError> {
        let schema = Arc::new(schema::schema(facts));
        let options = IpcWriteOptions::default()
            .try_with_compression(Some(CompressionType::ZSTD))?
            .try_with_compression_level(Some(LEVEL))?;
        Ok(Self {
            stream: StreamWriter::try_new_with_options(out, &schema, options)?,
            schema,
            columns: Columns::default(),
            batch_rows: ROWS,
            for_encoding: Vec::new(),
            time: 0,
            newest: 0,
            rows: 0,
        })
    }

    /// Sets the maximum number of rows of the next batches. The default is 65,536, which is also the maximum. A smaller batch
    /// needs less memory, about 320 bytes for each row, and compresses less.
    pub fn set_batch_rows(&mut self, rows: usize) {
        self.batch_rows = rows.clamp(LEAST_ROWS, ROWS);
    }

    /// Adds an event. Its serial number, if it has one, is at most one more than the newest.
    ///
    /// # Errors
    /// Returns an error if a batch could not be written, or if there is no memory for the next one.
    #[inline]
    pub fn push(&mut self, row: &Row) -> Result<(), RecordingError> {
        if self.columns.kind.len() >= self.batch_rows {
            self.flush()?;
        }
        self.enter(row)
    }

    /// Adds a row with a text or a list: a definition or a mark.
    ///
    /// # Errors
    /// Returns the errors of [`push`](Self::push).
    pub fn say(&mut self, row: &Row, text: Option<&str>, list: Option<&[u64]>) -> Result<(), RecordingError> {
        let bytes = text.map_or(0, str::len) + list.map_or(0, |list| 8 * list.len());
        if self.columns.said_bytes.saturating_add(bytes) > self.batch_rows * SAID {
            self.flush()?;
        }
        self.push(row)?;
        self.columns.said_bytes += bytes;
        let at = self.columns.kind.len() - 1;
        self.columns
            .said
            .push((at, text.map(str::to_owned), list.map(<[u64]>::to_vec)));
        Ok(())
    }

    /// Writes all rows so far as a complete batch. They can then be read even if the process dies.
    ///
    /// # Errors
    /// Returns an error if the system could not write them.
    pub fn flush(&mut self) -> Result<(), RecordingError> {
        if !self.columns.kind.is_empty() {
            let columns = std::mem::take(&mut self.columns);
            self.for_encoding = Vec::new();
            let batch = columns.batch(&self.schema)?;
            self.stream.write(&batch)?;
        }
        self.stream.flush()?;
        Ok(())
    }

    /// Returns the number of rows so far, including those that begin batches.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the output.
    pub fn get_ref(&self) -> &W {
        self.stream.get_ref()
    }

    /// Closes the recording at `time` and marks it as complete.
    ///
    /// # Errors
    /// Returns an error if the system could not write the remaining rows.
    pub fn finish(mut self, time: u64) -> Result<W, RecordingError> {
        self.push(&Row::new(Kind::End, time))?;
        self.flush()?;
        Ok(self.stream.into_inner()?)
    }

    /// Allocates the memory of a batch.
    fn begin_batch(&mut self) -> Result<(), RecordingError> {
        let rows = self.batch_rows;
        let reserved = self.columns.reserve(rows);
        reserved
            .and_then(|()| self.for_encoding.try_reserve_exact(rows * ENCODING))
            .map_err(|_| RecordingError::NoMemory)
    }

    #[inline]
    fn enter(&mut self, row: &Row) -> Result<(), RecordingError> {
        if self.columns.kind.is_empty() {
            self.begin_batch()?;
            // A live row may have an earlier time.
            if row.kind != Kind::Live {
                self.time = row.time;
            }
            let begins = Row {
                address: self.rows,
                ..Row::new(Kind::Batch, self.time)
            };
            self.columns.enter(&begins, self.time as i64, self.newest as i64);
            self.rows += 1;
        }
        let since = row.time.wrapping_sub(self.time) as i64;
        if row.kind != Kind::Live {
            self.time = row.time;
        }
        let id = if row.kind.has_serial() {
            let back = self.newest.wrapping_sub(row.id) as i64;
            self.newest = self.newest.max(row.id);
            back
        } else {
            row.id as i64
        };
        self.columns.enter(row, since, id);
        self.rows += 1;
        Ok(())
    }
}

impl Columns {
    fn reserve(&mut self, rows: usize) -> Result<(), TryReserveError> {
        self.kind.try_reserve_exact(rows)?;
        for column in &mut self.signed {
            column.try_reserve_exact(rows)?;
        }
        for column in &mut self.wide {
            column.try_reserve_exact(rows)?;
        }
        for column in &mut self.narrow {
            column.try_reserve_exact(rows)?;
        }
        Ok(())
    }

    #[inline]
    fn enter(&mut self, row: &Row, time: i64, id: i64) {
        self.kind.push(row.kind as u8);
        push(&mut self.signed, [time, id]);
        push(&mut self.wide, [row.address, row.requested, row.bytes]);
        let narrow = [row.pool, row.stream, row.thread, row.tag, row.stack];
        push(&mut self.narrow, narrow);
    }

    fn batch(self, schema: &SchemaRef) -> Result<RecordBatch, RecordingError> {
        let rows = self.kind.len();
        let mut texts = StringBuilder::new();
        let mut lists = ListBuilder::new(UInt64Builder::new()).with_field(schema::item());
        let mut next = 0;
        for (at, text, list) in self.said {
            texts.append_nulls(at - next);
            lists.append_nulls(at - next);
            texts.append_option(text);
            match list {
                Some(list) => lists.append_value(list.into_iter().map(Some)),
                None => lists.append_null(),
            }
            next = at + 1;
        }
        texts.append_nulls(rows - next);
        lists.append_nulls(rows - next);
        let mut columns: Vec<ArrayRef> = vec![Arc::new(UInt8Array::from(self.kind))];
        for column in self.signed {
            columns.push(Arc::new(Int64Array::from(column)));
        }
        for column in self.wide {
            columns.push(Arc::new(UInt64Array::from(column)));
        }
        for column in self.narrow {
            columns.push(Arc::new(UInt32Array::from(column)));
        }
        columns.push(Arc::new(texts.finish()));
        columns.push(Arc::new(lists.finish()));
        Ok(RecordBatch::try_new(Arc::clone(schema), columns)?)
    }
}

/// Adds one value to each column.
#[inline]
fn push<T, const N: usize>(columns: &mut [Vec<T>; N], values: [T; N]) {
    for (column, value) in columns.iter_mut().zip(values) {
        column.push(value);
    }
}
