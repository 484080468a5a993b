//! Typical uses of memory in programs.

use crate::{Stamped, stats};
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, realloc};
use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc;

#[test]
fn collections_live_in_the_pool() {
    let before = stats();
    let mut words: Vec<String> = (0..20_000).map(|n| (n * 7919 % 20_011).to_string()).collect();
    words.sort();
    let by_length: BTreeMap<usize, Vec<&str>> = words.iter().fold(BTreeMap::new(), |mut map, word| {
        map.entry(word.len()).or_insert_with(Vec::new).push(word);
        map
    });
    let counts: HashMap<char, usize> =
        words
            .iter()
            .flat_map(|w| w.chars())
            .fold(HashMap::new(), |mut map, c| {
                *map.entry(c).or_default() += 1;
                map
            });
    assert_eq!(by_length.values().map(Vec::len).sum::<usize>(), 20_000);
    assert_eq!(counts.values().sum::<usize>(), words.concat().len());
    let now = stats();
    assert!(now.allocations - before.allocations > 20_000, "{now:?}");
    assert!(now.requested.current <= now.allocated.current && now.allocated.current <= now.reserved.current);
}

#[test]
fn blocks_are_freed_by_other_threads() {
    let (to, from) = mpsc::channel::<Stamped>();
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let to = to.clone();
            scope.spawn(move || {
                for round in 0..5000 {
                    let bytes =
                        1 + (round * 7919 + thread * 31) % if round % 50 == 0 { 300_000 } else { 3000 };
                    to.send(Stamped::new(bytes, (round * 5 + thread) as u8))
                        .expect("open");
                }
            });
        }
        drop(to);
        let mut held = Vec::new();
        for (round, block) in from.into_iter().enumerate() {
            held.push(block);
            if held.len() > 500 {
                held.swap_remove(round * 31 % 500).check();
            }
        }
        held.iter().for_each(Stamped::check);
    });
}

#[test]
fn threads_that_end_leave_no_memory_in_use() {
    for round in 0..200usize {
        let thread = std::thread::spawn(move || {
            (0..50)
                .map(|n| Stamped::new(n * round, n as u8))
                .collect::<Vec<_>>()
        });
        thread.join().expect("no panic").iter().for_each(Stamped::check);
    }
}

#[test]
fn growth_keeps_the_contents() {
    let mut bytes: Vec<u8> = Vec::new();
    for n in 0..3_000_000u32 {
        bytes.push(n as u8);
    }
    assert!(bytes.iter().zip(0u32..).all(|(byte, n)| *byte == n as u8));
    bytes.truncate(100);
    bytes.shrink_to_fit();
    assert!(bytes.iter().zip(0u32..).all(|(byte, n)| *byte == n as u8));
}

#[test]
fn a_block_that_is_large_enough_stays_at_its_address() {
    let layout = Layout::from_size_align(1001, 8).expect("a layout");
    // SAFETY: the layout has a size other than 0.
    let block = unsafe { alloc(layout) };
    // SAFETY: the block was allocated with this layout, and the new size is not 0.
    let same = unsafe { realloc(block, layout, 1024) };
    assert_eq!(same, block);
    let layout = Layout::from_size_align(1024, 8).expect("a layout");
    // SAFETY: the block was allocated with this layout, and the new size is not 0.
    let other = unsafe { realloc(same, layout, 1025) };
    assert_ne!(other, block);
    // SAFETY: the block was allocated with this layout, and nothing uses it any more.
    unsafe { dealloc(other, Layout::from_size_align(1025, 8).expect("a layout")) };
}

#[test]
fn zeroed_blocks_are_zero_in_reused_memory() {
    for bytes in [1, 64, 1000, 40_000, 100_000, 5 << 20] {
        let layout = Layout::from_size_align(bytes, 1).expect("a layout");
        for _ in 0..3 {
            // SAFETY: the layout has a size other than 0.
            let block = unsafe { alloc_zeroed(layout) };
            assert!(!block.is_null());
            // SAFETY: the block has these bytes, and all are initialised.
            let held = unsafe { std::slice::from_raw_parts_mut(block, bytes) };
            assert!(held.iter().all(|byte| *byte == 0), "{bytes}");
            held.fill(0xA5);
            // SAFETY: the block was allocated with this layout, and nothing uses it any more.
            unsafe { dealloc(block, layout) };
        }
    }
}

#[test]
fn every_alignment_is_served() {
    for log in 0..31 {
        for bytes in [1usize, 100, 5000, 70_000] {
            let layout = Layout::from_size_align(bytes, 1 << log).expect("a layout");
            // SAFETY: the layout has a size other than 0.
            let block = unsafe { alloc(layout) };
            assert!(
                !block.is_null() && block.addr().is_multiple_of(1 << log),
                "{layout:?}"
            );
            // SAFETY: the block has these bytes, and nothing else uses it.
            unsafe { block.write_bytes(7, bytes) };
            // SAFETY: the block was allocated with this layout, and the new size is not 0.
            let block = unsafe { realloc(block, layout, bytes * 3) };
            assert!(block.addr().is_multiple_of(1 << log), "{layout:?}");
            // SAFETY: the block has more bytes, and these were written.
            let held = unsafe { std::slice::from_raw_parts(block, bytes) };
            assert!(held.iter().all(|byte| *byte == 7));
            let larger = Layout::from_size_align(bytes * 3, 1 << log).expect("a layout");
            // SAFETY: the block was allocated with this layout, and nothing uses it any more.
            unsafe { dealloc(block, larger) };
        }
    }
    let beyond = Layout::from_size_align(1, 1 << 62).expect("a layout");
    // SAFETY: the layout has a size other than 0.
    let none = unsafe { alloc(beyond) };
    // Without this, the compiler assumes that an unused allocation succeeds.
    assert!(std::hint::black_box(none).is_null());
}
