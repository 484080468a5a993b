//! The parts of which the structures of arrays of `#[derive(Soa)]` are made.
//!
//! ```text
//!   layout   the padding in an array of the structure, as a value and a table
//!   column   the operations on the buffer of one field
//!   device   structures of arrays on a device, as arguments of kernels
//!   chunks   iterators over parts of slices
//! ```
//!
//! The derive is in `millpond-derive`. This module does not know the fields. The generated code refers to them by name.

mod chunks;
mod column;
#[cfg(feature = "cuda")]
mod device;
mod layout;

pub use chunks::SoaChunks;
#[doc(hidden)]
pub use chunks::{Cut, Split, chunks};
#[doc(hidden)]
pub use column::Column;
#[cfg(feature = "cuda")]
pub use device::{DeviceField, DeviceSoa};
pub use layout::{SoaField, SoaLayout};
#[doc(hidden)]
pub use layout::{arrange, forbid_padding, padding_after};

use millpond_account::error::AllocError;
use millpond_pool::pool::Pool;
use millpond_set::pools::with_host;
use thiserror::Error;

/// A structure for which `#[derive(Soa)]` generates a structure of arrays. The derive's documentation lists the generated items.
///
/// ```
/// use millpond::Soa;
///
/// #[derive(Soa)]
/// #[repr(C)]
/// struct Reading { value: f32, flag: u8, result: f64 }
///
/// let layout = Reading::LAYOUT;
/// assert_eq!((layout.bytes, layout.soa_bytes(), layout.padding()), (16, 13, 3));
/// assert_eq!(layout.fields[1].name, "flag");
/// assert_eq!(layout.fields[1].padding, 3);
/// println!("{}", Reading::layout_report());
///
/// // Generic code refers to the structure of arrays by the trait.
/// fn none<T: Soa<Vec: TryFrom<Vec<T>>>>() -> Option<T::Vec> {
///     T::Vec::try_from(Vec::new()).ok()
/// }
/// assert!(none::<Reading>().is_some_and(|readings| readings.is_empty()));
/// ```
pub trait Soa: Sized {
    /// The structure of arrays.
    type Vec;

    /// The compiler's layout of the structure, with its padding.
    const LAYOUT: SoaLayout;

    /// Returns the name of each field and its bytes, in the order of declaration.
    #[doc(hidden)]
    fn columns(arrays: &Self::Vec) -> impl Iterator<Item = (&'static str, &[u8])>;

    /// Like [`columns`](Self::columns), for writing.
    #[doc(hidden)]
    fn columns_mut(arrays: &mut Self::Vec) -> impl Iterator<Item = (&'static str, &mut [u8])>;

    /// Returns the layout for printing. It has a line for each field and each gap, and the number of bytes lost.
    #[must_use]
    fn layout_report() -> SoaLayout {
        Self::LAYOUT
    }
}

/// The error of an index outside the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("element {index} of {len}")]
pub struct SoaIndexError {
    /// The requested index.
    pub index: usize,
    /// The number of elements.
    pub len: usize,
}

/// Calls `work` with the current host pool.
#[doc(hidden)]
pub fn here<R>(work: impl FnOnce(&Pool) -> Result<R, AllocError>) -> Result<R, AllocError> {
    with_host(work).unwrap_or_else(|error| Err(AllocError::Pool(Box::new(error))))
}
