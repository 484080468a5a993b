//! Tests for memory that is returned after some time, and for the limit of reserved memory.

use crate::policies::millpond::{Millpond, Part};
use crate::{
    AllocError, Block, Deferred, Engine, Fault, Mark, Meter, MillpondConf, PieceState, Policy, Request,
    Simulated, Stream, Supply,
};

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

/// Allocates a block and frees it at once.
fn use_once(engine: &mut Engine<Simulated>, mib: u64) {
    let block = take(engine, mib);
    engine.free(block, &[]);
}

fn reserved(engine: &Engine<Simulated>) -> u64 {
    engine.stats().reserved.current / MIB
}

#[test]
fn free_memory_is_returned_after_its_decay_time_and_not_before() {
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
fn steps_count_as_ticks_and_several_ticks_can_pass_at_once() {
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
fn memory_that_was_freed_before_the_first_tick_decays_from_that_tick() {
    let mut engine = engine("decay:3", Simulated::new());
    use_once(&mut engine, 64);
    tick(&mut engine, 1000);
    tick(&mut engine, 3);
    assert_eq!(reserved(&engine), 64);
    tick(&mut engine, 1);
    assert_eq!(reserved(&engine), 0);
}

#[test]
fn only_memory_that_was_unused_for_the_whole_decay_time_is_returned() {
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
        // Nothing is live at the tick, but each round needs all of the memory.
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
fn pages_that_are_created_again_do_not_keep_their_old_time_of_use() {
    // A request of 514 MiB reserves addresses, then creates handles of 6 MiB, then one of 4 MiB.
    let device = Simulated::new().with_faults([Fault::DriverErrorAt(4, 719)]);
    let mut engine = engine("decay:4", device);
    tick(&mut engine, 1);
    use_once(&mut engine, 514);
    tick(&mut engine, 100);
    assert_eq!(reserved(&engine), 0);
    // The handles are created at the same place, and then creating the last one fails.
    let outcome = engine.allocate(Request::new(514 * MIB, Stream::DEFAULT));
    assert!(matches!(outcome, Err(AllocError::Source(_))), "{outcome:?}");
    assert_eq!(reserved(&engine), 510);
    tick(&mut engine, 1);
    assert_eq!(reserved(&engine), 510);
    tick(&mut engine, 5);
    assert_eq!(reserved(&engine), 0);
}

/// Runs a policy without an engine, for functions that only an enclosing policy calls.
fn with_policy(conf: &str, device: Simulated, ask: impl FnOnce(&mut Millpond, &mut Supply<'_>)) {
    let mut policy = Millpond::new(&MillpondConf::parse(conf).expect("conf"));
    let (mut device, mut meter, mut deferred) = (device, Meter::default(), Deferred::default());
    let mut supply = Supply::new(&mut device, &mut meter, &mut deferred);
    ask(&mut policy, &mut supply);
    policy.check();
}

#[test]
fn lent_memory_counts_as_used_until_it_is_returned() {
    with_policy("decay:3", Simulated::new(), |policy, supply| {
        policy.mark(supply, Mark::Ticks(1));
        let request = Request::new(64 * MIB, Stream::DEFAULT);
        let block = policy.allocate(supply, &request).expect("room");
        policy.free(supply, block);
        let lent = policy.lend(supply, 64 * MIB, 0).expect("the same memory");
        policy.mark(supply, Mark::Ticks(100));
        let bytes = lent.bytes();
        policy.take_back(lent, &[Part { bytes, live: None }]);
        policy.mark(supply, Mark::Ticks(1));
        assert_eq!(supply.reserved(), 64 * MIB);
        policy.mark(supply, Mark::Ticks(3));
        assert_eq!(supply.reserved(), 0);
    });
}

#[test]
fn lent_memory_does_not_count_as_cached() {
    with_policy("high-water:64MiB,decay:0", Simulated::new(), |policy, supply| {
        let request = Request::new(128 * MIB, Stream::DEFAULT);
        let block = policy.allocate(supply, &request).expect("room");
        policy.free(supply, block);
        let lent = policy.lend(supply, 96 * MIB, 0).expect("a part of it");
        policy.mark(supply, Mark::Ticks(1));
        assert_eq!(supply.reserved(), 128 * MIB);
        let bytes = lent.bytes();
        policy.take_back(lent, &[Part { bytes, live: None }]);
        policy.mark(supply, Mark::Ticks(1));
        assert!(supply.reserved() <= 64 * MIB);
    });
}

#[test]
fn lent_memory_counts_toward_the_memory_fraction() {
    let device = Simulated::new().with_capacity(Some(1024 * MIB));
    with_policy("memory-fraction:0.5", device, |policy, supply| {
        assert!(policy.lend(supply, 600 * MIB, 600 * MIB).is_err());
        assert!(supply.reserved() <= 512 * MIB);
    });
}

#[test]
fn pages_move_before_the_memory_fraction_refuses_a_request() {
    let device = Simulated::new().with_capacity(Some(1024 * MIB));
    let mut engine = engine("memory-fraction:0.5,moved:0", device);
    let mut blocks: Vec<Block> = (0..5).map(|_| take(&mut engine, 100)).collect();
    let last = blocks.pop().expect("five");
    engine.free(blocks.swap_remove(1), &[]);
    engine.free(last, &[]);
    let _large = take(&mut engine, 190);
    assert!(engine.meter().moved_bytes > 0);
    assert!(engine.stats().reserved.peak <= 512 * MIB);
    engine.check();
}

#[test]
fn live_blocks_keep_their_memory_regardless_of_elapsed_ticks() {
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
fn memory_below_the_low_water_is_not_returned() {
    for (low, kept) in [("100MiB", 96), ("25%", 256)] {
        let mut engine = engine(
            &format!("decay:2,low-water:{low},handle-share:1"),
            Simulated::new(),
        );
        tick(&mut engine, 1);
        use_once(&mut engine, 1024);
        tick(&mut engine, 10);
        tick(&mut engine, 10);
        // A handle of 32 MiB is kept if its return would go below the low water.
        assert!(
            (kept..kept + 33).contains(&reserved(&engine)),
            "{low}: {}",
            reserved(&engine)
        );
        assert!(engine.stats().cached() >= kept * MIB);
    }
}

#[test]
fn above_the_high_water_the_longest_unused_memory_is_returned_first() {
    let mut engine = engine("decay:0,low-water:128M,high-water:20%", Simulated::new());
    tick(&mut engine, 1);
    // The blocks are separate, so that no handle overlaps two of them.
    let blocks: Vec<Block> = (0..8).map(|_| take(&mut engine, 128)).collect();
    let [mut kept, mut freed] = [Vec::new(), Vec::new()];
    for (at, block) in blocks.into_iter().enumerate() {
        let list = if at == 1 || at == 5 { &mut freed } else { &mut kept };
        list.push(block);
    }
    let newest = freed.remove(0);
    let (new, old) = (newest.address(), freed[0].address());
    for block in freed {
        engine.free(block, &[]);
    }
    tick(&mut engine, 1);
    assert_eq!(
        reserved(&engine),
        1024,
        "128 MiB are free, less than a fifth of the peak"
    );
    engine.free(newest, &[]);
    tick(&mut engine, 1);
    let mut free = [0, 0];
    engine.policy().layout(&mut |piece| {
        if piece.state == PieceState::Free {
            free[usize::from(piece.address >= old)] += piece.bytes / MIB;
        }
    });
    assert!(
        new < old && free[0] == 128 && free[1] < 32,
        "{free:?} MiB are free"
    );
    assert_eq!(engine.stats().stalls, 1);
    assert!(engine.stats().cached() >= 128 * MIB);
}

#[test]
fn reserved_memory_stays_within_the_memory_fraction() {
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
        // Before a refusal, the policy waits for streams and moves or returns free memory.
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
