//! Tests of `alloc_zeroed`.

use crate::child;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::hint::black_box;

/// Returns the resident bytes of this process.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("the system tells");
    let pages: u64 = statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse().ok())
        .expect("a number");
    pages * rustix::param::page_size() as u64
}

#[test]
fn fresh_memory_that_is_zero_is_not_touched() {
    child("zeroed::takes_a_gibibyte_of_zeros", |_| {});
}

#[test]
#[ignore = "a child of another test"]
fn takes_a_gibibyte_of_zeros() {
    let before = resident();
    let mut zeros = vec![0u8; 1 << 30];
    let taken = resident().saturating_sub(before);
    assert!(taken < 64 << 20, "{taken} bytes of {} are in memory", zeros.len());
    for at in (0..zeros.len()).step_by(64 << 20) {
        assert_eq!(zeros[at], 0);
        zeros[at] = 1;
    }
    black_box(&zeros);
    drop(zeros);
    // Allocates some of the same memory again. Parts of it were written.
    let zeros = vec![0u8; 80 << 20];
    assert!(zeros.iter().step_by(4096).all(|byte| *byte == 0));
}

#[test]
fn reused_memory_is_zeroed_on_request() {
    for bytes in [1, 64, 100, 4096, 40_000, 300_000, 3 << 20] {
        for align in [1, 64, 4096] {
            for _ in 0..3 {
                drop(black_box(vec![0xA5u8; bytes]));
                let layout = Layout::from_size_align(bytes, align).expect("a layout");
                // SAFETY: the size of the layout is not zero.
                let block = unsafe { alloc_zeroed(layout) };
                if block.is_null() {
                    handle_alloc_error(layout);
                }
                assert!(block.addr().is_multiple_of(align));
                // SAFETY: the block has this many initialised bytes, and nothing else uses it.
                let found = unsafe { std::slice::from_raw_parts_mut(block, bytes) };
                assert!(found.iter().all(|byte| *byte == 0), "{bytes} bytes at {align}");
                found.fill(0xA5);
                // SAFETY: the block was allocated with this layout and is not used any more.
                unsafe { dealloc(block, layout) };
            }
        }
    }
}
