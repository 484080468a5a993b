//! Measures pairs of an allocation and a free with a pool of a device and with the driver's own calls, a loop of buffers, and
//! latencies.

use super::peer::Peer;
use super::samples::{Samples, Spread};
use super::{EMULATED, Error, about};
use crate::Table;
use crate::host::text::{digits, time};
use crate::say::wrap;
use millpond::cuda::{CudaDevice, CudaStream, DevicePool, driver_calls, watch_driver_calls};
use millpond::engine::display_size;
use std::fmt::Write;
use std::hint::black_box;
use std::time::Instant;

/// The width of the output in columns.
const WIDTH: usize = 100;
/// The sizes of the hot pairs.
const SIZES: [usize; 4] = [4 << 10, 64 << 10, 1 << 20, 16 << 20];
/// The number of pairs in a round, without and with calls to the driver.
const HOT: u32 = 2000;
const COLD: u32 = 50;

/// DotCompute's loop: turns with a buffer of this size. It takes 2,450 ms without its pool and 125 ms with it.
const TURNS: u64 = 100;
const BUFFER: usize = 1 << 20;
const DOTCOMPUTE: f64 = 2450.0 / 125.0;

/// The driver's functions that allocate memory of the device.
const TAKES: [&str; 4] = [
    "cuMemCreate",
    "cuMemAlloc_v2",
    "cuMemAllocFromPoolAsync",
    "cuMemAllocAsync",
];

/// Measures a pool of a device and its driver in `rounds` rounds, and returns the text to print.
///
/// # Errors
/// Returns an error if there is no driver or device, if the driver refuses a call, or if a pool called the driver for a buffer
/// that had just been freed.
pub fn alloc(number: u32, rounds: usize) -> Result<String, Error> {
    let rounds = rounds.max(1);
    let device = CudaDevice::get(number)?;
    let pool = DevicePool::new(&device)?;
    let stream = CudaStream::new(&device)?;
    let peer = Peer::new(number, device.has_pools())?;
    let mut out = format!("{}, medians of {rounds} rounds in turn\n", about(&device)?);
    let mut say = |text: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{text}");
    };
    if device.is_emulated() {
        say(&format!("\n{}", wrap(EMULATED, WIDTH)));
    }
    say("\nHot pairs: an allocation and its free, again and again, host time\n");
    say(&pairs(&device, &pool, &stream, &peer, rounds)?.to_string());
    say(&wrap(
        "pool: DevicePool; two: a pair of it where the next block is taken before the last is given back, for which the placement \
         is asked each time; cuMemAllocAsync: on one stream, its pool told to keep everything; ratios: its time over the pool's, \
         median of the rounds with the least and the most",
        WIDTH,
    ));
    say(&format!(
        "\nA loop of buffers: {TURNS} turns with {}\n",
        display_size(BUFFER as u64)
    ));
    let turns = loop_of_buffers(&device, &stream, &peer, rounds)?;
    say(&turns.table().to_string());
    say(&wrap(&turns.sentence(device.is_emulated()), WIDTH));
    say("\nLatencies, beside DotCompute's table of typical ones\n");
    say(&latencies(&pool, &stream, &peer, rounds)?.to_string());
    Ok(out)
}

/// Returns the nanoseconds of each turn.
fn each(turns: u32, mut turn: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    let begun = Instant::now();
    for _ in 0..turns {
        turn()?;
    }
    Ok(begun.elapsed().as_nanos() as f64 / f64::from(turns))
}

fn pairs(
    device: &CudaDevice,
    pool: &DevicePool,
    stream: &CudaStream,
    peer: &Peer,
    rounds: usize,
) -> Result<Table, Error> {
    let mut table = Table::new(&[
        "size",
        "pool",
        "two",
        "cuMemAlloc",
        "ratio",
        "cuMemAllocAsync",
        "ratio",
    ]);
    for bytes in SIZES {
        let mut times = [(); 4].map(|()| Samples::default());
        let mut ratios = [(); 2].map(|()| Samples::default());
        // The first round allocates memory that the others reuse.
        for round in 0..=rounds {
            let ours = each(HOT, || {
                black_box(pool.alloc::<u8>(bytes, stream)?);
                Ok(())
            })?;
            let mut held = None;
            let two = each(HOT, || {
                held = Some(pool.alloc::<u8>(bytes, stream)?);
                Ok(())
            })?;
            drop(black_box(held));
            let plain = each(COLD, || peer.give_plain(black_box(peer.plain(bytes)?)))?;
            let ordered = match device.has_pools() {
                true => Some(each(HOT, || peer.pair_on_stream(bytes))?),
                false => None,
            };
            peer.synchronize()?;
            if round == 0 {
                continue;
            }
            for (index, time) in [Some(ours), Some(two), Some(plain), ordered]
                .into_iter()
                .enumerate()
            {
                if let Some(time) = time {
                    times[index].add(time);
                }
            }
            ratios[0].add(plain / ours);
            if let Some(ordered) = ordered {
                ratios[1].add(ordered / ours);
            }
        }
        let median = |samples: &Samples| samples.spread().map_or_else(none, |of| unit(of.median));
        let ratio = |samples: &Samples| samples.spread().map_or_else(none, ratio);
        table.row(vec![
            display_size(bytes as u64).to_string(),
            median(&times[0]),
            median(&times[1]),
            median(&times[2]),
            ratio(&ratios[0]),
            median(&times[3]),
            ratio(&ratios[1]),
        ]);
    }
    Ok(table)
}

fn none() -> String {
    "-".to_owned()
}

/// Formats a time with its unit.
fn unit(nanoseconds: f64) -> String {
    let text = time(nanoseconds);
    if text.ends_with('s') {
        text
    } else {
        format!("{text}ns")
    }
}

fn ratio(of: Spread) -> String {
    format!(
        "{} ({} to {})",
        digits(of.median),
        digits(of.least),
        digits(of.most)
    )
}

/// The results of the loop with and without a pool.
struct Turns {
    pooled: Spread,
    unpooled: Spread,
    factor: Spread,
    /// Calls that allocated memory from the driver, in a whole loop.
    pooled_calls: u64,
    unpooled_calls: u64,
    /// Allocations that the pool served without the driver.
    hits: u64,
}

fn loop_of_buffers(
    device: &CudaDevice,
    stream: &CudaStream,
    peer: &Peer,
    rounds: usize,
) -> Result<Turns, Error> {
    let mut times = [(); 3].map(|()| Samples::default());
    let (mut pooled_calls, mut unpooled_calls, mut hits) = (0, 0, u64::MAX);
    for _ in 0..rounds {
        // The pool is new each time, so that the first turn calls the driver, as in a program.
        let pool = DevicePool::new(device)?;
        let before = taken()?;
        let begun = Instant::now();
        watch_driver_calls(true);
        for _ in 0..TURNS {
            black_box(pool.alloc::<u8>(BUFFER, stream)?);
        }
        let pooled = begun.elapsed().as_nanos() as f64;
        watch_driver_calls(false);
        pooled_calls = pooled_calls.max(taken()? - before);
        hits = hits.min(pool.stats().hits);
        let before = peer.taken();
        let begun = Instant::now();
        for _ in 0..TURNS {
            peer.give_plain(black_box(peer.plain(BUFFER)?))?;
        }
        let unpooled = begun.elapsed().as_nanos() as f64;
        unpooled_calls = unpooled_calls.max(peer.taken() - before);
        for (samples, time) in times.iter_mut().zip([pooled, unpooled, unpooled / pooled]) {
            samples.add(time);
        }
    }
    if hits != TURNS - 1 {
        return Err(Error::Untrue(format!(
            "of {TURNS} turns with the same buffer the pool served {hits} without its driver: it should be all but the first"
        )));
    }
    let [pooled, unpooled, factor] = times.map(|samples| samples.spread());
    let never = || Error::Untrue("nothing was measured".to_owned());
    Ok(Turns {
        pooled: pooled.ok_or_else(never)?,
        unpooled: unpooled.ok_or_else(never)?,
        factor: factor.ok_or_else(never)?,
        pooled_calls,
        unpooled_calls,
        hits,
    })
}

/// Returns the library's calls that allocated memory from the driver, as far as they were counted.
fn taken() -> Result<u64, Error> {
    let calls = driver_calls()?;
    let takes = calls.iter().filter(|of| TAKES.contains(&of.function));
    Ok(takes.map(|of| of.calls).sum())
}

impl Turns {
    fn table(&self) -> Table {
        let mut table = Table::new(&["", "driver allocations", "loop", "fastest", "slowest", "a turn"]);
        let mut row = |name: &str, calls: u64, of: Spread| {
            table.row(vec![
                name.to_owned(),
                calls.to_string(),
                unit(of.median),
                unit(of.least),
                unit(of.most),
                unit(of.median / TURNS as f64),
            ]);
        };
        row("pooled", self.pooled_calls, self.pooled);
        row("unpooled", self.unpooled_calls, self.unpooled);
        table
    }

    fn sentence(&self, emulated: bool) -> String {
        let mut text = format!(
            "{} of {TURNS} turns called no driver. Unpooled took {} times as long ({} to {}); DotCompute's documents have {DOTCOMPUTE:.1}.",
            self.hits,
            digits(self.factor.median),
            digits(self.factor.least),
            digits(self.factor.most)
        );
        if emulated {
            text.push_str(" The factor is the emulator's: only the counts hold for a card.");
        }
        text
    }
}

fn latencies(pool: &DevicePool, stream: &CudaStream, peer: &Peer, rounds: usize) -> Result<Table, Error> {
    let mut table = Table::new(&["", "DotCompute", "here", "fastest", "slowest"]);
    let mut row = |name: &str, says: &str, samples: &Samples| {
        if let Some(of) = samples.spread() {
            table.row(vec![
                name.to_owned(),
                says.to_owned(),
                unit(of.median),
                unit(of.least),
                unit(of.most),
            ]);
        }
    };
    let (mut host, mut pooled) = (Samples::default(), Samples::default());
    for _ in 0..rounds {
        host.add(each(HOT, || {
            black_box(Vec::<u8>::with_capacity(black_box(4 << 10)));
            Ok(())
        })?);
        pooled.add(each(HOT, || {
            black_box(pool.alloc::<u8>(BUFFER, stream)?);
            Ok(())
        })?);
    }
    row("malloc and free on the host, 4.00 KiB", "50-200ns", &host);
    for bytes in [BUFFER, 64 << 20] {
        let (mut takes, mut gives) = (Samples::default(), Samples::default());
        for _ in 0..rounds {
            let begun = Instant::now();
            let address = peer.plain(bytes)?;
            takes.add(begun.elapsed().as_nanos() as f64);
            let begun = Instant::now();
            peer.give_plain(address)?;
            gives.add(begun.elapsed().as_nanos() as f64);
        }
        let size = display_size(bytes as u64);
        row(&format!("device allocation, {size}"), "1-10ms", &takes);
        row(&format!("device free, {size}"), "0.5-5ms", &gives);
    }
    row("pool: allocation and free, 1.00 MiB", "", &pooled);
    Ok(table)
}
