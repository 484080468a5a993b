//! Tests for the behaviour that is specific to this policy.

use crate::{
    AllocError, Block, Engine, Event, Group, Mark, MillpondConf, Range, Request, Segment, Simulated, Source,
    SourceError, Stream,
};

const MIB: u64 = 1 << 20;

fn engine(conf: &MillpondConf, device: Simulated) -> Engine<Simulated> {
    Engine::new(Box::new(super::Millpond::new(conf)), device)
}

fn take(engine: &mut Engine<Simulated>, bytes: u64, stream: u32) -> Block {
    engine
        .allocate(Request::new(bytes, Stream(stream)))
        .expect("room")
}

/// Frees every second block of many. None of the free blocks is large enough for the next request.
fn perforated(engine: &mut Engine<Simulated>) -> Vec<Block> {
    let mut kept = Vec::new();
    let mut freed = Vec::new();
    for index in 0..64 {
        let block = take(engine, 16 * MIB, 0);
        if index % 2 == 0 {
            kept.push(block);
        } else {
            freed.push(block);
        }
    }
    for block in freed {
        engine.free(block, &[]);
    }
    kept
}

#[test]
fn free_pages_move_before_memory_outgrows_the_peak() {
    // The host does not wait if the device can map a handle at a second address.
    for (aliases, stalls) in [(true, 0), (false, 1)] {
        let mut engine = engine(&MillpondConf::default(), Simulated::new().with_aliases(aliases));
        let _kept = perforated(&mut engine);
        let before = engine.stats().reserved.peak;
        let _large = take(&mut engine, 256 * MIB, 0);
        assert!(engine.meter().moved_bytes >= 200 * MIB);
        assert_eq!(engine.stats().stalls, stalls);
        assert!(
            engine.stats().reserved.peak <= before + 4 * MIB,
            "{:?}",
            engine.stats()
        );
        engine.check();
    }
}

#[test]
fn an_old_mapping_lasts_until_its_work_is_complete() {
    let mut engine = engine(&MillpondConf::default(), Simulated::new().hold_events());
    let kept = perforated(&mut engine);
    let moved = engine.source().next_event();
    let large = take(&mut engine, 256 * MIB, 0);
    let stale = |engine: &Engine<Simulated>| engine.meter().stale_mappings.current;
    let there = stale(&engine);
    assert!(there >= 100, "{there}");
    engine.mark(Mark::Ticks(1));
    assert_eq!(stale(&engine), there);
    // The addresses of old mappings are not reused before that, and the host does not wait for them.
    for block in kept.into_iter().chain([large]) {
        engine.free(block, &[]);
    }
    let _all = take(&mut engine, 1024 * MIB, 0);
    assert_eq!(engine.stats().stalls, 0);
    let all = stale(&engine);
    engine.source_mut().complete(moved);
    engine.mark(Mark::Ticks(1));
    assert_eq!(stale(&engine), all - there);
    // Memory is returned only after a wait, which ends all old mappings.
    engine.release_cached();
    assert_eq!(stale(&engine), 0);
    engine.check();
}

#[test]
fn a_handle_that_free_blocks_of_two_streams_share_is_moved() {
    let mut engine = engine(&MillpondConf::default(), Simulated::new());
    // Each handle of two mebibytes lies under blocks of two streams.
    let mut blocks: Vec<Block> = (0..64).map(|index| take(&mut engine, MIB, index % 2)).collect();
    let _last = blocks.pop();
    let _first = blocks.remove(0);
    for block in blocks {
        engine.free(block, &[]);
    }
    let reserved = engine.stats().reserved.current;
    let _large = take(&mut engine, 48 * MIB, 0);
    assert!(engine.stats().reserved.current <= reserved + 4 * MIB);
    assert!(engine.meter().cross_stream_waits >= 1);
    engine.check();
}

#[test]
fn the_size_of_a_handle_depends_on_the_request_and_the_settings() {
    let handle_of = |conf: &str, bytes: u64| {
        let conf = MillpondConf::parse(conf).expect("conf");
        let mut engine = engine(&conf, Simulated::new());
        let _kept = take(&mut engine, bytes, 0);
        engine.meter().reserved.current / engine.meter().calls.create / MIB
    };
    assert_eq!(handle_of("", MIB), 2);
    assert_eq!(handle_of("", 256 * MIB), 2);
    assert_eq!(handle_of("", 512 * MIB), 4);
    assert_eq!(handle_of("", 8192 * MIB), 8);
    assert_eq!(handle_of("handle:32M", 2048 * MIB), 16);
    assert_eq!(handle_of("handle:32M,handle-share:32", 2048 * MIB), 32);
}

#[test]
fn a_request_can_use_the_last_page_of_the_device() {
    // Eleven pages are left, which is not a multiple of a handle of four pages.
    let mut engine = engine(
        &MillpondConf::default(),
        Simulated::new().with_capacity(Some(2048 * MIB)),
    );
    let _kept = take(&mut engine, 2026 * MIB, 0);
    let _last = take(&mut engine, 22 * MIB, 0);
    assert_eq!(engine.stats().reserved.current, 2048 * MIB);
}

#[test]
fn pages_move_when_fragmentation_reaches_the_threshold() {
    let run = |more: &str| {
        let conf = format!("moved:0,{more}");
        let conf = MillpondConf::parse(&conf).expect("conf");
        let mut engine = engine(&conf, Simulated::new());
        let mut kept = perforated(&mut engine);
        // Half a gibibyte is free in small pieces. Pages are moved only when growth would make this 30 % of the memory.
        kept.extend((0..4).map(|_| take(&mut engine, 128 * MIB, 0)));
        engine.check();
        (engine.stats().reserved.peak / MIB, engine.meter().moved_bytes > 0)
    };
    assert_eq!(run("compact-at:30"), (1392, true));
    assert_eq!(run("compact-at:0"), (1520, false));
}

#[test]
fn zero_settings_do_not_divide_by_zero() {
    let conf = MillpondConf {
        handle_bytes: 0,
        handle_share: 0,
        ..MillpondConf::default()
    };
    let mut engine = engine(&conf, Simulated::new());
    let _kept = perforated(&mut engine);
    let _large = take(&mut engine, 256 * MIB, 0);
    engine.check();
}

#[test]
fn no_page_moves_if_moves_are_turned_off() {
    let conf = MillpondConf::parse("moved:0").expect("conf");
    let mut engine = engine(&conf, Simulated::new());
    let _kept = perforated(&mut engine);
    let _large = take(&mut engine, 256 * MIB, 0);
    assert_eq!((engine.meter().moved_bytes, engine.stats().stalls), (0, 0));
}

#[test]
fn pages_move_on_a_full_device_even_if_moves_are_turned_off() {
    let conf = MillpondConf::parse("moved:0").expect("conf");
    let mut engine = engine(&conf, Simulated::new().with_capacity(Some(1032 * MIB)));
    let kept = perforated(&mut engine);
    let large = take(&mut engine, 400 * MIB, 0);
    engine.check();
    assert!(matches!(
        engine.allocate(Request::new(512 * MIB, Stream(0))),
        Err(AllocError::Exhausted { .. })
    ));
    for block in kept.into_iter().chain([large]) {
        engine.free(block, &[]);
    }
    let _all = take(&mut engine, 1024 * MIB, 0);
    engine.check();
}

/// PyTorch does not search its pool again after it has waited for the device (its issue 189504).
#[test]
fn a_block_that_waited_for_a_stream_is_reused_when_memory_runs_out() {
    let device = Simulated::new().with_capacity(Some(64 * MIB)).hold_events();
    let mut engine = engine(&MillpondConf::default(), device);
    let _kept = take(&mut engine, 8 * MIB, 0);
    let block = take(&mut engine, 56 * MIB, 0);
    let address = block.address();
    engine.free(block, &[Stream(1)]);
    assert_eq!(take(&mut engine, 56 * MIB, 0).address(), address);
    engine.check();
}

#[test]
fn a_free_block_of_another_stream_is_taken_after_a_wait_on_the_device() {
    let mut engine = engine(&MillpondConf::default(), Simulated::new());
    let block = take(&mut engine, 32 * MIB, 1);
    engine.free(block, &[]);
    let reserved = engine.stats().reserved.current;
    let _other = take(&mut engine, 32 * MIB, 2);
    assert_eq!(engine.meter().cross_stream_waits, 1);
    assert_eq!(
        (engine.stats().reserved.current, engine.stats().stalls),
        (reserved, 0)
    );
    engine.check();
}

/// Returns an engine whose device has 66 MiB. Each of its 8 handles of 8 MiB has a live page and three free ones.
fn mixed(conf: &str) -> (Engine<Simulated>, Vec<Block>) {
    let conf = MillpondConf::parse(&format!("handle:8MiB,handle-share:1,{conf}")).expect("conf");
    let mut engine = engine(&conf, Simulated::new().with_capacity(Some(66 * MIB)));
    let whole = take(&mut engine, 64 * MIB, 0);
    engine.free(whole, &[]);
    let mut kept = Vec::new();
    for (index, block) in [(); 32]
        .map(|()| take(&mut engine, 2 * MIB, 0))
        .into_iter()
        .enumerate()
    {
        if index % 4 == 1 {
            kept.push(block);
        } else {
            engine.free(block, &[]);
        }
    }
    (engine, kept)
}

#[test]
fn pages_under_live_blocks_are_replaced_before_a_request_is_refused() {
    let refused = |conf: &str, bytes| {
        let (mut engine, _kept) = mixed(conf);
        let refused = engine.allocate(Request::new(bytes, Stream(0))).is_err();
        engine.check();
        (refused, engine.meter().relocated_bytes / MIB)
    };
    // The free memory of the device and of all handles is 50 MiB.
    assert_eq!(refused("", 50 * MIB), (true, 0));
    assert_eq!(refused("relocate:on", 50 * MIB), (false, 16));
    assert_eq!(refused("relocate:on", 20 * MIB), (false, 6));
    // If that would not be enough, nothing is replaced.
    assert_eq!(refused("relocate:on", 52 * MIB), (true, 0));
}

#[test]
fn free_handles_count_before_pages_are_replaced() {
    for (bytes, outcome) in [(52, (false, 14)), (54, (true, 0))] {
        let (mut engine, mut kept) = mixed("relocate:on");
        // The last handle is free now. The device has 2 MiB, this handle 8 MiB, and seven others 6 MiB each.
        engine.free(kept.pop().expect("8 blocks"), &[]);
        let refused = engine.allocate(Request::new(bytes * MIB, Stream(0))).is_err();
        assert_eq!(
            (refused, engine.meter().relocated_bytes / MIB),
            outcome,
            "{bytes} MiB"
        );
        engine.check();
    }
}

#[test]
fn pages_are_not_replaced_while_a_stream_is_captured() {
    let (mut engine, kept) = mixed("relocate:on");
    engine.source_mut().set_captured(Some(1));
    let refused = engine.allocate(Request::new(20 * MIB, Stream(0)));
    assert!(refused.is_err() && engine.meter().relocated_bytes == 0);
    engine.source_mut().set_captured(None);
    let large = take(&mut engine, 20 * MIB, 0);
    for block in kept.into_iter().chain([large]) {
        engine.free(block, &[]);
    }
    assert_eq!(take(&mut engine, 66 * MIB, 0).bytes(), 66 * MIB);
    engine.check();
}

#[test]
fn memory_of_a_private_group_keeps_its_pages() {
    let conf = MillpondConf::parse("handle:8MiB,handle-share:1,relocate:on").expect("conf");
    let mut engine = engine(&conf, Simulated::new().with_capacity(Some(18 * MIB)));
    let of_group = |bytes| Request {
        group: Group(1),
        ..Request::new(bytes, Stream(0))
    };
    let whole = engine.allocate(of_group(16 * MIB)).expect("room");
    engine.free(whole, &[]);
    let parts = [1, 7, 1, 7].map(|mib| engine.allocate(of_group(mib * MIB)).expect("room"));
    let [_low, rest, _high, other] = parts;
    engine.free(rest, &[]);
    engine.free(other, &[]);
    assert!(engine.allocate(of_group(10 * MIB)).is_err());
    assert_eq!(engine.meter().relocated_bytes, 0);
}

#[test]
fn pages_never_move_between_groups() {
    let mut engine = engine(&MillpondConf::default(), Simulated::new());
    let _kept = perforated(&mut engine);
    let before = engine.stats().reserved.current;
    let request = Request {
        group: Group(1),
        ..Request::new(256 * MIB, Stream(0))
    };
    let _other = engine.allocate(request).expect("room");
    assert_eq!(engine.meter().moved_bytes, 0);
    assert!(engine.stats().reserved.current >= before + 256 * MIB);
}

#[test]
fn free_segments_are_returned_when_a_plain_device_is_full() {
    let device = Simulated::new().with_paging(false).with_capacity(Some(64 * MIB));
    let mut engine = engine(&MillpondConf::default(), device);
    let (first, second) = (take(&mut engine, 24 * MIB, 0), take(&mut engine, 24 * MIB, 0));
    engine.free(first, &[]);
    engine.free(second, &[]);
    let _large = take(&mut engine, 60 * MIB, 0);
    assert_eq!(engine.stats().reserved.current, 60 * MIB);
    engine.check();
}

#[test]
fn a_nearly_full_plain_device_provides_a_segment_for_one_block() {
    let device = Simulated::new().with_paging(false).with_capacity(Some(32 * MIB));
    let mut engine = engine(&MillpondConf::default(), device);
    let _held = take(&mut engine, 24 * MIB, 0);
    // No memory is left for a segment that other blocks could share.
    let _block = take(&mut engine, 5 * MIB, 0);
    assert_eq!(engine.stats().reserved.current, 30 * MIB);
    engine.check();
}

#[test]
fn an_alignment_up_to_a_page_is_given_without_waste() {
    let mut engine = engine(&MillpondConf::default(), Simulated::new());
    let _odd = take(&mut engine, 300, 0);
    let request = Request {
        align: 2 * MIB,
        ..Request::new(3 * MIB, Stream(0))
    };
    let block = engine.allocate(request).expect("room");
    assert!(block.address().is_multiple_of(2 * MIB));
    assert_eq!(block.bytes(), 3 * MIB);
    engine.check();
}

#[test]
fn without_live_blocks_one_request_can_use_the_whole_device() {
    let conf = MillpondConf {
        single_pages: true,
        ..MillpondConf::default()
    };
    let mut seed = 1u64;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % below
    };
    for round in 0..200 {
        let mut engine = engine(&conf, Simulated::new().with_capacity(Some(32 * MIB)));
        let mut held = Vec::new();
        for _ in 0..60 {
            if held.is_empty() || random(5) < 3 {
                let bytes = (random(6) + 1) * MIB + random(2) * 300_000;
                held.extend(
                    engine
                        .allocate(Request::new(bytes, Stream(random(2) as u32)))
                        .ok(),
                );
            } else {
                let block = held.swap_remove(random(held.len() as u64) as usize);
                engine.free(block, &[]);
            }
        }
        for block in held {
            engine.free(block, &[]);
        }
        let all = engine.allocate(Request::new(32 * MIB, Stream(0)));
        assert!(all.is_ok(), "round {round}: {all:?}");
        engine.check();
    }
}

/// Creates an engine whose device has `capacity` bytes and whose policy reserves no more than requested.
fn exact(capacity: u64) -> Engine<Simulated> {
    engine(
        &MillpondConf::default(),
        Simulated::new().with_capacity(Some(capacity)),
    )
}

/// The stream of the best fit is being captured, so the next best fit serves the request.
#[test]
fn during_a_capture_free_blocks_of_other_streams_are_used() {
    let mut engine = exact(16 * MIB);
    let (tight, wide) = (take(&mut engine, 2 * MIB, 1), take(&mut engine, 4 * MIB, 2));
    let _rest = take(&mut engine, 10 * MIB, 0);
    let there = wide.address();
    engine.free(tight, &[]);
    engine.free(wide, &[]);
    engine.source_mut().set_captured(Some(1));
    let block = take(&mut engine, 2 * MIB, 3);
    assert_eq!(block.address(), there);
    engine.check();
}

/// Growth usually reserves more than requested. If the device has no memory for that, the requested size is enough.
#[test]
fn requests_that_fit_are_served_during_a_capture() {
    let device = Simulated::new().with_capacity(Some(94 * MIB));
    let mut engine = engine(&MillpondConf::default(), device);
    let kept: Vec<Block> = (0..9).map(|_| take(&mut engine, 10 * MIB, 0)).collect();
    let room = 94 * MIB - engine.stats().reserved.current;
    assert_eq!(room, 4 * MIB);
    engine.source_mut().set_captured(Some(1));
    let _small = take(&mut engine, 2 * MIB, 1);
    drop(kept);
    engine.check();
}

/// A device with `left` bytes of addresses and `most` bytes of memory.
struct Narrow {
    device: Simulated,
    left: u64,
    most: u64,
    used: u64,
}

impl Source for Narrow {
    fn page_bytes(&self) -> u64 {
        self.device.page_bytes()
    }
    fn is_paged(&self) -> bool {
        true
    }
    fn capacity(&self) -> Option<u64> {
        self.device.capacity()
    }
    fn free_bytes(&self) -> Option<u64> {
        Some(self.most - self.used)
    }
    fn take(&mut self, bytes: u64) -> Result<Segment, SourceError> {
        self.device.take(bytes)
    }
    fn give(&mut self, segment: Segment) {
        self.device.give(segment);
    }
    fn reserve(&mut self, bytes: u64) -> Result<Range, SourceError> {
        let left = self.left.checked_sub(bytes);
        self.left = left.ok_or(SourceError::AddressSpace { requested: bytes })?;
        self.device.reserve(bytes)
    }
    fn commit(&mut self, range: &Range, offset: u64, bytes: u64, handle: u64) -> Result<(), SourceError> {
        if self.used + bytes > self.most {
            return Err(SourceError::OutOfMemory {
                requested: bytes,
                free: self.most - self.used,
                capacity: self.most,
            });
        }
        self.device.commit(range, offset, bytes, handle)?;
        self.used += bytes;
        Ok(())
    }
    fn decommit(&mut self, range: &Range, offset: u64, bytes: u64) -> u64 {
        self.used -= bytes;
        self.device.decommit(range, offset, bytes)
    }
    fn move_pages(&mut self, from: (&Range, u64), to: (&Range, u64), bytes: u64) -> Result<u64, SourceError> {
        self.device.move_pages(from, to, bytes)
    }
    fn release(&mut self, range: Range) {
        self.device.release(range);
    }
    fn record_event(&mut self, stream: u32) -> Event {
        self.device.record_event(stream)
    }
    fn is_complete(&self, event: Event) -> bool {
        self.device.is_complete(event)
    }
    fn wait_event(&mut self, stream: u32, event: Event) {
        self.device.wait_event(stream, event);
    }
    fn synchronize(&mut self) {
        self.device.synchronize();
    }
}

#[test]
fn a_block_that_fills_its_hole_is_joined_with_the_free_memory_behind_it() {
    let page = 2 * MIB;
    let conf = MillpondConf {
        single_pages: true,
        ..MillpondConf::default()
    };
    let source = Narrow {
        device: Simulated::new().with_capacity(Some(11 * page)),
        left: 11 * page,
        most: 11 * page,
        used: 0,
    };
    let mut engine = Engine::new(Box::new(super::Millpond::new(&conf)), source);
    let sizes = [2 * page, page, 2 * page, page, 4 * page, page / 2, page / 2];
    let blocks = sizes.map(|bytes| engine.allocate(Request::new(bytes, Stream(0))).expect("room"));
    let [first, narrow, second, _kept, wide, low, _high] = blocks;
    engine.free(narrow, &[]);
    engine.free(wide, &[]);
    engine.release_cached();
    let source = engine.source_mut();
    source.most = source.used;
    for block in [first, second, low] {
        engine.free(block, &[]);
    }
    // The pages on both sides of the narrow hole move into the wide hole and fill it. The bytes that the block does not need
    // are free behind it. They are followed by the half page that was already free.
    let block = engine
        .allocate(Request::new(4 * page - 1024, Stream(0)))
        .expect("room");
    assert_eq!(engine.source_mut().used, 6 * page);
    engine.check();
    engine.free(block, &[]);
    engine.check();
}
