//! Reads memory events from a chrome trace of `torch.profiler`.
//!
//! Most of the file is other events, and it may have many gigabytes. It is parsed as a stream and never held in memory.
//! Events named `[memory]` have a signed number of bytes and an address. A negative number is a free. The profiler
//! writes events by thread, so they are sorted by time before frees are paired by address.

use crate::json::{Json, JsonStop};
use crate::ledger::Ledgers;
use crate::lines::MOST_BYTES;
use crate::source::Source;
use crate::{Action, Event, Finding, Format, ReadError, Recording};

/// One `[memory]` event.
#[derive(Clone, Copy)]
struct Sample {
    time_us: f64,
    bytes: i64,
    address: u64,
    device: i32,
}

#[derive(Default)]
struct Samples {
    list: Vec<Sample>,
    unreadable: u64,
}

pub(crate) fn read(source: &mut Source<'_>, name: &str) -> Result<Recording, ReadError> {
    let mut samples = Samples::default();
    let mut json = Json::new(source);
    let cut = match file(&mut json, &mut samples) {
        Ok(()) => None,
        Err(JsonStop::Cut) => Some(json.offset()),
        Err(JsonStop::Error(error)) => return Err(error),
    };
    recording(samples, cut, name)
}

/// Reads the file, which is an object with `traceEvents` or the bare array.
fn file(json: &mut Json<'_, '_>, samples: &mut Samples) -> Result<(), JsonStop> {
    if json.take(b'[')? {
        return events(json, samples);
    }
    if !json.take(b'{')? {
        let what = "neither an object nor an array".to_owned();
        return Err(JsonStop::Error(ReadError::Json { what }));
    }
    let mut first = true;
    while json.another(&mut first, b'}')? {
        let is_events = json.key()? == b"traceEvents";
        match is_events && json.take(b'[')? {
            true => events(json, samples)?,
            false => json.skip()?,
        }
    }
    Ok(())
}

fn events(json: &mut Json<'_, '_>, samples: &mut Samples) -> Result<(), JsonStop> {
    let mut first = true;
    while json.another(&mut first, b']')? {
        match json.take(b'{')? {
            true => event(json, samples)?,
            false => json.skip()?,
        }
    }
    Ok(())
}

/// The fields of an event, including those of `args`.
#[derive(Default)]
struct Fields {
    is_memory: bool,
    time_us: Option<f64>,
    bytes: Option<i64>,
    address: Option<u64>,
    device_type: Option<i64>,
    device_id: Option<i32>,
}

fn event(json: &mut Json<'_, '_>, samples: &mut Samples) -> Result<(), JsonStop> {
    let mut fields = Fields::default();
    let mut first = true;
    while json.another(&mut first, b'}')? {
        match json.key()? {
            b"name" => fields.is_memory = json.scalar()? == Some("[memory]"),
            b"ts" => fields.time_us = json.scalar()?.and_then(|text| text.parse().ok()),
            b"args" => match json.take(b'{')? {
                true => arguments(json, &mut fields)?,
                false => json.skip()?,
            },
            _ => json.skip()?,
        }
    }
    if fields.is_memory {
        match fields.sample() {
            Some(sample) => {
                samples.list.push(sample);
                json.check_lines(samples.list.len())?;
            }
            None => samples.unreadable += 1,
        }
    }
    Ok(())
}

fn arguments(json: &mut Json<'_, '_>, fields: &mut Fields) -> Result<(), JsonStop> {
    let mut first = true;
    while json.another(&mut first, b'}')? {
        match json.key()? {
            b"Bytes" => fields.bytes = json.scalar()?.and_then(|text| text.parse().ok()),
            b"Addr" => fields.address = json.scalar()?.and_then(address),
            b"Device Type" => {
                fields.device_type = json.scalar()?.and_then(|text| text.parse().ok());
            }
            b"Device Id" => fields.device_id = json.scalar()?.and_then(|text| text.parse().ok()),
            _ => json.skip()?,
        }
    }
    Ok(())
}

/// Parses an address, which is decimal, or hexadecimal in a string. Some versions write signed numbers.
fn address(text: &str) -> Option<u64> {
    crate::lines::number(text.as_bytes()).or_else(|| text.parse::<i64>().ok().map(|int| int as u64))
}

impl Fields {
    fn sample(&self) -> Option<Sample> {
        // Type 0 is the CPU. Every other type is a device of one kind of accelerator.
        let device = match self.device_type {
            Some(0) | None => -1,
            Some(_) => self.device_id.filter(|&id| id >= 0).unwrap_or(0),
        };
        let time_us = self.time_us.filter(|time| time.is_finite() && *time >= 0.0)?;
        Some(Sample {
            time_us,
            bytes: self.bytes?,
            address: self.address?,
            device,
        })
    }
}

fn recording(samples: Samples, cut: Option<u64>, name: &str) -> Result<Recording, ReadError> {
    let Samples { mut list, unreadable } = samples;
    // The sort is stable, so events with the same time keep their order.
    list.sort_by(|a, b| a.time_us.total_cmp(&b.time_us));
    let mut ledgers = Ledgers::default();
    for sample in list {
        let ledger = ledgers.get(sample.device)?;
        let (bytes, action) = match sample.bytes {
            0 => {
                ledger.findings.count(Finding::ZeroBytes);
                continue;
            }
            1.. => (sample.bytes.unsigned_abs(), Action::Alloc),
            _ => (sample.bytes.unsigned_abs(), Action::Free),
        };
        if bytes > MOST_BYTES {
            ledger.findings.count(Finding::AbsurdBytes);
            continue;
        }
        let event = Event {
            // Fractions of a microsecond are used for the order of events and then dropped.
            time_us: sample.time_us as u64,
            bytes,
            address: sample.address,
            ..Event::new(action)
        };
        ledger.record(sample.address, event)?;
    }
    let format = Format::ChromeTrace;
    let recording = ledgers.finish(name, format, &[], cut, |ledger| {
        ledger.findings.add(Finding::UnreadableEvents, unreadable);
    });
    recording.ok_or(ReadError::NoMemoryEvents { format })
}
