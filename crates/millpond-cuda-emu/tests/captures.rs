//! Tests which calls a capture forbids, which captures a refused call invalidates, and how a capture ends.

#![allow(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

mod common;

use cudarc::driver::CudaContext;
use cudarc::driver::sys::CUresult::{
    CUDA_ERROR_ILLEGAL_STATE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_SUCCESS,
};
use cudarc::driver::sys::{
    CUdeviceptr, CUevent, CUgraph, CUmemPool_attribute, CUmemcpyAttributes, CUmemoryPool, CUresult, CUstream,
    CUstreamCaptureMode,
};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const THREAD_LOCAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
const MODES: [CUstreamCaptureMode; 3] = [GLOBAL, THREAD_LOCAL, RELAXED];

fn stream() -> CUstream {
    let mut stream = null_mut();
    ok!(cuStreamCreate(&mut stream, 1));
    stream
}

fn end(stream: CUstream) -> CUresult {
    let mut graph: CUgraph = null_mut();
    let code = cu!(cuStreamEndCapture(stream, &mut graph));
    assert_eq!(code == CUDA_SUCCESS, !graph.is_null());
    code
}

fn default_pool() -> CUmemoryPool {
    let mut pool = null_mut();
    ok!(cuDeviceGetDefaultMemPool(&mut pool, 0));
    pool
}

type Call = Box<dyn Fn() -> CUresult>;

/// Lets one test run at a time. A global capture of one test would forbid calls of the others, which run in the same process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns calls that a capture forbids, by name.
fn forbidden(pool: CUmemoryPool) -> Vec<(&'static str, Call)> {
    const KEEP: CUmemPool_attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    let get = move || {
        let mut value = 0u64;
        cu!(cuMemPoolGetAttribute(pool, KEEP, (&raw mut value).cast()))
    };
    let set = move || {
        let mut value = 1u64 << 20;
        cu!(cuMemPoolSetAttribute(pool, KEEP, (&raw mut value).cast()))
    };
    let trim = move || cu!(cuMemPoolTrimTo(pool, 0));
    let other = stream() as usize;
    let query = move || cu!(cuStreamQuery(other as CUstream));
    let wait = move || cu!(cuStreamSynchronize(other as CUstream));
    let ordered = move || {
        let mut at: CUdeviceptr = 0;
        cu!(cuMemAllocFromPoolAsync(&mut at, 512, pool, other as CUstream))
    };
    let allocate = || {
        let mut at: CUdeviceptr = 0;
        cu!(cuMemAlloc_v2(&mut at, 512))
    };
    vec![
        ("cuMemPoolGetAttribute", Box::new(get)),
        ("cuMemPoolSetAttribute", Box::new(set)),
        ("cuMemPoolTrimTo", Box::new(trim)),
        ("cuStreamQuery", Box::new(query)),
        ("cuStreamSynchronize", Box::new(wait)),
        ("cuMemAllocFromPoolAsync", Box::new(ordered)),
        ("cuMemAlloc", Box::new(allocate)),
    ]
}

#[test]
fn forbidden_calls_invalidate_the_threads_own_captures() {
    common::load();
    let _alone = alone();
    let _context = CudaContext::new(0).unwrap();
    let (stream, pool) = (stream(), default_pool());
    for (name, call) in forbidden(pool) {
        for mode in MODES {
            ok!(cuStreamBeginCapture_v2(stream, mode));
            let allowed = mode == RELAXED;
            let code = if allowed {
                CUDA_SUCCESS
            } else {
                CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
            };
            assert_eq!(call(), code, "{name} in {mode:?}");
            let code = if allowed {
                CUDA_SUCCESS
            } else {
                CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
            };
            assert_eq!(end(stream), code, "{name} in {mode:?}");
            assert_eq!(call(), CUDA_SUCCESS, "{name} after {mode:?}");
        }
    }
    // A query of the device's pool is not a call on the pool.
    ok!(cuStreamBeginCapture_v2(stream, GLOBAL));
    assert_eq!(default_pool(), pool);
    assert_eq!(end(stream), CUDA_SUCCESS);
}

/// Calls `body` on another thread, which has its own capture mode.
fn elsewhere<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        scope
            .spawn(|| {
                let context = CudaContext::new(0).unwrap();
                context.bind_to_thread().unwrap();
                body()
            })
            .join()
            .unwrap()
    })
}

#[test]
fn a_global_capture_of_another_thread_is_invalidated_too() {
    common::load();
    let _alone = alone();
    let _context = CudaContext::new(0).unwrap();
    let streams = [stream(), stream()];
    let pool = default_pool() as usize;
    let calls = forbidden(pool as CUmemoryPool).len();
    for index in 0..calls {
        let call = |mode: Option<CUstreamCaptureMode>| {
            elsewhere(|| {
                let mut mode = mode.unwrap_or(GLOBAL);
                ok!(cuThreadExchangeStreamCaptureMode(&mut mode));
                let (name, call) = &forbidden(pool as CUmemoryPool)[index];
                (*name, call())
            })
        };
        // The call invalidates all captures that forbid it, not only the first.
        for stream in streams {
            ok!(cuStreamBeginCapture_v2(stream, GLOBAL));
        }
        let (name, code) = call(None);
        assert_eq!(code, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "{name}");
        assert_eq!(
            streams.map(end),
            [CUDA_ERROR_STREAM_CAPTURE_INVALIDATED; 2],
            "{name}"
        );
        // The call succeeds if the calling thread ignores the capture, or if the capture forbids only the calls of its own thread.
        for (capture, thread) in [(GLOBAL, RELAXED), (GLOBAL, THREAD_LOCAL), (THREAD_LOCAL, GLOBAL)] {
            ok!(cuStreamBeginCapture_v2(streams[0], capture));
            assert_eq!(call(Some(thread)).1, CUDA_SUCCESS, "{name}");
            assert_eq!(end(streams[0]), CUDA_SUCCESS, "{name}");
        }
    }
}

#[test]
fn waiting_for_the_context_invalidates_captures_of_every_mode() {
    common::load();
    let _alone = alone();
    let _context = CudaContext::new(0).unwrap();
    let streams = [stream(), stream()];
    for mode in MODES {
        for relaxed in [false, true] {
            for stream in streams {
                ok!(cuStreamBeginCapture_v2(stream, mode));
            }
            let code = elsewhere(|| {
                let mut mode = if relaxed { RELAXED } else { GLOBAL };
                ok!(cuThreadExchangeStreamCaptureMode(&mut mode));
                cu!(cuCtxSynchronize())
            });
            assert_eq!(code, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "{mode:?}");
            assert_eq!(
                streams.map(end),
                [CUDA_ERROR_STREAM_CAPTURE_INVALIDATED; 2],
                "{mode:?}"
            );
        }
    }
    ok!(cuCtxSynchronize());
}

#[test]
fn a_capture_ends_with_the_first_call_even_if_that_returns_an_error() {
    common::with_options(
        "a_capture_ends_with_the_first_call_even_if_that_returns_an_error",
        "fail:cuStreamEndCapture@1=1",
        || {
            let _context = CudaContext::new(0).unwrap();
            let (first, second) = (stream(), stream());
            ok!(cuStreamBeginCapture_v2(first, RELAXED));
            assert_eq!(end(first), CUDA_ERROR_INVALID_VALUE, "the injected fault");
            assert_eq!(end(first), CUDA_ERROR_ILLEGAL_STATE);
            ok!(cuStreamSynchronize(first));
            // This capture ends with an error of its own.
            let mut event: CUevent = null_mut();
            ok!(cuEventCreate(&mut event, 2));
            let mut at: CUdeviceptr = 0;
            ok!(cuMemAlloc_v2(&mut at, 512));
            ok!(cuStreamBeginCapture_v2(first, RELAXED));
            ok!(cuEventRecord(event, first));
            ok!(cuStreamWaitEvent(second, event, 0));
            ok!(cuMemsetD8Async(at, 1, 512, second));
            assert_eq!(end(first), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
            assert_eq!(end(first), CUDA_ERROR_ILLEGAL_STATE);
            ok!(cuStreamSynchronize(second));
        },
    );
}

#[test]
fn a_batch_of_copies_cannot_be_captured() {
    common::load();
    let _alone = alone();
    let _context = CudaContext::new(0).unwrap();
    let captured = stream();
    let mut block = 0;
    ok!(cuMemAlloc_v2(&mut block, 2));
    let (mut to, mut from, mut size, mut first, mut failed) = (block, block + 1, 1, 0, 0);
    // SAFETY: zeros are valid attributes.
    let mut attributes: CUmemcpyAttributes = unsafe { std::mem::zeroed() };
    ok!(cuStreamBeginCapture_v2(captured, RELAXED));
    let code = cu!(cuMemcpyBatchAsync(
        &mut to,
        &mut from,
        &mut size,
        1,
        &mut attributes,
        &mut first,
        1,
        &mut failed,
        captured
    ));
    assert_eq!(code, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_eq!(end(captured), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    ok!(cuMemFree_v2(block));
}

/// A driver for CUDA 13.0 allows these calls in captures of every mode.
#[test]
fn allowed_calls_do_not_invalidate_captures() {
    common::load();
    let _alone = alone();
    let _context = CudaContext::new(0).unwrap();
    let (captured, text) = (stream(), c".version 8.0\n.target sm_70");
    let calls: [(&str, &dyn Fn() -> CUresult); 4] = [
        ("cuMemGetInfo", &|| {
            let (mut free, mut total) = (0, 0);
            cu!(cuMemGetInfo_v2(&mut free, &mut total))
        }),
        ("cuEventCreate", &|| {
            let mut event = null_mut();
            cu!(cuEventCreate(&mut event, 2))
        }),
        ("cuStreamCreate", &|| {
            let mut stream = null_mut();
            cu!(cuStreamCreate(&mut stream, 1))
        }),
        ("cuModuleLoadData", &|| {
            let mut module = null_mut();
            cu!(cuModuleLoadData(&mut module, text.as_ptr().cast()))
        }),
    ];
    for (name, call) in calls {
        for mode in MODES {
            ok!(cuStreamBeginCapture_v2(captured, mode));
            assert_eq!(call(), CUDA_SUCCESS, "{name}");
            assert_eq!(end(captured), CUDA_SUCCESS, "{name}");
        }
    }
}

#[test]
fn a_capture_ends_when_another_thread_tries_to_end_it() {
    common::load();
    let _alone = alone();
    let _context = CudaContext::new(0).unwrap();
    let captured = stream() as usize;
    ok!(cuStreamBeginCapture_v2(captured as CUstream, GLOBAL));
    let code = elsewhere(|| end(captured as CUstream));
    assert_eq!(code, CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    assert_eq!(end(captured as CUstream), CUDA_ERROR_ILLEGAL_STATE);
    ok!(cuStreamSynchronize(captured as CUstream));
}
