//! A source of memory from the program's own heap, which works on any machine and under Miri.

use crate::memory::MemorySource;
use crate::unpooled::Unpooled;
use millpond_account::MemoryKind;
use millpond_engine::{Event, Range, Segment, Source, SourceError};
use std::alloc::{Layout, alloc, dealloc};
use std::collections::HashMap;

/// A source of segments that are filled with nonzero bytes, begin at odd multiples of 64, and have at most [`MOST`] bytes.
#[derive(Default)]
pub(crate) struct Fake(HashMap<u64, (*mut u8, Layout)>);

// SAFETY: the pointers are to the heap, which any thread may use.
unsafe impl Send for Fake {}

/// The maximum size of a segment in bytes. Tests of tensors with random shapes need up to 8 MiB.
pub const MOST: u64 = 16 << 20;

/// Returns a handle over a fake source, without a pool.
pub fn unpooled() -> Unpooled {
    Unpooled::over(Box::new(Fake::default()))
}

impl Source for Fake {
    fn page_bytes(&self) -> u64 {
        64
    }
    fn is_paged(&self) -> bool {
        false
    }
    fn capacity(&self) -> Option<u64> {
        None
    }
    fn free_bytes(&self) -> Option<u64> {
        None
    }
    fn take(&mut self, bytes: u64) -> Result<Segment, SourceError> {
        if bytes > MOST {
            return Err(SourceError::OutOfMemory {
                requested: bytes,
                free: 0,
                capacity: MOST,
            });
        }
        let layout = Layout::from_size_align(bytes as usize + 64, 128).expect("a layout");
        // SAFETY: the size of the layout is not 0.
        let base = unsafe { alloc(layout) };
        assert!(!base.is_null());
        // SAFETY: the block has this size.
        unsafe { base.write_bytes(0xA5, layout.size()) };
        let address = base.expose_provenance() as u64 + 64;
        self.0.insert(address, (base, layout));
        Ok(Segment::new(address, bytes))
    }
    fn give(&mut self, segment: Segment) {
        let (base, layout) = self.0.remove(&segment.address()).expect("ours");
        // SAFETY: it was allocated with this layout, and is not used any more.
        unsafe { dealloc(base, layout) };
    }
    fn reserve(&mut self, _: u64) -> Result<Range, SourceError> {
        Err(SourceError::Unsupported {
            operation: "reserve addresses",
        })
    }
    fn commit(&mut self, _: &Range, _: u64, _: u64, _: u64) -> Result<(), SourceError> {
        Err(SourceError::Unsupported { operation: "commit" })
    }
    fn decommit(&mut self, _: &Range, _: u64, _: u64) -> u64 {
        0
    }
    fn move_pages(&mut self, _: (&Range, u64), _: (&Range, u64), _: u64) -> Result<u64, SourceError> {
        Err(SourceError::Unsupported { operation: "move" })
    }
    fn release(&mut self, _: Range) {}
    fn record_event(&mut self, _: u32) -> Event {
        Event(0)
    }
    fn is_complete(&self, _: Event) -> bool {
        true
    }
    fn wait_event(&mut self, _: u32, _: Event) {}
    fn synchronize(&mut self) {}
}

// SAFETY: segments are blocks of the heap, which overlap with no others until they are freed.
unsafe impl MemorySource for Fake {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Pinned
    }
    fn fresh_is_zero(&self) -> bool {
        false
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        assert!(
            self.0.is_empty() || std::thread::panicking(),
            "all was given back"
        );
    }
}
