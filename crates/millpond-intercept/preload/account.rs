//! Counts the memory that the process holds on each device, and applies the limit.

use crate::format::{Memory, kind};
use crate::live::{Held, Live, Space};
use crate::log::{Event, Written};
use crate::state::{self, Inner};

/// The most devices, and the most pools, that are counted.
const DEVICES: usize = 64;
const POOLS: usize = 256;

/// The account. All zeros mean that nothing is held.
pub(crate) struct Account {
    live: Live,
    /// Bytes of each device that count against the limit, without those of pools.
    used: [u64; DEVICES],
    /// The known pools. A free entry has the handle 0.
    pools: [PoolBytes; POOLS],
    /// The known contexts and their devices. A free entry has the context 0.
    contexts: [(u64, i32); DEVICES],
    /// The primary context of each device, or 0 if it is not known.
    primary: [u64; DEVICES],
}

/// The bytes of a pool, or of the graphs of a device.
#[derive(Clone, Copy)]
struct PoolBytes {
    handle: u64,
    device: i32,
    reserved: u64,
    allocated: u64,
    /// Whether the program has destroyed the pool. Its blocks stay until they are freed.
    is_over: bool,
}

/// A request before the driver is called.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) memory: Memory,
    pub(crate) device: i32,
    pub(crate) bytes: u64,
    pub(crate) requested: u64,
    pub(crate) stream: u64,
    /// The pool or the context.
    pub(crate) owner: u64,
    pub(crate) stack: u32,
}

impl Request {
    fn event(&self, kind: u8, address: u64) -> Event {
        Event {
            kind,
            memory: self.memory,
            address,
            bytes: self.bytes,
            requested: self.requested,
            stream: self.stream,
            device: self.device,
            pool: if matches!(self.memory, Memory::Pool | Memory::Graph) {
                self.owner
            } else {
                0
            },
            stack: self.stack,
        }
    }
}

/// Returns the handle that stands for the graphs of a device among the pools.
pub(crate) fn graphs_of(device: i32) -> u64 {
    u64::MAX - device as u64
}

impl Account {
    fn used(&mut self, device: i32) -> Option<&mut u64> {
        self.used.get_mut(usize::try_from(device).ok()?)
    }

    /// Returns the bytes of a device that count against the limit. A pool counts with its reserved or its allocated bytes, whichever is
    /// larger.
    pub(crate) fn total(&mut self, device: i32) -> u64 {
        let plain = self.used(device).map_or(0, |used| *used);
        let pools = self
            .pools
            .iter()
            .filter(|pool| pool.handle != 0 && pool.device == device);
        pools.fold(plain, |sum, pool| {
            sum.saturating_add(pool.reserved.max(pool.allocated))
        })
    }

    /// Returns the entry of a pool, or adds one. Returns `None` if the table is full.
    fn pool(&mut self, handle: u64, device: i32) -> Option<&mut PoolBytes> {
        let found = self.pools.iter().position(|pool| pool.handle == handle);
        let at = found.or_else(|| self.pools.iter().position(|pool| pool.handle == 0))?;
        let pool = &mut self.pools[at];
        if found.is_none() {
            *pool = PoolBytes {
                handle,
                device,
                reserved: 0,
                allocated: 0,
                is_over: false,
            };
        }
        Some(pool)
    }

    /// Returns the counter for memory of this kind, if there is one.
    fn sum(&mut self, memory: Memory, device: i32, owner: u64) -> Option<&mut u64> {
        match memory {
            Memory::Pool => self.pool(owner, device).map(|pool| &mut pool.allocated),
            memory if memory.is_host() => None,
            _ => self.used(device),
        }
    }

    fn charge(&mut self, memory: Memory, device: i32, owner: u64, bytes: u64) {
        if let Some(sum) = self.sum(memory, device, owner) {
            *sum = sum.saturating_add(bytes);
        }
    }

    fn refund(&mut self, memory: Memory, device: i32, owner: u64, bytes: u64) {
        if let Some(sum) = self.sum(memory, device, owner) {
            *sum = sum.saturating_sub(bytes);
        }
    }

    /// Returns the device of a known pool that was not destroyed.
    pub(crate) fn device_of_pool(&self, handle: u64) -> Option<i32> {
        let pool = self
            .pools
            .iter()
            .find(|pool| pool.handle == handle && !pool.is_over);
        pool.map(|pool| pool.device)
    }

    /// Returns the device of a context if it is known.
    pub(crate) fn device_of_context(&self, context: u64) -> Option<i32> {
        let found = self
            .contexts
            .iter()
            .find(|(known, _)| *known == context && context != 0);
        found.map(|(_, device)| *device)
    }

    /// Keeps the device of a context. `None` forgets the context.
    pub(crate) fn keep_context(&mut self, context: u64, device: Option<i32>) {
        let at = self.contexts.iter().position(|(known, _)| *known == context);
        let at = at.or_else(|| self.contexts.iter().position(|(known, _)| *known == 0));
        if let Some(entry) = at.and_then(|at| self.contexts.get_mut(at)) {
            *entry = device.map_or((0, 0), |device| (context, device));
        }
    }

    /// Keeps the primary context of a device.
    pub(crate) fn keep_primary(&mut self, device: i32, context: u64) {
        if let Some(primary) = usize::try_from(device)
            .ok()
            .and_then(|device| self.primary.get_mut(device))
        {
            *primary = context;
        }
    }

    /// Returns the primary context of a device, or its only known context.
    pub(crate) fn primary(&self, device: i32) -> Option<u64> {
        let kept = usize::try_from(device)
            .ok()
            .and_then(|device| self.primary.get(device));
        let mut of_device = self
            .contexts
            .iter()
            .filter(|(context, of)| *context != 0 && *of == device);
        match (kept, of_device.next(), of_device.next()) {
            (Some(primary), ..) if *primary != 0 => Some(*primary),
            (_, Some((only, _)), None) => Some(*only),
            _ => None,
        }
    }

    /// Makes an entry for a pool that the program creates. The driver may reuse the handle of a destroyed pool that still has blocks.
    pub(crate) fn pool_begins(&mut self, handle: u64, device: i32) {
        if let Some(pool) = self.pool(handle, device) {
            pool.is_over = false;
            pool.device = device;
        }
    }

    pub(crate) fn get(&mut self, space: Space, key: u64) -> Option<&mut Held> {
        self.live.get(space, key)
    }

    pub(crate) fn insert(&mut self, held: Held) {
        self.live.insert(held);
    }

    pub(crate) fn remove(&mut self, space: Space, key: u64) -> Option<Held> {
        self.live.remove(space, key)
    }
}

/// Returns the bytes that programs may allocate on a device, if there is a limit.
pub(crate) fn limit() -> Option<u64> {
    let settings = state::settings()?;
    Some(settings.limit?.saturating_sub(settings.context))
}

/// Counts a request before the driver is called. Returns false, and records the refusal, if it exceeds the limit.
pub(crate) fn admit(request: &Request) -> bool {
    let admit = |state: &mut Inner| {
        let is_over = |total: u64| limit().is_some_and(|limit| total.saturating_add(request.bytes) > limit);
        let total = match request.memory {
            // A block may lie in memory that its pool has already.
            Memory::Pool => {
                let pool = state.account.pool(request.owner, request.device).copied();
                let spare = pool.map_or(0, |pool| pool.reserved.saturating_sub(pool.allocated));
                state.account.total(request.device).saturating_sub(spare)
            }
            _ => state.account.total(request.device),
        };
        if !request.memory.is_host() && request.device >= 0 && is_over(total) {
            state
                .log
                .event(&request.event(kind::REFUSED, crate::format::LIMIT));
            return false;
        }
        state
            .account
            .charge(request.memory, request.device, request.owner, request.bytes);
        true
    };
    state::with(admit).unwrap_or(true)
}

/// Records the driver's answer to an admitted request. `address` is the address or the handle of the memory.
pub(crate) fn answered(request: &Request, space: Space, result: i32, address: u64) {
    const OUT_OF_MEMORY: i32 = 2;
    let _ = state::with(|state| {
        if result == 0 {
            keep(state, request, space, address);
            return;
        }
        state
            .account
            .refund(request.memory, request.device, request.owner, request.bytes);
        if result == OUT_OF_MEMORY {
            state.log.event(&request.event(kind::REFUSED, result as u64));
        }
    });
}

fn keep(state: &mut Inner, request: &Request, space: Space, address: u64) {
    // Two live blocks never have the same address, so the free of the first block was not recorded.
    if let Some(before) = state.account.remove(space, address) {
        end(state, before, request.stream, 0);
    }
    state.log.event(&request.event(kind::ALLOC, address));
    state.account.insert(Held {
        key: address,
        space,
        memory: request.memory,
        device: request.device,
        users: 1,
        bytes: request.bytes,
        requested: request.requested,
        owner: request.owner,
    });
}

/// Records that an admitted request exceeds the limit after all.
pub(crate) fn refuse(request: &Request) {
    let _ = state::with(|state| {
        state
            .account
            .refund(request.memory, request.device, request.owner, request.bytes);
        state
            .log
            .event(&request.event(kind::REFUSED, crate::format::LIMIT));
    });
}

/// Records an allocation by a node of a graph.
pub(crate) fn node(request: &Request, address: u64) {
    let _ = state::with(|state| state.log.event(&request.event(kind::NODE, address)));
}

/// A free that was recorded before the driver is called, because another thread may get the address as soon as it is free.
pub(crate) struct Freed {
    held: Held,
    written: Option<Written>,
}

/// Records a free. Returns `None` for memory that is not known.
pub(crate) fn free(space: Space, key: u64, stream: u64, stack: u32) -> Option<Freed> {
    state::with(|state| {
        let held = state.account.remove(space, key)?;
        Some(end(state, held, stream, stack))
    })?
}

/// Records the end of memory that is no longer in the table.
pub(crate) fn end(state: &mut Inner, held: Held, stream: u64, stack: u32) -> Freed {
    let request = Request {
        memory: held.memory,
        device: held.device,
        bytes: held.bytes,
        requested: held.requested,
        stream,
        owner: held.owner,
        stack,
    };
    let written = state.log.event(&request.event(kind::FREE, held.key));
    state
        .account
        .refund(held.memory, held.device, held.owner, held.bytes);
    if held.memory == Memory::Pool {
        shrink(state, held.owner);
    }
    Freed { held, written }
}

/// Reduces the bytes of a pool that was destroyed to those of its blocks.
fn shrink(state: &mut Inner, handle: u64) {
    let Some(pool) = state
        .account
        .pools
        .iter_mut()
        .find(|pool| pool.handle == handle && pool.is_over)
    else {
        return;
    };
    let (device, allocated) = (pool.device, pool.allocated);
    if allocated == 0 {
        pool.handle = 0;
    }
    let before = std::mem::replace(&mut pool.reserved, allocated);
    reserve(state, handle, device, Memory::Pool, before, allocated);
}

/// Records a change of the bytes that a pool has reserved.
fn reserve(state: &mut Inner, owner: u64, device: i32, memory: Memory, before: u64, now: u64) {
    if before == now {
        return;
    }
    let change = Request {
        memory,
        device,
        bytes: before.abs_diff(now),
        requested: 0,
        stream: 0,
        owner,
        stack: 0,
    };
    let kind = if before < now {
        kind::RESERVE
    } else {
        kind::RELEASE
    };
    state.log.event(&change.event(kind, 0));
}

impl Freed {
    /// Returns the freed memory.
    pub(crate) fn held(&self) -> &Held {
        &self.held
    }

    /// Withdraws the free if the driver refused it.
    pub(crate) fn answered(self, result: i32) {
        if result == 0 {
            return;
        }
        let _ = state::with(|state| {
            let held = self.held;
            state
                .account
                .charge(held.memory, held.device, held.owner, held.bytes);
            state.account.insert(held);
            if let Some(written) = self.written {
                written.withdraw();
            }
        });
    }
}

/// Records the end of all memory of a context.
pub(crate) fn context_ended(context: u64) {
    let of_context = |held: &Held| {
        held.owner == context
            && matches!(
                held.memory,
                Memory::Device | Memory::Managed | Memory::Pinned | Memory::Registered | Memory::Array
            )
    };
    let _ = state::with(|state| {
        let mut from = 0;
        while let Some((at, held)) = state.account.live.find(from, of_context) {
            state.account.remove(held.space, held.key);
            end(state, held, 0, 0);
            // Another entry may have moved to this slot.
            from = at;
        }
        state.account.keep_context(context, None);
    });
}

/// Records the bytes that a pool, or the graphs of a device, have reserved now. Returns the bytes of the device that count against the
/// limit.
pub(crate) fn reserved(handle: u64, device: i32, memory: Memory, reserved: u64) -> u64 {
    state::with(|state| {
        let Some(pool) = state.account.pool(handle, device) else {
            return state.account.total(device);
        };
        let before = std::mem::replace(&mut pool.reserved, reserved);
        reserve(state, handle, device, memory, before, reserved);
        state.account.total(device)
    })
    .unwrap_or(0)
}

/// Records the end of a pool. Its blocks stay until they are freed.
pub(crate) fn pool_ended(handle: u64) {
    let _ = state::with(|state| {
        if let Some(pool) = state.account.pools.iter_mut().find(|pool| pool.handle == handle) {
            pool.is_over = true;
        }
        shrink(state, handle);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    // Tests share the account, so each has its own device.
    fn request(memory: Memory, device: i32, bytes: u64, owner: u64) -> Request {
        Request {
            memory,
            device,
            bytes,
            requested: bytes,
            stream: 0,
            owner,
            stack: 0,
        }
    }

    fn allocate(request: &Request, address: u64) {
        assert!(admit(request));
        answered(request, Space::Device, 0, address);
    }

    fn total(device: i32) -> Option<u64> {
        state::with(|state| state.account.total(device))
    }

    #[test]
    fn a_block_ends_if_a_new_block_gets_its_address() {
        allocate(&request(Memory::Device, 40, 700, 0), 0x1000);
        allocate(&request(Memory::Device, 40, 300, 0), 0x1000);
        assert_eq!(total(40), Some(300));
        assert!(free(Space::Device, 0x1000, 0, 0).is_some());
        assert_eq!(total(40), Some(0));
    }

    #[test]
    fn a_new_pool_may_reuse_the_handle_of_a_destroyed_pool() {
        let begin = |device| state::with(|state| state.account.pool_begins(77, device));
        begin(41);
        allocate(&request(Memory::Pool, 41, 500, 77), 0x2000);
        pool_ended(77);
        assert_eq!(state::with(|state| state.account.device_of_pool(77)), Some(None));
        begin(42);
        assert_eq!(
            state::with(|state| state.account.device_of_pool(77)),
            Some(Some(42))
        );
        assert!(free(Space::Device, 0x2000, 0, 0).is_some());
        assert_eq!((total(41), total(42)), (Some(0), Some(500)));
        // The driver reports the bytes that the new pool has reserved.
        assert_eq!(reserved(77, 42, Memory::Pool, 0), 0);
    }

    #[test]
    fn the_end_of_a_context_frees_all_its_blocks() {
        for at in 0..3000 {
            let context = if at % 3 == 0 { 9 } else { 8 };
            allocate(
                &request(Memory::Device, 43, 2, context),
                (at << 12) + 0x10_0000_0000,
            );
        }
        context_ended(8);
        assert_eq!(total(43), Some(2000));
        context_ended(9);
        assert_eq!(total(43), Some(0));
    }
}
