//! The streams a source knows, by the engine's numbers.

use super::abi::StreamHandle;
use super::device::CudaDevice;
use super::stream::CudaStream;

/// Streams that have asked for memory or used it. Each is kept alive for as long as its number may stand for it.
#[derive(Debug)]
pub(super) struct Streams(Vec<CudaStream>);

impl Streams {
    /// The legacy default stream is the first.
    pub(super) fn new(device: &CudaDevice) -> Self {
        Self(vec![CudaStream::legacy(device)])
    }

    /// The number of a stream. That of one which nobody has any more is given on, once its work is done: what was freed on it
    /// would be handed out on the other at once.
    pub(super) fn number_of(&mut self, stream: &CudaStream) -> u32 {
        let known = self.0.iter().position(|known| known == stream);
        let number = known.unwrap_or_else(|| {
            let mut ended = self.0.iter().enumerate().skip(1);
            let ended = ended.find(|(_, known)| known.is_last() && known.synchronize().is_ok());
            match ended.map(|(number, _)| number) {
                Some(number) => {
                    self.0[number] = stream.clone();
                    number
                }
                None => {
                    self.0.push(stream.clone());
                    self.0.len() - 1
                }
            }
        });
        u32::try_from(number).unwrap_or(u32::MAX)
    }

    /// The stream of a number.
    pub(super) fn handle(&self, number: u32) -> StreamHandle {
        let stream = self.0.get(number as usize);
        stream.map_or(StreamHandle::NULL, CudaStream::handle)
    }
}
