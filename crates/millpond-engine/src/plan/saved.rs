//! Plans as text, to store with a program and load when it starts.
//!
//! ```text
//! millpond-plan 1
//! # bytes stream life offset
//! 4194304 0 120 0
//! 512 0 0 -
//! ```
//!
//! There is one line for each allocation of the step. Bytes that change from step to step are written as the fewest and
//! the most, as in `1048576-4194304`. An allocation that is not planned has life 0 and no offset.
//! Height and lower bound follow from the lines, so they are not written. Offsets in other pieces of memory are not
//! written either, because those pieces differ from run to run.

use super::{Place, Plan, Slot, Step};
use crate::block::Stream;
use std::collections::BTreeMap;
use thiserror::Error;

const FIRST_LINE: &str = "millpond-plan 1";
/// Maximum number of slots of a saved plan.
const MOST: usize = 1 << 20;

/// Why a saved plan could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The text does not start with the first line of a saved plan.
    #[error("not a saved plan: its first line is not '{FIRST_LINE}'")]
    NotAPlan,
    /// A line cannot be read.
    #[error("line {line} of the plan: {problem}")]
    Line {
        /// Line number, counted from 1.
        line: usize,
        /// A description of the problem.
        problem: &'static str,
    },
    /// Two blocks that live at the same time share memory.
    #[error(
        "allocations {0} and {1} of the step overlap in the plan, but their blocks are live at the same time"
    )]
    Overlap(usize, usize),
}

impl Plan {
    /// Returns the plan as text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = format!("{FIRST_LINE}\n# bytes stream life offset\n");
        for (slot, place) in self.step.slots.iter().zip(&self.places) {
            let offset = place.filter(|p| p.region == 0).map(|p| p.offset);
            let life = if offset.is_some() { slot.life } else { 0 };
            let offset = offset.map_or_else(|| "-".to_owned(), |o| o.to_string());
            if slot.varies() {
                text.push_str(&format!("{}-", slot.least));
            }
            text.push_str(&format!("{} {} {life} {offset}\n", slot.bytes, slot.stream.0));
        }
        text
    }

    /// Parses a plan and checks that its blocks do not overlap.
    ///
    /// # Errors
    /// Returns an error if the text is not a plan or if blocks of the plan overlap.
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
        // The number of each slot's line.
        let mut numbers = Vec::new();
        for (text, line) in lines.filter(|(text, _)| !text.trim().is_empty() && !text.starts_with('#')) {
            let (slot, place) = read_line(text).map_err(|problem| PlanError::Line { line, problem })?;
            if slots.len() >= MOST {
                return Err(PlanError::Line {
                    line,
                    problem: "the step has more than 1048576 allocations",
                });
            }
            slots.push(slot);
            places.push(place);
            numbers.push(line);
        }
        if let Some(at) = slots.iter().position(|s| s.life as usize > slots.len()) {
            return Err(PlanError::Line {
                line: numbers[at],
                problem: "the life is longer than the step",
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

    /// Returns two slots that live at the same time and share memory, if there are any.
    ///
    /// The function visits the period twice and keeps the live slots ordered by offset. Each new slot is compared only
    /// with its two neighbours, so the cost does not grow when many slots use the same offset one after another.
    pub(super) fn overlap(&self) -> Option<(usize, usize)> {
        let period = self.step.period();
        // Two rounds, because a slot that is live at the end of a step can overlap a slot at the start of the next step.
        let mut ends: Vec<Vec<usize>> = vec![Vec::new(); 2 * period];
        let mut live: BTreeMap<(u32, u64), usize> = BTreeMap::new();
        for (time, slot) in (0..period).chain(0..period).enumerate() {
            for ended in std::mem::take(&mut ends[time]) {
                if let Some(place) = self.places[ended] {
                    live.remove(&(place.region, place.offset));
                }
            }
            let life = self.step.slots[slot].life as usize;
            let Some(place) = self.places[slot].filter(|_| life > 0) else {
                continue;
            };
            let end = |slot: usize| place_end(self.places[slot], &self.step.slots[slot]);
            let before = live.range(..=(place.region, place.offset)).next_back();
            let after = live.range((place.region, place.offset)..).next();
            let beside = before
                .filter(|((region, _), other)| *region == place.region && end(**other) > place.offset)
                .or(after.filter(|((region, offset), _)| *region == place.region && *offset < end(slot)));
            if let Some((_, &other)) = beside {
                return Some((slot.min(other), slot.max(other)));
            }
            live.insert((place.region, place.offset), slot);
            if let Some(ended) = ends.get_mut(time + life) {
                ended.push(slot);
            }
        }
        None
    }
}

/// Returns the offset in its region at which a slot ends, or 0 if the slot has no place.
fn place_end(place: Option<Place>, slot: &Slot) -> u64 {
    place.map_or(0, |place| place.offset.saturating_add(slot.bytes))
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
            .ok_or("the line must have four words: bytes stream life offset")
    };
    let bytes = word()?;
    let (least, bytes) = bytes.split_once('-').unwrap_or((bytes, bytes));
    let number = |word: &str| word.parse::<u64>().map_err(|_| "the bytes are not a number");
    let (least, bytes) = (number(least)?, number(bytes)?);
    let stream = word()?.parse().map_err(|_| "the stream is not a number")?;
    let life = word()?.parse().map_err(|_| "the life is not a number")?;
    let offset = match word()? {
        "-" => None,
        offset => Some(offset.parse::<u64>().map_err(|_| "the offset is not a number")?),
    };
    if least == 0 || least > bytes {
        return Err("the minimum bytes must be at least 1 and at most the maximum bytes");
    }
    if !bytes.is_multiple_of(256) || offset.is_some_and(|o| !o.is_multiple_of(256)) {
        return Err("bytes and offsets must be multiples of 256");
    }
    if offset
        .unwrap_or(0)
        .checked_add(bytes)
        .is_none_or(|end| end > 1 << 60)
    {
        return Err("the block ends above 2^60 bytes");
    }
    if (life == 0) != offset.is_none() {
        return Err("a block must have both a life and an offset, or neither");
    }
    let place = offset.map(|offset| Place { region: 0, offset });
    Ok((
        Slot {
            least,
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
            least: 256 * u64::from(1 + i * 7 % 11 / 2),
            bytes: 256 * u64::from(1 + i * 7 % 11),
            stream: Stream(i % 2),
            life: i * 5 % 17,
        });
        solve(Step {
            slots: slots.collect(),
        })
    }

    #[test]
    fn a_saved_plan_parses_to_the_same_plan() {
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
    fn a_life_that_is_too_long_is_reported_with_its_line() {
        let text = "millpond-plan 1\n512 0 2 0\n\n# a comment\n512 0 3 512\n";
        assert_eq!(
            Plan::from_text(text),
            Err(PlanError::Line {
                line: 5,
                problem: "the life is longer than the step"
            })
        );
    }

    /// The reference for the sweep: compares all pairs of slots.
    fn overlaps(plan: &Plan) -> bool {
        let place =
            |i: usize| plan.places[i].map(|p| (p.region, p.offset, p.offset + plan.step.slots[i].bytes));
        (0..plan.places.len()).any(|i| {
            (i + 1..plan.places.len()).any(|j| match (place(i), place(j)) {
                (Some(a), Some(b)) => a.0 == b.0 && a.1 < b.2 && b.1 < a.2 && plan.step.together(i, j),
                _ => false,
            })
        })
    }

    #[test]
    fn overlaps_are_the_same_as_in_a_comparison_of_all_pairs() {
        let mut state = 1u64;
        let mut below = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % most
        };
        let mut found = 0;
        for _ in 0..2_000 {
            let period = 1 + below(7);
            let mut plan = Plan {
                step: Step::default(),
                places: Vec::new(),
                height: 0,
                lower_bound: 0,
            };
            for _ in 0..period {
                let life = below(period + 1) as u32;
                let bytes = 256 * (1 + below(2));
                plan.step.slots.push(Slot {
                    least: bytes,
                    bytes,
                    stream: Stream(0),
                    life,
                });
                let (region, offset) = (below(2) as u32, 256 * below(4));
                plan.places.push((life > 0).then_some(Place { region, offset }));
            }
            let pair = plan.overlap();
            assert_eq!(pair.is_some(), overlaps(&plan), "{plan:?}");
            if let Some((a, b)) = pair {
                assert!(a < b && plan.step.together(a, b), "{plan:?}");
                found += 1;
            }
        }
        assert!((200..1_800).contains(&found), "{found}");
    }

    /// Half a million blocks use the same offset one after another. Comparing every pair would take about 10^11 comparisons.
    #[test]
    fn many_slots_at_one_place_are_checked_without_comparing_all_pairs() {
        let text = format!("{FIRST_LINE}\n{}", "512 0 1 0\n".repeat(500_000));
        assert_eq!(Plan::from_text(&text).map(|plan| plan.height), Ok(512));
    }

    #[test]
    fn invalid_plans_are_reported() {
        assert_eq!(Plan::from_text(""), Err(PlanError::NotAPlan));
        for bad in [
            "512 0 2",
            "512 0 x 0",
            "100 0 1 0",
            "512 0 0 0",
            "512 0 1 -",
            "512 0 1 18446744073709551360",
            "512 0 9 0",
            "0-512 0 1 0",
            "512-256 0 1 0",
            "256-512-768 0 1 0",
        ] {
            let read = Plan::from_text(&format!("{FIRST_LINE}\n{bad}\n"));
            assert!(matches!(read, Err(PlanError::Line { .. })), "{bad}: {read:?}");
        }
    }
}
