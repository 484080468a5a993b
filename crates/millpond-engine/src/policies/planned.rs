//! `planned`: computes the placement of a repeating step once and then looks it up.
//!
//! ```text
//!   watching    the default policy serves while the step is searched for     plan/period
//!   waiting     a step was found and is being solved; it begins soon         plan/pack
//!   serving     each request is the next of the plan: its address is known   planned/course
//! ```
//!
//! Blocks that outlive the step (weights, optimizer state) stay where the default policy placed them. The step begins
//! when the fewest of the other bytes are live. At that point the default policy's free pages are moved, once, into one
//! contiguous block as high as the plan. Parts of pages that cannot move hold the step's small blocks. From then on a
//! request costs one comparison and a check of the blocks that used its place before. It needs no search and no driver
//! call.
//!
//! A request that is not the next of the plan is served from the default policy's free blocks. If it would need more
//! memory than was held before, the plan is dropped instead. The plan's blocks stay live and the rest of its memory
//! becomes free. If the same step occurs again, the plan is followed again without being solved again.
//!
//! A step may have larger sizes than the plan and the same order. The policy then still compares the requests with the
//! plan. It solves a plan for the larger step during the next step and starts it after that. After each such plan, twice
//! as many steps pass before another one is solved. A program whose sizes keep growing therefore has few plans.

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

/// Sizes and addresses are multiples of this.
const MIN_BLOCK: u64 = 256;
/// The most periods that must repeat before another plan is tried after failed ones.
const MOST_PATIENCE: u32 = 1 << 10;

/// Number of attempts to start a saved plan. The first steps may not have enough memory for it.
const SAVED_TRIES: u32 = 4;

enum Phase {
    Watching,
    /// A step is being solved. It begins with the allocation of this number if at most `base` bytes are live.
    Waiting {
        begins: u64,
        base: u64,
    },
    /// A step that was solved before begins with the allocation of this number.
    Returning {
        begins: u64,
    },
    Serving(Box<Course>),
}

/// The `planned` policy. The module describes its rules.
pub struct Planned {
    inner: Millpond,
    /// How many ticks free memory is kept.
    decay: u64,
    detector: Detector,
    /// The detector's allocation number of each block, by key. `u64::MAX` means that it was not recorded.
    numbers: Vec<u64>,
    planner: Box<dyn Planner>,
    phase: Phase,
    /// A solved step to follow when it occurs, and the hash of its end, if there is one.
    known: Option<(Plan, Option<u64>)>,
    /// Number of attempts that are left to start a saved plan. 0 if the known step was not saved, or was started.
    saved: u32,
    /// Blocks that outlived the plan that placed them, by key.
    orphans: BTreeMap<u32, Block>,
    /// Number of periods that must repeat before a plan is tried.
    patience: u32,
    /// How many rounds must pass after a plan for a larger step has started before another one is solved. The second
    /// number applies if the plan before it had given its memory back, so that pages had to move. The number that was
    /// used is doubled.
    rests: [u32; 2],
    /// Number of requests that the plan had served when last checked, and ticks since it last served one.
    served: u64,
    idle_ticks: u64,
}

impl Planned {
    /// Creates the policy. `conf` has the settings of the default policy that it contains.
    #[must_use]
    pub fn new(conf: &MillpondConf) -> Self {
        Self {
            inner: Millpond::new(conf),
            decay: conf.retain.decay,
            detector: Detector::new(),
            numbers: Vec::new(),
            planner: Box::new(Inline::default()),
            phase: Phase::Watching,
            known: None,
            saved: 0,
            orphans: BTreeMap::new(),
            patience: 1,
            rests: [0; 2],
            served: 0,
            idle_ticks: 0,
        }
    }

    /// Sets a saved plan. The policy follows it after its step has occurred.
    #[must_use]
    pub fn with_plan(mut self, plan: Plan) -> Self {
        self.remember(plan);
        self.saved = SAVED_TRIES;
        self
    }

    fn remember(&mut self, plan: Plan) {
        let gram = Detector::end_gram(&plan.step);
        self.known = Some((plan, gram));
    }

    /// Serves a request by the default policy. Frees the plan's blocks that the policy found waiting for a stream.
    fn serve_inner(&mut self, supply: &mut Supply<'_>, request: &Request) -> Result<Block, Refusal> {
        let outcome = self.inner.allocate(supply, request);
        let foreign = std::mem::take(&mut self.inner.foreign);
        let found = !foreign.is_empty();
        for block in foreign {
            self.free(supply, block);
        }
        match outcome {
            Err(Refusal::Source(error)) if error.is_out_of_memory() => {
                // Dropping the plan makes its memory available to any request.
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

    /// Searches for a step, or checks that the one found still holds.
    fn look(&mut self) {
        match self.phase {
            Phase::Waiting { begins, .. } if !self.detector.holds() || self.detector.next() > begins => {
                self.phase = Phase::Watching;
            }
            Phase::Watching => {
                let known = self.known.as_ref();
                let returns = known.is_some_and(|(plan, gram)| {
                    gram.is_some_and(|gram| match self.saved > 0 {
                        true => self.detector.ends_with(&plan.step, gram),
                        false => self.detector.ends_like(&plan.step, gram),
                    })
                });
                if returns {
                    self.phase = Phase::Returning {
                        begins: self.detector.next(),
                    };
                } else if let Some(found) = self.detector.found(self.patience) {
                    if known.is_some_and(|(plan, _)| plan.step.covers(&found.step)) {
                        self.phase = Phase::Returning { begins: found.begins };
                        return;
                    }
                    self.planner.start(found.step);
                    self.phase = Phase::Waiting {
                        begins: found.begins,
                        base: found.base,
                    };
                }
            }
            Phase::Returning { begins }
                if self.detector.next() > begins
                    || self.detector.next() < begins && !self.detector.holds() =>
            {
                self.phase = Phase::Watching;
            }
            _ => {}
        }
    }

    /// Begins to serve the expected step if it starts here. Unless `whatever_lives` is set, a new step starts only if no
    /// more bytes are live than expected, and a step that was solved before does not start.
    fn begin(&mut self, supply: &mut Supply<'_>, whatever_lives: bool) {
        let (begins, base) = match self.phase {
            Phase::Waiting { begins, base } => (begins, base),
            Phase::Returning { begins } if whatever_lives && self.detector.next() == begins => {
                self.phase = Phase::Watching;
                let is_saved = self.saved > 0;
                if let Some((plan, _)) = self.known.take() {
                    self.install(supply, plan, is_saved);
                }
                return;
            }
            _ => return,
        };
        if self.detector.next() == begins && (whatever_lives || self.detector.live() <= base) {
            self.phase = Phase::Watching;
            if let Some(plan) = self.planner.finish() {
                self.install(supply, plan, false);
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
            if course.is_due() {
                self.turn(supply);
                return self.allocate(supply, request);
            }
            match course.next(supply, request) {
                Next::Placed(block) => return Ok(block),
                Next::Unplanned => return self.serve_inner(supply, request),
                Next::Outgrown(slot) => return self.serve_outgrown(supply, request, slot),
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
        self.decay = retain.decay;
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

    // The plan's own blocks are freed before free pages are returned.
    fn release_cached(&mut self, supply: &mut Supply<'_>) {
        self.free_deferred(supply);
        self.drop_plan(supply);
        self.inner.release_cached(supply);
    }

    fn compact(&mut self, supply: &mut Supply<'_>) {
        self.free_deferred(supply);
        self.drop_plan(supply);
        self.inner.compact(supply);
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
                "{own:?} has the key of a block that this policy placed"
            );
        }
    }
}
