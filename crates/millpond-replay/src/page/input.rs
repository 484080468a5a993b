//! The input of a page. The page itself replays nothing and draws no conclusions.

use millpond_trace::Trace;

use crate::placement::Placement;

/// The address of an allocation that a policy never served.
pub(crate) const UNSERVED: u64 = u64::MAX;

/// One policy on the page.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// The policy's name, as on the command line.
    pub name: &'a str,
    /// One sentence that says how far the replay can be trusted. It may be empty.
    pub fidelity: &'a str,
    /// The smallest device on which the program finishes, if it was found.
    pub needs: Option<u64>,
    /// The placement of the replay.
    pub placement: &'a Placement,
}

impl Run<'_> {
    /// Returns the most bytes that it ever held.
    pub(crate) fn peak_reserved(&self) -> u64 {
        self.peak_reserved_at().1
    }

    /// Returns the first event after which it held the most bytes, and these bytes.
    pub(crate) fn peak_reserved_at(&self) -> (u32, u64) {
        let mut most = (0, 0);
        for &(event, bytes) in &self.placement.reserved {
            if bytes > most.1 {
                most = (event, bytes);
            }
        }
        most
    }
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
    /// The event at which the page opens, under the policy the recorded program used. `None` opens it at the
    /// peak, under the best policy.
    pub opens_at: Option<u32>,
    /// Headings of the result table. The first column contains the policy's name.
    pub columns: Vec<String>,
    /// The formatted result table. The first cell of a row is the name of its run.
    pub rows: Vec<Vec<String>>,
    /// Advice, one sentence each.
    pub advice: Vec<String>,
    /// The limits of the conclusions, one sentence each.
    pub cautions: Vec<String>,
    /// Memory of the device, if known.
    pub device_bytes: Option<u64>,
    /// Peak of the requested bytes.
    pub peak_requested: u64,
}
