//! The allocator that a recorded program runs under.

use crate::family::Family;
use crate::options::Options;
use crate::verify::recorded_conf;
use millpond_engine::{Settings, TorchBackend, TorchConf};
use millpond_trace::{Format, Trace};

/// A policy with its settings.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// The name of the policy.
    pub(crate) policy: String,
    /// The settings.
    pub(crate) settings: Settings,
    /// The settings as they are written in the environment. Empty for the defaults.
    pub(crate) conf: String,
}

impl Setup {
    /// Returns the allocator of a family with settings. Returns `None` if they cannot be parsed.
    pub(crate) fn of(family: Family, conf: &str) -> Option<Self> {
        let (policy, settings) = family.settings(conf)?;
        Some(Self {
            policy: policy.to_owned(),
            settings,
            conf: conf.to_owned(),
        })
    }

    /// Returns the allocator in words that its users know.
    pub(crate) fn name(&self) -> String {
        let plain = match self.policy.as_str() {
            "torch-native" if self.conf.is_empty() => return "PyTorch's default allocator".to_owned(),
            "torch-expandable" if self.conf.is_empty() => {
                return "PyTorch's allocator with expandable_segments:True".to_owned();
            }
            "torch-native" | "torch-expandable" => "PyTorch's allocator",
            "rmm-pool" => "RMM's pool_memory_resource",
            "rmm-arena" => "RMM's arena_memory_resource",
            "cuda-async" => "the driver's own pool (cudaMallocAsync)",
            "millpond" => "Millpond's pool",
            other => other,
        };
        match self.conf.as_str() {
            "" => plain.to_owned(),
            conf => format!("{plain} with {conf}"),
        }
    }
}

/// The program's own allocator.
#[derive(Clone, Debug)]
pub(crate) struct Own {
    pub(crate) setup: Setup,
    /// Whether the recording or an option names it.
    pub(crate) known: bool,
}

/// Returns the policy that most programs with recordings of this format run under.
#[must_use]
pub fn usual_policy(format: Format) -> &'static str {
    match format {
        Format::TorchSnapshot | Format::MillpondCsv | Format::ChromeTrace => "torch-native",
        Format::RmmCsv => "rmm-pool",
        Format::MillpondRecording => "millpond",
    }
}

/// Returns the allocator that the program runs under. The options decide, then the recording, then
/// [`usual_policy`].
pub(crate) fn own(trace: &Trace, recorded: Option<&str>, options: &Options) -> Own {
    let usual = usual_policy(trace.origin.format);
    let policy = recorded.unwrap_or(usual);
    let given = |policy: &str| {
        let applied = options.applied.iter();
        let mut given = applied.filter(|one| one.policies.iter().any(|name| name == policy));
        given.next().map(|one| one.settings.clone())
    };
    if !policy.starts_with("torch") {
        let conf = given(policy);
        return Own {
            known: recorded.is_some() || conf.is_some(),
            setup: Setup {
                policy: policy.to_owned(),
                settings: options.settings.clone(),
                conf: conf.unwrap_or_default(),
            },
        };
    }
    let conf = given("torch-native").or_else(|| given("torch-expandable"));
    let named = conf.is_some() || recorded.is_some() || trace.settings.conf.is_some();
    let torch = match &conf {
        Some(_) => options.settings.torch.clone(),
        // Settings that cannot be parsed are those of a later PyTorch. The defaults replace them.
        None => recorded_conf(&trace.settings).unwrap_or_default(),
    };
    let conf = conf.or_else(|| trace.settings.conf.clone()).unwrap_or_default();
    let policy = torch_policy(&torch, policy);
    Own {
        known: named,
        setup: Setup {
            policy: policy.to_owned(),
            settings: Settings {
                torch,
                ..options.settings.clone()
            },
            conf,
        },
    }
}

/// Returns the policy that PyTorch's settings select. A recording may show `otherwise` in its segments.
fn torch_policy<'a>(torch: &TorchConf, otherwise: &'a str) -> &'a str {
    match (torch.backend, torch.expandable_segments) {
        (TorchBackend::CudaMallocAsync, _) => "cuda-async",
        (_, Some(true)) => "torch-expandable",
        (_, Some(false)) => "torch-native",
        (_, None) => otherwise,
    }
}
