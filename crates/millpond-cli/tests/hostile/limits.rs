//! Runs the command as a child process with a limit on address space and time.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The limit on a child's address space, in KiB: 1.4 GiB.
const SPACE: u64 = 1_468_006;
/// The time after which a child is killed.
const PATIENCE: Duration = Duration::from_secs(20);
/// The most bytes that a child may have in main memory for a file of less than 5 MiB.
pub(crate) const MOST_MEMORY: u64 = 600 << 20;

/// The outcome of a child.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) took: Duration,
    /// The most bytes it had in main memory.
    pub(crate) memory: u64,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// Asserts that the command neither panicked nor crashed, and that a refusal is one line.
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

/// Runs the command. Kills it and panics if it takes too long.
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
    let mut memory = 0;
    let status = loop {
        memory = memory.max(high_water(child.id()));
        if let Some(status) = child.try_wait().expect("it is our child") {
            break status;
        }
        if begun.elapsed() > PATIENCE {
            let _ = child.kill();
            let _ = child.wait();
            panic!("{arguments:?} takes longer than {PATIENCE:?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let took = begun.elapsed();
    let code = status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
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

/// Returns the most bytes that a child has had in main memory since it began to run its program; 0 if it has ended.
///
/// The figure of wait4(2) would be at least the memory of this process when it started the child.
fn high_water(child: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{child}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kibibytes.unwrap_or(0) << 10
}
