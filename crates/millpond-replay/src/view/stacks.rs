//! The stacks of a recording with the names of their functions: looked up when somebody asks, not when it was recorded.

use hashbrown::HashMap;
use millpond_trace::history::{Frame, History, Symbols};
use serde_json::{Value, json};

/// Stacks at most.
const MOST_STACKS: usize = 1 << 16;
/// Frames of all stacks together.
const MOST_FRAMES: usize = 1 << 21;

/// Every frame once, and every stack as numbers of frames, the innermost first.
pub fn stacks(history: &History, symbols: &dyn Symbols) -> Value {
    let mut numbers: HashMap<Frame, usize, foldhash::fast::RandomState> = HashMap::default();
    let mut frames: Vec<Value> = Vec::new();
    let mut told: Vec<Value> = Vec::new();
    let mut length = 0;
    let all = history.definitions.stacks();
    for number in &all {
        if told.len() >= MOST_STACKS || length >= MOST_FRAMES {
            break;
        }
        let stack = symbols.stack(history.definitions.stack(*number));
        length += stack.len();
        let mut line = Vec::with_capacity(stack.len());
        for frame in stack {
            let next = frames.len();
            let at = *numbers.entry_ref(&frame).or_insert(next);
            if at == next {
                frames.push(json!([frame.function, frame.file, frame.line]));
            }
            line.push(at);
        }
        told.push(json!([number, line]));
    }
    let more = all.len() - told.len();
    json!({ "frames": frames, "stacks": told, "more": more })
}
