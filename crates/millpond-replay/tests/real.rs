//! Replays on sources that are not simulated. The source here has real streams whose work takes time.

mod support;

use millpond_engine::{Calls, Event, Range, Segment, Settings, Simulated, Source, SourceError, policies};
use millpond_replay::{Observer, Paced, Program, Real, Run, Selection, run};
use millpond_trace::{Action, Trace};
use proptest::prelude::*;
use std::cell::RefCell;
use support::{event, trace};

const MIB: u64 = 1 << 20;

/// A device whose events complete only after enough queries, or after a wait.
struct Late {
    memory: Simulated,
    patience: u32,
    /// Events that have not completed, and how often each was queried.
    waiting: RefCell<Vec<(Event, u32)>>,
    /// Events and the streams they were recorded on.
    recorded: Vec<(Event, u32)>,
    waits: u64,
    streams: u32,
}

impl Late {
    fn new(patience: u32) -> Self {
        Self {
            memory: Simulated::new(),
            patience,
            waiting: RefCell::default(),
            recorded: Vec::new(),
            waits: 0,
            streams: 100,
        }
    }

    /// Wraps the device for a replay, which may use `bytes` of it.
    fn real(self, bytes: Option<u64>) -> Real<Self> {
        let meet = |source: &mut Self, _: u32| {
            source.streams += 1;
            source.streams
        };
        Real::new(self, bytes, Box::new(meet))
    }
}

impl Source for Late {
    fn page_bytes(&self) -> u64 {
        self.memory.page_bytes()
    }
    fn is_paged(&self) -> bool {
        self.memory.is_paged()
    }
    fn capacity(&self) -> Option<u64> {
        // A policy that saw this would behave differently than in the simulation.
        Some(1 << 40)
    }
    fn free_bytes(&self) -> Option<u64> {
        Some(1 << 40)
    }
    fn take(&mut self, bytes: u64) -> Result<Segment, SourceError> {
        self.memory.take(bytes)
    }
    fn give(&mut self, segment: Segment) {
        self.memory.give(segment);
    }
    fn reserve(&mut self, bytes: u64) -> Result<Range, SourceError> {
        self.memory.reserve(bytes)
    }
    fn commit(
        &mut self,
        range: &Range,
        offset: u64,
        bytes: u64,
        handle_bytes: u64,
    ) -> Result<(), SourceError> {
        self.memory.commit(range, offset, bytes, handle_bytes)
    }
    fn decommit(&mut self, range: &Range, offset: u64, bytes: u64) -> u64 {
        self.memory.decommit(range, offset, bytes)
    }
    fn move_pages(&mut self, from: (&Range, u64), to: (&Range, u64), bytes: u64) -> Result<u64, SourceError> {
        self.memory.move_pages(from, to, bytes)
    }
    fn can_alias(&self) -> bool {
        self.memory.can_alias()
    }
    fn alias(&mut self, parts: &[(&Range, u64, u64)], to: (&Range, u64)) -> Result<u64, SourceError> {
        self.memory.alias(parts, to)
    }
    fn unmap(&mut self, address: u64, bytes: u64) -> u64 {
        self.memory.unmap(address, bytes)
    }
    fn release(&mut self, range: Range) {
        self.memory.release(range);
    }
    fn record_event(&mut self, stream: u32) -> Event {
        let event = self.memory.record_event(stream);
        self.waiting.borrow_mut().push((event, 0));
        self.recorded.push((event, stream));
        event
    }
    fn is_complete(&self, event: Event) -> bool {
        let mut waiting = self.waiting.borrow_mut();
        let Some(at) = waiting.iter().position(|(waits, _)| *waits == event) else {
            return true;
        };
        waiting[at].1 += 1;
        let passed = waiting[at].1 > self.patience;
        if passed {
            waiting.remove(at);
        }
        passed
    }
    fn wait_event(&mut self, stream: u32, _: Event) {
        assert!(stream > 100, "{stream} is not a stream of this device");
    }
    fn synchronize(&mut self) {
        self.waits += 1;
        self.waiting.borrow_mut().clear();
    }
}

#[test]
fn an_event_completes_at_the_recorded_call_and_not_before_the_device() {
    let mut real = Late::new(u32::MAX).real(None);
    real.set_holding(true);
    let held = real.record_event(7);
    real.set_holding(false);
    assert_eq!(real.last_event(), Some(held));
    let free = real.record_event(7);
    assert!(!real.is_complete(held) && !real.is_complete(free));
    real.complete(held);
    // The device was behind. The replay waited for it, and all events completed with it.
    assert_eq!(real.source().waits, 1);
    assert!(real.is_complete(held) && real.is_complete(free));

    let mut early = Late::new(0).real(None);
    early.set_holding(true);
    let held = early.record_event(7);
    assert!(early.source().is_complete(held), "the device has passed it");
    assert!(!early.is_complete(held), "the recording has not");
    early.complete(held);
    assert!(early.is_complete(held));
    assert_eq!(early.source().waits, 0, "there was nothing to wait for");
    let next = early.record_event(7);
    assert!(!early.is_complete(next));
    early.synchronize();
    assert!(early.is_complete(next));
}

#[test]
fn each_recorded_stream_gets_its_own_stream_of_the_device() {
    let mut real = Late::new(0).real(None);
    let first = real.record_event(0);
    real.wait_event(65_536, first);
    real.record_event(65_536);
    real.record_event(0);
    assert_eq!(real.streams(), 2);
    let streams: Vec<u32> = real.source().recorded.iter().map(|(_, stream)| *stream).collect();
    assert_eq!(streams, [101, 102, 101]);
}

#[test]
fn the_policy_sees_its_limit_and_not_the_memory_of_the_device() {
    let unlimited = Late::new(0).real(None);
    assert_eq!((unlimited.capacity(), unlimited.free_bytes()), (None, None));
    let mut limited = Late::new(0).real(Some(6 * MIB));
    let held = limited.take(4 * MIB).expect("fits");
    assert_eq!(
        (limited.capacity(), limited.free_bytes()),
        (Some(6 * MIB), Some(2 * MIB))
    );
    assert!(limited.take(4 * MIB).expect_err("too much").is_out_of_memory());
    assert_eq!(limited.counts().held().peak, 4 * MIB, "the device was not asked");
    limited.give(held);
    assert_eq!(limited.free_bytes(), Some(6 * MIB));
}

/// A call: the bytes to allocate, or `None` to free a held block; the index of this block, or the stream; and
/// whether another stream still uses the block.
type Call = (Option<u64>, usize, bool);

/// Returns a recording of these calls. A block that is freed while another stream uses it completes two calls
/// later.
fn recording(calls: &[Call]) -> Trace {
    let mut made = trace(3);
    let (mut held, mut used) = (Vec::new(), Vec::new());
    for (at, (bytes, which, elsewhere)) in calls.iter().enumerate() {
        if let Some(bytes) = bytes {
            let (allocation, stream) = (made.allocations, (which % 3) as u16);
            made.events
                .push(event(Action::Alloc, allocation, *bytes, 0, stream));
            held.push((allocation, *bytes, stream));
            made.allocations += 1;
        } else if !held.is_empty() {
            let (allocation, bytes, stream) = held.swap_remove(which % held.len());
            let action = if *elsewhere {
                used.push((at + 2, allocation, bytes, stream));
                Action::FreeRequested
            } else {
                Action::Free
            };
            made.events.push(event(action, allocation, bytes, 0, stream));
        }
        while used.first().is_some_and(|(when, ..)| *when <= at) {
            let (_, allocation, bytes, stream) = used.remove(0);
            made.events
                .push(event(Action::FreeCompleted, allocation, bytes, 0, stream));
        }
    }
    made
}

fn program() -> impl Strategy<Value = Program> {
    let size = (12u32..26, 0u64..1 << 25).prop_map(|(log, low)| (1u64 << log) + (low & ((1 << log) - 1)));
    let call = (
        proptest::option::weighted(0.55, size),
        0usize..1000,
        any::<bool>(),
    );
    let calls = proptest::collection::vec(call, 1..150);
    calls.prop_filter_map("allocates", |calls| {
        Program::new(&recording(&calls), Selection::default()).ok()
    })
}

/// Returns everything except the elapsed time. If pages were mapped at a second address, the device determines when their
/// old mappings end, and how often the host waits for this.
fn account(run: &Run) -> String {
    let Run {
        stats,
        meter,
        stop,
        peak_op,
        calls,
        ..
    } = run;
    if meter.stale_mappings.peak > 0 {
        let driver_calls = Calls {
            unmap: 0,
            ..meter.calls
        };
        let moved = meter.moved_bytes;
        let mut stats = *stats;
        stats.stalls = 0;
        return format!("{stats:?} {driver_calls:?} {moved} {stop:?} {peak_op} {calls}");
    }
    format!("{stats:?} {meter:?} {stop:?} {peak_op} {calls}")
}

proptest! {
    /// A device that is late, has its own streams and reports more about its memory gives the same results as
    /// the simulation, call by call, with and without a limit.
    #[test]
    fn a_device_gives_the_same_results_as_the_simulation(
        program in program(), patience in 0u32..3, mib in proptest::option::of(4u64..400),
    ) {
        for name in policies::names() {
            let build = || policies::build(name, &Settings::default()).expect("known");
            let bytes = mib.map(|mib| mib * MIB);
            let simulated = run(&program, build(), Simulated::new().with_capacity(bytes), &mut ());
            let mut real = Late::new(patience).real(bytes);
            let there = run(&program, build(), &mut real, &mut ());
            prop_assert!(there.stats.stalls >= simulated.stats.stalls, "{}", name);
            prop_assert_eq!(account(&there), account(&simulated), "{}", name);
            prop_assert_eq!(real.counts().held().peak, simulated.stats.reserved.peak);
        }
    }
}

#[test]
fn the_peak_is_at_the_call_that_reached_it() {
    struct Most {
        seen: usize,
        most: (u64, usize),
    }
    impl<S: Source> Observer<S> for Most {
        fn stepped(&mut self, _: &millpond_replay::Op, engine: &mut millpond_engine::Engine<S>) {
            let reserved = engine.stats().reserved.peak;
            if reserved > self.most.0 {
                self.most = (reserved, self.seen);
            }
            self.seen += 1;
        }
    }
    let calls = [
        (Some(5 * MIB), 0, false),
        (Some(50 * MIB), 0, false),
        (None, 0, false),
        (Some(3 * MIB), 0, false),
    ];
    let program = Program::new(&recording(&calls), Selection::default()).expect("allocates");
    let policy = policies::build("torch-native", &Settings::default()).expect("known");
    let mut most = Most {
        seen: 0,
        most: (0, 0),
    };
    let outcome = run(&program, policy, Simulated::new(), &mut most);
    assert_eq!((outcome.stats.reserved.peak, outcome.peak_op), most.most);
    assert_eq!(outcome.peak_op, 1);
}
