//! Placement of one step of a repeating program, solved before the step is run.
//!
//! ```text
//!   period     finds the repeating step in a sequence of allocations and frees
//!   Step       one period: every allocation with its bytes, its stream and how long it lives
//!   solve      assigns an offset to each, so that blocks that live at the same time do not overlap
//!   Plan       the result: the bytes that it needs, and the bytes that any placement needs
//! ```
//!
//! Time is counted in allocations. A block allocated as number `n` lives until just before number `n + life`. Time is
//! circular, because the step repeats: a block may outlive its step and be freed in the next one. A block that lives
//! longer than a whole period cannot have the same address in every step, so it gets no place.
//!
//! Everything here is a pure function of the step, so any thread can run it. A policy passes a new step to another thread
//! through a [`Planner`]. It fits a solved plan to its free memory itself.

mod pack;
mod period;
mod saved;
mod step;

pub use pack::solve;
pub use period::{Detector, Found};
pub use saved::PlanError;
pub use step::{Slot, Step};

/// The place of one allocation of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// 0 is the plan's own contiguous memory. Larger numbers are pieces of free memory elsewhere, counted from 1.
    pub region: u32,
    /// Bytes from the start of the region.
    pub offset: u64,
}

/// A solved step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The step that was solved.
    pub step: Step,
    /// One place for each slot of the step, or `None` for a slot that cannot be planned.
    pub places: Vec<Option<Place>>,
    /// Bytes of contiguous memory that the plan needs.
    pub height: u64,
    /// The most bytes that live at once. No placement needs less.
    pub lower_bound: u64,
}

/// Solves plans for a policy, either at once or on another thread.
///
/// The policy requests the plan at a fixed point in the sequence of calls and waits there. Its behaviour is therefore
/// the same however long solving takes.
pub trait Planner: Send {
    /// Starts solving a step. It discards an earlier step whose plan was not requested.
    fn start(&mut self, step: Step);

    /// Returns the plan of the step started last.
    fn finish(&mut self) -> Option<Plan>;
}

/// A planner that solves the step when the plan is requested.
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
