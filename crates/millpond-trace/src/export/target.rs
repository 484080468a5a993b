//! The formats by the endings of files' names.

use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::{self, Write};

/// A format that recordings can be written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// Track events of Perfetto: counters for each pool, allocations with stacks and weights.
    Perfetto,
    /// A memory snapshot as PyTorch writes it.
    Snapshot,
    /// A profile of pprof, with four types of samples.
    Pprof,
    /// A sampled profile of speedscope.
    Speedscope,
    /// A stack and its bytes on each line, as flame graphs are drawn from.
    Folded,
    /// A profile of DHAT.
    Dhat,
    /// Text as heaptrack's interpreter writes it.
    Heaptrack,
    /// A chrome trace: counters, lifetimes and `[memory]` events as of `torch.profiler`.
    Chrome,
    /// A recording of Millpond's.
    Recording,
    /// Millpond CSV.
    Csv,
}

impl Dialect {
    /// All of them.
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

    /// How names of such files end, without a compression's own ending.
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

/// How a file is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Packing {
    /// It is not.
    #[default]
    Plain,
    /// By gzip.
    Gzip,
    /// By zstd.
    Zstd,
}

/// A format, and how its file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The format.
    pub dialect: Dialect,
    /// The compression.
    pub packing: Packing,
}

impl Target {
    /// What a file's name says by its ending; none where it says nothing known.
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
        let dialect = Dialect::ALL.into_iter().find(ends)?;
        // A recording's batches are compressed, and its reader takes no other wrapping.
        let twice = dialect == Dialect::Recording && packing != Packing::Plain;
        (!twice).then_some(Self { dialect, packing })
    }
}

impl Packing {
    /// What compresses on the way to `out`.
    pub(super) fn writer<W: Write>(self, out: W) -> io::Result<Packed<W>> {
        Ok(match self {
            Self::Plain => Packed::Plain(out),
            Self::Gzip => Packed::Gzip(GzEncoder::new(out, Compression::default())),
            Self::Zstd => Packed::Zstd(zstd::Encoder::new(out, zstd::DEFAULT_COMPRESSION_LEVEL)?),
        })
    }
}

/// A writer that compresses.
pub(super) enum Packed<W: Write> {
    Plain(W),
    Gzip(GzEncoder<W>),
    Zstd(zstd::Encoder<'static, W>),
}

impl<W: Write> Packed<W> {
    /// Writes what a compression still holds.
    pub(super) fn finish(self) -> io::Result<()> {
        match self {
            Self::Plain(mut out) => out.flush(),
            Self::Gzip(out) => out.finish()?.flush(),
            Self::Zstd(out) => out.finish()?.flush(),
        }
    }
}

impl<W: Write> Write for Packed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(out) => out.write(bytes),
            Self::Gzip(out) => out.write(bytes),
            Self::Zstd(out) => out.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(out) => out.flush(),
            Self::Gzip(out) => out.flush(),
            Self::Zstd(out) => out.flush(),
        }
    }
}
