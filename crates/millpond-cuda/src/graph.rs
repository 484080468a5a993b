//! Graphs: work that is captured from a stream once and launched as a whole.

use super::abi::{CAPTURE_RELAXED, ExecutableHandle, GraphHandle};
use super::device::CudaDevice;
use super::error::{CudaError, insist};
use super::pool::DevicePool;
use super::stream::{CudaStream, captures};
use std::fmt;

/// The capture of a stream. Work that is queued on the stream is not run but recorded for a [`CudaGraph`].
///
/// During the capture, requests to any pool of the device on that stream are served from the capture's own memory, within the limits and
/// budgets of the pool that [began](DevicePool::capture) it. A freed block serves the next request at once and never leaves the graph, so
/// each launch of the graph finds the same addresses. Pools continue to serve other streams, and wait only for these.
///
/// Dropping this value ends the capture and discards it.
#[must_use = "dropping it ends the capture and discards it"]
pub struct Capture {
    stream: CudaStream,
    pool: DevicePool,
    /// Whether the capture is still in progress.
    goes_on: bool,
}

impl DevicePool {
    /// Begins to capture a stream, after waiting until its earlier work is complete. The stream must not be the legacy default stream.
    /// Streams that [wait](CudaStream::wait_for) for it during the capture take part until the end, after their earlier work is complete.
    /// The captured stream must wait for them before the end.
    ///
    /// Pools know the captures that begin here. They detect captures by other libraries by querying the driver before they wait for a
    /// stream. While another library captures a stream that has used their memory, they give no memory back, and refuse requests that need
    /// more ([`SourceError::Held`](millpond_engine::SourceError::Held)). They never invalidate a capture.
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
    /// Returns [`CudaError::Capturing`] if the stream is captured already, and the errors of the driver.
    pub fn capture(&self, stream: &CudaStream) -> Result<Capture, CudaError> {
        stream.expect_on(self.device())?;
        if stream.is_capturing()? {
            return Err(CudaError::Capturing);
        }
        let pool = self.for_graph()?;
        {
            let device = self.device();
            let _current = device.enter()?;
            // The stream is registered before the capture begins, because no pool may wait for it from then on.
            captures::add(stream, pool.id());
            // The stream cannot be waited for during the capture, so this waits now.
            let begun = stream.synchronize().and_then(|()| {
                // SAFETY: the stream lives.
                unsafe {
                    device
                        .driver()
                        .stream_begin_capture(stream.handle(), CAPTURE_RELAXED)
                }
            });
            if let Err(error) = begun {
                captures::forget(pool.id());
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
    /// Returns the captured stream.
    #[must_use]
    pub fn stream(&self) -> &CudaStream {
        &self.stream
    }

    /// Returns the pool of the graph's own memory.
    #[must_use]
    pub fn pool(&self) -> &DevicePool {
        &self.pool
    }

    /// Ends the capture and makes the graph ready to be launched.
    ///
    /// # Errors
    /// Returns the errors of the driver, including those for calls that are not allowed during a capture, for example waiting for the
    /// stream. After an error, the capture has ended, and the graph's memory is freed with its last buffer.
    pub fn end(mut self) -> Result<CudaGraph, CudaError> {
        let graph = self.stop()?;
        let device = self.stream.device();
        let _current = device.enter_beside()?;
        let mut handle = ExecutableHandle::NULL;
        // SAFETY: the pointer is to a local, and the graph is ours.
        let made = unsafe { device.driver().graph_instantiate(&raw mut handle, graph, 0) };
        destroy(device, graph);
        made?;
        Ok(CudaGraph {
            handle,
            pool: self.pool.clone(),
            _stream: self.stream.clone(),
        })
    }

    /// Ends the capture. The caller owns the returned graph.
    fn stop(&mut self) -> Result<GraphHandle, CudaError> {
        self.goes_on = false;
        let device = self.stream.device();
        let mut graph = GraphHandle::NULL;
        let ended = device.enter().and_then(|_current| {
            // The first call ends the capture, whatever it returns. A second call could end a capture that other code has begun on the
            // stream since then.
            // SAFETY: the pointer is to a local, and the stream lives.
            unsafe {
                device
                    .driver()
                    .stream_end_capture(self.stream.handle(), &raw mut graph)
            }
        });
        captures::forget(self.pool.id());
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
        // If the driver refuses, the graph is freed with the context.
        // SAFETY: the graph is ours, and the caller does not use it again.
        let _ = insist(|| unsafe { device.driver().graph_destroy(graph) });
    }
}

/// Captured work that can be launched as a whole. It owns the memory that was allocated during the capture. Buffers of that memory may be
/// dropped; buffers that are kept can be read after a launch.
pub struct CudaGraph {
    /// Invariant: the handle is a live executable graph of the driver on the pool's device, and this value owns it.
    handle: ExecutableHandle,
    pool: DevicePool,
    /// Keeps the device's own kernels loaded, because the graph may contain some of them.
    _stream: CudaStream,
}

// SAFETY: the driver takes the handle from any thread. Launches are ordered by their streams, and the driver does not run two launches of
// one graph at the same time.
unsafe impl Send for CudaGraph {}
// SAFETY: as above.
unsafe impl Sync for CudaGraph {}

impl CudaGraph {
    /// Queues the graph's work on a stream, and does not wait for it.
    ///
    /// # Safety
    /// Everything that the captured work uses and that was not allocated during the capture must still exist, and must be usable in the
    /// order of this stream until the work is complete. This includes buffers that the work reads and writes, [queues](super::CudaQueue) of
    /// tensors that were summed or multiplied, and modules of launched kernels.
    ///
    /// # Errors
    /// Returns an error if the stream belongs to another device, and the errors of the driver.
    pub unsafe fn launch(&self, stream: &CudaStream) -> Result<(), CudaError> {
        let device = self.pool.device();
        stream.expect_on(device)?;
        // The pool waits for this stream too before it gives memory back.
        self.pool.note_stream(stream)?;
        let _current = device.enter()?;
        // SAFETY: the graph is ours by the invariant. The caller guarantees the rest of the memory.
        unsafe { device.driver().graph_launch(self.handle, stream.handle()) }
    }

    /// Returns the pool of the graph's own memory, which shows its size and its users.
    #[must_use]
    pub fn pool(&self) -> &DevicePool {
        &self.pool
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        let device = self.pool.device();
        // The last owner of the graph's memory waits for the device before it gives the memory back.
        if let Ok(_current) = device.enter_beside() {
            // SAFETY: the graph is ours by the invariant, and it is not used any more. The driver destroys it after its work.
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
