//! Changes the size of the batch: multiplies the sizes that follow the batch.
//!
//! Parameters, their gradients and the state of the optimizer do not follow it. Activations and their gradients
//! do. A block made in the forward pass follows the batch, unless it is a copy of a parameter in another number
//! type, or first appears in a view. A block made in the backward pass does not follow the batch if it is the gradient of a
//! parameter. Then it outlives the backward pass, or a block that does is made from it. It also does not follow the batch if its size
//! is that of a parameter and not that of an activation. If the steps of the recording differ in size, a block that is the same in
//! all of them does not follow the batch either. A block from before the recording follows it only if its tag names the
//! forward pass.

use super::Done;
use super::draft::Draft;
use super::error::EditError;
use super::phases::{Phase, Phases};
use super::tag::{module, operator};
use millpond_trace::Trace;
use std::collections::{HashMap, HashSet};

/// Blocks of at most this size keep their size. They are single numbers, such as the loss.
const SCALAR: u64 = 8;

/// Operators that copy a tensor, perhaps into another number type.
const COPIES: [&str; 5] = ["_to_copy", "to", "copy", "clone", "contiguous"];

/// Operators that allocate no tensor. If a block first appears in one of them, other code has allocated it, for example a
/// parameter that is gathered from other ranks.
const VIEWS: [&str; 10] = [
    "t",
    "transpose",
    "view",
    "_unsafe_view",
    "as_strided",
    "detach",
    "alias",
    "split_with_sizes",
    "all_gather_into_tensor",
    "permute",
];

/// The least number of steps that show whether a size varies.
const STEPS: u32 = 3;

/// Returns a number of bytes times a factor.
pub(super) fn times(bytes: u64, factor: f64) -> u64 {
    if bytes <= SCALAR {
        return bytes;
    }
    // A product beyond the largest integer saturates.
    (bytes as f64 * factor).ceil().max(1.0) as u64
}

/// Multiplies everything that follows the batch.
pub(super) fn batch(trace: &Trace, draft: &mut Draft, factor: f64) -> Result<Done, EditError> {
    let phases = Phases::new(trace, draft);
    if phases.passes.is_empty() && !phases.names_forward(trace) {
        return Err(EditError::unsupported(
            "its tags name no forward or backward pass, so activations cannot be told from parameters; name them: \
             scale=TAG:0.5",
        ));
    }
    let follows = Follows::new(trace, draft, &phases);
    if !phases.names_forward(trace) && follows.weights.len() < 2 {
        return Err(EditError::unsupported(
            "its stacks show no gradients that outlive a backward pass, so activations cannot be told from parameters; name \
             them: scale=TAG:0.5",
        ));
    }
    let scaled: Vec<usize> = (0..draft.lives.len())
        .filter(|life| follows.batch(draft, *life))
        .collect();
    for &life in &scaled {
        draft.lives[life].bytes = times(draft.lives[life].bytes, factor);
    }
    let mut done = Done::new(
        scaled.len() as u64,
        "Parameters, their gradients, their copies in other number types and the state of the optimizer keep their \
         sizes; activations and their gradients follow the batch.",
    );
    if draft.lives.iter().any(|life| life.made.is_none()) {
        done.assumes.push(
            "Blocks from before the recording keep their sizes, unless their tags name the forward pass."
                .to_owned(),
        );
    }
    done.assumes.push(follows.evidence());
    Ok(done)
}

/// Decides which blocks follow the batch.
#[derive(Debug)]
pub(super) struct Follows<'a> {
    phases: &'a Phases,
    /// The tags of copies.
    copies: Vec<bool>,
    /// The tags of operators that allocate no tensor.
    views: Vec<bool>,
    /// The module of each tag.
    modules: Vec<&'a str>,
    /// The sizes of gradients that outlive the backward pass, by module.
    gradients: HashMap<&'a str, HashSet<u64>>,
    /// The sizes of all these gradients, of the blocks of the phase `init`, and of the blocks from before the recording.
    parameters: HashSet<u64>,
    /// The sizes of blocks made in a forward pass.
    activations: HashSet<u64>,
    /// Blocks from which the gradient of a parameter is made, and these gradients.
    weights: HashSet<usize>,
    /// Blocks that are the same in all steps, if steps differ.
    constant: HashSet<usize>,
}

impl<'a> Follows<'a> {
    pub(super) fn new(trace: &'a Trace, draft: &Draft, phases: &'a Phases) -> Self {
        let mut follows = Self {
            phases,
            copies: trace
                .tags
                .iter()
                .map(|tag| COPIES.contains(&operator(tag)))
                .collect(),
            views: trace
                .tags
                .iter()
                .map(|tag| VIEWS.contains(&operator(tag)))
                .collect(),
            modules: trace.tags.iter().map(module).collect(),
            gradients: HashMap::new(),
            parameters: HashSet::new(),
            activations: HashSet::new(),
            weights: HashSet::new(),
            constant: constant(draft, phases),
        };
        for (index, life) in draft.lives.iter().enumerate() {
            match phases.of(index) {
                Some(Phase::Init) => {
                    follows.parameters.insert(life.bytes);
                }
                None if life.made.is_none() => {
                    follows.parameters.insert(life.bytes);
                }
                Some(Phase::Forward) => {
                    follows.activations.insert(life.bytes);
                }
                _ => {}
            }
        }
        follows.find_gradients(draft);
        follows
    }

    /// Finds the gradients that outlive their backward pass, and the blocks from which they are made.
    fn find_gradients(&mut self, draft: &Draft) {
        for pass in &self.phases.passes {
            let first = draft.made_before(pass.backward.start);
            let end = draft.made_before(pass.backward.end);
            for index in first..end {
                let life = &draft.lives[index];
                if life.freed_at() >= pass.backward.end && self.phases.of(index) == Some(Phase::Backward) {
                    self.weights.insert(index);
                    self.parameters.insert(life.bytes);
                    let module = self.module_of(life.tag);
                    self.gradients.entry(module).or_default().insert(life.bytes);
                }
            }
            // The copy of a gradient in another number type is made from the block that is freed next, if the sizes agree.
            let copied = |index: &usize| {
                let tag = draft.lives[*index].tag as usize;
                self.weights.contains(index) && self.copies.get(tag).copied().unwrap_or(false)
            };
            for index in (first..end).rev().filter(copied).collect::<Vec<_>>() {
                let made = draft.lives[index].made_at().unwrap_or(0);
                let source = (first.max(index.saturating_sub(NEAR))..index)
                    .filter(|other| draft.lives[*other].freed_at() > made)
                    .min_by_key(|other| draft.lives[*other].freed_at());
                let Some(source) = source.filter(|source| {
                    same_in_some_type(draft.lives[*source].bytes, draft.lives[index].bytes)
                        && self.phases.of(*source) == Some(Phase::Backward)
                }) else {
                    continue;
                };
                self.weights.insert(source);
            }
        }
    }

    fn module_of(&self, tag: u32) -> &'a str {
        self.modules.get(tag as usize).copied().unwrap_or("")
    }

    /// Returns whether a block follows the batch.
    pub(super) fn batch(&self, draft: &Draft, index: usize) -> bool {
        let life = &draft.lives[index];
        let is_view = self.views.get(life.tag as usize).copied().unwrap_or(false);
        if self.constant.contains(&index) || is_view {
            return false;
        }
        match self.phases.of(index) {
            Some(Phase::Data) => true,
            Some(Phase::Forward | Phase::Recompute) => !self.is_copy_of_parameter(life.bytes, life.tag),
            Some(Phase::Backward) => {
                let likes = |sizes: &HashSet<u64>| in_some_type(life.bytes, |bytes| sizes.contains(&bytes));
                !self.weights.contains(&index) && (likes(&self.activations) || !likes(&self.parameters))
            }
            Some(Phase::Init | Phase::Optimizer) | None => false,
        }
    }

    /// Returns whether a block of a forward pass is a copy of a parameter in a type of half or double its width.
    fn is_copy_of_parameter(&self, bytes: u64, tag: u32) -> bool {
        if !self.copies.get(tag as usize).copied().unwrap_or(false) {
            return false;
        }
        let sizes = self
            .gradients
            .get(self.module_of(tag))
            .unwrap_or(&self.parameters);
        bytes.checked_mul(2).is_some_and(|double| sizes.contains(&double))
            || (bytes.is_multiple_of(2) && sizes.contains(&(bytes / 2)))
    }

    fn evidence(&self) -> String {
        format!(
            "Evidence: {} blocks of the backward pass are gradients of parameters, because they outlive it or become one \
             that does; {} blocks have the same size in all steps although the steps differ.",
            self.weights.len(),
            self.constant.len()
        )
    }
}

/// The most blocks before a gradient among which its source is searched.
const NEAR: usize = 32;

fn same_in_some_type(a: u64, b: u64) -> bool {
    in_some_type(a, |bytes| bytes == b)
}

/// Returns whether a size, its double or its half satisfies a condition.
fn in_some_type(bytes: u64, mut is: impl FnMut(u64) -> bool) -> bool {
    is(bytes) || bytes.checked_mul(2).is_some_and(&mut is) || (bytes.is_multiple_of(2) && is(bytes / 2))
}

/// Returns the blocks that are the same in all steps of a recording whose steps differ. Blocks are compared by
/// their tags and their order within the step.
fn constant(draft: &Draft, phases: &Phases) -> HashSet<usize> {
    let mut seen: HashMap<(u32, u32), (u64, u32, bool)> = HashMap::new();
    let mut order: HashMap<u32, (usize, u32)> = HashMap::new();
    let mut keys = Vec::new();
    for (index, life) in draft.lives.iter().enumerate() {
        let step = life.made_at().map_or(0, |at| phases.step_of(at));
        if step == 0 {
            continue;
        }
        let next = order.entry(life.tag).or_insert((step, 0));
        if next.0 != step {
            *next = (step, 0);
        }
        let key = (life.tag, next.1);
        next.1 += 1;
        keys.push((index, key));
        let (bytes, steps, varies) = seen.entry(key).or_insert((life.bytes, 0, false));
        *steps += 1;
        *varies |= *bytes != life.bytes;
    }
    let sum = |wanted: bool| -> u128 {
        let keys = seen
            .values()
            .filter(|(_, steps, varies)| *steps >= STEPS && *varies == wanted);
        keys.map(|(bytes, _, _)| u128::from(*bytes)).sum()
    };
    // A few blocks that vary do not show that the batch varies.
    if sum(true) <= sum(false) / 4 {
        return HashSet::new();
    }
    let constant = keys.into_iter().filter(|(_, key)| {
        seen.get(key)
            .is_some_and(|(_, steps, varies)| *steps >= STEPS && !varies)
    });
    constant.map(|(index, _)| index).collect()
}
