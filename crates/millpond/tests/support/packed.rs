//! Data for compressed copies, and the comparison of the device's kernel with the host.

use millpond::codec::{self, Scheme};
use millpond::cuda::{CompressedError, CudaStream, DevicePool};

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Returns a number with an approximately standard normal distribution.
    fn normal(&mut self) -> f32 {
        let number = self.next();
        // The sum of four uniform numbers, which are the four parts of one random number.
        let sum = [0, 16, 32, 48]
            .map(|shift| number >> shift & 0xffff)
            .iter()
            .sum::<u64>();
        (sum as f32 / 65_536.0 - 2.0) * 3_f32.sqrt()
    }
}

/// The kinds of data.
pub(crate) const KINDS: [&str; 7] = [
    "weights",
    "activations",
    "tokens",
    "sparse",
    "constant",
    "increasing",
    "random",
];

/// Returns words of a kind.
pub(crate) fn words(kind: &str, len: usize) -> Vec<u32> {
    let mut random = Random(7);
    let mut sum = 0;
    let word = |_| match kind {
        "weights" => (random.normal() * 0.02).to_bits(),
        "activations" => random.normal().max(0.0).to_bits(),
        "tokens" => random.below(50_000) as u32,
        "sparse" if random.below(20) > 0 => 0,
        "constant" => 0x1234_5678,
        "increasing" => {
            sum += random.below(60) as u32;
            sum
        }
        _ => random.next() as u32,
    };
    (0..len).map(word).collect()
}

/// Packs data of each kind by random schemes and unpacks it on the host and on the device, as it is and damaged. Both must agree.
pub(crate) fn the_device_unpacks_like_the_host(
    pool: &DevicePool,
    stream: &CudaStream,
    cases: u64,
    most: u64,
) {
    let schemes: Vec<Scheme> = Scheme::all().collect();
    let mut damaged = 0;
    for case in 0..cases {
        let mut random = Random(case);
        let kind = KINDS[case as usize % KINDS.len()];
        let mut data: Vec<u8> = words(kind, most as usize / 4)
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        data.truncate(random.below(most) as usize);
        let scheme = schemes[random.below(schemes.len() as u64) as usize];
        let mut packed = vec![0; codec::bound(data.len())];
        let len = codec::pack(&data, &mut packed, scheme).expect("there is room");
        packed.truncate(len);
        let (host, device) = both(pool, stream, &packed, data.len());
        assert!(
            host.as_ref() == Some(&data) && device == host,
            "{kind} {} by {scheme:?}",
            data.len()
        );
        // The headers of blocks are more interesting than their content.
        for _ in 0..4 {
            let mut packed = packed.clone();
            for _ in 0..1 + random.below(3) {
                let end = if random.below(2) == 0 {
                    packed.len().min(150)
                } else {
                    packed.len()
                };
                packed[random.below(end as u64) as usize] = random.next() as u8;
            }
            if random.below(4) == 0 {
                packed.truncate(random.below(packed.len() as u64) as usize);
            }
            let (host, device) = both(pool, stream, &packed, data.len());
            assert!(
                device == host,
                "case {case}, damaged, {kind} {} by {scheme:?}",
                data.len()
            );
            damaged += u64::from(host.is_none());
        }
    }
    assert!(damaged > cases / 2, "{damaged} of {cases}");
}

/// Unpacks on the host and on the device. Returns `None` for data that is refused.
fn both(
    pool: &DevicePool,
    stream: &CudaStream,
    packed: &[u8],
    len: usize,
) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
    let mut host = vec![0; len];
    let host = codec::unpack(packed, &mut host).ok().map(|()| host);
    let packed = pool.alloc_from(packed, stream).expect("memory");
    let mut there = pool.alloc::<u8>(len, stream).expect("memory");
    let device = match there.unpack(&packed, pool) {
        Ok(()) => Some(there.to_vec().expect("a copy")),
        Err(CompressedError::Damaged { bytes }) if bytes == len as u64 => None,
        Err(error) => panic!("{error}"),
    };
    (host, device)
}
