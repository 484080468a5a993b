//! What must hold of every trace, however the file was made.

use millpond_trace::{Action, NO_ALLOCATION, ReadOptions, read_bytes, write_csv};

/// Reads a file; if that succeeds, walks what it gave as a consumer would.
pub fn check(bytes: &[u8]) {
    let recording = match read_bytes(bytes, "fuzz", &ReadOptions::default()) {
        Ok(recording) => recording,
        Err(error) => {
            assert!(!error.to_string().contains('\n'));
            return;
        }
    };
    assert!(!recording.traces.is_empty() || !recording.states.is_empty());
    for trace in &recording.traces {
        #[derive(Clone, Copy, PartialEq)]
        enum Life {
            Unborn,
            Live,
            Pending,
            Over,
        }
        let mut lives = vec![Life::Unborn; trace.allocations as usize];
        for (at, block) in trace.initial_blocks.iter().enumerate() {
            assert_eq!(block.allocation as usize, at);
            lives[at] = if block.pending { Life::Pending } else { Life::Live };
        }
        for event in &trace.events {
            assert!(event.bytes <= 1 << 62);
            assert!((event.tag as usize) < trace.tags.len());
            assert!(usize::from(event.stream) < trace.streams.len());
            assert!(usize::from(event.pool) < trace.pools.len());
            if event.allocation == NO_ALLOCATION {
                continue;
            }
            let life = &mut lives[event.allocation as usize];
            *life = match (event.action, *life) {
                (Action::Alloc, Life::Unborn) => Life::Live,
                (Action::Free, Life::Live) => Life::Over,
                (Action::FreeRequested, Life::Live) => Life::Pending,
                (Action::FreeCompleted, Life::Pending) => Life::Over,
                (action, _) => panic!("{action:?} out of order"),
            };
        }
        for caution in &trace.cautions {
            assert!(!caution.to_string().contains('\n'));
        }
        let mut csv = Vec::new();
        write_csv(trace, &mut csv).expect("memory takes all");
        let back = read_bytes(&csv, "fuzz", &ReadOptions::default()).expect("what was written is read");
        assert_eq!(back.traces[0].events.len(), trace.events.len());
    }
}
