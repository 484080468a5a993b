//! Streams: blocks that two streams use, and streams that end before a pool.

mod support;

use support::{command, compile, folder, install, is_installed, package, run};

#[test]
fn memory_waits_for_the_streams_that_use_it() {
    if !is_installed("cc", "--version") {
        return;
    }
    let prefix = folder("streams");
    install(&prefix);
    let source = package().join("tests/programs/streams.c");
    let program = compile("cc", &prefix, &source, &["-std=gnu11"]);
    for seed in 0..8 {
        let options = format!("streams:seeded,seed:{seed},strict:on");
        let printed = run(command(&program, &prefix).env("MILLPOND_CUDA_EMU", options));
        assert_eq!(printed, "0 wrong bytes\n", "with seed {seed}");
    }
}
