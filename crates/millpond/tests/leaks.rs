//! The ledger in a program whose allocator it tracks: there is no deadlock, the ledger's own allocations are not
//! tracked, and the program's live blocks are found with their call sites.

use millpond::{
    Device, Event, Ledger, MemoryKind, Tag, Tracking,
    event::{BlockInfo, EventKind, PoolLabel, Watchers},
    post_mortem::Survey,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// An allocator like a pool. It holds a lock while it works, and calls observers outside of the lock.
struct Watched;

static POOL: Mutex<()> = Mutex::new(());
static WATCHERS: OnceLock<Watchers> = OnceLock::new();

fn info(address: usize, layout: Layout) -> BlockInfo {
    BlockInfo {
        address,
        requested: layout.size(),
        bytes: layout.size().next_multiple_of(16),
        align: layout.align(),
        ..BlockInfo::default()
    }
}

// SAFETY: the system's allocator does the work, with the same arguments.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let pointer = {
            let _lock = POOL.lock();
            // SAFETY: the caller's promise.
            unsafe { System.alloc(layout) }
        };
        if let Some(watchers) = WATCHERS.get() {
            watchers.allocated(&info(pointer.addr(), layout));
        }
        pointer
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if let Some(watchers) = WATCHERS.get()
            && watchers.freed(&info(pointer.addr(), layout)).is_err()
        {
            std::process::abort();
        }
        let _lock = POOL.lock();
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

#[inline(never)]
fn load_weights() -> Vec<u8> {
    let _scope = millpond::tag!("weights");
    let kept = Vec::with_capacity(12_345);
    std::hint::black_box(&kept);
    kept
}

#[test]
fn leaks_of_the_whole_program() {
    let stacks = cfg!(feature = "stacks");
    let ledger = Arc::new(Ledger::builder(Tracking::All).times(true).stacks(stacks).build());
    let events = Arc::new(AtomicU64::new(0));
    let (counted, held) = (Arc::clone(&events), Arc::new(Mutex::new(Vec::new())));
    let watchers = Watchers::new(PoolLabel::new(1, "all", MemoryKind::Host, Device::Host));
    // This subscriber allocates and keeps its allocations.
    let (watchers, _) = watchers.with_subscriber(Arc::new(move |event: &Event<'_>| {
        counted.fetch_add(1, Ordering::Relaxed);
        if event.kind == EventKind::Allocated {
            held.lock().unwrap().push(event.bytes);
        }
    }));
    assert!(
        WATCHERS
            .set(watchers.with_ledger(Some(Arc::clone(&ledger))))
            .is_ok()
    );

    let mark = ledger.mark();
    let weights = load_weights();
    // The ledger grows while many threads allocate, and another ledger is made and dropped.
    let rounds = if stacks { 2_000 } else { 20_000 };
    std::thread::scope(|scope| {
        // This thread holds the pool's lock, so an allocation here would deadlock. It also waits for the ledger's
        // locks, which no thread holds while it waits for the pool's lock.
        scope.spawn(|| {
            for _ in 0..rounds {
                let _lock = POOL.lock();
                let mut survey = Survey::new(1);
                ledger.survey(&mut survey);
                std::hint::black_box(&survey);
            }
        });
        for _ in 0..4 {
            scope.spawn(|| {
                let _scope = millpond::tag("scratch");
                let own = Ledger::new(Tracking::All);
                let boxes: Vec<Box<usize>> = (0..rounds).map(Box::new).collect();
                for at in 0..1000 {
                    let info = BlockInfo {
                        address: at,
                        ..BlockInfo::default()
                    };
                    own.insert(at, own.record(&info, MemoryKind::Host, None));
                }
                assert!(ledger.by_tag().iter().any(|of| of.blocks >= rounds as u64));
                assert!(!ledger.largest(3).is_empty());
                drop(boxes);
            });
        }
    });
    let report = ledger.leak_report_since(&mark.on_this_thread());
    let group = report
        .groups
        .iter()
        .find(|group| group.tag == Tag::new("weights"))
        .unwrap();
    assert_eq!((group.bytes, group.blocks), (12_352, 1));
    let text = report.to_string();
    assert!(text.contains("weights, age "), "{text}");
    if stacks {
        let stack = group.stack.as_ref().unwrap();
        let frames = stack.user_frames();
        assert!(
            frames[0].function.as_deref().unwrap().ends_with("load_weights"),
            "{frames:?}"
        );
        let place = "tests/leaks.rs:";
        assert!(text.contains(place), "{text}");
        assert!(!text.contains("at millpond::"), "{text}");
    }
    let tagged = |name: &str| {
        ledger
            .by_tag()
            .iter()
            .find(|of| of.tag == Tag::new(name))
            .map(|of| of.blocks)
    };
    assert_eq!(tagged("weights"), Some(1));
    drop(weights);
    assert_eq!(tagged("weights"), None);
    assert_eq!(WATCHERS.get().map(Watchers::panics), Some(0));
    assert!(events.load(Ordering::Relaxed) >= 8 * rounds as u64);
}
