//! Reads and writes the header of a safetensors file.
//!
//! The header consists of a length of eight bytes and a JSON object. The object lists for each tensor its type, its
//! shape and its byte range in the data after the header. A header that was read is valid: names are unique, and the
//! tensors follow each other from the first byte of the data to the last without holes or overlaps. Each has the number
//! of bytes that its type and shape require.
//!
//! Names, shapes and byte ranges are stored in buffers of a pool, so a header of many megabytes is accounted for and
//! its allocation can be refused.

use super::{SafeTensorsError, shown};
use crate::DataError;
use crate::files::Opened;
use millpond_account::error::AllocError;
use millpond_pool::buffer::Buffer;
use millpond_pool::dtype::DType;
use millpond_set::pools::alloc_zeroed;
use millpond_tensor::TensorRef;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;
use std::io::{self, Write};

/// The maximum number of bytes of a header, as defined by the format.
pub(super) const MOST_HEADER: u64 = 100_000_000;
/// The number of bytes before the header.
const LENGTH: u64 = 8;
/// The maximum number of dimensions, as in NumPy. The format has no limit.
const MOST_DIMS: u64 = 64;
/// In files that this module writes, the data begins at a multiple of this number of bytes: a cache line.
const ALIGN: u64 = 64;
/// The reserved name that does not denote a tensor.
pub(super) const METADATA: &str = "__metadata__";

/// Element types and their names in the format.
const NAMES: [(DType, &str); 14] = [
    (DType::F64, "F64"),
    (DType::F32, "F32"),
    (DType::F16, "F16"),
    (DType::BF16, "BF16"),
    (DType::I8, "I8"),
    (DType::I16, "I16"),
    (DType::I32, "I32"),
    (DType::I64, "I64"),
    (DType::U8, "U8"),
    (DType::U16, "U16"),
    (DType::U32, "U32"),
    (DType::U64, "U64"),
    (DType::Bool, "BOOL"),
    (DType::Complex64, "C64"),
];

/// Returns the format's name of a type, or `None` if the format lacks the type or this machine has another byte order.
pub(super) fn name_of(dtype: DType) -> Option<&'static str> {
    let (_, name) = NAMES.iter().find(|(of, _)| *of == dtype)?;
    is_native(dtype).then_some(*name)
}

fn dtype_of(name: &str) -> Option<DType> {
    let (dtype, _) = NAMES.iter().find(|(_, of)| *of == name)?;
    is_native(*dtype).then_some(*dtype)
}

/// Numbers in files are little-endian.
fn is_native(dtype: DType) -> bool {
    cfg!(target_endian = "little") || dtype.size() == 1
}

/// The position of a string in `HeaderTables::text`: its first byte and its length. Shapes are stored in the same way in
/// `HeaderTables::sizes`.
type Span = [u64; 2];
/// A tensor: name, type, shape, and the begin and end of its bytes in the data. This is an array because buffers hold
/// plain data.
type Record = [u64; 8];

/// The description of one tensor in the header of a file. See [`SafeTensors::tensors`](super::SafeTensors::tensors).
///
/// ```
/// # let path = std::env::temp_dir().join(format!("millpond-info-{}.safetensors", std::process::id()));
/// use millpond::{DType, SafeTensors, Tensor};
///
/// let table = Tensor::zeros([3, 4], DType::F32)?;
/// SafeTensors::write(&path, &[("table", table.view()?)], &[])?;
/// let file = SafeTensors::open(&path)?;
/// let info = file.info("table")?;
/// assert_eq!((info.name(), info.dtype(), info.type_name()), ("table", Some(DType::F32), "F32"));
/// assert_eq!((info.shape(), info.bytes()), (&[3, 4][..], 48));
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorInfo<'a> {
    pub(super) name: &'a str,
    pub(super) type_name: &'a str,
    pub(super) shape: &'a [u64],
    /// The range of its bytes in the data.
    pub(super) begin: u64,
    pub(super) end: u64,
}

impl<'a> TensorInfo<'a> {
    /// Returns its name.
    #[must_use]
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// Returns the type of its elements, or `None` if the format supports the type but this crate does not.
    #[must_use]
    pub fn dtype(&self) -> Option<DType> {
        dtype_of(self.type_name)
    }

    /// Returns the type of its elements as written in the file.
    #[must_use]
    pub fn type_name(&self) -> &'a str {
        self.type_name
    }

    /// Returns the sizes of its dimensions. They are empty for a single value.
    #[must_use]
    pub fn shape(&self) -> &'a [u64] {
        self.shape
    }

    /// Returns the number of its bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.end.saturating_sub(self.begin)
    }
}

/// The header of a file.
#[derive(Debug)]
pub(super) struct Header {
    tables: HeaderTables,
    /// The position of the data in the file.
    pub(super) data: u64,
}

impl Header {
    pub(super) fn read(file: &Opened) -> Result<Self, SafeTensorsError> {
        let wrong = |why: String| SafeTensorsError::Header {
            path: file.path().to_owned(),
            why,
        };
        let mut length = [0; LENGTH as usize];
        let left = file.bytes().checked_sub(LENGTH);
        let Some(left) = left else {
            return Err(wrong(format!(
                "it has {} bytes, but the length of its header alone takes 8",
                file.bytes()
            )));
        };
        file.read(0, &mut length)?;
        let length = u64::from_le_bytes(length);
        if length > left {
            return Err(wrong(format!(
                "its header has {length} bytes, but the rest of the file has only {left}"
            )));
        }
        if length > MOST_HEADER {
            return Err(wrong(format!(
                "its header has {length} bytes, more than the format's limit of {MOST_HEADER}"
            )));
        }
        // The length is at most that of the file.
        let mut text = alloc_zeroed::<u8>(length as usize).map_err(DataError::Memory)?;
        file.read(LENGTH, &mut text)?;
        if text.first() != Some(&b'{') {
            return Err(wrong("its header does not begin with {".to_owned()));
        }
        let mut tables = HeaderTables::new().map_err(DataError::Memory)?;
        let mut from = serde_json::Deserializer::from_slice(&text);
        let parsed = HeaderVisitor(&mut tables)
            .deserialize(&mut from)
            .and_then(|()| from.end());
        if let Some(refused) = tables.refused.take() {
            return Err(DataError::Memory(refused).into());
        }
        parsed.map_err(|error| wrong(format!("its header cannot be read: {error}")))?;
        let header = Self {
            tables,
            data: LENGTH + length,
        };
        header.settle(file, left - length)
    }

    /// Sorts the tensors by their byte ranges and checks that they follow the rules of the format.
    fn settle(mut self, file: &Opened, found: u64) -> Result<Self, SafeTensorsError> {
        let path = || file.path().to_owned();
        let HeaderTables { records, .. } = &mut self.tables;
        records.sort_unstable_by_key(|[.., begin, end]| (*begin, *end));
        let mut expected = 0;
        for tensor in self.tensors() {
            if tensor.begin != expected || tensor.end < tensor.begin {
                return Err(SafeTensorsError::Offsets {
                    path: path(),
                    name: shown(tensor.name),
                    begin: tensor.begin,
                    end: tensor.end,
                    expected,
                });
            }
            expected = tensor.end;
            let elements = tensor
                .shape
                .iter()
                .try_fold(1u64, |all, size| all.checked_mul(*size));
            // An unsupported type may have elements of half a byte.
            let size = tensor.dtype().map(|dtype| dtype.size() as u64);
            let bytes = elements.map(|elements| size.map(|size| elements.checked_mul(size)));
            match bytes {
                Some(None) => {}
                Some(Some(Some(bytes))) if bytes == tensor.bytes() => {}
                _ => {
                    return Err(SafeTensorsError::Shape {
                        path: path(),
                        name: shown(tensor.name),
                        type_name: shown(tensor.type_name),
                        shape: tensor.shape.to_vec(),
                        bytes: tensor.bytes(),
                    });
                }
            }
        }
        if expected != found {
            return Err(SafeTensorsError::Length {
                path: path(),
                expected,
                found,
            });
        }
        let twice = self.tables.index().map_err(DataError::Memory)?;
        if let Some(name) = twice {
            return Err(SafeTensorsError::Duplicate { path: path(), name });
        }
        Ok(self)
    }

    /// Returns all tensors in the order of their byte ranges.
    pub(super) fn tensors(&self) -> impl ExactSizeIterator<Item = TensorInfo<'_>> {
        self.tables.records.iter().map(|record| self.tables.info(record))
    }

    /// Returns the tensor with a name.
    pub(super) fn find(&self, name: &str) -> Option<TensorInfo<'_>> {
        let tables = &self.tables;
        let by = |at: &u64| tables.name_at(*at).cmp(name);
        let at = tables.by_name.binary_search_by(by).ok()?;
        let record = tables.records.get(*tables.by_name.get(at)? as usize)?;
        Some(tables.info(record))
    }

    /// Returns the file's metadata as pairs of key and value, in the order of the keys.
    pub(super) fn metadata(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        let tables = &self.tables;
        let pairs = tables.metadata.iter();
        pairs.map(|[key, key_bytes, value, value_bytes]| {
            (
                tables.text([*key, *key_bytes]),
                tables.text([*value, *value_bytes]),
            )
        })
    }
}

/// The contents of a header, in few buffers.
#[derive(Debug)]
struct HeaderTables {
    /// Names, types, keys and values, concatenated.
    text: Buffer<u8>,
    sizes: Buffer<u64>,
    records: Buffer<Record>,
    /// Indices of records, in the order of their names.
    by_name: Buffer<u64>,
    /// The positions of a key and its value.
    metadata: Buffer<[u64; 4]>,
    has_metadata: bool,
    /// The reason for a failed allocation.
    refused: Option<AllocError>,
}

impl HeaderTables {
    fn new() -> Result<Self, AllocError> {
        Ok(Self {
            text: alloc_zeroed(0)?,
            sizes: alloc_zeroed(0)?,
            records: alloc_zeroed(0)?,
            by_name: alloc_zeroed(0)?,
            metadata: alloc_zeroed(0)?,
            has_metadata: false,
            refused: None,
        })
    }

    fn kept<R, E: Error>(&mut self, outcome: Result<R, AllocError>) -> Result<R, E> {
        outcome.map_err(|refused| {
            self.refused = Some(refused);
            E::custom("cannot allocate memory for it")
        })
    }

    fn keep<E: Error>(&mut self, text: &str) -> Result<Span, E> {
        let at = self.text.len() as u64;
        let outcome = self.text.try_extend_from_slice(text.as_bytes());
        self.kept(outcome)?;
        Ok([at, text.len() as u64])
    }

    fn text(&self, [at, bytes]: Span) -> &str {
        let (at, bytes) = (at as usize, bytes as usize);
        let text = self.text.get(at..at + bytes).unwrap_or(&[]);
        // The bytes were UTF-8 when they were stored.
        str::from_utf8(text).unwrap_or("")
    }

    fn info(&self, record: &Record) -> TensorInfo<'_> {
        let [name, name_bytes, kind, kind_bytes, sizes, rank, begin, end] = *record;
        let (sizes, rank) = (sizes as usize, rank as usize);
        TensorInfo {
            name: self.text([name, name_bytes]),
            type_name: self.text([kind, kind_bytes]),
            shape: self.sizes.get(sizes..sizes + rank).unwrap_or(&[]),
            begin,
            end,
        }
    }

    fn name_at(&self, at: u64) -> &str {
        let record = self.records.get(at as usize);
        record.map_or("", |[name, bytes, ..]| self.text([*name, *bytes]))
    }

    /// Sorts names and keys. Returns one that occurs twice.
    fn index(&mut self) -> Result<Option<String>, AllocError> {
        let mut by_name = millpond_set::pools::alloc_from_fn(self.records.len(), |at| at as u64)?;
        by_name.sort_unstable_by(|one, other| self.name_at(*one).cmp(self.name_at(*other)));
        // The metadata is moved out of the tables so that the tables' text can be read during the sort.
        let mut metadata = std::mem::replace(&mut self.metadata, alloc_zeroed(0)?);
        let key = |[at, bytes, ..]: &[u64; 4]| self.text([*at, *bytes]);
        metadata.sort_unstable_by(|one, other| key(one).cmp(key(other)));
        let names = by_name.iter().map(|at| self.name_at(*at));
        let twice = repeated(names).or_else(|| repeated(metadata.iter().map(key)));
        let twice = twice.map(shown);
        self.metadata = metadata;
        self.by_name = by_name;
        Ok(twice)
    }
}

/// Returns the first string that equals its predecessor.
fn repeated<'a>(mut sorted: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut before = None;
    sorted.find(|text| before.replace(*text) == Some(*text))
}

/// Deserializes the whole object.
struct HeaderVisitor<'t>(&'t mut HeaderTables);
/// Deserializes the metadata.
struct MetadataVisitor<'t>(&'t mut HeaderTables);
/// Deserializes the description of one tensor: the positions of its type and of its shape, and its byte range.
struct TensorVisitor<'t>(&'t mut HeaderTables);
struct ShapeVisitor<'t>(&'t mut HeaderTables);
struct TextVisitor<'t>(&'t mut HeaderTables);

macro_rules! seeds {
    ($($seed:ident => $value:ty, $deserialize:ident, $expecting:literal, { $($visit:tt)* };)*) => {
        $(
            impl<'de> DeserializeSeed<'de> for $seed<'_> {
                type Value = $value;
                fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<$value, D::Error> {
                    from.$deserialize(self)
                }
            }

            impl<'de> Visitor<'de> for $seed<'_> {
                type Value = $value;
                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str($expecting)
                }
                $($visit)*
            }
        )*
    };
}

seeds! {
    HeaderVisitor => (), deserialize_map, "an object of tensors by name", {
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
            while let Some(name) = map.next_key_seed(TextVisitor(self.0))? {
                if self.0.text(name) == METADATA {
                    if std::mem::replace(&mut self.0.has_metadata, true) {
                        return Err(A::Error::custom("__metadata__ occurs twice"));
                    }
                    map.next_value_seed(MetadataVisitor(self.0))?;
                    continue;
                }
                let (kind, shape, [begin, end]) = map.next_value_seed(TensorVisitor(self.0))?;
                let ([name, name_bytes], [kind, kind_bytes], [sizes, rank]) = (name, kind, shape);
                let record = [name, name_bytes, kind, kind_bytes, sizes, rank, begin, end];
                let outcome = self.0.records.try_push(record);
                self.0.kept(outcome)?;
            }
            Ok(())
        }
    };
    MetadataVisitor => (), deserialize_option, "an object of strings by key", {
        fn visit_none<E: Error>(self) -> Result<(), E> {
            Ok(())
        }
        fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
            from.deserialize_map(self)
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
            while let Some([key, key_bytes]) = map.next_key_seed(TextVisitor(self.0))? {
                let [value, value_bytes] = map.next_value_seed(TextVisitor(self.0))?;
                let outcome = self.0.metadata.try_push([key, key_bytes, value, value_bytes]);
                self.0.kept(outcome)?;
            }
            Ok(())
        }
    };
    TensorVisitor => (Span, Span, [u64; 2]), deserialize_map, "an object of dtype, shape and data_offsets", {
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let (mut kind, mut shape, mut offsets) = (None, None, None);
            while let Some(key) = map.next_key::<TensorKey>()? {
                let twice = match key {
                    TensorKey::Type => kind.replace(map.next_value_seed(TextVisitor(self.0))?).is_some(),
                    TensorKey::Shape => shape.replace(map.next_value_seed(ShapeVisitor(self.0))?).is_some(),
                    TensorKey::Offsets => offsets.replace(map.next_value()?).is_some(),
                    TensorKey::Other => {
                        map.next_value::<IgnoredAny>()?;
                        false
                    }
                };
                if twice {
                    return Err(A::Error::custom("a tensor has one of dtype, shape and data_offsets twice"));
                }
            }
            match (kind, shape, offsets) {
                (Some(kind), Some(shape), Some(offsets)) => Ok((kind, shape, offsets)),
                _ => Err(A::Error::custom("a tensor lacks one of dtype, shape and data_offsets")),
            }
        }
    };
    ShapeVisitor => Span, deserialize_seq, "an array of the sizes of dimensions", {
        fn visit_seq<A: SeqAccess<'de>>(self, mut sizes: A) -> Result<Span, A::Error> {
            let at = self.0.sizes.len() as u64;
            let mut rank = 0;
            while let Some(size) = sizes.next_element()? {
                if rank == MOST_DIMS {
                    return Err(A::Error::custom("a tensor has more than 64 dimensions"));
                }
                rank += 1;
                let outcome = self.0.sizes.try_push(size);
                self.0.kept(outcome)?;
            }
            Ok([at, rank])
        }
    };
    TextVisitor => Span, deserialize_str, "a text", {
        fn visit_str<E: Error>(self, text: &str) -> Result<Span, E> {
            self.0.keep(text)
        }
    };
}

#[derive(serde::Deserialize)]
#[serde(field_identifier)]
enum TensorKey {
    #[serde(rename = "dtype")]
    Type,
    #[serde(rename = "shape")]
    Shape,
    #[serde(rename = "data_offsets")]
    Offsets,
    #[serde(other)]
    Other,
}

/// A writer that counts bytes and discards them.
struct ByteCounter(u64);

impl Write for ByteCounter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A tensor to write: its name, the format's name of its type, and its elements.
pub(super) type Named<'a> = (&'a str, &'static str, TensorRef<'a>);

/// Returns the length of the text of the header that [`write`] writes, without and with the spaces after it. The eight bytes
/// of the length itself are not included.
pub(super) fn lengths<'a>(
    tensors: impl Iterator<Item = Named<'a>>,
    metadata: &[(&str, &str)],
) -> io::Result<[u64; 2]> {
    let mut count = ByteCounter(0);
    object(&mut count, tensors, metadata)?;
    Ok([count.0, (LENGTH + count.0).next_multiple_of(ALIGN) - LENGTH])
}

/// Writes a header whose lengths were returned by [`lengths`].
pub(super) fn write<'a>(
    out: &mut impl Write,
    [text, length]: [u64; 2],
    tensors: impl Iterator<Item = Named<'a>>,
    metadata: &[(&str, &str)],
) -> io::Result<()> {
    out.write_all(&length.to_le_bytes())?;
    object(out, tensors, metadata)?;
    (text..length).try_for_each(|_| out.write_all(b" "))
}

fn object<'a>(
    out: &mut impl Write,
    tensors: impl Iterator<Item = Named<'a>>,
    metadata: &[(&str, &str)],
) -> io::Result<()> {
    let mut before = "{";
    if !metadata.is_empty() {
        write!(out, "{{\"{METADATA}\":")?;
        before = "{";
        for (key, value) in metadata {
            out.write_all(before.as_bytes())?;
            serde_json::to_writer(&mut *out, key)?;
            out.write_all(b":")?;
            serde_json::to_writer(&mut *out, value)?;
            before = ",";
        }
        out.write_all(b"}")?;
    }
    let mut at = 0;
    for (name, kind, tensor) in tensors {
        out.write_all(before.as_bytes())?;
        before = ",";
        serde_json::to_writer(&mut *out, name)?;
        write!(out, ":{{\"dtype\":\"{kind}\",\"shape\":")?;
        serde_json::to_writer(&mut *out, tensor.shape())?;
        let end = at + tensor.len() * tensor.dtype().size();
        write!(out, ",\"data_offsets\":[{at},{end}]}}")?;
        at = end;
    }
    // Without tensors and metadata, the opening brace has not been written yet.
    if before == "{" {
        out.write_all(b"{")?;
    }
    out.write_all(b"}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_except_complex128_has_a_name_in_the_format() {
        for dtype in DType::all() {
            let name = name_of(dtype);
            assert_eq!(name.is_none(), dtype == DType::Complex128);
            assert_eq!(name.and_then(dtype_of), name.map(|_| dtype));
        }
        assert_eq!(dtype_of("F8_E4M3"), None);
    }

    #[test]
    fn written_headers_are_valid_json_padded_to_64_bytes() {
        let elements = [1.0f32; 6];
        let tensor = TensorRef::from_slice(&elements, [2, 3]).expect("six");
        let names: Vec<String> = (0..70).map(|length| "n".repeat(length)).collect();
        for count in [0, 1, 2, 70] {
            let tensors = || names.iter().take(count).map(|name| (&name[..], "F32", tensor));
            for metadata in [&[][..], &[("a\"b", "c\n")], &[("a", "b"), ("c", "d")]] {
                let lengths = lengths(tensors(), metadata).expect("memory takes all");
                let mut written = Vec::new();
                write(&mut written, lengths, tensors(), metadata).expect("memory takes all");
                assert_eq!(written.len() as u64, LENGTH + lengths[1]);
                assert!(written.len().is_multiple_of(64));
                let json: serde_json::Value = serde_json::from_slice(&written[8..]).expect("it is JSON");
                let object = json.as_object().expect("an object");
                assert_eq!(object.len(), count + usize::from(!metadata.is_empty()));
                let said = object.get(METADATA).and_then(|said| said.as_object());
                assert_eq!(said.map_or(0, |said| said.len()), metadata.len());
            }
        }
    }
}
