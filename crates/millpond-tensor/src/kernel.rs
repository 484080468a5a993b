//! Loops over contiguous elements, compiled for the vector instructions that the processor has.
//!
//! Every x86-64 processor has vectors of 16 bytes, and most have AVX2's of 32. The code checks this at run time. The arithmetic is
//! the same with both: products and sums are rounded separately and never fused, so the results are equal on all processors.
//!
//! All unsafe code of element-wise operations is in this file: the call of a function that is compiled for AVX2, and the conversion
//! of uninitialised memory to elements after a loop has written all of them.

use super::threads;
use bytemuck::AnyBitPattern;
use millpond_account::error::AllocError;
use millpond_pool::block::{ALIGN, Owner};
use millpond_pool::buffer::Buffer;
use std::mem::MaybeUninit;

/// A loop. Implementations are marked `#[inline(always)]`, because they are compiled for the vector instructions of the function
/// into which they are inlined.
pub(super) trait Kernel {
    type Output;

    fn run(self) -> Self::Output;
}

/// Runs a loop with the widest vectors that the processor has.
#[inline]
pub(super) fn run<K: Kernel>(kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { with_avx2(kernel) };
    }
    kernel.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn with_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run()
}

/// One operand: an element for each element of the output, or one for all.
#[derive(Clone, Copy)]
pub(super) enum Side<'a, T> {
    Each(&'a [T]),
    One(T),
}

impl<'a, T: Copy> Side<'a, T> {
    /// Splits the operand into its first `at` elements and the rest.
    fn split(self, at: usize) -> [Self; 2] {
        match self {
            Self::Each(each) => {
                let (first, second) = each.split_at(at.min(each.len()));
                [Self::Each(first), Self::Each(second)]
            }
            Self::One(one) => [Self::One(one); 2],
        }
    }

    /// Returns the number of output elements, at most `len`, for which the operand has an element.
    fn at_most(&self, len: usize) -> usize {
        match self {
            Self::Each(each) => each.len().min(len),
            Self::One(_) => len,
        }
    }
}

/// Computes `out = f(out, right)`.
struct Update<'a, T, F> {
    out: &'a mut [T],
    right: Side<'a, T>,
    f: F,
}

impl<T: Copy, F: Fn(T, T) -> T> Kernel for Update<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        match self.right {
            Side::Each(right) => {
                for (out, right) in self.out.iter_mut().zip(right) {
                    *out = (self.f)(*out, *right);
                }
            }
            Side::One(right) => {
                for out in self.out {
                    *out = (self.f)(*out, right);
                }
            }
        }
    }
}

/// Computes `out = f(out, right)`, element by element.
#[inline]
pub(super) fn update<T: Copy>(out: &mut [T], right: Side<'_, T>, f: impl Fn(T, T) -> T) {
    run(Update { out, right, f });
}

/// Computes `out = f(left, right)`. Writes every element of the output for which both operands have one.
struct Write<'a, A, B, R, F> {
    out: &'a mut [MaybeUninit<R>],
    left: Side<'a, A>,
    right: Side<'a, B>,
    f: F,
}

impl<A: Copy, B: Copy, R: Copy, F: Fn(A, B) -> R> Kernel for Write<'_, A, B, R, F> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        match (self.left, self.right) {
            (Side::Each(left), Side::Each(right)) => {
                for (out, (left, right)) in self.out.iter_mut().zip(left.iter().zip(right)) {
                    out.write((self.f)(*left, *right));
                }
            }
            (Side::Each(left), Side::One(right)) => {
                for (out, left) in self.out.iter_mut().zip(left) {
                    out.write((self.f)(*left, right));
                }
            }
            (Side::One(left), Side::Each(right)) => {
                for (out, right) in self.out.iter_mut().zip(right) {
                    out.write((self.f)(left, *right));
                }
            }
            (Side::One(left), Side::One(right)) => {
                for out in self.out {
                    out.write((self.f)(left, right));
                }
            }
        }
    }
}

/// Computes `out = f(left, right)`, element by element.
#[inline]
pub(super) fn write<A: Copy, B: Copy, R: Copy>(
    out: &mut [R],
    left: Side<'_, A>,
    right: Side<'_, B>,
    f: impl Fn(A, B) -> R,
) {
    let len = out.len();
    // SAFETY: `MaybeUninit<R>` has the layout of `R`, and the kernel writes only initialised elements.
    let out = unsafe { std::slice::from_raw_parts_mut(out.as_mut_ptr().cast::<MaybeUninit<R>>(), len) };
    run(Write { out, left, right, f });
}

/// Returns the result as a new buffer, which has the length of the shorter operand.
pub(super) fn make<T: AnyBitPattern + Send + Sync>(
    owner: Owner,
    left: &[T],
    right: Side<'_, T>,
    f: impl Fn(T, T) -> T + Copy + Send + Sync,
) -> Result<Buffer<T>, AllocError> {
    let len = right.at_most(left.len());
    let mut out = Buffer::<MaybeUninit<T>>::uninit(owner, len, ALIGN)?;
    let parts = threads::parts(out.bytes());
    write_parts(&mut out, Side::Each(left), right, f, parts);
    // SAFETY: every element was just written, because each operand has one for it.
    Ok(unsafe { out.assume_init() })
}

/// Computes the result in `parts` parallel parts. Writes every element of the output for which both operands have one.
fn write_parts<T: Copy + Send + Sync>(
    out: &mut [MaybeUninit<T>],
    left: Side<'_, T>,
    right: Side<'_, T>,
    f: impl Fn(T, T) -> T + Copy + Send + Sync,
    parts: usize,
) {
    if parts < 2 {
        return run(Write { out, left, right, f });
    }
    let (fewer, more) = (parts / 2, parts - parts / 2);
    let at = out.len() / parts * fewer;
    let (first, second) = out.split_at_mut(at);
    let ([left, left_rest], [right, right_rest]) = (left.split(at), right.split(at));
    threads::both(
        || write_parts(first, left, right, f, fewer),
        || write_parts(second, left_rest, right_rest, f, more),
    );
}
