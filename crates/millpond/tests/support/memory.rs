//! Functions that read and write memory of a source.

use millpond::source::MemorySource;

/// Writes a value at both ends and in the middle of each page.
pub(crate) fn stamp<S: MemorySource>(source: &S, address: u64, bytes: u64, value: u64) {
    for at in places(source, address, bytes) {
        let place = std::ptr::without_provenance_mut::<u64>(at as usize);
        // SAFETY: the caller holds a segment or a committed part at this address. By the source's contract it is memory.
        unsafe { place.write_volatile(value ^ (at - address)) };
    }
}

/// Returns true if [`stamp`] wrote this value to the memory.
pub(crate) fn is_stamped<S: MemorySource>(source: &S, address: u64, bytes: u64, value: u64) -> bool {
    places(source, address, bytes).all(|at| read(at) == value ^ (at - address))
}

/// Returns true if every word is zero.
pub(crate) fn is_zero<S: MemorySource>(_: &S, address: u64, bytes: u64) -> bool {
    (address..address + bytes).step_by(8).all(|at| read(at) == 0)
}

fn read(at: u64) -> u64 {
    let place = std::ptr::without_provenance::<u64>(at as usize);
    // SAFETY: the same as for writing.
    unsafe { place.read_volatile() }
}

/// Returns the addresses of the tested words: both ends and the middle of each page. The last page may be short.
fn places<S: MemorySource>(source: &S, address: u64, bytes: u64) -> impl Iterator<Item = u64> {
    let page = source.page_bytes();
    (0..bytes).step_by(page as usize).flat_map(move |at| {
        let held = page.min(bytes - at);
        [0, held / 16 * 8, held - 8].map(|place| address + at + place)
    })
}
