//! Random programs of calls to a source. The runner wraps the numbers around.

use proptest::prelude::*;

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Take {
        pages: u64,
    },
    Give {
        which: usize,
    },
    Reserve {
        pages: u64,
    },
    Release {
        which: usize,
    },
    Commit {
        which: usize,
        page: u64,
        handles: u64,
        handle: u64,
    },
    /// Decommits the n-th committed handle and those directly after it.
    Decommit {
        which: usize,
        handles: usize,
    },
    Move {
        which: usize,
        handles: usize,
        to: usize,
        page: u64,
    },
    /// Replaces a handle. It keeps the pages whose bits are set.
    Relocate {
        which: usize,
        kept: u8,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let which = any::<usize>;
    prop_oneof![
        3 => (1u64..4).prop_map(|pages| Op::Take { pages }),
        3 => which().prop_map(|which| Op::Give { which }),
        2 => (4u64..24).prop_map(|pages| Op::Reserve { pages }),
        1 => which().prop_map(|which| Op::Release { which }),
        8 => (which(), 0u64..24, 1u64..5, 1u64..4)
            .prop_map(|(which, page, handles, handle)| Op::Commit { which, page, handles, handle }),
        5 => (which(), 1usize..5).prop_map(|(which, handles)| Op::Decommit { which, handles }),
        5 => (which(), 1usize..5, which(), 0u64..24)
            .prop_map(|(which, handles, to, page)| Op::Move { which, handles, to, page }),
        2 => (which(), 1u8..8).prop_map(|(which, kept)| Op::Relocate { which, kept }),
    ]
}

pub(crate) fn program(calls: usize) -> impl Strategy<Value = Vec<Op>> {
    proptest::collection::vec(op(), 1..calls)
}
