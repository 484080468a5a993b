//! A recorded program as a flat list of operations.

use millpond_replay::{OpKind, Program as Calls, Selection, Steps};
use millpond_trace::ReadOptions;
use std::error::Error;
use std::fs;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

/// One call of the program. Slots are reused, so there are only as many slots as live blocks at the peak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Allocates into a slot.
    Alloc {
        /// The slot of the block.
        slot: u32,
        /// The requesting stream.
        stream: u32,
        /// Requested bytes.
        bytes: u64,
    },
    /// Frees the block in a slot.
    Free {
        /// The slot of the block.
        slot: u32,
    },
}

/// A recorded program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// Base name of the recording.
    pub name: String,
    /// The calls in order.
    pub ops: Vec<Op>,
    /// Index into `ops` of the first call of each step, and one past the last. Empty if no step was found.
    pub steps: Vec<usize>,
    /// The number of slots.
    pub slots: usize,
    /// The number of allocations among the calls.
    pub allocations: u64,
    /// The most bytes held at once.
    pub peak: u64,
    /// Blocks that no call frees.
    pub left: u64,
    /// Frees of unknown blocks. They are not part of `ops`.
    pub unknown_frees: u64,
}

impl Program {
    /// Reads a recording of one device.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or contains nothing to replay.
    pub fn read(path: &Path) -> Result<Self, Box<dyn Error>> {
        let recording = millpond_trace::read(path, &ReadOptions::default())?;
        let trace = recording
            .traces
            .first()
            .ok_or("the recording contains no device")?;
        let calls = Calls::new(trace, Selection::default())?;
        let frees = [OpKind::Free, OpKind::FreeCompleted];
        let steps = Steps::find(&calls).filter(|steps| !steps.are_a_loop());
        let starts = steps.map(|steps| steps.starts).unwrap_or_default();
        let program = Self::new(&calls, &frees, &starts, |call| {
            (u32::from(call.stream), call.bytes)
        });
        let name = trace.origin.name.clone();
        Ok(Self { name, ..program })
    }

    /// Creates a program for an allocator of host memory, with each size divided and rounded up, and at least 1.
    ///
    /// A host has no streams. A block is free when the program frees it, even if a stream still used it then.
    pub(crate) fn on_host(calls: &Calls, divisor: u64) -> Self {
        let frees = [OpKind::Free, OpKind::FreeRequested, OpKind::FreeCompleted];
        Self::new(calls, &frees, &[], |call| {
            (0, call.bytes.div_ceil(divisor.max(1)).max(1))
        })
    }

    /// Assigns slots. `frees` are the calls that free a block, `starts` the indices of the calls that begin a step, and `request`
    /// returns the stream and the bytes of an allocation.
    fn new(
        calls: &Calls,
        frees: &[OpKind],
        starts: &[usize],
        request: impl Fn(&millpond_replay::Op) -> (u32, u64),
    ) -> Self {
        /// An allocation without a block, because it was not made yet, or because its block was freed.
        const NEVER: u32 = u32::MAX;
        const FREED: u32 = u32::MAX - 1;
        let mut program = Self {
            ops: Vec::with_capacity(calls.ops.len()),
            ..Self::default()
        };
        let mut slot_of = vec![NEVER; calls.allocations as usize];
        let (mut bytes_of, mut vacant, mut live) = (Vec::new(), Vec::new(), 0u64);
        let mut starts = starts.iter().peekable();
        for (at, call) in calls.ops.iter().enumerate() {
            while starts.next_if(|start| **start <= at).is_some() {
                program.steps.push(program.ops.len());
            }
            let held = slot_of.get_mut(call.allocation as usize);
            if call.kind == OpKind::Alloc {
                let (stream, bytes) = request(call);
                let slot = vacant.pop().unwrap_or_else(|| {
                    bytes_of.push(0);
                    bytes_of.len() as u32 - 1
                });
                bytes_of[slot as usize] = bytes;
                held.into_iter().for_each(|held| *held = slot);
                live = live.saturating_add(bytes);
                program.peak = program.peak.max(live);
                program.allocations += 1;
                program.ops.push(Op::Alloc { slot, stream, bytes });
            } else if frees.contains(&call.kind) {
                match held {
                    None | Some(&mut NEVER) => program.unknown_frees += 1,
                    // The block was freed when the free was requested, and this is its completion.
                    Some(&mut FREED) => {}
                    Some(held) => {
                        let slot = std::mem::replace(held, FREED);
                        live = live.saturating_sub(bytes_of[slot as usize]);
                        vacant.push(slot);
                        program.ops.push(Op::Free { slot });
                    }
                }
            }
        }
        program.steps.extend(starts.map(|_| program.ops.len()));
        program.slots = bytes_of.len();
        program.left = slot_of.iter().filter(|slot| **slot < FREED).count() as u64;
        program
    }

    /// Returns a program without structure that holds `live` blocks. It allocates them, then frees a random one and allocates
    /// another, `live` times or 100,000 times, whichever is more. Sizes are spread evenly over the powers of two from 256 B to
    /// 1 MiB. The program depends only on `live`.
    #[must_use]
    pub fn random(live: NonZeroU32) -> Self {
        let live = live.get();
        let mut state = GOLDEN;
        let mut next = move || {
            state = state.wrapping_add(GOLDEN);
            mix(state)
        };
        let alloc = |slot: u32, chance: u64| {
            let least = 256 << (chance % 12);
            Op::Alloc {
                slot,
                stream: 0,
                bytes: least + (chance >> 8) % least,
            }
        };
        let mut ops: Vec<Op> = (0..live).map(|slot| alloc(slot, next())).collect();
        let turns = live.max(100_000);
        for _ in 0..turns {
            let slot = (next() % u64::from(live)) as u32;
            ops.push(Op::Free { slot });
            ops.push(alloc(slot, next()));
        }
        Self {
            name: format!("{live} random blocks"),
            ops,
            slots: live as usize,
            allocations: u64::from(live) + u64::from(turns),
            ..Self::default()
        }
    }
}

/// The increment of SplitMix64 (Steele, Lea and Flood, 2014).
pub(crate) const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes the bits of a number, like the last steps of SplitMix64.
pub(crate) fn mix(value: u64) -> u64 {
    let mixed = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// Returns the recordings in a folder and its `random` folder, sorted by name, whose names contain one of the words. Without
/// words, returns all.
///
/// # Errors
/// Returns an error if the folder cannot be read, or if there is no such recording.
pub fn find(folder: &Path, words: &[String]) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let unreadable = |error| format!("cannot read the folder {}: {error}", folder.display());
    let mut found = sorted(fs::read_dir(folder).map_err(unreadable)?);
    if let Ok(random) = fs::read_dir(folder.join("random")) {
        found.extend(sorted(random));
    }
    let named = |p: &PathBuf, word: &String| {
        p.file_name()
            .is_some_and(|n| n.to_string_lossy().contains(word.as_str()))
    };
    found.retain(|p| words.is_empty() || words.iter().any(|w| named(p, w)));
    if found.is_empty() {
        let words = words.join(" or ");
        return Err(match words.as_str() {
            "" => format!("{} contains no *.csv.zst", folder.display()),
            _ => format!(
                "{} contains no *.csv.zst with {words} in its name",
                folder.display()
            ),
        }
        .into());
    }
    Ok(found)
}

/// Returns the recordings of one folder, sorted by name.
fn sorted(entries: fs::ReadDir) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    found.retain(|path| path.to_string_lossy().ends_with(".csv.zst"));
    found.sort();
    found
}
