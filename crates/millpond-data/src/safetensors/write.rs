//! Writing of safetensors files.

use super::header::{self, METADATA, MOST_HEADER, Named, name_of};
use super::{SafeTensors, SafeTensorsError, shown};
use crate::DataError;
use crate::files::failed;
use crate::replace::replace;
use millpond_tensor::TensorRef;
use std::cmp::Reverse;
use std::path::Path;

impl SafeTensors {
    /// Writes tensors with their names, and metadata. The file appears under its name when it is complete. A previous
    /// file of this name remains until then. Programs that have it open or mapped keep it.
    ///
    /// The data begins at a multiple of 64 bytes. Tensors with larger elements come first, so that all tensors are
    /// aligned for views of a [map](Self::map). Otherwise the given order is kept. Elements of a view that is not
    /// contiguous are written in the view's order. No copy is made.
    ///
    /// # Errors
    /// Returns an error if a name occurs twice or is `__metadata__`, if the format does not support the elements
    /// (complex numbers of double precision), if the header is too long, or if the file cannot be written.
    pub fn write(
        path: impl AsRef<Path>,
        tensors: &[(&str, TensorRef<'_>)],
        metadata: &[(&str, &str)],
    ) -> Result<(), SafeTensorsError> {
        let path = path.as_ref();
        let places = |count| millpond_set::pools::alloc_from_fn(count, |at| at).map_err(DataError::Memory);
        let twice = |name: &str| SafeTensorsError::Duplicate {
            path: path.to_owned(),
            name: shown(name),
        };
        let mut order = places(tensors.len())?;
        let name = |at: usize| tensors.get(at).map_or("", |(name, _)| *name);
        if let Some(name) = repeated(&mut order, name) {
            return Err(twice(name));
        }
        let key = |at: usize| metadata.get(at).map_or("", |(key, _)| *key);
        if let Some(key) = repeated(&mut places(metadata.len())?, key) {
            return Err(twice(key));
        }
        for (name, tensor) in tensors {
            let (name, dtype) = (*name, tensor.dtype());
            if name == METADATA {
                return Err(SafeTensorsError::Name { name: shown(name) });
            }
            if name_of(dtype).is_none() {
                return Err(SafeTensorsError::Unwritable {
                    name: shown(name),
                    dtype,
                });
            }
        }
        let named = |at: &usize| -> Option<Named<'_>> {
            let (name, tensor) = tensors.get(*at)?;
            Some((name, name_of(tensor.dtype())?, *tensor))
        };
        order.sort_unstable_by_key(|at| {
            let size = named(at).map_or(0, |(_, _, tensor)| tensor.dtype().size());
            (Reverse(size), *at)
        });
        let named = || order.iter().filter_map(named);
        let lengths = header::lengths(named(), metadata).map_err(failed(path, "write it"))?;
        let [_, length] = lengths;
        if length > MOST_HEADER {
            return Err(SafeTensorsError::Header {
                path: path.to_owned(),
                why: format!(
                    "its header would have {length} bytes, more than the format's limit of {MOST_HEADER}"
                ),
            });
        }
        replace(path, |file| {
            header::write(file, lengths, named(), metadata)?;
            for (_, _, tensor) in named() {
                tensor.write_to(file)?;
            }
            Ok(())
        })?;
        Ok(())
    }
}

/// Returns a name that occurs twice among those at the given indices.
fn repeated<'a>(places: &mut [usize], name: impl Fn(usize) -> &'a str) -> Option<&'a str> {
    places.sort_unstable_by(|one, other| name(*one).cmp(name(*other)));
    let mut pairs = places.iter().zip(places.iter().skip(1));
    let twice = pairs.find(|(one, other)| name(**one) == name(**other));
    twice.map(|(one, _)| name(*one))
}
