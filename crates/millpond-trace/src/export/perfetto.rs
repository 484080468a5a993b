//! Writes track events for Perfetto's viewer and trace processor: counters of each pool and device on one axis,
//! allocations with their stacks weighted by bytes, marks, steps and refusals.

use super::events::{Event, Source};
use super::protobuf::Message;
use super::stacks::{Numbers, Origin, clean};
use super::{ExportError, Exported};
use crate::hash::Map;
use crate::history::Frame;
use crate::recording::{Gauge, Kind};
use std::io::Write;

/// Field numbers of `perfetto.protos`.
mod field {
    pub(super) const PACKET: u32 = 1;
    pub(super) const TIMESTAMP: u32 = 8;
    pub(super) const SEQUENCE: u32 = 10;
    pub(super) const TRACK_EVENT: u32 = 11;
    pub(super) const INTERNED: u32 = 12;
    pub(super) const SEQUENCE_FLAGS: u32 = 13;
    pub(super) const TRACK_DESCRIPTOR: u32 = 60;
}

/// Flag of the first packet of a sequence, which clears the interned data.
const CLEARED: u64 = 1;
const NEEDS_STATE: u64 = 2;
const BYTES: u64 = 3;

/// Types of track events.
const BEGIN: u64 = 1;
const END: u64 = 2;
const INSTANT: u64 = 3;
const COUNTER: u64 = 4;

/// The subject of a track. The number of a track is derived from this value.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Track {
    Process,
    Device(i32),
    Pool(u32),
    /// The allocations of a pool.
    Allocations(u32),
    OfPool(u32, Counted),
    OfDevice(i32, Counted),
    Thread(u32),
    Marks,
}

/// The quantity of a counter.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Counted {
    Requested,
    Allocated,
    Reserved,
    Gauge(Gauge),
}

impl Counted {
    const fn name(self) -> &'static str {
        match self {
            Self::Requested => "requested",
            Self::Allocated => "allocated",
            Self::Reserved => "reserved",
            Self::Gauge(gauge) => match gauge {
                Gauge::Requested => "requested, as counted",
                Gauge::Allocated => "allocated, as counted",
                Gauge::Active => "active, as counted",
                Gauge::Reserved => "reserved, as counted",
                Gauge::DeviceUsed => "used by all processes, as reported by the driver",
                Gauge::DeviceTotal => "memory, as reported by the driver",
                Gauge::Resident => "resident",
                Gauge::Hits => "allocations without the source",
                Gauge::Allocations => "allocations",
            },
        }
    }

    const fn is_bytes(self) -> bool {
        !matches!(self, Self::Gauge(Gauge::Hits | Gauge::Allocations))
    }
}

pub(super) fn write(source: &Source<'_>, out: &mut dyn Write) -> Result<Exported, ExportError> {
    let mut file = PerfettoExporter {
        source,
        out,
        tracks: Numbers::default(),
        stacks: Numbers::default(),
        frames: Numbers::default(),
        names: Numbers::default(),
        paths: Numbers::default(),
        sums: Map::default(),
        begun: false,
    };
    let mut events = 0;
    source.walk(|event| {
        events += 1;
        file.event(event)
    })?;
    Ok(Exported::new(
        events,
        "addresses, streams, and the times when single blocks were freed, which only the counters show",
    ))
}

struct PerfettoExporter<'a, 's> {
    source: &'a Source<'s>,
    out: &'a mut dyn Write,
    tracks: Numbers<Track>,
    stacks: Numbers<Origin>,
    frames: Numbers<Frame>,
    names: Numbers<String>,
    paths: Numbers<String>,
    /// The current value of each counter.
    sums: Map<Track, u64>,
    begun: bool,
}

impl PerfettoExporter<'_, '_> {
    fn event(&mut self, event: &Event<'_>) -> Result<(), ExportError> {
        let row = &event.row;
        let (time, pool) = (row.time, row.pool);
        match row.kind {
            Kind::Alloc => {
                self.allocation(event)?;
                self.count(time, pool, Counted::Requested, row.requested, true)?;
                self.count(time, pool, Counted::Allocated, row.bytes, true)
            }
            Kind::Free | Kind::FreeRequested => {
                self.count(time, pool, Counted::Requested, row.requested, false)?;
                self.count(time, pool, Counted::Allocated, row.bytes, false)
            }
            Kind::Reserve => self.count(time, pool, Counted::Reserved, row.bytes, true),
            Kind::Release => self.count(time, pool, Counted::Reserved, row.bytes, false),
            Kind::Gauge => self.gauge(event),
            Kind::Refused => {
                let name = format!("refused {} bytes", row.requested);
                let track = self.track(Track::Allocations(pool))?;
                self.instant(time, track, &name)
            }
            Kind::Mark => self.mark(time, &clean(event.text.unwrap_or("mark"))),
            Kind::Step => self.mark(time, &format!("step {}", row.bytes)),
            Kind::Lost => self.mark(time, &format!("{} events are missing here", row.id)),
            _ => Ok(()),
        }
    }

    /// Writes an allocation as a slice of zero length, because only slices have weights. It has the stack, the bytes
    /// and the known facts of the block.
    fn allocation(&mut self, event: &Event<'_>) -> Result<(), ExportError> {
        let row = &event.row;
        let track = self.track(Track::Allocations(row.pool))?;
        if row.thread != 0 {
            self.track(Track::Thread(row.thread))?;
        }
        let mut interned = Message::new();
        let stack = self.stack(Origin::of(row), &mut interned);
        let tag = clean(self.source.history.definitions.tag(row.tag)).into_owned();
        let mut slice = Message::new();
        slice
            .number(9, BEGIN)
            .number(11, track)
            .text(22, "allocation")
            .text(23, if tag.is_empty() { "alloc" } else { &tag })
            .number(56, stack)
            .double(57, row.requested as f64);
        for (name, value) in [
            ("id", row.id),
            ("requested", row.requested),
            ("allocated", row.bytes),
        ] {
            slice.nested(4, |note| {
                note.text(10, name).number(3, value);
            });
        }
        if row.thread != 0 {
            let name = self.source.history.definitions.thread(row.thread);
            let mut note = Message::new();
            note.text(10, "thread").text(6, &clean(name));
            slice.message(4, &note);
        }
        self.packet(row.time, &slice, &interned)?;
        let mut end = Message::new();
        end.number(9, END).number(11, track);
        self.packet(row.time, &end, &Message::new())
    }

    /// Returns the number of a stack. A new stack is written with its frames.
    fn stack(&mut self, origin: Origin, interned: &mut Message) -> u64 {
        let (number, new) = self.stacks.of(origin);
        let id = u64::from(number) + 1;
        if new {
            let mut stack = Message::new();
            stack.number(1, id);
            // The outermost frame comes first.
            for frame in self.source.frames(origin).into_iter().rev() {
                stack.number(2, self.frame(frame, interned));
            }
            interned.message(7, &stack);
        }
        id
    }

    fn frame(&mut self, frame: Frame, interned: &mut Message) -> u64 {
        let (number, new) = self.frames.of(frame.clone());
        let id = u64::from(number) + 1;
        if new {
            let mut told = Message::new();
            told.number(1, id)
                .number(2, word(&mut self.names, frame.function, 5, interned));
            if !frame.file.is_empty() {
                told.number(5, word(&mut self.paths, frame.file, 18, interned));
            }
            if frame.line > 0 {
                told.number(6, u64::from(frame.line));
            }
            interned.message(6, &told);
        }
        id
    }

    /// Adds to the counters of a pool and of its device.
    fn count(
        &mut self,
        time: u64,
        pool: u32,
        what: Counted,
        bytes: u64,
        more: bool,
    ) -> Result<(), ExportError> {
        if bytes == 0 {
            return Ok(());
        }
        let device = self.source.device(pool);
        for track in [Track::OfPool(pool, what), Track::OfDevice(device, what)] {
            let sum = self.sums.entry(track).or_insert(0);
            *sum = match more {
                true => sum.saturating_add(bytes),
                false => sum.saturating_sub(bytes),
            };
            let value = *sum;
            self.counter(time, track, value)?;
        }
        Ok(())
    }

    fn gauge(&mut self, event: &Event<'_>) -> Result<(), ExportError> {
        let row = &event.row;
        let Some(gauge) = Gauge::from_number(row.tag) else {
            return Ok(());
        };
        let what = Counted::Gauge(gauge);
        let track = match (row.pool, gauge) {
            (0, Gauge::DeviceUsed | Gauge::DeviceTotal) => Track::OfDevice(row.stream as i32, what),
            (0, _) => Track::OfDevice(-1, what),
            (pool, _) => Track::OfPool(pool, what),
        };
        self.counter(row.time, track, row.bytes)
    }

    fn counter(&mut self, time: u64, track: Track, value: u64) -> Result<(), ExportError> {
        let mut counter = Message::new();
        counter
            .number(9, COUNTER)
            .number(11, self.track(track)?)
            .signed(30, i64::try_from(value).unwrap_or(i64::MAX));
        self.packet(time, &counter, &Message::new())
    }

    fn mark(&mut self, time: u64, name: &str) -> Result<(), ExportError> {
        let track = self.track(Track::Marks)?;
        self.instant(time, track, name)
    }

    fn instant(&mut self, time: u64, track: u64, name: &str) -> Result<(), ExportError> {
        let mut instant = Message::new();
        instant.number(9, INSTANT).number(11, track).text(23, name);
        self.packet(time, &instant, &Message::new())
    }

    /// Returns the number of a track. A new track is described after its parent.
    fn track(&mut self, track: Track) -> Result<u64, ExportError> {
        let parent = self.parent(track).map(|parent| self.track(parent));
        let parent = parent.transpose()?;
        let (number, new) = self.tracks.of(track);
        let id = u64::from(number) + 1;
        if new {
            let mut described = Message::new();
            described.number(1, id);
            if let Some(parent) = parent {
                described.number(5, parent);
            }
            self.describe(track, &mut described);
            let mut packet = Message::new();
            packet.message(field::TRACK_DESCRIPTOR, &described);
            self.write(packet)?;
        }
        Ok(id)
    }

    fn parent(&self, track: Track) -> Option<Track> {
        Some(match track {
            Track::Process => return None,
            Track::Device(_) | Track::Thread(_) | Track::Marks => Track::Process,
            Track::Pool(pool) => Track::Device(self.source.device(pool)),
            Track::Allocations(pool) | Track::OfPool(pool, _) => Track::Pool(pool),
            Track::OfDevice(device, _) => Track::Device(device),
        })
    }

    fn describe(&self, track: Track, into: &mut Message) {
        let pid = i64::from(self.source.pid());
        let name = match track {
            Track::Process => {
                let mut process = Message::new();
                process.signed(1, pid).text(6, &clean(self.source.program()));
                into.message(3, &process);
                return;
            }
            Track::Thread(number) => {
                let name = clean(self.source.history.definitions.thread(number));
                let mut thread = Message::new();
                // In Perfetto, the thread whose number equals the process id is the main thread.
                let tid = i64::from(number) + pid;
                thread.signed(1, pid).signed(2, tid).text(5, &name);
                into.message(4, &thread);
                return;
            }
            Track::Device(device) => Source::device_name(device),
            Track::Pool(pool) => clean(&self.source.pool_name(pool)).into_owned(),
            Track::Allocations(_) => "allocations".to_owned(),
            Track::OfPool(_, what) | Track::OfDevice(_, what) => what.name().to_owned(),
            Track::Marks => "marks".to_owned(),
        };
        into.text(2, &name);
        let (device, what) = match track {
            Track::OfPool(pool, what) => (self.source.device(pool), what),
            Track::OfDevice(device, what) => (device, what),
            _ => return,
        };
        let mut counter = Message::new();
        if what.is_bytes() {
            counter.number(3, BYTES);
            counter.text(7, &format!("memory of {}", Source::device_name(device)));
        }
        into.message(8, &counter);
    }

    fn packet(&mut self, time: u64, event: &Message, interned: &Message) -> Result<(), ExportError> {
        let mut packet = Message::new();
        packet.number(field::TIMESTAMP, time);
        if !interned.bytes().is_empty() {
            packet.message(field::INTERNED, interned);
        }
        packet.message(field::TRACK_EVENT, event);
        self.write(packet)
    }

    fn write(&mut self, mut packet: Message) -> Result<(), ExportError> {
        let flags = if std::mem::replace(&mut self.begun, true) {
            NEEDS_STATE
        } else {
            CLEARED
        };
        packet
            .number(field::SEQUENCE, 1)
            .number(field::SEQUENCE_FLAGS, flags);
        let mut whole = Message::new();
        whole.message(field::PACKET, &packet);
        self.out.write_all(whole.bytes())?;
        Ok(())
    }
}

/// Returns the number of a text. A new text is written.
fn word(words: &mut Numbers<String>, text: String, field: u32, interned: &mut Message) -> u64 {
    let (number, new) = words.of(text.clone());
    let id = u64::from(number) + 1;
    if new {
        let mut told = Message::new();
        told.number(1, id).text(2, &text);
        interned.message(field, &told);
    }
    id
}
