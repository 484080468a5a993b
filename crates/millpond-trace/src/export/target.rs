//! The export formats by the extensions of file names.

use super::ExportError;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write;

/// A format in which recordings can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// Perfetto track events: counters for each pool, and allocations with stacks and weights.
    Perfetto,
    /// A memory snapshot as PyTorch writes it.
    Snapshot,
    /// A pprof profile with four sample types.
    Pprof,
    /// A sampled speedscope profile.
    Speedscope,
    /// A stack and its bytes on each line, the input of flame graphs.
    Folded,
    /// A DHAT profile.
    Dhat,
    /// The text format of heaptrack's interpreter.
    Heaptrack,
    /// A chrome trace: counters, lifetimes and the `[memory]` events of `torch.profiler`.
    Chrome,
    /// A Millpond recording.
    Recording,
    /// Millpond CSV.
    Csv,
}

impl Dialect {
    /// All formats.
    pub const ALL: [Self; 10] = [
        Self::Perfetto,
        Self::Snapshot,
        Self::Pprof,
        Self::Speedscope,
        Self::Folded,
        Self::Dhat,
        Self::Heaptrack,
        Self::Chrome,
        Self::Recording,
        Self::Csv,
    ];

    /// Returns the file name extension without that of a compression.
    #[must_use]
    pub const fn ending(self) -> &'static str {
        match self {
            Self::Perfetto => "perfetto-trace",
            Self::Snapshot => "pickle",
            Self::Pprof => "pb",
            Self::Speedscope => "speedscope.json",
            Self::Folded => "folded",
            Self::Dhat => "dhat.json",
            Self::Heaptrack => "heaptrack",
            Self::Chrome => "trace.json",
            Self::Recording => crate::recording::ENDING,
            Self::Csv => "csv",
        }
    }
}

/// The compression of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Packing {
    /// No compression.
    #[default]
    Plain,
    /// Compression by gzip.
    Gzip,
    /// Compression by zstd.
    Zstd,
}

/// A format and the compression of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The format.
    pub dialect: Dialect,
    /// The compression.
    pub packing: Packing,
}

impl Target {
    /// Returns the target for a file name by its extension, or `None` if the extension is unknown.
    ///
    /// ```
    /// use millpond_trace::export::{Dialect, Packing, Target};
    ///
    /// let target = Target::of_name("run.pb.gz").expect("known");
    /// assert_eq!((target.dialect, target.packing), (Dialect::Pprof, Packing::Gzip));
    /// assert!(Target::of_name("run.docx").is_none());
    /// ```
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        let (name, packing) = match (name.strip_suffix(".gz"), name.strip_suffix(".zst")) {
            (Some(name), _) => (name, Packing::Gzip),
            (_, Some(name)) => (name, Packing::Zstd),
            _ => (name.as_str(), Packing::Plain),
        };
        let ends = |dialect: &Dialect| {
            let before = name.strip_suffix(dialect.ending());
            before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
        };
        let found = Dialect::ALL.into_iter().filter(ends);
        let dialect = found.max_by_key(|dialect| dialect.ending().len())?;
        // The batches of a recording are already compressed, and its reader does not accept another compression.
        let twice = dialect == Dialect::Recording && packing != Packing::Plain;
        (!twice).then_some(Self { dialect, packing })
    }
}

impl Packing {
    /// Calls `write` with a writer that compresses and writes to `out`. Then writes the remaining compressed data.
    pub(super) fn pack<T>(
        self,
        mut out: impl Write,
        write: impl FnOnce(&mut dyn Write) -> Result<T, ExportError>,
    ) -> Result<T, ExportError> {
        Ok(match self {
            Self::Plain => {
                let written = write(&mut out)?;
                out.flush()?;
                written
            }
            Self::Gzip => {
                let mut packed = GzEncoder::new(out, Compression::default());
                let written = write(&mut packed)?;
                packed.finish()?.flush()?;
                written
            }
            Self::Zstd => {
                let mut packed = zstd::Encoder::new(out, zstd::DEFAULT_COMPRESSION_LEVEL)?;
                let written = write(&mut packed)?;
                packed.finish()?.flush()?;
                written
            }
        })
    }
}
