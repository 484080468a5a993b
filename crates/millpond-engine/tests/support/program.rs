//! Programs of calls, fixed or random.

use proptest::prelude::*;

/// One call of a program.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Alloc {
        bytes: u64,
        stream: u32,
        group: u32,
    },
    /// Frees the live block at this index, modulo the number of live blocks, after these streams also used it.
    Free {
        index: usize,
        uses: Vec<u32>,
    },
    /// Completes every recorded event.
    Complete,
    Release,
    Compact,
    Step,
    /// Advances the time by this number of ticks.
    Tick(u32),
}

impl Op {
    pub(crate) fn is_in_a_private_pool(&self) -> bool {
        matches!(self, Self::Alloc { group, .. } if *group > 0)
    }
}

/// Sizes from zero to 4 GiB. Every power of two is equally likely, and sizes at which rules change are included.
pub(crate) fn size() -> impl Strategy<Value = u64> {
    let any_size = (0u32..=32, any::<u64>()).prop_map(|(log, random)| {
        let least = (1u64 << log) >> 1;
        least + random % (least.max(1) + 1)
    });
    let round = (0u64..=48).prop_map(|halves| halves << 19);
    let beside =
        (8u32..32, -1i64..=1).prop_map(|(log, step)| (1u64 << log).saturating_add_signed(step * 256));
    prop_oneof![4 => any_size, 2 => round, 1 => beside]
}

fn op() -> impl Strategy<Value = Op> {
    let alloc =
        (size(), 0u32..3, 0u32..2).prop_map(|(bytes, stream, group)| Op::Alloc { bytes, stream, group });
    let free = any::<usize>().prop_map(|index| Op::Free { index, uses: vec![] });
    let foreign = (any::<usize>(), proptest::collection::vec(0u32..3, 1..3))
        .prop_map(|(index, uses)| Op::Free { index, uses });
    prop_oneof![
        40 => alloc,
        25 => free,
        8 => foreign,
        3 => Just(Op::Complete),
        1 => Just(Op::Release),
        1 => Just(Op::Compact),
        1 => Just(Op::Step),
        2 => prop_oneof![Just(1), Just(2), Just(200)].prop_map(Op::Tick),
    ]
}

pub(crate) fn program(calls: usize) -> impl Strategy<Value = Vec<Op>> {
    proptest::collection::vec(op(), 1..calls)
}

/// A fixed program that resembles a random one: small, medium and large blocks on three streams and in two pools.
/// Several blocks wait for other streams, and some calls release memory.
pub(crate) fn fixed(calls: u64) -> Vec<Op> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let one = |call: u64| match next(100) {
        _ if call % 97 == 96 => Op::Release,
        0..55 => Op::Alloc {
            bytes: (1 << next(24)) + next(5000),
            stream: next(3) as u32,
            group: (next(8) == 0).into(),
        },
        55..85 => Op::Free {
            index: next(1000) as usize,
            uses: vec![],
        },
        85..96 => Op::Free {
            index: next(1000) as usize,
            uses: vec![next(3) as u32],
        },
        96..99 => Op::Complete,
        _ => Op::Step,
    };
    (0..calls).map(one).collect()
}

/// Returns the same program with additional compactions and ticks.
pub(crate) fn fixed_with_ticks(calls: u64) -> Vec<Op> {
    let mixed = |(at, op): (u64, Op)| match at {
        _ if at % 23 == 22 => vec![op, Op::Compact],
        _ if at % 17 == 16 => vec![op, Op::Tick(200)],
        _ if at % 5 == 4 => vec![op, Op::Tick(1)],
        _ => vec![op],
    };
    (0..).zip(fixed(calls)).flat_map(mixed).collect()
}
