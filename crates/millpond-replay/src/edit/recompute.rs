//! Checkpointing: frees activations after the forward pass of their layer, and recomputes them before its
//! backward pass.

use super::Done;
use super::draft::{Draft, Moment};
use super::error::EditError;
use super::layers::{Layer, layers};
use super::pattern::Pattern;
use super::phases::Phases;
use millpond_trace::Trace;
use std::collections::BTreeMap;

/// Drops the saved activations of the matched layers, and recomputes them.
pub(super) fn recompute(
    trace: &Trace,
    draft: &mut Draft,
    pattern: &Pattern,
    matched: &[usize],
) -> Result<Done, EditError> {
    let phases = Phases::new(trace, draft);
    if phases.passes.is_empty() {
        return Err(EditError::unsupported(
            "the tags of the recording name no forward and backward pass",
        ));
    }
    let mut changed = 0;
    let mut count = 0;
    let mut has_saved = false;
    for pass in &phases.passes {
        let layers = layers(trace, draft, &phases, pass, pattern, matched);
        for (index, layer) in layers.iter().enumerate() {
            let next = layers.get(index + 1);
            let dropped = drop_and_make_again(draft, layer, next)?;
            changed += dropped;
            has_saved |= !layer.saved.is_empty();
            count += u64::from(dropped > 0);
        }
    }
    if changed == 0 {
        return Err(EditError::unsupported(match has_saved {
            true => {
                "the only block of each layer that the backward pass frees is the layer's result, and the next layer keeps it: choose a \
                 larger group, such as 'layers.*'"
            }
            false => {
                "no block of the group is made in a forward pass and freed in the backward pass that follows it"
            }
        }));
    }
    let mut done = Done::new(
        changed,
        "The input of each layer is kept; all its other activations are freed at the end of its forward pass, and the forward \
         pass of the layer runs again just before its backward pass.",
    );
    let passes = phases.passes.len();
    done.assumes.push(format!(
        "Evidence: {count} layers in {passes} passes have blocks that the backward pass frees."
    ));
    Ok(done)
}

/// Drops the saved activations of one layer, and recomputes them. Returns their number.
fn drop_and_make_again(draft: &mut Draft, layer: &Layer, next: Option<&Layer>) -> Result<u64, EditError> {
    let dropped: Vec<usize> = layer
        .saved
        .iter()
        .copied()
        .filter(|life| Some(*life) != layer.output)
        .collect();
    let Some(last) = dropped.last().copied() else {
        return Ok(0);
    };
    let end = draft.before(layer.forward_end);
    // The recomputation stops with the last dropped block.
    let repeated: Vec<usize> = layer
        .blocks
        .iter()
        .copied()
        .filter(|life| *life <= last)
        .collect();
    let mut calls: Vec<(Moment, usize, bool)> = Vec::new();
    for &life in &repeated {
        let block = &draft.lives[life];
        let is_dropped = dropped.binary_search(&life).is_ok();
        calls.extend(block.made.map(|made| (made, life, true)));
        if !is_dropped {
            calls.push((block.freed.unwrap_or(Moment::at(usize::MAX)), life, false));
        }
    }
    calls.sort_by_key(|(moment, life, _)| (*moment, *life));
    let mut made: BTreeMap<usize, Moment> = BTreeMap::new();
    for (_, life, is_made) in calls {
        let moment = draft.before(layer.backward_start);
        let block = draft.lives[life].clone();
        if is_made {
            made.insert(life, moment);
        } else if let Some(from) = made.remove(&life) {
            draft.add(life, block.bytes, from, Some(moment))?;
            draft.mark_made_again();
        }
    }
    for (life, from) in made {
        let block = draft.lives[life].clone();
        draft.add(life, block.bytes, from, block.freed)?;
        draft.mark_made_again();
        draft.end(life, end);
    }
    // The checkpoint of the next layer holds its input until its own backward pass is over.
    if let (Some(next), Some(output)) = (next, layer.output)
        && !next.saved.is_empty()
    {
        let until = draft.before(layer.backward_start.max(next.backward_end));
        if draft.lives[output].freed.is_some_and(|freed| freed < until) {
            draft.end(output, until);
        }
    }
    Ok(dropped.len() as u64)
}
