//! Writes a recording as a Parquet table with one event in each row, and names in place of numbers.

use millpond_trace::export::{ExportError, ExportOptions, Exported, walk};
use millpond_trace::history::{History, Symbols};
use millpond_trace::recording::{Gauge, Kind, Row};

use arrow_array::builder::{
    Int32Builder, StringBuilder, StringDictionaryBuilder, UInt32Builder, UInt64Builder,
};
use arrow_array::types::UInt32Type;
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;

/// The number of rows that are collected before they are written.
const ROWS: usize = 64 << 10;

/// The bytes of stacks that are remembered as text before all are forgotten.
const MOST_TEXT: usize = 64 << 20;

type Words = StringDictionaryBuilder<UInt32Type>;

/// Writes the table.
pub(super) fn write(
    history: &History,
    symbols: &dyn Symbols,
    options: &ExportOptions<'_>,
    out: &mut (impl Write + Send),
) -> Result<Exported, ExportError> {
    let schema = Arc::new(schema());
    let facts = history.facts.iter();
    let facts = facts.map(|(key, value)| KeyValue::new(format!("millpond.{key}"), value.clone()));
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_key_value_metadata(Some(facts.collect()))
        .build();
    let mut writer = ArrowWriter::try_new(out, Arc::clone(&schema), Some(properties)).map_err(failed)?;
    let exported = batches(history, symbols, options, &schema, |batch| {
        writer.write(&batch).map_err(failed)
    })?;
    writer.close().map_err(failed)?;
    Ok(exported)
}

/// Passes the rows on, many at once.
pub(crate) fn batches(
    history: &History,
    symbols: &dyn Symbols,
    options: &ExportOptions<'_>,
    schema: &Arc<Schema>,
    mut pass: impl FnMut(RecordBatch) -> io::Result<()>,
) -> Result<Exported, ExportError> {
    let mut columns = Columns::default();
    let mut stacks = Stacks {
        history,
        symbols,
        known: HashMap::new(),
        bytes: 0,
    };
    let exported = walk(history, options, |row, text| {
        columns.enter(row, text, history, &mut stacks);
        if columns.rows == ROWS {
            pass(columns.batch(schema)?)?;
        }
        Ok(())
    })?;
    pass(columns.batch(schema)?)?;
    Ok(exported)
}

fn failed(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(error) => match error.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(error) => io::Error::other(error),
        },
        error => io::Error::other(error),
    }
}

/// Returns the columns of the table.
pub(crate) fn schema() -> Schema {
    let words = || DataType::Dictionary(Box::new(DataType::UInt32), Box::new(DataType::Utf8));
    let number = |name| Field::new(name, DataType::UInt64, false);
    let named = |name| Field::new(name, words(), true);
    Schema::new(vec![
        Field::new("kind", words(), false),
        number("time"),
        number("id"),
        number("address"),
        number("requested"),
        number("bytes"),
        named("pool"),
        named("memory"),
        Field::new("device", DataType::Int32, true),
        Field::new("stream", DataType::UInt32, false),
        named("thread"),
        named("tag"),
        named("stack"),
        Field::new("text", DataType::Utf8, true),
    ])
}

/// Stacks as text, with one frame on each line, the innermost first.
struct Stacks<'a> {
    history: &'a History,
    symbols: &'a dyn Symbols,
    known: HashMap<u32, String>,
    /// Bytes of the texts in `known`.
    bytes: usize,
}

impl Stacks<'_> {
    fn of(&mut self, number: u32) -> &str {
        if self.bytes > MOST_TEXT {
            self.known.clear();
            self.bytes = 0;
        }
        self.known.entry(number).or_insert_with(|| {
            let frames = self.symbols.stack(self.history.definitions.stack(number));
            let lines = frames.map(|frame| match (frame.file.as_str(), frame.line) {
                ("", _) => frame.function,
                (file, line) => format!("{} ({file}:{line})", frame.function),
            });
            let lines: Vec<String> = lines.map(|line| line.replace(['\n', '\r'], " ")).collect();
            let text = lines.join("\n");
            self.bytes += text.len();
            text
        })
    }
}

#[derive(Default)]
struct Columns {
    rows: usize,
    kind: Words,
    wide: [UInt64Builder; 5],
    pool: Words,
    memory: Words,
    device: Int32Builder,
    stream: UInt32Builder,
    thread: Words,
    tag: Words,
    stack: Words,
    text: StringBuilder,
}

impl Columns {
    fn enter(&mut self, row: &Row, text: Option<&str>, history: &History, stacks: &mut Stacks<'_>) {
        let definitions = &history.definitions;
        self.rows += 1;
        self.kind.append_value(kind(row.kind));
        let numbers = [row.time, row.id, row.address, row.requested, row.bytes];
        for (column, number) in self.wide.iter_mut().zip(numbers) {
            column.append_value(number);
        }
        let pool = definitions.pool(row.pool);
        let measured = Gauge::from_number(row.tag).filter(|_| row.kind == Kind::Gauge);
        let device = match (pool, measured) {
            (Some(pool), _) => Some(pool.device),
            // The device is stored in the field of the stream.
            (None, Some(Gauge::DeviceUsed | Gauge::DeviceTotal)) => Some(row.stream as i32),
            (None, _) => None,
        };
        self.pool.append_option(pool.map(|pool| &pool.name));
        self.memory.append_option(pool.map(|pool| &pool.memory));
        self.device.append_option(device);
        self.stream.append_value(row.stream);
        self.thread.append_option(said(definitions.thread(row.thread)));
        let tag = match row.kind {
            Kind::Gauge => measured.map(gauge),
            _ => said(definitions.tag(row.tag)),
        };
        self.tag.append_option(tag);
        let stack = if row.stack == 0 {
            None
        } else {
            said(stacks.of(row.stack))
        };
        self.stack.append_option(stack);
        self.text.append_option(text);
    }

    fn batch(&mut self, schema: &Arc<Schema>) -> io::Result<RecordBatch> {
        self.rows = 0;
        let [time, id, address, requested, bytes] = self.wide.each_mut();
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.kind.finish()),
            Arc::new(time.finish()),
            Arc::new(id.finish()),
            Arc::new(address.finish()),
            Arc::new(requested.finish()),
            Arc::new(bytes.finish()),
            Arc::new(self.pool.finish()),
            Arc::new(self.memory.finish()),
            Arc::new(self.device.finish()),
            Arc::new(self.stream.finish()),
            Arc::new(self.thread.finish()),
            Arc::new(self.tag.finish()),
            Arc::new(self.stack.finish()),
            Arc::new(self.text.finish()),
        ];
        RecordBatch::try_new(Arc::clone(schema), columns).map_err(io::Error::other)
    }
}

fn said(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

/// Returns the word for a kind of rows.
fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Alloc => "alloc",
        Kind::Free => "free",
        Kind::FreeRequested => "free_requested",
        Kind::FreeCompleted => "free_completed",
        Kind::Reserve => "reserve",
        Kind::Release => "release",
        Kind::Refused => "refused",
        Kind::Mark => "mark",
        Kind::Lost => "lost",
        Kind::Gauge => "gauge",
        Kind::Step => "step",
        _ => "other",
    }
}

/// Returns the word for the figure of a gauge.
fn gauge(gauge: Gauge) -> &'static str {
    match gauge {
        Gauge::Requested => "requested",
        Gauge::Allocated => "allocated",
        Gauge::Active => "active",
        Gauge::Reserved => "reserved",
        Gauge::DeviceUsed => "device used",
        Gauge::DeviceTotal => "device total",
        Gauge::Resident => "resident",
        Gauge::Hits => "hits",
        Gauge::Allocations => "allocations",
        _ => "other",
    }
}
