//! Element types, by `millpond`'s numbers for them, and the arithmetic on them (`number.cuh`).

use crate::error::{Answer, Code};
use crate::memory::os::Reach;
use half::{bf16, f16};

/// An element type of matrix products.
pub(super) trait Factor: Copy + Send + Sync + 'static {
    /// Its name in the names of entries.
    const NAME: &'static str;
    const SIZE: usize = size_of::<Self>();
    /// The type in which products of matrices are accumulated.
    type Sum: Copy + Default;

    fn get(from: &Reach, at: u64) -> Self;
    fn put(self, to: &Reach, at: u64);
    fn add_product(sum: Self::Sum, left: Self, right: Self) -> Self::Sum;
    fn of_sum(sum: Self::Sum) -> Self;
}

/// An element type that supports arithmetic.
pub(super) trait Element: Factor {
    /// Reads a value from the bytes of a parameter.
    fn of_bytes(bytes: &[u8]) -> Self;
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn over(self, other: Self) -> Self;
}

macro_rules! in_memory {
    ($type:ident) => {
        const NAME: &'static str = stringify!($type);

        fn get(from: &Reach, at: u64) -> Self {
            Self::from_ne_bytes(from.get(at * Self::SIZE as u64))
        }
        fn put(self, to: &Reach, at: u64) {
            to.put(at * Self::SIZE as u64, &self.to_ne_bytes());
        }
    };
}

macro_rules! floats {
    ($($type:ident, $sum:ty, $of_sum:expr;)*) => {
        $(impl Factor for $type {
            in_memory!($type);
            type Sum = $sum;

            fn add_product(sum: $sum, left: Self, right: Self) -> $sum {
                <$sum>::from(left).mul_add(right.into(), sum)
            }
            fn of_sum(sum: $sum) -> Self { $of_sum(sum) }
        }

        impl Element for $type {
            fn of_bytes(bytes: &[u8]) -> Self { Self::from_ne_bytes(bytes.try_into().unwrap_or_default()) }
            fn plus(self, other: Self) -> Self { self + other }
            fn minus(self, other: Self) -> Self { self - other }
            fn times(self, other: Self) -> Self { self * other }
            fn over(self, other: Self) -> Self { self / other }
        })*
    };
}

floats! { f64, f64, f64::from; f32, f32, f32::from; f16, f32, f16::from_f32; bf16, f32, bf16::from_f32; }

macro_rules! integers {
    ($($type:ident)*) => {
        $(impl Factor for $type {
            in_memory!($type);
            type Sum = Self;

            fn add_product(sum: Self, left: Self, right: Self) -> Self {
                sum.wrapping_add(left.wrapping_mul(right))
            }
            fn of_sum(sum: Self) -> Self { sum }
        }

        impl Element for $type {
            fn of_bytes(bytes: &[u8]) -> Self { Self::from_ne_bytes(bytes.try_into().unwrap_or_default()) }
            fn plus(self, other: Self) -> Self { self.wrapping_add(other) }
            fn minus(self, other: Self) -> Self { self.wrapping_sub(other) }
            fn times(self, other: Self) -> Self { self.wrapping_mul(other) }
            fn over(self, other: Self) -> Self {
                if other == 0 { 0 } else { self.wrapping_div(other) }
            }
        })*
    };
}

integers! { i8 i16 i32 i64 u8 u16 u32 u64 }

/// Evaluates an expression with each type.
macro_rules! each_type {
    ($type:ident => $body:expr) => {
        $crate::kernels::number::each_type!(@ $type => $body;
            f64 f32 half::f16 half::bf16 i8 i16 i32 i64 u8 u16 u32 u64)
    };
    (@ $type:ident => $body:expr; $($each:ty)*) => {
        $({
            type $type = $each;
            $body
        })*
    };
}
pub(super) use each_type;

/// Bytes of each type, by its number. The last type is the truth value.
const SIZES: [u64; 13] = [8, 4, 2, 2, 1, 2, 4, 8, 1, 2, 4, 8, 1];

/// Returns the bytes of a type, or an error if the type does not exist.
pub(super) fn size(code: u32) -> Answer<u64> {
    let size = SIZES.get(code as usize);
    size.copied().ok_or(Code::ILLEGAL_ADDRESS)
}

/// The type in which the values of elements are computed.
pub(super) trait Wide: Element + Default + PartialEq {
    /// Reads an element whose type has this number. Returns 0 for a type of another kind.
    fn load(from: &Reach, at: u64, code: u32) -> Self;
    /// Writes the value as an element whose type has this number.
    fn store(self, to: &Reach, at: u64, code: u32);
    fn of_bool(is: bool) -> Self;
}

macro_rules! wides {
    ($($wide:ident [$($code:literal => $type:ty, $widen:expr;)*];)*) => {
        $(impl Wide for $wide {
            fn load(from: &Reach, at: u64, code: u32) -> Self {
                match code {
                    $($code => $widen(<$type as Factor>::get(from, at)),)*
                    _ => Self::default(),
                }
            }

            fn store(self, to: &Reach, at: u64, code: u32) {
                match code {
                    0 => (self as f64).put(to, at),
                    1 => (self as f32).put(to, at),
                    2 => f16::from_f64(self as f64).put(to, at),
                    3 => bf16::from_f64(self as f64).put(to, at),
                    4 => (self as i8).put(to, at),
                    5 => (self as i16).put(to, at),
                    6 => (self as i32).put(to, at),
                    7 => (self as i64).put(to, at),
                    8 => (self as u8).put(to, at),
                    9 => (self as u16).put(to, at),
                    10 => (self as u32).put(to, at),
                    11 => (self as u64).put(to, at),
                    _ => u8::from(self != Self::default()).put(to, at),
                }
            }

            fn of_bool(is: bool) -> Self { u8::from(is).into() }
        })*
    };
}

wides! {
    f64 [
        0 => f64, |x| x; 1 => f32, f64::from; 2 => f16, f64::from; 3 => bf16, f64::from;
    ];
    i64 [
        4 => i8, i64::from; 5 => i16, i64::from; 6 => i32, i64::from; 7 => i64, |x| x;
    ];
    u64 [
        8 => u8, u64::from; 9 => u16, u64::from; 10 => u32, u64::from; 11 => u64, |x| x;
        12 => u8, |x| u64::from(x != 0);
    ];
}
