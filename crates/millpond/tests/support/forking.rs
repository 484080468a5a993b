//! Forks while other threads allocate, in combination with other features that a process may use. Each combination runs in its own
//! process. Every child has an alarm, so a child that hangs is a failure.

use millpond::{Budget, Pool, profiler};
use std::future::Future;
use std::pin::pin;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

/// The variable with the number of forks of a combination.
const FORKS: &str = "MILLPOND_TEST_FORKS";
/// The variable with the name of the feature that is used together with the pool.
const BESIDE: &str = "MILLPOND_TEST_BESIDE";

/// The features that are used together with the pool, with the settings of the pool.
const ALL: [(&str, &str); 6] = [
    ("nothing", ""),
    #[cfg(feature = "record")]
    ("recording", ""),
    ("budgets", ""),
    ("accounts", "track:all,stacks:on"),
    ("profiling", ""),
    ("guard", "guard:on,quarantine:1MiB"),
    #[cfg(not(feature = "record"))]
    ("sampled accounts", "track:one-in=10"),
];

/// Runs an ignored test of this program in one process for each combination. The test calls [`run`].
pub(crate) fn in_processes(test: &str) {
    let program = std::env::current_exe().expect("this program");
    for (beside, settings) in ALL {
        let mut command = Command::new(&program);
        command.args(["--ignored", "--exact", "--nocapture", "--test-threads=1", test]);
        command.env(BESIDE, beside).env("MILLPOND_CONF", settings);
        let output = command.output().expect("a process");
        let [text, error] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        let fine = output.status.success() && text.contains("1 passed");
        assert!(fine, "beside {beside}: {:?}\n{text}\n{error}", output.status);
        print!(
            "{}",
            text.lines()
                .find(|line| line.contains("forks beside"))
                .unwrap_or_default()
        );
        println!();
    }
}

/// Makes the system kill this process after `seconds`.
fn alarm(seconds: u32) {
    // SAFETY: the call takes only a number.
    unsafe { libc::alarm(seconds) };
}

/// Runs `work` in a forked child. Returns the child's status.
fn in_child(work: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child only uses pools, and ends with `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        alarm(60);
        let fine = work();
        // SAFETY: the call only ends the child.
        unsafe { libc::_exit(i32::from(!fine)) };
    }
    assert!(child > 0, "no fork");
    let mut status = -1;
    // SAFETY: the child was just forked, and `status` is a local.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    status
}

/// Allocates small blocks, large blocks, and blocks larger than a thread's cache keeps. Returns whether all keep their contents.
fn churn(pool: &Pool, rounds: usize) -> bool {
    let mut held = Vec::with_capacity(16);
    let mut whole = true;
    for round in 0..rounds {
        let bytes = match round % 50 {
            0 => 3 << 20,
            step if step % 10 == 1 => 70_000,
            step => 1 + step * 137 % 5000,
        };
        let Ok(mut block) = pool.alloc_zeroed::<u8>(bytes) else {
            return false;
        };
        whole &= block.iter().all(|byte| *byte == 0);
        block.fill(round as u8);
        // Also allocates from the global allocator, which may be the same pool.
        held.push((block, vec![round as u8; 1 + round % 300]));
        if held.len() == held.capacity() {
            let (block, other) = held.swap_remove(round * 31 % 16);
            whole &= block.iter().all(|byte| *byte == other[0]);
        }
    }
    whole
}

/// Returns whether a child can read statistics, allocate, trim, and fork its own children.
fn is_alive(pool: &Pool, depth: u32) -> bool {
    let before = pool.stats();
    let mine = churn(pool, 60);
    pool.trim();
    let after = pool.stats();
    let counts = after.allocations >= before.allocations + 60 && after.requested.peak > 0;
    mine && counts && (depth == 0 || in_child(|| is_alive(pool, depth - 1)) == 0)
}

/// Turns the profiler of the process on and off, which asks all pools for their statistics. Returns whether it was on.
fn profile() -> bool {
    profiler().enable();
    let on = profiler().is_enabled();
    drop(profiler().report());
    profiler().disable();
    on
}

/// Forks while three threads allocate. Panics if a child fails.
pub(crate) fn run(pool: &Pool) {
    let is_long = std::env::var_os("MILLPOND_TEST_ALL").is_some();
    let forks: u32 = std::env::var(FORKS).map_or(if is_long { 12 } else { 3 }, |said| {
        said.parse().expect("a number of forks")
    });
    alarm(180 + forks);
    let beside = std::env::var(BESIDE).expect("what is beside the pool");
    #[cfg(feature = "record")]
    let path = std::env::temp_dir().join(format!("millpond-forking-{}.mpr", std::process::id()));
    #[cfg(feature = "record")]
    let recorder = (beside == "recording").then(|| millpond::Recorder::start(&path).expect("a recording"));
    // The first request in the budget's queue is of another thread. Many requests of this thread follow. They would fit, but must not
    // overtake the first.
    let budget = Budget::builder("full").limit(100).build().expect("a budget");
    let held = budget.charge(60).expect("room");
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    let mut waits: Vec<_> = (0..20).map(|_| Box::pin(budget.charge_async(10))).collect();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let over = Over(&over);
        for _ in 0..3 {
            scope.spawn(|| {
                while !over.0.load(Ordering::Relaxed) {
                    assert!(churn(pool, 100));
                }
            });
        }
        if beside == "budgets" {
            let (budget, over) = (&budget, over.0);
            scope.spawn(move || {
                let mut first = pin!(budget.charge_async(80));
                let mut context = Context::from_waker(Waker::noop());
                assert!(first.as_mut().poll(&mut context).is_pending());
                while !over.load(Ordering::Relaxed) {
                    drop(budget.charge_timeout(41, Duration::from_millis(1)));
                }
            });
            while budget.waiting() == 0 {
                thread::yield_now();
            }
            for wait in &mut waits {
                assert!(wait.as_mut().poll(&mut context).is_pending());
            }
        }
        if beside == "profiling" {
            scope.spawn(|| {
                while !over.0.load(Ordering::Relaxed) {
                    assert!(profile());
                }
            });
        }
        for fork in 0..forks {
            let status = in_child(|| {
                // The other thread does not exist in the child. The room is given to four requests of this thread.
                let served = (budget.waiting(), woken.0.load(Ordering::Relaxed)) == (16, 4);
                let profiled = beside != "profiling" || profile();
                (served || beside != "budgets") && profiled && is_alive(pool, 1)
            });
            assert_eq!(status, 0, "child {fork} of {forks} beside {beside}");
        }
        println!("{forks} forks beside {beside}");
    });
    drop((waits, held));
    #[cfg(feature = "record")]
    if let Some(recorder) = recorder {
        let report = recorder.stop().expect("it is written");
        std::fs::remove_file(&path).expect("a file");
        assert!(report.events > 0);
    }
}

/// The number of this thread's requests that were woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Tells the other threads to stop, also on a panic, because the scope waits for them.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
