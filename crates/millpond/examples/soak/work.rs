//! The work of a thread, and of a child process.

use millpond::{Buffer, Pool, Tenant};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The number of steps of a thread, and the maximum number of bytes that it holds.
const LIFE: u64 = 20_000;
const MOST: usize = 24 << 20;
/// The maximum number of blocks in transit to another thread.
const ON_THE_WAY: usize = 64;

/// Blocks that one thread has allocated and another frees.
#[derive(Default)]
pub(crate) struct Post(Mutex<Vec<Buffer<u8>>>);

impl Post {
    fn send(&self, buffer: Buffer<u8>) {
        let mut post = self.0.lock().expect("no panic");
        let oldest = (post.len() >= ON_THE_WAY).then(|| post.swap_remove(0));
        post.push(buffer);
        drop(post);
        drop(oldest.map(check));
    }

    fn receive(&self) -> Option<Buffer<u8>> {
        self.0.lock().expect("no panic").pop()
    }

    pub(crate) fn empty(&self) {
        let all = std::mem::take(&mut *self.0.lock().expect("no panic"));
        all.into_iter().map(check).for_each(drop);
    }
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    fn bytes(&mut self) -> usize {
        let log = match self.below(100) {
            0..70 => self.below(12),
            70..95 => self.below(17),
            _ => self.below(22),
        };
        (1 << log) + self.below(1 << log) as usize
    }
}

fn mark(mut buffer: Buffer<u8>) -> Buffer<u8> {
    let value = buffer.as_ptr().addr().wrapping_div(64) as u8;
    let last = buffer.len() - 1;
    assert!(buffer[0] == 0 && buffer[last] == 0);
    (buffer[0], buffer[last]) = (value, value);
    buffer
}

fn check(buffer: Buffer<u8>) -> Buffer<u8> {
    let value = buffer.as_ptr().addr().wrapping_div(64) as u8;
    assert_eq!([buffer[0], buffer[buffer.len() - 1]], [value; 2]);
    buffer
}

/// Runs the work of a thread. Returns the number of its steps.
pub(crate) fn worker(pool: &Pool, tenant: &Tenant, post: &Post, over: &AtomicBool, seed: u64) -> u64 {
    let mut dice = Dice(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut held: Vec<Buffer<u8>> = Vec::new();
    let mut bytes = 0;
    let mut steps = 0;
    while steps < LIFE && !over.load(Ordering::Relaxed) {
        steps += 1;
        match dice.below(10_000) {
            0..4900 => {
                let asked = dice.bytes();
                let outcome = if dice.below(4) == 0 {
                    tenant.alloc_zeroed(asked)
                } else {
                    pool.alloc_zeroed(asked)
                };
                // The tenant's budget may refuse.
                if let Ok(buffer) = outcome {
                    bytes += buffer.len();
                    held.push(mark(buffer));
                }
            }
            4900..8500 if !held.is_empty() => {
                let buffer = held.swap_remove(dice.below(held.len() as u64) as usize);
                bytes -= buffer.len();
                drop(check(buffer));
            }
            8500..9200 if !held.is_empty() => {
                let buffer = held.swap_remove(dice.below(held.len() as u64) as usize);
                bytes -= buffer.len();
                post.send(buffer);
            }
            9200..9900 => drop(post.receive().map(check)),
            9990..9995 => pool.trim(),
            9995..9997 => {
                _ = pool.compact();
            }
            9997..9999 => pool.collect_garbage(),
            9999 => {
                _ = pool.stats();
            }
            _ => {}
        }
        while bytes > MOST {
            let buffer = held.swap_remove(dice.below(held.len() as u64) as usize);
            bytes -= buffer.len();
            drop(check(buffer));
        }
    }
    held.into_iter().map(check).for_each(drop);
    steps
}

/// Forks a child process that uses the pool.
pub(crate) fn child(pool: &Pool) -> Result<(), String> {
    // SAFETY: the child only uses the pool and functions that are safe after a fork, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // A child that hangs is ended by the alarm, which its status shows.
        // SAFETY: the call takes only a number.
        unsafe { libc::alarm(20) };
        let served = [64, 5000, 100_000, 3 << 20].map(|bytes| pool.alloc_raw(bytes, 64));
        let mut fine = true;
        for raw in served {
            // SAFETY: nothing uses the block.
            fine &= raw.is_ok_and(|raw| unsafe { pool.free_raw(raw.cast()) }.is_ok());
        }
        pool.trim();
        fine &= pool.stats().kept == 0;
        // SAFETY: the call ends the child at once.
        unsafe { libc::_exit(i32::from(!fine)) };
    }
    let mut status = -1;
    // SAFETY: waits for the child that was just made; the status is a local variable.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    if child < 0 || status != 0 {
        return Err(format!("a child ended with {status}"));
    }
    Ok(())
}
