//! Makes recordings with the engine itself, in the form in which PyTorch writes them.
#![allow(dead_code, reason = "each test binary uses its own part")]

use millpond_engine::policies::TorchNative;
use millpond_engine::{Block, Engine, PieceState, Request, Simulated, Stream, TorchConf};
use millpond_trace::{
    Action, Event, Format, InitialBlock, InitialSegment, NO_ALLOCATION, Origin, Settings, Strings, Trace,
};

/// An empty trace with this many streams.
pub(crate) fn trace(streams: u64) -> Trace {
    Trace {
        origin: Origin {
            name: "made".to_owned(),
            format: Format::TorchSnapshot,
            device: 0,
            header: Vec::new(),
        },
        events: Vec::new(),
        allocations: 0,
        tags: Strings::new(),
        streams: (0..streams).collect(),
        pools: vec![(0, 0)],
        initial_segments: Vec::new(),
        initial_blocks: Vec::new(),
        settings: Settings::default(),
        cautions: Vec::new(),
        final_reserved_bytes: None,
        recorded_peak_reserved: None,
        unlisted_bytes: 0,
    }
}

pub(crate) fn event(action: Action, allocation: u32, bytes: u64, address: u64, stream: u16) -> Event {
    Event {
        time_us: 0,
        bytes,
        address,
        allocation,
        tag: 0,
        stream,
        pool: 0,
        action,
    }
}

/// A program as pairs: the bytes to allocate, or `None` to free; and the index of the held block, or the
/// stream.
pub(crate) type Step = (Option<u64>, usize);

struct Held {
    block: Block,
    /// Position in the recorder's list of all its allocations.
    number: usize,
}

/// Runs a program under PyTorch's policy. Records its events from `cut` on, with the state before.
///
/// `sizes_known` says whether the blocks that lived before keep their size. In a snapshot, blocks that live
/// to its end do.
pub(crate) fn record(program: &[Step], cut: usize, sizes_known: bool) -> Trace {
    let conf = TorchConf::default();
    let mut engine = Engine::new(Box::new(TorchNative::new(&conf)), Simulated::new().with_log());
    let mut held: Vec<Held> = Vec::new();
    let mut made = trace(3);
    let mut numbers: Vec<u32> = Vec::new();
    let mut segments: Vec<(u64, u64, u16, bool)> = Vec::new();
    for (step, &(bytes, which)) in program.iter().enumerate() {
        if step == cut {
            first_state(&mut made, &held, &segments, sizes_known, &mut numbers);
        }
        match bytes {
            Some(bytes) => {
                let stream = (which % 3) as u16;
                let block = engine
                    .allocate(Request::new(bytes, Stream(u32::from(stream))))
                    .expect("no limit is set");
                for change in engine.source_mut().take_log() {
                    segments.push((change.address, change.bytes, stream, block.bytes() <= 1 << 20));
                    if step >= cut {
                        let action = Action::SegmentAlloc;
                        made.events
                            .push(event(action, NO_ALLOCATION, change.bytes, change.address, stream));
                    }
                }
                let number = numbers.len();
                numbers.push(u32::MAX);
                if step >= cut {
                    numbers[number] = made.allocations;
                    let alloc = event(Action::Alloc, made.allocations, bytes, block.address(), stream);
                    made.events.push(alloc);
                    made.allocations += 1;
                }
                held.push(Held { block, number });
            }
            None if held.is_empty() => {}
            None => {
                let Held { block, number } = held.swap_remove(which % held.len());
                if step >= cut {
                    let stream = block.stream().0 as u16;
                    let free = event(
                        Action::Free,
                        numbers[number],
                        block.requested(),
                        block.address(),
                        stream,
                    );
                    made.events.push(free);
                }
                engine.free(block, &[]);
            }
        }
    }
    let mut live = 0;
    engine
        .policy()
        .layout(&mut |piece| live += u64::from(piece.state == PieceState::Live));
    assert_eq!(live, held.len() as u64);
    made
}

fn first_state(
    made: &mut Trace,
    held: &[Held],
    segments: &[(u64, u64, u16, bool)],
    sizes_known: bool,
    numbers: &mut [u32],
) {
    let mut order: Vec<&Held> = held.iter().collect();
    order.sort_by_key(|h| h.block.address());
    for h in order {
        numbers[h.number] = made.allocations;
        made.initial_blocks.push(InitialBlock {
            address: h.block.address(),
            requested: h.block.requested(),
            bytes: sizes_known.then(|| h.block.bytes()),
            allocation: made.allocations,
            tag: 0,
            stream: h.block.stream().0 as u16,
            pool: 0,
            pending: false,
        });
        made.allocations += 1;
    }
    for &(address, bytes, stream, small) in segments {
        let segment = InitialSegment {
            address,
            bytes,
            stream,
            pool: 0,
            small,
            expandable: false,
        };
        made.initial_segments.push(segment);
    }
}
