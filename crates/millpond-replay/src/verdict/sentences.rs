//! The sentences of a verdict.

use super::{Finish, WORTH};
use crate::oom::Cause;
use crate::prepared::{Prepared, is_of_host_pool};
use crate::report::Choice;
use crate::web::text::Count;
use millpond_engine::{display_size, display_size_exact, display_size_up};
use millpond_trace::{Action, Trace};

/// Additional driver time below this is not mentioned, in microseconds for each allocation.
const TIME_NOTICED: f64 = 10.0;

/// Returns one to four sentences. `is_complete` says whether a search would try no more settings.
pub(super) fn sentences(
    prepared: &Prepared<'_>,
    own: &Choice,
    better: Option<&Choice>,
    finish: Finish,
    is_complete: bool,
) -> Vec<String> {
    let device = prepared.options().device.bytes;
    let facts = Facts {
        peak: prepared.program().peak_requested,
        allocations: f64::from(prepared.trace().allocations),
        device,
        is_of_host_pool: is_of_host_pool(prepared.trace()),
        reserved: prepared.trace().recorded_peak_reserved,
        unlisted: prepared.trace().unlisted_bytes,
        had: prepared.limited().bytes.filter(|_| device.is_none()),
        own,
        better,
        finish,
        is_complete,
        made: prepared.program().refused,
        is_last: ends_with_refusal(prepared.trace()),
        refused: prepared.options().selection.fatal(prepared.trace()).count() as u64,
    };
    match facts.device {
        Some(device) if facts.peak > device => facts.too_much(device),
        Some(device) => match &own.result.first_failure {
            Some(_) => facts.fails(device),
            None => facts.finishes(device),
        },
        None => facts.unlimited(),
    }
}

struct Facts<'a> {
    peak: u64,
    allocations: f64,
    device: Option<u64>,
    /// Whether a pool of host memory of this library was recorded.
    is_of_host_pool: bool,
    /// The most bytes that the recorded allocator reserved.
    reserved: Option<u64>,
    /// Bytes of blocks that are not in the recording.
    unlisted: u64,
    /// The bytes that were available to the recorded program when it ran out of memory.
    had: Option<u64>,
    own: &'a Choice,
    better: Option<&'a Choice>,
    finish: Finish,
    is_complete: bool,
    /// The number of requests that the recorded allocator refused.
    refused: u64,
    /// The number of those that the replays make again.
    made: u64,
    /// Whether the recording ends with a refused request, so that nothing is known of later requests.
    is_last: bool,
}

impl Facts<'_> {
    fn unlimited(&self) -> Vec<String> {
        let own = self.own;
        let subject = self.subject();
        let holds = format!("{subject} holds at most {} at once", display_size(self.peak));
        if self.is_of_host_pool {
            return self.of_host_pool(&holds);
        }
        let first = match own.needs() {
            Some(needs) => format!(
                "{holds} and needs {} under {}{}.",
                display_size_up(needs),
                own.name,
                match self.had {
                    Some(had) if needs > had =>
                        format!(", {} more than it could have", display_size(needs - had)),
                    Some(_) => String::new(),
                    None => fits_on(own, ": it fits on"),
                }
            ),
            None => format!("{holds}, and does not finish under {} on any device.", own.name),
        };
        let mut all = vec![first];
        // The explanation of a refused request says where the memory was.
        all.extend(self.waste().filter(|_| self.refused == 0));
        all.push(self.advice());
        all
    }

    /// Returns the sentences for a recording of a pool of host memory.
    fn of_host_pool(&self, holds: &str) -> Vec<String> {
        // A small program needs no segment but the first one, which the pool takes before it is recorded.
        let Some(pool) = self.reserved else {
            return vec![format!("{holds}.")];
        };
        let mut all = vec![format!(
            "{holds}, and its pool takes at most {} from the system.",
            display_size(pool)
        )];
        let rest = pool.saturating_sub(self.peak).saturating_sub(self.unlisted);
        let share = rest as f64 / pool.max(1) as f64;
        if share > WORTH {
            all.push(format!(
                "Of that, {} ({:.0} %) is rounding and free memory that the pool keeps. The setting trim-every:1s returns the free \
                 part sooner.",
                display_size(rest),
                100.0 * share
            ));
        }
        if self.unlisted as f64 > WORTH * pool as f64 {
            all.push(format!(
                "The pool's memory includes {} of blocks from before the recording, which it does not list. The child of a fork \
                 inherits such blocks.",
                display_size(self.unlisted)
            ));
        }
        all
    }

    /// Returns the words for the program that is replayed.
    fn subject(&self) -> String {
        let requests = |count: u64| match count {
            1 => "request".to_owned(),
            some => format!("{} requests", Count(some)),
        };
        match (self.refused, self.refused - self.made) {
            (0, _) => "The program".to_owned(),
            (1, 0) if self.is_last => "Up to the refused request, the program".to_owned(),
            (1, 0) => "With the refused request, the program".to_owned(),
            (all, 0) => format!("With the {} refused requests, the program", Count(all)),
            (_, left) => format!(
                "Without the {} that no device can serve, the program",
                requests(left)
            ),
        }
    }

    /// Returns the sentences for a program that holds more than the device has.
    fn too_much(&self, device: u64) -> Vec<String> {
        let mut all = vec![format!(
            "No allocator can run this in {}: the program itself holds {} at its peak, {} too much.",
            display_size_exact(device),
            display_size(self.peak),
            display_size(self.peak - device)
        )];
        let needs = self.better.unwrap_or(self.own);
        if let Some(bytes) = needs.needs() {
            all.push(format!(
                "Change what the program holds, or use a device with {} for it (under {}){}.",
                display_size_up(bytes),
                needs.name,
                fits_on(needs, ", for example")
            ));
        }
        all
    }

    /// Returns the sentences for a program that could run on the device, but not under its own allocator.
    fn fails(&self, device: u64) -> Vec<String> {
        let own = self.own;
        let needs = own.needs().map_or_else(String::new, |needs| {
            format!(", where it needs {}", display_size_up(needs))
        });
        let mut all = vec![format!(
            "The program runs out of memory in {} under {}{needs}, although it holds at most {} at once.",
            display_size_exact(device),
            own.name,
            display_size(self.peak)
        )];
        all.push(self.advice());
        all
    }

    fn finishes(&self, device: u64) -> Vec<String> {
        let own = self.own;
        let first = format!(
            "The program finishes in {} under {}",
            display_size_exact(device),
            own.name
        );
        let first = match own.needs() {
            Some(needs) => format!(
                "{first}, which needs {} for the {} that the program holds at its peak.",
                display_size_up(needs),
                display_size(self.peak)
            ),
            None => format!("{first}."),
        };
        let mut all = vec![first];
        all.extend(self.waste());
        all.push(self.advice());
        all
    }

    /// Returns a sentence about the bytes that the program's own allocator needs beyond the peak of the
    /// program, with the evidence.
    fn waste(&self) -> Option<String> {
        let needs = self.own.needs()?;
        let waste = needs.saturating_sub(self.peak);
        let share = waste as f64 / needs.max(1) as f64;
        if share <= WORTH {
            return Some(format!("Its allocator wastes {:.1} % of that.", 100.0 * share));
        }
        let wasted = format!(
            "Of that, {} ({:.0} %) is waste",
            display_size(waste),
            100.0 * share
        );
        let Some(below) = &self.own.below else {
            return Some(format!("{wasted}."));
        };
        let free = below.free_bytes.saturating_add(below.cached_bytes);
        let request = display_size(below.bytes);
        Some(if below.cause == Cause::Rounding && free >= below.bytes {
            format!(
                "{wasted}: with less, a request for {request} fails. {}",
                below.why
            )
        } else if free >= below.bytes {
            format!(
                "{wasted}: with less, a request for {request} fails although {} are free, because no free piece is large \
                 enough.",
                display_size(free)
            )
        } else {
            let taken = below.reserved_bytes.saturating_sub(below.cached_bytes);
            format!(
                "{wasted}: with less, a request for {request} fails because rounding takes {} beyond the {} that the \
                 program holds then.",
                display_size(taken.saturating_sub(below.held_bytes)),
                display_size(below.held_bytes)
            )
        })
    }

    /// Returns a sentence about the better setting, or about the lack of one.
    fn advice(&self) -> String {
        let Some(better) = self.better else {
            if self.had.is_some_and(|had| self.peak > had) {
                return "No setting can help, because the program itself holds more: change what it holds."
                    .to_owned();
            }
            let cannot = match !self.finish.own {
                true => "No setting of this allocator that was tried lets it finish",
                false => "No setting of this allocator that was tried lowers this by 1 %",
            };
            return match self.is_complete {
                true => format!("{cannot}."),
                false => format!("{cannot}: `millpond tune` tries more, and changes of the program."),
            };
        };
        let apply = better.apply.as_deref().unwrap_or_default();
        let apply = match (apply.strip_prefix("export "), apply.strip_prefix("unset ")) {
            (Some(setting), _) => format!("Set {setting}"),
            (_, Some(variable)) => format!("Unset {variable}"),
            _ => format!("Use {apply}"),
        };
        let needs = better.needs().unwrap_or(0);
        let saved = match self.own.needs() {
            Some(own) if own > needs => format!(", {} less", display_size(own - needs)),
            _ => String::new(),
        };
        format!(
            "{apply}: it then needs {}{saved}{}{}.",
            display_size_up(needs),
            self.fits(better, needs),
            self.price(better)
        )
    }

    /// Returns words that say whether the program finishes under the better settings, if that has changed or if it does not.
    fn fits(&self, better: &Choice, needs: u64) -> String {
        let (limit, it) = match (self.device, self.had) {
            (None, None) if better.card == self.own.card => return String::new(),
            (None, None) => return fits_on(better, " and fits on"),
            (Some(device), _) => (device, "the device has"),
            (None, Some(had)) => (had, "it could have"),
        };
        match (self.finish.own, self.finish.better, needs.checked_sub(limit)) {
            (true, true, _) => String::new(),
            (false, true, _) if self.device.is_some() => " and finishes there".to_owned(),
            (false, true, _) => " and gets the refused memory".to_owned(),
            (_, false, Some(more @ 1..)) => {
                format!(", which is still {} more than {it}", display_size(more))
            }
            (_, false, _) => ", and still runs out of memory".to_owned(),
        }
    }

    /// Returns words about the additional driver time, if it is noticeable.
    fn price(&self, better: &Choice) -> String {
        let extra = better.result.modelled_driver_ms - self.own.result.modelled_driver_ms;
        let is_noticed = 1000.0 * extra >= TIME_NOTICED * self.allocations && extra >= 1.0;
        if !is_noticed || !self.finish.own {
            return String::new();
        }
        format!(", for {extra:.0} ms more in driver calls (modelled)")
    }
}

/// Returns whether no request follows the last refused one.
fn ends_with_refusal(trace: &Trace) -> bool {
    let mut events = trace.events.iter().rev();
    let last = events.find(|event| matches!(event.action, Action::Alloc | Action::OutOfMemory));
    last.is_some_and(|event| event.action == Action::OutOfMemory)
}

fn fits_on(choice: &Choice, words: &str) -> String {
    match &choice.card {
        Some(card) => format!(
            "{words} {} ({} for the program)",
            card.name,
            display_size(card.bytes)
        ),
        None => String::new(),
    }
}
