//! A recorded program as a flat list of operations.

use millpond_replay::{OpKind, Selection};
use millpond_trace::ReadOptions;
use std::error::Error;
use std::fs;
use std::io;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

/// One call of the program. Slots are reused, so that there are only as many as blocks that live at once.
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
#[derive(Clone, Debug)]
pub struct Program {
    /// Base name of the recording.
    pub name: String,
    /// The calls in order.
    pub ops: Vec<Op>,
    /// The number of slots.
    pub slots: usize,
    /// The number of allocations among the calls.
    pub allocations: u64,
}

impl Program {
    /// Reads a recording of one device.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or contains nothing to replay.
    pub fn read(path: &Path) -> Result<Self, Box<dyn Error>> {
        let recording = millpond_trace::read(path, &ReadOptions::default())?;
        let trace = recording.traces.first().ok_or("no device in the recording")?;
        let calls = millpond_replay::Program::new(trace, Selection::default())?;
        let mut program = Self {
            name: trace.origin.name.clone(),
            ops: Vec::with_capacity(calls.ops.len()),
            slots: 0,
            allocations: calls.requests,
        };
        let mut slot_of = vec![u32::MAX; calls.allocations as usize];
        let mut vacant = Vec::new();
        for call in &calls.ops {
            let held = &mut slot_of[call.allocation as usize];
            match call.kind {
                OpKind::Alloc => {
                    let slot = vacant.pop().unwrap_or(program.slots as u32);
                    program.slots = program.slots.max(slot as usize + 1);
                    *held = slot;
                    program.ops.push(Op::Alloc {
                        slot,
                        stream: u32::from(call.stream),
                        bytes: call.bytes,
                    });
                }
                OpKind::Free | OpKind::FreeCompleted if *held != u32::MAX => {
                    program.ops.push(Op::Free { slot: *held });
                    vacant.push(std::mem::replace(held, u32::MAX));
                }
                _ => {}
            }
        }
        Ok(program)
    }

    /// Returns a program without structure that holds `live` blocks. It allocates them, then frees a random one and allocates
    /// another, `live` times or 100,000 times, whichever is more. Sizes are spread evenly over the powers of two from 256 B to
    /// 1 MiB. The program depends only on `live`.
    #[must_use]
    pub fn random(live: NonZeroU32) -> Self {
        let live = live.get();
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = move || {
            // SplitMix64 (Steele, Lea and Flood, 2014).
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ mixed >> 31
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
        }
    }
}

/// Returns the recordings in a folder and its `random` folder, sorted by name, whose names contain one of the words. Without
/// words, returns all.
///
/// # Errors
/// Returns an error if the folder cannot be read.
pub fn find(folder: &Path, words: &[String]) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for folder in [folder.to_path_buf(), folder.join("random")] {
        let Ok(entries) = fs::read_dir(&folder) else {
            continue;
        };
        let mut here: Vec<PathBuf> = entries.filter_map(|e| e.ok().map(|e| e.path())).collect();
        here.retain(|p| p.to_string_lossy().ends_with(".csv.zst"));
        here.sort();
        found.extend(here);
    }
    let named = |p: &PathBuf, word: &String| {
        p.file_name()
            .is_some_and(|n| n.to_string_lossy().contains(word.as_str()))
    };
    found.retain(|p| words.is_empty() || words.iter().any(|w| named(p, w)));
    Ok(found)
}
