//! A few functions of cuBLAS. They return cuBLAS status codes. Failures before a function is entered return the driver's codes.

use super::args::{In, Out};
use super::entries;
use crate::blas::{self, Blas, EXECUTION_FAILED, Gemm, INVALID_VALUE, NOT_INITIALIZED, Side};
use crate::calls::Call;
use crate::error::{Answer, Code};
use crate::work::action::Action;
use std::sync::Arc;

fn handle(call: &Call, handle: u64) -> Answer<Blas> {
    let state = call.driver.state();
    state.blas.get(&(handle)).copied().ok_or(NOT_INITIALIZED)
}

fn change(call: &Call, handle: u64, change: impl FnOnce(&mut Blas)) -> Answer {
    let mut state = call.driver.state();
    let blas = state.blas.get_mut(&(handle)).ok_or(NOT_INITIALIZED)?;
    change(blas);
    Ok(())
}

/// Queues a product on the handle's stream.
fn multiply(call: &Call, number: u64, gemm: &Gemm, alpha: In<u8>, beta: In<u8>) -> Answer {
    let blas = handle(call, number)?;
    let scalar = |of: In<u8>| {
        let value = if gemm.is_double() {
            of.cast::<f64>().get()
        } else {
            of.cast::<f32>().get().map(f64::from)
        };
        value.map_err(|_| INVALID_VALUE)
    };
    // cuBLAS supports other scalars, but no client here uses them.
    blas::NOT_SUPPORTED.when((scalar(alpha)?, scalar(beta)?) != (1.0, 0.0))?;
    let product = gemm.check(blas.math)?;
    let stream = match blas.stream {
        Some(stream) => stream,
        None => call.stream(0)?,
    };
    let launch = {
        let state = call.driver.state();
        let captured = state.stream(stream)?.capture.is_some();
        // cuBLAS would allocate its own workspace, which a graph cannot contain.
        EXECUTION_FAILED.when(captured && blas.workspace.is_none())?;
        state
            .kernels
            .blas(product.kernel, product.params, blas.workspace)?
    };
    // Missing memory is reported at once. On a card, the work would fail later.
    for access in launch.accesses() {
        let there = call.driver.state().memory.resolve(access.at, access.len);
        there.map_err(|_| INVALID_VALUE)?;
    }
    let submitted = call
        .driver
        .submit(stream, Action::Kernel(Arc::new(launch)), call.origin());
    submitted.map_err(|_: Code| EXECUTION_FAILED)
}

entries! {
    cublasCreate_v2 none 0 Driver (out: Out<u64>) |call| {
        out.check().map_err(|_| INVALID_VALUE)?;
        call.context().map_err(|_| NOT_INITIALIZED)?;
        let mut state = call.driver.state();
        let handle = state.new_handle();
        state.blas.insert(handle, Blas::default());
        out.set(handle)
    }
    cublasDestroy_v2 none 0 Driver (handle: u64) |call| {
        let mut state = call.driver.state();
        state.blas.remove(&(handle)).map(|_| ()).ok_or(NOT_INITIALIZED)
    }
    cublasGetVersion_v2 none 0 Driver (number: u64, version: Out<i32>) |call| {
        handle(call, number)?;
        version.set(120_000).map_err(|_| INVALID_VALUE)
    }
    cublasSetStream_v2 none 0 Driver (number: u64, stream: u64) |call| {
        let stream = call.stream(stream).map_err(|_| INVALID_VALUE)?;
        change(call, number, |blas| {
            blas.stream = Some(stream);
            // Setting a stream resets the client's workspace, as in cuBLAS.
            blas.workspace = None;
        })
    }
    cublasSetWorkspace_v2 none 0 Driver (number: u64, at: u64, bytes: usize) |call| {
        let len = bytes as u64;
        let there = call.driver.state().memory.resolve(at, len).is_ok();
        INVALID_VALUE.when(!at.is_multiple_of(256) || len == 0 || !there)?;
        change(call, number, |blas| blas.workspace = Some((at, len)))
    }
    cublasSetMathMode none 0 Driver (number: u64, mode: i32) |call| {
        INVALID_VALUE.when(![0, 2, 3].contains(&(mode & !16)))?;
        change(call, number, |blas| blas.math = mode)
    }
    cublasGemmEx none 0 Driver (
        handle: u64,
        left: i32,
        right: i32,
        m: i32,
        n: i32,
        k: i32,
        alpha: In<u8>,
        a: u64,
        a_type: i32,
        a_leading: i32,
        b: u64,
        b_type: i32,
        b_leading: i32,
        beta: In<u8>,
        c: u64,
        c_type: i32,
        c_leading: i32,
        compute: i32,
        _algorithm: i32,
    ) |call| {
        let side = |at, kind, leading| Side { at, kind, leading, apart: 0 };
        let gemm = Gemm {
            operations: [left, right],
            sizes: [m, n, k],
            a: side(a, a_type, a_leading),
            b: side(b, b_type, b_leading),
            c: side(c, c_type, c_leading),
            many: 1,
            compute,
        };
        multiply(call, handle, &gemm, alpha, beta)
    }
    cublasGemmStridedBatchedEx none 0 Driver (
        handle: u64,
        left: i32,
        right: i32,
        m: i32,
        n: i32,
        k: i32,
        alpha: In<u8>,
        a: u64,
        a_type: i32,
        a_leading: i32,
        a_apart: i64,
        b: u64,
        b_type: i32,
        b_leading: i32,
        b_apart: i64,
        beta: In<u8>,
        c: u64,
        c_type: i32,
        c_leading: i32,
        c_apart: i64,
        many: i32,
        compute: i32,
        _algorithm: i32,
    ) |call| {
        let side = |at, kind, leading, apart| Side { at, kind, leading, apart };
        let gemm = Gemm {
            operations: [left, right],
            sizes: [m, n, k],
            a: side(a, a_type, a_leading, a_apart),
            b: side(b, b_type, b_leading, b_apart),
            c: side(c, c_type, c_leading, c_apart),
            many,
            compute,
        };
        multiply(call, handle, &gemm, alpha, beta)
    }
}
