//! The program's pool called by hand, in a program with another allocator: every block is this test's, so the account
//! is exact. One test: the pool is the whole process's.

#![cfg(target_os = "linux")]

use millpond::GlobalPool;
use std::alloc::{GlobalAlloc, Layout};
use std::sync::Barrier;

static ONE: GlobalPool = GlobalPool::new();
static OTHER: GlobalPool = GlobalPool::new();

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 8).expect("a layout")
}

#[test]
fn the_pool_is_made_once_and_counts_every_block() {
    let barrier = Barrier::new(16);
    std::thread::scope(|scope| {
        for thread in 0..16usize {
            let (barrier, one) = (&barrier, if thread % 2 == 0 { &ONE } else { &OTHER });
            scope.spawn(move || {
                barrier.wait();
                for round in 1..200usize {
                    let mut shape = layout(round * 17 % 3000 + 1);
                    // SAFETY: of some bytes.
                    let mut block = unsafe { one.alloc(shape) };
                    for more in [10, 500, 70_000, 1 << 20, 3] {
                        assert!(!block.is_null());
                        // SAFETY: allocated so by this pool, whichever value stands for it; of some bytes.
                        block = unsafe { OTHER.realloc(block, shape, shape.size() + more) };
                        shape = layout(shape.size() + more);
                    }
                    // SAFETY: allocated so, and used no more.
                    unsafe { ONE.dealloc(block, shape) };
                }
            });
        }
    });
    let (one, other) = (ONE.pool().expect("a pool"), OTHER.pool().expect("a pool"));
    assert!(std::ptr::eq(one, other));
    let stats = one.stats();
    assert_eq!(
        (stats.requested.current, stats.allocated.current),
        (0, 0),
        "{stats:?}"
    );
    assert_eq!(stats.allocations, stats.frees);
    assert!(stats.allocations > 16 * 199 * 3 && stats.requested.peak > 1 << 20);
    one.trim();
    assert_eq!(one.stats().reserved.current, 0);
    assert_eq!(ONE.metadata_bytes(), 0, "this program's allocator is another");
    assert!(ONE.configuration_error().is_none());
}
