//! The modelled host time of driver calls.

use crate::meter::{Calls, Meter};
use std::collections::BTreeMap;
use thiserror::Error;

/// Microseconds of host time for each call, for each handle and page of a call, and for each stall.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    per_call: [f64; 10],
    per_handle: [f64; 10],
    per_page: [f64; 10],
    stall: f64,
}

/// Why a cost table could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CostsError {
    /// The text is not TOML of the expected shape.
    #[error("the cost table cannot be read: {0}")]
    Syntax(String),
    /// The cost of a kind of call is missing, negative or not finite.
    #[error("the cost table needs a per_call of zero or more in section [{0}]")]
    Missing(String),
    /// The cost of a page is negative or not finite.
    #[error("the cost table needs a per_page of zero or more in section [{0}], or none")]
    PerPage(String),
    /// The cost of a handle is negative or not finite.
    #[error("the cost table needs a per_handle of zero or more in section [{0}], or none")]
    PerHandle(String),
}

impl Costs {
    /// Parses a table with one section for each kind of call and one section for stalls. Each section has `per_call`,
    /// the microseconds of one call. The section of a call may also have `per_handle` and `per_page`, the additional
    /// microseconds for each handle and each page. Both are zero by default. Other sections and keys are ignored.
    ///
    /// # Errors
    /// Returns an error if the text is not TOML, or if a cost is missing, negative or not finite.
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
        let each = |kind: &str, key: &str, refused: fn(String) -> CostsError| {
            let given = table.get(kind).and_then(|section| section.get(key));
            let given = given.copied().unwrap_or(0.0);
            let sound = given >= 0.0 && given.is_finite();
            sound.then_some(given).ok_or_else(|| refused(kind.to_owned()))
        };
        let (mut per_call, mut per_handle, mut per_page) = ([0.0; 10], [0.0; 10], [0.0; 10]);
        for (index, (kind, _)) in Calls::default().by_name().into_iter().enumerate() {
            per_call[index] = cost(kind)?;
            per_handle[index] = each(kind, "per_handle", CostsError::PerHandle)?;
            per_page[index] = each(kind, "per_page", CostsError::PerPage)?;
        }
        Ok(Self {
            per_call,
            per_handle,
            per_page,
            stall: cost("stall")?,
        })
    }

    /// Returns the modelled milliseconds of host time for the calls, handles and pages that `meter` has counted, and
    /// for `stalls` stalls.
    #[must_use]
    pub fn milliseconds(&self, meter: &Meter, stalls: u64) -> f64 {
        let sum = |of: &Calls, costs: [f64; 10]| -> f64 {
            let each = of.by_name().into_iter().zip(costs);
            each.map(|((_, n), cost)| n as f64 * cost).sum()
        };
        let calls = sum(&meter.calls, self.per_call);
        let handles = sum(&meter.handles, self.per_handle);
        let pages = sum(&meter.pages, self.per_page);
        (calls + handles + pages + stalls as f64 * self.stall) / 1000.0
    }
}

impl Default for Costs {
    /// Returns the costs of the table in `costs.toml`.
    fn default() -> Self {
        Self::from_toml(include_str!("costs.toml")).unwrap_or(Self {
            per_call: [0.0; 10],
            per_handle: [0.0; 10],
            per_page: [0.0; 10],
            stall: 0.0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a table in which a call takes this many microseconds, and `more` at the end of the section of one kind.
    fn table(each: f64, kind: &str, more: &str) -> String {
        let kinds = Calls::default().by_name().into_iter().map(|(kind, _)| kind);
        kinds
            .chain(["stall"])
            .map(|name| {
                let more = if name == kind { more } else { "" };
                format!("[{name}]\nper_call = {each}\n{more}\n")
            })
            .collect()
    }

    #[test]
    fn default_table_is_complete() {
        let costs = Costs::from_toml(include_str!("costs.toml")).expect("costs.toml");
        assert_eq!(costs, Costs::default());
        let mut meter = Meter::default();
        meter.calls.malloc = 1;
        assert!(costs.milliseconds(&meter, 0) > 0.0);
    }

    #[test]
    fn calls_and_stalls_are_added_up() {
        let costs = Costs::from_toml(&table(250.0, "", "")).expect("a table");
        let mut meter = Meter::default();
        (meter.calls.malloc, meter.calls.free) = (2, 1);
        assert_eq!(costs.milliseconds(&meter, 1), 1.0);
    }

    #[test]
    fn the_cost_of_each_page_is_added() {
        let text = table(2.0, "map", "per_page = 0.5\nslowest = 9");
        let costs = Costs::from_toml(&text).expect("a table");
        let mut meter = Meter::default();
        meter.calls.map = 2;
        (meter.pages.map, meter.pages.unmap) = (32, 32);
        assert_eq!(costs.milliseconds(&meter, 0), 0.020);
        let wrong = text.replace("per_page = 0.5", "per_page = -0.5");
        assert_eq!(Costs::from_toml(&wrong), Err(CostsError::PerPage("map".into())));
    }

    #[test]
    fn the_cost_of_each_handle_is_added() {
        let with = table(60.0, "set_access", "per_handle = 2.5");
        let without = table(60.0, "", "");
        let wrong = with.replace("per_handle = 2.5", "per_handle = -1.0");
        let [with, without] = [with, without].map(|text| Costs::from_toml(&text).expect("a table"));
        let of = |handles| {
            let mut meter = Meter::default();
            (meter.calls.set_access, meter.handles.set_access) = (1, handles);
            meter
        };
        assert_eq!(with.milliseconds(&of(256), 0), 0.7);
        assert_eq!(with.milliseconds(&of(1), 0), 0.0625);
        assert_eq!(without.milliseconds(&of(256), 0), 0.06);
        assert_eq!(
            Costs::from_toml(&wrong),
            Err(CostsError::PerHandle("set_access".into()))
        );
    }

    #[test]
    fn the_error_for_an_incomplete_table_names_the_missing_section() {
        assert_eq!(
            Costs::from_toml("[malloc]\nper_call = 1.0"),
            Err(CostsError::Missing("free".into()))
        );
        assert!(matches!(Costs::from_toml("malloc ="), Err(CostsError::Syntax(_))));
    }
}
