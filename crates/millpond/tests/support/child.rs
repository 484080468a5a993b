//! Processes of their own for parts of a test.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// How long any part may take on a machine that is busy with others.
const SECONDS: u32 = 180;

fn set_alarm() -> io::Result<()> {
    // SAFETY: takes a number.
    unsafe { libc::alarm(SECONDS) };
    Ok(())
}

/// Has the child end with SIGALRM where it hangs, so that the test fails instead of waiting for ever.
pub(crate) fn ends(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec it calls `alarm` alone, which may be called there; what that sets outlives the exec.
    unsafe { command.pre_exec(set_alarm) }
}
