//! The operations on elements, and macros that select a Rust type by a `DType`.

use super::scalar::Scalar;
use bytemuck::Pod;
use millpond_pool::dtype::Element;

/// The type in which elements are accumulated: `f64`, `i64`, `u64`, or a pair of `f64`. Sums and products of elements are computed
/// in it and rounded, or truncated, at the end. A cast also goes through it, which does not change the result, because it can
/// represent every element of its types.
pub(crate) trait Wide: Number + Default + PartialEq + Into<Scalar> {
    /// Converts to an element of another type.
    fn cast<T: Number>(self) -> T;
}

/// An element type that supports arithmetic. Integers wrap around.
pub(crate) trait Number: Element {
    /// The type in which elements are accumulated.
    type Wide: Wide;
    /// The type in which products of matrices are accumulated. Integers use their own type, because truncation at the end gives the
    /// same result.
    type Sum: Number + Default;
    /// Whether a division by zero is refused.
    const INTEGER: bool;

    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    /// Divides. Quotients of integers are truncated. Returns 0 if the divisor is the integer 0, which is refused earlier.
    fn over(self, other: Self) -> Self;

    /// Returns whether this is the integer 0.
    fn is_zero(self) -> bool {
        Self::INTEGER && bytemuck::bytes_of(&self) == bytemuck::bytes_of(&Self::of_u64(0))
    }

    fn widen(self) -> Self::Wide;
    fn summand(self) -> Self::Sum;
    fn of_sum(sum: Self::Sum) -> Self;
    fn of_f64(number: f64) -> Self;
    fn of_i64(number: i64) -> Self;
    fn of_u64(number: u64) -> Self;
    fn of_complex(number: [f64; 2]) -> Self;

    /// Converts a number that [fits](Scalar::fits).
    fn of_scalar(number: Scalar) -> Self {
        match number {
            Scalar::Float(number) => Self::of_f64(number),
            Scalar::Int(number) => Self::of_i64(number),
            Scalar::UInt(number) => Self::of_u64(number),
            Scalar::Complex(number) => Self::of_complex(number),
            Scalar::Bool(is) => Self::of_u64(is.into()),
        }
    }
}

macro_rules! wides {
    ($($type:ty, $of:ident;)*) => {
        $(
            impl Wide for $type {
                #[inline]
                fn cast<T: Number>(self) -> T {
                    T::$of(self)
                }
            }
        )*
    };
}

wides! {
    f64, of_f64;
    i64, of_i64;
    u64, of_u64;
    [f64; 2], of_complex;
}

/// Implements arithmetic by the operators of the language.
macro_rules! by_operators {
    () => {
        #[inline]
        fn plus(self, other: Self) -> Self {
            self + other
        }
        #[inline]
        fn minus(self, other: Self) -> Self {
            self - other
        }
        #[inline]
        fn times(self, other: Self) -> Self {
            self * other
        }
        #[inline]
        fn over(self, other: Self) -> Self {
            self / other
        }
    };
}

/// Implements conversions from wider numbers by the operator `as`.
macro_rules! of_numbers_by_as {
    () => {
        #[inline]
        fn of_f64(number: f64) -> Self {
            number as Self
        }
        #[inline]
        fn of_i64(number: i64) -> Self {
            number as Self
        }
        #[inline]
        fn of_u64(number: u64) -> Self {
            number as Self
        }
        #[inline]
        fn of_complex(number: [f64; 2]) -> Self {
            number[0] as Self
        }
    };
}

/// Accumulates products of matrices in the wide type.
macro_rules! summed_in_wide {
    () => {
        #[inline]
        fn summand(self) -> Self::Sum {
            self.widen()
        }
        #[inline]
        fn of_sum(sum: Self::Sum) -> Self {
            sum.cast()
        }
    };
}

macro_rules! floats {
    ($($type:ty)*) => {
        $(
            impl Number for $type {
                type Wide = f64;
                type Sum = f64;
                const INTEGER: bool = false;

                by_operators!();
                #[inline]
                fn widen(self) -> f64 { self.into() }
                summed_in_wide!();
                of_numbers_by_as!();
            }
        )*
    };
}

floats! { f64 f32 }

#[cfg(feature = "half")]
macro_rules! halves {
    ($($type:ty)*) => {
        $(
            impl Number for $type {
                type Wide = f64;
                type Sum = f64;
                const INTEGER: bool = false;

                by_operators!();
                #[inline]
                fn widen(self) -> f64 { self.to_f64() }
                summed_in_wide!();
                #[inline]
                fn of_f64(number: f64) -> Self { Self::from_f64(number) }
                // Integers beyond 2^53 are rounded twice, so the result may be a neighbour of the nearest number.
                #[inline]
                fn of_i64(number: i64) -> Self { Self::from_f64(number as f64) }
                #[inline]
                fn of_u64(number: u64) -> Self { Self::from_f64(number as f64) }
                #[inline]
                fn of_complex(number: [f64; 2]) -> Self { Self::from_f64(number[0]) }
            }
        )*
    };
}

#[cfg(feature = "half")]
halves! { half::f16 half::bf16 }

macro_rules! integers {
    ($($type:ty, $wide:ty;)*) => {
        $(
            impl Number for $type {
                type Wide = $wide;
                type Sum = Self;
                const INTEGER: bool = true;

                #[inline]
                fn plus(self, other: Self) -> Self { self.wrapping_add(other) }
                #[inline]
                fn minus(self, other: Self) -> Self { self.wrapping_sub(other) }
                #[inline]
                fn times(self, other: Self) -> Self { self.wrapping_mul(other) }
                #[inline]
                fn over(self, other: Self) -> Self {
                    if other == 0 { 0 } else { self.wrapping_div(other) }
                }
                #[inline]
                fn widen(self) -> $wide { self.into() }
                #[inline]
                fn summand(self) -> Self { self }
                #[inline]
                fn of_sum(sum: Self) -> Self { sum }
                of_numbers_by_as!();
            }
        )*
    };
}

integers! {
    i8, i64; i16, i64; i32, i64; i64, i64;
    u8, u64; u16, u64; u32, u64; u64, u64;
}

macro_rules! complexes {
    ($($part:ty)*) => {
        $(
            impl Number for [$part; 2] {
                type Wide = [f64; 2];
                type Sum = [f64; 2];
                const INTEGER: bool = false;

                #[inline]
                fn plus(self, other: Self) -> Self { [self[0] + other[0], self[1] + other[1]] }
                #[inline]
                fn minus(self, other: Self) -> Self { [self[0] - other[0], self[1] - other[1]] }
                #[inline]
                fn times(self, other: Self) -> Self {
                    let ([a, b], [c, d]) = (self, other);
                    [a * c - b * d, a * d + b * c]
                }
                /// Both operands are scaled by the larger part of the divisor. Otherwise its square could overflow or underflow.
                #[inline]
                fn over(self, other: Self) -> Self {
                    let ([a, b], [c, d]) = (self, other);
                    if c.abs() >= d.abs() {
                        let ratio = if c == 0.0 { 0.0 } else { d / c };
                        let scale = c + d * ratio;
                        [(a + b * ratio) / scale, (b - a * ratio) / scale]
                    } else {
                        let ratio = c / d;
                        let scale = c * ratio + d;
                        [(a * ratio + b) / scale, (b * ratio - a) / scale]
                    }
                }
                #[inline]
                fn widen(self) -> [f64; 2] { self.map(f64::from) }
                summed_in_wide!();
                #[inline]
                fn of_f64(number: f64) -> Self { [number as $part, 0.0] }
                #[inline]
                fn of_i64(number: i64) -> Self { [number as $part, 0.0] }
                #[inline]
                fn of_u64(number: u64) -> Self { [number as $part, 0.0] }
                #[inline]
                fn of_complex(number: [f64; 2]) -> Self { number.map(|part| part as $part) }
            }
        )*
    };
}

complexes! { f64 f32 }

/// Evaluates an expression with the Rust type of a [`DType`](millpond_pool::DType), and another expression for the other types.
macro_rules! with_type {
    (
        $dtype:expr, $name:ident => $body:expr,
        [$($(#[$when:meta])? $($variant:ident)|+ => $type:ty,)*]
        $(, else $other:expr)?
    ) => {
        match $dtype {
            $(
                $(#[$when])?
                $(millpond_pool::dtype::DType::$variant)|+ => {
                    type $name = $type;
                    $body
                }
            )*
            $(
                #[allow(unreachable_patterns, reason = "half precision without its feature")]
                _ => $other,
            )?
        }
    };
}
pub(crate) use with_type;

/// Evaluates an expression with the Rust type that computes for a [`DType`](millpond_pool::DType), and another expression if there is
/// none: for `bool`, and for half precision without the feature `half`.
macro_rules! with_number {
    ($dtype:expr, $number:ident => $body:expr, else $other:expr) => {
        $crate::number::with_type!(
            $dtype, $number => $body,
            [
                F64 => f64,
                F32 => f32,
                #[cfg(feature = "half")]
                F16 => half::f16,
                #[cfg(feature = "half")]
                BF16 => half::bf16,
                I8 => i8,
                I16 => i16,
                I32 => i32,
                I64 => i64,
                U8 => u8,
                U16 => u16,
                U32 => u32,
                U64 => u64,
                Complex64 => [f32; 2],
                Complex128 => [f64; 2],
            ],
            else $other
        )
    };
}
pub(crate) use with_number;

/// Evaluates an expression with a plain Rust type that has the size and alignment of a [`DType`](millpond_pool::DType), for elements that
/// are moved and not computed with.
macro_rules! with_plain {
    ($dtype:expr, $plain:ident => $body:expr) => {
        $crate::number::with_type!(
            $dtype, $plain => $body,
            [
                I8 | U8 | Bool => u8,
                I16 | U16 | F16 | BF16 => u16,
                I32 | U32 | F32 => u32,
                I64 | U64 | F64 => u64,
                Complex64 => [u32; 2],
                Complex128 => [u64; 2],
            ]
        )
    };
}
pub(crate) use with_plain;

/// Returns bytes as elements. The constructors of views check that they are whole and aligned.
pub(crate) fn elements<T: Pod>(bytes: &[u8]) -> &[T] {
    bytemuck::cast_slice(bytes)
}

/// Returns mutable bytes as elements.
pub(crate) fn elements_mut<T: Pod>(bytes: &mut [u8]) -> &mut [T] {
    bytemuck::cast_slice_mut(bytes)
}
