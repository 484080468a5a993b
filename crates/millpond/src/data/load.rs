//! From a file into a tensor of memory: what the readers of all formats share.

use super::error::DataError;
use crate::dtype::DType;
use crate::error::AllocError;
use crate::storage::Storage;
use crate::tensor::{MAX_RANK, Tensor, TensorError, count};
use std::ops::{Deref, DerefMut};
use std::path::Path;

/// Sizes of dimensions, as many as a tensor has. Takes no memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    sizes: [usize; MAX_RANK],
    rank: usize,
}

impl Sizes {
    /// Sizes as files say them. One that is more than there are addresses is refused later, by what it comes to.
    pub(super) fn of(shape: &[u64]) -> Result<Self, TensorError> {
        let mut sizes = Self::of_rank(shape.len())?;
        for (to, size) in sizes.iter_mut().zip(shape) {
            *to = usize::try_from(*size).unwrap_or(usize::MAX);
        }
        Ok(sizes)
    }

    /// The dimensions themselves, the last one first.
    pub(super) fn last_first(rank: usize) -> Result<Self, TensorError> {
        let mut dims = Self::of_rank(rank)?;
        for (dim, to) in dims.iter_mut().rev().enumerate() {
            *to = dim;
        }
        Ok(dims)
    }

    fn of_rank(rank: usize) -> Result<Self, TensorError> {
        if rank > MAX_RANK {
            return Err(TensorError::Rank {
                found: rank,
                most: MAX_RANK,
            });
        }
        Ok(Self {
            sizes: [0; MAX_RANK],
            rank,
        })
    }
}

impl Deref for Sizes {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        self.sizes.get(..self.rank).unwrap_or(&[])
    }
}

impl DerefMut for Sizes {
    fn deref_mut(&mut self) -> &mut [usize] {
        self.sizes.get_mut(..self.rank).unwrap_or(&mut [])
    }
}

/// How many rows an array has along its first dimension, and how many elements each of them.
pub(super) fn rows_of(shape: &[u64]) -> (u64, usize) {
    let (rows, row) = match shape {
        [] => (1, &[][..]),
        [rows, row @ ..] => (*rows, row),
    };
    let row = row.iter().try_fold(1, |all: u64, size| all.checked_mul(*size));
    let row = row.and_then(|row| usize::try_from(row).ok());
    // What cannot be counted is refused as a row of no such length.
    (rows, row.unwrap_or(usize::MAX))
}

/// A tensor of what `read` puts into its bytes, in memory that `storage` gives.
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
