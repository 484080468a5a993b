//! Tests the explanation of out-of-memory events: one small recording for each cause, and hostile ones.

#[path = "oom/replays.rs"]
mod replays;

use millpond_replay::{Cause, Device, OomOrigin, Options, OutOfMemory, RemedyKind, Selection, replay};
use millpond_trace::{ReadOptions, Trace, read_bytes};

const MIB: u64 = 1 << 20;

/// A recording that is written row by row.
struct Rows {
    text: String,
    time: u64,
}

impl Rows {
    fn new() -> Self {
        Self {
            text: "time_us,action,id,bytes,stream,tag,address,pool\n".to_owned(),
            time: 0,
        }
    }

    #[expect(clippy::too_many_arguments, reason = "they are the columns of a row")]
    fn row(&mut self, action: &str, id: u64, bytes: u64, stream: u64, tag: &str, address: u64, pool: &str) {
        let row = format!(
            "{},{action},{id},{bytes},{stream},{tag},{address},{pool}\n",
            self.time
        );
        self.text.push_str(&row);
        self.time += 1_000_000;
    }

    fn segment(&mut self, address: u64, bytes: u64) -> &mut Self {
        self.row("segment_alloc", 0, bytes, 0, "", address, "");
        self
    }

    fn alloc(&mut self, id: u64, bytes: u64, address: u64) -> &mut Self {
        self.row("alloc", id, bytes, 0, "net;layers.1;mm;a.py:f:1", address, "");
        self
    }

    fn free(&mut self, id: u64, bytes: u64) -> &mut Self {
        self.row("free", id, bytes, 0, "", 0, "");
        self
    }

    fn oom(&mut self, bytes: u64, free: u64) -> &mut Self {
        self.row("oom", 0, bytes, 0, "net;head;loss;b.py:g:2<a.py:f:1", free, "");
        self
    }

    fn trace(&self) -> Trace {
        let recording = read_bytes(self.text.as_bytes(), "tiny.csv", &ReadOptions::default());
        recording.expect("valid").traces.remove(0)
    }

    fn explain(&self) -> OutOfMemory {
        OutOfMemory::recorded(&self.trace(), &Options::default()).expect("it has an event")
    }
}

/// Five segments of 100 MiB, each with a hole of 40 MiB, a block of 40 MiB and a hole of 20 MiB. A block of the whole
/// segment came first, so that PyTorch's allocator makes the same segments.
fn pieces() -> Rows {
    let mut rows = Rows::new();
    for at in 0..5 {
        let start = (1 + at) << 30;
        rows.segment(start, 100 * MIB).alloc(20 + at, 100 * MIB, start);
        rows.free(20 + at, 100 * MIB).alloc(2 * at, 40 * MIB, start);
        rows.alloc(2 * at + 1, 40 * MIB, start + 40 * MIB);
    }
    for at in 0..5 {
        rows.free(2 * at, 40 * MIB);
    }
    rows
}

#[test]
fn a_program_that_holds_too_much_needs_no_replay() {
    let mut rows = Rows::new();
    rows.segment(1 << 30, 100 * MIB)
        .alloc(1, 100 * MIB, 1 << 30)
        .oom(50 * MIB, 20 * MIB);
    let told = rows.explain();
    assert_eq!(
        (told.origin, told.cause),
        (OomOrigin::Recorded, Cause::NothingFree)
    );
    assert!(
        told.why.contains("100 MiB of the 120 MiB") && told.why.contains("30.0 MiB too little"),
        "{}",
        told.why
    );
    assert_eq!(
        (told.device_bytes, told.device_free_bytes),
        (Some(120 * MIB), Some(20 * MIB))
    );
    assert_eq!((told.held_bytes, told.held_blocks, told.tried), (100 * MIB, 1, 0));
    assert_eq!(
        (told.request.bytes, told.request.event, told.request.time_us),
        (50 * MIB, Some(2), Some(2_000_000))
    );
    assert_eq!(told.request.tag, "net;head;loss;b.py:g:2<a.py:f:1");
    let sentences = told.sentences();
    assert_eq!(sentences.len(), 3, "{sentences:?}");
    let last = &sentences[2];
    assert!(
        last.starts_with("Most of it, 100 MiB in 1 block, was held by "),
        "{last}"
    );
}

#[test]
fn free_pieces_are_counted_and_expandable_segments_are_a_proved_remedy() {
    let mut rows = pieces();
    rows.oom(150 * MIB, 10 * MIB);
    let told = rows.explain();
    assert_eq!(told.cause, Cause::Pieces, "{}", told.why);
    assert!(
        told.why.contains("300 MiB free in 10 holes of at most 40.0 MiB"),
        "{}",
        told.why
    );
    let after = told.after.as_ref().expect("it has segments");
    assert_eq!(
        (after.reserved_bytes, after.free_bytes, after.holes),
        (500 * MIB, 300 * MIB, 10)
    );
    assert_eq!(
        (
            after.largest_hole_bytes,
            after.waiting_bytes,
            after.rounding_bytes
        ),
        (40 * MIB, 0, 0)
    );
    let classes: Vec<_> = after
        .by_size
        .iter()
        .map(|class| (class.from_bytes, class.holes, class.bytes))
        .collect();
    assert_eq!(classes, [(16 * MIB, 10, 300 * MIB)]);
    assert_eq!(told.reproduced, Some(true));
    let best = &told.remedies[0];
    assert_eq!(
        (best.kind, best.text.as_str()),
        (
            RemedyKind::Setting,
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        )
    );
    // The device has 510 MiB. The program holds 420 MiB at first, and 350 MiB with the request.
    assert_eq!(best.spare_bytes, 90 * MIB);
    assert!(
        told.remedies
            .iter()
            .any(|remedy| remedy.kind == RemedyKind::Policy && remedy.text == "millpond")
    );
    assert!(told.remedies.iter().all(|remedy| remedy.text != "torch-native"));
    let last = told.sentences().pop().expect("sentences");
    assert!(
        last.contains("expandable_segments:True would have served it."),
        "{last}"
    );
}

#[test]
fn the_released_cache_is_the_difference_of_both_states() {
    let mut rows = pieces();
    rows.segment(64 << 30, 60 * MIB)
        .alloc(90, 60 * MIB, 64 << 30)
        .free(90, 60 * MIB);
    rows.row("segment_free", 0, 60 * MIB, 0, "", 64 << 30, "");
    rows.oom(150 * MIB, 70 * MIB);
    let told = rows.explain();
    let (before, after) = (told.before.expect("before"), told.after.expect("after"));
    assert_eq!(
        (
            before.reserved_bytes,
            before.free_bytes,
            before.largest_hole_bytes
        ),
        (560 * MIB, 360 * MIB, 60 * MIB)
    );
    assert_eq!(
        (after.reserved_bytes, after.free_bytes, after.largest_hole_bytes),
        (500 * MIB, 300 * MIB, 40 * MIB)
    );
    assert_eq!(told.device_bytes, Some(570 * MIB));
}

#[test]
fn memory_of_another_stream_or_pool_is_named() {
    for (stream, pool, cause, says) in [
        (1, "", Cause::Stream, "30.0 MiB belongs to another stream"),
        (0, "1:0", Cause::PrivatePool, "30.0 MiB are free in other pools"),
    ] {
        let mut rows = Rows::new();
        let start = 1 << 30;
        rows.row("segment_alloc", 0, 40 * MIB, stream, "", start, pool);
        rows.row("alloc", 1, 40 * MIB, stream, "a", start, pool);
        rows.row("free", 1, 40 * MIB, stream, "", start, pool);
        rows.row("alloc", 2, 10 * MIB, stream, "a", start, pool);
        rows.oom(30 * MIB, MIB);
        let told = rows.explain();
        assert_eq!(told.cause, cause, "{}", told.why);
        assert!(told.why.contains(says), "{}", told.why);
        assert_eq!(told.reproduced, Some(true));
        // PyTorch refuses its own pools under this setting, and a graph keeps its memory.
        let has_driver = told
            .remedies
            .iter()
            .any(|remedy| remedy.text.ends_with("backend:cudaMallocAsync"));
        assert_eq!(has_driver, pool.is_empty());
    }
}

#[test]
fn freed_blocks_that_wait_for_a_stream_are_named() {
    let mut rows = Rows::new();
    rows.segment(1 << 30, 40 * MIB).alloc(1, 40 * MIB, 1 << 30);
    rows.row("free_requested", 1, 40 * MIB, 0, "", 1 << 30, "");
    rows.oom(30 * MIB, MIB);
    let told = rows.explain();
    assert_eq!(told.cause, Cause::Stream, "{}", told.why);
    assert!(
        told.why.contains("40.0 MiB in 1 freed block still waits"),
        "{}",
        told.why
    );
    assert_eq!(told.after.expect("it has segments").waiting_bytes, 40 * MIB);
}

#[test]
fn rounding_is_distinguished_from_fragmentation() {
    // The allocator takes 20 MiB for a request of 5 MiB.
    let mut rows = Rows::new();
    rows.segment(1 << 30, 20 * MIB)
        .alloc(1, 20 * MIB, 1 << 30)
        .oom(5 * MIB, 12 * MIB);
    let told = rows.explain();
    assert_eq!(told.cause, Cause::Rounding, "{}", told.why);
    assert!(
        told.why.contains("takes 20.0 MiB from the device"),
        "{}",
        told.why
    );

    // Each block keeps half a MiB that is too small to be split off.
    let mut rows = Rows::new();
    for at in 0..10 {
        let start = (1 + at) << 30;
        rows.segment(start, 12 * MIB).alloc(at, 12 * MIB - MIB / 2, start);
    }
    rows.oom(4 * MIB, MIB);
    let told = rows.explain();
    assert_eq!(told.cause, Cause::Rounding, "{}", told.why);
    let after = told.after.expect("it has segments");
    assert_eq!((after.holes, after.rounding_bytes), (0, 5 * MIB));
}

#[test]
fn a_limit_and_other_users_of_the_device_are_distinguished() {
    let mut rows = Rows::new();
    rows.segment(1 << 30, 100 * MIB).alloc(1, 100 * MIB, 1 << 30);
    let limit = Rows {
        text: rows.text.clone(),
        ..rows
    }
    .oom(20 * MIB, 100 * MIB)
    .explain();
    assert_eq!(limit.cause, Cause::Limit, "{}", limit.why);
    assert_eq!(
        (limit.reproduced, limit.remedies.len()),
        (Some(false), 0),
        "a replay has no such limit"
    );

    let named = |mib: u64| {
        let mut rows = Rows::new();
        rows.segment(1 << 30, 100 * MIB)
            .alloc(1, 100 * MIB, 1 << 30)
            .oom(20 * MIB, 100 * MIB);
        let options = Options {
            device: Device {
                bytes: Some(mib * MIB),
                ..Device::UNLIMITED
            },
            ..Options::default()
        };
        OutOfMemory::recorded(&rows.trace(), &options).expect("an event")
    };
    let told = named(110);
    assert_eq!(told.cause, Cause::NothingFree, "{}", told.why);
    assert_eq!(
        (told.device_bytes, told.device_free_bytes),
        (Some(110 * MIB), Some(10 * MIB)),
        "the limit is named"
    );
    let told = named(90);
    assert_eq!(
        told.cause,
        Cause::Limit,
        "more was reserved than that: {}",
        told.why
    );

    let mut rows = Rows::new();
    rows.segment(1 << 30, 100 * MIB)
        .alloc(1, 100 * MIB, 1 << 30)
        .oom(50 * MIB, 10 * MIB);
    let options = Options {
        device: Device {
            bytes: Some(200 * MIB),
            ..Device::UNLIMITED
        },
        ..Options::default()
    };
    let told = OutOfMemory::recorded(&rows.trace(), &options).expect("an event");
    assert_eq!(told.cause, Cause::Elsewhere, "{}", told.why);
    assert_eq!(told.others_bytes, Some(90 * MIB));
}

#[test]
fn a_recording_without_segments_has_an_unknown_cause() {
    let mut rows = Rows::new();
    rows.alloc(1, 8 * MIB, 0).oom(30 * MIB, 0);
    let told = rows.explain();
    assert_eq!(told.cause, Cause::Unknown);
    assert_eq!(
        (told.device_bytes, told.device_free_bytes, told.after),
        (None, None, None)
    );
    assert_eq!((told.held_bytes, told.tried), (8 * MIB, 0));
}

#[test]
fn holders_have_an_age() {
    let mut rows = Rows::new();
    rows.segment(1 << 30, 100 * MIB).alloc(1, 30 * MIB, 1 << 30);
    rows.row(
        "alloc",
        2,
        40 * MIB,
        0,
        "new;;x;c.py:h:3",
        (1 << 30) + 30 * MIB,
        "",
    );
    rows.alloc(3, 5 * MIB, (1 << 30) + 70 * MIB);
    rows.oom(80 * MIB, 4 * MIB);
    let told = rows.explain();
    let ages = |list: &[millpond_replay::Holder]| -> Vec<(String, u64, Option<u64>)> {
        list.iter()
            .map(|of| (of.tag.clone(), of.bytes, of.oldest_us))
            .collect()
    };
    let (old, new) = ("net; layers.*; mm".to_owned(), "new; x".to_owned());
    assert_eq!(
        ages(&told.holders),
        [
            (new.clone(), 40 * MIB, Some(2_000_000)),
            (old.clone(), 35 * MIB, Some(3_000_000))
        ]
    );
    assert_eq!(
        ages(&told.oldest),
        [(old, 35 * MIB, Some(3_000_000)), (new, 40 * MIB, Some(2_000_000))]
    );
    assert_eq!(told.sites[0].tag, "c.py:h:3");
}

#[test]
fn many_events_are_counted_and_the_last_is_explained() {
    let mut rows = pieces();
    for _ in 0..10_000 {
        rows.oom(150 * MIB, 10 * MIB);
    }
    rows.oom(160 * MIB, 10 * MIB);
    let told = rows.explain();
    assert_eq!((told.refused, told.request.bytes), (10_001, 160 * MIB));
    assert_eq!(
        told.first.as_ref().map(|first| (first.event, first.bytes)),
        Some((Some(30), 150 * MIB))
    );
    assert!(
        told.sentences()[0].contains("10,001 times"),
        "{:?}",
        told.sentences()
    );
}

#[test]
fn odd_recordings_are_explained_without_a_panic() {
    // Before the first allocation, without a tag, and with the largest size that readers accept.
    let mut rows = Rows::new();
    rows.row("oom", 0, 1 << 62, 0, "", u64::MAX, "");
    rows.alloc(1, 8 * MIB, 1 << 30);
    let told = rows.explain();
    assert_eq!(
        (told.held_blocks, told.request.bytes, told.request.event),
        (0, 1 << 62, Some(0))
    );
    assert!(!told.sentences().is_empty());
    // Segments and blocks that overlap, end at the end of all addresses, or lie outside.
    let mut rows = Rows::new();
    for (address, bytes) in [
        (0, 1 << 62),
        (1 << 30, 1 << 62),
        (u64::MAX - 4096, 8192),
        (1 << 30, 0),
        (5, 3 << 40),
    ] {
        rows.segment(address, bytes);
    }
    for (id, address) in (0..).zip([0, 7, 1 << 30, u64::MAX, (1 << 30) + 1, 7]) {
        rows.alloc(id, 9 * MIB, address);
    }
    rows.row("segment_free", 0, 1 << 62, 0, "", 3, "");
    for free in [0, 1, 4 * MIB, u64::MAX] {
        rows.oom(20 * MIB, free);
        let told = rows.explain();
        assert_eq!(told.request.bytes, 20 * MIB);
        assert!(told.sentences().len() <= 3);
    }
    // No allocation at all.
    let trace = {
        let mut rows = Rows::new();
        rows.segment(1 << 30, 20 * MIB).oom(30 * MIB, 0);
        rows.trace()
    };
    let told = OutOfMemory::recorded(&trace, &Options::default()).expect("an event");
    assert_eq!((told.held_bytes, told.tried), (0, 0));
}

#[test]
fn a_late_recording_is_replayed_from_its_recorded_state() {
    let mut rows = Rows::new();
    for at in 0..5 {
        rows.row("initial_segment", 0, 100 * MIB, 0, "", (1 + at) << 30, "");
    }
    for at in 0..5 {
        let middle = ((1 + at) << 30) + 40 * MIB;
        rows.row("initial_block", at, 40 * MIB, 0, "", middle, "");
    }
    rows.oom(150 * MIB, 10 * MIB);
    let told = rows.explain();
    assert_eq!(told.cause, Cause::Pieces, "{}", told.why);
    // From an empty allocator, the blocks would lie in segments of their own.
    assert_eq!(told.reproduced, Some(true));
    // No setting of the native allocator moves them, though some would have placed them better from the beginning.
    assert!(!told.remedies.is_empty());
    assert!(told.remedies.iter().all(|remedy| remedy.policy != "torch-native"));
    assert_eq!(told.holders[0].tag, "(older than the recording)");
    assert_eq!((told.holders[0].oldest_us, told.holders[0].blocks), (None, 5));
}

#[test]
fn a_replay_provides_the_layout_if_segments_are_not_recorded() {
    let placed = pieces();
    let lines = placed.text.lines().filter(|line| !line.contains("segment_alloc"));
    let unplaced =
        lines.map(
            |line| match line.rsplit_once(',').and_then(|(rest, _)| rest.rsplit_once(',')) {
                Some((rest, address)) if address != "address" => format!("{rest},,\n"),
                _ => format!("{line}\n"),
            },
        );
    let mut rows = Rows {
        text: unplaced.collect(),
        ..placed
    };
    rows.oom(150 * MIB, 0);
    let options = Options {
        device: Device {
            bytes: Some(510 * MIB),
            ..Device::UNLIMITED
        },
        ..Options::default()
    };
    let told = OutOfMemory::recorded(&rows.trace(), &options).expect("an event");
    assert_eq!(
        (told.cause, told.device_free_bytes),
        (Cause::Pieces, Some(10 * MIB)),
        "{}",
        told.why
    );
    assert_eq!(told.after.expect("from the replay").holes, 10);
    assert_eq!(
        (told.reproduced, told.remedies[0].spare_bytes),
        (Some(true), 90 * MIB)
    );
}

#[test]
fn other_allocators_get_no_settings_of_pytorch_as_remedies() {
    let mut rows = Rows::new();
    rows.alloc(1, 40 * MIB, 0).alloc(2, 40 * MIB, 0);
    let options = Options {
        policies: vec!["pow2".to_owned()],
        device: Device {
            bytes: Some(100 * MIB),
            ..Device::UNLIMITED
        },
        ..Options::default()
    };
    let report = replay(&rows.trace(), &options, &|_, _| {}).expect("valid").report;
    let told = report.out_of_memory.expect("64 and 64 MiB are too much");
    assert_eq!(
        (told.policy.as_str(), told.cause),
        ("pow2", Cause::Rounding),
        "{}",
        told.why
    );
    assert!(!told.remedies.is_empty());
    assert!(
        told.remedies
            .iter()
            .all(|remedy| remedy.kind == RemedyKind::Policy)
    );
}

#[test]
fn a_window_without_the_event_has_no_explanation() {
    let mut rows = pieces();
    rows.oom(150 * MIB, 10 * MIB);
    let within = |window_us| {
        let options = Options {
            selection: Selection {
                window_us,
                ..Selection::default()
            },
            ..Options::default()
        };
        OutOfMemory::recorded(&rows.trace(), &options).is_some()
    };
    assert!(within(None) && within(Some((0, 30_000_000))));
    assert!(!within(Some((0, 29_000_000))));
}
