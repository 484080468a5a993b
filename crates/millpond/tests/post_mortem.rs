//! Post-mortems: their figures and the minimum to free. A post-mortem does not use the heap.

use millpond::engine::{Engine, Request, policies};
use millpond::engine::{Piece, PieceState, Settings, Simulated, Stream};
use millpond::{
    Budget, PostMortem,
    post_mortem::{Method, Survey},
};
use proptest::prelude::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// An allocator that counts this thread's calls to the heap.
struct Counting;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

fn calls() -> u64 {
    CALLS.with(Cell::get)
}

// SAFETY: every call is passed on unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that is ending is not counted.
        let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`, and the block came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static HEAP: Counting = Counting;

fn pieces(segment: u32, sizes: &[(u64, bool)]) -> Vec<Piece> {
    let mut address = u64::from(segment) << 40;
    sizes
        .iter()
        .map(|(bytes, live)| {
            let piece = Piece {
                segment,
                address,
                bytes: *bytes,
                state: if *live { PieceState::Live } else { PieceState::Free },
            };
            address += bytes;
            piece
        })
        .collect()
}

fn hole(need: u64, pieces: &[Piece]) -> PostMortem {
    let mut survey = Survey::new(need);
    pieces.iter().for_each(|piece| survey.piece(*piece));
    survey.finish()
}

/// Returns the post-mortem of a budget that is exceeded by `need` bytes.
fn over(need: u64, sizes: &[u64]) -> PostMortem {
    let budget = Budget::builder("b").limit(1 << 20).build().expect("a root");
    let _held = budget.charge(1 << 20).expect("fits");
    let mut survey = Survey::new(need);
    budget.try_charge(need).expect_err("full").survey(&mut survey);
    let sizes: Vec<_> = sizes.iter().map(|size| (*size, true)).collect();
    pieces(0, &sizes).iter().for_each(|piece| survey.piece(*piece));
    survey.finish()
}

#[test]
fn the_cheapest_place_for_a_hole_is_found() {
    let (live, free) = (true, false);
    let mut layout = pieces(
        0,
        &[
            (40, free),
            (30, live),
            (20, free),
            (5, live),
            (45, free),
            (60, live),
        ],
    );
    let least = hole(70, &layout).least.expect("it is known");
    layout.extend(pieces(1, &[(90, free), (20, live)]));
    // The hole of 90 is large enough, so nothing has to be freed.
    assert_eq!(least_of(&hole(90, &layout)), None);
    assert_eq!((least.blocks, least.bytes), (1, 5));
    assert_eq!(least_of(&hole(100, &layout)), Some((1, 20)));
    assert_eq!(least_of(&hole(200, &layout)), Some((3, 95)));
    // No segment is large enough.
    assert_eq!(least_of(&hole(201, &layout)), None);
}

fn least_of(why: &PostMortem) -> Option<(u64, u64)> {
    why.least.map(|least| (least.blocks, least.bytes))
}

#[test]
fn addresses_without_memory_divide_places() {
    let mut layout = pieces(0, &[(10, false), (50, false), (10, true), (30, false)]);
    layout[1].state = PieceState::Unmapped;
    assert_eq!(least_of(&hole(40, &layout)), Some((1, 10)));
    assert_eq!(least_of(&hole(41, &layout)), None);
}

#[test]
fn the_fewest_blocks_for_a_budget_are_found() {
    let told = |need, sizes: &[u64]| over(need, sizes).least.map(|l| (l.blocks, l.bytes, l.method));
    assert_eq!(told(30, &[10, 35, 100, 31]), Some((1, 31, Method::OneBlock)));
    assert_eq!(told(60, &[10, 35, 20, 31]), Some((2, 66, Method::LargestFirst)));
    assert_eq!(
        told(50, &[10, 35, 20, 31, 16]),
        Some((2, 51, Method::LargestFirst))
    );
    assert_eq!(told(100, &[1; 90]), Some((0, 0, Method::Need)));
    assert_eq!(told(100, &[]), Some((0, 0, Method::Need)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Compares the minimum with every position and every number of blocks.
    #[test]
    fn the_minimum_to_free_is_the_minimum(
        sizes in prop::collection::vec((1u64..20, any::<bool>()), 1..40),
        need in 1u64..120,
    ) {
        let mut best: Option<u64> = None;
        for first in 0..sizes.len() {
            for last in first..sizes.len() {
                let place = &sizes[first..=last];
                if place.iter().map(|(bytes, _)| bytes).sum::<u64>() >= need {
                    let live = place.iter().filter(|p| p.1).map(|p| p.0).sum();
                    best = Some(best.map_or(live, |least: u64| least.min(live)));
                }
            }
        }
        let found = hole(need, &pieces(0, &sizes)).least;
        prop_assert_eq!(found.map(|least| least.bytes), best.filter(|live| *live > 0));

        let mut descending: Vec<_> = sizes.iter().map(|(bytes, _)| *bytes).collect();
        let least = over(need, &descending).least.expect("it is over");
        descending.sort_by(|a, b| b.cmp(a));
        let mut sum = 0;
        let fewest = descending.iter().take(32).position(|bytes| { sum += bytes; sum >= need });
        match fewest {
            Some(at) => {
                prop_assert_eq!(least.blocks, at as u64 + 1);
                prop_assert!(least.bytes >= need && least.bytes <= sum);
            }
            None => prop_assert_eq!(least.method, Method::Need),
        }
        let alone = descending.iter().copied().filter(|bytes| *bytes >= need).min();
        prop_assert_eq!(alone, Some(least.bytes).filter(|_| least.method == Method::OneBlock));
    }
}

#[test]
fn with_many_small_blocks_an_approximate_minimum_is_found() {
    let sizes: Vec<_> = (0..5_000).map(|n| (1 + n % 7, n % 3 != 0)).collect();
    let layout = pieces(0, &sizes);
    let least = hole(4_000, &layout).least.expect("there is a place");
    assert_eq!(least.method, Method::NeighboursRoughly);
    let mut best = u64::MAX;
    for first in 0..layout.len() {
        let (mut sum, mut live) = (0, 0);
        for (bytes, is_live) in &sizes[first..] {
            sum += bytes;
            live += if *is_live { *bytes } else { 0 };
            if sum >= 4_000 {
                best = best.min(live);
                break;
            }
        }
    }
    assert!(
        least.bytes >= best && least.bytes <= best + best / 20,
        "{} for {best}",
        least.bytes
    );
}

#[test]
fn tags_are_added_up_and_the_largest_named() {
    let mut survey = Survey::new(1);
    for round in 0..3 {
        for tag in 0..50u64 {
            survey.holder(&format!("tag {tag}"), tag * 10 + round, 1);
        }
    }
    let top = survey.finish().holders;
    let named: Vec<_> = top
        .named()
        .iter()
        .map(|held| (held.name.to_string(), held.bytes, held.blocks))
        .collect();
    assert_eq!(named[0], ("tag 49".to_owned(), 49 * 30 + 3, 3));
    assert_eq!((named.len(), top.others(), top.other_blocks()), (5, 45, 135));
    let sum: u64 = named.iter().map(|(_, bytes, _)| bytes).sum::<u64>() + top.other_bytes();
    assert_eq!(sum, (0..50).map(|tag| tag * 30 + 3).sum::<u64>());
}

#[test]
fn more_tags_than_places_lose_no_byte_and_no_large_holder() {
    let mut survey = Survey::new(1);
    let mut sum = 0;
    for round in 0..40u64 {
        survey.holder("large", 1_000, 1);
        sum += 1_000;
        for tag in 0..200 {
            survey.holder(&format!("{tag}"), 1 + (tag + round) % 5, 1);
            sum += 1 + (tag + round) % 5;
        }
    }
    let top = survey.finish().holders;
    assert_eq!(
        (top.named()[0].name.as_str(), top.named()[0].bytes),
        ("large", 40_000)
    );
    assert_eq!(
        top.named().iter().map(|held| held.bytes).sum::<u64>() + top.other_bytes(),
        sum
    );
}

#[test]
fn a_large_holder_of_many_small_blocks_is_found() {
    let mut survey = Survey::new(1);
    for tag in 0..64 {
        survey.holder(&format!("early {tag}"), 100, 1);
    }
    for round in 0..2_000 {
        survey.holder("steady", 10, 1);
        survey.holder(&format!("late {round}"), 2, 1);
    }
    assert_eq!(survey.finish().holders.named()[0].name.as_str(), "steady");
}

#[test]
fn surveys_fit_on_a_stack() {
    assert!(size_of::<Survey>() <= 12 << 10, "{}", size_of::<Survey>());
    assert!(size_of::<PostMortem>() <= 1 << 10, "{}", size_of::<PostMortem>());
}

#[test]
fn the_whole_report_fits_in_a_few_lines() {
    let budget = Budget::builder("process")
        .limit(100 << 20)
        .build()
        .expect("a root");
    let children: Vec<_> = (0..9)
        .map(|n| budget.child(format!("child {n}")).expect("a child"))
        .collect();
    let _held: Vec<_> = children
        .iter()
        .map(|child| child.charge(11 << 20).expect("fits"))
        .collect();
    let mut survey = Survey::new(6 << 20);
    budget.try_charge(6 << 20).expect_err("full").survey(&mut survey);
    survey.space(40 << 20, 2 << 20, 3 << 20);
    for tag in 0..9u64 {
        survey.holder(&format!("layer.{tag}.weight"), (20 - tag) << 20, tag + 1);
    }
    for piece in pieces(0, &[(7 << 20, true), (3 << 20, true)]) {
        survey.piece(piece);
    }
    let why = survey.finish();
    assert_eq!(
        why.to_string().lines().collect::<Vec<_>>(),
        [
            "out of memory: 6.00 MiB requested, 5.00 MiB over budget 'process' (99.0 MiB of 100 MiB reserved)",
            "  40.0 MiB free, largest hole 2.00 MiB among 3.00 MiB cached",
            "  below it: child 0 11.0 MiB, child 1 11.0 MiB, child 2 11.0 MiB, child 3 11.0 MiB, 5 more 55.0 MiB",
            "   20.0 MiB in 1 block held by layer.0.weight",
            "   19.0 MiB in 2 blocks held by layer.1.weight",
            "   18.0 MiB in 3 blocks held by layer.2.weight",
            "   17.0 MiB in 4 blocks held by layer.3.weight",
            "   16.0 MiB in 5 blocks held by layer.4.weight",
            "   54.0 MiB in 30 blocks held by 4 more tags",
            "  to free: at least 5.00 MiB; the smallest sufficient block has 7.00 MiB",
        ]
    );
}

#[cfg(target_os = "linux")]
#[test]
fn a_report_without_a_ledger_says_so_and_how_to_enable_one() {
    let refuse = |track: &str| {
        let settings = format!("limit:4MiB,huge-pages:system,track:{track}");
        let pool = millpond::Pool::builder()
            .settings(&settings)
            .host()
            .expect("a pool");
        let _scope = millpond::tag("weights");
        let _held = pool.alloc_zeroed::<u8>(3 << 20).expect("room");
        let error = pool.alloc_zeroed::<u8>(2 << 20).expect_err("too much");
        let why = *error.post_mortem().expect("out of memory");
        (why, error.to_string())
    };
    let (why, text) = refuse("off");
    assert_eq!((why.without_account, why.holders.named().len()), (1, 0));
    let line = "a pool keeps no account of the holders of its blocks: enable one with track:all or PoolBuilder::track";
    assert!(text.contains(line), "{text}");
    let (why, text) = refuse("all");
    assert_eq!(why.without_account, 0);
    assert!(
        text.contains("held by weights") && !text.contains("no account"),
        "{text}"
    );
    let mut survey = Survey::new(1);
    survey.no_account();
    survey.no_account();
    let text = survey.finish().to_string();
    assert!(
        text.contains("2 pools keep no account of the holders of their blocks"),
        "{text}"
    );
}

#[test]
fn neither_creating_nor_printing_a_report_uses_the_heap() {
    use std::fmt::Write;
    struct Sink(usize);
    impl Write for Sink {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            self.0 += text.len();
            Ok(())
        }
    }
    let card = Simulated::new().with_capacity(Some(64 << 20));
    let mut engine = Engine::new(
        policies::build("millpond", &Settings::default()).expect("known"),
        card,
    );
    let _block = engine
        .allocate(Request::new(48 << 20, Stream::DEFAULT))
        .expect("fits");
    let budget = Budget::builder("b").limit(50 << 20).build().expect("a root");
    let child = budget.child("child").expect("a child");
    let held = child.charge(48 << 20).expect("fits");
    drop(child.charge(1 << 20));

    let before = calls();
    // This includes charges and refusals.
    drop(child.charge(1 << 20));
    let refusal = child.try_charge(9 << 20).expect_err("full");
    let mut survey = Survey::new(9 << 20);
    refusal.survey(&mut survey);
    survey.space(16 << 20, engine.largest_hole(), engine.stats().cached());
    survey.holder("weights", 48 << 20, 1);
    engine.policy().layout(&mut |piece| survey.piece(piece));
    let why = survey.finish();
    let mut sink = Sink(0);
    write!(sink, "{why}").expect("written");
    write!(sink, "{refusal}").expect("written");
    assert_eq!(
        calls() - before,
        0,
        "calls to the heap for {} bytes of text",
        sink.0
    );
    assert!(sink.0 > 200);
    drop(held);
}
