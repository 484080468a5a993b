//! Tests of a sampled ledger: which blocks are entered, and that each of them is removed.

use super::*;
use millpond_account::Ledger;

/// Returns a pool with a ledger of one block in `one_in`.
fn sampled(one_in: u32) -> Pool {
    let pool = Pool::builder()
        .trim_every(None)
        .track(Some(Tracking::Sampled { one_in }))
        .stacks(false);
    pool.host().expect("addresses")
}

fn account(pool: &Pool) -> Arc<Ledger> {
    pool.ledger().expect("an account")
}

/// Returns whether `picked` is about one in `one_in` of `all`, within six standard deviations, because the sampling is
/// random.
fn is_about(picked: u64, all: u64, one_in: u64) -> bool {
    let (all, chance) = (all as f64, 1.0 / one_in as f64);
    let deviation = (all * chance * (1.0 - chance)).sqrt();
    (picked as f64 - all * chance).abs() < 6.0 * deviation
}

/// The fast path allocates cached blocks until the next block is picked.
#[test]
fn about_one_block_in_n_is_entered_and_each_is_removed() {
    const ALL: u64 = 20_000;
    for bytes in [64, 3000, 100 << 10] {
        let pool = sampled(16);
        let (mut entered, mut at_once) = (0, 0);
        for _ in 0..ALL / 10 {
            let held: Vec<Raw> = (0..10).map(|_| alloc(&pool, bytes, 64).expect("room")).collect();
            let picked = account(&pool).blocks();
            (entered, at_once) = (entered + picked, at_once.max(picked));
            held.into_iter().for_each(|raw| free(&pool, raw));
            assert_eq!(
                account(&pool).blocks(),
                0,
                "{bytes}: all that were entered have left"
            );
        }
        assert!(is_about(entered, ALL, 16), "{bytes}: {entered} of {ALL}");
        assert!(at_once > 1, "not every tenth, but at random");
        assert!(pool.stats().hits > ALL / 10 * 9, "{:?}", pool.stats());
    }
}

#[test]
fn the_slow_path_samples_blocks_too() {
    const ALL: u64 = 4_000;
    // The first round uses an alignment that the fast path does not serve. Both rounds use fresh memory each time.
    for align in [4096, 64] {
        let pool = sampled(8);
        let held: Vec<Raw> = (0..ALL)
            .map(|n| alloc(&pool, 64 + n as usize % 1000, align).expect("room"))
            .collect();
        assert!(
            is_about(account(&pool).blocks(), ALL, 8),
            "{align}: {:?}",
            account(&pool)
        );
        held.into_iter().for_each(|raw| free(&pool, raw));
        assert_eq!(account(&pool).blocks(), 0);
    }
}

#[test]
fn a_free_on_another_thread_removes_the_entry() {
    let pool = sampled(4);
    std::thread::scope(|scope| {
        let (to, from) = mpsc::sync_channel::<Raw>(64);
        let pool = &pool;
        scope.spawn(move || {
            for n in 0..20_000 {
                to.send(alloc(pool, 64 + n * 7919 % 9000, 64).expect("room"))
                    .expect("open");
            }
        });
        scope.spawn(move || from.into_iter().for_each(|raw| free(pool, raw)));
    });
    assert_eq!(account(&pool).blocks(), 0);
}

#[test]
fn resizing_a_block_updates_its_entry() {
    let pool = sampled(1);
    let raw = alloc(&pool, 1000, 64).expect("room");
    assert!(pool.heap().resize(raw.taken, (1000, 64), (1010, 32)));
    let [leak] = &account(&pool).leaks()[..] else {
        panic!("{:?}", account(&pool).leaks());
    };
    assert_eq!((leak.requested, leak.bytes), (1010, raw.bytes()));
    // A sampled ledger has a record of these blocks, so errors about them are reported.
    assert!(!pool.heap().resize(raw.taken, (1000, 64), (1020, 64)));
    free(
        &pool,
        Raw {
            requested: 1010,
            ..raw
        },
    );
    assert_eq!(account(&pool).blocks(), 0);
}

#[test]
fn a_subscriber_sees_every_event_and_the_sampled_ledger_continues() {
    let pool = sampled(8);
    let warm = |count: usize| {
        let held: Vec<Raw> = (0..count).map(|_| alloc(&pool, 500, 64).expect("room")).collect();
        let entered = account(&pool).blocks();
        held.into_iter().for_each(|raw| free(&pool, raw));
        assert_eq!(account(&pool).blocks(), 0);
        entered
    };
    warm(10);
    let told = Arc::new(Mutex::new(0));
    let hear = Arc::clone(&told);
    let id = pool.subscribe(move |event: &Event<'_>| {
        *hear.lock().expect("no panic") += u32::from(event.kind == EventKind::Allocated);
    });
    // The blocks are entered in the ledger while there is a subscriber, and removed after it has unsubscribed.
    let held: Vec<Raw> = (0..100).map(|_| alloc(&pool, 500, 64).expect("room")).collect();
    assert_eq!(*told.lock().expect("no panic"), 100);
    pool.unsubscribe(id);
    held.into_iter().for_each(|raw| free(&pool, raw));
    assert_eq!(account(&pool).blocks(), 0);
    assert!(is_about(warm(2000), 2000, 8));
    assert_eq!(*told.lock().expect("no panic"), 100);
    // A new rate applies at once, not only after the gap of the former one.
    pool.track(Some(Ledger::builder(Tracking::Sampled { one_in: u32::MAX })));
    assert_eq!(warm(2000), 0);
    pool.track(Some(Ledger::builder(Tracking::Sampled { one_in: 2 })));
    assert!(is_about(warm(2000), 2000, 2));
    pool.track(None);
    let raw = alloc(&pool, 500, 64).expect("room");
    free(&pool, raw);
}
