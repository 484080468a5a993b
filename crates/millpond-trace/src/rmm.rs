//! Reads the CSV log of RMM's logging adaptor.
//!
//! The columns `Thread,Time,Action,Pointer,Size,Stream` are found by name. Pointers and streams are hexadecimal with or
//! without `0x`. A pointer identifies a block until it is freed. The time has no date, so a log seems to jump back by a
//! day at midnight. The reader corrects this.

use crate::error::quoted;
use crate::ledger::{Ledger, Ledgers};
use crate::lines::hexadecimal;
use crate::source::Source;
use crate::table::{self, BadLine, Fields, Names, Table, bytes, optional, required};
use crate::{Action, Event, Finding, Format, ReadError, Recording};

const DAY_US: u64 = 24 * 3600 * 1_000_000;

/// The positions of the columns.
#[derive(Default)]
struct Columns {
    time: Option<usize>,
    action: usize,
    pointer: usize,
    size: usize,
    stream: Option<usize>,
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
    let mut ledgers = Ledgers::default();
    let mut log = Log {
        columns: Columns::default(),
        clock: Clock::default(),
        ledger: ledgers.get(0)?,
    };
    let end = table::read(source, &mut log)?;
    let recording = ledgers.finish(name, Format::RmmCsv, &[], end.cut, |_| {});
    recording.ok_or_else(|| end.nothing_left(Format::RmmCsv))
}

struct Log<'l> {
    columns: Columns,
    clock: Clock,
    ledger: &'l mut Ledger,
}

impl Table for Log<'_> {
    fn columns(&mut self, names: &Names<'_>) -> Result<usize, String> {
        self.columns = Columns {
            time: names.find("time"),
            action: names.need("action")?,
            pointer: names.need("pointer")?,
            size: names.need("size")?,
            stream: names.find("stream"),
        };
        // Fields after the last named column are ignored.
        Ok(names.len() + 1)
    }

    fn row(&mut self, fields: &Fields<'_>) -> Result<(), BadLine> {
        let Self {
            columns,
            clock,
            ledger,
        } = self;
        let bytes = bytes(fields.get(columns.size).trim_ascii(), &mut ledger.findings)?;
        let time_us = match columns.time {
            None => 0,
            Some(column) => {
                let time = fields.get(column).trim_ascii();
                required(time, "time such as 13:05:59.000123", |time| clock.read(time))?
            }
        };
        let stream = optional(fields.find(columns.stream).trim_ascii(), "stream", hexadecimal)?;
        let address = match fields.get(columns.pointer).trim_ascii() {
            // C++ streams print the null pointer as words.
            b"(nil)" | b"nullptr" => 0,
            pointer => optional(pointer, "pointer", hexadecimal)?,
        };
        let stream = ledger.stream(stream);
        let (action, event_address) = match fields.get(columns.action).trim_ascii() {
            // An allocation at null is an empty request.
            b"allocate" | b"free" if address == 0 && bytes == 0 => {
                ledger.findings.count(Finding::ZeroBytes);
                return Ok(());
            }
            b"allocate" => (Action::Alloc, address),
            b"free" => (Action::Free, address),
            // The log does not contain the device's free bytes.
            b"allocate failure" => (Action::OutOfMemory, 0),
            other => {
                let what = "is not an action; the actions are allocate, free and allocate failure";
                return Err(format!("{} {what}", quoted(other)).into());
            }
        };
        let event = Event {
            time_us,
            bytes,
            address: event_address,
            stream,
            ..Event::new(action)
        };
        Ok(ledger.record(address, event)?)
    }
}
