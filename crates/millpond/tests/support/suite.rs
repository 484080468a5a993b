//! Tests of the requirements for every source.

pub(crate) mod account;
pub(crate) mod aliases;
pub(crate) mod contents;
pub(crate) mod faults;
pub(crate) mod misuse;
pub(crate) mod programs;

use millpond::engine::Source;

/// Makes a source of a number of pages, or without a limit. The source determines the page size.
pub(crate) fn of_pages<S: Source>(make: impl Fn(Option<u64>) -> Option<S>, pages: u64) -> Option<(S, u64)> {
    let Some(any) = make(None) else {
        eprintln!("skipped: this machine has no such source");
        return None;
    };
    let page = any.page_bytes();
    Some((make(Some(pages * page))?, page))
}
