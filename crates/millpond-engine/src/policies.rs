//! The placement policies and their names.

mod bfc;
mod buckets;
mod cuda_async;
mod free_lists;
mod holes;
mod last_users;
mod millpond;
mod none;
mod planned;
pub mod pow2;
mod rmm_arena;
mod rmm_pool;
mod rounding;
mod slabs;
mod torch_expandable;
mod torch_native;
mod torch_pools;
mod torch_rules;
mod warm_lists;

use crate::conf::Settings;
use crate::policy::Policy;
use thiserror::Error;

pub use bfc::Bfc;
pub use buckets::Buckets;
pub use cuda_async::CudaAsync;
pub use millpond::Millpond;
pub use none::NoPolicy;
pub use planned::Planned;
pub use pow2::PowersOfTwo;
pub use rmm_arena::RmmArena;
pub use rmm_pool::RmmPool;
pub use torch_expandable::TorchExpandable;
pub use torch_native::TorchNative;

type Build = fn(&Settings) -> Box<dyn Policy>;

/// Every policy, in the order of reports.
const ALL: &[(&str, Build)] = &[
    ("millpond", |s| Box::new(Millpond::new(&s.millpond))),
    ("planned", |s| {
        let planned = Planned::new(&s.millpond);
        Box::new(match &s.plan {
            Some(plan) => planned.with_plan(plan.clone()),
            None => planned,
        })
    }),
    ("torch-native", |s| Box::new(TorchNative::new(&s.torch))),
    ("torch-expandable", |s| Box::new(TorchExpandable::new(&s.torch))),
    ("bfc", |_| Box::new(Bfc::new())),
    ("rmm-pool", |_| Box::new(RmmPool::new())),
    ("rmm-arena", |_| Box::new(RmmArena::new())),
    ("cuda-async", |_| Box::new(CudaAsync::new())),
    ("pow2", |_| Box::new(PowersOfTwo::new())),
    ("buckets", |_| Box::new(Buckets::new())),
    ("none", |_| Box::new(NoPolicy::new())),
];

/// The name does not belong to any policy.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown policy '{name}': choose one of {known}")]
pub struct UnknownPolicy {
    /// The unknown name.
    pub name: String,
    /// The known names.
    pub known: String,
}

/// Returns the names of all policies, in the order of reports.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|(name, _)| *name)
}

/// Returns the names of the policies that support settings for how much free memory is kept, and for how long. These
/// are the policies built from [`Settings::millpond`].
///
/// ```
/// use millpond_engine::policies;
///
/// assert_eq!(policies::retaining().collect::<Vec<_>>(), ["millpond", "planned"]);
/// ```
pub fn retaining() -> impl Iterator<Item = &'static str> {
    let settings = Settings::default();
    let retain = settings.millpond.retain.clone();
    ALL.iter()
        .filter(move |(_, build)| build(&settings).set_retain(&retain))
        .map(|(name, _)| *name)
}

/// Creates the policy with this name.
///
/// # Errors
/// Returns an error if there is no such policy.
pub fn build(name: &str, settings: &Settings) -> Result<Box<dyn Policy>, UnknownPolicy> {
    match ALL.iter().find(|(known, _)| *known == name) {
        Some((_, build)) => Ok(build(settings)),
        None => Err(UnknownPolicy {
            name: name.to_owned(),
            known: names().collect::<Vec<_>>().join(", "),
        }),
    }
}
