//! The memory of the emulated devices, and the host memory that CUDA knows.

pub(crate) mod foreign;
pub(crate) mod free_list;
pub(crate) mod heap;
pub(crate) mod host;
pub(crate) mod ipc;
pub(crate) mod managed;
pub(crate) mod os;
pub(crate) mod pages;
pub(crate) mod plain;
pub(crate) mod pool;
#[cfg(test)]
mod tests;
pub(crate) mod virt;

use crate::access::Origin;
use crate::error::{Answer, Code};
use crate::options::Options;
use free_list::FreeList;
use heap::Heap;
use os::{Arena, Span, Store};
use pages::{Bytes, Devices, Mapped, Pages};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Physical memory is allocated in granules of 2 MiB, as on real cards.
pub(crate) const GRANULE: u64 = 2 << 20;

/// The most free memory of a device whose pages are kept, in bytes. It contains the data of its last owner,
/// as on a device.
const STALE: u64 = 64 << 20;

/// The kind of memory at an address.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Plain,
    /// Memory of the pool with this handle.
    Pool(u64),
    /// Reserved addresses, with or without memory.
    Reserved,
    Managed(managed::Managed),
    /// Host memory pinned by the emulator, with its flags.
    Host(u32),
    /// Host memory that the client registered, with its flags.
    Registered(u32),
    /// Memory of another process.
    Opened(ipc::Opened),
}

/// An allocated or registered range.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) len: u64,
    pub(crate) kind: Kind,
    pub(crate) device: u32,
    pub(crate) context: u64,
    /// A number that is never reused in a process.
    pub(crate) id: u64,
    pub(crate) origin: Origin,
    /// The attribute of the same name. It has no effect, because the copies that it would order are complete when they return.
    pub(crate) sync_memops: bool,
}

impl Block {
    /// Returns the pool that the block belongs to.
    pub(crate) fn pool(&self) -> Option<u64> {
        match &self.kind {
            Kind::Pool(pool) => Some(*pool),
            Kind::Managed(managed) => managed.pool,
            _ => None,
        }
    }
}

/// A device's memory: its bytes, and its free granules.
#[derive(Debug)]
struct Card {
    store: Store,
    granules: FreeList,
    total: u64,
    plain: Heap,
    /// The pool that `cuMemAllocAsync` uses, and the default pool.
    current: u64,
    default: u64,
    /// The pool of the graphs.
    graphs: Option<u64>,
    /// Freed memory whose system pages are kept, because fresh pages cost more than the rest of a small
    /// allocation.
    stale: VecDeque<(u64, u64)>,
    stale_bytes: u64,
}

/// The memory of all devices and the memory of the host that the driver knows.
#[derive(Debug)]
pub(crate) struct Memory {
    arena: Arena,
    space: FreeList,
    pages: Pages,
    cards: Vec<Card>,
    blocks: BTreeMap<u64, Block>,
    handles: HashMap<u64, virt::Handle>,
    pools: HashMap<u64, pool::Pool>,
    /// The default and the current pool of each requested place other than a device's own memory.
    elsewhere: HashMap<pool::Place, (u64, u64)>,
    sharing: ipc::Sharing,
    /// Whether the host may access device memory.
    open: bool,
    next: u64,
}

impl Memory {
    pub(crate) fn new(options: &Options) -> Answer<Self> {
        let arena = Arena::reserve().map_err(|_| Code::OPERATING_SYSTEM)?;
        let space = FreeList::new(arena.base().next_multiple_of(GRANULE), arena.len() - GRANULE);
        let mut memory = Self {
            arena,
            space,
            pages: Pages::default(),
            cards: Vec::new(),
            blocks: BTreeMap::new(),
            handles: HashMap::new(),
            pools: HashMap::new(),
            elsewhere: HashMap::new(),
            sharing: ipc::Sharing::default(),
            open: !options.strict,
            next: 0x1000,
        };
        for device in 0..options.devices {
            let total = options.memory / GRANULE * GRANULE;
            let default = memory.new_id();
            memory
                .pools
                .insert(default, pool::Pool::new(pool::Place::Device(device), true));
            memory.cards.push(Card {
                store: Store::new(foreign::DEVICE, total).map_err(|_| Code::OPERATING_SYSTEM)?,
                granules: FreeList::new(0, total),
                total,
                plain: Heap::default(),
                current: default,
                default,
                graphs: None,
                stale: VecDeque::new(),
                stale_bytes: 0,
            });
        }
        Ok(memory)
    }

    /// Returns a unique number.
    fn new_id(&mut self) -> u64 {
        self.next += 0x10;
        self.next
    }

    /// Returns the free bytes and all bytes of a device.
    pub(crate) fn info(&self, device: u32) -> Answer<(u64, u64)> {
        let card = self.card(device)?;
        Ok((card.granules.total(), card.total))
    }

    fn card(&self, device: u32) -> Answer<&Card> {
        self.cards.get(device as usize).ok_or(Code::INVALID_DEVICE)
    }

    fn card_mut(&mut self, device: u32) -> Answer<&mut Card> {
        self.cards.get_mut(device as usize).ok_or(Code::INVALID_DEVICE)
    }

    /// Returns the start of the block that contains an address, and the block.
    pub(crate) fn block(&self, at: u64) -> Option<(u64, &Block)> {
        let (&base, block) = self.blocks.range(..=at).next_back()?;
        (at - base < block.len).then_some((base, block))
    }

    /// Returns the block that contains a whole range.
    pub(crate) fn block_around(&self, at: u64, len: u64) -> Option<&Block> {
        let (base, block) = self.block(at)?;
        let end = (at - base).checked_add(len)?;
        (end <= block.len).then_some(block)
    }

    /// Returns the block that begins at an address.
    pub(crate) fn block_at(&self, at: u64) -> Answer<&Block> {
        self.blocks.get(&at).ok_or(Code::INVALID_VALUE)
    }

    pub(crate) fn block_mut(&mut self, at: u64) -> Option<(u64, &mut Block)> {
        let (&base, block) = self.blocks.range_mut(..=at).next_back()?;
        (at - base < block.len).then_some((base, block))
    }

    pub(crate) fn piece(&self, at: u64) -> Option<(u64, Mapped)> {
        self.pages.piece(at)
    }

    /// Returns whether the whole range is host memory that a device may read at any time.
    pub(crate) fn is_pinned(&self, at: u64, len: u64) -> bool {
        let kind = self.block_around(at, len).map(|block| &block.kind);
        match kind {
            Some(Kind::Pool(pool)) => self.is_host_pool(*pool),
            kind => matches!(kind, Some(Kind::Host(_) | Kind::Registered(_) | Kind::Managed(_))),
        }
    }

    /// Returns the bytes of a range for work to access. Device memory is found in the page table. Of other
    /// memory CUDA knows only pinned, registered and managed blocks.
    pub(crate) fn resolve(&self, at: u64, len: u64) -> Answer<Vec<Span>> {
        if len == 0 {
            return Ok(Vec::new());
        }
        if self.is_pinned(at, len) {
            // SAFETY: the range lies in a live block (`is_pinned`). Either the emulator mapped it, or the
            // client registered it and has to keep it until it is unregistered and no work uses it.
            return Ok(vec![unsafe { Span::host(at as usize, len as usize) }]);
        }
        let parts = self.pages.translate(at, len).ok_or(Code::ILLEGAL_ADDRESS)?;
        let span = |(bytes, offset, len): (Bytes, u64, u64)| {
            self.store(bytes)?.span(offset, len).ok_or(Code::UNKNOWN)
        };
        parts.into_iter().map(span).collect()
    }

    /// Returns whether work of a device may access a range, which is in one block or in none. `peers` returns whether the device has access
    /// to the allocations of a context.
    pub(crate) fn is_open_to(&self, at: u64, len: u64, device: u32, peers: impl Fn(u64) -> bool) -> bool {
        let Some((_, block)) = self.block(at) else {
            return true;
        };
        match &block.kind {
            Kind::Plain => block.device == device || peers(block.context),
            Kind::Pool(pool) => {
                let pool = self.pools.get(pool);
                pool.is_some_and(|pool| pool.is_open_to(device))
            }
            Kind::Reserved => self.pages.all(at, len, |piece| piece.access.allows(device)),
            Kind::Managed(_) | Kind::Host(_) | Kind::Registered(_) | Kind::Opened(_) => true,
        }
    }

    /// Allocates granules of a device, in as many pieces as necessary.
    fn take_granules(&mut self, device: u32, len: u64) -> Answer<Vec<(u64, u64)>> {
        self.card_mut(device)?
            .granules
            .take_pieces(len)
            .ok_or(Code::OUT_OF_MEMORY)
    }

    fn give_granules(&mut self, device: u32, pieces: &[(u64, u64)]) {
        if let Ok(card) = self.card_mut(device) {
            for &(offset, len) in pieces {
                card.granules.give(offset, len);
                card.stale.push_back((offset, len));
                card.stale_bytes += len;
            }
            while card.stale_bytes > STALE {
                let Some((offset, len)) = card.stale.pop_front() else {
                    return;
                };
                card.stale_bytes -= len;
                // Granules that were allocated again belong to a new owner, and return here when that owner
                // frees them.
                if card.granules.take_at(offset, len) {
                    card.store.punch(offset, len);
                    card.granules.give(offset, len);
                }
            }
        }
    }

    /// Maps pieces of a store one after the other at an address. Leaves nothing mapped if it fails.
    fn show(&mut self, at: u64, bytes: Bytes, pieces: &[(u64, u64)], handle: u64, access: Devices) -> Answer {
        let mut next = at;
        for (index, &(offset, len)) in pieces.iter().enumerate() {
            let store = self.store(bytes)?;
            let mapped = self.arena.map(next, len, store, offset);
            let opened = mapped.and_then(|()| {
                if access.any() && self.open {
                    self.arena.open(next, len, true)
                } else {
                    Ok(())
                }
            });
            if opened.is_err() {
                self.hide(at, next + len - at);
                return Err(Code::OUT_OF_MEMORY);
            }
            let first = index == 0;
            self.pages.insert(
                next,
                Mapped {
                    len,
                    bytes,
                    offset,
                    handle,
                    access,
                    first,
                },
            );
            next += len;
        }
        Ok(())
    }

    /// Unmaps everything in a range.
    fn hide(&mut self, at: u64, len: u64) {
        // If the system cannot split a mapping any further, the old pages stay visible to the host, but never
        // to work.
        let _ = self.arena.clear(at, len);
        let mut next = at;
        while next < at + len {
            let step = self
                .pages
                .piece(next)
                .map_or(GRANULE, |(start, piece)| start + piece.len - next);
            self.pages.remove(next);
            next += step;
        }
    }

    /// Allocates device memory at new addresses.
    fn new_chunk(&mut self, device: u32, len: u64) -> Answer<u64> {
        let pieces = self.take_granules(device, len)?;
        let Some(at) = self.space.take(len, GRANULE) else {
            self.give_granules(device, &pieces);
            return Err(Code::OUT_OF_MEMORY);
        };
        let bytes = Bytes { device, shared: None };
        if let Err(code) = self.show(at, bytes, &pieces, 0, Devices::ALL) {
            self.space.give(at, len);
            self.give_granules(device, &pieces);
            return Err(code);
        }
        Ok(at)
    }

    fn drop_chunk(&mut self, at: u64, len: u64) {
        let pieces = self.pages.translate(at, len).unwrap_or_default();
        self.hide(at, len);
        self.space.give(at, len);
        for (bytes, offset, len) in pieces {
            self.give_granules(bytes.device, &[(offset, len)]);
        }
    }

    fn enter(&mut self, at: u64, len: u64, kind: Kind, device: u32, origin: Origin) {
        let id = self.new_id();
        let context = origin.context;
        self.blocks.insert(
            at,
            Block {
                len,
                kind,
                device,
                context,
                id,
                origin,
                sync_memops: false,
            },
        );
    }
}
