//! The phases, steps and passes of a recorded program, from the tags of its blocks.

use super::draft::Draft;
use millpond_trace::Trace;
use std::ops::Range;

/// A phase of a training program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Init,
    Data,
    Forward,
    /// The part of a forward pass that the backward pass repeats.
    Recompute,
    Backward,
    Optimizer,
}

/// Words in frames of the backward pass.
const BACKWARD: [&str; 7] = [
    "autograd::engine",
    "autograd::Engine",
    "AccumulateGrad",
    "Backward0",
    "Backward1",
    "_engine_run_backward",
    ":backward:",
];

/// Words in frames of an optimizer.
const OPTIMIZER: [&str; 6] = [
    "optim/",
    "optimizer.py",
    "adam",
    "sgd.py",
    "_foreach_",
    "Optimizer.step",
];

/// Words in frames of a constructor.
const INIT: [&str; 3] = [":__init__:", ":_apply:", ":reset_parameters:"];

/// Returns the phase that a tag names. A tag that is only a stack is recognized by the names of its frames.
fn phase(tag: &str) -> Option<Phase> {
    if let Some((first, _)) = tag.split_once(';') {
        return match first.trim() {
            "init" | "setup" => Some(Phase::Init),
            "data" | "input" => Some(Phase::Data),
            "fwd" | "forward" => Some(Phase::Forward),
            "rec" | "recompute" => Some(Phase::Recompute),
            "bwd" | "backward" => Some(Phase::Backward),
            "opt" | "optim" | "optimizer" => Some(Phase::Optimizer),
            _ => None,
        };
    }
    let has = |words: &[&str]| words.iter().any(|word| tag.contains(word));
    if tag.is_empty() {
        None
    } else if has(&BACKWARD) {
        Some(Phase::Backward)
    } else if has(&OPTIMIZER) {
        Some(Phase::Optimizer)
    } else if has(&INIT) {
        Some(Phase::Init)
    } else {
        Some(Phase::Forward)
    }
}

/// A forward pass and the backward pass that follows it, as ranges of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pass {
    pub(super) forward: Range<usize>,
    pub(super) backward: Range<usize>,
}

/// The phases of a program in time.
#[derive(Debug)]
pub(super) struct Phases {
    /// The phase of each block, if its tag names one.
    of_life: Vec<Option<Phase>>,
    /// The phases in order, with the event at which each begins.
    pub(super) sections: Vec<(usize, Phase)>,
    /// The events at which steps begin, in order.
    pub(super) steps: Vec<usize>,
    /// The passes in order.
    pub(super) passes: Vec<Pass>,
    /// The runs of the optimizer in order, each up to the next phase.
    optimizer_runs: Vec<Range<usize>>,
}

impl Phases {
    /// Finds the phases. Every list is empty if the tags name none.
    pub(super) fn new(trace: &Trace, draft: &Draft) -> Self {
        let of_tag: Vec<Option<Phase>> = trace.tags.iter().map(phase).collect();
        let of = |tag: u32| of_tag.get(tag as usize).copied().flatten();
        let names_phase = |tag: u32| trace.tags.get(tag).contains(';');
        let of_life: Vec<Option<Phase>> = draft
            .lives
            .iter()
            .map(|life| match of(life.tag) {
                // Most blocks from before the recording are parameters or the state of the optimizer, even if their stacks look like a
                // forward pass.
                Some(Phase::Forward) if life.made.is_none() && !names_phase(life.tag) => None,
                phase => phase,
            })
            .collect();
        let mut sections: Vec<(usize, Phase)> = Vec::new();
        // Lives are in the order in which they were made.
        for (life, phase) in draft.lives.iter().zip(&of_life) {
            let phase = match phase {
                // The recomputation is a part of the backward pass, which does not end at it.
                Some(Phase::Recompute) => Some(Phase::Backward),
                other => *other,
            };
            if let (Some(at), Some(phase)) = (life.made_at(), phase)
                && sections.last().is_none_or(|(_, last)| *last != phase)
            {
                sections.push((at, phase));
            }
        }
        let end = trace.events.len();
        Self {
            steps: steps(&sections),
            passes: passes(&sections, end),
            optimizer_runs: optimizer_runs(&sections, end),
            sections,
            of_life,
        }
    }

    /// Returns the phase in which a block was made. The stack of a block from before the recording is not evidence of a
    /// forward pass.
    pub(super) fn of(&self, life: usize) -> Option<Phase> {
        self.of_life.get(life).copied().flatten()
    }

    /// Returns the number of the step that contains an event, counted from 1. 0 is before the first step.
    pub(super) fn step_of(&self, event: usize) -> usize {
        self.steps.partition_point(|step| *step <= event)
    }

    /// Returns the end of the first optimizer run after a pass. `event` is the end of the pass.
    pub(super) fn optimizer_end(&self, event: usize) -> Option<usize> {
        let next = self.optimizer_runs.partition_point(|run| run.start < event);
        self.optimizer_runs.get(next).map(|run| run.end)
    }

    /// Returns the number of the last pass that began at an event or before it, counted from 0. Returns `None` before the first pass.
    pub(super) fn pass_number(&self, event: usize) -> Option<usize> {
        self.passes
            .partition_point(|pass| pass.forward.start <= event)
            .checked_sub(1)
    }

    /// Returns the pass whose forward pass contains an event.
    pub(super) fn pass_of(&self, event: usize) -> Option<&Pass> {
        let pass = self.pass_at(event)?;
        pass.forward.contains(&event).then_some(pass)
    }

    /// Returns the pass that contains an event.
    pub(super) fn pass_at(&self, event: usize) -> Option<&Pass> {
        let pass = self.passes.get(self.pass_number(event)?)?;
        (event < pass.backward.end).then_some(pass)
    }

    /// Returns whether tags name a forward pass in their first field.
    pub(super) fn names_forward(&self, trace: &Trace) -> bool {
        self.sections
            .iter()
            .any(|(_, section)| *section == Phase::Forward)
            && trace
                .tags
                .iter()
                .any(|tag| tag.contains(';') && phase(tag) == Some(Phase::Forward))
    }
}

/// Returns the events at which steps begin. A step begins with the first data or forward pass after an optimizer
/// run. Without an optimizer, it begins with the first one after a backward pass. Without a backward pass, it
/// begins with each batch of data.
fn steps(sections: &[(usize, Phase)]) -> Vec<usize> {
    let has = |phase| sections.iter().any(|(_, section)| *section == phase);
    let last = [Phase::Optimizer, Phase::Backward, Phase::Data]
        .into_iter()
        .find(|phase| has(*phase));
    let mut is_over = true;
    let mut steps = Vec::new();
    for (at, phase) in sections {
        let begins = matches!(phase, Phase::Data | Phase::Forward);
        if begins && (is_over || (*phase == Phase::Data && last == Some(Phase::Data))) {
            steps.push(*at);
            is_over = false;
        }
        is_over |= last == Some(*phase) && *phase != Phase::Data;
    }
    steps
}

fn optimizer_runs(sections: &[(usize, Phase)], end: usize) -> Vec<Range<usize>> {
    let next = sections.iter().skip(1).map(|(at, _)| *at).chain([end]);
    let runs = sections.iter().zip(next);
    let runs = runs.filter(|((_, phase), _)| *phase == Phase::Optimizer);
    runs.map(|((at, _), next)| *at..next).collect()
}

fn passes(sections: &[(usize, Phase)], end: usize) -> Vec<Pass> {
    let begin = |index: usize| sections.get(index).map_or(end, |(at, _)| *at);
    let mut passes = Vec::new();
    let mut forward = None;
    for (index, (at, phase)) in sections.iter().enumerate() {
        match phase {
            Phase::Forward => forward = forward.or(Some(*at)),
            Phase::Backward => {
                if let Some(forward) = forward.take() {
                    passes.push(Pass {
                        forward: forward..*at,
                        backward: *at..begin(index + 1),
                    });
                }
            }
            Phase::Optimizer => forward = None,
            Phase::Init | Phase::Data | Phase::Recompute => {}
        }
    }
    passes
}
