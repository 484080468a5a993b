//! Element types as values.

#[cfg(feature = "serde")]
mod serial;

use bytemuck::Pod;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// The type of elements in memory, for types that are known only at run time.
///
/// ```
/// use millpond::DType;
///
/// let dtype: DType = "bfloat16".parse()?;
/// assert_eq!((dtype, dtype.size(), dtype.to_string().as_str()), (DType::BF16, 2, "bf16"));
/// assert_eq!((DType::Complex64.size(), DType::Complex64.align()), (8, 4));
/// assert!("f12".parse::<DType>().is_err());
/// # Ok::<(), millpond::dtype::ParseDTypeError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DType {
    /// IEEE double precision.
    F64,
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of single precision.
    BF16,
    /// Signed, 8 bits.
    I8,
    /// Signed, 16 bits.
    I16,
    /// Signed, 32 bits.
    I32,
    /// Signed, 64 bits.
    I64,
    /// Unsigned, 8 bits.
    U8,
    /// Unsigned, 16 bits.
    U16,
    /// Unsigned, 32 bits.
    U32,
    /// Unsigned, 64 bits.
    U64,
    /// True or false, stored as a byte of 1 or 0.
    Bool,
    /// Two single-precision numbers: the real and the imaginary part.
    Complex64,
    /// Two double-precision numbers: the real and the imaginary part.
    Complex128,
}

/// The type, the bytes and the alignment of an element, the name, and the name in array libraries.
const TABLE: [(DType, usize, usize, &str, &str); 15] = [
    (DType::F64, 8, 8, "f64", "float64"),
    (DType::F32, 4, 4, "f32", "float32"),
    (DType::F16, 2, 2, "f16", "float16"),
    (DType::BF16, 2, 2, "bf16", "bfloat16"),
    (DType::I8, 1, 1, "i8", "int8"),
    (DType::I16, 2, 2, "i16", "int16"),
    (DType::I32, 4, 4, "i32", "int32"),
    (DType::I64, 8, 8, "i64", "int64"),
    (DType::U8, 1, 1, "u8", "uint8"),
    (DType::U16, 2, 2, "u16", "uint16"),
    (DType::U32, 4, 4, "u32", "uint32"),
    (DType::U64, 8, 8, "u64", "uint64"),
    (DType::Bool, 1, 1, "bool", "bool"),
    (DType::Complex64, 8, 4, "complex64", "complex64"),
    (DType::Complex128, 16, 8, "complex128", "complex128"),
];

impl DType {
    fn row(self) -> (Self, usize, usize, &'static str, &'static str) {
        // The table has the order of the variants, which a test checks.
        TABLE[self as usize]
    }

    /// Returns every type.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.0)
    }

    /// Returns the size of an element in bytes.
    #[must_use]
    pub fn size(self) -> usize {
        self.row().1
    }

    /// Returns the alignment of an element.
    #[must_use]
    pub fn align(self) -> usize {
        self.row().2
    }

    /// Returns the name, as in Rust.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().3
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The error for a name that is not the name of a type.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "there is no element type {name:?}: choose one of f64, f32, f16, bf16, i8 to i64, u8 to u64, bool, complex64, complex128"
)]
#[non_exhaustive]
pub struct ParseDTypeError {
    /// The name.
    pub name: String,
}

impl FromStr for DType {
    type Err = ParseDTypeError;

    /// Parses the name in Rust (`f32`) or the name in array libraries (`float32`).
    fn from_str(name: &str) -> Result<Self, ParseDTypeError> {
        let found = TABLE.iter().find(|row| row.3 == name || row.4 == name);
        found.map(|row| row.0).ok_or_else(|| ParseDTypeError {
            name: name.to_owned(),
        })
    }
}

/// The error for an access to elements as another type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the elements are {found}, not {expected}")]
pub struct DTypeError {
    /// The requested type.
    pub expected: DType,
    /// The actual type.
    pub found: DType,
}

/// Rust types that correspond to a [`DType`].
///
/// `f16` and `bf16` require the feature `half`. Complex numbers are pairs, `[f32; 2]` and `[f64; 2]`, or `Complex` with
/// the feature `num-complex`. [`DType::Bool`] has no Rust type, because a byte may not be a valid `bool`.
/// [`Storage::as_bools`](crate::Storage::as_bools) checks the bytes.
pub trait Element: Pod + Send + Sync + sealed::Sealed {
    /// The type as a value.
    const DTYPE: DType;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($type:ty => $dtype:ident,)*) => {
        $(
            impl sealed::Sealed for $type {}
            impl Element for $type {
                const DTYPE: DType = DType::$dtype;
            }
        )*
    };
}

elements! {
    f64 => F64,
    f32 => F32,
    i8 => I8,
    i16 => I16,
    i32 => I32,
    i64 => I64,
    u8 => U8,
    u16 => U16,
    u32 => U32,
    u64 => U64,
    [f32; 2] => Complex64,
    [f64; 2] => Complex128,
}

#[cfg(feature = "half")]
elements! {
    half::f16 => F16,
    half::bf16 => BF16,
}

#[cfg(feature = "num-complex")]
elements! {
    num_complex::Complex<f32> => Complex64,
    num_complex::Complex<f64> => Complex128,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agrees<T: Element>() {
        assert_eq!(
            (T::DTYPE.size(), T::DTYPE.align()),
            (size_of::<T>(), align_of::<T>())
        );
    }

    #[test]
    fn the_table_is_in_order_and_agrees_with_the_types() {
        for (place, row) in TABLE.iter().enumerate() {
            assert_eq!(row.0 as usize, place);
            assert_eq!([row.3, row.4].map(str::parse), [Ok(row.0), Ok(row.0)]);
            assert_eq!(format!("{:>12}|", row.0), format!("{:>12}|", row.3));
        }
        agrees::<f64>();
        agrees::<f32>();
        agrees::<i8>();
        agrees::<i16>();
        agrees::<i32>();
        agrees::<i64>();
        agrees::<u8>();
        agrees::<u16>();
        agrees::<u32>();
        agrees::<u64>();
        agrees::<[f32; 2]>();
        agrees::<[f64; 2]>();
        #[cfg(feature = "half")]
        {
            agrees::<half::f16>();
            agrees::<half::bf16>();
        }
        #[cfg(feature = "num-complex")]
        {
            agrees::<num_complex::Complex<f32>>();
            agrees::<num_complex::Complex<f64>>();
        }
    }
}
