//! Converts events keyed by id or address to a [`Trace`] keyed by allocation.
//!
//! Only this module decides how to treat contradictory events, so all formats behave alike. A free without an allocation
//! is ignored. An allocation under a live id ends the older allocation. A free repeats the size of its allocation. All
//! contradictions are counted.

use crate::caution::{Finding, Findings};
use crate::hash::Map;
use crate::lines::MOST_BYTES;
use crate::model::{InitialBlock, InitialSegment, MOST_DEVICES, NO_ALLOCATION, OLDER};
use crate::strings::{Interner, Shared};
use crate::tape::Tape;
use crate::{Action, Allocation, Caution, Event, Format, Origin, ReadError, Recording, Settings, Trace};
use std::hash::Hash;

/// A numbering of keys that fits a `u16`. Index 0 is the default.
pub(crate) struct Index<K> {
    keys: Vec<K>,
    found: Map<K, u16>,
    last: (K, u16),
}

impl<K: Copy + Eq + Hash> Index<K> {
    pub(crate) fn new(default: K) -> Self {
        Self {
            keys: vec![default],
            found: Map::from_iter([(default, 0)]),
            last: (default, 0),
        }
    }

    /// Returns the index of `key`, or `None` if there are too many keys.
    #[inline]
    pub(crate) fn of(&mut self, key: K) -> Option<u16> {
        if self.last.0 == key {
            return Some(self.last.1);
        }
        let index = match self.found.get(&key) {
            Some(&index) => index,
            None => {
                let index = u16::try_from(self.keys.len())
                    .ok()
                    .filter(|&index| index < u16::MAX)?;
                self.keys.push(key);
                self.found.insert(key, index);
                index
            }
        };
        self.last = (key, index);
        Some(index)
    }
}

/// A block that the program holds or that waits for a stream. It is small, because a file can have millions of them.
#[derive(Clone, Copy)]
struct Live {
    /// Index of the entry that begins it. The initial blocks are counted first, then the events.
    begun: u32,
    pending: bool,
}

impl Live {
    /// Returns the action that ends the block.
    fn last_action(self) -> Action {
        if self.pending {
            Action::FreeCompleted
        } else {
            Action::Free
        }
    }
}

/// The trace of one device while it is built.
pub(crate) struct Ledger {
    pub(crate) tape: Tape,
    live: Map<u64, Live>,
    allocations: u32,
    last_time: u64,
    has_times: bool,
    /// The bytes that the program holds.
    held: u128,
    pub(crate) tags: Interner,
    pub(crate) streams: Index<u64>,
    pub(crate) pools: Index<(u64, u64)>,
    pub(crate) initial_segments: Vec<InitialSegment>,
    initial_blocks: Vec<InitialBlock>,
    pub(crate) findings: Findings,
    /// Findings without a count.
    pub(crate) cautions: Vec<Caution>,
    pub(crate) settings: Settings,
    pub(crate) final_reserved_bytes: Option<u64>,
    /// Whether the file itself says that older events are missing.
    pub(crate) ring_full: bool,
}

impl Ledger {
    /// Creates a ledger whose tags share a text limit with those of the file's other devices.
    pub(crate) fn new(texts: &Shared) -> Self {
        Self {
            tape: Tape::default(),
            live: Map::default(),
            allocations: 0,
            last_time: 0,
            has_times: false,
            held: 0,
            tags: Interner::new(texts),
            streams: Index::new(0),
            pools: Index::new((0, 0)),
            initial_segments: Vec::new(),
            initial_blocks: Vec::new(),
            findings: Findings::default(),
            cautions: Vec::new(),
            settings: Settings::default(),
            final_reserved_bytes: None,
            ring_full: false,
        }
    }

    pub(crate) fn has_events(&self) -> bool {
        !self.tape.is_empty()
    }

    /// Returns the number of events.
    #[cfg(feature = "recording")]
    pub(crate) fn events(&self) -> usize {
        self.tape.len()
    }

    /// Returns the index of a stream handle, or the default stream if there are too many.
    #[inline]
    pub(crate) fn stream(&mut self, handle: u64) -> u16 {
        self.streams.of(handle).unwrap_or_else(|| {
            self.findings.count(Finding::StreamsFolded);
            0
        })
    }

    /// Returns the index of a pool id, or the default pool if there are too many.
    #[inline]
    pub(crate) fn pool(&mut self, id: (u64, u64)) -> u16 {
        self.pools.of(id).unwrap_or_else(|| {
            self.findings.count(Finding::StreamsFolded);
            0
        })
    }

    /// Adds a block that was live before the first event. All of these blocks must be added before any event.
    pub(crate) fn initial(&mut self, key: u64, mut block: InitialBlock) -> Result<(), ReadError> {
        if self.live.contains_key(&key) {
            self.findings.count(Finding::AllocatedTwice);
            return Ok(());
        }
        block.allocation = self.number()?;
        if block.tag == 0 {
            block.tag = self.tags.intern(OLDER.as_bytes());
        }
        let live = self.begin(block.pending)?;
        if !block.pending {
            self.hold(block.requested);
        }
        self.live.insert(key, live);
        self.initial_blocks.push(block);
        Ok(())
    }

    /// Adds an event. `key` identifies its block while it is live. It is an address if the format has no ids. A free of 0
    /// bytes has no recorded size.
    #[inline]
    pub(crate) fn record(&mut self, key: u64, event: Event) -> Result<(), ReadError> {
        match event.action {
            Action::Alloc => return self.alloc(key, event),
            Action::Free | Action::FreeCompleted => self.free(key, event),
            Action::FreeRequested => self.free_requested(key, event),
            _ if event.bytes > MOST_BYTES => self.findings.count(Finding::AbsurdBytes),
            _ => self.push(event),
        }
        Ok(())
    }

    fn alloc(&mut self, key: u64, event: Event) -> Result<(), ReadError> {
        if event.bytes > MOST_BYTES {
            self.findings.count(Finding::AbsurdBytes);
            return Ok(());
        }
        if event.bytes == 0 {
            self.findings.count(Finding::ZeroBytes);
        }
        let allocation = self.number()?;
        let live = self.begin(false)?;
        if let Some(older) = self.live.insert(key, live) {
            self.findings.count(Finding::AllocatedTwice);
            self.end_untold(event, older);
            // The event that ends the older block has taken the position of this allocation, so the position is
            // computed again.
            let live = self.begin(false)?;
            self.live.insert(key, live);
        }
        self.hold(event.bytes);
        self.push(Event { allocation, ..event });
        Ok(())
    }

    /// Adds a block to the bytes that the program holds.
    #[inline]
    fn hold(&mut self, bytes: u64) {
        self.held += u128::from(bytes);
        if self.held > u128::from(u64::MAX) {
            self.findings.count(Finding::SumsCapped);
        }
    }

    fn free(&mut self, key: u64, event: Event) {
        match self.live.remove(&key) {
            Some(live) => self.end(event, live, live.last_action()),
            None => self.findings.count(Finding::UnknownFrees),
        }
    }

    /// Frees a block that then waits for a stream.
    fn free_requested(&mut self, key: u64, event: Event) {
        let Some(live) = self.live.get_mut(&key) else {
            self.findings.count(Finding::UnknownFrees);
            return;
        };
        if live.pending {
            self.findings.count(Finding::FreedTwice);
            return;
        }
        live.pending = true;
        let live = *live;
        self.end(event, live, Action::FreeRequested);
    }

    /// Ends an allocation because another begins under its key. No event records this end, so there is no size to
    /// compare.
    #[cold]
    fn end_untold(&mut self, event: Event, older: Live) {
        let event = Event {
            bytes: 0,
            tag: 0,
            stream: self.beginning(older).map_or(0, |begun| begun.stream),
            ..event
        };
        self.end(event, older, older.last_action());
    }

    /// Creates a live block that begins with the next initial block or event.
    #[inline]
    fn begin(&self, pending: bool) -> Result<Live, ReadError> {
        match u32::try_from(self.initial_blocks.len() + self.tape.len()) {
            Ok(begun) => Ok(Live { begun, pending }),
            Err(_) => Err(ReadError::TooManyAllocations { limit: NO_ALLOCATION }),
        }
    }

    /// Returns the allocation of a block.
    #[inline]
    fn beginning(&self, live: Live) -> Option<Event> {
        let at = live.begun as usize;
        match self.initial_blocks.get(at) {
            Some(block) => Some(Event {
                allocation: block.allocation,
                bytes: block.requested,
                address: block.address,
                stream: block.stream,
                pool: block.pool,
                ..Event::new(Action::Alloc)
            }),
            None => self.tape.get(at - self.initial_blocks.len()).copied(),
        }
    }

    fn end(&mut self, event: Event, live: Live, action: Action) {
        let Some(begun) = self.beginning(live) else {
            return;
        };
        if event.bytes != begun.bytes && event.bytes != 0 {
            self.findings.count(Finding::FreeBytesDiffer);
        }
        if action != Action::FreeCompleted {
            self.held = self.held.saturating_sub(u128::from(begun.bytes));
        }
        self.push(Event {
            time_us: event.time_us,
            tag: event.tag,
            stream: event.stream,
            action,
            ..begun
        });
    }

    fn number(&mut self) -> Result<Allocation, ReadError> {
        let number = self.allocations;
        if number == NO_ALLOCATION {
            return Err(ReadError::TooManyAllocations { limit: NO_ALLOCATION });
        }
        self.allocations += 1;
        Ok(number)
    }

    #[inline]
    fn push(&mut self, event: Event) {
        if event.time_us < self.last_time {
            self.findings.count(Finding::TimesBackwards);
        }
        self.last_time = event.time_us;
        self.has_times |= event.time_us != 0;
        self.tape.push(event);
    }

    pub(crate) fn finish(
        mut self,
        name: &str,
        format: Format,
        device: i32,
        header: Vec<(String, String)>,
    ) -> Trace {
        self.findings.add(Finding::TagsDropped, self.tags.dropped);
        let mut cautions = Vec::new();
        if self.ring_full || !self.initial_blocks.is_empty() {
            let bytes = |block: &InitialBlock| if block.pending { 0 } else { block.requested };
            cautions.push(Caution::RingWrapped {
                initial_blocks: self.initial_blocks.len() as u64,
                initial_bytes: self.initial_blocks.iter().map(bytes).fold(0, u64::saturating_add),
                full: self.ring_full,
            });
        }
        cautions.append(&mut self.cautions);
        cautions.append(&mut self.findings.cautions());
        if !self.has_times {
            cautions.push(Caution::NoTimes);
        }
        let events = self.tape.finish();
        let recorded_peak_reserved = peak_reserved(&self.initial_segments, &events);
        Trace {
            origin: Origin {
                name: name.to_owned(),
                format,
                device,
                header,
            },
            events,
            allocations: self.allocations,
            tags: self.tags.finish(),
            streams: self.streams.keys,
            pools: self.pools.keys,
            initial_segments: self.initial_segments,
            initial_blocks: self.initial_blocks,
            settings: self.settings,
            final_reserved_bytes: self.final_reserved_bytes,
            recorded_peak_reserved,
            unlisted_bytes: 0,
            cautions,
        }
    }
}

/// The traces of a file while they are built, one for each device.
#[derive(Default)]
pub(crate) struct Ledgers {
    ledgers: Vec<(i32, Ledger)>,
    index: Map<i32, usize>,
    last: usize,
    /// The limit on the text of all devices' tags.
    texts: Shared,
}

impl Ledgers {
    /// Returns the ledger of a device. A new device gets a new one.
    pub(crate) fn get(&mut self, device: i32) -> Result<&mut Ledger, ReadError> {
        let last = self.ledgers.get(self.last);
        if last.is_none_or(|(found, _)| *found != device) {
            if self.index.len() == MOST_DEVICES && !self.index.contains_key(&device) {
                return Err(ReadError::TooManyDevices { limit: MOST_DEVICES });
            }
            self.last = *self.index.entry(device).or_insert_with(|| {
                self.ledgers.push((device, Ledger::new(&self.texts)));
                self.ledgers.len() - 1
            });
        }
        Ok(&mut self.ledgers[self.last].1)
    }

    /// Returns a recording of the devices with events, or `None` if there are none. `complete` is called for the ledger of
    /// each device. `cut` is the number of bytes read if the file ends early.
    pub(crate) fn finish(
        mut self,
        name: &str,
        format: Format,
        header: &[(String, String)],
        cut: Option<u64>,
        mut complete: impl FnMut(&mut Ledger),
    ) -> Option<Recording> {
        self.ledgers.retain(|(_, ledger)| ledger.has_events());
        self.ledgers.sort_by_key(|(device, _)| *device);
        let finished = |(device, mut ledger): (i32, Ledger)| {
            complete(&mut ledger);
            ledger.cautions.extend(cut.map(|bytes| Caution::Cut { bytes }));
            ledger.finish(name, format, device, header.to_vec())
        };
        let traces: Vec<Trace> = self.ledgers.into_iter().map(finished).collect();
        (!traces.is_empty()).then(|| Recording::of_traces(name, format, traces))
    }
}

fn peak_reserved(initial: &[InitialSegment], events: &[Event]) -> Option<u64> {
    let mut known = !initial.is_empty();
    let mut reserved = initial
        .iter()
        .map(|segment| segment.bytes)
        .fold(0, u64::saturating_add);
    let mut peak = reserved;
    for event in events {
        match event.action {
            Action::SegmentAlloc | Action::SegmentMap => {
                reserved = reserved.saturating_add(event.bytes);
            }
            Action::SegmentFree | Action::SegmentUnmap => {
                reserved = reserved.saturating_sub(event.bytes);
            }
            _ => continue,
        }
        known = true;
        peak = peak.max(reserved);
    }
    known.then_some(peak)
}
