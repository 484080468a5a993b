//! Decides why a request was refused.

use super::layout::{Hole, Layout, largest, total};
use super::rules::Rules;
use crate::program::Wanted;
use millpond_engine::display_size;
use serde::Serialize;

/// The reason why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Cause {
    /// The program itself holds too much. No allocator can serve the request.
    NothingFree,
    /// Enough bytes are free, but in pieces that are too small.
    Pieces,
    /// The missing bytes belong to another stream, or wait for one.
    Stream,
    /// The missing bytes belong to a private pool, such as that of a CUDA graph.
    PrivatePool,
    /// The missing bytes are lost to rounding.
    Rounding,
    /// The device had enough free. The allocator has a limit of its own, or the driver refused.
    Limit,
    /// Other processes, libraries or contexts held the missing bytes, if the program ran on the device that was named.
    Elsewhere,
    /// The recording does not contain enough information.
    Unknown,
}

/// A refused request, and the known state at that moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shortage<'a> {
    pub(crate) wanted: Wanted,
    /// Requested bytes of the blocks that the program holds.
    pub(crate) held: u64,
    /// Bytes that the device had free.
    pub(crate) free: Option<u64>,
    /// Bytes of the named device that other processes, libraries or contexts held.
    pub(crate) others: Option<u64>,
    /// The layout of the allocator's memory.
    pub(crate) layout: Option<&'a Layout>,
    pub(crate) rules: &'a Rules,
}

impl Shortage<'_> {
    /// Returns the bytes that were available to the program at that moment.
    pub(crate) fn capacity(&self) -> Option<u64> {
        Some(self.layout?.reserved.saturating_add(self.free?))
    }

    /// Returns the cause, and a sentence that explains it with its figures.
    pub(crate) fn explain(&self) -> (Cause, String) {
        let Some(layout) = self.layout else {
            let bytes = self.wanted.bytes;
            if let Some(free) = self.free.filter(|free| self.held == 0 && *free < bytes) {
                let why = format!(
                    "The program held nothing, and the device had {} free, which is {} too little.",
                    display_size(free),
                    display_size(bytes - free)
                );
                return (Cause::NothingFree, why);
            }
            let why = "The recording does not say where the allocator's memory was.";
            return (Cause::Unknown, why.to_owned());
        };
        let found = self.nothing_free(layout).or_else(|| self.on_device());
        let found = found.or_else(|| self.one_range(layout));
        found.unwrap_or_else(|| self.together(layout))
    }

    fn nothing_free(&self, layout: &Layout) -> Option<(Cause, String)> {
        let bytes = self.wanted.bytes;
        let Some(capacity) = self.capacity() else {
            let idle = total(&layout.holes, |_| true).saturating_add(total(&layout.waiting, |_| true));
            return (idle < bytes).then(|| {
                let why = format!(
                    "The allocator had {} free in what it had reserved, and could not reserve more.",
                    display_size(idle)
                );
                (Cause::NothingFree, why)
            });
        };
        let short = self.held.saturating_add(bytes).checked_sub(capacity)?;
        if short == 0 {
            return None;
        }
        if let Some(others) = self.others.filter(|others| *others >= short) {
            let why = format!(
                "If the program ran on this device, other processes, libraries or contexts held {} of it: without them, the request would fit.",
                display_size(others)
            );
            return Some((Cause::Elsewhere, why));
        }
        if bytes > capacity && self.held > 0 {
            let why = format!(
                "No allocator can serve it: the request alone is {:.1} times the {} that the program could have.",
                bytes as f64 / capacity.max(1) as f64,
                display_size(capacity)
            );
            return Some((Cause::NothingFree, why));
        }
        let (capacity, short) = (display_size(capacity), display_size(short));
        let why = match self.held {
            0 => format!(
                "No allocator can serve it: it is {short} larger than the {capacity} that the program could have."
            ),
            held => format!(
                "No allocator can serve it: the program itself held {} of the {capacity} that it could have, which leaves {short} too little.",
                display_size(held)
            ),
        };
        Some((Cause::NothingFree, why))
    }

    /// Checks whether the device itself had enough free.
    fn on_device(&self) -> Option<(Cause, String)> {
        let free = self.free?;
        let bytes = self.rules.block_bytes(self.wanted.bytes);
        let segment = self.rules.segment_bytes(self.wanted.bytes);
        if free >= segment {
            let why = format!(
                "The device had {} free, enough for it: the allocator has a limit of its own, such as a memory fraction, or the driver refused for another reason. If you know the limit, run `millpond replay` with it as `--device`.",
                display_size(free)
            );
            return Some((Cause::Limit, why));
        }
        (free >= bytes).then(|| {
            let why = format!(
                "The allocator takes {} from the device for a request of this size, and the device had only {} free.",
                display_size(segment),
                display_size(free)
            );
            (Cause::Rounding, why)
        })
    }

    /// Checks whether one range is large enough, but not for this request.
    fn one_range(&self, layout: &Layout) -> Option<(Cause, String)> {
        let (wanted, rules) = (&self.wanted, self.rules);
        let bytes = rules.block_bytes(wanted.bytes);
        let stream = largest(&layout.holes, |hole| {
            rules.is_other_stream(hole, wanted) && !rules.is_other_pool(hole, wanted)
        });
        if stream >= bytes {
            let why = format!(
                "A free range of {} belongs to another stream, and this allocator does not give it to this one.",
                display_size(stream)
            );
            return Some((Cause::Stream, why));
        }
        let waiting = largest(&layout.waiting, |_| true);
        if waiting >= bytes {
            return Some((Cause::Stream, self.waits(layout)));
        }
        let pool = largest(&layout.holes, |hole| rules.is_other_pool(hole, wanted));
        if pool >= bytes {
            return Some((Cause::PrivatePool, self.private(layout)));
        }
        let class = largest(&layout.holes, |hole| !rules.serves(hole, wanted));
        (class >= bytes).then(|| {
            let why = format!(
                "A free range of {} is in a segment for requests of another size class.",
                display_size(class)
            );
            (Cause::Rounding, why)
        })
    }

    fn waits(&self, layout: &Layout) -> String {
        let blocks = match layout.waiting.len() {
            1 => "1 freed block still waits".to_owned(),
            some => format!("{some} freed blocks still wait"),
        };
        let bytes = display_size(total(&layout.waiting, |_| true));
        format!("{bytes} in {blocks} for another stream.")
    }

    fn private(&self, layout: &Layout) -> String {
        let is_other = |hole: &_| self.rules.is_other_pool(hole, &self.wanted);
        format!(
            "{} are free in other pools, such as those of CUDA graphs, at most {} in one piece, and serve only requests of these pools.",
            display_size(total(&layout.holes, is_other)),
            display_size(largest(&layout.holes, is_other))
        )
    }

    /// Adds up free memory until it would be enough: first the memory that may serve the request, then that of
    /// other streams, of other pools and of other size classes. The kind that was added last is the cause.
    fn together(&self, layout: &Layout) -> (Cause, String) {
        let (wanted, rules) = (&self.wanted, self.rules);
        let bytes = rules.block_bytes(wanted.bytes);
        let usable = |hole: &_| rules.serves(hole, wanted);
        let own = total(&layout.holes, usable);
        let free = self.free.unwrap_or(0);
        let mut sum = free.saturating_add(own);
        if sum >= bytes {
            let count = layout.holes.iter().filter(|hole| usable(hole)).count();
            let device = match self.free {
                Some(free) => format!("{} free on the device and ", display_size(free)),
                None => String::new(),
            };
            let why = format!(
                "{device}{} free in {count} {} of at most {} would be enough together, and no piece is large enough alone.",
                display_size(own),
                if count == 1 { "hole" } else { "holes" },
                display_size(largest(&layout.holes, usable))
            );
            return (Cause::Pieces, why);
        }
        let other = |hole: &Hole| rules.is_other_stream(hole, wanted) && !rules.is_other_pool(hole, wanted);
        let (streams, waiting) = (total(&layout.holes, other), total(&layout.waiting, |_| true));
        sum = sum.saturating_add(streams).saturating_add(waiting);
        if sum >= bytes {
            if waiting > streams {
                return (Cause::Stream, self.waits(layout));
            }
            let why = format!("{} are free, but belong to other streams.", display_size(streams));
            return (Cause::Stream, why);
        }
        sum = sum.saturating_add(total(&layout.holes, |hole| rules.is_other_pool(hole, wanted)));
        if sum >= bytes {
            return (Cause::PrivatePool, self.private(layout));
        }
        let class = total(&layout.holes, |hole| {
            !rules.serves(hole, wanted) && !other(hole) && !rules.is_other_pool(hole, wanted)
        });
        if sum.saturating_add(class) >= bytes {
            let why = format!(
                "{} are free in segments for requests of another size class, and without them too little is free.",
                display_size(class)
            );
            return (Cause::Rounding, why);
        }
        let why = format!(
            "Rounding takes {} beyond the {} that the program asked for: with less of it the request would fit.",
            display_size(layout.state().rounding_bytes),
            display_size(self.held)
        );
        (Cause::Rounding, why)
    }
}
