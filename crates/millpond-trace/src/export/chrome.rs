//! Writes a chrome trace, which most trace viewers open. Live and reserved bytes are counters, and the lifetime of each
//! block is an asynchronous slice. `[memory]` events have the form that `torch.profiler` writes, so that the file can
//! be read back.

use super::events::{Event, Source};
use super::stacks::clean;
use super::{ExportError, Exported};
use crate::hash::Map;
use crate::recording::Kind;
use serde_json::{Value, json};
use std::io::{self, Write};

pub(super) fn write(source: &Source<'_>, out: &mut dyn Write) -> Result<Exported, ExportError> {
    let mut file = ChromeExporter {
        source,
        out,
        first: true,
        pid: source.pid(),
        sums: Map::default(),
        places: super::segments::Places::default(),
    };
    file.begin()?;
    let mut events = 0;
    source.walk(|event| {
        events += 1;
        Ok(file.event(event)?)
    })?;
    writeln!(file.out, "\n]}}")?;
    Ok(Exported::new(
        events,
        "threads, streams, stacks, which frees waited for streams",
    ))
}

/// The byte counts of a pool.
#[derive(Clone, Copy, Default)]
struct Sums {
    requested: u64,
    reserved: u64,
}

struct ChromeExporter<'a, 's> {
    source: &'a Source<'s>,
    out: &'a mut dyn Write,
    first: bool,
    pid: i32,
    sums: Map<u32, Sums>,
    places: super::segments::Places,
}

impl ChromeExporter<'_, '_> {
    fn begin(&mut self) -> io::Result<()> {
        writeln!(self.out, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
        let name = clean(self.source.program()).into_owned();
        let pid = self.pid;
        self.write(&json!({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}))
    }

    fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
        let row = &event.row;
        let time = micros(row.time);
        match row.kind {
            Kind::Alloc | Kind::Free | Kind::FreeRequested => self.block(event, &time),
            Kind::FreeCompleted => {
                self.places.of(row);
                Ok(())
            }
            Kind::Reserve | Kind::Release => {
                let sums = self.sums.entry(row.pool).or_default();
                sums.reserved = match row.kind {
                    Kind::Reserve => sums.reserved.saturating_add(row.bytes),
                    _ => sums.reserved.saturating_sub(row.bytes),
                };
                self.counter(row.pool, &time)
            }
            Kind::Refused => self.instant("p", &format!("refused {} bytes", row.requested), &time),
            Kind::Mark => self.instant("g", &clean(event.text.unwrap_or("mark")), &time),
            Kind::Step => self.instant("g", &format!("step {}", row.bytes), &time),
            _ => Ok(()),
        }
    }

    /// Writes a point in time of the process (`p`) or of all processes (`g`).
    fn instant(&mut self, scope: &str, name: &str, time: &Value) -> io::Result<()> {
        let pid = self.pid;
        self.write(&json!({"ph": "i", "s": scope, "name": name, "pid": pid, "tid": 0, "ts": time}))
    }

    fn block(&mut self, event: &Event<'_>, time: &Value) -> io::Result<()> {
        let row = &event.row;
        let pid = self.pid;
        let begins = row.kind == Kind::Alloc;
        let sums = self.sums.entry(row.pool).or_default();
        let (bytes, phase) = if begins {
            sums.requested = sums.requested.saturating_add(row.requested);
            (i128::from(row.requested), "b")
        } else {
            sums.requested = sums.requested.saturating_sub(row.requested);
            (-i128::from(row.requested), "e")
        };
        let (live, reserved) = (sums.requested, sums.reserved);
        let address = self.places.of(row);
        let device = self.source.device(row.pool);
        let tag = clean(self.source.history.definitions.tag(row.tag)).into_owned();
        let name = if tag.is_empty() { "block" } else { &tag };
        self.write(&json!({
            "ph": phase, "cat": "memory", "id": format!("{:#x}", row.id), "name": name, "pid": pid, "tid": 0,
            "ts": time, "args": {"requested": row.requested, "allocated": row.bytes},
        }))?;
        // In the profiler, device type 0 is the CPU and 1 is CUDA.
        self.write(&json!({
            "ph": "i", "s": "t", "name": "[memory]", "pid": pid, "tid": 0, "ts": time, "args": {
                "Total Reserved": reserved, "Total Allocated": live, "Bytes": bytes as i64, "Addr": address,
                "Device Type": i32::from(device >= 0), "Device Id": device,
            },
        }))?;
        self.counter(row.pool, time)
    }

    fn counter(&mut self, pool: u32, time: &Value) -> io::Result<()> {
        let sums = self.sums.get(&pool).copied().unwrap_or_default();
        let name = clean(&self.source.pool_name(pool)).into_owned();
        let pid = self.pid;
        self.write(&json!({
            "ph": "C", "name": name, "pid": pid, "ts": time,
            "args": {"live": sums.requested, "reserved": sums.reserved},
        }))
    }

    fn write(&mut self, event: &Value) -> io::Result<()> {
        if !std::mem::take(&mut self.first) {
            self.out.write_all(b",\n")?;
        }
        serde_json::to_writer(&mut *self.out, event)?;
        Ok(())
    }
}

/// Converts nanoseconds to microseconds with a fraction.
fn micros(nanos: u64) -> Value {
    match nanos % 1_000 {
        0 => json!(nanos / 1_000),
        _ => json!(nanos as f64 / 1e3),
    }
}
