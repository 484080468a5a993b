//! Finds the guarded block that an address belongs to.

use super::blocks::Entry;
use crate::pool::heap::Heap;
use millpond_account::ledger::{FreedBlock, Ledger, Record, Stack};
use millpond_account::post_mortem::Text;
use millpond_os as os;
use std::fmt;
use std::sync::OnceLock;
use std::thread;

/// The first pool with guards. Each pool refers to the next one. Read without a lock.
static FIRST: OnceLock<&'static Heap> = OnceLock::new();

/// Makes a pool's blocks known to [`describe_fault`].
pub(crate) fn register(heap: &'static Heap) {
    // No fork may happen now: its child would wait forever for a thread that was setting a place.
    let _no_forks = millpond_os::fork::prevent();
    let mut place = &FIRST;
    while let Err(other) = place.set(heap).map_err(|_| place.get()) {
        match other.and_then(|other| other.guard.as_ref()) {
            Some(guard) => place = &guard.next,
            None => return,
        }
    }
}

fn heaps() -> impl Iterator<Item = &'static Heap> {
    std::iter::successors(FIRST.get().copied(), |heap| {
        heap.guard.as_ref()?.next.get().copied()
    })
}

/// The position of an address relative to its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultPlace {
    /// This many bytes before the first byte.
    Before(usize),
    /// This many bytes after the first byte, inside the block.
    Inside(usize),
    /// This many bytes past the end. The byte right after the block has 0.
    Past(usize),
}

/// The description of the block that an address belongs to, in a pool with [guards](crate::PoolBuilder::guard). It owns no heap
/// memory.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct FaultReport {
    /// The address.
    pub address: usize,
    /// The address of the block.
    pub block: usize,
    /// The position of the address relative to the block.
    pub place: FaultPlace,
    /// The record of the allocation.
    pub record: Record,
    /// The record of the free, if the block was freed.
    pub freed: Option<FreedBlock>,
    ledger: &'static Ledger,
}

/// Returns the block of a pool with [guards](crate::PoolBuilder::guard) that an address belongs to: a live one, or one that
/// was freed and is still in quarantine. It is intended for a handler of `SIGSEGV`, with the address that the system
/// reports, but can be called anywhere. It allocates nothing. It returns `None` if another thread holds the lock of the
/// pool's list of blocks for a second, or if this thread holds it.
///
/// ```
/// use millpond::{Pool, guard::{FaultPlace, describe_fault}};
///
/// let pool = Pool::builder().guard(true).host()?;
/// let block = pool.alloc_zeroed::<u8>(1000)?;
/// let past = describe_fault(block.as_ptr().addr() + 1024).expect("of the pool");
/// assert_eq!((past.record.requested, past.place), (1000, FaultPlace::Past(24)));
/// assert!(past.to_string().contains("24 B past the end of 1000 B"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn describe_fault(address: usize) -> Option<FaultReport> {
    heaps().find_map(|heap| {
        let guard = heap.guard.as_ref()?;
        let entry = (0..1000).find_map(|_| match guard.blocks.try_lock() {
            Some(blocks) => Some(blocks.around(address).copied()),
            None => {
                thread::sleep(std::time::Duration::from_millis(1));
                None
            }
        })??;
        Some(FaultReport::new(address, &entry, &guard.ledger))
    })
}

impl FaultReport {
    fn new(address: usize, entry: &Entry, ledger: &'static Ledger) -> Self {
        let block = entry.place.address;
        let place = match address.checked_sub(block) {
            None => FaultPlace::Before(block - address),
            Some(offset) => match offset.checked_sub(entry.record.requested) {
                None => FaultPlace::Inside(offset),
                Some(past) => FaultPlace::Past(past),
            },
        };
        Self {
            address,
            block,
            place,
            record: entry.record,
            freed: entry.freed,
            ledger,
        }
    }

    /// Returns the stack of the allocation, if stacks are recorded.
    #[must_use]
    pub fn allocated_at(&self) -> Option<Stack> {
        self.ledger.stack_of(&self.record)
    }

    /// Returns the stack of the free, if the block was freed and stacks are recorded.
    #[must_use]
    pub fn freed_at(&self) -> Option<Stack> {
        self.ledger.freed_at(&self.freed?)
    }

    /// Prints the report on standard error with system calls only. Without stacks it allocates nothing.
    pub fn say(&self) {
        let mut line = Text::<1024>::default();
        let _ = fmt::Write::write_fmt(&mut line, format_args!("{self}"));
        os::say("millpond: ");
        os::say(line.as_str());
        os::say("\n");
    }
}

impl fmt::Debug for FaultReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultReport")
            .field("address", &self.address)
            .field("block", &self.block)
            .field("place", &self.place)
            .field("record", &self.record)
            .field("freed", &self.freed)
            .finish_non_exhaustive()
    }
}

/// Formats the report as one line. Symbolising the stacks, if they are recorded, allocates.
impl fmt::Display for FaultReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Record { requested, .. } = self.record;
        write!(f, "address {:#x} is ", self.address)?;
        match self.place {
            FaultPlace::Before(bytes) => write!(f, "{bytes} B before the start of")?,
            FaultPlace::Inside(offset) => write!(f, "{offset} B into")?,
            FaultPlace::Past(bytes) => write!(f, "{bytes} B past the end of")?,
        }
        let state = if self.freed.is_some() { "freed" } else { "live" };
        write!(f, " {requested} B at {:#x}, {state}; allocated ", self.block)?;
        WrittenBy(self.record.thread, self.record.tag, self.allocated_at()).fmt(f)?;
        if let Some(freed) = self.freed {
            f.write_str("; freed ")?;
            WrittenBy(freed.thread, freed.tag, self.freed_at()).fmt(f)?;
        }
        Ok(())
    }
}

struct WrittenBy(u32, millpond_account::tags::Tag, Option<Stack>);

impl fmt::Display for WrittenBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "by thread {}", self.0)?;
        millpond_account::ledger::By(self.1, self.2.as_ref()).fmt(f)
    }
}
