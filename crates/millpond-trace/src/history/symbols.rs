//! Names for addresses, found late: in the process that looks at a recording, never in the one that was recorded.

use super::{Definitions, Frame};

/// The most functions of a stack, including inlined ones.
const MOST_FRAMES: usize = 4 << 10;

/// Whoever can say which functions an address of a recording lies in.
pub trait Symbols {
    /// The functions at an address of a stack, the innermost first where some were inlined; none where nobody knows.
    fn frames(&self, address: u64) -> Vec<Frame>;

    /// Returns the functions of a stack, innermost first. A function without a name is called by its address. A stack with too many
    /// functions is cut to the innermost ones.
    fn stack(&self, addresses: &[u64]) -> Vec<Frame> {
        let named = |address: &u64| match self.frames(*address) {
            frames if frames.is_empty() => vec![Frame {
                function: format!("{address:#x}"),
                ..Frame::default()
            }],
            frames => frames,
        };
        addresses.iter().flat_map(named).take(MOST_FRAMES).collect()
    }
}

/// What a recording itself tells.
impl Symbols for Definitions {
    fn frames(&self, address: u64) -> Vec<Frame> {
        Self::frames(self, address).to_vec()
    }
}
