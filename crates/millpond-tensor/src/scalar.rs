//! Single numbers of any element type.

use millpond_pool::dtype::DType;
use std::fmt;
use std::ops::Range;

/// A number: an element that was read, or an operand of an operation.
///
/// An operand is converted to the tensor's type. Floating-point elements accept integers and fractions, which are rounded.
/// Integers accept only numbers that they can represent. Complex elements accept all numbers. Only elements of `bool` accept
/// booleans.
///
/// ```
/// use millpond::{DType, Tensor, tensor::Scalar};
///
/// let mut tensor = Tensor::zeros([3], DType::I8)?;
/// tensor.fill(7)?;
/// assert_eq!(tensor.get(&[1])?, Scalar::Int(7));
/// assert!(tensor.fill(0.5).is_err() && tensor.fill(300).is_err());
/// # Ok::<(), millpond::TensorError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Scalar {
    /// A floating-point number.
    Float(f64),
    /// A signed integer.
    Int(i64),
    /// An unsigned integer.
    UInt(u64),
    /// The real and the imaginary part.
    Complex([f64; 2]),
    /// A boolean.
    Bool(bool),
}

impl Scalar {
    /// Returns the number as an `f64`, rounded if necessary, or `None` if it is complex.
    #[must_use]
    pub fn to_f64(self) -> Option<f64> {
        match self {
            Self::Float(number) => Some(number),
            Self::Int(number) => Some(number as f64),
            Self::UInt(number) => Some(number as f64),
            Self::Bool(is) => Some(f64::from(u8::from(is))),
            Self::Complex(_) => None,
        }
    }

    /// Returns the number as an `i64`, or `None` if it is not an integer or does not fit.
    #[must_use]
    pub fn to_i64(self) -> Option<i64> {
        i64::try_from(self.whole()?).ok()
    }

    /// Returns the number as a `u64`, or `None` if it is not an integer, is negative or is too large.
    #[must_use]
    pub fn to_u64(self) -> Option<u64> {
        u64::try_from(self.whole()?).ok()
    }

    /// Returns the boolean, or `None` if this is a number.
    #[must_use]
    pub fn to_bool(self) -> Option<bool> {
        match self {
            Self::Bool(is) => Some(is),
            _ => None,
        }
    }

    /// Returns the real and the imaginary part.
    #[must_use]
    pub fn to_complex(self) -> [f64; 2] {
        match self {
            Self::Complex(parts) => parts,
            // All other numbers are real.
            real => [real.to_f64().unwrap_or_default(), 0.0],
        }
    }

    fn whole(self) -> Option<i128> {
        match self {
            Self::Int(number) => Some(number.into()),
            Self::UInt(number) => Some(number.into()),
            Self::Bool(is) => Some(is.into()),
            // Numbers without a fraction that are small enough to be converted exactly.
            Self::Float(number) if number.trunc() == number && number.abs() < 1e19 * 4.0 => {
                Some(number as i128)
            }
            Self::Float(_) | Self::Complex(_) => None,
        }
    }

    /// Returns whether elements of a type can represent the number. Floating-point elements may round it.
    pub(crate) fn fits(self, dtype: DType) -> bool {
        let bits = 8 * dtype.size();
        let within = |range: Range<i128>| self.whole().is_some_and(|whole| range.contains(&whole));
        let truth = matches!(self, Self::Bool(_));
        match dtype {
            DType::Bool => truth,
            _ if truth => false,
            DType::F64 | DType::F32 | DType::F16 | DType::BF16 => self.to_f64().is_some(),
            DType::I8 | DType::I16 | DType::I32 | DType::I64 => within(-(1 << (bits - 1))..1 << (bits - 1)),
            DType::U8 | DType::U16 | DType::U32 | DType::U64 => within(0..1 << bits),
            DType::Complex64 | DType::Complex128 => true,
        }
    }
}

/// Converts the bits of a half-precision number of either kind.
pub(crate) fn half_as_f64(dtype: DType, bits: u16) -> f64 {
    if dtype == DType::BF16 {
        return f32::from_bits(u32::from(bits) << 16).into();
    }
    let sign = if bits >> 15 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (u64::from(bits >> 10 & 31), f64::from(bits & 1023));
    // The power is made from its bits, because `powi` may be inexact.
    let two_to = |power: u64| f64::from_bits((1023 + power) << 52);
    match exponent {
        0 => sign * fraction / two_to(24),
        31 if fraction == 0.0 => sign * f64::INFINITY,
        31 => f64::NAN,
        _ => sign * (1024.0 + fraction) * two_to(exponent) / two_to(25),
    }
}

macro_rules! scalars {
    ($($type:ty => $variant:ident,)*) => {
        $(
            impl From<$type> for Scalar {
                fn from(number: $type) -> Self {
                    Self::$variant(number.into())
                }
            }
        )*
    };
}

scalars! {
    f64 => Float,
    f32 => Float,
    i8 => Int,
    i16 => Int,
    i32 => Int,
    i64 => Int,
    u8 => UInt,
    u16 => UInt,
    u32 => UInt,
    u64 => UInt,
    [f64; 2] => Complex,
    bool => Bool,
}

#[cfg(feature = "half")]
scalars! {
    half::f16 => Float,
    half::bf16 => Float,
}

impl From<[f32; 2]> for Scalar {
    fn from(parts: [f32; 2]) -> Self {
        Self::Complex(parts.map(f64::from))
    }
}

#[cfg(feature = "num-complex")]
impl From<num_complex::Complex<f32>> for Scalar {
    fn from(number: num_complex::Complex<f32>) -> Self {
        [number.re, number.im].into()
    }
}

#[cfg(feature = "num-complex")]
impl From<num_complex::Complex<f64>> for Scalar {
    fn from(number: num_complex::Complex<f64>) -> Self {
        Self::Complex([number.re, number.im])
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Float(number) => number.fmt(f),
            Self::Int(number) => number.fmt(f),
            Self::UInt(number) => number.fmt(f),
            Self::Bool(is) => is.fmt(f),
            Self::Complex([real, imaginary]) => write!(f, "{real}{imaginary:+}i"),
        }
    }
}
