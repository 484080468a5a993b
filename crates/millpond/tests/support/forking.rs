//! Forks while other threads allocate, crossed with what a process may have beside its pool. Each combination runs in a process of
//! its own, and every child has an alarm: one that hangs is a failure.

use millpond::{Budget, Pool};
use std::future::Future;
use std::pin::pin;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

/// How many forks a combination makes.
const FORKS: &str = "MILLPOND_TEST_FORKS";
/// What is beside the pool, by name.
const BESIDE: &str = "MILLPOND_TEST_BESIDE";

/// What there is beside the pool, and the settings of a pool that has it.
const ALL: [(&str, &str); 5] = [
    ("nothing", ""),
    #[cfg(feature = "record")]
    ("recording", ""),
    ("budgets", ""),
    ("accounts", "track:all,stacks:on"),
    ("guard", "guard:on,quarantine:1MiB"),
    #[cfg(not(feature = "record"))]
    ("sampled accounts", "track:one-in=10"),
];

/// Runs an ignored test of this program, which calls [`run`], in a process for each combination.
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

/// Ends this process where it hangs.
fn alarm(seconds: u32) {
    // SAFETY: takes a number.
    unsafe { libc::alarm(seconds) };
}

/// Runs `work` in a child; answers how it ended.
fn in_child(work: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child uses pools, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        alarm(60);
        let fine = work();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!fine)) };
    }
    assert!(child > 0, "no fork");
    let mut status = -1;
    // SAFETY: waits for the child just made; the status is ours.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    status
}

/// Allocates blocks of several sizes, small, large and larger than a thread keeps, and finds them as they were written.
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
        // From the program's allocator as well, which may be the same pool.
        held.push((block, vec![round as u8; 1 + round % 300]));
        if held.len() == held.capacity() {
            let (block, other) = held.swap_remove(round * 31 % 16);
            whole &= block.iter().all(|byte| *byte == other[0]);
        }
    }
    whole
}

/// What a child is asked: figures, memory, trimming, and children of its own.
fn is_alive(pool: &Pool, depth: u32) -> bool {
    let before = pool.stats();
    let mine = churn(pool, 60);
    pool.trim();
    let after = pool.stats();
    let counts = after.allocations >= before.allocations + 60 && after.requested.peak > 0;
    mine && counts && (depth == 0 || in_child(|| is_alive(pool, depth - 1)) == 0)
}

/// Forks while three threads allocate; panics where a child does not end well.
pub(crate) fn run(pool: &Pool) {
    let forks: u32 = std::env::var(FORKS).map_or(12, |said| said.parse().expect("a number of forks"));
    alarm(180 + forks);
    let beside = std::env::var(BESIDE).expect("what is beside the pool");
    #[cfg(feature = "record")]
    let path = std::env::temp_dir().join(format!("millpond-forking-{}.mpr", std::process::id()));
    #[cfg(feature = "record")]
    let recorder = (beside == "recording").then(|| millpond::Recorder::start(&path).expect("a recording"));
    // Those that wait for it: another thread first, then this one, many times, which would fit and may not overtake.
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
        for fork in 0..forks {
            let status = in_child(|| {
                // The other thread does not wait in the child, and its place is given to four of this one's.
                let served = (budget.waiting(), woken.0.load(Ordering::Relaxed)) == (16, 4);
                (served || beside != "budgets") && is_alive(pool, 1)
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

/// How many of this thread's requests were woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Tells the others that it is over, on a panic too: the scope waits for them.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
