//! Old mappings of pages that were mapped again at another address.
//!
//! Earlier work may still use the old addresses, so an old mapping stays in place. Each one has an event that is complete
//! when this work has completed. A mapping ends only after its event is complete. The host waits before more than
//! [`MOST`] handles have an old mapping.

use crate::meter::Meter;
use crate::source::{Event, Source};
use std::collections::BTreeMap;

/// Number of handles that become stale between two attempts to end mappings.
const BATCH: u64 = 256;
/// Maximum number of handles with an old mapping, unless a single move has more.
const MOST: u64 = 8192;

struct Mapping {
    bytes: u64,
    handles: u64,
    /// Complete when no work uses the addresses any more.
    event: Event,
}

/// The stale mappings of one source, by address.
#[derive(Default)]
pub(crate) struct Stale {
    mappings: BTreeMap<u64, Mapping>,
    /// Number of handles that became stale since the last attempt to end mappings.
    pushed: u64,
}

impl Stale {
    /// Adds the old mapping of handles that were mapped again.
    pub(crate) fn push(&mut self, address: u64, bytes: u64, handles: u64, event: Event, meter: &mut Meter) {
        meter.stale_mappings.add(handles);
        self.pushed += handles;
        self.mappings.insert(
            address,
            Mapping {
                bytes,
                handles,
                event,
            },
        );
    }

    /// Returns whether no mapping is stale.
    pub(crate) fn is_empty(&self) -> bool {
        self.mappings.is_empty()
    }

    /// Returns the addresses of the mappings that overlap `[start, end)`.
    fn within(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, &Mapping)> {
        let below = self.mappings.range(..end).rev();
        below
            .map(|(at, mapping)| (*at, mapping))
            .take_while(move |(at, mapping)| at + mapping.bytes > start)
    }

    /// Returns whether no work uses a stale mapping in `[start, end)`.
    pub(crate) fn is_idle(&self, source: &dyn Source, start: u64, end: u64) -> bool {
        self.within(start, end)
            .all(|(_, mapping)| source.is_complete(mapping.event))
    }

    /// Ends the mappings in `[start, end)`. The caller ensures that no work uses them.
    pub(crate) fn end_within(&mut self, source: &mut dyn Source, meter: &mut Meter, start: u64, end: u64) {
        let ended: Vec<u64> = self.within(start, end).map(|(at, _)| at).collect();
        self.end(source, meter, ended);
    }

    /// Ends the mappings that no work uses, if many have become stale since the last time.
    pub(crate) fn end_batch(&mut self, source: &mut dyn Source, meter: &mut Meter) {
        if self.pushed >= BATCH {
            self.pushed = 0;
            self.end_idle(source, meter);
        }
    }

    /// Returns whether the host has to wait for the device before old mappings of `handles` more handles are added.
    pub(crate) fn is_full(meter: &Meter, handles: u64) -> bool {
        meter.stale_mappings.current + handles > MOST
    }

    /// Ends the mappings that no work uses.
    pub(crate) fn end_idle(&mut self, source: &mut dyn Source, meter: &mut Meter) {
        let idle = self.mappings.iter();
        let idle = idle.filter(|(_, mapping)| source.is_complete(mapping.event));
        let idle = idle.map(|(at, _)| *at).collect();
        self.end(source, meter, idle);
    }

    fn end(&mut self, source: &mut dyn Source, meter: &mut Meter, addresses: Vec<u64>) {
        for address in addresses {
            let Some(mapping) = self.mappings.remove(&address) else {
                continue;
            };
            source.unmap(address, mapping.bytes);
            meter.stale_mappings.sub(mapping.handles);
            meter.unmapped(
                mapping.handles,
                mapping.bytes.div_ceil(source.page_bytes().max(1)),
            );
        }
    }
}
