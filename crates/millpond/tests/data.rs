//! Tests the guarantees of data sets: every row in its place, bounded memory, and errors for files that change.

#![cfg(target_os = "linux")]

mod support;

use millpond::{Budget, DataError, DataSet, Order, Pool, Unpooled, budget::Measure, data::Access};
use proptest::prelude::*;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use support::process::status;

/// A folder that is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("data-{}-{number}", std::process::id());
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    /// Writes a file of numbers from `from` on, after `skip` other bytes.
    fn file(&self, name: &str, skip: usize, from: u32, count: u32) -> PathBuf {
        let path = self.0.join(name);
        let mut bytes = vec![0xEE; skip];
        bytes.extend((from..from + count).flat_map(u32::to_ne_bytes));
        fs::write(&path, bytes).expect("room on the disk");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn nonzero(value: u64) -> NonZeroU64 {
    NonZeroU64::new(value).expect("not 0")
}

#[derive(Clone, Debug)]
struct Shape {
    rows_of_files: Vec<u32>,
    row: usize,
    skip: usize,
    range: (u64, u64),
    order: Order,
    chunk: usize,
    ahead: usize,
    readers: usize,
}

fn orders() -> impl Strategy<Value = Order> {
    prop_oneof![
        Just(Order::ascending()),
        (1u64..40).prop_map(|step| Order::strided(nonzero(step))),
        any::<u64>().prop_map(Order::shuffled),
        (any::<u64>(), 1u64..40).prop_map(|(seed, run)| Order::shuffled(seed).runs_of(nonzero(run))),
    ]
}

fn shapes() -> impl Strategy<Value = Shape> {
    (
        (prop::collection::vec(0u32..400, 1..5), 1usize..6, 0usize..50),
        ((0u64..900, 0u64..1800), orders()),
        (1usize..300, 0usize..4, 1usize..4),
    )
        .prop_map(
            |((rows_of_files, row, skip), (range, order), (chunk, ahead, readers))| Shape {
                rows_of_files,
                row,
                skip,
                range: (range.0, range.0 + range.1),
                order,
                chunk,
                ahead,
                readers,
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Rows hold their own numbers, so the contents of a pass show where they were read.
    #[test]
    fn a_pass_shows_the_rows_of_its_order(shape in shapes()) {
        let folder = Folder::new();
        let mut from = 0;
        let mut files = Vec::new();
        for (at, rows) in shape.rows_of_files.iter().enumerate() {
            let count = rows * shape.row as u32;
            files.push(folder.file(&format!("{at}.bin"), shape.skip, from, count));
            from += count;
        }
        let data = DataSet::<u32>::builder().files(&files).skip(shape.skip as u64).row(shape.row).open().expect("files");
        let all = u64::from(from) / shape.row as u64;
        prop_assert_eq!(data.rows(), all);
        let pool = Pool::builder().trim_every(None).host().expect("a pool");
        let pass = data
            .pass()
            .pool(&pool)
            .rows(shape.chunk)
            .range(shape.range.0..shape.range.1)
            .order(shape.order)
            .ahead(shape.ahead)
            .readers(shape.readers)
            .prepare(|chunk| chunk.iter_mut().for_each(|x| *x = x.wrapping_mul(3)));
        let mut seen = Vec::new();
        let passed = pass.for_each(|chunk| {
            for (nth, row) in chunk.rows().enumerate() {
                let number = chunk.row_number(nth).expect("it is there");
                for (at, value) in row.iter().enumerate() {
                    assert_eq!(u64::from(*value), 3 * (number * shape.row as u64 + at as u64));
                }
                seen.push(number);
            }
            assert_eq!(chunk.row_number(chunk.rows().len()), None);
        }).expect("the files stay as they are");
        prop_assert_eq!(seen.len() as u64, passed.rows);
        prop_assert_eq!(passed.rows, passed.of_rows);
        let (first, last) = (shape.range.0.min(all), shape.range.1.min(all));
        let ranged: Vec<u64> = (first..last).collect();
        if shape.order == Order::ascending() {
            prop_assert_eq!(&seen, &ranged);
        }
        // The pass visits every row of the range exactly once, or every row that the step selects.
        seen.sort_unstable();
        seen.dedup();
        prop_assert_eq!(seen.len() as u64, passed.rows);
        prop_assert!(seen.iter().all(|row| (first..last).contains(row)));
        if passed.rows == last - first {
            prop_assert_eq!(&seen, &ranged);
        }
        prop_assert_eq!(pool.stats().requested.current, 0);
    }

    #[test]
    fn batches_are_clamped(rows in prop::collection::vec(0u32..60, 1..4), row in 1usize..5, start in 0u64..200, count in 0usize..200) {
        let folder = Folder::new();
        let mut from = 0;
        let mut files = Vec::new();
        for (at, rows) in rows.iter().enumerate() {
            files.push(folder.file(&at.to_string(), 8, from, rows * row as u32));
            from += rows * row as u32;
        }
        let data = DataSet::<u32>::builder().files(files).skip(8).row(row).open().expect("files");
        let all: Vec<u32> = (0..from).collect();
        let first = (start as usize * row).min(all.len());
        let expected = &all[first..(first + count * row).min(all.len())];
        let batch = data.batch(start, count).expect("room");
        prop_assert_eq!(&batch[..], expected);
        let mut out = vec![7; count * row + row - 1];
        let read = data.read(start, &mut out).expect("files");
        prop_assert_eq!(&out[..read * row], expected);
        prop_assert!(out[read * row..].iter().all(|x| *x == 7), "nothing else is written");
        // SAFETY: no other code has the files.
        let map = unsafe { data.map() }.expect("a map");
        let (mut at, mut mapped) = (start, Vec::new());
        while mapped.len() < expected.len() {
            let batch = map.batch(at, count - mapped.len() / row);
            prop_assert!(!batch.is_empty());
            mapped.extend_from_slice(batch);
            at += (batch.len() / row) as u64;
        }
        prop_assert_eq!(&mapped[..], expected);
        prop_assert!(map.batch(data.rows(), 1).is_empty());
    }
}

#[test]
fn files_without_whole_rows_are_refused() {
    let folder = Folder::new();
    let file = folder.file("a.bin", 0, 0, 10);
    assert!(matches!(
        DataSet::<u32>::builder().open(),
        Err(DataError::NoFiles)
    ));
    let missing = DataSet::<u32>::open(folder.0.join("none")).expect_err("it is not there");
    assert!(missing.to_string().contains("none: cannot find it"), "{missing}");
    assert!(matches!(
        DataSet::<u32>::open(&folder.0),
        Err(DataError::NotAFile { .. })
    ));
    assert!(matches!(
        DataSet::<u32>::open("/dev/null"),
        Err(DataError::NotAFile { .. })
    ));
    for row in [0, usize::MAX, usize::MAX / 4] {
        let opened = DataSet::<u32>::builder().file(&file).row(row).open();
        assert!(matches!(opened, Err(DataError::Row { elements }) if elements == row));
    }
    for (skip, row) in [(0, 3), (1, 1), (41, 1), (u64::MAX, 1)] {
        let opened = DataSet::<u32>::builder().file(&file).skip(skip).row(row).open();
        assert!(
            matches!(opened, Err(DataError::Uneven { bytes: 40, .. })),
            "{skip} {row}"
        );
    }
    let data = DataSet::<u32>::builder().file(&file).skip(2).row(19);
    assert!(data.open().is_err());
    let halves = DataSet::<u16>::builder().file(&file).skip(1).open();
    assert!(halves.is_err(), "39 bytes are no halves");
    let odd = DataSet::<u16>::builder()
        .file(folder.file("odd", 1, 0, 2))
        .skip(1)
        .open()
        .expect("whole");
    // SAFETY: no other code has the file.
    let mapped = unsafe { odd.map() };
    assert!(matches!(
        mapped,
        Err(DataError::Misaligned {
            skip: 1,
            align: 2,
            ..
        })
    ));
    assert_eq!(odd.rows(), 4);
}

#[test]
fn folders_are_read_in_the_order_of_names() {
    let folder = Folder::new();
    folder.file("b.bin", 0, 3, 3);
    folder.file("a.bin", 0, 0, 3);
    folder.file("c.txt", 0, 100, 3);
    fs::create_dir(folder.0.join("d.bin")).expect("a folder");
    let data = DataSet::<u32>::builder()
        .folder(&folder.0, ".bin")
        .expect("a folder")
        .open()
        .expect("files");
    assert_eq!(data.batch(0, 100).expect("room")[..], [0, 1, 2, 3, 4, 5]);
    assert_eq!(format!("{data:?}"), "DataSet(6 rows of 1 u32 in 2 files)");
    assert!(
        DataSet::<u32>::builder()
            .folder(folder.0.join("none"), "")
            .is_err()
    );
    let none = DataSet::<u32>::builder()
        .folder(&folder.0, ".npy")
        .expect("a folder")
        .open();
    assert!(matches!(none, Err(DataError::NoFiles)));
}

#[test]
fn any_number_of_chunks_may_be_read_ahead() {
    let folder = Folder::new();
    let data = DataSet::<u32>::open(folder.file("ahead.bin", 0, 0, 10_000)).expect("a file");
    let mut rows = 0;
    let pass = data.pass().rows(1000).ahead(usize::MAX).readers(2);
    pass.for_each(|chunk| rows += chunk.len())
        .expect("it stays as it is");
    assert_eq!(rows, 10_000);
}

#[test]
fn a_file_that_is_truncated_or_written_ends_a_pass_with_an_error() {
    let folder = Folder::new();
    for ahead in [0, 2] {
        let cut = folder.file("cut.bin", 0, 0, 100_000);
        let data = DataSet::<u32>::open(&cut).expect("a file");
        let mut chunks = 0;
        let pass = data.pass().rows(1000).ahead(ahead);
        let error = pass.for_each(|chunk| {
            chunks += 1;
            if chunk.number() == 3 {
                let file = OpenOptions::new().write(true).open(&cut).expect("ours");
                file.set_len(50_000 * 4).expect("cut");
            }
        });
        let error = error.expect_err("it ends in the middle");
        assert!(
            matches!(error, DataError::Truncated { .. } | DataError::Changed { .. }),
            "{error}"
        );
        assert!((4..8).contains(&chunks), "{chunks}");
        assert!(matches!(
            data.batch(60_000, 1),
            Err(DataError::Truncated { end: 240_004, .. })
        ));
        assert!(matches!(data.batch(0, 1), Err(DataError::Changed { .. })));
        // SAFETY: the call is refused.
        let mapped = unsafe { data.map() };
        assert!(matches!(mapped, Err(DataError::Changed { .. })));

        let grown = folder.file("grown.bin", 0, 0, 100);
        let data = DataSet::<u32>::open(&grown).expect("a file");
        let mut file = OpenOptions::new().append(true).open(&grown).expect("ours");
        file.write_all(&[1, 2, 3, 4]).expect("room");
        assert!(matches!(data.batch(0, 1), Err(DataError::Changed { .. })));
        assert_eq!(DataSet::<u32>::open(&grown).expect("again").rows(), 101);
    }
}

#[test]
fn a_computation_may_fail_or_panic_and_readers_end() {
    let folder = Folder::new();
    let data = DataSet::<u32>::open(folder.file("a", 0, 0, 100_000)).expect("a file");
    let pool = Pool::builder().trim_every(None).host().expect("a pool");
    for (ahead, readers) in [(0, 1), (1, 1), (3, 3)] {
        let pass = || data.pass().rows(100).ahead(ahead).readers(readers).pool(&pool);
        let failed: Result<_, Box<dyn std::error::Error>> = pass().try_for_each(|chunk| {
            if chunk.number() < 5 {
                Ok(())
            } else {
                Err("enough".into())
            }
        });
        assert_eq!(failed.expect_err("it says so").to_string(), "enough");
        let panics = std::panic::catch_unwind(|| pass().for_each(|chunk| assert!(chunk.number() < 5)));
        assert!(panics.is_err());
        let dies = |chunk: &mut millpond::data::Chunk<'_, u32>| assert!(chunk.number() < 5);
        let panics = std::panic::catch_unwind(|| pass().prepare(dies).for_each(|_| {}));
        assert!(panics.is_err());
        assert_eq!(pool.stats().requested.current, 0, "every buffer is back");
    }
}

#[test]
fn memory_is_bounded_and_nothing_is_allocated_for_a_chunk() {
    const MIB: u64 = 1 << 20;
    let folder = Folder::new();
    let path = folder.0.join("large");
    let mut file = File::create(&path).expect("a file");
    let block: Vec<u8> = (0..MIB).map(|n| n as u8).collect();
    for _ in 0..192 {
        file.write_all(&block).expect("room on the disk");
    }
    drop(file);
    let data = DataSet::<u8>::builder()
        .file(&path)
        .row(4096)
        .open()
        .expect("a file");
    let pool = Pool::builder().trim_every(None).host().expect("a pool");
    let before = status("RssAnon");
    for order in [Order::ascending(), Order::shuffled(5), Order::strided(nonzero(2))] {
        let (mut allocations, mut most, mut sum) = (None, 0, 0u64);
        let pass = data
            .pass()
            .pool(&pool)
            .budget(16 * MIB)
            .ahead(100)
            .readers(2)
            .order(order);
        let passed = pass.for_each(|chunk| {
            sum += chunk.iter().map(|x| u64::from(*x)).sum::<u64>();
            let stats = pool.stats();
            assert_eq!(*allocations.get_or_insert(stats.allocations), stats.allocations);
            most = most.max(stats.requested.current);
        });
        let passed = passed.expect("it stays as it is");
        assert_eq!(sum, passed.bytes() / 256 * (255 * 128));
        assert!((8 * MIB..=16 * MIB).contains(&most), "{most}");
        let grown = status("RssAnon").saturating_sub(before);
        assert!(grown <= 20 * MIB, "{grown} bytes more for a budget of 16 MiB");
    }
    assert!(pool.stats().reserved.peak <= 20 * MIB);
    // Mapped pages that were read belong to the process until they are released.
    // SAFETY: no other code has the file.
    let map = unsafe { data.map() }.expect("a map");
    map.advise(Access::Sequential);
    let before = status("RssFile");
    let mut seen = 0;
    for start in (0..data.rows()).step_by(2048) {
        map.expect(start + 2048, 2048);
        seen += map.batch(start, 2048).iter().map(|x| u64::from(*x)).sum::<u64>();
        map.forget(start, 2048);
        assert!(status("RssFile").saturating_sub(before) <= 24 * MIB);
    }
    assert_eq!(seen, 192 * MIB / 256 * (255 * 128));
}

#[test]
fn budgets_are_kept_or_refused() {
    let folder = Folder::new();
    let data = DataSet::<u32>::builder()
        .file(folder.file("a", 0, 0, 1 << 20))
        .row(1024)
        .open()
        .expect("a file");
    let error = data
        .pass()
        .rows(512)
        .budget(1 << 20)
        .for_each(|_| {})
        .expect_err("two chunks have 4 MiB");
    assert!(
        matches!(error, DataError::Budget { needed, chunks: 2, .. } if needed == 4 << 20),
        "{error}"
    );
    // The pass uses smaller chunks if no size is given.
    let mut rows = 0;
    data.pass()
        .budget(16 << 10)
        .for_each(|chunk| rows = rows.max(chunk.rows().len()))
        .expect("room");
    assert_eq!(rows, 1);
    assert!(data.pass().budget(8191).for_each(|_| {}).is_err());
    data.pass()
        .budget(4096)
        .ahead(0)
        .for_each(|_| {})
        .expect("one is enough without reading ahead");
    // The buffers are charged to the tenant's budget.
    let pool = Pool::builder().trim_every(None).host().expect("a pool");
    let budget = Budget::builder("reading")
        .measure(Measure::Allocated)
        .limit(2 << 20)
        .build()
        .expect("a budget");
    let tenant = pool.tenant(&budget).expect("allocated bytes");
    let mut used = 0;
    data.pass()
        .tenant(&tenant)
        .rows(64)
        .for_each(|_| used = used.max(budget.used()))
        .expect("room");
    assert_eq!((used, budget.used()), (3 * 64 * 4096, 0));
    // A batch in a buffer of the tenant is charged too, and one without a pool is charged to no budget.
    let batch = data.batch_in(&tenant, 5, 3).expect("room");
    assert_eq!((batch[0], budget.used()), (5 * 1024, 3 * 4096));
    drop(batch);
    assert!(matches!(
        data.batch_in(&tenant, 0, 1024),
        Err(DataError::Memory(_))
    ));
    let source = Unpooled::host().expect("a source");
    let batch = data.batch_in(&source, 1023, 3).expect("room");
    assert_eq!(
        (batch.len(), batch[1023], budget.used()),
        (1024, (1 << 20) - 1, 0)
    );
    // A chunk is a tensor of rows, including the short last one.
    let mut shapes = Vec::new();
    let pass = data.pass().rows(300).try_for_each(|chunk| {
        let last = chunk.view()?.select(1, 1023)?.get(&[0])?.to_u64();
        assert_eq!(last, chunk.row_number(0).map(|row| row * 1024 + 1023));
        chunk.view_mut()?.select(1, 7)?.fill(1)?;
        assert_eq!(chunk[7], 1);
        shapes.push(chunk.view()?.shape().to_vec());
        Ok::<_, Box<dyn std::error::Error>>(())
    });
    pass.expect("rows");
    assert_eq!(shapes, [[300, 1024], [300, 1024], [300, 1024], [124, 1024]]);
    let refused = data.pass().tenant(&tenant).rows(200).for_each(|_| {});
    assert!(matches!(refused, Err(DataError::Memory(_))));
    assert_eq!(budget.used(), 0);
    // The memory of the sieve is allocated with the buffers: a MiB for a piece, and 24 bytes for each row of a chunk.
    let sieve = (1 << 20) + 64 * 24;
    let shuffled = |ahead| {
        let pass = data.pass().tenant(&tenant).rows(64).ahead(ahead);
        pass.order(Order::shuffled(3))
    };
    for (ahead, buffers) in [(0, 1), (1, 2), (2, 3)] {
        let (mut least, mut most) = (u64::MAX, 0);
        let pass = shuffled(ahead).for_each(|chunk| {
            // A reader that has read the last of the 16 chunks has ended and freed its sieve.
            if chunk.number() > 8 {
                return;
            }
            least = least.min(budget.used());
            most = most.max(budget.used());
        });
        pass.expect("room");
        let expected = buffers * 64 * 4096 + sieve;
        assert!(
            least == most && (expected..expected + 4096).contains(&most),
            "{least} {most} {expected}"
        );
    }
    let _less = tenant.alloc_zeroed::<u8>(1 << 20).expect("room");
    for ahead in [0, 2] {
        let refused = shuffled(ahead).for_each(|_| panic!("before the first chunk"));
        assert!(matches!(refused, Err(DataError::Memory(_))));
        assert_eq!(budget.used(), 1 << 20);
    }
}

#[test]
fn progress_is_reported_at_its_interval() {
    let folder = Folder::new();
    let data = DataSet::<u32>::open(folder.file("a", 0, 0, 1000)).expect("a file");
    let mut told = Vec::new();
    let pass = data
        .pass()
        .rows(100)
        .progress(Duration::ZERO, |progress| told.push(progress.rows));
    let passed = pass.for_each(|_| {}).expect("a file");
    assert_eq!(told, (1..=10).map(|n| n * 100).collect::<Vec<u64>>());
    assert!(passed.waited <= passed.elapsed);
    let mut told = 0;
    let pass = data
        .pass()
        .rows(100)
        .progress(Duration::from_secs(3600), |_| told += 1);
    pass.for_each(|_| {}).expect("a file");
    assert_eq!(told, 0);
    let empty = data
        .pass()
        .range(5..5)
        .for_each(|_| panic!("there is none"))
        .expect("nothing to do");
    assert_eq!((empty.rows, empty.part()), (0, 1.0));
}
