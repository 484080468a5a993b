//! Finds a group of blocks that grows from one training step to the next, because the program keeps what it should free.
//!
//! A group grows if it holds blocks of at least [`LEAST_PASSES`] passes, most of them from earlier passes than the current one, and if
//! each quarter of the passes since its first block has made some of them. State that the first steps make does not grow, and neither
//! do the activations of one pass.

use super::draft::{Draft, Life};
use super::phases::Phases;
use crate::tags::tag_group;
use millpond_trace::Trace;
use serde::Serialize;
use std::collections::{BTreeSet, HashMap};

/// The fewest passes in which a growing group has made the blocks that it holds.
const LEAST_PASSES: usize = 4;

/// A growing group holds at least one part in this many of the bytes that the program holds.
const WORTH: u64 = 10;

/// A group of blocks that grows from step to step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Growing {
    /// The name of the group.
    pub tag: String,
    /// Requested bytes of the blocks that it holds.
    pub bytes: u64,
    /// The number of these blocks.
    pub blocks: u64,
    /// The number of passes, each forward and backward, in which they were made.
    pub passes: u64,
}

#[derive(Default)]
struct Kept {
    bytes: u64,
    blocks: u64,
    /// Bytes that earlier passes made.
    earlier: u64,
    /// The passes that made the blocks, by number.
    passes: BTreeSet<usize>,
}

/// Returns the largest group that grows up to an event. Returns `None` if there is none, or if the tags do not name the phases of a
/// training program.
pub(crate) fn growing(trace: &Trace, draft: &Draft, phases: &Phases, event: usize) -> Option<Growing> {
    let current = phases.pass_number(event)?;
    if current < LEAST_PASSES {
        return None;
    }
    let is_held = |life: &&Life| life.made_at().is_none_or(|made| made < event) && life.freed_at() > event;
    let mut names: HashMap<u32, String> = HashMap::new();
    let mut groups: HashMap<&str, Kept> = HashMap::new();
    for life in draft.lives.iter().filter(is_held) {
        names
            .entry(life.tag)
            .or_insert_with(|| tag_group(trace.tags.get(life.tag)));
    }
    let mut held = 0u64;
    for life in draft.lives.iter().filter(is_held) {
        held = held.saturating_add(life.bytes);
        let Some(pass) = life.made_at().and_then(|made| phases.pass_number(made)) else {
            continue;
        };
        let name = names.get(&life.tag).map_or("", String::as_str);
        let group = groups.entry(name).or_default();
        group.bytes = group.bytes.saturating_add(life.bytes);
        group.blocks += 1;
        group.passes.insert(pass);
        if pass < current {
            group.earlier = group.earlier.saturating_add(life.bytes);
        }
    }
    let grows = |kept: &Kept| {
        kept.bytes >= held / WORTH
            && kept.earlier >= kept.bytes / 2
            && kept.passes.len() >= LEAST_PASSES
            && is_steady(&kept.passes, current)
    };
    let growing = groups
        .into_iter()
        .filter(|(name, kept)| !name.is_empty() && grows(kept));
    let most = growing.max_by(|a, b| (a.1.bytes, b.0).cmp(&(b.1.bytes, a.0)));
    most.map(|(name, kept)| Growing {
        tag: name.to_owned(),
        bytes: kept.bytes,
        blocks: kept.blocks,
        passes: kept.passes.len() as u64,
    })
}

/// Returns whether each quarter of the passes from the first one up to now has made a block.
fn is_steady(passes: &BTreeSet<usize>, current: usize) -> bool {
    let Some(first) = passes.first() else {
        return false;
    };
    let span = current - first + 1;
    let quarter = |pass: usize| (pass - first) * 4 / span;
    let quarters: BTreeSet<usize> = passes.iter().map(|pass| quarter(*pass)).collect();
    quarters.len() == 4
}
