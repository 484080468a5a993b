//! Sources that wrap other sources. Each has one task, and any stack of them is a source.
//!
//! ```text
//!   Limited    checks a limit before each call            limited
//!   Counted    counts calls, failures and bytes           counted
//!   Logged     passes every call to a callback            logged
//!   Faulty     makes chosen calls fail                    faulty
//! ```
//!
//! No wrapper creates or keeps addresses. The caller gets the addresses of the inner source, and returned memory
//! reaches the inner source. A stack over real memory therefore provides real memory.

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

/// Forwards the methods of [`Source`](crate::Source) that have a default implementation to the field `inner`. The compiler does
/// not report a wrapper that lacks such a method. Every wrapper therefore uses this macro, and every new method with a default
/// must be added here.
#[doc(hidden)]
#[macro_export]
macro_rules! forward_defaults {
    () => {
        fn can_wait(&self, stream: Option<u32>) -> bool {
            $crate::Source::can_wait(&self.inner, stream)
        }
    };
}

/// Forwards the methods of [`Source`](crate::Source) that only report facts to the field `inner`.
#[doc(hidden)]
#[macro_export]
macro_rules! forward_facts {
    () => {
        fn page_bytes(&self) -> u64 {
            $crate::Source::page_bytes(&self.inner)
        }
        fn is_paged(&self) -> bool {
            $crate::Source::is_paged(&self.inner)
        }
        fn is_complete(&self, event: $crate::Event) -> bool {
            $crate::Source::is_complete(&self.inner, event)
        }
        $crate::forward_defaults!();
    };
}

/// Forwards the methods of [`Source`](crate::Source) that report numbers of bytes to the field `inner`.
#[doc(hidden)]
#[macro_export]
macro_rules! forward_bytes {
    () => {
        fn capacity(&self) -> Option<u64> {
            $crate::Source::capacity(&self.inner)
        }
        fn free_bytes(&self) -> Option<u64> {
            $crate::Source::free_bytes(&self.inner)
        }
    };
}

/// Forwards the methods of [`Source`](crate::Source) about streams to the field `inner`.
#[doc(hidden)]
#[macro_export]
macro_rules! forward_streams {
    () => {
        fn record_event(&mut self, stream: u32) -> $crate::Event {
            $crate::Source::record_event(&mut self.inner, stream)
        }
        fn wait_event(&mut self, stream: u32, event: $crate::Event) {
            $crate::Source::wait_event(&mut self.inner, stream, event);
        }
        fn synchronize(&mut self) {
            $crate::Source::synchronize(&mut self.inner);
        }
    };
}
