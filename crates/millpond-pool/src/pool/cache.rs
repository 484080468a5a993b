//! The cache of one thread in one pool: free blocks, and the thread's part of the counters.

use super::account::Tally;
use super::biased_lock::{BiasedLock, Despite};
use super::classes::{BINS, CLASSES, KEPT, PAGE, SMALL, bin_of, class_bytes, is_fine};
use super::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, Slot};

/// The maximum number of bytes of cached small blocks of one class, and the minimum and maximum of their number.
const BIN_BYTES: usize = 256 << 10;
const LEAST_KEPT: usize = 8;
const MOST_KEPT: usize = 256;
/// The maximum number of blocks of one class that a thread caches, even if it took more from the shelf.
const MOST_GROWN: usize = 4096;
/// The maximum number of small blocks that move from a shelf to a thread at once.
const BATCH: usize = 32;
/// The maximum number of bytes of cached larger blocks in one bin, and the minimum and maximum of their number.
const LARGE_BIN_BYTES: usize = 8 << 20;
const LEAST_LARGE: usize = 4;
const MOST_LARGE: usize = 32;
/// The maximum number of bytes of larger blocks that a thread caches is this fraction of the program's peak, within a minimum and a
/// maximum. One block is always cached.
const LARGE_SHARE: usize = 64;
const MOST_LARGE_BYTES: usize = 2 * KEPT;
const LEAST_LARGE_BYTES: usize = 4 << 20;

/// A free block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Free {
    pub(crate) address: usize,
    pub(crate) bytes: usize,
}

/// Blocks of one class or bin. The block that was freed last is on top. A stack of a class that only `malloc` uses has no room at first.
#[derive(Debug, Default)]
struct Stack<T> {
    items: Box<[T]>,
    len: usize,
}

impl<T: Copy> Stack<T> {
    fn new(most: usize, filler: T) -> Self {
        Self {
            items: vec![filler; most].into_boxed_slice(),
            len: 0,
        }
    }

    /// Makes room for `most` items if there is no room at all. Returns whether it made room.
    fn begin(&mut self, most: usize, filler: T) -> bool {
        self.items.is_empty() && self.make_room(most, filler)
    }

    /// Sets the capacity and keeps the current items. Returns false if there is no memory for it.
    fn make_room(&mut self, most: usize, filler: T) -> bool {
        let mut items = Vec::new();
        if most < self.len || items.try_reserve_exact(most).is_err() {
            return false;
        }
        items.extend_from_slice(self.items.get(..self.len).unwrap_or(&[]));
        items.resize(most, filler);
        self.items = items.into_boxed_slice();
        true
    }

    #[inline]
    fn pop(&mut self) -> Option<T> {
        // In an empty stack this index is out of bounds too.
        let top = self.len.wrapping_sub(1);
        let item = *self.items.get(top)?;
        self.len = top;
        Some(item)
    }

    #[inline]
    fn push(&mut self, item: T) -> bool {
        match self.items.get_mut(self.len) {
            Some(place) => {
                *place = item;
                self.len += 1;
                true
            }
            None => false,
        }
    }

    fn last(&self) -> Option<&T> {
        self.items.get(self.len.wrapping_sub(1))
    }

    /// Passes the oldest `count` items to `out` and removes them from the stack. They are removed even if `out` panics, because
    /// it may already have returned some of them.
    fn drain_oldest(&mut self, count: usize, out: &mut impl FnMut(&[T])) {
        let count = count.min(self.len);
        let drained = Drained { stack: self, count };
        out(drained.stack.items.get(..count).unwrap_or(&[]));
    }

    /// Moves the older half to `aside`.
    fn set_aside(&mut self, aside: &mut Vec<T>) {
        let half = self.len / 2;
        if aside.try_reserve_exact(half).is_ok() {
            self.drain_oldest(half, &mut |blocks| aside.extend_from_slice(blocks));
        }
    }

    /// Moves the blocks of `aside` back to an empty stack. The block that was freed last is on top.
    fn recall(&mut self, aside: &mut Vec<T>) {
        if self.len == 0 {
            let from = aside.len() - aside.len().min(self.items.len());
            for (place, item) in self.items.iter_mut().zip(aside.drain(from..)) {
                *place = item;
                self.len += 1;
            }
        }
    }
}

/// The oldest items of a stack. They are removed when this is dropped.
struct Drained<'a, T: Copy> {
    stack: &'a mut Stack<T>,
    count: usize,
}

impl<T: Copy> Drop for Drained<'_, T> {
    fn drop(&mut self) {
        let Self { stack, count } = self;
        stack.items.copy_within(*count..stack.len, 0);
        stack.len -= *count;
    }
}

/// Returns the number of blocks of a class that any thread may cache.
pub(crate) fn most_kept(class: usize) -> usize {
    (BIN_BYTES / class_bytes(class)).clamp(LEAST_KEPT, MOST_KEPT)
}

fn most_large(bin: usize) -> usize {
    (LARGE_BIN_BYTES / (SMALL << (bin / 8))).clamp(LEAST_LARGE, MOST_LARGE)
}

/// The blocks of a cache.
#[derive(Debug)]
pub(crate) struct Stacks {
    small: [Stack<usize>; CLASSES],
    /// This field and the next two are boxed, because a new cache is briefly on the thread's stack, which may be as small as 16 KiB.
    large: Box<[Stack<Free>]>,
    /// Small blocks that were set aside, because they were freed longest ago and have not been needed since.
    aside: Box<[Vec<usize>]>,
    /// The number of small blocks that the thread took from the shelf and did not return. The room for a class may grow to this
    /// number.
    drawn: Box<[usize]>,
    /// The bytes in `large`, and their maximum.
    large_bytes: usize,
    large_most: usize,
}

impl Stacks {
    fn new() -> Self {
        Self {
            small: std::array::from_fn(|class| match is_fine(class) {
                true => Stack::default(),
                false => Stack::new(most_kept(class), 0),
            }),
            large: (0..BINS)
                .map(|bin| Stack::new(most_large(bin), Free::default()))
                .collect(),
            aside: (0..CLASSES).map(|_| Vec::new()).collect(),
            drawn: vec![0; CLASSES].into_boxed_slice(),
            large_bytes: 0,
            large_most: LEAST_LARGE_BYTES,
        }
    }

    /// Removes the block of a class that was freed last.
    #[inline]
    pub(crate) fn pop(&mut self, class: usize) -> Option<usize> {
        self.small.get_mut(class)?.pop()
    }

    /// Caches a small block, if there is room.
    #[inline]
    pub(crate) fn push(&mut self, class: usize, address: usize) -> bool {
        self.small.get_mut(class).is_some_and(|stack| stack.push(address))
    }

    /// Removes the block of a class that was freed last, including those that were set aside.
    pub(crate) fn pop_or_recall(&mut self, class: usize) -> Option<usize> {
        let stack = self.small.get_mut(class)?;
        stack.recall(self.aside.get_mut(class)?);
        stack.pop()
    }

    fn refill(
        &mut self,
        class: usize,
        outside: usize,
        take: impl FnOnce(&mut [usize]) -> usize,
    ) -> Option<usize> {
        let (stack, drawn) = (self.small.get_mut(class)?, self.drawn.get_mut(class)?);
        stack.begin(most_kept(class), 0);
        // A stack that was given room has room for one batch.
        let batch = (most_kept(class) / 2).clamp(1, BATCH);
        stack.len = take(stack.items.get_mut(..batch)?);
        *drawn += stack.len + outside;
        stack.pop()
    }

    /// Caches a small block on the slow path, where a class may get its initial room. Returns false if there is no room.
    pub(crate) fn push_first(&mut self, class: usize, address: usize) -> bool {
        self.small.get_mut(class).is_some_and(|stack| {
            stack.begin(most_kept(class), 0);
            stack.push(address)
        })
    }

    /// Increases the room for a class, up to the number of blocks that the thread took from the shelf itself, and to
    /// [`MOST_GROWN`]. A thread that frees blocks that other threads allocated passes them on.
    pub(crate) fn grow(&mut self, class: usize) -> bool {
        let (Some(stack), Some(drawn)) = (self.small.get_mut(class), self.drawn.get(class)) else {
            return false;
        };
        let room = stack.items.len();
        let most = (*drawn).min(MOST_GROWN);
        most > room && stack.make_room((2 * room).min(most), 0)
    }

    /// Passes the blocks of grown classes that were not needed since the last call to `out`, and reduces the room of these
    /// classes. Returns whether there is more to do.
    pub(crate) fn ease(&mut self, mut out: impl FnMut(usize, &[usize])) -> bool {
        let mut more = false;
        let stacks = self.small.iter_mut().zip(&mut self.aside).zip(&mut self.drawn);
        for (class, ((stack, aside), drawn)) in stacks.enumerate() {
            let (room, least) = (stack.items.len(), most_kept(class));
            if room <= least && aside.is_empty() {
                continue;
            }
            out(class, aside);
            // Blocks that other threads have freed are drawn anew when this thread needs them. The remaining blocks count
            // as drawn.
            *drawn = (drawn.saturating_sub(aside.len()) / 2).max(stack.len);
            aside.clear();
            stack.set_aside(aside);
            let half = (room / 2).max(least);
            if stack.len + aside.len() <= half / 2 {
                stack.make_room(half, 0);
            }
            more |= stack.items.len() > least || !aside.is_empty();
        }
        more
    }

    /// Passes the half of the blocks of a class that was freed longest ago to `out`.
    pub(crate) fn older_half(&mut self, class: usize, mut out: impl FnMut(&[usize])) {
        if let (Some(stack), Some(drawn)) = (self.small.get_mut(class), self.drawn.get_mut(class)) {
            stack.drain_oldest(stack.len.div_ceil(2), &mut |blocks| {
                *drawn = drawn.saturating_sub(blocks.len());
                out(blocks);
            });
        }
    }

    /// Removes the block that was freed last in the bin of `bytes` bytes, if it has at least `bytes` bytes and at most one page
    /// or 1/128 more. Returns its address.
    #[inline]
    pub(crate) fn pop_large(&mut self, bytes: usize) -> Option<usize> {
        let stack = self.large.get_mut(bin_of(bytes))?;
        let top = stack.last()?;
        if top.bytes < bytes || top.bytes - bytes > (bytes / 128).max(PAGE) {
            return None;
        }
        let block = stack.pop()?;
        self.large_bytes -= block.bytes;
        Some(block.address)
    }

    /// Caches a larger block, if there is room.
    #[inline]
    pub(crate) fn push_large(&mut self, block: Free) -> bool {
        if self.large_bytes + block.bytes > self.large_most && self.large_bytes > 0 {
            return false;
        }
        let stack = self.large.get_mut(bin_of(block.bytes));
        let kept = stack.is_some_and(|stack| stack.push(block));
        if kept {
            self.large_bytes += block.bytes;
        }
        kept
    }

    /// Sets the maximum of cached larger blocks for a program with this peak in bytes.
    pub(crate) fn suit(&mut self, peak: u64) {
        let share = usize::try_from(peak).unwrap_or(usize::MAX) / LARGE_SHARE;
        self.large_most = share.clamp(LEAST_LARGE_BYTES, MOST_LARGE_BYTES);
    }

    /// Makes room for a larger block. Passes the older half of its bin to `out`, or all larger blocks if the maximum of
    /// bytes would be exceeded.
    pub(crate) fn spill_large(&mut self, bytes: usize, mut out: impl FnMut(&[Free])) {
        let bin = bin_of(bytes);
        let short = self.large_bytes + bytes > self.large_most;
        for (of, stack) in self.large.iter_mut().enumerate() {
            if !short && of != bin {
                continue;
            }
            let count = if short { stack.len } else { stack.len.div_ceil(2) };
            let given = &mut self.large_bytes;
            stack.drain_oldest(count, &mut |blocks| {
                *given -= blocks.iter().map(|b| b.bytes).sum::<usize>();
                out(blocks);
            });
        }
    }

    /// Passes all blocks to the callbacks: small blocks with their class, and larger blocks.
    pub(crate) fn drain(&mut self, mut small: impl FnMut(usize, &[usize]), mut large: impl FnMut(&[Free])) {
        let stacks = self.small.iter_mut().zip(&mut self.aside).zip(&mut self.drawn);
        for (class, ((stack, aside), drawn)) in stacks.enumerate() {
            *drawn = drawn.saturating_sub(stack.len + aside.len());
            small(class, &std::mem::take(aside));
            stack.drain_oldest(usize::MAX, &mut |blocks| small(class, blocks));
            if stack.items.len() > most_kept(class) {
                stack.make_room(most_kept(class), 0);
            }
        }
        for stack in &mut self.large {
            stack.drain_oldest(usize::MAX, &mut large);
        }
        self.large_bytes = 0;
    }

    /// Returns the bytes of all blocks.
    pub(crate) fn bytes(&self) -> usize {
        let small = self.small.iter().zip(&self.aside).enumerate();
        self.large_bytes
            + small
                .map(|(class, (stack, aside))| (stack.len + aside.len()) * class_bytes(class))
                .sum::<usize>()
    }
}

/// The cache of one thread in one pool.
///
/// The thread inside the claim has exclusive access to `stacks`. The owner enters the claim by [`BiasedLock::enter`]. Another
/// thread enters it by [`BiasedLock::want`], a barrier and a [`BiasedLock::wait`] that returns true. `Sync` relies on this
/// invariant.
///
/// In the child of a fork, a cache is intact if its owner was outside, and it is used like the cache of an idle thread. If the
/// owner may have been inside, the cache may be inconsistent, and no thread of the child accesses its stacks.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Cache {
    pub(crate) claim: BiasedLock,
    pub(crate) tally: Tally,
    /// The number of calls at the last check, and the number of checks in a row without new calls. Used under the lock of
    /// the list.
    seen: AtomicU64,
    idle: AtomicU64,
    /// Whether a class has more than its initial room, and the number of calls of [`eases`](Self::eases).
    pub(crate) grown: AtomicBool,
    looks: AtomicU64,
    /// The number of allocations until the next one is entered in a sampled ledger, or 0 if it is not known yet.
    next: AtomicU64,
    /// Small blocks that the thread took from a shelf outside its cache, and that `drawn` does not count yet.
    drawn_outside: Box<[AtomicU32]>,
    stacks: Slot<Stacks>,
}

// SAFETY: `stacks` is touched only inside the claim, which keeps two threads from being inside at once and orders their
// accesses. All other fields are atomic.
unsafe impl Sync for Cache {}

/// The owner inside its cache. Dropping this leaves the cache.
#[must_use]
pub(crate) struct Inside<'a>(&'a Cache);

impl Inside<'_> {
    #[inline]
    pub(crate) fn with<R>(&mut self, work: impl FnOnce(&mut Stacks) -> R) -> R {
        // SAFETY: this thread is inside the claim, so no other thread is. `work` does not enter the
        // cache, so one thread is not inside twice.
        self.0.stacks.with_mut(|stacks| work(unsafe { &mut *stacks }))
    }

    /// Fills an empty class with a batch of blocks that `take` writes into a slice, and removes one. `take` returns their
    /// number.
    pub(crate) fn refill(&mut self, class: usize, take: impl FnOnce(&mut [usize]) -> usize) -> Option<usize> {
        let outside = self.0.drawn_outside.get(class)?.swap(0, Ordering::Relaxed) as usize;
        self.with(|stacks| stacks.refill(class, outside, take))
    }

    /// Returns the cache's counters. Operations are counted inside the claim, so that a thread that closes the pool and
    /// then visits the caches sees all counts.
    #[inline]
    pub(crate) fn tally(&self) -> &Tally {
        &self.0.tally
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.claim.leave();
    }
}

/// The outcome of the owner's attempt to allocate a block on the fast path.
pub(crate) enum Popped<'a> {
    /// The address of a block, which is counted, and whether it is time to report the counters.
    Block { address: usize, tell: bool },
    /// The cache has no such block. The owner is still inside.
    Empty(Inside<'a>),
    /// The owner may not enter the cache.
    Refused,
}

impl Cache {
    pub(crate) fn new() -> Self {
        Self {
            claim: BiasedLock::new(),
            tally: Tally::default(),
            seen: AtomicU64::new(0),
            idle: AtomicU64::new(0),
            grown: AtomicBool::new(false),
            looks: AtomicU64::new(0),
            next: AtomicU64::new(0),
            drawn_outside: (0..CLASSES).map(|_| AtomicU32::new(0)).collect(),
            stacks: Slot::new(Stacks::new()),
        }
    }

    /// Returns the number of consecutive calls of this function between which the owner did nothing. Only one thread at a time
    /// may call it.
    pub(crate) fn idle_for(&self) -> u64 {
        let calls = self.tally.calls();
        let idle = if self.seen.swap(calls, Ordering::Relaxed) == calls {
            self.idle.load(Ordering::Relaxed) + 1
        } else {
            0
        };
        self.idle.store(idle, Ordering::Relaxed);
        idle
    }

    /// Returns true at every `every`-th call if a class has more than its initial room. Only one thread at a time may call it.
    pub(crate) fn eases(&self, every: u64) -> bool {
        let looks = self.looks.load(Ordering::Relaxed) + 1;
        let now = looks >= every;
        self.looks.store(if now { 0 } else { looks }, Ordering::Relaxed);
        now && self.grown.load(Ordering::Relaxed)
    }

    #[inline]
    fn enter(&self, despite: Despite, passes: impl FnOnce() -> bool) -> Option<Inside<'_>> {
        self.claim.enter(despite, passes).then_some(Inside(self))
    }

    #[inline]
    fn passes(&self) -> bool {
        self.tally.allocations.load(Ordering::Relaxed) < self.next.load(Ordering::Relaxed)
    }

    /// Returns whether the owner's next allocation is entered in the ledger. Each time it is, `gap` returns the number of
    /// allocations until the next one. Called by the owner only.
    pub(crate) fn picks(&self, mut gap: impl FnMut() -> u32) -> bool {
        let now = self.tally.allocations.load(Ordering::Relaxed);
        let mut next = self.next.load(Ordering::Relaxed);
        if now < next {
            return false;
        }
        if next == 0 {
            next = now + u64::from(gap());
        }
        let picked = now >= next;
        if picked {
            next = now + 1 + u64::from(gap());
        }
        self.next.store(next, Ordering::Relaxed);
        picked
    }

    /// Counts a small block that the owner took from the shelf outside its cache. Called by the owner only.
    pub(crate) fn draw_outside(&self, class: usize) {
        if let Some(drawn) = self.drawn_outside.get(class) {
            drawn.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Makes the owner compute a new gap. An owner that is just reading the old one may use it one more time.
    pub(crate) fn pick_anew(&self) {
        self.next.store(0, Ordering::Relaxed);
    }

    /// Removes the block that `find` returns, and counts it. Called by the owner only.
    #[inline]
    pub(crate) fn pop(
        &self,
        requested: usize,
        bytes: usize,
        despite: Despite,
        find: impl FnOnce(&mut Stacks) -> Option<usize>,
    ) -> Popped<'_> {
        let Some(mut inside) = self.enter(despite, || self.passes()) else {
            return Popped::Refused;
        };
        match inside.with(find) {
            Some(address) => Popped::Block {
                address,
                tell: self.tally.allocate(requested, bytes),
            },
            None => Popped::Empty(inside),
        }
    }

    /// Caches a block by `keep` and counts it. Returns whether it is time to report the counters, or `None` if the block was
    /// not cached. Called by the owner only. `passes` returns whether the block is certainly in no ledger.
    #[inline]
    pub(crate) fn push(
        &self,
        requested: usize,
        bytes: usize,
        despite: Despite,
        passes: impl FnOnce() -> bool,
        keep: impl FnOnce(&mut Stacks) -> bool,
    ) -> Option<bool> {
        let mut inside = self.enter(despite, passes)?;
        inside.with(keep).then(|| self.tally.free(requested, bytes))
    }

    /// Enters on the slow path. Returns `None` if another thread has the cache. Called by the owner only.
    pub(crate) fn enter_slowly(&self) -> Option<Inside<'_>> {
        self.claim.enter_slowly().then_some(Inside(self))
    }

    /// Runs `work` on the stacks on the slow path. Returns `None` if another thread has them. Called by the owner only.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut Stacks) -> R) -> Option<R> {
        Some(self.enter_slowly()?.with(work))
    }

    /// Runs `work` on the stacks from another thread, after [`BiasedLock::want`] and a barrier. Returns `None` if it [cannot be
    /// determined](BiasedLock::wait) whether the owner is outside. Called by one thread at a time, under the lock of the pool's
    /// list of caches.
    pub(crate) fn with_wanted<R>(&self, work: impl FnOnce(&mut Stacks) -> R) -> Option<R> {
        let outcome = self.keep_wanted(work);
        self.claim.give_up();
        outcome
    }

    /// Runs `work` on the stacks like `with_wanted`. Afterwards the owner can never enter the cache again.
    pub(crate) fn keep_wanted<R>(&self, work: impl FnOnce(&mut Stacks) -> R) -> Option<R> {
        if !self.claim.wait() {
            return None;
        }
        // SAFETY: by the invariant of `BiasedLock` the owner is outside and stays outside as long as the cache is wanted, and
        // only one thread at a time wants it. The borrow ends before any thread gives the claim up.
        Some(self.stacks.with_mut(|stacks| work(unsafe { &mut *stacks })))
    }
}
