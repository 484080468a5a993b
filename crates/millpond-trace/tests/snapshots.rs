//! Tests of snapshots of all versions, and of the state before their history.

mod support;

use millpond_trace::{Action, Caution, Event, Finding, InitialSegment, NO_ALLOCATION, Trace, write_csv};
use support::*;

const MIB: u64 = 1 << 20;
const BASE: u64 = 0x7f00_0000_0000;

/// Returns the fields of each event that are compared.
fn short(trace: &Trace) -> Vec<(Action, u32, u64, u64)> {
    trace
        .events
        .iter()
        .map(|event| (event.action, event.allocation, event.bytes, event.address))
        .collect()
}

fn initial(trace: &Trace) -> Vec<(u64, u64, Option<u64>, bool)> {
    trace
        .initial_blocks
        .iter()
        .map(|block| (block.address, block.requested, block.bytes, block.pending))
        .collect()
}

#[test]
fn a_history_from_the_start_has_no_initial_state() {
    let value = snapshot(
        vec![segment(
            BASE,
            20 * MIB,
            "large",
            vec![
                block(BASE, 2 * MIB, 2 * MIB - 5, "active_allocated"),
                block(BASE + 2 * MIB, 18 * MIB, 0, "inactive"),
            ],
        )],
        vec![
            entry("segment_alloc", BASE, 20 * MIB, 0, 10),
            entry("alloc", BASE, 2 * MIB - 5, 0, 11),
            entry("alloc", BASE + 2 * MIB, 3 * MIB, 0, 12),
            entry("free_requested", BASE + 2 * MIB, 3 * MIB, 0, 13),
            entry("free_completed", BASE + 2 * MIB, 3 * MIB, 0, 14),
            entry("snapshot", 0, 0, 0, 15),
        ],
    );
    for protocol in [0, 1, 2, 3, 4] {
        let recording = read(&pickle(&value, protocol)).unwrap();
        let [trace] = recording.traces.as_slice() else {
            panic!("one trace")
        };
        assert_eq!(
            short(trace),
            [
                (Action::SegmentAlloc, NO_ALLOCATION, 20 * MIB, BASE),
                (Action::Alloc, 0, 2 * MIB - 5, BASE),
                (Action::Alloc, 1, 3 * MIB, BASE + 2 * MIB),
                (Action::Free, 1, 3 * MIB, BASE + 2 * MIB),
            ]
        );
        assert_eq!(
            trace.events.iter().map(|event| event.time_us).collect::<Vec<_>>(),
            [10, 11, 12, 14]
        );
        assert_eq!(trace.allocations, 2);
        assert!(trace.initial_blocks.is_empty() && trace.initial_segments.is_empty());
        assert_eq!(trace.final_reserved_bytes, Some(20 * MIB));
        assert_eq!(trace.recorded_peak_reserved, Some(20 * MIB));
        assert_eq!(trace.cautions, []);
        assert_eq!((trace.origin.name.as_str(), trace.origin.device), ("test", 0));
        let total = recording.states[0].total();
        assert_eq!(
            (total.segments, total.blocks, total.reserved_bytes),
            (1, 1, 20 * MIB)
        );
        assert_eq!(
            (total.allocated_bytes, total.requested_bytes),
            (2 * MIB, 2 * MIB - 5)
        );
    }
}

#[test]
fn the_state_before_a_wrapped_ring_is_rebuilt() {
    // Before the window: a (freed in it), b (live throughout), c (waiting for a stream at its start).
    let (a, b, c, d) = (BASE, BASE + 2 * MIB, BASE + 4 * MIB, BASE + 6 * MIB);
    let value = snapshot(
        vec![segment(
            BASE,
            20 * MIB,
            "large",
            vec![
                block(a, 2 * MIB, 7, "inactive"),
                block(b, 2 * MIB, 2 * MIB - 100, "active_allocated"),
                block(c, 2 * MIB, 9, "inactive"),
                block(d, 2 * MIB, 2 * MIB - 1, "active_pending_free"),
                block(BASE + 8 * MIB, 12 * MIB, 0, "inactive"),
            ],
        )],
        vec![
            entry("free_completed", c, 2 * MIB - 7, 3, 20),
            entry("free_requested", a, 2 * MIB - 50, 0, 21),
            entry("alloc", d, 2 * MIB - 1, 3, 22),
            entry("free_completed", a, 2 * MIB - 50, 0, 23),
            entry("free_requested", d, 2 * MIB - 1, 3, 24),
        ],
    );
    let recording = read_py(&value);
    let trace = &recording.traces[0];
    assert_eq!(
        initial(trace),
        [
            (a, 2 * MIB - 50, None, false),
            (b, 2 * MIB - 100, Some(2 * MIB), false),
            (c, 2 * MIB - 7, None, true),
        ]
    );
    assert_eq!(
        trace
            .initial_blocks
            .iter()
            .map(|block| block.allocation)
            .collect::<Vec<_>>(),
        [0, 1, 2]
    );
    assert_eq!(
        short(trace),
        [
            (Action::FreeCompleted, 2, 2 * MIB - 7, c),
            (Action::FreeRequested, 0, 2 * MIB - 50, a),
            (Action::Alloc, 3, 2 * MIB - 1, d),
            (Action::FreeCompleted, 0, 2 * MIB - 50, a),
            (Action::FreeRequested, 3, 2 * MIB - 1, d),
        ]
    );
    assert_eq!(trace.streams, [0, 3]);
    let expected = InitialSegment {
        address: BASE,
        bytes: 20 * MIB,
        stream: 0,
        pool: 0,
        small: false,
        expandable: false,
    };
    assert_eq!(trace.initial_segments, [expected]);
    let initial_bytes = 2 * MIB - 50 + 2 * MIB - 100;
    assert_eq!(
        trace.cautions,
        [Caution::RingWrapped {
            initial_blocks: 3,
            initial_bytes,
            full: false
        }]
    );
    assert_eq!(recording.states[0].total().pending_blocks, 1);
}

#[test]
fn segments_released_during_the_history_are_in_the_initial_state() {
    let (small, large, late) = (BASE, BASE + 64 * MIB, BASE + 128 * MIB);
    let value = snapshot(
        vec![segment(
            late,
            20 * MIB,
            "large",
            vec![block(late, 20 * MIB, 0, "inactive")],
        )],
        vec![
            entry("free_requested", small, 512, 0, 1),
            entry("free_completed", small, 512, 0, 1),
            entry("free_completed", large, 2 * MIB, 0, 2),
            entry("segment_free", small, 2 * MIB, 0, 3),
            entry("segment_free", large, 2 * MIB, 5, 3),
            entry("segment_alloc", late, 20 * MIB, 0, 4),
        ],
    );
    let recording = read_py(&value);
    let trace = &recording.traces[0];
    let kinds: Vec<_> = trace
        .initial_segments
        .iter()
        .map(|held| (held.address, held.bytes, held.small))
        .collect();
    // The second segment served a request that no small segment serves.
    assert_eq!(kinds, [(small, 2 * MIB, true), (large, 2 * MIB, false)]);
    assert_eq!(trace.streams[usize::from(trace.initial_segments[1].stream)], 5);
    assert_eq!(trace.recorded_peak_reserved, Some(20 * MIB));
    assert_eq!(trace.final_reserved_bytes, Some(20 * MIB));
}

#[test]
fn expandable_segments_are_ranges() {
    let held = with(
        segment(
            BASE,
            6 * MIB,
            "small",
            vec![block(BASE, 6 * MIB, 6 * MIB, "inactive")],
        ),
        "is_expandable",
        true,
    );
    let value = snapshot(
        vec![held],
        vec![
            entry("segment_unmap", BASE + 6 * MIB, 4 * MIB, 0, 1),
            entry("segment_map", BASE + 2 * MIB, 2 * MIB, 0, 2),
            entry("segment_unmap", BASE + 40 * MIB, 40 * MIB, 0, 3),
        ],
    );
    let recording = read_py(&value);
    let trace = &recording.traces[0];
    let ranges: Vec<_> = trace
        .initial_segments
        .iter()
        .map(|held| (held.address, held.bytes, held.small, held.expandable))
        .collect();
    assert_eq!(
        ranges,
        [
            (BASE, 2 * MIB, true, true),
            (BASE + 4 * MIB, 6 * MIB, true, true),
            (BASE + 40 * MIB, 40 * MIB, false, true),
        ]
    );
    assert_eq!(trace.settings.expandable_segments, Some(true));
    assert_eq!(trace.final_reserved_bytes, Some(6 * MIB));
    assert_eq!(trace.recorded_peak_reserved, Some(48 * MIB));
    assert_eq!(trace.cautions, []);
}

#[test]
fn the_oldest_schema_is_a_bare_list() {
    let history = dict! { "addr" => BASE, "real_size" => 400, "frames" => vec![
        dict! { "filename" => "/a/model.py", "line" => 12, "name" => "forward" },
    ] };
    let blocks = vec![
        dict! { "size" => 512, "state" => "active_allocated", "history" => vec![history] },
        dict! { "size" => 512, "state" => "active_awaiting_free" },
        dict! { "size" => 2 * MIB - 1024, "state" => "inactive" },
    ];
    let list = Py::List(vec![dict! {
        "device" => 1, "address" => BASE, "total_size" => 2 * MIB, "stream" => 0, "segment_type" => "small",
        "blocks" => blocks,
    }]);
    let recording = read_py(&list);
    assert!(recording.traces.is_empty());
    let [state] = recording.states.as_slice() else {
        panic!("one state")
    };
    let [pool] = state.pools.as_slice() else {
        panic!("one pool")
    };
    assert_eq!(
        (state.device, pool.small, pool.blocks, pool.pending_blocks),
        (1, true, 1, 1)
    );
    assert_eq!(
        (pool.requested_bytes, pool.allocated_bytes, pool.active_bytes),
        (400, 512, 1024)
    );
    assert_eq!(recording.cautions, []);
}

#[test]
fn an_old_history_has_no_times_and_a_block_history() {
    let old = |action: &str, addr: u64, size: u64| without(entry(action, addr, size, 0, 0), "time_us");
    let history = dict! { "addr" => BASE, "real_size" => 400, "frames" => vec![
        dict! { "filename" => "/a/model.py", "line" => 12, "name" => "forward" },
    ] };
    let value = snapshot(
        vec![dict! {
            "device" => 0, "address" => BASE, "total_size" => 2 * MIB, "stream" => 0, "segment_type" => "small",
            "blocks" => vec![
                dict! { "size" => 512, "state" => "active_allocated", "history" => vec![history] },
                dict! { "size" => 2 * MIB - 512, "state" => "inactive" },
            ],
        }],
        vec![
            old("alloc", BASE + 512, 100),
            old("free_requested", BASE + 512, 100),
            old("free_completed", BASE + 512, 100),
        ],
    );
    let recording = read_py(&value);
    let trace = &recording.traces[0];
    assert_eq!(initial(trace), [(BASE, 400, Some(512), false)]);
    assert_eq!(trace.tags.get(trace.initial_blocks[0].tag), "model.py:forward:12");
    assert_eq!(
        short(trace),
        [
            (Action::Alloc, 1, 100, BASE + 512),
            (Action::Free, 1, 100, BASE + 512)
        ]
    );
    assert!(trace.cautions.contains(&Caution::NoTimes));
}

#[test]
fn devices_are_read_separately() {
    let value = dict! {
        "segments" => vec![with(segment(BASE, 2 * MIB, "small", vec![block(BASE, 2 * MIB, 0, "inactive")]), "device", 2)],
        "device_traces" => vec![
            Py::List(vec![entry("alloc", BASE, 8, 0, 1)]),
            Py::List(vec![]),
            Py::List(vec![entry("alloc", BASE, 9, 0, 1), entry("free_completed", BASE, 9, 0, 2)]),
        ],
        "host_traces" => vec![entry("alloc", 64, 10, 0, 1)],
        "something_new" => 1,
    };
    let recording = read_py(&value);
    let found: Vec<_> = recording
        .traces
        .iter()
        .map(|trace| (trace.origin.device, trace.events[0].bytes, trace.events.len()))
        .collect();
    assert_eq!(found, [(-1, 10, 1), (0, 8, 1), (2, 9, 2)]);
    assert_eq!(
        recording
            .states
            .iter()
            .map(|state| state.device)
            .collect::<Vec<_>>(),
        [2]
    );
}

#[test]
fn private_pools_come_from_events_or_from_segments() {
    let id = |second: u64| Py::Tuple(vec![0.into(), second.into()]);
    let held = with(
        segment(
            BASE,
            2 * MIB,
            "small",
            vec![
                block(BASE, 512, 500, "active_allocated"),
                block(BASE + 512, 2 * MIB - 512, 0, "inactive"),
            ],
        ),
        "segment_pool_id",
        id(3),
    );
    let plain = vec![
        entry("alloc", BASE, 500, 0, 1),
        entry("alloc", BASE + 512, 600, 0, 2),
        entry("free_completed", BASE + 512, 600, 0, 3),
    ];
    let named = plain
        .iter()
        .map(|event| with(event.clone(), "pool_id", id(3)))
        .collect();
    for history in [plain, named] {
        let recording = read_py(&snapshot(vec![held.clone()], history));
        let trace = &recording.traces[0];
        assert_eq!(trace.pools, [(0, 0), (0, 3)]);
        assert!(
            trace.events.iter().all(|event| event.pool == 1),
            "{:?}",
            trace.events
        );
        assert_eq!(trace.initial_segments[0].pool, 1);
        assert_eq!(recording.states[0].pools[0].pool, (0, 3));
    }
}

#[test]
fn a_failed_request_contains_the_free_bytes_of_the_device() {
    let oom = dict! { "action" => "oom", "device_free" => 12345, "size" => 99, "stream" => 0, "time_us" => 5, "frames" => vec![] };
    let recording = read_py(&snapshot(vec![], vec![oom]));
    let event = recording.traces[0].events[0];
    assert_eq!(
        (event.action, event.bytes, event.address),
        (Action::OutOfMemory, 99, 12345)
    );
    assert_eq!(recording.traces[0].final_reserved_bytes, None);
}

#[test]
fn contradictions_are_counted() {
    // A segment and a block that were never freed but are missing at the end, and a freed block that neither completes
    // nor waits.
    let value = snapshot(
        vec![],
        vec![
            entry("segment_alloc", BASE, 2 * MIB, 0, 1),
            entry("alloc", BASE, 100, 0, 2),
            entry("alloc", BASE, 200, 0, 3),
            entry("free_requested", BASE, 200, 0, 4),
        ],
    );
    let recording = read_py(&value);
    let trace = &recording.traces[0];
    assert_eq!(
        short(trace),
        [
            (Action::SegmentAlloc, NO_ALLOCATION, 2 * MIB, BASE),
            (Action::Alloc, 0, 100, BASE),
            (Action::Free, 0, 100, BASE),
            (Action::Alloc, 1, 200, BASE),
            (Action::Free, 1, 200, BASE),
        ]
    );
    assert!(
        trace
            .cautions
            .contains(&Caution::Counted(Finding::StateDisagrees, 2)),
        "{:?}",
        trace.cautions
    );
    assert!(
        trace
            .cautions
            .contains(&Caution::Counted(Finding::AllocatedTwice, 1))
    );
    assert!(
        trace
            .cautions
            .contains(&Caution::Counted(Finding::FreesNotCompleted, 1))
    );
}

#[test]
fn events_with_impossible_sizes_are_skipped() {
    let value = snapshot(
        vec![],
        vec![
            entry("alloc", BASE, 0, 0, 1),
            entry("alloc", BASE + 1, 1 << 63, 0, 2),
            with(entry("alloc", BASE + 2, 1, 0, 3), "size", -4),
            with(entry("alloc", BASE + 3, 1, 0, 3), "size", i128::MAX),
            with(entry("alloc", BASE + 4, 1, 0, 3), "size", "many"),
            without(entry("alloc", BASE + 4, 1, 0, 3), "addr"),
            Py::None,
        ],
    );
    let trace = &read_py(&value).traces[0];
    assert_eq!(short(trace), [(Action::Alloc, 0, 0, BASE)]);
    for caution in [
        Caution::Counted(Finding::ZeroBytes, 1),
        Caution::Counted(Finding::AbsurdBytes, 2),
        Caution::Counted(Finding::NegativeBytes, 1),
        Caution::Counted(Finding::UnreadableEvents, 3),
    ] {
        assert!(
            trace.cautions.contains(&caution),
            "{caution:?} in {:?}",
            trace.cautions
        );
    }
}

#[test]
fn tags_omit_frames_of_the_allocator_and_the_unwinder() {
    let frame =
        |file: &str, name: &str, line: i32| dict! { "filename" => file, "name" => name, "line" => line };
    let stack = Py::Shared(
        1,
        Box::new(Py::List(vec![
            frame("??", "torch::unwind::unwind()", 0),
            frame("CUDACachingAllocator.cpp", "c10::cuda::malloc(int, int)", 0),
            frame("", "at::native::empty_cuda(c10::Scalar, int)", 0),
            frame("/home/u/model,v2.py", "forward", 12),
            frame("<string>", "<lambda>", 1),
        ])),
    );
    let native = Py::List(vec![
        frame("??", "at::empty(int, int)", 0),
        frame("x.cpp", "std::call()", 3),
    ]);
    let event = |at: u64, frames: &Py| with(entry("alloc", at, 8, 0, 1), "frames", frames.clone());
    let value = snapshot(
        vec![],
        vec![
            event(1, &stack),
            event(2, &stack),
            event(3, &native),
            with(event(4, &stack), "user_metadata", "step 3"),
        ],
    );
    let trace = &read_py(&value).traces[0];
    let tags: Vec<&str> = trace
        .events
        .iter()
        .map(|event| trace.tags.get(event.tag))
        .collect();
    let python = "at::native::empty_cuda<model_v2.py:forward:12<<string>:<lambda>:1";
    assert_eq!(tags, [python, python, "at::empty", &format!("step 3;{python}")]);
    assert_eq!(trace.tags.len(), 4);
}

#[test]
fn settings_are_read() {
    let settings = dict! {
        "PYTORCH_CUDA_ALLOC_CONF" => "max_split_size_mb:128", "max_split_size" => 128 * MIB,
        "garbage_collection_threshold" => Py::Float(0.8), "expandable_segments" => false,
        "roundup_power2_divisions" => dict! { "1" => 0, "256" => 4, "64" => 8 },
        "trace_alloc_max_entries" => 2,
    };
    let value = with(
        snapshot(
            vec![],
            vec![entry("alloc", 1, 8, 0, 1), entry("alloc", 2, 8, 0, 1)],
        ),
        "allocator_settings",
        settings,
    );
    let trace = &read_py(&value).traces[0];
    assert_eq!(trace.settings.conf.as_deref(), Some("max_split_size_mb:128"));
    assert_eq!(trace.settings.max_split_size, Some(128 * MIB));
    assert_eq!(trace.settings.garbage_collection_threshold, Some(0.8));
    assert_eq!(trace.settings.expandable_segments, Some(false));
    assert_eq!(
        trace.settings.roundup_power2_divisions,
        [(64 * MIB, 8), (256 * MIB, 4)]
    );
    assert!(matches!(
        trace.cautions[0],
        Caution::RingWrapped {
            initial_blocks: 0,
            full: true,
            ..
        }
    ));
}

#[test]
fn a_snapshot_is_unchanged_by_conversion_to_csv() {
    let (a, b) = (BASE, BASE + 2 * MIB);
    let frames = vec![dict! { "filename" => "m.py", "name" => "f", "line" => 1 }];
    let value = with(
        snapshot(
            vec![with(
                segment(
                    BASE,
                    20 * MIB,
                    "large",
                    vec![
                        block(a, 2 * MIB, 7, "inactive"),
                        block(b, 2 * MIB, 2 * MIB - 100, "active_allocated"),
                        block(BASE + 4 * MIB, 16 * MIB, 0, "inactive"),
                    ],
                ),
                "segment_pool_id",
                Py::Tuple(vec![1.into(), 0.into()]),
            )],
            vec![
                entry("free_requested", a, 2 * MIB - 50, 9, 21),
                with(entry("alloc", BASE + 4 * MIB, 5, 9, 22), "frames", frames),
                entry("free_completed", a, 2 * MIB - 50, 9, 23),
                dict! { "action" => "oom", "device_free" => 12345, "size" => 99, "stream" => 0, "time_us" => 25 },
                entry("free_requested", BASE + 4 * MIB, 5, 9, 26),
                entry("free_completed", BASE + 4 * MIB, 5, 9, 26),
            ],
        ),
        "allocator_settings",
        dict! { "PYTORCH_CUDA_ALLOC_CONF" => "a:b", "expandable_segments" => false },
    );
    let trace = read_py(&value).traces.remove(0);
    let mut csv = Vec::new();
    write_csv(&trace, &mut csv).unwrap();
    let back = read(&csv).unwrap().traces.remove(0);
    same(&trace, &back);
    assert_eq!(trace.settings, back.settings);
    assert_eq!(trace.final_reserved_bytes, back.final_reserved_bytes);
    assert_eq!(trace.cautions, back.cautions);
}

/// Asserts that two traces are equal except for the numbering of tags, streams and pools.
fn same(left: &Trace, right: &Trace) {
    let plain = |trace: &Trace| -> Vec<_> {
        let event = |event: &Event| {
            let tag = trace.tags.get(event.tag).to_owned();
            let stream = trace.streams[usize::from(event.stream)];
            (
                Event {
                    tag: 0,
                    stream: 0,
                    pool: 0,
                    ..*event
                },
                tag,
                stream,
                trace.pools[usize::from(event.pool)],
            )
        };
        trace.events.iter().map(event).collect()
    };
    assert_eq!(plain(left), plain(right));
    assert_eq!(left.allocations, right.allocations);
    assert_eq!(initial(left), initial(right));
    assert_eq!(left.initial_segments.len(), right.initial_segments.len());
    for (left, right) in left.initial_segments.iter().zip(&right.initial_segments) {
        assert_eq!(
            (left.address, left.bytes, left.small, left.expandable),
            (right.address, right.bytes, right.small, right.expandable)
        );
    }
}

/// Returns a frame of a stack.
fn frame(file: &str, name: &str, line: i32) -> Py {
    dict! { "filename" => file, "name" => name, "line" => line }
}

/// Returns the tag of an allocation with these frames and other keys, and the cautions.
fn tag_of(frames: Vec<Py>, keys: Vec<(&str, Py)>) -> (String, Vec<Caution>) {
    let mut event = with(entry("alloc", BASE, 8, 0, 1), "frames", frames);
    for (key, value) in keys {
        event = with(event, key, value);
    }
    let recording = read_py(&snapshot(vec![], vec![event]));
    let trace = &recording.traces[0];
    (
        trace.tags.get(trace.events[0].tag).to_owned(),
        trace.cautions.clone(),
    )
}

#[test]
fn whole_stacks_are_kept_and_only_extreme_ones_are_cut() {
    let stack = |frames: i32| {
        let lines = (0..frames).map(|line| frame("m.py", "f", line)).collect();
        let (tag, cautions) = tag_of(lines, vec![]);
        let is_cut = cautions.contains(&Caution::Counted(Finding::StacksCut, 1));
        (tag.matches("m.py").count(), is_cut)
    };
    assert_eq!(
        [stack(9), stack(200), stack(3000)],
        [(9, false), (200, false), (3000, false)]
    );
    let (kept, is_cut) = stack(50_000);
    assert!(is_cut && (3000..10_000).contains(&kept), "{kept}");
    let sentence = Caution::Counted(Finding::StacksCut, 2).to_string();
    assert_eq!(
        sentence,
        "2 stacks were too long to keep in full: the outermost callers are not shown"
    );
}

#[test]
fn files_of_packages_keep_their_paths() {
    let frames = vec![
        frame(
            "/v/lib/python3.12/site-packages/torch/nn/functional.py",
            "linear",
            9,
        ),
        frame("/home/u/model.py", "forward", 12),
        frame("/usr/lib/python3.12/threading.py", "run", 3),
    ];
    assert_eq!(
        tag_of(frames, vec![]).0,
        "torch/nn/functional.py:linear:9<model.py:forward:12<python3.12/threading.py:run:3"
    );
}

#[test]
fn memory_of_a_backward_pass_is_named_by_its_node_and_forward_line() {
    let node = "torch::autograd::generated::MulBackward0::apply(std::vector<at::Tensor>&&)";
    let engine = "torch::autograd::Engine::evaluate_function(std::shared_ptr<GraphTask>&)";
    let native = |name: &str| frame("??", name, 0);
    let of_node = || {
        vec![
            native("at::detail::empty_strided_generic(int)"),
            native("at::_ops::empty_like::call(int)"),
            native("at::_ops::mul_Tensor::call(at::Tensor const&)"),
            native(node),
            native("torch::autograd::Node::operator()(int)"),
            native(engine),
        ]
    };
    let stack = "at::detail::empty_strided_generic<at::_ops::empty_like::call<at::_ops::mul_Tensor::call<\
                 torch::autograd::generated::MulBackward0::apply<torch::autograd::Node::operator<\
                 torch::autograd::Engine::evaluate_function";
    assert_eq!(
        tag_of(of_node(), vec![]).0,
        format!("bwd;MulBackward0;mul_Tensor;{stack}")
    );
    // On the host, the backward pass runs on the thread that requests it. That line is not the forward line.
    let mut on_host = of_node();
    on_host.push(frame("train.py", "step", 80));
    assert_eq!(
        tag_of(on_host, vec![]).0,
        format!("bwd;MulBackward0;mul_Tensor;{stack}<train.py:step:80")
    );
    let traceback = vec![
        Py::from("  File \"/u/train.py\", line 80, in step\n    loss = model(x)\n"),
        Py::from("  File \"/u/model.py\", line 12, in forward\n    return a * b\n"),
        Py::from("  File \"/v/site-packages/torch/nn/functional.py\", line 9, in linear\n"),
        Py::from("no traceback"),
    ];
    assert_eq!(
        tag_of(of_node(), vec![("forward_frames", traceback.into())]).0,
        format!(
            "bwd;model.py:forward:12/MulBackward0;mul_Tensor;\
             {stack}<torch/nn/functional.py:linear:9<model.py:forward:12<train.py:step:80"
        )
    );
    // Compiled functions have the forward line inside the backward pass.
    let compiled = vec![
        frame("/v/site-packages/torch/_inductor/utils.py", "run", 7),
        frame("/u/model.py", "forward", 107),
        native("torch::autograd::PyNode::apply(int)"),
        native(engine),
    ];
    let (tag, _) = tag_of(compiled, vec![("user_metadata", "step 3".into())]);
    assert!(
        tag.starts_with("bwd;step 3/model.py:forward:107;;torch/_inductor"),
        "{tag}"
    );
    let without_node = vec![
        native("at::detail::empty_cuda(int)"),
        native("torch::autograd::InputBuffer::add(int)"),
        native(engine),
    ];
    let (tag, _) = tag_of(without_node, vec![]);
    assert!(tag.starts_with("bwd;InputBuffer::add;;at::detail"), "{tag}");
}

/// A recording reports which devices have no history.
#[test]
fn missing_histories_are_reported() {
    let blocks = vec![
        block(BASE, 2 * MIB, 2 * MIB - 5, "active_allocated"),
        block(BASE + 2 * MIB, MIB, MIB, "active_pending_free"),
        block(BASE + 3 * MIB, 17 * MIB, 0, "inactive"),
    ];
    let recording = read_py(&snapshot(vec![segment(BASE, 20 * MIB, "large", blocks)], vec![]));
    assert!(recording.traces.is_empty(), "nothing of it can be replayed");
    let [standing] = recording.standing.as_slice() else {
        panic!("one device")
    };
    assert_eq!(
        initial(standing),
        [
            (BASE, 2 * MIB - 5, Some(2 * MIB), false),
            (BASE + 2 * MIB, MIB, Some(MIB), true)
        ]
    );
    assert_eq!(standing.initial_segments[0].bytes, 20 * MIB);
    assert_eq!(standing.cautions, [Caution::NoHistory { device: 0 }]);
}

#[test]
#[cfg(feature = "recording")]
fn the_start_of_a_snapshot_is_its_first_time() {
    use millpond_trace::ReadOptions;
    use millpond_trace::history::{Flow, History};
    let first = 1_795_915_805_278_272;
    let times_of = |first: u64| {
        let history = |times: [u64; 2]| {
            Py::List(
                times
                    .map(|time| entry("alloc", BASE + time, MIB, 0, first + time))
                    .into(),
            )
        };
        // The second device begins before the first.
        let traces = vec![history([7, 9]), history([0, 8])];
        let value = dict! { "segments" => Vec::<Py>::new(), "device_traces" => traces };
        let path = std::env::temp_dir().join(format!("millpond-start-{}.pickle", std::process::id()));
        std::fs::write(&path, pickle(&value, 4)).unwrap();
        let history = History::open(&path, &ReadOptions::default()).unwrap();
        std::fs::remove_file(&path).unwrap();
        let mut times = Vec::new();
        history
            .walk(|row, _| {
                times.push(row.time);
                Flow::On
            })
            .unwrap();
        (history.start(), times)
    };
    let times = vec![0, 7_000, 8_000, 9_000];
    assert_eq!(times_of(first), (Some(first * 1_000), times.clone()));
    // Such times do not count from 1970.
    assert_eq!(times_of(1_000_000), (None, times));
}
