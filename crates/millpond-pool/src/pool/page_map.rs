//! The map from pages to blocks, which `free` needs because it does not receive the size of the block.
//!
//! Only the program's pool is in the map. It has one word for each page of 4 KiB:
//!
//! ```text
//!   0                                    no block of the pool
//!   bytes / 16 << 8 | (1 + class)        the page belongs to a span of small blocks of this class
//!   LARGE | pages                        a larger block of this many pages begins here
//! ```
//!
//! A word is written before the first block of its page is allocated. The word of a larger block is removed when the block is freed, so a
//! second free is detected. A thread that frees a block of another thread has synchronised with it to get the address, so it sees the
//! word.

use super::classes::{CLASSES, FINE_UNIT, PAGE, SMALL, class_bytes};
use millpond_os::{Map, Part};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// The number of bits of an address.
const ADDRESS_BITS: u32 = 48;
const PAGE_LOG: u32 = PAGE.trailing_zeros();
/// The logarithm of the number of pages of a leaf, which covers 1 GiB.
const LEAF_LOG: u32 = 18;
const LEAF: usize = 1 << LEAF_LOG;
const ROOT: usize = 1 << (ADDRESS_BITS - PAGE_LOG - LEAF_LOG);
/// Marks the first page of a larger block.
const LARGE: u32 = 1 << 31;
/// The bits of the class in the word of a page of small blocks.
const CLASS_BITS: u32 = 8;
const CLASS: usize = (1 << CLASS_BITS) - 1;

const _: () = assert!(CLASSES < CLASS && ((SMALL / FINE_UNIT) << CLASS_BITS) < LARGE as usize);

/// The words of each GiB of addresses.
///
/// Invariant: each pointer is null, or points to [`LEAF`] words that start as zero and are never unmapped.
static LEAVES: [AtomicPtr<AtomicU32>; ROOT] = [const { AtomicPtr::new(ptr::null_mut()) }; ROOT];

/// The block at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mapped {
    /// A small block of this class and of this many bytes.
    Small(usize, usize),
    /// A larger block of this many bytes.
    Large(usize),
}

/// Returns the words of the leaf of a page.
#[inline]
fn leaf(page: usize) -> Option<&'static [AtomicU32; LEAF]> {
    let leaf = LEAVES.get(page >> LEAF_LOG)?.load(Ordering::Acquire);
    // SAFETY: by the invariant of `LEAVES`, the words are never unmapped.
    unsafe { leaf.cast::<[AtomicU32; LEAF]>().as_ref() }
}

/// Returns the words of the leaf of a page, and maps them if necessary. Returns `None` if the system has no memory for them.
fn leaf_made(page: usize) -> Option<&'static [AtomicU32; LEAF]> {
    if let Some(leaf) = leaf(page) {
        return Some(leaf);
    }
    let place = LEAVES.get(page >> LEAF_LOG)?;
    let bytes = (LEAF * size_of::<AtomicU32>()) as u64;
    let map = Map::new(bytes, PAGE as u64).ok()?;
    map.open(Part { offset: 0, bytes }).ok()?;
    let words = ptr::with_exposed_provenance_mut(map.address() as usize);
    match place.compare_exchange(ptr::null_mut(), words, Ordering::Release, Ordering::Relaxed) {
        Ok(_) => std::mem::forget(map),
        // Another thread was first. The system may refuse to unmap, and then the memory stays closed.
        Err(_) => drop(map.unmap()),
    }
    leaf(page)
}

/// Returns the block at an address, or `None` if there is none. The address must be that of a block, or one at which no block ever was.
#[inline]
pub(crate) fn get(address: usize) -> Option<Mapped> {
    let page = address >> PAGE_LOG;
    let word = leaf(page)?.get(page % LEAF)?.load(Ordering::Relaxed);
    match word {
        0 => None,
        word if word & LARGE != 0 => address
            .is_multiple_of(PAGE)
            .then_some(Mapped::Large((word & !LARGE) as usize * PAGE)),
        _ if !address.is_multiple_of(FINE_UNIT) => None,
        word => Some(Mapped::Small(
            (word as usize & CLASS) - 1,
            (word as usize >> CLASS_BITS) * FINE_UNIT,
        )),
    }
}

fn set(page: usize, word: u32) -> bool {
    let Some(place) = leaf_made(page).and_then(|leaf| leaf.get(page % LEAF)) else {
        return false;
    };
    place.store(word, Ordering::Relaxed);
    true
}

/// Records that a larger block of whole pages is at an address. Returns false if there is no memory for the record.
pub(crate) fn set_large(address: usize, bytes: usize) -> bool {
    let pages = u32::try_from(bytes / PAGE)
        .ok()
        .filter(|pages| pages & LARGE == 0);
    pages.is_some_and(|pages| set(address >> PAGE_LOG, LARGE | pages))
}

/// Removes the larger block at an address from the map, and returns its bytes. Returns `None` if there is none.
pub(crate) fn take_large(address: usize) -> Option<usize> {
    let page = address >> PAGE_LOG;
    let word = leaf(page)?.get(page % LEAF)?.swap(0, Ordering::Relaxed);
    (word & LARGE != 0).then_some((word & !LARGE) as usize * PAGE)
}

/// Records that a span of small blocks of a class is at an address. Returns false if there is no memory for the record.
pub(crate) fn set_span(address: usize, bytes: usize, class: usize) -> bool {
    let mut pages = (address >> PAGE_LOG)..((address + bytes) >> PAGE_LOG);
    let word = (class_bytes(class) / FINE_UNIT) << CLASS_BITS | (class + 1);
    pages.all(|page| set(page, word as u32))
}

#[cfg(test)]
mod tests {
    use super::super::classes::class_of_block;
    use super::*;

    #[test]
    fn the_map_returns_the_latest_block_of_each_page() {
        // No pool uses these addresses: user addresses end at `base`.
        let base = 1 << (ADDRESS_BITS - 1);
        assert_eq!(get(base), None);
        assert!(set_span(base, 16 * PAGE, 7) && set_span(base + 16 * PAGE, PAGE, 0));
        assert_eq!(get(base + 16 * PAGE - 16), Some(Mapped::Small(7, 512)));
        assert_eq!(get(base + 16 * PAGE), Some(Mapped::Small(0, 64)));
        assert_eq!(get(base + 17 * PAGE), None);
        assert!(set_large(base + PAGE, 1 << 42));
        assert_eq!(get(base + PAGE), Some(Mapped::Large(1 << 42)));
        assert_eq!(get(base + 2 * PAGE), Some(Mapped::Small(7, 512)));
        assert!(set_span(base, PAGE, CLASSES - 1) && set_span(base + PAGE, PAGE, class_of_block(SMALL)));
        assert_eq!(get(base), Some(Mapped::Small(CLASSES - 1, 496)));
        assert_eq!(get(base + PAGE), Some(Mapped::Small(63, SMALL)));
    }

    #[test]
    fn impossible_addresses_and_sizes_are_refused() {
        assert_eq!((get(0), get(8), get(usize::MAX)), (None, None, None));
        assert!(!set_large(usize::MAX - PAGE, PAGE));
        assert!(!set_large(1 << (ADDRESS_BITS - 1), usize::MAX));
    }
}
