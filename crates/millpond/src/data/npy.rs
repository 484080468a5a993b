//! NumPy's `.npy` files: the header read and written, the elements left where they are.
//!
//! The format is "NEP 1, A Simple File Format for NumPy Arrays", versions 1.0, 2.0 and 3.0: a magic string, a dictionary of
//! Python literals that says type, order and shape, and the elements.

use super::files::Files;
use super::{DataError, DataSet};
use crate::buffer::Origin;
use crate::dtype::{DType, Element};
use crate::tensor::{Tensor, TensorError};
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use thiserror::Error;

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Bytes of a header, at most; NumPy itself reads 10,000 of those it does not trust.
const MOST_HEADER: u32 = 64 << 10;
/// Dimensions, at most; NumPy has 64.
const MOST_DIMS: usize = 64;
/// What the elements begin at a multiple of, as NumPy writes it.
const ALIGN: usize = 64;

/// Why a `.npy` file is not read or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NpyError {
    /// The system refused something.
    #[error("{path}: cannot {what}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What the system says.
        source: io::Error,
    },
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
        path = path.display()
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
    /// The elements cannot be read.
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
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Head {
    dtype: DType,
    fortran: bool,
    shape: Vec<u64>,
}

impl Npy {
    /// Reads the header of a file, and nothing else.
    ///
    /// # Errors
    /// Where it cannot be read, is no such file, or has elements of a type that is no [`DType`].
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, NpyError> {
        let path = path.into();
        let failed = |what| {
            let path = path.clone();
            move |source| NpyError::Io { path, what, source }
        };
        // Before it is opened: opening a pipe waits for a writer.
        if !std::fs::metadata(&path).map_err(failed("find it"))?.is_file() {
            return Err(DataError::NotAFile { path }.into());
        }
        let mut file = File::open(&path).map_err(failed("open it"))?;
        let header = |why: String| NpyError::Header {
            path: path.clone(),
            why,
        };
        let short = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof => header("it ends within its header".to_owned()),
            _ => failed("read it")(error),
        };
        let mut start = [0; 8];
        file.read_exact(&mut start).map_err(short)?;
        let [magic @ .., major, minor] = start;
        if magic != *MAGIC {
            return Err(header("it does not begin with \\x93NUMPY".to_owned()));
        }
        let (length, before) = match major {
            1 => {
                let mut bytes = [0; 2];
                file.read_exact(&mut bytes).map_err(short)?;
                (u32::from(u16::from_le_bytes(bytes)), 10)
            }
            2 | 3 => {
                let mut bytes = [0; 4];
                file.read_exact(&mut bytes).map_err(short)?;
                (u32::from_le_bytes(bytes), 12)
            }
            _ => {
                return Err(header(format!(
                    "version {major}.{minor} is none of 1.0, 2.0 and 3.0"
                )));
            }
        };
        if length > MOST_HEADER {
            return Err(header(format!(
                "its header has {length} bytes, and {MOST_HEADER} are the most that is read"
            )));
        }
        let mut text = vec![0; length as usize];
        file.read_exact(&mut text).map_err(short)?;
        let text = String::from_utf8(text).map_err(|_| header("its header is no text".to_owned()))?;
        let head = match Reader::new(&text).head().map_err(header)? {
            Ok(head) => head,
            Err(descr) => return Err(NpyError::Type { path, descr }),
        };
        Ok(Self {
            head,
            skip: before + u64::from(length),
            path,
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
        Self::write_bytes(path.as_ref(), T::DTYPE, shape, bytemuck::cast_slice(elements))
    }

    /// Writes a tensor, as [`write`](Self::write) does; a view that is not contiguous is copied first.
    ///
    /// # Errors
    /// Where there is no memory for a copy or the file cannot be written.
    pub fn write_tensor(path: impl AsRef<Path>, tensor: &Tensor) -> Result<(), NpyError> {
        let tensor = tensor.to_contiguous()?.into_tensor();
        let shape: Vec<u64> = tensor.shape().iter().map(|size| *size as u64).collect();
        let size = tensor.dtype().size();
        let (from, bytes) = (tensor.offset() * size, tensor.len() * size);
        let elements = tensor.storage().as_bytes().get(from..from + bytes).unwrap_or(&[]);
        Self::write_bytes(path.as_ref(), tensor.dtype(), &shape, elements)
    }

    fn write_bytes(path: &Path, dtype: DType, shape: &[u64], elements: &[u8]) -> Result<(), NpyError> {
        let failed = |source| NpyError::Io {
            path: path.to_owned(),
            what: "write it",
            source,
        };
        let mut beside = path.as_os_str().to_owned();
        beside.push(format!(".{}.part", std::process::id()));
        let beside = PathBuf::from(beside);
        let written = write_to(&beside, &header_of(dtype, shape), elements)
            .and_then(|()| std::fs::rename(&beside, path));
        if written.is_err() {
            let _ = std::fs::remove_file(&beside);
        }
        written.map_err(failed)
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
        self.read_to(|shape, dtype| Tensor::zeros(shape, dtype))
    }

    /// The same from a pool, a tenant or a source.
    ///
    /// # Errors
    /// As [`tensor`](Self::tensor).
    pub fn tensor_in(&self, from: &impl Origin) -> Result<Tensor, NpyError> {
        self.read_to(|shape, dtype| Tensor::zeros_in(from, shape, dtype))
    }

    fn read_to(
        &self,
        zeros: impl FnOnce(&[usize], DType) -> Result<Tensor, TensorError>,
    ) -> Result<Tensor, NpyError> {
        let dtype = self.head.dtype;
        let files = Files::open(std::slice::from_ref(&self.path), self.skip, dtype.size())?;
        let expected: u64 = self.head.shape.iter().product();
        if files.rows() != expected {
            return Err(NpyError::Shape {
                shape: self.head.shape.clone(),
                expected,
                found: files.rows(),
            });
        }
        // What is more than there are addresses is refused by its size.
        let sizes = self
            .head
            .shape
            .iter()
            .map(|size| usize::try_from(*size).unwrap_or(usize::MAX));
        let mut shape: Vec<usize> = sizes.collect();
        if self.head.fortran {
            shape.reverse();
        }
        let mut storage = zeros(&shape, dtype)?
            .try_into_storage()
            .unwrap_or_else(|_| unreachable!("nobody else has it"));
        files.read(0, storage.as_mut_bytes())?;
        if dtype == DType::Bool && storage.as_bools().is_none() {
            return Err(NpyError::Header {
                path: self.path.clone(),
                why: "one of its bools is neither 0 nor 1".to_owned(),
            });
        }
        let tensor = Tensor::from_storage(storage, &shape)?;
        if self.head.fortran {
            let turned: Vec<usize> = (0..shape.len()).rev().collect();
            return Ok(tensor.permute(&turned)?);
        }
        Ok(tensor)
    }

    /// The array as rows along its first dimension, to be read in batches, passed through or mapped.
    ///
    /// # Errors
    /// Where the elements are of another type or in Fortran order, or the file is not as long as its shape says.
    pub fn rows<T: Element>(&self) -> Result<DataSet<T>, NpyError> {
        if T::DTYPE != self.head.dtype {
            return Err(NpyError::OtherType {
                path: self.path.clone(),
                expected: T::DTYPE,
                found: self.head.dtype,
            });
        }
        // In one dimension both orders are the same.
        if self.head.fortran && self.head.shape.len() > 1 {
            return Err(NpyError::FortranOrder {
                path: self.path.clone(),
            });
        }
        let (rows, row) = match self.head.shape.as_slice() {
            [] => (1, 1),
            [rows, row @ ..] => (*rows, row.iter().product::<u64>()),
        };
        let row = usize::try_from(row).unwrap_or(usize::MAX);
        let data = DataSet::<T>::builder()
            .file(&self.path)
            .skip(self.skip)
            .row(row)
            .open()?;
        if data.rows() != rows {
            return Err(NpyError::Shape {
                shape: self.head.shape.clone(),
                expected: rows * row as u64,
                found: data.rows() * row as u64,
            });
        }
        Ok(data)
    }
}

fn write_to(path: &Path, header: &[u8], elements: &[u8]) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    file.write_all(header)?;
    file.write_all(elements)?;
    file.into_inner()?.sync_all()
}

/// Type of elements, and how NumPy calls it after the byte order.
const NAMES: [(DType, &str); 15] = [
    (DType::F64, "f8"),
    (DType::F32, "f4"),
    (DType::F16, "f2"),
    // NumPy has none: two bytes of nothing in particular, as ml_dtypes saves it.
    (DType::BF16, "V2"),
    (DType::I8, "i1"),
    (DType::I16, "i2"),
    (DType::I32, "i4"),
    (DType::I64, "i8"),
    (DType::U8, "u1"),
    (DType::U16, "u2"),
    (DType::U32, "u4"),
    (DType::U64, "u8"),
    (DType::Bool, "b1"),
    (DType::Complex64, "c8"),
    (DType::Complex128, "c16"),
];

const NATIVE: char = if cfg!(target_endian = "little") { '<' } else { '>' };

fn header_of(dtype: DType, shape: &[u64]) -> Vec<u8> {
    let name = NAMES
        .iter()
        .find(|(of, _)| *of == dtype)
        .map_or("", |(_, name)| name);
    let order = if dtype.size() == 1 || dtype == DType::BF16 {
        '|'
    } else {
        NATIVE
    };
    let sizes: String = shape.iter().map(|size| format!("{size}, ")).collect();
    let sizes = if shape.len() > 1 {
        sizes.trim_end_matches(", ")
    } else {
        sizes.trim_end()
    };
    let text = format!("{{'descr': '{order}{name}', 'fortran_order': False, 'shape': ({sizes}), }}");
    // Magic, version, two bytes of length, the text, blanks, a new line.
    let whole = (10 + text.len() + 1).next_multiple_of(ALIGN);
    let mut header = MAGIC.to_vec();
    header.extend([1, 0]);
    // 64 dimensions of 20 digits are far less than what two bytes count.
    header.extend(((whole - 10) as u16).to_le_bytes());
    header.extend(text.bytes());
    header.resize(whole - 1, b' ');
    header.push(b'\n');
    header
}

/// Reads the dictionary: the few of Python's literals that NumPy writes into it.
struct Reader<'a> {
    text: &'a str,
    rest: &'a str,
}

/// A header, or how it describes elements that are no type of ours.
type Found = Result<Head, String>;

impl<'a> Reader<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, rest: text }
    }

    fn wrong<R>(&self, wanted: &str) -> Result<R, String> {
        let at = self.text.len() - self.rest.len();
        let found: String = self.rest.chars().take(12).collect();
        Err(format!(
            "byte {at} of its dictionary has {found:?} where {wanted} belongs"
        ))
    }

    fn skip_blanks(&mut self) {
        self.rest = self.rest.trim_start();
    }

    /// Passes over this, if it comes next.
    fn comes(&mut self, what: &str) -> bool {
        self.skip_blanks();
        match self.rest.strip_prefix(what) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, what: &str) -> Result<(), String> {
        if self.comes(what) {
            Ok(())
        } else {
            self.wrong(what)
        }
    }

    fn string(&mut self) -> Result<&'a str, String> {
        self.skip_blanks();
        for quote in ['\'', '"'] {
            if let Some(rest) = self.rest.strip_prefix(quote)
                && let Some((string, rest)) = rest.split_once(quote)
                && !string.contains('\\')
            {
                self.rest = rest;
                return Ok(string);
            }
        }
        self.wrong("a string")
    }

    fn truth(&mut self) -> Result<bool, String> {
        if self.comes("True") {
            Ok(true)
        } else if self.comes("False") {
            Ok(false)
        } else {
            self.wrong("True or False")
        }
    }

    fn number(&mut self) -> Result<u64, String> {
        self.skip_blanks();
        let digits = self.rest.len() - self.rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, rest) = self.rest.split_at(digits);
        let Ok(number) = number.parse() else {
            return self.wrong("a size");
        };
        // Python 2 wrote an L behind long ones.
        self.rest = rest.strip_prefix('L').unwrap_or(rest);
        Ok(number)
    }

    fn sizes(&mut self) -> Result<Vec<u64>, String> {
        let mut sizes = Vec::new();
        self.expect("(")?;
        while !self.comes(")") {
            if sizes.len() == MOST_DIMS {
                return Err(format!("it has more than {MOST_DIMS} dimensions"));
            }
            sizes.push(self.number()?);
            // Behind a single one too.
            if !self.comes(",") {
                self.expect(")")?;
                break;
            }
        }
        Ok(sizes)
    }

    /// What comes to the end of a value, without a look at what it means.
    fn anything(&mut self) -> Result<&'a str, String> {
        self.skip_blanks();
        let mut depth = 0usize;
        let mut quote = None;
        for (at, c) in self.rest.char_indices() {
            match (quote, c) {
                (Some(open), _) if open == c => quote = None,
                (Some(_), _) => {}
                (None, '\'' | '"') => quote = Some(c),
                (None, '(' | '[' | '{') => depth += 1,
                (None, ')' | ']' | '}') if depth > 0 => depth -= 1,
                (None, ',' | '}') if depth == 0 => {
                    let (value, rest) = self.rest.split_at(at);
                    self.rest = rest;
                    return Ok(value.trim_end());
                }
                _ => {}
            }
        }
        self.wrong("a value")
    }

    fn head(&mut self) -> Result<Found, String> {
        let (mut descr, mut fortran, mut shape) = (None, None, None);
        self.expect("{")?;
        while !self.comes("}") {
            let key = self.string()?;
            self.expect(":")?;
            let twice = match key {
                "descr" => {
                    self.skip_blanks();
                    let before = descr.is_some();
                    let simple = self.rest.starts_with(['\'', '"']);
                    descr = Some(if simple { self.string()? } else { self.anything()? });
                    before
                }
                "fortran_order" => fortran.replace(self.truth()?).is_some(),
                "shape" => shape.replace(self.sizes()?).is_some(),
                _ => {
                    return Err(format!(
                        "its dictionary has a key {key:?} that is none of the format's"
                    ));
                }
            };
            if twice {
                return Err(format!("its dictionary has {key} twice"));
            }
            if !self.comes(",") {
                self.expect("}")?;
                break;
            }
        }
        self.skip_blanks();
        if !self.rest.is_empty() {
            return self.wrong("nothing");
        }
        let (Some(descr), Some(fortran), Some(shape)) = (descr, fortran, shape) else {
            return Err("its dictionary lacks one of descr, fortran_order and shape".to_owned());
        };
        let elements = shape.iter().try_fold(1u64, |all, size| all.checked_mul(*size));
        // A dimension of 0 does not make the others any smaller.
        let row = shape
            .iter()
            .skip(1)
            .try_fold(1u64, |all, size| all.checked_mul(*size));
        if elements.is_none() || row.is_none() {
            return Err(format!(
                "its shape {shape:?} has more elements than can be counted"
            ));
        }
        let dtype = dtype_of(descr);
        Ok(dtype
            .map(|dtype| Head {
                dtype,
                fortran,
                shape,
            })
            .ok_or_else(|| descr.to_owned()))
    }
}

fn dtype_of(descr: &str) -> Option<DType> {
    let name = descr.strip_prefix(['<', '>', '|', '=']).unwrap_or(descr);
    let (dtype, _) = NAMES.iter().find(|(_, of)| *of == name)?;
    let order = descr.chars().next()?;
    let native =
        dtype.size() == 1 || order == NATIVE || order == '=' || (order == '|' && *dtype == DType::BF16);
    native.then_some(*dtype)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn head(text: &str) -> Result<Found, String> {
        Reader::new(text).head()
    }

    #[test]
    fn headers_are_read_as_python_may_write_them() {
        let expected = Head {
            dtype: DType::F32,
            fortran: false,
            shape: vec![3, 4],
        };
        for text in [
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }  \n",
            "{\"shape\":(3,4),\"descr\":\"<f4\",\"fortran_order\":False}",
            "{ 'shape' : ( 3L , 4L , ) , 'fortran_order' : False , 'descr' : '<f4' , }\n",
        ] {
            assert_eq!(head(text).expect(text).expect(text), expected);
        }
        let shape = |sizes| {
            let text = format!("{{'descr': '|u1', 'fortran_order': True, 'shape': {sizes}}}");
            head(&text).map(|found| found.expect("a type").shape)
        };
        assert_eq!(shape("()"), Ok(vec![]));
        assert_eq!(shape("(7,)"), Ok(vec![7]));
        assert_eq!(shape("(0, 5)"), Ok(vec![0, 5]));
        for wrong in [
            "(3, -1)",
            "(3",
            "3",
            "(3 4)",
            "(18446744073709551616,)",
            "(1.5,)",
            "(,)",
        ] {
            assert!(shape(wrong).is_err(), "{wrong}");
        }
        assert!(
            shape("(4294967296, 4294967296)").is_err(),
            "more than 64 bits count"
        );
        assert!(shape("(0, 4294967296, 4294967296)").is_err());
        assert!(shape(&format!("({})", "1, ".repeat(65))).is_err());
    }

    #[test]
    fn damaged_headers_say_where() {
        for (text, why) in [
            ("", "byte 0"),
            ("{'descr': '<f4', 'shape': (3,)}", "lacks"),
            (
                "{'descr': '<f4', 'fortran_order': Maybe, 'shape': (3,)}",
                "True or False",
            ),
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': (3,)} more",
                "nothing",
            ),
            (
                "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (3,)}",
                "twice",
            ),
            ("{'other': '<f4', 'fortran_order': False, 'shape': (3,)}", "other"),
            (
                "{'descr': '<f4 , 'fortran_order': False, 'shape': (3,)}",
                "belongs",
            ),
        ] {
            let told = head(text).expect_err(text);
            assert!(told.contains(why), "{text}: {told}");
        }
    }

    #[test]
    fn other_types_are_named() {
        for descr in [
            "'>f4'",
            "'<U8'",
            "'|O'",
            "[('x', '<f4'), ('y', '<f4')]",
            "'<M8[ns]'",
            "('<f4', (2,))",
            "'f4'",
        ] {
            let text = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': (3,)}}");
            let found = head(&text).expect(descr).expect_err(descr);
            assert_eq!(found, descr.trim_matches('\''));
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(shape in prop::collection::vec(0u64..1000, 0..7), at in 0usize..15) {
            let dtype = NAMES[at].0;
            let header = header_of(dtype, &shape);
            prop_assert_eq!(header.len() % ALIGN, 0);
            let text = std::str::from_utf8(&header[10..]).expect("text");
            let expected = Head { dtype, fortran: false, shape };
            prop_assert_eq!(head(text).expect("a header").expect("a type"), expected);
        }

        #[test]
        fn no_header_is_trouble(text in "[{}()\\[\\]':, 0-9a-zA-Z<_\\n\"L]{0,80}") {
            let _ = head(&text);
            let _ = head(&format!("{{'descr': '<f4', 'shape': {text}"));
            let _ = head(&format!("{{'descr': {text}"));
        }
    }
}
