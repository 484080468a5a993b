use super::*;
use millpond_trace::{ReadOptions, read_bytes};

const MIB: u64 = 1 << 20;

/// Returns a trace whose initial state can be set.
fn empty() -> Trace {
    let csv = b"time_us,action,id,bytes,stream,tag\n0,alloc,1,512,0,a\n1,free,1,512,0,\n";
    let recording = read_bytes(csv, "empty", &ReadOptions::default()).expect("read");
    recording.traces.into_iter().next().expect("a trace")
}

fn segment(address: u64, mib: u64, pool: u16, small: bool) -> InitialSegment {
    InitialSegment {
        address: address * MIB,
        bytes: mib * MIB,
        stream: 0,
        pool,
        small,
        expandable: false,
    }
}

fn block(address: u64, mib: u64) -> InitialBlock {
    InitialBlock {
        address: address * MIB,
        requested: mib * MIB,
        bytes: Some(mib * MIB),
        allocation: 0,
        tag: 0,
        stream: 0,
        pool: 0,
        pending: false,
    }
}

#[test]
fn holes_are_between_blocks_and_inside_one_segment() {
    let mut trace = empty();
    trace.pools.push((0, 7));
    trace.initial_segments = vec![
        segment(100, 20, 0, false),
        segment(120, 40, 0, false),
        segment(200, 50, 1, false),
        segment(300, 2, 0, true),
    ];
    let waiting = InitialBlock {
        pending: true,
        ..block(115, 3)
    };
    // Free: 100 to 105, 113 to 115, 118 to 120, then 40, 50 and 2 MiB in segments without blocks.
    trace.initial_blocks = vec![block(105, 8), waiting];
    let found = Occupancy::of_initial(&trace);
    let total = &found.total;
    assert_eq!(
        (total.segments, total.blocks, total.holes, total.idle_segments),
        (4, 1, 6, 3)
    );
    assert_eq!(total.reserved_bytes, 112 * MIB);
    assert_eq!((total.block_bytes, total.waiting_bytes), (8 * MIB, 3 * MIB));
    assert_eq!(total.free_bytes, (9 + 40 + 50 + 2) * MIB);
    assert_eq!(
        (total.largest_hole_bytes, total.returnable_bytes),
        (50 * MIB, 42 * MIB)
    );
    assert!((found.external_fragmentation - (1.0 - 50.0 / 101.0)).abs() < 1e-12);
    // The hole in the private pool is larger, but serves no other request.
    assert_eq!(found.largest_cached_request_bytes, 40 * MIB);
    let pools: Vec<&str> = found.pools.iter().map(|pool| pool.pool.as_str()).collect();
    assert_eq!(
        pools,
        ["default, small", "default, large", "private (0, 7), large"]
    );
    assert_eq!(found.segments[0].holder, OLDER);
    assert_eq!(found.segments[1].holder, "");
}

#[test]
fn a_small_segment_serves_at_most_a_mebibyte() {
    let mut trace = empty();
    trace.initial_segments = vec![segment(100, 2, 0, true)];
    assert_eq!(Occupancy::of_initial(&trace).largest_cached_request_bytes, MIB);
}

#[test]
fn an_expandable_segment_returns_whole_pages() {
    let mut trace = empty();
    let large = InitialSegment {
        expandable: true,
        ..segment(100, 100, 0, false)
    };
    trace.initial_segments = vec![large];
    // A page of 20 MiB ends at 120, 140 and so on: 111 to 165 contains the two from 120 to 160.
    trace.initial_blocks = vec![block(100, 11), block(165, 35)];
    let found = Occupancy::of_initial(&trace);
    assert_eq!(
        (found.total.idle_segments, found.total.returnable_bytes),
        (0, 40 * MIB)
    );
}

#[test]
fn overlapping_blocks_count_one_time_and_blocks_outside_do_not_count() {
    let mut trace = empty();
    trace.initial_segments = vec![segment(100, 20, 0, false)];
    let endless = InitialBlock {
        bytes: Some(u64::MAX),
        ..block(110, 1)
    };
    trace.initial_blocks = vec![block(10, 5), block(100, 8), block(104, 8), endless, block(500, 1)];
    let total = Occupancy::of_initial(&trace).total;
    assert_eq!((total.block_bytes, total.free_bytes), (20 * MIB, 0));
}

#[test]
fn the_largest_fresh_request_follows_the_rules_of_segments() {
    assert_eq!(largest_fresh_request(MIB), 0);
    assert_eq!(largest_fresh_request(9 * MIB), MIB);
    assert_eq!(largest_fresh_request(31 * MIB), 30 * MIB);
}
