//! Reading rows that do not lie next to each other with few calls of the system: rows with small gaps between them are read in
//! one piece, and picked from it (data sieving: Thakur, Gropp and Lusk, "Data sieving and collective I/O in ROMIO", 1999).

use super::error::DataError;
use super::files::Files;
use super::order::Order;

/// A gap that is read rather than jumped over: about what a call of the system costs.
const GAP: u64 = 16 << 10;
/// Bytes that are read in one piece, at most.
const PIECE: usize = 1 << 20;

/// Rows of a data set by place: those of a range, in an order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    pub(super) order: Order,
    /// The first row of the range, and how many it has.
    pub(super) first: u64,
    pub(super) rows: u64,
}

impl Places {
    pub(super) fn count(&self) -> u64 {
        self.order.visits(self.rows)
    }

    /// The row of the data set that comes at a place.
    pub(super) fn row_at(&self, place: u64) -> u64 {
        self.first + self.order.row_at(place, self.rows)
    }
}

/// Rows that lie next to each other, and where in a chunk they go, in rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    row: u64,
    count: u64,
    to: usize,
}

/// What one reader needs besides the chunk; used again for the next.
#[derive(Debug, Default)]
pub(super) struct Sieve {
    runs: Vec<Run>,
    piece: Vec<u8>,
}

impl Sieve {
    /// Bytes that a reader takes for it, at most.
    pub(super) fn bytes(order: Order, rows: usize) -> u64 {
        if order.is_ascending() {
            return 0;
        }
        (PIECE + rows.saturating_mul(size_of::<Run>())) as u64
    }

    /// Fills `out` with the rows at the places from `place` on.
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
        self.find_runs(places, place, rows);
        let mut runs = self.runs.as_slice();
        while let Some(first) = runs.first() {
            let together = together(runs, row_bytes);
            let (now, later) = runs.split_at(together);
            runs = later;
            let end = now.last().map_or(first.row, |last| last.row + last.count);
            let bytes = (end - first.row) as usize * row_bytes;
            if together == 1 {
                let to = first.to * row_bytes;
                files.read(first.row, out.get_mut(to..to + bytes).unwrap_or(&mut []))?;
                continue;
            }
            self.piece.resize(bytes, 0);
            files.read(first.row, &mut self.piece)?;
            for run in now {
                let from = (run.row - first.row) as usize * row_bytes;
                let (to, bytes) = (run.to * row_bytes, run.count as usize * row_bytes);
                if let (Some(from), Some(to)) =
                    (self.piece.get(from..from + bytes), out.get_mut(to..to + bytes))
                {
                    to.copy_from_slice(from);
                }
            }
        }
        Ok(())
    }

    fn find_runs(&mut self, places: &Places, place: u64, rows: usize) {
        self.runs.clear();
        for at in 0..rows {
            let row = places.row_at(place + at as u64);
            match self.runs.last_mut() {
                Some(run) if run.row + run.count == row => run.count += 1,
                _ => self.runs.push(Run {
                    row,
                    count: 1,
                    to: at,
                }),
            }
        }
        if places.order.jumps() {
            self.runs.sort_unstable_by_key(|run| run.row);
        }
    }
}

/// How many of the runs, in the order of their rows, are read in one piece.
fn together(runs: &[Run], row_bytes: usize) -> usize {
    let Some(first) = runs.first() else { return 0 };
    let mut end = first.row + first.count;
    let mut count = 1;
    for run in runs.iter().skip(1) {
        let gap = (run.row - end).saturating_mul(row_bytes as u64);
        let whole = (run.row + run.count - first.row).saturating_mul(row_bytes as u64);
        if gap > GAP || whole > PIECE as u64 {
            break;
        }
        end = run.row + run.count;
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(row: u64, count: u64) -> Run {
        Run { row, count, to: 0 }
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
