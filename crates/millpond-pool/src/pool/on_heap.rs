//! Tests of whole pools over a source that works on any machine and under Miri.

use super::*;
use crate::MemorySource;
use millpond_engine::{Event, Range, Segment, Source, SourceError};
use std::alloc::{Layout, alloc, dealloc};
use std::collections::HashMap;
use std::sync::Barrier;
use std::sync::mpsc;

/// Uninitialised segments from the program's heap.
#[derive(Default)]
struct Plain(HashMap<u64, (*mut u8, Layout)>);

// SAFETY: the pointers are to the heap, which any thread may use.
unsafe impl Send for Plain {}

impl Drop for Plain {
    fn drop(&mut self) {
        // The memory that a closed pool keeps is freed with its source.
        for (base, layout) in self.0.drain().map(|(_, block)| block) {
            // SAFETY: it was allocated with this layout, and is not used any more.
            unsafe { dealloc(base, layout) };
        }
    }
}

const PAGE: u64 = 1 << 16;
const UNSUPPORTED: SourceError = SourceError::Unsupported { operation: "pages" };

impl Source for Plain {
    fn page_bytes(&self) -> u64 {
        PAGE
    }
    fn is_paged(&self) -> bool {
        false
    }
    fn capacity(&self) -> Option<u64> {
        None
    }
    fn free_bytes(&self) -> Option<u64> {
        None
    }
    fn take(&mut self, bytes: u64) -> Result<Segment, SourceError> {
        let layout = Layout::from_size_align(bytes.max(1) as usize, PAGE as usize).expect("a layout");
        // SAFETY: the size of the layout is not 0.
        let base = unsafe { alloc(layout) };
        assert!(!base.is_null());
        let address = base.expose_provenance() as u64;
        self.0.insert(address, (base, layout));
        Ok(Segment::new(address, bytes))
    }
    fn give(&mut self, segment: Segment) {
        let (base, layout) = self.0.remove(&segment.address()).expect("ours");
        // SAFETY: it was allocated with this layout, and is not used any more.
        unsafe { dealloc(base, layout) };
    }
    fn reserve(&mut self, _: u64) -> Result<Range, SourceError> {
        Err(UNSUPPORTED)
    }
    fn commit(&mut self, _: &Range, _: u64, _: u64, _: u64) -> Result<(), SourceError> {
        Err(UNSUPPORTED)
    }
    fn decommit(&mut self, _: &Range, _: u64, _: u64) -> u64 {
        0
    }
    fn move_pages(&mut self, _: (&Range, u64), _: (&Range, u64), _: u64) -> Result<u64, SourceError> {
        Err(UNSUPPORTED)
    }
    fn release(&mut self, _: Range) {}
    fn record_event(&mut self, _: u32) -> Event {
        Event(0)
    }
    fn is_complete(&self, _: Event) -> bool {
        true
    }
    fn wait_event(&mut self, _: u32, _: Event) {}
    fn synchronize(&mut self) {}
}

// SAFETY: segments are blocks of the heap, which overlap with no others until they are freed.
unsafe impl MemorySource for Plain {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Host
    }
    fn fresh_is_zero(&self) -> bool {
        false
    }
}

const ROUNDS: usize = if cfg!(miri) { 24 } else { 2000 };

fn pool() -> Pool {
    let builder = Pool::builder().trim_every(None).track(None);
    builder.over(Box::new(Plain::default())).expect("a pool")
}

/// A block and the size of its request.
struct Raw(heap::RawBlock, usize);

impl Raw {
    fn pointer(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.0.address)
    }
}

fn take(pool: &Pool, bytes: usize, value: u8) -> Raw {
    let raw = Raw(pool.heap().allocate(bytes, 64, false).expect("room"), bytes);
    // SAFETY: the block belongs to this test alone and has at least these bytes.
    unsafe { raw.pointer().write_bytes(value, bytes) };
    raw
}

fn give(pool: &Pool, raw: Raw, value: u8) {
    for place in [0, raw.1 - 1] {
        // SAFETY: the place is inside the block, which belongs to this test alone and was written.
        let byte = unsafe { raw.pointer().wrapping_add(place).read() };
        assert_eq!(byte, value);
    }
    pool.heap().free(raw.0, raw.1, 0);
}

/// Returns a size of some class, or one that the policy serves.
fn size(round: usize) -> usize {
    [1, 64, 200, 3000, 70_000, 64, 100][round % 7]
}

#[test]
fn blocks_go_from_thread_to_thread_while_another_trims() {
    let pool = pool();
    let (sender, receiver) = mpsc::channel::<(Raw, u8)>();
    std::thread::scope(|scope| {
        let pool = &pool;
        let taker = scope.spawn(move || {
            for round in 0..ROUNDS {
                let value = round as u8;
                let raw = take(pool, size(round), value);
                if round % 3 == 0 {
                    give(pool, raw, value);
                } else {
                    sender.send((raw, value)).expect("open");
                }
            }
        });
        let giver = scope.spawn(move || {
            for (raw, value) in receiver {
                give(pool, raw, value);
                give(pool, take(pool, 64, value), value);
            }
        });
        for round in 0..ROUNDS / 8 {
            if round % 3 == 0 {
                pool.trim();
            }
            assert!(pool.stats().kept <= pool.stats().reserved.peak);
        }
        for thread in [taker, giver] {
            thread.join().expect("no panic");
        }
    });
    pool.heap().check();
    let stats = pool.stats();
    assert_eq!(
        (stats.requested.current, stats.kept),
        (0, 0),
        "both threads have ended"
    );
    pool.trim();
    assert_eq!(pool.stats().reserved.current, 0);
}

#[test]
fn a_closed_pool_returns_its_memory_when_another_thread_frees_the_last_block() {
    for round in 0..ROUNDS / 8 {
        let pool = pool();
        let heap = pool.heap();
        let buffer = pool.alloc_from(&[7u8; 100]).expect("room");
        let more = pool.alloc_from(&[8u8; 70_000]).expect("room");
        let thread = std::thread::spawn(move || {
            assert_eq!((buffer[99], more[69_999]), (7, 8));
            drop((buffer, more));
        });
        if round % 2 == 0 {
            pool.trim();
        }
        drop(pool);
        thread.join().expect("no panic");
        let stats = heap.stats();
        assert_eq!((stats.requested.current, stats.reserved.current), (0, 0));
    }
}

#[test]
fn a_thread_that_ends_after_its_pool_is_counted_once() {
    let pool = pool();
    let heap = pool.heap();
    let (sender, receiver) = mpsc::channel::<Raw>();
    let done = Barrier::new(2);
    std::thread::scope(|scope| {
        let (theirs, done) = (pool.clone(), &done);
        let other = scope.spawn(move || {
            // Another thread frees this block, so this thread's part of the counters is not zero.
            sender.send(take(&theirs, 3000, 7)).expect("open");
            drop(theirs);
            drop(sender);
            done.wait();
        });
        give(&pool, receiver.recv().expect("a block"), 7);
        assert!(receiver.recv().is_err(), "the other handle is gone");
        drop(pool);
        assert!(
            heap::lock(&heap.registry).caches.is_empty(),
            "no cache outlives the pool"
        );
        done.wait();
        // A join also waits for what the thread drops at its end.
        other.join().expect("no panic");
    });
    let stats = heap.stats();
    assert_eq!(
        (stats.allocations, stats.frees, stats.requested.current),
        (1, 1, 0)
    );
}

#[test]
fn subscribers_are_dropped_when_a_pool_without_live_blocks_is_closed() {
    let pool = pool();
    let owned = Arc::new(());
    let theirs = Arc::clone(&owned);
    pool.subscribe(move |_: &millpond_account::Event<'_>| {
        let _ = &theirs;
    });
    // A thread keeps a reference to the observers until it ends or sees a change.
    std::thread::scope(|scope| {
        let other = scope.spawn(|| drop(pool.alloc_zeroed::<u8>(64)));
        other.join().expect("no panic");
    });
    drop(pool);
    assert_eq!(Arc::strong_count(&owned), 1);
}

#[test]
fn a_waiting_request_gets_memory_that_another_thread_frees() {
    let builder = Pool::builder().limit(26 << 20).trim_every(None);
    let pool = builder.over(Box::new(Plain::default())).expect("a pool");
    let held = pool.alloc::<u8>(20 << 20).expect("room");
    let both = Barrier::new(2);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            both.wait();
            let patient = pool.waiting(std::time::Duration::from_secs(600));
            drop(patient.alloc::<u8>(18 << 20).expect("in time"));
        });
        both.wait();
        drop(held);
        waiter.join().expect("no panic");
    });
    assert_eq!(pool.stats().requested.current, 0);
}

/// Segments that another pool has allocated.
struct Drawn(Pool);

// SAFETY: segments are blocks of the other pool, which overlap with no others until they are freed.
unsafe impl MemorySource for Drawn {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Host
    }
    fn fresh_is_zero(&self) -> bool {
        false
    }
}

impl Source for Drawn {
    fn page_bytes(&self) -> u64 {
        PAGE
    }
    fn is_paged(&self) -> bool {
        false
    }
    fn capacity(&self) -> Option<u64> {
        None
    }
    fn free_bytes(&self) -> Option<u64> {
        None
    }
    fn take(&mut self, bytes: u64) -> Result<Segment, SourceError> {
        let taken = self.0.heap().allocate(bytes as usize, PAGE as usize, false);
        let taken = taken.map_err(|_| SourceError::OutOfMemory {
            requested: bytes,
            free: 0,
            capacity: 0,
        })?;
        Ok(Segment::new(taken.address as u64, bytes))
    }
    fn give(&mut self, segment: Segment) {
        let bytes = segment.bytes() as usize;
        let block = heap::RawBlock::of(segment.address() as usize, bytes, PAGE as usize);
        self.0.heap().free(block, bytes, 0);
    }
    fn reserve(&mut self, _: u64) -> Result<Range, SourceError> {
        Err(UNSUPPORTED)
    }
    fn commit(&mut self, _: &Range, _: u64, _: u64, _: u64) -> Result<(), SourceError> {
        Err(UNSUPPORTED)
    }
    fn decommit(&mut self, _: &Range, _: u64, _: u64) -> u64 {
        0
    }
    fn move_pages(&mut self, _: (&Range, u64), _: (&Range, u64), _: u64) -> Result<u64, SourceError> {
        Err(UNSUPPORTED)
    }
    fn release(&mut self, _: Range) {}
    fn record_event(&mut self, _: u32) -> Event {
        Event(0)
    }
    fn is_complete(&self, _: Event) -> bool {
        true
    }
    fn wait_event(&mut self, _: u32, _: Event) {}
    fn synchronize(&mut self) {}
}

#[test]
fn a_pool_over_another_pool_of_its_budget_stays_usable_after_a_refusal() {
    let budget = millpond_account::Budget::builder("both")
        .limit(64 << 20)
        .build()
        .expect("a budget");
    let builder = || Pool::builder().trim_every(None).track(None).budget(&budget);
    let below = builder().over(Box::new(Plain::default())).expect("a pool");
    let pool = builder().over(Box::new(Drawn(below.clone()))).expect("a pool");
    // Both pools charge the budget for the memory, which exceeds its limit. The pool below then makes the other pools of the
    // budget give memory back, while the pool above is in its own call.
    let refused = pool.heap().allocate(40 << 20, 64, false).expect_err("too much");
    assert!(refused.is_out_of_memory(), "{refused}");
    let raw = take(&pool, 8 << 20, 7);
    give(&pool, raw, 7);
    pool.trim();
    below.trim();
    assert_eq!(budget.used(), 0);
}

/// The pool below refuses the request under the lock of the pool above. A snapshot would need that lock, so it is written only
/// for the refusal of the pool above.
#[cfg(feature = "record")]
#[test]
fn a_refusal_in_the_source_of_a_pool_leaves_the_snapshot_to_that_pool() {
    let path = std::env::temp_dir().join(format!("millpond-drawn-{}-%n.mpr", std::process::id()));
    millpond_record::Snapshots::new()
        .every(std::time::Duration::ZERO)
        .most_files(1000)
        .on_out_of_memory(path);
    let builder = |limit| Pool::builder().trim_every(None).track(None).limit(limit);
    let below = builder(16 << 20)
        .over(Box::new(Plain::default()))
        .expect("a pool");
    let pool = builder(1 << 30).over(Box::new(Drawn(below))).expect("a pool");
    let refused = pool.heap().allocate(40 << 20, 64, false).expect_err("too much");
    // Requests of other tests are refused too, and only one file is written at a time.
    if let Some(path) = refused.snapshot() {
        let history = millpond_trace::history::History::open(path, &Default::default()).expect("it opens");
        assert_eq!(history.end, Some(millpond_trace::recording::End::Closed));
        std::fs::remove_file(path).expect("a file");
    }
    millpond_record::Snapshots::never_on_out_of_memory();
    let raw = take(&pool, 8 << 20, 7);
    give(&pool, raw, 7);
}
