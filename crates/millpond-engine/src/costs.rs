//! What driver calls are made, and what they are assumed to cost.

use std::collections::BTreeMap;
use thiserror::Error;

/// Calls to the driver, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Plain device allocations.
    pub malloc: u64,
    /// Plain device frees; each synchronises the device.
    pub free: u64,
    /// Physical page handles created.
    pub create: u64,
    /// Handles mapped at an address.
    pub map: u64,
    /// Ranges made accessible.
    pub set_access: u64,
    /// Handles unmapped.
    pub unmap: u64,
    /// Handles released.
    pub release: u64,
    /// Address ranges reserved.
    pub reserve: u64,
    /// Events recorded on a stream.
    pub event_record: u64,
    /// Streams made to wait for an event on the device.
    pub event_wait: u64,
}

impl Calls {
    /// The kinds with their names, in the order of the report.
    #[must_use]
    pub fn by_name(&self) -> [(&'static str, u64); 10] {
        [
            ("malloc", self.malloc),
            ("free", self.free),
            ("create", self.create),
            ("map", self.map),
            ("set_access", self.set_access),
            ("unmap", self.unmap),
            ("release", self.release),
            ("reserve", self.reserve),
            ("event_record", self.event_record),
            ("event_wait", self.event_wait),
        ]
    }

    /// Calls of all kinds.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.by_name().iter().map(|(_, n)| n).sum()
    }
}

/// Microseconds of host time for each call, and for each stall.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    per_call: [f64; 10],
    stall: f64,
}

/// Why a table of costs could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CostsError {
    /// The text is not TOML of the expected shape.
    #[error("the cost table is not readable: {0}")]
    Syntax(String),
    /// A kind of call has no cost.
    #[error("the cost table has no [{0}] with a per_call of zero or more")]
    Missing(String),
}

impl Costs {
    /// Reads a table with one section per kind of call and `per_call` microseconds in each.
    ///
    /// # Errors
    /// When the text is not TOML, or a kind is missing or negative.
    pub fn from_toml(text: &str) -> Result<Self, CostsError> {
        let table: BTreeMap<String, BTreeMap<String, f64>> =
            toml::from_str(text).map_err(|e| CostsError::Syntax(e.message().to_owned()))?;
        let cost = |kind: &str| {
            let found = table
                .get(kind)
                .and_then(|section| section.get("per_call"))
                .copied();
            found
                .filter(|c| *c >= 0.0 && c.is_finite())
                .ok_or_else(|| CostsError::Missing(kind.to_owned()))
        };
        let mut per_call = [0.0; 10];
        for (slot, (kind, _)) in per_call.iter_mut().zip(Calls::default().by_name()) {
            *slot = cost(kind)?;
        }
        Ok(Self {
            per_call,
            stall: cost("stall")?,
        })
    }

    /// Modelled milliseconds of host time for these calls and stalls.
    #[must_use]
    pub fn milliseconds(&self, calls: &Calls, stalls: u64) -> f64 {
        let calls: f64 = calls
            .by_name()
            .iter()
            .zip(self.per_call)
            .map(|((_, n), cost)| *n as f64 * cost)
            .sum();
        (calls + stalls as f64 * self.stall) / 1000.0
    }
}

impl Default for Costs {
    /// The table in `costs.toml`.
    fn default() -> Self {
        Self::from_toml(include_str!("costs.toml")).unwrap_or(Self {
            per_call: [0.0; 10],
            stall: 0.0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_table_is_complete() {
        let costs = Costs::from_toml(include_str!("costs.toml")).expect("costs.toml");
        let calls = Calls {
            malloc: 2,
            free: 1,
            ..Calls::default()
        };
        assert_eq!(
            costs.milliseconds(&calls, 1),
            (2.0 * 200.0 + 300.0 + 200.0) / 1000.0
        );
    }

    #[test]
    fn an_incomplete_table_names_what_is_missing() {
        assert_eq!(
            Costs::from_toml("[malloc]\nper_call = 1.0"),
            Err(CostsError::Missing("free".into()))
        );
        assert!(matches!(Costs::from_toml("malloc ="), Err(CostsError::Syntax(_))));
    }
}
