//! Programs that repeat a step, exactly or nearly, under `planned`.

mod support;

use millpond_engine::plan::{Plan, Planner, Step, solve};
use millpond_engine::{Engine, MillpondConf, Policy, Request, Settings, Simulated, Stream, policies};
use proptest::prelude::*;
use support::driver::{Driver, request};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// One allocation of a step: bytes, stream, and number of allocations until its free.
type Slot = (u64, u32, usize);

/// A deviation from the step in one round.
#[derive(Clone, Debug)]
enum Odd {
    /// An additional block, held for this many allocations.
    More(u64, u32, usize),
    /// A missing block.
    Less,
    /// A block that is held for longer.
    Late(usize),
    /// A block that is freed after another stream used it.
    Used(u32),
    Release,
    Mark,
}

/// Runs a step repeatedly. Returns the addresses of each round.
fn repeat(driver: &mut Driver, step: &[Slot], rounds: usize, odd: &[(usize, usize, Odd)]) -> Vec<Vec<u64>> {
    let mut ends: Vec<(usize, u64, Option<u32>)> = Vec::new();
    let mut now = 0;
    let mut all = Vec::new();
    for round in 0..rounds {
        let mut addresses = Vec::new();
        for (at, &(bytes, stream, life)) in step.iter().enumerate() {
            let here = odd.iter().filter(|(r, a, _)| *r == round && *a == at);
            let (mut less, mut late, mut used) = (false, 0, None);
            for (.., odd) in here {
                match odd {
                    Odd::More(bytes, stream, life) => {
                        if let Ok(address) = driver.allocate(request(*bytes, *stream, 0)) {
                            ends.push((now + life, address, None));
                        }
                    }
                    Odd::Less => less = true,
                    Odd::Late(by) => late = *by,
                    Odd::Used(stream) => used = Some(*stream),
                    Odd::Release => driver.release(),
                    Odd::Mark => drop(driver.step(&support::program::Op::Step)),
                }
            }
            if !less && let Ok(address) = driver.allocate(request(bytes, stream, 0)) {
                addresses.push(address);
                ends.push((now + life + late, address, used));
            }
            now += 1;
            let mut done: Vec<_> = ends.extract_if(.., |(end, ..)| *end <= now).collect();
            done.sort_unstable();
            for (_, address, used) in done {
                let index = driver
                    .live
                    .iter()
                    .position(|b| b.address() == address)
                    .expect("a live block");
                driver.free(index, used.as_slice());
            }
        }
        all.push(addresses);
    }
    all
}

/// A forward and a backward pass. The first blocks are freed last, with scratch blocks in between.
fn training(layers: usize) -> Vec<Slot> {
    let half = 2 * layers;
    let forward = (0..layers).flat_map(|layer| {
        let kept = (3 * MIB + layer as u64 % 3 * 512 * KIB, 0, 2 * half - 4 * layer);
        [kept, (700 * KIB, 0, 1)]
    });
    let backward = (0..layers).flat_map(|_| [(2 * MIB, 0, 2), (100 * KIB, 0, 1)]);
    forward.chain(backward).collect()
}

#[test]
fn a_repeated_step_needs_no_driver_call_and_little_extra_memory() {
    let mut driver = Driver::new("planned", Simulated::new());
    let weights: Vec<u64> = (0..9)
        .map(|_| driver.allocate(request(5 * MIB, 0, 0)).expect("memory"))
        .collect();
    let step = training(40);
    repeat(&mut driver, &step, 4, &[]);
    let before = *driver.engine.meter();
    let addresses = repeat(&mut driver, &step, 4, &[]);
    assert_eq!(
        *driver.engine.meter(),
        before,
        "a call in a step that was planned"
    );
    assert!(
        addresses.windows(2).all(|pair| pair[0] == pair[1]),
        "not the same places in each step"
    );
    let stats = driver.engine.stats();
    let waste = stats.reserved.peak - stats.allocated.peak;
    assert!(waste <= 5 * 2 * MIB, "{waste} bytes of {}", stats.allocated.peak);
    assert_eq!(driver.live.len(), weights.len());
}

/// Returns a step whose large blocks have `percent` of the bytes, as with a batch of another length.
fn scaled(step: &[Slot], percent: u64) -> Vec<Slot> {
    let scaled = |bytes: u64| if bytes > MIB { bytes / 100 * percent } else { bytes };
    step.iter()
        .map(|&(bytes, stream, life)| (scaled(bytes), stream, life))
        .collect()
}

/// Allocates a block that outlives all steps, and runs steps of other sizes until their plan has started.
fn repeat_scaled(driver: &mut Driver, step: &[Slot]) {
    driver.allocate(request(9 * MIB, 0, 0)).expect("memory");
    for percent in [100, 60, 80, 100, 60, 90] {
        repeat(driver, &scaled(step, percent), 1, &[]);
    }
}

#[test]
fn steps_of_smaller_sizes_share_one_plan() {
    let step = training(40);
    let mut driver = Driver::new("planned", Simulated::new());
    repeat_scaled(&mut driver, &step);
    let before = *driver.engine.meter();
    let first = repeat(&mut driver, &step, 1, &[]);
    for percent in [50, 97, 61, 100] {
        let addresses = repeat(&mut driver, &scaled(&step, percent), 1, &[]);
        assert_eq!(addresses, first, "{percent} %");
    }
    assert_eq!(*driver.engine.meter(), before);
}

#[test]
fn a_request_that_no_device_can_serve_changes_no_plan() {
    let step = training(40);
    let mut driver = Driver::new("planned", Simulated::new());
    repeat_scaled(&mut driver, &step);
    let first = repeat(&mut driver, &step, 1, &[]);
    for bytes in [1 << 47, u64::MAX] {
        let refused = driver.engine.allocate(Request::new(bytes, Stream(0)));
        assert!(refused.is_err());
    }
    let before = *driver.engine.meter();
    for _ in 0..3 {
        assert_eq!(repeat(&mut driver, &step, 1, &[]), first);
    }
    assert_eq!(*driver.engine.meter(), before);
}

#[test]
fn a_step_that_has_grown_gets_a_larger_plan() {
    let step = training(40);
    let mut driver = Driver::new("planned", Simulated::new());
    repeat_scaled(&mut driver, &step);
    // This is the second plan for a larger step, so one more step passes before it is solved.
    let larger = scaled(&step, 105);
    repeat(&mut driver, &larger, 3, &[]);
    let addresses = repeat(&mut driver, &larger, 1, &[]);
    let before = *driver.engine.meter();
    for percent in [100, 105, 40] {
        assert_eq!(repeat(&mut driver, &scaled(&step, percent), 1, &[]), addresses);
    }
    assert_eq!(*driver.engine.meter(), before);
    let stats = driver.engine.stats();
    let waste = stats.reserved.peak - stats.allocated.peak;
    assert!(waste <= 3 * 2 * MIB, "{waste} bytes of {}", stats.allocated.peak);
}

#[test]
fn a_marked_step_is_planned_at_once() {
    let mut driver = Driver::new("planned", Simulated::new());
    let step: Vec<Slot> = (0..6)
        .map(|n| (n * MIB + KIB, 0, if n < 5 { 2 } else { 1 }))
        .collect();
    let marks: Vec<_> = (0..9).map(|round| (round, 0, Odd::Mark)).collect();
    let addresses = repeat(&mut driver, &step, 9, &marks);
    assert_eq!(addresses[4], addresses[5]);
    // A step of six allocations is too short to be found without marks.
    let before = *driver.engine.meter();
    repeat(&mut driver, &step, 2, &[]);
    assert_eq!(*driver.engine.meter(), before);
}

#[test]
fn the_plan_continues_after_a_step_that_deviates() {
    let mut driver = Driver::new("planned", Simulated::new());
    let step = training(40);
    let planned = repeat(&mut driver, &step, 5, &[]).pop().expect("five rounds");
    repeat(
        &mut driver,
        &step,
        1,
        &[(0, 20, Odd::More(4 * KIB, 0, 3)), (0, 50, Odd::Less)],
    );
    let after = repeat(&mut driver, &step, 2, &[]);
    assert_eq!(after[1], planned);
}

#[test]
fn a_compaction_also_returns_the_plans_memory() {
    let mut driver = Driver::new("planned", Simulated::new());
    let weights = driver.allocate(request(5 * MIB, 0, 0)).expect("memory");
    let step = training(40);
    repeat(&mut driver, &step, 6, &[]);
    let told = driver.compact();
    assert_eq!(driver.live[0].address(), weights);
    assert!(
        told.reserved_before > 100 * MIB && told.returned() > 100 * MIB,
        "{told}"
    );
    assert!(told.shared < 2 * 2 * MIB && told.kept == 0, "{told}");
    repeat(&mut driver, &step, 6, &[]);
    let calls = *driver.engine.meter();
    repeat(&mut driver, &step, 2, &[]);
    assert_eq!(*driver.engine.meter(), calls, "it is followed again");
}

#[test]
fn an_unused_plan_is_dropped_after_the_decay_time() {
    let mut driver = Driver::new("planned", Simulated::new());
    let step = training(40);
    repeat(&mut driver, &step, 6, &[]);
    let reserved = |driver: &Driver| driver.engine.stats().reserved.current;
    let before = reserved(&driver);
    // Every round uses the plan, so the plan is kept.
    let calls = *driver.engine.meter();
    for _ in 0..9 {
        driver.tick(60);
        repeat(&mut driver, &step, 1, &[]);
    }
    assert_eq!((reserved(&driver), *driver.engine.meter()), (before, calls));
    // By default memory is kept for 64 ticks. Then the plan is dropped, and later its unused memory is returned.
    for _ in 0..6 {
        driver.tick(60);
    }
    assert_eq!(reserved(&driver), driver.engine.stats().allocated.current);
    repeat(&mut driver, &step, 6, &[]);
    let calls = *driver.engine.meter();
    repeat(&mut driver, &step, 2, &[]);
    assert_eq!(*driver.engine.meter(), calls, "it is followed again");
}

#[test]
fn a_program_that_changes_reuses_the_plans_memory() {
    let mut driver = Driver::new("planned", Simulated::new());
    repeat(&mut driver, &training(40), 5, &[]);
    let peak = driver.engine.stats().reserved.peak;
    // The same total size in different blocks.
    let other: Vec<Slot> = (0..60).map(|n| (9 * MIB + n * 256, 0, 8)).collect();
    repeat(&mut driver, &other, 1, &[]);
    assert!(
        driver.engine.stats().reserved.peak <= peak + 4 * MIB,
        "memory grew beside a plan's free memory"
    );
    driver.free_all();
    driver.release();
    assert_eq!(driver.engine.source().held, 0);
}

#[test]
fn a_plan_is_dropped_when_memory_is_short() {
    let step = training(40);
    let mut driver = Driver::new("planned", Simulated::new().with_capacity(Some(160 * MIB)));
    repeat(&mut driver, &step, 5, &[]);
    driver
        .allocate(request(150 * MIB, 0, 0))
        .expect("nothing else lives");
}

/// Converts a program's step to a step of a plan.
fn step_of(step: &[Slot]) -> Step {
    let slots = step
        .iter()
        .map(|&(bytes, stream, life)| millpond_engine::plan::Slot {
            least: bytes.next_multiple_of(256),
            bytes: bytes.next_multiple_of(256),
            stream: Stream(stream),
            life: life as u32,
        });
    Step {
        slots: slots.collect(),
    }
}

#[test]
fn a_saved_plan_is_followed_from_the_second_step_on() {
    let step = training(40);
    let saved = solve(step_of(&step)).to_text();
    let plan = Plan::from_text(&saved).expect("a plan");
    let policy = policies::Planned::new(&MillpondConf::default()).with_plan(plan);
    let mut driver = Driver::with_policy(Box::new(policy), Simulated::new());
    let addresses = repeat(&mut driver, &step, 4, &[]);
    assert_eq!(addresses[1], addresses[2], "followed from the second step on");
    assert_eq!(addresses[2], addresses[3]);
}

/// Creates a driver of `planned` with a plan. Solving another plan is an error.
fn with_plan(plan: Plan) -> Driver {
    struct Unasked;
    impl Planner for Unasked {
        fn start(&mut self, step: Step) {
            panic!("a step of {} is to be solved, which was given", step.period());
        }
        fn finish(&mut self) -> Option<Plan> {
            None
        }
    }
    let mut policy = policies::Planned::new(&MillpondConf::default()).with_plan(plan);
    policy.set_planner(Box::new(Unasked));
    Driver::with_policy(Box::new(policy), Simulated::new())
}

#[test]
fn a_saved_plan_waits_for_its_whole_step() {
    let step = training(150);
    let mut driver = with_plan(solve(step_of(&step)));
    // The end of the step occurs on its own before the plan can start.
    repeat(&mut driver, &step[step.len() - 300..], 1, &[]);
    let addresses = repeat(&mut driver, &step, 5, &[]);
    assert!(addresses[1..].windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn a_saved_plan_of_varying_sizes_is_followed_after_its_step_is_found() {
    let step = training(40);
    let mut both = step_of(&step);
    for (slot, smaller) in both.slots.iter_mut().zip(step_of(&scaled(&step, 50)).slots) {
        slot.least = smaller.bytes;
    }
    let mut driver = with_plan(Plan::from_text(&solve(both).to_text()).expect("a plan"));
    repeat_scaled(&mut driver, &step);
    let before = *driver.engine.meter();
    let addresses = repeat(&mut driver, &step, 1, &[]);
    assert_eq!(repeat(&mut driver, &scaled(&step, 51), 1, &[]), addresses);
    assert_eq!(*driver.engine.meter(), before);
}

/// A planner that never solves a plan.
struct Idle;

impl Planner for Idle {
    fn start(&mut self, _step: Step) {}
    fn finish(&mut self) -> Option<Plan> {
        None
    }
}

#[test]
fn requests_are_served_without_a_plan() {
    let mut policy = policies::build("planned", &Settings::default()).expect("a policy");
    policy.set_planner(Box::new(Idle));
    let mut engine = Engine::new(policy, Simulated::new());
    for _ in 0..20 {
        let blocks: Vec<_> = training(40)
            .iter()
            .map(|slot| {
                engine
                    .allocate(Request::new(slot.0, Stream(slot.1)))
                    .expect("memory")
            })
            .collect();
        for block in blocks {
            engine.free(block, &[]);
        }
    }
}

fn slots() -> impl Strategy<Value = Vec<Slot>> {
    let slot = (8u32..23, 0u64..200, 0u32..3, 1usize..30);
    let slot = slot.prop_map(|(log, more, stream, life)| ((1 << log) + more * 256, stream, life));
    proptest::collection::vec(slot, 17..40)
}

fn odd() -> impl Strategy<Value = Vec<(usize, usize, Odd)>> {
    let kind = prop_oneof![
        4 => (8u32..22, 0u32..3, 1usize..60).prop_map(|(log, stream, life)| Odd::More(1 << log, stream, life)),
        4 => Just(Odd::Less),
        4 => (1usize..80).prop_map(Odd::Late),
        3 => (0u32..3).prop_map(Odd::Used),
        1 => Just(Odd::Release),
        1 => Just(Odd::Mark),
    ];
    proptest::collection::vec((10usize..30, 0usize..40, kind), 0..25)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// The driver compares every result with its own records: no overlap, no missing wait, no lost byte.
    #[test]
    fn deviations_from_the_plan_cause_no_overlap_and_lose_no_byte(step in slots(), odd in odd(), hold in any::<bool>()) {
        let device = if hold { Simulated::new().hold_events() } else { Simulated::new() };
        let mut driver = Driver::new("planned", device);
        driver.allocate(request(3 * MIB, 0, 0)).expect("memory");
        repeat(&mut driver, &step, 32, &odd);
        driver.step(&support::program::Op::Complete);
        driver.free_all();
        driver.release();
        prop_assert_eq!(driver.engine.source().held, 0);
    }

    #[test]
    fn deviations_from_the_plan_cause_no_overlap_on_a_small_device(step in slots(), odd in odd(), mib in 4u64..40) {
        let mut driver = Driver::new("planned", Simulated::new().with_capacity(Some(mib * MIB)));
        repeat(&mut driver, &step, 24, &odd);
    }
}
