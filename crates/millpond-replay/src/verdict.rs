//! Builds the verdict, which says in a few sentences how much memory a program needs, why its allocator needs
//! more than the program holds, and which setting lowers it.

mod search;
mod sentences;

use crate::allocator::Setup;
use crate::cards::cards;
use crate::error::ReplayError;
use crate::outcome::PolicyResult;
use crate::prepared::Prepared;
use crate::report::{Choice, FittingCard, Verdict};
use millpond_engine::Simulated;

pub(crate) use search::{Candidate, Candidates, candidates, others};

/// The smallest share of the memory needed for which a difference is reported.
const WORTH: f64 = 0.01;

/// The most cards on which a replay is tried.
const CARDS: usize = 4;

/// A function that replays with these settings on the device, and finds the smallest device.
type Replay<'a, T> = &'a (dyn Fn(&Setup) -> Result<(PolicyResult, T), ReplayError> + Sync);

/// Whether the program finishes on the [limited](Prepared::limited) device under its own allocator, and under the better settings.
#[derive(Clone, Copy, Debug)]
struct Finish {
    own: bool,
    better: bool,
}

impl Choice {
    /// Completes a replay with the failure below the smallest device, and with the smallest card.
    fn new(
        prepared: &Prepared<'_>,
        setup: &Setup,
        result: PolicyResult,
        apply: Option<String>,
    ) -> Result<Self, ReplayError> {
        let needs = result.smallest_device_bytes;
        let on = |bytes| prepared.failure_on(setup, Some(bytes));
        let below = match needs
            .and_then(|bytes| bytes.checked_sub(Simulated::PAGE))
            .filter(|bytes| *bytes > 0)
        {
            Some(bytes) => on(bytes)?,
            None => None,
        };
        let card = match needs.filter(|_| prepared.trace().origin.device >= 0) {
            Some(needs) => smallest_card(needs, |bytes| Ok(on(bytes)?.is_none()))?,
            None => None,
        };
        Ok(Self {
            name: setup.name(),
            apply,
            result,
            card,
            below,
        })
    }
}

/// Returns the smallest card that has `needs` bytes and on which `finishes` holds. A policy need not finish on
/// every larger device, so a few cards are tried.
fn smallest_card(
    needs: u64,
    finishes: impl Fn(u64) -> Result<bool, ReplayError>,
) -> Result<Option<FittingCard>, ReplayError> {
    let mut large: Vec<_> = cards()
        .iter()
        .map(|card| (card.total.saturating_sub(card.context), card.name))
        .filter(|(bytes, _)| *bytes >= needs)
        .collect();
    large.sort_unstable();
    for (bytes, name) in large.into_iter().take(CARDS) {
        if finishes(bytes)? {
            let name = name.to_owned();
            return Ok(Some(FittingCard { name, bytes }));
        }
    }
    Ok(None)
}

/// Returns the verdict, and the second result of `replay` for the better settings, if there are any.
///
/// `own_result` is the finished replay of the program's own allocator. `replay` replays with other settings on the
/// device, and finds the smallest device.
pub(crate) fn verdict<T: Send>(
    prepared: &Prepared<'_>,
    own_result: PolicyResult,
    candidates: &Candidates,
    replay: Replay<'_, T>,
) -> Result<(Verdict, Option<T>), ReplayError> {
    let own = prepared.own();
    let own_finishes = prepared.finishes(&own.setup, &own_result);
    let found = search::better(prepared, &own_result, own_finishes, &candidates.list, replay);
    let own_choice = Choice::new(prepared, &own.setup, own_result, None)?;
    let (better, better_finishes, more) = match found {
        Some(found) => {
            let better = Choice::new(prepared, &found.setup, found.result, Some(found.apply))?;
            (Some(better), found.finishes, Some(found.more))
        }
        None => (None, false, None),
    };
    let finish = Finish {
        own: own_finishes,
        better: better_finishes,
    };
    let verdict = Verdict {
        sentences: sentences::sentences(
            prepared,
            &own_choice,
            better.as_ref(),
            finish,
            candidates.is_complete,
        ),
        own: own_choice,
        own_is_known: own.known,
        better,
    };
    Ok((verdict, more))
}
