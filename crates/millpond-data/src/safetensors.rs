//! safetensors files: tensors by name, which are read on request, copied or mapped.
//!
//! The format is that of the crate `safetensors` 0.8. Its reader is used in tests only, for these reasons. It needs all bytes in
//! memory, so a large file has to be mapped, and truncation of a mapped file causes a SIGBUS. It silently keeps one of two tensors
//! with the same name. One unknown type makes the whole file unreadable. Its errors are strings.

mod header;
mod mapped;
mod write;

pub use header::TensorInfo;
pub use mapped::MappedTensors;

use super::files::{Files, Opened};
use super::load::{self, rows_of, sizes_of};
use super::{DataError, DataSet};
use header::Header;
use millpond_account::error::AllocError;
use millpond_pool::block::Origin;
use millpond_pool::dtype::{DType, DTypeError, Element};
use millpond_pool::storage::Storage;
use millpond_tensor::{Output, Tensor, TensorError};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;

/// An error of reading or writing a safetensors file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SafeTensorsError {
    /// The file does not have the format, or it is damaged.
    #[error("{path} is not a valid safetensors file: {why}", path = path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// The problem and its place.
        why: String,
    },
    /// The name of a tensor or a key of the metadata occurs twice.
    #[error("{path} has the name {name:?} twice: names must be unique", path = path.display())]
    Duplicate {
        /// The file.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// Tensors overlap, or bytes between them belong to no tensor.
    #[error(
        "{path} is not a valid safetensors file: {name:?} occupies bytes {begin} to {end} of the data, but must begin at {expected}: tensors must follow each other without gaps or overlaps",
        path = path.display()
    )]
    Offsets {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The offset of its first byte in the data.
        begin: u64,
        /// The offset of its end.
        end: u64,
        /// The end of the tensor before it.
        expected: u64,
    },
    /// The tensors do not fill the file: it was truncated, or something was appended.
    #[error(
        "{path} has {found} bytes of data, but its tensors have {expected}: it was truncated, or something was appended",
        path = path.display()
    )]
    Length {
        /// The file.
        path: PathBuf,
        /// The bytes of all tensors.
        expected: u64,
        /// The bytes of data in the file.
        found: u64,
    },
    /// The number of bytes of a tensor does not match its type and shape, or overflows.
    #[error(
        "{path} is not a valid safetensors file: {name:?} has {bytes} bytes, which does not match type {type_name:?} and shape {shape:?}",
        path = path.display()
    )]
    Shape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The type of its elements as written in the file.
        type_name: String,
        /// Its shape.
        shape: Vec<u64>,
        /// The number of its bytes.
        bytes: u64,
    },
    /// The file has no tensor of this name.
    #[error("{path} has no tensor {name:?}: `names` lists its tensors", path = path.display())]
    NoTensor {
        /// The file.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// The format supports the element type, but this crate does not support it on this machine.
    #[error(
        "{path}: the elements of {name:?} have type {type_name:?}, which is not supported: cast the tensor before it is saved",
        path = path.display()
    )]
    Type {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The type of its elements as written in the file.
        type_name: String,
    },
    /// The format does not support the element type, or this machine is not little-endian.
    #[error("the format does not support {dtype}, the type of {name:?}: cast the tensor first")]
    Unwritable {
        /// The tensor.
        name: String,
        /// The type of its elements.
        dtype: DType,
    },
    /// The name is reserved for the metadata of a file.
    #[error("a tensor cannot have the name {name:?}, which the format reserves: choose another name")]
    Name {
        /// The name.
        name: String,
    },
    /// The file cannot be read or written, has changed, or a tensor in it is not aligned for a view of a map.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Memory for a tensor cannot be allocated, a tensor cannot have the shape, or an output has another type or shape.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// Returns the beginning of a text for an error message, because the whole text may have megabytes.
fn shown(text: &str) -> String {
    text.chars().take(120).collect()
}

/// A safetensors file whose header was read. Tensors are read on request.
///
/// The file stays open. Reads copy (`pread`), so a file that is truncated or written concurrently causes an error and never a
/// crash. After each read the file's size and modification time are compared with those when it was opened. A caller that can
/// guarantee that the file does not change can [map](Self::map) it, for views without a copy.
///
/// ```
/// # let path = std::env::temp_dir().join(format!("millpond-weights-{}.safetensors", std::process::id()));
/// use millpond::{DType, Pool, SafeTensors, Tensor};
///
/// let weights = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
/// let bias = Tensor::zeros([2], DType::F32)?;
/// let tensors = [("layer.weight", weights.view()?), ("layer.bias", bias.view()?)];
/// SafeTensors::write(&path, &tensors, &[("format", "pt")])?;
///
/// let file = SafeTensors::open(&path)?;
/// assert_eq!(file.names().collect::<Vec<_>>(), ["layer.weight", "layer.bias"]);
/// assert_eq!(file.metadata().next(), Some(("format", "pt")));
/// assert_eq!(file.info("layer.weight")?.shape(), [2, 2]);      // nothing is read yet
///
/// let pool = Pool::host()?;
/// let mut loaded = file.load_in(&pool, "layer.weight")?;
/// assert_eq!(loaded.as_slice::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
/// file.load_into("layer.weight", &mut loaded)?;                // loads it again and allocates nothing
/// assert!(loaded.as_slice::<f64>().is_err() && file.load("layer.wieght").is_err());
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct SafeTensors {
    file: Arc<Opened>,
    header: Arc<Header>,
}

impl fmt::Debug for SafeTensors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "SafeTensors({} tensors in {})",
            self.len(),
            self.file.path().display()
        )
    }
}

impl SafeTensors {
    /// Reads the header of a file, but not the tensors.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or does not have the format, or if memory for the header cannot be allocated.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, SafeTensorsError> {
        let file = Opened::open(path.as_ref())?;
        let header = Header::read(&file)?;
        Ok(Self {
            file: Arc::new(file),
            header: Arc::new(header),
        })
    }

    /// Returns the number of tensors in the file.
    #[must_use]
    pub fn len(&self) -> usize {
        self.header.tensors().len()
    }

    /// Returns whether there are no tensors.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the names of the tensors in the order of their data. Loading the tensors in this order reads the file from its
    /// beginning to its end.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.header.tensors().map(|tensor| tensor.name)
    }

    /// Returns the descriptions of the tensors, in the order of [`names`](Self::names).
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = TensorInfo<'_>> {
        self.header.tensors()
    }

    /// Returns the description of a tensor.
    ///
    /// # Errors
    /// Returns [`SafeTensorsError::NoTensor`] if there is no tensor of this name.
    pub fn info(&self, name: &str) -> Result<TensorInfo<'_>, SafeTensorsError> {
        self.header.find(name).ok_or_else(|| SafeTensorsError::NoTensor {
            path: self.file.path().to_owned(),
            name: shown(name),
        })
    }

    /// Returns the metadata of the file, keys and values, in the order of the keys.
    pub fn metadata(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.header.metadata()
    }

    /// Copies a tensor to host memory of the current [set of pools](fn@millpond_set::pools).
    ///
    /// # Errors
    /// Returns an error if there is no tensor of this name, if this crate does not support its type, if memory cannot be allocated,
    /// if the file has changed since it was opened, or if the byte of a boolean element is neither 0 nor 1.
    pub fn load(&self, name: &str) -> Result<Tensor, SafeTensorsError> {
        self.read_to(name, millpond_set::pools::storage)
    }

    /// Like [`load`](Self::load), from the given pool, tenant or source.
    ///
    /// # Errors
    /// Returns the errors of [`load`](Self::load).
    pub fn load_in(&self, from: &impl Origin, name: &str) -> Result<Tensor, SafeTensorsError> {
        self.read_to(name, |dtype, elements| {
            Storage::zeroed(from.handle().0, dtype, elements)
        })
    }

    /// Returns a tensor as a data set of rows along its first dimension, for batches, passes or maps.
    ///
    /// ```
    /// # let path = std::env::temp_dir().join(format!("millpond-table-{}.safetensors", std::process::id()));
    /// use millpond::{SafeTensors, Tensor};
    ///
    /// let table = Tensor::arange(0.0f32, 12.0, 1.0)?.reshape([4, 3])?;
    /// SafeTensors::write(&path, &[("other", table.view()?), ("embedding", table.view()?)], &[])?;
    ///
    /// let rows = SafeTensors::open(&path)?.rows::<f32>("embedding")?;
    /// assert_eq!((rows.rows(), &rows.batch(2, 1)?[..]), (4, &[6.0, 7.0, 8.0][..]));
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if there is no tensor of this name, if its elements have another type, if a row has no elements, or if the
    /// file has changed since it was opened.
    pub fn rows<T: Element>(&self, name: &str) -> Result<DataSet<T>, SafeTensorsError> {
        let info = self.info(name)?;
        let found = self.dtype(&info)?;
        if found != T::DTYPE {
            let expected = T::DTYPE;
            return Err(TensorError::from(DTypeError { expected, found }).into());
        }
        let (rows, row) = rows_of(info.shape());
        let mut files = Files::of(DataSet::<T>::bytes_of(row)?);
        // The header was checked, so the rows lie inside the file.
        files.push(self.file.again()?, self.place(&info), rows)?;
        Ok(DataSet::of(files, row))
    }

    /// Reads a tensor into an existing one of the same type and shape, whose elements are contiguous. Allocates nothing.
    ///
    /// # Errors
    /// Returns the errors of [`load`](Self::load), and an error if the type or shape differs or the output cannot be written. After
    /// an error of the file the contents of the output are unspecified.
    pub fn load_into(&self, name: &str, out: &mut impl Output) -> Result<(), SafeTensorsError> {
        let info = self.info(name)?;
        let dtype = self.dtype(&info)?;
        let mut out = out.output()?;
        let (operation, left) = ("load_into", out.dtype());
        if left != dtype {
            let right = dtype;
            return Err(TensorError::DTypes {
                operation,
                left,
                right,
                shapes: [out.shape().into(), (*sizes_of(info.shape)?).into()],
            }
            .into());
        }
        let shape = sizes_of(info.shape)?;
        if *out.shape() != *shape {
            return Err(TensorError::Shapes {
                operation,
                left: out.shape().into(),
                right: (*shape).into(),
                rule: "the output must have the shape of the tensor in the file",
            }
            .into());
        }
        let bytes = out.as_mut_bytes()?;
        self.file.read(self.place(&info), bytes)?;
        if dtype == DType::Bool && bytes.iter().any(|byte| *byte > 1) {
            let path = self.file.path().to_owned();
            return Err(DataError::NotBools { path }.into());
        }
        Ok(())
    }

    fn read_to(
        &self,
        name: &str,
        storage: impl FnOnce(DType, usize) -> Result<Storage, AllocError>,
    ) -> Result<Tensor, SafeTensorsError> {
        let info = self.info(name)?;
        let (dtype, shape) = (self.dtype(&info)?, sizes_of(info.shape)?);
        load::tensor(self.file.path(), dtype, &shape, storage, |bytes| {
            self.file.read(self.place(&info), bytes)
        })
    }

    /// Returns the offset of a tensor in the file.
    fn place(&self, info: &TensorInfo<'_>) -> u64 {
        // The header was checked, so the offset lies inside the file.
        self.header.data + info.begin
    }

    fn dtype(&self, info: &TensorInfo<'_>) -> Result<DType, SafeTensorsError> {
        info.dtype().ok_or_else(|| SafeTensorsError::Type {
            path: self.file.path().to_owned(),
            name: shown(info.name),
            type_name: shown(info.type_name),
        })
    }

    /// Maps the file into memory. The tensors can then be viewed without a copy.
    ///
    /// # Safety
    /// The file must not be written or truncated while the map exists. A write would change the contents of views, and an access to
    /// a truncated part ends the process with SIGBUS. Replacing the file by another one, as [`write`](Self::write) does, is
    /// allowed. [`load`](Self::load) does not have this requirement.
    ///
    /// # Errors
    /// Returns [`DataError::Changed`] if the file has changed since it was opened, and [`DataError::Io`] if it cannot be mapped.
    pub unsafe fn map(&self) -> Result<MappedTensors, SafeTensorsError> {
        // SAFETY: the caller guarantees it.
        unsafe { MappedTensors::new(self) }
    }
}
