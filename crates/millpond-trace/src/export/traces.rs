//! A recording as traces, one for each device: what a replay takes.

use super::csv::{action, pools};
use super::events::{Event, Source};
use super::stacks::clean;
use super::{ExportError, ExportOptions};
use crate::hash::Map;
use crate::history::History;
use crate::ledger::{Ledger, Row};
use crate::model::NO_ALLOCATION;
use crate::recording::{End, Kind};
use crate::strings::Shared;
use crate::{Action, Caution, Format, ReadError, Recording, Trace};
use std::collections::BTreeMap;

/// The bytes that an event takes, with its time.
const EVENT: u64 = size_of::<crate::Event>() as u64 + 2 * size_of::<u64>() as u64;

/// A recording that can be replayed.
#[derive(Clone, Debug)]
pub struct Traces {
    /// What each device's allocator was asked for; the host is device -1, and each pool a private pool.
    pub recording: Recording,
    /// When each event of each of its traces was, in nanoseconds since the recording began.
    pub times: Vec<Vec<u64>>,
}

/// Draws from a recording what allocators were asked for; it is held in memory, 48 bytes for an event.
///
/// Blocks that a keyframe alone tells of begin there, and end where one does not have them any more.
///
/// # Errors
/// It cannot be walked, has no memory events, or more of them than a trace can have.
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
        traces.push(trace);
        times.push(device.times);
    }
    Ok(Traces {
        recording: Recording {
            name: name.to_owned(),
            format: Format::MillpondRecording,
            traces,
            states: Vec::new(),
            standing: Vec::new(),
            settings: crate::Settings::default(),
            cautions: Vec::new(),
        },
        times,
    })
}

fn finished(ledger: Ledger, name: &str, device: i32, history: &History) -> Trace {
    let mut trace = ledger.finish(name, Format::MillpondRecording, device, history.facts.clone());
    // The reader of another format has said some of it before.
    let mut told = Vec::new();
    for caution in trace.cautions.drain(..) {
        if !told.contains(&caution) {
            told.push(caution);
        }
    }
    trace.cautions = told;
    trace
}

/// One device's trace in the making.
struct Device {
    ledger: Ledger,
    times: Vec<u64>,
    tags: Map<u32, u32>,
    pools: Map<u32, ()>,
    /// That of its pools so far; none within where they differ, or one says none.
    policy: Option<Option<String>>,
}

impl Device {
    /// Takes in a pool's policy.
    fn meet(&mut self, pool: u32, history: &History) {
        if self.pools.insert(pool, ()).is_some() {
            return;
        }
        let known = history.definitions.pool(pool);
        let policy = known.map(|pool| clean(&pool.policy).into_owned());
        let policy = policy.filter(|name| !name.is_empty());
        let same = self.policy.as_ref().is_none_or(|before| *before == policy);
        self.policy = Some(policy.filter(|_| same));
    }
}

struct Devices {
    /// What traces call the pools.
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
        device.meet(row.pool, source.history);
        let ledger = &mut device.ledger;
        let tag = *device.tags.entry(row.tag).or_insert_with(|| {
            let text = clean(source.history.definitions.tag(row.tag));
            ledger.tags.intern(text.as_bytes())
        });
        let number = self.numbers.get(&row.pool).copied().unwrap_or_default();
        let told = Row {
            time_us: row.time / 1_000,
            key: row.id,
            bytes: match row.kind {
                Kind::Reserve | Kind::Release => row.bytes,
                _ => row.requested,
            },
            address: row.address,
            tag,
            stream: ledger.stream(u64::from(row.stream)),
            pool: ledger.pool(number),
        };
        match action {
            Action::Alloc => ledger.alloc(told).map_err(too_many)?,
            Action::Free | Action::FreeCompleted => ledger.free(told),
            Action::FreeRequested => ledger.free_requested(told),
            other => ledger.other(told, other),
        }
        let more = ledger.events() - device.times.len();
        source.keep(EVENT * more as u64);
        // What the ledger passes over has no time either.
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
