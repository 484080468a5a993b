//! The streams a source knows, by the engine's numbers.

use super::abi::{NOT_READY, StreamHandle};
use super::device::CudaDevice;
use super::error::{CudaError, insist};
use super::graph;
use super::stream::CudaStream;

/// Streams that have asked for memory or used it. Each is kept alive for as long as its number may stand for it.
#[derive(Debug)]
pub(super) struct Streams {
    known: Vec<CudaStream>,
    /// Whether the first was ever asked for: waiting for it is refused where a stream that goes with it is captured.
    legacy: bool,
}

impl Streams {
    /// The legacy default stream is the first.
    pub(super) fn new(device: &CudaDevice) -> Self {
        Self {
            known: vec![CudaStream::legacy(device)],
            legacy: false,
        }
    }

    /// The number of a stream. That of one which nobody has any more is given on, once its work is done: what was freed on it
    /// would be handed out on the other at once.
    pub(super) fn number_of(&mut self, stream: &CudaStream) -> u32 {
        let known = self.known.iter().position(|known| known == stream);
        let number = known.unwrap_or_else(|| {
            let mut ended = self.known.iter().enumerate().skip(1);
            let ended = ended.find(|(_, known)| known.is_last() && known.synchronize().is_ok());
            match ended.map(|(number, _)| number) {
                Some(number) => {
                    self.known[number] = stream.clone();
                    number
                }
                None => {
                    self.known.push(stream.clone());
                    self.known.len() - 1
                }
            }
        });
        self.legacy |= number == 0;
        u32::try_from(number).unwrap_or(u32::MAX)
    }

    /// Waits for each of them but those that we capture, which had done all their work by then.
    pub(super) fn synchronize(&self) -> Result<(), CudaError> {
        for stream in self.known.iter().skip(usize::from(!self.legacy)) {
            if !graph::is_captured(stream) {
                insist(|| stream.synchronize())?;
            }
        }
        Ok(())
    }

    /// Whether all of them have done their work; of one that is captured nobody can say.
    pub(super) fn are_idle(&self) -> bool {
        let mut used = self.known.iter().skip(usize::from(!self.legacy));
        used.all(|stream| is_idle(stream).unwrap_or(false))
    }

    /// The stream of a number, if it has asked for something.
    pub(super) fn stream(&self, number: u32) -> Option<&CudaStream> {
        self.known.get(number as usize)
    }

    /// The driver's stream of a number.
    pub(super) fn handle(&self, number: u32) -> StreamHandle {
        self.stream(number).map_or(StreamHandle::NULL, CudaStream::handle)
    }
}

/// Whether a stream has done its work. One that is captured is not asked, as that would spoil the capture.
fn is_idle(stream: &CudaStream) -> Result<bool, CudaError> {
    if stream.is_capturing()? {
        return Ok(false);
    }
    let _current = stream.device().enter()?;
    // SAFETY: the stream lives.
    match unsafe { stream.device().driver().stream_query(stream.handle()) } {
        Ok(()) => Ok(true),
        Err(CudaError::Driver { code: NOT_READY, .. }) => Ok(false),
        Err(error) => Err(error),
    }
}
