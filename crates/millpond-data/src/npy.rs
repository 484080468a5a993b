//! NumPy's `.npy` files: reading and writing of the header, and access to the elements.
//!
//! The format is "NEP 1, A Simple File Format for NumPy Arrays", versions 1.0, 2.0 and 3.0: a magic string, a dictionary of Python
//! literals with the type, order and shape, and the elements.

mod header;
mod mapped;

pub use mapped::MappedNpy;

use super::files::{Files, Opened, Stamp};
use super::load::{self, last_first, sizes_of};
use super::replace::replace;
use super::{DataError, DataSet};
use header::{MOST_DIMS, NpyHeader};
use millpond_account::error::AllocError;
use millpond_pool::block::Origin;
use millpond_pool::dtype::{DType, Element};
use millpond_pool::storage::Storage;
use millpond_tensor::{Dims, Tensor, TensorError};
use std::io::Write;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// An error of reading or writing a `.npy` file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NpyError {
    /// The file does not have the format, or it is damaged.
    #[error("{path} is not a valid .npy file: {why}", path = path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// The problem and its place.
        why: String,
    },
    /// NumPy supports the element type, but this crate does not.
    #[error(
        "{path}: elements of type {descr} cannot be read: save them in this machine's byte order as one of bool, i1 to i8, u1 to u8, f2 to f8, c8, c16",
        path = path.display(),
        descr = descr.replace(char::is_control, "?")
    )]
    Type {
        /// The file.
        path: PathBuf,
        /// The type as written in the file.
        descr: String,
    },
    /// The type of the elements is not the requested one.
    #[error("{path} has elements of {found}, not {expected}", path = path.display())]
    OtherType {
        /// The file.
        path: PathBuf,
        /// The requested type.
        expected: DType,
        /// The type in the file.
        found: DType,
    },
    /// The array is in Fortran order, so its rows are not contiguous.
    #[error(
        "{path} is in Fortran order, so its rows are not contiguous: save `numpy.ascontiguousarray` of the array",
        path = path.display()
    )]
    FortranOrder {
        /// The file.
        path: PathBuf,
    },
    /// The shape of a file's rows differs from that of the first file's rows.
    #[error("{path} has rows of shape {found:?}, but the first file has rows of shape {expected:?}", path = path.display())]
    OtherRows {
        /// The file.
        path: PathBuf,
        /// The shape of the first file's rows.
        expected: Vec<u64>,
        /// The shape of this file's rows.
        found: Vec<u64>,
    },
    /// The number of elements does not match the shape.
    #[error("the shape {shape:?} has {expected} elements, but there are {found}")]
    Shape {
        /// The shape.
        shape: Vec<u64>,
        /// The number of elements of that shape.
        expected: u64,
        /// The number of elements given.
        found: u64,
    },
    /// The file cannot be read or written, or has changed.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Memory for the tensor cannot be allocated, or a tensor cannot have the shape.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// A `.npy` file whose header was read.
///
/// ```
/// # let path = std::env::temp_dir().join(format!("millpond-npy-{}.npy", std::process::id()));
/// use millpond::{DType, Npy};
///
/// let values: Vec<f32> = (0..12).map(|n| n as f32).collect();
/// Npy::write(&path, &[4, 3], &values)?;
/// let npy = Npy::open(&path)?;
/// assert_eq!((npy.dtype(), npy.shape()), (DType::F32, &[4, 3][..]));
/// let data = npy.rows::<f32>()?;                       // a data set of 4 rows of 3: nothing is read yet
/// assert_eq!(data.batch(2, 1)?[..], [6.0, 7.0, 8.0]);
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Npy {
    path: PathBuf,
    head: NpyHeader,
    /// The offset of the elements in the file.
    skip: u64,
    /// The identity of the file whose header was read.
    stamp: Stamp,
}

impl Npy {
    /// Reads the header of a file, but not the elements.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, does not have the format, or has elements of a type that is not a [`DType`].
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, NpyError> {
        let path = path.into();
        let file = Opened::open(&path)?;
        let (head, skip) = header::read(&file)?;
        Ok(Self {
            path,
            head,
            skip,
            stamp: file.stamp(),
        })
    }

    /// Writes elements as an array of the given shape, in row-major order. The file gets its name when it is complete. An existing file
    /// of this name stays until then.
    ///
    /// # Errors
    /// Returns [`NpyError::Shape`] if the number of elements does not match the shape, [`TensorError::Rank`] if the shape has more than 64
    /// dimensions, and an error if the file cannot be written.
    pub fn write<T: Element>(path: impl AsRef<Path>, shape: &[u64], elements: &[T]) -> Result<(), NpyError> {
        if shape.len() > MOST_DIMS {
            return Err(NpyError::Tensor(TensorError::Rank {
                found: shape.len(),
                most: MOST_DIMS,
            }));
        }
        let expected = shape.iter().try_fold(1u64, |all, size| all.checked_mul(*size));
        if expected != Some(elements.len() as u64) {
            return Err(NpyError::Shape {
                shape: shape.to_vec(),
                expected: expected.unwrap_or(u64::MAX),
                found: elements.len() as u64,
            });
        }
        replace(path.as_ref(), |file| {
            file.write_all(&header::made(T::DTYPE, shape))?;
            file.write_all(bytemuck::cast_slice(elements))
        })?;
        Ok(())
    }

    /// Writes a tensor, like [`write`](Self::write). A view that is not contiguous is written in the order of its elements, without
    /// a copy.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn write_tensor(path: impl AsRef<Path>, tensor: &Tensor) -> Result<(), NpyError> {
        let shape: Vec<u64> = tensor.shape().iter().map(|size| *size as u64).collect();
        let tensor = tensor.view()?;
        replace(path.as_ref(), |file| {
            file.write_all(&header::made(tensor.dtype(), &shape))?;
            tensor.write_to(file)
        })?;
        Ok(())
    }

    /// Returns the type of the elements.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.head.dtype
    }

    /// Returns the sizes of the dimensions. A single value has none.
    #[must_use]
    pub fn shape(&self) -> &[u64] {
        &self.head.shape
    }

    /// Returns whether the array is in Fortran order, in which the first dimension is contiguous.
    #[must_use]
    pub fn is_fortran_order(&self) -> bool {
        self.head.fortran
    }

    /// Reads the whole array into a tensor in host memory of the current [set of pools](fn@millpond_set::pools). An array in Fortran
    /// order becomes a transposed view.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated, if the length of the file does not match the shape, or if the byte of a boolean
    /// element is neither 0 nor 1.
    pub fn tensor(&self) -> Result<Tensor, NpyError> {
        self.read_to(millpond_set::pools::storage)
    }

    /// Like [`tensor`](Self::tensor), from the given pool, tenant or source.
    ///
    /// # Errors
    /// Returns the errors of [`tensor`](Self::tensor).
    pub fn tensor_in(&self, from: &impl Origin) -> Result<Tensor, NpyError> {
        self.read_to(|dtype, elements| Storage::zeroed(from.handle().0, dtype, elements))
    }

    fn read_to(
        &self,
        storage: impl FnOnce(DType, usize) -> Result<Storage, AllocError>,
    ) -> Result<Tensor, NpyError> {
        let dtype = self.head.dtype;
        let files = self.elements()?;
        let sizes = self.sizes()?;
        let tensor =
            load::tensor::<NpyError>(&self.path, dtype, &sizes, storage, |bytes| files.read(0, bytes))?;
        if self.head.fortran {
            return Ok(tensor.permute(&*last_first(sizes.len())?)?);
        }
        Ok(tensor)
    }

    /// Opens the file with one element per row. Returns an error if the file has changed, or if its length does not match the shape.
    fn elements(&self) -> Result<Files, NpyError> {
        let files = Files::open(
            std::slice::from_ref(&self.path),
            self.skip,
            self.head.dtype.size(),
        )?;
        files.expect(self.stamp)?;
        self.expect(files.rows(), 1)?;
        Ok(files)
    }

    /// Returns an error if the file does not have the number of elements that its header describes.
    fn expect(&self, rows: u64, row: usize) -> Result<(), NpyError> {
        let expected = self.head.shape.iter().product();
        let found = rows.saturating_mul(row as u64);
        if found == expected {
            return Ok(());
        }
        Err(NpyError::Shape {
            shape: self.head.shape.clone(),
            expected,
            found,
        })
    }

    /// Returns the sizes of the dimensions in memory order: the last is the contiguous one.
    fn sizes(&self) -> Result<Dims, TensorError> {
        let mut sizes = sizes_of(&self.head.shape)?;
        if self.head.fortran {
            sizes.reverse();
        }
        Ok(sizes)
    }

    /// Returns the array as a data set of rows along the first dimension, for batches, passes or maps.
    ///
    /// # Errors
    /// Returns an error if the elements have another type or are in Fortran order, or if the length of the file does not match the
    /// shape.
    pub fn rows<T: Element>(&self) -> Result<DataSet<T>, NpyError> {
        Self::joined(std::slice::from_ref(self))
    }

    /// Returns the arrays of several files as one data set. The rows of a file follow those of the file before it.
    ///
    /// ```
    /// # let folder = std::env::temp_dir().join(format!("millpond-shards-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder)?;
    /// # let paths = ["a.npy", "b.npy"].map(|name| folder.join(name));
    /// use millpond::Npy;
    ///
    /// Npy::write(&paths[0], &[2, 3], &[0, 1, 2, 3, 4, 5])?;
    /// Npy::write(&paths[1], &[1, 3], &[6, 7, 8])?;
    /// let data = Npy::rows_of::<i32, _>(&paths)?;
    /// assert_eq!((data.rows(), &data.batch(1, 2)?[..]), (3, &[3, 4, 5, 6, 7, 8][..]));
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`open`](Self::open) and [`rows`](Self::rows) for each file, [`NpyError::OtherRows`] if the rows do
    /// not all have one shape, and [`DataError::NoFiles`] if there are no files.
    pub fn rows_of<T: Element, P: Into<PathBuf>>(
        paths: impl IntoIterator<Item = P>,
    ) -> Result<DataSet<T>, NpyError> {
        let all = paths.into_iter().map(Self::open).collect::<Result<Vec<_>, _>>()?;
        Self::joined(&all)
    }

    fn joined<T: Element>(all: &[Self]) -> Result<DataSet<T>, NpyError> {
        let first = all.first().ok_or(DataError::NoFiles)?;
        let (_, row) = load::rows_of(&first.head.shape);
        for npy in all {
            npy.expect_rows::<T>(first)?;
        }
        let mut files = Files::of(DataSet::<T>::bytes_of(row)?);
        for npy in all {
            let part = files.add(&npy.path, npy.skip)?;
            part.file.expect(npy.stamp)?;
            npy.expect(part.rows, row)?;
        }
        Ok(DataSet::of(files, row))
    }

    /// Returns an error if the elements are not of type `T`, if the array is in Fortran order, or if its rows have another shape than
    /// those of the first file.
    fn expect_rows<T: Element>(&self, first: &Self) -> Result<(), NpyError> {
        let path = || self.path.clone();
        if T::DTYPE != self.head.dtype {
            return Err(NpyError::OtherType {
                path: path(),
                expected: T::DTYPE,
                found: self.head.dtype,
            });
        }
        // Both orders are the same for one dimension.
        if self.head.fortran && self.head.shape.len() > 1 {
            return Err(NpyError::FortranOrder { path: path() });
        }
        let row = |npy: &Self| npy.head.shape.get(1..).unwrap_or(&[]).to_vec();
        let (expected, found) = (row(first), row(self));
        if expected == found {
            return Ok(());
        }
        Err(NpyError::OtherRows {
            path: path(),
            expected,
            found,
        })
    }

    /// Maps the file into memory. The array can then be viewed without a copy.
    ///
    /// # Safety
    /// The file must not be written or truncated while the map exists. A write would change the contents of views, and an access to a
    /// truncated part ends the process with SIGBUS. Replacing the file by another one, as [`write`](Self::write) does, is allowed.
    /// [`tensor`](Self::tensor) and [`rows`](Self::rows) do not have this requirement.
    ///
    /// # Errors
    /// Returns an error if the length of the file does not match the shape, if the file has changed since its header was read, or
    /// if it cannot be mapped, and [`DataError::Misaligned`] if the elements do not begin at a multiple of their alignment.
    pub unsafe fn map(&self) -> Result<MappedNpy, NpyError> {
        // SAFETY: the caller guarantees it.
        unsafe { MappedNpy::new(self) }
    }
}
