//! Compares buffers with vectors, over a pool, over a source, and over a fake source that also works under Miri.

use super::*;
use crate::block::Memory;
use crate::pool::Pool;
use crate::unpooled::Unpooled;
use crate::unpooled::fake;
use proptest::collection::vec;
use proptest::prelude::*;
use std::mem::MaybeUninit;

fn pool() -> Pool {
    Pool::host().expect("addresses")
}

/// Near the limit, the extra room that a growing buffer asks for does not fit. The buffer then gets the requested room, and no refusal
/// is counted.
#[test]
fn extra_room_that_is_not_there_is_no_refusal() {
    let pool = Pool::builder().limit(16 << 20).host().expect("a pool");
    let mut buffer = pool.alloc_zeroed::<u8>(0).expect("room");
    for _ in 0..120 {
        buffer.try_extend_from_slice(&[7; 65_536]).expect("room");
    }
    assert_eq!(pool.stats().refusals, 0);
    assert!(pool.alloc_zeroed::<u8>(12 << 20).is_err());
    assert_eq!(pool.stats().refusals, 1);
}

#[derive(Clone, Debug)]
enum Step {
    Resize(usize, u32),
    GrowZeroed(usize),
    Extend(Vec<u32>),
    Push(u32),
    Within(Vec<u32>),
    Pop,
    SwapRemove(usize),
    Reserve(usize),
    ReserveExact(usize),
    Truncate(usize),
    Clone,
    Raw,
    Shared,
    Bytes,
    Elsewhere,
    Write(usize, u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // The sizes are on both sides of the limits of small classes, pages and cached blocks.
    let most = if cfg!(miri) { 300 } else { 30_000 };
    let len = || prop_oneof![3 => 0..100usize, 2 => 0..most, 1 => Just(most * 3)];
    let step = prop_oneof![
        3 => (len(), any::<u32>()).prop_map(|(len, value)| Step::Resize(len, value)),
        3 => len().prop_map(Step::GrowZeroed),
        6 => vec(any::<u32>(), 0..200).prop_map(Step::Extend),
        3 => any::<u32>().prop_map(Step::Push),
        2 => vec(any::<u32>(), 0..200).prop_map(Step::Within),
        1 => Just(Step::Pop),
        2 => (0..200usize).prop_map(Step::SwapRemove),
        1 => len().prop_map(Step::Reserve),
        1 => len().prop_map(Step::ReserveExact),
        3 => len().prop_map(Step::Truncate),
        2 => Just(Step::Clone),
        1 => Just(Step::Raw),
        1 => Just(Step::Shared),
        1 => Just(Step::Bytes),
        1 => Just(Step::Elsewhere),
        3 => (any::<usize>(), any::<u32>()).prop_map(|(place, value)| Step::Write(place, value)),
    ];
    vec(step, 1..if cfg!(miri) { 15 } else { 60 })
}

/// Runs the same program on a buffer and on a vector.
fn agree(mut buffer: Buffer<u32>, steps: &[Step]) {
    let mut model: Vec<u32> = buffer.to_vec();
    let mut kept = Vec::new();
    for step in steps {
        match step {
            Step::Resize(len, value) => {
                buffer.try_resize(*len, *value).expect("room");
                model.resize(*len, *value);
            }
            Step::GrowZeroed(len) => {
                buffer.try_grow_zeroed(*len).expect("room");
                model.resize(model.len().max(*len), 0);
            }
            Step::Extend(values) => {
                buffer.try_extend_from_slice(values).expect("room");
                model.extend_from_slice(values);
            }
            Step::Push(value) => {
                buffer.try_push(*value).expect("room");
                model.push(*value);
            }
            Step::Within(values) => {
                let (room, mut rest) = (buffer.capacity() - buffer.len(), values.iter().copied());
                assert_eq!(buffer.extend_within_capacity(&mut rest), values.len().min(room));
                let taken = values.len().min(room);
                assert_eq!(rest.len(), values.len() - taken, "the rest is left");
                model.extend_from_slice(&values[..taken]);
            }
            Step::Pop => assert_eq!(buffer.pop(), model.pop()),
            Step::SwapRemove(at) => {
                let expected = (*at < model.len()).then(|| model.swap_remove(*at));
                assert_eq!(buffer.swap_remove(*at), expected);
            }
            Step::Reserve(more) => {
                buffer.try_reserve(*more).expect("room");
                assert!(buffer.capacity() >= buffer.len() + more);
            }
            Step::ReserveExact(len) => {
                buffer.try_reserve_exact(*len).expect("room");
                assert!(buffer.capacity() >= *len);
            }
            Step::Truncate(len) => {
                buffer.truncate(*len);
                model.truncate(*len);
            }
            Step::Clone => {
                let clone = buffer.try_clone().expect("room");
                kept.push((std::mem::replace(&mut buffer, clone), model.clone()));
            }
            Step::Raw => {
                let raw = buffer.into_raw();
                // SAFETY: these are the raw parts of this buffer of `u32`.
                buffer = unsafe { Buffer::from_raw(raw) };
            }
            Step::Shared => {
                let shared = buffer.into_shared();
                let part = shared.slice(model.len() / 3..).expect("inside");
                assert_eq!(part[..], model[model.len() / 3..]);
                drop(shared);
                buffer = part.try_into_buffer().expect("alone");
            }
            Step::Bytes => buffer = buffer.into_bytes().try_cast().expect("whole and aligned"),
            Step::Elsewhere => {
                if let Some((buffer, model)) = kept.pop() {
                    let thread = std::thread::spawn(move || {
                        assert_eq!(buffer[..], model[..]);
                        buffer.free();
                    });
                    thread.join().expect("no panic");
                }
            }
            Step::Write(place, value) => {
                let len = model.len().max(1);
                if let (Some(one), Some(other)) = (buffer.get_mut(place % len), model.get_mut(place % len)) {
                    (*one, *other) = (*value, *value);
                }
            }
        }
        assert_eq!(buffer[..], model[..], "after {step:?}");
        assert!(buffer.capacity() >= buffer.len());
        assert!(buffer.as_ptr().addr().is_multiple_of(buffer.alignment()));
    }
    for (buffer, model) in kept {
        assert_eq!(buffer[..], model[..], "what was cloned stayed as it was");
    }
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases: if cfg!(miri) { 6 } else { cases },
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config(200))]

    #[test]
    fn a_buffer_of_a_fake_source_behaves_like_a_vector(steps in steps(), align in 0..12u32) {
        let source = fake::unpooled();
        let buffer = source.alloc_aligned(7, 1 << align).expect("room").fill(3);
        agree(buffer, &steps);
        prop_assert_eq!(source.held_bytes(), 0);
    }

    #[test]
    #[cfg_attr(miri, ignore)]
    fn a_buffer_of_a_pool_behaves_like_a_vector(steps in steps(), align in 0..22u32) {
        let pool = pool();
        agree(pool.alloc_zeroed_aligned(100, 1 << align).expect("room"), &steps);
        let stats = pool.stats();
        prop_assert_eq!((stats.requested.current, stats.allocated.current), (0, 0));
        prop_assert_eq!(stats.allocations, stats.frees);
        pool.heap().check();
    }
}

proptest! {
    #![proptest_config(config(40))]

    #[test]
    #[cfg_attr(miri, ignore)]
    fn a_buffer_of_a_source_behaves_like_a_vector(steps in steps(), align in 0..22u32) {
        let source = Unpooled::host().expect("a source");
        agree(source.alloc_zeroed_aligned(100, 1 << align).expect("room"), &steps);
        prop_assert_eq!(source.held_bytes(), 0);
    }
}

#[test]
fn a_failed_growth_leaves_the_buffer_unchanged() {
    let source = fake::unpooled();
    let mut buffer = source.alloc_from(&[1u64, 2, 3]).expect("room");
    let too_many = fake::MOST as usize / size_of::<u64>() + 1;
    assert!(matches!(
        buffer.try_resize(too_many, 0),
        Err(AllocError::Source(_))
    ));
    assert!(matches!(
        buffer.try_grow_zeroed(usize::MAX),
        Err(AllocError::TooLarge { .. })
    ));
    assert!(matches!(
        buffer.try_reserve(usize::MAX),
        Err(AllocError::TooLarge { .. })
    ));
    assert!(matches!(
        buffer.try_reserve_exact(1 << 60),
        Err(AllocError::TooLarge { .. })
    ));
    assert_eq!(buffer[..], [1, 2, 3]);
    assert!(matches!(
        source.alloc_aligned::<u8>(1, 3),
        Err(AllocError::Alignment { align: 3, .. })
    ));
    assert!(matches!(
        source.alloc_aligned::<u8>(1, 1 << 63),
        Err(AllocError::TooLarge { .. })
    ));
    assert_eq!(
        source
            .alloc::<u8>(2)
            .expect("room")
            .write_from(&[1])
            .expect_err("too few"),
        LengthError {
            expected: 2,
            found: 1
        }
    );
    // The source refuses half as much again, but not the bytes that are needed.
    let mut large = source.alloc_zeroed::<u8>(900 << 10).expect("room");
    large.try_extend_from_slice(&[7; 100 << 10]).expect("room");
    assert_eq!((large.len(), large[900 << 10]), (1000 << 10, 7));
    drop((buffer, large));
    assert_eq!(source.held_bytes(), 0);
}

#[test]
fn a_wrong_iterator_length_gives_a_buffer_of_the_shorter_length() {
    struct Liar(usize, usize);
    impl Iterator for Liar {
        type Item = u8;
        fn next(&mut self) -> Option<u8> {
            self.1 = self.1.checked_sub(1)?;
            Some(self.1 as u8)
        }
        fn size_hint(&self) -> (usize, Option<usize>) {
            (self.0, Some(self.0))
        }
    }
    impl ExactSizeIterator for Liar {
        fn len(&self) -> usize {
            self.0
        }
    }
    let source = fake::unpooled();
    for (says, has) in [(5, 3), (3, 5), (4, 4), (0, 2), (2, 0)] {
        let buffer = source.alloc_from_iter(Liar(says, has)).expect("room");
        assert_eq!(buffer.len(), says.min(has));
        assert!(
            buffer
                .iter()
                .enumerate()
                .all(|(i, v)| usize::from(*v) == has - 1 - i)
        );
    }
    assert_eq!(source.held_bytes(), 0);
}

#[test]
fn a_panic_while_a_buffer_is_filled_frees_its_memory() {
    let source = fake::unpooled();
    let buffer = source.alloc::<u32>(10).expect("room");
    let filled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        buffer.write_with(|i| if i == 5 { panic!("on purpose") } else { i as u32 })
    }));
    assert!(filled.is_err());
    assert_eq!(source.held_bytes(), 0);
}

#[test]
fn an_empty_buffer_allocates_no_memory() {
    let source = fake::unpooled();
    let mut empty = source
        .alloc_aligned::<[u64; 3]>(0, 4096)
        .expect("nothing")
        .fill([1; 3]);
    assert_eq!((empty.len(), empty.capacity(), source.held_bytes()), (0, 0, 0));
    assert!(empty.as_ptr().addr().is_multiple_of(4096));
    assert!(empty.try_clone().expect("nothing").is_empty());
    empty.try_extend_from_slice(&[[7; 3]]).expect("room");
    assert!(empty.as_ptr().addr().is_multiple_of(4096));
    assert_eq!(empty[..], [[7; 3]]);
}

#[test]
fn buffers_outlive_the_handle_of_their_source() {
    let source = fake::unpooled();
    let buffer = source.alloc_from(&[1u8, 2]).expect("room");
    let shared = source.alloc_from(&[3u8; 100]).expect("room").into_shared();
    drop(source);
    let mut clone = buffer.try_clone().expect("the source is still there");
    drop(buffer);
    clone.try_resize(500, 9).expect("room");
    let part = shared.slice(..10).expect("inside");
    drop(shared);
    let thread = std::thread::spawn(move || (part[9], part.try_free().is_ok()));
    assert_eq!(thread.join().expect("no panic"), (3, true));
    assert_eq!((clone[1], clone[499]), (2, 9));
}

#[test]
fn shared_buffers_accept_the_same_ranges_as_slices() {
    let source = fake::unpooled();
    let mut whole = source.alloc_from_fn(10, |i| i).expect("room").into_shared();
    let part = whole
        .slice(2..=7)
        .and_then(|part| part.slice((std::ops::Bound::Excluded(0), std::ops::Bound::Excluded(4))));
    assert_eq!(part.as_deref(), Some(&[3, 4, 5][..]));
    for (start, end) in [(3, 2), (0, 11), (11, 11), (usize::MAX, usize::MAX)] {
        assert!(whole.slice(start..end).is_none(), "{start}..{end}");
    }
    assert!(whole.slice(..=usize::MAX).is_none());
    assert_eq!(whole.slice(10..).as_deref(), Some(&[][..]));
    assert!(whole.get_mut().is_none());
    let whole = whole.try_free().expect_err("a part is held");
    assert_eq!(whole.holders(), 2);
    let mut part = part.expect("cut");
    drop(whole);
    part.get_mut().expect("alone")[0] = 30;
    assert_eq!(part.whole()[..5], [0, 1, 2, 30, 4]);
}

#[test]
fn leaked_buffers_are_counted_and_stay_valid() {
    let source = fake::unpooled();
    // The fake asserts on drop that all memory was freed. The leaked buffer keeps it alive.
    let before = leaks();
    let table = source.alloc_from(&[1u32, 2, 3]).expect("room").leak();
    drop(source);
    table[0] = 9;
    assert_eq!(table, [9, 2, 3]);
    // Other tests may leak at the same time.
    assert!(leaks().buffers > before.buffers && leaks().bytes >= before.bytes + 12);
}

#[test]
#[cfg_attr(miri, ignore)]
fn buffers_are_freed_on_any_thread_and_after_their_pool_is_closed() {
    let pool = pool();
    let heap = pool.heap();
    let buffers: Vec<Buffer<u16>> = (0..400)
        .map(|i| pool.alloc_from(&vec![i as u16; 1 + i * i]).expect("room"))
        .collect();
    assert!(
        buffers
            .iter()
            .all(|buffer| buffer.pool().is_some_and(|of| of == pool))
    );
    let mut grown = pool.alloc_from(&[5u8; 70_000]).expect("room");
    let rest = std::thread::scope(|scope| {
        let mut buffers = buffers.into_iter();
        for _ in 0..4 {
            let part: Vec<_> = buffers.by_ref().take(90).collect();
            scope.spawn(move || drop(part));
        }
        buffers.collect::<Vec<_>>()
    });
    drop(pool);
    assert!(heap.is_closed());
    grown
        .try_resize(100_000, 6)
        .expect("its pool still serves its own blocks");
    assert_eq!((grown[69_999], grown[70_000]), (5, 6));
    let clone = grown.try_clone().expect("room");
    drop((grown, rest));
    assert!(heap.stats().requested.current == 100_000);
    drop(clone);
    assert_eq!(heap.stats().reserved.current, 0);
}

#[test]
#[cfg_attr(miri, ignore)]
fn buffers_in_thread_locals_are_freed_when_the_thread_ends() {
    thread_local!(static HELD: std::cell::RefCell<Vec<Buffer<u8>>> = const { std::cell::RefCell::new(Vec::new()) });
    let pool = pool();
    let thread = std::thread::spawn({
        let pool = pool.clone();
        move || {
            let buffers = (0..100).map(|i| pool.alloc_zeroed(i * 997).expect("room"));
            HELD.set(buffers.collect());
        }
    });
    thread.join().expect("no panic");
    let stats = pool.stats();
    assert_eq!(
        (stats.requested.current, stats.allocations, stats.frees),
        (0, 99, 99)
    );
}

#[test]
#[cfg_attr(miri, ignore)]
fn a_buffer_reports_its_kind_device_and_pool() {
    let pinned = crate::Host::builder().build_pinned().expect("a source");
    let of_pinned = Pool::builder().over(Box::new(pinned)).expect("a pool");
    if let Ok(buffer) = of_pinned.alloc_zeroed::<u8>(100) {
        assert_eq!(
            (buffer.kind(), buffer.device()),
            (MemoryKind::Pinned, Device::Host)
        );
    }
    let buffer = pool().alloc_zeroed::<u8>(100).expect("room");
    assert_eq!(buffer.kind(), MemoryKind::Host);
    let buffer = fake::unpooled().alloc_zeroed::<u8>(100).expect("room");
    assert_eq!((buffer.kind(), buffer.pool()), (MemoryKind::Pinned, None));
}

#[test]
#[cfg_attr(miri, ignore)]
fn running_out_of_memory_leaves_a_buffer_unchanged() {
    let pool = Pool::builder().limit(4 << 20).host().expect("a pool");
    let mut buffer = pool.alloc_from(&vec![7u8; 3 << 20]).expect("room");
    let error = buffer.try_grow_zeroed(5 << 20).expect_err("no room");
    assert!(error.is_out_of_memory() && error.post_mortem().is_some());
    assert!(buffer.try_clone().is_err());
    assert!(buffer.len() == 3 << 20 && buffer.iter().all(|byte| *byte == 7));
}

#[test]
fn zeroed_elements_are_zero_in_memory_that_was_not_zero() {
    let source = fake::unpooled();
    let mut buffer = source.alloc_zeroed::<u64>(100).expect("room");
    buffer.fill(u64::MAX);
    buffer.truncate(10);
    buffer.try_grow_zeroed(50).expect("room");
    buffer.try_grow_zeroed(5000).expect("room");
    assert!(buffer[..10].iter().all(|word| *word == u64::MAX));
    assert!(buffer[10..].iter().all(|word| *word == 0));
    let unknown: Buffer<MaybeUninit<u8>> = source.alloc(10).expect("room");
    assert_eq!(unknown.fill(4)[..], [4; 10]);
}

/// From 256 KiB on, whole pages move. The last page also contains bytes after the kept elements.
#[test]
#[cfg_attr(miri, ignore)]
fn grown_bytes_are_zero_wherever_the_elements_move() {
    let (pool, source) = (pool(), Unpooled::host().expect("a source"));
    let owners = [pool.owner(), source.owner(), fake::unpooled().owner()];
    for owner in owners {
        for full in [5000, 262_145, 300_000, 1 << 20] {
            for kept in [full - 1, full - 4000, full / 4096 * 4096, full / 2, 1] {
                let mut buffer = Buffer::<u8>::zeroed(owner.clone(), full, 64).expect("room");
                buffer.fill(7);
                buffer.truncate(kept);
                buffer.try_grow_zeroed(full * 2).expect("room");
                assert_eq!(buffer.len(), full * 2);
                let sevens = buffer.iter().take_while(|byte| **byte == 7).count();
                assert_eq!(sevens, kept, "{owner:?}, {full} bytes");
                assert!(
                    buffer[kept..].iter().all(|byte| *byte == 0),
                    "{owner:?}, {kept} of {full} bytes"
                );
            }
        }
    }
}

/// A normal run cannot detect the race that this test is about. Miri reports it.
#[test]
fn the_last_owner_of_a_buffer_writes_after_the_reads_of_other_threads() {
    let source = fake::unpooled();
    let mut mine = source.alloc_from(&[1u32, 2, 3, 4]).expect("room").into_shared();
    for round in 2..4 {
        let others: Vec<SharedBuffer<u32>> = (0..2).map(|_| mine.clone()).collect();
        let readers = others
            .into_iter()
            .map(|other| std::thread::spawn(move || other.iter().sum::<u32>()));
        let readers: Vec<_> = readers.collect();
        let whole = loop {
            if let Some(elements) = mine.get_mut() {
                elements[0] = round;
                break elements.iter().sum::<u32>();
            }
            std::thread::yield_now();
        };
        for reader in readers {
            assert_eq!(reader.join().expect("no panic"), whole - 1);
        }
    }
    drop(mine);
    assert_eq!(source.held_bytes(), 0);
}
