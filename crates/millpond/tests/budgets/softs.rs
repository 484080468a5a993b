//! Soft limits.

use millpond::Budget;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

#[test]
fn each_crossing_is_reported_once() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&told);
    let top = Budget::builder("top")
        .soft_limit(80, move |crossing| {
            sink.lock()
                .expect("not poisoned")
                .push((crossing.limit, crossing.used));
        })
        .build()
        .expect("a root");
    let low = top.child("low").expect("a child");
    let told = || told.lock().expect("not poisoned").clone();
    let (base, edge) = (top.charge(70).expect("fits"), low.charge(10).expect("fits"));
    assert!(told().is_empty(), "at the limit is not above it");
    let over = low.charge(1).expect("fits");
    assert_eq!(told(), [(80, 81)]);
    // Changes around the limit cause no more calls until use has fallen to 70.
    drop(over);
    drop(low.charge(20).expect("fits"));
    assert_eq!(told().len(), 1);
    drop(edge);
    let over = low.charge(30).expect("fits");
    assert_eq!(told(), [(80, 81), (80, 100)]);
    drop((base, over));
}

#[test]
fn a_callback_may_charge_change_limits_and_panic() {
    let budget: Arc<OnceLock<Budget>> = Arc::default();
    let (inner, calls) = (Arc::clone(&budget), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&calls);
    let made = Budget::builder("b")
        .limit(100)
        .soft_limit_rearmed_at(50, 10, move |crossing| {
            count.fetch_add(1, Ordering::SeqCst);
            let budget = inner.get().expect("set before");
            assert!(crossing.budget.is_same(budget));
            drop(budget.charge(5).expect("there is room"));
            budget.set_limit(Some(200));
            drop(budget.child("made here").expect("a child"));
            std::panic::resume_unwind(Box::new("a bad callback"));
        })
        .build()
        .expect("a root");
    budget.set(made.clone()).expect("empty");
    let charge = made.charge(60).expect("charged, whatever the callback does");
    assert_eq!(
        (calls.load(Ordering::SeqCst), made.used(), made.limit()),
        (1, 60, Some(200))
    );
    drop(charge);
    drop(made.charge(51));
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

#[test]
fn a_granted_request_crosses_the_soft_limit_when_it_is_taken() {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let budget = Budget::builder("b")
        .limit(10)
        .soft_limit_rearmed_at(5, 0, move |_| {
            count.fetch_add(1, Ordering::SeqCst);
        })
        .build()
        .expect("a root");
    let held = budget.charge(4).expect("fits");
    let mut task = super::executor::Task::new(budget.charge_async(8));
    assert!(task.poll().is_none());
    drop(held);
    assert_eq!((task.wakeups.count(), calls.load(Ordering::SeqCst)), (1, 0));
    drop(task.poll());
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

/// A waker that calls `work`.
#[cfg(target_os = "linux")]
struct Woken<F>(F);

#[cfg(target_os = "linux")]
impl<F: Fn() + Send + Sync> std::task::Wake for Woken<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn callbacks_for_a_pools_own_charge_may_use_the_pool() {
    use millpond::Pool;
    use std::future::Future;
    use std::sync::OnceLock;
    use std::task::{Context, Waker};

    static POOL: OnceLock<Pool> = OnceLock::new();
    static USED: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
    fn used(place: usize) {
        let pool = POOL.get().expect("set");
        drop(pool.alloc_zeroed::<u8>(100).expect("room"));
        drop(pool.alloc_zeroed::<u8>(1 << 20).expect("room"));
        pool.trim();
        USED[place].fetch_add(1, Ordering::Relaxed);
    }
    // This budget is charged for memory from the pool's source, under the pool's lock.
    let budget = Budget::builder("device")
        .limit(64 << 20)
        .soft_limit(32 << 20, |_| used(0))
        .build()
        .expect("a budget");
    let pool = Pool::builder().trim_every(None).budget(&budget).host();
    let pool = POOL.get_or_init(|| pool.expect("a pool"));
    let large = pool.alloc_zeroed::<u8>(40 << 20).expect("room");
    assert_eq!(USED[0].load(Ordering::Relaxed), 1);
    // A waiting request is woken when the pool frees memory, which also happens under its lock.
    let mut waits = Box::pin(budget.charge_async(40 << 20));
    let waker = Waker::from(Arc::new(Woken(|| used(1))));
    assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(large);
    pool.trim();
    assert_eq!(USED[1].load(Ordering::Relaxed), 1);
    assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
}
