//! Compares a Millpond recording that is read for a replay with the file that the recording is converted to.

#[path = "support/convert.rs"]
mod convert;
#[path = "support/sample.rs"]
mod sample;

use convert::{Scratch, converted, open};
use millpond_trace::export::{ExportOptions, traces};
use millpond_trace::recording::{Kind, Row, Writer};
use millpond_trace::{Caution, Event, Format, ReadError, ReadOptions, Recording, Trace, read, read_bytes};
use sample::{ordinary, sample};

const STEPS: u64 = 24;

/// Returns an event with the values of its numbers.
fn told(trace: &Trace, event: &Event) -> (Event, String, u64, (u64, u64)) {
    let tag = trace.tags.iter().nth(event.tag as usize).unwrap_or_default();
    let plain = Event {
        tag: 0,
        stream: 0,
        pool: 0,
        ..*event
    };
    let (stream, pool) = (usize::from(event.stream), usize::from(event.pool));
    (
        plain,
        tag.replace(',', ";"),
        trace.streams[stream],
        trace.pools[pool],
    )
}

fn alike(ours: &Recording, theirs: &Recording) {
    let devices = |of: &Recording| {
        of.traces
            .iter()
            .map(|trace| trace.origin.device)
            .collect::<Vec<_>>()
    };
    assert_eq!(devices(ours), devices(theirs));
    for (ours, theirs) in ours.traces.iter().zip(&theirs.traces) {
        assert!(ours.events.len() > 100, "{}", ours.events.len());
        let events = |of: &Trace| of.events.iter().map(|event| told(of, event)).collect::<Vec<_>>();
        assert!(events(ours) == events(theirs), "events differ");
        assert_eq!(ours.allocations, theirs.allocations);
        assert_eq!(ours.recorded_peak_reserved, theirs.recorded_peak_reserved);
    }
}

#[test]
fn a_recording_and_its_csv_export_are_read_as_equal_traces() {
    let file = Scratch::new("replayable.mpr", &sample(STEPS, &ordinary()));
    let history = open(&file);
    let (csv, _) = converted(&history, "a.csv", &ExportOptions::default());
    let theirs = read_bytes(&csv, "a.csv", &ReadOptions::default()).expect("we wrote it");
    let ours = traces(&history, "a", &ExportOptions::default()).expect("it has events");
    alike(&ours.recording, &theirs);
    for (trace, times) in ours.recording.traces.iter().zip(&ours.times) {
        assert_eq!(trace.events.len(), times.len());
        let mut same = trace.events.iter().zip(times);
        assert!(same.all(|(event, time)| event.time_us == time / 1_000));
    }
    let by_path = read(&file.0, &ReadOptions::default()).expect("it is a recording");
    alike(&by_path, &theirs);
    assert_eq!(by_path.format, Format::MillpondRecording);
    let name = file.0.file_stem().and_then(|name| name.to_str());
    assert_eq!(Some(by_path.name.as_str()), name);
}

/// Returns a recording that was not closed: a pool, two blocks, and a loss in between.
fn unclosed() -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), &[]).expect("a vector takes all");
    let pool = Row {
        pool: 1,
        ..Row::new(Kind::DefinePool, 0)
    };
    let device = Some([3].as_slice());
    writer
        .say(&pool, Some("cuda\nmain"), device)
        .expect("it is a row");
    let block = |id, time| Row {
        id,
        requested: 1 << 20,
        bytes: 1 << 20,
        pool: 1,
        ..Row::new(Kind::Alloc, time)
    };
    let lost = Row {
        id: 7,
        ..Row::new(Kind::Lost, 1_600)
    };
    for row in [block(1, 1_500), lost, block(2, 2_700)] {
        writer.push(&row).expect("it is a row");
    }
    writer.flush().expect("a vector takes all");
    writer.get_ref().clone()
}

#[test]
fn a_device_has_a_policy_only_if_all_its_pools_share_it() {
    let of = |pools: &[&str]| {
        let mut writer = Writer::new(Vec::new(), &[]).expect("a vector takes all");
        for (text, pool) in pools.iter().zip(1..) {
            let define = Row {
                pool,
                ..Row::new(Kind::DefinePool, 0)
            };
            let said = writer.say(&define, Some(text), Some(&[0]));
            said.expect("it is a row");
            let block = Row {
                id: u64::from(pool),
                requested: 1 << 20,
                pool,
                ..Row::new(Kind::Alloc, 1)
            };
            writer.push(&block).expect("it is a row");
        }
        let file = Scratch::new("policies.mpr", &writer.finish(2).expect("a vector takes all"));
        let history = open(&file);
        let found = traces(&history, "policies", &ExportOptions::default()).expect("a block is there");
        let policy = found.recording.traces[0].settings.policy.clone();
        let (csv, _) = converted(&history, "policies.csv", &ExportOptions::default());
        let read = read_bytes(&csv, "policies.csv", &ReadOptions::default()).expect("we wrote it");
        assert_eq!(read.traces[0].settings.policy, policy);
        policy
    };
    let known = |name: &str| Some(name.to_owned());
    assert_eq!(of(&["cuda\na\nbuckets"]), known("buckets"));
    assert_eq!(of(&["cuda\na\nbuckets", "cuda\n\nbuckets"]), known("buckets"));
    assert_eq!(
        of(&["cuda\na\nbuckets", "cuda\nb\nmillpond", "cuda\nc\nbuckets"]),
        None
    );
    assert_eq!(of(&["cuda\na\nbuckets", "cuda\nb"]), None);
    assert_eq!(of(&["cuda\na"]), None);
    // The name is cleaned because it is shown in terminals.
    assert_eq!(of(&["cuda\na\nx\u{1b}[2J"]), known("x [2J"));
}

#[test]
fn missing_events_are_reported() {
    let file = Scratch::new("cut.mpr", &unclosed());
    let found = traces(&open(&file), "cut", &ExportOptions::default()).expect("a part is there");
    assert_eq!(found.times, [[1_500, 2_700]]);
    let trace = &found.recording.traces[0];
    assert_eq!(trace.origin.device, 3);
    let cautions = &trace.cautions;
    assert!(
        cautions.contains(&Caution::EventsLost { count: 7 }),
        "{cautions:?}"
    );
    let is_cut = |caution: &Caution| matches!(caution, Caution::Cut { .. });
    assert!(cautions.iter().any(is_cut), "{cautions:?}");
}

#[test]
fn unsupported_sources_and_unknown_devices_are_errors() {
    let bytes = sample(STEPS, &ordinary());
    let error = read_bytes(&bytes, "a.mpr", &ReadOptions::default()).expect_err("it is in memory");
    assert!(
        matches!(&error, ReadError::Recording { what } if what.contains("plain file")),
        "{error}"
    );
    let file = Scratch::new("device.mpr", &bytes);
    let history = open(&file);
    let options = ExportOptions {
        device: Some(77),
        ..ExportOptions::default()
    };
    let error = traces(&history, "a", &options).expect_err("there is no such device");
    assert!(error.to_string().contains("device 77"), "{error}");
}
