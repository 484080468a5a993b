//! The operations, implemented by each side.

use millpond::{Pool, Tensor, TensorError, tensor::Scalar};
use ndarray::{ArrayView1, ArrayViewMut1, Zip};
use std::hint::black_box;

/// The factor of multiplications.
const FACTOR: f32 = 0.5;
/// The number of parallel sums, so that a plain loop does not wait for one addition before the next.
const LANES: usize = 16;

/// Two inputs and an output of equal length.
pub(super) struct Arrays {
    pub(super) a: Tensor,
    pub(super) b: Tensor,
    out: Tensor,
}

impl Arrays {
    pub(super) fn new(pool: &Pool, len: usize) -> Result<Self, TensorError> {
        // Small whole numbers, so that sums are equal in any order as long as they are exact.
        let ramp = |step: usize| Tensor::from_fn_in(pool, [len], |at| (at[0] * step % 8) as f32);
        Ok(Self {
            a: ramp(3)?,
            b: ramp(5)?,
            out: Tensor::zeros_in(pool, [len], millpond::DType::F32)?,
        })
    }

    /// Returns both inputs and the output. An operation in place writes the first input.
    pub(super) fn slices(&mut self) -> Result<Slices<'_>, TensorError> {
        Ok((
            self.a.as_mut_slice()?,
            self.b.as_slice()?,
            self.out.as_mut_slice()?,
        ))
    }
}

/// Both inputs and the output. An operation in place writes the first input.
type Slices<'a> = (&'a mut [f32], &'a [f32], &'a mut [f32]);

/// An operation on slices: the first input, the second input and the output. An operation in place writes the first input.
/// Returns the result if it is a number, or 0.
type OnSlices = fn(&mut [f32], &[f32], &mut [f32]) -> f64;

/// An operation, implemented by all sides.
pub(super) struct Case {
    pub(super) name: &'static str,
    /// Bytes that must be moved for each element.
    pub(super) bytes: usize,
    tensor: fn(&mut Arrays) -> Result<f64, TensorError>,
    ndarray: OnSlices,
    plain: OnSlices,
}

/// The sides of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Tensor,
    Ndarray,
    Plain,
}

impl Side {
    pub(super) const ALL: [Self; 3] = [Self::Tensor, Self::Ndarray, Self::Plain];
}

impl Case {
    /// Returns the operation with this name.
    pub(super) fn named(name: &str) -> Result<&'static Self, String> {
        let found = CASES.iter().find(|case| case.name == name);
        found.ok_or_else(|| format!("there is no operation '{name}'"))
    }

    /// Calls the operation. Returns its result, or 0 if it is not a number.
    pub(super) fn call(&self, side: Side, arrays: &mut Arrays) -> Result<f64, TensorError> {
        let on_slices = match side {
            Side::Tensor => return (self.tensor)(arrays),
            Side::Ndarray => self.ndarray,
            Side::Plain => self.plain,
        };
        let (a, b, out) = arrays.slices()?;
        Ok(on_slices(a, b, out))
    }
}

fn sum_plain(a: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let (whole, rest) = a.as_chunks::<LANES>();
    for some in whole {
        for (sum, a) in lanes.iter_mut().zip(some) {
            *sum += a;
        }
    }
    lanes.iter().sum::<f32>() + rest.iter().sum::<f32>()
}

fn dot_plain(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for ((sum, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    lanes.iter().sum::<f32>() + rest
}

fn number(scalar: Scalar) -> f64 {
    scalar.to_f64().unwrap_or(f64::NAN)
}

/// Drops a result that is not a number, and returns 0.
fn done<T>(result: T) -> f64 {
    drop(black_box(result));
    0.0
}

fn view(slice: &[f32]) -> ArrayView1<'_, f32> {
    slice.into()
}

fn write(slice: &mut [f32]) -> ArrayViewMut1<'_, f32> {
    slice.into()
}

/// Replaces each element of the first slice by a function of itself and an element of the second one.
fn update(a: &mut [f32], b: &[f32], of: impl Fn(f32, f32) -> f32) -> f64 {
    for (a, b) in a.iter_mut().zip(b) {
        *a = of(*a, *b);
    }
    0.0
}

/// Writes a function of the elements of two slices to the third one.
fn combine(a: &[f32], b: &[f32], out: &mut [f32], of: impl Fn(f32, f32) -> f32) -> f64 {
    for (out, (a, b)) in out.iter_mut().zip(a.iter().zip(b)) {
        *out = of(*a, *b);
    }
    0.0
}

/// Does the same with `ndarray`.
fn combine_arrays(a: &[f32], b: &[f32], out: &mut [f32], of: impl Fn(f32, f32) -> f32) -> f64 {
    let zip = Zip::from(write(out)).and(view(a)).and(view(b));
    zip.for_each(|out, a, b| *out = of(*a, *b));
    0.0
}

/// Collects the results of a function of the elements of two slices.
fn collect(a: &[f32], b: &[f32], of: impl Fn(f32, f32) -> f32) -> f64 {
    done(a.iter().zip(b).map(|(a, b)| of(*a, *b)).collect::<Vec<f32>>())
}

pub(super) const COPY: &str = "copy";
pub(super) const TRIAD: &str = "triad";

pub(super) const CASES: [Case; 13] = [
    Case {
        name: COPY,
        bytes: 12,
        tensor: |x| x.out.copy_from(&x.a).map(done),
        ndarray: |a, _, out| {
            write(out).assign(&view(a));
            0.0
        },
        // This is not `copy_from_slice`, which may bypass the caches.
        plain: |a, _, out| update(out, a, |_, a| a + 0.0),
    },
    Case {
        name: TRIAD,
        bytes: 16,
        tensor: |x| x.a.add_scaled_into(FACTOR, &x.b, &mut x.out).map(done),
        ndarray: |a, b, out| combine_arrays(a, b, out, |a, b| a + FACTOR * b),
        plain: |a, b, out| combine(a, b, out, |a, b| a + FACTOR * b),
    },
    Case {
        name: "axpy in place",
        bytes: 12,
        tensor: |x| x.a.axpy(FACTOR, &x.b).map(done),
        ndarray: |a, b, _| {
            write(a).scaled_add(FACTOR, &view(b));
            0.0
        },
        plain: |a, b, _| update(a, b, |a, b| a + FACTOR * b),
    },
    Case {
        name: "axpy new",
        bytes: 16,
        tensor: |x| x.a.add_scaled(FACTOR, &x.b).map(done),
        ndarray: |a, b, _| done(&view(a) + FACTOR * &view(b)),
        plain: |a, b, _| collect(a, b, |a, b| a + FACTOR * b),
    },
    Case {
        name: "scal in place",
        bytes: 8,
        tensor: |x| x.a.scal(FACTOR).map(done),
        ndarray: |a, _, _| {
            let mut a = write(a);
            a *= FACTOR;
            0.0
        },
        plain: |a, _, _| {
            a.iter_mut().for_each(|a| *a *= FACTOR);
            0.0
        },
    },
    Case {
        name: "scal into",
        bytes: 12,
        tensor: |x| x.a.mul_into(FACTOR, &mut x.out).map(done),
        ndarray: |a, _, out| {
            Zip::from(write(out))
                .and(view(a))
                .for_each(|out, a| *out = FACTOR * a);
            0.0
        },
        plain: |a, _, out| update(out, a, |_, a| FACTOR * a),
    },
    Case {
        name: "scal new",
        bytes: 12,
        tensor: |x| x.a.mul(FACTOR).map(done),
        ndarray: |a, _, _| done(&view(a) * FACTOR),
        plain: |a, _, _| done(a.iter().map(|a| FACTOR * a).collect::<Vec<f32>>()),
    },
    Case {
        name: "add in place",
        bytes: 12,
        tensor: |x| x.a.add_assign(&x.b).map(done),
        ndarray: |a, b, _| {
            write(a).zip_mut_with(&view(b), |a, b| *a += b);
            0.0
        },
        plain: |a, b, _| update(a, b, |a, b| a + b),
    },
    Case {
        name: "add into",
        bytes: 16,
        tensor: |x| x.a.add_into(&x.b, &mut x.out).map(done),
        ndarray: |a, b, out| combine_arrays(a, b, out, |a, b| a + b),
        plain: |a, b, out| combine(a, b, out, |a, b| a + b),
    },
    Case {
        name: "add new",
        bytes: 16,
        tensor: |x| x.a.add(&x.b).map(done),
        ndarray: |a, b, _| done(&view(a) + &view(b)),
        plain: |a, b, _| collect(a, b, |a, b| a + b),
    },
    Case {
        name: "add of two products",
        bytes: 16,
        // The cost of temporaries: the tensor needs two passes, ndarray three, and the plain loop one.
        tensor: |x| {
            x.a.mul_into(FACTOR, &mut x.out)?;
            x.out.axpy(FACTOR, &x.b).map(done)
        },
        ndarray: |a, b, _| done(&view(a) * FACTOR + &view(b) * FACTOR),
        plain: |a, b, out| combine(a, b, out, |a, b| a * FACTOR + b * FACTOR),
    },
    Case {
        name: "sum",
        bytes: 4,
        tensor: |x| x.b.sum().map(number),
        ndarray: |_, b, _| f64::from(view(b).sum()),
        plain: |_, b, _| f64::from(sum_plain(b)),
    },
    Case {
        name: "dot",
        bytes: 8,
        tensor: |x| x.a.dot(&x.b).map(number),
        ndarray: |a, b, _| f64::from(view(a).dot(&view(b))),
        plain: |a, b, _| f64::from(dot_plain(a, b)),
    },
];
