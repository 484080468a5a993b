//! A wrapper that makes chosen calls fail.

use super::held::HeldMemory;
use super::{CallKind, SourceEvent, SourceWrapper};
use crate::error::SourceError;
use crate::source::Source;

/// The calls of a kind that fail.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// The n-th call, counted from 0.
    Nth(u64),
    /// Every n-th call. For example, 3 selects the third call, the sixth call and so on. 0 selects no call.
    Every(u64),
    /// Each call with this probability. The same seed gives the same failures.
    Chance {
        /// The probability of a failure, from 0 to 1.
        probability: f64,
        /// The seed of the random numbers.
        seed: u64,
    },
    /// Calls for more than this number of bytes.
    LargerThan(u64),
    /// Calls that would raise the held bytes above this number. Moves and reservations do not raise it.
    Past(u64),
}

/// The error of a failing call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A lack of memory.
    OutOfMemory,
    /// A driver error with this code.
    Driver(i32),
}

#[derive(Clone, Debug)]
struct Rule {
    kind: CallKind,
    when: When,
    failure: Failure,
    /// State of the random number generator.
    dice: u64,
}

impl Rule {
    fn strikes(&mut self, nth: u64, bytes: u64, held: u64) -> bool {
        match self.when {
            When::Nth(n) => nth == n,
            When::Every(n) => (nth + 1).checked_rem(n) == Some(0),
            When::Chance { probability, .. } => self.roll() < probability,
            When::LargerThan(most) => bytes > most,
            When::Past(most) => self.kind.takes_memory() && held.saturating_add(bytes) > most,
        }
    }

    /// Returns a random number from 0 to below 1 (splitmix64).
    fn roll(&mut self) -> f64 {
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.dice;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A source whose calls fail by rules. A failing call does not reach the inner source.
///
/// The rules are checked in the order in which they were added, and the first one that applies determines the error.
/// Calls that cannot fail ([`CallKind::can_fail`]) are not affected.
///
/// ```
/// use millpond_engine::{CallKind, Failure, Faulty, Simulated, Source, When};
///
/// let mut source = Faulty::new(Simulated::new()).failing(CallKind::Take, When::Every(2), Failure::OutOfMemory);
/// assert!(source.take(1).is_ok() && source.take(1).is_err() && source.take(1).is_ok());
/// assert_eq!(source.struck(), 1);
/// ```
#[derive(Debug)]
pub struct Faulty<S> {
    inner: S,
    rules: Vec<Rule>,
    calls: [u64; CallKind::ALL.len()],
    struck: u64,
    held: HeldMemory,
}

impl<S: Source> Faulty<S> {
    /// Wraps a source without any rule.
    pub fn new(inner: S) -> Self {
        Self {
            inner,
            rules: Vec::new(),
            calls: Default::default(),
            struck: 0,
            held: HeldMemory::default(),
        }
    }

    /// Adds a rule.
    #[must_use]
    pub fn failing(mut self, kind: CallKind, when: When, failure: Failure) -> Self {
        let dice = if let When::Chance { seed, .. } = when {
            seed
        } else {
            0
        };
        self.rules.push(Rule {
            kind,
            when,
            failure,
            dice,
        });
        self
    }

    /// Returns the number of calls of a kind so far, including those made to fail.
    #[must_use]
    pub fn calls(&self, kind: CallKind) -> u64 {
        self.calls[kind as usize]
    }

    /// Returns the number of calls made to fail so far.
    #[must_use]
    pub fn struck(&self) -> u64 {
        self.struck
    }

    /// Returns the inner source.
    #[must_use]
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// Returns the inner source for calls that the wrapper does not support. The wrapper does not see these calls.
    #[doc(hidden)]
    pub fn inner_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    fn strike(&mut self, kind: CallKind, bytes: u64) -> Result<(), SourceError> {
        let nth = self.calls[kind as usize];
        self.calls[kind as usize] += 1;
        let held = self.held.bytes();
        // Every rule sees every call of its kind, so that the random numbers of one rule do not depend on another rule.
        let mut struck = None;
        for rule in self.rules.iter_mut().filter(|rule| rule.kind == kind) {
            if rule.strikes(nth, bytes, held) {
                struck = struck.or(Some(rule.failure));
            }
        }
        let Some(failure) = struck else { return Ok(()) };
        self.struck += 1;
        Err(match failure {
            Failure::Driver(code) => SourceError::Driver {
                call: kind.name(),
                code,
            },
            Failure::OutOfMemory => SourceError::OutOfMemory {
                requested: bytes,
                free: self.inner.free_bytes().unwrap_or(0),
                capacity: self.inner.capacity().unwrap_or(held),
            },
        })
    }
}

impl<S: Source> SourceWrapper for Faulty<S> {
    type Inner = S;

    fn inner(&self) -> &S {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    fn before(&mut self, kind: CallKind, bytes: u64) -> Result<(), SourceError> {
        self.strike(kind, bytes)
    }

    fn after(&mut self, event: &SourceEvent<'_>) {
        self.held.record(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Simulated;

    fn outcomes(when: When, sizes: impl IntoIterator<Item = u64>) -> Vec<bool> {
        let mut source = Faulty::new(Simulated::new()).failing(CallKind::Take, when, Failure::OutOfMemory);
        sizes
            .into_iter()
            .map(|bytes| source.take(bytes).is_ok())
            .collect()
    }

    #[test]
    fn rules_make_the_chosen_calls_fail() {
        assert_eq!(outcomes(When::Nth(2), [1; 4]), [true, true, false, true]);
        assert_eq!(outcomes(When::Every(2), [1; 5]), [true, false, true, false, true]);
        assert!(outcomes(When::Every(0), [1; 5]).iter().all(|ok| *ok));
        assert_eq!(outcomes(When::LargerThan(10), [10, 11, 3]), [true, false, true]);
        assert_eq!(outcomes(When::Past(10), [6, 5, 4, 1]), [true, false, true, false]);
        let chance = |probability, seed| outcomes(When::Chance { probability, seed }, [1; 1000]);
        assert_eq!(chance(0.3, 7), chance(0.3, 7));
        assert_ne!(chance(0.3, 7), chance(0.3, 8));
        let failed = chance(0.3, 7).iter().filter(|ok| !**ok).count();
        assert!((250..350).contains(&failed), "{failed}");
        assert!(chance(0.0, 1).iter().all(|ok| *ok) && chance(1.0, 1).iter().all(|ok| !*ok));
    }

    #[test]
    fn failing_calls_do_not_reach_the_source() {
        let mut source = Faulty::new(Simulated::new().with_capacity(Some(8 << 20)))
            .failing(CallKind::Commit, When::Nth(0), Failure::Driver(700))
            .failing(CallKind::Move, When::Nth(0), Failure::OutOfMemory)
            .failing(CallKind::Reserve, When::Nth(1), Failure::Driver(1));
        let range = source.reserve(16 << 20).expect("the first");
        assert!(source.reserve(1 << 20).is_err());
        let told = SourceError::Driver {
            call: "commit",
            code: 700,
        };
        assert_eq!(source.commit(&range, 0, 4 << 20, 2 << 20), Err(told));
        source.commit(&range, 0, 4 << 20, 2 << 20).expect("the second");
        assert!(
            source
                .move_pages((&range, 0), (&range, 8 << 20), 2 << 20)
                .is_err()
        );
        assert_eq!(source.move_pages((&range, 0), (&range, 8 << 20), 2 << 20), Ok(1));
        assert_eq!((source.struck(), source.calls(CallKind::Commit)), (3, 2));
        assert_eq!(source.free_bytes(), Some(4 << 20));
    }
}
