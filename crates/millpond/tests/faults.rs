//! Tests a pool over a source that fails: each call in turn, and all calls from one on.
//!
//! A fixed program takes every path through a pool: small and large blocks, spans, batches between threads, growth,
//! trim, compaction, a limit, a tenant. It runs once to count the calls of the source. Then each call is made to fail.
//! After any refusal, nothing may be lost.

#![cfg(target_os = "linux")]

use millpond::engine::{CallKind, Event, Range, Segment, Source, SourceError};
use millpond::{
    AllocError, Budget, Buffer, Host, MemoryKind, Pool, budget::Measure, pool::Prewarm, source::MemorySource,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// The calls that fail, and the number of calls. It is shared with the source, which the pool owns.
#[derive(Debug, Default)]
struct Plan {
    calls: AtomicU64,
    first: AtomicU64,
    end: AtomicU64,
    struck: AtomicU64,
    /// True while waiting for the device is impossible.
    held: AtomicBool,
}

/// Fails by the number of the call, whatever its kind. [`Faulty`](millpond::engine::Faulty) counts each kind
/// separately, and cannot be reached once a pool owns it.
struct Failing {
    inner: Host,
    plan: Arc<Plan>,
}

impl Failing {
    /// Returns the result of a call that reports only success or failure. Every second call fails.
    fn succeeds(&self) -> bool {
        self.plan.calls.fetch_add(1, Ordering::Relaxed).is_multiple_of(2)
    }

    fn call(&self, kind: CallKind, bytes: u64) -> Result<(), SourceError> {
        assert!(kind.can_fail());
        let number = self.plan.calls.fetch_add(1, Ordering::Relaxed);
        let fails = self.plan.first.load(Ordering::Relaxed)..self.plan.end.load(Ordering::Relaxed);
        if !fails.contains(&number) {
            return Ok(());
        }
        self.plan.struck.fetch_add(1, Ordering::Relaxed);
        Err(match number % 3 {
            0 => SourceError::Driver {
                call: kind.name(),
                code: 7,
            },
            _ => SourceError::OutOfMemory {
                requested: bytes,
                free: 0,
                capacity: 1 << 40,
            },
        })
    }
}

impl Source for Failing {
    fn page_bytes(&self) -> u64 {
        self.inner.page_bytes()
    }
    fn is_paged(&self) -> bool {
        self.inner.is_paged()
    }
    fn capacity(&self) -> Option<u64> {
        self.inner.capacity()
    }
    fn free_bytes(&self) -> Option<u64> {
        self.inner.free_bytes()
    }
    fn take(&mut self, bytes: u64) -> Result<Segment, SourceError> {
        self.call(CallKind::Take, bytes)?;
        self.inner.take(bytes)
    }
    fn give(&mut self, segment: Segment) {
        self.inner.give(segment);
    }
    fn reserve(&mut self, bytes: u64) -> Result<Range, SourceError> {
        self.call(CallKind::Reserve, bytes)?;
        self.inner.reserve(bytes)
    }
    fn commit(&mut self, range: &Range, offset: u64, bytes: u64, handle: u64) -> Result<(), SourceError> {
        self.call(CallKind::Commit, bytes)?;
        self.inner.commit(range, offset, bytes, handle)
    }
    fn decommit(&mut self, range: &Range, offset: u64, bytes: u64) -> u64 {
        self.inner.decommit(range, offset, bytes)
    }
    fn move_pages(&mut self, from: (&Range, u64), to: (&Range, u64), bytes: u64) -> Result<u64, SourceError> {
        self.call(CallKind::Move, bytes)?;
        self.inner.move_pages(from, to, bytes)
    }
    fn release(&mut self, range: Range) {
        self.inner.release(range);
    }
    fn record_event(&mut self, stream: u32) -> Event {
        self.inner.record_event(stream)
    }
    fn is_complete(&self, event: Event) -> bool {
        self.inner.is_complete(event)
    }
    fn wait_event(&mut self, stream: u32, event: Event) {
        self.inner.wait_event(stream, event);
    }
    fn synchronize(&mut self) {
        self.inner.synchronize();
    }
    fn can_wait(&self, _: Option<u32>) -> bool {
        !self.plan.held.load(Ordering::Relaxed)
    }
}

// SAFETY: each call passes its tokens unchanged to the source below, or fails without calling it.
unsafe impl MemorySource for Failing {
    fn kind(&self) -> MemoryKind {
        self.inner.kind()
    }
    fn fresh_is_zero(&self) -> bool {
        self.inner.fresh_is_zero()
    }
    fn discard(&mut self, address: u64, bytes: u64) -> bool {
        self.succeeds() && self.inner.discard(address, bytes)
    }
    fn populate(&self, address: u64, bytes: u64) -> bool {
        self.succeeds() && self.inner.populate(address, bytes)
    }
    fn transfer(&mut self, from: u64, to: u64, bytes: u64) -> bool {
        self.inner.transfer(from, to, bytes)
    }
}

/// Returns true if the bytes have this value. Only some bytes of each page are read.
fn is_all(bytes: &[u8], value: u8) -> bool {
    bytes
        .iter()
        .step_by(509)
        .chain(bytes.last())
        .all(|byte| *byte == value)
}

/// The successful and the refused allocations of a program.
#[derive(Debug, Default)]
struct Log {
    held: Vec<Buffer<u8>>,
    served: u64,
    refused: u64,
}

impl Log {
    fn add(&mut self, outcome: Result<Buffer<u8>, AllocError>, value: u8) {
        let Ok(mut buffer) = outcome.map_err(|error| self.refuse(&error)) else {
            return;
        };
        assert!(is_all(&buffer, 0));
        buffer.fill(value);
        self.served += 1;
        self.held.push(buffer);
    }

    fn note(&mut self, outcome: Result<(), AllocError>) {
        if let Err(error) = outcome {
            self.refuse(&error);
        }
    }

    fn refuse(&mut self, error: &AllocError) {
        // Policies that follow other allocators' rules support smaller alignments than requested.
        let typed = matches!(
            error,
            AllocError::OutOfMemory(_) | AllocError::Source(_) | AllocError::Alignment { .. }
        );
        assert!(typed && !error.to_string().is_empty(), "{error:?}");
        self.refused += 1;
    }

    fn check(&self) {
        for buffer in &self.held {
            assert!(is_all(buffer, buffer[0]), "contents were lost");
        }
    }
}

/// Takes every path through a pool.
fn program(pool: &Pool, tenant: &millpond::Tenant) -> Log {
    let mut log = Log::default();
    // Small sizes of several classes, some of them aligned, use spans.
    for round in 0..6 {
        for bytes in [1, 100, 3000, 20_000, 60_000] {
            log.add(pool.alloc_zeroed_aligned(bytes, 64 << round), 1);
        }
    }
    // Larger sizes make the pool grow, leave holes and reuse them.
    for megabytes in [1usize, 3, 2, 5, 1] {
        log.add(pool.alloc_zeroed(megabytes << 20), 2);
        log.add(pool.alloc_zeroed(100_000 * megabytes), 3);
    }
    let mut at = 0;
    log.held.retain(|_| {
        at += 1;
        at % 3 != 0
    });
    log.add(pool.alloc_zeroed(7 << 20), 4);
    log.add(tenant.alloc_zeroed(2 << 20), 5);
    log.add(tenant.alloc_zeroed(50), 6);
    // This alignment is larger than that of the source.
    log.add(pool.alloc_zeroed_aligned(1 << 20, 4 << 20), 7);
    // Buffers grow, in place or not.
    for index in [0, 5, log.held.len() / 2] {
        if let Some(buffer) = log.held.get_mut(index) {
            let (before, value) = (buffer.len(), buffer[0]);
            let outcome = buffer.try_grow_zeroed(before + (1 << 20));
            if outcome.is_ok() {
                assert!(is_all(&buffer[before..], 0));
                buffer.fill(value);
            }
            log.note(outcome);
        }
    }
    log.note(pool.reserve(pool.stats().reserved.current + (3 << 20)));
    log.note(pool.prewarm(&Prewarm::of([(700, 200), (1 << 20, 2)]).touched()));
    pool.trim();
    log.check();
    // Another thread frees blocks and keeps some in its cache.
    let given = log.held.split_off(log.held.len() / 2);
    let more = thread::scope(|scope| {
        let other = scope.spawn(|| {
            drop(given);
            let mut log = Log::default();
            for bytes in [64, 5000, 200_000, 4 << 20] {
                log.add(pool.alloc_zeroed(bytes), 8);
            }
            log
        });
        other.join().expect("no panic")
    });
    log.held.extend(more.held);
    log.served += more.served;
    log.refused += more.refused;
    pool.compact();
    log.add(pool.alloc_zeroed(6 << 20), 9);
    pool.set_limit(8 << 20);
    log.held.truncate(log.held.len() / 2);
    log.add(pool.alloc_zeroed(1 << 20), 10);
    pool.set_limit(u64::MAX);
    log.add(pool.alloc_zeroed(2 << 20), 11);
    pool.collect_garbage();
    log.check();
    log
}

/// Runs the program with these calls failing. Returns the number of calls, and the number of failures.
fn run(policy: &str, first: u64, end: u64) -> (u64, u64) {
    let plan = Arc::new(Plan::default());
    plan.first.store(first, Ordering::Relaxed);
    plan.end.store(end, Ordering::Relaxed);
    let source = Failing {
        inner: Host::builder().page_bytes(64 << 10).build().expect("a source"),
        plan: Arc::clone(&plan),
    };
    let process = Budget::builder("process").build().expect("a budget");
    let budget = Budget::builder("tenant")
        .measure(Measure::Allocated)
        .build()
        .expect("a budget");
    let builder = Pool::builder().policy(policy).budget(&process).trim_every(None);
    let pool = builder.over(Box::new(source)).expect("a pool");
    let tenant = pool.tenant(&budget).expect("allocated bytes");
    let log = program(&pool, &tenant);
    let calls = plan.calls.load(Ordering::Relaxed);
    let struck = plan.struck.load(Ordering::Relaxed);
    let stats = pool.stats();
    let held: u64 = log.held.iter().map(|buffer| buffer.capacity() as u64).sum();
    assert_eq!(stats.allocated.current, held);
    assert_eq!(stats.allocations - stats.frees, log.held.len() as u64);
    let unprovoked = struck == 0 && policy == "millpond";
    assert!(
        stats.allocations >= log.served && !(unprovoked && log.refused > 1),
        "{stats:?}"
    );
    // From here on nothing fails, and the pool works like a new one.
    plan.end.store(0, Ordering::Relaxed);
    for bytes in [900, 9 << 20] {
        // This policy allocates all of its memory at its first call, and keeps the amount that it received.
        if policy != "rmm-arena" {
            let served = pool.alloc_zeroed::<u8>(bytes);
            assert!(
                served.is_ok(),
                "{policy} after calls {first} to {end}: {served:?}"
            );
        }
    }
    drop(log);
    pool.trim();
    let stats = pool.stats();
    let left = [stats.requested, stats.allocated].map(|gauge| gauge.current);
    assert_eq!((left, stats.kept, stats.allocations), ([0; 2], 0, stats.frees));
    assert_eq!(process.used(), stats.reserved.current);
    if matches!(policy, "millpond" | "planned") {
        assert_eq!(stats.reserved.current, 0, "calls {first} to {end}");
    }
    drop((pool, tenant));
    assert_eq!((process.used(), process.forgotten()), (0, 0));
    assert_eq!((budget.used(), budget.forgotten()), (0, 0));
    (calls, struck)
}

#[test]
fn each_call_of_the_source_in_turn() {
    let (calls, struck) = run("millpond", 0, 0);
    println!("{calls} calls");
    assert!(calls > 30 && struck == 0, "{calls} calls");
    let mut total = 0;
    for call in 0..calls {
        total += run("millpond", call, call + 1).1;
    }
    // Calls that only return their success do not fail in this way.
    assert!(total > 20, "{total} failures of {calls} calls");
}

#[test]
fn no_memory_is_returned_to_a_source_that_cannot_wait() {
    let plan = Arc::new(Plan::default());
    let source = Failing {
        inner: Host::builder().page_bytes(64 << 10).build().expect("a source"),
        plan: Arc::clone(&plan),
    };
    let pool = Pool::builder()
        .trim_every(None)
        .over(Box::new(source))
        .expect("a pool");
    drop(pool.alloc_zeroed::<u8>(5 << 20).expect("room"));
    plan.held.store(true, Ordering::Relaxed);
    pool.trim();
    assert!(
        pool.stats().reserved.current >= 5 << 20,
        "the pool asks `can_wait` first"
    );
    plan.held.store(false, Ordering::Relaxed);
    pool.trim();
    assert_eq!(pool.stats().reserved.current, 0);
}

#[test]
fn every_call_of_the_source_from_one_on() {
    let (calls, _) = run("millpond", 0, 0);
    for call in 0..calls {
        run("millpond", call, if call % 3 == 0 { call + 5 } else { u64::MAX });
    }
}

#[test]
fn every_other_policy_when_calls_fail() {
    for policy in millpond::engine::policies::names() {
        for call in [0, 1, 2, 5, 13] {
            run(policy, call, if call % 2 == 0 { call + 1 } else { u64::MAX });
        }
    }
}

/// Tests structures of arrays, whose fields allocate separately.
#[cfg(feature = "derive")]
mod arrays {
    use super::{AllocError, Arc, Failing, Host, Ordering, Plan, Pool};
    use millpond::Soa;

    /// The fields are sorted by size, so a grown field leaves too little memory for the next one.
    #[derive(Clone, Copy, Debug, PartialEq, Soa)]
    struct Body {
        kind: u16,
        mass: f32,
        number: u64,
        place: [f64; 4],
    }

    fn body(number: u64) -> Body {
        Body {
            place: [number as f64; 4],
            number,
            mass: -(number as f32),
            kind: number as u16,
        }
    }

    /// The number of bodies, which exceeds the first blocks of every field.
    const BODIES: u64 = 20_000;

    /// The method of appending.
    #[derive(Clone, Copy, Debug)]
    enum Way {
        Push,
        Extend,
        Slice,
    }

    /// Appends bodies with these calls failing, and retries each until it succeeds. Returns the number of calls of the
    /// source, and the number of refusals after other fields had grown.
    fn grow(way: Way, first: u64, end: u64) -> (u64, u64) {
        let plan = Arc::new(Plan::default());
        plan.first.store(first, Ordering::Relaxed);
        plan.end.store(end, Ordering::Relaxed);
        let source = Failing {
            inner: Host::builder().page_bytes(64 << 10).build().expect("a source"),
            plan: Arc::clone(&plan),
        };
        let pool = Pool::builder()
            .trim_every(None)
            .over(Box::new(source))
            .expect("a pool");
        let mut bodies = BodyVec::in_pool(&pool).expect("nothing is asked for");
        let (mut next, mut halfway) = (0, 0);
        while next < BODIES {
            let before = (bodies.len(), pool.stats().requested.current);
            let outcome = match way {
                Way::Push => bodies.try_push(body(next)).map(|()| 1),
                Way::Extend => bodies.try_extend((next..next + 64).map(body)).map(|()| 64),
                Way::Slice => {
                    let batch: Vec<Body> = (next..next + 64).map(body).collect();
                    bodies.try_extend_from_slice(&batch).map(|()| 64)
                }
            };
            match outcome {
                Ok(served) => next += served,
                Err(ref error) => {
                    assert!(
                        matches!(error, AllocError::OutOfMemory(_) | AllocError::Source(_)),
                        "{error:?}"
                    );
                    halfway += u64::from(pool.stats().requested.current > before.1);
                    // Permanent failures end here, so that the loop ends.
                    if end == u64::MAX {
                        plan.end.store(0, Ordering::Relaxed);
                    }
                }
            }
            let lengths = [
                bodies.place().len(),
                bodies.number().len(),
                bodies.mass().len(),
                bodies.kind().len(),
            ];
            assert_eq!(lengths, [next as usize; 4], "calls {first} to {end}");
            assert_eq!(
                bodies.len() - before.0,
                outcome.map_or(0, |served| served as usize)
            );
        }
        assert!(
            bodies.iter().map(|one| one.get()).eq((0..next).map(body)),
            "calls {first} to {end}"
        );
        drop(bodies);
        assert_eq!(pool.stats().requested.current, 0);
        (plan.calls.load(Ordering::Relaxed), halfway)
    }

    #[test]
    fn whichever_call_fails_all_fields_have_one_length() {
        for way in [Way::Push, Way::Extend, Way::Slice] {
            let (calls, _) = grow(way, 0, 0);
            let mut halfway = 0;
            for call in 0..calls {
                halfway += grow(way, call, call + 1).1 + grow(way, call, u64::MAX).1;
            }
            assert!(
                calls > 4 && halfway > 0,
                "{way:?}: {halfway} refusals with fields ready before it, of {calls} calls"
            );
        }
    }
}
