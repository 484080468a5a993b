//! The driver that the tests run on. `MILLPOND_CUDA_EMU` describes it if it is the emulated one.

use cuda_core::sys;
use cuda_core::{Context, Stream};
use millpond::cuda::{CudaDevice, DevicePool};
use std::ffi::c_char;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Returns a device, a pool and a context of cuda-core, or prints that there is no driver.
pub(crate) fn device() -> Option<(CudaDevice, DevicePool, Arc<Context>)> {
    if let Some(why) = sys::cuda_driver_load_error() {
        eprintln!("skipped: {why}");
        return None;
    }
    let device = CudaDevice::get(0).expect("a device");
    let pool = DevicePool::builder().settings("trim-every:off").build(&device);
    let context = Context::new(0).expect("a context");
    Some((device, pool.expect("a pool"), context))
}

/// Asserts that the strict mode of the emulated driver has found no error.
pub(crate) fn expect_no_findings() {
    type Report = unsafe extern "C" fn(*mut c_char, usize) -> u64;
    // SAFETY: the library is a driver that is loaded already.
    let library = unsafe { libloading::Library::new("libcuda.so.1") }.expect("it is loaded");
    // SAFETY: the emulator's function of this name has this signature. A real driver has no function of this name.
    let Ok(report) = (unsafe { library.get::<Report>(b"millpond_emu_report\0") }) else {
        return;
    };
    let mut text = vec![0u8; 1 << 16];
    // SAFETY: the buffer has this length.
    let count = unsafe { report(text.as_mut_ptr().cast(), text.len()) };
    assert_eq!(count, 0, "{}", String::from_utf8_lossy(&text));
}

/// Waits for an effect of cuda-core's background thread. Panics after 20 seconds.
pub(crate) fn eventually(what: &str, happened: impl Fn() -> bool) {
    let begun = Instant::now();
    while !happened() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Begins to capture a stream. Other threads may make any call during the capture.
pub(crate) fn begin_capture(stream: &Stream) {
    let mode = sys::CUstreamCaptureMode_enum_CU_STREAM_CAPTURE_MODE_RELAXED;
    stream.context().bind_to_thread().expect("a context");
    // SAFETY: the stream lives.
    let code = unsafe { sys::cuStreamBeginCapture_v2(stream.cu_stream(), mode) };
    assert_eq!(code, 0);
}

/// Ends the capture. Returns whether it was not invalidated.
pub(crate) fn end_capture(stream: &Stream) -> bool {
    let mut graph = std::ptr::null_mut();
    stream.context().bind_to_thread().expect("a context");
    // SAFETY: the stream lives, and the pointer is to a local. The graph stays until the process ends.
    unsafe { sys::cuStreamEndCapture(stream.cu_stream(), &raw mut graph) == 0 }
}

/// Returns a context of the first device that is not its primary one. It stays until the process ends.
pub(crate) fn another_context(primary: &Arc<Context>) -> Arc<Context> {
    let mut context = std::ptr::null_mut();
    // SAFETY: the pointers are to a local and null, which asks for no affinity.
    let code = unsafe { sys::cuCtxCreate_v4(&raw mut context, std::ptr::null_mut(), 0, primary.cu_device()) };
    assert_eq!(code, 0);
    primary.bind_to_thread().expect("a context");
    // SAFETY: the context stays until the process ends.
    unsafe { Context::borrow_raw(context.cast(), primary.cu_device(), primary.ordinal()) }
}
