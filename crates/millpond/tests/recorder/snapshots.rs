//! Writes snapshots of pools of the tests and reads them.

use super::{Scratch, number, rows};
use millpond::{Ledger, Pool, PoolStats, Tracking, ledger::LedgerBuilder, record::Snapshots, snapshot, tag};
use millpond_trace::history::{Flow, History};
use millpond_trace::recording::{End, Gauge, Kind, Row};

fn pool(name: &str, account: Option<LedgerBuilder>) -> Pool {
    let pool = Pool::builder().name(name).track(None).host().expect("addresses");
    pool.track(account);
    pool
}

/// The live blocks of a pool and the values of its gauges.
struct Read {
    history: History,
    blocks: Vec<Row>,
    rows: Vec<Row>,
}

impl Read {
    fn of(file: &Scratch, pool: &str) -> Self {
        let history = file.read();
        assert_eq!((history.end.clone(), history.lost), (Some(End::Closed), 0));
        let number = number(&history, pool);
        let rows = rows(&history, number);
        let live = history.live_at(u64::MAX).expect("the file is there");
        let blocks = live.blocks().filter(|row| row.pool == number).copied().collect();
        Self {
            history,
            blocks,
            rows,
        }
    }

    fn sums(&self) -> (u64, u64) {
        let sum = |of: fn(&Row) -> u64| self.blocks.iter().map(of).sum();
        (sum(|row| row.requested), sum(|row| row.bytes))
    }

    fn gauge(&self, gauge: Gauge) -> u64 {
        let of = |row: &&Row| row.kind == Kind::Gauge && row.tag == gauge as u32;
        self.rows.iter().find(of).expect("it is measured").bytes
    }

    fn reserved(&self) -> u64 {
        let of = self.rows.iter().filter(|row| row.kind == Kind::Reserve);
        of.map(|row| row.bytes).sum()
    }

    fn tag(&self, row: &Row) -> &str {
        self.history.definitions.tag(row.tag)
    }

    fn marks(&self) -> Vec<String> {
        let mut marks = Vec::new();
        let walked = self.history.walk(|_, text| {
            marks.extend(text.map(str::to_owned));
            Flow::On
        });
        walked.expect("the file is there");
        marks
    }

    /// Asserts that the sums of the blocks, of the gauges and of the pool are equal.
    fn agrees(&self, stats: &PoolStats) {
        let expected = (stats.requested.current, stats.allocated.current);
        assert_eq!(self.sums(), expected);
        assert_eq!(
            (self.gauge(Gauge::Requested), self.gauge(Gauge::Allocated)),
            expected
        );
        assert_eq!(self.gauge(Gauge::Reserved), stats.reserved.current);
        assert_eq!(self.reserved(), stats.reserved.current);
    }
}

#[test]
fn a_pool_with_an_account_is_written_block_by_block() {
    let file = Scratch::new("tracked");
    let account = Ledger::builder(Tracking::All).stacks(true).times(true);
    let pool = pool("tracked", Some(account));
    let mut held = Vec::new();
    for round in 1..=300_usize {
        let _scope = tag(if round % 3 == 0 { "third" } else { "rest" });
        held.push(pool.alloc_zeroed::<u8>(100 * round).expect("room"));
    }
    held.retain(|block| block.len() % 200 == 0);
    let report = snapshot(&file.0).expect("it is written");
    assert_eq!(
        report.file_bytes,
        std::fs::metadata(&file.0).expect("a file").len()
    );
    let read = Read::of(&file, "tracked");
    read.agrees(&pool.stats());
    assert_eq!(read.blocks.len(), held.len());
    for block in &held {
        let row = read
            .blocks
            .iter()
            .find(|row| row.address == block.as_ptr().addr() as u64);
        let row = row.expect("it is listed");
        assert_eq!(row.requested, block.len() as u64);
        let third = block.len() / 100 % 3 == 0;
        assert_eq!(read.tag(row), if third { "third" } else { "rest" });
        assert_eq!(row.thread, millpond_os::thread_number());
        assert!(row.time > 0 && row.time <= read.history.duration);
        let here = a_pool_with_an_account_is_written_block_by_block as fn() as usize as u64;
        let stack: Vec<u64> = read.history.definitions.stack(row.stack).collect();
        assert!(
            stack.iter().any(|at| (here..here + 8192).contains(at)),
            "{here:#x} in {stack:x?}"
        );
    }
    assert!(!read.history.definitions.modules().is_empty());
}

#[test]
fn a_pool_without_an_account_is_written_as_far_as_it_is_known() {
    let file = Scratch::new("untracked");
    let pool = pool("untracked", None);
    let small: Vec<_> = (0..500)
        .map(|at| pool.alloc_zeroed::<u8>(1 + at).expect("room"))
        .collect();
    let large: Vec<_> = (1..20)
        .map(|at| pool.alloc_zeroed::<u8>(at << 18).expect("room"))
        .collect();
    // The thread's cached block belongs to no caller.
    drop(pool.alloc_zeroed::<u8>(300 << 10).expect("room"));
    snapshot(&file.0).expect("it is written");
    let read = Read::of(&file, "untracked");
    read.agrees(&pool.stats());
    assert_eq!(read.blocks.len(), large.len() + 1);
    for block in &large {
        let at = block.as_ptr().addr() as u64;
        let row = read
            .blocks
            .iter()
            .find(|row| row.address == at)
            .expect("its place");
        assert_eq!(row.bytes, block.len() as u64);
    }
    let rest = read.blocks.iter().find(|row| row.address == 0).expect("a sum");
    assert_eq!(
        read.tag(rest),
        format!("{} blocks too small to be listed one by one", small.len())
    );
    let marks = read.marks().join("\n");
    assert!(
        marks.contains("'untracked' keeps no account of its blocks"),
        "{marks}"
    );
}

#[test]
fn blocks_that_were_not_sampled_are_one_sum() {
    let file = Scratch::new("sampled");
    let sampled = Ledger::builder(Tracking::Sampled { one_in: 10 });
    let pool = pool("sampled", Some(sampled));
    let held: Vec<_> = (0..2000)
        .map(|at| pool.alloc_zeroed::<u8>(64 + at).expect("room"))
        .collect();
    snapshot(&file.0).expect("it is written");
    let read = Read::of(&file, "sampled");
    read.agrees(&pool.stats());
    let listed = read.blocks.len() - 1;
    assert!(listed > 50 && listed < 1000, "{listed}");
    let rest = read.blocks.iter().find(|row| row.address == 0).expect("a sum");
    let expected = format!("{} blocks outside the sample", held.len() - listed);
    assert_eq!(read.tag(rest), expected);
}

/// A file of limited size lists the largest blocks, and adds up the others by tag.
#[test]
fn if_there_are_too_many_blocks_the_smaller_ones_are_added_up() {
    let file = Scratch::new("bounded");
    let pool = pool("bounded", Some(Ledger::builder(Tracking::All)));
    // These blocks are larger than those of other tests, so they are listed.
    let large: Vec<_> = (0..40)
        .map(|_| {
            let _scope = tag("large");
            pool.alloc_zeroed::<u8>(96 << 20).expect("addresses")
        })
        .collect();
    let small: Vec<_> = (0..1000)
        .map(|at| {
            let _scope = tag(if at % 2 == 0 { "even" } else { "odd" });
            pool.alloc_zeroed::<u8>(1 + at).expect("room")
        })
        .collect();
    let report = Snapshots::new()
        .most_bytes(40 * 64)
        .write(&file.0)
        .expect("it is written");
    assert_eq!((report.blocks, report.bytes), (40, 40 * (96 << 20)));
    assert!(report.summed_blocks >= small.len() as u64);
    let read = Read::of(&file, "bounded");
    read.agrees(&pool.stats());
    let mut tags: Vec<_> = read.blocks.iter().map(|row| read.tag(row)).collect();
    tags.sort_unstable();
    tags.dedup();
    assert_eq!(
        tags,
        ["even (500 smaller blocks)", "large", "odd (500 smaller blocks)"]
    );
    let marks = read.marks().join("\n");
    assert!(marks.contains("the 40 largest blocks are listed"), "{marks}");
    drop(large);
}

/// Writing a snapshot does not allocate from a pool.
#[test]
fn a_snapshot_allocates_from_no_pool() {
    let file = Scratch::new("asks");
    let pool = pool("asks", Some(Ledger::builder(Tracking::All).stacks(true)));
    let _held = pool.alloc_zeroed::<u8>(1 << 20).expect("room");
    let before = pool.stats();
    snapshot(&file.0).expect("it is written");
    let after = pool.stats();
    assert_eq!(
        (after.allocations, after.frees, after.reserved),
        (before.allocations, before.frees, before.reserved)
    );
}

/// Other threads allocate, free and make pools in the meantime. No thread blocks forever, and every file can be opened.
#[test]
fn snapshots_are_written_while_other_threads_allocate() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let file = Scratch::new("beside");
    let pool = pool("beside", Some(Ledger::builder(Tracking::All).times(true)));
    /// Ends the other threads even if an assertion fails.
    struct Ends<'a>(&'a AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&over);
        for _ in 0..2 {
            scope.spawn(|| {
                let mut held = std::collections::VecDeque::new();
                for round in 1_usize.. {
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    held.push_back(pool.alloc_zeroed::<u8>(round * 37 % 100_000 + 1).expect("room"));
                    if held.len() > 200 {
                        held.pop_front();
                    }
                    if round % 500 == 0 {
                        let passing = Pool::host().expect("addresses");
                        drop(passing.alloc_zeroed::<u8>(100).expect("room"));
                    }
                }
            });
        }
        for _ in 0..20 {
            snapshot(&file.0).expect("it is written");
            let read = Read::of(&file, "beside");
            assert!(
                read.blocks.iter().filter(|row| row.address != 0).count() >= 100 || read.blocks.len() <= 100
            );
        }
    });
}

#[test]
fn a_file_that_cannot_be_created_is_an_error() {
    let nowhere = std::env::temp_dir().join("millpond-no-such-folder/now.mpr");
    let refused = snapshot(&nowhere).expect_err("no folder").to_string();
    assert!(refused.contains("millpond-no-such-folder"), "{refused}");
}
