//! Tags: short names for the purpose of memory.
//!
//! A tag is a number, and its name is kept for the life of the process. Each thread has one tag at a time, that of the innermost
//! scope. A block has exactly one tag, so that the bytes of all tags add up to the bytes of all blocks. Hierarchies can be
//! expressed as paths in the names.
//!
//! ```text
//!   names     the name of each number: written once, read without a lock
//!   current   this thread's tag: a cell, read with one load
//! ```

mod names;

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};

/// The purpose of memory. Copies are cheap, and the same name is the same tag in every thread.
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
    /// No tag, displayed as `untagged`.
    pub const NONE: Self = Self(0);
    /// The tag of every new name after 65,536 others, displayed as `other tags`.
    pub const OTHERS: Self = Self(1);

    /// Returns the tag with this name, and creates it if it is new. Names are never freed. After 65,536 names, each new
    /// name gets [`OTHERS`](Self::OTHERS), so a name should not contain an increasing counter.
    ///
    /// The lookup of a known name takes no lock and about the time of hashing it.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self(names::number(name))
    }

    /// Returns the name.
    #[must_use]
    pub fn name(self) -> &'static str {
        names::name(self.0)
    }

    /// Returns the number: 0 for no tag, 1 for the others, then in order of first use.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }

    /// Returns the tag with a number, which must belong to a tag.
    #[cfg(target_os = "linux")]
    #[doc(hidden)]
    pub const fn of_number(number: u32) -> Self {
        Self(number)
    }

    /// Returns this thread's tag.
    #[inline]
    #[must_use]
    pub fn current() -> Self {
        Self(CURRENT.get())
    }

    /// Makes this the thread's tag until the guard is dropped. The guard restores the previous tag, also after a panic.
    /// If guards are not dropped in reverse order, each restores the tag at its creation.
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

/// A guard that keeps its thread's tag. It cannot be sent to another thread.
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

/// Tags the allocations of this thread until the returned guard is dropped: `let _scope = millpond::tag("weights");`.
///
/// The name is looked up in each call. [`tag!`](crate::tag!) looks it up once.
#[must_use = "the tag holds until the scope is dropped"]
pub fn tag(name: &str) -> TagScope {
    Tag::new(name).enter()
}

/// Tags the allocations of this thread until the returned guard is dropped. The name is looked up only the first time.
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

/// A use of [`tag!`](crate::tag!).
#[doc(hidden)]
#[derive(Debug)]
pub struct TagSite {
    name: &'static str,
    /// The tag's number plus one, or 0 before it is known. The first thread looks the name up. Several threads may do
    /// so at the same time, and none waits.
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
    fn the_innermost_scope_applies_and_a_panic_restores_the_outer_one() {
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
    fn the_macro_and_the_function_use_the_same_tag() {
        for _ in 0..2 {
            let _scope = crate::tag!("same");
            assert_eq!(Tag::current(), Tag::new("same"));
        }
        assert_eq!((Tag::new("untagged"), Tag::new("")), (Tag::NONE, Tag::NONE));
        assert_eq!(Tag::new("other tags"), Tag::OTHERS);
    }

    #[test]
    fn control_characters_are_not_shown() {
        assert_eq!(Tag::new("a\u{1b}[2Jb").to_string(), "a\u{fffd}[2Jb");
    }
}
