//! Collections in a pool, through the interfaces of both versions of `allocator-api2`.

#![cfg(target_os = "linux")]

use allocator_api2::alloc::Allocator;
use allocator_api2::boxed::Box;
use allocator_api2::vec::Vec;
use hashbrown::HashMap;
use millpond::Pool;
use std::alloc::Layout;
use std::ptr::NonNull;

fn pool() -> Pool {
    Pool::host().expect("a pool")
}

/// Checks that all memory was returned and that the counts agree.
fn assert_empty(pool: &Pool) {
    let stats = pool.stats();
    assert_eq!(
        (stats.requested.current, stats.allocated.current),
        (0, 0),
        "{stats:?}"
    );
    assert_eq!(stats.allocations, stats.frees);
    pool.trim();
    assert_eq!(pool.stats().reserved.current, 0);
}

#[test]
fn a_vector_grows_and_shrinks_in_a_pool() {
    let pool = pool();
    let mut numbers: Vec<u64, &Pool> = Vec::new_in(&pool);
    for n in 0..200_000 {
        numbers.push(n);
        if n == 1000 {
            assert!(pool.stats().requested.current >= 8000);
        }
    }
    numbers.truncate(1000);
    numbers.shrink_to_fit();
    assert_eq!(pool.stats().requested.current, 8000);
    assert!(numbers.iter().copied().eq(0..1000));
    numbers.reserve_exact(10);
    assert_eq!(pool.stats().requested.current, 8080);
    drop(numbers);
    assert_empty(&pool);
}

#[test]
fn boxes_keep_their_pool_open() {
    let one = pool();
    let boxed: std::vec::Vec<_> = (0..100u32).map(|n| Box::new_in([n; 100], one.clone())).collect();
    let none = Box::new_in((), one.clone());
    let (seen, stats) = (one.clone(), one.stats());
    assert_eq!((stats.requested.current, stats.allocations), (40_000, 100));
    drop(one);
    std::thread::spawn(move || {
        assert!(boxed.iter().zip(0..).all(|(array, n)| **array == [n; 100]));
        drop((boxed, none));
    })
    .join()
    .expect("no panic");
    assert_empty(&seen);
}

#[test]
fn a_hashbrown_map_allocates_from_a_pool() {
    let pool = pool();
    let mut map: HashMap<u64, String, _, Pool> =
        HashMap::with_hasher_in(std::hash::RandomState::new(), pool.clone());
    for n in 0..50_000u64 {
        map.insert(n, n.to_string());
    }
    map.retain(|n, _| n % 100 == 0);
    map.shrink_to_fit();
    assert_eq!(map.len(), 500);
    assert!(map.iter().all(|(n, text)| *text == n.to_string()));
    let copy = map.clone();
    assert!(pool.stats().requested.current > 2 * 500 * 32);
    drop((map, copy));
    assert_empty(&pool);
}

#[test]
fn zero_bytes_take_no_block_and_can_grow() {
    let pool = pool();
    let (none, some) = (
        Layout::from_size_align(0, 4096).expect("a layout"),
        Layout::from_size_align(100, 4096).expect("a layout"),
    );
    let nothing = Allocator::allocate(&pool, none).expect("nothing");
    assert_eq!((nothing.len(), nothing.cast::<u8>().addr().get() % 4096), (0, 0));
    assert_eq!(pool.stats().allocations, 0);
    // SAFETY: the block was allocated with this layout; the new one has as many bytes or more.
    let block = unsafe { pool.grow_zeroed(nothing.cast(), none, some) }.expect("room");
    assert_eq!(block.len(), 100);
    // SAFETY: the block has these bytes, all written as zero.
    assert!(unsafe { block.as_ref() }.iter().all(|byte| *byte == 0));
    // SAFETY: the block was allocated with this layout; the new one has as many bytes or fewer.
    let nothing = unsafe { pool.shrink(block.cast(), some, none) }.expect("nothing");
    // SAFETY: the block was allocated with this layout, and nothing uses it any more.
    unsafe { Allocator::deallocate(&pool, nothing.cast(), none) };
    assert_empty(&pool);
}

/// Returns a block of a size and alignment, filled with ones.
fn ones(pool: &Pool, layout: Layout) -> NonNull<u8> {
    let block = Allocator::allocate(pool, layout).expect("room").cast::<u8>();
    assert_eq!(block.addr().get() % layout.align(), 0);
    // SAFETY: the block has these bytes and is ours alone.
    unsafe { block.write_bytes(1, layout.size()) };
    block
}

#[test]
fn a_resized_block_stays_if_it_fits_and_is_copied_if_not() {
    let pool = pool();
    let layout = |bytes, align| Layout::from_size_align(bytes, align).expect("a layout");
    for align in [1, 64, 256, 4096, 1 << 16] {
        for bytes in [1, 60, 1000, 5000, 60_000, 70_000, 1 << 20] {
            for other in [1, 64, 1001, 5001, 65_000, 71_000, (1 << 20) + 1, 3 << 20] {
                let (old, new) = (layout(bytes, align), layout(other, align));
                let block = ones(&pool, old);
                let moved = if other >= bytes {
                    // SAFETY: the block was allocated with the old layout; the new one is larger.
                    unsafe { pool.grow_zeroed(block, old, new) }
                } else {
                    // SAFETY: the block was allocated with the old layout; the new one is smaller.
                    unsafe { pool.shrink(block, old, new) }
                };
                let moved = moved.expect("room");
                assert_eq!((moved.len(), moved.cast::<u8>().addr().get() % align), (other, 0));
                // SAFETY: the block has these bytes, written by `ones` and as zeros.
                let held = unsafe { moved.as_ref() };
                let kept = bytes.min(other);
                assert!(held[..kept].iter().all(|byte| *byte == 1));
                assert!(held[kept..].iter().all(|byte| *byte == 0));
                assert_eq!(pool.stats().requested.current, other as u64);
                // SAFETY: the block has this layout now, and nothing uses it any more.
                unsafe { Allocator::deallocate(&pool, moved.cast(), new) };
            }
        }
    }
    assert_empty(&pool);
    let (old, new) = (layout(1001, 8), layout(1020, 8));
    let block = ones(&pool, old);
    // SAFETY: the block was allocated with the old layout; the new one is larger.
    let same = unsafe { pool.grow(block, old, new) }.expect("room");
    assert_eq!(same.cast(), block, "the block has 1024 bytes");
    // SAFETY: the block has this layout now, and nothing uses it any more.
    unsafe { Allocator::deallocate(&pool, block, new) };
    assert_empty(&pool);
}

#[test]
fn zeroed_blocks_are_zero_in_reused_memory() {
    let pool = pool();
    for bytes in [1, 1000, 100_000, 3 << 20] {
        let layout = Layout::from_size_align(bytes, 8).expect("a layout");
        let used = ones(&pool, layout);
        // SAFETY: the block was allocated with this layout, and nothing uses it any more.
        unsafe { Allocator::deallocate(&pool, used, layout) };
        let block = Allocator::allocate_zeroed(&pool, layout).expect("room");
        assert_eq!(block.cast(), used, "the block freed last");
        // SAFETY: the block has these bytes, all written as zero.
        assert!(unsafe { block.as_ref() }.iter().all(|byte| *byte == 0));
        // SAFETY: the block was allocated with this layout, and nothing uses it any more.
        unsafe { Allocator::deallocate(&pool, block.cast(), layout) };
    }
    assert_empty(&pool);
}

#[test]
fn a_collection_gets_an_error_when_its_pool_refuses() {
    let small = Pool::builder().limit(4 << 20).host().expect("a pool");
    let mut bytes: Vec<u8, &Pool> = Vec::new_in(&small);
    assert!(bytes.try_reserve(8 << 20).is_err());
    assert!(bytes.try_reserve(1 << 20).is_ok());
    bytes.push(7);
    // The contents are unchanged when growth is refused.
    assert!(bytes.try_reserve(8 << 20).is_err());
    assert_eq!(bytes[0], 7);
    drop(bytes);
    assert_empty(&small);
}
