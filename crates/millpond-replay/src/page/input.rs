//! What a page is made from. Plain data: the page neither replays nor judges.

use millpond_trace::Trace;

/// The address of an allocation that a policy never served.
pub const UNSERVED: u64 = u64::MAX;

/// What one policy did with a trace.
#[derive(Clone, Debug, Default)]
pub struct Placement {
    /// First address of each allocation's block, by serial number; [`UNSERVED`] where there was none.
    pub address: Vec<u64>,
    /// Bytes of each allocation's block after rounding, by serial number.
    pub block_bytes: Vec<u64>,
    /// (event index, reserved bytes after that event), changes only, in order.
    pub reserved: Vec<(u32, u64)>,
    /// What was reserved where and when; may be empty where it was not kept.
    pub segments: Vec<SegmentSpan>,
    /// The event at which the policy ran out of memory and the run ended.
    pub stopped_at: Option<u32>,
}

impl Placement {
    /// The most it ever held.
    #[must_use]
    pub fn peak_reserved(&self) -> u64 {
        self.reserved.iter().map(|&(_, bytes)| bytes).max().unwrap_or(0)
    }
}

/// A range that was reserved after events `from_event..to_event`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSpan {
    /// First address.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// First event after which it was there.
    pub from_event: u32,
    /// First event after which it was gone; `u32::MAX` where it stayed to the end.
    pub to_event: u32,
}

/// One policy on the page.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// The policy's name, as on the command line.
    pub name: &'a str,
    /// One sentence on how far the replay can be trusted; may be empty.
    pub fidelity: &'a str,
    /// What it did.
    pub placement: &'a Placement,
}

/// Everything a page shows.
#[derive(Clone, Debug)]
pub struct Page<'a> {
    /// Heading and window title.
    pub title: String,
    /// Version of the program that writes the page.
    pub version: String,
    /// The recording.
    pub trace: &'a Trace,
    /// The policies, in the order in which they get colours and keys.
    pub runs: &'a [Run<'a>],
    /// Index into `runs` of the policy the recorded program used.
    pub in_use: Option<usize>,
    /// Index into `runs` of the policy the report recommends.
    pub best: Option<usize>,
    /// Heads of the result table; the first column holds the policy's name.
    pub columns: Vec<String>,
    /// The result table, formatted; a row belongs to the run whose name its first cell is.
    pub rows: Vec<Vec<String>>,
    /// Sentences that say what to do.
    pub advice: Vec<String>,
    /// Sentences that say what limits the conclusions.
    pub cautions: Vec<String>,
    /// Memory of the device, where known.
    pub device_bytes: Option<u64>,
    /// Peak of the requested bytes.
    pub peak_requested: u64,
}
