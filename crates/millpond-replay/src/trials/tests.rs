use super::*;
use crate::parallel::Threads;
use crate::program::Selection;
use millpond_trace::{ReadOptions, Trace, read_bytes};
use std::fmt::Write;

/// Returns a program whose sizes grow a little in each step. The native policy cannot reuse the blocks, and
/// expandable segments can.
fn growing() -> Trace {
    let mut csv = String::from("time_us,action,id,bytes,stream,tag\n");
    for step in 0..200u64 {
        let bytes = (30 << 20) + step * (1 << 20);
        for half in 0..2 {
            let id = step * 2 + half;
            writeln!(csv, "{step},alloc,{id},{bytes},0,t").expect("a string");
        }
        for half in 0..2 {
            let id = step * 2 + half;
            writeln!(csv, "{step},free,{id},{bytes},0,").expect("a string");
        }
    }
    let recording = read_bytes(csv.as_bytes(), "growing", &ReadOptions::default()).expect("valid");
    recording.traces.into_iter().next().expect("one device")
}

/// Returns a program that keeps small blocks in segments of large ones. The native policy cannot use the rest of these
/// segments for the large blocks, and expandable segments can.
fn fragmenting() -> Trace {
    let mut csv = String::from("time_us,action,id,bytes,stream,tag\n");
    for step in 0..20u64 {
        let (large, kept) = (2 * step, 2 * step + 1);
        let (large_bytes, kept_bytes) = (100 << 20, 52 << 20);
        write!(
            csv,
            "{step},alloc,{large},{large_bytes},0,t\n{step},free,{large},{large_bytes},0,\n\
             {step},alloc,{kept},{kept_bytes},0,t\n"
        )
        .expect("a string");
    }
    let recording = read_bytes(csv.as_bytes(), "fragmenting", &ReadOptions::default()).expect("valid");
    recording.traces.into_iter().next().expect("one device")
}

fn torch(device: Device, threads: usize) -> TunedFamily {
    torch_for(&growing(), device, threads)
}

fn torch_for(trace: &Trace, device: Device, threads: usize) -> TunedFamily {
    let options = Options {
        device,
        threads: Threads::at_most(threads),
        ..Options::default()
    };
    search(trace, &options, Family::Torch)
}

fn search(trace: &Trace, options: &Options, family: Family) -> TunedFamily {
    let prepared = Prepared::new(trace, options).expect("replayable");
    let found = Search::new(&prepared, &|_, _| {}).family(family);
    found.expect("replayable").expect("it has defaults")
}

#[test]
fn the_search_finds_a_setting_that_avoids_fragmentation() {
    let found = torch_for(&fragmenting(), Device::UNLIMITED, 1);
    let line = found.line().expect("it fits");
    assert!(line.starts_with("export PYTORCH_CUDA_ALLOC_CONF="), "{line}");
    assert!(
        matches!(found.gains.first(), Some(Gain::Needs { .. })),
        "{:?}",
        found.gains
    );
    let (best, default) = (&found.trials[found.best], &found.trials[found.default]);
    assert!(
        best.smallest_device_bytes < default.smallest_device_bytes.map(|bytes| bytes / 10 * 7),
        "{best:?} {default:?}"
    );
    assert_eq!(best.settings, 1, "one setting is enough here: {best:?}");
}

/// The native policy releases its cache before it fails. So its peak on a device without a limit is not the memory that the program needs.
#[test]
fn settings_that_only_lower_the_peak_save_no_memory() {
    let found = torch(Device::UNLIMITED, 1);
    let (best, default) = (&found.trials[found.best], &found.trials[found.default]);
    assert!(best.peak_reserved_bytes < default.peak_reserved_bytes / 2);
    assert_eq!(best.smallest_device_bytes, default.smallest_device_bytes);
    assert!(
        matches!(found.gains[..], [Gain::DriverTime { .. }]),
        "{:?}",
        found.gains
    );
}

#[test]
fn a_policy_that_stalls_in_every_step_does_not_run_well() {
    let found = torch(Device::UNLIMITED, 1);
    let trace = growing();
    let program = Program::new(&trace, Selection::default()).expect("allocations");
    let (policy, settings) = Family::Torch.settings("").expect("the defaults");
    let on = |bytes| {
        let device = Device {
            bytes,
            ..Device::UNLIMITED
        };
        runs_well(&program, policy, &settings, device)
    };
    let smallest = found.trials[found.default].smallest_device_bytes;
    assert!(!on(smallest), "it gives its cache back in every step");
    assert!(on(Some(64 << 30)));
    assert!(!on(smallest.map(|bytes| bytes - (4 << 20))), "it does not finish");
}

#[test]
fn the_recommended_setting_is_first_and_the_index_of_the_default_is_right() {
    let known: Vec<Family> = Family::all().collect();
    assert_eq!(known.len(), 2);
    for family in known {
        let family = search(&growing(), &Options::default(), family);
        assert_eq!(family.best, 0);
        assert_eq!(family.trials[family.default].conf, "");
        let mut others = family.trials[1..].to_vec();
        rank::sort(&mut others);
        assert_eq!(others, family.trials[1..], "the others go by their figures");
    }
}

#[test]
fn settings_that_older_releases_of_pytorch_refuse_are_not_tried() {
    let found = torch(Device::UNLIMITED, 1);
    assert!(
        found
            .trials
            .iter()
            .all(|trial| !trial.conf.contains("large_segment_size_mb"))
    );
}

#[test]
fn every_setting_of_a_space_can_be_parsed() {
    let device = Device {
        bytes: Some(4 << 30),
        ..Device::UNLIMITED
    };
    let program = Program::new(&growing(), Selection::default()).expect("allocations");
    for family in Family::all() {
        let spaces = family::spaces(family, &program, device);
        for point in spaces.iter().flat_map(|space| family::one_at_a_time(space)) {
            assert!(family.settings(&point.conf()).is_some(), "{}", point.conf());
        }
    }
}

#[test]
fn the_number_of_threads_does_not_change_the_result() {
    assert_eq!(torch(Device::UNLIMITED, 1), torch(Device::UNLIMITED, 3));
}

#[test]
fn every_setting_is_valid_and_tried_only_one_time() {
    let found = torch(
        Device {
            bytes: Some(2 << 30),
            ..Device::UNLIMITED
        },
        2,
    );
    let mut confs: Vec<&str> = found.trials.iter().map(|trial| trial.conf.as_str()).collect();
    let tried = confs.len();
    confs.sort_unstable();
    confs.dedup();
    assert_eq!(confs.len(), tried);
    assert!(confs.iter().all(|conf| Family::Torch.settings(conf).is_some()));
    assert!(tried < 200, "{tried} settings take too long on a real recording");
    assert!(
        confs
            .iter()
            .any(|conf| conf.contains("garbage_collection_threshold"))
    );
}

#[test]
fn defaults_that_are_as_good_are_recommended() {
    let csv = b"time_us,action,id,bytes,stream,tag\n0,alloc,1,41943040,0,a\n1,free,1,41943040,0,\n";
    let recording = read_bytes(csv, "tiny", &ReadOptions::default()).expect("valid");
    let found = search(&recording.traces[0], &Options::default(), Family::Torch);
    assert_eq!((found.best, found.gains.len()), (found.default, 0));
    assert_eq!(found.line(), None, "nothing is to be set");
}

fn tried(conf: &str, peak: u64, stalls: u64, modelled_driver_ms: f64) -> Trial {
    Trial {
        policy: "torch-native",
        conf: conf.to_owned(),
        fits: true,
        served: 1000,
        smallest_device_bytes: None,
        fit: None,
        peak_reserved_bytes: peak,
        overhead: 1.0,
        hit_rate: 0.9,
        stalls,
        moved_bytes: 0,
        modelled_driver_ms,
        settings: u32::from(!conf.is_empty()),
        seldom_stalls: false,
    }
}

#[test]
fn slightly_less_memory_does_not_outweigh_stalls() {
    let mut trials = vec![
        tried("", 1000, 10, 5.0),
        tried("tight", 985, 500, 5.0),
        tried("calm", 1010, 2, 5.0),
    ];
    rank::sort(&mut trials);
    let default = trials.iter().position(|t| t.conf.is_empty()).expect("kept");
    let (best, gains) = rank::choose(&trials, default);
    assert_eq!(trials[best].conf, "calm");
    assert_eq!(gains, [Gain::Stalls { fewer: 8 }]);
}

#[test]
fn settings_with_a_negligible_effect_are_not_recommended() {
    let trials = [
        tried("", 1000, 10, 5.0),
        tried("a", 997, 10, 4.9),
        tried("b", 1000, 10, 4.7),
    ];
    assert_eq!(rank::choose(&trials, 0), (0, Vec::new()));
    let trials = [tried("", 1000, 10, 5.0), tried("a", 990, 10, 5.0)];
    assert_eq!(rank::choose(&trials, 0), (1, vec![Gain::Needs { bytes: 10 }]));
}

#[test]
fn lead_moves_the_best_trial_to_the_front_and_returns_the_defaults_index() {
    for (best, default) in [(0, 2), (1, 0), (2, 1), (2, 2), (1, 2)] {
        let mut trials = ["a", "b", "c"].map(|conf| tried(conf, 1000, 10, 5.0));
        let (first, defaults) = (trials[best].conf.clone(), trials[default].conf.clone());
        let now = rank::lead(&mut trials, best, default);
        assert_eq!((&trials[0].conf, &trials[now].conf), (&first, &defaults));
    }
}
