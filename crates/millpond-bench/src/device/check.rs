//! Whether each block of a replay keeps what was written into it.
//!
//! Words are written into a block when it is handed out and compared when it is given back, on its own stream: at its beginning, at its
//! end, and at the beginning of each 2 MiB between. A page is mapped and moved whole, so every page of a block has one. Two blocks that
//! overlap between these places are found by their addresses.

use super::Error;
use super::stamps::Stamps;
use millpond::cuda::{CudaDevice, CudaSource, CudaStream};
use millpond::engine::{Block, Source};
use millpond_replay::{Observer, Op, PolicyResult, Prepared, Program, Real, ReplayError, Run};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Bytes between two words of a block: the least page that a driver maps.
const PAGE: u64 = 2 << 20;
const WORD: u64 = 4;

/// What a check came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Blocks that were compared.
    pub blocks: u64,
    /// Words that were compared in them.
    pub words: u64,
    /// Blocks of which a word had changed, or that overlapped another that lived.
    pub wrong: u64,
    /// Blocks too small for a word.
    pub too_small: u64,
    /// The first of the wrong ones, a sentence each.
    pub first_wrong: Vec<String>,
}

/// Streams that stand for those of a recording, by its numbers.
pub type Streams = Rc<BTreeMap<u32, CudaStream>>;

/// A stream for each of the recording's.
///
/// # Errors
/// Where the driver makes none.
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

/// Replays a program under one policy on a device, writes into every block and compares what is there when it is given back, and at the
/// end. The streams are those that the source was given for the recording's, so that what is written is in order with what the source
/// does.
///
/// # Errors
/// Where there is no such policy; within, where the driver fails in writing or reading.
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
    // The blocks that still live are there as long as the source is.
    Ok(both.0.finish().map(|checked| (result, run, checked)))
}

/// A block that lives.
struct Live {
    allocation: u32,
    bytes: u64,
    stream: u32,
}

/// Writes and compares while a replay runs.
struct Check {
    stamps: Stamps,
    streams: Streams,
    live: BTreeMap<u64, Live>,
    checked: Checked,
    failed: Option<Error>,
}

/// As many sentences as are kept.
const SHOWN: usize = 5;

impl<S: Source> Observer<S> for Check {
    fn allocated(&mut self, op: &Op, block: &Block) {
        self.write(op, block);
    }

    fn freeing(&mut self, _: &Op, block: &Block) {
        if let Some(live) = self.live.remove(&block.address()) {
            self.compare(block.address(), &live);
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

    fn write(&mut self, op: &Op, block: &Block) {
        let (address, bytes) = (block.address(), op.bytes);
        let live = Live {
            allocation: op.allocation,
            bytes,
            stream: u32::from(op.stream),
        };
        if bytes == 0 || self.failed.is_some() {
            return;
        }
        let before = self.live.range(..address + bytes).next_back();
        if let Some((other, held)) = before.filter(|(other, held)| *other + held.bytes > address) {
            let text = format!(
                "allocation {} at {address:#x} overlaps allocation {} at {other:#x}",
                op.allocation, held.allocation
            );
            self.wrong(text);
        }
        for place in places(address, bytes) {
            if let Some(stream) = self.streams.get(&live.stream) {
                // SAFETY: the block is of the source that is replayed on, and is the replay's until `freeing` or `finish` has
                // compared it, which waits for this stream.
                let written = unsafe { self.stamps.write(place, word(op.allocation, place), stream) };
                if let Err(error) = written {
                    self.failed = Some(error);
                    return;
                }
            }
        }
        self.live.insert(address, live);
    }

    /// Compares what still lives, and answers what all of it came to.
    fn finish(mut self) -> Result<Checked, Error> {
        for (address, live) in std::mem::take(&mut self.live) {
            self.compare(address, &live);
        }
        match self.failed {
            None => Ok(self.checked),
            Some(error) => Err(error),
        }
    }

    fn compare(&mut self, address: u64, live: &Live) {
        let places = places(address, live.bytes);
        let Some(stream) = self.streams.get(&live.stream) else {
            return;
        };
        if self.failed.is_some() {
            return;
        }
        if places.is_empty() {
            self.checked.too_small += 1;
            return;
        }
        // SAFETY: the block is the replay's until this returns.
        let found = match unsafe { self.stamps.read(&places, stream) } {
            Ok(found) => found,
            Err(error) => {
                self.failed = Some(error);
                return;
            }
        };
        self.checked.blocks += 1;
        self.checked.words += places.len() as u64;
        let changed = places
            .iter()
            .zip(&found)
            .find(|(place, found)| **found != word(live.allocation, **place));
        if let Some((place, found)) = changed {
            self.wrong(format!(
                "allocation {} of {} bytes at {address:#x} has {found:#010x} at byte {} instead of {:#010x}",
                live.allocation,
                live.bytes,
                place - address,
                word(live.allocation, *place)
            ));
        }
    }

    fn wrong(&mut self, text: String) {
        self.checked.wrong += 1;
        if self.checked.first_wrong.len() < SHOWN {
            self.checked.first_wrong.push(text);
        }
    }
}

/// Addresses of the words of a block, aligned to themselves.
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

/// What belongs to an allocation at an address: two that differ have different words, but for one in four thousand million.
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
