//! The command as a child process with a limit of address space and of time.

use std::io::{self, Read};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Address space of a child, in KiB: 1.4 GiB.
const SPACE: u64 = 1_468_006;
/// After so long it is killed.
const PATIENCE: Duration = Duration::from_secs(20);
/// What a child may have in main memory for a file of less than five megabytes.
pub(crate) const MOST_MEMORY: u64 = 600 << 20;

/// How a child ended.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) took: Duration,
    /// The most bytes it had in main memory.
    pub(crate) memory: u64,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// That it neither panicked nor crashed, and refused in one line if it did.
    #[track_caller]
    pub(crate) fn check(&self, name: &str) {
        assert!(
            [0, 2, 3].contains(&self.code),
            "{name}: exit code {}: {}",
            self.code,
            self.stderr
        );
        assert!(!self.stderr.contains("panicked"), "{name}: {}", self.stderr);
        if self.code == 2 {
            let lines = self.stderr.lines().count();
            assert_eq!(lines, 1, "{name}: {}", self.stderr);
            assert!(self.stderr.starts_with("millpond: "), "{name}: {}", self.stderr);
            assert!(self.stderr.len() < 600, "{name}: {}", self.stderr);
        }
    }
}

/// Runs the command; kills it and fails where it takes too long.
pub(crate) fn limited(arguments: &[String]) -> Ran {
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("ulimit -v {SPACE} && exec \"$0\" \"$@\"")])
        .arg(env!("CARGO_BIN_EXE_millpond"))
        .args(arguments)
        .env("COLUMNS", "100")
        .env_remove("MILLPOND_CONF")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let begun = Instant::now();
    let mut child = command.spawn().expect("the program starts");
    let stdout = reader(child.stdout.take().expect("piped"));
    let stderr = reader(child.stderr.take().expect("piped"));
    let (status, memory) = loop {
        match ended(child.id()).expect("it is our child") {
            Some(ended) => break ended,
            None if begun.elapsed() > PATIENCE => {
                let _ = child.kill();
                let _ = ended(child.id());
                panic!("{arguments:?} takes longer than {PATIENCE:?}");
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let took = begun.elapsed();
    let code = if libc::WIFEXITED(status) {
        libc::WEXITSTATUS(status)
    } else {
        128 + libc::WTERMSIG(status)
    };
    Ran {
        code,
        took,
        memory,
        stdout: stdout.join().expect("it reads"),
        stderr: stderr.join().expect("it reads"),
    }
}

fn reader(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// How a child has ended and the most bytes it had in main memory; none while it runs.
fn ended(child: u32) -> io::Result<Option<(i32, u64)>> {
    let mut status = 0;
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: both pointers are to values of ours that live through the call, of the types that wait4(2) writes.
    let found = unsafe { libc::wait4(child as i32, &raw mut status, libc::WNOHANG, usage.as_mut_ptr()) };
    match found {
        0 => Ok(None),
        -1 => Err(io::Error::last_os_error()),
        _ => {
            // SAFETY: it is a struct of numbers, for which all zeroes is a value, and wait4 has written it since.
            let usage = unsafe { usage.assume_init() };
            Ok(Some((status, (usage.ru_maxrss as u64) << 10)))
        }
    }
}
