//! Serialises and deserialises element types with serde.

use super::DType;
use serde::de::{Deserializer, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Writes the name of the type.
impl Serialize for DType {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.name())
    }
}

/// Reads the name of the type, or the name that array libraries use.
impl<'de> Deserialize<'de> for DType {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Name;
        impl Visitor<'_> for Name {
            type Value = DType;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of an element type")
            }
            fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<DType, E> {
                name.parse().map_err(E::custom)
            }
        }
        from.deserialize_str(Name)
    }
}
