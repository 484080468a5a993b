//! Functions of the caller that are applied to elements, chunks and batches: in place, into an output, or into a new tensor, on one
//! thread or on several.
//!
//! Large tensors are split into parts as in every operation (`threads`). If a function panics, the whole call panics after the
//! other parts have finished. The elements that were written remain, and the tensor can still be used.

use super::Tensor;
use super::arithmetic::Output;
use super::elementwise::{output, update, write};
use super::error::TensorError;
use super::expect;
use super::kernel::{self, Kernel};
use super::layout::broadcast;
use super::operand::{Operand, beside};
use super::threads;
use super::view::{TensorMut, TensorRef};
use super::walk::Walk;
use bytemuck::Pod;
use millpond_pool::dtype::Element;

/// Computes `x = f(x)` for each element of a view.
fn map<T: Pod>(mut out: TensorMut<'_>, mut f: impl FnMut(T) -> T) {
    let whole = *out.layout();
    let (out, walk) = (out.plain_mut::<T>(), Walk::in_any_order([&whole]));
    walk.rows(|[start]| match walk.strides {
        [1] => out[start..start + walk.len].iter_mut().for_each(|x| *x = f(*x)),
        [step] => (0..walk.len).for_each(|at| {
            let x = &mut out[start + at * step];
            *x = f(*x);
        }),
    });
}

/// Computes `out = f(x)` for each element of a view. Both views have the same shape.
fn map_to<T: Pod, R: Pod>(mut out: TensorMut<'_>, from: TensorRef<'_>, mut f: impl FnMut(T) -> R) {
    let whole = *out.layout();
    let walk = Walk::in_order([&whole, from.layout()]);
    let (out, from, len) = (out.plain_mut::<R>(), from.plain::<T>(), walk.len);
    walk.rows(|[to, at]| match walk.strides {
        [1, 1] => {
            let (out, from) = (&mut out[to..to + len], &from[at..at + len]);
            kernel::run(Row { out, from, f: &mut f });
        }
        [to_step, step] => {
            for nth in 0..len {
                out[to + nth * to_step] = f(from[at + nth * step]);
            }
        }
    });
}

/// Computes `out = f(x)` for contiguous elements.
struct Row<'a, T, R, F> {
    out: &'a mut [R],
    from: &'a [T],
    f: F,
}

impl<T: Copy, R, F: FnMut(T) -> R> Kernel for Row<'_, T, R, F> {
    type Output = ();

    #[inline(always)]
    fn run(mut self) {
        for (out, from) in self.out.iter_mut().zip(self.from) {
            *out = (self.f)(*from);
        }
    }
}

/// Returns the number of parts for a function of the caller. An element counts as a cache line, because a function takes longer
/// than an operation that waits for memory.
fn parts_of(len: usize) -> usize {
    threads::parts(len.saturating_mul(64))
}

macro_rules! maps {
    ($self:ident, $view:expr) => {
        /// Replaces each element by the result of a function, in place and in any order.
        ///
        /// # Errors
        /// Returns an error if the elements are not of type `T` or cannot be written.
        pub fn map_in_place<T: Element>(&mut $self, f: impl FnMut(T) -> T) -> Result<(), TensorError> {
            let view = $view;
            expect(T::DTYPE, view.dtype())?;
            map(view, f);
            Ok(())
        }

        /// Like [`map_in_place`](Self::map_in_place), but with the feature `rayon` on several threads if that is faster. Allocates
        /// nothing from a pool.
        ///
        /// ```
        /// let mut tensor = millpond::Tensor::arange(0.0f32, 6.0, 1.0)?.reshape([2, 3])?;
        /// let limit = 3.0;
        /// tensor.view_mut()?.transpose(0, 1)?.par_map_in_place(|x: f32| x.sqrt().min(limit))?;
        /// assert_eq!(tensor.get(&[1, 1])?.to_f64(), Some(2.0));
        /// # Ok::<(), millpond::TensorError>(())
        /// ```
        ///
        /// # Errors
        /// Returns an error if the elements are not of type `T` or cannot be written.
        pub fn par_map_in_place<T: Element>(
            &mut $self,
            f: impl Fn(T) -> T + Sync,
        ) -> Result<(), TensorError> {
            let view = $view;
            expect(T::DTYPE, view.dtype())?;
            let parts = parts_of(view.len());
            threads::share(view, [], parts, &|view, []| {
                map(view, &f);
                Ok(())
            })
        }

        /// Replaces each element by the result of a function of this element and the corresponding element of another tensor, in
        /// place, on several threads if that is faster. Allocates nothing from a pool. Both tensors may have strides.
        ///
        /// # Errors
        /// Returns an error if the elements of one of the tensors are not of type `T`, if the other tensor cannot be broadcast to
        /// this shape, or if this tensor cannot be written.
        pub fn par_zip_in_place<'b, T: Element>(
            &mut $self,
            other: impl Into<Operand<'b>>,
            f: impl Fn(T, T) -> T + Sync,
        ) -> Result<(), TensorError> {
            zip($view, &other.into(), f)
        }

        /// Calls a function with mutable views of consecutive parts of a dimension, the batches, on several threads at once. A
        /// batch has `size` indices, and the last may be smaller. The function also receives the number of the batch, from 0 on.
        ///
        /// ```
        /// use millpond::{DType, Tensor};
        ///
        /// let mut rows = Tensor::ones([5, 4], DType::F32)?;
        /// rows.par_for_each_batch(0, 2, |at, mut batch| batch.scal(at as f32))?;
        /// assert_eq!(rows.select(1, 0)?.to_vec::<f32>()?, [0.0, 0.0, 1.0, 1.0, 2.0]);
        /// # Ok::<(), millpond::TensorError>(())
        /// ```
        ///
        /// # Errors
        /// Returns an error if the dimension does not exist, if `size` is 0, if the batches are interleaved in memory
        /// ([`TensorError::Interleaved`]), or if this tensor cannot be written. Also returns an error that the function returned
        /// for a batch.
        pub fn par_for_each_batch(
            &mut $self,
            dim: usize,
            size: usize,
            f: impl Fn(usize, TensorMut<'_>) -> Result<(), TensorError> + Sync,
        ) -> Result<(), TensorError> {
            let mut view = $view;
            // All checks are made before the first batch.
            let batches = view.reborrow().batches(dim, size)?.len();
            each(view, (dim, size), 0..batches, threads::tasks(), &f)
        }

        /// Calls a function with slices of `size` elements, on several threads at once. The function also receives the index of the
        /// first element of the slice. The last slice may be smaller.
        ///
        /// ```
        /// let mut squares = millpond::Pool::host()?.alloc_zeroed::<u64>(10)?;
        /// let mut view = millpond::TensorMut::from_slice(&mut squares, [10])?;
        /// view.par_for_each_chunk(4, |first, chunk: &mut [u64]| {
        ///     chunk.iter_mut().enumerate().for_each(|(at, x)| *x = ((first + at) * (first + at)) as u64);
        /// })?;
        /// assert_eq!(squares[7..], [49, 64, 81]);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ///
        /// # Errors
        /// Returns an error if the elements are not of type `T` or not contiguous in memory, if `size` is 0, or if this tensor
        /// cannot be written.
        pub fn par_for_each_chunk<T: Element>(
            &mut $self,
            size: usize,
            f: impl Fn(usize, &mut [T]) + Sync,
        ) -> Result<(), TensorError> {
            let mut view = $view;
            let elements = view.as_mut_slice::<T>()?;
            let len = elements.len();
            let flat = TensorMut::from_slice(elements, [len])?;
            if size == 0 {
                return Err(TensorError::Zero { what: "the size of a chunk" });
            }
            each(flat, (0, size), 0..len.div_ceil(size), threads::tasks(), &|at, mut chunk| {
                f(at * size, chunk.as_mut_slice()?);
                Ok(())
            })
        }
    };
}

macro_rules! maps_out {
    ($self:ident, $view:expr) => {
        /// Applies a function to each element, in order, and returns the results as a new tensor of the same [pool](Tensor).
        /// The new elements may have another type.
        ///
        /// ```
        /// let words = millpond::Tensor::from_slice(&[3u8, 0, 200], [3])?.map(|x: u8| f32::from(x) / 255.0)?;
        /// assert_eq!((words.dtype(), words.get(&[1])?.to_f64()), (millpond::DType::F32, Some(0.0)));
        /// # Ok::<(), millpond::TensorError>(())
        /// ```
        ///
        /// # Errors
        /// Returns an error if the elements are not of type `T`, or if the memory for the new tensor cannot be allocated.
        pub fn map<T: Element, R: Element>(&$self, f: impl FnMut(T) -> R) -> Result<Tensor, TensorError> {
            map_new($view, f)
        }

        /// Applies a function to each element, in order, and writes the results to an output of the same shape. Allocates nothing.
        ///
        /// # Errors
        /// Returns an error if the elements or those of the output do not have the function's types, if the output has another
        /// shape, or if it cannot be written.
        pub fn map_into<T: Element, R: Element>(
            &$self,
            out: &mut impl Output,
            f: impl FnMut(T) -> R,
        ) -> Result<(), TensorError> {
            let (view, out) = ($view, out.output()?);
            expect(T::DTYPE, view.dtype())?;
            output("map_into", out.typed_shape(), R::DTYPE, view.shape())?;
            map_to(out, view, f);
            Ok(())
        }

        /// Like [`map_into`](Self::map_into), but in any order, and with the feature `rayon` on several threads if that is faster.
        ///
        /// ```
        /// use millpond::{DType, Tensor};
        ///
        /// let heights = Tensor::from_slice(&[1.5f32, -2.0, 0.5, 4.0], [2, 2])?;
        /// let mut above = Tensor::zeros([2, 2], DType::U8)?;
        /// heights.par_map_into(&mut above, |x: f32| u8::from(x > 1.0))?;
        /// assert_eq!(above.as_slice::<u8>()?, [1, 0, 0, 1]);
        /// # Ok::<(), millpond::TensorError>(())
        /// ```
        ///
        /// # Errors
        /// Returns the errors of [`map_into`](Self::map_into).
        pub fn par_map_into<T: Element, R: Element>(
            &$self,
            out: &mut impl Output,
            f: impl Fn(T) -> R + Sync,
        ) -> Result<(), TensorError> {
            let (view, out) = ($view, out.output()?);
            expect(T::DTYPE, view.dtype())?;
            output("par_map_into", out.typed_shape(), R::DTYPE, view.shape())?;
            let parts = parts_of(out.len());
            threads::share(out, [view], parts, &|out, [view]| {
                map_to(out, view, &f);
                Ok(())
            })
        }

        /// Applies a function to each pair of elements and writes the results to an output, in any order and on several threads if
        /// that is faster. Shapes are broadcast as in [`add_into`](Self::add_into). All three types may differ. Allocates nothing
        /// from a pool.
        ///
        /// ```
        /// use millpond::{DType, Tensor};
        ///
        /// let counts = Tensor::from_slice(&[1u32, 2, 3, 4], [2, 2])?;
        /// let weights = Tensor::from_slice(&[0.5f32, 2.0], [2])?;
        /// let mut sums = Tensor::zeros([2, 2], DType::F64)?;
        /// counts.par_zip_into(&weights, &mut sums, |n: u32, w: f32| f64::from(n) * f64::from(w))?;
        /// assert_eq!(sums.as_slice::<f64>()?, [0.5, 4.0, 1.5, 8.0]);
        /// # Ok::<(), millpond::TensorError>(())
        /// ```
        ///
        /// # Errors
        /// Returns an error if the elements of a tensor do not have the function's type, if the shapes cannot be broadcast, or if
        /// the output has another shape or cannot be written.
        pub fn par_zip_into<'b, A: Element, B: Element, R: Element>(
            &$self,
            other: impl Into<Operand<'b>>,
            out: &mut impl Output,
            f: impl Fn(A, B) -> R + Sync,
        ) -> Result<(), TensorError> {
            zip_to($view, &other.into(), out.output()?, &f)
        }
    };
}

/// Functions of the caller with results in another tensor.
impl Tensor {
    maps_out!(self, self.view()?);
}

/// Functions of the caller, as for a [`Tensor`].
impl TensorRef<'_> {
    maps_out!(self, *self);
}

/// Functions of the caller in place.
impl Tensor {
    maps!(self, self.view_mut()?);
}

/// Functions of the caller in place, as for a [`Tensor`].
impl TensorMut<'_> {
    maps!(self, self.reborrow());
}

fn map_new<T: Element, R: Element>(
    view: TensorRef<'_>,
    mut f: impl FnMut(T) -> R,
) -> Result<Tensor, TensorError> {
    expect(T::DTYPE, view.dtype())?;
    if view.is_contiguous() {
        let from = view.flat::<T>();
        let out = beside(view.home(), |place| Tensor::empty_in::<R>(place, view.shape()))?;
        return Ok(out.write_with(|at| f(from[at])));
    }
    let mut out = beside(view.home(), |place| {
        Tensor::zeros_in(place, view.shape(), R::DTYPE)
    })?;
    map_to(out.view_mut()?, view, f);
    Ok(out)
}

fn zip_to<A: Element, B: Element, R: Element>(
    one: TensorRef<'_>,
    other: &Operand<'_>,
    out: TensorMut<'_>,
    f: &(impl Fn(A, B) -> R + Sync),
) -> Result<(), TensorError> {
    let operation = "par_zip_into";
    expect(A::DTYPE, one.dtype())?;
    other.expect(operation, B::DTYPE, one.shape())?;
    let shape = broadcast(operation, one.shape(), other.shape())?;
    output(operation, out.typed_shape(), R::DTYPE, &shape)?;
    let one = one.with(one.layout().repeat_to(operation, &shape)?);
    let mut number = [0; 2];
    let other = other.repeated(operation, &mut number, B::DTYPE, out.layout())?;
    let parts = parts_of(out.len());
    threads::share(out, [one, other], parts, &|mut out, [one, other]| {
        let whole = *out.layout();
        let one = (one.plain(), one.layout());
        let other = (other.plain(), other.layout());
        write((out.plain_mut(), &whole), one, other, f);
        Ok(())
    })
}

fn zip<T: Element>(
    out: TensorMut<'_>,
    other: &Operand<'_>,
    f: impl Fn(T, T) -> T + Sync,
) -> Result<(), TensorError> {
    let operation = "par_zip_in_place";
    expect(T::DTYPE, out.dtype())?;
    other.expect(operation, out.dtype(), out.shape())?;
    let mut one = [0; 2];
    let other = other.repeated(operation, &mut one, out.dtype(), out.layout())?;
    let parts = parts_of(out.len());
    threads::share(out, [other], parts, &|mut out, [other]| {
        let whole = *out.layout();
        let other = (other.plain(), other.layout());
        update((out.plain_mut(), &whole), other, &f);
        Ok(())
    })
}

/// Calls a function with each of these batches, in at most `parts` parallel parts. The view begins with the first of them.
fn each(
    view: TensorMut<'_>,
    (dim, size): (usize, usize),
    batches: std::ops::Range<usize>,
    parts: usize,
    f: &(impl Fn(usize, TensorMut<'_>) -> Result<(), TensorError> + Sync),
) -> Result<(), TensorError> {
    if batches.len() < 2 {
        return if batches.is_empty() {
            Ok(())
        } else {
            f(batches.start, view)
        };
    }
    let (few, half) = (parts / 2, batches.len() / 2);
    let (first, second) = view.split_at(dim, half * size)?;
    let at = batches.start + half;
    let first = || each(first, (dim, size), batches.start..at, few, f);
    let second = || each(second, (dim, size), at..batches.end, parts - few, f);
    let (one, other) = if parts < 2 {
        (first(), second())
    } else {
        threads::both(first, second)
    };
    one.and(other)
}
