//! Tags: what memory is for, in a word.
//!
//! A tag is a number, and its name is kept for the life of the process. Each thread has one tag at a time, the
//! innermost scope's: a block belongs to one tag, so that bytes by tag add up to all bytes. Whoever wants a path puts it
//! into the name.
//!
//! ```text
//!   names     what each number is called: written once, read without a lock
//!   current   this thread's tag: a cell, read with one load
//! ```

mod names;

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};

/// What memory is for. Copied freely; the same name is the same tag in every thread.
///
/// ```
/// use millpond::Tag;
///
/// let weights = Tag::new("weights");
/// {
///     let _scope = weights.enter();
///     assert_eq!(Tag::current().name(), "weights");
///     let _inner = millpond::tag("layer 0");
///     assert_eq!(Tag::current().name(), "layer 0", "the innermost scope wins");
/// }
/// assert_eq!(Tag::current(), Tag::NONE);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Tag(u32);

thread_local! {
    static CURRENT: Cell<u32> = const { Cell::new(0) };
}

impl Tag {
    /// No tag, shown as `untagged`.
    pub const NONE: Self = Self(0);
    /// What every new name is once there are 65,536 others, shown as `other tags`.
    pub const OTHERS: Self = Self(1);

    /// The tag of this name, made if it is new. Names are kept for ever; past 65,536 of them everything new is
    /// [`OTHERS`](Self::OTHERS), so a name should not hold a counter that grows.
    ///
    /// Looking up a known name takes no lock and about the time of hashing it.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self(names::number(name))
    }

    /// The name.
    #[must_use]
    pub fn name(self) -> &'static str {
        names::name(self.0)
    }

    /// The number: 0 for no tag, 1 for the others, then in order of first use.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }

    /// The tag with a number, which was some tag's.
    #[cfg(all(feature = "record", target_os = "linux"))]
    pub(crate) const fn of_number(number: u32) -> Self {
        Self(number)
    }

    /// This thread's tag.
    #[inline]
    #[must_use]
    pub fn current() -> Self {
        Self(CURRENT.get())
    }

    /// Makes it this thread's tag until the guard is dropped, which brings the one before back, in a panic too. Guards
    /// that are not dropped in reverse order bring back what was there when they were made.
    #[inline]
    #[must_use = "the tag holds until the scope is dropped"]
    pub fn enter(self) -> TagScope {
        TagScope {
            before: CURRENT.replace(self.0),
            here: PhantomData,
        }
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::post_mortem::Text::<96>::new(self.name()).fmt(f)
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tag({:?})", self.name())
    }
}

/// While it lives, its thread has its tag. Stays on that thread.
#[derive(Debug)]
#[must_use = "the tag holds until the scope is dropped"]
pub struct TagScope {
    before: u32,
    here: PhantomData<*const ()>,
}

impl Drop for TagScope {
    #[inline]
    fn drop(&mut self) {
        CURRENT.set(self.before);
    }
}

/// Names what this thread allocates from now on, until the answer is dropped: `let _scope = millpond::tag("weights");`.
///
/// The name is looked up each time; [`tag!`](crate::tag!) does that once.
#[must_use = "the tag holds until the scope is dropped"]
pub fn tag(name: &str) -> TagScope {
    Tag::new(name).enter()
}

/// Names what this thread allocates from now on, until the answer is dropped. The name is looked up the first time only.
///
/// ```
/// let _scope = millpond::tag!("weights");
/// assert_eq!(millpond::Tag::current().name(), "weights");
/// ```
#[macro_export]
macro_rules! tag {
    ($name:literal) => {{
        static SITE: $crate::__TagSite = $crate::__TagSite::new($name);
        SITE.enter()
    }};
}

/// A place that [`tag!`](crate::tag!) stands at.
#[doc(hidden)]
#[derive(Debug)]
pub struct TagSite {
    name: &'static str,
    /// One more than its number, once it is known. Whoever comes first looks the name up, or several do: nobody waits.
    number: AtomicU32,
}

impl TagSite {
    #[doc(hidden)]
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self {
            name,
            number: AtomicU32::new(0),
        }
    }

    #[doc(hidden)]
    #[inline]
    pub fn enter(&self) -> TagScope {
        let tag = match self.number.load(Ordering::Relaxed).checked_sub(1) {
            Some(number) => Tag(number),
            None => {
                let tag = Tag::new(self.name);
                self.number.store(tag.0 + 1, Ordering::Relaxed);
                tag
            }
        };
        tag.enter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_scope_wins_and_a_panic_brings_the_outer_one_back() {
        let outer = Tag::new("outer");
        let _outer = outer.enter();
        let panicked = std::panic::catch_unwind(|| {
            let _inner = tag("inner");
            assert_eq!(Tag::current(), Tag::new("inner"));
            std::panic::resume_unwind(Box::new(()));
        });
        assert!(panicked.is_err());
        assert_eq!(Tag::current(), outer);
        std::thread::spawn(|| assert_eq!(Tag::current(), Tag::NONE))
            .join()
            .unwrap();
    }

    #[test]
    fn a_name_is_one_tag_in_every_thread() {
        let names: Vec<String> = (0..200).map(|n| format!("raced {n}")).collect();
        let tags: Vec<Vec<Tag>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| names.iter().map(|name| Tag::new(name)).collect()))
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert!(tags.iter().all(|of| of == &tags[0]));
        for (tag, name) in tags[0].iter().zip(&names) {
            assert_eq!(tag.name(), name);
        }
    }

    #[test]
    fn a_site_and_a_function_name_the_same_tag() {
        for _ in 0..2 {
            let _scope = crate::tag!("same");
            assert_eq!(Tag::current(), Tag::new("same"));
        }
        assert_eq!((Tag::new("untagged"), Tag::new("")), (Tag::NONE, Tag::NONE));
        assert_eq!(Tag::new("other tags"), Tag::OTHERS);
    }

    #[test]
    fn what_would_steer_a_terminal_is_not_shown() {
        assert_eq!(Tag::new("a\u{1b}[2Jb").to_string(), "a\u{fffd}[2Jb");
    }
}
