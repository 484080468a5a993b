//! Finds the devices of a snapshot and their data.

use super::schema::{Key, Walk};
use super::settings::{self, SettingsRead};
use crate::ReadError;
use crate::model::MOST_DEVICES;
use crate::pickle::Value;
use std::collections::BTreeMap;

/// The parts of a snapshot, by device.
pub(super) struct Found {
    pub(super) devices: Vec<Device>,
    pub(super) settings: Option<SettingsRead>,
}

/// The data of one device, still as values.
pub(super) struct Device {
    /// The device number. -1 is the host.
    pub(super) ordinal: i32,
    pub(super) segments: Vec<Value>,
    /// The lists of events.
    pub(super) traces: Vec<Value>,
}

const HOST: i32 = -1;

pub(super) fn find(walk: &Walk<'_>, top: Value) -> Result<Found, ReadError> {
    let mut devices = BTreeMap::new();
    let mut parts = Parts::default();
    if top.is_list() {
        parts.segments = Some(top);
    } else if !walk.fields(top, |key, value| parts.take(key, value))? {
        return Err(not_a_snapshot("it is neither a dict nor a list"));
    }
    if parts.segments.is_none() && parts.traces.is_none() {
        return Err(not_a_snapshot("it has neither `segments` nor `device_traces`"));
    }
    if let Some(segments) = parts.segments
        && !walk.items(segments, |segment| segment_of(walk, segment, None, &mut devices))?
    {
        return Err(not_a_snapshot("its `segments` are not a list"));
    }
    if let Some(segments) = parts.host_segments {
        walk.items(segments, |segment| {
            segment_of(walk, segment, Some(HOST), &mut devices)
        })?;
    }
    if let Some(traces) = parts.traces {
        let mut ordinal = 0;
        let is_list = walk.items(traces, |trace| {
            if !walk.is_empty(trace) {
                entry(&mut devices, ordinal)?.traces.push(trace);
            }
            ordinal += 1;
            Ok(())
        })?;
        if !is_list {
            return Err(not_a_snapshot("its `device_traces` are not a list"));
        }
    }
    if let Some(traces) = parts.host_traces {
        let mut flat = false;
        walk.items(traces, |trace| {
            match trace.is_dict() {
                true => flat = true,
                false => entry(&mut devices, HOST)?.traces.push(trace),
            }
            Ok(())
        })?;
        if flat {
            entry(&mut devices, HOST)?.traces = vec![traces];
        }
    }
    let settings = parts.settings.map(|value| settings::read(walk, value));
    Ok(Found {
        devices: devices.into_values().collect(),
        settings: settings.transpose()?,
    })
}

fn not_a_snapshot(what: &'static str) -> ReadError {
    ReadError::NotASnapshot { what }
}

#[derive(Default)]
struct Parts {
    segments: Option<Value>,
    traces: Option<Value>,
    settings: Option<Value>,
    host_segments: Option<Value>,
    host_traces: Option<Value>,
}

impl Parts {
    fn take(&mut self, key: Key, value: Value) {
        let part = match key {
            Key::Segments => &mut self.segments,
            Key::DeviceTraces => &mut self.traces,
            Key::AllocatorSettings => &mut self.settings,
            Key::HostSegments => &mut self.host_segments,
            Key::HostTraces => &mut self.host_traces,
            _ => return,
        };
        *part = Some(value);
    }
}

fn segment_of(
    walk: &Walk<'_>,
    segment: Value,
    host: Option<i32>,
    devices: &mut BTreeMap<i32, Device>,
) -> Result<(), ReadError> {
    let mut ordinal = 0;
    let is_dict = walk.fields(segment, |key, value| {
        if key == Key::Device {
            ordinal = walk
                .arena
                .as_int(value)
                .and_then(|int| i32::try_from(int).ok())
                .unwrap_or(0);
        }
    })?;
    if !is_dict {
        return Err(not_a_snapshot("a segment is not a dict"));
    }
    entry(devices, host.unwrap_or(ordinal))?.segments.push(segment);
    Ok(())
}

fn entry(devices: &mut BTreeMap<i32, Device>, ordinal: i32) -> Result<&mut Device, ReadError> {
    if devices.len() == MOST_DEVICES && !devices.contains_key(&ordinal) {
        return Err(ReadError::TooManyDevices { limit: MOST_DEVICES });
    }
    Ok(devices.entry(ordinal).or_insert_with(|| Device {
        ordinal,
        segments: Vec::new(),
        traces: Vec::new(),
    }))
}
