//! Frees blocks directly after their last use.

use super::Done;
use super::draft::Draft;
use super::error::EditError;
use super::phases::{Pass, Phase, Phases};
use super::tag::{module, operator};
use millpond_trace::Trace;
use std::collections::HashMap;
use std::ops::Range;

/// Operators whose backward pass reads only their result, or nothing. Any other operator may read its operands.
const KEEP_NO_OPERAND: [&str; 28] = [
    "add",
    "add_",
    "sub",
    "sub_",
    "neg",
    "sum",
    "mean",
    "cat",
    "stack",
    "clone",
    "contiguous",
    "copy",
    "_to_copy",
    "to",
    "softmax",
    "_softmax",
    "log_softmax",
    "_log_softmax",
    "cross_entropy_loss",
    "relu",
    "relu_",
    "sigmoid",
    "tanh",
    "exp",
    "sqrt",
    "dropout",
    "native_dropout",
    "masked_fill",
];

/// Frees each matched block after its last use, if the recording shows that use.
pub(super) fn free_early(trace: &Trace, draft: &mut Draft, matched: &[usize]) -> Result<Done, EditError> {
    let phases = Phases::new(trace, draft);
    let last_uses = last_uses(draft);
    let mut modules: Option<Modules<'_>> = None;
    let mut changed = 0;
    let mut kept = 0u64;
    for &life in matched {
        let Some(made) = draft.lives[life].made_at() else {
            continue;
        };
        let freed = draft.lives[life].freed_at();
        let pass = phases.pass_at(made);
        let own = pass.map_or(0..0, |pass| {
            // Blocks come in order of time, so one pass is enough to remember.
            if modules.as_ref().is_none_or(|modules| modules.pass != *pass) {
                modules = Some(Modules::new(trace, draft, pass));
            }
            modules
                .as_ref()
                .map_or(0..0, |modules| modules.of(trace, draft.lives[life].tag))
        });
        let until = match pass {
            Some(pass) if phases.of(life) == Some(Phase::Backward) => {
                if freed < pass.backward.end {
                    kept += 1;
                    continue;
                }
                phases.optimizer_end(pass.backward.end)
            }
            Some(pass) if freed >= pass.backward.start && freed <= own.end => {
                kept += 1;
                continue;
            }
            Some(_) if !next_keeps_no_operand(trace, draft, &last_uses, life) => Some(own.start),
            _ => last_uses[life].map(|at| at + 1),
        };
        let Some(until) =
            until.filter(|until| *until < freed && *until > made && *until < trace.events.len())
        else {
            continue;
        };
        let until = draft.before(until);
        draft.end(life, until);
        changed += 1;
    }
    if changed == 0 {
        return Err(EditError::unsupported(if kept > 0 {
            "its blocks are freed by the backward pass, which uses them"
        } else {
            "its blocks are freed after their last use already, or the recording does not show it"
        }));
    }
    let mut done = Done::new(
        changed,
        "A block of the forward pass is last used by the operator that follows it, or by the backward pass of that \
         operator if it may read its operands; the gradient of a parameter is last used by the optimizer.",
    );
    if kept > 0 {
        done.assumes.push(format!(
            "{kept} blocks of the group are freed by the backward pass, which uses them; they stay."
        ));
    }
    Ok(done)
}

/// Returns whether the operator after the one that made a block does not need it in the backward pass.
fn next_keeps_no_operand(trace: &Trace, draft: &Draft, last_uses: &[Option<usize>], life: usize) -> bool {
    let Some(at) = last_uses[life] else {
        return false;
    };
    let next = draft.made_before(at);
    let operator = draft
        .lives
        .get(next)
        .map_or("", |next| operator(trace.tags.get(next.tag)));
    KEEP_NO_OPERAND.contains(&operator)
}

/// The backward pass of each module in one pass: the events from its first block up to the next block after its last.
///
/// When the backward pass of a module begins, that of every operator that read a block of the module has ended. Everything
/// that was kept for these operators is freed before the backward pass of the module ends.
#[derive(Debug)]
struct Modules<'a> {
    pass: Pass,
    events: HashMap<&'a str, Range<usize>>,
}

impl<'a> Modules<'a> {
    fn new(trace: &'a Trace, draft: &Draft, pass: &Pass) -> Self {
        let blocks = draft.made_before(pass.backward.start)..draft.made_before(pass.backward.end);
        let mut events: HashMap<&str, Range<usize>> = HashMap::new();
        for life in blocks.clone() {
            let made = draft.lives[life].made_at().unwrap_or(pass.backward.end);
            let is_last = life + 1 == blocks.end;
            let next = draft
                .lives
                .get(life + 1)
                .filter(|_| !is_last)
                .and_then(|next| next.made_at());
            let next = next.unwrap_or(pass.backward.end);
            let module = module(trace.tags.get(draft.lives[life].tag));
            events.entry(module).or_insert(made..next).end = next;
        }
        Self {
            pass: pass.clone(),
            events,
        }
    }

    /// Returns the events of the backward pass of a block's module. If there are none, returns an empty range at the end of the whole
    /// backward pass.
    fn of(&self, trace: &Trace, tag: u32) -> Range<usize> {
        let end = self.pass.backward.end;
        self.events
            .get(module(trace.tags.get(tag)))
            .cloned()
            .unwrap_or(end..end)
    }
}

/// Returns for each block the event at which the next operator allocates its last block. Consecutive blocks with the same tag belong to
/// one operator.
fn last_uses(draft: &Draft) -> Vec<Option<usize>> {
    let lives = &draft.lives;
    // The index after the run of equal tags that each block belongs to.
    let mut run_end = vec![lives.len(); lives.len()];
    for index in (1..lives.len()).rev() {
        let same = lives[index - 1].tag == lives[index].tag;
        run_end[index - 1] = if same { run_end[index] } else { index };
    }
    let last_of_next = |end: &usize| {
        let next_end = run_end.get(*end)?;
        lives.get(next_end.checked_sub(1)?)?.made_at()
    };
    run_end.iter().map(last_of_next).collect()
}
