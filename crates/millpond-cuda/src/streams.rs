//! The streams that a source knows, by the engine's numbers.

use super::device::CudaDevice;
use super::error::{CudaError, insist};
use super::stream::captures;
use super::stream::mark::Mark;
use super::stream::{CudaStream, Handles, RawStream};
use std::sync::{Arc, Weak};

/// Streams that memory was allocated or used on. Each is kept alive as long as its number may stand for it.
///
/// Invariant: a number stands for one stream as long as a handle of that stream exists. The entries here are not handles: a stream without
/// handles counts as gone in all lists that contain it.
#[derive(Debug)]
pub(super) struct Streams {
    device: CudaDevice,
    known: Vec<Known>,
    /// Whether the legacy stream, the first entry, was ever requested. Waiting for it is refused while a stream that synchronises with it
    /// is captured.
    legacy: bool,
    /// Marks of streams of other libraries that may have ended by now. The marks are waited for in place of the streams.
    marks: Vec<Mark>,
    /// The moment at which a stream could not be marked, if there was such a stream, for example because it was captured. Only
    /// a wait for the whole device can tell that the work of that stream is done. Such a wait would invalidate captures that
    /// this library does not know of, so it is left to the program.
    unmarked: Option<u64>,
}

#[derive(Debug)]
struct Known {
    stream: Arc<RawStream>,
    handles: Weak<Handles>,
    /// The latest mark of the stream.
    mark: Option<Mark>,
    /// Whether the stream should have been marked and could not be.
    unmarked: bool,
}

impl Known {
    fn of(stream: &CudaStream) -> Self {
        Self {
            stream: Arc::clone(stream.raw()),
            handles: stream.handles(),
            mark: None,
            unmarked: false,
        }
    }

    /// Marks the present end of the stream, which must be alive. A stream that others capture cannot be marked, and nothing
    /// here marks it later.
    fn mark(&mut self) {
        if self.stream.is_captured_by_others() {
            self.unmarked = true;
            return;
        }
        let mark = match self.mark.take() {
            Some(mark) => Ok(mark),
            None => Mark::new(self.stream.device()),
        };
        let mark = mark.and_then(|mark| insist(|| mark.record_raw(&self.stream)).map(|()| mark));
        match mark {
            Ok(mark) => (self.mark, self.unmarked) = (Some(mark), false),
            // If the stream cannot be marked, wait for it now.
            Err(_) => self.unmarked |= insist(|| self.stream.synchronize()).is_err(),
        }
    }

    /// Returns whether all work of the stream is done and the stream was retired or has no handle any more.
    fn has_ended(&self) -> bool {
        let is_gone = self.stream.is_ours() && self.handles.strong_count() == 0;
        self.stream.is_retired() || is_gone && self.stream.is_idle()
    }
}

impl Streams {
    /// Creates a list with the legacy default stream as the first entry.
    pub(super) fn new(device: &CudaDevice) -> Self {
        Self {
            device: device.clone(),
            known: vec![Known::of(&CudaStream::legacy(device))],
            legacy: false,
            marks: Vec::new(),
            unmarked: None,
        }
    }

    /// Returns the number of a stream. The number of a stream without handles is reused only after its work is complete, because memory
    /// that was freed on the old stream is handed out on the new one at once. This does not wait.
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

    /// Returns the streams that may have used memory, without those that this library captures. The earlier work of those was complete when
    /// the capture began.
    fn used(&self) -> impl Iterator<Item = &RawStream> {
        let known = self.known.iter().skip(usize::from(!self.legacy));
        let streams = known.map(|known| &*known.stream);
        streams.filter(|stream| !captures::is_captured(stream))
    }

    /// Returns whether other libraries capture none of these streams.
    pub(super) fn can_wait(&self) -> bool {
        !self.used().any(RawStream::is_captured_by_others)
    }

    /// Waits for each of these streams.
    ///
    /// # Errors
    /// Returns [`CudaError::Captured`] if another library captures one of them. In that case this does not wait, and the capture continues.
    pub(super) fn synchronize(&self) -> Result<(), CudaError> {
        let _current = self.device.enter_beside()?;
        if !self.can_wait() {
            return Err(CudaError::Captured);
        }
        self.used()
            .try_for_each(|stream| insist(|| stream.synchronize()))?;
        self.marks.iter().try_for_each(|mark| insist(|| mark.wait()))?;
        match self.unmarked {
            Some(moment) if !self.device.waits().ended_since(moment) => Err(CudaError::Captured),
            _ => Ok(()),
        }
    }

    /// Marks a stream of another library that was given work. The stream may end before that work is waited for.
    pub(super) fn mark_others(&mut self, stream: &CudaStream) {
        let mut known = self.known.iter_mut();
        if let Some(known) = known.find(|known| known.stream.is(stream.raw())) {
            // Captured work does not run now. The owner of the graph keeps everything that the graph uses.
            if !known.stream.is_captured_by_others() {
                known.mark();
            }
        }
    }

    /// Prepares for streams of other libraries to end. If `they_live`, the streams are still alive and are marked now.
    /// Otherwise they must already have been [marked](Self::mark_others). The numbers of streams are invalid afterwards.
    pub(super) fn outlive_others(&mut self, they_live: bool) {
        let moment = self.device.waits().now();
        let all = std::mem::take(&mut self.known);
        let (stay, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|known| known.stream.stays());
        self.known = stay;
        for mut known in others {
            if they_live && !captures::is_captured(&known.stream) {
                known.mark();
            }
            if known.unmarked {
                self.unmarked = Some(moment);
            }
            self.marks.extend(known.mark);
        }
    }

    /// Returns the stream of a number and notes that it is used from now on. If no stream has the number, returns the first.
    pub(super) fn used_as(&mut self, number: u32) -> Arc<RawStream> {
        let known = self.known.get(number as usize).unwrap_or(&self.known[0]);
        let stream = Arc::clone(&known.stream);
        self.legacy |= stream.is(&self.known[0].stream);
        stream
    }

    /// Returns whether all of these streams have completed their work. Returns `false` if one of them is captured.
    pub(super) fn are_idle(&self) -> bool {
        let mut used = self.known.iter().skip(usize::from(!self.legacy));
        used.all(|known| known.stream.is_idle())
            && self.marks.iter().all(|mark| mark.is_past().unwrap_or(false))
            && self
                .unmarked
                .is_none_or(|moment| self.device.waits().ended_since(moment))
    }

    /// Returns the stream of a number, if there is one.
    pub(super) fn stream(&self, number: u32) -> Option<&RawStream> {
        self.known.get(number as usize).map(|known| &*known.stream)
    }
}
