//! Allocates and frees blocks on many streams. Each block has its own contents.

use crate::{builder, device, is_alone};
use millpond::cuda::{CudaStream, DeviceBuffer};

const STREAMS: usize = 8;
/// The number of words of the largest block.
const LARGEST: u64 = 64 << 10;
/// The number of blocks that are live at once.
const LIVE: usize = 48;

/// Returns the number of turns of each stream. The default is small; long runs set `MILLPOND_CHURN_ROUNDS`.
fn turns() -> u64 {
    let said = std::env::var("MILLPOND_CHURN_ROUNDS").ok();
    said.and_then(|turns| turns.parse().ok()).unwrap_or(40)
}

/// A block, the seed of its contents, and its stream.
struct Held {
    buffer: DeviceBuffer<u32>,
    seed: u32,
    stream: usize,
}

fn contents(len: usize, seed: u32) -> Vec<u32> {
    (0..len as u32)
        .map(|at| at.wrapping_mul(2_654_435_761) ^ seed)
        .collect()
}

impl Held {
    fn check(&self) {
        let found = self.buffer.to_vec().expect("a copy");
        assert!(
            found == contents(found.len(), self.seed),
            "seed {}: the contents have changed",
            self.seed
        );
    }
}

/// Every block keeps its contents until it is freed, whichever streams used its memory before. Copies between blocks of
/// different streams are correct. `MILLPOND_CHURN_ROUNDS` is the number of turns.
#[test]
fn blocks_keep_their_contents_on_eight_streams() {
    if !is_alone("churn::blocks_keep_their_contents_on_eight_streams") {
        return;
    }
    let Some((device, _)) = device() else { return };
    let pool = builder().build(&device).expect("a pool");
    let streams: Vec<CudaStream> = (0..STREAMS)
        .map(|_| CudaStream::new(&device).expect("a stream"))
        .collect();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut dice = |sides: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % sides
    };
    let mut live: Vec<Held> = Vec::new();
    for turn in 0..turns() {
        for (stream, queue) in streams.iter().enumerate() {
            let most = 1 << (6 + dice(11));
            let len = 1 + dice(most).min(LARGEST) as usize;
            let seed = (turn as u32) << 8 | stream as u32;
            let buffer = pool.alloc_from(&contents(len, seed), queue).expect("memory");
            live.push(Held { buffer, seed, stream });
            // Copies a live block on another stream.
            if dice(4) == 0 {
                let from = &live[dice(live.len() as u64) as usize];
                let other = (from.stream + 1 + dice(STREAMS as u64 - 1) as usize) % STREAMS;
                let mut buffer = pool
                    .alloc::<u32>(from.buffer.len(), &streams[other])
                    .expect("memory");
                buffer.copy_from(&from.buffer).expect("a copy");
                let seed = from.seed;
                live.push(Held {
                    buffer,
                    seed,
                    stream: other,
                });
            }
            while live.len() > LIVE {
                let mut held = live.swap_remove(dice(live.len() as u64) as usize);
                if dice(8) == 0 {
                    held.check();
                }
                // The block is freed after another stream has used it.
                held.buffer
                    .record_use(&streams[dice(STREAMS as u64) as usize])
                    .expect("of the device");
            }
        }
        if turn % 16 == 15 {
            pool.compact();
        }
    }
    live.iter().for_each(Held::check);
    live.clear();
    let stats = pool.stats();
    assert_eq!((stats.requested.current, stats.allocations), (0, stats.frees));
    assert_eq!(pool.lost(), None);
}
