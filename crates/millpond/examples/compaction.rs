//! Returns the memory between live blocks: allocates blocks of many sizes, frees two thirds of them, and calls `compact` until at most
//! 30 % of the reserved memory is unused. Does the same for device memory if there is a CUDA driver. Exits with code 1 if that share is not
//! reached, or if a live block has moved or changed.

use millpond::engine::Compaction;
use millpond::{Buffer, Pool, PoolStats};
use std::error::Error;
use std::process::ExitCode;

type Outcome<T> = Result<T, Box<dyn Error>>;

const HOST_BLOCKS: usize = 2_000;
const MOST: f64 = 0.3;

/// Returns a generator of numbers below a limit, which are the same in each run.
fn dice() -> impl FnMut(usize) -> usize {
    let mut state = 1u64;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    }
}

/// Returns the resident bytes of this process.
fn resident() -> Outcome<u64> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number
        .ok_or("the system does not report the memory")?
        .parse::<u64>()?
        << 10)
}

/// Compacts until the ratio is low, and prints the figures. `outside` returns the bytes in use according to the system or the driver.
fn compact(
    outside: &str,
    used: impl Fn() -> Outcome<u64>,
    stats: impl Fn() -> PoolStats,
    compact: impl Fn() -> Compaction,
) -> Outcome<bool> {
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    println!(
        "  {:16} {:>12} {:>12} {:>14}",
        "", "reserved", outside, "fragmentation"
    );
    let print = |when: &str| -> Outcome<f64> {
        let (stats, used) = (stats(), used()?);
        let (reserved, ratio) = (stats.reserved.current, stats.fragmentation_ratio());
        println!("  {when:16} {:>12} {:>12} {ratio:14.2}", mib(reserved), mib(used));
        Ok(ratio)
    };
    let mut ratio = print("before")?;
    while ratio > MOST {
        let compaction = compact();
        ratio = print("after compact()")?;
        if compaction.returned() == 0 {
            println!("  {compaction}");
            break;
        }
    }
    Ok(ratio <= MOST)
}

fn host() -> Outcome<bool> {
    let pool = Pool::builder().trim_every(None).host()?;
    let mut below = dice();
    let mut held: Vec<(usize, Buffer<u64>)> = Vec::with_capacity(HOST_BLOCKS);
    for number in 0..HOST_BLOCKS {
        let len = 128 << below(10);
        held.push((number, pool.alloc_from(&vec![number as u64; len])?));
    }
    held.retain(|_| below(3) == 0);
    let places: Vec<*const u64> = held.iter().map(|(_, buffer)| buffer.as_ptr()).collect();
    println!(
        "{} of {HOST_BLOCKS} blocks of the host are live: 1 KiB to 512 KiB each",
        held.len()
    );
    let low = compact("resident", resident, || pool.stats(), || pool.compact())?;
    let moved = held
        .iter()
        .zip(&places)
        .filter(|((_, buffer), place)| buffer.as_ptr() != **place);
    let changed = held
        .iter()
        .filter(|(number, buffer)| buffer.iter().any(|v| *v != *number as u64));
    let (moved, changed) = (moved.count(), changed.count());
    println!("  {moved} blocks at another address, {changed} with other contents");
    Ok(low && (moved, changed) == (0, 0))
}

#[cfg(feature = "cuda")]
fn device() -> Outcome<bool> {
    use millpond::cuda::{CudaDevice, CudaError, CudaStream, DeviceBuffer, DevicePool};
    const BLOCKS: usize = 4_000;
    /// Elements of the smallest blocks.
    const SMALLEST: usize = 64 << 10;
    /// One of this many blocks is filled. The emulated driver needs memory of the host only for the filled blocks.
    const FILLED: usize = 16;
    let device = match CudaDevice::get(0) {
        Err(error @ CudaError::NoDriver) => {
            println!("no blocks of a device: {error}");
            return Ok(true);
        }
        device => device?,
    };
    let stream = CudaStream::new(&device)?;
    let pool = DevicePool::builder().trim_every(None).build(&device)?;
    let mut below = dice();
    let mut held: Vec<(usize, DeviceBuffer<u64>)> = Vec::with_capacity(BLOCKS);
    for number in 0..BLOCKS {
        let mut buffer = pool.alloc::<u64>(SMALLEST << below(5), &stream)?;
        if number % FILLED == 0 {
            buffer.copy_from_host(&vec![number as u64; buffer.len()])?;
        }
        held.push((number, buffer));
    }
    held.retain(|_| below(3) == 0);
    let places: Vec<u64> = held.iter().map(|(_, buffer)| buffer.address()).collect();
    println!(
        "{} of {BLOCKS} blocks of the device are live: 512 KiB to 8 MiB each",
        held.len()
    );
    let used = || {
        let memory = device.memory()?;
        Ok(memory.total - memory.free)
    };
    let low = compact("the driver's", used, || pool.stats(), || pool.compact())?;
    let (mut moved, mut changed) = (0, 0);
    for ((number, buffer), place) in held.iter().zip(places) {
        moved += usize::from(buffer.address() != place);
        let filled = number % FILLED == 0;
        changed += usize::from(filled && buffer.to_vec()?.iter().any(|v| *v != *number as u64));
    }
    println!("  {moved} blocks at another address, {changed} with other contents");
    Ok(low && (moved, changed) == (0, 0))
}

#[cfg(not(feature = "cuda"))]
fn device() -> Outcome<bool> {
    Ok(true)
}

fn main() -> Outcome<ExitCode> {
    let proven = host()? & device()?;
    let told = if proven { "proven" } else { "NO" };
    println!(
        "at most {:.0} % is unused, and no live block was changed: {told}",
        MOST * 100.0
    );
    Ok(if proven {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
