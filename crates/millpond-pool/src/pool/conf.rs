//! Parses a pool's settings, from the environment, a builder or a live pool.

use super::prewarm::Prewarm;
use crate::host::{HugePages, Node};
use millpond_account::ledger::{Ledger, Tracking};
use millpond_account::registry::{self, LivePool};
use millpond_engine::{ConfError, MillpondConf, RetainConf, parse_size, policies};
use millpond_os::pressure::Share;
use millpond_os::time::duration;
use std::time::Duration;

/// The pool's settings in a text, except those of its policy. `None` means that the text does not set the value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PoolConf {
    /// The limit in bytes.
    pub limit: Option<Option<u64>>,
    /// The share of the memory that is the limit.
    pub memory_fraction: Option<f64>,
    /// The bytes that are reserved at the beginning.
    pub capacity: Option<u64>,
    /// The blocks that are allocated in advance.
    pub prewarm: Option<Prewarm>,
    /// The time between two trims.
    pub trim_every: Option<Option<Duration>>,
    /// The share of a limit at which the pool trims itself.
    pub trim_at_pressure: Option<Option<Share>>,
    /// Whether a block is set to zero before it is reused.
    pub zero_on_reuse: Option<bool>,
    pub(crate) pinned: Option<bool>,
    pub(crate) node: Option<Node>,
    pub(crate) huge_pages: Option<HugePages>,
    pub(crate) align: Option<usize>,
    /// The blocks that the ledger tracks, or `Some(None)` for none.
    pub track: Option<Option<Tracking>>,
    /// Whether the ledger records stacks.
    pub stacks: Option<bool>,
    pub(crate) guard: Option<bool>,
    pub(crate) quarantine: Option<u64>,
    /// Whether leaks are reported at exit.
    pub leak_report: Option<bool>,
}

/// The settings in a text, for the policy and for the pool. See
/// [`PoolBuilder::read_settings`](crate::PoolBuilder::read_settings).
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ReadSettings {
    /// The settings of the policy.
    pub policy: MillpondConf,
    /// The policy's part of the text, `key:value,…`. Empty if there is none.
    pub policy_text: String,
    /// The part of the text that only a pool uses, and that a policy by itself does not know.
    pub pool_text: String,
    /// The part of the text that a pool accepts with any policy: `pool_text` and `memory-fraction`.
    pub any_pool_text: String,
}

/// Returns the first key in a text that only some policies have, if the policy of this name does not have it. Keys that the
/// pool applies itself, such as `memory-fraction`, are not among them. The text must be valid.
pub(super) fn unused_key(text: &str, policy: &str) -> Option<String> {
    if policies::retaining().any(|name| name == policy) {
        return None;
    }
    let mut found = None;
    let _ = MillpondConf::parse_with(text, KEYS, |key, value| {
        if found.is_none() && !PoolConf::default().set(key, value)? {
            found = Some(key.to_owned());
        }
        Ok(true)
    });
    found
}

/// Returns the error that a policy does not have a setting.
pub(super) fn unused(key: &str, policy: &str) -> ConfError {
    ConfError::Unused {
        key: key.to_owned(),
        policy: policy.to_owned(),
        policies: policies::retaining().collect::<Vec<_>>().join(" and "),
    }
}

impl ReadSettings {
    /// Parses a text and splits it into the settings of the policy and of the pool.
    ///
    /// # Errors
    /// Returns the same errors as [`PoolConf::parse`].
    pub(crate) fn parse(text: &str) -> Result<Self, ConfError> {
        let mut read = Self::default();
        let add = |text: &mut String, key: &str, value: &str| {
            let comma = if text.is_empty() { "" } else { "," };
            *text += &format!("{comma}{key}:{value}");
        };
        let (conf, mut policy) = PoolConf::parse(text)?;
        MillpondConf::parse_with(text, KEYS, |key, value| {
            let of_pool = PoolConf::default().set(key, value)?;
            let of_both = key == "memory-fraction";
            if of_pool {
                add(&mut read.any_pool_text, key, value);
            }
            if of_pool && !of_both {
                add(&mut read.pool_text, key, value);
            } else {
                add(&mut read.policy_text, key, value);
            }
            Ok(of_pool || key == "cache-size")
        })?;
        // A pool applies the fraction for every policy. A policy without a pool must apply it itself.
        if let Some(fraction) = conf.memory_fraction {
            policy.retain.set("memory-fraction", &fraction.to_string())?;
        }
        policy.retain.check()?;
        read.policy = policy;
        Ok(read)
    }
}

/// The keys that are not keys of the policy. The policy's keys include `memory-fraction`.
const KEYS: &str = "limit, cache-size, capacity, prewarm, trim-every, trim-at-pressure, zero-on-reuse, pinned, node, \
                    huge-pages, align, track, stacks, guard, quarantine, leak-report";

fn on_or_off(key: &str, value: &str) -> Result<bool, ConfError> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(ConfError::value(key, value, "write on or off")),
    }
}

fn size(key: &str, value: &str) -> Result<u64, ConfError> {
    parse_size(value).map_err(|error| ConfError::size(key, &error))
}

/// Parses a percentage.
fn share(key: &str, value: &str) -> Result<Share, ConfError> {
    let percent: Option<f64> = value.strip_suffix('%').and_then(|text| text.trim().parse().ok());
    percent
        .filter(|percent| *percent >= 0.01 && *percent <= 100.0)
        .map(|percent| Share::hundredths((percent * 100.0).round() as u32))
        .ok_or_else(|| {
            ConfError::value(
                key,
                value,
                "write a share above 0% and up to 100% such as 80%, or off",
            )
        })
}

impl PoolConf {
    /// Parses a text of settings, including those of the policy.
    ///
    /// # Errors
    /// Returns an error if a key is unknown or a value is invalid.
    pub fn parse(text: &str) -> Result<(Self, MillpondConf), ConfError> {
        let mut conf = Self::default();
        let policy = conf.read(text)?;
        Ok((conf, policy))
    }

    fn read(&mut self, text: &str) -> Result<MillpondConf, ConfError> {
        let mut cache_size = None;
        let mut policy = MillpondConf::parse_with(text, KEYS, |key, value| {
            if key == "cache-size" {
                cache_size = Some(value.to_owned());
                return Ok(true);
            }
            self.set(key, value)
        })?;
        if let Some(value) = cache_size {
            set_cache_size(&mut policy.retain, &value)?;
        }
        Ok(policy)
    }

    /// Checks that the settings contain none that only pools of host memory have.
    ///
    /// # Errors
    /// Returns an error that names the first such setting.
    pub fn expect_for_devices(&self) -> Result<(), ConfError> {
        let said = [
            ("pinned", self.pinned.is_some()),
            ("node", self.node.is_some()),
            ("huge-pages", self.huge_pages.is_some()),
            ("align", self.align.is_some()),
            ("guard", self.guard.is_some()),
            ("quarantine", self.quarantine.is_some()),
        ];
        match said.iter().find(|(_, said)| *said) {
            Some((key, _)) => {
                let expected = "only pools of host memory have this setting: leave it out";
                Err(ConfError::value(key, "(as written)", expected))
            }
            None => Ok(()),
        }
    }

    /// Parses one setting. Returns whether the key is one of the pool's.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Result<bool, ConfError> {
        match key {
            "limit" if value == "none" => self.limit = Some(None),
            "limit" => self.limit = Some(Some(size(key, value)?)),
            "memory-fraction" => {
                // The value is parsed by the policy's rules and stored by the pool.
                let mut retain = RetainConf::default();
                retain.set(key, value)?;
                self.memory_fraction = Some(retain.memory_millionths as f64 / 1e6);
            }
            "capacity" => self.capacity = Some(size(key, value)?),
            "prewarm" => self.prewarm = Some(prewarm(key, value)?),
            "trim-every" if value == "off" => self.trim_every = Some(None),
            "trim-every" => self.trim_every = Some(Some(duration(key, value, true)?)),
            "trim-at-pressure" if value == "off" => self.trim_at_pressure = Some(None),
            "trim-at-pressure" => self.trim_at_pressure = Some(Some(share(key, value)?)),
            "zero-on-reuse" => self.zero_on_reuse = Some(on_or_off(key, value)?),
            "pinned" => self.pinned = Some(on_or_off(key, value)?),
            "node" => {
                let number = value.strip_suffix("!").unwrap_or(value).trim().parse();
                let number = number.map_err(|_| {
                    ConfError::value(
                        key,
                        value,
                        "write the number of a NUMA node, such as 0, or 0! to use only this node",
                    )
                })?;
                self.node = Some(match value.ends_with('!') {
                    true => Node::Only(number),
                    false => Node::Prefer(number),
                });
            }
            "huge-pages" => {
                self.huge_pages = Some(match value {
                    "auto" => HugePages::Auto,
                    "system" => HugePages::System,
                    "transparent" => HugePages::Transparent,
                    _ => HugePages::Explicit(parse_size(value).map_err(|_| {
                        ConfError::value(
                            key,
                            value,
                            "write auto, system, transparent, or the size of explicit huge pages such as 2MiB",
                        )
                    })?),
                });
            }
            "track" => self.track = Some(tracking(key, value)?),
            "stacks" => self.stacks = Some(on_or_off(key, value)?),
            "guard" => self.guard = Some(on_or_off(key, value)?),
            "quarantine" => self.quarantine = Some(size(key, value)?),
            "leak-report" => self.leak_report = Some(on_or_off(key, value)?),
            "align" => {
                let bytes = usize::try_from(size(key, value)?).ok();
                let bytes = bytes.filter(|bytes| bytes.is_power_of_two());
                self.align = Some(bytes.ok_or_else(|| ConfError::value(key, value, "write a power of two"))?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Completes the settings of tracking and leak reports. If `debug` is true, both are on by default. A leak report needs tracking.
    /// Returns whether leaks are reported.
    pub fn complete(&mut self, debug: bool) -> bool {
        if debug || self.leak_report == Some(true) {
            self.track.get_or_insert(Some(Tracking::All));
        }
        self.leak_report.unwrap_or(debug)
    }

    /// Starts the ledger of a new pool, if the settings or an observer of all pools request one.
    pub fn begin_account(&self, pool: &dyn LivePool) {
        if let Some(tracking) = self.track.flatten() {
            let account = Ledger::builder(tracking).complete(true).times(true);
            pool.track(Some(account.stacks(self.stacks.unwrap_or(true))));
        } else if registry::are_wanted() {
            registry::begin_account(pool);
        }
    }

    /// Returns these settings, replaced by those that `other` sets.
    pub fn overridden(self, other: Self) -> Self {
        Self {
            limit: other.limit.or(self.limit),
            memory_fraction: other.memory_fraction.or(self.memory_fraction),
            capacity: other.capacity.or(self.capacity),
            prewarm: other.prewarm.or(self.prewarm),
            trim_every: other.trim_every.or(self.trim_every),
            trim_at_pressure: other.trim_at_pressure.or(self.trim_at_pressure),
            zero_on_reuse: other.zero_on_reuse.or(self.zero_on_reuse),
            pinned: other.pinned.or(self.pinned),
            node: other.node.or(self.node),
            huge_pages: other.huge_pages.or(self.huge_pages),
            align: other.align.or(self.align),
            track: other.track.or(self.track),
            stacks: other.stacks.or(self.stacks),
            guard: other.guard.or(self.guard),
            quarantine: other.quarantine.or(self.quarantine),
            leak_report: other.leak_report.or(self.leak_report),
        }
    }
}

/// Returns the maximum number of bytes that may be reserved: the smaller of the limit and the fraction of the source's capacity.
pub fn limit_of(conf: &PoolConf, capacity: Option<u64>) -> Result<u64, ConfError> {
    let limit = conf.limit.flatten().unwrap_or(u64::MAX);
    let Some(fraction) = conf.memory_fraction else {
        return Ok(limit);
    };
    // A fraction that was not set as text is checked by the same rules.
    RetainConf::default().set("memory-fraction", &fraction.to_string())?;
    let share = capacity.map_or(u64::MAX, |capacity| (capacity as f64 * fraction) as u64);
    Ok(limit.min(share))
}

/// Returns an error if the interval is zero.
pub fn expect_time(every: Option<Duration>) -> Result<(), ConfError> {
    if every.is_some_and(|time| time.is_zero()) {
        let expected = "write a time such as 500ms, 1s or 2min, or off";
        return Err(ConfError::value("trim-every", "0s", expected));
    }
    Ok(())
}

/// A change of a live pool's settings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SettingsChange {
    /// The settings.
    pub conf: PoolConf,
    /// The new settings of retained memory, if the text changes them.
    pub retain: Option<RetainConf>,
}

impl SettingsChange {
    /// Parses a text of settings for a pool with this policy and the current retention settings `now`.
    ///
    /// # Errors
    /// Returns the errors of [`PoolConf::parse`], and an error for settings that cannot be changed on a live pool or that
    /// the policy does not have.
    pub fn parse(text: &str, policy: &str, now: &RetainConf) -> Result<Self, ConfError> {
        const LIVE: [&str; 5] = [
            "limit",
            "memory-fraction",
            "trim-every",
            "trim-at-pressure",
            "zero-on-reuse",
        ];
        let mut change = Self::default();
        let mut retain = now.clone();
        let mut retained = false;
        MillpondConf::parse_with(text, KEYS, |key, value| {
            if LIVE.contains(&key) {
                return change.conf.set(key, value);
            }
            if key == "cache-size" {
                retained = true;
                set_cache_size(&mut retain, value)?;
                return Ok(true);
            }
            if retain.set(key, value)? {
                retained = true;
                return Ok(true);
            }
            // A known key that is not changeable is fixed for the pool's life. An unknown key is reported by the parsers.
            let known = PoolConf::default().set(key, value)?
                || MillpondConf::parse(&format!("{key}:{value}")).is_ok();
            if known {
                let expected = "it can only be set when the pool is created";
                return Err(ConfError::value(key, value, expected));
            }
            Ok(false)
        })?;
        if let Some(key) = unused_key(text, policy) {
            return Err(unused(&key, policy));
        }
        retain.check()?;
        change.retain = retained.then_some(retain);
        Ok(change)
    }
}

fn set_cache_size(retain: &mut RetainConf, value: &str) -> Result<(), ConfError> {
    retain
        .set("high-water", value)
        .map(|_| ())
        .map_err(|error| match error {
            ConfError::Value { value, expected, .. } => ConfError::value("cache-size", &value, expected),
            error => error,
        })
}

fn tracking(key: &str, value: &str) -> Result<Option<Tracking>, ConfError> {
    let one_in = value
        .strip_prefix("one-in=")
        .and_then(|number| number.parse().ok());
    match (value, one_in) {
        ("off", _) => Ok(None),
        ("all", _) => Ok(Some(Tracking::All)),
        (_, Some(one_in @ 1..)) => Ok(Some(Tracking::Sampled { one_in })),
        _ => Err(ConfError::value(key, value, "write off, all, or one-in=N")),
    }
}

fn prewarm(key: &str, value: &str) -> Result<Prewarm, ConfError> {
    let fail = || {
        let expected = "write small, six=SIZE, or a list such as [64*1000,1MiB*4]";
        ConfError::value(key, value, expected)
    };
    if value == "small" {
        return Ok(Prewarm::small_sizes());
    }
    if let Some(total) = value.strip_prefix("six=") {
        let total = parse_size(total).map_err(|_| fail())?;
        return Ok(Prewarm::six_sizes(usize::try_from(total).map_err(|_| fail())?));
    }
    let list = value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let blocks = list.ok_or_else(fail)?.split(',').map(|entry| {
        let (bytes, count) = entry.split_once('*').ok_or_else(fail)?;
        let bytes = parse_size(bytes.trim())
            .ok()
            .and_then(|bytes| usize::try_from(bytes).ok());
        let count = count.trim().parse().ok();
        bytes.zip(count).ok_or_else(fail)
    });
    Ok(Prewarm::of(blocks.collect::<Result<Vec<_>, _>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_engine::Amount;

    #[test]
    fn reads_all_settings_of_a_pool() {
        let text = "limit:2GiB,memory-fraction:0.8,cache-size:2GB,capacity:16MiB,prewarm:[64*10,1MiB*4],trim-every:500ms,\
                    trim-at-pressure:87.5%,zero-on-reuse:on,pinned:off,node:0!,huge-pages:transparent,align:256,decay:5,\
                    track:one-in=1000,stacks:off,guard:on,quarantine:1MiB,leak-report:off";
        let (conf, policy) = PoolConf::parse(text).expect("all known");
        let expected = PoolConf {
            limit: Some(Some(2 << 30)),
            memory_fraction: Some(0.8),
            capacity: Some(16 << 20),
            prewarm: Some(Prewarm::of([(64, 10), (1 << 20, 4)])),
            trim_every: Some(Some(Duration::from_millis(500))),
            trim_at_pressure: Some(Some(Share::hundredths(8750))),
            zero_on_reuse: Some(true),
            pinned: Some(false),
            node: Some(Node::Only(0)),
            huge_pages: Some(HugePages::Transparent),
            align: Some(256),
            track: Some(Some(Tracking::Sampled { one_in: 1000 })),
            stacks: Some(false),
            guard: Some(true),
            quarantine: Some(1 << 20),
            leak_report: Some(false),
        };
        assert_eq!(conf, expected);
        assert_eq!(policy.retain.high_water, Some(Amount::Bytes(2_000_000_000)));
        assert_eq!(policy.retain.decay, 5);
        // The pool applies the fraction for every policy.
        assert_eq!(policy.retain.memory_millionths, 1_000_000);
        assert_eq!(
            PoolConf::parse("limit:none,trim-every:off").map(|(conf, _)| (conf.limit, conf.trim_every)),
            Ok((Some(None), Some(None)))
        );
        assert_eq!(
            PoolConf::parse("trim-at-pressure:off").map(|(conf, _)| conf.trim_at_pressure),
            Ok(Some(None))
        );
    }

    #[test]
    fn an_invalid_setting_is_refused_with_the_valid_values() {
        for (text, told) in [
            ("garbage", "not key:value"),
            ("limt:2GiB", "unknown setting 'limt': choose one of limit, "),
            ("limit:lots", "limit"),
            ("trim-every:5", "500ms"),
            ("trim-every:0s", "500ms"),
            ("trim-at-pressure:0.8", "80%"),
            ("trim-at-pressure:0%", "80%"),
            ("trim-at-pressure:101%", "80%"),
            ("trim-at-pressure:NaN%", "80%"),
            ("zero-on-reuse:yes", "on or off"),
            ("node:west", "NUMA"),
            ("huge-pages:big", "transparent"),
            ("align:48", "power of two"),
            ("track:some", "one-in=N"),
            ("track:one-in=0", "one-in=N"),
            ("prewarm:[64]", "[64*1000,1MiB*4]"),
            ("prewarm:many", "six=SIZE"),
            ("cache-size:all", "cache-size"),
            ("memory-fraction:2", "0.9"),
        ] {
            let error = PoolConf::parse(text).expect_err(text).to_string();
            assert!(error.contains(told), "{text}: {error}");
        }
    }

    #[test]
    fn a_text_is_split_into_settings_of_the_policy_and_of_the_pool() {
        let read = ReadSettings::parse(
            "guard:on,handle:4MiB,prewarm:[64*10,1MiB*4],memory-fraction:0.5,cache-size:1GiB,limit:2GiB",
        )
        .expect("all known");
        assert_eq!(
            read.policy_text,
            "handle:4MiB,memory-fraction:0.5,cache-size:1GiB"
        );
        assert_eq!(read.pool_text, "guard:on,prewarm:[64*10,1MiB*4],limit:2GiB");
        assert_eq!(
            read.any_pool_text,
            "guard:on,prewarm:[64*10,1MiB*4],memory-fraction:0.5,limit:2GiB"
        );
        let retain = &read.policy.retain;
        assert_eq!(
            (read.policy.handle_bytes, retain.memory_millionths),
            (4 << 20, 500_000)
        );
        assert_eq!(retain.high_water, Some(Amount::Bytes(1 << 30)));
        for text in [
            "gard:on",
            "guard:maybe",
            "limit:lots",
            "low-water:2GiB,cache-size:1GiB",
        ] {
            assert!(ReadSettings::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn only_changeable_settings_of_a_live_pool_change() {
        let now = RetainConf::default();
        let change =
            SettingsChange::parse("limit:1GiB,cache-size:10%,decay:3", "millpond", &now).expect("all live");
        assert_eq!(change.conf.limit, Some(Some(1 << 30)));
        let retain = change.retain.expect("said");
        assert_eq!((retain.decay, retain.high_water), (3, Some(Amount::Percent(10))));
        assert_eq!(
            SettingsChange::parse("zero-on-reuse:on", "millpond", &now).map(|change| change.retain),
            Ok(None)
        );
        for (text, told) in [
            ("align:256", "when the pool is created"),
            ("guard:on", "when the pool is created"),
            ("handle:4MiB", "when the pool is created"),
            ("lmit:1", "unknown setting"),
            ("low-water:2GiB,high-water:1GiB", "low-water"),
        ] {
            let error = SettingsChange::parse(text, "millpond", &now)
                .expect_err(text)
                .to_string();
            assert!(error.contains(told), "{text}: {error}");
        }
    }

    #[test]
    fn a_policy_refuses_settings_that_it_does_not_have() {
        let now = RetainConf::default();
        for policy in policies::names() {
            let takes = policy == "millpond" || policy == "planned";
            for key in ["cache-size", "decay", "low-water", "high-water", "compact-at"] {
                let change = SettingsChange::parse(&format!("limit:1GiB,{key}:7"), policy, &now);
                assert_eq!(change.is_ok(), takes, "{policy} {key}: {change:?}");
                if let Err(error) = change {
                    let told =
                        format!("the policy '{policy}' has no setting '{key}': millpond and planned have it");
                    assert_eq!(error.to_string(), told);
                }
            }
            assert!(SettingsChange::parse("limit:1GiB,memory-fraction:0.5", policy, &now).is_ok());
        }
    }
}
