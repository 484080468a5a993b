//! The JSON header of Millpond CSV: the data of a converted recording other than its events.
//!
//! All keys are kept as text, in file order. The keys under `millpond` are written by this crate. They contain values
//! that have no column.

use crate::{Caution, Settings, Trace};
use serde::de::{Deserializer as _, MapAccess, Visitor};
use serde_json::{Value, json};
use std::io::{self, Write};

/// The key of the values that this crate writes.
const OURS: &str = "millpond";

/// Maximum bytes of all pairs. Every device of the file keeps them.
pub(crate) const MOST_BYTES: usize = 64 << 10;
/// Bytes for a pair in addition to its text.
pub(crate) const PAIR: usize = 64;

#[derive(Default)]
pub(crate) struct Header {
    pub(crate) pairs: Vec<(String, String)>,
    /// Bytes of the pairs, including the fixed cost of each.
    bytes: usize,
    pub(crate) device: i32,
    pub(crate) settings: Settings,
    pub(crate) final_reserved_bytes: Option<u64>,
    pub(crate) ring_full: bool,
}

impl Header {
    /// Reads a comment line. A line that is not a JSON object is ignored as a note.
    pub(crate) fn read(&mut self, comment: &[u8]) -> Result<(), String> {
        let Ok(pairs) = serde_json::Deserializer::from_slice(comment).deserialize_map(Pairs) else {
            return Ok(());
        };
        for (key, value) in pairs {
            if key == OURS {
                self.ours(&value);
                continue;
            }
            if key == "device" {
                self.device = value
                    .as_i64()
                    .and_then(|device| i32::try_from(device).ok())
                    .unwrap_or(0);
                continue;
            }
            let text = match value {
                Value::String(text) => text,
                other => other.to_string(),
            };
            self.bytes += key.len() + text.len() + PAIR;
            if self.bytes > MOST_BYTES {
                return Err(format!("the header is longer than {MOST_BYTES} bytes"));
            }
            self.pairs.push((key, text));
        }
        Ok(())
    }

    fn ours(&mut self, value: &Value) {
        self.final_reserved_bytes = value["final_reserved_bytes"].as_u64();
        self.ring_full = value["ring_full"].as_bool().unwrap_or(false);
        let pair = |pair: &Value| Some((pair[0].as_u64()?, pair[1].as_u64()?));
        self.settings = Settings {
            conf: value["conf"]
                .as_str()
                .map(|conf| conf.chars().take(4096).collect()),
            expandable_segments: value["expandable_segments"].as_bool(),
            max_split_size: value["max_split_size"].as_u64(),
            garbage_collection_threshold: value["garbage_collection_threshold"].as_f64(),
            roundup_power2_divisions: value["roundup_power2_divisions"]
                .as_array()
                .map(|pairs| pairs.iter().take(64).filter_map(pair).collect())
                .unwrap_or_default(),
            policy: value["policy"].as_str().map(name),
        };
    }
}

/// Prepares a name for display.
fn name(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}

/// Parses a device number such as `0`, `-1` or `cuda:0`.
pub(crate) fn device(text: &[u8]) -> Option<i32> {
    let text = std::str::from_utf8(text).ok()?;
    text.strip_prefix("cuda:").unwrap_or(text).parse().ok()
}

/// Writes the header line of `trace`.
pub(crate) fn write(trace: &Trace, out: &mut impl Write) -> io::Result<()> {
    let origin = &trace.origin;
    let text = |(key, value): &(String, String)| (key.clone(), Value::from(value.as_str()));
    let mut pairs: Vec<_> = origin.header.iter().map(text).collect();
    let mut add = |key: &str, value: Value| pairs.push((key.to_owned(), value));
    if !origin.header.iter().any(|(key, _)| key == "trace") {
        add("trace", Value::from(origin.name.as_str()));
    }
    if origin.device != 0 {
        add("device", Value::from(origin.device));
    }
    let ours = ours(trace);
    if ours.as_object().is_some_and(|ours| !ours.is_empty()) {
        add(OURS, ours);
    }
    line(&pairs, out)
}

/// Writes the header line of a recording from its facts and the policy of all its pools.
#[cfg(feature = "recording")]
pub(crate) fn write_facts(
    name: &str,
    facts: &[(String, String)],
    policy: Option<&str>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut bytes = name.len() + PAIR;
    let mut pairs = vec![("trace".to_owned(), Value::from(name))];
    for (key, value) in facts {
        bytes += key.len() + value.len() + PAIR;
        // A reader refuses a longer header, and these keys have a special meaning for it.
        if bytes <= MOST_BYTES && !["trace", "device", OURS].contains(&key.as_str()) {
            pairs.push((key.clone(), Value::from(value.as_str())));
        }
    }
    if let Some(policy) = policy {
        pairs.push((OURS.to_owned(), json!({ "policy": policy })));
    }
    line(&pairs, out)
}

/// Writes a JSON object as a comment. Its keys may repeat.
fn line(pairs: &[(String, Value)], out: &mut dyn Write) -> io::Result<()> {
    out.write_all(b"# {")?;
    for (at, (key, value)) in pairs.iter().enumerate() {
        let comma = if at > 0 { ", " } else { "" };
        write!(out, "{comma}{}: {value}", Value::from(key.as_str()))?;
    }
    out.write_all(b"}\n")
}

fn ours(trace: &Trace) -> Value {
    let settings = &trace.settings;
    let mut value = json!({
        "final_reserved_bytes": trace.final_reserved_bytes,
        "ring_full": trace.cautions.iter().any(|caution| matches!(caution, Caution::RingWrapped { full: true, .. })),
        "conf": settings.conf,
        "expandable_segments": settings.expandable_segments,
        "max_split_size": settings.max_split_size,
        "garbage_collection_threshold": settings.garbage_collection_threshold,
        "roundup_power2_divisions": settings.roundup_power2_divisions,
        "policy": settings.policy,
    });
    if let Some(object) = value.as_object_mut() {
        object.retain(|_, value| !matches!(value, Value::Null | Value::Bool(false)) && value != &json!([]));
    }
    // `false` is dropped above because readers assume it. Here a missing value means unknown, so `false` is written.
    if settings.expandable_segments == Some(false) {
        value["expandable_segments"] = json!(false);
    }
    value
}

struct Pairs;

impl<'de> Visitor<'de> for Pairs {
    type Value = Vec<(String, Value)>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = map.next_entry()? {
            pairs.push(pair);
        }
        Ok(pairs)
    }
}
