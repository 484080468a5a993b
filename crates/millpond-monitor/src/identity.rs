//! The identity of the sampled process.

use std::path::Path;

/// The names of a process in its job and on its machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) process: u32,
    /// The name of the program.
    pub(super) name: String,
    pub(super) host: String,
    /// The rank, if there is one.
    pub(super) rank: Option<String>,
}

/// The variables in which launchers store the rank of a process, the most specific first. `LOCAL_RANK` is unique only
/// on one machine.
const RANKS: [&str; 4] = ["RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "LOCAL_RANK"];

impl Identity {
    pub(super) fn new(rank: Option<&str>, host: Option<&str>) -> Self {
        let here = std::env::current_exe().ok();
        let name = here.as_deref().and_then(Path::file_name);
        Self {
            process: std::process::id(),
            name: name
                .map(|name| name.to_string_lossy().into_owned())
                .unwrap_or_default(),
            host: host.map_or_else(host_name, str::to_owned),
            rank: rank.map_or_else(
                || rank_in(|name| std::env::var(name).ok()),
                |rank| Some(rank.to_owned()),
            ),
        }
    }
}

fn rank_in(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let said = RANKS.iter().filter_map(|name| variable(name));
    said.map(|rank| rank.trim().to_owned())
        .find(|rank| !rank.is_empty() && rank.len() <= 32 && rank.bytes().all(|b| b.is_ascii_digit()))
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rank_in_the_job_takes_precedence_over_the_local_rank() {
        let of = |said: &[(&str, &str)]| {
            rank_in(|name| {
                said.iter()
                    .find(|(n, _)| *n == name)
                    .map(|(_, rank)| (*rank).to_owned())
            })
        };
        assert_eq!(of(&[("LOCAL_RANK", "1"), ("RANK", "9")]).as_deref(), Some("9"));
        assert_eq!(
            of(&[("LOCAL_RANK", "1"), ("SLURM_PROCID", "17")]).as_deref(),
            Some("17")
        );
        assert_eq!(
            of(&[("LOCAL_RANK", " 3 "), ("RANK", "none")]).as_deref(),
            Some("3")
        );
        assert_eq!(of(&[("RANK", "")]), None);
    }
}
