//! Loads data of a file into a tensor. The readers of all formats share this code.

use super::error::DataError;
use millpond_account::error::AllocError;
use millpond_pool::dtype::DType;
use millpond_pool::storage::Storage;
use millpond_tensor::{Dims, Tensor, TensorError, count};
use std::path::Path;

/// Converts the sizes of dimensions in a file. A size that does not fit into a `usize` becomes `usize::MAX`, which is refused
/// later, when the elements are counted.
pub(super) fn sizes_of(shape: &[u64]) -> Result<Dims, TensorError> {
    let mut sizes = Dims::filled(shape.len(), 0)?;
    for (to, size) in sizes.iter_mut().zip(shape) {
        *to = usize::try_from(*size).unwrap_or(usize::MAX);
    }
    Ok(sizes)
}

/// Returns a permutation that reverses the dimensions.
pub(super) fn last_first(rank: usize) -> Result<Dims, TensorError> {
    let mut dims = Dims::filled(rank, 0)?;
    for (dim, to) in dims.iter_mut().rev().enumerate() {
        *to = dim;
    }
    Ok(dims)
}

/// Returns the number of rows along the first dimension of an array, and the number of elements of each.
pub(super) fn rows_of(shape: &[u64]) -> (u64, usize) {
    let (rows, row) = match shape {
        [] => (1, &[][..]),
        [rows, row @ ..] => (*rows, row),
    };
    let row = row.iter().try_fold(1, |all: u64, size| all.checked_mul(*size));
    let row = row.and_then(|row| usize::try_from(row).ok());
    // A row whose length overflows is refused later, because a row cannot have `usize::MAX` elements.
    (rows, row.unwrap_or(usize::MAX))
}

/// Creates a tensor of the bytes that `read` writes, in memory of `storage`.
pub(super) fn tensor<E: From<DataError> + From<TensorError>>(
    path: &Path,
    dtype: DType,
    shape: &[usize],
    storage: impl FnOnce(DType, usize) -> Result<Storage, AllocError>,
    read: impl FnOnce(&mut [u8]) -> Result<(), DataError>,
) -> Result<Tensor, E> {
    let mut storage = storage(dtype, count(shape)?).map_err(TensorError::from)?;
    read(storage.as_mut_bytes())?;
    if dtype == DType::Bool && storage.as_bools().is_none() {
        let path = path.to_owned();
        return Err(DataError::NotBools { path }.into());
    }
    Ok(Tensor::from_storage(storage, shape)?)
}
