//! Compares the fast path for repeated stacks, which are compared as bytes, with plain reading of the same pickle.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use proptest::prelude::*;
use proptest::sample::Index;
use support::*;

/// A value. Containers are given by their index in [`Plain::containers`].
#[derive(Clone, Debug)]
enum Value {
    Mark,
    Other,
    Int(u64),
    Text(String),
    List(usize),
    Dict(usize),
}

/// A simple stack machine like CPython's, for the opcodes used here.
#[derive(Default)]
struct Plain {
    /// The items of lists. For dicts, keys and values alternate.
    containers: Vec<Vec<Value>>,
    stack: Vec<Value>,
    memo: Vec<Value>,
}

impl Plain {
    fn run(&mut self, mut code: &[u8]) -> Value {
        loop {
            let opcode = code[0];
            let (length, used) = match opcode {
                0x80 | b'h' | b'q' | b'K' => (1, 0),
                0x8c => (1, usize::from(code[1])),
                b'j' | b'r' => (4, 0),
                _ => (0, 0),
            };
            let number = code[1..=length]
                .iter()
                .rev()
                .fold(0, |number, &byte| number << 8 | usize::from(byte));
            let text = &code[1 + length..][..used];
            code = &code[1 + length + used..];
            match opcode {
                0x80 => {}
                b'.' => return self.stack.pop().unwrap(),
                b'(' => self.stack.push(Value::Mark),
                b'N' => self.stack.push(Value::Other),
                b'K' => self.stack.push(Value::Int(number as u64)),
                0x8c => self
                    .stack
                    .push(Value::Text(String::from_utf8(text.to_vec()).unwrap())),
                b']' | b'}' => {
                    let at = self.containers.len();
                    self.containers.push(Vec::new());
                    self.stack.push(if opcode == b']' {
                        Value::List(at)
                    } else {
                        Value::Dict(at)
                    });
                }
                b'h' | b'j' => self.stack.push(self.memo[number].clone()),
                b'q' | b'r' => {
                    self.memo.resize(self.memo.len().max(number + 1), Value::Other);
                    self.memo[number] = self.stack.last().unwrap().clone();
                }
                b'0' => drop(self.stack.pop()),
                b'a' => self.add(self.stack.len() - 1, 0),
                b's' => self.add(self.stack.len() - 2, 0),
                b'e' | b'u' => {
                    let mark = self.stack.iter().rposition(|value| matches!(value, Value::Mark));
                    self.add(mark.unwrap(), 1);
                }
                _ => panic!("{opcode:#x}"),
            }
        }
    }

    fn add(&mut self, from: usize, mark: usize) {
        let items = self.stack.split_off(from);
        let (Value::List(at) | Value::Dict(at)) = *self.stack.last().unwrap() else {
            panic!("no container")
        };
        self.containers[at].extend_from_slice(&items[mark..]);
    }

    fn items(&self, value: &Value) -> &[Value] {
        match value {
            Value::List(at) | Value::Dict(at) => &self.containers[*at],
            _ => &[],
        }
    }

    fn get(&self, dict: &Value, wanted: &str) -> Value {
        let mut pairs = self.items(dict).chunks_exact(2).rev();
        pairs
            .find(|pair| matches!(&pair[0], Value::Text(key) if key == wanted))
            .map_or(Value::Other, |pair| pair[1].clone())
    }

    fn text(&self, dict: &Value, key: &str) -> String {
        match self.get(dict, key) {
            Value::Text(text) => text,
            _ => String::new(),
        }
    }

    /// Returns the address and the tag of each event.
    fn events(&self, top: &Value) -> Vec<(u64, String)> {
        let device = self.items(&self.get(top, "device_traces"))[0].clone();
        let event = |event: &Value| match self.get(event, "addr") {
            Value::Int(address) => (address, self.tag(&self.get(event, "frames"))),
            other => panic!("{other:?}"),
        };
        self.items(&device).iter().map(event).collect()
    }

    fn tag(&self, stack: &Value) -> String {
        let mut named = Vec::new();
        for frame in self.items(stack) {
            let (file, function) = (self.text(frame, "filename"), self.text(frame, "name"));
            if !function.starts_with("c10::") {
                named.push(format!("{file}:{function}"));
            }
        }
        named.join("<")
    }
}

fn text(text: &str) -> Vec<u8> {
    [&[0x8c, text.len() as u8], text.as_bytes()].concat()
}

/// Number of memoised frames, which are Python frames, native frames and frames of the allocator.
const FRAMES: usize = 24;
/// The first memo number of the stacks. It needs the long opcode.
const STACKS: usize = 300;

fn head() -> Vec<u8> {
    let mut out = b"\x80\x04".to_vec();
    for at in 0..FRAMES {
        let (file, function) = match at % 3 {
            0 => (format!("f{at}.py"), format!("call{at}")),
            1 => (format!("f{at}.cpp"), format!("native{at}")),
            _ => ("a.cpp".to_owned(), format!("c10::noise{at}")),
        };
        out.push(b'}');
        out.push(b'(');
        for word in ["filename", file.as_str(), "name", function.as_str()] {
            out.extend(text(word));
        }
        out.extend([b'u', b'q', at as u8, b'0']);
    }
    for part in ["segments", "device_traces"] {
        if part == "segments" {
            out.extend(b"}(");
        }
        out.extend(text(part));
        out.push(b']');
    }
    out.extend(b"(](");
    out
}

const TAIL: &[u8] = b"eeu.";

fn get(frame: usize, long: bool) -> Vec<u8> {
    match long {
        false => vec![b'h', frame as u8],
        true => [&b"j"[..], &(frame as u32).to_le_bytes()].concat(),
    }
}

/// Returns a list of `stack`, appended in parts of `part` frames. With 0, frames are appended one by one without a
/// mark.
fn list(stack: &[usize], part: usize, long: bool) -> Vec<u8> {
    let mut out = b"]".to_vec();
    for frames in stack.chunks(part.max(1)) {
        if part > 0 {
            out.push(b'(');
        }
        for &frame in frames {
            out.extend(get(frame, long));
        }
        out.push(if part > 0 { b'e' } else { b'a' });
    }
    out
}

fn event(address: usize, frames: &[u8], in_parts: bool) -> Vec<u8> {
    let mut out = b"}(".to_vec();
    out.extend(text("action"));
    out.extend(text("alloc"));
    if in_parts {
        out.extend(b"u(");
    }
    out.extend(text("addr"));
    out.extend([b'K', address as u8]);
    out.extend(text("size"));
    out.extend([b'K', 1]);
    if in_parts {
        out.push(b'u');
        out.extend(text("frames"));
        out.extend(frames);
        out.push(b's');
    } else {
        out.extend(text("frames"));
        out.extend(frames);
        out.push(b'u');
    }
    out
}

/// Reads a pickle in both ways and compares the results.
fn agree(code: &[u8]) -> Vec<(u64, String)> {
    let mut plain = Plain::default();
    let top = plain.run(code);
    let expected = plain.events(&top);
    let recording = read(code).unwrap();
    let trace = &recording.traces[0];
    let read: Vec<_> = trace
        .events
        .iter()
        .filter(|event| event.action == millpond_trace::Action::Alloc)
        .map(|event| (event.address, trace.tags.get(event.tag).to_owned()))
        .collect();
    assert_eq!(read, expected);
    read
}

#[test]
fn a_memo_entry_overwritten_between_equal_runs_is_read_correctly() {
    let stack = list(&[0, 3], 9, false);
    let mut code = head();
    for address in 0..6 {
        code.extend(event(address, &stack, false));
        if address == 3 {
            // Frame 6 replaces frame 3.
            code.extend(b"h\x06q\x030");
        }
    }
    code.extend(TAIL);
    let tags: Vec<String> = agree(&code).into_iter().map(|(_, tag)| tag).collect();
    assert_eq!(tags[..4], ["f0.py:call0<f3.py:call3"; 4]);
    assert_eq!(tags[4..], ["f0.py:call0<f6.py:call6"; 2]);
}

#[test]
fn a_stack_appended_in_parts_is_read_completely() {
    let frames: Vec<usize> = (0..FRAMES).collect();
    let mut code = head();
    for part in 0..=FRAMES {
        for long in [false, true] {
            code.extend(event(part, &list(&frames, part, long), false));
        }
    }
    // Frames of the allocator are between the others.
    for part in 0..4 {
        code.extend(event(part, &list(&[1, 4, 7, 2, 10, 13, 3], part, false), true));
    }
    code.extend(TAIL);
    let read = agree(&code);
    assert!(read[..50].iter().all(|(_, tag)| *tag == read[0].1));
    assert!(
        read[50..]
            .iter()
            .all(|(_, tag)| tag.ends_with("native7<f10.cpp:native10<f13.cpp:native13<f3.py:call3"))
    );
}

#[test]
fn lists_that_share_items_can_grow_independently() {
    let mut code = head();
    for address in 0..4 {
        let mut stack = list(&[0, 3], 9, false);
        // Every second list is extended after the shared items.
        if address % 2 == 1 {
            stack.extend(b"h\x06a");
        }
        code.extend(event(address, &stack, false));
    }
    code.extend(TAIL);
    let read = agree(&code);
    assert_eq!((&read[0].1, &read[1].1), (&read[2].1, &read[3].1));
    assert_ne!(read[0].1, read[1].1);
}

#[derive(Clone, Debug)]
enum Step {
    /// An event with one of the stacks.
    Event {
        stack: Index,
        part: usize,
        long: bool,
        in_parts: bool,
    },
    /// An event whose list is memoised, and another event that refers to it.
    Twice { stack: Index, at: usize },
    /// An event that contains a separate frame.
    Own { stack: Index },
    /// Stores another frame under a number.
    Overwrite { from: usize, to: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (any::<Index>(), 0..9usize, any::<bool>(), any::<bool>()).prop_map(|(stack, part, long, in_parts)| {
            Step::Event { stack, part: if part > 3 { 99 } else { part }, long, in_parts }
        }),
        1 => (any::<Index>(), 0..3usize).prop_map(|(stack, at)| Step::Twice { stack, at }),
        1 => any::<Index>().prop_map(|stack| Step::Own { stack }),
        1 => (0..FRAMES, 0..FRAMES).prop_map(|(from, to)| Step::Overwrite { from, to }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn fast_and_plain_reading_agree(
        stacks in prop::collection::vec(prop::collection::vec(0..FRAMES, 0..30), 1..5),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut code = head();
        code.extend(event(0, b"N", false));
        for (at, step) in steps.iter().enumerate() {
            match step {
                Step::Event { stack, part, long, in_parts } => {
                    code.extend(event(at, &list(&stacks[stack.index(stacks.len())], *part, *long), *in_parts));
                }
                Step::Twice { stack, at: number } => {
                    let number = get(STACKS + number, true)[1..].to_vec();
                    let frames = [list(&stacks[stack.index(stacks.len())], 99, false), vec![b'r'], number.clone()].concat();
                    code.extend(event(at, &frames, false));
                    code.extend(event(at, &[vec![b'j'], number].concat(), false));
                }
                Step::Own { stack } => {
                    let mut frames = list(&stacks[stack.index(stacks.len())], 99, false);
                    frames.extend(b"(}(");
                    for word in ["filename", "own.py", "name", "own"] {
                        frames.extend(text(word));
                    }
                    frames.extend(b"ue");
                    code.extend(event(at, &frames, false));
                }
                Step::Overwrite { from, to } => code.extend([b'h', *from as u8, b'q', *to as u8, b'0']),
            }
        }
        code.extend(TAIL);
        agree(&code);
    }
}
