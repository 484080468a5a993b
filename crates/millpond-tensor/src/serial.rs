//! Tensors as serde data: type, shape, and the elements in order.
//!
//! Human-readable formats contain a list of numbers, with `NaN`, `inf` and `-inf` as strings. Other formats contain the
//! elements' bytes in little-endian order. A reader allocates memory only for the elements that are present, whatever the shape
//! is.

use super::Tensor;
use super::error::TensorError;
use super::layout::count;
use super::number::{Number, with_number, with_plain};
use super::scalar::Scalar;
use millpond_pool::buffer::Buffer;
use millpond_pool::dtype::DType;
use millpond_pool::storage::Storage;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::ser::{Error as _, SerializeSeq, SerializeStruct, Serializer};
use serde::{Deserialize, Serialize};
use std::fmt;

const FIELDS: &[&str] = &["dtype", "shape", "data"];
/// The maximum number of elements for which memory is allocated before the first is read.
const AT_ONCE: usize = 1024;

/// An element in a human-readable format.
struct Element {
    value: Scalar,
    dtype: DType,
}

/// A floating-point number, which is written in the shortest form of its own type.
struct Part(f64, DType);

impl Serialize for Part {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Self(number, dtype) = *self;
        if !number.is_finite() {
            return to.collect_str(&number);
        }
        match dtype {
            DType::F64 | DType::Complex128 => to.serialize_f64(number),
            _ => to.serialize_f32(number as f32),
        }
    }
}

impl Serialize for Element {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.value {
            Scalar::Float(number) => Part(number, self.dtype).serialize(to),
            Scalar::Int(number) => to.serialize_i64(number),
            Scalar::UInt(number) => to.serialize_u64(number),
            Scalar::Bool(is) => to.serialize_bool(is),
            Scalar::Complex([real, imaginary]) => {
                [Part(real, self.dtype), Part(imaginary, self.dtype)].serialize(to)
            }
        }
    }
}

/// The elements in order, as a list.
struct List<'a>(&'a Tensor);

impl Serialize for List<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let view = self.0.view().map_err(S::Error::custom)?;
        let dtype = self.0.dtype();
        let mut list = to.serialize_seq(Some(view.len()))?;
        let mut written = Ok(());
        view.places(|place| {
            if written.is_ok() {
                let value = view.scalar(place);
                written = list.serialize_element(&Element { value, dtype });
            }
        });
        written?;
        list.end()
    }
}

/// The elements in order, as bytes.
struct Bytes<'a>(&'a [u8]);

impl Serialize for Bytes<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(self.0)
    }
}

/// Returns the size of each number in bytes. A complex element has two numbers.
fn number_bytes(dtype: DType) -> usize {
    match dtype {
        DType::Complex64 | DType::Complex128 => dtype.size() / 2,
        _ => dtype.size(),
    }
}

/// Converts between the byte order of this machine and little-endian order. They are the same on most machines.
fn reorder(bytes: &mut [u8], dtype: DType) {
    if cfg!(target_endian = "big") {
        for number in bytes.chunks_exact_mut(number_bytes(dtype)) {
            number.reverse();
        }
    }
}

impl Serialize for Tensor {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let human = to.is_human_readable();
        let mut fields = to.serialize_struct("Tensor", FIELDS.len())?;
        fields.serialize_field("dtype", &self.dtype())?;
        fields.serialize_field("shape", self.shape())?;
        if human {
            fields.serialize_field("data", &List(self))?;
        } else {
            let contiguous = self.to_contiguous().map_err(S::Error::custom)?;
            let size = self.dtype().size();
            let (start, len) = (contiguous.offset() * size, self.len() * size);
            let bytes = &contiguous.storage().as_bytes()[start..start + len];
            if cfg!(target_endian = "big") {
                let mut bytes = bytes.to_vec();
                reorder(&mut bytes, self.dtype());
                fields.serialize_field("data", &Bytes(&bytes))?;
            } else {
                fields.serialize_field("data", &Bytes(bytes))?;
            }
        }
        fields.end()
    }
}

impl<'de> Deserialize<'de> for Scalar {
    /// Reads a number, a boolean, a pair of numbers, or a string for a value that is not finite.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(NumberVisitor { is_part: false })
    }
}

/// Reads a number. A part of a pair is neither a boolean nor a pair, so that the data cannot be nested.
struct NumberVisitor {
    is_part: bool,
}

impl<'de> DeserializeSeed<'de> for NumberVisitor {
    type Value = Scalar;
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Scalar, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for NumberVisitor {
    type Value = Scalar;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_part {
            "a number"
        } else {
            "a number, a boolean, or a pair of numbers"
        })
    }
    fn visit_bool<E: serde::de::Error>(self, is: bool) -> Result<Scalar, E> {
        if self.is_part {
            return Err(E::invalid_type(Unexpected::Bool(is), &self));
        }
        Ok(Scalar::Bool(is))
    }
    fn visit_i64<E>(self, number: i64) -> Result<Scalar, E> {
        Ok(Scalar::Int(number))
    }
    fn visit_u64<E>(self, number: u64) -> Result<Scalar, E> {
        Ok(Scalar::UInt(number))
    }
    fn visit_f64<E>(self, number: f64) -> Result<Scalar, E> {
        Ok(Scalar::Float(number))
    }
    fn visit_str<E: serde::de::Error>(self, word: &str) -> Result<Scalar, E> {
        match word {
            "NaN" => Ok(Scalar::Float(f64::NAN)),
            "inf" => Ok(Scalar::Float(f64::INFINITY)),
            "-inf" => Ok(Scalar::Float(f64::NEG_INFINITY)),
            _ => Err(E::invalid_value(Unexpected::Str(word), &self)),
        }
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut pair: A) -> Result<Scalar, A::Error> {
        if self.is_part {
            return Err(A::Error::invalid_type(Unexpected::Seq, &self));
        }
        let mut parts = [0.0; 2];
        for part in &mut parts {
            let number = pair.next_element_seed(Self { is_part: true })?;
            // A part is a real number.
            *part = number
                .and_then(Scalar::to_f64)
                .ok_or_else(|| A::Error::invalid_length(1, &"a pair of numbers"))?;
        }
        match pair.next_element::<serde::de::IgnoredAny>()? {
            None => Ok(Scalar::Complex(parts)),
            Some(_) => Err(A::Error::invalid_length(3, &"a pair of numbers")),
        }
    }
}

/// Elements that are about to be read. Their type and shape are already known.
struct Data {
    dtype: DType,
    shape: Vec<usize>,
    elements: usize,
}

impl Data {
    fn new<E: serde::de::Error>(dtype: Option<DType>, shape: Option<Vec<usize>>) -> Result<Self, E> {
        let first = || E::custom("the dtype and the shape of a tensor must come before its data");
        let (dtype, shape) = (dtype.ok_or_else(first)?, shape.ok_or_else(first)?);
        let elements = count(&shape).map_err(E::custom)?;
        Ok(Self {
            dtype,
            shape,
            elements,
        })
    }

    fn wrong_number<E: serde::de::Error>(&self, found: usize) -> E {
        E::custom(TensorError::Elements {
            shape: self.shape.as_slice().into(),
            expected: self.elements,
            found,
        })
    }

    /// Reads a list of elements. Memory grows with the elements that arrive.
    fn list<'de, A: SeqAccess<'de>, T>(
        &self,
        mut list: A,
        of: impl Fn(Scalar) -> Option<T>,
    ) -> Result<Vec<T>, A::Error> {
        let mut elements = Vec::with_capacity(self.elements.min(AT_ONCE));
        while let Some(value) = list.next_element::<Scalar>()? {
            if elements.len() == self.elements {
                return Err(self.wrong_number(self.elements.saturating_add(1)));
            }
            let element = of(value).ok_or_else(|| {
                let dtype = self.dtype;
                A::Error::custom(TensorError::Scalar { value, dtype })
            })?;
            elements.push(element);
        }
        if elements.len() < self.elements {
            return Err(self.wrong_number(elements.len()));
        }
        Ok(elements)
    }

    fn bytes<E: serde::de::Error>(&self, bytes: &[u8]) -> Result<Tensor, E> {
        if Some(bytes.len()) != self.elements.checked_mul(self.dtype.size()) {
            return Err(self.wrong_number(bytes.len() / self.dtype.size()));
        }
        if self.dtype == DType::Bool
            && let Some(byte) = bytes.iter().find(|byte| **byte > 1)
        {
            return Err(E::invalid_value(Unexpected::Unsigned((*byte).into()), &"0 or 1"));
        }
        let tensor = with_plain!(self.dtype, P => {
            let elements = bytes.chunks_exact(size_of::<P>()).map(|bytes| {
                let mut element = bytemuck::pod_read_unaligned::<P>(bytes);
                reorder(bytemuck::bytes_of_mut(&mut element), self.dtype);
                element
            });
            millpond_set::pools::draw(|pool: &millpond_pool::pool::Pool| {
                let bytes = Buffer::collect(millpond_pool::block::Memory::owner(pool), elements)?.into_bytes();
                Tensor::of(Storage::of(bytes, self.dtype), &self.shape)
            })
        });
        tensor.map_err(E::custom)
    }
}

impl<'de> DeserializeSeed<'de> for Data {
    type Value = Tensor;
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Tensor, D::Error> {
        if from.is_human_readable() {
            from.deserialize_seq(self)
        } else {
            from.deserialize_bytes(self)
        }
    }
}

impl<'de> Visitor<'de> for Data {
    type Value = Tensor;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} elements of {}", self.elements, self.dtype)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Tensor, A::Error> {
        let dtype = self.dtype;
        let made = with_number!(
            dtype,
            T => {
                let of = |value: Scalar| value.fits(dtype).then(|| T::of_scalar(value));
                Tensor::from_slice(&self.list(list, of)?, &self.shape)
            },
            else if dtype == DType::Bool {
                Tensor::from_bools(&self.list(list, Scalar::to_bool)?, &self.shape)
            } else {
                Err(TensorError::Unsupported { operation: "reading a list", dtype })
            }
        );
        made.map_err(A::Error::custom)
    }

    fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Tensor, E> {
        self.bytes(bytes)
    }
}

impl<'de> Deserialize<'de> for Tensor {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Tensor;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a tensor: dtype, shape and data")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut fields: A) -> Result<Tensor, A::Error> {
                let dtype = fields.next_element()?;
                let data = Data::new(dtype, fields.next_element()?)?;
                let tensor = fields.next_element_seed(data)?;
                tensor.ok_or_else(|| A::Error::missing_field("data"))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Tensor, A::Error> {
                let (mut dtype, mut shape, mut tensor) = (None, None, None);
                while let Some(name) = fields.next_key::<String>()? {
                    match &*name {
                        "dtype" => dtype = Some(fields.next_value()?),
                        "shape" => shape = Some(fields.next_value()?),
                        "data" => {
                            let data = Data::new(dtype.take(), shape.take())?;
                            tensor = Some(fields.next_value_seed(data)?);
                        }
                        other => return Err(A::Error::unknown_field(other, FIELDS)),
                    }
                }
                tensor.ok_or_else(|| A::Error::missing_field("data"))
            }
        }
        from.deserialize_struct("Tensor", FIELDS, Fields)
    }
}
