//! Calls the functions for PyTorch in the order in which PyTorch calls them.

mod support;

use support::{command, compile, folder, install, is_installed, package, run};

#[test]
fn a_pool_serves_calls_in_pytorchs_order() {
    if !is_installed("c++", "--version") {
        return;
    }
    let prefix = folder("torch");
    install(&prefix);
    let source = package().join("tests/programs/torch.cpp");
    let program = compile(
        "c++",
        &prefix,
        &source,
        &["-std=c++17", "-Wno-cast-function-type"],
    );
    for options in ["streams:threads,strict:on", "streams:seeded,seed:3"] {
        let printed = run(command(&program, &prefix).env("MILLPOND_CUDA_EMU", options));
        assert_eq!(printed, "0 wrong bytes, some refused, 0 left\n", "{options}");
    }
}
