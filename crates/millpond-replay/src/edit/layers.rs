//! The layers of a forward pass, and the events at which their backward passes begin.

use super::draft::Draft;
use super::pattern::Pattern;
use super::phases::{Pass, Phase, Phases};
use super::tag::module;
use millpond_trace::Trace;
use std::collections::HashMap;

/// A layer in one pass.
#[derive(Debug)]
pub(super) struct Layer {
    /// Its matched blocks of the forward pass, in the order of their allocation.
    pub(super) blocks: Vec<usize>,
    /// Those of them that the backward pass frees.
    pub(super) saved: Vec<usize>,
    /// The result that the next layer reads. It is the largest block of the last operator.
    pub(super) output: Option<usize>,
    /// The event at which the forward pass after the layer begins.
    pub(super) forward_end: usize,
    /// The event before which the backward pass of the layer begins.
    pub(super) backward_start: usize,
    /// The event after which the backward pass of the layer has ended.
    pub(super) backward_end: usize,
}

/// The name of a layer: as many parts of its module path as the pattern names. If tags have no module paths, it
/// is the number of times that the first tag has occurred.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Name {
    Module(String),
    Repeat(u32),
}

/// Returns the layers of one pass in the order of their forward passes.
pub(super) fn layers(
    trace: &Trace,
    draft: &Draft,
    phases: &Phases,
    pass: &Pass,
    pattern: &Pattern,
    matched: &[usize],
) -> Vec<Layer> {
    let first = matched.partition_point(|life| {
        draft.lives[*life]
            .made_at()
            .is_none_or(|at| at < pass.forward.start)
    });
    let end = matched.partition_point(|life| {
        draft.lives[*life]
            .made_at()
            .is_none_or(|at| at < pass.forward.end)
    });
    let mut names: HashMap<Name, usize> = HashMap::new();
    let mut layers: Vec<Layer> = Vec::new();
    let mut repeats: Option<(u32, u32)> = None;
    for &life in &matched[first..end] {
        if phases.of(life) != Some(Phase::Forward) {
            continue;
        }
        let tag = draft.lives[life].tag;
        let name = name(trace.tags.get(tag), pattern).unwrap_or_else(|| {
            let (first, count) = repeats.get_or_insert((tag, 0));
            *count += u32::from(*first == tag);
            Name::Repeat(*count)
        });
        let at = *names.entry(name).or_insert(layers.len());
        if at == layers.len() {
            layers.push(Layer {
                blocks: Vec::new(),
                saved: Vec::new(),
                output: None,
                forward_end: pass.forward.end,
                backward_start: pass.backward.end,
                backward_end: pass.backward.start,
            });
        }
        layers[at].blocks.push(life);
    }
    let of_node = backward_starts(trace, draft, pass, pattern, &names, layers.len());
    for (layer, start) in layers.iter_mut().zip(of_node) {
        measure(draft, pass, layer, start);
    }
    for index in 1..layers.len() {
        let begins = layers[index]
            .blocks
            .first()
            .and_then(|life| draft.lives[*life].made_at());
        layers[index - 1].forward_end = begins.unwrap_or(pass.forward.end);
    }
    // The last layer ends when the program allocates its next block.
    if let Some(last) = layers.last_mut()
        && let Some(block) = last.blocks.last()
    {
        let next = draft.lives.get(block + 1).and_then(|life| life.made_at());
        last.forward_end = next.unwrap_or(pass.forward.end).min(pass.forward.end);
    }
    layers
}

fn name(tag: &str, pattern: &Pattern) -> Option<Name> {
    let module = module(tag);
    if !tag.contains(';') {
        return None;
    }
    let depth = pattern.depth(module).unwrap_or_else(|| numbered_depth(module));
    let parts: Vec<&str> = module.split('.').take(depth).collect();
    Some(Name::Module(parts.join(".")))
}

/// Returns the number of parts of a module path down to its first number, or of all.
fn numbered_depth(module: &str) -> usize {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let parts = module.split('.').count();
    module.split('.').position(is_number).map_or(parts, |at| at + 1)
}

/// Returns the event at which the backward pass of each layer allocates its first block, if tags name the layer.
fn backward_starts(
    trace: &Trace,
    draft: &Draft,
    pass: &Pass,
    pattern: &Pattern,
    names: &HashMap<Name, usize>,
    layers: usize,
) -> Vec<Option<usize>> {
    let mut starts = vec![None; layers];
    for life in &draft.lives[draft.made_before(pass.backward.start)..draft.made_before(pass.backward.end)] {
        let name = name(trace.tags.get(life.tag), pattern);
        if let Some(&layer) = name.and_then(|name| names.get(&name)) {
            let start: &mut Option<usize> = &mut starts[layer];
            *start = start.or(life.made_at());
        }
    }
    starts
}

fn measure(draft: &Draft, pass: &Pass, layer: &mut Layer, of_node: Option<usize>) {
    let is_saved = |life: &&usize| {
        let life = &draft.lives[**life];
        life.freed_at() >= pass.backward.start && life.freed_at() <= pass.backward.end
    };
    layer.saved = layer.blocks.iter().filter(is_saved).copied().collect();
    let freed = |life: &usize| draft.lives[*life].freed_at();
    let first_free = layer.saved.iter().map(freed).min().unwrap_or(pass.backward.end);
    layer.backward_end = layer.saved.iter().map(freed).max().unwrap_or(pass.backward.start);
    layer.backward_start = of_node.unwrap_or(first_free).min(first_free);
    let last = layer.blocks.last().map(|life| draft.lives[*life].tag);
    let of_last = layer
        .blocks
        .iter()
        .rev()
        .take_while(|life| Some(draft.lives[**life].tag) == last);
    // Of equally large blocks, the first is the result. The operator keeps the others.
    layer.output = of_last
        .copied()
        .max_by_key(|life| (draft.lives[*life].bytes, std::cmp::Reverse(*life)));
}
