//! The table of a recording.

use super::RecordingError;
use crate::header;
use arrow_schema::{DataType, Field, Schema};
use std::collections::HashMap;
use std::sync::Arc;

/// The latest version of the format.
pub(super) const VERSION: u32 = 1;
const VERSION_KEY: &str = "millpond.version";
/// The prefix of a fact's name in the metadata.
const FACT: &str = "millpond.fact.";

/// The columns in the order in which they are written.
pub(super) const COLUMNS: [&str; 13] = [
    "kind",
    "time",
    "id",
    "address",
    "requested",
    "bytes",
    "pool",
    "stream",
    "thread",
    "tag",
    "stack",
    "text",
    "list",
];

fn type_of(column: &str) -> DataType {
    match column {
        "kind" => DataType::UInt8,
        "time" | "id" => DataType::Int64,
        "address" | "requested" | "bytes" => DataType::UInt64,
        "text" => DataType::Utf8,
        "list" => DataType::List(item()),
        _ => DataType::UInt32,
    }
}

/// Returns the type of a list element.
pub(super) fn item() -> Arc<Field> {
    Arc::new(Field::new("item", DataType::UInt64, false))
}

/// Returns the schema of the table, with facts about the recording.
pub(super) fn schema(facts: &[(String, String)]) -> Schema {
    let field = |name: &str| Field::new(name, type_of(name), matches!(name, "text" | "list"));
    let fields: Vec<Field> = COLUMNS.into_iter().map(field).collect();
    let mut metadata = HashMap::from([(VERSION_KEY.to_owned(), VERSION.to_string())]);
    for (key, value) in facts {
        metadata.insert(format!("{FACT}{key}"), value.clone());
    }
    Schema::new(fields).with_metadata(metadata)
}

/// Returns the index of each of Millpond's columns in a file's table.
///
/// # Errors
/// Returns an error if the table is a different one or has an unknown version.
pub(super) fn columns_of(schema: &Schema) -> Result<[usize; COLUMNS.len()], RecordingError> {
    let version = schema
        .metadata()
        .iter()
        .find(|(key, _)| key.as_str() == VERSION_KEY)
        .map(|(_, value)| value.clone())
        .ok_or_else(|| RecordingError::NotOurs(format!("its schema has no {VERSION_KEY}")))?;
    if version.parse() != Ok(VERSION) {
        return Err(RecordingError::Version {
            found: version.chars().take(20).collect(),
            known: VERSION,
        });
    }
    let mut places = [0; COLUMNS.len()];
    for (place, name) in places.iter_mut().zip(COLUMNS) {
        let (at, field) = schema
            .fields()
            .find(name)
            .ok_or_else(|| RecordingError::NotOurs(format!("it has no column {name}")))?;
        if *field.data_type() != type_of(name) {
            let found = field.data_type();
            return Err(RecordingError::NotOurs(format!(
                "its column {name} has type {found}"
            )));
        }
        *place = at;
    }
    Ok(places)
}

/// Returns the facts about the recording, by name.
///
/// # Errors
/// Returns an error if they are longer than the limit that every reader has.
pub(super) fn facts(schema: &Schema) -> Result<Vec<(String, String)>, RecordingError> {
    let fact = |(key, value): (&String, &String)| Some((key.strip_prefix(FACT)?.to_owned(), value.clone()));
    let mut facts: Vec<_> = schema.metadata().iter().filter_map(fact).collect();
    let bytes = facts
        .iter()
        .map(|(key, value)| key.len() + value.len() + header::PAIR);
    let bytes: usize = bytes.sum();
    if bytes > header::MOST_BYTES {
        return Err(RecordingError::NotOurs(format!(
            "its facts have {bytes} bytes, but at most {} are allowed",
            header::MOST_BYTES
        )));
    }
    facts.sort();
    Ok(facts)
}
