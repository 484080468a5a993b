//! Encodes one policy's result as columns: the slack of each block, its address, and the reserved bytes.
//!
//! An allocator returns the same addresses again and again. So an address is first compared with a few likely
//! ones: the last address of a block with this tag and requested size, the address of the last freed block of
//! this size, the address of the last freed block of any size, and the end of the previous block. An address is
//! written out only if none of them matches. `places.js` makes the same guesses in the same order.

use std::collections::HashMap;

use millpond_trace::{Action, Trace};

use crate::placement::{Placement, SegmentSpan};

use super::{
    encode::{Blob, Column, difference},
    input::UNSERVED,
    story::{Life, held},
};

/// Selects the allocations that are drawn one by one: those that cover at least this much area of the
/// picture.
///
/// The writer and the script both compute the area from the recording, so the page needs no list of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Threshold(pub(crate) f64);

impl Threshold {
    pub(crate) fn keeps(self, life: &Life) -> bool {
        life.area() >= self.0
    }
}

/// Encodes the slack of every block and the reserved bytes. These are enough for exact curves.
pub(crate) fn curve_blob(trace: &Trace, lives: &[Life], placement: &Placement) -> Blob {
    let mut blob = Blob::default();
    let rounding = Rounding::of(lives, placement);
    blob.section(slack(lives, placement, rounding).bytes());
    let plain = changes(placement.reserved.iter().copied());
    let allocated = allocated(trace, lives, placement);
    let above = above_allocated(&placement.reserved, &allocated);
    // A policy without a cache changes its reserved bytes at every event, but the difference from the
    // allocated bytes stays constant.
    let (based, column) = if above.bytes().len() < plain.bytes().len() {
        (1, above)
    } else {
        (0, plain)
    };
    let mut head = Column::default();
    head.put(based);
    head.put(rounding.0);
    blob.section(head.bytes());
    blob.section(column.bytes());
    blob.section(segments(placement).bytes());
    blob
}

/// The rounding rule of most blocks of a policy: up to a multiple of this number, or to a power of two if it
/// is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rounding(u64);

impl Rounding {
    /// Returns the rule that matches most blocks of `placement`.
    fn of(lives: &[Life], placement: &Placement) -> Rounding {
        let rules = [0]
            .into_iter()
            .chain((0..=21).map(|power| 1 << power))
            .map(Rounding);
        let explained = |rule: &Rounding| {
            let blocks = lives.iter().zip(&placement.block_bytes);
            blocks
                .filter(|(life, block)| life.requested + rule.slack(life.requested) == **block)
                .count()
        };
        // Of equally good rules, this takes rounding to a power of two, or else the smallest multiple.
        rules.rev().max_by_key(explained).unwrap_or(Rounding(1))
    }

    fn slack(self, requested: u64) -> u64 {
        match self.0 {
            0 => requested.checked_next_power_of_two().unwrap_or(requested) - requested,
            multiple => requested.wrapping_neg() % multiple,
        }
    }
}

/// Encodes the slack of each allocation. The code is 0 if the requested size had the same slack last time or
/// the policy's rounding gives it, 1 if the allocation was not served, and otherwise 2 plus the slack.
fn slack(lives: &[Life], placement: &Placement, rounding: Rounding) -> Column {
    let mut column = Column::default();
    let mut of_size = HashMap::new();
    for (serial, life) in lives.iter().enumerate() {
        if address(placement, serial).is_none() {
            column.put(1);
            continue;
        }
        let slack = block_bytes(placement, serial, life) - life.requested;
        if of_size
            .insert(life.requested, slack)
            .unwrap_or_else(|| rounding.slack(life.requested))
            == slack
        {
            column.put(0);
        } else {
            column.put(2 + slack);
        }
    }
    column
}

fn changes(steps: impl Iterator<Item = (u32, u64)>) -> Column {
    let mut column = Column::default();
    let (mut at, mut bytes) = (0, 0);
    for (event, now) in steps {
        column.put(u64::from(event - at));
        column.put_signed(difference(now, bytes));
        (at, bytes) = (event, now);
    }
    column
}

/// Returns the allocated bytes after every event.
pub(crate) fn allocated(trace: &Trace, lives: &[Life], placement: &Placement) -> Vec<u64> {
    held(trace, lives, |serial| match address(placement, serial) {
        Some(_) => block_bytes(placement, serial, &lives[serial]),
        None => 0,
    })
}

/// Returns the address of an allocation. `None` if the policy never served it.
fn address(placement: &Placement, serial: usize) -> Option<u64> {
    placement
        .address
        .get(serial)
        .copied()
        .filter(|&address| address != UNSERVED)
}

/// Returns the size of the block, which is never below the requested size.
fn block_bytes(placement: &Placement, serial: usize, life: &Life) -> u64 {
    placement
        .block_bytes
        .get(serial)
        .copied()
        .unwrap_or(0)
        .max(life.requested)
}

/// Reads a list of changes from front to back, one event after the other.
#[derive(Clone, Debug)]
pub(crate) struct Curve<'a> {
    changes: &'a [(u32, u64)],
    bytes: u64,
}

impl<'a> Curve<'a> {
    pub(crate) fn new(changes: &'a [(u32, u64)]) -> Curve<'a> {
        Curve { changes, bytes: 0 }
    }

    /// Returns the value after `event`. Events must not decrease between calls.
    pub(crate) fn after(&mut self, event: usize) -> u64 {
        while let Some((&(at, bytes), rest)) = self.changes.split_first()
            && at as usize <= event
        {
            self.bytes = bytes;
            self.changes = rest;
        }
        self.bytes
    }
}

fn above_allocated(reserved: &[(u32, u64)], allocated: &[u64]) -> Column {
    let mut curve = Curve::new(reserved);
    let mut last = None;
    let moments = allocated.iter().enumerate().filter_map(|(event, &allocated)| {
        let above = curve.after(event).wrapping_sub(allocated);
        (last.replace(above) != Some(above)).then_some((event as u32, above))
    });
    changes(moments)
}

/// The most segments of a page. The smallest ones beyond it are single pixels that blocks cover anyway.
const SEGMENTS: usize = 40_000;

/// Returns whether the page leaves out some segments of `placement`.
pub(crate) fn segments_cut(placement: &Placement) -> bool {
    placement.segments.len() > SEGMENTS
}

fn segments(placement: &Placement) -> Column {
    let mut column = Column::default();
    let mut address = 0;
    let mut spans: Vec<&SegmentSpan> = placement.segments.iter().collect();
    if segments_cut(placement) {
        let area =
            |span: &SegmentSpan| span.bytes as f64 * f64::from(span.to_event.saturating_sub(span.from_event));
        spans.sort_by(|a, b| area(b).total_cmp(&area(a)));
        spans.truncate(SEGMENTS);
    }
    spans.sort_by_key(|span| (span.from_event, span.address));
    for span in spans {
        column.put_signed(difference(span.address, address));
        column.put(span.bytes);
        column.put(u64::from(span.from_event));
        column.put(u64::from(span.to_event.saturating_sub(span.from_event)));
        address = span.address;
    }
    column
}

/// The number of likely addresses that a decoder tries before it reads an address.
const LIKELY: usize = 4;

/// Encodes the addresses of the allocations that `threshold` keeps.
pub(crate) fn address_blob(
    trace: &Trace,
    lives: &[Life],
    placement: &Placement,
    threshold: Threshold,
) -> Blob {
    let kept = |serial: usize| address(placement, serial).filter(|_| threshold.keeps(&lives[serial]));
    let served = (0..lives.len()).filter_map(|serial| address(placement, serial));
    let base = served.min().unwrap_or(0);
    let granule = (0..lives.len())
        .filter_map(kept)
        .fold(0, |granule, address| gcd(granule, address - base));
    let granule = granule.max(1);
    let mut head = Column::default();
    head.put(base);
    head.put(granule);
    let mut choices = Vec::new();
    let mut written = Column::default();
    let mut guesses = Guesses::default();
    let mut place = |serial: usize, guesses: &mut Guesses| {
        let Some(address) = kept(serial) else { return };
        let life = &lives[serial];
        let block = block_bytes(placement, serial, life);
        let key = life.key();
        let likely = guesses.likely(block, key);
        match likely.iter().position(|&guess| guess == Some(address)) {
            Some(choice) => choices.push(choice as u8),
            None => {
                choices.push(LIKELY as u8);
                let from = guesses.end.unwrap_or(base);
                let step = difference(address, from) / granule as i64;
                let exact = from.wrapping_add((step * granule as i64) as u64) == address;
                if exact {
                    written.put(super::encode::zigzag(step) << 1);
                } else {
                    written.put(((address - base) / granule) << 1 | 1);
                }
            }
        }
        guesses.placed(address, block, key);
    };
    for older in &trace.initial_blocks {
        place(older.allocation as usize, &mut guesses);
    }
    for (index, event) in trace.events.iter().enumerate() {
        let serial = event.allocation as usize;
        let Some(life) = lives.get(serial) else { continue };
        if event.action == Action::Alloc && life.birth as usize == index {
            place(serial, &mut guesses);
        } else if event.action != Action::Alloc
            && life.gone as usize == index
            && let Some(address) = kept(serial)
        {
            guesses.freed(address, block_bytes(placement, serial, life));
        }
    }
    let mut blob = Blob::default();
    blob.section(head.bytes());
    blob.section(&choices);
    blob.section(written.bytes());
    blob
}

/// The likely addresses of the next block.
#[derive(Debug, Default)]
struct Guesses {
    freed_of_size: HashMap<u64, Vec<u64>>,
    of_key: HashMap<(u32, u64), u64>,
    freed: Option<u64>,
    end: Option<u64>,
}

impl Guesses {
    fn likely(&self, block: u64, key: (u32, u64)) -> [Option<u64>; LIKELY] {
        let of_size = self
            .freed_of_size
            .get(&block)
            .and_then(|stack| stack.last().copied());
        [self.of_key.get(&key).copied(), of_size, self.freed, self.end]
    }

    fn placed(&mut self, address: u64, block: u64, key: (u32, u64)) {
        if let Some(stack) = self.freed_of_size.get_mut(&block)
            && let Some(at) = stack.iter().rposition(|&freed| freed == address)
        {
            stack.remove(at);
        }
        self.of_key.insert(key, address);
        self.end = Some(address + block);
    }

    fn freed(&mut self, address: u64, block: u64) {
        let stack = self.freed_of_size.entry(block).or_default();
        stack.push(address);
        if stack.len() > 64 {
            stack.remove(0);
        }
        self.freed = Some(address);
    }
}

impl Life {
    /// Returns the key of allocations that are similar enough to lie at the same address each time.
    fn key(&self) -> (u32, u64) {
        (self.tag, self.requested)
    }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
