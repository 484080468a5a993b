//! Events arrive unchanged between threads, and events that do not fit are counted.

use super::*;
use millpond_os::time::Time;
use std::sync::atomic::AtomicU32;

fn told(address: u64) -> RingEvent {
    RingEvent {
        what: What::Alloc,
        time: 0,
        address,
        requested: 3,
        bytes: 4,
        pool: 5,
        stream: 7,
        tag: 9,
    }
}

fn ends(words: usize) -> (Putter, Taker) {
    let ring = Arc::new(Ring::new(words, 1));
    (Putter::new(&ring), Taker::new(ring))
}

fn put(putter: &mut Putter, told: &RingEvent) {
    if !putter.put_short(told) {
        putter.put(told, &[], || ());
    }
}

/// Takes the next event and clears its time.
fn take(taker: &mut Taker, stack: &mut Vec<u64>) -> Option<RingEvent> {
    taker.look();
    taker.take(stack).map(|told| RingEvent { time: 0, ..told })
}

#[test]
fn events_are_read_as_they_were_written() {
    let (mut putter, mut taker) = ends(0);
    let mut stack = Vec::new();
    // Covers each way in which an event can differ from its predecessor.
    let sizes = [0, 3, u64::from(u32::MAX), 1 << 32, u64::MAX];
    for number in 0..if cfg!(miri) { 130 } else { 1000_u64 } {
        let of = |sizes: &[u64]| sizes[number as usize / 7 % sizes.len()];
        let put = RingEvent {
            what: if number % 3 == 0 { What::Step } else { What::Alloc },
            requested: of(&sizes),
            bytes: of(&sizes[1..]),
            pool: (number / 2 % 2) as u32 * u32::MAX,
            stream: (number / 4 % 3) as u32 * (u32::MAX / 2),
            tag: (number / 5 % 2) as u32 * u32::MAX,
            ..told(number << 40)
        };
        let frames: Vec<u64> = (0..number % 65).collect();
        let before = Time::now().nanos();
        putter.put(&put, &frames, || ());
        taker.look();
        let time = taker.time().expect("one");
        assert!((before..=Time::now().nanos()).contains(&time));
        assert_eq!(take(&mut taker, &mut stack), Some(put));
        assert_eq!(stack, frames);
        assert_eq!(take(&mut taker, &mut stack), None);
    }
    assert_eq!(taker.ring.lost(), Lost::default());
    assert!(!taker.is_over());
    drop(putter);
    assert!(taker.is_over());
}

#[test]
fn a_free_has_no_tag_of_its_own() {
    let (mut putter, mut taker) = ends(0);
    let mut stack = Vec::new();
    let free = |pool| RingEvent {
        what: What::Free,
        pool,
        tag: 1,
        ..told(0)
    };
    // The first event contains all fields.
    put(&mut putter, &told(0));
    assert_eq!(take(&mut taker, &mut stack), Some(told(0)));
    let begin = putter.place.at();
    let all = [told(1), free(5), told(2), free(6), told(3)];
    for told in &all {
        put(&mut putter, told);
    }
    // The pool changes twice.
    assert_eq!(putter.place.at() - begin, SHORT * all.len() + 2);
    for told in all {
        assert_eq!(take(&mut taker, &mut stack), Some(RingEvent { tag: 9, ..told }));
    }
}

#[test]
fn events_long_after_their_predecessor_store_the_full_time() {
    let (mut putter, mut taker) = ends(0);
    put(&mut putter, &told(0));
    // As if five seconds had passed, and as if the clock had gone back.
    for shift in [5_000_000_000, 5_000_000_000_u64.wrapping_neg()] {
        putter.before.time = Ticks::now().0.wrapping_sub(shift);
        let before = Time::now().nanos();
        assert!(!putter.put_short(&told(1)));
        put(&mut putter, &told(1));
        assert!(putter.put_short(&told(2)));
        let after = Time::now().nanos();
        let mut times = Vec::new();
        let mut stack = Vec::new();
        taker.look();
        while let Some(told) = taker.take(&mut stack) {
            times.push(told.time);
        }
        assert!(
            times
                .iter()
                .rev()
                .take(2)
                .all(|time| (before..=after).contains(time))
        );
    }
}

#[test]
fn events_that_do_not_fit_are_counted() {
    let (mut putter, mut taker) = ends(0);
    let mut stack = Vec::new();
    let hurries = AtomicU32::new(0);
    let (mut told_of, mut seen) = (0, 0);
    for _ in 0..3 {
        // These are more than the two segments hold.
        for number in told_of..told_of + 400 {
            let told = told(number);
            if !putter.put_short(&told) {
                putter.put(&told, &[], || {
                    hurries.fetch_add(1, Ordering::Relaxed);
                });
            }
        }
        told_of += 400;
        let lost = taker.ring.lost();
        let (freed, allocated) = (0, 3 * lost.events);
        assert_eq!(
            lost,
            Lost {
                allocated,
                freed,
                ..lost
            }
        );
        let before = seen;
        taker.look();
        let first = taker.head.map(|(told, _)| told.address);
        while let Some(told) = taker.take(&mut stack) {
            assert_eq!(Some(told.address), first.map(|first| first + seen - before));
            seen += 1;
        }
        assert_eq!(seen + lost.events, told_of);
        // At least one segment is free. The other is still the writer's, which may have left a part of it.
        assert!((170..=341).contains(&(seen - before)), "{seen} after {before}");
    }
    assert!(hurries.into_inner() >= 3);
    put(
        &mut putter,
        &RingEvent {
            what: What::Free,
            ..told(0)
        },
    );
    taker.look();
    assert!(taker.head.is_some());
}

#[test]
fn no_more_segments_are_made_than_are_needed() {
    let (mut putter, mut taker) = ends(8 * LEAST);
    let mut stack = Vec::new();
    let many = if cfg!(miri) { 2 } else { 100 };
    let in_one = taker.ring.len / SHORT;
    for number in 0..many * in_one {
        put(&mut putter, &told(number as u64));
        if number % (in_one / 3) == 0 {
            taker.look();
            while taker.take(&mut stack).is_some() {}
        }
    }
    let made = |ring: &Ring| {
        ring.segments
            .iter()
            .filter(|segment| segment.get().is_some())
            .count()
    };
    assert_eq!(made(&taker.ring), 2);
}

#[test]
fn a_large_ring_has_its_full_capacity_and_allocates_it_on_demand() {
    let words = if cfg!(miri) { 1 << 20 } else { 1 << 23 };
    let (mut putter, mut taker) = ends(words);
    let made = |ring: &Ring| -> usize {
        let segments = ring.segments.iter().filter_map(OnceLock::get);
        segments.map(|segment| segment.0.len()).sum()
    };
    put(&mut putter, &told(0));
    assert_eq!(made(&taker.ring), SMALL);
    // A segment may end with a few words that hold no event.
    let fit = ((words - SEGMENTS * LONG) / SHORT) as u64;
    if !cfg!(miri) {
        (1..fit).for_each(|number| put(&mut putter, &told(number)));
        assert_eq!(made(&taker.ring), words);
        assert_eq!(taker.ring.lost(), Lost::default());
        taker.look();
        let mut stack = Vec::new();
        for number in 0..fit {
            assert_eq!(taker.take(&mut stack).map(|told| told.address), Some(number));
        }
    }
}

#[test]
fn a_reader_thread_receives_all_events_in_order() {
    let (mut putter, mut taker) = ends(1 << 12);
    let many: u64 = if cfg!(miri) { 300 } else { 200_000 };
    let thread = std::thread::spawn(move || {
        for number in 0..many {
            let pool = (number / 3) as u32;
            let told = RingEvent { pool, ..told(number) };
            // Every second event has a stack.
            if number % 2 == 0 || !putter.put_short(&told) {
                putter.put(&told, &[number, !number], || ());
            }
        }
    });
    let (mut last, mut seen, mut stack) = (None, 0, Vec::new());
    while !taker.is_over() {
        taker.look();
        while let Some(told) = taker.take(&mut stack) {
            assert!(last < Some(told.address), "in order");
            assert!(stack.is_empty() || stack == [told.address, !told.address]);
            assert_eq!(told.pool, (told.address / 3) as u32);
            last = Some(told.address);
            seen += 1;
        }
        std::thread::yield_now();
    }
    thread.join().expect("it does not panic");
    assert_eq!(seen + taker.ring.lost().events, many);
}
