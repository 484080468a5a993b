//! The timeline viewer: a page that shows a recording of any size, and answers questions about any part of it.
//!
//! ```text
//!   History ──▶ analysis::overview   a glance, taken while the file is opened, painted first
//!               analysis::blocks     the table of blocks, in parts, while the recording is walked
//!               told.rs, stacks.rs   findings, steps, what is missing; names of functions, when asked for
//!               replayed.rs          what other policies would have taken, when asked for
//!                     │
//!                     ▼
//!               page.rs, assets/     one page for both: it asks a server for these, or carries them (`embed.rs`)
//! ```
//!
//! The page holds the only engine for questions (`assets/table.js`, `assets/lens.js`, `assets/window.js`): a server answers none,
//! it hands out the recording. So a file that was written to be sent to somebody can do all that the server's page does.

mod embed;
mod page;
mod replayed;
mod stacks;
mod told;

pub use embed::{Embedded, embed};
pub use page::{Served, policy, served};
pub use replayed::{WhatIf, WhatIfError};
pub use stacks::stacks;
pub use told::{glance, open, told};

/// Columns of the glance, at most: half as many at least.
const COLUMNS: usize = 1200;

/// Blocks that a served page is given at most: about 60 bytes of memory each, with their two events.
pub const MOST_SERVED: u64 = 8_000_000;

/// Blocks in a file at most: about ten bytes each.
pub const MOST_EMBEDDED: u64 = 1_000_000;
