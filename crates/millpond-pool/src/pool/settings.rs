//! The settings that the builders of host and of device pools have in common.

use super::conf::{PoolConf, expect_time, unused, unused_key};
use millpond_account::budget::{Budget, BudgetError, Measure};
use millpond_engine::policies::{self, UnknownPolicy};
use millpond_engine::{ConfError, MillpondConf, Policy, Settings};

/// The settings of a new pool, from the methods of a builder, from a text and from the environment.
#[derive(Clone, Debug, Default)]
pub struct PoolSettings {
    /// The name, or `None` for the default.
    pub name: Option<String>,
    /// The name of the policy, or `None` for the default.
    pub policy: Option<String>,
    /// The settings as text, which replace those of the environment.
    pub text: Option<String>,
    /// The budget that the pool is charged to.
    pub budget: Option<Budget>,
    /// The settings that were made by methods. They take precedence over the text and the environment.
    pub conf: PoolConf,
    /// The settings that apply if nothing else sets them.
    pub defaults: PoolConf,
}

impl PoolSettings {
    /// Returns the name of the policy.
    pub fn policy(&self) -> &str {
        self.policy.as_deref().unwrap_or("millpond")
    }

    /// Parses a text for a pool of this policy.
    ///
    /// # Errors
    /// Returns the errors of [`PoolConf::parse`], and an error for a setting that the policy does not have.
    pub fn parse(&self, text: &str) -> Result<(PoolConf, MillpondConf), ConfError> {
        let read = PoolConf::parse(text)?;
        match unused_key(text, self.policy()) {
            // An unknown policy name is reported as such, not as an unused key.
            Some(key) if policies::names().any(|name| name == self.policy()) => {
                Err(unused(&key, self.policy()))
            }
            _ => Ok(read),
        }
    }

    /// Returns all settings together: those of the pool, and those of the policy.
    ///
    /// # Errors
    /// Returns the errors of [`parse`](Self::parse), and an error for a value that is out of range. Errors of the environment are
    /// converted by `in_environment`.
    pub fn read<E: From<ConfError>>(
        &self,
        in_environment: impl FnOnce(ConfError) -> E,
    ) -> Result<(PoolConf, MillpondConf), E> {
        let (conf, policy) = match &self.text {
            Some(text) => self.parse(text)?,
            None => match std::env::var("MILLPOND_CONF") {
                Ok(text) => self.parse(&text).map_err(in_environment)?,
                Err(_) => PoolConf::parse("")?,
            },
        };
        let conf = self.defaults.clone().overridden(conf);
        let conf = conf.overridden(self.conf.clone());
        expect_time(conf.trim_every.flatten())?;
        Ok((conf, policy))
    }

    /// Creates the policy.
    ///
    /// # Errors
    /// Returns an error if there is no policy of this name.
    pub fn build_policy(&self, millpond: MillpondConf) -> Result<Box<dyn Policy>, UnknownPolicy> {
        let settings = Settings {
            millpond,
            ..Settings::default()
        };
        policies::build(self.policy(), &settings)
    }
}

/// Creates the pool's own child budgets, of allocated and of reserved bytes, below the given budget.
pub fn budgets(given: Option<&Budget>, name: &str) -> Result<(Option<Budget>, Option<Budget>), BudgetError> {
    let Some(given) = given else {
        return Ok((None, None));
    };
    let below = |measure| {
        let nearest = given.nearest(measure);
        nearest.map(|budget| budget.child(name)).transpose()
    };
    let budget = match given.measure() {
        Measure::Allocated => Some(given.child(name)?),
        Measure::Reserved => None,
    };
    Ok((budget, below(Measure::Reserved)?))
}
