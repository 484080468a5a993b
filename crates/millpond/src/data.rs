//! Data sets larger than memory: files of elements, read in batches, in any order, ahead of the computation.

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

use crate::block::ALIGN;
use crate::block::Origin;
use crate::buffer::Buffer;
use crate::dtype::Element;
use files::Files;
use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Rows of elements in one file or many, in the byte order of this machine, of which no more is in memory than is asked for.
///
/// Reads copy (`pread`), so a file that is cut or written meanwhile is an error and never a crash. After each read the file is
/// compared with what it was when it was opened, by its size and the time it was last written ([`DataError::Changed`]).
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
/// let batch = data.batch(9_990, 64)?;                          // the last ten rows: a batch ends where the data ends
/// assert_eq!((batch.len(), batch[0]), (100, 99_900.0));
///
/// // Every row once, read ahead on another thread into buffers of the pool, of which there are 16 MiB at most.
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
    /// Elements of a row.
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

/// What a [`DataSet`] is made of.
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
    /// Adds a file; the rows of the next one follow its own.
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

    /// Adds the files of a folder whose names end so, in the order of their names; an empty `end` stands for all.
    ///
    /// # Errors
    /// [`DataError::Io`] where the folder cannot be read.
    pub fn folder(mut self, folder: impl AsRef<Path>, end: &str) -> Result<Self, DataError> {
        self.paths.extend(files::listed(folder.as_ref(), end)?);
        Ok(self)
    }

    /// Bytes at the beginning of each file that are no elements; none unless said otherwise.
    #[must_use]
    pub fn skip(mut self, bytes: u64) -> Self {
        self.skip = bytes;
        self
    }

    /// Elements of a row, which is what is counted, shuffled and never torn; 1 unless said otherwise.
    #[must_use]
    pub fn row(mut self, elements: usize) -> Self {
        self.row = elements;
        self
    }

    /// Opens every file.
    ///
    /// # Errors
    /// Where a file cannot be opened, is no regular file, or does not consist of whole rows; where no file is named or a row
    /// has no bytes.
    pub fn open(self) -> Result<DataSet<T>, DataError> {
        let row_bytes = DataSet::<T>::bytes_of(self.row)?;
        Ok(DataSet::of(
            Files::open(&self.paths, self.skip, row_bytes)?,
            self.row,
        ))
    }
}

impl<T: Element> DataSet<T> {
    /// Files, whose rows are of so many elements.
    fn of(files: Files, row: usize) -> Self {
        debug_assert_eq!(files.row_bytes(), row * size_of::<T>());
        Self {
            files: Arc::new(files),
            row,
            of: PhantomData,
        }
    }

    /// Bytes of a row of so many elements.
    fn bytes_of(row: usize) -> Result<usize, DataError> {
        let bytes = row
            .checked_mul(size_of::<T>())
            .filter(|bytes| *bytes > 0 && *bytes <= isize::MAX as usize);
        bytes.ok_or(DataError::Row { elements: row })
    }

    /// One file, and rows of one element.
    ///
    /// # Errors
    /// As [`DataSetBuilder::open`].
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, DataError> {
        Self::builder().file(path).open()
    }

    /// Describes a data set.
    #[must_use]
    pub fn builder() -> DataSetBuilder<T> {
        DataSetBuilder {
            paths: Vec::new(),
            skip: 0,
            row: 1,
            of: PhantomData,
        }
    }

    /// Rows in all files.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.files.rows()
    }

    /// Elements of a row.
    #[must_use]
    pub fn row(&self) -> usize {
        self.row
    }

    /// Bytes of all rows.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.rows() * self.row_bytes() as u64
    }

    pub(crate) fn row_bytes(&self) -> usize {
        self.files.row_bytes()
    }

    /// Reads rows from `start` on into memory of the caller's, as many whole ones as it holds and there are; answers how many.
    ///
    /// # Errors
    /// [`DataError::Io`], [`DataError::Truncated`], [`DataError::Changed`].
    pub fn read(&self, start: u64, out: &mut [T]) -> Result<usize, DataError> {
        let rows = self.clamp(start, out.len() / self.row);
        let out = out.get_mut(..rows * self.row).unwrap_or(&mut []);
        self.files.read(start, bytemuck::cast_slice_mut(out))?;
        Ok(rows)
    }

    /// `count` rows from `start` on, or as many as there are, in a buffer of the [set of pools](crate::pools) that holds here.
    ///
    /// # Errors
    /// As [`read`](Self::read), and [`DataError::Memory`].
    pub fn batch(&self, start: u64, count: usize) -> Result<Buffer<T>, DataError> {
        self.read_to(start, count, |elements| crate::pools::alloc_zeroed(elements))
    }

    /// The same in a buffer of a pool, a tenant or a source.
    ///
    /// # Errors
    /// As [`batch`](Self::batch).
    pub fn batch_in(&self, from: &impl Origin, start: u64, count: usize) -> Result<Buffer<T>, DataError> {
        self.read_to(start, count, |elements| {
            Buffer::zeroed(from.handle().0, elements, ALIGN)
        })
    }

    fn read_to(
        &self,
        start: u64,
        count: usize,
        alloc: impl FnOnce(usize) -> Result<Buffer<T>, crate::AllocError>,
    ) -> Result<Buffer<T>, DataError> {
        let mut buffer = alloc(self.clamp(start, count) * self.row)?;
        self.read(start, &mut buffer)?;
        Ok(buffer)
    }

    /// Rows from `start` on, at most `count`.
    fn clamp(&self, start: u64, count: usize) -> usize {
        let left = self.rows().saturating_sub(start);
        usize::try_from(left).map_or(count, |left| left.min(count))
    }

    /// A way through all rows, in chunks that are read ahead.
    pub fn pass(&self) -> Pass<'_, T> {
        Pass::new(self)
    }

    /// Maps the files, for slices without a copy.
    ///
    /// # Safety
    /// As long as the maps live nobody writes to the files or cuts them: what a slice shows would change under it, and what is
    /// cut off ends the process with SIGBUS when it is looked at. Reads by [`read`](Self::read), [`batch`](Self::batch) and
    /// [`pass`](Self::pass) need no such promise.
    ///
    /// # Errors
    /// [`DataError::Io`], and [`DataError::Misaligned`] where elements do not begin at a multiple of their alignment.
    pub unsafe fn map(&self) -> Result<Mapped<T>, DataError> {
        // SAFETY: what the caller promises.
        unsafe { Mapped::new(&self.files) }
    }
}
