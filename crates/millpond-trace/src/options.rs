//! Options for reading a file.

use crate::ReadError;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A callback for progress. It receives the bytes read so far and the size of the file if known.
pub type Progress<'a> = &'a dyn Fn(u64, Option<u64>);

/// A flag that interrupts reading. Clones share the flag.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Sets the flag. This interrupts all operations that check it, now and later.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns whether the flag is set.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Checks the flag.
    ///
    /// # Errors
    /// Returns [`ReadError::Interrupted`] if the flag is set.
    pub(crate) fn check(&self) -> Result<(), ReadError> {
        match self.is_set() {
            false => Ok(()),
            true => Err(ReadError::Interrupted),
        }
    }
}

/// Options for reading a file. [`ReadOptions::default`] suits recordings of any normal size.
#[derive(Clone, Copy)]
pub struct ReadOptions<'a> {
    /// Maximum decompressed size of a file in bytes. Readers stream, so this limits the time and not the memory.
    pub max_decompressed: u64,
    /// Maximum ratio of the decompressed size to the file size. Text recordings of real programs grow 9 to 12 times
    /// with zstd. The first 16 MiB of content are not limited.
    pub max_expansion: u64,
    /// Called regularly with the progress, on the reading thread.
    pub progress: Option<Progress<'a>>,
    /// The name of the recording, in place of the file name.
    pub name: Option<&'a str>,
    /// Interrupts reading, and the walks of a `History` that was opened with these options.
    pub interrupt: Option<&'a Interrupt>,
}

impl Default for ReadOptions<'_> {
    fn default() -> Self {
        Self {
            max_decompressed: 64 << 30,
            max_expansion: 100,
            progress: None,
            name: None,
            interrupt: None,
        }
    }
}

impl std::fmt::Debug for ReadOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadOptions")
            .field("max_decompressed", &self.max_decompressed)
            .field("max_expansion", &self.max_expansion)
            .field("progress", &self.progress.map(|_| ".."))
            .field("name", &self.name)
            .finish()
    }
}
