//! Performs queued work on the calling thread, with no lock held.

use super::Shared;
use crate::error::{Answer, Code};
use crate::event_page::Outcome;
use crate::memory::os::{self, Span};
use crate::thread;
use crate::work::action::{Action, Callback, Rows, Side};

impl Shared {
    /// Performs a piece of work for a device. `failed` is the error of its context, if there is one.
    pub(super) fn perform(&self, action: &Action, device: u32, failed: Option<Code>) -> Answer {
        match action {
            Action::Nothing => Ok(()),
            Action::Fill {
                to,
                pattern,
                size,
                rows,
            } => {
                let pattern = &pattern[..usize::from(*size)];
                self.state()
                    .memory
                    .touch(*to, rows.extent_written()?, device, true);
                for (offset, _) in rows.offsets() {
                    let spans = self.state().memory.resolve(to + offset, rows.width)?;
                    os::fill(&spans, pattern);
                }
                Ok(())
            }
            Action::Copy { to, from, rows } => {
                // Contiguous rows are copied as one.
                let dense = rows.extent_written()? == rows.bytes() && rows.extent_read()? == rows.bytes();
                let rows = if dense { Rows::one(rows.bytes()) } else { *rows };
                for (to_offset, from_offset) in rows.offsets() {
                    let to = self.spans(to, to_offset, rows.width)?;
                    let from = self.spans(from, from_offset, rows.width)?;
                    os::copy(&to, &from);
                }
                Ok(())
            }
            Action::Kernel(launch) => launch.run(&|at, len, write| {
                let mut state = self.state();
                state.memory.touch(at, len, device, write);
                state.reach(at, len, device)
            }),
            Action::Prefetch { at, len, place } => self.state().memory.prefetch(*at, *len, *place),
            Action::Call(callback) => {
                thread::in_callback(|| call(*callback, failed));
                Ok(())
            }
            Action::Tell(ticket) => {
                ticket.tell();
                Ok(())
            }
            Action::Await(awaited) => match awaited.outcome() {
                Outcome::Done => Ok(()),
                Outcome::Open | Outcome::Lost => Err(Code::EXTERNAL_DEVICE),
            },
        }
    }

    /// Returns the bytes of a part of one end of a copy.
    fn spans(&self, side: &Side, offset: u64, len: u64) -> Answer<Vec<Span>> {
        match side {
            Side::Known(at) => self
                .state()
                .memory
                .resolve(at.checked_add(offset).ok_or(Code::ILLEGAL_ADDRESS)?, len),
            // SAFETY: the client that queued the work is responsible for the memory, as with the real driver.
            Side::Host(at) => Ok(vec![unsafe { Span::host(at + offset as usize, len as usize) }]),
            // SAFETY: the snapshot is as long as the copy, lives as long as the action, and is only read.
            Side::Snapshot(bytes) => Ok(vec![unsafe {
                Span::host(
                    bytes.as_ptr().expose_provenance() + offset as usize,
                    (len as usize).min(bytes.len()),
                )
            }]),
        }
    }
}

/// A client's function for the end of a context. It gets the context, and the key and the value that the client keeps in it.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct EndOfContext(unsafe extern "C" fn(u64, usize, usize));

impl EndOfContext {
    pub(super) fn call(self, context: u64, key: usize, value: usize) {
        // SAFETY: the client passed the function with the key and the value, to be called when the context ends.
        unsafe { self.0(context, key, value) }
    }
}

/// Calls a function of the client. After an error of the context, a function of `cuLaunchHostFunc` is not called, and a function of
/// `cuStreamAddCallback` receives the error.
fn call(callback: Callback, failed: Option<Code>) {
    match callback {
        Callback::Host { .. } if failed.is_some() => {}
        Callback::Host { function, data } => {
            // SAFETY: the client passed function and data together, to be called once in the order of the stream.
            unsafe { function(data) };
        }
        Callback::Stream {
            function,
            stream,
            data,
        } => {
            // SAFETY: as above.
            unsafe { function(stream, failed.map_or(0, |code| code.0), data) };
        }
    }
}
