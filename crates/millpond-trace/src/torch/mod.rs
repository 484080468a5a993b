//! Reads PyTorch memory snapshots of all versions.
//!
//! A snapshot contains the allocator's final state and, for each device, a ring of the last events. The state before
//! the first event is not in the file. It is rebuilt by undoing all events on the final state (see [`rewind`]). The
//! schemas of different versions differ only in their keys, so one reader supports all of them:
//!
//! - Before 2.0 the file is a bare list of segments. Blocks have a `history` with `real_size`.
//! - Later it is a dict of `segments` and `device_traces`. Still later, blocks have addresses and entries have times.
//! - Newer versions add pools, expandable segments, settings, and the host's own pools.

mod devices;
mod frames;
mod history;
mod names;
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
    let mut recording = Recording::of_traces(name, Format::TorchSnapshot, Vec::new());
    if let Some(read) = &settings {
        recording.settings = read.settings.clone();
    }
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

/// Reads the data of each device. All values of the pickle are dropped before it returns.
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
