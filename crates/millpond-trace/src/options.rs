//! How a file is read.

/// Called while a file is read, with the bytes read so far and the bytes of the whole file where known.
pub type Progress<'a> = &'a dyn Fn(u64, Option<u64>);

/// How a file is read; [`ReadOptions::default`] suits recordings of any honest size.
#[derive(Clone, Copy)]
pub struct ReadOptions<'a> {
    /// Most bytes a file may hold when decompressed. Readers stream, so this bounds time and not memory.
    pub max_decompressed: u64,
    /// How many times larger than the file its content may be. Text recordings of real programs grow 9 to
    /// 12 times with zstd; the first 16 MiB of content are free.
    pub max_expansion: u64,
    /// Told about progress now and then, from the reading thread.
    pub progress: Option<Progress<'a>>,
}

impl Default for ReadOptions<'_> {
    fn default() -> Self {
        Self {
            max_decompressed: 64 << 30,
            max_expansion: 100,
            progress: None,
        }
    }
}

impl std::fmt::Debug for ReadOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadOptions")
            .field("max_decompressed", &self.max_decompressed)
            .field("max_expansion", &self.max_expansion)
            .field("progress", &self.progress.map(|_| ".."))
            .finish()
    }
}
