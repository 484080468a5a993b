//! Tests of recordings in several formats, read as rows.

use super::{Flow, History, HistoryError, Live};
use crate::recording::{End, Kind, Row, Writer};
use crate::{InitialBlock, InitialSegment, Interrupt, ReadError, ReadOptions, read_bytes};
use std::collections::BTreeMap;
use std::path::PathBuf;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("millpond-history-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).expect("room for a small file");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn alloc(time: u64, id: u64, bytes: u64) -> Row {
    Row {
        id,
        bytes,
        requested: bytes - 1,
        pool: 1,
        tag: 1,
        ..Row::new(Kind::Alloc, time)
    }
}

fn free(time: u64, of: Row) -> Row {
    Row {
        kind: Kind::Free,
        time,
        ..of
    }
}

fn ours() -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), &[("program".to_owned(), "step".to_owned())]).expect("memory");
    let pool = Row {
        pool: 1,
        ..Row::new(Kind::DefinePool, 0)
    };
    writer
        .say(&pool, Some("cuda\nweights"), Some(&[2]))
        .expect("memory");
    let tag = Row {
        tag: 1,
        ..Row::new(Kind::DefineTag, 0)
    };
    writer.say(&tag, Some("layer 1"), None).expect("memory");
    let (one, two) = (alloc(10, 1, 512), alloc(20, 2, 1024));
    writer.push(&one).expect("memory");
    writer.push(&two).expect("memory");
    writer.push(&free(30, one)).expect("memory");
    writer
        .say(&Row::new(Kind::Mark, 35), Some("half"), None)
        .expect("memory");
    let lost = Row {
        id: 3,
        ..Row::new(Kind::Lost, 36)
    };
    writer.push(&lost).expect("memory");
    let three = alloc(5, 3, 4096);
    let keyframe = Row {
        bytes: 1,
        ..Row::new(Kind::Keyframe, 40)
    };
    writer.push(&keyframe).expect("memory");
    let live = Row {
        kind: Kind::Live,
        ..three
    };
    writer.push(&live).expect("memory");
    writer.push(&free(50, three)).expect("memory");
    writer.finish(60).expect("memory")
}

#[test]
fn a_millpond_recording_can_be_walked_repeatedly() {
    let file = Scratch::new("ours.mpr", &ours());
    let history = History::open(&file.0, &ReadOptions::default()).expect("a recording");
    assert_eq!(
        (history.duration, history.lost, history.end.clone()),
        (60, 3, Some(End::Closed))
    );
    let pool = history.definitions.pool(1).expect("defined");
    assert_eq!((&*pool.name, &*pool.memory, pool.device), ("weights", "cuda", 2));
    assert_eq!(
        (history.definitions.tag(1), history.definitions.tag(9)),
        ("layer 1", "")
    );
    let sums = [0, 10, 20, 30, 40, 50].map(|time| {
        let live = history.live_at(time).expect("it is there");
        (live.bytes(), live.len())
    });
    assert_eq!(sums, [(0, 0), (512, 1), (1536, 2), (1024, 1), (4096, 1), (0, 0)]);
    let mut marks = Vec::new();
    history
        .walk(|row, text| {
            marks.extend(text.map(|text| (row.time, text.to_owned())));
            Flow::On
        })
        .expect("it is there");
    assert_eq!(marks, [(35, "half".to_owned())]);
    std::fs::write(&file.0, &ours()[..600]).expect("room");
    assert!(history.live_at(100).is_err());
}

#[test]
fn other_formats_are_converted_to_rows() {
    let csv = "Thread,Time,Action,Pointer,Size,Stream\n1,00:00:01.5,allocate,0x10,100,0\n1,00:00:02.5,free,0x10,100,0\n";
    let file = Scratch::new("rmm.csv", csv.as_bytes());
    let history = History::open(&file.0, &ReadOptions::default()).expect("a recording");
    assert_eq!((history.duration, history.len), (1_000_000_000, 2));
    assert_eq!(history.live_at(0).expect("in memory").requested(), 100);
    assert!(history.live_at(u64::MAX).expect("in memory").is_empty());
    let refused = History::open(&Scratch::new("none", b"no").0, &ReadOptions::default());
    assert!(matches!(
        refused,
        Err(HistoryError::Read(ReadError::UnknownFormat { .. }))
    ));
}

#[test]
fn blocks_older_than_the_recording_are_listed() {
    let block = |allocation, pending| InitialBlock {
        address: 0x1000 + u64::from(allocation) * 0x100,
        requested: 100,
        bytes: Some(128),
        allocation,
        tag: 0,
        stream: 0,
        pool: 0,
        pending,
    };
    let mut recording = read_bytes(
        b"time_us,action,id,bytes\n5,alloc,1,64\n9,free,1,64\n",
        "made",
        &ReadOptions::default(),
    )
    .expect("a recording");
    let trace = &mut recording.traces[0];
    trace.initial_segments = vec![InitialSegment {
        address: 0x1000,
        bytes: 4096,
        stream: 0,
        pool: 0,
        small: true,
        expandable: false,
    }];
    trace.initial_blocks = vec![block(0, false), block(1, true)];
    for event in &mut trace.events {
        event.allocation += 2;
    }
    trace.allocations += 2;
    let history = super::from_traces::history(&recording);
    assert_eq!(history.older, vec![1..3]);
    let mut kinds = Vec::new();
    history
        .walk(|row, _| {
            kinds.push((row.kind, row.id));
            Flow::On
        })
        .expect("in memory");
    // The block that waits for a stream is never held together with the others.
    let expected = [
        (Kind::Reserve, 0),
        (Kind::Alloc, 2),
        (Kind::FreeRequested, 2),
        (Kind::Alloc, 1),
        (Kind::Alloc, 3),
        (Kind::Free, 3),
    ];
    assert_eq!(kinds, expected);
    assert_eq!(history.live_at(u64::MAX).expect("in memory").bytes(), 128);
}

/// Creates a recording of many batches, with keyframes, reserved bytes, and times that sometimes repeat.
fn long(draws: &[u16]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), &[]).expect("memory");
    let mut live: Vec<Row> = Vec::new();
    let (mut id, mut time) = (0, 0);
    for draw in draws {
        time += u64::from(draw % 3);
        match draw % 23 {
            0 => {
                let rows = live.iter().map(|row| Row {
                    kind: Kind::Live,
                    ..*row
                });
                let keyframe = Row {
                    bytes: live.len() as u64,
                    ..Row::new(Kind::Keyframe, time)
                };
                for row in std::iter::once(keyframe).chain(rows) {
                    writer.push(&row).expect("memory");
                }
            }
            1 => writer.flush().expect("memory"),
            2 | 3 => {
                let reserve = Row {
                    kind: if draw % 2 == 0 {
                        Kind::Reserve
                    } else {
                        Kind::Release
                    },
                    bytes: u64::from(*draw),
                    pool: u32::from(draw % 2),
                    ..Row::new(Kind::Reserve, time)
                };
                writer.push(&reserve).expect("memory");
            }
            4..=12 if !live.is_empty() => {
                let row = live.swap_remove(usize::from(*draw) % live.len());
                writer.push(&free(time, row)).expect("memory");
            }
            _ => {
                id += 1;
                let row = alloc(time, id, u64::from(*draw) + 1);
                live.push(row);
                writer.push(&row).expect("memory");
            }
        }
    }
    writer.finish(time).expect("memory")
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(16))]

    #[test]
    fn a_walk_from_a_keyframe_has_the_same_state_as_one_from_the_beginning(
        draws in proptest::collection::vec(proptest::prelude::any::<u16>(), 1..400),
    ) {
        let file = Scratch::new("long.mpr", &long(&draws));
        let history = History::open(&file.0, &ReadOptions::default()).expect("a recording");
        for time in 0..=history.duration + 1 {
            let (mut whole, mut part) = (Known::default(), Known::default());
            history.walk(|row, _| whole.note(row, time)).expect("it is there");
            let start = history.start_before(time);
            history.walk_from(&start, |row, _| part.note(row, time)).expect("it is there");
            proptest::prop_assert_eq!(&whole, &part, "at {}, from {:?}", time, start);
        }
    }
}

/// The state just before a time, and the rows at that time and after it.
#[derive(Debug, Default, PartialEq)]
struct Known {
    before: Option<(Vec<u64>, BTreeMap<u32, u64>)>,
    after: Vec<Row>,
    now: Now,
}

/// The live blocks and the reserved bytes of pools. They are not compared in the middle of a keyframe.
#[derive(Debug, Default)]
struct Now {
    live: Live,
    reserved: BTreeMap<u32, u64>,
}

impl PartialEq for Now {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Known {
    fn note(&mut self, row: &Row, time: u64) -> Flow {
        if row.kind != Kind::Live && row.time >= time && self.before.is_none() {
            let mut ids: Vec<u64> = self.now.live.blocks().map(|row| row.id).collect();
            ids.sort_unstable();
            self.before = Some((ids, self.now.reserved.clone()));
        }
        if self.before.is_some() {
            self.after.push(*row);
        }
        self.now.live.note(row);
        let reserved = self.now.reserved.entry(row.pool);
        match row.kind {
            Kind::Reserve => *reserved.or_default() += row.bytes,
            Kind::Release => {
                let reserved = reserved.or_default();
                *reserved = reserved.saturating_sub(row.bytes);
            }
            Kind::Gauge => *reserved.or_default() = row.bytes,
            _ => {}
        }
        Flow::On
    }
}

/// With more batches than are decoded without a second thread, all rows arrive in order, and a walk stops on request.
#[test]
fn many_batches_are_walked_in_order() {
    const ROWS: u64 = 40;
    let mut writer = Writer::new(Vec::new(), &[]).expect("memory");
    for id in 1..=ROWS {
        writer.push(&alloc(id * 10, id, 512)).expect("memory");
        writer.flush().expect("memory");
    }
    let whole = writer.finish(ROWS * 10).expect("memory");
    let file = Scratch::new("many.mpr", &whole);
    let mut watched = Vec::new();
    let history = History::open_and_watch(&file.0, &ReadOptions::default(), |row, _| watched.push(row.id))
        .expect("a recording");
    let ids: Vec<u64> = (1..=ROWS).collect();
    assert_eq!(watched[..ROWS as usize], ids);
    for last in [1, 4, 5, 6, 39, ROWS] {
        let mut walked = Vec::new();
        let outcome = history.walk(|row, _| {
            walked.push(row.id);
            if row.id == last { Flow::Stop } else { Flow::On }
        });
        assert!(outcome.is_ok());
        assert_eq!(walked, ids[..last as usize]);
    }
    // The file loses its second half, or its last bytes.
    for bytes in [whole.len() / 2, whole.len() - 9] {
        std::fs::write(&file.0, &whole[..bytes]).expect("room for a small file");
        let outcome = history.walk(|_, _| Flow::On);
        assert!(matches!(outcome, Err(HistoryError::Changed)), "{outcome:?}");
    }
    std::fs::write(&file.0, &whole[..whole.len() / 2]).expect("room for a small file");
    let cut = History::open(&file.0, &ReadOptions::default()).expect("a recording");
    assert!(matches!(cut.end, Some(End::Cut { .. })) && cut.len > 5 && cut.len < ROWS);
}

#[test]
fn an_interrupt_ends_walks_and_opening() {
    let ours = Scratch::new("interrupted.mpr", &blocks(1..=40));
    let csv = format!("action,id,bytes\n{}", "alloc,1,1\nfree,1,1\n".repeat(20_000));
    let csv = Scratch::new("interrupted.csv", csv.as_bytes());
    for (file, most) in [(&ours, 2), (&csv, super::ROWS)] {
        let interrupt = Interrupt::default();
        let options = ReadOptions {
            interrupt: Some(&interrupt),
            ..ReadOptions::default()
        };
        let history = History::open(&file.0, &options).expect("a recording");
        let mut rows = 0;
        let walked = history.walk(|_, _| {
            rows += 1;
            interrupt.set();
            Flow::On
        });
        let is_interrupted =
            |error: &HistoryError| matches!(error, HistoryError::Read(ReadError::Interrupted));
        assert!(walked.as_ref().is_err_and(is_interrupted), "{walked:?}");
        assert!(rows <= most, "{rows} rows");
        let opened = History::open(&file.0, &options);
        assert!(opened.as_ref().is_err_and(is_interrupted), "{opened:?}");
    }
}

/// Returns the block numbers of all rows of a walk.
fn walked(history: &History) -> Result<Vec<u64>, HistoryError> {
    let mut ids = Vec::new();
    history.walk(|row, _| {
        ids.push(row.id);
        Flow::On
    })?;
    Ok(ids)
}

/// Returns a recording of these blocks, each in its own batch.
fn blocks(ids: std::ops::RangeInclusive<u64>) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), &[]).expect("memory");
    for id in ids.clone() {
        writer.push(&alloc(id * 10, id, 512)).expect("memory");
        writer.flush().expect("memory");
    }
    writer.finish(ids.end() * 10).expect("memory")
}

#[test]
fn an_open_recording_is_still_read_after_another_file_takes_its_name() {
    let file = Scratch::new("named.mpr", &blocks(1..=3));
    let history = History::open(&file.0, &ReadOptions::default()).expect("a recording");
    let other = Scratch::new("other.mpr", &blocks(1..=30));
    std::fs::rename(&other.0, &file.0).expect("one folder");
    assert_eq!(walked(&history).expect("it is open"), [1, 2, 3, 0]);
}

#[test]
fn an_overwritten_recording_is_detected() {
    let whole = blocks(1..=3);
    let file = Scratch::new("over.mpr", &whole);
    let history = History::open(&file.0, &ReadOptions::default()).expect("a recording");
    // This is longer than the resolution of any file system's timestamps.
    std::thread::sleep(std::time::Duration::from_millis(50));
    std::fs::write(&file.0, &whole).expect("room for a small file");
    assert!(matches!(walked(&history), Err(HistoryError::Changed)));
    // A longer file with other batches does not have the rows of the first one.
    let file = Scratch::new("longer.mpr", &whole);
    let history = History::open(&file.0, &ReadOptions::default()).expect("a recording");
    std::fs::write(&file.0, rows_in_one_batch(2_000)).expect("room for a small file");
    assert!(walked(&history).is_err());
}

fn rows_in_one_batch(rows: u64) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), &[]).expect("memory");
    for id in 1..=rows {
        writer
            .push(&alloc(id * id % 1_000, id, 1 + id * id))
            .expect("memory");
    }
    writer.finish(rows).expect("memory")
}

#[test]
fn a_batch_that_is_completed_after_opening_is_not_read() {
    let whole = blocks(1..=10);
    let file = Scratch::new("grows.mpr", &whole[..whole.len() / 2]);
    let history = History::open(&file.0, &ReadOptions::default()).expect("a recording");
    let before = walked(&history).expect("as it was");
    assert!(matches!(history.end, Some(End::Cut { .. })) && before.len() as u64 == history.len);
    std::fs::write(&file.0, &whole).expect("room for a small file");
    assert_eq!(walked(&history).expect("it only grew"), before);
}

#[test]
fn an_incomplete_keyframe_removes_no_blocks() {
    let block = |kind, id| Row {
        id,
        requested: 10,
        bytes: 16,
        ..Row::new(kind, 1)
    };
    let keyframe = |rows| Row {
        bytes: rows,
        ..Row::new(Kind::Keyframe, 2)
    };
    let told = |rows: &[Row]| {
        let mut live = Live::default();
        for row in rows {
            live.note(row);
        }
        let mut ids: Vec<u64> = live.blocks().map(|row| row.id).collect();
        ids.sort_unstable();
        assert_eq!(live.requested(), 10 * ids.len() as u64);
        assert_eq!(live.bytes(), 16 * ids.len() as u64);
        ids
    };
    let (alloc, named) = (|id| block(Kind::Alloc, id), |id| block(Kind::Live, id));
    // Blocks that a keyframe does not list are removed when it is complete, and not before.
    assert_eq!(
        told(&[alloc(1), alloc(2), keyframe(2), named(2), named(3)]),
        [2, 3]
    );
    assert_eq!(told(&[alloc(1), alloc(2), keyframe(2), named(3)]), [1, 2, 3]);
    let cut = [alloc(1), keyframe(9), named(3), alloc(4), block(Kind::Free, 1)];
    assert_eq!(told(&cut), [3, 4]);
    assert_eq!(told(&[alloc(1), keyframe(0)]), [0; 0]);
    // Live rows without a keyframe are ignored.
    assert_eq!(told(&[alloc(1), named(5)]), [1]);
}

/// Programs with deep stacks, such as an interpreter's, record many stacks that differ in their inner frames only. Such a recording is
/// much smaller than the list of its addresses, and it is read in memory in proportion to its size.
#[test]
fn many_deep_stacks_that_share_frames_are_read() {
    const STACKS: u32 = 200_000;
    const DEPTH: u64 = 60;
    let addresses = |stack: u32| {
        let inner = [u64::from(stack) % 1_000, u64::from(stack) / 1_000];
        inner.into_iter().chain(1 << 20..(1 << 20) + DEPTH)
    };
    let mut writer = Writer::new(Vec::new(), &[]).expect("memory");
    for stack in 1..=STACKS {
        let list: Vec<u64> = addresses(stack).collect();
        let mut define = Row::new(Kind::DefineStack, 0);
        define.stack = stack;
        writer.say(&define, None, Some(&list)).expect("memory");
    }
    let whole = writer.finish(0).expect("memory");
    // With all addresses of each stack, the definitions would exceed the allowance of the file.
    assert!((whole.len() as u64) < 2 << 20, "{}", whole.len());
    let file = Scratch::new("deep.mpr", &whole);
    let history = History::open(&file.0, &ReadOptions::default()).expect("a recording");
    assert_eq!(history.definitions.stack_count(), STACKS as usize);
    for stack in [1, 2, 77_000, STACKS] {
        assert!(history.definitions.stack(stack).eq(addresses(stack)), "{stack}");
    }
}
