//! Changes a recorded program, so that a replay shows what the changed program would need.
//!
//! An [`Edit`] is a change of the program, such as a smaller batch or the recomputation of activations.
//! [`apply`] changes a recording and returns a [`Trace`], so that everything that works on a recording also
//! works on the changed program. Each edit says what it assumes.
//!
//! ```
//! use millpond_replay::{Edit, apply_edits};
//! use millpond_trace::{ReadOptions, read_bytes};
//!
//! let csv = b"time_us,action,id,bytes,stream,tag\n0,alloc,1,3000,0,state\n1,free,1,3000,0,\n";
//! let recording = read_bytes(csv, "tiny", &ReadOptions::default())?;
//! let edits: Vec<Edit> = vec!["shard=state:3".parse()?];
//! let edited = apply_edits(&recording.traces[0], &edits)?;
//! assert_eq!(edited.trace.events[0].bytes, 1000);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod chunk;
mod draft;
mod early;
mod error;
mod growing;
mod layers;
mod offload;
mod pattern;
mod phases;
mod propose;
mod recompute;
mod scale;
mod tag;

use draft::Draft;
use millpond_trace::Trace;
use pattern::Pattern;
use serde::Serialize;
use std::fmt;
use std::str::FromStr;

pub use error::EditError;
pub use growing::Growing;

pub(crate) use propose::{pairs, propose};

/// The most pieces and ranks of an edit.
const MOST_PARTS: u32 = 1024;

/// The largest factor of a batch.
const LARGEST_FACTOR: f64 = 1000.0;

/// The most characters of an edit.
const LONGEST: usize = 4096;

/// A change of a recorded program.
///
/// Its text is `KIND=TAG`, with `:NUMBER` at the end for the kinds that have one. `TAG` is one or more patterns,
/// joined by commas. See [`apply`] for the kinds.
#[derive(Clone, Debug, PartialEq)]
pub struct Edit {
    change: Change,
    /// The blocks that change. `None` if the edit finds them itself.
    pattern: Option<Pattern>,
}

/// The kind of an edit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    Scale(f64),
    Chunk(u32),
    Recompute,
    Offload,
    Shard(u32),
    FreeEarly,
    Without,
}

impl Change {
    fn name(self) -> &'static str {
        match self {
            Self::Scale(_) => "scale",
            Self::Chunk(_) => "chunk",
            Self::Recompute => "recompute",
            Self::Offload => "offload",
            Self::Shard(_) => "shard",
            Self::FreeEarly => "free-early",
            Self::Without => "without",
        }
    }
}

impl FromStr for Edit {
    type Err = EditError;

    fn from_str(text: &str) -> Result<Self, EditError> {
        let wrong = |why| EditError::Syntax {
            text: text.chars().take(80).collect(),
            why,
        };
        if text.len() > LONGEST {
            return Err(wrong("it is longer than 4096 characters"));
        }
        let (kind, rest) = text.split_once('=').ok_or_else(|| wrong("it has no `=`"))?;
        let (tag, number) = match rest.rsplit_once(':') {
            Some((tag, number)) => (tag, Some(number)),
            None => (rest, None),
        };
        let parts = || {
            let parts: Option<u32> = number.and_then(|number| number.trim().parse().ok());
            parts
                .filter(|parts| (2..=MOST_PARTS).contains(parts))
                .ok_or_else(|| wrong("it must end in `:` and a number from 2 to 1024"))
        };
        let (change, tag) = match kind.trim() {
            "scale" => {
                let (tag, factor) = number.map_or((None, rest), |number| (Some(tag), number));
                let factor: Option<f64> = factor.trim().parse().ok();
                let factor = factor
                    .filter(|factor| *factor > 0.0 && *factor <= LARGEST_FACTOR)
                    .ok_or_else(|| wrong("it must end in a factor above 0 and up to 1000"))?;
                (Change::Scale(factor), tag)
            }
            "chunk" => (Change::Chunk(parts()?), Some(tag)),
            "shard" => (Change::Shard(parts()?), Some(tag)),
            "recompute" => (Change::Recompute, Some(rest)),
            "offload" => (Change::Offload, Some(rest)),
            "free-early" => (Change::FreeEarly, Some(rest)),
            "without" => (Change::Without, Some(rest)),
            _ => return Err(wrong("no edit has this name")),
        };
        let pattern = tag.map(|tag| Pattern::new(tag).ok_or_else(|| wrong("a tag is missing")));
        Ok(Self {
            change,
            pattern: pattern.transpose()?,
        })
    }
}

impl fmt::Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=", self.change.name())?;
        if let Some(pattern) = &self.pattern {
            write!(f, "{pattern}")?;
        }
        let colon = if self.pattern.is_some() { ":" } else { "" };
        match self.change {
            Change::Scale(factor) => write!(f, "{colon}{factor}"),
            Change::Chunk(parts) | Change::Shard(parts) => write!(f, "{colon}{parts}"),
            Change::Recompute | Change::Offload | Change::FreeEarly | Change::Without => Ok(()),
        }
    }
}

/// An edit that was applied to a recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AppliedEdit {
    /// The edit as it is written.
    pub edit: String,
    /// The assumptions, one sentence each.
    pub assumes: Vec<String>,
    /// The number of blocks of the recording that changed.
    pub changed_blocks: u64,
    /// Bytes that the edit moves to other memory and back in each step, on average. `None` if it moves none.
    pub moved_bytes_per_step: Option<u64>,
}

impl AppliedEdit {
    /// Returns a description of the edit, such as "the batch times 0.5". A sentence puts "with" before it.
    #[must_use]
    pub fn words(&self) -> String {
        let (kind, rest) = self.edit.split_once('=').unwrap_or((&self.edit, ""));
        let (tag, number) = rest.rsplit_once(':').unwrap_or((rest, rest));
        let of = match tag.matches(',').count() {
            0 => format!("`{tag}`"),
            _ if tag.contains("loss") || tag.contains("softmax") => "the loss".to_owned(),
            _ if tag.split(',').all(|group| group.contains("optim")) => "the optimizer's state".to_owned(),
            more => format!("{} groups", more + 1),
        };
        match kind {
            "scale" => format!("the batch times {number}"),
            "chunk" => format!("{of} in {number} pieces"),
            "shard" => format!("{of} divided among {number} GPUs"),
            "recompute" => match rest.matches(',').count() {
                0 => format!("checkpointing of `{rest}`"),
                more => format!("checkpointing of {} groups", more + 1),
            },
            "offload" => format!("`{rest}` in host memory between its uses"),
            "free-early" => format!("`{rest}` freed after its last use"),
            "without" => format!("`{rest}` left out"),
            _ => self.edit.clone(),
        }
    }
}

/// Returns whether one of these edits needs more devices than the program has.
pub(crate) fn need_devices<'a>(edits: impl IntoIterator<Item = &'a str>) -> bool {
    edits.into_iter().any(|edit| edit.starts_with("shard="))
}

/// Returns a description of edits that are applied together.
pub(crate) fn words(edits: &[AppliedEdit]) -> String {
    let words: Vec<String> = edits.iter().map(AppliedEdit::words).collect();
    words.join(" and ")
}

/// A changed recording.
#[derive(Clone, Debug)]
pub struct Edited {
    /// The changed program. It contains no addresses, and of the recorded allocator only the settings.
    pub trace: Trace,
    /// The edits in the order in which they were applied.
    pub edits: Vec<AppliedEdit>,
}

/// Applies edits to a recording, one after the other.
///
/// | edit | effect |
/// |---|---|
/// | `scale=F` | multiplies the sizes that follow the batch by F |
/// | `scale=TAG:F` | multiplies the sizes of the blocks of TAG by F |
/// | `chunk=TAG:N` | allocates the blocks of TAG in N pieces, one piece after the other |
/// | `recompute=TAG` | frees activations after the forward pass of their layer, and recomputes them for the backward pass |
/// | `offload=TAG` | moves the blocks of TAG to other memory between their uses |
/// | `shard=TAG:N` | divides the blocks of TAG among N ranks |
/// | `free-early=TAG` | frees the blocks of TAG after their last use |
/// | `without=TAG` | does not allocate the blocks of TAG |
///
/// # Errors
/// Returns an error if an edit matches no block, if the recording lacks what it needs, or if the changed program
/// would be too long.
pub fn apply(trace: &Trace, edits: &[Edit]) -> Result<Edited, EditError> {
    let mut trace = trace.clone();
    let mut applied = Vec::with_capacity(edits.len());
    for edit in edits {
        let mut draft = Draft::new(&trace);
        let done = edit.change(&trace, &mut draft)?;
        applied.push(AppliedEdit {
            edit: edit.to_string(),
            assumes: done.assumes,
            changed_blocks: done.blocks,
            moved_bytes_per_step: done.moved_bytes_per_step,
        });
        trace = draft.finish(&trace);
    }
    Ok(Edited {
        trace,
        edits: applied,
    })
}

/// The effect of an edit.
#[derive(Debug, Default)]
struct Done {
    blocks: u64,
    assumes: Vec<String>,
    moved_bytes_per_step: Option<u64>,
}

impl Done {
    fn new(blocks: u64, assumes: impl Into<String>) -> Self {
        Self {
            blocks,
            assumes: vec![assumes.into()],
            moved_bytes_per_step: None,
        }
    }
}

impl Edit {
    fn change(&self, trace: &Trace, draft: &mut Draft) -> Result<Done, EditError> {
        self.changed(trace, draft).map_err(|why| match why {
            EditError::Unsupported { why, .. } => self.unsupported(&why),
            other => other,
        })
    }

    fn changed(&self, trace: &Trace, draft: &mut Draft) -> Result<Done, EditError> {
        let Some(pattern) = &self.pattern else {
            return match self.change {
                Change::Scale(factor) => scale::batch(trace, draft, factor),
                _ => Err(self.unsupported("it names no tag")),
            };
        };
        let matched = pattern.matched(trace, draft);
        if matched.is_empty() {
            return Err(EditError::NoMatch {
                edit: self.to_string(),
                near: pattern.near(trace, draft),
            });
        }
        match self.change {
            Change::Scale(factor) => Ok(resize(
                draft,
                &matched,
                |bytes| scale::times(bytes, factor),
                "Every block of the group follows the batch, and nothing else does.",
            )),
            Change::Shard(ranks) => Ok(resize(
                draft,
                &matched,
                |bytes| bytes.div_ceil(u64::from(ranks)),
                "Each rank holds an equal part of every block, and no rank gathers the whole again.",
            )),
            Change::Chunk(parts) => chunk::chunk(trace, draft, &matched, parts),
            Change::Recompute => recompute::recompute(trace, draft, pattern, &matched),
            Change::Offload => offload::offload(trace, draft, pattern, &matched),
            Change::FreeEarly => early::free_early(trace, draft, &matched),
            Change::Without => Ok(without(draft, &matched)),
        }
    }

    fn unsupported(&self, why: &str) -> EditError {
        EditError::Unsupported {
            edit: self.to_string(),
            why: why.to_owned(),
        }
    }
}

/// Returns the largest group of blocks that grows from step to step up to an event.
pub(crate) fn growing_at(trace: &Trace, event: usize) -> Option<Growing> {
    let draft = Draft::new(trace);
    growing::growing(trace, &draft, &phases::Phases::new(trace, &draft), event)
}

fn resize(draft: &mut Draft, matched: &[usize], size: impl Fn(u64) -> u64, assumes: &str) -> Done {
    for &life in matched {
        draft.lives[life].bytes = size(draft.lives[life].bytes);
    }
    Done::new(matched.len() as u64, assumes)
}

fn without(draft: &mut Draft, matched: &[usize]) -> Done {
    for &life in matched {
        draft.lives[life].removed = true;
    }
    Done::new(
        matched.len() as u64,
        "Nothing else is made in place of these blocks.",
    )
}

#[cfg(test)]
mod tests;
