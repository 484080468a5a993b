//! The last refused request of each device as the rows of the recording describe it: its error, and the code that made it and that held
//! memory. A trace contains only the tags of a recording, and not its stacks.

use crate::symbols::ModuleSymbols;
use millpond_replay::analysis::{AnalysisError, By, Group, Lines, Moment, NO_STACK, Window, at, site};
use millpond_replay::{Holder, OutOfMemory};
use millpond_trace::history::{Flow, History, HistoryError};
use millpond_trace::recording::{Kind, Row};
use std::cmp::Reverse;
use std::collections::HashMap;

/// A refused request.
pub(super) struct Refused {
    row: Row,
    /// The text of its error. A recording of this library has it as a mark that follows the row.
    error: Option<String>,
}

/// Returns the last refused request of each device in a window.
pub(super) fn refused(history: &History, window: Window) -> Result<HashMap<i32, Refused>, HistoryError> {
    let Window::Times { from, to } = window else {
        return Ok(HashMap::new());
    };
    let mut all: HashMap<i32, Refused> = HashMap::new();
    history.walk(|row, text| {
        let device = history.definitions.pool(row.pool).map_or(-1, |pool| pool.device);
        match row.kind {
            Kind::Refused if (from..=to).contains(&row.time) => {
                let (row, error) = (*row, None);
                all.insert(device, Refused { row, error });
            }
            Kind::Mark => {
                let last = all.get_mut(&device);
                let is_its = |last: &&mut Refused| (last.row.pool, last.row.time) == (row.pool, row.time);
                if let Some(last) = last.filter(is_its)
                    && last.error.is_none()
                {
                    last.error = text.map(str::to_owned);
                }
            }
            _ => {}
        }
        Flow::On
    })?;
    Ok(all)
}

impl Refused {
    /// Adds the error, and the call sites if the recording has stacks.
    pub(super) fn add_to(
        self,
        oom: &mut OutOfMemory,
        history: &History,
        symbols: &ModuleSymbols<'_>,
    ) -> Result<(), AnalysisError> {
        oom.error = self.error;
        if history.definitions.stack_count() == 0 {
            return Ok(());
        }
        if oom.request.tag.is_empty() && self.row.stack != 0 {
            oom.request.tag = site(history, symbols, &self.row);
        }
        let time = self.row.time;
        let moment = Moment::Time(time);
        let then = at(history, symbols, Lines::Told, Window::ALL, moment, 0)?;
        let held = then.held();
        // With several devices, these are also the blocks of the others.
        if held.sum.blocks != oom.held_blocks {
            return Ok(());
        }
        let mut groups: Vec<_> = held.by(By::Site).iter().collect();
        groups.sort_by_key(|group| Reverse(group.sum.requested));
        if groups.iter().all(|group| group.name == NO_STACK) {
            return Ok(());
        }
        oom.sites = groups.into_iter().map(|group| holder(group, time)).collect();
        Ok(())
    }
}

/// Returns a group as the explanation lists it. `now` is the time of the refusal.
fn holder(group: &Group, now: u64) -> Holder {
    Holder {
        tag: group.name.clone(),
        bytes: group.sum.shown_requested(),
        blocks: group.sum.blocks,
        oldest_us: group.oldest.map(|oldest| now.saturating_sub(oldest) / 1_000),
        oldest_steps: None,
    }
}
