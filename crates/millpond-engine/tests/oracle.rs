//! Random programs. Compares every address with a naive model if there is one, and every policy with the driver's own
//! counts.

mod support;

use millpond_engine::{
    Amount, Fault, MillpondConf, RetainConf, RoundupDivisions, Settings, Simulated, TorchConf, policies,
};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::cell::Cell;
use support::driver::Driver;
use support::naive::device::Device;
use support::naive::rmm_pool::NaiveRmm;
use support::naive::torch_expandable::NaiveExpandable;
use support::naive::torch_native::NaiveTorch;
use support::naive::{Naive, run};
use support::program::{Op, program};

/// Devices from 4 MiB to 32 GiB, and without a limit.
fn capacity() -> impl Strategy<Value = Option<u64>> {
    proptest::option::weighted(
        0.7,
        (22u32..35, 0u64..1 << 20).prop_map(|(log, more)| (1 << log) + more),
    )
}

fn torch_conf() -> impl Strategy<Value = TorchConf> {
    let max_split = proptest::option::of((20u64..200).prop_map(|mib| mib << 20));
    let divisions = prop_oneof![Just(1u64), Just(2), Just(4), Just(8)];
    (max_split, divisions, 20u64..60).prop_map(|(max_split_size, divisions, rounding)| TorchConf {
        max_split_size,
        roundup_power2_divisions: RoundupDivisions::uniform(divisions),
        max_non_split_rounding: rounding << 20,
        ..TorchConf::default()
    })
}

/// Settings that return memory at nearly every tick and limit the share of the device.
fn retain_conf() -> impl Strategy<Value = RetainConf> {
    let amount = || {
        prop_oneof![
            (0u64..200).prop_map(|mib| Amount::Bytes(mib << 20)),
            (0u64..150).prop_map(Amount::Percent),
        ]
    };
    let share = prop_oneof![Just(1_000_000), 1u64..1_000_000];
    (0u64..4, amount(), proptest::option::of(amount()), share).prop_map(
        |(decay, low_water, high_water, memory_millionths)| RetainConf {
            decay,
            low_water,
            high_water,
            memory_millionths,
            ..RetainConf::default()
        },
    )
}

/// Settings that move pages without a limit.
fn millpond_conf() -> impl Strategy<Value = MillpondConf> {
    let pages = (1u64..9).prop_map(|pages| pages << 21);
    (pages, 1u64..200, 0u64..3, any::<bool>(), retain_conf()).prop_map(
        |(handle_bytes, handle_share, slack_permille, relocate, retain)| MillpondConf {
            handle_bytes,
            relocate,
            handle_share,
            slack_permille,
            moved_permille: 1_000_000,
            retain,
            ..MillpondConf::default()
        },
    )
}

fn agree(policy: &str, torch: &TorchConf, capacity: Option<u64>, program: &[Op], model: &mut dyn Naive) {
    let device = Simulated::new().with_capacity(capacity);
    agree_on(device, policy, torch, program, model);
}

fn agree_on(device: Simulated, policy: &str, torch: &TorchConf, program: &[Op], model: &mut dyn Naive) {
    let settings = Settings {
        torch: torch.clone(),
        ..Settings::default()
    };
    let answers = Driver::with(policy, &settings, device).run(program);
    let expected = run(model, program);
    for (call, (answer, expected)) in answers.into_iter().zip(expected).enumerate() {
        assert_eq!(answer, expected, "call {call}, {:?}", program[call]);
    }
}

fn faults() -> impl Strategy<Value = Vec<Fault>> {
    let one = prop_oneof![
        (0u64..60).prop_map(Fault::OutOfMemoryAt),
        (0u64..80).prop_map(|n| Fault::DriverErrorAt(n, 719)),
    ];
    proptest::collection::vec(one, 0..4)
}

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases(160))]

    #[test]
    fn torch_native_places_like_its_model(conf in torch_conf(), capacity in capacity(), program in program(200)) {
        let mut model = NaiveTorch::new(&conf, Device::new(capacity));
        agree("torch-native", &conf, capacity, &program, &mut model);
    }

    #[test]
    fn torch_expandable_places_like_its_model(
        capacity in capacity(),
        others in proptest::option::of(0u64..1 << 30),
        program in program(200),
    ) {
        let conf = TorchConf::default();
        // The size of the device is unknown, or other programs hold a part of it.
        let bytes = capacity.zip(others).map(|(capacity, others)| capacity + others);
        let device = Simulated::new().with_capacity(capacity).with_device_bytes(bytes);
        let mut model = NaiveExpandable::new(&conf, Device::new(capacity), bytes);
        agree_on(device, "torch-expandable", &conf, &program, &mut model);
    }

    #[test]
    fn rmm_pool_places_like_its_model(capacity in capacity(), program in program(200)) {
        let mut model = NaiveRmm::new(Device::new(capacity));
        agree("rmm-pool", &TorchConf::default(), capacity, &program, &mut model);
    }
}

proptest! {
    #![proptest_config(cases(48))]

    /// Blocks never overlap, memory changes streams only in order, and every count is exact.
    #[test]
    fn no_program_breaks_a_policy(capacity in capacity(), faults in faults(), hold in any::<bool>(), program in program(160)) {
        for policy in policies::names() {
            let device = Simulated::new().with_capacity(capacity).with_faults(faults.clone());
            let device = if hold { device.hold_events() } else { device };
            let mut driver = Driver::new(policy, device);
            driver.run(&program);
            driver.free_all();
            driver.release();
            assert_eq!(driver.engine.stats().active.current, 0, "{policy}");
        }
    }

    /// Runs random programs with settings under which `millpond` moves as much as possible and returns memory early.
    #[test]
    fn no_program_breaks_a_policy_that_moves_pages(conf in millpond_conf(), capacity in capacity(), faults in faults(), program in program(400)) {
        let settings = Settings { millpond: conf, ..Settings::default() };
        for policy in ["millpond", "planned"] {
            let device = Simulated::new().with_capacity(capacity).with_faults(faults.clone());
            let mut driver = Driver::with(policy, &settings, device);
            driver.run(&program);
            driver.free_all();
            driver.release();
            assert_eq!(driver.engine.stats().active.current, 0, "{policy}");
            let peak = driver.engine.source().peak_held;
            let limit = settings.millpond.retain.limit(capacity);
            assert!(limit.is_none_or(|limit| peak <= limit), "{policy}: {peak} of {limit:?}");
        }
    }
}

/// Programs with large handles on a device that is nearly full. Blocks keep their addresses and contents while the pages
/// under them are replaced.
#[test]
fn no_program_breaks_the_replacement_of_pages() {
    let conf = MillpondConf::parse("handle:16MiB,handle-share:1,moved:1000000,relocate:on").expect("conf");
    let settings = Settings {
        millpond: conf,
        ..Settings::default()
    };
    let crowded = program(300).prop_map(|mut program| {
        for op in &mut program {
            if let Op::Alloc { bytes, .. } = op {
                *bytes %= 24 << 20;
            }
        }
        program
    });
    let relocated = Cell::new(0);
    let mut runner = TestRunner::new(cases(160));
    let cases = (24u64..120, faults(), any::<bool>(), crowded);
    let outcome = runner.run(&cases, |(mib, faults, hold, program)| {
        let device = Simulated::new()
            .with_capacity(Some(mib << 20))
            .with_faults(faults);
        let device = if hold { device.hold_events() } else { device };
        let mut driver = Driver::with("millpond", &settings, device);
        driver.run(&program);
        relocated.set(relocated.get() + driver.engine.meter().relocated_bytes);
        driver.free_all();
        driver.release();
        assert_eq!(driver.engine.stats().reserved.current, 0);
        Ok(())
    });
    outcome.expect("a program breaks it");
    assert!(relocated.get() > 0);
}
