//! The streams a source knows, by the engine's numbers.

use super::device::CudaDevice;
use super::error::{CudaError, insist};
use super::graph;
use super::stream::{CudaStream, Handles, RawStream};
use std::sync::{Arc, Weak};

/// Streams that have asked for memory or used it. Each is kept alive for as long as its number may stand for it.
///
/// Invariant: a number stands for one stream as long as anybody has a handle of that. What is kept here is no handle: a stream that
/// several of these know has ended for all of them once nobody else has it.
#[derive(Debug)]
pub(super) struct Streams {
    device: CudaDevice,
    known: Vec<Known>,
    /// Whether the first was ever asked for: waiting for it is refused where a stream that goes with it is captured.
    legacy: bool,
    /// Whether there were others' streams that may be gone by now: the device as a whole is waited for in their place.
    whole: bool,
}

#[derive(Debug)]
struct Known {
    stream: Arc<RawStream>,
    handles: Weak<Handles>,
}

impl Known {
    fn of(stream: &CudaStream) -> Self {
        Self {
            stream: Arc::clone(stream.raw()),
            handles: stream.handles(),
        }
    }

    /// Whether nobody has a handle of it, or it was retired, and all its work is done.
    fn has_ended(&self) -> bool {
        let is_gone = self.stream.is_ours() && self.handles.strong_count() == 0;
        self.stream.is_retired() || is_gone && self.stream.is_idle()
    }
}

impl Streams {
    /// The legacy default stream is the first.
    pub(super) fn new(device: &CudaDevice) -> Self {
        Self {
            device: device.clone(),
            known: vec![Known::of(&CudaStream::legacy(device))],
            legacy: false,
            whole: false,
        }
    }

    /// The number of a stream. That of one which nobody has any more is given on, once its work is done: what was freed on it
    /// would be handed out on the other at once. Nothing is waited for.
    pub(super) fn number_of(&mut self, stream: &CudaStream) -> u32 {
        let known = self.known.iter().position(|known| known.stream.is(stream.raw()));
        let number = known.unwrap_or_else(|| self.add(stream));
        self.legacy |= number == 0;
        u32::try_from(number).unwrap_or(u32::MAX)
    }

    fn add(&mut self, stream: &CudaStream) -> usize {
        let mut others = self.known.iter().enumerate().skip(1);
        match others.find(|(_, known)| known.has_ended()) {
            Some((number, _)) => {
                self.known[number] = Known::of(stream);
                number
            }
            None => {
                self.known.push(Known::of(stream));
                self.known.len() - 1
            }
        }
    }

    /// Those that may have used memory, but for what we capture: that had done all its work by then.
    fn used(&self) -> impl Iterator<Item = &RawStream> {
        let known = self.known.iter().skip(usize::from(!self.legacy));
        let streams = known.map(|known| &*known.stream);
        streams.filter(|stream| !graph::is_captured(stream))
    }

    /// Whether others capture none of them.
    pub(super) fn can_wait(&self) -> bool {
        !self.used().any(RawStream::is_captured_by_others)
    }

    /// Waits for each of them.
    ///
    /// # Errors
    /// [`CudaError::Captured`] where others capture one: nothing was waited for then, and their capture goes on.
    pub(super) fn synchronize(&self) -> Result<(), CudaError> {
        let _current = self.device.enter_beside()?;
        if !self.can_wait() {
            return Err(CudaError::Captured);
        }
        if self.whole {
            return insist(|| self.device.synchronize());
        }
        self.used().try_for_each(|stream| insist(|| stream.synchronize()))
    }

    /// From now on others' streams may end. Numbers stand for nothing any more.
    pub(super) fn outlive_others(&mut self) {
        let known = self.known.len();
        self.known.retain(|known| known.stream.stays());
        self.whole |= self.known.len() < known;
    }

    /// The stream of a number, which is used from now on; the first where none has that number.
    pub(super) fn used_as(&mut self, number: u32) -> Arc<RawStream> {
        let known = self.known.get(number as usize).unwrap_or(&self.known[0]);
        let stream = Arc::clone(&known.stream);
        self.legacy |= stream.is(&self.known[0].stream);
        stream
    }

    /// Whether all of them have done their work; of one that is captured nobody can say.
    pub(super) fn are_idle(&self) -> bool {
        let mut used = self.known.iter().skip(usize::from(!self.legacy));
        used.all(|known| known.stream.is_idle())
    }

    /// The stream of a number, if it has asked for something.
    pub(super) fn stream(&self, number: u32) -> Option<&RawStream> {
        self.known.get(number as usize).map(|known| &*known.stream)
    }
}
