//! The edits that may lower the peak of a program, derived from the groups that hold it.

use super::draft::Draft;
use super::growing::growing;
use super::pattern::Pattern;
use super::phases::{Phase, Phases};
use super::scale::Follows;
use super::{Change, Edit};
use crate::program::{Op, Program};
use crate::tags::tag_group;
use millpond_trace::Trace;
use std::collections::{BTreeMap, BTreeSet};

/// The least share of the peak that a group must hold to be worth an edit.
const WORTH: f64 = 0.02;

/// The number of pieces and ranks that are proposed.
const PARTS: u32 = 8;

/// The most groups that are tried alone.
const MOST_ALONE: usize = 6;

/// A block can belong to a chain if it has at least one part in this many of the chain's largest block.
const OF_LARGEST: u64 = 4;

/// A tag group at the peak.
#[derive(Debug)]
struct Group {
    phase: Option<Phase>,
    bytes: u64,
    lives: Vec<usize>,
}

/// Returns edits of the groups that hold the peak. Some of them may be impossible or useless.
pub(crate) fn propose(trace: &Trace, program: &Program) -> Vec<Edit> {
    let draft = Draft::new(trace);
    let phases = Phases::new(trace, &draft);
    let groups = holders(trace, program, &draft, &phases);
    let worth = |bytes: u64| bytes as f64 >= WORTH * program.peak_requested as f64;
    let mut edits = Vec::new();
    let mut add = |change, groups: &[String]| {
        edits.extend(Pattern::of_groups(groups).map(|pattern| Edit {
            change,
            pattern: Some(pattern),
        }));
    };
    let peak = program.ops.get(program.peak_op).and_then(Op::event);
    if let Some(growing) = peak.and_then(|event| growing(trace, &draft, &phases, event as usize)) {
        add(Change::Without, &[growing.tag]);
    }
    let chain = chain(trace, &draft, &phases, &groups, program.peak_requested);
    if !chain.is_empty() {
        add(Change::Chunk(PARTS), &chain);
    }
    let layers = layers(&groups, worth);
    for layer in &layers {
        add(Change::Recompute, std::slice::from_ref(layer));
    }
    if layers.is_empty() {
        // Without the names of modules, all activations are recomputed together.
        let mut forward: Vec<(&String, &Group)> = groups
            .iter()
            .filter(|(_, group)| group.phase == Some(Phase::Forward) && worth(group.bytes))
            .collect();
        forward.sort_by(|a, b| (b.1.bytes, a.0).cmp(&(a.1.bytes, b.0)));
        let names: Vec<String> = forward
            .iter()
            .take(MOST_ALONE)
            .map(|(name, _)| (*name).clone())
            .collect();
        if !names.is_empty() {
            add(Change::Recompute, &names);
        }
    }
    let state: Vec<String> = groups
        .iter()
        .filter(|(_, group)| group.phase == Some(Phase::Optimizer) && worth(group.bytes))
        .map(|(name, _)| name.clone())
        .collect();
    if !state.is_empty() {
        add(Change::Offload, &state);
        add(Change::Shard(PARTS), &state);
    }
    let mut alone: Vec<(&String, &Group)> = groups
        .iter()
        .filter(|(name, group)| {
            name.contains(';') && group.phase == Some(Phase::Forward) && worth(group.bytes)
        })
        .collect();
    alone.sort_by(|a, b| (b.1.bytes, a.0).cmp(&(a.1.bytes, b.0)));
    for (name, _) in alone.into_iter().take(MOST_ALONE) {
        add(Change::FreeEarly, std::slice::from_ref(name));
    }
    if !phases.passes.is_empty() {
        edits.push(Edit {
            change: Change::Scale(0.5),
            pattern: None,
        });
    }
    edits
}

/// The most edits that are combined.
const MOST_COMBINED: usize = 4;

/// Returns pairs of edits to apply together. The edits of a pair have different kinds and different groups. The most
/// useful edits must be first, and only a few are combined.
pub(crate) fn pairs(edits: &[Edit]) -> Vec<Vec<Edit>> {
    let few = &edits[..edits.len().min(MOST_COMBINED)];
    let mut pairs = Vec::new();
    for (at, first) in few.iter().enumerate() {
        let differs =
            |second: &&Edit| second.change.name() != first.change.name() && second.pattern != first.pattern;
        let seconds = few[at + 1..].iter().filter(differs);
        pairs.extend(seconds.map(|second| vec![first.clone(), second.clone()]));
    }
    pairs
}

/// Returns the groups that hold the peak.
fn holders(trace: &Trace, program: &Program, draft: &Draft, phases: &Phases) -> BTreeMap<String, Group> {
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    for op in program.held_after(program.peak_op + 1) {
        let event = op.event().map(|event| event as usize);
        let life = match event {
            Some(event) => draft.made_before(event),
            None => op.allocation as usize,
        };
        let Some(block) = draft.lives.get(life) else {
            continue;
        };
        let group = groups
            .entry(tag_group(trace.tags.get(block.tag)))
            .or_insert(Group {
                phase: phases.of(life),
                bytes: 0,
                lives: Vec::new(),
            });
        group.bytes = group.bytes.saturating_add(op.bytes);
        group.lives.push(life);
    }
    groups
}

/// Returns the groups of the chain of large blocks in which the forward pass turns into the backward pass, such as
/// the logits, their loss and the gradients of both.
fn chain(
    trace: &Trace,
    draft: &Draft,
    phases: &Phases,
    groups: &BTreeMap<String, Group>,
    peak: u64,
) -> Vec<String> {
    let lives = groups.values().flat_map(|group| &group.lives).copied();
    let in_pass = lives.filter(|life| matches!(phases.of(*life), Some(Phase::Forward | Phase::Backward)));
    let Some(largest) = in_pass.max_by_key(|life| draft.lives[*life].bytes) else {
        return Vec::new();
    };
    let seed = &draft.lives[largest];
    if (seed.bytes as f64) < WORTH * peak as f64 {
        return Vec::new();
    }
    let Some(made) = seed.made_at() else {
        return Vec::new();
    };
    let pass = phases
        .passes
        .iter()
        .find(|pass| pass.forward.start <= made && made < pass.backward.end);
    let Some(pass) = pass else {
        return Vec::new();
    };
    let follows = Follows::new(trace, draft, phases);
    let belongs = |life: usize| {
        draft.lives[life].bytes >= seed.bytes / OF_LARGEST
            && draft.lives[life].freed_at() < pass.backward.end
            && follows.batch(draft, life)
    };
    let of_pass: Vec<usize> = (draft.made_before(pass.forward.start)..draft.made_before(pass.backward.end))
        .filter(|life| belongs(*life))
        .collect();
    let (mut from, mut to) = (made, seed.freed_at());
    let mut chain: Vec<usize> = Vec::new();
    loop {
        let touches = |life: &usize| {
            let block = &draft.lives[*life];
            block.made_at().is_some_and(|at| at <= to) && block.freed_at() >= from
        };
        let found: Vec<usize> = of_pass.iter().copied().filter(touches).collect();
        if found.len() == chain.len() {
            break;
        }
        if found.len() > MOST_IN_CHAIN {
            return Vec::new();
        }
        from = found
            .iter()
            .filter_map(|life| draft.lives[*life].made_at())
            .min()
            .unwrap_or(from);
        to = found
            .iter()
            .map(|life| draft.lives[*life].freed_at())
            .max()
            .unwrap_or(to);
        chain = found;
    }
    // A chain begins in the forward pass and reaches into the backward pass.
    let spans = from < pass.forward.end && to >= pass.backward.start;
    if !spans {
        return Vec::new();
    }
    let name = |life: usize| tag_group(trace.tags.get(draft.lives[life].tag));
    let names: BTreeSet<String> = chain.iter().map(|life| name(*life)).collect();
    // A group that also has large blocks outside the chain is left out.
    let others: BTreeSet<String> = of_pass
        .iter()
        .filter(|life| chain.binary_search(life).is_err())
        .map(|life| name(*life))
        .collect();
    let small = draft.made_before(pass.forward.start)..draft.made_before(pass.backward.end);
    let mut blocks: BTreeMap<String, usize> = BTreeMap::new();
    for life in small {
        *blocks.entry(name(life)).or_default() += 1;
    }
    let is_of_chain = |name: &String| blocks.get(name).is_some_and(|blocks| *blocks <= MOST_IN_CHAIN);
    names
        .difference(&others)
        .filter(|name| is_of_chain(name))
        .cloned()
        .collect()
}

/// The most blocks of a chain that is one computation.
const MOST_IN_CHAIN: usize = 32;

/// Returns the module paths of layers, down to their number, whose activations are worth recomputing.
fn layers(groups: &BTreeMap<String, Group>, worth: impl Fn(u64) -> bool) -> Vec<String> {
    let mut paths: BTreeMap<String, u64> = BTreeMap::new();
    for (name, group) in groups {
        let module = name.split(';').nth(1).unwrap_or("").trim();
        let numbered = module
            .split_inclusive('.')
            .position(|part| part.trim_end_matches('.') == "*");
        let (Some(last), Some(Phase::Forward)) = (numbered, group.phase) else {
            continue;
        };
        let parts: Vec<&str> = module.split('.').take(last + 1).collect();
        let bytes = paths.entry(parts.join(".")).or_default();
        *bytes = bytes.saturating_add(group.bytes);
    }
    paths
        .into_iter()
        .filter(|(_, bytes)| worth(*bytes))
        .map(|(path, _)| path)
        .collect()
}
