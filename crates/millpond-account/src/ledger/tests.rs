use super::stack::Frame;
use super::*;
use millpond_os::ranked::take_all_of_a_kind;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

impl Ledger {
    fn check(&self) {
        self.shards.iter().for_each(|shard| lock(&shard.0).check());
    }
}

fn info(address: usize, requested: usize) -> BlockInfo {
    BlockInfo {
        address,
        requested,
        bytes: requested.next_multiple_of(64),
        align: 64,
        ..BlockInfo::default()
    }
}

fn enter(ledger: &Ledger, address: usize, requested: usize) {
    let info = info(address, requested);
    let record = ledger.record(&info, MemoryKind::Host, None);
    ledger.insert(address, record).unwrap();
}

#[test]
fn sums_by_tag_are_exact_with_many_threads() {
    const THREADS: usize = 4;
    let rounds = if cfg!(miri) { 100 } else { 20_000 };
    let ledger = Ledger::new(Tracking::All);
    let tags: Vec<Tag> = (0..7).map(|n| Tag::new(&format!("oracle {n}"))).collect();
    // The expected result: the live blocks of each thread.
    type Live = BTreeMap<usize, (Tag, u64)>;
    let lives: Vec<Live> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (ledger, tags) = (&ledger, &tags);
                scope.spawn(move || {
                    let mut live = Live::new();
                    let mut dice = Sampler::seeded(thread as u64);
                    for round in 0..rounds {
                        let roll = dice.gap(Tracking::Sampled { one_in: 1000 }) as usize;
                        let address = ((roll % 3000) * THREADS + thread) * 64 + 64;
                        if let Some((_, requested)) = live.remove(&address) {
                            let freed = ledger.remove(address, Some((requested as usize, 64)));
                            assert_eq!(freed.unwrap().unwrap().requested as u64, requested);
                        } else {
                            let tag = tags[round % tags.len()];
                            let _scope = tag.enter();
                            enter(ledger, address, roll + 1);
                            live.insert(address, (tag, roll as u64 + 1));
                        }
                        if round % 1000 == 0 {
                            assert!(ledger.by_tag().len() <= tags.len());
                            assert!(ledger.largest(3).len() <= 3);
                        }
                    }
                    live
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    ledger.check();
    let all: Live = lives.into_iter().flatten().collect();
    let mut expected: BTreeMap<Tag, (u64, u64, u64)> = BTreeMap::new();
    for (tag, requested) in all.values() {
        let of = expected.entry(*tag).or_default();
        *of = (of.0 + requested, of.1 + requested.next_multiple_of(64), of.2 + 1);
    }
    let told = ledger.by_tag();
    assert!(told.is_sorted_by(|a, b| a.bytes >= b.bytes));
    let told: BTreeMap<_, _> = told
        .into_iter()
        .map(|t| (t.tag, (t.requested, t.bytes, t.blocks)))
        .collect();
    assert_eq!(told, expected);
    assert_eq!(ledger.blocks(), all.len() as u64);

    let mut sizes: Vec<u64> = all
        .values()
        .map(|(_, bytes)| bytes.next_multiple_of(64))
        .collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let largest: Vec<u64> = ledger.largest(10).iter().map(|leak| leak.bytes as u64).collect();
    assert_eq!(largest, sizes[..largest.len()]);
    let above = ledger.larger_than(1024);
    assert_eq!(above.len(), sizes.iter().filter(|size| **size > 1024).count());
    let leaks = ledger.leaks();
    assert!(leaks.is_sorted_by(|a, b| a.serial < b.serial));
    assert!(
        leaks
            .iter()
            .all(|leak| all[&leak.address] == (leak.tag, leak.requested as u64))
    );

    let mut survey = Survey::new(1);
    ledger.survey(&mut survey);
    let holders = survey.finish().holders;
    let first = holders.named()[0];
    assert_eq!(
        (first.name.as_str(), first.bytes),
        (ledger.by_tag()[0].tag.name(), ledger.by_tag()[0].bytes)
    );
}

#[test]
fn a_sample_estimates_the_whole() {
    let one_in = 50;
    let ledger = Ledger::new(Tracking::Sampled { one_in });
    let (all, mut bytes) = (200_000usize, 0u64);
    let mut dice = Sampler::seeded(1);
    let mut gap = ledger.next_gap(&mut dice);
    for n in 0..all {
        let requested = 64 * (1 + n % 7);
        bytes += requested as u64;
        if gap == 0 {
            enter(&ledger, 64 * (n + 1), requested);
            gap = ledger.next_gap(&mut dice);
        } else {
            gap -= 1;
        }
    }
    // The distribution is binomial: 4000 are expected, with a standard deviation of 63. The test allows four
    // deviations.
    let picked = ledger.blocks() as f64;
    assert!((picked - 4000.0).abs() < 4.0 * 62.6, "{picked}");
    let total = ledger.by_tag()[0];
    assert_eq!(total.blocks, ledger.blocks() * u64::from(one_in));
    let off = (total.bytes as f64 - bytes as f64) / bytes as f64;
    assert!(off.abs() < 4.0 * 0.018, "{off}");
    // A loop with a period is sampled equally at all its places, even if a regular sample would be in step with it.
    let mut places = [0u32; 50];
    for leak in ledger.leaks() {
        places[(leak.address / 64 - 1) % 50] += 1;
    }
    // 80 are expected in each, with a standard deviation of 9.
    assert!(
        places.iter().all(|count| (40..=125).contains(count)),
        "{places:?}"
    );
    // Blocks that were not sampled are freed unobserved, and the sampled ones leave nothing behind.
    for n in 0..all {
        ledger.remove(64 * (n + 1), Some((64 * (1 + n % 7), 64))).unwrap();
    }
    assert_eq!(ledger.blocks(), 0);
    assert!(ledger.by_tag().is_empty());
    ledger.check();
    let free = (0..1000)
        .filter(|n| !ledger.filter.may_hold(64 * (n + 1)))
        .count();
    assert_eq!(free, 1000);
}

#[test]
fn single_decisions_have_the_expected_probability() {
    let rolls = 100_000u32;
    let picked = (0..rolls).filter(|_| sampling::dice(20)).count() as f64;
    // 5000 are expected, with a standard deviation of 69. The seed is not fixed, so the test allows seven deviations.
    assert!((picked - 5000.0).abs() < 7.0 * 69.0, "{picked}");
    let mut dice = Sampler::seeded(2);
    for one_in in [0, 1] {
        assert_eq!(dice.gap(Tracking::Sampled { one_in }), 0);
        assert!(sampling::dice(one_in));
    }
    assert_eq!(dice.gap(Tracking::All), 0);
    assert!(dice.gap(Tracking::Sampled { one_in: u32::MAX }) > 1000);
}

#[test]
fn the_bytes_between_samples_have_an_exponential_distribution() {
    let mut dice = Sampler::seeded(3);
    let gaps: Vec<u64> = (0..100_000).map(|_| dice.bytes_to_next(1000)).collect();
    assert!(gaps.iter().all(|gap| *gap > 0));
    // The mean and the standard deviation are 1000, so the mean of the gaps has a deviation of 3.2.
    let mean = gaps.iter().sum::<u64>() as f64 / 100_000.0;
    assert!((mean - 1000.0).abs() < 7.0 * 3.2, "{mean}");
    // A part of exp(-2) of the gaps is longer than twice the mean.
    let long = gaps.iter().filter(|gap| **gap > 2000).count() as f64 / 100_000.0;
    assert!((long - (-2.0f64).exp()).abs() < 0.01, "{long}");
    assert_eq!(dice.bytes_to_next(0), 1);
    assert!(dice.bytes_to_next(u64::MAX) > 1 << 40);
}

#[test]
fn a_double_free_reports_the_first_free() {
    let ledger = Ledger::builder(Tracking::All).complete(true).times(true).build();
    {
        let _scope = crate::tag("allocator");
        enter(&ledger, 0x1000, 4096);
    }
    let freer = std::thread::scope(|scope| {
        let freed = scope.spawn(|| {
            let _scope = crate::tag("freer");
            ledger.remove(0x1000, Some((4096, 64))).unwrap().unwrap();
            millpond_os::thread_number()
        });
        freed.join().unwrap()
    });
    let error = ledger.remove(0x1000, Some((4096, 64))).unwrap_err();
    let WrongFree::AlreadyFree { block, freed, .. } = *error else {
        panic!("{error}")
    };
    assert_eq!((block.tag, freed.tag), (Tag::new("allocator"), Tag::new("freer")));
    assert!(freed.time.is_some());
    let here = millpond_os::thread_number();
    assert_eq!(
        error.to_string(),
        format!(
            "double free of 0x1000: 4096 B allocated by thread {here} under tag allocator, \
             freed first by thread {freer} under tag freer"
        )
    );
    // After another allocation it is a different block.
    enter(&ledger, 0x1000, 64);
    ledger.remove(0x1000, Some((64, 64))).unwrap().unwrap();
    let error = ledger.remove(0x1000, None).unwrap_err();
    assert!(
        matches!(*error, WrongFree::AlreadyFree { block, .. } if block.requested == 64),
        "{error}"
    );
}

#[test]
fn freed_blocks_are_remembered_in_order() {
    let ledger = Ledger::builder(Tracking::All)
        .complete(true)
        .remember_freed(64 * 4)
        .build();
    // The addresses belong to one shard.
    let home = table::hash(64);
    let same = |n: &usize| std::ptr::eq(ledger.shard(table::hash(*n)), ledger.shard(home));
    let addresses: Vec<usize> = (1..).map(|n| n * 64).filter(same).take(6).collect();
    for address in &addresses {
        enter(&ledger, *address, 64);
        ledger.remove(*address, None).unwrap().unwrap();
    }
    let wrong: Vec<bool> = addresses
        .iter()
        .map(|address| match *ledger.remove(*address, None).unwrap_err() {
            WrongFree::AlreadyFree { .. } => true,
            WrongFree::Foreign { .. } => false,
            ref other => panic!("{other}"),
        })
        .collect();
    assert_eq!(wrong, [false, false, true, true, true, true], "the last four");
}

#[test]
fn the_latest_free_of_an_address_is_found_at_any_position_of_the_ring() {
    for (before, size) in (0..8).flat_map(|before| (2..5).map(move |size| (before, size))) {
        let past = shard::Shard::new(size);
        let shard = Ranked::new(Rank::Shard, past);
        let free = |address: usize, requested: usize| {
            let record = Ledger::new(Tracking::All).record(&info(address, requested), MemoryKind::Host, None);
            let hash = table::hash(address);
            assert!(Shard::insert(&shard, hash, address, record));
            let by = FreedBlock {
                tag: Tag::NONE,
                thread: 0,
                time: None,
                stack: None,
            };
            assert!(matches!(
                lock(&shard).remove(hash, address, None, Some(by)),
                Removal::Done(_)
            ));
        };
        (0..before).for_each(|n| free(6400 + n, 1));
        (1..=2).for_each(|requested| free(64, requested));
        let again = lock(&shard).remove(table::hash(64), 64, None, None);
        let Removal::Past(past) = again else {
            panic!("{again:?}")
        };
        assert_eq!(past.record.requested, 2, "after {before} in a ring of {size}");
    }
}

#[test]
fn overflowing_sums_are_correct_again_after_the_frees() {
    let ledger = Ledger::builder(Tracking::All).remember_freed(usize::MAX).build();
    for address in [64, 128] {
        let info = BlockInfo {
            address,
            requested: usize::MAX,
            bytes: usize::MAX,
            align: usize::MAX,
            ..BlockInfo::default()
        };
        ledger
            .insert(address, ledger.record(&info, MemoryKind::Host, None))
            .unwrap();
    }
    let report = LeakReport::new(&ledger.leaks(), u64::MAX, 0);
    assert_eq!((report.bytes, report.blocks), (u64::MAX, u64::MAX));
    for address in [64, 128] {
        ledger
            .remove(address, Some((usize::MAX, usize::MAX)))
            .unwrap()
            .unwrap();
    }
    assert!(ledger.by_tag().is_empty());
}

#[test]
fn a_free_with_a_wrong_size_or_alignment_keeps_the_block() {
    let ledger = Ledger::builder(Tracking::All).complete(true).build();
    enter(&ledger, 0x1000, 100);
    let error = ledger.remove(0x1000, Some((50, 64))).unwrap_err();
    assert!(
        matches!(
            *error,
            WrongFree::WrongSize {
                allocated: 100,
                given: 50,
                ..
            }
        ),
        "{error}"
    );
    let error = ledger.remove(0x1000, Some((100, 8))).unwrap_err();
    assert!(
        matches!(
            *error,
            WrongFree::WrongAlign {
                allocated: 64,
                given: 8,
                ..
            }
        ),
        "{error}"
    );
    let text = error.to_string();
    assert!(
        text.starts_with(
            "wrong alignment in the free of 0x1000: the caller passed 8, but 64 was requested: 100 B"
        ),
        "{text}"
    );
    let error = ledger.remove(0x1008, Some((100, 64))).unwrap_err();
    assert!(
        matches!(*error, WrongFree::Foreign { address: 0x1008 }),
        "{error}"
    );
    assert_eq!(ledger.blocks(), 1);
    ledger.remove(0x1000, Some((100, 64))).unwrap().unwrap();
}

#[test]
fn an_incomplete_account_accepts_frees_of_unknown_blocks() {
    let ledger = Ledger::new(Tracking::All);
    assert_eq!(ledger.remove(0x1000, Some((1, 1))).unwrap(), None);
    // A sample is never complete.
    let ledger = Ledger::builder(Tracking::Sampled { one_in: 2 })
        .complete(true)
        .build();
    assert_eq!(ledger.remove(0x1000, Some((1, 1))).unwrap(), None);
    // A block whose free was not observed is replaced.
    let ledger = Ledger::new(Tracking::All);
    enter(&ledger, 0x1000, 64);
    enter(&ledger, 0x1000, 128);
    assert_eq!((ledger.blocks(), ledger.by_tag()[0].bytes), (1, 128));
    ledger.check();
}

#[test]
fn a_mark_selects_later_blocks_of_all_threads_or_of_one() {
    let ledger = Ledger::new(Tracking::All);
    enter(&ledger, 64, 64);
    let mark = ledger.mark();
    enter(&ledger, 128, 64);
    std::thread::scope(|scope| {
        scope.spawn(|| enter(&ledger, 192, 64)).join().unwrap();
    });
    let since =
        |mark: &Mark| -> Vec<usize> { ledger.leaks_since(mark).iter().map(|leak| leak.address).collect() };
    assert_eq!(since(&mark), [128, 192]);
    assert_eq!(since(&mark.on_this_thread()), [128]);
    assert_eq!(ledger.leak_report_since(&mark.on_this_thread()).blocks, 1);
}

#[test]
fn no_block_is_recorded_while_all_locks_are_held() {
    let ledger = Ledger::new(Tracking::All);
    take_all_of_a_kind(true);
    let rest = ledger.rest();
    take_all_of_a_kind(false);
    std::thread::scope(|scope| {
        let entering = scope.spawn(|| enter(&ledger, 64, 64));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!entering.is_finished());
        drop(rest);
    });
    assert_eq!(ledger.blocks(), 1);
}

#[test]
fn a_leak_report_has_the_expected_text() {
    let ledger = Ledger::builder(Tracking::All).times(true).build();
    let stack = ledger.stacks.made(&[1, 2, 3]);
    assert_eq!(stack, ledger.stacks.made(&[1, 2, 3]), "kept once");
    assert_ne!(stack, ledger.stacks.made(&[1, 2]));
    let made = |address: usize, requested: usize, tag: &str, thread, stack| {
        let _scope = crate::tag(tag);
        let record = ledger.record(&info(address, requested), MemoryKind::Host, None);
        ledger
            .insert(
                address,
                Record {
                    thread,
                    stack,
                    ..record
                },
            )
            .unwrap();
    };
    made(64, 768 << 10, "weights", 2, stack);
    made(128, 256 << 10, "weights", 1, stack);
    made(192, 1 << 10, "weights", 1, None);
    made(256, 2 << 10, "", 1, None);
    let mut leaks = ledger.leaks();
    leaks[0].age = Some(Duration::from_millis(3210));
    leaks[1].age = Some(Duration::from_millis(10));
    leaks[2].age = Some(Duration::from_micros(5));
    let frames = |stack: &Stack| {
        let name = |address: usize| match address {
            1 => ("millpond::pool::Pool::alloc", "pool.rs"),
            2 => ("app::load", "src/model.rs"),
            _ => ("app::main", "src/main.rs"),
        };
        let frame = |address: usize| Frame {
            address,
            function: Some(name(address).0.to_owned()),
            file: Some(name(address).1.to_owned()),
            line: Some(10 * address as u32),
        };
        stack.user_frames_by(&|address| vec![frame(address)])
    };
    struct Shown<'a>(LeakReport, &'a dyn Fn(&Stack) -> Vec<Frame>);
    impl fmt::Display for Shown<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.write(f, self.1)
        }
    }
    let exact = [
        "1.00 MiB live in 4 blocks",
        " 1.00 MiB in 2 blocks: weights, largest 768 KiB, oldest 3.2s, threads 1 to 2",
        "            at app::load (src/model.rs:20)",
        "            at app::main (src/main.rs:30)",
        " 2.00 KiB in 1 block: untagged, thread 1",
        " 1.00 KiB in 1 block: weights, age 5.0µs, thread 1",
    ];
    let shown = Shown(LeakReport::new(&leaks, 1, 0), &frames).to_string();
    assert_eq!(shown, exact.join("\n"));
}

/// With line tables only, the names of inlined functions have no path.
#[test]
fn frames_without_a_path_are_classified_by_their_files() {
    let names = [
        (
            "trace",
            "/home/me/.cargo/registry/src/index/backtrace-0.3.77/src/backtrace/mod.rs",
        ),
        (
            "walk<millpond::ledger::stacks::walk>",
            "/home/me/crates/millpond/src/os/stack.rs",
        ),
        (
            "place",
            "/home/me/.cargo/registry/src/index/millpond-engine-0.1.0/src/engine.rs",
        ),
        ("alloc", "/home/me/app/src/main.rs"),
        ("<alloc::raw_vec::RawVecInner>::try_allocate_in", ""),
        ("with_capacity<u8>", "/rustc/0123/library/alloc/src/vec/mod.rs"),
        ("load", "/home/me/app/src/model.rs"),
        ("map<u8>", "/rustc/0123/library/core/src/option.rs"),
        ("millpond_of_mine", "/home/me/millpond-tools/src/main.rs"),
        ("{closure#0}", "/rustc/0123/library/core/src/ops/function.rs"),
        ("std::sys::backtrace::__rust_begin_short_backtrace", ""),
        ("main", "/home/me/app/src/main.rs"),
    ];
    let stack = Stack::new(&(0..names.len()).collect::<Vec<_>>());
    let frames = stack.user_frames_by(&|address| {
        vec![Frame {
            address,
            function: Some(names[address].0.to_owned()),
            file: Some(names[address].1.to_owned()),
            line: Some(1),
        }]
    });
    let shown: Vec<_> = frames
        .iter()
        .filter_map(|frame| frame.function.as_deref())
        .collect();
    assert_eq!(shown, ["load", "map<u8>", "millpond_of_mine"]);
}

#[test]
fn a_long_report_lists_the_largest_groups_and_sums_the_rest() {
    let ledger = Ledger::new(Tracking::All);
    for n in 0..12 {
        let _scope = crate::tag(&format!("place {n:02}"));
        enter(&ledger, 64 * (n + 1), 64 * (12 - n));
    }
    let report = LeakReport::new(&ledger.leaks(), 100, 1);
    let text = report.to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 14, "{text}");
    assert_eq!(lines[0], "about 488 KiB live in 1200 blocks");
    let here = millpond_os::thread_number();
    assert_eq!(
        lines[1],
        format!(" 75.0 KiB in 100 blocks: place 00, largest 768 B, thread {here}")
    );
    assert_eq!(
        lines[11..],
        [
            " 18.8 KiB in 200 blocks from 2 more places",
            "estimated: one allocation in 100 was sampled, and each block counts that many times",
            "incomplete: 1 block could not be recorded for lack of memory",
        ]
    );
    assert_eq!(
        Ledger::new(Tracking::All).leak_report().to_string(),
        "no live blocks"
    );
}

#[test]
fn a_stack_found_by_several_threads_is_stored_once() {
    let ledger = Arc::new(Ledger::new(Tracking::All));
    let stacks: Vec<[usize; 3]> = (1..2000).map(|n| [n, n * 7, 3]).collect();
    let ids: Vec<Vec<_>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (ledger, stacks) = (&ledger, &stacks);
                scope.spawn(move || {
                    stacks
                        .iter()
                        .map(|stack| ledger.stacks.made(stack).unwrap())
                        .collect()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(ids.iter().all(|of| of == &ids[0]));
    for (id, stack) in ids[0].iter().zip(&stacks) {
        assert_eq!(ledger.stacks.get(*id).unwrap().addresses(), stack);
    }
}
