//! Checks whether each block of a replay keeps what was written into it.
//!
//! The check writes words into a block when it is allocated and compares them when it is freed, on the block's own stream. The words are
//! at the beginning of the block, at its end, and at the beginning of each 2 MiB page in between. A page is mapped and moved as a whole,
//! so each page of a block has a word. Two blocks that overlap between these words are found by their addresses.

use super::Error;
use super::stamps::Stamps;
use millpond::cuda::{CudaDevice, CudaSource, CudaStream};
use millpond::engine::{Block, Source};
use millpond_replay::{Observer, Op, PolicyResult, Prepared, Program, Real, ReplayError, Run};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The bytes between two words of a block: the smallest page that a driver maps.
const PAGE: u64 = 2 << 20;
const WORD: u64 = 4;

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Blocks that were compared.
    pub blocks: u64,
    /// Words that were compared in them.
    pub words: u64,
    /// Blocks in which a word had changed, or that overlapped another live block.
    pub wrong: u64,
    /// Blocks that were too small for a word.
    pub too_small: u64,
    /// Descriptions of the first wrong blocks, one sentence each.
    pub first_wrong: Vec<String>,
}

/// The streams that replace those of a recording, by the recording's stream numbers.
pub type Streams = Rc<BTreeMap<u32, CudaStream>>;

/// Creates a stream for each stream of the recording.
///
/// # Errors
/// Returns an error if the driver cannot create a stream.
pub fn streams(device: &CudaDevice, program: &Program) -> Result<Streams, Error> {
    let mut streams = BTreeMap::new();
    for op in &program.ops {
        let number = u32::from(op.stream);
        if let std::collections::btree_map::Entry::Vacant(free) = streams.entry(number) {
            free.insert(CudaStream::new(device)?);
        }
    }
    Ok(Rc::new(streams))
}

/// Replays a program under one policy on a device, and checks the contents of every block. The words of a block are compared when it is
/// freed, or at the end of the replay. `streams` must be the streams that the source uses for those of the recording, so that the writes
/// are in order with the work of the source.
///
/// # Errors
/// The outer result is an error if there is no such policy. The inner result is an error if the driver fails to write or read.
pub fn run_checked<'a, O: Observer<&'a mut Real<CudaSource>>>(
    device: &CudaDevice,
    prepared: &Prepared<'_>,
    name: &str,
    source: &'a mut Real<CudaSource>,
    streams: Streams,
    observer: O,
) -> Result<Result<(PolicyResult, Run, Checked), Error>, ReplayError> {
    let check = match Check::new(device.number(), streams) {
        Ok(check) => check,
        Err(error) => return Ok(Err(error)),
    };
    let mut both = (check, observer);
    let (result, run) = prepared.run_on(name, source, &mut both)?;
    // The blocks that are still live exist as long as the source does, so they can be compared here.
    Ok(both.0.finish().map(|checked| (result, run, checked)))
}

/// A live block.
struct Live {
    allocation: u32,
    bytes: u64,
    stream: u32,
}

/// Writes and compares the words of blocks while a replay runs.
struct Check {
    stamps: Stamps,
    streams: Streams,
    live: BTreeMap<u64, Live>,
    checked: Checked,
    failed: Option<Error>,
}

/// The largest number of descriptions that are kept.
const SHOWN: usize = 5;

impl<S: Source> Observer<S> for Check {
    fn allocated(&mut self, op: &Op, block: &Block) {
        self.unless_failed(|check| check.write(op, block));
    }

    fn freeing(&mut self, _: &Op, block: &Block) {
        if let Some(live) = self.live.remove(&block.address()) {
            self.unless_failed(|check| check.compare(block.address(), &live));
        }
    }
}

impl Check {
    fn new(number: u32, streams: Streams) -> Result<Self, Error> {
        Ok(Self {
            stamps: Stamps::new(number)?,
            streams,
            live: BTreeMap::new(),
            checked: Checked::default(),
            failed: None,
        })
    }

    /// Calls a function and keeps its error, unless the driver has failed before.
    fn unless_failed(&mut self, work: impl FnOnce(&mut Self) -> Result<(), Error>) {
        if self.failed.is_none() {
            self.failed = work(self).err();
        }
    }

    fn write(&mut self, op: &Op, block: &Block) -> Result<(), Error> {
        let (address, bytes) = (block.address(), op.bytes);
        if bytes == 0 {
            return Ok(());
        }
        let before = self.live.range(..address + bytes).next_back();
        if let Some((other, held)) = before.filter(|(other, held)| *other + held.bytes > address) {
            let text = format!(
                "allocation {} at {address:#x} overlaps allocation {} at {other:#x}",
                op.allocation, held.allocation
            );
            self.wrong(text);
        }
        let stream = u32::from(op.stream);
        if let Some(stream) = self.streams.get(&stream) {
            for place in places(address, bytes) {
                // SAFETY: the block is of the replay's source. It belongs to the replay until `freeing` or `finish` has compared
                // it, and the comparison waits for this stream.
                unsafe { self.stamps.write(place, word(op.allocation, place), stream) }?;
            }
        }
        let live = Live {
            allocation: op.allocation,
            bytes,
            stream,
        };
        self.live.insert(address, live);
        Ok(())
    }

    /// Compares the blocks that are still live, and returns the result of the whole check.
    fn finish(mut self) -> Result<Checked, Error> {
        for (address, live) in std::mem::take(&mut self.live) {
            self.unless_failed(|check| check.compare(address, &live));
        }
        self.failed.map_or(Ok(self.checked), Err)
    }

    fn compare(&mut self, address: u64, live: &Live) -> Result<(), Error> {
        let places = places(address, live.bytes);
        let Some(stream) = self.streams.get(&live.stream) else {
            return Ok(());
        };
        if places.is_empty() {
            self.checked.too_small += 1;
            return Ok(());
        }
        // SAFETY: the block belongs to the replay until this function returns.
        let found = unsafe { self.stamps.read(&places, stream) }?;
        self.checked.blocks += 1;
        self.checked.words += places.len() as u64;
        let mut both = places.iter().zip(&found);
        if let Some((place, found)) = both.find(|(place, found)| **found != word(live.allocation, **place)) {
            self.wrong(format!(
                "allocation {} of {} bytes at {address:#x} has {found:#010x} at byte {} instead of {:#010x}",
                live.allocation,
                live.bytes,
                place - address,
                word(live.allocation, *place)
            ));
        }
        Ok(())
    }

    fn wrong(&mut self, text: String) {
        self.checked.wrong += 1;
        if self.checked.first_wrong.len() < SHOWN {
            self.checked.first_wrong.push(text);
        }
    }
}

/// Returns the addresses of the words of a block, each aligned to the size of a word.
fn places(address: u64, bytes: u64) -> Vec<u64> {
    let first = address.next_multiple_of(WORD);
    let end = (address + bytes) / WORD * WORD;
    if first + WORD > end {
        return Vec::new();
    }
    let mut places = vec![first];
    let mut page = (first / PAGE + 1) * PAGE;
    while page + WORD <= end {
        places.push(page);
        page += PAGE;
    }
    if end - WORD > *places.last().unwrap_or(&first) {
        places.push(end - WORD);
    }
    places
}

/// Returns the word that belongs to an allocation at an address. Two different pairs have the same word with a probability of about 2^-32.
fn word(allocation: u32, place: u64) -> u32 {
    let mixed = (u64::from(allocation) << 32 ^ place).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_of_a_block_has_a_word() {
        let address = 10 * PAGE + 512;
        let found = places(address, 3 * PAGE);
        assert_eq!(
            found,
            [
                address,
                11 * PAGE,
                12 * PAGE,
                13 * PAGE,
                address + 3 * PAGE - WORD
            ]
        );
        assert_eq!(places(PAGE, 4), [PAGE]);
        assert_eq!(places(PAGE, 8), [PAGE, PAGE + 4]);
        assert!(places(PAGE, 3).is_empty());
        assert_eq!(places(PAGE, PAGE), [PAGE, 2 * PAGE - WORD]);
        assert_ne!(word(1, PAGE), word(2, PAGE));
        assert_ne!(word(1, PAGE), word(1, 2 * PAGE));
    }
}
