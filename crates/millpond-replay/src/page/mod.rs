//! The report as one HTML file that people can send each other.
//!
//! ```text
//!   Page ──▶ story.rs   the recording's columns ─┐
//!            places.rs  each policy's columns  ──┼─▶ blobs.rs  what there is room for
//!            overview.rs  a glance to paint first │
//!            html.rs  text, script, style  ◀──────┘
//! ```
//!
//! Where only a part was replayed, `window.rs` first makes a recording of that part.
//!
//! The file carries no pictures and no samples: it carries the recording and each policy's answer,
//! so well compressed that a million events and ten policies stay below 15 MB, and the script in it
//! (`assets/`) computes every picture from them. So what is read off the page is exact at any zoom.
//! A glance of a few thousand numbers is painted before any of that is decoded.

mod blobs;
pub(crate) mod encode;
pub(crate) mod html;
mod input;
mod overview;
mod places;
mod story;
pub(crate) mod text;
mod window;

#[cfg(test)]
mod tests;

pub use html::write;
pub use input::{Page, Run};
pub use window::window;
