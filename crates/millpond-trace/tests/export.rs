//! Tests that write recordings in formats that keep every event and read them back with this crate's readers. The live
//! blocks at any time must be the same.

#[path = "support/convert.rs"]
mod convert;
#[path = "support/proto.rs"]
mod proto;
#[path = "support/sample.rs"]
mod sample;
mod support;

use convert::{Scratch, converted, device, first_on, live_on, moments, open, sums};
use millpond_trace::export::{ExportOptions, walk};
use millpond_trace::history::{Flow, History, Symbols};
use millpond_trace::recording::{Gauge, Kind, Row};
use proto::Fields;
use sample::{hostile, ordinary, sample};
use std::collections::HashMap;
use support::{block, entry, pickle, segment, snapshot};

const STEPS: u64 = 24;
/// The sample's device numbers for readers of formats without device names.
const DEVICES: [i32; 3] = [-1, 0, 1];

/// The sample contains every kind of row.
#[test]
fn the_sample_has_every_kind_of_row() {
    let file = Scratch::new("kinds.mpr", &sample(STEPS, &ordinary()));
    let history = open(&file);
    let mut kinds: HashMap<Kind, u64> = HashMap::new();
    let mut gauges = HashMap::new();
    history
        .walk(|row, _| {
            *kinds.entry(row.kind).or_default() += 1;
            if row.kind == Kind::Gauge {
                gauges.insert(row.tag, ());
            }
            Flow::On
        })
        .expect("it is there");
    for kind in Kind::ALL {
        // Another test covers releases, and the row that begins a batch is not returned.
        if !matches!(kind, Kind::Batch | Kind::Release) {
            assert!(kinds.contains_key(&kind), "{kind:?}");
        }
    }
    assert_eq!(gauges.len(), Gauge::ALL.len());
}

/// Compares the live bytes at ten times, for each device, with those of the written file.
fn lives_alike(history: &History, name: &str, numbers: [i32; 3]) {
    let (bytes, exported) = converted(history, name, &ExportOptions::default());
    assert!(exported.events > 100, "{name}");
    let file = Scratch::new(name, &bytes);
    let back = open(&file);
    // The times of the written file begin with the first event of any device.
    let begun = DEVICES.map(|on| first_on(history, on)).into_iter().min();
    let begun = begun.expect("there are devices");
    assert_eq!(back.start(), history.start().map(|start| start + begun), "{name}");
    for (on, number) in DEVICES.into_iter().zip(numbers) {
        let mut some = 0;
        for time in moments(history).into_iter().filter(|time| *time >= begun) {
            let (here, there) = (live_on(history, on, time), live_on(&back, number, time - begun));
            assert_eq!(here, there, "{name}: device {on} at {time}");
            some += here;
        }
        assert!(some > 0, "nothing lived on {on}");
    }
}

#[test]
fn a_snapshot_has_the_same_live_bytes_at_any_time() {
    let file = Scratch::new("snapshot.mpr", &sample(STEPS, &ordinary()));
    // The host is the device after the last one.
    lives_alike(&open(&file), "a.pickle", [2, 0, 1]);
}

#[test]
fn csv_has_the_same_live_bytes_at_any_time() {
    let file = Scratch::new("csv.mpr", &sample(STEPS, &ordinary()));
    lives_alike(&open(&file), "b.csv.zst", DEVICES);
}

#[test]
fn hostile_names_do_not_change_the_live_bytes() {
    let file = Scratch::new("names.mpr", &sample(STEPS, &hostile()));
    let history = open(&file);
    lives_alike(&history, "c.pickle.gz", [2, 0, 1]);
    lives_alike(&history, "d.csv", DEVICES);
}

/// A chrome trace cannot represent a block that waits. Its free is the requested one.
#[test]
fn a_chrome_trace_has_the_same_live_bytes_at_any_time() {
    for (place, names) in [ordinary(), hostile()].iter().enumerate() {
        let file = Scratch::new(&format!("chrome{place}.mpr"), &sample(STEPS, names));
        let history = open(&file);
        let (bytes, _) = converted(&history, "e.trace.json", &ExportOptions::default());
        let json: serde_json::Value = serde_json::from_slice(&bytes).expect("JSON");
        let events = json["traceEvents"].as_array().expect("a list");
        let mut open_slices: HashMap<&str, u64> = HashMap::new();
        for event in events {
            match event["ph"].as_str() {
                Some("b") => {
                    *open_slices
                        .entry(event["id"].as_str().expect("an id"))
                        .or_default() += 1;
                }
                Some("e") => {
                    let open = open_slices.get_mut(event["id"].as_str().expect("an id"));
                    *open.expect("it has begun") -= 1;
                }
                _ => {}
            }
        }
        let live = history.live_at(u64::MAX).expect("it is there").len() as u64;
        assert_eq!(open_slices.values().sum::<u64>(), live);
        let memory = events.iter().filter(|event| event["name"] == "[memory]");
        let bytes_at_end: i64 = memory.filter_map(|event| event["args"]["Bytes"].as_i64()).sum();
        assert_eq!(bytes_at_end as u64, sums(&history).end);
        let back = Scratch::new(&format!("e{place}.trace.json"), &bytes);
        let back = open(&back);
        let begun = DEVICES.map(|on| first_block(&history, on)).into_iter().min();
        let begun = begun.expect("there are devices");
        for on in DEVICES {
            for time in moments(&history).into_iter().filter(|time| *time >= begun) {
                let (here, there) = (live_on(&history, on, time), live_on(&back, on, time - begun));
                assert_eq!(here, there, "device {on} at {time}");
            }
        }
    }
}

fn first_block(history: &History, on: i32) -> u64 {
    let mut first = None;
    history
        .walk(
            |row, _| match row.kind == Kind::Alloc && device(history, row.pool) == on {
                true => {
                    first = Some(row.time);
                    Flow::Stop
                }
                false => Flow::On,
            },
        )
        .expect("it is there");
    first.expect("a block")
}

type Told = (Row, Option<String>, String, String, Vec<String>);

/// Returns events with names instead of numbers.
fn told(history: &History) -> Vec<Told> {
    let mut all = Vec::new();
    walk(history, &ExportOptions::default(), |row, text| {
        let definitions = &history.definitions;
        let stack = definitions.stack(row.stack);
        let names = stack.flat_map(|address| Symbols::frames(definitions, address));
        all.push((
            *row,
            text.map(str::to_owned),
            definitions.tag(row.tag).to_owned(),
            format!("{:?}", definitions.pool(row.pool)),
            names.map(|frame| format!("{frame:?}")).collect(),
        ));
        Ok(())
    })
    .expect("it is there");
    all
}

#[test]
fn a_recording_exported_as_a_recording_is_unchanged() {
    for (place, names) in [ordinary(), hostile()].iter().enumerate() {
        let file = Scratch::new(&format!("whole{place}.mpr"), &sample(STEPS, names));
        let history = open(&file);
        let (bytes, exported) = converted(&history, "f.mpr", &ExportOptions::default());
        let back = Scratch::new(&format!("f{place}.mpr"), &bytes);
        let back = open(&back);
        let (one, two) = (told(&history), told(&back));
        assert_eq!(exported.events, one.len() as u64);
        assert_eq!(one.len(), two.len());
        assert!(one == two, "events differ");
        assert_eq!(history.facts, back.facts);
        assert_eq!(back.start(), Some(1_700_000_000_500_000_000));
        assert_eq!(history.definitions.modules(), back.definitions.modules());
    }
}

/// The exported part begins with the blocks that were live then, and contains nothing of other devices.
#[test]
fn an_exported_time_range_begins_with_the_live_blocks() {
    let file = Scratch::new("part.mpr", &sample(STEPS, &ordinary()));
    let history = open(&file);
    let (from, to) = (history.duration / 3, history.duration / 2);
    let options = ExportOptions {
        device: Some(0),
        from: Some(from),
        to: Some(to),
        ..ExportOptions::default()
    };
    let (bytes, _) = converted(&history, "g.mpr", &options);
    let back = Scratch::new("g.mpr", &bytes);
    let back = open(&back);
    for at in 0..=10 {
        let time = from + (to - from) * at / 10;
        assert_eq!(live_on(&history, 0, time), live_on(&back, 0, time), "at {time}");
    }
    assert!(live_on(&back, 0, from) > 0 && live_on(&back, 0, from - 1) == 0);
    back.walk(|row, _| {
        let on_it = row.pool == 0 || device(&back, row.pool) == 0;
        // Definitions come at the beginning.
        let says = row.kind as u8 >= Kind::DefineTag as u8;
        assert!(says || on_it && (from..=to).contains(&row.time), "{row:?}");
        Flow::On
    })
    .expect("it is there");
    let none = ExportOptions {
        device: Some(9),
        from: Some(history.duration + 1),
        ..ExportOptions::default()
    };
    let refused = walk(&history, &none, |_, _| Ok(())).expect_err("nothing is there");
    assert!(refused.to_string().contains("on device 9"), "{refused}");
}

#[test]
fn a_refused_request_keeps_the_free_bytes_of_the_device() {
    let csv =
        "time_us,action,id,bytes,stream,address\n0,alloc,1,512,0,0\n1,oom,0,99,0,0x3039\n2,oom,0,99,0,0\n";
    let file = Scratch::new("refused.csv", csv.as_bytes());
    let (bytes, _) = converted(&open(&file), "refused.pickle", &ExportOptions::default());
    let back = Scratch::new("refused.pickle", &bytes);
    let mut free = Vec::new();
    let walked = open(&back).walk(|row, _| {
        free.extend((row.kind == Kind::Refused).then_some(row.address));
        Flow::On
    });
    walked.expect("it is readable");
    assert_eq!(free, [12345, 0]);
}

#[test]
fn blocks_from_before_a_snapshot_are_still_from_before_it() {
    let at = |place: u64| (1 << 40) + (place << 20);
    let held = |place, state| block(at(place), 1 << 20, 1 << 20, state);
    let value = snapshot(
        vec![segment(
            at(0),
            4 << 20,
            "large",
            vec![
                held(0, "active_allocated"),
                held(1, "inactive"),
                held(2, "active_allocated"),
                held(3, "inactive"),
            ],
        )],
        vec![
            entry("alloc", at(2), 1 << 20, 0, 11),
            entry("free_requested", at(1), 1 << 20, 0, 12),
            entry("free_completed", at(1), 1 << 20, 0, 12),
            entry("snapshot", 0, 0, 0, 15),
        ],
    );
    let file = Scratch::new("older.pickle", &pickle(&value, 4));
    let (bytes, _) = converted(&open(&file), "again.pickle", &ExportOptions::default());
    for bytes in [pickle(&value, 4), bytes] {
        let trace = support::read(&bytes).expect("a snapshot").traces.remove(0);
        let mut older: Vec<u64> = trace.initial_blocks.iter().map(|block| block.address).collect();
        older.sort_unstable();
        assert_eq!((older, trace.allocations), (vec![at(0), at(1)], 3));
    }
}

/// Only the last events are written. Viewers get the rest from the state, and the loss is reported.
#[test]
fn a_snapshot_of_the_last_events_has_the_same_final_state() {
    let file = Scratch::new("last.mpr", &sample(STEPS, &ordinary()));
    let history = open(&file);
    let options = ExportOptions {
        last: Some(50),
        device: Some(0),
        ..ExportOptions::default()
    };
    let (bytes, exported) = converted(&history, "h.pickle", &options);
    assert_eq!(exported.events, 50);
    let words = exported.lost.join("; ");
    assert!(
        words.contains("the first") && words.contains("events of device 0"),
        "{words}"
    );
    let back = Scratch::new("h.pickle", &bytes);
    let back = open(&back);
    assert_eq!(live_on(&history, 0, u64::MAX), live_on(&back, 0, u64::MAX));
}

/// The fields are read by their numbers in `perfetto.protos`.
#[test]
fn perfetto_counters_and_weights_equal_the_recording() {
    for (place, names) in [ordinary(), hostile()].iter().enumerate() {
        let file = Scratch::new(&format!("perfetto{place}.mpr"), &sample(STEPS, names));
        let history = open(&file);
        let (bytes, _) = converted(&history, "i.perfetto-trace", &ExportOptions::default());
        let packets = Fields::of(&bytes).messages(1);
        let mut names: HashMap<u64, (String, Option<u64>)> = HashMap::new();
        let (mut frames, mut stacks, mut functions) = (HashMap::new(), HashMap::new(), HashMap::new());
        let mut last: HashMap<u64, u64> = HashMap::new();
        let (mut weight, mut depth) = (0.0, 0);
        for (at, packet) in packets.iter().enumerate() {
            assert_eq!(packet.number(10), Some(1), "every packet is of the sequence");
            assert_eq!(packet.number(13), Some(if at == 0 { 1 } else { 2 }));
            for track in packet.messages(60) {
                let name = track.texts(2).pop().unwrap_or_default();
                names.insert(track.number(1).expect("a number"), (name, track.number(5)));
            }
            for interned in packet.messages(12) {
                for function in interned.messages(5) {
                    functions.insert(function.number(1).expect("iid"), function.texts(2).remove(0));
                }
                for frame in interned.messages(6) {
                    frames.insert(frame.number(1).expect("iid"), frame.number(2).expect("a name"));
                }
                for stack in interned.messages(7) {
                    stacks.insert(stack.number(1).expect("iid"), stack.packed(2));
                }
            }
            for event in packet.messages(11) {
                let track = event.number(11).expect("a track");
                assert!(
                    names.contains_key(&track),
                    "a track is described before it is used"
                );
                match event.number(9) {
                    Some(1) => {
                        weight += event.double(57).expect("a weight");
                        let stack = &stacks[&event.number(56).expect("a stack")];
                        assert!(!stack.is_empty());
                        for frame in stack {
                            assert!(functions.contains_key(&frames[frame]));
                        }
                        depth += 1;
                    }
                    Some(2) => depth -= 1,
                    Some(4) => drop(last.insert(track, event.number(30).expect("a value"))),
                    _ => {}
                }
                assert!(depth <= 1, "slices of no length do not overlap");
            }
        }
        let sums = sums(&history);
        assert_eq!((weight as u64, depth), (sums.total, 0));
        for on in DEVICES {
            let called = if on < 0 {
                "host".to_owned()
            } else {
                format!("device {on}")
            };
            let of_device = names.iter().find(|(_, (name, parent))| {
                name == "requested" && parent.is_some_and(|parent| names[&parent].0 == called)
            });
            let (track, _) = of_device.expect("a counter");
            assert_eq!(last[track], live_on(&history, on, u64::MAX), "{called}");
        }
    }
}
