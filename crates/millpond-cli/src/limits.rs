//! What cannot be said, because of what a recording lacks.

use millpond_trace::{Caution, Trace};

/// A sentence for each thing the recording leaves open; the cautions themselves are told elsewhere.
pub(crate) fn limits(trace: &Trace) -> Vec<String> {
    let mut found = Vec::new();
    for caution in &trace.cautions {
        match caution {
            Caution::RingWrapped { .. } => found.push(
                "So nothing can be said about the time before: whether the peak was higher then, how much memory \
                 the program's start took, and how fragmented the memory was when the recording began."
                    .to_owned(),
            ),
            Caution::Cut { .. } => found.push(
                "So nothing can be said about the time after: the peak, the smallest device and the first failure \
                 hold for the part that was read."
                    .to_owned(),
            ),
            Caution::NoTimes => {}
            _ => {}
        }
    }
    found
}
