//! Converts the rows of a recording to consistent events, so that writers need no checks of their own.
//!
//! A free repeats all facts of its allocation, including its time and origin. Every block that ends has begun, and ends
//! once. A block that waits for streams has been freed before. Keyframes are resolved: if one contradicts the known
//! state, blocks with missing events begin or end there. Blocks that are live at the start of the selected time range
//! are allocated at the start.

use super::{ExportError, ExportOptions};
use crate::hash::Map;
use crate::history::{Flow, History, Symbols};
use crate::recording::{Gauge, Kind, Row};
use std::cell::Cell;

/// Number of rows between two progress reports.
const PROGRESS: u64 = 1 << 16;
/// Bytes for each live block: an entry here and one in the exporter's table, doubled because the tables grow.
const LIVING: u64 = 2 * size_of::<(u64, Row)>() as u64 + 40;

/// One event.
pub(super) struct Event<'a> {
    /// A row of a kind between [`Kind::Alloc`] and [`Kind::Step`]. A row that ends a block has the facts of its
    /// allocation.
    pub(super) row: Row,
    /// The time when its block was allocated.
    pub(super) began: u64,
    /// The text of a mark.
    pub(super) text: Option<&'a str>,
}

/// A recording and the selected part of it.
pub(super) struct Source<'a> {
    pub(super) history: &'a History,
    pub(super) symbols: &'a dyn Symbols,
    pub(super) options: &'a ExportOptions<'a>,
    /// Counts of the last walk.
    told: Cell<EventCounts>,
    /// Bytes that the exporter keeps for the events.
    kept: Cell<u64>,
}

/// Counts of inconsistencies in a recording.
#[derive(Clone, Copy, Default)]
struct EventCounts {
    unknown: u64,
    mended: u64,
    lost: u64,
    /// Number of events of pools and devices. Marks and steps do not count, because they belong to all.
    memory: u64,
}

impl<'a> Source<'a> {
    pub(super) fn new(
        history: &'a History,
        symbols: &'a dyn Symbols,
        options: &'a ExportOptions<'a>,
    ) -> Self {
        Self {
            history,
            symbols,
            options,
            told: Cell::default(),
            kept: Cell::default(),
        }
    }

    /// Adds to the bytes that the exporter keeps for the events. The walk ends with an error when they exceed the
    /// recording's allowance.
    pub(super) fn keep(&self, bytes: u64) {
        self.kept.set(self.kept.get().saturating_add(bytes));
    }

    /// Returns the device of a pool, or -1 if it is unknown.
    pub(super) fn device(&self, pool: u32) -> i32 {
        self.history.definitions.pool(pool).map_or(-1, |pool| pool.device)
    }

    /// Returns the name of a device.
    pub(super) fn device_name(device: i32) -> String {
        match device {
            -1 => "host".to_owned(),
            device => format!("device {device}"),
        }
    }

    /// Returns the name of a pool, including its device.
    pub(super) fn pool_name(&self, number: u32) -> String {
        let Some(pool) = self.history.definitions.pool(number) else {
            return "unknown pool".to_owned();
        };
        let memory = match (pool.memory.as_str(), pool.device) {
            ("", device) => Self::device_name(device),
            (memory, ..=-1) => memory.to_owned(),
            (memory, device) => format!("{memory}:{device}"),
        };
        match pool.name.as_str() {
            "" => memory,
            name => format!("{memory} {name}"),
        }
    }

    /// Returns a fact about the recording.
    pub(super) fn fact(&self, name: &str) -> Option<&str> {
        let found = self.history.facts.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Returns the name of the recorded program.
    pub(super) fn program(&self) -> &str {
        self.fact("program")
            .filter(|name| !name.is_empty())
            .unwrap_or("program")
    }

    /// Returns the process id of the recorded program, or 1 if it is unknown.
    pub(super) fn pid(&self) -> i32 {
        self.fact("pid")
            .and_then(|pid| pid.parse().ok())
            .filter(|pid| *pid > 0)
            .unwrap_or(1)
    }

    /// Returns the start of the recording in nanoseconds since 1970, or 0 if it is unknown.
    pub(super) fn start(&self) -> u64 {
        self.history.start().unwrap_or(0)
    }

    /// Describes the selected part, as a phrase that follows "no events".
    pub(super) fn asked_for(&self) -> String {
        let mut asked = String::new();
        if let Some(device) = self.options.device {
            asked.push_str(&format!(" on {}", Self::device_name(device)));
        }
        if self.options.from.is_some() || self.options.to.is_some() {
            asked.push_str(" in that time range");
        }
        asked
    }

    /// Returns whether the last walk met no event of the selected pools and devices.
    pub(super) fn is_empty(&self) -> bool {
        self.told.get().memory == 0
    }

    /// Returns the losses that every format has because the recording itself lacks the data.
    pub(super) fn lost(&self) -> Vec<String> {
        let told = self.told.get();
        let counts = [
            (told.lost, "events that the recording itself reports as missing"),
            (told.unknown, "frees of blocks without a recorded allocation"),
            (
                told.mended,
                "times of blocks that only a later list of live blocks contains",
            ),
            (
                self.history.definitions.dropped,
                "names beyond the limit for all names together",
            ),
        ];
        let some = counts.into_iter().filter(|(count, _)| *count > 0);
        some.map(|(count, what)| format!("{count} {what}")).collect()
    }

    /// Calls `each` for the selected events, in order.
    pub(super) fn walk(
        &self,
        mut each: impl FnMut(&Event<'_>) -> Result<(), ExportError>,
    ) -> Result<(), ExportError> {
        let mut sorted = Sorted {
            source: self,
            each: &mut each,
            live: Map::default(),
            waiting: Map::default(),
            reserved: Map::default(),
            keyframe: None,
            open: self.options.from.is_none(),
            told: EventCounts::default(),
        };
        let until = self.options.to.unwrap_or(u64::MAX);
        let all = self.history.len;
        let allowance = self.history.allowance();
        let mut rows = 0;
        let mut failed = None;
        self.history.walk(|row, text| {
            rows += 1;
            if rows % PROGRESS == 0
                && let Some(progress) = self.options.progress
            {
                progress(rows, all);
            }
            if row.kind != Kind::Live && row.time > until {
                return Flow::Stop;
            }
            let told = sorted.row(row, text);
            let blocks = allowance.check_blocks(LIVING * sorted.living());
            let kept = blocks.and_then(|()| allowance.check("its events", self.kept.get()));
            match told.and(kept.map_err(ExportError::from)) {
                Ok(()) => Flow::On,
                Err(error) => {
                    failed = Some(error);
                    Flow::Stop
                }
            }
        })?;
        if failed.is_none() {
            failed = sorted.finish().err();
        }
        self.told.set(sorted.told);
        failed.map_or(Ok(()), Err)
    }
}

/// All blocks that callers hold, as listed by a keyframe.
struct Keyframe {
    time: u64,
    rows: u64,
    found: Map<u64, Row>,
}

/// Converts rows to events.
struct Sorted<'a, 's, E> {
    source: &'a Source<'s>,
    each: &'a mut E,
    live: Map<u64, Row>,
    /// Blocks that were freed but that streams still use.
    waiting: Map<u64, Row>,
    /// Bytes of each pool before the selected time range begins.
    reserved: Map<u32, u64>,
    keyframe: Option<Keyframe>,
    /// Whether the selected time range has begun.
    open: bool,
    told: EventCounts,
}

impl<E: FnMut(&Event<'_>) -> Result<(), ExportError>> Sorted<'_, '_, E> {
    /// Returns the number of blocks in the tables.
    fn living(&self) -> u64 {
        let named = self.keyframe.as_ref().map_or(0, |keyframe| keyframe.found.len());
        (self.live.len() + self.waiting.len() + named) as u64
    }

    fn row(&mut self, row: &Row, text: Option<&str>) -> Result<(), ExportError> {
        if row.kind == Kind::Live {
            if let Some(keyframe) = &mut self.keyframe {
                // Rows of other devices also count, because the count shows whether the list is complete.
                keyframe.rows = keyframe.rows.saturating_sub(1);
                if self.source.chosen(row) {
                    keyframe.found.insert(row.id, *row);
                }
            }
            return Ok(());
        }
        self.resolve()?;
        if !self.open && row.time >= self.source.options.from.unwrap_or(0) {
            self.begin()?;
        }
        if row.kind == Kind::Keyframe {
            self.keyframe = Some(Keyframe {
                time: row.time,
                rows: row.bytes,
                found: Map::default(),
            });
            return Ok(());
        }
        if !self.source.chosen(row) {
            return Ok(());
        }
        self.event(row, text)
    }

    fn event(&mut self, row: &Row, text: Option<&str>) -> Result<(), ExportError> {
        match row.kind {
            Kind::Alloc => return self.alloc(row, row.time),
            Kind::Free | Kind::FreeRequested | Kind::FreeCompleted => return self.end(row),
            Kind::Reserve if !self.open => {
                let sum = self.reserved.entry(row.pool).or_insert(0);
                *sum = sum.saturating_add(row.bytes);
            }
            Kind::Release if !self.open => {
                let sum = self.reserved.entry(row.pool).or_insert(0);
                *sum = sum.saturating_sub(row.bytes);
            }
            Kind::Lost => self.told.lost = self.told.lost.saturating_add(row.id),
            Kind::Reserve | Kind::Release | Kind::Refused | Kind::Mark | Kind::Gauge | Kind::Step => {}
            // Definitions and the end are not passed to writers.
            _ => return Ok(()),
        }
        self.tell(*row, row.time, text)
    }

    fn alloc(&mut self, row: &Row, time: u64) -> Result<(), ExportError> {
        if let Some(older) = self.live.insert(row.id, *row) {
            self.told.mended += 1;
            self.tell(older.at(Kind::Free, time), older.time, None)?;
        }
        self.tell(row.at(Kind::Alloc, time), row.time, None)
    }

    /// Ends a block. The event has the facts of the allocation with its own time and thread.
    fn end(&mut self, row: &Row) -> Result<(), ExportError> {
        let blocks = match row.kind {
            Kind::FreeCompleted => &mut self.waiting,
            _ => &mut self.live,
        };
        let Some(block) = blocks.remove(&row.id) else {
            // A block that began before the time range and is unknown is not a loss.
            self.told.unknown += u64::from(self.open && row.id != 0);
            return Ok(());
        };
        if row.kind == Kind::FreeRequested {
            self.waiting.insert(row.id, block);
        }
        let event = Row {
            thread: row.thread,
            ..block
        };
        self.tell(event.at(row.kind, row.time), block.time, None)
    }

    fn tell(&mut self, row: Row, began: u64, text: Option<&str>) -> Result<(), ExportError> {
        if !self.open {
            return Ok(());
        }
        let of_all = matches!(row.kind, Kind::Mark | Kind::Step | Kind::Lost);
        self.told.memory += u64::from(!of_all);
        (self.each)(&Event { row, began, text })
    }

    /// Begins the selected time range. The state at that time is written as if it was created at that time.
    fn begin(&mut self) -> Result<(), ExportError> {
        self.open = true;
        let time = self.source.options.from.unwrap_or(0);
        let mut reserved: Vec<_> = self.reserved.drain().filter(|(_, bytes)| *bytes > 0).collect();
        reserved.sort_unstable();
        for (pool, bytes) in reserved {
            let row = Row {
                pool,
                bytes,
                ..Row::new(Kind::Reserve, time)
            };
            self.tell(row, time, None)?;
        }
        let mut blocks: Vec<(Row, bool)> = self.live.values().map(|row| (*row, false)).collect();
        blocks.extend(self.waiting.values().map(|row| (*row, true)));
        blocks.sort_unstable_by_key(|(row, _)| row.id);
        for (block, waits) in blocks {
            self.tell(block.at(Kind::Alloc, time), block.time, None)?;
            if waits {
                self.tell(block.at(Kind::FreeRequested, time), block.time, None)?;
            }
        }
        Ok(())
    }

    /// Compares the known state with a complete keyframe.
    fn resolve(&mut self) -> Result<(), ExportError> {
        let Some(mut keyframe) = self.keyframe.take() else {
            return Ok(());
        };
        let time = keyframe.time;
        // An incomplete list says nothing about blocks that it does not contain.
        if keyframe.rows == 0 {
            let mut gone: Vec<u64> = self.live.keys().copied().collect();
            gone.retain(|id| !keyframe.found.contains_key(id));
            gone.sort_unstable();
            for id in gone {
                if let Some(block) = self.live.remove(&id) {
                    self.told.mended += 1;
                    self.tell(block.at(Kind::Free, time), block.time, None)?;
                }
            }
        }
        keyframe.found.retain(|id, _| !self.live.contains_key(id));
        let mut new: Vec<Row> = keyframe.found.into_values().collect();
        new.sort_unstable_by_key(|row| row.id);
        for row in new {
            self.told.mended += 1;
            self.waiting.remove(&row.id);
            self.alloc(&row, time)?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), ExportError> {
        self.resolve()?;
        if !self.open && self.source.history.duration >= self.source.options.from.unwrap_or(0) {
            self.begin()?;
        }
        Ok(())
    }
}

impl Source<'_> {
    /// Returns whether a row belongs to the selected device, or to no device.
    fn chosen(&self, row: &Row) -> bool {
        let Some(device) = self.options.device else {
            return true;
        };
        match row.kind {
            Kind::Mark | Kind::Step | Kind::Lost => true,
            Kind::Gauge if row.pool == 0 => match Gauge::from_number(row.tag) {
                Some(Gauge::DeviceUsed | Gauge::DeviceTotal) => row.stream as i32 == device,
                _ => device == -1,
            },
            _ => self.device(row.pool) == device,
        }
    }
}
