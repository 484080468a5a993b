//! Measures the time that work on a stream takes.

use super::error::CudaError;
use super::stream::CudaStream;
use super::stream::mark::Mark;
use std::time::Duration;

/// Measures the time that work on a stream takes, by the device's clock with a resolution of half a microsecond. On the emulated driver it
/// is the modelled time.
///
/// ```
/// use millpond::cuda::{CudaDevice, CudaError, CudaStream, CudaTimer, DevicePool};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let device = match CudaDevice::get(0) {
/// #     Err(CudaError::NoDriver) => return Ok(()),
/// #     device => device?,
/// # };
/// let (pool, stream) = (DevicePool::new(&device)?, CudaStream::new(&device)?);
/// let mut buffer = pool.alloc::<f32>(1 << 20, &stream)?;
/// let timer = CudaTimer::start(&stream)?;
/// buffer.fill_zero()?;
/// println!("4 MiB are zero after {:?}", timer.stop()?);
/// # Ok(())
/// # }
/// ```
#[must_use = "`stop` returns the time"]
pub struct CudaTimer {
    begin: Mark,
    stream: CudaStream,
}

impl CudaTimer {
    /// Starts the measurement at the present end of the stream's work.
    ///
    /// # Errors
    /// Returns the errors of the driver.
    pub fn start(stream: &CudaStream) -> Result<Self, CudaError> {
        let begin = Mark::timed(stream.device())?;
        begin.record(stream)?;
        Ok(Self {
            begin,
            stream: stream.clone(),
        })
    }

    /// Returns the time until the present end of the stream's work, after waiting for it.
    ///
    /// # Errors
    /// Returns the errors of the driver.
    pub fn stop(self) -> Result<Duration, CudaError> {
        let end = Mark::timed(self.stream.device())?;
        end.record(&self.stream)?;
        end.wait()?;
        let milliseconds = end.milliseconds_since(&self.begin)?;
        Ok(Duration::from_secs_f32(milliseconds.max(0.0) / 1e3))
    }
}

impl std::fmt::Debug for CudaTimer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaTimer")
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}
