//! Buffers that go back by themselves, from many threads, some of them from another than took them; at the end the
//! account is at nought. Ends with exit code 1 if it is not.

use millpond::{Buffer, Pool};
use std::error::Error;
use std::process::ExitCode;
use std::sync::mpsc;

const THREADS: usize = 4;
const BUFFERS: usize = 20_000;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let pool = Pool::host()?;
    let (send, receive) = mpsc::sync_channel::<Buffer<u32>>(64);
    let wrong = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (pool, send) = (&pool, send.clone());
                scope.spawn(move || -> Result<(), Box<dyn Error + Send + Sync>> {
                    for turn in 0..BUFFERS {
                        // From 4 bytes to 64 KiB.
                        let len = 1 << ((turn * 7 + thread) % 15);
                        let mut buffer = pool.alloc_zeroed::<u32>(len)?;
                        buffer[len - 1] = len as u32;
                        if turn % 8 == 0 {
                            send.send(buffer)?;
                        }
                        // Every other buffer goes back here.
                    }
                    Ok(())
                })
            })
            .collect();
        drop(send);
        // What is sent is looked at here, and goes back from this thread.
        let wrong = receive
            .iter()
            .filter(|buffer| buffer.last() != Some(&(buffer.len() as u32)))
            .count();
        let ended = workers
            .into_iter()
            .map(|worker| worker.join().map_err(|_| "a thread panicked")?);
        ended.collect::<Result<(), _>>().map(|()| wrong)
    });
    let (wrong, stats) = (wrong.map_err(|error| error.to_string())?, pool.stats());
    let asked = (THREADS * BUFFERS) as u64;
    println!("{asked} buffers in {THREADS} threads, every eighth freed by another");
    println!(
        "allocations {}, frees {}, requested {} and allocated {} bytes now, {wrong} buffers with foreign contents",
        stats.allocations, stats.frees, stats.requested.current, stats.allocated.current
    );
    let proven = stats.allocations == asked
        && stats.frees == asked
        && (stats.requested.current, stats.allocated.current, wrong) == (0, 0, 0);
    println!(
        "the account is {}",
        if proven {
            "at nought: proven"
        } else {
            "NOT at nought"
        }
    );
    Ok(if proven {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
