//! The answer of a command, for programs that contain the command.

use std::path::PathBuf;

/// The answer of a command.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Answer {
    /// The device in the recorded process, or -1 for the host or for all devices together.
    pub device: i32,
    /// Why memory ran out if it did, what the program needs, and what to change: one sentence each.
    pub sentences: Vec<String>,
    /// The text that the command prints.
    pub text: String,
    /// The JSON that the command prints with `--json`.
    pub json: String,
    /// The page with the details, if the options asked for it.
    pub page: Option<PathBuf>,
}
