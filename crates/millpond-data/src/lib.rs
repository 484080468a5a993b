//! Data sets larger than memory: files of elements that are read in batches, in any order, ahead of the computation.
//!
//! This crate is a part of [millpond](https://docs.rs/millpond), which re-exports its public names. Programs should depend on millpond:
//! the names that only millpond's own crates need may change without notice.

#![cfg(target_os = "linux")]
#![deny(unsafe_op_in_unsafe_fn)]

mod error;
mod files;
mod load;
mod mapped;
mod npy;
mod order;
mod pass;
mod progress;
mod replace;
#[cfg(feature = "safetensors")]
mod safetensors;
mod sieve;

pub use error::DataError;
pub use mapped::{Access, Mapped};
pub use npy::{MappedNpy, Npy, NpyError};
pub use order::Order;
pub use pass::{Chunk, Pass};
#[cfg(feature = "cuda")]
pub use pass::{DeviceChunk, DevicePass};
pub use progress::Progress;
#[cfg(feature = "safetensors")]
pub use safetensors::{MappedTensors, SafeTensors, SafeTensorsError, TensorInfo};

use files::Files;
use millpond_pool::block::ALIGN;
use millpond_pool::block::Origin;
use millpond_pool::buffer::Buffer;
use millpond_pool::dtype::Element;
use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Rows of elements in one or more files, in the byte order of this machine. Only the rows that are requested are in memory.
///
/// Reads copy (`pread`), so a file that is truncated or written concurrently causes an error and never a crash. After each read the
/// file's size and modification time are compared with those when it was opened ([`DataError::Changed`]).
///
/// ```
/// # let folder = std::env::temp_dir().join(format!("millpond-data-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// # let path = folder.join("samples.f32");
/// # let values: Vec<f32> = (0..100_000).map(|n| n as f32).collect();
/// # std::fs::write(&path, millpond::bytemuck::cast_slice::<f32, u8>(&values))?;
/// use millpond::DataSet;
///
/// let data = DataSet::<f32>::builder().file(&path).row(10).open()?;
/// assert_eq!(data.rows(), 10_000);
/// let batch = data.batch(9_990, 64)?;                          // the last ten rows: a batch ends at the end of the data
/// assert_eq!((batch.len(), batch[0]), (100, 99_900.0));
///
/// // Each row is visited once. Another thread reads ahead into buffers of the pool, at most 16 MiB in total.
/// let mut sum = 0.0;
/// let passed = data.pass().budget(16 << 20).for_each(|chunk| {
///     sum += chunk.iter().map(|x| f64::from(*x)).sum::<f64>();
/// })?;
/// assert_eq!((sum, passed.rows), (4_999_950_000.0, 10_000));
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DataSet<T> {
    files: Arc<Files>,
    /// The number of elements of a row.
    row: usize,
    of: PhantomData<fn() -> T>,
}

impl<T> Clone for DataSet<T> {
    fn clone(&self) -> Self {
        Self {
            files: Arc::clone(&self.files),
            ..*self
        }
    }
}

impl<T: Element> fmt::Debug for DataSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "DataSet({} rows of {} {} in {} files)",
            self.rows(),
            self.row,
            T::DTYPE,
            self.files.count()
        )
    }
}

/// The builder of a [`DataSet`].
///
/// ```
/// # let folder = std::env::temp_dir().join(format!("millpond-builder-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// # for name in ["b.u16", "a.u16"] {
/// #     std::fs::write(folder.join(name), [7, 7, 1, 0, 2, 0])?;
/// # }
/// use millpond::DataSet;
///
/// let data = DataSet::<u16>::builder().folder(&folder, ".u16")?.skip(2).row(2).open()?;
/// assert_eq!((data.rows(), &data.batch(1, 1)?[..]), (2, &[1, 2][..]));
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct DataSetBuilder<T> {
    paths: Vec<PathBuf>,
    skip: u64,
    row: usize,
    of: PhantomData<fn() -> T>,
}

impl<T: Element> DataSetBuilder<T> {
    /// Adds a file. The rows of the next file follow its rows.
    #[must_use]
    pub fn file(mut self, path: impl Into<PathBuf>) -> Self {
        self.paths.push(path.into());
        self
    }

    /// Adds files, in this order.
    #[must_use]
    pub fn files<P: Into<PathBuf>>(mut self, paths: impl IntoIterator<Item = P>) -> Self {
        self.paths.extend(paths.into_iter().map(Into::into));
        self
    }

    /// Adds the files of a folder whose names end with `end`, in the order of their names. An empty `end` selects all files.
    ///
    /// # Errors
    /// Returns [`DataError::Io`] if the folder cannot be read.
    pub fn folder(mut self, folder: impl AsRef<Path>, end: &str) -> Result<Self, DataError> {
        self.paths.extend(files::listed(folder.as_ref(), end)?);
        Ok(self)
    }

    /// Sets the number of bytes at the beginning of each file that are skipped. The default is 0.
    #[must_use]
    pub fn skip(mut self, bytes: u64) -> Self {
        self.skip = bytes;
        self
    }

    /// Sets the number of elements of a row, the unit that is counted and shuffled. The default is 1.
    #[must_use]
    pub fn row(mut self, elements: usize) -> Self {
        self.row = elements;
        self
    }

    /// Opens every file.
    ///
    /// # Errors
    /// Returns an error if a file cannot be opened, is not a regular file, or does not consist of whole rows, and if there are no
    /// files or a row has no bytes.
    pub fn open(self) -> Result<DataSet<T>, DataError> {
        let row_bytes = DataSet::<T>::bytes_of(self.row)?;
        Ok(DataSet::of(
            Files::open(&self.paths, self.skip, row_bytes)?,
            self.row,
        ))
    }
}

impl<T: Element> DataSet<T> {
    /// Creates a data set of files whose rows have `row` elements.
    fn of(files: Files, row: usize) -> Self {
        debug_assert_eq!(files.row_bytes(), row * size_of::<T>());
        Self {
            files: Arc::new(files),
            row,
            of: PhantomData,
        }
    }

    /// Returns the size of a row of `row` elements in bytes.
    fn bytes_of(row: usize) -> Result<usize, DataError> {
        let bytes = row
            .checked_mul(size_of::<T>())
            .filter(|bytes| *bytes > 0 && *bytes <= isize::MAX as usize);
        bytes.ok_or(DataError::Row { elements: row })
    }

    /// Opens one file with rows of one element.
    ///
    /// # Errors
    /// Returns the errors of [`DataSetBuilder::open`].
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, DataError> {
        Self::builder().file(path).open()
    }

    /// Returns a builder.
    #[must_use]
    pub fn builder() -> DataSetBuilder<T> {
        DataSetBuilder {
            paths: Vec::new(),
            skip: 0,
            row: 1,
            of: PhantomData,
        }
    }

    /// Returns the number of rows in all files.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.files.rows()
    }

    /// Returns the number of elements of a row.
    #[must_use]
    pub fn row(&self) -> usize {
        self.row
    }

    /// Returns the size of all rows in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.rows() * self.row_bytes() as u64
    }

    pub(crate) fn row_bytes(&self) -> usize {
        self.files.row_bytes()
    }

    /// Reads rows from `start` on into `out` and returns their number. Stops at the end of the data, or when no whole row fits into the
    /// rest of `out`.
    ///
    /// # Errors
    /// Returns [`DataError::Io`], [`DataError::Truncated`] or [`DataError::Changed`].
    pub fn read(&self, start: u64, out: &mut [T]) -> Result<usize, DataError> {
        let rows = self.clamp(start, out.len() / self.row);
        let out = out.get_mut(..rows * self.row).unwrap_or(&mut []);
        self.files.read(start, bytemuck::cast_slice_mut(out))?;
        Ok(rows)
    }

    /// Reads `count` rows from `start` on, or fewer at the end of the data, into a buffer of the current [set of
    /// pools](fn@millpond_set::pools).
    ///
    /// # Errors
    /// Returns the errors of [`read`](Self::read), and [`DataError::Memory`].
    pub fn batch(&self, start: u64, count: usize) -> Result<Buffer<T>, DataError> {
        self.read_to(start, count, |elements| {
            millpond_set::pools::alloc_zeroed(elements)
        })
    }

    /// Like [`batch`](Self::batch), with a buffer of the given pool, tenant or source.
    ///
    /// # Errors
    /// Returns the errors of [`batch`](Self::batch).
    pub fn batch_in(&self, from: &impl Origin, start: u64, count: usize) -> Result<Buffer<T>, DataError> {
        self.read_to(start, count, |elements| {
            Buffer::zeroed(from.handle().0, elements, ALIGN)
        })
    }

    fn read_to(
        &self,
        start: u64,
        count: usize,
        alloc: impl FnOnce(usize) -> Result<Buffer<T>, millpond_account::AllocError>,
    ) -> Result<Buffer<T>, DataError> {
        let mut buffer = alloc(self.clamp(start, count) * self.row)?;
        self.read(start, &mut buffer)?;
        Ok(buffer)
    }

    /// Returns the number of rows from `start` on, at most `count`.
    fn clamp(&self, start: u64, count: usize) -> usize {
        let left = self.rows().saturating_sub(start);
        usize::try_from(left).map_or(count, |left| left.min(count))
    }

    /// Returns a pass over all rows in chunks that are read ahead.
    pub fn pass(&self) -> Pass<'_, T> {
        Pass::new(self)
    }

    /// Maps the files into memory. The rows can then be read as slices, without a copy.
    ///
    /// # Safety
    /// The files must not be written or truncated while the maps exist. A write would change the contents of slices, and an access to a
    /// truncated part ends the process with SIGBUS. [`read`](Self::read), [`batch`](Self::batch) and [`pass`](Self::pass) do not have
    /// this requirement.
    ///
    /// # Errors
    /// Returns [`DataError::Io`], or [`DataError::Misaligned`] if the elements do not begin at a multiple of their alignment.
    pub unsafe fn map(&self) -> Result<Mapped<T>, DataError> {
        // SAFETY: the caller guarantees it.
        unsafe { Mapped::new(&self.files) }
    }
}
