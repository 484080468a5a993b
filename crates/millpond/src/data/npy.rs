//! NumPy's `.npy` files: the header read and written, the elements left where they are.
//!
//! The format is "NEP 1, A Simple File Format for NumPy Arrays", versions 1.0, 2.0 and 3.0: a magic string, a dictionary of
//! Python literals that says type, order and shape, and the elements.

mod header;
mod mapped;

pub use mapped::MappedNpy;

use super::files::{Files, Opened, Stamp};
use super::load::{self, Sizes};
use super::replace::replace;
use super::{DataError, DataSet};
use crate::block::Origin;
use crate::dtype::{DType, Element};
use crate::error::AllocError;
use crate::storage::Storage;
use crate::tensor::{Tensor, TensorError};
use header::{Head, MOST_DIMS};
use std::io::Write;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a `.npy` file is not read or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NpyError {
    /// The file is not what its name says, or it is damaged.
    #[error("{path} is no .npy file: {why}", path = path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        why: String,
    },
    /// NumPy can have such elements, and this crate cannot.
    #[error(
        "{path}: elements of type {descr} cannot be read: save them in this machine's byte order as one of bool, i1 to i8, u1 to u8, f2 to f8, c8, c16",
        path = path.display(),
        descr = descr.replace(char::is_control, "?")
    )]
    Type {
        /// The file.
        path: PathBuf,
        /// What the file says, as it says it.
        descr: String,
    },
    /// Other elements were asked for.
    #[error("{path} has elements of {found}, not {expected}", path = path.display())]
    OtherType {
        /// The file.
        path: PathBuf,
        /// What was asked for.
        expected: DType,
        /// What there is.
        found: DType,
    },
    /// The first dimension lies closest together, so there are no rows in it.
    #[error(
        "{path} is in Fortran order, so its rows are not one after the other: save `numpy.ascontiguousarray` of it",
        path = path.display()
    )]
    FortranOrder {
        /// The file.
        path: PathBuf,
    },
    /// The rows of one file are of another shape than those of the first.
    #[error("{path} has rows of shape {found:?}, and the first file of shape {expected:?}", path = path.display())]
    OtherRows {
        /// The file.
        path: PathBuf,
        /// Shape of the first file's rows.
        expected: Vec<u64>,
        /// Shape of this one's.
        found: Vec<u64>,
    },
    /// The elements are not as many as the shape says.
    #[error("the shape {shape:?} has {expected} elements, and there are {found}")]
    Shape {
        /// The shape.
        shape: Vec<u64>,
        /// Elements of that shape.
        expected: u64,
        /// Elements there are.
        found: u64,
    },
    /// The file cannot be read or written, or is no longer what it was.
    #[error(transparent)]
    Data(#[from] DataError),
    /// There is no memory for the tensor, or no tensor of such a shape.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// A `.npy` file, of which the header was read.
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
    head: Head,
    /// Where the elements begin.
    skip: u64,
    /// What the header was read of.
    stamp: Stamp,
}

impl Npy {
    /// Reads the header of a file, and nothing else.
    ///
    /// # Errors
    /// Where it cannot be read, is no such file, or has elements of a type that is no [`DType`].
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

    /// Writes elements as an array of a shape, its last dimension closest together. The file appears under its name when it is
    /// complete, and one that was there stays until then.
    ///
    /// # Errors
    /// [`NpyError::Shape`] where there are not so many elements; where the file cannot be written.
    pub fn write<T: Element>(path: impl AsRef<Path>, shape: &[u64], elements: &[T]) -> Result<(), NpyError> {
        let expected = shape.iter().try_fold(1u64, |all, size| all.checked_mul(*size));
        if expected != Some(elements.len() as u64) || shape.len() > MOST_DIMS {
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

    /// Writes a tensor, as [`write`](Self::write) does; elements of a view that is not contiguous are written in its order,
    /// without a copy.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub fn write_tensor(path: impl AsRef<Path>, tensor: &Tensor) -> Result<(), NpyError> {
        let shape: Vec<u64> = tensor.shape().iter().map(|size| *size as u64).collect();
        let tensor = tensor.view()?;
        replace(path.as_ref(), |file| {
            file.write_all(&header::made(tensor.dtype(), &shape))?;
            tensor.write_to(file)
        })?;
        Ok(())
    }

    /// Type of the elements.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.head.dtype
    }

    /// Sizes of the dimensions; none of a single value.
    #[must_use]
    pub fn shape(&self) -> &[u64] {
        &self.head.shape
    }

    /// Whether the first dimension lies closest together, and not the last.
    #[must_use]
    pub fn is_fortran_order(&self) -> bool {
        self.head.fortran
    }

    /// The whole array as a tensor of host memory, from the [set of pools](crate::pools) that holds here. One in Fortran order
    /// is a transposed view.
    ///
    /// # Errors
    /// Where there is no memory for it, the file is not as long as its shape says, or a byte of its bools is neither 0 nor 1.
    pub fn tensor(&self) -> Result<Tensor, NpyError> {
        self.read_to(crate::pools::storage)
    }

    /// The same from a pool, a tenant or a source.
    ///
    /// # Errors
    /// As [`tensor`](Self::tensor).
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
            return Ok(tensor.permute(&*Sizes::last_first(sizes.len())?)?);
        }
        Ok(tensor)
    }

    /// The file as it was when its header was read, each of its elements a row.
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

    /// Refuses a file that has other rows than its header says.
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

    /// Sizes of the dimensions in the order in which they lie: the last is the one that lies closest together.
    fn sizes(&self) -> Result<Sizes, TensorError> {
        let mut sizes = Sizes::of(&self.head.shape)?;
        if self.head.fortran {
            sizes.reverse();
        }
        Ok(sizes)
    }

    /// The array as rows along its first dimension, to be read in batches, passed through or mapped.
    ///
    /// # Errors
    /// Where the elements are of another type or in Fortran order, or the file is not as long as its shape says.
    pub fn rows<T: Element>(&self) -> Result<DataSet<T>, NpyError> {
        Self::joined(std::slice::from_ref(self))
    }

    /// The arrays of several files as rows of one data set, those of a file after those of the file before it.
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
    /// As [`open`](Self::open) and [`rows`](Self::rows) of each; [`NpyError::OtherRows`] where rows are not all of one shape,
    /// [`DataError::NoFiles`] where there are no files.
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

    /// Refuses rows of another type or shape than the first file's, and those that are none.
    fn expect_rows<T: Element>(&self, first: &Self) -> Result<(), NpyError> {
        let path = || self.path.clone();
        if T::DTYPE != self.head.dtype {
            return Err(NpyError::OtherType {
                path: path(),
                expected: T::DTYPE,
                found: self.head.dtype,
            });
        }
        // In one dimension both orders are the same.
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

    /// Maps the file, for a view without a copy.
    ///
    /// # Safety
    /// As long as the map lives nobody writes to the file or cuts it: what a view shows would change under it, and what is
    /// cut off ends the process with SIGBUS when it is looked at. To put another file in its place, as [`write`](Self::write)
    /// does, is no change of it. Reads by [`tensor`](Self::tensor) and [`rows`](Self::rows) need no such promise.
    ///
    /// # Errors
    /// Where the file is not as long as its shape says or has changed since its header was read, where it cannot be mapped,
    /// and [`DataError::Misaligned`] where its elements do not begin at a multiple of their alignment.
    pub unsafe fn map(&self) -> Result<MappedNpy, NpyError> {
        // SAFETY: what the caller promises.
        unsafe { MappedNpy::new(self) }
    }
}
