//! Finds the processes whose statistics can be read.

use super::fetch;
use crate::exit::CliError;
use millpond::monitor::socket_folders;
use serde::Serialize;
use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// The message if there is no process to read from.
pub(crate) const HOW_TO_BE_SEEN: &str =
    "start a program that uses Millpond with MILLPOND_MONITOR=1, or start a Monitor with a socket in it";

/// The process to read from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    /// A process by its number, wherever its socket is.
    Process(u32),
    /// A path of a socket.
    Socket(PathBuf),
    /// An address of this machine.
    Address(SocketAddr),
}

impl Target {
    pub(crate) fn parse(text: &str) -> Result<Self, CliError> {
        if let Ok(process) = text.parse() {
            return Ok(Self::Process(process));
        }
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        if text.contains('/') || Path::new(text).exists() {
            return Ok(Self::Socket(PathBuf::from(text)));
        }
        Err(CliError::Usage(format!(
            "'{text}' names no process: give its number, the path of its socket, or an address such as 127.0.0.1:9464"
        )))
    }

    /// Returns the possible paths of its socket.
    pub(crate) fn sockets(&self) -> Vec<PathBuf> {
        match self {
            Self::Process(process) => {
                let folders = socket_folders().into_iter();
                folders
                    .map(|folder| folder.join(format!("{process}.sock")))
                    .collect()
            }
            Self::Socket(path) => vec![path.clone()],
            Self::Address(_) => Vec::new(),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(process) => write!(f, "process {process}"),
            Self::Socket(path) => path.display().fmt(f),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// A process that answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Process {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) host: String,
    pub(crate) rank: Option<String>,
    pub(crate) resident: Option<u64>,
    pub(crate) pools: usize,
    pub(crate) allocated: u64,
    pub(crate) reserved: u64,
    pub(crate) warnings: usize,
    pub(crate) socket: PathBuf,
}

/// Returns every process of this user that answers, by rank and number.
pub(crate) fn processes() -> Vec<Process> {
    let mut found: Vec<Process> = socket_folders()
        .iter()
        .flat_map(|folder| in_folder(folder))
        .collect();
    let rank = |of: &Process| of.rank.as_ref().and_then(|rank| rank.parse::<u64>().ok());
    found.sort_by_key(|of| (rank(of), of.id));
    found.dedup_by_key(|of| of.id);
    found
}

fn in_folder(folder: &Path) -> Vec<Process> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let sockets = entries.flatten().map(|entry| entry.path());
    let sockets = sockets.filter(|path| path.extension().is_some_and(|end| end == "sock"));
    sockets.filter_map(look).collect()
}

fn look(socket: PathBuf) -> Option<Process> {
    let stats = fetch::stats(&Target::Socket(socket.clone())).ok()?;
    Some(Process {
        id: stats.process.id,
        name: stats.process.name,
        host: stats.process.host,
        rank: stats.process.rank,
        resident: stats.process.resident,
        pools: stats.pools.len(),
        allocated: stats.pools.iter().map(|pool| pool.allocated).sum(),
        reserved: stats.pools.iter().map(|pool| pool.reserved).sum(),
        warnings: stats.warnings.len(),
        socket,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_process_a_socket_or_an_address() {
        let parsed = |text: &str| Target::parse(text).ok();
        assert_eq!(parsed("123"), Some(Target::Process(123)));
        assert_eq!(
            parsed("/run/x.sock"),
            Some(Target::Socket(PathBuf::from("/run/x.sock")))
        );
        assert_eq!(parsed("./123"), Some(Target::Socket(PathBuf::from("./123"))));
        let address = Target::Address(SocketAddr::from(([127, 0, 0, 1], 9464)));
        assert_eq!(parsed("127.0.0.1:9464"), Some(address));
        assert_eq!(parsed("firefox"), None);
        assert_eq!(parsed("-1"), None);
    }
}
