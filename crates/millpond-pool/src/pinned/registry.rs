//! The pinned addresses of this process, which any thread can query.

use millpond_os::fork::Participant;
use millpond_os::ranked::{InTurn, Rank, Shared};
use millpond_os::reentrancy::inside;
use std::collections::BTreeMap;
use std::sync::{RwLockReadGuard, RwLockWriteGuard};

/// The bytes of each pinned part, by its first address. Invariant: no part is empty, and parts do not overlap. They may touch.
static PARTS: Shared<BTreeMap<u64, u64>> = Shared::new(Rank::Pinned, BTreeMap::new());

static FORKS: Participant = Participant::new(Rank::Pinned, || Box::new(PARTS.write()));

fn read() -> InTurn<RwLockReadGuard<'static, BTreeMap<u64, u64>>> {
    FORKS.register();
    PARTS.read()
}

fn write() -> InTurn<RwLockWriteGuard<'static, BTreeMap<u64, u64>>> {
    FORKS.register();
    PARTS.write()
}

/// Returns whether an address is in memory that this library pinned: by a [`Pinned`](super::Pinned) source of this process,
/// or by a CUDA driver for `cuda::CudaPinned` or `cuda::Registered`. Any address is valid, on any thread, and the memory is
/// not read. The result holds until the memory is given back.
#[must_use]
pub fn is_pinned<T: ?Sized>(pointer: *const T) -> bool {
    let address = pointer.cast::<u8>() as u64;
    let parts = read();
    parts
        .range(..=address)
        .next_back()
        .is_some_and(|(first, bytes)| address - first < *bytes)
}

/// Returns the bytes of this process that are pinned. A page that is mapped at several addresses counts once for each of them.
#[must_use]
pub fn pinned_bytes() -> u64 {
    let parts = read();
    parts.values().sum()
}

/// Adds pinned memory.
pub fn add(address: u64, bytes: u64) {
    if bytes > 0 {
        // The table's memory does not come from the program's pool, because the pool's source may wait for the table.
        let _inside = inside();
        write().insert(address, bytes);
    }
}

/// Removes the entries in a part, and cuts those that extend beyond it.
pub fn remove(address: u64, bytes: u64) {
    let end = address.saturating_add(bytes);
    let _inside = inside();
    let mut parts = write();
    let last_first = |parts: &BTreeMap<u64, u64>| parts.range(..end).next_back().map(|(a, b)| (*a, *b));
    while let Some((first, bytes)) = last_first(&parts) {
        let last = first + bytes;
        if last <= address {
            break;
        }
        parts.remove(&first);
        if last > end {
            parts.insert(end, last - end);
        }
        if first < address {
            parts.insert(first, address - first);
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::without_provenance;

    #[test]
    fn added_parts_are_pinned_until_they_are_removed() {
        // These addresses belong to the kernel, so no other test uses them.
        let base = 0xffff_8000_0000_0000u64;
        let pinned = |at: u64| is_pinned(without_provenance::<u8>((base + at) as usize));
        add(base, 100);
        add(base + 100, 50);
        add(base + 200, 10);
        assert!(pinned(0) && pinned(99) && pinned(149) && !pinned(150) && pinned(209) && !pinned(210));
        remove(base + 40, 80);
        assert!(pinned(39) && !pinned(40) && !pinned(119) && pinned(120) && pinned(200));
        remove(base + 205, 1);
        assert!(pinned(204) && !pinned(205) && pinned(206));
        remove(base, 1000);
        assert!((0..300).all(|at| !pinned(at)));
        add(base, 0);
        assert!(!pinned(0));
    }
}
