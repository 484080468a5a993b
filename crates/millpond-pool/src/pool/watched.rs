//! The fast path while observers are registered and nothing else requires the slow path.
//!
//! A call has left the fast path because it must be reported. Its thread enters the cache like the fast path, without a
//! fence or a lock, and reports after it has left the cache. If there is another reason to leave the fast path, or if the
//! cache cannot serve the call, the call takes the slow path.

use super::classes::{KEPT, LEAST, SMALL, class_and_bytes, class_of_block};
use super::fast::with_last;
use super::heap::{Heap, RawBlock};
use super::zeroed::clear;

impl Heap {
    /// Allocates a block of this thread's cache and reports it. Returns no block, with address 0, if this is not possible. The
    /// result has two words, which are returned in registers. If it were returned in memory, the caller would wait for the
    /// writes.
    #[inline(never)]
    pub(super) fn allocate_watched(&'static self, requested: usize, align: usize, zeroed: bool) -> RawBlock {
        let nothing = RawBlock { address: 0, bytes: 0 };
        if !self.is_watched() || align > LEAST {
            return nothing;
        }
        let taken = if requested <= SMALL {
            with_last(self, nothing, |cache| {
                let (class, bytes) = class_and_bytes(requested.max(1));
                self.pop_class_despite::<true>(cache, class, bytes, requested)
            })
        } else if requested <= KEPT {
            with_last(self, nothing, |cache| {
                self.pop_large_despite::<true>(cache, requested)
            })
        } else {
            return nothing;
        };
        if taken.address != 0 {
            // SAFETY: the block was just taken from the cache, and the caller has not received it yet.
            unsafe { clear(taken.address, self.zeros(taken, requested, zeroed)) };
            self.tell_allocated(taken, requested, align);
        }
        taken
    }

    /// Reports a free and frees the block. Returns false and does nothing if this is not possible here.
    #[inline]
    pub(super) fn free_watched(&'static self, taken: RawBlock, requested: usize, align: usize) -> bool {
        if !self.is_watched() || self.is_guarded() {
            return false;
        }
        if let Err(wrong) = self.tell_freed(taken, requested, align) {
            // The block is not freed. Otherwise two callers could get the same memory.
            self.say_wrong(&wrong);
            return true;
        }
        let RawBlock { address, bytes } = taken;
        let kept = if bytes <= SMALL {
            with_last(self, false, |cache| {
                self.push_class_despite::<true>(cache, class_of_block(bytes), taken, requested)
            })
        } else {
            with_last(self, false, |cache| {
                self.push_large_despite::<true>(cache, address, bytes, requested)
            })
        };
        if !kept {
            self.free_inside(taken, requested);
        }
        self.tell_flow();
        true
    }
}

#[cfg(test)]
mod tests {
    use crate::Pool;
    use millpond_account::Event;
    use millpond_account::EventKind;
    use std::sync::{Arc, Mutex};

    /// The events with their addresses and requested bytes.
    type Told = Arc<Mutex<Vec<(EventKind, usize, usize)>>>;

    /// Returns a pool with a limit of 8 MiB, and the events that its subscriber receives.
    fn watched() -> (Pool, Told) {
        let pool = Pool::builder()
            .track(None)
            .limit(8 << 20)
            .host()
            .expect("addresses");
        let told = Told::default();
        let hear = Arc::clone(&told);
        pool.subscribe(move |event: &Event<'_>| {
            let facts = (event.kind, event.address, event.requested);
            hear.lock().expect("no panic").push(facts);
        });
        (pool, told)
    }

    #[test]
    fn blocks_of_a_threads_cache_are_reported() {
        let (pool, told) = watched();
        for bytes in [64, 5000, 1 << 20] {
            let addresses = [(); 3].map(|()| {
                let buffer = pool.alloc_zeroed::<u8>(bytes).expect("room");
                buffer.as_ptr().addr()
            });
            assert_eq!(addresses, [addresses[0]; 3], "kept and found again");
            let mut told = told.lock().expect("no panic");
            told.retain(|(kind, ..)| *kind != EventKind::Refilled);
            let pair = [EventKind::Allocated, EventKind::Freed].map(|kind| (kind, addresses[0], bytes));
            assert_eq!(**told, [pair, pair, pair].concat());
            told.clear();
        }
    }

    #[test]
    fn zeroed_blocks_are_zero_while_a_subscriber_is_registered() {
        let (pool, _told) = watched();
        let first = pool.alloc_from(&[7u8; 500]).expect("room");
        let address = first.as_ptr().addr();
        drop(first);
        let second = pool.alloc_zeroed::<u8>(500).expect("room");
        assert_eq!(second.as_ptr().addr(), address);
        assert!(second.iter().all(|byte| *byte == 0));
    }

    /// There is a second reason to leave the fast path, so a freed block bypasses the cache although the cache has room for it.
    #[test]
    fn a_watched_block_is_not_cached_while_others_wait() {
        let (pool, _told) = watched();
        let [one, two] = [(); 2].map(|()| pool.alloc_zeroed::<u8>(1 << 20).expect("room"));
        let kept = || pool.stats().kept;
        let before = kept();
        let place = pool.heap().join_line();
        drop(one);
        assert_eq!(kept(), before);
        drop(place);
        drop(two);
        assert_eq!(kept(), before + (1 << 20));
    }
}
