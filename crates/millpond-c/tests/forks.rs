//! Forks of a process whose threads use a pool.

mod support;

use support::{command, compile, folder, install, is_installed, package, run};

#[test]
fn a_child_uses_the_pools_of_the_host() {
    if !is_installed("cc", "--version") {
        return;
    }
    let prefix = folder("forks");
    install(&prefix);
    let source = package().join("tests/programs/fork.c");
    let program = compile("cc", &prefix, &source, &["-std=gnu11"]);
    run(&mut command(&program, &prefix));
}
