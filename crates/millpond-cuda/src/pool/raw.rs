//! Raw blocks, which their callers free by their address.

use super::shared::lock;
use super::{ALIGN, DevicePool, Held, refused};
use crate::fork;
use crate::span::Span;
use crate::stream::CudaStream;
use millpond_account::error::AllocError;
use millpond_account::event::BlockInfo;
use millpond_account::ledger::{Ledger, Tracking, WrongFree};
use millpond_account::memory::MemoryKind;
use millpond_os::reentrancy::inside;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// The raw blocks of a pool that callers hold.
pub(super) struct RawBlocks {
    /// The record of each block, by which a wrong free is detected.
    ledger: Ledger,
    /// Each block by its address, and its pool. The pool is a graph's if the block was allocated in a capture.
    held: Mutex<BTreeMap<u64, (DevicePool, Held)>>,
}

impl Default for RawBlocks {
    fn default() -> Self {
        Self {
            ledger: Ledger::builder(Tracking::All).complete(true).build(),
            held: Mutex::default(),
        }
    }
}

/// Raw blocks. The pool records each block, so that an address is enough to free it and a wrong address is detected. A
/// [`DeviceBuffer`](crate::DeviceBuffer) is freed automatically.
impl DevicePool {
    /// Allocates an uninitialised block for use on a stream, and returns its address on the device, which is a multiple of 256. The
    /// block keeps the pool open until it is freed.
    ///
    /// ```
    /// use millpond::cuda::{CudaDevice, CudaError, CudaStream, DevicePool};
    /// use millpond::ledger::WrongFree;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let device = match CudaDevice::get(0) {
    ///     Err(CudaError::NoDriver) => return Ok(()),
    ///     device => device?,
    /// };
    /// let (pool, stream) = (DevicePool::new(&device)?, CudaStream::new(&device)?);
    /// let address = pool.alloc_raw(1000, &stream)?;
    /// // SAFETY: nothing uses the block any more.
    /// unsafe { pool.free_raw(address) }?;
    /// // SAFETY: an address that is not in our hands any more is refused.
    /// let twice = unsafe { pool.free_raw(address) };
    /// assert!(matches!(*twice.unwrap_err(), WrongFree::AlreadyFree { .. }));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`alloc`](Self::alloc).
    pub fn alloc_raw(&self, bytes: usize, stream: &CudaStream) -> Result<u64, AllocError> {
        let size = bytes.max(1);
        let (pool, terms) = self.requests();
        let (pool, Some(held)) = pool.allocate(size, stream, terms)? else {
            return Err(AllocError::UNCOUNTABLE);
        };
        let address = held.block.address();
        // SAFETY: the block has these bytes, and no other code uses it.
        let whole = unsafe { Span::new(address, size, stream) };
        if self.clears()
            && let Err(error) = whole.fill_zero()
        {
            pool.take_back(held, None);
            return Err(refused(error));
        }
        let info = BlockInfo {
            address: address as usize,
            requested: bytes,
            bytes: held.block.bytes() as usize,
            align: ALIGN as usize,
            ..BlockInfo::default()
        };
        let _inside = inside();
        let raw = self.0.raw.get_or_init(RawBlocks::default);
        let record = raw.ledger.record(&info, MemoryKind::Device, None);
        lock(&raw.held).insert(address, (pool, held));
        raw.ledger.insert(info.address, record);
        Ok(address)
    }

    /// Frees a raw block by its address alone. The block is available at once to later work on its stream.
    ///
    /// # Safety
    /// Work that is queued later must not use the block, and work on a stream other than the block's must not use it now. The pool checks
    /// that the address is that of a block.
    ///
    /// # Errors
    /// Returns an error if the address is not that of a live raw block of this pool. In that case nothing is changed.
    pub unsafe fn free_raw(&self, address: u64) -> Result<(), Box<WrongFree>> {
        self.free_checked(address, None)
    }

    /// Frees a raw block and checks the size that it was requested with.
    ///
    /// # Safety
    /// As for [`free_raw`](Self::free_raw).
    ///
    /// # Errors
    /// Returns the errors of [`free_raw`](Self::free_raw), and an error if the size is not the requested one. In that case nothing is
    /// changed.
    pub unsafe fn free_raw_sized(&self, address: u64, bytes: usize) -> Result<(), Box<WrongFree>> {
        self.free_checked(address, Some((bytes, ALIGN as usize)))
    }

    fn free_checked(&self, address: u64, given: Option<(usize, usize)>) -> Result<(), Box<WrongFree>> {
        let foreign = || {
            Box::new(WrongFree::Foreign {
                address: address as usize,
            })
        };
        // In a forked process there are no blocks, and the thread that holds a lock may not exist.
        let raw = self
            .0
            .raw
            .get()
            .filter(|_| !fork::is_forked())
            .ok_or_else(foreign)?;
        let block = {
            let _inside = inside();
            raw.ledger.remove(address as usize, given)?;
            lock(&raw.held).remove(&address)
        };
        let (pool, held) = block.ok_or_else(foreign)?;
        pool.take_back(held, None);
        Ok(())
    }
}
