//! Names for addresses. They are looked up in the process that reads a recording, not in the recorded one.

use super::{Definitions, Frame};

/// The most functions of a stack, including inlined ones.
const MOST_FRAMES: usize = 4 << 10;

/// Finds the functions at the addresses of a recording.
pub trait Symbols {
    /// Returns the functions at an address of a stack, innermost first if some are inlined. Returns an empty list if they are unknown.
    fn frames(&self, address: u64) -> Vec<Frame>;

    /// Returns a name for an address whose functions are unknown.
    fn place(&self, address: u64) -> String {
        format!("{address:#x}")
    }
}

impl dyn Symbols + '_ {
    /// Returns the functions of a stack, innermost first. The name of an unknown function is its [place](Symbols::place). A stack with too
    /// many functions is cut to the innermost ones. Each address is looked up when its functions are needed.
    pub fn stack(&self, addresses: impl Iterator<Item = u64>) -> impl Iterator<Item = Frame> {
        let named = |address| match self.frames(address) {
            frames if frames.is_empty() => vec![Frame {
                function: self.place(address),
                ..Frame::default()
            }],
            frames => frames,
        };
        addresses.flat_map(named).take(MOST_FRAMES)
    }
}

/// Returns the names that the recording itself contains.
impl Symbols for Definitions {
    fn frames(&self, address: u64) -> Vec<Frame> {
        Self::frames(self, address).to_vec()
    }
}
