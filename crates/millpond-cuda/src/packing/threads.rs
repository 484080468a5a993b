//! Packs groups with several threads. Each thread has a part of them. The words of all parts are counted first, so that the place of each
//! part is known.

use super::{GROUP, Room, WORDS};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// The least bytes for which several threads are used. For less, waking the threads takes longer than the work.
pub(super) const LEAST: usize = 1 << 20;

/// Packs whole groups in at most `parts` parts. Returns the number of kept words, or `None` if there is not enough room.
pub(super) fn pack(from: &[u8], room: Room<'_>, parts: usize) -> Option<usize> {
    let part = (from.len() / GROUP).div_ceil(parts.max(1)).max(1) * GROUP;
    let counts = among(from.chunks(part).collect(), count);
    let Room {
        mut starts,
        mut maps,
        mut words,
    } = room;
    let (mut work, mut before) = (Vec::with_capacity(counts.len()), 0);
    for (piece, count) in from.chunks(part).zip(counts) {
        let groups = piece.len() / GROUP;
        let room = Room {
            starts: starts.split_off_mut(..groups)?,
            maps: maps.split_off_mut(..groups * (WORDS / 8))?,
            words: words.split_off_mut(..count)?,
        };
        work.push((piece, room, before));
        before += count;
    }
    let packed = among(work, |(piece, room, before)| room.pack(piece, before));
    packed.into_iter().sum()
}

/// Runs `each` for pieces of work on as many threads, including this one, or on fewer if the system cannot create more. Returns the results
/// in the order of the pieces.
///
/// The threads are new ones, because the threads of a thread pool would do other work while they wait, which may need locks that the caller
/// holds.
fn among<W: Send, R: Send>(work: Vec<W>, each: impl Fn(W) -> R + Sync) -> Vec<R> {
    let threads = work.len();
    let work = Mutex::new(work.into_iter().enumerate());
    let done = Mutex::new(Vec::with_capacity(threads));
    let next = || work.lock().unwrap_or_else(PoisonError::into_inner).next();
    let run = || {
        while let Some((at, piece)) = next() {
            let answer = each(piece);
            done.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push((at, answer));
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            if thread::Builder::new().spawn_scoped(scope, run).is_err() {
                break;
            }
        }
        run();
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, answer)| answer).collect()
}

/// Counts the words of whole groups that are not zero.
fn count(from: &[u8]) -> usize {
    let whole = from.len() / GROUP * GROUP;
    let words = from[..whole].as_chunks::<4>().0;
    words.iter().filter(|word| **word != [0; 4]).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result does not depend on the number of parts.
    #[test]
    fn parts_come_together_as_one() {
        const GROUPS: usize = 37;
        for one_in in [2_usize, 3, 50, 100_000] {
            let word = |at: usize| {
                let kept = at.wrapping_mul(2_654_435_761) >> 9;
                if kept.is_multiple_of(one_in) {
                    at as u32 | 1
                } else {
                    0
                }
            };
            let words: Vec<u32> = (0..GROUPS * WORDS).map(word).collect();
            let from = bytemuck::cast_slice::<u32, u8>(&words);
            let mut one = vec![0xEE; from.len()];
            let kept = Room::new(&mut one, GROUPS).and_then(|room| room.pack(from, 0));
            for parts in [1, 2, 5, 36, 37, 100] {
                let mut several = vec![0xEE; from.len()];
                let room = Room::new(&mut several, GROUPS).expect("there is");
                assert_eq!(pack(from, room, parts), kept);
                let bytes = GROUPS * super::super::HEAD + 4 * kept.expect("there is room");
                assert_eq!(one[..bytes], several[..bytes], "{one_in} {parts}");
            }
            let mut little = vec![0; GROUPS * super::super::HEAD];
            let room = Room::new(&mut little, GROUPS).expect("there is");
            assert_eq!(pack(from, room, 3).is_some(), kept == Some(0));
        }
    }
}
