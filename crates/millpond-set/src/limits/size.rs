//! Sizes in bytes, as numbers or texts.

use millpond_engine::{ParseSizeError, parse_size};

/// A size in bytes: a number, or a text that [`parse_size`](millpond_engine::parse_size) accepts, for example `"24 MiB"`.
#[derive(Clone, Debug)]
pub struct Size(Result<u64, ParseSizeError>);

impl Size {
    /// Returns the number of bytes.
    ///
    /// # Errors
    /// Returns an error if the value was created from a text that is not a size, or from a negative number.
    pub fn bytes(self) -> Result<u64, ParseSizeError> {
        self.0
    }
}

impl From<u64> for Size {
    fn from(bytes: u64) -> Self {
        Self(Ok(bytes))
    }
}

impl From<usize> for Size {
    fn from(bytes: usize) -> Self {
        Self(Ok(bytes as u64))
    }
}

/// Integer literals have this type.
impl From<i32> for Size {
    fn from(bytes: i32) -> Self {
        Self(parse_size(&bytes.to_string()))
    }
}

impl From<&str> for Size {
    fn from(text: &str) -> Self {
        Self(parse_size(text))
    }
}
