//! Reads the CSV log of RMM's logging adaptor.
//!
//! The columns `Thread,Time,Action,Pointer,Size,Stream` are found by name. Pointers and streams are hexadecimal with or
//! without `0x`. A pointer identifies a block until it is freed. The time has no date, so a log seems to jump back by a
//! day at midnight. The reader corrects this.

use crate::error::quoted;
use crate::ledger::{Ledger, Row};
use crate::lines::{BadLine, Line, Lines, PassedOver, Size, hexadecimal, size};
use crate::source::Source;
use crate::strings::Shared;
use crate::{Action, Caution, Format, ReadError, Recording, Settings};

const DAY_US: u64 = 24 * 3600 * 1_000_000;

struct Columns {
    time: Option<usize>,
    action: usize,
    pointer: usize,
    size: usize,
    stream: Option<usize>,
    count: usize,
}

impl Columns {
    fn new(names: &[u8]) -> Result<Self, String> {
        let find = |wanted: &str| {
            names
                .split(|&byte| byte == b',')
                .position(|name| name.trim_ascii().eq_ignore_ascii_case(wanted.as_bytes()))
        };
        let need = |name: &str| find(name).ok_or_else(|| format!("no column is named {name}"));
        Ok(Self {
            time: find("time"),
            action: need("action")?,
            pointer: need("pointer")?,
            size: need("size")?,
            stream: find("stream"),
            count: names.split(|&byte| byte == b',').count(),
        })
    }
}

/// The time of day, continued across midnight.
#[derive(Default)]
struct Clock {
    days: u64,
    last: u64,
}

impl Clock {
    fn read(&mut self, field: &[u8]) -> Option<u64> {
        let time = time_of_day(field)?;
        // The line of another thread may be slightly late, so only a jump of half a day counts as midnight.
        if time + DAY_US / 2 < self.last {
            self.days += 1;
        }
        self.last = time;
        Some(self.days * DAY_US + time)
    }
}

/// Parses `HH:MM:SS.ffffff`. Older versions write a colon before the fraction.
fn time_of_day(field: &[u8]) -> Option<u64> {
    let field = field.trim_ascii();
    let mut parts = field.splitn(3, |&byte| byte == b':');
    let mut part = |most: u64| digits(parts.next()?).filter(|&value| value < most);
    let (hours, minutes) = (part(24)?, part(60)?);
    let rest = parts.next()?;
    let (seconds, fraction) = match rest.iter().position(|byte| matches!(byte, b'.' | b':' | b',')) {
        Some(at) => (&rest[..at], &rest[at + 1..]),
        None => (rest, &b""[..]),
    };
    let seconds = digits(seconds).filter(|&seconds| seconds < 61)?;
    let mut micros = 0;
    for at in 0..6 {
        let digit = fraction.get(at).copied().unwrap_or(b'0').wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        micros = micros * 10 + u64::from(digit);
    }
    Some(((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + micros)
}

fn digits(field: &[u8]) -> Option<u64> {
    crate::lines::number(field).filter(|_| field.len() <= 2)
}

pub(crate) fn read(source: &mut Source<'_>, name: &str) -> Result<Recording, ReadError> {
    let mut lines = Lines::new(source);
    let mut columns = None;
    let mut passed_over = PassedOver::default();
    let mut clock = Clock::default();
    let mut ledger = Ledger::new(&Shared::default());
    let cut = loop {
        let (line, last) = match lines.next()? {
            Line::Whole(line) => (line, false),
            Line::Last(line) => (line, true),
            Line::End { cut } => break cut,
        };
        let done = match &columns {
            _ if line.trim_ascii().is_empty() || line.starts_with(b"#") => Ok(Ok(())),
            None => Ok(Columns::new(line)
                .map(|found| columns = Some(found))
                .map_err(BadLine::from)),
            Some(columns) => event(line, columns, &mut clock, &mut ledger),
        };
        match done? {
            Ok(()) => {}
            Err(BadLine::Counted(what)) => passed_over.note(lines.number, what),
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
    if !ledger.has_events() {
        return Err(passed_over.nothing_left(Format::RmmCsv));
    }
    if cut {
        ledger.cautions.push(Caution::Cut {
            bytes: lines.offset(),
        });
    }
    Ok(Recording {
        name: name.to_owned(),
        format: Format::RmmCsv,
        traces: vec![ledger.finish(name, Format::RmmCsv, 0, Vec::new())],
        states: Vec::new(),
        standing: Vec::new(),
        settings: Settings::default(),
        cautions: Vec::new(),
    })
}

/// Reads the event of a line. The inner error concerns the line, the outer one the file.
fn event(
    line: &[u8],
    columns: &Columns,
    clock: &mut Clock,
    ledger: &mut Ledger,
) -> Result<Result<(), BadLine>, ReadError> {
    let (mut time, mut action, mut pointer, mut bytes, mut stream) =
        (None, &b""[..], &b""[..], &b""[..], &b""[..]);
    let mut count = 0;
    for (column, field) in line.split(|&byte| byte == b',').enumerate() {
        let field = field.trim_ascii();
        count += 1;
        match column {
            _ if Some(column) == columns.time => time = Some(field),
            _ if column == columns.action => action = field,
            _ if column == columns.pointer => pointer = field,
            _ if column == columns.size => bytes = field,
            _ if Some(column) == columns.stream => stream = field,
            _ => {}
        }
    }
    if count < columns.count {
        let what = format!("{count} fields where {} columns are named", columns.count);
        return Ok(Err(what.into()));
    }
    let bytes = match size(bytes) {
        Size::Bytes(bytes) => bytes,
        Size::Negative => {
            ledger.findings.negative_bytes += 1;
            return Ok(Err(BadLine::Counted(Size::NEGATIVE)));
        }
        Size::Absurd => {
            ledger.findings.absurd_bytes += 1;
            return Ok(Err(BadLine::Counted(Size::ABSURD)));
        }
        Size::Unreadable => return Ok(Err(format!("{} is no number of bytes", quoted(bytes)).into())),
    };
    let time_us = match time.map(|time| clock.read(time).ok_or(time)) {
        None => 0,
        Some(Ok(time)) => time,
        Some(Err(text)) => {
            let what = format!("{} is no time such as 13:05:59.000123", quoted(text));
            return Ok(Err(what.into()));
        }
    };
    let handle = match stream {
        b"" => 0,
        text => match hexadecimal(text) {
            Some(handle) => handle,
            None => return Ok(Err(format!("{} is no stream", quoted(text)).into())),
        },
    };
    let address = match pointer {
        // C++ streams print the null pointer as words.
        b"" | b"(nil)" | b"nullptr" => 0,
        text => match hexadecimal(text) {
            Some(address) => address,
            None => return Ok(Err(format!("{} is no pointer", quoted(text)).into())),
        },
    };
    let stream = ledger.stream(handle);
    let row = Row {
        time_us,
        key: address,
        bytes,
        address,
        stream,
        ..Row::default()
    };
    match action {
        // An allocation at null is an empty request.
        b"allocate" | b"free" if address == 0 && bytes == 0 => ledger.findings.zero_bytes += 1,
        b"allocate" => ledger.alloc(row)?,
        b"free" => ledger.free(row),
        // The log does not contain the device's free bytes.
        b"allocate failure" => ledger.other(Row { address: 0, ..row }, Action::OutOfMemory),
        other => {
            let what = "is no action; known are allocate, free and allocate failure";
            return Ok(Err(format!("{} {what}", quoted(other)).into()));
        }
    }
    Ok(Ok(()))
}
