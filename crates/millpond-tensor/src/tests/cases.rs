//! The inputs of tests of operations: element types, and programs of shapes, numbers and layouts in memory.

use super::lie::{Lie, lie};
use super::model::Model;
use super::views::shape;
use super::*;
use std::fmt::Debug;

/// Elements with the model's arithmetic, which is independent of the code under test.
pub(super) trait Case: Element + PartialEq + Debug + Into<Scalar> {
    fn of(number: i64) -> Self;
    fn op(kind: usize, a: Self, b: Self) -> Self;
}

pub(super) const ADD: usize = 0;
pub(super) const SUB: usize = 1;
pub(super) const MUL: usize = 2;
pub(super) const DIV: usize = 3;

macro_rules! integers {
    ($($type:ty)*) => {
        $(
            impl Case for $type {
                fn of(number: i64) -> Self {
                    number as Self
                }
                fn op(kind: usize, a: Self, b: Self) -> Self {
                    let (a, b) = (i128::from(a), i128::from(b));
                    [a + b, a - b, a.wrapping_mul(b), a / b][kind] as Self
                }
            }
        )*
    };
}

integers! { i8 i16 i32 i64 u8 u16 u32 u64 }

macro_rules! floats {
    ($($type:ty)*) => {
        $(
            impl Case for $type {
                fn of(number: i64) -> Self {
                    number as Self / 4.0
                }
                fn op(kind: usize, a: Self, b: Self) -> Self {
                    [a + b, a - b, a * b, a / b][kind]
                }
            }
            impl Case for [$type; 2] {
                fn of(number: i64) -> Self {
                    // Both parts have the same size, a power of two, so quotients are exact.
                    let size = (1 << (number.unsigned_abs() % 3)) as $type * number.signum() as $type;
                    [size, if number % 2 == 0 { size } else { -size }]
                }
                fn op(kind: usize, [a, b]: Self, [c, d]: Self) -> Self {
                    let square = c * c + d * d;
                    [
                        [a + c, b + d],
                        [a - c, b - d],
                        [a * c - b * d, a * d + b * c],
                        [(a * c + b * d) / square, (b * c - a * d) / square],
                    ][kind]
                }
            }
        )*
    };
}

floats! { f32 f64 }

#[cfg(feature = "half")]
macro_rules! halves {
    ($($type:ty)*) => {
        $(
            impl Case for $type {
                fn of(number: i64) -> Self {
                    Self::from_f32(number as f32 / 4.0)
                }
                fn op(kind: usize, a: Self, b: Self) -> Self {
                    let (a, b) = (a.to_f32(), b.to_f32());
                    Self::from_f32([a + b, a - b, a * b, a / b][kind])
                }
            }
        )*
    };
}

#[cfg(feature = "half")]
halves! { half::f16 half::bf16 }

#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) shape: Vec<usize>,
    /// The dimensions in which the second operand has size 1, and how many leading dimensions of the first it lacks.
    pub(super) ones: Vec<bool>,
    pub(super) missing: usize,
    pub(super) kind: usize,
    pub(super) seed: i64,
    pub(super) lies: [Lie; 3],
}

pub(super) fn program() -> impl Strategy<Value = Program> {
    let ones = proptest::collection::vec(any::<bool>(), MAX_RANK);
    (
        shape(),
        ones,
        0..4usize,
        0..4usize,
        1..1000i64,
        [lie(), lie(), lie()],
    )
        .prop_map(|(shape, ones, missing, kind, seed, lies)| Program {
            shape,
            ones,
            missing,
            kind,
            seed,
            lies,
        })
}

/// Returns a model with small numbers other than 0.
pub(super) fn numbers<T: Case>(shape: &[usize], seed: i64) -> Model<T> {
    let mut at = seed;
    Model::from_fn(shape, |_| {
        at = (at * 31 + 17) % 1009;
        let number = at % 11 - 5;
        T::of(if number >= 0 { number + 1 } else { number })
    })
}

macro_rules! for_all_types {
    ($check:ident, $program:expr) => {
        $check::<f64>($program);
        $check::<f32>($program);
        // The loops of the other types are the same safe code, and each takes Miri minutes.
        if !cfg!(miri) {
            $check::<i8>($program);
            $check::<i16>($program);
            $check::<i32>($program);
            $check::<i64>($program);
            $check::<u8>($program);
            $check::<u16>($program);
            $check::<u32>($program);
            $check::<u64>($program);
            $check::<[f32; 2]>($program);
            $check::<[f64; 2]>($program);
            #[cfg(feature = "half")]
            {
                $check::<half::f16>($program);
                $check::<half::bf16>($program);
            }
        }
    };
}
pub(super) use for_all_types;
