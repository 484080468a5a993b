//! Reads rows that are not adjacent with few system calls. Rows with small gaps between them are read as one piece, and
//! the rows are copied from it (data sieving: Thakur, Gropp and Lusk, "Data sieving and collective I/O in ROMIO",
//! 1999).

use super::error::DataError;
use super::files::Files;
use super::order::Order;
use millpond_account::error::AllocError;
use millpond_pool::buffer::Buffer;

/// The largest gap in bytes that is read rather than skipped. Reading it costs about as much as a system call.
const GAP: u64 = 16 << 10;
/// The maximum number of bytes that are read as one piece.
const PIECE: usize = 1 << 20;

/// The positions of rows of a data set: a range of rows, in an order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    pub(super) order: Order,
    /// The first row of the range, followed by the number of rows.
    pub(super) first: u64,
    pub(super) rows: u64,
}

impl Places {
    pub(super) fn count(&self) -> u64 {
        self.order.visits(self.rows)
    }

    /// Returns the row of the data set at a position.
    pub(super) fn row_at(&self, place: u64) -> u64 {
        self.first + self.order.row_at(place, self.rows)
    }
}

/// Adjacent rows: the first row, their number, and their position in a chunk, in rows. This is an array because buffers
/// hold plain data.
type Run = [u64; 3];

/// The memory that a reader needs in addition to the chunk. It is allocated before the first chunk and reused for each.
#[derive(Debug)]
pub(super) struct Sieve {
    /// One run for each row of a chunk, which is the worst case.
    runs: Buffer<Run>,
    piece: Buffer<u8>,
}

/// A source of memory for a sieve.
pub(super) trait BufferSource {
    /// Allocates zeroed elements.
    fn draw<T: bytemuck::Pod>(&self, elements: usize) -> Result<Buffer<T>, AllocError>;
}

impl Sieve {
    /// Returns the number of runs and the bytes of a piece that are needed for chunks of `rows` rows.
    fn room(places: &Places, row_bytes: u64, rows: usize) -> (usize, usize) {
        if places.order.is_ascending() {
            return (0, 0);
        }
        let all = places.rows.saturating_mul(row_bytes);
        (rows, usize::try_from(all).map_or(PIECE, |all| all.min(PIECE)))
    }

    /// Returns the size of a sieve for chunks of `rows` rows, in bytes.
    pub(super) fn bytes(places: &Places, row_bytes: u64, rows: usize) -> u64 {
        let (runs, piece) = Self::room(places, row_bytes, rows);
        (runs as u64)
            .saturating_mul(size_of::<Run>() as u64)
            .saturating_add(piece as u64)
    }

    /// Allocates a sieve for chunks of at most `rows` rows.
    pub(super) fn new(
        places: &Places,
        row_bytes: u64,
        rows: usize,
        from: &impl BufferSource,
    ) -> Result<Self, AllocError> {
        let (runs, piece) = Self::room(places, row_bytes, rows);
        Ok(Self {
            runs: from.draw(runs)?,
            piece: from.draw(piece)?,
        })
    }

    /// Fills `out` with the rows at the positions from `place`.
    pub(super) fn read(
        &mut self,
        files: &Files,
        places: &Places,
        place: u64,
        out: &mut [u8],
    ) -> Result<(), DataError> {
        let row_bytes = files.row_bytes();
        let rows = out.len() / row_bytes;
        if places.order.is_ascending() {
            return files.read(places.row_at(place), out);
        }
        let found = find_runs(&mut self.runs, places, place, rows);
        let mut runs = self.runs.get(..found).unwrap_or(&[]);
        while let Some([first, _, first_to]) = runs.first().copied() {
            let together = together(runs, row_bytes);
            let (now, later) = runs.split_at(together);
            runs = later;
            let end = now.last().map_or(first, |[row, count, _]| row + count);
            let bytes = (end - first) as usize * row_bytes;
            if together == 1 {
                let to = first_to as usize * row_bytes;
                files.read(first, out.get_mut(to..to + bytes).unwrap_or(&mut []))?;
                continue;
            }
            // Several runs together are at most as large as a piece, and at most as large as all rows.
            let piece = self.piece.get_mut(..bytes).unwrap_or(&mut []);
            files.read(first, piece)?;
            for [row, count, to] in now {
                let from = (row - first) as usize * row_bytes;
                let (to, bytes) = (*to as usize * row_bytes, *count as usize * row_bytes);
                if let (Some(from), Some(to)) = (piece.get(from..from + bytes), out.get_mut(to..to + bytes)) {
                    to.copy_from_slice(from);
                }
            }
        }
        Ok(())
    }
}

/// Writes the runs of some positions to `runs`, in the order of their rows. Returns their number.
fn find_runs(runs: &mut [Run], places: &Places, place: u64, rows: usize) -> usize {
    let mut found = 0;
    let mut last: Option<&mut Run> = None;
    let mut free = runs.iter_mut();
    for at in 0..rows as u64 {
        let row = places.row_at(place + at);
        match &mut last {
            Some([first, count, _]) if *first + *count == row => *count += 1,
            _ => {
                last = free.next();
                if let Some(run) = &mut last {
                    **run = [row, 1, at];
                    found += 1;
                }
            }
        }
    }
    if places.order.jumps()
        && let Some(runs) = runs.get_mut(..found)
    {
        runs.sort_unstable_by_key(|[row, ..]| *row);
    }
    found
}

/// Returns the number of leading runs, in the order of their rows, that are read as one piece.
fn together(runs: &[Run], row_bytes: usize) -> usize {
    let Some([first, rows, _]) = runs.first() else {
        return 0;
    };
    let mut end = first + rows;
    let mut together = 1;
    for [row, rows, _] in runs.iter().skip(1) {
        let gap = (row - end).saturating_mul(row_bytes as u64);
        let whole = (row + rows - first).saturating_mul(row_bytes as u64);
        if gap > GAP || whole > PIECE as u64 {
            break;
        }
        end = row + rows;
        together += 1;
    }
    together
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(row: u64, count: u64) -> Run {
        [row, count, 0]
    }

    #[test]
    fn small_gaps_are_read_and_large_ones_are_not() {
        let near = [run(0, 1), run(3, 2), run(10, 1), run(1_000_000, 1)];
        assert_eq!(together(&near, 4), 3);
        assert_eq!(together(&near, 16 << 10), 1, "two rows lie between");
        assert_eq!(together(&[run(0, 1), run(1, 1)], PIECE), 1, "more than a piece");
        assert_eq!(together(&[], 4), 0);
    }
}
