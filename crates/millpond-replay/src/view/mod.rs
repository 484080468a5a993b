//! The timeline viewer: a page that shows a recording of any size and answers queries about any part of it.
//!
//! ```text
//!   History ──▶ analysis::overview   a coarse overview, made while the file is opened and painted first
//!               analysis::blocks     the table of blocks, in parts that are made while the recording is walked
//!               told.rs, stacks.rs   findings, steps, missing parts; names of functions, on request
//!               replayed.rs          the memory that other policies would have taken, on request
//!               clock.rs             the start of each recording on the common time axis
//!   Trace   ──▶ answer.rs            the memory that the program needs, in a few sentences
//!                     │
//!                     ▼
//!               page.rs, assets/     one page for both: it requests these from a server, or contains them (`embed.rs`)
//! ```
//!
//! The queries run in the page itself (`assets/table.js`, `assets/lens.js`, `assets/window.js`). A server
//! only sends the recording and answers no queries. So a page in a file answers the same queries as a page from
//! a server.

mod answer;
mod clock;
mod embed;
mod page;
mod replayed;
mod stacks;
mod told;

pub use answer::{answer, too_long};
pub use clock::offsets;
pub use embed::{Embedded, embed};
pub use page::{Served, policy, served};
pub use replayed::{WhatIf, WhatIfError};
pub use stacks::stacks;
pub use told::{glance, open, told};

/// The most columns of the overview. It has at least half as many.
const COLUMNS: usize = 1200;

/// The most blocks that a served page receives. Each takes about 60 bytes of memory with its two events.
pub const MOST_SERVED: u64 = 8_000_000;

/// The most blocks in a file. Each takes about ten bytes.
pub const MOST_EMBEDDED: u64 = 1_000_000;
