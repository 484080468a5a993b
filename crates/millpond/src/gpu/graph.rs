//! Graphs: work that is captured from a stream once, and launched as a whole.

use super::abi::{CAPTURE_RELAXED, ExecutableHandle, GraphHandle};
use super::device::CudaDevice;
use super::error::{CudaError, insist};
use super::fork;
use super::later;
use super::pool::DevicePool;
use super::stream::{CudaStream, RawStream};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A stream that is captured. It had done all its work when that began.
struct Captured {
    stream: CudaStream,
    /// Serves it meanwhile.
    pool: DevicePool,
    /// Whether the capture began on it, or it has joined.
    began: bool,
}

/// Streams that are captured; and how many, to be looked at without a lock.
static CAPTURED: Mutex<Vec<Captured>> = Mutex::new(Vec::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn captured() -> MutexGuard<'static, Vec<Captured>> {
    CAPTURED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn add(stream: &CudaStream, pool: &DevicePool, began: bool) {
    COUNT.fetch_add(1, Ordering::AcqRel);
    captured().push(Captured {
        stream: stream.clone(),
        pool: pool.clone(),
        began,
    });
}

/// The capture with this memory is over.
fn forget(pool: &DevicePool) {
    if fork::is_forked() {
        return;
    }
    let mut captured = captured();
    let all = std::mem::take(&mut *captured);
    let (gone, stay): (Vec<_>, Vec<_>) = all.into_iter().partition(|of| of.pool == *pool);
    *captured = stay;
    drop(captured);
    COUNT.fetch_sub(gone.len(), Ordering::AcqRel);
    drop(gone);
    later::retry();
}

/// A stream is about to wait for another one: where that is captured it joins, and must have done all its work before. Answers
/// whether it does.
pub(super) fn joins(stream: &CudaStream, other: &CudaStream) -> Result<bool, CudaError> {
    if !are_captured() || is_captured(stream.raw()) || !is_captured(other.raw()) {
        return Ok(false);
    }
    stream.synchronize()?;
    let mut captured = captured();
    // It may be over by now.
    let pool = captured.iter().find(|of| of.stream == *other);
    let pool = pool.map(|of| of.pool.clone());
    let joins = pool.is_some();
    if let Some(pool) = pool {
        COUNT.fetch_add(1, Ordering::AcqRel);
        captured.push(Captured {
            stream: stream.clone(),
            pool,
            began: false,
        });
    }
    Ok(joins)
}

/// A stream that was about to join could not.
pub(super) fn stays_out(stream: &CudaStream) {
    let mut captured = captured();
    if let Some(at) = captured.iter().position(|of| of.stream == *stream && !of.began) {
        let out = captured.remove(at);
        drop(captured);
        COUNT.fetch_sub(1, Ordering::AcqRel);
        drop(out);
    }
}

/// Whether any goes on: nothing else is asked while none does.
#[inline]
pub(super) fn are_captured() -> bool {
    COUNT.load(Ordering::Acquire) > 0 && !fork::is_forked()
}

/// Returns whether this library captures any stream of the device.
pub(super) fn are_captured_on(device: &CudaDevice) -> bool {
    are_captured()
        && captured()
            .iter()
            .any(|of| of.stream.device().number() == device.number())
}

/// Whether this stream is captured by us. The driver is asked as well: a capture can end, or be spoilt, before we know.
pub(super) fn is_captured(stream: &RawStream) -> bool {
    if !are_captured() {
        return false;
    }
    // The driver is not called under the lock.
    let known = captured().iter().any(|of| of.stream.raw().is(stream));
    known && stream.is_capturing().unwrap_or(true)
}

/// The pool that serves a stream while it is captured.
///
/// # Errors
/// [`CudaError::Capturing`] of a stream that takes part in a capture which began on another one.
pub(super) fn pool_of(stream: &CudaStream) -> Result<Option<DevicePool>, CudaError> {
    let found = {
        let captured = captured();
        let found = captured.iter().find(|of| of.stream == *stream);
        found.map(|of| (of.pool.clone(), of.began))
    };
    match found {
        Some((pool, true)) => Ok(Some(pool)),
        None if !stream.is_capturing()? => Ok(None),
        Some((_, false)) | None => Err(CudaError::Capturing),
    }
}

/// Work of a stream that is being captured: what is put on the stream is not done but written down, for a [`CudaGraph`].
///
/// Whatever pool of the device is asked for memory on that stream meanwhile, the capture serves from memory of its own,
/// within the limits and budgets of the pool it was [begun](DevicePool::capture) with. A block that is given back serves the next
/// request at once, and never leaves the graph: launched again and again it finds its addresses where they were. Pools go
/// on serving other streams, and wait for these alone.
///
/// Dropped, it ends the capture and forgets it.
#[must_use = "dropped, the capture is forgotten"]
pub struct Capture {
    stream: CudaStream,
    pool: DevicePool,
    /// None once it has ended.
    goes_on: bool,
}

impl DevicePool {
    /// Begins to capture what is put on a stream, after waiting until that has done what it was given. The stream is not to be the
    /// legacy default one. Streams that [wait](CudaStream::wait_for) for it while it is captured take part, once they have done what
    /// they were given, until the end; it has to wait for them before that.
    ///
    /// Pools know of captures that begin here. Of those that others begin they ask the driver when they would have to wait for a
    /// stream: while others capture one that has used their memory they keep what they have, and refuse whoever would need more
    /// ([`SourceError::Held`](millpond_engine::SourceError::Held)). They spoil no capture.
    ///
    /// ```
    /// use millpond::cuda::{CudaDevice, CudaError, CudaStream, DevicePool};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let device = match CudaDevice::get(0) {
    ///     Err(CudaError::NoDriver) => return Ok(()),
    ///     device => device?,
    /// };
    /// let (pool, stream) = (DevicePool::new(&device)?, CudaStream::new(&device)?);
    /// let input = pool.alloc_from(&[1.0f32, 2.0], &stream)?;
    ///
    /// let capture = pool.capture(&stream)?;
    /// let mut output = pool.alloc::<f32>(2, &stream)?; // from the graph's memory
    /// output.copy_from(&input)?;
    /// let graph = capture.end()?;
    ///
    /// // SAFETY: what the work was captured with is still there.
    /// unsafe { graph.launch(&stream) }?;
    /// assert_eq!(output.to_vec()?, [1.0, 2.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// What the driver says; and [`CudaError::Capturing`] if the stream is captured already.
    pub fn capture(&self, stream: &CudaStream) -> Result<Capture, CudaError> {
        stream.expect_on(self.device())?;
        if stream.is_capturing()? {
            return Err(CudaError::Capturing);
        }
        let pool = self.for_graph()?;
        {
            let device = self.device();
            let _current = device.enter()?;
            // Known before the capture begins: no pool is to wait for the stream then.
            add(stream, &pool, true);
            // From here on nobody can wait for it.
            let begun = stream.synchronize().and_then(|()| {
                // SAFETY: the stream lives.
                unsafe {
                    device
                        .driver()
                        .stream_begin_capture(stream.handle(), CAPTURE_RELAXED)
                }
            });
            if let Err(error) = begun {
                forget(&pool);
                return Err(error);
            }
        }
        Ok(Capture {
            stream: stream.clone(),
            pool,
            goes_on: true,
        })
    }
}

impl Capture {
    /// The stream that is captured.
    #[must_use]
    pub fn stream(&self) -> &CudaStream {
        &self.stream
    }

    /// The pool of the graph's own memory.
    #[must_use]
    pub fn pool(&self) -> &DevicePool {
        &self.pool
    }

    /// Ends it, and makes what was captured ready to be launched.
    ///
    /// # Errors
    /// What the driver says: also of something that may not be done while a stream is captured, such as waiting for it. The
    /// capture is over then, and the graph's memory goes back with the last buffer of it.
    pub fn end(mut self) -> Result<CudaGraph, CudaError> {
        let graph = self.stop()?;
        let device = self.stream.device();
        let _current = device.enter_beside()?;
        let mut handle = ExecutableHandle::NULL;
        // SAFETY: the pointer is to a local, the graph ours.
        let made = unsafe { device.driver().graph_instantiate(&raw mut handle, graph, 0) };
        destroy(device, graph);
        made?;
        Ok(CudaGraph {
            handle,
            pool: self.pool.clone(),
            _stream: self.stream.clone(),
        })
    }

    /// Ends the capture: the graph is the caller's.
    fn stop(&mut self) -> Result<GraphHandle, CudaError> {
        self.goes_on = false;
        let device = self.stream.device();
        let mut graph = GraphHandle::NULL;
        let ended = device.enter().and_then(|_current| {
            // The first call ends the capture, whatever it returns. A second call could end a capture that somebody else has
            // begun on the stream since then.
            // SAFETY: the pointer is to a local, the stream lives.
            unsafe {
                device
                    .driver()
                    .stream_end_capture(self.stream.handle(), &raw mut graph)
            }
        });
        forget(&self.pool);
        ended.map(|()| graph)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if self.goes_on
            && let Ok(graph) = self.stop()
            && let Ok(_current) = self.stream.device().enter_beside()
        {
            destroy(self.stream.device(), graph);
        }
    }
}

fn destroy(device: &CudaDevice, graph: GraphHandle) {
    if graph != GraphHandle::NULL {
        // One that the driver will not have back goes with the context.
        // SAFETY: the graph is ours, and forgotten by the caller.
        let _ = insist(|| unsafe { device.driver().graph_destroy(graph) });
    }
}

/// Captured work, ready to be launched as a whole. Owns the memory that was asked for while it was captured, for as long as it
/// lives: buffers of that may be dropped, and read after a launch if they were not.
pub struct CudaGraph {
    /// Invariant: the driver's, ours, of the device of the pool.
    handle: ExecutableHandle,
    pool: DevicePool,
    /// Keeps the device's own kernels loaded, some of which it may have.
    _stream: CudaStream,
}

// SAFETY: the driver takes the handle from any thread; launches are ordered by their streams, and it keeps two launches of one
// graph apart.
unsafe impl Send for CudaGraph {}
// SAFETY: as above.
unsafe impl Sync for CudaGraph {}

impl CudaGraph {
    /// Has the stream do the work, after what it has to do by now; does not wait for it.
    ///
    /// # Safety
    /// What the captured work uses, and was not asked for while it was captured, is still there and may be used in the order of this
    /// stream until the work is done: buffers that were read and written by it, [queues](super::CudaQueue) of tensors that were summed
    /// or multiplied, and modules of kernels that were launched.
    ///
    /// # Errors
    /// Where the stream is another device's, and what the driver says.
    pub unsafe fn launch(&self, stream: &CudaStream) -> Result<(), CudaError> {
        let device = self.pool.device();
        stream.expect_on(device)?;
        // Whoever gives its memory back waits for this stream too.
        self.pool.note_stream(stream)?;
        let _current = device.enter()?;
        // SAFETY: the graph is ours by the invariant; of the memory the caller says so.
        unsafe { device.driver().graph_launch(self.handle, stream.handle()) }
    }

    /// The pool of its own memory: how much that is, and who holds it.
    #[must_use]
    pub fn pool(&self) -> &DevicePool {
        &self.pool
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        let device = self.pool.device();
        // Its memory is given back only after the device was waited for: by whoever has it last.
        if let Ok(_current) = device.enter_beside() {
            // SAFETY: ours by the invariant, and nobody has it any more. The driver ends it when it has been done.
            let _ = insist(|| unsafe { device.driver().executable_destroy(self.handle) });
        }
    }
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture")
            .field("stream", &self.stream)
            .field("pool", &self.pool)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for CudaGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaGraph")
            .field("pool", &self.pool)
            .finish_non_exhaustive()
    }
}
