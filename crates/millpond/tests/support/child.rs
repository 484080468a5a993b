//! Processes of their own for parts of a test.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// How long any part may take on a machine that is busy with others.
const SECONDS: u32 = 180;

/// Has the child end with SIGALRM where it hangs, so that the test fails instead of waiting for ever.
pub(crate) fn ends(command: &mut Command) -> &mut Command {
    let alarm = || {
        // SAFETY: takes a number; it may be called between fork and exec, and what it sets outlives the exec.
        unsafe { libc::alarm(SECONDS) };
        Ok(())
    };
    // SAFETY: between fork and exec nothing but that is called.
    unsafe { command.pre_exec(alarm) }
}
