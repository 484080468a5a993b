//! Reads the `allocator_settings` of a snapshot.

use super::schema::{Key, Walk};
use crate::pickle::Value;
use crate::{ReadError, Settings};

/// The settings, and the recorder's data about its own ring.
pub(super) struct SettingsRead {
    pub(super) settings: Settings,
    /// `trace_alloc_max_entries`.
    pub(super) most_entries: Option<u64>,
    /// `trace_alloc_overflowed`.
    pub(super) overflowed: bool,
}

pub(super) fn read(walk: &Walk<'_>, value: Value) -> Result<SettingsRead, ReadError> {
    let mut settings = Settings::default();
    let mut most_entries = None;
    let mut overflowed = None;
    let mut roundup = None;
    let mut conf: Option<&str> = None;
    walk.fields(value, |key, value| match key {
        Key::CudaConf | Key::Conf | Key::HipConf => {
            let text = walk.arena.as_text(value).unwrap_or_default();
            if !text.is_empty() || conf.is_none() {
                conf = Some(text);
            }
        }
        // An unlimited size is -1, or the largest number in older versions.
        Key::MaxSplitSize => {
            settings.max_split_size = walk.unsigned(value).filter(|&bytes| bytes < 1 << 62);
        }
        Key::GarbageCollection => {
            settings.garbage_collection_threshold = walk.arena.as_float(value).filter(|&share| share > 0.0);
        }
        Key::ExpandableSegments => settings.expandable_segments = value.boolean(),
        Key::RoundupPower2 => roundup = Some(value),
        Key::TraceMaxEntries => most_entries = walk.unsigned(value),
        Key::TraceOverflowed => overflowed = Some(value),
        _ => {}
    })?;
    // The text is shortened only at the end, because a dict may contain a long value a million times.
    settings.conf = conf.map(|text| text.chars().take(4096).collect());
    if let Some(value) = roundup {
        settings.roundup_power2_divisions = divisions(walk, value);
    }
    let is_set = |value: Value| walk.arena.as_int(value).is_some_and(|int| int != 0);
    let overflowed = overflowed.is_some_and(|value| match walk.arena.items(value) {
        Some(mut each) => each.any(is_set),
        None => is_set(value),
    });
    Ok(SettingsRead {
        settings,
        most_entries,
        overflowed,
    })
}

/// Parses the divisions. Keys are mebibytes as text. Divisions of 0 and 1 have no effect.
fn divisions(walk: &Walk<'_>, value: Value) -> Vec<(u64, u64)> {
    let Some(pairs) = walk.arena.pairs(value) else {
        return Vec::new();
    };
    let mut divisions: Vec<(u64, u64)> = pairs
        .take(64)
        .filter_map(|(key, value)| {
            let mebibytes = walk.arena.as_text(key)?.parse::<u64>().ok()?;
            let divisions = walk.unsigned(value).filter(|&divisions| divisions > 1)?;
            Some((mebibytes.checked_mul(1 << 20)?, divisions))
        })
        .collect();
    divisions.sort_unstable();
    divisions.dedup_by_key(|(from, _)| *from);
    divisions
}
