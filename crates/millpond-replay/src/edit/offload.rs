//! Moves blocks to other memory between their uses.

use super::Done;
use super::draft::{Draft, Moment};
use super::error::EditError;
use super::layers::layers;
use super::pattern::Pattern;
use super::phases::{Phase, Phases};
use millpond_trace::Trace;

/// Moves state out between the optimizer's runs, and activations out between the forward and the backward pass.
pub(super) fn offload(
    trace: &Trace,
    draft: &mut Draft,
    pattern: &Pattern,
    matched: &[usize],
) -> Result<Done, EditError> {
    let phases = Phases::new(trace, draft);
    let of_optimizer = |life: &&usize| phases.of(**life) == Some(Phase::Optimizer);
    let state: Vec<usize> = matched.iter().filter(of_optimizer).copied().collect();
    let mut moved = 0u64;
    let mut done = Done::default();
    let uses = uses(draft, &phases);
    for &life in &state {
        let bytes = move_state(draft, life, &uses)?;
        moved = moved.saturating_add(bytes);
        done.blocks += u64::from(bytes > 0);
    }
    if done.blocks > 0 {
        done.assumes.push(
            "Only the optimizer uses this state: it is loaded before the optimizer runs and offloaded afterwards."
                .to_owned(),
        );
    }
    let before = done.blocks;
    for pass in &phases.passes {
        for layer in layers(trace, draft, &phases, pass, pattern, matched) {
            let (away, back) = (layer.forward_end, layer.backward_start);
            for life in layer
                .saved
                .iter()
                .copied()
                .filter(|life| Some(*life) != layer.output)
            {
                let (bytes, freed) = (draft.lives[life].bytes, draft.lives[life].freed);
                let (to, from) = (draft.before(away), draft.before(back));
                draft.add(life, bytes, from, freed)?;
                draft.end(life, to);
                moved = moved.saturating_add(bytes.saturating_mul(2));
                done.blocks += 1;
            }
        }
    }
    if done.blocks > before {
        done.assumes.push(
            "Nothing uses these activations between the end of their layer's forward pass and the start of its backward pass."
                .to_owned(),
        );
    }
    if done.blocks == 0 {
        return Err(EditError::unsupported(
            "only optimizer state and activations can be offloaded: the recording does not show when other blocks are used",
        ));
    }
    done.moved_bytes_per_step = Some(moved / (phases.steps.len().max(1) as u64));
    Ok(done)
}

/// A run of the optimizer: the event before which it begins, and the one before which it has ended.
type Use = (usize, usize);

/// Returns the runs of the optimizer. In a step in which the optimizer allocates no block, it runs directly
/// after the last block of the backward pass.
fn uses(draft: &Draft, phases: &Phases) -> Vec<Use> {
    let mut uses: Vec<Use> = Vec::new();
    let mut steps = phases.steps.iter().copied().skip(1).peekable();
    for (index, (at, phase)) in phases.sections.iter().enumerate() {
        let next = phases.sections.get(index + 1).map_or(usize::MAX, |(at, _)| *at);
        let runs = *phase == Phase::Optimizer;
        let ends = *phase == Phase::Backward && steps.peek().is_some_and(|step| *step == next);
        if runs {
            uses.push((*at, next));
        } else if ends {
            let last = draft.made_before(next);
            let last = last.checked_sub(1).and_then(|last| draft.lives[last].made_at());
            let after = last.unwrap_or(*at).saturating_add(1);
            uses.push((after, after));
        }
        while steps.peek().is_some_and(|step| *step <= next) {
            steps.next();
        }
    }
    uses
}

/// Splits a block into one block for each run of the optimizer. Returns the total bytes that move out and back.
fn move_state(draft: &mut Draft, life: usize, uses: &[Use]) -> Result<u64, EditError> {
    let block = draft.lives[life].clone();
    let Some(made) = block.made_at() else {
        return Ok(0);
    };
    let freed = block.freed_at();
    let first = uses.partition_point(|(from, _)| *from <= made);
    let Some(&(_, away)) = first.checked_sub(1).and_then(|index| uses.get(index)) else {
        return Ok(0);
    };
    if freed <= away || away == usize::MAX {
        return Ok(0);
    }
    let gone = draft.before(away);
    draft.end(life, gone);
    let mut moved = block.bytes;
    for &(from, to) in &uses[first..] {
        if from >= freed {
            break;
        }
        let back = draft.before(from);
        let ends = freed <= to || to == usize::MAX;
        let gone: Option<Moment> = if ends { block.freed } else { Some(draft.before(to)) };
        draft.add(life, block.bytes, back, gone)?;
        moved = moved.saturating_add(block.bytes.saturating_mul(if ends { 1 } else { 2 }));
    }
    Ok(moved)
}
