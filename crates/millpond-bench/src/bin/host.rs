//! The program for `millpond_bench::host`, which compares allocators of host memory. `host --help` lists its arguments.

use std::process::ExitCode;

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn main() -> ExitCode {
    use millpond_bench::host::{Again, Error, USAGE, run};
    use millpond_bench::say;
    use std::io;

    match run(std::env::args().skip(1), &Again::as_host(), &mut io::stdout()) {
        Ok(failed) => {
            for failure in &failed {
                say(format!("failed: {failure}"));
            }
            ExitCode::from(u8::from(!failed.is_empty()))
        }
        // The reader of the output has gone, which is not an error.
        Err(Error::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(Error::Usage(error)) => {
            say(format!("error: {error}\n\n{USAGE}"));
            ExitCode::from(2)
        }
        Err(error) => {
            say(format!("error: {error}"));
            ExitCode::FAILURE
        }
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn main() -> ExitCode {
    millpond_bench::say("error: this benchmark measures glibc's heap, so it needs Linux with glibc");
    ExitCode::from(2)
}
