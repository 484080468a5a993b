//! Where a thread is: the return addresses on its stack.
//!
//! ```text
//!   walker   one thread's: what it found the last time, and how much of that still holds
//!   code     what the process's code says of its frames
//! ```
//!
//! By `framehop` where there is a walker; by `backtrace`, which takes many times as long, on other processors and wherever the
//! walker does not come through.

#[cfg(all(feature = "stacks", target_arch = "x86_64", not(miri)))]
mod code;
#[cfg(all(feature = "stacks", target_arch = "x86_64", not(miri)))]
mod walker;

#[cfg(feature = "stacks")]
use std::sync::atomic::{AtomicU32, Ordering};

/// Shows return addresses of the caller, from the innermost, as many as `most` at most.
///
/// May allocate: to be called where that is neither told nor served by a pool that is looked at. Takes no lock but, now and then, the
/// loader's, and that never in a child of a fork, which would wait for ever for one that another thread held.
#[cfg(feature = "stacks")]
pub(crate) fn walk(most: usize, mut visit: impl FnMut(usize)) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if walker::walk(most, &mut visit) {
        return;
    }
    trace(most, visit);
}

/// Whether the loader can be asked. It has a lock, which another thread may have held when this process was forked: in a child it would be
/// waited for for ever.
#[cfg(feature = "stacks")]
pub(crate) fn may_ask_loader() -> bool {
    static FIRST: AtomicU32 = AtomicU32::new(0);
    let this = std::process::id();
    match FIRST.compare_exchange(0, this, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => true,
        Err(first) => first == this,
    }
}

/// The return addresses by `backtrace`, as [`walk`] shows them.
#[cfg(feature = "stacks")]
fn trace(most: usize, mut visit: impl FnMut(usize)) {
    let mut left = most;
    let each = |frame: &backtrace::Frame| {
        let address = frame.ip().addr();
        // Beyond the stack's end.
        if left > 0 && address != 0 {
            visit(address);
            left -= 1;
        }
        left > 0
    };
    // SAFETY: the lock is for systems whose unwinder is not made for several threads. Linux has libgcc's or LLVM's, which
    // are, and this module is for Linux only.
    unsafe { backtrace::trace_unsynchronized(each) };
}

#[cfg(all(test, feature = "stacks"))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::hint::black_box;

    /// The return addresses by both ways, without those of this function and further in.
    #[inline(never)]
    fn both(most: usize) -> [Vec<usize>; 2] {
        let (mut walked, mut traced) = (Vec::new(), Vec::new());
        walk(most, |address| walked.push(address));
        trace(usize::MAX, |address| traced.push(address));
        [walked, traced]
    }

    /// Frames that are asked for where not all are.
    const FEW: usize = 9;
    /// Frames at most that are of the ways themselves.
    const INNER: usize = 4;

    type Calls<'a> = std::slice::Iter<'a, u8>;

    /// Calls itself in three ways, each with a frame of its own size, and looks where it is on the way.
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
                // Innermost come the ways' own frames, and two calls of one function.
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
            // SAFETY: so many numbers of this size.
            unsafe { libc::qsort(numbers.as_mut_ptr().cast(), 2, 8, Some(compare)) };
        };
        sort();
        std::thread::spawn(sort).join().expect("it does not panic");
    }
}
