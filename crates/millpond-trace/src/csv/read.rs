//! Reads Millpond CSV.

use super::{ACTIONS, EXPANDABLE, INITIAL_BLOCK, INITIAL_PENDING, INITIAL_SEGMENT, SMALL};
use crate::error::quoted;
use crate::header::{self, Header};
use crate::ledger::{Ledger, Ledgers};
use crate::lines::number;
use crate::model::{InitialBlock, InitialSegment};
use crate::source::Source;
use crate::table::{self, BadLine, Fields, Names, Table, bytes, optional, required};
use crate::{Action, Event, Format, ReadError, Recording};

/// The position of each known column.
#[derive(Default)]
struct Columns {
    time_us: Option<usize>,
    action: usize,
    id: usize,
    bytes: usize,
    stream: Option<usize>,
    tag: Option<usize>,
    address: Option<usize>,
    pool: Option<usize>,
    device: Option<usize>,
    allocated: Option<usize>,
}

/// The content of a file.
#[derive(Default)]
struct Content {
    header: Header,
    columns: Columns,
    ledgers: Ledgers,
}

pub(crate) fn read(source: &mut Source<'_>, name: &str) -> Result<Recording, ReadError> {
    let mut content = Content::default();
    let end = table::read(source, &mut content)?;
    let Content { header, ledgers, .. } = content;
    let format = Format::MillpondCsv;
    let recording = ledgers.finish(name, format, &header.pairs, end.cut, |ledger| {
        ledger.settings = header.settings.clone();
        ledger.final_reserved_bytes = header.final_reserved_bytes;
        ledger.ring_full = header.ring_full;
    });
    let mut recording = recording.ok_or_else(|| end.nothing_left(format))?;
    recording.settings = header.settings;
    Ok(recording)
}

impl Table for Content {
    fn comment(&mut self, comment: &[u8]) -> Result<(), String> {
        self.header.read(comment)
    }

    fn columns(&mut self, names: &Names<'_>) -> Result<usize, String> {
        self.columns = Columns {
            time_us: names.find("time_us"),
            action: names.need("action")?,
            id: names.need("id")?,
            bytes: names.need("bytes")?,
            stream: names.find("stream"),
            tag: names.find("tag"),
            address: names.find("address"),
            pool: names.find("pool"),
            device: names.find("device"),
            allocated: names.find("allocated"),
        };
        Ok(names.len())
    }

    #[inline]
    fn row(&mut self, fields: &Fields<'_>) -> Result<(), BadLine> {
        let columns = &self.columns;
        let device = match fields.find(columns.device).trim_ascii() {
            b"" => self.header.device,
            text => required(text, "device number", header::device)?,
        };
        let ledger = self.ledgers.get(device)?;
        let (key, event) = event(fields, columns, ledger)?;
        let word = fields.get(columns.action).trim_ascii();
        if let Some(&(_, action)) = ACTIONS.iter().find(|(known, _)| known.as_bytes() == word) {
            return Ok(ledger.record(key, Event { action, ..event })?);
        }
        let allocated = number(fields.find(columns.allocated));
        initial(word, key, event, allocated, ledger)
    }
}

/// Parses the numbers of a line. Returns the id and an event whose action is not yet known.
#[inline]
fn event(fields: &Fields<'_>, columns: &Columns, ledger: &mut Ledger) -> Result<(u64, Event), BadLine> {
    let bytes = match fields.get(columns.bytes) {
        b"" if fields.get(columns.action).starts_with(b"free") => 0,
        text => bytes(text, &mut ledger.findings)?,
    };
    let stream = optional(fields.find(columns.stream), "stream", number)?;
    let time_us = optional(fields.find(columns.time_us), "time in microseconds", number)?;
    let key = optional(fields.get(columns.id), "id", number)?;
    let event = Event {
        time_us,
        bytes,
        address: optional(fields.find(columns.address), "address", number)?,
        tag: ledger.tags.intern(fields.find(columns.tag)),
        stream: ledger.stream(stream),
        pool: match fields.find(columns.pool) {
            b"" => 0,
            text => ledger.pool(required(text, "pool such as 0:1", pool)?),
        },
        ..Event::new(Action::Alloc)
    };
    Ok((key, event))
}

fn pool(text: &[u8]) -> Option<(u64, u64)> {
    match memchr::memchr(b':', text) {
        Some(at) => Some((number(&text[..at])?, number(&text[at + 1..])?)),
        None => Some((0, number(text)?)),
    }
}

/// Reads a row of the state before the first event.
#[cold]
fn initial(
    action: &[u8],
    key: u64,
    event: Event,
    allocated: Option<u64>,
    ledger: &mut Ledger,
) -> Result<(), BadLine> {
    let Event {
        address,
        bytes,
        stream,
        pool,
        tag,
        ..
    } = event;
    let word = std::str::from_utf8(action).unwrap_or_default();
    if !matches!(word, INITIAL_SEGMENT | INITIAL_BLOCK | INITIAL_PENDING) {
        let known: Vec<&str> = ACTIONS.iter().map(|(word, _)| *word).collect();
        let what = format!(
            "{} is not an action; the actions are {}",
            quoted(action),
            known.join(" ")
        );
        return Err(what.into());
    }
    if ledger.has_events() {
        return Err(format!("{word} must come before the first event").into());
    }
    if word == INITIAL_SEGMENT {
        ledger.initial_segments.push(InitialSegment {
            address,
            bytes,
            stream,
            pool,
            small: key & SMALL != 0,
            expandable: key & EXPANDABLE != 0,
        });
        return Ok(());
    }
    let block = InitialBlock {
        address,
        requested: bytes,
        bytes: allocated,
        allocation: 0,
        tag,
        stream,
        pool,
        pending: word == INITIAL_PENDING,
    };
    Ok(ledger.initial(key, block)?)
}
