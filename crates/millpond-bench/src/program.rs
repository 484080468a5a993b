//! A recorded program as a flat list of operations.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// One call of the program. Slots are reused, so that they are as many as blocks live at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Allocate into a slot.
    Alloc {
        /// Where the block is kept.
        slot: u32,
        /// The stream asking.
        stream: u32,
        /// Bytes asked for.
        bytes: u64,
    },
    /// Free what the slot holds.
    Free {
        /// Where the block is kept.
        slot: u32,
    },
}

/// A recorded program.
#[derive(Clone, Debug)]
pub struct Program {
    /// Base name of the recording.
    pub name: String,
    /// Its calls in order.
    pub ops: Vec<Op>,
    /// Slots needed.
    pub slots: usize,
    /// Allocations among the calls.
    pub allocations: u64,
}

impl Program {
    /// Reads a recording in the project's own CSV, compressed.
    ///
    /// # Errors
    /// When the file cannot be read or is not of that shape.
    pub fn read(path: &Path) -> io::Result<Self> {
        let text = zstd::decode_all(fs::File::open(path)?)?;
        let text = String::from_utf8(text).map_err(io::Error::other)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = name.trim_end_matches(".zst").trim_end_matches(".csv").to_owned();
        let mut program = Self {
            name,
            ops: Vec::new(),
            slots: 0,
            allocations: 0,
        };
        let mut live: HashMap<u64, u32> = HashMap::new();
        let mut vacant = Vec::new();
        for line in text
            .lines()
            .filter(|l| !l.starts_with('#') && !l.starts_with("time_us"))
        {
            let mut fields = line.split(',').skip(1);
            let action = fields.next().unwrap_or_default();
            let mut number = || fields.next().and_then(|f| f.parse::<u64>().ok());
            let (Some(id), Some(bytes), Some(stream)) = (number(), number(), number()) else {
                return Err(io::Error::other(format!("not an event: {line}")));
            };
            if action == "alloc" {
                let slot = vacant.pop().unwrap_or(program.slots as u32);
                program.slots = program.slots.max(slot as usize + 1);
                program.allocations += 1;
                live.insert(id, slot);
                program.ops.push(Op::Alloc {
                    slot,
                    stream: stream as u32,
                    bytes,
                });
            } else if let Some(slot) = live.remove(&id) {
                vacant.push(slot);
                program.ops.push(Op::Free { slot });
            }
        }
        Ok(program)
    }
}

/// The recordings in a folder and its `random` folder, by name, that contain one of the words; all without words.
///
/// # Errors
/// When the folder cannot be read.
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
