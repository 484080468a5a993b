//! What goes back with time, and what may be reserved at all.

use crate::policies::Millpond;
use crate::{AllocError, Block, Engine, Mark, MillpondConf, Request, Simulated, Stream};

const MIB: u64 = 1 << 20;

fn engine(conf: &str, device: Simulated) -> Engine<Simulated> {
    let conf = MillpondConf::parse(conf).expect("conf");
    Engine::new(Box::new(Millpond::new(&conf)), device)
}

fn tick(engine: &mut Engine<Simulated>, ticks: u32) {
    engine.mark(Mark::Ticks(ticks));
    engine.check();
}

fn take(engine: &mut Engine<Simulated>, mib: u64) -> Block {
    engine
        .allocate(Request::new(mib * MIB, Stream::DEFAULT))
        .expect("room")
}

/// Takes so much at once, and frees it.
fn use_once(engine: &mut Engine<Simulated>, mib: u64) {
    let block = take(engine, mib);
    engine.free(block, &[]);
}

fn reserved(engine: &Engine<Simulated>) -> u64 {
    engine.stats().reserved.current / MIB
}

#[test]
fn free_memory_goes_back_when_its_time_has_passed_and_not_before() {
    for paged in [true, false] {
        let mut engine = engine("decay:3", Simulated::new().with_paging(paged));
        tick(&mut engine, 1);
        use_once(&mut engine, 640);
        for _ in 0..3 {
            tick(&mut engine, 1);
            assert_eq!(reserved(&engine), 640);
        }
        assert_eq!(engine.stats().stalls, 0);
        let before = engine.meter().calls;
        tick(&mut engine, 1);
        assert_eq!(reserved(&engine), 0);
        assert_eq!(engine.stats().stalls, 1, "the host waits for the device");
        let after = engine.meter().calls;
        assert!(after.unmap + after.free > before.unmap + before.free);
        use_once(&mut engine, 640);
    }
}

#[test]
fn steps_are_ticks_too_and_many_may_pass_at_once() {
    let mut engine = engine("decay:3", Simulated::new());
    engine.mark(Mark::Step);
    use_once(&mut engine, 64);
    engine.mark(Mark::Step);
    tick(&mut engine, 2);
    assert_eq!(reserved(&engine), 64);
    engine.mark(Mark::Step);
    assert_eq!(reserved(&engine), 0);
}

#[test]
fn what_was_free_before_the_first_tick_counts_from_then() {
    let mut engine = engine("decay:3", Simulated::new());
    use_once(&mut engine, 64);
    tick(&mut engine, 1000);
    tick(&mut engine, 3);
    assert_eq!(reserved(&engine), 64);
    tick(&mut engine, 1);
    assert_eq!(reserved(&engine), 0);
}

#[test]
fn only_what_was_not_needed_in_the_whole_time_goes() {
    let mut engine = engine("decay:4", Simulated::new());
    use_once(&mut engine, 2048);
    for round in 0..40 {
        if round == 20 {
            assert!(
                (512..=512 + 32).contains(&reserved(&engine)),
                "{}",
                reserved(&engine)
            );
        }
        let before = (engine.meter().operations(), engine.stats().stalls);
        // Nothing lives at the tick, and yet all of it is needed in each round.
        let blocks: Vec<Block> = (0..32).map(|_| take(&mut engine, 16)).collect();
        for block in blocks {
            engine.free(block, &[]);
        }
        tick(&mut engine, 1);
        let after = (engine.meter().operations(), engine.stats().stalls);
        assert!(round < 20 || after == before, "memory comes and goes");
    }
}

#[test]
fn pages_that_come_back_have_not_been_unused_since() {
    let mut engine = engine("decay:4,handle:2M", Simulated::new());
    tick(&mut engine, 1);
    use_once(&mut engine, 64);
    tick(&mut engine, 100);
    assert_eq!(reserved(&engine), 0);
    // One page at the front, and what was created with it.
    let _kept = take(&mut engine, 1);
    use_once(&mut engine, 64);
    let before = reserved(&engine);
    tick(&mut engine, 1);
    assert_eq!(reserved(&engine), before);
}

#[test]
fn blocks_in_use_keep_their_memory_whatever_time_passes() {
    let mut engine = engine("decay:1", Simulated::new());
    let block = take(&mut engine, 256);
    tick(&mut engine, 1000);
    tick(&mut engine, 1000);
    assert_eq!(reserved(&engine), 256);
    engine.free(block, &[]);
    tick(&mut engine, 1);
    assert_eq!(reserved(&engine), 256, "in use until just now");
    tick(&mut engine, 1);
    assert_eq!(reserved(&engine), 0);
}

#[test]
fn nothing_goes_below_the_low_water() {
    for (low, kept) in [("100MiB", 96), ("25%", 256)] {
        let mut engine = engine(
            &format!("decay:2,low-water:{low},handle-share:1"),
            Simulated::new(),
        );
        tick(&mut engine, 1);
        use_once(&mut engine, 1024);
        tick(&mut engine, 10);
        tick(&mut engine, 10);
        // A handle of 32 MiB that would pass the mark stays.
        assert!(
            (kept..kept + 33).contains(&reserved(&engine)),
            "{low}: {}",
            reserved(&engine)
        );
        assert!(engine.stats().cached() >= kept * MIB);
    }
}

#[test]
fn above_the_high_water_the_longest_unused_goes_first() {
    let mut engine = engine(
        "decay:0,low-water:64M,high-water:25%,handle-share:1",
        Simulated::new(),
    );
    tick(&mut engine, 1);
    let (first, second) = (take(&mut engine, 128), take(&mut engine, 128));
    let (old, new) = (first.address(), second.address());
    let _rest = take(&mut engine, 768);
    engine.free(first, &[]);
    tick(&mut engine, 1);
    assert_eq!(reserved(&engine), 1024, "a part of the peak, but not more");
    tick(&mut engine, 1);
    engine.free(second, &[]);
    let third = take(&mut engine, 1);
    assert_eq!(reserved(&engine), 1024);
    engine.free(third, &[]);
    tick(&mut engine, 1);
    assert_eq!(reserved(&engine), 1024, "a quarter is free, and no more");
    let more = take(&mut engine, 300);
    engine.free(more, &[]);
    tick(&mut engine, 1);
    assert!(
        (768 + 64..768 + 64 + 33).contains(&reserved(&engine)),
        "{}",
        reserved(&engine)
    );
    assert!(old < new);
}

#[test]
fn no_more_than_the_programs_share_is_reserved() {
    for paged in [true, false] {
        let device = Simulated::new()
            .with_capacity(Some(1024 * MIB))
            .with_paging(paged)
            .hold_events();
        let mut engine = engine("memory-fraction:50%", device);
        let (kept, waiting) = (take(&mut engine, 200), take(&mut engine, 300));
        let error = engine
            .allocate(Request::new(100 * MIB, Stream::DEFAULT))
            .expect_err("more than half of the device");
        let AllocError::Limited {
            requested,
            limit,
            reserved,
            ..
        } = error
        else {
            panic!("{error}");
        };
        assert_eq!((requested, limit, reserved), (100 * MIB, 512 * MIB, 500 * MIB));
        assert!(error.is_out_of_memory());
        assert!(
            error.to_string().contains("500 MiB of 512 MiB allowed"),
            "{error}"
        );
        // What waits for a stream is waited for, and what is free moves or goes back, before it is refused.
        engine.free(waiting, &[Stream(1)]);
        let block = take(&mut engine, 310);
        assert_eq!(engine.stats().refusals, 1);
        assert!(engine.stats().reserved.peak <= 512 * MIB);
        engine.free(block, &[]);
        engine.free(kept, &[]);
        let _all = take(&mut engine, 512);
        engine.check();
    }
}
