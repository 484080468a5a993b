//! A pool over a source that panics. Each call panics in turn, before it has an effect or after.
//!
//! A fixed program takes the paths through a pool. It runs once to count the calls of the source. Then it runs once for each call, which is
//! made to panic. The panic unwinds through the pool, which is broken from then on: it refuses every request with an error that says so,
//! and the buffers that it has handed out keep their contents.
#![cfg(target_os = "linux")]

use millpond::engine::{Event, Logged, Range, Segment, Source, SourceError, SourceEvent};
use millpond::{AllocError, Buffer, Host, MemoryKind, Pool, pool::Prewarm, source::MemorySource};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::thread;

/// The payload of the injected panics.
struct Injected;

/// Counts the calls, and makes one of them panic.
#[derive(Debug)]
struct Plan {
    calls: AtomicU64,
    panics_at: AtomicU64,
}

impl Plan {
    fn new(panics_at: u64) -> Arc<Self> {
        Arc::new(Self {
            calls: AtomicU64::new(0),
            panics_at: AtomicU64::new(panics_at),
        })
    }

    fn call(&self) {
        if self.calls.fetch_add(1, Ordering::Relaxed) == self.panics_at.load(Ordering::Relaxed) {
            panic_any(Injected);
        }
    }

    /// Makes no later call panic.
    fn disarm(&self) {
        self.panics_at.store(u64::MAX, Ordering::Relaxed);
    }

    fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }
}

/// Memory that the test can return to the system after a broken pool has kept it.
#[derive(Clone)]
struct Below(Arc<Mutex<Host>>);

impl Below {
    fn with<R>(&self, work: impl FnOnce(&mut Host) -> R) -> R {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns all memory to the system. No buffer may be left.
    fn end(&self) {
        self.with(|host| *host = self::host());
    }
}

fn host() -> Host {
    Host::builder().page_bytes(64 << 10).build().expect("a source")
}

/// A user-defined source, which panics before it does anything.
struct Panicking {
    below: Below,
    plan: Arc<Plan>,
}

impl Panicking {
    fn call<R>(&self, work: impl FnOnce(&mut Host) -> R) -> R {
        self.plan.call();
        self.below.with(work)
    }
}

impl Source for Panicking {
    fn page_bytes(&self) -> u64 {
        self.below.with(|host| host.page_bytes())
    }
    fn is_paged(&self) -> bool {
        self.below.with(|host| host.is_paged())
    }
    fn capacity(&self) -> Option<u64> {
        self.below.with(|host| host.capacity())
    }
    fn free_bytes(&self) -> Option<u64> {
        self.below.with(|host| host.free_bytes())
    }
    fn take(&mut self, bytes: u64) -> Result<Segment, SourceError> {
        self.call(|host| host.take(bytes))
    }
    fn give(&mut self, segment: Segment) {
        self.call(|host| host.give(segment));
    }
    fn reserve(&mut self, bytes: u64) -> Result<Range, SourceError> {
        self.call(|host| host.reserve(bytes))
    }
    fn commit(&mut self, range: &Range, offset: u64, bytes: u64, handle: u64) -> Result<(), SourceError> {
        self.call(|host| host.commit(range, offset, bytes, handle))
    }
    fn decommit(&mut self, range: &Range, offset: u64, bytes: u64) -> u64 {
        self.call(|host| host.decommit(range, offset, bytes))
    }
    fn move_pages(&mut self, from: (&Range, u64), to: (&Range, u64), bytes: u64) -> Result<u64, SourceError> {
        self.call(|host| host.move_pages(from, to, bytes))
    }
    fn release(&mut self, range: Range) {
        self.call(|host| host.release(range));
    }
    fn record_event(&mut self, stream: u32) -> Event {
        self.call(|host| host.record_event(stream))
    }
    fn is_complete(&self, event: Event) -> bool {
        self.below.with(|host| host.is_complete(event))
    }
    fn wait_event(&mut self, stream: u32, event: Event) {
        self.call(|host| host.wait_event(stream, event));
    }
    fn synchronize(&mut self) {
        self.call(|host| host.synchronize());
    }
}

// SAFETY: each call passes its tokens unchanged to the source below, or panics without calling it. The test ends the source below only
// when nothing uses its memory any more.
unsafe impl MemorySource for Panicking {
    fn kind(&self) -> MemoryKind {
        self.below.with(|host| host.kind())
    }
    fn fresh_is_zero(&self) -> bool {
        self.below.with(|host| host.fresh_is_zero())
    }
    fn discard(&mut self, address: u64, bytes: u64) -> bool {
        self.call(|host| host.discard(address, bytes))
    }
    fn populate(&self, address: u64, bytes: u64) -> bool {
        self.call(|host| host.populate(address, bytes))
    }
    fn can_protect(&self) -> bool {
        self.below.with(|host| host.can_protect())
    }
    fn protect(&mut self, address: u64, bytes: u64, closed: bool) -> bool {
        self.call(|host| host.protect(address, bytes, closed))
    }
}

/// The time at which the source panics.
#[derive(Clone, Copy, Debug)]
enum When {
    /// Before the call has an effect: a user-defined source panics.
    Before,
    /// After the call has an effect: the sink of a `Logged` source panics.
    After,
}

fn source(when: When, below: &Below, plan: &Arc<Plan>) -> Box<dyn MemorySource + Send> {
    let panicking = |plan| Panicking {
        below: below.clone(),
        plan,
    };
    match when {
        When::Before => Box::new(panicking(Arc::clone(plan))),
        When::After => {
            let plan = Arc::clone(plan);
            let quiet = panicking(Plan::new(u64::MAX));
            Box::new(Logged::new(quiet, move |_: &SourceEvent<'_>| plan.call()))
        }
    }
}

/// Buffers in use, and the byte that each is filled with. Only the first and the last bytes and some in the middle are filled.
#[derive(Default)]
struct Held(Vec<(Buffer<u8>, u8)>);

fn places(len: usize) -> impl Iterator<Item = usize> {
    [0, len / 2, len - len.min(64)]
        .into_iter()
        .flat_map(move |first| first..(first + 64).min(len))
}

impl Held {
    fn add(&mut self, outcome: Result<Buffer<u8>, AllocError>) {
        let value = self.0.len() as u8 | 1;
        if let Ok(mut buffer) = outcome {
            places(buffer.len()).for_each(|at| buffer[at] = value);
            self.0.push((buffer, value));
        }
    }

    fn check(&self, when: &str) {
        for (buffer, value) in &self.0 {
            let whole = places(buffer.len()).all(|at| buffer[at] == *value);
            assert!(
                whole,
                "{when}: a buffer of {} bytes has other contents",
                buffer.len()
            );
        }
    }

    /// Writes a new value to each buffer.
    fn fill_anew(&mut self) {
        for (at, (buffer, value)) in self.0.iter_mut().enumerate() {
            *value = 128 | at as u8;
            places(buffer.len()).for_each(|at| buffer[at] = *value);
        }
    }
}

const SIZES: [usize; 6] = [100, 5000, 60_000, 200_000, 3 << 20, 34 << 20];

/// Takes the paths through a pool.
fn program(pool: &Pool, held: &mut Held) {
    for bytes in SIZES {
        held.add(pool.alloc_zeroed(bytes));
        held.add(pool.alloc_zeroed(bytes / 2));
    }
    let mut at = 0;
    held.0.retain(|_| {
        at += 1;
        at % 3 != 0
    });
    held.add(pool.alloc_zeroed(2 << 20));
    if let Some((buffer, _)) = held.0.first_mut() {
        let value = buffer[0];
        if buffer.try_grow_zeroed(300_000).is_ok() {
            places(buffer.len()).for_each(|at| buffer[at] = value);
        }
    }
    let _ = pool.reserve(pool.stats().reserved.current + (1 << 20));
    let _ = pool.prewarm(&Prewarm::of([(700, 100), (1 << 20, 2)]).touched());
    pool.trim();
    // Another thread frees blocks, and keeps blocks in its cache until it ends.
    let given = held.0.split_off(held.0.len() / 2);
    let outcome = thread::scope(|scope| {
        let other = scope.spawn(|| {
            drop(given);
            SIZES.map(|bytes| pool.alloc_zeroed::<u8>(bytes).map(drop).is_ok())
        });
        other.join()
    });
    if let Err(panic) = outcome {
        resume_unwind(panic);
    }
    pool.compact();
    held.add(pool.alloc_zeroed(1 << 20));
    held.0.truncate(held.0.len() / 2);
    pool.set_limit(1 << 20);
    pool.set_limit(u64::MAX);
    held.add(pool.alloc_zeroed(5 << 20));
    pool.collect_garbage();
}

fn refuses(pool: &Pool, when: &str) {
    for bytes in SIZES {
        let outcome = pool.alloc_zeroed::<u8>(bytes).map(drop);
        let Err(error @ AllocError::Broken { .. }) = &outcome else {
            panic!("{when}: {bytes} bytes: {outcome:?}");
        };
        assert!(error.to_string().contains("pool 'fragile' is broken"), "{error}");
        assert!(!error.is_out_of_memory());
    }
}

/// Uses a broken pool in every way. Nothing panics, no block is allocated, and no contents are lost.
fn use_broken(pool: Pool, mut held: Held, when: &str) {
    held.check(when);
    refuses(&pool, when);
    thread::scope(|scope| {
        let other = scope.spawn(|| refuses(&pool, when));
        other.join().expect("no panic");
    });
    held.fill_anew();
    let grown = held.0.iter_mut().map(|(buffer, _)| {
        let more = buffer.capacity() + 1;
        buffer.try_reserve_exact(more)
    });
    assert!(
        grown
            .into_iter()
            .all(|outcome| matches!(outcome, Err(AllocError::Broken { .. })))
    );
    let before = pool.stats();
    held.0.truncate(held.0.len() / 2);
    let after = pool.stats();
    assert!(after.frees >= before.frees);
    assert_eq!(
        after.allocations - before.allocations,
        0,
        "{when}: {before:?} and then {after:?}"
    );
    pool.trim();
    pool.compact();
    pool.collect_garbage();
    pool.clear();
    pool.reset_peak();
    pool.set_limit(1 << 20);
    pool.set_limit(u64::MAX);
    let _ = pool.external_fragmentation();
    assert!(matches!(pool.reserve(1 << 40), Err(AllocError::Broken { .. })));
    assert!(matches!(
        pool.prewarm(&Prewarm::of([(1 << 20, 2)])),
        Err(AllocError::Broken { .. })
    ));
    refuses(&pool, when);
    held.check(when);
    drop(pool);
    held.fill_anew();
    held.check(when);
}

fn be_quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !info.payload().is::<Injected>() {
                before(info);
            }
        }));
    });
}

/// Runs the program. Returns the number of calls of the source, and whether one panicked.
fn run(policy: &str, guarded: bool, when: When, panics_at: u64) -> (u64, bool) {
    be_quiet();
    let plan = Plan::new(panics_at);
    let below = Below(Arc::new(Mutex::new(host())));
    let builder = Pool::builder().name("fragile").policy(policy).guard(guarded);
    let pool = builder
        .trim_every(None)
        .over(source(when, &below, &plan))
        .expect("a pool");
    let mut held = Held::default();
    let outcome = catch_unwind(AssertUnwindSafe(|| program(&pool, &mut held)));
    let what = format!("{policy}, guarded: {guarded}, call {panics_at}, {when:?}");
    // A panic at the end of a thread also breaks the pool, but is not reported to any caller.
    let calls = plan.calls();
    let struck = calls > panics_at;
    plan.disarm();
    if let Err(panic) = outcome {
        assert!(panic.is::<Injected>() && struck, "{what}: another panic");
    }
    if struck {
        use_broken(pool, held, &what);
        below.end();
    } else {
        held.check(&what);
    }
    (calls, struck)
}

fn each_call(policy: &str, guarded: bool) {
    for when in [When::Before, When::After] {
        let (calls, struck) = run(policy, guarded, when, u64::MAX);
        assert!(!struck && calls > 5, "{policy}: {calls} calls");
        let struck = (0..calls)
            .filter(|call| run(policy, guarded, when, *call).1)
            .count();
        println!("{policy}, guarded: {guarded}, {when:?}: {struck} of {calls} calls panicked");
        // The number of calls depends slightly on the addresses that the system chooses.
        assert!(struck as u64 > calls / 2);
    }
}

#[test]
fn a_panic_in_any_call_of_the_source_breaks_a_pool() {
    each_call("millpond", false);
}

#[test]
fn a_panic_in_any_call_of_the_source_breaks_a_pool_that_guards_its_blocks() {
    each_call("millpond", true);
}

#[test]
fn a_panic_in_any_call_of_the_source_breaks_a_pool_of_any_policy() {
    for policy in ["torch-expandable", "torch-native", "bfc"] {
        each_call(policy, false);
    }
}

/// A destructor allocates and drops a buffer while another panic unwinds. The poisoning of the standard library does not notice a panic
/// that is caught in this destructor.
#[test]
fn a_panic_that_a_destructor_catches_breaks_a_pool() {
    struct Catches<'a>(&'a Pool, bool);
    impl Drop for Catches<'_> {
        fn drop(&mut self) {
            let caught = catch_unwind(AssertUnwindSafe(|| drop(self.0.alloc_zeroed::<u8>(100))));
            self.1 = caught.is_err_and(|panic| panic.is::<Injected>());
            assert!(self.1, "the source was to panic");
        }
    }
    be_quiet();
    let below = Below(Arc::new(Mutex::new(host())));
    let builder = Pool::builder().name("fragile").trim_every(None);
    let pool = builder
        .over(source(When::After, &below, &Plan::new(0)))
        .expect("a pool");
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let _catches = Catches(&pool, false);
        panic_any(Injected);
    }));
    assert!(outcome.is_err());
    use_broken(pool, Held::default(), "in a destructor");
}
