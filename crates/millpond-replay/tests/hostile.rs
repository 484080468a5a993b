//! Analyses hostile recordings. For any content of a recording, every command ends soon, uses bounded memory,
//! and returns consistent results. The fuzz target `recording` does the same. These tests use files made from a seed.

#![cfg(feature = "recording")]

#[path = "../../../fuzz/fuzz_targets/rows.rs"]
mod rows;
#[path = "../../../fuzz/fuzz_targets/walk.rs"]
mod walk;

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Counts live bytes and their peak.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
/// The most memory that one of these files may take.
const MOST: usize = 500 << 20;
/// The most output for one of these files. None of them has more than a few hundred rows.
const WRITTEN: u64 = 256 << 20;

// SAFETY: every call is passed unchanged to the system's allocator, and counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(live, Relaxed);
        // SAFETY: the caller keeps `alloc`'s contract, which is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: `at` came from `alloc` above with this layout.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.below(256) as u8).collect()
    }
}

/// Returns the number of files of a test: `all` in the long checks, and an eighth otherwise.
fn rounds(all: usize) -> usize {
    match std::env::var_os("MILLPOND_TEST_ALL") {
        Some(_) => all,
        None => all / 8,
    }
}

/// A file that is overwritten again and again.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let folder = PathBuf::from("/dev/shm");
        let folder = if folder.is_dir() {
            folder
        } else {
            std::env::temp_dir()
        };
        Self(folder.join(format!("millpond-hostile-{}-{name}.mpr", std::process::id())))
    }

    /// Analyses a file. Returns whether it was a recording.
    fn walk(&self, bytes: &[u8], what: &str) -> bool {
        std::fs::write(&self.0, bytes).expect("room for a small file");
        let before = LIVE.load(Relaxed);
        PEAK.store(before, Relaxed);
        let begun = Instant::now();
        let outcome = std::panic::catch_unwind(|| walk::walk(&self.0, WRITTEN));
        let grown = PEAK.load(Relaxed).saturating_sub(before);
        let is_one = outcome.unwrap_or_else(|_| panic!("{what}"));
        assert!(grown < MOST, "{what}: took {grown} bytes for {}", bytes.len());
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(20), "{what}: took {took:?}");
        is_one
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns a recording as programs make them, with blocks that come and go, all definitions, and a keyframe.
fn honest(random: &mut Random, rows: usize) -> Vec<u8> {
    use millpond_trace::recording::{Kind, Row, Writer};
    let mut writer = Writer::new(Vec::new(), &[("program".to_owned(), "train".to_owned())]).expect("memory");
    let define = |kind| Row {
        pool: 1,
        tag: 1,
        stack: 1,
        thread: 1,
        ..Row::new(kind, 0)
    };
    for (kind, text, list) in [
        (Kind::DefinePool, Some("cuda\nmain"), Some([0])),
        (Kind::DefineTag, Some("weights"), None),
        (Kind::DefineThread, Some("loader"), None),
        (Kind::DefineStack, None, Some([0x1000])),
        (Kind::DefineFrame, Some("train\ntrain.py\n12"), Some([0x1000])),
    ] {
        let list = list.as_ref().map(<[u64; 1]>::as_slice);
        writer.say(&define(kind), text, list).expect("memory");
    }
    let mut live: Vec<Row> = Vec::new();
    for number in 1..=rows as u64 {
        let row = if live.len() > 10 {
            let at = random.below(live.len());
            let of = live.swap_remove(at);
            Row {
                kind: Kind::Free,
                time: 100 * number,
                ..of
            }
        } else {
            let bytes = 512 * (1 + random.below(1000) as u64);
            let row = Row {
                id: number,
                address: bytes << 20,
                requested: bytes - 7,
                bytes,
                pool: 1,
                tag: 1,
                stack: 1,
                thread: 1,
                ..Row::new(Kind::Alloc, 100 * number)
            };
            live.push(row);
            row
        };
        writer.push(&row).expect("memory");
        if number % 50 == 0 {
            let keyframe = Row {
                bytes: live.len() as u64,
                ..Row::new(Kind::Keyframe, 100 * number)
            };
            writer.push(&keyframe).expect("memory");
            for of in &live {
                let kind = Kind::Live;
                writer.push(&Row { kind, ..*of }).expect("memory");
            }
            writer.flush().expect("memory");
        }
    }
    writer.finish(100 * rows as u64).expect("memory")
}

/// Rows that no correct program would write: any kind, sizes up to the largest number, times that go back,
/// numbers that are defined twice or never, and keyframes that announce missing blocks.
#[test]
fn invalid_rows_do_not_crash_the_analysis() {
    let scratch = Scratch::new("rows");
    let mut random = Random(1);
    for round in 0..rounds(4_000) {
        let count = 1 + random.below(60);
        let mut bytes = random.bytes(count * rows::ROW);
        // Reduce some fields to few values. Otherwise no free would match a block and no wait would match a
        // stream.
        if round % 2 == 0 {
            for row in bytes.chunks_exact_mut(rows::ROW) {
                for field in [2, 6, 7, 9, 10] {
                    row[field] %= 4;
                }
            }
        }
        let file = rows::written(&bytes);
        assert!(
            scratch.walk(&file, &format!("round {round}")),
            "it is a recording"
        );
    }
}

/// Whole files in which some bytes are changed, missing or repeated.
#[test]
fn damaged_files_do_not_crash_the_analysis() {
    let scratch = Scratch::new("damaged");
    let mut random = Random(2);
    let seeds = [
        honest(&mut random, 300),
        honest(&mut random, 3),
        rows::written(&random.bytes(600)),
    ];
    let (mut opened, mut refused) = (0, 0);
    for round in 0..rounds(8_000) {
        let mut file = seeds[random.below(seeds.len())].clone();
        for _ in 0..1 + random.below(4) {
            let at = random.below(file.len());
            match random.below(6) {
                0 => file.truncate(at.max(1)),
                1 => {
                    let end = (at + 1 + random.below(64)).min(file.len());
                    let part = file[at..end].to_vec();
                    file.splice(at..at, part);
                }
                2 => {
                    let end = (at + 1 + random.below(16)).min(file.len() - 1).max(at);
                    file.drain(at..end);
                }
                3 => file[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
                _ => file[at] ^= 1 << random.below(8),
            }
        }
        if scratch.walk(&file, &format!("round {round}")) {
            opened += 1;
        } else {
            refused += 1;
        }
    }
    // Damage at the beginning leaves no recording. After damage elsewhere, the part before it is a recording.
    assert!(
        opened > rounds(1_000) && refused > rounds(100),
        "{opened} opened, {refused} refused"
    );
}
