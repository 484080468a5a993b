//! Programs that run out of memory, and the files that show which code held it.

#![cfg(target_os = "linux")]

#[path = "support/child.rs"]
mod parts;

use millpond::{
    AllocError, Budget, MemoryKind, Pool, Recorder, Tracking, budget::Measure, record::Snapshots, snapshot,
    tag,
};
use millpond_trace::history::{Flow, History};
use millpond_trace::recording::{End, Kind, Row};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A folder that is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("millpond-snapshots-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).expect("a folder");
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        };
        let mut names: Vec<String> = entries.map(name).collect();
        names.sort();
        names
    }

    fn open(&self, name: &str) -> History {
        open(&self.0.join(name))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn open(path: &Path) -> History {
    let history = History::open(path, &millpond_trace::ReadOptions::default()).expect("it opens");
    assert_eq!(history.end, Some(End::Closed));
    history
}

/// Runs one ignored test of this program in a process of its own, in a folder. Returns its output.
fn child(name: &str, folder: &Folder, change: impl FnOnce(&mut Command)) -> String {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command
        .args(["--ignored", "--exact", "--nocapture", name])
        .env_remove("MILLPOND_RECORD")
        .env_remove("MILLPOND_OOM_SNAPSHOT")
        .current_dir(&folder.0);
    change(&mut command);
    let output = parts::ends(&mut command).output().expect("a child");
    let text = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{:?}\n{text}\n{error}",
        output.status
    );
    text.into_owned()
}

fn pool(name: &str) -> Pool {
    let builder = Pool::builder().name(name).limit(16 << 20);
    builder.track(Some(Tracking::All)).host().expect("addresses")
}

/// Allocates blocks of 1 MiB until the first failure. Returns their number and the error.
fn fill(pool: &Pool) -> (usize, AllocError) {
    let _scope = tag("filling");
    let mut held = Vec::new();
    loop {
        match pool.alloc_zeroed::<u8>(1 << 20) {
            Ok(block) => held.push(block),
            Err(error) => {
                let count = held.len();
                return (count, error);
            }
        }
    }
}

/// Returns the bytes that a tag holds in a file, the refused requests, and the texts of the marks.
fn read(history: &History, of: &str) -> (u64, Vec<Row>, Vec<String>) {
    let live = history.live_at(u64::MAX).expect("it is there");
    let tagged = live.blocks().filter(|row| history.definitions.tag(row.tag) == of);
    let bytes = tagged.map(|row| row.requested).sum();
    let (mut refused, mut marks) = (Vec::new(), Vec::new());
    let walked = history.walk(|row, text| {
        if row.kind == Kind::Refused {
            refused.push(*row);
        }
        marks.extend(text.map(str::to_owned));
        Flow::On
    });
    walked.expect("it is there");
    (bytes, refused, marks)
}

#[test]
#[ignore = "a child of another test"]
fn runs_out_twice() {
    let one = pool("one");
    let (count, error) = fill(&one);
    let text = error.to_string();
    match error.snapshot() {
        Some(path) => {
            assert!(
                path.exists() && text.contains(&path.display().to_string()),
                "{text}"
            );
            let history = open(path);
            let (bytes, refused, marks) = read(&history, "filling");
            assert_eq!(bytes, (count as u64) << 20);
            assert_eq!(refused.len(), 1);
            let pools = history.definitions.pools();
            let of = pools
                .iter()
                .find(|(_, pool)| pool.name == "one")
                .expect("defined");
            assert_eq!((refused[0].requested, refused[0].pool), (1 << 20, of.0));
            // The mark has the text of the error without the file name.
            assert!(
                marks.iter().any(|mark| text.starts_with(mark.as_str())),
                "{marks:?}"
            );
        }
        None => assert!(std::env::var_os("NO_FILE").is_some(), "{text}"),
    }
    let (_, error) = fill(&one);
    assert_eq!(error.snapshot(), None, "it has one of this cause");
    let (_, error) = fill(&pool("two"));
    assert_eq!(error.snapshot(), None, "too soon");
    assert_eq!(pool("three").stats().refusals, 0);
}

#[test]
fn the_environment_sets_the_path() {
    let folder = Folder::new("environment");
    child("runs_out_twice", &folder, |command| {
        command.env("MILLPOND_OOM_SNAPSHOT", "oom-%n.mpr");
    });
    assert_eq!(folder.names(), ["oom-1.mpr"]);
}

#[test]
fn snapshots_of_a_recorded_process_are_written_next_to_the_recording() {
    let folder = Folder::new("beside");
    child("runs_out_twice", &folder, |command| {
        command.env("MILLPOND_RECORD", "run.mpr");
    });
    assert_eq!(folder.names(), ["run.mpr", "run.oom-1.mpr"]);
    let (_, refused, _) = read(&folder.open("run.mpr"), "filling");
    assert_eq!(refused.len(), 3, "the recording goes on");
}

#[test]
fn nothing_is_written_by_default() {
    let folder = Folder::new("nobody");
    child("runs_out_twice", &folder, |command| {
        command.env("NO_FILE", "1");
    });
    child("runs_out_twice", &folder, |command| {
        command.env("NO_FILE", "1");
        command.env("MILLPOND_RECORD", "run.mpr");
        command.env("MILLPOND_OOM_SNAPSHOT", "none");
    });
    assert_eq!(folder.names(), ["run.mpr"]);
}

#[test]
#[ignore = "a child of another test"]
fn runs_out_of_budgets_and_patience() {
    Snapshots::new()
        .every(Duration::ZERO)
        .most_files(3)
        .fact("commit", "abc")
        .on_out_of_memory("oom-%n.mpr");
    // A budget that two pools share is a single cause.
    let team = Budget::builder("team").measure(Measure::Allocated).limit(4 << 20);
    let team = team.build().expect("a budget");
    let [one, two] = ["one", "two"].map(|name| {
        let builder = Pool::builder()
            .name(name)
            .track(Some(Tracking::All))
            .budget(&team);
        builder.host().expect("addresses")
    });
    let held = one.alloc_zeroed::<u8>(3 << 20).expect("room");
    let error = two.alloc_zeroed::<u8>(2 << 20).expect_err("over the budget");
    assert_eq!(error.snapshot(), Some(Path::new("oom-1.mpr")));
    assert!(error.to_string().contains("oom-1.mpr"), "{error}");
    let error = one.alloc_zeroed::<u8>(2 << 20).expect_err("over the budget");
    assert_eq!(error.snapshot(), None, "the same cause");
    drop(held);
    // A waiting request is refused when its time is over, and not before.
    let small = pool("small");
    let held = small.alloc_zeroed::<u8>(12 << 20).expect("room");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let patient = small.waiting(Duration::from_secs(60));
            patient.alloc_zeroed::<u8>(8 << 20).map(drop)
        });
        while small.stats().refusals == 0 {
            std::thread::yield_now();
        }
        drop(held);
        waits.join().expect("no panic").expect("its memory came back");
    });
    assert!(!Path::new("oom-2.mpr").exists(), "nothing was refused in the end");
    let held = small.alloc_zeroed::<u8>(12 << 20).expect("room");
    let patient = small.waiting(Duration::from_millis(5));
    let error = patient
        .alloc_zeroed::<u8>(8 << 20)
        .expect_err("nobody gives back");
    assert_eq!(error.snapshot(), Some(Path::new("oom-2.mpr")));
    drop(held);
    // A request that can never fit is refused without a snapshot.
    let last = pool("last");
    let error = last
        .alloc_zeroed::<u8>(usize::MAX - 5)
        .expect_err("there is no such block");
    assert!(matches!(error, AllocError::TooLarge { .. }) && error.snapshot().is_none());
    assert_eq!(fill(&last).1.snapshot(), Some(Path::new("oom-3.mpr")));
    assert_eq!(fill(&pool("none left")).1.snapshot(), None);
}

#[test]
fn each_cause_has_one_file_after_requests_have_stopped_waiting() {
    let folder = Folder::new("causes");
    child("runs_out_of_budgets_and_patience", &folder, |_| {});
    assert_eq!(folder.names(), ["oom-1.mpr", "oom-2.mpr", "oom-3.mpr"]);
    let facts = folder.open("oom-1.mpr").facts;
    let fact = |name: &str| {
        facts
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    };
    assert_eq!(
        (fact("commit"), fact("snapshot")),
        (Some("abc"), Some("out of memory"))
    );
}

/// If the file cannot be written, nothing else is lost.
#[test]
#[ignore = "a child of another test"]
fn has_nowhere_to_write() {
    Snapshots::new().on_out_of_memory("no-such-folder/oom.mpr");
    let pool = pool("one");
    let (count, error) = fill(&pool);
    assert!(count > 0 && error.is_out_of_memory() && error.snapshot().is_none());
    assert!(pool.alloc_zeroed::<u8>(1 << 20).is_ok());
}

#[test]
fn a_file_that_cannot_be_written_changes_nothing() {
    let folder = Folder::new("nowhere");
    child("has_nowhere_to_write", &folder, |_| {});
    assert!(folder.names().is_empty());
}

#[test]
#[ignore = "a child of another test"]
fn forks_and_runs_out() {
    Snapshots::new()
        .every(Duration::ZERO)
        .on_out_of_memory("oom-%p-%n.mpr");
    let pool = pool("one");
    let over = std::sync::atomic::AtomicBool::new(false);
    let mut ends = Vec::new();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    let _ = snapshot("beside-%p.mpr");
                    drop(fill(&pool));
                }
            });
        }
        for _ in 0..30 {
            // SAFETY: the child uses pools alone, and leaves by `_exit`.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: the call takes only a number.
                unsafe { libc::alarm(20) };
                let (_, error) = fill(&Pool::builder().limit(8 << 20).host().expect("addresses"));
                let fine = error.snapshot().is_some_and(Path::exists);
                // SAFETY: the call ends the child at once.
                unsafe { libc::_exit(i32::from(!fine)) };
            }
            let mut status = -1;
            // SAFETY: waits for the child that was just made; the status is a local variable.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            ends.push(status);
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(ends, [0; 30]);
}

#[test]
fn a_child_of_a_fork_writes_its_own_file() {
    let folder = Folder::new("fork");
    child("forks_and_runs_out", &folder, |_| {});
    let names = folder.names();
    assert!(names.len() >= 31, "{names:?}");
    for name in names {
        folder.open(&name);
    }
}

/// A pool of pinned memory behaves like any other.
#[test]
#[ignore = "a child of another test"]
fn runs_out_of_pinned_memory() {
    let recorder = Recorder::start("run.mpr").expect("a file");
    let Ok(pool) = Pool::builder().limit(1 << 20).pinned() else {
        return;
    };
    assert_eq!(pool.kind(), MemoryKind::Pinned);
    let _held = pool.alloc_zeroed::<u8>(600 << 10);
    if let Err(error) = pool.alloc_zeroed::<u8>(600 << 10)
        && !matches!(error, AllocError::Source(_))
    {
        assert_eq!(error.snapshot(), Some(Path::new("run.oom-1.mpr")));
    }
    drop(recorder);
}

#[test]
fn pools_of_pinned_memory_write_snapshots_too() {
    let folder = Folder::new("pinned");
    child("runs_out_of_pinned_memory", &folder, |_| {});
}

/// A training step that needs more memory than there is.
#[test]
#[ignore = "a child of another test"]
fn is_shown_in_the_book() {
    let pool = Pool::builder().name("training").limit(256 << 20);
    let pool = pool.track(Some(Tracking::All)).host().expect("addresses");
    let hold = |name: &str, blocks: usize, bytes: usize| -> Vec<_> {
        let _scope = tag(name);
        let block = |_| pool.alloc_zeroed::<u8>(bytes).expect("room");
        (0..blocks).map(block).collect()
    };
    let _weights = hold("weights", 12, 4 << 20);
    let _states = hold("optimizer", 24, 4 << 20);
    let _activations = hold("activations", 30, 3 << 20);
    let error = pool.alloc_zeroed::<u8>(64 << 20).expect_err("there is no more");
    println!("\n>\n{error}\n<");
}

/// The book shows the error that a program prints. With `MILLPOND_UPDATE=1` in the environment the block is rewritten.
#[test]
fn the_book_shows_the_error_that_is_printed() {
    let folder = Folder::new("book");
    let printed = child("is_shown_in_the_book", &folder, |command| {
        command.env("MILLPOND_OOM_SNAPSHOT", "oom-%n.mpr");
    });
    let (_, printed) = printed.split_once(">\n").expect("it prints");
    let (printed, _) = printed.split_once("<\n").expect("to its end");
    let (bytes, refused, _) = read(&folder.open("oom-1.mpr"), "weights");
    assert_eq!((bytes, refused.len()), (12 * (4 << 20), 1));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/out-of-memory.md");
    let page = std::fs::read_to_string(&path).expect("docs/out-of-memory.md");
    let (before, rest) = page
        .split_once("<!-- printed: out of memory -->\n```text\n")
        .expect("the page has the block");
    let (shown, after) = rest.split_once("```\n<!-- end -->").expect("it ends");
    if std::env::var_os("MILLPOND_UPDATE").is_some() {
        let begin = "<!-- printed: out of memory -->\n```text\n";
        let made = format!("{before}{begin}{printed}```\n<!-- end -->{after}");
        std::fs::write(&path, made).expect("docs/out-of-memory.md");
        return;
    }
    assert_eq!(shown, printed);
}

/// For any number of blocks, a file stays within its size limit and lists the largest blocks.
#[test]
fn a_file_stays_within_its_size_limit() {
    let folder = Folder::new("bounded");
    let pool = Pool::builder().name("many").track(Some(Tracking::All));
    let pool = pool.host().expect("addresses");
    let block = |at: usize| pool.alloc_zeroed::<u8>(1 + at * 7919 % 1000).expect("room");
    let held: Vec<_> = (0..200_000).map(block).collect();
    for most in [64 << 10, 1 << 20, 64 << 20] {
        let path = folder.0.join("now.mpr");
        let begun = std::time::Instant::now();
        let report = Snapshots::new()
            .most_bytes(most)
            .write(&path)
            .expect("it is written");
        println!("{report:?} in {:?}", begun.elapsed());
        assert!(report.file_bytes <= most, "{report:?} of {most}");
        // Other code holds some blocks too.
        assert!(report.blocks + report.summed_blocks >= held.len() as u64);
        assert!(report.blocks >= (most / 64).min(held.len() as u64), "{report:?}");
        open(&path);
    }
}
