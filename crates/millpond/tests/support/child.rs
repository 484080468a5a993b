//! Child processes for parts of a test.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The maximum duration in seconds of any part on a busy machine.
const SECONDS: u32 = 180;

fn set_alarm() -> io::Result<()> {
    // SAFETY: the call takes only a number.
    unsafe { libc::alarm(SECONDS) };
    Ok(())
}

/// Makes the child end with SIGALRM if it hangs, so that the test fails instead of waiting forever.
pub(crate) fn ends(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec it calls only `alarm`, which is permitted in that state. The alarm outlives the exec.
    unsafe { command.pre_exec(set_alarm) }
}
