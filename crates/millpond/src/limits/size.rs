//! Bytes, as a number or as people write them.

use millpond_engine::{ParseSizeError, parse_size};

/// Bytes: a number, or a text that [`parse_size`](crate::engine::parse_size) reads, as `"24 MiB"`. A negative number is none.
#[derive(Clone, Debug)]
pub struct Size(Result<u64, ParseSizeError>);

impl Size {
    /// The number.
    ///
    /// # Errors
    /// When it was made of a text that is no size.
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

/// What a literal is.
impl From<i32> for Size {
    fn from(bytes: i32) -> Self {
        Self(Ok(u64::try_from(bytes).unwrap_or(0)))
    }
}

impl From<&str> for Size {
    fn from(text: &str) -> Self {
        Self(parse_size(text))
    }
}
