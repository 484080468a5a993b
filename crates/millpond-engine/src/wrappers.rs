//! Sources around sources: each does one thing, and any stack of them is a source.
//!
//! ```text
//!   Limited    charges a limit first, then asks           limited
//!   Counted    counts calls, failures and bytes           counted
//!   Logged     shows every call to a sink                 logged
//!   Faulty     makes chosen calls fail                    faulty
//! ```
//!
//! None makes an address up or keeps one back: what a source below gives is what a caller gets, and what the
//! caller gives back reaches the source below. So a stack over memory is memory.

mod call;
mod counted;
mod faulty;
mod held;
mod limited;
mod logged;

pub use call::CallKind;
pub use counted::{Counted, Counts, Tally};
pub use faulty::{Failure, Faulty, When};
pub use limited::{Limit, Limited};
pub use logged::{Logged, SourceEvent};

/// The methods of [`Source`](crate::Source) that only tell, passed on.
macro_rules! forward_facts {
    () => {
        fn page_bytes(&self) -> u64 {
            self.inner.page_bytes()
        }
        fn is_paged(&self) -> bool {
            self.inner.is_paged()
        }
        fn is_complete(&self, event: crate::source::Event) -> bool {
            self.inner.is_complete(event)
        }
        fn can_wait(&self, stream: Option<u32>) -> bool {
            self.inner.can_wait(stream)
        }
    };
}

/// What the source below says of its bytes, passed on.
macro_rules! forward_bytes {
    () => {
        fn capacity(&self) -> Option<u64> {
            self.inner.capacity()
        }
        fn free_bytes(&self) -> Option<u64> {
            self.inner.free_bytes()
        }
    };
}

/// The methods of [`Source`](crate::Source) about streams, passed on.
macro_rules! forward_streams {
    () => {
        fn record_event(&mut self, stream: u32) -> crate::source::Event {
            self.inner.record_event(stream)
        }
        fn wait_event(&mut self, stream: u32, event: crate::source::Event) {
            self.inner.wait_event(stream, event);
        }
        fn synchronize(&mut self) {
            self.inner.synchronize();
        }
    };
}

use {forward_bytes, forward_facts, forward_streams};
