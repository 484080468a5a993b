//! A replay under the policy that made a recording must reproduce it, from whatever point the recording
//! starts.

mod support;

use millpond_replay::verify;
use millpond_trace::{ReadOptions, read};
use proptest::prelude::*;
use support::{Step, record};

const MIB: u64 = 1 << 20;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = (0u32..26, 0u64..1 << 20).prop_map(|(log, low)| (1u64 << log) + (low & ((1 << log) - 1)));
    proptest::collection::vec((proptest::option::weighted(0.6, size), 0usize..1000), 1..300)
}

proptest! {
    #[test]
    fn every_address_is_reproduced_from_any_cut(program in steps(), cut in 0usize..300) {
        let recording = record(&program, cut.min(program.len() - 1), true);
        if recording.events.iter().any(|e| e.action == millpond_trace::Action::Alloc) {
            let found = verify(&recording).expect("a snapshot");
            prop_assert_eq!(found.agreeing, found.allocations, "{:?}", found);
            prop_assert_eq!(found.unscripted_segments, 0);
        }
    }
}

/// A block kept a remainder that was too small to split. Behind it is a free block as large as one elsewhere.
/// Without the true size of the block, best fit chooses the wrong one and all later addresses differ.
#[test]
fn a_block_that_kept_a_remainder_is_sized_by_the_next_allocation() {
    const KEPT: u64 = 960 << 10;
    let program: Vec<Step> = vec![
        // One segment of 64 MiB is cut into 40 MB, 4 MiB + 960 KiB and 20 MiB. Another one has 20 MiB.
        (Some(64 * MIB), 0),
        (None, 0),
        (Some(40_960_000), 0),
        (Some(4 * MIB + KEPT), 0),
        (Some(20 * MIB), 0),
        (Some(20 * MIB), 0),
        // 4 MiB go into the middle hole. 960 KiB are too small to split off.
        (None, 1),
        (Some(4 * MIB), 0),
        // Both blocks of 20 MiB become free. The lower address wins the tie.
        (None, 2),
        (None, 1),
        (Some(8 * MIB), 0),
        (Some(8 * MIB), 0),
        (None, 1),
        (Some(3 * MIB), 0),
    ];
    let recording = record(&program, 10, false);
    assert!(
        recording
            .initial_blocks
            .iter()
            .any(|b| b.requested == 4 * MIB && b.bytes.is_none())
    );
    let found = verify(&recording).expect("a snapshot");
    assert_eq!((found.agreeing, found.allocations), (3, 3), "{found:?}");
}

/// Public recordings of real GPU runs, if they are available.
#[test]
fn public_snapshots_are_reproduced_to_the_address() {
    let folder = std::env::var_os("MILLPOND_SHARED")
        .map_or_else(
            || std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
            Into::into,
        )
        .join("traces/snapshots");
    let Ok(entries) = std::fs::read_dir(&folder) else {
        println!("skipped: no snapshots in {}", folder.display());
        return;
    };
    let mut verified = 0;
    for entry in entries.filter_map(Result::ok) {
        let recording = read(&entry.path(), &ReadOptions::default()).expect("a readable snapshot");
        for trace in &recording.traces {
            let found = verify(trace).expect("plain segments");
            assert_eq!(
                found.agreeing, found.allocations,
                "{}: {found:?}",
                trace.origin.name
            );
            verified += 1;
        }
    }
    assert!(verified >= 5, "{verified} snapshots with a history");
}
