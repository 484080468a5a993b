//! The process's default set: its creation on demand, its replacement, its settings from the environment, and its use
//! in the child of a fork. Each test has a process of its own, because each process has one default.

#![cfg(target_os = "linux")]

#[path = "support/child.rs"]
mod child;

use millpond::{AllocError, Device, MemoryKind, Pool, PoolError, Pools, pools, set_default_pools};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const PART: &str = "MILLPOND_TEST_PART";
const MIB: u64 = 1 << 20;

/// Runs a part of this program with this value of `MILLPOND_CONF`, or without the variable.
fn run(part: &str, conf: Option<&str>) {
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    child.args(["--exact", "part", "--nocapture"]).env(PART, part);
    match conf {
        Some(conf) => child.env("MILLPOND_CONF", conf),
        None => child.env_remove("MILLPOND_CONF"),
    };
    let output = child::ends(&mut child).output().expect("a child");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{part}: {told}");
}

#[test]
fn part() {
    match std::env::var(PART).as_deref() {
        Ok("there") => there(),
        Ok("replaced") => replaced(),
        Ok("misread") => misread(),
        Ok("tight") => tight(),
        Ok("own sizes") => own_sizes(),
        Ok("fork") => fork(),
        Ok(part) => panic!("there is no part {part}"),
        Err(_) => {}
    }
}

#[test]
fn the_default_pool_has_the_small_sizes_prewarmed() {
    run("there", None);
}

fn there() {
    assert!(millpond::memory_stats().pools.is_empty());
    assert_eq!(millpond::memory_stats().hit_rate(), 0.0);
    millpond::empty_cache();
    let first = millpond::alloc_zeroed::<u8>(100).expect("room");
    let stats = millpond::memory_stats();
    assert_eq!(stats.pools[0].name, "host");
    // The reserved memory is in whole pages of the pool.
    assert_eq!(stats.total.reserved.current, 2 * (2 * MIB), "{stats}");
    let held: Vec<_> = (6..=16)
        .flat_map(|log| std::iter::repeat_n(1usize << log, 15))
        .map(|bytes| millpond::alloc_zeroed::<u8>(bytes).expect("room"))
        .collect();
    let stats = millpond::memory_stats();
    assert_eq!((stats.total.allocations, stats.hit_rate()), (166, 1.0), "{stats}");
    drop((first, held));
    assert!(millpond::compact().returned() >= 2 * MIB);
    millpond::collect_garbage();
    assert_eq!(millpond::memory_stats().total.reserved.current, 0);
    // Every thread gets the same pool, which is made once for any number of requests.
    let ids: Vec<u64> = thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| pools().host().expect("a pool").id()))
            .collect();
        threads.into_iter().map(|t| t.join().expect("no panic")).collect()
    });
    assert!(ids.iter().all(|id| *id == ids[0]));
    // A set that is only entered reserves no memory in advance, unless its settings say so.
    Pools::new().scope(|| {
        let pool = pools().host().expect("a pool");
        assert_eq!(pool.stats().reserved.current, 0);
    });
}

#[test]
fn the_default_set_can_be_replaced() {
    run("replaced", None);
}

fn replaced() {
    let mine = Pools::with(Pool::builder().name("mine"));
    let before = set_default_pools(mine.clone());
    assert!(pools().is_same(&mine) && !before.is_same(&mine));
    // A replaced default that was never used still has the settings of a default.
    assert!(before.stats().pools.is_empty());
    assert!(before.host().expect("a pool").stats().reserved.current >= 2 * MIB);
    let buffer = millpond::alloc_from(&[1u8, 2, 3]).expect("room");
    assert_eq!(millpond::memory_stats().pools[0].name, "mine host");
    let scope = before.enter();
    thread::scope(|scope| {
        scope.spawn(|| assert!(pools().is_same(&mine)));
    });
    let other = Pools::new();
    assert!(set_default_pools(other.clone()).is_same(&mine));
    assert!(pools().is_same(&before), "a scope goes before the default");
    drop(scope);
    assert!(pools().is_same(&other));
    drop(mine);
    assert_eq!(buffer[..], [1, 2, 3]);
    // A thread remembers the pool that it used last only as long as that pool is current.
    let drawn = || {
        millpond::alloc_zeroed::<u8>(100)
            .expect("room")
            .pool()
            .map(|pool| pool.id())
    };
    let host = |set: &Pools| Some(set.host().expect("a pool").id());
    assert_eq!(drawn(), host(&other));
    let old = other.remove(Device::Host, MemoryKind::Host).map(|pool| pool.id());
    assert_ne!(drawn(), old);
    assert_eq!(drawn(), host(&other));
    let put = Pool::host().expect("a pool");
    other.insert(put.clone());
    assert_eq!(drawn(), Some(put.id()));
    set_default_pools(before.clone());
    assert_eq!(drawn(), host(&before));
    let scoped = Pools::new();
    scoped.scope(|| assert_eq!(drawn(), host(&scoped)));
    assert_eq!(drawn(), host(&before));
    // A callback of the allocation enters a scope and stays in it.
    let mut stays = None;
    let other = millpond::alloc_from_fn(2, |at| {
        if at == 0 {
            stays = Some(scoped.join());
        }
        drawn()
            .zip(host(&scoped))
            .map_or(0u8, |(drawn, scoped)| u8::from(drawn == scoped))
    });
    assert_eq!(other.expect("room")[..], [1, 1]);
    assert_eq!(drawn(), host(&scoped));
    drop(stays);
    assert_eq!(drawn(), host(&before));
}

#[test]
fn a_wrong_setting_in_the_environment_is_an_error_of_the_call() {
    run("misread", Some("limit:lots"));
}

fn misread() {
    for _ in 0..2 {
        assert!(matches!(pools().host(), Err(PoolError::Environment(_))));
        let refused = millpond::alloc_zeroed::<u8>(100).expect_err("no pool");
        assert!(refused.to_string().contains("MILLPOND_CONF"), "{refused}");
        assert!(matches!(refused, AllocError::Pool(_)));
    }
    assert!(pools().stats().pools.is_empty());
    pools().configure("limit:8MiB").expect("good in itself");
    // The set's own settings take precedence.
    let own = Pools::with(Pool::builder().settings(""));
    set_default_pools(own);
    assert!(millpond::alloc_zeroed::<u8>(100).is_ok());
}

#[test]
fn a_limit_below_the_prewarmed_bytes_only_prevents_prewarming() {
    run("tight", Some("limit:4MiB"));
}

fn tight() {
    let pool = pools().host().expect("a pool");
    assert_eq!(pool.stats().reserved.current, 0, "nobody asked for anything");
    for bytes in [64, 1000, 50_000, 3 << 20] {
        assert!(millpond::alloc_zeroed::<u8>(bytes).is_ok(), "{bytes}");
    }
}

#[test]
fn prewarm_in_the_environment_replaces_the_default_sizes() {
    run("own sizes", Some("prewarm:[64*16],trim-every:off"));
}

fn own_sizes() {
    let host = pools().host().expect("a pool");
    let reserved = host.stats().reserved.current;
    assert_eq!(reserved, 2 * MIB, "one page, and three with the small sizes");
}

#[test]
fn a_child_of_a_fork_can_use_the_default_pools() {
    run("fork", None);
}

/// Tells the other threads to stop, also on a panic, because the scope waits for them.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Forks while other threads use the default and scopes, and make pools.
fn fork() {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    drop(millpond::alloc_zeroed::<u8>(1000));
                    let set = Pools::with(Pool::builder().trim_every(None));
                    set.scope(|| drop(millpond::alloc_zeroed::<u8>(100_000)));
                    pools().remove(Device::Host, MemoryKind::Host);
                }
            });
        }
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                drop(pools().iter());
            }
        });
        let _over = Over(&done);
        for _ in 0..100 {
            // SAFETY: the child leaves by `_exit`. The test covers the calls before that.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: the call takes only a number.
                unsafe { libc::alarm(20) };
                let fine = pools()
                    .host()
                    .is_ok_and(|pool| pool.alloc_zeroed::<u8>(1000).is_ok());
                let fine = fine && millpond::alloc_zeroed::<u8>(1000).is_ok();
                // SAFETY: the call ends the child without running the parent's exit handlers.
                unsafe { libc::_exit(i32::from(!fine)) };
            }
            let mut status = 0;
            // SAFETY: the child was forked here, and the status lives through the call.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "the child hung or failed");
        }
    });
}
