//! A program that forbids itself `membarrier` after its start, as a sandbox does. Each part runs in its own process, because the library
//! detects the system's features once per process.

#![cfg(all(target_os = "linux", target_endian = "little"))]

#[path = "support/child.rs"]
mod child;
#[path = "support/forbid.rs"]
mod forbid;

use forbid::{Forbidden, without};
use millpond::engine::{Logged, SourceEvent};
use millpond::{Host, Pool};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

const BARRIER: Forbidden = Forbidden {
    call: libc::SYS_membarrier,
    argument: None,
    code: libc::EPERM,
};

/// Runs an ignored test in its own process, which is killed if it hangs.
fn alone(test: &str) {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.args(["--ignored", "--exact", "--nocapture", "--test-threads=1", test]);
    let output = child::ends(&mut command).output().expect("a process");
    let [text, error] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    let fine = output.status.success() && text.contains("1 passed");
    assert!(fine, "{:?}\n{text}\n{error}", output.status);
}

/// The bytes that a sleeper keeps in its cache.
const KEPT: u64 = 50 * 4096;

/// A thread that sleeps, and calls the pool on request.
struct Sleeper {
    calls: Sender<Sender<()>>,
    thread: JoinHandle<()>,
}

impl Sleeper {
    fn new(pool: &Pool) -> Self {
        let (calls, called) = channel::<Sender<()>>();
        let pool = pool.clone();
        let thread = thread::spawn(move || {
            let held: Vec<_> = (0..50)
                .map(|_| pool.alloc_zeroed::<u8>(4096).expect("room"))
                .collect();
            drop(held);
            for answer in called {
                drop(pool.alloc_zeroed::<u8>(4096).expect("room"));
                answer.send(()).expect("somebody waits");
            }
        });
        let this = Self { calls, thread };
        this.call();
        this
    }

    fn call(&self) {
        let (answer, answered) = channel();
        self.calls.send(answer).expect("it runs");
        answered.recv().expect("it runs");
    }

    fn end(self) {
        drop(self.calls);
        self.thread.join().expect("no panic");
    }
}

/// Runs `work` in a forked child. Returns whether `work` returned true.
fn in_child(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child only uses a pool, and ends with `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the call takes only a number.
        unsafe { libc::alarm(20) };
        let fine = work();
        // SAFETY: the call only ends the child.
        unsafe { libc::_exit(i32::from(!fine)) };
    }
    let mut status = -1;
    // SAFETY: the child was just forked, and `status` is a local.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    status == 0
}

#[test]
fn figures_trims_and_forks_go_on_without_the_caches_of_sleeping_threads() {
    alone("alone_figures_trims_and_forks");
}

#[test]
#[ignore = "for a process of its own"]
fn alone_figures_trims_and_forks() {
    let pool = Pool::builder().trim_every(None).host().expect("a pool");
    let sleeper = Sleeper::new(&pool);
    let exact = pool.stats().kept;
    assert!(exact >= KEPT, "{exact}");
    let over = AtomicBool::new(false);
    let spoke = thread::scope(|scope| {
        // A thread that is at work confirms at its next call that it is fenced.
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let mut block = pool.alloc_zeroed::<u8>(500).expect("room");
                block.fill(7);
            }
        });
        let spoke = without(BARRIER, || {
            // Without `membarrier`, figures and trims leave the sleeper's cache out.
            let less = pool.stats().kept;
            pool.trim();
            assert!(
                less + KEPT <= exact + (64 << 10) && pool.stats().reserved.current > 0,
                "{less}, {exact}"
            );
            let mut mine = pool.alloc_zeroed::<u8>(100).expect("room");
            mine.fill(3);
            for _ in 0..5 {
                assert!(in_child(|| {
                    pool.trim();
                    let alive = pool
                        .alloc_zeroed::<u8>(4096)
                        .is_ok_and(|block| block.iter().all(|b| *b == 0));
                    alive
                        && mine.iter().all(|b| *b == 3)
                        && in_child(|| pool.stats().requested.current >= 100)
                }));
            }
            drop(mine);
        });
        over.store(true, Ordering::Relaxed);
        spoke
    });
    if spoke.is_some() {
        sleeper.call();
        let again = pool.stats().kept;
        assert!(again >= KEPT, "the sleeper has confirmed the fence: {again}");
        pool.trim();
        let stats = pool.stats();
        assert_eq!((stats.kept, stats.reserved.current), (0, 0), "{stats:?}");
    }
    sleeper.end();
}

#[test]
fn a_pool_that_is_closed_gives_its_memory_back_when_its_threads_have_ended() {
    alone("alone_a_closed_pool");
}

#[test]
#[ignore = "for a process of its own"]
fn alone_a_closed_pool() {
    // The token is dropped with the source, when the pool's memory has been returned.
    let token = Arc::new(());
    let memory = Arc::downgrade(&token);
    let log = move |_: &SourceEvent<'_>| assert_eq!(Arc::strong_count(&token), 1);
    let host = Host::builder().build().expect("a source");
    let pool = Pool::builder()
        .trim_every(None)
        .over(Box::new(Logged::new(host, log)))
        .expect("a pool");
    let (end, ended) = channel::<()>();
    let (ready, is_ready) = channel();
    let handle = pool.clone();
    let sleeper = thread::spawn(move || {
        drop(handle.alloc_zeroed::<u8>(4096).expect("room"));
        drop(handle);
        ready.send(()).expect("somebody waits");
        let _ = ended.recv();
    });
    is_ready.recv().expect("it runs");
    let spoke = without(BARRIER, || {
        drop(pool);
        assert_eq!(
            memory.strong_count(),
            1,
            "a thread may still be at work in its cache"
        );
    });
    drop(end);
    sleeper.join().expect("no panic");
    if spoke.is_some() {
        assert_eq!(memory.strong_count(), 0);
    }
}
