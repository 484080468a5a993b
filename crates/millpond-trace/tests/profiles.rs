//! Tests that write recordings as profiles and check their sums with independent readers.

#[path = "support/convert.rs"]
mod convert;
#[path = "support/proto.rs"]
mod proto;
#[path = "support/sample.rs"]
mod sample;

use convert::{Scratch, converted, open, sums};
use flate2::read::GzDecoder;
use millpond_trace::export::{At, ExportOptions};
use millpond_trace::history::History;
use proto::Fields;
use sample::{hostile, ordinary, sample};
use serde_json::Value;
use std::collections::HashMap;
use std::io::Read;

const STEPS: u64 = 24;
const ALL: [At; 3] = [At::Peak, At::Total, At::End];

/// Runs a check on recordings with ordinary and with hostile names.
fn each(name: &str, check: impl Fn(&History)) {
    for (place, names) in [ordinary(), hostile()].iter().enumerate() {
        let file = Scratch::new(&format!("{name}{place}.mpr"), &sample(STEPS, names));
        check(&open(&file));
    }
}

fn expected(history: &History, at: At) -> u64 {
    let sums = sums(history);
    match at {
        At::Peak => sums.peak,
        At::Total => sums.total,
        At::End => sums.end,
    }
}

fn written(history: &History, name: &str, at: At) -> Vec<u8> {
    let options = ExportOptions {
        at,
        ..ExportOptions::default()
    };
    converted(history, name, &options).0
}

#[test]
fn folded_lines_add_up() {
    each("folded", |history| {
        for at in ALL {
            let text = String::from_utf8(written(history, "a.folded", at)).expect("UTF-8");
            let mut sum = 0;
            for line in text.lines() {
                let (stack, bytes) = line.rsplit_once(' ').expect("a stack and its bytes");
                sum += bytes.parse::<u64>().expect("a number");
                assert!(!line.starts_with('#') && stack.split(';').all(|frame| !frame.is_empty()));
            }
            assert_eq!(sum, expected(history, at), "{at:?}");
        }
    });
}

#[test]
fn a_hostile_name_is_one_frame() {
    let file = Scratch::new("frames.mpr", &sample(STEPS, &hostile()));
    let text = String::from_utf8(written(&open(&file), "g.folded", At::Total)).expect("UTF-8");
    assert!(text.contains(";outer_2;c:d "), "{}", text.len());
    assert!(
        text.contains(";a b ") && text.contains(";\"e\" 'f' "),
        "{}",
        text.len()
    );
}

/// A stack starts at the root, and the words of a tag surround the frames that it names.
#[test]
fn stacks_begin_at_the_root() {
    let file = Scratch::new("stacks.mpr", &sample(STEPS, &ordinary()));
    let text = String::from_utf8(written(&open(&file), "b.folded", At::Total)).expect("UTF-8");
    let begins = |start: &str| text.lines().filter(|line| line.starts_with(start)).count();
    assert_eq!(begins("cuda:0;forward;layer 3;<lambda>;call "), 1, "{text}");
    assert_eq!(begins("pinned staging;optimizer "), 1, "{text}");
    assert_eq!(begins("main;0x555500000008;outer_2;optimizer "), 1, "{text}");
    // The outermost address of the third stack has no name.
    assert_eq!(
        begins("0x555500000803;0x555500000008;outer_3;batch "),
        1,
        "{text}"
    );
}

#[test]
fn speedscope_weights_add_up() {
    each("speedscope", |history| {
        for at in ALL {
            let json: Value =
                serde_json::from_slice(&written(history, "c.speedscope.json", at)).expect("JSON");
            let frames = json["shared"]["frames"].as_array().expect("frames").len() as u64;
            let profile = &json["profiles"][0];
            let weights = profile["weights"].as_array().expect("weights");
            let samples = profile["samples"].as_array().expect("samples");
            assert_eq!(weights.len(), samples.len());
            let sum: u64 = weights.iter().filter_map(Value::as_u64).sum();
            assert_eq!(
                (sum, profile["endValue"].as_u64()),
                (expected(history, at), Some(sum))
            );
            let numbers = samples.iter().filter_map(Value::as_array).flatten();
            assert!(numbers.filter_map(Value::as_u64).all(|frame| frame < frames));
        }
    });
}

#[test]
fn dhat_points_add_up() {
    each("dhat", |history| {
        let json: Value = serde_json::from_slice(&written(history, "d.dhat.json", At::Peak)).expect("JSON");
        let frames = json["ftbl"].as_array().expect("a table").len() as u64;
        let points = json["pps"].as_array().expect("points");
        let sum = |key: &str| points.iter().filter_map(|point| point[key].as_u64()).sum::<u64>();
        let sums = sums(history);
        assert_eq!([sum("tb"), sum("tbk")], [sums.total, sums.allocations]);
        assert_eq!([sum("gb"), sum("eb")], [sums.peak, sums.end]);
        for point in points {
            let of = |key: &str| point[key].as_u64().expect("a number");
            assert!(
                of("mb") >= of("gb") && of("mb") >= of("eb") && of("mb") <= of("tb"),
                "{point}"
            );
            let stack = point["fs"].as_array().expect("a stack");
            assert!(!stack.is_empty() && stack.iter().all(|at| at.as_u64().is_some_and(|at| at < frames)));
        }
        assert!(sum("tl") > 0 && json["tg"].as_u64() < json["te"].as_u64());
    });
}

#[test]
fn pprof_sample_types_add_up() {
    each("pprof", |history| {
        for at in ALL {
            let packed = written(history, "e.pb.gz", at);
            let mut bytes = Vec::new();
            GzDecoder::new(&packed[..]).read_to_end(&mut bytes).expect("gzip");
            let profile = Fields::of(&bytes);
            let texts = profile.texts(6);
            assert_eq!(texts[0], "");
            let types: Vec<_> = profile
                .messages(1)
                .iter()
                .map(|kind| texts[kind.number(1).expect("a name") as usize].clone())
                .collect();
            assert_eq!(
                types,
                ["alloc_objects", "alloc_space", "inuse_objects", "inuse_space"]
            );
            let named =
                |field: &Fields, number| texts[field.number(number).expect("a text") as usize].clone();
            let functions: HashMap<u64, String> = profile
                .messages(5)
                .iter()
                .map(|function| (function.number(1).expect("an id"), named(function, 2)))
                .collect();
            let mut lines = 0;
            let locations: HashMap<u64, Fields> = profile
                .messages(4)
                .into_iter()
                .map(|location| (location.number(1).expect("an id"), location))
                .collect();
            for location in locations.values() {
                lines = lines.max(location.messages(4).len());
                for line in location.messages(4) {
                    assert!(functions.contains_key(&line.number(1).expect("a function")));
                }
            }
            assert_eq!(lines, 2, "inlined functions share a location");
            let mut found = [0; 4];
            for sample in profile.messages(2) {
                assert!(sample.packed(1).iter().all(|id| locations.contains_key(id)));
                for (sum, value) in found.iter_mut().zip(sample.packed(2)) {
                    *sum += value;
                }
            }
            let in_use = if at == At::Total { At::Peak } else { at };
            assert_eq!(
                [found[1], found[3]],
                [expected(history, At::Total), expected(history, in_use)]
            );
            assert_eq!(found[0], sums(history).allocations);
            let default = &texts[profile.number(14).expect("a default") as usize];
            assert_eq!(default == "alloc_space", at == At::Total);
        }
    });
}

/// An interpreter for heaptrack's lines. All lines must have known kinds.
#[test]
fn heaptrack_lines_equal_the_recording() {
    each("heaptrack", |history| {
        let text = String::from_utf8(written(history, "f.heaptrack", At::Peak)).expect("UTF-8");
        let hex = |text: &str| u64::from_str_radix(text, 16).expect("hexadecimal");
        let (mut strings, mut frames, mut nodes) = (0, 0, 0);
        let mut classes = Vec::new();
        let (mut live, mut peak, mut total) = (0_u64, 0, 0);
        for line in text.lines() {
            let (kind, rest) = line.split_once(' ').expect("a kind and more");
            let words: Vec<&str> = rest.split(' ').collect();
            match kind {
                "v" => assert_eq!(hex(words[1]), 3),
                "s" => {
                    let (length, text) = rest.split_once(' ').expect("its length");
                    assert_eq!(hex(length), text.len() as u64);
                    strings += 1;
                }
                "i" => {
                    assert!(words[1..].len() <= 4 && hex(words[1]) <= strings && hex(words[2]) <= strings);
                    frames += 1;
                }
                "t" => {
                    assert!(hex(words[0]) <= frames && hex(words[1]) <= nodes);
                    nodes += 1;
                }
                "a" => {
                    assert!((1..=nodes).contains(&hex(words[1])));
                    classes.push(hex(words[0]));
                }
                "+" => {
                    live += classes[hex(words[0]) as usize];
                    total += classes[hex(words[0]) as usize];
                    peak = peak.max(live);
                }
                "-" => live -= classes[hex(words[0]) as usize],
                "#" | "X" | "I" | "c" | "R" => {}
                other => panic!("a line of kind {other}"),
            }
        }
        let sums = sums(history);
        assert_eq!([peak, total, live], [sums.peak, sums.total, sums.end]);
    });
}
