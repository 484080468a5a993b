//! Allocates tensors in pieces, such as logits and their loss.

use super::Done;
use super::draft::{Draft, Moment};
use super::error::EditError;
use super::phases::{Phase, Phases};
use millpond_trace::Trace;
use std::collections::HashMap;

/// Blocks of the group that are connected by being held at the same time.
#[derive(Debug)]
struct Chain {
    blocks: Vec<usize>,
    /// The event that allocates the first of them, and the event that frees the last of them within the pass.
    from: usize,
    to: usize,
}

/// Allocates the matched blocks in pieces, one piece after the other.
pub(super) fn chunk(
    trace: &Trace,
    draft: &mut Draft,
    matched: &[usize],
    parts: u32,
) -> Result<Done, EditError> {
    let phases = Phases::new(trace, draft);
    let is_temporary = |life: &usize| {
        let block = &draft.lives[*life];
        let Some(made) = block.made_at().filter(|_| block.freed.is_some()) else {
            return false;
        };
        let pass = phases
            .pass_at(made)
            .filter(|_| phases.of(*life) == Some(Phase::Backward));
        pass.is_none_or(|pass| block.freed_at() < pass.backward.end)
    };
    let blocks: Vec<usize> = matched.iter().copied().filter(is_temporary).collect();
    if blocks.is_empty() {
        return Err(EditError::unsupported(
            "its blocks are gradients that outlive the backward pass, or live before or after the recording",
        ));
    }
    let chains = chains(draft, &phases, &blocks);
    for chain in &chains {
        let gradients = gradients(draft, &phases, chain);
        add_pieces(draft, chain, &gradients, parts)?;
        for &life in &chain.blocks {
            draft.lives[life].bytes = draft.lives[life].bytes.div_ceil(u64::from(parts));
        }
    }
    let mut done = Done::new(
        blocks.len() as u64,
        format!(
            "The blocks of the group can be computed in {parts} equal pieces, each up to its gradient, before the next begins."
        ),
    );
    if !phases.passes.is_empty() {
        done.assumes.push(
            "The gradient of a parameter that every piece uses is summed, so a second block of its size is held meanwhile."
                .to_owned(),
        );
    }
    Ok(done)
}

/// Returns the chains of all passes, in order. A block that is held beyond its pass, such as the loss in a variable, does not
/// make its chain longer.
fn chains(draft: &Draft, phases: &Phases, blocks: &[usize]) -> Vec<Chain> {
    let mut chains: Vec<Chain> = Vec::new();
    let mut end = 0;
    for &life in blocks {
        let from = draft.lives[life].made_at().unwrap_or(0);
        let own_end = phases.pass_at(from).map_or(usize::MAX, |pass| pass.backward.end);
        let freed = draft.lives[life].freed_at();
        let to = if freed < own_end { freed } else { from };
        match chains
            .last_mut()
            .filter(|chain| from <= chain.to && own_end == end)
        {
            Some(chain) => {
                chain.blocks.push(life);
                chain.to = chain.to.max(to);
            }
            None => chains.push(Chain {
                blocks: vec![life],
                from,
                to,
            }),
        }
        end = own_end;
    }
    chains
}

/// Adds all pieces but the last before the chain. Also adds the blocks that sum the gradients of parameters that every piece uses.
fn add_pieces(draft: &mut Draft, chain: &Chain, gradients: &[usize], parts: u32) -> Result<(), EditError> {
    let mut calls: Vec<(Moment, usize, bool)> = Vec::new();
    for &life in chain.blocks.iter().chain(gradients) {
        let block = &draft.lives[life];
        calls.extend(block.made.map(|made| (made, life, true)));
        calls.extend(
            block
                .freed
                .filter(|_| gradients.binary_search(&life).is_err())
                .map(|freed| (freed, life, false)),
        );
    }
    calls.sort_by_key(|(moment, life, _)| (*moment, *life));
    let mut sums: Vec<(usize, Moment)> = Vec::new();
    for piece in 1..parts {
        let mut made: HashMap<usize, Moment> = HashMap::new();
        for (_, life, is_made) in &calls {
            let moment = draft.before(chain.from);
            if *is_made {
                made.insert(*life, moment);
            } else if let Some(from) = made.remove(life) {
                let bytes = draft.lives[*life].bytes.div_ceil(u64::from(parts));
                draft.add(*life, bytes, from, Some(moment))?;
            }
        }
        // Only gradients are left. The first piece allocates the sum, and each further piece adds to it.
        let mut left: Vec<(usize, Moment)> = made.into_iter().collect();
        left.sort_unstable();
        if piece == 1 {
            sums = left;
            continue;
        }
        let end = draft.before(chain.from);
        for (life, from) in left {
            draft.add(life, draft.lives[life].bytes, from, Some(end))?;
        }
    }
    for (life, from) in sums {
        // The last piece allocates the recorded block, which the sum then replaces.
        let until = draft.after(chain.to);
        draft.add(life, draft.lives[life].bytes, from, Some(until))?;
    }
    Ok(())
}

/// Returns the gradients of parameters that are computed from a chain: made while it is held in the backward pass, and
/// held beyond the backward pass.
fn gradients(draft: &Draft, phases: &Phases, chain: &Chain) -> Vec<usize> {
    let Some(pass) = phases.pass_of(chain.from) else {
        return Vec::new();
    };
    let first = draft.made_before(chain.from.max(pass.backward.start));
    let made = first..draft.made_before(chain.to);
    let is_gradient = |life: &usize| {
        draft.lives[*life].freed_at() >= pass.backward.end
            && phases.of(*life) == Some(Phase::Backward)
            && chain.blocks.binary_search(life).is_err()
    };
    made.filter(is_gradient).collect()
}
