//! The words of a snapshot, and a reader of its values with a time limit.

use super::sieve::Record;
use crate::ReadError;
use crate::pickle::{Arena, Value};
use std::cell::Cell;

macro_rules! keys {
    ($($key:ident = $word:literal)*) => {
        /// A dict key that this reader knows.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Key { Unknown, $($key),* }

        /// The first strings of the arena, so that a key is identified by its number.
        pub(super) const WORDS: &[&str] = &[$($word),*];
        /// The keys by number. The empty string has number 0.
        pub(super) const KEYS: &[Key] = &[Key::Unknown, $(Key::$key),*];
    };
}

keys! {
    Segments = "segments" DeviceTraces = "device_traces" AllocatorSettings = "allocator_settings"
    HostSegments = "host_segments" HostTraces = "host_traces"
    Device = "device" Address = "address" TotalSize = "total_size" Stream = "stream" SegmentType = "segment_type"
    SegmentPoolId = "segment_pool_id" IsExpandable = "is_expandable" Blocks = "blocks"
    Size = "size" RequestedSize = "requested_size" State = "state" Frames = "frames" History = "history"
    RealSize = "real_size" Addr = "addr"
    Action = "action" TimeUs = "time_us" PoolId = "pool_id" DeviceFree = "device_free"
    CompileContext = "compile_context" UserMetadata = "user_metadata"
    ForwardFrames = "forward_frames"
    Filename = "filename" Line = "line" Name = "name"
    CudaConf = "PYTORCH_CUDA_ALLOC_CONF" Conf = "PYTORCH_ALLOC_CONF" HipConf = "PYTORCH_HIP_ALLOC_CONF"
    MaxSplitSize = "max_split_size" GarbageCollection = "garbage_collection_threshold"
    ExpandableSegments = "expandable_segments" RoundupPower2 = "roundup_power2_divisions"
    TraceMaxEntries = "trace_alloc_max_entries" TraceOverflowed = "trace_alloc_overflowed"
}

impl Key {
    /// Returns the meaning of a dict's key.
    #[inline]
    pub(super) fn of(key: Value) -> Self {
        match key.string() {
            Some(number) => KEYS.get(number as usize).copied().unwrap_or(Self::Unknown),
            None => Self::Unknown,
        }
    }
}

/// Reads values of an arena by key, within a budget.
///
/// Values may be shared without a limit, such as a list of a million references to one list of a million. Every step is
/// therefore charged. Real snapshots share only stacks, and each stack is read once.
pub(super) struct Walk<'a> {
    pub(super) arena: &'a Arena,
    /// The records taken out of the arena.
    records: &'a [Record],
    budget: Cell<u64>,
    /// Number of events that may still follow. Each event has its own dict and takes more memory than a reference to
    /// it.
    events: Cell<u64>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(arena: &'a Arena, records: &'a [Record]) -> Self {
        Self {
            arena,
            records,
            budget: Cell::new(8 * arena.size() as u64 + (1 << 20)),
            events: Cell::new(arena.containers() as u64 + (1 << 16)),
        }
    }

    /// Returns an event's values, or `None` if the value is not a dict.
    #[inline]
    pub(super) fn record(&self, dict: Value) -> Result<Option<Record>, ReadError> {
        if let Some(number) = self.arena.taken_by(dict) {
            return Ok(self.records.get(number as usize).copied());
        }
        let Some(pairs) = self.arena.pairs(dict) else {
            return Ok(None);
        };
        let mut record = Record::EMPTY;
        for (key, value) in pairs {
            self.charge()?;
            record.set(&[key, value]);
        }
        Ok(Some(record))
    }

    /// Returns how many of `expected` events may still follow.
    pub(super) fn events(&self, expected: usize) -> usize {
        expected.min(self.events.get() as usize)
    }

    /// Charges one event.
    #[inline]
    pub(super) fn event(&self) -> Result<(), ReadError> {
        Self::pay(&self.events)
    }

    #[inline]
    fn charge(&self) -> Result<(), ReadError> {
        Self::pay(&self.budget)
    }

    #[inline]
    fn pay(budget: &Cell<u64>) -> Result<(), ReadError> {
        match budget.get().checked_sub(1) {
            Some(left) => {
                budget.set(left);
                Ok(())
            }
            None => Err(ReadError::NotASnapshot {
                what: "its parts are referenced too many times",
            }),
        }
    }

    /// Calls `each` with the known keys of a dict. Returns `false` if the value is not a dict. A dict that was taken
    /// has no keys.
    #[inline]
    pub(super) fn fields(&self, dict: Value, mut each: impl FnMut(Key, Value)) -> Result<bool, ReadError> {
        let Some(pairs) = self.arena.pairs(dict) else {
            return Ok(false);
        };
        self.charge()?;
        for (key, value) in pairs {
            self.charge()?;
            match Key::of(key) {
                Key::Unknown => {}
                key => each(key, value),
            }
        }
        Ok(true)
    }

    /// Calls `each` with the items of a list or tuple until it fails. Returns `false` if the value is neither.
    pub(super) fn items(
        &self,
        list: Value,
        mut each: impl FnMut(Value) -> Result<(), ReadError>,
    ) -> Result<bool, ReadError> {
        let Some(items) = self.arena.items(list) else {
            return Ok(false);
        };
        for item in items {
            self.charge()?;
            each(item)?;
        }
        Ok(true)
    }

    /// Returns a value that can be an address or a number of bytes.
    #[inline]
    pub(super) fn unsigned(&self, value: Value) -> Option<u64> {
        self.arena.as_int(value).and_then(|int| u64::try_from(int).ok())
    }

    /// Returns a stream handle. Some versions print it as a negative number.
    #[inline]
    pub(super) fn handle(&self, value: Value) -> Option<u64> {
        self.arena.as_int(value).map(|int| int as u64)
    }

    pub(super) fn pair(&self, value: Value) -> Option<(u64, u64)> {
        let mut items = self.arena.items(value)?;
        Some((self.handle(items.next()?)?, self.handle(items.next()?)?))
    }

    pub(super) fn is_empty(&self, list: Value) -> bool {
        self.arena
            .items(list)
            .is_none_or(|mut items| items.next().is_none())
    }
}
