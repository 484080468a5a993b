//! Host memory beside its peers: `millpond_bench::host` as a program. `host --help` says what it takes.

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
        // Whoever read it has seen enough.
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
    millpond_bench::say("error: this bench measures glibc's heap, so it needs Linux with glibc");
    ExitCode::from(2)
}
