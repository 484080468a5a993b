//! safetensors files: tensors by name, read when they are asked for, copied or mapped.
//!
//! The format is that of the crate `safetensors` 0.8. Its own reader is not used, but tested against: it looks only at bytes
//! that are all in memory, so at a map, which a file that is cut turns into a SIGBUS; of two tensors of one name it keeps
//! one and says nothing; one type that it does not know makes the whole file unreadable; and its errors are texts.

mod header;
mod mapped;
mod write;

pub use header::TensorInfo;
pub use mapped::MappedTensors;

use super::files::{Files, Opened};
use super::load::{self, Sizes, rows_of};
use super::{DataError, DataSet};
use crate::block::Origin;
use crate::dtype::{DType, DTypeError, Element};
use crate::error::AllocError;
use crate::storage::Storage;
use crate::tensor::{Output, Tensor, TensorError};
use header::Header;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;

/// Why a safetensors file is not read or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SafeTensorsError {
    /// The file is not what its name says, or it is damaged.
    #[error("{path} is no safetensors file: {why}", path = path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        why: String,
    },
    /// A name of a tensor or a key of the metadata is there twice.
    #[error("{path} has {name:?} twice: names stand for one tensor each", path = path.display())]
    Duplicate {
        /// The file.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// Tensors overlap, or bytes between them belong to none.
    #[error(
        "{path} is no safetensors file: {name:?} has bytes {begin} to {end} of its data, and should begin at {expected}: tensors follow each other without holes or overlaps",
        path = path.display()
    )]
    Offsets {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Where its bytes begin in the data.
        begin: u64,
        /// Where they end.
        end: u64,
        /// Where those of the tensor before it end.
        expected: u64,
    },
    /// The tensors are not all of the file: it was cut, or something was appended.
    #[error(
        "{path} has {found} bytes of data, and its tensors have {expected}: it was cut, or is not complete",
        path = path.display()
    )]
    Length {
        /// The file.
        path: PathBuf,
        /// Bytes of all tensors.
        expected: u64,
        /// Bytes there are.
        found: u64,
    },
    /// Type and shape of a tensor come to another number of bytes than it has, or to more than can be counted.
    #[error(
        "{path} is no safetensors file: {name:?} has {bytes} bytes, which is not what {type_name:?} of shape {shape:?} come to",
        path = path.display()
    )]
    Shape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The type of its elements, as the file says it.
        type_name: String,
        /// Its shape.
        shape: Vec<u64>,
        /// Its bytes.
        bytes: u64,
    },
    /// There is no tensor of this name.
    #[error("{path} has no tensor {name:?}: `names` says which there are", path = path.display())]
    NoTensor {
        /// The file.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// The format can have such elements, and this crate, on this machine, cannot.
    #[error(
        "{path}: elements of {name:?} are {type_name:?}, which is none of the types here: cast the tensor where it comes from",
        path = path.display()
    )]
    Type {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The type of its elements, as the file says it.
        type_name: String,
    },
    /// The format cannot have such elements, or this machine has another order of bytes.
    #[error("the format has no {dtype} for {name:?}: cast the tensor first")]
    Unwritable {
        /// The tensor.
        name: String,
        /// The type of its elements.
        dtype: DType,
    },
    /// The name stands for what a file says besides its tensors.
    #[error("no tensor can be called {name:?}: choose another name")]
    Name {
        /// The name.
        name: String,
    },
    /// The file cannot be read or written, is no longer what it was, or a tensor in it is not aligned for a view of a map.
    #[error(transparent)]
    Data(#[from] DataError),
    /// There is no memory for a tensor, no tensor of such a shape, or an output has another type or shape.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// A text for an error: the first of what may be megabytes.
fn shown(text: &str) -> String {
    text.chars().take(120).collect()
}

/// A safetensors file, of which the header was read. Tensors are read when they are asked for.
///
/// The file stays open. What is read is copied (`pread`), so a file that is cut or written meanwhile is an error and never
/// a crash; after each read the file is compared with what it was when it was opened, by its size and the time it was last
/// written. Who can promise that nobody changes the file [maps](Self::map) it, and has views without a copy.
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
/// file.load_into("layer.weight", &mut loaded)?;                // again, and no memory is allocated
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
    /// Reads the header of a file, and nothing else.
    ///
    /// # Errors
    /// Where it cannot be read or is no such file, and where there is no memory for what its header says.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, SafeTensorsError> {
        let file = Opened::open(path.as_ref())?;
        let header = Header::read(&file)?;
        Ok(Self {
            file: Arc::new(file),
            header: Arc::new(header),
        })
    }

    /// Tensors in the file.
    #[must_use]
    pub fn len(&self) -> usize {
        self.header.tensors().len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Names of the tensors, in the order of their bytes: who reads them so reads the file from its beginning to its end.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.header.tensors().map(|tensor| tensor.name)
    }

    /// What the tensors are, in the same order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = TensorInfo<'_>> {
        self.header.tensors()
    }

    /// What a tensor is.
    ///
    /// # Errors
    /// [`SafeTensorsError::NoTensor`] where there is none of this name.
    pub fn info(&self, name: &str) -> Result<TensorInfo<'_>, SafeTensorsError> {
        self.header.find(name).ok_or_else(|| SafeTensorsError::NoTensor {
            path: self.file.path().to_owned(),
            name: shown(name),
        })
    }

    /// What the file says besides its tensors, keys and values, in the order of the keys.
    pub fn metadata(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.header.metadata()
    }

    /// A copy of a tensor in host memory, from the [set of pools](crate::pools) that holds here.
    ///
    /// # Errors
    /// Where there is none of this name or its type is none of ours, where there is no memory for it, where the file has
    /// changed since it was opened, and where a byte of truth values is neither 0 nor 1.
    pub fn load(&self, name: &str) -> Result<Tensor, SafeTensorsError> {
        self.read_to(name, crate::pools::storage)
    }

    /// The same from a pool, a tenant or a source.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_in(&self, from: &impl Origin, name: &str) -> Result<Tensor, SafeTensorsError> {
        self.read_to(name, |dtype, elements| {
            Storage::zeroed(from.handle().0, dtype, elements)
        })
    }

    /// A tensor as rows along its first dimension, to be read in batches, passed through or mapped.
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
    /// Where there is no tensor of this name or its elements are of another type, a row has no elements, or the file has
    /// changed since it was opened.
    pub fn rows<T: Element>(&self, name: &str) -> Result<DataSet<T>, SafeTensorsError> {
        let info = self.info(name)?;
        let found = self.dtype(&info)?;
        if found != T::DTYPE {
            let expected = T::DTYPE;
            return Err(TensorError::from(DTypeError { expected, found }).into());
        }
        let (rows, row) = rows_of(info.shape());
        let mut files = Files::of(DataSet::<T>::bytes_of(row)?);
        // They are inside, as the header says no other thing.
        files.push(self.file.again()?, self.place(&info), rows)?;
        Ok(DataSet::of(files, row))
    }

    /// Reads a tensor into another of the same type and shape, whose elements follow one another. No memory is allocated.
    ///
    /// # Errors
    /// As [`load`](Self::load), and where type or shape differ or the output cannot be written. What the output holds after
    /// an error of the file is not said.
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
                shapes: [out.shape().into(), (*Sizes::of(info.shape)?).into()],
            }
            .into());
        }
        let shape = Sizes::of(info.shape)?;
        if *out.shape() != *shape {
            return Err(TensorError::Shapes {
                operation,
                left: out.shape().into(),
                right: (*shape).into(),
                rule: "the output's shape has to be that of the tensor in the file",
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
        let (dtype, shape) = (self.dtype(&info)?, Sizes::of(info.shape)?);
        load::tensor(self.file.path(), dtype, &shape, storage, |bytes| {
            self.file.read(self.place(&info), bytes)
        })
    }

    /// Where a tensor begins in the file.
    fn place(&self, info: &TensorInfo<'_>) -> u64 {
        // Inside the file, as the header says no other thing.
        self.header.data + info.begin
    }

    fn dtype(&self, info: &TensorInfo<'_>) -> Result<DType, SafeTensorsError> {
        info.dtype().ok_or_else(|| SafeTensorsError::Type {
            path: self.file.path().to_owned(),
            name: shown(info.name),
            type_name: shown(info.type_name),
        })
    }

    /// Maps the file, for views without a copy.
    ///
    /// # Safety
    /// As long as the map lives nobody writes to the file or cuts it: what a view shows would change under it, and what is
    /// cut off ends the process with SIGBUS when it is looked at. To put another file in its place, as [`write`](Self::write)
    /// does, is no change of it. Reads by [`load`](Self::load) need no such promise.
    ///
    /// # Errors
    /// [`DataError::Changed`] where the file has changed since it was opened, [`DataError::Io`] where it cannot be mapped.
    pub unsafe fn map(&self) -> Result<MappedTensors, SafeTensorsError> {
        // SAFETY: what the caller promises.
        unsafe { MappedTensors::new(self) }
    }
}
