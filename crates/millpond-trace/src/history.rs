//! A recording of any format as rows that can be read repeatedly.
//!
//! A Millpond recording stays in its file. Reading its rows needs memory for a few batches only, so the file may be
//! larger than memory. Other formats are read completely into memory and provide the same rows. Every report, drawing
//! and export therefore works for all formats.

mod allowance;
mod define;
mod file;
mod from_traces;
mod index;
mod live;
mod stacks;
mod symbols;
#[cfg(test)]
mod tests;

pub use allowance::Allowance;
pub use define::{Definitions, Frame, Module, Pool};
pub use index::Start;
pub use live::Live;
pub use symbols::Symbols;

use crate::formats::read_file;
use crate::hash::Map;
use crate::recording::{Batch, End, Gauge, Kind, Reader, RecordingError, Row, bytes_per_stack, start_of};
use crate::{Caution, Interrupt, ReadError, ReadOptions, Trace};
use define::cut;
use file::{FromStart, Opened};
use index::KeyframeIndex;
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::mpsc;
use std::thread::Builder;

/// Maximum number of batches that are decoded without a second thread.
const SMALL: usize = 4;
/// Number of rows in memory between two checks for an interrupt.
const ROWS: usize = 4096;

/// Why a recording could not be opened or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HistoryError {
    /// A Millpond recording could not be read.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// A file of another format could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The file has changed since it was opened.
    #[error("the recording was truncated or overwritten after it was opened; open it again")]
    Changed,
    /// The contents would take more memory than those of any real recording of this size.
    #[error(
        "refused: {what} would take more than {limit} bytes of memory, which no real recording of {file} bytes needs"
    )]
    TooMuch {
        /// The part of the recording that takes the memory.
        what: &'static str,
        /// The most bytes of memory that it may take.
        limit: u64,
        /// Bytes of the file.
        file: u64,
    },
    /// A small file has too many rows.
    #[error("refused: {rows} rows or more in {file} bytes, which no real recording has")]
    TooDense {
        /// The number of rows so far.
        rows: u64,
        /// The bytes of the file up to those rows.
        file: u64,
    },
}

/// The most pools whose bytes are compared with measurements.
const MOST_POOLS: usize = 1 << 16;

/// A recording and the data that is known before its rows are read.
#[derive(Debug)]
pub struct History {
    rows: RowSource,
    interrupt: Interrupt,
    /// The meaning of the numbers in rows.
    pub definitions: Definitions,
    /// Facts about the recording, by name.
    pub facts: Vec<(String, String)>,
    /// The time of the last row, in nanoseconds since the recording began.
    pub duration: u64,
    /// Number of rows.
    pub len: u64,
    /// Number of events that the recording reports as missing.
    pub lost: u64,
    /// How the recording ends, or `None` if the format does not say.
    pub end: Option<End>,
    /// The findings of its reader.
    pub cautions: Vec<Caution>,
    /// Serial numbers of blocks that are older than the recording, although a row at its start allocates them.
    pub older: Vec<Range<u64>>,
    /// Whether the recording contains only an allocator's state at one moment, without a history.
    pub state_only: bool,
    /// The blocks and segments of each device without a history, as in [`Recording::standing`](crate::Recording::standing).
    pub standing: Vec<Trace>,
    /// The bytes that one recorded stack represents, if stacks are a sample.
    bytes_per_stack: Option<u64>,
    /// The bytes of each pool.
    pools: Map<u32, PoolBytes>,
    /// Whether a row so far allocates a block, and whether the blocks of a moment before the first such row are listed.
    has_blocks: bool,
    lists_older: bool,
}

/// The bytes that a pool has taken from its source, and those of its blocks.
#[derive(Clone, Copy, Debug, Default)]
struct PoolBytes {
    reserved: Measured,
    allocated: Measured,
}

/// Bytes that the recording measures, and whose changes it names.
#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    /// Bytes of the segments or blocks that the recording names. It is negative if older ones were freed.
    named: i128,
    /// Whether the recording names any change.
    is_named: bool,
    /// The smallest and the last difference between a measurement and `named`. `None` without a measurement.
    differences: Option<(u64, u64)>,
}

impl Measured {
    fn add(&mut self, bytes: u64) {
        self.named += i128::from(bytes);
        self.is_named = true;
    }

    fn subtract(&mut self, bytes: u64) {
        self.named -= i128::from(bytes);
        self.is_named = true;
    }

    fn measure(&mut self, bytes: u64) {
        let more = u64::try_from(i128::from(bytes) - self.named).unwrap_or(0);
        let least = self.differences.map_or(more, |(least, _)| least.min(more));
        self.differences = Some((least, more));
    }

    /// Returns the bytes of the segments or blocks from before the recording.
    ///
    /// A measurement can contain a change whose event follows it, or lack a change whose event precedes it. Its difference is then wrong by
    /// that change. The last measurement of a complete recording is exact. If any difference is 0, there were no bytes before.
    fn before(&self, is_complete: bool) -> u64 {
        match self.differences {
            Some((1.., last)) if is_complete => last,
            Some((least, _)) => least,
            None => 0,
        }
    }
}

#[derive(Debug)]
enum RowSource {
    /// A Millpond recording, its size when it was opened, and the places where a walk can begin.
    File {
        file: Opened,
        bytes: u64,
        starts: Vec<Start>,
    },
    Rows(Vec<Row>),
}

impl History {
    /// Opens a recording in any supported format. A Millpond recording is read once, to collect its definitions.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or is not a recording.
    pub fn open(path: &Path, options: &ReadOptions<'_>) -> Result<Self, HistoryError> {
        Self::open_and_watch(path, options, |_, _| {})
    }

    /// Opens a recording and passes each row to `watch`, with the definitions up to it. This avoids a second walk over
    /// a large file.
    ///
    /// # Errors
    /// Returns the errors of [`open`](Self::open).
    pub fn open_and_watch(
        path: &Path,
        options: &ReadOptions<'_>,
        mut watch: impl FnMut(&Row, &Definitions),
    ) -> Result<Self, HistoryError> {
        if is_ours(path)? {
            return Self::of_file(path, options, watch);
        }
        let recording = read_file(path, options)?;
        let mut history = from_traces::history(&recording);
        history.interrupt = options.interrupt.cloned().unwrap_or_default();
        history.standing = recording.standing;
        history.walk(|row, _| {
            watch(row, &history.definitions);
            Flow::On
        })?;
        Ok(history)
    }

    fn of_file(
        path: &Path,
        options: &ReadOptions<'_>,
        mut watch: impl FnMut(&Row, &Definitions),
    ) -> Result<Self, HistoryError> {
        let file = Opened::new(path).map_err(RecordingError::from)?;
        let total = file.bytes();
        let reader = Reader::new(file.read_from_start())?;
        let mut history = Self {
            bytes_per_stack: bytes_per_stack(reader.facts()),
            pools: Map::default(),
            has_blocks: false,
            lists_older: false,
            facts: reader.facts().to_vec(),
            rows: RowSource::Rows(Vec::new()),
            interrupt: options.interrupt.cloned().unwrap_or_default(),
            definitions: Definitions::default(),
            duration: 0,
            len: 0,
            lost: 0,
            end: None,
            cautions: Vec::new(),
            older: Vec::new(),
            state_only: false,
            standing: Vec::new(),
        };
        let mut index = KeyframeIndex::default();
        let mut refused = Ok(());
        let reader = batches(reader, u64::MAX, |places, batch| {
            let allowance = Allowance::of_file(places.end);
            if let Some(progress) = options.progress {
                progress(places.end, Some(total));
            }
            let rows = history.len.saturating_add(batch.len() as u64);
            let interrupted = history.interrupt.check().map_err(HistoryError::from);
            refused = interrupted.and_then(|()| allowance.check_rows(rows));
            if refused.is_err() {
                return Flow::Stop;
            }
            index.begin_batch(places.start, history.len);
            let mut rows = batch.rows();
            while let Some(row) = rows.next() {
                history.len += 1;
                index.note(&row);
                refused = history.note(&row, batch, rows.place(), allowance);
                if refused.is_err() {
                    return Flow::Stop;
                }
                watch(&row, &history.definitions);
            }
            Flow::On
        })?;
        refused?;
        history.end = reader.end().cloned();
        if let (0, Some(End::Damaged { what, .. })) = (history.len, &history.end) {
            return Err(RecordingError::NotOurs(what.clone()).into());
        }
        history.rows = RowSource::File {
            file,
            bytes: match history.end {
                // Only complete batches count. A batch that is completed later would otherwise be in some walks and not
                // in others.
                Some(End::Cut { bytes } | End::Damaged { bytes, .. }) => bytes,
                _ => reader.bytes(),
            },
            starts: index.finish(),
        };
        history.definitions.check_names(history.allowance())?;
        Ok(history)
    }

    /// Returns the moment from which the times of the rows count, in nanoseconds since 1970, if it is known.
    #[must_use]
    pub fn start(&self) -> Option<u64> {
        start_of(&self.facts)
    }

    /// Returns the bytes that one recorded stack represents, if only a sample of the allocations was recorded with stacks.
    /// Each byte was selected with the probability of one in this number. An allocation has a stack if one of its bytes was
    /// selected or if it has at least this number of bytes.
    #[must_use]
    pub fn bytes_per_stack(&self) -> Option<u64> {
        self.bytes_per_stack
    }

    /// Returns the number of blocks that the block of a row represents in sums by stack. It is 1, unless only a sample of the
    /// blocks was recorded with stacks: see [`bytes_per_stack`](Self::bytes_per_stack).
    ///
    /// A block of `n` bytes is in a sample of one in `m` bytes with the probability `1 - exp(-n / m)`, so it represents the inverse
    /// number of blocks. Heap profilers such as tcmalloc's use the same estimate. Blocks without a stack represent none, except
    /// those that were allocated before the recording, which are not part of the sample.
    #[must_use]
    pub fn represents(&self, row: &Row) -> f64 {
        match self.bytes_per_stack {
            None => 1.0,
            Some(_) if row.stack == 0 => f64::from(u8::from(self.is_older(row.id))),
            Some(bytes) if row.requested >= bytes => 1.0,
            Some(bytes) => 1.0 / -(-(row.requested.max(1) as f64) / bytes as f64).exp_m1(),
        }
    }

    fn note_bytes(&mut self, row: &Row) {
        if self.pools.len() >= MOST_POOLS && !self.pools.contains_key(&row.pool) {
            return;
        }
        let pool = self.pools.entry(row.pool).or_default();
        match row.kind {
            Kind::Reserve => pool.reserved.add(row.bytes),
            Kind::Release => pool.reserved.subtract(row.bytes),
            Kind::Alloc => pool.allocated.add(row.bytes),
            Kind::Free | Kind::FreeRequested => pool.allocated.subtract(row.bytes),
            _ => match Gauge::from_number(row.tag) {
                Some(Gauge::Reserved) => pool.reserved.measure(row.bytes),
                Some(Gauge::Allocated) => pool.allocated.measure(row.bytes),
                _ => {}
            },
        }
    }

    /// Returns the bytes that a pool had taken from its source before it was recorded.
    #[must_use]
    pub fn reserved_before(&self, pool: u32) -> u64 {
        let pool = self.pools.get(&pool);
        pool.map_or(0, |pool| pool.reserved.before(self.is_complete()))
    }

    /// Returns whether the rows name every change of the bytes that a pool has taken from its source. These bytes are then
    /// [`reserved_before`](Self::reserved_before) and the sum of the changes. A measurement can be wrong by a change at the same time.
    #[must_use]
    pub fn names_segments(&self, pool: u32) -> bool {
        self.lost == 0 && self.pools.get(&pool).is_some_and(|pool| pool.reserved.is_named)
    }

    /// Returns the bytes of a pool's blocks that were allocated before the recording and that no row lists. The child of a fork has such
    /// blocks, because it inherits them. If the recording was not closed, requests that were served while it measured its sums can make
    /// the figure too small by their bytes.
    #[must_use]
    pub fn allocated_before(&self, pool: u32) -> u64 {
        let pool = self.pools.get(&pool).filter(|_| !self.lists_older);
        pool.map_or(0, |pool| pool.allocated.before(self.is_complete()))
    }

    fn is_complete(&self) -> bool {
        self.end == Some(End::Closed)
    }

    /// Returns whether a block was allocated before the recording.
    #[must_use]
    pub fn is_older(&self, block: u64) -> bool {
        self.older.iter().any(|ids| ids.contains(&block))
    }

    /// Returns how much memory the data kept for this recording may take.
    #[must_use]
    pub fn allowance(&self) -> Allowance {
        match &self.rows {
            RowSource::File { bytes, .. } => Allowance::of_file(*bytes).beside(self.definitions.bytes()),
            RowSource::Rows(_) => Allowance::unlimited(),
        }
    }

    fn note(
        &mut self,
        row: &Row,
        batch: &Batch,
        place: usize,
        allowance: Allowance,
    ) -> Result<(), HistoryError> {
        match row.kind {
            Kind::Live => return Ok(()),
            // A recording that begins in this way lists the blocks from before it.
            Kind::Keyframe => self.lists_older |= !self.has_blocks,
            Kind::Lost => self.lost = self.lost.saturating_add(row.id),
            Kind::Alloc | Kind::Free | Kind::FreeRequested | Kind::Reserve | Kind::Release | Kind::Gauge => {
                self.has_blocks |= row.kind == Kind::Alloc;
                self.note_bytes(row);
            }
            kind if kind as u8 >= Kind::DefineTag as u8 => {
                self.definitions.note(row, batch.text(place), batch.list(place));
                self.definitions.check(allowance)?;
            }
            _ => {}
        }
        self.duration = self.duration.max(row.time);
        Ok(())
    }

    /// Calls `each` for all rows in order, with the text of marks. Stops when `each` returns [`Flow::Stop`].
    ///
    /// # Errors
    /// Returns an error if the file can no longer be read. The rows passed before were correct.
    pub fn walk(&self, each: impl FnMut(&Row, Option<&str>) -> Flow) -> Result<(), HistoryError> {
        self.walk_from(&Start::default(), each)
    }

    /// Returns the last place from which a walk sees everything that happens at `time` or later, and the state before.
    /// This is a keyframe or the beginning.
    #[must_use]
    pub fn start_before(&self, time: u64) -> Start {
        let RowSource::File { starts, .. } = &self.rows else {
            return Start::default();
        };
        let after = starts.partition_point(|start| start.latest < time);
        let found = after.checked_sub(1).and_then(|at| starts.get(at));
        found.cloned().unwrap_or_default()
    }

    /// Calls `each` for all rows from a place on. The first rows are gauges with the known state of pools and devices
    /// at that place.
    ///
    /// # Errors
    /// Returns the errors of [`walk`](Self::walk).
    pub fn walk_from(
        &self,
        start: &Start,
        mut each: impl FnMut(&Row, Option<&str>) -> Flow,
    ) -> Result<(), HistoryError> {
        let (file, bytes) = match &self.rows {
            RowSource::Rows(rows) => {
                for rows in rows.chunks(ROWS) {
                    self.interrupt.check()?;
                    if rows.iter().any(|row| each(row, None) == Flow::Stop) {
                        break;
                    }
                }
                return Ok(());
            }
            RowSource::File { file, bytes, .. } => (file, *bytes),
        };
        let mut reader = Reader::new(file.read_from_start())?;
        if start.bytes > 0 {
            reader.skip_to(start.bytes)?;
        }
        let mut rows = start.row + start.figures.len() as u64;
        for row in &start.figures {
            if each(row, None) == Flow::Stop {
                return Ok(());
            }
        }
        let (mut stopped, mut interrupted) = (false, Ok(()));
        // Rows added since the recording was opened are skipped, so that all walks see the same rows.
        let reader = batches(reader, bytes, |_, batch| {
            interrupted = self.interrupt.check();
            if interrupted.is_err() {
                return Flow::Stop;
            }
            let mut found = batch.rows();
            while let Some(row) = found.next() {
                rows += 1;
                let text = match row.kind {
                    Kind::Mark => batch.text(found.place()).map(cut),
                    _ => None,
                };
                if each(&row, text) == Flow::Stop {
                    stopped = true;
                    return Flow::Stop;
                }
            }
            Flow::On
        })?;
        interrupted?;
        let is_other = !stopped && (reader.bytes() < bytes || rows != self.len);
        if is_other || file.is_written_over().map_err(RecordingError::from)? {
            return Err(HistoryError::Changed);
        }
        Ok(())
    }

    /// Returns the blocks that callers hold after everything that happened up to `time`.
    ///
    /// # Errors
    /// Returns the errors of [`walk`](Self::walk), or an error if the blocks exceed the allowance.
    pub fn live_at(&self, time: u64) -> Result<Live, HistoryError> {
        let mut live = Live::default();
        let allowance = self.allowance();
        let mut allowed = Ok(());
        self.walk_from(&self.start_before(time.saturating_add(1)), |row, _| {
            if row.kind != Kind::Live && row.time > time {
                return Flow::Stop;
            }
            live.note(row);
            allowed = allowance.check("the blocks that are live at once", live.bytes_kept());
            if allowed.is_err() { Flow::Stop } else { Flow::On }
        })?;
        allowed?;
        Ok(live)
    }
}

/// Whether a walk continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// The walk continues.
    On,
    /// The walk stops.
    Stop,
}

/// Calls `each` with every batch in the first `bytes` bytes of a file and the batch's position there. Returns the
/// reader at the position where it stopped. Large files are decoded on another thread, one batch ahead.
fn batches(
    mut reader: Reader<FromStart>,
    bytes: u64,
    mut each: impl FnMut(Range<u64>, &Batch) -> Flow,
) -> Result<Reader<FromStart>, RecordingError> {
    for _ in 0..SMALL {
        if reader.bytes() >= bytes {
            return Ok(reader);
        }
        let before = reader.bytes();
        let Some(batch) = reader.next_batch()? else {
            return Ok(reader);
        };
        if each(before..reader.bytes(), &batch) == Flow::Stop {
            return Ok(reader);
        }
    }
    std::thread::scope(|scope| {
        // The channel holds no batch, because a batch can be large. Only the two threads hold one each.
        let (decoded, next) = mpsc::sync_channel(0);
        let decode = move || {
            while reader.bytes() < bytes {
                let before = reader.bytes();
                let Some(batch) = reader.next_batch()? else {
                    break;
                };
                if decoded.send((before..reader.bytes(), batch)).is_err() {
                    break;
                }
            }
            Ok(reader)
        };
        let thread = Builder::new().spawn_scoped(scope, decode)?;
        while let Ok((places, batch)) = next.recv() {
            if each(places, &batch) == Flow::Stop {
                break;
            }
        }
        // The decoding thread stops at the next batch.
        drop(next);
        thread.join().unwrap_or_else(|_| Err(RecordingError::Panicked))
    })
}

/// Returns whether a file starts like an Arrow stream.
pub(crate) fn is_ours(path: &Path) -> Result<bool, ReadError> {
    use std::io::Read;
    let io_error = |source| ReadError::Io {
        name: path.display().to_string(),
        source,
    };
    let mut first = Vec::new();
    let file = File::open(path).map_err(io_error)?;
    file.take(4).read_to_end(&mut first).map_err(io_error)?;
    Ok(first == [0xff; 4])
}
