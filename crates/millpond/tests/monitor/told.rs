//! Thresholds: the called observers, the number of calls, and the calls that are permitted in callbacks.

use super::{MIB, wait_for};
use millpond::monitor::{Crossing, Signal, Threshold};
use millpond::pressure::Share;
use millpond::{Budget, Monitor, Pool, budget::Measure};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

const SHORT: Duration = Duration::from_millis(10);

/// Waits until `more` further samples were taken.
fn samples(monitor: &Monitor, more: u64) {
    let before = monitor.report().samples;
    wait_for("more samples", || monitor.report().samples >= before + more);
}

#[test]
fn a_threshold_is_reported_once_for_each_crossing() {
    let pool = Pool::builder()
        .name("crossing")
        .settings("")
        .host()
        .expect("a pool");
    let (sender, told) = mpsc::channel::<Crossing>();
    let budget = Budget::builder("crossed")
        .measure(Measure::Allocated)
        .limit(100 * MIB)
        .build()
        .expect("a budget");
    let tenant = pool.tenant(&budget).expect("a tenant");
    let monitor = Monitor::builder()
        .interval(SHORT)
        .budget(&budget)
        .on(
            Threshold::budget(Share::percent(80)).rearmed_at(Share::percent(50)),
            move |crossing| {
                let _ = sender.send(crossing.clone());
            },
        )
        .start()
        .expect("a monitor");
    let next = || told.recv_timeout(Duration::from_secs(60)).expect("it is told");
    let none = || {
        samples(&monitor, 3);
        assert!(told.try_recv().is_err(), "told twice");
    };
    let base = tenant.alloc_zeroed::<u8>(40 << 20).expect("memory");
    none();
    for round in 0..3 {
        let middle = tenant.alloc_zeroed::<u8>(30 << 20).expect("memory");
        none();
        let top = tenant.alloc_zeroed::<u8>(20 << 20).expect("memory");
        let crossing = next();
        assert_eq!(
            (crossing.signal, crossing.of.to_string()),
            (Signal::Budget, "budget crossed".to_owned())
        );
        assert_eq!(
            (crossing.share, crossing.used, crossing.whole),
            (Share::percent(90), 90 * MIB, 100 * MIB)
        );
        assert!(
            monitor.passed().iter().any(|of| of.of == crossing.of),
            "round {round}"
        );
        none();
        drop(top);
        // Use is below the threshold, and not below the level at which it is armed again.
        none();
        let again = tenant.alloc_zeroed::<u8>(20 << 20).expect("memory");
        none();
        drop((middle, again));
        samples(&monitor, 3);
        assert!(
            monitor.passed().iter().all(|of| of.of != crossing.of),
            "round {round}"
        );
    }
    drop(base);
    let report = monitor.stop();
    let of_us = report
        .crossings
        .iter()
        .filter(|(_, of)| of.of.to_string() == "budget crossed");
    assert_eq!(of_us.count(), 3, "{report}");
}

#[test]
fn utilisation_of_each_pool_is_compared_with_its_own_threshold() {
    let pools = ["full one", "empty one"].map(|name| {
        Pool::builder()
            .name(name)
            .settings("")
            .capacity(64 * MIB)
            .host()
            .expect("a pool")
    });
    let told = Arc::new(Mutex::new(Vec::new()));
    let list = Arc::clone(&told);
    let held = pools[0].alloc_zeroed::<u8>(60 << 20).expect("memory");
    let monitor = Monitor::builder()
        .interval(SHORT)
        .on(Threshold::utilisation(Share::percent(80)), move |crossing| {
            list.lock().expect("no panic").push(crossing.of.to_string());
        })
        .start()
        .expect("a monitor");
    wait_for("a call", || {
        told.lock()
            .expect("no panic")
            .iter()
            .any(|name| name == "full one")
    });
    samples(&monitor, 3);
    let told = told.lock().expect("no panic");
    assert_eq!(told.iter().filter(|name| *name == "full one").count(), 1);
    assert!(told.iter().all(|name| name != "empty one"));
    drop(held);
}

#[test]
fn a_callback_may_panic_allocate_and_query_or_drop_the_monitor() {
    let pool = Pool::builder()
        .name("called")
        .settings("")
        .host()
        .expect("a pool");
    let budget = Budget::builder("called")
        .measure(Measure::Allocated)
        .limit(10 * MIB)
        .build()
        .expect("a budget");
    let tenant = pool.tenant(&budget).expect("a tenant");
    let held = tenant.alloc_zeroed::<u8>(9 << 20).expect("memory");
    let place: Arc<Mutex<Option<Monitor>>> = Arc::default();
    let (slot, inside) = (Arc::clone(&place), pool);
    let calls = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&calls);
    let monitor = Monitor::builder()
        .interval(SHORT)
        .budget(&budget)
        .on(Threshold::budget(Share::percent(50)), |_| panic!("in a callback"))
        .on(Threshold::budget(Share::percent(51)), move |_| {
            let scratch = inside.alloc_zeroed::<u8>(1000).expect("memory");
            let monitor = loop {
                if let Some(monitor) = slot.lock().expect("no panic").take() {
                    break monitor;
                }
                std::thread::sleep(Duration::from_millis(1));
            };
            let report = monitor.report();
            assert_eq!((report.panics, scratch.len()), (1, 1000));
            count.fetch_add(1, Ordering::SeqCst);
            drop(monitor);
            count.fetch_add(1, Ordering::SeqCst);
        })
        .start()
        .expect("a monitor");
    *place.lock().expect("no panic") = Some(monitor);
    wait_for("the end of the callback", || calls.load(Ordering::SeqCst) == 2);
    drop(held);
}
