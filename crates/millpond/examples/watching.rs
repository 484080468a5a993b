//! Measures the cost of tags, events and the ledger of live blocks, compared with an empty call. Prints medians of nine
//! rounds and the spread. Run it with `--release`: without optimisation it measures only one round.
//!
//! ```text
//! cargo run --release -p millpond --example watching [--features stacks,tracing]
//! ```

use millpond::{
    Device, Event, Ledger, MemoryKind, Tag, Tracking,
    event::{BlockInfo, PoolLabel, Subscriber, Time, Watchers},
    ledger::Sampler,
    post_mortem::Survey,
};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const ROUNDS: usize = if cfg!(debug_assertions) { 1 } else { 9 };

/// The minimum work of a real subscriber: it adds the size to the tag's sum.
#[derive(Default)]
struct Sums {
    bytes: [AtomicU64; 16],
    last: AtomicU64,
    timed: bool,
}

impl Subscriber for Sums {
    fn event(&self, event: &Event<'_>) {
        let sum = &self.bytes[event.tag.number() as usize % 16];
        sum.store(
            sum.load(Ordering::Relaxed) + event.bytes as u64,
            Ordering::Relaxed,
        );
        if let Some(time) = event.time {
            self.last.store(time.nanos(), Ordering::Relaxed);
        }
    }
    fn wants_time(&self) -> bool {
        self.timed
    }
}

#[inline(never)]
fn nothing(info: &BlockInfo) {
    black_box(info);
}

struct Table {
    empty: f64,
}

impl Table {
    /// Returns the median, the minimum and the maximum of the time of a call in nanoseconds.
    fn time(calls: usize, work: &mut dyn FnMut(usize)) -> (f64, f64, f64) {
        (0..calls / 10).for_each(&mut *work);
        let mut rounds: Vec<f64> = (0..ROUNDS)
            .map(|_| {
                let start = Instant::now();
                (0..calls).for_each(&mut *work);
                start.elapsed().as_nanos() as f64 / calls as f64
            })
            .collect();
        rounds.sort_by(f64::total_cmp);
        (rounds[ROUNDS / 2], rounds[0], rounds[ROUNDS - 1])
    }

    fn row(&self, name: &str, calls: usize, work: &mut dyn FnMut(usize)) {
        let (median, least, most) = Self::time(calls, work);
        let ratio = median / self.empty;
        println!("{name:<44} {median:>9.1} {least:>9.1} {most:>9.1} {ratio:>8.1}");
    }
}

fn info(at: usize) -> BlockInfo {
    BlockInfo {
        address: 4096 + at % 4096 * 64,
        requested: 100,
        bytes: 128,
        align: 64,
        stream: 0,
    }
}

fn main() {
    let (empty, least, most) = Table::time(1 << 20, &mut |at| nothing(&info(at)));
    let table = Table { empty };
    println!(
        "{:<44} {:>9} {:>9} {:>9} {:>8}",
        "ns", "median", "least", "most", "ratio"
    );
    println!(
        "{:<44} {empty:>9.1} {least:>9.1} {most:>9.1} {:>8.1}",
        "an empty call", 1.0
    );

    table.row("Tag::current()", 1 << 20, &mut |_| {
        black_box(Tag::current());
    });
    table.row("tag!(\"weights\")", 1 << 20, &mut |_| {
        drop(millpond::tag!("weights"));
    });
    table.row("tag(\"weights\")", 1 << 20, &mut |_| {
        drop(millpond::tag(black_box("weights")));
    });
    table.row("Time::now()", 1 << 20, &mut |_| {
        black_box(Time::now());
    });
    table.row("std Instant::now()", 1 << 20, &mut |_| {
        black_box(Instant::now());
    });

    let bare = Watchers::new(PoolLabel::new(1, "host", MemoryKind::Host, Device::Host));
    table.row("no subscriber", 1 << 20, &mut |at| {
        black_box(&bare).allocated(&info(at));
    });
    let sums = |timed| {
        Arc::new(Sums {
            timed,
            ..Sums::default()
        })
    };
    let (one, _) = bare.with_subscriber(sums(false));
    table.row("a subscriber: size and tag", 1 << 20, &mut |at| {
        one.allocated(&info(at));
    });
    let (two, _) = one.with_subscriber(sums(false));
    table.row("two of them", 1 << 20, &mut |at| two.allocated(&info(at)));
    let (timed, _) = bare.with_subscriber(sums(true));
    table.row("a subscriber: size, tag and time", 1 << 20, &mut |at| {
        timed.allocated(&info(at));
    });
    #[cfg(feature = "tracing")]
    {
        let (traced, _) = bare.with_subscriber(Arc::new(millpond::event::TracingSubscriber::new()));
        table.row("to tracing without a subscriber", 1 << 20, &mut |at| {
            traced.allocated(&info(at));
        });
    }

    let pair = |name: &str, calls: usize, ledger: Ledger| {
        let watchers = bare.with_ledger(Some(Arc::new(ledger)));
        table.row(name, calls, &mut |at| {
            let info = info(at);
            watchers.allocated(&info);
            watchers.freed(&info).unwrap_or_else(|error| panic!("{error}"));
        });
    };
    pair(
        "account of all: a block and its free",
        1 << 18,
        Ledger::new(Tracking::All),
    );
    pair(
        "with times",
        1 << 18,
        Ledger::builder(Tracking::All).times(true).build(),
    );
    if cfg!(feature = "stacks") {
        pair(
            "with stacks",
            1 << 13,
            Ledger::builder(Tracking::All).stacks(true).build(),
        );
    }
    let one_in = Tracking::Sampled { one_in: 1000 };
    pair(
        "one in 1000, by dice: a block and its free",
        1 << 20,
        Ledger::new(one_in),
    );
    let sampled = bare.with_ledger(Some(Arc::new(Ledger::new(one_in))));
    table.row("one in 1000: a free", 1 << 20, &mut |at| {
        black_box(sampled.freed(&info(at))).unwrap_or_else(|error| panic!("{error}"));
    });
    let mut dice = Sampler::new();
    table.row("a gap drawn", 1 << 18, &mut |_| {
        black_box(sampled.ledger().map(|ledger| ledger.next_gap(&mut dice)));
    });

    let large = Ledger::new(Tracking::All);
    for at in 0..1 << 20 {
        let info = info(at);
        large.insert(at * 64, large.record(&info, MemoryKind::Host, None));
    }
    table.row("survey of a million blocks", 1 << 8, &mut |_| {
        let mut survey = Survey::new(1);
        large.survey(&mut survey);
        black_box(&survey);
    });
    table.row("the 10 largest of a million", 3, &mut |_| {
        drop(black_box(large.largest(10)));
    });
}
