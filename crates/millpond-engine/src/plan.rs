//! Placement of one step of a repeating program, solved before the step is run.
//!
//! ```text
//!   period     finds the repeating step in a sequence of allocations and frees
//!   Step       one period: every allocation with its bytes, its stream and how long it lives
//!   solve      gives each of them an offset, so that what lives at once lies apart
//!   Plan       the answer: how high it reaches, and how high anything must reach
//! ```
//!
//! Time is counted in allocations: a block allocated as number `n` lives until just before number
//! `n + life`. It runs in a circle, because the step repeats: a block may outlive the end of its step and
//! die in the next one. What lives for longer than a whole period cannot repeat at one address and has no place.
//!
//! Everything here is a pure function of the step, so that any thread may run it; [`Planner`] is how a policy
//! hands the work to one.

mod pack;
mod period;
mod saved;
mod step;

pub use pack::solve;
pub use period::{Detector, Found};
pub use saved::PlanError;
pub use step::{Slot, Step};

/// Where one allocation of a step lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// 0 for the plan's own contiguous memory, else one of the pieces left over elsewhere, from 1.
    pub region: u32,
    /// Bytes from the start of the region.
    pub offset: u64,
}

/// A solved step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What was solved.
    pub step: Step,
    /// One for each slot of the step; none for a slot that cannot be planned.
    pub places: Vec<Option<Place>>,
    /// Bytes of contiguous memory it needs.
    pub height: u64,
    /// The most bytes that live at once: no placement needs less.
    pub lower_bound: u64,
}

/// Solves plans for a policy, at once or on another thread.
///
/// The policy asks for the answer at a place of its own choosing in the sequence of calls, and waits there: what
/// it does is the same however long solving takes.
pub trait Planner: Send {
    /// Takes a step to solve; an earlier one that was not asked for is forgotten.
    fn start(&mut self, step: Step);

    /// The plan of the step taken last.
    fn finish(&mut self) -> Option<Plan>;
}

/// Solves where it is asked.
#[derive(Debug, Default)]
pub struct Inline(Option<Step>);

impl Planner for Inline {
    fn start(&mut self, step: Step) {
        self.0 = Some(step);
    }

    fn finish(&mut self) -> Option<Plan> {
        self.0.take().map(solve)
    }
}
