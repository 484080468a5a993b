//! Ends of threads, forks, and child processes.

use crate::{POOL, Stamped, forking};
use std::cell::RefCell;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

static ENDED: AtomicUsize = AtomicUsize::new(0);

/// Allocates and frees at the end of its thread.
struct Late(Vec<Stamped>);

impl Drop for Late {
    fn drop(&mut self) {
        self.0.iter().for_each(Stamped::check);
        let more: Vec<Stamped> = (0..100).map(|n| Stamped::new(n * 1000, n as u8)).collect();
        more.iter().for_each(Stamped::check);
        ENDED.fetch_add(1, Ordering::Relaxed);
    }
}

thread_local! {
    static LATE: RefCell<Option<Late>> = const { RefCell::new(None) };
}

/// The system calls this after all thread locals of Rust are dropped, and so after the pool's cache.
extern "C" fn last(block: *mut libc::c_void) {
    // SAFETY: `last_word` has stored a box, and the system calls this exactly once.
    drop(unsafe { Box::from_raw(block.cast::<Late>()) });
}

fn last_word() {
    static KEY: OnceLock<libc::pthread_key_t> = OnceLock::new();
    let key = *KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: the key is ours, and the function lives as long as the program.
        assert_eq!(unsafe { libc::pthread_key_create(&raw mut key, Some(last)) }, 0);
        key
    });
    let late = Box::new(Late(vec![Stamped::new(500, 3)]));
    // SAFETY: the key was made above.
    unsafe { libc::pthread_setspecific(key, Box::into_raw(late).cast()) };
}

#[test]
fn destructors_of_thread_locals_may_allocate_and_free() {
    let threads: Vec<_> = (0..20usize)
        .map(|thread| {
            std::thread::spawn(move || {
                last_word();
                LATE.set(Some(Late(
                    (0..50).map(|n| Stamped::new(n * thread, n as u8)).collect(),
                )));
            })
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().expect("no panic"));
    assert_eq!(ENDED.load(Ordering::Relaxed), 40);
}

fn work(rounds: usize) {
    let mut held = Vec::new();
    for round in 0..rounds {
        held.push(Stamped::new(1 + round * 7919 % 90_000, round as u8));
        if held.len() > 40 {
            held.swap_remove(round * 31 % 40).check();
        }
    }
    held.iter().for_each(Stamped::check);
}

/// Forks, runs `work` in the child, and returns the child's status.
fn fork(work: impl FnOnce()) -> i32 {
    // SAFETY: the child only uses memory and functions that are safe after a fork, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // A child that hangs is ended by the alarm, which its status shows.
        // SAFETY: the call takes only a number.
        unsafe { libc::alarm(20) };
        work();
        // SAFETY: the call ends the child at once.
        unsafe { libc::_exit(0) };
    }
    let mut status = -1;
    // SAFETY: waits for the child that was just made; the status is a local variable.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    status
}

#[test]
fn a_child_of_a_fork_allocates_and_frees() {
    let over = AtomicBool::new(false);
    let forks = match std::env::var_os("MILLPOND_TEST_ALL") {
        Some(_) => 60,
        None => 15,
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    work(200);
                    // New threads are new to the pool, and so are their ends.
                    std::thread::spawn(|| work(10)).join().expect("no panic");
                }
            });
        }
        let ends: Vec<i32> = (0..forks)
            .map(|round| {
                let mine = Stamped::new(100_000, round);
                fork(move || {
                    mine.check();
                    drop(mine);
                    work(300);
                    POOL.pool().expect("a pool").trim();
                })
            })
            .take_while(|end| *end == 0)
            .collect();
        over.store(true, Ordering::Relaxed);
        assert_eq!(ends.len(), usize::from(forks), "a child was ended");
    });
}

#[test]
fn a_thread_may_fork_at_its_end() {
    struct Forks;
    impl Drop for Forks {
        fn drop(&mut self) {
            assert_eq!(fork(|| work(50)), 0);
            ENDS.fetch_add(1, Ordering::Relaxed);
        }
    }
    static ENDS: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn forks(_: *mut libc::c_void) {
        drop(Forks);
    }
    std::thread::spawn(|| {
        let mut key = 0;
        // SAFETY: the key is ours, and the function lives as long as the program.
        assert_eq!(unsafe { libc::pthread_key_create(&raw mut key, Some(forks)) }, 0);
        // SAFETY: the key was made just now.
        unsafe { libc::pthread_setspecific(key, ptr::without_provenance(1)) };
    })
    .join()
    .expect("no panic");
    assert_eq!(ENDS.load(Ordering::Relaxed), 1);
}

#[test]
fn other_programs_are_started() {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                work(100);
            }
        });
        for round in 0..20 {
            let mut command = Command::new("/bin/echo");
            command.arg(round.to_string());
            if round % 2 == 0 {
                // This makes the standard library fork. Otherwise the system creates the child directly.
                // SAFETY: the child only allocates and frees, which is what this test covers.
                unsafe {
                    command.pre_exec(|| {
                        work(20);
                        Ok(())
                    })
                };
            }
            let output = command.output().expect("a child");
            assert_eq!(output.stdout, format!("{round}\n").as_bytes());
        }
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_child_of_threads_that_allocate_answers_trims_and_forks() {
    forking::in_processes("ends::alone_forks_while_threads_allocate");
}

#[test]
#[ignore = "for a process of its own"]
fn alone_forks_while_threads_allocate() {
    forking::run(POOL.pool().expect("it serves already"));
}
