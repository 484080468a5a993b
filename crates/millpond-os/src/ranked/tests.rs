use super::*;

#[cfg(debug_assertions)]
fn told(work: impl FnOnce() + std::panic::UnwindSafe) -> Option<String> {
    let panic = std::panic::catch_unwind(work).err()?;
    panic.downcast_ref::<String>().cloned()
}

#[cfg(debug_assertions)]
fn pool() -> [Ranked<u8>; 4] {
    let order = Order::new();
    [
        order.lock(Rank::CacheRegistry, 0),
        order.nth(Rank::Shelf, 3, 0),
        order.nth(Rank::Shelf, 63, 0),
        order.lock(Rank::WaitQueue, 0),
    ]
}

#[cfg(debug_assertions)]
#[test]
fn taking_a_lock_out_of_order_panics_with_both_names() {
    let [roll, small, large, line] = pool();
    let (other, tables) = (pool(), Ranked::new(Rank::Tables, ()));
    {
        let _all = [&roll, &small, &large, &line].map(Ranked::lock);
        // The order does not apply to another pool's locks, nor to the arena's, which come last.
        let _theirs = other.each_ref().map(Ranked::lock);
        drop(tables.lock());
    }
    let (list, sets) = (Ranked::new(Rank::Heaps, ()), Shared::new(Rank::Sets, ()));
    let shards = [0, 1].map(|_| Ranked::new(Rank::Shard, ()));
    let cases: [(&dyn Fn(), &str); 6] = [
        (
            &|| drop((line.lock(), roll.lock())),
            "CacheRegistry is requested while WaitQueue of the same pool is held",
        ),
        (
            &|| drop((large.lock(), small.lock())),
            "Shelf is requested while Shelf of the same pool is held",
        ),
        (
            &|| drop((line.lock(), list.lock())),
            "Heaps is requested while WaitQueue is held",
        ),
        (
            &|| drop((shards[0].lock(), shards[1].lock())),
            "Shard is requested while Shard is held",
        ),
        (
            &|| drop((sets.read(), sets.read())),
            "Sets is requested while Sets is held",
        ),
        (
            &|| drop((list.lock(), sets.write())),
            "Sets is requested while Heaps is held",
        ),
    ];
    for (case, expected) in cases {
        let told = told(std::panic::AssertUnwindSafe(case)).expect(expected);
        assert_eq!(told, format!("wrong lock order: {expected}"));
    }
    // A panic releases the locks past which it unwinds.
    drop([&roll, &small, &large, &line].map(Ranked::lock));
    assert!(held::BY_RANK.with(|held| held.iter().all(|count| count.get() == 0)));
}

#[cfg(debug_assertions)]
#[test]
fn taking_a_held_lock_again_panics_during_a_fork_too() {
    let [_, small, ..] = pool();
    let [shards, stacks] = [Rank::Shard, Rank::Stacks].map(|rank| [0, 1].map(|_| Ranked::new(rank, ())));
    let tables = Ranked::new(Rank::Tables, ());
    let budgets = Shared::new(Rank::Budgets, ());
    let cases: [(&dyn Fn(), &str); 5] = [
        (
            &|| drop((small.lock(), small.lock())),
            "Shelf is requested by the thread that already holds it",
        ),
        (
            &|| drop((shards[0].lock(), shards[1].lock(), shards[0].lock())),
            "Shard is requested by the thread that already holds it",
        ),
        (
            &|| drop((tables.lock(), tables.lock())),
            "Tables is requested by the thread that already holds it",
        ),
        (
            &|| drop((tables.lock(), Ranked::new(Rank::Tables, ()).lock())),
            "wrong lock order: Tables is requested while Tables is held",
        ),
        (
            &|| drop((budgets.write(), budgets.read())),
            "wrong lock order: Budgets is requested while Budgets is held",
        ),
    ];
    take_all_of_a_kind(true);
    for (case, expected) in cases {
        assert_eq!(
            told(std::panic::AssertUnwindSafe(case)).as_deref(),
            Some(expected)
        );
    }
    // A fork takes all shards of an account, and then all shards of another account.
    drop((
        shards[0].lock(),
        stacks[0].lock(),
        shards[1].lock(),
        stacks[1].lock(),
    ));
    take_all_of_a_kind(false);
    // A lock can be taken again after a panic has unwound past it.
    drop((small.lock(), tables.lock()));
}

#[cfg(debug_assertions)]
#[test]
fn every_rank_is_found_by_its_number() {
    assert!(
        Rank::ALL
            .iter()
            .enumerate()
            .all(|(at, rank)| *rank as usize == at)
    );
}

#[cfg(debug_assertions)]
#[test]
fn locks_of_other_threads_do_not_count_in_the_order() {
    let [roll, small, _, line] = pool();
    let condition = Condvar::new();
    std::thread::scope(|scope| {
        let waits = line.lock();
        let other = scope.spawn(|| {
            // While its holder sleeps, the lock is free, and this thread can take it.
            drop((roll.lock(), line.lock()));
            condition.notify_one();
        });
        let mut waits = waits.wait_timeout(&condition, Duration::from_secs(60));
        *waits += 1;
        other.join().expect("no panic");
        let told = told(std::panic::AssertUnwindSafe(|| drop(small.lock())));
        assert!(told.is_some_and(|told| told.contains("Shelf is requested while WaitQueue")));
    });
}

#[cfg(not(debug_assertions))]
#[test]
fn ranks_add_no_size_in_release_builds() {
    assert_eq!(size_of::<Ranked<u64>>(), size_of::<Mutex<u64>>());
    assert_eq!(size_of::<Locked<'_, u64>>(), size_of::<MutexGuard<'_, u64>>());
    assert_eq!((size_of::<Order>(), size_of::<Turn<'_>>()), (0, 0));
}
