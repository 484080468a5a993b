//! Converts one device's history to a [`Trace`].

use super::devices::Device;
use super::rewind::{Rewind, Segment, overlaps};
use super::schema::Walk;
use super::settings::SettingsRead;
use super::sieve::{Field, Record};
use super::state::{self, Final};
use super::tags::{Origin, Tags};
use crate::hash::Map;
use crate::ledger::Ledger;
use crate::lines::MOST_BYTES;
use crate::model::{DeviceState, InitialBlock, InitialSegment, NO_ALLOCATION, PoolState};
use crate::pickle::Value;
use crate::strings::Shared;
use crate::{Action, Caution, Event, Finding, Format, ReadError, Trace};
use std::collections::BTreeMap;

/// The data read for one device.
pub(super) struct DeviceRead {
    /// The trace, if there is a history.
    pub(super) trace: Option<Trace>,
    /// The state, if there are segments.
    pub(super) state: Option<DeviceState>,
    /// The blocks and segments of that state, if the device has no history.
    pub(super) standing: Option<Trace>,
    /// The findings that no trace contains.
    pub(super) cautions: Vec<Caution>,
}

/// The data of one device, as in the file.
pub(super) struct Gathered {
    ordinal: i32,
    has_segments: bool,
    end: Final,
    pools: Vec<PoolState>,
    entries: Entries,
    ledger: Ledger,
}

/// Takes the data of one device out of the values, which are not needed afterwards.
pub(super) fn gather(
    walk: &Walk<'_>,
    device: &Device,
    tags: &mut Tags,
    texts: &Shared,
) -> Result<Gathered, ReadError> {
    let mut ledger = Ledger::new(texts);
    tags.forget();
    let (end, pools) = state::read(walk, &device.segments, tags, &mut ledger)?;
    let mut entries = Entries::default();
    for &trace in &device.traces {
        entries.read(walk, trace, tags, &mut ledger)?;
    }
    ledger.findings.add(Finding::StacksCut, tags.cut());
    Ok(Gathered {
        ordinal: device.ordinal,
        has_segments: !device.segments.is_empty(),
        end,
        pools,
        entries,
        ledger,
    })
}

/// Rebuilds the state before the first event and numbers the allocations.
pub(super) fn rebuild(
    gathered: Gathered,
    settings: Option<&SettingsRead>,
    name: &str,
) -> Result<DeviceRead, ReadError> {
    let Gathered {
        ordinal,
        has_segments,
        end,
        pools,
        entries,
        mut ledger,
    } = gathered;
    let shown = state::shown(ordinal, pools);
    if entries.events.is_empty() {
        let mut cautions = ledger.findings.cautions();
        // A state is always written with a mark of its own, so marks are only worth a caution in a history.
        cautions.retain(|caution| !matches!(caution, Caution::Counted(Finding::OtherEvents, _)));
        initial_state(&mut ledger, &end.segments, end.blocks, false)?;
        let mut standing = ledger.finish(name, Format::TorchSnapshot, ordinal, Vec::new());
        // The ledger's other findings concern a history, or the recording has them already.
        standing.cautions = vec![Caution::NoHistory { device: ordinal }];
        return Ok(DeviceRead {
            trace: None,
            standing: shown.is_some().then_some(standing),
            state: shown,
            cautions,
        });
    }
    let Entries {
        mut events,
        pools_recorded,
        count,
    } = entries;
    ledger.findings.add(
        Finding::FreesNotCompleted,
        complete_requests(&mut events, &end.blocks),
    );

    let requests_left_out = requests_left_out(&events);
    let final_reserved = has_segments.then_some(end.reserved_bytes);
    let has_expandable = end.segments.values().any(|segment| segment.expandable)
        || events
            .iter()
            .any(|event| matches!(event.action, Action::SegmentMap | Action::SegmentUnmap));
    let mut rewind = Rewind {
        segments: end.segments,
        blocks: end.blocks,
        pools_recorded,
        kinds_open: false,
        findings: &mut ledger.findings,
    };
    rewind.all(&mut events);
    let Rewind { segments, blocks, .. } = rewind;

    initial_state(&mut ledger, &segments, blocks, requests_left_out)?;
    ledger.tape.load(events);
    forward(&mut ledger)?;

    ledger.final_reserved_bytes = final_reserved;
    ledger.ring_full = settings.is_some_and(|read| {
        read.overflowed || read.most_entries.is_some_and(|most| most > 0 && count >= most)
    });
    ledger.settings = settings.map(|read| read.settings.clone()).unwrap_or_default();
    if has_expandable {
        ledger.settings.expandable_segments = Some(true);
    }
    let trace = ledger.finish(name, Format::TorchSnapshot, ordinal, Vec::new());
    Ok(DeviceRead {
        trace: Some(trace),
        state: shown,
        standing: None,
        cautions: Vec::new(),
    })
}

/// Sets the segments and blocks that exist before the first event.
fn initial_state(
    ledger: &mut Ledger,
    segments: &BTreeMap<u64, Segment>,
    blocks: Map<u64, InitialBlock>,
    requests_left_out: bool,
) -> Result<(), ReadError> {
    ledger.initial_segments = segments
        .iter()
        .map(|(&address, segment)| InitialSegment {
            address,
            bytes: segment.bytes,
            stream: segment.stream,
            pool: segment.pool,
            small: segment.small == Some(true),
            expandable: segment.expandable,
        })
        .collect();
    let mut blocks: Vec<_> = blocks.into_values().collect();
    blocks.sort_unstable_by_key(|block| block.address);
    let mut end_of_last = 0;
    for mut block in blocks {
        let address = block.address;
        let bytes = block.bytes.unwrap_or(block.requested);
        if address < end_of_last || (!segments.is_empty() && !overlaps(segments, address, bytes.max(1))) {
            ledger.findings.count(Finding::BlocksMisplaced);
        }
        end_of_last = address.saturating_add(bytes);
        block.pending &= !requests_left_out;
        ledger.initial(address, block)?;
    }
    Ok(())
}

/// Turns all requests into completions if no free completes and no block waits at the end, because some recorders are
/// configured to omit completions. Returns the number of changed events.
fn complete_requests(events: &mut [Event], end: &Map<u64, InitialBlock>) -> u64 {
    let completed = events.iter().any(|event| event.action == Action::FreeCompleted);
    if completed || end.values().any(|block| block.pending) {
        return 0;
    }
    let mut changed = 0;
    for event in events {
        if event.action == Action::FreeRequested {
            event.action = Action::FreeCompleted;
            changed += 1;
        }
    }
    changed
}

/// Returns whether the recorder was configured to omit requests. This is the case if there is no request, and a block
/// is allocated and freed without one. A completion without a request then does not mean that the block waited when the
/// recording began.
fn requests_left_out(events: &[Event]) -> bool {
    if events.iter().any(|event| event.action == Action::FreeRequested) {
        return false;
    }
    let mut born = Map::default();
    events.iter().any(|event| match event.action {
        Action::Alloc => {
            born.insert(event.address, ());
            false
        }
        Action::FreeCompleted => born.contains_key(&event.address),
        _ => false,
    })
}

/// Numbers the allocations. A request directly followed by its completion is one free.
fn forward(ledger: &mut Ledger) -> Result<(), ReadError> {
    while let Some(mut event) = ledger.tape.next() {
        if event.action == Action::FreeRequested {
            let completes =
                |next: &Event| next.action == Action::FreeCompleted && next.address == event.address;
            if let Some(next) = ledger.tape.next_if(completes) {
                (event.time_us, event.action) = (next.time_us, Action::Free);
            }
        }
        ledger.record(event.address, event)?;
    }
    Ok(())
}

/// The entries of a device's ring, in order and not yet numbered.
#[derive(Default)]
struct Entries {
    events: Vec<Event>,
    pools_recorded: bool,
    /// Number of all entries, including marks.
    count: u64,
}

impl Entries {
    fn read(
        &mut self,
        walk: &Walk<'_>,
        trace: Value,
        tags: &mut Tags,
        ledger: &mut Ledger,
    ) -> Result<(), ReadError> {
        let mut words = Words::default();
        self.events.reserve_exact(walk.events(walk.arena.count(trace)));
        walk.items(trace, |value| {
            self.count += 1;
            let record = walk.record(value)?;
            let word = record.and_then(|record| record.get(Field::Action).string());
            let (Some(word), Some(record)) = (word, record) else {
                ledger.findings.count(Finding::UnreadableEvents);
                return Ok(());
            };
            match words.of(walk, word) {
                Word::Memory(action) => self.push(walk, action, &record, tags, ledger),
                Word::Mark => Ok(()),
                Word::Unknown => {
                    ledger.findings.count(Finding::OtherEvents);
                    Ok(())
                }
            }
        })?;
        Ok(())
    }

    fn push(
        &mut self,
        walk: &Walk<'_>,
        action: Action,
        record: &Record,
        tags: &mut Tags,
        ledger: &mut Ledger,
    ) -> Result<(), ReadError> {
        let (Some(bytes), Some(address)) = (
            walk.arena.as_int(record.get(Field::Bytes)),
            walk.handle(record.get(Field::Address)),
        ) else {
            ledger.findings.count(Finding::UnreadableEvents);
            return Ok(());
        };
        let Ok(bytes) = u64::try_from(bytes) else {
            ledger.findings.count(Finding::NegativeBytes);
            return Ok(());
        };
        if bytes > MOST_BYTES {
            ledger.findings.count(Finding::AbsurdBytes);
            return Ok(());
        }
        let pool = walk.pair(record.get(Field::Pool));
        self.pools_recorded |= pool.is_some();
        walk.event()?;
        self.events.push(Event {
            time_us: walk.unsigned(record.get(Field::TimeUs)).unwrap_or(0),
            bytes,
            address,
            allocation: NO_ALLOCATION,
            tag: tags.of(
                walk,
                Origin {
                    frames: record.get(Field::Frames),
                    user: record.get(Field::UserMetadata),
                    compile: record.get(Field::CompileContext),
                    forward: record.get(Field::ForwardFrames),
                },
                &mut ledger.tags,
            ),
            stream: ledger.stream(walk.handle(record.get(Field::Stream)).unwrap_or(0)),
            pool: ledger.pool(pool.unwrap_or((0, 0))),
            action,
        });
        Ok(())
    }
}

#[derive(Clone, Copy)]
enum Word {
    Memory(Action),
    /// An entry that is known not to concern memory.
    Mark,
    Unknown,
}

/// The meaning of each action word, by the number of its string. Each is compared as text only once.
#[derive(Default)]
struct Words(Vec<(u32, Word)>);

impl Words {
    fn of(&mut self, walk: &Walk<'_>, string: u32) -> Word {
        if let Some(&(_, word)) = self.0.iter().find(|(known, _)| *known == string) {
            return word;
        }
        let word = match walk.arena.strings.get(string) {
            "alloc" => Word::Memory(Action::Alloc),
            "free_requested" => Word::Memory(Action::FreeRequested),
            "free_completed" | "free" => Word::Memory(Action::FreeCompleted),
            "segment_alloc" => Word::Memory(Action::SegmentAlloc),
            "segment_free" => Word::Memory(Action::SegmentFree),
            "segment_map" => Word::Memory(Action::SegmentMap),
            "segment_unmap" => Word::Memory(Action::SegmentUnmap),
            "oom" => Word::Memory(Action::OutOfMemory),
            "snapshot" | "annotate" => Word::Mark,
            _ => Word::Unknown,
        };
        if self.0.len() < 16 {
            self.0.push((string, word));
        }
        word
    }
}
