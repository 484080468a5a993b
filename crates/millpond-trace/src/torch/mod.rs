//! Memory snapshots of PyTorch, of every age.
//!
//! A snapshot is the allocator's final state and, for each device, a ring of the last events. The state
//! before the first event is not in the file: it is rebuilt by undoing all events on the final state (see
//! [`rewind`]). Schemas differ by age in keys only, so one walk reads them all:
//!
//! - a bare list is the segments (before 2.0); blocks carry `history` with `real_size`,
//! - then a dict of `segments` and `device_traces`; later blocks have addresses, entries have times,
//! - then pools, expandable segments, settings, and the host's own pools.

mod devices;
mod frames;
mod history;
mod rewind;
mod schema;
mod settings;
mod sieve;
mod state;
mod tags;

use crate::pickle;
use crate::source::Source;
use crate::strings::Shared;
use crate::{Format, ReadError, Recording};
use history::Gathered;
use schema::{WORDS, Walk};
use settings::SettingsRead;
use sieve::Sieve;
use tags::Tags;

pub(crate) fn read(source: &mut Source<'_>, name: &str) -> Result<Recording, ReadError> {
    let (devices, settings) = parse(source)?;
    let mut recording = Recording {
        name: name.to_owned(),
        format: Format::TorchSnapshot,
        traces: Vec::new(),
        states: Vec::new(),
        standing: Vec::new(),
        settings: settings
            .as_ref()
            .map(|read| read.settings.clone())
            .unwrap_or_default(),
        cautions: Vec::new(),
    };
    for device in devices {
        let read = history::rebuild(device, settings.as_ref(), name)?;
        recording.traces.extend(read.trace);
        recording.states.extend(read.state);
        recording.standing.extend(read.standing);
        recording.cautions.extend(read.cautions);
    }
    if recording.traces.is_empty() && recording.states.is_empty() {
        return Err(ReadError::NoMemoryEvents {
            format: Format::TorchSnapshot,
        });
    }
    Ok(recording)
}

/// What the file has of each device. All values of the pickle are gone by then.
fn parse(source: &mut Source<'_>) -> Result<(Vec<Gathered>, Option<SettingsRead>), ReadError> {
    let mut sieve = Sieve::new(source.expected());
    let (arena, top) = pickle::load(source, WORDS, &mut sieve)?;
    let Sieve { records, frames } = sieve;
    let walk = Walk::new(&arena, &records);
    let mut tags = Tags::new(frames);
    let found = devices::find(&walk, top)?;
    let texts = Shared::default();
    let gather = |device| history::gather(&walk, device, &mut tags, &texts);
    let devices: Result<_, _> = found.devices.iter().map(gather).collect();
    Ok((devices?, found.settings))
}
