//! Runs random programs on a naive allocator. The state before any window of their history must be rebuilt exactly.

mod support;

use millpond_trace::{Action, Trace};
use proptest::prelude::*;
use std::collections::BTreeMap;
use support::*;

const SEGMENT: u64 = 2 << 20;
const SLOT: u64 = SEGMENT / 8;
const BASE: u64 = 0x7f00_0000_0000;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Block {
    requested: u64,
    stream: u64,
    pending: bool,
}

/// Segments of eight equal slots, with first fit. A segment is released on request if it is empty.
#[derive(Clone, Default)]
struct Naive {
    segments: Vec<u64>,
    blocks: BTreeMap<u64, Block>,
    history: Vec<Py>,
    next: u64,
}

impl Naive {
    fn log(&mut self, action: &str, address: u64, bytes: u64, stream: u64) {
        let time = self.history.len() as u64 + 1;
        self.history.push(entry(action, address, bytes, stream, time));
    }

    fn alloc(&mut self, requested: u64, stream: u64) {
        let slots = self
            .segments
            .iter()
            .flat_map(|&start| (0..8).map(move |slot| start + slot * SLOT));
        let free = slots
            .into_iter()
            .find(|address| !self.blocks.contains_key(address));
        let address = free.unwrap_or_else(|| {
            // Addresses are reused, as by the driver.
            let start = BASE + (self.next % 5) * SEGMENT;
            let start = if self.segments.contains(&start) {
                BASE + (5 + self.next) * SEGMENT
            } else {
                start
            };
            self.next += 1;
            self.segments.push(start);
            self.log("segment_alloc", start, SEGMENT, stream);
            start
        });
        self.blocks.insert(
            address,
            Block {
                requested,
                stream,
                pending: false,
            },
        );
        self.log("alloc", address, requested, stream);
    }

    fn pick(&self, at: usize, pending: bool) -> Option<(u64, Block)> {
        let all: Vec<_> = self
            .blocks
            .iter()
            .filter(|(_, block)| block.pending == pending)
            .collect();
        (!all.is_empty()).then(|| (*all[at % all.len()].0, *all[at % all.len()].1))
    }

    fn step(&mut self, (kind, number): (u8, usize)) {
        match kind % 8 {
            0..=3 => self.alloc(1 + number as u64 % SLOT, number as u64 % 3),
            4 | 5 => {
                if let Some((address, block)) = self.pick(number, false) {
                    self.log("free_requested", address, block.requested, block.stream);
                    if kind % 8 == 4 {
                        self.log("free_completed", address, block.requested, block.stream);
                        self.blocks.remove(&address);
                    } else {
                        self.blocks.insert(
                            address,
                            Block {
                                pending: true,
                                ..block
                            },
                        );
                    }
                }
            }
            6 => {
                if let Some((address, block)) = self.pick(number, true) {
                    self.log("free_completed", address, block.requested, block.stream);
                    self.blocks.remove(&address);
                }
            }
            _ => {
                let empty = |start: &u64| self.blocks.range(*start..*start + SEGMENT).next().is_none();
                if let Some(at) = self.segments.iter().position(empty) {
                    let start = self.segments.swap_remove(at);
                    self.log("segment_free", start, SEGMENT, 0);
                }
            }
        }
    }

    fn segments(&self) -> Vec<Py> {
        let each = |&start: &u64| {
            let blocks = (0..8).map(|slot| {
                let address = start + slot * SLOT;
                match self.blocks.get(&address) {
                    None => block(address, SLOT, 0, "inactive"),
                    Some(held) => {
                        let state = if held.pending {
                            "active_pending_free"
                        } else {
                            "active_allocated"
                        };
                        block(address, SLOT, held.requested, state)
                    }
                }
            });
            segment(start, SEGMENT, "small", blocks.collect())
        };
        self.segments.iter().map(each).collect()
    }
}

/// Returns the live blocks after all events of a trace, by address.
fn at_end(trace: &Trace) -> BTreeMap<u64, (u64, bool)> {
    let mut live = BTreeMap::new();
    for block in &trace.initial_blocks {
        live.insert(block.address, (block.requested, block.pending));
    }
    for event in &trace.events {
        match event.action {
            Action::Alloc => assert!(live.insert(event.address, (event.bytes, false)).is_none()),
            Action::Free | Action::FreeCompleted => assert!(live.remove(&event.address).is_some()),
            Action::FreeRequested => {
                assert!(live.insert(event.address, (event.bytes, true)).is_some());
            }
            _ => {}
        }
    }
    live
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_state_before_any_window_of_any_program_is_rebuilt(
        before in prop::collection::vec((any::<u8>(), 0..1_000_000usize), 0..60),
        after in prop::collection::vec((any::<u8>(), 0..1_000_000usize), 1..60),
    ) {
        let mut program = Naive::default();
        for step in before {
            program.step(step);
        }
        let start = program.clone();
        for step in after {
            program.step(step);
        }
        let window = program.history[start.history.len()..].to_vec();
        prop_assume!(!window.is_empty());
        let recording = read_py(&snapshot(program.segments(), window));
        let trace = &recording.traces[0];

        let found: BTreeMap<_, _> =
            trace.initial_blocks.iter().map(|block| (block.address, (block.requested, block.pending))).collect();
        let expected: BTreeMap<_, _> =
            start.blocks.iter().map(|(&address, block)| (address, (block.requested, block.pending))).collect();
        prop_assert_eq!(found, expected);
        let mut segments = start.segments;
        segments.sort_unstable();
        prop_assert_eq!(trace.initial_segments.iter().map(|held| held.address).collect::<Vec<_>>(), segments);
        let ends: BTreeMap<_, _> =
            program.blocks.iter().map(|(&address, block)| (address, (block.requested, block.pending))).collect();
        prop_assert_eq!(at_end(trace), ends);
        let odd = trace.cautions.iter().any(|caution| !matches!(caution, millpond_trace::Caution::RingWrapped { .. }));
        prop_assert!(!odd, "{:?}", trace.cautions);
    }
}
