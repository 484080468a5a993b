//! Guarded blocks end a process at the invalid access. Each case runs this program as a child process. Its allocator is
//! the program's pool, which the last case guards as well.

#![cfg(target_os = "linux")]

#[path = "support/child.rs"]
mod parts;

use millpond::{GlobalPool, Pool, guard::describe_fault};
use std::hint::black_box;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::ptr;

#[global_allocator]
static ALLOCATOR: GlobalPool = GlobalPool::new();

fn child(name: &str, conf: &str) -> Output {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.args(["--ignored", "--exact", "--nocapture", "--test-threads=1", name]);
    parts::ends(&mut command)
        .env("MILLPOND_CONF", conf)
        .output()
        .expect("a child")
}

/// Returns the output of a child up to an invalid access, and the output of its signal handler.
fn dies(name: &str) -> String {
    let output = child(name, "trim-every:off");
    let said = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{said}\n{error}");
    assert!(said.contains("so far all is well"), "{said}\n{error}");
    assert!(!said.contains("still here"), "{said}");
    error
}

#[test]
fn a_write_past_the_end_ends_the_process() {
    let error = dies("alone_writes_past_the_end");
    assert!(error.contains("0 B past the end of 4096 B"), "{error}");
    assert!(
        error.contains("live; allocated by thread") && error.contains("tag rows"),
        "{error}"
    );
}

#[test]
fn a_read_past_the_end_ends_the_process() {
    let error = dies("alone_reads_past_the_end");
    assert!(error.contains("60 B past the end of 1000004 B"), "{error}");
}

#[test]
fn a_use_after_free_ends_the_process() {
    let error = dies("alone_reads_after_free");
    assert!(error.contains("500 B into 1000 B"), "{error}");
    assert!(
        error.contains("freed; allocated by thread") && error.contains("; freed by thread"),
        "{error}"
    );
}

#[test]
fn a_child_of_a_fork_is_guarded_as_well() {
    let error = dies("alone_forks_and_reads_after_free");
    assert!(error.contains("7 B into 300 B"), "{error}");
}

#[test]
fn a_whole_program_may_be_guarded() {
    let output = child("alone_works", "guard:on,quarantine:4MiB");
    let said = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}\n{error}"
    );
    assert!(!error.contains("overrun") && !error.contains("wrong"), "{error}");
}

#[test]
fn a_whole_program_is_stopped() {
    let output = child("alone_overruns_a_vector", "guard:on");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("overrun: a write 2 B past the end"), "{error}");
    assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{error}");
    assert!(error.contains("0 B past the end of 64 B"), "{error}");
}

/// Installs a handler as a program would.
fn watch_faults() {
    extern "C" fn fault(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the system passes a valid record to a handler of SIGSEGV.
        let info = unsafe { &*info };
        // SAFETY: the record of a SIGSEGV has an address.
        let address = unsafe { info.si_addr() };
        match describe_fault(address.addr()) {
            Some(report) => report.say(),
            None => eprintln!("not ours: {address:?}"),
        }
        // SAFETY: the default action of the signal happens at the next access.
        unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
    }
    // SAFETY: a zeroed record is valid and has no flags.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = fault as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the record lives through the call, and the handler as long as the program.
    let set = unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, ptr::null_mut()) };
    assert_eq!(set, 0);
}

fn guarded() -> Pool {
    watch_faults();
    Pool::builder().guard(true).host().expect("a pool")
}

fn write(at: *mut u8) {
    // SAFETY: none, unless the byte belongs to the child. The access is the error for which the child is stopped.
    unsafe { at.write_volatile(1) };
}

fn read(at: *const u8) -> u8 {
    // SAFETY: the same as for writing.
    black_box(unsafe { at.read_volatile() })
}

#[test]
#[ignore = "dies"]
fn alone_writes_past_the_end() {
    let pool = guarded();
    let _scope = millpond::tag("rows");
    let mut block = pool.alloc_zeroed::<u8>(4096).expect("room");
    write(block.as_mut_ptr().wrapping_add(4095));
    println!("so far all is well");
    write(block.as_mut_ptr().wrapping_add(4096));
    println!("still here");
}

#[test]
#[ignore = "dies"]
fn alone_reads_past_the_end() {
    let pool = guarded();
    let block = pool.alloc_zeroed::<u8>(1_000_004).expect("room");
    // The readable bytes end at a multiple of 64.
    assert_ne!(read(block.as_ptr().wrapping_add(1_000_004)), 0, "filled");
    read(block.as_ptr().wrapping_add(1_000_063));
    println!("so far all is well");
    read(block.as_ptr().wrapping_add(1_000_064));
    println!("still here");
}

#[test]
#[ignore = "dies"]
fn alone_reads_after_free() {
    let pool = guarded();
    let block = pool.alloc_zeroed::<u8>(1000).expect("room");
    let stale = block.as_ptr();
    assert_eq!(read(stale.wrapping_add(500)), 0);
    std::thread::spawn(move || drop(block)).join().expect("freed");
    println!("so far all is well");
    read(stale.wrapping_add(500));
    println!("still here");
}

#[test]
#[ignore = "dies"]
fn alone_forks_and_reads_after_free() {
    let pool = guarded();
    let block = pool.alloc_zeroed::<u8>(300).expect("room");
    let stale = block.as_ptr();
    // SAFETY: the child allocates, frees and dies.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let other = pool.alloc_zeroed::<u8>(5000).expect("room");
        drop(block);
        drop(other);
        read(stale.wrapping_add(7));
        // SAFETY: the call ends the child at once.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: waits for the child that was just made; the status is a local variable.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV);
    assert_eq!(read(stale.wrapping_add(7)), 0, "the parent's is live");
    println!("so far all is well");
    drop(block);
    read(stale.wrapping_add(7));
    println!("still here");
}

/// A program in which every block is guarded, including those freed in the pool's cold path.
#[test]
#[ignore = "all of the program's blocks are guarded"]
fn alone_works() {
    let own = ALLOCATOR.pool().expect("it serves");
    assert!(own.guard_stats().is_some_and(|stats| stats.blocks > 10));
    let words: Vec<String> = (0..3000).map(|n| n.to_string()).collect();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let words = words.clone();
            std::thread::spawn(move || {
                let mut sorted = words;
                sorted.sort();
                sorted.iter().map(String::len).sum::<usize>()
            })
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().expect("no panic"), 10 + 180 + 2700 + 8000);
    }
    let pool = Pool::host().expect("a pool");
    for bytes in [1, 1000, 70_000] {
        drop(pool.alloc_zeroed::<u8>(bytes).expect("room"));
    }
    pool.subscribe(|_: &millpond::Event<'_>| drop(black_box(Box::new(7u8))));
    drop(pool.alloc_zeroed::<u8>(1000).expect("room"));
    drop(pool);
    let stats = own.guard_stats().expect("it guards");
    assert!(
        stats.quarantined_bytes <= 4 << 20 && stats.unfenced == 0,
        "{stats:?}"
    );
    own.trim();
}

#[test]
#[ignore = "dies"]
fn alone_overruns_a_vector() {
    watch_faults();
    let mut short = black_box(vec![0u8; 61]);
    write(short.as_mut_ptr().wrapping_add(61 + 2));
    write(short.as_mut_ptr().wrapping_add(61));
    // SAFETY: none: the byte is past the vector. The filler is restored, so that the third byte is the first that differs.
    unsafe { short.as_mut_ptr().wrapping_add(61).write(0xfd) };
    drop(short);
    let mut whole = black_box(vec![0u8; 64]);
    write(whole.as_mut_ptr().wrapping_add(64));
}
