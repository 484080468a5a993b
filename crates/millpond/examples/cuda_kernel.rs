//! Runs custom CUDA C on buffers of a pool: `cargo run --release -p millpond --features cuda --example cuda_kernel`.
//!
//! It needs a driver and NVRTC at run time, and no part of CUDA at build time. Without a GPU, the emulated driver runs
//! it, because it knows a kernel of this name: `millpond cuda-emu -- cargo run …`.

use millpond::cuda::{CudaDevice, CudaError, CudaModule, CudaStream, DevicePool, KernelError};

const SOURCE: &str = r#"
extern "C" __global__ void axpy(float *y, const float *x, float a, unsigned long long n) {
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}
"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = match CudaDevice::get(0) {
        Err(error @ CudaError::NoDriver) => return skip(&error),
        device => device?,
    };
    // The kernel is compiled for this device. The compiler's messages would be in the error.
    let axpy = match CudaModule::compile(&device, SOURCE) {
        Err(error @ KernelError::NoCompiler { .. }) => return skip(&error),
        module => module?.kernel("axpy")?,
    };

    // Buffers come from a pool and belong to a stream, which orders the work on them.
    let (pool, stream) = (DevicePool::new(&device)?, CudaStream::new(&device)?);
    let numbers: Vec<f32> = (0..1 << 20).map(|i| i as f32).collect();
    let x = pool.alloc_from(&numbers, &stream)?;
    let mut y = pool.alloc_from(&numbers, &stream)?;

    // There is one argument for each parameter. Their number and sizes are checked. Nothing waits.
    let (threads, n) = (256, numbers.len());
    let launch = axpy
        .launch(&stream)
        .grid(n.div_ceil(threads as usize) as u32)
        .block(threads);
    let launch = launch.arg_mut(&mut y).arg(&x).arg(2.0f32).arg(n as u64);
    // SAFETY: the arguments are the kernel's parameters, in this order; it touches n elements of each buffer, and both
    // have n.
    unsafe { launch.launch() }?;

    // This waits for this stream only.
    let three_times = y.to_vec()?;
    assert!(three_times.iter().zip(&numbers).all(|(y, x)| *y == 3.0 * x));
    println!("y + 2x of {n} numbers on {device}: proven");
    Ok(())
}

/// Reports a missing component. This is not an error.
fn skip(why: &dyn std::fmt::Display) -> Result<(), Box<dyn std::error::Error>> {
    println!("skipped: {why}");
    Ok(())
}
