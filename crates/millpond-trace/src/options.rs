//! Options for reading a file.

/// A callback for progress. It receives the bytes read so far and the size of the file if known.
pub type Progress<'a> = &'a dyn Fn(u64, Option<u64>);

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
}

impl Default for ReadOptions<'_> {
    fn default() -> Self {
        Self {
            max_decompressed: 64 << 30,
            max_expansion: 100,
            progress: None,
            name: None,
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
