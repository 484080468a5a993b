//! The reasons why an edit is refused.

use thiserror::Error;

/// An edit that cannot be read or applied. Each message says what to do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EditError {
    /// The text is not an edit.
    #[error(
        "'{text}' is not an edit: {why}; write scale=0.5, scale=TAG:0.5, chunk=TAG:8, recompute=TAG, offload=TAG, \
         shard=TAG:8, free-early=TAG or without=TAG"
    )]
    Syntax {
        /// The text.
        text: String,
        /// The reason.
        why: &'static str,
    },
    /// No block has a matching tag.
    #[error("'{edit}' matches no block; {}", if .near.is_empty() {
        "the recording has no tags".to_owned()
    } else {
        format!("groups of this recording: {}", quoted(.near))
    })]
    NoMatch {
        /// The edit.
        edit: String,
        /// Groups with similar names, then those with the most bytes.
        near: Vec<String>,
    },
    /// The recording lacks what the edit needs.
    #[error("'{edit}' cannot be applied: {why}")]
    Unsupported {
        /// The edit.
        edit: String,
        /// The reason.
        why: String,
    },
    /// The changed program would have too many blocks.
    #[error("the edits would make more than {limit} blocks; use fewer pieces or a more exact tag")]
    TooLong {
        /// The most blocks.
        limit: usize,
    },
}

impl EditError {
    /// Creates an error whose edit is filled in by the caller.
    pub(super) fn unsupported(why: impl Into<String>) -> Self {
        Self::Unsupported {
            edit: String::new(),
            why: why.into(),
        }
    }
}

fn quoted(groups: &[String]) -> String {
    let quoted: Vec<String> = groups.iter().map(|group| format!("'{group}'")).collect();
    quoted.join(", ")
}
