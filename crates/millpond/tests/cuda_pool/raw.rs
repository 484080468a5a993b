//! Raw blocks of a device pool.

use crate::device;
use millpond::cuda::{DevicePool, DeviceSlice};
use millpond::ledger::WrongFree;

#[test]
fn blocks_are_freed_by_their_address_and_checked() {
    let Some((device, stream)) = device() else { return };
    let pool = DevicePool::new(&device).expect("a pool");
    let first = pool.alloc_raw(1000, &stream).expect("memory");
    let second = pool.alloc_raw(3 << 20, &stream).expect("memory");
    assert!(first.is_multiple_of(256) && second.is_multiple_of(256) && first != second);
    assert_eq!(pool.stats().requested.current, 1000 + (3 << 20));
    // SAFETY: nothing uses the blocks.
    let free = |pool: &DevicePool, address| unsafe { pool.free_raw(address) };
    // SAFETY: nothing uses the blocks.
    let free_sized = |pool: &DevicePool, address| unsafe { pool.free_raw_sized(address, 1000) };
    let wrong = free(&pool, first + 256).expect_err("inside a block");
    assert!(matches!(*wrong, WrongFree::Foreign { .. }), "{wrong}");
    let wrong = free_sized(&pool, second).expect_err("another size");
    assert!(
        matches!(*wrong, WrongFree::WrongSize { given: 1000, .. }),
        "{wrong}"
    );
    assert_eq!(pool.stats().requested.current, 1000 + (3 << 20));
    free_sized(&pool, first).expect("ours");
    free(&pool, second).expect("ours");
    let wrong = free(&pool, second).expect_err("twice");
    assert!(matches!(*wrong, WrongFree::AlreadyFree { .. }), "{wrong}");
    let other = DevicePool::new(&device).expect("a pool");
    let wrong = free(&other, second).expect_err("another pool's");
    assert!(matches!(*wrong, WrongFree::Foreign { .. }), "{wrong}");
    assert_eq!(pool.stats().requested.current, 0);
    assert_eq!(
        pool.alloc_raw(1000, &stream).expect("memory"),
        first,
        "it is used again"
    );
}

#[test]
fn blocks_of_a_pool_that_clears_are_zero() {
    let Some((device, stream)) = device() else { return };
    let pool = DevicePool::builder()
        .settings("zero-on-reuse:on")
        .build(&device)
        .expect("a pool");
    let mut last = None;
    for _ in 0..2 {
        let address = pool.alloc_raw(1000, &stream).expect("memory");
        assert!(
            last.replace(address).is_none_or(|last| last == address),
            "it is used again"
        );
        // SAFETY: the block has these bytes, and no other code uses it.
        let mut block = unsafe { DeviceSlice::<u8>::new(address, 1000, &stream) };
        assert_eq!(block.to_vec().expect("a copy"), [0; 1000]);
        block.copy_from_host(&[7; 1000]).expect("a copy");
        // SAFETY: nothing uses the block after this.
        unsafe { pool.free_raw(address) }.expect("ours");
    }
}
