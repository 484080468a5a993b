//! Blocks that come and go on many streams, each with contents of its own.

use crate::{builder, device, is_alone};
use millpond::cuda::{CudaStream, DeviceBuffer};

const STREAMS: usize = 8;
/// Words of the largest block.
const LARGEST: u64 = 64 << 10;
/// Blocks that live at once.
const LIVE: usize = 48;

/// How many turns each stream takes: few in the suite, more where it is run for long.
fn turns() -> u64 {
    let said = std::env::var("MILLPOND_CHURN_ROUNDS").ok();
    said.and_then(|turns| turns.parse().ok()).unwrap_or(40)
}

/// A block, what was written into it, and the stream that it is of.
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
            "seed {}: the contents are others",
            self.seed
        );
    }
}

/// Every block has what was written into it until it is given back, whichever streams used its memory before, and copies between
/// blocks of different streams are right. `MILLPOND_CHURN_ROUNDS` is the number of turns.
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
            // A copy on another stream, of what is there.
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
                // Another stream has used it when it is given back.
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
