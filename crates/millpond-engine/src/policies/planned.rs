//! `planned`: the placement of a repeating step, solved once and then looked up.
//!
//! ```text
//!   watching    the default policy serves; the step is looked for            plan/period
//!   waiting     a step was found and is being solved; it begins soon         plan/pack
//!   serving     each request is the next of the plan: its address is known   planned/course
//! ```
//!
//! What lives across the step (weights, optimizer state) stays where the default policy put it. When the step begins,
//! least of the rest lives; then the default policy's free pages are moved, once, into one contiguous block
//! as high as the plan, and the pieces of pages that cannot move take the step's small blocks. From there on a
//! request costs a comparison and a look at the blocks that held its place before it: no search, no call.
//!
//! Until then pages are kept tightly together, so that the transition fits into memory the program needed anyway: single-page
//! handles that can all move, and moving before growing. That costs driver calls, so it ends with the plan, or
//! when none has been found for a while.
//!
//! A request that is not the next of the plan is served by the default policy from what is free there; where that would
//! need new memory the plan is dropped instead: its blocks live on, the rest of its memory is free again, and
//! the same step, when it comes back, is followed again without being solved anew.

mod course;
mod install;

use super::millpond::{FOREIGN, Millpond};
use crate::block::{Block, Group, Request};
use crate::conf::{MillpondConf, RetainConf};
use crate::plan::{Detector, Inline, Plan, Planner};
use crate::policy::{Fidelity, Mark, Policy, Refusal};
use crate::space::{BlockId, Piece, PieceState};
use crate::supply::Supply;
use course::{Course, Next};
use std::collections::BTreeMap;

/// Sizes and addresses are multiples of it.
const MIN_BLOCK: u64 = 256;
/// Allocations after which pages are no longer kept tightly together for a plan that may never come, unless
/// a long period is on trial, and after which not even then.
const TIGHT_ALLOCATIONS: u64 = 1 << 14;
const TIGHT_ON_TRIAL: u64 = 1 << 17;
/// A period, and a run of it, worth staying tight for.
const LONG_TRIAL: usize = 1024;
/// Moves of pages after which they are not.
const TIGHT_STALLS: u64 = 160;
/// The default policy's settings once no plan is expected soon, where its own are not narrower.
const RELAXED_HANDLE: u64 = 16 << 20;
const RELAXED_PERMILLE: u64 = 3;
/// Periods that must repeat at most before another plan is tried, after several have failed.
const MOST_PATIENCE: u32 = 1 << 10;

enum Phase {
    Watching,
    /// A step is being solved; it begins with the allocation of this number, when at most so many bytes live.
    Waiting {
        begins: u64,
        base: u64,
    },
    /// A step solved before begins with the allocation of this number.
    Returning {
        begins: u64,
    },
    Serving(Box<Course>),
}

/// See the module.
pub struct Planned {
    inner: Millpond,
    /// Its settings without a plan, and while one is followed.
    relaxed: MillpondConf,
    serving: MillpondConf,
    tight: bool,
    detector: Detector,
    /// Numbers of allocations seen by the detector, by the block's key; `u64::MAX` where unseen.
    numbers: Vec<u64>,
    planner: Box<dyn Planner>,
    phase: Phase,
    /// A solved step to follow when it comes, and the hash of its end.
    known: Option<(Plan, u64)>,
    /// Whether that one was given at the start, and has not been followed yet.
    saved: bool,
    /// Blocks that outlived the plan they were placed by, by their key.
    orphans: BTreeMap<u32, Block>,
    /// Periods that must repeat before a plan is tried.
    patience: u32,
    allocations: u64,
    /// New memory asked for by requests that were not the plan's.
    odd_bytes: u64,
    /// Requests the plan had served when it was last seen to serve one, and ticks since.
    served: u64,
    idle_ticks: u64,
}

impl Planned {
    /// With these settings for the default policy underneath.
    #[must_use]
    pub fn new(conf: &MillpondConf) -> Self {
        let tight = MillpondConf {
            handle_bytes: 0,
            slack_permille: 0,
            slack_least_bytes: 0,
            rising_permille: 0,
            rising_least_bytes: 0,
            stalls: 2 * TIGHT_STALLS,
            moved_percent: 10_000,
            ..conf.clone()
        };
        Self {
            inner: Millpond::new(&tight),
            // After a tight beginning memory is full of small handles that move easily: a narrow allowance is enough.
            // With the default one, peaks came out higher than the default policy's own, by up to 0.4 %.
            relaxed: MillpondConf {
                handle_bytes: conf.handle_bytes.min(RELAXED_HANDLE),
                slack_permille: conf.slack_permille.min(RELAXED_PERMILLE),
                slack_least_bytes: 0,
                rising_permille: conf.rising_permille.min(RELAXED_PERMILLE),
                rising_least_bytes: 0,
                ..conf.clone()
            },
            serving: MillpondConf {
                handle_bytes: 0,
                ..conf.clone()
            },
            tight: true,
            detector: Detector::new(),
            numbers: Vec::new(),
            planner: Box::new(Inline::default()),
            phase: Phase::Watching,
            known: None,
            saved: false,
            orphans: BTreeMap::new(),
            patience: 1,
            allocations: 0,
            odd_bytes: 0,
            served: 0,
            idle_ticks: 0,
        }
    }

    /// Follows a saved plan once its step has been seen.
    #[must_use]
    pub fn with_plan(mut self, plan: Plan) -> Self {
        self.remember(plan);
        self.saved = true;
        self
    }

    fn remember(&mut self, plan: Plan) {
        self.known = Detector::end_gram(&plan.step).map(|gram| (plan, gram));
    }

    fn relax(&mut self) {
        if self.tight {
            self.tight = false;
            self.inner.configure(&self.relaxed);
        }
    }

    /// The default policy's turn; what it found waiting for a stream is made free here.
    fn serve_inner(&mut self, supply: &mut Supply<'_>, request: &Request) -> Result<Block, Refusal> {
        let outcome = self.inner.allocate(supply, request);
        let foreign = std::mem::take(&mut self.inner.foreign);
        let found = !foreign.is_empty();
        for block in foreign {
            self.free(supply, block);
        }
        match outcome {
            Err(Refusal::Source(error)) if error.is_out_of_memory() => {
                // The plan's memory serves whoever needs it.
                let dropped = self.drop_plan(supply);
                if dropped || found {
                    self.inner.allocate(supply, request)
                } else {
                    Err(Refusal::Source(error))
                }
            }
            outcome => outcome,
        }
    }

    fn watch(&mut self, supply: &mut Supply<'_>, request: &Request) -> Result<Block, Refusal> {
        self.allocations += 1;
        if self.tight && (self.allocations > TIGHT_ALLOCATIONS || self.inner.stalls() > TIGHT_STALLS) {
            let (period, run) = self.detector.on_trial();
            let hopeful = period.min(run) >= LONG_TRIAL && self.allocations <= TIGHT_ON_TRIAL;
            if !hopeful || self.inner.stalls() > TIGHT_STALLS {
                self.relax();
            }
        }
        let block = self.serve_inner(supply, request)?;
        let key = block.key().index();
        if self.numbers.len() <= key {
            self.numbers.resize(key + 1, u64::MAX);
        }
        self.numbers[key] = u64::MAX;
        if request.group != Group::default() || request.align > MIN_BLOCK {
            return Ok(block);
        }
        self.numbers[key] = self.detector.allocated(block.bytes(), request.stream);
        self.look();
        Ok(block)
    }

    /// Looks for a step, or makes sure that the one found still holds.
    fn look(&mut self) {
        match self.phase {
            Phase::Waiting { begins, .. } if !self.detector.holds() || self.detector.next() > begins => {
                self.phase = Phase::Watching;
            }
            Phase::Watching => {
                let known = self.known.as_ref();
                if known.is_some_and(|(plan, gram)| match self.saved {
                    true => self.detector.ends_with(&plan.step, *gram),
                    false => self.detector.ends_like(&plan.step, *gram),
                }) {
                    self.phase = Phase::Returning {
                        begins: self.detector.next(),
                    };
                } else if let Some(found) = self.detector.found(self.patience) {
                    self.planner.start(found.step);
                    self.phase = Phase::Waiting {
                        begins: found.begins,
                        base: found.base,
                    };
                }
            }
            Phase::Returning { begins } if self.detector.next() > begins => self.phase = Phase::Watching,
            _ => {}
        }
    }

    /// Begins to serve the step that was waited for, if this is the place.
    fn begin(&mut self, supply: &mut Supply<'_>, whatever_lives: bool) {
        let (begins, base) = match self.phase {
            Phase::Waiting { begins, base } => (begins, base),
            Phase::Returning { begins } if whatever_lives && self.detector.next() == begins => {
                self.phase = Phase::Watching;
                if let Some((plan, _)) = self.known.take() {
                    self.install(supply, plan);
                }
                return;
            }
            _ => return,
        };
        if self.detector.next() == begins && (whatever_lives || self.detector.live() <= base) {
            self.phase = Phase::Watching;
            if let Some(plan) = self.planner.finish() {
                self.install(supply, plan);
            }
        }
    }
}

impl Policy for Planned {
    fn name(&self) -> &'static str {
        "planned"
    }

    fn fidelity(&self) -> Fidelity {
        Fidelity::Original
    }

    #[inline]
    fn allocate(&mut self, supply: &mut Supply<'_>, request: &Request) -> Result<Block, Refusal> {
        if let Phase::Serving(course) = &mut self.phase {
            match course.next(supply, request) {
                Next::Placed(block) => return Ok(block),
                Next::Unplanned => return self.serve_inner(supply, request),
                Next::Odd => return self.serve_odd(supply, request),
            }
        }
        self.begin(supply, true);
        if matches!(self.phase, Phase::Serving(_)) {
            return self.allocate(supply, request);
        }
        self.watch(supply, request)
    }

    #[inline]
    fn free(&mut self, supply: &mut Supply<'_>, block: Block) {
        let key = block.key().index();
        if key >= FOREIGN as usize {
            if let Phase::Serving(course) = &mut self.phase
                && course.free(block.key())
            {
                return;
            }
            if let Some(own) = self.orphans.remove(&(key as u32)) {
                self.inner.free(supply, own);
            }
            return;
        }
        if let Some(number) = self.numbers.get_mut(key).filter(|n| **n != u64::MAX) {
            self.detector.freed(*number, block.bytes());
            *number = u64::MAX;
        }
        self.inner.free(supply, block);
        self.begin(supply, false);
    }

    fn set_retain(&mut self, retain: &RetainConf) -> bool {
        self.relaxed.retain = retain.clone();
        self.inner.set_retain(retain)
    }

    fn set_planner(&mut self, planner: Box<dyn Planner>) {
        self.planner = planner;
    }

    fn mark(&mut self, supply: &mut Supply<'_>, mark: Mark) {
        if mark == Mark::Step
            && !matches!(self.phase, Phase::Serving(_))
            && let Some(found) = self.detector.mark()
        {
            self.planner.start(found.step);
            self.phase = Phase::Waiting {
                begins: found.begins,
                base: found.base,
            };
            self.begin(supply, true);
        }
        self.drop_idle_plan(supply, mark.ticks());
        self.inner.mark(supply, mark);
    }

    fn release_cached(&mut self, supply: &mut Supply<'_>) {
        // The plan's own blocks come back before the pages of the free ones go.
        for block in supply.synchronize() {
            self.free(supply, block);
        }
        self.drop_plan(supply);
        self.inner.release_cached(supply);
    }

    fn returnable_bytes(&self) -> u64 {
        self.inner.returnable_bytes()
    }

    fn expect_blocks(&mut self, blocks: usize) {
        self.inner.expect_blocks(blocks);
    }

    fn layout(&self, visit: &mut dyn FnMut(Piece)) {
        let Phase::Serving(course) = &self.phase else {
            return self.inner.layout(visit);
        };
        let lent = course.by_address();
        self.inner.layout(&mut |piece| match lent.get(&piece.address) {
            Some(parts) if piece.state == PieceState::Live => {
                for part in parts {
                    let state = if part.slot.is_some() {
                        PieceState::Live
                    } else {
                        PieceState::Free
                    };
                    visit(Piece {
                        address: part.address,
                        bytes: part.bytes,
                        state,
                        segment: piece.segment,
                    });
                }
            }
            _ => visit(piece),
        });
    }

    fn check(&self) {
        self.inner.check();
        if let Phase::Serving(course) = &self.phase {
            course.check();
        }
        for (key, own) in &self.orphans {
            assert!(
                BlockId::from_index(*key).index() >= FOREIGN as usize,
                "{own:?} has a foreign key"
            );
        }
    }
}
