//! The report as one HTML file that can be sent to others.
//!
//! ```text
//!   Page ──▶ story.rs   the recording's columns ─┐
//!            places.rs  each policy's columns  ──┼─▶ blobs.rs  the parts that fit
//!            overview.rs  an overview to paint    │
//!            html.rs  text, script, style  ◀──────┘
//! ```
//!
//! If only a part was replayed, `window.rs` first makes a recording of that part.
//!
//! The file contains no pictures and no samples. It contains the recording and the result of each policy,
//! compressed to less than 15 MB for a million events and ten policies. The script in it (`assets/`) computes
//! every picture from them, so every figure on the page is exact at any zoom. An overview of a few thousand
//! numbers is painted before the rest is decoded.

mod blobs;
mod html;
mod input;
mod overview;
mod places;
mod story;
mod window;

use crate::web::{encode, text};

#[cfg(test)]
mod tests;

pub use html::write;
pub use input::{Page, Run};
pub use window::window;
