//! Turns rows into blocks that open and close, and into the bytes that pools have taken from their sources.
//!
//! A keyframe lists the live blocks, even if earlier events were lost. After it is complete, blocks that it
//! does not name are closed, and blocks that were unknown are opened. Nothing changes while it is read, so no
//! sum includes half a keyframe.
//!
//! If only a sample of the blocks was recorded with stacks, the sums by site and by stack are estimates: see
//! [`History::represents`].

use super::groups::{By, COUNT, Groups};
use super::held::{Group, Sum, scale};
use super::{Map, Window};
use millpond_trace::history::{Allowance, Flow, History, HistoryError, Start};
use millpond_trace::recording::{Gauge, Kind, Row};

/// The memory that a live block takes, in bytes: an entry here and one in the tables of the observers, and as
/// much again while the tables grow.
const LIVING: u64 = 2 * size_of::<(u64, Block)>() as u64 + 64;

/// The memory that a pool takes, in bytes, counted in the same way.
const POOL: u64 = 2 * size_of::<(u32, PoolState)>() as u64;

/// A block that a caller holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) id: u64,
    /// The time at which it was allocated.
    pub(super) time: u64,
    pub(super) address: u64,
    pub(super) requested: u64,
    pub(super) bytes: u64,
    pub(super) pool: u32,
    pub(super) stream: u32,
    pub(super) thread: u32,
    pub(super) tag: u32,
    pub(super) stack: u32,
    /// The number of the row that introduced it.
    pub(super) order: u64,
    /// The number of blocks that were opened before it.
    pub(super) number: u64,
    pub(super) groups: [u32; COUNT],
    /// The number of blocks that it represents by site and by stack.
    represents: f64,
    /// The last keyframe that named it.
    keyframe: u64,
    /// Whether an allocation in the recording introduced it, and not a keyframe or the state before the
    /// recording.
    pub(super) is_event: bool,
}

impl Block {
    /// Returns its part of the sums of one property. The number of blocks is never an estimate.
    pub(super) fn sum(&self, by: By) -> Sum {
        let estimate = |bytes: u64| match by {
            By::Site | By::Stack if self.represents != 1.0 => (bytes as f64 * self.represents) as u128,
            _ => u128::from(bytes),
        };
        Sum {
            bytes: estimate(self.bytes),
            requested: estimate(self.requested),
            blocks: u64::from(by.is_exact() || self.represents > 0.0),
        }
    }
}

/// Observes each change in a window.
pub(super) trait Watch {
    /// Called when the window begins. The blocks that are live now were allocated before it.
    fn begins(&mut self, _ledger: &Ledger<'_>) {}
    /// Called when a block appears.
    fn opened(&mut self, _ledger: &Ledger<'_>, _block: &Block) {}
    /// Called when a block ends. `by` is the free, if there is one.
    fn closed(&mut self, _ledger: &Ledger<'_>, _block: &Block, _by: Option<&Row>) {}
    /// Called when streams have passed the last use of a block that was freed before.
    fn passed(&mut self, _ledger: &Ledger<'_>, _block: &Parked, _by: &Row) {}
    /// Called for each row, after its changes.
    fn row(&mut self, _ledger: &Ledger<'_>, _row: &Row, _text: Option<&str>) {}
    /// Returns whether the walk should continue.
    fn goes_on(&self) -> bool {
        true
    }
}

/// The last memory event of each thread, if it was an allocation.
#[derive(Default)]
pub(super) struct LastAllocations(Map<u32, u64>);

impl LastAllocations {
    /// The most threads whose last event is remembered.
    const THREADS: usize = 1 << 16;

    pub(super) fn allocated(&mut self, block: &Block) {
        if self.0.len() < Self::THREADS || self.0.contains_key(&block.thread) {
            self.0.insert(block.thread, block.id);
        }
    }

    /// Returns whether a block is freed by the next memory event of the thread that allocated it.
    pub(super) fn is_freed_next(&mut self, block: &Block, free: &Row) -> bool {
        self.0.remove(&free.thread) == Some(block.id)
    }
}

/// A block that was freed while streams still used it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parked {
    pub(super) block: Block,
    pub(super) since: u64,
}

/// The memory of a pool.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PoolState {
    pub(super) requested: u128,
    pub(super) bytes: u128,
    pub(super) parked: u128,
    /// `None` if it is not recorded.
    pub(super) reserved: Option<u128>,
    pub(super) hits: Option<u64>,
    pub(super) allocations: Option<u64>,
}

/// The current state.
pub(super) struct Ledger<'a> {
    pub(super) groups: Groups<'a>,
    pub(super) live: Map<u64, Block>,
    pub(super) parked: Map<u64, Parked>,
    pub(super) pools: Map<u32, PoolState>,
    /// Bytes of each device that all processes use.
    pub(super) devices: Map<u32, u64>,
    pub(super) requested: u128,
    pub(super) bytes: u128,
    pub(super) parked_bytes: u128,
    /// The sum of all pools. `None` if it is not recorded.
    pub(super) reserved: Option<u128>,
    /// The number of rows so far.
    pub(super) order: u64,
    /// The latest time so far.
    pub(super) time: u64,
    /// The number of frees of unknown blocks, and their bytes.
    pub(super) unknown_frees: u64,
    unknown_bytes: u64,
    /// The number of blocks that were opened so far.
    pub(super) opened: u64,
    history: &'a History,
    /// Whether the walk begins with the first row.
    is_whole: bool,
    keyframe: Keyframe,
}

#[derive(Default)]
struct Keyframe {
    /// The number of this keyframe, from 1.
    number: u64,
    open: bool,
    named: u64,
    known: usize,
    new: Vec<Row>,
    announced: u64,
}

impl<'a> Ledger<'a> {
    fn new(history: &'a History, groups: Groups<'a>, start: &Start) -> Self {
        Self {
            groups,
            live: Map::default(),
            parked: Map::default(),
            pools: Map::default(),
            devices: Map::default(),
            requested: 0,
            bytes: 0,
            parked_bytes: 0,
            reserved: None,
            order: start.row,
            time: 0,
            unknown_frees: 0,
            unknown_bytes: 0,
            opened: 0,
            history,
            is_whole: *start == Start::default(),
            keyframe: Keyframe::default(),
        }
    }

    /// Returns whether only a sample of the blocks was recorded with stacks.
    pub(super) fn is_sampled(&self) -> bool {
        self.history.bytes_per_stack().is_some()
    }

    /// Returns the groups of one property from their sums and the times of their oldest blocks, in the order of their numbers.
    /// `all` is the sum of their blocks. Leaves out groups without blocks.
    pub(super) fn named(
        &self,
        by: By,
        sums: impl Iterator<Item = (Sum, Option<u64>)>,
        all: Sum,
    ) -> Vec<Group> {
        let groups = self.groups.named(by, sums);
        match by.is_exact() || !self.is_sampled() {
            true => groups,
            false => scale(groups, all),
        }
    }

    /// Checks that the tables take no more than the recording allows.
    fn check(&self, allowance: Allowance) -> Result<(), HistoryError> {
        let blocks = self.live.len() + self.parked.len() + self.keyframe.new.len();
        allowance.check_blocks(LIVING * blocks as u64)?;
        let pools = POOL * (self.pools.len() + self.devices.len()) as u64;
        allowance.check("the pools and devices", pools)
    }

    /// Applies a row.
    fn note(&mut self, row: &Row, text: Option<&str>, watch: &mut dyn Watch) {
        if row.kind == Kind::Live {
            self.name(row);
            self.order += 1;
            return;
        }
        if self.keyframe.open && !is_definition(row.kind) {
            self.settle(watch);
        }
        self.time = self.time.max(row.time);
        match row.kind {
            Kind::Alloc => {
                let groups = self.groups.of(row);
                let is_event = !self.history.is_older(row.id);
                self.open(row, groups, is_event, watch);
            }
            Kind::Free => self.free(row, watch),
            Kind::FreeRequested => self.park(row, watch),
            Kind::FreeCompleted => self.pass(row, watch),
            Kind::Reserve => self.reserve(row, |held, by| held.saturating_add(by)),
            Kind::Release => self.reserve(row, u128::saturating_sub),
            Kind::Gauge => self.gauge(row),
            Kind::Keyframe => {
                self.keyframe = Keyframe {
                    number: self.keyframe.number + 1,
                    open: true,
                    announced: row.bytes,
                    ..Keyframe::default()
                }
            }
            _ => {}
        }
        watch.row(self, row, text);
        self.order += 1;
    }

    fn open(&mut self, row: &Row, groups: [u32; COUNT], is_event: bool, watch: &mut dyn Watch) {
        if let Some(before) = self.remove(row.id) {
            watch.closed(self, &before, None);
        }
        let block = Block {
            id: row.id,
            time: row.time,
            address: row.address,
            requested: row.requested,
            bytes: row.bytes,
            pool: row.pool,
            stream: row.stream,
            thread: row.thread,
            tag: row.tag,
            stack: row.stack,
            order: self.order,
            number: self.opened,
            groups,
            represents: self.history.represents(row),
            keyframe: self.keyframe.number,
            is_event,
        };
        self.opened += 1;
        self.requested += u128::from(row.requested);
        self.bytes += u128::from(row.bytes);
        let pool = self.pools.entry(row.pool).or_default();
        pool.requested += u128::from(row.requested);
        pool.bytes += u128::from(row.bytes);
        self.live.insert(row.id, block);
        watch.opened(self, &block);
    }

    fn remove(&mut self, id: u64) -> Option<Block> {
        let block = self.live.remove(&id)?;
        self.requested -= u128::from(block.requested);
        self.bytes -= u128::from(block.bytes);
        let pool = self.pools.entry(block.pool).or_default();
        pool.requested -= u128::from(block.requested);
        pool.bytes -= u128::from(block.bytes);
        Some(block)
    }

    fn free(&mut self, row: &Row, watch: &mut dyn Watch) {
        match self.remove(row.id) {
            Some(block) => watch.closed(self, &block, Some(row)),
            None => self.unknown(row),
        }
    }

    /// Notes the free of a block that no row lists.
    fn unknown(&mut self, row: &Row) {
        self.unknown_frees += 1;
        self.unknown_bytes = self.unknown_bytes.saturating_add(row.bytes);
    }

    fn park(&mut self, row: &Row, watch: &mut dyn Watch) {
        let Some(block) = self.remove(row.id) else {
            self.unknown(row);
            return;
        };
        self.parked_bytes += u128::from(block.bytes);
        self.pools.entry(block.pool).or_default().parked += u128::from(block.bytes);
        let parked = Parked {
            block,
            since: row.time,
        };
        if let Some(before) = self.parked.insert(row.id, parked) {
            self.unpark(&before);
        }
        watch.closed(self, &block, Some(row));
    }

    fn pass(&mut self, row: &Row, watch: &mut dyn Watch) {
        if let Some(parked) = self.parked.remove(&row.id) {
            self.unpark(&parked);
            watch.passed(self, &parked, row);
        }
    }

    fn unpark(&mut self, parked: &Parked) {
        let bytes = u128::from(parked.block.bytes);
        self.parked_bytes -= bytes;
        self.pools.entry(parked.block.pool).or_default().parked -= bytes;
    }

    fn reserve(&mut self, row: &Row, change: impl Fn(u128, u128) -> u128) {
        let pool = self.pools.entry(row.pool).or_default();
        let known = pool.reserved.unwrap_or(0);
        let before = pool
            .reserved
            .unwrap_or_else(|| u128::from(self.history.reserved_before(row.pool)));
        let after = change(before, u128::from(row.bytes));
        pool.reserved = Some(after);
        self.reserved = Some(self.reserved.unwrap_or(0) - known + after);
    }

    /// Returns the bytes of blocks from before the recording that it does not list and that were not freed so far.
    pub(super) fn unlisted(&self) -> u64 {
        let pools = self.pools.keys().map(|pool| self.history.allocated_before(*pool));
        pools
            .fold(0, u64::saturating_add)
            .saturating_sub(self.unknown_bytes)
    }

    fn gauge(&mut self, row: &Row) {
        let Some(gauge) = Gauge::from_number(row.tag) else {
            return;
        };
        match gauge {
            Gauge::Reserved => {
                let is_exact = self.is_whole && self.history.names_segments(row.pool);
                self.reserve(row, |held, measured| if is_exact { held } else { measured });
            }
            Gauge::DeviceUsed if row.pool == 0 => {
                self.devices.insert(row.stream, row.bytes);
            }
            Gauge::Hits => self.pools.entry(row.pool).or_default().hits = Some(row.bytes),
            Gauge::Allocations => self.pools.entry(row.pool).or_default().allocations = Some(row.bytes),
            _ => {}
        }
    }

    /// Returns the bytes of devices in use beyond the bytes that pools have taken there, by the latest
    /// measurement.
    pub(super) fn unexplained(&self) -> u128 {
        let mut ours: Map<i32, u128> = Map::default();
        for (number, pool) in &self.pools {
            let taken = pool.reserved.unwrap_or(pool.bytes + pool.parked);
            *ours.entry(self.groups.device(*number)).or_default() += taken;
        }
        let beyond = |(device, used): (&u32, &u64)| {
            let ours = i32::try_from(*device).ok().and_then(|device| ours.get(&device));
            u128::from(*used).saturating_sub(ours.copied().unwrap_or(0))
        };
        self.devices.iter().map(beyond).sum()
    }

    /// Handles a block that a keyframe names.
    fn name(&mut self, row: &Row) {
        let keyframe = &mut self.keyframe;
        if keyframe.number == 0 {
            return;
        }
        keyframe.named += 1;
        if let Some(block) = self.live.get_mut(&row.id)
            && (block.bytes, block.requested) == (row.bytes, row.requested)
        {
            keyframe.known += usize::from(block.keyframe != keyframe.number);
            block.keyframe = keyframe.number;
            return;
        }
        keyframe.new.push(*row);
    }

    /// Applies a keyframe that has been read.
    fn settle(&mut self, watch: &mut dyn Watch) {
        let keyframe = &mut self.keyframe;
        keyframe.open = false;
        let new = std::mem::take(&mut keyframe.new);
        let number = keyframe.number;
        // A truncated keyframe does not say which blocks are gone.
        let is_whole = keyframe.named >= keyframe.announced;
        if is_whole && keyframe.known < self.live.len() {
            let gone = self.live.values().filter(|block| block.keyframe != number);
            let mut gone: Vec<(u64, u64)> = gone.map(|block| (block.order, block.id)).collect();
            gone.sort_unstable();
            for (_, id) in gone {
                if let Some(block) = self.remove(id) {
                    watch.closed(self, &block, None);
                }
            }
        }
        for row in new {
            let groups = self.groups.of(&row);
            self.open(&row, groups, false, watch);
        }
    }
}

fn is_definition(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::DefineTag
            | Kind::DefinePool
            | Kind::DefineThread
            | Kind::DefineStack
            | Kind::DefineModule
            | Kind::DefineFrame
    )
}

struct Nobody;

impl Watch for Nobody {}

/// Walks a window of a recording. Rows before the window are applied without calling the observer.
pub(super) fn walk<'a>(
    history: &'a History,
    groups: Groups<'a>,
    window: Window,
    watch: &mut dyn Watch,
) -> Result<Ledger<'a>, HistoryError> {
    let start = match window {
        Window::Times { from, .. } => history.start_before(from),
        Window::Rows { .. } => Start::default(),
    };
    let mut ledger = Ledger::new(history, groups, &start);
    let mut begun = false;
    let mut number = start.row;
    let allowance = history.allowance();
    let mut allowed = Ok(());
    history.walk_from(&start, |row, text| {
        // A live row belongs to an earlier time.
        let timed = row.kind != Kind::Live;
        if timed && window.is_past(number, row.time) {
            return Flow::Stop;
        }
        if !begun && timed && window.begins(number, row.time) {
            begun = true;
            ledger.settle(&mut Nobody);
            watch.begins(&ledger);
        }
        if begun {
            ledger.note(row, text, watch);
            if !watch.goes_on() {
                return Flow::Stop;
            }
        } else {
            ledger.note(row, text, &mut Nobody);
        }
        number += 1;
        allowed = ledger.check(allowance);
        if allowed.is_err() { Flow::Stop } else { Flow::On }
    })?;
    allowed?;
    if begun {
        ledger.settle(watch);
    } else {
        ledger.settle(&mut Nobody);
        watch.begins(&ledger);
    }
    Ok(ledger)
}
