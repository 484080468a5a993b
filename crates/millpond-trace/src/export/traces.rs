//! Converts a recording to traces for a replay, one for each device.

use super::csv::{action, pools};
use super::events::{Event, Source};
use super::stacks::clean;
use super::{ExportError, ExportOptions};
use crate::hash::Map;
use crate::history::History;
use crate::ledger::Ledger;
use crate::model::NO_ALLOCATION;
use crate::recording::{End, Kind};
use crate::strings::Shared;
use crate::{Caution, Format, ReadError, Recording, Trace};
use std::collections::BTreeMap;

/// Bytes for an event and its time.
const EVENT: u64 = size_of::<crate::Event>() as u64 + 2 * size_of::<u64>() as u64;

/// Bytes that a replay takes for a pool. Recordings of programs have few pools.
const POOL: u64 = 8 << 10;

/// A recording that can be replayed.
#[derive(Clone, Debug)]
pub struct Traces {
    /// The requests to each device's allocator. The host is device -1, and each pool is a private pool.
    pub recording: Recording,
    /// The time of each event of each trace, in nanoseconds since the recording began.
    pub times: Vec<Vec<u64>>,
}

/// Converts a recording to the requests to its allocators. The result is held in memory and takes 48 bytes for each
/// event.
///
/// Blocks that only a keyframe lists begin at the keyframe. They end at the first keyframe that does not list them.
///
/// # Errors
/// Returns an error if the recording cannot be read, if it has no memory events, or if it has more than a trace can
/// hold.
pub fn traces(history: &History, name: &str, options: &ExportOptions<'_>) -> Result<Traces, ExportError> {
    let source = Source::new(history, &history.definitions, options);
    let mut devices = Devices {
        numbers: pools(&source),
        devices: BTreeMap::new(),
        texts: Shared::default(),
    };
    source.walk(|event| devices.take(&source, event))?;
    if source.is_empty() {
        return Err(ExportError::Nothing(source.asked_for()));
    }
    let mut cautions = history.cautions.clone();
    if history.lost > 0 {
        cautions.push(Caution::EventsLost { count: history.lost });
    }
    if let Some(End::Cut { bytes } | End::Damaged { bytes, .. }) = history.end {
        cautions.push(Caution::Cut { bytes });
    }
    let (mut traces, mut times) = (Vec::new(), Vec::new());
    for (number, mut device) in devices.devices {
        if !device.ledger.has_events() {
            continue;
        }
        device.ledger.cautions = cautions.clone();
        let mut trace = finished(device.ledger, name, number, history);
        trace.settings.policy = device.policy.flatten();
        // Segments that a pool took before it was recorded have no events.
        let before = device.pools.keys().map(|pool| history.reserved_before(*pool));
        let before = before.fold(0, u64::saturating_add);
        if before > 0 {
            let named = trace.recorded_peak_reserved.unwrap_or(0);
            trace.recorded_peak_reserved = Some(named.saturating_add(before));
        }
        let unlisted = device.pools.keys().map(|pool| history.allocated_before(*pool));
        trace.unlisted_bytes = unlisted.fold(0, u64::saturating_add);
        traces.push(trace);
        times.push(device.times);
    }
    Ok(Traces {
        recording: Recording::of_traces(name, Format::MillpondRecording, traces),
        times,
    })
}

fn finished(ledger: Ledger, name: &str, device: i32, history: &History) -> Trace {
    let mut trace = ledger.finish(name, Format::MillpondRecording, device, history.facts.clone());
    // The reader of another format may already have reported some of these cautions.
    let mut told = Vec::new();
    for caution in trace.cautions.drain(..) {
        if !told.contains(&caution) {
            told.push(caution);
        }
    }
    trace.cautions = told;
    trace
}

/// The trace of one device while it is built.
struct Device {
    ledger: Ledger,
    times: Vec<u64>,
    tags: Map<u32, u32>,
    pools: Map<u32, ()>,
    /// The policy of its pools so far. The inner value is `None` if the pools differ or one has no known policy.
    policy: Option<Option<String>>,
}

impl Device {
    /// Records the policy of a pool.
    fn meet(&mut self, pool: u32, source: &Source<'_>) {
        if self.pools.insert(pool, ()).is_some() {
            return;
        }
        source.keep(POOL);
        let known = source.history.definitions.pool(pool);
        let policy = known.map(|pool| clean(&pool.policy).into_owned());
        let policy = policy.filter(|name| !name.is_empty());
        let same = self.policy.as_ref().is_none_or(|before| *before == policy);
        self.policy = Some(policy.filter(|_| same));
    }
}

struct Devices {
    /// The pool numbers that traces use.
    numbers: Map<u32, (u64, u64)>,
    devices: BTreeMap<i32, Device>,
    /// The limit on the text of all devices' tags.
    texts: Shared,
}

impl Devices {
    fn take(&mut self, source: &Source<'_>, event: &Event<'_>) -> Result<(), ExportError> {
        let row = &event.row;
        let Some(action) = action(event) else {
            return Ok(());
        };
        let device = self
            .devices
            .entry(source.device(row.pool))
            .or_insert_with(|| Device {
                ledger: Ledger::new(&self.texts),
                times: Vec::new(),
                tags: Map::default(),
                pools: Map::default(),
                policy: None,
            });
        device.meet(row.pool, source);
        let ledger = &mut device.ledger;
        let tag = *device.tags.entry(row.tag).or_insert_with(|| {
            let text = clean(source.history.definitions.tag(row.tag));
            ledger.tags.intern(text.as_bytes())
        });
        let number = self.numbers.get(&row.pool).copied().unwrap_or_default();
        let told = crate::Event {
            time_us: row.time / 1_000,
            bytes: match row.kind {
                Kind::Reserve | Kind::Release => row.bytes,
                _ => row.requested,
            },
            address: row.address,
            tag,
            stream: ledger.stream(u64::from(row.stream)),
            pool: ledger.pool(number),
            allocation: NO_ALLOCATION,
            action,
        };
        ledger.record(row.id, told).map_err(too_many)?;
        let more = ledger.events() - device.times.len();
        source.keep(EVENT * more as u64);
        // An event that the ledger skips has no time either.
        device.times.resize(ledger.events(), row.time);
        Ok(())
    }
}

fn too_many(error: ReadError) -> ExportError {
    match error {
        ReadError::TooManyAllocations { .. } => ExportError::TooMany { limit: NO_ALLOCATION },
        other => ExportError::History(other.into()),
    }
}
