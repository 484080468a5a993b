//! The operations, implemented by each side.

use millpond::{Pool, Tensor, TensorError};
use ndarray::{ArrayView1, ArrayViewMut1, Zip};
use std::hint::black_box;

/// The factor of multiplications.
const FACTOR: f32 = 0.5;
/// The number of parallel sums, so that a plain loop does not wait for one addition before the next.
const LANES: usize = 16;

/// The first input, which is written in place; the second input; and the output.
pub(super) type Slices<'a> = (&'a mut [f32], &'a [f32], &'a mut [f32]);

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

    pub(super) fn slices(&mut self) -> Result<Slices<'_>, TensorError> {
        Ok((
            self.a.as_mut_slice()?,
            self.b.as_slice()?,
            self.out.as_mut_slice()?,
        ))
    }
}

/// One side of a comparison. Returns its result if it is a number.
pub(super) type Side = fn(&mut Arrays) -> Result<f64, TensorError>;

/// An operation with all sides.
pub(super) struct Case {
    pub(super) name: &'static str,
    /// Bytes that must be moved for each element.
    pub(super) bytes: usize,
    pub(super) tensor: Side,
    pub(super) ndarray: Side,
    pub(super) plain: Side,
}

fn sum_plain(a: &[f32], of: impl Fn(usize, f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let (whole, rest) = a.as_chunks::<LANES>();
    for (chunk, some) in whole.iter().enumerate() {
        for (lane, (sum, a)) in lanes.iter_mut().zip(some).enumerate() {
            *sum += of(chunk * LANES + lane, *a);
        }
    }
    let first = a.len() - rest.len();
    let rest: f32 = rest.iter().enumerate().map(|(at, a)| of(first + at, *a)).sum();
    lanes.iter().sum::<f32>() + rest
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

fn number(scalar: millpond::Scalar) -> f64 {
    scalar.to_f64().unwrap_or(f64::NAN)
}

pub(super) const COPY: &str = "copy";
pub(super) const TRIAD: &str = "triad";

pub(super) const CASES: [Case; 13] = [
    Case {
        name: COPY,
        bytes: 12,
        tensor: |x| x.out.copy_from(&x.a).map(|()| 0.0),
        ndarray: |x| {
            let (a, _, out) = x.slices()?;
            ArrayViewMut1::from(out).assign(&ArrayView1::from(&*a));
            Ok(0.0)
        },
        plain: |x| {
            let (a, _, out) = x.slices()?;
            // This is not `copy_from_slice`, which may bypass the caches.
            for (out, a) in out.iter_mut().zip(&*a) {
                *out = *a + 0.0;
            }
            Ok(0.0)
        },
    },
    Case {
        name: TRIAD,
        bytes: 16,
        tensor: |x| x.a.add_scaled_into(FACTOR, &x.b, &mut x.out).map(|()| 0.0),
        ndarray: |x| {
            let (a, b, out) = x.slices()?;
            let zip = Zip::from(ArrayViewMut1::from(out)).and(ArrayView1::from(&*a));
            zip.and(ArrayView1::from(b))
                .for_each(|out, a, b| *out = a + FACTOR * b);
            Ok(0.0)
        },
        plain: |x| {
            let (a, b, out) = x.slices()?;
            for (out, (a, b)) in out.iter_mut().zip(a.iter().zip(b)) {
                *out = a + FACTOR * b;
            }
            Ok(0.0)
        },
    },
    Case {
        name: "axpy in place",
        bytes: 12,
        tensor: |x| x.a.axpy(FACTOR, &x.b).map(|()| 0.0),
        ndarray: |x| {
            let (a, b, _) = x.slices()?;
            ArrayViewMut1::from(a).scaled_add(FACTOR, &ArrayView1::from(b));
            Ok(0.0)
        },
        plain: |x| {
            let (a, b, _) = x.slices()?;
            for (a, b) in a.iter_mut().zip(b) {
                *a += FACTOR * b;
            }
            Ok(0.0)
        },
    },
    Case {
        name: "axpy new",
        bytes: 16,
        tensor: |x| {
            x.a.add_scaled(FACTOR, &x.b)
                .map(|new| drop(black_box(new)))
                .map(|()| 0.0)
        },
        ndarray: |x| {
            let (a, b, _) = x.slices()?;
            let (a, b) = (ArrayView1::from(&*a), ArrayView1::from(b));
            drop(black_box(&a + FACTOR * &b));
            Ok(0.0)
        },
        plain: |x| {
            let (a, b, _) = x.slices()?;
            let new: Vec<f32> = a.iter().zip(b).map(|(a, b)| a + FACTOR * b).collect();
            drop(black_box(new));
            Ok(0.0)
        },
    },
    Case {
        name: "scal in place",
        bytes: 8,
        tensor: |x| x.a.scal(FACTOR).map(|()| 0.0),
        ndarray: |x| {
            let (a, _, _) = x.slices()?;
            let mut a = ArrayViewMut1::from(a);
            a *= FACTOR;
            Ok(0.0)
        },
        plain: |x| {
            let (a, _, _) = x.slices()?;
            a.iter_mut().for_each(|a| *a *= FACTOR);
            Ok(0.0)
        },
    },
    Case {
        name: "scal into",
        bytes: 12,
        tensor: |x| x.a.mul_into(FACTOR, &mut x.out).map(|()| 0.0),
        ndarray: |x| {
            let (a, _, out) = x.slices()?;
            let zip = Zip::from(ArrayViewMut1::from(out)).and(ArrayView1::from(&*a));
            zip.for_each(|out, a| *out = FACTOR * a);
            Ok(0.0)
        },
        plain: |x| {
            let (a, _, out) = x.slices()?;
            for (out, a) in out.iter_mut().zip(&*a) {
                *out = FACTOR * a;
            }
            Ok(0.0)
        },
    },
    Case {
        name: "scal new",
        bytes: 12,
        tensor: |x| x.a.mul(FACTOR).map(|new| drop(black_box(new))).map(|()| 0.0),
        ndarray: |x| {
            let (a, _, _) = x.slices()?;
            drop(black_box(&ArrayView1::from(&*a) * FACTOR));
            Ok(0.0)
        },
        plain: |x| {
            let (a, _, _) = x.slices()?;
            drop(black_box(a.iter().map(|a| FACTOR * a).collect::<Vec<f32>>()));
            Ok(0.0)
        },
    },
    Case {
        name: "add in place",
        bytes: 12,
        tensor: |x| x.a.add_assign(&x.b).map(|()| 0.0),
        ndarray: |x| {
            let (a, b, _) = x.slices()?;
            ArrayViewMut1::from(a).zip_mut_with(&ArrayView1::from(b), |a, b| *a += b);
            Ok(0.0)
        },
        plain: |x| {
            let (a, b, _) = x.slices()?;
            for (a, b) in a.iter_mut().zip(b) {
                *a += b;
            }
            Ok(0.0)
        },
    },
    Case {
        name: "add into",
        bytes: 16,
        tensor: |x| x.a.add_into(&x.b, &mut x.out).map(|()| 0.0),
        ndarray: |x| {
            let (a, b, out) = x.slices()?;
            let zip = Zip::from(ArrayViewMut1::from(out)).and(ArrayView1::from(&*a));
            zip.and(ArrayView1::from(b)).for_each(|out, a, b| *out = a + b);
            Ok(0.0)
        },
        plain: |x| {
            let (a, b, out) = x.slices()?;
            for (out, (a, b)) in out.iter_mut().zip(a.iter().zip(b)) {
                *out = a + b;
            }
            Ok(0.0)
        },
    },
    Case {
        name: "add new",
        bytes: 16,
        tensor: |x| x.a.add(&x.b).map(|new| drop(black_box(new))).map(|()| 0.0),
        ndarray: |x| {
            let (a, b, _) = x.slices()?;
            drop(black_box(&ArrayView1::from(&*a) + &ArrayView1::from(b)));
            Ok(0.0)
        },
        plain: |x| {
            let (a, b, _) = x.slices()?;
            let new: Vec<f32> = a.iter().zip(b).map(|(a, b)| a + b).collect();
            drop(black_box(new));
            Ok(0.0)
        },
    },
    Case {
        name: "add of two products",
        bytes: 16,
        // The cost of temporaries: the tensor needs two passes, ndarray three, and the plain loop one.
        tensor: |x| {
            x.a.mul_into(FACTOR, &mut x.out)?;
            x.out.axpy(FACTOR, &x.b).map(|()| 0.0)
        },
        ndarray: |x| {
            let (a, b, _) = x.slices()?;
            let (a, b) = (ArrayView1::from(&*a), ArrayView1::from(b));
            drop(black_box(&a * FACTOR + &b * FACTOR));
            Ok(0.0)
        },
        plain: |x| {
            let (a, b, out) = x.slices()?;
            for (out, (a, b)) in out.iter_mut().zip(a.iter().zip(b)) {
                *out = a * FACTOR + b * FACTOR;
            }
            Ok(0.0)
        },
    },
    Case {
        name: "sum",
        bytes: 4,
        tensor: |x| x.b.sum().map(number),
        ndarray: |x| Ok(f64::from(ArrayView1::from(x.b.as_slice::<f32>()?).sum())),
        plain: |x| Ok(f64::from(sum_plain(x.b.as_slice()?, |_, b| b))),
    },
    Case {
        name: "dot",
        bytes: 8,
        tensor: |x| x.a.dot(&x.b).map(number),
        ndarray: |x| {
            let (a, b, _) = x.slices()?;
            Ok(f64::from(ArrayView1::from(&*a).dot(&ArrayView1::from(b))))
        },
        plain: |x| {
            let (a, b, _) = x.slices()?;
            Ok(f64::from(dot_plain(a, b)))
        },
    },
];
