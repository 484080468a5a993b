//! `millpond policies`: lists the policies.

use crate::args::PoliciesArgs;
use crate::exit::{CliError, Exit};
use crate::output;
use crate::table::{Align, Grid};
use millpond_engine::{Key, MillpondConf, Settings, policies};
use serde::Serialize;

#[derive(Serialize)]
struct Listed {
    policy: &'static str,
    fidelity: &'static str,
    about: &'static str,
    /// Empty for policies that `--conf` does not configure.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    settings: Vec<Setting>,
}

#[derive(Serialize)]
struct Setting {
    key: &'static str,
    default: String,
    about: &'static str,
}

/// The policies that `--conf` configures.
const CONFIGURED: [&str; 2] = ["millpond", "planned"];

fn settings_of(policy: &str) -> Vec<Setting> {
    if !CONFIGURED.contains(&policy) {
        return Vec::new();
    }
    let keys = MillpondConf::default().keys().into_iter();
    keys.map(|Key { key, value, about }| Setting {
        key,
        default: value,
        about,
    })
    .collect()
}

/// Runs the command.
pub(crate) fn command(args: &PoliciesArgs) -> Result<Exit, CliError> {
    let settings = Settings::default();
    let listed = policies::names().filter_map(|policy| {
        let fidelity = policies::build(policy, &settings).ok()?.fidelity().as_str();
        Some(Listed {
            policy,
            fidelity,
            about: about(policy),
            settings: settings_of(policy),
        })
    });
    let listed: Vec<Listed> = listed.collect();
    if args.json {
        output::print_json(&listed)?;
        return Ok(Exit::Done);
    }
    let mut grid = Grid::new();
    grid.column(
        "policy",
        Align::Left,
        listed.iter().map(|p| p.policy.to_owned()).collect(),
    );
    grid.column(
        "fidelity",
        Align::Left,
        listed.iter().map(|p| p.fidelity.to_owned()).collect(),
    );
    grid.column(
        "what it is",
        Align::Left,
        listed.iter().map(|p| p.about.to_owned()).collect(),
    );
    let settings = settings_of(CONFIGURED[0]);
    let mut keys = Grid::new();
    keys.column(
        "setting",
        Align::Left,
        settings.iter().map(|s| s.key.to_owned()).collect(),
    );
    keys.column(
        "default",
        Align::Right,
        settings.iter().map(|s| s.default.clone()).collect(),
    );
    keys.column(
        "what it does",
        Align::Left,
        settings.iter().map(|s| s.about.to_owned()).collect(),
    );
    output::print(&format!(
        "{}\n\nSettings of {}, written --conf key:value,key:value or in MILLPOND_CONF:\n\n{}\n",
        grid.render(&[]),
        CONFIGURED.join(" and "),
        keys.render(&[])
    ))?;
    Ok(Exit::Done)
}

/// Returns a description of a policy for users who know allocators by their programs.
fn about(policy: &str) -> &'static str {
    match policy {
        "millpond" => "this project's default",
        "planned" => "this project's, for repeating steps",
        "torch-native" => "PyTorch's default allocator",
        "torch-expandable" => "PyTorch, expandable_segments:True",
        "bfc" => "best fit of TensorFlow and JAX",
        "rmm-pool" => "RMM's pool resource",
        "rmm-arena" => "RMM's arena resource",
        "cuda-async" => "the driver's pool, cudaMallocAsync",
        "pow2" => "powers of two, cached by size",
        "buckets" => "size classes, cached by class",
        "none" => "a driver call for every request",
        _ => "",
    }
}
