//! Awaits copies and a launch in two runtimes: `cargo run --release -p millpond --features cuda --example awaited`.
//! Without a GPU: `millpond cuda-emu -o streams:threads -- cargo run …`.

use millpond::cuda::{CudaDevice, CudaError, CudaPinned, CudaStream, DevicePool};
use millpond::{Device, Pool, Tensor};
use std::error::Error;
use std::sync::Arc;

const COPIES: usize = 400;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

struct Gpu {
    pool: DevicePool,
    pinned: Pool,
    streams: [CudaStream; 2],
}

/// Copies numbers to the device and back. Returns whether they are the same, and the threads of the process while the last copy runs.
async fn there_and_back(gpu: Arc<Gpu>, n: usize) -> Outcome<(bool, usize)> {
    let (sent, stream) = (vec![n as u64; 10_000], &gpu.streams[n % 2]);
    let (host, there) = (gpu.pinned.alloc_from(&sent)?, gpu.pool.alloc(sent.len(), stream)?);
    let (mut host, there) = stream.upload(host, there)?.await?;
    host.fill(0);
    let (host, _) = stream.download(there, host)?.await?;
    Ok((host[..] == sent, std::fs::read_dir("/proc/self/task")?.count()))
}

fn main() -> Outcome<()> {
    let device = match CudaDevice::get(0) {
        Err(error @ CudaError::NoDriver) => {
            println!("skipped: {error}");
            return Ok(());
        }
        device => device?,
    };
    let streams = [CudaStream::new(&device)?, CudaStream::new(&device)?];
    let pinned = Pool::builder().over(Box::new(CudaPinned::new(&device)))?;
    let pool = DevicePool::new(&device)?;
    let gpu = Arc::new(Gpu {
        pool,
        pinned,
        streams,
    });

    // tokio: one task for each pair of copies.
    let copies = tokio::runtime::Runtime::new()?.block_on(async {
        let begin = |n| tokio::spawn(there_and_back(Arc::clone(&gpu), n));
        let mut most = 0;
        for task in (0..COPIES).map(begin).collect::<Vec<_>>() {
            let (same, threads) = task.await??;
            assert!(same);
            most = most.max(threads);
        }
        Outcome::Ok(most)
    })?;
    assert!(copies < COPIES / 4, "{copies} threads");

    // pollster: the thread sleeps until a launch is complete.
    let queue = gpu.pool.on(&gpu.streams[0])?;
    let mut x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3])?
        .to(&queue)?
        .into_tensor();
    x.mul_assign(2.0)?;
    pollster::block_on(queue.stream().synchronize_async())?;
    assert_eq!(x.to(Device::Host)?.to_vec::<f32>()?, [2.0, 4.0, 6.0]);
    println!(
        "{COPIES} tasks with copies in tokio had {copies} threads, and a launch was awaited in pollster: proven"
    );
    Ok(())
}
