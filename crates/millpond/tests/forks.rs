//! Tests the child of a fork, for any activity of the parent's other threads.

#![cfg(target_os = "linux")]

#[cfg(feature = "record")]
#[path = "support/child.rs"]
mod child;
#[path = "support/forking.rs"]
mod forking;

#[cfg(feature = "record")]
use millpond::Recorder;
use millpond::limits::Limits;
use millpond::{__TagSite as Site, Budget, Pool, Tenant, budget::Measure, profiler, source::is_pinned};
use std::cell::Cell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

/// Runs `work` in a child and returns the child's status. The alarm ends a child that hangs.
fn in_child(work: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child only uses pools and functions that are safe after a fork, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the call takes only a number.
        unsafe { libc::alarm(10) };
        // A panic must not unwind into code that relies on threads that the child does not have.
        let fine = catch_unwind(AssertUnwindSafe(work)).unwrap_or(false);
        // SAFETY: the call ends the child at once.
        unsafe { libc::_exit(i32::from(!fine)) };
    }
    assert!(child > 0);
    let mut status = -1;
    // SAFETY: waits for the child that was just made; the status is a local variable.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    status
}

/// Tells the other threads to stop, also on a panic, because the scope waits for them.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Forks up to `forks` times while other threads run `work`. Returns the children's statuses up to the first failure.
fn beside(forks: usize, work: impl Fn() + Sync, child: impl Fn() -> bool) -> Vec<i32> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = Over(&over);
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    work();
                }
            });
        }
        let mut ends: Vec<i32> = Vec::new();
        while ends.len() < forks && ends.last().is_none_or(|end| *end == 0) {
            ends.push(in_child(&child));
        }
        ends
    })
}

#[test]
fn no_request_waits_in_a_child() {
    let pool = Pool::builder()
        .limit(16 << 20)
        .trim_every(None)
        .host()
        .expect("a pool");
    let held = pool.alloc_zeroed::<u8>(12 << 20).expect("room");
    thread::scope(|scope| {
        scope.spawn(|| drop(pool.waiting(Duration::from_secs(120)).alloc_zeroed::<u8>(8 << 20)));
        while pool.stats().refusals == 0 {
            thread::yield_now();
        }
        // An allocation is refused while another thread waits. In the child no thread waits.
        let end = in_child(|| pool.alloc_raw(2 << 20, 64).is_ok());
        drop(held);
        assert_eq!(end, 0);
    });
}

#[test]
fn a_child_of_tenants_at_work_can_be_a_tenant() {
    let pool = Pool::builder().trim_every(None).host().expect("a pool");
    let budget = Budget::builder("tenant")
        .measure(Measure::Allocated)
        .build()
        .expect("a budget");
    let tenant: Tenant = pool.tenant(&budget).expect("allocated bytes");
    let over = AtomicBool::new(false);
    let ends: Vec<i32> = thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    drop(tenant.alloc::<u8>(64).expect("room"));
                }
            });
        }
        let ends = (0..60)
            .map(|_| in_child(|| tenant.alloc_zeroed::<u8>(5000).is_ok()))
            .take_while(|end| *end == 0)
            .collect();
        over.store(true, Ordering::Relaxed);
        ends
    });
    assert_eq!(ends, [0; 60]);
}

#[test]
fn no_request_waits_for_a_budget_in_a_child() {
    let budget = Budget::builder("full").limit(100).build().expect("a budget");
    let held = Cell::new(Some(budget.charge(60).expect("room")));
    let mut mine = pin!(budget.charge_async(70));
    let mut context = Context::from_waker(Waker::noop());
    thread::scope(|scope| {
        let waits = scope.spawn(|| budget.charge_timeout(50, Duration::from_secs(120)).is_ok());
        while budget.waiting() == 0 {
            thread::yield_now();
        }
        // A request for which this thread itself waits continues, and is served first.
        assert!(mine.as_mut().poll(&mut context).is_pending());
        let end = in_child(|| {
            let first = budget.waiting() == 1 && budget.try_charge(30).is_err();
            drop(held.take());
            let charge = match mine.as_mut().poll(&mut context) {
                Poll::Ready(Ok(charge)) => charge.bytes(),
                _ => 0,
            };
            first
                && charge == 70
                && budget.waiting() == 0
                && !budget.has_waiters()
                && budget.try_charge(30).is_ok()
        });
        // In the parent both requests still wait.
        assert_eq!(budget.waiting(), 2);
        budget.set_limit(Some(1000));
        assert!(waits.join().expect("no panic"));
        assert_eq!(end, 0);
    });
}

#[test]
fn a_charge_granted_to_another_thread_is_free_in_the_child() {
    let budget = Budget::builder("granted").limit(100).build().expect("a budget");
    let held = budget.charge(100).expect("room");
    let (asked, forked) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut waits = pin!(budget.charge_async(80));
            let mut context = Context::from_waker(Waker::noop());
            let pending = waits.as_mut().poll(&mut context).is_pending();
            asked.wait();
            forked.wait();
            assert!(pending && waits.as_mut().poll(&mut context).is_ready());
        });
        asked.wait();
        drop(held);
        let end = in_child(|| budget.remaining() == 100 && budget.try_charge(100).is_ok());
        let kept = budget.remaining();
        forked.wait();
        assert_eq!((kept, end), (20, 0));
    });
}

#[test]
fn a_child_can_wait_for_a_budget_for_which_its_parent_waited() {
    let budget = Budget::builder("busy").limit(100).build().expect("a budget");
    let work = || {
        drop(budget.charge_timeout(100, Duration::from_millis(1)));
        drop(budget.child("short"));
        budget.set_lister(None);
    };
    let ends = beside(60, work, || {
        let child = budget.child("of a child").expect("not deep");
        let fits = child.charge_timeout(1, Duration::from_millis(1));
        let children = budget.children().len();
        // The other threads' charges are held forever in the child. A refusal is a valid result.
        children > 0 && fits.map_or_else(|error| error.refusal().is_some(), |charge| charge.bytes() == 1)
    });
    assert_eq!(ends, [0; 60]);
}

#[test]
fn a_child_can_enter_the_tags_that_its_parent_was_entering() {
    // The fork handlers are registered with the first pool.
    let _pool = Pool::host().expect("a pool");
    let names: Vec<String> = (0..30_000).map(|n| format!("site {n}")).collect();
    let names: &'static [String] = names.leak();
    let sites: Vec<Site> = names.iter().map(|name| Site::new(name)).collect();
    let next = AtomicUsize::new(0);
    let work = || match sites.get(next.load(Ordering::Relaxed)) {
        Some(site) => {
            drop(site.enter());
            next.fetch_add(1, Ordering::Relaxed);
        }
        None => next.store(0, Ordering::Relaxed),
    };
    let ends = beside(60, work, || {
        let at = next.load(Ordering::Relaxed);
        let near = sites.iter().skip(at.saturating_sub(2)).take(4);
        near.for_each(|site| drop(site.enter()));
        true
    });
    assert_eq!(ends, [0; 60]);
}

#[test]
fn a_child_can_pin_memory_while_its_parent_queries_pinned_memory() {
    let Ok(pool) = Pool::builder().trim_every(None).pinned() else {
        return;
    };
    let ends = beside(
        60,
        || assert!(!is_pinned(&raw const pool)),
        || pool.alloc_raw(100, 64).is_ok(),
    );
    assert_eq!(ends, [0; 60]);
}

#[test]
fn a_child_can_use_limits_and_the_profiler_while_its_parent_does() {
    let pool = Pool::builder()
        .track(None)
        .trim_every(None)
        .host()
        .expect("a pool");
    let count = |bytes: usize| {
        let scope = Limits::new().pool(&pool).leaked(0).enter().ok()?;
        drop(pool.alloc_zeroed::<u8>(bytes).ok()?);
        scope.end().ok().map(|usage| usage.peak)
    };
    let work = || {
        assert_eq!(count(64), Some(64));
        profiler().enable();
        // Some thread reads the statistics most of the time.
        (0..500).for_each(|_| drop(pool.alloc_zeroed::<u8>(64).expect("room")));
        profiler().disable();
    };
    let ends = beside(60, work, || {
        profiler().enable();
        let counted = count(4096) == Some(4096);
        profiler().disable();
        counted
    });
    assert_eq!(ends, [0; 60]);
}

#[cfg(feature = "record")]
#[test]
fn a_child_does_not_wait_for_recordings_of_its_parent() {
    let path = std::env::temp_dir().join(format!("millpond-forks-{}.mpr", std::process::id()));
    let pool = Pool::builder().trim_every(None).host().expect("a pool");
    let work = || {
        // There is one recording at a time, so the other thread is refused.
        let recorder = Recorder::start(&path);
        // The first event comes from a thread that is new to the recording.
        thread::scope(|scope| drop(scope.spawn(|| drop(pool.alloc_zeroed::<u8>(5000)))));
        drop(recorder);
    };
    let child = || {
        // This fails at the file. Starting a thread is not safe in a child of a process whose threads start and end.
        let refused = Recorder::start("/dev/null/a file").is_err();
        millpond::mark("nobody writes it down");
        refused && pool.alloc_raw(100, 64).is_ok() && Pool::host().is_ok()
    };
    let ends = beside(60, work, child);
    let _ = std::fs::remove_file(&path);
    assert_eq!(ends, [0; 60]);
}

#[cfg(feature = "record")]
#[test]
fn a_child_of_a_process_that_is_recorded_can_record_itself() {
    let program = std::env::current_exe().expect("this program");
    let mut command = std::process::Command::new(program);
    command.args([
        "--ignored",
        "--exact",
        "--test-threads=1",
        "alone_forks_while_it_is_recorded",
    ]);
    let output = child::ends(&mut command).output().expect("a child");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
}

/// No other thread starts or ends during a fork.
#[cfg(feature = "record")]
#[test]
#[ignore = "for a process of its own"]
fn alone_forks_while_it_is_recorded() {
    let path = std::env::temp_dir().join(format!("millpond-forks-own-{}.mpr", std::process::id()));
    let theirs = path.with_extension("child.mpr");
    let pool = Pool::builder().trim_every(None).host().expect("a pool");
    let recorder = Recorder::start(&path).expect("a recording");
    let end = in_child(|| {
        // This event belongs to no recording.
        drop(pool.alloc_zeroed::<u8>(5000).expect("room"));
        let recorder = Recorder::start(&theirs).expect("a recording of its own");
        drop(pool.alloc_zeroed::<u8>(5000).expect("room"));
        let report = recorder.stop().expect("it is written");
        report.events == 2 && report.lost == 0
    });
    drop(pool.alloc_zeroed::<u8>(5000).expect("room"));
    let report = recorder.stop().expect("it is written");
    for path in [&path, &theirs] {
        std::fs::remove_file(path).expect("a file");
    }
    assert_eq!((end, report.lost), (0, 0));
    assert!(report.events >= 2, "{report:?}");
}

#[test]
fn a_child_of_threads_that_allocate_answers_trims_and_forks() {
    forking::in_processes("alone_forks_while_threads_allocate");
}

#[test]
#[ignore = "for a process of its own"]
fn alone_forks_while_threads_allocate() {
    forking::run(&Pool::builder().trim_every(None).host().expect("a pool"));
}
