//! Tests the requirements on every allocator and every workload.

use crate::host::allocator::{Allocator, Block, Shape};
use crate::host::control::Control;
use crate::host::global::{Global, no_trim, trim_glibc};
#[cfg(feature = "peers")]
use crate::host::global::{trim_jemalloc, trim_mimalloc};
use crate::host::millpond::Millpond;
use crate::host::random::Random;
use crate::host::spec::{GROUPS, Spec, group};
use crate::host::unpooled::Unpooled;
use crate::host::work::{self, Effort};
use std::alloc::System;
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard};

/// Counts and checks every call to the system's heap.
struct Counting {
    heap: Global<System>,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// The requested shapes, in order.
    shapes: Vec<Shape>,
    zeroed: usize,
    live: HashMap<usize, Shape>,
    bytes: usize,
    peak: usize,
    blocks: usize,
}

impl Counting {
    fn new() -> Self {
        Self {
            heap: Global::new(System, no_trim),
            seen: Mutex::default(),
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }

    fn note(&self, shape: Shape, place: *mut u8) -> *mut u8 {
        let mut seen = self.seen();
        seen.shapes.push(shape);
        assert_eq!(seen.live.insert(place.addr(), shape), None);
        seen.bytes += shape.size();
        seen.peak = seen.peak.max(seen.bytes);
        seen.blocks = seen.blocks.max(seen.live.len());
        place
    }
}

// SAFETY: the heap below keeps the contract.
unsafe impl Allocator for Counting {
    fn alloc(&self, shape: Shape) -> *mut u8 {
        self.note(shape, self.heap.alloc(shape))
    }

    fn alloc_zeroed(&self, shape: Shape) -> *mut u8 {
        self.seen().zeroed += 1;
        self.note(shape, self.heap.alloc_zeroed(shape))
    }

    unsafe fn free(&self, address: NonNull<u8>, shape: Shape) {
        let mut seen = self.seen();
        assert_eq!(seen.live.remove(&address.addr().get()), Some(shape));
        seen.bytes -= shape.size();
        // Removes the block before another thread can get the same address.
        drop(seen);
        // SAFETY: the caller guarantees what `free` requires.
        unsafe { self.heap.free(address, shape) };
    }
}

fn counted(name: &str) -> Seen {
    let from = Counting::new();
    let spec: Spec = name.parse().unwrap();
    work::run(spec, Effort::Once, &from).unwrap();
    let seen = from.seen.into_inner().unwrap();
    assert!(seen.live.is_empty(), "{name} keeps blocks");
    seen
}

/// Returns the number of blocks, the most at once, and the minimum and maximum of size and alignment.
fn outline(seen: &Seen) -> (usize, usize, [usize; 2], [usize; 2]) {
    let range = |of: fn(Shape) -> usize| {
        let all = || seen.shapes.iter().map(|&shape| of(shape));
        [all().min().unwrap(), all().max().unwrap()]
    };
    (
        seen.shapes.len(),
        seen.blocks,
        range(Shape::size),
        range(Shape::align),
    )
}

#[test]
fn the_hot_pair_is_one_block_of_one_size() {
    assert_eq!(outline(&counted("w1:64")), (20_008, 1, [64; 2], [64; 2]));
    assert_eq!(
        outline(&counted("w1:1MiB:a16:touch")),
        (520, 1, [1 << 20; 2], [16; 2])
    );
    assert_eq!(
        outline(&counted("w1:64KiB:fill")),
        (8_200, 1, [64 << 10; 2], [64; 2])
    );
}

#[test]
fn the_batch_is_ten_thousand_mixed_blocks() {
    let (count, blocks, [least, most], align) = outline(&counted("w2"));
    assert_eq!((count, blocks, align), (10_000, 10_000, [64; 2]));
    assert!(
        least < 70 && (60 << 10..=64 << 10).contains(&most),
        "{least} to {most}"
    );
    // First alone, and then in two threads.
    assert_eq!(counted("w2x2").shapes.len(), 30_000);
}

#[test]
fn the_live_workloads_hold_the_documented_blocks() {
    let (count, blocks, [least, most], _) = outline(&counted("w3:300"));
    assert_eq!((count, blocks), (300, 200));
    assert!(
        least < 8 << 10 && (16 << 20..=32 << 20).contains(&most),
        "{least} to {most}"
    );
    let (count, blocks, [least, most], _) = outline(&counted("half"));
    assert_eq!((count, blocks), (1_000, 1_000));
    assert!(
        least < 5 << 10 && (3 << 20..=4 << 20).contains(&most),
        "{least} to {most}"
    );
}

#[test]
fn the_workloads_with_threads_hold_the_documented_blocks() {
    let (count, blocks, [least, most], _) = outline(&counted("w4"));
    assert_eq!(count, 20_000);
    assert!((101..=200).contains(&blocks), "{blocks}");
    assert!(
        least < 5 << 10 && (3 << 20..=4 << 20).contains(&most),
        "{least} to {most}"
    );
    let (count, blocks, [least, most], _) = outline(&counted("w5"));
    assert_eq!(count, 100_000);
    assert!(blocks <= 66, "64 on the way and one in each hand, not {blocks}");
    assert!(
        least < 1100 && (1000 << 10..=1 << 20).contains(&most),
        "{least} to {most}"
    );
}

#[test]
fn the_zeroed_workload_requests_zeroed_memory() {
    let seen = counted("w6:1MiB:a16");
    assert_eq!(seen.zeroed, seen.shapes.len());
    assert_eq!(outline(&seen), (257, 1, [1 << 20; 2], [16; 2]));
}

#[test]
fn the_loops_of_the_libraries_allocate_the_documented_blocks() {
    let align = [64; 2];
    let tensor = [80_000; 2];
    assert_eq!(outline(&counted("tensorcore")), (1_000, 1, tensor, align));
    assert_eq!(outline(&counted("tensorcore-fill")), (1_000, 1, tensor, align));
    assert_eq!(outline(&counted("tendo")), (2_000, 2, [40_000; 2], align));
    assert_eq!(counted("tendo").zeroed, 1_000);
    assert_eq!(outline(&counted("genesis-small")), (1_000, 1, [8; 2], align));
    let pool = 10_922 + 2_730 + 682 + 170 + 42 + 10;
    assert_eq!(
        outline(&counted("genesis-pool")),
        (pool, pool, [1 << 10, 1 << 20], align)
    );
    assert_eq!(
        outline(&counted("guda-batch")),
        (101, 100, [1 << 10, 10 << 10], align)
    );
    assert_eq!(outline(&counted("guda-hot")), (1_000, 1, [512; 2], align));
    assert_eq!(
        outline(&counted("tensorcore-large")),
        (100, 1, [8_000_000; 2], align)
    );
    assert_eq!(outline(&counted("tendo-reuse")), (1_001, 2, [40_000; 2], align));
    assert_eq!(outline(&counted("tendo-storage")), (1_000, 1, [4_000; 2], align));
    assert_eq!(outline(&counted("guda-defer")), (1_000, 1_000, [256; 2], align));
    assert_eq!(outline(&counted("guda-copy")), (2, 2, [64 << 20; 2], align));
    assert_eq!(
        outline(&counted("dotcompute-malloc")),
        (1_000, 1_000, [1 << 10; 2], align)
    );
    assert_eq!(
        outline(&counted("dotcompute-buffer")),
        (64, 64, [1 << 20; 2], align)
    );
    assert_eq!(outline(&counted("dotcompute-1m")), (100, 1, [1 << 20; 2], align));
    assert_eq!(
        outline(&counted("dotcompute-64m-fill")),
        (100, 1, [64 << 20; 2], align)
    );
}

#[test]
fn every_run_requests_the_same_blocks() {
    for name in ["w2", "w3:300", "half", "genesis-pool"] {
        assert!(counted(name).shapes == counted(name).shapes, "{name}");
    }
}

#[test]
fn live_bytes_are_the_peak_of_held_bytes() {
    for name in ["w2", "w3:300", "half", "w5"] {
        let from = Counting::new();
        let figures = work::run(name.parse().unwrap(), Effort::Once, &from).unwrap();
        let (told, seen) = (figures.memory.unwrap().live, from.seen().peak as u64);
        if name == "w5" {
            assert!(seen <= told, "{seen} of {told}");
        } else {
            assert_eq!(told, seen, "{name}");
        }
    }
}

#[test]
fn the_control_runs_every_workload_that_it_supports() {
    let all = GROUPS.into_iter().flat_map(group);
    let served = all
        .filter(|&spec| work::run_control(spec, Effort::Once).unwrap().is_some())
        .count();
    assert_eq!(served, 48 + 2 + 8 + 18);
}

/// Writes a pattern to each block, replaces blocks at random, and checks that each block keeps its pattern.
fn keeps_contents<A: Allocator>(from: &A, seed: u64) {
    let mut random = Random::new(seed);
    let mut held: Vec<(Block<'_, A>, u8)> = Vec::new();
    let check = |(block, byte): &(Block<'_, A>, u8)| {
        // SAFETY: every block here was filled.
        let bytes = unsafe { block.bytes() };
        assert!(
            bytes.iter().all(|b| b == byte),
            "a block of {} lost its contents",
            bytes.len()
        );
    };
    for step in 0..600u32 {
        let align = 1 << random.below(9);
        let most = 1 << (8 + random.below(15));
        let shape = Shape::new(random.size(1, most), align);
        let mut block = if step % 3 == 0 {
            let block = Block::zeroed(from, shape).unwrap();
            // SAFETY: the block was allocated as zeroed.
            let bytes = unsafe { block.bytes() };
            assert!(bytes.iter().all(|b| *b == 0), "{shape:?} is not zero");
            block
        } else {
            Block::new(from, shape).unwrap()
        };
        assert_eq!(block.address() % align, 0, "{shape:?}");
        let byte = (step % 255) as u8 + 1;
        block.fill(byte);
        held.push((block, byte));
        if held.len() > 40 {
            let at = random.below(held.len());
            check(&held.swap_remove(at));
        }
        if step % 200 == 0 {
            from.trim();
        }
    }
    held.iter().for_each(check);
}

/// Does the same in two threads at once.
fn keeps_contents_in_threads<A: Allocator + Sync>(from: &A) {
    std::thread::scope(|scope| {
        for seed in [1, 2] {
            scope.spawn(move || keeps_contents(from, seed));
        }
    });
}

#[test]
fn every_allocator_keeps_the_contents_of_its_blocks() {
    keeps_contents_in_threads(&Global::new(System, trim_glibc));
    #[cfg(feature = "peers")]
    {
        keeps_contents_in_threads(&Global::new(mimalloc::MiMalloc, trim_mimalloc));
        keeps_contents_in_threads(&Global::new(tikv_jemallocator::Jemalloc, trim_jemalloc));
        keeps_contents_in_threads(&Global::new(snmalloc_rs::SnMalloc, no_trim));
    }
    keeps_contents_in_threads(&Unpooled);
    keeps_contents_in_threads(&Millpond::new("millpond").unwrap());
}

#[test]
fn the_control_keeps_contents_and_refuses_blocks_without_room() {
    let control = Control::new();
    let shape = Shape::new(40 << 20, 4096);
    let mut blocks: Vec<_> = (1..4).map(|_| Block::new(&control, shape).unwrap()).collect();
    assert!(Block::new(&control, shape).is_err());
    assert!(Block::new(&control, Shape::new(1, 8192)).is_err());
    (1..).zip(&mut blocks).for_each(|(byte, block)| block.fill(byte));
    for (byte, block) in (1..).zip(&blocks) {
        // SAFETY: the block was just filled.
        assert!(unsafe { block.bytes() }.iter().all(|b| *b == byte));
    }
    drop(blocks);
    assert!(Block::new(&control, shape).is_ok());
}

#[test]
fn a_refused_block_is_an_error() {
    /// An allocator without memory.
    struct Empty;

    // SAFETY: it returns no address.
    unsafe impl Allocator for Empty {
        fn alloc(&self, _: Shape) -> *mut u8 {
            std::ptr::null_mut()
        }
        fn alloc_zeroed(&self, _: Shape) -> *mut u8 {
            std::ptr::null_mut()
        }
        unsafe fn free(&self, _: NonNull<u8>, _: Shape) {}
    }

    for spec in GROUPS.into_iter().flat_map(group) {
        let error = work::run(spec, Effort::Once, &Empty).unwrap_err().to_string();
        assert!(error.starts_with("cannot allocate "), "{spec}: {error}");
    }
}
