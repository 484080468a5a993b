//! Returns the stacks of a recording with function names. Names are resolved on request, not during
//! recording.

use hashbrown::HashMap;
use millpond_trace::history::{Frame, History, Symbols};
use serde_json::{Value, json};

/// The most stacks.
const MOST_STACKS: usize = 1 << 16;
/// The most frames of all stacks together.
const MOST_FRAMES: usize = 1 << 21;

/// Returns every frame once, and every stack as indices of frames, the innermost first.
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
        let mut line = Vec::new();
        for frame in stack {
            let next = frames.len();
            let at = *numbers.entry_ref(&frame).or_insert(next);
            if at == next {
                frames.push(json!([frame.function, frame.file, frame.line]));
            }
            line.push(at);
        }
        length += line.len();
        told.push(json!([number, line]));
    }
    let more = all.len() - told.len();
    json!({ "frames": frames, "stacks": told, "more": more })
}
