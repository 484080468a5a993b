//! Reads Millpond CSV.

use super::{ACTIONS, EXPANDABLE, INITIAL_BLOCK, INITIAL_PENDING, INITIAL_SEGMENT, SMALL};
use crate::error::quoted;
use crate::hash::Map;
use crate::header::{self, Header};
use crate::ledger::{Ledger, Row};
use crate::lines::{BadLine, Line, Lines, PassedOver, Size, number, size};
use crate::model::{InitialBlock, InitialSegment};
use crate::source::Source;
use crate::strings::Shared;
use crate::{Action, Caution, Format, ReadError, Recording};

/// Maximum number of devices. No machine has more.
const MOST_DEVICES: usize = 1024;

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
    count: usize,
}

impl Columns {
    fn new(names: &[u8]) -> Result<Self, String> {
        let all: Vec<&[u8]> = names
            .split(|&byte| byte == b',')
            .map(<[u8]>::trim_ascii)
            .collect();
        if all.len() > MOST_COLUMNS {
            return Err(format!(
                "{} columns where at most {MOST_COLUMNS} are understood",
                all.len()
            ));
        }
        let find = |name: &str| {
            all.iter()
                .position(|found| found.eq_ignore_ascii_case(name.as_bytes()))
        };
        let need = |name: &str| find(name).ok_or_else(|| format!("no column is named {name}"));
        Ok(Self {
            time_us: find("time_us"),
            action: need("action")?,
            id: need("id")?,
            bytes: need("bytes")?,
            stream: find("stream"),
            tag: find("tag"),
            address: find("address"),
            pool: find("pool"),
            device: find("device"),
            allocated: find("allocated"),
            count: all.len(),
        })
    }
}

const MOST_COLUMNS: usize = 64;

/// The fields of one line. The last field contains the rest of the line.
struct Fields<'l> {
    line: &'l [u8],
    starts: [u32; MOST_COLUMNS + 1],
    count: usize,
}

impl<'l> Fields<'l> {
    #[inline]
    fn new(line: &'l [u8], columns: usize) -> Self {
        let mut starts = [0; MOST_COLUMNS + 1];
        let mut count = 1;
        if columns > 1 {
            for comma in memchr::memchr_iter(b',', line) {
                starts[count] = comma as u32 + 1;
                count += 1;
                if count == columns {
                    break;
                }
            }
        }
        starts[count] = line.len() as u32 + 1;
        Self { line, starts, count }
    }

    #[inline]
    fn get(&self, column: usize) -> &'l [u8] {
        &self.line[self.starts[column] as usize..self.starts[column + 1] as usize - 1]
    }

    #[inline]
    fn find(&self, column: Option<usize>) -> &'l [u8] {
        column.map_or(b"", |column| self.get(column))
    }
}

/// The traces being built, one for each device.
struct Devices {
    ledgers: Vec<(i32, Ledger)>,
    index: Map<i32, usize>,
    last: usize,
    /// The limit on the text of all devices' tags.
    texts: Shared,
}

impl Devices {
    fn get(&mut self, device: i32) -> Result<&mut Ledger, ReadError> {
        if self
            .ledgers
            .get(self.last)
            .is_none_or(|(found, _)| *found != device)
        {
            if self.index.len() == MOST_DEVICES && !self.index.contains_key(&device) {
                return Err(ReadError::TooManyDevices { limit: MOST_DEVICES });
            }
            self.last = *self.index.entry(device).or_insert_with(|| {
                self.ledgers.push((device, Ledger::new(&self.texts)));
                self.ledgers.len() - 1
            });
        }
        Ok(&mut self.ledgers[self.last].1)
    }
}

pub(crate) fn read(source: &mut Source<'_>, name: &str) -> Result<Recording, ReadError> {
    let mut lines = Lines::new(source);
    let mut header = Header::default();
    let mut columns = None;
    let mut passed_over = PassedOver::default();
    let mut devices = Devices {
        ledgers: Vec::new(),
        index: Map::default(),
        last: 0,
        texts: Shared::default(),
    };
    let cut = loop {
        let (line, last) = match lines.next()? {
            Line::Whole(line) => (line, false),
            Line::Last(line) => (line, true),
            Line::End { cut } => break cut,
        };
        let done = match (line, &columns) {
            ([], _) => Ok(()),
            ([b'#', comment @ ..], None) => header.read(comment).map_err(BadLine::from),
            ([b'#', ..], _) => Ok(()),
            (names, None) => Columns::new(names)
                .map(|found| columns = Some(found))
                .map_err(BadLine::from),
            (line, Some(columns)) => event(line, columns, header.device, &mut devices)?,
        };
        match done {
            Ok(()) => {}
            Err(BadLine::Counted(what)) => passed_over.note(lines.number, what),
            // If the last line has no line break and cannot be parsed, the writer did not finish it.
            Err(BadLine::Unreadable(what)) if last && columns.is_some() => {
                passed_over.note(lines.number, what);
                break true;
            }
            Err(BadLine::Unreadable(what)) => {
                return Err(ReadError::Csv {
                    line: lines.number,
                    what,
                });
            }
        }
    };
    let bytes = lines.offset();
    let mut ledgers = devices.ledgers;
    ledgers.retain(|(_, ledger)| ledger.has_events());
    ledgers.sort_by_key(|(device, _)| *device);
    if ledgers.is_empty() {
        return Err(passed_over.nothing_left(Format::MillpondCsv));
    }
    let mut traces = Vec::new();
    for (device, mut ledger) in ledgers {
        ledger.settings = header.settings.clone();
        ledger.final_reserved_bytes = header.final_reserved_bytes;
        ledger.ring_full = header.ring_full;
        if cut {
            ledger.cautions.push(Caution::Cut { bytes });
        }
        traces.push(ledger.finish(name, Format::MillpondCsv, device, header.pairs.clone()));
    }
    Ok(Recording {
        name: name.to_owned(),
        format: Format::MillpondCsv,
        traces,
        states: Vec::new(),
        standing: Vec::new(),
        settings: header.settings,
        cautions: Vec::new(),
    })
}

/// Reads the event of a line. The inner error concerns the line, the outer one the file.
#[inline]
fn event(
    line: &[u8],
    columns: &Columns,
    device: i32,
    devices: &mut Devices,
) -> Result<Result<(), BadLine>, ReadError> {
    let fields = Fields::new(line, columns.count);
    if fields.count < columns.count {
        return Ok(Err(BadLine::Unreadable(format!(
            "{} fields where {} columns are named",
            fields.count, columns.count
        ))));
    }
    let device = match fields.find(columns.device).trim_ascii() {
        b"" => device,
        text => match header::device(text) {
            Some(device) => device,
            None => {
                let what = format!("{} is no device number", quoted(text));
                return Ok(Err(BadLine::Unreadable(what)));
            }
        },
    };
    let ledger = devices.get(device)?;
    let row = match row(&fields, columns, ledger) {
        Ok(row) => row,
        Err(what) => return Ok(Err(what)),
    };
    let action = fields.get(columns.action).trim_ascii();
    match action {
        b"alloc" => ledger.alloc(row)?,
        b"free" | b"free_completed" => ledger.free(row),
        _ => match ACTIONS.iter().find(|(word, _)| word.as_bytes() == action) {
            Some((_, Action::FreeRequested)) => ledger.free_requested(row),
            Some(&(_, action)) => ledger.other(row, action),
            None => {
                let allocated = number(fields.find(columns.allocated));
                return initial(action, row, allocated, ledger);
            }
        },
    }
    Ok(Ok(()))
}

/// Parses the numbers of a line.
#[inline]
fn row(fields: &Fields<'_>, columns: &Columns, ledger: &mut Ledger) -> Result<Row, BadLine> {
    let optional = |column: Option<usize>, name: &str| match fields.find(column) {
        b"" => Ok(0),
        text => number(text).ok_or_else(|| format!("{} is no {name}", quoted(text))),
    };
    let id = fields.get(columns.id);
    let bytes = match fields.get(columns.bytes) {
        b"" if fields.get(columns.action).starts_with(b"free") => 0,
        text => match size(text) {
            Size::Bytes(bytes) => bytes,
            Size::Unreadable => return Err(format!("{} is no number of bytes", quoted(text)).into()),
            Size::Negative => {
                ledger.findings.negative_bytes += 1;
                return Err(BadLine::Counted(Size::NEGATIVE));
            }
            Size::Absurd => {
                ledger.findings.absurd_bytes += 1;
                return Err(BadLine::Counted(Size::ABSURD));
            }
        },
    };
    let stream = optional(columns.stream, "stream")?;
    Ok(Row {
        time_us: optional(columns.time_us, "time in microseconds")?,
        key: optional(Some(columns.id), "id").map_err(|_| format!("{} is no id", quoted(id)))?,
        bytes,
        address: optional(columns.address, "address")?,
        tag: ledger.tags.intern(fields.find(columns.tag)),
        stream: ledger.stream(stream),
        pool: match fields.find(columns.pool) {
            b"" => 0,
            text => {
                let id = pool(text).ok_or_else(|| format!("{} is no pool such as 0:1", quoted(text)))?;
                ledger.pool(id)
            }
        },
    })
}

fn pool(text: &[u8]) -> Option<(u64, u64)> {
    match memchr::memchr(b':', text) {
        Some(at) => Some((number(&text[..at])?, number(&text[at + 1..])?)),
        None => Some((0, number(text)?)),
    }
}

#[cold]
fn initial(
    action: &[u8],
    row: Row,
    allocated: Option<u64>,
    ledger: &mut Ledger,
) -> Result<Result<(), BadLine>, ReadError> {
    let Row {
        key,
        address,
        bytes,
        stream,
        pool,
        tag,
        ..
    } = row;
    let word = std::str::from_utf8(action).unwrap_or_default();
    if !matches!(word, INITIAL_SEGMENT | INITIAL_BLOCK | INITIAL_PENDING) {
        let known: Vec<&str> = ACTIONS.iter().map(|(word, _)| *word).collect();
        let what = format!("{} is no action; known are {}", quoted(action), known.join(" "));
        return Ok(Err(BadLine::Unreadable(what)));
    }
    if ledger.has_events() {
        return Ok(Err(BadLine::Unreadable(format!("{word} after the first event"))));
    }
    if word == INITIAL_SEGMENT {
        let (small, expandable) = (key & SMALL != 0, key & EXPANDABLE != 0);
        ledger.initial_segments.push(InitialSegment {
            address,
            bytes,
            stream,
            pool,
            small,
            expandable,
        });
        return Ok(Ok(()));
    }
    let pending = word == INITIAL_PENDING;
    let block = InitialBlock {
        address,
        requested: bytes,
        bytes: allocated,
        allocation: 0,
        tag,
        stream,
        pool,
        pending,
    };
    ledger.initial(key, block)?;
    Ok(Ok(()))
}
