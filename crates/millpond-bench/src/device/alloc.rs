//! Measures pairs of an allocation and a free with a pool of a device and with the driver's own calls, a loop of buffers, and
//! latencies.

use super::peer::Peer;
use super::{Error, heading};
use crate::Table;
use crate::console::wrap;
use crate::host::text::{digits, time};
use crate::measure::{Clock, Samples, Spread, Timer, in_turn, repeat};
use millpond::cuda::{CudaDevice, CudaStream, DevicePool, driver_calls, watch_driver_calls};
use millpond::engine::display_size;
use std::hint::black_box;

/// The sizes of the hot pairs.
const SIZES: [usize; 4] = [4 << 10, 64 << 10, 1 << 20, 16 << 20];
/// The number of pairs in a round, without and with calls to the driver.
const HOT: usize = 2000;
const COLD: usize = 50;

/// DotCompute's loop: turns with a buffer of this size. It takes 2,450 ms without its pool and 125 ms with it.
const TURNS: u64 = 100;
const BUFFER: usize = 1 << 20;
const DOTCOMPUTE: f64 = 2450.0 / 125.0;

/// The driver's functions that allocate memory of the device.
const ALLOCATING: [&str; 4] = [
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
    let head = heading(&device, &format!("medians of {rounds} interleaved rounds"))?;
    let pairs = pairs(&device, &pool, &stream, &peer, rounds)?;
    let note = wrap(
        "pool: DevicePool; two: the same, but the next block is allocated before the previous one is freed, so the placement policy \
         runs each time; cuMemAllocAsync: on one stream, with a pool that keeps all memory; ratio: time of the column before it \
         over that of the pool, median of the rounds with the minimum and the maximum",
    );
    let turns = loop_of_buffers(&device, &stream, &peer, rounds)?;
    let sentence = wrap(&turns.sentence(device.is_emulated()));
    let (size, turns) = (display_size(BUFFER as u64), turns.table());
    let latencies = latencies(&pool, &stream, &peer, rounds)?;
    Ok(format!(
        "{head}
Hot pairs: an allocation and its free, repeated, in host time

{pairs}
{note}

A loop of buffers: {TURNS} turns with a buffer of {size}

{turns}
{sentence}

Latencies, compared with DotCompute's table of typical ones

{latencies}
"
    ))
}

/// Returns the nanoseconds of each turn.
fn each(turns: usize, turn: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    repeat(Clock::Wall, turns, turn)
}

/// Allocates and frees blocks of a pool, and returns the nanoseconds of a pair.
fn pool_pairs(pool: &DevicePool, bytes: usize, stream: &CudaStream) -> Result<f64, Error> {
    each(HOT, || {
        black_box(pool.alloc::<u8>(bytes, stream)?);
        Ok(())
    })
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
        let times: [Samples; 4] = in_turn(rounds, |way| {
            let time = match way {
                0 => pool_pairs(pool, bytes, stream)?,
                1 => {
                    let mut held = None;
                    let time = each(HOT, || {
                        held = Some(pool.alloc::<u8>(bytes, stream)?);
                        Ok(())
                    })?;
                    drop(black_box(held));
                    time
                }
                2 => each(COLD, || peer.free(black_box(peer.alloc(bytes)?)))?,
                _ if device.has_pools() => each(HOT, || peer.pair_on_stream(bytes))?,
                _ => f64::NAN,
            };
            peer.synchronize()?;
            Ok::<f64, Error>(time)
        })?;
        let ratio = |way: usize| match times[way].over(&times[0]).spread() {
            ratio if ratio.median.is_nan() => "-".to_owned(),
            ratio => ratio.show(digits),
        };
        let [pooled, two, plain, ordered] = times.each_ref().map(|times| unit(times.median()));
        let size = display_size(bytes as u64).to_string();
        table.row([size, pooled, two, plain, ratio(2), ordered, ratio(3)]);
    }
    Ok(table)
}

/// Formats a time with its unit, or a dash if it was not measured.
fn unit(nanoseconds: f64) -> String {
    match time(nanoseconds) {
        _ if nanoseconds.is_nan() => "-".to_owned(),
        text if text.ends_with('s') => text,
        text => format!("{text}ns"),
    }
}

/// Returns a row: a name, a cell, the median, the minimum and the maximum.
fn row(name: &str, cell: &str, spread: Spread) -> [String; 5] {
    let [median, least, most] = [spread.median, spread.least, spread.most].map(unit);
    [name.to_owned(), cell.to_owned(), median, least, most]
}

/// The results of the loop with and without a pool.
struct Turns {
    pooled: Spread,
    unpooled: Spread,
    factor: Spread,
    /// Calls that allocated memory from the driver, in a whole loop.
    pooled_calls: u64,
    unpooled_calls: u64,
    /// Allocations that did not call the driver.
    hits: u64,
}

fn loop_of_buffers(
    device: &CudaDevice,
    stream: &CudaStream,
    peer: &Peer,
    rounds: usize,
) -> Result<Turns, Error> {
    let (mut pooled_calls, mut unpooled_calls, mut hits) = (0, 0, u64::MAX);
    let times: [Samples; 2] = in_turn(rounds, |side| {
        if side == 0 {
            // The pool is new each time, so the first turn calls the driver, as in a program.
            let pool = DevicePool::new(device)?;
            let before = allocations()?;
            let timer = Timer::start(Clock::Wall);
            watch_driver_calls(true);
            for _ in 0..TURNS {
                black_box(pool.alloc::<u8>(BUFFER, stream)?);
            }
            let time = timer.nanoseconds();
            watch_driver_calls(false);
            pooled_calls = pooled_calls.max(allocations()? - before);
            hits = hits.min(pool.stats().hits);
            return Ok::<f64, Error>(time);
        }
        let before = peer.allocations();
        let timer = Timer::start(Clock::Wall);
        for _ in 0..TURNS {
            peer.free(black_box(peer.alloc(BUFFER)?))?;
        }
        let time = timer.nanoseconds();
        unpooled_calls = unpooled_calls.max(peer.allocations() - before);
        Ok(time)
    })?;
    if hits != TURNS - 1 {
        return Err(Error::Untrue(format!(
            "the pool reused its buffer in {hits} of {TURNS} turns, and should have reused it in all but the first"
        )));
    }
    let [pooled, unpooled] = &times;
    Ok(Turns {
        pooled: pooled.spread(),
        unpooled: unpooled.spread(),
        factor: unpooled.over(pooled).spread(),
        pooled_calls,
        unpooled_calls,
        hits,
    })
}

/// Returns the library's calls that allocated memory from the driver, as far as they were counted.
fn allocations() -> Result<u64, Error> {
    let calls = driver_calls()?;
    let counted = calls.iter().filter(|of| ALLOCATING.contains(&of.function));
    Ok(counted.map(|of| of.calls).sum())
}

impl Turns {
    fn table(&self) -> Table {
        let mut table = Table::new(&["", "driver allocations", "loop", "fastest", "slowest", "a turn"]);
        for (name, calls, spread) in [
            ("pooled", self.pooled_calls, self.pooled),
            ("unpooled", self.unpooled_calls, self.unpooled),
        ] {
            let turn = unit(spread.median / TURNS as f64);
            table.row(row(name, &calls.to_string(), spread).into_iter().chain([turn]));
        }
        table
    }

    fn sentence(&self, emulated: bool) -> String {
        let mut text = format!(
            "{} of {TURNS} turns did not call the driver. The unpooled loop took {} times as long ({} to {}). DotCompute's \
             documents state {DOTCOMPUTE:.1}.",
            self.hits,
            digits(self.factor.median),
            digits(self.factor.least),
            digits(self.factor.most)
        );
        if emulated {
            text.push_str(" The factor is that of the emulator: only the counts are valid for a card.");
        }
        text
    }
}

fn latencies(pool: &DevicePool, stream: &CudaStream, peer: &Peer, rounds: usize) -> Result<Table, Error> {
    let mut table = Table::new(&["", "DotCompute", "here", "fastest", "slowest"]);
    let [host, pooled]: [Samples; 2] = in_turn(rounds, |side| match side {
        0 => each(HOT, || {
            black_box(Vec::<u8>::with_capacity(black_box(4 << 10)));
            Ok(())
        }),
        _ => pool_pairs(pool, BUFFER, stream),
    })?;
    table.row(row(
        "malloc and free on the host, 4.00 KiB",
        "50-200ns",
        host.spread(),
    ));
    for bytes in [BUFFER, 64 << 20] {
        let mut address = 0;
        let (mut takes, mut gives) = (Samples::new(), Samples::new());
        for _ in 0..rounds {
            takes.add(each(1, || {
                address = peer.alloc(bytes)?;
                Ok(())
            })?);
            gives.add(each(1, || peer.free(address))?);
        }
        let size = display_size(bytes as u64);
        table.row(row(
            &format!("device allocation, {size}"),
            "1-10ms",
            takes.spread(),
        ));
        table.row(row(&format!("device free, {size}"), "0.5-5ms", gives.spread()));
    }
    table.row(row("pool: allocation and free, 1.00 MiB", "", pooled.spread()));
    Ok(table)
}
