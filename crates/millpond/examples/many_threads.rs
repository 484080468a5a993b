//! Buffers and tensors that return to the pool automatically on many threads. Some are freed on another thread than the
//! allocating one. Exits with code 1 if memory is still in use at the end.

use millpond::{Buffer, DType, Tensor, pools};
use std::error::Error;
use std::process::ExitCode;
use std::sync::mpsc::{self, SyncSender};

const THREADS: usize = 4;
const BUFFERS: usize = 20_000;
/// The number of sums of two tensors. Each sum is a third tensor.
const SUMS: usize = 500;
const SIDE: usize = 100;

/// A value that another thread receives and drops.
enum Sent {
    Buffer(Buffer<u32>),
    /// A tensor, and the expected value of its elements.
    Sum(Tensor, f64),
}

impl Sent {
    fn is_whole(&self) -> bool {
        match self {
            Self::Buffer(buffer) => buffer.last() == Some(&(buffer.len() as u32)),
            Self::Sum(sum, each) => sum
                .as_slice::<f64>()
                .is_ok_and(|elements| elements.len() == SIDE * SIDE && elements.iter().all(|x| x == each)),
        }
    }
}

fn work(thread: usize, send: &SyncSender<Sent>) -> Result<(), Box<dyn Error + Send + Sync>> {
    for turn in 0..BUFFERS {
        // The sizes are 4 bytes to 64 KiB.
        let len = 1 << ((turn * 7 + thread) % 15);
        let mut buffer = millpond::alloc_zeroed::<u32>(len)?;
        buffer[len - 1] = len as u32;
        if turn % 8 == 0 {
            send.send(Sent::Buffer(buffer))?;
        }
        // Buffers that were not sent are dropped here.
    }
    // Tensors come from the same pool without naming it.
    let mut all = Tensor::zeros([SIDE, SIDE], DType::F64)?;
    for turn in 0..SUMS {
        let one = Tensor::full([SIDE, SIDE], turn as f64)?;
        let other = Tensor::full([SIDE, SIDE], thread as f64)?;
        let sum = one.add(&other)?;
        all.add_assign(&sum)?;
        if turn % 8 == 0 {
            send.send(Sent::Sum(sum, (turn + thread) as f64))?;
        }
    }
    let each = SUMS * (SUMS - 1) / 2 + SUMS * thread;
    Ok(send.send(Sent::Sum(all, each as f64))?)
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let pool = pools().host()?;
    let (send, receive) = mpsc::sync_channel(64);
    let wrong = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let send = send.clone();
                scope.spawn(move || work(thread, &send))
            })
            .collect();
        drop(send);
        // Received values are checked here and freed by this thread.
        let wrong = receive.iter().filter(|sent| !sent.is_whole()).count();
        let ended = workers
            .into_iter()
            .map(|worker| worker.join().map_err(|_| "a thread panicked")?);
        ended.collect::<Result<(), _>>().map(|()| wrong)
    });
    let (wrong, stats) = (wrong.map_err(|error| error.to_string())?, pool.stats());
    let (buffers, tensors) = (THREADS * BUFFERS, THREADS * (3 * SUMS + 1));
    println!("{buffers} buffers and {tensors} tensors in {THREADS} threads, some freed by another");
    println!(
        "allocations {}, frees {}, requested {} and allocated {} bytes now, {wrong} blocks with wrong contents",
        stats.allocations, stats.frees, stats.requested.current, stats.allocated.current
    );
    let asked = (buffers + tensors) as u64;
    let proven = stats.allocations == asked
        && stats.frees == asked
        && (stats.requested.current, stats.allocated.current, wrong) == (0, 0, 0);
    println!(
        "the account is {}",
        if proven { "at zero: proven" } else { "NOT at zero" }
    );
    Ok(if proven {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
