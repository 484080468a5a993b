//! Writes a memory snapshot in the format of `torch.cuda.memory._dump_snapshot`, for PyTorch's viewers and other tools
//! that read it.
//!
//! A snapshot has a trace for each device and the state at its end. The host's memory is an additional device, the last
//! one. Viewers identify blocks by address, add up the sizes of a segment's blocks to compute their positions, and look
//! up the segment of every block. The module `segments` ensures that this works for any recording.

use super::csv::pools;
use super::events::{Event, Source};
use super::pickle::{List, Pickle};
use super::segments::{Block, Places, Ranges, Segment, size};
use super::stacks::{Numbers, Origin, clean};
use super::{ExportError, Exported};
use crate::hash::Map;
use crate::history::{Frame, History};
use crate::recording::{Kind, Row};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Maximum device number in the file. Devices with higher numbers are numbered after the others.
const MOST_DEVICES: i32 = 1024;
/// Number of categories with a colour of their own. The viewer has ten colours, and one is for the rest.
const MOST_CATEGORIES: u32 = 9;
/// The category that must exist if there are any categories. Without it, one version of the viewer throws an exception.
const UNKNOWN: &str = "unknown";
/// The most events of several devices that one walk gathers. A device with more events has its own walk.
const GATHERED: u64 = 1 << 19;
/// The bytes kept for the blocks of one origin.
const ORIGIN: u64 = 256;
/// The bytes for the ranges around a block.
const RANGE: u64 = 64;
/// The largest integer that the viewer represents exactly.
const EXACT: u64 = 1 << 53;

pub(super) fn write(source: &Source<'_>, out: &mut dyn Write) -> Result<Exported, ExportError> {
    let devices = look(source)?;
    let slots = slots(&devices);
    let mut lost = vec!["threads, times below a microsecond, gauges and marks".to_owned()];
    let mut snapshot = Snapshot {
        source,
        pickle: Pickle::new(out)?,
        stacks: Map::default(),
        said: Map::default(),
        pools: pools(source),
        categories: Numbers::default(),
    };
    let pickle = &mut snapshot.pickle;
    pickle.begin_dict()?;
    pickle.text("device_traces")?;
    let events = snapshot.traces(&devices, &slots)?;
    snapshot.pickle.text("segments")?;
    let mut segments = snapshot.pickle.begin_list()?;
    for (device, seen) in devices {
        let slot = slots.get(&device).copied().unwrap_or(0);
        lost.extend(seen.words(source, device, slot));
        let (ranges, left_out) = seen.ranges.segments(seen.blocks.into_values().collect());
        if left_out > 0 {
            lost.push(format!("{left_out} blocks that overlap others"));
        }
        for segment in ranges {
            snapshot.pickle.item(&mut segments)?;
            snapshot.segment(slot, &segment, seen.ranges.paged)?;
        }
    }
    snapshot.pickle.end_list(segments)?;
    snapshot.settings()?;
    snapshot.pickle.end_dict()?;
    snapshot.pickle.finish()?;
    Ok(Exported { events, lost })
}

/// The state that a device's events lead to.
#[derive(Default)]
struct Seen {
    events: u64,
    ranges: Ranges,
    /// Blocks that are live or wait, by serial number.
    blocks: Map<u64, Block>,
    places: Places,
    empty: u64,
    beyond: bool,
}

impl Seen {
    /// `is_older` is whether the event allocates a block from before the recording.
    fn enter(&mut self, event: &Event<'_>, is_older: bool) {
        let row = &event.row;
        self.events += u64::from(!is_older);
        match row.kind {
            Kind::Reserve => self.ranges.reserve(row),
            Kind::Release => self.ranges.release(row),
            Kind::Alloc => {
                let address = self.places.of(row);
                self.beyond |= address >= EXACT;
                self.ranges.block(address, size(row));
                let block = Block {
                    row: *row,
                    address,
                    waits: false,
                };
                self.blocks.insert(row.id, block);
            }
            Kind::FreeRequested => {
                if let Some(block) = self.blocks.get_mut(&row.id) {
                    block.waits = true;
                }
            }
            _ => {
                self.places.of(row);
                self.blocks.remove(&row.id);
            }
        }
    }

    /// Describes what is lost of this device.
    fn words(&self, source: &Source<'_>, device: i32, slot: u64) -> Vec<String> {
        let name = Source::device_name(device);
        let mut words = Vec::new();
        if i128::from(slot) != i128::from(device) {
            words.push(format!(
                "the number of {name}, which is device {slot} in the snapshot"
            ));
        }
        if !self.ranges.are_known() {
            words.push(format!(
                "the reserved memory of {name}: the segments are derived from its blocks"
            ));
        }
        let passed = self
            .events
            .saturating_sub(source.options.last.unwrap_or(u64::MAX));
        if passed > 0 {
            words.push(format!("the first {passed} events of {name}"));
        }
        if self.empty > 0 {
            words.push(format!("{} blocks of zero bytes", self.empty));
        }
        if self.beyond {
            words.push("the last digits of addresses above 2^53, in the web viewer".to_owned());
        }
        words
    }
}

/// A device's trace while it is being written.
struct DeviceTrace<'a> {
    device: i32,
    history: &'a History,
    seen: &'a Seen,
    places: Places,
    /// The number of first events that are not written, and the number of events seen so far.
    passed: u64,
    met: u64,
    /// The events to write, with their addresses, if one walk gathers several devices.
    rows: Vec<(Row, u64)>,
}

impl<'a> DeviceTrace<'a> {
    fn new(device: i32, seen: &'a Seen, source: &Source<'a>) -> Self {
        Self {
            device,
            history: source.history,
            seen,
            places: Places::default(),
            passed: seen
                .events
                .saturating_sub(source.options.last.unwrap_or(u64::MAX)),
            met: 0,
            rows: Vec::new(),
        }
    }

    /// Records an event of the device. Returns it with its address if it is to be written.
    fn take(&mut self, row: &Row) -> Option<(Row, u64)> {
        if entries(row, false).is_empty() {
            return None;
        }
        let is_of_range = is_of_range(row);
        // A refused request has the free bytes of the device in place of an address.
        let address = if is_of_range || row.kind == Kind::Refused {
            row.address
        } else {
            self.places.of(row)
        };
        if is_older(self.history, row) {
            return None;
        }
        self.met += 1;
        // Ranges are written only if the recorded ranges contain all blocks.
        let is_shown = !is_of_range || self.seen.ranges.are_known();
        (self.met > self.passed && is_shown).then_some((*row, address))
    }
}

/// Returns the entries that an event makes in a trace. There are none if a snapshot cannot contain it. `paged` is whether
/// ranges grow and shrink in parts.
fn entries(row: &Row, paged: bool) -> &'static [&'static str] {
    match row.kind {
        Kind::Alloc | Kind::Free | Kind::FreeRequested | Kind::FreeCompleted if size(row) == 0 => &[],
        Kind::Alloc => &["alloc"],
        Kind::Free => &["free_requested", "free_completed"],
        Kind::FreeRequested => &["free_requested"],
        Kind::FreeCompleted => &["free_completed"],
        Kind::Refused => &["oom"],
        Kind::Reserve if paged => &["segment_map"],
        Kind::Reserve => &["segment_alloc"],
        Kind::Release if paged => &["segment_unmap"],
        Kind::Release => &["segment_free"],
        _ => &[],
    }
}

/// Returns whether a row allocates a block from before the recording. A snapshot has no entry for it: readers find such blocks by
/// their frees and in the final state.
fn is_older(history: &History, row: &Row) -> bool {
    row.kind == Kind::Alloc && history.is_older(row.id)
}

/// Returns whether an event is about a range and not about a block.
fn is_of_range(row: &Row) -> bool {
    matches!(row.kind, Kind::Reserve | Kind::Release)
}

/// Reads all events once, to find the state at the end and the number of entries.
fn look(source: &Source<'_>) -> Result<BTreeMap<i32, Seen>, ExportError> {
    let mut devices: BTreeMap<i32, Seen> = BTreeMap::new();
    source.walk(|event| {
        let row = &event.row;
        if !entries(row, false).is_empty() {
            source.keep(if row.kind == Kind::Alloc { RANGE } else { 0 });
            let seen = devices.entry(source.device(row.pool)).or_default();
            seen.enter(event, is_older(source.history, row));
        } else if row.kind == Kind::Alloc {
            devices.entry(source.device(row.pool)).or_default().empty += 1;
        }
        Ok(())
    })?;
    Ok(devices)
}

/// Returns the number of each device in the file. A device keeps its own number if possible, and otherwise gets one
/// after all others.
fn slots(devices: &BTreeMap<i32, Seen>) -> BTreeMap<i32, u64> {
    let own = |device: &i32| (0..MOST_DEVICES).contains(device);
    let mut next = devices
        .keys()
        .filter(|device| own(device))
        .max()
        .map_or(0, |last| *last as u64 + 1);
    let slot = |device: &i32| {
        if own(device) {
            return (*device, *device as u64);
        }
        next += 1;
        (*device, next - 1)
    };
    devices.keys().map(slot).collect()
}

struct Snapshot<'a, 's> {
    source: &'a Source<'s>,
    pickle: Pickle<'a>,
    /// The memo number of each list of frames.
    stacks: Map<Origin, u32>,
    /// The program's own words, and the category.
    said: Map<Origin, (String, String)>,
    pools: Map<u32, (u64, u64)>,
    categories: Numbers<String>,
}

impl Snapshot<'_, '_> {
    /// Writes the traces of all devices, in the order of their numbers. Returns the number of events in them.
    fn traces(
        &mut self,
        devices: &BTreeMap<i32, Seen>,
        slots: &BTreeMap<i32, u64>,
    ) -> Result<u64, ExportError> {
        let count = slots.values().max().map_or(0, |last| last + 1);
        let mut in_slots: Vec<Option<DeviceTrace<'_>>> = (0..count).map(|_| None).collect();
        for (device, slot) in slots {
            if let (Some(seen), Some(place)) = (devices.get(device), in_slots.get_mut(*slot as usize)) {
                *place = Some(DeviceTrace::new(*device, seen, self.source));
            }
        }
        let mut list = self.pickle.begin_list()?;
        let mut events = 0;
        let mut rest = in_slots.as_mut_slice();
        while !rest.is_empty() {
            // With one walk for each device, all events would be read again for each, and there may be a thousand
            // devices with few events each.
            let mut sum = 0_u64;
            let fits = |trace: &&Option<DeviceTrace<'_>>| {
                sum = sum.saturating_add(trace.as_ref().map_or(0, |trace| trace.seen.events));
                sum <= GATHERED
            };
            let together = rest.iter().take_while(fits).count().max(1);
            let (group, behind) = rest.split_at_mut(together);
            rest = behind;
            if let [Some(trace)] = group {
                self.pickle.item(&mut list)?;
                events += self.streamed(trace)?;
                continue;
            }
            self.gather(group)?;
            for trace in group {
                self.pickle.item(&mut list)?;
                events += self.gathered(trace.take())?;
            }
        }
        self.pickle.end_list(list)?;
        Ok(events)
    }

    /// Writes a device's trace while walking its events. Returns the number of events.
    fn streamed(&mut self, trace: &mut DeviceTrace<'_>) -> Result<u64, ExportError> {
        let mut list = self.pickle.begin_list()?;
        let source = self.source;
        let (mut written, mut last) = (0, 0);
        source.walk(|event| {
            if source.device(event.row.pool) == trace.device
                && let Some((row, address)) = trace.take(&event.row)
            {
                (written, last) = (written + 1, row.time);
                self.event(&mut list, trace.seen, &row, address)?;
            }
            Ok(())
        })?;
        self.end_trace(list, written, last)?;
        Ok(written)
    }

    /// Gathers the events of several devices in one walk.
    fn gather(&self, group: &mut [Option<DeviceTrace<'_>>]) -> Result<(), ExportError> {
        let traces = group.iter_mut().flatten();
        let mut traces: Map<i32, &mut DeviceTrace<'_>> = traces.map(|trace| (trace.device, trace)).collect();
        if traces.is_empty() {
            return Ok(());
        }
        self.source.walk(|event| {
            if let Some(trace) = traces.get_mut(&self.source.device(event.row.pool)) {
                let told = trace.take(&event.row);
                trace.rows.extend(told);
            }
            Ok(())
        })
    }

    /// Writes the gathered events of a device, or an empty trace if there is no device. Returns the number of events.
    fn gathered(&mut self, trace: Option<DeviceTrace<'_>>) -> Result<u64, ExportError> {
        let mut list = self.pickle.begin_list()?;
        let rows = trace.as_ref().map_or(&[][..], |trace| &trace.rows);
        if let Some(trace) = &trace {
            for (row, address) in rows {
                self.event(&mut list, trace.seen, row, *address)?;
            }
        }
        let last = rows.last().map_or(0, |(row, _)| row.time);
        self.end_trace(list, rows.len() as u64, last)?;
        Ok(rows.len() as u64)
    }

    fn event(&mut self, list: &mut List, seen: &Seen, row: &Row, address: u64) -> io::Result<()> {
        for word in entries(row, seen.ranges.paged) {
            self.pickle.item(list)?;
            self.entry(word, row, address, self.time_us(row.time))?;
        }
        Ok(())
    }

    fn end_trace(&mut self, mut list: List, written: u64, last: u64) -> io::Result<()> {
        if written > 0 {
            self.pickle.item(&mut list)?;
            self.snapshot_entry(self.time_us(last))?;
        }
        self.pickle.end_list(list)
    }

    /// Converts a time of the recording to microseconds since 1970.
    fn time_us(&self, time: u64) -> u64 {
        self.source.start().saturating_add(time) / 1_000
    }

    fn entry(&mut self, word: &str, row: &Row, address: u64, time_us: u64) -> io::Result<()> {
        let bytes = if is_of_range(row) {
            row.bytes
        } else {
            row.requested
        };
        self.pickle.begin_dict()?;
        self.pickle.text_of("action", word)?;
        // A refused request has no address. Its entry has the device's free bytes instead, if they are known.
        let place = if row.kind == Kind::Refused {
            "device_free"
        } else {
            "addr"
        };
        self.pickle.number_of(place, address)?;
        self.pickle.number_of("size", bytes)?;
        self.pickle.number_of("stream", u64::from(row.stream))?;
        self.pickle.number_of("time_us", time_us)?;
        self.pickle.text("pool_id")?;
        self.pickle
            .pair(self.pools.get(&row.pool).copied().unwrap_or_default())?;
        let origin = Origin::of(row);
        if !self.said.contains_key(&origin) {
            self.source.keep(ORIGIN);
            let said = (self.words(origin), self.category(origin.tag));
            self.said.insert(origin, said);
        }
        if let Some((words, category)) = self.said.get(&origin) {
            if !words.is_empty() {
                self.pickle.text_of("user_metadata", words)?;
            }
            if row.kind == Kind::Alloc {
                self.pickle.text_of("category", category)?;
            }
        }
        self.pickle.text("frames")?;
        self.frames(origin)?;
        self.pickle.end_dict()
    }

    /// Writes the entry with which PyTorch ends a trace. Here it also contains the required category.
    fn snapshot_entry(&mut self, time_us: u64) -> io::Result<()> {
        self.pickle.begin_dict()?;
        self.pickle.text_of("action", "snapshot")?;
        for key in ["addr", "size", "stream"] {
            self.pickle.number_of(key, 0)?;
        }
        self.pickle.number_of("time_us", time_us)?;
        self.pickle.text_of("category", UNKNOWN)?;
        self.pickle.text("frames")?;
        self.pickle.begin_list()?;
        self.pickle.end_dict()
    }

    /// Returns the program's own words about a block, without its frames.
    fn words(&self, origin: Origin) -> String {
        if self.source.has_stack(origin) {
            return clean(self.source.history.definitions.tag(origin.tag)).into_owned();
        }
        match self.source.tag(origin.tag) {
            (words, calls) if !calls.is_empty() => words.join(";"),
            _ => String::new(),
        }
    }

    fn category(&mut self, tag: u32) -> String {
        let (words, _) = self.source.tag(tag);
        let Some(first) = words.into_iter().next() else {
            return UNKNOWN.to_owned();
        };
        match self.categories.of(first.clone()) {
            (0..MOST_CATEGORIES, _) => first,
            _ => "other".to_owned(),
        }
    }

    /// Writes the frames of a stack. Equal stacks share one list, because viewers and readers identify stacks by it.
    fn frames(&mut self, origin: Origin) -> io::Result<()> {
        if let Some(number) = self.stacks.get(&origin) {
            return self.pickle.recall(*number);
        }
        let mut list = self.pickle.begin_list()?;
        let number = self.pickle.remember()?;
        for frame in self.calls(origin) {
            self.pickle.item(&mut list)?;
            self.pickle.begin_dict()?;
            self.pickle.text_of("filename", &frame.file)?;
            self.pickle.number_of("line", u64::from(frame.line))?;
            self.pickle.text_of("name", &frame.function)?;
            self.pickle.end_dict()?;
        }
        self.pickle.end_list(list)?;
        self.stacks.insert(origin, number);
        Ok(())
    }

    fn calls(&self, origin: Origin) -> Vec<Frame> {
        if !self.source.has_stack(origin) {
            let (_, calls) = self.source.tag(origin.tag);
            if !calls.is_empty() {
                return calls;
            }
        }
        self.source.frames(origin)
    }

    fn segment(&mut self, slot: u64, segment: &Segment, paged: bool) -> io::Result<()> {
        let sum = |which: &dyn Fn(&&Block) -> bool, of: &dyn Fn(&Row) -> u64| -> u64 {
            let chosen = segment.blocks.iter().filter(which);
            chosen.map(|block| of(&block.row)).fold(0, u64::saturating_add)
        };
        let pickle = &mut self.pickle;
        pickle.begin_dict()?;
        pickle.number_of("device", slot)?;
        pickle.number_of("address", segment.address)?;
        pickle.number_of("total_size", segment.bytes)?;
        pickle.number_of("allocated_size", sum(&|block| !block.waits, &size))?;
        pickle.number_of("active_size", sum(&|_| true, &size))?;
        pickle.number_of("requested_size", sum(&|_| true, &|row| row.requested))?;
        pickle.number_of("stream", u64::from(segment.stream))?;
        let kind = if segment.bytes > 2 << 20 { "large" } else { "small" };
        pickle.text_of("segment_type", kind)?;
        pickle.text("segment_pool_id")?;
        pickle.pair(self.pools.get(&segment.pool).copied().unwrap_or_default())?;
        pickle.text("is_expandable")?;
        pickle.truth(paged)?;
        pickle.text("frames")?;
        pickle.begin_list()?;
        pickle.text("blocks")?;
        let mut blocks = pickle.begin_list()?;
        let mut at = segment.address;
        for block in &segment.blocks {
            if block.address > at {
                self.pickle.item(&mut blocks)?;
                self.block(at, block.address - at, None)?;
            }
            let bytes = size(&block.row);
            self.pickle.item(&mut blocks)?;
            self.block(block.address, bytes, Some(block))?;
            at = block.address.saturating_add(bytes);
        }
        let end = segment.address.saturating_add(segment.bytes);
        if at < end {
            self.pickle.item(&mut blocks)?;
            self.block(at, end - at, None)?;
        }
        self.pickle.end_list(blocks)?;
        self.pickle.end_dict()
    }

    /// Writes a block, or free space if there is none.
    fn block(&mut self, address: u64, bytes: u64, block: Option<&Block>) -> io::Result<()> {
        let state = match block {
            Some(Block { waits: true, .. }) => "active_pending_free",
            Some(_) => "active_allocated",
            None => "inactive",
        };
        self.pickle.begin_dict()?;
        self.pickle.number_of("address", address)?;
        self.pickle.number_of("size", bytes)?;
        let requested = block.map_or(0, |block| block.row.requested);
        self.pickle.number_of("requested_size", requested)?;
        self.pickle.text_of("state", state)?;
        self.pickle.text("frames")?;
        match block {
            Some(block) => self.frames(Origin::of(&block.row))?,
            None => {
                self.pickle.begin_list()?;
            }
        }
        self.pickle.end_dict()
    }

    /// Writes settings for an allocator that has none of PyTorch's. The keys are those that viewers read.
    fn settings(&mut self) -> io::Result<()> {
        let pickle = &mut self.pickle;
        pickle.text("allocator_settings")?;
        pickle.begin_dict()?;
        pickle.text_of("PYTORCH_CUDA_ALLOC_CONF", "")?;
        pickle.text("max_split_size")?;
        pickle.signed(-1)?;
        pickle.text("garbage_collection_threshold")?;
        pickle.float(0.0)?;
        for key in [
            "expandable_segments",
            "release_lock_on_cudamalloc",
            "pinned_use_cuda_host_register",
        ] {
            pickle.text(key)?;
            pickle.truth(false)?;
        }
        pickle.number_of("pinned_num_register_threads", 1)?;
        pickle.text("roundup_power2_divisions")?;
        pickle.begin_dict()?;
        pickle.end_dict()?;
        pickle.end_dict()?;
        pickle.text("external_annotations")?;
        let none = pickle.begin_list()?;
        pickle.end_list(none)
    }
}
