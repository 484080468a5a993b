//! Recordings of all pools, and snapshots of them.

use crate::arguments::{Growing, Out, OutStruct, text};
use crate::handles::{self, Kind, Object, millpond_recording};
use crate::status::{Failure, guard, millpond_status};
use millpond::Recorder;
use std::ffi::c_char;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

/// The contents of a recording.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct millpond_recording_report {
    /// The size of this structure in bytes, which the caller sets.
    pub size: usize,
    /// The number of events in the file.
    pub events: u64,
    /// The number of events that were lost because the file was too slow.
    pub lost: u64,
    /// The bytes of the file.
    pub bytes: u64,
}

// SAFETY: it is `repr(C)` without padding, begins with its size, and zeros are values.
unsafe impl Growing for millpond_recording_report {}

/// Starts a recording of all pools of the process to a new file, such as "run.mpr". A process has one recording at a time. End it with
/// `millpond_recording_stop`. The environment variable `MILLPOND_RECORD` records a program without a call.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT`, `MILLPOND_IN_USE`, `MILLPOND_SYSTEM_ERROR` if the file cannot be written.
///
/// # Safety
/// The rules on arguments apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_recording_start(
    path: *const c_char,
    recording: *mut *mut millpond_recording,
) -> millpond_status {
    guard(|| {
        // SAFETY: the caller guarantees it.
        let out = unsafe { Out::new(recording, "recording") }?;
        // SAFETY: the caller guarantees it.
        let recorder = Recorder::start(unsafe { text(path, "path") }?)?;
        let recording = Object::Recording(Arc::new(Mutex::new(Some(recorder))));
        out.set(ptr::without_provenance_mut(handles::add_object(recording)?));
        Ok(())
    })
}

/// Ends a recording when its file is complete. The handle is invalid afterwards, even if this fails. `report` may be null.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT`, `MILLPOND_INVALID_HANDLE`, `MILLPOND_SYSTEM_ERROR` if the file is incomplete.
///
/// # Safety
/// The rules on arguments apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_recording_stop(
    recording: *mut millpond_recording,
    report: *mut millpond_recording_report,
) -> millpond_status {
    guard(|| {
        let out = match report.is_null() {
            true => None,
            // SAFETY: the caller guarantees it.
            false => Some(unsafe { OutStruct::new(report, "report") }?),
        };
        let Object::Recording(recorder) = handles::remove(recording.addr(), Kind::Recording)? else {
            return Err(Failure::argument(
                "the handle is not a recording: pass a recording",
            ));
        };
        let recorder = recorder.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(recorder) = recorder else { return Ok(()) };
        let done = recorder.stop()?;
        if let Some(out) = out {
            out.set(&millpond_recording_report {
                size: size_of::<millpond_recording_report>(),
                events: done.events,
                lost: done.lost,
                bytes: done.bytes,
            });
        }
        Ok(())
    })
}

/// Marks this moment with a text in the recording of the process, if there is one.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT`.
///
/// # Safety
/// The rules on arguments apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_mark(name: *const c_char) -> millpond_status {
    guard(|| {
        // SAFETY: the caller guarantees it.
        millpond::mark(unsafe { text(name, "name") }?);
        Ok(())
    })
}

/// Marks the beginning of a step, such as a training step, in the recording of the process, if there is one. The command `millpond` compares
/// and plans steps.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_step(number: u64) -> millpond_status {
    guard(|| {
        millpond::step(number);
        Ok(())
    })
}

/// Writes all live blocks of all pools to a file, which the command `millpond report` reads. Pools with the setting `track:all` have names
/// and ages of their blocks.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT`, `MILLPOND_SYSTEM_ERROR`.
///
/// # Safety
/// The rules on arguments apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_snapshot(path: *const c_char) -> millpond_status {
    guard(|| {
        // SAFETY: the caller guarantees it.
        millpond::snapshot(unsafe { text(path, "path") }?)?;
        Ok(())
    })
}
