//! Passes over a data set in chunks. Threads read ahead of the computation into a ring of buffers.

#[cfg(feature = "cuda")]
mod device;

#[cfg(feature = "cuda")]
pub use device::{DeviceChunk, DevicePass};

use super::DataSet;
use super::error::DataError;
use super::order::Order;
use super::progress::Progress;
use super::sieve::{BufferSource, Places, Sieve};
use bytemuck::Pod;
use millpond_account::error::AllocError;
use millpond_pool::buffer::Buffer;
use millpond_pool::dtype::Element;
use millpond_pool::pool::Pool;
use millpond_pool::tenant::Tenant;
use millpond_tensor::{TensorError, TensorMut, TensorRef};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The default size of a chunk in bytes. A chunk that fits into the processor's cache is still in the cache when the computation
/// uses it.
const CHUNK: u64 = 1 << 20;
const BUDGET: u64 = 256 << 20;
/// The time for which a thread polls for its next buffer before it sleeps.
const PATIENCE: Duration = Duration::from_micros(100);

/// The origin of the buffers.
#[derive(Clone, Debug)]
enum ChunkSource {
    Set,
    Pool(Pool),
    Tenant(Tenant),
}

impl BufferSource for ChunkSource {
    fn draw<T: Pod>(&self, elements: usize) -> Result<Buffer<T>, AllocError> {
        match self {
            Self::Set => millpond_set::pools::alloc_zeroed(elements),
            Self::Pool(pool) => pool.alloc_zeroed(elements),
            Self::Tenant(tenant) => tenant.alloc_zeroed(elements),
        }
    }
}

type PrepareFn<'a, T> = dyn Fn(&mut Chunk<'_, T>) + Sync + 'a;
type ProgressCallback<'a> = Box<dyn FnMut(&Progress) + 'a>;

/// A pass over a [`DataSet`] in chunks of whole rows. [`DataSet::pass`] creates it.
///
/// Threads read ahead into a few buffers that are allocated once and reused, so memory is bounded and nothing is allocated for a
/// chunk. The caller's closure computes on one chunk while the next ones are read.
///
/// ```
/// # let path = std::env::temp_dir().join(format!("millpond-pass-{}.f32", std::process::id()));
/// # let values: Vec<f32> = (0..1000).map(|n| n as f32).collect();
/// # std::fs::write(&path, millpond::bytemuck::cast_slice::<f32, u8>(&values))?;
/// use millpond::{DataSet, Order, Pool};
///
/// let pool = Pool::host()?;
/// let data = DataSet::<f32>::builder().file(&path).row(10).open()?;
/// let pass = data.pass().order(Order::shuffled(1)).rows(32).readers(2).pool(&pool);
/// let halved = pass.prepare(|chunk| chunk.iter_mut().for_each(|x| *x *= 0.5));    // runs on the readers' threads
/// let mut sum = 0.0;
/// halved.try_for_each(|chunk| {
///     sum += chunk.iter().sum::<f32>();
///     if sum.is_finite() { Ok(()) } else { Err(Box::<dyn std::error::Error>::from("a number is none")) }
/// })?;
/// assert_eq!((sum, pool.stats().requested.current), (249_750.0, 0));
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a pass does nothing until for_each or try_for_each"]
pub struct Pass<'a, T> {
    data: &'a DataSet<T>,
    rows: Option<usize>,
    range: Range<u64>,
    order: Order,
    budget: u64,
    ahead: usize,
    readers: usize,
    from: ChunkSource,
    prepare: Option<Box<PrepareFn<'a, T>>>,
    tell: Option<(Duration, ProgressCallback<'a>)>,
}

impl<T> fmt::Debug for Pass<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pass")
            .field("rows", &self.rows)
            .field("range", &self.range)
            .field("order", &self.order)
            .field("budget", &self.budget)
            .field("ahead", &self.ahead)
            .field("readers", &self.readers)
            .finish_non_exhaustive()
    }
}

impl<'a, T: Element> Pass<'a, T> {
    pub(super) fn new(data: &'a DataSet<T>) -> Self {
        Self {
            data,
            rows: None,
            range: 0..data.rows(),
            order: Order::ascending(),
            budget: BUDGET,
            ahead: 2,
            readers: 1,
            from: ChunkSource::Set,
            prepare: None,
            tell: None,
        }
    }

    /// Sets the number of rows of a chunk. The last chunk may have fewer. By default a chunk has 1 MiB, or less if the budget is
    /// small.
    pub fn rows(mut self, rows: usize) -> Self {
        self.rows = Some(rows.max(1));
        self
    }

    /// Restricts the pass to these rows, as far as they exist.
    pub fn range(mut self, rows: Range<u64>) -> Self {
        let end = rows.end.min(self.data.rows());
        self.range = rows.start.min(end)..end;
        self
    }

    /// Sets the order of the rows.
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Sets the maximum number of bytes that the pass allocates for chunks and for assembling them. The default is 256 MiB.
    ///
    /// For files of any size, the process grows at most by the budget, the readers' stacks, and the pool's tables and pages. Tests
    /// check that all but the budget stays below 4 MiB. The system's file cache does not count, because reads copy from it and it
    /// does not belong to the process.
    pub fn budget(mut self, bytes: u64) -> Self {
        self.budget = bytes;
        self
    }

    /// Sets the number of chunks that are read ahead. The default is 2. With 0, the caller's thread reads each chunk before it
    /// computes on the chunk.
    pub fn ahead(mut self, chunks: usize) -> Self {
        self.ahead = chunks;
        self
    }

    /// Sets the number of threads that read. The default is 1. Chunks arrive in order for any number of threads.
    pub fn readers(mut self, threads: usize) -> Self {
        self.readers = threads.max(1);
        self
    }

    /// Allocates the buffers from a pool instead of the current [set](fn@millpond_set::pools).
    pub fn pool(mut self, pool: &Pool) -> Self {
        self.from = ChunkSource::Pool(pool.clone());
        self
    }

    /// Allocates the buffers from a pool and charges them to a [tenant](Tenant).
    pub fn tenant(mut self, tenant: &Tenant) -> Self {
        self.from = ChunkSource::Tenant(tenant.clone());
        self
    }

    /// Sets a function that prepares each chunk on the thread that has read it, while other chunks are read and computed on.
    pub fn prepare(mut self, work: impl Fn(&mut Chunk<'_, T>) + Sync + 'a) -> Self {
        self.prepare = Some(Box::new(work));
        self
    }

    /// Sets a callback for the progress. It is called on the caller's thread, after the first chunk that ends at least `every`
    /// after the previous call.
    pub fn progress(mut self, every: Duration, tell: impl FnMut(&Progress) + 'a) -> Self {
        self.tell = Some((every, Box::new(tell)));
        self
    }

    /// Calls `work` with each chunk, in order.
    ///
    /// # Errors
    /// Returns the error of the first chunk, in order, that cannot be read. Returns [`DataError::Budget`] or [`DataError::Memory`]
    /// before any chunk is read.
    pub fn for_each(self, mut work: impl FnMut(&mut Chunk<'_, T>)) -> Result<Progress, DataError> {
        self.try_for_each(|chunk| {
            work(chunk);
            Ok(())
        })
    }

    /// Like [`for_each`](Self::for_each), with a `work` that can fail. Its error ends the pass.
    ///
    /// # Errors
    /// Returns the errors of [`for_each`](Self::for_each) and of `work`.
    pub fn try_for_each<E: From<DataError>>(
        mut self,
        mut work: impl FnMut(&mut Chunk<'_, T>) -> Result<(), E>,
    ) -> Result<Progress, E> {
        let plan = self.plan()?;
        let mut clock = ProgressClock::new(&plan, self.tell.take());
        if plan.chunks == 0 {
            return Ok(clock.end());
        }
        let elements = plan.rows * plan.row;
        let sieve =
            || Sieve::new(&plan.places, plan.row_bytes, plan.rows, &self.from).map_err(DataError::Memory);
        let buffer = || self.from.draw::<T>(elements).map_err(DataError::Memory);
        let reader = ChunkReader {
            plan: &plan,
            data: self.data,
            prepare: self.prepare.as_deref(),
        };
        if self.ahead == 0 {
            let (mut sieve, mut buffer) = (sieve()?, buffer()?);
            for number in 0..plan.chunks {
                let began = Instant::now();
                let outcome = reader.read(number, &mut sieve, &mut buffer);
                clock.waited(began);
                outcome?;
                work(&mut plan.chunk(number, &mut buffer))?;
                clock.tick(&plan, number);
            }
            return Ok(clock.end());
        }
        let readers = self.readers.min(plan.buffers);
        let sieves = (0..readers).map(|_| sieve()).collect::<Result<Vec<_>, _>>()?;
        let buffers = (0..plan.buffers).map(|_| buffer());
        let ring = Ring::new(buffers.collect::<Result<Vec<_>, _>>()?, ReuseOrder::Latest);
        in_parallel(&reader, sieves, &ring, &mut clock, |number, buffer| {
            work(&mut plan.chunk(number, buffer))
        })
    }

    fn plan(&self) -> Result<Plan, DataError> {
        let row_bytes = self.data.row_bytes() as u64;
        let places = Places {
            order: self.order,
            first: self.range.start,
            rows: self.range.end - self.range.start,
        };
        let count = places.count();
        // One chunk is computed on, each reader has one, and the others are ready.
        let wanted = match self.ahead {
            0 => 1,
            ahead => ahead.max(self.readers).saturating_add(1),
        };
        let least = wanted.min(2);
        let sieves = if self.ahead == 0 { 1 } else { self.readers as u64 };
        let bytes_with = |rows: u64, buffers: usize| {
            let chunks = rows.saturating_mul(row_bytes).saturating_mul(buffers as u64);
            let sieve = Sieve::bytes(&places, row_bytes, usize::try_from(rows).unwrap_or(usize::MAX));
            chunks.saturating_add(sieve.saturating_mul(sieves))
        };
        let rows = match self.rows {
            Some(rows) => (rows as u64).min(count.max(1)),
            None => {
                let mut rows = (CHUNK / row_bytes).clamp(1, count.max(1));
                while rows > 1 && bytes_with(rows, wanted) > self.budget {
                    rows /= 2;
                }
                rows
            }
        };
        if bytes_with(rows, least) > self.budget {
            return Err(DataError::Budget {
                needed: bytes_with(rows, least),
                chunks: least,
                budget: self.budget,
            });
        }
        let chunks = count.div_ceil(rows);
        let each = bytes_with(rows, 1).saturating_sub(bytes_with(rows, 0)).max(1);
        let fits = self.budget.saturating_sub(bytes_with(rows, 0)) / each;
        let most = usize::try_from(chunks.min(fits)).unwrap_or(usize::MAX);
        let buffers = wanted.min(most).max(least);
        Ok(Plan {
            places,
            rows: usize::try_from(rows).unwrap_or(usize::MAX),
            row: self.data.row(),
            row_bytes,
            chunks,
            buffers,
        })
    }
}

/// The parameters of a pass, which are decided before it begins.
#[derive(Debug)]
struct Plan {
    places: Places,
    /// The rows of a chunk, and the elements and bytes of a row.
    rows: usize,
    row: usize,
    row_bytes: u64,
    chunks: u64,
    buffers: usize,
}

impl Plan {
    fn rows_of(&self, number: u64) -> usize {
        let first = number * self.rows as u64;
        (self.places.count() - first).min(self.rows as u64) as usize
    }

    /// Returns the index in the data set of the `nth` row of a chunk.
    fn row_number(&self, number: u64, nth: usize) -> Option<u64> {
        let place = number * self.rows as u64 + nth as u64;
        (nth < self.rows_of(number)).then(|| self.places.row_at(place))
    }

    fn chunk<'b, T: Element>(&'b self, number: u64, buffer: &'b mut Buffer<T>) -> Chunk<'b, T> {
        let elements = self.rows_of(number) * self.row;
        Chunk {
            plan: self,
            number,
            elements: buffer.get_mut(..elements).unwrap_or(&mut []),
        }
    }
}

/// Some rows of a data set in memory. They can be written, but changes are not saved to the file.
///
/// ```
/// # let path = std::env::temp_dir().join(format!("millpond-chunk-{}.u8", std::process::id()));
/// # std::fs::write(&path, (0..20).collect::<Vec<u8>>())?;
/// use millpond::DataSet;
///
/// let data = DataSet::<u8>::builder().file(&path).row(4).open()?;
/// data.pass().range(1..4).for_each(|chunk| {
///     assert_eq!((chunk.number(), chunk.len(), chunk.row_number(2)), (0, 12, Some(3)));
///     assert_eq!(chunk.rows().next_back(), Some(&[12, 13, 14, 15][..]));
/// })?;
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Chunk<'b, T> {
    plan: &'b Plan,
    number: u64,
    elements: &'b mut [T],
}

impl<T> Chunk<'_, T> {
    /// Returns the number of the chunk in the pass, counted from 0.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns an iterator over the rows.
    pub fn rows(&self) -> std::slice::ChunksExact<'_, T> {
        self.elements.chunks_exact(self.plan.row)
    }

    /// Returns an iterator over the rows as mutable slices.
    pub fn rows_mut(&mut self) -> std::slice::ChunksExactMut<'_, T> {
        self.elements.chunks_exact_mut(self.plan.row)
    }

    /// Returns the index in the data set of the `nth` row of this chunk, or `None` if the chunk has fewer rows.
    #[must_use]
    pub fn row_number(&self, nth: usize) -> Option<u64> {
        self.plan.row_number(self.number, nth)
    }
}

impl<T: Element> Chunk<'_, T> {
    /// Returns the rows as a view of two dimensions: rows, and elements of a row. Nothing is copied.
    ///
    /// ```
    /// # let path = std::env::temp_dir().join(format!("millpond-view-{}.u8", std::process::id()));
    /// # std::fs::write(&path, (0..20).collect::<Vec<u8>>())?;
    /// let data = millpond::DataSet::<u8>::builder().file(&path).row(4).open()?;
    /// data.pass().try_for_each(|chunk| {
    ///     chunk.view_mut()?.select(1, 0)?.fill(1)?;
    ///     assert_eq!(chunk.view()?.sum_dim(1)?.to_vec::<u64>()?, [7, 19, 31, 43, 55]);
    ///     Ok::<(), Box<dyn std::error::Error>>(())
    /// })?;
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns no error at present.
    pub fn view(&self) -> Result<TensorRef<'_>, TensorError> {
        TensorRef::from_slice(self.elements, self.shape())
    }

    /// Returns the rows as a mutable view. Changes are not saved to the file.
    ///
    /// # Errors
    /// Returns no error at present.
    pub fn view_mut(&mut self) -> Result<TensorMut<'_>, TensorError> {
        let shape = self.shape();
        TensorMut::from_slice(self.elements, shape)
    }

    fn shape(&self) -> [usize; 2] {
        [self.elements.len() / self.plan.row, self.plan.row]
    }
}

impl<T> Deref for Chunk<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.elements
    }
}

impl<T> DerefMut for Chunk<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.elements
    }
}

/// The slots of chunks, for example buffers. A slot is free, is read into, or is ready.
struct Ring<B> {
    state: Mutex<RingState<B>>,
    /// The number of changes of the state. It is incremented under the lock.
    changes: AtomicU64,
    changed: Condvar,
}

struct RingState<B> {
    free: VecDeque<B>,
    take: ReuseOrder,
    next: u64,
    ready: BTreeMap<u64, Result<B, DataError>>,
    over: bool,
}

/// The rule that selects the free buffer for the next read.
#[derive(Clone, Copy, Debug)]
enum ReuseOrder {
    /// The buffer that was computed on last, because it is in the cache.
    Latest,
    /// The buffer that was computed on first, because a device may still use the others.
    #[cfg(feature = "cuda")]
    Oldest,
}

impl<B> Ring<B> {
    fn new(free: impl Into<VecDeque<B>>, take: ReuseOrder) -> Self {
        Self {
            state: Mutex::new(RingState {
                free: free.into(),
                take,
                next: 0,
                ready: BTreeMap::new(),
                over: false,
            }),
            changes: AtomicU64::new(0),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, RingState<B>> {
        // No code of the user runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and wakes the waiting threads.
    fn change(&self, change: impl FnOnce(&mut RingState<B>)) {
        let mut state = self.state();
        change(&mut state);
        self.changes.fetch_add(1, Ordering::Release);
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until the state changes. Reading and computing alternate about every tenth of a millisecond. Sleeping and waking take
    /// a large part of that time, so a thread polls for a while before it sleeps.
    fn wait<'s>(&'s self, state: MutexGuard<'s, RingState<B>>) -> MutexGuard<'s, RingState<B>> {
        let seen = self.changes.load(Ordering::Relaxed);
        drop(state);
        let began = Instant::now();
        while self.changes.load(Ordering::Acquire) == seen && began.elapsed() < PATIENCE {
            std::hint::spin_loop();
        }
        let state = self.state();
        if self.changes.load(Ordering::Relaxed) == seen {
            return self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    fn give(&self, buffer: B) {
        self.change(|state| state.free.push_back(buffer));
    }

    /// Returns a buffer and the number of the chunk to read into it, or `None` if there are no more chunks.
    fn begin(&self, chunks: u64) -> Option<(u64, B)> {
        let mut state = self.state();
        loop {
            if state.over || state.next >= chunks {
                return None;
            }
            // The number and the buffer are taken together, so that an earlier chunk never waits for a buffer that a later chunk
            // has.
            let free = match state.take {
                ReuseOrder::Latest => state.free.pop_back(),
                #[cfg(feature = "cuda")]
                ReuseOrder::Oldest => state.free.pop_front(),
            };
            if let Some(buffer) = free {
                let number = state.next;
                state.next += 1;
                return Some((number, buffer));
            }
            state = self.wait(state);
        }
    }

    fn end(&self, number: u64, outcome: Result<B, DataError>) {
        self.change(|state| {
            state.ready.insert(number, outcome);
        });
    }

    /// Waits for a chunk and returns it, or `None` if its reader panicked.
    fn await_chunk(&self, number: u64) -> Option<Result<B, DataError>> {
        let mut state = self.state();
        loop {
            if let Some(outcome) = state.ready.remove(&number) {
                return Some(outcome);
            }
            if state.over {
                return None;
            }
            state = self.wait(state);
        }
    }
}

/// Ends the other threads when it is dropped, also on a panic.
struct EndOnDrop<'r, B>(&'r Ring<B>);

impl<B> Drop for EndOnDrop<'_, B> {
    fn drop(&mut self) {
        self.0.change(|state| state.over = true);
    }
}

struct ChunkReader<'r, T: Element> {
    plan: &'r Plan,
    data: &'r DataSet<T>,
    prepare: Option<&'r PrepareFn<'r, T>>,
}

impl<T: Element> ChunkReader<'_, T> {
    fn read(&self, number: u64, sieve: &mut Sieve, buffer: &mut Buffer<T>) -> Result<(), DataError> {
        let mut chunk = self.plan.chunk(number, buffer);
        let place = number * self.plan.rows as u64;
        let bytes = bytemuck::cast_slice_mut(&mut *chunk.elements);
        sieve.read(&self.data.files, &self.plan.places, place, bytes)?;
        if let Some(prepare) = self.prepare {
            prepare(&mut chunk);
        }
        Ok(())
    }
}

/// The memory of one chunk, which later chunks reuse.
trait ChunkMemory<T: Element>: Send {
    /// Reads a chunk into it.
    fn read(&mut self, reader: &ChunkReader<'_, T>, number: u64, sieve: &mut Sieve) -> Result<(), DataError>;
}

impl<T: Element> ChunkMemory<T> for Buffer<T> {
    fn read(&mut self, reader: &ChunkReader<'_, T>, number: u64, sieve: &mut Sieve) -> Result<(), DataError> {
        reader.read(number, sieve, self)
    }
}

/// Reads chunks on one thread for each sieve, and passes them to `work` on this thread, in order.
fn in_parallel<T: Element, B: ChunkMemory<T>, E: From<DataError>>(
    reader: &ChunkReader<'_, T>,
    sieves: Vec<Sieve>,
    ring: &Ring<B>,
    clock: &mut ProgressClock<'_>,
    mut work: impl FnMut(u64, &mut B) -> Result<(), E>,
) -> Result<Progress, E> {
    let chunks = reader.plan.chunks;
    let read = &|mut sieve: Sieve| {
        while let Some((number, mut slot)) = ring.begin(chunks) {
            // If `prepare` panics, this guard ends the threads that wait for the chunk.
            let dies = EndOnDrop(ring);
            let outcome = slot.read(reader, number, &mut sieve);
            std::mem::forget(dies);
            ring.end(number, outcome.map(|()| slot));
        }
    };
    thread::scope(|scope| {
        // On every exit this ends the readers, for which the scope waits.
        let _over = EndOnDrop(ring);
        for sieve in sieves {
            scope.spawn(move || read(sieve));
        }
        for number in 0..chunks {
            let began = Instant::now();
            let outcome = ring.await_chunk(number);
            clock.waited(began);
            // A reader panicked. The scope propagates the panic when it ends.
            let Some(outcome) = outcome else { break };
            let mut slot = outcome?;
            work(number, &mut slot)?;
            clock.tick(reader.plan, number);
            ring.give(slot);
        }
        Ok(clock.end())
    })
}

/// Reports the progress of a pass.
struct ProgressClock<'a> {
    began: Instant,
    told: Instant,
    now: Progress,
    tell: Option<(Duration, ProgressCallback<'a>)>,
}

impl<'a> ProgressClock<'a> {
    fn new(plan: &Plan, tell: Option<(Duration, ProgressCallback<'a>)>) -> Self {
        let began = Instant::now();
        Self {
            began,
            told: began,
            now: Progress {
                rows: 0,
                of_rows: plan.places.count(),
                row_bytes: plan.row_bytes,
                elapsed: Duration::ZERO,
                waited: Duration::ZERO,
            },
            tell,
        }
    }

    fn waited(&mut self, since: Instant) {
        self.now.waited += since.elapsed();
    }

    fn tick(&mut self, plan: &Plan, number: u64) {
        self.now.rows += plan.rows_of(number) as u64;
        if let Some((every, tell)) = &mut self.tell
            && self.told.elapsed() >= *every
        {
            self.told = Instant::now();
            self.now.elapsed = self.began.elapsed();
            tell(&self.now);
        }
    }

    fn end(&mut self) -> Progress {
        self.now.elapsed = self.began.elapsed();
        self.now
    }
}
