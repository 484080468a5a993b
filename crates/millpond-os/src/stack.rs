//! Reads the return addresses on a thread's stack.
//!
//! ```text
//!   walker   the frames of one thread's last walk, and how many of them are still valid
//!   code     the unwind information of the process's code
//! ```
//!
//! The walker uses `framehop`. On other processors, and if the walker fails, `backtrace` is used, which takes many
//! times as long.

#[cfg(all(feature = "stacks", target_arch = "x86_64", not(miri)))]
mod code;
#[cfg(all(feature = "stacks", target_arch = "x86_64", not(miri)))]
mod walker;

use std::ops::Range;
#[cfg(feature = "stacks")]
use std::sync::atomic::{AtomicU32, Ordering};

/// Visits the return addresses of the caller, from the innermost, at most `most`.
///
/// This may allocate, so the caller must ensure that the allocations are neither reported by nor served from an
/// observed pool. It takes no lock except, occasionally, the loader's lock. It never takes that one in a child of a
/// fork, which would wait forever if another thread held it at the fork.
#[cfg(feature = "stacks")]
pub fn walk(most: usize, mut visit: impl FnMut(usize)) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if walker::walk(most, &mut visit) {
        return;
    }
    trace(most, visit);
}

/// The maximum number of frames that [`walk_beyond`] leaves out.
const MOST_LEFT_OUT: usize = 16;

/// Visits return addresses like [`walk`], without the innermost frames whose code is in `left_out`. So a stack begins in the program and
/// not in the library that records it.
pub fn walk_beyond(left_out: &Range<u64>, most: usize, mut visit: impl FnMut(u64)) {
    let mut visited = 0;
    walk(most + MOST_LEFT_OUT, |address| {
        let address = address as u64;
        if visited < most && (visited > 0 || !left_out.contains(&address)) {
            visited += 1;
            visit(address);
        }
    });
}

/// Visits nothing: the feature `stacks` is off.
#[cfg(not(feature = "stacks"))]
pub fn walk(_most: usize, _visit: impl FnMut(usize)) {}

/// Returns true if the loader can be called. Another thread may have held the loader's lock when this process was
/// forked, and the child would wait for it forever.
#[cfg(feature = "stacks")]
pub fn may_ask_loader() -> bool {
    static FIRST: AtomicU32 = AtomicU32::new(0);
    let this = std::process::id();
    match FIRST.compare_exchange(0, this, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => true,
        Err(first) => first == this,
    }
}

/// Visits the return addresses found by `backtrace`, like [`walk`].
#[cfg(feature = "stacks")]
fn trace(most: usize, mut visit: impl FnMut(usize)) {
    let mut left = most;
    let each = |frame: &backtrace::Frame| {
        let address = frame.ip().addr();
        // A zero address is beyond the end of the stack.
        if left > 0 && address != 0 {
            visit(address);
            left -= 1;
        }
        left > 0
    };
    // SAFETY: the lock is for systems whose unwinder is not thread-safe. This module is for Linux only, whose unwinders
    // (libgcc's and LLVM's) are thread-safe.
    unsafe { backtrace::trace_unsynchronized(each) };
}

#[cfg(all(test, feature = "stacks"))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::hint::black_box;

    /// Returns the return addresses found by both methods, without the frames of this function and of the functions
    /// that it calls.
    #[inline(never)]
    fn both(most: usize) -> [Vec<usize>; 2] {
        let (mut walked, mut traced) = (Vec::new(), Vec::new());
        walk(most, |address| walked.push(address));
        trace(usize::MAX, |address| traced.push(address));
        [walked, traced]
    }

    /// The number of requested frames in tests that do not request all.
    const FEW: usize = 9;
    /// The maximum number of frames that belong to the methods themselves.
    const INNER: usize = 4;

    type Calls<'a> = std::slice::Iter<'a, u8>;

    /// Calls itself in three ways, with frames of different sizes, and checks the stack on the way.
    #[inline(never)]
    fn call(calls: &mut Calls<'_>, depth: usize, found: &mut Vec<[Vec<usize>; 2]>) -> u64 {
        let Some(way) = calls.next() else { return 0 };
        if depth > 60 {
            return 0;
        }
        let deeper: &mut dyn FnMut(&mut Calls<'_>, &mut Vec<_>) -> u64 =
            &mut |calls, found| call(calls, depth + 1, found);
        let sum = match way % 8 {
            0 | 1 => deeper(calls, found),
            2 | 3 => {
                let large = black_box([*way; 700]);
                deeper(calls, found) + u64::from(large[usize::from(*way)])
            }
            4 => [1, 2, 3].iter().map(|factor| factor * deeper(calls, found)).sum(),
            _ => {
                found.push(both(usize::MAX));
                found.push(both(FEW));
                return depth as u64;
            }
        };
        black_box(sum)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 200 }))]

        #[test]
        fn walks_find_what_backtrace_finds(ways in prop::collection::vec(any::<u8>(), 1..200)) {
            let mut calls = ways.iter();
            let mut found = Vec::new();
            while calls.len() > 0 {
                call(&mut calls, 0, &mut found);
            }
            for [walked, traced] in found {
                // The innermost frames belong to the methods, and to two calls of one function.
                let inner = walked.iter().position(|address| traced.contains(address));
                let inner = inner.unwrap_or(walked.len());
                prop_assert!(inner <= INNER, "{walked:x?}\n{traced:x?}");
                let from = traced.iter().position(|address| walked.get(inner) == Some(address));
                let expected = traced.get(from.unwrap_or(traced.len())..).unwrap_or_default();
                let outer = &walked[inner..];
                prop_assert!(expected.starts_with(outer), "{walked:x?}\n{traced:x?}");
                let whole = walked.len() != FEW;
                prop_assert!(!whole || expected == outer, "{walked:x?}\n{traced:x?}");
            }
        }
    }

    #[test]
    fn threads_and_foreign_code_are_walked() {
        extern "C" fn compare(_: *const libc::c_void, _: *const libc::c_void) -> libc::c_int {
            let [walked, traced] = both(usize::MAX);
            let same = walked.iter().filter(|address| traced.contains(address)).count();
            assert!(
                same + INNER >= walked.len() && same > 6,
                "{walked:x?}\n{traced:x?}"
            );
            0
        }
        let sort = || {
            let mut numbers = [2_u64, 1];
            // SAFETY: there are two numbers of eight bytes.
            unsafe { libc::qsort(numbers.as_mut_ptr().cast(), 2, 8, Some(compare)) };
        };
        sort();
        std::thread::spawn(sort).join().expect("it does not panic");
    }
}
