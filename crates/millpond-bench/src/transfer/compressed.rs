//! Measures the codec of compressed copies and compares it with zstd, LZ4 and pco, on several kinds of tensors.

use crate::Table;
use crate::measure::{Clock, Samples, Timer, in_turn};
use millpond::Element;
use millpond::bytemuck::{AnyBitPattern, bytes_of, cast_slice_mut, pod_read_unaligned};
use millpond::codec::{self, Scheme, Values};
use millpond::cuda::{self, CudaStream, CudaTimer, DevicePool, Staging};
use std::error::Error;
use std::hint::black_box;

/// The number of bytes that are packed at once, as in a [`Staging`].
const SLOT: usize = 2 << 20;
/// Speeds of links in GB/s: PCIe 3, 4 and 5 with 16 lanes.
const LINKS: [f64; 3] = [12.0, 25.0, 55.0];
/// The number of threads of a copy through a staging with the default number of slots.
const THREADS: usize = 8;

/// The tensors: a name, the type of the values, and the function that makes a value of it.
type Kind = (&'static str, Values, fn(&mut Random) -> Value);

const KINDS: [Kind; 9] = [
    ("weights, bf16", Values::Floats(2), |random| {
        Value::Two(bf16(random.weight()))
    }),
    ("weights, f32", Values::Floats(4), |random| {
        Value::Four(random.weight().to_bits())
    }),
    ("activations after ReLU, bf16", Values::Floats(2), |random| {
        Value::Two(bf16(random.normal().max(0.0)))
    }),
    ("activations after ReLU, f32", Values::Floats(4), |random| {
        Value::Four(random.normal().max(0.0).to_bits())
    }),
    ("token ids, u32", Values::Integers(4), |random| {
        Value::Four(random.token())
    }),
    ("token ids, i64", Values::Integers(8), |random| {
        Value::Eight(random.token().into())
    }),
    ("95 % zeros, f32", Values::Floats(4), |random| {
        match random.below(20) {
            0 => Value::Four(random.normal().to_bits()),
            _ => Value::Four(0),
        }
    }),
    ("labels from -1 to 9, i32", Values::Integers(4), |random| {
        Value::Four(random.below(11).wrapping_sub(1))
    }),
    ("one number, f32", Values::Floats(4), |_| {
        Value::Four(1.25_f32.to_bits())
    }),
];

/// A value by its size.
enum Value {
    Two(u16),
    Four(u32),
    Eight(u64),
}

/// splitmix64, and the distributions of values.
struct Random {
    state: u64,
    /// The standard deviation of the current channel of weights.
    scale: f32,
    made: u32,
}

impl Random {
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u32) -> u32 {
        (((self.next() >> 32) * u64::from(end)) >> 32) as u32
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a standard normal number by the method of Box and Muller.
    fn normal(&mut self) -> f32 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        (radius * (std::f64::consts::TAU * self.unit()).cos()) as f32
    }

    /// Returns a weight: normal, with another deviation in each channel of 4,096.
    fn weight(&mut self) -> f32 {
        if self.made.is_multiple_of(4096) {
            self.scale = 0.02 * (0.4 * self.normal()).exp();
        }
        self.made += 1;
        self.scale * self.normal()
    }

    /// Returns a token below 50,000. Small tokens are more frequent, as in a vocabulary that is sorted by frequency.
    fn token(&mut self) -> u32 {
        50_000_f64.powf(self.unit()) as u32
    }
}

fn bf16(number: f32) -> u16 {
    let bits = number.to_bits();
    // Rounds to the nearest, and to even.
    ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) as u16
}

fn data(make: fn(&mut Random) -> Value, len: usize) -> Vec<u8> {
    let mut random = Random {
        state: 1,
        scale: 0.0,
        made: 0,
    };
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        match make(&mut random) {
            Value::Two(value) => bytes.extend(value.to_le_bytes()),
            Value::Four(value) => bytes.extend(value.to_le_bytes()),
            Value::Eight(value) => bytes.extend(value.to_le_bytes()),
        }
    }
    bytes.truncate(len);
    bytes
}

/// The figures of one kind: shares of the original size, and speeds in GB/s.
struct Figures {
    shares: [f64; 4],
    /// Packing with the codec, zstd, LZ4 and pco, then a copy.
    pack: [f64; 5],
    unpack: f64,
    device: f64,
}

/// Measures `bytes` bytes of each kind, and returns the codec's table and the table of whole copies.
pub(super) fn tables(
    pool: &DevicePool,
    stream: &CudaStream,
    bytes: usize,
    rounds: usize,
) -> Result<(Table, Table), Box<dyn Error>> {
    let mut codecs = Table::new(&[
        "packed size / size",
        "codec",
        "zstd -1",
        "lz4",
        "pco",
        "pack GB/s",
        "zstd -1",
        "lz4",
        "pco",
        "copy",
        "unpack GB/s",
        "on the device",
    ]);
    let links = LINKS.map(|link| format!("link {link:.0}, plain"));
    let mut head = vec!["GB/s, 8 threads"];
    for link in &links {
        head.extend([link.as_str(), "chosen"]);
    }
    let mut copies = Table::new(&head);
    for (name, values, make) in KINDS {
        let of = measure(&data(make, bytes), values, pool, stream, rounds)?;
        let shares = of.shares.map(|share| format!("{share:.3}"));
        let speeds = of.pack.into_iter().chain([of.unpack, of.device]);
        let speeds = speeds.map(|speed| format!("{speed:.2}"));
        codecs.row([name.to_owned()].into_iter().chain(shares).chain(speeds));
        let both = LINKS.iter().flat_map(|link| {
            let [share, ..] = of.shares;
            let [pack, .., copy] = of.pack;
            let (plain, chosen) = cuda::copy_speeds(copy, pack, *link, share, THREADS);
            [plain, chosen].map(|speed| format!("{speed:.1}"))
        });
        copies.row([name.to_owned()].into_iter().chain(both));
    }
    Ok((codecs, copies))
}

/// Measures whole copies from ordinary memory to a real device: plain ones, and ones that are compressed if the library expects that to be
/// faster.
pub(super) fn on_this_link(
    staging: &Staging,
    pool: &DevicePool,
    stream: &CudaStream,
    bytes: usize,
    rounds: usize,
) -> Result<Table, Box<dyn Error>> {
    let mut table = Table::new(&["GB/s", "plain", "upload_compressed", "share sent"]);
    for (name, values, make) in KINDS {
        let data = data(make, bytes);
        let row = match values {
            Values::Floats(2) => whole::<half::bf16>(staging, pool, stream, &data, rounds),
            Values::Floats(_) => whole::<f32>(staging, pool, stream, &data, rounds),
            Values::Integers(8) => whole::<i64>(staging, pool, stream, &data, rounds),
            Values::Integers(_) | Values::Bytes => whole::<i32>(staging, pool, stream, &data, rounds),
        }?;
        table.row(std::iter::once(name.to_owned()).chain(row));
    }
    Ok(table)
}

/// Returns the speeds of both copies and the share of the bytes that the second one sent.
fn whole<T: Element>(
    staging: &Staging,
    pool: &DevicePool,
    stream: &CudaStream,
    data: &[u8],
    rounds: usize,
) -> Result<[String; 3], Box<dyn Error>> {
    let mut from = vec![T::zeroed(); data.len() / size_of::<T>()];
    cast_slice_mut::<T, u8>(&mut from).copy_from_slice(data);
    let mut to = pool.alloc_zeroed::<T>(from.len(), stream)?;
    // The first copy measures the link and the host.
    let mut share = staging.upload_compressed(&from, &mut to, pool)?.ratio();
    let times = in_turn::<2, Box<dyn Error>>(rounds, |way| {
        stream.synchronize()?;
        let timer = Timer::start(Clock::Wall);
        match way {
            0 => staging.upload(&from, &mut to)?,
            _ => share = staging.upload_compressed(&from, &mut to, pool)?.ratio(),
        }
        stream.synchronize()?;
        Ok(timer.nanoseconds())
    })?;
    if to
        .to_vec()?
        .iter()
        .zip(&from)
        .any(|(to, from)| bytes_of(to) != bytes_of(from))
    {
        return Err("the copied data differs from the original".into());
    }
    let [plain, compressed] = times.map(|times| format!("{:.1}", data.len() as f64 / times.median()));
    Ok([plain, compressed, format!("{share:.3}")])
}

fn measure(
    data: &[u8],
    values: Values,
    pool: &DevicePool,
    stream: &CudaStream,
    rounds: usize,
) -> Result<Figures, Box<dyn Error>> {
    let scheme = codec::sample(data, values).map_or_else(Scheme::default, |sample| sample.scheme);
    let mut slot =
        vec![0; zstd::zstd_safe::compress_bound(SLOT).max(lz4_flex::block::get_maximum_output_size(SLOT))];
    let mut sizes = [0; 4];
    let times = in_turn::<5, Box<dyn Error>>(rounds, |way| {
        let timer = Timer::start(Clock::Thread);
        let mut size = 0;
        for piece in data.chunks(SLOT) {
            size += match way {
                0 => codec::pack(piece, &mut slot, scheme)
                    .ok_or("the packed data does not fit into the buffer")?,
                1 => zstd::bulk::compress_to_buffer(piece, &mut slot[..], 1)?,
                2 => lz4_flex::block::compress_into(piece, &mut slot)?,
                3 => packed_by_pco(piece, values)?,
                _ => {
                    slot[..piece.len()].copy_from_slice(piece);
                    piece.len()
                }
            };
            black_box(&slot);
        }
        if let Some(sizes) = sizes.get_mut(way) {
            *sizes = size;
        }
        Ok(timer.nanoseconds())
    })?;
    let (host, device) = unpack(data, scheme, pool, stream, rounds)?;
    let rate = |times: &Samples| data.len() as f64 / times.spread().least.max(1.0);
    Ok(Figures {
        shares: sizes.map(|size| size as f64 / data.len() as f64),
        pack: times.each_ref().map(rate),
        unpack: rate(&host),
        device: rate(&device),
    })
}

/// Packs data with pco as numbers of their type, and returns the packed size. pco has no bf16, so it packs these as integers.
fn packed_by_pco(piece: &[u8], values: Values) -> Result<usize, Box<dyn Error>> {
    fn size<T: pco::data_types::Number + AnyBitPattern>(piece: &[u8]) -> Result<usize, Box<dyn Error>> {
        let numbers: Vec<T> = piece
            .chunks_exact(size_of::<T>())
            .map(pod_read_unaligned)
            .collect();
        Ok(pco::standalone::simple_compress(&numbers, &pco::ChunkConfig::default())?.len())
    }
    match values {
        Values::Floats(4) => size::<f32>(piece),
        Values::Integers(4) => size::<i32>(piece),
        Values::Integers(8) => size::<i64>(piece),
        Values::Floats(_) | Values::Integers(_) => size::<u16>(piece),
        Values::Bytes => size::<u8>(piece),
    }
}

/// Measures unpacking by one thread of the host, and on the device. For an emulated device, measures processor time.
fn unpack(
    data: &[u8],
    scheme: Scheme,
    pool: &DevicePool,
    stream: &CudaStream,
    rounds: usize,
) -> Result<(Samples, Samples), Box<dyn Error>> {
    let mut packed = vec![0; codec::bound(data.len())];
    let len = codec::pack(data, &mut packed, scheme).ok_or("the packed data does not fit into the buffer")?;
    packed.truncate(len);
    let there = pool.alloc_from(&packed, stream)?;
    let mut target = pool.alloc_zeroed::<u8>(data.len(), stream)?;
    stream.synchronize()?;
    let mut back = vec![0; data.len()];
    let (mut host, mut device) = (Samples::new(), Samples::new());
    for _ in 0..rounds {
        let timer = Timer::start(Clock::Thread);
        codec::unpack(&packed, &mut back)?;
        host.add(timer.nanoseconds());
        let (process, timer) = (Timer::start(Clock::Process), CudaTimer::start(stream)?);
        target.unpack(&there, pool)?;
        let time = timer.stop()?.as_nanos() as f64;
        device.add(if stream.device().is_emulated() {
            process.nanoseconds()
        } else {
            time
        });
    }
    if back != data || target.to_vec()? != data {
        return Err("the unpacked data differs from the original".into());
    }
    Ok((host, device))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_data_is_compressible() {
        for (name, values, make) in KINDS {
            let data = data(make, 1 << 20);
            let sample = codec::sample(&data, values).expect("blocks");
            let most = if name == "weights, f32" { 0.86 } else { 0.71 };
            assert!(sample.share < most, "{name}: {}", sample.share);
        }
    }

    #[test]
    fn bf16_rounds_to_the_nearest_value() {
        assert_eq!(
            [1.0, 257.0 / 256.0, 259.0 / 256.0].map(bf16),
            [0x3F80, 0x3F80, 0x3F82]
        );
    }
}
