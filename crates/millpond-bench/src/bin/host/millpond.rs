//! Millpond's own row.
//!
//! The slot for the pool: until it is there, the engine over host memory, behind one lock and a table of blocks.

use crate::allocator::{Allocator, Shape};
use millpond::Host;
use millpond::engine::{Block, Engine, Request, Settings, Stream, policies};
use std::collections::HashMap;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What the row is measured with.
pub(crate) struct Millpond {
    state: Mutex<State>,
}

struct State {
    engine: Engine<Host>,
    /// The blocks in callers' hands, by address.
    blocks: HashMap<usize, Block>,
}

// SAFETY: the policy is the one built below, which owns its tables and ties nothing to a thread; the rest is `Send`.
unsafe impl Send for State {}

impl Millpond {
    /// The default policy over ordinary memory without a limit.
    pub(crate) fn new() -> Result<Self, String> {
        let policy = policies::build("millpond", &Settings::default()).map_err(|e| e.to_string())?;
        let host = Host::builder().build().map_err(|e| e.to_string())?;
        Ok(Self {
            state: Mutex::new(State {
                engine: Engine::new(policy, host),
                blocks: HashMap::new(),
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// SAFETY: a block of the engine is committed memory of the host source, which nobody else is given until the block
// is freed, at the alignment asked for (`MemorySource`). The source is in the engine and lives as long as it.
unsafe impl Allocator for Millpond {
    fn alloc(&self, shape: Shape) -> *mut u8 {
        let mut request = Request::new(shape.size() as u64, Stream::DEFAULT);
        request.align = shape.align() as u64;
        let mut state = self.state();
        let Ok(block) = state.engine.allocate(request) else {
            return ptr::null_mut();
        };
        let address = block.address() as usize;
        state.blocks.insert(address, block);
        ptr::with_exposed_provenance_mut(address)
    }

    fn alloc_zeroed(&self, shape: Shape) -> *mut u8 {
        let place = self.alloc(shape);
        if !place.is_null() {
            // SAFETY: so many bytes were just given there.
            unsafe { place.write_bytes(0, shape.size()) };
        }
        place
    }

    unsafe fn free(&self, address: NonNull<u8>, _: Shape) {
        let mut state = self.state();
        if let Some(block) = state.blocks.remove(&address.addr().get()) {
            state.engine.free(block, &[]);
        }
    }

    fn trim(&self) {
        self.state().engine.release_cached();
    }
}
