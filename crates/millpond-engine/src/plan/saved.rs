//! A plan as text, to be kept beside a program and loaded when it starts.
//!
//! ```text
//! millpond-plan 1
//! # bytes stream life offset
//! 4194304 0 120 0
//! 512 0 0 -
//! ```
//!
//! One line for each allocation of the step; a life of 0 and no offset where it is not planned. Height and lower
//! bound follow from the lines, so they are not written. Offsets in leftover pieces are not either: those
//! differ from run to run.

use super::{Place, Plan, Slot, Step};
use crate::policy::Stream;
use thiserror::Error;

const FIRST_LINE: &str = "millpond-plan 1";
/// Slots of a saved plan at most.
const MOST: usize = 1 << 20;

/// Why a saved plan could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// It does not begin as one.
    #[error("not a saved plan: its first line is not '{FIRST_LINE}'")]
    NotAPlan,
    /// A line cannot be read.
    #[error("line {line} of the plan: {problem}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// Two blocks that live at once share memory.
    #[error(
        "the plan puts two blocks that live at once, allocations {0} and {1} of the step, at the same place"
    )]
    Overlap(usize, usize),
}

impl Plan {
    /// The plan as text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = format!("{FIRST_LINE}\n# bytes stream life offset\n");
        for (slot, place) in self.step.slots.iter().zip(&self.places) {
            let offset = place.filter(|p| p.region == 0).map(|p| p.offset);
            let life = if offset.is_some() { slot.life } else { 0 };
            let offset = offset.map_or_else(|| "-".to_owned(), |o| o.to_string());
            text.push_str(&format!("{} {} {life} {offset}\n", slot.bytes, slot.stream.0));
        }
        text
    }

    /// Reads a plan and makes sure that nothing in it overlaps.
    ///
    /// # Errors
    /// When it is no plan, or one that must not be followed.
    pub fn from_text(text: &str) -> Result<Self, PlanError> {
        let mut lines = text.lines().zip(1..);
        if lines
            .next()
            .is_none_or(|(first, _)| first.trim_end() != FIRST_LINE)
        {
            return Err(PlanError::NotAPlan);
        }
        let mut slots = Vec::new();
        let mut places = Vec::new();
        for (text, line) in lines.filter(|(text, _)| !text.trim().is_empty() && !text.starts_with('#')) {
            let (slot, place) = read_line(text).map_err(|problem| PlanError::Line { line, problem })?;
            if slots.len() >= MOST {
                return Err(PlanError::Line {
                    line,
                    problem: "the step is too long",
                });
            }
            slots.push(slot);
            places.push(place);
        }
        if let Some(at) = slots.iter().position(|s| s.life as usize > slots.len()) {
            return Err(PlanError::Line {
                line: at + 3,
                problem: "a life longer than the step",
            });
        }
        let step = Step { slots };
        let plan = Self {
            height: top(&step, &places),
            lower_bound: step.lower_bound(),
            step,
            places,
        };
        match plan.overlap() {
            Some((a, b)) => Err(PlanError::Overlap(a, b)),
            None => Ok(plan),
        }
    }

    /// Two slots that live at once and share memory, if there are any.
    pub(super) fn overlap(&self) -> Option<(usize, usize)> {
        let placed = self.places.iter().zip(&self.step.slots).enumerate();
        let mut all: Vec<(u32, u64, u64, usize)> = placed
            .filter_map(|(i, (place, slot))| place.map(|p| (p.region, p.offset, p.offset + slot.bytes, i)))
            .collect();
        all.sort_unstable();
        for (n, &(region, _, end, i)) in all.iter().enumerate() {
            let beside = all[n + 1..]
                .iter()
                .take_while(|other| other.0 == region && other.1 < end);
            if let Some(other) = beside
                .filter(|other| self.step.together(i, other.3))
                .map(|o| o.3)
                .next()
            {
                return Some((i, other));
            }
        }
        None
    }
}

fn top(step: &Step, places: &[Option<Place>]) -> u64 {
    let tops = places
        .iter()
        .zip(&step.slots)
        .filter_map(|(place, slot)| place.map(|p| p.offset + slot.bytes));
    tops.max().unwrap_or(0)
}

fn read_line(text: &str) -> Result<(Slot, Option<Place>), &'static str> {
    let mut words = text.split_whitespace();
    let mut word = || {
        words
            .next()
            .ok_or("four words are needed: bytes stream life offset")
    };
    let bytes: u64 = word()?.parse().map_err(|_| "the bytes are no number")?;
    let stream = word()?.parse().map_err(|_| "the stream is no number")?;
    let life = word()?.parse().map_err(|_| "the life is no number")?;
    let offset = match word()? {
        "-" => None,
        offset => Some(offset.parse::<u64>().map_err(|_| "the offset is no number")?),
    };
    if bytes == 0 || !bytes.is_multiple_of(256) || offset.is_some_and(|o| !o.is_multiple_of(256)) {
        return Err("bytes and offsets are multiples of 256");
    }
    if offset
        .unwrap_or(0)
        .checked_add(bytes)
        .is_none_or(|end| end > 1 << 60)
    {
        return Err("no memory is that large");
    }
    if (life == 0) != offset.is_none() {
        return Err("a block with a life has an offset, and the other way round");
    }
    let place = offset.map(|offset| Place { region: 0, offset });
    Ok((
        Slot {
            bytes,
            stream: Stream(stream),
            life,
        },
        place,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::solve;

    fn plan() -> Plan {
        let slots = (0..50u32).map(|i| Slot {
            bytes: 256 * u64::from(1 + i * 7 % 11),
            stream: Stream(i % 2),
            life: i * 5 % 17,
        });
        solve(Step {
            slots: slots.collect(),
        })
    }

    #[test]
    fn a_plan_comes_back_as_it_was() {
        let plan = plan();
        assert_eq!(Plan::from_text(&plan.to_text()), Ok(plan));
    }

    #[test]
    fn a_plan_that_overlaps_is_refused() {
        let text = "millpond-plan 1\n512 0 2 0\n512 0 1 256\n";
        assert_eq!(Plan::from_text(text), Err(PlanError::Overlap(0, 1)));
        assert!(Plan::from_text(&text.replace(" 256\n", " 512\n")).is_ok());
    }

    #[test]
    fn what_is_no_plan_is_told() {
        assert_eq!(Plan::from_text(""), Err(PlanError::NotAPlan));
        for bad in [
            "512 0 2",
            "512 0 x 0",
            "100 0 1 0",
            "512 0 0 0",
            "512 0 1 -",
            "512 0 1 18446744073709551360",
            "512 0 9 0",
        ] {
            let read = Plan::from_text(&format!("{FIRST_LINE}\n{bad}\n"));
            assert!(matches!(read, Err(PlanError::Line { .. })), "{bad}: {read:?}");
        }
    }
}
